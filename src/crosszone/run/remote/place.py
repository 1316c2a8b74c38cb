"""Place: a folder as a request names it; `~` is the home of the user there."""

from __future__ import annotations

from pathlib import Path


def place(folder: str | Path) -> Path:
    """The folder, whole."""
    return Path(folder).expanduser().absolute()
