"""[S5] Long steps from short ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.schedule.simulation import simulate
from crosszone.schedule.step_times import simulate_step_times
from effort import examples

CHUNKS = {"interleaved": 2, "zbv": 2, "dualpipev": 2}
SAME = 1e-9


@examples(60)
@given(
    st.sampled_from(["gpipe", "1f1b", "interleaved", "zero-bubble", "zbv", "dualpipev"]),
    st.integers(1, 5),
    st.integers(1, 300),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 0.3, 5]),
)
def test_rounds_that_repeat_are_added_exactly(schedule, stages, micro_batches, seed, scale):
    """[S5] Makespan, ends and gradients to 1e-9 of those of the whole step."""
    rng = np.random.default_rng(seed)
    chunks = CHUNKS.get(schedule, 1)
    times = {name: rng.uniform(1, 2, (6, stages, chunks)) for name in ("forward_s", "backward_s", "weight_s")}
    names = ("send_forward_s", "send_backward_s", "latency_forward_s", "latency_backward_s")
    times |= {name: rng.uniform(0, scale, (6, stages * chunks - 1)) for name in names}
    size = {"stages": stages, "micro_batches": micro_batches, "chunks": chunks}
    found = simulate_step_times(schedule, **size, **times)
    whole = simulate(schedule, **size, **times)
    for name in ("makespan_s", "first_start_s", "last_end_s", "gradients_ready_s", "busy_s", "idle_s"):
        wanted, got = getattr(whole, name), getattr(found, name)
        assert got.shape == wanted.shape
        assert np.all(np.abs(got - wanted) <= SAME * whole.makespan_s.max())
    assert np.all(found.simulated_micro_batches <= micro_batches)


def test_a_long_step_simulates_few_micro_batches():
    """[S5] Equal stages repeat themselves at once: (m + p - 1) (f + b)."""
    found = simulate_step_times("1f1b", stages=8, micro_batches=100_000, forward_s=1, backward_s=2)
    assert found.makespan_s == pytest.approx((100_000 + 7) * 3, rel=SAME)
    assert found.simulated_micro_batches < 100
    assert found.busy_s.tolist() == pytest.approx([300_000] * 8)


def test_an_interleaved_step_repeats_itself_group_by_group():
    found = simulate_step_times("interleaved", stages=4, micro_batches=4000, chunks=2, forward_s=1, backward_s=2)
    assert found.makespan_s == pytest.approx((4000 * 2 + 3) * 3, rel=SAME)
    assert found.simulated_micro_batches < 200


def test_delay_aware_batches_are_simulated_one_by_one():
    delay = np.array([[0, 4, 0], [0, 0, 0]])
    times = {"forward_s": 1, "backward_s": 2, "latency_forward_s": delay, "latency_backward_s": delay}
    found = simulate_step_times("delay-aware", stages=4, micro_batches=12, extra_warmup=3, **times)
    alone = simulate("delay-aware", stages=4, micro_batches=12, extra_warmup=3, forward_s=1, backward_s=2)
    assert found.makespan_s.tolist() == [45 + 8, alone.makespan_s]
    assert found.gradients_ready_s.shape == (2, 4, 1)


def test_times_of_another_name_are_refused():
    with pytest.raises(TypeError, match="forwards_s"):
        simulate_step_times("1f1b", stages=4, micro_batches=12, forwards_s=1)
