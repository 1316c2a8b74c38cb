"""Land: the shapes of a search in arrays, with what follows from where they lie."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.inputs.cluster import NodeGroup
from crosszone.inputs.model import Model
from crosszone.plan.deals import Deals
from crosszone.plan.layout import REPLICAS_NEAR
from crosszone.plan.shapes import Shape
from crosszone.plan.tracks import Frame, Pipe, Runs, Ways, frame_of, stage_layers_of
from crosszone.predict.parts import kept, part

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Links = tuple[Floats, ...] | None
"""Rate forward, rate back and latency, [shapes, chains, runs]; None: nothing crosses zones."""


class Land:
    """Shapes with their links, whatever the framework: arrays [shapes]."""

    def __init__(
        self,
        shapes: Sequence[Shape],
        model: Model,
        groups: Sequence[NodeGroup],
        zone_of: Sequence[int],
        ways: Ways,
        speeds: Sequence[float],
    ):
        self.shapes, self.groups, self._model = shapes, groups, model
        self.tp, self.cp, self.ep, self.pp, self.dp, self.stride = (
            np.array([(s.tp, s.cp, s.ep, s.pp, s.dp, s.stride) for s in shapes], dtype=np.int64).reshape(-1, 6).T
        )
        self.cell = self.tp * self.cp
        self._near = np.array([s.order == REPLICAS_NEAR for s in shapes], dtype=bool)
        self.frames: list[Frame] = []
        self.frame = np.zeros(len(shapes), dtype=np.int64)
        """Frame of each shape."""
        self._splits: list[tuple[int, ...] | None] = []
        """Layers of each chunk of a frame's stages; None: dealt out evenly."""
        known: dict[object, int] = {}
        told = [(g.gpu, g.gpus, g.domain, g.fast_link, g.nic_gbps_node, g.fabric, g.memory_gib) for g in groups]
        kind_of = tuple(map(told.index, told))
        for number, shape in enumerate(shapes):
            key = (shape.layout.paths, shape.layers)
            if key not in known:
                known[key] = len(self.frames)
                self.frames.append(frame_of(shape.layout.paths, tuple(zone_of), kind_of))
                self._splits.append(shape.layers)
            self.frame[number] = known[key]
        self.split = np.array([len(one) if one else 0 for one in self._splits], dtype=np.int64)[self.frame]
        """Chunks of all stages, where their layers are given; 0: dealt out evenly."""
        self.deals = Deals(shapes, [self.frames[number] for number in self.frame.tolist()], speeds)
        self.chains = np.array([len(frame.kept) for frame in self.frames], dtype=np.int64)[self.frame]
        """Chains of each shape that differ."""
        self.along = np.array([frame.crosses for frame in self.frames], dtype=bool)[self.frame]
        """Stages of a replica lie in several zones."""
        self._replicas = [shape.layout.shares for shape in shapes]
        self.across = np.zeros(len(shapes), dtype=bool)
        """Replicas of a stage lie in several zones."""
        self._fast_after: dict[int, Floats] = {}
        self._boundaries: dict[tuple[int, int, int, bool], Floats]
        self.zone_shards = self.dp.copy()
        """Fewest replicas of a stage in one zone."""
        self.level = np.ones(len(shapes), dtype=bool)
        """Every zone in use holds equally many replicas of every stage."""
        self._members = dict(self._by_frame(np.arange(len(shapes))))
        """Shapes of each frame."""
        self._place = np.zeros(len(shapes), dtype=np.int64)
        self._runs: dict[tuple[int, Pipe], Runs] = {}
        self._links: dict[tuple[int, Pipe], Links] = {}
        for number, here in self._members.items():
            frame = self.frames[number]
            self._place[here] = np.arange(len(here))
            if frame.dp_zones.max() > 1:
                self.across[here] = True
                self.zone_shards[here] = frame.least_in_zone(self.replicas(here))
                even = self.zone_shards[here][:, None] * frame.dp_zones == self.dp[here][:, None]
                self.level[here] = even.all(axis=1)
        self.parts: dict[str, Any] = {}
        self._tie(ways)

    def _tie(self, ways: Ways) -> None:
        """Take these links between the zones."""
        self._ways, self._boundaries, self._links = ways, {}, {}
        self.parts = kept(self.parts, without=("ring",))

    @property
    def gloo(self) -> bool:
        """Ranks talk over Gloo."""
        return self._ways.transport.library == "gloo"

    @part
    def ring(self) -> Floats:
        """Rate and latency of the ring of zones, and the rate of a flat ring: [shapes, 3]."""
        found = np.tile([np.inf, 0.0, np.inf], (len(self.shapes), 1))
        for number, here in self._members.items():
            if self.across[here[0]]:
                found[here] = self.frames[number].ring(self.replicas(here), self.cell[here], self.tp[here], self._ways)
        return found

    def on(self, ways: Ways) -> Land:
        """The same shapes with other links between the zones."""
        other = copy(self)
        other._tie(ways)
        return other

    def replicas(self, shapes: Ints) -> Ints:
        """Replicas of each chain of shapes with the same frame: [n, chains]."""
        return np.array([self._replicas[i] for i in shapes.tolist()], dtype=np.int64)

    def _by_frame(self, shapes: Ints) -> list[tuple[int, Ints]]:
        """Shapes of each frame."""
        order = np.argsort(self.frame[shapes], kind="stable")
        frames, first = np.unique(self.frame[shapes][order], return_index=True)
        pieces = np.split(shapes[order], first[1:]) if len(shapes) else []
        return list(zip(frames.tolist(), pieces, strict=True))

    @part
    def cells(self) -> Ints:
        """Cells in use of each node group: [shapes, groups]."""
        found = np.zeros((len(self.shapes), len(self.groups)), dtype=np.int64)
        for number, here in self._members.items():
            found[here] = self.replicas(here) @ self.frames[number].stages_in(len(self.groups))
        return found

    @part
    def nodes(self) -> Ints:
        """Nodes in use."""
        size = np.array([group.gpus for group in self.groups])
        whole = size // self.tp[:, None] * self.tp[:, None]
        per_node = np.where(self.tp[:, None] <= size, whole, size)
        return np.asarray((-(-self.cells * self.cell[:, None] // np.maximum(per_node, 1))).sum(axis=1))

    @part
    def node_shards(self) -> Ints:
        """Replicas of a stage that lie in every node, where that is the same for all nodes; else 0."""
        size = np.array([group.gpus for group in self.groups])
        used = self.cells > 0
        most, least = np.where(used, size, 0).max(axis=1), np.where(used, size, 1 << 30).min(axis=1)
        beside = np.array([frame.stages_beside for frame in self.frames], dtype=np.int64)[self.frame]
        step = np.where(self._near, self.cell, self.cell * np.maximum(beside, 1))
        clean = (most == least) & (most % step == 0) & (self._near | (beside > 0))
        count = np.where(clean, most // step, 0)
        for shape in np.flatnonzero(count > 1).tolist():
            if any(share % count[shape] for share in self._replicas[shape]):
                count[shape] = 0
        return count

    @part
    def memory_kind(self) -> Ints:
        """Number of what memory depends on: shapes of one number need the same, options and micro-batch being equal."""
        known: dict[object, int] = {}
        frames = [
            known.setdefault((split, *sorted(set(map(tuple, frame.kinds.tolist())))), len(known))
            for frame, split in zip(self.frames, self._splits, strict=True)
        ]
        columns = [np.array(frames, dtype=np.int64)[self.frame], self.tp, self.cp, self.ep, self.dp]
        own = np.where(self.deals.uneven, np.arange(len(self.shapes)), -1)
        told = np.stack([*columns, self.zone_shards, self.node_shards, own], axis=1)
        return np.unique(told, axis=0, return_inverse=True)[1].ravel()

    @part
    def fast(self) -> Floats:
        """2 where a boundary between stages may lie inside a fast-link domain, else 0."""
        domain = np.array([group.local_gpus for group in self.groups])
        widest = np.where(self.cells > 0, domain, 1).max(axis=1)
        fewest = np.array([min(shares) for shares in self._replicas], dtype=np.int64)
        return np.asarray(2.0 * (widest > np.where(self._near, self.cell * fewest, self.cell)))

    def fast_after(self, shape: int) -> Floats:
        """As `fast` for each stage; 1 or 0 as it is for the slowest replica, where all lie in one node group."""
        if shape not in self._fast_after:
            self._fast_after[shape] = self._fast_of(shape)
        return self._fast_after[shape]

    def _fast_of(self, shape: int) -> Floats:
        cell, pp, dp = int(self.cell[shape]), int(self.pp[shape]), int(self.dp[shape])
        used = np.flatnonzero(self.cells[shape])
        group = self.groups[int(used[0])]
        domain = group.local_gpus
        if len(used) > 1 or domain % cell or group.gpus % int(self.tp[shape]) or not self.fast[shape]:
            return np.full(pp, self.fast[shape])
        stage, replica = np.arange(pp)[:, None], np.arange(dp)
        rank = cell * (replica + dp * stage if self._near[shape] else stage + pp * replica)
        inside = rank // domain == np.roll(rank, -1, axis=0) // domain
        return np.asarray(inside[:, np.argmin(inside.sum(axis=0))] * 1.0)

    def runs(self, shapes: Ints, pipe: Pipe) -> list[tuple[Ints, Runs]]:
        """Shapes of each frame with their runs of equal stages.

        Without a schedule stages that cost the same are one run.
        """
        return [(here, self._runs_of(number, pipe)) for number, here in self._by_frame(shapes)]

    def _runs_of(self, number: int, pipe: Pipe) -> Runs:
        """Runs of a frame, made once."""
        if (number, pipe) not in self._runs:
            frame = self.frames[number]
            layers = stage_layers_of(self._model, frame.stages, pipe, self._splits[number])
            self._runs[number, pipe] = frame.runs(pipe, *layers)
        return self._runs[number, pipe]

    def links(self, shapes: Ints, pipe: Pipe) -> Links:
        """The links after the runs of shapes of one frame: rates and latency; None where no chain crosses zones.

        Without a schedule only the slowest link of each chain counts.
        """
        number = int(self.frame[shapes[0]])
        runs = self._runs_of(number, pipe)
        if not runs.boundaries:
            return None
        if (number, pipe) not in self._links:
            self._links[number, pipe] = self._links_of(number, runs, self._members[number])
        found = self._links[number, pipe]
        return tuple(values[self._place[shapes]] for values in found) if found else None

    def _links_of(self, number: int, runs: Runs, here: Ints) -> Links:
        size = (len(here), len(runs.groups), 1 if runs.merged else len(runs))
        rate, back, late = np.full(size, np.inf), np.full(size, np.inf), np.zeros(size)
        for chain, run, a, b in runs.boundaries:
            there, home = (self._boundary(number, *way, runs.wraps) for way in ((a, b), (b, a)))
            at = 0 if runs.merged else run
            rate[:, chain, at] = np.minimum(rate[:, chain, at], there[:, 0])
            back[:, chain, at] = np.minimum(back[:, chain, at], home[:, 0])
            late[:, chain, at] = there[:, 1]
        return rate, back, late

    def _boundary(self, frame: int, a: int, b: int, wraps: bool) -> Floats:
        """Rate and latency from zone to zone, for the shapes of a frame: [shapes of it, 2]."""
        key = (frame, a, b, wraps)
        if key not in self._boundaries:
            here = self._members[frame]
            ranks = self.frames[frame].ranks(a, b, wraps, self.replicas(here), self.cell[here])
            self._boundaries[key] = self._ways.boundaries(a, b, ranks)
        return self._boundaries[key]
