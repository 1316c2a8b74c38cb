"""Timed collectives: read them from CSV files, fit latency and rate to them, and derive figures of a scenario's links.

    samples = read_collectives(Path("collectives.csv"))
    samples.rows, samples.flagged            # {"noisy": 3}

Reads what `sampling/collectives.py` writes, and tables that state at least op, nodes, gpus_per_node, ranks, bytes and
time_us. `bytes` is the tensor each rank passes in: one rank's share for all_gather, the whole tensor for all others.
Every row is checked; if one is wrong, nothing of the file is used.

    fits, too_few = fit_links(samples.rows)
    fits[0].latency_s, fits[0].bytes_per_s, fits[0].error_pct, fits[0].unseen_pct
    factors = measure_concurrency(samples.rows)      # how much slower a group is when all of its kind run

One fit a topology: op, scope, nodes, GPUs of each, groups at once (and sweep of sizes, where a table has several).

The fits become figures that can stand in a scenario in place of typed ones:

    figures = derive_link_figures(fits)
    figures.between[("a", "b")]                  # ZoneFigures(bytes_per_s, latency_s, ...)
    figures.network["a"], figures.inside["a"]    # of a zone; "" where the samples name no zone

Between zones messages are looked at first, inside a zone rings: the op that training sends over such a link.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from crosszone.calibrate.user_files import RowNotices, build_columns_error, build_unreadable_error, check_head
from crosszone.cost.collectives import (
    CollectiveCost,
    Ring,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
    send_message,
)
from crosszone.cost.tiers import BYTES_PER_S_PER_GBPS, FREE, Floats, Numbers, Tier, read_figure
from crosszone.errors import FileError, InvalidError, Notice, build_choice_error

ROBUST_ERROR = 0.03  # Relative error up to which rows count in squares, beyond it linearly, as in [Q3]
FOLDS = 5
MOST_ITERATIONS, CONVERGED = 200, 1e-10
# Of the timings of one eighth of a doubling, the share that counts as undisturbed.
QUIET_SHARE, EIGHTHS = 0.25, 8
# Share of the time at the smallest (largest) size that latency (transfer) must have for its figure to be known.
MIN_TIME_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class LinkFit:
    """Latency and rate of one topology, with how well they predict the times."""

    where: Topology
    latency_s: float
    """Seconds of one step, library included."""
    bytes_per_s: float | None
    """Bytes/s, one direction; None: the sizes were too small to show it."""
    latency_error_s: float
    rate_error_pct: float
    """One standard error of the two."""
    rows: int
    low_bytes: float
    high_bytes: float
    error_pct: float
    """Mean absolute error of the fit."""
    median_pct: float
    random_pct: float | None
    """Mean absolute error of rows held out at random, a fifth at a time; None: too few rows."""
    unseen_pct: float | None
    """The same for sizes held out, a doubling at a time; None: too few sizes."""

    @property
    def tier(self) -> Tier:
        """As the cost model takes it."""
        return Tier(np.inf if self.bytes_per_s is None else self.bytes_per_s, self.latency_s)

    def predict_s(self, size_bytes: Numbers) -> Floats:
        """What the fit says for other sizes; more bytes are never faster."""
        return estimate_collective_s(self.where.op, size_bytes, self.where.ranks, self.tier)

    @property
    def latency_known(self) -> bool:
        """The smallest size shows the latency: it is a tenth of the time or more."""
        steps_s = estimate_collective_s(self.where.op, self.low_bytes, self.where.ranks, Tier(np.inf, self.latency_s))
        return float(steps_s) >= MIN_TIME_SHARE * float(self.predict_s(self.low_bytes)) and self.latency_s > 0

    @property
    def rate_known(self) -> bool:
        """The largest size shows the rate: moving the bytes is half of the time or more."""
        steps_s = estimate_collective_s(self.where.op, self.high_bytes, self.where.ranks, Tier(np.inf, self.latency_s))
        return self.bytes_per_s is not None and float(steps_s) <= 0.5 * float(self.predict_s(self.high_bytes))

    def as_dict(self) -> dict[str, Any]:
        """Plain values: the topology beside the figures."""
        return {**_flatten_topology(self), "latency_known": self.latency_known, "rate_known": self.rate_known}


@dataclass(frozen=True, kw_only=True)
class Concurrency:
    """How much longer a collective takes when all groups of its kind run, than alone. [K11]"""

    where: Topology
    """The groups that run together."""
    factor: float
    """Median over the sizes measured both ways."""
    low: float
    high: float
    sizes: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return _flatten_topology(self)


def _flatten_topology(measured: LinkFit | Concurrency) -> dict[str, Any]:
    """The fields of the topology, then the others."""
    fields = asdict(measured)
    return {**fields.pop("where"), **fields}


def estimate_collective_s(op: str, size_bytes: Numbers, ranks: Numbers, link: Tier) -> Floats:
    """Seconds of a collective by the bytes each rank passes in, in the forms [C1], [C2], [C5] and [C6]. [K10]"""
    return np.asarray(estimate_collective_cost(op, size_bytes, ranks, link).seconds)


def fit_links(rows: Iterable[CollectiveSample]) -> tuple[list[LinkFit], list[Topology]]:
    """A fit for every topology, and the topologies with fewer than the two sizes that it takes. [K10]"""
    fits: list[LinkFit] = []
    too_few: list[Topology] = []
    for where, samples in _group_by_topology(rows).items():
        size = np.array([sample.size_bytes for sample in samples])
        if len(np.unique(size)) < 2:
            too_few.append(where)
            continue
        fits.append(_fit_topology(where, size, np.array([sample.time_s for sample in samples])))
    return fits, too_few


def measure_concurrency(rows: Iterable[CollectiveSample]) -> list[Concurrency]:
    """Time with all groups at once over time alone, at the sizes measured both ways, for every topology. [K11]"""
    tables = {where: _compute_medians(samples) for where, samples in _group_by_topology(rows).items()}
    concurrencies = []
    for where, together in tables.items():
        alone = tables.get(Topology(**{**asdict(where), "groups": 1}), {})
        ratios = [together[size] / alone[size] for size in together if size in alone] if where.groups > 1 else []
        if ratios:
            low, factor, high = (float(quantile) for quantile in np.quantile(ratios, (0.0, 0.5, 1.0)))
            concurrencies.append(Concurrency(where=where, factor=factor, low=low, high=high, sizes=len(ratios)))
    return concurrencies


def _group_by_topology(rows: Iterable[CollectiveSample]) -> dict[Topology, list[CollectiveSample]]:
    by_topology: dict[Topology, list[CollectiveSample]] = {}
    for row in rows:
        by_topology.setdefault(row.where, []).append(row)
    return by_topology


def _compute_medians(samples: Sequence[CollectiveSample]) -> dict[float, float]:
    sizes: dict[float, list[float]] = {}
    for sample in samples:
        sizes.setdefault(sample.size_bytes, []).append(sample.time_s)
    return {size: float(np.median(times)) for size, times in sizes.items()}


def _fit_topology(where: Topology, size: Floats, time: Floats) -> LinkFit:
    share = np.stack(
        [
            estimate_collective_s(where.op, size, where.ranks, Tier(np.inf, 1.0)) / time,
            estimate_collective_s(where.op, size, where.ranks, Tier(1.0, 0.0)) / time,
        ],
        axis=1,
    )
    doubling = np.floor(np.log2(size) + 1e-9)
    theta = _fit_robust(share, doubling)
    error = np.abs(share @ theta - 1)
    spread = _compute_standard_errors(share, _compute_weights(doubling), theta)
    rate = None if theta[1] <= 0 else float(1 / theta[1])
    random_part = np.asarray(np.random.default_rng(0).permutation(len(size)) % FOLDS, dtype=float)
    return LinkFit(
        where=where,
        latency_s=float(theta[0]),
        bytes_per_s=rate,
        latency_error_s=float(spread[0]),
        rate_error_pct=float(100 * spread[1] / theta[1]) if rate else 0.0,
        rows=len(size),
        low_bytes=float(size.min()),
        high_bytes=float(size.max()),
        error_pct=float(100 * error.mean()),
        median_pct=float(100 * np.median(error)),
        random_pct=_compute_held_out_error(share, doubling, size, random_part) if len(size) >= FOLDS else None,
        unseen_pct=_compute_held_out_error(share, doubling, size, doubling) if len(np.unique(doubling)) >= 3 else None,
    )


def _compute_held_out_error(share: Floats, doubling: Floats, size: Floats, parts: Floats) -> float | None:
    """Mean absolute error of each part, predicted from the others; None: a part leaves fewer than two sizes."""
    errors = []
    for part in np.unique(parts):
        out = parts == part
        if len(np.unique(size[~out])) < 2:
            return None
        errors.append(np.abs(share[out] @ _fit_robust(share[~out], doubling[~out]) - 1))
    return float(100 * np.concatenate(errors).mean())


def _compute_weights(doubling: Floats) -> Floats:
    """Each doubling of the size counts alike, however many rows it has."""
    _, place, count = np.unique(doubling, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / count[place] / len(count))


def _fit_robust(share: Floats, doubling: Floats) -> Floats:
    """Latency and seconds per byte, neither below 0, that bring `share @ theta` nearest to 1. [K10]

    Errors count in squares up to 3 % and linearly beyond, by weighing anew until nothing moves.
    """
    base = _compute_weights(doubling)
    theta = _fit_least_squares(share, base)
    for _ in range(MOST_ITERATIONS):
        weight = base / np.sqrt(1 + ((share @ theta - 1) / ROBUST_ERROR) ** 2)
        refit = _fit_least_squares(share, weight)
        change = np.abs(share @ (refit - theta)).max()
        theta = refit
        if change < CONVERGED:
            break
    return theta


def _fit_least_squares(share: Floats, weight: Floats) -> Floats:
    """Weighted least squares of two figures, neither below 0."""
    matrix, right = share.T @ (weight[:, np.newaxis] * share), share.T @ weight
    scale = np.sqrt(np.diag(matrix))
    tries = [np.array([right[0] / matrix[0, 0], 0.0]), np.array([0.0, right[1] / matrix[1, 1]])]
    both = np.linalg.lstsq(matrix / np.outer(scale, scale), right / scale, rcond=1e-12)[0] / scale
    if (both >= 0).all():
        return np.asarray(both)
    return min(tries, key=lambda theta: float(weight @ (share @ theta - 1) ** 2))


def _compute_standard_errors(share: Floats, weight: Floats, theta: Floats) -> Floats:
    """One standard error of both figures; 0 for one that lies at its bound."""
    inside = theta > 0
    errors, degrees_of_freedom = np.zeros(2), len(share) - int(inside.sum())
    if not inside.any() or degrees_of_freedom <= 0:
        return errors
    part, count = share[:, inside], len(share)
    robust = weight * count / np.sqrt(1 + ((share @ theta - 1) / ROBUST_ERROR) ** 2)
    matrix = part.T @ (robust[:, np.newaxis] * part)
    scale = np.sqrt(np.diag(matrix))
    inverse = np.diag(np.linalg.pinv(matrix / np.outer(scale, scale))) / scale**2
    variance = float(robust @ (share @ theta - 1) ** 2) / degrees_of_freedom
    errors[inside] = np.sqrt(np.maximum(inverse * variance, 0.0))
    return errors


def keep_quiet(rows: Iterable[CollectiveSample]) -> list[CollectiveSample]:
    """Of the timings of a topology, the fastest quarter of each eighth of a doubling of the size. [K14]

    A quiet run is what is predicted; the slower timings show the traffic of others. Where an eighth has fewer than
    four timings, all of them stay.
    """
    quiet: list[CollectiveSample] = []
    for where, samples in _group_by_topology(rows).items():
        size = np.array([sample.size_bytes for sample in samples])
        time_s = np.array([sample.time_s for sample in samples])
        if len(np.unique(size)) < 2:
            quiet += samples
            continue
        slowness = time_s / _fit_topology(where, size, time_s).predict_s(size)
        eighth = np.floor(EIGHTHS * np.log2(size) + 1e-9)
        for part in np.unique(eighth):
            members = np.flatnonzero(eighth == part)
            count = max(1, round(QUIET_SHARE * len(members))) if len(members) >= 1 / QUIET_SHARE else len(members)
            quiet += [samples[index] for index in members[np.argsort(slowness[members], kind="stable")][:count]]
    return quiet


# Ops that show the links inside a zone, the most informative first.
RING_OPS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send_recv")
# Ops that show the links between zones, the most informative first.
ZONE_OPS = ("send_recv", "all_reduce", "reduce_scatter", "all_gather", "all_to_all")
# Rate of all groups over that of one from which one group counts as held back by its connections.
HELD_BACK_RATIO = 1.25
FIGURE_DIGITS = 4


@dataclass(frozen=True, kw_only=True)
class ZoneFigures:
    """Figures of the link from one zone to another, one direction."""

    latency_s: float | None
    """Of one message, library included; None: the sizes do not show it."""
    bytes_per_s: float | None
    """All groups together; None: the sizes do not show it."""
    group_bytes_per_s: float | None
    """One group alone."""
    held_back: bool
    """One group alone reaches far less than all together."""
    backend: str
    op: str


@dataclass(frozen=True, kw_only=True)
class RingFigures:
    """Rings of a zone, inside a node or over nodes."""

    bytes_per_s: float
    """Inside a node: of one GPU. Over nodes: of one node, all its groups together."""
    gpu_bytes_per_s: float
    """Of one GPU that takes part."""
    latency_s: float | None
    """Of one step; None: the sizes do not show it."""
    backend: str
    op: str
    nodes: int
    gpus_per_node: int
    groups: int


@dataclass(frozen=True, kw_only=True)
class FittedLinks:
    """What fits say of links: between zones, of the network of a zone, and inside its nodes."""

    between: dict[tuple[str, str], ZoneFigures] = field(default_factory=dict)
    network: dict[str, RingFigures] = field(default_factory=dict)
    inside: dict[str, RingFigures] = field(default_factory=dict)


def derive_link_figures(fits: Iterable[LinkFit]) -> FittedLinks:
    """The figures of every link that the fits show. [K12]"""
    fits = list(fits)
    scopes = dict.fromkeys(fit.where.scope for fit in fits if fit.where.scope not in ("node", "network"))
    between = {}
    for scope in scopes:
        first, second = scope.split(">")
        between[first, second] = _build_zone_figures([fit for fit in fits if fit.where.scope == scope])
        reverse = f"{second}>{first}"
        if reverse not in scopes:  # collectives go both ways at once
            two_way = [fit for fit in fits if fit.where.scope == scope and fit.where.op != "send_recv"]
            if two_way:
                between[second, first] = _build_zone_figures(two_way)
    return FittedLinks(
        between=between, network=_collect_ring_figures(fits, "network"), inside=_collect_ring_figures(fits, "node")
    )


def compute_rtt_ms(forward: ZoneFigures, backward: ZoneFigures | None) -> float | None:
    """Round-trip time that gives these latencies in the model: both ways less what the hosts add. [K12]"""
    second = forward if backward is None or backward.latency_s is None else backward
    first = second if forward.latency_s is None else forward
    if first.latency_s is None or second.latency_s is None:
        return None
    hosts_s = 2 * read_figure("tcp", "latency_us") * 1e-6
    return round_figure(max(0.0, first.latency_s + second.latency_s - hosts_s) * 1e3)


def convert_to_gbps(bytes_per_s: float, fabric: str = "tcp") -> float:
    """Gbit/s of a link whose payload rate is this. [K12]"""
    return round_figure(bytes_per_s / BYTES_PER_S_PER_GBPS / read_figure(fabric, "efficiency"))


def compute_flow_gbps(direction: ZoneFigures) -> float | None:
    """Gbit/s of one connection, where one group alone shows it. [K12]"""
    if direction.group_bytes_per_s is None:
        return None
    connections = read_figure("nccl_sockets", "channels") if direction.backend == "nccl" else 1.0
    return convert_to_gbps(direction.group_bytes_per_s / connections)


def round_figure(value: float) -> float:
    """The value to four digits: more were not measured."""
    return float(f"{value:.{FIGURE_DIGITS}g}")


def _build_zone_figures(fits: Sequence[LinkFit]) -> ZoneFigures:
    op = next(op for op in ZONE_OPS if any(fit.where.op == op for fit in fits))
    of_op = [fit for fit in fits if fit.where.op == op]
    alone = [fit for fit in of_op if fit.where.groups == 1]
    rates = [fit.where.groups * fit.bytes_per_s for fit in of_op if fit.bytes_per_s is not None and fit.rate_known]
    group_rates = [fit.bytes_per_s for fit in alone if fit.bytes_per_s is not None and fit.rate_known]
    latencies = [fit.latency_s for fit in alone or of_op if fit.latency_known]
    group_rate, total_rate = max(group_rates, default=None), max(rates, default=None)
    return ZoneFigures(
        latency_s=min(latencies, default=None),
        bytes_per_s=total_rate,
        group_bytes_per_s=group_rate,
        held_back=group_rate is not None and total_rate is not None and total_rate > HELD_BACK_RATIO * group_rate,
        backend=of_op[0].where.backend,
        op=op,
    )


def _collect_ring_figures(fits: Sequence[LinkFit], scope: str) -> dict[str, RingFigures]:
    usable = [fit for fit in fits if fit.where.scope == scope and fit.rate_known]
    by_zone = {}
    for zone in dict.fromkeys(fit.where.zone for fit in usable):
        in_zone = [fit for fit in usable if fit.where.zone == zone]
        op = next(op for op in RING_OPS if any(fit.where.op == op for fit in in_zone))
        of_op = [fit for fit in in_zone if fit.where.op == op]
        best = max(of_op, key=_compute_node_rate if scope == "network" else _get_width_order)
        by_zone[zone] = _build_ring_figures(best, scope)
    return by_zone


def _get_width_order(fit: LinkFit) -> tuple[float, ...]:
    """Rings of most GPUs of a node, alone, over the largest sizes: nearest to what training sends."""
    return (fit.where.gpus_per_node, -fit.where.groups, fit.high_bytes)


def _compute_node_rate(fit: LinkFit) -> float:
    """What all groups of a node reach together: groups of one kind lie side by side on the same nodes."""
    return (fit.bytes_per_s or 0.0) * fit.where.groups


def _build_ring_figures(fit: LinkFit, scope: str) -> RingFigures:
    where, rate = fit.where, fit.bytes_per_s or 0.0
    return RingFigures(
        bytes_per_s=_compute_node_rate(fit) if scope == "network" else rate,
        gpu_bytes_per_s=rate / where.gpus_per_node if scope == "network" else rate,
        latency_s=fit.latency_s if fit.latency_known else None,
        backend=where.backend,
        op=where.op,
        nodes=where.nodes,
        gpus_per_node=where.gpus_per_node,
        groups=where.groups,
    )


OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
# Columns without which a file is not of this kind.
REQUIRED_COLUMNS = ("op", "nodes", "gpus_per_node", "ranks", "bytes", "time_us")
FAILED_FLAG = "failed"  # Flag of a row without a time
NOISY_FLAG = "noisy"  # Flag of a row whose time is uncertain; it may be kept on request
MOST_BYTES, MOST_ROWS, MOST_NOTICES = 64 * 2**20, 500_000, 10
FASTEST_GB_PER_S = 10_000.0  # No link of one GPU carries more
LONGEST_US = 86_400e6
# The column of a rate, ours and as published tables name it; both count 1e9 bytes a second.
RATE_COLUMNS = ("bus_gb_per_s", "bus_gbps")
UNITS_TOLERANCE = 0.1  # By how much a stated rate may differ from bytes / time
_INTEGER = re.compile(r"\d{1,15}(\.0*)?")


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Where the groups of a row lie, and how many run at the same time."""

    op: str
    scope: str
    """node, network, or two zones as a>b."""
    zone: str = ""
    """Zone of a node or network group; empty: not stated."""
    nodes: int
    gpus_per_node: int
    ranks: int
    groups: int = 1
    cluster: str = ""
    size_class: str = ""
    """Sweep of sizes it is of, where a table has several."""
    backend: str = ""


