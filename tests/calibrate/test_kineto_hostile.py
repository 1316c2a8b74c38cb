"""Profiler traces with values that no profiler writes: told or refused, never a crash."""

from __future__ import annotations

import json

import pytest

from crosszone.calibrate import kineto_events
from crosszone.calibrate.kineto import read_kineto
from crosszone.errors import FileError
from kineto_traces import steps

HUGE = 10**400


def short(value: object) -> str:
    """A value in the name of a test."""
    return repr(value)[:12]


@pytest.mark.parametrize("value", [[1], {"a": 1}, None, 1.5, True, HUGE, "x" * 5000], ids=short)
@pytest.mark.parametrize("key", ["pid", "tid"])
def test_processes_and_threads_of_any_form_are_read(tmp_path, key, value):
    trace = steps(2)
    for event in trace.events:
        if event["cat"] in ("kernel", "user_annotation"):
            event[key] = value
    found = read_kineto([trace.write(tmp_path / "t.json")])
    assert [one.seconds for one in found.steps] == pytest.approx([1e-3] * 2)


@pytest.mark.parametrize("key", ["ts", "dur"])
@pytest.mark.parametrize("value", [HUGE, -HUGE, [1], {}], ids=short)
def test_a_time_that_cannot_be_is_told_and_left_out(tmp_path, key, value):
    trace = steps(2)
    event = next(event for event in trace.events if event["cat"] == "kernel")
    event[key] = value
    found = read_kineto([trace.write(tmp_path / "t.json")])
    assert found.bad_rows == 1
    assert {"kineto_events_bad", "kineto_no_time"} <= {notice.code for notice in found.notices}
    assert all(len(notice.message()) < 2000 for notice in found.notices)


@pytest.mark.parametrize("value", [HUGE, -HUGE, 1e300, float("nan"), float("inf"), "x", [1], None], ids=short)
def test_a_clock_that_cannot_be_counts_as_none(tmp_path, value):
    found = read_kineto([steps(2).write(tmp_path / "t.json", baseTimeNanoseconds=value)])
    assert [one.seconds for one in found.steps] == pytest.approx([1e-3] * 2)


def test_a_rank_that_cannot_be_counts_as_unknown(tmp_path):
    found = read_kineto([steps(1).write(tmp_path / "t.json", distributedInfo={"rank": HUGE, "world_size": HUGE})])
    assert found.timeline["lanes"][0]["id"] == "rank-0"


def _many(kind: str, count: int) -> list[dict]:
    base = {"ph": "X", "pid": 1, "tid": 1, "ts": 5000.0, "dur": 1.0}
    made = {
        "remarks": lambda at: {"cat": "user_annotation", "name": "Optimizer.step#A"},
        "steps": lambda at: {"cat": "user_annotation", "name": f"ProfilerStep#{at}"},
        "threads": lambda at: {"cat": "cpu_op", "name": "aten::add", "tid": at},
        "streams": lambda at: {"cat": "kernel", "name": "gemm", "tid": at},
        "arrows": lambda at: {"ph": "f", "cat": "fwdbwd", "tid": at},
        "collectives": lambda at: {"cat": "user_annotation", "name": "nccl:all_reduce"},
        "kinds": lambda at: {"cat": "user_annotation", "name": "nccl:all_reduce", "args": {"Group size": at}},
        "ranks": lambda at: {
            "cat": "user_annotation",
            "name": "nccl:all_reduce",
            "args": {"Process Group Ranks": str(list(range(at, at + 5)))},
        },
    }
    return [base | made[kind](at) for at in range(count)]


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        ("remarks", "MOST_OBJECTS"),
        ("steps", "MOST_OBJECTS"),
        ("threads", "MOST_OBJECTS"),
        ("streams", "MOST_OBJECTS"),
        ("arrows", "MOST_OBJECTS"),
        ("collectives", "MOST_COLUMNS"),
        ("kinds", "MOST_RANKS"),
        ("ranks", "MOST_RANKS"),
    ],
)
def test_more_than_can_be_held_is_refused_whatever_it_is(tmp_path, monkeypatch, kind, limit):
    trace = steps(2)
    trace.events += _many(kind, 60)
    path = trace.write(tmp_path / "t.json")
    assert read_kineto([path]).steps
    monkeypatch.setattr(kineto_events, limit, 59)
    with pytest.raises(FileError) as caught:
        read_kineto([path])
    notice = caught.value.notices[0]
    assert (notice.code, notice.params["limit"]) == ("kineto_too_many", 59)


def test_a_name_without_end_is_not_repeated_whole(tmp_path):
    trace = steps(1)
    trace.events.append({"ph": "X", "cat": "kernel", "name": "n" * 100_000, "ts": 1.0, "dur": -1.0})
    found = read_kineto([trace.write(tmp_path / "t.json")])
    assert max(len(json.dumps(notice.as_dict("en"))) for notice in found.notices) < 5000
