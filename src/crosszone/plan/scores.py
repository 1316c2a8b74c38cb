"""Scores: memory and the least step time of many strategies at once, by the cost model of `predict`.

A strategy is three numbers: its core (shape, pipe, micro-batch), its option, and the tracks of its core. Columns are
looked up from small tables chunk by chunk, so that a million strategies need no more room than their numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from crosszone.cost.coefficients import Coefficients
from crosszone.cost.columns import (
    OFFLOAD,
    PATH_BITS,
    RECOMPUTE,
    GpuColumns,
    LinkColumns,
    ModelColumns,
    WorkColumns,
    model_columns,
)
from crosszone.cost.layer import LayerCost
from crosszone.cost.memory import GIB, stage_memory
from crosszone.cost.memory_profile import memory_coefficients
from crosszone.cost.profile import Profiles
from crosszone.cost.stages import stage_layers
from crosszone.inputs.cluster import NodeGroup
from crosszone.inputs.frameworks import Framework
from crosszone.inputs.job import Job
from crosszone.inputs.model import Model
from crosszone.inputs.states import compute_precision, state_bytes
from crosszone.inputs.strategy import Strategy
from crosszone.plan.land import Land
from crosszone.plan.options import Options
from crosszone.plan.tracks import ANY, Pipe, Runs
from crosszone.predict.batch import Batch, buckets, gradient_wire_bytes, group_columns, layer_counts, stack_columns
from crosszone.predict.simulated import least_step_s
from crosszone.predict.step import step_s
from crosszone.schedule.orders import SPLIT, V_SHAPED, group_size, in_flight

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
CHUNK = 4096
"""Strategies that are scored together: their columns stay in the processor's cache."""
SHARE = {"all": 0, "zone": 1, "node": 2}
LAYER_OPTIONS = 12
"""Ways a layer may be run at one micro-batch: sequence parallelism, recomputation, overlap of its collectives."""


class Lanes(NamedTuple):
    """Tracks of one number of runs, stacked: arrays [tracks, runs]."""

    counts: Floats
    repeats: Floats
    starts: Floats
    team: Ints
    limit: Floats
    """Memory of the GPU, bytes."""
    rate: Floats
    back: Floats
    latency: Floats
    dp_zones: Floats
    mixed: bool
    """Some track has runs on different GPUs."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Shapes that may run under a pipe, and their micro-batches: one entry a core."""

    pipe: Pipe
    shapes: Ints
    shape: Ints
    micro_batch: Ints
    micro_batches: Ints


