"""The language of an answer: `?lang=`, else the browser's `Accept-Language`, else English; and stored notices in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Depends, Query
from starlette.requests import Request

from crosszone.store.tasks import Event, decode_notice
from crosszone.text import DEFAULT_LANGUAGE, LANGUAGES


def choose_language(request: Request) -> str:
    """The language a request asks for; of an unknown one, the next best."""
    requested = request.query_params.get("lang", "")
    return _match_language(requested) or _choose_accepted(request.headers.get("accept-language", ""))


def read_language(
    request: Request,
    lang: Annotated[str | None, Query(description="Language of messages: en or zh; default: Accept-Language.")] = None,
) -> str:
    del lang  # read by choose_language, which error handlers use too; here for the API's description
    return choose_language(request)


Language = Annotated[str, Depends(read_language)]


def _choose_accepted(header: str) -> str:
    """The best known language of an `Accept-Language` header."""
    best, best_weight = DEFAULT_LANGUAGE, 0.0
    for part in header[:1000].split(","):
        tag, _, weight_text = part.strip().partition(";q=")
        weight = _parse_weight(weight_text)
        code = _match_language(tag)
        if code and weight > best_weight:
            best, best_weight = code, weight
    return best


def _match_language(tag: str) -> str | None:
    primary = tag.strip().lower().partition("-")[0]
    return primary if primary in LANGUAGES else None


def _parse_weight(text: str) -> float:
    try:
        return float(text) if text else 1.0
    except ValueError:
        return 0.0


def localize_notice(stored: Mapping[str, Any] | None, language: str) -> dict[str, Any] | None:
    """A stored notice in the form every surface sends; None: there is none."""
    if stored is None:
        return None
    return decode_notice(stored).as_dict(language)


def localize_event(event: Event, language: str) -> dict[str, Any]:
    """An event in the form that is sent; its notice, if it has one, is in a language."""
    plain = event.model_dump(mode="json")
    if "notice" in plain["about"]:
        plain["about"] = {**plain["about"], "notice": localize_notice(plain["about"]["notice"], language)}
    return plain
