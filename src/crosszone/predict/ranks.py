"""Ranks: every rank once: its place along each axis, its zone, node and GPU, the layers of its stage. [R1] [R3]

    table = build_ranks(predictor)
    table["columns"]["tp"][17], table["columns"]["zone"][17]      # columns: one value a rank

Places: which stages and replicas each zone holds, and which zones hold each stage. [R1] [R3]

    places = list_rank_places(predictor)
    places["zones"][0]["stages"], places["stages"][0]["zones"]      # ([0, 1], ["beijing-a"])
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from crosszone.predict.batch import list_virtual_stage_layers
from crosszone.predict.predictor import Predictor
from crosszone.schedule.orders import list_stages_in_order
from crosszone.text import DEFAULT_LANGUAGE

MOST_RANKS = 100_000  # Ranks listed at once; of the others only the number


def build_ranks(p: Predictor, language: str = DEFAULT_LANGUAGE, *, limit: int = MOST_RANKS) -> dict[str, Any]:
    """Ranks as columns; zones, node groups and stages by position; GPUs that no rank uses, with the reason."""
    s, placed = p.strategy, p.placed
    cluster, placement = placed.cluster, placed.placement
    located = placement.locate_ranks(cluster)
    columns = {"rank": np.arange(placement.ranks), **located, **placement.compute_coordinates(s)}
    used = np.bincount(located["zone"], minlength=len(cluster.zones))
    return {
        "ranks": placement.ranks,
        "shown": min(limit, placement.ranks),
        "gpus": cluster.gpus,
        "degrees": {"tp": s.tp, "pp": s.pp, "dp": s.dp or 1, "cp": s.cp},
        "order": list(placement.order),
        "zones": [
            {"name": zone.name, "gpus": sum(group.total_gpus for group in zone.nodes), "used": int(count)}
            for zone, count in zip(cluster.zones, used, strict=True)
        ],
        "groups": [
            {"zone": zone, "group": number, "gpu": group.gpu.name, "gpus": group.gpus, "nodes": group.count}
            for zone, description in enumerate(cluster.zones)
            for number, group in enumerate(description.nodes)
        ],
        "stages": _list_stages(p),
        "idle": [
            {
                "zone": description.zone,
                "group": description.group,
                "count": description.count,
                "reason": description.reason.as_dict(language),
            }
            for description in placement.list_idle(cluster)
        ],
        "columns": {name: values[:limit].tolist() for name, values in columns.items()},
    }


def _list_stages(p: Predictor) -> list[dict[str, Any]]:
    """Layers of each stage, and which: a stage of several virtual stages holds several runs. [R3]"""
    s, counts = p.strategy, list_virtual_stage_layers(p.case)
    held_by = list_stages_in_order(s.pipeline_schedule, s.pp, s.interleave).tolist()
    runs_of_stage: list[list[tuple[int, int]]] = [[] for _ in range(s.pp)]
    for stage, run in zip(held_by, pairwise(accumulate(counts, initial=0)), strict=True):
        runs_of_stage[stage].append(run)
    return [
        {
            "stage": stage,
            "layers": sum(after - first for first, after in runs),
            "runs": [[first, after - 1] for first, after in runs if after > first],
        }
        for stage, runs in enumerate(runs_of_stage)
    ]


def list_rank_places(p: Predictor) -> dict[str, Any]:
    """Zones and stages as a map labels them, without the ranks themselves."""
    s, placed = p.strategy, p.placed
    cluster, placement = placed.cluster, placed.placement
    where, coordinates = placement.locate_ranks(cluster)["zone"], placement.compute_coordinates(s)
    used = np.bincount(where, minlength=len(cluster.zones))
    names = [zone.name for zone in cluster.zones]
    return {
        "ranks": placement.ranks,
        "layers": list(list_virtual_stage_layers(p.case)),
        "zones": [
            {
                "name": zone.name,
                "gpus": sum(group.total_gpus for group in zone.nodes),
                "used": int(used[number]),
                "stages": np.unique(coordinates["pp"][where == number]).tolist(),
                "replicas": np.unique(coordinates["dp"][where == number]).size,
            }
            for number, zone in enumerate(cluster.zones)
        ],
        "stages": [
            {
                "stage": stage,
                "zones": [names[number] for number in dict.fromkeys(where[coordinates["pp"] == stage].tolist())],
            }
            for stage in range(s.pp)
        ],
    }
