"""Read a workbook: its own formulas evaluated, as figures and a timeline of a step.

    run = read_workbook(data, "book.xlsx")
    run.figures["step_time_s"]                         # whatever the cells come to, custom formulas included
    run.timeline                                       # warm-up, one forward and backward a micro-batch, ...

Only names count: cells may lie anywhere. A message on a cell that is missing, no number, negative or an
error names its place.

Opening refuses bytes that are no workbook, that a password protects, or that would unpack to too much: the sizes inside
the archive are checked before anything is unpacked. Macros and links to other files are refused.

Formulas are evaluated cell by cell, whatever values a program has left in the file:

    cells = WorkbookCells(openpyxl.load_workbook(file), "book.xlsx")
    cells.read_named("out_iteration_s")        # 15.18; an error names the sheet and the cell that is to blame

The library `formulas` parses and computes. `WorkbookCells` walks from cell to cell, only through what is asked for, and
remembers formulas that differ only in the cells they read.
"""

from __future__ import annotations

import io
import math
import warnings
import zipfile
import zlib
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from crosszone.calibrate.imported import ImportedRun
from crosszone.calibrate.sheet.workbook import CHECKS, FIGURES, PHASES, STEP_PARTS
from crosszone.errors import FileError, InvalidError, Notice
from crosszone.extras import require_extra
from crosszone.inputs.value import parse
from crosszone.predict.breakdown import ORDER as BREAKDOWN
from crosszone.schedule.trace import MAX_SPANS, Lane, Span, SpanKind, Trace, TraceStep
from crosszone.text import Label

if TYPE_CHECKING:
    from openpyxl import Workbook  # type: ignore[import-untyped]

MOST_BYTES = 16 * 2**20  # Size of the file
MOST_UNPACKED = 48 * 2**20  # Size of all its parts, unpacked
MOST_RATIO = 200  # Size of a part over what it takes in the archive; a workbook's text shrinks by 10 to 50
MOST_PARTS = 1000
SMALL_PART = 2**20  # Parts up to this size may shrink by any ratio: a blank sheet is all zeros and commas
OLD_FORMAT = b"\xd0\xcf\x11\xe0"  # Beginning of an old .xls, and of a workbook behind a password
ENTITY_MARKS = (b"<!DOCTYPE", b"<!ENTITY")  # How a part of a workbook would define entities
CHUNK = 2**16  # Bytes of a part that are looked at together
PASSWORD = "EncryptedPackage".encode("utf-16-le")


