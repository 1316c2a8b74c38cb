"""Scenarios in one line."""

from __future__ import annotations

from typing import Any

from crosszone import Scenario, Strategy, load_scenario
from crosszone.inputs.rules import Case

A100 = "a100-80gb-sxm"


def zone(name: str, gpus: int = 8, count: int = 1, gpu: str = A100, **more: Any) -> dict[str, Any]:
    return {"name": name, "nodes": [{"count": count, "gpus": gpus, "gpu": gpu}], **more}


def fields(**changes: Any) -> dict[str, Any]:
    """The fields of a small good scenario, with some of them changed."""
    good: dict[str, Any] = {
        "name": "test",
        "model": "llama-2-7b",
        "job": {"seq_len": 4096, "global_batch": 64},
        "cluster": {"zones": [zone("a")]},
    }
    return good | changes


def scenario(**changes: Any) -> Scenario:
    return load_scenario(fields(**changes))


def case(strategy: dict[str, Any], **changes: Any) -> Case:
    return scenario(strategy=strategy, **changes).build_case()


def settled(**degrees: Any) -> Strategy:
    return Strategy(**degrees).settle_dp(room=8, global_batch=64)