@dataclass(frozen=True, kw_only=True)
class Cores:
    """Shape, pipe and micro-batch of every core, and what follows from them: arrays [cores]."""

    shape: Ints
    pipe: Ints
    lane: Ints
    """Its first track among those of its number of runs."""
    runs: Ints
    chains: Ints
    traits: Ints
    micro_batch: Ints
    micro_batches: Ints

    def __len__(self) -> int:
        return len(self.shape)

    def taken(self, at: Ints) -> Cores:
        """Some of them."""
        return Cores(**{f.name: getattr(self, f.name)[at] for f in fields(self)})


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all strategies of a search have in common."""

    model: Model
    job: Job
    groups: tuple[NodeGroup, ...]
    framework: Framework
    profiles: Profiles
    stack: str
    release: float | None
    pinned: Strategy

    @cached_property
    def coefficients(self) -> list[Coefficients]:
        """Of each node group."""
        return [self.profiles.select(group.gpu, self.stack).coefficients for group in self.groups]


LEADING = ("zero", "shard_within", "communication.reduce")
"""Fields whose fastest value depends on the rest; of all others it is known."""
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


class Scores:
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
        self.setting, self.land, self.options, self._every = setting, land, options, every
        self.pipes = [block.pipe for block in blocks]
        self._offset = np.cumsum([0, *(len(one) for one in options)])
        self._lanes, self.cores = self._laid(blocks, traits)

    def _laid(self, blocks: Sequence[Block], traits: Ints) -> tuple[dict[int, Lanes], Cores]:
        """Tracks by their number of runs, and the cores that run on them."""
        land, layers = self.land, self.setting.model.layers
        by_runs: dict[int, list[tuple[Ints, Runs, Any]]] = {}
        filled: dict[int, int] = {}
        cores = []
        for number, block in enumerate(blocks):
            where = np.zeros((2, len(land.shapes)), dtype=np.int64)  # first track and number of runs of each shape
            for here, runs, links in land.runs(block.shapes, block.pipe, layers, self.setting.pinned.layers_per_stage):
                chains = runs.groups.shape[0]
                start = filled.get(len(runs), 0)
                where[0, here], where[1, here] = start + chains * np.arange(len(here)), len(runs)
                filled[len(runs)] = start + chains * len(here)
                by_runs.setdefault(len(runs), []).append((here, runs, links))
            shape, size = block.shape, block.micro_batch
            cores.append((shape, np.full(len(shape), number), *where[:, shape], size, block.micro_batches))
        shape, pipe, lane, runs_of, size, count = (np.concatenate(column) for column in zip(*cores, strict=True))
        found = Cores(
            shape=shape,
            pipe=pipe,
            lane=lane,
            runs=runs_of,
            chains=land.chains[shape],
            traits=traits[shape],
            micro_batch=size,
            micro_batches=count,
        )
        teams = np.stack([land.tp, land.cp, land.ep, land.nodes], axis=1)
        used = np.unique(np.concatenate([here for members in by_runs.values() for here, _, _ in members]))
        kinds, which = np.unique(teams[used], axis=0, return_inverse=True)
        kind = np.zeros(len(land.shapes), dtype=np.int64)
        kind[used] = which.ravel()
        groups = len(self.setting.groups)
        lanes = {runs: self._stacked(members, kind * groups) for runs, members in by_runs.items()}
        codes = np.unique(np.concatenate([one.team.ravel() for one in lanes.values()]))
        self._teams = np.concatenate([kinds[codes // groups], (codes % groups)[:, None]], axis=1)
        """tp, cp, ep, nodes in use and node group of every kind of layer."""
        return {n: one._replace(team=np.searchsorted(codes, one.team)) for n, one in lanes.items()}, found

    def _stacked(self, members: list[tuple[Ints, Runs, Any]], kind: Ints) -> Lanes:
        """Tracks with one number of runs, shape after shape and chain after chain."""
        memory = np.array([group.gpu.memory_gib * GIB for group in self.setting.groups])

        def tiled(values: Any, count: int, chains: int) -> Any:
            return np.broadcast_to(values, (count, chains, np.shape(values)[-1])).reshape(count * chains, -1)

        rows = []
        for here, runs, links in members:
            n, c = len(here), runs.groups.shape[0]
            team = (kind[here][:, None, None] + runs.groups).reshape(n * c, -1)
            own = [tiled(x, n, c) for x in (runs.counts, runs.repeats, runs.starts)]
            ways = [x.reshape(n * c, -1) for x in links]
            rows.append((*own, team, tiled(memory[runs.groups], n, c), *ways, tiled(runs.dp_zones, n, c)))
        columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
        return Lanes(*columns, mixed=bool((columns[3] != columns[3][:, :1]).any()))

    @cached_property
    def _micro_batch_sizes(self) -> Ints:
        return np.unique(self.cores.micro_batch)

    @cached_property
    def _by_shape(self) -> dict[str, Floats]:
        """Columns that follow from the shape."""
        land, setting = self.land, self.setting
        found = {n: getattr(land, n).astype(float) for n in ("tp", "cp", "ep", "pp", "dp", "zone_shards", "fast")}
        found["dp_stride"] = land.stride.astype(float)
        found["node_shards"] = np.maximum(1.0, land.node_shards)
        found["ring_rate"], found["ring_latency"] = land.ring.T
        asked = setting.pinned.communication.bucket_mb
        size = buckets(setting.model, asked, setting.framework.name, found["tp"], found["dp"])
        found["bucket_bytes"] = np.broadcast_to(size, found["tp"].shape).astype(float)
        return found

    @cached_property
    def _by_option(self) -> dict[str, Floats]:
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
            "recompute": joined("recompute", RECOMPUTE),
            "offload": joined("offload", OFFLOAD),
            "wire_bytes": joined("communication.gradient_dtype", wire),
            "overlap_gradients": joined("communication.overlap_gradients"),
            "overlap_parameters": joined("communication.overlap_parameters"),
            "overlap_tensor": joined("communication.overlap_tensor"),
            "flat": joined("communication.reduce", {"flat": 1.0, "hierarchical": 0.0}),
        }
        leading = np.concatenate([one.first for one in self.leaders]) if self.leaders else np.zeros(0, dtype=np.int64)
        most = {name: values.max(initial=0.0) for name, values in found.items()}
        fastest = {"recompute": 0.0, "offload": 0.0, "wire_bytes": min(wire.values())}
        fastest |= {n: most[n] for n in ("sequence_parallel", "overlap_tensor")}
        fastest |= {"overlap_gradients": 1.0, "overlap_parameters": 1.0}
        lean = fastest | {"offload": most["offload"]}
        extremes = (fastest, lean, lean | {"recompute": most["recompute"]})
        for name, values in found.items():
            rows = [np.full(len(leading), one[name]) if name in one else values[leading] for one in extremes]
            found[name] = np.concatenate([values, *rows])
        split_off = np.concatenate([np.full(len(one.row), n) for n, one in enumerate(self.leaders)])
        alone = np.array([not any(one.values["sequence_parallel"]) for one in self.options])[split_off]
        extra = slice(int(self._offset[-1]), None)
        for name in ("sequence_parallel", "overlap_tensor"):  # without tensor parallelism there is none of it
            found[name][extra] *= np.tile(~alone, 1 + LEAN)
        found["layer"] = (found["sequence_parallel"] * 3 + found["recompute"]) * 2 + found["overlap_tensor"]
        return found

    @cached_property
    def leaders(self) -> list[Leaders]:
        """Of each traits: rows after all real options that are as fast as any option of their sort can be.

        No recomputation, the narrowest gradients, everything overlapped: whatever else an option has, it is no faster.
        """
        found, start = [], int(self._offset[-1])
        for number, one in enumerate(self.options):
            keys = np.zeros(len(one), dtype=np.int64)
            for name in LEADING:
                keys = keys * len(one.values[name]) + one.codes[name]
            _, first, which = np.unique(keys, return_index=True, return_inverse=True)
            offset = int(self._offset[number])
            members = np.argsort(which, kind="stable")
            if not self._every:
                members = members[one.best[members]]
            counts = np.bincount(which[members], minlength=len(first))
            found.append(Leaders(start + np.arange(len(first)), first + offset, members + offset, counts))
            start += len(first)
        return found

    def _wire_bytes(self, dtype: str | None, kept: float) -> float:
        c = self.setting.pinned.communication
        return gradient_wire_bytes(self.setting.model, c if dtype is None else c.replace(gradient_dtype=dtype), kept)

    @cached_property
    def _by_pipe(self) -> dict[str, Floats]:
        pipes = self.pipes
        return {
            "interleave": np.array([x.chunks for x in pipes], dtype=float),
            "folded": np.array([x.schedule in V_SHAPED for x in pipes], dtype=float),
            "split": np.array([x.schedule in SPLIT for x in pipes], dtype=float),
            "fills": np.array([x != ANY for x in pipes], dtype=float),
            "ahead": np.array([self.setting.job.global_batch * (x.schedule == "gpipe") for x in pipes], dtype=float),
        }

    @cached_property
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

    @cached_property
    def _stack(self) -> Any:
        s = self.setting
        settings = s.profiles.select(s.groups[0].gpu, s.stack).settings
        return stack_columns(settings, s.profiles.release_age(s.stack, s.release))

    @cached_property
    def _gpus(self) -> tuple[GpuColumns, Coefficients]:
        """Columns and coefficients of every team: numbers where all teams have the same."""
        path = compute_precision(self.setting.job)
        at = [(int(group), int(nodes)) for _, _, _, nodes, group in self._teams]
        each = {key: group_columns(self.setting.groups[key[0]], path, key[1]) for key in set(at)}
        gpu = _joined([each[key] for key in at])
        k = _joined([self.setting.coefficients[group] for group, _ in at])
        return gpu, k

    @cached_property
    def layers(self) -> LayerCost:
        """Cost of a layer for every team, micro-batch size and way to run it."""
        sizes = self._micro_batch_sizes
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
        gpu, k = (_spread(columns, team) for columns in self._gpus)
        return LayerCost(self.model(tp), work, gpu, self._stack, k)

    def _work(self, **known: Any) -> WorkColumns:
        """Columns of work; what is not known yet has a value that layers do not read."""
        s, job = self.setting, self.setting.job
        states = state_bytes(job, framework=s.framework.name)
        path = PATH_BITS[compute_precision(job)]
        c = s.pinned.communication
        common: dict[str, Any] = {
            "seq": job.seq_len,
            "global_batch": job.global_batch,
            "path": 7 if job.precision == "mxfp8" else path,
            "word": 4.0 if path == 32 else 2.0,
            "weight_bytes": states.weights,
            "gradient_bytes": states.gradients,
            "optimizer_bytes": states.master + states.moments,
            "tree": {"auto": 0.0, "ring": -1.0, "tree": 1.0}[c.algorithm],
            "overlap": np.nan if c.overlap is None else c.overlap,
            "expert_tp": np.where(known["ep"] > 1, 1.0, known["tp"]),
        }
        rest = {f.name: 0.0 for f in fields(WorkColumns) if f.name not in known and f.name not in common}
        return WorkColumns(**(rest | common | known))

    def work(self, cores: Cores, option: Ints) -> WorkColumns:
        """Columns of strategies: a core and an option each, arrays [n, 1]."""
        shape, by_option, by_pipe = cores.shape, self._by_option, self._by_pipe
        known: dict[str, Any] = {
            n: self._by_shape[n][shape][:, None] for n in ("tp", "cp", "ep", "pp", "dp", "dp_stride", "bucket_bytes")
        }
        names = ("zero", "sequence_parallel", "recompute", "offload", "wire_bytes")
        names += ("overlap_gradients", "overlap_parameters", "overlap_tensor")
        known |= {n: by_option[n][option][:, None] for n in names}
        known |= {n: by_pipe[n][cores.pipe][:, None] for n in ("interleave", "folded", "ahead", "split", "fills")}
        known["micro_batch"] = cores.micro_batch[:, None].astype(float)
        known["micro_batches"] = cores.micro_batches[:, None].astype(float)
        within = by_option["within"][option][:, None]
        zone, node = (self._by_shape[n][shape][:, None] for n in ("zone_shards", "node_shards"))
        known["shard_ranks"] = np.where(within == 0, known["dp"], np.where(within == 1, zone, node))
        return self._work(**known)

    def option_range(self, traits: int) -> tuple[int, int]:
        """First and last-but-one number of the options that shapes of these traits have."""
        return int(self._offset[traits]), int(self._offset[traits + 1])

    def leads(self) -> tuple[Ints, Ints]:
        """Every core with every sort of option it has: core, and place among the sorts."""
        counts = np.array([len(one.row) for one in self.leaders])[self.cores.traits]
        core = np.repeat(np.arange(len(self.cores)), counts)
        return core, np.arange(len(core)) - np.repeat(np.cumsum(counts) - counts, counts)

    def _rows(self, core: Ints, leader: Ints) -> Ints:
        """Number of the fastest row of these sorts of option."""
        first = np.array([one.row[0] if len(one.row) else 0 for one in self.leaders])
        return first[self.cores.traits[core]] + leader

    def lead_s(self, core: Ints, leader: Ints) -> Floats:
        """Least step time of any option of these sorts."""
        return self.least_s(self.cores.taken(core), self._rows(core, leader))

    def lean_over(self, core: Ints, leader: Ints) -> Floats:
        """Bytes that the leanest option of these sorts lacks."""
        count = sum(len(one.row) for one in self.leaders)
        rows, cores = self._rows(core, leader), self.cores.taken(core)
        return np.minimum.reduce([self.fits(cores, rows + count * (1 + lean)) for lean in range(LEAN)])

    def members(self, core: Ints, leader: Ints) -> tuple[Ints, Ints]:
        """Every option of the sorts of option (`leaders`) of these cores: core and option."""
        traits = self.cores.traits[core]
        counts = np.zeros(len(core), dtype=np.int64)
        starts = np.zeros(len(core), dtype=np.int64)
        offset, joined = 0, []
        for number, one in enumerate(self.leaders):
            here = traits == number
            counts[here] = one.counts[leader[here]]
            starts[here] = offset + (np.cumsum(one.counts) - one.counts)[leader[here]]
            joined.append(one.members)
            offset += len(one.members)
        owner = np.repeat(np.arange(len(core)), counts)
        place = starts[owner] + np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        return core[owner], np.concatenate(joined)[place]

    @cached_property
    def _memory_rows(self) -> tuple[Ints, int]:
        """Number of the combination that memory can tell apart, of each option; how many there are."""
        found, start = [], 0
        for one in self.options:
            first, which = one.of_memory
            found.append(which + start)
            start += len(first)
        return np.concatenate(found), start

    def memory_over(self, core: Ints, option: Ints) -> Floats:
        """As `fits`, with strategies that differ in nothing memory depends on looked at once."""
        rows, count = self._memory_rows
        _, first, which = np.unique(core * count + rows[option], return_index=True, return_inverse=True)
        return self.fits(self.cores.taken(core[first]), option[first])[which]

    def fits(self, cores: Cores, option: Ints) -> Floats:
        """Bytes that the fullest GPU of each strategy lacks; 0 or less: it fits."""
        over = np.empty(len(cores))
        for runs, rows in _by_runs(cores):
            lanes = self._lanes[runs]
            for at in _chunks(rows):
                over[at] = self._over(cores.taken(at), option[at], lanes)
        return over

    def _over(self, cores: Cores, option: Ints, lanes: Lanes) -> Floats:
        track, owner = _tracks(cores)
        here, opted = cores.taken(owner), option[owner]
        work, counts = self.work(here, opted), lanes.counts[track]
        m = self.model(work.tp)
        stages = stage_layers(counts, m.first_dense, m.moe_every, m.moe_layers, lanes.repeats[track], work.folded)
        alive = self._in_flight(here, work, lanes.starts[track], lanes.repeats[track])
        found = stage_memory(m, work, self._stack, stages, memory_coefficients(self.setting.stack), in_flight=alive)
        over = (found.total - lanes.limit[track]).max(axis=-1)
        return _worst(over, cores, track)

    def _in_flight(self, cores: Cores, work: WorkColumns, starts: Floats, repeats: Floats) -> Floats:
        """Micro-batches that the first stage of each run holds at once, as `schedule.in_flight` counts them."""
        m, p, v = work.micro_batches, work.pp, work.interleave
        later = p - 1.0 - starts
        plain = np.minimum(m, later + 1.0)
        by_pipe = self._by_pipe
        chunked = by_pipe["interleave"][cores.pipe] > 1
        split, first = by_pipe["split"][cores.pipe] > 0, by_pipe["ahead"][cores.pipe] > 0
        if chunked.any():
            keys, where = np.unique(np.stack([p[:, 0], m[:, 0]]), axis=1, return_inverse=True)
            sizes = np.array([group_size(int(a), int(b)) for a, b in keys.T.tolist()], dtype=float)[where.ravel()]
            several = np.minimum(2.0 * later + (v - 1.0) * sizes[:, None] + 1.0, m * v) / v
            plain = np.where(chunked[:, None], several, plain)
        if first.any():
            plain = np.where(first[:, None], m, plain)
        if split.any():
            at = np.flatnonzero(split)
            keys = np.concatenate([np.stack([cores.pipe[at], p[at, 0], m[at, 0]]), starts[at].T])
            kinds, which = np.unique(keys, axis=1, return_inverse=True)
            plain[at] = np.array([self._held(*kind) for kind in kinds.T.astype(int).tolist()])[which.ravel()]
        return plain

    def _held(self, pipe: int, stages: int, micro_batches: int, *starts: int) -> Floats:
        """Most micro-batches of each run of stages under a schedule that runs weights' gradients apart."""
        how = self.pipes[pipe]
        held = in_flight(how.schedule, stages, min(micro_batches, 4 * stages + 4), how.chunks) / how.chunks
        return np.maximum.reduceat(held, starts)

    def least_s(self, cores: Cores, option: Ints) -> Floats:
        """Least step time of each strategy: never above what the simulation finds."""
        found = np.empty(len(cores))
        for runs, rows in _by_runs(cores):
            lanes = self._lanes[runs]
            for at in _chunks(rows):
                found[at] = self._least(cores.taken(at), option[at], lanes)
        return found

    def _least(self, cores: Cores, option: Ints, lanes: Lanes) -> Floats:
        track, owner = _tracks(cores)
        here, opted = (cores, option) if len(track) == len(cores) else (cores.taken(owner), option[owner])
        work = self.work(here, opted)
        size = np.searchsorted(self._micro_batch_sizes, here.micro_batch)
        way = size * LAYER_OPTIONS + self._by_option["layer"][opted].astype(np.int64)
        ways = len(self._micro_batch_sizes) * LAYER_OPTIONS
        team = lanes.team[track]
        at = team * ways + way[:, None] if lanes.mixed else team[:, 0] * ways + way
        layer = self.layers.gathered(at, work)
        batch = Batch(
            model=self.model(work.tp),
            work=work,
            gpu=layer.gpu,
            stack=self._stack,
            links=self._links(here, opted, lanes, track),
            counts=lanes.counts[track],
            repeats=lanes.repeats[track],
        )
        return _worst(step_s(batch, layer.k, layer), cores, track)

    def tight_s(self, cores: Cores, option: Ints) -> Floats:
        """A closer bound of each strategy's step, stage by stage; for few strategies."""
        found = np.empty(len(cores))
        keys = np.stack([cores.runs, cores.pipe, self.land.pp[cores.shape], cores.micro_batches])
        for key in np.unique(keys, axis=1).T:
            at = np.flatnonzero((keys == key[:, None]).all(axis=0))
            found[at] = self._tight(cores.taken(at), option[at], self._lanes[int(key[0])])
        return found

    def _tight(self, cores: Cores, option: Ints, lanes: Lanes) -> Floats:
        """The same for strategies with pipe, stages and micro-batches in common."""
        pipe, stages = self.pipes[int(cores.pipe[0])], int(self.land.pp[cores.shape[0]])
        track, owner = _tracks(cores)
        here, opted = cores.taken(owner), option[owner]
        work = self.work(here, opted)
        run = (lanes.starts[track][:, :, None] <= np.arange(stages)).sum(axis=1) - 1
        whole = Lanes(*(np.take_along_axis(x[track], run, axis=1) for x in lanes[:-1]), mixed=lanes.mixed)
        every = np.arange(len(track))
        gpu, k = (_spread(columns, whole.team if lanes.mixed else whole.team[:, :1]) for columns in self._gpus)
        batch = Batch(
            model=self.model(work.tp),
            work=work,
            gpu=gpu,
            stack=self._stack,
            links=self._links(here, opted, whole, every),
            counts=whole.counts,
        )
        given = self.setting.pinned.layers_per_stage
        chunks = given or layer_counts(self.setting.model.layers, stages * pipe.chunks)
        how = Strategy(pp=stages, interleave=pipe.chunks, schedule=pipe.schedule)  # type: ignore[arg-type]
        return _worst(least_step_s(batch, chunks, how, k), cores, track)

    def _links(self, cores: Cores, option: Ints, lanes: Lanes, track: Ints) -> LinkColumns:
        fast = self._by_shape["fast"][cores.shape][:, None]
        zones = lanes.dp_zones[track]
        if not (np.isfinite(lanes.rate[track]).any() or (zones > 1).any()):
            return LinkColumns(boundary_fast=fast)
        return LinkColumns(
            dp_zones=zones,
            synchronous=0.0 if self.setting.pinned.local_update else 1.0,
            wan_bytes_per_s=self._by_shape["ring_rate"][cores.shape][:, None],
            wan_latency_s=self._by_shape["ring_latency"][cores.shape][:, None],
            flat=self._by_option["flat"][option][:, None],
            boundary_fast=fast,
            boundary_bytes_per_s=lanes.rate[track],
            boundary_back_bytes_per_s=lanes.back[track],
            boundary_latency_s=lanes.latency[track],
        )


