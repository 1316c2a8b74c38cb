"""Scheduled: a node of a task as a process of a scheduler's job, supervised in the foreground: its scheduler ends it.

Slurm: the node's folder lies on a file system that CrossZone reads too, so its files are the answer
(`run_shared_node`). Whether it lives Slurm says, so it holds no lock: its file system may have none.

Kubernetes and Ray: nobody else can read the node's files, so it also reports on standard output what it writes
(`run_reporting_node`). A line is the name of a file, a tab, and a line of that file; the last one is the name `state`
with how it ended. Logs are reported up to a size, metrics always. It ends with whoever started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crosszone.run.remote.common import expand_path
from crosszone.run.remote.supervisor import STOP_FILE, read_state, supervise, write_state

RANK_VARIABLE = "SLURM_PROCID"  # Number of the process in the job: with one a node, that of the node
NODE_VARIABLE = "CROSSZONE_NODE"
LOGS, OUT, STATE_NAME = "logs", "out", "state"
METRICS_PREFIX = "bundle/out/"
PAUSE_S = 0.3


def run_shared_node(nodes: Sequence[dict[str, Any]], token: str, log_mib: float, grace_s: float) -> None:
    """Run the node that this process is to its end, and end with its exit status."""
    node = nodes[int(os.environ[RANK_VARIABLE])]
    root = expand_path(node["folder"])
    (root / LOGS).mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        (root / STOP_FILE).unlink()
    write_state(root, token=token, state="starting", started=time.time())
    ready = os.open(os.devnull, os.O_RDONLY)  # nobody waits for this supervisor to be ready
    supervise(root, token, node["command"], node["environment"], log_mib, grace_s, unseen_s=None, ready=ready)
    raise SystemExit(exit_status(read_state(root).get("code")))


def run_reporting_node(token: str, port: int, log_mib: float, grace_s: float) -> None:
    """Run the node that this process is to its end, report what it writes, and end with its exit status."""
    number, bundle = int(os.environ[NODE_VARIABLE]), Path.cwd()
    root = expand_path(bundle / ".crosszone" / f"node-{number:03d}")
    (root / LOGS).mkdir(parents=True, exist_ok=True)
    if not (root / "bundle").exists():
        (root / "bundle").symlink_to(bundle)
    environment = {"MASTER_PORT": str(port), "PET_LOG_DIR": str(root / LOGS / "ranks"), "PET_TEE": "3"}
    command = ["bash", str(bundle / "nodes" / f"{number:03d}.sh")]
    sys.stdout.write(STATE_NAME + "\t" + json.dumps({"token": token, "state": "running"}) + "\n")
    sys.stdout.flush()
    # The supervisor is a child, so that this process stays free to report while it waits.
    parent, child = os.getppid(), os.fork()
    if child == 0:
        status = 1
        try:
            ready = os.open(os.devnull, os.O_RDONLY)
            status = supervise(root, token, command, environment, log_mib, grace_s, unseen_s=None, ready=ready)
        finally:
            os._exit(status)
    signals = []
    signal.signal(signal.SIGTERM, lambda *_: signals.append(1))
    reporter = OutputReporter(root, bundle / OUT, int(log_mib * 2**20))
    is_stopping = False
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        # A changed parent: whoever started us was killed, and nobody else would end the node.
        if (signals or os.getppid() != parent) and not is_stopping:
            is_stopping = True
            os.kill(child, signal.SIGTERM)
        try:
            reporter.report()
        except OSError:  # nobody listens any more
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
            raise SystemExit(1) from None
        time.sleep(PAUSE_S)
    reporter.report(last=True)
    state = read_state(root)
    if state.get("state") != "ended":
        state = {"token": token, "state": "ended", "code": None, "said": "its supervisor was killed"}
        write_state(root, **state)
    sys.stdout.write(STATE_NAME + "\t" + json.dumps(state) + "\n")
    sys.stdout.flush()
    raise SystemExit(exit_status(state.get("code")))


def exit_status(code: int | None) -> int:
    """The exit status to end with; a signal, which is negative, as a shell tells it: 128 and its number."""
    return 1 if code is None else code if code >= 0 else 128 - code


class OutputReporter:
    """Reports every complete line of the files of a node once."""

    def __init__(self, root: Path, out: Path, max_log_bytes: int) -> None:
        self.root, self.out, self.remaining_log_bytes = root, out, max_log_bytes
        self.reported_bytes: dict[Path, int] = {}

    def report(self, last: bool = False) -> None:
        """Report what was written since; `last`: also a line that was not ended."""
        for path in sorted(self.root.glob(LOGS + "/**/*")):
            if path.is_file():
                self.report_file(path, str(path.relative_to(self.root)), last, bounded=True)
        for path in sorted(self.out.glob("*.jsonl")):
            self.report_file(path, METRICS_PREFIX + path.name, last, bounded=False)
        sys.stdout.flush()

    def report_file(self, path: Path, name: str, last: bool, bounded: bool) -> None:
        """Report the new lines of one file."""
        with open(path, "rb") as file:
            file.seek(self.reported_bytes.get(path, 0))
            data = file.read()
        complete = data if last else data[: data.rfind(b"\n") + 1]
        self.reported_bytes[path] = self.reported_bytes.get(path, 0) + len(complete)
        for line in complete.decode("utf-8", "replace").replace("\r", " ").split("\n")[: None if last else -1]:
            if bounded:
                self.remaining_log_bytes -= len(line) + 1
                if self.remaining_log_bytes < 0:
                    continue
            if line or not last:
                sys.stdout.write(name + "\t" + line + "\n")
