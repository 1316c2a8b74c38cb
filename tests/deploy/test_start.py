"""Real starts: a bundle made by the command line is started as its README says, two processes on the CPU.

Five steps, the loss falls, the metrics parse; started again it goes on at the step after the last.
"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from crosszone.schedule.measured_lines import read_metrics
from deploy.conftest import scenario

pytestmark = [pytest.mark.framework, pytest.mark.slow]
LIMIT_S = 900
"""DeepSpeed compiles an operator at its first start."""

TWO_GPUS = {
    "ddp": ("ddp", {"dp": 2}),
    "ddp-fp16-hook": ("ddp", {"dp": 2, "communication": {"compression": "fp16"}}),
    "fsdp": ("fsdp", {"dp": 2}),
    "fsdp-tp": ("fsdp", {"tp": 2, "dp": 1, "sequence_parallel": True}),
    "fsdp-pipeline": ("fsdp", {"pp": 2, "dp": 1}),
    "deepspeed-1": ("deepspeed", {"dp": 2, "zero": 1}),
    "deepspeed-2": ("deepspeed", {"dp": 2, "zero": 2}),
    "deepspeed-3": ("deepspeed", {"dp": 2, "zero": 3}),
    "deepspeed-pipeline": ("deepspeed", {"pp": 2, "dp": 1, "zero": 0}),
}
TWO_ZONES = {
    "ddp-zones": ("ddp", {"dp": 2}),
    "fsdp-hsdp": ("fsdp", {"dp": 2, "shard_within": "zone"}),
    "ddp-local-sgd": ("ddp", {"dp": 2, "local_update": {"steps": 2}}),
    "torchft-diloco": ("torchft", {"dp": 2, "local_update": {"steps": 2}}),
}


def start(folder: Path, python: Path, *arguments: str, tiny: bool = True) -> str:
    """Start every node's script with what follows it; the output of the first node."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "MASTER_PORT": str(port),
        "TORCH_EXTENSIONS_DIR": str(python.parent.parent / "torch-extensions"),
        "OMP_NUM_THREADS": "1",
    }
    scripts = sorted((folder / "nodes").glob("*.sh"))
    started = [
        subprocess.Popen(
            ["bash", str(script), *(["--tiny"] if tiny else []), *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
            start_new_session=True,
        )
        for script in scripts
    ]  # fmt: skip
    try:
        told = [one.communicate(timeout=LIMIT_S)[0] for one in started]
    finally:
        for one in started:
            if one.poll() is None:
                os.killpg(one.pid, 9)
    assert [one.returncode for one in started] == [0] * len(started), "\n".join(told)
    return told[0]


def losses(folder: Path) -> dict[int, float]:
    """Loss of each step, from the metrics of the last stage, which read as one trace."""
    found = sorted((folder / "out").rglob("metrics-stage-*.jsonl"))
    mine = [path for path in found if path.parent == found[0].parent]  # zones of torchft write apart
    texts = [path.read_text("utf-8") for path in mine]
    trace, rows = read_metrics(texts)
    assert trace.kind == "measured"
    assert {span.kind for span in trace.spans} >= {"forward", "backward", "optimizer"}
    assert all(step.end_s > step.start_s for step in trace.steps)
    return {row.step: row.loss for row in rows if row.loss is not None}


@pytest.mark.parametrize("name", [*TWO_GPUS, *TWO_ZONES])
def test_a_bundle_starts_trains_and_goes_on(name, deploy, train_python):
    framework, strategy = (TWO_GPUS | TWO_ZONES)[name]
    zones, gpus = (2, 1) if name in TWO_ZONES else (1, 2)
    job = {"precision": "fp32"} | ({} if framework == "torchft" else {"framework": framework})
    fields = scenario(zones=zones, gpus=gpus, strategy={"micro_batch": 2, **strategy}, job=job)
    folder = deploy(fields, "--framework", framework, "--set", "training.lr=0.003", "--set", "training.warmup_steps=0")
    told = start(folder, train_python, "--steps", "5")
    assert "step 5" in told
    first = losses(folder)
    assert sorted(first) == [1, 2, 3, 4, 5]
    assert first[5] < first[1]
    again = start(folder, train_python, "--steps", "7")
    assert "step 6" in again
    assert "step 5  loss" not in again
    assert sorted(losses(folder)) == [1, 2, 3, 4, 5, 6, 7]