def _by_runs(cores: Cores) -> list[tuple[int, Ints]]:
    """Rows of each number of runs."""
    return [(int(runs), np.flatnonzero(cores.runs == runs)) for runs in np.unique(cores.runs)]


def _chunks(rows: Ints) -> list[Ints]:
    return [rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK)]


def _tracks(cores: Cores) -> tuple[Ints, Ints]:
    """Every track of every core, and whose it is."""
    if (cores.chains == 1).all():
        return cores.lane, np.arange(len(cores))
    owner = np.repeat(np.arange(len(cores)), cores.chains)
    first = np.cumsum(cores.chains) - cores.chains
    return cores.lane[owner] + np.arange(len(owner)) - first[owner], owner


def _worst(values: Floats, cores: Cores, track: Ints) -> Floats:
    """The largest of each core's tracks."""
    if len(track) == len(cores):
        return values
    first = np.cumsum(cores.chains) - cores.chains
    return np.maximum.reduceat(values, first)


def _joined(columns: Sequence[Any]) -> Any:
    """Many single columns as one: a number where all have the same, else an array [n]."""
    first = columns[0]
    found = {}
    for f in fields(first):
        values = [getattr(c, f.name) for c in columns]
        found[f.name] = values[0] if all(v == values[0] for v in values) else np.array(values, dtype=float)
    return type(first)(**found)


def _spread(columns: Any, at: Ints) -> Any:
    """Columns [n] as [len(at), 1], or as `at` is; numbers stay numbers."""
    if at.ndim == 1:
        at = at[:, None]
    wide = {f.name: v[at] for f in fields(columns) if isinstance(v := getattr(columns, f.name), np.ndarray)}
    return replace(columns, **wide) if wide else columns
