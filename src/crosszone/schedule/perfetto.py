"""Perfetto: a trace as Trace Event JSON, which ui.perfetto.dev and chrome://tracing open.

Format: "Trace Event Format" of the Chromium project: complete events (`X`) with start and duration in microseconds,
metadata events (`M`) that name processes and threads. A group of lanes is a process, a lane a thread.
"""

from __future__ import annotations

import json
from typing import Any

from crosszone.schedule.trace import Trace

US_PER_S = 1e6
STEPS = "steps"


def trace_events(trace: Trace) -> dict[str, Any]:
    """The document as plain values, ready for JSON."""
    groups = list(dict.fromkeys([*([STEPS] if trace.steps else []), *(lane.group for lane in trace.lanes)]))
    process = {group: number for number, group in enumerate(groups, 1)}
    thread = {lane.id: (process[lane.group], number) for number, lane in enumerate(trace.lanes, 1)}
    events = [_names("process_name", pid, 0, name=group) for group, pid in process.items()]
    events += [_names("process_sort_index", pid, 0, sort_index=pid) for pid in process.values()]
    for lane in trace.lanes:
        events.append(_names("thread_name", *thread[lane.id], name=lane.name))
        events.append(_names("thread_sort_index", *thread[lane.id], sort_index=thread[lane.id][1]))
    for step in trace.steps:
        events.append(_complete(f"step {step.step}", "step", (process[STEPS], 0), step.start_s, step.end_s, {}))
    for span in trace.spans:
        about = {"micro_batch": span.micro_batch, "chunk": span.chunk}
        arguments = {key: value for key, value in about.items() if value is not None}
        name = span.name or " ".join([span.kind, *([str(span.micro_batch)] if span.micro_batch is not None else [])])
        events.append(_complete(name, span.kind, thread[span.lane], span.start_s, span.end_s, arguments))
    other = {"name": trace.name, "kind": trace.kind, **trace.meta}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def perfetto_json(trace: Trace) -> str:
    """The text of a file that Perfetto opens."""
    return json.dumps(trace_events(trace), ensure_ascii=False, separators=(",", ":"))


def _names(what: str, pid: int, tid: int, **arguments: str | int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": arguments}


def _complete(
    name: str, category: str, thread: tuple[int, int], start_s: float, end_s: float, arguments: dict[str, int]
) -> dict[str, Any]:
    times = {"ts": start_s * US_PER_S, "dur": (end_s - start_s) * US_PER_S}
    return {"ph": "X", "name": name, "cat": category, "pid": thread[0], "tid": thread[1], **times, "args": arguments}
