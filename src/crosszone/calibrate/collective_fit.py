"""Latency and rate of links, fitted to timed collectives in the forms that predictions use.

    fits, few = fitted(read_collectives(Path("collectives.csv")).rows)
    fits[0].latency_s, fits[0].bytes_per_s, fits[0].error_pct, fits[0].unseen_pct
    factors = concurrency(rows)              # how much slower a group is when all of its kind run

One fit a topology: op, scope, nodes, GPUs of each, groups at once (and sweep of sizes, where a table has several).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from crosszone.calibrate.collective_samples import Sample, Topology, exchange_of
from crosszone.cost.tiers import Floats, Numbers, Tier

ROBUST = 0.03
"""Relative error up to which rows count in squares, beyond it linearly, as in [Q3]."""
FOLDS = 5
ROUNDS, SETTLED = 200, 1e-10
QUIET_SHARE, EIGHTHS = 0.25, 8
"""Of the timings of one eighth of a doubling, the share that counts as undisturbed."""
SHOWN_SHARE = 0.1
"""Share of the time at the smallest (largest) size that latency (transfer) must have for its figure to be known."""


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
        return collective_s(self.where.op, size_bytes, self.where.ranks, self.tier)

    @property
    def latency_known(self) -> bool:
        """The smallest size shows the latency: it is a tenth of the time or more."""
        steps_s = collective_s(self.where.op, self.low_bytes, self.where.ranks, Tier(np.inf, self.latency_s))
        return float(steps_s) >= SHOWN_SHARE * float(self.seconds(self.low_bytes)) and self.latency_s > 0

    @property
    def rate_known(self) -> bool:
        """The largest size shows the rate: moving the bytes is half of the time or more."""
        steps_s = collective_s(self.where.op, self.high_bytes, self.where.ranks, Tier(np.inf, self.latency_s))
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


def collective_s(op: str, size_bytes: Numbers, ranks: Numbers, link: Tier) -> Floats:
    """Seconds of a collective by the bytes each rank passes in, in the forms [C1], [C2], [C5] and [C6]. [K10]"""
    return np.asarray(exchange_of(op, size_bytes, ranks, link).seconds)


def fitted(rows: Iterable[Sample]) -> tuple[list[LinkFit], list[Topology]]:
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


def concurrency(rows: Iterable[Sample]) -> list[Concurrency]:
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
            collective_s(where.op, size, where.ranks, Tier(np.inf, 1.0)) / time,
            collective_s(where.op, size, where.ranks, Tier(1.0, 0.0)) / time,
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
