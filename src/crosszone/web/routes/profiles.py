"""Profiles: the coefficients behind every prediction, with unit, origin and error."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from crosszone.cost.description import ProfileDescription, ProfileSummary, described_profile, described_profiles
from crosszone.errors import RequestError, UnknownNameError
from crosszone.web.answers import errors_documented
from crosszone.web.language import Language
from crosszone.web.state import State


def routes(state: State) -> APIRouter:
    """Read the profiles."""
    del state
    router = APIRouter(prefix="/profiles", tags=["profiles"])

    @router.get("", response_model=list[ProfileSummary], responses=errors_documented())
    def profiles() -> tuple[ProfileDescription, ...]:
        """List all: common values, GPU families and software stacks."""
        return described_profiles()

    @router.get("/{name}", response_model=ProfileDescription, responses=errors_documented(404))
    def profile(
        name: Annotated[str, Path(min_length=1, max_length=200, description="Name of a profile.")], language: Language
    ) -> ProfileDescription:
        """Show one profile with each of its own coefficients."""
        del language
        try:
            return described_profile(name)
        except UnknownNameError as error:
            raise RequestError(404, *error.notices) from None

    return router
