"""Suggestions: switches turned one by one, each predicted anew, ranked by what they gain.

answer = find_suggestions(load_scenario("examples/three-cities.yaml"))
answer.ranked[0].option, answer.ranked[0].gain
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from crosszone.analyse.communication import Boundness, classify_boundness
from crosszone.analyse.host import HostSetting, list_host_settings
from crosszone.analyse.switches import (
    PARTS_OF_LOCAL,
    build_switch_changes,
    describe_convergence,
    find_option,
    get_switch_value,
    load_switches,
)
from crosszone.analyse.what_if import build_changed_predictor, sum_exposed_s
from crosszone.errors import InputError
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.value import Value
from crosszone.plan.planner import plan
from crosszone.plan.search import Progress
from crosszone.predict.breakdown import COMPUTE
from crosszone.predict.predict import build_prediction, build_predictor
from crosszone.predict.prediction import Prediction
from crosszone.predict.predictor import Predictor
from crosszone.text import render_sentence

LEAST_GAIN = 1e-3  # Share of the tokens/s that a suggestion must gain
SAME = 1e-6  # Difference of two gains that is none
TOGETHER = 6  # Switches turned together at most


class Suggestion(Value):
    """A switch worth turning."""

    switch: str
    """Its name."""
    value: Any
    """What to turn it to."""
    title: str
    """What it is."""
    changes: dict[str, Any]
    """Fields of the scenario to set: apply them to have it so."""
    gain: float
    """Tokens/s more, as a share, predicted with it."""
    step_s: float
    """Step with it."""
    exposed_s: float
    """Change of the communication that does not hide, s a step."""
    option: str | None
    """What it is in the framework's own words; null: nothing to start, only a what-if."""
    exact: bool
    """The same training: no assumption on convergence."""
    risk: str
    """What it does to convergence."""
    source: str
    """What that rests on."""


class Together(Value):
    """Suggestions that keep the training exactly as it is, turned together: their gains do not add up."""

    switches: tuple[str, ...]
    """Each as name=value, in the order they help."""
    changes: dict[str, Any]
    """Fields of the scenario to set."""
    gain: float
    """Tokens/s more, as a share."""
    step_s: float
    """Step with all of them."""


class OtherPlan(Value):
    """What a plan that is free to choose everything would gain."""

    kind: str
    """synchronous, or local update: another algorithm."""
    crossing: str
    """Axis that crosses zones."""
    framework: str
    """Its framework."""
    degrees: dict[str, int]
    """tp, pp, dp, cp, ep."""
    gain: float
    """Tokens/s more than now, as a share."""
    step_s: float
    """Its step."""
    changes: dict[str, Any]
    """Fields of the scenario to set: framework, strategy and placement."""


class NotApplicable(Value):
    """A switch that cannot be turned here."""

    switch: str
    """Its name."""
    value: Any
    """What was tried."""
    reason: dict[str, Any]
    """Why not: code, message, hint."""


class Suggestions(Value):
    """What would make a job faster, by what holds it up."""

    boundness: Boundness
    """communication-bound, balanced or compute-bound."""
    ranked: tuple[Suggestion, ...]
    """Best first."""
    together: Together | None
    """The exact ones turned together; null: none helps."""
    plans: tuple[OtherPlan, ...]
    """The best plans with everything free, synchronous first; empty where they were not asked for or none is better."""
    idle: tuple[str, ...]
    """Switches that were tried and gain nothing here, each as name=value."""
    refused: tuple[NotApplicable, ...]
    """Switches that cannot be turned."""
    host: tuple[HostSetting, ...]
    """Settings of the hosts for the links in use."""


def find_suggestions(
    scenario: Scenario,
    *,
    base: Predictor | None = None,
    plans: bool = False,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    language: str = "en",
) -> Suggestions:
    """Every switch turned to every value worth trying, and what each gains; `plans`: other plans too (seconds). [A6]"""
    current = base or build_predictor(scenario)
    before = build_prediction(current, language)
    ranked: list[Suggestion] = []
    refused: list[NotApplicable] = []
    idle: list[str] = []
    for name, value in _list_tries(current):
        try:
            changes = build_switch_changes(name, value, current)
            after = build_changed_predictor(scenario, changes, current)
            prediction_after = build_prediction(after, language)
        except InputError as error:
            refused.append(NotApplicable(switch=name, value=value, reason=error.notices[0].as_dict(language)))
            continue
        suggestion = _build_suggestion(name, changes, before, prediction_after, after, language)
        if suggestion.gain > LEAST_GAIN and prediction_after.memory_gib.fits >= before.memory_gib.fits:
            ranked.append(suggestion)
        else:
            idle.append(f"{name}={'on' if value is True else value}")
    compute = sum(before.breakdown_s[part] for part in COMPUTE)
    ranked = _drop_equal(sorted(ranked, key=lambda suggestion: -suggestion.gain))
    return Suggestions(
        boundness=classify_boundness(compute, sum_exposed_s(before)),
        ranked=tuple(ranked),
        together=_combine_suggestions(scenario, current, before, ranked),
        plans=tuple(_list_other_plans(scenario, before, progress, cancelled)) if plans else (),
        idle=tuple(idle),
        refused=tuple(refused),
        host=list_host_settings(current, language),
    )


