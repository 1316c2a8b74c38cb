"""Run monitor: a run beside its prediction: the parts of a step, what drifted since when, whether to re-plan.

    comparison = compare_run(work, read_rows(runner, newest=True))
    comparison.step.ratio, [drift.notice for drift in comparison.drifts], comparison.replan.proposed
    localize_comparison(comparison, "zh")         # the same with its notices in words

A part has drifted when its newest level lies outside the predicted range, or when it has become slower in the course of
the run (`run/measurements.py` says what counts as a change). Steps in which a run warms up are left out.

Re-plan: where communication has drifted, the rates that links seem to give, and whether another plan for those rates
would repay the cost of changing to it:

    link = infer_link_rate(work, part, level)                 # the rates at which the prediction would be as measured
    propose_replan(work, prediction, rows, link, ...)         # proposed, or why not

Changing costs a checkpoint and a restart; it gains what a step is shorter times the steps that are left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Any, Literal

from crosszone.errors import InputError, Notice
from crosszone.inputs.links import build_zone_links
from crosszone.inputs.scenario import Scenario, parse_scenario
from crosszone.inputs.value import Value
from crosszone.plan.crossover import scale_zone_links
from crosszone.plan.plan import apply_plan
from crosszone.plan.planner import plan, select_best
from crosszone.predict.breakdown import build_breakdown
from crosszone.predict.predict import build_predictor
from crosszone.predict.prediction import Prediction
from crosszone.predict.run import read_power_figures
from crosszone.run.measurements import (
    MATERIAL_SHARE,
    MIN_RATIO,
    MIN_STANDARD_ERRORS,
    MIN_STEPS,
    NAMES,
    WARM_UP,
    WINDOW,
    PredictedPart,
    Row,
    SeriesLevel,
    average_periods,
    compute_typical,
    find_level,
    find_period,
    group_predicted_parts,
    is_pure,
    split_warm_up,
)
from crosszone.run.work import PLAN, TaskWork
from crosszone.store.tasks import encode_notice
from crosszone.text import Label

StoredNotice = dict[str, Any]  # A notice: code, level, field, value, params; once localized also message and hint


class ComparedPart(Value):
    """One part of a step, measured beside predicted."""

    name: str
    """step, compute, communication, input, waiting or other."""
    measured_s: float | None
    """Mean of the middle half of the newest steps, so that parts add up to the step; null: none was measured yet."""
    predicted_s: float
    """What was expected."""
    low_s: float
    """Below this it is outside the prediction."""
    high_s: float
    """Above this it is outside the prediction."""
    ratio: float | None
    """Measured over predicted; null: one of them is not known or is 0."""
    inside: bool | None
    """Within low and high; null: not measured yet."""
    covers: tuple[str, ...]
    """The prediction's own parts in it: what the trainer cannot tell apart."""


class ComparedStep(Value):
    """One step as it was measured."""

    step: int
    """Its number."""
    step_s: float
    """How long it took."""
    parts_s: dict[str, float]
    """Its parts; they add up to it."""
    inside: bool
    """Within the predicted range."""
    warm_up: bool
    """Left out of everything else, for the run was warming up."""


class Drift(Value):
    """A part that is not as predicted."""

    part: str
    """Its name."""
    kind: Literal["outside", "slower"]
    """Outside the predicted range; or within it, but slower than before."""
    since_step: int
    """First step that was so."""
    now_s: float
    """Present level."""
    before_s: float | None
    """Level before it changed; null: it never did, so it was never as predicted."""
    predicted_s: float
    """What was expected."""
    ratio: float | None
    """Present level over the predicted; null: nothing was expected."""
    link: ImpliedLinkRate | None
    """What the links between zones seem to give; null: they do not explain it."""
    notice: StoredNotice
    """What it means, in words."""


