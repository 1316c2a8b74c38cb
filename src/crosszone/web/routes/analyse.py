"""Analyses and reports: where the bytes of a step go, what would help, what it costs, how sure it is; as a document."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from crosszone.analyse.answer import PARTS, QUICK, Analysis, Part, answer
from crosszone.inputs.scenario import Loaded
from crosszone.views.report import Form
from crosszone.web.answers import Json, document_errors
from crosszone.web.body import BUDGET_S, MOST_S, SCENARIO_EXAMPLE, ApiRoute, ScenarioBody, document_example
from crosszone.web.events import JOB_RESPONSES, STREAMED, run_job
from crosszone.web.jobs import analyse_job, render_report_job
from crosszone.web.language import Language
from crosszone.web.saved import build_attachment_header
from crosszone.web.state import State

router = APIRouter(route_class=ApiRoute)

MOST_GROUPS = 16  # Node groups up to which suggestions and ratings, hundreds of predictions, are quick
_TYPES = {"md": "text/markdown", "html": "text/html"}
_TEXT = {media_type: {"schema": {"type": "string"}} for media_type in _TYPES.values()}


class AnalyseBody(ScenarioBody):
    """What to analyse, and which parts to answer."""

    parts: list[Part] = Field(default=list(QUICK), min_length=1, max_length=len(PARTS), description="What to answer.")
    plans: bool = Field(default=False, description="Also suggest other plans.")
    zone_failures_per_year: float = Field(default=0.0, ge=0, le=1000, description="How often a zone is lost.")
    checkpoint_zone: str | None = Field(default=None, max_length=200, description="Only zone that keeps checkpoints.")

    def options(self) -> dict[str, Any]:
        """The options of the analysis."""
        return self.model_dump(include={"parts", "plans", "zone_failures_per_year", "checkpoint_zone"})


class ReportBody(ScenarioBody):
    """What to report, and in which form."""

    format: Form = Field(default="md", description="Markdown, or one HTML file.")
    budget_s: float = Field(default=BUDGET_S, gt=0, le=MOST_S, description="The search for plans ends after that.")


@router.post(
    "/analyse",
    tags=["analyse"],
    response_model=Analysis,
    responses=JOB_RESPONSES,
    openapi_extra=document_example({**SCENARIO_EXAMPLE, "parts": ["traffic", "suggestions"]}),
)
async def analyse_scenario(body: AnalyseBody, request: Request, state: State, language: Language) -> Response:
    """Analyse a scenario, or its best plan where it has no strategy: what `crosszone analyse --json` prints."""
    loaded = await run_in_threadpool(state.reader.read, body)
    quick = set(body.parts) <= set(QUICK) and loaded.scenario.strategy is not None and not body.plans
    quick = quick and all(is_quick(part, loaded) for part in body.parts)
    if not quick:
        return await run_job(request, state.workers, analyse_job, loaded, body.options(), language)
    # Quick parts are answered here: they are done before a worker that is busy with a search would be free.
    answered = await run_in_threadpool(answer, loaded, language, **body.options())
    return Json(answered.analysis.to_asked())


def is_quick(part: Part, loaded: Loaded) -> bool:
    """Whether a part that needs no planning is done before a worker would be free."""
    return part == "traffic" or len(list(loaded.scenario.cluster.zone_groups)) <= MOST_GROUPS


@router.post(
    "/report",
    tags=["report"],
    response_class=Response,
    responses={
        200: {"content": {**_TEXT, **STREAMED}, "description": "The report, to be saved."},
        **document_errors(409),
    },
    openapi_extra=document_example({**SCENARIO_EXAMPLE, "format": "html"}),
)
async def report_scenario(body: ReportBody, request: Request, state: State, language: Language) -> Response:
    """Report a scenario, or its best plan where it has no strategy: what `crosszone report` writes."""
    loaded = await run_in_threadpool(state.reader.read, body)
    options = {"form": body.format, "budget_s": body.budget_s}
    response = await run_job(request, state.workers, render_report_job, loaded, options, language)
    if isinstance(response, StreamingResponse):
        return response
    text = json.loads(bytes(response.body))["text"]
    # A file to be saved, never shown by this server: its policy allows no style inside a page.
    headers = build_attachment_header(loaded.scenario.name, body.format, "report")
    return Response(text.encode("utf-8", "replace"), media_type=_TYPES[body.format], headers=headers)
