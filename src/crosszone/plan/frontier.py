"""Frontier: nodes, option groups and candidates that wait for a closer look, in order of their bounds.

`BestCandidates` holds the best candidate of each family found so far; its limits decide what still can improve the
answer. `ParetoFront` does the same for time against price.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from crosszone.plan.candidates import Candidate

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
ALL_GROUPS = -1  # In place of an option group: all groups of the node, not expanded yet


class BoundLevel(IntEnum):
    """How close a bound on the step time is; each level costs more than the one before."""

    ANALYTIC = 0
    """By formula, over runs of equal stages."""
    PER_STAGE = 1
    """By formula, stage by stage."""
    SIMULATED = 2
    """The schedule simulated, with links at least as good as the real ones."""


@dataclass
class BoundQueue:
    """Entries waiting for a closer look, in order of their bounds."""

    bound: Floats
    table: Ints
    node: Ints
    family: Ints

    @classmethod
    def build_empty(cls) -> Self:
        """No entries."""
        no_entries = np.zeros(0, dtype=np.int64)
        return cls(np.zeros(0), *(no_entries for _ in fields(cls)[1:]))

    def __len__(self) -> int:
        return len(self.bound)

    @property
    def min_bound(self) -> float:
        """The first bound; inf: none is left."""
        return float(self.bound[0]) if len(self.bound) else np.inf

    def take(self, index: Any) -> Self:
        """Some of them."""
        return type(self)(*(getattr(self, f.name)[index] for f in fields(self)))

    def merge(self, *queues: Self) -> Self:
        """These and others, sorted by bound."""
        all_queues = (self, *queues)
        merged = type(self)(*(np.concatenate([getattr(part, f.name) for part in all_queues]) for f in fields(self)))
        return merged.sort_by_bound()

    def sort_by_bound(self) -> Self:
        """Sorted by bound; a stable sort, so that ties and with them the answer do not depend on chance."""
        return self.take(np.argsort(self.bound, kind="stable"))

    def remove(self, index: Ints) -> Self:
        """All but some."""
        remaining = np.ones(len(self), dtype=bool)
        remaining[index] = False
        return self.take(remaining)


@dataclass
class OptionGroups(BoundQueue):
    """Nodes, and then groups of their options, with a bound that holds for every option."""

    group: Ints
    """Place of the group among those of the node; `ALL_GROUPS`: the node as a whole."""


@dataclass
class Frontier(BoundQueue):
    """Scored candidates that fit in memory, waiting to be simulated."""

    option: Ints
    level: Ints
    """How close the bound is, a `BoundLevel`."""


# Share of the best value that another one must be below: smaller gains are rounding, and equal strategies would all be
# simulated one after the other.
BETTER = 1.0 - 1e-7


class BestCandidates:
    """The best candidate of each family, and of each class of families."""

    def __init__(self, top: int):
        self.top = top
        self.candidates: dict[int, Candidate] = {}
        self._family_numbers: dict[Hashable, int] = {}
        self.values = np.zeros(0)
        """Best value of each family; inf: none yet."""

    def number_family(self, family: Hashable) -> int:
        """Number of a family, given to it when it is first seen."""
        return self._family_numbers.setdefault(family, len(self._family_numbers))

    def close_families(self) -> None:
        """Start the values, once all families are numbered."""
        self.values = np.full(len(self._family_numbers), np.inf)

    @property
    def threshold(self) -> float:
        """What a new family must beat to be among the top."""
        if len(self.values) < self.top:
            return np.inf
        return float(np.partition(self.values, self.top - 1)[self.top - 1])

    @property
    def limits(self) -> Floats:
        """What a candidate of each family must be below to change the answer."""
        return np.minimum(self.values, self.threshold)

    def can_improve(self, bound: Floats, family: Ints) -> npt.NDArray[np.bool_]:
        """Which candidates of these bounds could change the answer."""
        return np.asarray(bound < BETTER * self.limits[family])

    def add(self, value: float, family: int, candidate: Candidate) -> None:
        """Take a simulated candidate in where it is the best of its family."""
        best = self.candidates.get(family)
        tied = best is not None and value == self.values[family] and candidate.step_s < best.step_s
        if value < self.values[family] or tied:
            self.values[family] = value
            self.candidates[family] = candidate

    def rank_families(self) -> list[tuple[float, Candidate]]:
        """The families that have a candidate, best first."""
        order = [n for n in np.argsort(self.values, kind="stable").tolist() if n in self.candidates]
        return [(float(self.values[n]), self.candidates[n]) for n in order]


class ParetoFront(BestCandidates):
    """The fastest candidate of each price of GPUs; one is of interest if no cheaper or equally dear one is as fast."""

    @property
    def limits(self) -> Floats:
        """The fastest at this price or below it."""
        prices = np.array(list(self._family_numbers), dtype=float)
        order = np.argsort(prices, kind="stable")
        fastest = np.empty_like(self.values)
        fastest[order] = np.minimum.accumulate(self.values[order])
        return fastest
