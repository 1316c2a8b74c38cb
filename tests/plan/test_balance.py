"""Layers are shared out so that no other way has a faster slowest stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import scenario
from crosszone import catalogue
from crosszone.plan.layout_table import (
    balance_layers,
    balance_layers_by_speed,
    balance_micro_batches,
    estimate_head_layers,
)
from crosszone.predict.predict import build_predictor

SECONDS = st.floats(0.1, 4.0)


def every_split(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    """All ways to share layers out, at least one to a stage."""
    if stages == 1:
        yield (layers,)
        return
    for first in range(1, layers - stages + 2):
        yield from ((first, *rest) for rest in every_split(layers - first, stages - 1))


def slowest(split: Sequence[int], layer_s: Sequence[float], other_s: Sequence[float]) -> float:
    return max(count * each + other for count, each, other in zip(split, layer_s, other_s, strict=True))


def test_44_layers_over_4_stages_with_a_head_of_two_layers():
    """[W4] 46 layers' worth over 4 stages: none below 12. Later stages come first, so 11, 11, 12 and 10 + 2."""
    layer_s, other_s = [1.0] * 4, [0.0, 0.0, 0.0, 2.0]
    found = balance_layers(44, layer_s, other_s)
    assert found == (11, 11, 12, 10)
    splits = list(every_split(44, 4))
    assert len(splits) == 43 * 42 * 41 // 6
    assert slowest(found, layer_s, other_s) == min(slowest(one, layer_s, other_s) for one in splits) == 12
    assert slowest((11, 11, 11, 11), layer_s, other_s) == 13


@given(st.data())
def test_no_other_split_has_a_faster_slowest_stage(data):
    """[W4] Any times of layers and ends, against every split there is."""
    stages = data.draw(st.integers(1, 4))
    layers = data.draw(st.integers(stages, 10))
    layer_s = data.draw(st.lists(SECONDS, min_size=stages, max_size=stages))
    other_s = data.draw(st.lists(SECONDS, min_size=stages, max_size=stages))
    found = balance_layers(layers, layer_s, other_s)
    assert sum(found) == layers and min(found) >= 1
    best = min(slowest(one, layer_s, other_s) for one in every_split(layers, stages))
    assert slowest(found, layer_s, other_s) == pytest.approx(best, rel=1e-12)


def test_the_head_counts_as_the_layers_its_operations_make():
    """[W4] LLaMA-2-7B: head 2 x 32000 x 4096 = 262.1e6, layer 404.8e6 + 16.8e6 of attention over 1024 tokens: 0.622."""
    layer = 2 * (4 * 4096**2 + 3 * 4096 * 11008) + 2 * 32 * (128 + 128) * 1024
    assert estimate_head_layers(catalogue().model("llama-2-7b")) == pytest.approx(2 * 32000 * 4096 / layer)


def test_stages_on_gpus_of_twice_the_speed_get_twice_the_layers():
    """[W4] 32 layers and a head of 0.62: 5, 5, 11 / 2 and (11 + 0.62) / 2 = 5.81 are the least; 6, 5, 11, 10 takes 6."""
    model = catalogue().model("llama-2-7b")
    found = balance_layers_by_speed(model, [1.0, 1.0, 2.0, 2.0])
    assert found == (5, 5, 11, 11)
    layer_s, other_s = [1.0, 1.0, 0.5, 0.5], [0.0, 0.0, 0.0, estimate_head_layers(model) / 2]
    assert slowest(found, layer_s, other_s) == min(slowest(one, layer_s, other_s) for one in every_split(32, 4))


def test_a_balanced_split_is_the_faster_one_when_it_is_simulated():
    """[W4] A vocabulary of 256,000 makes a head of several layers: the even split waits for the last stage."""
    wide = {"like": "llama-2-7b", "vocab": 256_000}
    strategy = {"tp": 2, "pp": 4, "dp": 1}
    even = scenario(model=wide, strategy=strategy)
    split = balance_layers_by_speed(even.model, [1.0] * 4)
    other = scenario(model=wide, strategy={**strategy, "layers_per_stage": list(split)})
    assert split[-1] < 8 < max(split)
    assert build_predictor(other).step_time.expected < build_predictor(even).step_time.expected


def test_replicas_take_micro_batches_by_their_speed():
    """[W5] m1 + m2 = 6: max(m1, 2 m2) is 4 for (4, 2), 5 for (5, 1) and 6 for (3, 3)."""
    assert balance_micro_batches(12, (2, 2), (1.0, 2.0)) == (4, 2)
    assert balance_micro_batches(12, (2, 2), (1.0, 1.1)) is None, "equal shares are no other way"
    assert balance_micro_batches(3, (2, 2), (1.0, 2.0)) is None, "each has at least one"
    assert balance_micro_batches(7, (2, 4), (1.0, 2.0)) is None, "an odd number has no such sum"
    assert balance_micro_batches(7, (7,), (1.0,)) is None


@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(1, 4), st.floats(0.1, 10.0)), min_size=2, max_size=2),
)
def test_no_shares_of_two_classes_are_done_sooner(total, classes):
    """[W5] Against every pair of numbers."""
    (n, u), (other, v) = classes
    ways = [
        (max(own * u, rest * v), own, rest)
        for own in range(1, total + 1)
        for rest in range(1, total + 1)
        if n * own + other * rest == total
    ]
    found = balance_micro_batches(total, (n, other), (u, v))
    if found is None:
        assert not ways or any(own == rest and slowest == min(ways)[0] for slowest, own, rest in ways)
    else:
        assert n * found[0] + other * found[1] == total
        assert max(found[0] * u, found[1] * v) == min(ways)[0]


def test_three_classes_share_out_everything():
    """[W5] Shares in proportion to 1, 1/2 and 1/4 of 28 micro-batches: 16, 8 and 4."""
    assert balance_micro_batches(28, (1, 1, 1), (1.0, 2.0, 4.0)) == (16, 8, 4)
