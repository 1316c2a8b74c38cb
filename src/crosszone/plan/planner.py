"""Planner: a scenario in, ranked plans out.

    answer = crosszone.plan(crosszone.load_scenario("examples/three-cities.yaml"))
    answer.plans[0].strategy, answer.plans[0].prediction.step_time_s.expected

`plan` tells the story: the scenario becomes a `Problem` with its pins, `search_plans` searches and refines the best
strategies, `iterate_local_update_plans` adds plans with local SGD (they change the algorithm, so they are ranked
apart), `find_pareto_points` those of which no other is both faster and cheaper, and `_build_plans` predicts each plan
and says why it ranks where it does. `merge_pins` reads what a user wants kept as `KEY=VALUE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from time import monotonic
from typing import Any

import numpy as np

from crosszone.cost.profile import Profiles
from crosszone.errors import IllegalError, InputError, InvalidError, Notice, build_choice_error
from crosszone.inputs.document import parse_scalar
from crosszone.inputs.placement import count_group_tp_room
from crosszone.inputs.rules import (
    JOB_RULES,
    check_batch,
    check_equal_shards,
    check_framework_schedule,
    check_heads,
    check_layers,
    check_mamba,
    check_ranks,
    check_schedule,
    check_widths,
)
from crosszone.inputs.scenario import Loaded, Scenario, list_scenario_notices
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.strategy import LocalUpdate, Strategy
from crosszone.inputs.summary import shorten_notices
from crosszone.inputs.value import parse
from crosszone.plan.candidates import Candidate, compute_objective, compute_step_cost, require_objective_figures
from crosszone.plan.comparison import compare_predictions, estimate_win_probability
from crosszone.plan.crossover import Crossover, find_crossover
from crosszone.plan.frontier import ParetoFront
from crosszone.plan.layouts import WIDE, Chain, StageMap
from crosszone.plan.plan import OBJECTIVES, Comparison, IdleGpus, Objective, Plan, Plans, Point, Rejected, apply_plan
from crosszone.plan.problem import PlanCache, Problem
from crosszone.plan.reasons import explain_no_plan, explain_plan, list_hints, list_idle_gpus, list_rejected
from crosszone.plan.search import PlanSearch, Progress
from crosszone.predict.batch import list_virtual_stage_layers
from crosszone.predict.predict import build_prediction
from crosszone.predict.prediction import Prediction
from crosszone.text import DEFAULT_LANGUAGE

MAX_TOP = 100  # Plans that may be asked for
REFINED_PLANS = 3  # Plans, the best ones, that are refined
MAX_ROUNDS = 6  # Changes made to one plan at most
MIN_GAIN = 1e-4  # Share of the value that a change must save
# Strategies simulated at most where plans are ranked by cost or energy, whose bounds are wide.
MAX_SIMULATED_COST = 400
# Strategies simulated at most: these plans stand beside the synchronous ones and need not be the very best.
MAX_SIMULATED_LOCAL = 16
UNPINNABLE_FIELDS = ("replica_micro_batches", "extra_warmup", "shard_ranks")  # Fields that a plan settles itself
# Rules that what is pinned may break whatever else a plan chooses: rule, and the fields it looks at.
PINNED_RULES = (
    (check_heads, {"tp"}),
    (check_widths, {"tp"}),
    (check_mamba, {"tp"}),
    (check_mamba, {"cp"}),
    (check_layers, {"pp", "layers_per_stage"}),
    (check_layers, {"pp", "interleave"}),
    (check_schedule, {"pp", "schedule"}),
    (check_ranks, {"tp", "pp", "dp"}),
    (check_batch, {"micro_batch", "dp"}),
)
PlanSelector = Callable[[Plans], Plan]  # Which plan of the answer is asked about


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
    cache: PlanCache | None = None,
) -> Plans:
    """The best strategies and placements for a scenario; what its strategy names is pinned.

    `IllegalError` where a pinned value breaks a rule or nothing fits. `budget_s` ends the search early and says so;
    `cancelled` is asked now and then and ends it with `CancelledError`. A `cache` that outlives the call spares the
    next plan of a scenario that differs only in its links most of the work.
    """
    if objective not in OBJECTIVES:
        raise build_choice_error("objective", objective, OBJECTIVES)
    if not 1 <= top <= MAX_TOP:
        raise InvalidError(Notice(code="top_out_of_range", field="top", value=top, params={"most": MAX_TOP}))
    started_s = monotonic()
    problem = build_problem(scenario, profiles, cache)
    limits: dict[str, Any] = {"budget_s": budget_s, "cancelled": cancelled}
    search, best = search_plans(problem, objective=objective, top=top, progress=progress, **limits)
    safe = search.safe
    plans = _build_plans(search, best, language)
    averaged: list[Plan] = []
    if local_updates:
        for candidate, local_search in iterate_local_update_plans(problem, safe=safe, **limits):
            averaged += _build_plans(local_search, [(candidate.step_s, candidate)], language, first=len(averaged) + 1)
    warnings = [*notices, *_list_warnings(scenario, search)]
    rejected = [
        Rejected(family=family, count=count, reason=why.as_dict(language))
        for family, count, why in list_rejected(search)
    ]
    return Plans(
        name=scenario.name,
        objective=objective,
        evaluated=search.tally.evaluated,
        scored=search.tally.scored,
        feasible=search.tally.feasible,
        simulated=search.tally.simulated,
        seconds=monotonic() - started_s,
        complete=search.tally.complete,
        plans=tuple(plans),
        local_updates=tuple(averaged),
        front=tuple(find_pareto_points(problem, safe=safe, **limits)) if front else (),
        rejected=tuple(rejected),
        hints=tuple(hint.as_dict(language) for hint in list_hints(best[0][1], plans[0].prediction, search)),
        warnings=tuple(notice.as_dict(language) for notice in warnings),
    )


def plan_loaded(
    loaded: Loaded,
    language: str = DEFAULT_LANGUAGE,
    *,
    why: PlanSelector | None = None,
    crossover: bool = False,
    **options: Any,
) -> Plans:
    """Plan a scenario that was read from a file: what was assumed is reported with its line.

    `why` picks a plan that is then set against the best; `crossover` also looks for the rate between zones at which
    local updates begin to win; `options` go to `plan`.
    """
    scenario, document = loaded.scenario, loaded.document
    zones = len(scenario.cluster.zones)
    if crossover and zones < 2:
        raise InvalidError(Notice(code="crossover_one_zone", field="cluster.zones", value=zones))
    notices = shorten_notices(
        [document.place_notice(notice) for notice in (*loaded.notices, *list_scenario_notices(scenario))]
    )
    plans = plan(scenario, language=language, notices=notices, **options)
    crossover_found = _find_crossover(scenario, plans) if crossover else None
    comparison = None if why is None else compare_with_best(select_best(plans), why(plans))
    return plans.model_copy(update={"why": comparison, "crossover": crossover_found})


def build_problem(scenario: Scenario, profiles: Profiles | None = None, cache: PlanCache | None = None) -> Problem:
    """The scenario as the search sees it; `IllegalError` where the job, or what is pinned, breaks a rule already."""
    pinned = scenario.strategy or Strategy()
    loaded_profiles = profiles or Profiles.load()
    problem = Problem(scenario=scenario, pinned=pinned, profiles=loaded_profiles, cache=cache or PlanCache())
    case = problem.build_case(pinned if pinned.dp else pinned.replace(dp=1))
    broken = [notice for rule in JOB_RULES for notice in rule(case)]
    broken += [notice for rule, fields in PINNED_RULES for notice in rule(case) if fields <= pinned.pinned]
    unpinnable = [name for name in UNPINNABLE_FIELDS if name in pinned.pinned and getattr(pinned, name)]
    broken += [Notice(code="pin_unsupported", field=f"strategy.{name}", value=name) for name in unpinnable]
    if broken:
        raise IllegalError(*broken)
    if not problem.frameworks:
        raise IllegalError(*problem.refused)
    return problem


def search_plans(
    problem: Problem,
    *,
    objective: Objective = "time",
    top: int = 1,
    progress: Progress | None = None,
    budget_s: float | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> tuple[PlanSearch, list[tuple[float, Candidate]]]:
    """The best strategies that are no local updates, refined, in order, with the search they come from."""
    require_objective_figures(problem, objective)
    # plans that fit even at the high end of the memory's range; only if there are none, those that may fit
    for safe in (False,) if objective == "memory" else (True, False):
        search = PlanSearch(
            problem,
            top=top,
            objective=objective,
            safe=safe,
            breadth=None if objective == "time" else WIDE,
            most_simulated=None if objective == "time" else MAX_SIMULATED_COST,
            progress=progress,
            budget_s=budget_s,
            cancelled=cancelled,
        )
        search.run()
        ranked = search.best.rank_families()[:top]
        if ranked:
            return search, _refine_best(search, ranked, progress)
    raise IllegalError(*explain_no_plan(search))


def _refine_best(
    search: PlanSearch, ranked: list[tuple[float, Candidate]], progress: Progress | None
) -> list[tuple[float, Candidate]]:
    """The best plans after the small changes that help, in order."""
    refined = []
    for number, (_, candidate) in enumerate(ranked[:REFINED_PLANS] if search.objective != "memory" else []):
        better, value, tried = refine_candidate(candidate, search.objective, search.is_out_of_budget)
        search.tally.simulated += tried
        refined.append((value, better))
        if progress is not None:
            progress("refining", number + 1, min(REFINED_PLANS, len(ranked)))
    return sorted([*refined, *ranked[len(refined) :]], key=lambda pair: (pair[0], pair[1].step_s))


def refine_candidate(
    candidate: Candidate, objective: Objective, is_out_of_budget: Callable[[], bool]
) -> tuple[Candidate, float, int]:
    """Make the small changes that help and that the search leaves out; the plan, its value, and how many were tried.

    Layers moved, stages and zones shifted, micro-batches shared out otherwise. Each change is simulated; the best one
    is kept as long as there is one.
    """
    best, value, tried = candidate, compute_objective(candidate, objective), 0
    for _ in range(MAX_ROUNDS):
        improvement: tuple[float, Candidate] | None = None
        for changed in (
            *_iterate_option_changes(best),
            *_iterate_layer_moves(best),
            *_iterate_path_changes(best),
            *_iterate_share_moves(best),
        ):
            if is_out_of_budget():
                return best, value, tried
            tried += 1
            to_beat = value * (1 - MIN_GAIN) if improvement is None else improvement[0]
            changed_value = _rate(changed, objective, to_beat)
            if changed_value is not None and changed_value < to_beat:
                improvement = (changed_value, changed)
        if improvement is None:
            break
        value, best = improvement
    return best, value, tried


def _rate(candidate: Candidate, objective: Objective, to_beat: float) -> float | None:
    """Its value; None where it is not legal, does not fit or cannot be below what it must beat."""
    case = candidate.problem.build_case(candidate.strategy)
    if any(True for rule in (check_equal_shards, check_framework_schedule) for _ in rule(case, candidate.framework)):
        return None
    try:
        candidate.predictor.placed.check()
        share = candidate.bound_table.settings.memory_share
        fits = all(stage.total <= share * stage.limit for stage in candidate.predictor.memory.stages)
        if not fits or (objective == "time" and not candidate.may_beat(to_beat)):
            return None
        return compute_objective(candidate, objective)
    except InputError:
        return None


def _iterate_option_changes(candidate: Candidate) -> Iterator[Candidate]:
    """Less offload, less recomputation: a search that ended early may have missed them."""
    for name, values in (("offload", ("none",)), ("recompute", ("none", "selective"))):
        current = getattr(candidate.strategy, name)
        supported = getattr(candidate.framework, name)
        for value in values:
            if current != value and value in supported and not candidate.problem.is_pinned(name):
                yield replace(candidate, options=candidate.options | {name: value})


def _iterate_layer_moves(candidate: Candidate) -> Iterator[Candidate]:
    """A layer moved from the slowest stage to the quickest, or to a neighbour."""
    if (
        candidate.layout.pp == 1
        or candidate.schedule.virtual_stages > 1
        or candidate.problem.is_pinned("layers_per_stage")
    ):
        return
    counts = list_virtual_stage_layers(candidate.predictor.case)
    times = candidate.predictor.step.times
    work = (times.forward + times.backward).max(axis=0)
    slowest = int(np.argmax(work))
    if counts[slowest] < 2:
        return
    takers = {int(np.argmin(work)), slowest - 1, slowest + 1} & set(range(len(counts))) - {slowest}
    for taker in sorted(takers):
        moved = list(counts)
        moved[slowest] -= 1
        moved[taker] += 1
        yield replace(candidate, layers_per_stage=tuple(moved))


def _iterate_path_changes(candidate: Candidate) -> Iterator[Candidate]:
    """A stage shifted to the next node group, the path through the groups reversed or two of them swapped."""
    stage_map = candidate.layout.stage_map
    for number, chain in enumerate(stage_map.chains):
        path = chain.path
        if len(path) == 1:
            continue
        paths = [path[::-1]]
        for at in range(len(path) - 1):
            (a, x), (b, y) = path[at], path[at + 1]
            paths.append((*path[:at], (b, y), (a, x), *path[at + 2 :]))
            paths += [(*path[:at], (a, x - 1), (b, y + 1), *path[at + 2 :])] * (x > 1)
            paths += [(*path[:at], (a, x + 1), (b, y - 1), *path[at + 2 :])] * (y > 1)
        for changed_path in paths:
            chains = (*stage_map.chains[:number], Chain(chain.replicas, changed_path), *stage_map.chains[number + 1 :])
            yield from _iterate_fitting(candidate, StageMap(chains))


def _iterate_fitting(candidate: Candidate, stage_map: StageMap) -> Iterator[Candidate]:
    """The plan in another layout, if the node groups have room for it."""
    layout, groups = candidate.layout, candidate.problem.groups
    has_room = all(
        n <= count_group_tp_room(groups[g], layout.tp) // (layout.tp * layout.cp) for g, n in stage_map.cells.items()
    )
    if has_room and stage_map != layout.stage_map:
        yield replace(candidate, layout=replace(layout, stage_map=stage_map))


def _iterate_share_moves(candidate: Candidate) -> Iterator[Candidate]:
    """Micro-batches moved from the replicas of the slowest chain to those of others."""
    stage_map = candidate.layout.stage_map
    if len(stage_map.chains) < 2 or not candidate.framework.uneven_micro_batches:
        return
    chain_counts = candidate.chain_micro_batches
    times = candidate.chain_s
    slowest = int(np.argmax(times))
    shares = stage_map.shares
    for taker in range(len(shares)):
        for give in range(1, 5):
            moved = give * shares[slowest]
            if taker != slowest and moved % shares[taker] == 0 and chain_counts[slowest] > give:
                counts = list(chain_counts)
                counts[slowest] -= give
                counts[taker] += moved // shares[taker]
                yield candidate.with_shares(tuple(counts))
                break


def iterate_local_update_plans(
    problem: Problem, *, safe: bool, budget_s: float | None = None, cancelled: Callable[[], bool] | None = None
) -> Iterator[tuple[Candidate, PlanSearch]]:
    """The fastest strategy with each variant of local SGD, and its search, fastest first; nothing where none fits.

    Inside the zones nothing depends on how they average, so one search finds the strategy for all variants.
    """
    if len(problem.cluster.zones) < 2 or problem.pinned.local_update is not None:
        return
    local_updates = list(read_local_update_variants().values())
    averaging_problem = problem.with_local_update(local_updates[0])
    if not averaging_problem.frameworks:
        return
    search = PlanSearch(
        averaging_problem, top=1, safe=safe, most_simulated=MAX_SIMULATED_LOCAL, budget_s=budget_s, cancelled=cancelled
    )
    search.run()
    ranked = search.best.rank_families()
    if not ranked:
        return
    _, best = ranked[0]
    candidates = [
        best,
        *(replace(best, problem=problem.with_local_update(local_update)) for local_update in local_updates[1:]),
    ]
    for candidate in sorted(candidates, key=lambda candidate: candidate.step_s):
        yield candidate, search


@cache
def read_local_update_variants() -> dict[str, LocalUpdate]:
    """Variants of local SGD that are tried, by name (`local_update.yaml`)."""
    document = read_shipped("crosszone.plan", "local_update.yaml")
    variants = document.value["variants"]
    return {name: parse(LocalUpdate, fields, document, at=("variants", name)) for name, fields in variants.items()}


def find_pareto_points(
    problem: Problem, *, safe: bool, budget_s: float | None = None, cancelled: Callable[[], bool] | None = None
) -> list[Point]:
    """Time against cost, fastest first; empty where a price is not known."""
    best = ParetoFront(top=1)
    search = PlanSearch(problem, top=1, best=best, safe=safe, breadth=WIDE, budget_s=budget_s, cancelled=cancelled)
    search.run()
    points = []
    for step, candidate in best.rank_families():
        usd, _ = compute_step_cost(candidate.predictor)
        if usd is None:
            return []
        points.append(
            Point(
                framework=candidate.framework.name,
                strategy=candidate.predictor.strategy,
                placement=candidate.placement,
                gpus=candidate.layout.gpus,
                step_s=step,
                usd_per_step=usd,
            )
        )
    undominated: list[Point] = []
    for point in points:  # fastest first: each further one must be cheaper
        if not undominated or point.usd_per_step < undominated[-1].usd_per_step:
            undominated.append(point)
    return undominated


def _build_plans(
    search: PlanSearch,
    ranked: list[tuple[float, Candidate]],
    language: str,
    first: int = 1,
) -> list[Plan]:
    """Plans of the candidates, with prediction and reasons."""
    plans: list[Plan] = []
    best: Prediction | None = None
    for number, (value, candidate) in enumerate(ranked):
        idle = list(list_idle_gpus(candidate, value, search))
        predictor = candidate.build_predictor(banded=True, notices=tuple(i.reason for i in idle))
        predicted = build_prediction(predictor, language)
        plans.append(
            Plan(
                rank=first + number,
                kind="local update" if candidate.strategy.local_update else "synchronous",
                crossing=candidate.crossing,
                zones=candidate.zone_names,
                framework=candidate.framework.name,
                strategy=predictor.strategy,
                placement=candidate.placement,
                prediction=predicted,
                value=value,
                chance=None if best is None else estimate_win_probability(best, predicted),
                idle=tuple(
                    IdleGpus(zone=i.zone, group=i.group, count=i.count, reason=i.reason.as_dict(language)) for i in idle
                ),
                reasons=tuple(reason.as_dict(language) for reason in explain_plan(candidate, predicted, best)),
            )
        )
        best = best or predicted
    return plans


def _list_warnings(scenario: Scenario, search: PlanSearch) -> list[Notice]:
    """What a user should know of this search."""
    notices = []
    if scenario.placement is not None:
        notices.append(Notice(code="plan_places", level="warning", field="placement"))
    pinned_fields = sorted(search.problem.pinned.pinned)
    if pinned_fields:
        notices.append(Notice(code="plan_keeps", level="note", field="strategy", params={"fields": pinned_fields}))
    if not search.tally.complete:
        notices.append(Notice(code="search_incomplete", level="warning"))
    return notices


def select_best(plans: Plans) -> Plan:
    """The plan to take: the first synchronous one, or where none fits the first with local updates."""
    return (*plans.plans, *plans.local_updates)[0]


def compare_with_best(best: Plan, other: Plan) -> Comparison:
    """What makes another plan differ from the best."""
    waterfall = dict(compare_predictions(best.prediction, other.prediction))
    chance = estimate_win_probability(best.prediction, other.prediction)
    return Comparison(**waterfall, rank=other.rank, kind=other.kind, chance_best_is_faster=chance)


def _find_crossover(scenario: Scenario, plans: Plans) -> Crossover | None:
    """Where the best synchronous plan and the best one with local updates are equally fast; None: one is missing."""
    if not plans.plans or not plans.local_updates:
        return None
    return find_crossover(scenario, apply_plan(scenario, plans.plans[0]), apply_plan(scenario, plans.local_updates[0]))


def merge_pins(value: Mapping[str, Any], pins: Iterable[str]) -> dict[str, Any]:
    """The fields of a scenario with pins put into its strategy, over what stands there.

    merge_pins({"model": ...}, ["tp=8", "communication.flows=4"])   # {"model": ..., "strategy": {"tp": 8, ...}}

    Keys and values are checked where the scenario is read, so that a wrong pin is refused in the same words as a wrong
    line of a file.
    """
    key_values = [read_pin(pin) for pin in pins]
    keys: set[str] = set()
    for key, _ in key_values:
        if key in keys:
            raise InvalidError(Notice(code="pin_twice", field="pin", value=key))
        keys.add(key)
    strategy = value.get("strategy")
    if not key_values or not isinstance(strategy, Mapping | None):  # the reader refuses a strategy that is no mapping
        return dict(value)
    merged = dict(strategy or {})
    for key, inner in key_values:
        merged = _set_field(merged, key.split("."), inner)
    return {**value, "strategy": merged}


def read_pin(text: str) -> tuple[str, Any]:
    """Key and value of `KEY=VALUE`; a key may be `communication.flows`, a value a list with commas."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not value or not all(key.split(".")):
        raise InvalidError(Notice(code="pin_malformed", field="pin", value=text))
    bracketed = value.startswith("[") and value.endswith("]")
    if bracketed or "," in value:
        items = value[1:-1] if bracketed else value
        return key, [parse_scalar(item.strip()) for item in items.split(",")]
    return key, parse_scalar(value)


def _set_field(fields: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    """The fields with the one at the end of a path set."""
    first, *remaining = path
    if not remaining:
        return {**fields, first: value}
    nested = fields.get(first)
    return {**fields, first: _set_field(nested if isinstance(nested, Mapping) else {}, remaining, value)}
