"""The whole run: length, GPU-hours, money, energy, and the share that failures and checkpoints leave."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from crosszone.cost.record import named
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.cluster import NodeGroup, Zone
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.job import Job, state_bytes
from crosszone.inputs.parameters import parameters
from crosszone.inputs.shipped import read_shipped
from crosszone.predict.placed_strategy import PlacedStrategy
from crosszone.predict.prediction import Figure, Goodput, Run, Triple, name_triple

HOUR_S, DAY_S, GB = 3600.0, 86400.0, 1e9

Used = list[tuple[Zone, NodeGroup, int]]


@cache
def read_power_entries() -> dict[str, dict[str, Any]]:
    """Figures of `cost/power.yaml` with origin and source, by name."""
    entries: dict[str, dict[str, Any]] = read_shipped("crosszone.cost", "power.yaml").value
    return entries


def read_power_figures() -> dict[str, float]:
    """Figures of `cost/power.yaml` by name."""
    return {name: named(f"power_{name}", float(entry["value"])) for name, entry in read_power_entries().items()}


def predict_run(
    placed: PlacedStrategy, framework: str, step_s: Triple, busy_share: Figure, egress: dict[tuple[int, int], Figure]
) -> Run:
    """Everything about the whole run; `egress` is bytes per step from zone to zone, `busy_share` time GPUs compute."""
    job, good = placed.case.job, predict_goodput(placed, framework)
    used = select_used_groups(placed)
    price = named("run.usd_per_hour", _sum_usd_per_hour(used))
    kilowatt = named("run.kw", _sum_kilowatt(used, busy_share))
    if job.steps is None:
        return Run(steps=None, days=None, usd_per_hour=price, kw=kilowatt, goodput=good)
    steps = named("run.steps", _count_steps(job))
    days = name_triple("run.days", step_s.times(steps / DAY_S / good.share))
    hours = days.times(24.0)
    gpus = sum(_count_gpus(*group) for group in used)
    out = named("run.usd_egress", sum_usd_egress(placed, egress, steps))
    usd = None if price is None else hours.times(price).plus(out or 0.0)
    kwh = None if kilowatt is None else name_triple("run.kwh", hours.times(kilowatt))
    grams = _average_grams_per_kwh(used, busy_share)
    return Run(
        steps=job.steps,
        days=days,
        gpu_hours=name_triple("run.gpu_hours", hours.times(gpus)),
        usd=usd and name_triple("run.usd", usd),
        usd_egress=out,
        kwh=kwh,
        co2_kg=None if kwh is None or grams is None else name_triple("run.co2_kg", kwh.times(grams / 1000.0)),
        usd_per_hour=price,
        kw=kilowatt,
        goodput=good,
    )


@cache
def _find_failure_rate(gpu: Gpu) -> float:
    return catalogue().find_failure_rate(gpu).failures_per_1000_gpu_days


def predict_goodput(placed: PlacedStrategy, framework: str) -> Goodput:
    """Share of time that makes progress: checkpoints cost time, a failure costs half an interval and a restart. [E1]

    Failures come at the GPUs' rates; the interval is Young's, sqrt(2 x checkpoint x mean time between failures).
    """
    figures, used = read_power_figures(), select_used_groups(placed)
    per_day = sum(
        _count_gpus(zone, group, count)
        * named("failures_of", _find_failure_rate(group.gpu), gpu=group.gpu.name)
        / 1000.0
        for zone, group, count in used
    )
    mtbf = named("run.goodput.mtbf_hours", 24.0 / per_day if per_day > 0 else math.inf)
    states = state_bytes(placed.case.job, framework=framework)
    checkpointed = ("weights", "master", "moments")
    bytes_per_param = sum(named(f"bytes_{name}", getattr(states, name)) for name in checkpointed)
    size = named(
        "run.goodput.checkpoint_gb", named("parameters", parameters(placed.case.model).total) * bytes_per_param / GB
    )
    nodes = named("nodes_in_use", max(1, min(placed.nodes, sum(count for _, _, count in used))))
    write = named("run.goodput.checkpoint_s", size / (figures["checkpoint_gb_per_s_per_node"] * nodes))
    # np, not math: these may be recorded numbers, which only NumPy's functions keep recorded
    interval = named("run.goodput.interval_s", np.sqrt(2.0 * write * mtbf * HOUR_S))
    lost = named("run.goodput.lost_per_failure_s", interval / 2.0 + figures["restart_s"])
    return Goodput(
        share=named("run.goodput.share", compute_goodput_share(write, interval, mtbf * HOUR_S, figures["restart_s"])),
        mtbf_hours=mtbf,
        checkpoint_gb=size,
        checkpoint_s=write,
        interval_s=interval,
        lost_per_failure_s=lost,
    )


def compute_goodput_share(checkpoint_s: Figure, interval_s: Figure, mtbf_s: Figure, restart_s: Figure) -> Figure:
    """Share of time that makes progress with a checkpoint every so many seconds. [E1]"""
    return 1.0 / (1.0 + checkpoint_s / interval_s + (interval_s / 2.0 + restart_s) / mtbf_s)


def _count_gpus(zone: Zone, group: NodeGroup, count: int) -> Figure:
    gpus: float = named("gpus_in", count, gpu=group.gpu.name, zone=zone.name)
    return gpus


def _count_steps(job: Job) -> Figure:
    """Optimizer steps of the run, the last one rounded up. [J2]"""
    if job.tokens is not None:
        tokens = named("job.tokens", job.tokens)
    else:
        tokens = named("job.corpus_tokens", job.corpus_tokens) * named("job.epochs", job.epochs or 1.0)
    steps: float = np.ceil(tokens / count_tokens_per_step(job))
    return steps


def count_tokens_per_step(job: Job) -> Figure:
    """Tokens of one optimizer step. [J1]"""
    tokens: float = named("work.seq", job.seq_len) * named("work.global_batch", job.global_batch)
    return tokens


def select_used_groups(placed: PlacedStrategy) -> Used:
    """Zone, node group and GPUs in use of each group."""
    counts = np.bincount(placed.group.ravel())
    groups = list(placed.cluster.zone_groups)
    return [(*groups[number], int(counts[number])) for number in np.flatnonzero(counts).tolist()]


def _sum_usd_per_hour(used: Used) -> float | None:
    """Price of all GPUs in use for an hour; None where one is not known. [E2]"""
    total = 0.0
    for zone, group, count in used:
        price = named("price_of", get_usd_per_gpu_hour(group), gpu=group.gpu.name, zone=zone.name)
        if price is None:
            return None
        total = total + _count_gpus(zone, group, count) * price
    return total


def get_usd_per_gpu_hour(group: NodeGroup) -> float | None:
    """Price of one GPU of a group for an hour: its own, else the catalogue's; None: not known. [E2]"""
    return group.usd_per_gpu_hour if group.usd_per_gpu_hour is not None else group.gpu.usd_per_hour


