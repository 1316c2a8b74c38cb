"""Request: a training task as it is asked for, checked in the order in which a form asks.

    asked = checked(TaskRequest(...), known)      name, dataset, environments, master, framework; then what they hold
    asked.environments, asked.master, asked.framework

The fields are those of the platform's API, so they have its spelling.

Allocation: nodes that a scheduler is asked for, by zone and GPU kind, instead of environments that run already.

    allocated([Wanted(zone="beijing-a", gpu="a100-80gb-sxm", nodes=2, gpus_per_node=8)], known)
    -> {"slurm-bj.0": Environment(...), "slurm-bj.1": Environment(...)}

An environment whose runner is a scheduler stands for a partition, a namespace or a cluster: it is the source of as many
nodes like itself as are asked for. A node has the id of its source, a dot and a number; no registered id has a dot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from crosszone.errors import InvalidError, Notice, UnknownNameError
from crosszone.inputs.dataset import Dataset, DatasetVersion, TrainingModel
from crosszone.inputs.environment import Environment, Selection, selection
from crosszone.inputs.frameworks import framework_of_alias
from crosszone.inputs.value import Count, Flag, Prose, Value

SCHEDULERS = ("slurm", "kubernetes", "ray")  # Runners that find the machines by themselves
SUPERVISED = "nodes"  # What starts nodes here and over ssh: a supervisor on each of them
MOST_NODES = 1000
Named = Annotated[Prose, Field(min_length=1, max_length=200)]


class Wanted(Value):
    """Equal nodes of one zone."""

    zone: Named
    """Zone, by its name."""
    gpu: Named | None = None
    """GPU kind; null: whatever the zone's scheduler has."""
    nodes: Annotated[Count, Field(le=MOST_NODES)] = 1
    """How many nodes."""
    gpus_per_node: Annotated[int, Strict(), Field(ge=1, le=1024)] | None = None
    """GPUs of each; null: as many as a node there has."""


def allocated(wanted: Sequence[Wanted], known: Mapping[str, Environment]) -> dict[str, Environment]:
    """The nodes to ask for, by id; `InvalidError` when no scheduler has such nodes."""
    made: dict[str, Environment] = {}
    for index, one in enumerate(wanted):
        id = _source(one, known, f"allocation[{index}]")
        source = known[id]
        fields = {"interface": None, "gpus": one.gpus_per_node or source.gpus}
        before = sum(source_of(other) == id for other in made)
        for number in range(before, before + one.nodes):
            node, name = f"{id}.{number}", f"{source.name}.{number}"
            # a bundle for Ray names every machine; which one it is its job finds out
            made[node] = source.replace(**fields, name=name, address=node if source.runner == "ray" else None)
    if len(made) > MOST_NODES:
        raise InvalidError(
            Notice(code="task_allocation_many", field="allocation", value=len(made), params={"limit": MOST_NODES})
        )
    return made


def source_of(id: str) -> str:
    """The environment that a node comes from; one that was not allocated is its own."""
    return id.partition(".")[0]


def is_allocated(id: str) -> bool:
    """A scheduler is asked for the node; it is no environment of its own."""
    return "." in id


def started_by(environments: Iterable[Environment]) -> str:
    """Who starts all of them: slurm, kubernetes, ray, or `SUPERVISED`; `InvalidError`: no one can start them all."""
    kinds = {one.runner if one.runner in SCHEDULERS else SUPERVISED: one for one in environments}
    if len(kinds) > 1:
        first, second = list(kinds.values())[:2]
        params = {"one": first.name, "runner": first.runner, "other": second.name, "second": second.runner}
        raise InvalidError(Notice(code="task_runners_mixed", field="distributedConfig.nodeIds", params=params))
    return next(iter(kinds))


def launch_settings(environments: Mapping[str, Environment]) -> dict[str, Any]:
    """Launch settings that follow from where the nodes are; a request may say otherwise."""
    kind = started_by(environments.values())
    first = next(iter(environments.values()))
    if kind == "slurm":
        return {"partitions": {one.zone: one.partition for one in environments.values() if one.partition}}
    if kind == "kubernetes":
        made: dict[str, Any] = {"namespace": first.partition} if first.partition else {}
        labelled = {one.zone for one in environments.values() if one.type == "kubernetes" and one.zone != "default"}
        images = {one.image for one in environments.values() if one.image}
        return made | ({"image": images.pop()} if len(images) == 1 else {}) | {"zone_labels": {z: z for z in labelled}}
    return {}


def node_names(environments: Mapping[str, Environment]) -> dict[str, str]:
    """The environment of each node of a bundle: one with an address has its id as name, others are counted by zone."""
    counted: dict[str, int] = {}
    names: dict[str, str] = {}
    for id, one in environments.items():
        number = counted[one.zone] = counted.get(one.zone, -1) + 1
        names[id if one.address is not None else f"{one.zone}-{number}"] = id
    return names


def _source(one: Wanted, known: Mapping[str, Environment], field: str) -> str:
    """The first scheduler of the zone that has such nodes."""
    sources = {id: found for id, found in known.items() if found.runner in SCHEDULERS}
    for id, found in sources.items():
        fits = one.gpus_per_node is None or one.gpus_per_node <= found.gpus
        if found.zone == one.zone and (one.gpu is None or found.gpu == one.gpu) and fits:
            return id
    have = [f"{found.zone}: {found.gpus} x {found.gpu}" for found in sources.values()]
    params = {"gpu": one.gpu or "-", "gpus": one.gpus_per_node or "-", "known": list(dict.fromkeys(have))[:20] or ["-"]}
    raise InvalidError(Notice(code="task_allocation_none", field=field, value=one.zone, params=params))


