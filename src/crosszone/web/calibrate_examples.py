"""Examples of files for the API's description: made up from a rate and a latency, short enough to be read."""

from __future__ import annotations

from crosszone.calibrate.collective_fit import estimate_collective_cost
from crosszone.cost.tiers import Tier

SAMPLE_COLUMNS = (
    "device,torch,dtype,op,pass,mode,m,n,k,groups,batch,heads,kv_heads,head_dim,seq,tokens,width,vocab,params,layers,hidden,"
    "ffn,recompute,time_us,spread_pct,host_us,memory_gib,flops,bytes,roof_us,reps,sm_mhz,power_w,flag"
)
COLLECTIVE_COLUMNS = "op,scope,nodes,gpus_per_node,ranks,groups,bytes,time_us,bus_gb_per_s,flag"
# Of an A100 in bf16; the share of it that a large matmul reaches; what any kernel takes.
PEAK_FLOPS_PER_US, SHARE, LAUNCH_US = 312e6, 0.75, 4.0
BYTES_PER_US, STEP_US = 20_000.0, 12.0  # Of a ring over two nodes: rate of one GPU, and latency of one step


def _matmul(m: int, n: int, k: int, which: str) -> str:
    flops = 2.0 * m * n * k
    roof = flops / PEAK_FLOPS_PER_US
    cells = dict.fromkeys(SAMPLE_COLUMNS.split(","), "")
    cells |= {"device": "NVIDIA A100-SXM4-80GB", "torch": "2.9", "dtype": "bf16", "op": "matmul", "pass": which}
    cells |= {"mode": "eager", "m": str(m), "n": str(n), "k": str(k), "time_us": f"{roof / SHARE + LAUNCH_US:.2f}"}
    cells |= {"spread_pct": "1.0", "host_us": "8", "flops": f"{flops:.0f}", "bytes": str(2 * (m * n + n * k + m * k))}
    cells |= {"roof_us": f"{roof:.2f}", "reps": "30"}
    return ",".join(cells.values())


def _all_reduce(size: int, ranks: int = 16) -> str:
    time = float(estimate_collective_cost("all_reduce", size, ranks, Tier(BYTES_PER_US, STEP_US)).seconds)
    return f"all_reduce,network,2,8,{ranks},1,{size},{time:.2f},,"


_SIZES = [(m, n, k) for m in (2048, 4096, 8192) for n in (2048, 4096, 8192) for k in (2048, 4096)]
SAMPLES = "\n".join([SAMPLE_COLUMNS, *(_matmul(*size, "fwd") for size in _SIZES)]) + "\n"
COLLECTIVES = "\n".join([COLLECTIVE_COLUMNS, *(_all_reduce(2**power) for power in range(16, 29, 2))]) + "\n"
BENCHMARK = (
    "\n".join(
        f"iteration start,{gap}\nwarmup start,0.002\nforward start,0.12\nbackward start,0.05\nforward start,0.1\n"
        "backward start,0.05\ncooldown start,0.1\nallreduce start,0.14\niteration end,0.23"
        for gap in (0.31, 0.02, 0.02)
    )
    + "\n"
)
LOG = "".join(
    f" iteration {step:8d}/ 1000 | elapsed time per iteration (ms): {22_000 + step:.1f} | global batch size:   256 | "
    "lm loss: 5.000000E+00 | grad norm: 1.000 |\n"
    for step in range(1, 9)
)
