"""The rig file: transfers measured between emulated zones, each beside what the cost model says of it.

    report = rig_report(Path("crosszone_rig.csv"))
    for line in report.summaries: print(line.experiment, line.op, line.median_best_pct)

Nothing is fitted here: every row is predicted from its own columns with the functions that predict a training step.

Training steps of the rig: gradients exchanged bucket by bucket while the backward pass still runs.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from crosszone.cost.gloo import gloo_all_reduce_s, gloo_barrier_s, gloo_send_s, gloo_turn_s
from crosszone.cost.tiers import figure
from crosszone.cost.wan import (
    Congestion,
    aggregate_bytes_per_s,
    flow_bytes_per_s,
    hosts_rtt_s,
    slow_start_s,
    window_bytes,
)
from crosszone.errors import FileError, InputError, Notice
from crosszone.inputs.document import read_text
from crosszone.inputs.shipped import read_shipped

FLOAT_BYTES = 4.0
MIB = 2.0**20


@dataclass(frozen=True, kw_only=True)
class RigJob:
    """What the rig trains: equal layers, each one matrix."""

    gradient_bytes: float
    """Of all layers, fp32."""
    layers: int
    matrix: tuple[int, int]
    """Rows and columns of a layer."""
    backward_s_per_layer: float
    memory_bytes_per_s: float
    """At which a rank copies gradients."""

    @property
    def layer_bytes(self) -> float:
        """Gradients of one layer."""
        return self.gradient_bytes / self.layers


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to exchange the gradients of that job."""

    bucket_mib: float
    """Size that closes a bucket."""
    passes: float
    """Times that the host reads or writes a bucket's gradients."""
    wire_bytes: float = FLOAT_BYTES
    """Of a gradient on the wire."""
    rank: int | None = None
    """Of PowerSGD's factors, which are reduced one after the other in place of the gradients."""
    steps: int = 1
    """Steps of compute that one exchange serves."""
    after: bool = False
    """The exchange begins when all compute is over."""
    mean: bool = False
    """What was timed is the mean of those steps, not their sum."""


def buckets(layers: int, layer_bytes: float, cap_bytes: float) -> list[int]:
    """Layers of each bucket, in the order in which the backward pass fills them. [A24]

    PyTorch's rule: a layer that reaches the cap closes the bucket, which may so be larger than it.
    """
    found, size = [0], 0.0
    for _ in range(layers):
        if found[-1] and size >= cap_bytes:
            found, size = [*found, 0], 0.0
        found[-1] += 1
        size += layer_bytes
    return found


def step_s(job: RigJob, variant: Variant, compute_s: float, all_reduce_s: Callable[[float], float]) -> float:
    """Seconds of what the rig timed: compute of a step is measured, the exchange predicted. [A24]

    A bucket is ready when the backward pass has left its first layer; buckets are exchanged one after the other; the
    step is over when the last is.
    """
    begun = (variant.steps - 1) * compute_s
    left, free = job.layers, 0.0
    for layers in buckets(job.layers, job.layer_bytes, variant.bucket_mib * MIB):
        left -= layers
        ready = compute_s - (0.0 if variant.after else left * job.backward_s_per_layer)
        host_s = variant.passes * layers * job.layer_bytes / job.memory_bytes_per_s
        free = max(free, ready) + host_s + sum(all_reduce_s(size) for size in _sent_bytes(job, variant, layers))
    total = begun + free
    return total / variant.steps if variant.mean else total


def _sent_bytes(job: RigJob, variant: Variant, layers: int) -> list[float]:
    """Sizes of the all-reduces of a bucket; what is no matrix would be one more, and an empty one costs nothing."""
    if variant.rank is None:
        return [layers * job.layer_bytes / FLOAT_BYTES * variant.wire_bytes]
    return [layers * variant.rank * side * variant.wire_bytes for side in job.matrix]


def rig_job() -> RigJob:
    """The job of the shipped description."""
    told, host = _data()["job"], _data()["host"]
    return RigJob(
        gradient_bytes=told["gradient_bytes"],
        layers=told["layers"],
        matrix=(told["matrix"][0], told["matrix"][1]),
        backward_s_per_layer=told["backward_s_per_layer"],
        memory_bytes_per_s=host["memory_bytes_per_s"]["value"],
    )


