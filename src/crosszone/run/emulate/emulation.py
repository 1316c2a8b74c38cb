"""Emulation: a scenario run between emulated zones on this machine, what was measured beside what was predicted.

    result = run_emulation(read_scenario("three-cities.yaml"), steps=20, tiny=True, framework="ddp")
    result.parts[0].name, result.parts[0].predicted_s, result.parts[0].measured_s, result.parts[0].ratio

The bundle is the one that `deploy` makes, started by the supervisor that also starts tasks. How fast a node computes is
tried on it beforehand, without any network; what the network adds is predicted from the links as the scenario has them.

The scenario is scaled down to what one machine without GPUs can run, with a notice for everything that was changed:

    zones, notices = scale_cluster(scenario.cluster, nodes_per_zone=1)        what the network is made of
    scaled = scale_scenario(loaded, zones, environments, tiny=True, framework="ddp", steps=20)
    scaled.scenario["strategy"], scaled.notices

Zones and the links between them stay as the scenario has them. Each node becomes one process on the CPU, and of a
zone's nodes a few are left, so degrees shrink: what lies in several zones (replicas, or stages) still does, what lies
inside a node (tensor and context parallelism) goes. `tiny` replaces model and batch as well.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crosszone.analyse.answer import fill_best_plan
from crosszone.cost.tiers import read_figure
from crosszone.deploy.deploy import build_bundle
from crosszone.deploy.settings import LaunchSettings, TrainingSettings
from crosszone.errors import InvalidError, MachineError, Notice
from crosszone.inputs.cluster import Cluster
from crosszone.inputs.document import dump_yaml
from crosszone.inputs.environment import Environment
from crosszone.inputs.frameworks import resolve_framework_name
from crosszone.inputs.links import build_zone_links
from crosszone.inputs.scenario import Loaded, Scenario, parse_scenario
from crosszone.inputs.strategy import Strategy
from crosszone.inputs.value import Value
from crosszone.predict.answer import build_predictor_from
from crosszone.run.emulate.network import INTERFACE, EmulatedNode, Network, find_problem
from crosszone.run.engine import find_error_line
from crosszone.run.environments import build_cluster, probe_environment
from crosszone.run.machine import call_each
from crosszone.run.measurements import WARM_UP
from crosszone.run.metrics import read_rows
from crosszone.run.monitor import ComparedPart, compare_run
from crosszone.run.runners.runner import NodeStatus
from crosszone.run.runners.supervised import SupervisedRunner
from crosszone.run.trial import run_trials
from crosszone.run.work import TaskWork, assemble_work
from crosszone.text import DEFAULT_LANGUAGE

STEPS, MIN_STEPS = 20, 5
POLL_S = 0.2
LIMIT_S = 1800.0  # How long a run may take
PORT = 29_500
TASK = "emulated"
LEARNING_RATE = 3e-3  # At which a tiny model visibly learns
MEMORY_SHARE = 0.5  # Memory of this machine that ranks may use
MIN_PART_SHARE = 0.005  # Parts of a step that are less are not shown
ReportProgress = Callable[[str, int, int], None]  # What is being done, how far it is, and of how much


class EmulatedLink(Value):
    """One direction between two zones."""

    sender: str
    """Zone that sends."""
    receiver: str
    """Zone that receives."""
    gbps: float
    """Rate that was set, Gbit/s."""
    rtt_ms: float
    """Round-trip time that was set."""
    loss_pct: float
    """Packets lost on purpose, %."""
    bytes_per_step: float | None
    """What a step sent, headers included; null: too few steps were seen."""
    predicted_bytes_per_step: float
    """What it was predicted to send, headers included."""
    late_ms: float
    """How much later than due packets were handed over, mean: what this machine's own load adds."""


class EmulationResult(Value):
    """What was run, and its measured figures beside the predicted ones."""

    name: str
    """Name of the scenario."""
    framework: str
    """Framework that ran."""
    scenario: str
    """The scenario that was run, as YAML."""
    nodes: tuple[str, ...]
    """Nodes in rank order; each was one process on the CPU."""
    steps: int
    """Steps that were run."""
    counted: int
    """Steps that count: not the first ones."""
    step: ComparedPart
    """A step."""
    parts: tuple[ComparedPart, ...]
    """Its parts as a trainer can tell them apart; they add up to it."""
    links: tuple[EmulatedLink, ...]
    """Between zones."""
    tokens_per_s: float | None
    """Tokens a second as measured; null: no step counts."""
    first_loss: float | None
    """Loss of the first step."""
    last_loss: float | None
    """Loss of the last step."""
    kept: str | None
    """Folder with the bundle, logs and metrics of every node; null: deleted."""
    notices: tuple[dict[str, Any], ...]
    """What is not as in the scenario, and what was assumed."""


