"""What follows from a scenario before anything is predicted: one description for CLI, API and page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from crosszone.errors import Notice
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.flops import TRAINING_PASSES, forward_flops_per_token
from crosszone.inputs.job import Job, state_bytes
from crosszone.inputs.model import Model
from crosszone.inputs.parameters import parameters
from crosszone.inputs.placement import count_tp_room, pack_ranks
from crosszone.inputs.rules import JOB_RULES, find_able_frameworks, list_broken_rules
from crosszone.inputs.scenario import Loaded, Scenario, list_scenario_notices
from crosszone.inputs.strategy import Strategy
from crosszone.inputs.value import MOST_NOTICES
from crosszone.text import DEFAULT_LANGUAGE

MOST_SIMILAR = 5  # Warnings or notes of one kind that are shown one by one; the rest are counted


def describe(loaded: Loaded, language: str = DEFAULT_LANGUAGE) -> dict[str, Any]:
    """A scenario with everything that follows from it, and every notice with its line."""
    scenario = loaded.scenario
    strategy, violations = _describe_strategy(scenario, language)
    broken = any(notice.level == "error" for notice in violations)
    notices = shorten_notices(
        [loaded.document.place_notice(n) for n in (*violations, *loaded.notices, *list_scenario_notices(scenario))]
    )
    return {
        "scenario": scenario.to_fields(),
        "model": describe_model(scenario.model, scenario.job.seq_len),
        "job": _describe_job(scenario.job, strategy["frameworks"][0] if strategy and strategy["frameworks"] else None),
        "cluster": _describe_cluster(scenario),
        "strategy": strategy,
        "legal": not broken,
        "notices": [notice.as_dict(language) for notice in notices],
    }


def shorten_notices(notices: list[Notice]) -> list[Notice]:
    """Errors first, then warnings and notes; of each code only a few, then how many more there are."""
    order = {"error": 0, "warning": 1, "note": 2}
    shortened: list[Notice] = []
    for code, level in dict.fromkeys((notice.code, notice.level) for notice in notices):
        similar = [notice for notice in notices if (notice.code, notice.level) == (code, level)]
        limit = MOST_NOTICES if level == "error" else MOST_SIMILAR
        shortened += similar[:limit]
        if len(similar) > limit:
            params = {"count": len(similar) - limit, "first": similar[0].field}
            shortened.append(replace(similar[limit], code="and_more", value=len(similar) - limit, params=params))
    return sorted(shortened, key=lambda notice: (order[notice.level], notice.line or 0))


def describe_model(model: Model, seq_len: int) -> dict[str, Any]:
    """Parameters by part and operations per token."""
    counted, forward = parameters(model), forward_flops_per_token(model, seq_len)
    shape = ("name", "kind", "attention", "layers", "hidden", "heads", "kv_heads", "ffn_hidden", "vocab")
    return {
        **{key: getattr(model, key) for key in shape},
        "parameters": {"parts": counted.parts, "total": counted.total, "active": counted.active},
        "forward_flops_per_token": {"parts": forward.parts, "total": forward.total, "seq_len": seq_len},
        "training_flops_per_token": TRAINING_PASSES * forward.total,
    }


def _describe_job(job: Job, framework: str | None) -> dict[str, Any]:
    """What follows from the job; bytes of state as the framework that would run it keeps them."""
    state = state_bytes(job, framework=framework)
    keys = ("seq_len", "global_batch", "tokens_per_step", "total_tokens", "steps")
    return {
        **{key: getattr(job, key) for key in (*keys, "precision", "optimizer", "framework")},
        "state_framework": framework or job.framework,
        "state_bytes_per_parameter": {**asdict(state), "total": state.total},
    }


def _describe_cluster(scenario: Scenario) -> dict[str, Any]:
    cluster = scenario.cluster
    zones = [
        {
            "name": zone.name,
            "region": zone.region.name if zone.region else None,
            **{key: getattr(zone.region, key, None) for key in ("place", "place_zh", "lat", "lon")},
            "nodes": zone.node_count,
            "gpus": zone.gpus,
            "gpu_kinds": sorted({group.gpu.name for group in zone.nodes}),
            "memory_gib": sum(group.total_gpus * group.gpu.memory_gib for group in zone.nodes),
            "uplink_gbps": zone.uplink_gbps,
            "carbon_g_per_kwh": zone.grid_carbon_g_per_kwh,
            "groups": [
                {
                    "count": group.count,
                    "gpus": group.gpus,
                    "gpu": group.gpu.name,
                    "domain": group.domain,
                    "link": group.link_name,
                    "nic_gbps_node": group.nic_gbps_node,
                    "usd_per_gpu_hour": group.price_usd_per_gpu_hour,
                    "failures_per_1000_gpu_days": catalogue().find_failure_rate(group.gpu).failures_per_1000_gpu_days,
                }
                for group in zone.nodes
            ],
        }
        for zone in cluster.zones
    ]
    links = [asdict(link) for link in scenario.links.values()]
    return {"gpus": cluster.gpus, "nodes": cluster.node_count, "zones": zones, "links": links}


def _describe_strategy(scenario: Scenario, language: str) -> tuple[dict[str, Any] | None, list[Notice]]:
    """How the work is split and placed, and every rule that this breaks."""
    case = scenario.build_case()
    if scenario.strategy is None:
        notices = [notice for rule in JOB_RULES for notice in rule(case)]
        return None, notices + (scenario.placement.check(scenario.cluster, None) if scenario.placement else [])
    able, refused = find_able_frameworks(case)
    broken = list_broken_rules(case) + ([] if able else refused)
    settled = case.with_framework(able[0]).strategy if able else case.strategy
    described: dict[str, Any] = {
        "settled": settled.model_dump(mode="json"),
        "pinned": sorted(scenario.strategy.pinned),
        "ranks": settled.ranks,
        "micro_batches": settled.micro_batches(scenario.job.global_batch),
        "frameworks": [framework.name for framework in able],
        "placement": None,
        "idle": [],
    }
    if broken:
        return described, broken
    if scenario.placement is None:
        placement, idle = pack_ranks(scenario.cluster, settled)  # which splits no tensor-parallel group
        remarks = []
    else:
        placement, idle = scenario.placement, scenario.placement.list_idle(scenario.cluster)
        refused = placement.check(scenario.cluster, settled)
        if refused:
            return described, refused
        remarks = placement.list_remarks(scenario.cluster, settled)
    described["placement"] = placement.to_plain()
    described["idle"] = [
        {"zone": i.zone, "group": i.group, "count": i.count, "reason": i.reason.message(language)} for i in idle
    ]
    return described, [*list_dp_notices(scenario, settled), *(i.reason for i in idle), *remarks]


def list_dp_notices(scenario: Scenario, settled: Strategy) -> Iterator[Notice]:
    """A warning where the batch divides by fewer replicas than there is room for."""
    assert scenario.strategy is not None
    room = count_tp_room(scenario.cluster, settled.tp) // settled.model_ranks
    batch, per_replica = scenario.job.global_batch, settled.micro_batch
    if scenario.strategy.dp is not None or scenario.placement is not None or settled.dp == room:
        return
    nearest_batch = max(1, batch // (per_replica * room)) * per_replica * room
    params = {"dp": settled.dp, "room": room, "batch": batch, "micro_batch": per_replica, "near": nearest_batch}
    yield Notice(code="dp_chosen", field="job.global_batch", value=settled.dp, level="warning", params=params)
