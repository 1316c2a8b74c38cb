"""Trainer files: the training program of a framework with every file it imports, and what it is told.

The files are copied as they are, so that a bundle needs nothing of this package. `settings.json` holds the model, the
job, the strategy and where each rank lies, as plain JSON.
"""

from __future__ import annotations

import ast
import json
from functools import cache
from importlib.resources import files
from typing import Any

from crosszone.deploy.frameworks import get_wire_compression, load_framework
from crosszone.deploy.launch import Launch
from crosszone.inputs.python_source import parse_source
from crosszone.predict.batch import list_virtual_stage_layers

# The program of each framework; Megatron-LM has one of its own.
ENTRY_FILES = {
    "ddp": "train_ddp.py",
    "fsdp": "train_fsdp.py",
    "deepspeed": "train_deepspeed.py",
    "horovod": "train_horovod.py",
    "torchft": "train_torchft.py",
}


@cache
def read_trainer_file(name: str) -> str:
    """The text of one shipped file."""
    return files("crosszone.deploy.trainer").joinpath(name).read_text("utf-8")


@cache
def collect_trainer_files(framework: str) -> dict[str, str]:
    """Path -> text of the training program, which is `train.py` in every bundle; empty for Megatron-LM."""
    entry = ENTRY_FILES.get(framework)
    if entry is None:
        return {}
    imported = sorted(_collect_imports(entry, set()))
    return {"train.py": read_trainer_file(entry)} | {name: read_trainer_file(name) for name in imported}


def _collect_imports(name: str, collected: set[str]) -> set[str]:
    """Shipped files that a file imports, directly or not."""
    folder = files("crosszone.deploy.trainer")
    for node in ast.walk(parse_source(read_trainer_file(name))):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            modules = [node.module]
        for module in modules:
            path = f"{module}.py"
            if "." not in module and path not in collected and folder.joinpath(path).is_file():
                collected.add(path)
                _collect_imports(path, collected)
    return collected


# ---- settings.json ----

SETTINGS_FILE = "settings.json"


def build_trainer_settings(launch: Launch) -> dict[str, Any]:
    """Everything the trainer reads."""
    predictor, job = launch.predictor, launch.scenario.job
    settings, placement = launch.settings, predictor.placed.placement
    located = placement.locate_ranks(predictor.placed.cluster)
    zones = list(dict.fromkeys(located["zone"].tolist()))
    node_of = {rank: agent.node for agent in launch.agents for rank in agent.ranks}
    training = settings.training.model_dump(mode="json")
    # A short run would end before the warm-up does.
    training["warmup_steps"] = min(training["warmup_steps"], launch.steps // 10)
    expected = launch.prediction
    return {
        "version": 1,
        "name": launch.scenario.name,
        "framework": launch.framework,
        "requires": load_framework(launch.framework).list_requirements(launch),
        "zones": [predictor.placed.cluster.zones[zone].name for zone in zones],
        "model": launch.scenario.model.model_dump(mode="json"),
        "job": {
            "seq_len": job.seq_len,
            "global_batch": job.global_batch,
            "steps": launch.steps,
            "precision": job.precision,
            "fp8_recipe": job.fp8_recipe or "tensorwise",
            "optimizer": job.optimizer,
        },
        "training": training,
        "data": {"path": settings.data, "tokenizer": settings.tokenizer, "init_from": settings.init_from},
        "strategy": _build_strategy(launch),
        "order": list(placement.order),
        "zone_of_rank": [zones.index(zone) for zone in located["zone"].tolist()],
        "node_of_rank": [node_of[rank] for rank in range(placement.ranks)],
        "timeout_minutes": launch.timeout_minutes,
        "predicted": {
            "step_s": expected.step_time_s.model_dump(mode="json"),
            "tokens_per_s": expected.tokens_per_s.model_dump(mode="json"),
            "memory_gib": expected.memory_gib.peak.model_dump(mode="json"),
        },
    }


def render_trainer_settings(launch: Launch) -> str:
    """The file; long lists of numbers stand on one line."""
    return format_json(build_trainer_settings(launch))


def format_json(document: dict[str, Any]) -> str:
    """JSON to read: two levels indented, what lies deeper on one line."""
    parts = []
    for key, value in document.items():
        if isinstance(value, dict) and value:
            inner = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items())
            parts.append(f"  {json.dumps(key)}: {{\n{inner}\n  }}")
        else:
            parts.append(f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _build_strategy(launch: Launch) -> dict[str, Any]:
    predictor, s = launch.predictor, launch.predictor.strategy
    dp = s.dp or 1
    micro_batches = s.micro_batches(launch.scenario.job.global_batch)
    return {
        "tp": s.tp,
        "pp": s.pp,
        "dp": dp,
        "cp": s.cp,
        "ep": s.ep,
        "micro_batch": s.micro_batch,
        "micro_batches": micro_batches,
        "replica_micro_batches": list(s.replica_micro_batches or [micro_batches] * dp),
        "interleave": s.interleave,
        "schedule": s.pipeline_schedule,
        "chunk_layers": list_virtual_stage_layers(predictor.case),
        "zero": s.zero if s.zero is not None else predictor.framework.default_zero,
        "shard_within": s.shard_within,
        "shard_ranks": predictor.placed.shard_ranks,
        "sequence_parallel": s.sequence_parallel,
        "recompute": s.recompute,
        "offload": s.offload,
        "communication": {**s.communication.model_dump(mode="json"), "compression": get_wire_compression(launch)},
        "local_update": None if s.local_update is None else s.local_update.model_dump(mode="json"),
    }
