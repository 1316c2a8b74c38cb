"""[M2] [M4] [O7] What recomputation, sharding and further axes save in memory and cost in time, through the prediction."""

from __future__ import annotations

import pytest

from predict.given import FSDP, MEGATRON, one_zone, placed, predicted, traffic

PARAMETERS = 6_738_415_616
GIB = 2**30


def parts(strategy: dict, stage: int = 0, **changes) -> dict[str, float]:
    return predicted(strategy, **changes).memory_gib.stages[stage].parts


def test_full_recomputation_costs_a_forward_pass_of_the_layers_and_keeps_their_inputs():
    """[O7] F24: one of four passes more; activations shrink to 2 bytes s b h a layer, 32 MiB x 32 = 1 GiB (and the final norm's)."""
    none, full = (
        predicted({"tp": 1, "dp": 8, "zero": 1, "recompute": r}, cluster=one_zone(8)) for r in ("none", "full")
    )
    layers = ("matmul", "attention", "elementwise")
    spent = sum(none.breakdown_s[name] for name in layers)
    assert full.breakdown_s["recompute"] == pytest.approx(spent / 3, rel=0.1)
    assert 1.15 < full.step_time_s.expected / none.step_time_s.expected < 1.4
    kept = [placed({"tp": 1, "dp": 8, "zero": 1, "recompute": r}, cluster=one_zone(8)).memory for r in ("none", "full")]
    assert kept[1].peak.expected < kept[0].peak.expected - 5
    assert full.hfu.expected > full.mfu.expected


def test_full_recomputation_in_a_pipeline_keeps_one_input_a_layer_and_micro_batch():
    """[M4] F24: first of four stages, four micro-batches in flight, 8 layers: 4 x 8 x 2 x 4096 x 4096 bytes = 1 GiB."""
    kept = parts({"tp": 2, "pp": 4, "dp": 1, "recompute": "full"}, cluster=one_zone(8))["activations"]
    assert kept == pytest.approx(1.0, rel=0.05)


def test_selective_recomputation_lies_between():
    """[O7] F24: unfused attention of Megatron-LM of 2021: the scores are what it repeats and what it saves."""
    job = MEGATRON | {"stack": "megatron-lm-2021"}
    step, kept = {}, {}
    for how in ("none", "selective", "full"):
        got = predicted({"tp": 8, "dp": 2, "recompute": how}, job=job)
        step[how], kept[how] = got.step_time_s.expected, got.memory_gib.peak.expected
    assert step["none"] < step["selective"] < step["full"]
    assert kept["none"] > kept["selective"] > kept["full"]


@pytest.mark.parametrize(
    ("zero", "weights", "gradients", "optimizer"),
    [(0, 2, 4, 12), (1, 2, 4, 12 / 8), (2, 2, 4 / 8, 12 / 8), (3, 2 / 8, 4 / 8, 12 / 8)],
)
def test_zero_divides_states_stage_by_stage(zero, weights, gradients, optimizer):
    """[M2] F35: Megatron with Adam, 2 + 4 + 12 bytes a parameter, d = 8 (arXiv 1910.02054, table 1, with fp32 gradients).

    Weights and optimizer states are always there; gradients are, where the peak falls while they are whole.
    """
    got = parts({"dp": 8, "zero": zero}, cluster=one_zone(8))
    each = PARAMETERS / GIB
    assert got["weights"] == pytest.approx(weights * each, rel=1e-6)
    assert got["optimizer"] == pytest.approx(optimizer * each, rel=1e-6)
    assert got["gradients"] == pytest.approx(gradients * each, rel=1e-6)


def test_fsdp_keeps_fp32_weights_and_no_master_copy():
    """[M2] F35: 4 + 4 + 8 bytes over 8 ranks; over the 4 of one of two nodes where sharding stays inside a node."""
    each = PARAMETERS / GIB
    everywhere = parts({"dp": 8, "zero": 3}, job=FSDP, cluster=one_zone(8))
    assert everywhere["weights"] + everywhere["optimizer"] == pytest.approx(12 / 8 * each, rel=1e-6)
    cluster = {"zones": [{"name": "a", "nodes": [{"count": 2, "gpus": 4, "gpu": "a100-80gb-sxm"}]}]}
    inside = parts({"dp": 8, "zero": 3, "shard_within": "node"}, job=FSDP, cluster=cluster)
    assert inside["weights"] + inside["optimizer"] == pytest.approx(12 / 4 * each, rel=1e-6)


