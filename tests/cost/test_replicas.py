"""[O10] [X5] [X6] [X7] Gradients and weights among replicas, and the optimizer, with the round numbers of `worked`.

The model has 4 x 512 parameters in its layers and 512 each in embedding and head: 3072.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.worked import EXPERTS, cost, gpu, links, model, work
from crosszone.cost.collectives import ring_share
from crosszone.cost.replicas import Exchange, count_stage_parameters, estimate_exchange, group_replicas, optimizer_s
from crosszone.cost.stages import build_stage_layers
from effort import examples


def exchanged(
    m: Any = None, counts: Any = (4,), between: Any = None, g: Any = None, k: Any = None, **degrees: Any
) -> Exchange:
    layer = cost(m or model(), work(**degrees), g, **(k or {}))
    one = layer.model
    stages = build_stage_layers(counts, one.first_dense, one.moe_every, one.moe_layers)
    way = between or links()
    return estimate_exchange(layer, count_stage_parameters(one, layer.work, stages), group_replicas(layer, way), way)


def sum_sent(exchanges) -> Any:
    """Bytes one GPU of each stage sends."""
    return sum(cost.sent_bytes for cost in exchanges)


def test_replicas_inside_a_domain_talk_over_its_links_and_beyond_over_the_network_of_all_its_members():
    """[X5] Domain of 8, 10 bytes/s: 8 replicas have 10; 16 have the 8 x 1 byte/s of a node; with t = 8 each only its own 1."""
    for degrees, rate in (({"dp": 8}, 10), ({"dp": 16}, 8), ({"dp": 4, "tp": 8}, 1), ({"dp": 8, "tp": 4}, 2)):
        assert float(group_replicas(cost(w=work(**degrees)), links()).zone_bus) == rate


def test_a_ring_moves_all_but_one_share():
    """[X6] 3/4 for four ranks, nothing for one."""
    assert (ring_share(4.0), ring_share(1.0)) == (0.75, 0.0)


def test_gradients_are_reduced_in_a_ring():
    """[X7] d = 4: 2 x 3/4 x 3072 x 2 bytes = 9216 at 10 bytes/s; fp32 twice that; an overhead of 1.5 half as much again."""
    assert exchanged(dp=4).reduce.tolist() == pytest.approx([921.6])
    assert sum_sent(exchanged(dp=4).reduced).tolist() == pytest.approx([9216])
    assert exchanged(dp=4, grad_comm_bytes=4).reduce.tolist() == pytest.approx([1843.2])
    assert exchanged(dp=4, k={"dp_traffic": 1.5}).reduce.tolist() == pytest.approx([1382.4])
    assert exchanged(dp=4).gather.tolist() == [0.0]


def test_one_replica_exchanges_nothing():
    """[X7] The ring factor 2 (d-1)/d is 0 at d = 1, and so is every byte."""
    for zero in (0, 1, 2, 3):
        alone = exchanged(dp=1, zero=zero, k={"shard_message_s": 1.0})
        assert alone.reduce.tolist() == alone.gather.tolist() == sum_sent(alone.reduced).tolist() == [0.0]


def test_sharded_states_scatter_gradients_and_gather_weights():
    """[X7] ZeRO: half of the all-reduce each way, 3/4 x 6144 = 4608 bytes; weights have 2 bytes whatever gradients have."""
    sent = exchanged(dp=4, zero=1, grad_comm_bytes=4)
    assert sent.reduce.tolist() == pytest.approx([921.6])
    assert sent.gather.tolist() == pytest.approx([460.8])
    assert sum_sent(sent.gathered).tolist() == pytest.approx([4608])


def test_a_gather_waits_for_every_rank_that_has_a_shard():
    """[X7] Three messages of 7 s beside the 460.8 s."""
    assert exchanged(dp=4, zero=3, k={"shard_message_s": 7.0}).gather.tolist() == pytest.approx([481.8])


def test_shards_inside_a_node_are_reduced_over_the_others():
    """[X7] d = 8 on domains of 4, states shared by 4: 3/4 of 6144 bytes at 10 bytes/s, then each rank's quarter over two
    nodes: 2 x 1/2 x 1536 bytes at 1 byte/s; weights are gathered inside only.
    """
    sent = exchanged(dp=8, zero=3, shard_ranks=4, g=gpu(domain=4))
    assert sent.reduce.tolist() == pytest.approx([460.8])
    assert sent.outer.tolist() == pytest.approx([1536])
    assert sent.gather.tolist() == pytest.approx([460.8])
    assert (sum_sent(sent.reduced).tolist(), sum_sent(sent.outer_reduced).tolist()) == (
        pytest.approx([4608]),
        pytest.approx([1536]),
    )


def test_experts_have_fewer_copies_than_the_rest():
    """[X7] d = 4, e = 2: experts of a GPU 4 x 2 x 256 = 2048, in two copies: 2 x 1/2 x 4096 bytes; shared 4 x 288 + 1024 = 2176."""
    sent = exchanged(model(**EXPERTS), dp=4, ep=2)
    assert sent.reduce.tolist() == pytest.approx([2 * 0.75 * 2176 * 2 / 10 + 4096 / 10])


def test_zones_exchange_shards_and_not_every_gpus_gradients():
    """[X7] d = 4 in two zones, 0.5 bytes/s between them, 3 s a step of the ring: inside 2 x 1/2 x 6144 bytes at 10 bytes/s;
    a zone sends 2 x 1/2 x 6144 bytes once, not once a GPU, in 2 steps.
    """
    sent = exchanged(dp=4, between=links(dp_zones=2.0, wan_bytes_per_s=0.5, wan_latency_s=3.0))
    assert np.ravel(sent.zone_reduce_bytes).tolist() == pytest.approx([6144])
    assert np.ravel(sent.wan_reduce).tolist() == pytest.approx([6144 / 0.5 + 6])
    assert np.ravel(sent.reduce).tolist() == pytest.approx([614.4 + 12294])


def test_a_flat_ring_crosses_zones_with_everything():
    """[X7] 2 x 3/4 x 6144 bytes cross; of 2 x 3 steps each second one leaves a zone: 18432 + 9 s; nothing is left inside."""
    sent = exchanged(dp=4, between=links(dp_zones=2.0, wan_bytes_per_s=0.5, wan_latency_s=3.0, flat=1.0))
    assert np.ravel(sent.reduce).tolist() == pytest.approx([18441])


def test_stages_and_tensor_ranks_share_the_links_between_zones():
    """[X7] t = 2, two stages: still the 6144 bytes of the whole model, and every stage waits for all of them."""
    way = links(dp_zones=np.array([2.0, 2.0]), wan_bytes_per_s=0.5)
    sent = exchanged(counts=(2, 2), dp=4, tp=2, pp=2, between=way)
    assert np.ravel(sent.zone_reduce_bytes).tolist() == pytest.approx([6144, 6144])
    assert np.ravel(sent.wan_reduce).tolist() == pytest.approx([12288, 12288])


def test_states_sharded_over_all_zones_cross_once_each_way():
    """[X7] ZeRO 1 over four replicas in two zones: a scatter and a gather of 1/2 x 6144 bytes in place of both at once."""
    sent = exchanged(dp=4, zero=1, between=links(dp_zones=2.0, wan_bytes_per_s=0.5, wan_latency_s=3.0))
    assert np.ravel(sent.wan_reduce).tolist() == pytest.approx([6144 + 3])
    assert np.ravel(sent.wan_gather).tolist() == pytest.approx([6144 + 3])
    kept = exchanged(dp=4, zero=1, shard_ranks=2, between=links(dp_zones=2.0, wan_bytes_per_s=0.5))
    assert np.ravel(kept.wan_gather).tolist() == [0.0]


def test_zones_that_train_on_their_own_exchange_nothing_every_step():
    """[X7] Local updates: what is left is the ring of two replicas inside the zone."""
    sent = exchanged(dp=4, between=links(dp_zones=2.0, wan_bytes_per_s=0.5, synchronous=0.0))
    assert np.ravel(sent.reduce).tolist() == pytest.approx([614.4])


@examples(80)
@given(st.sampled_from([1, 2, 4, 8, 32]), st.sampled_from([1, 2, 8]), st.integers(0, 3), st.data())
def test_bytes_follow_the_ring_factor_and_time_never_beats_the_best_link(dp, tp, zero, data):
    """[X6] [X7] All-reduce 2 (d-1)/d, scatter (d-1)/d of what a GPU holds; never quicker than over the fast link alone."""
    wire = data.draw(st.sampled_from([0.5, 2.0, 4.0]))
    sent = exchanged(dp=dp, tp=tp, zero=zero, grad_comm_bytes=wire)
    held = 3072 / tp * wire
    passes = 1 if zero and dp > 1 else 2
    assert float(sum_sent(sent.reduced)[0]) == pytest.approx(passes * (dp - 1) / dp * held)
    assert float(sent.reduce[0]) >= float(sum_sent(sent.reduced)[0]) / 10 * (1 - 1e-12)
    assert float(sum_sent(sent.gathered)[0]) == pytest.approx((zero > 0) * (dp - 1) / dp * 3072 / tp * 2)


def optimizer(m: Any = None, **degrees: Any) -> float:
    layer = cost(m or model(), work(gradient_bytes=4, **degrees), optimizer_traffic=30.0)
    one = layer.model
    stages = build_stage_layers([4], one.first_dense, one.moe_every, one.moe_layers)
    return float(
        np.ravel(optimizer_s(layer, count_stage_parameters(one, layer.work, stages), group_replicas(layer, links())))[0]
    )


def test_the_optimizer_reads_and_writes_its_states_and_writes_the_weights():
    """[O10] fp32 gradients, 30 + 6 bytes for each of 3072 parameters at 100 bytes/s; present with one replica too."""
    assert optimizer() == pytest.approx(1105.92)


def test_sharded_states_are_updated_by_their_owners():
    """[O10] d = 4. ZeRO 1: 30 x 768 + 6 x 3072 bytes. ZeRO 3: 36 x 768. Without sharding every replica does it all."""
    assert optimizer(dp=4, zero=1) == pytest.approx(414.72)
    assert optimizer(dp=4, zero=3) == pytest.approx(276.48)
    assert optimizer(dp=4) == pytest.approx(1105.92)


def test_fewer_bytes_of_state_take_less_time():
    """[O10] SGD without moments keeps 4 + 4 of the 16 bytes: half of the states' traffic."""
    assert optimizer(optimizer_bytes=4) == pytest.approx((15 + 6) * 30.72)


def test_offloaded_states_are_updated_by_the_cpus_of_the_node():
    """[O10] d = 4, ZeRO 1: 768 parameters a GPU, eight GPUs share CPUs of 10 parameters/s; 4 + 2 bytes cross PCIe at 2 bytes/s.

    Offloaded weights of ZeRO 3 come over PCIe before they are gathered: 768 x 2 bytes.
    """
    slow = gpu(pcie_bytes_per_s=2)
    layer = cost(w=work(gradient_bytes=4, dp=4, zero=1, offload=1), g=slow, host_update_per_s=10.0)
    held = count_stage_parameters(layer.model, layer.work, build_stage_layers([4], 0, 1, 0))
    assert np.ravel(optimizer_s(layer, held, group_replicas(layer, links())))[0] == pytest.approx(614.4 + 2304)
    here, away = (exchanged(dp=4, zero=3, offload=o, g=slow).gather[0] for o in (0, 2))
    assert away == pytest.approx(here + 768)
