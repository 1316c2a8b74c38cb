"""Attention: multi-head, grouped and latent, causal or not, windowed, with rotary, ALiBi or no positions, with sinks.

Tensors between the projections are [batch, heads, sequence, width]. Heads are counted from the projections' own
width, so a projection that tensor parallelism has cut gives the heads of this rank. `attend` is replaceable on an
instance: context parallelism puts its own function there.
"""

import functools
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class RMSNorm(nn.Module):
    """Divide by the root mean square of the last axis, then scale each channel."""

    def __init__(self, width, eps=1e-5, device=None):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width, device=device))

    def forward(self, x):
        """Normalise `x`; the weight follows its dtype, for the fused kernel wants one dtype (it adds up in fp32)."""
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


def build_norm(model, device=None):
    """A norm over the residual width, of the model's kind."""
    if model["norm"] == "rmsnorm":
        return RMSNorm(model["hidden"], device=device)
    return nn.LayerNorm(model["hidden"], bias=model["norm"] == "layernorm", device=device)


class AttentionCore(nn.Module):
    """What every kind of attention shares: the mixing of values, given q, k and v [batch, heads, sequence, width].

    A rank with a part of the heads sets `first_head` for ALiBi's slopes.
    """

    def __init__(self, model, layer, width):
        super().__init__()
        self.scale = width**-0.5
        self.causal = model["kind"] == "decoder"
        self.window = get_window(model, layer)
        self.slopes = compute_alibi_slopes(model["heads"]) if model["positions"] == "alibi" else None
        self.first_head = 0

    def mix(self, q, k, v, recompute):
        """The mixed values with the heads side by side; `recompute`: done again in the backward pass."""
        if recompute:
            y = checkpoint(self.attend, q, k, v, use_reentrant=False, preserve_rng_state=False)
        else:
            y = self.attend(q, k, v)
        return y.transpose(1, 2).flatten(2)

    def attend(self, q, k, v):
        """Scaled dot-product attention of whole sequences, by the fastest exact way that the layer allows.

        Replaceable. Keys and values may have fewer heads than queries, and values another width.
        """
        length, window = q.shape[2], self.window
        if window is not None and length <= window:
            window = None
        sinks = get_local_part(self.sinks)
        if self.slopes is not None:
            slopes = tuple(self.slopes[self.first_head : self.first_head + q.shape[1]])
            mask = _build_whole_alibi_mask(length, slopes, self.causal, window, q.device, q.dtype)
            return compute_attention(q, k, v, self.scale, mask=mask, sinks=sinks)
        if window is None:
            return compute_attention(q, k, v, self.scale, causal=self.causal, sinks=sinks)
        if self.causal:
            return _compute_banded_attention(q, k, v, self.scale, window, sinks)
        positions = torch.arange(length, device=q.device)
        mask = build_attention_mask(positions, positions, False, window)
        return compute_attention(q, k, v, self.scale, mask=mask, sinks=sinks)


class Attention(AttentionCore):
    """Multi-head attention; fewer key/value heads than query heads make it grouped (GQA) or multi-query (MQA)."""

    def __init__(self, model, layer, device=None):
        hidden, heads, kv_heads, width = (model[key] for key in ("hidden", "heads", "kv_heads", "head_dim"))
        super().__init__(model, layer, width)
        bias = "qkv" in model["bias"]
        self.q = nn.Linear(hidden, heads * width, bias=bias, device=device)
        self.k = nn.Linear(hidden, kv_heads * width, bias=bias, device=device)
        self.v = nn.Linear(hidden, kv_heads * width, bias=bias, device=device)
        self.out = nn.Linear(heads * width, hidden, bias="out" in model["bias"], device=device)
        self.qk_norm = model["qk_norm"]
        if self.qk_norm != "none":
            is_full = self.qk_norm == "full"
            self.q_norm = RMSNorm(heads * width if is_full else width, device=device)
            self.k_norm = RMSNorm(kv_heads * width if is_full else width, device=device)
        self.sinks = nn.Parameter(torch.empty(heads, device=device)) if model["attention_sinks"] else None
        self.width = width

    def forward(self, x, rotary=None, recompute=False):
        """Attend from and to x [batch, sequence, hidden]; `recompute`: the core is done again in the backward pass."""
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.qk_norm == "full":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.unflatten(-1, (-1, self.width)).transpose(1, 2) for t in (q, k, v))
        if self.qk_norm == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        if rotary is not None:
            q, k = apply_rotary(q, rotary), apply_rotary(k, rotary)
        return self.out(self.mix(q, k, v, recompute))


