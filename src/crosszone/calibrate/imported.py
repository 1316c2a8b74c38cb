"""Imported: what a file that was brought in says of a run, ready to be shown, compared and saved.

    found = ImportedRun.of_trace(read_trace(text), name="run 7")
    found.statistics.mean_to_min_pct           # how steady its iterations are
    found.at("best").phases_s                  # seconds from filling the pipeline to the end of the step
    store.results.add(**found.kept())          # a result among the saved ones

Whatever the format (a table of marks, a trace, a profiler's file, a workbook) this is what is left of it.

A measured run beside the predicted step of a scenario: what of both is compared, and whether they are one run.

    compare_with_prediction(predicted, measured, pipeline=False)         # parts, each with the difference in %
    check_same_run(found, predictor, measured, predicted)   # the trace has other micro-batches than the scenario

Time is counted once: a stage is idle where nothing of its own runs, and nothing that is told as another part.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from crosszone.analyse.outcome import Figures, figures_of, headline_of, outcome_of_figures, seconds_of
from crosszone.calibrate.kineto_events import total_s
from crosszone.calibrate.stability import Stability, measure_stability, resolve_iteration
from crosszone.errors import InvalidError, Notice
from crosszone.inputs.value import Name, NotNegative, Positive, Value, parse
from crosszone.schedule.measured import MeasuredTimelines, read_measured
from crosszone.schedule.timeline import IDLE, KINDS, NONE, Timeline, compare_timelines, list_phases
from crosszone.schedule.trace import Index, Trace

if TYPE_CHECKING:
    from crosszone.predict.predictor import Predictor


MOST_NAME = 100


class ImportedStep(Value):
    """One iteration."""

    step: Index
    """Its number in the file."""
    seconds: Positive
    """How long it took."""
    phases_s: dict[str, NotNegative] = Field(default_factory=dict)
    """Seconds by phase, as the format tells them apart; they add up to the step, or it has none."""


class ImportedRun(Value):
    """A run as a file tells it."""

    name: Name
    """What to call it."""
    kind: Literal["sheet", "measured"]
    """Where its numbers come from."""
    figures: dict[str, Any]
    """What is known of a step, as `outcome.Figures` takes it; never without `step_time_s`."""
    timeline: dict[str, Any] | None = None
    """A trace document (`schedule/trace.py`); null: nothing is known of what happened within a step."""
    phases_s: dict[str, NotNegative] = Field(default_factory=dict)
    """Seconds of warm_up, steady, cool_down and tail of the step that `figures` are of; empty: not known."""
    steps: Annotated[tuple[ImportedStep, ...], Field(min_length=1)]
    """All iterations, in their order."""
    statistics: Stability
    """How steady they are."""
    notices: tuple[Notice, ...] = ()
    """What was left out of the file, and what to bear in mind."""
    bad_rows: Annotated[int, Field(ge=0)] = 0
    """Rows that were left out because they are wrong: a file with some is shown, but not saved."""
    meta: dict[str, Any] = Field(default_factory=dict)
    """What else the file says: model, degrees, device, versions, ..."""

    @classmethod
    def of_trace(
        cls,
        trace: Trace,
        *,
        name: str | None = None,
        kind: Literal["sheet", "measured"] = "measured",
        phases: dict[int, dict[str, float]] | None = None,
        figures: dict[str, Any] | None = None,
        notices: tuple[Notice, ...] = (),
        bad_rows: int = 0,
        chosen_step: str | int | None = None,
    ) -> ImportedRun:
        """What a trace says; `phases` by step are the format's own, `figures` what else is known of a step."""
        document = trace.model_dump(mode="json", exclude_none=True)
        measured = read_measured(trace.to_json())
        return cls.of_measured(
            measured,
            document,
            name=name,
            kind=kind,
            phases=phases,
            figures=figures,
            notices=notices,
            bad_rows=bad_rows,
            chosen_step=chosen_step,
        )

    @classmethod
    def of_measured(
        cls,
        measured: MeasuredTimelines,
        document: dict[str, Any],
        *,
        name: str | None = None,
        kind: Literal["sheet", "measured"] = "measured",
        phases: dict[int, dict[str, float]] | None = None,
        figures: dict[str, Any] | None = None,
        notices: tuple[Notice, ...] = (),
        bad_rows: int = 0,
        chosen_step: str | int | None = None,
    ) -> ImportedRun:
        """What a trace that was read row by row says; `document` is what of it is kept as its timeline.

        Its figures are those of `chosen_step`; none: of the step of median length. [A30]
        """
        seconds = {step.step: step.end_s - step.start_s for step in measured.steps}
        own = {number: phases_within(measured, number) for number in seconds} if phases is None else phases
        at = None if chosen_step is None else resolve_iteration(chosen_step, seconds)
        only = measured if at is None else _one_step(measured, at)
        found, lasting = figures_of(only)
        known = found.model_dump(mode="json", exclude_none=True) | (figures or {})
        return cls(
            name=(name or measured.name)[:MOST_NAME],
            kind=kind,
            figures=parse(Figures, known, at=("figures",)).model_dump(mode="json", exclude_none=True),
            timeline=document,
            phases_s=seconds_of(lasting),
            steps=tuple(ImportedStep(step=s, seconds=t, phases_s=own.get(s, {})) for s, t in seconds.items()),
            statistics=measure_stability(seconds),
            notices=(*notices, *measured.notices),
            bad_rows=bad_rows + measured.bad,
            meta=dict(document.get("meta") or {}),
        )

    @property
    def seconds(self) -> dict[int, float]:
        """Times of the iterations by number."""
        return {one.step: one.seconds for one in self.steps}

    def at(self, word: str | int) -> ImportedStep:
        """The iteration that is called `first`, `last`, `best` or by its number."""
        number = resolve_iteration(word, self.seconds)
        return next(one for one in self.steps if one.step == number)

    def skipping(self, count: int) -> ImportedRun:
        """The same without its first iterations, which a run needs to warm up; one must be left."""
        left = self.steps[count:]
        if count < 0 or not left:
            params = {"limit": len(self.steps) - 1}
            raise InvalidError(Notice(code="must_be_at_most", field="skip", value=count, params=params))
        rows = {one.step for one in left}
        timeline = self.timeline
        if timeline is not None:
            timeline = {**timeline, "steps": [row for row in timeline.get("steps", ()) if row["step"] in rows]}
        statistics = measure_stability({one.step: one.seconds for one in left})
        return self.model_copy(update={"steps": left, "timeline": timeline, "statistics": statistics})

    def measured(self) -> MeasuredTimelines:
        """Its trace, ready to be drawn; only where there is one."""
        return read_measured(json.dumps(self.timeline))

    def bounded(self, step: int, most: int) -> ImportedRun:
        """The same with a timeline that takes at most so many bytes as it is stored; a notice says what is lost.

        Kept is all of it, else the iteration `step` alone, else nothing.
        """
        if self.timeline is None or self._stored() <= most:
            return self
        about = {"step": step, "count": len(self.steps), "limit_mib": round(most / 2**20, 1)}
        at = next((one for one in self.timeline.get("steps", ()) if one["step"] == step), None)
        if at is not None:
            spans = [
                one for one in self.timeline["spans"] if one["end_s"] > at["start_s"] and one["start_s"] < at["end_s"]
            ]
            told = Notice(code="trace_kept_part", level="warning", params=about)
            part = {"timeline": {**self.timeline, "spans": spans, "steps": [at]}, "notices": (*self.notices, told)}
            short = self.model_copy(update=part)
            if short._stored() <= most:
                return short
        told = Notice(code="trace_kept_without", level="warning", params=about)
        return self.model_copy(update={"timeline": None, "notices": (*self.notices, told)})

    def _stored(self) -> int:
        """Bytes of what is kept of a timeline: a trace in quotation marks, each of its own marks escaped."""
        return len(json.dumps(self._timeline(), separators=(",", ":")))

    def _timeline(self) -> dict[str, Any]:
        kept: dict[str, Any] = {"phases_s": self.phases_s} if self.phases_s else {}
        return kept if self.timeline is None else {**kept, "trace": json.dumps(self.timeline)}

    def kept(self, *, name: str | None = None, note: str = "", scenario: str | None = None) -> dict[str, Any]:
        """What `Results.add` takes."""
        figures = parse(Figures, self.figures, at=("figures",))
        outcome = outcome_of_figures(figures, self.phases_s)
        return {
            "kind": self.kind,
            "name": name or self.name,
            "note": note,
            "scenario": scenario,
            "document": figures.model_dump(mode="json"),
            "headline": headline_of(outcome),
            "timeline": self._timeline() or None,
        }


