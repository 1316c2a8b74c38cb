"""Options: every combination of a framework's switches that is legal, as columns of small numbers.

Degrees and placement are apart (`shapes`): here are sharding, recomputation, offload, gradient type, overlap and how
gradients are reduced. Which of them can matter depends on a shape's traits, so each set of traits has its own table.

Policies: what the planner does not try although it would be legal, each with the sentence shown to the user.

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
    """What a shape has, as far as options depend on it."""

    tensor: bool
    piped: bool
    expert: bool
    replicated: bool
    """Some weights have several holders (dp or cp)."""
    replicas_cross: bool
    """Replicas of a stage lie in several zones."""
    level: bool
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
    asked: dict[str, tuple[bool, ...]]
    """Whether a strategy names the value, by place; what it does not name has its default."""

    def __len__(self) -> int:
        return len(self.codes["zero"])

    def column(self, field: str, numbers: dict[Any, float] | None = None) -> npt.NDArray[np.float64]:
        """A field of every row as a number."""
        table = [float(numbers[value] if numbers else value) for value in self.values[field]]
        return np.array(table)[self.codes[field]]

    def fields(self, row: int) -> dict[str, Any]:
        """The fields of one row as a strategy takes them."""
        found: dict[str, Any] = {}
        inner: dict[str, Any] = {}
        for field in FIELDS:
            place = int(self.codes[field][row])
            if not self.asked[field][place]:
                continue
            value = self.values[field][place]
            if field.startswith(COMMUNICATION):
                inner[field.removeprefix(COMMUNICATION)] = value
            else:
                found[field] = value
        return found | ({"communication": inner} if inner else {})

    @cached_property
    def best(self) -> npt.NDArray[np.bool_]:
        """Rows that no other row beats whatever the shape: none overlaps one thing more or sends narrower gradients.

        Overlap never adds time, narrower gradients (the second type) never add time or memory; the rest is the same.
        """
        sizes = [len(self.values[name]) for name in FIELDS]
        codes = np.ravel_multi_index([self.codes[name] for name in FIELDS], sizes)
        found = np.ones(len(self), dtype=bool)
        for name in (GRADIENTS, *OVERLAPS):
            values = self.values[name]
            better = 1 if name == GRADIENTS else values.index(True) if True in values else 0
            if len(values) < 2:
                continue
            step = int(np.prod(sizes[FIELDS.index(name) + 1 :]))
            improved = codes + (better - self.codes[name]) * step
            found &= (self.codes[name] == better) | ~np.isin(improved, codes)
        return found


def list_options(
    framework: Framework, job: Job, pinned: Strategy, traits: LayoutTraits, dtypes: Sequence[str | None]
) -> OptionTable:
    """All legal combinations of one framework for shapes with these traits; what the user pinned has one value."""
    choices = _choices(framework, traits, dtypes)
    for field in FIELDS:
        holder = pinned.communication if field.startswith(COMMUNICATION) else pinned
        name = field.removeprefix(COMMUNICATION)
        if name in holder.model_fields_set and getattr(holder, name) is not None:
            choices[field] = [(getattr(holder, name), True)]
    sizes = [len(choices[field]) for field in FIELDS]
    grid = np.indices(sizes).reshape(len(FIELDS), -1)
    values = {field: tuple(value for value, _ in choices[field]) for field in FIELDS}
    asked = {field: tuple(named for _, named in choices[field]) for field in FIELDS}
    codes = dict(zip(FIELDS, grid, strict=True))
    whole = OptionTable(values, codes, asked)
    keep = _sensible(whole)
    if pinned.local_update is not None:  # zones that train on their own hold all states each
        keep &= (whole.column("zero") == 0) | (whole.column("shard_within", {"all": 0, "zone": 1, "node": 1}) > 0)
    if traits.uneven:  # replicas that share gradients or weights meet in every micro-batch
        apart = whole.column("shard_within", {"all": 0, "zone": 1, "node": 1}) > 0
        keep &= (whole.column("zero") < 2) | (apart & (not traits.uneven_in_zone))
    for need in framework.needs:
        keep &= _met(need, whole, traits, job)
    return OptionTable(values, {field: code[keep] for field, code in codes.items()}, asked)


def _choices(
    framework: Framework, traits: LayoutTraits, dtypes: Sequence[str | None]
) -> dict[str, list[tuple[Any, bool]]]:
    """Values of each field, and whether a strategy must name them."""

    def switch(what: str, matters: bool) -> list[tuple[Any, bool]]:
        if what not in framework.overlap:
            return [(what != "tensor", False)]
        return [(True, True), (False, True)] if matters else [(what != "tensor", False)]

    shared = traits.replicated
    zero = [(z, True) for z in framework.zero]
    within = ["all"]
    within += ["zone"] * (traits.replicas_cross and traits.level and "zone" in framework.shard_within)
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
        "communication.overlap_gradients": switch("gradients", shared),
        "communication.overlap_parameters": switch("parameters", shared),
        "communication.overlap_tensor": switch("tensor", traits.tensor),
        "communication.reduce": reduce,
    }


def _sensible(options: OptionTable) -> npt.NDArray[np.bool_]:
    """Combinations that differ in something: no gather to hide without shards, no narrower sets without sharding."""
    zero = options.column("zero")
    hidden = options.column("communication.overlap_parameters") > 0
    asked = np.array(options.asked["communication.overlap_parameters"])[
        options.codes["communication.overlap_parameters"]
    ]
    within = np.array(options.values["shard_within"])[options.codes["shard_within"]]
    keep: npt.NDArray[np.bool_] = ~(asked & hidden & (zero == 0)) | (len(options.values[FIELDS[7]]) == 1)
    return np.asarray(keep & ((within == "all") | (zero >= 1)))


def _met(need: Need, options: OptionTable, traits: LayoutTraits, job: Job) -> npt.NDArray[np.bool_]:
    """Rows that meet a framework's need, as `rules.framework_needs_met` asks for it."""
    degrees = {"tp": traits.tensor, "pp": traits.piped, "ep": traits.expert}
    rows = np.ones(len(options), dtype=bool)
    if any(getattr(job, path.removeprefix("job.")) in values for path, values in need.unless.items()):
        return rows

    def among(path: str, allowed: Sequence[Any]) -> npt.NDArray[np.bool_]:
        if path in degrees:
            return rows & ((not degrees[path]) or any(value != 1 for value in allowed))
        if path.startswith("job."):
            return rows & (getattr(job, path.removeprefix("job.")) in allowed)
        if path not in options.values:
            return rows  # a field no option stands for: checked with the whole strategy
        return np.array([value in allowed for value in options.values[path]])[options.codes[path]]

    when = rows.copy()
    for path, wanted in need.when.items():
        if wanted == "more":
            when &= degrees.get(path, False)
        elif path in options.values:
            named = np.array(options.asked[path])[options.codes[path]]
            when &= named & among(path, wanted)
        else:
            when &= False
    then = rows.copy()
    for path, allowed in need.then.items():
        then &= among(path, allowed)
    return ~when | then


