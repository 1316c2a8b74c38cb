"""[S12] The quick bound of a pipelined step against worked examples and the simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.schedule.closed_form import bound_stages_s, select_largest
from crosszone.schedule.simulation import simulate
from effort import examples

ROUNDING = 1e-9


def bound_pipeline_s(*times, **options):
    """The longest chain through any stage."""
    return select_largest(bound_stages_s(*times, **options)[0])


def bound(forward, backward, between=0.0, *, micro_batches, chunks=1, **more) -> float:
    forward, backward = np.atleast_1d(forward).astype(float), np.atleast_1d(backward).astype(float)
    delay = np.append(np.broadcast_to(between, len(forward) - 1), 0.0).astype(float)
    return float(bound_pipeline_s(forward, backward, delay, micro_batches, chunks, len(forward), **more)[0])


def simulated(schedule, forward, backward, *, micro_batches, chunks=1, **links) -> float:
    each = {"forward_s": np.asarray(forward)[:, None] / chunks, "backward_s": np.asarray(backward)[:, None] / chunks}
    return float(
        simulate(schedule, stages=len(forward), micro_batches=micro_batches, chunks=chunks, **each, **links).makespan_s
    )


def test_equal_stages_take_the_textbook_time():
    """[S12] p = 4, m = 8, f = 1, b = 2: (8 + 3) x 3 = 33, a bubble of 3/8; v = 2 halves it: (8 + 3/2) x 3 = 28.5."""
    assert bound([1] * 4, [2] * 4, micro_batches=8) == 33
    assert bound([1] * 4, [2] * 4, micro_batches=8, chunks=2) == 28.5


def test_one_stage_works_without_a_pause():
    """[S12] Five times 1 + 2."""
    assert bound([1], [2], micro_batches=5) == 15


def test_a_slow_last_stage_is_reached_and_left():
    """[S12] f = 1, 4, b = 2 f, m = 6: a micro-batch comes in 1, six times 12, and goes back in 2."""
    assert bound([1, 4], [2, 8], micro_batches=6) == 1 + 72 + 2


def test_a_slow_first_stage_waits_for_the_first_micro_batch_to_come_back():
    """[S12] f = 4, 1, b = 8, 2, m = 6: two forward passes while the first is away for 3, so no wait: six times 12."""
    assert bound([4, 1], [8, 2], micro_batches=6) == 72
    assert simulated("1f1b", [4, 1], [8, 2], micro_batches=6) == 72


def test_the_way_to_a_stage_counts_both_ways():
    """[S12] Delay 2: in 1 + 2, six times 12 on the last stage, back 2 + 2."""
    assert bound([1, 4], [2, 8], 2.0, micro_batches=6) == 3 + 72 + 4


def test_no_more_micro_batches_are_under_way_than_a_stage_may_hold():
    """[S12] Delay 10: two at a time go 3 + 20 + 12 through both stages, so six take three such trips."""
    assert bound([1, 4], [2, 8], 10.0, micro_batches=6) == 3 * 35


def test_stages_that_do_not_exist_change_nothing():
    """[S12] A pipeline of two in columns for four."""
    two = bound_pipeline_s(np.array([1.0, 4.0]), np.array([2.0, 8.0]), np.array([10.0, 0.0]), 6, 1, 2)
    four = bound_pipeline_s(np.array([1.0, 4, 0, 0]), np.array([2.0, 8, 0, 0]), np.array([10.0, 0, 0, 0]), 6, 1, 2)
    assert two.tolist() == four.tolist()


times = st.floats(0.1, 10)


@examples(200)
@given(st.data(), st.integers(1, 8), st.integers(1, 24))
def test_it_is_never_above_the_simulation_of_1f1b(data, stages, micro_batches):
    """[S12] Any stages, any sends and delays between them."""

    def draw(low, count):
        return np.array(data.draw(st.lists(st.floats(low, 10), min_size=count, max_size=count)))

    forward, backward = draw(0.1, stages), draw(0.1, stages)
    late, there, back = (draw(0, stages - 1) for _ in range(3))
    links = {"latency_forward_s": late, "latency_backward_s": late, "send_forward_s": there, "send_backward_s": back}
    least = bound(forward, backward, (there + back) / 2 + late, micro_batches=micro_batches)
    assert least <= simulated("1f1b", forward, backward, micro_batches=micro_batches, **links) * (1 + ROUNDING)


@examples(100)
@given(times, times, st.integers(1, 8), st.integers(1, 40))
def test_it_is_the_simulation_of_1f1b_for_equal_stages(forward, backward, stages, micro_batches):
    """[S12] F64: (m + p - 1) (f + b)."""
    least = bound([forward] * stages, [backward] * stages, micro_batches=micro_batches)
    assert least == pytest.approx((micro_batches + stages - 1) * (forward + backward), rel=ROUNDING)
    assert least == pytest.approx(
        simulated("1f1b", [forward] * stages, [backward] * stages, micro_batches=micro_batches), rel=ROUNDING
    )


@examples(60)
@given(times, times, st.integers(2, 6), st.integers(1, 6), st.sampled_from([2, 4]))
def test_it_is_never_above_the_simulation_of_interleaved_stages(forward, backward, stages, groups, chunks):
    """[S12] Equal when the micro-batches come in whole groups of p."""
    m = groups * stages
    least = bound([forward] * stages, [backward] * stages, micro_batches=m, chunks=chunks)
    truly = simulated("interleaved", [forward] * stages, [backward] * stages, micro_batches=m, chunks=chunks)
    assert least == pytest.approx(truly, rel=ROUNDING)


@examples(60)
@given(st.data(), st.integers(1, 20))
def test_a_stage_that_stands_for_several_gives_what_they_give(data, micro_batches):
    """[S12] Repeats of equal stages in a row, as a search lumps them."""
    rows = data.draw(st.lists(st.tuples(times, times, st.integers(1, 5)), min_size=1, max_size=4))
    counts = [count for _, _, count in rows]
    spread = [np.repeat([row[kind] for row in rows], counts) for kind in (0, 1)]
    whole = bound(*spread, micro_batches=micro_batches)
    lumped = bound_pipeline_s(
        np.array([row[0] for row in rows]), np.array([row[1] for row in rows]), np.zeros(len(rows)),
        micro_batches, 1, sum(counts), repeats=np.array(counts, dtype=float),
    )  # fmt: skip
    assert float(lumped[0]) <= whole * (1 + ROUNDING)
    assert float(lumped[0]) == pytest.approx(whole, rel=1e-6)
