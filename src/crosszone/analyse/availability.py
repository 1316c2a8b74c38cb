"""Availability: which values of which switches a scenario could take, and why not the others."""

from __future__ import annotations

from typing import Any

from crosszone.analyse.switches import Listed as Standing
from crosszone.analyse.switches import Switch, changes_of, listed, switches, value_of
from crosszone.analyse.what_if import changed_predictor
from crosszone.errors import InputError
from crosszone.inputs.scenario import Scenario
from crosszone.predict.predict import Predictor

RANK = 64
"""Rank with which PowerSGD is tried."""


class Available(Standing):
    """A switch as it can be shown and turned."""

    pinned: bool
    """The scenario itself says how it stands."""
    sets: tuple[str, ...]
    """Fields of the strategy that it sets: null in their place lets it go."""
    refused: dict[str, dict[str, Any]]
    """Values that cannot be taken here, each with its reason: code, message, hint."""
    reason: dict[str, Any] | None
    """Why it cannot be turned at all; null: it can."""


def available(scenario: Scenario, now: Predictor, pinned: dict[str, Any], language: str) -> tuple[Available, ...]:
    """All switches with what each could be turned to; `pinned`: the strategy as the user wrote it."""
    found = []
    for one in listed(now, language):
        switch = switches()[one.name]
        refused: dict[str, dict[str, Any]] = {}
        tried = [value for value in _values(switch) if value != value_of(one.name, now)]
        for value in tried:
            try:
                changed_predictor(scenario, changes_of(one.name, _typed(switch, value), now), now)
            except InputError as error:
                refused[_word(value)] = error.notices[0].as_dict(language)
        sets = _SETS.get(one.name) or ((switch.sets,) if switch.sets else ())
        found.append(
            Available(
                **one.model_dump(),
                pinned=any(_given(pinned, path) for path in sets),
                sets=sets,
                refused=refused,
                reason=next(iter(refused.values())) if refused and len(refused) == len(tried) else None,
            )
        )
    return tuple(found)


_SETS = {
    "compression": ("strategy.communication.compression", "strategy.communication.compression_rank"),
    "primitive": ("strategy.communication.algorithm", "strategy.communication.reduce"),
    "local_steps": ("strategy.local_update",),
}


def _values(switch: Switch) -> tuple[Any, ...]:
    """Every value of a choice or flag; of a number one that it takes everywhere."""
    if switch.values:
        return switch.values
    if switch.takes == "flag":
        return True, False
    numbers = [value for value in switch.tries if not isinstance(value, str)]
    usual = min(switch.high, max(switch.low, 1))
    return (*numbers[:1], int(usual) if switch.takes == "count" else usual)[:1]


def _typed(switch: Switch, value: Any) -> Any:
    return f"{value}:{RANK}" if (switch.name, value) == ("compression", "powersgd") else value


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _given(strategy: dict[str, Any], path: str) -> bool:
    """The user wrote something at a path."""
    value: Any = {"strategy": strategy}
    for step in path.split("."):
        if not isinstance(value, dict) or value.get(step) is None:
            return False
        value = value[step]
    return True
