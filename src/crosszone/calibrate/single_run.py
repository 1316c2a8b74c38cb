"""Calibrate from one log: the coefficients that matter for a run are moved until its step is predicted.

    found = calibrate_single_run(Path("train.log"), load_scenario("run.yaml"), name="my-cluster")
    found.moved[0].field, found.moved[0].after       # which coefficients moved, and to what
    found.next_runs[0].name                          # the short run that would tell most
    own_profiles.save(found.profile)

Never the total: each coefficient has a meaning, so another strategy on the same cluster is predicted with what was
learned of it. What the log cannot tell stays as it was, and is named.

The next short run: which other strategy on the same cluster would tell most about the order of the best plans.

runs = rank_next_runs(alternatives, covariance)
runs[0].name, runs[0].sd_after_pct             # "tp x2": 4.1 % would become 2.2 %

The estimate itself needs only `predict`, which gives the predicted seconds of everything that was measured (the step
first) from factors on coefficients:

    estimate = estimate_coefficients(predict, priors, measured=[2.5], sd=[0.05])
    estimate.factors["elementwise"], estimate.errors["elementwise"]

The priors say how far each coefficient of a case may lie from the profile's value at a new site. A profile's own error
says how well its runs determine a value; another site adds to it. `SITES` says how much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from crosszone.calibrate.fit import Vector, priors
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
from crosszone.cost.own_profiles import OwnProfile, check_name, name_from, now
from crosszone.cost.profile import Profiles
from crosszone.errors import InputError, InvalidError, Notice
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.strategy import Strategy
from crosszone.predict.batch import cell, row_of
from crosszone.predict.parts import kept
from crosszone.predict.predict import predictor
from crosszone.predict.predictor import OF_LINKS, OF_STEP, Predictor

BEST = 3  # Plans whose order is to be settled
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Another strategy on the same cluster."""

    name: str
    strategy: Strategy
    step_s: float
    """Predicted with the coefficients after the log."""
    sensitivity: Vector
    """Of the logarithm of its step, in the order of the beliefs."""


@dataclass(frozen=True, kw_only=True)
class NextRun:
    """What a run of an alternative would tell."""

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
    for kind in RECOMPUTE:
        if kind != strategy.recompute:
            yield f"recompute {kind}", {"recompute": kind}


def rank_next_runs(present: Alternative, others: Sequence[Alternative], covariance: Vector) -> list[NextRun]:
    """What each of the others would tell, the most useful first. [K36]

    Variance of the difference of two plans: (j_a - j_b)' P (j_a - j_b) with the sensitivities j of their steps and the
    covariance P of the coefficients; mean over pairs of the three fastest plans, before and after a run of a strategy c
    (P - P j_c j_c' P / (j_c' P j_c + 0.05^2)).
    """
    best = sorted([present, *others], key=lambda one: one.step_s)[:BEST]
    gaps = [a.sensitivity - b.sensitivity for a, b in combinations(best, 2)]

    def spread_pct(left: Vector) -> float:
        mean = sum(float(gap @ left @ gap) for gap in gaps) / max(1, len(gaps))
        return 100.0 * float(np.sqrt(max(0.0, mean)))

    now = spread_pct(covariance)
    found = []
    for one in others:
        after = condition_covariance(covariance, one.sensitivity[None, :], np.array([MODEL]))
        run = NextRun(name=one.name, step_s=one.step_s, sd_before_pct=now, sd_after_pct=spread_pct(after))
        found.append(run)
    return sorted(found, key=lambda run: (run.sd_after_pct, run.step_s))


OF_COEFFICIENTS = (*OF_STEP, *OF_LINKS)  # Parts of a predictor that follow from the coefficients
MOVED = 0.005  # A smaller change of a coefficient is none
UNTOLD = 0.9  # Share of its error that a coefficient keeps when a log has told nothing of it
MATTERS = 0.01  # Share of a step that an error must be worth to be named
WORTH = 0.97  # Share of the doubt between plans that a run may leave to be worth naming
# Standard deviations that a coefficient may move before that is doubted, and before the log is refused.
UNLIKELY, IMPOSSIBLE = 5.0, 10.0
# A part of the log that differs by this factor from the predicted one is another thing of the same name.
APART = 3.0
DIGITS = 4

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Moved:
    """A coefficient that the log has moved."""

    field: str
    kept_with: str
    """The GPU kinds or the stack that it belongs to."""
    before: float
    after: float
    change_pct: float
    error_before_pct: float
    error_after_pct: float
    at_limit: bool
    """It ended at the limit of what is believed possible; what it could not explain moved others."""


@dataclass(frozen=True, kw_only=True)
class Untold:
    """A coefficient that did not move, for the log says nothing of it, though another strategy depends on it."""

    field: str
    error_pct: float
    alternative: str
    worth_pct: float
    """What its error is worth in a step of that strategy."""


@dataclass(frozen=True, kw_only=True)
class SingleRunCalibration:
    """What one log has taught."""

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
    moved: tuple[Moved, ...]
    untold: tuple[Untold, ...]
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
            "moved": [asdict(one) for one in self.moved],
            "untold": [asdict(one) for one in self.untold],
            "next_runs": [asdict(one) for one in self.next_runs],
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
    """Everything that a log of a run of this scenario teaches; an `InputError` where it cannot be that run's."""
    called = name_from(path.stem) if name is None else name
    check_name(called)
    case = predictor(scenario, profiles=profiles)
    job = case.case.job
    told = LogContext(
        file=str(path), gpus=case.strategy.ranks, global_batch=job.global_batch, tokens_per_step=job.tokens_per_step
    )
    log = read_log(path, told, form, progress=progress)
    _warmed_up(log, str(path))
    steady = measure_steady_step(log)
    _possible(case, steady)
    there = predict_observed_s(case, steady.parts_s)
    names = [part for part, seconds in steady.parts_s.items() if part in there and _like(seconds, there[part])]
    apart = [part for part in steady.parts_s if part in there and part not in names]
    measured = [steady.step_s, *(steady.parts_s[part] for part in names)]
    believed = _beliefs(case)
    at = _predict(case, names)
    found = estimate_coefficients(at, believed, measured, [max(MODEL, steady.spread), *(PART for _ in names)])
    if not found.explained:
        params = {"predicted": _short(found.before[0]), "nearest": _short(found.after[0])}
        far = Notice(code="log_not_explained", field="log", value=_short(steady.step_s), params=params)
        raise InvalidError(far, *_few(steady, found.before[0]))
    moved = _moved(case, believed, found)
    farthest = max(moved, key=_distance, default=None)
    if farthest is not None and _distance(farthest) > IMPOSSIBLE:
        cause = {
            "coefficient": farthest.field,
            "times": round(_distance(farthest)),
            "predicted": _short(found.before[0]),
        }
        far = Notice(code="log_other_cause", field="log", value=_short(steady.step_s), params=cause)
        raise InvalidError(far, *_few(steady, found.before[0]))
    others = _alternatives(case, scenario, believed, found, progress)
    present = Alternative(
        name="",
        strategy=case.strategy,
        step_s=found.after[0],
        sensitivity=measure_sensitivities(_predict(case, []), believed, found.factors)[0],
    )
    memory = (log.memory_gib, case.memory().peak.expected) if log.memory_gib else None
    hardly = _untold(believed, found, [present, *others])
    names_moved = {one.field for one in moved}
    untold = [one for one in hardly if one.field not in names_moved]
    loose = [one.field for one in hardly if one.field in names_moved]
    runs = rank_next_runs(present, others, found.covariance)
    parts = ["step", *names]
    notices = (*log.notices, *_doubts(farthest, apart), *_notes(log, steady, moved, loose, untold, runs, memory))
    profile = _profile(called, case, log, steady, found, moved, believed, notices, memory)
    return SingleRunCalibration(
        format=log.format,
        stack=case.stack,
        steady=steady,
        before_s=dict(zip(parts, found.before, strict=True)),
        measured_s=dict(zip(parts, measured, strict=True)),
        after_s=dict(zip(parts, found.after, strict=True)),
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
    other = replace(case)
    other.parts.update(kept(case.parts, without=OF_COEFFICIENTS))
    other.parts["coefficients"] = replace(case.coefficients, **changed)
    return other


def predict_observed_s(case: Predictor, parts: Mapping[str, float] | list[str]) -> dict[str, float]:
    """Predicted seconds of the step and of those parts that the case can tell apart. [K37]

    forward_backward: from the first pass to the end of the gradients' exchange; optimizer: update and gathering of
    weights; forward and backward only without a pipeline and with whole weights, where they do not mix.
    """
    found = {"step": case.step_time.expected}
    t, row = case.step.times, case.row
    reduced = float(case.step.reduced_s[row])
    if "forward_backward" in parts:
        found["forward_backward"] = reduced
    if "optimizer" in parts:
        last = int(np.argmax(row_of(t.update + t.gather, row)))
        found["optimizer"] = cell(t.update, row, last) + cell(t.gather, row, last)
    if "forward" in parts and case.strategy.pp == 1 and case.strategy.zero != 3:
        forward = case.row_micro_batches * sum(cell(values, row, 0) for values in t.cost.forward.values())
        found["forward"] = forward
        if "backward" in parts:
            found["backward"] = reduced - forward
    return {part: seconds for part, seconds in found.items() if seconds > 0}


def _predict(case: Predictor, names: list[str]) -> Callable[[Mapping[str, float]], list[float]]:
    def at(factors: Mapping[str, float]) -> list[float]:
        found = predict_observed_s(scale_coefficients(case, factors), names)
        return [found["step"], *(found[name] for name in names)]

    return at


def _possible(case: Predictor, steady: SteadyStep) -> None:
    """A step that would need more than the peak of all GPUs is another run's, or in another unit."""
    least = case.model_flops / case.peak_flops
    if steady.step_s < least:
        params = {"least": _short(least), "gpus": case.strategy.ranks}
        raise InvalidError(Notice(code="log_too_fast", field="log", value=_short(steady.step_s), params=params))


def _warmed_up(log: Log, file: str) -> None:
    """Refuse a log of the first steps of a run alone: they compile, allocate and fetch."""
    if log.format != KINETO and is_only_warm_up(log):
        params = {"file": file, "needed": LEAST_STEPS}
        raise InvalidError(Notice(code="log_only_warm_up", field="log", value=len(log.steps), params=params, file=file))


def _few(steady: SteadyStep, predicted_s: float) -> list[Notice]:
    """What else may be the cause where few steps are logged, and they are slower than predicted."""
    if steady.of >= LEAST_STEPS or steady.step_s < predicted_s:
        return []
    return [Notice(code="log_few_steps", level="note", value=steady.of, params={"needed": LEAST_STEPS})]


def _beliefs(case: Predictor) -> list[CoefficientPrior]:
    """Of the coefficients that the case reads."""
    profiles = list(case.profile.values())
    measured = all(one.gpu_measured for one in profiles)
    return build_priors(case.profiles, [one.family for one in profiles], case.stack, gpu_measured=measured)


def _moved(case: Predictor, believed: list[CoefficientPrior], found: SingleRunEstimate) -> list[Moved]:
    kept = {True: ", ".join(_gpus(case)), False: case.stack}
    return [
        Moved(
            field=one.field,
            kept_with=kept[one.of_gpu],
            before=one.value,
            after=float(f"{one.value * found.factors[one.field]:.{DIGITS}g}"),
            change_pct=100.0 * (found.factors[one.field] - 1.0),
            error_before_pct=100.0 * one.sd,
            error_after_pct=100.0 * found.errors[one.field],
            at_limit=_at_limit(one, one.value * found.factors[one.field]),
        )
        for one in sorted(believed, key=lambda b: -abs(math.log(found.factors.get(b.field, 1.0))))
        if abs(found.factors.get(one.field, 1.0) - 1.0) > MOVED
    ]


def _at_limit(one: CoefficientPrior, value: float) -> bool:
    return any(math.isclose(value, limit, rel_tol=1e-6) for limit in (one.lower, one.upper))


def _gpus(case: Predictor) -> list[str]:
    return sorted({case.site.groups[g].gpu.name for g in case.site.groups_in_use})


def _alternatives(
    case: Predictor,
    scenario: Scenario,
    believed: list[CoefficientPrior],
    found: SingleRunEstimate,
    progress: Progress | None,
) -> list[Alternative]:
    """Strategies one change away that are legal and fit, with what their steps depend on."""
    changes = list(iterate_variations(case.strategy))
    alternatives = []
    for done, (name, change) in enumerate(changes):
        if progress:
            progress("variations", done, len(changes))
        try:
            other = predictor(
                scenario.replace(strategy=case.strategy.replace(**change), placement=None), profiles=case.profiles
            )
            fits = other.memory().fits
        except InputError:
            continue
        if fits:
            at = _predict(other, [])
            alternatives.append(
                Alternative(
                    name=name,
                    strategy=other.strategy,
                    step_s=at(found.factors)[0],
                    sensitivity=measure_sensitivities(at, believed, found.factors)[0],
                )
            )
    if progress:
        progress("variations", len(changes), len(changes))
    return alternatives


def _untold(believed: list[CoefficientPrior], found: SingleRunEstimate, others: list[Alternative]) -> list[Untold]:
    """Coefficients whose error the log has hardly narrowed, though it is worth a percent of some step. [K35]"""
    left = []
    for at, one in enumerate(believed):
        error = found.errors[one.field]
        worst = max(others, key=lambda other: abs(other.sensitivity[at]))
        worth = abs(float(worst.sensitivity[at])) * error
        if error > UNTOLD * one.sd and worth >= MATTERS:
            left.append(
                Untold(field=one.field, error_pct=100.0 * error, alternative=worst.name, worth_pct=100.0 * worth)
            )
    return sorted(left, key=lambda one: -one.worth_pct)


def _like(measured: float, predicted: float) -> bool:
    """A part of a log can be the predicted one."""
    return 1.0 / APART < measured / predicted < APART


def _distance(one: Moved) -> float:
    """How far a coefficient moved, in the standard deviations believed before."""
    return abs(math.log(one.after / one.before)) / (one.error_before_pct / 100.0)


def _doubts(farthest: Moved | None, apart: list[str]) -> list[Notice]:
    """What a reader should not trust."""
    doubts = []
    if farthest is not None and _distance(farthest) > UNLIKELY:
        params = {"times": round(_distance(farthest))}
        doubts.append(Notice(code="log_far", level="warning", value=farthest.field, params=params))
    if apart:
        doubts.append(Notice(code="log_parts_apart", level="note", params={"parts": apart}))
    return doubts


def _notes(
    log: Log,
    steady: SteadyStep,
    moved: list[Moved],
    loose: list[str],
    untold: list[Untold],
    runs: list[NextRun],
    memory: tuple[float, float] | None,
) -> list[Notice]:
    """What was found, in words."""
    counts = {"used": steady.used, "of": steady.of, "warm_up": steady.warm_up, "outliers": steady.outliers}
    notes = [Notice(code="log_steps_used", level="note", value=_short(steady.step_s), params=counts)]
    if not moved:
        notes.append(Notice(code="log_nothing_moved", level="note"))
    for one in moved:
        params = {"before": _short(one.before), "after": _short(one.after), "error": _short(one.error_after_pct)}
        notes.append(Notice(code="log_moved", level="note", value=one.field, params=params))
        if one.at_limit:
            notes.append(
                Notice(code="log_at_limit", level="note", value=one.field, params={"after": _short(one.after)})
            )
    if loose:
        notes.append(Notice(code="log_moved_loosely", level="note", params={"fields": loose}))
    if untold:
        notes.append(Notice(code="log_untold", level="note", params={"fields": [one.field for one in untold]}))
    if runs and runs[0].sd_after_pct < WORTH * runs[0].sd_before_pct:
        params = {"before": _short(runs[0].sd_before_pct), "after": _short(runs[0].sd_after_pct)}
        notes.append(Notice(code="log_next_run", level="note", value=runs[0].name, params=params))
    if memory is not None:
        there = {"predicted": _short(memory[1]), "kind": log.memory_kind}
        notes.append(Notice(code="log_memory", level="note", value=_short(memory[0]), params=there))
    return notes


def _profile(
    name: str,
    case: Predictor,
    log: Log,
    steady: SteadyStep,
    found: SingleRunEstimate,
    moved: list[Moved],
    believed: list[CoefficientPrior],
    notices: tuple[Notice, ...],
    memory: tuple[float, float] | None,
) -> OwnProfile:
    """The coefficients that moved as an own profile."""
    of_gpu = {one.field: one.of_gpu for one in believed}
    gpus: dict[str, dict[str, Coefficient]] = {}
    stacks: dict[str, dict[str, Coefficient]] = {}
    for one in moved:
        factor = found.factors[one.field]
        error = float(f"{found.errors[one.field]:.2g}")
        for gpu in _gpus(case) if of_gpu[one.field] else ():
            kind = next(one.gpu for one in case.site.groups if one.gpu.name == gpu)
            value = float(getattr(case.profiles.select(kind, case.stack).coefficients, one.field))
            kept = Coefficient(value=float(f"{value * factor:.{DIGITS}g}"), error=error, origin="fitted")
            gpus.setdefault(gpu, {})[one.field] = kept
        if not of_gpu[one.field]:
            kept = Coefficient(value=one.after, error=error, origin="fitted")
            stacks.setdefault(case.stack, {})[one.field] = kept
    scores: dict[str, Any] = {
        "step_measured_s": steady.step_s,
        "step_before_s": found.before[0],
        "step_after_s": found.after[0],
        "error_before_pct": 100.0 * (found.before[0] / steady.step_s - 1.0),
        "error_after_pct": 100.0 * (found.after[0] / steady.step_s - 1.0),
        "steps_used": steady.used,
        "steps_of": steady.of,
    }
    if memory is not None:
        scores |= {"memory_measured_gib": memory[0], "memory_predicted_gib": memory[1]}
    return OwnProfile(
        name=name,
        source=f"one log ({log.format}) of {case.name}",
        created=now(),
        gpus=gpus,
        stacks=stacks,
        notes=tuple(notice.message() for notice in notices),
        scores=scores,
    )


def _short(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.{DIGITS}g}")


# Standard deviation of the logarithm among sites and software, by coefficient: what the fitted stacks differ by
# (see priors.yaml), little for what the GPU alone decides. Coefficients that are not here stay as they are.
SITES: dict[str, float] = {
    "matmul": 0.03,
    "matmul_fp8": 0.05,
    "flash": 0.1,
    "flash_backward": 0.05,
    "tile": 0.05,
    "batched": 0.1,
    "memory": 0.05,
    "score_traffic": 0.2,
    "elementwise": 0.6,
    "head_traffic": 0.05,
    "optimizer_traffic": 0.05,
    "host_s": 0.6,
    "tp_exposed": 0.6,
    "tp_message_s": 0.3,
    "link": 0.1,
    "nic": 0.15,
    "p2p_exposed": 0.3,
    "p2p_message_s": 0.3,
    "dp_traffic": 0.5,
    "shard_message_s": 1.0,
    "dp_contention": 0.3,
    "fsdp_contention": 0.4,
    "permute": 0.05,
    "moe_s": 0.3,
    "a2a_exposed": 0.05,
    "step_s": 0.05,
    "selective_share": 0.3,
}
# Share of it that adds to the profile's error: where the stack has no value of its own, and where it has.
UNSEEN, SEEN = 0.5, 0.2
DERIVED = 0.25  # The same of a GPU's rates where its profile is that of a relative
SHARES = (0.05, 1.0)  # Limits of what priors.yaml does not have: shares of a rate
# Kept with the GPU; the others with the stack.
GPU = ("matmul", "matmul_fp8", "flash", "flash_backward", "tile", "batched", "memory")


@dataclass(frozen=True, kw_only=True)
class CoefficientPrior:
    """What is believed of one coefficient of the case."""

    field: str
    value: float
    sd: float
    """Standard deviation of its logarithm."""
    lower: float
    upper: float
    of_gpu: bool
    """Kept with the GPU kind."""


def build_priors(
    profiles: Profiles,
    families: Sequence[str],
    stack: str,
    *,
    gpu_measured: bool = True,
    errors: Sequence[float] | Vector = (),
) -> list[CoefficientPrior]:
    """What is believed of each coefficient that a log may move. [K32]

    sd^2 = (error of the profile)^2 + (share x spread among sites)^2, the share 0.5 where the stack has no value of its
    own and 0.2 where it has. `errors` take the place of the profile's (a fit's own). Values are the first family's.
    """
    known = priors()
    index = profiles.index(list(families)[:1], [stack])
    found = []
    for field, spread in SITES.items():
        at = int(index[field][0, 0])
        home, value = profiles.names[at][0], float(profiles.values[at])
        if value <= 0:
            continue
        error = float(errors[at]) if len(errors) else float(profiles.errors[at])
        own = home.startswith("stack ")
        site = (SEEN if own else UNSEEN) * spread
        of_gpu = not own and (home.startswith("gpu ") or field in GPU)
        if of_gpu and not gpu_measured:
            site = max(site, DERIVED)
        limits = known.get(field)
        lower, upper = (limits.lower, limits.upper) if limits else SHARES
        found.append(
            CoefficientPrior(
                field=field,
                value=value,
                sd=math.hypot(error, site),
                lower=min(lower, value),
                upper=max(upper, value),
                of_gpu=of_gpu,
            )
        )
    return found


Predict = Callable[[Mapping[str, float]], Sequence[float]]

PROMISE, NEAR = 0.03, 0.029  # How far the predicted step may stay from the measured one; where the rounds end
# Error of a predicted step that no coefficient explains (one standard deviation of its logarithm).
MODEL = 0.05
PART = 0.15  # The same of a part of a step: logs draw its borders in their own ways
# Coefficients that move hold this share of the believed variance of the step, and are at most so many.
SHARE, FEWEST = 0.8, 3
STEP = 1e-3
LONGEST_MOVE = 0.7  # Largest change of a logarithm in a round
ROUNDS = 40
SETTLED = 3  # Rounds before the measurement is trusted more, or more coefficients are let go
LEAST_NOISE = 2e-3


@dataclass(frozen=True, kw_only=True)
class SingleRunEstimate:
    """What one run says of the coefficients."""

    factors: dict[str, float]
    """Of the coefficients that were moved."""
    errors: dict[str, float]
    """Standard deviation of the logarithm after the run, of every coefficient that was believed in."""
    covariance: Vector
    """The same for all pairs, in the order of the beliefs."""
    sensitivity: Vector
    """Change of the logarithm of the step for that of each coefficient, before the run."""
    before: tuple[float, ...]
    after: tuple[float, ...]
    """Predicted seconds of everything that was measured."""
    explained: bool
    """The predicted step is within 3 % of the measured one."""


def measure_sensitivities(
    predict: Predict, beliefs: Sequence[CoefficientPrior], factors: Mapping[str, float]
) -> Vector:
    """D log(predicted) / d log(coefficient) by finite differences: a row for each prediction. [K33]"""
    base = np.log(np.asarray(predict(factors)))
    columns = []
    for one in beliefs:
        here = factors.get(one.field, 1.0)
        change = 1.0 + STEP if one.value * here * (1.0 + STEP) <= one.upper else 1.0 - STEP  # a share stays below 1
        moved = {**factors, one.field: here * change}
        columns.append((np.log(np.asarray(predict(moved))) - base) / np.log(change))
    return np.array(columns).T


def select_coefficients(sensitivity: Vector, sd: Vector, most: int, share: float = SHARE) -> list[int]:
    """The coefficients that matter: those with the largest part of the step's believed variance. [K33]

    Part of coefficient k: (sensitivity_k x sd_k)^2. They are taken, largest first, until they hold 80 % of the sum.
    """
    part = (sensitivity * sd) ** 2
    order = np.argsort(-part, kind="stable")
    held = np.cumsum(part[order]) / max(float(part.sum()), 1e-30)
    count = min(most, 1 + int(np.searchsorted(held, share)))
    return [int(at) for at in order[:count] if part[at] > 0]


def solve_update(jacobian: Vector, sd: Vector, noise: Vector, residual: Vector) -> Vector:
    """The most probable change of the logarithms: V J' (J V J' + R)^-1 r, V and R diagonal. [K34]

    With one measurement each coefficient moves in proportion to sd^2 x sensitivity.
    """
    spread = (jacobian * sd**2) @ jacobian.T + np.diag(noise**2)
    return np.asarray(sd**2 * (jacobian.T @ np.linalg.solve(spread, residual)))


def condition_covariance(covariance: Vector, jacobian: Vector, noise: Vector) -> Vector:
    """Covariance of the logarithms after a measurement: P - P J' (J P J' + R)^-1 J P. [K35]"""
    seen = covariance @ jacobian.T
    return np.asarray(covariance - seen @ np.linalg.solve(jacobian @ seen + np.diag(noise**2), seen.T))


def estimate_coefficients(
    predict: Predict,
    beliefs: Sequence[CoefficientPrior],
    measured: Sequence[float],
    sd: Sequence[float],
    *,
    near: float = NEAR,
) -> SingleRunEstimate:
    """Move the few coefficients that matter until the predicted step is near the measured one. [K34]

    Gauss-Newton rounds from the profile's values. The measurement is first trusted as far as the model can be; where
    the step stays farther than 3 % off, it is trusted more, and at last more coefficients may move.
    """
    target, noise = np.log(np.asarray(measured)), np.asarray(sd, dtype=float).copy()
    spread = np.array([one.sd for one in beliefs])
    lower = np.log([one.lower / one.value for one in beliefs])
    upper = np.log([one.upper / one.value for one in beliefs])
    before = tuple(float(x) for x in predict({}))
    first = measure_sensitivities(predict, beliefs, {})
    most = FEWEST + len(measured) - 1
    free = select_coefficients(first[0], spread, most)
    theta, held = np.zeros(len(beliefs)), np.zeros(len(beliefs), dtype=bool)
    quiet, after = 0, before
    for _ in range(ROUNDS):
        some = [beliefs[k] for k in free]
        factors = {one.field: float(np.exp(theta[k])) for one, k in zip(some, free, strict=True)}
        after = tuple(float(x) for x in predict(factors))
        off = abs(after[0] / measured[0] - 1.0)
        if quiet >= SETTLED:
            if off <= near:
                break
            if noise[0] > LEAST_NOISE:
                noise[0] /= 2.0
            elif most < len(beliefs):
                most += FEWEST
                free, quiet = select_coefficients(first[0], spread, most, share=1.0), 0
                continue
            else:
                break
        jacobian = measure_sensitivities(predict, some, factors)
        jacobian[:, held[free]] = 0.0
        residual = target - np.log(np.asarray(after)) + jacobian @ theta[free]
        new = np.where(held[free], theta[free], solve_update(jacobian, spread[free], noise, residual))
        moved = theta[free] + np.clip(new - theta[free], -LONGEST_MOVE, LONGEST_MOVE)
        kept = np.clip(moved, lower[free], upper[free])
        held[free] |= kept != moved
        theta[free], quiet = kept, quiet + 1
    factors = {beliefs[k].field: float(np.exp(theta[k])) for k in free}
    left = condition_covariance(
        np.diag(spread**2), measure_sensitivities(predict, beliefs, factors), np.asarray(sd, dtype=float)
    )
    return SingleRunEstimate(
        factors=factors,
        errors={one.field: float(np.sqrt(max(0.0, left[k, k]))) for k, one in enumerate(beliefs)},
        covariance=left,
        sensitivity=first[0],
        before=before,
        after=after,
        explained=abs(after[0] / measured[0] - 1.0) <= PROMISE,
    )
