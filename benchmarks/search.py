"""How quickly plans are found; `python benchmarks/search.py` prints the figures and updates RESULTS.md.

Every case runs in processes of its own, so that its peak of memory is its own, on one core (OMP_NUM_THREADS=1): the
quickest of several. CPU seconds, since other work on the machine lengthens wall time; it slows the CPU too, so a fixed
piece of work is timed beside each run. `--case NAME` runs one case once.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from crosszone.inputs.scenario import Scenario, load_scenario
from crosszone.plan.plan import Plan
from crosszone.plan.planner import build_problem, plan
from crosszone.plan.search import PlanSearch
from crosszone.predict.predict import build_prediction
from crosszone.predict.prediction import Prediction
from results import write_section

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "three-cities.yaml"
RUNS = 5
ENOUGH_S = 20.0
"""Seconds after which a case is not run again."""
GRIDS = {"GPT-3 175B": "gpt-3-175b", "Megatron 1T": "megatron-1t"}
GRID_BATCH = 4096
PARTS = {
    "compute": ("matmul", "attention", "elementwise", "routing", "embedding", "head", "recompute"),
    "tensor parallelism, exposed": ("tensor", "context", "expert"),
    "pipeline sends, exposed": ("pipeline",),
    "bubble": ("bubble",),
    "gradients and weights, exposed": ("gradients", "weights", "sharding"),
    "optimizer": ("optimizer",),
    "host and stragglers": ("host", "fixed", "jitter"),
}
"""Keys of `breakdown_s` that make a part."""
CALCULON: dict[str, tuple[str, tuple[float, ...]]] = {
    "gpt-3-175b": ("tp 8 pp 4 dp 128 v 12 b 2", (9.050, 0.052, 0.222, 0.146, 0.087, 0.000, 0.0)),
}
"""What calculon (github.com/calculon-ai/calculon, caa4b11, systems/a100_80g.json) answers: its best plan, its parts, s.

It has no embedding, head, host or stragglers. Compute: fw_time + bw_time + recompute_time; others: *_exposed_time.
"""


def build_a100_nodes(nodes: int) -> list[dict[str, Any]]:
    """Nodes of 8 A100 with a NIC of 200 Gbit/s each."""
    return [{"count": nodes, "gpus": 8, "gpu": "a100-80gb-sxm", "nic_gbps_per_gpu": 200}]


def build_zones(count: int, nodes: list[dict[str, Any]], gbps: float, links: list[dict[str, Any]] | None = None) -> Any:
    """Zones that are all alike and 20 ms apart, but for the links given."""
    zones = [{"name": name, "nodes": nodes} for name in "abcde"[:count]]
    return {"zones": zones, "default_link": {"gbps": gbps, "rtt_ms": 20}, "links": links or []}


UNEQUAL = [
    {"between": list(pair), "gbps": gbps, "rtt_ms": rtt_ms}
    for pair, gbps, rtt_ms in zip(
        combinations("abcde", 2), (1, 2, 5, 10, 20, 40, 50, 80, 100, 200), range(50, 0, -5), strict=True
    )
]
"""1 to 200 Gbit/s and 50 to 5 ms between five zones."""
H100S = [{"count": 512, "gpus": 8, "gpu": "h100-80gb-sxm", "nic_gbps_per_gpu": 400}]
LLAMA = ("llama-2-70b", 4096, 1024)
NAMED: dict[str, tuple[tuple[str, int, int], Any, float]] = {
    "5 zones x 128 A100, 70B, equal links": (LLAMA, build_zones(5, build_a100_nodes(16), 10), 0.5),
    "5 zones x 128 A100, 70B, unequal links": (LLAMA, build_zones(5, build_a100_nodes(16), 10, UNEQUAL), 0.5),
    "4 zones x 4096 H100, 405B": (("llama-3.1-405b", 8192, 2048), build_zones(4, H100S, 400), 5.0),
    "4 zones x 128 A100, 70B": (LLAMA, build_zones(4, build_a100_nodes(16), 10), 5.0),
}
"""Model, tokens of a sample, samples of a step; cluster; seconds it may take."""
FRAMEWORKS = ("any", "megatron")


def build_scenario(job: tuple[str, int, int], cluster: Any, framework: str) -> Scenario:
    """A job on a cluster, nothing pinned."""
    model, seq_len, batch = job
    job_fields = {"seq_len": seq_len, "global_batch": batch, "framework": framework}
    return load_scenario({"name": "search", "model": model, "job": job_fields, "cluster": cluster})


def search_grid(model: str) -> dict[str, Any]:
    """Every strategy of Megatron-LM on 4096 A100 scored one by one, then the best simulated."""
    cluster = {"zones": [{"name": "a", "nodes": build_a100_nodes(512)}]}
    problem = build_problem(build_scenario((model, 2048, GRID_BATCH), cluster, "megatron"))
    start = time.process_time()
    search = PlanSearch(problem, top=5, prune=False)
    search.run()
    cpu_s = time.process_time() - start
    peak_gib = measure_peak_gib()
    (_, best), *_ = search.best.rank_families()
    rate, scored = measure_scoring(search)
    predicted = build_prediction(best.build_predictor(banded=True))
    return {
        "evaluated": search.tally.evaluated,
        "scored": scored,
        "feasible": search.tally.feasible,
        "simulated": search.tally.simulated,
        "per_s": rate,
        "cpu_s": cpu_s,
        "peak_gib": peak_gib,
        "best": describe_strategy(predicted),
        "step_s": predicted.step_time_s.expected,
        "breakdown_s": predicted.breakdown_s,
        "at_peak_s": predicted.records["mfu"].inputs["model_flops"] / predicted.records["mfu"].inputs["peak_flops"],
    }


def measure_scoring(search: PlanSearch) -> tuple[float, int]:
    """Strategies a second where memory of all and time of those that fit are worked out, and how many they are."""
    (space,) = search.spaces
    scores = space.build_bound_table(np.arange(len(space.layout_table.layouts)), include_dominated=True)
    assert scores is not None
    owner, option = scores.expand_groups(*scores.pair_with_groups())
    start = time.process_time()
    fits = np.flatnonzero(scores.find_over_bytes(owner, option) <= 0)
    scores.bound_analytic_s(scores.search_nodes.take(owner[fits]), option[fits])
    return len(owner) / (time.process_time() - start), len(owner)


def plan_named(name: str, framework: str) -> dict[str, Any]:
    """A scenario planned."""
    job, cluster, _ = NAMED[name]
    loaded = build_scenario(job, cluster, framework)
    start, wall = time.process_time(), time.perf_counter()
    answer = plan(loaded)
    return {
        "cpu_s": time.process_time() - start,
        "wall_s": time.perf_counter() - wall,
        "evaluated": answer.evaluated,
        "scored": answer.scored,
        "simulated": answer.simulated,
        "peak_gib": measure_peak_gib(),
        "best": describe_plan(answer.plans[0]),
    }


def measure_peak_gib() -> float:
    """Most memory this process had, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def describe_strategy(prediction: Prediction) -> str:
    """A strategy in a few words."""
    s = prediction.strategy
    words = [f"{key} {s[key]}" for key in ("tp", "pp", "dp", "cp") if s[key] > 1]
    words += [f"v {s['interleave']}"] * (s["interleave"] > 1) + [f"b {s['micro_batch']}", f"zero {s['zero']}"]
    words += [f"{key} {s[key]}" for key in ("recompute", "offload") if s[key] != "none"]
    return " ".join(words)


