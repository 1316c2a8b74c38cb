"""Metrics that a trainer wrote, read back as one trace and a table of steps."""

from __future__ import annotations

import json

import pytest

from crosszone.errors import FileError, InputError
from crosszone.schedule import measured
from crosszone.schedule.measured import read_metrics


def header(stage=0, unix=1000.0):
    lanes = [{"id": f"stage-{stage}", "name": f"beijing-a, stage {stage}", "group": "stages"}]
    meta = {"framework": "ddp", "stage": stage, "started_unix_s": unix}
    return {"version": 1, "kind": "measured", "name": "two zones", "unit": "s", "lanes": lanes, "meta": meta}


def row(step, start, end, stage=0, **more):
    span = {"lane": f"stage-{stage}", "kind": "forward", "start_s": start, "end_s": end, "micro_batch": 0}
    return {"step": step, "start_s": start, "end_s": end, "spans": [span], **more}


def lines(*documents):
    return "".join(json.dumps(one) + "\n" for one in documents)


def test_stages_merge_into_one_trace_and_one_table():
    first = lines(header(0), row(1, 0.5, 2.0, memory_gib=3.0, tokens=100, loss=None))
    second = lines(header(1), row(1, 0.6, 2.5, stage=1, memory_gib=5.0, tokens=100, loss=4.0, lr=0.1, participants=2))
    trace, steps = read_metrics([first, second])
    assert [lane.id for lane in trace.lanes] == ["stage-0", "stage-1"]
    assert [(span.lane, span.end_s) for span in trace.spans] == [("stage-0", 2.0), ("stage-1", 2.5)]
    assert (trace.name, trace.kind, trace.meta["framework"]) == ("two zones", "measured", "ddp")
    (step,) = steps
    assert (step.start_s, step.end_s, step.loss, step.lr, step.memory_gib) == (0.5, 2.5, 4.0, 0.1, 5.0)
    assert step.tokens_per_s == 50.0  # 100 tokens from 0.5 to 2.5 s


def test_a_line_that_a_crash_cut_off_is_left_out():
    text = lines(header(), row(1, 0, 1)) + '{"step": 2, "start_s": 1.0, "en'
    assert [step.step for step in read_metrics([text])[1]] == [1]


def test_a_resumed_run_goes_on_in_time_and_takes_the_place_of_steps_done_again():
    crashed = lines(header(unix=1000.0), row(1, 0, 1, loss=3.0), row(2, 1, 2, loss=2.0), row(3, 2, 3, loss=9.0))
    resumed = lines(header(unix=1060.0), row(2, 0.5, 1.5, loss=2.5))
    trace, steps = read_metrics([crashed + '{"step": 4, "sta\n' + resumed])
    assert [(step.step, step.loss) for step in steps] == [(1, 3.0), (2, 2.5)]
    assert (steps[1].start_s, steps[1].end_s) == (60.5, 61.5)
    assert [(span.start_s, span.end_s) for span in trace.spans if span.start_s > 2] == [(60.5, 61.5)]


def test_a_clock_set_back_never_puts_a_later_start_before_an_earlier_one():
    text = lines(header(unix=1000.0), row(1, 0, 5)) + lines(header(unix=900.0), row(2, 1, 2))
    assert [(step.start_s, step.end_s) for step in read_metrics([text])[1]] == [(0, 5), (6, 7)]


def test_a_step_that_one_stage_lacks_is_no_step():
    first, second = lines(header(0), row(1, 0, 1), row(2, 1, 2)), lines(header(1), row(1, 0, 1, stage=1))
    trace, steps = read_metrics([first, second])
    assert [step.step for step in steps] == [1]
    assert len(trace.spans) == 2


def test_the_trace_of_a_long_run_holds_its_last_steps(monkeypatch):
    monkeypatch.setattr(measured, "MAX_SPANS", 3)
    trace, steps = read_metrics([lines(header(), *(row(n, n, n + 1) for n in range(1, 11)))])
    assert len(steps) == 10
    assert [step.step for step in trace.steps] == [8, 9, 10]


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (lines(header(), row(1, 0, 1)) + "{oops\n" + lines(row(2, 1, 2)), "file_not_yaml", 2 + 1),
        (lines(row(1, 0, 1)), "metrics_no_header", 1),
        (lines(header()), "metrics_empty", None),
        ("", "metrics_empty", None),
        (lines(header(), row(1, 0, 1), row(2, 2, 1)), "trace_ends_early", 3),
        (lines(header(), {"step": 1}), "missing_key", 2),
        (lines(header(), [1]), "must_be_mapping", 2),
        (lines(header(), {"step": 1, "start_s": 0, "end_s": 1, "spans": 3}), "must_be_list", 2),
        (lines(header(), row(1, 0, 1, stage=4)), "trace_lane_unknown", None),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text, code, line):
    with pytest.raises(InputError) as raised:
        read_metrics([text], ["m.jsonl"])
    assert (raised.value.notices[0].code, raised.value.notices[0].line) == (code, line)
    assert raised.value.notices[0].message("zh")


def test_the_same_stage_twice_and_files_of_two_runs_are_refused():
    text = lines(header(), row(1, 0, 1))
    with pytest.raises(InputError) as raised:
        read_metrics([text, text])
    assert raised.value.notices[0].code == "trace_lane_twice"
    with pytest.raises(FileError) as raised:
        read_metrics([text, lines(header(1), row(7, 0, 1, stage=1))])
    assert raised.value.notices[0].code == "metrics_no_common_step"
    with pytest.raises(FileError):
        read_metrics([])
