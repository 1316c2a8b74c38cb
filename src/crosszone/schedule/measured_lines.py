"""Measured lines: the metrics of a run (`metrics-stage-K.jsonl`, one line a step) as a trace and a table of steps.

    trace, steps = read_metrics([Path("out/metrics-stage-0.jsonl").read_text(), ...])
    steps[-1].loss, steps[-1].tokens_per_s

Every start of a run appends a header and then its steps, its times from when all ranks were ready. A run that resumes
overwrites the steps it does again; the line that a crash cut off is left out; a step counts when every stage has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from crosszone.errors import FileError, InputError, Notice
from crosszone.inputs.value import NotNegative, Value, parse
from crosszone.schedule.trace import MAX_LANES, MAX_SPANS, Index, Span, Trace

MAX_METRICS_BYTES = 256 * 1024 * 1024


class StepRow(Value):
    """One step of a run over all its stages; what was not measured is null."""

    step: Index
    """Number of the step, from 1."""
    start_s: NotNegative
    """Start on the first stage that began it, s from the first start of the run."""
    end_s: NotNegative
    """End on the last stage that ended it."""
    loss: float | None = None
    """Mean over all samples of the step."""
    lr: float | None = None
    """Learning rate."""
    grad_norm: float | None = None
    """Norm of the gradient before clipping."""
    tokens: NotNegative | None = None
    """Tokens of the step over all ranks."""
    tokens_per_s: NotNegative | None = None
    """Tokens a second over all ranks."""
    memory_gib: NotNegative | None = None
    """Peak memory of the stage that has most, GiB."""


@dataclass
class _Start:
    """One start of one stage: its header and its steps by number."""

    header: dict[str, Any]
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def unix_s(self) -> float:
        """When it began by the clock of its machine; 0 where the header does not say."""
        meta = self.header.get("meta")
        value = meta.get("started_unix_s") if isinstance(meta, dict) else None
        return float(value) if isinstance(value, int | float) else 0.0

    @property
    def end_s(self) -> float:
        """When its last step ended, s from its own start."""
        return max((row["end_s"] for row in self.rows.values()), default=0.0)


def read_metrics(texts: Sequence[str], files: Sequence[str] = ()) -> tuple[Trace, list[StepRow]]:
    """The trace and the steps of a run from the files of its stages; an `InputError` names the line that is wrong.

    A trace holds the last steps that fit into one; the table has all of them. `files` are names for messages.
    """
    names = [files[at] if at < len(files) else f"metrics {at}" for at in range(len(texts))]
    stages = [list(_starts(text, name)) for text, name in zip(texts, names, strict=True)]
    if not stages:
        raise FileError(Notice(code="metrics_empty"))
    for starts, name in zip(stages, names, strict=True):
        if not any(start.rows for start in starts):
            raise FileError(Notice(code="metrics_empty", file=name))
    offsets = _offsets(stages)
    kept = [_merged(starts, offsets) for starts in stages]
    common = sorted(set.intersection(*(set(rows) for rows in kept)))
    if not common:
        raise FileError(Notice(code="metrics_no_common_step", params={"files": len(names)}))
    steps = [_step([rows[number] for rows in kept]) for number in common]
    return _trace(stages, kept, steps), steps


def _starts(text: str, name: str) -> Iterator[_Start]:
    """The starts in a file, one after the other."""
    if len(text) > MAX_METRICS_BYTES:
        params = {"limit_mib": MAX_METRICS_BYTES // 2**20}
        raise FileError(Notice(code="trace_too_large", value=name, params=params, file=name))
    current: _Start | None = None
    cut: FileError | None = None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            # Good only at the end of a start: a crash cut the line off.
            reason = getattr(error, "msg", "nested too deeply")
            cut = cut or FileError(Notice(code="file_not_yaml", params={"reason": reason}, file=name, line=number))
            continue
        if isinstance(document, dict) and "lanes" in document:
            if current:
                yield current
            current, cut = _Start(document), None
            continue
        if cut:
            raise cut
        if current is None:
            raise FileError(Notice(code="metrics_no_header", file=name, line=number))
        row = _checked(document, name, number)
        current.rows[row["step"]] = row
    if current is None:
        raise cut or FileError(Notice(code="metrics_empty", file=name))
    yield current


def _checked(document: Any, name: str, line: int) -> dict[str, Any]:
    """A step's line with what is known of it; further keys are left out, for a trainer may write more."""
    known = (
        {key: document[key] for key in StepRow.model_fields if key in document} if isinstance(document, dict) else {}
    )
    try:
        row = parse(StepRow, known if known else document)
        if row.end_s < row.start_s:
            params = {"start_s": row.start_s}
            raise FileError(Notice(code="trace_ends_early", field="end_s", value=row.end_s, params=params))
        spans = document.get("spans", ())
        if not isinstance(spans, list | tuple):
            raise FileError(Notice(code="must_be_list", field="spans", value=spans))
        spans = [parse(Span, span, at=("spans", at)) for at, span in enumerate(spans)]
    except InputError as error:
        raise type(error)(*(notice.at(name, line) for notice in error.notices)) from None
    return {**row.model_dump(), "spans": spans}


