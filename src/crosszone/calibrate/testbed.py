"""The testbed's file: transfers measured between emulated zones, each beside the cost model's prediction.

    report = build_transfer_report(Path("crosszone_rig.csv"))
    for line in report.summaries: print(line.experiment, line.op, line.median_best_pct)

Nothing is fitted here: every row is predicted from its own columns with the functions that predict a training step.
The first part predicts the training steps that the testbed timed: gradients are exchanged bucket by bucket while the
backward pass still runs. The second part reads the file, predicts every row and sums up the errors.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from crosszone.calibrate.user_files import open_table
from crosszone.cost.gloo import gloo_all_reduce_s, gloo_barrier_s, gloo_send_s, gloo_turn_s
from crosszone.cost.tiers import read_figure
from crosszone.cost.wan import (
    Congestion,
    aggregate_bytes_per_s,
    flow_bytes_per_s,
    hosts_rtt_s,
    slow_start_s,
    window_bytes,
)
from crosszone.inputs.document import read_text
from crosszone.inputs.shipped import read_shipped

FLOAT_BYTES = 4.0
MIB = 2.0**20


@dataclass(frozen=True, kw_only=True)
class EqualLayersJob:
    """What the testbed trains: equal layers, each one matrix."""

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
class ExchangeVariant:
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


def count_bucket_layers(layers: int, layer_bytes: float, cap_bytes: float) -> list[int]:
    """Layers of each bucket, in the order in which the backward pass fills them. [A24]

    PyTorch's rule: a layer that reaches the cap closes the bucket, which may so be larger than it.
    """
    layers_of_buckets, size = [0], 0.0
    for _ in range(layers):
        if layers_of_buckets[-1] and size >= cap_bytes:
            layers_of_buckets, size = [*layers_of_buckets, 0], 0.0
        layers_of_buckets[-1] += 1
        size += layer_bytes
    return layers_of_buckets


def predict_step_s(
    job: EqualLayersJob, variant: ExchangeVariant, compute_s: float, all_reduce_s: Callable[[float], float]
) -> float:
    """Seconds of what the testbed timed: compute of a step is measured, the exchange predicted. [A24]

    A bucket is ready when the backward pass has left its first layer; buckets are exchanged one after the other; the
    step is over when the last is.
    """
    earlier_steps_s = (variant.steps - 1) * compute_s
    layers_left, free_s = job.layers, 0.0
    for layers in count_bucket_layers(job.layers, job.layer_bytes, variant.bucket_mib * MIB):
        layers_left -= layers
        ready_s = compute_s - (0.0 if variant.after else layers_left * job.backward_s_per_layer)
        host_s = variant.passes * layers * job.layer_bytes / job.memory_bytes_per_s
        free_s = (
            max(free_s, ready_s) + host_s + sum(all_reduce_s(size) for size in _list_sent_bytes(job, variant, layers))
        )
    total = earlier_steps_s + free_s
    return total / variant.steps if variant.mean else total


def _list_sent_bytes(job: EqualLayersJob, variant: ExchangeVariant, layers: int) -> list[float]:
    """Sizes of the all-reduces of a bucket; what is no matrix would be one more, and an empty one costs nothing."""
    if variant.rank is None:
        return [layers * job.layer_bytes / FLOAT_BYTES * variant.wire_bytes]
    return [layers * variant.rank * side * variant.wire_bytes for side in job.matrix]


def read_job() -> EqualLayersJob:
    """The job of the shipped description."""
    job, host = _load_description()["job"], _load_description()["host"]
    return EqualLayersJob(
        gradient_bytes=job["gradient_bytes"],
        layers=job["layers"],
        matrix=(job["matrix"][0], job["matrix"][1]),
        backward_s_per_layer=job["backward_s_per_layer"],
        memory_bytes_per_s=host["memory_bytes_per_s"]["value"],
    )


def read_variants() -> dict[str, ExchangeVariant]:
    """The ways to exchange gradients that the testbed tried, by operation."""
    return {op: ExchangeVariant(**fields) for op, fields in _load_description()["variants"].items()}


@cache
def _load_description() -> dict[str, Any]:
    loaded: dict[str, Any] = read_shipped("crosszone.calibrate", "testbed_job.yaml").value
    return loaded


NEEDED = ("experiment", "zones", "ranks_per_zone", "rtt_ms", "link_mbit", "op", "unit", "median")
MAX_ROWS = 20_000
LEAST_FIGURE, MOST_FIGURE = 1e-15, 1e18  # Figures beyond are no measurement, and their errors no numbers
BYTES_PER_S_PER_MBIT = 1e6 / 8
_TCP = re.compile(r"tcp (reno|cubic|bbr) x(\d{1,4})")
_IDLE = re.compile(r"cc_(reno|cubic)_ssai1_idle([0-9.]{1,6})s")
_LOSS = re.compile(r"\bloss=([0-9.]{1,12})")
_BUFFER_MIB = re.compile(r"\bwmem=([0-9.]{1,6})MB")
_UNLIMITED = re.compile(r"rate=inf|no qdisc")

REASON_MACHINE = "measures the machine itself, which no column describes"
REASON_OTHER_JOB = "is a step of another job than the one whose layers and compute are known"
REASON_COMPUTE = "is compute only; the other rows of its kind are predicted from it"
REASON_UNKNOWN = "is of a kind the cost model does not know"


@dataclass(frozen=True, kw_only=True)
class TransferRow:
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
class TransferPrediction:
    """A line with its prediction, or why there is none."""

    row: TransferRow
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
class TransferSummary:
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
class TransferReport:
    """Every line of a testbed's file."""

    results: tuple[TransferPrediction, ...]
    skipped: tuple[tuple[int, str], ...]
    """Line and reason of rows that cannot be read."""
    summaries: tuple[TransferSummary, ...]
    """Errors by kind of experiment and operation."""

    def summarize_op(self, op: str) -> TransferSummary:
        """Errors of one operation over all experiments."""
        return summarize_transfers("all", op, [result for result in self.results if result.row.op == op])


