"""Jobs of calibration, as workers do them: fitting samples, collectives and logs. Each answers JSON.

What is wrong with a file is told under the name the user gave it, not under the one it is kept by.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crosszone.cost.own_profiles import name_from
from crosszone.errors import InputError, Notice
from crosszone.inputs.scenario import Loaded
from crosszone.plan.search import CancelledError, Progress
from crosszone.web.answers import json_bytes
from crosszone.web.calibrate_source import Source
from crosszone.web.jobs import Cancelled

if TYPE_CHECKING:
    from crosszone.calibrate.single_run import SingleRunCalibration
    from crosszone.web.calibrate_found import ErrorRow, IterationsFound


def samples_job(
    source: Source, how: dict[str, Any], language: str, *, progress: Progress, cancelled: Cancelled
) -> bytes:
    """Kernel samples fitted: errors of every operator, and the values that the cost formulas take from them."""
    from crosszone.calibrate.operator_fit import read_samples
    from crosszone.calibrate.operator_profiles import fittable, fitted_profile, kept, own_profile
    from crosszone.web.calibrate_found import ErrorRow, FitFound, values_of

    tell = watched(progress, cancelled)
    tell("reading", 0, 0)
    with renamed(source):
        read = dataclasses.replace(read_samples([Path(source.path)], how["gpu"]), source=source.name)
        counted = _counted(tell, len(fittable(read)))
        made = fitted_profile(read, correction=how["correction"], progress=counted)
    profile = own_profile(made, name_from(made.gpu, "samples"))
    stay = [Notice(code="calibrate_kept", level="note", params={"fields": kept(made)})] if kept(made) else []
    found = FitFound(
        name=source.name,
        source=read.device,
        facts={
            "gpu": made.gpu,
            "rows": read.used,
            "operators": len(made.operators),
            "left_out": _counts(read.left_out),
        },
        errors=tuple(
            ErrorRow(
                name=key,
                samples=fit.samples,
                after_pct=fit.error_pct,
                median_pct=fit.median_pct,
                unseen_pct=fit.unseen_pct,
            )
            for key, fit in made.operators.items()
        ),
        values=values_of(profile),
        step=None,
        iterations=None,
        unknown=(*made.notes, *_said(stay, language)),
        untold=(),
        next=(),
        next_runs=(),
        profile=profile.model_dump(mode="json") if profile.gpus or profile.stacks else None,
        notices=(),
    )
    return json_bytes(found.model_dump(mode="json"))


def collectives_job(
    source: Source, scenario: tuple[str, str] | None, language: str, *, progress: Progress, cancelled: Cancelled
) -> bytes:
    """Timed collectives fitted; `scenario`: text and file of one whose links take the measured figures."""
    from crosszone.calibrate.collective_apply import apply_link_figures
    from crosszone.calibrate.collective_fit import derive_link_figures, fit_links, measure_concurrency, read_collectives
    from crosszone.web.calibrate_found import LinksFound

    tell = watched(progress, cancelled)
    tell("reading", 0, 2)
    with renamed(source):
        read = read_collectives(Path(source.path))
    fits, few = fit_links(read.rows)
    tell("reading", 1, 2)
    changed, notices = None, list[Notice]()
    if scenario is not None:
        try:
            changed = apply_link_figures(*scenario, derive_link_figures(fits))
            notices += changed.notices
        except InputError as error:
            notices += [dataclasses.replace(notice, level="warning") for notice in error.notices]
    found = LinksFound(
        name=source.name,
        rows=len(read.rows),
        left_out=dict(read.flagged),
        fits=tuple(fit.as_dict() for fit in fits),
        together=tuple(one.as_dict() for one in measure_concurrency(read.rows)),
        few=tuple(dataclasses.asdict(one) for one in few),
        changes=tuple(dataclasses.asdict(change) for change in changed.changes) if changed else (),
        text=changed.text if changed else None,
        notices=told(notices, source, language),
    )
    return json_bytes(found.model_dump(mode="json"))


def log_job(source: Source, loaded: Loaded, language: str, *, progress: Progress, cancelled: Cancelled) -> bytes:
    """What the log of one run teaches: its steps, the values that move, what stays unknown, the next run."""
    from crosszone.calibrate.single_run import calibrate_single_run
    from crosszone.web.calibrate_found import FitFound, StepFound, values_of

    tell = watched(progress, cancelled)
    tell("reading", 0, 1)
    with renamed(source):
        name = name_from(Path(source.name).stem)
        found = calibrate_single_run(Path(source.path), loaded.scenario, name=name, progress=tell)
        iterations = _iterations(Path(source.path), loaded, found.format, tell)
    measured, before, after = (one["step"] for one in (found.measured_s, found.before_s, found.after_s))
    apart = {code: [one for one in found.notices if one.code == code] for code in ("log_untold", "log_next_run")}
    rest = [one for one in found.notices if one.code not in (*apart, "log_moved")]
    answer = FitFound(
        name=source.name,
        source=found.profile.source,
        facts=_log_facts(found),
        errors=_part_errors(found, language),
        values=values_of(found.profile, found.stack),
        step=StepFound(
            measured_s=measured,
            before_s=before,
            after_s=after,
            before_pct=100.0 * (before / measured - 1.0),
            after_pct=100.0 * (after / measured - 1.0),
        ),
        iterations=iterations,
        unknown=_said(apart["log_untold"], language),
        untold=tuple(dataclasses.asdict(one) for one in found.untold),
        next=_said(apart["log_next_run"], language),
        next_runs=tuple(dataclasses.asdict(one) for one in found.next_runs),
        profile=found.profile.model_dump(mode="json") if found.profile.gpus or found.profile.stacks else None,
        notices=told(rest, source, language),
    )
    return json_bytes(answer.model_dump(mode="json"))


def _log_facts(found: SingleRunCalibration) -> dict[str, Any]:
    steady = found.steady
    facts: dict[str, Any] = {"format": found.format, "steps_used": steady.used, "steps": steady.of}
    facts |= {"warm_up": steady.warm_up, "outliers": steady.outliers}
    if found.memory_gib is not None:
        facts |= {"memory_measured": found.memory_gib[0], "memory_predicted": found.memory_gib[1]}
    return facts


def _part_errors(found: SingleRunCalibration, language: str) -> tuple[ErrorRow, ...]:
    """Errors of the parts that a log tells apart, before and after."""
    from crosszone.text import label
    from crosszone.web.calibrate_found import ErrorRow

    return tuple(
        ErrorRow(
            name=label(f"log_part_{part}", language),
            samples=found.steady.used,
            before_pct=100.0 * abs(found.before_s[part] / seconds - 1.0),
            after_pct=100.0 * abs(found.after_s[part] / seconds - 1.0),
        )
        for part, seconds in found.measured_s.items()
    )


def _iterations(path: Path, loaded: Loaded, form: str, tell: Progress) -> IterationsFound | None:
    """Steps of a log as it tells them; None of a profiler's trace, which is decoded once.

    A run that was started again tells some numbers twice: each time counts.
    """
    from crosszone.calibrate.log_formats import KINETO, read_log
    from crosszone.calibrate.stability import measure_stability
    from crosszone.calibrate.training_log import LogContext
    from crosszone.predict.answer import predictor_of
    from crosszone.web.calibrate_found import IterationsFound, StepColumns

    if form == KINETO:
        return None
    case = predictor_of(loaded)
    job, gpus = case.case.job, case.strategy.ranks
    given = LogContext(file=str(path), gpus=gpus, global_batch=job.global_batch, tokens_per_step=job.tokens_per_step)
    steps = read_log(path, given, form, progress=tell).steps
    numbers = tuple(at if one.step is None else one.step for at, one in enumerate(steps, 1))
    columns = StepColumns(step=numbers, seconds=tuple(one.seconds for one in steps))
    found = measure_stability(dict(enumerate(columns.seconds)))
    statistics = found.model_copy(update={"best_step": numbers[found.best_step]})
    return IterationsFound(steps=columns, statistics=statistics)


@contextmanager
def renamed(source: Source) -> Iterator[None]:
    """Around the reading of a file: refusals name it as the user does."""
    try:
        yield
    except InputError as error:
        raise type(error)(*(_renamed(notice, source) for notice in error.notices)) from None


def told(notices: Iterable[Notice], source: Source, language: str) -> tuple[dict[str, Any], ...]:
    """Notices on a file in a language, under the user's name for it."""
    return tuple(_renamed(notice, source).as_dict(language) for notice in notices)


def watched(progress: Progress, cancelled: Cancelled) -> Progress:
    """Progress that ends the work when it is no longer wanted."""

    def tell(what: str, done: int, of: int) -> None:
        progress(what, done, of)
        if cancelled():
            raise CancelledError

    return tell


def _renamed(notice: Notice, source: Source) -> Notice:
    own = Path(source.path).name

    def name(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return source.name if value == own else value.replace(source.path, source.name)

    params = {key: name(value) for key, value in notice.params.items()}
    return dataclasses.replace(notice, value=name(notice.value), file=name(notice.file), params=params)


def _said(notices: Sequence[Notice], language: str) -> tuple[str, ...]:
    return tuple(f"{one.message(language)} {one.hint(language)}".strip() for one in notices)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{key} {count}" for key, count in counts.items()) or "0"


def _counted(tell: Progress, of: int) -> Callable[[], None]:
    """To be called after each of so many pieces."""
    done = 0
    tell("fitting", 0, of)

    def one() -> None:
        nonlocal done
        done = min(done + 1, of)
        tell("fitting", done, of)

    return one
