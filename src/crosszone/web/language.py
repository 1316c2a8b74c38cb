"""The language of an answer: `?lang=`, else the browser's `Accept-Language`, else English."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query
from starlette.requests import Request

from crosszone.text import DEFAULT_LANGUAGE, LANGUAGES


def wanted_language(request: Request) -> str:
    """The language a request asks for; of an unknown one, the next best."""
    asked = request.query_params.get("lang", "")
    return _known(asked) or _accepted(request.headers.get("accept-language", ""))


def _language(
    request: Request,
    lang: Annotated[str | None, Query(description="Language of messages: en or zh; default: Accept-Language.")] = None,
) -> str:
    del lang  # read by wanted_language, which error handlers use too; here for the API's description
    return wanted_language(request)


Language = Annotated[str, Depends(_language)]


def _accepted(header: str) -> str:
    """The best known language of an `Accept-Language` header."""
    best, best_weight = DEFAULT_LANGUAGE, 0.0
    for part in header[:1000].split(","):
        tag, _, weight_text = part.strip().partition(";q=")
        weight = _weight(weight_text)
        code = _known(tag)
        if code and weight > best_weight:
            best, best_weight = code, weight
    return best


def _known(tag: str) -> str | None:
    primary = tag.strip().lower().partition("-")[0]
    return primary if primary in LANGUAGES else None


def _weight(text: str) -> float:
    try:
        return float(text) if text else 1.0
    except ValueError:
        return 0.0
