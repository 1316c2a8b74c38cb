"""Measured links: latency and rate of collectives as they were timed on a cluster, in place of the catalogue's.

    timings = CollectiveTimings(profile.collectives)
    group = Group(ranks=8.0, stride=1.0, gpu=gpu)
    is_measured, tier = timings.find_tier(("all_reduce",), group, size_bytes, otherwise=Tier(rate, 0.0))

A collective was timed for an op, so many nodes, so many GPUs of each, and a range of sizes. A group of ranks takes the
timing with as many GPUs on each node whose nodes and sizes are nearest; where none has, `otherwise` stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple
from zlib import crc32

import numpy as np
from pydantic import Field, model_validator

from crosszone.cost.columns import GpuColumns
from crosszone.cost.record import plain
from crosszone.cost.tiers import BYTES_PER_S_PER_GB_PER_S, Tier
from crosszone.inputs.value import Count, Name, NotNegative, Positive, Value, refuse

Op = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
SECONDS_PER_US = 1e-6
# Octaves of size that one octave of nodes counts for: rates change more with the nodes than with the size.
NODES_FIRST = 10.0
OTHER_OP = 5.0  # The same for a timing of another op: nearer than other nodes, for it crosses the same links
# Ops whose timings tell of one: a ring's passes run over the same links.
RING_OPS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("all_reduce",),
    "reduce_scatter": ("reduce_scatter", "all_reduce"),
    "all_gather": ("all_gather", "all_reduce"),
}


class MeasuredCollective(Value):
    """One line of a profile: a collective timed over some sizes."""

    op: Op
    gpu: Name
    """Catalogue name of the GPUs."""
    nodes: Count
    gpus_per_node: Count
    """Of the group, on each node."""
    low_bytes: Positive
    high_bytes: Positive
    """Sizes it was timed at, of the whole tensor."""
    latency_us: NotNegative
    """Of one step, library included."""
    gb_per_s: Positive
    """1e9 B/s, one direction."""
    error_pct: NotNegative
    """Mean absolute error of these two figures on sizes they were not fitted to, where there were enough."""
    rows: Count
    """Timings behind it."""
    origin: Literal["measured", "fitted"] = "measured"
    """Fitted: to whole jobs, in which all groups send at once."""
    note: str = Field(default="", exclude_if=lambda text: not text)

    @model_validator(mode="after")
    def _check_sizes(self) -> MeasuredCollective:
        if self.high_bytes < self.low_bytes:
            raise refuse("must_be_at_least", self.high_bytes, at=("high_bytes",), limit=self.low_bytes)
        if self.nodes * self.gpus_per_node < 2:
            raise refuse("must_be_at_least", self.gpus_per_node, at=("gpus_per_node",), limit=2)
        return self


class Group(NamedTuple):
    """Ranks that exchange something: how many, how far apart, on which GPUs."""

    ranks: Any
    stride: Any
    gpu: GpuColumns

    @property
    def layout(self) -> tuple[Any, Any]:
        """Nodes that the group lies on, and how many of it are on each: plain numbers."""
        ranks, stride, node_gpus = map(plain, (self.ranks, self.stride, self.gpu.node_gpus))
        local = np.minimum(np.maximum(np.floor(node_gpus / stride), 1.0), ranks)
        return np.ceil(ranks / local), local


def encode_gpu(name: str) -> float:
    """A number that stands for a GPU kind in columns of numbers."""
    # crc32, not hash(), which differs from process to process; 32 bits are exact in a float
    return float(crc32(name.encode()))


class CollectiveTimings:
    """The timed collectives of a profile, looked up for any number of groups at once."""

    def __init__(self, collectives: Sequence[MeasuredCollective]):
        self.collectives = tuple(collectives)

    def find_tier(self, ops: Sequence[str], group: Group, size_bytes: Any, otherwise: Tier) -> tuple[Any, Tier]:
        """Whether the group's layout was measured, and its link: the timing of the nearest nodes and size. [C15]

        The choice is made on plain numbers: a recorded prediction names the timing it took, not all there are.
        """
        nodes, local = group.layout
        ranks, code = plain(group.ranks), plain(group.gpu.code)
        size = np.maximum(plain(size_bytes), 1.0)
        nearest = np.full(np.broadcast_shapes(np.shape(nodes), np.shape(size), np.shape(code)), np.inf)
        rate, latency_s = otherwise
        for collective in self.collectives:
            if collective.op not in ops:
                continue
            # inside a node and over the network are other links, never each other's stand-in [C15]
            same = (local == collective.gpus_per_node) & ((nodes > 1) == (collective.nodes > 1)) & (ranks > 1)
            same = same & (code == encode_gpu(collective.gpu))
            if not np.any(same):
                continue
            away = NODES_FIRST * np.abs(np.log2(nodes / collective.nodes)) + OTHER_OP * ops.index(collective.op)
            away = (
                away
                + np.maximum(0.0, np.log2(collective.low_bytes / size))
                + np.maximum(0.0, np.log2(size / collective.high_bytes))
            )
            closer = same & (away < nearest)
            nearest = np.where(closer, away, nearest)
            rate = np.where(closer, collective.gb_per_s * BYTES_PER_S_PER_GB_PER_S, rate)
            latency_s = np.where(closer, collective.latency_us * SECONDS_PER_US, latency_s)
        return np.isfinite(nearest), Tier(rate, latency_s)
