"""Request bodies: JSON, checked against a model, refused with the error shape of the API."""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json
from starlette.requests import Request

from crosszone.analyse.answer import PARTS, QUICK, Part
from crosszone.analyse.sweep import MARGIN
from crosszone.analyse.sweep_cells import Mode
from crosszone.deploy.settings import LaunchSettings
from crosszone.errors import InvalidError, Notice
from crosszone.inputs.schema import json_schema
from crosszone.inputs.value import Value, parse
from crosszone.plan.plan import Objective
from crosszone.plan.planner import MAX_TOP
from crosszone.views.report import Form
from crosszone.web.refusals import refused

B = TypeVar("B", bound=BaseModel)
V = TypeVar("V", bound=Value)
BUDGET_S, MOST_S = 30.0, 300.0  # Seconds a search may take unless a request says otherwise, and at most
FieldPath = Annotated[str, Field(max_length=500)]  # A path such as cluster.links[*].gbps; none is longer
# A body that every route which takes a scenario answers.
EXAMPLE: dict[str, Any] = {
    "text": (
        "model: llama-2-7b\njob: {seq_len: 4096, global_batch: 256}\n"
        "cluster: {zones: [{name: here, nodes: [{count: 2, gpus: 8, gpu: a100-80gb-sxm, nic_gbps_per_gpu: 200}]}]}\n"
        "strategy: {tp: 2, pp: 1}\n"
    )
}


