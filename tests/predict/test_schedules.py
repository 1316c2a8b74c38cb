"""[V3] [X8] Every schedule over links between zones, through the whole prediction."""

from __future__ import annotations

from typing import Any

import pytest

from predict.given import FSDP, MEGATRON, one_zone, placed, predicted, step, zones

SHAPES: dict[str, dict[str, Any]] = {
    "gpipe": {}, "1f1b": {}, "interleaved": {"interleave": 2}, "zero-bubble": {}, "zbv": {"interleave": 2},
    "dualpipev": {"interleave": 2}, "delay-aware": {"extra_warmup": 4},
}  # fmt: skip


def run(schedule: str, cluster: dict[str, Any], **more: Any) -> Any:
    strategy = {"tp": 2, "pp": 4, "dp": 1, "zero": 2, "schedule": schedule} | SHAPES[schedule] | more
    return predicted(strategy, job=FSDP | {"global_batch": 32}, cluster=cluster)


@pytest.mark.parametrize("schedule", SHAPES)
def test_every_schedule_is_simulated_over_links_between_zones(schedule):
    """[V3] B12: four stages in four zones 40 ms apart take longer than in one, by at least the way there and back: 6 x 20 ms."""
    far, near = run(schedule, zones(4, 2, rtt_ms=40, gbps=100)), run(schedule, one_zone(8))
    assert far.step_time_s.expected > near.step_time_s.expected + 0.12
    assert far.breakdown_s["pipeline"] >= 0.12
    assert sum(far.breakdown_s.values()) == pytest.approx(far.step_time_s.expected)
    links = {row.link for row in far.communication if row.kind == "pipeline"}
    back_to_the_first = {"a > d", "d > a"} if schedule == "interleaved" else set()
    assert links == {"a > b", "b > a", "b > c", "c > b", "c > d", "d > c"} | back_to_the_first


def test_the_head_has_a_virtual_stage_of_its_own_where_layers_leave_it_one():
    """[R3] 30 layers on 2 x 16: 0, thirty times 1, 0. The embedding's pass is shorter than a layer's, the head's is there."""
    model = {"like": "llama-2-7b", "layers": 30}
    p = placed({"pp": 2, "interleave": 16, "dp": 1, "tp": 8}, model=model)
    forward_s = p.step.pipelines.columns["forward_s"][0]
    per_chunk = forward_s.T.ravel()  # virtual stages in order: chunk after chunk, stage after stage
    assert per_chunk[0] < 0.5 * per_chunk[1]
    assert per_chunk[1:-1] == pytest.approx(per_chunk[1:-1].mean(), rel=0.01)  # sends are shared out by stage
    head_s = float(p.step.times.cost.forward["head"][0, 1])
    assert per_chunk[-1] > head_s > 0
    assert [stage.layers for stage in p.memory.stages] == [15, 15]


def test_a_plain_stage_may_hold_only_the_head():
    """[R3] 16, 16, 0: two thirds of the parameters are where the layers are, and the last stage has a head and a bubble."""
    some, even = placed({"pp": 3, "dp": 1, "layers_per_stage": [16, 16, 0]}), placed({"pp": 3, "dp": 1})
    assert some.memory.stages[2].parts["activations"] < 0.1 * even.memory.stages[2].parts["activations"]
    assert some.step.times.cost.forward["head"][0].tolist()[:2] == [0, 0]
    assert some.step.times.cost.forward["head"][0, 2] == even.step.times.cost.forward["head"][0, 2] > 0
    assert some.step_time.expected > even.step_time.expected


@pytest.mark.parametrize("schedule", SHAPES)
def test_every_schedule_has_a_timeline_that_ends_with_its_step(schedule):
    """[S10]"""
    strategy = {"tp": 2, "pp": 4, "dp": 1, "zero": 2, "schedule": schedule} | SHAPES[schedule]
    p = placed(strategy, job=FSDP | {"global_batch": 32}, cluster=zones(4, 2))
    assert p.timeline().step_s == pytest.approx(p.step_time.expected)


