"""Scores: memory and the least step time of many strategies at once, by the cost model of `predict`.

Columns are looked up chunk by chunk, so that a million strategies need no more room than their numbers.

Columns of the search: the numbers the cost formulas read, looked up from small tables.

A strategy is a core and an option. What follows from the shape, the pipe or the option stands in a table of its own, so
that the columns of any number of strategies are look-ups.
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
    model_columns,
)
from crosszone.cost.layer import LayerCost
from crosszone.cost.memory import memory_coefficients, stage_peaks
from crosszone.cost.stages import stage_layers
from crosszone.inputs.cluster import MAX_GPUS
from crosszone.inputs.job import compute_precision, state_bytes
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
    buckets,
    gradient_wire_bytes,
    group_columns,
    job_columns,
    layer_counts,
    stack_columns,
)
from crosszone.predict.parts import kept, part
from crosszone.predict.step import least_step_s, passes_s, simulated_step, step_s
from crosszone.schedule.orders import SPLITS_WEIGHT_GRAD, choose_group_size

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
SHARE = {"all": 0.0, "zone": 1.0, "node": 2.0}
# Columns of an option that memory depends on.
OF_MEMORY = ("zero", "within", "sequence_parallel", "recompute", "offload", "wire_bytes")
# Columns of work that are an option's own.
OF_OPTIONS = (
    "zero",
    "sequence_parallel",
    "recompute",
    "offload",
    "wire_bytes",
    "overlap_gradients",
    "overlap_parameters",
    "overlap_tensor",
    "room",
)
# Ways a layer may be run at one micro-batch: sequence parallelism, recomputation, overlap of its collectives.
LAYER_OPTIONS = 12
# Fields whose fastest value depends on the rest; of all others it is known.
LEADING = ("zero", "shard_within", "communication.reduce")
# Passes of the slowest option of a sort over those of the fastest, at most: longer ones hide more.
SLOWER = 3.0
LEAN = 2  # Rows that need no more memory than any option of their sort: all recomputed, and nothing


class OptionGroupIndex(NamedTuple):
    """Options of one set of traits by the fields of `LEADING`."""

    row: Ints
    """Number of each sort's fastest row; those of the leanest rows follow after all of them."""
    first: Ints
    members: Ints
    """Options, sort after sort."""
    counts: Ints
    """Options of each sort."""


