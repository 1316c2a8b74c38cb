"""Link: round-trip time and rate between two machines, measured over TCP; the ports that a launch needs.

One machine listens (`receive_link_test`) while the other connects and sends (`send_link_test`); both know a secret, so
that nobody else is served. The rate is that of the second half of the transfer, when connections have found their
speed.

The port at which ranks will meet is chosen on one machine (`choose_port`), which listens there (`listen_for_probes`)
while every other machine tries to reach it (`probe_port`).
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from typing import Any

from crosszone.run.remote.common import RemoteError

PINGS = 12
CHUNK = 256 * 1024
CONNECT_S = 10
WARM_PINGS = 2  # First pings that do not count: they wait for ARP, routes and the other end's thread
ANSWER = b"+"  # What a listener sends to a caller that knows the secret
# Where ports are chosen: below those that systems give to outgoing connections (32768 and up on Linux).
FIRST_PORT, LAST_PORT = 20000, 32000
PORT_TRIES = 200


def find_free_port(address: str, port: int = 0) -> dict[str, Any]:
    """A port this machine can listen at; 0: any."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            raise RemoteError("machine_port_taken", address=address, port=port, reason=error.strerror) from None
        return {"port": probe.getsockname()[1]}


def receive_link_test(address: str, port: int, secret: str, streams: int, wait_s: float = 30) -> dict[str, Any]:
    """Answer one `send_link_test`; bytes received and the rate of the second half, bit/s."""
    arrivals: list[tuple[float, int]] = []
    with socket.create_server(
        (address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET
    ) as listener:
        listener.settimeout(wait_s)
        try:
            first = wait_for_caller(listener, secret)
            for _ in range(PINGS):
                first.sendall(first.recv(1))
            connections = [wait_for_caller(listener, secret) for _ in range(streams - 1)]
        except OSError as error:
            raise RemoteError(
                "link_unmeasured", address=address, port=port, reason=error.strerror or str(error)
            ) from None
        threads = [threading.Thread(target=receive_blocks, args=(caller, arrivals)) for caller in (first, *connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if len(arrivals) < 2:
        return {"bytes": 0, "bit_s": None}
    arrivals.sort()
    middle = (arrivals[0][0] + arrivals[-1][0]) / 2
    second_half = [(when, size) for when, size in arrivals if when >= middle]
    duration_s = second_half[-1][0] - second_half[0][0]
    rate = sum(size for _, size in second_half[1:]) * 8 / duration_s if duration_s > 0 else None
    return {"bytes": sum(size for _, size in arrivals), "bit_s": rate}


def send_link_test(
    address: str, port: int, secret: str, streams: int, seconds: float, wait_s: float = CONNECT_S
) -> dict[str, Any]:
    """Connect to a `receive_link_test`: round-trip times in ms, then send for some seconds."""
    first = open_connection(address, port, secret, wait_s)
    times = []
    for _ in range(PINGS):
        begin = time.perf_counter()
        first.sendall(b".")
        if not first.recv(1):
            raise RemoteError("link_unmeasured", address=address, port=port, reason="the other end hung up")
        times.append((time.perf_counter() - begin) * 1e3)
    connections = [first] + [open_connection(address, port, secret, wait_s) for _ in range(streams - 1)]
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=send_until, args=(connection, until)) for connection in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times = sorted(times[WARM_PINGS:])
    return {"rtt_ms": times[len(times) // 2], "rtt_ms_least": times[0], "rtt_ms_most": times[-1]}


def wait_for_caller(listener: socket.socket, secret: str) -> socket.socket:
    """The next caller that knows the secret."""
    while True:
        caller, _ = listener.accept()
        caller.settimeout(CONNECT_S)
        caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # Nagle would hold a one-byte ping back
        if receive_exactly(caller, len(secret)) == secret.encode():
            caller.sendall(ANSWER)
            return caller
        caller.close()


def open_connection(address: str, port: int, secret: str, wait_s: float) -> socket.socket:
    """A connection that was let in; the other end may need a moment to listen."""
    until = time.monotonic() + wait_s
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=wait_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(secret.encode())
            if connection.recv(1) == ANSWER:
                return connection
            connection.close()
            reason = "the other end hung up"
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() > until:
            raise RemoteError("link_unmeasured", address=address, port=port, reason=reason)
        time.sleep(0.1)


def send_until(connection: socket.socket, until: float) -> None:
    """Send as fast as it goes until a moment of the monotonic clock."""
    block = bytes(CHUNK)
    try:
        while time.monotonic() < until:
            connection.sendall(block)
    except OSError:
        pass  # what arrived counts
    finally:
        connection.close()


def receive_blocks(connection: socket.socket, arrivals: list[tuple[float, int]]) -> None:
    """Note when each block came and its size, until the sender hangs up."""
    try:
        while True:
            block = connection.recv(CHUNK)
            if not block:
                return
            arrivals.append((time.perf_counter(), len(block)))
    except OSError:
        pass
    finally:
        connection.close()


def choose_port(preferred: int | None = None, fixed: bool = False) -> dict[str, Any]:
    """A port at which this machine can listen at all its addresses: the wanted one if it is free, else another."""
    if preferred is not None:
        reason = why_port_taken(preferred)
        if reason is None:
            return {"port": preferred}
        if fixed:
            raise RemoteError("machine_port_taken", address="*", port=preferred, reason=reason)
    for _ in range(PORT_TRIES):
        candidate = random.randint(FIRST_PORT, LAST_PORT)
        if why_port_taken(candidate) is None:
            return {"port": candidate}
    raise RemoteError("machine_port_taken", address="*", port=f"{FIRST_PORT}-{LAST_PORT}", reason="-")


def listen_for_probes(port: int, secret: str, callers: int, open_s: float) -> dict[str, Any]:
    """Listen at a port for some seconds and answer callers that know the secret; how many did."""
    answered, until = 0, time.monotonic() + open_s
    with open_listener(port) as listener:
        while answered < callers:
            remaining_s = until - time.monotonic()
            if remaining_s <= 0:
                break
            listener.settimeout(remaining_s)
            try:
                caller, _ = listener.accept()
            except OSError:
                break
            with caller, contextlib.suppress(OSError):
                caller.settimeout(min(remaining_s, 5))
                if receive_exactly(caller, len(secret)) == secret.encode():
                    caller.sendall(ANSWER)
                    answered += 1
    return {"heard": answered}


def probe_port(address: str, port: int, secret: str, try_s: float) -> dict[str, Any]:
    """Whether another machine answers at a port; its `listen_for_probes` may need a moment to begin."""
    until, reason = time.monotonic() + try_s, ""
    while time.monotonic() < until:
        begin = time.monotonic()
        try:
            with socket.create_connection((address, port), timeout=max(0.1, until - begin)) as connection:
                connection.sendall(secret.encode())
                if connection.recv(1) == ANSWER:
                    return {"reached": True, "reason": None, "ms": round((time.monotonic() - begin) * 1e3, 3)}
                reason = "another program answers there"
        except OSError as error:
            reason = error.strerror or str(error)
        time.sleep(0.1)
    return {"reached": False, "reason": reason, "ms": None}


def open_listener(port: int) -> socket.socket:
    """A listener at all addresses of this machine."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("0.0.0.0", port))


def why_port_taken(port: int) -> str | None:
    """Why a port cannot be listened at; None: it can."""
    try:
        with socket.create_server(("0.0.0.0", port)):
            return None
    except OSError as error:
        return error.strerror or str(error)


def receive_exactly(caller: socket.socket, size: int) -> bytes:
    """That many bytes, or fewer where the caller hangs up."""
    received = b""
    while len(received) < size:
        block = caller.recv(size - len(received))
        if not block:
            break
        received += block
    return received
