"""[O2] [O3] [O11] [O6] [O7] [X1] to [X4] One layer on one GPU, worked out with the round numbers of `worked`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.worked import EXPERTS, cost, gpu, model, neutral, stack, work
from crosszone.cost.columns import MXFP8, ROWWISE
from crosszone.cost.layer import LayerCost
from effort import examples

PARTS = ("matmul", "attention", "elementwise", "routing", "tp", "ep", "cp", "host")


def test_a_dense_layer_is_its_products_and_its_attention():
    """[O2] Query, key, value, output: 2 x 16 x (8 x 24 + 8 x 8) = 8192 FLOP, MLP the same; scores 2 x 16 x 8 x 16 = 4096."""
    forward = cost().dense.forward
    assert float(forward.matmul) == pytest.approx(16.384)
    assert float(forward.attention) == pytest.approx(4.096)
    assert float(forward.total) == pytest.approx(20.48)


def test_a_backward_pass_has_two_products_for_each_forward_one():
    """[O7] The fused attention's backward pass takes its own factor: here 2.5."""
    backward = cost(flash_backward=2.5, elementwise=1.0).dense.backward
    forward = cost(elementwise=1.0).dense.forward
    assert float(backward.matmul) == pytest.approx(2 * 16.384)
    assert float(backward.attention) == pytest.approx(2.5 * 4.096)
    assert float(backward.elementwise) == pytest.approx(2 * float(forward.elementwise))


def test_grouped_queries_have_narrower_keys_and_values_until_tp_copies_them():
    """[O2] One KV head: columns 8 + 8, so 2 x 16 x (8 x 16 + 64) + 8192 = 14336 FLOP. With t = 2 the KV head is copied:
    2 x 16 x (8 x (4 + 8) + 4 x 8) + 4096 = 8192.
    """
    assert float(cost(model(kv_heads=1)).dense.forward.matmul) == pytest.approx(14.336)
    assert float(cost(model(kv_heads=1), work(tp=2)).dense.forward.matmul) == pytest.approx(8.192)


def test_a_gated_mlp_has_three_matrices():
    """[O2] Up and gate 8 x 32, down 16 x 8: 2 x 16 x 384 = 12288 FLOP beside the 8192 of attention."""
    assert float(cost(model(matrices=3)).dense.forward.matmul) == pytest.approx(20.48)


def test_latent_attention_has_its_low_rank_products():
    """[O2] q rank 4, kv rank 4, rope 2, heads of 4 (2 of them rotary), values 4.

    h x 4, 4 x 8, h x 6, 4 x 2 (4 - 2 + 4) = 12, 8 x 8: 32 + 32 + 48 + 48 + 64 = 224, MLP 256: 2 x 16 x 480 = 15360 FLOP.
    """
    latent = model(latent=1, q_rank=4, kv_rank=4, rope_dim=2)
    assert float(cost(latent).dense.forward.matmul) == pytest.approx(15.36)


def test_a_window_cuts_the_scores_of_the_layers_that_have_it():
    """[O2] Window 4 of 16: 4 - 16/32 = 3.5 tokens seen in place of 8; in half of the layers: 5.75."""
    windowed = cost(model(window=4.0, full_share=0.5)).dense.forward
    assert float(windowed.attention) == pytest.approx(4.096 * 5.75 / 8)


def test_padded_heads_and_short_sequences_slow_the_fused_attention():
    """[O11] Heads of 4 in blocks of 32 reach an eighth; 16 tokens with a ramp of 48 a quarter of that."""
    assert float(cost(flash=1.0).dense.forward.attention) == pytest.approx(8 * 4.096)
    assert float(cost(flash=1.0, flash_ramp=48.0).dense.forward.attention) == pytest.approx(32 * 4.096)


