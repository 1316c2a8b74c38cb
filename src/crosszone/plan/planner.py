"""Planner: a scenario in, ranked plans out.

answer = crosszone.plan(crosszone.load_scenario("examples/three-cities.yaml"))
answer.plans[0].strategy, answer.plans[0].prediction.step_time_s.expected
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from crosszone.cost.profile import Profiles
from crosszone.errors import IllegalError, InvalidError, Notice
from crosszone.inputs.rules import (
    JOB_RULES,
    batch_divides,
    heads_divide,
    layers_fill_stages,
    ranks_within_gpus,
    schedule_has_shape,
    widths_divide,
)
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.strategy import Strategy
from crosszone.plan.averaging import local_update_plans
from crosszone.plan.candidate import Candidate
from crosszone.plan.chance import chance_faster
from crosszone.plan.common import Common
from crosszone.plan.front import front_of
from crosszone.plan.objectives import require_known
from crosszone.plan.plan import OBJECTIVES, IdleGpus, Objective, Plan, Plans, Rejected
from crosszone.plan.problem import Problem
from crosszone.plan.reasons import hints_of, idle_of, reasons_of, rejected_of
from crosszone.plan.refine import refined
from crosszone.plan.refusal import no_plan
from crosszone.plan.search import Progress, Search
from crosszone.plan.shapes import WIDE
from crosszone.predict.prediction import Prediction

REFINED = 3
"""Plans, the best ones, that are refined."""
MOST_SIMULATED = 400
"""Strategies simulated at most where plans are ranked by cost or energy, whose bounds are wide."""
PINNED_RULES = (
    (heads_divide, {"tp"}),
    (widths_divide, {"tp"}),
    (layers_fill_stages, {"pp", "layers_per_stage"}),
    (layers_fill_stages, {"pp", "interleave"}),
    (schedule_has_shape, {"pp", "schedule"}),
    (ranks_within_gpus, {"tp", "pp", "dp"}),
    (batch_divides, {"micro_batch", "dp"}),
)
"""Rules that what is pinned may break whatever else a plan chooses: rule, and the fields it looks at."""
NOT_PINNED = ("replica_micro_batches", "extra_warmup", "shard_ranks")
"""Fields that a plan settles itself."""
MOST_TOP = 100
"""Plans that may be asked for."""


def plan(
    scenario: Scenario,
    *,
    objective: Objective = "time",
    top: int = 5,
    front: bool = False,
    local_updates: bool = True,
    budget_s: float | None = None,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    language: str = "en",
    notices: Sequence[Notice] = (),
    profiles: Profiles | None = None,
    common: Common | None = None,
) -> Plans:
    """The best strategies and placements for a scenario; what its strategy names is pinned.

    `IllegalError` where a pinned value breaks a rule or nothing fits. `budget_s` ends the search early and says so;
    `cancelled` is asked now and then and ends it with `CancelledError`. A `common` that outlives the call spares the
    next plan of a scenario that differs only in its links most of the work.
    """
    if objective not in OBJECTIVES:
        params = {"allowed": list(OBJECTIVES), "nearest": OBJECTIVES[0]}
        raise InvalidError(Notice(code="not_one_of", field="objective", value=objective, params=params))
    if not 1 <= top <= MOST_TOP:
        raise InvalidError(Notice(code="top_out_of_range", field="top", value=top, params={"most": MOST_TOP}))
    began = monotonic()
    problem = problem_of(scenario, profiles, common)
    how: dict[str, Any] = {"budget_s": budget_s, "cancelled": cancelled}
    search, best = searched(problem, objective=objective, top=top, progress=progress, **how)
    safe = search.safe
    plans = _plans(search, best, language)
    averaged: list[Plan] = []
    if local_updates:
        for one, own in local_update_plans(problem, safe=safe, **how):
            averaged += _plans(own, [(one.step_s, one)], language, first=len(averaged) + 1)
    told = [*notices, *_remarks(scenario, search)]
    rejected = [
        Rejected(family=family, count=count, reason=why.as_dict(language)) for family, count, why in rejected_of(search)
    ]
    return Plans(
        name=scenario.name,
        objective=objective,
        evaluated=search.tally.evaluated,
        scored=search.tally.scored,
        feasible=search.tally.feasible,
        simulated=search.tally.simulated,
        seconds=monotonic() - began,
        complete=search.tally.complete,
        plans=tuple(plans),
        local_updates=tuple(averaged),
        front=tuple(front_of(problem, safe=safe, **how)) if front else (),
        rejected=tuple(rejected),
        hints=tuple(hint.as_dict(language) for hint in hints_of(best[0][1], plans[0].prediction, search)),
        warnings=tuple(notice.as_dict(language) for notice in told),
    )


def searched(
    problem: Problem,
    *,
    objective: Objective = "time",
    top: int = 1,
    progress: Progress | None = None,
    budget_s: float | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> tuple[Search, list[tuple[float, Candidate]]]:
    """The best strategies that are no local updates, refined, in order, with the search they come from."""
    require_known(problem, objective)
    for safe in (True, False) if objective != "memory" else (False,):  # one that fits for sure, else one that may
        search = Search(
            problem,
            top=top,
            objective=objective,
            safe=safe,
            breadth=None if objective == "time" else WIDE,
            most_simulated=None if objective == "time" else MOST_SIMULATED,
            progress=progress,
            budget_s=budget_s,
            cancelled=cancelled,
        )
        search.run()
        ranked = search.best.ranked()[:top]
        if ranked:
            return search, _refined(search, ranked, progress)
    raise IllegalError(*no_plan(search))


def problem_of(scenario: Scenario, profiles: Profiles | None = None, common: Common | None = None) -> Problem:
    """The scenario as the search sees it; `IllegalError` where the job, or what is pinned, breaks a rule already."""
    pinned = scenario.strategy or Strategy()
    known = profiles or Profiles.load()
    problem = Problem(scenario=scenario, pinned=pinned, profiles=known, common=common or Common())
    case = problem.case(pinned if pinned.dp else pinned.replace(dp=1))
    broken = [notice for rule in JOB_RULES for notice in rule(case)]
    broken += [notice for rule, fields in PINNED_RULES for notice in rule(case) if fields <= pinned.pinned]
    unfit = [name for name in NOT_PINNED if name in pinned.pinned and getattr(pinned, name)]
    broken += [Notice(code="pin_unsupported", field=f"strategy.{name}", value=name) for name in unfit]
    if broken:
        raise IllegalError(*broken)
    if not problem.frameworks:
        raise IllegalError(*problem.refused)
    return problem


def _refined(
    search: Search, ranked: list[tuple[float, Candidate]], progress: Progress | None
) -> list[tuple[float, Candidate]]:
    """The best plans after the small changes that help, in order."""
    found = []
    for number, (_, one) in enumerate(ranked[:REFINED] if search.objective != "memory" else []):
        better, value, tried = refined(one, search.objective, search.spent)
        search.tally.simulated += tried
        found.append((value, better))
        if progress is not None:
            progress("refining", number + 1, min(REFINED, len(ranked)))
    return sorted([*found, *ranked[len(found) :]], key=lambda pair: (pair[0], pair[1].step_s))


def _plans(
    search: Search,
    ranked: list[tuple[float, Candidate]],
    language: str,
    first: int = 1,
) -> list[Plan]:
    """Plans of the candidates, with prediction and reasons."""
    found: list[Plan] = []
    best: Prediction | None = None
    for number, (value, one) in enumerate(ranked):
        idle = list(idle_of(one, value, search))
        predictor = one.predictor_of(banded=True, notices=tuple(i.reason for i in idle))
        predicted = predictor.prediction(language)
        found.append(
            Plan(
                rank=first + number,
                kind="local update" if one.strategy.local_update else "synchronous",
                crossing=one.crossing,
                zones=one.zone_names,
                framework=one.framework.name,
                strategy=predictor.strategy,
                placement=one.placement,
                prediction=predicted,
                value=value,
                chance=None if best is None else chance_faster(best, predicted),
                idle=tuple(
                    IdleGpus(zone=i.zone, group=i.group, count=i.count, reason=i.reason.as_dict(language)) for i in idle
                ),
                reasons=tuple(reason.as_dict(language) for reason in reasons_of(one, predicted, best)),
            )
        )
        best = best or predicted
    return found


def _remarks(scenario: Scenario, search: Search) -> list[Notice]:
    """What a user should know of this search."""
    found = []
    if scenario.placement is not None:
        found.append(Notice(code="plan_places", level="warning", field="placement"))
    kept = sorted(search.problem.pinned.pinned)
    if kept:
        found.append(Notice(code="plan_keeps", level="note", field="strategy", params={"fields": kept}))
    if not search.tally.complete:
        found.append(Notice(code="search_incomplete", level="warning"))
    return found