@dataclass(frozen=True, kw_only=True)
class CollectiveSample:
    """One timed collective."""

    where: Topology
    size_bytes: float
    time_s: float


@dataclass(frozen=True, kw_only=True)
class CollectiveSamples:
    """The usable rows of a file, and how many were left out by flag."""

    rows: tuple[CollectiveSample, ...]
    flagged: Mapping[str, int] = field(default_factory=dict)
    clusters: tuple[str, ...] = ()
    """Clusters that the file has rows of."""


def read_collectives(path: Path, *, keep_noisy: bool = False, cluster: str | None = None) -> CollectiveSamples:
    """The timings of a file; `InvalidError` names what is wrong (ten mistakes), `FileError` a file that is none.

    `keep_noisy`: rows flagged so count too. `cluster`: only rows of that one.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise build_unreadable_error(path, error) from None
    if len(data) > MOST_BYTES:
        raise FileError(Notice(code="file_too_large", value=str(path), params={"limit_mib": MOST_BYTES // 2**20}))
    check_head(data, str(path))
    return parse_samples(data.decode("utf-8-sig", "replace"), str(path), keep_noisy=keep_noisy, cluster=cluster)


def parse_samples(
    text: str, file: str = "<text>", *, keep_noisy: bool = False, cluster: str | None = None
) -> CollectiveSamples:
    """The timings of a CSV text, as `read_collectives` reads a file."""
    samples: list[CollectiveSample] = []
    flagged: Counter[str] = Counter()
    notices = RowNotices(limit=MOST_NOTICES)
    clusters: dict[str, None] = {}
    for line, row in _read_rows(text, file):
        clusters[row.get("cluster", "")] = None
        if cluster not in (None, row.get("cluster", "")):
            continue
        flag = row.get("flag", "")
        try:
            sample = _parse_sample(line, row, flag)
        except InvalidError as error:
            notices.add(error.notices[0].with_place(file, line))
            continue
        if sample is None or (flag and not (keep_noisy and flag == NOISY_FLAG)):
            flagged[flag or FAILED_FLAG] += 1
        else:
            samples.append(sample)
    if notices:
        raise InvalidError(*notices.build_notices())
    if cluster is not None and cluster not in clusters:
        raise build_choice_error("--cluster", cluster, clusters)
    if not samples:
        flag_counts = [f"{flag} {count}" for flag, count in flagged.items()] or ["-"]
        raise InvalidError(Notice(code="collective_none", value=file, params={"flags": flag_counts}))
    return CollectiveSamples(rows=tuple(samples), flagged=dict(flagged), clusters=tuple(clusters))


def _read_rows(text: str, file: str) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.reader(io.StringIO(text.replace("\0", "")))
    try:
        columns = [name.strip() for name in next(reader, [])]
        missing = [name for name in REQUIRED_COLUMNS if name not in columns]
        if missing:
            raise build_columns_error(file, missing)
        for count, cells in enumerate(reader):
            if not any(cell.strip() for cell in cells):
                continue
            line = reader.line_num
            if count >= MOST_ROWS:
                raise InvalidError(Notice(code="too_many_rows", params={"limit": MOST_ROWS}, file=file, line=line))
            if len(cells) != len(columns):
                params = {"row": line, "columns": len(columns)}
                raise InvalidError(
                    Notice(code="collective_cells", value=len(cells), params=params).with_place(file, line)
                )
            yield line, dict(zip(columns, (cell.strip() for cell in cells), strict=True))
    except csv.Error as error:
        raise FileError(Notice(code="runs_not_csv", value=file, params={"reason": str(error)})) from None


def _parse_sample(line: int, row: Mapping[str, str], flag: str) -> CollectiveSample | None:
    """The row, or None where it has no time and says so."""
    where = _parse_topology(line, row)
    size = _parse_number(line, row, "bytes", 1e15)
    if flag == FAILED_FLAG and not row["time_us"]:
        return None
    time_us = _parse_number(line, row, "time_us", LONGEST_US)
    if not flag:
        _check_rate(line, row, where, size, time_us)
    return CollectiveSample(where=where, size_bytes=size, time_s=time_us * 1e-6)


def _parse_topology(line: int, row: Mapping[str, str]) -> Topology:
    op = row["op"].lower().replace("-", "_")
    if op not in OPS:
        raise _build_row_error(line, "collective_choice", "op", row["op"], allowed=list(OPS))
    nodes, width, ranks = (_parse_integer(line, row, key) for key in ("nodes", "gpus_per_node", "ranks"))
    if nodes * width != ranks or ranks < 2:
        raise _build_row_error(line, "collective_ranks", "ranks", ranks, nodes=nodes, width=width)
    scope = row.get("scope", "") or ("node" if nodes == 1 else "network")
    ends = scope.split(">")
    if scope not in ("node", "network") and (len(ends) != 2 or not all(ends) or ends[0] == ends[1]):
        raise _build_row_error(line, "collective_choice", "scope", scope, allowed=["node", "network", "a>b"])
    return Topology(
        op=op,
        scope=scope,
        zone=row.get("zone", ""),
        nodes=nodes,
        gpus_per_node=width,
        ranks=ranks,
        groups=_parse_integer(line, row, "groups") if row.get("groups") else 1,
        cluster=row.get("cluster", ""),
        size_class=row.get("size_class", ""),
        backend=row.get("backend", ""),
    )


def estimate_collective_cost(op: str, size_bytes: Any, ranks: Any, link: Tier) -> CollectiveCost:
    """What a collective costs by the bytes each rank passes in, in the forms of predictions. [K10]"""
    size, n = np.asarray(size_bytes, dtype=float), np.asarray(ranks, dtype=float)
    if op == "send_recv":
        return send_message(size, link)
    costs = {"all_reduce": all_reduce, "reduce_scatter": reduce_scatter, "all_to_all": all_to_all}
    ring = Ring(ranks=n, link=link)
    # The size of a gather in these files is one rank's share; the formula takes the gathered tensor.
    return all_gather(size * n, ring) if op == "all_gather" else costs[op](size, ring)


def compute_bus_bytes(where: Topology, size_bytes: float) -> float:
    """Bytes over the busiest link of a ring, as `bus_gb_per_s` counts them."""
    return float(estimate_collective_cost(where.op, size_bytes, where.ranks, FREE).sent_bytes)


def _check_rate(line: int, row: Mapping[str, str], where: Topology, size: float, time_us: float) -> None:
    """Refuse what no link carries, and rows whose rate is not bytes over time: units are mixed up."""
    gb_per_s = compute_bus_bytes(where, size) / time_us / 1e3
    if gb_per_s > FASTEST_GB_PER_S:
        limits = {"limit": FASTEST_GB_PER_S, "bytes": size}
        raise _build_row_error(line, "collective_impossible", "time_us", time_us, found=gb_per_s, **limits)
    column = next((name for name in RATE_COLUMNS if row.get(name)), None)
    if column is None:
        return
    stated = _parse_number(line, row, column, 1e12)
    if abs(stated / gb_per_s - 1) > UNITS_TOLERANCE:
        measured = {"bytes": size, "time_us": time_us}
        raise _build_row_error(line, "collective_units", column, stated, found=gb_per_s, **measured)


def _parse_number(line: int, row: Mapping[str, str], key: str, maximum: float) -> float:
    try:
        value = float(row.get(key, ""))
    except ValueError:
        value = math.nan
    if not 0 < value <= maximum:
        raise _build_row_error(line, "collective_number", key, row.get(key, ""), most=maximum)
    return value


def _parse_integer(line: int, row: Mapping[str, str], key: str) -> int:
    text = row.get(key, "")
    if not text.isascii() or not _INTEGER.fullmatch(text) or float(text) < 1:
        raise _build_row_error(line, "collective_number", key, text, most=1e15)
    return int(float(text))


def _build_row_error(line: int, code: str, key: str, value: object, **params: object) -> InvalidError:
    return InvalidError(Notice(code=code, field=key, value=value, params={"row": line, **params}))