def run_emulation(
    loaded: Loaded,
    language: str = DEFAULT_LANGUAGE,
    *,
    steps: int = STEPS,
    tiny: bool = False,
    framework: str | None = None,
    nodes_per_zone: int = 1,
    python: str | None = None,
    keep: Path | None = None,
    progress: ReportProgress | None = None,
) -> EmulationResult:
    """Run a scenario in emulated zones and measure it; `MachineError`: this machine cannot, or the run failed."""
    problem = find_problem()
    if problem is not None:
        raise MachineError(problem)
    if steps < MIN_STEPS:
        raise InvalidError(Notice(code="emulate_few_steps", field="--steps", value=steps, params={"least": MIN_STEPS}))
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise InvalidError(Notice(code="emulate_keep_exists", field="--keep", value=str(keep)))
    report = progress or (lambda *_: None)
    zones, cluster_notices = scale_cluster(loaded.scenario.cluster, nodes_per_zone)
    with Network.from_cluster(zones) as network:
        folder = keep or network.folder / "run"
        report("emulate_probe", 0, 1)
        nodes = _probe_nodes(network.nodes, python or sys.executable, folder)
        scaled = scale_scenario(loaded, zones, nodes, tiny=tiny, framework=framework, steps=steps, progress=progress)
        machines = {id: node.machine for id, node in zip(nodes, network.nodes, strict=True)}
        work = _make_work(scaled.scenario, scaled.framework, nodes, steps, language)
        _require_memory(work, nodes)
        report("emulate_trial", 0, 1)
        work = work.apply_trials(run_trials(nodes, machines, work), language)
        runner = SupervisedRunner(task=TASK, work=work, environments=nodes, machines=machines, port=PORT)
        traffic_samples = _run_training(runner, network, steps, report)
        rows = read_rows(runner, limit=steps)
        links = _measure_links(network, work, traffic_samples)
    emulation_notices = [*cluster_notices, *scaled.notices, *_warn_of_delays(links)]
    notices = [*(notice.as_dict(language) for notice in emulation_notices), *work.prediction["warnings"]]
    comparison = compare_run(work, rows)
    return EmulationResult(
        name=loaded.scenario.name,
        framework=scaled.framework,
        scenario=work.scenario,
        nodes=tuple(node.environment for node in work.nodes),
        steps=len(rows),
        counted=comparison.window * comparison.every,
        step=comparison.step,
        parts=tuple(part for part in comparison.parts if _is_visible(part, comparison.step)),
        links=links,
        tokens_per_s=comparison.tokens_per_s,
        first_loss=rows[0]["loss"],
        last_loss=rows[-1]["loss"],
        kept=None if keep is None else str(keep),
        notices=tuple(notices),
    )


def _is_visible(part: ComparedPart, step: ComparedPart) -> bool:
    """The part takes a share of the step worth showing, predicted or measured."""
    return max(part.predicted_s, part.measured_s or 0.0) > MIN_PART_SHARE * step.predicted_s


def _probe_nodes(nodes: Sequence[EmulatedNode], python: str, folder: Path) -> dict[str, Environment]:
    """The nodes as environments, probed at the same time, since they will compute at the same time."""

    def probe_node(numbered_node: tuple[int, EmulatedNode]) -> tuple[str, Environment]:
        number, node = numbered_node
        id = f"{node.zone}-{number}"
        unprobed = Environment(
            name=id,
            zone=node.zone,
            runner="local",
            address=node.address,
            interface=INTERFACE,
            python=python,
            workdir=str(folder),
            nic_gbps=MAX_GBPS,
        )
        environment = probe_environment(unprobed, node.machine)
        if environment.gpus:
            raise MachineError(Notice(code="emulate_gpu", value=environment.gpus))
        if "torch" not in (environment.facts or {}).get("software", {}):
            raise MachineError(Notice(code="emulate_no_torch", field="--python", value=python))
        return id, environment

    return dict(call_each(probe_node, list(enumerate(nodes))))


