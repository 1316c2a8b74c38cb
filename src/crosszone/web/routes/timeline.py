"""Timelines: one step drawn, as a file, and beside a measured one."""

from __future__ import annotations

from typing import Any, Literal, Self

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from crosszone.errors import Notice
from crosszone.predict.answer import build_predictor_from
from crosszone.predict.predictor import Predictor
from crosszone.schedule.measured import MeasuredTimelines, format_spans_csv, read_measured
from crosszone.schedule.timeline import Timeline, build_micro_batch_view, build_view, compare_timelines
from crosszone.schedule.trace import format_perfetto_json
from crosszone.web.answers import Json, NoticeBody
from crosszone.web.body import SCENARIO_EXAMPLE, ApiRoute, ScenarioBody, document_example
from crosszone.web.language import Language
from crosszone.web.refusals import refuse
from crosszone.web.scenarios import RequestScenario
from crosszone.web.state import State

router = APIRouter(prefix="/timeline", tags=["timeline"], route_class=ApiRoute)

MOST_S = 1e18  # What every input is limited to, in any unit
MicroBatch = Field(default=None, ge=0, le=10_000_000, description="Also this micro-batch by itself, from 0.")
FromS = Field(default=0.0, ge=0, le=MOST_S, description="Draw spans from there on, s; for steps of very many spans.")
_EXAMPLE_TRACE = "lane,kind,start_s,end_s,micro_batch\nstage-0,forward,0,0.5,0\nstage-0,backward,0.5,1.5,0\n"
_FILES = {
    "content": {"application/json": {"schema": {"type": "object"}}, "text/csv": {"schema": {"type": "string"}}},
    "description": "The file.",
}


class TimelineOptions(BaseModel):
    """What to draw."""

    model_config = ConfigDict(extra="forbid", strict=True)

    micro_batch: int | None = MicroBatch
    from_s: float = FromS


class TimelineBody(TimelineOptions, ScenarioBody):
    """A scenario, and what to draw of it."""


class TraceBody(ScenarioBody):
    """What to write, and in which format."""

    format: Literal["perfetto", "crosszone", "csv"] = Field(
        default="perfetto", description="For ui.perfetto.dev, as measured traces are kept, or one row a span."
    )


class MeasuredBody(ScenarioBody):
    """A measured trace, which of its steps to draw, and optionally the scenario it is compared with."""

    trace: str = Field(description="The trace: JSON as /timeline/trace writes it (crosszone), or CSV.")
    step: int | None = Field(default=None, ge=0, le=10_000_000, description="Number of the step; none: the last.")
    micro_batch: int | None = MicroBatch
    from_s: float = FromS

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if self.text is not None and self.scenario is not None:
            raise ValueError("text, scenario")  # at most one of them
        return self


class LaneBody(BaseModel):
    """A lane and what it does; `parts` and `idle_s` add up to the step."""

    id: str
    name: str
    group: str = Field(description="stages, links, gradients, host, or as a trace calls it.")
    busy_s: float
    idle_s: float
    utilisation: float = Field(description="busy_s / step_s.")
    parts: dict[str, float] = Field(description="Seconds by kind.")


class WindowBody(BaseModel):
    """Which spans are drawn."""

    from_s: float
    to_s: float
    spans: int = Field(description="All spans of the step.")
    shown: int
    left_out: int = Field(description="Spans outside this window; ask with from_s = to_s for the next ones.")


class PhaseBody(BaseModel):
    """One phase of a step, and what the average stage does in it."""

    phase: str = Field(description="warm_up, steady, cool_down or tail.")
    start_s: float
    end_s: float
    seconds: float
    share: float
    busy_s: float
    idle_s: float
    exposed_s: float = Field(description="Time in which something communicates and no stage computes.")
    utilisation: float | None


class TotalBody(BaseModel):
    """What the average stage does, by kind."""

    kind: str
    seconds: float
    share: float


class ShareBody(BaseModel):
    """Seconds, and the share of the step."""

    seconds: float
    share: float


class SummaryBody(BaseModel):
    """The step, and of it what the average stage works and waits, and what exposed communication takes."""

    step: ShareBody
    busy: ShareBody
    idle: ShareBody
    exposed: ShareBody
    utilisation: float


class ViewBody(BaseModel):
    """A step to draw."""

    step_s: float
    summary: SummaryBody
    kinds: list[str]
    lanes: list[LaneBody]
    spans: dict[str, list[float]] = Field(description="Columns lane, kind, start_s, end_s, micro_batch, chunk.")
    bubbles: dict[str, list[float]] = Field(description="Columns lane, start_s, end_s: times a stage waits.")
    window: WindowBody
    phases: list[PhaseBody]
    totals: list[TotalBody]
    micro_batches: int
    micro_batch: dict[str, Any] | None = Field(description="The micro-batch asked for: spans, stages, links, usage.")


