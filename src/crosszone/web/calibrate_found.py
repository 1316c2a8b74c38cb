"""What was found in a file, as the page shows it: fits with their errors, links, iterations with their phases."""

from __future__ import annotations

from typing import Any

import numpy as np

from crosszone.calibrate.stability import Stability
from crosszone.cost.description import UNITS
from crosszone.cost.own_profiles import OwnProfile
from crosszone.cost.profile import GENERIC, Profiles
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.value import Value


class ErrorRow(Value):
    """How well one thing is told."""

    name: str
    """An operator, a step, a part of it."""
    samples: int | None
    """How many samples it rests on; null: not counted."""
    before_pct: float | None = None
    """Mean error with the values in use now."""
    after_pct: float | None = None
    """Mean error of the fit; of samples: with random ones held out."""
    median_pct: float | None = None
    """The middle one of these."""
    unseen_pct: float | None = None
    """Mean error with whole sizes held out."""


class ValueRow(Value):
    """A coefficient that was found."""

    home: str
    """GPU kind or software stack."""
    field: str
    """Field of the formulas."""
    before: float | None
    """The value in use now; null: there is none."""
    after: float
    """The value that was found."""
    unit: str
    """ratio, s, ..."""
    error_pct: float
    """One standard error, in %."""
    origin: str
    """measured, fitted, ..."""


class StepFound(Value):
    """A step that was measured, and what is predicted of it."""

    measured_s: float
    """As the file has it."""
    before_s: float
    """Predicted with the values in use now."""
    after_s: float
    """Predicted with the values that were found."""
    before_pct: float
    """Error before."""
    after_pct: float
    """Error after."""


class StepColumns(Value):
    """Iterations as columns."""

    step: tuple[int, ...]
    """Their numbers."""
    seconds: tuple[float, ...]
    """Their times."""


class IterationsFound(Value):
    """Iterations of a run."""

    steps: StepColumns
    """All of them."""
    statistics: Stability
    """How much their times vary."""


class FitFound(Value):
    """What a fit found."""

    name: str
    """The file."""
    source: str
    """What it is."""
    facts: dict[str, Any]
    """Short facts by name: rows, gpu, left_out, format, ..."""
    errors: tuple[ErrorRow, ...]
    """Errors of what was fitted."""
    values: tuple[ValueRow, ...]
    """Values that were found beside those in use."""
    step: StepFound | None
    """Of a log: the step; null: no step was measured."""
    iterations: IterationsFound | None
    """Of a log: its steps; null: there are none."""
    unknown: tuple[str, ...]
    """What stays as it was, and why."""
    untold: tuple[dict[str, Any], ...]
    """Coefficients on which the file has no data: field, error_pct, alternative, worth_pct."""
    next: tuple[str, ...]
    """The run that would help most, in words."""
    next_runs: tuple[dict[str, Any], ...]
    """Runs by how much they would narrow predictions: name, step_s, sd_before_pct, sd_after_pct."""
    profile: dict[str, Any] | None
    """An own profile of it, as `POST /calibrate/profiles` takes it; null: there is nothing to keep."""
    notices: tuple[dict[str, Any], ...]
    """What to bear in mind."""


class LinksFound(Value):
    """What timed collectives say of links."""

    name: str
    """The file."""
    rows: int
    """Rows that were used."""
    left_out: dict[str, int]
    """Rows by flag that were not."""
    fits: tuple[dict[str, Any], ...]
    """Latency and rate of every topology, with errors: `crosszone calibrate links --json`."""
    together: tuple[dict[str, Any], ...]
    """How much slower a group is when all of its kind run."""
    few: tuple[dict[str, Any], ...]
    """Topologies with too few sizes."""
    changes: tuple[dict[str, Any], ...]
    """What changes in the scenario; empty: none was given."""
    text: str | None
    """The scenario with measured links; null: none was given, or nothing of it was measured."""
    notices: tuple[dict[str, Any], ...]
    """What to bear in mind."""


class RunFound(Value):
    """A run as a file tells it, one iteration looked at."""

    name: str
    """What to call it."""
    kind: str
    """measured or sheet."""
    format: str
    """What the file is: benchmark, trace, kineto or sheet."""
    steps: StepColumns
    """All iterations."""
    statistics: Stability
    """How much their times vary."""
    step: int
    """The iteration that is shown."""
    phases_s: dict[str, float]
    """Its seconds by phase, those that the format has."""
    figures: dict[str, Any]
    """What is known of it."""
    meta: dict[str, Any]
    """What else the file says."""
    bad_rows: int
    """Rows that were left out because they are wrong; a file with some is shown, but not saved."""
    view: dict[str, Any] | None
    """The iteration to draw, as /timeline/measured answers it; null: nothing is known of what happened within."""
    predicted: dict[str, Any] | None
    """The predicted step to draw beside it; null: no scenario was given."""
    difference: dict[str, Any] | None
    """How far the prediction is from it, by phase and kind; null: no scenario was given."""
    notices: tuple[dict[str, Any], ...]
    """What was left out of the file, and what to bear in mind."""


def list_values(profile: OwnProfile, stack: str | None = None) -> tuple[ValueRow, ...]:
    """The values of a profile beside those that predictions use now.

    `stack`: the one that values of GPUs were found with; none: the first that they are for, or that the profile names.
    """
    profiles = Profiles.load()
    gpu_stack = stack or next(iter((*profile.for_stacks, *profile.stacks)), GENERIC)
    rows = []
    for name, coefficients in profile.gpus.items():
        family = profiles.find_family(catalogue().gpu(name))[0]
        rows += _build_value_rows(name, coefficients, profiles.coefficients([family], [gpu_stack]))
    for name, coefficients in profile.stacks.items():
        rows += _build_value_rows(name, coefficients, profiles.coefficients([GENERIC], [name]))
    return tuple(rows)


def _build_value_rows(home: str, coefficients: dict[str, Any], current: Any) -> list[ValueRow]:
    return [
        ValueRow(
            home=home,
            field=field,
            before=float(np.ravel(getattr(current, field))[0]),
            after=coefficient.value,
            unit=UNITS.get(field, "s" if field.endswith("_s") else "ratio"),
            error_pct=round(100.0 * coefficient.error, 2),
            origin=coefficient.origin,
        )
        for field, coefficient in coefficients.items()
    ]
