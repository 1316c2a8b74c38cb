"""Trace files: any file that describes a measured run, whatever its format, as one `ImportedRun`.

    read_run(["benchmark.csv"])                       # marks of a patched Megatron-LM
    read_run(["out/metrics-stage-0.jsonl"])           # what the shipped trainer writes, one file a stage
    read_run(["run-7.json"])                          # our own trace, JSON or CSV
    read_run(["rank0.pt.trace.json.gz"])              # a profiler's trace, one file a rank
    read_run(["out"])                                 # a folder: all its files of one run

The format is seen from the first lines. All may be compressed with gzip; what expands without end is refused.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crosszone.calibrate.benchmark_csv import LABELS, read_benchmark
from crosszone.calibrate.imported import ImportedRun
from crosszone.calibrate.kineto import Progress, read_kineto
from crosszone.calibrate.stability import find_median_iteration, resolve_iteration
from crosszone.calibrate.user_files import build_unreadable_error, check_head, iterate_chunks
from crosszone.errors import FileError, InputError, InvalidError, Notice, build_choice_error
from crosszone.inputs.strategy import Strategy
from crosszone.schedule.measured import MAX_METRICS_BYTES, NEEDED, MeasuredTimelines, read_measured, read_metrics
from crosszone.schedule.timeline import KINDS, NONE
from crosszone.schedule.trace import MAX_TRACE_BYTES, Trace, read_trace

FORMATS = ("benchmark", "trace", "metrics", "kineto")
AUTO = "auto"
HEAD_BYTES = 2**16  # Bytes that are looked at to see what a file holds
# What a trace should say of its run besides its times, and its degrees.
WANTED_META = ("model", "device", "framework", "torch")
DEGREES = ("tp", "pp", "dp")
SINGLE_FILE_FORMATS = ("benchmark", "trace")  # Formats that have one file for a run
ENDINGS = (".json", ".jsonl", ".csv")
MOST_NAMED = 10


def read_run(
    files: Sequence[str | Path],
    form: str = AUTO,
    *,
    name: str | None = None,
    iteration: str | int | None = None,
    skip: int = 0,
    groups: Mapping[str, str] | None = None,
    degrees: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> ImportedRun:
    """What the files say of a run; an `InputError` names what is wrong and where.

    The first `skip` iterations are left out. Figures are of the `iteration` (first, last, best or its number) among
    the others; none: of the one of median length.
    """
    paths, detected = _find_files(files, form)

    def read(chosen: str | int | None) -> ImportedRun:
        if detected == "kineto":
            title = name or paths[0].name
            return read_kineto(paths, name=title, groups=groups, degrees=degrees, chosen_step=chosen, progress=progress)
        if detected == "metrics":
            return _read_metrics_run(paths, name, chosen)
        data = _read_all(paths[0], MAX_TRACE_BYTES)
        if detected == "benchmark":
            return read_benchmark(data, name=name or paths[0].name, chosen_step=chosen)
        return _read_own_trace(data, paths[0].name, name, chosen)

    if not skip:
        return read(iteration)
    # the iteration is one of those that are left, so the files are read once to see which these are
    seconds = read(None).drop_first(skip).seconds
    at = find_median_iteration(seconds) if iteration is None else resolve_iteration(iteration, seconds)
    return read(at).drop_first(skip)


def _find_files(files: Sequence[str | Path], form: str) -> tuple[list[Path], str]:
    """The files of a run and their format."""
    if form not in (AUTO, *FORMATS):
        raise build_choice_error("format", form, (AUTO, *FORMATS))
    paths = [path for file in files for path in _list_files(Path(file), form)]
    if not paths:
        raise InvalidError(Notice(code="trace_no_file"))
    for path in paths:
        check_head(_read_head(path), path.name)
    detected = form if form != AUTO else detect_format(paths[0])
    if len(paths) > 1 and detected in SINGLE_FILE_FORMATS:
        raise InvalidError(Notice(code="trace_one_file", value=detected, params={"files": len(paths)}))
    return paths, detected


def collect_degrees(strategy: Strategy) -> dict[str, int]:
    """Parallel degrees of a strategy, by which process groups of a profiler's trace are recognised."""
    degrees = {key: getattr(strategy, key, None) for key in ("tp", "cp", "dp", "pp")}
    return {key: value for key, value in degrees.items() if isinstance(value, int)}


def _list_files(path: Path, form: str) -> list[Path]:
    """The file, or the files of one run in a folder: metrics of all stages, traces of all ranks, or a single file."""
    if not path.is_dir():
        return [path]
    by_form: dict[str, list[Path]] = {}
    for file in sorted(path.iterdir()):
        if file.is_file() and not file.name.startswith(".") and file.name.removesuffix(".gz").endswith(ENDINGS):
            with contextlib.suppress(InputError):
                by_form.setdefault(detect_format(file), []).append(file)
    if form != AUTO:
        by_form = {format_name: files for format_name, files in by_form.items() if format_name == form}
    if not by_form:
        raise FileError(Notice(code="trace_folder_empty", value=str(path), file=str(path)))
    format_name, files = next(iter(by_form.items()))
    if len(by_form) > 1 or (len(files) > 1 and format_name in SINGLE_FILE_FORMATS):
        names = [file.name for files in by_form.values() for file in files][:MOST_NAMED]
        raise InvalidError(Notice(code="trace_folder_several", value=str(path), params={"files": names}))
    return files


