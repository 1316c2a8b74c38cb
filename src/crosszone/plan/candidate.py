"""Candidate: one strategy of the search by its numbers, and the predictor that simulates it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from crosszone.errors import Notice
from crosszone.inputs.frameworks import Framework
from crosszone.inputs.placement import Placement
from crosszone.inputs.rules import Case
from crosszone.inputs.strategy import Strategy
from crosszone.plan.buckets import rank_bucket_mb
from crosszone.plan.layout import Crossing
from crosszone.plan.problem import Problem
from crosszone.plan.scores import Scores
from crosszone.plan.shapes import Shape
from crosszone.plan.tracks import Pipe
from crosszone.predict.over import steps_over
from crosszone.predict.predict import Predictor
from crosszone.predict.site import Site

ROUNDED = 1.0 - 1e-9
"""On a bound: its sums may be rounded otherwise than those of the step."""


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
    def _key(self) -> Hashable:
        """What it is, whatever the links between zones."""
        own = {name: tuple(sorted(v.items())) if isinstance(v, dict) else v for name, v in self.options.items()}
        crosses = self.crossing in ("dp", "both")
        return (
            self.framework.name,
            self.shape,
            self.pipe,
            self.micro_batch,
            self.micro_batches,
            tuple(sorted(own.items())),
            self.layers_per_stage,
            self.replica_micro_batches,
            self.scores.setting.wan_bucket_mb if crosses else None,
            self.problem.communication.flows if self.crossing != "none" else None,
        )

    @cached_property
    def strategy(self) -> Strategy:
        """With everything filled in."""
        return self._placed[0]

    @cached_property
    def placement(self) -> Placement:
        """Where its ranks run."""
        return self._placed[1]

    @cached_property
    def _placed(self) -> tuple[Strategy, Placement]:
        """Strategy and placement, made once whatever the links."""
        known: tuple[Strategy, Placement] | None = self.problem.kept.placed(("placed", self._key))
        if known is None:
            shape = self.shape
            where = shape.layout.placement(self.problem.cluster, shape.tp, shape.cp, shape.order)
            known = self._strategy(), where
            self.problem.kept.place(("placed", self._key), known, shape.gpus)
        return known

    def _strategy(self) -> Strategy:
        pinned, shape = self.problem.pinned, self.shape
        talk = pinned.communication if self.crossing == "none" else self.problem.communication
        options = dict(self.options)
        inner = options.pop("communication", {})
        setting = self.scores.setting
        if setting.wan_bucket_mb is not None and self.crossing in ("dp", "both"):
            inner = {**inner, "bucket_mb": float(rank_bucket_mb(setting, shape.tp, shape.pp, shape.dp))}
        fields: dict[str, Any] = {
            "tp": shape.tp,
            "pp": shape.pp,
            "dp": shape.dp,
            "cp": shape.cp,
            "ep": shape.ep,
            "expert_tp": pinned.expert_tp,
            "micro_batch": self.micro_batch,
            "interleave": self.pipe.chunks,
            "schedule": self.pipe.schedule if shape.pp > 1 else None,
            "communication": talk.replace(**inner) if inner else talk,
            "layers_per_stage": self.layers_per_stage or shape.layers,
            "replica_micro_batches": self.replica_micro_batches,
            "local_update": pinned.local_update,
        } | options
        return Strategy(**{name: value for name, value in fields.items() if value is not None})

    @cached_property
    def predictor(self) -> Predictor:
        """Everything that is computed of it, at the expected RTT."""
        return self.predictor_of(banded=False)

    def predictor_of(self, *, banded: bool, notices: tuple[Notice, ...] = ()) -> Predictor:
        """Everything that is computed of it; `banded`: with the range of the links' RTT."""
        problem, setting = self.problem, self.scores.setting
        crossings, links = problem.ways.crossings, problem.scenario.links
        known: Predictor | None = problem.kept.placed((banded, self._key))
        if known is not None:
            return known.on(problem.scenario.name, known.site.on(problem.cluster, links, crossings), notices)
        case = Case(
            model=problem.model,
            job=problem.job,
            cluster=problem.cluster,
            strategy=self.strategy,
            placement=self.placement,
        ).on(setting.framework)
        site = Site(case=case, placement=self.placement, links=links, banded=banded, known=crossings)
        found = Predictor(
            name=problem.scenario.name,
            site=site,
            framework=setting.framework,
            profiles=setting.profiles,
            stack=setting.stack,
            release=setting.release,
            notices=notices,
        )
        problem.kept.place((banded, self._key), found, self.shape.gpus)
        return found

    @cached_property
    def step_s(self) -> float:
        """Simulated step at the expected RTT."""
        if not self._several:
            return self.predictor.step_time.expected
        kept = self.problem.kept
        known: dict[int, float] = kept.placed(("steps", self._key)) or {}
        own = next(number for number, ways in kept.ahead.items() if ways is self.problem.ways)
        if own not in known:
            site = self.predictor.site
            sites = [site.on(ways.cluster, ways.links, ways.crossings) for ways in kept.ahead.values()]
            known = dict(zip(kept.ahead, steps_over(self.predictor, sites).tolist(), strict=True))
            kept.place(("steps", self._key), known, 0)
        return known[own]

    @property
    def _several(self) -> bool:
        """Others come next that differ in their links only, and the step depends on these (`Common`)."""
        alone = self.strategy.local_update is not None or self.crossing == "none"
        own = self.scores.setting.wan_bucket_mb is not None and self.crossing in ("dp", "both")
        return len(self.problem.kept.ahead) > 1 and not alone and not own

    def may_beat(self, limit: float) -> bool:
        """Whether the step may be below a limit: by a bound, where that is quicker than the step itself."""
        return self._several or self.predictor.least_s * ROUNDED < limit

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
