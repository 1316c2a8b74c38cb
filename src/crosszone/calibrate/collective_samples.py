"""Timed collectives: the rows of a CSV file, each checked; one wrong row and nothing of the file is used.

    samples = read_collectives(Path("collectives.csv"))
    samples.rows, samples.flagged            # {"noisy": 3}

Reads what `sampling/collectives.py` writes, and tables that state at least op, nodes, gpus_per_node, ranks, bytes and
time_us. `bytes` is the tensor each rank passes in: one rank's share for all_gather, the whole for all others.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
from crosszone.cost.tiers import FREE, Tier
from crosszone.errors import FileError, InputError, InvalidError, Notice

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
    wrong = RowNotices(most=MOST_TOLD)
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
        raise InvalidError(*wrong.told())
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
