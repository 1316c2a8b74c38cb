"""Model: a Transformer of any architecture that settings.json can describe, whole or one stage of a pipeline.

    transformer = build(settings["model"])                      # on device meta: shapes only
    transformer = build(model, layers=[4, 5, 6, 7], first=False, last=False)      # a middle stage
    init_weights(transformer, seed=1234, device="cuda")           # same values whatever is split or sharded
    load_huggingface(transformer, "Llama-3.1-8B/")              # or published weights
    set_recompute(transformer, "selective")                     # none, selective: attention's core, full: whole blocks
    loss = compute_loss(transformer(tokens), targets)

Parallelism finds: plain nn.Linear projections (q, k, v, out; gate, up, down), nn.Embedding tables, `Attention.attend`
and `MoE.run` to replace. With tied embeddings a whole model has one table, `embed.weight`, and a head without a weight,
so the two must be gathered together (FSDP: leave `embed` and `head` in the root group). Of a pipeline the last stage
has a copy of its own: `Transformer.tied` names it, and its gradient must be added to that of the first stage's.

The kind of function is the architecture's; what settings.json does not tell (partial rotary, scaled embeddings, soft
caps on logits) is left out: it changes neither time nor memory, but such published weights are not for this model.
"""

import functools

import torch
import torch.nn.functional as F
from attention import Attention, LatentAttention, build_norm, build_rotary_table, get_local_part
from torch import nn
from torch.utils.checkpoint import checkpoint
from weights import init_weights, load_huggingface, read_config

__all__ = [
    "Transformer",
    "TransformerBlock",
    "build",
    "compute_loss",
    "init_weights",
    "load_huggingface",
    "read_config",
    "set_recompute",
]


def build(model, *, layers=None, first=True, last=True, device="meta"):
    """A Transformer with some of the model's layers (all by default), the embedding if `first`, the head if `last`."""
    return Transformer(model, range(model["layers"]) if layers is None else layers, first, last, device)


def compute_loss(logits, targets):
    """Mean cross-entropy of the tokens that have a target (-100: none), in fp32."""
    total = F.cross_entropy(logits.float().flatten(0, -2), targets.flatten(), ignore_index=-100, reduction="sum")
    return total / (targets != -100).sum().clamp(min=1)


def set_recompute(transformer, kind):
    """Have every block's activations kept (none), all but attention's core (selective), or only its input (full)."""
    for block in transformer.layers.values():
        block.checkpointed = kind


