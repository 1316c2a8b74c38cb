"""What one pipeline stage costs for one micro-batch: its layers, the embedding on the first, head and loss on the last.

Arrays have a last axis of stages; columns of length 1 there hold for all stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.columns import ModelColumns, Numbers, is_used
from crosszone.cost.layer import Layer, LayerCost, LayerTotals, Pass
from crosszone.cost.record import as_array, named, plain


@dataclass(frozen=True, kw_only=True)
class StageLayers:
    """Layers of each stage, and which stages hold the embedding and the head."""

    dense: Numbers
    moe: Numbers
    first: Numbers
    last: Numbers
    attention: Numbers = 0.0
    """Of hybrids: attention blocks, and Mamba-2 layers."""
    mamba: Numbers = 0.0
    present: Numbers = True
    """The stage exists; a stage that exists may hold no layer, only the embedding or the head."""

    @property
    def layers(self) -> Numbers:
        """All layers of each stage."""
        return self.dense + self.moe + self.attention + self.mamba if self.blocks else self.dense + self.moe

    @property
    def blocks(self) -> dict[str, Numbers]:
        """Of hybrids: the blocks of each kind; of other models none."""
        if isinstance(self.attention, float) and isinstance(self.mamba, float):
            return {}
        kinds = {"attention": self.attention, "mamba": self.mamba}
        return {kind: counts for kind, counts in kinds.items() if np.ndim(counts)}


def build_stage_layers(
    counts: Numbers,
    first_dense: Numbers,
    moe_every: Numbers,
    moe_layers: Numbers,
    repeats: Numbers = 1.0,
    folded: Numbers = 0.0,
    moe_counts: Numbers | None = None,
    stages: Numbers | None = None,
    block_counts: tuple[Numbers, Numbers] | None = None,
) -> StageLayers:
    """Dense and MoE layers of stages that hold `counts` layers each, in model order. [R4]

    Of the entries the first `stages` exist, the others pad shorter pipelines; None: all do. A stage that stands for
    `repeats` equal ones has their mean. In a V-shaped pipeline the first stage holds the head. `moe_counts`: MoE layers
    of each stage, where the layers of a stage do not follow each other. `block_counts`: attention blocks and Mamba-2
    layers of hybrids. [R5]
    """
    counts = np.asfortranarray(counts, dtype=float)  # stage after stage in memory: rows of strategies are the long axis
    rows = counts * repeats
    ends = np.cumsum(rows, axis=-1, out=np.empty_like(rows))

    moe: Numbers = 0.0
    if np.any(as_array(moe_layers) > 0):

        def count_moe_below(layer: Numbers) -> Numbers:
            after = np.maximum(0.0, layer - first_dense)
            return np.where(as_array(moe_layers) > 0, np.floor(after / moe_every), 0.0)

        moe = (count_moe_below(ends) - count_moe_below(ends - rows)) / repeats if moe_counts is None else moe_counts
    present = _find_present(counts, repeats, stages)
    first, last = np.zeros_like(counts), np.zeros_like(counts)  # in the order of `counts`
    first[..., 0] = 1.0
    # by place, not by layers: a stage at either end may hold the embedding or the head alone
    last[..., :-1] = present[..., :-1] & ~present[..., 1:]
    last[..., -1] = present[..., -1]
    dense: Numbers = counts - moe if np.ndim(moe) else counts
    blocks: dict[str, Numbers] = {}
    if block_counts is not None:
        blocks = {f"{kind}": named(f"{kind}_blocks", n) for kind, n in zip(BLOCKS, block_counts, strict=True)}
        dense = dense - sum(block_counts)
    return StageLayers(
        **blocks,
        dense=named("dense_layers", dense),
        moe=named("moe_layers", moe),
        first=named("holds_embedding", first),
        last=named("holds_head", np.where(as_array(folded) > 0, first, last) if np.any(folded) else last),
        present=present,
    )


def _find_present(counts: npt.NDArray[np.float64], repeats: Numbers, stages: Numbers | None) -> npt.NDArray[np.bool_]:
    """Which entries are stages: those that begin before the pipeline's last stage ends."""
    present = counts > 0
    if present.all():
        return present
    if stages is None:
        return np.ones_like(present)
    number = np.broadcast_to(plain(repeats) * 1.0, counts.shape)
    starts = np.cumsum(number, axis=-1) - number
    present |= starts < plain(stages)
    return present


BLOCKS = ("attention", "mamba")  # Kinds of blocks of hybrids beside the dense MLP and the experts


