"""Work: what a task has decided to do: the scenario, its bundle and prediction, and which node runs where.

    work = work_of(asked, links, language)
    work.archive(), work.prediction["step_time_s"]["expected"], work.nodes[0].words

Whole plan: the best plan in which every process of a scenario takes part.

whole_plan(scenario, ranks=4)       -> Plan; `IllegalError` says why there is none
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import accumulate
from typing import Any

from pydantic import Field

from crosszone.deploy.bundle import Bundle, BundleUpload, pack_upload
from crosszone.deploy.deploy import build_bundle
from crosszone.deploy.settings import LaunchSettings
from crosszone.errors import IllegalError, InvalidError, Notice
from crosszone.inputs.document import dump_yaml
from crosszone.inputs.environment import Environment, MeasuredLink
from crosszone.inputs.scenario import Loaded, Scenario, parse_scenario
from crosszone.inputs.strategy import Strategy
from crosszone.inputs.value import Value, parse
from crosszone.plan.plan import Plan, apply_plan
from crosszone.plan.planner import plan
from crosszone.predict.answer import answer as predicted
from crosszone.predict.predict import build_predictor
from crosszone.run.request import Asked, launch_settings, node_names, started_by
from crosszone.run.site import cluster_of
from crosszone.run.trial import Trial
from crosszone.text import DEFAULT_LANGUAGE

TOP = 20  # Plans of a free search among which one that uses every process is looked for first


def whole_plan(scenario: Scenario, ranks: int, language: str = "en") -> Plan:
    """The fastest plan of so many ranks; what the scenario's strategy names is kept.

    A free search may leave machines idle where that is faster; whoever chose them wants them all. So degrees whose
    product is the number of processes are tried one after the other where none of its plans uses all.
    """
    found = plan(scenario, top=TOP, local_updates=False, language=language)
    whole = [one for one in found.plans if not one.idle]
    if whole:
        return whole[0]
    reason = found.plans[0].idle[0].reason["message"]
    for degrees in _degrees(scenario, ranks):
        pinned = (scenario.strategy or Strategy()).replace(**degrees)
        try:
            best = plan(scenario.replace(strategy=pinned), top=1, local_updates=False, language=language).plans
        except (IllegalError, InvalidError) as error:
            reason = error.notices[0].message(language)
            continue
        whole += [one for one in best if not one.idle]
    if not whole:
        params = {"ranks": ranks, "reason": reason}
        raise IllegalError(Notice(code="task_environments_idle", field="distributedConfig.nodeIds", params=params))
    return min(whole, key=lambda one: one.prediction.step_time_s.expected)


def _degrees(scenario: Scenario, ranks: int) -> Iterator[dict[str, int]]:
    """Data, pipeline and tensor degrees that make up the ranks and could be legal; those that are given stay."""
    given = scenario.strategy.pinned if scenario.strategy else ()
    widest = min(group.gpus for _, group in scenario.cluster.groups())
    for tp in _divisors(ranks, widest):
        for pp in _divisors(ranks // tp, scenario.model.layers):
            found = {"tp": tp, "pp": pp, "dp": ranks // tp // pp}
            if all(getattr(scenario.strategy, name) == value for name, value in found.items() if name in given):
                yield found


def _divisors(number: int, most: int) -> list[int]:
    return [one for one in range(1, min(number, most) + 1) if number % one == 0]


SAMPLES_PER_RANK = 8  # Samples of a step for each rank, where a request does not say how many
GPU_FRAMEWORKS = ("megatron",)  # Frameworks whose trainers compute on GPUs only
CPU_FRAMEWORK = "ddp"  # Framework on CPUs, where a request names none
PLAN = "plan.yaml"
DEFAULT_PYTHON = "python3"  # Python of an environment that names none: its PATH says where torchrun is


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
    environments: dict[str, Environment] = Field(default_factory=dict)
    """Its environments as they were when it was decided, by id, without their facts; the master first."""
    port: int | None = None
    """Port of the first node at which ranks meet; null: not chosen yet, the bundle's own."""

    @property
    def archive(self) -> bytes:
        """The bundle as a tar, the same for the same bundle."""
        return self._parcel.data

    @property
    def checksum(self) -> str:
        """Of the archive."""
        return self._parcel.checksum

    @cached_property
    def _parcel(self) -> BundleUpload:
        return pack_upload(self.bundle)

    @property
    def predicted_step_s(self) -> float:
        """Expected seconds of a step."""
        return float(self.prediction["step_time_s"]["expected"])

    def place_of(self, environment: str) -> tuple[str, int]:
        """Zone of an environment, and number of its node group there: groups follow the order of the environments."""
        zone = self.environments[environment].zone
        before = [id for id, one in self.environments.items() if one.zone == zone].index(environment)
        cluster = parse_scenario(self.scenario, PLAN).scenario.cluster
        ends = accumulate(group.count for group in cluster.zones[cluster.zone_index(zone)].nodes)
        return zone, next(number for number, end in enumerate(ends) if before < end)

    def refined(self, trials: Iterable[Trial], language: str = DEFAULT_LANGUAGE) -> Work:
        """The same bundle with a prediction that knows how fast each tried environment computes."""
        plan = parse_scenario(self.scenario, PLAN).scenario
        zones = {zone.name: list(zone.nodes) for zone in plan.cluster.zones}
        for trial in trials:
            zone, number = self.place_of(trial.environment)
            zones[zone][number] = zones[zone][number].replace(speed=float(f"{trial.speed:.4g}"))
        cluster = plan.cluster.replace(zones=[one.replace(nodes=zones[one.name]) for one in plan.cluster.zones])
        loaded = parse_scenario(plan.replace(cluster=cluster).to_yaml(), PLAN)
        found = predicted(loaded, language).prediction
        slower, told = slowdown(loaded, found.step_time_s.expected), found.model_dump(mode="json")
        return self.replace(scenario=loaded.scenario.to_yaml(), prediction=told, slowdown=slower)