class PredictedStepBody(ViewBody):
    """A predicted step to draw."""

    name: str
    framework: str


class StepsBody(BaseModel):
    """The steps of a trace, as columns."""

    step: list[int]
    seconds: list[float]


class DifferenceRowBody(BaseModel):
    """One part of a step, predicted and measured."""

    part: str
    predicted_s: float
    measured_s: float
    difference_s: float
    difference_pct: float | None = Field(description="Predicted against measured; null where nothing was measured.")


class DifferenceBody(BaseModel):
    """A predicted step against a measured one."""

    step: DifferenceRowBody
    phases: list[DifferenceRowBody]
    kinds: list[DifferenceRowBody]
    lanes: list[DifferenceRowBody]


class MeasuredStepBody(ViewBody):
    """A measured step to draw, and how far the prediction is from it."""

    name: str
    step: int
    steps: StepsBody
    bad_rows: int
    notices: list[NoticeBody]
    difference: DifferenceBody | None


@router.post(
    "",
    response_model=PredictedStepBody,
    openapi_extra=document_example({**SCENARIO_EXAMPLE, "micro_batch": 0}),
)
def draw_step(body: TimelineBody, state: State, language: Language) -> Json:
    """Draw one step of a scenario with a strategy: lanes, spans, bubbles, phases, totals, one micro-batch."""
    return Json(draw_predicted(RequestScenario(state.reader, body, language), body))


@router.post(
    "/trace",
    response_class=Response,
    responses={200: _FILES},
    openapi_extra=document_example({**SCENARIO_EXAMPLE, "format": "perfetto"}),
)
def write_trace(body: TraceBody, state: State, language: Language) -> Response:
    """Write the step as a file: for a trace viewer, as measured traces are kept, or as a table."""
    predictor = build_predictor_from(state.reader.read(body))
    return _build_file(predictor, predictor.timeline(language), body.format)


@router.post(
    "/measured",
    response_model=MeasuredStepBody,
    openapi_extra=document_example({"trace": _EXAMPLE_TRACE}),
)
def draw_measured_step(body: MeasuredBody, state: State, language: Language) -> Json:
    """Draw one step of a measured trace; with a scenario, also its difference from the predicted step.

    Rows that cannot be used are told and left out.
    """
    if body.way is not None and not body.has_scenario:
        raise refuse(422, "one_of_body", field="body", keys="text, scenario")
    run = read_measured(body.trace)
    number = run.last if body.step is None else body.step
    timeline, cut_notices = run.timeline(number)
    difference = None
    if body.has_scenario:
        difference = compare_timelines(build_predictor_from(state.reader.read(body)).timeline(language), timeline)
    about = _describe_run(run, number, [*cut_notices, *run.notices], language)
    return Json({**about, **_build_view(timeline, body.micro_batch, body.from_s), "difference": difference})


def draw_predicted(request_scenario: RequestScenario, options: TimelineOptions) -> dict[str, Any]:
    """The predicted step to draw."""
    predictor = request_scenario.predictor
    view = _build_view(predictor.timeline(request_scenario.language), options.micro_batch, options.from_s)
    return {"name": predictor.name, "framework": predictor.framework.name, **view}


def _build_view(timeline: Timeline, micro_batch: int | None, from_s: float) -> dict[str, Any]:
    micro_batch_view = None if micro_batch is None else build_micro_batch_view(timeline, micro_batch)
    return {**build_view(timeline, from_s=from_s), "micro_batch": micro_batch_view}


def _describe_run(run: MeasuredTimelines, number: int, notices: list[Notice], language: str) -> dict[str, Any]:
    """What a measured run is called, its steps, and what was wrong with its rows."""
    steps = {"step": [step.step for step in run.steps], "seconds": [step.end_s - step.start_s for step in run.steps]}
    localized = [notice.as_dict(language) for notice in notices]
    return {"name": run.name, "step": number, "steps": steps, "bad_rows": run.bad, "notices": localized}


def _build_file(predictor: Predictor, timeline: Timeline, form: str) -> Response:
    """The step in one of the formats, to be kept."""
    if form == "csv":
        text = format_spans_csv(timeline)
    else:
        trace = timeline.to_trace(predictor.name, framework=predictor.framework.name)
        text = format_perfetto_json(trace) if form == "perfetto" else trace.to_json()
    ending = "csv" if form == "csv" else "json"
    headers = {"Content-Disposition": f'attachment; filename="timeline-{form}.{ending}"'}
    return Response(text, media_type="text/csv" if form == "csv" else "application/json", headers=headers)
