"""Spoken: a node that is known only by what it says (`remote/speak.py`), and the files by which it is started.

files_of(work, token, port, pythons)      speak/000.sh, ..., speak/request: to go with the bundle
Spoken.heard(lines).sight(0)              its files, and how it ended, from its lines
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files as resources
from typing import Any

from crosszone.run.machine import BOOT, read_modules
from crosszone.run.remote.scheduled import METRICS_PREFIX, NODE_VARIABLE, STATE_NAME
from crosszone.run.runners.runner import Sight
from crosszone.run.runners.supervised import STOP_S
from crosszone.run.work import Work, WorkNode

SPOKEN_MIB = 8.0  # Of a node's logs; a scheduler that hands them on keeps little more
FOLDER = "speak"


@dataclass(frozen=True)
class Spoken:
    """What one node has said."""

    files: dict[str, bytes] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def heard(cls, lines: Iterable[str]) -> Spoken:
        """From its lines; what is no line of `speak` belongs to its log."""
        held: dict[str, list[str]] = {}
        state: dict[str, Any] = {}
        for line in lines:
            name, tab, rest = line.partition("\t")
            if tab and name == STATE_NAME:
                with contextlib.suppress(ValueError):
                    state = json.loads(rest)
            elif tab and name.startswith(("logs/", METRICS_PREFIX)):
                held.setdefault(name, []).append(rest)
            else:
                held.setdefault("logs/node.log", []).append(line)
        return cls({name: "".join(f"{one}\n" for one in said).encode() for name, said in held.items()}, state)

    def sight(self, number: int, *, lives: bool, reason: str | None = None) -> Sight:
        """What was seen of it; `lives`: its scheduler says that it runs."""
        files = {name: len(data) for name, data in self.files.items()}
        if self.state.get("state") == "ended":
            code, stopped = self.state.get("code"), bool(self.state.get("stopped"))
            said = self.state.get("said") or reason
            return Sight(number=number, state="ended", code=code, stopped=stopped, files=files, reason=said)
        state = "lost" if not lives else "running" if self.state else "starting"
        return Sight(number=number, state=state, files=files, reason=reason)

    def read(self, name: str, offset: int, most: int) -> tuple[dict[str, Any], bytes]:
        """Bytes of one of its files, as `Runner.read`."""
        data = self.files.get(name, b"")
        begin = max(0, len(data) + offset) if offset < 0 else min(offset, len(data))
        return {"size": len(data), "offset": begin}, data[begin : begin + most]


def files_of(work: Work, token: str, port: int, python: str) -> dict[str, bytes]:
    """What is added to the bundle: a script for each node, and the request that all of them read."""
    return {
        f"{FOLDER}/request": _request(token, port),
        **{f"{FOLDER}/{node.number:03d}.sh": _script(node, python).encode() for node in work.nodes},
    }


def counted_once(nodes: list[Spoken]) -> list[Spoken]:
    """Metrics of a folder that several nodes share are those of the first that tells them."""
    seen: set[str] = set()
    made = []
    for one in nodes:
        kept = {
            name: data for name, data in one.files.items() if not name.startswith(METRICS_PREFIX) or name not in seen
        }
        seen |= set(kept)
        made.append(Spoken(kept, one.state))
    return made


def _script(node: WorkNode, python: str) -> str:
    lines = ["#!/usr/bin/env bash", 'if [ -n "${1:-}" ]; then export MASTER_ADDR=$1; fi']
    lines += [
        f"export {NODE_VARIABLE}={node.number}",
        f"exec {shlex.quote(python)} -c {shlex.quote(BOOT)} <{FOLDER}/request",
    ]
    return "\n".join(lines) + "\n"


def _request(token: str, port: int) -> bytes:
    arguments = {"token": token, "port": port, "log_mib": SPOKEN_MIB, "grace_s": STOP_S}
    header = {
        "modules": {**read_modules(), "scheduled": _text("scheduled")},
        "call": "scheduled.run_reporting_node",
        "arguments": arguments,
    }
    boot = _text("boot").encode()
    return b"%d\n%s%s\n" % (len(boot), boot, json.dumps(header).encode())


def _text(module: str) -> str:
    return (resources("crosszone.run.remote") / f"{module}.py").read_text(encoding="utf-8")
