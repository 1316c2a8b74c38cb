"""What one pipeline stage costs for one micro-batch: its layers, the embedding on the first, head and loss on the last.

Arrays have a last axis of stages; columns of length 1 there hold for all stages.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from crosszone.cost.columns import Numbers
from crosszone.cost.layer import LayerCost, Pass
from crosszone.cost.record import as_array, named, plain


@dataclass(frozen=True, kw_only=True)
class StageLayers:
    """Layers of each stage, and which stages hold the embedding and the head."""

    dense: Numbers
    moe: Numbers
    first: Numbers
    last: Numbers
    present: Numbers = True
    """The stage exists; a stage that exists may hold no layer, only the embedding or the head."""

    @property
    def layers(self) -> Numbers:
        """All layers of each stage."""
        return self.dense + self.moe


def build_stage_layers(
    counts: Numbers,
    first_dense: Numbers,
    moe_every: Numbers,
    moe_layers: Numbers,
    repeats: Numbers = 1.0,
    folded: Numbers = 0.0,
    moe_counts: Numbers | None = None,
    stages: Numbers | None = None,
) -> StageLayers:
    """Dense and MoE layers of stages that hold `counts` layers each, in model order. [R4]

    Of the entries the first `stages` exist, the others pad shorter pipelines; None: all do. A stage that stands for
    `repeats` equal ones has their mean. In a V-shaped pipeline the first stage holds the head. `moe_counts`: MoE layers
    of each stage, where the layers of a stage do not follow each other.
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
    first, last = np.zeros(counts.shape), np.zeros(counts.shape)
    first[..., 0] = 1.0
    # by place, not by layers: a stage at either end may hold the embedding or the head alone
    last[..., :-1] = present[..., :-1] & ~present[..., 1:]
    last[..., -1] = present[..., -1]
    return StageLayers(
        dense=named("dense_layers", counts - moe if np.ndim(moe) else counts),
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


class StageCost:
    """Seconds of one micro-batch on each stage, forward and backward; by part where asked."""

    def __init__(self, cost: LayerCost, stages: StageLayers):
        self.cost, self.stages = cost, stages
        head, loss = cost.head_s, cost.loss_s
        # of the loss's traffic a third is forward, of the head's matmuls as well [O9]
        self._head, self._head_back = head + loss / 3.0, 2.0 * head + loss * 2.0 / 3.0
        dense, moe = cost.dense, cost.moe
        forward = named("dense.forward_s", dense.forward_s), named("moe.forward_s", moe.forward_s)
        backward = named("dense.backward_s", dense.backward_s), named("moe.backward_s", moe.backward_s)
        # a split vocabulary: one tensor-parallel sum after the look-up, and one of the head's gradient [X1]
        first, last = cost.embedding_s + cost.tp_exposed_s, self._head_back + cost.tp_exposed_s
        ends = stages.first * first + stages.last * self._head
        self.forward_s = named("forward_s", self._sum_layers(*forward) + ends)
        """The whole forward pass."""
        ends_back = stages.first * (2.0 * cost.embedding_s) + stages.last * last
        self.backward_s = named("backward_s", self._sum_layers(*backward) + ends_back)
        """The whole backward pass, recomputation included."""

    @cached_property
    def weight_s(self) -> Numbers:
        """Of the backward pass: the matmuls for the weights' gradients, which some schedules run later."""
        return (
            self._sum_layers(self.cost.dense.weight_s, self.cost.moe.weight_s)
            + self.stages.last * self._head_back / 3.0
        )

    def _sum_layers(self, dense: Numbers, moe: Numbers) -> Numbers:
        total = self.stages.dense * dense
        return total + self.stages.moe * moe if np.ndim(self.stages.moe) else total

    def _sum_parts(self, direction: str) -> dict[str, Numbers]:
        dense, moe = (getattr(layer, direction) for layer in self.cost.complete_layers)
        return {f.name: self._sum_layers(getattr(dense, f.name), getattr(moe, f.name)) for f in fields(Pass)}

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
        parts["recompute"] = self._sum_layers(*(layer.recompute for layer in self.cost.complete_layers))
        for part in ("tp", "ep", "cp"):
            parts[part] = parts[part] + self._sum_layers(
                *(layer.recompute_comm_s[part] for layer in self.cost.complete_layers)
            )
        parts["embedding"] = self.stages.first * 2.0 * self.cost.embedding_s
        parts["head"] = self.stages.last * self._head_back
        parts["tp"] = parts["tp"] + self.stages.last * self.cost.tp_exposed_s
        return parts
