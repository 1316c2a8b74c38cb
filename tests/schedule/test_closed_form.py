"""[S6] [S7] [S8] [S9] The closed form against worked examples and against the simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.schedule.closed_form import bound_makespan_s
from crosszone.schedule.simulation import simulate
from effort import examples

CHUNKS = {"interleaved": (2, 3), "zbv": (2,), "dualpipev": (2,)}
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "zbv", "dualpipev", "delay-aware")
ROUNDING = 1e-12


def both(schedule, **arguments):
    """The bound and the simulated makespan."""
    return float(bound_makespan_s(schedule, **arguments)), float(simulate(schedule, **arguments).makespan_s)


def test_one_stage_is_its_work():
    """[S6]"""
    assert bound_makespan_s("1f1b", stages=1, micro_batches=5, forward_s=1, backward_s=2) == 15


def test_a_slow_stage_works_without_a_pause():
    """[S6] f = 1, 3, 1 and b = 2 f, four micro-batches: 1 to reach the middle, 4 x 9 there, 2 to leave it."""
    stages = np.array([[1], [3], [1]])
    assert bound_makespan_s("1f1b", stages=3, micro_batches=4, forward_s=stages, backward_s=2 * stages) == 1 + 36 + 2


def test_a_slow_link_works_without_a_pause():
    """[S7] Two stages, f = b = 1, a send takes 10: 1, then 5 x 10 forward, F and B on stage 1, 10 back, B: 64."""
    times = {"forward_s": 1, "backward_s": 1, "send_forward_s": 10, "send_backward_s": 10}
    bound, simulated = both("1f1b", stages=2, micro_batches=5, **times)
    assert bound >= 1 + 50 + 2 + 10 + 1
    assert simulated >= bound


def test_a_delay_makes_micro_batches_go_round():
    """[S8] Two stages, f = 1, b = 2, a delay of 10 each way, 9 micro-batches, two in flight on the first stage.

    A round of 1 + 10 + 3 + 10 + 2 = 26 lets two in: four rounds for 8, one for the ninth: 130.
    """
    times = {"forward_s": 1, "backward_s": 2, "latency_forward_s": 10, "latency_backward_s": 10}
    assert both("1f1b", stages=2, micro_batches=9, **times) == (130, 130)


def test_gpipe_fills_and_drains_at_the_pace_of_its_slowest_stage_or_link():
    """[S9] f = 1, 2, b = 3, 1, sends 4 and 1, 5 micro-batches: 1+4+2+1+1+3 = 12 once, then 4 x (4 + 3): 40."""
    times = {"forward_s": [[1], [2]], "backward_s": [[3], [1]], "send_forward_s": 4, "send_backward_s": 1}
    assert both("gpipe", stages=2, micro_batches=5, **times) == (40, 40)


@examples(150)
@given(st.sampled_from(SCHEDULES), st.integers(1, 8), st.integers(1, 40), st.integers(0, 2**32 - 1), st.data())
def test_it_is_never_above_the_simulation(schedule, stages, micro_batches, seed, data):
    """[S6] [S7] [S8]"""
    chunks = data.draw(st.sampled_from(CHUNKS.get(schedule, (1,))))
    rng = np.random.default_rng(seed)
    compute = {name: rng.uniform(0, 3, (stages, chunks)) for name in ("forward_s", "backward_s", "weight_s")}
    names = ("send_forward_s", "send_backward_s", "latency_forward_s", "latency_backward_s")
    scale = data.draw(st.sampled_from([0, 0.3, 2, 20]))
    links = {name: rng.uniform(0, scale, stages * chunks - 1) * rng.integers(0, 2) for name in names}
    extra = {"extra_warmup": int(rng.integers(0, 5))} if schedule == "delay-aware" else {}
    size = {"stages": stages, "micro_batches": micro_batches, "chunks": chunks}
    bound, simulated = both(schedule, **size, **extra, **compute, **links)
    assert bound <= simulated * (1 + ROUNDING)


@pytest.mark.slow
@given(st.sampled_from(SCHEDULES), st.integers(1, 8), st.integers(1, 5), st.integers(0, 7), st.integers(0, 2**32 - 1))
def test_equal_stages_without_links_are_met_exactly(schedule, stages, rounds, more, seed):
    """[S6] [S9] GPipe, 1F1B, delay-aware: always; interleaved: m a multiple of p; ZB-H1: m >= p; V-shaped: m >= 2p and
    b at least f and w.
    """
    f, b, w = np.random.default_rng(seed).uniform(0.5, 2, 3).tolist()
    micro_batches = rounds * stages if schedule == "interleaved" else rounds * stages + more
    if schedule in ("zbv", "dualpipev"):
        micro_batches, b = micro_batches + stages, max(f, b, w)
    for chunks in CHUNKS.get(schedule, (1,)):
        size = {"stages": stages, "micro_batches": micro_batches, "chunks": chunks}
        bound, simulated = both(schedule, **size, forward_s=f, backward_s=b, weight_s=w)
        assert bound == pytest.approx(simulated, rel=ROUNDING)
        full = chunks * (f + b + w)
        if schedule in ("gpipe", "1f1b", "delay-aware", "interleaved"):
            assert bound == pytest.approx((micro_batches + (stages - 1) / chunks) * full, rel=ROUNDING)
        if schedule == "zero-bubble" and w <= min(f, b):
            assert bound == pytest.approx(micro_batches * full + (stages - 1) * (f + b - w), rel=ROUNDING)


@given(st.integers(1, 8), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_gpipe_is_met_exactly_with_any_stages_and_links(stages, micro_batches, seed):
    """[S9]"""
    rng = np.random.default_rng(seed)
    names = ("send_forward_s", "send_backward_s", "latency_forward_s", "latency_backward_s")
    times = {name: rng.uniform(0, 3, stages - 1) for name in names}
    times |= {name: rng.uniform(0, 3, (stages, 1)) for name in ("forward_s", "backward_s")}
    bound, simulated = both("gpipe", stages=stages, micro_batches=micro_batches, **times)
    assert bound == pytest.approx(simulated, rel=ROUNDING)


def gaps(schedule, chunks, cases=250, spread=0.5, sends=0.0, delay=0.0):
    """By how much the bound is below the simulation, for stages whose work differs by up to `spread`."""
    rng = np.random.default_rng(20241)
    found = []
    for _ in range(cases):
        stages, micro_batches = int(rng.integers(2, 9)), int(rng.integers(8, 65))
        forward = rng.uniform(1, 1 + spread, (stages, chunks))
        times = {"forward_s": forward, "backward_s": 1.1 * forward, "weight_s": 0.9 * forward}
        boundaries = stages * chunks - 1
        times |= {
            "send_forward_s": rng.uniform(0, sends, boundaries),
            "send_backward_s": rng.uniform(0, sends, boundaries),
        }
        late = np.zeros(boundaries)
        late[rng.integers(boundaries)] = rng.uniform(0, delay)
        times |= {"latency_forward_s": late, "latency_backward_s": late}
        bound, simulated = both(schedule, stages=stages, micro_batches=micro_batches, chunks=chunks, **times)
        found.append(1 - bound / simulated)
    return np.array(found)


@pytest.mark.parametrize(
    ("schedule", "chunks", "median", "ninetieth"),
    [
        ("1f1b", 1, 1e-9, 0.001),
        ("zero-bubble", 1, 0.001, 0.002),
        ("interleaved", 2, 0.01, 0.04),
        ("zbv", 2, 0.005, 0.025),
        ("dualpipev", 2, 0.001, 0.01),
    ],
)
@pytest.mark.slow
def test_uneven_stages_are_met_closely(schedule, chunks, median, ninetieth):
    """[S6] Stages that differ by up to half, 2 to 8 of them, 8 to 64 micro-batches: the medians that the docs state."""
    below = gaps(schedule, chunks)
    assert np.median(below) <= median
    assert np.percentile(below, 90) <= ninetieth


@pytest.mark.parametrize(("sends", "ninetieth"), [(0.1, 0.01), (0.3, 0.02)])
def test_1f1b_over_links_is_met_closely(sends, ninetieth):
    """[S7] Nine of ten cases within 1 % if sends take up to a tenth of a forward pass, within 2 % up to a third."""
    below = gaps("1f1b", 1, sends=sends)
    assert np.median(below) <= 0.001
    assert np.percentile(below, 90) <= ninetieth


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble", "delay-aware"])
def test_a_delay_of_up_to_ten_passes_is_met_within_two_percent_in_the_middle(schedule):
    """[S8] One boundary late by up to ten forward passes each way: half of the cases within 2 %, nine of ten within 8 %."""
    below = gaps(schedule, 1, sends=0.3, delay=10)
    assert np.median(below) <= 0.02
    assert np.percentile(below, 90) <= 0.08


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_arrays_of_strategies_give_what_each_gives_alone(schedule):
    rng = np.random.default_rng(7)
    stages, chunks = 4, CHUNKS.get(schedule, (1,))[-1]
    micro_batches = np.array([1, 4, 9, 40, 200, 9])
    forward, latency = rng.uniform(1, 2, (6, stages, chunks)), rng.uniform(0, 5, (6, stages * chunks - 1))
    size = {"stages": stages, "chunks": chunks}
    together = bound_makespan_s(
        schedule, **size, micro_batches=micro_batches, forward_s=forward, backward_s=1.5, latency_forward_s=latency
    )
    for step, count in enumerate(micro_batches.tolist()):
        times = {"forward_s": forward[step], "backward_s": 1.5, "latency_forward_s": latency[step]}
        bound, simulated = both(schedule, **size, micro_batches=count, **times)
        assert together[step] == pytest.approx(bound, rel=ROUNDING)
        assert bound <= simulated * (1 + ROUNDING)