def describe_plan(best: Plan) -> str:
    """The same with its framework, where it lies and its step."""
    step = f"{best.prediction.step_time_s.expected:.2f} s"
    return f"{best.framework} {describe_strategy(best.prediction)}, zones {' '.join(best.zones)}: {step}"


def measure_cold_start(pinned: bool) -> dict[str, float]:
    """`crosszone plan` on the three cities, from the start of the process to its end."""
    fields = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    if not pinned:
        del fields["strategy"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scenario.yaml"
        file.write_text(yaml.safe_dump(fields), encoding="utf-8")
        before, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([ROOT / "crosszone", "plan", file], stdout=subprocess.DEVNULL, check=True)
        wall, after = time.perf_counter() - before, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return {"cpu_s": cpu, "wall_s": wall, "peak_gib": after.ru_maxrss / 2**20}


CASES: dict[str, Callable[[], Mapping[str, Any]]] = {
    **{f"grid {model}": partial(search_grid, model) for model in GRIDS.values()},
    **{f"{name}, {framework}": partial(plan_named, name, framework) for name in NAMED for framework in FRAMEWORKS},
    "cold pinned": lambda: measure_cold_start(True),
    "cold free": lambda: measure_cold_start(False),
}


def measure_yardstick_ms() -> float:
    """CPU time of a fixed piece of work like that of a search: small NumPy calls and a dictionary."""
    start = time.process_time()
    values = np.random.default_rng(0).random((512, 8))
    for _ in range(1500):
        np.where(values > 0.5, values * 2 + 1, values).max(axis=1)
    sum({number: number for number in range(60_000)}.values())
    return 1e3 * (time.process_time() - start)


YARDSTICKS: list[float] = []
"""What the fixed piece of work took beside the runs that are reported."""


def measure_case(case: str) -> dict[str, Any]:
    """The quickest of several processes that run a case (of fewer where they take long)."""
    runs: list[dict[str, Any]] = []
    began = time.monotonic()
    while len(runs) < RUNS and (not runs or time.monotonic() - began < ENOUGH_S):
        command = [sys.executable, __file__, "--case", case]
        done = subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, check=True, text=True
        )
        runs.append(json.loads(done.stdout))
    best = min(runs, key=lambda run: run["cpu_s"])
    YARDSTICKS.append(best["yardstick_ms"])
    return {**best, "runs": len(runs)}


