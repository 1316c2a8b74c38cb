"""Results that others published of training over wide-area links, each beside the stored prediction of it.

`benchmarks/studies/published` predicts them with the shipped profiles and stores the answers with the measured runs, so
that an installed program shows them without the models of those publications.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from crosszone import measured
from crosszone.calibrate.user_files import open_table
from crosszone.errors import InputError, Notice
from crosszone.inputs.document import read_text
from crosszone.inputs.value import Value

NEEDED = ("id", "setting", "model", "method", "metric", "value", "unit", "notes")
MAX_ROWS = 20_000
STORED = "cross_zone_predictions.json"  # File beside the measured runs
STREAMING = "streaming-diloco"
# Rates that the simulation of Streaming DiLoCo tries, Gbit/s (arXiv 2501.18512).
GRID_LEAST_GBPS, GRID_MOST_GBPS, GRID_POINTS = 0.1, 1000.0, 50
Row = dict[str, str]


class PublishedResult(Value):
    """One published figure, and what is predicted of it; null with a reason where nothing can be."""

    id: str
    """Row of the file it comes from."""
    family: str
    """Publication it belongs to: streaming-diloco, intellect-1, dtfm, headline."""
    case: str
    """Setting: model, network, method, target."""
    unit: str
    """Of both figures."""
    published: float
    """What the source states."""
    predicted: float | None
    """What the models here say."""
    reason: str = ""
    """Why nothing is predicted."""

    @property
    def error_pct(self) -> float | None:
        """Prediction over the published figure, less one, %."""
        return None if self.predicted is None else 100.0 * (self.predicted / self.published - 1.0)


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


class GridCells(NamedTuple):
    """How cells of the table of Streaming DiLoCo compare."""

    cells: int
    within_one_step: int
    """Of the grid, read as the last rate that does not reach the target."""
    same: int
    reaching_within_one_step: int
    """With the least rate that reaches the target in place of the one before."""


@dataclass(frozen=True, kw_only=True)
class FamilySummary:
    """Absolute errors of one publication's figures; None: none of them is predicted."""

    family: str
    rows: int
    predicted: int
    median_ape_pct: float | None
    within_10_pct: float | None
    within_20_pct: float | None


class StoredStudy(Value):
    """What the study predicted with the shipped profiles."""

    rows: tuple[PublishedResult, ...]
    """Of the rows of cross_zone_runs.csv."""
    further: tuple[PublishedResult, ...]
    """Figures of the same tables that the file leaves out."""
    two_sites: TwoSites


@cache
def read_stored_study() -> StoredStudy:
    """The stored predictions."""
    return StoredStudy.model_validate_json((measured.FOLDER / STORED).read_text("utf-8"))


def read_published(path: Path) -> tuple[PublishedResult, ...]:
    """Every published figure of a file with its prediction or the reason for none; `InputError`: no such file.

    Figures of the same tables that the file leaves out follow those of their family.
    """
    study = read_stored_study()
    by_id = {result.id: result for result in study.rows}
    families: dict[str, list[PublishedResult]] = {}
    for row in read_published_rows(path):
        stored = by_id.get(row["id"])
        # a figure that was changed is another one: the stored prediction may be of another setting
        is_known = stored is not None and stored.published == float(row["value"])
        result = stored if stored is not None and is_known else build_unpredicted(row, "published_unmodelled")
        families.setdefault(result.family, []).append(result)
    for result in study.further:
        if result.family in families:
            families[result.family].append(result)
    return tuple(result for results in families.values() for result in results)


def build_unpredicted(row: Row, reason: str) -> PublishedResult:
    """A row without a prediction; the family is its id without the running number."""
    return PublishedResult(
        id=row["id"],
        family=row["id"].rsplit("-", 1)[0],
        case=", ".join(row[key] for key in ("setting", "method", "metric") if row[key]),
        unit=row["unit"],
        published=float(row["value"]),
        predicted=None,
        reason=reason,
    )


def read_published_rows(path: Path) -> list[Row]:
    """The rows of a file, every cell a string; a value that is no number above 0 is refused with its line."""
    name = str(path)
    rows: list[Row] = []
    with open_table(io.StringIO(read_text(path)), name, NEEDED) as reader:
        for cells in reader:
            row = {key: cells[key] or "" for key in reader.fieldnames or ()}
            if len(rows) == MAX_ROWS:
                break
            if not _is_positive(row["value"]):
                params, line = {"row": row["id"]}, reader.line_num
                notice = Notice(code="published_value", value=row["value"], params=params, file=name, line=line)
                raise InputError(notice)
            rows.append(row)
    return rows


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


def summarize_families(results: Iterable[PublishedResult]) -> tuple[FamilySummary, ...]:
    """Errors by publication."""
    families: dict[str, list[PublishedResult]] = {}
    for result in results:
        families.setdefault(result.family, []).append(result)
    return tuple(_summarize(family, members) for family, members in families.items())


def _summarize(family: str, results: list[PublishedResult]) -> FamilySummary:
    errors = np.abs([result.error_pct for result in results if result.error_pct is not None])

    def compute_share_within(percent: float) -> float | None:
        return float(100 * np.mean(errors <= percent)) if len(errors) else None

    return FamilySummary(
        family=family,
        rows=len(results),
        predicted=len(errors),
        median_ape_pct=float(np.median(errors)) if len(errors) else None,
        within_10_pct=compute_share_within(10),
        within_20_pct=compute_share_within(20),
    )


def list_grid_gbps() -> npt.NDArray[np.float64]:
    """The rates that the simulation of Streaming DiLoCo tries, Gbit/s."""
    return np.geomspace(GRID_LEAST_GBPS, GRID_MOST_GBPS, GRID_POINTS)


def count_grid_steps(from_gbps: float, to_gbps: float) -> int:
    """Steps of that grid from one rate to another; printed figures are rounded."""
    grid = np.log(list_grid_gbps())
    first, last = (int(np.abs(grid - np.log(gbps)).argmin()) for gbps in (from_gbps, to_gbps))
    return last - first


def compare_cells(results: Iterable[PublishedResult]) -> GridCells:
    """The cells of the table among these results, by their steps of the grid from the published figure. [A21]"""
    steps = [
        count_grid_steps(result.published, result.predicted)
        for result in results
        if result.family == STREAMING and result.unit == "Gbit/s" and result.predicted is not None
    ]
    return GridCells(
        cells=len(steps),
        within_one_step=sum(abs(step) <= 1 for step in steps),
        same=steps.count(0),
        reaching_within_one_step=sum(abs(step + 1) <= 1 for step in steps),
    )