def test_unfused_attention_pays_for_masked_scores_and_their_traffic():
    """[O3] 8192 FLOP; 512 scores of 12 bytes forward and 20 backward at 100 bytes/s; the products twice backward."""
    layer = cost(s=stack(unfused=1.0), w=work(micro_batch=2)).dense
    assert float(layer.forward.attention) == pytest.approx(2 * (8.192 + 61.44))
    assert float(layer.backward.attention) == pytest.approx(2 * (16.384 + 102.4))


def test_a_softmax_without_its_fused_kernel_passes_more_often_over_the_scores():
    """[O3] The kernel wants a multiple of four score matrices: 1 x 2 heads have none of it, 2 x 2 have it."""
    slow = cost(s=stack(unfused=1.0), plain_scores=3.0).dense.forward
    quick = cost(s=stack(unfused=1.0), w=work(micro_batch=2), plain_scores=3.0).dense.forward
    assert float(slow.attention) == pytest.approx(8.192 + 3 * 61.44)
    assert float(quick.attention) == pytest.approx(2 * (8.192 + 61.44))


def test_norms_and_activations_move_their_tensors():
    """[O4] Attention block 2 x 16 x (10 x 8 + 2 x 40) = 5120 bytes, MLP 2 x 16 x 2 x 16 = 1024; 100 bytes/s."""
    assert float(cost(elementwise=1.0).dense.forward.elementwise) == pytest.approx(61.44)


def test_sequence_parallelism_shares_what_tensor_parallelism_leaves_whole():
    """[O4] t = 2: inner widths halve, 10 h only with sequence parallelism: (80 + 40) 32 + 512 or (40 + 40) 32 + 512 bytes."""
    whole, cut = (cost(w=work(tp=2, sequence_parallel=on), elementwise=1.0).dense.forward for on in (0, 1))
    assert float(whole.elementwise) == pytest.approx(43.52)
    assert float(cut.elementwise) == pytest.approx(30.72)


def test_experts_work_for_the_tokens_that_come_to_them():
    """[O6] 16 tokens x 2 experts: 2 x 32 x 256 = 16384 FLOP beside the attention's 8192; grouped products at half rate."""
    moe = cost(model(**EXPERTS), grouped=0.5).moe.forward
    assert float(moe.matmul) == pytest.approx(8.192 + 2 * 16.384)


def test_sorting_tokens_by_expert_moves_them_eight_times_each_way():
    """[O6] 16 bytes x 16 tokens x 2 experts x 8 wide = 4096 bytes a pass over them; three passes."""
    assert float(cost(model(**EXPERTS), permute=3.0).moe.forward.routing) == pytest.approx(3 * 40.96)


def test_a_later_release_sorts_quicker_and_a_fused_dispatcher_quicker_still():
    """[O6] Two years at a decay of ln 2 a year: a quarter of 40.96 s; sorted while it is sent half of that.

    Wire time does not follow the release: the exchange stays as it was.
    """
    later = {"s": stack(release=2.0), "permute": 1.0, "release_decay": np.log(2), "fused_dispatch": 0.5}
    fused = {**later, "s": stack(release=2.0, fused_dispatch=1.0)}
    assert float(cost(model(**EXPERTS), **later).moe.forward.routing) == pytest.approx(40.96 / 4)
    assert float(cost(model(**EXPERTS), **fused).moe.forward.routing) == pytest.approx(40.96 / 8)
    exchange = float(cost(model(**EXPERTS), work(ep=2)).moe.forward.ep)
    assert float(cost(model(**EXPERTS), work(ep=2), **later).moe.forward.ep) == exchange


def test_experts_with_few_tokens_each_are_slow():
    """[O6] 16 tokens x 2 experts over 4: 8 for each; a ramp of 24 leaves 8 / 32 of the rate: 4 x 16.384 s."""
    moe = cost(model(**EXPERTS), grouped_ramp=24.0).moe.forward
    assert float(moe.matmul) == pytest.approx(8.192 + 4 * 16.384)


