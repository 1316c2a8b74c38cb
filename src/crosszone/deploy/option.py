"""Option: one thing a framework, a launcher or the system is told, and why."""

from __future__ import annotations

import re
from typing import Any, Literal

from crosszone.inputs.value import Value
from crosszone.text import sentence

Where = Literal["flag", "key", "argument", "variable"]


class Option(Value):
    """What is told, where and why."""

    where: Where
    """A flag of a command line, a key of a configuration file, an argument in the trainer, an environment variable."""
    name: str
    """As it is spelled there."""
    value: Any
    """What it is set to; True for a flag without a value."""
    why: str
    """What it does, with the figures of this plan."""


def option(where: Where, name: str, value: Any, language: str, *, key: str = "", **params: Any) -> Option:
    """An option with its sentence `option.KEY.why`; the key is the option's own name unless another one is given."""
    code = key or sentence_key(name)
    return Option(where=where, name=name, value=value, why=sentence("option", code, "why", language, params))


def sentence_key(name: str) -> str:
    """The key of an option's sentence: its name in small letters, all else underscores."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
