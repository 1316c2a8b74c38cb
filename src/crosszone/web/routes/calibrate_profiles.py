"""Own profiles: listed, saved, made the default, handed out, deleted."""

from __future__ import annotations

from threading import Lock
from typing import Annotated, Any, Self

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from crosszone.cost import own_profiles
from crosszone.cost.own_profiles import OwnProfile, named
from crosszone.errors import InvalidError, RequestError
from crosszone.inputs.value import parse
from crosszone.web.answers import Json, errors_documented
from crosszone.web.body import body_documented, read_body
from crosszone.web.calibrate_own import ProfileList, listed, usable
from crosszone.web.language import Language
from crosszone.web.saved import attachment, kept
from crosszone.web.state import State

OwnName = Annotated[str, Path(min_length=1, max_length=200, description="Name of an own profile.")]
_YAML = {"content": {"application/yaml": {"schema": {"description": "YAML."}}}, "description": "The file."}
_EXAMPLE = {
    "name": "my-cluster",
    "profile": {
        "source": "one log of 50 steps",
        "created": "2026-11-16",
        "stacks": {"megatron-core": {"matmul": {"value": 0.8, "error": 0.02, "origin": "measured"}}},
    },
    "replace": True,
}
_writing = Lock()  # Whether a name is free is looked up before it is taken


class SaveProfileBody(BaseModel):
    """A profile to keep: as a fit answered it, or the text of a file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = Field(default=None, max_length=200, description="What to call it; none: as it says itself.")
    profile: dict[str, Any] | None = Field(default=None, description="Its fields, as a fit answered them.")
    text: str | None = Field(default=None, max_length=1_000_000, description="Or the text of its file (YAML).")
    replace: bool = Field(default=False, description="Write over one of that name.")
    use: bool = Field(default=False, description="Make it the default.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.profile is None) == (self.text is None):
            raise ValueError("profile, text")
        return self

    def made(self) -> OwnProfile:
        """The profile; an `InputError` names what is wrong with it."""
        if self.text is not None:
            found = own_profiles.parsed(self.text)
            return found if self.name is None else found.replace(name=self.name)
        return parse(OwnProfile, {**(self.profile or {}), **({} if self.name is None else {"name": self.name})})


class DefaultBody(BaseModel):
    """Which profile predictions use."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = Field(max_length=200, description="An own profile; null: the shipped values.")


def routes(state: State) -> APIRouter:
    """Keep own profiles."""
    del state
    router = APIRouter(prefix="/calibrate", tags=["calibrate"])

    @router.get("/profiles", response_model=ProfileList, responses=errors_documented())
    def profiles(language: Language) -> Json:
        """List own profiles with their errors, which one is the default, and operator errors by GPU."""
        return Json(listed(language).model_dump(mode="json"))

    @router.post(
        "/profiles",
        status_code=201,
        response_model=OwnProfile,
        responses=errors_documented(400, 403, 409, 413, 415),
        openapi_extra=body_documented(SaveProfileBody, _EXAMPLE),
    )
    async def save(request: Request, language: Language) -> Response:
        """Keep a profile under a name, and make it the default where that is wanted."""
        del language
        body = await read_body(request, SaveProfileBody)
        return await run_in_threadpool(_save, body)

    @router.get("/profiles/{name}", response_model=OwnProfile, responses=errors_documented(404))
    def one(name: OwnName, language: Language) -> Json:
        """Show an own profile with every value."""
        del language
        with kept():
            return Json(named(name).model_dump(mode="json"))

    @router.get("/profiles/{name}/yaml", response_class=Response, responses={200: _YAML, **errors_documented(404)})
    def file(name: OwnName, language: Language) -> Response:
        """Give an own profile as a file, which `crosszone --profile FILE predict` takes."""
        del language
        with kept():
            found = named(name)
        headers = attachment(found.name, "yaml", "profile")
        return Response(own_profiles.text_of(found), media_type="application/yaml", headers=headers)

    @router.delete(
        "/profiles/{name}", status_code=204, response_class=Response, responses=errors_documented(403, 404, 405)
    )
    def remove(name: OwnName, language: Language) -> Response:
        """Delete an own profile; where it was the default, the shipped values are used from now on."""
        del language
        with kept(), _writing:
            own_profiles.remove(name)
        return Response(status_code=204)

    @router.put(
        "/default",
        response_model=DefaultBody,
        responses=errors_documented(400, 403, 404, 413, 415),
        openapi_extra=body_documented(DefaultBody, {"name": "my-cluster"}),
    )
    async def default(request: Request, language: Language) -> Response:
        """Make an own profile the default of every prediction, or go back to the shipped values."""
        del language
        body = await read_body(request, DefaultBody)

        def work() -> Json:
            with kept(), _writing:
                own_profiles.use(None if body.name is None else usable(named(body.name)).name)
            return Json(body.model_dump())

        return await run_in_threadpool(work)

    return router


def _save(body: SaveProfileBody) -> Json:
    made = usable(body.made())
    try:
        with _writing:
            own_profiles.save(made, replace=body.replace)
            if body.use:
                own_profiles.use(made.name)
    except InvalidError as error:
        if error.notices[0].code == "own_profile_exists":
            raise RequestError(409, *error.notices) from None
        raise
    return Json(made.model_dump(mode="json"), status_code=201)