def test_each_kind_of_layer_launches_its_own_kernels():
    """[O7] 1000 s a dense layer; latent attention 0.6, experts 3, quantising 0.1 of that more; waits where all are added."""
    added = {"s": stack(launch_added=1), "host_s": 1000.0}
    more = {"mla_launch": 0.6, "moe_launch": 3.0, "cast_launch": 0.1}
    latent = model(latent=1, q_rank=4, kv_rank=4, rope_dim=2, **EXPERTS)
    launches = cost(latent, work(path=8), **added, **more)
    assert float(launches.dense.forward.host) == pytest.approx(1700)
    assert float(launches.moe.forward.host) == pytest.approx(4700)
    assert float(cost(**added, **more).dense.forward.host) == pytest.approx(1000)


def test_graphs_and_compilers_leave_a_share_of_the_launches():
    """[O7] Of 1000 s: 0.3 with attention and router captured, 0.05 with a whole iteration, 0.6 compiled.

    A dispatch that waits 200 s for its counts does so unless the whole iteration is captured: 5 % of it too.
    """
    shares = {"host_s": 1000.0, "partial_graph": 0.3, "full_graph": 0.05, "compiled_launch": 0.6}
    for switches, dense_s, moe_s in (
        ({}, 1000.0, 1200.0),
        ({"graphs": 1.0}, 300.0, 500.0),
        ({"graphs": 2.0}, 50.0, 60.0),
        ({"compiled": 1.0}, 600.0, 800.0),
    ):
        layers = cost(model(**EXPERTS), s=stack(launch_added=1, **switches), moe_s=200.0, **shares)
        assert float(layers.dense.forward.host) == pytest.approx(dense_s)
        assert float(layers.moe.forward.host) == pytest.approx(moe_s)


def test_ranks_of_a_pipeline_wait_for_each_other_between_launches():
    """[O7] t = 4: 3 x (2 collectives x 5 + 20) = 90 s beside the 1000 of the launches; without a pipeline 30."""
    host = {"s": stack(launch_added=1), "host_s": 1000.0, "collective_host_s": 5.0, "pipeline_host_s": 20.0}
    assert float(cost(w=work(tp=4, pp=2), **host).dense.forward.host) == pytest.approx(1090)
    assert float(cost(w=work(tp=4), **host).dense.forward.host) == pytest.approx(1030)


def test_a_compiler_fuses_elementwise_operators():
    """[O4] 61.44 s of traffic at 0.4."""
    fused = cost(s=stack(compiled=1.0), elementwise=1.0, compiled=0.4).dense.forward
    assert float(fused.elementwise) == pytest.approx(0.4 * 61.44)


def test_quantising_takes_as_many_passes_as_its_recipe():
    """[O4] 2 x 16 x (8 + 8) bytes of attention's inputs and 2 x 16 x (8 + 16) of the MLP's: 1280; two passes: 25.6 s.

    Block scales take 1.5, nvfp4 3 times as many passes; inputs of 16 bit are not quantised.
    """
    passes = {"cast": 2.0, "mxfp8_cast": 1.5, "nvfp4_cast": 3.0}
    for path, seconds in ((16, 0.0), (8, 25.6), (ROWWISE, 25.6), (MXFP8, 38.4), (4, 76.8)):
        assert float(cost(w=work(path=path), **passes).dense.forward.elementwise) == pytest.approx(seconds)


def test_kernels_of_attention_have_rates_by_their_generation():
    """[O2] 4.096 s with the vendor's kernel; an older one at 0.8, Triton at half of it; fp8 1.6 times as quick, sinks 0.5."""
    rates = {"older_flash": 0.8, "triton": 0.5, "flash_fp8": 1.6, "sink_rate": 0.5}
    for switches, rate in (
        ({}, 1.0),
        ({"older_flash": 1.0}, 0.8),
        ({"older_flash": 2.0}, 0.4),
        ({"attention_fp8": 1.0}, 1.6),
        ({"attention_fp8": 1.0, "older_flash": 1.0}, 0.8),  # older kernels have no fp8
    ):
        attention = cost(s=stack(**switches), **rates).dense.forward.attention
        assert float(attention) == pytest.approx(4.096 / rate)
    assert float(cost(model(sinks=1.0), **rates).dense.forward.attention) == pytest.approx(4.096 / 0.5)


