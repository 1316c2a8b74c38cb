"""Reading: what a workbook says of a step, its own formulas evaluated, as figures and a timeline.

    found = read_workbook(data, "book.xlsx")
    found.figures["step_time_s"]                       # whatever the cells come to, custom formulas included
    found.timeline                                     # warm-up, one forward and backward a micro-batch, ...

Only names count: cells may lie anywhere. A cell that is missing, no number, negative or an error is told by its place.

Opening: a workbook from bytes, with everything refused that is none, hides behind a password, or would not fit.

The sizes inside the archive are looked at before anything is unpacked; macros and links to other files are refused,
for what they would bring is not in the file.
"""

from __future__ import annotations

import io
import math
import warnings
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any

from crosszone.calibrate.imported import ImportedRun
from crosszone.calibrate.sheet.evaluation import Cells, cell_name
from crosszone.calibrate.sheet.export import is_values, trace_of_values
from crosszone.calibrate.sheet.output import BREAKDOWN, CHECKS, FIGURES, PHASES, STEP_PARTS
from crosszone.errors import FileError, InvalidError, Notice
from crosszone.extras import require_extra
from crosszone.schedule.trace import MAX_SPANS, Lane, Span, SpanKind, Trace, TraceStep
from crosszone.text import Label

if TYPE_CHECKING:
    from openpyxl import Workbook  # type: ignore[import-untyped]


MOST_BYTES = 16 * 2**20  # Size of the file
MOST_UNPACKED = 48 * 2**20  # Size of all its parts, unpacked
MOST_RATIO = 200  # Size of a part over what it takes in the archive; a workbook's text shrinks by 10 to 50
MOST_PARTS = 1000
SMALL = 2**20  # Parts up to this size may shrink by any ratio: a blank sheet is all zeros and commas
OLD = b"\xd0\xcf\x11\xe0"  # Beginning of an old .xls, and of a workbook behind a password
MARKS = (b"<!DOCTYPE", b"<!ENTITY")  # How a part of a workbook would define entities
CHUNK = 2**16  # Bytes of a part that are looked at together
PASSWORD = "EncryptedPackage".encode("utf-16-le")


def open_workbook(data: bytes, file: str, *, values: bool = False) -> Workbook:
    """The workbook; `values`: what a spreadsheet program has computed in place of the formulas."""
    require_extra("excel")
    from openpyxl import load_workbook

    _check(data, file)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # parts of Excel that are left out: pictures, extensions of drop-downs
            return load_workbook(io.BytesIO(data), data_only=values, read_only=values, keep_links=False)
    except Exception as error:  # whatever an XML reader says of a broken file
        raise _refused("sheet_broken", file, reason=type(error).__name__) from None


