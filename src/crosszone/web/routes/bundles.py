"""Bundles: a plan as files that start it; what can be chosen, previewed, saved, handed out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from fastapi import Path as PathParameter
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.deploy.bundle import Bundle
from crosszone.deploy.frameworks import FRAMEWORKS
from crosszone.deploy.launchers import LAUNCHERS, load_launcher
from crosszone.deploy.settings import LaunchSettings
from crosszone.inputs.frameworks import load_frameworks
from crosszone.inputs.schema import build_json_schema
from crosszone.inputs.value import Value, parse
from crosszone.store import BundleRow, Page, SavedBundle
from crosszone.text import render_sentence
from crosszone.web.answers import Json, document_errors
from crosszone.web.body import BUDGET_S, MOST_NAME, MOST_S, SCENARIO_EXAMPLE, ApiRoute, ScenarioBody, document_example
from crosszone.web.events import JOB_RESPONSES, finish_job, run_job
from crosszone.web.jobs import build_bundle_job
from crosszone.web.language import Language
from crosszone.web.refusals import map_store_errors, refuse
from crosszone.web.saved import Before, Id, Limit, build_attachment_header, make_slug
from crosszone.web.state import AppState, State

router = APIRouter(prefix="/bundles", tags=["bundles"], route_class=ApiRoute)

SettingKind = Literal["number", "count", "text", "flag", "zones"]
FilePath = Annotated[str, PathParameter(min_length=1, max_length=500, description="As the bundle names the file.")]
_TEXT = {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "The text of the file."}
_ZIP = {
    "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    "description": "The archive.",
}
_EXAMPLE = {**SCENARIO_EXAMPLE, "framework": "fsdp", "launcher": "nodes", "settings": {"port": 29501}, "template": True}
_GROUPS = {
    "network": ("port", "user", "ssh_port"),
    "folders": ("data", "tokenizer", "init_from", "workdir", "python"),
    "launcher": (
        "image", "claim", "infra", "namespace", "service_account", "zone_labels", "partitions", "account",
        "time_limit", "gres",
    ),
}  # fmt: skip
# Settings that only some launchers read; all others are read by each of them.
_LAUNCHERS_BY_SETTING = {
    "image": ("kubernetes", "pytorchjob", "skypilot"),
    "claim": ("kubernetes", "pytorchjob"),
    "infra": ("skypilot",),
    "namespace": ("kubernetes", "pytorchjob"),
    "service_account": ("kubernetes", "pytorchjob"),
    "zone_labels": ("kubernetes", "pytorchjob"),
    "partitions": ("slurm",),
    "account": ("slurm",),
    "time_limit": ("slurm",),
    "gres": ("slurm",),
    "user": ("ssh",),
    "workdir": ("ssh",),
}


class FrameworkChoice(Value):
    """A framework a bundle can be made for."""

    name: str
    """As requests name it."""
    title: str
    """What it is called."""
    about: str
    """What it does, in a sentence."""


class LauncherChoice(FrameworkChoice):
    """Something that starts the nodes."""

    needs_addresses: bool
    """It cannot find the nodes by itself: the scenario must have their addresses."""


class SettingChoice(Value):
    """One setting."""

    name: str
    """Its path, e.g. training.lr."""
    title: str
    """What a form calls it."""
    meaning: str
    """What it does."""
    kind: SettingKind
    """number, count (a whole number), text, flag, or zones (a text for each zone)."""
    group: str
    """What it belongs to: network, folders, launcher or training."""
    launchers: tuple[str, ...]
    """Launchers that read it; empty: all."""
    default: Any
    """What holds when it is not given; null: nothing."""
    least: float | None
    """Smallest number, or what it must be more than."""
    most: float | None
    """Largest number."""


class Choices(Value):
    """Everything that can be chosen; which of them a plan allows, only a preview tells."""

    frameworks: tuple[FrameworkChoice, ...]
    """In the order of the command line."""
    launchers: tuple[LauncherChoice, ...]
    """In the order of the command line."""
    settings: tuple[SettingChoice, ...]
    """In the order of their groups."""


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

    def options(self) -> dict[str, Any]:
        """What the bundle is made by; `InvalidError` for settings that cannot be."""
        settings = parse(LaunchSettings, self.settings, at=("settings",))
        return {**self.model_dump(include={"framework", "launcher", "template", "budget_s"}), "settings": settings}


class SaveBundleBody(BundleBody):
    """A bundle to make and save."""

    name: str | None = Field(default=None, max_length=MOST_NAME, description="What to call it; none: as the scenario.")


@router.get("", response_model=Page[BundleRow], responses=document_errors(503))
def list_bundles(state: State, limit: Limit = 50, before: Before = None) -> Page[BundleRow]:
    """List saved bundles, newest first."""
    return state.store.bundles.page(limit=limit, before=before)


# Before `/{id}`, which would take "choices" for an id.
@router.get("/choices", response_model=Choices)
def list_choices(language: Language) -> Choices:
    """List frameworks, launchers and settings to choose from."""
    return build_choices(language)


@router.post(
    "/preview",
    response_model=Bundle,
    responses=JOB_RESPONSES,
    openapi_extra=document_example(_EXAMPLE),
)
async def preview_bundle(body: BundleBody, request: Request, state: State, language: Language) -> Response:
    """Make a bundle and save nothing: a dry run, as `crosszone deploy --json` does."""
    options = body.options()
    loaded = await run_in_threadpool(state.reader.read, body)
    return await run_job(request, state.workers, build_bundle_job, loaded, options, language)


@router.post(
    "/zip",
    response_class=Response,
    responses={200: _ZIP, **document_errors(409)},
    openapi_extra=document_example(_EXAMPLE),
)
async def archive_bundle(body: BundleBody, request: Request, state: State, language: Language) -> Response:
    """Make a bundle and answer it as an archive; nothing is saved."""
    bundle = await _make_bundle(body, request, state, language)
    return await run_in_threadpool(_build_archive, bundle, bundle.name)


@router.post(
    "",
    status_code=201,
    response_model=BundleRow,
    responses=document_errors(409, 503),
    openapi_extra=document_example({**_EXAMPLE, "name": "first try"}),
)
async def save_bundle(body: SaveBundleBody, request: Request, state: State, language: Language) -> Response:
    """Make a bundle and save it."""
    bundle = await _make_bundle(body, request, state, language)

    def save() -> Json:
        with map_store_errors():
            saved = state.store.bundles.add(name=body.name or bundle.name, bundle=bundle)
        return Json(saved.model_dump(include=set(BundleRow.model_fields)), status_code=201)

    return await run_in_threadpool(save)


@router.get("/{id}", response_model=SavedBundle, responses=document_errors(404, 503))
def open_bundle(id: Id, state: State) -> Json:
    """Open a saved bundle with all its files."""
    with map_store_errors():
        return Json(state.store.bundles.get(id))


@router.get("/{id}/files/{path:path}", response_class=Response, responses={200: _TEXT, **document_errors(404, 503)})
def show_file(id: Id, path: FilePath, state: State) -> Response:
    """Give one file of a saved bundle; only a path that the bundle itself names."""
    with map_store_errors():
        bundle = state.store.bundles.get(id).bundle
    for file in bundle.files:
        if file.path == path:
            return Response(file.text.encode("utf-8", "replace"), media_type="text/plain; charset=utf-8")
    raise refuse(404, "bundle_no_file", field="path", value=path)


@router.get("/{id}/zip", response_class=Response, responses={200: _ZIP, **document_errors(404, 503)})
def archive_saved_bundle(id: Id, state: State) -> Response:
    """Give a saved bundle as an archive."""
    with map_store_errors():
        saved = state.store.bundles.get(id)
    return _build_archive(saved.bundle, saved.name)


@router.delete("/{id}", status_code=204, responses=document_errors(404, 503))
def delete_bundle(id: Id, state: State) -> Response:
    """Delete a saved bundle."""
    with map_store_errors():
        state.store.bundles.remove(id)
    return Response(status_code=204)


async def _make_bundle(body: BundleBody, request: Request, state: AppState, language: str) -> Bundle:
    options = body.options()
    loaded = await run_in_threadpool(state.reader.read, body)
    answer = await finish_job(request, state.workers, build_bundle_job, loaded, options, language)
    # in a thread: a bundle of ten thousand nodes takes seconds to be read
    return await run_in_threadpool(lambda: Bundle(**json.loads(answer)))


def _build_archive(bundle: Bundle, name: str) -> Response:
    title = f"{name} {bundle.framework}"
    folder = make_slug(title, "bundle")[:100]
    headers = build_attachment_header(title, "zip", "bundle")
    return Response(bundle.pack_zip(folder), media_type="application/zip", headers=headers)


@cache
def build_choices(language: str) -> Choices:
    """All frameworks, launchers and settings, described in a language."""
    titles = {name: framework.title for name, framework in load_frameworks().items()}
    group_order = [*_GROUPS, "training"]
    return Choices(
        frameworks=tuple(
            FrameworkChoice(
                name=name, title=titles.get(name, name), about=_describe("framework", name, "about", language)
            )
            for name in FRAMEWORKS
        ),
        launchers=tuple(
            LauncherChoice(
                name=name,
                title=_describe("launcher", name, "title", language),
                about=_describe("launcher", name, "about", language),
                needs_addresses=load_launcher(name).needs_addresses,
            )
            for name in LAUNCHERS
        ),
        settings=tuple(sorted(_list_settings(language), key=lambda setting: group_order.index(setting.group))),
    )


def _describe(group: str, code: str, part: str, language: str) -> str:
    return render_sentence(group, code, part, language, {})


def _list_settings(language: str) -> Iterator[SettingChoice]:
    schema = build_json_schema("launch", {"launch": LaunchSettings})
    training = schema["$defs"]["TrainingSettings"]["properties"]
    fields = {key: field for key, field in schema["properties"].items() if key != "training"}
    fields |= {f"training.{key}": field for key, field in training.items()}
    for name, field in fields.items():
        # An optional field is "anyOf" its type and null.
        shape = next(form for form in field.get("anyOf", [field]) if form.get("type") != "null")
        code = name.removeprefix("training.")
        yield SettingChoice(
            name=name,
            title=_describe("setting", code, "title", language),
            meaning=_describe("setting", code, "meaning", language),
            kind=_select_kind(shape),
            group=next((group for group, names in _GROUPS.items() if name in names), "training"),
            launchers=_LAUNCHERS_BY_SETTING.get(name, ()),
            default=field.get("default"),
            least=shape.get("minimum", shape.get("exclusiveMinimum")),
            most=shape.get("maximum"),
        )


def _select_kind(shape: dict[str, Any]) -> SettingKind:
    kinds: dict[str, SettingKind] = {
        "number": "number", "integer": "count", "boolean": "flag", "string": "text", "object": "zones",
    }  # fmt: skip
    return kinds[shape["type"]]
