"""[T1] to [T6]: what TCP connections carry, by hand and against published figures."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.cost.wan import (
    aggregate_bytes_per_s,
    default_window_bytes,
    flow_bytes_per_s,
    loss_bytes_per_s,
    slow_start_s,
    window_bytes,
    window_bytes_per_s,
)

MBIT = 1e6 / 8
CONTROLS = ("reno", "cubic", "bbr")
rtts = st.floats(1e-4, 1.0)
losses = st.floats(1e-6, 0.1)


def test_a_window_is_sent_once_per_round_trip():
    """[T1] 6.25 MB over 50 ms is 1 Gbit/s."""
    assert window_bytes_per_s(0.05, 6.25e6) == pytest.approx(1000 * MBIT)


def test_linux_defaults_stop_a_flow_near_half_a_gigabit_at_50_ms():
    """[T1] 4 MiB of buffer, three quarters of it payload, over 50 ms: 503 Mbit/s."""
    assert default_window_bytes() == window_bytes(2**22) == 0.75 * 2**22
    assert window_bytes_per_s(0.05) == pytest.approx(503.3 * MBIT, rel=1e-3)


def test_a_1_mib_buffer_and_50_ms_carry_what_was_measured():
    """[T1] [T4] Measured on emulated zones: 1 flow 129 Mbit/s, 4 flows 501, 8 flows 931 of 1000 Mbit/s."""
    one = window_bytes_per_s(0.05, window_bytes(2**20))
    together = aggregate_bytes_per_s(1000 * MBIT * 1448 / 1500, [1, 4, 8], one) / MBIT
    assert list(together) == pytest.approx([129, 501, 931], rel=0.05)


def test_mathis_by_hand():
    """[T2] 1448 bytes / 20 ms x 1.2247 / sqrt(0.0001): 70.9 Mbit/s; 22.4 at 0.1 %, 7.1 at 1 %."""
    rates = loss_bytes_per_s(0.02, [1e-4, 1e-3, 1e-2], "reno") / MBIT
    assert list(rates) == pytest.approx([70.94, 22.43, 7.094], rel=1e-3)


def test_cubic_follows_its_own_response_on_long_fat_paths():
    """[T2] RFC 8312 section 5: 1.054 (RTT / loss)^0.75 packets. RTT 100 ms, loss 1e-7: 1.054 x 31 623 = 33 331."""
    assert loss_bytes_per_s(0.1, 1e-7, "cubic") * 0.1 / 1448 == pytest.approx(33_331, rel=1e-3)
    assert loss_bytes_per_s(0.1, 1e-7, "reno") * 0.1 / 1448 == pytest.approx(3_873, rel=1e-3)


def test_cubic_is_reno_on_short_paths():
    """[T2] RTT 10 ms, loss 1e-4: 33.3 packets by its own response, 122 by Reno's, which it never stays below."""
    assert loss_bytes_per_s(0.01, 1e-4, "cubic") == loss_bytes_per_s(0.01, 1e-4, "reno")


def test_bbr_does_not_mind_loss_below_its_limit():
    """[T2]"""
    assert loss_bytes_per_s(0.02, 0.01, "bbr") == np.inf
    assert loss_bytes_per_s(0.02, 0.2, "bbr") == loss_bytes_per_s(0.02, 0.2, "reno")


def test_the_least_of_window_loss_and_cap_bounds_a_flow():
    """[T3]"""
    assert flow_bytes_per_s(0.05, window=6.25e6) == pytest.approx(1000 * MBIT)
    assert flow_bytes_per_s(0.05, window=6.25e6, cap_bytes_per_s=600 * MBIT) == 600 * MBIT
    assert flow_bytes_per_s(0.02, 1e-3, "reno", window=6.25e6) == loss_bytes_per_s(0.02, 1e-3, "reno")


def test_flows_add_up_to_the_link():
    """[T4] 1 % loss costs 1 % of a full link: it is sent again."""
    assert list(aggregate_bytes_per_s(100.0, [1, 3, 8], 20.0)) == [20, 60, 100]
    assert aggregate_bytes_per_s(100.0, 8, 20.0, loss=0.01) == 99


def test_a_new_connection_needs_six_more_round_trips_for_a_mebibyte():
    """[T6] 10 packets are 14 480 bytes; 1 MiB needs windows of 1, 2, 4, 8, 16, 32 and the last of 64 times that.

    The path is never full in the six round trips before the last: 6 x 20 ms less the 63 windows they carried. Measured
    for a first transfer: 132 to 140 ms in all, where a warm one takes 27.4.
    """
    rate = 500 * MBIT * 1448 / 1500
    extra = slow_start_s(2**20, 0.02, rate)
    assert extra == pytest.approx(6 * 0.02 - 63 * 14_480 / rate)
    assert 0.0274 + extra == pytest.approx(0.136, rel=0.05)


def test_a_second_of_silence_halves_the_window_four_times():
    """[T6] Timeout 0.2 s + 20 ms: 4 in a second, so the path's 1.2 MB restart at a 16th.

    16 such windows fill the path: 1 MiB needs three round trips more. Measured: 83 to 95 ms, warm 27.7.
    """
    rate = 500 * MBIT * 1448 / 1500
    start = rate * 0.02 / 16
    assert slow_start_s(2**20, 0.02, rate, idle_s=1.0) == pytest.approx(3 * 0.02 - 7 * start / rate)
    assert 0.0274 + slow_start_s(2**20, 0.02, rate, idle_s=1.0) == pytest.approx(0.0829, rel=0.06)


def test_a_connection_that_did_not_rest_is_warm():
    """[T6]"""
    assert slow_start_s(2**30, 0.1, 1e9, idle_s=0.0) == 0


@given(rtts, losses, st.sampled_from(CONTROLS), st.floats(1, 10))
def test_longer_and_lossier_paths_never_carry_more(rtt, loss, congestion, factor):
    """[T3]"""
    now = flow_bytes_per_s(rtt, loss, congestion)
    assert flow_bytes_per_s(rtt * factor, loss, congestion) <= now * (1 + 1e-12)
    assert flow_bytes_per_s(rtt, min(1.0, loss * factor), congestion) <= now * (1 + 1e-12)


@given(st.floats(1, 1e11), rtts, st.floats(1e4, 1e10), st.floats(0, 100))
def test_a_cold_start_costs_at_most_the_doublings_and_never_less_than_nothing(size, rtt, rate, idle):
    """[T6] Whole round trips: after a pause it may cost one more than from the start, never two."""
    extra, cold = slow_start_s(size, rtt, rate, idle), slow_start_s(size, rtt, rate)
    assert 0 <= extra <= cold + rtt
    assert cold <= rtt * max(0, math.ceil(math.log2(max(rate * rtt, 1) / 14_480)))


def test_no_delay_is_no_limit():
    assert window_bytes_per_s(0.0) == np.inf
    assert loss_bytes_per_s(0.0, 0.01, "reno") == np.inf
    assert slow_start_s(1e6, 0.0, 1e9) == 0


def test_next_to_no_round_trip_is_no_limit():
    """[T1] A window over 1e-303 s is more than a number can say: as at no distance at all, the window limits nothing."""
    assert window_bytes_per_s(1e-303) == window_bytes_per_s(0.0) == math.inf
