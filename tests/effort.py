"""How much a property test tries: its own count, scaled by the profile that the run chose.

    @examples(40)          # 40 x 0.5 in ./test, 40 x 0.15 in ./test --fast, 40 x 10 in ./test --long
    @given(...)

Examples are drawn the same way in each run of the first two, so that a run says something of the change it guards;
`./test --long` draws anew each time and keeps what failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

_COMMON: dict[str, Any] = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
}
FEWEST = 5
PROFILES = {"fast": 15, "usual": 50, "long": 1000}
"""Examples of a property that names no count."""

settings.register_profile("fast", max_examples=PROFILES["fast"], derandomize=True, database=None, **_COMMON)
settings.register_profile("usual", max_examples=PROFILES["usual"], derandomize=True, database=None, **_COMMON)
settings.register_profile("long", max_examples=PROFILES["long"], **_COMMON)
settings.load_profile("usual")  # --hypothesis-profile, where given, is loaded after this


def examples(count: int, **more: Any) -> settings:
    """Settings with `count` examples of a hundred usual ones."""
    return settings(max_examples=max(FEWEST, count * settings.default.max_examples // 100), **more)


def amount(usual: int, long: int) -> int:
    """How many to look at; mark the test `scaled`, so that `./test --long` takes it too."""
    return long if settings.default.max_examples == PROFILES["long"] else usual


def mostly_long(values: Iterable[Any], *usual: Any) -> list[Any]:
    """Parameters of which `./test` takes the named ones, and `./test --long` the others."""
    return [value if value in usual else pytest.param(value, marks=pytest.mark.long) for value in values]
