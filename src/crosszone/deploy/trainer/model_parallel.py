"""How ranks share a layer: tensor parallelism cuts its weights, context parallelism the sequence (see below).

Every layer is cut over the tp ranks, heads and inner widths; the vocabulary too.

A cut parameter is a DTensor, so that FSDP shards it further, checkpoints know its full shape and first values do not
depend on the cut. A cut module runs on this rank's own part of it: what comes in is whole on every rank, what goes
out is a part sum that is added up over the ranks. With sequence parallelism the residual stream between those modules
lies cut along the sequence, and is gathered before and scattered after each of them.

The logits stay cut along the vocabulary; the loss is computed from the slices (`compute_vocabulary_loss`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from attention import build_alibi_mask, build_attention_mask, compute_attention, get_local_part
from run import Refusal
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.nn.attention.bias import causal_lower_right

# The axis along which a parameter of attention or MLP is cut; any other is whole on every rank.
SPLIT_AXES = {
    "q.weight": 0,
    "q.bias": 0,
    "k.weight": 0,
    "k.bias": 0,
    "v.weight": 0,
    "v.bias": 0,
    "sinks": 0,
    "q_up.weight": 0,
    "kv_up.weight": 0,
    "out.weight": 1,
    "gate.weight": 0,
    "gate.bias": 0,
    "up.weight": 0,
    "up.bias": 0,
    "down.weight": 1,
    "experts.gate": 2,
    "experts.up": 2,
    "experts.gate_bias": 1,
    "experts.up_bias": 1,
    "experts.down": 1,
}
PARTIAL_SUM_BIASES = ("out.bias", "down.bias", "down_bias")  # Biases of part sums: each rank adds its share
IGNORED = -100


def split_model(model: nn.Module, mesh: DeviceMesh, *, sequence: bool) -> None:
    """Cut a Transformer (on device meta, before FSDP) over the ranks of a mesh of one dimension."""
    architecture, ranks, rank = model.model, mesh.size(), mesh.get_local_rank()
    _check_heads(architecture, ranks)
    stream: Placement = Shard(1) if sequence else Replicate()
    for block in model.layers.values():
        attention = block.attention
        attention.first_head = rank * architecture["heads"] // ranks
        copied = architecture["mla"] is None and architecture["kv_heads"] < ranks
        _split_module(attention, mesh, stream, _get_head_rows(architecture, ranks, rank) if copied else None)
        if hasattr(block.mlp, "balance"):
            block.mlp.balance /= ranks  # every rank adds the whole gradient of that loss
        _split_module(block.mlp, mesh, stream)
        if sequence:
            for name, norm in block.named_children():
                if name not in ("attention", "mlp"):
                    _run_on_slice(norm, mesh)
    if model.embed is not None:
        _split_embedding(model.embed, mesh)
        if sequence:
            embed = model._embed_tokens
            model._embed_tokens = lambda *args: _move_activation(embed(*args), mesh, Replicate(), stream)
    if model.head is not None:
        _split_head(model.head, mesh)
        if sequence:
            compute_logits = model._compute_logits
            model._compute_logits = lambda x: compute_logits(_move_activation(x, mesh, stream, Replicate()))


def _check_heads(architecture: dict, ranks: int) -> None:
    if architecture["qk_norm"] == "full":
        raise Refusal("strategy.tp > 1: queries and keys are normalised over all heads (qk_norm full); use tp 1")
    heads, kv_heads = architecture["heads"], architecture["kv_heads"]
    if heads % ranks or (architecture["mla"] is None and kv_heads % ranks and ranks % kv_heads):
        raise Refusal(f"strategy.tp={ranks} divides neither {heads} heads nor goes with {kv_heads} key/value heads")


def _split_module(module: nn.Module, mesh: DeviceMesh, stream: Placement, copied: slice | None = None) -> None:
    """Cut the parameters of an attention or MLP; `copied`: the rows of k and v that this rank uses, of whole ones."""
    rows = {}
    for name, parameter in list(module.named_parameters()):
        axis = next((axis for end, axis in SPLIT_AXES.items() if name == end or name.endswith(f".{end}")), None)
        if copied is not None and name.split(".")[0] in ("k", "v"):
            axis, rows[name] = None, copied
        _cut_parameter(module, name, parameter, mesh, axis)
    added = [name for name, _ in module.named_parameters() if name.endswith(PARTIAL_SUM_BIASES)]
    forward, ranks = module.forward, mesh.size()

    def get_part(name: str, parameter: DTensor) -> Tensor:
        part = _localize(parameter)
        if name in rows:
            return part[rows[name]]
        return part / ranks if name in added else part

    def run(x: Tensor, *args, **kwargs) -> Tensor:
        x = _move_activation(x, mesh, stream, Replicate(), Partial())
        with _LocalParameters(module, get_part):
            y = forward(x, *args, **kwargs)
        return _move_activation(y, mesh, Partial(), stream)

    module.forward = run


def _get_head_rows(architecture: dict, ranks: int, rank: int) -> slice:
    """Rows of the key/value head that this rank's queries belong to: several ranks use the same."""
    head, width = rank * architecture["kv_heads"] // ranks, architecture["head_dim"]
    return slice(head * width, (head + 1) * width)


