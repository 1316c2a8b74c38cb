"""The ledger: what each release predicted of every measured run, scored on the runs that its fit had not seen.

    python benchmarks/ledger.py index     # write src/crosszone/measured/run_index.csv: runs that predictions name
    python benchmarks/ledger.py add       # write benchmarks/ledger/VERSION.csv: predictions of the present version
    python benchmarks/ledger.py score     # score every release; update the section Ledger of RESULTS.md
    python benchmarks/ledger.py score --runs NEW.csv    # rows of another file too
    python benchmarks/ledger.py check     # do runs near each other have like errors? section Nearest runs of RESULTS.md

Stored predictions are never computed anew: a release is scored by what it said. Rows that no release holds are
predicted by the present version, and the table says so. benchmarks/ledger/rows.yaml names files and what the fit saw.
"""

from __future__ import annotations

import argparse
import csv
import io
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

import crosszone
from crosszone import measured
from crosszone.calibrate.accuracy import compute_spearman
from crosszone.calibrate.fit import read_doubtful_reasons
from crosszone.calibrate.predicted import build_run_predictor, get_gpu
from crosszone.calibrate.runs import MeasuredRun, read_runs
from crosszone.cost.profile import Profiles
from crosszone.inputs.parameters import parameters
from crosszone.predict.nearest_runs import COLUMNS, INDEX_FILE, RunIndex, read_run_index
from results import write_section

Vector = npt.NDArray[np.float64]
LEDGER = Path(__file__).resolve().parent / "ledger"
ROWS = LEDGER / "rows.yaml"
DIGITS = 4  # Significant digits that are stored: a thousandth of an error of 10 %
MOST_PAIRED = 120  # Runs of a source that are paired with those of others: a sweep would outnumber them
NEIGHBOURS = 3  # Runs that a prediction names


@dataclass(frozen=True)
class Outcome:
    """What is predicted of one run: seconds of a step with their range, and GiB."""

    expected_s: float
    low_s: float
    high_s: float
    memory_gib: float


@dataclass(frozen=True)
class FileRow:
    """A measured run with what is known of its row."""

    run: MeasuredRun
    user_run: MeasuredRun
    """The same as a user would write it; where that lacks degrees, as it is scored."""
    file: str
    doubtful: bool

    @property
    def counts(self) -> bool:
        """Whether it goes into averages."""
        return not self.doubtful and self.run.duplicate_of is None and self.run.step_time_s is not None


def predict_outcome(run: MeasuredRun, profiles: Profiles) -> Outcome:
    """Step, range and memory of a run."""
    predictor = build_run_predictor(run, profiles)
    step = predictor.step_time
    return Outcome(step.expected, step.low, step.high, predictor.memory.peak.expected)


def predict_first_contact(row: FileRow, profiles: Profiles) -> Outcome:
    """As a user would write the row, its source unknown (`crosszone accuracy --first-contact`)."""
    return predict_outcome(row.user_run, profiles)


def predict_as_scored(row: FileRow, profiles: Profiles) -> Outcome:
    """With the software that the row's source states, as `crosszone accuracy` scores it."""
    return predict_outcome(row.run, profiles)


# How a row can be read, the reading that counts most first.
READINGS: dict[str, Callable[[FileRow, Profiles], Outcome]] = {
    "first_contact": predict_first_contact,
    "scored": predict_as_scored,
}
TITLES = {"first_contact": "first contact", "scored": "as scored"}


def predict_index_rows(rows: Sequence[FileRow], profiles: Profiles) -> list[Outcome]:
    """What the index says of our own error: the reading that counts most."""
    predict_row = next(iter(READINGS.values()))
    return [predict_row(row, profiles) for row in rows]


@cache
def read_rows_settings() -> dict[str, Any]:
    """Which rows are read (`ledger/rows.yaml`)."""
    settings: dict[str, Any] = yaml.safe_load(ROWS.read_text(encoding="utf-8"))
    return settings