def phases_within(measured: MeasuredTimelines, number: int) -> dict[str, float]:
    """Seconds of the four phases of a step, as a timeline shows them. [S13]"""
    return seconds_of(list_phases(measured.timeline(number)[0]))


def _one_step(measured: MeasuredTimelines, number: int) -> MeasuredTimelines:
    """The same run with one of its steps."""
    return dataclasses.replace(measured, steps=tuple(step for step in measured.steps if step.step == number))


SENDS = KINDS.index("send")  # Sends between stages run beside the wait for them, which is the bubble
NEAR = 0.02  # Share by which tokens of a step may differ: both are rounded
SAME = ("micro_batch", "tp", "pp", "dp", "cp", "ep")  # Fields of a strategy that a trace may state
WITHOUT_MARKS = "benchmark.csv"  # The format whose marks do not count all micro-batches


def compare_with_prediction(predicted: Timeline, measured: Timeline, *, pipeline: bool) -> dict[str, Any]:
    """The difference [S15] with idle time counted once, and without the phases of a pipeline that there is not."""
    found = compare_timelines(predicted, measured)
    kinds = [row for row in found["kinds"] if row["part"] != IDLE]
    ours, theirs = waiting_s(predicted), waiting_s(measured)
    above = ours - theirs
    percent = 100 * above / theirs if theirs else (0.0 if not ours else None)
    row = {"part": IDLE, "predicted_s": ours, "measured_s": theirs, "difference_s": above, "difference_pct": percent}
    return {**found, "kinds": [*kinds, row], "phases": found["phases"] if pipeline else []}


