"""Book: a workbook that is written line by line, each value a named cell that formulas call by its name.

    book = Book("en")
    book.write_lines("Input", [SheetLine(name="tp", value=8), SheetLine(name="cp", value=1)])
    book.write_lines("Layer", [SheetLine(name="team", value="=tp*cp", unit="GPUs", cached=8)])
    data = book.save()

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
from crosszone.text import load_texts

if TYPE_CHECKING:
    from openpyxl import Workbook  # type: ignore[import-untyped]
    from openpyxl.worksheet.worksheet import Worksheet  # type: ignore[import-untyped]

# Columns of a sheet of lines: what it is, value, unit, name, formula of the documentation, note.
COLUMN_WIDTHS = (44, 20, 12, 24, 8, 80)
INPUT_COLOUR, HEADING_COLOUR = "FFF4CE", "DDEBF7"  # Colours: cells to type in; headings


@dataclass(frozen=True, kw_only=True)
class SheetLine:
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


class UserText(str):
    """What a user has named: it is written as it is, never taken for a formula."""


@dataclass(frozen=True, kw_only=True)
class Heading:
    """A heading between lines; its text is that of the key in `sheet.headings`."""

    key: str


def build_line(name: str, value: Any, unit: str = "", id: str = "") -> SheetLine:
    """A line that is computed or looked up."""
    return SheetLine(name=name, value=value, unit=unit, id=id)


def write_cell(worksheet: Worksheet, row: int, column: int, value: Any) -> Any:
    """Write one cell."""
    if not isinstance(value, UserText):
        return worksheet.cell(row, column, value)
    cell = worksheet.cell(row, column, str(value))
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
        sheet_texts: dict[str, Any] = load_texts(self.language)["sheet"]
        return sheet_texts

    def find_text(self, *path: str) -> str:
        """A text of the workbook; empty: there is none for it."""
        node: Any = self._texts
        for key in path:
            node = node.get(key, "") if isinstance(node, dict) else ""
        return node if isinstance(node, str) else ""

    def get_sheet(self, name: str) -> Worksheet:
        """The sheet of that name; made where it is new."""
        if name not in self.file.sheetnames:
            worksheet = self.file.create_sheet(name)
            self._next[name] = 1
            return worksheet
        existing: Worksheet = self.file[name]
        return existing

    def define_name(self, name: str, sheet: str, cells: str) -> None:
        """Call cells by a name that formulas can use."""
        from openpyxl.workbook.defined_name import DefinedName  # type: ignore[import-untyped]

        if name in self.file.defined_names:
            raise ValueError(f"two cells are called {name}")
        self.file.defined_names[name] = DefinedName(name, attr_text=f"'{sheet}'!{cells}")

    def write_heading(self, sheet: str, text: str) -> None:
        """A heading in bold."""
        from openpyxl.styles import Font, PatternFill  # type: ignore[import-untyped]

        worksheet = self.get_sheet(sheet)
        row = self._next[sheet] + (1 if self._next[sheet] > 1 else 0)
        worksheet.cell(row, 1, text).font = Font(bold=True)
        for column in range(1, len(COLUMN_WIDTHS) + 1):
            worksheet.cell(row, column).fill = PatternFill("solid", fgColor=HEADING_COLOUR)
        self._next[sheet] = row + 1

    def write_lines(self, sheet: str, lines: Sequence[SheetLine | Heading]) -> None:
        """Write lines below what the sheet has already."""
        from openpyxl.styles import Alignment, PatternFill

        worksheet = self.get_sheet(sheet)
        for column, width in zip("ABCDEF", COLUMN_WIDTHS, strict=True):
            worksheet.column_dimensions[column].width = width
        for line in lines:
            if isinstance(line, Heading):
                self.write_heading(sheet, self.find_text("headings", line.key))
                continue
            row = self._next[sheet]
            self._next[sheet] = row + 1
            write_cell(
                worksheet, row, 1, UserText(line.label or self.find_text("lines", line.name, "label") or line.name)
            )
            cell = write_cell(worksheet, row, 2, line.value)
            self.keep_value(sheet, cell.coordinate, line.cached)
            cell.alignment = Alignment(horizontal="right")
            worksheet.cell(row, 3, line.unit)
            worksheet.cell(row, 4, line.name)
            worksheet.cell(row, 5, line.id)
            write_cell(worksheet, row, 6, UserText(line.note or self.find_text("lines", line.name, "note")))
            self.define_name(line.name, sheet, f"$B${row}")
            if line.typed:
                cell.fill = PatternFill("solid", fgColor=INPUT_COLOUR)

    def write_table(self, sheet: str, prefix: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """A table whose columns are called PREFIX_COLUMN; below what the sheet has already."""
        from openpyxl.styles import Font, PatternFill
        from openpyxl.utils import get_column_letter  # type: ignore[import-untyped]

        worksheet = self.get_sheet(sheet)
        top = self._next[sheet]
        for column, (name, values) in enumerate(columns.items(), 1):
            heading_cell = worksheet.cell(top, column, name)
            heading_cell.font, heading_cell.fill = Font(bold=True), PatternFill("solid", fgColor=HEADING_COLOUR)
            for row, value in enumerate(values, top + 1):
                write_cell(worksheet, row, column, UserText(value) if isinstance(value, str) else value)
            letter = get_column_letter(column)
            self.define_name(f"{prefix}_{name}", sheet, f"${letter}${top + 1}:${letter}${top + len(values)}")
            worksheet.column_dimensions[letter].width = max(
                12, len(name) + 2, worksheet.column_dimensions[letter].width or 0
            )
        self._next[sheet] = top + len(next(iter(columns.values()))) + 2

    def save(self) -> bytes:
        """The file."""
        from openpyxl.workbook.properties import CalcProperties  # type: ignore[import-untyped]

        self.file.calculation = CalcProperties(fullCalcOnLoad=True)
        data = io.BytesIO()
        self.file.save(data)
        values = {
            f"xl/worksheets/sheet{at}.xml": {cell: v for (sheet, cell), v in self._cached.items() if sheet == name}
            for at, name in enumerate(self.file.sheetnames, 1)
        }
        return insert_cached_values(data.getvalue(), values)

    def keep_value(self, sheet: str, cell: str, value: Any) -> None:
        """Note what the formula in a cell comes to."""
        if value is not None:
            self._cached[sheet, cell] = value


_FORMULA = re.compile(r'<c r="([A-Z]+[0-9]+)"([^>]*)><f>(.*?)</f><v ?(?:/>|></v>)</c>', re.DOTALL)


def insert_cached_values(data: bytes, values: Mapping[str, Mapping[str, Any]]) -> bytes:
    """A saved workbook with the values of its formulas beside them: by part of the file and cell.

    openpyxl writes a formula or a value, never both.
    """

    def insert_value(match: re.Match[str], cached: Mapping[str, Any]) -> str:
        cell, style, formula = match.groups()
        if cell not in cached:
            return match.group()
        value = cached[cell]
        kind, text = "", repr(value)
        if isinstance(value, bool):
            kind, text = ' t="b"', str(int(value))
        elif isinstance(value, str):
            kind, text = ' t="str"', escape(value)
        elif not math.isfinite(value):
            kind, text = ' t="e"', "#NUM!"
        return f'<c r="{cell}"{style}{kind}><f>{formula}</f><v>{text}</v></c>'

    filled = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(filled, "w", zipfile.ZIP_DEFLATED) as target:
        for part in source.infolist():
            content, cached = source.read(part), values.get(part.filename)
            if cached:
                text = _FORMULA.sub(lambda match, cached=cached: insert_value(match, cached), content.decode())  # type: ignore[misc]
                content = text.encode()
            target.writestr(part, content, zipfile.ZIP_DEFLATED)
    return filled.getvalue()
