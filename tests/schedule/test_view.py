"""[S10] [S13] A timeline as a page draws it: lanes, bubbles, phases and totals that add up; windows of long steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.schedule.simulation import simulate
from crosszone.schedule.timeline import build_timeline, build_view, list_phases, measure_exposed_s
from crosszone.schedule.trace import Lane

REPLICAS = Lane(id="replicas-0", name="replicas of stage 0", group="gradients")


def pipeline(schedule="1f1b", stages=4, micro_batches=8, **more):
    return build_timeline(
        simulate(schedule, stages=stages, micro_batches=micro_batches, forward_s=1, backward_s=2, **more)
    )


def lengths(timeline):
    return {one.phase: one.seconds for one in list_phases(timeline)}


def test_one_forward_one_backward_waits_as_long_as_the_textbook_says():
    """[S10] Each of 4 stages waits (p - 1)(f + b) = 9 s of (m + p - 1)(f + b) = 33 s and computes 8 x 3 = 24 s."""
    view = build_view(pipeline())
    assert view["step_s"] == 33
    assert [lane["idle_s"] for lane in view["lanes"]] == [9, 9, 9, 9]
    assert [lane["parts"] for lane in view["lanes"]] == [{"forward": 8, "backward": 16}] * 4
    assert view["lanes"][0]["utilisation"] == pytest.approx(24 / 33)
    assert [(one["kind"], one["seconds"]) for one in view["totals"]] == [("forward", 8), ("backward", 16), ("idle", 9)]
    assert view["micro_batches"] == 8


def test_the_bubbles_of_the_first_and_last_stage_are_where_one_draws_them():
    """[S10] The last stage waits 3 s for the first micro-batch and 6 s for the others to finish; the first one between."""
    found = build_view(pipeline())["bubbles"]
    rows = list(zip(found["lane"], found["start_s"], found["end_s"], strict=True))
    assert [row[1:] for row in rows if row[0] == 3] == [(0, 3), (27, 33)]
    assert [row[1:] for row in rows if row[0] == 0] == [(4, 10), (24, 25), (27, 28), (30, 31)]


def test_phases_of_one_forward_one_backward():
    """[S13] First backward at p f = 4; the last stage's last forward ends at 3 + 7 x 3 + 1 = 25; all ends at 33."""
    assert lengths(pipeline()) == {"warm_up": 4, "steady": 21, "cool_down": 8, "tail": 0}


def test_gpipe_has_no_steady_phase():
    """[S13] 4 stages, 8 micro-batches: 11 forwards in a row, then 11 backwards of 2 s."""
    assert lengths(pipeline("gpipe")) == {"warm_up": 11, "steady": 0, "cool_down": 22, "tail": 0}


def test_what_follows_the_last_pass_is_the_tail_and_its_communication_is_exposed():
    """[S13] Gradients from 30 to 36 s: 3 s behind passes, 3 s after them; then 1 s of update."""
    timeline = pipeline().with_spans(REPLICAS, "gradients", 30, 36)
    timeline = timeline.with_spans(timeline.lanes[0], "optimizer", 36, 37)
    tail = list_phases(timeline)[-1]
    assert (tail.start_s, tail.end_s, tail.exposed_s) == (33, 37, 3)
    assert tail.busy_s == pytest.approx(1 / 4)
    assert measure_exposed_s(timeline, 0, 37) == 3


def test_a_step_without_passes_is_all_tail():
    timeline = build_view(pipeline(micro_batches=1, stages=1))
    assert [one["seconds"] for one in timeline["phases"]] == [1, 0, 2, 0]
    only = pipeline(micro_batches=1, stages=1)
    nothing = type(only)(lanes=only.lanes, **{k: getattr(only, k)[:0] for k in ("lane", "kind", "start_s", "end_s")},
                         micro_batch=only.micro_batch[:0], chunk=only.chunk[:0], stated_s=5.0)  # fmt: skip
    assert lengths(nothing) == {"warm_up": 0, "steady": 0, "cool_down": 0, "tail": 5}
    assert build_view(nothing)["bubbles"] == {"lane": [0], "start_s": [0.0], "end_s": [5.0]}


def test_a_long_step_comes_in_windows_that_leave_nothing_out():
    timeline = pipeline(micro_batches=20)
    seen, from_s = set(), 0.0
    for _ in range(20):
        view = build_view(timeline, from_s=from_s, max_spans=30)
        window = view["window"]
        assert window["shown"] == len(view["spans"]["lane"]) <= 30
        assert window["left_out"] == window["spans"] - window["shown"]
        columns = (view["spans"][name] for name in ("lane", "kind", "micro_batch"))
        seen |= set(zip(*columns, strict=True))
        assert [lane["idle_s"] for lane in view["lanes"]] == [9] * 4  # of the whole step in any window
        from_s = window["to_s"]
        if from_s == timeline.step_s:
            break
    assert len(seen) == len(timeline.lane) == 160


def test_a_window_beyond_the_step_is_empty_or_its_end():
    view = build_view(pipeline(), from_s=1e9)
    assert view["window"]["from_s"] == view["window"]["to_s"] == 33
    assert view["spans"]["end_s"] == [33.0]


@given(
    st.sampled_from([("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zbv", 2), ("delay-aware", 1)]),
    st.integers(1, 5),
    st.integers(1, 12),
    st.integers(0, 2**32 - 1),
)
def test_parts_phases_bubbles_and_totals_add_up_to_the_step(schedule, stages, micro_batches, seed):
    """[S10] [S13]"""
    rng = np.random.default_rng(seed)
    name, chunks = schedule
    compute = {key: rng.uniform(0.1, 3, (stages, chunks)) for key in ("forward_s", "backward_s", "weight_s")}
    links = ("send_forward_s", "send_backward_s", "latency_forward_s", "latency_backward_s")
    sends = {key: rng.uniform(0, 2, stages * chunks - 1) for key in links}
    timeline = build_timeline(
        simulate(name, stages=stages, micro_batches=micro_batches, chunks=chunks, **compute, **sends)
    )
    timeline = timeline.with_spans(REPLICAS, "gradients", timeline.step_s / 2, timeline.step_s * 1.1)
    view = build_view(timeline)
    step = view["step_s"]
    for lane in view["lanes"]:
        assert sum(lane["parts"].values()) + lane["idle_s"] == pytest.approx(step)
    assert sum(one["seconds"] for one in view["totals"]) == pytest.approx(step)
    assert sum(one["share"] for one in view["totals"]) == pytest.approx(1)
    assert sum(one["seconds"] for one in view["phases"]) == pytest.approx(step)
    assert sum(one["idle_s"] for one in view["phases"]) == pytest.approx(view["totals"][-1]["seconds"])
    assert sum(one["exposed_s"] for one in view["phases"]) == pytest.approx(measure_exposed_s(timeline, 0, step))
    bubbles = view["bubbles"]
    waits = np.subtract(bubbles["end_s"], bubbles["start_s"])
    idle = np.bincount(bubbles["lane"], weights=waits, minlength=len(view["lanes"]))[: len(timeline.stages)]
    assert idle == pytest.approx(timeline.idle_s[: len(timeline.stages)], abs=1e-6)
    assert view["window"]["left_out"] == 0
