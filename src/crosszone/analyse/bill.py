"""Bill: what a plan costs, line by line: GPU-hours by zone, what leaves each zone, energy; and what more money buys.

build_bill(build_predictor(scenario)).usd_per_million_tokens
list_trades(scenario, plan(scenario, front=True).front)[0]      # + $300 a day buys 9 %
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from crosszone.errors import Notice
from crosszone.inputs.links import Origin
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.value import Value
from crosszone.plan.plan import NoticeDict, Point, apply_plan
from crosszone.predict.breakdown import build_breakdown, find_bottleneck
from crosszone.predict.predict import build_predictor
from crosszone.predict.prediction import Run, Triple
from crosszone.predict.predictor import Predictor
from crosszone.predict.run import (
    GB,
    HOUR_S,
    compute_group_kilowatt,
    get_grams_per_kwh,
    get_usd_per_gb,
    get_usd_per_gpu_hour,
    list_unpriced_egress,
    predict_run,
    select_used_groups,
)
from crosszone.predict.traffic import Egress, build_traffic

PriceOrigin = Literal["typed", "catalogue", "unknown"]


class GpuLine(Value):
    """GPUs of one node group that the plan uses."""

    zone: str
    """Zone."""
    group: int
    """Node group within the zone, from 0."""
    gpu: str
    """GPU kind."""
    gpus: int
    """GPUs in use."""
    usd_per_gpu_hour: float | None
    """Price of one for an hour; null: not known."""
    origin: PriceOrigin
    """The price is the scenario's own, or the catalogue's typical one."""
    source: str | None
    """Id of the catalogue's source; null: typed or not known."""
    usd_per_hour: float | None
    """Of all of them."""
    usd_per_step: float | None
    """Of one step, with what failures and checkpoints add."""
    gpu_hours: float | None
    """Of the whole run; null: its length is not known."""
    usd: float | None
    """Of the whole run."""


class EgressLine(Value):
    """Bytes from one zone to another."""

    link: str
    """The two zones in the direction of the traffic."""
    bytes_per_step: float
    """Bytes a step."""
    usd_per_gb: float | None
    """Price of a GB in this direction; null: not known."""
    origin: Origin
    """Where the price comes from."""
    usd_per_step: float | None
    """Of one step."""
    usd: float | None
    """Of the whole run."""


class EnergyLine(Value):
    """Energy of one zone."""

    zone: str
    """Zone."""
    kw: float | None
    """Power of its GPUs in use, with hosts and site; null: the board power of one is not known."""
    kwh_per_step: float | None
    """Energy of one step, with what failures and checkpoints add."""
    kwh: float | None
    """Energy of the whole run."""
    carbon_g_per_kwh: float | None
    """Carbon of its electricity; null: not known."""
    co2_kg: float | None
    """Carbon of the whole run."""


class Trade(Value):
    """From one plan to the next faster one that is not dearer than it must be: what more money a day buys."""

    usd_per_day: float
    """What the slower plan costs a day."""
    usd_per_day_more: float
    """What the faster one costs a day on top."""
    faster_pct: float
    """Tokens/s gained, %."""
    step_s: float
    """Step of the slower plan, s."""
    faster_step_s: float
    """Step of the faster plan, s."""
    gpus: int
    """GPUs of the slower plan."""
    faster_gpus: int
    """GPUs of the faster plan."""
    unpriced: tuple[str, ...]
    """Links whose traffic has no price and is in neither sum."""
    told: NoticeDict
    """The same as a sentence."""


