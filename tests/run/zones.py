"""Emulated zones for tests: clusters of small nodes, programs that run in them, and a server with its client."""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from crosszone.inputs.cluster import Cluster
from crosszone.inputs.value import parse
from crosszone.run.emulate.network import EmulatedNode, find_problem
from waiting import wait_until

Found = TypeVar("Found")
CLONE_NEWNET = 0x40000000
ROOT = Path(__file__).parents[2]
TRAIN_PYTHON = ROOT / ".venv-train/bin/python"
"""Python with torch."""
can = find_problem()
needs_zones = [
    pytest.mark.cluster,
    pytest.mark.skipif(can is not None, reason=can.message() if can else ""),
]
needs_torch = [
    pytest.mark.framework,
    pytest.mark.skipif(not TRAIN_PYTHON.exists(), reason="no Python with torch: .venv-train is missing"),
]
NODE = {"count": 1, "gpus": 1, "gpu": "a100-80gb-sxm", "nic_gbps": 10}
SLOW = {"gbps": 0.1, "rtt_ms": 20}
"""100 Mbit/s, 20 ms."""


def cluster(links: dict[str, dict[str, Any]], **zone: Any) -> Cluster:
    """Zones of one node each, with links by pair of one-letter names: `cluster({"ab": {"gbps": 1, "rtt_ms": 5}})`."""
    names = sorted(set("".join(links)))
    zones = [{"name": name, "nodes": [NODE], **zone} for name in names]
    return parse(Cluster, {"zones": zones, "links": [{"between": list(pair), **link} for pair, link in links.items()]})


def started(node: EmulatedNode, *words: str, **how: Any) -> subprocess.Popen[str]:
    """A program in a node."""
    return subprocess.Popen([*node.machine.command_prefix, *words], text=True, **how)


@contextmanager
def thread_inside(node: EmulatedNode) -> Iterator[ThreadPoolExecutor]:
    """A thread whose connections begin at a node: networks are a matter of threads, not of processes."""

    def move() -> None:
        with open(f"/proc/{node.machine.pid}/ns/net") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    with ThreadPoolExecutor(max_workers=1, initializer=move) as thread:
        yield thread


class Server:
    """`crosszone serve` in a node, and a client beside it; it may be killed and started again."""

    def __init__(self, node: EmulatedNode, thread: ThreadPoolExecutor, folder: Path, port: int = 8123) -> None:
        self.node, self.thread, self.folder, self.port = node, thread, folder, port
        self.process: subprocess.Popen[str] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def database(self) -> str:
        """What it keeps."""
        return f"sqlite:///{self.folder}/saved.db"

    def start(self) -> None:
        """Start it and wait until it answers."""
        words = [sys.executable, "-m", "crosszone", "serve", "--port", str(self.port), "--db", self.database]
        with (self.folder / "server.log").open("ab") as log:
            self.process = started(self.node, *words, stdout=log, stderr=log, cwd=self.folder)
        wait_until(self._answers)

    def kill(self) -> None:
        """End it as a power cut would; what it started in nodes goes on."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in [int(child) for child in children] or [self.process.pid]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait(20)
        self.process = None

    def close(self) -> None:
        """End it."""
        if self.process is not None:
            self.kill()

    def ask(self, method: str, path: str, body: Any = None, *, status: int | tuple[int, ...] = (200, 201), **headers):
        """The JSON that a request is answered with."""
        code, text = self.thread.submit(self._ask, method, path, body, headers).result()
        allowed = (status,) if isinstance(status, int) else status
        assert code in allowed, f"{method} {path}: {code} {text[:2000]!r}"
        return json.loads(text) if text else None

    def _ask(self, method: str, path: str, body: Any, headers: dict[str, str]) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            all_headers = {"Content-Type": "application/json", **headers}
            connection.request(method, f"/api/v1{path}", None if body is None else json.dumps(body), all_headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "server.log").read_text()[-2000:]
        try:
            return self.thread.submit(self._ask, "GET", "/environments", None, {}).result()[0] == 200
        except OSError:
            return False


def running(word: str) -> list[int]:
    """Processes of this machine, in whatever namespace, that have a word on their command line."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes().split(b"\0"):
                pids.append(int(path.parent.name))
        except OSError:
            continue
    return pids
