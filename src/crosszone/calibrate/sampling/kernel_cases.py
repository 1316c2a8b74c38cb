"""How the kernel sampler runs each point: pooled operands, products in autograd's layouts, Hugging Face's eager code.

case = Bench("cuda").case(point)
case.run(0)
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from crosszone.calibrate.sampling.kernel_points import ELEMENT, L2_BYTES, Point, counts


@dataclass
class Case:
    """Something to time: `run(i)` on the i-th of some rotating operands, after `before(i)`, which is not timed."""

    run: Callable[[int], Any]
    before: Callable[[int], Any] | None = None
    whole: bool = False
    ring: int = 1


class Bench:
    """The device, pools of random operands to cut views from, and the last whole model built."""

    def __init__(self, device: str) -> None:
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        torch = self.torch = import_module("torch")
        self.functional = torch.nn.functional
        wanted = ("cuda" if torch.cuda.is_available() else "") if device == "auto" else device
        if not wanted or (wanted.startswith("cuda") and not torch.cuda.is_available()):
            raise SystemExit(f"kernels: torch {torch.__version__} sees no GPU here; --device cpu only tries the code")
        self.device, self.cuda = torch.device(wanted), wanted.startswith("cuda")
        self.name = "cpu"
        self.pools: dict[str, tuple[Any, int]] = {}
        self.kept: tuple[Any, Any] = (None, None)
        self.dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
        if self.cuda:
            torch.cuda.set_device(self.device.index or 0)
            self.name = torch.cuda.get_device_name(self.device)
            if torch.cuda.get_device_capability(self.device) >= (8, 9) and hasattr(torch, "_scaled_mm"):
                self.dtypes["fp8"] = torch.float8_e4m3fn
            torch.backends.cuda.enable_math_sdp(False)  # torch chooses among its fused kernels, as it does in training
        self.grouped = self.cuda and hasattr(torch, "_grouped_mm") and torch.cuda.get_device_capability() >= (9, 0)
        self.flash = self.cuda and torch.cuda.get_device_capability(self.device) >= (8, 0)

    def take(self, dtype: str, *shape: int, grad: bool = False) -> Any:
        """A view of random numbers, further along in the pool at each call, so that it is not in the cache."""
        pool, at = self.pools.get(dtype) or (self._pool(dtype), 0)
        size = math.prod(shape)
        if size > pool.numel():
            raise MemoryError("operand larger than the pool")
        at = 0 if at + size > pool.numel() else at
        self.pools[dtype] = (pool, at + -(-size // 256) * 256)
        return pool[at : at + size].view(shape).detach().requires_grad_(grad)

    def _pool(self, dtype: str) -> Any:
        share = {"bf16": 0.15, "fp32": 0.1}.get(dtype, 0.05)
        free = self.torch.cuda.mem_get_info(self.device)[0] if self.cuda else 1 << 30
        size = int(min(free * share, 14e9)) // ELEMENT[dtype]
        chunk = self.torch.randn(min(size, 1 << 24), device=self.device).to(self.dtypes[dtype])
        pool = self.torch.empty(size, device=self.device, dtype=self.dtypes[dtype])
        for at in range(0, size, chunk.numel()):
            pool[at : at + chunk.numel()].copy_(chunk[: min(chunk.numel(), size - at)])
        return pool

    def sets(self, point: Point) -> int:
        """How many sets of operands outgrow the L2 cache."""
        return min(24, 1 + int(3 * L2_BYTES / (counts(point)[1] + 1))) if self.cuda else 2

    def clean(self, everything: bool = False) -> None:
        """Give memory back: pools and models too where `everything`."""
        if everything:
            self.pools, self.kept = {}, (None, None)
        gc.collect()
        if self.cuda:
            self.torch.cuda.empty_cache()

    def case(self, point: Point) -> Case:
        """What to run for a point."""
        d = dict(point.dims)
        if point.op in ("layer", "train_step"):
            return block_case(self, point, d)
        if point.op == "adamw":
            return adamw_case(self, point, d["params"])
        many = range(self.sets(point))
        ring = min(6, len(many))
        if point.op == "copy":
            sources = [self.take("bf16", d["bytes"] // 4) for _ in many]
            pairs = [(one, self.torch.empty_like(one)) for one in sources]
            return Case(lambda i: pairs[i % len(pairs)][1].copy_(pairs[i % len(pairs)][0]))
        if "matmul" in point.op:
            calls = [product(self, point, d) for _ in many]
            return Case(lambda i: calls[i % len(calls)](), ring=ring)
        shapes, function = layer_function(self, point, d)
        inputs = [[self.take(point.dtype, *shape, grad=True) for shape in shapes] for _ in many]
        if point.what == "fwd":
            return Case(lambda i: function(*inputs[i % len(inputs)]), ring=ring)
        outputs = [function(*one) for one in inputs]
        grads = [self.take(point.dtype, *one.shape) if one.dim() else self.torch.ones_like(one) for one in outputs]
        grad = self.torch.autograd.grad

        def backward(i: int) -> Any:
            at = i % len(many)
            return grad(outputs[at], inputs[at], grads[at], retain_graph=True)

        return Case(backward, ring=ring)


def product(b: Bench, point: Point, d: dict[str, Any]) -> Callable[[], Any]:
    """One matmul or grouped matmul in the layouts that autograd uses; fp8 always reads rows of both operands."""
    torch, (m, n, k), what = b.torch, (d["m"], d["n"], d["k"]), point.what
    if point.dtype == "fp8":
        rows, columns, inner = {"fwd": (m, n, k), "dgrad": (m, k, n), "wgrad": (n, k, m)}[what]
        one, left = torch.ones((), device=b.device), b.take("fp8", rows, inner)
        right = b.take("fp8", columns, inner).t()
        more = {"scale_a": one, "scale_b": one, "out_dtype": torch.bfloat16, "use_fast_accum": what == "fwd"}
        return lambda: torch._scaled_mm(left, right, **more)
    groups = d.get("groups", 1)
    left = b.take(point.dtype, m, k if what == "fwd" else n)
    right = b.take(point.dtype, m, k) if what == "wgrad" else b.take(point.dtype, groups, n, k)
    right = right.transpose(1, 2) if what == "fwd" else right
    left = left.t() if what == "wgrad" else left
    if point.op == "matmul":
        right = right if what == "wgrad" else right[0]
        return lambda: torch.mm(left, right)
    if point.mode == "eager":
        ends = torch.arange(1, groups + 1, device=b.device, dtype=torch.int32) * (m // groups)
        return lambda: torch._grouped_mm(left, right, offs=ends)
    lefts = left.chunk(groups, dim=1 if what == "wgrad" else 0)
    rights = right.chunk(groups) if what == "wgrad" else right.unbind()
    return lambda: [torch.mm(lefts[at], rights[at]) for at in range(groups)]


def layer_function(b: Bench, point: Point, d: dict[str, Any]) -> tuple[list[tuple[int, ...]], Callable[..., Any]]:
    """Shapes of the differentiable operands and the function of them, as Hugging Face's eager code calls it."""
    f, op, rows = b.functional, point.op, d.get("tokens", 0)
    if op == "attention":
        q = (d["batch"], d["seq"], d["heads"], d["head_dim"])
        kv = (*q[:2], d["kv_heads"], d["head_dim"])
        return [q, kv, kv], flash_attention(b) if point.mode == "flash" else lambda q, k, v: attention(b, q, k, v)
    if op == "rotary":
        cos, sin = b.take(point.dtype, 1, 1, rows, d["head_dim"]), b.take(point.dtype, 1, 1, rows, d["head_dim"])
        shape = (1, rows, d["heads"], d["head_dim"])
        return [shape], lambda x: rotary(b, x.transpose(1, 2), cos, sin).transpose(1, 2)
    if op == "cross_entropy":
        labels = b.torch.randint(d["vocab"], (rows,), device=b.device)
        return [(rows, d["vocab"])], lambda x: f.cross_entropy(x.float(), labels)
    if op == "embedding":
        ids = b.torch.randint(d["vocab"], (rows,), device=b.device)
        return [(d["vocab"], d["width"])], lambda w: f.embedding(ids, w)
    flat, width = (rows, d["width"]), (d["width"],)
    known: dict[str, tuple[list[tuple[int, ...]], Callable[..., Any]]] = {
        "rmsnorm": (
            [flat, width],
            rms_norm(b) if point.mode == "eager" else lambda x, w: f.rms_norm(x, width, w, 1e-5),
        ),
        "layernorm": ([flat, width, width], lambda x, w, bias: f.layer_norm(x, width, w, bias)),
        "residual_add": ([flat, flat], lambda x, y: x + y),
        "silu_mul": ([flat, flat], lambda x, y: f.silu(x) * y),
        "gelu": ([flat], f.gelu),
        "softmax": ([flat], lambda x: f.softmax(x, dim=-1)),
    }
    return known[op]


