"""INTELLECT-1: how much of the time a run over continents computes, from its exchange alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from crosszone.calibrate.published import PublishedResult
from published.averaging import LocalSgdPlan, compute_utilisation

FAMILY = "intellect-1"
UTILISATION, MFU, ALL_REDUCE = "compute utilisation", "MFU", "median outer all-reduce time"
BASELINE = "no communication baseline"
_STEPS = re.compile(r"([1-9]\d{0,3}) inner steps take (\d{1,6}(?:\.\d{1,6})?) minutes")


def predict_intellect(rows: Sequence[Mapping[str, str]]) -> list[PublishedResult]:
    """Every row of the family, then the setting of the source's table that the rows leave out."""
    exchange_s = {row["setting"]: float(row["value"]) for row in rows if row["metric"] == ALL_REDUCE}
    mfu = [float(row["value"]) for row in rows if row["setting"] == BASELINE and row["metric"] == MFU]
    baseline = mfu[0] if mfu else _read_data()["baseline_mfu_pct"]
    results = []
    for row in rows:
        stated, exchange, share = _STEPS.search(row["notes"]), exchange_s.get(row["setting"]), None
        if stated and exchange is not None and row["metric"] in (UTILISATION, MFU):
            share = predict_zone_utilisation(int(stated[1]), 60 * float(stated[2]) / int(stated[1]), exchange)
        published = float(row["value"])
        results.append(_build_result(row["id"], row["setting"], row["metric"], row["unit"], published, share, baseline))
    if rows:
        results += _predict_table({row["setting"] for row in rows})
    return results


def predict_zone_utilisation(steps: int, step_s: float, exchange_s: float) -> float:
    """Share of the time that zones compute which stop for an exchange every H steps: H C / (H C + T). [A22]"""
    plan = LocalSgdPlan(layers=1, steps=steps, fragments={steps - 1: (0,)}, between_steps=True)
    return float(compute_utilisation(plan, step_s, exchange_s)[0])


def _predict_table(settings: set[str]) -> list[PublishedResult]:
    data, results = _read_data(), []
    for setting, figures in data["settings"].items():
        if setting in settings:
            continue
        share = predict_zone_utilisation(data["steps"], 60 * data["inner_min"] / data["steps"], figures["all_reduce_s"])
        for metric, key in ((UTILISATION, "utilisation_pct"), (MFU, "mfu_pct")):
            results.append(
                _build_result(f"{FAMILY}-table-2", setting, metric, "%", figures[key], share, data["baseline_mfu_pct"])
            )
    return results


def _build_result(
    name: str, setting: str, metric: str, unit: str, published: float, share: float | None, baseline: float
) -> PublishedResult:
    """MFU is that of the run without exchanges times the share of the time that is computed. [A22]"""
    return PublishedResult(
        id=name,
        family=FAMILY,
        case=f"{setting}, {metric}",
        unit=unit,
        published=published,
        predicted=None if share is None else share * (baseline if metric == MFU else 100.0),
        reason="published_given" if share is None else "",
    )


@cache
def _read_data() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("intellect.yaml").read_text("utf-8"))
    return loaded
