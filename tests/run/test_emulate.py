"""Training between emulated zones: links are felt by collectives, and a run is measured against its prediction."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from crosszone.cost.gloo import gloo_all_reduce_s
from crosszone.run.emulate.network import Network
from run.zones import SLOW, TRAIN_PYTHON, cluster, needs_torch, needs_zones, started
from waiting import wait_until

pytestmark = [*needs_zones, *needs_torch, pytest.mark.slow]

COLLECTIVES = """
import json, os, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
groups = {"ab": dist.new_group([0, 1]), "ac": dist.new_group([0, 2]), "bc": dist.new_group([1, 2])}
found = {}
for name, group in groups.items():
    for size in (4096, 4 * 2**20):
        dist.barrier()
        if "abc"[dist.get_rank()] not in name:
            continue
        data = torch.ones(size // 4)
        took = []
        for _ in range(4):
            dist.barrier(group)
            start = time.perf_counter()
            dist.all_reduce(data, group=group)
            took.append(time.perf_counter() - start)
        found[f"{name} {size}"] = min(took)
dist.barrier()
print(json.dumps(found), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def collective_s():
    """Seconds of an all-reduce of 4 KiB and 4 MiB between zones that differ in one thing."""
    links = {"ab": SLOW, "ac": {"gbps": 0.1, "rtt_ms": 100}, "bc": {"gbps": 0.02, "rtt_ms": 20}}
    with Network.from_cluster(cluster(links)) as network:
        shared = {"MASTER_ADDR": network.nodes[0].address, "MASTER_PORT": "29500", "WORLD_SIZE": "3"}
        ranks = [
            started(
                node,
                *("env", *(f"{key}={value}" for key, value in {**shared, "RANK": rank}.items())),
                *("GLOO_SOCKET_IFNAME=wan0", str(TRAIN_PYTHON), "-c", COLLECTIVES),
                stdout=subprocess.PIPE,
            )
            for rank, node in enumerate(network.nodes)
        ]
        reports = [json.loads(rank.communicate(timeout=120)[0]) for rank in ranks]
    return {key: max(notice.get(key, 0.0) for notice in reports) for key in reports[0] | reports[1]}


@pytest.mark.long
def test_added_latency_is_visible_in_collective_time(collective_s):
    assert collective_s["ac 4096"] - collective_s["ab 4096"] == pytest.approx(
        float(gloo_all_reduce_s(4096, 2, 0.1, 12e6) - gloo_all_reduce_s(4096, 2, 0.02, 12e6)), rel=0.35
    )


@pytest.mark.long
def test_a_bandwidth_cap_is_visible_in_collective_time(collective_s):
    # Two ranks exchange all of it: 4 MiB at 20 Mbit/s take 1.7 s, at 100 Mbit/s a fifth of it and some round trips.
    assert collective_s["bc 4194304"] == pytest.approx(4 * 2**20 * 8 / 20e6, rel=0.25)
    assert collective_s["ab 4194304"] == pytest.approx(
        float(gloo_all_reduce_s(4 * 2**20, 2, 0.02, 100e6 / 8 * 0.965)), rel=0.35
    )


SCENARIO = """
name: two cities
model: llama-2-7b
job: {seq_len: 4096, global_batch: 512}
cluster:
  zones:
  - {name: beijing, nodes: [{count: 4, gpus: 8, gpu: a100-80gb-sxm, nic_gbps: 100}]}
  - {name: shanghai, nodes: [{count: 4, gpus: 8, gpu: a100-80gb-sxm, nic_gbps: 100}]}
  links: [{between: [beijing, shanghai], gbps: 0.1, rtt_ms: 20}]
strategy: {tp: 8, dp: 8, micro_batch: 1}
"""


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text(SCENARIO)
    return path


def emulate(scenario, tmp_path, *words: str, **how) -> subprocess.Popen[str]:
    """The command, its temporary files in a folder of their own."""
    (tmp_path / "temporary").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "crosszone", "emulate", str(scenario), "--tiny", "--python", str(TRAIN_PYTHON)]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    return subprocess.Popen([*command, *words], text=True, env=environment, stdout=subprocess.PIPE, **how)


def test_a_scenario_is_measured_against_its_prediction(scenario, tmp_path):
    words = ("--framework", "ddp", "--json", "--keep", str(tmp_path / "kept"), "--steps", "8")
    command = emulate(scenario, tmp_path, *words)
    result = json.loads(command.communicate()[0])
    assert command.returncode == 0, result
    assert result["steps"] == 8
    assert result["framework"] == "ddp"
    assert result["last_loss"] < result["first_loss"] - 0.1
    assert result["tokens_per_s"] > 0
    parts = {part["name"]: part for part in result["parts"]}
    # 4 MB of gradients each way at 100 Mbit/s take a third of a second: what is predicted is the wire, not the CPU.
    assert 0.3 < parts["communication"]["predicted_s"] < 0.6
    assert [(link["sender"], link["gbps"], link["rtt_ms"]) for link in result["links"]] == [
        ("beijing", 0.1, 20),
        ("shanghai", 0.1, 20),
    ]
    for link in result["links"]:
        assert link["bytes_per_step"] == pytest.approx(link["predicted_bytes_per_step"], rel=0.2)
    codes = {notice["code"] for notice in result["notices"]}
    assert {"emulate_tiny", "emulate_cpu", "emulate_split"} <= codes
    assert (tmp_path / "kept/tasks/emulated/node-001/logs/node.log").exists()
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.long
def test_a_step_takes_as_long_as_predicted(scenario, tmp_path):
    """On a machine that has nothing else to do."""
    result = json.loads(emulate(scenario, tmp_path, "--framework", "ddp", "--json").communicate()[0])
    (communication,) = [part for part in result["parts"] if part["name"] == "communication"]
    assert communication["ratio"] == pytest.approx(1, abs=0.25)
    assert result["step"]["ratio"] == pytest.approx(1, abs=0.25)


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_an_emulation_that_is_cut_off(scenario, tmp_path, how):
    command = emulate(scenario, tmp_path, "--framework", "ddp", "--steps", "5000", stderr=subprocess.PIPE)
    folder = str(tmp_path / "temporary")
    wait_until(lambda: inside(folder))
    command.send_signal(how)
    command.communicate(timeout=60)
    assert command.returncode in (-how, 130)
    wait_until(lambda: not inside(folder))
    wait_until(lambda: list((tmp_path / "temporary").iterdir()) == [])


def inside(folder: str) -> list[int]:
    """Processes that were started for something in a folder: trainers, and the network between them."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if path.name != str(os.getpid()) and folder.encode() in os.readlink(path / "cwd").encode():
                pids.append(int(path.name))
        except OSError:
            continue
    return pids
