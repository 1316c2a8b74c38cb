"""Common: what all modules here share: paths as a request writes them, and the error of a machine that cannot do it."""

from __future__ import annotations

from pathlib import Path


class RemoteError(Exception):
    """Raised on the machine, shown to the user by whoever sent the request."""

    def __init__(self, code: str, **details: object) -> None:
        super().__init__(code)
        self.code, self.details = code, details


def expand_path(folder: str | Path) -> Path:
    """The folder as an absolute path; `~` is the home of whoever runs this."""
    return Path(folder).expanduser().absolute()
