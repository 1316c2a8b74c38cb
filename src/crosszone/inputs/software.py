"""Software: what training software does where its kind and release leave a choice (`job.software`).

    Software(release="25.09", attention="flash", launch="partial-graph")

A switch that is not stated has the default of the framework and the release (`software.yaml`); a release that is not
stated is the usual one of the GPU's generation. `settle_software` gives every switch its value and its origin.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, WithJsonSchema

from crosszone.errors import IllegalError, Notice
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import Flag, Name, Value, refuse

Origin = Literal["stated", "preset", "assumed"]
RELEASE = re.compile(r"\d\d\.(0[1-9]|1[0-2])")
YEARS_UNTIL_USUAL = 2.0  # From a GPU's year to the software that most published runs on it used
RecomputeModule = Literal["core_attn", "mla_up_proj", "mlp", "moe", "moe_act", "layernorm", "shared_experts"]


def _check_release(text: str) -> str:
    if not RELEASE.fullmatch(text):
        raise refuse("release_form", text)
    return text


ReleaseName = Annotated[
    Name, AfterValidator(_check_release), WithJsonSchema({"type": "string", "pattern": f"^{RELEASE.pattern}$"})
]


class Software(Value):
    """What the training software does; null: assumed, by framework and release."""

    release: ReleaseName | None = None
    """Year and month of the software, such as 25.09; null: the usual one of the GPU's generation."""
    attention: Literal["flash", "flash-2", "triton", "softmax", "plain"] | None = None
    """flash: one kernel made for this GPU generation (cuDNN, FlashAttention 3); flash-2: FlashAttention 2, made for
    Ampere; triton: a kernel written in Triton; softmax: two matmuls and a fused softmax; plain: none fused."""
    launch: Literal["eager", "blocking", "partial-graph", "full-graph", "compiled"] | None = None
    """Launches of kernels: one by one, each waited for, attention and router or all in CUDA graphs, or compiled."""
    dispatcher: Literal["alltoall", "deepep", "hybridep"] | None = None
    """How tokens reach their experts."""
    expert_overlap: Flag | None = None
    """The exchange of experts hides below the other micro-batch's compute."""
    context_exchange: Literal["ring", "all-to-all", "all-gather"] | None = None
    """What context parallelism exchanges: keys and values in a ring or gathered, or heads for sequence (Ulysses)."""
    attention_precision: Literal["bf16", "fp8"] | None = None
    """Precision of the attention core."""
    recompute_modules: tuple[RecomputeModule, ...] | None = None
    """What selective recomputation computes again; null: as the framework does."""


SWITCHES = tuple(Software.model_fields)
# Options of communication that have a default by framework and release too.
COMMUNICATION_DEFAULTS = ("overlap_gradients", "overlap_parameters", "overlap_tensor")


@dataclass(frozen=True, kw_only=True)
class SettledSoftware:
    """Every switch with its value, and where it is from."""

    values: Mapping[str, Any]
    origins: Mapping[str, Origin]
    release: float
    """Years after 2000: 25.75 is September 2025."""

    def __getitem__(self, switch: str) -> Any:
        return self.values[switch]


@cache
def load_software_rules() -> dict[str, Any]:
    """`software.yaml`."""
    loaded: dict[str, Any] = read_shipped("crosszone.inputs", "software.yaml").value
    return loaded


def parse_release(release: str) -> float:
    """Years after 2000 of a release year.month."""
    year, month = release.split(".")
    return int(year) + int(month) / 12.0


def format_release(release: float) -> str:
    """Year and month of a release: what `parse_release` reads."""
    year, month = divmod(round(12 * release) - 1, 12)  # months count from 1: 26.0 is December 2025
    return f"{year:02d}.{month + 1:02d}"


def parse_stack(text: str | None) -> tuple[str | None, float | None]:
    """A stack may name its release: `megatron-core@25.09` (year.month)."""
    if text is None or "@" not in text:
        return text, None
    name, _, release = text.partition("@")
    if not RELEASE.fullmatch(release):
        raise IllegalError(Notice(code="stack_release", field="job.stack", value=text))
    return name, parse_release(release)


def find_release(software: Software | None, stack: str | None, gpus: Iterable[Gpu]) -> float:
    """The release that is stated, else the usual one of the newest generation among the GPUs. [J4]"""
    if software is not None and software.release is not None:
        return parse_release(software.release)
    stated = parse_stack(stack)[1]
    return stated if stated is not None else max(_find_gpu_release(gpu) for gpu in gpus)


def find_release_gpu(software: Software | None, stack: str | None, gpus: Iterable[Gpu]) -> Gpu | None:
    """The GPU whose generation sets the release; None where the release is stated."""
    if (software is not None and software.release is not None) or parse_stack(stack)[1] is not None:
        return None
    return max(gpus, key=_find_gpu_release)


def _find_gpu_release(gpu: Gpu) -> float:
    releases: dict[str, float] = load_software_rules()["releases"]
    usual = releases.get(gpu.name, releases.get(gpu.architecture or ""))
    return usual if usual is not None else (gpu.year or 2022) - 2000.0 + YEARS_UNTIL_USUAL


@lru_cache(maxsize=256)
def select_defaults(framework: str, release: float, architecture: str | None) -> Mapping[str, Any]:
    """Default of every switch, and of the options of a strategy that have one, for a framework, release and GPU."""
    rules = load_software_rules()["defaults"]
    chosen: dict[str, Any] = {}
    for name in ("common", framework):
        for era in rules.get(name, ()):
            if era["from"] <= release and architecture in era.get("on", (architecture,)):
                chosen |= {key: value for key, value in era.items() if key not in ("from", "on")}
    return MappingProxyType(chosen)


def find_newest_architecture(gpus: Iterable[Gpu]) -> str | None:
    """Architecture of the newest GPU: what its software is made for."""
    return max(gpus, key=_find_gpu_release).architecture


def settle_software(
    software: Software | None,
    framework: str,
    preset: Mapping[str, Any],
    release: float,
    architecture: str | None,
    seq_len: int,
) -> SettledSoftware:
    """Every switch: as stated, else as the named stack has it, else the default of framework and release. [J4]"""
    stated = {} if software is None else {k: v for k, v in software if v is not None and k != "release"}
    defaults = select_defaults(framework, release, architecture)
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for switch in SWITCHES:
        if switch == "release":
            continue
        if switch in stated:
            values[switch], origins[switch] = stated[switch], "stated"
        elif switch in preset:
            values[switch], origins[switch] = preset[switch], "preset"
        else:
            values[switch], origins[switch] = defaults.get(switch), "assumed"
    writes_scores = values["attention"] in ("softmax", "plain")
    if origins["attention"] == "assumed" and writes_scores and seq_len > load_software_rules()["longest_unfused"]:
        values["attention"] = "flash"
    return SettledSoftware(values=values, origins=origins, release=release)
