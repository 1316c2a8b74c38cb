"""Radar: ways to do a job beside each other on axes from 0 to 1, each with its formula and the number behind it.

build_radar(scenario, [("chosen", scenario)]).entries[0].values["speed"]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from crosszone.analyse.bill import build_bill
from crosszone.analyse.explain.description import LabelWords, render_words
from crosszone.analyse.explain.formulas import find_formula
from crosszone.errors import InputError
from crosszone.inputs.parameters import parameters
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.strategy import Strategy
from crosszone.inputs.value import Value
from crosszone.plan.plan import NoticeDict, apply_plan
from crosszone.plan.planner import plan
from crosszone.plan.search import Progress
from crosszone.predict.placed_strategy import BETWEEN_ZONES
from crosszone.predict.predict import build_prediction, build_predictor
from crosszone.predict.prediction import Prediction
from crosszone.predict.predictor import Predictor
from crosszone.predict.traffic import get_tier
from crosszone.text import DEFAULT_LANGUAGE

BUDGET_S = 5.0  # Seconds that the search for the best plan of one family may take
# Degrees that are pinned to find the best plan of a family.
FAMILIES: dict[str, dict[str, int]] = {"dp_only": {"tp": 1, "pp": 1, "cp": 1}, "pp_only": {"tp": 1, "dp": 1, "cp": 1}}


class RadarAxis(Value):
    """What ways are compared by."""

    id: str
    """Its name in the values."""
    label: str
    """Its name for readers; 1 is best."""
    unit: str
    """Unit of the number behind it."""
    formula: str
    """Id of the formula in docs/formulas.md."""
    title: str
    """Its title there."""
    text: str
    """Its text there, Markdown, in English."""
    explain: str
    """The same in a sentence."""


class RadarEntry(Value):
    """One alternative on all axes."""

    name: str
    """Name as asked for, or dp_only, pp_only."""
    label: str
    """Its name for readers."""
    way: dict[str, Any] | None
    """Framework, strategy and placement; null: there is no such alternative."""
    values: dict[str, float | None]
    """0 to 1 on every axis; null: not known."""
    raw: dict[str, float | None]
    """The number behind each of them."""
    notices: tuple[NoticeDict, ...]
    """Why there is no such alternative."""


class Radar(Value):
    """Alternatives, compared on the same axes."""

    axes: tuple[RadarAxis, ...]
    """In the order they are drawn."""
    entries: tuple[RadarEntry, ...]
    """The ways asked for, then the best of each family."""


@dataclass(frozen=True)
class RadarOption:
    """A way with its numbers."""

    p: Predictor
    prediction: Prediction


def measure_speed(option: RadarOption, options: Sequence[RadarOption]) -> tuple[float, float]:
    """Tokens/s over those of the fastest shown. [Y1]"""
    best = max(candidate.prediction.tokens_per_s.expected for candidate in options)
    tokens_per_s = option.prediction.tokens_per_s.expected
    return tokens_per_s / best, tokens_per_s


def measure_compute_share(option: RadarOption, _: Sequence[RadarOption]) -> tuple[float, float]:
    """Share of the step in which the pace-setting stage computes. [Y2]"""
    share = option.prediction.shares["compute"]
    return share, share


def measure_hidden_share(option: RadarOption, _: Sequence[RadarOption]) -> tuple[float, float]:
    """What part of the communication hides behind compute: 1 - exposed / busy, 1 where there is none. [Y3]"""
    rows = option.prediction.communication
    busy, exposed = sum(row.busy_s for row in rows), sum(row.exposed_s for row in rows)
    return (1.0 - min(exposed / busy, 1.0) if busy > 0 else 1.0), exposed


def measure_thrift(option: RadarOption, _: Sequence[RadarOption]) -> tuple[float, float]:
    """W / (W + bytes between zones a step), W a copy of the model in 16 bit. [Y4]"""
    rows = option.prediction.communication
    sent = sum(row.bytes_per_step for row in rows if get_tier(row.link) == BETWEEN_ZONES)
    copy = 2.0 * parameters(option.p.case.model).total
    return copy / (copy + sent), sent


def measure_headroom(option: RadarOption, _: Sequence[RadarOption]) -> tuple[float, float]:
    """Memory left free on the fullest GPU, as a share of it. [Y5]"""
    memory = option.prediction.memory_gib
    return max(0.0, 1.0 - memory.peak.expected / memory.limit), memory.peak.expected


def measure_full_share(option: RadarOption, _: Sequence[RadarOption]) -> tuple[float, float]:
    """Share of the step that is no pipeline bubble. [Y6]"""
    return 1.0 - option.prediction.shares["pipeline"], option.prediction.breakdown_s["bubble"]


def measure_price(option: RadarOption, options: Sequence[RadarOption]) -> tuple[float, float] | None:
    """Dollars for a million tokens: those of the cheapest shown over its own; None: not known. [Y7]"""
    usd = build_bill(option.p).usd_per_million_tokens
    every = [
        candidate_usd for candidate in options if (candidate_usd := build_bill(candidate.p).usd_per_million_tokens)
    ]
    return (min(every) / usd, usd) if usd and every else None


Measure = Callable[[RadarOption, Sequence[RadarOption]], tuple[float, float] | None]

# How each axis is measured, its formula, and the unit of the number behind it.
AXES: dict[str, tuple[Measure, str, str]] = {
    "speed": (measure_speed, "Y1", "tokens/s"),
    "computing": (measure_compute_share, "Y2", "share"),
    "hidden": (measure_hidden_share, "Y3", "s"),
    "thrift": (measure_thrift, "Y4", "bytes"),
    "headroom": (measure_headroom, "Y5", "GiB"),
    "full": (measure_full_share, "Y6", "s"),
    "price": (measure_price, "Y7", "USD"),
}


def build_radar(
    scenario: Scenario,
    alternatives: Sequence[tuple[str, Scenario]],
    *,
    language: str = DEFAULT_LANGUAGE,
    families: bool = True,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Radar:
    """The alternatives, and the best plans with only data or only pipeline parallelism, on every axis.

    A family without a legal plan that fits has no values, and says why.
    """
    options: dict[str, RadarOption] = {}
    missing: dict[str, tuple[NoticeDict, ...]] = {}
    for name, option in alternatives:
        options[name] = _build_option(option)
    for name, degrees in FAMILIES.items() if families else ():
        try:
            options[name] = _build_option(_plan_degrees(scenario, degrees, progress=progress, cancelled=cancelled))
        except InputError as error:
            missing[name] = tuple(notice.as_dict(language) for notice in error.notices)
    measured = list(options.values())
    entries = [
        _build_entry(name, options.get(name), measured, missing.get(name, ()), language)
        for name in [*options, *missing]
    ]
    return Radar(axes=tuple(_build_axis(name, language) for name in AXES), entries=tuple(entries))


def _plan_degrees(scenario: Scenario, degrees: dict[str, int], **watched: Any) -> Scenario:
    """The scenario with the best plan that has these degrees."""
    pinned = scenario.replace(strategy=Strategy(**degrees), placement=None)
    plans = plan(pinned, top=1, local_updates=False, budget_s=BUDGET_S, **watched)
    return apply_plan(pinned, plans.plans[0])


def _build_option(scenario: Scenario) -> RadarOption:
    placed = build_predictor(scenario)
    return RadarOption(placed, build_prediction(placed))


def _build_axis(name: str, language: str) -> RadarAxis:
    _, number, unit = AXES[name]
    formula_found = find_formula(number)
    return RadarAxis(
        id=name,
        label=render_words(LabelWords(f"axis_{name}"), language),
        unit=unit,
        formula=number,
        title=formula_found.title,
        text=formula_found.markdown,
        explain=render_words(LabelWords(f"axis_why_{name}"), language),
    )


def _build_entry(
    name: str,
    option: RadarOption | None,
    options: Sequence[RadarOption],
    notices: tuple[NoticeDict, ...],
    language: str,
) -> RadarEntry:
    measured = {axis: None if option is None else measure(option, options) for axis, (measure, _, _) in AXES.items()}
    return RadarEntry(
        name=name,
        label=render_words(LabelWords(f"way_{name}"), language) if name in ("chosen", "runner_up", *FAMILIES) else name,
        way=None if option is None else _describe_option(option),
        values={axis: None if figure is None else figure[0] for axis, figure in measured.items()},
        raw={axis: None if figure is None else figure[1] for axis, figure in measured.items()},
        notices=notices,
    )


def _describe_option(option: RadarOption) -> dict[str, Any]:
    """Framework, strategy and placement, as a plan states them."""
    return {
        "framework": option.prediction.framework,
        "strategy": option.prediction.strategy,
        "placement": option.p.placed.placement.model_dump(mode="json"),
    }
