"""Suggestions: switches turned one by one, each predicted anew, ranked by what they gain.

answer = suggestions(load_scenario("examples/three-cities.yaml"))
answer.ranked[0].option, answer.ranked[0].gain
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from crosszone.analyse.communication import Boundness, boundness_of
from crosszone.analyse.host import HostSetting, host_settings
from crosszone.analyse.switches import PARTS_OF_LOCAL, changes_of, convergence_of, option_of, switches, value_of
from crosszone.analyse.what_if import changed_predictor, exposed_s
from crosszone.errors import InputError
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.value import Value
from crosszone.plan.planner import plan
from crosszone.plan.search import Progress
from crosszone.predict.breakdown import COMPUTE
from crosszone.predict.predict import build_prediction, predictor
from crosszone.predict.prediction import Prediction
from crosszone.predict.predictor import Predictor
from crosszone.text import sentence

LEAST_GAIN = 1e-3
"""Share of the tokens/s that a suggestion must gain."""
SAME = 1e-6
"""Difference of two gains that is none."""
TOGETHER = 6
"""Switches turned together at most."""


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


def suggestions(
    scenario: Scenario,
    *,
    base: Predictor | None = None,
    plans: bool = False,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    language: str = "en",
) -> Suggestions:
    """Every switch turned to every value worth trying, and what each gains; `plans`: other plans too (seconds). [A6]"""
    now = base or predictor(scenario)
    before = build_prediction(now, language)
    ranked: list[Suggestion] = []
    refused: list[NotApplicable] = []
    idle: list[str] = []
    for name, value in _tries(now):
        try:
            changes = changes_of(name, value, now)
            after = changed_predictor(scenario, changes, now)
            found = build_prediction(after, language)
        except InputError as error:
            refused.append(NotApplicable(switch=name, value=value, reason=error.notices[0].as_dict(language)))
            continue
        one = _suggestion(name, changes, before, found, after, language)
        if one.gain > LEAST_GAIN and found.memory_gib.fits >= before.memory_gib.fits:
            ranked.append(one)
        else:
            idle.append(f"{name}={'on' if value is True else value}")
    compute = sum(before.breakdown_s[part] for part in COMPUTE)
    ranked = _distinct(sorted(ranked, key=lambda one: -one.gain))
    return Suggestions(
        boundness=boundness_of(compute, exposed_s(before)),
        ranked=tuple(ranked),
        together=_together(scenario, now, before, ranked),
        plans=tuple(_plans(scenario, before, progress, cancelled)) if plans else (),
        idle=tuple(idle),
        refused=tuple(refused),
        host=host_settings(now, language),
    )


def _tries(now: Predictor) -> Iterator[tuple[str, Any]]:
    """Switches and values that are not as they stand already."""
    for switch in switches().values():
        for value in switch.tries:
            averages = switch.name in PARTS_OF_LOCAL and now.strategy.local_update is None
            alone = switch.name == "local_steps" and not now.site.crosses
            if value != value_of(switch.name, now) and not averages and not alone:
                yield switch.name, value


def _distinct(ranked: list[Suggestion]) -> list[Suggestion]:
    """Without values of a switch that gain the same as another one before it."""
    found: list[Suggestion] = []
    for one in ranked:
        if not any(other.switch == one.switch and abs(other.gain - one.gain) < SAME for other in found):
            found.append(one)
    return found


def _plans(
    scenario: Scenario, before: Prediction, progress: Progress | None, cancelled: Callable[[], bool] | None
) -> Iterator[OtherPlan]:
    """The best synchronous plan and the best with local updates, where nothing is pinned."""
    try:
        free = plan(scenario.replace(strategy=None, placement=None), top=1, progress=progress, cancelled=cancelled)
    except InputError:
        return
    for one in (*free.plans[:1], *free.local_updates[:1]):
        gain = one.prediction.tokens_per_s.expected / before.tokens_per_s.expected - 1.0
        if gain > LEAST_GAIN:
            s = one.strategy
            yield OtherPlan(
                kind=one.kind,
                crossing=one.crossing,
                framework=one.framework,
                degrees={name: int(getattr(s, name) or 1) for name in ("tp", "pp", "dp", "cp", "ep")},
                gain=gain,
                step_s=one.prediction.step_time_s.expected,
                changes={
                    "job.framework": one.framework,
                    "strategy": s.to_plain(),
                    "placement": one.placement.to_plain(),
                },
            )


def _suggestion(
    name: str, changes: dict[str, Any], before: Prediction, found: Prediction, after: Predictor, language: str
) -> Suggestion:
    switch = switches()[name]
    return Suggestion(
        switch=name,
        value=_shown(name, after),
        title=sentence("switch", name, "title", language, {}),
        changes=changes,
        gain=found.tokens_per_s.expected / before.tokens_per_s.expected - 1.0,
        step_s=found.step_time_s.expected,
        exposed_s=exposed_s(found) - exposed_s(before),
        option=option_of(name, after),
        exact=not switch.source,
        risk=convergence_of(name, value_of(name, after), language),
        source=switch.source,
    )


def _shown(name: str, after: Predictor) -> Any:
    """The value as one would type it."""
    value = value_of(name, after)
    rank = after.strategy.communication.compression_rank
    return f"{value}:{rank}" if name == "compression" and rank else value


def _together(scenario: Scenario, now: Predictor, before: Prediction, ranked: list[Suggestion]) -> Together | None:
    """The exact suggestions turned one after the other, the best next, as long as one helps."""
    changes: dict[str, Any] = {}
    names: list[str] = []
    best = before.tokens_per_s.expected
    left = [one for one in ranked if one.exact and one.option is not None]
    step = before.step_time_s.expected
    while left and len(names) < TOGETHER:
        found: tuple[float, Suggestion, Prediction] | None = None
        for one in left:
            if any(changes.get(path, value) != value for path, value in one.changes.items()):
                continue  # two ways to set the same field
            try:
                after = build_prediction(changed_predictor(scenario, changes | one.changes, now))
            except InputError:
                continue
            rate = after.tokens_per_s.expected
            fits = after.memory_gib.fits >= before.memory_gib.fits
            if fits and rate > best * (1 + LEAST_GAIN) and (found is None or rate > found[0]):
                found = rate, one, after
        if found is None:
            break
        best, chosen, after = found
        changes |= chosen.changes
        step = after.step_time_s.expected
        names.append(f"{chosen.switch}={chosen.value}")
        left = [one for one in left if one.switch != chosen.switch]
    if not names:
        return None
    gain = best / before.tokens_per_s.expected - 1.0
    return Together(switches=tuple(names), changes=changes, gain=gain, step_s=step)
