"""Wrong rows of a table: what is wrong with many rows in the same way is said once, with how many there are.

alike = RowNotices(most=10)
alike.add(notice)                    # for every wrong row
alike.told()                         # the first row of each mistake, and how many more rows have it
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from crosszone.errors import Notice

OF_THE_ROW = ("row", "line")
"""Parameters that differ from row to row."""


@dataclasses.dataclass
class RowNotices:
    """Mistakes of rows, equal ones together, in the order in which they were met."""

    most: int
    """Different mistakes that are told."""
    first: dict[Any, Notice] = dataclasses.field(default_factory=dict)
    more: dict[Any, int] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.first)

    def add(self, notice: Notice) -> None:
        """One more row is wrong."""
        params = tuple((key, str(value)) for key, value in notice.params.items() if key not in OF_THE_ROW)
        key = (notice.code, notice.field, str(notice.value), notice.file, params)
        if key in self.first:
            self.more[key] += 1
        elif len(self.first) < self.most:
            self.first[key], self.more[key] = notice, 0

    def told(self, *, at_least: bool = False) -> list[Notice]:
        """What to say; `at_least`: rows after these were not looked at."""
        found = []
        for key, notice in self.first.items():
            found.append(notice)
            if self.more[key]:
                code = "rows_alike_at_least" if at_least else "rows_alike"
                found.append(Notice(code=code, value=self.more[key], level=notice.level, file=notice.file))
        return found


def grouped(notices: Iterable[Notice], most: int, *, at_least: bool = False) -> list[Notice]:
    """The same notices, equal ones once."""
    alike = RowNotices(most=most)
    for notice in notices:
        alike.add(notice)
    return alike.told(at_least=at_least)
