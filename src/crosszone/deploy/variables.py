"""Environment variables that a bundle may set, each with the place where its name was read (`variables.yaml`)."""

from __future__ import annotations

from functools import cache

from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import Name, Value, parse


class Variable(Value):
    """One variable."""

    name: Name
    source: str
    """Where its name was read."""


@cache
def variables() -> dict[str, Variable]:
    """All that may be set, by name."""
    document = read_shipped("crosszone.deploy", "variables.yaml")
    return {name: parse(Variable, {"name": name, **one}, document, at=(name,)) for name, one in document.value.items()}


def checked(name: str) -> str:
    """The name, which must be on the list: a mistake of ours, never of the user."""
    if name not in variables():
        raise ValueError(f"{name} is not in deploy/variables.yaml")
    return name
