"""Pins: parts of the strategy that the user wants as they are, said as `KEY=VALUE`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.document import scalar


def pinned(value: Mapping[str, Any], pins: Iterable[str]) -> dict[str, Any]:
    """The fields of a scenario with pins put into its strategy, over what stands there.

    pinned({"model": ...}, ["tp=8", "communication.flows=4"])   # {"model": ..., "strategy": {"tp": 8, ...}}

    Keys and values are checked where the scenario is read, so that a wrong pin is refused in the same words as a wrong
    line of a file.
    """
    read = [read_pin(pin) for pin in pins]
    seen: set[str] = set()
    for key, _ in read:
        if key in seen:
            raise InvalidError(Notice(code="pin_twice", field="pin", value=key))
        seen.add(key)
    strategy = value.get("strategy")
    if not read or not isinstance(strategy, Mapping | None):  # the reader refuses a strategy that is no mapping
        return dict(value)
    merged = dict(strategy or {})
    for key, inner in read:
        merged = _with(merged, key.split("."), inner)
    return {**value, "strategy": merged}


def read_pin(text: str) -> tuple[str, Any]:
    """Key and value of `KEY=VALUE`; a key may be `communication.flows`, a value a list with commas."""
    key, equals, said = (part.strip() for part in text.partition("="))
    if not equals or not said or not all(key.split(".")):
        raise InvalidError(Notice(code="pin_malformed", field="pin", value=text))
    bracketed = said.startswith("[") and said.endswith("]")
    if bracketed or "," in said:
        items = said[1:-1] if bracketed else said
        return key, [scalar(item.strip()) for item in items.split(",")]
    return key, scalar(said)


def _with(fields: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    """The fields with the one at the end of a path set."""
    first, *rest = path
    if not rest:
        return {**fields, first: value}
    inner = fields.get(first)
    return {**fields, first: _with(inner if isinstance(inner, Mapping) else {}, rest, value)}
