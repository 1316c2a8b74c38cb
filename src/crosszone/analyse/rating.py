"""Rating: step, tokens/s and days at p50 and p95, what makes them uncertain, and what limits each link.

    answer = build_rating(build_predictor(scenario))
    answer.step_s.p95, answer.largest, answer.links[0].limited_by

Link use: how many connections a plan opens over each link between zones, what they carry, and what limits them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import NormalDist
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from crosszone.cost.tiers import BYTES_PER_S_PER_GBPS, read_figure
from crosszone.cost.wan import WanTransport, flow_bytes_per_s
from crosszone.errors import Notice
from crosszone.inputs.links import ZoneLink
from crosszone.inputs.region import Band
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import Value
from crosszone.plan.comparison import SIGMAS_TO_P90
from crosszone.plan.plan import NoticeDict
from crosszone.predict.batch import build_group_columns
from crosszone.predict.breakdown import build_breakdown
from crosszone.predict.placed_strategy import BANDS, PlacedStrategy
from crosszone.predict.prediction import Kind, Traffic
from crosszone.predict.predictor import Predictor
from crosszone.predict.run import DAY_S, predict_goodput
from crosszone.predict.traffic import Egress, build_traffic

ROUNDING = 1e-9
Limit = Literal["flow", "link", "uplink", "nic"]


class LinkUse(Value):
    """What one kind of exchange does over one directed link; rates are payload, Gbit/s."""

    link: str
    """The two zones in the direction of the traffic."""
    kinds: tuple[Kind, ...]
    """What is exchanged: the pipeline, or what goes round the ring of zones."""
    ranks: int
    """Ranks that send side by side."""
    flows: int
    """TCP connections open in all."""
    flow_gbps: float | None
    """What one connection carries at most: window, loss and the provider's cap; null: no limit."""
    flows_gbps: float | None
    """What all connections carry at most; null: no limit."""
    link_gbps: float
    """Rate of the link."""
    uplink_gbps: float | None
    """The sender's uplink or the receiver's downlink, whichever is less; null: no limit."""
    nic_gbps: float | None
    """All those ranks' network cards; null: not looked at for a pipeline's boundary."""
    carries_gbps: float
    """The least of them: what the link carries while its uplink has no other traffic."""
    limited_by: Limit
    """Which one that is."""
    flows_to_fill: int | None
    """Connections a channel (`communication.flows`) from which on they do not limit; null: the library does, however
    many."""


def list_link_uses(p: Predictor, rows: Iterable[Traffic]) -> Iterator[LinkUse]:
    """Every directed link between zones that a step uses. [A19]"""
    names = [zone.name for zone in p.placed.cluster.zones]
    places = {f"{a} > {b}": (x, y) for x, a in enumerate(names) for y, b in enumerate(names) if x != y}
    kinds: dict[tuple[str, bool], list[Kind]] = {}
    for row in rows:
        if row.link in places:
            kinds.setdefault((row.link, row.kind == "pipeline"), []).append(row.kind)
    for (link, pipeline), used in sorted(kinds.items()):
        yield _build_use(p.placed, link, places[link], tuple(dict.fromkeys(used)), pipeline=pipeline)


def _build_use(
    placed: PlacedStrategy, link: str, place: tuple[int, int], kinds: tuple[Kind, ...], *, pipeline: bool
) -> LinkUse:
    (a, b), transport, limits = place, placed.transport, placed.crossings.paths.limits
    path = placed.links[min(a, b), max(a, b)]
    ranks = _count_boundary_ranks(placed, a, b) if pipeline else placed.ring_ranks
    rtt, loss = path.rtt_ms.expected * 1e-3, path.loss_pct / 100.0
    cap = np.inf if path.flow_gbps is None else path.flow_gbps * BYTES_PER_S_PER_GBPS * read_figure("tcp", "efficiency")
    flow = float(flow_bytes_per_s(rtt, loss, transport.congestion, transport.window_bytes, cap))

    def sum_flows(transport: WanTransport) -> float:
        return ranks * float(transport.group_bytes_per_s(rtt, loss, cap))

    nic = np.inf
    if not pipeline:
        slowest = min(
            float(build_group_columns(group, "bf16", 1).nic_bytes_per_s) for _, group in placed.cluster.zone_groups
        )
        nic = ranks * slowest
    rates: dict[Limit, float] = {
        "link": float(limits.pair[a, b]),
        "uplink": float(min(limits.egress[a], limits.ingress[b])),
        "nic": nic,
        "flow": sum_flows(transport),
    }
    # of equals the first counts: connections are named only where they are the least
    least = min(rates, key=lambda name: rates[name])
    wire = min(rates["link"], rates["uplink"], rates["nic"])
    enough = max(1, math.ceil(wire / (ranks * transport.connections / transport.flows * flow)))
    fills = sum_flows(replace(transport, flows=enough)) >= wire * (1.0 - ROUNDING)
    return LinkUse(
        link=link,
        kinds=kinds,
        ranks=ranks,
        flows=ranks * transport.connections,
        flow_gbps=_convert_gbps(flow),
        flows_gbps=_convert_gbps(rates["flow"]),
        link_gbps=rates["link"] / BYTES_PER_S_PER_GBPS,
        uplink_gbps=_convert_gbps(rates["uplink"]),
        nic_gbps=_convert_gbps(nic),
        carries_gbps=rates[least] / BYTES_PER_S_PER_GBPS,
        limited_by=least,
        flows_to_fill=enough if fills else None,
    )


