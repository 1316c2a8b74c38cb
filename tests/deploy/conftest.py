"""Fixtures of the deploy tests: small scenarios, bundles made by the command line, and the frameworks' own environments."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from commands import call
from conftest import ROOT

TINY = {"layers": 4, "hidden": 256, "heads": 4, "ffn_hidden": 688, "vocab": 1000}


def environment_python(name: str) -> Path:
    """Python of an environment that `./test` makes; its tests are skipped where there is none."""
    path = ROOT / name / "bin" / "python"
    if not path.exists():
        pytest.skip(f"{name} is not installed; ./test installs it")
    return path


@pytest.fixture(scope="session")
def train_python() -> Path:
    return environment_python(".venv-train")


@pytest.fixture(scope="session")
def check_python() -> Path:
    return environment_python(".venv-check")


def scenario(zones: int = 1, gpus: int = 2, *, model=None, job=None, strategy=None, hosts: bool = True, **more):
    """A scenario of equal zones with one node each, at addresses of this machine."""

    def node(number: int):
        found = {"count": 1, "gpus": gpus, "gpu": "a100-80gb-sxm", "nic_gbps": 100}
        return found | ({"hosts": [{"address": f"127.0.0.{number + 1}", "interface": "lo"}]} if hosts else {})

    names = "abcdefgh"[:zones]
    cluster = {"zones": [{"name": name, "nodes": [node(number)]} for number, name in enumerate(names)]}
    if zones > 1:
        cluster["default_link"] = {"gbps": 10, "rtt_ms": 20}
    found = {
        "name": "tiny",
        "model": model or TINY,
        "job": {"seq_len": 128, "global_batch": 8, **(job or {})},
        "cluster": cluster,
        **more,
    }
    return found | ({"strategy": strategy} if strategy is not None else {})


@pytest.fixture
def deploy(tmp_path):
    """Make a bundle by the command line, as a user would; returns its folder."""

    def made(fields, *arguments: str, status: int = 0) -> Path:
        file, folder = tmp_path / "scenario.yaml", tmp_path / "bundle"
        file.write_text(yaml.safe_dump(fields, allow_unicode=True), encoding="utf-8")
        done = call("deploy", file, "-o", folder, "--force", *arguments)
        assert done.returncode == status, done.stdout + done.stderr
        return folder

    return made
