"""Two sites: scenarios of published runs over two data centres, predicted as any other scenario is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from crosszone.calibrate.published import PublishedResult, TwoSites
from crosszone.inputs.scenario import Scenario
from crosszone.predict.predict import build_predictor

FAMILY = "headline"
Crossing = Literal["dp", "pp"]
LEAST_GBPS, MOST_GBPS = 1.0, 1e6  # Rates between which the one that a target needs is looked for
HALVINGS = 16  # Of six decades: the rate is known to 0.03 %
_EFFICIENCY = "scaling efficiency versus one site"


def predict_two_sites() -> TwoSites:
    """The published two-site run at several rates, and the rate that its efficiency needs. [A23]"""
    setup = _read_data()["two_sites"]
    one_site_s = _predict_step_s(setup, 1, None)
    efficiency_pct = {float(gbps): 100.0 * one_site_s / _predict_step_s(setup, 2, gbps) for gbps in setup["gbps"]}
    longest_s = one_site_s / (setup["target_pct"] / 100.0)
    return TwoSites(
        one_site_step_s=one_site_s,
        efficiency_pct=efficiency_pct,
        target_pct=setup["target_pct"],
        least_gbps=_find_least_gbps(setup, longest_s),
    )


def predict_headlines(rows: Sequence[Mapping[str, str]]) -> list[PublishedResult]:
    """Every row of the family, then the headlines that only the data file here has.

    Two sites state no rate between them, so no efficiency follows: `predict_two_sites` turns the question round.
    """
    results = []
    for row in rows:
        is_two_site_run = (
            row["metric"] == _EFFICIENCY and row["model"].lower() == _read_data()["two_sites"]["scenario"]["model"]
        )
        results.append(
            PublishedResult(
                id=row["id"],
                family=FAMILY,
                case=", ".join(part for part in (row["model"], row["method"], row["metric"]) if part),
                unit=row["unit"],
                published=float(row["value"]),
                predicted=None,
                reason="published_rate" if is_two_site_run else "published_unstated",
            )
        )
    return results + (predict_pipeline_against_data() if rows else [])


def predict_pipeline_against_data() -> list[PublishedResult]:
    """Stages across two sites against replicas across them, and against one site, as a ratio of steps."""
    setup, results = _read_data()["pipeline_against_data"], []
    for figure in setup["published"]:
        stages = _predict_step_s(setup, 2, figure["gbps"], "pp")
        if figure["over"] == "data":
            ratio, against = _predict_step_s(setup, 2, figure["gbps"], "dp") / stages, "dp / pp"
        else:
            ratio, against = stages / _predict_step_s(setup, 1, None), "pp / 1"
        case = f"{setup['scenario']['model']}, {figure['gbps']} Gbit/s, {against}"
        results.append(
            PublishedResult(
                id=figure["id"], family=FAMILY, case=case, unit="x", published=figure["value"], predicted=ratio
            )
        )
    return results


def build_scenario(setup: Mapping[str, Any], sites: int, gbps: float | None, crossing: Crossing = "dp") -> Scenario:
    """The run with its GPUs shared out evenly over so many sites; stages or replicas cross between them."""
    node = {"count": setup["nodes"] // sites, **setup["node"]}
    names = [f"site-{at}" for at in range(sites)]
    cluster: dict[str, Any] = {"zones": [{"name": name, "nodes": [node]} for name in names]}
    if sites > 1:
        cluster["links"] = [{"between": names, "gbps": gbps, "rtt_ms": setup["rtt_ms"]}]
    order = ("tp", "cp", "pp", "dp") if crossing == "dp" else ("tp", "cp", "dp", "pp")
    ranks = node["count"] * node["gpus"]
    strategy = dict(setup["scenario"]["strategy"])
    if crossing == "dp":
        strategy["shard_within"] = "zone"
    return Scenario(
        **setup["scenario"]
        | {
            "cluster": cluster,
            "strategy": strategy,
            "placement": {"order": order, "blocks": [{"zone": name, "count": ranks} for name in names]},
        }
    )


def _predict_step_s(setup: Mapping[str, Any], sites: int, gbps: float | None, crossing: Crossing = "dp") -> float:
    return build_predictor(build_scenario(setup, sites, gbps, crossing)).step_time.expected


def _find_least_gbps(setup: Mapping[str, Any], longest_s: float) -> float | None:
    """The least rate with which two sites take no longer, by halving on a logarithmic scale."""
    low, high = math.log10(LEAST_GBPS), math.log10(MOST_GBPS)
    if _predict_step_s(setup, 2, MOST_GBPS) > longest_s:
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _predict_step_s(setup, 2, 10.0**middle) > longest_s:
            low = middle
        else:
            high = middle
    return float(10.0**high)


@cache
def _read_data() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("sites.yaml").read_text("utf-8"))
    return loaded
