"""Twin: a run beside its prediction while it runs: the parts of a step, what drifted since when, whether to re-plan.

    twin = twin_of(work, rows_of(runner, newest=True))
    twin.step.ratio, [one.notice for one in twin.drifts], twin.replan.proposed
    worded(twin, "zh")                            # the same with its notices in words

A part has drifted when its newest level lies outside the predicted range, or when it has become slower in the course of
the run (`run/measurements.py` says what counts as a change). Steps in which a run warms up are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal

from crosszone.errors import Notice
from crosszone.inputs.value import Value
from crosszone.predict.prediction import Prediction
from crosszone.run.history import keep
from crosszone.run.measurements import (
    LEAST,
    LEAST_RATIO,
    MATERIAL,
    NAMES,
    SURE,
    WARM_UP,
    WINDOW,
    Level,
    PredictedPart,
    Row,
    averaged,
    is_pure,
    level_of,
    period_of,
    predicted_parts,
    split,
    typical,
)
from crosszone.run.replan import LinkSeems, Replan, replan_of, seconds_text, seems_of
from crosszone.run.work import Work
from crosszone.store.tasks import kept
from crosszone.text import Label

Told = dict[str, Any]  # A notice: code, level, field, value, params; after `worded` also message and hint


class TwinPart(Value):
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


class TwinStep(Value):
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
    link: LinkSeems | None
    """What the links between zones seem to give; null: they do not explain it."""
    notice: Told
    """What it means, in words."""


class Twin(Value):
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
    step: TwinPart
    """The step."""
    parts: tuple[TwinPart, ...]
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
    recent: tuple[TwinStep, ...]
    """The newest steps."""
    drifts: tuple[Drift, ...]
    """What is not as predicted, the most seconds first."""
    replan: Replan | None
    """Whether another plan would repay its cost; null: nothing suggests one."""
    notices: tuple[Told, ...]
    """What to know of the comparison."""
    thresholds: dict[str, float]
    """What counts as a drift: window, least_steps, least_ratio, material_share, standard_errors."""


def twin_of(work: Work, rows: Sequence[Row]) -> Twin:
    """A run beside its prediction; `rows` are those of `run/metrics.py`, oldest first."""
    prediction = Prediction.model_validate(work.prediction)
    framework = work.bundle.framework
    expected = predicted_parts(prediction, framework)
    steady, warm = split(rows)
    every = period_of(prediction)
    series = averaged(steady, every)
    window = series[-WINDOW:]
    step = _part("step", prediction.step_time_s.expected, (), prediction, typical(window))
    parts = tuple(_part(name, one.seconds, one.covers, prediction, typical(window)) for name, one in expected.items())
    drifts = _drifts(work, prediction, series, expected, step)
    checkpoint = [row["checkpoint_s"] for row in rows if row.get("checkpoint_s")]
    between = [row["between_s"] for row in steady if row.get("between_s") is not None]
    tokens = [row["tokens_per_s"] for row in window if row.get("tokens_per_s")]
    memory = [row["memory_gib"] for row in rows if row.get("memory_gib") is not None]
    checkpoint_s = median(checkpoint) if checkpoint else None
    return Twin(
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
        recent=tuple(_step(row, step, warm) for row in rows[-WINDOW:]),
        drifts=drifts,
        replan=replan_of(work, prediction, rows, _link(drifts), step.measured_s, checkpoint_s),
        notices=tuple(_notices(rows, steady, warm, window, every)),
        thresholds={
            "window": WINDOW,
            "least_steps": LEAST,
            "least_ratio": LEAST_RATIO,
            "material_share": MATERIAL,
            "standard_errors": SURE,
        },
    )


def worded(twin: Twin, language: str) -> Twin:
    """The twin with every notice in words."""
    replan = twin.replan
    return twin.replace(
        drifts=tuple(one.replace(notice=_words(one.notice, language)) for one in twin.drifts),
        replan=None if replan is None else replan.replace(notice=_words(replan.notice, language)),
        notices=tuple(_words(one, language) for one in twin.notices),
    )


def _words(told: Told, language: str) -> Told:
    return {
        **told,
        **Notice(**{key: told[key] for key in ("code", "field", "value", "level", "params")}).as_dict(language),
    }


# ---- parts and drift ----


def _step(row: Row, whole: TwinPart, warm: set[int]) -> TwinStep:
    return TwinStep(
        step=row["step"],
        step_s=row["step_s"],
        parts_s={name: row["parts"][f"{name}_s"] for name in NAMES},
        inside=whole.low_s <= row["step_s"] <= whole.high_s,
        warm_up=row["step"] in warm,
    )


def _part(
    name: str, predicted_s: float, covers: tuple[str, ...], prediction: Prediction, measured: Mapping[str, float]
) -> TwinPart:
    low, high = band(predicted_s, prediction, whole=name == "step")
    found = measured.get(name)
    return TwinPart(
        name=name,
        measured_s=found,
        predicted_s=predicted_s,
        low_s=low,
        high_s=high,
        ratio=found / predicted_s if found is not None and predicted_s > 0 else None,
        inside=None if found is None else low <= found <= high,
        covers=covers,
    )


def band(seconds: float, prediction: Prediction, *, whole: bool) -> tuple[float, float]:
    """The range of a part: that of the step on its scale, and a share of the step more, below which nothing matters."""
    step = prediction.step_time_s
    low, high = seconds * step.low / step.expected, seconds * step.high / step.expected
    slack = 0.0 if whole else MATERIAL * step.expected
    return max(0.0, low - slack), high + slack


def _drifts(
    work: Work, prediction: Prediction, series: Sequence[Row], expected: Mapping[str, PredictedPart], step: TwinPart
) -> tuple[Drift, ...]:
    """Every part that has drifted; the step itself only where no part of it explains why."""
    if len(series) < LEAST:
        return ()
    material = MATERIAL * prediction.step_time_s.expected
    found = []
    for name, one in expected.items():
        level = level_of([row["parts"][f"{name}_s"] for row in series], material=material)
        drift = _drift(work, prediction, name, one, level, series)
        if drift is not None:
            found.append(drift)
    if not found:
        level = level_of([row["step_s"] for row in series], material=material)
        whole = PredictedPart(seconds=step.predicted_s, covers=())
        drift = _drift(work, prediction, "step", whole, level, series)
        found = [] if drift is None else [drift]
    return tuple(sorted(found, key=lambda one: -abs(one.now_s - one.predicted_s)))


def _drift(
    work: Work, prediction: Prediction, name: str, part: PredictedPart, level: Level, series: Sequence[Row]
) -> Drift | None:
    low, high = band(part.seconds, prediction, whole=name == "step")
    sure = 2.0 * level.error
    outside = level.now - sure > high or level.now + sure < low
    slower = level.before is not None and level.now > level.before
    if not outside and not slower:
        return None
    slow = level.now > part.seconds if outside else True
    link = seems_of(work, part, level) if name in ("communication", "waiting") and slow else None
    return Drift(
        part=name,
        kind="outside" if outside else "slower",
        since_step=series[level.start]["step"],
        now_s=level.now,
        before_s=level.before,
        predicted_s=part.seconds,
        ratio=level.now / part.seconds if part.seconds > 0 else None,
        link=link,
        notice=kept(_named(name, part, level, series[level.start]["step"], link, slow=slow)),
    )


def _named(name: str, part: PredictedPart, level: Level, since: int, link: LinkSeems | None, *, slow: bool) -> Notice:
    """What a drift means in plain words."""
    against = part.seconds or level.before or 0.0
    params: dict[str, Any] = {
        "since": since,
        "now": seconds_text(level.now),
        "predicted": seconds_text(part.seconds),
        "times": f"{level.now / against:.2g}" if against > 0 else "-",
    }
    if not slow:
        return Notice(code="twin_faster", level="note", params={**params, "part": Label(f"twin_part_{name}")})
    if link is not None:
        rates = {"link": link.link, "gbps": f"{link.gbps:.3g}", "of": f"{link.planned_gbps:.3g}"}
        return Notice(code="twin_link_slow", level="warning", params={**params, **rates})
    if name == "compute" and not is_pure(part.covers):
        return Notice(code="twin_passes_slow", level="warning", params=params)
    codes = {
        "compute": "twin_compute_slow",
        "communication": "twin_communication_slow",
        "input": "twin_input_slow",
        "waiting": "twin_waiting_slow",
        "other": "twin_other_slow",
        "step": "twin_step_slow",
    }
    return Notice(code=codes[name], level="warning", params=params)


def _notices(
    rows: Sequence[Row], steady: Sequence[Row], warm: set[int], window: Sequence[Row], every: int
) -> list[Told]:
    found = []
    if warm:
        params = {"count": len(warm), "each": WARM_UP}
        found.append(Notice(code="twin_warm_up", level="note", params=params))
    if len(window) < LEAST:
        params = {"count": len(window), "least": LEAST, "every": every, "seen": len(rows)}
        found.append(Notice(code="twin_few_steps", level="note", params=params))
    if steady and steady[-1].get("device") == "cpu":
        found.append(Notice(code="twin_memory_cpu", level="note"))
    return [kept(one) for one in found]


def _link(drifts: Sequence[Drift]) -> LinkSeems | None:
    return next((one.link for one in drifts if one.link is not None), None)


__all__ = ["Drift", "Twin", "TwinPart", "TwinStep", "keep", "twin_of", "worded"]
