"""Options: every combination of a framework's switches that is legal, as columns of small numbers.

Degrees and placement are apart (`layouts`): here are sharding, recomputation, offload, gradient type, overlap and how
gradients are reduced. Which of them can matter depends on a layout's traits, so each set of traits has its own table.

`POLICIES`: what the planner does not try although it would be legal, each with the sentence shown to the user.

A pinned degree or option is never kept out by a policy: who asks for it sees what it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from crosszone.errors import Notice
from crosszone.inputs.frameworks import Framework, Need
from crosszone.inputs.job import Job
from crosszone.inputs.strategy import Strategy
from crosszone.plan.problem import Problem
from crosszone.schedule.orders import V_SHAPED

Ints = npt.NDArray[np.int64]
COMMUNICATION = "communication."
# Fields of a strategy that a table has a column for.
FIELDS = (
    "zero",
    "shard_within",
    "sequence_parallel",
    "recompute",
    "offload",
    "communication.gradient_dtype",
    "communication.overlap_gradients",
    "communication.overlap_parameters",
    "communication.overlap_tensor",
    "communication.reduce",
)
GRADIENTS, OVERLAPS = FIELDS[5], FIELDS[6:9]


class LayoutTraits(NamedTuple):
    """What a layout has, as far as options depend on it."""

    tensor: bool
    piped: bool
    expert: bool
    replicated: bool
    """Some weights have several holders (dp or cp)."""
    replicas_cross: bool
    """Replicas of a stage lie in several zones."""
    equal_zones: bool
    """Every zone in use holds equally many replicas of every stage."""
    over_nodes: bool
    """Replicas of a stage lie in several nodes."""
    sequence: bool
    """Tensor parallelism divides the tokens of a rank's sequence."""
    uneven: bool = False
    """Replicas take different numbers of micro-batches."""
    uneven_in_zone: bool = False
    """Even those of one zone do."""


@dataclass(frozen=True, eq=False)
class OptionTable:
    """Legal combinations: for each field its values, and the place of each row's value among them."""

    values: dict[str, tuple[Any, ...]]
    codes: dict[str, Ints]
    is_named: dict[str, tuple[bool, ...]]
    """Whether a strategy names the value, by place; what it does not name has its default."""

    def __len__(self) -> int:
        return len(self.codes["zero"])

    def get_column(self, field: str, numbers: dict[Any, float] | None = None) -> npt.NDArray[np.float64]:
        """A field of every row as a number."""
        table = [float(numbers[value] if numbers else value) for value in self.values[field]]
        return np.array(table)[self.codes[field]]

    def build_fields(self, row: int) -> dict[str, Any]:
        """The fields of one row as a strategy takes them."""
        strategy_fields: dict[str, Any] = {}
        inner: dict[str, Any] = {}
        for field in FIELDS:
            place = int(self.codes[field][row])
            if not self.is_named[field][place]:
                continue
            value = self.values[field][place]
            if field.startswith(COMMUNICATION):
                inner[field.removeprefix(COMMUNICATION)] = value
            else:
                strategy_fields[field] = value
        return strategy_fields | ({"communication": inner} if inner else {})

    @cached_property
    def undominated(self) -> npt.NDArray[np.bool_]:
        """Rows that no other row beats whatever the layout: none overlaps one thing more or sends narrower gradients.

        Overlap never adds time, narrower gradients (the second type) never add time or memory; the rest is the same.
        """
        sizes = [len(self.values[name]) for name in FIELDS]
        codes = np.ravel_multi_index([self.codes[name] for name in FIELDS], sizes)
        is_undominated = np.ones(len(self), dtype=bool)
        for name in (GRADIENTS, *OVERLAPS):
            values = self.values[name]
            better = 1 if name == GRADIENTS else values.index(True) if True in values else 0
            if len(values) < 2:
                continue
            # Codes are mixed-radix numbers, so the same row with one field changed is a fixed step away.
            step = int(np.prod(sizes[FIELDS.index(name) + 1 :]))
            improved = codes + (better - self.codes[name]) * step
            is_undominated &= (self.codes[name] == better) | ~np.isin(improved, codes)
        return is_undominated


