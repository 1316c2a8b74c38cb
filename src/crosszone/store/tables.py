"""The tables of the newest revision; `migrations/` makes them."""

from __future__ import annotations

from sqlalchemy import Boolean, Column, Float, ForeignKey, Index, Integer, LargeBinary, MetaData, String, Table, Text

METADATA = MetaData()
# Holds the revision; a name of its own, for a PostgreSQL database may be shared with others.
VERSION_TABLE = "crosszone_version"

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


def _make_registry(name: str) -> Table:
    return Table(
        name,
        METADATA,
        Column("id", String(64), primary_key=True),
        Column("created", String(32), nullable=False),
        Column("changed", String(32), nullable=False),
        Column("value", Text, nullable=False),
        Index(f"{name}_by_time", "created", "id"),
    )


ENVIRONMENTS = _make_registry("environments")
DATASETS = _make_registry("datasets")
TRAINING_MODELS = _make_registry("training_models")
MEASURED_LINKS = _make_registry("measured_links")

TASKS = Table(
    "tasks",
    METADATA,
    Column("id", String(64), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("state", String(16), nullable=False),
    Column("created", String(32), nullable=False),
    Column("changed", String(32), nullable=False),
    Column("key", String(200), unique=True),
    Column("request", Text, nullable=False),
    Column("plan", LargeBinary),
    Column("token", String(128)),
    Column("attempt", Integer, nullable=False),
    Column("restarts", Integer, nullable=False),
    Column("stop_asked", Boolean, nullable=False),
    Column("progress", Text, nullable=False),
    Column("notice", Text),
    Column("driver", String(64)),
    Column("driven_until", Float, nullable=False),
    Index("tasks_by_time", "created", "id"),
    Index("tasks_by_state", "state"),
)

TASK_EVENTS = Table(
    "task_events",
    METADATA,
    Column("task", String(64), ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("at", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("about", Text, nullable=False),
)