class Transformer(nn.Module):
    """Embedding, blocks and head; the parts that a pipeline stage does not hold are None."""

    def __init__(self, model, layers, first, last, device):
        super().__init__()
        self.model = model
        self.theta, self.scaling = 10_000.0, None  # rotary base and mapping; published weights bring their own
        hidden, width, rows = model["hidden"], model["embedding_width"], model["vocab_padded_to"] or model["vocab"]
        learned, projected, tied = model["positions"] == "learned", width != hidden, model["tied_embeddings"]

        build_table = functools.partial(nn.Embedding, device=device)
        build_linear = functools.partial(nn.Linear, device=device)
        self.embed = build_table(rows, width) if first else None
        self.project_in = build_linear(width, hidden, bias=False) if first and projected else None
        self.position_table = build_table(model["max_seq_len"], hidden) if first and learned else None
        self.token_types = build_table(model["token_types"], hidden) if first and model["token_types"] else None
        self.embed_norm = build_norm(model, device) if first and model["embedding_norm"] else None
        self.layers = nn.ModuleDict({str(layer): TransformerBlock(model, layer, device) for layer in layers})
        self.norm = build_norm(model, device) if last and model["final_norm"] else None
        self.pooler = build_linear(hidden, hidden) if last and model["pooler"] else None
        self.mlm = build_linear(hidden, hidden) if last and model["mlm_head"] else None
        self.mlm_norm = build_norm(model, device) if last and model["mlm_head"] else None
        self.project_out = build_linear(hidden, width, bias=False) if last and projected else None
        self.head = Head(model, own_weight=not (tied and first), device=device) if last else None
        self.tied = {"head.weight": "embed.weight"} if tied and last and not first else {}

    def forward(self, x, positions=None):
        """Logits [batch, sequence, vocabulary] of tokens [batch, sequence]; a stage takes and gives hidden states.

        `positions` [sequence] or [batch, sequence]: those of the tokens at hand, for context parallelism.
        """
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)
        if self.embed is not None:
            x = self._embed_tokens(x, positions)
        rotary = self.compute_rotary(positions)
        for block in self.layers.values():
            x = block(x, rotary)
        return x if self.head is None else self._compute_logits(x)

    def compute_rotary(self, positions):
        """Cosines and sines of the positions, or None where the model has no rotary ones."""
        if self.model["positions"] != "rotary":
            return None
        mla = self.model["mla"]
        width = mla["qk_rope_head_dim"] if mla else self.model["head_dim"]
        return build_rotary_table(positions, width, self.theta, self.scaling)

    def _embed_tokens(self, tokens, positions):
        longest, length = self.model["max_seq_len"], tokens.shape[1]
        if self.position_table is not None and length > longest:
            raise ValueError(f"sequences have {length} tokens, the table of positions has model.max_seq_len={longest}")
        x = self.embed(tokens)
        if self.project_in is not None:
            x = self.project_in(x)
        if self.position_table is not None:
            x = x + self.position_table(positions)
        if self.token_types is not None:  # one sentence: every token is of type 0
            x = x + self.token_types(torch.zeros_like(tokens))
        return x if self.embed_norm is None else self.embed_norm(x)

    def _compute_logits(self, x):
        if self.norm is not None:
            x = self.norm(x)
        pooled = None if self.pooler is None else self.pooler(x[:, :1]).tanh()
        if self.mlm is not None:
            x = self.mlm_norm(F.gelu(self.mlm(x)))
        if self.project_out is not None:
            x = self.project_out(x)
        if pooled is not None:  # for tasks on sentences; here it counts nothing, but every parameter gets a gradient
            x = x + 0 * pooled.sum()
        return self.head(x) if self.head.weight is not None else self.head(x, weight=self.embed.weight)


class Head(nn.Linear):
    """From hidden states to logits; its weight is its own, or the embedding table, handed over at each call."""

    def __init__(self, model, own_weight, device):
        rows = model["vocab_padded_to"] or model["vocab"]
        super().__init__(model["embedding_width"], rows, bias=False, device=device)
        if not own_weight:
            self.register_parameter("weight", None)
        for name, is_wanted in (("bias", "head" in model["bias"]), ("mlm_bias", model["mlm_head"])):
            parameter = nn.Parameter(torch.empty(model["vocab"], device=device)) if is_wanted else None
            self.register_parameter(name, parameter)

    def forward(self, x, weight=None):
        """Logits of every row of the table, those that pad the vocabulary included."""
        y = F.linear(x, self.weight if weight is None else weight)
        for bias in (self.bias, self.mlm_bias):
            if bias is not None:
                missing = self.out_features - bias.shape[0]
                y = y + (F.pad(bias, (0, missing)) if missing else bias).to(y.dtype)
        return y


class TransformerBlock(nn.Module):
    """One layer: attention and MLP (or experts) added to the residual stream, with the model's number of norms.

    Without a final norm the model is of the post-norm kind (BERT, OPT-350M): norm(x + f(x)). Otherwise, pre-norm:
        1 norm    before attention, and for the MLP too if they run in parallel (GPT-J, Falcon-7B)
        2 norms   before attention, before the MLP
        3, 4      also after attention, after the MLP, before they are added (Gemma 2, Grok-1)
        5 to 8    the MLP's output is normalised once more by each
    """

    def __init__(self, model, layer, device=None):
        super().__init__()
        self.checkpointed = "none"
        self.parallel, self.post = model["parallel_residual"], not model["final_norm"]
        self.attention = (LatentAttention if model["mla"] else Attention)(model, layer, device)
        self.mlp = MoE(model, device) if is_moe(model, layer) else MLP(model, model["ffn_hidden"], device)
        norms = [build_norm(model, device) for _ in range(model["norms_per_layer"])]
        norms += [None] * (4 - len(norms))
        self.attention_norm, self.mlp_norm, self.attention_out_norm, self.mlp_out_norm = norms[:4]
        self.more_norms = nn.ModuleList(norms[4:])

    def forward(self, x, rotary=None):
        """The layer, its activations kept as `checkpointed` says."""
        if self.checkpointed == "full" and torch.is_grad_enabled():
            return checkpoint(self._forward, x, rotary, use_reentrant=False, preserve_rng_state=False)
        return self._forward(x, rotary)

    def _forward(self, x, rotary):
        before = (None, None) if self.post else (self.attention_norm, self.mlp_norm)
        after = (self.attention_norm, self.mlp_norm) if self.post else (None, None)
        selective = self.checkpointed == "selective" and torch.is_grad_enabled()
        normed = _apply_norm(x, before[0])
        mixed = _apply_norm(self.attention(normed, rotary, selective), self.attention_out_norm)
        if self.parallel:
            shared = before[1] is None  # one norm for both
            x = x + mixed + self._run_mlp(normed if shared else before[1](x))
            return _apply_norm(_apply_norm(x, after[0]), after[1])
        x = _apply_norm(x + mixed, after[0])
        return _apply_norm(x + self._run_mlp(_apply_norm(x, before[1])), after[1])

    def _run_mlp(self, x):
        y = _apply_norm(self.mlp(x), self.mlp_out_norm)
        for norm in self.more_norms:
            y = norm(y)
        return y