MIN_TOKENS_PER_RANK = 4096  # Tokens of a sequence that a context-parallel rank keeps at least
MAX_MICRO_BATCH = 64  # Samples of a micro-batch
SMALL_CLUSTER_GPUS = 64  # Tensor-parallel groups up to which every number of stages is tried
MAX_STAGES = 128  # Stages of larger clusters


class Policy(NamedTuple):
    """A degree, and whether a value of it is worth trying."""

    code: str
    degree: str
    keeps: Callable[[Problem, Any], bool]


def _in_domain(problem: Problem, tp: int) -> bool:
    """Inside a fast-link domain; where there is none, inside a node."""
    return any(problem.can_hold_tp(group, tp) for group in problem.groups)


def _long_enough(problem: Problem, cp: int) -> bool:
    return cp == 1 or problem.job.seq_len // cp >= MIN_TOKENS_PER_RANK


def _power_of_two(_: Problem, degree: int) -> bool:
    return degree & (degree - 1) == 0


def _small_enough(_: Problem, micro_batch: int) -> bool:
    return micro_batch <= MAX_MICRO_BATCH


def _even_stages(problem: Problem, pp: int) -> bool:
    """Stages that share layers, or layers with embedding and head, out evenly, and powers of two."""
    if problem.cluster.gpus <= SMALL_CLUSTER_GPUS:
        return True
    layers = problem.model.layers
    even = any((layers + ends) % pp == 0 for ends in (0, 2))
    return pp <= MAX_STAGES and (even or _power_of_two(problem, pp))


def _straight(problem: Problem, schedule: str) -> bool:
    """Not folded into a V, where every micro-batch goes over each boundary twice."""
    return problem.cluster.gpus <= SMALL_CLUSTER_GPUS or schedule not in V_SHAPED


# Checked in this order; the first that keeps a value out is told.
POLICIES: tuple[Policy, ...] = (
    Policy("policy_tp_domain", "tp", _in_domain),
    Policy("policy_cp_tokens", "cp", _long_enough),
    Policy("policy_cp_power", "cp", _power_of_two),
    Policy("policy_micro_batch", "micro_batch", _small_enough),
    Policy("policy_stages", "pp", _even_stages),
    Policy("policy_folded_across", "schedule", _straight),
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
