"""Columns of the search: the numbers the cost formulas read, looked up from small tables.

A strategy is a core and an option. What follows from the shape, the pipe or the option stands in a table of its own, so
that the columns of any number of strategies are look-ups.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import fields, replace
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from crosszone.cost.coefficients import Coefficients
from crosszone.cost.columns import (
    OFFLOAD,
    RECOMPUTE,
    GpuColumns,
    ModelColumns,
    StackColumns,
    WorkColumns,
    model_columns,
)
from crosszone.cost.layer import LayerCost
from crosszone.inputs.cluster import MAX_GPUS
from crosszone.inputs.job import compute_precision, state_bytes
from crosszone.plan.buckets import rank_bucket_mb
from crosszone.plan.cores import Block, Cores, laid, tied
from crosszone.plan.land import Land
from crosszone.plan.options import FIELDS, Options
from crosszone.plan.setting import Setting
from crosszone.predict.batch import (
    buckets,
    gradient_wire_bytes,
    group_columns,
    job_columns,
    stack_columns,
)
from crosszone.predict.parts import kept, part
from crosszone.schedule.orders import SPLIT

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
SHARE = {"all": 0.0, "zone": 1.0, "node": 2.0}
OF_MEMORY = ("zero", "within", "sequence_parallel", "recompute", "offload", "wire_bytes")
"""Columns of an option that memory depends on."""
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
"""Columns of work that are an option's own."""
LAYER_OPTIONS = 12
"""Ways a layer may be run at one micro-batch: sequence parallelism, recomputation, overlap of its collectives."""
LEADING = ("zero", "shard_within", "communication.reduce")
"""Fields whose fastest value depends on the rest; of all others it is known."""
SLOWER = 3.0
"""Passes of the slowest option of a sort over those of the fastest, at most: longer ones hide more."""
LEAN = 2
"""Rows that need no more memory than any option of their sort: all recomputed, and nothing."""


class Leaders(NamedTuple):
    """Options of one set of traits by the fields of `LEADING`."""

    row: Ints
    """Number of each sort's fastest row; those of the leanest rows follow after all of them."""
    first: Ints
    members: Ints
    """Options, sort after sort."""
    counts: Ints
    """Options of each sort."""


class Columns:
    """Every core of one framework with its options, and the tables their columns come from."""

    def __init__(
        self,
        setting: Setting,
        land: Land,
        traits: Ints,
        options: Sequence[Options],
        blocks: Sequence[Block],
        *,
        every: bool = False,
    ):
        """`traits`: number of each shape's options; `blocks`: shapes with a pipe and the micro-batches they may have.

        `every`: also options that others beat whatever the shape.
        """
        self.setting, self.land, self.options, self.every = setting, land, options, every
        self.parts: dict[str, Any] = {}
        self.pipes = [block.pipe for block in blocks]
        self.offset = np.cumsum([0, *(len(one) for one in options)])
        """Number of the first option of each set of traits."""
        self.lanes, self.cores, self._teams, self._members = laid(land, blocks, traits, setting.memory_bytes)

    def on(self, setting: Setting, land: Land) -> Self:
        """The same cores with other links between the zones."""
        other = copy(self)
        other.setting, other.land = setting, land
        other.lanes = tied(self.lanes, self._members, land)
        other.parts = kept(self.parts, without=("by_shape",))
        return other

    def share(self, other: Columns) -> None:
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
    def leaders(self) -> list[Leaders]:
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
            found.append(Leaders(start + np.arange(len(first)), first + offset, members + offset, counts))
            start += len(first)
        return found

    @part
    def by_shape(self) -> dict[str, Floats]:
        """Columns that follow from the shape."""
        land, setting = self.land, self.setting
        found = {n: getattr(land, n).astype(float) for n in ("tp", "cp", "ep", "pp", "dp", "zone_shards", "fast")}
        found["dp_stride"] = land.stride.astype(float)
        found["node_shards"] = np.maximum(1.0, land.node_shards)
        found["ring_rate"], found["ring_latency"], found["flat_rate"] = land.ring.T
        asked = setting.pinned.communication.bucket_mb
        kept = state_bytes(setting.job, framework=setting.framework.name).gradients
        size = buckets(setting.model, asked, setting.framework.name, kept, found["tp"], found["dp"])
        found["bucket_bytes"] = np.broadcast_to(size, found["tp"].shape).astype(float)
        if setting.wan_bucket_mb is not None:
            wide = 1e6 * rank_bucket_mb(setting, found["tp"], found["pp"], found["dp"])
            found["bucket_bytes"] = np.where(land.across, wide, found["bucket_bytes"])
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
            "interleave": np.array([x.chunks for x in pipes], dtype=float),
            "folded": np.array([x.folded for x in pipes], dtype=float),
            "split": np.array([x.schedule in SPLIT for x in pipes], dtype=float),
            "dual": np.array([x.schedule == "dualpipev" for x in pipes], dtype=float),
            "fills": np.array([not x.bare for x in pipes], dtype=float),
            "ahead": np.array([self.setting.job.global_batch * (x.schedule == "gpipe") for x in pipes], dtype=float),
        }

    @part
    def _vocabulary(self) -> tuple[ModelColumns, dict[str, Floats]]:
        """The model's columns, and those that depend on tp (padding of the vocabulary) by tp."""
        multiple = self.setting.framework.vocab_multiple
        most = int(self.land.tp.max())
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
        gpu, k = (spread(columns, team) for columns in self.gpus)
        return LayerCost(self.model(tp), work, gpu, self.stack, k, self.setting.profiles.links)

    def _work(self, **known: Any) -> WorkColumns:
        """Columns of work; what is not known yet has a value that layers do not read."""
        s = self.setting
        common = job_columns(s.model, s.job, s.framework.name, s.pinned.communication)
        common["expert_tp"] = s.pinned.expert_tp or np.where(known["ep"] > 1, 1.0, known["tp"])
        rest = {f.name: 0.0 for f in fields(WorkColumns) if f.name not in known and f.name not in common}
        return WorkColumns(**(rest | common | known))

    def work(self, cores: Cores, option: Ints) -> WorkColumns:
        """Columns of strategies: a core and an option each, arrays [n, 1]."""
        shape, by_option, by_pipe = cores.shape, self.by_option, self.by_pipe
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


def spread(columns: Any, at: Ints) -> Any:
    """Columns [n] as [len(at), 1], or as `at` is; numbers stay numbers."""
    if at.ndim == 1:
        at = at[:, None]
    wide = {f.name: v[at] for f in fields(columns) if isinstance(v := getattr(columns, f.name), np.ndarray)}
    return replace(columns, **wide) if wide else columns
