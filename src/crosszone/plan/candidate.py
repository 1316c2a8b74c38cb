"""Candidate: one strategy of the search by its numbers, and the predictor that simulates it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

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
            "layers_per_stage": self.layers_per_stage or pinned.layers_per_stage,
            "replica_micro_batches": self.replica_micro_batches,
            "local_update": pinned.local_update,
        } | options
        return Strategy(**{name: value for name, value in fields.items() if value is not None})

    @cached_property
    def predictor(self) -> Predictor:
        """Everything that is computed of it."""
        problem, setting, shape = self.problem, self.scores.setting, self.shape
        placement = shape.layout.placement(problem.cluster, shape.tp, shape.cp, shape.order)
        case = Case(
            model=problem.model,
            job=problem.job,
            cluster=problem.cluster,
            strategy=self.strategy,
            placement=placement,
        ).on(setting.framework)
        return Predictor(
            name=problem.scenario.name,
            site=Site(
                case=case, placement=placement, links=problem.scenario.links, banded=False, known=problem.ways.crossings
            ),
            framework=setting.framework,
            profiles=setting.profiles,
            stack=setting.stack,
            release=setting.release,
            notices=(),
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

    def with_layers(self, layers: tuple[int, ...] | None) -> Candidate:
        """The same with another split of the layers."""
        return replace(self, layers_per_stage=layers)
