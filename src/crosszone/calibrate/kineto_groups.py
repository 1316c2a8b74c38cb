"""Kineto groups: which way of splitting a collective of a profiler's trace belongs to.

    way_of_name("TENSOR_MODEL_PARALLEL_GROUP")            # "tensor", as Megatron calls its groups
    way_of_name("mesh_dp_shard")                          # "data", as a device mesh calls them
    way_of_use({("all_gather", "forward"), ("reduce_scatter", "backward")})       # "data": sharded parameters

What the user says of a group comes first, then its name, then its ranks, then what it is used for: the last is a
guess, and is told as one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from crosszone.errors import InvalidError, Notice

WAYS = ("tensor", "context", "experts", "pipeline", "data", "other")
"""Ways of splitting whose messages are told apart."""
SHORT = {"tp": "tensor", "cp": "context", "ep": "experts", "pp": "pipeline", "dp": "data"}
_DATA = {"dp", "ddp", "edp", "data", "fsdp", "hsdp", "replicate", "replica", "shard", "zero"}
_PIPELINE = {"pp", "pipeline", "pipe", "embedding", "embd", "embed"}
_EXPERTS = {"ep", "expert", "experts", "moe"}
_TENSOR = {"tp", "tensor"}
_CONTEXT = {"cp", "context", "ring", "ulysses", "sequence"}
_COLLECTIVES = (
    ("all_to_all", ("alltoall", "a2a")),
    ("reduce_scatter", ("reducescatter",)),
    ("all_gather", ("allgather",)),
    ("all_reduce", ("allreduce",)),
    ("send", ("sendrecv", "send", "recv", "isend", "irecv", "p2p")),
    ("broadcast", ("broadcast", "bcast")),
    ("reduce", ("reduce",)),
    ("gather", ("gather",)),
    ("scatter", ("scatter",)),
    ("barrier", ("barrier",)),
)


@dataclass(frozen=True)
class Group:
    """A process group as a trace names it; what it does not say is empty."""

    name: str = ""
    about: str = ""
    """What the framework calls it."""
    size: int = 0
    ranks: tuple[int, ...] = ()

    @property
    def shown(self) -> str:
        """What a reader calls it."""
        return self.about if self.about not in ("", "undefined") else self.name or "unnamed"


def collective_of(text: str) -> str:
    """The plain name of a collective from how a kernel or an annotation spells it; empty: none.

    `ncclDevKernel_AllReduce_Sum_bf16_RING_LL`, `nccl:_reduce_scatter_base`, `allgather_into_tensor_coalesced`.
    """
    plain = re.sub(r"[^a-z0-9]", "", text.lower())
    return next((name for name, parts in _COLLECTIVES if any(part in plain for part in parts)), "")


def way_of_name(text: str) -> str | None:
    """The way of splitting that a group's name tells; None: it does not."""
    words = set(re.split(r"[^a-z0-9]+|(?<=[a-z])(?=\d)", text.lower()))
    if words & _DATA:
        return "data"
    if words & _PIPELINE:
        return "pipeline"
    if words & _EXPERTS:
        return "tensor" if words & _TENSOR and "model" not in words else "experts"
    if words & _TENSOR:
        return "tensor"
    return "context" if words & _CONTEXT else None


def way_of_ranks(group: Group, degrees: Mapping[str, int]) -> str | None:
    """The way whose degree and distance between ranks are those of the group. [K44]

    Ranks count over tensor, context, data, pipeline in this order: neighbours of a way lie as far apart as the
    product of the degrees before it. None: no way, or more than one, fits.
    """
    if len(group.ranks) < 2 or not degrees:
        return None
    apart = group.ranks[1] - group.ranks[0]
    tp, cp, dp, pp = (max(1, degrees.get(key, 1)) for key in ("tp", "cp", "dp", "pp"))
    fits = {
        "tensor": (tp, 1),
        "context": (cp, tp),
        "data": (dp, tp * cp),
        "pipeline": (pp, tp * cp * dp),
    }
    found = [way for way, (size, far) in fits.items() if size > 1 and (size, far) == (len(group.ranks), apart)]
    if not found and cp > 1 and (len(group.ranks), apart) == (dp * cp, tp):
        return "data"  # gradients are summed over context and data together
    return found[0] if len(found) == 1 else None


def way_of_use(uses: Collection[tuple[str, str]]) -> str:
    """The likely way of a group from the collectives it does, each with the pass it does them in. [K44]

    Messages between two ranks: pipeline. All-to-all: experts. Sums in the forward pass: tensor, for gradients are
    summed after it. Else data.
    """
    kinds = {collective for collective, _ in uses} - {"barrier", ""}
    if "all_to_all" in kinds:
        return "experts"
    if kinds and kinds <= {"send"}:
        return "pipeline"
    if any(kind in ("all_reduce", "reduce_scatter") and where in ("forward", "recompute") for kind, where in uses):
        return "tensor"
    return "data" if kinds else "other"


def told_ways(lines: Sequence[str] | None) -> dict[str, str]:
    """`NAME=WAY` lines as ways by group name; `InvalidError` for a way that is none."""
    found: dict[str, str] = {}
    for line in lines or ():
        name, equals, way = line.rpartition("=")
        if not equals or not name.strip():
            raise InvalidError(Notice(code="assignment_malformed", field="--group", value=line))
        word = SHORT.get(way.strip().lower(), way.strip().lower())
        if word not in WAYS:
            params = {"allowed": [*SHORT, "other"], "nearest": "tp"}
            raise InvalidError(Notice(code="not_one_of", field="--group", value=way, params=params))
        found[name.strip().lower()] = word
    return found
