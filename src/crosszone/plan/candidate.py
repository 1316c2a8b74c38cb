"""Candidate: one strategy of the search by its numbers, and the predictor that simulates it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from crosszone.errors import Notice
from crosszone.inputs.frameworks import Framework
from crosszone.inputs.placement import Placement
from crosszone.inputs.rules import Case
from crosszone.inputs.strategy import Strategy
from crosszone.plan.layout import Crossing
from crosszone.plan.problem import Problem
from crosszone.plan.scores import Scores
from crosszone.plan.shapes import Shape
from crosszone.plan.tracks import Pipe
from crosszone.predict.predictor import Predictor
from crosszone.predict.site import Site


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A strategy of one framework's grid."""

    problem: Problem
    scores: Scores
    shape: Shape
    pipe: Pipe
    micro_batch: int
    micro_batches: int
    options: dict[str, Any]
    """Fields of the strategy beside its degrees."""
    layers_per_stage: tuple[int, ...] | None = None
    replica_micro_batches: tuple[int, ...] | None = None

    @cached_property
    def strategy(self) -> Strategy:
        """With everything filled in."""
        pinned, shape = self.problem.pinned, self.shape
        options = dict(self.options)
        inner = options.pop("communication", {})
        fields: dict[str, Any] = {
            "tp": shape.tp,
            "pp": shape.pp,
            "dp": shape.dp,
            "cp": shape.cp,
            "ep": shape.ep,
            "micro_batch": self.micro_batch,
            "interleave": self.pipe.chunks,
            "schedule": self.pipe.schedule if shape.pp > 1 else None,
            "communication": pinned.communication.replace(**inner) if inner else pinned.communication,
            "layers_per_stage": self.layers_per_stage or shape.layers,
            "replica_micro_batches": self.replica_micro_batches,
            "local_update": pinned.local_update,
        } | options
        return Strategy(**{name: value for name, value in fields.items() if value is not None})

    @cached_property
    def placement(self) -> Placement:
        """Where its ranks run."""
        shape = self.shape
        return shape.layout.placement(self.problem.cluster, shape.tp, shape.cp, shape.order)

    @cached_property
    def predictor(self) -> Predictor:
        """Everything that is computed of it, at the expected RTT."""
        return self.predictor_of(banded=False)

    def predictor_of(self, *, banded: bool, notices: tuple[Notice, ...] = ()) -> Predictor:
        """Everything that is computed of it; `banded`: with the range of the links' RTT."""
        problem, setting = self.problem, self.scores.setting
        case = Case(
            model=problem.model,
            job=problem.job,
            cluster=problem.cluster,
            strategy=self.strategy,
            placement=self.placement,
        ).on(setting.framework)
        known = problem.ways.crossings
        site = Site(case=case, placement=self.placement, links=problem.scenario.links, banded=banded, known=known)
        return Predictor(
            name=problem.scenario.name,
            site=site,
            framework=setting.framework,
            profiles=setting.profiles,
            stack=setting.stack,
            release=setting.release,
            notices=notices,
        )

    @cached_property
    def step_s(self) -> float:
        """Simulated step at the expected RTT."""
        return self.predictor.step_time.expected

    @cached_property
    def crossing(self) -> Crossing:
        """What crosses zones."""
        return self.shape.layout.crossing(self.problem.ground.zone_of)

    @cached_property
    def zones(self) -> tuple[int, ...]:
        """Zones in use."""
        return self.shape.layout.zones(self.problem.ground.zone_of)

    @cached_property
    def chain_micro_batches(self) -> tuple[int, ...]:
        """Micro-batches of a replica of each chain."""
        counts = self.replica_micro_batches
        starts = np.cumsum([0, *self.shape.layout.shares[:-1]]).tolist()
        return tuple(counts[at] if counts else self.micro_batches for at in starts)

    @cached_property
    def chain_s(self) -> tuple[float, ...]:
        """Step of a replica of each chain, the others left out."""
        site, total = self.predictor.site, self.predictor.step.total_s
        ends = np.cumsum(self.shape.layout.shares)
        chain = np.searchsorted(ends, site.kinds[0], side="right")
        return tuple(float(total[chain == number].max()) for number in range(len(ends)))

    def with_shares(self, counts: tuple[int, ...]) -> Candidate:
        """The same with so many micro-batches for a replica of each chain."""
        shares = self.shape.layout.shares
        each = tuple(m for m, n in zip(counts, shares, strict=True) for _ in range(n))
        return replace(self, micro_batches=max(counts), replica_micro_batches=each)

    @property
    def framework(self) -> Framework:
        """Its framework."""
        return self.scores.setting.framework

    @property
    def zone_names(self) -> tuple[str, ...]:
        """Zones in use, by name."""
        return tuple(self.problem.cluster.zones[z].name for z in self.zones)
