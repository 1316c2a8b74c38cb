"""Own profiles: coefficients that the user measured, one YAML file each under `$CROSSZONE_HOME/profiles/`.

    save(OwnProfile(name="my-cluster", source="one log", created="2026-11-16", stacks={"megatron-core": {...}}))
    use("my-cluster")                  # every prediction from now on; `use(None)`: the shipped values again
    get_overlay()                      # the one that lies over the shipped profiles now, if any

What an own profile does not name keeps its shipped value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from crosszone.cost.coefficients import Coefficient, check_field_names
from crosszone.cost.measured_links import MeasuredCollective
from crosszone.errors import InputError, InvalidError, Notice, UnknownNameError, find_close_names
from crosszone.inputs.catalogue.entries import find_home
from crosszone.inputs.catalogue.own import build_unwritable_error
from crosszone.inputs.document import Document, dump_yaml, parse_document, read_document, replace_file
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import Name, Value, parse, refuse

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,59}")  # Names of own profiles: they are names of files too
DEFAULT = "default"  # The file that names the profile in use; no profile may be called so
NONE = "none"  # What stands for the shipped values on the command line
UNNAMED = "measured"  # What a profile is called where nothing else names it
_PACKAGE, _CLUSTERS = "crosszone.cost", ("profiles", "clusters")
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9]+")


class OwnProfile(Value):
    """Coefficients of GPU kinds and of software stacks that take the place of the shipped ones."""

    name: str
    """Small letters, digits and hyphens."""
    source: str
    """What it rests on."""
    created: str
    """Date, or date and time in UTC."""
    gpus: dict[Name, dict[Name, Coefficient]] = Field(default_factory=dict)
    """Coefficients by GPU kind (its catalogue name) and field."""
    for_stacks: tuple[Name, ...] = ()
    """Stacks that the values of GPUs are for; empty: all. Kernels timed alone suit stacks fitted beside such."""
    stacks: dict[Name, dict[Name, Coefficient]] = Field(default_factory=dict)
    """Coefficients by software stack and field."""
    collectives: tuple[MeasuredCollective, ...] = ()
    """Collectives as they were timed on the cluster, in place of the catalogue's rates inside zones."""
    notes: tuple[str, ...] = ()
    """What was found on the way: what was kept, what stays unknown."""
    scores: dict[str, Any] = Field(default_factory=dict)
    """How good it is: errors before and after, or cross-validated."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not is_name(name):
            raise refuse("own_profile_name", name)
        return name

    @field_validator("gpus", "stacks")
    @classmethod
    def _check_coefficients(cls, homes: dict[str, dict[str, Coefficient]]) -> dict[str, dict[str, Coefficient]]:
        for coefficients in homes.values():
            check_field_names(coefficients)
        return homes


# eq=False: hashed by identity, which is what `profile._overlay_profiles` remembers by.
@dataclass(frozen=True, eq=False)
class Overlay:
    """An own profile that lies over the shipped ones; the same object as long as its file stays as it is."""

    profile: OwnProfile


# What this process uses whatever the default is: a profile, or none; empty: the default.
_override: list[Overlay | None] = []


def get_folder() -> Path:
    """Where own profiles are kept."""
    return find_home() / "profiles"


def is_name(text: str) -> bool:
    """An own profile may be called so."""
    return NAME.fullmatch(text) is not None and text not in (DEFAULT, NONE)


def name_from(*words: str) -> str:
    """A name that an own profile may have, made of words or of a file's name: `Train run` gives `train-run`."""
    name = _NOT_IN_A_NAME.sub("-", " ".join(words).lower()).strip("-")[:60].rstrip("-") or UNNAMED
    return name if is_name(name) else f"{name}-{UNNAMED}"


