"""Work: what a task does: the scenario, its bundle and prediction, and which node runs where.

    work = build_work(checked_request, links, language)
    work.archive, work.prediction["step_time_s"]["expected"], work.nodes[0].script

The plan is the best one in which every process of a scenario takes part:

    plan_all_ranks(scenario, ranks=4)       -> Plan; `IllegalError` says why there is none

Before a task is created, a preview says what the chosen environments have together and what to expect:

    preview = preview_task(request, registered, links, "zh")
    preview.selection.gpus, preview.master, preview.step_time_s, preview.slowdown, preview.notices
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import accumulate
from typing import Any

from pydantic import Field

from crosszone.deploy.bundle import Bundle, BundleUpload, pack_upload
from crosszone.deploy.deploy import build_bundle
from crosszone.deploy.settings import LaunchSettings
from crosszone.errors import IllegalError, InputError, InvalidError, Notice
from crosszone.inputs.dataset import DatasetVersion, TrainingModel
from crosszone.inputs.document import dump_yaml
from crosszone.inputs.environment import Environment, MeasuredLink, Selection, build_selection, choose_master
from crosszone.inputs.frameworks import resolve_framework_name
from crosszone.inputs.scenario import Loaded, Scenario, parse_scenario
from crosszone.inputs.strategy import Strategy
from crosszone.inputs.value import Value, parse
from crosszone.plan.plan import Plan, apply_plan
from crosszone.plan.planner import plan
from crosszone.predict.answer import answer as predicted
from crosszone.predict.predict import build_predictor
from crosszone.run.environments import build_cluster
from crosszone.run.request import (
    CheckedRequest,
    RegisteredEntries,
    TaskRequest,
    allocate_nodes,
    derive_launch_settings,
    find_runner_kind,
    map_node_names,
)
from crosszone.text import DEFAULT_LANGUAGE

SEARCHED_PLANS = 20  # Plans of a free search among which one that uses every process is looked for first


def plan_all_ranks(scenario: Scenario, ranks: int, language: str = "en") -> Plan:
    """The fastest plan of so many ranks; what the scenario's strategy names is kept.

    A free search may leave machines idle where that is faster; whoever chose them wants them all. So degrees whose
    product is the number of processes are tried one after the other where none of its plans uses all.
    """
    search = plan(scenario, top=SEARCHED_PLANS, local_updates=False, language=language)
    complete = [candidate for candidate in search.plans if not candidate.idle]
    if complete:
        return complete[0]
    reason = search.plans[0].idle[0].reason["message"]
    for degrees in _iterate_degrees(scenario, ranks):
        pinned = (scenario.strategy or Strategy()).replace(**degrees)
        try:
            plans = plan(scenario.replace(strategy=pinned), top=1, local_updates=False, language=language).plans
        except (IllegalError, InvalidError) as error:
            reason = error.notices[0].message(language)
            continue
        complete += [candidate for candidate in plans if not candidate.idle]
    if not complete:
        params = {"ranks": ranks, "reason": reason}
        raise IllegalError(Notice(code="task_environments_idle", field="distributedConfig.nodeIds", params=params))
    return min(complete, key=lambda candidate: candidate.prediction.step_time_s.expected)


def _iterate_degrees(scenario: Scenario, ranks: int) -> Iterator[dict[str, int]]:
    """Data, pipeline and tensor degrees that make up the ranks and could be legal; those that are given stay."""
    pinned = scenario.strategy.pinned if scenario.strategy else ()
    widest = min(group.gpus for _, group in scenario.cluster.zone_groups)
    for tp in _list_divisors(ranks, widest):
        for pp in _list_divisors(ranks // tp, scenario.model.layers):
            degrees = {"tp": tp, "pp": pp, "dp": ranks // tp // pp}
            if all(getattr(scenario.strategy, name) == value for name, value in degrees.items() if name in pinned):
                yield degrees


def _list_divisors(number: int, limit: int) -> list[int]:
    return [divisor for divisor in range(1, min(number, limit) + 1) if number % divisor == 0]


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


class Trial(Value):
    """How fast one process of the task's trainer computed on one environment, without any network (`run/trial.py`)."""

    environment: str
    """Environment, by id."""
    step_s: float
    """Seconds of a step of the trial: the median of those that count."""
    predicted: dict[str, float]
    """Seconds that were predicted for it: low, expected, high."""
    speed: float
    """Speed of the environment's devices at this work over what their figures alone predict."""
    steps: int
    """Steps that count."""
    layers: int
    """Layers of the model that were tried: as many as a stage has and one device holds."""
    micro_batches: int
    """Micro-batches of a step."""

    @property
    def within(self) -> bool:
        """The step lies within the band that was predicted."""
        return self.predicted["low"] <= self.step_s <= self.predicted["high"]