def _make_work(
    scenario: Mapping[str, Any], framework: str, nodes: Mapping[str, Environment], steps: int, language: str
) -> TaskWork:
    """The bundle of the scaled scenario, and what is predicted of it before any trial."""
    loaded = parse_scenario(dump_yaml(dict(scenario)), "emulated.yaml")
    training = TrainingSettings(
        lr=LEARNING_RATE, min_lr=LEARNING_RATE / 10, warmup_steps=0, checkpoint_every=10 * steps
    )
    settings = LaunchSettings(python=next(iter(nodes.values())).python, steps=steps, port=PORT, training=training)
    bundle = build_bundle(loaded, language, framework=framework, settings=settings)
    return assemble_work(bundle, nodes, {node.name: node.name for node in bundle.nodes}, language)[0]


def _require_memory(work: TaskWork, nodes: Mapping[str, Environment]) -> None:
    """Refuse a model that this machine cannot hold once for every rank."""
    peak_gib = work.prediction["memory_gib"]["peak"]["expected"]
    available_gib = min((environment.facts or {})["memory_gib"] for environment in nodes.values()) * MEMORY_SHARE
    if peak_gib * len(nodes) > available_gib:
        params = {"each": round(peak_gib, 1), "ranks": len(nodes), "have": round(available_gib, 1)}
        raise MachineError(Notice(code="emulate_memory", params=params))


def _run_training(
    runner: SupervisedRunner, network: Network, steps: int, report: ReportProgress
) -> list[tuple[int, dict[Any, Any]]]:
    """Run the task to its end; returns the packet counters after each step that was seen."""
    token = secrets.token_hex(8)
    runner.prepare()
    runner.start(token)
    samples: list[tuple[int, dict[Any, Any]]] = []
    end = time.monotonic() + LIMIT_S
    while True:
        time.sleep(POLL_S)
        statuses = runner.poll(token)
        if all(status.state == "ended" and status.code == 0 for status in statuses):
            return samples
        failed = [status for status in statuses if status.state not in ("starting", "running") and status.code != 0]
        if failed or time.monotonic() > end:
            raise _make_error(runner, token, failed)
        if any("metrics-stage" in name for status in statuses for name in status.files):
            steps_done = max((row["step"] for row in read_rows(runner, limit=1, newest=True)), default=0)
            if steps_done and (not samples or samples[-1][0] < steps_done):
                samples.append((steps_done, network.read_counters()))
                report("emulate_steps", steps_done, steps)


def _make_error(runner: SupervisedRunner, token: str, failed: Sequence[NodeStatus]) -> MachineError:
    runner.stop(token)
    if not failed:
        return MachineError(Notice(code="emulate_too_long", params={"seconds": round(LIMIT_S)}))
    first = min(failed, key=lambda status: status.stopped)
    name = runner.work.nodes[first.number].environment
    params = {"node": name, "code": "-" if first.code is None else first.code, "said": find_error_line(runner, first)}
    return MachineError(Notice(code="emulate_run_failed", params=params))


def _measure_links(
    network: Network, work: TaskWork, samples: Sequence[tuple[int, dict[Any, Any]]]
) -> tuple[EmulatedLink, ...]:
    """Every direction with its figures, what a step sent over it, and what it was predicted to send."""
    cluster = work.plan.cluster
    total = network.read_counters()
    # Before that, connections are opened and parameters are sent to all: traffic that no later step has.
    steady = [row for row in samples if row[0] >= WARM_UP]
    wire_factor = 1 / read_figure("tcp", "efficiency")
    links = []
    for link in cluster.links:
        forward, backward = (link.between, link.gbps), (link.between[::-1], link.gbps_back or link.gbps)
        for pair, gbps in (forward, backward):
            bytes_per_step = None
            if len(steady) > 1 and steady[-1][0] > steady[0][0]:
                (first, before), (last, after) = steady[0], steady[-1]
                bytes_per_step = (after[pair].bytes - before[pair].bytes) / (last - first)
            direction = " > ".join(pair)  # as a prediction names it
            payload_per_step = sum(
                row["bytes_per_step"] for row in work.prediction["communication"] if row["link"] == direction
            )
            links.append(
                EmulatedLink(
                    sender=pair[0],
                    receiver=pair[1],
                    gbps=gbps or 0.0,
                    rtt_ms=link.rtt_ms or 0.0,
                    loss_pct=link.loss_pct or 0.0,
                    bytes_per_step=bytes_per_step,
                    predicted_bytes_per_step=payload_per_step * wire_factor,
                    late_ms=total[pair].late_ms,
                )
            )
    return tuple(links)


def _warn_of_delays(links: Sequence[EmulatedLink]) -> list[Notice]:
    """A note where this machine was too busy to deliver packets in time."""
    worst = max(links, key=lambda link: link.late_ms, default=None)
    if worst is None or worst.late_ms < max(1.0, 0.1 * worst.rtt_ms):
        return []
    params = {"pair": f"{worst.sender} - {worst.receiver}"}
    return [make_note("emulate_late", round(worst.late_ms, 1), **params)]


