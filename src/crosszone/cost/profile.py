"""Profiles: the coefficients of GPU families and software stacks, with their origin and error (`profiles/*.yaml`).

    profile = Profiles.load().select(gpu, "megatron-core")
    profile.coefficients.matmul, profile.gpu_measured

A coefficient has three possible homes: a stack, a GPU family, and `common`; the first that has it wins (`like` names
where a stack or family looks next). For a fit, all values are one vector and `index` says which of them a case reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import field_validator

from crosszone.cost.coefficients import Coefficients
from crosszone.errors import InvalidError, Notice
from crosszone.inputs.document import parse_document
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.value import Flag, Name, NotNegative, Positive, Value, nearest, parse, refuse

FIELDS = tuple(f.name for f in fields(Coefficients))
COMMON = "common"
GENERIC = "generic"
"""Family of a GPU that is like no measured one, and stack of unknown software: common values."""

Origin = Literal["fitted", "measured", "datasheet", "published", "assumed"]
Vector = npt.NDArray[np.float64]


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
        for key in given:
            if key not in FIELDS:
                raise refuse("unknown_key", key, at=(key,), known=sorted(FIELDS), nearest=nearest(key, FIELDS)[:1])
        return given


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
    like: Name | None = None


class Settings(Value):
    """What a stack does; explained in stacks.yaml."""

    unfused: Flag | Literal["plain"] = False
    triton: Flag = False
    launch_added: Flag = False
    p2p_scatter: Flag = False
    p2p_wait: Literal["none", "sent", "arrived"] = "none"
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


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What one GPU kind and one stack are predicted with."""

    family: str
    gpu_measured: bool
    """False: the GPU borrows from the nearest family that was measured."""
    stack: str
    stack_measured: bool
    """False: no run of the stack was seen; it takes the common values."""
    settings: Mapping[str, Any]
    coefficients: Coefficients
    """Plain numbers."""