def test_heads_of_odd_widths_lose_the_tensor_cores():
    """[O3] Heads of 4 are no multiple of 8: the 8.192 s of the products take 3 times as long, the scores' traffic does not.

    Heads of 8: 16.384 s and the same 512 scores of 12 bytes.
    """
    odd = cost(s=stack(unfused=1.0), unaligned_heads=3.0).dense.forward.attention
    even = cost(model(qk_dim=8, v_dim=8), s=stack(unfused=1.0), unaligned_heads=3.0).dense.forward.attention
    assert float(odd) == pytest.approx(3 * 8.192 + 61.44)
    assert float(even) == pytest.approx(16.384 + 61.44)


def test_selective_recomputation_by_module_repeats_what_it_names():
    """[O7] MLP: 8.192 s. Attention core: 4.096 s. Activation: half of the MLP's 10.24 s of traffic. Norms: 0.4 of 61.44 s."""
    selective, seconds = work(recompute=1), {"mlp": 8.192, "core": 4.096, "act": 5.12, "norm": 24.576}
    for module, expected in seconds.items():
        named_module = stack(by_module=1.0, **{f"recompute_{module}": 1.0})
        assert float(cost(w=selective, s=named_module, elementwise=1.0).dense.recompute_s) == pytest.approx(expected)
    two = stack(by_module=1.0, recompute_mlp=1.0, recompute_core=1.0)
    assert float(cost(w=selective, s=two).dense.recompute_s) == pytest.approx(8.192 + 4.096)
    assert float(cost(w=selective, s=stack(by_module=1.0), selective_share=0.5).dense.recompute_s) == 0
    latent = model(latent=1, q_rank=4, kv_rank=4, rope_dim=2)  # 4 x 8 and 4 x 12 values: 2 x 16 x 80 operations
    again = cost(latent, selective, s=stack(by_module=1.0, recompute_mla_up=1.0)).dense.recompute_s
    assert float(again) == pytest.approx(2.56)


def test_norms_and_rotary_positions_written_out_move_the_residual_stream_more_often():
    """[O4] 3 passes over 2 x 16 x 8 = 256 bytes for a model with both, half for one of them; 100 bytes/s."""
    whole, half = (cost(model(written=share), written_out=3.0).dense.forward for share in (1.0, 0.5))
    assert float(whole.elementwise) == pytest.approx(7.68)
    assert float(half.elementwise) == pytest.approx(3.84)
    assert float(cost(model(written=1.0)).dense.forward.elementwise) == 0.0


def test_norms_and_rotary_positions_written_out_are_more_launches():
    """[O4] 1000 s a layer, 2.2 times as many for a model with both: 2200; with one of them 1600."""
    for share, launches in ((0.0, 1000.0), (0.5, 1600.0), (1.0, 2200.0)):
        forward = cost(
            model(written=share), s=stack(launch_added=1), host_s=1000.0, written_out_launch=2.2
        ).dense.forward
        assert float(forward.host) == pytest.approx(launches)


def test_launches_count_where_kernels_are_shorter_than_they():
    """[O7] Launches of 1000 s hide a layer of 20.48 s: 1000 s. Where each launch waits, both add."""
    hidden = cost(host_s=1000.0, host_backward=1.5).dense
    waiting = cost(s=stack(launch_added=1.0), host_s=1000.0, host_backward=1.5).dense
    assert float(hidden.forward.total) == pytest.approx(1000, rel=1e-9)
    assert float(hidden.backward_s) == pytest.approx(1500, rel=1e-9)
    assert float(waiting.forward.total) == pytest.approx(1020.48)
    assert float(waiting.backward_s) == pytest.approx(1540.96)


