"""Bounds: memory and the least step time of many candidates at once, by the cost model of `predict`.

A candidate is a search node (layout, schedule, micro-batch) and an option. `StrategyColumns` looks up the numbers that
the cost formulas read: what follows from the layout, the schedule or the option stands in a table of its own. They are
looked up batch by batch, so that a million candidates need no more room than their two numbers.

`BoundTable` computes with them. No bound is above the simulated step of any candidate it stands for: that is what lets
the search leave the others out, and `tests/plan/test_bounds.py` checks it. From loose to close: a node with its
fastest option (`bound_nodes_s`), a group of options (`bound_groups_s`), and of one candidate the levels of
`frontier.BoundLevel` (`bound_analytic_s`, `bound_per_stage_s`, `bound_simulated_s`).

Array names end in their shape where a reader could doubt it; `node` and `option` are numbers, one a candidate:

    L layouts    C candidates    X rows of stages, a row a chain of a candidate    R runs of equal stages    S stages
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from crosszone.cost.coefficients import Coefficients
from crosszone.cost.columns import (
    OFFLOAD,
    RECOMPUTE,
    GpuColumns,
    LinkColumns,
    ModelColumns,
    StackColumns,
    WorkColumns,
    build_model_columns,
)
from crosszone.cost.layer import LayerCost
from crosszone.cost.memory import estimate_stage_peaks, read_memory_coefficients
from crosszone.cost.stages import build_stage_layers
from crosszone.inputs.cluster import MAX_GPUS
from crosszone.inputs.job import find_compute_path, state_bytes
from crosszone.inputs.strategy import Strategy
from crosszone.plan.layout_table import LayoutTable, ScheduleChoice
from crosszone.plan.options import FIELDS, OptionTable
from crosszone.plan.problem import SearchSettings, compute_rank_bucket_mb
from crosszone.plan.search_nodes import (
    NodeBlock,
    SearchNodes,
    StageTable,
    build_nodes,
    replace_links,
    split_into_batches,
)
from crosszone.predict.batch import (
    Batch,
    build_group_columns,
    build_job_columns,
    build_stack_columns,
    compute_bucket_bytes,
    count_grad_comm_bytes,
    split_model_layers,
)
from crosszone.predict.parts import cached_part, select_parts
from crosszone.predict.step import bound_step_s, passes_s, simulate_step, step_s
from crosszone.schedule.orders import SPLITS_WEIGHT_GRAD, choose_group_size

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
SHARD_SCOPE = {"all": 0.0, "zone": 1.0, "node": 2.0}
# Columns of an option that memory depends on.
MEMORY_COLUMNS = ("zero", "within", "sequence_parallel", "recompute", "offload", "grad_comm_bytes")
# Columns of work that are an option's own.
OPTION_COLUMNS = (
    "zero",
    "sequence_parallel",
    "recompute",
    "offload",
    "grad_comm_bytes",
    "overlap_gradients",
    "overlap_parameters",
    "overlap_tensor",
    "overlap_window",
)
# Ways a layer may run at one micro-batch: sequence parallelism (2), recomputation (3), overlap of its collectives (2).
LAYER_OPTIONS = 12
# Fields whose fastest value depends on the rest: options are grouped by them. Of all other fields it is known.
GROUP_FIELDS = ("zero", "shard_within", "communication.reduce")
# Passes of the slowest option of a group over those of the fastest, at most: longer passes hide more communication, so
# a bound of the group must assume the longest.
MAX_PASS_RATIO = 3.0
# Rows of a group that stand for its smallest memory: everything recomputed, and nothing (which of them needs
# less depends on the layout).
SMALL_MEMORY_ROWS = 2


class OptionGroupIndex(NamedTuple):
    """Options of one set of traits by the fields of `GROUP_FIELDS`."""

    row: Ints
    """Number of each group's fastest row; its small-memory rows follow after the fastest rows of all groups."""
    first: Ints
    members: Ints
    """Options, group after group."""
    counts: Ints
    """Number of options of each group."""


