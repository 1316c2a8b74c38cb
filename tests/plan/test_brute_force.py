"""The search finds the best of all strategies: every one of a small space is simulated to know it."""

from __future__ import annotations

import pytest

from plan.exhaustive import compared, small_problem

MOST = 300
"""Strategies of a space; `benchmarks/brute_force.py` looks at larger ones, and more of them."""


@pytest.mark.parametrize("seed", range(12))
def test_nothing_that_was_not_simulated_is_better(seed):
    """The best strategy and the values of the best families, of random clusters of at most 16 GPUs in two zones."""
    found = compared(small_problem(seed, MOST))
    assert found.agrees, (found.searched, found.exhaustive)
    assert found.simulated <= found.feasible
