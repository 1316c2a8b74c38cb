"""[V1] [V2] [V3] [V6] [X8] The step: overlap, sends, the tail, and the quick form against the simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.worked import gpu, links, model, neutral, stack, work
from crosszone.inputs.strategy import Strategy
from crosszone.predict.batch import Batch
from crosszone.predict.predict import build_prediction
from crosszone.predict.predictor import Predictor
from crosszone.predict.step import build_stage_times, compute_exposed_s, simulate_step, step_s
from effort import examples
from predict.given import FSDP, MEGATRON, one_zone, placed, predicted, predictors, step, strategies, zones

seconds = st.floats(0, 1e4)


def quick(p: Predictor) -> float:
    """The closed form of the slowest replica at the expected RTT."""
    kinds = {id(one.coefficients): one.coefficients for one in p.profile.values()}
    (k,) = kinds.values()
    return float(step_s(p.batch, k)[p.row])


def simulated(p: Predictor) -> float:
    return float(p.step.total_s[p.row])


def test_communication_that_is_switched_off_from_overlap_adds_all_of_itself():
    """[V1] 3 s beside 10 s of compute, off: 3. On: what contention leaves, 0.2 x 3. With x = 0.5: 3 - 1.5."""
    nan = np.nan
    assert compute_exposed_s(3.0, 10.0, 0.0, 0.2, nan) == 3.0
    assert compute_exposed_s(3.0, 10.0, 1.0, 0.2, nan) == pytest.approx(0.6)
    assert compute_exposed_s(3.0, 10.0, 1.0, 0.2, 0.5) == pytest.approx(1.5)


def test_communication_longer_than_its_window_shows():
    """[V1] 12 s beside 10: 2 and a fifth of 10; x = 1 hides exactly the window; x = 0 nothing at all."""
    assert compute_exposed_s(12.0, 10.0, 1.0, 0.2, np.nan) == pytest.approx(4.0)
    assert compute_exposed_s(12.0, 10.0, 1.0, 0.2, 1.0) == pytest.approx(2.0)
    assert compute_exposed_s(12.0, 10.0, 1.0, 0.2, 0.0) == 12.0


@given(seconds, seconds, st.booleans(), st.floats(0, 1), st.none() | st.floats(0, 1))
def test_overlapped_time_is_never_below_the_longer_of_the_two_nor_above_both(comm, window, on, contention, overlap):
    """[V1] F49."""
    added = float(compute_exposed_s(comm, window, float(on), contention, np.nan if overlap is None else overlap))
    assert max(comm, window) * (1 - 1e-12) <= window + added <= (comm + window) * (1 + 1e-12)


def paper_batch(counts, between=None, g=None, **degrees) -> Batch:
    """The model of `cost.worked` as one strategy; four layers of 20.48 s forward and 40.96 s backward, head 16.384 s."""
    return Batch(
        model=model(),
        work=work(**degrees),
        gpu=g or gpu(),
        stack=stack(),
        links=between or links(),
        counts=np.array([counts], dtype=float),
    )


def test_one_stage_is_its_layers_times_the_micro_batches():
    """[V3] (4 x 20.48 + 16.384) x 3 for forward and backward, three micro-batches, 6 bytes of each of 3072 weights written
    at 100 bytes/s, 5 s fixed: 3 x 294.912 + 184.32 + 5.
    """
    assert step_s(paper_batch([4], micro_batches=3), neutral(step_s=5.0))[0] == pytest.approx(1074.056)


def test_jitter_grows_with_the_doublings_of_nodes():
    """[V3] 1 % of the stage's work a doubling, on 8 nodes: 3 % of 3 micro-batches of 294.912 s."""
    batch = paper_batch([4], g=gpu(nodes=8), micro_batches=3)
    assert step_s(batch, neutral(step_s=5.0, jitter=0.01))[0] == pytest.approx(1074.056 + 0.03 * 3 * 294.912)


def test_a_send_is_the_activations_of_a_micro_batch():
    """[X8] 2 bytes x 16 tokens x 8 = 256: at 10 bytes/s inside a domain, at 1 over the network, cut by t where the stack does
    or the sequence is; 2 s a message; two chunks send twice.
    """
    fast = paper_batch([2, 2], links(boundary_fast=1.0), pp=2)
    assert np.ravel(build_stage_times(fast, neutral(p2p_message_s=2.0)).send)[0] == pytest.approx(27.6)
    slow = paper_batch([2, 2], pp=2, interleave=2)
    assert np.ravel(build_stage_times(slow, neutral(p2p_message_s=2.0)).send)[0] == pytest.approx(2 * 258)
    cut = replace(paper_batch([2, 2], pp=2, tp=2), stack=stack(p2p_scatter=1.0))
    assert np.ravel(build_stage_times(cut, neutral()).send)[0] == pytest.approx(128)
    split = paper_batch([2, 2], pp=2, tp=2, sequence_parallel=1)
    assert np.ravel(build_stage_times(split, neutral()).send)[0] == pytest.approx(128)


