"""Any cluster gets plans that are legal and fit, or a refusal that says why."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone import Plans, Scenario, load_scenario, plan, predict
from crosszone.errors import IllegalError
from crosszone.inputs.frameworks import load_frameworks
from crosszone.inputs.rules import Case, list_broken_rules, list_refusals
from crosszone.plan.plan import OBJECTIVES, Plan
from crosszone.predict.placed_strategy import PlacedStrategy
from crosszone.text import LANGUAGES
from effort import examples
from plan.given import Pick, profiles

KINDS = (
    ("a100-80gb-sxm",), ("h100-80gb-sxm",), ("rtx-4090",), ("v100-16gb-sxm", "t4"), ("a100-40gb-sxm", "v100-32gb-sxm"),
    ("h100-80gb-sxm", "a100-80gb-sxm", "l4"), ("mi300x", "gb200", "h20-96gb-sxm"), ("ascend-910b",), ("rtx-3060", "b200-sxm"),
)  # fmt: skip
MODELS: tuple[Any, ...] = (
    {"layers": 2, "hidden": 256, "heads": 4, "ffn_hidden": 1024, "vocab": 1000},
    {"layers": 5, "hidden": 768, "heads": 6, "kv_heads": 2, "ffn_hidden": 3072, "vocab": 50257},
    {"size_b": 1},
    "llama-2-7b",
    "gpt-3-13b",
    "llama-2-70b",
    "mixtral-8x7b",
    {"layers": 6, "hidden": 512, "heads": 8, "ffn_hidden": 2048, "vocab": 32000}
    | {"moe": {"experts": 6, "top_k": 2, "ffn_hidden": 512}},
)
BUDGET_S = 0.5
"""A search that ends early must keep every promise but the best plan; a thousand of them take minutes, not hours."""
OLD = {"v100-16gb-sxm", "v100-32gb-sxm", "t4"}
"""GPUs without bf16."""


def cluster_of(pick: Pick) -> dict[str, Any]:
    """One to four zones of up to three node groups: any mixture, whole or broken nodes, links given or derived."""
    kinds, count, given = pick(KINDS), pick([1, 1, 2, 2, 3, 4]), pick([False, True, True])
    places = [{"region": "cn-beijing"}, {"region": "us-east-1"}, {"region": "eu-central-1"}]
    cluster: dict[str, Any] = {"zones": []}
    for name in "abcd"[:count]:
        zone = {"name": name, "nodes": [_group(pick, kinds) for _ in range(pick([1, 1, 1, 2, 3]))]}
        cluster["zones"].append(zone | pick([*places, {}] if given else places) | pick([{}, {}, {"uplink_gbps": 2}]))
    if given:
        cluster["default_link"] = {"gbps": pick([0.1, 1, 10, 400]), "rtt_ms": pick([0, 1, 40, 300])}
    if count > 1 and pick([False, True]):
        cluster["links"] = [{"between": ["b", "a"], "gbps": pick([1, 25]), "gbps_back": 3, "usd_per_gb": 0.02}]
    return cluster


def _group(pick: Pick, kinds: tuple[str, ...]) -> dict[str, Any]:
    node = {"count": pick([1, 1, 1, 2]), "gpus": pick([1, 2, 3, 4, 6, 8, 8]), "gpu": pick(kinds)}
    node |= pick([{}, {"nic_gbps": 10}, {"nic_gbps_per_gpu": 200}])
    return node | pick([{}, {}, {"usd_per_gpu_hour": 0}, {"usd_per_gpu_hour": 3.5}, {"intra_link": "pcie"}])


def fields_of(pick: Pick) -> dict[str, Any]:
    """A whole scenario, now and then with part of the strategy pinned."""
    cluster = cluster_of(pick)
    old = any(node["gpu"] in OLD for zone in cluster["zones"] for node in zone["nodes"])
    job = {
        "seq_len": pick([512, 2048, 4096, 8192]),
        "global_batch": pick([1, 12, 16, 63, 64, 97, 256]),
        "precision": pick(["fp16", "fp32"] if old else ["bf16", "bf16", "bf16", "fp32"]),
        "framework": pick(["any", "any", "any", "ddp", "fsdp", "deepspeed", "megatron", "horovod"]),
    } | pick([{}, {"tokens": 1e9}])
    pins = pick([{}, {}, {}, {"tp": 2}, {"pp": 2}, {"dp": 3}, {"micro_batch": 1}, {"zero": 1}, {"recompute": "full"}])
    model = pick(MODELS)
    return {"name": "any", "model": model, "job": job, "cluster": cluster, **({"strategy": pins} if pins else {})}


def judged(of: Scenario, how: dict[str, Any]) -> None:
    """Plan it, and hold the answer to what a user may rely on."""
    try:
        found = plan(of, profiles=profiles(), **how)
    except IllegalError as error:
        assert error.notices
        for notice in error.notices:
            assert all(notice.message(language) for language in LANGUAGES)
            assert all(notice.hint(language) for language in LANGUAGES)
        return
    assert found.plans
    assert Plans.model_validate(found.model_dump(mode="json")) == found
    assert [one.rank for one in found.plans] == list(range(1, len(found.plans) + 1))
    assert [one.value for one in found.plans] == sorted(one.value for one in found.plans)
    assert all(one.count > 0 and one.reason["message"] for one in found.rejected)
    for one in (*found.plans, *found.local_updates):
        is_legal(of, one)
        uses_every_gpu_or_says_why(of, one)
        fits(one)
        keeps_what_is_pinned(of, one)
        is_predicted_alike(of, one)


def is_legal(of: Scenario, one: Plan) -> None:
    """No rule of section 5.10, none of the framework's own, no torn placement, no link that is not there."""
    framework = load_frameworks()[one.framework]
    case = Case(model=of.model, job=of.job, cluster=of.cluster, strategy=one.strategy, placement=one.placement)
    assert not list_broken_rules(case) and not list_refusals(case, framework)
    assert not list_refusals(case, framework)
    assert not one.placement.check(of.cluster, one.strategy)
    PlacedStrategy(case=case.with_framework(framework), placement=one.placement, links=of.links).check()


