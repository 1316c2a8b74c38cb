"""Files of coefficients: what `profiles/common.yaml`, `gpus.yaml` and `stacks.yaml` hold, checked field by field.

shipped("gpus")["a100"]["coefficients"]["matmul"]["value"]
"""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import Any, Literal

from pydantic import field_validator

from crosszone.cost.coefficients import Coefficients
from crosszone.inputs.document import Document
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import Flag, Name, NotNegative, Positive, Value, nearest, parse, refuse

FIELDS = tuple(f.name for f in fields(Coefficients))
COMMON = "common"

Origin = Literal["fitted", "measured", "datasheet", "published", "assumed"]


def known_fields(given: dict[str, Coefficient]) -> dict[str, Coefficient]:
    """The same; a name that is no coefficient is refused."""
    for key in given:
        if key not in FIELDS:
            raise refuse("unknown_key", key, at=(key,), known=sorted(FIELDS), nearest=nearest(key, FIELDS)[:1])
    return given


class Coefficient(Value):
    """One number with one standard error of its logarithm, and where it comes from."""

    value: NotNegative
    error: NotNegative
    origin: Origin


class Home(Value):
    """Coefficients of one home, and what they rest on."""

    source: str
    coefficients: dict[Name, Coefficient]

    @field_validator("coefficients")
    @classmethod
    def _known(cls, given: dict[str, Coefficient]) -> dict[str, Coefficient]:
        return known_fields(given)


class Common(Home):
    """The home of every coefficient."""

    @field_validator("coefficients")
    @classmethod
    def _whole(cls, given: dict[str, Coefficient]) -> dict[str, Coefficient]:
        for key in FIELDS:
            if key not in given:
                raise refuse("missing_key", key=key)
        return given


class Family(Home):
    """GPUs that behave alike."""

    gpus: tuple[Name, ...]
    vendor: Name
    year: int
    architecture: Name | None = None
    """GPUs of this architecture that no family lists take this one."""
    stacks: tuple[Name, ...] = ()
    """Its kernels were timed alone: values for these stacks, fitted beside them; others take those of `like`."""
    like: Name | None = None


class Settings(Value):
    """What a stack does; explained in stacks.yaml."""

    unfused: Flag | Literal["plain"] = False
    triton: Flag = False
    launch_added: Flag = False
    p2p_scatter: Flag = False
    p2p_wait: Literal["none", "sent", "arrived"] = "none"
    p2p_both_ends: Flag = False
    p2p_mask: Flag = False
    partitioned: Flag = False
    zero1_all_reduce: Flag = False
    release_base: Positive | None = None
    graphed_from: Positive | None = None


class Stack(Home):
    """Software whose jobs behave alike."""

    title: str
    framework: Name
    default_of: tuple[Name, ...] = ()
    like: Name | None = None
    measured: Flag = True
    """Runs of it were seen, though it may have no coefficients of its own."""
    settings: Settings


@cache
def shipped(name: str) -> dict[str, Any]:
    """A profile file that comes with the program, checked: an `InvalidError` names each field that is wrong."""
    return checked(name, read_shipped("crosszone.cost", f"profiles/{name}.yaml"))


def checked(name: str, document: Document) -> dict[str, Any]:
    """The content of `common`, `gpus` or `stacks`.yaml; an `InvalidError` names each field that is wrong."""
    if name == COMMON:
        return _plain(parse(Common, document.value, document))
    kinds: dict[str, type[Home]] = {"gpus": Family, "stacks": Stack}
    kind = kinds[name]
    return {key: _plain(parse(kind, entry, document, at=(key,))) for key, entry in document.value.items()}


def _plain(home: Home) -> dict[str, Any]:
    return home.model_dump(exclude_unset=True)