def _sum_kilowatt(used: Used, busy_share: float) -> float | None:
    """Power of the GPUs in use with their hosts and sites. [E3]"""
    parts = [compute_group_kilowatt(zone, group, count, busy_share) for zone, group, count in used]
    return None if any(part is None for part in parts) else sum(part for part in parts if part is not None)


def compute_group_kilowatt(zone: Zone, group: NodeGroup, count: int, busy_share: Figure) -> Figure | None:
    """Power of so many GPUs of a group with their hosts and site; None where the board power is not known. [E3]"""
    if group.gpu.tdp_w is None:
        return None
    f = read_power_figures()
    # hosts draw their share whether the GPUs compute or wait; it is a share of the board power as well [E3]
    draw = f["idle_share"] + (f["busy_share"] - f["idle_share"]) * busy_share + f["host_share"]
    board = named("board_power", group.gpu.tdp_w, gpu=group.gpu.name)
    pue = named("pue", zone.pue or 1.0, zone=zone.name)
    kilowatt: float = named(
        "group_power", _count_gpus(zone, group, count) * board * draw * pue / 1000.0, zone=zone.name
    )
    return kilowatt


def _average_grams_per_kwh(used: Used, busy_share: float) -> float | None:
    """Carbon of a kWh over all zones in use, weighted by their power; None where one is not known."""
    grams = power = 0.0
    for zone, group, count in used:
        zone_grams = named("grid_carbon", get_grams_per_kwh(zone), zone=zone.name)
        part = compute_group_kilowatt(zone, group, count, busy_share)
        if zone_grams is None or part is None:
            return None
        grams, power = grams + zone_grams * part, power + part
    return grams / power if power else None


def get_grams_per_kwh(zone: Zone) -> float | None:
    """Carbon of a kWh in a zone: its own, else its region's; None: not known. [E3]"""
    if zone.carbon_g_per_kwh is not None or zone.region is None:
        return zone.carbon_g_per_kwh
    return zone.region.carbon_g_per_kwh


def sum_usd_egress(placed: PlacedStrategy, egress: dict[tuple[int, int], Figure], steps: Figure) -> Figure | None:
    """Price of what leaves the zones over the whole run; None where a price is not known. [E2]"""
    if list_unpriced_egress(placed, egress):
        return None
    names = [zone.name for zone in placed.cluster.zones]
    total = 0.0
    for (a, b), size in egress.items():
        link = f"{names[a]} > {names[b]}"
        sent = named("egress_bytes", size, link=link)
        total = total + sent * steps / GB * named("egress_price", get_usd_per_gb(placed, a, b), link=link)
    return total


def list_unpriced_egress(placed: PlacedStrategy, egress: dict[tuple[int, int], float]) -> list[str]:
    """Pairs of zones with traffic whose price is not known, in the direction of the traffic."""
    names = [zone.name for zone in placed.cluster.zones]
    return [f"{names[a]} > {names[b]}" for a, b in egress if get_usd_per_gb(placed, a, b) is None]


def get_usd_per_gb(placed: PlacedStrategy, a: int, b: int) -> float | None:
    """Price of a GB from one zone to another; None: not known. [E2]"""
    link = placed.links[min(a, b), max(a, b)]
    return link.usd_per_gb if a < b else link.usd_per_gb_back