def build_transfer_report(path: Path) -> TransferReport:
    """Predict every line of a testbed's file; `InputError` when it is no such file."""
    rows, skipped = read_transfers(path)
    results = predict_transfers(rows)
    kinds: dict[tuple[str, str], list[TransferPrediction]] = {}
    for result in results:
        kinds.setdefault((_strip_settings(result.row), result.row.op), []).append(result)
    summaries = tuple(summarize_transfers(kind, op, results_of_kind) for (kind, op), results_of_kind in kinds.items())
    return TransferReport(results=tuple(results), skipped=tuple(skipped), summaries=summaries)


def read_transfers(path: Path) -> tuple[list[TransferRow], list[tuple[int, str]]]:
    """The lines of a testbed's file, and line and reason of those that cannot be read."""
    rows: list[TransferRow] = []
    skipped: list[tuple[int, str]] = []
    with open_table(io.StringIO(read_text(path)), str(path), NEEDED) as reader:
        for cells in reader:
            if len(rows) + len(skipped) == MAX_ROWS:
                skipped.append((reader.line_num, f"beyond the first {MAX_ROWS} rows"))
                break
            try:
                rows.append(_parse_row(reader.line_num, cells))
            except (ValueError, TypeError, AttributeError) as error:
                skipped.append((reader.line_num, str(error)))
    return rows, skipped


def predict_transfers(rows: Iterable[TransferRow]) -> list[TransferPrediction]:
    """Each line with its prediction, or why there is none."""
    measured = list(rows)
    compute_s = {row.experiment: row.median for row in measured if row.op == "local_nosync"}
    return [_predict_transfer(row, compute_s.get(row.experiment)) for row in measured]


def summarize_transfers(experiment: str, op: str, results: list[TransferPrediction]) -> TransferSummary:
    """Median and p90 of the absolute errors of some lines."""
    best = [abs(result.error_best_pct) for result in results if result.error_best_pct is not None]
    median = [abs(result.error_median_pct) for result in results if result.error_median_pct is not None]
    return TransferSummary(
        experiment=experiment,
        op=op,
        rows=len(results),
        predicted=len(median),
        median_best_pct=_compute_quantile(best, 0.5),
        p90_best_pct=_compute_quantile(best, 0.9),
        median_median_pct=_compute_quantile(median, 0.5),
        p90_median_pct=_compute_quantile(median, 0.9),
    )


def _predict_transfer(row: TransferRow, compute_s: float | None) -> TransferPrediction:
    stream = _TCP.fullmatch(row.op)
    predicted: float | None = None
    if _UNLIMITED.search(row.experiment):
        reason = REASON_MACHINE
    elif row.op == "local_nosync":
        reason = REASON_COMPUTE
    elif row.op in read_variants():
        predicted, reason = _predict_job_step_s(row, compute_s), REASON_OTHER_JOB
    elif stream:
        congestion: Congestion = "bbr" if stream[1] == "bbr" else "reno" if stream[1] == "reno" else "cubic"
        mbit = _predict_stream_mbit(row, congestion, int(stream[2]))
        predicted, reason = (mbit if mbit < math.inf else None), REASON_MACHINE
    else:
        predicted, reason = _predict_seconds(row), REASON_UNKNOWN
    return TransferPrediction(row=row, predicted=predicted, reason=reason if predicted is None else "")


def _predict_seconds(row: TransferRow) -> float | None:
    size, per_zone, rtt = row.size_bytes, row.ranks_per_zone, max(hosts_rtt_s(row.rtt_s))
    barrier = float(gloo_barrier_s(row.ranks, rtt))
    match row.op:
        case "p2p_one_way":
            return float(gloo_turn_s(size, rtt, min(row.bytes_per_s))) + _compute_restart_s(row)
        case "all_reduce":
            return _predict_all_reduce_s(row, size, row.ranks)
        case "barrier":
            return barrier
        case "flat_ring":
            return _predict_all_reduce_s(row, size, row.ranks) + barrier
        case "hier_shard":
            return _predict_all_reduce_s(row, size / per_zone, row.zones, groups=per_zone) + barrier
        case "hier_leader":
            return _predict_all_reduce_s(row, size, row.zones) + barrier
        case "many_groups":
            return _predict_all_reduce_s(row, size, row.zones, groups=per_zone) + barrier
        case "p2p_all_then_barrier":
            return float(gloo_send_s(size, rtt, min(row.bytes_per_s) / per_zone)) + barrier
    return None