# A million parameters: a step computes for some 10 ms, its gradients are 4 MB.
MODEL = {"layers": 4, "hidden": 128, "heads": 4, "vocab": 512, "ffn_hidden": 512}
SEQ_LEN, SAMPLES = 64, 4  # Tokens of a sample, and samples of a replica in a step
FRAMEWORKS = ("ddp", "fsdp", "deepspeed")  # Whose trainers run on CPUs
MAX_RANKS = 8
MAX_GBPS = 1.0  # More than this a machine cannot be trusted to carry while it computes as well
MIN_SYNCHRONISATIONS = 2  # How many of a run with local updates should be seen at least
_NCCL_OPTIONS = ("flows", "socket_buffer_mb", "algorithm")  # Options of communication that mean nothing to Gloo


@dataclass(frozen=True, kw_only=True)
class ScaledScenario:
    """The scenario that is run in place of another."""

    scenario: dict[str, Any]
    """As a file would give it."""
    framework: str
    notices: tuple[Notice, ...]
    """What is not as in the scenario."""


def scale_cluster(cluster: Cluster, nodes_per_zone: int) -> tuple[Cluster, list[Notice]]:
    """The zones with a few nodes each and every link spelt out; rates that this machine cannot carry are cut."""
    capped: list[tuple[str, float]] = []

    def cap_rate(gbps: float | None, link: str) -> float | None:
        if gbps is not None and gbps > MAX_GBPS:
            capped.append((link, gbps))
            return MAX_GBPS
        return gbps

    zones = [
        {
            "name": zone.name,
            "nodes": [zone.nodes[0].replace(count=min(nodes_per_zone, zone.node_count), gpus=1, hosts=()).to_plain()],
            "uplink_gbps": cap_rate(zone.uplink_gbps, zone.name),
            "downlink_gbps": cap_rate(zone.downlink_gbps, zone.name),
        }
        for zone in cluster.zones
    ]
    links = [
        {
            "between": list(link.between),
            "gbps": cap_rate(link.gbps, " - ".join(link.between)),
            "gbps_back": cap_rate(link.gbps_back, " - ".join(reversed(link.between))),
            "rtt_ms": link.rtt_ms.expected,
            "loss_pct": link.loss_pct,
        }
        for link in build_zone_links(cluster).values()
    ]
    small = cluster.replace(zones=zones, links=links, default_link=None)
    if small.node_count > MAX_RANKS:
        params = {"limit": MAX_RANKS, "zones": len(zones)}
        raise InvalidError(Notice(code="emulate_too_many_ranks", value=small.node_count, params=params))
    params = {"nodes": small.node_count, "gpus": cluster.gpus, "of": cluster.node_count}
    notices = [make_note("emulate_cpu", **params)]
    if capped:
        what, gbps = max(capped, key=lambda cap: cap[1])
        notices.append(make_note("emulate_rate_capped", gbps, what=what, limit=MAX_GBPS, count=len(capped)))
    return small, notices


def scale_scenario(
    loaded: Loaded,
    zones: Cluster,
    nodes: Mapping[str, Environment],
    *,
    tiny: bool,
    framework: str | None,
    steps: int,
    **plan_options: Any,
) -> ScaledScenario:
    """The scenario on these nodes of small zones, and, when `tiny`, with a model that takes no time."""
    asked_framework = _check_framework(framework)
    # where replicas are all that is wanted, no plan is looked for
    is_open = loaded.scenario.strategy is None and asked_framework != "ddp"
    planned = fill_best_plan(loaded, plan_options) if is_open else loaded
    scenario, job = planned.scenario, planned.scenario.job
    run_framework, pipelined, notices = _choose_framework(planned, asked_framework)
    strategy, batch = _scale_strategy(scenario, run_framework, len(nodes), pipelined=pipelined, tiny=tiny, steps=steps)
    fields: dict[str, Any] = {
        "name": scenario.name,
        "model": MODEL if tiny else scenario.to_plain()["model"],
        "job": {
            "seq_len": min(SEQ_LEN, job.seq_len) if tiny else job.seq_len,
            "global_batch": batch,
            "precision": "fp32" if tiny else job.precision,
            "optimizer": job.optimizer,
            "framework": run_framework,
        },
        "cluster": _build_cluster(zones, nodes),
        "strategy": strategy,
    }
    if tiny:
        notices.insert(0, make_note("emulate_tiny", samples=batch, seq_len=fields["job"]["seq_len"]))
    return ScaledScenario(
        scenario=fields, framework=run_framework, notices=(*notices, *_note_split(scenario, strategy))
    )


