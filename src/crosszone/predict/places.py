"""Places: which stages and replicas each zone holds, and which zones hold each stage. [R1] [R3]

found = places_of(predictor)
found["zones"][0]["stages"], found["stages"][0]["zones"]      # ([0, 1], ["beijing-a"])
"""

from __future__ import annotations

from typing import Any

import numpy as np

from crosszone.predict.batch import chunk_layers
from crosszone.predict.predictor import Predictor


def places_of(p: Predictor) -> dict[str, Any]:
    """Zones and stages as a map labels them, without the ranks themselves."""
    s, site = p.strategy, p.site
    cluster, placement = site.cluster, site.placement
    where, own = placement.located(cluster)["zone"], placement.coordinates(s)
    used = np.bincount(where, minlength=len(cluster.zones))
    names = [zone.name for zone in cluster.zones]
    return {
        "ranks": placement.ranks,
        "layers": list(chunk_layers(p.case)),
        "zones": [
            {
                "name": zone.name,
                "gpus": sum(group.total_gpus for group in zone.nodes),
                "used": int(used[number]),
                "stages": np.unique(own["pp"][where == number]).tolist(),
                "replicas": np.unique(own["dp"][where == number]).size,
            }
            for number, zone in enumerate(cluster.zones)
        ],
        "stages": [
            {"stage": stage, "zones": [names[number] for number in dict.fromkeys(where[own["pp"] == stage].tolist())]}
            for stage in range(s.pp)
        ],
    }
