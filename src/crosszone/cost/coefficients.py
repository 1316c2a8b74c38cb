"""Coefficients: the few physical numbers that are fitted or assumed, by name.

A coefficient has one home: `common` (all GPUs and stacks), a GPU family, or a software stack; a home nearer to the case
wins. Each field is a number or an array, as in `columns`.

Files of coefficients: what `profiles/common.yaml`, `gpus.yaml` and `stacks.yaml` hold, checked field by field.

    read_profile_file("gpus")["a100"]["coefficients"]["matmul"]["value"]

Bands: how far a measured step or memory may lie from the predicted one (`profiles/bands.yaml`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Literal

import numpy as np
from pydantic import field_validator

from crosszone.cost.columns import Numbers
from crosszone.cost.record import named
from crosszone.inputs.document import Document
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import Flag, Name, NotNegative, Value, find_nearest_names, parse, refuse


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """Shares of a peak have no unit; times are seconds; traffic is a factor on the bytes a formula counts."""

    # GPU family
    matmul: Numbers
    """Share of the 16-bit peak that large matmuls reach."""
    matmul_fp8: Numbers
    """Share of the fp8 peak."""
    nvfp4: Numbers
    """Share of the fp4 peak over that of the fp8 peak."""
    flash_fp8: Numbers
    """Rate of the fused attention in fp8 over that in 16 bit."""
    rowwise: Numbers
    """Rate of fp8 with one scale per row over one per tensor."""
    mxfp8: Numbers
    """Rate of fp8 with block scales over plain fp8."""
    flash: Numbers
    """Share of the 16-bit peak of the fused attention's forward pass (only unmasked scores counted)."""
    flash_width: Numbers
    """Width of a head at which the fused attention loses half of what wider heads could add."""
    flash_ramp: Numbers
    """Tokens of a sequence at which the fused attention reaches half of its rate."""
    older_flash: Numbers
    """Rate of fused attention made for an older generation of GPUs over that of the vendor's kernel."""
    triton: Numbers
    """Rate of fused attention written in Triton over that of FlashAttention 2."""
    mamba: Numbers
    """Time of a Mamba-2 layer's core and of the kernels around it over that of their counted work."""
    sink_rate: Numbers
    """Rate of fused attention with sinks over that without."""
    # operators
    tile: Numbers
    """Share of a matmul's operand traffic that adds to its arithmetic."""
    batched: Numbers
    """Share of the 16-bit peak of batched matmuls (unfused attention)."""
    memory: Numbers
    """Share of the memory rate that elementwise kernels reach."""
    flash_backward: Numbers
    """Backward over forward time of the fused attention."""
    score_traffic: Numbers
    """Passes over the score matrix of unfused attention, over the fused softmax's."""
    plain_scores: Numbers
    """Passes over the scores of a softmax of plain kernels over the fused one's."""
    plain_launch: Numbers
    """Launch time of a layer with such a softmax over one with the fused."""
    grouped: Numbers
    """Rate of grouped (expert) matmuls over dense ones, with many tokens for each expert."""
    grouped_ramp: Numbers
    """Tokens of an expert at which grouped matmuls reach half of that rate."""
    elementwise: Numbers
    """Traffic of norms, activations, residuals, copies over that of fused kernels."""
    written_out: Numbers
    """Passes over the residual stream that RMSNorm and rotary positions add where they are single operations."""
    written_out_launch: Numbers
    """Launch time of a layer with these over one whose norms are fused and whose positions are not rotary."""
    compiled: Numbers
    """Traffic of elementwise operators that a compiler fused over that of the framework's own kernels."""
    cast: Numbers
    """Passes over the inputs of linear layers to quantise them with one scale a tensor."""
    mxfp8_cast: Numbers
    """Passes to quantise with block scales over those with one scale a tensor."""
    nvfp4_cast: Numbers
    """Passes to quantise to nvfp4 over those to fp8 with one scale a tensor."""
    unaligned_heads: Numbers
    """Time of unfused attention's matmuls where a head's width is no multiple of 8, over aligned ones."""
    unaligned: Numbers
    """Time of the head's matmul where the vocabulary is no multiple of 8, over an aligned one."""
    head_traffic: Numbers
    """Bytes moved per logit by the loss, forward and backward."""
    optimizer_traffic: Numbers
    """Bytes moved per parameter whose states are local."""
    host_update_per_s: Numbers
    """Parameters a second that the CPUs of a node update (offloaded optimizer)."""
    pcie: Numbers
    """Share of the PCIe rate that copies to and from host memory reach."""
    # host
    host_s: Numbers
    """Launch time of a layer's forward pass on the host."""
    mla_launch: Numbers
    """Launch time that latent attention adds, over that of a dense layer."""
    moe_launch: Numbers
    """Launch time that router, dispatch and experts add, over that of a dense layer."""
    cast_launch: Numbers
    """Launch time that quantising adds, over that of a dense layer."""
    partial_graph: Numbers
    """Launch time left where attention and router are captured in CUDA graphs."""
    full_graph: Numbers
    """Launch time left where a whole iteration is captured."""
    compiled_launch: Numbers
    """Launch time of a compiled layer over an eager one's."""
    collective_host_s: Numbers
    """More launch time for each tensor-parallel collective and further rank."""
    pipeline_host_s: Numbers
    """Host time of a layer for each further tensor-parallel rank in a pipeline: ranks that wait for each other."""
    host_backward: Numbers
    """Launch time of a layer's backward pass over the forward's."""
    # tensor parallelism
    tp_exposed: Numbers
    """Share of a tensor-parallel collective that does not hide below matmuls."""
    tp_message_s: Numbers
    """Fixed time of a tensor-parallel collective: its launch."""
    tp_node_s: Numbers
    """More of it for each further node that the tensor-parallel ranks lie on."""
    skew: Numbers
    """Share of a stage's work that tensor-parallel ranks wait for the slowest of them."""
    link: Numbers
    """Share of the fast link's rate that collectives reach."""
    nic: Numbers
    """Share of the network's rate that collectives reach."""
    nic_spread: Numbers
    """Loss of network rate per doubling of the nodes."""
    # pipeline
    p2p_exposed: Numbers
    """Share of a pipeline send that adds to the stage's time."""
    p2p_message_s: Numbers
    # data parallelism
    dp_traffic: Numbers
    """Time of gradient exchange over that of an ideal ring."""
    shard_message_s: Numbers
    """Fixed time of a gather for each rank that holds a shard."""
    dp_contention: Numbers
    """Share of an overlapped exchange that still slows compute."""
    fsdp_contention: Numbers
    """The same for gathers and reductions of every layer."""
    # experts
    permute: Numbers
    """Passes over the routed tokens to sort them by expert and back."""
    fused_dispatch: Numbers
    """Passes of a dispatcher that sorts while it sends (DeepEP, HybridEP) over separate kernels'."""
    moe_s: Numbers
    """Launch and synchronisation time of an MoE layer's dispatch."""
    a2a_exposed: Numbers
    """Share of the all-to-all that does not hide."""
    a2a_rate: Numbers
    """Rate of an all-to-all over that of a ring on the same links."""
    expert_overlap: Numbers
    """Of that, what is left where it runs beside the other micro-batch."""
    release_decay: Numbers
    """Sorting and synchronising of MoE layers fall by this factor's exponent a year of releases."""
    # context parallelism
    cp_exposed: Numbers
    """Share of a hidden key/value exchange that still costs."""
    # scale
    step_s: Numbers
    """Fixed time of a step: batch, norms, logging."""
    jitter: Numbers
    """Growth of the step per doubling of the nodes."""
    selective_share: Numbers
    """Share of a layer's matmuls that selective recomputation repeats."""

    def scale_to_speed(self, speed: float) -> Coefficients:
        """The same where everything a GPU computes, and its launches, take 1 / speed of their time."""
        rates = {name: getattr(self, name) * speed for name in RATES}
        return replace(self, **rates, **{name: getattr(self, name) / speed for name in TIMES})