def test_offloaded_states_lie_in_host_memory():
    """[M8] Adam's 12 bytes of a parameter leave the GPU, sharded over 8."""
    strategy = {"dp": 8, "zero": 1}
    job = MEGATRON | {"framework": "deepspeed"}
    here = predicted(strategy, job=job, cluster=one_zone(8)).memory_gib.stages[0]
    away = predicted(strategy | {"offload": "optimizer"}, job=job, cluster=one_zone(8)).memory_gib.stages[0]
    assert here.parts["optimizer"] == pytest.approx(12 / 8 * PARAMETERS / GIB, rel=1e-6)
    assert away.parts["optimizer"] == 0
    assert away.host >= here.parts["optimizer"]


def test_offloading_costs_time():
    """[O10] CPUs update more slowly than GPUs, and states cross PCIe."""
    job = MEGATRON | {"framework": "deepspeed"}
    here, away = (
        predicted({"dp": 8, "zero": 1, "offload": o}, job=job, cluster=one_zone(8)) for o in ("none", "optimizer")
    )
    assert away.breakdown_s["optimizer"] > 2 * here.breakdown_s["optimizer"]


def test_sequence_parallelism_shrinks_activations_and_leaves_traffic_as_it_is():
    """[M3] F36: a gather and a scatter move what one all-reduce moves."""
    plain, cut = (predicted({"tp": 8, "dp": 2, "sequence_parallel": on}) for on in (False, True))
    assert cut.memory_gib.stages[0].parts["activations"] < plain.memory_gib.stages[0].parts["activations"]
    assert traffic(cut, "tensor")["fast link"].bytes_per_step == traffic(plain, "tensor")["fast link"].bytes_per_step
    assert cut.breakdown_s["elementwise"] < plain.breakdown_s["elementwise"]


def test_context_parallelism_cuts_activations_and_shares_states():
    """[M3] F36: c = 2 halves the tokens of a GPU; ZeRO 1 shards over d c ranks."""
    one, two = (
        predicted({"tp": 2, "cp": c, "dp": 4 // c, "zero": 1}, cluster=one_zone(8)).memory_gib.stages[0] for c in (1, 2)
    )
    assert two.parts["activations"] == pytest.approx(one.parts["activations"] / 2, rel=0.02)
    assert two.parts["optimizer"] == pytest.approx(one.parts["optimizer"], rel=1e-6)


def test_expert_parallelism_spreads_the_experts():
    """[M2] F36: Mixtral on 8 GPUs: 32 layers x 8 experts x 3 x 4096 x 14336 = 45.1e9 of 46.7e9 parameters; e = 8 keeps an eighth."""
    kinds = {"model": "mixtral-8x7b", "cluster": one_zone(8, gpu="h100-80gb-sxm")}
    whole, spread = (predicted({"dp": 8, "ep": e, "zero": 1}, **kinds) for e in (1, 8))
    experts = 32 * 8 * 3 * 4096 * 14336
    saved = whole.memory_gib.stages[0].parts["weights"] - spread.memory_gib.stages[0].parts["weights"]
    assert saved == pytest.approx(2 * experts * 7 / 8 / GIB, rel=1e-6)
    assert traffic(spread, "expert")
    assert not traffic(whole, "expert")


def test_stages_hold_fewer_micro_batches_towards_the_end():
    """[M4] 1F1B, four stages: 4, 3, 2, 1 micro-batches of 8 layers."""
    stages = predicted({"tp": 2, "pp": 4, "dp": 1}, cluster=one_zone(8)).memory_gib.stages
    kept = [stage.parts["activations"] for stage in stages[:3]]
    assert kept == pytest.approx([kept[0], kept[0] * 3 / 4, kept[0] / 2], rel=0.05)


def test_a_plan_that_does_not_fit_says_where_and_by_how_much():
    """[M1] 70B on eight GPUs without sharding: 18 bytes x 69e9 / 8 is 144 GiB a GPU."""
    got = predicted({"tp": 8, "dp": 1}, model="llama-2-70b", cluster=one_zone(8))
    assert not got.memory_gib.fits
    assert got.memory_gib.margin < -60
    (notice,) = [w for w in got.warnings if w["code"] == "does_not_fit"]
    assert "80" in notice["message"]
