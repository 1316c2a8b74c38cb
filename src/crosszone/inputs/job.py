"""Job: what to train: batch, length of the run, precision, optimizer, framework.

Bytes of model state per parameter: weights, gradients, master weights, optimizer moments. [J3]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, Strict, model_validator

from crosszone.inputs.frameworks import load_frameworks, resolve_framework_name
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.software import Software
from crosszone.inputs.value import Count, Name, OtherForms, Positive, Value, refuse

Precision = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4", "fp32", "bf16-pure", "bf16-amp"]
Fp8Recipe = Literal["tensorwise", "rowwise", "blockwise"]
Optimizer = Literal["adamw", "adam", "lamb", "lion", "muon", "sgd", "sgd-momentum", "adafactor"]
FrameworkName = Literal["any", "ddp", "fsdp", "deepspeed", "megatron", "horovod"]


_ALIAS_FORM = {"type": "string", "description": "Another spelling, e.g. pytorch-ddp."}


def _resolve_framework(name: Any) -> Any:
    return resolve_framework_name(name) if isinstance(name, str) else name


class Job(Value):
    """What to train.

    Job(seq_len=4096, global_batch=1024, tokens=1e12)
    Job(seq_len=2048, global_batch=512, corpus_tokens=3e11, epochs=2, precision="fp16", optimizer="adamw")
    """

    seq_len: Annotated[int, Strict(), Field(ge=1, le=100_000_000)]
    """Tokens of one sample."""
    global_batch: Count
    """Samples of one optimizer step, over all GPUs."""
    tokens: Positive | None = None
    """Tokens of the whole run; null: only a step is predicted."""
    corpus_tokens: Positive | None = None
    """Tokens of the corpus; with `epochs`, in place of `tokens`."""
    epochs: Positive | None = None
    """How often the corpus is read."""
    precision: Precision = "bf16"
    """bf16, fp16, fp8, mxfp8, nvfp4: fp32 master weights; bf16-pure: states too; bf16-amp: fp32 states, autocast."""
    fp8_recipe: Fp8Recipe | None = None
    """Scales of precision fp8: one a tensor, a row or a block; null: one a tensor."""
    optimizer: Optimizer = "adamw"
    """Sets the moments kept per parameter."""
    framework: Annotated[FrameworkName, BeforeValidator(_resolve_framework), OtherForms(_ALIAS_FORM)] = "any"
    """Training framework; any: one that can do the strategy."""
    stack: Name | None = None
    """Measured software whose switches and coefficients are used; null: those that are usual for the framework."""
    software: Software | None = None
    """What the software does where frameworks and releases differ; null: assumed."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tokens is not None and (self.corpus_tokens is not None or self.epochs is not None):
            raise refuse("tokens_twice", self.tokens)
        if self.epochs is not None and self.corpus_tokens is None:
            raise refuse("epochs_without_corpus", self.epochs)
        if self.fp8_recipe is not None and self.precision != "fp8":
            raise refuse("fp8_recipe_precision", self.fp8_recipe, precision=self.precision)
        return self

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step: s x B. [J1]"""
        return self.seq_len * self.global_batch

    @property
    def total_tokens(self) -> float | None:
        """Tokens of the whole run; None when its length is not given."""
        if self.corpus_tokens is not None:
            return self.corpus_tokens * (1.0 if self.epochs is None else self.epochs)
        return self.tokens

    @property
    def steps(self) -> int | None:
        """Optimizer steps of the whole run, the last one rounded up. [J2]"""
        total = self.total_tokens
        return None if total is None else math.ceil(total / self.tokens_per_step)


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
def load_numerics() -> dict[str, Any]:
    """Bytes by precision and moments by optimizer (`numerics.yaml`)."""
    loaded: dict[str, Any] = read_shipped("crosszone.inputs", "numerics.yaml").value
    return loaded


def find_compute_path(job: Job) -> str:
    """The tensor path a GPU needs for this job: fp32, fp16, bf16, fp8 or fp4."""
    path: str = load_numerics()["precisions"][job.precision]["compute"]
    return path


def list_precision_architectures(job: Job) -> tuple[str, ...]:
    """GPU architectures that have the job's number format; empty: all that have its tensor path."""
    return tuple(load_numerics()["precisions"][job.precision].get("architectures", ()))


def state_bytes(job: Job, *, framework: str | None = None, zero: int = 0, shards: int = 1) -> StateBytes:
    """Bytes per parameter on one rank, with ZeRO stage `zero` over `shards` ranks. [J3]

    ZeRO 1 shards master weights and moments, 2 the gradients too, 3 the weights too. In mixed precision Megatron-LM
    keeps fp32 gradients (18 bytes with Adam in place of 16), and autocast keeps fp32 weights and no master copy.
    """
    dtypes = dict(load_numerics()["precisions"][job.precision])
    name = framework or job.framework
    # a precision without a master copy has the same bytes in every framework
    if name != "any" and dtypes["master"]:
        if load_frameworks()[name].fp32_weights:
            dtypes |= {"weights": 4, "gradients": 4, "master": 0}
        elif load_frameworks()[name].fp32_gradients:
            dtypes |= {"gradients": 4}
    moments = load_numerics()["optimizers"][job.optimizer]["moments"] * dtypes["moment"]
    return StateBytes(
        weights=dtypes["weights"] / (shards if zero >= 3 else 1),
        gradients=dtypes["gradients"] / (shards if zero >= 2 else 1),
        master=dtypes["master"] / (shards if zero >= 1 else 1),
        moments=moments / (shards if zero >= 1 else 1),
    )
