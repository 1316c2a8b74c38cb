"""Predictions of fits that had not seen a row's source, model, GPU family or the row, kept in benchmarks/left_out.csv.

    python benchmarks/left_out.py                  # fit without each part and write the file (half an hour of CPU time)
    python benchmarks/left_out.py source new       # only these kinds

Fits take minutes, ranges do not: `benchmarks/accuracy.py --quick` reads the file and computes the ranges of the same
predictions anew. Fits see measured_runs.csv, measured_runs_2.csv and, with little weight, every sixth row of
measured_runs_vtrain_single.csv.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import get_args

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "studies"))  # refit.py lies there

from refit import fit_profiles

from crosszone import measured
from crosszone.calibrate.fit import (
    FOLDS,
    CrossValidation,
    Kind,
    TrainingRows,
    build_training_rows,
    cross_validate,
    read_doubtful_reasons,
    select_usable_runs,
)
from crosszone.calibrate.predicted import StepBatches, get_gpu
from crosszone.calibrate.runs import MeasuredRun, read_runs
from crosszone.cost.profile import Profiles

FILE = Path(__file__).resolve().parent / "left_out.csv"
MAIN_FILE, NEW_FILE, SECONDARY_FILE = "measured_runs.csv", "measured_runs_2.csv", "measured_runs_vtrain_single.csv"
SECONDARY_STEP = 6  # Every sixth row of the secondary file: its rows differ little from each other
DIGITS = 6
USER, NEW = "user", "new"
KINDS = (*get_args(Kind), NEW)
"""What fits leave out; `new`: all sources of measured_runs_2.csv at once."""
COLUMNS = ("kind", "entered", "folds", "id", "predicted_s", "stack_known", "gpu_known")


@dataclass(frozen=True)
class MeasuredFiles:
    """The runs of a folder as they are scored, and as a user would enter them."""

    folder: Path

    @cached_property
    def stated(self) -> tuple[MeasuredRun, ...]:
        """With the software that each source states."""
        return tuple(run for name in (MAIN_FILE, NEW_FILE) for run in self._read(name))

    @cached_property
    def by_user(self) -> tuple[MeasuredRun, ...]:
        """As a user would enter them: nothing of the source."""
        return tuple(run for name in (MAIN_FILE, NEW_FILE) for run in self._read(name, as_user=True))

    @cached_property
    def new(self) -> tuple[MeasuredRun, ...]:
        """The newer sources, with the software that each states."""
        return tuple(self._read(NEW_FILE))

    @cached_property
    def training(self) -> TrainingRows:
        """What the shipped coefficients rest on."""
        return build_training_rows(self.stated, self._read(SECONDARY_FILE)[::SECONDARY_STEP])

    @cached_property
    def doubtful(self) -> dict[str, str]:
        """Rows that contradict their neighbours."""
        return read_doubtful_reasons(self.folder / MAIN_FILE, None)

    def _read(self, name: str, *, as_user: bool = False) -> list[MeasuredRun]:
        return select_usable_runs(read_runs(self.folder / name, as_user=as_user)[0], self.doubtful)


@dataclass(frozen=True)
class LeftOut:
    """Rows predicted by fits that had not seen them, entered as stated or as a user would."""

    validations: dict[tuple[str, str], CrossValidation]
    """By what was left out (`source`, `model`, `gpu`, `row`, `new`) and how the rows are entered (`stated`, `user`)."""

    @property
    def stated(self) -> list[CrossValidation]:
        """Those of all rows as stated, in the order of `Kind`."""
        return [self.validations[kind, "stated"] for kind in FOLDS if (kind, "stated") in self.validations]


def fit_without(kind: str, files: MeasuredFiles, profiles: Profiles) -> dict[tuple[str, str], CrossValidation]:
    """Predict rows by fits without their part; those without their source also as a user would enter them."""
    if kind == NEW:
        return {(NEW, "stated"): predict_new_sources(files, profiles)}
    targets = (*files.stated, *files.by_user) if kind == "source" else files.stated
    validation = cross_validate(files.training, profiles, kind, targets=targets, workers=1)  # type: ignore[arg-type]
    assert validation is not None, f"{kind}: nothing can be left out of one part"
    count = len(files.stated)
    entered = {"stated": slice(None, count)} | ({USER: slice(count, None)} if kind == "source" else {})
    return {(kind, name): _cut(validation, part) for name, part in entered.items()}


def predict_new_sources(files: MeasuredFiles, profiles: Profiles) -> CrossValidation:
    """Rows of the newer sources by a fit that saw none of these sources."""
    new = {run.source for run in files.new}
    older = files.training.drop(run.source in new for run in files.training.runs)
    fitted = fit_profiles(older, profiles).values
    steps = StepBatches(files.new, profiles)
    predicted_s = np.empty(len(files.new))
    predicted_s[steps.order] = steps.predict_at(fitted)
    stacks = {run.stack for run in older.runs}
    families = {profiles.find_family(get_gpu(run))[0] for run in older.runs}
    return CrossValidation(
        kind="source",
        folds=1,
        runs=files.new,
        predicted_s=predicted_s,
        stack_known=np.array([run.stack is None or run.stack in stacks for run in files.new]),
        gpu_known=np.array([profiles.find_family(get_gpu(run))[0] in families for run in files.new]),
    )


def _cut(validation: CrossValidation, part: slice) -> CrossValidation:
    return CrossValidation(
        kind=validation.kind,
        folds=validation.folds,
        runs=validation.runs[part],
        predicted_s=validation.predicted_s[part],
        stack_known=validation.stack_known[part],
        gpu_known=validation.gpu_known[part],
    )


def read_left_out(files: MeasuredFiles, path: Path = FILE) -> LeftOut:
    """The kept predictions of the runs there are; `ValueError` where the file is of other rows."""
    with path.open(encoding="utf-8", newline="") as file:
        entries = list(csv.DictReader(file))
    runs_by_name = {"stated": {run.id: run for run in files.stated}, USER: {run.id: run for run in files.by_user}}
    validations = {}
    for kind, entered in dict.fromkeys((entry["kind"], entry["entered"]) for entry in entries):
        part = [entry for entry in entries if (entry["kind"], entry["entered"]) == (kind, entered)]
        runs = runs_by_name[entered]
        wanted = [run.id for run in (files.new if kind == NEW else runs.values())]
        if wanted != [entry["id"] for entry in part]:
            raise ValueError(f"{path.name}, {kind} {entered}: other rows than measured; run benchmarks/left_out.py")
        validations[kind, entered] = CrossValidation(
            kind="source" if kind == NEW else kind,  # type: ignore[arg-type]
            folds=int(part[0]["folds"]),
            runs=tuple(runs[entry["id"]] for entry in part),
            predicted_s=np.array([float(entry["predicted_s"]) for entry in part]),
            stack_known=np.array([entry["stack_known"] == "1" for entry in part]),
            gpu_known=np.array([entry["gpu_known"] == "1" for entry in part]),
        )
    return LeftOut(validations)


def write_left_out(left_out: LeftOut, path: Path = FILE) -> None:
    """Write the predictions, those of one kind after the other."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for (kind, entered), validation in sorted(left_out.validations.items(), key=lambda item: KINDS.index(item[0][0])):
        for index, run in enumerate(validation.runs):
            writer.writerow(
                (
                    kind,
                    entered,
                    validation.folds,
                    run.id,
                    f"{validation.predicted_s[index]:.{DIGITS}g}",
                    int(validation.stack_known[index]),
                    int(validation.gpu_known[index]),
                )
            )
    path.write_text(text.getvalue(), encoding="utf-8")


def fit_left_out(kinds: Iterable[str], files: MeasuredFiles, profiles: Profiles) -> None:
    """Fit without each part and write the predictions after each kind, so that nothing is lost."""
    for kind in kinds:
        predictions = fit_without(kind, files, profiles)
        before = read_left_out(files).validations if FILE.exists() else {}
        write_left_out(LeftOut({**before, **predictions}))
        for (_, entered), validation in predictions.items():
            scores = validation.scores
            sys.stdout.write(f"{kind} {entered}: {scores['mape_pct']:.1f} / {scores['median_ape_pct']:.1f} %\n")
            sys.stdout.flush()


def parse_kinds(names: Sequence[str]) -> Sequence[str]:
    """The kinds named, or all; `ValueError` for another name."""
    unknown = set(names) - set(KINDS)
    if unknown:
        raise ValueError(f"kind {sorted(unknown)[0]}: must be one of {', '.join(KINDS)}")
    return names or KINDS


if __name__ == "__main__":
    fit_left_out(parse_kinds(sys.argv[1:]), MeasuredFiles(measured.FOLDER), Profiles.load_shipped())
