"""Bundles for launchers in one line, and stubs that tell what a node's script would have started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from crosszone.deploy.bundle import Bundle
from crosszone.deploy.deploy import build_bundle
from crosszone.deploy.launch import Launch
from crosszone.deploy.settings import LaunchSettings
from crosszone.inputs.scenario import read_scenario

TINY = {"layers": 4, "hidden": 256, "heads": 4, "ffn_hidden": 688, "vocab": 1000}
STUB = """#!/usr/bin/env bash
# Says what torchrun was asked for, one line a word.
{ printf '%s\\n' "master=$MASTER_ADDR:$MASTER_PORT" "pid=$$"; for word in "$@"; do printf 'word=%q\\n' "$word"; done; }
"""


def group(count: int, gpus: int, *, gpu: str = "a100-80gb-sxm", hosts: list[dict[str, str]] | None = None):
    return {"count": count, "gpus": gpus, "gpu": gpu, "nic_gbps": 100} | ({"hosts": hosts} if hosts else {})


def fields(zones: dict[str, list[dict[str, Any]]], *, name: str = "two zones") -> dict[str, Any]:
    """DDP over all GPUs, one sample each."""
    gpus = sum(one["count"] * one["gpus"] for groups in zones.values() for one in groups)
    cluster = {"zones": [{"name": key, "nodes": groups} for key, groups in zones.items()]}
    if len(zones) > 1:
        cluster["default_link"] = {"gbps": 10, "rtt_ms": 20}
    return {
        "name": name,
        "model": TINY,
        "job": {"seq_len": 128, "global_batch": gpus},
        "cluster": cluster,
        "strategy": {"dp": gpus, "micro_batch": 1},
    }


UNEQUAL = {"a": [group(2, 2)], "b": [group(1, 2), group(1, 1, gpu="h100-80gb-sxm")]}
"""Three runs of equal nodes: 000 and 001, 002, 003."""


def bundle(launcher: str, given: dict[str, Any], **settings: Any) -> Bundle:
    return build_bundle(read_scenario(given), framework="ddp", launcher=launcher, settings=LaunchSettings(**settings))


def launch_of(given: dict[str, Any], **settings: Any) -> Launch:
    """The launch that a bundle is made from."""
    from unittest import mock

    with mock.patch("crosszone.deploy.deploy.assemble_bundle", lambda launch, _: launch):
        return build_bundle(
            read_scenario(given), framework="ddp", launcher="slurm", settings=LaunchSettings(**settings)
        )  # type: ignore[return-value]


def stubbed(folder: Path, text: str = STUB) -> dict[str, str]:
    """An environment in which torchrun is a stub."""
    folder.mkdir(parents=True, exist_ok=True)
    stub = folder / "torchrun"
    stub.write_text(text)
    stub.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def node_rank(output: str) -> int:
    """The node rank that torchrun was asked for."""
    words = [line.split("word=", 1)[1] for line in output.splitlines() if "word=" in line]
    return int(words[words.index("--node-rank") + 1])