def _count_boundary_ranks(placed: PlacedStrategy, a: int, b: int) -> int:
    """Ranks whose activations or gradients cross between two zones, as the predictor shares the link."""
    zones_of_ranks = placed.zone[:, :, 0, 0]
    after = np.roll(zones_of_ranks, -1, axis=0)
    if not placed.wraps:
        zones_of_ranks, after = zones_of_ranks[:-1], after[:-1]
    pairs = int((((zones_of_ranks == a) & (after == b)) | ((zones_of_ranks == b) & (after == a))).sum())
    return pairs * placed.strategy.tp * placed.strategy.cp


def _convert_gbps(bytes_per_s: float) -> float | None:
    return bytes_per_s / BYTES_PER_S_PER_GBPS if math.isfinite(bytes_per_s) else None


Floats = npt.NDArray[np.float64]
Doubt = Literal["profile", "rtt", "jitter", "loss"]
DOUBTS: tuple[Doubt, ...] = get_args(Doubt)
# Steps that are drawn, three a prediction, which takes three round-trip times; odd, so that one is the middle.
DRAWS = 201
SEED = 20
MANY_LOST = 1000.0  # Lost packets from which on their number is as good as normal
HIGHEST_LOSS = 0.999


class Quantiles(Value):
    """A figure at its middle and at its bad end."""

    p50: float
    """Half of all runs do better."""
    p95: float
    """Nineteen of twenty do better."""


class Uncertainty(Value):
    """One thing that is not known exactly, and what it does to the step."""

    doubt: Doubt
    """profile: coefficients of GPU and stack; rtt: round-trip times from distance; jitter; loss."""
    present: bool
    """It varies at all here."""
    p95_without_s: float
    """Step at p95 if this one thing were known, s."""
    widens_s: float
    """What it adds to the step at p95, s."""


class Rating(Value):
    """A plan at p50 and p95."""

    name: str
    """Name of the scenario."""
    expected_s: float
    """The predicted step, s."""
    step_s: Quantiles
    """Step, s."""
    tokens_per_s: Quantiles
    """Tokens/s; the bad end is the lower one."""
    days: Quantiles | None
    """Of the whole run, in which jitter and loss average out; null: its length is not known."""
    draws: int
    """Steps drawn."""
    doubts: tuple[Uncertainty, ...]
    """What makes it uncertain, the largest first."""
    largest: Doubt | None
    """What adds most to the step at p95; null: nothing is uncertain."""
    links: tuple[LinkUse, ...]
    """Every directed link between zones in use, and what limits it."""
    told: NoticeDict
    """The same as a sentence."""
    notes: tuple[NoticeDict, ...]
    """What a reader should know."""


@cache
def load_rating_figures() -> dict[str, dict[str, Any]]:
    """Figures of `rating.yaml` with origin and source, by name."""
    entries: dict[str, dict[str, Any]] = read_shipped("crosszone.analyse", "rating.yaml").value
    return entries


