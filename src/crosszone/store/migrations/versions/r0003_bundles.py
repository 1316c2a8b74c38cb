"""Saved bundles."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Bring the tables up to this revision."""
    op.create_table(
        "bundles",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("framework", sa.String(32), nullable=False),
        sa.Column("launcher", sa.String(32), nullable=False),
        sa.Column("template", sa.Boolean, nullable=False),
        sa.Column("world_size", sa.Integer, nullable=False),
        sa.Column("nodes", sa.Integer, nullable=False),
        sa.Column("created", sa.String(32), nullable=False),
        sa.Column("bytes", sa.Integer, nullable=False),
        sa.Column("bundle", sa.LargeBinary, nullable=False),
    )
    op.create_index("bundles_by_time", "bundles", ["created", "id"])