def read_file_rows(path: Path) -> list[FileRow]:
    """The runs of a file."""
    doubtful = find_doubtful(path)
    user_runs = {run.id: run for run in read_runs(path, as_user=True)[0]}
    return [FileRow(run, user_runs.get(run.id, run), path.name, run.id in doubtful) for run in read_runs(path)[0]]


def find_doubtful(path: Path) -> set[str]:
    """Ids of the rows of a file that contradict their neighbours."""
    settings = read_rows_settings()
    doubtful = set(read_doubtful_reasons(path, None))
    groups = [group for group in settings["doubtful_groups"] if group["file"] == path.name]
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file):
            in_group = any(row[group["column"]] == group["value"] for group in groups)
            if in_group or settings["doubtful_note"] in (row.get("notes") or ""):
                doubtful.add(row["id"])
    return doubtful


def read_all_rows() -> list[FileRow]:
    """The runs of every file of the ledger."""
    return [row for name in read_rows_settings()["files"] for row in read_file_rows(measured.FOLDER / name)]


def format_number(value: float) -> str:
    """A number with the digits that are stored."""
    return f"{value:.{DIGITS}g}"


# The index that predictions read.


def build_index_row(run: MeasuredRun, outcome: Outcome, profiles: Profiles) -> dict[str, str]:
    """A row of the index; utilisation by our own count, so that it compares with predictions."""
    case, gpu, time_s = run.case, get_gpu(run), run.step_time_s
    assert time_s is not None  # only timed runs are given
    p, s, counted = build_run_predictor(run, profiles), case.strategy, parameters(case.model)
    per_gpu = 1.0 / (time_s * s.ranks)
    numbers: dict[str, Any] = {
        "id": run.id,
        "model": case.model.name,
        "params_b": format_number(counted.total / 1e9),
        "active_b": format_number(counted.active / 1e9),
        "experts": int(run.moe),
        "gpu": gpu.name,
        "architecture": gpu.architecture,
        "vendor": gpu.vendor,
        "gpus": s.ranks,
        "framework": run.framework,
        "precision": case.job.precision,
        "seq_len": case.job.seq_len,
        "global_batch": case.job.global_batch,
        **{name: getattr(s, name) for name in ("tp", "pp", "cp", "ep", "dp", "interleave", "micro_batch", "zero")},
        "recompute": s.recompute,
        "timed": int(run.time_from in ("step_time_s", "tokens_per_s_per_gpu")),
        "step_time_s": format_number(time_s),
        "tokens_per_s_per_gpu": format_number(case.job.tokens_per_step * per_gpu),
        "tflops_per_gpu": format_number(p.model_flops * per_gpu / 1e12),
        "mfu": format_number(p.model_flops / (p.peak_flops * time_s)),
        "error_pct": f"{100 * (outcome.expected_s / time_s - 1):.1f}",
    }
    return {name: str(numbers[name]) for name in COLUMNS}


def build_index(profiles: Profiles) -> list[dict[str, str]]:
    """Every run that counts; of sweeps, as many as stand for the others."""
    index: list[dict[str, str]] = []
    sweeps = read_rows_settings()["sweeps"]
    for name in read_rows_settings()["files"]:
        counted = [row for row in read_file_rows(measured.FOLDER / name) if row.counts]
        outcomes = predict_index_rows(counted, profiles)
        rows = [build_index_row(row.run, outcome, profiles) for row, outcome in zip(counted, outcomes, strict=True)]
        index += thin_rows(rows, sweeps[name]) if name in sweeps else rows
    return index


def thin_rows(rows: Sequence[dict[str, str]], count: int) -> list[dict[str, str]]:
    """The rows that cover the others best: the one with the highest MFU, then always the farthest from those taken."""
    if len(rows) <= count:
        return list(rows)
    index = RunIndex(rows)
    taken = [int(np.argmax(index.read_column("mfu")))]
    distance_R = index.measure_distances(index.describe_run(taken[0]))
    while len(taken) < count:
        farthest = int(np.argmax(distance_R))
        taken.append(farthest)
        distance_R = np.minimum(distance_R, index.measure_distances(index.describe_run(farthest)))
        distance_R[taken] = -1.0  # repeated set-ups lie at distance 0
    return [rows[number] for number in sorted(taken)]


