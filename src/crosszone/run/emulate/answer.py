"""Answer: a scenario run between emulated zones on this machine, what was measured beside what was predicted.

    found = emulated(read_scenario("three-cities.yaml"), steps=20, tiny=True, framework="ddp")
    found.parts[0].name, found.parts[0].predicted_s, found.parts[0].measured_s, found.parts[0].ratio

The bundle is the one that `deploy` makes, started by the supervisor that also starts tasks. How fast a node computes is
tried on it beforehand, without any network; what the network adds is predicted from the links as the scenario has them.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from crosszone.cost.tiers import figure
from crosszone.deploy.deploy import build_bundle
from crosszone.deploy.settings import LaunchSettings, TrainingSettings
from crosszone.errors import InvalidError, MachineError, Notice
from crosszone.inputs.document import dump_yaml
from crosszone.inputs.environment import Environment
from crosszone.inputs.scenario import Loaded, parse_scenario
from crosszone.inputs.value import Value
from crosszone.predict.answer import answer as predicted
from crosszone.run.emulate.network import INTERFACE, EmulatedNode, Network, why_not
from crosszone.run.emulate.scale_down import MOST_GBPS, note, shrunk, small_zones
from crosszone.run.engine import last_words
from crosszone.run.measurements import WARM_UP
from crosszone.run.metrics import rows_of
from crosszone.run.monitor import TwinPart, twin_of
from crosszone.run.probe import probed
from crosszone.run.runners.runner import NodeStatus
from crosszone.run.runners.supervised import SupervisedRunner
from crosszone.run.trial import measured_steps
from crosszone.run.work import PLAN, Work, WorkNode
from crosszone.text import DEFAULT_LANGUAGE

STEPS, LEAST_STEPS = 20, 5
LOOK_S = 0.2
LIMIT_S = 1800.0  # How long a run may take
PORT = 29_500
TASK = "emulated"
LEARNING_RATE = 3e-3  # At which a tiny model visibly learns
OVERHEAD = 0.5  # Memory of this machine that ranks may use
LEAST_SHARE = 0.005  # Parts of a step that are less are not told
Told = Callable[[str, int, int], None]  # What is being done, how much of it is, and of how much


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


class Emulated(Value):
    """What came out."""

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
    step: TwinPart
    """A step."""
    parts: tuple[TwinPart, ...]
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


def emulated(
    loaded: Loaded,
    language: str = DEFAULT_LANGUAGE,
    *,
    steps: int = STEPS,
    tiny: bool = False,
    framework: str | None = None,
    nodes_per_zone: int = 1,
    python: str | None = None,
    keep: Path | None = None,
    progress: Told | None = None,
) -> Emulated:
    """Run a scenario in emulated zones and measure it; `MachineError`: this machine cannot, or the run failed."""
    missing = why_not()
    if missing is not None:
        raise MachineError(missing)
    if steps < LEAST_STEPS:
        raise InvalidError(
            Notice(code="emulate_few_steps", field="--steps", value=steps, params={"least": LEAST_STEPS})
        )
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise InvalidError(Notice(code="emulate_keep_exists", field="--keep", value=str(keep)))
    tell = progress or (lambda *_: None)
    zones, told = small_zones(loaded.scenario.cluster, nodes_per_zone)
    with Network.of(zones) as network:
        folder = keep or network.folder / "run"
        tell("emulate_probe", 0, 1)
        nodes = _probed(network.nodes, python or sys.executable, folder)
        small = shrunk(loaded, zones, nodes, tiny=tiny, framework=framework, steps=steps, progress=progress)
        machines = {id: node.machine for id, node in zip(nodes, network.nodes, strict=True)}
        work = _work(small.scenario, small.framework, nodes, steps, language)
        _require_memory(work, nodes)
        tell("emulate_trial", 0, 1)
        work = work.refined(measured_steps(nodes, machines, work), language)
        runner = SupervisedRunner(task=TASK, work=work, environments=nodes, machines=machines, port=PORT)
        samples = _run(runner, network, steps, tell)
        rows = rows_of(runner, limit=steps)
        links = _links(network, work, samples)
    given = [*told, *small.notices, *_late(links)]
    notices = [*(one.as_dict(language) for one in given), *work.prediction["warnings"]]
    twin = twin_of(work, rows)
    return Emulated(
        name=loaded.scenario.name,
        framework=small.framework,
        scenario=work.scenario,
        nodes=tuple(node.environment for node in work.nodes),
        steps=len(rows),
        counted=twin.window * twin.every,
        step=twin.step,
        parts=tuple(one for one in twin.parts if _matters(one, twin.step)),
        links=links,
        tokens_per_s=twin.tokens_per_s,
        first_loss=rows[0]["loss"],
        last_loss=rows[-1]["loss"],
        kept=None if keep is None else str(keep),
        notices=tuple(notices),
    )


def _matters(part: TwinPart, step: TwinPart) -> bool:
    """It is a part of the step that can be seen, predicted or measured."""
    return max(part.predicted_s, part.measured_s or 0.0) > LEAST_SHARE * step.predicted_s


def _probed(nodes: Sequence[EmulatedNode], python: str, folder: Path) -> dict[str, Environment]:
    """The nodes as environments, asked at the same time, for they will compute at the same time."""

    def asked(at: tuple[int, EmulatedNode]) -> tuple[str, Environment]:
        number, node = at
        id = f"{node.zone}-{number}"
        bare = Environment(
            name=id,
            zone=node.zone,
            runner="local",
            address=node.address,
            interface=INTERFACE,
            python=python,
            workdir=str(folder),
            nic_gbps=MOST_GBPS,
        )
        found = probed(bare, node.machine)
        if found.gpus:
            raise MachineError(Notice(code="emulate_gpu", value=found.gpus))
        if "torch" not in (found.facts or {}).get("software", {}):
            raise MachineError(Notice(code="emulate_no_torch", field="--python", value=python))
        return id, found

    with ThreadPoolExecutor(max_workers=len(nodes)) as beside:
        return dict(beside.map(asked, enumerate(nodes)))


def _work(
    scenario: Mapping[str, Any], framework: str, nodes: Mapping[str, Environment], steps: int, language: str
) -> Work:
    """The bundle of the small scenario, and what is expected of it before anything was tried."""
    loaded = parse_scenario(dump_yaml(dict(scenario)), "emulated.yaml")
    rates = TrainingSettings(lr=LEARNING_RATE, min_lr=LEARNING_RATE / 10, warmup_steps=0, checkpoint_every=10 * steps)
    settings = LaunchSettings(python=next(iter(nodes.values())).python, steps=steps, port=PORT, training=rates)
    bundle = build_bundle(loaded, language, framework=framework, settings=settings)
    plan = parse_scenario(next(file.text for file in bundle.files if file.path == PLAN), PLAN)
    return Work(
        scenario=plan.scenario.to_yaml(),
        bundle=bundle,
        prediction=predicted(plan, language).prediction.model_dump(mode="json"),
        slowdown=None,
        nodes=tuple(
            WorkNode(
                number=node.number,
                environment=node.name,
                script=node.script,
                ranks=node.ranks,
                address=node.address,
            )
            for node in bundle.nodes
        ),
        environments={id: one.replace(facts=None) for id, one in nodes.items()},
    )


def _require_memory(work: Work, nodes: Mapping[str, Environment]) -> None:
    """Refuse a model that this machine cannot hold once for every rank."""
    each = work.prediction["memory_gib"]["peak"]["expected"]
    have = min((one.facts or {})["memory_gib"] for one in nodes.values()) * OVERHEAD
    if each * len(nodes) > have:
        params = {"each": round(each, 1), "ranks": len(nodes), "have": round(have, 1)}
        raise MachineError(Notice(code="emulate_memory", params=params))


def _run(runner: SupervisedRunner, network: Network, steps: int, tell: Told) -> list[tuple[int, dict[Any, Any]]]:
    """Run it to its end; what had been sent after which step."""
    token = secrets.token_hex(8)
    runner.prepare()
    runner.start(token)
    samples: list[tuple[int, dict[Any, Any]]] = []
    end = time.monotonic() + LIMIT_S
    while True:
        time.sleep(LOOK_S)
        seen = runner.poll(token)
        if all(one.state == "ended" and one.code == 0 for one in seen):
            return samples
        failed = [one for one in seen if one.state not in ("starting", "running") and one.code != 0]
        if failed or time.monotonic() > end:
            raise _failure(runner, token, failed)
        if any("metrics-stage" in name for one in seen for name in one.files):
            done = max((row["step"] for row in rows_of(runner, limit=1, newest=True)), default=0)
            if done and (not samples or samples[-1][0] < done):
                samples.append((done, network.traffic()))
                tell("emulate_steps", done, steps)


def _failure(runner: SupervisedRunner, token: str, failed: Sequence[NodeStatus]) -> MachineError:
    runner.stop(token)
    if not failed:
        return MachineError(Notice(code="emulate_too_long", params={"seconds": round(LIMIT_S)}))
    first = min(failed, key=lambda one: one.stopped)
    name = runner.work.nodes[first.number].environment
    params = {"node": name, "code": "-" if first.code is None else first.code, "said": last_words(runner, first)}
    return MachineError(Notice(code="emulate_run_failed", params=params))


def _links(network: Network, work: Work, samples: Sequence[tuple[int, dict[Any, Any]]]) -> tuple[EmulatedLink, ...]:
    """Every direction with its figures, what a step sent over it, and what it was predicted to send."""
    cluster = parse_scenario(work.scenario, PLAN).scenario.cluster
    whole = network.traffic()
    seen = [one for one in samples if one[0] >= WARM_UP]
    wire = 1 / figure("tcp", "efficiency")
    found = []
    for link in cluster.links:
        there, back = (link.between, link.gbps), (link.between[::-1], link.gbps_back or link.gbps)
        for pair, gbps in (there, back):
            sent = None
            if len(seen) > 1 and seen[-1][0] > seen[0][0]:
                (first, before), (last, after) = seen[0], seen[-1]
                sent = (after[pair].bytes - before[pair].bytes) / (last - first)
            expected = sum(
                one["bytes_per_step"] for one in work.prediction["communication"] if one["link"] == _named(*pair)
            )
            found.append(
                EmulatedLink(
                    sender=pair[0],
                    receiver=pair[1],
                    gbps=gbps or 0.0,
                    rtt_ms=link.rtt_ms or 0.0,
                    loss_pct=link.loss_pct or 0.0,
                    bytes_per_step=sent,
                    predicted_bytes_per_step=expected * wire,
                    late_ms=whole[pair].late_ms,
                )
            )
    return tuple(found)


def _named(sender: str, receiver: str) -> str:
    """A direction as a prediction names it."""
    return f"{sender} > {receiver}"


def _late(links: Sequence[EmulatedLink]) -> list[Notice]:
    """That this machine was too busy to carry packets when they were due."""
    worst = max(links, key=lambda one: one.late_ms, default=None)
    if worst is None or worst.late_ms < max(1.0, 0.1 * worst.rtt_ms):
        return []
    params = {"pair": f"{worst.sender} - {worst.receiver}"}
    return [note("emulate_late", round(worst.late_ms, 1), **params)]
