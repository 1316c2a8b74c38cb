"""The best of all strategies by simulating every one of them, to compare a search with."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from crosszone.plan.problem import Problem
from crosszone.plan.search import PlanSearch
from plan.given import LARGE, SMALL, candidates, fields_of, grids, pins_of, problem_of

TOP = 5
"""Families whose values are compared."""
PINS: tuple[dict[str, Any], ...] = (
    {"recompute": "none"},
    {"recompute": "full"},
    {"offload": "none"},
    {"zero": 0},
    {"zero": 1},
    {"zero": 2},
    {"zero": 3},
    {"shard_within": "all"},
    {"micro_batch": 1},
    {"tp": 1},
    {"cp": 1},
    {"pp": 2},
    {"schedule": "1f1b"},
    {"schedule": "interleaved"},
    {"schedule": "zero-bubble"},
)
COMMUNICATION_PINS: tuple[dict[str, Any], ...] = (
    {"overlap_gradients": True},
    {"overlap_parameters": True},
    {"overlap_parameters": False},
    {"reduce": "flat"},
    {"gradient_dtype": "fp32"},
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a search found beside what there is."""

    strategies: int
    feasible: int
    searched: tuple[float, ...]
    """Step times of the best families, best first."""
    exhaustive: tuple[float, ...]
    simulated: int
    """Strategies that the search simulated."""

    @property
    def agrees(self) -> bool:
        """All values are the same up to rounding."""
        return len(self.searched) == len(self.exhaustive) and bool(
            np.allclose(self.searched, self.exhaustive, rtol=1e-9, atol=0)
        )

    @property
    def regret(self) -> float:
        """How much longer the best step that the search found is, as a share of the best there is."""
        if not self.exhaustive:
            return 0.0 if not self.searched else float("inf")
        return self.searched[0] / self.exhaustive[0] - 1.0 if self.searched else float("inf")


def small_problem(seed: int, most: int) -> Problem:
    """A problem of at most two zones, 16 GPUs and `most` strategies (and no less than a tenth), fields pinned until so."""
    random = Random(seed)
    while True:
        fields = fields_of(
            random.choice,
            gpus=random.choice([4, 6, 8, 12, 16]),
            zones=(1, 2, 2, 2),
            batches=(2, 4, 6, 8, 12),
            widths=random.choice([SMALL, LARGE]),
        )
        pinned = pins_of(random.choice, fields["job"]["global_batch"])
        left = [*PINS, *COMMUNICATION_PINS]
        random.shuffle(left)
        for pin in [{}, *left]:
            if pin in COMMUNICATION_PINS:
                pinned["communication"] = pin | pinned.get("communication", {})
            else:
                pinned = pin | pinned
            problem = problem_of(fields, **pinned)
            count = sum(
                space.count_strategies() for space in PlanSearch(problem, top=TOP).spaces if space.layout_table.layouts
            )
            if count <= most:
                break
        if most <= 10 * count <= 10 * most:
            return problem


def compared(problem: Problem) -> Comparison:
    """A search and every feasible strategy of the same spaces, simulated."""
    search = PlanSearch(problem, top=TOP)
    search.run()
    best: dict[int, float] = {}
    strategies = feasible = 0
    for number, grid in grids(search):
        owner, option = grid.expand_groups(*grid.pair_with_groups())
        strategies += len(owner)
        for one, core in zip(candidates(search, grid, owner, option), owner.tolist(), strict=True):
            if not one.predictor.memory.fits:
                continue
            feasible += 1
            family = int(search._families[number][grid.search_nodes.layout[core]])
            best[family] = min(best.get(family, np.inf), one.step_s)
    return Comparison(
        strategies=strategies,
        feasible=feasible,
        searched=tuple(value for value, _ in search.best.rank_families()[:TOP]),
        exhaustive=tuple(sorted(best.values())[:TOP]),
        simulated=search.tally.simulated,
    )
