"""Search: the best strategies of all frameworks, by bounds for all of them and the simulation for few.

Every shape is first scored with the fastest options it could have. From there the entry with the least bound is always
looked at next, and more closely: a shape unfolds into cores (schedule, micro-batch), a core into sorts of options, a
sort into its strategies that fit in memory, a strategy gets closer bounds, the last of them its schedule simulated, and
is then placed and simulated as a prediction would be. It ends when no bound is below what must be beaten, so that every
strategy that is not simulated is known to be no better.
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
from crosszone.plan.frontier import ALL_GROUPS, CLOSE, LOOSE, NEAR, BestCandidates, Frontier, OptionGroups, ParetoFront
from crosszone.plan.layout_table import EVEN_SHARES
from crosszone.plan.layouts import Breadth
from crosszone.plan.plan import Objective
from crosszone.plan.problem import Problem
from crosszone.plan.search_nodes import SearchNodes
from crosszone.plan.search_space import build_search_space

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Progress = Callable[[str, int, int], None]
FIRST_BLOCK, MOST_BLOCK = 64, 4096  # Shapes unfolded at a time: few at first, for the best are among them
REACH = 1.3  # Bound of the last shape that is made ready for unfolding with others, over that of the first
CORES, MEMBERS = 2048, 2048  # Cores whose sorts of options are looked at, and options scored, at a time
AHEAD = 1.1  # These may have bounds so much above the first one
TIGHTENED = 192  # Candidates whose bound is made closer at a time
# Candidates of one pipe whose schedule is simulated at a time, at most, and passes of theirs through their stages.
ALIKE, OPERATIONS = 48, 16_384
PLACED = 8  # Candidates simulated, each where it is placed, before the bounds are looked at again
TOGETHER = 4096  # Candidates that are put in order again and again; the others wait
# A candidate whose close bound is so much below what must be beaten is simulated before its turn.
EAGER = 0.99
MOST_SLOWER = 4.0  # Step of a plan ranked by memory over that of the fastest one, at most


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


class Search:
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
        self._end = None if budget_s is None else monotonic() + budget_s
        self._progress, self._cancelled = progress, cancelled
        self.spaces = [build_search_space(problem, framework, breadth, safe=safe) for framework in problem.frameworks]
        self._most_simulated, self._placed = most_simulated, 0
        self.grids: list[BoundTable] = []
        self._laid: dict[int, int] = {}
        """The grid of each framework that was made last."""
        self._cores: list[tuple[Floats, Ints]] = []
        """Of each grid's cores: what a second costs at least, and the family."""
        self.lacks: list[tuple[int, Floats]] = []
        """Bytes that the leanest strategy of each shape lacks, by framework."""

    def run(self) -> None:
        """Fill `best`."""
        if self.objective == "memory":
            self._run_memory()
            return
        space, shape, family, bound = self._outlined()
        sorts, pool, start, end = OptionGroups.empty(), Frontier.empty(), 0, 0
        size = FIRST_BLOCK if self.prune else len(bound)
        while not self.spent():
            sorts = sorts.taken(self.best.wants(sorts.bound, sorts.family))
            pool = pool.taken(self.best.wants(pool.bound, pool.family))
            start += int(np.argmax(np.append(self.best.wants(bound[start:], family[start:]), True)))
            least = float(bound[start]) if start < len(bound) else np.inf
            if least == sorts.least == pool.least == np.inf:
                return
            if least <= min(sorts.least, pool.least):
                if start >= end:
                    end = int(np.searchsorted(bound, REACH * least, side="right")) if self.prune else len(bound)
                    self._lay(space[start:end], shape[start:end])
                here = np.arange(start, min(start + size, end))
                start, size = start + len(here), min(2 * size, MOST_BLOCK)
                here = here[self.best.wants(bound[here], family[here])]
                sorts = sorts.joined(*map(self._wanted, self._unfolded(space[here], shape[here])))
                self._tell("scoring", start, len(bound))
            elif sorts.least <= pool.least:
                at = self._front(sorts)
                front, sorts = sorts.taken(at), sorts.without(at)
                if front.leader[0] == ALL_GROUPS:
                    sorts = sorts.joined(*map(self._wanted, self._sorted(front)))
                else:
                    pool = pool.joined(*self._scored(front))
            else:
                near, rest = pool.taken(slice(TOGETHER)), pool.taken(slice(TOGETHER, None))
                others = max(rest.least, np.nextafter(near.least, np.inf))  # the first one is looked at, whatever waits
                pool = self._simulated(near, min(least, sorts.least, others)).joined(rest)
        self.tally.complete = False

    def _run_memory(self) -> None:
        """Fill `best` with what leaves most memory free: the smallest micro-batches, every option.

        Strategies much slower than the fastest of them are left out: nobody trades days for a GiB.
        """
        found: list[tuple[BoundTable, Ints, Ints, Floats, Floats, Ints]] = []
        families = self._families
        for number, space in enumerate(self.spaces):
            self.tally.evaluated += space.strategies()
            for start in range(0, len(space.layout_table.layouts), MOST_BLOCK):
                grid = space.scores(np.arange(len(space.layout_table.layouts))[start : start + MOST_BLOCK])
                if grid is None or self.spent():
                    continue
                cores = grid.cores
                smallest = np.full(len(space.layout_table.layouts), np.iinfo(np.int64).max)
                np.minimum.at(smallest, cores.layout, cores.micro_batch)
                core, leader = grid.leads()
                kept = cores.micro_batch[core] == smallest[cores.layout[core]]
                owner, option = grid.members(core[kept], leader[kept])
                over = grid.memory_over(owner, option)
                self.tally.scored += len(owner)
                fits = over <= 0
                self.tally.feasible += int(fits.sum())
                owner, option, over = owner[fits], option[fits], over[fits]
                least = grid.least_s(cores.taken(owner), option)
                found.append((grid, owner, option, over, least, families[number][cores.layout[owner]]))
        fastest = min((float(least.min()) for _, _, _, _, least, _ in found if len(least)), default=np.inf)
        for grid, owner, option, over, least, family in found:
            order = np.lexsort((least, over, family))
            order = order[least[order] <= MOST_SLOWER * fastest]
            for at in order[np.unique(family[order], return_index=True)[1]].tolist():
                one = self.candidate(grid, int(owner[at]), int(option[at]))
                self.best.add(compute_objective(one, self.objective), int(family[at]), one)

    def _simulate(self, pool: Frontier, at: int) -> None:
        """Simulate one candidate of a pool."""
        one = self.candidate(self.grids[int(pool.grid[at])], int(pool.core[at]), int(pool.option[at]))
        self.best.add(compute_objective(one, self.objective), int(pool.family[at]), one)
        self._placed += 1

    def _outlined(self) -> tuple[Ints, Ints, Ints, Floats]:
        """Every shape of every framework that may fit, in order of what it must take at least."""
        rows = []
        for number, space in enumerate(self.spaces):
            if not len(space.layout_table.layouts):
                continue
            self.tally.evaluated += space.strategies()
            outline = space.outline()
            if outline is None:
                continue
            cores = outline.cores
            core, leader = outline.leads()
            size, owner = cores.micro_batch[core], cores.layout[core]
            ends = np.array([[np.iinfo(np.int64).max], [0]]).repeat(len(space.layout_table.layouts), axis=1)
            np.minimum.at(ends[0], owner, size)
            np.maximum.at(ends[1], owner, size)
            lean = np.flatnonzero(size == ends[0, owner])  # least memory: the smallest micro-batch
            lacks = np.full(len(space.layout_table.layouts), np.inf)
            np.minimum.at(lacks, owner[lean], outline.lean_over(core[lean], leader[lean]))
            fits = lacks <= 0
            self.lacks.append((number, lacks))
            shared = space.layout_table.micro_batch_shares.uneven[
                owner
            ]  # by whole micro-batches: larger ones share out less well
            fast = np.flatnonzero(((size == ends[1, owner]) | shared) & fits[owner])  # fullest use: the largest
            least = np.full(len(space.layout_table.layouts), np.inf)
            np.minimum.at(least, owner[fast], outline.shape_s(core[fast], leader[fast]))
            known = np.isfinite(least)
            least[known] *= self._rates[number][known]
            shape = np.flatnonzero(np.isfinite(least))
            rows.append((np.full(len(shape), number), shape, self._families[number][shape], least[shape]))
        if not rows:
            none = np.zeros(0, dtype=np.int64)
            return none, none, none, np.zeros(0)
        space_of, shape, family, bound = (np.concatenate(column) for column in zip(*rows, strict=True))
        order = np.lexsort((shape, space_of, bound))
        return space_of[order], shape[order], family[order], bound[order]

    def _lay(self, space: Ints, shape: Ints) -> None:
        """Make the grids of some shapes: those that may be unfolded soon."""
        for number in np.unique(space).tolist():
            grid = self.spaces[number].scores(shape[space == number], every=not self.prune)
            if grid is not None:
                self._laid[number] = len(self.grids)
                self.grids.append(grid)
                self._cores.append((self._rates[number][grid.cores.layout], self._families[number][grid.cores.layout]))

    @cached_property
    def _rates(self) -> list[Floats]:
        """What a second of each shape of each framework costs at least."""
        return [bound_cost_per_second(self.problem, space.layout_table, self.objective) for space in self.spaces]

    @cached_property
    def _families(self) -> list[Ints]:
        """Family of each shape of each framework."""
        found = []
        own = [zone.nodes for zone in self.problem.cluster.zones]
        kinds = [own.index(nodes) for nodes in own]  # zones with the same GPUs are one kind
        for space in self.spaces:
            land, number = space.layout_table, self.best.number
            if isinstance(self.best, ParetoFront):
                prices = bound_cost_per_second(self.problem, land, "cost")
                found.append(np.array([number(round(float(x), 12)) for x in prices], dtype=np.int64))
                continue
            zones = [tuple(sorted(kinds[z] for z in set(frame.zones.ravel().tolist()))) for frame in land.patterns]
            across = [bool(frame.dp_zones.max() > 1) for frame in land.patterns]
            frames = list(zip(zones, across, (frame.crosses for frame in land.patterns), strict=True))
            degrees = zip(land.pattern.tolist(), land.tp.tolist(), land.pp.tolist(), strict=True)
            keys = [(space.framework.name, *frames[frame], tp, pp) for frame, tp, pp in degrees]
            found.append(np.array([number(key) for key in keys], dtype=np.int64))
        self.best.ready()
        return found

    def _unfolded(self, space: Ints, shape: Ints) -> Iterator[OptionGroups]:
        """The cores of these shapes."""
        for framework in np.unique(space).tolist():
            if framework not in self._laid:
                continue
            number = self._laid[framework]
            grid, (rate, family) = self.grids[number], self._cores[number]
            core = grid.cores_of(shape[space == framework])
            bound = grid.core_s(core) * rate[core] if self.prune else np.zeros(len(core))
            yield OptionGroups(bound, np.full(len(core), number), core, family[core], np.full(len(core), ALL_GROUPS))

    def _wanted(self, sorts: OptionGroups) -> OptionGroups:
        """Those that could change the answer."""
        return sorts.taken(self.best.wants(sorts.bound, sorts.family))

    def _front(self, sorts: OptionGroups) -> Ints:
        """The first entries of the first one's kind, cores or sorts of options: so many as are looked at together."""
        whole = sorts.leader == ALL_GROUPS
        if not self.prune:
            return np.flatnonzero(whole == whole[0])
        near = int(np.searchsorted(sorts.bound, AHEAD * sorts.least, side="right"))
        at = np.flatnonzero(whole[:near] == whole[0])[: CORES if whole[0] else MEMBERS]
        if whole[0]:
            return at
        sizes = np.zeros(len(at), dtype=np.int64)
        for number in np.unique(sorts.grid[at]).tolist():
            here = at[sorts.grid[at] == number]
            sizes[sorts.grid[at] == number] = self.grids[number].sizes(sorts.core[here], sorts.leader[here])
        return at[: int(np.searchsorted(np.cumsum(sizes), MEMBERS)) + 1]

    def _sorted(self, cores: OptionGroups) -> Iterator[OptionGroups]:
        """The sorts of options of these cores."""
        for number in np.unique(cores.grid).tolist():
            grid, (rate, family) = self.grids[number], self._cores[number]
            core, leader = grid.leads(cores.core[cores.grid == number])
            bound = grid.lead_s(core, leader) * rate[core] if self.prune else np.zeros(len(core))
            yield OptionGroups(bound, np.full(len(core), number), core, family[core], leader)

    def _scored(self, sorts: OptionGroups) -> Iterator[Frontier]:
        """All strategies of these sorts that fit."""
        for number in np.unique(sorts.grid).tolist():
            here = np.flatnonzero(sorts.grid == number)
            grid, (rate, family) = self.grids[number], self._cores[number]
            core, option = grid.members(sorts.core[here], sorts.leader[here])
            fits = grid.memory_over(core, option) <= 0
            self.tally.scored += len(core)
            self.tally.feasible += int(fits.sum())
            core, option = core[fits], option[fits]
            bound = grid.least_s(grid.cores.taken(core), option) * rate[core]
            yield Frontier(bound, np.full(len(core), number), core, family[core], option, np.full(len(core), LOOSE))

    def _simulated(self, pool: Frontier, until: float) -> Frontier:
        """Simulate what could change the answer and has a bound below `until`; give back what may be needed later."""
        while not self.spent():
            pool = pool.taken(self.best.wants(pool.bound, pool.family))
            near = int(np.searchsorted(pool.bound, until))
            if not near:
                break
            known = int(pool.known[0])
            if known < NEAR:
                first = np.flatnonzero(pool.known == known)
                if known == LOOSE:
                    first = first[self._like(pool, first, 2)][:TIGHTENED]
                    self._tighten(pool, first, BoundTable.tight_s)
                else:
                    first = first[self._like(pool, first, 3)][: self._alike(pool, first[0])]
                    self._tighten(pool, first, BoundTable.near_s)
                    self.tally.simulated += len(first)
                close = int(first[np.argmin(pool.bound[first])])
                if known == CLOSE and self._promises(pool, close):
                    self._simulate(pool, close)
                    pool.bound[close] = np.inf
                pool = pool.ordered()
                continue
            vague = np.flatnonzero(pool.known[:near] < NEAR)
            ready = np.arange(vague[0] if len(vague) else near)[:PLACED]
            _, one_each = np.unique(pool.family[ready], return_index=True)
            for at in ready[np.sort(one_each)].tolist():
                self._simulate(pool, at)
            pool = pool.without(ready[one_each])
            self._tell("simulating", self.tally.simulated, 0)
        return pool

    def _like(self, pool: Frontier, at: Ints, keys: int) -> npt.NDArray[np.bool_]:
        """Which candidates have their schedule, stages and perhaps micro-batches in common with the first of them."""
        found: npt.NDArray[np.bool_] = pool.grid[at] == pool.grid[at[0]]
        grid = self.grids[int(pool.grid[at[0]])]
        here = np.flatnonzero(found)
        told = grid.schedules(grid.cores.taken(pool.core[at[here]]))[:keys]
        found[here] = (told == told[:, :1]).all(axis=0)
        return found

    def _alike(self, pool: Frontier, at: int) -> int:
        """How many schedules like that of a candidate are simulated at a time: fewer long ones."""
        grid, core = self.grids[int(pool.grid[at])], int(pool.core[at])
        chunks = grid.pipes[int(grid.cores.pipe[core])].virtual_stages
        parts = int(grid.layout_table.pp[grid.cores.layout[core]]) * chunks * int(grid.cores.micro_batches[core])
        return max(1, min(ALIKE, OPERATIONS // parts))

    def _promises(self, pool: Frontier, at: int) -> bool:
        """A candidate is likely to lower what others must beat."""
        return bool(pool.bound[at] < EAGER * self.best.limits[pool.family[at]])

    def _tighten(self, pool: Frontier, at: Ints, bound_s: Callable[[BoundTable, SearchNodes, Ints], Floats]) -> None:
        """Give some candidates a closer bound."""
        for number in np.unique(pool.grid[at]).tolist():
            here = at[pool.grid[at] == number]
            grid, (rate, _) = self.grids[number], self._cores[number]
            close = bound_s(grid, grid.cores.taken(pool.core[here]), pool.option[here]) * rate[pool.core[here]]
            pool.bound[here] = np.maximum(pool.bound[here], close)
            pool.known[here] += 1

    def leanest(self, space: int, shape: int) -> Candidate:
        """The strategy of a shape that needs least memory."""
        grid = self.spaces[space].scores(np.array([shape]))
        assert grid is not None
        core, leader = grid.leads()
        owner, option = grid.members(core, leader)
        at = int(np.argmin(grid.memory_over(owner, option)))
        return self.candidate(grid, int(owner[at]), int(option[at]))

    def candidate(self, grid: BoundTable, core: int, option: int) -> Candidate:
        """One strategy of a grid."""
        cores = grid.cores
        traits, shape = int(cores.traits[core]), int(cores.layout[core])
        total = self.problem.job.global_batch // int(cores.micro_batch[core])
        uneven = (
            None
            if cores.dealt[core] == EVEN_SHARES
            else grid.layout_table.micro_batch_shares.list_replica_shares(shape, total)
        )
        return Candidate(
            problem=self.problem,
            scores=grid,
            layout=grid.layout_table.layouts[shape],
            pipe=grid.pipes[int(cores.pipe[core])],
            micro_batch=int(cores.micro_batch[core]),
            micro_batches=int(cores.micro_batches[core]),
            replica_micro_batches=uneven,
            options=grid.options[traits].fields(option - grid.option_range(traits)[0]),
        )

    def spent(self) -> bool:
        """The budget is used up and there is something to show for it; a cancelled search ends here."""
        if self._cancelled is not None and self._cancelled():
            raise CancelledError
        many = self._most_simulated is not None and self._placed >= self._most_simulated
        late = self._end is not None and monotonic() > self._end and bool(self.best.candidates)
        if many or late:
            self.tally.complete = False
        return many or late

    def _tell(self, what: str, done: int, of: int) -> None:
        if self._progress is not None:
            self._progress(what, done, of)


__all__ = ["CancelledError", "Search", "Tally"]
