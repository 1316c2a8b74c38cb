"""Flips: where what crosses zones changes: lines between the cells of two axes, places on one axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from crosszone.analyse.axis import Axis
from crosszone.analyse.cell import REFUSED, Cell
from crosszone.inputs.value import Value

CLOSE = 1e-3
"""Share of the way between two cells of one axis to which a flip is found."""
MOST_HALVINGS = 40
"""Re-plans between two cells: more than two flips there are not all found."""

Spot = tuple[float, float]


class Flip(Value):
    """A piece of the line on which the best choice changes; of one axis, a place."""

    start: tuple[float, float | None]
    """x and y of its one end; on one axis, the last value at which the first choice is best."""
    end: tuple[float, float | None]
    """The other end; on one axis, the first value at which the second choice is."""
    one: str
    """What crosses zones on the side of smaller values; `refused`: no plan."""
    other: str
    """What crosses zones on the side of larger values."""


def lines(x: Axis, y: Axis, cells: Sequence[Cell]) -> Iterator[Flip]:
    """Pieces of line between neighbouring cells of different kind; cells row by row, x quickest. [A11]

    Between two cells it lies where the lead of one kind of plan over the other is nothing, both being known on both
    sides; else half-way. Along the other axis it reaches half-way to the next cells.
    """
    across, along = x.numbers, y.numbers
    if across is None or along is None:
        return
    wide = len(across)
    for row in range(len(along)):
        for column in range(wide):
            here = cells[row * wide + column]
            if column + 1 < wide and (other := cells[row * wide + column + 1]).kind != here.kind:
                at = _meeting(x, across[column], across[column + 1], here, other)
                low, high = _reach(y, along, row)
                yield Flip(start=(at, low), end=(at, high), one=here.kind, other=other.kind)
            if row + 1 < len(along) and (other := cells[(row + 1) * wide + column]).kind != here.kind:
                at = _meeting(y, along[row], along[row + 1], here, other)
                low, high = _reach(x, across, column)
                yield Flip(start=(low, at), end=(high, at), one=here.kind, other=other.kind)


def places(x: Axis, cells: Sequence[Cell], at: Callable[[float], Cell]) -> Iterator[Flip]:
    """Places on one axis at which the kind changes, by halving with a plan of its own at every step. [A12]

    `at` works a cell out; whole numbers are halved until two follow each other.
    """
    numbers = x.numbers
    if numbers is None:
        return
    for low, high, here, other in zip(numbers, numbers[1:], cells, cells[1:], strict=False):
        if REFUSED in (here.kind, other.kind) and here.kind != other.kind:  # whether there is a plan may change often
            yield Flip(start=(low, None), end=(high, None), one=here.kind, other=other.kind)
        elif here.kind != other.kind:
            yield from _halved(x, (low, here.kind), (high, other.kind), at)


def _halved(x: Axis, first: tuple[float, str], last: tuple[float, str], at: Callable[[float], Cell]) -> Iterator[Flip]:
    pieces, left, done = [(first, last, 0.0, 1.0)], MOST_HALVINGS, []
    while pieces:
        low, high, start, end = pieces.pop()
        middle = x.between(first[0], last[0], (start + end) / 2)
        place = float(round(middle)) if x.whole else middle
        if end - start <= CLOSE or not left or place in (low[0], high[0]):
            done.append(Flip(start=(low[0], None), end=(high[0], None), one=low[1], other=high[1]))
            continue
        left -= 1
        found = (place, at(place).kind)
        share = (start + end) / 2
        if found[1] != high[1]:
            pieces.append((found, high, share, end))
        if found[1] != low[1]:
            pieces.append((low, found, start, share))
    yield from sorted(done, key=lambda flip: flip.start[0])


def _meeting(axis: Axis, low: float, high: float, here: Cell, other: Cell) -> float:
    """The value between two cells at which their choices are equally good. [A11]"""
    if here.best != other.best and here.lead is not None and other.lead is not None and here.lead != other.lead:
        return axis.between(low, high, here.lead / (here.lead - other.lead))
    return axis.between(low, high)


def _reach(axis: Axis, numbers: Sequence[float], at: int) -> Spot:
    """How far a cell reaches to both sides: half-way to the next ones, at the ends as far as there are values."""
    low = axis.between(numbers[at - 1], numbers[at]) if at else numbers[0]
    high = axis.between(numbers[at], numbers[at + 1]) if at + 1 < len(numbers) else numbers[-1]
    return low, high
