"""What-if: the whole prediction anew, and properties that hold whatever is changed."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from builders import scenario
from crosszone.analyse.fields import change_scenario
from crosszone.analyse.what_if import sum_bytes_between_zones, what_if
from crosszone.errors import IllegalError, InputError
from crosszone.predict.predict import build_prediction, build_predictor, predict
from effort import examples
from predict.given import DDP, FSDP, MEGATRON, strategies, zones

ROUNDING = 1 + 1e-9


def beside(zone_names: str, each: int):
    """Replicas in every zone."""
    return {"order": ["tp", "cp", "pp", "dp"], "blocks": [{"zone": z, "count": each} for z in zone_names]}


def test_a_what_if_is_the_prediction_of_the_changed_scenario():
    """[A3] Nothing is estimated: the answer equals predicting the changed file."""
    base = scenario(strategy={"tp": 8, "dp": 2}, job=MEGATRON, cluster=zones(2, 8), placement=beside("ab", 8))
    answer = what_if(base, {"job.global_batch": 128, "cluster.links[*].gbps": 40})
    assert answer.before == predict(base)
    assert answer.after == predict(change_scenario(base, answer.changes))
    assert answer.gain == pytest.approx(answer.after.tokens_per_s.expected / answer.before.tokens_per_s.expected - 1)
    parts = sum(part.seconds for part in answer.difference.parts)
    assert parts == pytest.approx(answer.after.step_time_s.expected - answer.before.step_time_s.expected)
    assert [notice["code"] for notice in answer.notices] == ["global_batch_changed"]


def test_the_framework_stays_unless_it_is_changed():
    base = scenario(strategy={"dp": 16}, cluster=zones(2, 8), job={"seq_len": 4096, "global_batch": 64})
    now = predict(base).framework
    assert what_if(base, {"job.global_batch": 32}).after.framework == now
    other = what_if(base, {"job.framework": "horovod"})
    assert other.after.framework == "horovod"
    assert "framework_changed" in {notice["code"] for notice in other.notices}


def test_a_field_may_not_be_set_and_switched():
    base = scenario(strategy={"dp": 16}, cluster=zones(2, 8), job=DDP)
    with pytest.raises(InputError, match="twice"):
        what_if(base, {"strategy.communication.flows": 2}, [("flows", 4)])


@examples(40)
@given(strategies(ranks=16), st.sampled_from([100, 3000, 9000]))
def test_distance_makes_no_bytes(strategy, km):
    """F08: the volume of every link is the same however far the zones lie apart."""
    links = [{"between": ["a", "b"], "km": 100, "gbps": 10}]
    base = scenario(strategy=strategy, job=MEGATRON, cluster=zones(2, 8) | {"links": links})
    try:
        near, far = (
            predict(base),
            predict(change_scenario(base, {"cluster.links[a,b].km": km, "cluster.default_link": None})),
        )
    except IllegalError:
        assume(False)
    sizes = [{(row.kind, row.link): row.bytes_per_step for row in one.communication} for one in (near, far)]
    assert sizes[0] == pytest.approx(sizes[1])


@examples(40)
@given(strategies(ranks=16), st.sampled_from(["a,b", "a,c", "b,c"]))
def test_halving_a_link_changes_only_what_uses_it(strategy, pair):
    """F07: three zones; a strategy whose traffic does not cross the pair takes exactly as long as before."""
    base = scenario(strategy=strategy, job=MEGATRON, cluster=zones(3, 8))
    try:
        before = build_predictor(base)
    except IllegalError:
        assume(False)
    first, second = pair.split(",")
    used = any(
        row.link in (f"{first} > {second}", f"{second} > {first}") for row in build_prediction(before).communication
    )
    after = build_predictor(change_scenario(base, {f"cluster.links[{pair}].gbps": 5}))
    if not used:
        assert after.step_s[1] == before.step_s[1]
    assert after.step_s[1] >= before.step_s[1] / ROUNDING


@examples(40)
@given(strategies(ranks=16), st.floats(0, 1), st.floats(0, 1))
def test_the_overlap_coefficient_is_monotone_from_the_sum_to_the_maximum(strategy, one, other):
    """F49, F71: 0 hides nothing, so all gradients are exposed; more never takes longer; 1 is never below what overlaps."""
    low, high = sorted((one, other))
    base = scenario(strategy=strategy, job=MEGATRON, cluster=zones(2, 8), placement=beside("ab", 8))
    try:
        steps = {
            x: predict(change_scenario(base, {"strategy.communication.overlap": x})) for x in {0.0, low, high, 1.0}
        }
    except IllegalError:
        assume(False)
    assert steps[high].step_time_s.expected <= steps[low].step_time_s.expected * ROUNDING
    none, full = steps[0.0], steps[1.0]
    rows = [row for row in none.communication if row.kind == "gradients"]
    far = max((row.busy_s for row in rows if " > " in row.link), default=0.0)
    busy = far or sum(row.busy_s for row in rows)  # a flat ring runs inside the zones meanwhile
    if strategy["pp"] == 1 and strategy["zero"] < 2:
        assert none.breakdown_s["gradients"] == pytest.approx(busy, rel=1e-6)
        saved = none.step_time_s.expected - full.step_time_s.expected
        compute = sum(none.breakdown_s.values()) - none.breakdown_s["gradients"]
        assert full.step_time_s.expected >= max(busy, compute - saved) / ROUNDING
        assert saved <= min(busy + none.breakdown_s["weights"], compute) * ROUNDING


def test_local_steps_divide_the_bytes_between_zones():
    """F40: a hundred local steps send a hundredth of what averaging every step sends."""
    base = scenario(strategy={"dp": 16, "zero": 3}, job=FSDP, cluster=zones(2, 8), placement=beside("ab", 8))
    every, seldom = (what_if(base, turn=[("local_steps", steps)]).after for steps in (1, 100))
    assert sum_bytes_between_zones(every) == pytest.approx(100 * sum_bytes_between_zones(seldom), rel=1e-9)


@pytest.mark.parametrize("way", ["flat", "hierarchical"])
def test_far_apart_a_small_exchange_takes_its_messages_times_the_delay(way):
    """F48: 0.1 million parameters over 300 ms: the exchange tends to messages x one-way delay."""
    tiny = {"layers": 1, "hidden": 96, "heads": 3, "ffn_hidden": 96, "vocab": 128}
    sharded = {"zero": 1, "shard_within": "zone"} if way == "hierarchical" else {}
    base = scenario(
        model=tiny,
        strategy={"dp": 8, "communication": {"overlap": 0.0, "reduce": way}} | sharded,
        job=MEGATRON | {"seq_len": 64, "global_batch": 8},
        cluster=zones(4, 2, gbps=100, rtt_ms=300),
        placement=beside("abcd", 2),
    )
    found = predict(base)
    rows = [row for row in found.communication if row.kind == "gradients" and " > " in row.link]
    assert rows[0].messages == (6 if way == "hierarchical" else 2 * 7 * 4 / 8)
    assert found.breakdown_s["gradients"] == pytest.approx(rows[0].messages * 0.15, rel=0.06)
