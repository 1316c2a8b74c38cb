"""Marks of a patched Megatron-LM: a value belongs to the phase that ended at its label."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.calibrate.benchmark_csv import PHASE_BY_LABEL, read_benchmark
from crosszone.errors import InputError
from crosszone.schedule.trace import MAX_TRACE_BYTES

NINE = """iteration start,0
warmup start,0.002
forward start,0.120
backward start,0.051
forward start,0.098
backward start,0.052
cooldown start,0.099
allreduce start,0.140
iteration end,0.230
"""
"""Two micro-batches: nine marks."""


def codes(found) -> list[str]:
    return [notice.code for notice in found.notices]


def test_the_nine_marks_of_an_iteration_become_its_phases():
    """[K43] Forward: what ends at 'backward start'; backward: at the next forward or the cool-down; and so on."""
    (one,) = read_benchmark(NINE).steps
    assert one.seconds == pytest.approx(0.792)
    assert one.phases_s == pytest.approx(
        {"start": 0.002, "warm_up": 0.120, "forward": 0.103, "backward": 0.197, "cool_down": 0.140, "all_reduce": 0.230}
    )
    assert sum(one.phases_s.values()) == pytest.approx(one.seconds)


def test_its_timeline_has_the_passes_of_the_last_stage_and_what_it_waits_for():
    found = read_benchmark(NINE)
    passes = [(s["kind"], s.get("micro_batch")) for s in found.timeline["spans"] if s["lane"] == "stage-last"]
    assert passes == [
        ("other", None),
        ("forward", 0),
        ("backward", 0),
        ("forward", 1),
        ("backward", 1),
        ("gradients", None),
    ]
    # until the first backward pass: 0.002 + 0.120 + 0.051; to the end of the last forward: 0.098 + 0.052;
    # to the end of the cool-down: 0.099 + 0.140; then all-reduce and update
    assert found.phases_s == pytest.approx({"warm_up": 0.173, "steady": 0.150, "cool_down": 0.239, "tail": 0.230})
    # the stage computes 0.300 s, all-reduce runs 0.230 s beside nothing, the rest is waiting
    assert found.figures["breakdown_s"] == pytest.approx({"compute": 0.3, "communication": 0.23, "bubble": 0.262})


def test_iterations_are_numbered_counted_and_chosen():
    found = read_benchmark(NINE + NINE.replace("0.230", "0.130") + NINE.replace("0.230", "0.330"))
    assert [one.step for one in found.steps] == [1, 2, 3]
    assert found.statistics.best_step == 2
    assert found.statistics.mean_to_min_pct == pytest.approx(100 * 0.1 / 0.692)
    assert found.get_step("last").seconds == pytest.approx(0.892)
    assert read_benchmark(NINE + NINE.replace("0.230", "0.130"), chosen_step="last").figures[
        "step_time_s"
    ] == pytest.approx(0.692)


def test_what_lies_between_iterations_is_not_part_of_them():
    found = read_benchmark(NINE + NINE.replace("iteration start,0", "iteration start,5"))
    assert [one.seconds for one in found.steps] == pytest.approx([0.792, 0.792])
    assert found.timeline["steps"][1]["start_s"] == pytest.approx(5.792)


@pytest.mark.parametrize(
    ("text", "phases"),
    [
        ("iteration start,0\nallreduce start,0.5\niteration end,0.2\n", {"other": 0.5, "all_reduce": 0.2}),
        ("iteration start,0\niteration end,0.7\n", {"other": 0.7}),
    ],
)
def test_without_a_pipeline_only_the_whole_is_known_and_that_is_said(text, phases):
    found = read_benchmark(text)
    assert found.steps[0].phases_s == pytest.approx(phases)
    assert "benchmark_no_phases" in codes(found)


def test_marks_of_an_evaluation_between_iterations_are_left_out():
    stray = "warmup start,1\nforward start,1\nforward start,1\ncooldown start,1\n"
    found = read_benchmark(NINE + stray + NINE)
    assert [one.seconds for one in found.steps] == pytest.approx([0.792, 0.792])
    (told,) = [notice for notice in found.notices if notice.code == "benchmark_stray"]
    assert (told.params["count"], found.bad_rows) == (4, 0)


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ("warmup start", "benchmark_row_short"),
        ("warmup start,", "benchmark_row_short"),
        ("warmup start,-0.5", "benchmark_negative"),
        ("warmup start,12 ms", "benchmark_not_seconds"),
        ("warmup start,nan", "benchmark_not_seconds"),
        ("warmup start,1e9", "benchmark_unit"),
    ],
)
def test_a_bad_row_is_told_by_number_and_its_iteration_left_out(row, code):
    found = read_benchmark(NINE + NINE.replace("warmup start,0.002", row) + NINE)
    told = [notice for notice in found.notices if notice.code == code]
    assert [(notice.line, notice.params["row"]) for notice in told] == [(11, 11)]
    assert "11" in told[0].message("en") and "11" in told[0].message("zh")
    assert ([one.step for one in found.steps], found.bad_rows) == ([1, 3], 1)


def test_the_time_of_an_unknown_mark_belongs_to_what_goes_on():
    found = read_benchmark(NINE.replace("backward start,0.051", "1F1B middle,0.020\nbackward start,0.031", 1))
    assert found.steps[0].phases_s["forward"] == pytest.approx(0.103)
    assert "benchmark_label" in codes(found)


def test_an_iteration_that_was_cut_off_is_told_with_the_row_it_began_in():
    found = read_benchmark(NINE + "iteration start,1\nwarmup start,1\n")
    (told,) = [notice for notice in found.notices if notice.code == "benchmark_cut"]
    assert (len(found.steps), told.params) == (1, {"count": 1, "row": 10})


@pytest.mark.parametrize(
    "text", ["", "\n\n", "a,b\n", "warmup start,1\n", "iteration start,0\niteration end,0\n", "\x00" * 9]
)
def test_a_file_without_an_iteration_is_refused(text):
    with pytest.raises(InputError):
        read_benchmark(text)


def test_a_file_that_is_too_large_is_refused():
    with pytest.raises(InputError) as error:
        read_benchmark(b" " * (MAX_TRACE_BYTES + 1))
    assert error.value.notices[0].code == "trace_too_large"


@given(
    st.lists(
        st.tuples(
            st.sampled_from([*PHASE_BY_LABEL, "x", ""]), st.sampled_from(["0", "0.5", "-1", "x", "", "1e300", "nan"])
        ),
        max_size=60,
    )
)
def test_any_rows_give_iterations_that_add_up_or_a_refusal(rows):
    try:
        found = read_benchmark("".join(f"{label},{value}\n" for label, value in rows))
    except InputError:
        return
    for one in found.steps:
        assert sum(one.phases_s.values()) == pytest.approx(one.seconds)