class StrategyColumns:
    """Every search node of one framework with its options, and the tables their columns come from."""

    def __init__(
        self,
        settings: SearchSettings,
        layout_table: LayoutTable,
        traits_L: Ints,
        options: Sequence[OptionTable],
        blocks: Sequence[NodeBlock],
        *,
        include_dominated: bool = False,
    ):
        """`traits_L`: number of each layout's option table; `blocks`: layouts with a schedule and their micro-batches.

        `include_dominated`: also options that others beat whatever the layout.
        """
        self.settings, self.layout_table = settings, layout_table
        self.options, self.include_dominated = options, include_dominated
        self.parts: dict[str, Any] = {}
        self.schedules = [block.schedule for block in blocks]
        self.option_offset = np.cumsum([0, *(len(table) for table in options)])
        """Number of the first option of each set of traits."""
        self.padded_stages, self.search_nodes, self._layer_kinds, self._runs_by_width = build_nodes(
            layout_table, blocks, traits_L, settings.memory_bytes, settings.layers_know_pipelines
        )

    def with_links(self, settings: SearchSettings, layout_table: LayoutTable) -> Self:
        """The same nodes with other links between the zones."""
        other = copy(self)
        other.settings, other.layout_table = settings, layout_table
        other.padded_stages = replace_links(self.padded_stages, self._runs_by_width, layout_table)
        other.parts = select_parts(self.parts, without=("by_layout",))
        return other

    def share_tables(self, other: StrategyColumns) -> None:
        """Take the tables over that follow from the options alone."""
        for name in (
            "option_groups",
            "by_option",
            "option_memory_class",
            "_vocabulary",
            "stack",
            "over_bytes_by_key",
            "schedule_numbers",
        ):
            if name in other.parts:
                self.parts[name] = other.parts[name]

    @property
    def small_memory_rows(self) -> int:
        """Small-memory rows of each group; where hosts' memory is known, also such that offload nothing to it."""
        return SMALL_MEMORY_ROWS * (1 + any(np.isfinite(host) for _, host in self.settings.memory_bytes))

    @cached_part
    def micro_batch_sizes(self) -> Ints:
        """Sizes of a micro-batch, ascending."""
        return np.unique(self.search_nodes.micro_batch)

    @cached_part
    def option_groups(self) -> list[OptionGroupIndex]:
        """Of each set of traits: rows after all real options that are as fast as any option of their group can be.

        No recomputation, the narrowest gradients, everything overlapped: whatever else an option has, it is no faster.
        """
        groups, start = [], int(self.option_offset[-1])
        for number, table in enumerate(self.options):
            keys = np.zeros(len(table), dtype=np.int64)
            for name in GROUP_FIELDS:
                keys = keys * len(table.values[name]) + table.codes[name]
            _, first, group_of_option = np.unique(keys, return_index=True, return_inverse=True)
            offset = int(self.option_offset[number])
            members = np.argsort(group_of_option, kind="stable")
            if not self.include_dominated:
                members = members[table.undominated[members]]
            counts = np.bincount(group_of_option[members], minlength=len(first))
            groups.append(OptionGroupIndex(start + np.arange(len(first)), first + offset, members + offset, counts))
            start += len(first)
        return groups

    @cached_part
    def by_layout(self) -> dict[str, Floats]:
        """Columns that follow from the layout."""
        table, settings = self.layout_table, self.settings
        columns = {n: getattr(table, n).astype(float) for n in ("tp", "cp", "ep", "pp", "dp", "zone_shards", "fast")}
        columns["dp_stride"] = table.stride.astype(float)
        columns["node_shards"] = np.maximum(1.0, table.node_shards)
        columns["ring_rate"], columns["ring_latency"], columns["flat_rate"] = table.ring.T
        bucket_mb = settings.pinned.communication.bucket_mb
        grad_bytes = state_bytes(settings.job, framework=settings.framework.name).gradients
        bucket_bytes = compute_bucket_bytes(
            settings.model, bucket_mb, settings.framework.name, grad_bytes, columns["tp"], columns["dp"]
        )
        columns["bucket_bytes"] = np.broadcast_to(bucket_bytes, columns["tp"].shape).astype(float)
        if settings.wan_bucket_mb is not None:
            wan_bucket_bytes = 1e6 * compute_rank_bucket_mb(settings, columns["tp"], columns["pp"], columns["dp"])
            columns["bucket_bytes"] = np.where(table.replicas_cross, wan_bucket_bytes, columns["bucket_bytes"])
        return columns

    @cached_part
    def by_option(self) -> dict[str, Floats]:
        """Columns that follow from the option, all traits after one another."""
        states = state_bytes(self.settings.job, framework=self.settings.framework.name)

        def join_tables(field: str, numbers: dict[Any, float] | None = None) -> Floats:
            return np.concatenate([table.get_column(field, numbers) for table in self.options])

        dtypes = {value for table in self.options for value in table.values["communication.gradient_dtype"]}
        grad_comm_bytes = {value: self._count_grad_comm_bytes(value, states.gradients) for value in dtypes}
        columns = {
            "zero": join_tables("zero"),
            "within": join_tables("shard_within", SHARD_SCOPE),
            "sequence_parallel": join_tables("sequence_parallel"),
            "recompute": join_tables("recompute", dict(RECOMPUTE)),
            "offload": join_tables("offload", dict(OFFLOAD)),
            "grad_comm_bytes": join_tables("communication.gradient_dtype", grad_comm_bytes),
            "overlap_gradients": join_tables("communication.overlap_gradients"),
            "overlap_parameters": join_tables("communication.overlap_parameters"),
            "overlap_tensor": join_tables("communication.overlap_tensor"),
            "flat": join_tables("communication.reduce", {"flat": 1.0, "hierarchical": 0.0}),
        }
        columns["overlap_window"] = np.ones(len(columns["zero"]))
        group_options = (
            np.concatenate([groups.first for groups in self.option_groups])
            if self.option_groups
            else np.zeros(0, dtype=np.int64)
        )
        largest = {name: values.max(initial=0.0) for name, values in columns.items()}
        fastest = {"recompute": 0.0, "offload": 0.0, "grad_comm_bytes": min(grad_comm_bytes.values())}
        fastest |= {n: largest[n] for n in ("sequence_parallel", "overlap_tensor")}
        fastest |= {"overlap_gradients": 1.0, "overlap_parameters": 1.0, "overlap_window": MAX_PASS_RATIO}
        small_memory = fastest | {"offload": largest["offload"]}
        extremes = [fastest, small_memory, small_memory | {"recompute": largest["recompute"]}]
        if self.small_memory_rows > SMALL_MEMORY_ROWS:
            extremes += [extreme | {"offload": 0.0} for extreme in extremes[1:]]
        for name, values in columns.items():
            rows = [
                np.full(len(group_options), extreme[name]) if name in extreme else values[group_options]
                for extreme in extremes
            ]
            columns[name] = np.concatenate([values, *rows])
        table_of_group = np.concatenate([np.full(len(groups.row), n) for n, groups in enumerate(self.option_groups)])
        extra_rows = slice(int(self.option_offset[-1]), None)
        for name, field in (("sequence_parallel", FIELDS[2]), ("overlap_tensor", FIELDS[8])):
            has_choice = np.array(
                [any(table.values[field]) for table in self.options]
            )  # none without tensor parallelism
            columns[name][extra_rows] *= np.tile(has_choice[table_of_group], 1 + self.small_memory_rows)
        columns["layer"] = (columns["sequence_parallel"] * 3 + columns["recompute"]) * 2 + columns["overlap_tensor"]
        return columns

    @cached_part
    def option_memory_class(self) -> Ints:
        """Number of the combination that memory can tell apart, of each option and each row after them."""
        classes = np.zeros(len(self.by_option["zero"]), dtype=np.int64)
        for name in MEMORY_COLUMNS:
            values, value_class = np.unique(self.by_option[name], return_inverse=True)
            classes = classes * len(values) + value_class
        return classes

    def _count_grad_comm_bytes(self, dtype: str | None, grad_bytes: float) -> float:
        communication = self.settings.pinned.communication
        return count_grad_comm_bytes(
            self.settings.model,
            communication if dtype is None else communication.replace(gradient_dtype=dtype),
            grad_bytes,
        )

    @cached_part
    def by_schedule(self) -> dict[str, Floats]:
        """Columns that follow from the schedule and its virtual stages."""
        schedules = self.schedules
        return {
            "interleave": np.array([x.virtual_stages for x in schedules], dtype=float),
            "v_shaped": np.array([x.v_shaped for x in schedules], dtype=float),
            "splits_weight_grad": np.array([x.name in SPLITS_WEIGHT_GRAD for x in schedules], dtype=float),
            "dual": np.array([x.name == "dualpipev" for x in schedules], dtype=float),
            "fills": np.array([not x.is_any for x in schedules], dtype=float),
            "extra_warmup": np.array(
                [self.settings.job.global_batch * (x.name == "gpipe") for x in schedules], dtype=float
            ),
        }

    @cached_part
    def _vocabulary(self) -> tuple[ModelColumns, dict[str, Floats]]:
        """The model's columns, and those that depend on tp and pipelines (padding of the vocabulary): [2, tp]."""
        framework, max_tp = self.settings.framework, int(self.layout_table.tp.max())
        columns_2T = [
            [
                build_model_columns(self.settings.model, vocab_multiple=framework.find_vocab_multiple(t, pp), tp=t)
                for t in range(1, max_tp + 1)
            ]
            for pp in (1, 2)
        ]
        names = ("vocab", "embedding_params", "head_params")
        table = {n: np.array([[np.nan, *(float(getattr(c, n)) for c in row)] for row in columns_2T]) for n in names}
        same = all(np.nanmin(values) == np.nanmax(values) for values in table.values())
        return columns_2T[0][0], {} if same else table

    def build_model(self, tp: Floats, pp: Floats) -> ModelColumns:
        """The model as strategies of these degrees see it."""
        plain, table = self._vocabulary
        if not table:
            return plain
        piped, tp = (pp > 1).astype(int), tp.astype(int)
        return replace(plain, **{n: values[piped, tp] for n, values in table.items()})

    @cached_part
    def stack(self) -> StackColumns:
        """The software stack's switches."""
        s = self.settings
        settings = s.profiles.select(s.groups[0].gpu, s.stack).settings
        return build_stack_columns(settings, s.software)

    @cached_part
    def build_gpu_columns(self) -> tuple[GpuColumns, Coefficients]:
        """Columns and coefficients of every kind of layer: numbers where all kinds have the same."""
        precision, groups = find_compute_path(self.settings.job), self.settings.groups
        keys, place = np.unique(self._layer_kinds[:, 5] * (MAX_GPUS + 1) + self._layer_kinds[:, 3], return_inverse=True)
        groups_and_nodes = [divmod(key, MAX_GPUS + 1) for key in keys.tolist()]
        gpu = _gather_columns(
            [build_group_columns(groups[group], precision, nodes) for group, nodes in groups_and_nodes], place
        )
        k = _gather_columns([self.settings.coefficients[group] for group, _ in groups_and_nodes], place)
        return gpu, k

    @cached_part
    def layer_costs(self) -> LayerCost:
        """Cost of a layer for every kind of layer, micro-batch size and way to run it."""
        sizes = self.micro_batch_sizes
        layer_kinds = self._layer_kinds.astype(float)
        count, variants = len(layer_kinds), len(sizes) * LAYER_OPTIONS
        layer_kind = np.repeat(np.arange(count), variants)
        variant = np.tile(np.arange(variants), count)
        size, layer_option = sizes[variant // LAYER_OPTIONS], variant % LAYER_OPTIONS

        def to_column(values: Any) -> Floats:
            return np.asarray(values, dtype=float)[:, None]

        tp, cp, ep, piped = (to_column(layer_kinds[layer_kind, i]) for i in (0, 1, 2, 4))
        work = self._fill_work(
            tp=tp,
            cp=cp,
            ep=ep,
            pp=1.0 + piped,
            micro_batch=to_column(size),
            sequence_parallel=to_column(layer_option // 6),
            recompute=to_column(layer_option // 2 % 3),
            overlap_tensor=to_column(layer_option % 2),
        )
        gpu, k = (expand_columns(columns, layer_kind) for columns in self.build_gpu_columns)
        return LayerCost(self.build_model(tp, 1.0 + piped), work, gpu, self.stack, k, self.settings.profiles.links)

    def _fill_work(self, **columns: Any) -> WorkColumns:
        """Columns of work; what is not known yet has a value that layers do not read."""
        settings = self.settings
        common = build_job_columns(settings.model, settings.job, settings.framework.name, settings.pinned.communication)
        common["expert_tp"] = settings.pinned.expert_tp or np.where(columns["ep"] > 1, 1.0, columns["tp"])
        unused = {f.name: 0.0 for f in fields(WorkColumns) if f.name not in columns and f.name not in common}
        return WorkColumns(**(unused | common | columns))

    def build_work(self, nodes: SearchNodes, option: Ints) -> WorkColumns:
        """Columns of candidates: a node and an option each, arrays [C, 1]."""
        layout, by_option, by_schedule = nodes.layout, self.by_option, self.by_schedule
        columns: dict[str, Any] = {
            n: self.by_layout[n][layout][:, None] for n in ("tp", "cp", "ep", "pp", "dp", "dp_stride", "bucket_bytes")
        }
        columns |= {n: by_option[n][option][:, None] for n in OPTION_COLUMNS}
        columns |= {
            n: by_schedule[n][nodes.schedule][:, None]
            for n in ("interleave", "v_shaped", "extra_warmup", "splits_weight_grad", "fills")
        }
        columns["micro_batch"] = nodes.micro_batch[:, None].astype(float)
        columns["micro_batches"] = nodes.micro_batches[:, None].astype(float)
        columns["shard_ranks"] = self.count_shards(layout, option)[:, None]
        return self._fill_work(**columns)

    def count_shards(self, layout: Ints, option: Ints) -> Floats:
        """Replicas that share one set of states, of candidates with these layouts and options."""
        scope = self.by_option["within"][option]
        dp, zone, node = (self.by_layout[n][layout] for n in ("dp", "zone_shards", "node_shards"))
        return np.where(scope == 0, dp, np.where(scope == 1, zone, node))


def _gather_columns(columns: Sequence[Any], place: Ints) -> Any:
    """Single columns as those of many, by place: a number where all have the same, else an array [len(place)]."""
    first = columns[0]
    gathered = {}
    for f in fields(first):
        values = [getattr(c, f.name) for c in columns]
        gathered[f.name] = values[0] if all(v == values[0] for v in values) else np.array(values, dtype=float)[place]
    return type(first)(**gathered)


def expand_columns(columns: Any, place: Ints) -> Any:
    """Columns [n] as [len(place), 1], or shaped as `place` is; numbers stay numbers."""
    if place.ndim == 1:
        place = place[:, None]
    expanded = {f.name: v[place] for f in fields(columns) if isinstance(v := getattr(columns, f.name), np.ndarray)}
    return replace(columns, **expanded) if expanded else columns


# Factor on bounds of option groups: their fastest row has the shortest backward pass, which hides less of a reduction,
# so it may cost a little more than a real option.
GROUP_SLACK = 0.999

# Columns of links after stages.
BOUNDARY_COLUMNS = ("boundary_bytes_per_s", "boundary_back_bytes_per_s", "boundary_latency_s")
ROUNDING = 1.0 - 1e-9  # On what is simulated for many at once: sums may be rounded otherwise
# Answers of a table that are remembered, and candidates of one answer: larger ones cost more memory than time.
MAX_REMEMBERED, MAX_REMEMBERED_ROWS = 256, 65_536
MAX_MEMORY_KEYS = 100_000  # Candidates whose memory is remembered


class BoundTable(StrategyColumns):
    """Every search node of one framework with its options: the memory they need and the least time they take."""

    remembers = False
    """Others will ask the same with other links (`PlanCache`)."""

    @cached_property
    def _remembered(self) -> dict[tuple[Any, ...], Floats]:
        """Answers that do not depend on links; copies with other links share them (`with_links`)."""
        return {}

    @cached_property
    def over_bytes_by_key(self) -> dict[tuple[int, ...], float]:
        """Bytes that candidates lack, by what memory depends on."""
        return {}

    @cached_property
    def schedule_numbers(self) -> dict[ScheduleChoice, int]:
        """Numbers of schedules in the keys of `over_bytes_by_key`."""
        return {}

    @cached_property
    def _ignores_links(self) -> npt.NDArray[np.bool_]:
        """Which layouts take as long whatever the links between zones, [L]: at most averages of local SGD cross."""
        is_synchronous = self.settings.pinned.local_update is None
        crosses_L = self.layout_table.pipeline_crosses | (self.layout_table.replicas_cross & is_synchronous)
        return np.asarray(~crosses_L)

    def _recall(self, name: str, same_for_all_links: bool, compute: Callable[[], Floats], *arrays: Ints) -> Floats:
        """An answer that was computed before for the same candidates, if links do not change it; else compute it."""
        if not (self.remembers and same_for_all_links) or len(arrays[0]) > MAX_REMEMBERED_ROWS:
            return compute()
        key = (name, *(array.tobytes() for array in arrays))
        if key not in self._remembered:
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = compute()
        return self._remembered[key]

    def _recall_nodes(self, name: str, nodes: SearchNodes, option: Ints, compute: Callable[[], Floats]) -> Floats:
        """The same for nodes and their options."""
        same_for_all_links = bool(self._ignores_links[nodes.layout].all())
        return self._recall(
            name, same_for_all_links, compute, nodes.layout, nodes.schedule, nodes.micro_batch, nodes.shares, option
        )

    def find_option_range(self, traits: int) -> tuple[int, int]:
        """First number of the options that layouts of these traits have, and the one after the last."""
        return int(self.option_offset[traits]), int(self.option_offset[traits + 1])

    def find_nodes(self, layouts: Ints) -> Ints:
        """Numbers of the nodes of some layouts."""
        selected_L = np.zeros(len(self.layout_table.layouts), dtype=bool)
        selected_L[layouts] = True
        return np.flatnonzero(selected_L[self.search_nodes.layout])

    def pair_with_groups(self, nodes: Ints | None = None) -> tuple[Ints, Ints]:
        """Every node (or every one of some) with every option group it has: node, and place among its groups."""
        selected = np.arange(len(self.search_nodes)) if nodes is None else nodes
        counts = np.array([len(groups.row) for groups in self.option_groups])[self.search_nodes.traits[selected]]
        owner = np.repeat(np.arange(len(selected)), counts)
        return selected[owner], np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)

    def bound_nodes_s(self, node: Ints) -> Floats:
        """Least step time of any option of these nodes, from the passes of their stages alone."""
        nodes, option = self.search_nodes.take(node), self._find_fast_rows(node, np.zeros_like(node))
        return GROUP_SLACK * self._recall_nodes(
            "alone", nodes, option, lambda: self._compute_in_batches(nodes, option, self._estimate_passes)
        )

    def _find_fast_rows(self, node: Ints, group: Ints) -> Ints:
        """Number of the fastest row of these option groups."""
        first = np.array([groups.row[0] if len(groups.row) else 0 for groups in self.option_groups])
        return first[self.search_nodes.traits[node]] + group

    def bound_groups_s(self, node: Ints, group: Ints) -> Floats:
        """Least step time of any option of these groups."""
        return GROUP_SLACK * self.bound_analytic_s(self.search_nodes.take(node), self._find_fast_rows(node, group))

    def find_least_over_bytes(self, node: Ints, group: Ints) -> Floats:
        """Bytes that the option of these groups that needs least memory lacks."""
        count = sum(len(groups.row) for groups in self.option_groups)
        rows = self._find_fast_rows(node, group)
        over_bytes = [self.find_over_bytes(node, rows + count * (1 + place)) for place in range(self.small_memory_rows)]
        return np.asarray(np.minimum.reduce(over_bytes))

    def count_options(self, node: Ints, group: Ints) -> Ints:
        """Number of options of these groups."""
        return np.concatenate([groups.counts for groups in self.option_groups])[self._number_groups(node, group)]

    def _number_groups(self, node: Ints, group: Ints) -> Ints:
        """Number of these groups among those of all traits."""
        start = np.cumsum([0, *(len(groups.counts) for groups in self.option_groups)])
        return start[self.search_nodes.traits[node]] + group

    def expand_groups(self, node: Ints, group: Ints) -> tuple[Ints, Ints]:
        """Every option of these groups of these nodes: node and option, one entry a candidate."""
        counts = np.concatenate([groups.counts for groups in self.option_groups])
        starts, group_number = np.cumsum(counts) - counts, self._number_groups(node, group)
        options_per_pair = counts[group_number]
        owner = np.repeat(np.arange(len(node)), options_per_pair)
        first_entry = np.cumsum(options_per_pair) - options_per_pair
        place = starts[group_number][owner] + np.arange(len(owner)) - first_entry[owner]
        return node[owner], np.concatenate([groups.members for groups in self.option_groups])[place]

    def find_over_bytes(self, node: Ints, option: Ints) -> Floats:
        """Bytes that the fullest GPU of each candidate lacks; 0 or less: it fits.

        Of candidates that differ in nothing memory depends on only one is computed, the one of the fewest runs.
        """
        return self._recall("memory", True, lambda: self._find_over_bytes(node, option), node, option)

    def _find_over_bytes(self, node: Ints, option: Ints) -> Floats:
        nodes, option_class = self.search_nodes, self.option_memory_class
        size = np.searchsorted(self.micro_batch_sizes, nodes.micro_batch)
        # Mixed-radix keys, so that one np.unique finds the distinct combinations.
        layout_and_schedule = self.layout_table.memory_class[nodes.layout] * len(self.schedules) + nodes.schedule
        node_class = layout_and_schedule * len(self.micro_batch_sizes) + size
        keys = node_class[node] * (int(option_class.max()) + 1) + option_class[option]
        order = np.argsort(nodes.width[node], kind="stable")
        _, first, key_of = np.unique(keys[order], return_index=True, return_inverse=True)
        distinct = order[first]
        over_bytes = np.empty(len(node))
        over_bytes[order] = self._find_distinct_over_bytes(node[distinct], option[distinct])[key_of]
        return over_bytes

    def _find_distinct_over_bytes(self, node: Ints, option: Ints) -> Floats:
        """The same for candidates that all differ; those that were asked for before are looked up."""
        nodes = self.search_nodes
        if not self.remembers or len(node) > MAX_REMEMBERED_ROWS or len(self.over_bytes_by_key) > MAX_MEMORY_KEYS:
            return self._compute_in_batches(nodes.take(node), option, self._compute_over_bytes)
        schedule_number = np.array(
            [self.schedule_numbers.setdefault(schedule, len(self.schedule_numbers)) for schedule in self.schedules]
        )
        key_columns = (
            self.layout_table.memory_class[nodes.layout[node]],
            schedule_number[nodes.schedule[node]],
            nodes.micro_batch[node],
        )
        keys = list(zip(*(values.tolist() for values in (*key_columns, self.option_memory_class[option])), strict=True))
        new = np.array([at for at, key in enumerate(keys) if key not in self.over_bytes_by_key], dtype=np.int64)
        if len(new):
            over = self._compute_in_batches(nodes.take(node[new]), option[new], self._compute_over_bytes).tolist()
            self.over_bytes_by_key.update((keys[at], value) for at, value in zip(new.tolist(), over, strict=True))
        return np.array([self.over_bytes_by_key[key] for key in keys])

    def _compute_in_batches(
        self, nodes: SearchNodes, option: Ints, compute: Callable[[StageTable, SearchNodes, Ints], Floats]
    ) -> Floats:
        """A figure of every candidate, computed in batches that fit in the cache: the largest of its rows."""
        values = np.empty(len(nodes))
        for at in split_into_batches(nodes):
            stage_table = StageTable(self.padded_stages, nodes.take(at), self.layout_table.micro_batch_shares)
            values[at] = stage_table.reduce_to_worst(
                compute(stage_table, stage_table.search_nodes, option[at[stage_table.owner]])
            )
        return values

    def _compute_over_bytes(self, stage_table: StageTable, nodes: SearchNodes, option: Ints) -> Floats:
        work = self.build_work(nodes, option)
        m = self.build_model(work.tp, work.pp)
        layers = (m.first_dense, m.moe_every, m.moe_layers)
        stages = build_stage_layers(
            stage_table.column("counts"),
            *layers,
            stage_table.column("repeats"),
            work.v_shaped,
            stage_table.column("moe_counts"),
            work.pp,
            self._find_block_counts(stage_table.column),
        )
        in_flight = self._count_in_flight(nodes, work, stage_table.column("starts"))
        peak, host = estimate_stage_peaks(
            m, work, self.stack, stages, read_memory_coefficients(self.settings.stack), in_flight
        )
        over_bytes = (peak - stage_table.column("gpu_bytes")).max(axis=-1)
        if any(np.isfinite(limit) for _, limit in self.settings.memory_bytes):
            over_bytes = np.maximum(over_bytes, (host - stage_table.column("host_bytes")).max(axis=-1))
        return np.asarray(over_bytes)

    def _count_in_flight(self, nodes: SearchNodes, work: WorkColumns, starts_XR: Floats) -> Any:
        """Micro-batches that the first stage of each run holds at once, as `orders.count_in_flight` counts them."""
        m, p, v = work.micro_batches, work.pp, work.interleave
        later_stages_XR = p - 1.0 - starts_XR
        in_flight_XR = np.minimum(m, later_stages_XR + 1.0)
        by_schedule = self.by_schedule
        interleaved = by_schedule["interleave"][nodes.schedule] > 1
        splits_weight_grad = by_schedule["splits_weight_grad"][nodes.schedule] > 0
        forward_first = by_schedule["extra_warmup"][nodes.schedule] > 0
        if interleaved.any():
            codes, where = np.unique((p * (m.max() + 1.0) + m)[:, 0], return_inverse=True)
            pairs = np.divmod(codes, m.max() + 1.0)
            group_sizes = [choose_group_size(int(a), int(b)) for a, b in zip(*pairs, strict=True)]
            sizes = np.array(group_sizes, dtype=float)[where]
            interleaved_XR = np.minimum(2.0 * later_stages_XR + (v - 1.0) * sizes[:, None] + 1.0, m * v) / v
            in_flight_XR = np.where(interleaved[:, None], interleaved_XR, in_flight_XR)
        if forward_first.any():
            in_flight_XR = np.where(forward_first[:, None], m, in_flight_XR)
        if splits_weight_grad.any():  # all stages hold as much; of a V-shaped one the last of a run counts
            v_shaped, max_in_flight = work.v_shaped > 0, 2.0 * p + by_schedule["dual"][nodes.schedule][:, None]
            run_end_XR = np.minimum(np.concatenate([starts_XR[:, 1:], p], axis=1), p)
            split_XR = np.where(
                v_shaped, np.minimum(np.minimum(m + run_end_XR, 2.0 * m), max_in_flight) / 2.0, np.minimum(m, p)
            )
            in_flight_XR = np.where(splits_weight_grad[:, None], split_XR, in_flight_XR)
        return in_flight_XR

    def bound_layouts_s(self, node: Ints, group: Ints) -> Floats:
        """As `bound_groups_s`, but layouts whose time ignores links are asked for apart, to be remembered."""
        bounds_s = np.empty(len(node))
        ignores_links = self._ignores_links[self.search_nodes.layout[node]]
        for at in (np.flatnonzero(ignores_links), np.flatnonzero(~ignores_links)):
            bounds_s[at] = self.bound_groups_s(node[at], group[at]) if len(at) else 0.0
        return bounds_s

    def bound_analytic_s(self, nodes: SearchNodes, option: Ints) -> Floats:
        """Least step time of each candidate: never above what the simulation finds."""
        return self._recall_nodes(
            "least", nodes, option, lambda: self._compute_in_batches(nodes, option, self._estimate_step)
        )

    def _estimate_step(self, stage_table: StageTable, nodes: SearchNodes, option: Ints) -> Floats:
        return self._estimate(stage_table, nodes, option, step_s)

    def _estimate_passes(self, stage_table: StageTable, nodes: SearchNodes, option: Ints) -> Floats:
        return self._estimate(stage_table, nodes, option, passes_s)

    def _estimate(
        self, stage_table: StageTable, nodes: SearchNodes, option: Ints, compute: Callable[..., Floats]
    ) -> Floats:
        work = self.build_work(nodes, option)
        size = np.searchsorted(self.micro_batch_sizes, nodes.micro_batch)
        variant = size * LAYER_OPTIONS + self.by_option["layer"][option].astype(np.int64)
        variants = len(self.micro_batch_sizes) * LAYER_OPTIONS
        layer_kind_XR = stage_table.column("layer_kind")
        if stage_table.mixed_gpus:
            layer_row = layer_kind_XR * variants + variant[:, None]
        else:  # all runs of a row have the same GPUs: one column is enough, and broadcasts
            layer_row = layer_kind_XR[:, 0] * variants + variant
        layer = self.layer_costs.select_strategies(layer_row, work)
        batch = Batch(
            model=self.build_model(work.tp, work.pp),
            work=work,
            gpu=layer.gpu,
            stack=self.stack,
            links=self._build_links(nodes, option, stage_table.column, self.by_layout["fast"][nodes.layout][:, None]),
            counts=stage_table.column("counts"),
            moe_counts=stage_table.column("moe_counts"),
            block_counts=self._find_block_counts(stage_table.column),
            repeats=stage_table.column("repeats"),
            measured=self.settings.profiles.links,
        )
        return compute(batch, layer.k, layer)

    def find_schedule_keys(self, nodes: SearchNodes) -> Ints:
        """What the simulated schedule of nodes depends on: schedule, stages and micro-batches: [3, len(nodes)]."""
        return np.stack([nodes.schedule, self.layout_table.pp[nodes.layout], nodes.micro_batches])

    def bound_per_stage_s(self, nodes: SearchNodes, option: Ints) -> Floats:
        """A closer bound of each candidate's step, stage by stage; for few candidates."""
        return self._recall_nodes("tight", nodes, option, lambda: self._bound_by_schedule(nodes, option, bound_step_s))

    def bound_simulated_s(self, nodes: SearchNodes, option: Ints) -> Floats:
        """Each candidate's step simulated, links inside a zone as for its slowest replica, or better."""
        return ROUNDING * self._recall_nodes(
            "near", nodes, option, lambda: self._bound_by_schedule(nodes, option, _simulate_s)
        )

    def _bound_by_schedule(self, nodes: SearchNodes, option: Ints, step_s: Callable[..., Floats]) -> Floats:
        """A bound of candidates; those that have schedule and stages in common are computed at once."""
        bounds_s = np.empty(len(nodes))
        keys_2C = self.find_schedule_keys(nodes)[:2]
        for key in dict.fromkeys(map(tuple, keys_2C.T.tolist())):
            at = np.flatnonzero((keys_2C == np.array(key)[:, None]).all(axis=0))
            stage_table = StageTable(self.padded_stages, nodes.take(at), self.layout_table.micro_batch_shares)
            bounds_s[at] = stage_table.reduce_to_worst(
                self._bound_same_schedule(stage_table, stage_table.search_nodes, option[at[stage_table.owner]], step_s)
            )
        return bounds_s

    def _bound_same_schedule(
        self, stage_table: StageTable, nodes: SearchNodes, option: Ints, step_s: Callable[..., Floats]
    ) -> Floats:
        """The same for candidates with schedule and stages in common."""
        schedule, stages = self.schedules[int(nodes.schedule[0])], int(self.layout_table.pp[nodes.layout[0]])
        work = self.build_work(nodes, option)
        run_XS = (stage_table.column("starts")[:, :, None] <= np.arange(stages)).sum(axis=1) - 1

        def expand_runs(name: str) -> Any:
            return np.take_along_axis(stage_table.column(name), run_XS, axis=1)

        counts_XS, layer_kind_XS = expand_runs("counts"), expand_runs("layer_kind")
        layouts, layout_place = np.unique(nodes.layout, return_inverse=True)
        fast_XS = np.stack([self.layout_table.find_fast_after(layout) for layout in layouts.tolist()])[layout_place]
        gpu, k = (
            expand_columns(columns, layer_kind_XS if stage_table.mixed_gpus else layer_kind_XS[:, :1])
            for columns in self.build_gpu_columns
        )
        batch = Batch(
            model=self.build_model(work.tp, work.pp),
            work=work,
            gpu=gpu,
            stack=self.stack,
            links=self._build_links(nodes, option, expand_runs, fast_XS),
            counts=counts_XS,
            moe_counts=expand_runs("moe_counts"),
            block_counts=self._find_block_counts(expand_runs),
            pattern=self.settings.model.pattern,
            measured=self.settings.profiles.links,
        )
        pinned_layers = self.settings.pinned.layers_per_stage
        chunk_layers = pinned_layers or split_model_layers(self.settings.model, stages * schedule.virtual_stages)
        strategy = Strategy(pp=stages, interleave=schedule.virtual_stages, schedule=schedule.name)
        return step_s(batch, counts_XS if schedule.virtual_stages == 1 else chunk_layers, strategy, k)

    def _find_block_counts(self, column: Callable[[str], Any]) -> tuple[Any, Any] | None:
        """Attention blocks and Mamba-2 layers of the stages of a hybrid."""
        if self.settings.model.pattern is None:
            return None
        return column("attention_counts"), column("mamba_counts")

    def _is_one_ring(self, layout: Ints, option: Ints) -> npt.NDArray[np.bool_]:
        """Replicas of all zones are one flat ring, as `PlacedStrategy.ring_ranks` sees it."""
        shards = self.count_shards(layout, option)
        sharded_in_part = (self.by_option["zero"][option] > 0) & (shards > 1) & (shards < self.by_layout["dp"][layout])
        return np.asarray((self.by_option["flat"][option] > 0) & ~sharded_in_part)

    def _build_links(self, nodes: SearchNodes, option: Ints, column: Callable[[str], Any], fast: Floats) -> LinkColumns:
        layout, pipeline_crosses, replicas_cross = (
            nodes.layout,
            self.layout_table.pipeline_crosses,
            self.layout_table.replicas_cross,
        )
        if not (pipeline_crosses[layout].any() or replicas_cross[layout].any()):
            return LinkColumns(boundary_fast=fast)
        boundary_columns: dict[str, Any] = {}
        if pipeline_crosses[layout].any():
            names = ("rate", "back_rate", "latency")
            boundary_columns = dict(zip(BOUNDARY_COLUMNS, map(column, names), strict=True))
            is_any = np.array([schedule.is_any for schedule in self.schedules])
            if is_any[nodes.schedule].any():
                boundary_columns["slowest_bytes_per_s"] = column("slowest")
        rates = {name: self.by_layout[name][layout] for name in ("ring_rate", "flat_rate")}
        return LinkColumns(
            dp_zones=column("dp_zones"),
            synchronous=0.0 if self.settings.pinned.local_update else 1.0,
            wan_bytes_per_s=np.where(self._is_one_ring(layout, option), rates["flat_rate"], rates["ring_rate"])[
                :, None
            ],
            wan_latency_s=self.by_layout["ring_latency"][layout][:, None],
            gloo=float(self.layout_table.gloo),
            flat=self.by_option["flat"][option][:, None],
            boundary_fast=fast,
            **boundary_columns,
        )


def _simulate_s(*arguments: Any) -> Floats:
    return simulate_step(*arguments).total_s
