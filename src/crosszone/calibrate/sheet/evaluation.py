"""Evaluation: what the formulas of a workbook come to, cell by cell, whatever values a program has left in the file.

    cells = Cells(openpyxl.load_workbook(file), "book.xlsx")
    cells.named("out_iteration_s")             # 15.18; an error names the sheet and the cell that is to blame

The library `formulas` parses and computes; this walks from cell to cell, only through what is asked for, and remembers
formulas that differ only in the cells they read.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from crosszone.errors import InvalidError, Notice

if TYPE_CHECKING:
    from openpyxl import Workbook  # type: ignore[import-untyped]

Place = tuple[str, int, int]  # Sheet, row, column
MOST_FORMULAS = 40_000  # Formulas that are evaluated for one workbook
# Cells that one reference may span, and those of all formulas together.
MOST_RANGE, MOST_READS = 100_000, 2_000_000
# Characters of one cell, as in Excel; those that one formula may put together, and all computed texts.
MOST_TEXT, MOST_TEXTS = 32_767, 2**24
LONG_NUMBER = 25  # Characters of a number that is put into a text


@dataclass(frozen=True)
class Reference:
    """Cells that a formula reads: sheet, first row and column, last row and column."""

    sheet: str
    top: int
    left: int
    bottom: int
    right: int

    @property
    def size(self) -> int:
        """How many they are."""
        return (self.bottom - self.top + 1) * (self.right - self.left + 1)

    def cells(self) -> list[Place]:
        """All of them, row by row."""
        rows, columns = range(self.top, self.bottom + 1), range(self.left, self.right + 1)
        return [(self.sheet, row, column) for row in rows for column in columns]


@dataclass(frozen=True)
class Parsed:
    """A formula with its references apart: the template is the same for all cells that compute alike."""

    template: str
    references: tuple[Reference, ...]


@dataclass
class Cells:
    """The cells of a workbook, evaluated as they are asked for."""

    book: Workbook
    file: str
    values: dict[Place, Any] = field(default_factory=dict)
    reads: int = 0
    """Cells that the formulas so far refer to."""
    characters: int = 0
    """Of all texts that the formulas so far came to."""
    _parsed: dict[Place, Parsed] = field(default_factory=dict)

    @cached_property
    def _names(self) -> dict[str, str]:
        """Names of cells by their small letters: spreadsheets do not tell case apart."""
        return {name.lower(): name for name in self.book.defined_names}

    @cached_property
    def _sheets(self) -> dict[str, str]:
        return {name.lower(): name for name in self.book.sheetnames}

    def named(self, name: str) -> Any:
        """The value of the cell that a name stands for; a name that is missing or more than one cell is an error."""
        return self.value(self.place(name))

    def has(self, name: str) -> bool:
        """A cell has that name."""
        return name in self.book.defined_names

    def place(self, name: str) -> Place:
        """The one cell that a name stands for."""
        if name not in self.book.defined_names:
            raise InvalidError(self._notice("sheet_name_missing", name))
        text = self.book.defined_names[name].attr_text or ""
        found = self._reference(text, ("", 0, 0))
        if found is None or len(found.cells()) != 1:
            raise InvalidError(self._notice("sheet_name_missing", name))
        return found.cells()[0]

    def column(self, name: str) -> list[Any]:
        """The values of all cells that a name stands for."""
        found = self._reference(name, ("", 0, 0)) if self.has(name) else None
        if found is None:
            raise InvalidError(self._notice("sheet_name_missing", name))
        return [self.value(cell) for cell in found.cells()]

    def value(self, at: Place) -> Any:
        """A number, a text, a truth value or None; an error value raises, naming the cell where it began."""
        found = self._evaluated(at)
        if _is_error(found):
            raise InvalidError(self._blame(at))
        return found

    def _evaluated(self, at: Place) -> Any:
        """Depth first, without recursion: rows of a pipeline depend on each other by the thousand."""
        waiting, open_ = [at], set[Place]()
        while waiting:
            here = waiting[-1]
            if here in self.values:
                waiting.pop()
                continue
            content, computed = self._content(here)
            self._limit_text(here, content)
            if not computed:
                self.values[here] = content
                waiting.pop()
                continue
            parsed = self._parse(here, content)
            missing = [cell for one in parsed.references for cell in one.cells() if cell not in self.values]
            if not missing:
                self.values[here] = self._compute(here, parsed)
                self._limit_texts(here)
                open_.discard(here)
                waiting.pop()
                continue
            open_.add(here)
            circle = next((cell for cell in missing if cell in open_), None)
            if circle == here:
                raise InvalidError(self._notice("sheet_self", cell_name(here), formula=content))
            if circle is not None:
                raise InvalidError(self._notice("sheet_circular", cell_name(here), other=cell_name(circle)))
            waiting.extend(missing)
        return self.values[at]

    def _limit_text(self, at: Place, text: Any) -> None:
        if isinstance(text, str) and len(text) > MOST_TEXT:
            raise InvalidError(self._notice("sheet_text_long", cell_name(at), limit=MOST_TEXT))

    def _limit_texts(self, at: Place) -> None:
        """Texts double from cell to cell with `=A1&A1`: none may grow long, nor all of them together."""
        found = self.values[at]
        self._limit_text(at, found)
        self.characters += len(found) if isinstance(found, str) else 0
        if self.characters > MOST_TEXTS:
            raise InvalidError(self._notice("sheet_text_long", cell_name(at), limit=MOST_TEXTS))

    def _limit_joined(self, at: Place, parsed: Parsed) -> None:
        """What a formula puts together on its way, at most: every text it reads, in every row and column it spans."""
        if "&" not in parsed.template and "CONCAT" not in parsed.template:
            return
        read = (self.values[cell] for one in parsed.references for cell in one.cells())
        longest = max((len(value) for value in read if isinstance(value, str)), default=0)
        rows = max((one.bottom - one.top + 1 for one in parsed.references), default=1)
        columns = max((one.right - one.left + 1 for one in parsed.references), default=1)
        each = len(parsed.template) + parsed.template.count("x_") * max(longest, LONG_NUMBER)
        if each * rows * columns > MOST_TEXTS:
            raise InvalidError(self._notice("sheet_text_long", cell_name(at), limit=MOST_TEXTS))

    def _content(self, at: Place) -> tuple[Any, bool]:
        """What stands in a cell, and whether it is a formula; nothing where it has never been written."""
        sheet, row, column = at
        cell = self.book[sheet]._cells.get((row, column))
        if cell is None or cell.value is None:
            return None, False
        content: Any = cell.value
        if not isinstance(content, str | int | float | bool):
            text = getattr(content, "text", None)  # a formula of an array
            if text is None:
                raise InvalidError(self._notice("sheet_cell_odd", cell_name(at)))
            return text if text.startswith("=") else "=" + text, True
        return content, cell.data_type == "f" and isinstance(content, str) and len(content) > 1

    def _parse(self, at: Place, text: str) -> Parsed:
        if at not in self._parsed:
            found = self._apart(at, text)
            self.reads += sum(one.size for one in found.references)
            if len(self._parsed) >= MOST_FORMULAS or self.reads > MOST_READS:
                raise InvalidError(self._too_many(at))
            self._parsed[at] = found
        return self._parsed[at]

    def _apart(self, at: Place, text: str) -> Parsed:
        from openpyxl.formula import Tokenizer  # type: ignore[import-untyped]
        from openpyxl.formula.tokenizer import Token, TokenizerError  # type: ignore[import-untyped]

        try:
            tokens = Tokenizer(text).items
        except (TokenizerError, IndexError):
            raise InvalidError(self._notice("sheet_formula_odd", cell_name(at), formula=text)) from None
        known: dict[Reference, str] = {}
        said = ["="]
        for token in tokens:
            if token.type == Token.OPERAND and token.subtype == Token.RANGE:
                found = self._reference(token.value, at)
                if found is None:
                    odd = {"name": token.value, "formula": text}
                    raise InvalidError(self._notice("sheet_reference_odd", cell_name(at), **odd))
                said.append(known.setdefault(found, f"x_{len(known)}_"))
            elif token.type == Token.FUNC and token.subtype == Token.OPEN:
                name = token.value[:-1].upper().removeprefix("_XLFN.")
                if name not in _functions():
                    raise InvalidError(self._notice("sheet_function_unknown", cell_name(at), name=name))
                said.append(f"{name}(")
            elif token.type == Token.OPERAND and token.subtype == Token.NUMBER:
                said.append(np.format_float_positional(float(token.value), trim="-"))  # the library takes no 1E9
            else:
                said.append(token.value)
        return Parsed("".join(said), tuple(known))

    def _reference(self, text: str, at: Place) -> Reference | None:
        """The cells that a text in a formula means: `A1`, `$A$1:$B$2`, `Sheet!A1`, or a name; None: none of these."""
        from openpyxl.utils.cell import range_boundaries  # type: ignore[import-untyped]

        seen = set[str]()
        while (name := text if text in self.book.defined_names else self._names.get(text.lower())) is not None:
            if name in seen:
                raise InvalidError(self._notice("sheet_name_circular", name))
            seen.add(name)
            text, at = self.book.defined_names[name].attr_text or "", ("", 0, 0)
        sheet, _, cells = text.rpartition("!")
        sheet = sheet.strip("'").replace("''", "'") or at[0]
        if sheet.lower() not in self._sheets:
            return None
        sheet = self._sheets[sheet.lower()]
        try:
            left, top, right, bottom = range_boundaries(cells)
        except (ValueError, TypeError):
            return None
        used = self.book[sheet]
        found = Reference(sheet, top or 1, left or 1, bottom or used.max_row, right or used.max_column)
        if found.size > MOST_RANGE:
            raise InvalidError(self._too_many(at))
        return found

    def _compute(self, at: Place, parsed: Parsed) -> Any:
        try:
            program = _compiled(parsed.template)
        except Exception:
            raise InvalidError(self._notice("sheet_formula_odd", cell_name(at), formula=self._content(at)[0])) from None
        self._limit_joined(at, parsed)
        inputs = [self._array(parsed.references[int(name.split("_")[1])]) for name in program.inputs]
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                found = program(*inputs)
        except Exception:
            raise InvalidError(self._notice("sheet_formula_odd", cell_name(at), formula=self._content(at)[0])) from None
        return _plain(found)

    def _array(self, reference: Reference) -> Any:
        from schedula import EMPTY  # type: ignore[import-untyped]

        values = [self.values[cell] for cell in reference.cells()]
        shape = (reference.bottom - reference.top + 1, reference.right - reference.left + 1)
        found = np.empty(len(values), object)
        found[:] = [EMPTY if value is None else value for value in values]
        return found.reshape(shape)

    def _blame(self, at: Place) -> Notice:
        """The first cell, from what was asked for, that is wrong though all it reads is right."""
        here = at
        while here in self._parsed:
            cells = (cell for one in self._parsed[here].references for cell in one.cells())
            wrong = next((cell for cell in cells if _is_error(self.values.get(cell))), None)
            if wrong is None:
                break
            here = wrong
        return self._notice("sheet_cell_error", cell_name(here), error=str(self.values[here]), asked=cell_name(at))

    def _too_many(self, at: Place) -> Notice:
        name = cell_name(at) if at[0] else self.file
        return self._notice("sheet_too_many_formulas", name, limit=MOST_FORMULAS, reads=MOST_READS)

    def _notice(self, code: str, value: Any, **params: Any) -> Notice:
        return Notice(code=code, field=self.file, value=value, params=params, file=self.file)


def cell_name(at: Place) -> str:
    """A cell as people write it: `Output!B7`."""
    from openpyxl.utils import get_column_letter  # type: ignore[import-untyped]

    return f"{at[0]}!{get_column_letter(at[2])}{at[1]}"


def _is_error(value: Any) -> bool:
    from formulas.tokens.operand import XlError  # type: ignore[import-untyped]

    return isinstance(value, XlError) or (isinstance(value, str) and value in ERRORS)


ERRORS = ("#DIV/0!", "#N/A", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!")


def _plain(found: Any) -> Any:
    """One value of what a formula came to: the first of an array."""
    from schedula import EMPTY

    value = np.asarray(found, object).ravel()[0] if np.ndim(found) else found
    if isinstance(value, np.ndarray):
        value = value.item()
    if value is EMPTY:
        return 0.0
    if isinstance(value, np.bool_ | bool):
        return bool(value)
    if isinstance(value, np.number | int | float):
        number = float(value)
        return number if np.isfinite(number) else "#NUM!"
    return str(value) if isinstance(value, np.str_) else value


@lru_cache(maxsize=8192)
def _compiled(template: str) -> Any:
    """A formula ready to be called, remembered: many cells compute alike."""
    import formulas  # type: ignore[import-untyped]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return formulas.Parser().ast(template)[1].compile()


@lru_cache(maxsize=1)
def _functions() -> frozenset[str]:
    """Functions that are evaluated: those below that the library has."""
    import formulas

    return frozenset(FUNCTIONS.split()) & frozenset(formulas.get_functions())


# What a cost model needs; what depends on the hour, on chance or on other files, or grows without end, is left out.
FUNCTIONS = """
ABS ACOS ACOSH AND ASIN ASINH ATAN ATAN2 AVERAGE AVERAGEA AVERAGEIF AVERAGEIFS CEILING CEILING.MATH CHOOSE
COLUMN CONCAT CONCATENATE CORREL COS COSH COUNT COUNTA COUNTBLANK COUNTIF COUNTIFS DEGREES EVEN EXP FALSE FIND
FLOOR FLOOR.MATH FORECAST GCD HLOOKUP IF IFERROR IFNA IFS INDEX INT INTERCEPT ISBLANK ISERR ISERROR ISEVEN
ISNA ISNUMBER ISODD ISTEXT LARGE LCM LEFT LEN LET LN LOG LOG10 LOOKUP LOWER MATCH MAX MAXA MAXIFS MEDIAN MID
MIN MINA MINIFS MOD MROUND N NA NOT ODD OR PERCENTILE PERCENTILE.INC PI POWER PRODUCT QUARTILE QUOTIENT
RADIANS RANK RIGHT ROUND ROUNDDOWN ROUNDUP ROW SEARCH SIGN SIN SINH SLOPE SMALL SQRT STDEV STDEV.P STDEV.S SUM
SUMIF SUMIFS SUMPRODUCT SUMSQ SWITCH TAN TANH TEXT TRIM TRUE TRUNC UPPER VALUE VAR VAR.P VAR.S VLOOKUP XLOOKUP
XOR
"""
