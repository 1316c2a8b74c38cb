"""Request: a training task as it is asked for, checked in the order in which a form asks.

    checked = check_request(TaskRequest(...), registered)      the name first, then dataset, environments, framework
    checked.environments, checked.master, checked.framework

The fields are those of the platform's API, so they have its spelling.

Allocation: nodes that a scheduler is asked for, by zone and GPU kind, instead of environments that run already.

    allocate_nodes([NodeAllocation(zone="beijing-a", gpu="a100-80gb-sxm", nodes=2, gpus_per_node=8)], environments)
    -> {"slurm-bj.0": Environment(...), "slurm-bj.1": Environment(...)}

An environment whose runner is a scheduler stands for a partition, a namespace or a cluster: it is the source of as many
nodes like itself as are asked for. A node has the id of its source, a dot and a number; no registered id has a dot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from crosszone.errors import InvalidError, Notice, UnknownNameError, build_choice_error
from crosszone.inputs.dataset import Dataset, DatasetVersion, TrainingModel
from crosszone.inputs.environment import Environment, Selection, build_selection
from crosszone.inputs.frameworks import resolve_framework_name
from crosszone.inputs.value import Count, Flag, Prose, Value

SCHEDULERS = ("slurm", "kubernetes", "ray")  # Runners that find the machines by themselves
SUPERVISED = "nodes"  # What starts nodes here and over ssh: a supervisor on each of them
MAX_NODES = 1000
ShortText = Annotated[Prose, Field(min_length=1, max_length=200)]


class NodeAllocation(Value):
    """Equal nodes of one zone."""

    zone: ShortText
    """Zone, by its name."""
    gpu: ShortText | None = None
    """GPU kind; null: whatever the zone's scheduler has."""
    nodes: Annotated[Count, Field(le=MAX_NODES)] = 1
    """How many nodes."""
    gpus_per_node: Annotated[int, Strict(), Field(ge=1, le=1024)] | None = None
    """GPUs of each; null: as many as a node there has."""


def allocate_nodes(
    allocations: Sequence[NodeAllocation], environments: Mapping[str, Environment]
) -> dict[str, Environment]:
    """The nodes to ask for, by id; `InvalidError` when no scheduler has such nodes."""
    nodes: dict[str, Environment] = {}
    for index, allocation in enumerate(allocations):
        id = _find_source(allocation, environments, f"allocation[{index}]")
        source = environments[id]
        fields = {"interface": None, "gpus": allocation.gpus_per_node or source.gpus}
        first_number = sum(get_source_id(other) == id for other in nodes)
        for number in range(first_number, first_number + allocation.nodes):
            node, name = f"{id}.{number}", f"{source.name}.{number}"
            # a bundle for Ray names every machine; which one it is its job finds out
            nodes[node] = source.replace(**fields, name=name, address=node if source.runner == "ray" else None)
    if len(nodes) > MAX_NODES:
        raise InvalidError(
            Notice(code="task_allocation_many", field="allocation", value=len(nodes), params={"limit": MAX_NODES})
        )
    return nodes


def get_source_id(id: str) -> str:
    """The environment that a node comes from; one that was not allocated is its own."""
    return id.partition(".")[0]


def is_allocated(id: str) -> bool:
    """The node is allocated by a scheduler and is no registered environment."""
    return "." in id


def find_runner_kind(environments: Iterable[Environment]) -> str:
    """The runner that starts all of them: slurm, kubernetes, ray or `SUPERVISED`; `InvalidError`: there is none."""
    kinds = {
        environment.runner if environment.runner in SCHEDULERS else SUPERVISED: environment
        for environment in environments
    }
    if len(kinds) > 1:
        first, second = list(kinds.values())[:2]
        params = {"one": first.name, "runner": first.runner, "other": second.name, "second": second.runner}
        raise InvalidError(Notice(code="task_runners_mixed", field="distributedConfig.nodeIds", params=params))
    return next(iter(kinds))


def derive_launch_settings(environments: Mapping[str, Environment]) -> dict[str, Any]:
    """Launch settings that follow from where the nodes are; a request may say otherwise."""
    kind = find_runner_kind(environments.values())
    first = next(iter(environments.values()))
    if kind == "slurm":
        return {
            "partitions": {
                environment.zone: environment.partition
                for environment in environments.values()
                if environment.partition
            }
        }
    if kind == "kubernetes":
        settings: dict[str, Any] = {"namespace": first.partition} if first.partition else {}
        labelled = {
            environment.zone
            for environment in environments.values()
            if environment.type == "kubernetes" and environment.zone != "default"
        }
        images = {environment.image for environment in environments.values() if environment.image}
        return (
            settings | ({"image": images.pop()} if len(images) == 1 else {}) | {"zone_labels": {z: z for z in labelled}}
        )
    return {}


