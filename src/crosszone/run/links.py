"""Links: what lies between two environments, measured by their machines.

link = measured(("env-1", first, its_machine), ("env-2", second, its_machine))
link.rtt_ms, link.gbps, link.gbps_back
"""

from __future__ import annotations

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from crosszone.errors import MachineError, Notice
from crosszone.inputs.environment import MeasuredLink
from crosszone.run.machine import Machine

SECONDS, STREAMS = 3.0, 4
"""How long each direction is measured, with how many connections."""


class End(NamedTuple):
    """One end of a link."""

    id: str
    address: str | None
    """Address the other end reaches it by."""
    machine: Machine


def measured(first: End, second: End, *, seconds: float = SECONDS, streams: int = STREAMS) -> MeasuredLink:
    """Round-trip time and rates of a link in both directions; `MachineError` says which end failed and why."""
    there = _one_way(first, second, seconds, streams)
    back = _one_way(second, first, seconds, streams)
    return MeasuredLink(
        first=first.id,
        second=second.id,
        rtt_ms=there["rtt_ms"],
        rtt_ms_least=min(there["rtt_ms_least"], back["rtt_ms_least"]),
        rtt_ms_most=max(there["rtt_ms_most"], back["rtt_ms_most"]),
        gbps=_gbps(there),
        gbps_back=_gbps(back),
        streams=streams,
        measured=time.time(),
    )


def _one_way(sender: End, receiver: End, seconds: float, streams: int) -> dict[str, Any]:
    """The sender connects while the receiver listens."""
    if receiver.address is None:
        raise MachineError(Notice(code="environment_no_address", field="address", value=receiver.id))
    port = receiver.machine.call("link.free_port", address=receiver.address)["port"]
    asked = {"address": receiver.address, "port": port, "secret": secrets.token_hex(16), "streams": streams}
    with ThreadPoolExecutor(max_workers=1) as beside:
        listening = beside.submit(receiver.machine.call, "link.serve", wait_s=seconds + 60, **asked)
        try:
            sent: dict[str, Any] = sender.machine.call("link.measure", seconds=seconds, wait_s=seconds + 60, **asked)
        except MachineError:
            listening.exception()  # it gives up by itself; what the sender says is nearer to the cause
            raise
        return {**listening.result(), **sent}


def _gbps(way: dict[str, Any]) -> float | None:
    return None if not way["bit_s"] else round(way["bit_s"] / 1e9, 6)
