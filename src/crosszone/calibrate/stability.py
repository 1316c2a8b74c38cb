"""Stability: how steady the iterations of a run are, and which of them is the best.

stability({1: 3.4, 2: 3.1, 3: 3.3}).mean_to_min_pct     # 5.4
chosen("best", {1: 3.4, 2: 3.1, 3: 3.3})                # 2
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.value import NotNegative, Positive, Value

CHOICES = ("first", "last", "best")
"""What an iteration is called besides its number."""


class Stability(Value):
    """Times of all iterations in five numbers."""

    count: Annotated[int, Field(ge=1)]
    """Iterations."""
    min_s: Positive
    """The fastest."""
    max_s: Positive
    """The slowest."""
    mean_s: Positive
    """Their mean."""
    std_s: NotNegative
    """Their standard deviation, as of a sample; of a single iteration 0."""
    mean_to_min_pct: NotNegative
    """By how many % the mean lies above the fastest: what a run loses to unsteadiness."""
    best_step: Annotated[int, Field(ge=0)]
    """Number of the fastest; of equal ones the first."""


def stability(seconds: Mapping[int, float]) -> Stability:
    """Statistics of iterations given by their number; there must be one. [K40]

    The deviation divides by n - 1; mean to min = 100 (mean - min) / min.
    """
    values = list(seconds.values())
    best = min(seconds, key=lambda step: seconds[step])
    low, mean = seconds[best], math.fsum(values) / len(values)
    mean = min(max(mean, low), max(values))  # A mean of equal numbers may round to just outside them.
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1)) if len(values) > 1 else 0.0
    return Stability(
        count=len(values),
        min_s=low,
        max_s=max(values),
        mean_s=mean,
        std_s=spread,
        mean_to_min_pct=100 * (mean - low) / low,
        best_step=best,
    )


def middle(seconds: Mapping[int, float]) -> int:
    """The number of the iteration of median length; of an even count the shorter of the two."""
    return sorted(seconds, key=lambda step: seconds[step])[(len(seconds) - 1) // 2]


def chosen(word: str | int, seconds: Mapping[int, float]) -> int:
    """The number of the iteration that is called `first`, `last`, `best` or by its number; else `InvalidError`."""
    steps: Sequence[int] = list(seconds)
    named = {"first": steps[0], "last": steps[-1], "best": stability(seconds).best_step}
    if isinstance(word, str) and word in named:
        return named[word]
    text = str(word).strip()
    if not (text.isascii() and text.isdigit()):
        params = {"allowed": [*CHOICES, "N"], "nearest": "best"}
        raise InvalidError(Notice(code="not_one_of", field="iteration", value=word, params=params))
    if len(text) > 12 or int(text) not in seconds:
        known = {"first": steps[0], "last": steps[-1], "steps": len(steps)}
        raise InvalidError(Notice(code="trace_step_unknown", field="iteration", value=text, params=known))
    return int(text)
