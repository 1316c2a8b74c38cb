"""Bundles started for real: each node's script in a process of its own, on this machine."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path

from crosszone.schedule.measured import read_metrics
from processes import descendants

STEP = re.compile(r"^step (\d+)  loss ([\d.]+)", re.MULTILINE)


class Run:
    """The nodes of a bundle under way."""

    def __init__(self, nodes: list[subprocess.Popen[str]]) -> None:
        self.nodes = nodes
        self.output = ""

    def wait_for(self, words: str) -> None:
        """Read the first node's output until it says this."""
        for line in self.nodes[0].stdout:
            self.output += line
            if line.startswith(words):
                return
        raise AssertionError(f"{words!r} was not said:\n{self.output}")

    def kill_a_rank(self) -> None:
        """SIGKILL the last process of the last node that trains; its launcher is left to notice."""
        ranks = [pid for pid in descendants(self.nodes[-1].pid) if b"RANK=" in environment(pid)]
        os.kill(max(ranks), signal.SIGKILL)

    def end(self) -> list[int]:
        """Wait for all nodes; their exit statuses."""
        for node in self.nodes:
            rest = node.communicate()[0]
            self.output += rest if node is self.nodes[0] else ""
        return [node.returncode for node in self.nodes]

    @property
    def losses(self) -> dict[int, float]:
        """Loss of each step as printed."""
        return {int(step): float(loss) for step, loss in STEP.findall(self.output)}


def environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


@contextmanager
def start(folder: Path, python: Path, *arguments: str, tiny: bool = True):
    """Start every node's script with what follows it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = os.environ | {
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "MASTER_PORT": str(port),
        "TORCH_EXTENSIONS_DIR": str(python.parent.parent / "torch-extensions"),
        "OMP_NUM_THREADS": "1",
    }
    nodes = [
        subprocess.Popen(
            ["bash", str(script), *(["--tiny"] if tiny else []), *arguments],
            env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
            start_new_session=True,
        )
        for script in sorted((folder / "nodes").glob("*.sh"))
    ]  # fmt: skip
    try:
        yield Run(nodes)
    finally:
        for node in nodes:
            if node.poll() is None:
                os.killpg(node.pid, signal.SIGKILL)
            node.wait()
            node.stdout.close()


def train(folder: Path, python: Path, *arguments: str, **more) -> Run:
    """Start and wait for a good end."""
    with start(folder, python, *arguments, **more) as run:
        assert set(run.end()) == {0}, run.output
    return run


def measured_losses(folder: Path) -> dict[int, float]:
    """Loss of each step, from the metrics of the last stage, which read as one trace."""
    found = sorted((folder / "out").rglob("metrics-stage-*.jsonl"))
    mine = [path for path in found if path.parent == found[0].parent]  # zones of torchft write apart
    trace, rows = read_metrics([path.read_text("utf-8") for path in mine])
    assert trace.kind == "measured"
    assert {span.kind for span in trace.spans} >= {"forward", "backward", "optimizer"}
    assert all(step.end_s > step.start_s for step in trace.steps)
    return {row.step: row.loss for row in rows if row.loss is not None}
