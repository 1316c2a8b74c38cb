"""How the kernel sampler runs each point: pooled operands, products in autograd's layouts, Hugging Face's eager code.

case = Bench("cuda").build_case(point)
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

from crosszone.calibrate.sampling.kernel_points import DTYPE_BYTES, L2_BYTES, KernelPoint, count_work


@dataclass
class KernelCase:
    """Something to time: `run(i)` on the i-th of some rotating operands, after `before(i)`, which is not timed."""

    run: Callable[[int], Any]
    before: Callable[[int], Any] | None = None
    is_block: bool = False
    ring: int = 1


class Bench:
    """The device, pools of random operands to cut views from, and the last whole model built."""

    def __init__(self, device: str) -> None:
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        torch = self.torch = import_module("torch")
        self.functional = torch.nn.functional
        device_name = ("cuda" if torch.cuda.is_available() else "") if device == "auto" else device
        if not device_name or (device_name.startswith("cuda") and not torch.cuda.is_available()):
            raise SystemExit(f"kernels: torch {torch.__version__} sees no GPU here; --device cpu only tries the code")
        self.device, self.cuda = torch.device(device_name), device_name.startswith("cuda")
        self.name = "cpu"
        self.pools: dict[str, tuple[Any, int]] = {}
        self.last_model: tuple[Any, Any] = (None, None)
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
        pool, at = self.pools.get(dtype) or (self._build_pool(dtype), 0)
        size = math.prod(shape)
        if size > pool.numel():
            raise MemoryError("operand larger than the pool")
        at = 0 if at + size > pool.numel() else at
        self.pools[dtype] = (pool, at + -(-size // 256) * 256)
        return pool[at : at + size].view(shape).detach().requires_grad_(grad)

    def _build_pool(self, dtype: str) -> Any:
        share = {"bf16": 0.15, "fp32": 0.1}.get(dtype, 0.05)
        free = self.torch.cuda.mem_get_info(self.device)[0] if self.cuda else 1 << 30
        size = int(min(free * share, 14e9)) // DTYPE_BYTES[dtype]
        chunk = self.torch.randn(min(size, 1 << 24), device=self.device).to(self.dtypes[dtype])
        pool = self.torch.empty(size, device=self.device, dtype=self.dtypes[dtype])
        for start in range(0, size, chunk.numel()):
            pool[start : start + chunk.numel()].copy_(chunk[: min(chunk.numel(), size - start)])
        return pool

    def count_operand_sets(self, point: KernelPoint) -> int:
        """How many sets of operands outgrow the L2 cache."""
        return min(24, 1 + int(3 * L2_BYTES / (count_work(point)[1] + 1))) if self.cuda else 2

    def free_memory(self, everything: bool = False) -> None:
        """Give memory back: pools and models too where `everything`."""
        if everything:
            self.pools, self.last_model = {}, (None, None)
        gc.collect()
        if self.cuda:
            self.torch.cuda.empty_cache()

    def build_case(self, point: KernelPoint) -> KernelCase:
        """What to run for a point."""
        dims = dict(point.dims)
        if point.op in ("layer", "train_step"):
            return build_block_case(self, point, dims)
        if point.op == "adamw":
            return build_adamw_case(self, point, dims["params"])
        operand_sets = range(self.count_operand_sets(point))
        ring = min(6, len(operand_sets))
        if point.op == "copy":
            sources = [self.take("bf16", dims["bytes"] // 4) for _ in operand_sets]
            pairs = [(source, self.torch.empty_like(source)) for source in sources]
            return KernelCase(lambda i: pairs[i % len(pairs)][1].copy_(pairs[i % len(pairs)][0]))
        if "matmul" in point.op:
            calls = [build_matmul_call(self, point, dims) for _ in operand_sets]
            return KernelCase(lambda i: calls[i % len(calls)](), ring=ring)
        shapes, function = select_layer_function(self, point, dims)
        inputs = [[self.take(point.dtype, *shape, grad=True) for shape in shapes] for _ in operand_sets]
        if point.what == "fwd":
            return KernelCase(lambda i: function(*inputs[i % len(inputs)]), ring=ring)
        outputs = [function(*operands) for operands in inputs]
        grads = [
            self.take(point.dtype, *output.shape) if output.dim() else self.torch.ones_like(output)
            for output in outputs
        ]
        grad = self.torch.autograd.grad

        def backward(i: int) -> Any:
            at = i % len(operand_sets)
            return grad(outputs[at], inputs[at], grads[at], retain_graph=True)

        return KernelCase(backward, ring=ring)


def build_matmul_call(bench: Bench, point: KernelPoint, dims: dict[str, Any]) -> Callable[[], Any]:
    """One matmul or grouped matmul in the layouts that autograd uses; fp8 always reads rows of both operands."""
    torch, (m, n, k), what = bench.torch, (dims["m"], dims["n"], dims["k"]), point.what
    if point.dtype == "fp8":
        rows, columns, inner = {"fwd": (m, n, k), "dgrad": (m, k, n), "wgrad": (n, k, m)}[what]
        unit_scale, left_operand = torch.ones((), device=bench.device), bench.take("fp8", rows, inner)
        right_operand = bench.take("fp8", columns, inner).t()
        options = {
            "scale_a": unit_scale,
            "scale_b": unit_scale,
            "out_dtype": torch.bfloat16,
            "use_fast_accum": what == "fwd",
        }
        return lambda: torch._scaled_mm(left_operand, right_operand, **options)
    groups = dims.get("groups", 1)
    left_operand = bench.take(point.dtype, m, k if what == "fwd" else n)
    right_operand = bench.take(point.dtype, m, k) if what == "wgrad" else bench.take(point.dtype, groups, n, k)
    right_operand = right_operand.transpose(1, 2) if what == "fwd" else right_operand
    left_operand = left_operand.t() if what == "wgrad" else left_operand
    if point.op == "matmul":
        right_operand = right_operand if what == "wgrad" else right_operand[0]
        return lambda: torch.mm(left_operand, right_operand)
    if point.mode == "eager":
        ends = torch.arange(1, groups + 1, device=bench.device, dtype=torch.int32) * (m // groups)
        return lambda: torch._grouped_mm(left_operand, right_operand, offs=ends)
    lefts = left_operand.chunk(groups, dim=1 if what == "wgrad" else 0)
    rights = right_operand.chunk(groups) if what == "wgrad" else right_operand.unbind()
    return lambda: [torch.mm(lefts[at], rights[at]) for at in range(groups)]


def select_layer_function(
    bench: Bench, point: KernelPoint, dims: dict[str, Any]
) -> tuple[list[tuple[int, ...]], Callable[..., Any]]:
    """Shapes of the differentiable operands and the function of them, as Hugging Face's eager code calls it."""
    f, op, rows = bench.functional, point.op, dims.get("tokens", 0)
    if op == "attention":
        q = (dims["batch"], dims["seq"], dims["heads"], dims["head_dim"])
        kv = (*q[:2], dims["kv_heads"], dims["head_dim"])
        return [q, kv, kv], build_flash_attention(
            bench
        ) if point.mode == "flash" else lambda q, k, v: compute_attention(bench, q, k, v)
    if op == "rotary":
        cos, sin = (
            bench.take(point.dtype, 1, 1, rows, dims["head_dim"]),
            bench.take(point.dtype, 1, 1, rows, dims["head_dim"]),
        )
        shape = (1, rows, dims["heads"], dims["head_dim"])
        return [shape], lambda x: apply_rotary(bench, x.transpose(1, 2), cos, sin).transpose(1, 2)
    if op == "cross_entropy":
        labels = bench.torch.randint(dims["vocab"], (rows,), device=bench.device)
        return [(rows, dims["vocab"])], lambda x: f.cross_entropy(x.float(), labels)
    if op == "embedding":
        ids = bench.torch.randint(dims["vocab"], (rows,), device=bench.device)
        return [(dims["vocab"], dims["width"])], lambda w: f.embedding(ids, w)
    flat, width = (rows, dims["width"]), (dims["width"],)
    functions: dict[str, tuple[list[tuple[int, ...]], Callable[..., Any]]] = {
        "rmsnorm": (
            [flat, width],
            build_rms_norm(bench) if point.mode == "eager" else lambda x, w: f.rms_norm(x, width, w, 1e-5),
        ),
        "layernorm": ([flat, width, width], lambda x, w, bias: f.layer_norm(x, width, w, bias)),
        "residual_add": ([flat, flat], lambda x, y: x + y),
        "silu_mul": ([flat, flat], lambda x, y: f.silu(x) * y),
        "gelu": ([flat], f.gelu),
        "softmax": ([flat], lambda x: f.softmax(x, dim=-1)),
    }
    return functions[op]


