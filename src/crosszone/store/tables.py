"""The tables of the newest revision; `migrations/` makes them."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Index, Integer, LargeBinary, MetaData, String, Table, Text

METADATA = MetaData()
VERSION_TABLE = "crosszone_version"
"""Holds the revision; a name of its own, for a PostgreSQL database may be shared with others."""

SCENARIOS = Table(
    "scenarios",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("text", Text, nullable=False),
    Column("created", String(32), nullable=False),
    Column("changed", String(32), nullable=False),
    Index("scenarios_by_time", "created", "id"),
)

RESULTS = Table(
    "results",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("name", String(200), nullable=False),
    Column("note", Text, nullable=False),
    Column("created", String(32), nullable=False),
    Column("scenario", Text),
    Column("way", Text),
    Column("headline", Text, nullable=False),
    Column("document", Text, nullable=False),
    Column("timeline", Text),
    Index("results_by_time", "created", "id"),
)

BUNDLES = Table(
    "bundles",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("framework", String(32), nullable=False),
    Column("launcher", String(32), nullable=False),
    Column("template", Boolean, nullable=False),
    Column("world_size", Integer, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("created", String(32), nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("bundle", LargeBinary, nullable=False),
    Index("bundles_by_time", "created", "id"),
)
