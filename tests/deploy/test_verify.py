"""The check of a node finds what is wrong with it, and says which thing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from crosszone.deploy.deploy import build_bundle
from crosszone.deploy.settings import LaunchSettings
from crosszone.inputs.scenario import read_scenario
from deploy.conftest import scenario

SMI = """#!/bin/sh
for n in {numbers}; do echo "NVIDIA A100-SXM4-80GB, {mib}"; done
"""


@pytest.fixture
def folder(tmp_path):
    """A bundle of two nodes, a port that is free, and an nvidia-smi that shows two GPUs."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    data = tmp_path / "tokens.bin"
    data.write_bytes(b"\0" * 100)
    settings = LaunchSettings(port=port, data=str(data))
    fields = scenario(zones=2, strategy={"dp": 4}, job={"framework": "ddp"})
    build_bundle(read_scenario(fields), settings=settings).write(tmp_path / "bundle")
    gpus(tmp_path, 2)
    return tmp_path / "bundle"


def gpus(tmp_path, count, mib=81_920):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(SMI.format(numbers=" ".join(map(str, range(count))), mib=mib))
    tool.chmod(0o755)


def told(folder, *arguments):
    environment = os.environ | {"PATH": f"{folder.parent}:{os.environ['PATH']}"}
    command = [sys.executable, "verify.py", "--json", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    rows = {row["what"]: (row["level"], row["told"]) for row in json.loads(done.stdout)}
    failed = [what for what, (level, _) in rows.items() if level == "failed"]
    assert done.returncode == (1 if failed else 0)
    return rows, [what for what in failed if what != "torch"]  # this Python has none


def test_a_good_node_passes(folder):
    rows, failed = told(folder, "--node", "0")
    assert failed == []
    assert rows["GPUs"] == ("ok", "2 here, 2 needed")
    assert rows["interface"] == ("ok", "lo")


def test_the_node_is_found_by_its_address(folder):
    assert told(folder)[0]["address"][1].startswith("127.0.0.1 ")


def test_a_missing_package_is_named(folder):
    assert told(folder, "--node", "0")[0]["torch"][0] == "failed"


def test_too_few_gpus_fail(folder):
    gpus(folder.parent, 1)
    assert told(folder, "--node", "0")[1] == ["GPUs"]


def test_gpus_with_too_little_memory_fail(folder):
    gpus(folder.parent, 2, mib=1024)
    assert told(folder, "--node", "0")[1] == ["GPU 0", "GPU 1"]


def test_a_port_in_use_fails_on_the_first_node(folder):
    port = json.loads((folder / "bundle.json").read_text())["port"]
    with socket.socket() as taken:
        taken.bind(("", port))
        taken.listen()
        assert told(folder, "--node", "0")[1] == [f"port {port}"]
        assert told(folder, "--node", "1")[0][f"first node 127.0.0.1:{port}"] == ("ok", "connected")


def test_a_wrong_interface_fails(folder):
    nodes = (folder / "nodes.json").read_text()
    (folder / "nodes.json").write_text(nodes.replace('"interface": "lo"', '"interface": "ib7"'))
    assert told(folder, "--node", "0")[1] == ["interface"]


def test_missing_data_fails(folder):
    (folder.parent / "tokens.bin").unlink()
    assert told(folder, "--node", "0")[1] == ["data path"]


def test_a_package_that_the_plan_needs_more_of_is_named(folder):
    told_before = json.loads((folder / "settings.json").read_text())
    assert told_before["requires"] == {}
    needs_more = {"pytest": "<1.0", "yaml": "", "no_such_package": ""}
    (folder / "settings.json").write_text(json.dumps(told_before | {"requires": needs_more}))
    rows, failed = told(folder, "--node", "0")
    assert failed == ["pytest<1.0", "no_such_package"]
    assert "pip install 'pytest<1.0'" in rows["pytest<1.0"][1]
    assert rows["yaml"][0] == "ok"
