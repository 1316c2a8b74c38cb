"""[S10] The timeline of a step: lanes, spans, and sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.schedule.simulation import simulate
from crosszone.schedule.timeline import KINDS, build_timeline
from crosszone.schedule.trace import Lane

LINKS = {"send_forward_s": 2, "send_backward_s": 2, "latency_forward_s": 5, "latency_backward_s": 5}
GRADIENTS = Lane(id="gradients-0", name="gradients of stage 0", group="gradients")


def small():
    """GPipe of two stages and two micro-batches over a link; ends at 22 (see test_simulation)."""
    return build_timeline(simulate("gpipe", stages=2, micro_batches=2, forward_s=1, backward_s=1, **LINKS))


def spans_of(timeline, lane):
    here = timeline.lane == [one.id for one in timeline.lanes].index(lane)
    kinds = [KINDS[kind] for kind in timeline.kind[here]]
    return list(zip(kinds, timeline.start_s[here].tolist(), timeline.end_s[here].tolist(), strict=True))


def test_each_stage_and_each_direction_of_a_link_has_a_lane():
    timeline = small()
    assert [lane.id for lane in timeline.lanes] == ["stage-0", "stage-1", "link-0-1", "link-1-0"]
    assert spans_of(timeline, "stage-1") == [
        ("forward", 8, 9),
        ("forward", 10, 11),
        ("backward", 11, 12),
        ("backward", 12, 13),
    ]
    assert spans_of(timeline, "link-1-0") == [("send", 12, 14), ("send", 14, 16)]


def test_spans_and_idle_time_of_a_lane_add_up_to_the_step():
    """[S10] Of 22 s each stage computes 4, each direction of the link carries 4."""
    timeline = small()
    assert timeline.step_s == 22
    assert timeline.busy_s.tolist() == [4, 4, 4, 4]
    assert timeline.idle_s.tolist() == [18, 18, 18, 18]


def test_a_link_that_costs_nothing_has_no_lane():
    timeline = build_timeline(simulate("1f1b", stages=2, micro_batches=2, forward_s=1, backward_s=2))
    assert [lane.id for lane in timeline.lanes] == ["stage-0", "stage-1"]


def test_stages_may_have_names_of_their_own():
    found = simulate("gpipe", stages=2, micro_batches=2, forward_s=1, backward_s=1, **LINKS)
    lanes = build_timeline(found, ("beijing-a", "shanghai-a")).lanes
    assert [lane.name for lane in lanes] == [
        "beijing-a",
        "shanghai-a",
        "beijing-a > shanghai-a",
        "shanghai-a > beijing-a",
    ]


def test_a_caller_adds_what_follows_the_pipeline():
    timeline = small().with_spans(GRADIENTS, "gradients", 22, 25).with_spans(GRADIENTS, "optimizer", [25, 26], [26, 28])
    assert timeline.step_s == 28
    assert spans_of(timeline, "gradients-0") == [("gradients", 22, 25), ("optimizer", 25, 26), ("optimizer", 26, 28)]
    assert timeline.busy_s[-1] == 6
    assert timeline.idle_s.tolist() == [24, 24, 24, 24, 22]


def test_a_span_that_ends_before_it_starts_is_refused():
    with pytest.raises(ValueError, match="before they start"):
        small().with_spans(GRADIENTS, "gradients", 3, 2)


def test_a_timeline_shows_one_step():
    with pytest.raises(ValueError, match="one step"):
        build_timeline(simulate("1f1b", stages=2, micro_batches=2, forward_s=np.ones((3, 2, 1)), backward_s=1))


@given(
    st.sampled_from([("1f1b", 1), ("interleaved", 2), ("zbv", 2), ("delay-aware", 1)]),
    st.integers(1, 5),
    st.integers(1, 12),
    st.integers(0, 2**32 - 1),
)
def test_lanes_do_one_thing_at_a_time_and_stages_wait_as_simulated(schedule, stages, micro_batches, seed):
    """[S10]"""
    rng = np.random.default_rng(seed)
    name, chunks = schedule
    compute = {key: rng.integers(1, 9, (stages, chunks)) for key in ("forward_s", "backward_s", "weight_s")}
    links = {key: rng.integers(0, 9, stages * chunks - 1) for key in LINKS}
    found = simulate(name, stages=stages, micro_batches=micro_batches, chunks=chunks, **compute, **links)
    timeline = build_timeline(found)
    assert timeline.step_s == found.makespan_s
    assert timeline.idle_s[:stages].tolist() == found.idle_s.tolist()
    for lane in range(len(timeline.lanes)):
        order = np.lexsort((timeline.end_s[timeline.lane == lane], timeline.start_s[timeline.lane == lane]))
        start, end = (times[timeline.lane == lane][order] for times in (timeline.start_s, timeline.end_s))
        assert np.all(start[1:] >= end[:-1])