def _run_on_slice(module: nn.Module, mesh: DeviceMesh) -> None:
    """Let a norm run on this rank's tokens: its weights are whole, their gradients part sums."""
    for name, parameter in list(module.named_parameters()):
        _cut_parameter(module, name, parameter, mesh, None)
    forwards = [(part, part.forward) for part in module.modules() if part._parameters]
    for part, forward in forwards:

        def run(x: Tensor, part: nn.Module = part, forward: Callable = forward) -> Tensor:
            with _LocalParameters(part, lambda _, parameter: _localize(parameter)):
                return forward(x)

        part.forward = run


def _split_embedding(table: nn.Embedding, mesh: DeviceMesh) -> None:
    """Each rank looks up the tokens of its rows; the sum over the ranks has every token's."""
    _cut_parameter(table, "weight", table.weight, mesh, 0)
    first, _ = get_rank_rows(table.num_embeddings, mesh)

    def run(tokens: Tensor) -> Tensor:
        weight = _localize(table.weight)
        is_local = (tokens >= first) & (tokens < first + weight.shape[0])
        rows_here = F.embedding(torch.where(is_local, tokens - first, 0), weight)
        # FSDP hangs its hooks on what comes out and wants no view.
        return _move_activation(rows_here * is_local.unsqueeze(-1), mesh, Partial(), Replicate()).clone()

    table.forward = run


def _split_head(head: nn.Linear, mesh: DeviceMesh) -> None:
    """Each rank has the logits of its rows; biases, which no padding has, are whole and each rank takes its part."""
    rows = head.out_features
    first, end = get_rank_rows(rows, mesh)
    for name, parameter in list(head.named_parameters()):
        _cut_parameter(head, name, parameter, mesh, 0 if name == "weight" else None)
    head.out_features = end - first
    forward = head.forward

    def get_part(name: str, parameter: DTensor) -> Tensor:
        part = _localize(parameter)
        return part if name == "weight" else F.pad(part, (0, rows - part.shape[0]))[first:end]

    def run(x: Tensor, weight: DTensor | None = None) -> Tensor:
        x = _move_activation(x, mesh, Replicate(), Replicate(), Partial())
        with _LocalParameters(head, get_part):
            return forward(x, weight=None if weight is None else _localize(weight))

    head.forward = run