def write_index(path: Path, profiles: Profiles) -> int:
    """Write the index; how many runs it has."""
    rows = build_index(profiles)
    path.write_text(format_csv(COLUMNS, rows), encoding="utf-8")
    return len(rows)


def format_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# The ledger of releases.


@dataclass(frozen=True)
class Release:
    """The stored predictions of one release."""

    header: Mapping[str, str]
    """version, date, commit, seen."""
    outcomes: Mapping[str, Mapping[str, Outcome]]
    """By reading, then by the id of the run."""
    seen: frozenset[str]
    """Ids of the runs that its fit read."""

    @property
    def version(self) -> str:
        """Its version."""
        return self.header["version"]


LEDGER_FIGURES = ("expected_s", "low_s", "high_s", "memory_gib")


def build_release(rows: Sequence[FileRow], profiles: Profiles, header: Mapping[str, str]) -> Release:
    """The predictions of the present version."""
    outcomes = {
        name: {row.run.id: predict_row(row, profiles) for row in rows} for name, predict_row in READINGS.items()
    }
    seen_files = read_rows_settings()["seen"]
    return Release(header, outcomes, frozenset(row.run.id for row in rows if row.file in seen_files and row.counts))


def format_release(release: Release) -> str:
    """A release as text: `# key: value` lines, then a row for each run."""
    columns = ["id", "seen", *(f"{reading}_{name}" for reading in release.outcomes for name in LEDGER_FIGURES)]
    rows = []
    for run_id in next(iter(release.outcomes.values())):
        row = {"id": run_id, "seen": str(int(run_id in release.seen))}
        for reading, outcomes in release.outcomes.items():
            row |= {f"{reading}_{name}": format_number(getattr(outcomes[run_id], name)) for name in LEDGER_FIGURES}
        rows.append(row)
    head = "".join(f"# {key}: {value}\n" for key, value in release.header.items())
    return head + format_csv(columns, rows)


def read_release(text: str) -> Release:
    """A release from its text; columns of readings that it does not hold are missing."""
    lines = text.splitlines()
    header = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    columns = set(rows[0]) if rows else set()
    readings = [name for name in TITLES if f"{name}_expected_s" in columns]
    outcomes = {
        reading: {
            row["id"]: Outcome(**{name: float(row[f"{reading}_{name}"]) for name in LEDGER_FIGURES}) for row in rows
        }
        for reading in readings
    }
    return Release(header, outcomes, frozenset(row["id"] for row in rows if row["seen"] == "1"))


def read_releases() -> list[Release]:
    """Every release of the ledger, oldest first."""
    releases = [read_release(path.read_text(encoding="utf-8")) for path in LEDGER.glob("*.csv")]
    return sorted(releases, key=lambda release: tuple(int(part) for part in release.version.split(".")))


def add_release(profiles: Profiles) -> Path:
    """Store the predictions of the present version; those of an earlier day of the same version are replaced."""
    settings = read_rows_settings()
    header = {
        "version": crosszone.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": read_commit(),
        "seen": "rows that count of " + ", ".join(settings["seen"]),
    }
    path = LEDGER / f"{crosszone.__version__}.csv"
    path.write_text(format_release(build_release(read_all_rows(), profiles, header)), encoding="utf-8")
    return path


