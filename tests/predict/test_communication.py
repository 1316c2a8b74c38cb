"""[X1] [X3] [X4] [X7] [X8] [V4] What every kind of communication sends, and where, worked out for llama-2-7b.

llama-2-7b: 32 layers, h = 4096, 32 KV heads of 128, 6,738,415,616 parameters; 4096 tokens a micro-batch of one sample.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.predict.predict import build_prediction
from effort import examples
from predict.given import DDP, FSDP, MEGATRON, one_zone, placed, predicted, predictors, traffic, zones

PARAMETERS = 6_738_415_616
ACTIVATION = 2 * 4096 * 4096
TCP = 0.9653
"""Share of a line that is payload: 1448 of 1500 bytes."""


def apart(each: int = 8) -> dict:
    """Replicas as the axis that crosses two zones."""
    return {"order": ["tp", "cp", "pp", "dp"], "blocks": [{"zone": z, "count": each} for z in "ab"]}


ZONES_FIRST = {"zero": 1, "shard_within": "zone"}
"""Megatron reduces inside each zone first where zones hold copies of the states."""


def far(strategy: dict, *, gpus: int = 8, job: dict = MEGATRON, model: object = "llama-2-7b", **link):
    return predicted(strategy, cluster=zones(2, gpus, **link), placement=apart(gpus), job=job, model=model)


def test_tensor_parallel_bytes_are_four_rings_a_layer():
    """[X1] t = 8, 64 micro-batches: (32 x 4 + 2) collectives of 2 x 7/8 x 2 s b h bytes from each of eight GPUs."""
    row = traffic(predicted({"tp": 8, "dp": 1}), "tensor")["fast link"]
    assert row.bytes_per_step == pytest.approx(8 * 64 * 130 * 2 * 7 / 8 * ACTIVATION)


@examples(25)
@given(
    st.sampled_from([2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1024, 4096]),
    st.sampled_from([5504, 11008]),
)
def test_tensor_parallel_communication_is_linear_in_the_activations_and_blind_to_the_weights(t, samples, length, ffn):
    """[X1] F44: bytes 2 (t-1)/t x 2 s b h, whatever the MLP's width; per step it does not matter how samples are cut."""
    job = MEGATRON | {"seq_len": length}
    got = predicted(
        {"tp": t, "dp": 1, "micro_batch": samples}, job=job, model={"like": "llama-2-7b", "ffn_hidden": ffn}
    )
    row = traffic(got, "tensor")["fast link"]
    assert row.bytes_per_step == pytest.approx(t * 130 * 2 * (t - 1) / t * 2 * 64 * length * 4096)
    assert row.messages == 64 / samples * (4 * 32 + 2)


def test_full_recomputation_repeats_the_forward_collectives():
    """[X1] 6 a layer in place of 4."""
    none, full = (
        traffic(predicted({"tp": 8, "dp": 1, "recompute": r}), "tensor")["fast link"] for r in ("none", "full")
    )
    assert full.bytes_per_step / none.bytes_per_step == pytest.approx((32 * 6 + 2) / (32 * 4 + 2))


def test_context_parallel_keys_and_values_go_round_and_their_gradients_back():
    """[X4] c = 2: 2 bytes x 2048 tokens x 2 x 4096 wide to one other rank; twice more backward; 32 layers, 64 micro-batches."""
    row = traffic(predicted({"cp": 2, "dp": 1}, cluster=one_zone(2)), "context")["fast link"]
    assert row.bytes_per_step == pytest.approx(3 * 64 * 32 * 2 * (2 * 2048 * 8192))


def test_recomputation_repeats_every_forward_exchange_in_bytes_messages_and_time():
    """[X3] [X4] Keys and values go round four times in place of three; tokens to their experts and back three in place
    of two.
    """
    moe = {"model": "mixtral-8x7b", "cluster": one_zone(32, gpu="h100-80gb-sxm")}
    experts = {"tp": 2, "ep": 8, "dp": 16, "sequence_parallel": True}
    for kind, strategy, more, ratio in (
        ("context", {"tp": 2, "cp": 4, "dp": 4}, {"cluster": one_zone(32)}, 4 / 3),
        ("expert", experts, moe, 3 / 2),
    ):
        none, full = (traffic(predicted(strategy | {"recompute": r}, **more), kind) for r in ("none", "full"))
        assert set(none) == set(full) != set()
        for link, row in none.items():
            for figure in ("bytes_per_step", "messages", "busy_s"):
                assert getattr(full[link], figure) / getattr(row, figure) == pytest.approx(ratio), (link, figure)


