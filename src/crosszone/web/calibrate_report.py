"""Reports of accuracy, as workers make them and as the server keeps them until a file or the profile in use changes.

key = key_of(folder, "en")
kept.get(key)                      # the answer as it was sent before; None: it has to be made
kept.put(key, answer)
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

from crosszone.calibrate.accuracy_report import VARIABLE
from crosszone.cost.profile import Profiles
from crosszone.plan.search import Progress
from crosszone.web.answers import json_bytes
from crosszone.web.calibrate_jobs import watched
from crosszone.web.jobs import Cancelled

MOST_KEPT = 8  # Answers that are kept: parts and all of it in two languages, with two profiles


@dataclass(eq=False)
class KeptReports:
    """Answers that were made, the oldest dropped first."""

    _answers: dict[Hashable, bytes] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def get(self, key: Hashable) -> bytes | None:
        """The answer; None: there is none."""
        with self._lock:
            return self._answers.get(key)

    def put(self, key: Hashable, answer: bytes) -> None:
        """Keep an answer."""
        with self._lock:
            while len(self._answers) >= MOST_KEPT:
                self._answers.pop(next(iter(self._answers)))
            self._answers[key] = answer


def key_of(folder: Path, *asked: str) -> Hashable:
    """What a report depends on: the files, the profile in use, and what was asked."""
    from crosszone.calibrate.accuracy_report import state_of

    return (folder, state_of(folder), Profiles.load(), *asked)  # the same profiles are one object


def accuracy_job(folder: str, language: str, *, progress: Progress, cancelled: Cancelled) -> bytes:
    """Errors of predictions against the measured data of a folder."""
    from crosszone.calibrate.accuracy_report import report_of

    return _answer(report_of(_found(Path(folder), watched(progress, cancelled)), language))


def parts_job(folder: str, language: str, *, progress: Progress, cancelled: Cancelled) -> bytes:
    """The same of the jobs that were timed part by part alone, which takes a moment."""
    from crosszone.calibrate.accuracy_report import COMPONENTS, ITERATIONS, Found, found_of, report_of
    from crosszone.calibrate.stability import read_stability_table

    watched(progress, cancelled)("parts", 0, 1)
    home = Path(folder)
    there = (home / COMPONENTS).is_file()
    found = found_of(home / COMPONENTS) if there else Found(folder=home, missing=(), own=Profiles.load().own)
    if (home / ITERATIONS).is_file():
        found = replace(found, stability=read_stability_table(home / ITERATIONS))
    return _answer(report_of(found, language))


def _answer(report: dict[str, Any]) -> bytes:
    from crosszone.calibrate.accuracy_report import FILES

    told = {key: value for key, value in report.items() if key != "folder"}
    return json_bytes({"present": True, "variable": VARIABLE, "files": list(FILES), "report": told})


def _found(folder: Path, tell: Progress) -> Any:
    """What a folder holds; the last one is kept, since the other language asks for the same."""
    from crosszone.calibrate.accuracy_report import RUNS, found_in, rows_in

    key = key_of(folder)
    if key not in _last:
        rows = [rows_in(folder / name) for name in RUNS]
        done, of = 0, sum(rows)
        tell("scoring", 0, of)

        def count(more: int) -> None:
            nonlocal done
            done = min(done + more, of)
            tell("scoring", done, of)

        found = found_in(folder, count)
        _last.clear()
        _last[key] = found
    return _last[key]


_last: dict[Hashable, Any] = {}
