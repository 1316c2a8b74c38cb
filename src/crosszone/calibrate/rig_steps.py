"""Training steps of the rig: gradients exchanged bucket by bucket while the backward pass still runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from crosszone.inputs.shipped import read_shipped

FLOAT_BYTES = 4.0
MIB = 2.0**20


@dataclass(frozen=True, kw_only=True)
class RigJob:
    """What the rig trains: equal layers, each one matrix."""

    gradient_bytes: float
    """Of all layers, fp32."""
    layers: int
    matrix: tuple[int, int]
    """Rows and columns of a layer."""
    backward_s_per_layer: float
    memory_bytes_per_s: float
    """At which a rank copies gradients."""

    @property
    def layer_bytes(self) -> float:
        """Gradients of one layer."""
        return self.gradient_bytes / self.layers


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to exchange the gradients of that job."""

    bucket_mib: float
    """Size that closes a bucket."""
    passes: float
    """Times that the host reads or writes a bucket's gradients."""
    wire_bytes: float = FLOAT_BYTES
    """Of a gradient on the wire."""
    rank: int | None = None
    """Of PowerSGD's factors, which are reduced one after the other in place of the gradients."""
    steps: int = 1
    """Steps of compute that one exchange serves."""
    after: bool = False
    """The exchange begins when all compute is over."""
    mean: bool = False
    """What was timed is the mean of those steps, not their sum."""


def buckets(layers: int, layer_bytes: float, cap_bytes: float) -> list[int]:
    """Layers of each bucket, in the order in which the backward pass fills them. [A24]

    PyTorch's rule: a layer that reaches the cap closes the bucket, which may so be larger than it.
    """
    found, size = [0], 0.0
    for _ in range(layers):
        if found[-1] and size >= cap_bytes:
            found, size = [*found, 0], 0.0
        found[-1] += 1
        size += layer_bytes
    return found


def step_s(job: RigJob, variant: Variant, compute_s: float, all_reduce_s: Callable[[float], float]) -> float:
    """Seconds of what the rig timed: compute of a step is measured, the exchange predicted. [A24]

    A bucket is ready when the backward pass has left its first layer; buckets are exchanged one after the other; the
    step is over when the last is.
    """
    begun = (variant.steps - 1) * compute_s
    left, free = job.layers, 0.0
    for layers in buckets(job.layers, job.layer_bytes, variant.bucket_mib * MIB):
        left -= layers
        ready = compute_s - (0.0 if variant.after else left * job.backward_s_per_layer)
        host_s = variant.passes * layers * job.layer_bytes / job.memory_bytes_per_s
        free = max(free, ready) + host_s + sum(all_reduce_s(size) for size in _sent_bytes(job, variant, layers))
    total = begun + free
    return total / variant.steps if variant.mean else total


def _sent_bytes(job: RigJob, variant: Variant, layers: int) -> list[float]:
    """Sizes of the all-reduces of a bucket; what is no matrix would be one more, and an empty one costs nothing."""
    if variant.rank is None:
        return [layers * job.layer_bytes / FLOAT_BYTES * variant.wire_bytes]
    return [layers * variant.rank * side * variant.wire_bytes for side in job.matrix]


def rig_job() -> RigJob:
    """The job of the shipped description."""
    told, host = _data()["job"], _data()["host"]
    return RigJob(
        gradient_bytes=told["gradient_bytes"],
        layers=told["layers"],
        matrix=(told["matrix"][0], told["matrix"][1]),
        backward_s_per_layer=told["backward_s_per_layer"],
        memory_bytes_per_s=host["memory_bytes_per_s"]["value"],
    )


def variants() -> dict[str, Variant]:
    """The ways to exchange that the rig tried, by operation."""
    return {op: Variant(**told) for op, told in _data()["variants"].items()}


@cache
def _data() -> dict[str, Any]:
    loaded: dict[str, Any] = read_shipped("crosszone.calibrate", "rig_job.yaml").value
    return loaded