def read_commit() -> str:
    """The commit that predicts; with + where files differ from it."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=10"]
    done = subprocess.run(command, cwd=LEDGER, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


Scores = dict[str, float | int | None]


def score_outcomes(rows: Sequence[FileRow], outcomes: Mapping[str, Outcome]) -> Scores:
    """Errors of the rows that count: mean and median, shares within 10 and 20 %, how often the range holds, memory."""
    counted = [(row.run, outcomes[row.run.id]) for row in rows if row.counts]
    measured_s, expected_s, low_s, high_s = (
        np.array([(run.step_time_s, o.expected_s, o.low_s, o.high_s) for run, o in counted], dtype=float)
        .reshape(-1, 4)
        .T
    )
    size_pct = 100 * np.abs(expected_s / measured_s - 1)
    memory_pct = [100 * abs(o.memory_gib / run.memory_gib - 1) for run, o in counted if run.memory_gib]
    is_inside = (low_s <= measured_s) & (measured_s <= high_s)
    return {
        "rows": len(counted),
        "mean %": float(size_pct.mean()) if counted else None,
        "median %": float(np.median(size_pct)) if counted else None,
        "within 10 %": float(100 * (size_pct <= 10).mean()) if counted else None,
        "within 20 %": float(100 * (size_pct <= 20).mean()) if counted else None,
        "range holds %": float(100 * is_inside.mean()) if counted else None,
        "memory rows": len(memory_pct),
        "memory mean %": float(np.mean(memory_pct)) if memory_pct else None,
    }


def score_release(release: Release, rows: Sequence[FileRow]) -> Iterator[tuple[str, str, Scores]]:
    """Reading, group of rows and scores: rows not seen first, then by file, then those that were fitted to."""
    sweeps = read_rows_settings()["sweeps"]
    for reading, outcomes in release.outcomes.items():
        unseen = [row for row in rows if row.run.id in outcomes and row.run.id not in release.seen]
        files = list(dict.fromkeys(row.file for row in unseen if row.counts))
        groups = {"**not seen**, without sweeps": [row for row in unseen if row.file not in sweeps]}
        groups |= {f"not seen, {name}": [row for row in unseen if row.file == name] for name in files}
        groups["seen by the fit"] = [row for row in rows if row.run.id in release.seen and row.run.id in outcomes]
        for group, members in groups.items():
            scores = score_outcomes(members, outcomes)
            if scores["rows"]:
                yield reading, group, scores


def format_scores(releases: Sequence[Release], rows: Sequence[FileRow], profiles: Profiles) -> list[str]:
    """The table of every release, and what the present version says of rows that no release holds."""
    lines: list[tuple[str, Scores]] = []
    for release in releases:
        lines += [
            (f"{release.version} | {TITLES[reading]} | {group}", scores)
            for reading, group, scores in score_release(release, rows)
        ]
    stored = {run_id for release in releases for outcomes in release.outcomes.values() for run_id in outcomes}
    later = [row for row in rows if row.run.id not in stored]
    if later:
        present = build_release(later, profiles, {"version": crosszone.__version__})
        for reading, outcomes in present.outcomes.items():
            title = f"{present.version}, predicted now | {TITLES[reading]} | rows that no release holds"
            lines.append((title, score_outcomes(later, outcomes)))
    columns = list(lines[0][1]) if lines else []
    text = [f"| release | reading | rows of | {' | '.join(columns)} |", "|---" * (len(columns) + 3) + "|"]
    return [*text, *(f"| {name} | {' | '.join(map(format_cell, scores.values()))} |" for name, scores in lines), ""]


def format_cell(value: float | int | None) -> str:
    """A number for a table."""
    return "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value)


def describe_releases(releases: Sequence[Release]) -> list[str]:
    """A line for each release: when, from which commit, what its fit had seen."""
    return [
        f"- {release.version}: {release.header['date']}, commit {release.header['commit']}; "
        f"{len(next(iter(release.outcomes.values())))} rows, of which the fit saw {len(release.seen)} "
        f"({release.header['seen']})."
        for release in releases
    ]


# Whether runs near each other by the metric have like errors.


def check_metric(index: RunIndex) -> list[str]:
    """Rank correlation of distance and difference of errors, and what the nearest runs of other sources say."""
    sources = np.array([cells["id"].rpartition("-")[0] for cells in index.rows])
    sampled = np.sort(np.concatenate([take_evenly(np.flatnonzero(sources == name)) for name in np.unique(sources)]))
    distances = np.array([index.measure_distances(index.describe_run(int(row)))[sampled] for row in sampled])
    error = np.log1p(index.read_column("error_pct")[sampled] / 100)
    is_foreign = sources[sampled][:, None] != sources[sampled][None, :]
    first, second = np.triu_indices(len(sampled), 1)
    difference = np.abs(error[first] - error[second])
    lines = ["| pairs | count | rank correlation of distance and difference of errors |", "|---|---|---|"]
    for name, mask in (
        ("all", np.ones(len(first), dtype=bool)),
        ("of one source", ~is_foreign[first, second]),
        ("of different sources", is_foreign[first, second]),
    ):
        correlation = compute_spearman(distances[first, second][mask], difference[mask])
        lines.append(f"| {name} | {int(mask.sum())} | {correlation:.2f} |")
    lines += ["", *score_neighbours(distances, error, is_foreign)]
    return lines


def take_evenly(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """At most `MOST_PAIRED` of them."""
    if len(numbers) <= MOST_PAIRED:
        return numbers
    return numbers[np.linspace(0, len(numbers) - 1, MOST_PAIRED).astype(np.int64)]


def score_neighbours(distances: Vector, error: Vector, is_foreign: npt.NDArray[np.bool_]) -> list[str]:
    """How far a run's error is from the mean of its three nearest, by how near these are; and from three at random."""
    lines = [
        "| neighbours | runs | mean distance | own error, % | less theirs, % | less that of three at random, % "
        "| rank correlation of own and theirs | of their sizes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rng = np.random.default_rng(0)
    is_other = ~np.eye(len(error), dtype=bool)
    for title, allowed in (("of any source", is_other), ("of other sources", is_foreign)):
        reachable = np.where(allowed, distances, np.inf)
        nearest = np.argsort(reachable, axis=1, kind="stable")[:, :NEIGHBOURS]
        near = np.take_along_axis(reachable, nearest, axis=1).mean(axis=1)
        estimate = error[nearest].mean(axis=1)
        size_estimate = np.abs(error[nearest]).mean(axis=1)
        others = [rng.choice(np.flatnonzero(row), NEIGHBOURS, replace=False) for row in allowed]
        chance_estimate = error[np.array(others)].mean(axis=1)
        thirds = np.quantile(near, (1 / 3, 2 / 3))
        parts = {
            "all": np.ones(len(near), dtype=bool),
            "the nearest third": near <= thirds[0],
            "the middle third": (near > thirds[0]) & (near <= thirds[1]),
            "the farthest third": near > thirds[1],
        }
        for name, mask in parts.items():
            residual = np.abs(error[mask] - estimate[mask]).mean()
            by_chance = np.abs(error[mask] - chance_estimate[mask]).mean()
            correlation = compute_spearman(estimate[mask], error[mask])
            alone = np.abs(error[mask]).mean()
            sizes = compute_spearman(size_estimate[mask], np.abs(error[mask]))
            percents = [f"{100 * value:.1f}" for value in (alone, residual, by_chance)]
            cells = [f"{near[mask].mean():.2f}", *percents, f"{correlation:.2f}", f"{sizes:.2f}"]
            lines.append(f"| {title}: {name} | {int(mask.sum())} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Write the index, store a release, score all of them, or check the metric."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("index", "add", "score", "check"))
    parser.add_argument(
        "--runs", type=Path, action="append", default=[], help="a file of runs beside those of rows.yaml"
    )
    arguments = parser.parse_args()
    profiles = Profiles.load_shipped()
    if arguments.action == "index":
        path = measured.FOLDER / INDEX_FILE
        print(f"{path.name}: {write_index(path, profiles)} runs, {path.stat().st_size / 1e3:.0f} kB")
    elif arguments.action == "add":
        path = add_release(profiles)
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")
    elif arguments.action == "score":
        rows = [*read_all_rows(), *(row for path in arguments.runs for row in read_file_rows(path))]
        releases = read_releases()
        head = [
            "`python benchmarks/ledger.py score`: stored predictions of each release against the measured runs.",
            "",
        ]
        text = [*head, *format_scores(releases, rows, profiles), *describe_releases(releases)]
        write_section("Ledger", "\n".join(text))
    else:
        head = ["`python benchmarks/ledger.py check`: the distance of [Q9] on the runs of the index.", ""]
        write_section("Nearest runs", "\n".join([*head, *check_metric(read_run_index())]))


if __name__ == "__main__":
    main()
