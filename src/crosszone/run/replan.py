"""Re-plan: what the links between zones seem to give, and whether another plan would repay the cost of changing to it.

    link = seems_of(work, part, level)               # the rates at which the prediction would be what was measured
    replan_of(work, prediction, rows, link, ...)     # proposed, or why not

Changing costs a checkpoint and a restart; it gains what a step is shorter times the steps that are left.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from crosszone.errors import InputError, Notice
from crosszone.inputs.links import zone_links
from crosszone.inputs.scenario import Scenario, parse_scenario
from crosszone.inputs.value import Value
from crosszone.plan.crossover import scale_zone_links
from crosszone.plan.plan import apply_plan
from crosszone.plan.planner import plan, select_best
from crosszone.predict.breakdown import build_breakdown
from crosszone.predict.predict import build_predictor
from crosszone.predict.prediction import Prediction
from crosszone.predict.run import read_power_figures
from crosszone.run.measurements import Level, PredictedPart
from crosszone.run.work import PLAN, Work
from crosszone.store.tasks import kept

LEAST_FACTOR = 1e-3  # Least share of a rate that is looked for
HALVINGS = 14
PLAN_S = 20.0  # How long is planned anew at most


class LinkSeems(Value):
    """What links between zones seem to give: the rates at which the prediction would be what was measured."""

    link: str
    """The zones, and where several pairs exchange all of them: which one it is cannot be told."""
    gbps: float
    """What it seems to give, Gbit/s; of several, the slowest."""
    planned_gbps: float
    """What was planned with, Gbit/s."""
    factor: float
    """The first over the second."""


class Replan(Value):
    """Whether to plan anew."""

    proposed: bool
    """It would repay its cost."""
    remaining_steps: int | None
    """Steps that are left; null: the length of the run is not known."""
    step_s: float | None
    """What a step takes now."""
    new_step_s: float | None
    """What it would take; null: nothing else was found."""
    cost_s: float
    """A checkpoint and a restart, each as measured where there was one, else as predicted."""
    gain_s: float | None
    """Time saved until the end of the run, the cost taken off; null: nothing else was found."""
    strategy: dict[str, Any] | None
    """Degrees of the other plan."""
    scenario: str | None
    """The other plan as a scenario, with the links as they seem; null: none is proposed."""
    notice: dict[str, Any]
    """What it means, in words."""


def seems_of(work: Work, part: PredictedPart, level: Level) -> LinkSeems | None:
    """What links between zones give if they alone explain a part's level; None: they do not.

    Where the part was off by a factor before it changed, that factor is taken out.
    """
    was = part.seconds if level.before is None else level.before
    if part.seconds <= 0 or was <= 0 or level.now <= was:
        return None
    factor = _factor(work.scenario, part.covers, round(level.now / was, 2))
    if factor is None:
        return None
    scenario = _scenario(work.scenario)
    links = zone_links(scenario.cluster)
    used = _used(work.prediction) & {frozenset(link.between) for link in links.values()}
    chosen = [link for link in links.values() if frozenset(link.between) in used]
    planned = min(min(link.gbps, link.gbps_back) for link in chosen)
    return LinkSeems(
        link=", ".join("–".join(link.between) for link in chosen),
        gbps=planned * factor,
        planned_gbps=planned,
        factor=factor,
    )


def replan_of(
    work: Work,
    prediction: Prediction,
    rows: Sequence[Mapping[str, Any]],
    link: LinkSeems | None,
    step_s: float | None,
    checkpoint_s: float | None,
) -> Replan | None:
    """Whether another plan for the links as they seem would repay its cost; None: the links seem as planned."""
    if link is None or step_s is None:
        return None
    restart = _restart_s(rows)
    cost = prediction.run.goodput.checkpoint_s if checkpoint_s is None else checkpoint_s
    cost += read_power_figures()["restart_s"] if restart is None else restart
    length = _length(work)
    left = None if length is None else max(0, length - int(rows[-1]["step"]))
    same: dict[str, Any] = {"remaining_steps": left, "step_s": step_s, "cost_s": cost}

    def refused(code: str, **params: Any) -> Replan:
        notice = Notice(code=code, level="note", params={"cost": seconds_text(cost), **params})
        return Replan(**_unknown() | same, proposed=False, notice=kept(notice))

    found = _planned(work.scenario, float(f"{link.factor:.2g}"))
    if found is None:
        return refused("twin_replan_none")
    other, now_s, then_s, same_plan = found
    if same_plan or then_s >= now_s:
        return refused("twin_replan_same")
    new_s = step_s * then_s / now_s
    if left is None:
        return refused("twin_replan_endless", saved=seconds_text(step_s - new_s))
    gain = left * (step_s - new_s) - cost
    strategy = other.to_plain().get("strategy")
    params = {
        "cost": seconds_text(cost),
        "saved": seconds_text(step_s - new_s),
        "left": left,
        "gain": seconds_text(gain),
        "least": math.ceil(cost / (step_s - new_s)),
    }
    code = "twin_replan" if gain > 0 else "twin_replan_not_worth"
    return Replan(
        **same,
        proposed=gain > 0,
        new_step_s=new_s,
        gain_s=gain,
        strategy=strategy,
        scenario=other.to_yaml() if gain > 0 else None,
        notice=kept(Notice(code=code, level="warning" if gain > 0 else "note", params=params)),
    )


@lru_cache(maxsize=32)
def _factor(text: str, covers: tuple[str, ...], times: float) -> float | None:
    """Factor on all rates between zones that makes some parts so many times as long; None: no rate does.

    The cost formulas are inverted by halving: the slower the links, the longer what they carry.
    """
    scenario = _scenario(text)
    if len(scenario.cluster.zones) < 2:
        return None
    links = zone_links(scenario.cluster)

    def seconds(factor: float) -> float:
        parts = build_breakdown(
            build_predictor(scenario.replace(cluster=scale_zone_links(scenario.cluster, factor, links)))
        )
        return sum(parts[one] for one in covers)

    wanted = times * seconds(1.0)
    low, high = math.log(LEAST_FACTOR), 0.0
    if wanted <= seconds(1.0) or seconds(LEAST_FACTOR) < wanted:
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if seconds(math.exp(middle)) > wanted else (low, middle)
    return math.exp((low + high) / 2)


@lru_cache(maxsize=16)
def _planned(text: str, factor: float) -> tuple[Scenario, float, float, bool] | None:
    """The best plan for other rates, the step of the present one at them, that of the best, and whether it is the same.

    On the same framework, for another one cannot read its checkpoints.
    """
    present = _scenario(text)
    changed = present.replace(cluster=scale_zone_links(present.cluster, factor))
    open_ = changed.replace(strategy=None, placement=None)
    local = present.strategy is not None and present.strategy.local_update is not None
    try:
        found = plan(open_, top=1, local_updates=local, budget_s=PLAN_S)
        best = found.local_updates[0] if local and found.local_updates else select_best(found)
        now = build_predictor(changed)
    except InputError:
        return None
    same = best.strategy == now.strategy and best.placement == now.site.placement
    return apply_plan(open_, best), now.step_time.expected, best.prediction.step_time_s.expected, same


@lru_cache(maxsize=16)
def _scenario(text: str) -> Scenario:
    return parse_scenario(text, PLAN).scenario


def _used(prediction: Mapping[str, Any]) -> set[frozenset[str]]:
    """Pairs of zones that exchange something."""
    links = [one["link"].split(" > ") for one in prediction["communication"] if " > " in one["link"]]
    return {frozenset(ends) for ends in links}


def _length(work: Work) -> int | None:
    """Steps of the whole run, as the trainer was told."""
    text = next((file.text for file in work.bundle.files if file.path == "settings.json"), None)
    steps = None if text is None else json.loads(text)["job"]["steps"]
    return None if steps is None else int(steps)


def _restart_s(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """From the last step of a start to the first of the next, as it was at best; None: there was but one start."""
    gaps = [
        after["ended_unix_s"] - after["step_s"] - before["ended_unix_s"]
        for before, after in pairwise(rows)
        if after.get("start", 0) > before.get("start", 0) and before.get("ended_unix_s") and after.get("ended_unix_s")
    ]
    return min((gap for gap in gaps if gap > 0), default=None)


def _unknown() -> dict[str, Any]:
    return {"new_step_s": None, "gain_s": None, "strategy": None, "scenario": None}


def seconds_text(value: float) -> str:
    """Seconds as a sentence has them."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
