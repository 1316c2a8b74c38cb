"""[S15] Measured traces: bad rows are told and left out, steps can be chosen, and a prediction is compared."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.errors import FileError, InputError, InvalidError
from crosszone.schedule.measured import MAX_NOTICES, format_spans_csv, read_measured
from crosszone.schedule.simulation import simulate
from crosszone.schedule.timeline import KINDS, build_timeline, build_view, compare_timelines

LANES = [{"id": "stage-0", "name": "stage 0"}, {"id": "stage-1", "name": "stage 1"}]


def span(start, end, lane="stage-0", kind="forward", **more):
    return {"lane": lane, "kind": kind, "start_s": start, "end_s": end, **more}


def document(*spans, **more):
    return json.dumps({"version": 1, "kind": "measured", "name": "run 7", "lanes": LANES, "spans": list(spans), **more})


STEPS = [{"step": 12, "start_s": 10, "end_s": 14}, {"step": 13, "start_s": 14, "end_s": 20}]
TWO_STEPS = document(
    span(10, 11), span(11, 13, kind="backward"), span(14, 15), span(16, 19, kind="backward"), steps=STEPS
)


def test_the_first_and_the_last_step_can_be_chosen_and_start_at_nought():
    found = read_measured(TWO_STEPS)
    assert (found.first, found.last, found.bad, found.notices) == (12, 13, 0, ())
    first, _ = found.timeline(found.first)
    last, _ = found.timeline(found.last)
    assert (first.start_s.tolist(), first.end_s.tolist(), first.step_s) == ([0, 1], [1, 3], 4)
    assert (last.start_s.tolist(), last.end_s.tolist(), last.step_s) == ([0, 2], [1, 5], 6)
    assert first.idle_s.tolist() == [1, 4]


def test_a_step_that_is_not_in_the_trace_is_refused():
    with pytest.raises(InvalidError) as caught:
        read_measured(TWO_STEPS).timeline(14)
    assert caught.value.notices[0].code == "trace_step_unknown"


def test_a_trace_without_steps_is_one_step():
    found = read_measured(document(span(3, 4), span(4, 6)))
    assert [(one.step, one.start_s, one.end_s) for one in found.steps] == [(0, 3, 6)]


def test_bad_rows_are_told_one_by_one_and_the_good_ones_kept():
    rows = [
        span(0, 1),
        span(5, 2),
        span(1, 2, lane="nowhere"),
        span(1, 2, kind="lunch"),
        span(-1, 2),
        span("soon", 2),
        {"lane": "stage-0"},
        "row",
        None,
        span(2, 3, micro_batch=-4),
        span(float("nan"), 2),
        span(1, 1e300),
        span(6, 8),
    ]
    found = read_measured(document(*rows))
    assert found.bad == 11
    assert found.spans.start_s.tolist() == [0, 6]
    codes = [notice.code for notice in found.notices]
    assert codes[:4] == ["trace_rows_bad", "trace_ends_early", "trace_lane_unknown", "not_one_of"]
    assert len(codes) == 12
    assert {notice.level for notice in found.notices} == {"warning"}
    assert [notice.field for notice in found.notices][1:3] == ["spans[1].end_s", "spans[2].lane"]
    for notice in found.notices:
        assert notice.message("en")
        assert notice.message("zh")


def test_only_the_first_bad_rows_are_told_but_all_are_counted():
    found = read_measured(document(span(0, 1), *[span(2, 1)] * 500))
    assert found.bad == 500
    assert len(found.notices) == MAX_NOTICES + 1
    assert found.notices[0].params == {"count": 500, "told": MAX_NOTICES}


def test_lanes_and_steps_that_are_there_twice_are_told():
    twice = [*LANES, {"id": "stage-0", "name": "again"}]
    found = read_measured(document(span(10, 11), steps=[*STEPS, STEPS[0]], lanes=twice))
    assert [notice.code for notice in found.notices] == ["trace_rows_bad", "trace_lane_twice", "trace_step_twice"]
    assert [notice.field for notice in found.notices[1:]] == ["lanes[2]", "steps[2]"]
    assert len(found.steps) == 2


def test_spans_that_overlap_on_a_lane_count_once_and_that_is_told():
    timeline, told = read_measured(document(span(0, 4), span(3, 6), span(1, 2), span(3, 6, lane="stage-1"))).timeline(0)
    assert timeline.busy_s.tolist() == [6, 3]
    assert [(notice.code, notice.params["count"]) for notice in told] == [("trace_overlap", 2)]


def test_spans_that_reach_over_a_step_count_as_far_as_they_lie_in_it():
    found = read_measured(document(span(8, 16), steps=STEPS))
    assert found.timeline(12)[0].busy_s.tolist() == [4, 0]
    assert found.timeline(13)[0].busy_s.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("text", "error", "code"),
    [
        ("", InvalidError, "trace_columns"),
        ("{", FileError, "file_not_yaml"),
        ("[1]", InvalidError, "must_be_mapping"),
        ("[" * 100_000, FileError, "file_not_yaml"),
        ("{}", InvalidError, "trace_empty"),
        (document(), InvalidError, "trace_empty"),
        ('{"lanes": 3, "spans": {"a": 1}, "steps": "x"}', InvalidError, "trace_empty"),
        ("lane,kind\nstage-0,forward\n", InvalidError, "trace_columns"),
        ("lane,kind,start_s,end_s\n", InvalidError, "trace_empty"),
    ],
)
def test_what_holds_no_span_is_refused_with_the_reason(text, error, code):
    with pytest.raises(error) as caught:
        read_measured(text)
    assert caught.value.notices[0].code == code


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["lanes", "spans", "steps", "id", "lane", "kind", "start_s", "end_s", "step", "name"]), inner, max_size=5), max_leaves=20))  # fmt: skip
def test_no_document_breaks_the_reader(value):
    try:
        read_measured(json.dumps(value))
    except InputError as error:
        assert error.notices


def pipeline():
    return build_timeline(simulate("1f1b", stages=2, micro_batches=3, forward_s=1, backward_s=2, send_forward_s=0.5))


@pytest.mark.parametrize("write", [format_spans_csv, lambda timeline: timeline.to_trace("run").to_json()])
def test_what_is_written_reads_back_the_same(write):
    timeline = pipeline()
    back, told = read_measured(write(timeline)).timeline(0)
    assert told == []
    assert [lane.id for lane in back.lanes] == [lane.id for lane in timeline.lanes]
    assert back.busy_s == pytest.approx(timeline.busy_s)
    ours, theirs = build_view(timeline), build_view(back)
    assert theirs["phases"] == ours["phases"]
    assert theirs["bubbles"] == ours["bubbles"]
    assert theirs["micro_batches"] == 3


def test_a_table_may_hold_several_steps_and_bad_rows():
    text = (
        "\ufefflane,kind,start_s,end_s,micro_batch,step\n"
        "rank 0,forward,1,2,0,7\nrank 0,backward,2,4,0,7\nrank 0,forward,x,6,0,8\n"
        "rank 0,lunch,5,6,0,8\nrank 0,forward,5,6,,8\n,forward,5,6,,8\n"
    )
    found = read_measured(text)
    assert [(one.step, one.start_s, one.end_s) for one in found.steps] == [(7, 1, 4), (8, 5, 6)]
    assert found.bad == 3
    assert found.timeline(8)[0].micro_batch.tolist() == [-1]
    assert [KINDS[kind] for kind in found.timeline(7)[0].kind] == ["forward", "backward"]


def test_the_difference_by_phase_and_kind_is_worked_out_by_hand():
    """[S15] Predicted: 3 forwards of 1 s, 3 backwards of 2 s on each of two stages; measured: backwards of 2.5 s.

    Warm-up is 2 f = 2 s in both; the step 4 (f + b) = 12 s against 14 s.
    """
    one, other = (
        build_timeline(simulate("1f1b", stages=2, micro_batches=3, forward_s=1, backward_s=back)) for back in (2, 2.5)
    )
    found = compare_timelines(one, other)
    assert (found["step"]["predicted_s"], found["step"]["measured_s"]) == (12, 14)
    assert found["step"]["difference_pct"] == pytest.approx(100 * -2 / 14)
    kinds = {row["part"]: row for row in found["kinds"]}
    assert kinds["backward"]["difference_s"] == pytest.approx(-1.5)
    assert kinds["backward"]["difference_pct"] == pytest.approx(-20)
    assert kinds["forward"]["difference_pct"] == 0
    assert kinds["idle"]["predicted_s"] == 3
    phases = {row["part"]: row for row in found["phases"]}
    assert phases["warm_up"]["difference_pct"] == 0
    assert sum(row["difference_s"] for row in found["phases"]) == pytest.approx(-2)
    assert [row["part"] for row in found["lanes"]] == ["stage-0", "stage-1"]


def test_what_was_not_measured_has_no_percentage():
    """[S15]"""
    found = compare_timelines(pipeline(), read_measured(document(span(0, 1))).timeline(0)[0])
    kinds = {row["part"]: row["difference_pct"] for row in found["kinds"]}
    assert kinds["backward"] is None
    assert kinds["forward"] == pytest.approx(200)