class RunComparison(Value):
    """A run beside its prediction."""

    steps_seen: int
    """Steps that were read."""
    warm_up_steps: int
    """Of them left out, for the run was warming up."""
    first_step: int | None
    """First step that counts; null: none yet."""
    last_step: int | None
    """Newest step; null: none yet."""
    window: int
    """Newest steps that the measured figures are of."""
    every: int
    """Steps that were averaged into one: local updates exchange only now and then."""
    step: ComparedPart
    """The step."""
    parts: tuple[ComparedPart, ...]
    """Its parts; they add up to it, measured as predicted."""
    tokens_per_s: float | None
    """Measured, by the same steps; null: not known."""
    tokens_per_s_predicted: float
    """Expected."""
    memory_gib: float | None
    """Measured peak; on a CPU of the process, which is more than what was predicted; null: not known."""
    memory_gib_predicted: float
    """Expected peak of the fullest GPU."""
    between_s: float | None
    """Between two steps, without checkpoints: in no step, but in the run; null: not known."""
    checkpoint_s: float | None
    """Measured time to write a checkpoint; null: none was written yet."""
    checkpoint_s_predicted: float
    """Expected."""
    recent: tuple[ComparedStep, ...]
    """The newest steps."""
    drifts: tuple[Drift, ...]
    """What is not as predicted, the most seconds first."""
    replan: Replan | None
    """Whether another plan would repay its cost; null: nothing suggests one."""
    notices: tuple[StoredNotice, ...]
    """What to know of the comparison."""
    thresholds: dict[str, float]
    """What counts as a drift: window, least_steps, least_ratio, material_share, standard_errors."""


def compare_run(work: TaskWork, rows: Sequence[Row]) -> RunComparison:
    """A run beside its prediction; `rows` are those of `run/metrics.py`, oldest first."""
    prediction = Prediction.model_validate(work.prediction)
    framework = work.bundle.framework
    expected = group_predicted_parts(prediction, framework)
    steady, warm = split_warm_up(rows)
    every = find_period(prediction)
    series = average_periods(steady, every)
    window = series[-WINDOW:]
    step = _compare_part("step", prediction.step_time_s.expected, (), prediction, compute_typical(window))
    parts = tuple(
        _compare_part(name, predicted.seconds, predicted.covers, prediction, compute_typical(window))
        for name, predicted in expected.items()
    )
    drifts = _find_drifts(work, prediction, series, expected, step)
    checkpoint = [row["checkpoint_s"] for row in rows if row.get("checkpoint_s")]
    between = [row["between_s"] for row in steady if row.get("between_s") is not None]
    tokens = [row["tokens_per_s"] for row in window if row.get("tokens_per_s")]
    memory = [row["memory_gib"] for row in rows if row.get("memory_gib") is not None]
    checkpoint_s = median(checkpoint) if checkpoint else None
    link = next((drift.link for drift in drifts if drift.link is not None), None)
    return RunComparison(
        steps_seen=len(rows),
        warm_up_steps=len(warm),
        first_step=steady[0]["step"] if steady else None,
        last_step=rows[-1]["step"] if rows else None,
        window=len(window),
        every=every,
        step=step,
        parts=parts,
        tokens_per_s=median(tokens) if tokens else None,
        tokens_per_s_predicted=prediction.tokens_per_s.expected,
        memory_gib=max(memory, default=None),
        memory_gib_predicted=prediction.memory_gib.peak.expected,
        between_s=median(between) if between else None,
        checkpoint_s=checkpoint_s,
        checkpoint_s_predicted=prediction.run.goodput.checkpoint_s,
        recent=tuple(_compare_step(row, step, warm) for row in rows[-WINDOW:]),
        drifts=drifts,
        replan=propose_replan(work, prediction, rows, link, step.measured_s, checkpoint_s),
        notices=tuple(_list_notices(rows, steady, warm, window, every)),
        thresholds={
            "window": WINDOW,
            "least_steps": MIN_STEPS,
            "least_ratio": MIN_RATIO,
            "material_share": MATERIAL_SHARE,
            "standard_errors": MIN_STANDARD_ERRORS,
        },
    )


def localize_comparison(comparison: RunComparison, language: str) -> RunComparison:
    """The comparison with every notice in words."""
    replan = comparison.replan
    return comparison.replace(
        drifts=tuple(drift.replace(notice=_localize_notice(drift.notice, language)) for drift in comparison.drifts),
        replan=None if replan is None else replan.replace(notice=_localize_notice(replan.notice, language)),
        notices=tuple(_localize_notice(notice, language) for notice in comparison.notices),
    )


def _localize_notice(stored: StoredNotice, language: str) -> StoredNotice:
    notice = Notice(**{key: stored[key] for key in ("code", "field", "value", "level", "params")})
    return stored | notice.as_dict(language)


