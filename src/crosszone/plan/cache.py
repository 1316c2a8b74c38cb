"""Common: what plans of scenarios that differ only in the links between zones have in common, worked out once.

A sweep hands one `PlanCache` from cell to cell; a plan by itself has its own, in which nothing is known yet.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import count
from typing import Any

MOST_GROUNDS = 6  # Grounds that are remembered; the one used longest ago goes first


class ProblemCache(dict[Hashable, Any]):
    """What is known of one ground: spaces, shapes, placed strategies."""

    most_placed = 2_000_000
    """Ranks of placed strategies that are remembered."""

    def __init__(self) -> None:
        super().__init__()
        self._placed: dict[Hashable, Any] = {}
        self._ranks = 0
        self.ahead: dict[int, Any] = {}
        """Links of the problems that come next, this one among them, by a number of their own."""
        self._numbers = count()

    def look_ahead(self, ways: Iterable[Any]) -> None:
        """Links of the problems that come next: what is simulated for one is simulated for all of them at once."""
        self.ahead = {next(self._numbers): one for one in ways}

    def placed(self, key: Hashable) -> Any:
        """What was put under the key of a placed strategy."""
        return self._placed.get(key)

    def place(self, key: Hashable, value: Any, ranks: int) -> None:
        """Remember something of a placed strategy of so many ranks."""
        if self._ranks + ranks > self.most_placed:
            self._placed, self._ranks = {}, 0
        self._placed[key] = value
        self._ranks += ranks


class PlanCache:
    """What is known, by the ground it stands on: everything of a problem but its links."""

    def __init__(self, *, lasting: bool = False) -> None:
        self.lasting = lasting
        """More than one problem will ask."""
        self._grounds: list[tuple[tuple[Any, ...], ProblemCache]] = []

    def on(self, *ground: Any) -> ProblemCache:
        """What is known of a ground."""
        for at, (known, kept) in enumerate(self._grounds):
            if known == ground:
                self._grounds.append(self._grounds.pop(at))
                return kept
        self._grounds = [*self._grounds[1 - MOST_GROUNDS :], (ground, ProblemCache())]
        return self._grounds[-1][1]
