"""What follows from a scenario before anything is predicted: one description for CLI, API and page."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from crosszone.errors import IllegalError, Notice
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.cluster import Cluster
from crosszone.inputs.flops import TRAINING_PASSES, forward_flops_per_token
from crosszone.inputs.job import Job
from crosszone.inputs.model import Model
from crosszone.inputs.parameters import parameters
from crosszone.inputs.placement import packed
from crosszone.inputs.rules import able_frameworks, broken_rules
from crosszone.inputs.scenario import Loaded, Scenario, scenario_notices
from crosszone.inputs.states import state_bytes
from crosszone.text import DEFAULT_LANGUAGE


def describe(loaded: Loaded, language: str = DEFAULT_LANGUAGE) -> dict[str, Any]:
    """A scenario with everything that follows from it, and every notice with its line."""
    scenario = loaded.scenario
    strategy, broken = _strategy(scenario, language)
    return {
        "scenario": scenario.to_fields(),
        "model": describe_model(scenario.model, scenario.job.seq_len),
        "job": _job(scenario.job),
        "cluster": _cluster(scenario, scenario.cluster),
        "strategy": strategy,
        "legal": not broken,
        "notices": [notice.as_dict(language) for notice in _remarks(loaded, broken)],
    }


def remarks_on(loaded: Loaded) -> list[Notice]:
    """Everything there is to say about a scenario: broken rules first, then warnings and notes."""
    return _remarks(loaded, _strategy(loaded.scenario, DEFAULT_LANGUAGE)[1])


def _remarks(loaded: Loaded, broken: list[Notice]) -> list[Notice]:
    order = {"error": 0, "warning": 1, "note": 2}
    found = [loaded.document.placed(n) for n in (*broken, *loaded.notices, *scenario_notices(loaded.scenario))]
    return sorted(found, key=lambda notice: order[notice.level])


def describe_model(model: Model, seq_len: int) -> dict[str, Any]:
    """Parameters by part and operations per token."""
    counted, forward = parameters(model), forward_flops_per_token(model, seq_len)
    return {
        "name": model.name,
        "kind": model.kind,
        "attention": model.attention,
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "ffn_hidden": model.ffn_hidden,
        "vocab": model.vocab,
        "parameters": {"parts": counted.parts, "total": counted.total, "active": counted.active},
        "forward_flops_per_token": {"parts": forward.parts, "total": forward.total, "seq_len": seq_len},
        "training_flops_per_token": TRAINING_PASSES * forward.total,
    }


def _job(job: Job) -> dict[str, Any]:
    state = state_bytes(job)
    return {
        "seq_len": job.seq_len,
        "global_batch": job.global_batch,
        "tokens_per_step": job.tokens_per_step,
        "total_tokens": job.total_tokens,
        "steps": job.steps,
        "precision": job.precision,
        "optimizer": job.optimizer,
        "framework": job.framework,
        "state_bytes_per_parameter": {**asdict(state), "total": state.total},
    }


def _cluster(scenario: Scenario, cluster: Cluster) -> dict[str, Any]:
    zones = [
        {
            "name": zone.name,
            "region": zone.region.name if zone.region else None,
            "place": zone.region.place if zone.region else None,
            "place_zh": zone.region.place_zh if zone.region else None,
            "lat": zone.region.lat if zone.region else None,
            "lon": zone.region.lon if zone.region else None,
            "nodes": zone.node_count,
            "gpus": zone.gpus,
            "gpu_kinds": sorted({group.gpu.name for group in zone.nodes}),
            "memory_gib": sum(group.total_gpus * group.gpu.memory_gib for group in zone.nodes),
            "uplink_gbps": zone.uplink_gbps,
            "carbon_g_per_kwh": _carbon(zone.carbon_g_per_kwh, zone.region),
            "groups": [
                {
                    "count": group.count,
                    "gpus": group.gpus,
                    "gpu": group.gpu.name,
                    "domain": group.domain,
                    "link": _link_name(group),
                    "nic_gbps_node": group.nic_gbps_node,
                    "usd_per_gpu_hour": _price(group.usd_per_gpu_hour, group.gpu.usd_per_hour),
                    "failures_per_1000_gpu_days": catalogue().failure_rate(group.gpu).failures_per_1000_gpu_days,
                }
                for group in zone.nodes
            ],
        }
        for zone in cluster.zones
    ]
    links = [asdict(link) for link in scenario.links().values()]
    return {"gpus": cluster.gpus, "nodes": cluster.node_count, "zones": zones, "links": links}


def _strategy(scenario: Scenario, language: str) -> tuple[dict[str, Any] | None, list[Notice]]:
    case = scenario.case()
    if case is None:
        return None, []
    settled, broken = case.strategy, broken_rules(case)
    able, refusals = able_frameworks(case)
    if not able:
        broken = [*broken, *refusals]
    described: dict[str, Any] = {
        "settled": settled.model_dump(mode="json"),
        "pinned": sorted(settled.pinned & (scenario.strategy.pinned if scenario.strategy else frozenset())),
        "ranks": settled.ranks,
        "micro_batches": settled.micro_batches(scenario.job.global_batch),
        "frameworks": [framework.name for framework in able],
        "placement": None,
        "idle": [],
    }
    if broken:
        return described, broken
    try:
        placement, idle = (scenario.placement, None) if scenario.placement else packed(scenario.cluster, settled)
    except IllegalError as error:
        return described, list(error.notices)
    torn = placement.check(scenario.cluster, settled) if placement else []
    if torn or placement is None:
        return described, torn
    left = placement.idle(scenario.cluster) if idle is None else idle
    described["placement"] = placement.to_plain()
    described["idle"] = [
        {"zone": i.zone, "group": i.group, "count": i.count, "reason": i.reason.message(language)} for i in left
    ]
    return described, []


def _carbon(typed: float | None, region: Any) -> float | None:
    return typed if typed is not None else (region.carbon_g_per_kwh if region else None)


def _price(typed: float | None, usual: float | None) -> float | None:
    return usual if typed is None else typed


def _link_name(group: Any) -> str:
    return group.gpu.link.kind if group.fast_link else f"pcie{group.gpu.pcie.generation}"
