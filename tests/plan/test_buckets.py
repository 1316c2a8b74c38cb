"""Buckets of plans whose replicas lie in several zones."""

from __future__ import annotations

import math

import pytest

from builders import scenario
from crosszone.inputs.frameworks import load_frameworks
from crosszone.inputs.scenario import Scenario
from crosszone.plan.planner import build_problem, plan
from crosszone.plan.problem import choose_wan_bucket_mb
from crosszone.predict.predict import predict
from predict.given import MEGATRON, one_zone, zones

PARAMETERS = 6_738_415_616


def megatron(cluster: dict, **strategy) -> Scenario:
    return scenario(job=MEGATRON | {"global_batch": 1024}, cluster=cluster, strategy=strategy or None)


def test_latency_and_what_the_last_bucket_leaves_are_in_balance():
    """[W6] 27 GB of fp32 gradients, 10 Gbit/s x 0.9653, two zones 20 ms apart: A = 2 x 10.05 ms: sqrt(S A B)."""
    found = choose_wan_bucket_mb(build_problem(megatron(zones(2, 8))), load_frameworks()["megatron"])
    rate, late = 10e9 / 8 * 0.9653, 2 * (0.01 + 50e-6)
    assert found == pytest.approx(math.sqrt(4 * PARAMETERS * rate * late) / 1e6, rel=1e-3)


def test_nobody_chooses_where_there_is_nothing_to_choose():
    megatron_lm, fsdp = load_frameworks()["megatron"], load_frameworks()["fsdp"]
    assert choose_wan_bucket_mb(build_problem(megatron(one_zone(8))), megatron_lm) is None
    assert (
        choose_wan_bucket_mb(build_problem(megatron(zones(2, 8), communication={"bucket_mb": 50.0})), megatron_lm)
        is None
    )
    assert choose_wan_bucket_mb(build_problem(megatron(zones(2, 8))), fsdp) is None


def test_a_plan_across_zones_names_its_bucket_and_is_no_slower_for_it():
    """[W6] t p ranks hold a part each; the framework's own bucket would take longer."""
    given = megatron(zones(2, 8, gbps=100, rtt_ms=40), tp=8, pp=1, dp=2)
    best = plan(given, top=1, local_updates=False).plans[0]
    whole = choose_wan_bucket_mb(build_problem(given), load_frameworks()["megatron"])
    assert best.crossing == "dp"
    assert best.strategy.communication.bucket_mb == max(160, math.ceil(whole / 8))
    usual = best.strategy.replace(communication=best.strategy.communication.replace(bucket_mb=None))
    other = predict(given.replace(strategy=usual, placement=best.placement))
    assert best.prediction.step_time_s.expected <= other.step_time_s.expected
