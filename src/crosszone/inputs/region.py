"""Region: a named place on Earth with its electricity and its price of sending data."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, Strict

from crosszone.inputs.value import Count, Name, NotNegative, Positive, Prose, Value


class Region(Value):
    """A place: coordinates, and what depends on them."""

    name: Name = "custom"
    """The provider's own name, e.g. us-east-1, europe-west1, cn-beijing."""
    aliases: tuple[Name, ...] = ()
    """Other names it goes by."""
    provider: Name = "custom"
    """aws, gcp, azure, alibaba, ..., or city."""
    place: Prose = ""
    """Where that is."""
    place_zh: Prose = ""
    """Where that is, in Chinese."""
    lat: Annotated[float, Strict(), Field(ge=-90, le=90)]
    """Latitude, degrees."""
    lon: Annotated[float, Strict(), Field(ge=-180, le=180)]
    """Longitude, degrees."""
    carbon_g_per_kwh: NotNegative | None = None
    """Carbon intensity of its grid, g CO2 per kWh; null: not known."""
    egress_usd_per_gb: NotNegative | None = None
    """Price of sending to another region of the provider, $ per GB; null: not known."""
    source: Name | None = None
    """Where the coordinates come from."""
    carbon_source: Name | None = None
    """Where the carbon intensity comes from."""
    egress_source: Name | None = None
    """Where the price comes from."""


def _one_or_more(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class MeasuredPair(Value):
    """What somebody measured between two regions."""

    between: tuple[Name, Name]
    """The two regions."""
    rtt_ms: Positive | None = None
    """Round-trip time, ms."""
    gbps: Positive | None = None
    """Rate of many flows together, Gbit/s, one direction."""
    gbps_back: Positive | None = None
    """The same in the other direction, where it differs."""
    flow_gbps: Positive | None = None
    """Rate of a single flow, Gbit/s."""
    flows: Count | None = None
    """Flows that `gbps` was measured with."""
    source: Annotated[tuple[Name, ...], BeforeValidator(_one_or_more)]
    """Where the figures come from."""
    note: str = ""
    """How they were read."""