class TaskWork(Value):
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
    """Its environments as they were when it was planned, by id, without their facts; the master first."""
    port: int | None = None
    """Port of the first node at which ranks meet; null: not chosen yet, the bundle's own."""

    @property
    def archive(self) -> bytes:
        """The bundle as a tar, the same for the same bundle."""
        return self._upload.data

    @property
    def checksum(self) -> str:
        """Of the archive."""
        return self._upload.checksum

    @cached_property
    def _upload(self) -> BundleUpload:
        return pack_upload(self.bundle)

    @cached_property
    def plan(self) -> Scenario:
        """The scenario, read."""
        return parse_scenario(self.scenario, PLAN).scenario

    @cached_property
    def trainer_settings(self) -> dict[str, Any] | None:
        """What the trainer reads of the plan (`settings.json`); None: the bundle has no trainer of ours."""
        text = next((file.text for file in self.bundle.files if file.path == "settings.json"), None)
        return None if text is None else json.loads(text)

    @property
    def predicted_step_s(self) -> float:
        """Expected seconds of a step."""
        return float(self.prediction["step_time_s"]["expected"])

    def find_node_group(self, environment: str) -> tuple[str, int]:
        """Zone of an environment, and number of its node group there: groups follow the order of the environments."""
        zone = self.environments[environment].zone
        position = [id for id, other in self.environments.items() if other.zone == zone].index(environment)
        cluster = self.plan.cluster
        ends = accumulate(group.count for group in cluster.zones[cluster.find_zone_index(zone)].nodes)
        return zone, next(number for number, end in enumerate(ends) if position < end)

    def apply_trials(self, trials: Iterable[Trial], language: str = DEFAULT_LANGUAGE) -> TaskWork:
        """The same bundle with a prediction that knows how fast each tried environment computes."""
        plan = self.plan
        zones = {zone.name: list(zone.nodes) for zone in plan.cluster.zones}
        for trial in trials:
            zone_name, number = self.find_node_group(trial.environment)
            zones[zone_name][number] = zones[zone_name][number].replace(speed=float(f"{trial.speed:.4g}"))
        cluster = plan.cluster.replace(zones=[zone.replace(nodes=zones[zone.name]) for zone in plan.cluster.zones])
        loaded = parse_scenario(plan.replace(cluster=cluster).to_yaml(), PLAN)
        prediction = predicted(loaded, language).prediction
        return self.replace(
            scenario=loaded.scenario.to_yaml(),
            prediction=prediction.model_dump(mode="json"),
            slowdown=compute_slowdown(loaded, prediction.step_time_s.expected),
        )


def build_work(checked: CheckedRequest, links: Iterable[MeasuredLink], language: str) -> TaskWork:
    """Plan what a request leaves open so that all its environments take part, predict and bundle it."""
    _require_same_devices(checked)
    cluster = build_cluster(checked.environments, links)
    loaded = parse_scenario(dump_yaml(build_scenario(checked, cluster)), checked.name)
    fastest = plan_all_ranks(loaded.scenario, checked.ranks, language)
    loaded = loaded._replace(
        scenario=order_from_zone(apply_plan(loaded.scenario, fastest), checked.environments[checked.master].zone)
    )
    launcher = find_runner_kind(checked.environments.values())
    bundle = build_bundle(
        loaded, language, framework=checked.framework, launcher=launcher, settings=build_settings(checked)
    )
    environment_of = map_node_names(checked.environments)
    work, plan = assemble_work(bundle, checked.environments, environment_of, language)
    first = work.nodes[0].environment
    prediction = work.prediction
    if first != checked.master:
        notice = Notice(code="task_master_moved", level="note", value=first, params={"master": checked.master})
        prediction = prediction | {"warnings": [*prediction["warnings"], notice.as_dict(language)]}
    return work.replace(prediction=prediction, slowdown=compute_slowdown(plan, work.predicted_step_s))


def assemble_work(
    bundle: Bundle, environments: Mapping[str, Environment], environment_of: Mapping[str, str], language: str
) -> tuple[TaskWork, Loaded]:
    """The work of a bundle with its prediction, and the plan read from it; `environment_of`: by name of the node."""
    plan = parse_scenario(bundle.get_text(PLAN), PLAN)
    nodes = [
        WorkNode(
            number=node.number,
            environment=environment_of[node.name],
            script=node.script,
            ranks=node.ranks,
            address=node.address,
        )
        for node in bundle.nodes
    ]
    work = TaskWork(
        scenario=plan.scenario.to_yaml(),
        bundle=bundle,
        prediction=predicted(plan, language).prediction.model_dump(mode="json"),
        slowdown=None,
        nodes=tuple(nodes),
        environments={id: environment.replace(facts=None) for id, environment in environments.items()},
    )
    return work, plan


def order_from_zone(scenario: Scenario, zone: str) -> Scenario:
    """The plan with its ranks counted from the first node of a zone on, where they meet; the same where it cannot be:
    where stages or replicas have shares of their own, their order stays.
    """
    placement, strategy = scenario.placement, scenario.strategy
    if placement is None or strategy is None or strategy.uneven or strategy.layers_per_stage:
        return scenario
    blocks = sorted(placement.blocks, key=lambda block: (block.zone != zone, block.zone == zone and block.group > 0))
    reordered = scenario.replace(placement=placement.replace(blocks=blocks))
    try:
        build_predictor(reordered)
    except IllegalError:
        return scenario
    return reordered


def _require_same_devices(checked: CheckedRequest) -> None:
    """Refuse GPUs together with CPUs, which have no common way to talk, and a framework that needs GPUs without any."""
    without_gpus = [id for id, environment in checked.environments.items() if not environment.gpus]
    if not without_gpus:
        return
    if len(without_gpus) < len(checked.environments):
        params = {"with_gpus": [id for id in checked.environments if id not in without_gpus], "without": without_gpus}
        raise InvalidError(Notice(code="environments_mixed", field="distributedConfig.nodeIds", params=params))
    if checked.framework in GPU_FRAMEWORKS:
        field, params = "distributedConfig.framework", {"environments": without_gpus}
        raise InvalidError(Notice(code="framework_needs_gpus", field=field, value=checked.framework, params=params))


def build_scenario(checked: CheckedRequest, cluster: dict[str, Any]) -> dict[str, Any]:
    """The scenario of a request as a file would give it."""
    job = checked.request.job
    fields: dict[str, Any] = {
        "name": checked.name,
        "model": checked.model.model,
        "job": {
            "seq_len": job.seq_len,
            "global_batch": job.global_batch or SAMPLES_PER_RANK * checked.ranks,
            "precision": job.precision,
            "optimizer": job.optimizer,
        },
        "cluster": cluster,
    }
    framework = checked.framework or (None if checked.selection.gpus else CPU_FRAMEWORK)
    if framework is not None:
        fields["job"]["framework"] = framework
    degrees = checked.request.distributedConfig.strategy
    if degrees is not None:
        fields["strategy"] = {
            "dp": degrees.dataParallel,
            "pp": degrees.pipelineParallel,
            "tp": degrees.tensorParallel,
        }
    return fields


def build_settings(checked: CheckedRequest) -> LaunchSettings:
    """Launch settings of a request: its own, and what its dataset, model and job say."""
    pythons = {environment.python for environment in checked.environments.values()}
    python = {"python": pythons.pop()} if len(pythons) == 1 and pythons != {DEFAULT_PYTHON} else {}
    settings = {**derive_launch_settings(checked.environments), **python, **checked.request.settings}
    derived = {
        "data": checked.version.path,
        "tokenizer": checked.version.tokenizer,
        "init_from": checked.model.weights,
        "steps": checked.request.job.steps,
    }
    conflicts = [key for key, value in derived.items() if value is not None and key in settings]
    if conflicts:
        raise InvalidError(
            Notice(code="task_setting_twice", field=f"settings.{conflicts[0]}", value=settings[conflicts[0]])
        )
    return parse(LaunchSettings, {**settings, **{key: value for key, value in derived.items() if value is not None}})


def compute_slowdown(plan: Loaded, step_s: float) -> float | None:
    """How much longer a step takes than with the same nodes, strategy and ranks in one zone."""
    zones = plan.scenario.cluster.zones
    if len(zones) == 1:
        return None
    cluster = plan.scenario.cluster
    merged_zone = {"name": "together", "nodes": [group.to_plain() for zone in zones for group in zone.nodes]}
    one_zone = plan.scenario.to_plain() | {"cluster": {**cluster.to_plain(), "zones": [merged_zone], "links": []}}
    one_zone.pop("placement", None)
    one_zone_prediction = predicted(parse_scenario(dump_yaml(one_zone), plan.document.file)).prediction
    return step_s / one_zone_prediction.step_time_s.expected


DEGREES = ("dp", "pp", "tp")


class TaskPreview(Value):
    """What a summary shows before a task is created."""

    selection: Selection
    """What the environments have together."""
    master: str | None
    """Environment at which ranks meet: the one that is wanted while it is chosen, else the first; null: none is."""
    framework: str | None
    """Framework that was given or planned; null: neither."""
    step_time_s: dict[str, float] | None
    """Seconds of a step: low, expected and high; null: there is no prediction, and a notice says why."""
    tokens_per_s: float | None
    """Expected tokens a second of all ranks."""
    slowdown: float | None
    """Step over the step of the same nodes in one zone; null: there is but one, or no prediction."""
    strategy: dict[str, int] | None
    """dp, pp and tp, given or planned."""
    notices: tuple[dict[str, Any], ...]
    """Warnings, or why there is no prediction: code, level, message, hint, field."""


def preview_task(
    request: TaskRequest, registered: RegisteredEntries, links: Iterable[MeasuredLink], language: str
) -> TaskPreview:
    """What is known of a request as it stands; what is not there yet (a name, a dataset) is not asked for."""
    placement = request.distributedConfig
    ids = list(dict.fromkeys(placement.nodeIds))
    environments = {id: registered.environments[id] for id in ids if id in registered.environments}
    allocation_errors: list[Notice] = []
    if request.launchMode == "new":
        try:
            environments = allocate_nodes(request.allocation, registered.environments)
        except InputError as error:
            allocation_errors = list(error.notices)
    master = choose_master(environments, placement.masterNode)
    notices = allocation_errors + [
        Notice(
            code="task_unknown",
            field="distributedConfig.nodeIds",
            value=id,
            params={"known": list(registered.environments)[:20]},
        )
        for id in ids
        if id not in environments
    ]
    fields: dict[str, Any] = {"framework": resolve_framework_name(placement.framework) if placement.framework else None}
    if environments and master is not None and request.modelId.strip() and not notices:
        try:
            fields |= _predict_fields(_complete_request(request, registered, environments, master), links, language)
        except InputError as error:
            notices += error.notices
    localized = [notice.as_dict(language) for notice in notices]
    if fields.get("slowdown"):
        params = {"factor": f"{fields['slowdown']:.2f}", "zones": len(build_selection(environments.values()).zones)}
        localized.append(Notice(code="task_cross_zone", params=params, level="warning").as_dict(language))
    unpredicted = dict.fromkeys(("step_time_s", "tokens_per_s", "slowdown", "strategy"))
    return TaskPreview(
        selection=build_selection(environments.values()),
        master=master,
        notices=(*localized, *fields.pop("warnings", ())),
        **{**unpredicted, **fields},
    )


def _complete_request(
    request: TaskRequest, registered: RegisteredEntries, environments: dict[str, Any], master: str
) -> CheckedRequest:
    """The request with what a prediction needs; a dataset changes no time."""
    placement = request.distributedConfig
    return CheckedRequest(
        request=request,
        name=request.taskName.strip() or "task",
        environments={master: environments[master], **environments},
        master=master,
        framework=resolve_framework_name(placement.framework) if placement.framework else None,
        version=DatasetVersion(id="none"),
        model=registered.models.get(request.modelId) or TrainingModel(name=request.modelId, model=request.modelId),
    )


def plan_work(checked: CheckedRequest, links: Iterable[MeasuredLink], language: str) -> TaskWork:
    """As `build_work`; where a link between zones was not measured, the error names two environments to measure it."""
    try:
        return build_work(checked, links, language)
    except InvalidError as error:
        notice = error.notices[0]
        if notice.code != "rtt_unknown":
            raise
        zones = [str(notice.params[end]) for end in ("first", "second")]
        ends = [
            next((id for id, environment in checked.environments.items() if environment.zone == zone), zone)
            for zone in zones
        ]
        params = {"first": zones[0], "second": zones[1], "one": ends[0], "other": ends[1]}
        raise InvalidError(Notice(code="task_link_unknown", field="distributedConfig.nodeIds", params=params)) from None


def _predict_fields(checked: CheckedRequest, links: Iterable[MeasuredLink], language: str) -> dict[str, Any]:
    work = plan_work(checked, links, language)
    strategy = work.prediction["strategy"]
    return {
        "framework": work.bundle.framework,
        "step_time_s": work.prediction["step_time_s"],
        "tokens_per_s": work.prediction["tokens_per_s"]["expected"],
        "slowdown": work.slowdown,
        "strategy": {key: strategy[key] for key in DEGREES},
        "warnings": work.prediction["warnings"],
    }