def build_rating(p: Predictor, *, doubts: Collection[Doubt] = DOUBTS, language: str = "en") -> Rating:
    """Step, tokens/s and days of a placed strategy at p50 and p95, with what makes them uncertain. [A18]

    `doubts`: what is not taken as known. The draws are seeded, and the same with and without each doubt.
    """
    breakdown = build_breakdown(p)
    rows, egress = build_traffic(p, breakdown)
    draws = _Draws(p, egress)
    drawn = frozenset(doubts) & draws.present
    steps, expected = draws.draw_step_s(drawn), float(p.step_s[1])
    step = _build_quantiles(steps)
    causes = []
    for doubt in DOUBTS:
        without = _build_quantiles(draws.draw_step_s(drawn - {doubt})).p95
        causes.append(
            Uncertainty(
                doubt=doubt,
                present=doubt in drawn,
                p95_without_s=without,
                widens_s=step.p95 - without,
            )
        )
    causes.sort(key=lambda cause: -cause.widens_s)
    job, days = p.case.job, None
    if job.steps is not None:
        scale = job.steps / DAY_S / predict_goodput(p.placed, p.framework.name).share
        days = _build_quantiles(draws.draw_step_s(drawn & {"profile", "rtt"}) * scale)
    largest = causes[0].doubt if causes[0].widens_s > 0 else None
    tokens = float(job.tokens_per_step)
    return Rating(
        name=p.name,
        expected_s=expected,
        step_s=step,
        tokens_per_s=Quantiles(p50=tokens / step.p50, p95=tokens / step.p95),
        days=days,
        draws=DRAWS,
        doubts=tuple(causes),
        largest=largest,
        links=tuple(list_link_uses(p, rows)),
        told=_build_notice(step, largest).as_dict(language),
        notes=tuple(notice.as_dict(language) for notice in draws.list_notes() if "jitter" in drawn),
    )


def _build_notice(step: Quantiles, largest: Doubt | None) -> Notice:
    params: dict[str, Any] = {"p50": float(f"{step.p50:.4g}"), "p95": float(f"{step.p95:.4g}")}
    if largest is None:
        return Notice(code="rating_certain", level="note", params=params)
    return Notice(code=f"rating_by_{largest}", level="note", params=params)


def _build_quantiles(values: Floats) -> Quantiles:
    p50, p95 = np.quantile(values, [0.5, 0.95])
    return Quantiles(p50=float(p50), p95=float(p95))


