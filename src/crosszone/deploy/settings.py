"""Settings: what a launch needs beside the plan: ports, users, folders, images, and the hyper-parameters of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field, Strict

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.document import parse_scalar
from crosszone.inputs.value import Count, Flag, Name, NotNegative, Positive, Value

Port = Annotated[int, Strict(), Field(ge=1, le=65_535)]
Share = Annotated[float, Strict(), Field(ge=0, le=1)]
Path = Annotated[str, Field(min_length=1, max_length=1000)]


class TrainingSettings(Value):
    """Hyper-parameters of the run. They are common values, not planned ones: change them as your model needs."""

    lr: Positive = 3e-4
    """Peak learning rate."""
    min_lr: NotNegative = 3e-5
    """Learning rate at the end of the cosine."""
    warmup_steps: Annotated[int, Strict(), Field(ge=0, le=10_000_000)] = 2000
    """Steps of the linear warm-up; at most a tenth of the run."""
    weight_decay: NotNegative = 0.1
    """Decoupled weight decay, not on norms and biases."""
    beta1: Share = 0.9
    """First moment's decay."""
    beta2: Share = 0.95
    """Second moment's decay."""
    eps: Positive = 1e-8
    """Added to the root of the second moment."""
    clip: NotNegative = 1.0
    """Norm that gradients are clipped to; 0: they are not."""
    seed: Annotated[int, Strict(), Field(ge=0, le=2**31 - 1)] = 1234
    """Of weights, data order and masks."""
    checkpoint_every: Count = 500
    """Steps between checkpoints."""
    keep: Count = 2
    """Checkpoints kept."""
    metrics_mib: Annotated[float, Strict(), Field(ge=0.25, le=1024)] = 16
    """MiB of metrics kept for each stage; beyond it older steps are thinned out."""
    outer_lr: Positive = 0.7
    """Learning rate of the outer optimizer of local updates (DiLoCo, arXiv 2311.08105)."""
    outer_momentum: Share = 0.9
    """Nesterov momentum of that optimizer."""
    mask_share: Share = 0.15
    """Tokens masked for an encoder (BERT, arXiv 1810.04805)."""


class LaunchSettings(Value):
    """Everything a launch needs that no plan knows."""

    port: Port = 29_500
    """Port of the first node at which ranks meet."""
    steps: Count | None = None
    """Optimizer steps; null: as many as job.tokens asks for, or 1000."""
    data: Path | None = None
    """Token file (.bin), or text file or folder, as the nodes see it; null: synthetic tokens."""
    tokenizer: Path | None = None
    """tokenizer.json for text, as the nodes see it."""
    init_from: Path | None = None
    """Folder with Hugging Face safetensors to fine-tune from, as the nodes see it; null: from scratch."""
    workdir: Path = "crosszone-run"
    """Folder of the bundle on the nodes, relative to the user's home unless it starts with /."""
    python: Path | None = None
    """Python of the nodes; null: whatever torchrun, deepspeed or python3 is on the PATH."""
    user: Name | None = None
    """ssh user; null: the one who starts."""
    ssh_port: Port = 22
    """ssh port of the nodes."""
    image: Path | None = None
    """Container image with the framework (Kubernetes, SkyPilot)."""
    claim: Name | None = None
    """Kubernetes PersistentVolumeClaim for checkpoints; null: they end with the pod."""
    infra: dict[Name, Name] = Field(default_factory=dict)
    """SkyPilot's place of each zone, e.g. aws/us-east-1; a zone left out is SkyPilot's choice."""
    namespace: Name = "default"
    """Kubernetes namespace."""
    service_account: Name | None = None
    """Kubernetes service account."""
    zone_labels: dict[Name, Name] = Field(default_factory=dict)
    """Value of topology.kubernetes.io/zone of each zone's nodes; a zone left out is not tied to nodes."""
    partitions: dict[Name, Name] = Field(default_factory=dict)
    """Slurm partition of each zone; a zone left out takes Slurm's default."""
    account: Name | None = None
    """Slurm account."""
    time_limit: Name | None = None
    """Slurm time limit, e.g. 2-00:00:00."""
    gres: Flag = True
    """Ask Slurm for GPUs (--gres); off where Slurm does not manage them."""
    training: TrainingSettings = TrainingSettings()
    """Hyper-parameters."""

    def apply_assignments(self, assignments: Iterable[str]) -> LaunchSettings:
        """These settings with `KEY=VALUE` lines applied: `port=29501`, `training.lr=1e-4`, `partitions.zone-a=bj`."""
        fields: dict[str, Any] = self.to_plain()
        for line in assignments:
            name, equals, value = line.partition("=")
            if not equals or not name.strip():
                raise InvalidError(Notice(code="setting_malformed", field="--set", value=line))
            _set_field(fields, name.strip(), value.strip())
        return LaunchSettings(**fields)


def _set_field(fields: dict[str, Any], name: str, text: str) -> None:
    outer_name, dot, inner_name = name.partition(".")
    text_settings = {"partitions", "zone_labels", "infra", *_TEXT_SETTINGS}
    value = text if outer_name in text_settings else parse_scalar(text)
    if not dot:
        fields[outer_name] = value
        return
    inner = fields.get(outer_name)
    fields[outer_name] = {**(inner if isinstance(inner, Mapping) else {}), inner_name: value}


# Settings that are text even where they look like a number.
_TEXT_SETTINGS = (
    "data", "tokenizer", "init_from", "workdir", "python", "user", "image", "claim", "namespace", "service_account",
    "account", "time_limit",
)  # fmt: skip
