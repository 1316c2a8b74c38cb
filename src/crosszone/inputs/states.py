"""Bytes of model state per parameter: weights, gradients, master weights, optimizer moments. [J3]"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from crosszone.inputs.frameworks import frameworks
from crosszone.inputs.job import Job
from crosszone.inputs.shipped import read_shipped


@dataclass(frozen=True, kw_only=True)
class StateBytes:
    """Bytes per parameter on one rank."""

    weights: float
    gradients: float
    master: float
    moments: float

    @property
    def total(self) -> float:
        """All bytes per parameter."""
        return self.weights + self.gradients + self.master + self.moments


@cache
def numerics() -> dict[str, Any]:
    """Bytes by precision and moments by optimizer (`numerics.yaml`)."""
    loaded: dict[str, Any] = read_shipped("crosszone.inputs", "numerics.yaml").value
    return loaded


def compute_precision(job: Job) -> str:
    """The tensor path a GPU needs for this job: fp32, fp16, bf16, fp8 or fp4."""
    path: str = numerics()["precisions"][job.precision]["compute"]
    return path


def precision_architectures(job: Job) -> tuple[str, ...]:
    """GPU architectures that have the job's number format; none named: all that have its tensor path."""
    return tuple(numerics()["precisions"][job.precision].get("architectures", ()))


def state_bytes(job: Job, *, framework: str | None = None, zero: int = 0, shards: int = 1) -> StateBytes:
    """Bytes per parameter on one rank, with ZeRO stage `zero` over `shards` ranks. [J3]

    ZeRO 1 shards master weights and moments, 2 the gradients too, 3 the weights too. In mixed precision Megatron-LM
    keeps fp32 gradients (18 bytes with Adam in place of 16), and autocast keeps fp32 weights and no master copy.
    """
    kept = dict(numerics()["precisions"][job.precision])
    chosen = framework or job.framework
    if chosen != "any" and kept["master"]:
        if frameworks()[chosen].fp32_weights:
            kept |= {"weights": 4, "gradients": 4, "master": 0}
        elif frameworks()[chosen].fp32_gradients:
            kept |= {"gradients": 4}
    moments = numerics()["optimizers"][job.optimizer]["moments"] * kept["moment"]
    return StateBytes(
        weights=kept["weights"] / (shards if zero >= 3 else 1),
        gradients=kept["gradients"] / (shards if zero >= 2 else 1),
        master=kept["master"] / (shards if zero >= 1 else 1),
        moments=moments / (shards if zero >= 1 else 1),
    )