def variants() -> dict[str, Variant]:
    """The ways to exchange that the rig tried, by operation."""
    return {op: Variant(**told) for op, told in _data()["variants"].items()}


@cache
def _data() -> dict[str, Any]:
    loaded: dict[str, Any] = read_shipped("crosszone.calibrate", "rig_job.yaml").value
    return loaded


NEEDED = ("experiment", "zones", "ranks_per_zone", "rtt_ms", "link_mbit", "op", "unit", "median")
MAX_ROWS = 20_000
LEAST, MOST = 1e-15, 1e18  # Figures beyond are no measurement, and their errors no numbers
BYTES_PER_S_PER_MBIT = 1e6 / 8
_TCP = re.compile(r"tcp (reno|cubic|bbr) x(\d{1,4})")
_IDLE = re.compile(r"cc_(reno|cubic)_ssai1_idle([0-9.]{1,6})s")
_LOSS = re.compile(r"\bloss=([0-9.]{1,12})")
_BUFFER_MIB = re.compile(r"\bwmem=([0-9.]{1,6})MB")
_UNLIMITED = re.compile(r"rate=inf|no qdisc")

MACHINE = "measures the machine itself, which no column describes"
LAYERS = "is a step of another job than the one whose layers and compute are known"
COMPUTE = "is compute only; the other rows of its kind are predicted from it"
UNKNOWN = "is of a kind the cost model does not know"


@dataclass(frozen=True, kw_only=True)
class RigRow:
    """One measured line: seconds, or Mbit/s for a stream."""

    line: int
    experiment: str
    zones: int
    ranks_per_zone: int
    rtt_s: tuple[float, ...]
    """Of every hop, or one for all."""
    bytes_per_s: tuple[float, ...]
    """Payload rate of every hop, or one for all; of the zone's egress where that is what limits."""
    op: str
    size_bytes: float
    unit: str
    median: float
    best: float | None

    @property
    def ranks(self) -> int:
        """Ranks of all zones."""
        return self.zones * self.ranks_per_zone


@dataclass(frozen=True, kw_only=True)
class RigResult:
    """A line with its prediction, or why there is none."""

    row: RigRow
    predicted: float | None
    reason: str = ""

    @property
    def error_median_pct(self) -> float | None:
        """Prediction over the median run, %."""
        return None if self.predicted is None else (self.predicted / self.row.median - 1) * 100

    @property
    def error_best_pct(self) -> float | None:
        """Prediction over the best run, %."""
        return None if self.predicted is None or self.row.best is None else (self.predicted / self.row.best - 1) * 100


@dataclass(frozen=True, kw_only=True)
class RigSummary:
    """Absolute errors of some rows, %; None: none of them can be scored so."""

    experiment: str
    op: str
    rows: int
    predicted: int
    median_best_pct: float | None
    p90_best_pct: float | None
    median_median_pct: float | None
    p90_median_pct: float | None


@dataclass(frozen=True, kw_only=True)
class RigReport:
    """Every line of a rig file."""

    results: tuple[RigResult, ...]
    skipped: tuple[tuple[int, str], ...]
    """Line and reason of rows that cannot be read."""
    summaries: tuple[RigSummary, ...]
    """Errors by kind of experiment and operation."""

    def of(self, op: str) -> RigSummary:
        """Errors of one operation over all experiments."""
        return summary("all", op, [result for result in self.results if result.row.op == op])


def rig_report(path: Path) -> RigReport:
    """Predict every line of a rig file; `InputError` when it is no such file."""
    rows, skipped = read_rig(path)
    results = predict_rig(rows)
    kinds: dict[tuple[str, str], list[RigResult]] = {}
    for result in results:
        kinds.setdefault((_kind(result.row), result.row.op), []).append(result)
    summaries = tuple(summary(kind, op, found) for (kind, op), found in kinds.items())
    return RigReport(results=tuple(results), skipped=tuple(skipped), summaries=summaries)


