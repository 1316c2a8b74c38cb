"""Request: a training task as it is asked for, checked in the order in which a form asks.

    asked = checked(TaskRequest(...), known)      name, dataset, environments, master, framework; then what they hold
    asked.environments, asked.master, asked.framework

The fields are those of the platform's API, so they have its spelling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from crosszone.errors import InvalidError, Notice, UnknownNameError
from crosszone.inputs.dataset import Dataset, DatasetVersion, TrainingModel
from crosszone.inputs.environment import Environment, Selection, selection
from crosszone.inputs.frameworks import framework_of_alias
from crosszone.inputs.value import Count, Flag, Prose, Value
from crosszone.run.allocation import MOST_NODES, Wanted, allocated, started_by

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
