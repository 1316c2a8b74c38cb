"""Measured link: what was found between two environments, and when."""

from __future__ import annotations

import hashlib

from crosszone.inputs.value import Count, Name, NotNegative, Positive, Value


class MeasuredLink(Value):
    """The way from one environment to another and back."""

    first: Name
    """Environment that sent."""
    second: Name
    """Environment that received."""
    rtt_ms: NotNegative
    """Round-trip time, median, ms."""
    rtt_ms_least: NotNegative
    """The shortest of them."""
    rtt_ms_most: NotNegative
    """The longest of them."""
    gbps: Positive | None = None
    """Rate from the first to the second, Gbit/s of payload; null: it was not measured."""
    gbps_back: Positive | None = None
    """Rate from the second to the first."""
    streams: Count = 1
    """Connections side by side."""
    measured: NotNegative
    """When, seconds since 1970 UTC."""

    @property
    def id(self) -> str:
        """The same for every measurement of this pair."""
        return pair_id(self.first, self.second)


def pair_id(first: str, second: str) -> str:
    """The id of a pair of environments, in either order."""
    return hashlib.sha256("\n".join(sorted((first, second))).encode()).hexdigest()[:32]