def test_what_is_exposed_of_the_experts_is_not_more_than_what_is_sent():
    """[X3] Mixtral on 32 H100, everything recomputed: the all-to-all took 0.092 s and was said to be exposed for 0.117."""
    job = MEGATRON | {"seq_len": 8192}
    strategy = {"tp": 2, "ep": 8, "dp": 16, "sequence_parallel": True, "recompute": "full"}
    for stack in ("megatron-core", "megatron-core@24.03", "megatron-core@25.12"):
        got = predicted(
            strategy, model="mixtral-8x7b", job=job | {"stack": stack}, cluster=one_zone(32, gpu="h100-80gb-sxm")
        )
        rows = traffic(got, "expert").values()
        assert 0 < sum(row.exposed_s for row in rows) == pytest.approx(got.breakdown_s["expert"])
        assert all(row.exposed_s <= row.busy_s * (1 + 1e-9) for row in rows)


@examples(150)
@given(predictors())
def test_nothing_is_exposed_for_longer_than_it_takes(p):
    """[A1] Every row of every strategy: exposed <= busy; the rows of a kind add up to its part of the step."""
    got = build_prediction(p)
    for row in got.communication:
        assert row.exposed_s <= row.busy_s * (1 + 1e-9) + 1e-12, row
    for kind, part in (("tensor", "tensor"), ("context", "context"), ("expert", "expert"), ("pipeline", "pipeline")):
        exposed = sum(row.exposed_s for row in traffic(got, kind).values())
        assert exposed == pytest.approx(got.breakdown_s[part], rel=1e-9, abs=1e-12)


def test_tensor_parallel_groups_of_a_node_without_a_fast_link_use_pcie():
    """[X1] [C14] Two nodes of eight L40S, 50 Gbit/s a node: groups of four were said to send 21 GB/s a rank over NICs of
    6.25 GB/s, while their time was that of PCIe.
    """
    cluster = one_zone(16, gpu="l40s", nic_gbps=50, nic_gbps_per_gpu=None)
    got = predicted({"tp": 4, "dp": 4}, cluster=cluster)
    assert set(traffic(got, "tensor")) == {"PCIe"}
    inside = predicted({"tp": 2, "pp": 4, "dp": 2}, cluster=cluster)
    assert set(traffic(inside, "pipeline")) == {"PCIe", "network"}  # stages 1 and 2 lie on different nodes


def test_of_a_ring_over_nodes_one_edge_a_node_leaves_the_hosts():
    """[C14] ZeRO 0, 32 replicas on four nodes of eight: 2 x 31/32 x 4 bytes of every parameter from each, an eighth of it
    over the network.
    """
    rows = traffic(predicted({"dp": 32}, cluster=one_zone(32)), "gradients")
    sent = 32 * 2 * 31 / 32 * 4 * PARAMETERS
    assert rows["network"].bytes_per_step == pytest.approx(sent / 8, rel=1e-6)
    assert rows["fast link"].bytes_per_step == pytest.approx(sent * 7 / 8, rel=1e-6)
    assert rows["fast link"].exposed_s == 0
    assert rows["fast link"].busy_s < rows["network"].busy_s


@examples(150)
@given(predictors())
def test_no_row_is_faster_than_its_link(p):
    """[A1] Bytes over the time a link is busy: at most the rate of all links of that kind, and of the line."""
    got, gpu = build_prediction(p), p.batch.gpu
    limits = {"fast link": gpu.link_bytes_per_s, "PCIe": gpu.pcie_bytes_per_s, "network": gpu.nic_bytes_per_s}
    names = [zone.name for zone in p.placed.cluster.zones]
    for row in got.communication:
        if row.link in limits:
            limit = p.strategy.ranks * limits[row.link]
        else:
            a, b = (names.index(name) for name in row.link.split(" > "))
            limit = (p.placed.links[min(a, b), max(a, b)].gbps or 0.0) * 1e9 / 8
        assert row.bytes_per_step <= limit * row.busy_s * (1 + 1e-9), row