def is_moe(model, layer):
    """The layer has experts: after the first dense ones, the last of every `every` layers."""
    moe = model["moe"]
    return bool(moe) and layer >= moe["first_dense"] and (layer - moe["first_dense"] + 1) % moe["every"] == 0


def _apply_norm(x, norm):
    return x if norm is None else norm(x)


# ---- the MLP, and experts ----

# A mixture is dropless: tokens are sorted by expert, each expert takes however many it got. Weights of all routed
# experts are stacked, [experts, in, out], so that one grouped GEMM does them all and tensor parallelism can cut
# the inner width.


ACTIVATIONS = {
    "gelu": F.gelu,
    "relu": F.relu,
    "squared-relu": lambda x: F.relu(x).square(),
    "silu": F.silu,
    "swiglu": F.silu,
    "geglu": lambda x: F.gelu(x, approximate="tanh"),
    "reglu": F.relu,
}
GATED = ("swiglu", "geglu", "reglu")


class MLP(nn.Module):
    """down(activation(up(x))), or down(activation(gate(x)) * up(x)) where the activation is gated."""

    def __init__(self, model, ffn_hidden, device=None):
        super().__init__()
        hidden, bias = model["hidden"], "mlp" in model["bias"]
        gated = model["activation"] in GATED
        self.gate = nn.Linear(hidden, ffn_hidden, bias=bias, device=device) if gated else None
        self.up = nn.Linear(hidden, ffn_hidden, bias=bias, device=device)
        self.down = nn.Linear(ffn_hidden, hidden, bias=bias, device=device)
        self.activation = ACTIVATIONS[model["activation"]]

    def forward(self, x):
        """The MLP of each token."""
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """The routed experts' weights, stacked; on a rank that holds a part of the inner width its output is a part sum."""

    def __init__(self, model, device=None):
        super().__init__()
        moe, hidden, bias = model["moe"], model["hidden"], "mlp" in model["bias"]
        count, inner = moe["experts"], moe["ffn_hidden"]

        def create_weight(*shape):
            return nn.Parameter(torch.empty(*shape, device=device))

        gated = model["activation"] in GATED
        self.gate = create_weight(count, hidden, inner) if gated else None
        self.up = create_weight(count, hidden, inner)
        self.down = create_weight(count, inner, hidden)
        self.gate_bias = create_weight(count, inner) if gated and bias else None
        self.up_bias = create_weight(count, inner) if bias else None
        self.activation = ACTIVATIONS[model["activation"]]

    def forward(self, x, counts):
        """Outputs of tokens x [tokens, hidden] sorted by expert; the first counts[0] go to expert 0, and so on."""
        inner = multiply_grouped(x, self.up, self.up_bias, counts)
        if self.gate is not None:
            inner = self.activation(multiply_grouped(x, self.gate, self.gate_bias, counts)) * inner
        else:
            inner = self.activation(inner)
        return multiply_grouped(inner, self.down, None, counts)


