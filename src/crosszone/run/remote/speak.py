"""Speak: a node of a task whose files nobody else can read: what it writes it also tells on standard output.

A line is the name of a file, a tab, and a line of that file; the last one is the name `state` with how it ended. Logs
are told up to a size, metrics always. The node is supervised beside, and ends with whoever started it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from crosszone.run.remote.place import place
from crosszone.run.remote.supervisor import read_state, supervise, write_state

LOGS, OUT, STATE = "logs", "out", "state"
METRICS = "bundle/out/"
PAUSE_S = 0.3
NUMBER = "CROSSZONE_NODE"


class Teller:
    """Tells every whole line of the files of a node once."""

    def __init__(self, root: Path, out: Path, most: int) -> None:
        self.root, self.out, self.left = root, out, most
        self.told: dict[Path, int] = {}

    def tell(self, last: bool = False) -> None:
        """Tell what was written since; `last`: also a line that was not ended."""
        for path in sorted(self.root.glob(LOGS + "/**/*")):
            if path.is_file():
                self.file(path, str(path.relative_to(self.root)), last, bounded=True)
        for path in sorted(self.out.glob("*.jsonl")):
            self.file(path, METRICS + path.name, last, bounded=False)
        sys.stdout.flush()

    def file(self, path: Path, name: str, last: bool, bounded: bool) -> None:
        """Tell the new lines of one file."""
        with open(path, "rb") as file:
            file.seek(self.told.get(path, 0))
            data = file.read()
        whole = data if last else data[: data.rfind(b"\n") + 1]
        self.told[path] = self.told.get(path, 0) + len(whole)
        for line in whole.decode("utf-8", "replace").replace("\r", " ").split("\n")[: None if last else -1]:
            if bounded:
                self.left -= len(line) + 1
                if self.left < 0:
                    continue
            if line or not last:
                sys.stdout.write(name + "\t" + line + "\n")


def run(token: str, port: int, log_mib: float, grace_s: float) -> None:
    """Run the node that this process is to its end, tell what it writes, and end with its exit status."""
    number, here = int(os.environ[NUMBER]), Path.cwd()
    root = place(here / ".crosszone" / f"node-{number:03d}")
    (root / LOGS).mkdir(parents=True, exist_ok=True)
    if not (root / "bundle").exists():
        (root / "bundle").symlink_to(here)
    environment = {"MASTER_PORT": str(port), "PET_LOG_DIR": str(root / LOGS / "ranks"), "PET_TEE": "3"}
    words = ["bash", str(here / "nodes" / f"{number:03d}.sh")]
    sys.stdout.write(STATE + "\t" + json.dumps({"token": token, "state": "running"}) + "\n")
    sys.stdout.flush()
    parent, child = os.getppid(), os.fork()
    if child == 0:
        status = 1
        try:
            ready = os.open(os.devnull, os.O_RDONLY)
            status = supervise(root, token, words, environment, log_mib, grace_s, unseen_s=None, ready=ready)
        finally:
            os._exit(status)
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    teller = Teller(root, here / OUT, int(log_mib * 2**20))
    told_to_end = False
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if (asked or os.getppid() != parent) and not told_to_end:
            told_to_end = True
            os.kill(child, signal.SIGTERM)
        try:
            teller.tell()
        except OSError:  # nobody listens any more
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
            raise SystemExit(1) from None
        time.sleep(PAUSE_S)
    teller.tell(last=True)
    state = read_state(root)
    if state.get("state") != "ended":
        state = {"token": token, "state": "ended", "code": None, "said": "its supervisor was killed"}
        write_state(root, **state)
    sys.stdout.write(STATE + "\t" + json.dumps(state) + "\n")
    sys.stdout.flush()
    code = state.get("code")
    raise SystemExit(1 if code is None else code if code >= 0 else 128 - code)
