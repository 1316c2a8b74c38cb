"""Radar: ways to do a job beside each other on axes from 0 to 1, each with its formula and the number behind it.

radar(scenario, [("chosen", scenario)]).entries[0].values["speed"]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from crosszone.analyse.bill import bill
from crosszone.analyse.explain.description import Words, said
from crosszone.analyse.explain.formulas import formula
from crosszone.errors import InputError
from crosszone.inputs.parameters import parameters
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.strategy import Strategy
from crosszone.inputs.value import Value
from crosszone.plan.plan import Told, filled
from crosszone.plan.planner import plan
from crosszone.plan.search import Progress
from crosszone.predict.predict import build_prediction, predictor
from crosszone.predict.prediction import Prediction
from crosszone.predict.predictor import Predictor
from crosszone.predict.site import BETWEEN_ZONES
from crosszone.predict.traffic import tier_of
from crosszone.text import DEFAULT_LANGUAGE

BUDGET_S = 5.0
"""Seconds that the search for the best plan of one family may take."""
FAMILIES: dict[str, dict[str, int]] = {"dp_only": {"tp": 1, "pp": 1, "cp": 1}, "pp_only": {"tp": 1, "dp": 1, "cp": 1}}
"""Degrees that are pinned to find the best plan of a family."""


class Axis(Value):
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


class Entry(Value):
    """One way on all axes."""

    name: str
    """Name as asked for, or dp_only, pp_only."""
    label: str
    """Its name for readers."""
    way: dict[str, Any] | None
    """Framework, strategy and placement; null: there is no such way."""
    values: dict[str, float | None]
    """0 to 1 on every axis; null: not known."""
    raw: dict[str, float | None]
    """The number behind each of them."""
    notices: tuple[Told, ...]
    """Why there is no such way."""


class Radar(Value):
    """Ways beside each other."""

    axes: tuple[Axis, ...]
    """In the order they are drawn."""
    entries: tuple[Entry, ...]
    """The ways asked for, then the best of each family."""


@dataclass(frozen=True)
class Way:
    """A way with its numbers."""

    p: Predictor
    prediction: Prediction


def speed(way: Way, shown: Sequence[Way]) -> tuple[float, float]:
    """Tokens/s over those of the fastest shown. [Y1]"""
    best = max(one.prediction.tokens_per_s.expected for one in shown)
    own = way.prediction.tokens_per_s.expected
    return own / best, own


def computing(way: Way, _: Sequence[Way]) -> tuple[float, float]:
    """Share of the step in which the pace-setting stage computes. [Y2]"""
    share = way.prediction.shares["compute"]
    return share, share


def hidden(way: Way, _: Sequence[Way]) -> tuple[float, float]:
    """What part of the communication hides behind compute: 1 - exposed / busy, 1 where there is none. [Y3]"""
    rows = way.prediction.communication
    busy, exposed = sum(row.busy_s for row in rows), sum(row.exposed_s for row in rows)
    return (1.0 - min(exposed / busy, 1.0) if busy > 0 else 1.0), exposed


def thrift(way: Way, _: Sequence[Way]) -> tuple[float, float]:
    """W / (W + bytes between zones a step), W a copy of the model in 16 bit. [Y4]"""
    rows = way.prediction.communication
    sent = sum(row.bytes_per_step for row in rows if tier_of(row.link) == BETWEEN_ZONES)
    copy = 2.0 * parameters(way.p.case.model).total
    return copy / (copy + sent), sent


def headroom(way: Way, _: Sequence[Way]) -> tuple[float, float]:
    """Memory left free on the fullest GPU, as a share of it. [Y5]"""
    memory = way.prediction.memory_gib
    return max(0.0, 1.0 - memory.peak.expected / memory.limit), memory.peak.expected


def full(way: Way, _: Sequence[Way]) -> tuple[float, float]:
    """Share of the step that is no pipeline bubble. [Y6]"""
    return 1.0 - way.prediction.shares["pipeline"], way.prediction.breakdown_s["bubble"]


def price(way: Way, shown: Sequence[Way]) -> tuple[float, float] | None:
    """Dollars for a million tokens: those of the cheapest shown over its own; None: not known. [Y7]"""
    own = bill(way.p).usd_per_million_tokens
    every = [found for one in shown if (found := bill(one.p).usd_per_million_tokens)]
    return (min(every) / own, own) if own and every else None


Measure = Callable[[Way, Sequence[Way]], tuple[float, float] | None]

AXES: dict[str, tuple[Measure, str, str]] = {
    "speed": (speed, "Y1", "tokens/s"),
    "computing": (computing, "Y2", "share"),
    "hidden": (hidden, "Y3", "s"),
    "thrift": (thrift, "Y4", "bytes"),
    "headroom": (headroom, "Y5", "GiB"),
    "full": (full, "Y6", "s"),
    "price": (price, "Y7", "USD"),
}
"""How each axis is measured, its formula, and the unit of the number behind it."""


def radar(
    scenario: Scenario,
    ways: Sequence[tuple[str, Scenario]],
    *,
    language: str = DEFAULT_LANGUAGE,
    families: bool = True,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Radar:
    """The ways, and the best plans with only data or only pipeline parallelism, on every axis.

    A family without a legal plan that fits has no values, and says why.
    """
    shown: dict[str, Way] = {}
    missing: dict[str, tuple[Told, ...]] = {}
    for name, one in ways:
        shown[name] = _way(one)
    for name, degrees in FAMILIES.items() if families else ():
        try:
            shown[name] = _way(_best(scenario, degrees, progress=progress, cancelled=cancelled))
        except InputError as error:
            missing[name] = tuple(notice.as_dict(language) for notice in error.notices)
    together = list(shown.values())
    entries = [_entry(name, shown.get(name), together, missing.get(name, ()), language) for name in [*shown, *missing]]
    return Radar(axes=tuple(_axis(name, language) for name in AXES), entries=tuple(entries))


def _best(scenario: Scenario, degrees: dict[str, int], **watched: Any) -> Scenario:
    """The scenario done by the best plan with these degrees."""
    free = scenario.replace(strategy=Strategy(**degrees), placement=None)
    found = plan(free, top=1, local_updates=False, budget_s=BUDGET_S, **watched)
    return filled(free, found.plans[0])


def _way(scenario: Scenario) -> Way:
    found = predictor(scenario)
    return Way(found, build_prediction(found))


def _axis(name: str, language: str) -> Axis:
    _, number, unit = AXES[name]
    found = formula(number)
    return Axis(
        id=name,
        label=said(Words(f"axis_{name}"), language),
        unit=unit,
        formula=number,
        title=found.title,
        text=found.markdown,
        explain=said(Words(f"axis_why_{name}"), language),
    )


def _entry(name: str, way: Way | None, shown: Sequence[Way], notices: tuple[Told, ...], language: str) -> Entry:
    measured = {axis: None if way is None else measure(way, shown) for axis, (measure, _, _) in AXES.items()}
    return Entry(
        name=name,
        label=said(Words(f"way_{name}"), language) if name in ("chosen", "runner_up", *FAMILIES) else name,
        way=None if way is None else _written(way),
        values={axis: None if found is None else found[0] for axis, found in measured.items()},
        raw={axis: None if found is None else found[1] for axis, found in measured.items()},
        notices=notices,
    )


def _written(way: Way) -> dict[str, Any]:
    """Framework, strategy and placement, as a plan states them."""
    return {
        "framework": way.prediction.framework,
        "strategy": way.prediction.strategy,
        "placement": way.p.site.placement.model_dump(mode="json"),
    }
