"""Queues: cores, sorts of options and strategies that wait for a closer look, in order of their bounds.

Best: the best candidate of each family, as a search finds them.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from crosszone.plan.candidates import Candidate

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
ALL_GROUPS = -1  # In place of a sort of options: all of them
# Bounds: of runs of stages, of every stage, and the schedule simulated with links at least as good as they are.
LOOSE, CLOSE, NEAR = 0, 1, 2


@dataclass
class BoundQueue:
    """Entries waiting for a closer look, in order of their bounds."""

    bound: Floats
    grid: Ints
    core: Ints
    family: Ints

    @classmethod
    def empty(cls) -> Self:
        """No entries."""
        none = np.zeros(0, dtype=np.int64)
        return cls(np.zeros(0), *(none for _ in fields(cls)[1:]))

    def __len__(self) -> int:
        return len(self.bound)

    @property
    def least(self) -> float:
        """The first bound; inf: none is left."""
        return float(self.bound[0]) if len(self.bound) else np.inf

    def taken(self, at: Any) -> Self:
        """Some of them."""
        return type(self)(*(getattr(self, f.name)[at] for f in fields(self)))

    def joined(self, *others: Self) -> Self:
        """These and others, in order."""
        parts = (self, *others)
        found = type(self)(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(self)))
        return found.ordered()

    def ordered(self) -> Self:
        """In order of the bounds; those with the same as they came."""
        return self.taken(np.argsort(self.bound, kind="stable"))

    def without(self, at: Ints) -> Self:
        """All but some."""
        left = np.ones(len(self), dtype=bool)
        left[at] = False
        return self.taken(left)


@dataclass
class OptionGroups(BoundQueue):
    """Cores, and then sorts of their options, with the least value of any option."""

    leader: Ints
    """Place of the sort; `WHOLE`: all sorts of the core."""


@dataclass
class Frontier(BoundQueue):
    """Scored strategies that fit, waiting to be simulated."""

    option: Ints
    known: Ints
    """How close the bound is: `LOOSE`, `CLOSE` or `NEAR`."""


BETTER = 1.0 - 1e-7  # Share of the best value that another one must be below: the rest is rounding


class BestCandidates:
    """The best candidate of each family, and of each class of families."""

    def __init__(self, top: int):
        self.top = top
        self.candidates: dict[int, Candidate] = {}
        self._numbers: dict[Hashable, int] = {}
        self.value = np.zeros(0)
        """Best value of each family; inf: none yet."""

    def number(self, family: Hashable) -> int:
        """Number of a family, given to it when it is first seen."""
        return self._numbers.setdefault(family, len(self._numbers))

    def ready(self) -> None:
        """All families are known."""
        self.value = np.full(len(self._numbers), np.inf)

    @property
    def threshold(self) -> float:
        """What a new family must beat to be among the top."""
        if len(self.value) < self.top:
            return np.inf
        return float(np.partition(self.value, self.top - 1)[self.top - 1])

    @property
    def limits(self) -> Floats:
        """What a candidate of each family must be below to change the answer."""
        return np.minimum(self.value, self.threshold)

    def wants(self, bound: Floats, family: Ints) -> npt.NDArray[np.bool_]:
        """Which candidates of these bounds could change the answer."""
        return np.asarray(bound < BETTER * self.limits[family])

    def add(self, value: float, family: int, candidate: Candidate) -> None:
        """Take a simulated candidate in where it is the best of its family."""
        known = self.candidates.get(family)
        tied = known is not None and value == self.value[family] and candidate.step_s < known.step_s
        if value < self.value[family] or tied:
            self.value[family] = value
            self.candidates[family] = candidate

    def ranked(self) -> list[tuple[float, Candidate]]:
        """The families that have a candidate, best first."""
        order = [n for n in np.argsort(self.value, kind="stable").tolist() if n in self.candidates]
        return [(float(self.value[n]), self.candidates[n]) for n in order]


class ParetoFront(BestCandidates):
    """The fastest candidate of each price of GPUs; one is of interest if no cheaper or equally dear one is as fast."""

    @property
    def limits(self) -> Floats:
        """The fastest at this price or below it."""
        prices = np.array(list(self._numbers), dtype=float)
        order = np.argsort(prices, kind="stable")
        found = np.empty_like(self.value)
        found[order] = np.minimum.accumulate(self.value[order])
        return found
