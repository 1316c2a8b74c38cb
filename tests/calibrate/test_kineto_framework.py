"""Traces that PyTorch's own profiler writes, decoded."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from conftest import ROOT
from crosszone.calibrate.kineto import read_kineto
from effort import mostly_long

PYTHON = ROOT / ".venv-train" / "bin" / "python"
pytestmark = [pytest.mark.framework, pytest.mark.slow]
PROGRAM = """
import sys, os, torch, torch.nn as nn, torch.distributed as dist
from torch.utils.checkpoint import checkpoint
from torch.profiler import profile, schedule, ProfilerActivity
torch.set_num_threads(1)
mode, out = sys.argv[1:3]
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(128, 512), nn.Linear(512, 128)
    def forward(self, x):
        return x + self.b(torch.nn.functional.gelu(self.a(x)))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=mode == "reentrant") if "reentrant" in mode else block(x)
        return x
model = Model()
if mode == "ddp":
    dist.init_process_group("gloo")
    out = out.replace(".json", f"-{dist.get_rank()}.json")
    model = nn.parallel.DistributedDataParallel(model)
update = torch.optim.AdamW(model.parameters())
save = lambda p: p.export_chrome_trace(out)
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=3), on_trace_ready=save) as p:
    for _ in range(4):
        model(torch.randn(256, 128, requires_grad=True)).square().mean().backward()
        update.step()
        update.zero_grad()
        p.step()
if mode == "ddp":
    dist.destroy_process_group()
"""


def traced(folder: Path, mode: str) -> list[Path]:
    if not PYTHON.exists():
        pytest.skip("PyTorch (.venv-train) is not installed beside this checkout")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if mode == "ddp" else []
    command = [str(PYTHON), *launch, str(program), mode, str(folder / "trace.json")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return sorted(folder.glob("trace*.json"))


@pytest.mark.parametrize("mode", mostly_long(["plain", "reentrant", "non-reentrant"], "non-reentrant"))
def test_a_step_on_a_cpu_has_its_passes_and_recomputes_only_under_checkpoints(tmp_path, mode):
    found = read_kineto(traced(tmp_path, mode))
    assert [one.step for one in found.steps] == [1, 2, 3]
    for one in found.steps:
        assert sum(one.phases_s.values()) == pytest.approx(one.seconds)
        assert all(one.phases_s[name] > 0 for name in ("forward", "backward", "optimizer"))
        assert ("recompute" in one.phases_s) == (mode != "plain")
    assert "kineto_no_device" in [notice.code for notice in found.notices]


@pytest.mark.long
def test_replicas_over_gloo_show_their_gradients(tmp_path):
    found = read_kineto(traced(tmp_path, "ddp"))
    assert [lane["id"] for lane in found.timeline["lanes"] if lane["group"] == "stages"] == ["rank-0", "rank-1"]
    assert found.meta["messages_s"]["data"] > 0
    assert found.figures["gpus"] == 2
    for one in found.steps:
        assert sum(one.phases_s.values()) == pytest.approx(one.seconds)
