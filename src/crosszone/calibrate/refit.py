"""Fit the shipped profiles anew and write them back.

    python -m crosszone.calibrate.refit RUNS.csv --also MORE.csv --alone OTHER_STACKS.csv --write

Rows of --also count with less weight; rows of --alone move nothing but the coefficients of stacks that no other file
has. Rows listed in doubtful_rows.csv (beside the first file, or --doubtful) are left out, duplicates counted once. The
fit starts from the priors, never from the last fit. With --bands the widths of the bands are found instead.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from crosszone.calibrate.accuracy import score_runs
from crosszone.calibrate.fit import Vector, doubtful_of, refit, refit_stacks, training, usable
from crosszone.calibrate.runs import Run, read_runs
from crosszone.calibrate.validation import FOLDS, cross_validate, memory_width, pair_width, pairs_of, step_widths
from crosszone.cost import profile
from crosszone.cost.coefficients import COMMON
from crosszone.cost.profile import Profiles

FOLDER = Path(profile.__file__).parent / "profiles"
DIGITS = 4
_ENTRY = re.compile(r"^( *)(\w+): \{value: [^,]+, error: [^,]+, origin: fitted\}(.*)$")
_WIDTH = re.compile(r"^  (\w+): \{low: [^,]+, high: [^,]+\}(.*)$")
_PAIR = re.compile(r"^pair: \{sd: [^,]+, origin: fitted\}", re.MULTILINE)
_NAME = re.compile(r"^([a-z0-9-]+):")


def rounded(value: float) -> float:
    """The value with four significant digits."""
    return float(f"{value:.{DIGITS}g}")


def rewritten(text: str, home_of: dict[str, str] | str, values: dict[tuple[str, str], tuple[float, float]]) -> str:
    """A profile file with other fitted values and errors; every other character stays.

    `home_of` is the home of all entries, or maps the names at the margin to homes.
    """
    home = home_of if isinstance(home_of, str) else ""
    lines = []
    for line in text.split("\n"):
        name = _NAME.match(line)
        if name and not isinstance(home_of, str):
            home = home_of.get(name[1], "")
        entry = _ENTRY.match(line)
        if entry and (home, entry[2]) in values:
            value, error = values[home, entry[2]]
            lines.append(f"{entry[1]}{entry[2]}: {{value: {value!r}, error: {error!r}, origin: fitted}}{entry[3]}")
        else:
            lines.append(line)
    return "\n".join(lines)


def write(profiles: Profiles, values: Vector, errors: Vector, folder: Path) -> None:
    """Put fitted values and errors into common.yaml, gpus.yaml and stacks.yaml of a folder."""
    found = {
        name: (rounded(values[at]), float(f"{errors[at]:.2g}"))
        for at, name in enumerate(profiles.names)
        if not profiles.fixed[at]
    }
    homes: dict[str, dict[str, str] | str] = {
        "common": COMMON,
        "gpus": {name: f"gpu {name}" for name in profiles.gpus},
        "stacks": {name: f"stack {name}" for name in profiles.stacks},
    }
    for name, home in homes.items():
        path = folder / f"{name}.yaml"
        path.write_text(rewritten(path.read_text("utf-8"), home, found), encoding="utf-8")


def with_widths(text: str, kind: str, widths: Mapping[str, Mapping[str, float]]) -> str:
    """bands.yaml with other widths of `step` or `memory`; every other character stays."""
    lines, here = [], ""
    for line in text.split("\n"):
        here = line[:-1] if re.fullmatch(r"\w+:", line) else here
        entry = _WIDTH.match(line)
        if entry and here == kind and entry[1] in widths:
            low, high = (widths[entry[1]][side] for side in ("low", "high"))
            lines.append(f"  {entry[1]}: {{low: {low!r}, high: {high!r}}}{entry[2]}")
        else:
            lines.append(line)
    return "\n".join(lines)


def with_pair(text: str, spread: float) -> str:
    """bands.yaml with another spread of pairs; every other character stays."""
    return _PAIR.sub(f"pair: {{sd: {spread!r}, origin: fitted}}", text)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of this file."""
    parser = argparse.ArgumentParser(prog="python -m crosszone.calibrate.refit", description=__doc__.split("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", help="measured runs (CSV)")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="runs that count less")
    parser.add_argument("--alone", type=Path, nargs="*", default=[], help="runs of stacks of their own")
    parser.add_argument("--doubtful", type=Path, help="rows to leave out; default: doubtful_rows.csv beside the runs")
    parser.add_argument("--write", action="store_true", help="put the values into the profile files")
    parser.add_argument("--bands", action="store_true", help="instead: find the widths of the bands (minutes)")
    given = parser.parse_args(arguments)
    doubtful = doubtful_of(given.runs[0], given.doubtful)

    def read(paths: Sequence[Path]) -> list[Run]:
        return usable((run for path in paths for run in read_runs(path)[0]), doubtful)

    if given.bands:
        _bands(read(given.runs), given.runs, doubtful, given.write)
    else:
        _values(read(given.runs), read(given.also), read(given.alone), given.write)
    return 0


def _values(runs: list[Run], also: list[Run], alone: list[Run], keep: bool) -> None:
    """Fit, show and perhaps keep the coefficients."""
    profiles = Profiles.shipped()
    rows = training(runs, also)
    found, again = refit(rows, profiles), refit(rows, profiles, strewn=1.0)
    values, errors = found.values, found.error
    if alone:
        own = refit_stacks(alone, profiles.with_values(values), {run.stack for run in rows.runs})
        values, errors = own.values, np.where(own.error > 0, own.error, errors)
    for (home, field), value, error, fixed in zip(profiles.names, values, errors, profiles.fixed, strict=True):
        if not fixed:
            sys.stdout.write(f"{home:34} {field:18} {value:10.4g} +- {100 * error:.0f} %\n")
    sys.stdout.write(f"{len(rows.runs)} rows, cost {found.cost:.1f} in {found.rounds} rounds; ")
    sys.stdout.write(f"from another start {again.cost:.1f}\n")
    if keep:
        write(profiles, values, errors, FOLDER)


def _bands(runs: list[Run], paths: Sequence[Path], doubtful: Mapping[str, str], keep: bool) -> None:
    """Find, show and perhaps keep the widths of the bands."""
    profiles = Profiles.shipped()
    found = [cross_validate(training(runs), profiles, kind) for kind in FOLDS]
    widths = {
        "step": step_widths([one for one in found if one]),
        "memory": {"base": memory_width([r for p in paths for r in score_runs(p, profiles, doubtful).rows])},
    }
    path = FOLDER / "bands.yaml"
    text = path.read_text("utf-8")
    for kind, parts in widths.items():
        text = with_widths(text, kind, parts)
        sys.stdout.write(f"{kind}: {parts}\n")
    pairs = [pairs_of(one) for one in found if one and one.kind == "source"]
    if pairs and len(pairs[0].weight):
        spread = pair_width(pairs[0])
        text = with_pair(text, spread)
        sys.stdout.write(f"pair: {spread} from {len(pairs[0].weight)} pairs of {pairs[0].setups} set-ups\n")
    if keep:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
