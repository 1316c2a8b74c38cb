"""The trace: one document for predicted and measured steps, and its form for a trace viewer."""

from __future__ import annotations

import json

import pytest

from crosszone.errors import FileError, InvalidError
from crosszone.schedule import trace as trace_module
from crosszone.schedule.simulation import simulate
from crosszone.schedule.timeline import build_timeline
from crosszone.schedule.trace import Lane, Span, Trace, TraceStep, build_trace_events, format_perfetto_json, read_trace

MEASURED = {
    "version": 1,
    "kind": "measured",
    "name": "run 7",
    "unit": "s",
    "lanes": [{"id": "stage-0", "name": "北京 a, stage 0", "group": "stages"}],
    "spans": [
        {"lane": "stage-0", "kind": "forward", "start_s": 0.0, "end_s": 0.5, "micro_batch": 0},
        {"lane": "stage-0", "kind": "other", "name": "checkpoint", "start_s": 2, "end_s": 3.25},
    ],
    "steps": [{"step": 12, "start_s": 0.0, "end_s": 3.25}],
    "meta": {"framework": "megatron", "ranks": 8},
}


def changed(**changes):
    return json.dumps({**MEASURED, **changes})


def test_a_document_is_read_and_written_the_same():
    trace = read_trace(json.dumps(MEASURED))
    assert trace.spans[1] == Span(lane="stage-0", kind="other", name="checkpoint", start_s=2, end_s=3.25)
    assert trace.steps == (TraceStep(step=12, start_s=0, end_s=3.25),)
    assert json.loads(trace.to_json()) == MEASURED
    assert read_trace(trace.to_json()) == trace


def test_a_predicted_step_has_the_same_form():
    timeline = build_timeline(
        simulate("1f1b", stages=2, micro_batches=2, forward_s=1, backward_s=2, send_forward_s=0.5)
    )
    trace = timeline.to_trace("two stages", schedule="1f1b")
    assert trace.kind == "predicted"
    assert trace.meta == {"schedule": "1f1b"}
    assert len(trace.spans) == 8 + 2
    assert trace.spans[0] == Span(lane="stage-0", kind="forward", start_s=0, end_s=1, micro_batch=0, chunk=0)
    assert trace.spans[-1].kind == "send" and trace.spans[-1].chunk is None
    assert trace.steps[0].end_s == timeline.step_s
    assert read_trace(trace.to_json()) == trace


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        (
            {"spans": [{"lane": "x", "kind": "forward", "start_s": 0, "end_s": 1}]},
            "trace_lane_unknown",
            "spans[0].lane",
        ),
        (
            {"spans": [{"lane": "stage-0", "kind": "forward", "start_s": 2, "end_s": 1}]},
            "trace_ends_early",
            "spans[0].end_s",
        ),
        ({"steps": [{"step": 0, "start_s": 2, "end_s": 1}]}, "trace_ends_early", "steps[0].end_s"),
        ({"lanes": [MEASURED["lanes"][0]] * 2}, "trace_lane_twice", "lanes[1].id"),
        ({"spans": [{"lane": "stage-0", "kind": "sleep", "start_s": 0, "end_s": 1}]}, "not_one_of", "spans[0].kind"),
        ({"spans": [{"lane": "stage-0", "kind": "send", "start_s": -1, "end_s": 1}]}, "must_be_at_least", None),
        ({"version": 2}, "not_one_of", "version"),
        ({"colour": "red"}, "unknown_key", "colour"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(changes, code, field):
    with pytest.raises(InvalidError) as caught:
        read_trace(changed(**changes))
    notice = caught.value.notices[0]
    assert notice.code == code
    assert field is None or notice.field == field


@pytest.mark.parametrize("text", ["{", "", b"\xff\xfe", "[" * 100_000])
def test_what_is_not_json_is_refused(text):
    with pytest.raises(FileError) as caught:
        read_trace(text, "run.json")
    assert caught.value.notices[0].code == "file_not_yaml"
    assert caught.value.notices[0].file == "run.json"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_a_time_is_a_finite_number(number):
    with pytest.raises(InvalidError):
        read_trace(json.dumps(MEASURED).replace("3.25", number))


def test_a_document_that_is_too_large_is_refused_unread(monkeypatch):
    monkeypatch.setattr(trace_module, "MAX_TRACE_BYTES", 100)
    with pytest.raises(FileError) as caught:
        read_trace(json.dumps(MEASURED))
    assert caught.value.notices[0].code == "trace_too_large"


def test_perfetto_events_carry_microseconds_and_names():
    """Trace Event Format: complete events `X` with ts and dur in microseconds, metadata `M` naming pid and tid."""
    document = json.loads(format_perfetto_json(read_trace(json.dumps(MEASURED))))
    events = document["traceEvents"]
    assert {event["ph"] for event in events} == {"X", "M"}
    named = {event["args"]["name"] for event in events if event["name"] in ("process_name", "thread_name")}
    assert named == {"steps", "stages", "北京 a, stage 0"}
    forward, other = [e for e in events if e["ph"] == "X" and e["cat"] != "step"]
    assert (forward["name"], forward["ts"], forward["dur"]) == ("forward 0", 0, 500_000)
    assert (other["name"], other["ts"], other["dur"]) == ("checkpoint", 2_000_000, 1_250_000)
    assert forward["args"] == {"micro_batch": 0}
    step = next(e for e in events if e.get("cat") == "step")
    assert (step["name"], step["dur"]) == ("step 12", 3_250_000)
    assert document["otherData"] == {"name": "run 7", "kind": "measured", "framework": "megatron", "ranks": 8}


def test_every_event_belongs_to_a_named_thread_of_a_named_process():
    links = {"send_forward_s": 1, "send_backward_s": 1}
    timeline = build_timeline(
        simulate("zbv", stages=3, micro_batches=6, chunks=2, forward_s=1, backward_s=1, weight_s=1, **links)
    )
    events = build_trace_events(timeline.to_trace("v"))["traceEvents"]
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X" and e["cat"] != "step"]
    assert len(spans) == len(timeline.lane)
    assert all(e["pid"] in processes and (e["pid"], e["tid"]) in threads for e in spans)
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in spans)


def test_a_lane_of_the_group_steps_does_not_hide_the_steps():
    trace = Trace(
        kind="measured",
        name="odd",
        lanes=(Lane(id="a", name="a", group="steps"),),
        spans=(Span(lane="a", kind="other", start_s=0, end_s=1),),
        steps=(TraceStep(step=1, start_s=0, end_s=1),),
    )
    events = [e for e in build_trace_events(trace)["traceEvents"] if e["ph"] == "X"]
    assert len({(e["pid"], e["tid"]) for e in events}) == 2