def format_row(*cells: object) -> str:
    """A line of a table."""
    return f"| {' | '.join(map(str, cells))} |"


def format_grids() -> list[str]:
    """Rows of whole grids, and what their best plans are made of."""
    columns = ("strategies", "fit", "a second, scoring", "CPU s", "peak GiB", "runs", "best plan")
    rows = [
        format_row("whole grid, 4096 A100, Megatron-LM", *columns),
        "|---" * 8 + "|",
        format_row("*target*", "*450,000*", "", "*1,000,000*", "*1*", "*1*", "", ""),
    ]
    parts = []
    for name, model in GRIDS.items():
        measurement = measure_case(f"grid {model}")
        best = f"{measurement['best']}: {GRID_BATCH / measurement['step_s']:.1f} samples/s"
        counts = (f"{measurement[key]:,.0f}" for key in ("scored", "feasible", "per_s"))
        rows.append(
            format_row(
                name,
                *counts,
                f"{measurement['cpu_s']:.2f}",
                f"{measurement['peak_gib']:.2f}",
                measurement["runs"],
                best,
            )
        )
        parts += compare_with_calculon(name, model, measurement)
    return [*rows, "", *parts]


def compare_with_calculon(name: str, model: str, measurement: Mapping[str, Any]) -> list[str]:
    """What our step spends beside that of calculon, part by part."""
    if model not in CALCULON:
        return []
    best, theirs = CALCULON[model]
    ours = [sum(measurement["breakdown_s"][key] for key in keys) for keys in PARTS.values()]
    rows = [
        format_row(f"{name}, s of a step", f"ours, {measurement['best']}", f"calculon's, {best}", "more"),
        "|---" * 4 + "|",
    ]
    for part, mine, its in zip((*PARTS, "**step**"), (*ours, sum(ours)), (*theirs, sum(theirs)), strict=True):
        rows.append(format_row(part, f"{mine:.3f}", f"{its:.3f}", f"{mine - its:+.3f}"))
    rates = [GRID_BATCH / sum(step) for step in (ours, theirs)]
    at_peak = [measurement["at_peak_s"] / step[0] for step in (ours, theirs)]
    sentence = (
        f"{rates[0]:.1f} samples/s against calculon's {rates[1]:.1f}. At the GPUs' peak the model's operations take "
        f"{measurement['at_peak_s']:.2f} s: compute runs at {at_peak[0]:.0%} of it here and at {at_peak[1]:.0%} there."
    )
    return [*rows, "", sentence, ""]


def format_plans() -> list[str]:
    """Rows of searches over zones."""
    columns = ("target s", "CPU s", "wall s", "strategies", "scored", "simulated", "peak GiB", "runs", "best plan")
    rows = [format_row("search, `plan()`; framework", *columns), "|---" * 10 + "|"]
    for name, (_, _, target) in NAMED.items():
        for framework in FRAMEWORKS:
            measurement = measure_case(f"{name}, {framework}")
            seconds = (f"{measurement[key]:.2f}" for key in ("cpu_s", "wall_s"))
            counts = (f"{measurement[key]:,.0f}" for key in ("evaluated", "scored", "simulated"))
            peak_gib = f"{measurement['peak_gib']:.2f}"
            rows.append(
                format_row(
                    f"{name}; {framework}",
                    target,
                    *seconds,
                    *counts,
                    peak_gib,
                    measurement["runs"],
                    measurement["best"],
                )
            )
    return [*rows, ""]


def format_cold_starts() -> list[str]:
    """Rows of the command line."""
    rows = [format_row("command, from start to answer", "target s", "CPU s", "wall s", "peak GiB"), "|---" * 5 + "|"]
    for name, case in {"its strategy pinned": "cold pinned", "without its strategy": "cold free"}.items():
        measurement = measure_case(case)
        figures = (f"{measurement[key]:.2f}" for key in ("cpu_s", "wall_s", "peak_gib"))
        rows.append(format_row(f"`crosszone plan examples/three-cities.yaml`, {name}", 2, *figures))
    return rows


def main() -> None:
    """Measure all cases and put the tables into RESULTS.md; or run one case and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES)
    case = parser.parse_args().case
    if case is not None:
        before, figures = measure_yardstick_ms(), CASES[case]()
        print(json.dumps({**figures, "yardstick_ms": (before + measure_yardstick_ms()) / 2}))
        return
    tables = [*format_grids(), *format_plans(), *format_cold_starts()]
    head = f"`python benchmarks/search.py`, one of {os.cpu_count()} cores used, the quickest of up to {RUNS} runs."
    slow = f"A fixed piece of work (`yardstick_ms`) took {min(YARDSTICKS):.0f} to {max(YARDSTICKS):.0f} ms beside them."
    write_section("Search", "\n".join([f"{head} {slow}", "", *tables]))


if __name__ == "__main__":
    main()
