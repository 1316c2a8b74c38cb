"""Options that several verbs share, and the database and service that those of training open.

with open_service(store) as service:
    service.store.environments.all()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.output import get_language
from crosszone.errors import InvalidError, Notice, build_choice_error

if TYPE_CHECKING:
    from crosszone.run.service import Service
    from crosszone.store import Store

StoreOption = Annotated[
    str | None,
    typer.Option("--store", "--db", metavar="URL", help="A file or a database URL; default: the server's own."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
ScenarioArgument = Annotated[str, typer.Argument(help="Scenario file with a strategy; - for standard input.")]
PlannedArgument = Annotated[
    str, typer.Argument(help="Scenario file; without a strategy its best plan. - for standard input.")
]
PinnedArgument = Annotated[str, typer.Argument(help="Scenario file; what its strategy gives is pinned. - for stdin.")]
PythonOption = Annotated[str | None, typer.Option(metavar="PATH", help="Python with torch; default: this one.")]
SaveOption = Annotated[str | None, typer.Option(metavar="NAME", help="Keep what was learned as an own profile.")]
ForceProfileOption = Annotated[bool, typer.Option("--force", help="Write over a profile of that name.")]
ForceFileOption = Annotated[bool, typer.Option("--force", help="Overwrite FILE.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Any field; may be given several times.")
]


@contextmanager
def open_database(store: str | None) -> Iterator[Store]:
    """The database that the server uses too, or the one at that URL; closed afterwards."""
    from crosszone.store import open_store

    with open_store(store) as database:
        yield database


@contextmanager
def open_service(store: str | None) -> Iterator[Service]:
    """What probes, measures and trains, on that database."""
    from crosszone.run.service import Service

    with open_database(store) as database:
        yield Service(database)


def parse_assignments(lines: Sequence[str] | None, option: str = "--set") -> dict[str, Any]:
    """`FIELD=VALUE` lines as fields, values as YAML would read them."""
    # `8` is a number and `null` nothing, as in a file
    from crosszone.inputs.document import parse_scalar

    fields: dict[str, Any] = {}
    for line in lines or ():
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise InvalidError(Notice(code="assignment_malformed", field=option, value=line))
        fields[name.strip()] = parse_scalar(value.strip())
    return fields


def drop_missing(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields without those whose option was left out."""
    return {key: value for key, value in fields.items() if value is not None}


def require_choice(option: str, word: str | None, allowed: Sequence[str]) -> None:
    """Refuse a value of an option that is not one of the allowed."""
    if word is not None and word not in allowed:
        raise build_choice_error(option, word, allowed)


def localize_stored_notice(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A notice as it is stored with a task, in the language of this run."""
    from crosszone.store.tasks import decode_notice

    return decode_notice(stored).as_dict(get_language())
