"""Deals: how the chains of a shape share out the micro-batches of a step by their speed. [W5]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from crosszone.plan.balance import balanced_micro_batches
from crosszone.plan.shapes import Shape, chain_times
from crosszone.plan.tracks import Frame

EVEN = -1
"""In place of a deal: all chains take equally many, or there is no other way."""


class Classes(NamedTuple):
    """Chains of a shape by the time they take for a micro-batch."""

    of_chain: list[int]
    replicas: list[int]
    micro_batch_s: list[float]


class Deals:
    """The deals of shapes whose chains take different numbers of micro-batches, numbered as they are asked for."""

    def __init__(self, shapes: Sequence[Shape], frames: Sequence[Frame], speeds: Sequence[float]):
        """`frames`: that of each shape."""
        self._shapes, self._frames = shapes, frames
        uneven = [number for number, shape in enumerate(shapes) if shape.uneven]
        self._classes = {number: _classes_of(shapes[number], speeds) for number in uneven}
        self._known: dict[tuple[int, int], int] = {}
        self.kept: list[tuple[int, ...]] = []
        """Of each deal, the micro-batches of a replica of each chain that is kept."""
        self.uneven = np.zeros(len(shapes), dtype=bool)
        """Chains take different numbers of micro-batches."""
        self.uneven[uneven] = True
        self.torn = np.zeros(len(shapes), dtype=bool)
        """Of these: replicas of a stage in one zone take different numbers of them."""
        for number, classes in self._classes.items():
            self.torn[number] = frames[number].tears(classes.of_chain)

    def number(self, shape: int, total: int) -> int:
        """Number of the deal of so many micro-batches among the chains of a shape; `EVEN`: there is none."""
        if (shape, total) not in self._known:
            found = self._balanced(shape, total)
            self._known[shape, total] = EVEN if found is None else len(self.kept)
            if found is not None:
                self.kept.append(tuple(found[chain] for chain in self._frames[shape].kept.tolist()))
        return self._known[shape, total]

    def of_replicas(self, shape: int, total: int) -> tuple[int, ...]:
        """Micro-batches of each replica of a shape whose chains share out so many."""
        found = self._balanced(shape, total)
        assert found is not None
        return tuple(m for m, n in zip(found, self._shapes[shape].layout.shares, strict=True) for _ in range(n))

    def tracks(self, dealt: npt.NDArray[np.int64], chain: npt.NDArray[np.int64]) -> list[int]:
        """Micro-batches of tracks, given their deal and the place of their chain among those kept."""
        return [self.kept[deal][at] for deal, at in zip(dealt.tolist(), chain.tolist(), strict=True)]

    def _balanced(self, shape: int, total: int) -> list[int] | None:
        """Micro-batches of a replica of each chain."""
        classes = self._classes[shape]
        found = balanced_micro_batches(total, classes.replicas, classes.micro_batch_s)
        return None if found is None else [found[one] for one in classes.of_chain]


def _classes_of(shape: Shape, speeds: Sequence[float]) -> Classes:
    each = chain_times(shape.layout, shape.layers, speeds)
    times = sorted(set(each))
    of_chain = [times.index(one) for one in each]
    shares = shape.layout.shares
    replicas = [sum(n for n, own in zip(shares, of_chain, strict=True) if own == one) for one in range(len(times))]
    return Classes(of_chain, replicas, times)
