"""Coverage: what the workbook's formulas can say, and a refusal that names the field where a scenario asks for more.

require_covered(predictor)         # InvalidError: cluster.zones = 3: the workbook does not cover it
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from crosszone.errors import InvalidError, Notice
from crosszone.predict.predictor import Predictor

MOST_CELLS = 1024
"""Passes (stages x micro-batches) of a pipeline that are laid out in cells."""
LEAST_STAGES, LEAST_MICRO_BATCHES = 4, 12
"""Room for other degrees than the scenario's own."""
ORDER = ("tp", "cp", "dp", "pp")


def require_covered(p: Predictor) -> None:
    """Refuse what the formulas in cells cannot express; all of it at once."""
    found = list(_refusals(p))
    if found:
        raise InvalidError(*found)


def room(p: Predictor) -> tuple[int, int]:
    """Stages and micro-batches that the workbook's pipeline has room for."""
    s, m = p.strategy, p.micro_batches
    stages = max(s.pp, LEAST_STAGES)
    wanted = m if s.pp > 1 else LEAST_MICRO_BATCHES
    return stages, max(wanted, min(LEAST_MICRO_BATCHES, MOST_CELLS // stages))


def _refusals(p: Predictor) -> Iterator[Notice]:
    s, cluster = p.strategy, p.case.cluster
    if len(cluster.zones) > 1:
        yield _not_covered("cluster.zones", len(cluster.zones))
        return
    if len(cluster.zones[0].nodes) > 1:
        yield _not_covered("cluster.zones[0].nodes", len(cluster.zones[0].nodes))
        return
    if s.interleave > 1:
        yield _not_covered("strategy.interleave", s.interleave)
    elif s.pp > 1 and s.pipeline_schedule != "1f1b":
        yield _not_covered("strategy.schedule", s.pipeline_schedule)
    if s.extra_warmup:
        yield _not_covered("strategy.extra_warmup", s.extra_warmup)
    if s.uneven:
        yield _not_covered("strategy.replica_micro_batches", list(s.replica_micro_batches or ()))
    if s.local_update is not None:
        yield _not_covered("strategy.local_update", s.local_update.steps)
    site, gpus = p.site, cluster.zones[0].nodes[0].gpus
    at = site.placement.located(cluster)
    in_order = (at["node"] * gpus + at["gpu"] == np.arange(s.ranks)).all()
    if site.placement.order != ORDER or not in_order:
        yield _not_covered("placement" if p.case.placement is not None else "strategy.tp", s.tp)
    elif len(site.kinds[0]) > 1:
        yield _not_covered("strategy.pp", s.pp)  # boundaries of some replicas lie inside a node, those of others do not
    if s.pp > 1 and s.pp * p.micro_batches > MOST_CELLS:
        params = {"limit": MOST_CELLS, "pp": s.pp, "micro_batches": p.micro_batches}
        yield Notice(code="sheet_too_long", field="strategy.pp", value=s.pp * p.micro_batches, params=params)


def _not_covered(field: str, value: object) -> Notice:
    return Notice(code="sheet_not_covered", field=field, value=value)
