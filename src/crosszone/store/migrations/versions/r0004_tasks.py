"""Environments, datasets, models, measured links, and training tasks with their events."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Bring the tables up to this revision."""
    for name in ("environments", "datasets", "training_models", "measured_links"):
        op.create_table(
            name,
            sa.Column("id", sa.String(64), primary_key=True),
            sa.Column("created", sa.String(32), nullable=False),
            sa.Column("changed", sa.String(32), nullable=False),
            sa.Column("value", sa.Text, nullable=False),
        )
        op.create_index(f"{name}_by_time", name, ["created", "id"])
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created", sa.String(32), nullable=False),
        sa.Column("changed", sa.String(32), nullable=False),
        sa.Column("key", sa.String(200), unique=True),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("plan", sa.LargeBinary),
        sa.Column("token", sa.String(128)),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("restarts", sa.Integer, nullable=False),
        sa.Column("stop_asked", sa.Boolean, nullable=False),
        sa.Column("progress", sa.Text, nullable=False),
        sa.Column("notice", sa.Text),
        sa.Column("driver", sa.String(64)),
        sa.Column("driven_until", sa.Float, nullable=False),
    )
    op.create_index("tasks_by_time", "tasks", ["created", "id"])
    op.create_index("tasks_by_state", "tasks", ["state"])
    op.create_table(
        "task_events",
        sa.Column("task", sa.String(64), sa.ForeignKey("tasks.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("at", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("about", sa.Text, nullable=False),
    )
