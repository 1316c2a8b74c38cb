"""How a measured run was split: stated columns, else the stack's defaults, each told as an assumption."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from crosszone.calibrate.runs_rules import RowError, Told
from crosszone.inputs.strategy import Communication, Strategy

AXES = ("tp", "pp", "dp", "cp")
_REMEMBERED = 16384
_SPLIT = re.compile(r"layers incl\. embedding/head per stage ([\d/]+)")


@dataclass(frozen=True, kw_only=True)
class Stated:
    """The columns of a row that make its strategy; None: not stated."""

    ep: int | None
    micro_batch: int | None
    interleave: int | None
    sequence_parallel: int | None
    recompute: str
    notes: str


@dataclass
class Assumptions:
    """What was assumed, and whether any of it decides the time."""

    told: list[str] = field(default_factory=list)
    decisive: bool = False

    def add(self, what: str, value: object, why: str = "stack default", *, decisive: bool = False) -> None:
        """Note one more."""
        self.told.append(f"{what}: {value} ({why})")
        self.decisive |= decisive


def degrees(stated: Mapping[str, int | None], gpus: int, assumed: Assumptions) -> dict[str, int]:
    """All of tp, pp, dp and cp, from those stated and t p c d = G. [R1]"""
    known = {axis: value for axis, value in stated.items() if value is not None}
    if "cp" not in known:
        known["cp"] = 1
        assumed.add("cp", 1, "not stated")
    missing = [axis for axis in ("tp", "pp", "dp") if axis not in known]
    product = 1
    for value in known.values():
        product *= value
    left, rest = divmod(gpus, product)
    if rest or (not missing and left != 1):
        named = " x ".join(f"{axis} {known[axis]}" for axis in AXES if axis in known)
        raise RowError("degrees_clash", f"The degrees do not multiply to the {gpus} GPUs: {named}.")
    if len(missing) > 1 and left != 1:
        raise RowError("no_degrees", f"The parallel degrees are not stated: {', '.join(missing)} missing.")
    for axis in missing:
        known[axis] = left
        assumed.add(axis, left, "from the number of GPUs", decisive=gpus > 1)
    return known


def strategy_of(
    row: Stated, told: Told, axes: Mapping[str, int], batch: int, layers: int, per_node: int, assumed: Assumptions
) -> Strategy:
    """The strategy of a row; `per_node` GPUs make a node."""
    defaults, tp, pp, dp = told.defaults, axes["tp"], axes["pp"], axes["dp"]
    interleave = row.interleave or _interleave(row, told, pp, layers, assumed)
    micro_batch = row.micro_batch
    if micro_batch is None:
        local = max(1, batch // dp)
        micro_batch = max(1, local // pp) if defaults.micro_batches == "stages" else min(defaults.micro_batch, local)
        assumed.add("micro_batch", micro_batch, decisive=True)
    if micro_batch * dp > batch:
        raise RowError("batch_clash", f"The batch of {batch} is less than micro-batch {micro_batch} x dp {dp}.")
    recompute = row.recompute.lower()
    if recompute not in ("none", "selective", "full"):
        recompute = defaults.recompute
        assumed.add("recompute", recompute, decisive=True)
    zero = told.zero
    if zero is None:
        zero = defaults.zero
        assumed.add("zero", zero)
    split_sequence = bool(row.sequence_parallel) and tp > 1
    if row.sequence_parallel is None and tp > 1:
        split_sequence = defaults.sequence_parallel
        assumed.add("sequence_parallel", "on" if split_sequence else "off")
    group = told.facts.get("shard_group")
    shared = group if isinstance(group, int) and group < dp else None
    in_node = shared is not None and shared * tp == per_node
    cut_experts = told.facts.get("expert_tp")
    gradients, weights, tensor = defaults.overlap
    fp32 = told.facts.get("fp32_gradients") or told.facts.get("fp32_reductions")
    return _built(
        (tp, pp, dp, axes["cp"], row.ep or 1),
        micro_batch,
        interleave,
        split_sequence,
        recompute,
        zero,
        stage_layers(layers, pp, interleave, row.notes, told),
        "node" if in_node else "all",
        None if in_node else shared,
        cut_experts if isinstance(cut_experts, int) else None,
        # what a stack overlaps by default, as far as the run has it: frameworks refuse the switch without it
        (gradients, weights and zero > 0, (tensor or bool(told.facts.get("async_tp"))) and split_sequence),
        "fp32" if fp32 else defaults.gradient_dtype,
    )


def stage_layers(layers: int, stages: int, interleave: int, notes: str, told: Told) -> tuple[int, ...] | None:
    """Layers of each stage and chunk in pipeline order, where the split is known to be other than even.

    A split "incl. embedding/head" counts the embedding as a layer of the first stage and the head as one of the last.
    Where the two take slots of their own, L + 2 slots are dealt out evenly.
    """
    chunks = stages * interleave
    if chunks == 1 or chunks > layers + 2:
        return None
    match = _SPLIT.search(notes)
    if match:
        slots = [int(part[:9]) for part in match[1].split("/") if part]
        if len(slots) != chunks or sum(slots) != layers + 2:
            return None
    elif told.facts.get("embedding_slots") or _uneven(layers, chunks, told):
        least, more = divmod(layers + 2, chunks)
        slots = [least + (index < more) for index in range(chunks)]
    else:
        return None
    if not (slots[0] and slots[-1]):
        return None
    slots[0] -= 1
    slots[-1] -= 1
    return tuple(slots)


def _uneven(layers: int, chunks: int, told: Told) -> bool:
    return told.defaults.slots_when_uneven and layers % chunks != 0 and (layers + 2) % chunks == 0


def _interleave(row: Stated, told: Told, pp: int, layers: int, assumed: Assumptions) -> int:
    if pp == 1:
        return 1
    defaults = told.defaults
    value = next((chunks for chunks in defaults.interleave if layers % (pp * chunks) == 0), 1)
    if defaults.interleaved and "interleaved" in row.notes.lower():
        value = defaults.interleaved
    assumed.add("interleave", value, decisive=True)
    return value


@lru_cache(maxsize=_REMEMBERED)
def _built(
    degrees: tuple[int, int, int, int, int],
    micro_batch: int,
    interleave: int,
    sequence_parallel: bool,
    recompute: str,
    zero: int,
    layers_per_stage: tuple[int, ...] | None,
    shard_within: str,
    shard_ranks: int | None,
    expert_tp: int | None,
    overlap: tuple[bool, bool, bool],
    gradient_dtype: str | None,
) -> Strategy:
    tp, pp, dp, cp, ep = degrees
    gradients, weights, tensor = overlap
    options: dict[str, Any] = {"recompute": recompute, "zero": zero, "layers_per_stage": layers_per_stage}
    options |= {"shard_within": shard_within, "shard_ranks": shard_ranks, "expert_tp": expert_tp}
    communication: dict[str, Any] = {"gradient_dtype": gradient_dtype}
    return Strategy(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=cp,
        ep=ep,
        micro_batch=micro_batch,
        interleave=interleave,
        sequence_parallel=sequence_parallel,
        communication=Communication(
            overlap_gradients=gradients, overlap_parameters=weights, overlap_tensor=tensor, **communication
        ),
        **options,
    )