def make_note(code: str, value: Any = None, **params: Any) -> Notice:
    """A notice of level `note`."""
    return Notice(code=code, value=value, params=params, level="note")


def _check_framework(framework: str | None) -> str | None:
    name = None if framework is None else resolve_framework_name(framework)
    if name is not None and name not in FRAMEWORKS:
        params = {"allowed": list(FRAMEWORKS), "nearest": FRAMEWORKS[0]}
        raise InvalidError(Notice(code="emulate_framework", field="--framework", value=framework, params=params))
    return name


def _choose_framework(planned: Loaded, asked_framework: str | None) -> tuple[str, bool, list[Notice]]:
    """The framework that runs it, and whether stages (not replicas) lie in several zones."""
    strategy = planned.scenario.strategy
    if strategy is None:
        return "ddp", False, []
    predictor = build_predictor_from(planned)
    zone = predictor.placed.zone
    is_pipelined = bool((zone != zone[:1]).any()) and strategy.local_update is None and asked_framework != "ddp"
    if asked_framework is not None:
        return asked_framework, is_pipelined, []
    planned_framework = predictor.framework.name
    if planned_framework in FRAMEWORKS and not (planned_framework == "ddp" and is_pipelined):
        return planned_framework, is_pipelined, []
    # The trainer of ddp has no stages, and no shards of the optimizer either.
    fallback = "fsdp" if is_pipelined or strategy.zero else "ddp"
    return fallback, is_pipelined, [make_note("emulate_framework_other", planned_framework, framework=fallback)]


def _build_cluster(zones: Cluster, nodes: Mapping[str, Environment]) -> dict[str, Any]:
    """The scaled zones with their probed nodes."""
    cluster = build_cluster(nodes)
    for zone, fields in zip(zones.zones, cluster["zones"], strict=True):
        rates = {"uplink_gbps": zone.uplink_gbps, "downlink_gbps": zone.downlink_gbps}
        fields |= {key: rate for key, rate in rates.items() if rate is not None}
    return cluster | {"links": [link.to_plain() for link in zones.links]}


def _scale_strategy(
    scenario: Scenario, framework: str, ranks: int, *, pipelined: bool, tiny: bool, steps: int
) -> tuple[dict[str, Any], int]:
    """The strategy of so many ranks, one a node, and the samples of its step."""
    strategy = scenario.strategy or Strategy()
    fields = strategy.to_plain()
    scaled: dict[str, Any] = {"dp": 1, "pp": ranks} if pipelined else {"dp": ranks}
    if "communication" in fields:
        scaled["communication"] = {
            key: value for key, value in fields["communication"].items() if key not in _NCCL_OPTIONS
        }
    if framework != "ddp" and "zero" in fields and not pipelined:
        scaled["zero"] = fields["zero"]
    if strategy.local_update is not None:
        steps_per_fragment = max(
            1, min(strategy.local_update.steps, steps // MIN_SYNCHRONISATIONS) // strategy.local_update.fragments
        )
        local = fields["local_update"] | {"steps": steps_per_fragment * strategy.local_update.fragments}
        scaled["local_update"] = local | {"delay": min(strategy.local_update.delay, steps_per_fragment - 1)}
    if tiny:
        # Two micro-batches a stage: enough that a bubble is a part of the step, not most of it.
        scaled["micro_batch"], rounds = (1, 2 * ranks) if pipelined else (SAMPLES, 1)
    else:
        replicas = max(1, strategy.dp or scenario.cluster.gpus // strategy.model_ranks)
        scaled["micro_batch"] = strategy.micro_batch
        rounds = max(1, scenario.job.global_batch // (strategy.micro_batch * replicas))
    return scaled, rounds * scaled["micro_batch"] * scaled["dp"]


def _note_split(scenario: Scenario, scaled: dict[str, Any]) -> Iterator[Notice]:
    """A note where degrees are not those of the plan."""
    strategy = scenario.strategy
    if strategy is None:
        return
    before = {axis: getattr(strategy, axis) or 1 for axis in ("dp", "pp", "tp", "cp")}
    after = {axis: scaled.get(axis, 1) for axis in before}
    if before != after:
        degree_texts = [" ".join(f"{axis} {n}" for axis, n in degrees.items() if n > 1) for degrees in (before, after)]
        yield make_note("emulate_split", before=degree_texts[0] or "dp 1", after=degree_texts[1] or "dp 1")
