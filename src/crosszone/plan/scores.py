"""Scores: memory and the least step time of many strategies at once, by the cost model of `predict`.

Columns are looked up chunk by chunk, so that a million strategies need no more room than their numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.columns import LinkColumns, WorkColumns
from crosszone.cost.memory import memory_coefficients, stage_peaks
from crosszone.cost.stages import stage_layers
from crosszone.inputs.strategy import Strategy
from crosszone.plan.columns import LAYER_OPTIONS, Columns, spread
from crosszone.plan.cores import Cores, Tracks, parts
from crosszone.plan.tracks import Pipe
from crosszone.predict.batch import Batch, layer_counts
from crosszone.predict.step import least_step_s, passes_s, simulated_step, step_s
from crosszone.schedule.orders import group_size

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SLACK = 0.999
"""On bounds of sorts of options: a shorter backward pass hides less of a reduction, which may cost a little more."""

BOUNDARY = ("boundary_bytes_per_s", "boundary_back_bytes_per_s", "boundary_latency_s")
"""Columns of links after stages."""
ROUNDED = 1.0 - 1e-9
"""On what is simulated for many at once: sums may be rounded otherwise."""
ANSWERS, MOST_ASKED = 256, 65_536
"""Answers of a grid that are remembered, and strategies of one of them."""
MOST_KNOWN = 100_000
"""Strategies whose memory is remembered."""


class Scores(Columns):
    """Every core of one framework with its options, and what they need and take."""

    remembers = False
    """Others will ask the same with other links (`Common`)."""

    @cached_property
    def _answers(self) -> dict[tuple[Any, ...], Floats]:
        """What was asked already and does not depend on links; the same for all links (`on`)."""
        return {}

    @cached_property
    def known_over(self) -> dict[tuple[int, ...], float]:
        """Bytes that strategies lack, by what memory depends on; the same for all grids of a space (`share`)."""
        return {}

    @cached_property
    def pipe_numbers(self) -> dict[Pipe, int]:
        """Numbers of pipes in `known_over`."""
        return {}

    @cached_property
    def _still(self) -> npt.NDArray[np.bool_]:
        """Which shapes take as long whatever the links between zones: nothing crosses them, or only averages do."""
        crosses = self.land.along | (self.land.across & (self.setting.pinned.local_update is None))
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

    def _told(self, name: str, cores: Cores, option: Ints, work_out: Callable[[], Floats]) -> Floats:
        """The same for cores and their options."""
        still = bool(self._still[cores.shape].all())
        return self._asked(name, still, work_out, cores.shape, cores.pipe, cores.micro_batch, cores.dealt, option)

    def option_range(self, traits: int) -> tuple[int, int]:
        """First and last-but-one number of the options that shapes of these traits have."""
        return int(self.offset[traits]), int(self.offset[traits + 1])

    def cores_of(self, shapes: Ints) -> Ints:
        """The cores of some shapes."""
        wanted = np.zeros(len(self.land.shapes), dtype=bool)
        wanted[shapes] = True
        return np.flatnonzero(wanted[self.cores.shape])

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
        kind = (self.land.memory_kind[cores.shape] * len(self.pipes) + cores.pipe) * len(self.micro_batch_sizes) + size
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
        parts = (self.land.memory_kind[cores.shape[core]], pipe[cores.pipe[core]], cores.micro_batch[core])
        keys = list(zip(*(one.tolist() for one in (*parts, self.memory_row[option])), strict=True))
        new = np.array([at for at, key in enumerate(keys) if key not in self.known_over], dtype=np.int64)
        if len(new):
            over = self._each(cores.taken(core[new]), option[new], self._over).tolist()
            self.known_over.update((keys[at], value) for at, value in zip(new.tolist(), over, strict=True))
        return np.array([self.known_over[key] for key in keys])

    def _each(self, cores: Cores, option: Ints, of: Callable[[Tracks, Cores, Ints], Floats]) -> Floats:
        """A figure of every strategy, in parts that fit in the cache: the largest of its tracks."""
        found = np.empty(len(cores))
        for at in parts(cores):
            tracks = Tracks(self.lanes, cores.taken(at), self.land.deals)
            found[at] = tracks.worst(of(tracks, tracks.cores, option[at[tracks.owner]]))
        return found

    def _over(self, tracks: Tracks, cores: Cores, option: Ints) -> Floats:
        work, m = self.work(cores, option), self.model(self.by_shape["tp"][cores.shape][:, None])
        layers = (m.first_dense, m.moe_every, m.moe_layers)
        stages = stage_layers(tracks("counts"), *layers, tracks("repeats"), work.folded, tracks("sparse"))
        alive = self._in_flight(cores, work, tracks("starts"))
        peak, host = stage_peaks(m, work, self.stack, stages, memory_coefficients(self.setting.stack), alive)
        over = (peak - tracks("limit")).max(axis=-1)
        if any(np.isfinite(limit) for _, limit in self.setting.memory_bytes):
            over = np.maximum(over, (host - tracks("host")).max(axis=-1))
        return np.asarray(over)

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
        if split.any():  # all stages hold as much; of a folded pipeline the last ones of a run
            folded, most = work.folded > 0, 2.0 * p + by_pipe["dual"][cores.pipe][:, None]
            end = np.minimum(np.concatenate([starts[:, 1:], p], axis=1), p)
            both = np.where(folded, np.minimum(np.minimum(m + end, 2.0 * m), most) / 2.0, np.minimum(m, p))
            plain = np.where(split[:, None], both, plain)
        return plain

    def shape_s(self, core: Ints, leader: Ints) -> Floats:
        """As `lead_s`; shapes that cross zones apart from the others, which take as long whatever the links."""
        found = np.empty(len(core))
        still = self._still[self.cores.shape[core]]
        for at in (np.flatnonzero(still), np.flatnonzero(~still)):
            found[at] = self.lead_s(core[at], leader[at]) if len(at) else 0.0
        return found

    def least_s(self, cores: Cores, option: Ints) -> Floats:
        """Least step time of each strategy: never above what the simulation finds."""
        return self._told("least", cores, option, lambda: self._each(cores, option, self._least))

    def _least(self, tracks: Tracks, cores: Cores, option: Ints) -> Floats:
        return self._stepped(tracks, cores, option, step_s)

    def _alone(self, tracks: Tracks, cores: Cores, option: Ints) -> Floats:
        return self._stepped(tracks, cores, option, passes_s)

    def _stepped(self, tracks: Tracks, cores: Cores, option: Ints, of: Callable[..., Floats]) -> Floats:
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
            links=self._links(cores, option, tracks, self.by_shape["fast"][cores.shape][:, None]),
            counts=tracks("counts"),
            sparse=tracks("sparse"),
            repeats=tracks("repeats"),
            measured=self.setting.profiles.links,
        )
        return of(batch, layer.k, layer)

    def schedules(self, cores: Cores) -> Ints:
        """What the schedules of cores depend on: pipe, stages and micro-batches: [3, n]."""
        return np.stack([cores.pipe, self.land.pp[cores.shape], cores.micro_batches])

    def tight_s(self, cores: Cores, option: Ints) -> Floats:
        """A closer bound of each strategy's step, stage by stage; for few strategies."""
        return self._told("tight", cores, option, lambda: self._by_schedule(cores, option, least_step_s))

    def near_s(self, cores: Cores, option: Ints) -> Floats:
        """Each strategy's step simulated, links inside a zone as they are for its slowest replica, or better."""
        return ROUNDED * self._told("near", cores, option, lambda: self._by_schedule(cores, option, _simulated_s))

    def _by_schedule(self, cores: Cores, option: Ints, step_s: Callable[..., Floats]) -> Floats:
        """A bound of strategies, those that have schedule and stages in common at once."""
        found = np.empty(len(cores))
        keys = self.schedules(cores)[:2]
        for key in dict.fromkeys(map(tuple, keys.T.tolist())):
            at = np.flatnonzero((keys == np.array(key)[:, None]).all(axis=0))
            tracks = Tracks(self.lanes, cores.taken(at), self.land.deals)
            found[at] = tracks.worst(self._staged(tracks, tracks.cores, option[at[tracks.owner]], step_s))
        return found

    def _staged(self, tracks: Tracks, cores: Cores, option: Ints, step_s: Callable[..., Floats]) -> Floats:
        """The same for strategies with pipe and stages in common."""
        pipe, stages = self.pipes[int(cores.pipe[0])], int(self.land.pp[cores.shape[0]])
        work = self.work(cores, option)
        run = (tracks("starts")[:, :, None] <= np.arange(stages)).sum(axis=1) - 1

        def staged(name: str) -> Any:
            return np.take_along_axis(tracks(name), run, axis=1)

        counts, team = staged("counts"), staged("team")
        shapes, which = np.unique(cores.shape, return_inverse=True)
        fast = np.stack([self.land.fast_after(shape) for shape in shapes.tolist()])[which]
        gpu, k = (spread(columns, team if tracks.mixed else team[:, :1]) for columns in self.gpus)
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
        even = given or layer_counts(self.setting.model.layers, stages * pipe.chunks)
        how = Strategy(pp=stages, interleave=pipe.chunks, schedule=pipe.schedule)
        return step_s(batch, counts if pipe.chunks == 1 else even, how, k)

    def _one_ring(self, shape: Ints, option: Ints) -> npt.NDArray[np.bool_]:
        """Replicas of all zones are one flat ring, as `Site.ring_ranks` sees it."""
        shards = self.shards(shape, option)
        several = (self.by_option["zero"][option] > 0) & (shards > 1) & (shards < self.by_shape["dp"][shape])
        return np.asarray((self.by_option["flat"][option] > 0) & ~several)

    def _links(self, cores: Cores, option: Ints, column: Callable[[str], Any], fast: Floats) -> LinkColumns:
        shape, along, across = cores.shape, self.land.along, self.land.across
        if not (along[shape].any() or across[shape].any()):
            return LinkColumns(boundary_fast=fast)
        known: dict[str, Any] = {}
        if along[shape].any():
            names = ("rate", "back", "latency")
            known = dict(zip(BOUNDARY, map(column, names), strict=True))
            merged = np.array([pipe.bare for pipe in self.pipes])
            if merged[cores.pipe].any():
                known["slowest_bytes_per_s"] = column("slowest")
        rates = {name: self.by_shape[name][shape] for name in ("ring_rate", "flat_rate")}
        return LinkColumns(
            dp_zones=column("dp_zones"),
            synchronous=0.0 if self.setting.pinned.local_update else 1.0,
            wan_bytes_per_s=np.where(self._one_ring(shape, option), rates["flat_rate"], rates["ring_rate"])[:, None],
            wan_latency_s=self.by_shape["ring_latency"][shape][:, None],
            gloo=float(self.land.gloo),
            flat=self.by_option["flat"][option][:, None],
            boundary_fast=fast,
            **known,
        )


def _simulated_s(*given: Any) -> Floats:
    return simulated_step(*given).total_s