@dataclass(frozen=True)
class _Draws:
    """Steps drawn from what is not known: each doubt on or off, the others as they were."""

    p: Predictor
    egress: Egress

    @cached_property
    def links(self) -> dict[tuple[int, int], ZoneLink]:
        """Links with traffic, by their zones' places."""
        used = {(min(pair), max(pair)) for pair in self.egress}
        return {pair: self.p.placed.links[pair] for pair in sorted(used)}

    @cached_property
    def present(self) -> frozenset[Doubt]:
        """What varies at all."""
        links = self.links.values()
        varies: dict[Doubt, bool] = {
            "profile": self.p.factors[0] < self.p.factors[1],
            "rtt": any(link.rtt_ms.low < link.rtt_ms.high for link in links),
            "jitter": any(_find_jitter_ms(link) > 0 for link in links),
            "loss": any(link.loss_pct > 0 for link in links),
        }
        return frozenset(doubt for doubt, on in varies.items() if on)

    def list_notes(self) -> list[Notice]:
        """Links whose jitter is taken from elsewhere."""
        pairs = [" - ".join(link.between) for link in self.links.values() if link.jitter_ms is None]
        if not pairs:
            return []
        entry = load_rating_figures()["jitter_ms"]
        params = {"pairs": pairs, "source": entry["source"]}
        return [Notice(code="jitter_assumed", level="note", field="cluster.links", value=entry["value"], params=params)]

    def draw_step_s(self, on: Collection[Doubt]) -> Floats:
        """Steps with these doubts, the others at their expected values.

        Every draw of the links with every one of the profile, whose error does not depend on them.
        """
        factor = self.factor if "profile" in on else np.ones(1)
        return np.outer(self._draw_over_links(frozenset(on) - {"profile"}), factor).ravel()

    @cached_property
    def factor(self) -> Floats:
        """[draws] Factor of the profile's error: four of five between its low and high end."""
        low, high = self.p.factors
        return _build_skewed_draws(_build_normal_draws(), low, 1.0, high)

    @cached_property
    def normals(self) -> Floats:
        """[2 links, draws] Standard normal numbers, each row in an order of its own."""
        rng = np.random.default_rng(SEED)
        return np.stack([rng.permutation(_build_normal_draws()) for _ in range(2 * len(self.links))])

    @cached_property
    def lost(self) -> Floats:
        """[links, predictions] Share of packets lost in a step: as many as come when each is lost by chance."""
        rng, delays = np.random.default_rng(SEED + 1), []
        for (a, b), link in self.links.items():
            size = self.egress.get((a, b), 0.0) + self.egress.get((b, a), 0.0)
            packets = max(size / read_figure("packet", "payload_bytes"), 1.0)
            mean = packets * link.loss_pct / 100.0
            number = rng.permutation(_build_poisson_draws(mean, DRAWS // BANDS))
            delays.append(np.minimum(number / packets, HIGHEST_LOSS))
        return np.stack(delays)

    @cached_property
    def _known(self) -> dict[frozenset[Doubt], Floats]:
        return {}

    def _draw_over_links(self, on: frozenset[Doubt]) -> Floats:
        """[draws] Steps with these doubts about the links."""
        if on not in self._known:
            self._known[on] = self._predict_draws(on) if on else np.full(DRAWS, float(self.p.step_s[1]))
        return self._known[on]

    def _predict_draws(self, on: frozenset[Doubt]) -> Floats:
        times = [self._draw_rtt_ms(number, link, on) for number, link in enumerate(self.links.values())]
        steps = []
        for at in range(DRAWS // BANDS):
            links = dict(self.p.placed.links)
            for number, (pair, link) in enumerate(self.links.items()):
                # three draws, not a band: low, expected and high are only the places that one prediction answers for
                three = Band(*times[number][BANDS * at : BANDS * (at + 1)].tolist())
                loss = 100.0 * float(self.lost[number, at]) if "loss" in on else link.loss_pct
                links[pair] = replace(link, rtt_ms=three, jitter_ms=None, loss_pct=loss)
            placed = replace(self.p.placed, links=links, shared_crossings=None, banded=True)
            placed.parts["ring"] = self.p.placed.ring  # settled when the run began, whatever this step meets
            steps.append(replace(self.p, placed=placed).step_s)
        return np.concatenate(steps)

    def _draw_rtt_ms(self, number: int, link: ZoneLink, on: Collection[Doubt]) -> Floats:
        """[draws] Round-trip times: the band's four of five, jitter about it; never below light in a straight fibre."""
        band, row = link.rtt_ms, 2 * number
        time = np.full(DRAWS, band.expected)
        if "rtt" in on and band.low < band.high:
            time = _build_skewed_draws(self.normals[row], band.low, band.expected, band.high)
        if "jitter" in on:
            time = time + _find_jitter_ms(link) * self.normals[row + 1]
        # a typed RTT below the floor is flagged, but believed [G2]
        return np.asarray(np.maximum(time, min(link.floor_ms or 0.0, band.low)))


@cache
def _build_normal_draws() -> Floats:
    """[draws] Standard normal numbers spread evenly: the middle of each of so many equal parts."""
    # evenly, not at random: p95 of 201 random numbers would differ from seed to seed
    return np.array([NormalDist().inv_cdf((n + 0.5) / DRAWS) for n in range(DRAWS)])


def _build_skewed_draws(normal: Floats, low: float, middle: float, high: float) -> Floats:
    """Numbers with this median of which one in ten is below `low` and one in ten above `high`. [A18]

    Normal in the logarithm, with a width of its own on either side.
    """
    below, above = np.log(middle / low) / SIGMAS_TO_P90, np.log(high / middle) / SIGMAS_TO_P90
    return np.asarray(middle * np.exp(np.where(normal < 0, below, above) * normal))


def _build_poisson_draws(mean: float, count: int) -> Floats:
    """So many numbers of events that come by chance (Poisson), spread evenly over what may come. [A18]"""
    even = (np.arange(count) + 0.5) / count
    if mean > MANY_LOST:
        return np.array([mean + math.sqrt(mean) * NormalDist().inv_cdf(part) for part in even])
    if mean == 0:
        return np.zeros(count)
    # ten standard deviations above the mean nothing is left; 20 more for means near 0
    largest = math.ceil(mean + 10.0 * math.sqrt(mean) + 20.0)
    # in logarithms: mean^k and k! are beyond floats long before their quotient is
    chance = np.exp([k * math.log(mean) - mean - math.lgamma(k + 1.0) for k in range(largest)])
    return np.searchsorted(np.cumsum(chance), even).astype(float)


def _find_jitter_ms(link: ZoneLink) -> float:
    return float(load_rating_figures()["jitter_ms"]["value"]) if link.jitter_ms is None else link.jitter_ms
