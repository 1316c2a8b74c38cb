"""Tiny: a scenario shrunk to what one machine without GPUs can run, with everything that was shrunk told.

    zones, told = small_zones(scenario.cluster, nodes_per_zone=1)        what the network is made of
    small = shrunk(loaded, zones, environments, tiny=True, framework="ddp", steps=20)
    small.scenario["strategy"], small.notices

Zones and the links between them stay as the scenario has them. Each node becomes one process on the CPU, and of a
zone's nodes a few are left, so degrees shrink: what lies in several zones (replicas, or stages) still does, what lies
inside a node (tensor and context parallelism) goes. `tiny` replaces model and batch as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from crosszone.errors import InputError, InvalidError, Notice
from crosszone.inputs.cluster import Cluster
from crosszone.inputs.environment import Environment
from crosszone.inputs.frameworks import framework_of_alias
from crosszone.inputs.links import zone_links
from crosszone.inputs.scenario import Loaded, Scenario
from crosszone.inputs.strategy import Strategy
from crosszone.plan.plan import apply_plan
from crosszone.plan.planner import plan, select_best
from crosszone.predict.answer import build_predictor_from
from crosszone.run.site import cluster_of

# A million parameters: a step computes for some 10 ms, its gradients are 4 MB.
MODEL = {"layers": 4, "hidden": 128, "heads": 4, "vocab": 512, "ffn_hidden": 512}
SEQ_LEN, SAMPLES = 64, 4  # Tokens of a sample, and samples of a replica in a step
FRAMEWORKS = ("ddp", "fsdp", "deepspeed")  # Whose trainers run on CPUs
MOST_RANKS = 8
MOST_GBPS = 1.0  # More than this a machine cannot be trusted to carry while it computes as well
SYNCHRONISATIONS = 2  # How many of a run with local updates should be seen at least
_OF_NCCL = ("flows", "socket_buffer_mb", "algorithm")  # Options of communication that mean nothing to Gloo


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """The scenario that is run in place of another."""

    scenario: dict[str, Any]
    """As a file would give it."""
    framework: str
    notices: tuple[Notice, ...]
    """What is not as in the scenario."""


def small_zones(cluster: Cluster, nodes_per_zone: int) -> tuple[Cluster, list[Notice]]:
    """The zones with a few nodes each and every link spelt out; rates that this machine cannot carry are cut."""
    capped: list[tuple[str, float]] = []

    def carried(gbps: float | None, what: str) -> float | None:
        if gbps is not None and gbps > MOST_GBPS:
            capped.append((what, gbps))
            return MOST_GBPS
        return gbps

    zones = [
        {
            "name": zone.name,
            "nodes": [zone.nodes[0].replace(count=min(nodes_per_zone, zone.node_count), gpus=1, hosts=()).to_plain()],
            "uplink_gbps": carried(zone.uplink_gbps, zone.name),
            "downlink_gbps": carried(zone.downlink_gbps, zone.name),
        }
        for zone in cluster.zones
    ]
    links = [
        {
            "between": list(link.between),
            "gbps": carried(link.gbps, " - ".join(link.between)),
            "gbps_back": carried(link.gbps_back, " - ".join(reversed(link.between))),
            "rtt_ms": link.rtt_ms.expected,
            "loss_pct": link.loss_pct,
        }
        for link in zone_links(cluster).values()
    ]
    made = cluster.replace(zones=zones, links=links, default_link=None)
    if made.node_count > MOST_RANKS:
        params = {"limit": MOST_RANKS, "zones": len(zones)}
        raise InvalidError(Notice(code="emulate_too_many_ranks", value=made.node_count, params=params))
    params = {"nodes": made.node_count, "gpus": cluster.gpus, "of": cluster.node_count}
    told = [note("emulate_cpu", **params)]
    if capped:
        what, gbps = max(capped, key=lambda one: one[1])
        told.append(note("emulate_rate_capped", gbps, what=what, limit=MOST_GBPS, count=len(capped)))
    return made, told


def shrunk(
    loaded: Loaded,
    zones: Cluster,
    nodes: Mapping[str, Environment],
    *,
    tiny: bool,
    framework: str | None,
    steps: int,
    **watched: Any,
) -> Shrunk:
    """The scenario on these nodes of small zones, and, when `tiny`, with a model that takes no time."""
    wanted = _wanted(framework)
    planned = _planned(loaded, wanted, watched)
    scenario, job = planned.scenario, planned.scenario.job
    chosen, pipelined, told = _framework(planned, wanted)
    strategy, batch = _strategy(scenario, chosen, len(nodes), pipelined=pipelined, tiny=tiny, steps=steps)
    made: dict[str, Any] = {
        "name": scenario.name,
        "model": MODEL if tiny else scenario.to_plain()["model"],
        "job": {
            "seq_len": min(SEQ_LEN, job.seq_len) if tiny else job.seq_len,
            "global_batch": batch,
            "precision": "fp32" if tiny else job.precision,
            "optimizer": job.optimizer,
            "framework": chosen,
        },
        "cluster": _cluster(zones, nodes),
        "strategy": strategy,
    }
    if tiny:
        told.insert(0, note("emulate_tiny", samples=batch, seq_len=made["job"]["seq_len"]))
    return Shrunk(scenario=made, framework=chosen, notices=(*told, *_split_told(scenario, strategy)))


def note(code: str, value: Any = None, **params: Any) -> Notice:
    """A remark."""
    return Notice(code=code, value=value, params=params, level="note")


def _wanted(framework: str | None) -> str | None:
    named = None if framework is None else framework_of_alias(framework)
    if named is not None and named not in FRAMEWORKS:
        params = {"allowed": list(FRAMEWORKS), "nearest": FRAMEWORKS[0]}
        raise InvalidError(Notice(code="emulate_framework", field="--framework", value=framework, params=params))
    return named


def _planned(loaded: Loaded, wanted: str | None, watched: dict[str, Any]) -> Loaded:
    """The scenario with its strategy, or its best plan; where replicas are all that is wanted, none is looked for."""
    if loaded.scenario.strategy is not None or wanted == "ddp":
        return loaded
    try:
        found = select_best(plan(loaded.scenario, top=1, **watched))
    except InputError as error:
        raise type(error)(*map(loaded.document.placed, error.notices)) from None
    return loaded._replace(scenario=apply_plan(loaded.scenario, found))


def _framework(planned: Loaded, wanted: str | None) -> tuple[str, bool, list[Notice]]:
    """The framework that runs it, and whether stages (not replicas) lie in several zones."""
    strategy = planned.scenario.strategy
    if strategy is None:
        return "ddp", False, []
    found = build_predictor_from(planned)
    zone = found.site.zone
    pipelined = bool((zone != zone[:1]).any()) and strategy.local_update is None and wanted != "ddp"
    if wanted is not None:
        return wanted, pipelined, []
    own = found.framework.name
    if own in FRAMEWORKS and not (own == "ddp" and pipelined):
        return own, pipelined, []
    instead = "fsdp" if pipelined or strategy.zero else "ddp"
    return instead, pipelined, [note("emulate_framework_other", own, framework=instead)]


def _cluster(zones: Cluster, nodes: Mapping[str, Environment]) -> dict[str, Any]:
    """The small zones with their nodes as they were found to be."""
    made = cluster_of(nodes)
    for zone, fields in zip(zones.zones, made["zones"], strict=True):
        given = {"uplink_gbps": zone.uplink_gbps, "downlink_gbps": zone.downlink_gbps}
        fields |= {key: rate for key, rate in given.items() if rate is not None}
    return made | {"links": [link.to_plain() for link in zones.links]}


def _strategy(
    scenario: Scenario, framework: str, ranks: int, *, pipelined: bool, tiny: bool, steps: int
) -> tuple[dict[str, Any], int]:
    """The strategy of so many ranks, one a node, and the samples of its step."""
    given = scenario.strategy or Strategy()
    kept = given.to_plain()
    made: dict[str, Any] = {"dp": 1, "pp": ranks} if pipelined else {"dp": ranks}
    if "communication" in kept:
        made["communication"] = {key: value for key, value in kept["communication"].items() if key not in _OF_NCCL}
    if framework != "ddp" and "zero" in kept and not pipelined:
        made["zero"] = kept["zero"]
    if given.local_update is not None:
        each = max(1, min(given.local_update.steps, steps // SYNCHRONISATIONS) // given.local_update.fragments)
        local = kept["local_update"] | {"steps": each * given.local_update.fragments}
        made["local_update"] = local | {"delay": min(given.local_update.delay, each - 1)}
    if tiny:
        made["micro_batch"], rounds = (1, 2 * ranks) if pipelined else (SAMPLES, 1)
    else:
        replicas = max(1, given.dp or scenario.cluster.gpus // given.model_ranks)
        made["micro_batch"] = given.micro_batch
        rounds = max(1, scenario.job.global_batch // (given.micro_batch * replicas))
    return made, rounds * made["micro_batch"] * made["dp"]


def _split_told(scenario: Scenario, made: dict[str, Any]) -> Iterator[Notice]:
    """That degrees are not those of the plan."""
    given = scenario.strategy
    if given is None:
        return
    before = {axis: getattr(given, axis) or 1 for axis in ("dp", "pp", "tp", "cp")}
    after = {axis: made.get(axis, 1) for axis in before}
    if before != after:
        shown = [" ".join(f"{axis} {n}" for axis, n in degrees.items() if n > 1) for degrees in (before, after)]
        yield note("emulate_split", before=shown[0] or "dp 1", after=shown[1] or "dp 1")