def test_full_recomputation_repeats_the_forward_pass():
    """[O7] 20.48 s more, its collectives and its launches too."""
    none, full = (cost(w=work(recompute=r, tp=2), elementwise=0.3).dense for r in (0, 2))
    assert float(none.recompute_s) == 0
    assert float(full.recompute_s) == pytest.approx(float(none.forward.gpu))
    assert float(full.backward_s) == pytest.approx(float(none.backward_s) + float(none.forward.total))


def test_selective_recomputation_repeats_unfused_scores_and_what_the_stack_says():
    """[O7] Fused scores are repeated inside the kernel anyway; half of the products where the stack keeps every second."""
    w = work(recompute=1)
    assert float(cost(w=w).dense.recompute_s) == 0
    assert float(cost(w=w, s=stack(unfused=1.0)).dense.recompute_s) == pytest.approx(8.192 + 61.44)
    assert float(cost(w=w, selective_share=0.5).dense.recompute_s) == pytest.approx(16.384 / 2)


def test_a_tensor_parallel_collective_is_a_ring_of_the_activations():
    """[X1] t = 4: 2 x 3/4 x 2 bytes x 16 tokens x 8 = 384 bytes at 10 bytes/s, and 1 s fixed; two in each pass."""
    layer = cost(w=work(tp=4), tp_message_s=1.0)
    assert float(layer.tp_s) == pytest.approx(39.4)
    assert float(layer.dense.forward.tp) == float(layer.dense.backward.tp) == pytest.approx(78.8)


def test_a_parallel_residual_saves_one_collective_forward():
    """[X1]"""
    layer = cost(model(parallel_residual=1.0), work(tp=4))
    assert float(layer.dense.forward.tp) == pytest.approx(38.4)
    assert float(layer.dense.backward.tp) == pytest.approx(76.8)


def test_tensor_parallelism_beyond_the_domain_runs_at_the_nodes_network():
    """[X1] [C11] t = 16 on nodes of 8: 8 x 1 byte/s; 2 x 15/16 x 256 = 480 bytes take 60 s. The ring's 30 steps have the
    mean latency of its 14 edges of 3.4 us and 2 of 14 us: 141.75 us. A second node adds 5 s to each call.
    """
    beyond = model(heads=16), work(tp=16)
    assert float(cost(*beyond).tp_s) == pytest.approx(60.0 + 141.75e-6, rel=1e-12)
    assert float(cost(*beyond, tp_node_s=5.0, tp_message_s=1.0).tp_s) == pytest.approx(66.0 + 141.75e-6, rel=1e-12)
    assert float(cost(w=work(tp=4), tp_node_s=5.0).tp_s) == pytest.approx(38.4)


def test_overlap_leaves_a_share_of_the_collective():
    """[X1]"""
    assert float(cost(w=work(tp=4, overlap_tensor=1), tp_exposed=0.25).dense.forward.tp) == pytest.approx(2 * 9.6)


@examples(40)
@given(st.sampled_from([2, 4, 8]), st.integers(1, 8), st.sampled_from([16, 64, 256]), st.integers(1, 64))
def test_tensor_parallel_time_is_linear_in_tokens_times_width_and_blind_to_the_weights(t, samples, length, ffn):
    """[X1] 2 (t-1)/t x 2 s b h bytes, whatever the MLP's width; none at t = 1."""
    quick = gpu(fast_gpus=8)
    steps_s = 2 * (t - 1) * 3.4e-6  # latency of the ring's steps, whatever the size
    one = float(cost(w=work(tp=t), g=quick).tp_s) - steps_s
    many = cost(model(ffn=16 * ffn, hidden=24), work(tp=t, micro_batch=samples, seq=length), quick)
    assert float(many.tp_s) - steps_s == pytest.approx(one * samples * length / 16 * 3, rel=1e-9)
    assert float(cost(model(ffn=16 * ffn), work(micro_batch=samples), tp_message_s=1.0).tp_s) == 0


