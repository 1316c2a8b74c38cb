"""[O1] to [O5] and [O11] What one operator takes, by hand and as properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.cost.layer import (
    flash_attention_s,
    flash_share,
    longer_s,
    matmul_s,
    traffic_s,
    unfused_attention_s,
)
from crosszone.inputs.flops import tokens_seen

sizes = st.integers(1, 10**5)
times = st.floats(1e-9, 1e6)


def test_a_product_takes_its_arithmetic_and_a_share_of_its_traffic():
    """[O1] 4 x 8 times 8 x 16: 2 x 512 FLOP at 1000 FLOP/s is 1.024 s; 32 + 128 + 64 values of 2 bytes at 0.01 s: 4.48 s."""
    assert matmul_s(4, 8, 16, 1000.0, 0.01) == pytest.approx(1.024 + 4.48)


def test_weights_of_a_grouped_product_are_read_once_each():
    """[O1] Three weight matrices of 8 x 16 share the four rows: 32 + 3 x 128 + 64 values, the arithmetic as before."""
    assert matmul_s(4, 8, 16, 1000.0, 0.01, copies=3) == pytest.approx(1.024 + 2 * 480 * 0.01)


def test_a_product_without_width_costs_nothing():
    """[O1] A model without shared experts has none of their time."""
    assert matmul_s(4, 0, 16, 1000.0, 0.01) == matmul_s(4, 8, 0, 1000.0, 0.01) == 0


def test_a_thin_product_is_far_from_the_peak_and_a_large_one_near_it():
    """[O1] A100, 312 TFLOP/s and 2039 GB/s: 4096 cubed takes 440.5 + 49.4 us, 90 % of the peak; one row less than 1 %."""
    peak, byte_s = 312e12, 1 / 2039e9

    def reached(rows: int) -> float:
        return 2 * rows * 4096 * 4096 / peak / float(matmul_s(rows, 4096, 4096, peak, byte_s))

    assert reached(4096) == pytest.approx(440.5 / (440.5 + 49.4), abs=0.001)
    assert reached(1) < 0.01


@given(sizes, sizes, sizes, st.floats(0, 1e-6))
def test_more_rows_never_take_less_time_and_never_more_each(rows, inner, columns, byte_s):
    """[O1]"""
    one, two = (float(matmul_s(r, inner, columns, 1e12, byte_s)) for r in (rows, 2 * rows))
    assert one < two <= 2 * one * (1 + 1e-12)


def test_fused_attention_counts_the_scores_it_computes():
    """[O2] 16 tokens that see 8 each, two heads of 4 + 4: 2 x 16 x 8 x 16 = 4096 FLOP at 1000 FLOP/s."""
    assert flash_attention_s(16, 8, 16, 1000.0) == pytest.approx(4.096)


def test_narrow_padded_and_short_attention_is_slower():
    """[O11] Width 64, ramp 1024. Heads of 128: 1; of 64: 64 x 1.5 / 128; of 80, padded to 96: 80 x 1.5 / 160; s = 1024: half."""
    for head, share in ((128.0, 1.0), (64.0, 0.75), (96.0, 0.9), (80.0, 0.75)):
        assert flash_share(head, 1e12, 64.0, 1024.0) == pytest.approx(share)
    assert flash_share(128.0, 1024.0, 64.0, 1024.0) == pytest.approx(0.5)
    assert flash_share(128.0, 1024.0, 64.0, 0.0) == pytest.approx(1.0)


@given(st.integers(1, 512), st.integers(1, 10**6), st.floats(0, 500), st.floats(0, 5000))
def test_a_longer_sequence_never_lowers_the_rate_of_attention(head, length, width, ramp):
    """[O11]"""
    shorter, longer = (float(flash_share(head, s, width, ramp)) for s in (length, 2 * length))
    assert 0 < shorter <= longer


def test_unfused_attention_computes_masked_scores_and_moves_each():
    """[O3] 2 x 16 x 16 x 16 = 8192 FLOP, and 16 x 16 x 2 scores of 12 bytes at 0.01 s a byte: 61.44 s."""
    assert unfused_attention_s(16, 16, 16, 2, 1000.0, 0.01, 12.0) == pytest.approx(8.192 + 61.44)


def test_a_copy_takes_its_bytes_over_the_rate():
    """[O4] 300 bytes at 100 bytes/s."""
    assert traffic_s(300.0, 100.0) == 3.0


def test_of_two_that_run_side_by_side_the_longer_counts():
    """[O5] With power 2 it is Pythagoras: 3 and 4 give 5; equal ones 2^(1/6) = 1.1225 of either; nothing adds nothing."""
    assert longer_s(3.0, 4.0, 2.0) == pytest.approx(5.0)
    assert longer_s(7.0, 7.0) == pytest.approx(7 * 1.122462)
    assert longer_s(0.0, 5.0) == 5.0
    assert longer_s(0.0, 0.0) == 0.0


@given(times, times)
def test_it_is_never_below_the_longer_nor_more_than_an_eighth_above(one, other):
    """[O5]"""
    both = float(longer_s(one, other))
    assert max(one, other) <= both <= 1.125 * max(one, other)
    assert both == longer_s(other, one)


@given(st.integers(1, 10**5), st.integers(1, 10**5), st.booleans())
def test_tokens_seen_of_arrays_are_those_of_each(length, window, causal):
    """[F2] The time of attention and the FLOPs it is judged by count the same scores, one model or many."""
    many = tokens_seen(np.array([length, length]), np.array([window, np.inf]), causal=np.array([causal, causal]) * 1.0)
    each = [tokens_seen(length, one, causal=causal) for one in (window, None)]
    assert many.tolist() == pytest.approx(each, rel=1e-12)


def test_arrays_give_what_each_number_gives():
    """[O1]"""
    rows = np.array([1.0, 64.0, 4096.0])
    assert matmul_s(rows, 8, 16, 1e3, 0.01).tolist() == [float(matmul_s(r, 8, 16, 1e3, 0.01)) for r in rows]
