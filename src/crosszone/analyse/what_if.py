"""What-if: fields changed or switches turned -> the whole new prediction, and the difference by part.

    answer = what_if(scenario, {"cluster.links[*].gbps": 40})
    answer.gain, answer.difference.parts[0]

Availability: which values of which switches a scenario could take, and why not the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from crosszone.analyse.fields import change_scenario
from crosszone.analyse.switches import (
    PARTS_OF_LOCAL,
    Switch,
    build_switch_changes,
    describe_convergence,
    find_option,
    get_switch_value,
    list_frameworks_with,
    list_switches,
    load_switches,
)
from crosszone.analyse.switches import Listed as Standing
from crosszone.errors import InputError, InvalidError, Notice
from crosszone.inputs.frameworks import load_frameworks
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.value import Value
from crosszone.plan.comparison import Difference, compare_predictions
from crosszone.predict.predict import build_prediction, build_predictor
from crosszone.predict.prediction import Prediction
from crosszone.predict.predictor import Predictor


class Turned(Value):
    """One switch that was turned."""

    name: str
    """Name of the switch."""
    before: Any
    """How it stood."""
    after: Any
    """How it stands."""
    option: str | None
    """What that is in the framework's own words; null: it has no such option."""
    convergence: str
    """What it does to convergence, as an assumption."""
    source: str
    """What the assumption rests on; empty where nothing is assumed."""


class WhatIf(Value):
    """A prediction and what would become of it."""

    changes: dict[str, Any]
    """Fields of the scenario that differ: apply them to have it so."""
    switches: tuple[Turned, ...]
    """Switches that were turned."""
    before: Prediction
    """As it is."""
    after: Prediction
    """As it would be."""
    difference: Difference
    """By part, second less first."""
    gain: float
    """Tokens/s more, as a share: 0.1 is a tenth."""
    exposed_s: float
    """Change of the communication that does not hide, s."""
    bytes_between_zones: float
    """Change of the bytes that cross zones in a step."""
    notices: tuple[dict[str, Any], ...]
    """What to know of the comparison: code, level, message, hint."""


def what_if(
    scenario: Scenario,
    changes: Mapping[str, Any] | None = None,
    turn: Sequence[tuple[str, Any]] = (),
    *,
    base: Predictor | None = None,
    before: Prediction | None = None,
    language: str = "en",
) -> WhatIf:
    """The prediction with some fields changed and some switches turned, beside the one without. [A3]

    The framework is that of the scenario as it is, unless it is changed too; `base` and `before` may be given where
    they are known. An `InputError` says what cannot be.
    """
    current = base or build_predictor(scenario)
    fields = collect_changes(scenario, changes or {}, turn, current)
    after = build_changed_predictor(scenario, fields, current)
    first = before or build_prediction(current, language)
    second = build_prediction(after, language)
    turns = tuple(_describe_turn(name, current, after, language) for name, _ in turn)
    notices = [
        *_list_batch_notices(first, second, current, after),
        *_list_missing_options(turns, after),
        *_list_idle_notices(first, second, turns),
    ]
    return WhatIf(
        changes=fields,
        switches=turns,
        before=first,
        after=second,
        difference=compare_predictions(first, second),
        gain=second.tokens_per_s.expected / first.tokens_per_s.expected - 1.0,
        exposed_s=sum_exposed_s(second) - sum_exposed_s(first),
        bytes_between_zones=sum_bytes_between_zones(second) - sum_bytes_between_zones(first),
        notices=tuple(notice.as_dict(language) for notice in notices),
    )


def collect_changes(
    scenario: Scenario, changes: Mapping[str, Any], turn: Sequence[tuple[str, Any]], current: Predictor
) -> dict[str, Any]:
    """Fields to set for some changes and switches together; an `InputError` names one that is set twice."""
    fields = dict(changes)
    for name, value in sorted(turn, key=lambda pair: pair[0] in PARTS_OF_LOCAL):
        # how zones average can be turned together with the switch that makes them average
        needs_local_update = name in PARTS_OF_LOCAL and current.strategy.local_update is None and fields
        new = build_switch_changes(
            name, value, build_changed_predictor(scenario, fields, current) if needs_local_update else current
        )
        twice = sorted(set(new) & set(fields))
        if twice:
            raise InvalidError(Notice(code="change_twice", field=name, value=twice[0]))
        fields |= new
    return fields


def build_changed_predictor(scenario: Scenario, changes: Mapping[str, Any], current: Predictor) -> Predictor:
    """The scenario with fields changed, on the framework it has now unless that is changed."""
    return build_predictor(build_changed_scenario(scenario, changes, current), profiles=current.profiles)


def build_changed_scenario(scenario: Scenario, changes: Mapping[str, Any], current: Predictor) -> Scenario:
    """That scenario."""
    # else `any` might choose another framework for the change, and the gain would be that of the framework
    framework_kept = {} if "job.framework" in changes else {"job.framework": current.framework.name}
    return change_scenario(scenario, {**framework_kept, **changes})


def sum_exposed_s(prediction: Prediction) -> float:
    """Seconds of a step in which communication does not hide."""
    return sum(row.exposed_s for row in prediction.communication)


