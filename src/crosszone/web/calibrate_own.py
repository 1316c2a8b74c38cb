"""Own profiles and operator profiles as the page lists them.

listed("en").default                      # "my-cluster"; None: the shipped values
listed("en").own[0].coefficients          # how many shipped values it takes the place of
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from crosszone.cost import own_profiles
from crosszone.cost.coefficients import Coefficient
from crosszone.cost.own_profiles import OwnProfile
from crosszone.cost.profile import Profiles
from crosszone.errors import InputError
from crosszone.inputs.value import Value


class OwnRow(Value):
    """An own profile in the list."""

    name: str
    """What it is called."""
    default: bool
    """Predictions use it."""
    source: str
    """What it rests on."""
    created: str
    """When it was made."""
    gpus: tuple[str, ...]
    """GPU kinds it has values for."""
    stacks: tuple[str, ...]
    """Software stacks it has values for."""
    coefficients: int
    """Values that take the place of shipped ones."""
    collectives: int
    """Timed collectives that take the place of the catalogue's rates."""
    origins: dict[str, int]
    """How many of the values were measured, fitted, ..."""
    error_pct: float | None
    """The middle one of their standard errors, in %; null: there are none."""
    scores: dict[str, Any]
    """Errors before and after, or cross-validated, as the fit told them."""
    notes: tuple[str, ...]
    """What was kept and what stays unknown."""
    notices: tuple[dict[str, Any], ...]
    """Why its file cannot be used; empty: it can."""


class OperatorRow(Value):
    """Operators of one GPU kind, fitted to kernels that were measured on it."""

    gpu: str
    """Catalogue name of the GPU."""
    source: str
    """What was measured."""
    families: dict[str, dict[str, float | None]]
    """By family of operators: error_pct (cross-validated), unseen_pct (on sizes that were left out), samples."""
    coefficients: int
    """Values of the formulas that follow from it."""


class ProfileList(Value):
    """Own profiles, and the operator profiles that come with CrossZone."""

    default: str | None
    """Own profile that predictions use; null: the shipped values alone."""
    own: tuple[OwnRow, ...]
    """By name."""
    operators: tuple[OperatorRow, ...]
    """By GPU."""
    notices: tuple[dict[str, Any], ...]
    """What is wrong with the default; empty: nothing."""


def listed(language: str) -> ProfileList:
    """All of them; a file that cannot be read is listed with the reason."""
    default, notices = None, tuple[dict[str, Any], ...]()
    try:
        default = own_profiles.default()
        own_profiles.laid()
    except InputError as error:
        notices = _worded(error, language)
    rows = tuple(_row(path, default, language) for path in sorted(own_profiles.folder().glob("*.yaml")))
    return ProfileList(default=default, own=rows, operators=operators(), notices=notices)


def usable(profile: OwnProfile) -> OwnProfile:
    """The profile, once it is known that predictions can use it: its GPUs and stacks exist."""
    Profiles.shipped().with_own(profile)
    return profile


def operators() -> tuple[OperatorRow, ...]:
    """The operator profiles that come with CrossZone."""
    from crosszone.cost.operator_profile import operator_profile, operator_profiles

    found = []
    for gpu in operator_profiles():
        profile = operator_profile(gpu)
        if profile is not None:
            found.append(
                OperatorRow(
                    gpu=gpu,
                    source=profile.source,
                    families=profile.summary(),
                    coefficients=len(profile.coefficients),
                )
            )
    return tuple(found)


def _row(path: Path, default: str | None, language: str) -> OwnRow:
    try:
        profile = own_profiles.read(path)
    except InputError as error:
        return OwnRow(
            name=path.stem,
            default=path.stem == default,
            source="",
            created="",
            gpus=(),
            stacks=(),
            coefficients=0,
            collectives=0,
            origins={},
            error_pct=None,
            scores={},
            notes=(),
            notices=_worded(error, language),
        )
    values = _values(profile)
    origins = sorted({one.origin for one in values})
    return OwnRow(
        name=profile.name,
        default=profile.name == default,
        source=profile.source,
        created=profile.created,
        gpus=tuple(profile.gpus),
        stacks=tuple(profile.stacks),
        coefficients=len(values),
        collectives=len(profile.collectives),
        origins={origin: sum(one.origin == origin for one in values) for origin in origins},
        error_pct=100.0 * median(one.error for one in values) if values else None,
        scores=profile.scores,
        notes=profile.notes,
        notices=(),
    )


def _values(profile: OwnProfile) -> list[Coefficient]:
    homes = (*profile.gpus.values(), *profile.stacks.values())
    return [one for home in homes for one in home.values()]


def _worded(error: InputError, language: str) -> tuple[dict[str, Any], ...]:
    return tuple(notice.as_dict(language) for notice in error.notices)
