"""Runs that were never run: a plan of four GPUs in two cities, and steps as it predicts them with noise and faults."""

from __future__ import annotations

import random
from functools import cache

from crosszone.deploy.deploy import build_bundle
from crosszone.deploy.settings import LaunchSettings
from crosszone.inputs.document import dump_yaml
from crosszone.inputs.scenario import parse_scenario
from crosszone.predict.answer import answer as predicted
from crosszone.predict.prediction import Prediction
from crosszone.run.measurements import group_predicted_parts
from crosszone.run.work import TaskWork

BATCH, SEQ = 32, 1024


@cache
def work(steps: int = 5000, *, zones: int = 2, gbps: float = 0.5) -> TaskWork:
    """Four GPUs that average their gradients, half of them in another city, over a line that is the narrow place."""
    names = ("beijing", "shanghai")[:zones]
    groups = [
        {"name": zone, "nodes": [{"count": 1, "gpus": 4 // zones, "gpu": "a100-80gb-sxm", "hosts": [
            {"name": zone, "address": f"10.0.0.{number}"}]}]}
        for number, zone in enumerate(names, 1)
    ]  # fmt: skip
    links = [{"between": list(names), "gbps": gbps, "rtt_ms": 25}] if zones > 1 else []
    fields = {
        "name": "two cities",
        "model": "gpt2-small",
        "job": {"seq_len": SEQ, "global_batch": BATCH, "precision": "bf16", "optimizer": "adamw"},
        "cluster": {"zones": groups, "links": links},
        "strategy": {"dp": 4},
    }
    loaded = parse_scenario(dump_yaml(fields), "x")
    bundle = build_bundle(loaded, "en", framework="ddp", settings=LaunchSettings(steps=steps))
    plan = parse_scenario(next(file.text for file in bundle.files if file.path == "plan.yaml"), "plan.yaml")
    prediction = predicted(plan, "en").prediction.model_dump(mode="json")
    return TaskWork(scenario=plan.scenario.to_yaml(), bundle=bundle, prediction=prediction, slowdown=None, nodes=())


def rows(
    of: TaskWork, count: int, *, seed: int = 1, noise: float = 0.05, slow=None, since: int = 10**9, start: int = 0
):
    """Steps as predicted, each part with noise of its own; from `since` on some parts so many times as long."""
    expected = group_predicted_parts(Prediction.model_validate(of.prediction), of.bundle.framework)
    chance = random.Random(seed)
    measured = []
    for step in range(1, count + 1):
        parts = {
            f"{name}_s": document.seconds * chance.uniform(1 - noise, 1 + noise) for name, document in expected.items()
        }
        for name, times in (slow or {}).items():
            parts[f"{name}_s"] *= times if step >= since else 1.0
        seconds = sum(parts.values())
        measured.append(
            {"step": step, "start": start, "device": "A100", "step_s": seconds, "parts": parts, "loss": 9.0 / step}
            | {"tokens": BATCH * SEQ, "tokens_per_s": BATCH * SEQ / seconds, "memory_gib": 6.0}
            | {"checkpoint_s": 2.0 if step % 50 == 1 and step > 1 else 0.0, "between_s": 0.01, "ended_unix_s": None}
        )
    return measured
