"""[R3] [V4] A case as columns: layers of stages, gradient bytes, mixed kinds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import case, scenario
from crosszone.cost.profile import Profiles
from crosszone.inputs.frameworks import load_frameworks
from crosszone.inputs.strategy import Strategy
from crosszone.predict.batch import (
    count_moe_layers,
    count_stage_layers,
    join_batches,
    list_virtual_stage_layers,
    split_layers,
    sum_virtual_stages,
)
from crosszone.predict.predict import build_measured_predictor, build_prediction, build_predictor
from crosszone.predict.step import step_s
from predict.given import MEGATRON, one_zone, placed


def test_layers_left_over_go_to_the_stages_after_the_first():
    """[R3] 32 over 4: 8 each. 33: the second takes one more. 35: all but the first. 126 over 16 (llama-3.1-405b): 7, 14 x 8, 7."""
    assert split_layers(32, 4) == [8, 8, 8, 8]
    assert split_layers(33, 4) == [8, 9, 8, 8]
    assert split_layers(35, 4) == [9, 9, 9, 8]
    assert split_layers(126, 16) == [7, *[8] * 14, 7]


@given(st.integers(1, 200), st.integers(1, 64))
def test_all_layers_are_dealt_out_evenly(layers, chunks):
    """[R3]"""
    found = split_layers(layers, chunks)
    assert sum(found) == layers
    assert max(found) - min(found) <= 1
    assert len(found) == chunks


def test_a_stage_holds_all_its_chunks():
    """[R3] 32 layers in 4 stages of two chunks; given splits stand in pipeline order, a V turns back at the last stage."""
    assert count_stage_layers(case({"pp": 4, "interleave": 2})) == [8, 8, 8, 8]
    split = [1, 2, 3, 4, 4, 5, 6, 7]
    assert count_stage_layers(case({"pp": 4, "interleave": 2, "layers_per_stage": split})) == [5, 7, 9, 11]
    folded = case({"pp": 4, "interleave": 2, "schedule": "zbv", "layers_per_stage": split})
    assert count_stage_layers(folded) == [8, 8, 8, 8]
    assert list_virtual_stage_layers(folded) == split


def test_many_cases_stacked_give_what_each_gives_alone():
    """[V3] Pipelines of different length, degrees, models in one batch."""
    many = [
        case({"tp": t, "pp": p, "dp": 8 // t // p, "zero": z, "recompute": r}, model=m)
        for t, p, z, r, m in [
            (1, 1, 1, "none", "llama-2-7b"), (2, 4, 0, "full", "llama-2-7b"), (8, 1, 0, "selective", "llama-2-13b"),
            (1, 8, 0, "none", "gpt-3-13b"), (2, 2, 1, "none", "mixtral-8x7b"),
        ]
    ]  # fmt: skip
    profiles = Profiles.load()
    batches = [build_measured_predictor("one", one, load_frameworks()["megatron"], profiles).batch for one in many]
    rows = [len(batch.counts) for batch in batches]
    together = step_s(join_batches(batches), profiles.coefficients(["a100"] * sum(rows), ["megatron-core"] * sum(rows)))
    alone = [
        step_s(b, profiles.coefficients(["a100"] * n, ["megatron-core"] * n))
        for b, n in zip(batches, rows, strict=True)
    ]
    assert together == pytest.approx(np.concatenate(alone), rel=1e-12)


def test_replicas_of_several_kinds_stay_rows_of_their_own():
    """Three stages of 3 replicas of t = 2 on nodes of eight: some boundaries lie inside a node, others do not."""
    one = case({"tp": 2, "pp": 3, "dp": 3}, cluster=one_zone(24), job=MEGATRON | {"global_batch": 12})
    torn = build_measured_predictor("torn", one, load_frameworks()["megatron"])
    assert len(torn.placed.replica_classes[0]) > 1
    whole = build_measured_predictor("whole", case({"tp": 8, "dp": 1}), load_frameworks()["megatron"])
    joined = join_batches([torn.batch, whole.batch])
    assert joined.counts.shape == (len(torn.placed.replica_classes[0]) + 1, 3)
    assert joined.counts[-1].tolist() == [32, 0, 0]
    assert joined.links.boundary_fast[:-1].tolist() == torn.batch.links.boundary_fast.tolist()


def test_stages_on_slower_gpus_are_slower():
    """[V3] Two A100 stages and two V100 stages of eight layers: the V100 ones set the pace; moving layers away helps."""
    cluster = {
        "zones": [
            {"name": "a", "nodes": [{"count": 2, "gpus": 8, "gpu": "a100-40gb-sxm", "nic_gbps_per_gpu": 100}]},
            {"name": "b", "nodes": [{"count": 2, "gpus": 8, "gpu": "v100-32gb-sxm", "nic_gbps_per_gpu": 12}]},
        ],
        "default_link": {"gbps": 100, "rtt_ms": 0.2},
    }
    job = MEGATRON | {"precision": "fp16"}
    even = placed({"tp": 8, "pp": 4, "dp": 1}, cluster=cluster, job=job)
    times = (even.step.times.forward + even.step.times.backward)[even.row]
    assert min(times[2:]) > 1.5 * max(times[:2])
    uneven = placed({"tp": 8, "pp": 4, "dp": 1, "layers_per_stage": [12, 12, 4, 4]}, cluster=cluster, job=job)
    assert uneven.step_time.expected < 0.8 * even.step_time.expected


def test_the_slowest_replica_sets_the_step():
    """[V3] One replica on A100, one on V100: the step of the pair is that of two V100 replicas, but for the exchange.

    Software of one release runs them all; else V100s alone would be given that of 2020.
    """

    def cluster(*kinds: str) -> dict:
        nodes = [{"count": 1, "gpus": 8, "gpu": kind, "nic_gbps_per_gpu": 100} for kind in kinds]
        return {"zones": [{"name": "a", "nodes": nodes}]}

    job = MEGATRON | {"precision": "fp16", "software": {"release": "22.01"}}
    quick, mixed, slow = (
        placed({"tp": 8, "dp": 2}, cluster=cluster(*kinds), job=job)
        for kinds in (("a100-40gb-sxm",) * 2, ("a100-40gb-sxm", "v100-32gb-sxm"), ("v100-32gb-sxm",) * 2)
    )
    assert quick.step_time.expected < 0.7 * mixed.step_time.expected
    assert mixed.step_time.expected == pytest.approx(slow.step_time.expected, rel=0.02)
    assert len(mixed.placed.replica_classes[0]) == 2
    assert np.argmax(mixed.step.total_s[:2]) == mixed.slowest == 1


def test_an_idle_gpu_is_named_and_not_counted():
    """[V3] Fourteen GPUs with t = 4: 12 in use; two of the two-GPU machine idle."""
    cluster = {
        "zones": [
            {"name": n, "nodes": [{"count": 1, "gpus": g, "gpu": "a100-80gb-sxm"}]}
            for n, g in (("a", 2), ("b", 4), ("c", 8))
        ],
        "default_link": {"gbps": 1, "rtt_ms": 40},
    }
    got = build_prediction(placed({"tp": 4, "dp": 3}, cluster=cluster, job=MEGATRON | {"global_batch": 48}))
    assert got.gpus == 12
    idle = [w for w in got.warnings if w["code"] == "idle_tp"]
    assert len(idle) == 1
    assert "a" in idle[0]["message"]
    assert "2" in idle[0]["message"]


def test_chunks_bring_their_layers_with_experts_to_their_stages():
    """[R4] Eight layers, the first four dense, in chunks of two: 0, 0, 2 and 2 with experts; stage 0 has the first and
    third of them, and so two, as stage 1. Without chunks stage 1 has all four.
    """
    model = scenario(model="mixtral-8x7b").model
    moe = model.moe.replace(first_dense=4)
    model = model.replace(layers=8, moe=moe)
    assert count_moe_layers(model, [2, 2, 2, 2]) == [0, 0, 2, 2]
    assert count_moe_layers(model.replace(moe=moe.replace(first_dense=1, every=2)), [3, 5]) == [1, 2]
    assert count_moe_layers(scenario(model="llama-2-7b").model, [3, 5]) == [0, 0]
    assert sum_virtual_stages(Strategy(pp=2, interleave=2), [0, 0, 2, 2]) == [2, 2]
    assert sum_virtual_stages(Strategy(pp=2, interleave=2, schedule="zbv"), [0, 0, 2, 2]) == [2, 2]
    assert sum_virtual_stages(Strategy(pp=2), [0, 4]) == [0, 4]
    chunked = scenario(
        model=model, job=MEGATRON | {"global_batch": 8}, cluster=one_zone(2), strategy={"pp": 2, "interleave": 2}
    )
    assert build_predictor(chunked).step.times.layers.moe.tolist() == [[2.0, 2.0]]
