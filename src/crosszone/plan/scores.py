"""Scores: memory and the least step time of many strategies at once, by the cost model of `predict`.

Columns are looked up chunk by chunk, so that a million strategies need no more room than their numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.columns import LinkColumns, WorkColumns
from crosszone.cost.memory import stage_memory
from crosszone.cost.memory_profile import memory_coefficients
from crosszone.cost.stages import stage_layers
from crosszone.inputs.strategy import Strategy
from crosszone.plan.columns import LAYER_OPTIONS, Columns, spread
from crosszone.plan.cores import Cores, Lanes, by_runs, chunks, tracks, worst
from crosszone.predict.batch import Batch, layer_counts
from crosszone.predict.simulated import least_step_s
from crosszone.predict.step import step_s
from crosszone.schedule.orders import group_size, in_flight

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SLACK = 0.999
"""On bounds of sorts of options: a shorter backward pass hides less of a reduction, which may cost a little more."""


class Scores(Columns):
    """Every core of one framework with its options, and what they need and take."""

    def option_range(self, traits: int) -> tuple[int, int]:
        """First and last-but-one number of the options that shapes of these traits have."""
        return int(self.offset[traits]), int(self.offset[traits + 1])

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
        cores, rows = self.cores, self.memory_row
        size = np.searchsorted(self.micro_batch_sizes, cores.micro_batch)
        kind = (self.land.memory_kind[cores.shape] * len(self.pipes) + cores.pipe) * len(self.micro_batch_sizes) + size
        keys = kind[core] * (int(rows.max()) + 1) + rows[option]
        order = np.argsort(cores.runs[core], kind="stable")
        _, first, which = np.unique(keys[order], return_index=True, return_inverse=True)
        some = order[first]
        found = np.empty(len(core))
        found[order] = self._each(cores.taken(core[some]), option[some], self._over)[which]
        return found

    def _each(self, cores: Cores, option: Ints, of: Callable[[Cores, Ints, Lanes], Floats]) -> Floats:
        """A figure of every strategy, in parts that have their number of runs in common and fit in the cache."""
        found = np.empty(len(cores))
        for runs, rows in by_runs(cores):
            for at in chunks(rows):
                found[at] = of(cores.taken(at), option[at], self.lanes[runs])
        return found

    def _over(self, cores: Cores, option: Ints, lanes: Lanes) -> Floats:
        track, owner = tracks(cores)
        here, opted = cores.taken(owner), option[owner]
        work, counts = self.work(here, opted), lanes.counts[track]
        m = self.model(work.tp)
        stages = stage_layers(counts, m.first_dense, m.moe_every, m.moe_layers, lanes.repeats[track], work.folded)
        alive = self._in_flight(here, work, lanes.starts[track])
        found = stage_memory(m, work, self.stack, stages, memory_coefficients(self.setting.stack), in_flight=alive)
        over = (found.total - lanes.limit[track]).max(axis=-1)
        if np.isfinite(lanes.host).any():
            over = np.maximum(over, (found.host - lanes.host[track]).max(axis=-1))
        return worst(over, cores, track)

    def _in_flight(self, cores: Cores, work: WorkColumns, starts: Floats) -> Any:
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
            sizes = np.array([group_size(int(a), int(b)) for a, b in zip(*pairs, strict=True)], dtype=float)[where]
            several = np.minimum(2.0 * later + (v - 1.0) * sizes[:, None] + 1.0, m * v) / v
            plain = np.where(chunked[:, None], several, plain)
        if first.any():
            plain = np.where(first[:, None], m, plain)
        if split.any():
            at, most = np.flatnonzero(split), int(m.max()) + 1
            codes = (cores.pipe * (int(p.max()) + 1) + p[:, 0].astype(np.int64)) * most + m[:, 0].astype(np.int64)
            begin = starts.astype(np.int64)
            end = np.concatenate([begin[:, 1:], p.astype(np.int64)], axis=1)
            for code in np.unique(codes[at]).tolist():
                here = at[codes[at] == code]
                how = self.pipes[int(cores.pipe[here[0]])]
                stages, count = int(p[here[0], 0]), int(m[here[0], 0])
                held = _most_held(how.schedule, stages, min(count, 4 * stages + 4), how.chunks)
                plain[here] = held[begin[here], end[here]]
        return plain

    def least_s(self, cores: Cores, option: Ints) -> Floats:
        """Least step time of each strategy: never above what the simulation finds."""
        return self._each(cores, option, self._least)

    def _least(self, cores: Cores, option: Ints, lanes: Lanes) -> Floats:
        track, owner = tracks(cores)
        here, opted = (cores, option) if len(track) == len(cores) else (cores.taken(owner), option[owner])
        work = self.work(here, opted)
        size = np.searchsorted(self.micro_batch_sizes, here.micro_batch)
        way = size * LAYER_OPTIONS + self.by_option["layer"][opted].astype(np.int64)
        ways = len(self.micro_batch_sizes) * LAYER_OPTIONS
        team = lanes.team[track]
        at = team * ways + way[:, None] if lanes.mixed else team[:, 0] * ways + way
        layer = self.layers.gathered(at, work)
        batch = Batch(
            model=self.model(work.tp),
            work=work,
            gpu=layer.gpu,
            stack=self.stack,
            links=self._links(here, opted, lanes, track),
            counts=lanes.counts[track],
            repeats=lanes.repeats[track],
        )
        return worst(step_s(batch, layer.k, layer), cores, track)

    def tight_s(self, cores: Cores, option: Ints) -> Floats:
        """A closer bound of each strategy's step, stage by stage; for few strategies."""
        found = np.empty(len(cores))
        keys = np.stack([cores.runs, cores.pipe, self.land.pp[cores.shape], cores.micro_batches])
        for key in np.unique(keys, axis=1).T:
            at = np.flatnonzero((keys == key[:, None]).all(axis=0))
            found[at] = self._tight(cores.taken(at), option[at], self.lanes[int(key[0])])
        return found

    def _tight(self, cores: Cores, option: Ints, lanes: Lanes) -> Floats:
        """The same for strategies with pipe, stages and micro-batches in common."""
        pipe, stages = self.pipes[int(cores.pipe[0])], int(self.land.pp[cores.shape[0]])
        track, owner = tracks(cores)
        here, opted = cores.taken(owner), option[owner]
        work = self.work(here, opted)
        run = (lanes.starts[track][:, :, None] <= np.arange(stages)).sum(axis=1) - 1
        columns: list[Any] = [np.take_along_axis(x[track], run, axis=1) for x in lanes[1:]]
        whole = Lanes(lanes.mixed, *columns)
        every = np.arange(len(track))
        gpu, k = (spread(columns, whole.team if lanes.mixed else whole.team[:, :1]) for columns in self.gpus)
        batch = Batch(
            model=self.model(work.tp),
            work=work,
            gpu=gpu,
            stack=self.stack,
            links=self._links(here, opted, whole, every),
            counts=whole.counts,
        )
        given = self.setting.pinned.layers_per_stage
        even = given or layer_counts(self.setting.model.layers, stages * pipe.chunks)
        parts = whole.counts if pipe.chunks == 1 else even
        how = Strategy(pp=stages, interleave=pipe.chunks, schedule=pipe.schedule)
        return worst(least_step_s(batch, parts, how, k), cores, track)

    def _links(self, cores: Cores, option: Ints, lanes: Lanes, track: Ints) -> LinkColumns:
        fast = self.by_shape["fast"][cores.shape][:, None]
        zones = lanes.dp_zones[track]
        if not (np.isfinite(lanes.rate[track]).any() or (zones > 1).any()):
            return LinkColumns(boundary_fast=fast)
        return LinkColumns(
            dp_zones=zones,
            synchronous=0.0 if self.setting.pinned.local_update else 1.0,
            wan_bytes_per_s=self.by_shape["ring_rate"][cores.shape][:, None],
            wan_latency_s=self.by_shape["ring_latency"][cores.shape][:, None],
            flat=self.by_option["flat"][option][:, None],
            boundary_fast=fast,
            boundary_bytes_per_s=lanes.rate[track],
            boundary_back_bytes_per_s=lanes.back[track],
            boundary_latency_s=lanes.latency[track],
        )


@lru_cache(maxsize=4096)
def _most_held(schedule: str, stages: int, micro_batches: int, chunks: int) -> Floats:
    """Most micro-batches that any of the stages from one to before another holds: array [stages + 1, stages + 1]."""
    held = in_flight(schedule, stages, micro_batches, chunks) / chunks
    found = np.zeros((stages + 1, stages + 1))
    for first in range(stages):
        found[first, first + 1 :] = np.maximum.accumulate(held[first:])
    return found