def test_expert_parallel_tokens_go_to_their_experts_and_back():
    """[X3] Mixtral, e = 8 on one node: 2 bytes x 4096 tokens x h x 2 experts x 7/8, there and back, forward and backward."""
    got = predicted({"dp": 8, "ep": 8, "zero": 1}, model="mixtral-8x7b", cluster=one_zone(8, gpu="h100-80gb-sxm"))
    row = traffic(got, "expert")["fast link"]
    assert row.bytes_per_step == pytest.approx(8 * 8 * 32 * 4 * ACTIVATION * 2 * 7 / 8)
    assert set(traffic(got, "expert")) == {"fast link"}


def test_experts_on_several_nodes_use_the_network_too():
    """[X3] e = 8 over nodes of four: a token's two experts miss the other node with 1/4: 0.75 of the tokens cross."""
    cluster = {
        "zones": [{"name": "a", "nodes": [{"count": 2, "gpus": 4, "gpu": "h100-80gb-sxm", "nic_gbps_per_gpu": 400}]}]
    }
    got = predicted({"dp": 8, "ep": 8, "zero": 1}, model="mixtral-8x7b", cluster=cluster)
    assert traffic(got, "expert")["network"].bytes_per_step == pytest.approx(8 * 8 * 32 * 4 * ACTIVATION * 0.75)


def test_experts_on_stages_of_different_nodes_add_up_too():
    """[X3] Two stages, one on nodes of eight H100 and one on nodes of four A100: e = 8 fits a node of the first only."""
    nodes = [
        {"count": 2, "gpus": 8, "gpu": "h100-80gb-sxm", "nic_gbps_per_gpu": 400},
        {"count": 4, "gpus": 4, "gpu": "a100-80gb-sxm", "nic_gbps_per_gpu": 200},
    ]
    strategy = {"pp": 2, "dp": 16, "ep": 8, "zero": 1}
    got = predicted(strategy, model="mixtral-8x7b", cluster={"zones": [{"name": "a", "nodes": nodes}]})
    rows = traffic(got, "expert").values()
    assert sum(row.exposed_s for row in rows) == pytest.approx(got.breakdown_s["expert"])
    assert all(row.exposed_s <= row.busy_s * (1 + 1e-9) for row in rows)


def test_experts_are_busy_where_they_are_though_the_slowest_stage_has_none():
    """[X3] Four stages of seven layers, the first with no experts and on older GPUs, so that it sets the pace."""
    nodes = [
        {"count": 1, "gpus": 8, "gpu": "v100-32gb-sxm", "nic_gbps_per_gpu": 100},
        {"count": 3, "gpus": 8, "gpu": "h100-80gb-sxm", "nic_gbps_per_gpu": 400},
    ]
    model = {
        "like": "mixtral-8x7b",
        "layers": 28,
        "moe": {"experts": 8, "top_k": 2, "ffn_hidden": 14336, "first_dense": 7},
    }
    p = placed(
        {"pp": 4, "dp": 8, "ep": 8, "zero": 1},
        model=model,
        job=MEGATRON | {"precision": "fp16"},
        cluster={"zones": [{"name": "a", "nodes": nodes}]},
    )
    got = build_prediction(p)
    assert got.breakdown_s["expert"] == 0
    (row,) = traffic(got, "expert").values()
    assert row.busy_s > 0
    assert row.bytes_per_step > 0
    assert row.exposed_s == 0


def test_activations_cross_every_boundary_once_each_way():
    """[X8] Two stages in two zones: 64 micro-batches of 2 s b h bytes a direction, whatever t is (ranks send parts)."""
    for t in (1, 8):
        rows = traffic(predicted({"tp": t, "pp": 2, "dp": 1}, cluster=zones(2, t)), "pipeline")
        assert {link: row.bytes_per_step for link, row in rows.items()} == {
            "a > b": 64 * ACTIVATION,
            "b > a": 64 * ACTIVATION,
        }


def test_a_line_between_stages_is_busy_for_its_bytes():
    """[X8] 64 x 33.55 MB over 10 Gbit/s, 96.53 % payload; 20 ms apart eight ranks' windows fill it: 1.78 s each way, and
    a little for each message.
    """
    row = traffic(predicted({"tp": 8, "pp": 2, "dp": 1}, cluster=zones(2, 8)), "pipeline")["a > b"]
    line = 64 * ACTIVATION / (1.25e9 * TCP)
    assert line < row.busy_s < 1.05 * line


