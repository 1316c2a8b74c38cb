"""Request bodies: the models that several routes take, and how JSON becomes one, refused in the error shape of the API.

router = APIRouter(tags=["predict"], route_class=ApiRoute)

@router.post("/predict", openapi_extra=document_example(SCENARIO_EXAMPLE))
def predict_scenario(body: ScenarioBody, state: State, language: Language) -> Json: ...
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Self

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.value import Value, parse
from crosszone.web.refusals import refuse

NOT_ONE_OF = "not_one_of"  # A pydantic error of this type names the `allowed` values and the `nearest` one
BUDGET_S, MOST_S = 30.0, 300.0  # Seconds a search may take unless a request says otherwise, and at most
MOST_NAME = 1000  # Characters of a name that are read at all; the store says how many it keeps
FieldPath = Annotated[str, Field(max_length=500)]  # A path such as cluster.links[*].gbps; none is longer
# A body that every route which takes a scenario answers.
SCENARIO_EXAMPLE: dict[str, Any] = {
    "text": (
        "model: llama-2-7b\njob: {seq_len: 4096, global_batch: 256}\n"
        "cluster: {zones: [{name: here, nodes: [{count: 2, gpus: 8, gpu: a100-80gb-sxm, nic_gbps_per_gpu: 200}]}]}\n"
        "strategy: {tp: 2, pp: 1}\n"
    )
}


class StrategyOverride(BaseModel):
    """Framework, strategy and placement of a plan."""

    model_config = ConfigDict(extra="forbid", strict=True)

    framework: str | None = Field(default=None, max_length=100, description="Training framework.")
    strategy: dict[str, Any] = Field(description="Strategy, as a plan states it.")
    placement: dict[str, Any] | None = Field(default=None, description="Placement, as a plan states it.")


class ScenarioBody(BaseModel):
    """A scenario: its text, or its fields."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str | None = Field(default=None, description="The scenario as YAML or JSON text.")
    scenario: dict[str, Any] | None = Field(default=None, description="The scenario as an object.")
    way: StrategyOverride | None = Field(
        default=None, description="How a plan does it, put over what the scenario says itself."
    )

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.text is None) == (self.scenario is None):
            raise ValueError("text, scenario")  # exactly one of them
        return self

    @property
    def has_scenario(self) -> bool:
        """Whether there is a scenario; some bodies can do without."""
        return self.text is not None or self.scenario is not None


class FileBody(BaseModel):
    """A file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    file: str | None = Field(
        default=None, max_length=100, description="Id of a file that was handed in (/calibrate/files)."
    )
    content: str | None = Field(default=None, max_length=4_000_000, description="Or the text of the file itself.")
    name: str | None = Field(
        default=None, max_length=MOST_NAME, description="What the file is called; none: as it was handed in."
    )

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.file is None) == (self.content is None):
            raise ValueError("file, content")
        return self


class ChangeBody(ScenarioBody):
    """Fields to set."""

    changes: dict[FieldPath, Any] = Field(
        max_length=100, description="New values of fields, by path; null takes one out."
    )


class ApiRoute(APIRoute):
    """A route whose body is read strictly and refused in the error shape of the API.

    415 when it is not JSON by its type, 400 by its syntax, 422 by its fields: FastAPI answers 422 to all of them.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers a request: FastAPI's own handler, behind the reading of the body."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        model: type[BaseModel] = self.body_field.field_info.annotation  # type: ignore[assignment]

        async def handle_json(request: Request) -> Response:
            _check_type(request)
            parsed = JsonRequest(request.scope, request.receive, is_value=issubclass(model, Value))
            document = await parsed.json()
            try:
                return await handle(parsed)
            except RequestValidationError as error:
                if any(detail["loc"][0] != "body" for detail in error.errors()):
                    raise
                # Validated again, for an error of the house: it names limits and the nearest key.
                _check_body(model, document)
                raise

        return handle_json


class JsonRequest(Request):
    """A request whose JSON is read by pydantic's parser.

    Python's own ends in a RecursionError on deep nesting, and lets half surrogate pairs through, which no database and
    no UTF-8 can hold.
    """

    def __init__(self, scope: Scope, receive: Receive, *, is_value: bool) -> None:
        super().__init__(scope, receive)
        self._is_value = is_value

    async def json(self) -> Any:
        """The body; 400 when it is not JSON."""
        if not hasattr(self, "_document"):
            try:
                # Values are stored and sent as they came, so that NaN must not get in where any JSON may stand.
                self._document = from_json(await self.body(), allow_inf_nan=not self._is_value)
            except ValueError as error:
                raise refuse(400, "not_json", reason=str(error)) from None
        return self._document


def document_example(example: dict[str, Any]) -> dict[str, Any]:
    """The `openapi_extra` of a route: an example of its body."""
    return {"requestBody": {"content": {"application/json": {"example": example}}}}


def _check_body(model: type[BaseModel], document: Any) -> None:
    """Raise what is wrong with a body, if anything is."""
    if issubclass(model, Value):
        parse(model, document)
        return
    try:
        model.model_validate(document)
    except ValidationError as error:
        raise InvalidError(*(_build_notice(model, detail) for detail in error.errors(include_url=False))) from None


def _check_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise refuse(415, "not_json_type", field="Content-Type", value=kind)


def _build_notice(model: type[BaseModel], detail: Any) -> Notice:
    field = ".".join(str(step) for step in detail["loc"])
    codes = {"string_type": "must_be_text", "dict_type": "must_be_mapping", "model_type": "must_be_mapping"}
    if detail["type"] == "extra_forbidden":
        params = {"nearest": ", ".join(model.model_fields), "known": list(model.model_fields)}
        return Notice(code="unknown_key", field=field, value=field, params=params)
    if detail["type"] == NOT_ONE_OF:
        return Notice(code=NOT_ONE_OF, field=field, value=detail["input"], params=detail["ctx"])
    if detail["type"] in codes:
        return Notice(code=codes[detail["type"]], field=field or "body", value=detail["input"])
    if not detail["loc"]:
        return Notice(code="one_of_body", field="body", params={"keys": str(detail.get("ctx", {}).get("error", ""))})
    return Notice(code="not_valid", field=field, value=detail["input"])