class LatentAttention(AttentionCore):
    """Multi-head latent attention (DeepSeek-V2): queries, keys and values come out of low-rank projections."""

    def __init__(self, model, layer, device=None):
        hidden, heads, mla = model["hidden"], model["heads"], model["mla"]
        super().__init__(model, layer, mla["qk_nope_head_dim"] + mla["qk_rope_head_dim"])
        self.plain, self.rotary, self.value = mla["qk_nope_head_dim"], mla["qk_rope_head_dim"], mla["v_head_dim"]
        self.rank, q_rank = mla["kv_lora_rank"], mla["q_lora_rank"]
        self.width = self.plain + self.rotary
        if q_rank:
            self.q_down = nn.Linear(hidden, q_rank, bias=False, device=device)
            self.q_norm = RMSNorm(q_rank, device=device)
        else:
            self.q_down = self.q_norm = None
        self.q_up = nn.Linear(q_rank or hidden, heads * self.width, bias=False, device=device)
        self.kv_down = nn.Linear(hidden, self.rank + self.rotary, bias=False, device=device)
        self.kv_norm = RMSNorm(self.rank, device=device)
        self.kv_up = nn.Linear(self.rank, heads * (self.plain + self.value), bias=False, device=device)
        self.out = nn.Linear(heads * self.value, hidden, bias=False, device=device)
        self.sinks = None

    def forward(self, x, rotary=None, recompute=False):
        """Attend from and to x [batch, sequence, hidden]; the rotary part of the key is shared by all heads."""
        q = self.q_up(x if self.q_down is None else self.q_norm(self.q_down(x)))
        q = q.unflatten(-1, (-1, self.width)).transpose(1, 2)
        latent, shared = self.kv_down(x).split([self.rank, self.rotary], dim=-1)
        kv = self.kv_up(self.kv_norm(latent)).unflatten(-1, (-1, self.plain + self.value)).transpose(1, 2)
        k, v = kv.split([self.plain, self.value], dim=-1)
        shared = shared.unsqueeze(1)
        if rotary is not None:
            plain, turned = q.split([self.plain, self.rotary], dim=-1)
            q, shared = torch.cat([plain, apply_rotary(turned, rotary)], dim=-1), apply_rotary(shared, rotary)
        k = torch.cat([k, shared.expand(-1, k.shape[1], -1, -1)], dim=-1)
        return self.out(self.mix(q, k, v, recompute))


def get_window(model, layer):
    """Tokens that layer `layer` sees; None: all. The last of every `full_every` layers sees everything."""
    window = model["window"]
    if window is None or (window["full_every"] and (layer + 1) % window["full_every"] == 0):
        return None
    return window["tokens"]


# ------------------------------------------------------------------------------------------------ positions


def build_rotary_table(positions, width, theta=10_000.0, scaling=None):
    """Cosines and sines of rotary positions, each [..., sequence, width / 2] in fp32.

    `positions` is [sequence] or [batch, sequence]; `scaling` maps the frequencies (see weights.py).
    """
    steps = torch.arange(0, width // 2 * 2, 2, device=positions.device, dtype=torch.float32)
    frequencies = theta ** (-steps / width)
    if scaling is not None:
        frequencies = scaling(frequencies)
    angles = positions.float().unsqueeze(-1) * frequencies
    if angles.dim() == 3:
        angles = angles.unsqueeze(1)  # batch, then an axis for the heads
    return angles.cos(), angles.sin()


def apply_rotary(x, rotary):
    """Turn pairs (i, i + width / 2) of x by the angles of their position: the convention of Hugging Face's weights."""
    cos, sin = rotary
    half = cos.shape[-1]
    a, b, unrotated = x.float().split([half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, unrotated], dim=-1).to(x.dtype)


def compute_alibi_slopes(heads):
    """Slope of each head: a geometric series; heads beyond a power of two take every other term of the next one."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes + [2 ** (-4 * (i + 1) / power) for i in range(0, 2 * (heads - power), 2)]


# ------------------------------------------------------------------------------------------------- the core


def compute_attention(q, k, v, scale, *, causal=False, mask=None, sinks=None):
    """PyTorch's attention (flash kernels where there is no mask), with a sink per head where there is one."""
    if sinks is not None:
        return _compute_attention_with_sink(q, k, v, scale, causal, mask, sinks)
    grouped = k.shape[1] != q.shape[1]
    if grouped and mask is not None:  # the kernel that takes masks knows no groups
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
        grouped = False
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=grouped)


