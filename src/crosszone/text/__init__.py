"""The sentences of CrossZone in each language: one JSON file a language, equal keys in all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

LANGUAGES = ("en", "zh")
DEFAULT_LANGUAGE = "en"


class Label(str):
    """A parameter of a sentence that is itself a label, said in the sentence's language."""


@cache
def load_texts(language: str) -> dict[str, Any]:
    """All sentences of one language, as nested keys."""
    if language not in LANGUAGES:
        raise ValueError(f"language {language!r} is not one of {', '.join(LANGUAGES)}")
    loaded: dict[str, Any] = json.loads(files(__package__).joinpath(f"{language}.json").read_text("utf-8"))
    return loaded


def render_sentence(group: str, code: str, part: str, language: str, params: Mapping[str, Any]) -> str:
    """The sentence `group.code.part` with its parameters put in."""
    template: str = load_texts(language)[group][code][part]
    return template.format_map(
        {k: label(v, language) if isinstance(v, Label) else _format_value(v) for k, v in params.items()}
    )


def label(key: str, language: str, **params: Any) -> str:
    """A heading or short label, e.g. of a table column."""
    text: str = load_texts(language)["label"][key]
    return text.format_map(params) if params else text


def detect_language(environment: Mapping[str, str] | None = None) -> str:
    """The user's language: `CROSSZONE_LANG`, else the locale, else English."""
    env = os.environ if environment is None else environment
    for key in ("CROSSZONE_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        value = env.get(key, "")
        if value:
            return next((code for code in LANGUAGES if value.lower().startswith(code)), DEFAULT_LANGUAGE)
    return DEFAULT_LANGUAGE


def _format_value(value: Any) -> Any:
    """Numbers without noise, lists with commas."""
    if isinstance(value, float):
        return f"{value:,.4g}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:,.10g}"
    if isinstance(value, list | tuple):
        return ", ".join(str(_format_value(v)) for v in value)
    return value