def attention(b: Bench, q: Any, k: Any, v: Any) -> Any:
    """Causal attention on (batch, seq, heads, head_dim); keys and values are repeated where torch cannot share them."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    more = {} if q.shape[1] == k.shape[1] else {"enable_gqa": True}
    if more and tuple(int(one) for one in b.torch.__version__.split(".")[:2]) < (2, 5):
        k, v, more = *(one.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for one in (k, v)), {}
    return b.functional.scaled_dot_product_attention(q, k, v, is_causal=True, **more).transpose(1, 2)


def flash_attention(b: Bench) -> Callable[[Any, Any, Any], Any]:
    """The same by torch's FlashAttention-2 alone, which cuDNN's kernel would be chosen over on recent GPUs."""
    choice = import_module("torch.nn.attention")

    def only(q: Any, k: Any, v: Any) -> Any:
        with choice.sdpa_kernel(choice.SDPBackend.FLASH_ATTENTION):
            return attention(b, q, k, v)

    return only


def rotary(b: Bench, x: Any, cos: Any, sin: Any) -> Any:
    """Rotate (batch, heads, seq, head_dim)."""
    half = x.shape[-1] // 2
    return x * cos + b.torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def rms_norm(b: Bench) -> Callable[[Any, Any], Any]:
    """The norm in the many small kernels of eager code."""

    def norm(x: Any, weight: Any) -> Any:
        wide = x.float()
        wide = wide * b.torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return weight * wide.to(x.dtype)

    return norm


def adamw_case(b: Bench, point: Point, params: int, most: int = 1 << 24) -> Case:
    """A fused AdamW step over tensors of the size of weight matrices."""
    sizes = [most] * (params // most) + ([params % most] if params % most else [])
    tensors = [b.take(point.dtype, size, grad=True) for size in sizes]
    for one in tensors:
        one.grad = b.take(point.dtype, one.numel())
    optimizer = b.torch.optim.AdamW(tensors, lr=1e-8, fused=True)
    return Case(lambda _: optimizer.step())


def model_class(b: Bench, d: dict[str, Any]) -> Any:
    """Build a decoder as Hugging Face writes one: RMSNorm, rotary, grouped queries, gated MLP."""
    nn, f, made = b.torch.nn, b.functional, {"device": b.device, "dtype": b.dtypes["bf16"], "bias": False}
    hidden, ffn, dim, kv = d["hidden"], d["ffn"], d["head_dim"], d["kv_heads"]
    inner, layers = d["heads"] * dim, d.get("layers", 0)

    class Norm(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(b.torch.ones(hidden, device=b.device, dtype=b.dtypes["bf16"]))
            self.function = rms_norm(b)

        def forward(self, x: Any) -> Any:
            return self.function(x, self.weight)

    class Layer(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = Norm(), Norm()
            self.q, self.o = nn.Linear(hidden, inner, **made), nn.Linear(inner, hidden, **made)
            self.k, self.v = nn.Linear(hidden, kv * dim, **made), nn.Linear(hidden, kv * dim, **made)
            self.gate, self.up = nn.Linear(hidden, ffn, **made), nn.Linear(hidden, ffn, **made)
            self.down = nn.Linear(ffn, hidden, **made)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            y, shape = self.norm1(x), (*x.shape[:2], -1, dim)
            q, k = self.q(y).view(shape).transpose(1, 2), self.k(y).view(shape).transpose(1, 2)
            q, k = rotary(b, q, cos, sin).transpose(1, 2), rotary(b, k, cos, sin).transpose(1, 2)
            x = x + self.o(attention(b, q, k, self.v(y).view(shape)).reshape(*x.shape[:2], inner))
            y = self.norm2(x)
            return x + self.down(f.silu(self.gate(y)) * self.up(y))

    class Model(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(d["vocab"], hidden, device=b.device, dtype=b.dtypes["bf16"])
            self.layers, self.norm = nn.ModuleList(Layer() for _ in range(layers)), Norm()
            self.head = nn.Linear(hidden, d["vocab"], **made)

        def forward(self, ids: Any, labels: Any, cos: Any, sin: Any) -> Any:
            x = self.embed(ids)
            for layer in self.layers:
                if d["recompute"] == "full":
                    x = b.torch.utils.checkpoint.checkpoint(layer, x, cos, sin, use_reentrant=False)
                else:
                    x = layer(x, cos, sin)
            logits = self.head(self.norm(x)).float()
            return f.cross_entropy(logits.view(-1, d["vocab"]), labels.view(-1))

    return Model if layers else Layer


def block_case(b: Bench, point: Point, d: dict[str, Any]) -> Case:
    """One transformer layer forward or backward, or a whole step: forward, loss, backward, AdamW."""
    torch, key = b.torch, (point.mode, point.dims)
    if b.kept[0] != key:
        b.clean(everything=True)
        import_module("torch.utils.checkpoint")
        if point.mode == "compiled":
            import_module("torch._dynamo").reset()
        made = model_class(b, d)()
        b.kept = (key, (made, torch.compile(made, dynamic=False) if point.mode == "compiled" else made))
    module, call = b.kept[1]
    bf16 = {"device": b.device, "dtype": b.dtypes["bf16"]}
    angles = torch.rand(1, 1, d["seq"], d["head_dim"], device=b.device)
    cos, sin = angles.cos().to(bf16["dtype"]), angles.sin().to(bf16["dtype"])
    if point.op == "layer":
        x = torch.randn(d["batch"], d["seq"], d["hidden"], **bf16).requires_grad_()
        if point.what == "fwd":
            return Case(lambda _: call(x, cos, sin))
        held: list[Any] = []
        grad, wanted = torch.randn_like(x), [x, *module.parameters()]
        return Case(
            run=lambda _: torch.autograd.grad(held.pop(), wanted, grad),
            before=lambda _: held.append(call(x, cos, sin)),
        )
    ids = torch.randint(d["vocab"], (d["batch"], d["seq"]), device=b.device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5, fused=True)

    def step(_: int) -> None:
        call(ids, ids, cos, sin).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Case(step, whole=True)