class Bill(Value):
    """Everything a plan costs; lines add up to the totals of `Prediction.run`."""

    name: str
    """Name of the scenario."""
    gpus: tuple[GpuLine, ...]
    """GPU-hours, by zone and node group in use."""
    egress: tuple[EgressLine, ...]
    """What leaves zones, by directed link."""
    energy: tuple[EnergyLine, ...]
    """Energy and carbon, by zone in use."""
    steps_per_hour: float
    """Steps of an hour of the run, failures and checkpoints counted."""
    usd_per_hour: float | None
    """Everything below, for an hour of the run; null: a GPU's price is not known."""
    usd_per_step: float | None
    """For one step."""
    usd_per_million_tokens: float | None
    """For a million tokens trained on."""
    usd: Triple | None
    """For the whole run; null: its length or a GPU's price is not known."""
    gpu_hours: Triple | None
    """GPU-hours of the whole run."""
    usd_gpus_per_step: float | None
    """Of it: GPUs, one step."""
    usd_egress_per_step: float | None
    """Of it: egress, one step; null: a price is not known, and then no egress is in the sums."""
    usd_egress: float | None
    """Egress of the whole run; null: its length or a price is not known."""
    usd_egress_known_per_step: float
    """Egress of the links that have a price, one step: the least that egress costs."""
    unpriced: tuple[str, ...]
    """Links with traffic whose price is not known."""
    kwh: Triple | None
    """Energy of the whole run."""
    co2_kg: Triple | None
    """Carbon of the whole run."""
    warnings: tuple[NoticeDict, ...]
    """What the sums leave out."""


def build_bill(p: Predictor, *, language: str = "en") -> Bill:
    """What a placed strategy costs, line by line. [A15]

    A step takes step / goodput hours of every GPU in use; what leaves zones is paid by the byte.
    """
    breakdown = build_breakdown(p)
    busy = find_bottleneck(breakdown)[1]["compute"]
    _, egress = build_traffic(p, breakdown)
    run = predict_run(p.placed, p.framework.name, p.step_time, busy, egress)
    steps, step_hours = run.steps, p.step_time.expected / run.goodput.share / HOUR_S
    hours = None if run.days is None else run.days.expected * 24.0
    gpus = _list_gpu_lines(p, step_hours, hours)
    lines = _list_egress_lines(p, egress, steps)
    unknown = list_unpriced_egress(p.placed, egress)
    out = None if unknown else sum(line.usd_per_step or 0.0 for line in lines)
    step_usd = None if run.usd_per_hour is None else run.usd_per_hour * step_hours
    total_usd = None if step_usd is None else step_usd + (out or 0.0)
    return Bill(
        name=p.name,
        gpus=gpus,
        egress=lines,
        energy=_list_energy_lines(p, busy, step_hours, hours),
        steps_per_hour=1.0 / step_hours,
        usd_per_hour=None if total_usd is None else total_usd / step_hours,
        usd_per_step=total_usd,
        usd_per_million_tokens=None if total_usd is None else total_usd / p.case.job.tokens_per_step * 1e6,
        usd=run.usd,
        gpu_hours=run.gpu_hours,
        usd_gpus_per_step=step_usd,
        usd_egress_per_step=out,
        usd_egress=run.usd_egress,
        usd_egress_known_per_step=sum(line.usd_per_step or 0.0 for line in lines),
        unpriced=tuple(unknown),
        kwh=run.kwh,
        co2_kg=run.co2_kg,
        warnings=tuple(notice.as_dict(language) for notice in _list_omissions(gpus, unknown, run)),
    )


def _list_gpu_lines(p: Predictor, step_hours: float, hours: float | None) -> tuple[GpuLine, ...]:
    lines = []
    places = [at for zone in p.placed.cluster.zones for at in range(len(zone.nodes))]
    for place, (zone, group, count) in zip(p.placed.groups_in_use, select_used_groups(p.placed), strict=True):
        price = get_usd_per_gpu_hour(group)
        typed = group.usd_per_gpu_hour is not None
        per_hour = None if price is None else count * price
        lines.append(
            GpuLine(
                zone=zone.name,
                group=places[place],
                gpu=group.gpu.name,
                gpus=count,
                usd_per_gpu_hour=price,
                origin="typed" if typed else "unknown" if price is None else "catalogue",
                source=None if typed or price is None else group.gpu.find_source("usd_per_hour"),
                usd_per_hour=per_hour,
                usd_per_step=None if per_hour is None else per_hour * step_hours,
                gpu_hours=None if hours is None else count * hours,
                usd=None if per_hour is None or hours is None else per_hour * hours,
            )
        )
    return tuple(lines)