# ---- parts and drift ----


def _compare_step(row: Row, step: ComparedPart, warm: set[int]) -> ComparedStep:
    return ComparedStep(
        step=row["step"],
        step_s=row["step_s"],
        parts_s={name: row["parts"][f"{name}_s"] for name in NAMES},
        inside=step.low_s <= row["step_s"] <= step.high_s,
        warm_up=row["step"] in warm,
    )


def _compare_part(
    name: str, predicted_s: float, covers: tuple[str, ...], prediction: Prediction, measured: Mapping[str, float]
) -> ComparedPart:
    low, high = compute_band(predicted_s, prediction, is_step=name == "step")
    measured_s = measured.get(name)
    return ComparedPart(
        name=name,
        measured_s=measured_s,
        predicted_s=predicted_s,
        low_s=low,
        high_s=high,
        ratio=measured_s / predicted_s if measured_s is not None and predicted_s > 0 else None,
        inside=None if measured_s is None else low <= measured_s <= high,
        covers=covers,
    )


def compute_band(seconds: float, prediction: Prediction, *, is_step: bool) -> tuple[float, float]:
    """The range of a part: that of the step on its scale, and a share of the step more, below which nothing matters."""
    step = prediction.step_time_s
    low, high = seconds * step.low / step.expected, seconds * step.high / step.expected
    slack = 0.0 if is_step else MATERIAL_SHARE * step.expected
    return max(0.0, low - slack), high + slack


def _find_drifts(
    work: TaskWork,
    prediction: Prediction,
    series: Sequence[Row],
    expected: Mapping[str, PredictedPart],
    step: ComparedPart,
) -> tuple[Drift, ...]:
    """Every part that has drifted; the step itself only where no part of it explains why."""
    if len(series) < MIN_STEPS:
        return ()
    material = MATERIAL_SHARE * prediction.step_time_s.expected
    drifts = []
    for name, predicted in expected.items():
        level = find_level([row["parts"][f"{name}_s"] for row in series], material=material)
        drift = _detect_drift(work, prediction, name, predicted, level, series)
        if drift is not None:
            drifts.append(drift)
    if not drifts:
        level = find_level([row["step_s"] for row in series], material=material)
        predicted_step = PredictedPart(seconds=step.predicted_s, covers=())
        drift = _detect_drift(work, prediction, "step", predicted_step, level, series)
        drifts = [] if drift is None else [drift]
    return tuple(sorted(drifts, key=lambda drift: -abs(drift.now_s - drift.predicted_s)))


def _detect_drift(
    work: TaskWork, prediction: Prediction, name: str, part: PredictedPart, level: SeriesLevel, series: Sequence[Row]
) -> Drift | None:
    low, high = compute_band(part.seconds, prediction, is_step=name == "step")
    margin = 2.0 * level.error
    is_outside = level.now - margin > high or level.now + margin < low
    is_slower = level.before is not None and level.now > level.before
    if not is_outside and not is_slower:
        return None
    is_slow = level.now > part.seconds if is_outside else True
    link = infer_link_rate(work, part, level) if name in ("communication", "waiting") and is_slow else None
    return Drift(
        part=name,
        kind="outside" if is_outside else "slower",
        since_step=series[level.start]["step"],
        now_s=level.now,
        before_s=level.before,
        predicted_s=part.seconds,
        ratio=level.now / part.seconds if part.seconds > 0 else None,
        link=link,
        notice=encode_notice(_describe_drift(name, part, level, series[level.start]["step"], link, is_slow=is_slow)),
    )


def _describe_drift(
    name: str, part: PredictedPart, level: SeriesLevel, since: int, link: ImpliedLinkRate | None, *, is_slow: bool
) -> Notice:
    """What a drift means in plain words."""
    reference_s = part.seconds or level.before or 0.0
    params: dict[str, Any] = {
        "since": since,
        "now": format_seconds(level.now),
        "predicted": format_seconds(part.seconds),
        "times": f"{level.now / reference_s:.2g}" if reference_s > 0 else "-",
    }
    if not is_slow:
        return Notice(code="twin_faster", level="note", params={**params, "part": Label(f"twin_part_{name}")})
    if link is not None:
        rates = {"link": link.link, "gbps": f"{link.gbps:.3g}", "of": f"{link.planned_gbps:.3g}"}
        return Notice(code="twin_link_slow", level="warning", params={**params, **rates})
    slow_part = "passes" if name == "compute" and not is_pure(part.covers) else name
    return Notice(code=f"twin_{slow_part}_slow", level="warning", params=params)


