"""A measured run as an imported file states it, ready to be shown, saved and compared with a prediction.

    imported = ImportedRun.from_trace(read_trace(text), name="run 7")
    imported.statistics.mean_to_min_pct           # how steady its iterations are
    imported.get_step("best").phases_s            # seconds from filling the pipeline to the end of the step
    store.results.add(**imported.to_result())     # a result among the saved ones

    compare_with_prediction(predicted, measured, pipeline=False)      # parts, each with the difference in %
    check_same_run(imported, predictor, measured, predicted)          # warnings, such as other micro-batches

Every format (a table of marks, a trace, a profiler's file, a workbook) becomes an `ImportedRun`. In a comparison time
is counted once: a stage is idle where nothing of its own runs, and nothing that counts as another part.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from crosszone.analyse.outcome import (
    Figures,
    build_headline,
    build_measured_outcome,
    compute_trace_figures,
    map_phase_seconds,
)
from crosszone.calibrate.kineto_events import measure_covered_s
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
    """Seconds by the phases of the format; they add up to the step, or there are none."""


class ImportedRun(Value):
    """A run as a file states it."""

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
    def from_trace(
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
        measured: MeasuredTimelines | None = None,
    ) -> ImportedRun:
        """What a trace says; `phases` by step are the format's own, `figures` what else is known of a step.

        Its figures are those of `chosen_step`; none: of the step of median length. [A30] `measured`: the trace as it
        was read row by row, where wrong rows were left out.
        """
        document = trace.model_dump(mode="json", exclude_none=True)
        measured = measured or read_measured(trace.to_json())
        seconds = {step.step: step.end_s - step.start_s for step in measured.steps}
        phases_by_step = {number: compute_phases(measured, number) for number in seconds} if phases is None else phases
        number = None if chosen_step is None else resolve_iteration(chosen_step, seconds)
        chosen = measured if number is None else _select_step(measured, number)
        step_figures, phases_s = compute_trace_figures(chosen)
        all_figures = step_figures.model_dump(mode="json", exclude_none=True) | (figures or {})
        return cls(
            name=(name or measured.name)[:MOST_NAME],
            kind=kind,
            figures=parse(Figures, all_figures, at=("figures",)).model_dump(mode="json", exclude_none=True),
            timeline=document,
            phases_s=map_phase_seconds(phases_s),
            steps=tuple(
                ImportedStep(step=s, seconds=t, phases_s=phases_by_step.get(s, {})) for s, t in seconds.items()
            ),
            statistics=measure_stability(seconds),
            notices=(*notices, *measured.notices),
            bad_rows=bad_rows + measured.bad,
            meta=dict(document.get("meta") or {}),
        )

    @property
    def seconds(self) -> dict[int, float]:
        """Times of the iterations by number."""
        return {step.step: step.seconds for step in self.steps}

    def get_step(self, which: str | int) -> ImportedStep:
        """The iteration by its number, or by `first`, `last` or `best`."""
        number = resolve_iteration(which, self.seconds)
        return next(step for step in self.steps if step.step == number)

    def drop_first(self, count: int) -> ImportedRun:
        """The same without its first iterations, which a run needs to warm up; one must be left."""
        remaining = self.steps[count:]
        if count < 0 or not remaining:
            params = {"limit": len(self.steps) - 1}
            raise InvalidError(Notice(code="must_be_at_most", field="skip", value=count, params=params))
        rows = {step.step for step in remaining}
        timeline = self.timeline
        if timeline is not None:
            timeline = {**timeline, "steps": [row for row in timeline.get("steps", ()) if row["step"] in rows]}
        statistics = measure_stability({step.step: step.seconds for step in remaining})
        return self.model_copy(update={"steps": remaining, "timeline": timeline, "statistics": statistics})

    def read_timelines(self) -> MeasuredTimelines:
        """Its trace, ready to be drawn; only for a run with a timeline."""
        return read_measured(json.dumps(self.timeline))

    def trim_timeline(self, step: int, max_bytes: int) -> ImportedRun:
        """The same with a timeline that takes at most so many bytes as it is stored; a notice says what is lost.

        Kept is all of it, else the iteration `step` alone, else nothing.
        """
        if self.timeline is None or self._measure_stored_bytes() <= max_bytes:
            return self
        notice_params = {"step": step, "count": len(self.steps), "limit_mib": round(max_bytes / 2**20, 1)}
        step_row = next((row for row in self.timeline.get("steps", ()) if row["step"] == step), None)
        if step_row is not None:
            spans = [
                span
                for span in self.timeline["spans"]
                if span["end_s"] > step_row["start_s"] and span["start_s"] < step_row["end_s"]
            ]
            notice = Notice(code="trace_kept_part", level="warning", params=notice_params)
            updates = {
                "timeline": {**self.timeline, "spans": spans, "steps": [step_row]},
                "notices": (*self.notices, notice),
            }
            trimmed = self.model_copy(update=updates)
            if trimmed._measure_stored_bytes() <= max_bytes:
                return trimmed
        notice = Notice(code="trace_kept_without", level="warning", params=notice_params)
        return self.model_copy(update={"timeline": None, "notices": (*self.notices, notice)})

    def _measure_stored_bytes(self) -> int:
        """Bytes of what is kept of a timeline: a trace in quotation marks, each of its own marks escaped."""
        return len(json.dumps(self._build_timeline(), separators=(",", ":")))

    def _build_timeline(self) -> dict[str, Any]:
        timeline: dict[str, Any] = {"phases_s": self.phases_s} if self.phases_s else {}
        return timeline if self.timeline is None else {**timeline, "trace": json.dumps(self.timeline)}

    def to_result(self, *, name: str | None = None, note: str = "", scenario: str | None = None) -> dict[str, Any]:
        """The run as keyword arguments of `Results.add`."""
        figures = parse(Figures, self.figures, at=("figures",))
        outcome = build_measured_outcome(figures, self.phases_s)
        return {
            "kind": self.kind,
            "name": name or self.name,
            "note": note,
            "scenario": scenario,
            "document": figures.model_dump(mode="json"),
            "headline": build_headline(outcome),
            "timeline": self._build_timeline() or None,
        }


def compute_phases(measured: MeasuredTimelines, number: int) -> dict[str, float]:
    """Seconds of the four phases of a step, as a timeline shows them. [S13]"""
    return map_phase_seconds(list_phases(measured.timeline(number)[0]))


def _select_step(measured: MeasuredTimelines, number: int) -> MeasuredTimelines:
    """The same run with one of its steps."""
    return dataclasses.replace(measured, steps=tuple(step for step in measured.steps if step.step == number))


SEND_KIND = KINDS.index("send")  # Sends between stages run beside the wait for them, which is the bubble
TOKENS_TOLERANCE = 0.02  # By how much tokens of a step may differ: rate and time in the file are rounded
COMPARED_FIELDS = ("micro_batch", "tp", "pp", "dp", "cp", "ep")  # Fields of a strategy that a trace may state
FORMAT_WITHOUT_COUNT = "benchmark.csv"  # The format whose marks do not count all micro-batches


def compare_with_prediction(predicted: Timeline, measured: Timeline, *, pipeline: bool) -> dict[str, Any]:
    """The difference [S15] with idle time counted once, and without the phases of a pipeline that there is not."""
    differences = compare_timelines(predicted, measured)
    kinds = [row for row in differences["kinds"] if row["part"] != IDLE]
    predicted_wait_s, measured_wait_s = compute_waiting_s(predicted), compute_waiting_s(measured)
    difference_s = predicted_wait_s - measured_wait_s
    percent = 100 * difference_s / measured_wait_s if measured_wait_s else (0.0 if not predicted_wait_s else None)
    row = {
        "part": IDLE,
        "predicted_s": predicted_wait_s,
        "measured_s": measured_wait_s,
        "difference_s": difference_s,
        "difference_pct": percent,
    }
    return {**differences, "kinds": [*kinds, row], "phases": differences["phases"] if pipeline else []}


def compute_waiting_s(timeline: Timeline) -> float:
    """Seconds in which the average stage waits and nothing beside the stages runs, but for sends between them."""
    on_stages = np.isin(timeline.lane, timeline.stages)
    beside_stages = ~on_stages & (timeline.kind != SEND_KIND)
    waits_s = []
    for stage in timeline.stages.tolist():
        is_covering = beside_stages | (timeline.lane == stage)
        covered = measure_covered_s(
            np.clip(timeline.start_s[is_covering], 0.0, timeline.step_s),
            np.clip(timeline.end_s[is_covering], 0.0, timeline.step_s),
        )
        waits_s.append(max(0.0, timeline.step_s - covered))
    return float(np.mean(waits_s)) if waits_s else 0.0


def check_same_run(
    imported: ImportedRun, predictor: Predictor, measured: Timeline, predicted: Timeline
) -> list[Notice]:
    """A warning for each thing that the trace has otherwise than the scenario."""
    job, meta = predictor.case.job, imported.meta
    stated: dict[str, tuple[Any, Any]] = {
        key: (meta.get(key), getattr(predictor.strategy, key, None)) for key in COMPARED_FIELDS
    }
    stated["seq_len"] = (meta.get("seq_len"), job.seq_len)
    stated["gpus"] = (imported.figures.get("gpus"), predictor.strategy.ranks)
    if meta.get("format") != FORMAT_WITHOUT_COUNT:
        stated["micro_batches"] = (_count_micro_batches(measured), _count_micro_batches(predicted))
    rate = imported.figures.get("tokens_per_s")
    tokens = None if rate is None else rate * imported.figures["step_time_s"]
    if tokens is not None and abs(tokens / job.tokens_per_step - 1.0) > TOKENS_TOLERANCE:
        stated["tokens_per_step"] = (round(tokens), job.tokens_per_step)
    return [
        Notice(
            code="trace_scenario_differs",
            level="warning",
            field=field,
            params={"measured": theirs, "predicted": ours},
        )
        for field, (theirs, ours) in stated.items()
        if isinstance(theirs, int) and isinstance(ours, int) and theirs != ours
    ]


def _count_micro_batches(timeline: Timeline) -> int | None:
    highest = int(timeline.micro_batch.max(initial=NONE))
    return None if highest == NONE else highest + 1
