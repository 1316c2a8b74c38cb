"""Gloo over TCP: what its collectives take, from its protocol.

A receiver first tells the sender that it is ready, so a message costs a round trip, not half of one. An all-reduce is
cut into segments of at most 1 MiB with two in flight. `bytes_per_s` is the payload rate of the slowest hop as one
group sees it: k groups that share a link get 1/k of it each.
"""

from __future__ import annotations

import numpy as np

from crosszone.cost.record import as_floats
from crosszone.cost.tiers import Floats, Numbers, read_figure


def count_gloo_segments(size_bytes: Numbers, ranks: Numbers) -> Floats:
    """Segments an all-reduce is cut into: 1 MiB each at most, two per rank at least, as many for every rank. [T7]"""
    size, n = as_floats(size_bytes), as_floats(ranks)
    segments = np.maximum(np.ceil(size / read_figure("gloo", "segment_bytes")), read_figure("gloo", "in_flight") * n)
    return as_floats(np.ceil(segments / n) * n)


def gloo_all_reduce_s(size_bytes: Numbers, ranks: Numbers, rtt_s: Numbers, bytes_per_s: Numbers) -> Floats:
    """Seconds of Gloo's ring all-reduce, where every hop has this round-trip time and rate. [T8]

    Two phases of I segments, s seconds each on the wire, two in flight: T_i = max(T_(i-1) + s, T_(i-2) + rtt + s). A
    phase ends when its last segment has found room in the socket, that is when the one before is acknowledged. Between
    two ranks the notice of readiness queues behind the rank's own data, so each segment costs s + rtt/2.
    """
    size, n = as_floats(size_bytes), as_floats(ranks)
    rtt = as_floats(rtt_s)
    segments = count_gloo_segments(size, n)
    # a rank keeps one n-th of the segments: its own share
    sent = segments - segments / n
    segment_bytes = size / segments
    wire_s = segment_bytes / as_floats(bytes_per_s)
    arrived = _estimate_arrival_s(sent, wire_s, rtt)
    # the acknowledgement comes back half a round trip later
    before_last = _estimate_arrival_s(sent - 1, wire_s, rtt) + rtt / 2
    acknowledged = np.where(segment_bytes > read_figure("gloo", "eager_bytes"), before_last, 0.0)
    # both rules, for two ranks and for the acknowledgement, were found on the 111 measured all-reduces [T8]
    phase = np.where(n > 2, np.maximum(arrived, acknowledged), sent * (wire_s + rtt / 2))
    return np.where((n > 1) & (size > 0), 2 * phase, 0.0)


def count_gloo_round_trips(size_bytes: Numbers, ranks: Numbers, rtt_s: Numbers, bytes_per_s: Numbers) -> Floats:
    """Round trips that all-reduce pays beside the time its bytes take on the wire, 2 (n - 1) / n of them. [T8]"""
    n, rtt = np.maximum(as_floats(ranks), 1.0), as_floats(rtt_s)
    wire_s = 2 * (n - 1) / n * as_floats(size_bytes) / as_floats(bytes_per_s)
    waits = gloo_all_reduce_s(size_bytes, n, rtt, bytes_per_s) - wire_s
    # `where` works out both sides: without the inner one 0 / 0 warns and leaves nan
    return as_floats(np.where(rtt > 0, np.maximum(waits, 0.0) / np.where(rtt > 0, rtt, 1.0), 0.0))


def gloo_send_s(size_bytes: Numbers, rtt_s: Numbers, bytes_per_s: Numbers) -> Floats:
    """Seconds until a message has arrived whose receiver was waiting for it. [T9]"""
    size = as_floats(size_bytes)
    return as_floats(as_floats(rtt_s) / 2 + size / as_floats(bytes_per_s))


def gloo_turn_s(size_bytes: Numbers, rtt_s: Numbers, bytes_per_s: Numbers) -> Floats:
    """Seconds from one message to the answer's start, where ranks take turns (half a ping-pong). [T9]

    The sender is free only when its data is acknowledged, so a turn takes a round trip at least, unless the message
    fits the smallest socket buffer.
    """
    size, rtt = as_floats(size_bytes), as_floats(rtt_s)
    rendezvous_s = np.where(size > read_figure("gloo", "eager_bytes"), rtt, 0.0)
    return np.maximum(gloo_send_s(size, rtt, bytes_per_s), rendezvous_s)


def gloo_barrier_s(ranks: Numbers, rtt_s: Numbers) -> Floats:
    """Seconds of a barrier: log2 n rounds, each a round trip. [T10]"""
    n = as_floats(ranks)
    return as_floats(np.ceil(np.log2(np.maximum(n, 1.0))) * as_floats(rtt_s))


def gloo_bytes_per_s(rtt_s: Numbers, bytes_per_s: Numbers) -> Floats:
    """Rate a long all-reduce over more than two ranks settles at: two segments per round trip and segment time. [T8]"""
    rate = as_floats(bytes_per_s)
    segment, in_flight = read_figure("gloo", "segment_bytes"), read_figure("gloo", "in_flight")
    return as_floats(np.minimum(rate, in_flight * segment / (as_floats(rtt_s) + segment / rate)))


def _estimate_arrival_s(segments: Floats, wire_s: Floats, rtt: Floats) -> Floats:
    """When the last of so many segments has arrived, two in flight: the recurrence of [T8] solved."""
    pairs = np.floor(segments / 2)
    one_after_the_other = rtt + segments * wire_s
    waiting = np.ceil(segments / 2) * rtt + (pairs + 1) * wire_s
    return np.where(segments > 0, np.maximum(one_after_the_other, waiting), 0.0)