class StrategyColumns:
    """Every core of one framework with its options, and the tables their columns come from."""

    def __init__(
        self,
        setting: SearchSettings,
        land: LayoutTable,
        traits: Ints,
        options: Sequence[OptionTable],
        blocks: Sequence[NodeBlock],
        *,
        every: bool = False,
    ):
        """`traits`: number of each shape's options; `blocks`: shapes with a pipe and the micro-batches they may have.

        `every`: also options that others beat whatever the shape.
        """
        self.setting, self.layout_table, self.options, self.every = setting, land, options, every
        self.parts: dict[str, Any] = {}
        self.pipes = [block.pipe for block in blocks]
        self.offset = np.cumsum([0, *(len(one) for one in options)])
        """Number of the first option of each set of traits."""
        self.lanes, self.cores, self._teams, self._members = build_nodes(land, blocks, traits, setting.memory_bytes)

    def on(self, setting: SearchSettings, land: LayoutTable) -> Self:
        """The same cores with other links between the zones."""
        other = copy(self)
        other.setting, other.layout_table = setting, land
        other.lanes = replace_links(self.lanes, self._members, land)
        other.parts = kept(self.parts, without=("by_shape",))
        return other

    def share(self, other: StrategyColumns) -> None:
        """Take the tables over that follow from the options alone."""
        for name in ("leaders", "by_option", "memory_row", "_vocabulary", "stack", "known_over", "pipe_numbers"):
            if name in other.parts:
                self.parts[name] = other.parts[name]

    @property
    def lean(self) -> int:
        """Leanest rows of each sort of option; where nodes' memory is known, also those that offload nothing."""
        return LEAN * (1 + any(np.isfinite(host) for _, host in self.setting.memory_bytes))

    @part
    def micro_batch_sizes(self) -> Ints:
        """Sizes of a micro-batch, ascending."""
        return np.unique(self.cores.micro_batch)

    @part
    def leaders(self) -> list[OptionGroupIndex]:
        """Of each traits: rows after all real options that are as fast as any option of their sort can be.

        No recomputation, the narrowest gradients, everything overlapped: whatever else an option has, it is no faster.
        """
        found, start = [], int(self.offset[-1])
        for number, one in enumerate(self.options):
            keys = np.zeros(len(one), dtype=np.int64)
            for name in LEADING:
                keys = keys * len(one.values[name]) + one.codes[name]
            _, first, which = np.unique(keys, return_index=True, return_inverse=True)
            offset = int(self.offset[number])
            members = np.argsort(which, kind="stable")
            if not self.every:
                members = members[one.best[members]]
            counts = np.bincount(which[members], minlength=len(first))
            found.append(OptionGroupIndex(start + np.arange(len(first)), first + offset, members + offset, counts))
            start += len(first)
        return found

    @part
    def by_shape(self) -> dict[str, Floats]:
        """Columns that follow from the shape."""
        land, setting = self.layout_table, self.setting
        found = {n: getattr(land, n).astype(float) for n in ("tp", "cp", "ep", "pp", "dp", "zone_shards", "fast")}
        found["dp_stride"] = land.stride.astype(float)
        found["node_shards"] = np.maximum(1.0, land.node_shards)
        found["ring_rate"], found["ring_latency"], found["flat_rate"] = land.ring.T
        asked = setting.pinned.communication.bucket_mb
        kept = state_bytes(setting.job, framework=setting.framework.name).gradients
        size = buckets(setting.model, asked, setting.framework.name, kept, found["tp"], found["dp"])
        found["bucket_bytes"] = np.broadcast_to(size, found["tp"].shape).astype(float)
        if setting.wan_bucket_mb is not None:
            wide = 1e6 * compute_rank_bucket_mb(setting, found["tp"], found["pp"], found["dp"])
            found["bucket_bytes"] = np.where(land.replicas_cross, wide, found["bucket_bytes"])
        return found

    @part
    def by_option(self) -> dict[str, Floats]:
        """Columns that follow from the option, all traits after one another."""
        states = state_bytes(self.setting.job, framework=self.setting.framework.name)

        def joined(field: str, numbers: dict[Any, float] | None = None) -> Floats:
            return np.concatenate([one.column(field, numbers) for one in self.options])

        dtypes = {value for one in self.options for value in one.values["communication.gradient_dtype"]}
        wire = {value: self._wire_bytes(value, states.gradients) for value in dtypes}
        found = {
            "zero": joined("zero"),
            "within": joined("shard_within", SHARE),
            "sequence_parallel": joined("sequence_parallel"),
            "recompute": joined("recompute", dict(RECOMPUTE)),
            "offload": joined("offload", dict(OFFLOAD)),
            "wire_bytes": joined("communication.gradient_dtype", wire),
            "overlap_gradients": joined("communication.overlap_gradients"),
            "overlap_parameters": joined("communication.overlap_parameters"),
            "overlap_tensor": joined("communication.overlap_tensor"),
            "flat": joined("communication.reduce", {"flat": 1.0, "hierarchical": 0.0}),
        }
        found["room"] = np.ones(len(found["zero"]))
        leading = np.concatenate([one.first for one in self.leaders]) if self.leaders else np.zeros(0, dtype=np.int64)
        most = {name: values.max(initial=0.0) for name, values in found.items()}
        fastest = {"recompute": 0.0, "offload": 0.0, "wire_bytes": min(wire.values())}
        fastest |= {n: most[n] for n in ("sequence_parallel", "overlap_tensor")}
        fastest |= {"overlap_gradients": 1.0, "overlap_parameters": 1.0, "room": SLOWER}
        lean = fastest | {"offload": most["offload"]}
        extremes = [fastest, lean, lean | {"recompute": most["recompute"]}]
        if self.lean > LEAN:
            extremes += [one | {"offload": 0.0} for one in extremes[1:]]
        for name, values in found.items():
            rows = [np.full(len(leading), one[name]) if name in one else values[leading] for one in extremes]
            found[name] = np.concatenate([values, *rows])
        split_off = np.concatenate([np.full(len(one.row), n) for n, one in enumerate(self.leaders)])
        extra = slice(int(self.offset[-1]), None)
        for name, field in (("sequence_parallel", FIELDS[2]), ("overlap_tensor", FIELDS[8])):
            able = np.array([any(one.values[field]) for one in self.options])  # none without tensor parallelism
            found[name][extra] *= np.tile(able[split_off], 1 + self.lean)
        found["layer"] = (found["sequence_parallel"] * 3 + found["recompute"]) * 2 + found["overlap_tensor"]
        return found

    @part
    def memory_row(self) -> Ints:
        """Number of the combination that memory can tell apart, of each option and each row after them."""
        found = np.zeros(len(self.by_option["zero"]), dtype=np.int64)
        for name in OF_MEMORY:
            values, which = np.unique(self.by_option[name], return_inverse=True)
            found = found * len(values) + which
        return found

    def _wire_bytes(self, dtype: str | None, kept: float) -> float:
        c = self.setting.pinned.communication
        return gradient_wire_bytes(self.setting.model, c if dtype is None else c.replace(gradient_dtype=dtype), kept)

    @part
    def by_pipe(self) -> dict[str, Floats]:
        """Columns that follow from the schedule and its chunks."""
        pipes = self.pipes
        return {
            "interleave": np.array([x.virtual_stages for x in pipes], dtype=float),
            "folded": np.array([x.v_shaped for x in pipes], dtype=float),
            "split": np.array([x.name in SPLITS_WEIGHT_GRAD for x in pipes], dtype=float),
            "dual": np.array([x.name == "dualpipev" for x in pipes], dtype=float),
            "fills": np.array([not x.is_any for x in pipes], dtype=float),
            "ahead": np.array([self.setting.job.global_batch * (x.name == "gpipe") for x in pipes], dtype=float),
        }

    @part
    def _vocabulary(self) -> tuple[ModelColumns, dict[str, Floats]]:
        """The model's columns, and those that depend on tp (padding of the vocabulary) by tp."""
        multiple = self.setting.framework.vocab_multiple
        most = int(self.layout_table.tp.max())
        each = {t: model_columns(self.setting.model, vocab_multiple=multiple, tp=t) for t in range(1, most + 1)}
        names = ("vocab", "embedding_params", "head_params")
        table = {n: np.array([np.nan, *(float(getattr(each[t], n)) for t in each)]) for n in names}
        same = all(np.nanmin(values) == np.nanmax(values) for values in table.values())
        return each[1], {} if same else table

    def model(self, tp: Floats) -> ModelColumns:
        """The model as strategies of these tensor-parallel degrees see it."""
        plain, table = self._vocabulary
        return replace(plain, **{n: values[tp.astype(int)] for n, values in table.items()}) if table else plain

    @part
    def stack(self) -> StackColumns:
        """The software stack's switches."""
        s = self.setting
        settings = s.profiles.select(s.groups[0].gpu, s.stack).settings
        return stack_columns(settings, s.profiles.release_age(s.stack, s.release))

    @part
    def gpus(self) -> tuple[GpuColumns, Coefficients]:
        """Columns and coefficients of every team: numbers where all teams have the same."""
        path, groups = compute_precision(self.setting.job), self.setting.groups
        keys, which = np.unique(self._teams[:, 4] * (MAX_GPUS + 1) + self._teams[:, 3], return_inverse=True)
        known = [divmod(key, MAX_GPUS + 1) for key in keys.tolist()]
        gpu = _joined([group_columns(groups[group], path, nodes) for group, nodes in known], which)
        k = _joined([self.setting.coefficients[group] for group, _ in known], which)
        return gpu, k

    @part
    def layers(self) -> LayerCost:
        """Cost of a layer for every team, micro-batch size and way to run it."""
        sizes = self.micro_batch_sizes
        teams = self._teams.astype(float)
        count, ways = len(teams), len(sizes) * LAYER_OPTIONS
        team = np.repeat(np.arange(count), ways)
        way = np.tile(np.arange(ways), count)
        size, inner = sizes[way // LAYER_OPTIONS], way % LAYER_OPTIONS

        def column(values: Any) -> Floats:
            return np.asarray(values, dtype=float)[:, None]

        tp, cp, ep = (column(teams[team, i]) for i in range(3))
        work = self._work(
            tp=tp,
            cp=cp,
            ep=ep,
            micro_batch=column(size),
            sequence_parallel=column(inner // 6),
            recompute=column(inner // 2 % 3),
            overlap_tensor=column(inner % 2),
        )
        gpu, k = (expand_columns(columns, team) for columns in self.gpus)
        return LayerCost(self.model(tp), work, gpu, self.stack, k, self.setting.profiles.links)

    def _work(self, **known: Any) -> WorkColumns:
        """Columns of work; what is not known yet has a value that layers do not read."""
        s = self.setting
        common = job_columns(s.model, s.job, s.framework.name, s.pinned.communication)
        common["expert_tp"] = s.pinned.expert_tp or np.where(known["ep"] > 1, 1.0, known["tp"])
        rest = {f.name: 0.0 for f in fields(WorkColumns) if f.name not in known and f.name not in common}
        return WorkColumns(**(rest | common | known))

    def work(self, cores: SearchNodes, option: Ints) -> WorkColumns:
        """Columns of strategies: a core and an option each, arrays [n, 1]."""
        shape, by_option, by_pipe = cores.layout, self.by_option, self.by_pipe
        known: dict[str, Any] = {
            n: self.by_shape[n][shape][:, None] for n in ("tp", "cp", "ep", "pp", "dp", "dp_stride", "bucket_bytes")
        }
        known |= {n: by_option[n][option][:, None] for n in OF_OPTIONS}
        known |= {n: by_pipe[n][cores.pipe][:, None] for n in ("interleave", "folded", "ahead", "split", "fills")}
        known["micro_batch"] = cores.micro_batch[:, None].astype(float)
        known["micro_batches"] = cores.micro_batches[:, None].astype(float)
        known["shard_ranks"] = self.shards(shape, option)[:, None]
        return self._work(**known)

    def shards(self, shape: Ints, option: Ints) -> Floats:
        """Replicas that share one set of states, of strategies with these shapes and options."""
        within = self.by_option["within"][option]
        dp, zone, node = (self.by_shape[n][shape] for n in ("dp", "zone_shards", "node_shards"))
        return np.where(within == 0, dp, np.where(within == 1, zone, node))


def _joined(columns: Sequence[Any], at: Ints) -> Any:
    """Single columns as those of many, by place: a number where all have the same, else an array [len(at)]."""
    first = columns[0]
    found = {}
    for f in fields(first):
        values = [getattr(c, f.name) for c in columns]
        found[f.name] = values[0] if all(v == values[0] for v in values) else np.array(values, dtype=float)[at]
    return type(first)(**found)


def expand_columns(columns: Any, at: Ints) -> Any:
    """Columns [n] as [len(at), 1], or as `at` is; numbers stay numbers."""
    if at.ndim == 1:
        at = at[:, None]
    wide = {f.name: v[at] for f in fields(columns) if isinstance(v := getattr(columns, f.name), np.ndarray)}
    return replace(columns, **wide) if wide else columns


# On bounds of sorts of options: a shorter backward pass hides less of a reduction, which may cost a little more.
SLACK = 0.999

# Columns of links after stages.
BOUNDARY = ("boundary_bytes_per_s", "boundary_back_bytes_per_s", "boundary_latency_s")
ROUNDED = 1.0 - 1e-9  # On what is simulated for many at once: sums may be rounded otherwise
ANSWERS, MOST_ASKED = 256, 65_536  # Answers of a grid that are remembered, and strategies of one of them
MOST_KNOWN = 100_000  # Strategies whose memory is remembered


class BoundTable(StrategyColumns):
    """Every core of one framework with its options, and what they need and take."""

    remembers = False
    """Others will ask the same with other links (`PlanCache`)."""

    @cached_property
    def _answers(self) -> dict[tuple[Any, ...], Floats]:
        """What was asked already and does not depend on links; the same for all links (`on`)."""
        return {}

    @cached_property
    def known_over(self) -> dict[tuple[int, ...], float]:
        """Bytes that strategies lack, by what memory depends on; the same for all grids of a space (`share`)."""
        return {}

    @cached_property
    def pipe_numbers(self) -> dict[ScheduleChoice, int]:
        """Numbers of pipes in `known_over`."""
        return {}

    @cached_property
    def _still(self) -> npt.NDArray[np.bool_]:
        """Which shapes take as long whatever the links between zones: nothing crosses them, or only averages do."""
        crosses = self.layout_table.pipeline_crosses | (
            self.layout_table.replicas_cross & (self.setting.pinned.local_update is None)
        )
        return np.asarray(~crosses)

    def _asked(self, name: str, still: bool, work_out: Callable[[], Floats], *given: Ints) -> Floats:
        """An answer that was worked out before for the same strategies, if links do not change it."""
        if not (self.remembers and still) or len(given[0]) > MOST_ASKED:
            return work_out()
        key = (name, *(one.tobytes() for one in given))
        if key not in self._answers:
            if len(self._answers) >= ANSWERS:
                self._answers.clear()
            self._answers[key] = work_out()
        return self._answers[key]

    def _told(self, name: str, cores: SearchNodes, option: Ints, work_out: Callable[[], Floats]) -> Floats:
        """The same for cores and their options."""
        still = bool(self._still[cores.layout].all())
        return self._asked(name, still, work_out, cores.layout, cores.pipe, cores.micro_batch, cores.dealt, option)

    def option_range(self, traits: int) -> tuple[int, int]:
        """First and last-but-one number of the options that shapes of these traits have."""
        return int(self.offset[traits]), int(self.offset[traits + 1])

    def cores_of(self, shapes: Ints) -> Ints:
        """The cores of some shapes."""
        wanted = np.zeros(len(self.layout_table.layouts), dtype=bool)
        wanted[shapes] = True
        return np.flatnonzero(wanted[self.cores.layout])

    def leads(self, cores: Ints | None = None) -> tuple[Ints, Ints]:
        """Every core (or every one of some) with every sort of option it has: core, and place among the sorts."""
        some = np.arange(len(self.cores)) if cores is None else cores
        counts = np.array([len(one.row) for one in self.leaders])[self.cores.traits[some]]
        owner = np.repeat(np.arange(len(some)), counts)
        return some[owner], np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)

    def core_s(self, core: Ints) -> Floats:
        """Least step time of any option of these cores, by what their stages do alone."""
        cores, option = self.cores.taken(core), self._rows(core, np.zeros_like(core))
        return SLACK * self._told("alone", cores, option, lambda: self._each(cores, option, self._alone))

    def _rows(self, core: Ints, leader: Ints) -> Ints:
        """Number of the fastest row of these sorts of option."""
        first = np.array([one.row[0] if len(one.row) else 0 for one in self.leaders])
        return first[self.cores.traits[core]] + leader

    def lead_s(self, core: Ints, leader: Ints) -> Floats:
        """Least step time of any option of these sorts."""
        return SLACK * self.least_s(self.cores.taken(core), self._rows(core, leader))

    def lean_over(self, core: Ints, leader: Ints) -> Floats:
        """Bytes that the leanest option of these sorts lacks."""
        count = sum(len(one.row) for one in self.leaders)
        rows = self._rows(core, leader)
        lean = [self.memory_over(core, rows + count * (1 + place)) for place in range(self.lean)]
        return np.asarray(np.minimum.reduce(lean))

    def sizes(self, core: Ints, leader: Ints) -> Ints:
        """Options of these sorts."""
        return np.concatenate([one.counts for one in self.leaders])[self._sort(core, leader)]

    def _sort(self, core: Ints, leader: Ints) -> Ints:
        """Number of these sorts among those of all traits."""
        start = np.cumsum([0, *(len(one.counts) for one in self.leaders)])
        return start[self.cores.traits[core]] + leader

    def members(self, core: Ints, leader: Ints) -> tuple[Ints, Ints]:
        """Every option of the sorts of option (`leaders`) of these cores: core and option."""
        counts = np.concatenate([one.counts for one in self.leaders])
        starts, sort = np.cumsum(counts) - counts, self._sort(core, leader)
        each = counts[sort]
        owner = np.repeat(np.arange(len(core)), each)
        place = starts[sort][owner] + np.arange(len(owner)) - np.repeat(np.cumsum(each) - each, each)
        return core[owner], np.concatenate([one.members for one in self.leaders])[place]

    def memory_over(self, core: Ints, option: Ints) -> Floats:
        """Bytes that the fullest GPU of each strategy lacks; 0 or less: it fits.

        Strategies that differ in nothing memory depends on are looked at once, in the one of the fewest runs.
        """
        return self._asked("memory", True, lambda: self._memory_over(core, option), core, option)

    def _memory_over(self, core: Ints, option: Ints) -> Floats:
        cores, rows = self.cores, self.memory_row
        size = np.searchsorted(self.micro_batch_sizes, cores.micro_batch)
        kind = (self.layout_table.memory_class[cores.layout] * len(self.pipes) + cores.pipe) * len(
            self.micro_batch_sizes
        ) + size
        keys = kind[core] * (int(rows.max()) + 1) + rows[option]
        order = np.argsort(cores.width[core], kind="stable")
        _, first, which = np.unique(keys[order], return_index=True, return_inverse=True)
        some = order[first]
        found = np.empty(len(core))
        found[order] = self._over_of(core[some], option[some])[which]
        return found

    def _over_of(self, core: Ints, option: Ints) -> Floats:
        """The same for strategies that all differ; those that some grid of the space was asked for are looked up."""
        cores = self.cores
        if not self.remembers or len(core) > MOST_ASKED or len(self.known_over) > MOST_KNOWN:
            return self._each(cores.taken(core), option, self._over)
        pipe = np.array([self.pipe_numbers.setdefault(one, len(self.pipe_numbers)) for one in self.pipes])
        parts = (self.layout_table.memory_class[cores.layout[core]], pipe[cores.pipe[core]], cores.micro_batch[core])
        keys = list(zip(*(one.tolist() for one in (*parts, self.memory_row[option])), strict=True))
        new = np.array([at for at, key in enumerate(keys) if key not in self.known_over], dtype=np.int64)
        if len(new):
            over = self._each(cores.taken(core[new]), option[new], self._over).tolist()
            self.known_over.update((keys[at], value) for at, value in zip(new.tolist(), over, strict=True))
        return np.array([self.known_over[key] for key in keys])

    def _each(self, cores: SearchNodes, option: Ints, of: Callable[[StageTable, SearchNodes, Ints], Floats]) -> Floats:
        """A figure of every strategy, in parts that fit in the cache: the largest of its tracks."""
        found = np.empty(len(cores))
        for at in split_into_batches(cores):
            tracks = StageTable(self.lanes, cores.taken(at), self.layout_table.micro_batch_shares)
            found[at] = tracks.worst(of(tracks, tracks.cores, option[at[tracks.owner]]))
        return found

    def _over(self, tracks: StageTable, cores: SearchNodes, option: Ints) -> Floats:
        work, m = self.work(cores, option), self.model(self.by_shape["tp"][cores.layout][:, None])
        layers = (m.first_dense, m.moe_every, m.moe_layers)
        stages = stage_layers(tracks("counts"), *layers, tracks("repeats"), work.folded, tracks("sparse"))
        alive = self._in_flight(cores, work, tracks("starts"))
        peak, host = stage_peaks(m, work, self.stack, stages, memory_coefficients(self.setting.stack), alive)
        over = (peak - tracks("limit")).max(axis=-1)
        if any(np.isfinite(limit) for _, limit in self.setting.memory_bytes):
            over = np.maximum(over, (host - tracks("host")).max(axis=-1))
        return np.asarray(over)

    def _in_flight(self, cores: SearchNodes, work: WorkColumns, starts: Floats) -> Any:
        """Micro-batches that the first stage of each run holds at once, as `schedule.in_flight` counts them."""
        m, p, v = work.micro_batches, work.pp, work.interleave
        later = p - 1.0 - starts
        plain = np.minimum(m, later + 1.0)
        by_pipe = self.by_pipe
        chunked = by_pipe["interleave"][cores.pipe] > 1
        split, first = by_pipe["split"][cores.pipe] > 0, by_pipe["ahead"][cores.pipe] > 0
        if chunked.any():
            codes, where = np.unique((p * (m.max() + 1.0) + m)[:, 0], return_inverse=True)
            pairs = np.divmod(codes, m.max() + 1.0)
            sizes = np.array([choose_group_size(int(a), int(b)) for a, b in zip(*pairs, strict=True)], dtype=float)[
                where
            ]
            several = np.minimum(2.0 * later + (v - 1.0) * sizes[:, None] + 1.0, m * v) / v
            plain = np.where(chunked[:, None], several, plain)
        if first.any():
            plain = np.where(first[:, None], m, plain)
        if split.any():  # all stages hold as much; of a folded pipeline the last ones of a run
            folded, most = work.folded > 0, 2.0 * p + by_pipe["dual"][cores.pipe][:, None]
            end = np.minimum(np.concatenate([starts[:, 1:], p], axis=1), p)
            both = np.where(folded, np.minimum(np.minimum(m + end, 2.0 * m), most) / 2.0, np.minimum(m, p))
            plain = np.where(split[:, None], both, plain)
        return plain

    def shape_s(self, core: Ints, leader: Ints) -> Floats:
        """As `lead_s`; shapes that cross zones apart from the others, which take as long whatever the links."""
        found = np.empty(len(core))
        still = self._still[self.cores.layout[core]]
        for at in (np.flatnonzero(still), np.flatnonzero(~still)):
            found[at] = self.lead_s(core[at], leader[at]) if len(at) else 0.0
        return found

    def least_s(self, cores: SearchNodes, option: Ints) -> Floats:
        """Least step time of each strategy: never above what the simulation finds."""
        return self._told("least", cores, option, lambda: self._each(cores, option, self._least))

    def _least(self, tracks: StageTable, cores: SearchNodes, option: Ints) -> Floats:
        return self._stepped(tracks, cores, option, step_s)

    def _alone(self, tracks: StageTable, cores: SearchNodes, option: Ints) -> Floats:
        return self._stepped(tracks, cores, option, passes_s)

    def _stepped(self, tracks: StageTable, cores: SearchNodes, option: Ints, of: Callable[..., Floats]) -> Floats:
        work = self.work(cores, option)
        size = np.searchsorted(self.micro_batch_sizes, cores.micro_batch)
        way = size * LAYER_OPTIONS + self.by_option["layer"][option].astype(np.int64)
        ways = len(self.micro_batch_sizes) * LAYER_OPTIONS
        team = tracks("team")
        at = team * ways + way[:, None] if tracks.mixed else team[:, 0] * ways + way
        layer = self.layers.gathered(at, work)
        batch = Batch(
            model=self.model(work.tp),
            work=work,
            gpu=layer.gpu,
            stack=self.stack,
            links=self._links(cores, option, tracks, self.by_shape["fast"][cores.layout][:, None]),
            counts=tracks("counts"),
            sparse=tracks("sparse"),
            repeats=tracks("repeats"),
            measured=self.setting.profiles.links,
        )
        return of(batch, layer.k, layer)

    def schedules(self, cores: SearchNodes) -> Ints:
        """What the schedules of cores depend on: pipe, stages and micro-batches: [3, n]."""
        return np.stack([cores.pipe, self.layout_table.pp[cores.layout], cores.micro_batches])

    def tight_s(self, cores: SearchNodes, option: Ints) -> Floats:
        """A closer bound of each strategy's step, stage by stage; for few strategies."""
        return self._told("tight", cores, option, lambda: self._by_schedule(cores, option, least_step_s))

    def near_s(self, cores: SearchNodes, option: Ints) -> Floats:
        """Each strategy's step simulated, links inside a zone as they are for its slowest replica, or better."""
        return ROUNDED * self._told("near", cores, option, lambda: self._by_schedule(cores, option, _simulated_s))

    def _by_schedule(self, cores: SearchNodes, option: Ints, step_s: Callable[..., Floats]) -> Floats:
        """A bound of strategies, those that have schedule and stages in common at once."""
        found = np.empty(len(cores))
        keys = self.schedules(cores)[:2]
        for key in dict.fromkeys(map(tuple, keys.T.tolist())):
            at = np.flatnonzero((keys == np.array(key)[:, None]).all(axis=0))
            tracks = StageTable(self.lanes, cores.taken(at), self.layout_table.micro_batch_shares)
            found[at] = tracks.worst(self._staged(tracks, tracks.cores, option[at[tracks.owner]], step_s))
        return found

    def _staged(self, tracks: StageTable, cores: SearchNodes, option: Ints, step_s: Callable[..., Floats]) -> Floats:
        """The same for strategies with pipe and stages in common."""
        pipe, stages = self.pipes[int(cores.pipe[0])], int(self.layout_table.pp[cores.layout[0]])
        work = self.work(cores, option)
        run = (tracks("starts")[:, :, None] <= np.arange(stages)).sum(axis=1) - 1

        def staged(name: str) -> Any:
            return np.take_along_axis(tracks(name), run, axis=1)

        counts, team = staged("counts"), staged("team")
        shapes, which = np.unique(cores.layout, return_inverse=True)
        fast = np.stack([self.layout_table.find_fast_after(shape) for shape in shapes.tolist()])[which]
        gpu, k = (expand_columns(columns, team if tracks.mixed else team[:, :1]) for columns in self.gpus)
        batch = Batch(
            model=self.model(work.tp),
            work=work,
            gpu=gpu,
            stack=self.stack,
            links=self._links(cores, option, staged, fast),
            counts=counts,
            sparse=staged("sparse"),
            measured=self.setting.profiles.links,
        )
        given = self.setting.pinned.layers_per_stage
        even = given or layer_counts(self.setting.model.layers, stages * pipe.virtual_stages)
        how = Strategy(pp=stages, interleave=pipe.virtual_stages, schedule=pipe.name)
        return step_s(batch, counts if pipe.virtual_stages == 1 else even, how, k)

    def _one_ring(self, shape: Ints, option: Ints) -> npt.NDArray[np.bool_]:
        """Replicas of all zones are one flat ring, as `Site.ring_ranks` sees it."""
        shards = self.shards(shape, option)
        several = (self.by_option["zero"][option] > 0) & (shards > 1) & (shards < self.by_shape["dp"][shape])
        return np.asarray((self.by_option["flat"][option] > 0) & ~several)

    def _links(self, cores: SearchNodes, option: Ints, column: Callable[[str], Any], fast: Floats) -> LinkColumns:
        shape, along, across = cores.layout, self.layout_table.pipeline_crosses, self.layout_table.replicas_cross
        if not (along[shape].any() or across[shape].any()):
            return LinkColumns(boundary_fast=fast)
        known: dict[str, Any] = {}
        if along[shape].any():
            names = ("rate", "back", "latency")
            known = dict(zip(BOUNDARY, map(column, names), strict=True))
            merged = np.array([pipe.is_any for pipe in self.pipes])
            if merged[cores.pipe].any():
                known["slowest_bytes_per_s"] = column("slowest")
        rates = {name: self.by_shape[name][shape] for name in ("ring_rate", "flat_rate")}
        return LinkColumns(
            dp_zones=column("dp_zones"),
            synchronous=0.0 if self.setting.pinned.local_update else 1.0,
            wan_bytes_per_s=np.where(self._one_ring(shape, option), rates["flat_rate"], rates["ring_rate"])[:, None],
            wan_latency_s=self.by_shape["ring_latency"][shape][:, None],
            gloo=float(self.layout_table.gloo),
            flat=self.by_option["flat"][option][:, None],
            boundary_fast=fast,
            **known,
        )


def _simulated_s(*given: Any) -> Floats:
    return simulated_step(*given).total_s
