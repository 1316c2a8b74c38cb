"""Explanation: how one shown number comes about, with everything that goes in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crosszone.analyse.explain.form import Form, Given, Origin, Words
from crosszone.analyse.explain.formulas import formula
from crosszone.inputs.value import Value
from crosszone.text import texts


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


@dataclass(frozen=True, kw_only=True)
class Term:
    """One of the terms that add up to a figure, before it is told in a language."""

    words: Words
    form: Form
    figure: str | None = None
    unit: str | None = None
    """None: that of the figure."""


@dataclass(frozen=True, kw_only=True)
class Draft:
    """An explanation before it is told in a language."""

    words: Words
    formula: str
    value: float
    form: Form
    unit: str = ""
    terms: Sequence[Term] = ()
    notes: Sequence[Words] = ()
    also: Mapping[str, Given] = field(default_factory=dict)
    """Inputs of an expression that is put together elsewhere, so that the form does not name them."""
    low: float | None = None
    high: float | None = None

    def told(self, figure: str, language: str) -> Explanation:
        """The explanation in a language."""
        found = formula(self.formula)
        return Explanation(
            figure=figure,
            label=said(self.words, language),
            value=self.value,
            unit=self.unit,
            low=self.low,
            high=self.high,
            formula=self.formula,
            title=found.title,
            text=found.markdown,
            symbols=self.form.symbols,
            worked=self.form.worked,
            result=self.form.value,
            inputs=tuple(_input(name, given, language) for name, given in {**self.form.inputs, **self.also}.items()),
            lines=tuple(
                Line(
                    label=said(term.words, language),
                    worked=term.form.worked,
                    value=term.form.value,
                    unit=self.unit if term.unit is None else term.unit,
                    figure=term.figure,
                )
                for term in self.terms
            ),
            notes=tuple(said(words, language) for words in self.notes),
        )


def said(words: Words, language: str) -> str:
    """Words in a language: of the figures, else of the labels that all surfaces share."""
    groups = texts(language)
    text: str = groups["figure"].get(words.key) or groups["label"][words.key]
    params = {key: said(one, language) if isinstance(one, Words) else one for key, one in words.params.items()}
    return text.format_map(params) if params else text


def _input(name: str, given: Given, language: str) -> Input:
    fields: dict[str, Any] = {
        key: getattr(given, key) for key in ("value", "unit", "origin", "where", "error", "figure")
    }
    return Input(name=name, label=said(given.words, language), **fields)
