"""Streaming DiLoCo: the bandwidth that a compute utilisation needs, as its authors' simulation has it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from crosszone.calibrate.published import GRID_POINTS, STREAMING, PublishedResult, list_grid_gbps
from crosszone.cost.tiers import BYTES_PER_S_PER_GBPS, Floats
from published.averaging import LocalSgdPlan, compute_utilisation, stream_fragments, sync_all_layers

_TARGET = re.compile(r"bandwidth needed for (\d{1,3})% compute utilisation")
_HOURS = "training hours at 1 Gbit/s"
_UNLIMITED_H = re.compile(r"takes (\d{1,6}(?:\.\d{1,6})?) h with infinite bandwidth")


def predict_streaming(rows: Sequence[Mapping[str, str]]) -> list[PublishedResult]:
    """Every row of the family, then the cells of the source's table that the rows leave out."""
    results, cells = [], set()
    for row in rows:
        target, model, method = _TARGET.fullmatch(row["metric"]), row["model"], row["method"]
        is_described = model in _read_data()["models"] and method in _read_data()["methods"]
        if is_described and target and int(target[1]) < 100:
            cells.add((model, method, int(target[1])))
            results.append(_build_cell(row["id"], model, method, int(target[1]), float(row["value"])))
        elif is_described and row["metric"] == _HOURS and _UNLIMITED_H.search(row["notes"]):
            results.append(_predict_hours(row))
        else:
            results.append(_build_unpredicted(row, "published_uncounted" if is_described else "published_unknown"))
    for model, methods in _read_data()["published"].items():
        for method, figures in methods.items():
            for percent, gbps in zip(_read_data()["utilisation_pct"], figures, strict=True):
                if (model, method, percent) not in cells:
                    results.append(_build_cell(f"{STREAMING}-table-4", model, method, percent, gbps))
    return results


def find_needed_gbps(model: str, method: str, percent: float) -> float:
    """The least rate of the grid with which that share of the time is spent computing. [A21]"""
    return float(list_grid_gbps()[_find_first_rate(model, method, percent)])


def find_printed_gbps(model: str, method: str, percent: float) -> float:
    """The last rate of the grid that does not reach it yet, which is what the source prints. [A21]

    Its figures for DiLoCo at 50 % show that: H steps of compute must carry all parameters once, 1.6, 2.0 and 3.27
    Gbit/s for its models, and no overlap changes that by more than a step in H; it prints 1.4, 1.7 and 3.0.
    """
    return float(list_grid_gbps()[max(0, _find_first_rate(model, method, percent) - 1)])


def predict_utilisation(model: str, method: str, gbps: Any) -> Floats:
    """Share of the time spent computing at these rates. [A20]"""
    size, method_values = _read_data()["models"][model], _read_data()["methods"][method]
    wire_bytes = size["params_b"] * 1e9 * _read_data()["bytes_per_parameter"] * method_values.get("volume", 1.0)
    exchange_s = wire_bytes / size["layers"] / (np.asarray(gbps, dtype=float) * BYTES_PER_S_PER_GBPS)
    return compute_utilisation(_build_averaging(size["layers"], method_values), size["step_s"], exchange_s)


def _find_first_rate(model: str, method: str, percent: float) -> int:
    reached = np.flatnonzero(predict_utilisation(model, method, list_grid_gbps()) >= percent / 100)
    return int(reached[0]) if len(reached) else GRID_POINTS - 1


def _build_averaging(layers: int, method_values: Mapping[str, Any]) -> LocalSgdPlan:
    steps = _read_data()["steps"]
    if method_values.get("streaming"):
        return stream_fragments(layers, steps, _read_data()["fragment_layers"], method_values.get("delay", 0))
    return sync_all_layers(layers, 1 if method_values.get("every_step") else steps)


def _build_cell(name: str, model: str, method: str, percent: int, published: float) -> PublishedResult:
    return PublishedResult(
        id=name,
        family=STREAMING,
        case=f"{model}, {method}, {percent} %",
        unit="Gbit/s",
        published=published,
        predicted=find_printed_gbps(model, method, percent),
    )


def _predict_hours(row: Mapping[str, str]) -> PublishedResult:
    """Hours of a run at 1 Gbit/s: those without any limit over the utilisation at that rate. [A21]"""
    unlimited = _UNLIMITED_H.search(row["notes"])
    assert unlimited is not None
    share = predict_utilisation(row["model"], row["method"], 1.0)
    return _build_unpredicted(row, "").replace(predicted=float(unlimited[1]) / float(share[0]))


def _build_unpredicted(row: Mapping[str, str], reason: str) -> PublishedResult:
    return PublishedResult(
        id=row["id"],
        family=STREAMING,
        case=f"{row['model']}, {row['method']}, {row['setting']}, {row['metric']}",
        unit=row["unit"],
        published=float(row["value"]),
        predicted=None,
        reason=reason,
    )


@cache
def _read_data() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("streaming.yaml").read_text("utf-8"))
    return loaded
