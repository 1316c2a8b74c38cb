"""Own profiles: listed with their errors and beside operator profiles, saved, made the default, handed out, deleted."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from threading import Lock
from typing import Annotated, Any, Self

from fastapi import APIRouter
from fastapi import Path as PathParameter
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.responses import Response

from crosszone.cost import own_profiles
from crosszone.cost.coefficients import Coefficient
from crosszone.cost.operator_profile import list_sampled_gpus, load_operator_profile
from crosszone.cost.own_profiles import OwnProfile, read_named
from crosszone.cost.profile import Profiles
from crosszone.errors import InputError, InvalidError, RequestError
from crosszone.inputs.value import Value, parse
from crosszone.web.answers import Json, document_errors
from crosszone.web.body import ApiRoute, document_example
from crosszone.web.language import Language
from crosszone.web.refusals import map_store_errors
from crosszone.web.saved import build_attachment_header

router = APIRouter(prefix="/calibrate", tags=["calibrate"], route_class=ApiRoute)

ProfileName = Annotated[str, PathParameter(min_length=1, max_length=200, description="Name of an own profile.")]
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
_write_lock = Lock()  # Whether a name is free is looked up before it is taken


class OwnProfileRow(Value):
    """An own profile in the list."""

    name: str
    """What it is called."""
    default: bool
    """Predictions use it."""
    source: str
    """What it rests on."""
    created: str
    """When it was made."""
    gpus: tuple[str, ...]
    """GPU kinds it has values for."""
    stacks: tuple[str, ...]
    """Software stacks it has values for."""
    coefficients: int
    """Values that take the place of shipped ones."""
    collectives: int
    """Timed collectives that take the place of the catalogue's rates."""
    origins: dict[str, int]
    """How many of the values were measured, fitted, ..."""
    error_pct: float | None
    """The middle one of their standard errors, in %; null: there are none."""
    scores: dict[str, Any]
    """Errors before and after, or cross-validated, as the fit gave them."""
    notes: tuple[str, ...]
    """What was kept and what stays unknown."""
    notices: tuple[dict[str, Any], ...]
    """Why its file cannot be used; empty: it can."""


class OperatorProfileRow(Value):
    """Operators of one GPU kind, fitted to kernels that were measured on it."""

    gpu: str
    """Catalogue name of the GPU."""
    source: str
    """What was measured."""
    families: dict[str, dict[str, float | None]]
    """By family of operators: error_pct (cross-validated), unseen_pct (on sizes that were left out), samples."""
    coefficients: int
    """Values of the formulas that follow from it."""


class ProfileList(Value):
    """Own profiles, and the operator profiles that come with CrossZone."""

    default: str | None
    """Own profile that predictions use; null: the shipped values alone."""
    own: tuple[OwnProfileRow, ...]
    """By name."""
    operators: tuple[OperatorProfileRow, ...]
    """By GPU."""
    notices: tuple[dict[str, Any], ...]
    """What is wrong with the default; empty: nothing."""


class SaveProfileBody(BaseModel):
    """A profile to keep: as a fit answered it, or the text of a file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = Field(default=None, max_length=200, description="What to call it; none: as it says itself.")
    profile: dict[str, Any] | None = Field(default=None, description="Its fields, as a fit answered them.")
    text: str | None = Field(default=None, max_length=1_000_000, description="Or the text of its file (YAML).")
    replace: bool = Field(default=False, description="Write over one of that name.")
    use: bool = Field(default=False, description="Make it the default.")

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if (self.profile is None) == (self.text is None):
            raise ValueError("profile, text")
        return self

    def build_profile(self) -> OwnProfile:
        """The profile; an `InputError` names what is wrong with it."""
        if self.text is not None:
            profile = own_profiles.parse_text(self.text)
            return profile if self.name is None else profile.replace(name=self.name)
        return parse(OwnProfile, {**(self.profile or {}), **({} if self.name is None else {"name": self.name})})


class DefaultProfileBody(BaseModel):
    """Which profile predictions use."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = Field(max_length=200, description="An own profile; null: the shipped values.")


@router.get("/profiles", response_model=ProfileList)
def list_profiles(language: Language) -> Json:
    """List own profiles with their errors, which one is the default, and operator errors by GPU."""
    default, notices = None, tuple[dict[str, Any], ...]()
    try:
        default = own_profiles.get_default()
        own_profiles.get_overlay()
    except InputError as error:
        notices = _localize_error(error, language)
    # A file that cannot be read is listed with the reason: it can only be deleted by one who sees it.
    rows = tuple(_build_own_row(path, default, language) for path in sorted(own_profiles.get_folder().glob("*.yaml")))
    profiles = ProfileList(default=default, own=rows, operators=list_operator_rows(), notices=notices)
    return Json(profiles)


