"""Text files that a user gives: an empty one, a binary one and one in another encoding are refused by name.

check_head(data[:65536], "train.log")     # what was read already
check_text(Path("samples.csv"))           # the whole file; `FileError` names the line that is no UTF-8

Words of which some are allowed: another one is refused, with what may have been meant only where that is near.

raise build_choice_error("--format", "kinto", ("auto", "kineto"))      # Did you mean kineto?
raise build_choice_error("--format", "xyz", ("auto", "kineto"))        # Choose one of them.

Wrong rows of a table: what is wrong with many rows in the same way is said once, with how many there are.

alike = RowNotices(most=10)
alike.add(notice)                    # for every wrong row
alike.told()                         # the first row of each mistake, and how many more rows have it
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from crosszone.errors import FileError, InvalidError, Notice
from crosszone.inputs.value import near

LOOK = 2**16  # Bytes that tell whether a file is text
ODD = 0.05  # Share of characters that are no text beyond which a file is binary
USUAL = frozenset("\t\r\n\f\b\x1b")  # Control characters that logs have


def check_head(head: bytes, name: str) -> None:
    """Refuse a file that is empty or binary, by how it begins."""
    if not head.strip() and len(head) < LOOK:
        raise FileError(Notice(code="file_empty", value=name, file=name))
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise FileError(Notice(code="file_not_utf8", value=name, file=name))
    text = head[:LOOK].decode("utf-8", "replace")
    odd = sum(one == "\ufffd" or (one < " " and one not in USUAL) for one in text)
    if odd > ODD * len(text) + 1:
        raise FileError(Notice(code="file_binary", value=name, file=name))


def check_text(path: Path) -> None:
    """Refuse a file that is not UTF-8 text; one that cannot be read is left to its reader."""
    try:
        with path.open("rb") as file:
            check_head(file.read(LOOK), str(path))
            file.seek(0)
            for line, text in enumerate(file, 1):
                try:
                    text.decode("utf-8")
                except UnicodeDecodeError:
                    name = str(path)
                    raise FileError(Notice(code="file_not_utf8", value=name, file=name, line=line)) from None
    except OSError:
        return


def build_choice_error(field: str, value: str, allowed: Iterable[str]) -> InvalidError:
    """What to raise for a word that is none of the allowed."""
    known = list(allowed)
    likely = near(value, known)[:1]
    params = {"allowed": known, "nearest": likely}
    code = "not_one_of" if likely else "not_one_of_these"
    return InvalidError(Notice(code=code, field=field, value=value, params=params))


OF_THE_ROW = ("row", "line")  # Parameters that differ from row to row


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


def merge_notices(notices: Iterable[Notice], most: int, *, at_least: bool = False) -> list[Notice]:
    """The same notices, equal ones once."""
    alike = RowNotices(most=most)
    for notice in notices:
        alike.add(notice)
    return alike.told(at_least=at_least)
