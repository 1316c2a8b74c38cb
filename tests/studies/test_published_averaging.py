"""Averaging layer by layer against times worked out by hand, and against the predictor's own closed form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from published.averaging import (
    LocalSgdPlan,
    compute_utilisation,
    simulate_period_s,
    stream_fragments,
    sync_all_layers,
)

from crosszone.predict.local_update import estimate_fragment_exchange
from predict.given import DDP, placed, zones


def test_a_slow_link_begins_with_the_last_layer_and_ends_with_the_first():
    """[A20] C = 3, 4 layers of 2 s: idle for the forward pass (1) and one layer's backward (0.5), then 8 s of link."""
    assert simulate_period_s(sync_all_layers(4), 3.0, 2.0) == pytest.approx([9.5])


def test_on_a_fast_link_only_the_last_layer_shows():
    """[A20] 0.1 s a layer, 0.5 s of backward pass to hide it: layer 0 has none left."""
    assert simulate_period_s(sync_all_layers(4), 3.0, 0.1) == pytest.approx([3.1])
    assert simulate_period_s(sync_all_layers(4, steps=10), 3.0, 0.1) == pytest.approx([30.1])


def test_fragments_hold_layers_far_apart_and_take_turns():
    """[A20]"""
    assert stream_fragments(6, 4, 3).fragments == {0: (0, 2, 4), 2: (1, 3, 5)}
    assert stream_fragments(9, 10, 3).fragments == {0: (0, 3, 6), 3: (1, 4, 7), 6: (2, 5, 8)}
    for layers, steps, size in ((7, 10, 3), (9, 2, 3), (2, 4, 3)):
        with pytest.raises(ValueError, match="fragments"):
            stream_fragments(layers, steps, size)


def test_a_fragment_is_waited_for_where_it_is_needed():
    """[A20] Two layers, C = 3: forward 0.5 and backward 1 a layer; an exchange of 1 s.

    Layer 0 is ready when its step ends and needed at once: 1 s waited. Layer 1 is ready 1 s before the end: none.
    """
    assert simulate_period_s(stream_fragments(2, 2, 1), 3.0, 1.0) == pytest.approx([7.0])
    assert simulate_period_s(stream_fragments(2, 2, 1, delay=1), 3.0, 1.0) == pytest.approx([6.0])
    assert simulate_period_s(stream_fragments(2, 2, 1, delay=1), 3.0, 3.5) == pytest.approx(
        [7.0]
    )  # the link is never idle


def test_answers_for_many_rates_are_those_for_each():
    """[A20]"""
    plan, exchanges = stream_fragments(24, 100, 3, 1), np.array([0.001, 0.1, 3.0])
    each = [simulate_period_s(plan, 0.1, one)[0] for one in exchanges]
    assert simulate_period_s(plan, 0.1, exchanges) == pytest.approx(each, rel=1e-9)


@given(
    layers=st.sampled_from([3, 6, 12]),
    steps=st.integers(4, 20),
    delay=st.integers(0, 3),
    step=st.floats(0.01, 10),
    exchange=st.floats(1e-4, 10),
)
def test_longer_exchanges_never_compute_more_and_delay_never_less(layers, steps, delay, step, exchange):
    """[A20]"""
    one, other = compute_utilisation(stream_fragments(layers, steps, 3, delay), step, [exchange, 2 * exchange])
    assert 0 < other <= one * (1 + 1e-9) <= 1 + 2e-9
    later = compute_utilisation(stream_fragments(layers, steps, 3, delay + 1), step, exchange)[0]
    assert later >= one * (1 - 1e-9)
    whole = steps * step + layers * exchange
    assert steps * step / whole <= one * (1 + 1e-9)  # at worst nothing hides


@pytest.mark.parametrize(("fragments", "delay"), [(1, 0), (4, 0), (4, 1), (2, 2), (10, 3)])
def test_whole_exchanges_between_steps_are_the_predictors_local_updates(fragments, delay):
    """[A20] [V5] Nothing hidden in the passes, equal layers: F max(0, exchange - delay x step) / H a step."""
    update = {"steps": 100, "fragments": fragments, "delay": delay}
    found = placed({"dp": 16, "local_update": update}, job=DDP, cluster=zones())
    exchange, step = estimate_fragment_exchange(found).seconds[1], found.inner_step_s[1]
    layers = 2 * fragments
    turns = {k * 100 // fragments: (2 * k, 2 * k + 1) for k in range(fragments)}
    plan = LocalSgdPlan(layers=layers, steps=100, fragments=turns, delay=delay, between_steps=True)
    waited = simulate_period_s(plan, step, exchange / 2)[0] / 100 - step
    assert waited == pytest.approx(found.local_update_s[1], rel=1e-6, abs=1e-9)
    assert (waited > 1e-6) == (
        fragments < 10
    )  # 22.5 s in all, behind steps of 3.8 s: only three steps for a tenth hide it
