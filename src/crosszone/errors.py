"""Everything that can go wrong, on one page.

    CrossZoneError               anything CrossZone itself reports            exit status 1
    ├── ServeError               the server cannot start
    ├── StoreError               what is saved cannot be opened, read or written
    ├── MachineError             a machine cannot be reached, or cannot do what it was asked
    └── InputError               what the user gave cannot be used            exit status 2
        ├── FileError            a file is missing, too large, or not YAML
        ├── InvalidError         a field is wrong: type, range, unknown key
        ├── UnknownNameError     a name that no catalogue holds
        ├── IllegalError         a strategy or placement breaks a rule
        └── RequestError         an HTTP request that cannot be answered, with its status

Catch the widest one that you can act on::

    try:
        scenario = crosszone.load_scenario("two-zones.yaml")
    except crosszone.InputError as error:
        for notice in error.notices:
            print(notice.message("zh"), notice.hint("zh"))

An error carries notices, never finished sentences: a `Notice` is a code with parameters, and `text/` holds the
sentences in each language. Warnings and remarks on valid input are notices too, with another level.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from crosszone.text import DEFAULT_LANGUAGE, Label, render_sentence

Level = Literal["error", "warning", "note"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Notice:
    """One thing to tell the user: a code, the field it is about, and the numbers that go into the sentence.

    code:   key of the sentence in `text/*.json`
    field:  path of the field, e.g. `cluster.zones[0].nodes[0].gpus`; empty when it is about the whole
    value:  what was given, if anything was
    params: further parameters of the sentence (limits, nearest valid names, the two numbers that clash)
    """

    code: str
    field: str = ""
    value: Any = None
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    level: Level = "error"
    file: str | None = None
    line: int | None = None

    def with_place(self, file: str | None, line: int | None) -> Notice:
        """Return the same notice with the place in a file it comes from."""
        return dataclasses.replace(self, file=file, line=line)

    def message(self, language: str = DEFAULT_LANGUAGE) -> str:
        """What is wrong, with the field, the value and the limit."""
        sentence = render_sentence("notice", self.code, "message", language, self._build_parameters())
        return sentence.removeprefix("-: ").removeprefix("-：")  # of a notice without a field

    def hint(self, language: str = DEFAULT_LANGUAGE) -> str:
        """What to do about it."""
        return render_sentence("notice", self.code, "hint", language, self._build_parameters())

    def as_dict(self, language: str = DEFAULT_LANGUAGE) -> dict[str, Any]:
        """The form that the command line, the API and the page send: code, message, field, hint, file and line."""
        return {
            "code": self.code,
            "level": self.level,
            "message": self.message(language),
            "field": self.field,
            "hint": self.hint(language),
            "value": _convert_to_json(self.value),
            "file": self.file,
            "line": self.line,
        }

    def _build_parameters(self) -> dict[str, Any]:
        """All parameters, safe to print: text of a file becomes one short line without control characters."""
        return {"field": _format_short(self.field, 200) or "-", "value": _format_short(self.value)} | {
            key: [_format_short(entry) for entry in param] if isinstance(param, list | tuple) else _shorten_text(param)
            for key, param in self.params.items()
        }


class CrossZoneError(Exception):
    """Base of all errors CrossZone raises on purpose."""

    exit_status = 1

    def __init__(self, *notices: Notice) -> None:
        super().__init__(*notices)
        self.notices: Sequence[Notice] = notices

    def __str__(self) -> str:
        return "\n".join(f"{format_place(n.file, n.line)}{n.message()} {n.hint()}".rstrip() for n in self.notices)


class ServeError(CrossZoneError):
    """The server cannot start."""


class StoreError(CrossZoneError):
    """What is saved cannot be opened, read or written; the input is not to blame."""


class MachineError(CrossZoneError):
    """A machine cannot be reached, or cannot do what it was asked."""


class InputError(CrossZoneError):
    """What the user gave cannot be used; nothing was changed."""

    exit_status = 2


class FileError(InputError):
    """A file cannot be read as what it should be."""


class InvalidError(InputError):
    """A field has a value it cannot have."""


class UnknownNameError(InputError):
    """A name that neither the catalogue nor the user's own entries hold."""


class IllegalError(InputError):
    """A strategy or placement breaks a rule of legality."""


class RequestError(InputError):
    """A request that cannot be answered, with the HTTP status that says so."""

    def __init__(self, status: int, *notices: Notice) -> None:
        super().__init__(*notices)
        self.status = status


def format_place(file: str | None, line: int | None) -> str:
    """`file:line: ` for a terminal, or nothing."""
    if not file:
        return ""
    return f"{_format_short(file, 200)}:{line}: " if line else f"{_format_short(file, 200)}: "


def _convert_to_json(value: Any) -> Any:
    """`value` if JSON can hold it, else its text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return _format_short(value)


def _format_short(value: Any, max_length: int = 60) -> str:
    """`value` as text for a sentence: short, on one line."""
    text = value if isinstance(value, str) else _format_as_yaml(value)
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= max_length else text[: max_length - 3] + "..."


def _shorten_text(value: Any) -> Any:
    return _format_short(value, 200) if isinstance(value, str) and not isinstance(value, Label) else value


def _format_as_yaml(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) > 10**40:
        return f"a number of {len(hex(value)) - 2} hexadecimal digits"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def find_close_names(name: str, known: Iterable[str], limit: int = 3, *, min_similarity: float = 0.5) -> list[str]:
    """The known names that a misspelt `name` may stand for, best first; none where none is similar."""
    by_lower_case = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(str(name).lower(), by_lower_case, n=limit, cutoff=min_similarity)
    return [by_lower_case[match] for match in matches]


def build_choice_error(field: str, value: Any, allowed: Iterable[str]) -> InvalidError:
    """The error for a value that is none of the allowed ones; it suggests one only where one is similar."""
    choices = list(allowed)
    nearest = find_close_names(str(value), choices)[:1]
    params = {"allowed": choices, "nearest": nearest}
    code = "not_one_of" if nearest else "not_one_of_these"
    return InvalidError(Notice(code=code, field=field, value=value, params=params))