def test_the_network_loses_rate_with_each_doubling_of_the_nodes():
    """[X2] 0.9 of 1 byte/s over 1 + 0.05 x 3 for 8 nodes."""
    assert float(cost(g=gpu(nodes=8), nic=0.9, nic_spread=0.05).nic_rate) == pytest.approx(0.9 / 1.15)
    assert float(cost(g=gpu(nodes=1), nic=0.9, nic_spread=0.05).nic_rate) == pytest.approx(0.9)


def test_experts_inside_a_domain_are_reached_over_its_links():
    """[X3] 256 bytes of tokens, two experts each, half of them elsewhere (e = 2): 25.6 s there and 25.6 s back."""
    assert float(cost(model(**EXPERTS), work(ep=2)).moe.forward.ep) == pytest.approx(51.2)
    assert float(cost(model(**EXPERTS), work(ep=1)).moe.forward.ep) == 0


def test_a_remote_domain_gets_each_token_once():
    """[X3] e = 4 over domains of 2: a token's two experts miss the other domain with (1/2)^2, so 0.75 x 256 bytes at
    1 byte/s; inside 2 x 3/4 x 256 bytes at 10 bytes/s: 2 x (192 + 38.4) s.
    """
    moe = cost(model(**EXPERTS), work(ep=4), gpu(domain=2)).moe
    assert float(moe.forward.ep) == pytest.approx(2 * (192 + 38.4))


def test_an_overlapped_exchange_of_experts_leaves_a_share():
    """[X3] 51.2 s, of which 0.8 are exposed; beside the other micro-batch 0.25 of that. Links reach 0.5 of a ring's rate."""
    shares = {"a2a_exposed": 0.8, "expert_overlap": 0.25}
    experts = model(**EXPERTS), work(ep=2)
    assert float(cost(*experts, **shares).moe.forward.ep) == pytest.approx(40.96)
    assert float(cost(*experts, s=stack(expert_overlap=1.0), **shares).moe.forward.ep) == pytest.approx(10.24)
    assert float(cost(*experts, a2a_rate=0.5).moe.forward.ep) == pytest.approx(102.4)


def test_keys_and_values_go_round_the_sequence_while_attention_works():
    """[X4] c = 2: 8 tokens x 16 x 2 bytes = 256 at 10 bytes/s, attention 2.048 s hides as much; a twentieth still costs.

    With a tenth the exchange would be exposed for longer than it takes: never more than all of it.
    """
    layer = cost(w=work(cp=2), cp_exposed=0.05).dense
    assert float(layer.forward.attention) == pytest.approx(2.048)
    assert float(layer.forward.cp) == pytest.approx(25.6 - 2.048 + 1.28)
    assert float(layer.backward.cp) == pytest.approx(51.2 - 4.096 + 2.56)
    assert float(cost(w=work(cp=2), cp_exposed=0.1).dense.forward.cp) == pytest.approx(25.6)
    assert float(cost(cp_exposed=0.1).dense.forward.cp) == 0


def test_heads_for_sequence_and_gathered_keys_do_not_hide():
    """[X4] c = 2: queries, output, keys and values, (16 + 16) x 8 tokens x 2 bytes / 2 = 256 bytes sent at 10 bytes/s.

    Gathered keys and values are 16 x 8 x 2 = 256 bytes too; neither hides behind the attention that needs them.
    """
    for kind in (1.0, 2.0):
        assert float(cost(w=work(cp=2), s=stack(context_kind=kind)).dense.forward.cp) == pytest.approx(25.6)
    # c = 4: a ring passes each block three times, heads for sequence move a quarter of all four tensors once
    ring, swapped = (cost(w=work(cp=4), s=stack(context_kind=kind)).context.seconds for kind in (0.0, 1.0))
    assert float(ring) == pytest.approx(3 * 12.8)
    assert float(swapped) == pytest.approx(3 * 6.4)