def work_of(asked: Asked, links: Iterable[MeasuredLink], language: str) -> Work:
    """Plan what a request leaves open so that all its environments take part, predict and bundle it."""
    _alike(asked)
    cluster = cluster_of(asked.environments, links)
    loaded = parse_scenario(dump_yaml(scenario_of(asked, cluster)), asked.name)
    best = whole_plan(loaded.scenario, asked.ranks, language)
    loaded = loaded._replace(scenario=led(apply_plan(loaded.scenario, best), asked.environments[asked.master].zone))
    launcher = started_by(asked.environments.values())
    bundle = build_bundle(loaded, language, framework=asked.framework, launcher=launcher, settings=settings_of(asked))
    plan = parse_scenario(next(file.text for file in bundle.files if file.path == PLAN), PLAN)
    found = predicted(plan, language).prediction
    environment_of = node_names(asked.environments)
    first = environment_of[bundle.nodes[0].name]
    if first != asked.master:
        moved = Notice(code="task_master_moved", level="note", value=first, params={"master": asked.master})
        found = found.model_copy(update={"warnings": (*found.warnings, moved.as_dict(language))})
    return Work(
        scenario=plan.scenario.to_yaml(),
        bundle=bundle,
        prediction=found.model_dump(mode="json"),
        slowdown=slowdown(plan, found.step_time_s.expected),
        nodes=tuple(
            WorkNode(
                number=node.number,
                environment=environment_of[node.name],
                script=node.script,
                ranks=node.ranks,
                address=node.address,
            )
            for node in bundle.nodes
        ),
        environments={id: one.replace(facts=None) for id, one in asked.environments.items()},
    )


def led(plan: Scenario, zone: str) -> Scenario:
    """The plan with its ranks counted from the first node of a zone on, where they meet; the same where it cannot be:
    where stages or replicas have shares of their own, their order stays.
    """
    placement, strategy = plan.placement, plan.strategy
    if placement is None or strategy is None or strategy.uneven or strategy.layers_per_stage:
        return plan
    blocks = sorted(placement.blocks, key=lambda one: (one.zone != zone, one.zone == zone and one.group > 0))
    other = plan.replace(placement=placement.replace(blocks=blocks))
    try:
        build_predictor(other)
    except IllegalError:
        return plan
    return other


def _alike(asked: Asked) -> None:
    """Refuse GPUs together with CPUs, which have no common way to talk, and a framework that needs GPUs without any."""
    bare = [id for id, one in asked.environments.items() if not one.gpus]
    if not bare:
        return
    if len(bare) < len(asked.environments):
        params = {"with_gpus": [id for id in asked.environments if id not in bare], "without": bare}
        raise InvalidError(Notice(code="environments_mixed", field="distributedConfig.nodeIds", params=params))
    if asked.framework in GPU_FRAMEWORKS:
        field, params = "distributedConfig.framework", {"environments": bare}
        raise InvalidError(Notice(code="framework_needs_gpus", field=field, value=asked.framework, params=params))


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
    framework = asked.framework or (None if asked.together.gpus else CPU_FRAMEWORK)
    if framework is not None:
        made["job"]["framework"] = framework
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
    pythons = {one.python for one in asked.environments.values()}
    own = {"python": pythons.pop()} if len(pythons) == 1 and pythons != {DEFAULT_PYTHON} else {}
    given = {**launch_settings(asked.environments), **own, **asked.request.settings}
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
