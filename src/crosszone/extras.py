"""Packages that only some verbs need: which extra holds them, and the command that installs it.

    require_extra("excel")  # MissingExtraError unless openpyxl and formulas can be imported

Called before the lazy import, and at the start of long work, so that nothing is measured first and lost then.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from crosszone.errors import InputError, Notice

Extra = Literal["calibrate", "figures", "excel"]

# Import names of each extra of pyproject.toml.
MODULES: dict[Extra, tuple[str, ...]] = {
    "calibrate": ("scipy", "sklearn"),
    "figures": ("matplotlib",),
    "excel": ("openpyxl", "formulas"),
}


class MissingExtraError(InputError):
    """What was asked for needs packages that are not installed."""


def require_extra(extra: Extra) -> None:
    """Raise an error that names the install command, unless all packages of the extra are there."""
    missing = [name for name in MODULES[extra] if find_spec(name) is None]
    if missing:
        params = {"extra": extra, "packages": ", ".join(missing), "command": format_install_command(extra)}
        raise MissingExtraError(Notice(code="extra_missing", params=params))


def format_install_command(extra: Extra | Literal["postgres", "kubernetes", "ray"]) -> str:
    """`./crosszone install` in a checkout, whose environment that script keeps; pip elsewhere."""
    root = Path(__file__).resolve().parents[2]
    is_checkout = (root / "pyproject.toml").is_file() and (root / "scripts" / "venv").is_file()
    return f"./crosszone install {extra}" if is_checkout else f'pip install "crosszone[{extra}]"'
