"""Profiler traces of a device decoded to phases; every number follows from the trace that `kineto_traces` draws."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.calibrate import kineto
from crosszone.calibrate.kineto import read_kineto
from crosszone.calibrate.kineto_events import (
    find_inside,
    list_stretches,
    measure_covered_s,
    measure_owned_s,
    merge_intervals,
)
from crosszone.errors import InputError
from kineto_traces import ENGINE, EXPECTED_US, MAIN, GpuTrace, one_step, steps, write_big


def us(phases: dict[str, float]) -> dict[str, float]:
    return {name: seconds * 1e6 for name, seconds in phases.items()}


def codes(found) -> list[str]:
    return [notice.code for notice in found.notices]


def test_kernels_belong_to_the_pass_that_launched_them(tmp_path):
    """[K41] Backward: launched within the engine; recomputation: by a recorded operator there; the norm: the update."""
    found = read_kineto([steps(3).write(tmp_path / "t.json")])
    assert [one.step for one in found.steps] == [1, 2, 3]
    for one in found.steps:
        assert one.seconds * 1e6 == pytest.approx(1000)
        assert us(one.phases_s) == pytest.approx(EXPECTED_US)
    assert found.notices == ()


def test_messages_are_counted_with_and_without_what_they_overlap(tmp_path):
    """[K42] Gradients run 130 us, 50 of them beside the backward pass."""
    found = read_kineto([steps(2).write(tmp_path / "t.json")])
    assert us(found.meta["messages_s"]) == pytest.approx({"tensor": 30, "data": 130})
    assert us(found.figures["breakdown_s"]) == pytest.approx(
        {"compute": 550, "recompute": 100, "optimizer": 120, "tensor": 30, "gradients": 80, "host": 120}
    )
    assert (found.figures["gpus"], found.meta["device"], found.meta["tensor_group"]) == (4, "NVIDIA H200", 2)


def test_its_timeline_has_lanes_for_computing_and_for_each_way(tmp_path):
    found = read_kineto([steps(1).write(tmp_path / "t.json")])
    assert [lane["id"] for lane in found.timeline["lanes"]] == ["rank-0", "rank-0-tensor", "rank-0-data"]
    drawn = [
        (s["kind"], s["name"], round(s["start_s"] * 1e6), round(s["end_s"] * 1e6)) for s in found.timeline["spans"]
    ]
    assert drawn == [
        ("forward", "forward", 0, 200),
        ("forward", "forward", 230, 300),
        ("backward", "backward", 320, 500),
        ("backward", "recompute", 500, 600),
        ("backward", "backward", 600, 700),
        ("optimizer", "optimizer", 780, 900),
        ("tensor", "tensor", 200, 230),
        ("gradients", "data", 650, 780),
    ]


def test_a_compressed_trace_gives_the_same(tmp_path):
    document = json.dumps(steps(2).document()).encode()
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(document))
    found = read_kineto([tmp_path / "t.json.gz"])
    assert us(found.get_step("best").phases_s) == pytest.approx(EXPECTED_US)


def test_an_iteration_that_the_host_has_launched_ahead_begins_when_the_device_gets_to_it(tmp_path):
    """[K45] The host begins the second one at 100 us, the device has work of the first until 500 us."""
    trace = GpuTrace()
    for number, (host, device) in enumerate([(0, 0), (100, 500)], 1):
        trace.remark(f"ProfilerStep#{number}", host, 100)
        trace.forward_op(MAIN, host + 1, 50)
        trace.kernel(device, 500, at=host + 2)
    found = read_kineto([trace.write(tmp_path / "t.json")])
    assert [one.seconds * 1e6 for one in found.steps] == pytest.approx([500, 500])


def test_an_iteration_that_waits_for_the_host_has_a_gap(tmp_path):
    trace = GpuTrace()
    for number, host in enumerate([0, 400], 1):
        trace.remark(f"ProfilerStep#{number}", host, 400)
        trace.forward_op(MAIN, host + 1, 50)
        trace.kernel(host + 100, 200, at=host + 2)
    found = read_kineto([trace.write(tmp_path / "t.json")])
    assert us(found.steps[0].phases_s) == pytest.approx({"forward": 200, "gap": 200})


def test_without_steps_an_iteration_ends_with_its_update(tmp_path):
    trace = GpuTrace()
    at = 0.0
    for number in range(3):
        at = one_step(trace, number, at)
    trace.events = [event for event in trace.events if not event["name"].startswith("ProfilerStep")]
    found = read_kineto([trace.write(tmp_path / "t.json")])
    assert len(found.steps) == 3
    assert "kineto_no_steps" in codes(found)
    assert found.steps[1].seconds * 1e6 == pytest.approx(1000)


def test_an_iteration_that_was_not_recorded_whole_is_left_out_and_told(tmp_path):
    trace = steps(4)
    first = [event for event in trace.events if event["ts"] < 2000 and event["cat"] == "kernel"]
    for event in first[:4]:
        trace.events.remove(event)
    found = read_kineto([trace.write(tmp_path / "t.json")])
    assert [one.step for one in found.steps] == [2, 3, 4]
    assert "kineto_steps_short" in codes(found)


def test_kernels_without_a_launch_count_as_other_and_are_told(tmp_path):
    trace = steps(1)
    launch = next(event for event in trace.events if event["cat"] == "cuda_runtime")
    trace.events.remove(launch)
    found = read_kineto([trace.write(tmp_path / "t.json")])
    assert us(found.steps[0].phases_s)["other"] == pytest.approx(200)
    assert "kineto_no_launch" in codes(found)


def test_copies_from_the_host_are_told_apart(tmp_path):
    trace = steps(1)
    trace.kernel(920, 30, at=160, name="Memcpy HtoD (Pinned -> Device)", cat="gpu_memcpy")
    trace.kernel(960, 10, at=170, name="Memcpy DtoD (Device -> Device)", cat="gpu_memcpy")
    found = us(read_kineto([trace.write(tmp_path / "t.json")]).steps[0].phases_s)
    assert (found["copy"], found["gap"]) == pytest.approx((30, 80))


def test_a_kernel_that_names_no_group_takes_that_of_the_call_around_its_launch(tmp_path):
    trace = steps(1)
    about = {
        "Collective name": "all_to_allv",
        "Process Group Description": "EXPERT_MODEL_PARALLEL_GROUP",
        "Group size": 4,
    }
    trace.op("record_param_comms", MAIN, 24, 6, **about)
    trace.message(300, 20, "SendRecv", at=25)
    found = read_kineto([trace.write(tmp_path / "t.json")])
    assert us(found.steps[0].phases_s)["experts"] == pytest.approx(20)


def test_a_group_that_is_only_guessed_is_told_and_can_be_said(tmp_path):
    trace = steps(1)
    trace.message(300, 20, "AllGather", at=25, name="9", about="undefined", size=2, ranks=[0, 1])
    path = trace.write(tmp_path / "t.json")
    guessed = read_kineto([path])
    assert us(guessed.steps[0].phases_s)["data"] == pytest.approx(100)
    assert "kineto_groups_guessed" in codes(guessed)
    told = read_kineto([path], groups={"9": "context"})
    assert us(told.steps[0].phases_s)["context"] == pytest.approx(20)
    assert "kineto_groups_guessed" not in codes(told)


def test_two_ranks_give_one_run_from_the_first_start_to_the_last_end(tmp_path):
    paths = []
    for rank, late in enumerate((0.0, 40.0)):
        trace = GpuTrace(start=1000.0 + late)
        one_step(trace, 1, 0.0)
        info = {"backend": "nccl", "rank": rank, "world_size": 2}
        paths.append(trace.write(tmp_path / f"{rank}.json", distributedInfo=info, baseTimeNanoseconds=10**9))
    found = read_kineto(paths)
    assert found.steps[0].seconds * 1e6 == pytest.approx(1040)
    assert us(found.steps[0].phases_s) == pytest.approx(EXPECTED_US | {"gap": EXPECTED_US["gap"] + 40})
    assert {lane["id"] for lane in found.timeline["lanes"]} >= {"rank-0", "rank-1"}


def test_ranks_without_a_common_iteration_are_refused(tmp_path):
    other = GpuTrace()
    one_step(other, 9, 0.0)
    with pytest.raises(InputError) as error:
        read_kineto([steps(1).write(tmp_path / "a.json"), other.write(tmp_path / "b.json")])
    assert error.value.notices[0].code == "kineto_no_common_step"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"dur": -5.0}, "kineto_negative"),
        ({"dur": "long"}, "kineto_no_time"),
        ({"ts": None}, "kineto_no_time"),
        ({"dur": float("nan")}, "kineto_no_time"),
        ({"dur": 1e300}, "kineto_no_time"),
    ],
)
def test_an_event_that_cannot_be_is_left_out_and_told_by_its_number(tmp_path, change, code):
    trace = steps(1)
    trace.events.insert(4, {**trace.events[-1], **change})
    found = read_kineto([trace.write(tmp_path / "t.json")])
    told = [notice for notice in found.notices if notice.code == code]
    assert [notice.params["event"] for notice in told] == [5]
    assert (found.bad_rows, us(found.steps[0].phases_s)) == (1, pytest.approx(EXPECTED_US))
    assert all("5" in told[0].message(language) for language in ("en", "zh"))


def test_a_trace_that_ends_in_the_middle_gives_what_came_before(tmp_path):
    path = tmp_path / "t.json"
    text = json.dumps(steps(3).document())
    path.write_text(text[: text.rindex("ProfilerStep#3") - 30])
    found = read_kineto([path])
    assert [one.step for one in found.steps] == [1, 2]
    assert "kineto_cut" in codes(found)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "kineto_not_json"),
        ("hello", "kineto_not_json"),
        ("{}", "kineto_no_events"),
        ('{"traceEvents": []}', "kineto_no_events"),
        ('{"traceEvents": [1, "x", null]}', "kineto_empty"),
        ('{"traceEvents": [{"ph": "M", "name": "process_name"}]}', "kineto_empty"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path, text, code):
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_kineto([path])
    assert error.value.notices[0].code == code


def test_of_a_long_trace_only_a_part_is_drawn_but_all_iterations_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(kineto, "MAX_SPANS", 10)
    found = read_kineto([steps(4).write(tmp_path / "t.json")], chosen_step="last")
    assert 0 < len(found.timeline["spans"]) <= 10
    assert ([row["step"] for row in found.timeline["steps"]], len(found.steps)) == ([4], 4)
    assert "kineto_drawn_part" in codes(found)
    assert us(found.get_step("first").phases_s) == pytest.approx(EXPECTED_US)


def test_a_large_trace_is_read_in_pieces(tmp_path):
    """Its iterations of 400 layers take 400 ms; one step of a layer has 28 % backward and 10 % recomputation."""
    number = write_big(tmp_path / "big.json", 6)
    found = read_kineto([tmp_path / "big.json"])
    assert len(found.steps) == number >= 3
    assert found.steps[1].seconds == pytest.approx(0.4)
    assert found.steps[1].phases_s["recompute"] == pytest.approx(0.04)
    assert found.steps[1].phases_s["backward"] == pytest.approx(0.112)


TIMES = st.floats(0, 100, allow_nan=False)
SPANS = st.lists(st.tuples(TIMES, TIMES, st.integers(0, 3)), max_size=30)


def columns(spans):
    import numpy as np

    start = np.array([min(a, b) for a, b, _ in spans], float)
    end = np.array([max(a, b) for a, b, _ in spans], float)
    return start, end, np.array([sort for *_, sort in spans], np.int64)


@given(SPANS, TIMES, TIMES)
def test_shares_of_any_spans_add_up_to_the_window(spans, a, b):
    """[K42]"""
    low, high = min(a, b), max(a, b)
    start, end, sort = columns(spans)
    found = measure_owned_s(start, end, sort, low, high, 4)
    assert found.sum() == pytest.approx(high - low, abs=1e-9)
    assert (found >= 0).all()


@given(SPANS)
def test_runs_do_not_overlap_and_cover_what_the_spans_cover(spans):
    start, end, sort = columns(spans)
    begun, ended, owner = list_stretches(start, end, sort, 4)
    assert (begun[1:] >= ended[:-1]).all()
    assert (ended - begun).sum() == pytest.approx(measure_covered_s(start, end))
    for a, b, one in zip(begun, ended, owner, strict=True):
        middle = (a + b) / 2
        here = (start <= middle) & (end >= middle)
        assert sort[here].min() == one


@given(SPANS, st.lists(TIMES, max_size=20))
def test_a_moment_is_inside_when_any_span_holds_it(spans, moments):
    import numpy as np

    start, end, _ = columns(spans)
    found = find_inside(np.array(moments, float), merge_intervals(start, end))
    assert found.tolist() == [bool(((start <= m) & (m <= end)).any()) for m in moments]


def test_a_new_micro_batch_begins_where_a_forward_pass_follows_a_backward_one(tmp_path):
    trace = GpuTrace()
    trace.remark("ProfilerStep#1", 0, 1000)
    for index in range(2):
        at = 200.0 * index
        trace.forward_op(MAIN, at + 1, 20)
        trace.kernel(at + 10, 50, at=at + 5)
        trace.engine(at + 30, 20)
        trace.kernel(at + 100, 80, by=ENGINE, at=at + 35)
    found = read_kineto([trace.write(tmp_path / "t.json")])
    assert [(s["kind"], s["micro_batch"]) for s in found.timeline["spans"]] == [
        ("forward", 0),
        ("backward", 0),
        ("forward", 1),
        ("backward", 1),
    ]
