"""Machine: where a function of `run.remote` can be called: here, over ssh, or in an emulated zone.

    machine = Ssh(name="env-1", address="10.0.0.7", user="ml", port=22)
    machine.call("survey.collect_facts", folder="~/crosszone")
    about, data = machine.call("files.read_bytes", folder=folder, name="logs/node.log")

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
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol, TypeVar

from crosszone.errors import MachineError, Notice
from crosszone.run.remote.boot import MARK
from crosszone.run.remote.common import RemoteError

# Modules sent ahead of a request, in an order in which each finds what it imports.
MODULES = ("common", "supervisor", "files", "survey", "link")
# The whole command line: run the program that follows on standard input, its length on the first line.
BOOT = "import sys;exec(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())))"
WAIT_S = 60
CONNECT_S = 10
SSH_FAILED = 255  # Exit status of ssh itself; any other is the remote command's
# Functions that neither fork nor reap children, so that on this machine they are simply called: the supervisor's
# waitpid(-1) would otherwise take the exit statuses of our own children.
_IN_PROCESS = (
    *("supervisor.poll", "files.read_bytes", "link.find_free_port", "files.describe_path"),
    *("survey.read_clock", "link.choose_port", "link.listen_for_probes", "link.probe_port"),
)
_PYTHON = re.compile(r"[A-Za-z0-9_./~+-]+")
MAX_PARALLEL_CALLS = 32  # Machines that are asked at the same time
Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Machine(Protocol):
    """Whoever can be asked to call a function of `run.remote`."""

    @property
    def name(self) -> str:
        """What messages call it."""

    def call(self, function: str, *, payload: bytes = b"", wait_s: float = WAIT_S, **arguments: Any) -> Any:
        """The function's value (with its bytes, where it returns some); `MachineError` when it cannot be had."""


@dataclass(frozen=True, kw_only=True)
class Local:
    """The machine CrossZone itself runs on."""

    name: str = "localhost"

    def call(self, function: str, *, payload: bytes = b"", wait_s: float = WAIT_S, **arguments: Any) -> Any:
        """As `Machine.call`; what forks is called in a process of its own."""
        if function not in _IN_PROCESS:
            return run_request(self.name, [sys.executable, "-c", BOOT], function, payload, wait_s, arguments)
        module, name = function.split(".")
        try:
            return getattr(importlib.import_module(f"crosszone.run.remote.{module}"), name)(**arguments)
        except RemoteError as refusal:
            raise MachineError(Notice(code=refusal.code, params={"machine": self.name, **refusal.details})) from None
        except (OSError, ValueError) as error:  # ValueError: a name or address that no file or host can have
            reason = getattr(error, "strerror", None) or str(error)
            path = str(getattr(error, "filename", None) or "")
            params = {"machine": self.name, "what": function, "path": path, "reason": reason}
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
    def command(self) -> list[str]:
        """The command line, the same for every request."""
        # BatchMode: no password prompt may hang a request. ServerAlive: a dead connection is noticed after 15 s.
        options = {"BatchMode": "yes", "StrictHostKeyChecking": "yes", "ConnectTimeout": str(CONNECT_S)}
        options |= {"ServerAliveInterval": "5", "ServerAliveCountMax": "3", "ClearAllForwardings": "yes"}
        if self.identity:
            options |= {"IdentityFile": self.identity, "IdentitiesOnly": "yes"}
        if self.known_hosts:
            options["UserKnownHostsFile"] = self.known_hosts
        if self.sockets:
            options |= {"ControlMaster": "auto", "ControlPath": f"{self.sockets}/%C", "ControlPersist": "30"}
        # ssh joins its last arguments with blanks and hands them to a shell there, so nothing in it may need quoting.
        if not _PYTHON.fullmatch(self.python):
            raise MachineError(Notice(code="machine_python", value=self.python, params={"machine": self.name}))
        pairs = [part for key, value in options.items() for part in ("-o", f"{key}={value}")]
        login = ["-l", self.user] if self.user else []
        remote = f"{self.python} -c {shlex.quote(BOOT)}"
        return ["ssh", "-T", *pairs, "-p", str(self.port), *login, "--", self.address, remote]

    def call(self, function: str, *, payload: bytes = b"", wait_s: float = WAIT_S, **arguments: Any) -> Any:
        """As `Machine.call`."""
        return run_request(self.name, self.command, function, payload, wait_s + CONNECT_S, arguments)


def run_request(
    name: str, command: Sequence[str], function: str, payload: bytes, wait_s: float, arguments: dict[str, Any]
) -> Any:
    """Run a command, give it the request on standard input, and read the answer."""
    request = pack_request(function, arguments, payload)
    try:
        process = subprocess.run(command, input=request, capture_output=True, timeout=wait_s, check=False)
    except FileNotFoundError:
        params = {"machine": name, "reason": f"{command[0]} is not installed here"}
        raise MachineError(Notice(code="machine_unreachable", params=params)) from None
    except subprocess.TimeoutExpired:
        params = {"machine": name, "what": function, "seconds": f"{wait_s:g}"}
        raise MachineError(Notice(code="machine_silent", params=params)) from None
    _, mark, output = process.stdout.partition(MARK)
    if not mark:
        params = {"machine": name, "reason": _get_last_line(process.stderr) or f"exit status {process.returncode}"}
        code = "machine_unreachable" if process.returncode == SSH_FAILED else "machine_no_answer"
        raise MachineError(Notice(code=code, params=params))
    line, _, data = output.partition(b"\n")
    answer = json.loads(line)
    if "refusal" in answer:
        refusal = answer["refusal"]
        raise MachineError(Notice(code=refusal.pop("code"), params={"machine": name, **refusal}))
    return (answer["value"], data) if "payload" in answer else answer["value"]


def pack_request(function: str, arguments: dict[str, Any], payload: bytes = b"", *more_modules: str) -> bytes:
    """What `BOOT` reads on standard input: the boot module and its length, a header, and a payload."""
    modules = {**read_modules(), **{name: read_module(name) for name in more_modules}}
    header = {"modules": modules, "call": function, "arguments": arguments, "payload": len(payload)}
    boot = read_module("boot").encode()
    return b"%d\n%s%s\n%s" % (len(boot), boot, json.dumps(header).encode(), payload)


def call_each(ask: Callable[[Item], Answer], items: Collection[Item]) -> list[Answer]:
    """The answers for all items, asked side by side; the first failure is raised when all have answered."""
    with ThreadPoolExecutor(max_workers=max(1, min(MAX_PARALLEL_CALLS, len(items)))) as pool:
        return [future.result() for future in [pool.submit(ask, item) for item in items]]


@cache
def read_modules() -> dict[str, str]:
    """The source of the modules that are sent ahead, by name."""
    return {name: read_module(name) for name in MODULES}


def read_module(name: str) -> str:
    """The source of a module of `run.remote`."""
    return (files("crosszone.run.remote") / f"{name}.py").read_text(encoding="utf-8")


def _get_last_line(output: bytes) -> str:
    lines = [line for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
