"""Planner: a scenario in, ranked plans out.

answer = crosszone.plan(crosszone.load_scenario("examples/three-cities.yaml"))
answer.plans[0].strategy, answer.plans[0].prediction.step_time_s.expected

Refine: small changes to a good plan that the search leaves out: layers moved, stages and zones shifted, shares.

Each change is simulated; the best one is kept as long as there is one.

Averaging: the best plans in which zones train on their own and average now and then. They change the algorithm.

Front: plans of which no other is both faster and cheaper.

Pins: parts of the strategy that the user wants as they are, said as `KEY=VALUE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from time import monotonic
from typing import Any

import numpy as np

from crosszone.cost.profile import Profiles
from crosszone.errors import IllegalError, InputError, InvalidError, Notice
from crosszone.inputs.document import scalar
from crosszone.inputs.placement import tp_capacity
from crosszone.inputs.rules import (
    JOB_RULES,
    batch_divides,
    framework_has_schedule,
    heads_divide,
    layers_fill_stages,
    ranks_within_gpus,
    schedule_has_shape,
    shards_work_equally,
    widths_divide,
)
from crosszone.inputs.scenario import Loaded, Scenario, scenario_notices
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.strategy import LocalUpdate, Strategy
from crosszone.inputs.summary import few_alike
from crosszone.inputs.value import parse
from crosszone.plan.candidates import Candidate, compute_objective, compute_step_cost, require_objective_figures
from crosszone.plan.comparison import compare_predictions, estimate_win_probability
from crosszone.plan.crossover import Crossover, find_crossover
from crosszone.plan.frontier import ParetoFront
from crosszone.plan.layouts import WIDE, Chain, StageMap
from crosszone.plan.plan import OBJECTIVES, Comparison, IdleGpus, Objective, Plan, Plans, Point, Rejected, apply_plan
from crosszone.plan.problem import PlanCache, Problem
from crosszone.plan.reasons import explain_no_plan, explain_plan, list_hints, list_idle_gpus, list_rejected
from crosszone.plan.search import Progress, Search
from crosszone.predict.batch import chunk_layers
from crosszone.predict.predict import build_prediction
from crosszone.predict.prediction import Prediction
from crosszone.text import DEFAULT_LANGUAGE

ROUNDS = 6  # Changes made to one plan at most
LEAST_GAIN = 1e-4  # Share of the value that a change must save


def refine_candidate(one: Candidate, objective: Objective, spent: Callable[[], bool]) -> tuple[Candidate, float, int]:
    """The plan after the changes that help, its value, and how many were tried."""
    best, value, tried = one, compute_objective(one, objective), 0
    for _ in range(ROUNDS):
        found: tuple[float, Candidate] | None = None
        for other in (*_options(best), *_layers(best), *_layouts(best), *_shares(best)):
            if spent():
                return best, value, tried
            tried += 1
            beat = value * (1 - LEAST_GAIN) if found is None else found[0]
            rated = _rated(other, objective, beat)
            if rated is not None and rated < beat:
                found = (rated, other)
        if found is None:
            break
        value, best = found
    return best, value, tried


def _rated(one: Candidate, objective: Objective, beat: float) -> float | None:
    """Its value; None where it is not legal, does not fit or cannot be below what it must beat."""
    case = one.problem.case(one.strategy)
    if any(True for rule in (shards_work_equally, framework_has_schedule) for _ in rule(case, one.framework)):
        return None
    try:
        one.predictor.site.check()
        share = one.bound_table.settings.memory_share
        fits = all(stage.total <= share * stage.limit for stage in one.predictor.memory().stages)
        if not fits or (objective == "time" and not one.may_beat(beat)):
            return None
        return compute_objective(one, objective)
    except InputError:
        return None


def _options(one: Candidate) -> Iterator[Candidate]:
    """Less offload, less recomputation: a search that ended early may have missed them."""
    for name, values in (("offload", ("none",)), ("recompute", ("none", "selective"))):
        now = getattr(one.strategy, name)
        able = getattr(one.framework, name)
        for value in values:
            if now != value and value in able and not one.problem.is_pinned(name):
                yield replace(one, options=one.options | {name: value})


def _layers(one: Candidate) -> Iterator[Candidate]:
    """A layer moved from the slowest stage to the quickest, or to a neighbour."""
    if one.layout.pp == 1 or one.schedule.virtual_stages > 1 or one.problem.is_pinned("layers_per_stage"):
        return
    counts = chunk_layers(one.predictor.case)
    times = one.predictor.step.times
    work = (times.forward + times.backward).max(axis=0)
    slow = int(np.argmax(work))
    if counts[slow] < 2:
        return
    takers = {int(np.argmin(work)), slow - 1, slow + 1} & set(range(len(counts))) - {slow}
    for taker in sorted(takers):
        moved = list(counts)
        moved[slow] -= 1
        moved[taker] += 1
        yield replace(one, layers_per_stage=tuple(moved))


def _layouts(one: Candidate) -> Iterator[Candidate]:
    """A stage shifted to the next node group, the way through the groups turned round or two of them swapped."""
    layout = one.layout.stage_map
    for number, chain in enumerate(layout.chains):
        path = chain.path
        if len(path) == 1:
            continue
        ways = [path[::-1]]
        for at in range(len(path) - 1):
            (a, x), (b, y) = path[at], path[at + 1]
            ways.append((*path[:at], (b, y), (a, x), *path[at + 2 :]))
            ways += [(*path[:at], (a, x - 1), (b, y + 1), *path[at + 2 :])] * (x > 1)
            ways += [(*path[:at], (a, x + 1), (b, y - 1), *path[at + 2 :])] * (y > 1)
        for way in ways:
            chains = (*layout.chains[:number], Chain(chain.replicas, way), *layout.chains[number + 1 :])
            yield from _fitting(one, StageMap(chains))


def _fitting(one: Candidate, layout: StageMap) -> Iterator[Candidate]:
    """The plan in another layout, if the node groups have room for it."""
    shape, groups = one.layout, one.problem.groups
    room = all(n <= tp_capacity(groups[g], shape.tp) // (shape.tp * shape.cp) for g, n in layout.cells.items())
    if room and layout != shape.stage_map:
        yield replace(one, layout=replace(shape, stage_map=layout))


def _shares(one: Candidate) -> Iterator[Candidate]:
    """Micro-batches moved from the replicas of the slowest chain to those of others."""
    layout = one.layout.stage_map
    if len(layout.chains) < 2 or not one.framework.uneven_micro_batches:
        return
    each = one.chain_micro_batches
    times = one.chain_s
    slow = int(np.argmax(times))
    shares = layout.shares
    for taker in range(len(shares)):
        for give in range(1, 5):
            moved = give * shares[slow]
            if taker != slow and moved % shares[taker] == 0 and each[slow] > give:
                counts = list(each)
                counts[slow] -= give
                counts[taker] += moved // shares[taker]
                yield one.with_shares(tuple(counts))
                break


# Strategies simulated at most: these plans stand beside the synchronous ones and need not be the very best.
MOST_SIMULATED = 16


@cache
def read_local_update_variants() -> dict[str, LocalUpdate]:
    """Ways to average that are tried, by name (`local_update.yaml`)."""
    document = read_shipped("crosszone.plan", "local_update.yaml")
    named = document.value["variants"]
    return {name: parse(LocalUpdate, fields, document, at=("variants", name)) for name, fields in named.items()}


def iterate_local_update_plans(
    problem: Problem, *, safe: bool, budget_s: float | None = None, cancelled: Callable[[], bool] | None = None
) -> Iterator[tuple[Candidate, Search]]:
    """The fastest strategy with each way to average, with the search it comes from, fastest first; none fits: nothing.

    Inside the zones nothing depends on how they average, so one search finds the strategy for all ways.
    """
    if len(problem.cluster.zones) < 2 or problem.pinned.local_update is not None:
        return
    ways = list(read_local_update_variants().values())
    averaged = problem.averaging(ways[0])
    if not averaged.frameworks:
        return
    search = Search(averaged, top=1, safe=safe, most_simulated=MOST_SIMULATED, budget_s=budget_s, cancelled=cancelled)
    search.run()
    ranked = search.best.rank_families()
    if not ranked:
        return
    _, best = ranked[0]
    others = [best, *(replace(best, problem=problem.averaging(way)) for way in ways[1:])]
    for one in sorted(others, key=lambda candidate: candidate.step_s):
        yield one, search


def find_pareto_points(
    problem: Problem, *, safe: bool, budget_s: float | None = None, cancelled: Callable[[], bool] | None = None
) -> list[Point]:
    """Time against cost, fastest first; empty where a price is not known."""
    best = ParetoFront(top=1)
    search = Search(problem, top=1, best=best, safe=safe, breadth=WIDE, budget_s=budget_s, cancelled=cancelled)
    search.run()
    points = []
    for step, one in best.rank_families():
        usd, _ = compute_step_cost(one.predictor)
        if usd is None:
            return []
        points.append(
            Point(
                framework=one.framework.name,
                strategy=one.predictor.strategy,
                placement=one.placement,
                gpus=one.layout.gpus,
                step_s=step,
                usd_per_step=usd,
            )
        )
    kept: list[Point] = []
    for point in points:  # fastest first: each further one must be cheaper
        if not kept or point.usd_per_step < kept[-1].usd_per_step:
            kept.append(point)
    return kept


REFINED = 3  # Plans, the best ones, that are refined
# Strategies simulated at most where plans are ranked by cost or energy, whose bounds are wide.
MOST_SIMULATED_PLANNER = 400
# Rules that what is pinned may break whatever else a plan chooses: rule, and the fields it looks at.
PINNED_RULES = (
    (heads_divide, {"tp"}),
    (widths_divide, {"tp"}),
    (layers_fill_stages, {"pp", "layers_per_stage"}),
    (layers_fill_stages, {"pp", "interleave"}),
    (schedule_has_shape, {"pp", "schedule"}),
    (ranks_within_gpus, {"tp", "pp", "dp"}),
    (batch_divides, {"micro_batch", "dp"}),
)
UNPINNABLE_FIELDS = ("replica_micro_batches", "extra_warmup", "shard_ranks")  # Fields that a plan settles itself
MAX_TOP = 100  # Plans that may be asked for


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
        params = {"allowed": list(OBJECTIVES), "nearest": OBJECTIVES[0]}
        raise InvalidError(Notice(code="not_one_of", field="objective", value=objective, params=params))
    if not 1 <= top <= MAX_TOP:
        raise InvalidError(Notice(code="top_out_of_range", field="top", value=top, params={"most": MAX_TOP}))
    began = monotonic()
    problem = build_problem(scenario, profiles, cache)
    how: dict[str, Any] = {"budget_s": budget_s, "cancelled": cancelled}
    search, best = search_plans(problem, objective=objective, top=top, progress=progress, **how)
    safe = search.safe
    plans = _plans(search, best, language)
    averaged: list[Plan] = []
    if local_updates:
        for one, own in iterate_local_update_plans(problem, safe=safe, **how):
            averaged += _plans(own, [(one.step_s, one)], language, first=len(averaged) + 1)
    told = [*notices, *_remarks(scenario, search)]
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
        seconds=monotonic() - began,
        complete=search.tally.complete,
        plans=tuple(plans),
        local_updates=tuple(averaged),
        front=tuple(find_pareto_points(problem, safe=safe, **how)) if front else (),
        rejected=tuple(rejected),
        hints=tuple(hint.as_dict(language) for hint in list_hints(best[0][1], plans[0].prediction, search)),
        warnings=tuple(notice.as_dict(language) for notice in told),
    )


def search_plans(
    problem: Problem,
    *,
    objective: Objective = "time",
    top: int = 1,
    progress: Progress | None = None,
    budget_s: float | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> tuple[Search, list[tuple[float, Candidate]]]:
    """The best strategies that are no local updates, refined, in order, with the search they come from."""
    require_objective_figures(problem, objective)
    for safe in (True, False) if objective != "memory" else (False,):  # one that fits for sure, else one that may
        search = Search(
            problem,
            top=top,
            objective=objective,
            safe=safe,
            breadth=None if objective == "time" else WIDE,
            most_simulated=None if objective == "time" else MOST_SIMULATED_PLANNER,
            progress=progress,
            budget_s=budget_s,
            cancelled=cancelled,
        )
        search.run()
        ranked = search.best.rank_families()[:top]
        if ranked:
            return search, _refined(search, ranked, progress)
    raise IllegalError(*explain_no_plan(search))


def build_problem(scenario: Scenario, profiles: Profiles | None = None, cache: PlanCache | None = None) -> Problem:
    """The scenario as the search sees it; `IllegalError` where the job, or what is pinned, breaks a rule already."""
    pinned = scenario.strategy or Strategy()
    known = profiles or Profiles.load()
    problem = Problem(scenario=scenario, pinned=pinned, profiles=known, cache=cache or PlanCache())
    case = problem.case(pinned if pinned.dp else pinned.replace(dp=1))
    broken = [notice for rule in JOB_RULES for notice in rule(case)]
    broken += [notice for rule, fields in PINNED_RULES for notice in rule(case) if fields <= pinned.pinned]
    unfit = [name for name in UNPINNABLE_FIELDS if name in pinned.pinned and getattr(pinned, name)]
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
        better, value, tried = refine_candidate(one, search.objective, search.is_out_of_budget)
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
        idle = list(list_idle_gpus(one, value, search))
        predictor = one.predictor_of(banded=True, notices=tuple(i.reason for i in idle))
        predicted = build_prediction(predictor, language)
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
                chance=None if best is None else estimate_win_probability(best, predicted),
                idle=tuple(
                    IdleGpus(zone=i.zone, group=i.group, count=i.count, reason=i.reason.as_dict(language)) for i in idle
                ),
                reasons=tuple(reason.as_dict(language) for reason in explain_plan(one, predicted, best)),
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


def merge_pins(value: Mapping[str, Any], pins: Iterable[str]) -> dict[str, Any]:
    """The fields of a scenario with pins put into its strategy, over what stands there.

    pinned({"model": ...}, ["tp=8", "communication.flows=4"])   # {"model": ..., "strategy": {"tp": 8, ...}}

    Keys and values are checked where the scenario is read, so that a wrong pin is refused in the same words as a wrong
    line of a file.
    """
    read = [read_pin(pin) for pin in pins]
    seen: set[str] = set()
    for key, _ in read:
        if key in seen:
            raise InvalidError(Notice(code="pin_twice", field="pin", value=key))
        seen.add(key)
    strategy = value.get("strategy")
    if not read or not isinstance(strategy, Mapping | None):  # the reader refuses a strategy that is no mapping
        return dict(value)
    merged = dict(strategy or {})
    for key, inner in read:
        merged = _with(merged, key.split("."), inner)
    return {**value, "strategy": merged}


def read_pin(text: str) -> tuple[str, Any]:
    """Key and value of `KEY=VALUE`; a key may be `communication.flows`, a value a list with commas."""
    key, equals, said = (part.strip() for part in text.partition("="))
    if not equals or not said or not all(key.split(".")):
        raise InvalidError(Notice(code="pin_malformed", field="pin", value=text))
    bracketed = said.startswith("[") and said.endswith("]")
    if bracketed or "," in said:
        items = said[1:-1] if bracketed else said
        return key, [scalar(item.strip()) for item in items.split(",")]
    return key, scalar(said)


def _with(fields: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    """The fields with the one at the end of a path set."""
    first, *rest = path
    if not rest:
        return {**fields, first: value}
    inner = fields.get(first)
    return {**fields, first: _with(inner if isinstance(inner, Mapping) else {}, rest, value)}


PlanSelector = Callable[[Plans], Plan]  # Which plan of the answer is asked about


def plan_loaded(
    loaded: Loaded,
    language: str = DEFAULT_LANGUAGE,
    *,
    why: PlanSelector | None = None,
    crossover: bool = False,
    **how: Any,
) -> Plans:
    """Plan a scenario that was read from a file: what was assumed on the way is told with its line.

    `why` picks a plan that is then set against the best; `crossover` also looks for the rate between zones at which
    local updates begin to win; `how` goes to `plan`.
    """
    scenario, document = loaded.scenario, loaded.document
    zones = len(scenario.cluster.zones)
    if crossover and zones < 2:
        raise InvalidError(Notice(code="crossover_one_zone", field="cluster.zones", value=zones))
    known = few_alike([document.placed(one) for one in (*loaded.notices, *scenario_notices(scenario))])
    found = plan(scenario, language=language, notices=known, **how)
    flip = _find_crossover(scenario, found) if crossover else None
    against = None if why is None else compare_with_best(select_best(found), why(found))
    return found.model_copy(update={"why": against, "crossover": flip})


def select_best(found: Plans) -> Plan:
    """The plan to take: the first synchronous one, or where none fits the first with local updates."""
    return (*found.plans, *found.local_updates)[0]


def compare_with_best(best: Plan, other: Plan) -> Comparison:
    """What makes another plan differ from the best."""
    waterfall = dict(compare_predictions(best.prediction, other.prediction))
    chance = estimate_win_probability(best.prediction, other.prediction)
    return Comparison(**waterfall, rank=other.rank, kind=other.kind, chance_best_is_faster=chance)


def _find_crossover(scenario: Scenario, found: Plans) -> Crossover | None:
    """Where the best synchronous plan and the best one with local updates are equally fast; None: one is missing."""
    if not found.plans or not found.local_updates:
        return None
    return find_crossover(scenario, apply_plan(scenario, found.plans[0]), apply_plan(scenario, found.local_updates[0]))