def open_workbook(data: bytes, file: str, *, values: bool = False) -> Workbook:
    """The workbook; `values`: what a spreadsheet program has computed in place of the formulas."""
    require_extra("excel")
    from openpyxl import load_workbook

    _check_archive(data, file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # parts of Excel that are left out: pictures, extensions of drop-downs
            return load_workbook(io.BytesIO(data), data_only=values, read_only=values, keep_links=False)
    except Exception as error:  # whatever an XML reader says of a broken file
        raise _build_refusal("sheet_broken", file, reason=type(error).__name__) from None


def _check_archive(data: bytes, file: str) -> None:
    if len(data) > MOST_BYTES:
        raise _build_refusal("sheet_too_large", file, size=round(len(data) / 2**20, 1), limit=MOST_BYTES // 2**20)
    if data.startswith(OLD_FORMAT):
        raise _build_refusal("sheet_password" if PASSWORD in data else "sheet_old", file)
    if not data:
        raise _build_refusal("file_empty", file)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = archive.infolist()
            _check_parts(parts, file)
            _check_texts(archive, parts, file)
    except (zipfile.BadZipFile, NotImplementedError, OSError, EOFError, RuntimeError, ValueError, zlib.error):
        raise _build_refusal("sheet_not_xlsx", file) from None


def _check_parts(parts: list[zipfile.ZipInfo], file: str) -> None:
    size = sum(part.file_size for part in parts)
    grows = any(part.file_size > max(SMALL_PART, MOST_RATIO * max(1, part.compress_size)) for part in parts)
    if size > MOST_UNPACKED or len(parts) > MOST_PARTS or grows:
        limits = {"size": round(size / 2**20, 1), "parts": len(parts), "limit": MOST_UNPACKED // 2**20}
        raise _build_refusal("sheet_bomb", file, **limits)
    if any(part.flag_bits & 1 for part in parts):
        raise _build_refusal("sheet_password", file)
    names = {part.filename for part in parts}
    if "xl/workbook.xml" not in names:
        raise _build_refusal("sheet_not_xlsx", file)
    if any(name.lower().endswith("vbaproject.bin") or name.startswith("xl/macrosheets/") for name in names):
        raise _build_refusal("sheet_macros", file)
    if any(name.startswith(("xl/externalLinks/", "xl/connections", "xl/queryTables/")) for name in names):
        raise _build_refusal("sheet_links", file)


def _check_texts(archive: zipfile.ZipFile, parts: list[zipfile.ZipInfo], file: str) -> None:
    """No part, whatever it is called, may define entities: they are how a small XML file grows without end."""
    for part in parts:
        with archive.open(part) as text:
            if _has_entity_definition(text):
                raise _build_refusal("sheet_broken", file, reason=f"DOCTYPE, {part.filename}")


def _has_entity_definition(text: IO[bytes]) -> bool:
    """A text has a DOCTYPE or an ENTITY anywhere, also where two chunks meet, also with two bytes a letter."""
    end = b""
    while chunk := text.read(CHUNK):
        window = end + chunk.replace(b"\0", b"")
        if any(mark in window for mark in ENTITY_MARKS):
            return True
        end = window[-max(map(len, ENTITY_MARKS)) + 1 :]
    return False


def _build_refusal(code: str, file: str, **params: Any) -> FileError:
    return FileError(Notice(code=code, value=file, params=params, file=file))


VALUES_ONLY = "values_only"  # Name of the cell that says that a workbook holds numbers in place of formulas
TIMELINE = "Timeline"
LANES, STEPS = ("id", "name", "group"), ("step", "start_s", "end_s")
SPANS = ("lane", "kind", "name", "start_s", "end_s", "micro_batch", "chunk")
# Share by which a value that was left in the file may differ from what its formula comes to, and parts from a sum.
TOLERANCE = 1e-6
COUNT_TOLERANCE = 1e-9
META = ("model", "gpu", "framework", "stack", "precision", "recompute", "tp", "pp", "dp", "cp", "ep", "zero")
META_NUMBERS = ("seq_len", "global_batch", "micro_batch")


def read_workbook(data: bytes, name: str) -> ImportedRun:
    """What a workbook says; an `InputError` names the sheet and the cell that is wrong."""
    cells = WorkbookCells(open_workbook(data, name), name)
    if cells.has(VALUES_ONLY):
        return _read_values(cells, name)
    seconds = {phase: _read_number(cells, f"out_{phase}") for phase in PHASES}
    if seconds["iteration_s"] <= 0:
        raise _build_cell_error(cells, "sheet_not_positive", "out_iteration_s", seconds["iteration_s"])
    micro_batches = _read_count(cells, "out_micro_batches")
    parts = {part: _read_number(cells, f"part_{part}") for part in BREAKDOWN if cells.has(f"part_{part}")}
    figures: dict[str, Any] = {"step_time_s": seconds["iteration_s"], **_read_figures(cells)}
    notices = [*_collect_failed_checks(cells), *_find_stale_value(cells, data, name)]
    total = math.fsum(seconds[part] for part in STEP_PARTS)
    adds_up = abs(total - seconds["iteration_s"]) <= TOLERANCE * seconds["iteration_s"]
    if not adds_up:
        params = {"sum": total, "iteration": seconds["iteration_s"]}
        notices.append(Notice(code="sheet_parts_differ", level="warning", field=name, params=params))
    passes = micro_batches * (seconds["forward_s"] + seconds["backward_s"])
    if passes > seconds["steady_s"] * (1 + TOLERANCE):
        params = {"passes": passes, "steady": seconds["steady_s"]}
        notices.append(Notice(code="sheet_passes_longer", level="warning", field=name, params=params))
    known_s = math.fsum(parts.values())
    if known_s <= seconds["iteration_s"] * (1 + TOLERANCE):
        figures["breakdown_s"] = parts
    else:
        params = {"sum": known_s, "iteration": seconds["iteration_s"]}
        notices.append(Notice(code="sheet_breakdown_left_out", level="warning", field=name, params=params))
    trace = build_phase_trace(_read_name(cells, name), seconds, micro_batches, _read_meta(cells))
    phases = {0: split_phases(seconds, micro_batches)} if adds_up else {}
    return ImportedRun.from_trace(
        trace, name=_read_name(cells, name), kind="sheet", phases=phases, figures=figures, notices=tuple(notices)
    )


def build_phase_trace(name: str, seconds: dict[str, float], micro_batches: int, meta: dict[str, Any]) -> Trace:
    """A step made of its phases: the last stage, the stages before it while they fill and empty, and the tail."""
    lanes = [Lane(id="stage-last", name="last stage")]
    spans: list[Span] = []
    start, steady = seconds["warm_up_s"], seconds["steady_s"]
    each_s = steady / micro_batches
    for number in range(micro_batches):
        begins = start + number * each_s
        turns = min(begins + seconds["forward_s"], start + steady)
        ends = min(turns + seconds["backward_s"], start + steady)
        for kind, a, b in (("forward", begins, turns), ("backward", turns, ends)):
            spans.append(_build_span("stage-last", kind, a, b, number))
    ends = start + steady
    if seconds["warm_up_s"] > 0 or seconds["cool_down_s"] > 0:
        lanes.append(Lane(id="stages-before", name="stages before"))
        spans.append(_build_span("stages-before", "forward", 0.0, start, None, "warm-up"))
        spans.append(_build_span("stages-before", "backward", ends, ends + seconds["cool_down_s"], None, "cool-down"))
    ends += seconds["cool_down_s"]
    lanes.append(Lane(id="replicas", name="replicas", group="gradients"))
    tail: tuple[tuple[str, str, SpanKind], ...] = (
        ("all_reduce_s", "replicas", "gradients"),
        ("optimizer_s", "stage-last", "optimizer"),
        ("weights_s", "replicas", "parameters"),
        ("other_s", "host", "other"),
    )
    lanes.append(Lane(id="host", name="host", group="host"))
    for phase, lane, kind in tail:
        spans.append(_build_span(lane, kind, ends, ends + seconds[phase], None))
        ends += seconds[phase]
    lasting = [span for span in spans if span.end_s > span.start_s]
    step = TraceStep(step=0, start_s=0.0, end_s=seconds["iteration_s"])
    return Trace(kind="predicted", name=name, lanes=tuple(lanes), spans=tuple(lasting), steps=(step,), meta=meta)


def split_phases(seconds: dict[str, float], micro_batches: int) -> dict[str, float]:
    """The phases of a step that a sheet states; they add up to it."""
    forward, backward = (
        min(micro_batches * seconds[f"{direction}_s"], seconds["steady_s"]) for direction in ("forward", "backward")
    )
    return {
        "warm_up": seconds["warm_up_s"],
        "forward": forward,
        "backward": min(backward, seconds["steady_s"] - forward),
        "waiting": max(0.0, seconds["steady_s"] - forward - backward),
        "cool_down": seconds["cool_down_s"],
        "all_reduce": seconds["all_reduce_s"],
        "optimizer": seconds["optimizer_s"],
        "weights": seconds["weights_s"],
        "other": seconds["other_s"],
    }


def _build_span(lane: str, kind: Any, start: float, end: float, number: int | None, name: str | None = None) -> Span:
    return Span(lane=lane, kind=kind, start_s=start, end_s=max(start, end), micro_batch=number, name=name)


def _read_values(cells: WorkbookCells, name: str) -> ImportedRun:
    """A result that was exported as numbers."""
    figures: dict[str, Any] = {"step_time_s": _read_number(cells, "out_iteration_s"), **_read_figures(cells)}
    parts = [name_of_part for name_of_part in cells.book.defined_names if name_of_part.startswith("part_")]
    figures["breakdown_s"] = {
        name_of_part.removeprefix("part_"): _read_number(cells, name_of_part) for name_of_part in parts
    }
    trace = read_timeline(cells, _read_name(cells, name), figures["step_time_s"])
    return ImportedRun.from_trace(trace, name=_read_name(cells, name), kind="sheet", figures=figures)


def read_timeline(cells: WorkbookCells, name: str, step_s: float) -> Trace:
    """The timeline that such a workbook holds; without one, a step of which nothing else is known."""
    if not cells.has("spans_lane"):
        lane = Lane(id="step", name="step")
        span = Span(lane="step", kind="other", start_s=0.0, end_s=step_s)
        steps = (TraceStep(step=0, start_s=0.0, end_s=step_s),)
        return Trace(kind="predicted", name=name, lanes=(lane,), spans=(span,), steps=steps)
    document = {
        "kind": "predicted",
        "name": name,
        "lanes": _read_rows(cells, "lanes", LANES),
        "spans": _read_rows(cells, "spans", SPANS),
        "steps": _read_rows(cells, "steps", STEPS) if cells.has("steps_step") else [],
    }
    return parse(Trace, document, at=("Timeline",))


def _read_rows(cells: WorkbookCells, prefix: str, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    columns = {field: cells.read_column(f"{prefix}_{field}") for field in fields}
    count = len(next(iter(columns.values())))
    rows = ({field: values[at] for field, values in columns.items()} for at in range(count))
    return [{field: value for field, value in row.items() if value is not None} for row in rows]


def _read_figures(cells: WorkbookCells) -> dict[str, Any]:
    """What else the workbook says of the run, where it says it."""
    figures: dict[str, Any] = {}
    for figure, name in FIGURES.items():
        value = cells.read_named(name) if cells.has(name) else None
        if value not in (None, ""):
            figures[figure] = _read_count(cells, name) if figure == "gpus" else _read_number(cells, name)
    framework = cells.read_named("framework") if cells.has("framework") else None
    return figures | ({"framework": str(framework)} if framework else {})


def _read_number(cells: WorkbookCells, name: str) -> float:
    """A number of at least 0 in the cell of that name."""
    value = cells.read_named(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _build_cell_error(cells, "sheet_no_number", name, "" if value is None else value)
    if value < 0:
        if value > -1e-9:  # what subtraction leaves of nothing
            return 0.0
        raise _build_cell_error(cells, "sheet_negative", name, value)
    return float(value)


def _read_count(cells: WorkbookCells, name: str) -> int:
    value = _read_number(cells, name)
    if value < 1 or abs(value - round(value)) > COUNT_TOLERANCE * value or 2 * value > MAX_SPANS - 10:
        raise _build_cell_error(cells, "sheet_no_count", name, value)
    return round(value)


def _build_cell_error(cells: WorkbookCells, code: str, name: str, value: Any) -> InvalidError:
    return cells.build_error(code, value, cell=format_cell(cells.find_place(name)), name=name)


def _collect_failed_checks(cells: WorkbookCells) -> list[Notice]:
    """The workbook's own checks that do not hold."""
    notices = []
    for name in CHECKS:
        if cells.has(name) and cells.read_named(name) != "ok":
            params = {"cell": format_cell(cells.find_place(name)), "about": Label(f"sheet_{name}")}
            notices.append(
                Notice(code="sheet_check_fails", level="warning", field=cells.file, value=name, params=params)
            )
    return notices


def _find_stale_value(cells: WorkbookCells, data: bytes, name: str) -> list[Notice]:
    """Values that a program has left in the file, but the formulas do not come to."""
    cached = open_workbook(data, name, values=True)
    notices = []
    for cell in ("out_iteration_s", *(f"out_{phase}" for phase in PHASES), *FIGURES.values()):
        if not cells.has(cell):
            continue
        sheet, row, column = cells.find_place(cell)
        old, new = cached[sheet].cell(row, column).value, cells.read_named(cell)
        if not all(isinstance(value, int | float) for value in (old, new)):
            continue
        if abs(old - new) > TOLERANCE * max(abs(old), abs(new)):
            params = {"cell": format_cell((sheet, row, column)), "old": old, "new": new}
            notices.append(Notice(code="sheet_stale", level="warning", field=name, value=cell, params=params))
    return notices[:1]


def _read_name(cells: WorkbookCells, file: str) -> str:
    name = cells.read_named("scenario_name") if cells.has("scenario_name") else None
    stem = file.rsplit("/", 1)[-1].removesuffix(".xlsx")
    return (str(name) if name not in (None, "") else stem)[:100]


def _read_meta(cells: WorkbookCells) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    for name in (*META, *META_NUMBERS):
        value = cells.read_named(name) if cells.has(name) else None
        if isinstance(value, str | int | float | bool) and value != "":
            meta[name] = int(value) if isinstance(value, float) and value.is_integer() else value
    return meta


Place = tuple[str, int, int]  # Sheet, row, column
MOST_FORMULAS = 40_000  # Formulas that are evaluated for one workbook
# Cells that one reference may span, and those of all formulas together.
MOST_RANGE, MOST_READS = 100_000, 2_000_000
# Characters of one cell, as in Excel; those that one formula may put together, and all computed texts.
MOST_TEXT, MOST_TEXTS = 32_767, 2**24
LONG_NUMBER = 25  # Characters of a number that is put into a text


@dataclass(frozen=True)
class CellRange:
    """Cells that a formula reads: sheet, first row and column, last row and column."""

    sheet: str
    first_row: int
    first_column: int
    last_row: int
    last_column: int

    @property
    def size(self) -> int:
        """How many they are."""
        return (self.last_row - self.first_row + 1) * (self.last_column - self.first_column + 1)

    def list_cells(self) -> list[Place]:
        """All of them, row by row."""
        rows, columns = range(self.first_row, self.last_row + 1), range(self.first_column, self.last_column + 1)
        return [(self.sheet, row, column) for row in rows for column in columns]


@dataclass(frozen=True)
class ParsedFormula:
    """A formula with its references apart: the template is the same for all cells that compute alike."""

    template: str
    references: tuple[CellRange, ...]


@dataclass
class WorkbookCells:
    """The cells of a workbook, evaluated as they are asked for."""

    book: Workbook
    file: str
    values: dict[Place, Any] = field(default_factory=dict)
    reads: int = 0
    """Cells that the formulas so far refer to."""
    characters: int = 0
    """Of all texts that the formulas so far came to."""
    _parsed: dict[Place, ParsedFormula] = field(default_factory=dict)

    @cached_property
    def _names(self) -> dict[str, str]:
        """Names of cells in lower case: spreadsheets ignore case."""
        return {name.lower(): name for name in self.book.defined_names}

    @cached_property
    def _sheets(self) -> dict[str, str]:
        return {name.lower(): name for name in self.book.sheetnames}

    def read_named(self, name: str) -> Any:
        """The value of the cell that a name stands for; a name that is missing or more than one cell is an error."""
        return self.evaluate(self.find_place(name))

    def has(self, name: str) -> bool:
        """A cell has that name."""
        return name in self.book.defined_names

    def find_place(self, name: str) -> Place:
        """The one cell that a name stands for."""
        if name not in self.book.defined_names:
            raise self.build_error("sheet_name_missing", name)
        text = self.book.defined_names[name].attr_text or ""
        reference = self._resolve_reference(text, ("", 0, 0))
        if reference is None or len(reference.list_cells()) != 1:
            raise self.build_error("sheet_name_missing", name)
        return reference.list_cells()[0]

    def read_column(self, name: str) -> list[Any]:
        """The values of all cells that a name stands for."""
        reference = self._resolve_reference(name, ("", 0, 0)) if self.has(name) else None
        if reference is None:
            raise self.build_error("sheet_name_missing", name)
        return [self.evaluate(cell) for cell in reference.list_cells()]

    def evaluate(self, at: Place) -> Any:
        """A number, a text, a truth value or None; an error value raises, naming the cell where it began."""
        value = self._evaluate_depth_first(at)
        if _is_error(value):
            raise self._find_culprit(at)
        return value

    def _evaluate_depth_first(self, at: Place) -> Any:
        """Depth first, without recursion: rows of a pipeline depend on each other by the thousand."""
        pending, open_ = [at], set[Place]()
        while pending:
            current = pending[-1]
            if current in self.values:
                pending.pop()
                continue
            content, computed = self._read_content(current)
            self._check_text_length(current, content)
            if not computed:
                self.values[current] = content
                pending.pop()
                continue
            parsed = self._parse(current, content)
            missing = [
                cell for reference in parsed.references for cell in reference.list_cells() if cell not in self.values
            ]
            if not missing:
                self.values[current] = self._compute(current, parsed)
                self._check_total_length(current)
                open_.discard(current)
                pending.pop()
                continue
            open_.add(current)
            circle = next((cell for cell in missing if cell in open_), None)
            if circle == current:
                raise self.build_error("sheet_self", format_cell(current), formula=content)
            if circle is not None:
                raise self.build_error("sheet_circular", format_cell(current), other=format_cell(circle))
            pending.extend(missing)
        return self.values[at]

    def _check_text_length(self, at: Place, text: Any) -> None:
        if isinstance(text, str) and len(text) > MOST_TEXT:
            raise self.build_error("sheet_text_long", format_cell(at), limit=MOST_TEXT)

    def _check_total_length(self, at: Place) -> None:
        """Texts double from cell to cell with `=A1&A1`: none may grow long, nor all of them together."""
        value = self.values[at]
        self._check_text_length(at, value)
        self.characters += len(value) if isinstance(value, str) else 0
        if self.characters > MOST_TEXTS:
            raise self.build_error("sheet_text_long", format_cell(at), limit=MOST_TEXTS)

    def _check_joined_length(self, at: Place, parsed: ParsedFormula) -> None:
        """What a formula puts together on its way, at most: every text it reads, in every row and column it spans."""
        if "&" not in parsed.template and "CONCAT" not in parsed.template:
            return
        read = (self.values[cell] for reference in parsed.references for cell in reference.list_cells())
        longest = max((len(value) for value in read if isinstance(value, str)), default=0)
        rows = max((reference.last_row - reference.first_row + 1 for reference in parsed.references), default=1)
        columns = max(
            (reference.last_column - reference.first_column + 1 for reference in parsed.references), default=1
        )
        cell_characters = len(parsed.template) + parsed.template.count("x_") * max(longest, LONG_NUMBER)
        if cell_characters * rows * columns > MOST_TEXTS:
            raise self.build_error("sheet_text_long", format_cell(at), limit=MOST_TEXTS)

    def _read_content(self, at: Place) -> tuple[Any, bool]:
        """What stands in a cell, and whether it is a formula; nothing where it has never been written."""
        sheet, row, column = at
        cell = self.book[sheet]._cells.get((row, column))
        if cell is None or cell.value is None:
            return None, False
        content: Any = cell.value
        if not isinstance(content, str | int | float | bool):
            text = getattr(content, "text", None)  # a formula of an array
            if text is None:
                raise self.build_error("sheet_cell_odd", format_cell(at))
            return text if text.startswith("=") else "=" + text, True
        return content, cell.data_type == "f" and isinstance(content, str) and len(content) > 1

    def _parse(self, at: Place, text: str) -> ParsedFormula:
        if at not in self._parsed:
            parsed = self._split_references(at, text)
            self.reads += sum(reference.size for reference in parsed.references)
            if len(self._parsed) >= MOST_FORMULAS or self.reads > MOST_READS:
                raise self._build_limit_error(at)
            self._parsed[at] = parsed
        return self._parsed[at]

    def _split_references(self, at: Place, text: str) -> ParsedFormula:
        from openpyxl.formula import Tokenizer  # type: ignore[import-untyped]
        from openpyxl.formula.tokenizer import Token, TokenizerError  # type: ignore[import-untyped]

        try:
            tokens = Tokenizer(text).items
        except (TokenizerError, IndexError):
            raise self.build_error("sheet_formula_odd", format_cell(at), formula=text) from None
        names: dict[CellRange, str] = {}
        parts = ["="]
        for token in tokens:
            if token.type == Token.OPERAND and token.subtype == Token.RANGE:
                reference = self._resolve_reference(token.value, at)
                if reference is None:
                    odd = {"name": token.value, "formula": text}
                    raise self.build_error("sheet_reference_odd", format_cell(at), **odd)
                parts.append(names.setdefault(reference, f"x_{len(names)}_"))
            elif token.type == Token.FUNC and token.subtype == Token.OPEN:
                name = token.value[:-1].upper().removeprefix("_XLFN.")
                if name not in _list_functions():
                    raise self.build_error("sheet_function_unknown", format_cell(at), name=name)
                parts.append(f"{name}(")
            elif token.type == Token.OPERAND and token.subtype == Token.NUMBER:
                parts.append(np.format_float_positional(float(token.value), trim="-"))  # the library takes no 1E9
            else:
                parts.append(token.value)
        return ParsedFormula("".join(parts), tuple(names))

    def _resolve_reference(self, text: str, at: Place) -> CellRange | None:
        """The cells that a text in a formula means: `A1`, `$A$1:$B$2`, `Sheet!A1`, or a name; None: none of these."""
        from openpyxl.utils.cell import range_boundaries  # type: ignore[import-untyped]

        visited = set[str]()
        while (name := text if text in self.book.defined_names else self._names.get(text.lower())) is not None:
            if name in visited:
                raise self.build_error("sheet_name_circular", name)
            visited.add(name)
            text, at = self.book.defined_names[name].attr_text or "", ("", 0, 0)
        sheet, _, cells = text.rpartition("!")
        sheet = sheet.strip("'").replace("''", "'") or at[0]
        if sheet.lower() not in self._sheets:
            return None
        sheet = self._sheets[sheet.lower()]
        try:
            first_column, first_row, last_column, last_row = range_boundaries(cells)
        except (ValueError, TypeError):
            return None
        worksheet = self.book[sheet]
        reference = CellRange(
            sheet, first_row or 1, first_column or 1, last_row or worksheet.max_row, last_column or worksheet.max_column
        )
        if reference.size > MOST_RANGE:
            raise self._build_limit_error(at)
        return reference

    def _compute(self, at: Place, parsed: ParsedFormula) -> Any:
        self._check_joined_length(at, parsed)
        try:
            program = _compile_template(parsed.template)
            inputs = [self._build_array(parsed.references[int(name.split("_")[1])]) for name in program.inputs]
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                result = program(*inputs)
        except Exception:  # whatever the library says of a formula that it cannot parse or compute
            formula = self._read_content(at)[0]
            raise self.build_error("sheet_formula_odd", format_cell(at), formula=formula) from None
        return _convert_to_plain(result)

    def _build_array(self, reference: CellRange) -> Any:
        from schedula import EMPTY  # type: ignore[import-untyped]

        values = [self.values[cell] for cell in reference.list_cells()]
        shape = (reference.last_row - reference.first_row + 1, reference.last_column - reference.first_column + 1)
        array = np.empty(len(values), object)
        array[:] = [EMPTY if value is None else value for value in values]
        return array.reshape(shape)

    def _find_culprit(self, at: Place) -> InvalidError:
        """The first cell, from what was asked for, that is wrong though all it reads is right."""
        current = at
        while current in self._parsed:
            cells = (cell for reference in self._parsed[current].references for cell in reference.list_cells())
            wrong = next((cell for cell in cells if _is_error(self.values.get(cell))), None)
            if wrong is None:
                break
            current = wrong
        error = str(self.values[current])
        return self.build_error("sheet_cell_error", format_cell(current), error=error, asked=format_cell(at))

    def _build_limit_error(self, at: Place) -> InvalidError:
        name = format_cell(at) if at[0] else self.file
        return self.build_error("sheet_too_many_formulas", name, limit=MOST_FORMULAS, reads=MOST_READS)

    def build_error(self, code: str, value: Any, **params: Any) -> InvalidError:
        """What to raise of a cell or a name of this workbook."""
        return InvalidError(Notice(code=code, field=self.file, value=value, params=params, file=self.file))


def format_cell(at: Place) -> str:
    """A cell as people write it: `Output!B7`."""
    from openpyxl.utils import get_column_letter  # type: ignore[import-untyped]

    return f"{at[0]}!{get_column_letter(at[2])}{at[1]}"


def _is_error(value: Any) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from formulas.tokens.operand import XlError  # type: ignore[import-untyped]

    return isinstance(value, XlError) or (isinstance(value, str) and value in ERRORS)


ERRORS = ("#DIV/0!", "#N/A", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!")


def _convert_to_plain(result: Any) -> Any:
    """One value of what a formula came to: the first of an array."""
    from schedula import EMPTY

    value = np.asarray(result, object).ravel()[0] if np.ndim(result) else result
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


def _load_formulas() -> Any:
    """The library that reads formulas; call it with warnings caught.

    Its modules load bit by bit, and where an installer left no bytecode each first load warns of its own syntax.
    """
    import formulas  # type: ignore[import-untyped]

    return formulas


@lru_cache(maxsize=8192)
def _compile_template(template: str) -> Any:
    """A formula ready to be called, remembered: many cells compute alike."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _load_formulas().Parser().ast(template)[1].compile()


@lru_cache(maxsize=1)
def _list_functions() -> frozenset[str]:
    """Functions that are evaluated: those below that the library has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return frozenset(FUNCTIONS.split()) & frozenset(_load_formulas().get_functions())


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
