"""The whole run: length, GPU-hours, money, energy, and the share that failures and checkpoints leave."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from typing import Any

from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.cluster import NodeGroup, Zone
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.parameters import parameters
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.states import state_bytes
from crosszone.predict.prediction import Goodput, Run, Triple
from crosszone.predict.site import Site

HOUR_S, DAY_S, GB = 3600.0, 86400.0, 1e9

Used = list[tuple[Zone, NodeGroup, int]]


@cache
def power_entries() -> dict[str, dict[str, Any]]:
    """Figures of `cost/power.yaml` with origin and source, by name."""
    found: dict[str, dict[str, Any]] = read_shipped("crosszone.cost", "power.yaml").value
    return found


@cache
def power_figures() -> dict[str, float]:
    """Figures of `cost/power.yaml` by name."""
    return {name: float(entry["value"]) for name, entry in power_entries().items()}


def run_of(site: Site, framework: str, step_s: Triple, busy_share: float, egress: dict[tuple[int, int], float]) -> Run:
    """Everything about the whole run; `egress` is bytes per step from zone to zone, `busy_share` time GPUs compute."""
    job, good = site.case.job, goodput_of(site, framework)
    used = used_groups(site)
    price, kilowatt = _usd_per_hour(used), _kilowatt(used, busy_share)
    if job.steps is None:
        return Run(
            steps=None,
            days=None,
            gpu_hours=None,
            usd=None,
            usd_egress=None,
            kwh=None,
            co2_kg=None,
            usd_per_hour=price,
            kw=kilowatt,
            goodput=good,
        )
    days = step_s.times(job.steps / DAY_S / good.share)
    hours = days.times(24.0)
    gpus = sum(count for _, _, count in used)
    out = usd_egress(site, egress, job.steps)
    usd = (
        None
        if price is None
        else Triple(
            low=hours.low * price + (out or 0.0),
            expected=hours.expected * price + (out or 0.0),
            high=hours.high * price + (out or 0.0),
        )
    )
    kwh = None if kilowatt is None else hours.times(kilowatt)
    grams = _grams_per_kwh(used, busy_share)
    return Run(
        steps=job.steps,
        days=days,
        gpu_hours=hours.times(gpus),
        usd=usd,
        usd_egress=out,
        kwh=kwh,
        co2_kg=None if kwh is None or grams is None else kwh.times(grams / 1000.0),
        usd_per_hour=price,
        kw=kilowatt,
        goodput=good,
    )


@cache
def _failures_per_1000_days(gpu: Gpu) -> float:
    return catalogue().failure_rate(gpu).failures_per_1000_gpu_days


def goodput_of(site: Site, framework: str) -> Goodput:
    """Share of time that makes progress: checkpoints cost time, a failure costs half an interval and a restart. [E1]

    Failures come at the GPUs' rates; the interval is Young's, sqrt(2 x checkpoint x mean time between failures).
    """
    figures, used = power_figures(), used_groups(site)
    per_day = sum(count * _failures_per_1000_days(group.gpu) / 1000.0 for _, group, count in used)
    mtbf = DAY_S / per_day if per_day > 0 else math.inf
    states = state_bytes(site.case.job, framework=framework)
    size = parameters(site.case.model).total * (states.weights + states.master + states.moments)
    nodes = max(1, min(site.nodes, sum(count for _, _, count in used)))
    write = size / GB / (figures["checkpoint_gb_per_s_per_node"] * nodes)
    interval = math.sqrt(2.0 * write * mtbf)
    lost = interval / 2.0 + figures["restart_s"]
    return Goodput(
        share=goodput_share(write, interval, mtbf, figures["restart_s"]),
        mtbf_hours=mtbf / HOUR_S,
        checkpoint_gb=size / GB,
        checkpoint_s=write,
        interval_s=interval,
        lost_per_failure_s=lost,
    )


def goodput_share(checkpoint_s: float, interval_s: float, mtbf_s: float, restart_s: float) -> float:
    """Share of time that makes progress with a checkpoint every so many seconds. [E1]"""
    return 1.0 / (1.0 + checkpoint_s / interval_s + (interval_s / 2.0 + restart_s) / mtbf_s)


def used_groups(site: Site) -> Used:
    """Zone, node group and GPUs in use of each group."""
    counts = Counter(site.group.ravel().tolist())
    groups = list(site.cluster.groups())
    return [(*groups[number], count) for number, count in sorted(counts.items())]


def _usd_per_hour(used: Used) -> float | None:
    """Price of all GPUs in use for an hour; None where one is not known. [E2]"""
    total = 0.0
    for _, group, count in used:
        price = usd_per_gpu_hour(group)
        if price is None:
            return None
        total += count * price
    return total


def usd_per_gpu_hour(group: NodeGroup) -> float | None:
    """Price of one GPU of a group for an hour: its own, else the catalogue's; None: not known. [E2]"""
    return group.usd_per_gpu_hour if group.usd_per_gpu_hour is not None else group.gpu.usd_per_hour


def _kilowatt(used: Used, busy_share: float) -> float | None:
    """Power of the GPUs in use with their hosts and sites. [E3]"""
    parts = [group_kilowatt(zone, group, count, busy_share) for zone, group, count in used]
    return None if any(part is None for part in parts) else sum(part for part in parts if part is not None)


def group_kilowatt(zone: Zone, group: NodeGroup, count: int, busy_share: float) -> float | None:
    """Power of so many GPUs of a group with their hosts and site; None where the board power is not known. [E3]"""
    if group.gpu.tdp_w is None:
        return None
    f = power_figures()
    draw = f["idle_share"] + (f["busy_share"] - f["idle_share"]) * busy_share + f["host_share"]
    return count * group.gpu.tdp_w * draw * (zone.pue or 1.0) / 1000.0


def _grams_per_kwh(used: Used, busy_share: float) -> float | None:
    """Carbon of a kWh over all zones in use, weighted by their power; None where one is not known."""
    grams = power = 0.0
    for zone, group, count in used:
        own = grams_per_kwh(zone)
        part = group_kilowatt(zone, group, count, busy_share)
        if own is None or part is None:
            return None
        grams, power = grams + own * part, power + part
    return grams / power if power else None


def grams_per_kwh(zone: Zone) -> float | None:
    """Carbon of a kWh in a zone: its own, else its region's; None: not known. [E3]"""
    if zone.carbon_g_per_kwh is not None or zone.region is None:
        return zone.carbon_g_per_kwh
    return zone.region.carbon_g_per_kwh


def usd_egress(site: Site, egress: dict[tuple[int, int], float], steps: int) -> float | None:
    """Price of what leaves the zones over the whole run; None where a price is not known. [E2]"""
    if unpriced(site, egress):
        return None
    return sum((usd_per_gb(site, a, b) or 0.0) * size * steps / GB for (a, b), size in egress.items())


def unpriced(site: Site, egress: dict[tuple[int, int], float]) -> list[str]:
    """Pairs of zones with traffic whose price is not known, in the direction of the traffic."""
    names = [zone.name for zone in site.cluster.zones]
    return [f"{names[a]} > {names[b]}" for a, b in egress if usd_per_gb(site, a, b) is None]


def usd_per_gb(site: Site, a: int, b: int) -> float | None:
    """Price of a GB from one zone to another; None: not known. [E2]"""
    link = site.links[min(a, b), max(a, b)]
    return link.usd_per_gb if a < b else link.usd_per_gb_back
