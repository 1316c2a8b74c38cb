"""Policies: what the planner does not try although it would be legal, each with the sentence shown to the user.

A pinned degree or option is never kept out by a policy: who asks for it sees what it costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from crosszone.errors import Notice
from crosszone.plan.problem import Problem
from crosszone.schedule.orders import V_SHAPED

LEAST_TOKENS = 4096
"""Tokens of a sequence that a context-parallel rank keeps at least."""
MOST_MICRO_BATCH = 64
"""Samples of a micro-batch."""
FEW_CELLS = 64
"""Tensor-parallel groups up to which every number of stages is tried."""
MOST_STAGES = 128
"""Stages of larger clusters."""


class Policy(NamedTuple):
    """A degree, and whether a value of it is worth trying."""

    code: str
    degree: str
    keeps: Callable[[Problem, Any], bool]


def _in_domain(problem: Problem, tp: int) -> bool:
    """Inside a fast-link domain; where there is none, inside a node."""
    return any(problem.holds_tp(group, tp) for group in problem.groups)


def _long_enough(problem: Problem, cp: int) -> bool:
    return cp == 1 or problem.job.seq_len // cp >= LEAST_TOKENS


def _power_of_two(_: Problem, degree: int) -> bool:
    return degree & (degree - 1) == 0


def _small_enough(_: Problem, micro_batch: int) -> bool:
    return micro_batch <= MOST_MICRO_BATCH


def _even_stages(problem: Problem, pp: int) -> bool:
    """Stages that share layers, or layers with embedding and head, out evenly, and powers of two."""
    if problem.cluster.gpus <= FEW_CELLS:
        return True
    layers = problem.model.layers
    even = any((layers + ends) % pp == 0 for ends in (0, 2))
    return pp <= MOST_STAGES and (even or _power_of_two(problem, pp))


def _straight(problem: Problem, schedule: str) -> bool:
    """Not folded into a V, where every micro-batch goes over each boundary twice."""
    return problem.cluster.gpus <= FEW_CELLS or schedule not in V_SHAPED


POLICIES: tuple[Policy, ...] = (
    Policy("policy_tp_domain", "tp", _in_domain),
    Policy("policy_cp_tokens", "cp", _long_enough),
    Policy("policy_cp_power", "cp", _power_of_two),
    Policy("policy_micro_batch", "micro_batch", _small_enough),
    Policy("policy_stages", "pp", _even_stages),
    Policy("policy_folded_across", "schedule", _straight),
)
"""Checked in this order; the first that keeps a value out is told."""


def kept_out(problem: Problem, degree: str, value: int | str) -> Notice | None:
    """Why a value of a degree is not tried (of a schedule: where the pipeline crosses zones); None: it is."""
    if problem.is_pinned(degree):
        return None
    for policy in POLICIES:
        if policy.degree == degree and not policy.keeps(problem, value):
            params = {"tokens": LEAST_TOKENS, "most": MOST_MICRO_BATCH, "cells": FEW_CELLS}
            return Notice(code=policy.code, field=f"strategy.{degree}", value=value, level="note", params=params)
    return None
