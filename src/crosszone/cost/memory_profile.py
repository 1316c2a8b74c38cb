"""Memory coefficients of software stacks (`profiles/memory.yaml`), with origin and error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from crosszone.cost.columns import Numbers, stacked
from crosszone.inputs.shipped import read_shipped


@dataclass(frozen=True, kw_only=True)
class MemoryCoefficients:
    """What a software stack keeps where the formulas leave a choice; numbers, or columns [n, 1]."""

    base_gib: Numbers
    """Context of the GPU, libraries and the allocator's reserve, as far as the source's figure counts them."""
    activations: Numbers
    """Kept activations over those that the formulas count."""
    working: Numbers
    """Temporaries of one layer's backward pass over the activations of that layer."""
    logit_bytes: Numbers
    """Bytes per logit of one micro-batch while the loss and its gradient are computed."""
    split_logit_bytes: Numbers
    """More of them where the vocabulary is split among tensor-parallel ranks."""
    norm_bytes: Numbers
    """Bytes that a norm keeps of each value, its output apart: its input (2); an RMSNorm in single operators more."""
    gated_copies: Numbers
    """Tensors of the MLP's width that a gated MLP keeps: gate, up, product."""
    plain_copies: Numbers
    """The same of a two-matrix MLP: before and after the activation function."""
    routed_copies: Numbers
    """Copies of the tokens at their experts: before and, where weighted afterwards, after the expert."""
    gathered_inputs: Numbers
    """1: inputs that sequence parallelism gathers are kept gathered."""
    dropout: Numbers
    """1: two dropout masks of a byte are kept in each layer."""
    selective_kept: Numbers
    """Share of a layer's activations that selective recomputation keeps; 1: it drops the scores only."""
    gradients_freed: Numbers
    """1: gradients do not exist between the optimizer's step and the next backward pass."""
    gradient_copy_bytes: Numbers
    """Bytes per parameter of a second copy of the gradients, not sharded."""
    step_bytes: Numbers
    """Bytes per parameter of the local shard that the optimizer's step needs for a while."""
    step_kept: Numbers
    """1: the allocator keeps those bytes, too scattered for activations, and the measured figure counts them."""
    gathered_layers: Numbers
    """Layers of sharded weights that are gathered at once: the current one and those fetched ahead."""
    bucket_copy: Numbers
    """1: gradients are reduced in buckets of their own (DDP)."""


@cache
def memory_profiles() -> dict[str, Any]:
    """`memory.yaml`: `common` holds every field, `stacks` what differs."""
    loaded: dict[str, Any] = read_shipped("crosszone.cost", "profiles/memory.yaml").value
    return loaded


def memory_entries(stack: str) -> dict[str, dict[str, Any]]:
    """Value, origin, source and error of each field for a stack; an unknown stack takes the common ones."""
    profiles = memory_profiles()
    own = dict(profiles["stacks"].get(stack, {}))
    like = own.pop("like", None)
    return {**(memory_entries(like) if like else profiles["common"]), **own}


def memory_coefficients(stack: str | Sequence[str]) -> MemoryCoefficients:
    """The coefficients of a stack (numbers) or of many (columns [n, 1]); an unknown stack takes the common ones."""
    if not isinstance(stack, str):
        each = {name: memory_coefficients(name) for name in set(stack)}
        return stacked([each[name] for name in stack])
    entries = memory_entries(stack)
    return MemoryCoefficients(**{f.name: float(entries[f.name]["value"]) for f in fields(MemoryCoefficients)})
