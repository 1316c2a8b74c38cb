"""Experts: the MLP, and mixtures of many of them.

A mixture is dropless: tokens are sorted by expert, each expert takes however many it got. Weights of all routed
experts are stacked, [experts, in, out], so that one grouped product does them all and tensor parallelism can cut
the inner width.
"""

import torch
import torch.nn.functional as F
from attention import get_local_part
from torch import nn

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

        def weight(*shape):
            return nn.Parameter(torch.empty(*shape, device=device))

        gated = model["activation"] in GATED
        self.gate = weight(count, hidden, inner) if gated else None
        self.up = weight(count, hidden, inner)
        self.down = weight(count, inner, hidden)
        self.gate_bias = weight(count, inner) if gated and bias else None
        self.up_bias = weight(count, inner) if bias else None
        self.activation = ACTIVATIONS[model["activation"]]

    def forward(self, x, counts):
        """Outputs of tokens x [tokens, hidden] sorted by expert; the first counts[0] go to expert 0, and so on."""
        inner = self._product(x, self.up, self.up_bias, counts)
        if self.gate is not None:
            inner = self.activation(self._product(x, self.gate, self.gate_bias, counts)) * inner
        else:
            inner = self.activation(inner)
        return self._product(inner, self.down, None, counts)

    def _product(self, x, weight, bias, counts):
        weight = get_local_part(weight)
        y = _grouped(x, weight, counts) if _has_grouped(x) else _one_by_one(x, weight, counts)
        return (
            y
            if bias is None
            else y + get_local_part(bias).repeat_interleave(counts, dim=0, output_size=len(x)).to(y.dtype)
        )


def _has_grouped(x):
    """The grouped product wants bf16 (or autocast to it) on an NVIDIA GPU of compute capability 8 or more."""
    if not x.is_cuda or torch.version.hip or not hasattr(F, "grouped_mm"):
        return False
    if torch.cuda.get_device_capability(x.device)[0] < 8:
        return False
    return (torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype) == torch.bfloat16


def _grouped(x, weight, counts):
    return F.grouped_mm(x.bfloat16(), weight.bfloat16(), offs=counts.cumsum(0, dtype=torch.int32))


def _one_by_one(x, weight, counts):
    return torch.cat([part @ weight[i] for i, part in enumerate(x.split(counts.tolist()))])


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
