"""The table of published results: every row of a file of runs over wide-area links, beside its prediction.

for one in published_results(Path("cross_zone_runs.csv")):
print(one.case, one.published, one.predicted)
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crosszone.analyse.published.dtfm import dtfm_results
from crosszone.analyse.published.dtfm_micro import tc_micro_results
from crosszone.analyse.published.intellect import intellect_results
from crosszone.analyse.published.result import Result
from crosszone.analyse.published.sites import headline_results
from crosszone.analyse.published.streaming import streaming_results
from crosszone.errors import FileError, InputError, Notice
from crosszone.inputs.document import read_text

NEEDED = ("id", "setting", "model", "method", "metric", "value", "unit", "notes")
MAX_ROWS = 20_000
LINKS = "region_links_dtfm.csv"  # File beside the runs with delay and rate of every pair of regions
Row = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class FamilySummary:
    """Absolute errors of one publication's figures; None: none of them is predicted."""

    family: str
    rows: int
    predicted: int
    median_ape_pct: float | None
    within_10_pct: float | None
    within_20_pct: float | None


def published_results(path: Path) -> tuple[Result, ...]:
    """Every published figure of a file with its prediction or the reason for none; `InputError`: no such file.

    Figures of the same tables that the file leaves out follow those of their family.
    """
    families: dict[str, list[Row]] = {}
    for row in _rows(path):
        families.setdefault(row["id"].rsplit("-", 1)[0], []).append(row)
    return tuple(result for family, rows in families.items() for result in _family(family, rows, path.parent / LINKS))


def summaries(results: Iterable[Result]) -> tuple[FamilySummary, ...]:
    """Errors by publication."""
    families: dict[str, list[Result]] = {}
    for result in results:
        families.setdefault(result.family, []).append(result)
    return tuple(_summary(family, found) for family, found in families.items())


def _family(family: str, rows: list[Row], links: Path) -> list[Result]:
    match family:
        case "streaming-diloco":
            return streaming_results(rows)
        case "intellect-1":
            return intellect_results(rows)
        case "headline":
            return headline_results(rows)
        case "tc-micro":
            return tc_micro_results(rows)
        case "dtfm":
            return dtfm_results(rows, links) if links.is_file() else _unpredicted(family, rows, "published_links")
    return _unpredicted(family, rows, "published_unmodelled")


def _unpredicted(family: str, rows: list[Row], reason: str) -> list[Result]:
    return [
        Result(
            id=row["id"],
            family=family,
            case=", ".join(row[key] for key in ("setting", "method", "metric") if row[key]),
            unit=row["unit"],
            published=float(row["value"]),
            predicted=None,
            reason=reason,
        )
        for row in rows
    ]


def _rows(path: Path) -> list[Row]:
    """The rows of a file, every cell a string; a value that is no number above 0 is refused with its line."""
    name, reader = str(path), csv.DictReader(io.StringIO(read_text(path)))
    rows: list[Row] = []
    try:
        missing = [column for column in NEEDED if column not in (reader.fieldnames or ())]
        if missing:
            raise InputError(Notice(code="runs_columns", value=name, params={"missing": missing}, file=name, line=1))
        for cells in reader:
            row = {key: cells[key] or "" for key in reader.fieldnames or ()}
            if len(rows) == MAX_ROWS:
                break
            if not _positive(row["value"]):
                told = {"row": row["id"]}
                line = reader.line_num
                raise InputError(Notice(code="published_value", value=row["value"], params=told, file=name, line=line))
            rows.append(row)
    except csv.Error as error:
        raise FileError(Notice(code="runs_not_csv", value=name, params={"reason": str(error)}, file=name)) from None
    return rows


def _positive(text: str) -> bool:
    try:
        value = float(text)
    except ValueError:
        return False
    return 0 < value < math.inf


def _summary(family: str, results: list[Result]) -> FamilySummary:
    errors = np.abs([result.error_pct for result in results if result.error_pct is not None])

    def within(percent: float) -> float | None:
        return float(100 * np.mean(errors <= percent)) if len(errors) else None

    return FamilySummary(
        family=family,
        rows=len(results),
        predicted=len(errors),
        median_ape_pct=float(np.median(errors)) if len(errors) else None,
        within_10_pct=within(10),
        within_20_pct=within(20),
    )
