"""[S1] [S2] What each stage runs, in which order, and how many micro-batches it holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.schedule.orders import (
    BACKWARD,
    FORWARD,
    KIND_NAMES,
    WEIGHT,
    build_orders,
    choose_group_size,
    count_in_flight,
    list_stages_in_order,
    map_virtual_stages,
)
from crosszone.schedule.shape import build_dependency_graph

CHUNKS = {"interleaved": (2, 3, 4), "zbv": (2,), "dualpipev": (2,)}
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble", "zbv", "dualpipev", "delay-aware")
SIZES = st.tuples(st.sampled_from(SCHEDULES), st.integers(1, 9), st.integers(1, 40), st.data())


def words(schedule: str, stages: int, micro_batches: int, chunks: int = 1, extra_warmup: int = 0) -> list[str]:
    """One line per stage: `F0 B0`; a second chunk is written in small letters."""
    made = build_orders(schedule, stages, micro_batches, chunks, extra_warmup)
    rows = zip(made.kind, made.micro_batch, made.chunk, strict=True)
    return [
        " ".join(
            ("FBW", "fbw")[c]["FBW".index(KIND_NAMES[k][0].upper())] + str(j) for k, j, c in zip(*row, strict=True)
        )
        for row in rows
    ]


def test_gpipe_runs_all_forward_passes_first():
    assert words("gpipe", 2, 3) == ["F0 F1 F2 B0 B1 B2"] * 2


def test_1f1b_alternates_after_as_many_forward_passes_as_stages_follow():
    assert words("1f1b", 3, 4) == ["F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]


def test_fewer_micro_batches_than_stages_leave_nothing_to_alternate():
    assert words("1f1b", 4, 2)[:2] == ["F0 F1 B0 B1"] * 2


def test_interleaved_stages_run_a_group_on_one_chunk_then_on_the_next():
    """Narayanan et al. 2021 (SC21), figure 4, cut down to 2 stages, 2 chunks, 4 micro-batches.

    Stage 0 runs 2 (p - 1) + (v - 1) p = 4 forward passes before it alternates, stage 1 runs 2.
    """
    assert words("interleaved", 2, 4, 2) == [
        "F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1 b2 b3 B2 B3",
        "F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3",
    ]


def test_zero_bubble_stages_put_off_as_many_weight_gradients_as_stages_come_before():
    """Qi et al. 2024 (arXiv 2401.10241), section 2.1: all stages then hold the same number of micro-batches."""
    assert words("zero-bubble", 2, 3) == ["F0 F1 B0 W0 F2 B1 W1 B2 W2", "F0 B0 F1 B1 W0 F2 B2 W1 W2"]


def test_delay_aware_stages_but_the_last_hold_more_micro_batches():
    assert words("delay-aware", 2, 4, extra_warmup=1) == ["F0 F1 F2 B0 F3 B1 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]
    assert words("delay-aware", 2, 4) == words("1f1b", 2, 4)


def test_zbv_turns_at_the_last_stage():
    """Two stages: the last one runs both halves of a micro-batch at once, the first one waits for it to come back."""
    first, last = words("zbv", 2, 3, 2)
    assert first.startswith("F0 F1 F2 f0 b0 w0")
    assert last.startswith("F0 f0 F1 f1 b0 w0")


def test_chunks_of_a_stage_are_spread_over_the_model():
    """[S2]"""
    assert map_virtual_stages("interleaved", 3, 2).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert map_virtual_stages("zbv", 3, 2).tolist() == [[0, 5], [1, 4], [2, 3]]
    assert list_stages_in_order("interleaved", 3, 2).tolist() == [0, 1, 2, 0, 1, 2]
    assert list_stages_in_order("dualpipev", 3, 2).tolist() == [0, 1, 2, 2, 1, 0]


@given(SIZES)
def test_every_pass_of_every_micro_batch_is_run_once_and_in_its_turn(size):
    schedule, stages, micro_batches, data = size
    chunks = data.draw(st.sampled_from(CHUNKS.get(schedule, (1,))))
    made = build_orders(schedule, stages, micro_batches, chunks)
    kinds = (FORWARD, BACKWARD, WEIGHT) if made.splits else (FORWARD, BACKWARD)
    wanted = sorted((k, j, c) for k in kinds for j in range(micro_batches) for c in range(chunks))
    for row in zip(made.kind, made.micro_batch, made.chunk, strict=True):
        run = list(zip(*(column.tolist() for column in row), strict=True))
        assert sorted(run) == wanted
        at = {operation: place for place, operation in enumerate(run)}
        for _, j, c in wanted:
            assert at[FORWARD, j, c] < at[BACKWARD, j, c]
            if made.splits:
                assert at[BACKWARD, j, c] < at[WEIGHT, j, c]


@given(SIZES)
def test_no_order_lets_stages_wait_for_each_other_for_ever(size):
    schedule, stages, micro_batches, data = size
    chunks = data.draw(st.sampled_from(CHUNKS.get(schedule, (1,))))
    shape = build_dependency_graph(schedule, stages, micro_batches, chunks)
    assert len(shape.first) == shape.operations.size + shape.sends.size


def counted(schedule: str, stages: int, micro_batches: int, chunks: int, extra_warmup: int) -> list[int]:
    made = build_orders(schedule, stages, micro_batches, chunks, extra_warmup)
    freed = WEIGHT if made.splits else BACKWARD
    return [int(np.cumsum(np.where(row == FORWARD, 1, np.where(row == freed, -1, 0))).max()) for row in made.kind]


@given(SIZES, st.integers(0, 5))
def test_what_a_stage_holds_is_what_its_order_makes_it_hold(size, extra):
    """[S1]"""
    schedule, stages, micro_batches, data = size
    chunks = data.draw(st.sampled_from(CHUNKS.get(schedule, (1,))))
    extra = extra if schedule == "delay-aware" else 0
    held = count_in_flight(schedule, stages, micro_batches, chunks, extra)
    assert held.tolist() == counted(schedule, stages, micro_batches, chunks, extra)


def test_micro_batches_in_flight_follow_the_published_formulas():
    """[S1] GPipe m; 1F1B min(m, p - s); interleaved first stage p + (p - 1) / v full stages (Narayanan et al. 2021);
    ZB-H1 p on every stage and ZB-V 2 p chunks (Qi et al. 2024); DualPipe one chunk more (DeepSeek-AI 2025).
    """
    assert count_in_flight("gpipe", 4, 8).tolist() == [8, 8, 8, 8]
    assert count_in_flight("1f1b", 4, 8).tolist() == [4, 3, 2, 1]
    assert count_in_flight("1f1b", 4, 2).tolist() == [2, 2, 2, 1]
    assert count_in_flight("interleaved", 4, 16, 2)[0] / 2 == 4 + 3 / 2
    assert count_in_flight("interleaved", 8, 32, 4)[0] / 4 == 8 + 7 / 4
    assert count_in_flight("zero-bubble", 4, 8).tolist() == [4, 4, 4, 4]
    assert count_in_flight("zbv", 4, 12, 2).tolist() == [8, 8, 8, 8]
    assert count_in_flight("dualpipev", 4, 12, 2).tolist() == [9, 9, 9, 9]
    assert count_in_flight("delay-aware", 4, 8, 1, 3).tolist() == [7, 6, 5, 1]


def test_groups_of_an_interleaved_step_are_never_shorter_than_the_pipeline_if_that_can_be():
    """9 = 5 + 4 on 4 stages; 10 = 5 + 5 on 3 (groups of 4 would leave 2); 7 on 4 cannot be split."""
    assert choose_group_size(4, 8) == 4
    assert choose_group_size(4, 9) == 5
    assert choose_group_size(3, 10) == 5
    assert choose_group_size(4, 7) == 7
    assert choose_group_size(4, 3) == 3


@pytest.mark.parametrize(
    ("schedule", "chunks"), [("1f1b", 2), ("gpipe", 2), ("zero-bubble", 2), ("zbv", 1), ("dualpipev", 3), ("other", 1)]
)
def test_a_schedule_refuses_chunks_it_was_not_made_for(schedule, chunks):
    with pytest.raises(ValueError):
        build_orders(schedule, 4, 8, chunks)


def test_sizes_below_one_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        build_orders("1f1b", 4, 0)
