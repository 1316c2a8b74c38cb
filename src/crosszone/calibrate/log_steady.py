"""Steady steps: the time of a step once a run has warmed up, without the steps that something else held up.

steady = steady_of(log)
steady.step_s, steady.used, steady.of            # 2.51 s from 43 of 50 lines
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from crosszone.calibrate.log_lines import Log, LogStep

WARM_UP = 1.1
"""Steps at the beginning that take more than this times the median of the second half are warm-up."""
FEW = 3
"""With fewer lines none is left out; the first steps of a run alone say nothing of the others."""
DEVIATIONS = 4.0
NARROW = 0.03
"""Steps this near to the median are never outliers."""
NORMAL = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""


@dataclass(frozen=True, kw_only=True)
class Steady:
    """The steady step of a log."""

    step_s: float
    """Median."""
    spread: float
    """Standard deviation of the logarithm of a steady step, by the median absolute deviation."""
    used: int
    of: int
    warm_up: int
    """Left out at the beginning."""
    outliers: int
    parts_s: dict[str, float]
    """Median of each part over the same steps."""


def steady_of(log: Log) -> Steady:
    """Median of the steps after warm-up and without outliers. [K30]

    Left out: the first line (it holds compilation, allocation and the first fetch), further ones at the beginning
    above 1.1 x the median of the second half, then those farther from the median than 4 x 1.4826 x the median absolute
    deviation and 3 %. With fewer than three lines all count.
    """
    steps = list(log.steps)
    warm = _warm_up(steps)
    kept = steps[warm:]
    middle = median(one.seconds for one in kept)
    deviation = NORMAL * median(abs(one.seconds - middle) for one in kept)
    within = max(DEVIATIONS * deviation, NARROW * middle)
    used = [one for one in kept if abs(one.seconds - middle) <= within] if len(kept) >= FEW else kept
    names = {name for one in used for name in one.parts_s}
    return Steady(
        step_s=median(one.seconds for one in used),
        spread=deviation / middle,
        used=len(used),
        of=len(steps),
        warm_up=warm,
        outliers=len(kept) - len(used),
        parts_s={name: median(o.parts_s[name] for o in used if name in o.parts_s) for name in sorted(names)},
    )


def only_warm_up(log: Log) -> bool:
    """The log holds nothing but the first steps of a run, fewer than are needed to see how long a later one takes."""
    numbers = [one.step for one in log.steps]
    return len(numbers) < FEW and all(number is not None and number < FEW for number in numbers)


def _warm_up(steps: Sequence[LogStep]) -> int:
    """How many steps at the beginning are left out."""
    if len(steps) < FEW:
        return 0
    later = median(one.seconds for one in steps[len(steps) // 2 :])
    count = 1
    while count < len(steps) // 2 and steps[count].seconds > WARM_UP * later:
        count += 1
    return count
