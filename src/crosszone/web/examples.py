"""Scenarios to start from: those that come with CrossZone, and the file the server was started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from crosszone.errors import FileError
from crosszone.inputs.document import parse_document, read_text
from crosszone.inputs.value import nearest
from crosszone.web.refusals import refused

DEFAULT_EXAMPLE = "three-cities"


def examples_folder() -> Path:
    """The repository's `examples/` when run from a checkout, else the copy inside the package."""
    package = Path(str(files("crosszone")))
    checkout = package.parents[1]
    if (checkout / "pyproject.toml").is_file() and (checkout / "examples").is_dir():
        return checkout / "examples"
    return package / "examples"


@dataclass(frozen=True)
class Shelf:
    """The scenarios the page can open, by name; the opened file goes by its file name, examples have no suffix."""

    opened: Path | None = None

    @property
    def base(self) -> Path:
        """The folder that files named inside a scenario must lie in."""
        return self.opened.parent if self.opened else examples_folder()

    @property
    def default(self) -> str:
        """The one to open first."""
        return self.opened.name if self.opened else DEFAULT_EXAMPLE

    def paths(self) -> dict[str, Path]:
        """All of them: the opened file, then the examples in order of name."""
        opened = {self.opened.name: self.opened} if self.opened else {}
        return opened | {path.stem: path for path in sorted(examples_folder().glob("*.yaml"))}

    def listed(self) -> list[dict[str, Any]]:
        """Names and titles for a chooser."""
        return [
            {"name": name, "title": _title(path) or name, "opened": path == self.opened}
            for name, path in self.paths().items()
        ]

    def text(self, name: str) -> str:
        """The text of one scenario; 404 names the nearest ones."""
        paths = self.paths()
        if name not in paths:
            close = nearest(name, paths) or list(paths)[:3]
            raise refused(404, "example_unknown", value=name, nearest=", ".join(close))
        return read_text(paths[name])


def _title(path: Path) -> str:
    try:
        value = parse_document(read_text(path), path.name).value
    except FileError:
        return ""
    return str(value.get("name", "")) if isinstance(value, Mapping) else ""
