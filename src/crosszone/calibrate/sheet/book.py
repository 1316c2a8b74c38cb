"""Book: a workbook that is written line by line, each value a named cell that formulas call by its name.

    book = Book("en")
    book.lines("Input", [Line(name="tp", value=8), Line(name="cp", value=1)])
    book.lines("Layer", [Line(name="team", value="=tp*cp", unit="GPUs", cached=8)])
    data = book.saved()

A formula is the text that stands in the cell: what is described here is what a reader of the workbook sees. The file
holds what each formula comes to as well, so that previews and programs that do not compute show numbers.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from crosszone.extras import require_extra
from crosszone.text import texts

if TYPE_CHECKING:
    from openpyxl import Workbook  # type: ignore[import-untyped]
    from openpyxl.worksheet.worksheet import Worksheet  # type: ignore[import-untyped]

# Columns of a sheet of lines: what it is, value, unit, name, formula of the documentation, note.
WIDTHS = (44, 20, 12, 24, 8, 80)
INPUT, LIST = "FFF4CE", "DDEBF7"  # Colours: cells to type in; headings


@dataclass(frozen=True, kw_only=True)
class Line:
    """One named value of a sheet: a number, a text, or a formula of other names."""

    name: str
    value: Any
    unit: str = ""
    id: str = ""
    """Of the formula in docs/formulas.md."""
    label: str = ""
    """What it is; empty: the text of its name."""
    note: str = ""
    """What a reader should know; empty: the text of its name."""
    typed: bool = False
    """The user is meant to change it."""
    cached: Any = None
    """What the formula comes to, for programs that show a file without computing it."""


class Text(str):
    """What a user has named: it is written as it is, never taken for a formula."""


@dataclass(frozen=True, kw_only=True)
class Heading:
    """A heading between lines; its text is that of the key in `sheet.headings`."""

    key: str


def line(name: str, value: Any, unit: str = "", id: str = "") -> Line:
    """A line that is computed or looked up."""
    return Line(name=name, value=value, unit=unit, id=id)


def put(to: Worksheet, row: int, column: int, value: Any) -> Any:
    """Write one cell."""
    if not isinstance(value, Text):
        return to.cell(row, column, value)
    cell = to.cell(row, column, str(value))
    cell.data_type = "s"
    return cell


class Book:
    """A workbook on its way."""

    def __init__(self, language: str) -> None:
        require_extra("excel")
        from openpyxl import Workbook

        self.language = language
        self.file: Workbook = Workbook()
        self.file.remove(self.file.worksheets[0])
        self._next: dict[str, int] = {}
        self._cached: dict[tuple[str, str], Any] = {}

    @cached_property
    def _texts(self) -> dict[str, Any]:
        found: dict[str, Any] = texts(self.language)["sheet"]
        return found

    def words(self, *path: str) -> str:
        """A text of the workbook; empty: there is none for it."""
        here: Any = self._texts
        for key in path:
            here = here.get(key, "") if isinstance(here, dict) else ""
        return here if isinstance(here, str) else ""

    def sheet(self, name: str) -> Worksheet:
        """The sheet of that name; made where it is new."""
        if name not in self.file.sheetnames:
            made = self.file.create_sheet(name)
            self._next[name] = 1
            return made
        found: Worksheet = self.file[name]
        return found

    def name(self, name: str, sheet: str, cells: str) -> None:
        """Call cells by a name that formulas can use."""
        from openpyxl.workbook.defined_name import DefinedName  # type: ignore[import-untyped]

        if name in self.file.defined_names:
            raise ValueError(f"two cells are called {name}")
        self.file.defined_names[name] = DefinedName(name, attr_text=f"'{sheet}'!{cells}")

    def heading(self, sheet: str, text: str) -> None:
        """A heading in bold."""
        from openpyxl.styles import Font, PatternFill  # type: ignore[import-untyped]

        to = self.sheet(sheet)
        row = self._next[sheet] + (1 if self._next[sheet] > 1 else 0)
        to.cell(row, 1, text).font = Font(bold=True)
        for column in range(1, len(WIDTHS) + 1):
            to.cell(row, column).fill = PatternFill("solid", fgColor=LIST)
        self._next[sheet] = row + 1

    def lines(self, sheet: str, lines: Sequence[Line | Heading]) -> None:
        """Write lines below what the sheet has already."""
        from openpyxl.styles import Alignment, PatternFill

        to = self.sheet(sheet)
        for column, width in zip("ABCDEF", WIDTHS, strict=True):
            to.column_dimensions[column].width = width
        for one in lines:
            if isinstance(one, Heading):
                self.heading(sheet, self.words("headings", one.key))
                continue
            row = self._next[sheet]
            self._next[sheet] = row + 1
            put(to, row, 1, Text(one.label or self.words("lines", one.name, "label") or one.name))
            cell = put(to, row, 2, one.value)
            self.cache(sheet, cell.coordinate, one.cached)
            cell.alignment = Alignment(horizontal="right")
            to.cell(row, 3, one.unit)
            to.cell(row, 4, one.name)
            to.cell(row, 5, one.id)
            put(to, row, 6, Text(one.note or self.words("lines", one.name, "note")))
            self.name(one.name, sheet, f"$B${row}")
            if one.typed:
                cell.fill = PatternFill("solid", fgColor=INPUT)

    def table(self, sheet: str, prefix: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """A table whose columns are called PREFIX_COLUMN; below what the sheet has already."""
        from openpyxl.styles import Font, PatternFill
        from openpyxl.utils import get_column_letter  # type: ignore[import-untyped]

        to = self.sheet(sheet)
        top = self._next[sheet]
        for at, (name, values) in enumerate(columns.items(), 1):
            head = to.cell(top, at, name)
            head.font, head.fill = Font(bold=True), PatternFill("solid", fgColor=LIST)
            for row, value in enumerate(values, top + 1):
                put(to, row, at, Text(value) if isinstance(value, str) else value)
            letter = get_column_letter(at)
            self.name(f"{prefix}_{name}", sheet, f"${letter}${top + 1}:${letter}${top + len(values)}")
            to.column_dimensions[letter].width = max(12, len(name) + 2, to.column_dimensions[letter].width or 0)
        self._next[sheet] = top + len(next(iter(columns.values()))) + 2

    def freeze(self, sheet: str, cell: str) -> None:
        """Keep what lies above and left of a cell in sight."""
        self.sheet(sheet).freeze_panes = cell

    def saved(self) -> bytes:
        """The file."""
        from openpyxl.workbook.properties import CalcProperties  # type: ignore[import-untyped]

        self.file.calculation = CalcProperties(fullCalcOnLoad=True)
        data = io.BytesIO()
        self.file.save(data)
        values = {
            f"xl/worksheets/sheet{at}.xml": {cell: v for (sheet, cell), v in self._cached.items() if sheet == name}
            for at, name in enumerate(self.file.sheetnames, 1)
        }
        return with_values(data.getvalue(), values)

    def cache(self, sheet: str, cell: str, value: Any) -> None:
        """Note what the formula in a cell comes to."""
        if value is not None:
            self._cached[sheet, cell] = value


_FORMULA = re.compile(r'<c r="([A-Z]+[0-9]+)"([^>]*)><f>(.*?)</f><v ?(?:/>|></v>)</c>', re.DOTALL)


def with_values(data: bytes, values: Mapping[str, Mapping[str, Any]]) -> bytes:
    """A saved workbook with the values of its formulas beside them: by part of the file and cell.

    openpyxl writes a formula or a value, never both.
    """

    def fill(match: re.Match[str], known: Mapping[str, Any]) -> str:
        cell, style, formula = match.groups()
        if cell not in known:
            return match.group()
        value = known[cell]
        kind, text = "", repr(value)
        if isinstance(value, bool):
            kind, text = ' t="b"', str(int(value))
        elif isinstance(value, str):
            kind, text = ' t="str"', escape(value)
        elif not math.isfinite(value):
            kind, text = ' t="e"', "#NUM!"
        return f'<c r="{cell}"{style}{kind}><f>{formula}</f><v>{text}</v></c>'

    filled = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(filled, "w", zipfile.ZIP_DEFLATED) as new:
        for part in old.infolist():
            content, known = old.read(part), values.get(part.filename)
            if known:
                text = _FORMULA.sub(lambda match, known=known: fill(match, known), content.decode())  # type: ignore[misc]
                content = text.encode()
            new.writestr(part, content, zipfile.ZIP_DEFLATED)
    return filled.getvalue()