def build_attention_mask(q_positions, k_positions, causal, window):
    """Which keys a query may see, [queries, keys]: earlier ones if causal, near ones if windowed."""
    distance = q_positions.unsqueeze(1) - k_positions.unsqueeze(0)
    visible = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
    return visible if window is None else visible & (distance.abs() < window)


def build_alibi_mask(q_positions, k_positions, slopes, causal, window, dtype):
    """ALiBi's mask, [heads, queries, keys]: the further a key, the less it counts."""
    distance = (q_positions.unsqueeze(1) - k_positions.unsqueeze(0)).abs()
    bias = -torch.tensor(slopes, device=q_positions.device).view(-1, 1, 1) * distance
    return bias.masked_fill(~build_attention_mask(q_positions, k_positions, causal, window), float("-inf")).to(dtype)


@functools.lru_cache(maxsize=4)
def _build_whole_alibi_mask(length, slopes, causal, window, device, dtype):
    """ALiBi's mask of a whole sequence, which all layers share."""
    positions = torch.arange(length, device=device)
    return build_alibi_mask(positions, positions, slopes, causal, window, dtype)


def _compute_banded_attention(q, k, v, scale, window, sinks):
    """Causal attention to the last `window` tokens: blocks of that many queries look at their own and the last block.

    Work and memory grow with sequence x window, not with the sequence squared.
    """
    batch, length = q.shape[0], q.shape[2]
    blocks = -(-length // window)
    filled = [F.pad(t, (0, 0, 0, blocks * window - length)).unflatten(2, (blocks, window)) for t in (q, k, v)]
    q = filled[0].transpose(1, 2).flatten(0, 1)
    before = [F.pad(t, (0, 0, 0, 0, 1, 0))[:, :, :-1] for t in filled[1:]]
    pairs = zip(before, filled[1:], strict=True)
    k, v = (torch.cat(pair, dim=3).transpose(1, 2).flatten(0, 1) for pair in pairs)
    y = compute_attention(q, k, v, scale, mask=_build_band_mask(batch, blocks, window, q.device), sinks=sinks)
    return y.unflatten(0, (batch, blocks)).transpose(1, 2).flatten(2, 3)[:, :, :length]


@functools.lru_cache(maxsize=4)
def _build_band_mask(batch, blocks, window, device):
    """The mask of each block, [batch x blocks, 1, window, 2 x window]; nothing lies before the first block."""
    positions = torch.arange(2 * window, device=device)
    mask = build_attention_mask(positions[window:], positions, True, window).repeat(blocks, 1, 1)
    mask[0] &= positions >= window
    return mask.repeat(batch, 1, 1).unsqueeze(1)


def _compute_attention_with_sink(q, k, v, scale, causal, mask, sinks):
    """A key with score `sink` and value zero in front of all others takes its part of each softmax.

    An axis added to queries (the sink's score) and keys (1 for the sink, else 0) makes that score, so that the
    kernels need no mask for it. Eight are added, for kernels want widths that are multiples of 8.
    """
    width = v.shape[-1]
    score = (sinks / scale).to(q.dtype).view(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], 1)
    q = torch.cat([q, score, q.new_zeros(*q.shape[:3], 7)], dim=-1)
    k, v = F.pad(k, (0, 8, 1, 0)), F.pad(v, (0, k.shape[-1] + 8 - width, 1, 0))
    sink_axis = torch.zeros_like(k)
    sink_axis[:, :, 0, -8] = 1
    k = k + sink_axis
    if mask is not None:
        mask = F.pad(mask, (1, 0), value=mask.dtype == torch.bool)
    if causal:
        q = F.pad(q, (0, 0, 1, 0))  # a query for the sink's own row, so that the causal triangle fits
    y = compute_attention(q, k, v, scale, causal=causal, mask=mask)
    return y[:, :, 1:, :width] if causal else y[..., :width]


def get_local_part(parameter):
    """The part of a parameter (DTensor or not) that lies on this rank."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter
