"""Single-run calibration: move the coefficients that matter for a run until its step is predicted.

    calibration = calibrate_single_run(Path("train.log"), load_scenario("run.yaml"), name="my-cluster")
    calibration.moved[0].field, calibration.moved[0].after   # which coefficients moved, and to what
    calibration.next_runs[0].name                            # the short run that would be most informative
    own_profiles.save(calibration.profile)

The total is never scaled: each coefficient has a meaning, so another strategy on the same cluster is predicted with
what was learned of it. What the log does not determine stays as it was, and is named.

`rank_next_runs` says which other strategy, run on the same cluster, would settle most of the order of the best plans:

    runs = rank_next_runs(present, alternatives, covariance)
    runs[0].name, runs[0].sd_after_pct             # "tp x2": 4.1 % would become 2.2 %
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from crosszone.calibrate.coefficient_estimate import (
    MODEL_ERROR,
    PART_ERROR,
    CoefficientPrior,
    SingleRunEstimate,
    build_priors,
    condition_covariance,
    estimate_coefficients,
    measure_sensitivities,
)
from crosszone.calibrate.fit import Vector
from crosszone.calibrate.log_formats import AUTO, KINETO, read_log
from crosszone.calibrate.training_log import (
    LEAST_STEPS,
    Log,
    LogContext,
    SteadyStep,
    is_only_warm_up,
    measure_steady_step,
)
from crosszone.cost.coefficients import Coefficient
from crosszone.cost.own_profiles import OwnProfile, check_name, format_now, name_from
from crosszone.cost.profile import Profiles
from crosszone.errors import InputError, InvalidError, Notice
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.strategy import Strategy
from crosszone.predict.batch import get_cell, select_row
from crosszone.predict.parts import select_parts
from crosszone.predict.predict import build_predictor
from crosszone.predict.predictor import OF_LINKS, OF_STEP, Predictor

BEST_PLANS = 3  # Plans whose order is to be settled
RECOMPUTE_MODES = ("none", "selective", "full")


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Another strategy on the same cluster."""

    name: str
    step_s: float
    """Predicted with the coefficients after the log."""
    sensitivity: Vector
    """Of the logarithm of its step, in the order of the priors."""


@dataclass(frozen=True, kw_only=True)
class NextRun:
    """What would be known of the best plans after a run of an alternative."""

    name: str
    step_s: float
    sd_before_pct: float
    sd_after_pct: float
    """Standard deviation of the difference between two of the best plans, now and after the run."""


def iterate_variations(strategy: Strategy) -> Iterator[tuple[str, dict[str, Any]]]:
    """Strategies one change away that use as many GPUs: name and changed fields."""
    dp, tp, pp = strategy.dp or 1, strategy.tp, strategy.pp
    for name, degree in (("tp", tp), ("pp", pp)):
        if dp % 2 == 0:
            yield f"{name} x2", {name: 2 * degree, "dp": dp // 2}
        if degree % 2 == 0:
            yield f"{name} / 2", {name: degree // 2, "dp": 2 * dp}
    if tp % 2 == 0:
        yield "tp / 2, pp x2", {"tp": tp // 2, "pp": 2 * pp}
    if pp % 2 == 0:
        yield "tp x2, pp / 2", {"tp": 2 * tp, "pp": pp // 2}
    yield "micro_batch x2", {"micro_batch": 2 * strategy.micro_batch}
    if strategy.micro_batch % 2 == 0:
        yield "micro_batch / 2", {"micro_batch": strategy.micro_batch // 2}
    for kind in RECOMPUTE_MODES:
        if kind != strategy.recompute:
            yield f"recompute {kind}", {"recompute": kind}


def rank_next_runs(present: Alternative, alternatives: Sequence[Alternative], covariance: Vector) -> list[NextRun]:
    """What would be known after a run of each of the others, the most useful first. [K36]

    Variance of the difference of two plans: (j_a - j_b)' P (j_a - j_b) with the sensitivities j of their steps and the
    covariance P of the coefficients; mean over pairs of the three fastest plans, before and after a run of a strategy c
    (P - P j_c j_c' P / (j_c' P j_c + 0.05^2)).
    """
    fastest = sorted([present, *alternatives], key=lambda alternative: alternative.step_s)[:BEST_PLANS]
    gaps = [a.sensitivity - b.sensitivity for a, b in combinations(fastest, 2)]

    def compute_spread_pct(covariance: Vector) -> float:
        mean = sum(float(gap @ covariance @ gap) for gap in gaps) / max(1, len(gaps))
        return 100.0 * float(np.sqrt(max(0.0, mean)))

    sd_before_pct = compute_spread_pct(covariance)
    next_runs = []
    for alternative in alternatives:
        after = condition_covariance(covariance, alternative.sensitivity[None, :], np.array([MODEL_ERROR]))
        run = NextRun(
            name=alternative.name,
            step_s=alternative.step_s,
            sd_before_pct=sd_before_pct,
            sd_after_pct=compute_spread_pct(after),
        )
        next_runs.append(run)
    return sorted(next_runs, key=lambda run: (run.sd_after_pct, run.step_s))


PARTS_OF_COEFFICIENTS = (*OF_STEP, *OF_LINKS)  # Parts of a predictor that follow from the coefficients
LEAST_CHANGE = 0.005  # A smaller change of a coefficient is none
UNINFORMED_SHARE = 0.9  # A coefficient that keeps more of its error than this was not informed by the log
LEAST_WORTH = 0.01  # Share of a step that an error must be worth to be named
USEFUL_RUN_SHARE = 0.97  # A next run is suggested if it leaves less of the standard deviation between plans
# Standard deviations that a coefficient may move before that is doubted, and before the log is refused.
UNLIKELY_SD, IMPOSSIBLE_SD = 5.0, 10.0
# A part of the log that differs by this factor from the predicted one is another thing of the same name.
MOST_PART_RATIO = 3.0
DIGITS = 4

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class MovedCoefficient:
    """A coefficient that the log has moved. Field names are keys of the JSON answer."""

    field: str
    kept_with: str
    """The GPU kinds or the stack that it belongs to."""
    before: float
    after: float
    change_pct: float
    error_before_pct: float
    error_after_pct: float
    at_limit: bool
    """It ended at the limit of its prior; what it could not explain moved other coefficients."""


@dataclass(frozen=True, kw_only=True)
class UninformedCoefficient:
    """A coefficient that the log says nothing of, so it did not move, though another strategy depends on it."""

    field: str
    error_pct: float
    alternative: str
    worth_pct: float
    """What its error is worth in a step of that strategy."""


@dataclass(frozen=True, kw_only=True)
class SingleRunCalibration:
    """What was learned from the log of a single run."""

    format: str
    stack: str
    """Software stack that the run was predicted with."""
    steady: SteadyStep
    before_s: dict[str, float]
    measured_s: dict[str, float]
    after_s: dict[str, float]
    """The step and each part: as the profile had it, as measured, and with the coefficients moved."""
    memory_gib: tuple[float, float] | None
    """Peak memory: measured, predicted; no coefficient of the step has a part in it."""
    moved: tuple[MovedCoefficient, ...]
    untold: tuple[UninformedCoefficient, ...]
    next_runs: tuple[NextRun, ...]
    profile: OwnProfile
    notices: tuple[Notice, ...]

    def as_dict(self, language: str = "en") -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "format": self.format,
            "stack": self.stack,
            "steady": asdict(self.steady),
            "before_s": self.before_s,
            "measured_s": self.measured_s,
            "after_s": self.after_s,
            "memory_gib": dict(zip(("measured", "predicted"), self.memory_gib, strict=True))
            if self.memory_gib
            else None,
            "moved": [asdict(entry) for entry in self.moved],
            "untold": [asdict(entry) for entry in self.untold],
            "next_runs": [asdict(entry) for entry in self.next_runs],
            "profile": self.profile.model_dump(mode="json"),
            "notices": [notice.as_dict(language) for notice in self.notices],
        }


def calibrate_single_run(
    path: Path,
    scenario: Scenario,
    *,
    form: str = AUTO,
    name: str | None = None,
    profiles: Profiles | None = None,
    progress: Progress | None = None,
) -> SingleRunCalibration:
    """Calibrate from the log of a run of this scenario; an `InputError` where it cannot be that run's."""
    profile_name = name_from(path.stem) if name is None else name
    check_name(profile_name)
    case = build_predictor(scenario, profiles=profiles)
    job = case.case.job
    context = LogContext(
        file=str(path), gpus=case.strategy.ranks, global_batch=job.global_batch, tokens_per_step=job.tokens_per_step
    )
    log = read_log(path, context, form, progress=progress)
    _check_log_is_warmed_up(log, str(path))
    steady = measure_steady_step(log)
    _check_step_is_possible(case, steady)
    predicted_parts = predict_observed_s(case, steady.parts_s)
    names = [
        part
        for part, seconds in steady.parts_s.items()
        if part in predicted_parts and _is_same_part(seconds, predicted_parts[part])
    ]
    other_parts = [part for part in steady.parts_s if part in predicted_parts and part not in names]
    measured = [steady.step_s, *(steady.parts_s[part] for part in names)]
    coefficient_priors = _build_case_priors(case)
    predict = _make_predict_function(case, names)
    estimate = estimate_coefficients(
        predict, coefficient_priors, measured, [max(MODEL_ERROR, steady.spread), *(PART_ERROR for _ in names)]
    )
    predicted = _round_digits(estimate.before[0])
    if not estimate.explained:
        nearest = _round_digits(estimate.after[0])
        raise _build_refusal("log_not_explained", steady, estimate, predicted=predicted, nearest=nearest)
    moved = _list_moved_coefficients(case, coefficient_priors, estimate)
    farthest = max(moved, key=_measure_move_in_sd, default=None)
    if farthest is not None and _measure_move_in_sd(farthest) > IMPOSSIBLE_SD:
        times = round(_measure_move_in_sd(farthest))
        cause = {"coefficient": farthest.field, "times": times, "predicted": predicted}
        raise _build_refusal("log_other_cause", steady, estimate, **cause)
    alternatives = _predict_alternatives(case, scenario, coefficient_priors, estimate, progress)
    present = Alternative(
        name="",
        step_s=estimate.after[0],
        sensitivity=measure_sensitivities(_make_predict_function(case, []), coefficient_priors, estimate.factors)[0],
    )
    memory = (log.memory_gib, case.memory.peak.expected) if log.memory_gib else None
    uninformed = _list_uninformed_coefficients(coefficient_priors, estimate, [present, *alternatives])
    moved_fields = {coefficient.field for coefficient in moved}
    untold = [coefficient for coefficient in uninformed if coefficient.field not in moved_fields]
    moved_loosely = [coefficient.field for coefficient in uninformed if coefficient.field in moved_fields]
    runs = rank_next_runs(present, alternatives, estimate.covariance)
    parts = ["step", *names]
    notices = (
        *log.notices,
        *_collect_warnings(farthest, other_parts),
        *_collect_notes(log, steady, moved, moved_loosely, untold, runs, memory),
    )
    profile = _build_profile(profile_name, case, log, steady, estimate, moved, coefficient_priors, notices, memory)
    return SingleRunCalibration(
        format=log.format,
        stack=case.stack,
        steady=steady,
        before_s=dict(zip(parts, estimate.before, strict=True)),
        measured_s=dict(zip(parts, measured, strict=True)),
        after_s=dict(zip(parts, estimate.after, strict=True)),
        memory_gib=memory,
        moved=tuple(moved),
        untold=tuple(untold),
        next_runs=tuple(runs),
        profile=profile,
        notices=notices,
    )


def scale_coefficients(case: Predictor, factors: Mapping[str, float]) -> Predictor:
    """The same case with some coefficients times a factor."""
    changed: dict[str, Any] = {field: getattr(case.coefficients, field) * factor for field, factor in factors.items()}
    scaled = replace(case)
    scaled.parts.update(select_parts(case.parts, without=PARTS_OF_COEFFICIENTS))
    scaled.parts["coefficients"] = replace(case.coefficients, **changed)
    return scaled


def predict_observed_s(case: Predictor, parts: Mapping[str, float] | list[str]) -> dict[str, float]:
    """Predicted seconds of the step and of those parts that the case can separate. [K37]

    forward_backward: from the first pass to the end of the gradients' exchange; optimizer: update and gathering of
    weights; forward and backward only without a pipeline and with whole weights, where they do not mix.
    """
    observed_s = {"step": case.step_time.expected}
    times, row = case.step.times, case.row
    reduced_s = float(case.step.reduced_s[row])
    if "forward_backward" in parts:
        observed_s["forward_backward"] = reduced_s
    if "optimizer" in parts:
        last = int(np.argmax(select_row(times.update + times.gather, row)))
        observed_s["optimizer"] = get_cell(times.update, row, last) + get_cell(times.gather, row, last)
    if "forward" in parts and case.strategy.pp == 1 and case.strategy.zero != 3:
        forward = case.row_micro_batches * sum(get_cell(values, row, 0) for values in times.cost.forward.values())
        observed_s["forward"] = forward
        if "backward" in parts:
            observed_s["backward"] = reduced_s - forward
    return {part: seconds for part, seconds in observed_s.items() if seconds > 0}


def _make_predict_function(case: Predictor, names: list[str]) -> Callable[[Mapping[str, float]], list[float]]:
    def predict(factors: Mapping[str, float]) -> list[float]:
        observed_s = predict_observed_s(scale_coefficients(case, factors), names)
        return [observed_s["step"], *(observed_s[name] for name in names)]

    return predict


def _check_step_is_possible(case: Predictor, steady: SteadyStep) -> None:
    """Refuse a step that would need more than the peak of all GPUs: it is another run's, or in another unit."""
    least_s = case.model_flops / case.peak_flops
    if steady.step_s < least_s:
        params = {"least": _round_digits(least_s), "gpus": case.strategy.ranks}
        raise InvalidError(Notice(code="log_too_fast", field="log", value=_round_digits(steady.step_s), params=params))


def _check_log_is_warmed_up(log: Log, file: str) -> None:
    """Refuse a log of the first steps of a run alone: they compile, allocate and fetch."""
    if log.format != KINETO and is_only_warm_up(log):
        params = {"file": file, "needed": LEAST_STEPS}
        raise InvalidError(Notice(code="log_only_warm_up", field="log", value=len(log.steps), params=params, file=file))


def _build_refusal(code: str, steady: SteadyStep, estimate: SingleRunEstimate, **params: Any) -> InvalidError:
    """What to raise where the log cannot be that run's; few steps that are slower than predicted may be the cause."""
    notices = [Notice(code=code, field="log", value=_round_digits(steady.step_s), params=params)]
    if steady.of < LEAST_STEPS and steady.step_s >= estimate.before[0]:
        notices.append(Notice(code="log_few_steps", level="note", value=steady.of, params={"needed": LEAST_STEPS}))
    return InvalidError(*notices)


def _build_case_priors(case: Predictor) -> list[CoefficientPrior]:
    """The priors of the coefficients that the case reads."""
    profiles = list(case.profile.values())
    measured = all(profile.gpu_measured for profile in profiles)
    return build_priors(case.profiles, [profile.family for profile in profiles], case.stack, gpu_measured=measured)


def _list_moved_coefficients(
    case: Predictor, priors: list[CoefficientPrior], estimate: SingleRunEstimate
) -> list[MovedCoefficient]:
    kept_with = {True: ", ".join(_list_gpus(case)), False: case.stack}
    return [
        MovedCoefficient(
            field=prior.field,
            kept_with=kept_with[prior.of_gpu],
            before=prior.value,
            after=_round_digits(prior.value * estimate.factors[prior.field]),
            change_pct=100.0 * (estimate.factors[prior.field] - 1.0),
            error_before_pct=100.0 * prior.sd,
            error_after_pct=100.0 * estimate.errors[prior.field],
            at_limit=_is_at_limit(prior, prior.value * estimate.factors[prior.field]),
        )
        for prior in sorted(priors, key=lambda b: -abs(math.log(estimate.factors.get(b.field, 1.0))))
        if abs(estimate.factors.get(prior.field, 1.0) - 1.0) > LEAST_CHANGE
    ]


def _is_at_limit(prior: CoefficientPrior, value: float) -> bool:
    return any(math.isclose(value, limit, rel_tol=1e-6) for limit in (prior.lower, prior.upper))


def _list_gpus(case: Predictor) -> list[str]:
    return sorted({case.placed.groups[g].gpu.name for g in case.placed.groups_in_use})


def _predict_alternatives(
    case: Predictor,
    scenario: Scenario,
    priors: list[CoefficientPrior],
    estimate: SingleRunEstimate,
    progress: Progress | None,
) -> list[Alternative]:
    """Strategies one change away that are legal and fit, with what their steps depend on."""
    changes = list(iterate_variations(case.strategy))
    alternatives = []
    for done, (name, change) in enumerate(changes):
        if progress:
            progress("variations", done, len(changes))
        try:
            other = build_predictor(
                scenario.replace(strategy=case.strategy.replace(**change), placement=None), profiles=case.profiles
            )
            fits = other.memory.fits
        except InputError:
            continue
        if fits:
            predict = _make_predict_function(other, [])
            alternatives.append(
                Alternative(
                    name=name,
                    step_s=predict(estimate.factors)[0],
                    sensitivity=measure_sensitivities(predict, priors, estimate.factors)[0],
                )
            )
    if progress:
        progress("variations", len(changes), len(changes))
    return alternatives


def _list_uninformed_coefficients(
    priors: list[CoefficientPrior], estimate: SingleRunEstimate, alternatives: list[Alternative]
) -> list[UninformedCoefficient]:
    """Coefficients whose error the log has hardly narrowed, though it is worth a percent of some step. [K35]"""
    uninformed = []
    for index, prior in enumerate(priors):
        error = estimate.errors[prior.field]
        worst = max(alternatives, key=lambda other: abs(other.sensitivity[index]))
        worth = abs(float(worst.sensitivity[index])) * error
        if error > UNINFORMED_SHARE * prior.sd and worth >= LEAST_WORTH:
            uninformed.append(
                UninformedCoefficient(
                    field=prior.field, error_pct=100.0 * error, alternative=worst.name, worth_pct=100.0 * worth
                )
            )
    return sorted(uninformed, key=lambda prior: -prior.worth_pct)


def _is_same_part(measured: float, predicted: float) -> bool:
    """A part of a log can be the predicted one."""
    return 1.0 / MOST_PART_RATIO < measured / predicted < MOST_PART_RATIO


def _measure_move_in_sd(coefficient: MovedCoefficient) -> float:
    """How far a coefficient moved, in standard deviations of its prior."""
    return abs(math.log(coefficient.after / coefficient.before)) / (coefficient.error_before_pct / 100.0)


def _collect_warnings(farthest: MovedCoefficient | None, other_parts: list[str]) -> list[Notice]:
    """Warnings: a coefficient that moved implausibly far, parts of the log that mean something else."""
    warnings = []
    if farthest is not None and _measure_move_in_sd(farthest) > UNLIKELY_SD:
        params = {"times": round(_measure_move_in_sd(farthest))}
        warnings.append(Notice(code="log_far", level="warning", value=farthest.field, params=params))
    if other_parts:
        warnings.append(Notice(code="log_parts_apart", level="note", params={"parts": other_parts}))
    return warnings


def _collect_notes(
    log: Log,
    steady: SteadyStep,
    moved: list[MovedCoefficient],
    moved_loosely: list[str],
    uninformed: list[UninformedCoefficient],
    runs: list[NextRun],
    memory: tuple[float, float] | None,
) -> list[Notice]:
    """Notes on the result: steps used, what moved, what the log does not determine, the next run, memory."""
    counts = {"used": steady.used, "of": steady.of, "warm_up": steady.warm_up, "outliers": steady.outliers}
    notes = [Notice(code="log_steps_used", level="note", value=_round_digits(steady.step_s), params=counts)]
    if not moved:
        notes.append(Notice(code="log_nothing_moved", level="note"))
    for coefficient in moved:
        params = {
            "before": _round_digits(coefficient.before),
            "after": _round_digits(coefficient.after),
            "error": _round_digits(coefficient.error_after_pct),
        }
        notes.append(Notice(code="log_moved", level="note", value=coefficient.field, params=params))
        if coefficient.at_limit:
            limit_params = {"after": params["after"]}
            notes.append(Notice(code="log_at_limit", level="note", value=coefficient.field, params=limit_params))
    if moved_loosely:
        notes.append(Notice(code="log_moved_loosely", level="note", params={"fields": moved_loosely}))
    if uninformed:
        fields = [coefficient.field for coefficient in uninformed]
        notes.append(Notice(code="log_untold", level="note", params={"fields": fields}))
    if runs and runs[0].sd_after_pct < USEFUL_RUN_SHARE * runs[0].sd_before_pct:
        params = {"before": _round_digits(runs[0].sd_before_pct), "after": _round_digits(runs[0].sd_after_pct)}
        notes.append(Notice(code="log_next_run", level="note", value=runs[0].name, params=params))
    if memory is not None:
        memory_params = {"predicted": _round_digits(memory[1]), "kind": log.memory_kind}
        notes.append(Notice(code="log_memory", level="note", value=_round_digits(memory[0]), params=memory_params))
    return notes


def _build_profile(
    name: str,
    case: Predictor,
    log: Log,
    steady: SteadyStep,
    estimate: SingleRunEstimate,
    moved: list[MovedCoefficient],
    priors: list[CoefficientPrior],
    notices: tuple[Notice, ...],
    memory: tuple[float, float] | None,
) -> OwnProfile:
    """The coefficients that moved as an own profile."""
    of_gpu = {prior.field: prior.of_gpu for prior in priors}
    gpus: dict[str, dict[str, Coefficient]] = {}
    stacks: dict[str, dict[str, Coefficient]] = {}
    for coefficient in moved:
        factor = estimate.factors[coefficient.field]
        error = float(f"{estimate.errors[coefficient.field]:.2g}")
        for gpu in _list_gpus(case) if of_gpu[coefficient.field] else ():
            kind = next(group.gpu for group in case.placed.groups if group.gpu.name == gpu)
            value = float(getattr(case.profiles.select(kind, case.stack).coefficients, coefficient.field))
            fitted = Coefficient(value=_round_digits(value * factor), error=error, origin="fitted")
            gpus.setdefault(gpu, {})[coefficient.field] = fitted
        if not of_gpu[coefficient.field]:
            fitted = Coefficient(value=coefficient.after, error=error, origin="fitted")
            stacks.setdefault(case.stack, {})[coefficient.field] = fitted
    scores: dict[str, Any] = {
        "step_measured_s": steady.step_s,
        "step_before_s": estimate.before[0],
        "step_after_s": estimate.after[0],
        "error_before_pct": 100.0 * (estimate.before[0] / steady.step_s - 1.0),
        "error_after_pct": 100.0 * (estimate.after[0] / steady.step_s - 1.0),
        "steps_used": steady.used,
        "steps_of": steady.of,
    }
    if memory is not None:
        scores |= {"memory_measured_gib": memory[0], "memory_predicted_gib": memory[1]}
    return OwnProfile(
        name=name,
        source=f"one log ({log.format}) of {case.name}",
        created=format_now(),
        gpus=gpus,
        stacks=stacks,
        notes=tuple(notice.message() for notice in notices),
        scores=scores,
    )


def _round_digits(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.{DIGITS}g}")