# Coefficients that the rate of a GPU's work is proportional to.
RATES = ("matmul", "matmul_fp8", "flash", "batched", "memory", "host_update_per_s")
# Coefficients that the time of its work is proportional to.
# `tile` too: it is a share of the time that the datasheet's memory rate gives, and that rate stays. [O1]
TIMES = ("tile", "host_s", "collective_host_s", "pipeline_host_s", "moe_s", "step_s")


FIELDS = tuple(f.name for f in fields(Coefficients))
COMMON = "common"

Origin = Literal["fitted", "measured", "datasheet", "published", "assumed"]


def check_field_names(coefficients: dict[str, Coefficient]) -> dict[str, Coefficient]:
    """The same; a name that is no coefficient is refused."""
    for key in coefficients:
        if key not in FIELDS:
            raise refuse(
                "unknown_key", key, at=(key,), known=sorted(FIELDS), nearest=find_nearest_names(key, FIELDS)[:1]
            )
    return coefficients


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
    def _check_fields(cls, coefficients: dict[str, Coefficient]) -> dict[str, Coefficient]:
        return check_field_names(coefficients)


class Common(Home):
    """The home of every coefficient."""

    @field_validator("coefficients")
    @classmethod
    def _check_complete(cls, coefficients: dict[str, Coefficient]) -> dict[str, Coefficient]:
        for key in FIELDS:
            if key not in coefficients:
                raise refuse("missing_key", key=key)
        return coefficients


class GpuFamily(Home):
    """GPUs that behave alike."""

    gpus: tuple[Name, ...]
    vendor: Name
    year: int
    architecture: Name | None = None
    """GPUs of this architecture that no family lists take this one."""
    stacks: tuple[Name, ...] = ()
    """Its kernels were timed alone: values for these stacks, fitted beside them; others take those of `like`."""
    like: Name | None = None
    power_share: float = 1.0
    """Power limit over that of the family it is like: rates are expected to fall with its cube root."""