def detect_format(path: Path) -> str:
    """What a file holds, from its first bytes; `FileError` where it is nothing known."""
    data = _read_head(path)
    check_head(data, path.name)
    head = data.decode("utf-8-sig", "replace").lstrip()
    if head.startswith(("{", "[")):
        if head.startswith("{") and '"lanes"' in head:
            return "trace" if '"spans"' in head.split("\n", 1)[0] or not _is_json(head.split("\n", 1)[0]) else "metrics"
        return "kineto" if re.search(r'"(traceEvents|schemaVersion|deviceProperties|ph)"', head) else "trace"
    first = head.split("\n", 1)[0]
    cells = [cell.strip().strip('"') for cell in first.split(",")]
    if all(column in cells for column in NEEDED):
        return "trace"
    if any(re.sub(r"[^a-z]", "", line.split(",")[0].lower()) in LABELS for line in head.split("\n")[:50]):
        return "benchmark"
    raise FileError(Notice(code="trace_format_unknown", value=path.name, params={"first": first[:60]}, file=path.name))


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _read_head(path: Path) -> bytes:
    data = b""
    try:
        with path.open("rb") as file:
            for part in iterate_chunks(file, path.name):
                data += part
                if len(data) >= HEAD_BYTES:
                    break
    except OSError as error:
        raise build_unreadable_error(path, error) from None
    return data[:HEAD_BYTES]


def _read_all(path: Path, limit_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            return b"".join(iterate_chunks(file, path.name, limit_bytes=limit_bytes))
    except OSError as error:
        raise build_unreadable_error(path, error) from None


def _read_metrics_run(paths: Sequence[Path], name: str | None, iteration: str | int | None) -> ImportedRun:
    """What the shipped trainer wrote, one file a stage."""
    texts = [_read_all(path, MAX_METRICS_BYTES).decode("utf-8-sig", "replace") for path in paths]
    trace, rows = read_metrics(texts, [path.name for path in paths])
    shown_steps = {step.step for step in trace.steps}
    seconds = {row.step: row.end_s - row.start_s for row in rows if row.step in shown_steps and row.end_s > row.start_s}
    if not seconds:
        raise InvalidError(Notice(code="metrics_empty", file=paths[0].name))
    at = find_median_iteration(seconds) if iteration is None else resolve_iteration(iteration, seconds)
    row = next(row for row in rows if row.step == at)
    figures: dict[str, Any] = {key: getattr(row, key) for key in ("tokens_per_s", "memory_gib") if getattr(row, key)}
    figures |= _collect_figures(trace.meta)
    notices = _collect_missing_notices(trace.meta, paths[0].name)
    if len(shown_steps) < len(rows):
        params = {"count": len(rows), "shown": len(shown_steps)}
        notices.append(Notice(code="trace_steps_left_out", level="warning", params=params, file=paths[0].name))
    if not trace.spans:
        raise InvalidError(Notice(code="trace_empty", field="trace", file=paths[0].name))
    return ImportedRun.from_trace(trace, name=name, figures=figures, notices=tuple(notices), chosen_step=at)


def _read_own_trace(data: bytes, file: str, name: str | None, iteration: str | int | None) -> ImportedRun:
    """Our own trace, as JSON or CSV: wrong rows are reported and left out."""
    try:
        measured = read_measured(data)
    except InputError as error:
        raise type(error)(*(notice.with_place(file, notice.line) for notice in error.notices)) from None
    trace = _read_or_rebuild_trace(data, measured)
    return ImportedRun.from_trace(
        trace,
        measured=measured,
        name=name or (measured.name if measured.name != "trace" else file),
        figures=_collect_figures(trace.meta),
        notices=tuple(_collect_missing_notices(trace.meta, file)),
        chosen_step=iteration,
    )


def _read_or_rebuild_trace(data: bytes, measured: MeasuredTimelines) -> Trace:
    """The trace to keep: as it was given, or made of the rows that could be used."""
    meta: dict[str, Any] = {}
    try:
        trace = read_trace(data)
        if trace.steps:
            return trace
        meta = dict(trace.meta)
    except InputError:
        pass  # a table, or a trace with rows that are wrong: what can be used is put together below
    spans = measured.spans
    columns = (spans.lane, spans.kind, spans.start_s, spans.end_s, spans.micro_batch, spans.chunk)
    rows = []
    for lane, kind, start, end, micro, chunk in zip(*(column.tolist() for column in columns), strict=True):
        row = {"lane": spans.lanes[lane].id, "kind": KINDS[kind], "start_s": start, "end_s": end}
        row |= {key: value for key, value in (("micro_batch", micro), ("chunk", chunk)) if value != NONE}
        rows.append(row)
    steps = [step.model_dump() for step in measured.steps]
    lanes = [lane.model_dump() for lane in spans.lanes]
    fields = {"version": 1, "kind": "measured", "name": measured.name, "unit": "s"}
    return Trace(**fields, lanes=lanes, spans=rows, steps=steps, meta=meta)


def _collect_figures(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Figures that a trace's own words give."""
    figures: dict[str, Any] = {}
    if isinstance(meta.get("ranks"), int) and meta["ranks"] >= 1:
        figures["gpus"] = meta["ranks"]
    if isinstance(meta.get("framework"), str) and meta["framework"].strip():
        figures["framework"] = meta["framework"][:100]
    return figures


def _collect_missing_notices(meta: Mapping[str, Any], file: str) -> list[Notice]:
    """What a trace does not say of its run, though a comparison needs it."""
    missing = [key for key in WANTED_META if not meta.get(key)]
    if not any(meta.get(key) for key in DEGREES):
        missing.append("/".join(DEGREES))
    if not missing:
        return []
    return [Notice(code="trace_meta_missing", level="note", params={"missing": missing}, file=file)]
