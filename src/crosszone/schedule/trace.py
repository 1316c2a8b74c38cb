"""Trace: the one format of steps that were predicted and steps that were measured.

    {"version": 1, "kind": "measured", "name": "run 7", "unit": "s",
     "lanes": [{"id": "stage-0", "name": "beijing-a, stage 0", "group": "stages"}],
     "spans": [{"lane": "stage-0", "kind": "forward", "start_s": 0.0, "end_s": 0.1, "micro_batch": 0}],
     "steps": [{"step": 12, "start_s": 0.0, "end_s": 3.4}],
     "meta": {"framework": "megatron"}}

Times count from the start of the trace.

`format_perfetto_json`: a trace as Trace Event JSON, which ui.perfetto.dev and chrome://tracing open. The format is the
"Trace Event Format" of the Chromium project: complete events (`X`) with start and duration in microseconds, metadata
events (`M`) that name processes and threads. A group of lanes is a process, a lane a thread.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import Field, Strict, model_validator

from crosszone.errors import FileError, Notice
from crosszone.inputs.value import Name, NotNegative, Value, parse, refuse

MAX_TRACE_BYTES = 64 * 1024 * 1024
MAX_SPANS = 400_000
MAX_LANES = 10_000

# Passes of a pipeline stage, messages between stages, collectives by what they carry, and the rest.
SpanKind = Literal[
    "forward",
    "backward",
    "weight",
    "send",
    "tensor",
    "experts",
    "gradients",
    "parameters",
    "optimizer",
    "data",
    "other",
]
Index = Annotated[int, Strict(), Field(ge=0, le=10_000_000)]


class Lane(Value):
    """A place where one thing happens at a time: a stage, a link, a stream."""

    id: Name
    """What spans call it; once in a trace."""
    name: Annotated[str, Field(min_length=1, max_length=400)]
    """What a reader calls it; the name of a link holds those of two zones."""
    group: Name = "stages"
    """Lanes shown together: stages, links, gradients, ..."""


class Span(Value):
    """Something that took time on a lane."""

    lane: Name
    """Id of the lane."""
    kind: SpanKind
    """What it was."""
    name: Name | None = None
    """What a reader calls it; null: its kind."""
    start_s: NotNegative
    """Start, s from the start of the trace."""
    end_s: NotNegative
    """End, s from the start of the trace."""
    micro_batch: Index | None = None
    """Micro-batch it belongs to, from 0."""
    chunk: Index | None = None
    """Chunk of the stage it belongs to, from 0."""


class TraceStep(Value):
    """One optimizer step of a trace."""

    step: Index
    """Number of the step in its run."""
    start_s: NotNegative
    """Start, s from the start of the trace."""
    end_s: NotNegative
    """End, s from the start of the trace."""


class Trace(Value):
    """Lanes, spans and steps of a predicted or measured run."""

    version: Literal[1] = 1
    """Version of this format."""
    kind: Literal["predicted", "measured"]
    """Where the times come from."""
    name: Name
    """What it is a trace of."""
    unit: Literal["s"] = "s"
    """Unit of all times."""
    lanes: Annotated[tuple[Lane, ...], Field(max_length=MAX_LANES)]
    """Where things happened."""
    spans: Annotated[tuple[Span, ...], Field(max_length=MAX_SPANS)]
    """What happened, in any order."""
    steps: Annotated[tuple[TraceStep, ...], Field(max_length=MAX_LANES)] = ()
    """When each optimizer step began and ended."""
    meta: Annotated[dict[Name, str | int | float | bool], Field(max_length=200)] = Field(default_factory=dict)
    """Anything else worth keeping, such as the framework or a placement."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        lanes: set[str] = set()
        for index, lane in enumerate(self.lanes):
            if lane.id in lanes:
                raise refuse("trace_lane_twice", lane.id, at=("lanes", index, "id"))
            lanes.add(lane.id)
        for index, span in enumerate(self.spans):
            if span.lane not in lanes:
                raise refuse(
                    "trace_lane_unknown",
                    span.lane,
                    at=("spans", index, "lane"),
                    known=[lane.id for lane in self.lanes[:8]],
                )
            if span.end_s < span.start_s:
                raise refuse("trace_ends_early", span.end_s, at=("spans", index, "end_s"), start_s=span.start_s)
        for index, step in enumerate(self.steps):
            if step.end_s < step.start_s:
                raise refuse("trace_ends_early", step.end_s, at=("steps", index, "end_s"), start_s=step.start_s)
        return self

    def to_json(self) -> str:
        """The document, on one line; `read_trace` makes the same trace of it."""
        return self.model_dump_json(exclude_none=True)


def read_trace(text: str | bytes, file: str = "<text>") -> Trace:
    """The trace a JSON document holds; an `InputError` names what is wrong with it."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if len(data) > MAX_TRACE_BYTES:
        params = {"limit_mib": MAX_TRACE_BYTES // 2**20}
        raise FileError(Notice(code="trace_too_large", value=file, params=params, file=file))
    try:
        document: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        line, reason = getattr(error, "lineno", None), getattr(error, "msg", "nested too deeply or not text")
        raise FileError(Notice(code="file_not_yaml", params={"reason": reason}, file=file, line=line)) from None
    return parse(Trace, document)


US_PER_S = 1e6
STEPS = "steps"


def build_trace_events(trace: Trace) -> dict[str, Any]:
    """The document as plain values, ready for JSON."""
    groups = list(dict.fromkeys([*([STEPS] if trace.steps else []), *(lane.group for lane in trace.lanes)]))
    process = {group: number for number, group in enumerate(groups, 1)}
    thread = {lane.id: (process[lane.group], number) for number, lane in enumerate(trace.lanes, 1)}
    events = [_build_name_event("process_name", pid, 0, name=group) for group, pid in process.items()]
    events += [_build_name_event("process_sort_index", pid, 0, sort_index=pid) for pid in process.values()]
    for lane in trace.lanes:
        events.append(_build_name_event("thread_name", *thread[lane.id], name=lane.name))
        events.append(_build_name_event("thread_sort_index", *thread[lane.id], sort_index=thread[lane.id][1]))
    for step in trace.steps:
        events.append(_build_span_event(f"step {step.step}", "step", (process[STEPS], 0), step.start_s, step.end_s, {}))
    for span in trace.spans:
        about = {"micro_batch": span.micro_batch, "chunk": span.chunk}
        arguments = {key: value for key, value in about.items() if value is not None}
        name = span.name or " ".join([span.kind, *([str(span.micro_batch)] if span.micro_batch is not None else [])])
        events.append(_build_span_event(name, span.kind, thread[span.lane], span.start_s, span.end_s, arguments))
    other = {"name": trace.name, "kind": trace.kind, **trace.meta}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def format_perfetto_json(trace: Trace) -> str:
    """The text of a file that Perfetto opens."""
    return json.dumps(build_trace_events(trace), ensure_ascii=False, separators=(",", ":"))


def _build_name_event(what: str, pid: int, tid: int, **arguments: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": arguments}


def _build_span_event(
    name: str, category: str, thread: tuple[int, int], start_s: float, end_s: float, arguments: dict[str, int]
) -> dict[str, Any]:
    times = {"ts": start_s * US_PER_S, "dur": (end_s - start_s) * US_PER_S}
    return {"ph": "X", "name": name, "cat": category, "pid": thread[0], "tid": thread[1], **times, "args": arguments}