def _predict_job_step_s(row: TransferRow, compute_s: float | None) -> float | None:
    """A training step, where the job is the described one and its compute was timed beside it. [A24]"""
    job = read_job()
    if compute_s is None or row.size_bytes != job.gradient_bytes:
        return None
    return predict_step_s(
        job, read_variants()[row.op], compute_s, lambda size: _predict_all_reduce_s(row, size, row.ranks)
    )


def _predict_all_reduce_s(row: TransferRow, size_bytes: float, ranks: int, groups: int = 1) -> float:
    """The slowest hop sets the pace: every segment waits for it."""
    rate = np.array(row.bytes_per_s) / groups
    return float(np.max(gloo_all_reduce_s(size_bytes, ranks, hosts_rtt_s(row.rtt_s), rate)))


def _compute_restart_s(row: TransferRow) -> float:
    """What an idle pause costs where the host restarts slowly after one; BBR does not."""
    idle = _IDLE.fullmatch(row.experiment)
    if idle is None:
        return 0.0
    return float(slow_start_s(row.size_bytes, max(row.rtt_s), min(row.bytes_per_s), float(idle[2])))


def _predict_stream_mbit(row: TransferRow, congestion: Congestion, flows: int) -> float:
    """Mbit/s of payload. A buffer that is not stated does not limit: the host's own carried 5 Gbit/s over 20 ms."""
    loss, buffer = _LOSS.search(row.experiment), _BUFFER_MIB.search(row.experiment)
    loss_share = float(loss[1]) if loss else 0.0
    window = window_bytes(float(buffer[1]) * 2**20) if buffer else math.inf
    flow_rate = flow_bytes_per_s(max(row.rtt_s), loss_share, congestion, window)
    return float(aggregate_bytes_per_s(min(row.bytes_per_s), flows, flow_rate, loss_share)) / BYTES_PER_S_PER_MBIT


def _parse_row(line: int, cells: Mapping[str, str]) -> TransferRow:
    median = _parse_number(cells["median"], "median")
    if median <= 0:
        raise ValueError(f"median {median:g} is not above 0")
    best = cells.get("best") or ""
    payload = read_figure("tcp", "efficiency") * BYTES_PER_S_PER_MBIT
    rates = cells["link_mbit"]
    if rates == "unlimited":
        rates = cells.get("zone_egress_mbit") or ""
    row = TransferRow(
        line=line,
        experiment=cells["experiment"],
        zones=_parse_count(cells["zones"], "zones"),
        ranks_per_zone=_parse_count(cells["ranks_per_zone"], "ranks_per_zone"),
        rtt_s=tuple(_parse_number(part, "rtt_ms") / 1e3 for part in cells["rtt_ms"].split("/")),
        bytes_per_s=tuple(_parse_number(part or "inf", "link_mbit") * payload for part in rates.split("/")),
        op=cells["op"],
        size_bytes=_parse_number(cells.get("bytes") or "0", "bytes"),
        unit=cells["unit"],
        median=median,
        best=_parse_number(best, "best") if best else None,
    )
    hops = len(row.rtt_s)
    if hops != len(row.bytes_per_s) and 1 not in (hops, len(row.bytes_per_s)):
        raise ValueError(f"{hops} round-trip times and {len(row.bytes_per_s)} rates")
    if min(row.bytes_per_s) <= 0 or (row.best is not None and row.best <= 0):
        raise ValueError("a rate or the best run is not above 0")
    return row


def _parse_number(text: str, column: str) -> float:
    value = float(text)
    if math.isnan(value) or value < 0 or (math.isinf(value) and column != "link_mbit"):
        raise ValueError(f"{column} {text!r} is not a number of 0 or more")
    if 0 < value < LEAST_FIGURE or MOST_FIGURE < value < math.inf:
        raise ValueError(f"{column} {text!r} is not between {LEAST_FIGURE:g} and {MOST_FIGURE:g}")
    return value


def _parse_count(text: str, column: str) -> int:
    value = int(text)
    if not 1 <= value <= 1_000_000:
        raise ValueError(f"{column} {text!r} is not a whole number of 1 or more")
    return value


def _strip_settings(row: TransferRow) -> str:
    """The experiment without its settings."""
    return row.experiment.split("=")[0].rsplit(" ", 1)[0] if "=" in row.experiment else row.experiment


def _compute_quantile(values: list[float], share: float) -> float | None:
    return float(np.quantile(values, share)) if values else None
