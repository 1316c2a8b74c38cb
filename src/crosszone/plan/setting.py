"""Setting: what all strategies of one framework's search have in common."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from crosszone.cost.coefficients import Coefficients, band_factors
from crosszone.cost.memory import GIB
from crosszone.cost.profile import Profiles
from crosszone.inputs.cluster import NodeGroup
from crosszone.inputs.frameworks import Framework
from crosszone.inputs.job import Job
from crosszone.inputs.model import Model
from crosszone.inputs.strategy import Strategy
from crosszone.predict.memory import host_gib


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