def compute_attention(bench: Bench, q: Any, k: Any, v: Any) -> Any:
    """Causal attention on (batch, seq, heads, head_dim); keys and values are repeated where torch cannot share them."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    options = {} if q.shape[1] == k.shape[1] else {"enable_gqa": True}
    if options and tuple(int(part) for part in bench.torch.__version__.split(".")[:2]) < (2, 5):
        k, v, options = *(part.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for part in (k, v)), {}
    return bench.functional.scaled_dot_product_attention(q, k, v, is_causal=True, **options).transpose(1, 2)


def build_flash_attention(bench: Bench) -> Callable[[Any, Any, Any], Any]:
    """The same by torch's FlashAttention-2 alone, which cuDNN's kernel would be chosen over on recent GPUs."""
    choice = import_module("torch.nn.attention")

    def compute_flash_attention(q: Any, k: Any, v: Any) -> Any:
        with choice.sdpa_kernel(choice.SDPBackend.FLASH_ATTENTION):
            return compute_attention(bench, q, k, v)

    return compute_flash_attention


def apply_rotary(bench: Bench, x: Any, cos: Any, sin: Any) -> Any:
    """Rotate (batch, heads, seq, head_dim)."""
    half = x.shape[-1] // 2
    return x * cos + bench.torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


def build_rms_norm(bench: Bench) -> Callable[[Any, Any], Any]:
    """The norm in the many small kernels of eager code."""

    def normalize(x: Any, weight: Any) -> Any:
        wide = x.float()
        wide = wide * bench.torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return weight * wide.to(x.dtype)

    return normalize


def build_adamw_case(bench: Bench, point: KernelPoint, params: int, limit: int = 1 << 24) -> KernelCase:
    """A fused AdamW step over tensors of the size of weight matrices."""
    sizes = [limit] * (params // limit) + ([params % limit] if params % limit else [])
    tensors = [bench.take(point.dtype, size, grad=True) for size in sizes]
    for tensor in tensors:
        tensor.grad = bench.take(point.dtype, tensor.numel())
    optimizer = bench.torch.optim.AdamW(tensors, lr=1e-8, fused=True)
    return KernelCase(lambda _: optimizer.step())


def build_model_class(bench: Bench, dims: dict[str, Any]) -> Any:
    """Build a decoder as Hugging Face writes one: RMSNorm, rotary, grouped queries, gated MLP."""
    nn, f, options = (
        bench.torch.nn,
        bench.functional,
        {"device": bench.device, "dtype": bench.dtypes["bf16"], "bias": False},
    )
    hidden, ffn, dim, kv = dims["hidden"], dims["ffn"], dims["head_dim"], dims["kv_heads"]
    inner, layers = dims["heads"] * dim, dims.get("layers", 0)

    class RmsNorm(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(bench.torch.ones(hidden, device=bench.device, dtype=bench.dtypes["bf16"]))
            self.function = build_rms_norm(bench)

        def forward(self, x: Any) -> Any:
            return self.function(x, self.weight)

    class DecoderLayer(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = RmsNorm(), RmsNorm()
            self.q, self.o = nn.Linear(hidden, inner, **options), nn.Linear(inner, hidden, **options)
            self.k, self.v = nn.Linear(hidden, kv * dim, **options), nn.Linear(hidden, kv * dim, **options)
            self.gate, self.up = nn.Linear(hidden, ffn, **options), nn.Linear(hidden, ffn, **options)
            self.down = nn.Linear(ffn, hidden, **options)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            y, shape = self.norm1(x), (*x.shape[:2], -1, dim)
            q, k = self.q(y).view(shape).transpose(1, 2), self.k(y).view(shape).transpose(1, 2)
            q, k = apply_rotary(bench, q, cos, sin).transpose(1, 2), apply_rotary(bench, k, cos, sin).transpose(1, 2)
            x = x + self.o(compute_attention(bench, q, k, self.v(y).view(shape)).reshape(*x.shape[:2], inner))
            y = self.norm2(x)
            return x + self.down(f.silu(self.gate(y)) * self.up(y))

    class DecoderModel(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(dims["vocab"], hidden, device=bench.device, dtype=bench.dtypes["bf16"])
            self.layers, self.norm = nn.ModuleList(DecoderLayer() for _ in range(layers)), RmsNorm()
            self.head = nn.Linear(hidden, dims["vocab"], **options)

        def forward(self, ids: Any, labels: Any, cos: Any, sin: Any) -> Any:
            x = self.embed(ids)
            for layer in self.layers:
                if dims["recompute"] == "full":
                    x = bench.torch.utils.checkpoint.checkpoint(layer, x, cos, sin, use_reentrant=False)
                else:
                    x = layer(x, cos, sin)
            logits = self.head(self.norm(x)).float()
            return f.cross_entropy(logits.view(-1, dims["vocab"]), labels.view(-1))

    return DecoderModel if layers else DecoderLayer


def build_block_case(bench: Bench, point: KernelPoint, dims: dict[str, Any]) -> KernelCase:
    """One transformer layer forward or backward, or a whole step: forward, loss, backward, AdamW."""
    torch, key = bench.torch, (point.mode, point.dims)
    if bench.last_model[0] != key:
        bench.free_memory(everything=True)
        import_module("torch.utils.checkpoint")
        if point.mode == "compiled":
            import_module("torch._dynamo").reset()
        model = build_model_class(bench, dims)()
        bench.last_model = (key, (model, torch.compile(model, dynamic=False) if point.mode == "compiled" else model))
    module, call = bench.last_model[1]
    bf16 = {"device": bench.device, "dtype": bench.dtypes["bf16"]}
    angles = torch.rand(1, 1, dims["seq"], dims["head_dim"], device=bench.device)
    cos, sin = angles.cos().to(bf16["dtype"]), angles.sin().to(bf16["dtype"])
    if point.op == "layer":
        x = torch.randn(dims["batch"], dims["seq"], dims["hidden"], **bf16).requires_grad_()
        if point.what == "fwd":
            return KernelCase(lambda _: call(x, cos, sin))
        outputs: list[Any] = []
        grad, differentiated = torch.randn_like(x), [x, *module.parameters()]
        return KernelCase(
            run=lambda _: torch.autograd.grad(outputs.pop(), differentiated, grad),
            before=lambda _: outputs.append(call(x, cos, sin)),
        )
    ids = torch.randint(dims["vocab"], (dims["batch"], dims["seq"]), device=bench.device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5, fused=True)

    def run_step(_: int) -> None:
        call(ids, ids, cos, sin).backward()
        optimizer.step()
        optimizer.zero_grad()

    return KernelCase(run_step, is_block=True)