def test_replicas_whose_stages_lie_elsewhere_use_other_links():
    """[X8] Four replicas of two stages on 3 + 3 + 2 GPUs: stages on a-b, a-b, a-c and b-c; 16 micro-batches each;
    two replicas share the line from a to b, so it is busy for twice as long.
    """
    rows = traffic(predicted({"pp": 2, "dp": 4}, cluster=zones(3, 3, rtt_ms=1)), "pipeline")
    sent = {link: row.bytes_per_step / (16 * ACTIVATION) for link, row in rows.items()}
    assert sent == {"a > b": 2, "b > a": 2, "a > c": 1, "c > a": 1, "b > c": 1, "c > b": 1}
    assert all(row.messages == 16 for row in rows.values())
    assert rows["a > b"].busy_s == pytest.approx(2 * rows["a > c"].busy_s, rel=0.05)
    assert rows["a > c"].busy_s == pytest.approx(16 * ACTIVATION / (1.25e9 * TCP), rel=0.05)


def test_each_boundary_lies_on_its_own_link():
    """[X8] Four stages of two GPUs on one node: fast link; of eight GPUs on four nodes: network."""
    assert set(traffic(predicted({"tp": 2, "pp": 4, "dp": 1}, cluster=one_zone(8)), "pipeline")) == {"fast link"}
    assert set(traffic(predicted({"tp": 8, "pp": 4, "dp": 1}, cluster=one_zone(32)), "pipeline")) == {"network"}


@pytest.mark.slow
@pytest.mark.parametrize("dp", [2, 4, 8])
def test_gradients_follow_the_ring_factor(dp):
    """[X7] F46: 2 (d-1)/d x 4 bytes of every parameter (Megatron keeps fp32 gradients) from each replica; half in bf16."""
    row = traffic(predicted({"dp": dp}, cluster=one_zone(8)), "gradients")["fast link"]
    assert row.bytes_per_step == pytest.approx(dp * 2 * (dp - 1) / dp * 4 * PARAMETERS, rel=1e-6)
    half = traffic(
        predicted({"dp": dp, "communication": {"gradient_dtype": "bf16"}}, cluster=one_zone(8)), "gradients"
    )["fast link"]
    assert half.bytes_per_step == pytest.approx(row.bytes_per_step / 2)
    late = PARAMETERS / 40e6 * 2 * (dp - 1) * 3.4e-6  # of the hops of each bucket: it stays
    assert half.busy_s - late == pytest.approx((row.busy_s - late) / 2, rel=1e-3)


def test_experts_spread_over_fewer_ranks_than_there_are_have_copies_to_reduce():
    """[X7] Mixtral, t = 8, d = 1, e = 2: each GPU holds half of 45.1e9 expert parameters in four copies: 2 x 3/4 x 4 bytes."""
    got = predicted({"tp": 8, "dp": 1, "ep": 2, "sequence_parallel": True}, model="mixtral-8x7b", cluster=one_zone(8))
    experts = 32 * 8 * 3 * 4096 * 14336 / 2
    assert traffic(got, "gradients")["fast link"].bytes_per_step == pytest.approx(8 * 2 * 3 / 4 * 4 * experts, rel=1e-6)


def test_one_replica_has_no_gradients_to_exchange():
    """[X7] F46: no ring is charged at d = 1."""
    got = predicted({"tp": 8, "dp": 1})
    assert traffic(got, "gradients") == traffic(got, "weights") == {}
    assert got.breakdown_s["gradients"] == got.breakdown_s["weights"] == 0


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_zones_exchange_one_gradient_whatever_the_number_of_gpus(tp):
    """[X7] F47: 16 GPUs in two zones: each zone sends 2 x 1/2 x 4 bytes of every parameter once, a shard a GPU;
    with t = 8 Megatron pads 32000 words to 32768, embedding and head. Buckets of 40 M parameters go there and back.
    """
    rows = traffic(far({"tp": tp, "dp": 16 // tp} | ZONES_FIRST), "gradients")
    size = 4 * (PARAMETERS + (2 * 768 * 4096 if tp == 8 else 0))
    assert rows["a > b"].bytes_per_step == rows["b > a"].bytes_per_step == pytest.approx(size, rel=1e-6)
    buckets = math.ceil(size / 4 / tp / 40e6)
    assert rows["a > b"].messages == 2 * buckets
    assert rows["a > b"].busy_s == pytest.approx(size / (1.25e9 * TCP) + buckets * 2 * 0.01, rel=0.01)


def test_replicas_of_one_zone_reduce_over_the_link_they_share():
    """[X5] Eight replicas on each of two nodes in two zones: fast link inside; with the stages between them: network."""
    assert set(traffic(far({"dp": 16} | ZONES_FIRST), "gradients")) == {"fast link", "a > b", "b > a"}
    spread = far({"tp": 2, "pp": 4, "dp": 4} | ZONES_FIRST, gpus=16)
    assert set(traffic(spread, "gradients")) == {"network", "a > b", "b > a"}


def test_a_flat_ring_sends_more_and_pays_the_delay_more_often():
    """[X7] d = 8, two zones: 2 x 7/8 in place of 2 x 1/2 of the gradient; of 14 steps a bucket a quarter crosses."""
    flat = traffic(far({"tp": 2, "dp": 8, "communication": {"reduce": "flat"}}), "gradients")
    assert flat["a > b"].bytes_per_step == pytest.approx(2 * 7 / 8 * 4 * PARAMETERS, rel=1e-6)
    assert set(flat) == {"fast link", "a > b", "b > a"}
    assert flat["a > b"].messages == 14 / 4 * math.ceil(PARAMETERS / 2 / 40e6)


def test_a_tree_chains_the_zones():
    """[X7] Three zones, d = 6: 4 steps a bucket; the sum goes both ways over two edges, a flat ring sends 2 x 5/6 of it
    over three.
    """
    place = {"order": ["tp", "cp", "pp", "dp"], "blocks": [{"zone": z, "count": 2} for z in "abc"]}
    job = {"seq_len": 4096, "global_batch": 6, "framework": "horovod"}
    rows = []
    for algorithm in ("tree", "ring"):
        how = {"dp": 6, "communication": {"algorithm": algorithm}}
        found = traffic(predicted(how, job=job, cluster=zones(3, 2), placement=place), "gradients")
        rows.append({link: row for link, row in found.items() if " > " in link})
    buckets = math.ceil(4 * PARAMETERS / 128 / 2**20)
    tree, ring = rows
    assert len(tree) == 4 and all(f"{b} > {a}" in tree for a, b in (way.split(" > ") for way in tree))
    assert {row.bytes_per_step for row in tree.values()} == {4 * PARAMETERS}
    assert {row.messages for row in tree.values()} == {4 * buckets}
    assert len(ring) == 3
    assert ring["a > b"].bytes_per_step == pytest.approx(2 * 5 / 6 * 4 * PARAMETERS, rel=1e-6)
    assert ring["a > b"].messages == pytest.approx(2 * 5 / 2 * buckets)


def test_sets_of_states_sum_one_member_each():
    """[X7] Two zones of two nodes with eight GPUs, states shared inside each node: four sets, so 2 x 3/4 of the sum cross, in
    rings of four of which two edges leave a zone; inside zones of 16 sharing: 2 x 1/2 in rings of two.
    """
    for within, members in (("node", 4), ("zone", 2)):
        place = {"order": ["tp", "cp", "pp", "dp"], "blocks": [{"zone": z, "count": 16} for z in "ab"]}
        job = MEGATRON | {"framework": "fsdp"}
        got = predicted({"dp": 32, "zero": 3, "shard_within": within}, job=job, cluster=zones(2, 16), placement=place)
        row = traffic(got, "gradients")["a > b"]
        assert row.bytes_per_step == pytest.approx(2 * (members - 1) / members * 4 * PARAMETERS, rel=1e-6)
        assert row.messages == pytest.approx(2 * (members - 1) * 2 / members * 32)  # a bucket a layer


def test_experts_cross_zones_in_buckets_of_their_own():
    """[X7] Mixtral, t = 2, e = 8, d = 8 in two zones: 45.1e9 expert parameters go with the rest, in buckets of 40 M."""
    place = {"order": ["tp", "cp", "pp", "dp"], "blocks": [{"zone": z, "count": 8} for z in "ab"]}
    strategy = {"tp": 2, "dp": 8, "ep": 8, "sequence_parallel": True} | ZONES_FIRST
    got = predicted(strategy, model="mixtral-8x7b", cluster=zones(2, 8), placement=place)
    row = traffic(got, "gradients")["a > b"]
    experts = 32 * 8 * 3 * 4096 * 14336
    assert row.bytes_per_step > 4 * experts
    shared = (46_702_792_704 - experts) / 2
    assert row.messages == 2 * (math.ceil(experts / 8 / 40e6) + math.ceil(shared / 40e6))


def test_a_tiny_model_far_away_pays_for_the_steps_of_the_ring():
    """[X7] F48: 100 ms round trip, 0.1 M parameters, three zones: 2 x 2 steps of 50 ms; a flat ring over six: 2 x 5, of
    which every other one leaves a zone.
    """
    tiny = {"layers": 1, "hidden": 96, "heads": 3, "ffn_hidden": 96, "vocab": 128}
    cluster = zones(3, 2, gbps=100, rtt_ms=100)
    place = {"order": ["tp", "cp", "pp", "dp"], "blocks": [{"zone": z, "count": 2} for z in "abc"]}
    for way, steps in (("hierarchical", 4), ("flat", 5)):
        strategy = {"dp": 6, "communication": {"reduce": way, "overlap": 0.0}}
        strategy |= ZONES_FIRST if way == "hierarchical" else {}
        got = predicted(
            strategy, model=tiny, job=MEGATRON | {"seq_len": 128, "global_batch": 6}, cluster=cluster, placement=place
        )
        assert traffic(got, "gradients")["a > b"].messages == steps
        assert got.breakdown_s["gradients"] == pytest.approx(steps * 0.05, rel=0.05)
        assert got.step_time_s.expected == pytest.approx(steps * 0.05, rel=0.1)


def test_overlap_zero_hides_nothing_and_one_all_that_can_hide():
    """[V1] F49: gradients over 10 Gbit/s take 22.4 s; the backward pass that could hide them takes less."""
    bare, half, full = (far({"tp": 8, "dp": 2, "communication": {"overlap": x}}) for x in (0.0, 0.5, 1.0))
    busy = traffic(bare, "gradients")["a > b"].busy_s
    assert bare.breakdown_s["gradients"] == pytest.approx(busy, rel=1e-6)
    hidden = busy - full.breakdown_s["gradients"]
    assert 0 < hidden < busy
    assert half.breakdown_s["gradients"] == pytest.approx(busy - hidden / 2, rel=1e-6)
    off = far({"tp": 8, "dp": 2, "communication": {"overlap_gradients": False, "overlap": 1.0}})
    assert off.breakdown_s["gradients"] == pytest.approx(busy, rel=1e-6)


def test_sharded_states_send_weights_back():
    """[X7] ZeRO 1, d = 8: gradients (d-1)/d x 4 bytes, weights (d-1)/d x 2 bytes of each parameter."""
    got = predicted({"dp": 8, "zero": 1}, cluster=one_zone(8))
    assert traffic(got, "gradients")["fast link"].bytes_per_step == pytest.approx(7 * 4 * PARAMETERS, rel=1e-6)
    assert traffic(got, "weights")["fast link"].bytes_per_step == pytest.approx(7 * 2 * PARAMETERS, rel=1e-6)


def test_fully_sharded_weights_are_gathered_twice_a_micro_batch():
    """[X7] ZeRO 3, d = 8, 8 micro-batches: 16 gathers of 7/8 x 2 bytes, 8 scatters of 7/8 x 4 (FSDP reduces in fp32)."""
    got = predicted({"dp": 8}, job=FSDP, cluster=one_zone(8))
    assert traffic(got, "weights")["fast link"].bytes_per_step == pytest.approx(16 * 7 * 2 * PARAMETERS, rel=1e-6)
    assert traffic(got, "gradients")["fast link"].bytes_per_step == pytest.approx(8 * 7 * 4 * PARAMETERS, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, 4.0),
        ({"gradient_dtype": "bf16"}, 2.0),
        ({"compression": "fp16"}, 2.0),
        ({"compression": "powersgd", "compression_rank": 32}, 4.0 * 2 * 32 / 4096),
        ({"gradient_dtype": "bf16", "compression": "powersgd", "compression_rank": 4096}, 2.0),
    ],
)
def test_compression_leaves_so_many_bytes_of_a_gradient(options, expected):
    """[V4] fp32 gradients of DDP: 4 bytes; 16-bit types 2; PowerSGD of rank r sends 2 r / h of a square matrix, never more."""
    p = placed({"dp": 8, "communication": options}, job=DDP, cluster=one_zone(8))
    assert p.batch.work.grad_comm_bytes == pytest.approx(expected)


def test_one_bit_adam_sends_an_eighth_of_a_byte():
    """[V4]"""
    options = {"compression": "1-bit"}
    p = placed(
        {"dp": 8, "zero": 0, "communication": options}, job=MEGATRON | {"framework": "deepspeed"}, cluster=one_zone(8)
    )
    assert p.batch.work.grad_comm_bytes == 0.125
