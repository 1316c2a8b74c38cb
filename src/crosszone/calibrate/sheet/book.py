"""Book: a workbook that is written line by line, each value a named cell that formulas call by its name.

    book = Book("en")
    book.lines("Input", [Line("tp", 8, choices=("1", "2", "4", "8")), Line("cp", 1)])
    book.lines("Computation", [Line("team", "=tp*cp", unit="GPUs")])
    book.table("GPUs", "gpus", {"name": ["a100"], "memory_gib": [80]})      # =INDEX(gpus_memory_gib, gpu_row)
    data = book.saved()

A formula is the text that stands in the cell: what is described here is what a reader of the workbook sees.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from crosszone.text import texts

if TYPE_CHECKING:
    from openpyxl import Workbook  # type: ignore[import-untyped]
    from openpyxl.worksheet.worksheet import Worksheet  # type: ignore[import-untyped]

WIDTHS = (44, 20, 12, 24, 8, 80)
"""Columns of a sheet of lines: what it is, value, unit, name, formula of the documentation, note."""
INPUT, LIST = "FFF4CE", "DDEBF7"
"""Colours: cells to type in; headings."""
MOST_INLINE = 200
"""Letters that a drop-down may have in place; longer lists lie on a sheet."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One named value of a sheet: a number, a text, or a formula of other names."""

    name: str
    value: Any
    unit: str = ""
    id: str = ""
    """Of the formula in docs/formulas.md."""
    choices: Sequence[str] | str | None = None
    """Drop-down: its entries, or the name of the range that holds them."""
    typed: bool = False
    """The user is meant to change it."""


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
        from openpyxl import Workbook

        self.language = language
        self.file: Workbook = Workbook()
        self.file.remove(self.file.worksheets[0])
        self._next: dict[str, int] = {}

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

    def coefficient(self, field: str) -> str:
        """What a coefficient is."""
        known: dict[str, str] = texts(self.language)["page"]["coefficient"]
        return known.get(field, "")

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
        from openpyxl.styles import Alignment

        to = self.sheet(sheet)
        for column, width in zip("ABCDEF", WIDTHS, strict=True):
            to.column_dimensions[column].width = width
        for one in lines:
            if isinstance(one, Heading):
                self.heading(sheet, self.words("headings", one.key))
                continue
            row = self._next[sheet]
            self._next[sheet] = row + 1
            to.cell(row, 1, self.words("lines", one.name, "label") or one.name)
            cell = put(to, row, 2, one.value)
            cell.alignment = Alignment(horizontal="right")
            to.cell(row, 3, one.unit)
            to.cell(row, 4, one.name)
            to.cell(row, 5, one.id)
            to.cell(row, 6, self.words("lines", one.name, "note"))
            self.name(one.name, sheet, f"$B${row}")
            if one.typed:
                self._typed(cell)
            if one.choices is not None:
                self._choices(to, cell, one.choices)

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
        return data.getvalue()

    def _typed(self, cell: Any) -> None:
        from openpyxl.styles import PatternFill

        cell.fill = PatternFill("solid", fgColor=INPUT)

    def _choices(self, to: Worksheet, cell: Any, choices: Sequence[str] | str) -> None:
        from openpyxl.worksheet.datavalidation import DataValidation  # type: ignore[import-untyped]

        inline = choices if isinstance(choices, str) else '"' + ",".join(choices) + '"'
        if len(inline) > MOST_INLINE:
            raise ValueError("a long list lies on a sheet")
        rule = DataValidation(type="list", formula1=inline, allow_blank=True, showErrorMessage=True)
        to.add_data_validation(rule)
        rule.add(cell)