def format_now() -> str:
    """The time as profiles tell when they were made."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def list_saved() -> list[OwnProfile]:
    """All that are kept, by name; an `InputError` names a file that cannot be read."""
    return [read(path) for path in sorted(get_folder().glob("*.yaml"))]


def load(name: str | Path) -> OwnProfile:
    """The profile of a name, of a shipped cluster, or of a file; `UnknownNameError` names the nearest ones."""
    if isinstance(name, str) and NAME.fullmatch(name) and (is_kept(name) or not Path(name).is_file()):
        shipped = None if is_kept(name) else load_cluster_profile(name)
        return shipped or read_named(name)
    return read(Path(name))


def list_clusters() -> list[str]:
    """Clusters that were measured by others and whose profiles come with the program."""
    return sorted(path.name.removesuffix(".yaml") for path in files(_PACKAGE).joinpath(*_CLUSTERS).iterdir())


def load_cluster_profile(name: str) -> OwnProfile | None:
    """The shipped profile of a cluster; None: it was not measured."""
    if name not in list_clusters():
        return None
    return _check_profile(read_shipped(_PACKAGE, "/".join((*_CLUSTERS, f"{name}.yaml"))))


def join_profiles(first: OwnProfile, second: OwnProfile) -> OwnProfile:
    """What both say, as one profile named as the first; where both say the same thing, the second counts.

    Collectives are of one measurement: where the second has any, they take the place of all of the first.
    """

    def homes(kind: str) -> dict[str, Any]:
        old, new = getattr(first, kind), getattr(second, kind)
        return {home: {**old.get(home, {}), **new.get(home, {})} for home in (*old, *(x for x in new if x not in old))}

    return OwnProfile(
        name=first.name,
        source="; ".join(dict.fromkeys((first.source, second.source))),
        created=second.created,
        gpus=homes("gpus"),
        for_stacks=tuple(dict.fromkeys((*first.for_stacks, *second.for_stacks)))
        if _are_for_stacks(first, second)
        else (),
        stacks=homes("stacks"),
        collectives=second.collectives or first.collectives,
        notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
        scores={**first.scores, **second.scores},
    )


def _are_for_stacks(first: OwnProfile, second: OwnProfile) -> bool:
    """Values of GPUs are for some stacks only, in each of the two that has any."""
    return all(profile.for_stacks for profile in (first, second) if profile.gpus)


def read_named(name: str) -> OwnProfile:
    """The profile that is kept under a name, never that of a path; `UnknownNameError` names the nearest ones."""
    return read(_find_path(name))


def read(path: Path) -> OwnProfile:
    """The profile of a file; an `InputError` names what is wrong with it."""
    return _check_profile(read_document(path))


def parse_text(text: str, file: str = "<text>") -> OwnProfile:
    """The profile of a text."""
    return _check_profile(parse_document(text, file))


def format_text(profile: OwnProfile) -> str:
    """The profile as its file holds it."""
    return dump_yaml(profile.to_plain())


def save(profile: OwnProfile, *, replace: bool = False, add: bool = False) -> Path:
    """Keep a profile; one of that name is written over only where that is wanted, or takes the new values in."""
    if add and is_kept(profile.name):
        profile, replace = join_profiles(read_named(profile.name), profile), True
    check_free(profile.name, replace=replace)
    path = get_folder() / f"{profile.name}.yaml"
    _write(path, format_text(profile))
    return path


def check_name(name: str) -> None:
    """Refuse what no own profile may be called: to ask before long work."""
    if not is_name(name):
        raise InvalidError(Notice(code="own_profile_name", field="name", value=name))


def check_free(name: str, *, replace: bool = False) -> None:
    """Refuse a name that is taken, or is none: to ask before long work."""
    check_name(name)
    if not replace and (get_folder() / f"{name}.yaml").exists():
        raise InvalidError(Notice(code="own_profile_exists", field="profile", value=name))


def remove(name: str) -> None:
    """Forget a profile, readable or not; where it was the default, the shipped values are used from now on."""
    path = _find_path(name)
    if get_default() == name:
        use(None)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise build_unwritable_error(get_folder(), error) from None


def get_default() -> str | None:
    """Name of the profile that predictions use where nothing else is said; None: the shipped values alone."""
    try:
        return (get_folder() / DEFAULT).read_text("utf-8").strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        params = {"reason": getattr(error, "strerror", None) or str(error)}
        raise InputError(Notice(code="own_profile_default", value=str(get_folder() / DEFAULT), params=params)) from None


def use(name: str | None) -> None:
    """Make a profile that is kept the default; None: the shipped values."""
    path = get_folder() / DEFAULT
    if name is not None:
        if not is_kept(name) and Path(name).is_file():
            params = {"folder": str(get_folder())}
            raise InvalidError(Notice(code="own_profile_unsaved", field="profile", value=name, params=params))
        read_named(name)
        _write(path, f"{name}\n")
        return
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise build_unwritable_error(path, error) from None


def override_default(profile: OwnProfile | None) -> None:
    """Lay a profile over the shipped ones in this process, whatever the default is; None: the default again."""
    _override[:] = [] if profile is None else [Overlay(profile)]


def use_shipped() -> None:
    """Predict with the shipped values alone in this process, whatever the default is."""
    _override[:] = [None]


def get_overlay() -> Overlay | None:
    """The profile over the shipped ones: the one given to this process, else the default; None: none."""
    if _override:
        return _override[0]
    name = get_default()
    if name is None:
        return None
    path = get_folder() / f"{name}.yaml"
    try:
        stat = os.stat(path)
    except OSError as error:
        params = {"reason": error.strerror or str(error)}
        raise InputError(Notice(code="own_profile_default", value=str(path), params=params)) from None
    # time and size are the key only: a file that was written anew is read anew, by a server too
    return _read_once(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)
def _read_once(path: Path, *_: int) -> Overlay:
    return Overlay(read(path))


def is_kept(name: str) -> bool:
    """A file of that name is kept, readable or not."""
    return NAME.fullmatch(name) is not None and (get_folder() / f"{name}.yaml").is_file()


def _find_path(name: str) -> Path:
    """Where the profile of a name is kept, readable or not; `UnknownNameError` names the nearest ones."""
    if not is_kept(name):
        names = [path.stem for path in sorted(get_folder().glob("*.yaml"))]
        params = {"known": names, "nearest": find_close_names(name, names)}
        code = "own_profile_unknown_near" if params["nearest"] else "own_profile_unknown"
        raise UnknownNameError(Notice(code=code, field="profile", value=name, params=params))
    return get_folder() / f"{name}.yaml"


def _check_profile(document: Document) -> OwnProfile:
    if not isinstance(document.value, Mapping):
        raise InvalidError(document.place_notice(Notice(code="must_be_mapping", field="profile", value=document.value)))
    return parse(OwnProfile, document.value, document)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text)
    except OSError as error:
        raise build_unwritable_error(path, error) from None
