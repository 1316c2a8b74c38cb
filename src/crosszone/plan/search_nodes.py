"""Search nodes: layout, schedule and micro-batch of every strategy, and the stages they run on, in arrays.

A strategy of the search, a candidate, is a node with an option (sharding, recomputation, overlap ...). Its stages are
one row for each different chain of its layout. Rows of like length are stacked and padded, so that the cost model
computes thousands of candidates at once.

Array names end in their shape where a reader could doubt it; arrays of `SearchNodes` have one entry a node ([N]):

    L layouts    G node groups    N nodes    C candidates    X rows of stages, a row a chain    R runs of equal stages
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from crosszone.plan.layout_table import EVEN_SHARES, EqualStageRuns, LayoutTable, MicroBatchShares, ScheduleChoice

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
BATCH_ROWS = 4096  # Candidates that are scored together: their columns stay in the processor's cache
# Numbers of runs that rows are padded to: about half as many again each time, so that padding at most doubles a row
# and few different widths are left to score one after the other.
WIDTHS = (1, 2, 3, 4, 6, 9, 14, 20, 30, 45, 70, 105, 160)
# Candidates that are scored apart from wider ones: a call for fewer takes longer than padding them.
MIN_BATCH_ROWS = 512
PADDING_START = 1e9  # Padded runs start here, behind every stage, so that looking a stage up never selects them


class PaddedStages(NamedTuple):
    """Stages of one width, stacked: arrays [X, R]; padded runs have no layers."""

    mixed_gpus: bool
    """Some row has runs on different GPUs."""
    counts: Floats
    moe_counts: Floats
    """Of these layers, those with experts."""
    attention_counts: Floats
    """Of hybrids: attention blocks, and Mamba-2 layers."""
    mamba_counts: Floats
    repeats: Floats
    starts: Floats
    layer_kind: Ints
    gpu_bytes: Floats
    """Memory of the GPU, bytes."""
    host_bytes: Floats
    """Memory of its node for each GPU, bytes; inf: not known."""
    rate: Floats
    back_rate: Floats
    latency: Floats
    dp_zones: Floats
    slowest: Floats
    """Rate over the slowest link of all, [X, 1], where those after runs are not given."""


COUNTS = ("counts", "moe_counts", "attention_counts", "mamba_counts")
# Values of padded runs. Other columns repeat their last run: wrap-around reads the last column.
PADDING = {"repeats": 1.0, "starts": PADDING_START} | dict.fromkeys(COUNTS, 0.0)


@dataclass(frozen=True, kw_only=True)
class NodeBlock:
    """Layouts that may run under a schedule, and their micro-batches: one entry a node."""

    schedule: ScheduleChoice
    layouts: Ints
    layout: Ints
    micro_batch: Ints
    micro_batches: Ints
    shares: Ints


@dataclass(frozen=True, kw_only=True)
class SearchNodes:
    """Layout, schedule and micro-batch of every node, and what follows from them: arrays [N]."""

    layout: Ints
    schedule: Ints
    first_row: Ints
    """Its first row among those of its width."""
    width: Ints
    """Of its rows, in runs."""
    chains: Ints
    traits: Ints
    micro_batch: Ints
    micro_batches: Ints
    """Of a replica, the most of any."""
    shares: Ints
    """How chains share them out (a number of `MicroBatchShares`); `EVEN_SHARES`: equally."""

    def __len__(self) -> int:
        return len(self.layout)

    def take(self, index: Ints) -> SearchNodes:
        """Some of them."""
        return SearchNodes(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


# Layouts of one pattern and schedule, with the runs they have in common, one after the other.
PatternRuns = list[tuple[Ints, EqualStageRuns, ScheduleChoice]]


def build_nodes(
    table: LayoutTable,
    blocks: Sequence[NodeBlock],
    traits_L: Ints,
    memory_bytes: Sequence[tuple[float, float]],
    layers_know_pipelines: bool,
) -> tuple[dict[int, PaddedStages], SearchNodes, Ints, dict[int, PatternRuns]]:
    """Padded stages by their width, the nodes that run on them, every kind of layer, and whose stages they are.

    A kind of layer is what its cost depends on: tp, cp, ep, nodes in use, perhaps whether it lies in a pipeline, and
    node group.
    """
    by_width: dict[int, PatternRuns] = {}
    rows_filled: dict[int, int] = {}
    columns_of_blocks = []
    for number, block in enumerate(blocks):
        row_and_width_2L = np.zeros((2, len(table.layouts)), dtype=np.int64)  # first row and width of each layout
        for layouts, runs in table.group_by_pattern(block.layouts, block.schedule):
            chains = runs.groups.shape[0]
            width = next((width for width in WIDTHS if width >= len(runs)), len(runs))
            start = rows_filled.get(width, 0)
            row_and_width_2L[0, layouts], row_and_width_2L[1, layouts] = start + chains * np.arange(len(layouts)), width
            rows_filled[width] = start + chains * len(layouts)
            by_width.setdefault(width, []).append((layouts, runs, block.schedule))
        layout, micro_batch = block.layout, block.micro_batch
        placed = (np.full(len(layout), number), *row_and_width_2L[:, layout])
        columns_of_blocks.append((layout, *placed, micro_batch, block.micro_batches, block.shares))
    joined = (np.concatenate(column) for column in zip(*columns_of_blocks, strict=True))
    layout, schedule, first_row, width_of, micro_batch, micro_batches, shares = joined
    nodes = SearchNodes(
        layout=layout,
        schedule=schedule,
        first_row=first_row,
        width=width_of,
        chains=table.chains[layout],
        traits=traits_L[layout],
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        shares=shares,
    )
    # layers differ with pipelines only where the software pads or waits otherwise in one
    piped_L = (table.pp > 1) & layers_know_pipelines
    degrees_L5 = np.stack([table.tp, table.cp, table.ep, table.nodes_used, piped_L], axis=1)
    used_layouts = np.unique(np.concatenate([layouts for members in by_width.values() for layouts, _, _ in members]))
    kinds, kind_of_used = np.unique(degrees_L5[used_layouts], axis=0, return_inverse=True)
    kind_L = np.zeros(len(table.layouts), dtype=np.int64)
    kind_L[used_layouts] = kind_of_used.ravel()
    memory, groups = np.array(memory_bytes), len(memory_bytes)
    padded_by_width = {
        width: _pad_stages(table, members, kind_L * groups, memory, width) for width, members in by_width.items()
    }
    codes = np.unique(np.concatenate([padded.layer_kind.ravel() for padded in padded_by_width.values()]))
    kinds_used = np.concatenate([kinds[codes // groups], (codes % groups)[:, None]], axis=1)
    numbered = {
        width: padded._replace(layer_kind=np.searchsorted(codes, padded.layer_kind))
        for width, padded in padded_by_width.items()
    }
    return numbered, nodes, kinds_used, by_width


def _pad_stages(
    table: LayoutTable, members: PatternRuns, kind_base_L: Ints, memory_G2: Floats, width: int
) -> PaddedStages:
    """Rows of one width, layout after layout and chain after chain; padded runs have no layers."""
    count = sum(len(layouts) * runs.groups.shape[0] for layouts, runs, _ in members)

    def empty(value: float) -> Floats:
        return np.full((count, width), value)

    counts_XR = {name: empty(0.0) for name in COUNTS}
    repeats_XR, starts_XR, dp_zones_XR = (empty(x) for x in (1.0, PADDING_START, 1.0))
    groups_XR, kind_base_X = np.zeros((count, width), dtype=np.int64), np.zeros(count, dtype=np.int64)
    start = 0
    for layouts, runs, _ in members:
        n, c = len(layouts), runs.groups.shape[0]
        rows, real = slice(start, start + n * c), slice(len(runs))
        for name, padded in counts_XR.items():
            padded[rows, real] = getattr(runs, name)
        repeats_XR[rows, real] = runs.repeats
        starts_XR[rows, real], dp_zones_XR[rows, real] = runs.starts, runs.dp_zones
        kind_base_X[rows] = np.repeat(kind_base_L[layouts], c)
        groups_XR[rows, real] = np.tile(runs.groups, (n, 1))
        for padded in (groups_XR, dp_zones_XR):
            padded[rows, len(runs) :] = padded[rows, len(runs) - 1 : len(runs)]
        start += n * c
    # One number for kind and node group; `build_nodes` renumbers those in use without gaps.
    layer_kind_XR = kind_base_X[:, None] + groups_XR
    mixed_gpus = bool((groups_XR != groups_XR[:, :1]).any())
    gpu_bytes_XR, host_bytes_XR = memory_G2[groups_XR, 0], memory_G2[groups_XR, 1]
    rate_XR, back_rate_XR, latency_XR, slowest_X1 = _pad_links(table, members, width)
    return PaddedStages(
        mixed_gpus=mixed_gpus,
        **counts_XR,
        repeats=repeats_XR,
        starts=starts_XR,
        layer_kind=layer_kind_XR,
        gpu_bytes=gpu_bytes_XR,
        host_bytes=host_bytes_XR,
        rate=rate_XR,
        back_rate=back_rate_XR,
        latency=latency_XR,
        dp_zones=dp_zones_XR,
        slowest=slowest_X1,
    )


def _pad_links(table: LayoutTable, members: PatternRuns, width: int) -> tuple[Floats, Floats, Floats, Floats]:
    """The columns of `PaddedStages` that follow from links: rate, back rate, latency and slowest."""
    count = sum(len(layouts) * runs.groups.shape[0] for layouts, runs, _ in members)
    rate_XR, back_rate_XR, latency_XR = (np.full((count, width), value) for value in (np.inf, np.inf, 0.0))
    slowest_X1, start = np.full((count, 1), np.inf), 0
    for layouts, runs, schedule in members:
        n, c = len(layouts), runs.groups.shape[0]
        rows, real = slice(start, start + n * c), slice(len(runs))
        start += n * c
        links = table.find_links(layouts, schedule)
        if links is not None and runs.is_merged:
            slowest_X1[rows] = np.minimum(*links[:2]).reshape(n * c, 1)
        elif links is not None:
            for padded, values in zip((rate_XR, back_rate_XR, latency_XR), links, strict=True):
                padded[rows, real] = values.reshape(n * c, -1)
                padded[rows, len(runs) :] = padded[rows, len(runs) - 1 : len(runs)]
    return rate_XR, back_rate_XR, latency_XR, slowest_X1


def replace_links(
    padded: dict[int, PaddedStages], members: dict[int, PatternRuns], table: LayoutTable
) -> dict[int, PaddedStages]:
    """The same stages with the links of a layout table."""
    replaced = dict(padded)
    for width, width_members in members.items():
        if any(runs.boundaries for _, runs, _ in width_members):
            rate, back_rate, latency, slowest = _pad_links(table, width_members, width)
            replaced[width] = padded[width]._replace(rate=rate, back_rate=back_rate, latency=latency, slowest=slowest)
    return replaced


def split_into_batches(nodes: SearchNodes) -> list[Ints]:
    """Places of nodes that are scored together: of like width, and so few that they fit in the cache."""
    order = np.argsort(nodes.width, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(nodes.width[order])) + 1, len(order))
    batches, start = [], 0
    for end in ends.tolist():
        if end - start < MIN_BATCH_ROWS and end < len(order):
            continue
        batches += [order[at : min(at + BATCH_ROWS, end)] for at in range(start, end, BATCH_ROWS)]
        start = end
    return batches


class StageTable:
    """The stages of some nodes, column by column: a row for each different chain of each node ([X])."""

    def __init__(self, padded: dict[int, PaddedStages], nodes: SearchNodes, micro_batch_shares: MicroBatchShares):
        self._nodes, self._one_chain = nodes, bool((nodes.chains == 1).all())
        self.owner = np.arange(len(nodes)) if self._one_chain else np.repeat(np.arange(len(nodes)), nodes.chains)
        """Place of the node of each row."""
        first = np.cumsum(nodes.chains) - nodes.chains
        chain = np.arange(len(self.owner)) - first[self.owner]
        row = nodes.first_row[self.owner] + chain
        self.search_nodes = nodes if self._one_chain else nodes.take(self.owner)
        """The node of each row, with the row's own micro-batches."""
        uneven = np.flatnonzero(self.search_nodes.shares != EVEN_SHARES)
        if len(uneven):
            micro_batches = self.search_nodes.micro_batches.copy()
            micro_batches[uneven] = micro_batch_shares.list_chain_shares(
                self.search_nodes.shares[uneven], chain[uneven]
            )
            self.search_nodes = replace(self.search_nodes, micro_batches=micro_batches)
        widths = np.unique(nodes.width).tolist()
        self.width = max(widths)
        runs = nodes.width[self.owner] if len(widths) > 1 else None
        rows = [slice(None) if runs is None else np.flatnonzero(runs == width) for width in widths]
        self._sources = [(padded[width], row[index], index) for width, index in zip(widths, rows, strict=True)]
        self.mixed_gpus = any(stages.mixed_gpus for stages, _, _ in self._sources)

    def column(self, name: str) -> Any:
        """A column of `PaddedStages` of every row, as wide as the widest: [X, R]."""
        if len(self._sources) == 1:
            padded, row, _ = self._sources[0]
            return getattr(padded, name)[row]
        width = 1 if name == "slowest" else self.width
        column_XR = np.empty((len(self.owner), width), dtype=getattr(self._sources[0][0], name).dtype)
        for padded, row, rows in self._sources:
            values = getattr(padded, name)[row]
            column_XR[rows, : values.shape[1]] = values
            column_XR[rows, values.shape[1] :] = PADDING.get(name, values[:, -1:])
        return column_XR

    def reduce_to_worst(self, values: Floats) -> Floats:
        """The largest of each node's rows: the slowest or fullest chain decides."""
        if self._one_chain:
            return values
        return np.asarray(np.maximum.reduceat(values, np.cumsum(self._nodes.chains) - self._nodes.chains))
