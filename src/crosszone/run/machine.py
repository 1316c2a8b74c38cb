"""Machine: where a function of `run.remote` can be called: here, over ssh, or in an emulated zone.

    machine = Ssh(name="env-1", address="10.0.0.7", user="ml", port=22)
    machine.call("survey.facts", folder="~/crosszone")
    told, data = machine.call("files.read", folder=folder, name="logs/node.log")

The text of the remote modules and the request go through standard input; the command line is the same for every
request, so that nothing a user typed is ever read by a shell or seen in a process list.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

from crosszone.errors import MachineError, Notice
from crosszone.run.remote.boot import MARK
from crosszone.run.remote.refusal import Refusal

# What is sent ahead, in an order in which each finds what it imports.
MODULES = ("refusal", "place", "processes", "supervisor", "files", "survey", "link", "checks")
# All that stands on a command line: run the program that follows on standard input.
BOOT = "import sys;exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
WAIT_S = 60
CONNECT_S = 10
# What neither forks nor waits for children, so that on this machine it is simply called.
_IN_PROCESS = (
    *("supervisor.look", "files.read", "link.free_port", "link.reach", "link.data"),
    *("checks.clock", "checks.port", "checks.door", "checks.knock"),
)
_PYTHON = re.compile(r"[A-Za-z0-9_./~+-]+")


class Machine(Protocol):
    """Whoever can be asked to call a function of `run.remote`."""

    @property
    def name(self) -> str:
        """What messages call it."""

    def call(self, what: str, *, payload: bytes = b"", wait_s: float = WAIT_S, **arguments: Any) -> Any:
        """The function's value (with its bytes, where it returns some); `MachineError` when it cannot be had."""


@dataclass(frozen=True, kw_only=True)
class Local:
    """The machine CrossZone itself runs on."""

    name: str = "localhost"

    def call(self, what: str, *, payload: bytes = b"", wait_s: float = WAIT_S, **arguments: Any) -> Any:
        """As `Machine.call`; what forks is called in a process of its own."""
        if what not in _IN_PROCESS:
            return asked(self.name, [sys.executable, "-c", BOOT], what, payload, wait_s, arguments)
        module, function = what.split(".")
        try:
            return getattr(importlib.import_module(f"crosszone.run.remote.{module}"), function)(**arguments)
        except Refusal as refusal:
            raise MachineError(Notice(code=refusal.code, params={"machine": self.name, **refusal.about})) from None
        except (OSError, ValueError) as error:  # ValueError: a name or address that no file or host can have
            reason = getattr(error, "strerror", None) or str(error)
            path = str(getattr(error, "filename", None) or "")
            params = {"machine": self.name, "what": what, "path": path, "reason": reason}
            raise MachineError(Notice(code="machine_failed", params=params)) from None


@dataclass(frozen=True, kw_only=True)
class Ssh:
    """A machine over ssh, by key; its host key must be known."""

    name: str
    address: str
    user: str | None = None
    port: int = 22
    identity: str | None = None
    """Key file; None: ssh's own choice."""
    known_hosts: str | None = None
    """File of host keys; None: ssh's own."""
    python: str = "python3"
    """Python there, 3.8 or newer."""
    sockets: Path | None = None
    """Folder for the sockets by which requests share one connection; None: each makes its own."""

    @property
    def words(self) -> list[str]:
        """The command line, the same for every request."""
        options = {"BatchMode": "yes", "StrictHostKeyChecking": "yes", "ConnectTimeout": str(CONNECT_S)}
        options |= {"ServerAliveInterval": "5", "ServerAliveCountMax": "3", "ClearAllForwardings": "yes"}
        if self.identity:
            options |= {"IdentityFile": self.identity, "IdentitiesOnly": "yes"}
        if self.known_hosts:
            options["UserKnownHostsFile"] = self.known_hosts
        if self.sockets:
            options |= {"ControlMaster": "auto", "ControlPath": f"{self.sockets}/%C", "ControlPersist": "30"}
        if not _PYTHON.fullmatch(self.python):
            raise MachineError(Notice(code="machine_python", value=self.python, params={"machine": self.name}))
        pairs = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        who = ["-l", self.user] if self.user else []
        remote = f"{self.python} -c {shlex.quote(BOOT)}"
        return ["ssh", "-T", *pairs, "-p", str(self.port), *who, "--", self.address, remote]

    def call(self, what: str, *, payload: bytes = b"", wait_s: float = WAIT_S, **arguments: Any) -> Any:
        """As `Machine.call`."""
        return asked(self.name, self.words, what, payload, wait_s + CONNECT_S, arguments)


def asked(name: str, words: Sequence[str], what: str, payload: bytes, wait_s: float, arguments: dict[str, Any]) -> Any:
    """Run the words, hand them the request on standard input, and read the answer."""
    header = {"modules": modules(), "call": what, "arguments": arguments, "payload": len(payload)}
    boot = _text("boot").encode()
    request = b"%d\n%s%s\n%s" % (len(boot), boot, json.dumps(header).encode(), payload)
    try:
        done = subprocess.run(words, input=request, capture_output=True, timeout=wait_s, check=False)
    except FileNotFoundError:
        params = {"machine": name, "reason": f"{words[0]} is not installed here"}
        raise MachineError(Notice(code="machine_unreachable", params=params)) from None
    except subprocess.TimeoutExpired:
        params = {"machine": name, "what": what, "seconds": f"{wait_s:g}"}
        raise MachineError(Notice(code="machine_silent", params=params)) from None
    _, mark, rest = done.stdout.partition(MARK)
    if not mark:
        params = {"machine": name, "reason": _last_line(done.stderr) or f"exit status {done.returncode}"}
        code = "machine_unreachable" if done.returncode == 255 else "machine_no_answer"
        raise MachineError(Notice(code=code, params=params))
    line, _, data = rest.partition(b"\n")
    told = json.loads(line)
    if "refusal" in told:
        about = told["refusal"]
        raise MachineError(Notice(code=about.pop("code"), params={"machine": name, **about}))
    return (told["value"], data) if "payload" in told else told["value"]


@cache
def modules() -> dict[str, str]:
    """The texts that are sent ahead."""
    return {name: _text(name) for name in MODULES}


def _text(name: str) -> str:
    return (files("crosszone.run.remote") / f"{name}.py").read_text(encoding="utf-8")


def _last_line(output: bytes) -> str:
    lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
