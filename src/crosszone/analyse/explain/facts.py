"""Facts: the numbers of one predicted case as inputs of formulas, each with where it comes from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from crosszone.analyse.explain.form import Given, Words
from crosszone.cost.memory_profile import memory_entries
from crosszone.inputs.cluster import NodeGroup
from crosszone.predict.batch import Batch
from crosszone.predict.cells import cell, row_of
from crosszone.predict.prediction import Prediction, Triple
from crosszone.predict.predictor import Predictor
from crosszone.predict.step import StageTimes

STRATEGY = ("tp", "pp", "dp", "cp", "ep", "micro_batch", "interleave", "zero")
JOB = {"seq": "seq_len", "global_batch": "global_batch"}
GPU_FIGURES = {
    "flops_16": ("FLOP/s", "dense_tflops"),
    "flops_path": ("FLOP/s", "dense_tflops"),
    "memory_bytes_per_s": ("bytes/s", "memory_gb_per_s"),
    "link_bytes_per_s": ("bytes/s", "link"),
    "pcie_bytes_per_s": ("bytes/s", "pcie"),
}
"""Columns of a GPU: their unit, and the datasheet's figure they come from."""


@dataclass(frozen=True)
class Facts:
    """A predictor and its prediction, asked for single numbers.

    Times are those of the stage that sets the pace, of the replica that ends last, at the expected round-trip times.
    """

    p: Predictor
    prediction: Prediction
    looked_at: int | None = None
    """The stage to look at in place of the one that sets the pace."""

    def on(self, stage: int) -> Facts:
        """The same, looking at one stage."""
        return replace(self, looked_at=stage)

    def here(self, name: str) -> str:
        """Path of a figure of this stage."""
        return f"stage[{self.stage}].{name}"

    @cached_property
    def t(self) -> StageTimes:
        """Times of every stage."""
        return self.p.step.times

    @property
    def batch(self) -> Batch:
        """The columns that the formulas read."""
        return self.p.batch

    @cached_property
    def stage(self) -> int:
        """The stage that is looked at, else the one that works longest for a micro-batch and so sets the pace."""
        if self.looked_at is not None:
            return self.looked_at
        return int(np.argmax(row_of(self.t.forward + self.t.backward, self.p.row)))

    def at(self, values: Any) -> float:
        """An entry of an array [rows, stages]."""
        return float(cell(values, self.p.row, self.stage))

    def group(self) -> NodeGroup:
        """The node group that holds a stage of the slowest replica."""
        return self.p.site.groups[self._group_number()]

    def _group_number(self) -> int:
        replica = int(self.p.site.kinds[0][self.p.slowest])
        return int(self.p.site.group[self.stage, replica, 0, 0])

    def k(self, name: str) -> Given:
        """A coefficient with its home, origin and error."""
        number = self._group_number()
        profile, known = self.p.profile[number], self.p.profiles
        homes = known.homes_of(profile.family, profile.stack)
        place = next(known.place[home, name] for home in homes if (home, name) in known.place)
        home, entry = known.names[place][0], known.entries[place]
        return Given(
            value=float(getattr(profile.coefficients, name)),
            words=Words(f"k_{name}"),
            unit="s" if name.endswith("_s") and not name.endswith("per_s") else "",
            origin="profile",
            where=f"{home} ({entry['origin']})",
            error=float(entry["error"]),
        )

    def memory_k(self, name: str) -> Given:
        """A coefficient of the memory formulas."""
        entry = memory_entries(self.p.stack)[name]
        error = entry.get("error")
        return Given(
            value=float(entry["value"]),
            words=Words(f"km_{name}"),
            unit="GiB" if name.endswith("_gib") else "",
            origin="profile",
            where=f"memory, {self.p.stack} ({entry['origin']})",
            error=None if error is None else float(error),
        )

    def gpu(self, name: str) -> Given:
        """A figure of the GPU or its node."""
        value = self.at(getattr(self.batch.gpu, name))
        group = self.group()
        words = Words(f"gpu_{name}", {"gpu": group.gpu.name})
        if name in GPU_FIGURES:
            unit, figure = GPU_FIGURES[name]
            source = group.gpu.source_of(figure)
            where = f"gpus/{group.gpu.name}" + (f" [{source}]" if source else "")
            return Given(value=value, words=words, unit=unit, origin="catalogue", where=where)
        if name == "nic_bytes_per_s":
            typed = group.nic_gbps_node is not None
            key = "nic_gbps_per_gpu" if group.nic_gbps_per_gpu is not None else "nic_gbps"
            where = f"cluster.zones[].nodes[].{key}" if typed else "example_nic_gbps"
            return Given(value=value, words=words, unit="bytes/s", origin="scenario" if typed else "rule", where=where)
        return Given(value=value, words=words, origin="rule", where="cluster, placement")

    def work(self, name: str) -> Given:
        """A figure of job and strategy."""
        value = self.at(getattr(self.batch.work, name))
        if name in STRATEGY:
            return Given(value=value, words=Words(f"w_{name}"), origin="scenario", where=f"strategy.{name}")
        if name in JOB:
            return Given(value=value, words=Words(f"w_{name}"), origin="scenario", where=f"job.{JOB[name]}")
        unit = "bytes" if name.endswith("_bytes") or name in ("word", "gathered") else ""
        return Given(value=value, words=Words(f"w_{name}"), unit=unit, origin="rule", where="job, strategy, framework")

    def model(self, name: str) -> Given:
        """A figure of the model."""
        return Given(
            value=self.at(getattr(self.batch.model, name)), words=Words(f"m_{name}"), origin="scenario", where="model"
        )

    def counted(self, key: str, value: float, *, unit: str = "", where: str = "", **params: object) -> Given:
        """A number that follows from what was typed by a rule."""
        return Given(value=float(value), words=Words(key, params), unit=unit, origin="rule", where=where)

    def simulated(self, key: str, value: float, **params: object) -> Given:
        """Seconds that come out of the event simulation. [S3]"""
        return Given(value=float(value), words=Words(key, params), unit="s", origin="simulated", where="[S3]")

    def follows(self, path: str, value: float, words: Words, unit: str = "s") -> Given:
        """Another figure."""
        return Given(value=float(value), words=words, unit=unit, origin="figure", figure=path)

    def part(self, name: str) -> Given:
        """A part of the step."""
        return self.follows(f"breakdown_s.{name}", self.prediction.breakdown_s[name], Words(f"step_{name}"))

    def triple(self, path: str, which: Triple, words: Words, unit: str, side: str = "expected") -> Given:
        """A figure with a range, or one of its ends."""
        at = path if side == "expected" else f"{path}.{side}"
        told = words if side == "expected" else Words(f"end_{side}", {"of": words})
        return self.follows(at, getattr(which, side), told, unit)

    @cached_property
    def micro_batches(self) -> Given:
        """Micro-batches of the replica that ends last."""
        return self.counted("micro_batches", self.p.row_micro_batches, where="[R2]")
