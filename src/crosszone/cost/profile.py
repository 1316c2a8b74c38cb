"""Profiles: the coefficients of GPU families and software stacks, with their origin and error (`profiles/*.yaml`).

    profile = Profiles.load().select(gpu, "megatron-core")
    profile.coefficients.matmul, profile.gpu_measured

A coefficient has three possible homes: a stack, a GPU family, and `common`; the first that has it wins (`like` names
where a stack or family looks next). For a fit, all values are one vector and `index` says which of them a case reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.coefficients import COMMON, FIELDS, Coefficients, read_profile_file
from crosszone.cost.measured_links import CollectiveTimings
from crosszone.cost.own_profiles import Overlay, OwnProfile, get_overlay
from crosszone.errors import build_choice_error
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.job import Job
from crosszone.inputs.software import SettledSoftware, settle_software

# Family of a GPU that is like no measured one, and stack of unknown software: common values.
GENERIC = "generic"

Vector = npt.NDArray[np.float64]


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
        homes = {f"gpu {name}": entry for name, entry in gpus.items()}
        self._homes: dict[str, dict[str, Any]] = {
            COMMON: common,
            **homes,
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
        self.own: str | None = None
        """Name of the user's profile that lies over the shipped ones."""
        self.links: CollectiveTimings | None = None
        """Collectives timed on the user's cluster."""
        self._reads: dict[tuple[str, str], tuple[int, ...]] = {}
        self._software: dict[tuple[Any, ...], SettledSoftware] = {}
        self._selected: dict[tuple[Gpu, str, float | None], Profile] = {}

    @classmethod
    def load(cls) -> Profiles:
        """The shipped profiles, with the user's own one in use over them; read and checked once."""
        overlay = get_overlay()
        return _load_shipped() if overlay is None else _overlay_profiles(overlay)

    @classmethod
    def load_shipped(cls) -> Profiles:
        """The shipped profiles alone: what fits start from and tables score."""
        return _load_shipped()

    def home(self, name: str) -> dict[str, Any]:
        """The content of one home: `common`, `gpu NAME` or `stack NAME`."""
        return self._homes[name]

    def with_values(self, values: Vector) -> Profiles:
        """The same profiles with other values, as a fit gives them."""
        other = Profiles(self._homes[COMMON], self.gpus, self.stacks)
        other.values, other.own, other.links = values, self.own, self.links
        return other

    def with_own(self, own_profile: OwnProfile) -> Profiles:
        """The same with an own profile over them: each GPU kind it names is a family, like the one it was of."""
        gpus = {name: dict(entry) for name, entry in self.gpus.items()}
        for name, gpu_entry in own_profile.gpus.items():
            gpu = catalogue().gpu(name)
            family = self.find_family(gpu)[0]
            base = gpus.get(family)
            if base is not None:
                base["gpus"] = tuple(name_of_gpu for name_of_gpu in base["gpus"] if name_of_gpu != gpu.name)
            new_family: dict[str, Any] = {
                "gpus": (gpu.name,),
                "vendor": gpu.vendor,
                "year": gpu.year,
                "source": own_profile.source,
            }
            new_family |= {"like": family} if base is not None else {}
            new_family |= {"stacks": own_profile.for_stacks} if own_profile.for_stacks else {}
            # in front: `find_family` takes the first family that lists a GPU
            gpus = {f"{gpu.name} {own_profile.name}": {**new_family, "coefficients": _read_values(gpu_entry)}, **gpus}
        stacks = dict(self.stacks)
        for name, gpu_entry in own_profile.stacks.items():
            entry = stacks[self.select_stack(name, name)]
            stacks[name] = {**entry, "measured": True, "coefficients": entry["coefficients"] | _read_values(gpu_entry)}
        other = Profiles(self._homes[COMMON], gpus, stacks)
        other.own = own_profile.name
        other.links = CollectiveTimings(own_profile.collectives) if own_profile.collectives else self.links
        return other

    def find_family(self, gpu: Gpu) -> tuple[str, bool]:
        """The family whose coefficients a GPU takes, and whether it was measured (else derived)."""
        for name, entry in self.gpus.items():
            if gpu.name in entry["gpus"]:
                return name, True
        for name, entry in self.gpus.items():
            if gpu.architecture == entry.get("architecture"):
                return name, False
        same_vendor = {n: e for n, e in self.gpus.items() if e["vendor"] == gpu.vendor and "architecture" in e}
        if not same_vendor or gpu.year is None:
            return GENERIC, False
        year = gpu.year
        return min(same_vendor, key=lambda name: abs(same_vendor[name]["year"] - year)), False

    def select_stack(self, framework: str, stack: str | None, release: float = math.inf) -> str:
        """The stack of a job: the one it names, else the default of its framework for a release."""
        if stack is None:
            since = {
                name: entry.get("default_from", 0.0)
                for name, entry in self.stacks.items()
                if framework in entry.get("default_of", ()) and entry.get("default_from", 0.0) <= release
            }
            return max(since, key=lambda name: since[name], default=GENERIC)
        if stack not in self.stacks:
            raise build_choice_error("job.stack", stack, self.stacks)
        return stack

    def settle_software(
        self, job: Job, framework: str, stack: str, release: float, architecture: str | None
    ) -> SettledSoftware:
        """Every switch of a job's software: as stated, else as its stack has it, else assumed."""
        is_named = job.stack is not None
        key = (job.software, framework, stack, is_named, release, architecture, job.seq_len)
        if key not in self._software:
            # the usual stack of a framework brings its coefficients; switches follow release and GPU unless it is named
            preset = self.stacks[stack]["settings"] if is_named else {}
            self._software[key] = settle_software(job.software, framework, preset, release, architecture, job.seq_len)
        return self._software[key]

    def select(self, gpu: Gpu, stack: str, speed: float | None = None) -> Profile:
        """What one GPU kind and stack are predicted with; remembered. `speed`: of a trial of these very GPUs."""
        key = (gpu, stack, speed)
        if key not in self._selected and speed is not None:
            profile = self.select(gpu, stack)
            # a trial ran on these very GPUs, so that they count as measured whatever their family is
            tried = profile.coefficients.scale_to_speed(speed)
            self._selected[key] = replace(profile, gpu_measured=True, coefficients=tried)
        elif key not in self._selected:
            family, measured = self.find_family(gpu)
            reads = self._find_reads(family, stack)
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
        reads = np.array(
            [self._find_reads(gpu, stack) for gpu, stack in zip(gpus, stacks, strict=True)], dtype=np.int64
        )
        return {field: reads[:, [at]] for at, field in enumerate(FIELDS)}

    def coefficients(self, gpus: Sequence[str], stacks: Sequence[str], values: Vector | None = None) -> Coefficients:
        """The coefficients of each case, as columns [n, 1]."""
        source = self.values if values is None else values
        return Coefficients(**{field: source[index] for field, index in self.index(gpus, stacks).items()})

    def iterate_homes(self, family: str, stack: str) -> Iterator[str]:
        """Where a case looks for a coefficient, nearest first."""
        for kind, name, entries in (("stack", stack, self.stacks), ("gpu", family, self.gpus)):
            home: str | None = name
            while home is not None and home in entries:
                if stack in (entries[home].get("stacks") or (stack,)):
                    yield f"{kind} {home}"
                home = entries[home].get("like")
        yield COMMON

    def list_ancestors(self, scope: str) -> list[str]:
        """Homes that a home's values lie about, nearest first: those it is like, then the common one."""
        kind, _, name = scope.partition(" ")
        entries = self.stacks if kind == "stack" else self.gpus
        ancestors = []
        like = entries[name].get("like") if name else None
        while like is not None:
            ancestors.append(f"{kind} {like}")
            like = entries[like].get("like")
        return [*ancestors, COMMON]

    def _find_reads(self, family: str, stack: str) -> tuple[int, ...]:
        key = (family, stack)
        if key not in self._reads:
            homes = list(self.iterate_homes(family, stack))
            self._reads[key] = tuple(
                next(self.place[home, field] for home in homes if (home, field) in self.place) for field in FIELDS
            )
        return self._reads[key]


def _read_values(coefficients: Mapping[str, Any]) -> dict[str, Any]:
    return {field: coefficient.model_dump() for field, coefficient in coefficients.items()}


@cache
def _load_shipped() -> Profiles:
    common, gpus, stacks = (read_profile_file(name) for name in ("common", "gpus", "stacks"))
    return Profiles(common, gpus, stacks)


@lru_cache(maxsize=8)
def _overlay_profiles(overlay: Overlay) -> Profiles:
    """The shipped profiles with one of the user's over them, made once for each state of its file."""
    return _load_shipped().with_own(overlay.profile)


def format_stack(stack: str, release: float | None) -> str:
    """A stack with its release, as `parse_stack` reads it: 25.75 is September 2025."""
    if release is None:
        return stack
    months = round(12 * release) - 1
    return f"{stack}@{months // 12:02d}.{months % 12 + 1:02d}"
