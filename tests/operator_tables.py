"""Tables of operator samples, made up: times follow a law that the tests know."""

from __future__ import annotations

from pathlib import Path

import numpy as np

HEAD = [
    "device",
    "torch",
    "dtype",
    "op",
    "pass",
    "mode",
    "m",
    "n",
    "k",
    "groups",
    "batch",
    "heads",
    "kv_heads",
    "head_dim",
    "seq",
    "tokens",
    "width",
    "vocab",
    "params",
    "layers",
    "hidden",
    "ffn",
    "recompute",
    "time_us",
    "spread_pct",
    "host_us",
    "memory_gib",
    "flops",
    "bytes",
    "roof_us",
    "reps",
    "sm_mhz",
    "power_w",
    "flag",
]
PEAK, MEMORY = 989e12, 4.8e12
"""Of an H200, as the catalogue has them."""


def row(op: str, which: str, time_us: float | str, **cells: object) -> str:
    given = {"device": "NVIDIA H200", "torch": "2.11", "dtype": "bf16", "op": op, "pass": which, "mode": "eager"}
    given |= {"time_us": time_us, "spread_pct": 1.0, "reps": 20, **cells}
    return ",".join(str(given.get(name, "")) for name in HEAD)


def written(folder: Path, rows: list[str], name: str = "samples.csv") -> Path:
    path = folder / name
    path.write_text("\n".join((",".join(HEAD), *rows)) + "\n", encoding="utf-8")
    return path


def products(share: float = 0.8, tile: float = 1.5, count: int = 40) -> list[str]:
    """Products whose time is 2 m n k / (share x peak) + tile x bytes / memory rate."""
    rng, rows = np.random.default_rng(3), []
    for _ in range(count):
        m, n, k = (int(64 * rng.integers(16, 128)) for _ in range(3))
        seconds = 2.0 * m * n * k / (share * PEAK) + tile * 2.0 * (m * k + k * n + m * n) / MEMORY
        roof = 2e6 * m * n * k / PEAK
        rows += [
            row("matmul", which, f"{1e6 * seconds:.6g}", m=m, n=n, k=k, roof_us=f"{roof:.5g}")
            for which in ("fwd", "dgrad", "wgrad")
        ]
    return rows


def attentions(flash: float = 0.6, width: float = 60.0, ramp: float = 500.0, back: float = 2.5) -> list[str]:
    """Fused attention by the formulas of the cost model."""
    from crosszone.cost.layer import flash_attention_s, flash_share

    rows = []
    for head in (64, 128, 192):
        for seq in (1024, 2048, 4096, 8192):
            for heads in (16, 32):
                rate = flash_share(head, seq, width, ramp) * flash * PEAK
                time_us = 1e6 * float(flash_attention_s(4 * seq, seq / 2, 2 * heads * head, rate))
                sizes = {"batch": 4, "heads": heads, "kv_heads": 8, "head_dim": head, "seq": seq}
                rows.append(row("attention", "fwd", f"{time_us:.6g}", **sizes))
                rows.append(row("attention", "bwd", f"{back * time_us:.6g}", **sizes))
    return rows


def memory_bound(op: str, which: str, per_mb_us: float, launch_us: float = 5.0, count: int = 30) -> list[str]:
    """A launch and so many microseconds a MB of tokens x width values of 2 bytes."""
    rng, rows = np.random.default_rng(5), []
    for _ in range(count):
        tokens, width = int(rng.integers(8, 400)) * 128, int(rng.integers(4, 64)) * 128
        time_us = launch_us + per_mb_us * 2e-6 * tokens * width
        rows.append(row(op, which, f"{time_us:.6g}", tokens=tokens, width=width))
    return rows
