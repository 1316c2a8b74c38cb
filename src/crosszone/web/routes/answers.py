"""Answers: many parts about one scenario in one request, which is parsed, read and predicted once for all of them.

Each part answers what its own route answers; one that is refused says so and leaves the others alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args

from fastapi import APIRouter
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.analyse.answer import Part as AnalysisPart
from crosszone.analyse.answer import answer as analyse
from crosszone.analyse.bill import Bill
from crosszone.analyse.communication import CommunicationReport
from crosszone.analyse.compare import ResultComparison
from crosszone.analyse.explain import Explanation
from crosszone.analyse.radar import Radar
from crosszone.analyse.rating import Rating
from crosszone.analyse.suggest import Suggestions
from crosszone.analyse.what_if import Available
from crosszone.errors import InputError, InvalidError, Notice, StoreError
from crosszone.inputs.value import find_nearest_names
from crosszone.predict.prediction import Prediction
from crosszone.predict.ranks import build_ranks, list_rank_places
from crosszone.web.answers import (
    DescriptionBody,
    ErrorBody,
    Json,
    build_error_body,
    build_failure_body,
    document_errors,
)
from crosszone.web.body import NOT_ONE_OF, SCENARIO_EXAMPLE, ApiRoute, ScenarioBody, document_example
from crosszone.web.events import LINES, finish_job, stream_lines
from crosszone.web.jobs import analyse_job
from crosszone.web.language import Language
from crosszone.web.routes.analyse import is_quick
from crosszone.web.routes.plan import RadarOptions, draw_alternatives
from crosszone.web.routes.predict import (
    ExplainOptions,
    WhatIfFigures,
    WhatIfOptions,
    explain_predicted,
    predict_changes,
    predict_step,
    read_switches,
)
from crosszone.web.routes.ranks import PlacesBody, RanksBody
from crosszone.web.routes.results import CompareOptions, compare_alternatives
from crosszone.web.routes.scenarios import EditedBody, TextOnlyBody, edit_document
from crosszone.web.routes.timeline import PredictedStepBody, TimelineOptions, draw_predicted
from crosszone.web.scenarios import RequestScenario, describe_loaded
from crosszone.web.state import AppState, State

router = APIRouter(tags=["answers"], route_class=ApiRoute)

PartName = Literal[
    "predict", "describe", "edit", "written", "places", "ranks", "timeline", "micro_batch", "explain", "compare",
    "radar", "what_if", "switches", "traffic", "bill", "suggestions", "rating",
]  # fmt: skip
PARTS: tuple[PartName, ...] = get_args(PartName)  # In the order in which they are answered: quick ones first
ANALYSIS_PARTS: tuple[AnalysisPart, ...] = ("traffic", "bill", "suggestions", "rating")
# Of the scenario as it says itself, whatever `way` the request asks for; `edit` does not even need a good scenario.
WRITTEN_PARTS = ("describe", "written")
# Hundreds of predictions: a pause before them lets a request that a newer one has overtaken end without them.
SLOW_PARTS, SLOW_PAUSE_S = ("suggestions", "rating"), 0.1

Answered = TypeVar("Answered")
Options = TypeVar("Options", bound=BaseModel)


def _check_part(name: Any) -> Any:
    if name in PARTS:
        return name
    raise PydanticCustomError(
        NOT_ONE_OF, "{allowed}", {"allowed": list(PARTS), "nearest": find_nearest_names(str(name), PARTS)[:1]}
    )


class PartOptions(BaseModel):
    """What the routes of some parts take besides the scenario, by part."""

    model_config = ConfigDict(extra="forbid", strict=True)

    edit: TextOnlyBody | None = Field(default=None, description="The text to change so that it says the scenario.")
    timeline: TimelineOptions = Field(default=TimelineOptions(), description="What to draw.")
    micro_batch: TimelineOptions = Field(default=TimelineOptions(), description="What to draw in a second drawing.")
    explain: ExplainOptions | None = Field(default=None, description="Which figure to open.")
    compare: CompareOptions | None = Field(default=None, description="What to put beside each other.")
    radar: RadarOptions = Field(default=RadarOptions(), description="What to draw besides; families are not searched.")
    what_if: WhatIfOptions = Field(default=WhatIfOptions(), description="What to change.")
    switches: WhatIfOptions = Field(default=WhatIfOptions(), description="What is changed already.")


class AnswersBody(ScenarioBody):
    """A scenario, and the parts to answer about it."""

    parts: list[Annotated[PartName, BeforeValidator(_check_part)]] = Field(
        min_length=1, max_length=len(PARTS), description="What to answer."
    )
    options: PartOptions = Field(default=PartOptions(), description="What parts take besides the scenario.")


class PartAnswer(BaseModel, Generic[Answered]):
    """What a part answers, or why it has no answer."""

    answer: Answered | None = None
    error: ErrorBody | None = None


class AnswersDocument(BaseModel):
    """The parts that were asked for, each with what its own route answers."""

    predict: PartAnswer[Prediction] | None = Field(default=None, description="POST /predict.")
    describe: PartAnswer[DescriptionBody] | None = Field(
        default=None, description="POST /scenarios/describe, without `way`."
    )
    edit: PartAnswer[EditedBody] | None = Field(
        default=None, description="POST /scenarios/edit, with the scenario as it was sent."
    )
    written: PartAnswer[Prediction] | None = Field(default=None, description="POST /predict, without `way`.")
    places: PartAnswer[PlacesBody] | None = Field(default=None, description="POST /places.")
    ranks: PartAnswer[RanksBody] | None = Field(default=None, description="POST /ranks.")
    timeline: PartAnswer[PredictedStepBody] | None = Field(default=None, description="POST /timeline.")
    micro_batch: PartAnswer[PredictedStepBody] | None = Field(
        default=None, description="POST /timeline, a second drawing."
    )
    explain: PartAnswer[Explanation] | None = Field(default=None, description="POST /explain.")
    compare: PartAnswer[ResultComparison] | None = Field(
        default=None, description="POST /compare, of the one scenario."
    )
    radar: PartAnswer[Radar] | None = Field(default=None, description="POST /radar, without families.")
    what_if: PartAnswer[WhatIfFigures] | None = Field(default=None, description="POST /what-if.")
    switches: PartAnswer[tuple[Available, ...]] | None = Field(default=None, description="POST /what-if/switches.")
    traffic: PartAnswer[CommunicationReport] | None = Field(default=None, description="`traffic` of POST /analyse.")
    bill: PartAnswer[Bill] | None = Field(default=None, description="`bill` of POST /analyse.")
    suggestions: PartAnswer[Suggestions] | None = Field(default=None, description="`suggestions` of POST /analyse.")
    rating: PartAnswer[Rating] | None = Field(default=None, description="`rating` of POST /analyse.")


_STREAMED: dict[str, Any] = {
    LINES: {
        "schema": {"type": "string"},
        "example": '{"part": "predict", "answer": {"name": "x"}}\n{"part": "explain", "error": {"code": "y"}}\n',
    }
}


@router.post(
    "/answers",
    response_model=AnswersDocument,
    responses={200: {"content": _STREAMED}, **document_errors(409)},
    openapi_extra=document_example({**SCENARIO_EXAMPLE, "parts": ["predict", "timeline"]}),
)
async def answer_parts(body: AnswersBody, request: Request, state: State, language: Language) -> Response:
    """Answer several parts about one scenario; each is {answer} as its route has it, or {error}.

    With `Accept: application/x-ndjson` each part is a line of its own, {part, answer} or {part, error}, sent when it
    is there, quick ones first. A scenario that no part can do with is refused as a whole.
    """
    request_scenario = RequestScenario(state.reader, body, language)
    await run_in_threadpool(_refuse_unreadable, request_scenario, body.parts)
    if LINES in request.headers.get("accept", ""):
        lines = ({"part": name, **part} async for name, part in _answer_each(request, state, request_scenario, body))
        return stream_lines(request, lines)
    return Json({name: part async for name, part in _answer_each(request, state, request_scenario, body)})


def _refuse_unreadable(request_scenario: RequestScenario, parts: Iterable[PartName]) -> None:
    """Raise why the scenario cannot be read, where none of the parts can be answered for that."""
    errors = []
    for variant in {_select_scenario(name, request_scenario): name for name in parts if name != "edit"}:
        try:
            _ = variant.loaded
        except InputError as error:
            errors.append(error)
        else:
            return
    if errors and "edit" not in parts:
        raise errors[0]


def _select_scenario(name: PartName, request_scenario: RequestScenario) -> RequestScenario:
    return request_scenario.as_written if name in WRITTEN_PARTS else request_scenario


async def _answer_each(
    request: Request, state: AppState, request_scenario: RequestScenario, body: AnswersBody
) -> AsyncIterator[tuple[PartName, dict[str, Any]]]:
    """The parts one after another, until the one who asked hangs up."""
    paused = False
    for name in PARTS:
        if name not in body.parts:
            continue
        if name in SLOW_PARTS and not paused:
            paused = True
            await asyncio.sleep(SLOW_PAUSE_S)
        if await request.is_disconnected():
            return
        yield name, await _answer_part(request, state, request_scenario, name, body.options)


async def _answer_part(
    request: Request, state: AppState, request_scenario: RequestScenario, name: PartName, options: PartOptions
) -> dict[str, Any]:
    """One part: its answer, or the error that its own route answers."""
    try:
        if name in ANALYSIS_PARTS:
            return {"answer": await _analyse_part(request, state, request_scenario, name)}
        return {"answer": await run_in_threadpool(_compute_part, state, request_scenario, name, options)}
    except (InputError, StoreError) as error:
        return {"error": build_error_body(error.notices, request_scenario.language)}
    except Exception as error:
        return {"error": build_failure_body(request, error)}


async def _analyse_part(
    request: Request, state: AppState, request_scenario: RequestScenario, name: AnalysisPart
) -> Any:
    """One part of an analysis, done by a worker where the cluster makes it long."""
    predicted = await run_in_threadpool(lambda: request_scenario.predicted)
    if is_quick(name, request_scenario.loaded):
        analysed = await run_in_threadpool(
            analyse, request_scenario.loaded, request_scenario.language, parts=[name], base=predicted
        )
        return analysed.analysis.to_asked()[name]
    options = {"parts": [name]}
    return json.loads(
        await finish_job(
            request, state.workers, analyse_job, request_scenario.loaded, options, request_scenario.language
        )
    )[name]


def _compute_part(state: AppState, request_scenario: RequestScenario, name: PartName, options: PartOptions) -> Any:
    compute: dict[PartName, Callable[[], Any]] = {
        "predict": lambda: predict_step(request_scenario),
        "describe": lambda: describe_loaded(request_scenario.as_written.loaded, request_scenario.language),
        "edit": lambda: edit_document(request_scenario.document, _require(options.edit, "edit", "text").text),
        "written": lambda: predict_step(request_scenario.as_written),
        "places": lambda: list_rank_places(request_scenario.predictor),
        "ranks": lambda: build_ranks(request_scenario.predictor, request_scenario.language),
        "timeline": lambda: draw_predicted(request_scenario, options.timeline),
        "micro_batch": lambda: draw_predicted(request_scenario, options.micro_batch),
        "explain": lambda: explain_predicted(request_scenario, _require(options.explain, "explain", "figure")),
        "compare": lambda: compare_alternatives(state, request_scenario, _require(options.compare, "compare", "items")),
        "radar": lambda: draw_alternatives(request_scenario, options.radar),
        "what_if": lambda: predict_changes(request_scenario, options.what_if),
        "switches": lambda: read_switches(request_scenario, options.switches),
    }
    return compute[name]()


def _require(options: Options | None, name: PartName, key: str) -> Options:
    """The options of a part that cannot do without."""
    if options is None:
        raise InvalidError(Notice(code="missing_key", field=f"options.{name}.{key}", params={"key": key}))
    return options
