"""Search: the best strategies of all frameworks, by bounds for all of them and the simulation for few.

Every layout is first scored with the fastest options it could have. From there the entry with the least bound is
always looked at next, and more closely: a layout expands into search nodes (schedule, micro-batch), a node into groups
of options, a group into its candidates that fit in memory; a candidate gets closer bounds (`BoundLevel`), the last of
them its schedule simulated, and is then placed and simulated as a prediction would be. The search ends when no bound is
below what must be beaten, so that every strategy that is not simulated is known to be no better.

All arrays here have one entry a row of a queue, a node or a candidate; suffixes mark the others (L: layouts).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from time import monotonic

import numpy as np
import numpy.typing as npt

from crosszone.plan.bounds import BoundTable
from crosszone.plan.candidates import Candidate, bound_cost_per_second, compute_objective
from crosszone.plan.frontier import ALL_GROUPS, BestCandidates, BoundLevel, Frontier, OptionGroups, ParetoFront
from crosszone.plan.layout_table import EVEN_SHARES
from crosszone.plan.layouts import Breadth
from crosszone.plan.plan import Objective
from crosszone.plan.problem import Problem
from crosszone.plan.search_nodes import SearchNodes
from crosszone.plan.search_space import build_search_space

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Progress = Callable[[str, int, int], None]
FIRST_BLOCK, MAX_BLOCK = 64, 4096  # Layouts expanded at a time: few at first, for the best are among them
# Bound of the last layout that goes into one table with others, over that of the first: a table has a fixed cost, so
# it holds more than are expanded at once.
TABLE_REACH = 1.3
NODES_AT_ONCE, OPTIONS_AT_ONCE = 2048, 2048  # Nodes expanded and options scored at a time
# Bounds of entries looked at together, over the first one: a few too many in one array call cost less than many calls.
FRONT_REACH = 1.1
TIGHTENED_AT_ONCE = 192  # Candidates whose bound is made closer at a time
# Candidates of one schedule that are simulated at a time, at most, and passes of theirs through their stages.
SCHEDULES_AT_ONCE, PASSES_AT_ONCE = 48, 16_384
PLACED_AT_ONCE = 8  # Candidates simulated, each where it is placed, before the bounds are looked at again
FRONTIER_HEAD = (
    4096  # Candidates that are sorted again after each step; the others wait, for sorting all would dominate
)
# A candidate whose per-stage bound is below this share of what must be beaten is simulated before its turn: a lower
# limit early spares the bounds of many others.
EAGER_SHARE = 0.99
MAX_SLOWDOWN = 4.0  # Step of a plan ranked by memory over that of the fastest one, at most


class CancelledError(Exception):
    """The caller asked the search to stop."""


@dataclass
class Tally:
    """What a search did."""

    evaluated: int = 0
    scored: int = 0
    feasible: int = 0
    simulated: int = 0
    complete: bool = True


class PlanSearch:
    """One search over the strategies of all frameworks."""

    def __init__(
        self,
        problem: Problem,
        *,
        top: int,
        objective: Objective = "time",
        prune: bool = True,
        safe: bool = False,
        most_simulated: int | None = None,
        breadth: Breadth | None = None,
        best: BestCandidates | None = None,
        budget_s: float | None = None,
        progress: Progress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ):
        self.problem, self.objective, self.prune, self.safe = problem, objective, prune, safe
        self.tally, self.best = Tally(), best or BestCandidates(top)
        self._deadline = None if budget_s is None else monotonic() + budget_s
        self._progress, self._cancelled = progress, cancelled
        self.spaces = [build_search_space(problem, framework, breadth, safe=safe) for framework in problem.frameworks]
        self._most_simulated, self._simulated_count = most_simulated, 0
        self.tables: list[BoundTable] = []
        self._current_table: dict[int, int] = {}
        """Of each framework: the number of its latest table."""
        self._rates_and_families: list[tuple[Floats, Ints]] = []
        """Of each table, for its nodes: what a second costs at least, and the family."""
        self.missing_bytes: list[tuple[int, Floats]] = []
        """By framework: bytes that each layout lacks at least; 0 or less: it fits."""

    def run(self) -> None:
        """Fill `best`."""
        if self.objective == "memory":
            self._run_memory()
            return
        space, layout, family, bound = self._rank_layouts()
        groups, frontier, start, end = OptionGroups.build_empty(), Frontier.build_empty(), 0, 0
        size = FIRST_BLOCK if self.prune else len(bound)
        while not self.is_out_of_budget():
            groups = groups.take(self.best.can_improve(groups.bound, groups.family))
            frontier = frontier.take(self.best.can_improve(frontier.bound, frontier.family))
            start += int(np.argmax(np.append(self.best.can_improve(bound[start:], family[start:]), True)))
            min_bound = float(bound[start]) if start < len(bound) else np.inf
            if min_bound == groups.min_bound == frontier.min_bound == np.inf:
                return
            if min_bound <= min(groups.min_bound, frontier.min_bound):
                if start >= end:
                    within_reach = int(np.searchsorted(bound, TABLE_REACH * min_bound, side="right"))
                    end = within_reach if self.prune else len(bound)
                    self._build_tables(space[start:end], layout[start:end])
                block = np.arange(start, min(start + size, end))
                start, size = start + len(block), min(2 * size, MAX_BLOCK)
                block = block[self.best.can_improve(bound[block], family[block])]
                groups = groups.merge(*map(self._prune_groups, self._expand_layouts(space[block], layout[block])))
                self._report_progress("scoring", start, len(bound))
            elif groups.min_bound <= frontier.min_bound:
                front_index = self._select_front(groups)
                front, groups = groups.take(front_index), groups.remove(front_index)
                if front.group[0] == ALL_GROUPS:
                    groups = groups.merge(*map(self._prune_groups, self._expand_nodes(front)))
                else:
                    frontier = frontier.merge(*self._score_groups(front))
            else:
                head, tail = frontier.take(slice(FRONTIER_HEAD)), frontier.take(slice(FRONTIER_HEAD, None))
                # Strictly above the first bound: with more equal bounds than the head holds, no candidate would be
                # below the limit and the loop would never end.
                tail_bound = max(tail.min_bound, np.nextafter(head.min_bound, np.inf))
                frontier = self._refine_frontier(head, min(min_bound, groups.min_bound, tail_bound)).merge(tail)
        self.tally.complete = False

    def _run_memory(self) -> None:
        """Fill `best` with what leaves most memory free: the smallest micro-batches, every option.

        Strategies much slower than the fastest of them are left out: nobody trades days for a GiB.
        """
        scored: list[tuple[BoundTable, Ints, Ints, Floats, Floats, Ints]] = []
        families = self._families
        for number, space in enumerate(self.spaces):
            self.tally.evaluated += space.count_strategies()
            for start in range(0, len(space.layout_table.layouts), MAX_BLOCK):
                table = space.build_bound_table(np.arange(len(space.layout_table.layouts))[start : start + MAX_BLOCK])
                if table is None or self.is_out_of_budget():
                    continue
                nodes = table.search_nodes
                smallest = np.full(len(space.layout_table.layouts), np.iinfo(np.int64).max)
                np.minimum.at(smallest, nodes.layout, nodes.micro_batch)
                node, group = table.pair_with_groups()
                is_smallest = nodes.micro_batch[node] == smallest[nodes.layout[node]]
                owner, option = table.expand_groups(node[is_smallest], group[is_smallest])
                over_bytes = table.find_over_bytes(owner, option)
                self.tally.scored += len(owner)
                fits = over_bytes <= 0
                self.tally.feasible += int(fits.sum())
                owner, option, over_bytes = owner[fits], option[fits], over_bytes[fits]
                bound_s = table.bound_analytic_s(nodes.take(owner), option)
                scored.append((table, owner, option, over_bytes, bound_s, families[number][nodes.layout[owner]]))
        fastest = min((float(bound_s.min()) for _, _, _, _, bound_s, _ in scored if len(bound_s)), default=np.inf)
        for table, owner, option, over_bytes, bound_s, family in scored:
            order = np.lexsort((bound_s, over_bytes, family))
            order = order[bound_s[order] <= MAX_SLOWDOWN * fastest]
            for at in order[np.unique(family[order], return_index=True)[1]].tolist():
                candidate = self.build_candidate(table, int(owner[at]), int(option[at]))
                self.best.add(compute_objective(candidate, self.objective), int(family[at]), candidate)

    def _simulate(self, frontier: Frontier, at: int) -> None:
        """Simulate one candidate of the frontier."""
        candidate = self.build_candidate(
            self.tables[int(frontier.table[at])], int(frontier.node[at]), int(frontier.option[at])
        )
        self.best.add(compute_objective(candidate, self.objective), int(frontier.family[at]), candidate)
        self._simulated_count += 1

    def _rank_layouts(self) -> tuple[Ints, Ints, Ints, Floats]:
        """Every layout of every framework that may fit, by its bound: framework, layout, family and bound."""
        rows = []
        for number, space in enumerate(self.spaces):
            if not len(space.layout_table.layouts):
                continue
            self.tally.evaluated += space.count_strategies()
            outline = space.build_outline()
            if outline is None:
                continue
            nodes = outline.search_nodes
            node, group = outline.pair_with_groups()
            size, layout_of = nodes.micro_batch[node], nodes.layout[node]
            min_max_size_2L = np.array([[np.iinfo(np.int64).max], [0]]).repeat(len(space.layout_table.layouts), axis=1)
            np.minimum.at(min_max_size_2L[0], layout_of, size)
            np.maximum.at(min_max_size_2L[1], layout_of, size)
            # The smallest micro-batch needs least memory: if that does not fit, nothing of the layout does.
            smallest = np.flatnonzero(size == min_max_size_2L[0, layout_of])
            missing_bytes_L = np.full(len(space.layout_table.layouts), np.inf)
            np.minimum.at(
                missing_bytes_L, layout_of[smallest], outline.find_least_over_bytes(node[smallest], group[smallest])
            )
            fits_L = missing_bytes_L <= 0
            self.missing_bytes.append((number, missing_bytes_L))
            # The largest micro-batch uses GPUs best, so its bound holds for all sizes; but uneven shares are in whole
            # micro-batches, of which large ones share out less well, so there every size is looked at.
            shares_unevenly = space.layout_table.micro_batch_shares.uneven[layout_of]
            is_largest = size == min_max_size_2L[1, layout_of]
            largest = np.flatnonzero((is_largest | shares_unevenly) & fits_L[layout_of])
            bound_L = np.full(len(space.layout_table.layouts), np.inf)
            np.minimum.at(bound_L, layout_of[largest], outline.bound_layouts_s(node[largest], group[largest]))
            is_bounded = np.isfinite(bound_L)
            bound_L[is_bounded] *= self._cost_rates[number][is_bounded]
            layout = np.flatnonzero(np.isfinite(bound_L))
            rows.append((np.full(len(layout), number), layout, self._families[number][layout], bound_L[layout]))
        if not rows:
            no_layouts = np.zeros(0, dtype=np.int64)
            return no_layouts, no_layouts, no_layouts, np.zeros(0)
        space_of, layout, family, bound = (np.concatenate(column) for column in zip(*rows, strict=True))
        order = np.lexsort((layout, space_of, bound))
        return space_of[order], layout[order], family[order], bound[order]

    def _build_tables(self, space: Ints, layout: Ints) -> None:
        """Build a table for each framework of some layouts: those that may be expanded soon."""
        for number in np.unique(space).tolist():
            table = self.spaces[number].build_bound_table(layout[space == number], include_dominated=not self.prune)
            if table is not None:
                self._current_table[number] = len(self.tables)
                self.tables.append(table)
                layout_of = table.search_nodes.layout
                self._rates_and_families.append(
                    (self._cost_rates[number][layout_of], self._families[number][layout_of])
                )

    @cached_property
    def _cost_rates(self) -> list[Floats]:
        """By framework: what a second of each layout costs at least."""
        return [bound_cost_per_second(self.problem, space.layout_table, self.objective) for space in self.spaces]

    @cached_property
    def _families(self) -> list[Ints]:
        """By framework: the family of each layout. The answer holds at most one plan of a family."""
        families = []
        zone_nodes = [zone.nodes for zone in self.problem.cluster.zones]
        zone_kinds = [zone_nodes.index(nodes) for nodes in zone_nodes]  # zones with the same GPUs are one kind
        for space in self.spaces:
            layout_table, number_family = space.layout_table, self.best.number_family
            if isinstance(self.best, ParetoFront):
                prices = bound_cost_per_second(self.problem, layout_table, "cost")
                families.append(np.array([number_family(round(float(x), 12)) for x in prices], dtype=np.int64))
                continue
            pattern_keys = []
            for pattern in layout_table.patterns:
                zones = tuple(sorted(zone_kinds[z] for z in set(pattern.zones.ravel().tolist())))
                pattern_keys.append((zones, bool(pattern.dp_zones.max() > 1), pattern.crosses))
            columns = (layout_table.pattern, layout_table.tp, layout_table.pp)
            degrees = zip(*(column.tolist() for column in columns), strict=True)
            keys = [(space.framework.name, *pattern_keys[pattern], tp, pp) for pattern, tp, pp in degrees]
            families.append(np.array([number_family(key) for key in keys], dtype=np.int64))
        self.best.close_families()
        return families

    def _expand_layouts(self, space: Ints, layout: Ints) -> Iterator[OptionGroups]:
        """The nodes of these layouts."""
        for framework in np.unique(space).tolist():
            if framework not in self._current_table:
                continue
            number = self._current_table[framework]
            table, (rate, family) = self.tables[number], self._rates_and_families[number]
            node = table.find_nodes(layout[space == framework])
            bound = table.bound_nodes_s(node) * rate[node] if self.prune else np.zeros(len(node))
            yield OptionGroups(bound, np.full(len(node), number), node, family[node], np.full(len(node), ALL_GROUPS))

    def _prune_groups(self, groups: OptionGroups) -> OptionGroups:
        """Those that could change the answer."""
        return groups.take(self.best.can_improve(groups.bound, groups.family))

    def _select_front(self, groups: OptionGroups) -> Ints:
        """The first entries of the first one's kind, nodes or option groups: as many as are looked at together."""
        is_node = groups.group == ALL_GROUPS
        if not self.prune:
            return np.flatnonzero(is_node == is_node[0])
        near_count = int(np.searchsorted(groups.bound, FRONT_REACH * groups.min_bound, side="right"))
        at = np.flatnonzero(is_node[:near_count] == is_node[0])[: NODES_AT_ONCE if is_node[0] else OPTIONS_AT_ONCE]
        if is_node[0]:
            return at
        sizes = np.zeros(len(at), dtype=np.int64)
        for number in np.unique(groups.table[at]).tolist():
            selected = at[groups.table[at] == number]
            sizes[groups.table[at] == number] = self.tables[number].count_options(
                groups.node[selected], groups.group[selected]
            )
        return at[: int(np.searchsorted(np.cumsum(sizes), OPTIONS_AT_ONCE)) + 1]

    def _expand_nodes(self, nodes: OptionGroups) -> Iterator[OptionGroups]:
        """The option groups of these nodes."""
        for number in np.unique(nodes.table).tolist():
            table, (rate, family) = self.tables[number], self._rates_and_families[number]
            node, group = table.pair_with_groups(nodes.node[nodes.table == number])
            bound = table.bound_groups_s(node, group) * rate[node] if self.prune else np.zeros(len(node))
            yield OptionGroups(bound, np.full(len(node), number), node, family[node], group)

    def _score_groups(self, groups: OptionGroups) -> Iterator[Frontier]:
        """All candidates of these groups that fit in memory."""
        for number in np.unique(groups.table).tolist():
            selected = np.flatnonzero(groups.table == number)
            table, (rate, family) = self.tables[number], self._rates_and_families[number]
            node, option = table.expand_groups(groups.node[selected], groups.group[selected])
            fits = table.find_over_bytes(node, option) <= 0
            self.tally.scored += len(node)
            self.tally.feasible += int(fits.sum())
            node, option = node[fits], option[fits]
            bound = table.bound_analytic_s(table.search_nodes.take(node), option) * rate[node]
            yield Frontier(
                bound, np.full(len(node), number), node, family[node], option, np.full(len(node), BoundLevel.ANALYTIC)
            )

    def _refine_frontier(self, frontier: Frontier, until: float) -> Frontier:
        """Simulate what could change the answer and has a bound below `until`; give back what may be needed later."""
        while not self.is_out_of_budget():
            frontier = frontier.take(self.best.can_improve(frontier.bound, frontier.family))
            near_count = int(np.searchsorted(frontier.bound, until))
            if not near_count:
                break
            level = int(frontier.level[0])
            if level < BoundLevel.SIMULATED:
                same_level = np.flatnonzero(frontier.level == level)
                if level == BoundLevel.ANALYTIC:
                    same_level = same_level[self._match_schedule(frontier, same_level, 2)][:TIGHTENED_AT_ONCE]
                    self._tighten(frontier, same_level, BoundTable.bound_per_stage_s)
                else:
                    batch = self._count_batch(frontier, same_level[0])
                    same_level = same_level[self._match_schedule(frontier, same_level, 3)][:batch]
                    self._tighten(frontier, same_level, BoundTable.bound_simulated_s)
                    self.tally.simulated += len(same_level)
                closest = int(same_level[np.argmin(frontier.bound[same_level])])
                if level == BoundLevel.PER_STAGE and self._is_promising(frontier, closest):
                    self._simulate(frontier, closest)
                    frontier.bound[closest] = np.inf
                frontier = frontier.sort_by_bound()
                continue
            # Only one candidate of a family is placed at a time: its result may rule the others of the family out.
            not_simulated = np.flatnonzero(frontier.level[:near_count] < BoundLevel.SIMULATED)
            ready = np.arange(not_simulated[0] if len(not_simulated) else near_count)[:PLACED_AT_ONCE]
            _, first_of_family = np.unique(frontier.family[ready], return_index=True)
            for at in ready[np.sort(first_of_family)].tolist():
                self._simulate(frontier, at)
            frontier = frontier.remove(ready[first_of_family])
            self._report_progress("simulating", self.tally.simulated, 0)
        return frontier

    def _match_schedule(self, frontier: Frontier, index: Ints, key_count: int) -> npt.NDArray[np.bool_]:
        """Which candidates have their schedule, stages and perhaps micro-batches in common with the first of them."""
        matches: npt.NDArray[np.bool_] = frontier.table[index] == frontier.table[index[0]]
        table = self.tables[int(frontier.table[index[0]])]
        same_table = np.flatnonzero(matches)
        schedule_keys = table.find_schedule_keys(table.search_nodes.take(frontier.node[index[same_table]]))[:key_count]
        matches[same_table] = (schedule_keys == schedule_keys[:, :1]).all(axis=0)
        return matches

    def _count_batch(self, frontier: Frontier, at: int) -> int:
        """How many schedules like that of a candidate are simulated at a time: fewer long ones."""
        table, node = self.tables[int(frontier.table[at])], int(frontier.node[at])
        virtual_stages = table.schedules[int(table.search_nodes.schedule[node])].virtual_stages
        stages = int(table.layout_table.pp[table.search_nodes.layout[node]])
        passes = stages * virtual_stages * int(table.search_nodes.micro_batches[node])
        return max(1, min(SCHEDULES_AT_ONCE, PASSES_AT_ONCE // passes))

    def _is_promising(self, frontier: Frontier, at: int) -> bool:
        """A candidate is likely to lower what others must beat."""
        return bool(frontier.bound[at] < EAGER_SHARE * self.best.limits[frontier.family[at]])

    def _tighten(
        self, frontier: Frontier, index: Ints, bound_s: Callable[[BoundTable, SearchNodes, Ints], Floats]
    ) -> None:
        """Give some candidates a closer bound."""
        for number in np.unique(frontier.table[index]).tolist():
            selected = index[frontier.table[index] == number]
            table, (rate, _) = self.tables[number], self._rates_and_families[number]
            node = frontier.node[selected]
            closer = bound_s(table, table.search_nodes.take(node), frontier.option[selected]) * rate[node]
            # Bounds of different levels are rounded differently: the higher one is the better bound.
            frontier.bound[selected] = np.maximum(frontier.bound[selected], closer)
            frontier.level[selected] += 1

    def find_smallest_memory(self, space: int, layout: int) -> Candidate:
        """The candidate of a layout that needs least memory."""
        table = self.spaces[space].build_bound_table(np.array([layout]))
        assert table is not None
        node, group = table.pair_with_groups()
        owner, option = table.expand_groups(node, group)
        at = int(np.argmin(table.find_over_bytes(owner, option)))
        return self.build_candidate(table, int(owner[at]), int(option[at]))

    def build_candidate(self, table: BoundTable, node: int, option: int) -> Candidate:
        """The candidate of a table's node and option."""
        nodes = table.search_nodes
        traits, layout = int(nodes.traits[node]), int(nodes.layout[node])
        total = self.problem.job.global_batch // int(nodes.micro_batch[node])
        shares = table.layout_table.micro_batch_shares
        is_even = nodes.shares[node] == EVEN_SHARES
        replica_shares = None if is_even else shares.list_replica_shares(layout, total)
        return Candidate(
            problem=self.problem,
            bound_table=table,
            layout=table.layout_table.layouts[layout],
            schedule=table.schedules[int(nodes.schedule[node])],
            micro_batch=int(nodes.micro_batch[node]),
            micro_batches=int(nodes.micro_batches[node]),
            replica_micro_batches=replica_shares,
            options=table.options[traits].build_fields(option - table.find_option_range(traits)[0]),
        )

    def is_out_of_budget(self) -> bool:
        """The budget is used up and there is something to show for it; a cancelled search ends here."""
        if self._cancelled is not None and self._cancelled():
            raise CancelledError
        enough_simulated = self._most_simulated is not None and self._simulated_count >= self._most_simulated
        past_deadline = self._deadline is not None and monotonic() > self._deadline and bool(self.best.candidates)
        if enough_simulated or past_deadline:
            self.tally.complete = False
        return enough_simulated or past_deadline

    def _report_progress(self, activity: str, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(activity, done, total)


__all__ = ["CancelledError", "PlanSearch", "Tally"]
