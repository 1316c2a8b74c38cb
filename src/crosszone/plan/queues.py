"""Queues: cores, sorts of options and strategies that wait for a closer look, in order of their bounds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
WHOLE = -1
"""In place of a sort of options: all of them."""
LOOSE, CLOSE, NEAR = 0, 1, 2
"""Bounds: of runs of stages, of every stage, and the schedule simulated with links at least as good as they are."""


@dataclass
class Queue:
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
class Sorts(Queue):
    """Cores, and then sorts of their options, with the least value of any option."""

    leader: Ints
    """Place of the sort; `WHOLE`: all sorts of the core."""


@dataclass
class Pool(Queue):
    """Scored strategies that fit, waiting to be simulated."""

    option: Ints
    known: Ints
    """How close the bound is: `LOOSE`, `CLOSE` or `NEAR`."""