def _check(data: bytes, file: str) -> None:
    if len(data) > MOST_BYTES:
        raise _refused("sheet_too_large", file, size=round(len(data) / 2**20, 1), limit=MOST_BYTES // 2**20)
    if data.startswith(OLD):
        raise _refused("sheet_password" if PASSWORD in data else "sheet_old", file)
    if not data:
        raise _refused("file_empty", file)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = archive.infolist()
            _check_parts(parts, file)
            _check_texts(archive, parts, file)
    except (zipfile.BadZipFile, NotImplementedError, OSError, EOFError, RuntimeError, ValueError, zlib.error):
        raise _refused("sheet_not_xlsx", file) from None


def _check_parts(parts: list[zipfile.ZipInfo], file: str) -> None:
    size = sum(part.file_size for part in parts)
    if size > MOST_UNPACKED or len(parts) > MOST_PARTS:
        raise _refused("sheet_bomb", file, size=round(size / 2**20, 1), parts=len(parts), limit=MOST_UNPACKED // 2**20)
    for part in parts:
        if part.file_size > SMALL and part.file_size > MOST_RATIO * max(1, part.compress_size):
            raise _refused(
                "sheet_bomb", file, size=round(size / 2**20, 1), parts=len(parts), limit=MOST_UNPACKED // 2**20
            )
        if part.flag_bits & 1:
            raise _refused("sheet_password", file)
    names = {part.filename for part in parts}
    if "xl/workbook.xml" not in names:
        raise _refused("sheet_not_xlsx", file)
    if any(name.lower().endswith("vbaproject.bin") or name.startswith("xl/macrosheets/") for name in names):
        raise _refused("sheet_macros", file)
    if any(name.startswith(("xl/externalLinks/", "xl/connections", "xl/queryTables/")) for name in names):
        raise _refused("sheet_links", file)


def _check_texts(archive: zipfile.ZipFile, parts: list[zipfile.ZipInfo], file: str) -> None:
    """No part, whatever it is called, may define entities: they are how a small XML file grows without end."""
    for part in parts:
        with archive.open(part) as text:
            if _defines_entities(text):
                raise _refused("sheet_broken", file, reason=f"DOCTYPE, {part.filename}")


def _defines_entities(text: IO[bytes]) -> bool:
    """A text has a DOCTYPE or an ENTITY anywhere, also where two chunks meet, also with two bytes a letter."""
    end = b""
    while chunk := text.read(CHUNK):
        here = end + chunk.replace(b"\0", b"")
        if any(mark in here for mark in MARKS):
            return True
        end = here[-max(map(len, MARKS)) + 1 :]
    return False


def _refused(code: str, file: str, **params: Any) -> FileError:
    return FileError(Notice(code=code, value=file, params=params, file=file))


# Share by which a value that was left in the file may differ from what its formula comes to, and parts from a sum.
TOLERANCE = 1e-6
WHOLE = 1e-9
META = ("model", "gpu", "framework", "stack", "precision", "recompute", "tp", "pp", "dp", "cp", "ep", "zero")
META_NUMBERS = ("seq_len", "global_batch", "micro_batch")


def read_workbook(data: bytes, name: str) -> ImportedRun:
    """What a workbook says; an `InputError` names the sheet and the cell that is wrong."""
    cells = Cells(open_workbook(data, name), name)
    if is_values(cells):
        return _values(cells, name)
    seconds = {phase: _number(cells, f"out_{phase}") for phase in PHASES}
    if seconds["iteration_s"] <= 0:
        raise InvalidError(_wrong(cells, "sheet_not_positive", "out_iteration_s", seconds["iteration_s"]))
    micro_batches = _count(cells, "out_micro_batches")
    parts = {part: _number(cells, f"part_{part}") for part in BREAKDOWN if cells.has(f"part_{part}")}
    figures: dict[str, Any] = {"step_time_s": seconds["iteration_s"], **_figures(cells)}
    notices = [*_checks(cells), *_stale(cells, data, name)]
    total = math.fsum(seconds[part] for part in STEP_PARTS)
    adds_up = abs(total - seconds["iteration_s"]) <= TOLERANCE * seconds["iteration_s"]
    if not adds_up:
        params = {"sum": total, "iteration": seconds["iteration_s"]}
        notices.append(Notice(code="sheet_parts_differ", level="warning", field=name, params=params))
    passes = micro_batches * (seconds["forward_s"] + seconds["backward_s"])
    if passes > seconds["steady_s"] * (1 + TOLERANCE):
        params = {"passes": passes, "steady": seconds["steady_s"]}
        notices.append(Notice(code="sheet_passes_longer", level="warning", field=name, params=params))
    known = math.fsum(parts.values())
    if known <= seconds["iteration_s"] * (1 + TOLERANCE):
        figures["breakdown_s"] = parts
    else:
        params = {"sum": known, "iteration": seconds["iteration_s"]}
        notices.append(Notice(code="sheet_breakdown_left_out", level="warning", field=name, params=params))
    trace = trace_of_phases(_name(cells, name), seconds, micro_batches, _meta(cells))
    phases = {0: phases_told(seconds, micro_batches)} if adds_up else {}
    return ImportedRun.of_trace(
        trace, name=_name(cells, name), kind="sheet", phases=phases, figures=figures, notices=tuple(notices)
    )


def trace_of_phases(name: str, seconds: dict[str, float], micro_batches: int, meta: dict[str, Any]) -> Trace:
    """A step as its phases tell it: the last stage, the stages before it while they fill and empty, and the tail."""
    lanes = [Lane(id="stage-last", name="last stage")]
    spans: list[Span] = []
    start, steady = seconds["warm_up_s"], seconds["steady_s"]
    each = steady / micro_batches
    for number in range(micro_batches):
        begins = start + number * each
        turns = min(begins + seconds["forward_s"], start + steady)
        ends = min(turns + seconds["backward_s"], start + steady)
        for kind, a, b in (("forward", begins, turns), ("backward", turns, ends)):
            spans.append(_span("stage-last", kind, a, b, number))
    ends = start + steady
    if seconds["warm_up_s"] > 0 or seconds["cool_down_s"] > 0:
        lanes.append(Lane(id="stages-before", name="stages before"))
        spans.append(_span("stages-before", "forward", 0.0, start, None, "warm-up"))
        spans.append(_span("stages-before", "backward", ends, ends + seconds["cool_down_s"], None, "cool-down"))
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
        spans.append(_span(lane, kind, ends, ends + seconds[phase], None))
        ends += seconds[phase]
    lasting = [span for span in spans if span.end_s > span.start_s]
    step = TraceStep(step=0, start_s=0.0, end_s=seconds["iteration_s"])
    return Trace(kind="predicted", name=name, lanes=tuple(lanes), spans=tuple(lasting), steps=(step,), meta=meta)


def phases_told(seconds: dict[str, float], micro_batches: int) -> dict[str, float]:
    """The phases of a step as a sheet tells them apart; they add up to it."""
    forward, backward = (
        min(micro_batches * seconds[f"{way}_s"], seconds["steady_s"]) for way in ("forward", "backward")
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


def _span(lane: str, kind: Any, start: float, end: float, number: int | None, name: str | None = None) -> Span:
    return Span(lane=lane, kind=kind, start_s=start, end_s=max(start, end), micro_batch=number, name=name)


def _values(cells: Cells, name: str) -> ImportedRun:
    """A result that was exported as numbers."""
    figures: dict[str, Any] = {"step_time_s": _number(cells, "out_iteration_s"), **_figures(cells)}
    parts = [one for one in cells.book.defined_names if one.startswith("part_")]
    figures["breakdown_s"] = {one.removeprefix("part_"): _number(cells, one) for one in parts}
    trace = trace_of_values(cells, _name(cells, name), figures["step_time_s"])
    return ImportedRun.of_trace(trace, name=_name(cells, name), kind="sheet", figures=figures)


def _figures(cells: Cells) -> dict[str, Any]:
    """What else the workbook says of the run, where it says it."""
    found: dict[str, Any] = {}
    for figure, name in FIGURES.items():
        value = cells.named(name) if cells.has(name) else None
        if value not in (None, ""):
            found[figure] = _count(cells, name) if figure == "gpus" else _number(cells, name)
    framework = cells.named("framework") if cells.has("framework") else None
    return found | ({"framework": str(framework)} if framework else {})


def _number(cells: Cells, name: str) -> float:
    """A number of at least 0 in the cell of that name."""
    value = cells.named(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidError(_wrong(cells, "sheet_no_number", name, "" if value is None else value))
    if value < 0:
        if value > -1e-9:  # what subtraction leaves of nothing
            return 0.0
        raise InvalidError(_wrong(cells, "sheet_negative", name, value))
    return float(value)


def _count(cells: Cells, name: str) -> int:
    value = _number(cells, name)
    if value < 1 or abs(value - round(value)) > WHOLE * value or 2 * value > MAX_SPANS - 10:
        raise InvalidError(_wrong(cells, "sheet_no_count", name, value))
    return round(value)


def _wrong(cells: Cells, code: str, name: str, value: Any) -> Notice:
    params = {"cell": cell_name(cells.place(name)), "name": name}
    return Notice(code=code, field=cells.file, value=value, params=params, file=cells.file)


def _checks(cells: Cells) -> list[Notice]:
    """The workbook's own checks that do not hold."""
    found = []
    for name in CHECKS:
        if cells.has(name) and cells.named(name) != "ok":
            params = {"cell": cell_name(cells.place(name)), "about": Label(f"sheet_{name}")}
            found.append(Notice(code="sheet_check_fails", level="warning", field=cells.file, value=name, params=params))
    return found


def _stale(cells: Cells, data: bytes, name: str) -> list[Notice]:
    """Values that a program has left in the file, but the formulas do not come to."""
    kept = open_workbook(data, name, values=True)
    found = []
    for one in ("out_iteration_s", *(f"out_{phase}" for phase in PHASES), *FIGURES.values()):
        if not cells.has(one):
            continue
        sheet, row, column = cells.place(one)
        old, new = kept[sheet].cell(row, column).value, cells.named(one)
        if not all(isinstance(value, int | float) for value in (old, new)):
            continue
        if abs(old - new) > TOLERANCE * max(abs(old), abs(new)):
            params = {"cell": cell_name((sheet, row, column)), "old": old, "new": new}
            found.append(Notice(code="sheet_stale", level="warning", field=name, value=one, params=params))
    return found[:1]


def _name(cells: Cells, file: str) -> str:
    given = cells.named("scenario_name") if cells.has("scenario_name") else None
    stem = file.rsplit("/", 1)[-1].removesuffix(".xlsx")
    return (str(given) if given not in (None, "") else stem)[:100]


def _meta(cells: Cells) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in (*META, *META_NUMBERS):
        value = cells.named(name) if cells.has(name) else None
        if isinstance(value, str | int | float | bool) and value != "":
            found[name] = int(value) if isinstance(value, float) and value.is_integer() else value
    return found