def _list_tries(current: Predictor) -> Iterator[tuple[str, Any]]:
    """Switches and values that are not as they stand already."""
    for switch in load_switches().values():
        for value in switch.tries:
            averages = switch.name in PARTS_OF_LOCAL and current.strategy.local_update is None
            alone = switch.name == "local_steps" and not current.placed.crosses
            if value != get_switch_value(switch.name, current) and not averages and not alone:
                yield switch.name, value


def _drop_equal(ranked: list[Suggestion]) -> list[Suggestion]:
    """Without values of a switch that gain the same as another one before it."""
    distinct: list[Suggestion] = []
    for suggestion in ranked:
        if not any(
            other.switch == suggestion.switch and abs(other.gain - suggestion.gain) < SAME for other in distinct
        ):
            distinct.append(suggestion)
    return distinct


def _list_other_plans(
    scenario: Scenario, before: Prediction, progress: Progress | None, cancelled: Callable[[], bool] | None
) -> Iterator[OtherPlan]:
    """The best synchronous plan and the best with local updates, where nothing is pinned."""
    try:
        plans = plan(scenario.replace(strategy=None, placement=None), top=1, progress=progress, cancelled=cancelled)
    except InputError:
        return
    for candidate in (*plans.plans[:1], *plans.local_updates[:1]):
        gain = candidate.prediction.tokens_per_s.expected / before.tokens_per_s.expected - 1.0
        if gain > LEAST_GAIN:
            s = candidate.strategy
            yield OtherPlan(
                kind=candidate.kind,
                crossing=candidate.crossing,
                framework=candidate.framework,
                degrees={name: int(getattr(s, name) or 1) for name in ("tp", "pp", "dp", "cp", "ep")},
                gain=gain,
                step_s=candidate.prediction.step_time_s.expected,
                changes={
                    "job.framework": candidate.framework,
                    "strategy": s.to_plain(),
                    "placement": candidate.placement.to_plain(),
                },
            )


def _build_suggestion(
    name: str, changes: dict[str, Any], before: Prediction, prediction: Prediction, after: Predictor, language: str
) -> Suggestion:
    switch = load_switches()[name]
    return Suggestion(
        switch=name,
        value=_format_value(name, after),
        title=render_sentence("switch", name, "title", language, {}),
        changes=changes,
        gain=prediction.tokens_per_s.expected / before.tokens_per_s.expected - 1.0,
        step_s=prediction.step_time_s.expected,
        exposed_s=sum_exposed_s(prediction) - sum_exposed_s(before),
        option=find_option(name, after),
        exact=not switch.source,
        risk=describe_convergence(name, get_switch_value(name, after), language),
        source=switch.source,
    )


def _format_value(name: str, after: Predictor) -> Any:
    """The value as one would type it."""
    value = get_switch_value(name, after)
    rank = after.strategy.communication.compression_rank
    return f"{value}:{rank}" if name == "compression" and rank else value


def _combine_suggestions(
    scenario: Scenario, current: Predictor, before: Prediction, ranked: list[Suggestion]
) -> Together | None:
    """The exact suggestions turned one after the other, the best next, as long as one helps."""
    changes: dict[str, Any] = {}
    names: list[str] = []
    best = before.tokens_per_s.expected
    remaining = [suggestion for suggestion in ranked if suggestion.exact and suggestion.option is not None]
    step = before.step_time_s.expected
    while remaining and len(names) < TOGETHER:
        best_step: tuple[float, Suggestion, Prediction] | None = None
        for suggestion in remaining:
            if any(changes.get(path, value) != value for path, value in suggestion.changes.items()):
                continue  # two ways to set the same field
            try:
                after = build_prediction(build_changed_predictor(scenario, changes | suggestion.changes, current))
            except InputError:
                continue
            rate = after.tokens_per_s.expected
            # what did not fit before need not fit now, but nothing may stop fitting
            fits = after.memory_gib.fits >= before.memory_gib.fits
            if fits and rate > best * (1 + LEAST_GAIN) and (best_step is None or rate > best_step[0]):
                best_step = rate, suggestion, after
        if best_step is None:
            break
        best, chosen, after = best_step
        changes |= chosen.changes
        step = after.step_time_s.expected
        names.append(f"{chosen.switch}={chosen.value}")
        remaining = [suggestion for suggestion in remaining if suggestion.switch != chosen.switch]
    if not names:
        return None
    gain = best / before.tokens_per_s.expected - 1.0
    return Together(switches=tuple(names), changes=changes, gain=gain, step_s=step)