def _offsets(stages: list[list[_Start]]) -> list[float]:
    """Seconds from the first start of the run to each start, by the clock of one machine.

    Clocks of machines differ, so every stage takes the same ones: those of the stage that has seen most starts.
    """
    longest = max(stages, key=len)
    found: list[float] = []
    for at, start in enumerate(longest):
        before = at - 1 - len(longest)  # From the end: a stage that has seen fewer starts has missed the first ones.
        ended = max((starts[before].end_s for starts in stages if at and -before <= len(starts)), default=0.0)
        after = found[-1] + ended if found else 0.0
        found.append(max(start.unix_s - longest[0].unix_s, after))
    return found


def _merged(starts: list[_Start], offsets: list[float]) -> dict[int, dict[str, Any]]:
    """The steps of a stage from the first start of the run on; a start takes the place of the steps it did again."""
    rows: dict[int, dict[str, Any]] = {}
    for start, offset in zip(starts, offsets[len(offsets) - len(starts) :], strict=True):
        if start.rows:
            first = min(start.rows)
            rows = {number: row for number, row in rows.items() if number < first}
        for number, row in start.rows.items():
            rows[number] = row | {"start_s": row["start_s"] + offset, "end_s": row["end_s"] + offset, "offset": offset}
    return rows


def _step(rows: list[dict[str, Any]]) -> StepRow:
    """One step of all stages: the loss is known to some of them, the memory is the largest."""

    def known(key: str) -> list[Any]:
        return [row[key] for row in rows if row[key] is not None]

    start, end = min(known("start_s")), max(known("end_s"))
    tokens = max(known("tokens"), default=None)
    return StepRow(
        step=rows[0]["step"],
        start_s=start,
        end_s=end,
        loss=next(iter(known("loss")), None),
        lr=next(iter(known("lr")), None),
        grad_norm=next(iter(known("grad_norm")), None),
        tokens=tokens,
        tokens_per_s=tokens / (end - start) if tokens is not None and end > start else None,
        memory_gib=max(known("memory_gib"), default=None),
    )


def _trace(stages: list[list[_Start]], kept: list[dict[int, dict[str, Any]]], steps: list[StepRow]) -> Trace:
    """The last steps that fit into a trace."""
    headers = [starts[-1].header for starts in stages]
    spans: list[Span] = []
    shown: list[StepRow] = []
    for step in reversed(steps[-MAX_LANES:]):
        own = [(span, rows[step.step]["offset"]) for rows in kept for span in rows[step.step]["spans"]]
        if len(spans) + len(own) > MAX_SPANS:
            break
        spans += [span.model_copy(update={"start_s": span.start_s + at, "end_s": span.end_s + at}) for span, at in own]
        shown.append(step)
    meta = headers[0].get("meta")
    document: dict[str, Any] = {
        **{key: headers[0][key] for key in ("version", "kind", "name", "unit") if key in headers[0]},
        "lanes": [
            lane for header in headers for lane in (header["lanes"] if isinstance(header["lanes"], list) else [])
        ],
        "spans": spans,
        "steps": [{"step": s.step, "start_s": s.start_s, "end_s": s.end_s} for s in reversed(shown)],
        "meta": {key: value for key, value in meta.items() if key != "stage"} if isinstance(meta, dict) else {},
    }
    return parse(Trace, document)
