"""Context parallelism: each rank of a cp group holds two pieces of every sequence and attends to all keys and values.

A causal sequence is cut into 2c pieces and rank r holds the r-th from the front and the r-th from the end, so that
all ranks have the same work. Keys and values are gathered over the group before each attention, their gradients
scattered back; queries never move. Works with NCCL and Gloo alike.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from attention import build_attention_mask, compute_attention, get_local_part
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right


class ContextShard:
    """The part of every sequence that this rank holds."""

    def __init__(self, length: int, ranks: int, rank: int, group: dist.ProcessGroup | None, causal: bool) -> None:
        """`length`: tokens of the whole sequence; where every token sees every token one piece a rank is as good."""
        self.length, self.ranks, self.rank, self.group = length, ranks, rank, group
        halves = 2 if causal and ranks > 1 else 1
        pieces = torch.arange(length).chunk(halves * ranks)
        piece_numbers = [[r, 2 * ranks - 1 - r] if halves == 2 else [r] for r in range(ranks)]
        self.pieces = [(int(pieces[p][0]), int(pieces[p][-1]) + 1) for p in piece_numbers[rank]]
        """First and last (exclusive) position of each piece here."""
        self.positions = torch.cat([pieces[p] for p in piece_numbers[rank]])
        """Positions of the tokens here."""
        everyone = torch.cat([pieces[p] for numbers in piece_numbers for p in numbers])
        self.in_order = everyone.argsort()
        """Where each position lies in what is gathered."""

    def take_part(self, batch: Tensor) -> Tensor:
        """Tokens of a batch [samples, sequence] that this rank holds."""
        return batch if self.ranks == 1 else batch[:, self.positions.to(batch.device)].contiguous()

    def apply(self, model: nn.Module) -> None:
        """Let every attention of a model see all of the sequence."""
        if self.ranks > 1:
            for module in model.modules():
                if hasattr(module, "attend"):
                    module.attend = lambda q, k, v, module=module: self.attend(module, q, k, v)

    def attend(self, attention: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the tokens here to all that each may see."""
        order = self.in_order.to(q.device)
        k, v = (Gather.apply(t, self.group)[:, :, order] for t in (k, v))
        lengths = [end - first for first, end in self.pieces]
        parts = zip(q.split(lengths, dim=2), self.pieces, strict=True)
        return torch.cat([_attend_piece(attention, part, k, v, *ends) for part, ends in parts], dim=2)


def _attend_piece(attention: nn.Module, q: Tensor, k: Tensor, v: Tensor, first: int, end: int) -> Tensor:
    """Attention of the queries first..end-1 to the keys they may see."""
    causal, window = attention.causal, attention.window
    low = max(0, first - window + 1) if window is not None else 0
    high = end if causal else k.shape[2] if window is None else min(k.shape[2], end + window - 1)
    k, v = k[:, :, low:high], v[:, :, low:high]
    sinks = get_local_part(attention.sinks)
    plain = window is None and attention.slopes is None
    if plain and not causal:
        return compute_attention(q, k, v, attention.scale, sinks=sinks)
    if plain and sinks is None and q.is_cuda:  # flash kernels know the triangle that ends at the last key
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        triangle = causal_lower_right(q.shape[2], k.shape[2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=triangle, scale=attention.scale)
    queries = torch.arange(first, end, device=q.device)
    keys = torch.arange(low, high, device=q.device)
    mask = build_attention_mask(queries, keys, causal, window)
    if attention.slopes is not None:
        slopes = attention.slopes[attention.first_head : attention.first_head + q.shape[1]]
        distance = (queries.unsqueeze(1) - keys.unsqueeze(0)).abs()
        bias = -torch.tensor(slopes, device=q.device).view(-1, 1, 1) * distance
        mask = bias.masked_fill(~mask, float("-inf")).to(q.dtype)
    return compute_attention(q, k, v, attention.scale, mask=mask, sinks=sinks)


class Gather(torch.autograd.Function):
    """Keys or values [batch, heads, tokens, width] of all ranks, one rank's tokens after the other's."""

    @staticmethod
    def forward(ctx, local: Tensor, group: dist.ProcessGroup) -> Tensor:
        """All tokens."""
        ctx.group = group
        tokens_first = local.movedim(2, 0).contiguous()
        ranks = dist.get_world_size(group)
        everyone = tokens_first.new_empty((ranks * tokens_first.shape[0], *tokens_first.shape[1:]))
        dist.all_gather_into_tensor(everyone, tokens_first, group=group)
        return everyone.movedim(0, 2)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        """The sum over ranks of the gradients of the tokens here."""
        tokens_first = gradient.movedim(2, 0).contiguous()
        ranks = dist.get_world_size(ctx.group)
        local = tokens_first.new_empty((tokens_first.shape[0] // ranks, *tokens_first.shape[1:]))
        dist.reduce_scatter_tensor(local, tokens_first, group=ctx.group)
        return local.movedim(0, 2), None