def add_mtp_layers(stages: StageLayers, model: ModelColumns) -> StageLayers:
    """The stages with the layers of multi-token prediction on the last one: each is like the model's last layer. [O21]

    A hybrid's is an attention block with experts, or with an MLP where it has none.
    """
    more = stages.last * model.mtp_layers
    has_experts = as_array(model.moe_layers) > 0
    changed: dict[str, Numbers] = {"dense": stages.dense + np.where(has_experts, 0.0, more)}
    if np.any(has_experts):
        changed["moe"] = stages.moe + np.where(has_experts, more, 0.0)
    if stages.blocks:
        changed["attention"] = stages.attention + np.where(as_array(model.hybrid) > 0, more, 0.0)
    return replace(stages, **changed)


class StageCost:
    """Seconds of one micro-batch on each stage, forward and backward; by part where asked."""

    def __init__(self, cost: LayerCost, stages: StageLayers):
        has_mtp = is_used(cost.model.mtp_layers)
        self.cost, self.stages = cost, add_mtp_layers(stages, cost.model) if has_mtp else stages
        head, loss = cost.head_s, cost.loss_s
        # of the loss's traffic a third is forward, of the head's matmuls as well [O9]
        self._head, self._head_back = head + loss / 3.0, 2.0 * head + loss * 2.0 / 3.0
        if has_mtp:  # each further layer has a head and a loss of its own, and a projection before it [O21]
            heads = 1.0 + cost.model.mtp_layers
            projections_s = cost.model.mtp_layers * cost.mtp_s
            self._head = heads * self._head + projections_s
            self._head_back = heads * self._head_back + 2.0 * projections_s
        # a split vocabulary: one tensor-parallel sum after the look-up, and one of the head's gradient [X1]
        first, last = cost.embedding_s + cost.tp_exposed_s, self._head_back + cost.tp_exposed_s
        ends = stages.first * first + stages.last * self._head
        self.forward_s = named("forward_s", self._sum_layers("forward_s") + ends)
        """The whole forward pass."""
        ends_back = stages.first * (2.0 * cost.embedding_s) + stages.last * last
        self.backward_s = named("backward_s", self._sum_layers("backward_s") + ends_back)
        """The whole backward pass, recomputation included."""

    @cached_property
    def weight_s(self) -> Numbers:
        """Of the backward pass: the matmuls for the weights' gradients, which some schedules run later."""
        return self._sum_layers("weight_s") + self.stages.last * self._head_back / 3.0

    def _sum_layers(self, total: str) -> Numbers:
        """One of the totals of a layer, over the layers of each stage."""

        def get(kind: str, layer: Layer | LayerTotals) -> Numbers:
            value = getattr(layer, total)
            return value if total == "weight_s" else named(f"{kind}.{total}", value)

        return self._sum_kinds({"dense": self.cost.dense, "moe": self.cost.moe, **self.cost.blocks}, get)

    def _sum_kinds(self, layers: dict[str, Any], get: Callable[[str, Any], Numbers]) -> Numbers:
        """What `get` gives of each kind of layer, times the layers of that kind on each stage."""
        total = self.stages.dense * get("dense", layers["dense"])
        if np.ndim(self.stages.moe):
            total = total + self.stages.moe * get("moe", layers["moe"])
        for kind, counts in self.stages.blocks.items():
            total = total + counts * get(kind, layers[kind])
        return total

    def _sum_parts(self, direction: str) -> dict[str, Numbers]:
        passes = {kind: getattr(layer, direction) for kind, layer in self.cost.complete_layers.items()}

        def sum_part(part: str) -> Numbers:
            return self._sum_kinds(passes, lambda _, seconds: getattr(seconds, part))

        return {f.name: sum_part(f.name) for f in fields(Pass)}

    @cached_property
    def forward(self) -> dict[str, Numbers]:
        """The forward pass by part."""
        parts = self._sum_parts("forward")
        parts["embedding"] = self.stages.first * self.cost.embedding_s
        parts["head"] = self.stages.last * self._head
        parts["tp"] = parts["tp"] + self.stages.first * self.cost.tp_exposed_s
        return parts

    @cached_property
    def backward(self) -> dict[str, Numbers]:
        """The backward pass by part, recomputation apart."""
        parts = self._sum_parts("backward")
        layers = self.cost.complete_layers
        parts["recompute"] = self._sum_kinds(layers, lambda _, layer: layer.recompute)
        for part in ("tp", "ep", "cp"):
            parts[part] = parts[part] + self._sum_recomputed_comm(part)
        parts["embedding"] = self.stages.first * 2.0 * self.cost.embedding_s
        parts["head"] = self.stages.last * self._head_back
        parts["tp"] = parts["tp"] + self.stages.last * self.cost.tp_exposed_s
        return parts

    def _sum_recomputed_comm(self, part: str) -> Numbers:
        return self._sum_kinds(self.cost.complete_layers, lambda _, layer: layer.recompute_comm_s[part])
