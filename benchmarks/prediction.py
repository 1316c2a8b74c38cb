"""How quickly strategies are predicted; `python benchmarks/prediction.py` prints the figures and updates RESULTS.md.

One prediction is everything `crosszone predict` shows, from a scenario that is already read. Arrays are strategies of
one model scored together in closed form, their layers' costs gathered from those that differ. CPU times, best of many.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.columns import LinkColumns, WorkColumns, build_model_columns
from crosszone.cost.layer import LayerCost
from crosszone.cost.profile import Profiles
from crosszone.inputs.scenario import Scenario, load_scenario
from crosszone.inputs.software import settle_software
from crosszone.predict.batch import Batch, build_group_columns, build_stack_columns
from crosszone.predict.predict import predict
from crosszone.predict.step import step_s
from results import write_section

RUNS = 101
ZONE = {"region": "cn-beijing", "nodes": [{"count": 16, "gpus": 8, "gpu": "a100-80gb-sxm", "nic_gbps_per_gpu": 200}]}


def build_scenario(strategy: dict[str, Any], zones: int) -> Scenario:
    """LLaMA-2-70B on 128 GPUs a zone."""
    regions = ("cn-beijing", "cn-shanghai")
    placed = [{**ZONE, "name": region, "region": region} for region in regions[:zones]]
    job = {"seq_len": 4096, "global_batch": 512, "tokens": 1e12, "framework": "megatron"}
    fields_ = {"name": "speed", "model": "llama-2-70b", "job": job, "cluster": {"zones": placed}, "strategy": strategy}
    return load_scenario(fields_)


def measure_cpu_s(work: Callable[[], object], runs: int = RUNS) -> float:
    """CPU seconds of the quickest of several runs of `work`, after two to warm up: what other work does not disturb."""
    times = []
    for run in range(runs + 2):
        start = time.process_time()
        work()
        if run > 1:
            times.append(time.process_time() - start)
    return min(times)


def measure_single_predictions() -> list[str]:
    """Rows of single predictions."""
    cases = {
        "p 4, m 32, one zone": ({"tp": 4, "pp": 4, "dp": 8, "micro_batch": 2, "zero": 1}, 1),
        "p 8, m 64, one zone": ({"tp": 4, "pp": 8, "dp": 4, "micro_batch": 2, "zero": 1}, 1),
        "p 8, m 64, two zones (three round-trip times)": ({"tp": 4, "pp": 8, "dp": 8, "micro_batch": 1, "zero": 1}, 2),
        "p 1, fully sharded, one zone": ({"tp": 8, "pp": 1, "dp": 16, "micro_batch": 1, "zero": 3}, 1),
    }
    rows = []
    for name, (strategy, zones) in cases.items():
        loaded = build_scenario(strategy, zones)
        rows.append(f"| one prediction: {name} | {measure_cpu_s(lambda loaded=loaded: predict(loaded)) * 1e3:.2f} ms |")  # type: ignore[misc]
    return rows


def build_strategies(count: int, stages: int) -> tuple[Batch, LayerCost, npt.NDArray[np.int64]]:
    """A chunk of strategies with their layers' costs."""
    rng = np.random.default_rng(0)
    group = (
        load_scenario(
            {
                "name": "x",
                "model": "llama-2-70b",
                "job": {"seq_len": 4096, "global_batch": 2048},
                "cluster": {"zones": [{**ZONE, "name": "a"}]},
            }
        )
        .cluster.zones[0]
        .nodes[0]
    )
    profile = Profiles.load().select(group.gpu, "megatron-core")
    software = settle_software(None, "megatron", profile.settings, 25.75, "ampere", 4096)
    tp, micro = 2.0 ** rng.integers(0, 4, (count, 1)), 2.0 ** rng.integers(0, 4, (count, 1))
    dp = 512 / (tp * stages)
    work = WorkColumns(
        **{"seq": 4096.0, "global_batch": 2048.0, "pp": float(stages), "cp": 1.0, "ep": 1.0, "expert_tp": 1.0},
        **{"tp": tp, "dp": dp, "shard_ranks": dp, "dp_stride": tp, "micro_batch": micro, "interleave": 1.0},
        micro_batches=np.maximum(1.0, 2048 / (micro * dp)),
        sequence_parallel=(tp > 1) * 1.0,
        recompute=rng.integers(0, 3, (count, 1)) * 1.0,
        zero=rng.integers(0, 2, (count, 1)) * 1.0,
        **{"path": 16.0, "weight_bytes": 2.0, "gradient_bytes": 4.0, "grad_comm_bytes": 2.0, "optimizer_bytes": 12.0},
        **{"overlap_tensor": 1.0, "overlap_gradients": 1.0, "overlap_parameters": 1.0, "overlap": np.nan},
    )
    runs = min(stages, 3)
    repeats = np.ones((count, runs), order="F")
    if runs == 3:
        repeats[:, 1] = stages - 2
    model = build_model_columns(
        load_scenario(
            {
                "name": "x",
                "model": "llama-2-70b",
                "job": {"seq_len": 4096, "global_batch": 2048},
                "cluster": {"zones": [{**ZONE, "name": "a"}]},
            }
        ).model
    )
    gpu, stack = build_group_columns(group, "bf16", 64), build_stack_columns(profile.settings, software)
    batch = Batch(
        model=model,
        work=work,
        gpu=gpu,
        stack=stack,
        links=LinkColumns(),
        counts=np.full((count, runs), 80 / stages),
        repeats=repeats,
    )
    keys = np.concatenate([work.tp, work.micro_batch, work.recompute], axis=1)
    _, first, at = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    few = WorkColumns(**{f.name: _select_rows(getattr(work, f.name), first) for f in fields(work)})
    return batch, LayerCost(model, few, gpu, stack, profile.coefficients), at.ravel()


def _select_rows(values: Any, at: npt.NDArray[np.int64]) -> Any:
    return values[at] if np.ndim(values) else values


def measure_arrays() -> list[str]:
    """Rows of array scoring."""
    rows = []
    for count in (1024, 2048, 4096):
        for stages in (1, 8, 64):
            batch, layers, at = build_strategies(count, stages)

            def score(b: Batch = batch, x: LayerCost = layers, i: npt.NDArray[np.int64] = at) -> object:
                return step_s(b, x.k, x.select_strategies(i, b.work))

            strategy_s = measure_cpu_s(score) / count
            rows.append(f"| arrays: chunks of {count}, p {stages} | {strategy_s * 1e6:.2f} us a strategy |")
    return rows


def main() -> None:
    """Measure all and put the table into RESULTS.md."""
    load = f"load {os.getloadavg()[0]:.1f}"
    head = f"`python benchmarks/prediction.py`, {os.cpu_count()} cores, {load}, CPU time, best of {RUNS}."
    table = "\n".join(["| what | time |", "|---|---|", *measure_single_predictions(), *measure_arrays()])
    write_section("Prediction", f"{head}\n\n{table}")


if __name__ == "__main__":
    main()
