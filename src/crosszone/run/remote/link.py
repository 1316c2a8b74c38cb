"""Link: round-trip time and rate between two machines, measured over TCP; ports and data that a launch needs.

One machine listens (`serve`) while the other connects and sends (`measure`); both know a secret, so that nobody else is
served. The rate is that of the second half of the transfer, when connections have found their speed.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from crosszone.run.remote.place import place
from crosszone.run.remote.refusal import Refusal

PINGS = 12
CHUNK = 256 * 1024
CONNECT_S = 10


def free_port(address: str, port: int = 0) -> dict[str, Any]:
    """A port this machine can listen at; 0: any."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise Refusal("machine_port_taken", address=address, port=port, reason=error.strerror) from None
        return {"port": probe.getsockname()[1]}


def reach(address: str, port: int, wait_s: float = 5) -> dict[str, Any]:
    """Whether a machine answers at a port, even if only by saying that nothing listens there; s it took."""
    begin = time.monotonic()
    try:
        socket.create_connection((address, port), timeout=wait_s).close()
    except ConnectionRefusedError:
        pass
    except OSError as error:
        return {"reached": False, "reason": error.strerror or str(error), "seconds": time.monotonic() - begin}
    return {"reached": True, "reason": None, "seconds": time.monotonic() - begin}


def data(path: str) -> dict[str, Any]:
    """Whether a file or folder is there, and its size in bytes."""
    where = place(path)
    if not where.exists():
        return {"there": False, "bytes": 0}
    files = [where] if where.is_file() else [one for one in where.rglob("*") if one.is_file()]
    return {"there": True, "bytes": sum(one.stat().st_size for one in files), "readable": os.access(where, os.R_OK)}


def digest(path: str) -> dict[str, Any]:
    """Size and SHA-256 of a file, or of the names and checksums of a folder's files, in the order of their names."""
    where = place(path)
    if where.is_file():
        return {"there": True, "bytes": where.stat().st_size, "sha256": _sha256(where)}
    if not where.is_dir():
        return {"there": False, "bytes": 0, "sha256": None}
    files = sorted(one for one in where.rglob("*") if one.is_file())
    whole = hashlib.sha256()
    for one in files:
        whole.update(f"{_sha256(one)}  {one.relative_to(where).as_posix()}\n".encode("utf-8", "surrogateescape"))
    return {"there": True, "bytes": sum(one.stat().st_size for one in files), "sha256": whole.hexdigest()}


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            block = file.read(CHUNK)
            if not block:
                return found.hexdigest()
            found.update(block)


def serve(address: str, port: int, secret: str, streams: int, wait_s: float = 30) -> dict[str, Any]:
    """Answer one `measure`; bytes received and the rate of the second half, bit/s."""
    arrived: list[tuple[float, int]] = []
    with socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as door:
        door.settimeout(wait_s)
        try:
            first = _let_in(door, secret)
            for _ in range(PINGS):
                first.sendall(first.recv(1))
            others = [_let_in(door, secret) for _ in range(streams - 1)]
        except OSError as error:
            raise Refusal("link_unmeasured", address=address, port=port, reason=error.strerror or str(error)) from None
        threads = [threading.Thread(target=_receive, args=(one, arrived)) for one in (first, *others)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    if len(arrived) < 2:
        return {"bytes": 0, "bit_s": None}
    arrived.sort()
    middle = (arrived[0][0] + arrived[-1][0]) / 2
    late = [(when, size) for when, size in arrived if when >= middle]
    took = late[-1][0] - late[0][0]
    rate = sum(size for _, size in late[1:]) * 8 / took if took > 0 else None
    return {"bytes": sum(size for _, size in arrived), "bit_s": rate}


def measure(
    address: str, port: int, secret: str, streams: int, seconds: float, wait_s: float = CONNECT_S
) -> dict[str, Any]:
    """Connect to a `serve`: round-trip times in ms, then send for some seconds."""
    first = _connected(address, port, secret, wait_s)
    times = []
    for _ in range(PINGS):
        begin = time.perf_counter()
        first.sendall(b".")
        if not first.recv(1):
            raise Refusal("link_unmeasured", address=address, port=port, reason="the other end hung up")
        times.append((time.perf_counter() - begin) * 1e3)
    everyone = [first] + [_connected(address, port, secret, wait_s) for _ in range(streams - 1)]
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=_send, args=(one, until)) for one in everyone]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    times = sorted(times[2:])  # the first ones find the way
    return {"rtt_ms": times[len(times) // 2], "rtt_ms_least": times[0], "rtt_ms_most": times[-1]}


def _let_in(door: socket.socket, secret: str) -> socket.socket:
    """The next caller that knows the secret."""
    while True:
        caller, _ = door.accept()
        caller.settimeout(CONNECT_S)
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        said = b""
        while len(said) < len(secret):
            more = caller.recv(len(secret) - len(said))
            if not more:
                break
            said += more
        if said == secret.encode():
            caller.sendall(b"+")
            return caller
        caller.close()


def _connected(address: str, port: int, secret: str, wait_s: float) -> socket.socket:
    """A connection that was let in; the other end may need a moment to listen."""
    until = time.monotonic() + wait_s
    while True:
        try:
            made = socket.create_connection((address, port), timeout=wait_s)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.sendall(secret.encode())
            if made.recv(1) == b"+":
                return made
            made.close()
            reason = "the other end hung up"
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() > until:
            raise Refusal("link_unmeasured", address=address, port=port, reason=reason)
        time.sleep(0.1)


def _send(one: socket.socket, until: float) -> None:
    block = bytes(CHUNK)
    try:
        while time.monotonic() < until:
            one.sendall(block)
    except OSError:
        pass  # what arrived counts
    finally:
        one.close()


def _receive(one: socket.socket, arrived: list[tuple[float, int]]) -> None:
    try:
        while True:
            block = one.recv(CHUNK)
            if not block:
                return
            arrived.append((time.perf_counter(), len(block)))
    except OSError:
        pass
    finally:
        one.close()
