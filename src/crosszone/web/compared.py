"""Saved results as they are compared and exported."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from crosszone.analyse.compare import FIGURES, Compared
from crosszone.analyse.outcome import CLASSES, OTHER, PARTS, Figures, outcome_of, outcome_of_figures
from crosszone.errors import InputError
from crosszone.inputs.value import parse
from crosszone.predict.prediction import Prediction
from crosszone.run.history import RUN
from crosszone.schedule.timeline import PHASES
from crosszone.store import Result
from crosszone.web.refusals import refused


def compared(result: Result) -> Compared:
    """A saved result beside others; 409 where it was saved by a version whose numbers meant something else."""
    phases = (result.timeline or {}).get("phases_s") or {}
    try:
        if result.kind != "predicted":
            known = {key: value for key, value in result.document.items() if key != RUN}
            outcome = outcome_of_figures(parse(Figures, known), phases)
            return Compared(result.name, result.kind, outcome, None, result.id)
        prediction = parse(Prediction, result.document)
    except InputError:
        raise refused(409, "saved_older", field="id", value=result.name) from None
    return Compared(result.name, result.kind, outcome_of(prediction, phases), prediction, result.id)


def table_of(results: Sequence[Result]) -> str:
    """One row a result as CSV: figures with their ranges, then seconds by class, part and phase."""
    seconds = [("classes_s", (*CLASSES, OTHER)), ("parts_s", PARTS), ("phases_s", PHASES)]
    ends = ("", "_low", "_high")
    heads = ["name", "kind", "saved", "framework", "strategy", "fits"]
    heads += [f"{figure}{end}" for figure in FIGURES for end in ends]
    heads += [f"{group.removesuffix('_s')}_{name}_s" for group, names in seconds for name in names]
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerow(heads)
    for result in results:
        outcome = compared(result).outcome
        degrees = " ".join(f"{key}{value}" for key, value in outcome.degrees.items())
        row: list[Any] = [result.name, result.kind, result.created, outcome.framework, degrees, outcome.fits]
        for figure in FIGURES:
            found = outcome.figures.get(figure)
            row += [found.value, found.low, found.high] if found else [None] * 3
        for group, names in seconds:
            parts = getattr(outcome, group)
            row += [parts.get(name) for name in names]
        table.writerow([_plain(one) for one in row])
    return written.getvalue()


def _plain(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t")) else cell