def test_context_parallelism_beyond_the_domain_takes_the_network():
    """[X4] 256 bytes at 1 byte/s."""
    assert float(cost(w=work(cp=2), g=gpu(domain=1)).dense.forward.cp) == pytest.approx(256 - 2.048)


def test_each_precision_has_its_own_share_of_its_own_peak():
    """[O1] 16384 FLOP: fp8 peak 2000 at 0.5; with block scales 0.8 of that; with row scales 0.4; fp4 at 0.7 x 0.5 of 4000."""
    shares = {"matmul_fp8": 0.5, "mxfp8": 0.8, "rowwise": 0.4, "nvfp4": 0.7}
    narrow = gpu(flops_path=2000)
    for path, rate in ((8, 1000), (MXFP8, 800), (ROWWISE, 400)):
        assert float(cost(w=work(path=path), g=narrow, **shares).dense.forward.matmul) == pytest.approx(16384 / rate)
    assert float(cost(w=work(path=4), g=gpu(flops_path=4000), **shares).dense.forward.matmul) == pytest.approx(
        16384 / 1400
    )


def test_an_fp32_job_has_no_16_bit_attention_or_head():
    """[O2] [O9] Peak 100 in fp32, 1000 in 16 bit: scores 4096 / 100 s, head 16384 / 100 s; in bf16 a tenth of both."""
    wide = cost(w=work(path=32), g=gpu(flops_path=100))
    assert float(wide.dense.forward.attention) == pytest.approx(40.96)
    assert float(wide.head_s) == pytest.approx(163.84)
    assert float(cost().head_s) == pytest.approx(16.384)


def test_a_batch_gives_what_each_strategy_gives_alone():
    """[O7] Degrees, recomputation and precision as columns [n, 1] or one by one."""
    rows = [
        {"tp": t, "cp": c, "recompute": r, "micro_batch": b}
        for t in (1, 2)
        for c in (1, 2)
        for r in (0, 1, 2)
        for b in (1, 4)
    ]
    columns = {key: np.array([[row[key]] for row in rows], dtype=float) for key in rows[0]}
    factors = {"elementwise": 1.1, "tile": 0.4, "host_s": 9.0, "tp_message_s": 0.3, "cp_exposed": 0.2}
    batch = cost(w=work(**columns), **factors).dense
    for at, row in enumerate(rows):
        alone = cost(w=work(**row), **factors).dense
        for part in PARTS:
            assert np.broadcast_to(getattr(batch.forward, part), (len(rows), 1))[at, 0] == float(
                getattr(alone.forward, part)
            )
        assert batch.backward_s[at, 0] == pytest.approx(float(alone.backward_s), rel=1e-12)


@examples(60)
@given(
    st.sampled_from(["flops_16", "memory_bytes_per_s", "link_bytes_per_s", "nic_bytes_per_s"]),
    st.floats(1, 100),
    st.data(),
)
def test_a_better_gpu_or_link_never_slows_a_layer(figure, factor, data):
    """[O7]"""
    t, c = data.draw(st.sampled_from([1, 2])), data.draw(st.sampled_from([1, 2]))
    w = work(tp=t, cp=c, ep=data.draw(st.sampled_from([1, 4])), recompute=data.draw(st.sampled_from([0, 2])))
    k = neutral(elementwise=1.0, tile=0.5, host_s=data.draw(st.floats(0, 100)), cp_exposed=0.1, head_traffic=1.0)
    domain = data.draw(st.sampled_from([1, 2, 8]))
    better = {figure: gpu().__dict__[figure] * factor, "domain": domain}
    before, after = (LayerCost(model(**EXPERTS), w, gpu(**g), stack(), k) for g in ({"domain": domain}, better))
    for kind in ("dense", "moe"):
        old, new = getattr(before, kind), getattr(after, kind)
        assert float(new.forward.total) <= float(old.forward.total) * (1 + 1e-12)
        assert float(new.backward_s) <= float(old.backward_s) * (1 + 1e-12)