def _list_egress_lines(p: Predictor, egress: Egress, steps: int | None) -> tuple[EgressLine, ...]:
    names, lines = [zone.name for zone in p.placed.cluster.zones], []
    for (a, b), size in sorted(egress.items()):
        price = get_usd_per_gb(p.placed, a, b)
        origins = p.placed.links[min(a, b), max(a, b)].origins
        per_step = None if price is None else size / GB * price
        lines.append(
            EgressLine(
                link=f"{names[a]} > {names[b]}",
                bytes_per_step=size,
                usd_per_gb=price,
                origin=origins["usd_per_gb" if a < b else "usd_per_gb_back"],
                usd_per_step=per_step,
                usd=None if per_step is None or steps is None else per_step * steps,
            )
        )
    return tuple(lines)


def _list_energy_lines(p: Predictor, busy: float, step_hours: float, hours: float | None) -> tuple[EnergyLine, ...]:
    powers: dict[str, list[float | None]] = defaultdict(list)
    grams: dict[str, float | None] = {}
    for zone, group, count in select_used_groups(p.placed):
        powers[zone.name].append(compute_group_kilowatt(zone, group, count, busy))
        grams[zone.name] = get_grams_per_kwh(zone)
    lines = []
    for name, parts in powers.items():
        priced = [part for part in parts if part is not None]
        kw = sum(priced) if len(priced) == len(parts) else None
        kwh = None if kw is None or hours is None else kw * hours
        carbon = grams[name]
        lines.append(
            EnergyLine(
                zone=name,
                kw=kw,
                kwh_per_step=None if kw is None else kw * step_hours,
                kwh=kwh,
                carbon_g_per_kwh=carbon,
                co2_kg=None if kwh is None or carbon is None else kwh * carbon / 1000.0,
            )
        )
    return tuple(lines)


def _list_omissions(gpus: Sequence[GpuLine], unknown: Sequence[str], run: Run) -> list[Notice]:
    """What the sums leave out, and why."""
    notices = []
    for line in gpus:
        if line.usd_per_gpu_hour is None:
            params = {"gpu": line.gpu, "zone": line.zone}
            notices.append(Notice(code="bill_gpu_unpriced", level="warning", field="cluster.zones", params=params))
    if unknown:
        pairs = {"pairs": list(unknown)}
        notices.append(Notice(code="egress_price_unknown", level="warning", field="cluster.links", params=pairs))
    if run.steps is None:
        notices.append(Notice(code="bill_no_length", level="note", field="job.tokens"))
    return notices


def list_trades(scenario: Scenario, front: Sequence[Point], *, language: str = "en") -> tuple[Trade, ...]:
    """What each step along the front of time against cost buys, the cheapest plan first. [A15]

    $ a day: those of 24 hours of the run, failures and checkpoints counted [E1].
    """
    trades_made, bills = [], [build_bill(build_predictor(apply_plan(scenario, point))) for point in front]
    for (faster, dear), (slower, cheap) in pairwise(zip(front, bills, strict=True)):
        if dear.usd_per_hour is None or cheap.usd_per_hour is None:
            continue
        day, more = 24.0 * cheap.usd_per_hour, 24.0 * (dear.usd_per_hour - cheap.usd_per_hour)
        gained = 100.0 * (slower.step_s / faster.step_s - 1.0)
        params = {"usd": format_usd(more), "percent": round(gained, 1), "gpus": slower.gpus, "more": faster.gpus}
        trades_made.append(
            Trade(
                usd_per_day=day,
                usd_per_day_more=more,
                faster_pct=gained,
                step_s=slower.step_s,
                faster_step_s=faster.step_s,
                gpus=slower.gpus,
                faster_gpus=faster.gpus,
                unpriced=tuple(dict.fromkeys((*cheap.unpriced, *dear.unpriced))),
                told=Notice(code="trade_buys", level="note", params=params).as_dict(language),
            )
        )
    # the front runs from the fastest plan to the cheapest
    return tuple(reversed(trades_made))


def format_usd(usd: float) -> str:
    """The amount with a comma for thousands; cents are shown below 100."""
    return f"{usd:,.0f}" if abs(usd) >= 100 else f"{usd:,.2f}"