def test_schedules_that_split_the_backward_pass_wait_less_in_one_zone():
    """[V3] Zero-bubble schedules fill the wait with weight gradients; interleaving halves it; GPipe waits as 1F1B does."""
    waits = {schedule: run(schedule, one_zone(8)).breakdown_s["bubble"] for schedule in SHAPES}
    assert waits["gpipe"] == pytest.approx(waits["1f1b"], rel=0.02)
    assert waits["zbv"] < waits["zero-bubble"] < waits["1f1b"]
    assert waits["interleaved"] < 0.7 * waits["1f1b"]
    assert waits["dualpipev"] < waits["1f1b"]


def test_more_micro_batches_in_flight_help_over_a_slow_boundary_and_cost_memory():
    """[V3] Two stages 200 ms apart: 1F1B has two micro-batches in flight; each more hides some of the way."""
    cluster = zones(2, 8, rtt_ms=200, gbps=100)

    def delayed(extra: int) -> Any:
        return predicted({"tp": 8, "pp": 2, "dp": 1, "schedule": "delay-aware", "extra_warmup": extra}, cluster=cluster)

    plain = predicted({"tp": 8, "pp": 2, "dp": 1}, cluster=cluster)
    none, some, many = (delayed(extra) for extra in (0, 2, 8))
    assert none.step_time_s.expected == pytest.approx(plain.step_time_s.expected, rel=0.01)
    assert many.step_time_s.expected < some.step_time_s.expected < none.step_time_s.expected
    kept = [one.memory_gib.stages[0].parts["activations"] for one in (none, some, many)]
    assert kept[1] == pytest.approx(2 * kept[0], rel=0.05)
    assert kept[2] == pytest.approx(5 * kept[0], rel=0.05)
    assert "schedule_simulated_only" in {w["code"] for w in some.warnings}


def test_enough_micro_batches_in_flight_hide_all_of_the_delay_but_one_round():
    """[V3] Two stages a second apart (500 ms each way): with all 64 in flight the step is within 1.3 s of one zone's."""
    late = zones(2, 8, rtt_ms=1000, gbps=400)
    hidden = step(
        {"tp": 8, "pp": 2, "dp": 1, "schedule": "delay-aware", "extra_warmup": 64, "communication": {"flows": 64}},
        cluster=late,
    )
    near = step({"tp": 8, "pp": 2, "dp": 1}, cluster=one_zone(16))
    plain = step({"tp": 8, "pp": 2, "dp": 1, "communication": {"flows": 64}}, cluster=late)
    assert near < hidden < plain
    assert plain > 32 * 1.0


def test_1f1b_waits_for_a_round_trip_every_p_micro_batches():
    """[V3] Two stages, two in flight: 64 micro-batches need 32 rounds of a round trip of 1 s; a rank's 4.2 MB over 128
    connections of 3 MB a round trip are nothing to it: less than 3 s a round.
    """
    far = predicted(
        {"tp": 8, "pp": 2, "dp": 1, "communication": {"flows": 64}}, cluster=zones(2, 8, rtt_ms=1000, gbps=400)
    )
    near = predicted({"tp": 8, "pp": 2, "dp": 1}, cluster=one_zone(16))
    assert far.step_time_s.expected > 32 * 1.0
    assert 32 * 1.0 < far.breakdown_s["pipeline"] < 32 * 3.0
    assert near.step_time_s.expected < 20


def test_interleaving_crosses_zones_more_often():
    """[X8] Two chunks a stage: activations pass every boundary twice, so twice the bytes a neighbouring pair (and the way back)."""
    one, two = (
        predicted(
            {"tp": 2, "pp": 4, "dp": 1, "interleave": v}, cluster=zones(4, 2), job=MEGATRON | {"global_batch": 32}
        )
        for v in (1, 2)
    )
    size = {
        v: {r.link: r.bytes_per_step for r in got.communication if r.kind == "pipeline"}
        for v, got in ((1, one), (2, two))
    }
    assert size[2]["a > b"] == pytest.approx(2 * size[1]["a > b"])