def _list_notices(
    rows: Sequence[Row], steady: Sequence[Row], warm: set[int], window: Sequence[Row], every: int
) -> list[StoredNotice]:
    notices = []
    if warm:
        params = {"count": len(warm), "each": WARM_UP}
        notices.append(Notice(code="twin_warm_up", level="note", params=params))
    if len(window) < MIN_STEPS:
        params = {"count": len(window), "least": MIN_STEPS, "every": every, "seen": len(rows)}
        notices.append(Notice(code="twin_few_steps", level="note", params=params))
    if steady and steady[-1].get("device") == "cpu":
        notices.append(Notice(code="twin_memory_cpu", level="note"))
    return [encode_notice(notice) for notice in notices]


MIN_FACTOR = 1e-3  # Least share of a rate that is looked for
HALVINGS = 14
PLAN_BUDGET_S = 20.0  # How long is planned anew at most


class ImpliedLinkRate(Value):
    """What links between zones seem to give: the rates at which the prediction would be what was measured."""

    link: str
    """The zones, and where several pairs exchange all of them: which one it is cannot be known."""
    gbps: float
    """What it seems to give, Gbit/s; of several, the slowest."""
    planned_gbps: float
    """What was planned with, Gbit/s."""
    factor: float
    """The first over the second."""


class Replan(Value):
    """Whether to plan anew."""

    proposed: bool
    """It would repay its cost."""
    remaining_steps: int | None
    """Steps that are left; null: the length of the run is not known."""
    step_s: float | None
    """What a step takes now."""
    new_step_s: float | None
    """What it would take; null: nothing else was found."""
    cost_s: float
    """A checkpoint and a restart, each as measured where there was one, else as predicted."""
    gain_s: float | None
    """Time saved until the end of the run, the cost taken off; null: nothing else was found."""
    strategy: dict[str, Any] | None
    """Degrees of the other plan."""
    scenario: str | None
    """The other plan as a scenario, with the links as they seem; null: none is proposed."""
    notice: dict[str, Any]
    """What it means, in words."""


def infer_link_rate(work: TaskWork, part: PredictedPart, level: SeriesLevel) -> ImpliedLinkRate | None:
    """What links between zones give if they alone explain a part's level; None: they do not.

    Where the part was off by a factor before it changed, that factor is taken out.
    """
    reference_s = part.seconds if level.before is None else level.before
    if part.seconds <= 0 or reference_s <= 0 or level.now <= reference_s:
        return None
    factor = _find_rate_factor(work.scenario, part.covers, round(level.now / reference_s, 2))
    if factor is None:
        return None
    scenario = _parse_scenario(work.scenario)
    links = build_zone_links(scenario.cluster)
    used = {frozenset(row["link"].split(" > ")) for row in work.prediction["communication"] if " > " in row["link"]}
    chosen = [link for link in links.values() if frozenset(link.between) in used]
    planned = min(min(link.gbps, link.gbps_back) for link in chosen)
    return ImpliedLinkRate(
        link=", ".join("–".join(link.between) for link in chosen),
        gbps=planned * factor,
        planned_gbps=planned,
        factor=factor,
    )


