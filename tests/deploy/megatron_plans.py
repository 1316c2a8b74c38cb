"""Plans of every kind for Megatron-LM, and their flags."""

from __future__ import annotations

import json
import shlex
import subprocess
from functools import cache
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import yaml

from builders import scenario, zone
from conftest import ROOT
from crosszone.deploy.frameworks import megatron
from crosszone.deploy.launch import Launch, list_nodes
from crosszone.deploy.settings import LaunchSettings
from crosszone.predict.predict import build_prediction, build_predictor

CHECKS = ROOT / "tests/deploy/megatron_checks.py"
ONE = {"zones": [zone("a", count=8)]}
TWO = {"zones": [zone("a", count=2), zone("b", count=2)], "links": [{"between": ["a", "b"], "gbps": 10, "rtt_ms": 20}]}
HOPPER = {"zones": [zone("a", count=8, gpu="h100-80gb-sxm")]}
BLACKWELL = {"zones": [zone("a", count=8, gpu="b200-sxm")]}


def job(**changes: Any) -> dict[str, Any]:
    return {"seq_len": 4096, "global_batch": 64, **changes}


PLANS: dict[str, dict[str, Any]] = {
    "replicas": {"strategy": {"dp": 8}},
    "tensor": {"strategy": {"tp": 4, "sequence_parallel": True}},
    "pipeline": {"cluster": ONE, "strategy": {"tp": 4, "pp": 4, "zero": 1}},
    "uneven": {"cluster": ONE, "strategy": {"tp": 4, "pp": 4, "zero": 1, "layers_per_stage": [9, 8, 8, 7]}},
    "interleaved": {"cluster": ONE, "strategy": {"tp": 4, "pp": 4, "interleave": 2, "zero": 1}},
    "interleaved uneven": {
        "cluster": ONE,
        "strategy": {"tp": 4, "pp": 4, "interleave": 2, "zero": 1, "layers_per_stage": [5, 4, 4, 4, 4, 4, 4, 3]},
    },
    "interleaved rest": {
        "cluster": ONE,
        "job": job(global_batch=72),  # 18 micro-batches on 4 stages
        "strategy": {"tp": 4, "pp": 4, "dp": 4, "interleave": 2, "zero": 1},
    },
    "context": {"cluster": ONE, "strategy": {"tp": 2, "cp": 4, "zero": 1}},
    "zero 0": {"cluster": ONE, "strategy": {"tp": 2, "zero": 0}},
    "zero 2": {"cluster": ONE, "strategy": {"zero": 2}},
    "zero 3": {"cluster": ONE, "strategy": {"tp": 2, "zero": 3}},
    "sets": {"cluster": ONE, "strategy": {"zero": 1, "shard_ranks": 16}},
    "sliced experts": {
        "cluster": ONE,
        "model": "mixtral-8x7b",
        "strategy": {"tp": 4, "ep": 4, "expert_tp": 2, "sequence_parallel": True, "zero": 1},
    },
    "blockwise": {"cluster": HOPPER, "job": job(precision="fp8", fp8_recipe="blockwise"), "strategy": {"zero": 1}},
    "hybrid": {"cluster": TWO, "strategy": {"zero": 3, "shard_within": "zone"}},
    "zones": {
        "cluster": TWO,
        "strategy": {
            "tp": 2,
            "zero": 1,
            "shard_within": "zone",
            "communication": {"reduce": "hierarchical", "bucket_mb": 400},
        },
    },
    "offload": {"strategy": {"tp": 2, "zero": 1, "offload": "optimizer"}},
    "full": {"strategy": {"tp": 2, "zero": 1, "recompute": "full"}},
    "bf16 gradients": {"strategy": {"tp": 2, "zero": 1, "communication": {"gradient_dtype": "bf16", "bucket_mb": 100}}},
    "no overlap": {
        "strategy": {"tp": 2, "zero": 1, "communication": {"overlap_gradients": False, "overlap_parameters": False}}
    },
    "tensor overlap": {
        "strategy": {"tp": 2, "zero": 1, "sequence_parallel": True, "communication": {"overlap_tensor": True}}
    },
    **{
        precision: {"cluster": HOPPER, "job": job(precision=precision), "strategy": {"tp": 2, "zero": 1}}
        for precision in ("fp16", "fp32", "fp8")
    },
    **{
        precision: {"cluster": BLACKWELL, "job": job(precision=precision), "strategy": {"tp": 2, "zero": 1}}
        for precision in ("mxfp8", "nvfp4")
    },
    **{
        one: {"job": job(optimizer=one), "strategy": {"tp": 2, "zero": 1}}
        for one in ("adam", "lion", "muon", "sgd", "sgd-momentum")
    },
    "experts": {
        "model": "mixtral-8x7b",
        "cluster": ONE,
        "strategy": {"tp": 2, "ep": 4, "zero": 1, "sequence_parallel": True},
    },
    "cut experts": {
        "model": "mixtral-8x7b",
        "cluster": ONE,
        "strategy": {"tp": 2, "zero": 1, "sequence_parallel": True},
    },
    "sinks": {
        "model": "gpt-oss-20b",
        "cluster": ONE,
        "strategy": {"tp": 2, "ep": 4, "zero": 1, "sequence_parallel": True},
    },
    "latent": {
        "model": "deepseek-v3",
        "cluster": {"zones": [zone("a", count=64)]},
        "job": job(global_batch=256),
        "strategy": {
            "tp": 4,
            "pp": 16,
            "ep": 8,
            "zero": 1,
            "sequence_parallel": True,
            "layers_per_stage": [4] * 13 + [3] * 3,
        },
    },
    "windows": {"model": "mistral-7b", "strategy": {"tp": 2, "zero": 1}},
    "squared relu": {"model": "nemotron-4-15b", "cluster": ONE, "strategy": {"tp": 8, "zero": 1}},
    "learned positions": {"model": "gpt-3-6.7b", "job": job(seq_len=2048), "strategy": {"tp": 2, "zero": 1}},
}