def test_a_send_between_zones_is_no_quicker_than_either_link():
    """[X8] Forward at 0.5 bytes/s, back at 0.25; a line of 50 bytes/s still has the network's 1 at its ends."""
    t = build_stage_times(
        paper_batch([2, 2], links(boundary_bytes_per_s=0.5, boundary_back_bytes_per_s=0.25), pp=2), neutral()
    )
    assert (np.ravel(t.send)[0], np.ravel(t.send_back)[0]) == pytest.approx((512, 1024))
    wide = build_stage_times(paper_batch([2, 2], links(boundary_bytes_per_s=50.0), pp=2), neutral())
    assert np.ravel(wide.send)[0] == pytest.approx(256)


@pytest.mark.parametrize(
    ("wait", "forward", "backward", "left"), [(0, 256, 256, 3), (1, 512, 1024, 3), (2, 515, 1027, 0)]
)
def test_a_stack_that_waits_for_its_sends_pays_for_the_line_between_zones(wait, forward, backward, left):
    """[X8] 256 bytes leave the GPU at 1 byte/s. Waiting until they are sent: at 0.5 bytes/s forward and 0.25 back; until
    they have arrived: 3 s more, which then delay nobody again.
    """
    line = links(boundary_bytes_per_s=0.5, boundary_back_bytes_per_s=0.25, boundary_latency_s=3.0)
    t = build_stage_times(replace(paper_batch([2, 2], line, pp=2), stack=stack(p2p_wait=float(wait))), neutral())
    added = (t.forward - t.cost.forward_s, t.backward - t.cost.backward_s)
    assert (np.ravel(added[0])[0], np.ravel(added[1])[1]) == pytest.approx((forward, backward))
    assert np.ravel(t.latency)[0] == pytest.approx(left)
    assert np.ravel(t.piped)[0] == pytest.approx(min(wait, 1))


def test_the_update_waits_for_every_stages_gradients():
    """[V2] Replicas reduce a stage of the layers' 2 x 512 + 512 parameters in 2 x 1/2 x 3072 bytes / 10 = 307.2 s: the step
    ends that much later when nothing overlaps, and hardly when all but the last of 3072 buckets hides.
    """
    base = step_s(paper_batch([2, 2], links(boundary_fast=1.0), pp=2, micro_batches=4), neutral())[0]
    bare, hidden = (
        step_s(
            paper_batch(
                [2, 2], links(boundary_fast=1.0), pp=2, micro_batches=4, dp=2, overlap_gradients=on, bucket_bytes=1.0
            ),
            neutral(),
        )[0]
        for on in (0, 1)
    )
    stages = build_stage_times(paper_batch([2, 2], links(boundary_fast=1.0), pp=2, micro_batches=4, dp=2), neutral())
    assert np.ravel(stages.reduce).tolist() == pytest.approx([307.2, 307.2])
    assert bare == pytest.approx(base + 307.2, rel=1e-4)
    assert hidden == pytest.approx(base + 307.2 - min(307.2, float(np.ravel(stages.cost.backward_s)[0])), rel=1e-3)


@examples(60)
@given(strategies(), st.data())
def test_the_quick_form_is_never_above_the_simulated_step(strategy, data):
    """[V3] 1F1B in one zone or two: a search may trust it as a bound."""
    ranks = strategy["tp"] * strategy["pp"] * strategy["dp"] * strategy["cp"]
    cluster = one_zone(32)
    if strategy["cp"] == 1 and ranks == 32 and data.draw(st.booleans()):
        cluster = zones(2, 16, rtt_ms=data.draw(st.sampled_from([1, 50])))
    p = placed(strategy | {"interleave": 1}, cluster=cluster)
    assert quick(p) <= simulated(p) * (1 + 1e-9)


@pytest.mark.parametrize(
    "strategy", [{"tp": 8}, {"tp": 2, "dp": 8, "zero": 1}, {"dp": 16, "zero": 3}, {"dp": 2, "cp": 2, "tp": 4}]
)
def test_the_quick_form_is_the_simulated_step_without_a_pipeline(strategy):
    """[V3] One stage has nothing to wait for."""
    p = placed(strategy)
    assert quick(p) == pytest.approx(simulated(p), rel=1e-9)


