"""Streaming DiLoCo: the bandwidth that a compute utilisation needs, as its authors' simulation has it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from crosszone.analyse.published.result import Result
from crosszone.cost.tiers import BYTES_PER_S_PER_GBPS, Floats
from crosszone.inputs.shipped import read_shipped
from crosszone.schedule.averaging import Averaging, every_layer, streamed, utilisation

FAMILY = "streaming-diloco"
_TARGET = re.compile(r"bandwidth needed for (\d{1,3})% compute utilisation")
_HOURS = "training hours at 1 Gbit/s"
_UNLIMITED_H = re.compile(r"takes (\d{1,6}(?:\.\d{1,6})?) h with infinite bandwidth")


def streaming_results(rows: Sequence[Mapping[str, str]]) -> list[Result]:
    """Every row of the family, then the cells of the source's table that the rows leave out."""
    found, seen = [], set()
    for row in rows:
        target, model, method = _TARGET.fullmatch(row["metric"]), row["model"], row["method"]
        known = model in _data()["models"] and method in _data()["methods"]
        if known and target and int(target[1]) < 100:
            seen.add((model, method, int(target[1])))
            found.append(_cell(row["id"], model, method, int(target[1]), float(row["value"])))
        elif known and row["metric"] == _HOURS and _UNLIMITED_H.search(row["notes"]):
            found.append(_hours(row))
        else:
            found.append(_without(row, "published_uncounted" if known else "published_unknown"))
    for model, methods in _data()["published"].items():
        for method, figures in methods.items():
            for percent, gbps in zip(_data()["utilisation_pct"], figures, strict=True):
                if (model, method, percent) not in seen:
                    found.append(_cell(f"{FAMILY}-table-4", model, method, percent, gbps))
    return found


def grid_gbps() -> Floats:
    """The rates that the source tries, Gbit/s."""
    grid = _data()["grid"]
    return np.geomspace(grid["least_gbps"], grid["most_gbps"], grid["points"])


def grid_steps(one_gbps: float, other_gbps: float) -> int:
    """Steps of the source's grid from one rate to another; printed figures are rounded."""
    grid = np.log(grid_gbps())
    one, other = (int(np.abs(grid - np.log(gbps)).argmin()) for gbps in (one_gbps, other_gbps))
    return other - one


class Cells(NamedTuple):
    """How cells of the source's table compare."""

    cells: int
    within_one_step: int
    """Of the grid, read as `printed_gbps` does."""
    same: int
    reaching_within_one_step: int
    """With the least rate that reaches the target in place of the one before."""


def cells_within(results: Iterable[Result]) -> Cells:
    """The cells of the table among these results, by their steps of the grid from the published figure. [A21]"""
    steps = [
        grid_steps(one.published, one.predicted)
        for one in results
        if one.family == FAMILY and one.unit == "Gbit/s" and one.predicted is not None
    ]
    return Cells(
        cells=len(steps),
        within_one_step=sum(abs(step) <= 1 for step in steps),
        same=steps.count(0),
        reaching_within_one_step=sum(abs(step + 1) <= 1 for step in steps),
    )


def needed_gbps(model: str, method: str, percent: float) -> float:
    """The least rate of the grid with which that share of the time is spent computing. [A21]"""
    return float(grid_gbps()[_first(model, method, percent)])


def printed_gbps(model: str, method: str, percent: float) -> float:
    """The last rate of the grid that does not reach it yet, which is what the source prints. [A21]

    Its figures for DiLoCo at 50 % show that: H steps of compute must carry all parameters once, 1.6, 2.0 and 3.27
    Gbit/s for its models, and no overlap changes that by more than a step in H; it prints 1.4, 1.7 and 3.0.
    """
    return float(grid_gbps()[max(0, _first(model, method, percent) - 1)])


def compute_utilisation(model: str, method: str, gbps: Any) -> Floats:
    """Share of the time spent computing at these rates. [A20]"""
    size, way = _data()["models"][model], _data()["methods"][method]
    wire_bytes = size["params_b"] * 1e9 * _data()["bytes_per_parameter"] * way.get("volume", 1.0)
    exchange_s = wire_bytes / size["layers"] / (np.asarray(gbps, dtype=float) * BYTES_PER_S_PER_GBPS)
    return utilisation(_plan(size["layers"], way), size["step_s"], exchange_s)


def _first(model: str, method: str, percent: float) -> int:
    reached = np.flatnonzero(compute_utilisation(model, method, grid_gbps()) >= percent / 100)
    return int(reached[0]) if len(reached) else _data()["grid"]["points"] - 1


def _plan(layers: int, way: Mapping[str, Any]) -> Averaging:
    steps = _data()["steps"]
    if way.get("streaming"):
        return streamed(layers, steps, _data()["fragment_layers"], way.get("delay", 0))
    return every_layer(layers, 1 if way.get("every_step") else steps)


def _cell(name: str, model: str, method: str, percent: int, published: float) -> Result:
    return Result(
        id=name,
        family=FAMILY,
        case=f"{model}, {method}, {percent} %",
        unit="Gbit/s",
        published=published,
        predicted=printed_gbps(model, method, percent),
    )


def _hours(row: Mapping[str, str]) -> Result:
    """Hours of a run at 1 Gbit/s: those without any limit over the utilisation at that rate. [A21]"""
    unlimited = _UNLIMITED_H.search(row["notes"])
    assert unlimited is not None
    share = compute_utilisation(row["model"], row["method"], 1.0)
    return _without(row, "").replace(predicted=float(unlimited[1]) / float(share[0]))


def _without(row: Mapping[str, str], reason: str) -> Result:
    return Result(
        id=row["id"],
        family=FAMILY,
        case=f"{row['model']}, {row['method']}, {row['setting']}, {row['metric']}",
        unit=row["unit"],
        published=float(row["value"]),
        predicted=None,
        reason=reason,
    )


@cache
def _data() -> dict[str, Any]:
    loaded: dict[str, Any] = read_shipped("crosszone.analyse.published", "streaming.yaml").value
    return loaded
