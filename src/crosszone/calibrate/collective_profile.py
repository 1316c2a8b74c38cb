"""Timed collectives as part of an own profile, which predictions and plans use in place of the catalogue's rates.

    found = measured_collectives(read_collectives(path).rows, gpu="a100-80gb-sxm")
    own_profiles.save(OwnProfile(name="my-cluster", collectives=found.collectives, ...), add=True)

Rings and sends inside one zone; links between zones belong to a scenario (`collective_apply`), which names the zones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from crosszone.calibrate.collective_apply import ON_CPUS
from crosszone.calibrate.collective_fit import LinkFit, fitted, keep_quiet
from crosszone.calibrate.collective_samples import Sample, Topology
from crosszone.cost.measured_links import SECONDS_PER_US, MeasuredCollective
from crosszone.cost.own_profiles import OwnProfile, now
from crosszone.cost.tiers import BYTES_PER_S_PER_GB_PER_S
from crosszone.errors import InvalidError, Notice

LARGEST_ERROR_PCT = 20.0
"""A fit that misses sizes it has not seen by more tells of something else than latency and rate."""
SCOPES = ("node", "network")
DIGITS = 4


@dataclass(frozen=True, kw_only=True)
class MeasuredCluster:
    """The collectives of a profile, and the fits that did not get into it, each with the reason."""

    collectives: tuple[MeasuredCollective, ...]
    left_out: tuple[Notice, ...]


def measured_collectives(rows: Iterable[Sample], *, gpu: str, cpu_for_gpus: bool = False) -> MeasuredCluster:
    """Latency and rate of every timed op and layout, of its quiet timings; `InvalidError` where none can be used. [K14]

    A group timed alone counts: the formulas share links among groups themselves. Of zones that were timed alike the
    slowest counts, for a GPU kind has one figure. `cpu_for_gpus`: also timings between processes on CPUs.
    """
    alone = [one for one in rows if one.where.scope in SCOPES and one.where.groups == 1]
    fits, few = fitted(keep_quiet(alone))
    found: dict[tuple[object, ...], MeasuredCollective] = {}
    left_out = [_left_out(where, "collective_few_sizes") for where in few]
    for fit in fits:
        error_pct = fit.unseen_pct if fit.unseen_pct is not None else fit.error_pct
        if fit.where.backend == ON_CPUS and not cpu_for_gpus:
            left_out.append(_left_out(fit.where, "collective_on_cpus"))
        elif not fit.rate_known or fit.bytes_per_s is None:
            left_out.append(_left_out(fit.where, "collective_rate_unknown"))
        elif error_pct > LARGEST_ERROR_PCT:
            left_out.append(_left_out(fit.where, "collective_unsteady", error=error_pct))
        else:
            one, where = _measured(fit, gpu, error_pct), fit.where
            layout = where.op, where.nodes, where.gpus_per_node, where.size_class
            found[layout] = min(found.get(layout, one), one, key=lambda timed: timed.gb_per_s)
    if not found:
        raise InvalidError(Notice(code="collectives_unusable", params={"count": len(left_out)}), *left_out)
    return MeasuredCluster(collectives=tuple(found.values()), left_out=tuple(left_out))


def collective_profile(name: str, collectives: Sequence[MeasuredCollective], source: str) -> OwnProfile:
    """An own profile of them alone."""
    return OwnProfile(name=name, source=source, created=now(), collectives=tuple(collectives))


def _measured(fit: LinkFit, gpu: str, error_pct: float) -> MeasuredCollective:
    where, rate = fit.where, fit.bytes_per_s or 0.0
    whole = where.ranks if where.op == "all_gather" else 1  # timed by one rank's share, used by the whole tensor
    return MeasuredCollective(
        op=where.op,
        gpu=gpu,
        nodes=where.nodes,
        gpus_per_node=where.gpus_per_node,
        low_bytes=fit.low_bytes * whole,
        high_bytes=fit.high_bytes * whole,
        latency_us=_rounded(fit.latency_s / SECONDS_PER_US),
        gb_per_s=_rounded(rate / BYTES_PER_S_PER_GB_PER_S),
        error_pct=round(error_pct, 2),
        rows=fit.rows,
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _left_out(where: Topology, code: str, **params: float) -> Notice:
    layout = f"{where.nodes} x {where.gpus_per_node}"
    return Notice(code=code, level="note", value=where.op, params={"layout": layout, **params})
