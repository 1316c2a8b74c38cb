"""Gpu: one kind of accelerator, with the figures of its datasheet."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from crosszone.inputs.value import Count, Flag, Name, NotNegative, Positive, Prose, Value

# GB/s of one lane, one direction: transfer rate x line code / 8 (PCI-SIG base specifications 1.0 to 6.0). [L1]
# 8b/10b to generation 2, 128b/130b from 3; generation 6 sends flits of 256 bytes, 242 of them payload.
PCIE_LANE_GB_PER_S = {
    1: 2.5 * 8 / 10 / 8,
    2: 5.0 * 8 / 10 / 8,
    3: 8.0 * 128 / 130 / 8,
    4: 16.0 * 128 / 130 / 8,
    5: 32.0 * 128 / 130 / 8,
    6: 64.0 * 242 / 256 / 8,
}


CPU = "cpu"  # Architecture of a machine's own processors, where these compute: ranks then talk over Gloo


class Peaks(Value):
    """Dense peak rates in TFLOP/s by precision; none: the GPU has no such path."""

    fp32: Positive | None = None
    """Plain fp32."""
    tf32: Positive | None = None
    """Tensor, TF32."""
    fp16: Positive | None = None
    """Tensor, fp16 with fp32 accumulation."""
    bf16: Positive | None = None
    """Tensor, bf16 with fp32 accumulation."""
    fp8: Positive | None = None
    """Tensor, fp8."""
    fp4: Positive | None = None
    """Tensor, fp4."""


class FastLink(Value):
    """The fast link between the GPUs of one domain (NVLink, Infinity Fabric, ...)."""

    kind: Name
    """nvlink3, infinity-fabric, ..."""
    gb_per_s_both_ways: Positive
    """GB/s of one GPU, both directions added, as datasheets print it."""
    domain: Count
    """GPUs of one domain in the usual system."""
    spans_nodes: Flag = False
    """The domain reaches beyond a node (rack-scale systems)."""

    @property
    def gb_per_s(self) -> float:
        """GB/s of one GPU, one direction."""
        return self.gb_per_s_both_ways / 2


class Pcie(Value):
    """The PCIe slot."""

    generation: Annotated[int, Strict(), Field(ge=1, le=6)]
    """PCIe generation."""
    lanes: Annotated[int, Strict(), Field(ge=1, le=32)] = 16
    """Lanes."""

    @property
    def gb_per_s(self) -> float:
        """GB/s, one direction. [L1]"""
        return PCIE_LANE_GB_PER_S[self.generation] * self.lanes


class UsualMachine(Value):
    """The machine a GPU is usually sold in: what a scenario that leaves it out may mean."""

    gpus: Count
    """GPUs of one node."""
    nic_gbps_per_gpu: Positive
    """Network rate of one GPU for traffic between nodes, Gbit/s, one direction."""
    memory_gib: Positive | None = None
    """Host memory of a node, GiB; null: differs from maker to maker."""


class Gpu(Value):
    """One kind of GPU. Peaks are dense; bandwidth of device memory in GB/s; memory in GiB."""

    name: Name
    """Catalogue name, e.g. a100-80gb-sxm."""
    aliases: tuple[Name, ...] = ()
    """Other names it goes by."""
    vendor: Name = "custom"
    """nvidia, amd, huawei, intel, ..."""
    architecture: Name = "custom"
    """ampere, hopper, cdna3, ...: a GPU without measurements borrows from its family."""
    form: Literal["sxm", "pcie", "oam", "superchip", "board", "custom"] = "custom"
    """How it is built in."""
    year: Annotated[int, Strict(), Field(ge=2000, le=2100)] | None = None
    """Year of launch."""
    dense_tflops: Peaks
    """Dense peak by precision, TFLOP/s."""
    memory_gib: Positive
    """Usable device memory, GiB."""
    memory_gb_per_s: Positive
    """Bandwidth of device memory, GB/s."""
    link: FastLink | None = None
    """Fast link between GPUs; null: PCIe only."""
    pcie: Pcie = Pcie(generation=4)
    """Its PCIe slot; default: generation 4, 16 lanes."""
    usual_machine: UsualMachine | None = None
    """The node it is usually built into; null: none is usual."""
    tdp_w: Positive | None = None
    """Board power, W."""
    usd_per_hour: NotNegative | None = None
    """Typical price of one GPU for an hour, $; null: not known."""
    sources: dict[Name, Name] = Field(default_factory=dict)
    """Where the figures come from: `default`, or a key of its own."""
    notes: Prose = ""
    """What a reader should know."""

    def find_source(self, figure: str) -> str | None:
        """Id of the source of one figure."""
        return self.sources.get(figure, self.sources.get("default"))

    @property
    def is_cpu(self) -> bool:
        """It is no GPU: the machine's own processors compute."""
        return self.architecture == CPU

    def __hash__(self) -> int:
        # `sources` is a dict, which has no hash; equal GPUs are equal in these, and few others are
        return hash((self.name, self.memory_gib, self.memory_gb_per_s, self.dense_tflops))

    def peak(self, precision: str) -> float | None:
        """Dense peak in TFLOP/s of a compute precision (fp32, tf32, fp16, bf16, fp8, fp4)."""
        value: Any = getattr(self.dense_tflops, precision)
        return None if value is None else float(value)