def map_node_names(environments: Mapping[str, Environment]) -> dict[str, str]:
    """The environment of each node of a bundle: one with an address has its id as name, others are counted by zone."""
    last_numbers: dict[str, int] = {}
    names: dict[str, str] = {}
    for id, environment in environments.items():
        number = last_numbers[environment.zone] = last_numbers.get(environment.zone, -1) + 1
        names[id if environment.address is not None else f"{environment.zone}-{number}"] = id
    return names


def _find_source(allocation: NodeAllocation, environments: Mapping[str, Environment], field: str) -> str:
    """The first scheduler of the zone that has such nodes."""
    sources = {id: source for id, source in environments.items() if source.runner in SCHEDULERS}
    for id, source in sources.items():
        fits = allocation.gpus_per_node is None or allocation.gpus_per_node <= source.gpus
        if source.zone == allocation.zone and (allocation.gpu is None or source.gpu == allocation.gpu) and fits:
            return id
    offers = [f"{source.zone}: {source.gpus} x {source.gpu}" for source in sources.values()]
    params = {
        "gpu": allocation.gpu or "-",
        "gpus": allocation.gpus_per_node or "-",
        "known": list(dict.fromkeys(offers))[:20] or ["-"],
    }
    raise InvalidError(Notice(code="task_allocation_none", field=field, value=allocation.zone, params=params))


LaunchMode = Literal["existing", "new"]
FRAMEWORKS = ("ddp", "fsdp", "deepspeed", "horovod", "megatron")
Text = Annotated[Prose, Field(max_length=200)]


class RequestedDegrees(Value):
    """How the work is split."""

    dataParallel: Count = 1
    """Replicas."""
    pipelineParallel: Count = 1
    """Stages."""
    tensorParallel: Count = 1
    """GPUs a layer is split over."""

    @property
    def product(self) -> int:
        """Ranks they need."""
        return self.dataParallel * self.pipelineParallel * self.tensorParallel


class DistributedConfig(Value):
    """Where a task runs, and how it is split."""

    enabled: Flag | None = None
    """More than one environment takes part; null: as many as are listed."""
    nodeIds: Annotated[tuple[Text, ...], Field(max_length=MAX_NODES)] = ()
    """Environments, by id."""
    masterNode: Text | None = None
    """Environment at which ranks meet; null: the first."""
    framework: Text | None = None
    """pytorch-ddp, pytorch-fsdp, deepspeed, horovod, megatron-lm."""
    strategy: RequestedDegrees | None = None
    """How the work is split; null: planned for these environments."""


class RequestedJob(Value):
    """What is trained how long; whatever is left out has a default."""

    seq_len: Count = 1024
    """Tokens of a sample."""
    global_batch: Count | None = None
    """Samples a step; null: eight for each rank."""
    steps: Count = 1000
    """Optimizer steps."""
    precision: Text = "bf16"
    """bf16, fp16, fp32, ..."""
    optimizer: Text = "adamw"
    """Optimizer."""


class TaskPolicy(Value):
    """What to do when something goes wrong."""

    maxRestarts: Annotated[int, Field(ge=0, le=100)] = 3
    """How many times the group starts again from its last checkpoint after a rank has failed."""
    ignorePreflight: Flag = False
    """Start although a check has failed."""
    measureStep: Flag = True
    """Before the start, try a few steps of one rank on each environment, and go by how long they take."""


class TaskRequest(Value):
    """What `POST /training-tasks` takes."""

    taskName: Text = ""
    """What to call it."""
    datasetId: Text = ""
    """Dataset, by id."""
    datasetVersionId: Text = ""
    """Its version, by id."""
    modelId: Text = ""
    """Model, by id, or a catalogue name."""
    launchMode: LaunchMode = "existing"
    """On environments that run, or on such that a scheduler is asked for."""
    distributedConfig: DistributedConfig = DistributedConfig()
    """Where and how."""
    allocation: Annotated[tuple[NodeAllocation, ...], Field(max_length=MAX_NODES)] = ()
    """Nodes that a scheduler is asked for (launchMode new), instead of environments."""
    job: RequestedJob = RequestedJob()
    """What is trained how long."""
    policy: TaskPolicy = TaskPolicy()
    """What to do when something goes wrong."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Launch settings, as for a bundle."""


@dataclass(frozen=True, kw_only=True)
class RegisteredEntries:
    """What a request may name."""

    environments: Mapping[str, Environment]
    datasets: Mapping[str, Dataset]
    models: Mapping[str, TrainingModel]


@dataclass(frozen=True, kw_only=True)
class CheckedRequest:
    """A request that names only what there is."""

    request: TaskRequest
    name: str
    environments: dict[str, Environment]
    """By id, the master first."""
    master: str
    framework: str | None
    """None: planned."""
    version: DatasetVersion
    model: TrainingModel

    @property
    def selection(self) -> Selection:
        """What the environments have together."""
        return build_selection(self.environments.values())

    @property
    def ranks(self) -> int:
        """Processes: one a GPU, or one on the CPU of an environment without."""
        return sum(environment.processes for environment in self.environments.values())


def check_request(request: TaskRequest, registered: RegisteredEntries) -> CheckedRequest:
    """The request with everything it names; an `InputError` names the first thing that is wrong with it."""
    name = request.taskName.strip()
    if not name:
        raise _make_error("task_name_missing", "taskName")
    version = _find_version(request, registered)
    placement = request.distributedConfig
    allocated_nodes = _allocate_request(request, registered)
    ids = list(allocated_nodes) or list(dict.fromkeys(placement.nodeIds))
    if not ids:
        raise _make_error("task_environment_missing", "distributedConfig.nodeIds")
    several = len(ids) > 1
    if several and not (allocated_nodes and not placement.masterNode) and placement.masterNode not in ids:
        raise _make_error("task_master_invalid", "distributedConfig.masterNode", placement.masterNode)
    framework = _check_framework(placement.framework, required=several)
    if not request.modelId.strip():
        raise _make_error("task_model_missing", "modelId")
    environments = allocated_nodes or {
        id: _find_entry(registered.environments, id, "distributedConfig.nodeIds") for id in ids
    }
    master = placement.masterNode if placement.masterNode in ids else ids[0]
    find_runner_kind(environments.values())
    checked = CheckedRequest(
        request=request,
        name=name,
        environments={master: environments[master], **environments},
        master=master,
        framework=framework,
        version=version,
        model=registered.models.get(request.modelId) or TrainingModel(name=request.modelId, model=request.modelId),
    )
    degrees = placement.strategy
    if degrees is not None and degrees.product != checked.ranks:
        split = {"dp": degrees.dataParallel, "pp": degrees.pipelineParallel, "tp": degrees.tensorParallel}
        params = {**split, "ranks": checked.ranks}
        raise _make_error("task_strategy_product", "distributedConfig.strategy", degrees.product, **params)
    return checked


def describe_created(checked: CheckedRequest, id: str, state: str, message: str) -> dict[str, Any]:
    """The answer to a request that was taken."""
    info = {
        "nodeCount": checked.selection.nodes,
        "totalGpus": checked.selection.gpus,
        "masterNode": checked.master,
        "framework": checked.request.distributedConfig.framework,
    }
    return {"code": 200, "message": message, "data": {"taskId": id, "status": state, "distributedInfo": info}}


def _allocate_request(request: TaskRequest, registered: RegisteredEntries) -> dict[str, Environment]:
    """Nodes that a scheduler is asked for; none: the request names environments that run."""
    if request.launchMode == "existing":
        if request.allocation:
            raise _make_error("task_allocation_existing", "allocation")
        return {}
    if not request.allocation:
        raise _make_error("task_allocation_missing", "allocation")
    if request.distributedConfig.nodeIds:
        raise _make_error("task_allocation_both", "distributedConfig.nodeIds")
    return allocate_nodes(request.allocation, registered.environments)


def _find_version(request: TaskRequest, registered: RegisteredEntries) -> DatasetVersion:
    for field in ("datasetId", "datasetVersionId"):
        if not getattr(request, field).strip():
            raise _make_error("task_dataset_missing", field)
    dataset: Dataset = _find_entry(registered.datasets, request.datasetId, "datasetId")
    version = dataset.find_version(request.datasetVersionId)
    if version is None:
        params = {"what": "datasetVersionId", "known": [entry.id for entry in dataset.versions]}
        raise UnknownNameError(
            Notice(code="task_unknown", field="datasetVersionId", value=request.datasetVersionId, params=params)
        )
    return version


def _check_framework(name: str | None, *, required: bool) -> str | None:
    if not name:
        if required:
            raise _make_error("task_framework_missing", "distributedConfig.framework")
        return None
    framework = resolve_framework_name(name)
    if framework not in FRAMEWORKS:
        raise build_choice_error("distributedConfig.framework", name, FRAMEWORKS)
    return framework


def _find_entry(entries: Mapping[str, Any], id: str, field: str) -> Any:
    if id not in entries:
        raise UnknownNameError(
            Notice(code="task_unknown", field=field, value=id, params={"what": field, "known": list(entries)[:20]})
        )
    return entries[id]


def _make_error(code: str, field: str, value: object = None, **params: object) -> InvalidError:
    return InvalidError(Notice(code=code, field=field, value=value, params=params))
