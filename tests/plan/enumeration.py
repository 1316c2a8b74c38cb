"""Every legal strategy of a tiny cluster by plain loops, as one reads them in the rules, policies and frameworks' data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations, product
from typing import Any

from crosszone.errors import IllegalError
from crosszone.inputs.frameworks import Framework
from crosszone.inputs.rules import Case, list_broken_rules, list_refusals
from crosszone.inputs.strategy import Strategy
from crosszone.plan.layouts import Chain, StageMap
from crosszone.plan.options import MIN_TOKENS_PER_RANK
from crosszone.plan.problem import Problem, compute_rank_bucket_mb
from crosszone.predict.placed_strategy import PlacedStrategy
from crosszone.predict.predictor import Predictor

ORDERS = (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"))
Chains = tuple[tuple[int, tuple[tuple[int, int], ...]], ...]
"""Replicas and way (node group, stages) of each chain, in no order."""
Effect = tuple[Any, ...]
"""What a strategy comes to: framework, degrees, schedule, where it lies, step time and memory of each stage."""


def shares(total: int, most: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every way to share out `total`, at least 1 and at most `most` to each."""
    return (one for one in product(*(range(1, m + 1) for m in most)) if sum(one) == total)


def groupings(groups: Sequence[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Some of the groups cut into paths: every order, cut at every place, each set of paths once."""
    seen = set()
    for size in range(1, len(groups) + 1):
        for order in permutations(groups, size):
            for cuts in product([False, True], repeat=size - 1):
                paths, path = [], [order[0]]
                for group, cut in zip(order[1:], cuts, strict=True):
                    if cut:
                        paths.append(tuple(path))
                        path = []
                    path.append(group)
                found = tuple(sorted([*paths, tuple(path)]))
                if found not in seen:
                    seen.add(found)
                    yield found


def layouts(cells: Sequence[int], pp: int, swaps: Sequence[dict[int, int]] = ()) -> set[Chains]:
    """Chains through disjoint node groups, and whole replicas with one more through what they leave; equal zones once."""
    found = set()
    for paths in groupings(range(len(cells))):
        for replicas in product(*(range(1, sum(cells[g] for g in path) // pp + 1) for path in paths)):
            ways = [
                [
                    tuple(zip(path, split, strict=True))
                    for split in shares(pp, [pp] * len(path))
                    if all(count * stages <= cells[g] for g, stages in zip(path, split, strict=True))
                ]
                for path, count in zip(paths, replicas, strict=True)
            ]
            found |= {tuple(sorted(zip(replicas, way, strict=True))) for way in product(*ways)}
    for path in (path for size in range(2, len(cells) + 1) for path in permutations(range(len(cells)), size)):
        whole = [(cells[g] // pp, ((g, pp),)) for g in path if cells[g] >= pp]
        for split in shares(pp, [cells[g] % pp for g in path]):
            if whole:
                found.add(tuple(sorted([*whole, (1, tuple(zip(path, split, strict=True)))])))
    return {min(one, *(renumbered(one, swap) for swap in swaps)) if swaps else one for one in found}


def renumbered(chains: Chains, swap: dict[int, int]) -> Chains:
    """The same with other node groups."""
    return tuple(sorted((count, tuple((swap[g], stages) for g, stages in way)) for count, way in chains))


def chains_of(layout: StageMap, swaps: Sequence[dict[int, int]] = ()) -> Chains:
    """A layout in the same words."""
    found = tuple(sorted((chain.replicas, chain.path) for chain in layout.chains))
    return min(found, *(renumbered(found, swap) for swap in swaps)) if swaps else found


def schedules(problem: Problem, framework: Framework, pp: int, m: int) -> Iterator[tuple[str | None, int]]:
    """Schedules with their chunks: all hold equally many layers, or embedding and head count as a layer each."""
    layers = problem.model.layers
    if pp == 1:
        yield None, 1
        return
    for schedule in framework.schedules:
        if schedule == "interleaved":
            enough = m >= pp or not framework.interleaved_groups
            slots = [layers, layers + 2] if framework.name == "megatron" else [layers]
            yield from ((schedule, v) for v in range(2, 17) if any(n % (pp * v) == 0 for n in slots) and enough)
        elif schedule in ("zbv", "dualpipev"):
            if layers % (2 * pp) == 0:
                yield schedule, 2
        else:
            yield schedule, 1


def options(framework: Framework, pinned: Strategy, wide: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Fields of a strategy beside its degrees, and of its communication; `wide`: gradients have more than two bytes."""

    def values(field: str, all_values: Sequence[Any], holder: Any) -> Sequence[Any]:
        return [getattr(holder, field)] if field in holder.model_fields_set else all_values

    outer = {
        "zero": framework.zero,
        "shard_within": framework.shard_within,
        "sequence_parallel": [False, True] if framework.sequence_parallel else [False],
        "recompute": framework.recompute,
        "offload": framework.offload,
    }
    narrow = [d for d in ("bf16",) if wide and d in framework.gradient_dtypes]
    inner = {f"overlap_{what}": [False, True] for what in framework.overlap}
    inner |= {"gradient_dtype": [None, *narrow], "reduce": framework.reduce}
    outer_values = [values(name, list(all_values), pinned) for name, all_values in outer.items()]
    inner_values = [values(name, list(all_values), pinned.communication) for name, all_values in inner.items()]
    for chosen in product(*outer_values):
        for talk in product(*inner_values):
            fields = dict(zip(outer, chosen, strict=True))
            talked = dict(zip(inner, talk, strict=True))
            yield fields, {name: value for name, value in talked.items() if value is not None}


def effects(
    problem: Problem, framework: Framework, wide: bool, swaps: Sequence[dict[int, int]], setting: Any
) -> dict[Effect, Strategy]:
    """What every legal strategy of a framework comes to."""
    pinned, groups, batch = problem.pinned, problem.groups, problem.job.global_batch
    gpus = problem.cluster.gpus
    reach = max(group.domain if group.fast_link else group.gpus for group in groups)
    domain = max(group.domain if group.fast_link else 1 for group in groups)

    def degree(name: str, most: int) -> Sequence[int]:
        if problem.is_pinned(name):
            return [getattr(pinned, name)]
        return range(1, most + 1) if name in framework.axes else [1]

    found: dict[Effect, Strategy] = {}
    experts = problem.model.moe.experts if problem.model.moe else 1
    powers = [
        c for c in degree("cp", gpus) if c == 1 or (c in (2, 4, 8) and problem.job.seq_len // c >= MIN_TOKENS_PER_RANK)
    ]
    for tp, cp, pp, ep in product(
        degree("tp", reach), powers, degree("pp", problem.model.layers), degree("ep", experts)
    ):
        cells = [group.count * (group.gpus // tp) // cp for group in groups]  # tp inside a node: larger ones hold none
        for chains in layouts(cells, pp, swaps):
            dp = sum(count for count, _ in chains)
            if dp not in ([pinned.dp] if pinned.dp else range(1, batch + 1)) or dp % max(1, ep // (tp * cp)):
                continue
            layout = StageMap(tuple(Chain(count, way) for count, way in chains))
            beside = layout.find_crossing(problem.zone_graph.zone_of) in ("dp", "both")
            crosses = layout.find_crossing(problem.zone_graph.zone_of) != "none"
            talked = problem.communication if crosses else pinned.communication
            larger = beside and setting.wan_bucket_mb is not None
            bucket = {"bucket_mb": float(compute_rank_bucket_mb(setting, tp, pp, dp))} if larger else {}
            orders = ORDERS if pp > 1 and dp > 1 and 2 * tp * cp <= domain else ORDERS[:1]
            sizes = [pinned.micro_batch] if problem.is_pinned("micro_batch") else range(1, min(batch, 64) + 1)
            for order, size in product(orders, sizes):
                if batch % (size * dp):
                    continue
                placement = layout.build_placement(problem.cluster, tp, cp, order)  # type: ignore[arg-type]
                for schedule, chunks in schedules(problem, framework, pp, batch // (size * dp)):
                    if problem.is_pinned("schedule") and pp > 1 and schedule != pinned.schedule:
                        continue
                    for fields, talk in options(framework, pinned, wide):
                        strategy = Strategy(
                            tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, micro_batch=size, interleave=chunks, schedule=schedule,
                            communication=talked.replace(**talk, **bucket), **fields,
                        )  # fmt: skip
                        case = Case(
                            model=problem.model, job=problem.job, cluster=problem.cluster, strategy=strategy,
                            placement=placement,
                        )  # fmt: skip
                        effect = effect_of(problem, case, framework, setting, swaps)
                        if effect is not None:
                            found.setdefault(effect, strategy)
    return found


def effect_of(
    problem: Problem, case: Case, framework: Framework, setting: Any, swaps: Sequence[dict[int, int]]
) -> Effect | None:
    """What one strategy comes to; None: it is illegal, or shards states unevenly over nodes."""
    if list_broken_rules(case) or list_refusals(case, framework) or case.placement is None:
        return None
    if case.placement.check(case.cluster, case.strategy):
        return None
    placed = PlacedStrategy(
        case=case.with_framework(framework), placement=case.placement, links=problem.scenario.links, banded=False
    )
    try:
        placed.check()
    except IllegalError:
        return None
    if case.strategy.shard_within == "node" and not _even_over_nodes(placed):
        return None
    predictor = Predictor(
        name="", placed=placed, framework=framework, profiles=setting.profiles, stack=setting.stack,
        notices=(),
    )  # fmt: skip
    return described(predictor, swaps)


def beaten_alone(effect: Effect, others: Iterable[Effect]) -> bool:
    """Nothing has a second holder, so that sharding shares nothing, and another is as fast and as lean."""
    _, _, cp, _, dp, *_, figures = effect
    here = (tuple(map(float, other[-1])) for other in others if other[:-1] == effect[:-1])
    own = tuple(map(float, figures))
    return cp == dp == 1 and any(all(x <= y for x, y in zip(one, own, strict=True)) for one in here)


def _even_over_nodes(placed: PlacedStrategy) -> bool:
    """All nodes hold equally many replicas of every stage, several but not all."""
    counts = set()
    for stage in placed._shard_domains:
        homes = stage.tolist()
        counts |= {homes.count(home) for home in homes}
    return len(counts) == 1 and 1 < counts.pop() < (placed.strategy.dp or 1)


def described(predictor: Predictor, swaps: Sequence[dict[int, int]]) -> Effect:
    """A placed strategy by what it comes to."""
    s, memory = predictor.strategy, predictor.memory
    zones = sorted(tuple(row) for row in predictor.placed.group[:, :, 0, 0].T.tolist())
    lying = min(zones, *(sorted(tuple(swap[g] for g in row) for row in zones) for swap in swaps)) if swaps else zones
    degrees = (s.tp, s.cp, s.pp, s.dp, s.ep, s.micro_batch, s.pipeline_schedule if s.pp > 1 else None, s.interleave)
    figures = (f"{predictor.step_time.expected:.9e}", *(f"{stage.total:.9e}" for stage in memory.stages))
    return (predictor.framework.name, *degrees, tuple(lying), figures)
