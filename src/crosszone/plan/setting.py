"""Setting: what all strategies of one framework's search have in common.

Buckets: how many gradients go together where replicas lie in several zones.

Every bucket pays the latency between zones, and the last one hides behind nothing, so the frameworks' own sizes, made
for one building, are too small over long links.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from crosszone.cost.coefficients import Coefficients, band_factors
from crosszone.cost.collectives import best_bucket_bytes
from crosszone.cost.columns import Numbers
from crosszone.cost.memory import GIB
from crosszone.cost.profile import Profiles
from crosszone.cost.tiers import Tier
from crosszone.cost.wan import EXPECTED
from crosszone.inputs.cluster import NodeGroup
from crosszone.inputs.frameworks import Framework
from crosszone.inputs.job import Job, state_bytes
from crosszone.inputs.model import Model
from crosszone.inputs.parameters import parameters
from crosszone.inputs.strategy import Strategy
from crosszone.plan.problem import Problem
from crosszone.predict.batch import buckets
from crosszone.predict.memory import host_gib


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """What all strategies of a search have in common."""

    model: Model
    job: Job
    groups: tuple[NodeGroup, ...]
    framework: Framework
    profiles: Profiles
    stack: str
    release: float | None
    pinned: Strategy
    wan_bucket_mb: float | None = None
    """MB of a whole model's gradients that go together between zones (`buckets`); None: as pinned or usual."""
    safe: bool = False
    """Memory must suffice even at the high end of its range."""

    @cached_property
    def memory_share(self) -> float:
        """Share of a GPU's memory that the expected peak may take."""
        if not self.safe:
            return 1.0
        measured = all(self.profiles.select(group.gpu, self.stack).stack_measured for group in self.groups)
        return 1.0 / float(band_factors(stack_measured=measured, memory=True)[1])

    @cached_property
    def memory_bytes(self) -> list[tuple[float, float]]:
        """What a GPU of each node group has for the expected peak, on itself and in its node."""
        return [(self.memory_share * group.gpu.memory_gib * GIB, host_gib(group) * GIB) for group in self.groups]

    @cached_property
    def coefficients(self) -> list[Coefficients]:
        """Of each node group."""
        return [self.profiles.select(one.gpu, self.stack, one.speed).coefficients for one in self.groups]


MB = 1e6


def choose_wan_bucket_mb(problem: Problem, framework: Framework) -> float | None:
    """MB of a whole model's gradients that go together between zones; None: nobody may choose, or it costs memory. [W6]

    n buckets of S bytes pay n latencies of A and leave S / (n B) at the end: n = sqrt(S / (A B)), for a ring over all
    zones, so that it depends on the links and the model only.
    """
    asked = problem.pinned.communication.bucket_mb is not None or problem.pinned.local_update is not None
    zones = tuple(range(len(problem.cluster.zones)))
    if asked or len(zones) < 2 or not framework.has_buckets or framework.bucket_buffer:
        return None
    crossings = problem.ways.crossings
    ranks = min(zone.gpus for zone in problem.cluster.zones)
    ring = crossings.ring_link(crossings.ring(zones, ranks), ranks)
    size = parameters(problem.model).total * state_bytes(problem.job, framework=framework.name).gradients
    late = 2 * (len(zones) - 1) * float(ring.latency_s[EXPECTED])
    if late <= 0:
        return size / MB
    return float(best_bucket_bytes(size, Tier(float(ring.bytes_per_s[EXPECTED]), late))) / MB


def compute_rank_bucket_mb(setting: SearchSettings, tp: Numbers, pp: Numbers, dp: Numbers) -> Numbers:
    """MB of gradients of one rank that go together between zones: at least what the framework takes anyway. [W6]"""
    assert setting.wan_bucket_mb is not None
    kept = state_bytes(setting.job, framework=setting.framework.name).gradients
    usual = buckets(setting.model, None, setting.framework.name, kept, tp, dp) / MB
    return np.maximum(usual, np.ceil(setting.wan_bucket_mb / (np.asarray(tp) * pp)))