def read_rig(path: Path) -> tuple[list[RigRow], list[tuple[int, str]]]:
    """The lines of a rig file, and line and reason of those that cannot be read."""
    name, reader = str(path), csv.DictReader(io.StringIO(read_text(path)))
    try:
        missing = [column for column in NEEDED if column not in (reader.fieldnames or ())]
        if missing:
            raise InputError(Notice(code="runs_columns", value=name, params={"missing": missing}, file=name, line=1))
        rows: list[RigRow] = []
        skipped: list[tuple[int, str]] = []
        for cells in reader:
            if len(rows) + len(skipped) == MAX_ROWS:
                skipped.append((reader.line_num, f"beyond the first {MAX_ROWS} rows"))
                break
            try:
                rows.append(_row(reader.line_num, cells))
            except (ValueError, TypeError, AttributeError) as error:
                skipped.append((reader.line_num, str(error)))
    except csv.Error as error:
        raise FileError(Notice(code="file_unreadable", value=name, params={"reason": str(error)}, file=name)) from None
    return rows, skipped


def predict_rig(rows: Iterable[RigRow]) -> list[RigResult]:
    """Each line with its prediction, or why there is none."""
    given = list(rows)
    compute_s = {row.experiment: row.median for row in given if row.op == "local_nosync"}
    return [_predict(row, compute_s.get(row.experiment)) for row in given]


def summary(experiment: str, op: str, results: list[RigResult]) -> RigSummary:
    """Median and p90 of the absolute errors of some lines."""
    best = [abs(result.error_best_pct) for result in results if result.error_best_pct is not None]
    median = [abs(result.error_median_pct) for result in results if result.error_median_pct is not None]
    return RigSummary(
        experiment=experiment,
        op=op,
        rows=len(results),
        predicted=len(median),
        median_best_pct=_quantile(best, 0.5),
        p90_best_pct=_quantile(best, 0.9),
        median_median_pct=_quantile(median, 0.5),
        p90_median_pct=_quantile(median, 0.9),
    )


def _predict(row: RigRow, compute_s: float | None) -> RigResult:
    if _UNLIMITED.search(row.experiment):
        return RigResult(row=row, predicted=None, reason=MACHINE)
    if row.op == "local_nosync":
        return RigResult(row=row, predicted=None, reason=COMPUTE)
    if row.op in variants():
        seconds = _job_step_s(row, compute_s)
        return RigResult(row=row, predicted=seconds, reason="" if seconds is not None else LAYERS)
    stream = _TCP.fullmatch(row.op)
    if stream:
        congestion: Congestion = "bbr" if stream[1] == "bbr" else "reno" if stream[1] == "reno" else "cubic"
        mbit = _stream_mbit(row, congestion, int(stream[2]))
        return (
            RigResult(row=row, predicted=mbit)
            if mbit < math.inf
            else RigResult(row=row, predicted=None, reason=MACHINE)
        )
    predicted = _seconds(row)
    return RigResult(row=row, predicted=predicted, reason="" if predicted is not None else UNKNOWN)


def _seconds(row: RigRow) -> float | None:
    size, per_zone, rtt = row.size_bytes, row.ranks_per_zone, max(hosts_rtt_s(row.rtt_s))
    barrier = float(gloo_barrier_s(row.ranks, rtt))
    match row.op:
        case "p2p_one_way":
            return float(gloo_turn_s(size, rtt, min(row.bytes_per_s))) + _restart_s(row)
        case "all_reduce":
            return _all_reduce_s(row, size, row.ranks)
        case "barrier":
            return barrier
        case "flat_ring":
            return _all_reduce_s(row, size, row.ranks) + barrier
        case "hier_shard":
            return _all_reduce_s(row, size / per_zone, row.zones, groups=per_zone) + barrier
        case "hier_leader":
            return _all_reduce_s(row, size, row.zones) + barrier
        case "many_groups":
            return _all_reduce_s(row, size, row.zones, groups=per_zone) + barrier
        case "p2p_all_then_barrier":
            return float(gloo_send_s(size, rtt, min(row.bytes_per_s) / per_zone)) + barrier
    return None


