"""Drill: how much of the run makes progress, and what happens when a zone is lost.

answer = run_drill(crosszone.load_scenario("examples/three-cities.yaml"))
answer.losses[0].told["message"]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from crosszone.analyse.cluster_changes import drop_count_pins, drop_planned_fields, remove_zone
from crosszone.analyse.marginal import Worth, compute_worth
from crosszone.cost.profile import Profiles
from crosszone.cost.wan import build_zone_paths, drain_s
from crosszone.errors import InputError, InvalidError, Notice, build_choice_error
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.value import Value
from crosszone.plan.plan import NoticeDict, Plan, Point, apply_plan
from crosszone.plan.planner import plan
from crosszone.plan.search import Progress
from crosszone.predict.batch import count_stage_layers
from crosszone.predict.predict import build_predictor
from crosszone.predict.prediction import Goodput
from crosszone.predict.run import DAY_S, GB, HOUR_S, compute_goodput_share, read_power_entries, select_used_groups

YEAR_S = 365.25 * DAY_S
AROUND = (0.25, 0.5, 1 / 1.2, 1.0, 1.2, 2.0, 4.0)  # Intervals that are looked at, over the best one

FASTER_PCT = 0.1  # Tokens/s gained by losing a zone from which on it is said, %


class Interval(Value):
    """A time between checkpoints, and what it leaves."""

    interval_s: float
    """Seconds from one checkpoint to the next."""
    share: float
    """Share of time that makes progress."""


class Copy(Value):
    """A zone that may keep a copy of the checkpoint, and what that means after a loss."""

    zone: str
    """Zone that holds the copy."""
    fetch_s: float
    """Time until every zone of the fallback plan has what it needs of it."""
    back_after_s: float
    """Time lost in all: half an interval, a restart, and that."""


class ZoneLoss(Value):
    """One zone lost."""

    zone: str
    """Zone."""
    used: bool
    """The main plan uses it; else losing it changes nothing."""
    fits: bool
    """The model still trains on what is left."""
    fallback: Plan | None
    """The best plan on what is left; null: there is none."""
    worth: Worth | None
    """Speed and price of that plan."""
    refusal: tuple[NoticeDict, ...]
    """Why there is none."""
    tokens_left_pct: float
    """Tokens/s that are left, %."""
    days_longer: float | None
    """If it were lost for the whole run: days on top; null: length not known, or nothing is left."""
    lost_s: float
    """Work since the last checkpoint, done again: half an interval; 0 where the zone is not used."""
    restart_s: float
    """Detection, rescheduling, loading and warm-up; 0 where the zone is not used."""
    copies: tuple[Copy, ...]
    """Every zone left that may hold a copy of the checkpoint, soonest back first."""
    back_after_s: float | None
    """Time lost until training goes on; null: nothing is left, or the only copy is lost with the zone."""
    usd_once: float | None
    """GPUs of the main plan that wait for so long."""
    usd_per_day: float | None
    """What a day on the fallback plan costs, GPUs in use and egress."""
    lost_hours_per_year: float | None
    """Expected, at the stated rate of zone failures: time lost until training goes on."""
    told: NoticeDict
    """The same as a sentence."""


class Assumption(Value):
    """A figure that the answer rests on."""

    name: str
    """What it is."""
    value: float
    """How much."""
    origin: str
    """measured, derived, assumed, or given."""
    source: str
    """Where it comes from."""


class Drill(Value):
    """Progress over the run, and every zone lost once."""

    name: str
    """Name of the scenario."""
    main: Plan
    """The plan that is drilled."""
    worth: Worth
    """Its speed and price."""
    goodput: Goodput
    """Share of time that makes progress with failures of GPUs and checkpoints at the best interval."""
    intervals: tuple[Interval, ...]
    """The share at intervals around the best one."""
    losses: tuple[ZoneLoss, ...]
    """Each zone, the dearest loss first."""
    zone_failures_per_year: float
    """Failures of one zone in a year, as given."""
    share: float
    """Share of time that makes progress with failures of zones too."""
    useful_days: float | None
    """Days of the run that make progress; null: its length is not known."""
    assumptions: tuple[Assumption, ...]
    """Figures it rests on, with their sources."""
    notes: tuple[NoticeDict, ...]
    """What a reader should know."""


def run_drill(
    scenario: Scenario,
    *,
    main: Plan | None = None,
    zone_failures_per_year: float = 0.0,
    checkpoint_zone: str | None = None,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    language: str = "en",
    profiles: Profiles | None = None,
) -> Drill:
    """Goodput of a plan (None: the best one), and the fallback for each zone that may be lost. [A17]

    `zone_failures_per_year`: of each zone; no rate is published, so none is assumed. `checkpoint_zone`: the zone that
    keeps a copy of every checkpoint; None: one that survives, the one training is back soonest with.
    """
    names = [zone.name for zone in scenario.cluster.zones]
    _check(names, zone_failures_per_year, checkpoint_zone)
    loaded = profiles or Profiles.load()
    plan_options: dict[str, Any] = {"top": 1, "local_updates": False, "cancelled": cancelled, "profiles": loaded}
    prepared = drop_planned_fields(scenario)
    best = main or plan(prepared, **plan_options).plans[0]
    worth, goodput = compute_worth(prepared, best, loaded), best.prediction.run.goodput
    # a pinned number of replicas would rule out every plan on fewer zones
    unpinned = drop_count_pins(scenario) or prepared
    context = DrillContext(
        plan=best,
        worth=worth,
        copy=checkpoint_zone,
        rate=zone_failures_per_year,
        profiles=loaded,
        language=language,
    )
    losses = []
    for number, name in enumerate(names):
        if progress is not None:
            progress("zones", number, len(names))
        if name not in best.zones:
            losses.append(context.build_unused_loss(name))
            continue
        try:
            surviving = unpinned.replace(cluster=remove_zone(unpinned.cluster, name))
            losses.append(context.build_survived_loss(name, surviving, plan(surviving, **plan_options).plans[0]))
        except InputError as error:
            losses.append(context.build_fatal_loss(name, error.notices))
    if progress is not None:
        progress("zones", len(names), len(names))
    zone_failures_per_s = zone_failures_per_year / YEAR_S
    # a zone without which nothing trains has no time lost to count; `drill_not_counted` says so
    lost = sum(loss.back_after_s or 0.0 for loss in losses if loss.used)
    days = best.prediction.run.days
    return Drill(
        name=scenario.name,
        main=best,
        worth=worth,
        goodput=goodput,
        intervals=tuple(_list_intervals(goodput)),
        losses=tuple(sorted(losses, key=_sort_by_damage)),
        zone_failures_per_year=zone_failures_per_year,
        share=compute_share_with_zones(goodput.share, zone_failures_per_s * lost),
        useful_days=None if days is None else days.expected * goodput.share,
        assumptions=tuple(_list_assumptions(prepared, best, zone_failures_per_year, loaded)),
        notes=tuple(
            notice.as_dict(language) for notice in _list_notes(losses, zone_failures_per_year, checkpoint_zone)
        ),
    )


def compute_share_with_zones(share: float, lost_per_second: float) -> float:
    """Share of time that makes progress, when zones cost so many seconds a second on top of GPUs. [A17]"""
    return 1.0 / (1.0 / share + lost_per_second)


def _sort_by_damage(loss: ZoneLoss) -> tuple[float, float]:
    """Losses that leave least stand first, then those that take longest."""
    # never back: before any loss that leaves as little
    return loss.tokens_left_pct, -math.inf if loss.back_after_s is None else -loss.back_after_s


def _check(names: Sequence[str], rate: float, copy: str | None) -> None:
    if not (math.isfinite(rate) and rate >= 0):
        params: dict[str, Any] = {"limit": 0}
        raise InvalidError(Notice(code="must_be_at_least", field="zone_failures_per_year", value=rate, params=params))
    if copy is not None and copy not in names:
        raise build_choice_error("checkpoint_zone", copy, names)


def _list_intervals(goodput: Goodput) -> Iterator[Interval]:
    """Shares around the best interval. [E1]"""
    for factor in AROUND:
        interval = goodput.interval_s * factor
        restart = goodput.lost_per_failure_s - goodput.interval_s / 2.0
        yield Interval(
            interval_s=interval,
            share=compute_goodput_share(goodput.checkpoint_s, interval, goodput.mtbf_hours * HOUR_S, restart),
        )


@dataclass(frozen=True, kw_only=True)
class DrillContext:
    """What every loss is measured against."""

    plan: Plan
    worth: Worth
    copy: str | None
    rate: float
    profiles: Profiles
    language: str

    def build_unused_loss(self, zone: str) -> ZoneLoss:
        """A zone that the plan does not use."""
        per_hour = self.worth.usd_per_hour_in_use
        return ZoneLoss(
            zone=zone,
            used=False,
            fits=True,
            fallback=self.plan,
            worth=self.worth,
            refusal=(),
            tokens_left_pct=100.0,
            days_longer=None if self.worth.days is None else 0.0,
            lost_s=0.0,
            restart_s=0.0,
            copies=(),
            back_after_s=0.0,
            usd_once=None if per_hour is None else 0.0,
            usd_per_day=None if per_hour is None else 24.0 * per_hour,
            lost_hours_per_year=0.0,
            told=self._build_notice("drill_unused", zone=zone),
        )

    def build_fatal_loss(self, zone: str, notices: Sequence[Notice]) -> ZoneLoss:
        """A zone without which nothing can be planned."""
        lost, restart = self._restart
        return ZoneLoss(
            zone=zone,
            used=True,
            fits=False,
            fallback=None,
            worth=None,
            refusal=tuple(notice.as_dict(self.language) for notice in notices),
            tokens_left_pct=0.0,
            days_longer=None,
            lost_s=lost,
            restart_s=restart,
            copies=(),
            back_after_s=None,
            usd_once=None,
            usd_per_day=None,
            lost_hours_per_year=None,
            told=self._build_notice("drill_nothing_left", zone=zone),
        )

    def build_survived_loss(self, zone: str, surviving: Scenario, fallback: Plan) -> ZoneLoss:
        """A zone whose loss leaves a plan. [A17]"""
        worth, (lost, restart) = self.worth, self._restart
        after = compute_worth(surviving, fallback, self.profiles)
        fetch = compute_fetch_times(
            surviving, fallback, self.plan.prediction.run.goodput.checkpoint_gb * GB, self.profiles
        )
        options = [Copy(zone=name, fetch_s=s, back_after_s=lost + restart + s) for name, s in fetch.items()]
        copies = tuple(sorted(options, key=lambda candidate: candidate.fetch_s))
        chosen = next((candidate for candidate in copies if self.copy in (None, candidate.zone)), None)
        back = None if chosen is None else chosen.back_after_s
        percent = 100.0 * after.tokens_per_s / worth.tokens_per_s
        usd_per_hour, fallback_usd_per_hour = worth.usd_per_hour_in_use, after.usd_per_hour_in_use
        params = {"zone": zone, "percent": round(percent, 1), "zones": list(after.zones)}
        if chosen is None:
            note = self._build_notice("drill_checkpoint_lost", **params)
        else:
            hours = round(chosen.back_after_s / HOUR_S, 2)
            note = self._build_notice("drill_falls_back", **params, hours=hours, copy=chosen.zone)
        return ZoneLoss(
            zone=zone,
            used=True,
            fits=True,
            fallback=fallback,
            worth=after,
            refusal=(),
            tokens_left_pct=percent,
            days_longer=None if after.days is None or worth.days is None else after.days - worth.days,
            lost_s=lost,
            restart_s=restart,
            copies=copies,
            back_after_s=back,
            usd_once=None if usd_per_hour is None or back is None else usd_per_hour * back / HOUR_S,
            usd_per_day=None if fallback_usd_per_hour is None else 24.0 * fallback_usd_per_hour,
            lost_hours_per_year=None if back is None else self.rate * back / HOUR_S,
            told=note,
        )

    @property
    def _restart(self) -> tuple[float, float]:
        """Seconds of work done again, and of the restart."""
        good = self.plan.prediction.run.goodput
        return good.interval_s / 2.0, good.lost_per_failure_s - good.interval_s / 2.0

    def _build_notice(self, code: str, **params: Any) -> NoticeDict:
        level: Literal["warning", "note"] = "note" if code == "drill_unused" else "warning"
        return Notice(code=code, level=level, field="cluster.zones", params=params).as_dict(self.language)


def compute_fetch_times(
    surviving: Scenario, destination: Plan | Point, checkpoint_bytes: float, profiles: Profiles
) -> dict[str, float]:
    """Seconds until all zones of a plan have their part of the checkpoint, by the zone that holds the copy. [A17]

    A zone needs the states of the stages it holds, by their layers. All transfers start together and share links and
    uplinks [T12]; enough connections to fill the links.
    """
    placed = build_predictor(apply_plan(surviving, destination), profiles=profiles).placed
    layers = np.asarray(count_stage_layers(placed.case), dtype=float).reshape(-1)
    zones_of_ranks = placed.zone[:, :, 0, 0]
    needs = {
        int(z): checkpoint_bytes * layers[(zones_of_ranks == z).any(axis=1)].sum() / layers.sum()
        for z in np.unique(zones_of_ranks)
    }
    # limits alone: connections are taken to be enough to fill the links
    limits, seconds = build_zone_paths(surviving.cluster).limits, {}
    for source, zone in enumerate(surviving.cluster.zones):
        receivers = {z: size for z, size in needs.items() if z != source}
        took = drain_s(list(receivers.values()), [source] * len(receivers), list(receivers), limits)
        seconds[zone.name] = float(took.max(initial=0.0))
    return seconds


def _list_assumptions(scenario: Scenario, best: Plan, rate: float, profiles: Profiles) -> Iterator[Assumption]:
    """Failure rates of the GPU kinds in use, and the other figures of [E1]."""
    placed = build_predictor(apply_plan(scenario, best), profiles=profiles).placed
    for gpu in dict.fromkeys(group.gpu for _, group, _ in select_used_groups(placed)):
        failure_rate = catalogue().find_failure_rate(gpu)
        yield Assumption(
            name=f"failures_per_1000_gpu_days {gpu.name}",
            value=failure_rate.failures_per_1000_gpu_days,
            origin=failure_rate.origin,
            source=failure_rate.source,
        )
    for name in ("checkpoint_gb_per_s_per_node", "restart_s"):
        entry = read_power_entries()[name]
        yield Assumption(name=name, value=float(entry["value"]), origin=entry["origin"], source=entry["source"])
    yield Assumption(name="zone_failures_per_year", value=rate, origin="given", source="option")


def _list_notes(losses: Sequence[ZoneLoss], rate: float, copy: str | None) -> Iterator[Notice]:
    if rate == 0 and len(losses) > 1:
        yield Notice(code="drill_no_rate", level="note", field="zone_failures_per_year", value=rate)
    if copy is None and any(loss.used for loss in losses):
        yield Notice(code="drill_copy_assumed", level="note", field="checkpoint_zone")
    slows = [loss.zone for loss in losses if loss.tokens_left_pct > 100.0 + FASTER_PCT]
    if slows:
        yield Notice(code="drill_slows", level="warning", field="strategy", params={"zones": slows})
    stuck = [loss.zone for loss in losses if loss.used and loss.back_after_s is None]
    if rate > 0 and stuck:
        params = {"zones": stuck}
        yield Notice(code="drill_not_counted", level="warning", field="zone_failures_per_year", params=params)