def propose_replan(
    work: TaskWork,
    prediction: Prediction,
    rows: Sequence[Mapping[str, Any]],
    link: ImpliedLinkRate | None,
    step_s: float | None,
    checkpoint_s: float | None,
) -> Replan | None:
    """Whether another plan for the links as they seem would repay its cost; None: the links seem as planned."""
    if link is None or step_s is None:
        return None
    restart = _measure_restart_s(rows)
    cost = prediction.run.goodput.checkpoint_s if checkpoint_s is None else checkpoint_s
    cost += read_power_figures()["restart_s"] if restart is None else restart
    total_steps = None if work.trainer_settings is None else work.trainer_settings["job"]["steps"]
    remaining_steps = None if total_steps is None else max(0, int(total_steps) - int(rows[-1]["step"]))
    common: dict[str, Any] = {"remaining_steps": remaining_steps, "step_s": step_s, "cost_s": cost}

    def make_refusal(code: str, **params: Any) -> Replan:
        notice = Notice(code=code, level="note", params={"cost": format_seconds(cost), **params})
        unknown = dict.fromkeys(("new_step_s", "gain_s", "strategy", "scenario"))
        return Replan(**unknown | common, proposed=False, notice=encode_notice(notice))

    replanned = _plan_at_rates(work.scenario, float(f"{link.factor:.2g}"))
    if replanned is None:
        return make_refusal("twin_replan_none")
    other, now_s, then_s, same_plan = replanned
    if same_plan or then_s >= now_s:
        return make_refusal("twin_replan_same")
    new_s = step_s * then_s / now_s
    if remaining_steps is None:
        return make_refusal("twin_replan_endless", saved=format_seconds(step_s - new_s))
    gain = remaining_steps * (step_s - new_s) - cost
    strategy = other.to_plain().get("strategy")
    params = {
        "cost": format_seconds(cost),
        "saved": format_seconds(step_s - new_s),
        "left": remaining_steps,
        "gain": format_seconds(gain),
        "least": math.ceil(cost / (step_s - new_s)),
    }
    code = "twin_replan" if gain > 0 else "twin_replan_not_worth"
    return Replan(
        **common,
        proposed=gain > 0,
        new_step_s=new_s,
        gain_s=gain,
        strategy=strategy,
        scenario=other.to_yaml() if gain > 0 else None,
        notice=encode_notice(Notice(code=code, level="warning" if gain > 0 else "note", params=params)),
    )


@lru_cache(maxsize=32)
def _find_rate_factor(text: str, covers: tuple[str, ...], times: float) -> float | None:
    """Factor on all rates between zones that makes some parts so many times as long; None: no rate does.

    The cost formulas are inverted by halving: the slower the links, the longer what they carry.
    """
    scenario = _parse_scenario(text)
    if len(scenario.cluster.zones) < 2:
        return None
    links = build_zone_links(scenario.cluster)

    def predict_s(factor: float) -> float:
        parts = build_breakdown(
            build_predictor(scenario.replace(cluster=scale_zone_links(scenario.cluster, factor, links)))
        )
        return sum(parts[part] for part in covers)

    target_s = times * predict_s(1.0)
    low, high = math.log(MIN_FACTOR), 0.0
    if target_s <= predict_s(1.0) or predict_s(MIN_FACTOR) < target_s:
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if predict_s(math.exp(middle)) > target_s else (low, middle)
    return math.exp((low + high) / 2)


@lru_cache(maxsize=16)
def _plan_at_rates(text: str, factor: float) -> tuple[Scenario, float, float, bool] | None:
    """The best plan for other rates, the step of the present one at them, that of the best, and whether it is the same.

    On the same framework, for another one cannot read its checkpoints.
    """
    present = _parse_scenario(text)
    at_rates = present.replace(cluster=scale_zone_links(present.cluster, factor))
    unplanned = at_rates.replace(strategy=None, placement=None)
    uses_local_updates = present.strategy is not None and present.strategy.local_update is not None
    try:
        search = plan(unplanned, top=1, local_updates=uses_local_updates, budget_s=PLAN_BUDGET_S)
        best = search.local_updates[0] if uses_local_updates and search.local_updates else select_best(search)
        present_prediction = build_predictor(at_rates)
    except InputError:
        return None
    present_plan = present_prediction.strategy, present_prediction.placed.placement
    is_same_plan = (best.strategy, best.placement) == present_plan
    return (
        apply_plan(unplanned, best),
        present_prediction.step_time.expected,
        best.prediction.step_time_s.expected,
        is_same_plan,
    )


@lru_cache(maxsize=16)
def _parse_scenario(text: str) -> Scenario:
    return parse_scenario(text, PLAN).scenario


def _measure_restart_s(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """From the last step of a start to the first of the next, as it was at best; None: there was but one start."""
    gaps = [
        after["ended_unix_s"] - after["step_s"] - before["ended_unix_s"]
        for before, after in pairwise(rows)
        if after.get("start", 0) > before.get("start", 0) and before.get("ended_unix_s") and after.get("ended_unix_s")
    ]
    return min((gap for gap in gaps if gap > 0), default=None)


def format_seconds(value: float) -> str:
    """Seconds as a sentence has them."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
