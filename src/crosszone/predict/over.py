"""Over: one placed strategy over many sets of links between the zones at once, as cells of a sweep have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.predict.batch import chunk_layers
from crosszone.predict.predict import Predictor
from crosszone.predict.site import Site
from crosszone.predict.step import simulated_step

ROWS = 512
"""Rows that are looked at together: more do not fit the cache."""


def steps_over(p: Predictor, sites: Sequence[Site]) -> npt.NDArray[np.float64]:
    """Expected step of a strategy over the links of each site, which differ in nothing else (`Site.on`).

    The same numbers as those of a predictor for each site; without bands and periodic averaging.
    """
    assert p.site.bands == 1
    assert p.strategy.local_update is None
    rows = len(p.site.kinds[0])
    together = max(1, ROWS // rows)
    found = []
    for start in range(0, len(sites), together):
        some = sites[start : start + together]
        batch, count = p.batch, len(some)
        many = replace(
            batch,
            work=_repeated(batch.work, rows, count),
            gpu=_repeated(batch.gpu, rows, count),
            links=_joined([site.link_columns() for site in some], rows),
            counts=np.tile(batch.counts, (count, 1)),
            sparse=None if batch.sparse is None else np.tile(batch.sparse, (count, 1)),
        )
        k = _repeated(p.coefficients, rows, count)
        step = simulated_step(many, chunk_layers(p.case), p.strategy, k)
        found.append(step.total_s.reshape(count, rows).max(axis=1))
    return np.concatenate(found)


def _repeated(columns: Any, rows: int, count: int) -> Any:
    """Columns with every row so many times, all of them one after the other; numbers stay numbers."""
    wide = {
        f.name: np.tile(value, (count, 1))
        for f in fields(columns)
        if np.ndim(value := getattr(columns, f.name)) == 2 and len(value) == rows > 1
    }
    return replace(columns, **wide) if wide else columns


def _joined(columns: Sequence[Any], rows: int) -> Any:
    """Columns of several cases, each of so many rows, as those of one."""
    found = {}
    for f in fields(columns[0]):
        values = [getattr(one, f.name) for one in columns]
        plain = np.ndim(values[0]) == 0
        found[f.name] = (
            values[0] if plain else np.concatenate([np.broadcast_to(v, (rows, np.shape(v)[-1])) for v in values])
        )
    return type(columns[0])(**found)