def launched(language: str = "en", settings: dict[str, Any] | None = None, **changes: Any) -> Launch:
    return of_scenario(scenario(**changes), language, **(settings or {}))


def of_scenario(given: Any, language: str = "en", **settings: Any) -> Launch:
    p = build_predictor(given.replace(job=given.job.replace(framework="megatron")))
    return Launch(
        scenario=given.replace(strategy=p.strategy, placement=p.placed.placement),
        predictor=p,
        prediction=build_prediction(p),
        framework="megatron",
        settings=LaunchSettings(**settings),
        nodes=list_nodes(p),
        language=language,
    )


def words(text: str) -> list[str]:
    return [word for line in text.split("\n") if not line.startswith("#") for word in shlex.split(line)]


def read(argv: list[str]) -> dict[str, list[str]]:
    """Flags with their values; none is said twice."""
    found: dict[str, list[str]] = {}
    for word in argv:
        if word.startswith("--"):
            assert word not in found, f"{word} twice"
            found[word] = []
            last = word
        else:
            found[last].append(word)
    return found


@cache
def of_plan(name: str, file: str = megatron.ARGUMENTS) -> dict[str, list[str]]:
    return read(words(megatron.build_files(plan_of(name))[file]))


@cache
def plan_of(name: str) -> Launch:
    return launched(**PLANS[name])


@cache
def known() -> dict[str, Any]:
    return yaml.safe_load(resources("crosszone.deploy").joinpath("megatron_flags.yaml").read_text("utf-8"))


def variables(launch: Launch) -> dict[str, str]:
    return {one.name: str(one.value) for one in megatron.build_options(launch) if one.where == "variable"}


def runs(names: Any) -> list[dict[str, Any]]:
    """What the checks outside of pytest read."""
    made = []
    for name in names:
        launch = plan_of(name)
        newer = "blackwell" in {group.gpu.architecture for _, group in launch.scenario.cluster.zone_groups}
        for file in (megatron.ARGUMENTS, megatron.TINY_ARGUMENTS):
            about = {"world": launch.world_size, "environment": variables(launch), "architecture": 10 if newer else 9}
            made.append({"name": f"{name} {file}", "argv": words(megatron.build_files(launch)[file]), **about})
    return made


def checked(python: Path, tmp_path: Path, *what: str, given: list[dict[str, Any]]) -> dict[str, str]:
    (tmp_path / "runs.json").write_text(json.dumps(given))
    line = [python, CHECKS, what[0], tmp_path / "runs.json", *what[1:]]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    assert found
    return {name: wrong for name, wrong in found.items() if wrong}
