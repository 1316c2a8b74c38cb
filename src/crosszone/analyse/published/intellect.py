"""INTELLECT-1: how much of the time a run over continents computes, from its exchange alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from crosszone.analyse.published.result import Result
from crosszone.inputs.shipped import read_shipped
from crosszone.schedule.averaging import Averaging, utilisation

FAMILY = "intellect-1"
UTILISATION, MFU, ALL_REDUCE = "compute utilisation", "MFU", "median outer all-reduce time"
BASELINE = "no communication baseline"
_STEPS = re.compile(r"([1-9]\d{0,3}) inner steps take (\d{1,6}(?:\.\d{1,6})?) minutes")


def intellect_results(rows: Sequence[Mapping[str, str]]) -> list[Result]:
    """Every row of the family, then the setting of the source's table that the rows leave out."""
    exchange_s = {row["setting"]: float(row["value"]) for row in rows if row["metric"] == ALL_REDUCE}
    mfu = [float(row["value"]) for row in rows if row["setting"] == BASELINE and row["metric"] == MFU]
    baseline = mfu[0] if mfu else _data()["baseline_mfu_pct"]
    found = []
    for row in rows:
        told, exchange, share = _STEPS.search(row["notes"]), exchange_s.get(row["setting"]), None
        if told and exchange is not None and row["metric"] in (UTILISATION, MFU):
            share = averaged_utilisation(int(told[1]), 60 * float(told[2]) / int(told[1]), exchange)
        published = float(row["value"])
        found.append(_result(row["id"], row["setting"], row["metric"], row["unit"], published, share, baseline))
    if rows:
        found += _of_the_table({row["setting"] for row in rows})
    return found


def averaged_utilisation(steps: int, step_s: float, exchange_s: float) -> float:
    """Share of the time that zones compute which stop for an exchange every H steps: H C / (H C + T). [A22]"""
    plan = Averaging(layers=1, steps=steps, fragments={steps - 1: (0,)}, between_steps=True)
    return float(utilisation(plan, step_s, exchange_s)[0])


def _of_the_table(seen: set[str]) -> list[Result]:
    data, found = _data(), []
    for setting, told in data["settings"].items():
        if setting in seen:
            continue
        share = averaged_utilisation(data["steps"], 60 * data["inner_min"] / data["steps"], told["all_reduce_s"])
        for metric, key in ((UTILISATION, "utilisation_pct"), (MFU, "mfu_pct")):
            found.append(_result(f"{FAMILY}-table-2", setting, metric, "%", told[key], share, data["baseline_mfu_pct"]))
    return found


def _result(
    name: str, setting: str, metric: str, unit: str, published: float, share: float | None, baseline: float
) -> Result:
    """MFU is that of the run without exchanges times the share of the time that is computed. [A22]"""
    return Result(
        id=name,
        family=FAMILY,
        case=f"{setting}, {metric}",
        unit=unit,
        published=published,
        predicted=None if share is None else share * (baseline if metric == MFU else 100.0),
        reason="published_given" if share is None else "",
    )


@cache
def _data() -> dict[str, Any]:
    loaded: dict[str, Any] = read_shipped("crosszone.analyse.published", "intellect.yaml").value
    return loaded