def _job_step_s(row: RigRow, compute_s: float | None) -> float | None:
    """A training step, where the job is the described one and its compute was timed beside it. [A24]"""
    job = rig_job()
    if compute_s is None or row.size_bytes != job.gradient_bytes:
        return None
    return step_s(job, variants()[row.op], compute_s, lambda size: _all_reduce_s(row, size, row.ranks))


def _all_reduce_s(row: RigRow, size_bytes: float, ranks: int, groups: int = 1) -> float:
    """The slowest hop sets the pace: every segment waits for it."""
    rate = np.array(row.bytes_per_s) / groups
    return float(np.max(gloo_all_reduce_s(size_bytes, ranks, hosts_rtt_s(row.rtt_s), rate)))


def _restart_s(row: RigRow) -> float:
    """What an idle pause costs where the host restarts slowly after one; BBR does not."""
    idle = _IDLE.fullmatch(row.experiment)
    if idle is None:
        return 0.0
    return float(slow_start_s(row.size_bytes, max(row.rtt_s), min(row.bytes_per_s), float(idle[2])))


def _stream_mbit(row: RigRow, congestion: Congestion, flows: int) -> float:
    """Mbit/s of payload. A buffer that is not stated does not limit: the host's own carried 5 Gbit/s over 20 ms."""
    loss, buffer = _LOSS.search(row.experiment), _BUFFER_MIB.search(row.experiment)
    lost = float(loss[1]) if loss else 0.0
    window = window_bytes(float(buffer[1]) * 2**20) if buffer else math.inf
    one = flow_bytes_per_s(max(row.rtt_s), lost, congestion, window)
    return float(aggregate_bytes_per_s(min(row.bytes_per_s), flows, one, lost)) / BYTES_PER_S_PER_MBIT


def _row(line: int, cells: Mapping[str, str]) -> RigRow:
    median = _number(cells["median"], "median")
    if median <= 0:
        raise ValueError(f"median {median:g} is not above 0")
    best = cells.get("best") or ""
    payload = figure("tcp", "efficiency") * BYTES_PER_S_PER_MBIT
    rates = cells["link_mbit"]
    if rates == "unlimited":
        rates = cells.get("zone_egress_mbit") or ""
    row = RigRow(
        line=line,
        experiment=cells["experiment"],
        zones=_count(cells["zones"], "zones"),
        ranks_per_zone=_count(cells["ranks_per_zone"], "ranks_per_zone"),
        rtt_s=tuple(_number(part, "rtt_ms") / 1e3 for part in cells["rtt_ms"].split("/")),
        bytes_per_s=tuple(_number(part or "inf", "link_mbit") * payload for part in rates.split("/")),
        op=cells["op"],
        size_bytes=_number(cells.get("bytes") or "0", "bytes"),
        unit=cells["unit"],
        median=median,
        best=_number(best, "best") if best else None,
    )
    hops = len(row.rtt_s)
    if hops != len(row.bytes_per_s) and 1 not in (hops, len(row.bytes_per_s)):
        raise ValueError(f"{hops} round-trip times and {len(row.bytes_per_s)} rates")
    if min(row.bytes_per_s) <= 0 or (row.best is not None and row.best <= 0):
        raise ValueError("a rate or the best run is not above 0")
    return row


def _number(text: str, name: str) -> float:
    value = float(text)
    if math.isnan(value) or value < 0 or (math.isinf(value) and name != "link_mbit"):
        raise ValueError(f"{name} {text!r} is not a number of 0 or more")
    if 0 < value < LEAST or MOST < value < math.inf:
        raise ValueError(f"{name} {text!r} is not between {LEAST:g} and {MOST:g}")
    return value


def _count(text: str, name: str) -> int:
    value = int(text)
    if not 1 <= value <= 1_000_000:
        raise ValueError(f"{name} {text!r} is not a whole number of 1 or more")
    return value


def _kind(row: RigRow) -> str:
    """The experiment without its settings."""
    return row.experiment.split("=")[0].rsplit(" ", 1)[0] if "=" in row.experiment else row.experiment


def _quantile(values: list[float], share: float) -> float | None:
    return float(np.quantile(values, share)) if values else None