def multiply_grouped(x, weight, bias, counts):
    """Each expert's tokens by its own weight: one grouped GEMM where the GPU has it, else one after the other."""
    weight = get_local_part(weight)
    if _has_grouped(x):
        y = F.grouped_mm(x.bfloat16(), weight.bfloat16(), offs=counts.cumsum(0, dtype=torch.int32))
    else:
        y = torch.cat([part @ weight[i] for i, part in enumerate(x.split(counts.tolist()))])
    if bias is None:
        return y
    return y + get_local_part(bias).repeat_interleave(counts, dim=0, output_size=len(x)).to(y.dtype)


def _has_grouped(x):
    """PyTorch's grouped GEMM wants bf16 (or autocast to it) on an NVIDIA GPU of compute capability 8 or more."""
    if not x.is_cuda or torch.version.hip or not hasattr(F, "grouped_mm"):
        return False
    if torch.cuda.get_device_capability(x.device)[0] < 8:
        return False
    return (torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype) == torch.bfloat16


class MoE(nn.Module):
    """A mixture of experts: a router sends each token to its `top_k` experts; shared experts see every token.

    `run` is replaceable on an instance: expert parallelism puts its exchange there. `balance` above 0 adds the
    gradient of a balancing loss (see `_Balance`); set it to the coefficient times what the loss is multiplied with.
    """

    def __init__(self, model, device=None):
        super().__init__()
        moe, hidden = model["moe"], model["hidden"]
        self.top_k, self.count = moe["top_k"], moe["experts"]
        self.balance = 0.0
        self.router = nn.Linear(hidden, self.count, bias="router" in model["bias"], device=device)
        self.experts = Experts(model, device)
        bias = "mlp" in model["bias"]
        self.down_bias = nn.Parameter(torch.empty(self.count, hidden, device=device)) if bias else None
        width = moe["shared_ffn_hidden"]
        self.shared = nn.ModuleList(MLP(model, width, device) for _ in range(moe["shared_experts"]))
        self.shared_gate = nn.Linear(hidden, 1, bias=False, device=device) if moe["shared_gate"] else None

    def forward(self, x):
        """The weighted sum of each token's experts, and the shared ones."""
        tokens = x.flatten(0, -2)
        weights, chosen = self.route(tokens)
        order = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.count)
        outputs = self.run(tokens[order // self.top_k], counts)
        scaled = outputs * weights.flatten()[order].unsqueeze(-1).to(outputs.dtype)
        y = torch.zeros_like(tokens, dtype=scaled.dtype).index_add(0, order // self.top_k, scaled)
        if self.down_bias is not None:  # apart from the experts, whose output may be a part sum
            spread = torch.zeros(len(tokens), self.count, device=x.device, dtype=weights.dtype)
            y = y + spread.scatter(1, chosen, weights).to(y.dtype) @ get_local_part(self.down_bias).to(y.dtype)
        shared = sum(expert(tokens) for expert in self.shared)
        if self.shared_gate is not None:
            shared = shared * self.shared_gate(tokens).sigmoid()
        return (y + shared).to(x.dtype).view_as(x)

    def run(self, x, counts):
        """Outputs of sorted tokens; replaceable."""
        return self.experts(x, counts)

    def route(self, tokens):
        """Weights and numbers of each token's experts, [tokens, top_k].

        The weights of the chosen ones add up to 1; a single one keeps its share of all, or the router would not learn.
        """
        shares = self.router(tokens).float().softmax(dim=-1)
        weights, chosen = shares.topk(self.top_k, dim=-1)
        if self.top_k > 1:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        if self.balance and torch.is_grad_enabled():
            load = torch.bincount(chosen.flatten(), minlength=self.count) / chosen.numel()
            weights = _Balance.apply(weights, self.count * (load * shares.mean(dim=0)).sum(), self.balance)
        return weights, chosen


class _Balance(torch.autograd.Function):
    """Passes its first argument on and adds the second, a loss, to what is minimised (Switch Transformer's).

    So the loss needs no way out of the model, which may be one stage of a pipeline.
    """

    @staticmethod
    def forward(ctx, passed, loss, scale):
        ctx.save_for_backward(loss)
        ctx.scale = scale
        return passed.view_as(passed)

    @staticmethod
    def backward(ctx, gradient):
        (loss,) = ctx.saved_tensors
        return gradient, torch.full_like(loss, ctx.scale), None
