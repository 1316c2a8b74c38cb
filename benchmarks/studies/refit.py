"""Fit the shipped profiles anew and write them back.

    python benchmarks/studies/refit.py RUNS.csv --also MORE.csv --alone OTHER_STACKS.csv --write

Rows of --also count with less weight; rows of --alone move nothing but the coefficients of stacks that no other file
has. Rows listed in doubtful_rows.csv (beside the first file, or --doubtful) are left out, duplicates counted once. The
fit starts from the priors, never from the last fit. Rows of --sweep move the coefficients of their own stack alone,
beside its other rows. With --bands the widths of the bands are found instead, from the predictions that
benchmarks/left_out.py keeps.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from uncertainty import fit_pair_spread, fit_software_widths, fit_step_widths, pair_strategies

from crosszone import measured
from crosszone.calibrate.fit import (
    Fit,
    TrainingRows,
    Vector,
    build_prior_arrays,
    build_training_rows,
    draw_start_values,
    fit,
    read_doubtful_reasons,
    select_usable_runs,
)
from crosszone.calibrate.predicted import StepBatches, predict_runs_s
from crosszone.calibrate.runs import MeasuredRun, read_runs
from crosszone.cost import profile
from crosszone.cost.coefficients import COMMON
from crosszone.cost.profile import Profiles

FOLDER = Path(profile.__file__).parent / "profiles"
DIGITS = 4
_ENTRY = re.compile(r"^( *)(\w+): \{value: [^,]+, error: [^,]+, origin: fitted\}(.*)$")
_WIDTH = re.compile(r"^  (\w+): \{low: [^,]+, high: [^,]+\}(.*)$")
_PAIR = re.compile(r"^pair: \{sd: [^,]+, origin: fitted\}", re.MULTILINE)
_NAME = re.compile(r"^([a-z0-9-]+):")


def fit_profiles(rows: TrainingRows, profiles: Profiles, *, strewn: float = 0.0, rounds: int = 60) -> Fit:
    """Fit every coefficient that has a prior; `strewn` starts elsewhere, which must not matter."""
    steps = StepBatches(rows.runs, profiles)
    priors = build_prior_arrays(profiles)
    begin = draw_start_values(profiles, priors, strewn)
    return fit(steps, steps.index, steps.measured, begin, priors, weights=rows.weights[steps.order], rounds=rounds)


def fit_stacks(
    runs: Sequence[MeasuredRun], profiles: Profiles, stacks: Collection[str], weights: Vector | None = None
) -> Fit:
    """Fit only the coefficients of these stacks; all others keep their values."""
    scopes = {f"stack {name}" for name in stacks}
    priors = build_prior_arrays(profiles)
    is_free = np.array([scope in scopes for scope, _ in profiles.names])
    priors = replace(priors, free=priors.free & is_free)
    steps = StepBatches(runs, profiles)
    ordered = None if weights is None else weights[steps.order]
    return fit(steps, steps.index, steps.measured, profiles.values.copy(), priors, weights=ordered)


def round_value(value: float) -> float:
    """The value with four significant digits."""
    return float(f"{value:.{DIGITS}g}")


def rewrite_profile(text: str, scopes: dict[str, str] | str, values: dict[tuple[str, str], tuple[float, float]]) -> str:
    """A profile file with other fitted values and errors; every other character stays.

    `scopes` is the scope of all entries, or maps the names at the margin to scopes.
    """
    scope = scopes if isinstance(scopes, str) else ""
    lines = []
    for line in text.split("\n"):
        name = _NAME.match(line)
        if name and not isinstance(scopes, str):
            scope = scopes.get(name[1], "")
        entry = _ENTRY.match(line)
        if entry and (scope, entry[2]) in values:
            value, error = values[scope, entry[2]]
            lines.append(f"{entry[1]}{entry[2]}: {{value: {value!r}, error: {error!r}, origin: fitted}}{entry[3]}")
        else:
            lines.append(line)
    return "\n".join(lines)


def write_profiles(profiles: Profiles, values: Vector, errors: Vector, folder: Path) -> None:
    """Put fitted values and errors into common.yaml, gpus.yaml and stacks.yaml of a folder."""
    fitted = {
        name: (round_value(values[at]), float(f"{errors[at]:.2g}"))
        for at, name in enumerate(profiles.names)
        if not profiles.fixed[at]
    }
    scopes_of_file: dict[str, dict[str, str] | str] = {
        "common": COMMON,
        "gpus": {name: f"gpu {name}" for name in profiles.gpus},
        "stacks": {name: f"stack {name}" for name in profiles.stacks},
    }
    for name, scope in scopes_of_file.items():
        path = folder / f"{name}.yaml"
        path.write_text(rewrite_profile(path.read_text("utf-8"), scope, fitted), encoding="utf-8")


def replace_widths(text: str, kind: str, widths: Mapping[str, Mapping[str, float]]) -> str:
    """bands.yaml with other widths of `step` or `memory`; every other character stays."""
    lines, section = [], ""
    for line in text.split("\n"):
        section = line[:-1] if re.fullmatch(r"\w+:", line) else section
        entry = _WIDTH.match(line)
        if entry and section == kind and entry[1] in widths:
            low, high = (widths[entry[1]][side] for side in ("low", "high"))
            lines.append(f"  {entry[1]}: {{low: {low!r}, high: {high!r}}}{entry[2]}")
        else:
            lines.append(line)
    return "\n".join(lines)


def replace_pair_spread(text: str, spread: float) -> str:
    """bands.yaml with another spread of pairs; every other character stays."""
    return _PAIR.sub(f"pair: {{sd: {spread!r}, origin: fitted}}", text)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of this file."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/studies/refit.py", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("runs", type=Path, nargs="*", help="measured runs (CSV)")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="runs that count less")
    parser.add_argument(
        "--sweep", type=Path, nargs="*", default=[], help="many runs of one stack: move that stack alone"
    )
    parser.add_argument("--alone", type=Path, nargs="*", default=[], help="runs of stacks of their own")
    parser.add_argument("--doubtful", type=Path, help="rows to leave out; default: doubtful_rows.csv beside the runs")
    parser.add_argument("--write", action="store_true", help="put the values into the profile files")
    parser.add_argument(
        "--bands", action="store_true", help="instead: find the widths of the bands, from benchmarks/left_out.csv"
    )
    options = parser.parse_args(arguments)
    if options.bands:
        _fit_bands(options.write)
        return 0
    if not options.runs:
        parser.error("give a file of measured runs, or --bands")
    doubtful = read_doubtful_reasons(options.runs[0], options.doubtful)

    def read(paths: Sequence[Path]) -> list[MeasuredRun]:
        return select_usable_runs((run for path in paths for run in read_runs(path)[0]), doubtful)

    more = {"also": read(options.also), "sweep": read(options.sweep), "alone": read(options.alone)}
    _fit_values(read(options.runs), more, options.write)
    return 0


SWEEP_WEIGHT = 0.1  # Of a row of a sweep beside the stack's other rows


def _fit_values(runs: list[MeasuredRun], more: Mapping[str, list[MeasuredRun]], keep: bool) -> None:
    """Fit, show and perhaps keep the coefficients."""
    profiles = Profiles.load_shipped()
    rows = build_training_rows(runs, more["also"])
    fitted, second_start = fit_profiles(rows, profiles), fit_profiles(rows, profiles, strewn=1.0)
    values, errors = fitted.values, fitted.error
    known_stacks = {run.stack for run in rows.runs}
    sweep, alone = more["sweep"], more["alone"]
    swept_stacks = {run.stack for run in sweep if run.stack}
    own_stacks = {run.stack for run in alone if run.stack} - known_stacks
    of_swept = [run for run in runs if run.stack in swept_stacks]
    stages = (
        (swept_stacks, [*of_swept, *sweep], np.r_[np.ones(len(of_swept)), np.full(len(sweep), SWEEP_WEIGHT)]),
        (own_stacks, [run for run in alone if run.stack in own_stacks], None),
    )
    for stacks, stage_runs, weights in stages:
        if stage_runs:
            of_stacks = fit_stacks(stage_runs, profiles.with_values(values), stacks, weights)
            values, errors = of_stacks.values, np.where(of_stacks.error > 0, of_stacks.error, errors)
    for (scope, field), value, error, fixed in zip(profiles.names, values, errors, profiles.fixed, strict=True):
        if not fixed:
            sys.stdout.write(f"{scope:34} {field:18} {value:10.4g} +- {100 * error:.0f} %\n")
    sys.stdout.write(f"{len(rows.runs)} rows, cost {fitted.cost:.1f} in {fitted.rounds} rounds; ")
    sys.stdout.write(f"from another start {second_start.cost:.1f}\n")
    if keep:
        write_profiles(profiles, values, errors, FOLDER)


def _fit_bands(keep: bool) -> None:
    """Find, show and perhaps keep the widths of the bands: from the predictions kept in benchmarks/left_out.csv."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from left_out import USER, MeasuredFiles, read_left_out  # it imports this file

    files, profiles = MeasuredFiles(measured.FOLDER), Profiles.load_shipped()
    left_out = read_left_out(files)
    as_user = left_out.validations["source", USER]
    step_widths = fit_step_widths(left_out.stated)
    step_widths |= fit_software_widths(as_user, predict_runs_s(as_user.runs, profiles), step_widths)
    widths = {"step": step_widths}
    path = FOLDER / "bands.yaml"
    text = path.read_text("utf-8")
    for kind, parts in widths.items():
        text = replace_widths(text, kind, parts)
        sys.stdout.write(f"{kind}: {parts}\n")
    pairs = pair_strategies(left_out.validations["source", "stated"])
    spread = fit_pair_spread(pairs)
    text = replace_pair_spread(text, spread)
    sys.stdout.write(f"pair: {spread} from {len(pairs.weight)} pairs of {pairs.setups} set-ups\n")
    if keep:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
