"""Checks: what a machine is asked before a task starts there: its state, its clock and its ports."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import time
from pathlib import Path
from typing import Any

from crosszone.run.remote.place import place
from crosszone.run.remote.refusal import Refusal
from crosszone.run.remote.supervisor import read_state, stop
from crosszone.run.remote.survey import disk_free_gib, gpus, software

# Where ports are chosen: below those that systems give to connections that go out.
FIRST_PORT, LAST_PORT = 20000, 32000
TRIES = 200
ANSWER = b"+"
TRIALS, OLD_S = "trials", 900  # Folder of trials; age after which nobody waits for one


def state(folder: str, python: str) -> dict[str, Any]:
    """Room and software where a task will run; `unwritable`: why nothing can be written there."""
    root = place(folder)
    unwritable = None
    sweep(root / TRIALS)
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe = root / f".crosszone-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        unwritable = error.strerror or str(error)
    return {
        "host": socket.gethostname(),
        "disk_free_gib": disk_free_gib(folder),
        "unwritable": unwritable,
        "software": software(python),
        **gpus(),
    }


def sweep(trials: Path) -> None:
    """Take away trials whose driver was killed: what they left runs no longer, and lies there for good."""
    for one in trials.glob("*"):
        with contextlib.suppress(OSError, Refusal):
            if time.time() - one.stat().st_mtime < OLD_S:
                continue
            token = read_state(one).get("token")
            if token:
                stop(str(one), token, grace_s=0)
            shutil.rmtree(str(one))


def clock() -> dict[str, Any]:
    """What time it is here, seconds since 1970 UTC."""
    return {"clock": time.time()}


def port(wanted: int | None = None, fixed: bool = False) -> dict[str, Any]:
    """A port at which this machine can listen at all its addresses: the wanted one if it is free, else another."""
    if wanted is not None:
        reason = _taken(wanted)
        if reason is None:
            return {"port": wanted}
        if fixed:
            raise Refusal("machine_port_taken", address="*", port=wanted, reason=reason)
    for _ in range(TRIES):
        found = random.randint(FIRST_PORT, LAST_PORT)
        if _taken(found) is None:
            return {"port": found}
    raise Refusal("machine_port_taken", address="*", port=f"{FIRST_PORT}-{LAST_PORT}", reason="-")


def door(port: int, secret: str, callers: int, open_s: float) -> dict[str, Any]:
    """Listen at a port for a while and answer whoever knows the secret; how many did."""
    heard, until = 0, time.monotonic() + open_s
    with _listening(port) as listener:
        while heard < callers:
            left = until - time.monotonic()
            if left <= 0:
                break
            listener.settimeout(left)
            try:
                caller, _ = listener.accept()
            except OSError:
                break
            with caller, contextlib.suppress(OSError):
                caller.settimeout(min(left, 5))
                if _received(caller, len(secret)) == secret.encode():
                    caller.sendall(ANSWER)
                    heard += 1
    return {"heard": heard}


def knock(address: str, port: int, secret: str, try_s: float) -> dict[str, Any]:
    """Whether the door of another machine answers; the door may need a moment to open."""
    until, reason = time.monotonic() + try_s, ""
    while time.monotonic() < until:
        begin = time.monotonic()
        try:
            with socket.create_connection((address, port), timeout=max(0.1, until - begin)) as made:
                made.sendall(secret.encode())
                if made.recv(1) == ANSWER:
                    return {"reached": True, "reason": None, "ms": round((time.monotonic() - begin) * 1e3, 3)}
                reason = "another program answers there"
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(0.1)
    return {"reached": False, "reason": reason, "ms": None}


def _listening(port: int) -> socket.socket:
    """A listener at all addresses of this machine."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("0.0.0.0", port))


def _taken(port: int) -> str | None:
    """Why a port cannot be listened at; None: it can."""
    try:
        with socket.create_server(("0.0.0.0", port)):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _received(caller: socket.socket, size: int) -> bytes:
    said = b""
    while len(said) < size:
        more = caller.recv(size - len(said))
        if not more:
            break
        said += more
    return said