@router.post(
    "/profiles",
    status_code=201,
    response_model=OwnProfile,
    responses=document_errors(409),
    openapi_extra=document_example(_EXAMPLE),
)
def save_profile(body: SaveProfileBody) -> Json:
    """Keep a profile under a name, and make it the default where that is wanted."""
    profile = _check_usable(body.build_profile())
    try:
        with _write_lock:
            own_profiles.save(profile, replace=body.replace)
            if body.use:
                own_profiles.use(profile.name)
    except InvalidError as error:
        if error.notices[0].code == "own_profile_exists":
            raise RequestError(409, *error.notices) from None
        raise
    return Json(profile, status_code=201)


@router.get("/profiles/{name}", response_model=OwnProfile, responses=document_errors(404))
def show_profile(name: ProfileName) -> Json:
    """Show an own profile with every value."""
    with map_store_errors():
        return Json(read_named(name))


@router.get("/profiles/{name}/yaml", response_class=Response, responses={200: _YAML, **document_errors(404)})
def download_profile(name: ProfileName) -> Response:
    """Give an own profile as a file, which `crosszone --profile FILE predict` takes."""
    with map_store_errors():
        profile = read_named(name)
    headers = build_attachment_header(profile.name, "yaml", "profile")
    return Response(own_profiles.format_text(profile), media_type="application/yaml", headers=headers)


@router.delete("/profiles/{name}", status_code=204, responses=document_errors(404, 405))
def delete_profile(name: ProfileName) -> Response:
    """Delete an own profile; where it was the default, the shipped values are used from now on."""
    with map_store_errors(), _write_lock:
        own_profiles.remove(name)
    return Response(status_code=204)


@router.put(
    "/default",
    response_model=DefaultProfileBody,
    responses=document_errors(404),
    openapi_extra=document_example({"name": "my-cluster"}),
)
def set_default_profile(body: DefaultProfileBody) -> Json:
    """Make an own profile the default of every prediction, or go back to the shipped values."""
    with map_store_errors(), _write_lock:
        own_profiles.use(None if body.name is None else _check_usable(read_named(body.name)).name)
    return Json(body)


def _check_usable(profile: OwnProfile) -> OwnProfile:
    """The profile, once it is known that predictions can use it: its GPUs and stacks exist."""
    Profiles.load_shipped().with_own(profile)
    return profile


def list_operator_rows() -> tuple[OperatorProfileRow, ...]:
    """The operator profiles that come with CrossZone."""
    profiles = [(gpu, load_operator_profile(gpu)) for gpu in list_sampled_gpus()]
    return tuple(
        OperatorProfileRow(
            gpu=gpu, source=profile.source, families=profile.summarize(), coefficients=len(profile.coefficients)
        )
        for gpu, profile in profiles
        if profile is not None
    )


def _build_own_row(path: Path, default: str | None, language: str) -> OwnProfileRow:
    try:
        profile = own_profiles.read(path)
    except InputError as error:
        return OwnProfileRow(
            name=path.stem,
            default=path.stem == default,
            source="",
            created="",
            gpus=(),
            stacks=(),
            coefficients=0,
            collectives=0,
            origins={},
            error_pct=None,
            scores={},
            notes=(),
            notices=_localize_error(error, language),
        )
    coefficients = _list_coefficients(profile)
    origins = sorted({coefficient.origin for coefficient in coefficients})
    return OwnProfileRow(
        name=profile.name,
        default=profile.name == default,
        source=profile.source,
        created=profile.created,
        gpus=tuple(profile.gpus),
        stacks=tuple(profile.stacks),
        coefficients=len(coefficients),
        collectives=len(profile.collectives),
        origins={origin: sum(coefficient.origin == origin for coefficient in coefficients) for origin in origins},
        error_pct=100.0 * median(coefficient.error for coefficient in coefficients) if coefficients else None,
        scores=profile.scores,
        notes=profile.notes,
        notices=(),
    )


def _list_coefficients(profile: OwnProfile) -> list[Coefficient]:
    scopes = (*profile.gpus.values(), *profile.stacks.values())
    return [coefficient for scope in scopes for coefficient in scope.values()]


def _localize_error(error: InputError, language: str) -> tuple[dict[str, Any], ...]:
    return tuple(notice.as_dict(language) for notice in error.notices)
