"""Two sites: scenarios of published runs over two data centres, predicted as any other scenario is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal

from crosszone.analyse.published.result import Result
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import Value
from crosszone.predict.predict import predictor

FAMILY = "headline"
Crossing = Literal["dp", "pp"]
LEAST_GBPS, MOST_GBPS = 1.0, 1e6  # Rates between which the one that a target needs is looked for
HALVINGS = 16  # Of six decades: the rate is known to 0.03 %
_EFFICIENCY = "scaling efficiency versus one site"


class TwoSites(Value):
    """What two sites reach of the throughput of one with as many GPUs."""

    one_site_step_s: float
    """Step where all GPUs are in one site."""
    efficiency_pct: dict[float, float]
    """Throughput against one site's, %, by the rate between the sites, Gbit/s."""
    target_pct: float
    """What was published."""
    least_gbps: float | None
    """The least rate at which the target is reached; null: at none."""


def two_sites() -> TwoSites:
    """The published two-site run at several rates, and the rate that its efficiency needs. [A23]"""
    told = _data()["two_sites"]
    alone = _step_s(told, 1, None)
    shown = {float(gbps): 100.0 * alone / _step_s(told, 2, gbps) for gbps in told["gbps"]}
    longest = alone / (told["target_pct"] / 100.0)
    return TwoSites(
        one_site_step_s=alone,
        efficiency_pct=shown,
        target_pct=told["target_pct"],
        least_gbps=_least_gbps(told, longest),
    )


def headline_results(rows: Sequence[Mapping[str, str]]) -> list[Result]:
    """Every row of the family, then the headlines that only the data file here has.

    Two sites state no rate between them, so no efficiency follows: `two_sites` turns the question round.
    """
    found = []
    for row in rows:
        known = row["metric"] == _EFFICIENCY and row["model"].lower() == _data()["two_sites"]["scenario"]["model"]
        found.append(
            Result(
                id=row["id"],
                family=FAMILY,
                case=", ".join(part for part in (row["model"], row["method"], row["metric"]) if part),
                unit=row["unit"],
                published=float(row["value"]),
                predicted=None,
                reason="published_rate" if known else "published_unstated",
            )
        )
    return found + (pipeline_against_data() if rows else [])


def pipeline_against_data() -> list[Result]:
    """Stages across two sites against replicas across them, and against one site, as a ratio of steps."""
    told, found = _data()["pipeline_against_data"], []
    for one in told["published"]:
        stages = _step_s(told, 2, one["gbps"], "pp")
        if one["over"] == "data":
            ratio, against = _step_s(told, 2, one["gbps"], "dp") / stages, "dp / pp"
        else:
            ratio, against = stages / _step_s(told, 1, None), "pp / 1"
        case = f"{told['scenario']['model']}, {one['gbps']} Gbit/s, {against}"
        found.append(Result(id=one["id"], family=FAMILY, case=case, unit="x", published=one["value"], predicted=ratio))
    return found


def site_scenario(told: Mapping[str, Any], sites: int, gbps: float | None, crossing: Crossing = "dp") -> Scenario:
    """The run with its GPUs shared out evenly over so many sites; stages or replicas cross between them."""
    node = {"count": told["nodes"] // sites, **told["node"]}
    names = [f"site-{at}" for at in range(sites)]
    cluster: dict[str, Any] = {"zones": [{"name": name, "nodes": [node]} for name in names]}
    if sites > 1:
        cluster["links"] = [{"between": names, "gbps": gbps, "rtt_ms": told["rtt_ms"]}]
    order = ("tp", "cp", "pp", "dp") if crossing == "dp" else ("tp", "cp", "dp", "pp")
    ranks = node["count"] * node["gpus"]
    strategy = dict(told["scenario"]["strategy"])
    if crossing == "dp":
        strategy["shard_within"] = "zone"
    return Scenario(
        **told["scenario"]
        | {
            "cluster": cluster,
            "strategy": strategy,
            "placement": {"order": order, "blocks": [{"zone": name, "count": ranks} for name in names]},
        }
    )


def _step_s(told: Mapping[str, Any], sites: int, gbps: float | None, crossing: Crossing = "dp") -> float:
    return predictor(site_scenario(told, sites, gbps, crossing)).step_time.expected


def _least_gbps(told: Mapping[str, Any], longest_s: float) -> float | None:
    """The least rate with which two sites take no longer, by halving on a logarithmic scale."""
    low, high = math.log10(LEAST_GBPS), math.log10(MOST_GBPS)
    if _step_s(told, 2, MOST_GBPS) > longest_s:
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _step_s(told, 2, 10.0**middle) > longest_s:
            low = middle
        else:
            high = middle
    return float(10.0**high)


@cache
def _data() -> dict[str, Any]:
    loaded: dict[str, Any] = read_shipped("crosszone.analyse.published", "sites.yaml").value
    return loaded
