"""ray_job.py on a real Ray: one machine that claims four GPUs is the only node of the cluster."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT
from deploy.launching import STUB, bundle, fields, group, node_rank, stubbed
from deploy.test_slurm import free_ports
from waiting import wait_until

RAY = ROOT / ".venv-ray" / "bin"
HANGS = '#!/usr/bin/env bash\nexec 2>&1\ncase "$*" in *\'--node-rank 1 \'*) sleep 2; echo broken; exit 7 ;; esac\necho $$ >"$PIDS/$$"\nsleep 300\n'
pytestmark = [
    pytest.mark.long,
    pytest.mark.cluster,
    pytest.mark.skipif(not (RAY / "ray").exists(), reason=".venv-ray is not installed; ./test installs it"),
]


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    """A head of its own, ended by its own process group: `ray stop` would end every Ray of the machine.

    It may listen beyond loopback, so it has a token, made here for it alone, and a home of its own.
    """
    folder = tmp_path_factory.mktemp("ray")
    for name in ("pids", "home"):
        (folder / name).mkdir()
    log, (port,) = folder / "head.log", free_ports(1)
    env = {key: value for key, value in stubbed(folder / "stubs").items() if not key.startswith("RAY_")}
    env |= {"HOME": str(folder / "home"), "PIDS": str(folder / "pids"), "PYTHONUNBUFFERED": "1"}
    env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [RAY / "ray", "start", "--head", "--block", f"--port={port}", "--num-cpus=4", "--num-gpus=4"]
    command += ["--include-dashboard=false", "--object-store-memory=80000000", "--log-color=false"]
    with log.open("wb") as to:
        head = subprocess.Popen(command, env=env, stdout=to, stderr=to, start_new_session=True)
    try:
        wait_until(lambda: "Ray runtime started" in log.read_text())
        address = re.search(r"Local node IP: (\S+)", log.read_text())[1]
        yield folder, env | {"RAY_ADDRESS": f"{address}:{port}"}, address
    finally:
        head.terminate()
        try:
            head.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(head.pid, 9)
            head.wait()


def started(folder: Path, env, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What `ray job submit` runs in the bundle's folder."""
    command = [RAY / "python", "ray_job.py", *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)


def made(folder: Path, address: str, gpus: int = 2) -> Path:
    """Two nodes on the one machine: by its address and by its name."""
    hosts = [{"address": address}, {"address": socket.gethostname()}]
    bundle("ray", fields({"a": [group(2, gpus, hosts=hosts)]})).write(folder / "bundle")
    return folder / "bundle"


def test_every_node_runs_its_script_on_its_machine(tmp_path, ray):
    stubs, env, address = ray
    stubbed(stubs / "stubs", STUB)
    done = started(made(tmp_path, address), env, "--steps", "it's $(touch pwned)")
    assert done.returncode == 0, done.stdout + done.stderr
    for number in range(2):
        mine = "\n".join(line for line in done.stdout.splitlines() if f"[{number:03d}]" in line)
        assert node_rank(mine) == number
        assert f"master={address}:29500" in mine
        assert "word=it\\'s\\ \\$\\(touch\\ pwned\\)" in mine
    assert "all 2 nodes finished" in done.stdout
    assert not list(tmp_path.rglob("pwned"))


def test_one_failing_node_ends_the_others_and_the_job(tmp_path, ray):
    stubs, env, address = ray
    stubbed(stubs / "stubs", HANGS)
    done = started(made(tmp_path, address), env)
    assert done.returncode == 7, done.stdout + done.stderr
    assert "node 001 failed (7)" in done.stderr
    (left,) = (stubs / "pids").iterdir()
    assert not Path(f"/proc/{left.name}").exists()


def test_machines_that_are_not_there_are_named(tmp_path, ray):
    _, env, address = ray
    folder = made(tmp_path, address)
    nodes = json.loads((folder / "nodes.json").read_text())
    nodes[1]["address"] = "10.255.255.1"
    (folder / "nodes.json").write_text(json.dumps(nodes))
    done = started(folder, env)
    assert done.returncode == 1
    assert "node 001 (10.255.255.1) is none of the cluster's" in done.stderr


def test_gpus_that_are_not_free_are_waited_for_only_so_long(tmp_path, ray):
    _, env, address = ray
    done = started(made(tmp_path, address, gpus=8), env | {"CROSSZONE_RAY_WAIT_S": "3"})
    assert done.returncode == 1
    assert "do not have these free at once" in done.stderr