def list_options(
    framework: Framework, job: Job, pinned: Strategy, traits: LayoutTraits, dtypes: Sequence[str | None]
) -> OptionTable:
    """All legal combinations of one framework for layouts with these traits; what the user pinned has one value."""
    choices = _list_choices(framework, traits, dtypes)
    for field in FIELDS:
        holder = pinned.communication if field.startswith(COMMUNICATION) else pinned
        name = field.removeprefix(COMMUNICATION)
        if name in holder.model_fields_set and getattr(holder, name) is not None:
            choices[field] = [(getattr(holder, name), True)]
    sizes = [len(choices[field]) for field in FIELDS]
    grid = np.indices(sizes).reshape(len(FIELDS), -1)
    values = {field: tuple(value for value, _ in choices[field]) for field in FIELDS}
    is_named = {field: tuple(is_explicit for _, is_explicit in choices[field]) for field in FIELDS}
    codes = dict(zip(FIELDS, grid, strict=True))
    combinations = OptionTable(values, codes, is_named)
    keep = _select_sensible(combinations)
    if pinned.local_update is not None:  # zones that train on their own hold all states each
        keep &= (combinations.get_column("zero") == 0) | (
            combinations.get_column("shard_within", {"all": 0, "zone": 1, "node": 1}) > 0
        )
    if traits.uneven:  # replicas that share gradients or weights meet in every micro-batch
        apart = combinations.get_column("shard_within", {"all": 0, "zone": 1, "node": 1}) > 0
        keep &= (combinations.get_column("zero") < 2) | (apart & (not traits.uneven_in_zone))
    for need in framework.needs:
        keep &= _select_meeting_need(need, combinations, traits, job)
    return OptionTable(values, {field: code[keep] for field, code in codes.items()}, is_named)


def _list_choices(
    framework: Framework, traits: LayoutTraits, dtypes: Sequence[str | None]
) -> dict[str, list[tuple[Any, bool]]]:
    """Values of each field, and whether a strategy must name them."""

    def list_switch_values(what: str, matters: bool) -> list[tuple[Any, bool]]:
        if what not in framework.overlap:
            return [(what != "tensor", False)]
        if matters:
            return [(True, True), (False, True)]
        # Named where it would follow the release otherwise, with a value that no need of a framework refuses: hiding a
        # gather needs shards, which rows without them do not have.
        return [(what == "gradients", what != "tensor")]

    shared = traits.replicated
    zero = [(z, True) for z in framework.zero]
    within = ["all"]
    within += ["zone"] * (traits.replicas_cross and traits.equal_zones and "zone" in framework.shard_within)
    within += ["node"] * (traits.over_nodes and "node" in framework.shard_within)
    reduce = [(value, True) for value in framework.reduce] if traits.replicas_cross else [(framework.reduce[-1], False)]
    return {
        "zero": zero,
        "shard_within": [(value, value != "all") for value in within],
        "sequence_parallel": [(x, True) for x in (True, False)]
        if traits.sequence and framework.sequence_parallel
        else [(False, False)],
        "recompute": [(value, True) for value in framework.recompute],
        "offload": [(value, value != "none") for value in framework.offload],
        "communication.gradient_dtype": [(value, value is not None) for value in (dtypes if shared else dtypes[:1])],
        "communication.overlap_gradients": list_switch_values("gradients", shared),
        "communication.overlap_parameters": list_switch_values(
            # weights in host memory are gathered from there, by a single replica too
            "parameters",
            shared or "optimizer+weights" in framework.offload,
        ),
        "communication.overlap_tensor": list_switch_values("tensor", traits.tensor),
        "communication.reduce": reduce,
    }


def _select_sensible(options: OptionTable) -> npt.NDArray[np.bool_]:
    """Combinations that differ in something: no gather to hide without shards, no narrower sets without sharding."""
    zero = options.get_column("zero")
    overlaps_parameters = options.get_column("communication.overlap_parameters") > 0
    is_named = np.array(options.is_named["communication.overlap_parameters"])[
        options.codes["communication.overlap_parameters"]
    ]
    scope = np.array(options.values["shard_within"])[options.codes["shard_within"]]
    keep: npt.NDArray[np.bool_] = ~(is_named & overlaps_parameters & (zero == 0)) | (
        len(options.values[FIELDS[7]]) == 1
    )
    return np.asarray(keep & ((scope == "all") | (zero >= 1)))


