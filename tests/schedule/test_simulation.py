"""[S3] [S4] The simulated step: worked examples, papers' claims, and what must hold for any times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.schedule.orders import (
    BACKWARD,
    FORWARD,
    WEIGHT,
    build_eager_orders,
    list_stages_in_order,
    map_virtual_stages,
)
from crosszone.schedule.simulation import simulate
from effort import examples

CHUNKS = {"interleaved": (2, 3), "zbv": (2,), "dualpipev": (2,)}
FIXED = ("gpipe", "1f1b", "interleaved", "zero-bubble", "zbv", "dualpipev")


@st.composite
def steps(draw, schedules=(*FIXED, "delay-aware"), links=True, batch=None):
    """Arguments of `simulate` with uneven stages and links; times are small whole numbers, so sums are exact."""
    schedule = draw(st.sampled_from(schedules))
    stages, micro_batches = draw(st.integers(1, 6)), draw(st.integers(1, 20))
    chunks = draw(st.sampled_from(CHUNKS.get(schedule, (1,))))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lead = () if batch is None else (batch,)
    compute = {name: rng.integers(1, 9, (*lead, stages, chunks)) for name in ("forward_s", "backward_s", "weight_s")}
    between = (*lead, stages * chunks - 1)
    sends = {name: rng.integers(0, 9, between) for name in ("send_forward_s", "send_backward_s")}
    latency = {name: rng.integers(0, 30, between) for name in ("latency_forward_s", "latency_backward_s")}
    size = {"stages": stages, "micro_batches": micro_batches, "chunks": chunks}
    extra = {"extra_warmup": draw(st.integers(0, 4))} if schedule == "delay-aware" else {}
    return {"schedule": schedule, **size, **extra, **compute, **(sends | latency if links else {})}


def test_1f1b_of_two_stages_and_two_micro_batches_worked_by_hand():
    """[S3] f = 1, b = 2. Stage 0: F0 0-1, F1 1-2, B0 4-6, B1 7-9; stage 1: F0 1-2, B0 2-4, F1 4-5, B1 5-7."""
    found = simulate("1f1b", stages=2, micro_batches=2, forward_s=1, backward_s=2)
    assert found.start_s.tolist() == [[0, 1, 4, 7], [1, 2, 4, 5]]
    assert found.end_s.tolist() == [[1, 2, 6, 9], [2, 4, 5, 7]]
    assert found.makespan_s == 9
    assert found.busy_s.tolist() == [6, 6]
    assert found.idle_s.tolist() == [3, 3]
    assert found.first_start_s.tolist() == [0, 1]
    assert found.last_end_s.tolist() == [9, 7]
    assert found.gradients_ready_s.tolist() == [[9], [7]]


def test_a_message_occupies_its_link_and_then_takes_the_latency():
    """GPipe, f = b = 1, a send takes 2 and the latency is 5. Forward: sends 1-3 and 3-5, arrivals 8 and 10, so stage 1
    runs F0 8-9, F1 10-11, B0 11-12, B1 12-13; sends back 12-14 and 14-16, arrivals 19 and 21; last end 22.
    """
    links = {"send_forward_s": 2, "send_backward_s": 2, "latency_forward_s": 5, "latency_backward_s": 5}
    found = simulate("gpipe", stages=2, micro_batches=2, forward_s=1, backward_s=1, **links)
    assert found.send_start_s.tolist() == [1, 3, 12, 14]
    assert found.send_end_s.tolist() == [3, 5, 14, 16]
    assert found.start_s[1].tolist() == [8, 10, 11, 12]
    assert found.makespan_s == 22


def test_messages_of_two_chunks_share_a_link():
    """Interleaved, two stages, one micro-batch: parts 0 1 2 3 on stages 0 1 0 1; each pass takes 1, each send 3.

    Forward 0-1, 4-5, 8-9, 12-13, backward 13-14, 17-18, 21-22, 25-26: nothing is sent at the same time.
    """
    times = {"forward_s": 1, "backward_s": 1, "send_forward_s": 3, "send_backward_s": 3}
    assert simulate("interleaved", stages=2, micro_batches=1, chunks=2, **times).makespan_s == 26


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "delay-aware"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 4), (2, 2), (4, 8), (8, 64), (8, 3)])
def test_the_bubble_of_equal_stages_is_p_minus_1_over_m(schedule, stages, micro_batches):
    """[S3] Narayanan et al. 2021, section 2.2: (p - 1) / m of the ideal time."""
    found = simulate(schedule, stages=stages, micro_batches=micro_batches, forward_s=1, backward_s=2)
    assert found.makespan_s == (micro_batches + stages - 1) * 3
    assert (found.idle_s / found.busy_s).tolist() == pytest.approx([(stages - 1) / micro_batches] * stages)


@pytest.mark.parametrize(("stages", "micro_batches", "chunks"), [(2, 2, 2), (4, 8, 2), (4, 4, 4), (8, 64, 3)])
def test_interleaving_divides_the_bubble_by_the_chunks(stages, micro_batches, chunks):
    """Narayanan et al. 2021, section 2.2: (p - 1) / (v m)."""
    found = simulate(
        "interleaved", stages=stages, micro_batches=micro_batches, chunks=chunks, forward_s=1, backward_s=2
    )
    ideal = micro_batches * chunks * 3
    assert found.makespan_s / ideal - 1 == pytest.approx((stages - 1) / (micro_batches * chunks))


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 2), (4, 8), (8, 24)])
def test_zero_bubble_has_a_third_of_the_bubble_of_1f1b(stages, micro_batches):
    """Qi et al. 2024 (arXiv 2401.10241): (p - 1) (f + b - w); (p - 1) / 3m of the ideal time if f = b = w."""
    found = simulate("zero-bubble", stages=stages, micro_batches=micro_batches, forward_s=1, backward_s=1, weight_s=1)
    assert found.makespan_s == 3 * micro_batches + stages - 1
    found = simulate("zero-bubble", stages=stages, micro_batches=micro_batches, forward_s=4, backward_s=5, weight_s=3)
    assert found.makespan_s == 12 * micro_batches + (stages - 1) * 6


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (8, 24)])
def test_zbv_stages_never_wait_once_they_have_begun(stages, micro_batches):
    """Qi et al. 2024 (arXiv 2401.10241, section 6; 2405.15362): no bubble if f = b = w and m >= 2p."""
    times = {"forward_s": 1, "backward_s": 1, "weight_s": 1}
    found = simulate("zbv", stages=stages, micro_batches=micro_batches, chunks=2, **times)
    assert (found.last_end_s - found.first_start_s).tolist() == found.busy_s.tolist()
    assert found.makespan_s == 6 * micro_batches + stages - 1


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (8, 24)])
def test_dualpipev_waits_no_longer_than_published(stages, micro_batches):
    """DeepSeek-AI 2025: (PP/2 - 1) (F&B + B - 3W) for PP = 2p parts, B whole; here 2 (p - 1) if f = b = w = 1.

    Passes that are overlapped there run one after the other here, so that a forward output leaves earlier.
    """
    times = {"forward_s": 1, "backward_s": 1, "weight_s": 1}
    found = simulate("dualpipev", stages=stages, micro_batches=micro_batches, chunks=2, **times)
    assert 6 * micro_batches <= found.makespan_s <= 6 * micro_batches + 2 * (stages - 1)


def test_unsplit_schedules_run_both_halves_of_the_backward_pass_as_one():
    whole = simulate("1f1b", stages=4, micro_batches=8, forward_s=1, backward_s=3)
    halves = simulate("1f1b", stages=4, micro_batches=8, forward_s=1, backward_s=2, weight_s=1)
    assert halves.end_s.tolist() == whole.end_s.tolist()


@pytest.mark.parametrize(("extra", "units"), [(0, 179), (1, 155), (2, 137), (3, 125), (4, 125)])
def test_more_micro_batches_in_flight_hide_a_delay(extra, units):
    """[S4] Eight stages, 32 micro-batches, f = 1, b = 2, a delay of 4 each way in the middle; 117 without it.

    Event simulation of eager stages; 125 = 117 + 2 x 4 is the least: the first and the last message are not hidden.
    """
    delay = np.array([0, 0, 0, 4, 0, 0, 0])
    size = {"stages": 8, "micro_batches": 32, "extra_warmup": extra}
    times = {"forward_s": 1, "backward_s": 2, "latency_forward_s": delay, "latency_backward_s": delay}
    assert simulate("delay-aware", **size, **times).makespan_s == units
    assert simulate("1f1b", stages=8, micro_batches=32, forward_s=1, backward_s=2).makespan_s == 117


def test_a_fixed_order_waits_where_an_eager_stage_goes_on():
    """The same delay under 1F1B: a round between the stages beside the delay, f + 4 + f + b + 4 + b = 14, lets two
    micro-batches pass, so that a step needs more than 16 x 14 units. An eager stage of the same memory needs 179.
    """
    delay = np.array([0, 0, 0, 4, 0, 0, 0])
    times = {"forward_s": 1, "backward_s": 2, "latency_forward_s": delay, "latency_backward_s": delay}
    assert simulate("1f1b", stages=8, micro_batches=32, **times).makespan_s >= 16 * 14


def test_an_eager_stage_prefers_the_backward_pass_that_has_arrived():
    """[S4] Two stages, f = 1, b = 2, two in flight: as 1F1B, whose order is the best here."""
    times = np.array([1, 1, 2, 2, 0, 0, 0, 0, 0, 0, 0], float)
    made = build_eager_orders(np.array([2, 1], np.int32), 3, times)
    assert made.kind.tolist() == [[0, 0, 1, 0, 1, 1], [0, 1, 0, 1, 0, 1]]


@given(steps())
def test_stages_and_links_do_one_thing_at_a_time(case):
    found = simulate(**case)
    assert np.all(found.start_s[:, 1:] >= found.end_s[:, :-1])
    shape = found.shape
    held_by = list_stages_in_order(case["schedule"], shape.stages, shape.chunks)
    back = shape.send_kind
    link = held_by[shape.send_boundary + back] * shape.stages + held_by[shape.send_boundary + 1 - back]
    for one in np.unique(link):
        start, end = found.send_start_s[link == one], found.send_end_s[link == one]
        order = np.argsort(start + end, kind="stable")
        assert np.all(start[order][1:] >= end[order][:-1])


@given(steps())
def test_nothing_starts_before_its_input_is_there(case):
    found = simulate(**case)
    made = found.shape.orders
    part = map_virtual_stages(case["schedule"], made.stages, made.chunks)[np.arange(made.stages)[:, None], made.chunk]
    columns = (made.kind, part, made.micro_batch, found.start_s, found.end_s)
    rows = zip(*(column.ravel().tolist() for column in columns), strict=True)
    at = {(kind, k, j): (start, end) for kind, k, j, start, end in rows}
    late = {FORWARD: case["latency_forward_s"], BACKWARD: case["latency_backward_s"]}
    sends = {FORWARD: case["send_forward_s"], BACKWARD: case["send_backward_s"]}
    held_by = list_stages_in_order(case["schedule"], made.stages, made.chunks)
    last = made.stages * made.chunks - 1
    for (kind, k, j), (start, _) in at.items():
        if kind == WEIGHT:
            assert start >= at[BACKWARD, k, j][1]
        elif kind == BACKWARD and k == last:
            assert start >= at[FORWARD, k, j][1]
        elif k != (0 if kind == FORWARD else last):
            before, boundary = (k - 1, k - 1) if kind == FORWARD else (k + 1, k)
            way = late[kind][boundary] + sends[kind][boundary] if held_by[before] != held_by[k] else 0
            assert start >= at[kind, before, j][1] + way


@given(steps())
def test_busy_and_idle_time_make_up_the_step(case):
    found = simulate(**case)
    assert np.allclose(found.busy_s + found.idle_s, found.makespan_s)
    work = (case["forward_s"] + case["backward_s"] + case["weight_s"]).sum(axis=-1) * case["micro_batches"]
    assert found.busy_s.tolist() == work.tolist()
    assert np.all(found.gradients_ready_s <= found.last_end_s[:, None])


@given(steps(schedules=FIXED), st.data())
def test_more_time_anywhere_never_shortens_the_step(case, data):
    """Not so for delay-aware steps: what a stage takes first depends on the times, and may turn out worse."""
    before = simulate(**case).makespan_s
    times = [key for key, value in case.items() if key.endswith("_s") and np.size(value)]
    key = data.draw(st.sampled_from(times))
    longer = case[key].copy()
    longer.flat[data.draw(st.integers(0, longer.size - 1))] += data.draw(st.integers(1, 20))
    assert simulate(**{**case, key: longer}).makespan_s >= before


@examples(30)
@given(steps(schedules=FIXED, batch=70))
def test_a_batch_gives_what_each_step_gives_alone(case):
    together = simulate(**case)
    assert together.makespan_s.shape == (70,)
    for step in (0, 33, 69):
        alone = simulate(**{key: value[step] if np.ndim(value) else value for key, value in case.items()})
        assert together.end_s[step].tolist() == alone.end_s.tolist()
        assert together.send_start_s[step].tolist() == alone.send_start_s.tolist()
        assert together.gradients_ready_s[step].tolist() == alone.gradients_ready_s.tolist()


def test_times_broadcast_over_any_leading_dimensions():
    forward = np.ones((3, 1, 4, 1)) * np.array([1, 2, 3])[:, None, None, None]
    latency = np.zeros((5, 3))
    found = simulate("1f1b", stages=4, micro_batches=8, forward_s=forward, backward_s=0, latency_forward_s=latency)
    assert found.makespan_s.shape == (3, 5)
    assert found.makespan_s[:, 0].tolist() == [11, 22, 33]


def test_a_delay_aware_batch_and_times_below_zero_are_refused():
    with pytest.raises(ValueError, match="one step at a time"):
        simulate("delay-aware", stages=2, micro_batches=2, forward_s=np.ones((2, 2, 1)), backward_s=1)
    with pytest.raises(ValueError, match="at least 0"):
        simulate("1f1b", stages=2, micro_batches=2, forward_s=-1, backward_s=1)
    with pytest.raises(ValueError, match="at least 0"):
        simulate("1f1b", stages=2, micro_batches=2, forward_s=float("nan"), backward_s=1)