def sum_bytes_between_zones(prediction: Prediction) -> float:
    """Bytes a step that cross from zone to zone."""
    return sum(row.bytes_per_step for row in prediction.communication if " > " in row.link)


def _describe_turn(name: str, current: Predictor, after: Predictor, language: str) -> Turned:
    return Turned(
        name=name,
        before=get_switch_value(name, current),
        after=get_switch_value(name, after),
        option=find_option(name, after),
        convergence=describe_convergence(name, get_switch_value(name, after), language),
        source=load_switches()[name].source,
    )


def _list_batch_notices(first: Prediction, second: Prediction, current: Predictor, after: Predictor) -> list[Notice]:
    """That a step does not do the same work, so that steps cannot be compared."""
    job_before, job_after = current.case.job, after.case.job
    notices = []
    if job_before.tokens_per_step != job_after.tokens_per_step:
        params = {
            "before": job_before.global_batch,
            "after": job_after.global_batch,
            "micro_batches": second.micro_batches,
        }
        code = (
            "global_batch_changed" if job_before.global_batch != job_after.global_batch else "tokens_per_step_changed"
        )
        notices.append(Notice(code=code, level="warning", field="job.global_batch", params=params))
    if first.framework != second.framework:
        names: dict[str, Any] = {"before": first.framework, "after": second.framework}
        notices.append(Notice(code="framework_changed", level="warning", field="job.framework", params=names))
    return notices


def _list_idle_notices(first: Prediction, second: Prediction, turns: Sequence[Turned]) -> list[Notice]:
    """That a switch was turned and nothing came of it."""
    same = first.step_time_s == second.step_time_s and first.communication == second.communication
    moved = [turn for turn in turns if turn.before != turn.after]
    if not same or not moved:
        return []
    return [Notice(code="switch_idle", level="note", field=turn.name, value=turn.after) for turn in moved]


def _list_missing_options(turns: Sequence[Turned], after: Predictor) -> list[Notice]:
    """Switches for which the framework has nothing: a what-if, nothing to start."""
    notices = []
    for turn in turns:
        if turn.option is None and turn.after is not None and (turn.name, turn.after) != ("local_steps", 0):
            alternatives = [
                name for name in list_frameworks_with(turn.name, turn.after) if name != after.framework.name
            ]
            able = [load_frameworks()[name].title for name in alternatives]
            code = "switch_other_framework" if able else "switch_no_option"
            params = {"framework": after.framework.title, "frameworks": able}
            notices.append(Notice(code=code, level="warning", field=turn.name, value=turn.after, params=params))
    return notices


RANK = 64  # Rank with which PowerSGD is tried


class Available(Standing):
    """A switch as it can be shown and turned."""

    pinned: bool
    """The scenario itself says how it stands."""
    sets: tuple[str, ...]
    """Fields of the strategy that it sets: null in their place lets it go."""
    refused: dict[str, dict[str, Any]]
    """Values that cannot be taken here, each with its reason: code, message, hint."""
    reason: dict[str, Any] | None
    """Why it cannot be turned at all; null: it can."""


def list_available_switches(
    scenario: Scenario, current: Predictor, pinned: dict[str, Any], language: str
) -> tuple[Available, ...]:
    """All switches with what each could be turned to; `pinned`: the strategy as the user wrote it."""
    switches_available = []
    for listed_switch in list_switches(current, language):
        switch = load_switches()[listed_switch.name]
        refused: dict[str, dict[str, Any]] = {}
        tried = [value for value in _list_values(switch) if value != get_switch_value(listed_switch.name, current)]
        for value in tried:
            try:
                build_changed_predictor(
                    scenario, build_switch_changes(listed_switch.name, _format_typed(switch, value), current), current
                )
            except InputError as error:
                refused[_format_word(value)] = error.notices[0].as_dict(language)
        sets = _SETS.get(listed_switch.name) or ((switch.sets,) if switch.sets else ())
        switches_available.append(
            Available(
                **listed_switch.model_dump(),
                pinned=any(_is_stated(pinned, path) for path in sets),
                sets=sets,
                refused=refused,
                reason=next(iter(refused.values())) if refused and len(refused) == len(tried) else None,
            )
        )
    return tuple(switches_available)


_SETS = {
    "compression": ("strategy.communication.compression", "strategy.communication.compression_rank"),
    "primitive": ("strategy.communication.algorithm", "strategy.communication.reduce"),
    "local_steps": ("strategy.local_update",),
}


def _list_values(switch: Switch) -> tuple[Any, ...]:
    """Every value of a choice or flag; of a number one that it takes everywhere."""
    if switch.values:
        return switch.values
    if switch.takes == "flag":
        return True, False
    numbers = [value for value in switch.tries if not isinstance(value, str)]
    usual = min(switch.high, max(switch.low, 1))
    return (*numbers[:1], int(usual) if switch.takes == "count" else usual)[:1]


def _format_typed(switch: Switch, value: Any) -> Any:
    return f"{value}:{RANK}" if (switch.name, value) == ("compression", "powersgd") else value


def _format_word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_stated(strategy: dict[str, Any], path: str) -> bool:
    """The user wrote something at a path."""
    value: Any = {"strategy": strategy}
    for step in path.split("."):
        if not isinstance(value, dict) or value.get(step) is None:
            return False
        value = value[step]
    return True