class Profiles:
    """All coefficients as one vector of values, and which of them a case reads."""

    def __init__(self, common: dict[str, Any], gpus: dict[str, Any], stacks: dict[str, Any]):
        self.gpus, self.stacks = gpus, stacks
        self.names: list[tuple[str, str]] = []
        """Home and field of each value; homes are `common`, `gpu NAME` and `stack NAME`."""
        self.entries: list[dict[str, Any]] = []
        named = {f"gpu {name}": entry for name, entry in gpus.items()}
        self._homes: dict[str, dict[str, Any]] = {
            COMMON: common,
            **named,
            **{f"stack {name}": entry for name, entry in stacks.items()},
        }
        for home, content in self._homes.items():
            for key, entry in content["coefficients"].items():
                self.names.append((home, key))
                self.entries.append(entry)
        self.place = {name: at for at, name in enumerate(self.names)}
        self.values = np.array([entry["value"] for entry in self.entries], dtype=float)
        self.errors = np.array([entry["error"] for entry in self.entries], dtype=float)
        self.fixed = np.array([entry["origin"] != "fitted" for entry in self.entries])
        self._reads: dict[tuple[str, str], tuple[int, ...]] = {}
        self._selected: dict[tuple[Gpu, str, float | None], Profile] = {}

    @classmethod
    def load(cls) -> Profiles:
        """The shipped profiles; read and checked once."""
        return _shipped()

    def home(self, name: str) -> dict[str, Any]:
        """The content of one home: `common`, `gpu NAME` or `stack NAME`."""
        return self._homes[name]

    def with_values(self, values: Vector) -> Profiles:
        """The same profiles with other values, as a fit gives them."""
        other = Profiles(self._homes[COMMON], self.gpus, self.stacks)
        other.values = values
        return other

    def gpu_profile(self, gpu: Gpu) -> tuple[str, bool]:
        """The family whose coefficients a GPU takes, and whether it was measured (else derived)."""
        for name, entry in self.gpus.items():
            if gpu.name in entry["gpus"]:
                return name, True
        for name, entry in self.gpus.items():
            if gpu.architecture == entry.get("architecture"):
                return name, False
        kin = {n: e for n, e in self.gpus.items() if e["vendor"] == gpu.vendor and "architecture" in e}
        if not kin or gpu.year is None:
            return GENERIC, False
        year = gpu.year
        return min(kin, key=lambda name: abs(kin[name]["year"] - year)), False

    def stack_of(self, framework: str, stack: str | None = None) -> str:
        """The stack of a job: the one it names, else its framework's default."""
        if stack is None:
            found = (name for name, entry in self.stacks.items() if framework in entry.get("default_of", ()))
            return next(found, GENERIC)
        if stack not in self.stacks:
            params = {"allowed": list(self.stacks), "nearest": nearest(stack, self.stacks)[:1]}
            raise InvalidError(Notice(code="not_one_of", field="job.stack", value=stack, params=params))
        return stack

    def release_age(self, stack: str, release: float | None) -> float:
        """Years from the release that the stack's profile stands for; 0 where either is not known."""
        base = self.stacks[stack]["settings"].get("release_base")
        return 0.0 if base is None or release is None else release - base

    def select(self, gpu: Gpu, stack: str, speed: float | None = None) -> Profile:
        """What one GPU kind and stack are predicted with; remembered. `speed`: of a trial of these very GPUs."""
        key = (gpu, stack, speed)
        if key not in self._selected and speed is not None:
            plain = self.select(gpu, stack)
            tried = plain.coefficients.at_speed(speed)
            self._selected[key] = replace(plain, gpu_measured=True, coefficients=tried)
        elif key not in self._selected:
            family, measured = self.gpu_profile(gpu)
            reads = self._reads_of(family, stack)
            entry = self.stacks[stack]
            self._selected[key] = Profile(
                family=family,
                gpu_measured=measured,
                stack=stack,
                stack_measured=entry.get("measured", True),
                settings=entry["settings"],
                coefficients=Coefficients(
                    **{field: float(self.values[at]) for field, at in zip(FIELDS, reads, strict=True)}
                ),
            )
        return self._selected[key]

    def index(self, gpus: Sequence[str], stacks: Sequence[str]) -> dict[str, npt.NDArray[np.int64]]:
        """Which value each field of `Coefficients` reads in each case (GPU family and stack), as columns [n, 1]."""
        reads = np.array([self._reads_of(gpu, stack) for gpu, stack in zip(gpus, stacks, strict=True)], dtype=np.int64)
        return {field: reads[:, [at]] for at, field in enumerate(FIELDS)}

    def coefficients(self, gpus: Sequence[str], stacks: Sequence[str], values: Vector | None = None) -> Coefficients:
        """The coefficients of each case, as columns [n, 1]."""
        taken = self.values if values is None else values
        return Coefficients(**{field: taken[index] for field, index in self.index(gpus, stacks).items()})

    def homes_of(self, family: str, stack: str) -> Iterator[str]:
        """Where a case looks for a coefficient, nearest first."""
        for kind, name, entries in (("stack", stack, self.stacks), ("gpu", family, self.gpus)):
            here: str | None = name
            while here is not None and here in entries:
                yield f"{kind} {here}"
                here = entries[here].get("like")
        yield COMMON

    def _reads_of(self, family: str, stack: str) -> tuple[int, ...]:
        key = (family, stack)
        if key not in self._reads:
            homes = list(self.homes_of(family, stack))
            self._reads[key] = tuple(
                next(self.place[home, field] for home in homes if (home, field) in self.place) for field in FIELDS
            )
        return self._reads[key]


@cache
def _shipped() -> Profiles:
    common, gpus, stacks = (_read(name) for name in ("common", "gpus", "stacks"))
    return Profiles(common, gpus, stacks)


@cache
def _read(name: str) -> dict[str, Any]:
    """A profile file, checked: an `InvalidError` names each field that is wrong."""
    text = files("crosszone.cost").joinpath("profiles", f"{name}.yaml").read_text("utf-8")
    return checked(name, text)


def checked(name: str, text: str) -> dict[str, Any]:
    """The content of `common`, `gpus` or `stacks`.yaml; an `InvalidError` names each field that is wrong."""
    document = parse_document(text, f"{name}.yaml")
    if name == COMMON:
        return _plain(parse(Common, document.value, document))
    kinds: dict[str, type[Home]] = {"gpus": Family, "stacks": Stack}
    kind = kinds[name]
    return {key: _plain(parse(kind, entry, document, at=(key,))) for key, entry in document.value.items()}


def _plain(home: Home) -> dict[str, Any]:
    return home.model_dump(exclude_unset=True)