class StackSettings(Value):
    """What a stack does; explained in stacks.yaml."""

    attention: Literal["flash", "flash-2", "triton", "softmax", "plain"] | None = None
    launch: Literal["eager", "blocking", "partial-graph", "full-graph", "compiled"] | None = None
    dispatcher: Literal["alltoall", "deepep", "hybridep"] | None = None
    context_exchange: Literal["ring", "all-to-all", "all-gather"] | None = None
    p2p_scatter: Flag = False
    p2p_wait: Literal["none", "sent", "arrived"] = "none"
    p2p_both_ends: Flag = False
    p2p_mask: Flag = False
    partitioned: Flag = False
    zero1_all_reduce: Flag = False


class Stack(Home):
    """Software whose jobs behave alike."""

    title: str
    framework: Name
    default_of: tuple[Name, ...] = ()
    default_from: float = 0.0
    """Release from which it is the default."""
    like: Name | None = None
    measured: Flag = True
    """Runs of it were seen, though it may have no coefficients of its own."""
    settings: StackSettings


@cache
def read_profile_file(name: str) -> dict[str, Any]:
    """A profile file that comes with the program, checked: an `InvalidError` names each field that is wrong."""
    return parse_profile_file(name, read_shipped("crosszone.cost", f"profiles/{name}.yaml"))


def parse_profile_file(name: str, document: Document) -> dict[str, Any]:
    """The content of `common`, `gpus` or `stacks`.yaml; an `InvalidError` names each field that is wrong."""
    if name == COMMON:
        return _dump_set_fields(parse(Common, document.value, document))
    kinds: dict[str, type[Home]] = {"gpus": GpuFamily, "stacks": Stack}
    kind = kinds[name]
    return {key: _dump_set_fields(parse(kind, entry, document, at=(key,))) for key, entry in document.value.items()}


def _dump_set_fields(home: Home) -> dict[str, Any]:
    # unset fields stay out: `Profiles.find_family` tells families by whether they name an architecture at all
    return home.model_dump(exclude_unset=True)


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What is known of a case: each thing that is not makes its range wider. [Q6]"""

    software_stated: bool = True
    """A stack is named; else switches and coefficients are those of the framework's usual software."""
    stack_measured: bool = True
    gpu_measured: bool = True
    moe: bool = False
    stated: bool = True
    """All of the set-up is stated."""
    option_measured: bool = True
    """Runs with its options were seen (not: offload, compression, local updates)."""

    @property
    def gaps(self) -> tuple[str, ...]:
        """Parts of the range that apply, by their names in bands.yaml."""
        applies = {
            "base": True,
            "software": not self.software_stated and not self.moe,
            "software_moe": not self.software_stated and self.moe,
            "moe": self.moe,
            "assumed": not self.stated,
            "stack": not self.stack_measured,
            "gpu": not self.gpu_measured,
            "option": not self.option_measured,
        }
        return tuple(name for name, on in applies.items() if on)


def compute_band_factors(known: Knowledge, *, inputs: tuple[Any, Any] = (0.0, 0.0)) -> tuple[Any, Any]:
    """Factors on a prediction between which four of five measured values lie: (low, high). [Q6]

    Log widths add as independent errors do: sqrt(base^2 + each that applies^2), below and above apart; `inputs`: log
    widths of inputs that nobody gave.
    """
    parts = read_band_parts()["step"]
    low, high = (
        np.sqrt(
            sum(named(f"width.step.{name}.{side}", float(parts[name][side])) ** 2 for name in known.gaps) + width**2
        )
        for side, width in zip(("low", "high"), inputs, strict=True)
    )
    return np.exp(-low), np.exp(high)


def compute_caution(known: Knowledge) -> float:
    """Factor on the time of a plan whose options no run was seen with, where plans are compared: at least 1. [Q14]

    A plan is ranked by its expected time and a share of its range. What all plans of a scenario lack cancels out, so
    that only the options count that one has and another has not.
    """
    if known.option_measured:
        return 1.0
    share = float(read_band_parts()["caution"]["share"])
    wide, narrow = (compute_band_factors(k)[1] for k in (known, replace(known, option_measured=True)))
    return float((wide / narrow) ** share)


def read_pair_spread() -> float:
    """Standard deviation of the difference of log(measured / predicted) between two strategies of one set-up. [W2]"""
    return float(read_band_parts()["pair"]["sd"])


@cache
def read_band_parts() -> dict[str, Any]:
    """Log widths of `step` by what makes them wide, and the spread of a `pair` of strategies."""
    loaded: dict[str, Any] = read_shipped("crosszone.cost", "profiles/bands.yaml").value
    return loaded
