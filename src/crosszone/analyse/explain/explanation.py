"""Explanation: how one shown number comes about, with everything that goes in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from crosszone.inputs.value import Value
from crosszone.text import texts

Origin = Literal["scenario", "catalogue", "profile", "figure", "rule", "constant", "simulated"]
"""Where a number comes from: typed, a datasheet, a coefficient, another figure, a rule over what was typed, ..."""


@dataclass(frozen=True)
class Words:
    """A label with its parameters, said when the language is known; parameters may be words themselves."""

    key: str
    params: Mapping[str, object] = field(default_factory=dict)


class Input(Value):
    """A number that goes in."""

    name: str
    """Its symbol in the expression."""
    label: str
    """What it is."""
    value: float
    """The number."""
    unit: str
    """Its unit; empty: none."""
    origin: Origin
    """Where it comes from: scenario, catalogue, profile, figure, rule, constant or simulated."""
    where: str
    """Field of the scenario, home of a coefficient, entry and source of a datasheet's figure; may be empty."""
    error: float | None
    """Standard error of a coefficient, as a share of it."""
    figure: str | None
    """Path of the figure it is, so that it can be opened in turn."""


class Line(Value):
    """One of the terms that add up to a figure."""

    label: str
    """What it is."""
    worked: str
    """Its numbers put in."""
    value: float
    """What it comes to."""
    unit: str
    """Its unit; empty: none."""
    figure: str | None
    """Path of the figure it is (or of the part it repeats), where that can be opened."""


class Explanation(Value):
    """A figure with its formula, inputs and the numbers put in."""

    figure: str
    """Path of the figure in the prediction, or of a part of one."""
    label: str
    """What it is."""
    value: float
    """The number."""
    unit: str
    """Its unit; empty: none."""
    low: float | None
    """Low end of its range, where it has one."""
    high: float | None
    """High end."""
    formula: str
    """Id of the formula in docs/formulas.md."""
    title: str
    """Its title there."""
    text: str
    """Its text there, Markdown, in English."""
    symbols: str
    """The expression with the names of the inputs."""
    worked: str
    """The same with the numbers put in: its value is the figure."""
    result: float
    """Value of that expression."""
    inputs: tuple[Input, ...]
    """Every number that goes in."""
    lines: tuple[Line, ...]
    """Terms of a long sum; empty where the expression stands alone."""
    notes: tuple[str, ...]
    """What a reader should know: what was simulated, which case of a formula holds here."""


def said(words: Words, language: str) -> str:
    """Words in a language: of the figures, else of the labels that all surfaces share."""
    groups = texts(language)
    text: str = groups["figure"].get(words.key) or groups["label"][words.key]
    params = {key: said(one, language) if isinstance(one, Words) else one for key, one in words.params.items()}
    return text.format_map(params) if params else text