def test_the_quick_form_is_the_simulated_step_for_equal_stages():
    """[V3] F64: the worked model without a head, p = 2 and 4, sends that cost nothing; 6 x 512 x (layers + 1) bytes of
    weights written at 100 bytes/s.
    """
    for counts in ([2, 2], [1, 1, 1, 1]):
        batch = replace(
            paper_batch(counts, links(boundary_perfect=1.0), pp=len(counts), micro_batches=8), model=model(vocab=0)
        )
        f, b = 20.48 * 4 / len(counts), 40.96 * 4 / len(counts)
        expected = (8 + len(counts) - 1) * (f + b) + 6 * 512 * (counts[0] + 1) / 100
        strategy = Strategy(pp=len(counts), dp=1)
        assert step_s(batch, neutral())[0] == pytest.approx(expected, rel=1e-9)
        assert simulate_step(batch, counts, strategy, neutral()).total_s[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_the_quick_form_is_within_a_percent_where_head_and_embedding_make_stages_uneven(pp):
    """[V3] llama-2-7b on 16 GPUs of one zone, 1F1B, 64 micro-batches."""
    p = placed({"tp": 16 // pp if pp > 2 else 8, "pp": pp, "dp": 1})
    assert 0.99 * simulated(p) <= quick(p) <= simulated(p) * (1 + 1e-9)


@examples(60)
@given(predictors())
def test_identities_of_throughput_hold(p):
    """[V6] F51: tokens/s x step = tokens; MFU recomputes from tokens/s and FLOPs a token; total = steps x step / goodput."""
    got, job = build_prediction(p), p.case.job
    time = got.step_time_s
    assert time.low < time.expected < time.high
    assert got.tokens_per_s.expected * time.expected == pytest.approx(64 * 4096)
    assert got.tokens_per_s_per_gpu.expected == pytest.approx(got.tokens_per_s.expected / got.gpus)
    flops_a_token = p.model_flops / job.tokens_per_step
    peak = 312 if p.case.model.moe is None else 989
    assert got.mfu.expected == pytest.approx(
        got.tokens_per_s.expected * flops_a_token / (got.gpus * peak * 1e12), rel=1e-3
    )
    assert got.mfu.expected == pytest.approx(got.tflops_per_gpu.expected / peak, rel=1e-3)
    assert got.hfu.expected >= got.mfu.expected
    assert 0 < got.mfu.expected < 0.7
    assert got.run.steps == 38147
    assert got.run.days.expected == pytest.approx(38147 * time.expected / 86400 / got.run.goodput.share)
    assert got.run.gpu_hours.expected == pytest.approx(24 * got.run.days.expected * got.gpus)


def test_seven_billion_parameters_and_65536_tokens_on_16_a100_take_a_second_or_two():
    """[V3] F43: 6 x 6.6e9 x 65536 FLOP plus attention is 2.7e15; 16 x 312e12 at 55 % is 1.0 s."""
    job = {"seq_len": 2048, "global_batch": 32}
    for strategy, framework in (
        ({"tp": 2, "dp": 8, "zero": 1}, "megatron"),
        ({"dp": 16, "zero": 3}, "fsdp"),
        ({"tp": 8, "pp": 2}, "megatron"),
    ):
        assert 0.5 < step(strategy, job=job | {"framework": framework}) < 3.0


def test_mfu_counts_the_peak_of_every_gpu_in_use():
    """[V6] An idle node is no part of it; fp8 is judged by the fp8 peak of 1979 TFLOP/s."""
    half = predicted({"tp": 8, "dp": 1})
    assert half.gpus == 8
    eight = predicted({"tp": 8, "dp": 1}, job=MEGATRON | {"precision": "fp8"}, cluster=one_zone(8, gpu="h100-80gb-sxm"))
    assert eight.mfu.expected == pytest.approx(eight.tflops_per_gpu.expected / 1979, rel=0.01)


def test_a_batch_of_strategies_gives_what_each_gives_alone():
    """[V3] Kinds of replicas, RTT low, expected and high are rows of one batch; each row alone gives its number."""
    p = placed({"tp": 4, "pp": 2, "dp": 4}, cluster=zones(2, 16))
    (k,) = {id(one.coefficients): one.coefficients for one in p.profile.values()}.values()
    together = step_s(p.batch, k)
    for row in range(len(together)):
        one = replace(
            p.batch,
            counts=p.batch.counts[row : row + 1],
            links=replace(
                p.batch.links,
                **{
                    n: v[row : row + 1]
                    for n, v in vars(p.batch.links).items()
                    if np.ndim(v) == 2 and len(v) == len(together)
                },
            ),
            gpu=replace(
                p.batch.gpu,
                **{
                    n: v[row : row + 1]
                    for n, v in vars(p.batch.gpu).items()
                    if np.ndim(v) == 2 and len(v) == len(together)
                },
            ),
        )
        assert step_s(one, k)[0] == pytest.approx(float(together[row]), rel=1e-12)


def test_fsdp_without_a_pipeline_moves_weights_with_every_micro_batch():
    """[V3] Twice the micro-batches of half the size: twice the gathers."""
    one, two = (predicted({"dp": 16, "zero": 3, "micro_batch": b}, job=FSDP) for b in (2, 1))
    assert two.breakdown_s["sharding"] == pytest.approx(2 * one.breakdown_s["sharding"], rel=0.05)
