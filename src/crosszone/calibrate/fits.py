"""Does it fit? Configurations that ran and such that crashed, against the verdicts predicted for them.

    score = score_fits(read_configurations(Path("ran.csv")), read_configurations(Path("crashed.csv")), Profiles.load())
    score.as_dict()     # ran, ran_flagged, crashed, crashed_flagged, and the same by model and GPUs

A configuration is flagged where the verdict is `no`; `tight` is no alarm. Every row of both files counts: one that
cannot be predicted counts as not flagged, and so does a crash for another reason than memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crosszone.calibrate.predicted import build_run_predictor
from crosszone.calibrate.runs import MeasuredRun, RunReader, Skipped, iterate_rows
from crosszone.calibrate.runs_inference import Row
from crosszone.cost.profile import Profiles
from crosszone.errors import InputError
from crosszone.predict.fits import Verdict
from crosszone.predict.prediction import Memory

NEEDED = ("model", "gpu", "gpus", "seq_len", "global_batch")
# What a file of configurations that crashed leaves out where all its rows are alike: the sweep's framework and options.
USUAL = {"framework": "nanotron", "precision": "bf16", "recompute": "none", "interleave": "1", "cp": "1"}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)b\b", re.IGNORECASE)
_ALTERNATIVES = re.compile(r"^(\S+) or \S+$")


@dataclass(frozen=True, kw_only=True)
class FitsCounts:
    """Configurations that ran and that crashed, and of each how many were predicted not to fit."""

    ran: int = 0
    ran_flagged: int = 0
    crashed: int = 0
    crashed_flagged: int = 0

    def add(self, *, crashed: bool, flagged: bool) -> FitsCounts:
        """The counts with one more configuration."""
        return FitsCounts(
            ran=self.ran + (not crashed),
            ran_flagged=self.ran_flagged + (flagged and not crashed),
            crashed=self.crashed + crashed,
            crashed_flagged=self.crashed_flagged + (flagged and crashed),
        )

    def as_dict(self) -> dict[str, int]:
        """Plain values for JSON."""
        return {"ran": self.ran, "ran_flagged": self.ran_flagged, "crashed": self.crashed} | {
            "crashed_flagged": self.crashed_flagged
        }


@dataclass(frozen=True, kw_only=True)
class FitsScore:
    """The counts of all rows, and by model and number of GPUs."""

    total: FitsCounts
    groups: dict[tuple[str, int], FitsCounts]
    skipped: tuple[Skipped, ...]
    """Rows that cannot be predicted; they count as not flagged, in no group."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        by_group = [{"model": m, "gpus": g, **counts.as_dict()} for (m, g), counts in self.groups.items()]
        return {**self.total.as_dict(), "unpredicted": len(self.skipped), "by_group": by_group}


def read_configurations(path: Path) -> list[MeasuredRun | Skipped]:
    """The rows of a file of configurations, with or without measured figures, as cases that can be predicted."""
    reader = RunReader(needs_figures=False)
    return [reader.read(_complete_row(row, number)) for number, row in enumerate(iterate_rows(path, NEEDED), start=1)]


def _complete_row(row: Row, number: int) -> dict[str, str]:
    """The row with what the columns of such a file leave out; a stated value is never changed."""
    row = {"id": f"row-{number:04}", **row}
    filled = {key: value for key, value in USUAL.items() if not row.get(key)}
    if row.get("zero_stage") and not row.get("zero_stage_or_fsdp"):
        filled["zero_stage_or_fsdp"] = f"zero{row['zero_stage']}"
    size = _SIZE.search(row.get("model", ""))
    # the name says how large the model is, and that which MLP and whether its embeddings are tied
    if size and not row.get("params_b"):
        filled["params_b"] = size[1]
    # a cell of alternatives ("64 or 8"): the first
    firsts = {key: match[1] for key, cell in row.items() if (match := _ALTERNATIVES.match(cell))}
    return {**row, **firsts, **filled}


def predict_verdicts(runs: Iterable[MeasuredRun], profiles: Profiles) -> list[Verdict | None]:
    """The verdict on each run's memory; None where it cannot be predicted."""
    return [None if memory is None else memory.verdict for memory in predict_memories(runs, profiles)]


def predict_memories(runs: Iterable[MeasuredRun], profiles: Profiles) -> list[Memory | None]:
    """The predicted memory of each run; None where it cannot be predicted."""
    return [_predict_memory(run, profiles) for run in runs]


def _predict_memory(run: MeasuredRun, profiles: Profiles) -> Memory | None:
    try:
        return build_run_predictor(run, profiles).memory
    except InputError:
        return None


def score_fits(
    ran: Sequence[MeasuredRun | Skipped], crashed: Sequence[MeasuredRun | Skipped], profiles: Profiles
) -> FitsScore:
    """The verdicts on configurations that ran and that crashed, counted. [Q11]"""
    total, groups = FitsCounts(), dict[tuple[str, int], FitsCounts]()
    skipped = []
    for rows, is_crashed in ((ran, False), (crashed, True)):
        runs = [row for row in rows if isinstance(row, MeasuredRun)]
        verdicts = iter(predict_verdicts(runs, profiles))
        for row in rows:
            if isinstance(row, Skipped):
                skipped.append(row)
                total = total.add(crashed=is_crashed, flagged=False)
                continue
            flagged = next(verdicts) == "no"
            total = total.add(crashed=is_crashed, flagged=flagged)
            key = (row.case.model.name, row.case.cluster.gpus)
            groups[key] = groups.get(key, FitsCounts()).add(crashed=is_crashed, flagged=flagged)
    return FitsScore(total=total, groups=dict(sorted(groups.items())), skipped=tuple(skipped))
