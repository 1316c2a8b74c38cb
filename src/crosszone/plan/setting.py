"""Setting: what all strategies of one framework's search have in common."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from crosszone.cost.coefficients import Coefficients
from crosszone.cost.profile import Profiles
from crosszone.inputs.cluster import NodeGroup
from crosszone.inputs.frameworks import Framework
from crosszone.inputs.job import Job
from crosszone.inputs.model import Model
from crosszone.inputs.strategy import Strategy


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
