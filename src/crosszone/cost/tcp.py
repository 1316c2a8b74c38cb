"""TCP between zones: what one connection carries, what several carry together, and how a cold one starts.

Rates are bytes/s of payload, times seconds; all arguments may be arrays.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from crosszone.cost.record import as_floats
from crosszone.cost.tiers import Floats, Numbers, figure

Congestion = Literal["reno", "cubic", "bbr"]


def default_window_bytes() -> float:
    """Payload one connection keeps in flight on a host with Linux defaults. [T1]"""
    return window_bytes(figure("window", "buffer_bytes"))


def window_bytes(buffer_bytes: float) -> float:
    """Payload that fits a socket buffer; the rest of it is the kernel's bookkeeping. [T1]"""
    return buffer_bytes * figure("window", "payload_share")


def window_bytes_per_s(rtt_s: Numbers, window: Numbers | None = None) -> Floats:
    """Rate a window allows: it is sent once per round trip. [T1]"""
    in_flight = default_window_bytes() if window is None else window
    return _per(in_flight, rtt_s)


def loss_bytes_per_s(rtt_s: Numbers, loss: Numbers, congestion: Congestion = "cubic") -> Floats:
    """Rate random loss (a share of packets, 0 to 1) allows one connection; inf without loss. [T2]

    Reno: 1.22 packets a round trip / sqrt(loss). CUBIC: its own response where that is more (long fat paths), else as
    Reno. BBR does not slow down for loss below its limit; above it, as Reno.
    """
    rtt, p = as_floats(rtt_s), as_floats(loss)
    safe = np.where(p > 0, p, 1.0)
    packets = figure("mathis") / np.sqrt(safe)
    if congestion == "cubic":
        c, kept = figure("cubic", "packets_per_s3"), figure("cubic", "kept_after_loss")
        response = (c * (3 + kept) / (4 * (1 - kept))) ** 0.25
        packets = np.maximum(packets, response * (rtt / safe) ** 0.75)
    rate = _per(packets * figure("packet", "payload_bytes"), rtt)
    unhurt = p <= (figure("bbr", "loss_limit") if congestion == "bbr" else 0.0)
    return np.where(unhurt, np.inf, rate)


def flow_bytes_per_s(
    rtt_s: Numbers,
    loss: Numbers = 0.0,
    congestion: Congestion = "cubic",
    window: Numbers | None = None,
    cap_bytes_per_s: Numbers = np.inf,
) -> Floats:
    """Rate of one connection on an idle link: the least of window, loss and the provider's cap. [T3]"""
    allowed = np.minimum(window_bytes_per_s(rtt_s, window), loss_bytes_per_s(rtt_s, loss, congestion))
    return as_floats(np.minimum(allowed, as_floats(cap_bytes_per_s)))


def aggregate_bytes_per_s(link_bytes_per_s: Numbers, flows: Numbers, flow: Numbers, loss: Numbers = 0.0) -> Floats:
    """Rate of several connections together: n times one, at most the link less what is lost and sent again. [T4]"""
    link = as_floats(link_bytes_per_s) * (1 - as_floats(loss))
    return as_floats(np.minimum(link, as_floats(flows) * as_floats(flow)))


def slow_start_s(size_bytes: Numbers, rtt_s: Numbers, bytes_per_s: Numbers, idle_s: Numbers = np.inf) -> Floats:
    """Seconds the first message of a burst takes longer than on a warm connection. [T6]

    The window starts at 10 packets and doubles each round trip until it fills the path. `idle_s`: silence before the
    message; an idle window is halved once per retransmission timeout, down to those 10 packets (inf: a new connection).
    """
    size, rtt = as_floats(size_bytes), as_floats(rtt_s)
    rate, idle = as_floats(bytes_per_s), as_floats(idle_s)
    path = np.maximum(rate * rtt, 1.0)
    initial = figure("window", "initial_packets") * figure("packet", "payload_bytes")
    halvings = np.floor(np.minimum(idle / (rtt + figure("window", "retransmit_floor_s")), 64.0))
    start = np.minimum(np.maximum(path * 0.5**halvings, initial), path)
    doublings = np.ceil(np.log2(path / start))
    needed = np.ceil(np.log2(size / start + 1)) - 1
    rounds = np.maximum(np.minimum(doublings, needed), 0.0)
    return as_floats(np.maximum(rounds * rtt - start * (2**rounds - 1) / rate, 0.0))


def _per(amount: Numbers, seconds: Numbers) -> Floats:
    """Amount over seconds; no time at all, or next to none, is no limit."""
    value, time = as_floats(amount), as_floats(seconds)
    with np.errstate(over="ignore"):
        return np.where(time > 0, value / np.where(time > 0, time, 1.0), np.inf)