def uses_every_gpu_or_says_why(of: Scenario, one: Plan) -> None:
    idle = {(left.zone, left.group): 0 for left in one.idle}
    for left in one.idle:
        assert left.count > 0 and left.reason["message"]
        idle[left.zone, left.group] += left.count
    assert idle == {(left.zone, left.group): left.count for left in one.placement.list_idle(of.cluster)}
    assert one.prediction.gpus + sum(idle.values()) == of.cluster.gpus


def fits(one: Plan) -> None:
    memory = one.prediction.memory_gib
    assert memory.fits and memory.peak.expected <= memory.limit


def keeps_what_is_pinned(of: Scenario, one: Plan) -> None:
    for key in of.strategy.pinned if of.strategy else ():
        assert getattr(one.strategy, key) == getattr(of.strategy, key)


def is_predicted_alike(of: Scenario, one: Plan) -> None:
    """The plan as a scenario of its own takes exactly as long, and comes back the same from JSON."""
    job = of.job.replace(framework=one.framework)
    alone = predict(of.replace(job=job, strategy=one.strategy, placement=one.placement))
    assert alone.step_time_s == one.prediction.step_time_s
    assert alone.memory_gib == one.prediction.memory_gib
    assert Plan.model_validate_json(one.model_dump_json()) == one


@pytest.mark.slow
@examples(60)
@given(st.data())
def test_any_cluster_gets_legal_plans_or_a_reason(data):
    """F25: satisfies every legality rule for random clusters."""

    def pick(some: Any) -> Any:
        return data.draw(st.sampled_from(list(some)))

    fields = fields_of(pick)
    objective = pick(["time", "time", "time", "memory"])
    judged(load_scenario(fields), {"objective": objective, "top": pick([1, 5, 5, 20]), "budget_s": BUDGET_S})


@pytest.mark.long
@pytest.mark.parametrize("block", range(10))
def test_a_thousand_random_clusters_get_legal_plans_or_a_reason(block):
    """F25: result satisfies every legality rule for 1000 random clusters."""
    for seed in range(100 * block, 100 * (block + 1)):
        pick = Random(seed).choice
        of = load_scenario(fields_of(pick))
        try:
            judged(of, {"objective": pick(["time"] * 6 + list(OBJECTIVES)), "top": pick([1, 5]), "budget_s": BUDGET_S})
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
