"""How answers reach the terminal: tables and notices for people, one JSON document for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from crosszone.errors import InvalidError, Notice, place
from crosszone.text import LANGUAGES, label, preferred_language
from crosszone.text.figures import amount, billions

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_chosen: list[str] = []


def set_language(code: str | None) -> None:
    """Use a language for this run; None: the user's locale."""
    if code is not None and code not in LANGUAGES:
        params = {"allowed": LANGUAGES, "nearest": LANGUAGES[0]}
        raise InvalidError(Notice(code="not_one_of", field="--lang", value=code, params=params))
    _chosen[:] = [code or preferred_language()]


def language() -> str:
    """The language of this run."""
    return _chosen[0] if _chosen else preferred_language()


def said(key: str, **params: Any) -> str:
    """A label in the language of this run."""
    return label(key, language(), **params)


def wants_json(arguments: Sequence[str]) -> bool:
    """The user asked for JSON, also when the command line is otherwise wrong."""
    return "--json" in arguments


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def console(*, stderr: bool = False) -> Console:
    """The terminal; text is printed as it is, and lines are wide enough not to be cut when nobody looks."""
    from rich.console import Console

    width = None if (sys.stderr if stderr else sys.stdout).isatty() else 200
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def table(title: str, columns: Iterable[tuple[str, str]], *, caption: str | None = None) -> Table:
    """An empty table; a column is a label key and its alignment."""
    from rich import box
    from rich.table import Table

    made = Table(
        title=title,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        caption=caption,
        caption_justify="left",
    )
    for key, align in columns:
        made.add_column(said(key), justify="right" if align == "right" else "left", overflow="fold")
    return made


def print_notices(notices: Iterable[dict[str, Any]], *, stderr: bool = False) -> None:
    """Each notice (as `Notice.as_dict` gives it) with its place, level and remedy."""
    from rich.text import Text

    terminal = console(stderr=stderr)
    style = {"error": "bold red", "warning": "yellow", "note": "dim"}
    for notice in notices:
        line = Text(place(notice["file"], notice["line"]))
        line.append(said(f"level_{notice['level']}"), style=style[notice["level"]])
        line.append(f" {notice['message']}")
        terminal.print(line, soft_wrap=True)
        if notice["hint"]:
            terminal.print(Text(f"    {notice['hint']}", style="dim"), soft_wrap=True)


def report_failure(notices: Sequence[Notice], as_json: bool) -> None:
    """Say what went wrong: on standard error, or as JSON on standard output."""
    told = [notice.as_dict(language()) for notice in notices]
    if as_json:
        print_json({"errors": told})
    else:
        print_notices(told, stderr=True)


__all__ = [
    "amount",
    "billions",
    "console",
    "language",
    "print_json",
    "print_notices",
    "report_failure",
    "said",
    "set_language",
    "table",
    "wants_json",
]
