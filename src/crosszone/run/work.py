"""Work: what a task has decided to do: the scenario, its bundle and prediction, and which node runs where.

work = work_of(asked, links, language)
work.archive(), work.prediction["step_time_s"]["expected"], work.nodes[0].words
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from crosszone.deploy.answer import answer as bundled
from crosszone.deploy.bundle import Bundle
from crosszone.deploy.settings import LaunchSettings
from crosszone.errors import InvalidError, Notice
from crosszone.inputs.document import dump_yaml
from crosszone.inputs.measured_link import MeasuredLink
from crosszone.inputs.scenario import Loaded, parse_scenario
from crosszone.inputs.value import Value, parse
from crosszone.predict.answer import answer as predicted
from crosszone.run.request import Asked
from crosszone.run.site import cluster_of

SAMPLES_PER_RANK = 8
"""Samples of a step for each rank, where a request does not say how many."""
PLAN = "plan.yaml"


class WorkNode(Value):
    """One node of a task."""

    number: int
    """Counts from 0, in rank order."""
    environment: str
    """Environment it runs in, by id."""
    script: str
    """Script of the bundle that starts it."""
    ranks: tuple[str, ...]
    """Its ranks, first-last."""
    address: str | None
    """Its address."""


class Work(Value):
    """Everything that follows from a request."""

    scenario: str
    """Scenario with strategy and placement, as YAML."""
    bundle: Bundle
    """What is started."""
    prediction: dict[str, Any]
    """What is expected of it."""
    slowdown: float | None
    """Step over the step of the same nodes in one zone; null: there is but one."""
    nodes: tuple[WorkNode, ...]
    """Where it runs."""

    @cached_property
    def archive(self) -> bytes:
        """The bundle as a tar, the same for the same bundle."""
        held = io.BytesIO()
        with tarfile.open(fileobj=held, mode="w") as archive:
            for file in self.bundle.files:
                member = tarfile.TarInfo(file.path)
                data = file.text.encode()
                member.size, member.mode = len(data), 0o755 if file.executable else 0o644
                archive.addfile(member, io.BytesIO(data))
        return held.getvalue()

    @cached_property
    def checksum(self) -> str:
        """Of the archive."""
        return hashlib.sha256(self.archive).hexdigest()

    @property
    def predicted_step_s(self) -> float:
        """Expected seconds of a step."""
        return float(self.prediction["step_time_s"]["expected"])


def work_of(asked: Asked, links: Iterable[MeasuredLink], language: str) -> Work:
    """Plan (where no strategy is given), predict and bundle a request."""
    cluster = cluster_of(asked.environments, links)
    loaded = parse_scenario(dump_yaml(scenario_of(asked, cluster)), asked.name)
    bundle = bundled(loaded, language, framework=asked.framework, settings=settings_of(asked))
    plan = parse_scenario(next(file.text for file in bundle.files if file.path == PLAN), PLAN)
    found = predicted(plan, language).prediction
    return Work(
        scenario=plan.scenario.to_yaml(),
        bundle=bundle,
        prediction=found.model_dump(mode="json"),
        slowdown=slowdown(plan, found.step_time_s.expected),
        nodes=tuple(
            WorkNode(
                number=node.number,
                environment=_environment(asked, node.name),
                script=node.script,
                ranks=node.ranks,
                address=node.address,
            )
            for node in bundle.nodes
        ),
    )


def scenario_of(asked: Asked, cluster: dict[str, Any]) -> dict[str, Any]:
    """The scenario of a request as a file would give it."""
    job = asked.request.job
    made: dict[str, Any] = {
        "name": asked.name,
        "model": asked.model.model,
        "job": {
            "seq_len": job.seq_len,
            "global_batch": job.global_batch or SAMPLES_PER_RANK * asked.ranks,
            "precision": job.precision,
            "optimizer": job.optimizer,
        },
        "cluster": cluster,
    }
    if asked.framework is not None:
        made["job"]["framework"] = asked.framework
    degrees = asked.request.distributedConfig.strategy
    if degrees is not None:
        made["strategy"] = {
            "dp": degrees.dataParallel,
            "pp": degrees.pipelineParallel,
            "tp": degrees.tensorParallel,
        }
    return made


def settings_of(asked: Asked) -> LaunchSettings:
    """Launch settings of a request: its own, and what its dataset, model and job say."""
    given = dict(asked.request.settings)
    taken = {
        "data": asked.version.path,
        "tokenizer": asked.version.tokenizer,
        "init_from": asked.model.weights,
        "steps": asked.request.job.steps,
    }
    twice = [key for key, value in taken.items() if value is not None and key in given]
    if twice:
        raise InvalidError(Notice(code="task_setting_twice", field=f"settings.{twice[0]}", value=given[twice[0]]))
    return parse(LaunchSettings, {**given, **{key: value for key, value in taken.items() if value is not None}})


def slowdown(plan: Loaded, step_s: float) -> float | None:
    """How much longer a step takes than with the same nodes, strategy and ranks in one zone."""
    zones = plan.scenario.cluster.zones
    if len(zones) == 1:
        return None
    cluster = plan.scenario.cluster
    near = {"name": "together", "nodes": [group.to_plain() for zone in zones for group in zone.nodes]}
    together = plan.scenario.to_plain() | {"cluster": {**cluster.to_plain(), "zones": [near], "links": []}}
    together.pop("placement", None)
    found = predicted(parse_scenario(dump_yaml(together), plan.document.file)).prediction
    return step_s / found.step_time_s.expected


def _environment(asked: Asked, name: str) -> str:
    """The environment of a node: hosts carry its id; without addresses there is but one."""
    return name if name in asked.environments else next(iter(asked.environments))
