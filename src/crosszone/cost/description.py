"""Profiles for people: each home of coefficients with what it rests on, and each number with unit, origin and error."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

from crosszone.cost.coefficients import COMMON, Knowledge, compute_band_factors
from crosszone.cost.memory import read_memory_profiles
from crosszone.cost.profile import Profiles
from crosszone.errors import Notice, UnknownNameError
from crosszone.inputs.value import Value, find_nearest_names

# Units of coefficients that are neither seconds (`_s`) nor a ratio.
UNITS = {
    "host_update_per_s": "1/s",
    "flash_width": "elements",
    "flash_ramp": "tokens",
    "score_traffic": "passes",
    "plain_scores": "ratio",
    "cast": "passes",
    "permute": "passes",
    "head_traffic": "bytes",
    "optimizer_traffic": "bytes",
}

ProfileKind = Literal["common", "gpu", "stack"]


class Figure(Value):
    """One coefficient."""

    name: str
    """Field of the formulas."""
    value: float
    """What the formulas read."""
    unit: str
    """ratio, s, 1/s, bytes, GiB, passes, elements, tokens, tensors, layers or switch."""
    error_pct: float | None
    """One standard error in % of the value; null: not known."""
    origin: str
    """fitted, measured, datasheet, published or assumed."""
    source: str
    """What it rests on, where that is not the whole profile's source."""
    about: Literal["time", "memory"]
    """What it is for."""


class ProfileSummary(Value):
    """One home of coefficients: values for all, of a GPU family, or of a software stack."""

    name: str
    """Its name."""
    kind: ProfileKind
    """common, gpu or stack."""
    title: str
    """What it is called."""
    source: str
    """What it rests on."""
    measured: bool
    """Runs of it were seen."""
    framework: str | None
    """Framework that a stack drives."""
    default_of: tuple[str, ...]
    """Frameworks whose jobs take it when none is named."""
    gpus: tuple[str, ...]
    """GPU kinds of a family that were measured."""
    like: str | None
    """Where it looks for what it does not have itself."""
    fitted: int
    """Own coefficients that were fitted or measured."""
    coefficients: int
    """Own coefficients."""
    low: float
    """Factor on a predicted step below which one measured run in ten lies, for a dense model."""
    high: float
    """The same above."""


class ProfileDescription(ProfileSummary):
    """A home with its own coefficients."""

    settings: dict[str, Any]
    """What a stack does."""
    figures: tuple[Figure, ...]
    """Every coefficient of its own."""


def list_profile_descriptions() -> tuple[ProfileDescription, ...]:
    """Every home in use: common values, GPU families, stacks."""
    return _describe_homes(Profiles.load())


@lru_cache(maxsize=8)
def _describe_homes(profiles: Profiles) -> tuple[ProfileDescription, ...]:
    homes: list[tuple[ProfileKind, str, Mapping[str, Any]]] = [("common", COMMON, profiles.home(COMMON))]
    homes += [("gpu", name, entry) for name, entry in profiles.gpus.items()]
    homes += [("stack", name, entry) for name, entry in profiles.stacks.items()]
    return tuple(_describe_home(kind, name, entry) for kind, name, entry in homes)


def get_profile_description(name: str) -> ProfileDescription:
    """The home of that name; `UnknownNameError` names the nearest ones."""
    by_name = {profile.name: profile for profile in list_profile_descriptions()}
    if name not in by_name:
        params = {"nearest": find_nearest_names(name, by_name)}
        raise UnknownNameError(Notice(code="profile_unknown", field="name", value=name, params=params))
    return by_name[name]


def _describe_home(kind: ProfileKind, name: str, entry: Mapping[str, Any]) -> ProfileDescription:
    rows = [*_describe_times(entry), *_describe_memory(kind, name)]
    measured = kind != "stack" or entry.get("measured", True)
    low, high = compute_band_factors(Knowledge(stack_measured=measured))
    return ProfileDescription(
        name=name,
        kind=kind,
        title=entry.get("title", name),
        source=entry["source"],
        measured=measured,
        framework=entry.get("framework"),
        default_of=tuple(entry.get("default_of", ())),
        gpus=tuple(entry.get("gpus", ())),
        like=entry.get("like"),
        fitted=sum(figure.origin in ("fitted", "measured") for figure in rows),
        coefficients=len(rows),
        low=low,
        high=high,
        settings=dict(entry.get("settings", {})),
        figures=tuple(rows),
    )


def _describe_times(entry: Mapping[str, Any]) -> list[Figure]:
    return [
        Figure(
            name=name,
            value=coefficient["value"],
            unit=_find_unit(name),
            error_pct=round(100 * coefficient["error"], 2),  # of its logarithm, which is nearly the same
            origin=coefficient["origin"],
            source="",
            about="time",
        )
        for name, coefficient in entry["coefficients"].items()
    ]


def _describe_memory(kind: ProfileKind, name: str) -> list[Figure]:
    """What a stack keeps in memory where the formulas leave a choice; the common values have the units."""
    profiles = read_memory_profiles()
    common = profiles["common"]
    entries = common if kind == "common" else profiles["stacks"].get(name, {}) if kind == "stack" else {}
    return [
        Figure(
            name=field,
            value=entry["value"],
            unit=common[field]["unit"],
            error_pct=entry.get("error"),
            origin=entry["origin"],
            source=entry.get("source", ""),
            about="memory",
        )
        for field, entry in entries.items()
        if field != "like"
    ]


def _find_unit(name: str) -> str:
    return UNITS.get(name, "s" if name.endswith("_s") else "ratio")
