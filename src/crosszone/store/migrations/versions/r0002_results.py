"""Saved results."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Bring the tables up to this revision."""
    op.create_table(
        "results",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("note", sa.Text, nullable=False),
        sa.Column("created", sa.String(32), nullable=False),
        sa.Column("scenario", sa.Text),
        sa.Column("way", sa.Text),
        sa.Column("headline", sa.Text, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
        sa.Column("timeline", sa.Text),
    )
    op.create_index("results_by_time", "results", ["created", "id"])