def _select_meeting_need(need: Need, options: OptionTable, traits: LayoutTraits, job: Job) -> npt.NDArray[np.bool_]:
    """Rows that meet a framework's need, as `rules.check_framework_needs` asks for it."""
    degrees = {"tp": traits.tensor, "pp": traits.piped, "ep": traits.expert}
    rows = np.ones(len(options), dtype=bool)
    if any(getattr(job, path.removeprefix("job.")) in values for path, values in need.unless.items()):
        return rows

    def is_allowed(path: str, allowed: Sequence[Any]) -> npt.NDArray[np.bool_]:
        if path in degrees:
            return rows & ((not degrees[path]) or any(value != 1 for value in allowed))
        if path.startswith("job."):
            return rows & (getattr(job, path.removeprefix("job.")) in allowed)
        if path not in options.values:
            return rows  # a field no option stands for: checked with the whole strategy
        return np.array([value in allowed for value in options.values[path]])[options.codes[path]]

    applies = rows.copy()
    for path, required in need.when.items():
        if required == "more":
            applies &= degrees.get(path, False)
        elif path in options.values:
            is_named = np.array(options.is_named[path])[options.codes[path]]
            applies &= is_named & is_allowed(path, required)
        else:
            applies &= False
    is_met = rows.copy()
    for path, allowed in need.then.items():
        is_met &= is_allowed(path, allowed)
    return ~applies | is_met


# Tokens of a sequence that a context-parallel rank keeps at least: its ring exchange hides behind attention, whose time
# falls with the square of the tokens.
MIN_TOKENS_PER_RANK = 4096
MAX_MICRO_BATCH = 64  # Samples of a micro-batch
SMALL_CLUSTER_GPUS = 64  # Tensor-parallel groups up to which every number of stages is tried
MAX_STAGES = 128  # Stages of larger clusters


class SearchPolicy(NamedTuple):
    """A degree, and whether a value of it is worth trying."""

    code: str
    degree: str
    keeps: Callable[[Problem, Any], bool]


def _is_in_domain(problem: Problem, tp: int) -> bool:
    """Inside a fast-link domain; where there is none, inside a node."""
    return any(problem.can_hold_tp(group, tp) for group in problem.groups)


def _is_long_enough(problem: Problem, cp: int) -> bool:
    return cp == 1 or problem.job.seq_len // cp >= MIN_TOKENS_PER_RANK


def _is_power_of_two(_: Problem, degree: int) -> bool:
    return degree & (degree - 1) == 0


def _is_small_enough(_: Problem, micro_batch: int) -> bool:
    return micro_batch <= MAX_MICRO_BATCH


def _has_even_stages(problem: Problem, pp: int) -> bool:
    """Stages that share layers, or layers with embedding and head, out evenly, and powers of two."""
    if problem.cluster.gpus <= SMALL_CLUSTER_GPUS:
        return True
    layers = problem.model.layers
    even = any((layers + ends) % pp == 0 for ends in (0, 2))
    return pp <= MAX_STAGES and (even or _is_power_of_two(problem, pp))


def _is_not_folded(problem: Problem, schedule: str) -> bool:
    """Not folded into a V, where every micro-batch goes over each boundary twice."""
    return problem.cluster.gpus <= SMALL_CLUSTER_GPUS or schedule not in V_SHAPED


# Checked in this order; the first that keeps a value out is told.
POLICIES: tuple[SearchPolicy, ...] = (
    SearchPolicy("policy_tp_domain", "tp", _is_in_domain),
    SearchPolicy("policy_cp_tokens", "cp", _is_long_enough),
    SearchPolicy("policy_cp_power", "cp", _is_power_of_two),
    SearchPolicy("policy_micro_batch", "micro_batch", _is_small_enough),
    SearchPolicy("policy_stages", "pp", _has_even_stages),
    SearchPolicy("policy_folded_across", "schedule", _is_not_folded),
)


def check_policies(problem: Problem, degree: str, value: int | str) -> Notice | None:
    """Why a value of a degree is not tried (of a schedule: where the pipeline crosses zones); None: it is."""
    if problem.is_pinned(degree):
        return None
    for policy in POLICIES:
        if policy.degree == degree and not policy.keeps(problem, value):
            params = {"tokens": MIN_TOKENS_PER_RANK, "most": MAX_MICRO_BATCH, "cells": SMALL_CLUSTER_GPUS}
            return Notice(code=policy.code, field=f"strategy.{degree}", value=value, level="note", params=params)
    return None
