"""The bucket of gradients that makes a step shortest, found by predicting it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from crosszone.cost.memory import GIB
from crosszone.errors import IllegalError, Notice
from crosszone.predict.batch import bucket_bytes
from crosszone.predict.predict import Predictor
from crosszone.predict.site import Site

LEAST_MB = 1.0
SPARE = 0.9
"""Share of the free memory that buffers may take."""
PLACES = 17
"""Sizes tried at first, evenly on a logarithmic scale; then as many between the best one's neighbours."""


def best_bucket_mb(base: Predictor) -> float:
    """MB of gradients that should go together: the least predicted step over sizes from 1 MB to all of a rank's. [A4]

    Small buckets pay their latency often, large ones leave more behind the last backward pass; three digits are kept.
    """
    if not base.framework.has_buckets:
        params = {"framework": base.framework.title, "option": "bucket_mb"}
        field = "strategy.communication.bucket_mb"
        raise IllegalError(Notice(code="framework_lacks_option", field=field, params=params))
    held = base.step.times.held
    whole = float(np.max(held.total)) * float(np.max(base.batch.work.gradient_bytes)) / 1e6
    low, high = LEAST_MB, max(whole, 2 * LEAST_MB)
    if base.framework.bucket_buffer:  # larger ones take memory of their own
        usual = bucket_bytes(base.case, base.framework.name) / 1e6
        high = min(high, max(usual, usual + SPARE * base.memory().margin * GIB / 1e6))
    for _ in range(2):
        sizes = np.geomspace(low, high, PLACES)
        best = int(np.argmin([with_bucket(base, float(size)).step_s[1] for size in sizes]))
        low, high = float(sizes[max(0, best - 1)]), float(sizes[min(len(sizes) - 1, best + 1)])
    return float(f"{sizes[best]:.3g}")


def with_bucket(base: Predictor, bucket_mb: float) -> Predictor:
    """The same strategy in the same place with another bucket."""
    talk = base.strategy.communication.replace(bucket_mb=bucket_mb)
    case = replace(base.case, strategy=base.strategy.replace(communication=talk))
    site = Site(case=case, placement=base.site.placement, links=base.site.links, known=base.site.crossings)
    return replace(base, site=site)