def get_rank_rows(rows: int, mesh: DeviceMesh) -> tuple[int, int]:
    """First and last (exclusive) row of this rank where a table is cut: as DTensor cuts, the last rank has fewer."""
    rows_per_rank = -(-rows // mesh.size())
    first = min(rows, mesh.get_local_rank() * rows_per_rank)
    return first, min(rows, first + rows_per_rank)


# ---- local parts of parameters and activations ----


def _cut_parameter(module: nn.Module, name: str, parameter: nn.Parameter, mesh: DeviceMesh, axis: int | None) -> None:
    holder, _, leaf = name.rpartition(".")
    if axis is not None and parameter.shape[axis] < mesh.size():
        raise Refusal(f"strategy.tp={mesh.size()} is more than the {parameter.shape[axis]} rows of {name}")
    placement = Replicate() if axis is None else Shard(axis)
    distributed = nn.Parameter(distribute_tensor(parameter, mesh, [placement], src_data_rank=None))
    module.get_submodule(holder).register_parameter(leaf, distributed)


def _localize(parameter: DTensor) -> Tensor:
    """The part here; the gradient of a whole parameter is a part sum, for each rank uses it for its own part."""
    (placement,) = parameter.placements
    return parameter.to_local(grad_placements=[Partial() if placement.is_replicate() else placement])


def _move_activation(
    x: Tensor, mesh: DeviceMesh, now: Placement, target: Placement, gradient: Placement | None = None
) -> Tensor:
    """An activation that lies as `now`, moved to lie as `target`; `gradient`: how its gradient will lie."""
    moved = DTensor.from_local(x, mesh, [now], run_check=False).redistribute(placements=[target])
    return moved.to_local(grad_placements=[gradient or target])


class _LocalParameters:
    """Within it a module's parameters are plain tensors: this rank's parts."""

    def __init__(self, module: nn.Module, get_part: Callable[[str, DTensor], Tensor]) -> None:
        self.module, self.get_part = module, get_part

    def __enter__(self) -> None:
        self.replaced = []
        for prefix, part in self.module.named_modules():
            for leaf, parameter in part._parameters.items():
                if parameter is not None:
                    self.replaced.append((part, leaf, parameter))
                    part._parameters[leaf] = self.get_part(f"{prefix}.{leaf}" if prefix else leaf, parameter)

    def __exit__(self, *_: object) -> None:
        for part, leaf, parameter in self.replaced:
            part._parameters[leaf] = parameter


# ---- the loss ----


def compute_vocabulary_loss(logits: Tensor, targets: Tensor, mesh: DeviceMesh, rows: int) -> Tensor:
    """Sum of the cross-entropy of the tokens that have a target, from this rank's slice of the logits."""
    return _VocabularyLoss.apply(logits, targets, get_rank_rows(rows, mesh)[0], mesh.get_group())


class _VocabularyLoss(torch.autograd.Function):
    """The largest logit, the sum of all chances and the right one's logit are found over all ranks."""

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, first: int, group: dist.ProcessGroup) -> Tensor:
        ctx.kind, logits = logits.dtype, logits.float()
        peak = logits.amax(-1)
        dist.all_reduce(peak, dist.ReduceOp.MAX, group=group)
        chances = (logits - peak.unsqueeze(-1)).exp()
        is_local = (targets >= first) & (targets < first + logits.shape[-1])
        column = torch.where(is_local, targets - first, 0).unsqueeze(-1)
        chosen = torch.where(is_local, logits.gather(-1, column).squeeze(-1) - peak, 0.0)
        sums = torch.stack([chances.sum(-1), chosen])
        dist.all_reduce(sums, group=group)
        counted = targets != IGNORED
        ctx.save_for_backward(chances.div_(sums[0].unsqueeze(-1)), column, is_local, counted)
        return torch.where(counted, sums[0].log() - sums[1], 0.0).sum()

    @staticmethod
    def backward(ctx, gradient: Tensor):
        """The chance of each entry, less one for the right one."""
        chances, column, is_local, counted = ctx.saved_tensors
        wrong = chances.scatter_add(-1, column, -is_local.unsqueeze(-1).to(chances.dtype))
        return (wrong * (counted.unsqueeze(-1) * gradient)).to(ctx.kind), None, None, None


# ---- context parallelism ----

# A causal sequence is cut into 2c pieces and rank r holds the r-th from the front and the r-th from the end, so that
# all ranks have the same work. Keys and values are gathered over the group before each attention, their gradients
# scattered back; queries never move. Works with NCCL and Gloo alike.


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
    first_key = max(0, first - window + 1) if window is not None else 0
    end_key = end if causal else k.shape[2] if window is None else min(k.shape[2], end + window - 1)
    k, v = k[:, :, first_key:end_key], v[:, :, first_key:end_key]
    sinks = get_local_part(attention.sinks)
    plain = window is None and attention.slopes is None
    if plain and not causal:
        return compute_attention(q, k, v, attention.scale, sinks=sinks)
    if plain and sinks is None and q.is_cuda:  # flash kernels know the triangle that ends at the last key
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
        triangle = causal_lower_right(q.shape[2], k.shape[2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=triangle, scale=attention.scale)
    queries = torch.arange(first, end, device=q.device)
    keys = torch.arange(first_key, end_key, device=q.device)
    if attention.slopes is None:
        mask = build_attention_mask(queries, keys, causal, window)
    else:
        slopes = attention.slopes[attention.first_head : attention.first_head + q.shape[1]]
        mask = build_alibi_mask(queries, keys, slopes, causal, window, q.dtype)
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