def waiting_s(timeline: Timeline) -> float:
    """Seconds in which the average stage waits and nothing beside the stages runs, but for sends between them."""
    on_stages = np.isin(timeline.lane, timeline.stages)
    others = ~on_stages & (timeline.kind != SENDS)
    left = []
    for stage in timeline.stages.tolist():
        here = others | (timeline.lane == stage)
        covered = total_s(
            np.clip(timeline.start_s[here], 0.0, timeline.step_s), np.clip(timeline.end_s[here], 0.0, timeline.step_s)
        )
        left.append(max(0.0, timeline.step_s - covered))
    return float(np.mean(left)) if left else 0.0


def check_same_run(found: ImportedRun, predictor: Predictor, measured: Timeline, predicted: Timeline) -> list[Notice]:
    """A warning for each thing that the trace has otherwise than the scenario."""
    job, meta = predictor.case.job, found.meta
    told: dict[str, tuple[Any, Any]] = {key: (meta.get(key), getattr(predictor.strategy, key, None)) for key in SAME}
    told["seq_len"] = (meta.get("seq_len"), job.seq_len)
    told["gpus"] = (found.figures.get("gpus"), predictor.strategy.ranks)
    if meta.get("format") != WITHOUT_MARKS:
        told["micro_batches"] = (_micro_batches(measured), _micro_batches(predicted))
    rate = found.figures.get("tokens_per_s")
    tokens = None if rate is None else rate * found.figures["step_time_s"]
    if tokens is not None and abs(tokens / job.tokens_per_step - 1.0) > NEAR:
        told["tokens_per_step"] = (round(tokens), job.tokens_per_step)
    return [
        Notice(
            code="trace_scenario_differs",
            level="warning",
            field=field,
            params={"measured": theirs, "predicted": ours},
        )
        for field, (theirs, ours) in told.items()
        if isinstance(theirs, int) and isinstance(ours, int) and theirs != ours
    ]


def _micro_batches(timeline: Timeline) -> int | None:
    most = int(timeline.micro_batch.max(initial=NONE))
    return None if most == NONE else most + 1