class Way(BaseModel):
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
    way: Way | None = Field(default=None, description="How a plan does it, put over what the scenario says itself.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.text is None) == (self.scenario is None):
            raise ValueError("text, scenario")  # exactly one of them
        return self


class PlanBody(ScenarioBody):
    """What to plan, and how."""

    objective: Objective = Field(default="time", description="What to rank by.")
    top: int = Field(default=5, ge=1, le=MAX_TOP, description="Plans to answer.")
    pins: dict[str, Any] = Field(default={}, max_length=100, description="Parts of the strategy to keep, by key.")
    front: bool = Field(default=False, description="Also what fewer GPUs cost: time against $.")
    crossover: bool = Field(default=False, description="Also the rate between zones at which local updates win.")
    budget_s: float = Field(default=BUDGET_S, gt=0, le=MOST_S, description="The search ends after that, and says so.")

    def how(self) -> dict[str, Any]:
        """What the planner is told."""
        return self.model_dump(include={"objective", "top", "front", "crossover", "budget_s"})


class AnalyseBody(ScenarioBody):
    """What to analyse, and which parts to answer."""

    parts: list[Part] = Field(default=list(QUICK), min_length=1, max_length=len(PARTS), description="What to answer.")
    plans: bool = Field(default=False, description="Also suggest other plans.")
    zone_failures_per_year: float = Field(default=0.0, ge=0, le=1000, description="How often a zone is lost.")
    checkpoint_zone: str | None = Field(default=None, max_length=200, description="Only zone that keeps checkpoints.")

    def how(self) -> dict[str, Any]:
        """What the analysis is told."""
        return self.model_dump(include={"parts", "plans", "zone_failures_per_year", "checkpoint_zone"})


class ChangeBody(ScenarioBody):
    """Fields to set."""

    changes: dict[FieldPath, Any] = Field(
        max_length=100, description="New values of fields, by path; null takes one out."
    )


class WhatIfBody(ScenarioBody):
    """Fields to change and switches to turn."""

    changes: dict[FieldPath, Any] = Field(default={}, max_length=100, description="New values of fields, by path.")
    switches: dict[str, Any] = Field(default={}, max_length=50, description="New values of switches, by name.")


class SweepBody(ScenarioBody):
    """Fields to vary, and how."""

    x: str = Field(max_length=2000, description="FIELD=RANGE, e.g. cluster.links[*].gbps=1:100:log20.")
    y: str | None = Field(default=None, max_length=2000, description="A second field: a heat map.")
    objective: Objective = Field(default="time", description="What plans are ranked by.")
    mode: Mode = Field(default="plan", description="Plan anew, or predict the scenario's own strategy.")
    free: bool = Field(default=False, description="Leave the scenario's strategy out.")
    local_updates: bool = Field(default=True, description="Also plans in which zones average now and then.")
    margin: float = Field(default=MARGIN, ge=0, le=1, description="What those must gain to be taken.")

    def how(self) -> dict[str, Any]:
        """What the sweep is told."""
        return self.model_dump(include={"objective", "mode", "free", "local_updates", "margin"})


class ReportBody(ScenarioBody):
    """What to report, and in which form."""

    format: Form = Field(default="md", description="Markdown, or one HTML file.")
    budget_s: float = Field(default=BUDGET_S, gt=0, le=MOST_S, description="The search for plans ends after that.")


class BundleBody(ScenarioBody):
    """What to make a bundle of, for which framework, started by what."""

    framework: str | None = Field(default=None, max_length=100, description="Framework; null: the plan's own.")
    launcher: str = Field(default="nodes", max_length=100, description="What starts the nodes.")
    settings: dict[str, Any] = Field(
        default={},
        max_length=100,
        description="What no plan knows: ports, folders, images; see /bundles/choices.",
    )
    template: bool = Field(default=False, description="Leave addresses that are missing to be filled in later.")
    budget_s: float = Field(default=BUDGET_S, gt=0, le=MOST_S, description="The search for a plan ends after that.")

    def how(self) -> dict[str, Any]:
        """What the bundle is made by; `InvalidError` for settings that cannot be."""
        settings = parse(LaunchSettings, self.settings, at=("settings",))
        return {**self.model_dump(include={"framework", "launcher", "template", "budget_s"}), "settings": settings}


async def read_body(request: Request, model: type[B]) -> B:
    """The body of a request as a `model`: 415 when it is not JSON by its type, 400 by its syntax, 422 by its fields."""
    _check_type(request)
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as error:
        details = error.errors(include_url=False)
        if details[0]["type"] == "json_invalid":
            reason = str(details[0].get("ctx", {}).get("error", ""))
            raise refused(400, "not_json", reason=reason) from None
        raise InvalidError(*(_notice(model, detail) for detail in details)) from None


async def read_value(request: Request, model: type[V]) -> V:
    """The body of a request as a value of the house, whose errors tell limits and names: statuses as of `read_body`."""
    _check_type(request)
    try:
        held = from_json(await request.body(), allow_inf_nan=False)
    except ValueError as error:
        raise refused(400, "not_json", reason=str(error)) from None
    return parse(model, held)


def value_documented(model: type[Value], example: dict[str, Any]) -> dict[str, Any]:
    """The `openapi_extra` of a route whose body is a value of the house."""
    schema = json_schema("body", {"body": model})
    content = {"schema": {key: said for key, said in schema.items() if key not in ("$schema", "$id")}}
    return {"requestBody": {"required": True, "content": {"application/json": {**content, "example": example}}}}


def body_documented(model: type[BaseModel], example: dict[str, Any]) -> dict[str, Any]:
    """The `openapi_extra` of a route whose body is a `model`."""
    content = {"application/json": {"schema": model.model_json_schema(), "example": example}}
    return {"requestBody": {"required": True, "content": content}}


def _check_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise refused(415, "not_json_type", field="Content-Type", value=kind)


def _notice(model: type[BaseModel], detail: Any) -> Notice:
    field = ".".join(str(step) for step in detail["loc"])
    codes = {"string_type": "must_be_text", "dict_type": "must_be_mapping", "model_type": "must_be_mapping"}
    if detail["type"] == "extra_forbidden":
        params = {"nearest": ", ".join(model.model_fields), "known": list(model.model_fields)}
        return Notice(code="unknown_key", field=field, value=field, params=params)
    if detail["type"] in codes:
        return Notice(code=codes[detail["type"]], field=field or "body", value=detail["input"])
    if not detail["loc"]:
        return Notice(code="one_of_body", field="body", params={"keys": str(detail.get("ctx", {}).get("error", ""))})
    return Notice(code="not_valid", field=field, value=detail["input"])
