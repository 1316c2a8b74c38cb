"""Axis: a field of a scenario with the values a sweep gives it.

read_axis("cluster.links[*].gbps=1:100:log20")     # 20 values from 1 to 100, each the same factor above the last
read_axis("cluster.links[0].rtt_ms=5:80:16")       # 16 values from 5 to 80, equally far apart (also lin16)
read_axis("job.global_batch=512,1024,2048")        # these
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr

from crosszone.analyse.fields import scenario_with, steps_of
from crosszone.errors import InputError, InvalidError, Notice
from crosszone.inputs.document import scalar
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.value import Value

MOST_VALUES = 10_000
"""Values of an axis, and cells of a sweep."""
_RANGE = re.compile(r"(?P<low>[^:]+):(?P<high>[^:]+):(?P<scale>log|lin)?(?P<count>\d{1,6})")

Scale = Literal["linear", "log"]
Number = int | float
AxisValue = StrictBool | StrictInt | StrictFloat | StrictStr


class Axis(Value):
    """A field and its values."""

    field: str
    """Path of the field."""
    values: Annotated[tuple[AxisValue, ...], Field(min_length=1, max_length=MOST_VALUES)]
    """What it is set to, in order."""
    scale: Scale = "linear"
    """How far apart two values are: by their difference, or by their ratio."""
    whole: bool = False
    """The field takes whole numbers only."""

    @property
    def numbers(self) -> tuple[float, ...] | None:
        """The values where all are numbers, each above the one before; else there is nothing between two of them."""
        found = [float(v) for v in self.values if isinstance(v, int | float) and not isinstance(v, bool)]
        rising = all(a < b for a, b in pairwise(found))
        return tuple(found) if len(found) == len(self.values) and rising else None

    def between(self, low: float, high: float, share: float = 0.5) -> float:
        """The number so far on the way from one to another, on the axis's scale. [A10]"""
        if self.scale == "log":
            return math.exp((1 - share) * math.log(low) + share * math.log(high))
        return (1 - share) * low + share * high

    def fitted(self, scenario: Scenario) -> Self:
        """The same with whole numbers where the scenario's field takes no others, each once.

        `InputError` where the field takes none of the values at the ends.
        """
        taken = self
        if _only_whole(scenario, self.field):
            rounded = (round(v) if isinstance(v, float) else v for v in self.values)
            taken = self.replace(values=tuple(dict.fromkeys(rounded)), whole=True)
        refused: InputError | None = None
        for value in (taken.values[-1], taken.values[0]):
            try:
                scenario_with(scenario, {self.field: value})
                return taken
            except InputError as error:
                refused = error
        assert refused is not None
        raise refused


def read_axis(text: str) -> Axis:
    """The axis of `FIELD=LOW:HIGH:log20`, `FIELD=LOW:HIGH:20` or `FIELD=VALUE,VALUE,...`."""
    field, equals, said = (part.strip() for part in text.partition("="))
    if not equals or not said:
        raise _malformed(text)
    steps_of(field)
    if ":" not in said:
        parts = [part.strip() for part in said.split(",")]
        values = [scalar(part) for part in parts]
        if not all(parts) or any(value is None for value in values):
            raise _malformed(text)
        if len(values) > MOST_VALUES:
            raise too_many(len(values))
        return Axis(field=field, values=tuple(dict.fromkeys(values)))
    form = _RANGE.fullmatch(said)
    if form is None:
        raise _malformed(text)
    low, high, count = scalar(form["low"].strip()), scalar(form["high"].strip()), int(form["count"])
    if any(isinstance(end, bool) or not isinstance(end, int | float) for end in (low, high)):
        raise _malformed(text)
    if count > MOST_VALUES:
        raise too_many(count)
    scale: Scale = "log" if form["scale"] == "log" else "linear"
    if not low < high or count < 2 or (scale == "log" and low <= 0):
        raise InvalidError(Notice(code="axis_range", field=field, value=said))
    return Axis(field=field, values=spaced(low, high, count, scale), scale=scale)


def spaced(low: Number, high: Number, count: int, scale: Scale) -> tuple[float, ...]:
    """So many numbers from one to another, by equal differences or equal ratios; both ends as they are. [A10]"""
    inner = np.linspace(low, high, count) if scale == "linear" else np.geomspace(low, high, count)
    return (float(low), *inner[1:-1].tolist(), float(high))


def too_many(cells: int) -> InvalidError:
    """That a sweep has too many cells."""
    return InvalidError(Notice(code="sweep_too_many", value=cells, params={"most": MOST_VALUES}))


def _only_whole(scenario: Scenario, field: str) -> bool:
    """Whether a field refuses a number because it is not whole."""
    try:
        scenario_with(scenario, {field: 1.5})
    except InputError as error:
        return any(notice.code == "must_be_whole" for notice in error.notices)
    return False


def _malformed(text: str) -> InvalidError:
    return InvalidError(Notice(code="axis_malformed", value=text))