LaunchMode = Literal["existing", "new"]
FRAMEWORKS = ("ddp", "fsdp", "deepspeed", "horovod", "megatron")
Text = Annotated[Prose, Field(max_length=200)]


class Degrees(Value):
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
    nodeIds: Annotated[tuple[Text, ...], Field(max_length=MOST_NODES)] = ()
    """Environments, by id."""
    masterNode: Text | None = None
    """Environment at which ranks meet; null: the first."""
    framework: Text | None = None
    """pytorch-ddp, pytorch-fsdp, deepspeed, horovod, megatron-lm."""
    strategy: Degrees | None = None
    """How the work is split; null: planned for these environments."""


class JobAsked(Value):
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


class Policy(Value):
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
    allocation: Annotated[tuple[Wanted, ...], Field(max_length=MOST_NODES)] = ()
    """Nodes that a scheduler is asked for (launchMode new), instead of environments."""
    job: JobAsked = JobAsked()
    """What is trained how long."""
    policy: Policy = Policy()
    """What to do when something goes wrong."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Launch settings, as for a bundle."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a request may name."""

    environments: Mapping[str, Environment]
    datasets: Mapping[str, Dataset]
    models: Mapping[str, TrainingModel]


@dataclass(frozen=True, kw_only=True)
class Asked:
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
    def together(self) -> Selection:
        """What the environments have together."""
        return selection(self.environments.values())

    @property
    def ranks(self) -> int:
        """Processes: one a GPU, or one on the CPU of an environment without."""
        return sum(one.processes for one in self.environments.values())


def checked(request: TaskRequest, known: Known) -> Asked:
    """The request with everything it names; an `InputError` tells the first thing that is wrong with it."""
    name = request.taskName.strip()
    if not name:
        raise _wrong("task_name_missing", "taskName")
    version = _version(request, known)
    where = request.distributedConfig
    new = _allocated(request, known)
    ids = list(new) or list(dict.fromkeys(where.nodeIds))
    if not ids:
        raise _wrong("task_environment_missing", "distributedConfig.nodeIds")
    several = len(ids) > 1
    if several and not (new and not where.masterNode) and where.masterNode not in ids:
        raise _wrong("task_master_invalid", "distributedConfig.masterNode", where.masterNode)
    framework = _framework(where.framework, required=several)
    if not request.modelId.strip():
        raise _wrong("task_model_missing", "modelId")
    environments = new or {id: _known(known.environments, id, "distributedConfig.nodeIds") for id in ids}
    master = where.masterNode if where.masterNode in ids else ids[0]
    started_by(environments.values())
    asked = Asked(
        request=request,
        name=name,
        environments={master: environments[master], **environments},
        master=master,
        framework=framework,
        version=version,
        model=known.models.get(request.modelId) or TrainingModel(name=request.modelId, model=request.modelId),
    )
    degrees = where.strategy
    if degrees is not None and degrees.product != asked.ranks:
        split = {"dp": degrees.dataParallel, "pp": degrees.pipelineParallel, "tp": degrees.tensorParallel}
        params = {**split, "ranks": asked.ranks}
        raise _wrong("task_strategy_product", "distributedConfig.strategy", degrees.product, **params)
    return asked


def created(asked: Asked, id: str, state: str, message: str) -> dict[str, Any]:
    """The answer to a request that was taken."""
    info = {
        "nodeCount": asked.together.nodes,
        "totalGpus": asked.together.gpus,
        "masterNode": asked.master,
        "framework": asked.request.distributedConfig.framework,
    }
    return {"code": 200, "message": message, "data": {"taskId": id, "status": state, "distributedInfo": info}}


def _allocated(request: TaskRequest, known: Known) -> dict[str, Environment]:
    """Nodes that a scheduler is asked for; none: the request names environments that run."""
    if request.launchMode == "existing":
        if request.allocation:
            raise _wrong("task_allocation_existing", "allocation")
        return {}
    if not request.allocation:
        raise _wrong("task_allocation_missing", "allocation")
    if request.distributedConfig.nodeIds:
        raise _wrong("task_allocation_both", "distributedConfig.nodeIds")
    return allocated(request.allocation, known.environments)


def _version(request: TaskRequest, known: Known) -> DatasetVersion:
    for field in ("datasetId", "datasetVersionId"):
        if not getattr(request, field).strip():
            raise _wrong("task_dataset_missing", field)
    dataset: Dataset = _known(known.datasets, request.datasetId, "datasetId")
    version = dataset.version(request.datasetVersionId)
    if version is None:
        params = {"what": "datasetVersionId", "known": [one.id for one in dataset.versions]}
        raise UnknownNameError(
            Notice(code="task_unknown", field="datasetVersionId", value=request.datasetVersionId, params=params)
        )
    return version


def _framework(name: str | None, *, required: bool) -> str | None:
    if not name:
        if required:
            raise _wrong("task_framework_missing", "distributedConfig.framework")
        return None
    found = framework_of_alias(name)
    if found not in FRAMEWORKS:
        params = {"allowed": list(FRAMEWORKS), "nearest": FRAMEWORKS[0]}
        raise _wrong("not_one_of", "distributedConfig.framework", name, **params)
    return found


def _known(entries: Mapping[str, Any], id: str, field: str) -> Any:
    if id not in entries:
        raise UnknownNameError(
            Notice(code="task_unknown", field=field, value=id, params={"what": field, "known": list(entries)[:20]})
        )
    return entries[id]


def _wrong(code: str, field: str, value: object = None, **params: object) -> InvalidError:
    return InvalidError(Notice(code=code, field=field, value=value, params=params))
