"""Timed collectives: read from CSV files, and latency and rate of links fitted to them as predictions use them.

    samples = read_collectives(Path("collectives.csv"))
    samples.rows, samples.flagged            # {"noisy": 3}

Reads what `sampling/collectives.py` writes, and tables that state at least op, nodes, gpus_per_node, ranks, bytes and
time_us. `bytes` is the tensor each rank passes in: one rank's share for all_gather, the whole tensor for all others.
Every row is checked; if one is wrong, nothing of the file is used.

    fits, few = fit_links(read_collectives(Path("collectives.csv")).rows)
    fits[0].latency_s, fits[0].bytes_per_s, fits[0].error_pct, fits[0].unseen_pct
    factors = measure_concurrency(rows)              # how much slower a group is when all of its kind run

One fit a topology: op, scope, nodes, GPUs of each, groups at once (and sweep of sizes, where a table has several).

What fitted collectives say of a scenario's links: figures to type in their place, with their names and units.

    told = derive_link_figures(fits)
    told.between[("a", "b")]                 # ZoneFigures(bytes_per_s, latency_s, ...)
    told.network["a"], told.inside["a"]      # of a zone; "" where the samples name no zone

Between zones messages are looked at first, inside a zone rings: the op that training sends over such a link.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from crosszone.calibrate.user_files import RowNotices, build_choice_error, check_head
from crosszone.cost.collectives import (
    CollectiveCost,
    Ring,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
    send_message,
)
from crosszone.cost.tiers import BYTES_PER_S_PER_GBPS, FREE, Floats, Numbers, Tier, figure
from crosszone.errors import FileError, InputError, InvalidError, Notice

ROBUST = 0.03  # Relative error up to which rows count in squares, beyond it linearly, as in [Q3]
FOLDS = 5
ROUNDS, SETTLED = 200, 1e-10
# Of the timings of one eighth of a doubling, the share that counts as undisturbed.
QUIET_SHARE, EIGHTHS = 0.25, 8
# Share of the time at the smallest (largest) size that latency (transfer) must have for its figure to be known.
SHOWN_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class LinkFit:
    """Latency and rate of one topology, with how well they tell the times."""

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

    def seconds(self, size_bytes: Numbers) -> Floats:
        """What the fit says for other sizes; more bytes are never faster."""
        return estimate_collective_s(self.where.op, size_bytes, self.where.ranks, self.tier)

    @property
    def latency_known(self) -> bool:
        """The smallest size shows the latency: it is a tenth of the time or more."""
        steps_s = estimate_collective_s(self.where.op, self.low_bytes, self.where.ranks, Tier(np.inf, self.latency_s))
        return float(steps_s) >= SHOWN_SHARE * float(self.seconds(self.low_bytes)) and self.latency_s > 0

    @property
    def rate_known(self) -> bool:
        """The largest size shows the rate: moving the bytes is half of the time or more."""
        steps_s = estimate_collective_s(self.where.op, self.high_bytes, self.where.ranks, Tier(np.inf, self.latency_s))
        return self.bytes_per_s is not None and float(steps_s) <= 0.5 * float(self.seconds(self.high_bytes))

    def as_dict(self) -> dict[str, Any]:
        """Plain values: the topology beside the figures."""
        rest = {key: value for key, value in asdict(self).items() if key != "where"}
        known = {"latency_known": self.latency_known, "rate_known": self.rate_known}
        return {**asdict(self.where), **rest, **known}


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
        return {**asdict(self.where), **{key: value for key, value in asdict(self).items() if key != "where"}}


def estimate_collective_s(op: str, size_bytes: Numbers, ranks: Numbers, link: Tier) -> Floats:
    """Seconds of a collective by the bytes each rank passes in, in the forms [C1], [C2], [C5] and [C6]. [K10]"""
    return np.asarray(estimate_collective_cost(op, size_bytes, ranks, link).seconds)


def fit_links(rows: Iterable[Sample]) -> tuple[list[LinkFit], list[Topology]]:
    """A fit for every topology, and the topologies with fewer than two sizes, which tell nothing apart. [K10]"""
    found: list[LinkFit] = []
    few: list[Topology] = []
    for where, samples in _by_topology(rows).items():
        size = np.array([one.size_bytes for one in samples])
        if len(np.unique(size)) < 2:
            few.append(where)
            continue
        found.append(_fit(where, size, np.array([one.time_s for one in samples])))
    return found, few


def measure_concurrency(rows: Iterable[Sample]) -> list[Concurrency]:
    """Time with all groups at once over time alone, at the sizes measured both ways, for every topology. [K11]"""
    tables = {where: _medians(samples) for where, samples in _by_topology(rows).items()}
    found = []
    for where, together in tables.items():
        alone = tables.get(Topology(**{**asdict(where), "groups": 1}), {})
        ratios = [together[size] / alone[size] for size in together if size in alone] if where.groups > 1 else []
        if ratios:
            low, factor, high = (float(one) for one in np.quantile(ratios, (0.0, 0.5, 1.0)))
            found.append(Concurrency(where=where, factor=factor, low=low, high=high, sizes=len(ratios)))
    return found


def _by_topology(rows: Iterable[Sample]) -> dict[Topology, list[Sample]]:
    found: dict[Topology, list[Sample]] = {}
    for row in rows:
        found.setdefault(row.where, []).append(row)
    return found


def _medians(samples: Sequence[Sample]) -> dict[float, float]:
    sizes: dict[float, list[float]] = {}
    for one in samples:
        sizes.setdefault(one.size_bytes, []).append(one.time_s)
    return {size: float(np.median(times)) for size, times in sizes.items()}


def _fit(where: Topology, size: Floats, time: Floats) -> LinkFit:
    share = np.stack(
        [
            estimate_collective_s(where.op, size, where.ranks, Tier(np.inf, 1.0)) / time,
            estimate_collective_s(where.op, size, where.ranks, Tier(1.0, 0.0)) / time,
        ],
        axis=1,
    )
    doubling = np.floor(np.log2(size) + 1e-9)
    theta = _solved(share, doubling)
    error = np.abs(share @ theta - 1)
    spread = _standard_errors(share, _weights(doubling), theta)
    rate = None if theta[1] <= 0 else float(1 / theta[1])
    dealt = np.asarray(np.random.default_rng(0).permutation(len(size)) % FOLDS, dtype=float)
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
        random_pct=_held_out(share, doubling, size, dealt) if len(size) >= FOLDS else None,
        unseen_pct=_held_out(share, doubling, size, doubling) if len(np.unique(doubling)) >= 3 else None,
    )


def _held_out(share: Floats, doubling: Floats, size: Floats, dealt: Floats) -> float | None:
    """Mean absolute error of each part, predicted from the others; None: a part leaves fewer than two sizes."""
    errors = []
    for part in np.unique(dealt):
        out = dealt == part
        if len(np.unique(size[~out])) < 2:
            return None
        errors.append(np.abs(share[out] @ _solved(share[~out], doubling[~out]) - 1))
    return float(100 * np.concatenate(errors).mean())


def _weights(doubling: Floats) -> Floats:
    """Each doubling of the size counts alike, however many rows it has."""
    _, place, count = np.unique(doubling, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / count[place] / len(count))


def _solved(share: Floats, doubling: Floats) -> Floats:
    """Latency and seconds per byte, neither below 0, that bring `share @ theta` nearest to 1. [K10]

    Errors count in squares up to 3 % and linearly beyond, by weighing anew until nothing moves.
    """
    base = _weights(doubling)
    theta = _least_squares(share, base)
    for _ in range(ROUNDS):
        weight = base / np.sqrt(1 + ((share @ theta - 1) / ROBUST) ** 2)
        now = _least_squares(share, weight)
        moved = np.abs(share @ (now - theta)).max()
        theta = now
        if moved < SETTLED:
            break
    return theta


def _least_squares(share: Floats, weight: Floats) -> Floats:
    """Weighted least squares of two figures, neither below 0."""
    matrix, right = share.T @ (weight[:, np.newaxis] * share), share.T @ weight
    scale = np.sqrt(np.diag(matrix))
    tries = [np.array([right[0] / matrix[0, 0], 0.0]), np.array([0.0, right[1] / matrix[1, 1]])]
    both = np.linalg.lstsq(matrix / np.outer(scale, scale), right / scale, rcond=1e-12)[0] / scale
    if (both >= 0).all():
        return np.asarray(both)
    return min(tries, key=lambda theta: float(weight @ (share @ theta - 1) ** 2))


def _standard_errors(share: Floats, weight: Floats, theta: Floats) -> Floats:
    """One standard error of both figures; 0 for one that lies at its bound."""
    inside = theta > 0
    found, left = np.zeros(2), len(share) - int(inside.sum())
    if not inside.any() or left <= 0:
        return found
    part, count = share[:, inside], len(share)
    robust = weight * count / np.sqrt(1 + ((share @ theta - 1) / ROBUST) ** 2)
    matrix = part.T @ (robust[:, np.newaxis] * part)
    scale = np.sqrt(np.diag(matrix))
    inverse = np.diag(np.linalg.pinv(matrix / np.outer(scale, scale))) / scale**2
    variance = float(robust @ (share @ theta - 1) ** 2) / left
    found[inside] = np.sqrt(np.maximum(inverse * variance, 0.0))
    return found


def keep_quiet(rows: Iterable[Sample]) -> list[Sample]:
    """Of the timings of a topology, the fastest quarter of each eighth of a doubling of the size. [K14]

    A quiet run is what is predicted; the slower timings tell of others on the network. Where an eighth has fewer than
    four timings, all of them stay.
    """
    found: list[Sample] = []
    for where, samples in _by_topology(rows).items():
        size = np.array([one.size_bytes for one in samples])
        time_s = np.array([one.time_s for one in samples])
        if len(np.unique(size)) < 2:
            found += samples
            continue
        slowness = time_s / _fit(where, size, time_s).seconds(size)
        eighth = np.floor(EIGHTHS * np.log2(size) + 1e-9)
        for part in np.unique(eighth):
            here = np.flatnonzero(eighth == part)
            most = max(1, round(QUIET_SHARE * len(here))) if len(here) >= 1 / QUIET_SHARE else len(here)
            found += [samples[at] for at in here[np.argsort(slowness[here], kind="stable")][:most]]
    return found


# Ops that show the links inside a zone, the most telling first.
RING_OPS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send_recv")
# Ops that show the way between zones, the most telling first.
ZONE_OPS = ("send_recv", "all_reduce", "reduce_scatter", "all_gather", "all_to_all")
# Rate of all groups over that of one from which one group counts as held back by its connections.
TOGETHER_MORE = 1.25
DIGITS = 4


@dataclass(frozen=True, kw_only=True)
class ZoneFigures:
    """One way from a zone to another."""

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
class LinkFigures:
    """All that fits say of links."""

    between: dict[tuple[str, str], ZoneFigures] = field(default_factory=dict)
    network: dict[str, RingFigures] = field(default_factory=dict)
    inside: dict[str, RingFigures] = field(default_factory=dict)


def derive_link_figures(fits: Iterable[LinkFit]) -> LinkFigures:
    """The figures of every link that the fits show. [K12]"""
    fits = list(fits)
    ways = dict.fromkeys(fit.where.scope for fit in fits if fit.where.scope not in ("node", "network"))
    between = {}
    for scope in ways:
        first, second = scope.split(">")
        between[first, second] = _way([fit for fit in fits if fit.where.scope == scope])
        turned = f"{second}>{first}"
        if turned not in ways:  # collectives go both ways at once
            both = [fit for fit in fits if fit.where.scope == scope and fit.where.op != "send_recv"]
            if both:
                between[second, first] = _way(both)
    return LinkFigures(between=between, network=_rings(fits, "network"), inside=_rings(fits, "node"))


def rtt_ms(there: ZoneFigures, back: ZoneFigures | None) -> float | None:
    """Round-trip time that gives these latencies in the model: both ways less what the hosts add. [K12]"""
    other = there if back is None or back.latency_s is None else back
    first = other if there.latency_s is None else there
    if first.latency_s is None or other.latency_s is None:
        return None
    hosts_s = 2 * figure("tcp", "latency_us") * 1e-6
    return rounded(max(0.0, first.latency_s + other.latency_s - hosts_s) * 1e3)


def gbps(bytes_per_s: float, fabric: str = "tcp") -> float:
    """Gbit/s of a link whose payload rate is this. [K12]"""
    return rounded(bytes_per_s / BYTES_PER_S_PER_GBPS / figure(fabric, "efficiency"))


def flow_gbps(way: ZoneFigures) -> float | None:
    """Gbit/s of one connection, where one group alone shows it. [K12]"""
    if way.group_bytes_per_s is None:
        return None
    connections = figure("nccl_sockets", "channels") if way.backend == "nccl" else 1.0
    return gbps(way.group_bytes_per_s / connections)


def rounded(value: float) -> float:
    """Four digits: more were not measured."""
    return float(f"{value:.{DIGITS}g}")


def _way(fits: Sequence[LinkFit]) -> ZoneFigures:
    op = next(op for op in ZONE_OPS if any(fit.where.op == op for fit in fits))
    same = [fit for fit in fits if fit.where.op == op]
    alone = [fit for fit in same if fit.where.groups == 1]
    rates = [fit.where.groups * fit.bytes_per_s for fit in same if fit.bytes_per_s is not None and fit.rate_known]
    single = [fit.bytes_per_s for fit in alone if fit.bytes_per_s is not None and fit.rate_known]
    shown = [fit.latency_s for fit in alone or same if fit.latency_known]
    one, all_of_them = max(single, default=None), max(rates, default=None)
    return ZoneFigures(
        latency_s=min(shown, default=None),
        bytes_per_s=all_of_them,
        group_bytes_per_s=one,
        held_back=one is not None and all_of_them is not None and all_of_them > TOGETHER_MORE * one,
        backend=same[0].where.backend,
        op=op,
    )


def _rings(fits: Sequence[LinkFit], scope: str) -> dict[str, RingFigures]:
    here = [fit for fit in fits if fit.where.scope == scope and fit.rate_known]
    found = {}
    for zone in dict.fromkeys(fit.where.zone for fit in here):
        ours = [fit for fit in here if fit.where.zone == zone]
        op = next(op for op in RING_OPS if any(fit.where.op == op for fit in ours))
        same = [fit for fit in ours if fit.where.op == op]
        best = max(same, key=_node_rate if scope == "network" else _widest)
        found[zone] = _ring(best, scope)
    return found


def _widest(fit: LinkFit) -> tuple[float, ...]:
    """Rings of most GPUs of a node, alone, over the largest sizes: nearest to what training sends."""
    return (fit.where.gpus_per_node, -fit.where.groups, fit.high_bytes)


def _node_rate(fit: LinkFit) -> float:
    """What all groups of a node reach together: groups of one kind lie side by side on the same nodes."""
    return (fit.bytes_per_s or 0.0) * fit.where.groups


def _ring(fit: LinkFit, scope: str) -> RingFigures:
    where, rate = fit.where, fit.bytes_per_s or 0.0
    node: Callable[[LinkFit], float] = _node_rate if scope == "network" else lambda one: one.bytes_per_s or 0.0
    return RingFigures(
        bytes_per_s=node(fit),
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
NEEDED = ("op", "nodes", "gpus_per_node", "ranks", "bytes", "time_us")
FAILED = "failed"  # Flag of a row without a time
NOISY = "noisy"  # Flag of a row whose time is uncertain; it may be kept on request
MOST_BYTES, MOST_ROWS, MOST_TOLD = 64 * 2**20, 500_000, 10
FASTEST_GB_PER_S = 10_000.0  # No link of one GPU carries more
LONGEST_US = 86_400e6
# The column of a rate, ours and as published tables name it; both count 1e9 bytes a second.
RATES = ("bus_gb_per_s", "bus_gbps")
UNITS_TOLERANCE = 0.1  # By how much a stated rate may differ from bytes / time
_WHOLE = re.compile(r"\d{1,15}(\.0*)?")


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
    """Sweep of sizes it is of, where a table tells several apart."""
    backend: str = ""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One timed collective."""

    where: Topology
    size_bytes: float
    time_s: float


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The usable rows of a file, and how many were left out by flag."""

    rows: tuple[Sample, ...]
    flagged: Mapping[str, int] = field(default_factory=dict)
    clusters: tuple[str, ...] = ()
    """Clusters that the file has rows of."""


class _RowError(Exception):
    """A row that cannot be used."""

    def __init__(self, notice: Notice) -> None:
        super().__init__(notice.code)
        self.notice = notice


def read_collectives(path: Path, *, keep_noisy: bool = False, cluster: str | None = None) -> Samples:
    """The timings of a file; `InvalidError` names what is wrong (ten mistakes), `FileError` a file that is none.

    `keep_noisy`: rows flagged so count too. `cluster`: only rows of that one.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        params = {"reason": error.strerror or str(error)}
        raise FileError(Notice(code="file_unreadable", value=str(path), params=params)) from None
    if len(data) > MOST_BYTES:
        raise FileError(Notice(code="file_too_large", value=str(path), params={"limit_mib": MOST_BYTES // 2**20}))
    check_head(data, str(path))
    return parse_samples(data.decode("utf-8-sig", "replace"), str(path), keep_noisy=keep_noisy, cluster=cluster)


def parse_samples(text: str, file: str = "<text>", *, keep_noisy: bool = False, cluster: str | None = None) -> Samples:
    """The timings of a CSV text, as `read_collectives` reads a file."""
    found: list[Sample] = []
    flagged: Counter[str] = Counter()
    wrong = RowNotices(limit=MOST_TOLD)
    clusters: dict[str, None] = {}
    for line, row in _rows(text, file):
        clusters[row.get("cluster", "")] = None
        if cluster not in (None, row.get("cluster", "")):
            continue
        flag = row.get("flag", "")
        try:
            sample = _sample(line, row, flag)
        except _RowError as error:
            wrong.add(error.notice.at(file, line))
            continue
        if sample is None or (flag and not (keep_noisy and flag == NOISY)):
            flagged[flag or FAILED] += 1
        else:
            found.append(sample)
    if wrong:
        raise InvalidError(*wrong.build_notices())
    if cluster is not None and cluster not in clusters:
        raise build_choice_error("--cluster", cluster, clusters)
    if not found:
        left = [f"{flag} {count}" for flag, count in flagged.items()] or ["-"]
        raise InvalidError(Notice(code="collective_none", value=file, params={"flags": left}))
    return Samples(rows=tuple(found), flagged=dict(flagged), clusters=tuple(clusters))


def _rows(text: str, file: str) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.reader(io.StringIO(text.replace("\0", "")))
    try:
        columns = [name.strip() for name in next(reader, [])]
        missing = [name for name in NEEDED if name not in columns]
        if missing:
            raise InputError(Notice(code="runs_columns", value=file, params={"missing": missing}, file=file, line=1))
        for count, cells in enumerate(reader):
            if not any(cell.strip() for cell in cells):
                continue
            line = reader.line_num
            if count >= MOST_ROWS:
                raise InvalidError(Notice(code="too_many_rows", params={"limit": MOST_ROWS}, file=file, line=line))
            if len(cells) != len(columns):
                params = {"row": line, "columns": len(columns)}
                raise InvalidError(Notice(code="collective_cells", value=len(cells), params=params).at(file, line))
            yield line, dict(zip(columns, (cell.strip() for cell in cells), strict=True))
    except csv.Error as error:
        raise FileError(Notice(code="runs_not_csv", value=file, params={"reason": str(error)})) from None


def _sample(line: int, row: Mapping[str, str], flag: str) -> Sample | None:
    """The row, or None where it has no time and says so."""
    where = _topology(line, row)
    size = _number(line, row, "bytes", 1e15)
    if flag == FAILED and not row["time_us"]:
        return None
    time_us = _number(line, row, "time_us", LONGEST_US)
    if not flag:
        _check_rate(line, row, where, size, time_us)
    return Sample(where=where, size_bytes=size, time_s=time_us * 1e-6)


def _topology(line: int, row: Mapping[str, str]) -> Topology:
    op = row["op"].lower().replace("-", "_")
    if op not in OPS:
        raise _RowError(_refused(line, "collective_choice", "op", row["op"], allowed=list(OPS)))
    nodes, width, ranks = (_whole(line, row, key) for key in ("nodes", "gpus_per_node", "ranks"))
    if nodes * width != ranks or ranks < 2:
        raise _RowError(_refused(line, "collective_ranks", "ranks", ranks, nodes=nodes, width=width))
    scope = row.get("scope", "") or ("node" if nodes == 1 else "network")
    ends = scope.split(">")
    if scope not in ("node", "network") and (len(ends) != 2 or not all(ends) or ends[0] == ends[1]):
        allowed = ["node", "network", "a>b"]
        raise _RowError(_refused(line, "collective_choice", "scope", scope, allowed=allowed))
    return Topology(
        op=op,
        scope=scope,
        zone=row.get("zone", ""),
        nodes=nodes,
        gpus_per_node=width,
        ranks=ranks,
        groups=_whole(line, row, "groups") if row.get("groups") else 1,
        cluster=row.get("cluster", ""),
        size_class=row.get("size_class", ""),
        backend=row.get("backend", ""),
    )


def estimate_collective_cost(op: str, size_bytes: Any, ranks: Any, link: Tier) -> CollectiveCost:
    """What a collective costs by the bytes each rank passes in, in the forms of predictions. [K10]"""
    size, n = np.asarray(size_bytes, dtype=float), np.asarray(ranks, dtype=float)
    if op == "send_recv":
        return send_message(size, link)
    forms = {"all_reduce": all_reduce, "reduce_scatter": reduce_scatter, "all_to_all": all_to_all}
    ring = Ring(ranks=n, link=link)
    # the size of a gather is that of one rank's share
    return all_gather(size * n, ring) if op == "all_gather" else forms[op](size, ring)


def bus_bytes(where: Topology, size_bytes: float) -> float:
    """Bytes over the busiest link of a ring, as `bus_gb_per_s` counts them."""
    return float(estimate_collective_cost(where.op, size_bytes, where.ranks, FREE).sent_bytes)


def _check_rate(line: int, row: Mapping[str, str], where: Topology, size: float, time_us: float) -> None:
    """Refuse what no link carries, and rows whose rate is not bytes over time: units are mixed up."""
    found = bus_bytes(where, size) / time_us / 1e3
    if found > FASTEST_GB_PER_S:
        params = {"limit": FASTEST_GB_PER_S, "bytes": size}
        raise _RowError(_refused(line, "collective_impossible", "time_us", time_us, found=found, **params))
    column = next((name for name in RATES if row.get(name)), None)
    if column is None:
        return
    stated = _number(line, row, column, 1e12)
    if abs(stated / found - 1) > UNITS_TOLERANCE:
        params = {"bytes": size, "time_us": time_us}
        raise _RowError(_refused(line, "collective_units", column, stated, found=found, **params))


def _number(line: int, row: Mapping[str, str], key: str, most: float) -> float:
    try:
        value = float(row.get(key, ""))
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise _RowError(_refused(line, "collective_number", key, row.get(key, ""), most=most))
    return value


def _whole(line: int, row: Mapping[str, str], key: str) -> int:
    text = row.get(key, "")
    if not text.isascii() or not _WHOLE.fullmatch(text) or float(text) < 1:
        raise _RowError(_refused(line, "collective_number", key, text, most=1e15))
    return int(float(text))


def _refused(line: int, code: str, key: str, value: object, **params: object) -> Notice:
    return Notice(code=code, field=key, value=value, params={"row": line, **params})
