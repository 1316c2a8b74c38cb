"""Predict: one scenario with one strategy and placement -> Prediction. The whole story, from top to bottom.

    prediction = predict(load_scenario("three-cities.yaml"))
    prediction.step_time_s.expected, prediction.memory_gib.fits

A scenario is checked against the rules, its ranks are placed, and a `Predictor` computes what a prediction asks for:
columns of the case, cost of layers and stages, the simulated pipeline, gradients and update, memory, traffic, the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from crosszone.cost.profile import Profiles
from crosszone.cost.record import named
from crosszone.errors import IllegalError, InvalidError, Notice
from crosszone.inputs.frameworks import Framework
from crosszone.inputs.placement import Block, Placement, check_tp_room, pack_ranks
from crosszone.inputs.rules import Case, require_legal
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.software import find_release_gpu, format_release, parse_stack
from crosszone.inputs.strategy import Strategy
from crosszone.predict.assumptions import SHARED_OPTIONS
from crosszone.predict.breakdown import build_breakdown, find_bottleneck
from crosszone.predict.evidence import collect_notices, list_operator_errors
from crosszone.predict.nearest_runs import describe_case, list_utilisation_notices, read_run_index
from crosszone.predict.placed_strategy import PlacedStrategy
from crosszone.predict.prediction import Basis, NearestRun, Prediction, Record, Run, name_triple
from crosszone.predict.predictor import Predictor
from crosszone.predict.run import count_tokens_per_step, predict_run
from crosszone.predict.step import check_step_length
from crosszone.predict.traffic import build_traffic


def predict(scenario: Scenario, *, language: str = "en", profiles: Profiles | None = None) -> Prediction:
    """The numbers for a scenario's strategy on its placement (a default one is made when none is given)."""
    return build_prediction(build_predictor(scenario, profiles=profiles), language)


def build_predictor(scenario: Scenario, *, profiles: Profiles | None = None) -> Predictor:
    """Everything needed to predict a scenario; `IllegalError` when its strategy breaks a rule."""
    if scenario.strategy is None:
        raise InvalidError(Notice(code="strategy_missing", field="strategy"))
    case = scenario.build_case()
    stated_options = frozenset(option for option in SHARED_OPTIONS if case.is_given(option))
    framework, strategy = _check_legal(case)
    notices: list[Notice] = []
    if scenario.job.framework == "any":
        params = {"framework": framework.title}
        notices.append(Notice(code="framework_taken", level="note", field="job.framework", params=params))
    case = replace(case, strategy=strategy)
    placement, remarks = _place_ranks(case)
    placed = PlacedStrategy(case=case, placement=placement, links=scenario.links)
    placed.check()
    step_notice = check_step_length(strategy, case.job.global_batch)
    if step_notice is not None:
        raise InvalidError(step_notice)
    return _build_predictor(scenario.name, placed, framework, profiles, [*notices, *remarks], stated_options)


def build_measured_predictor(
    name: str, case: Case, framework: Framework, profiles: Profiles | None = None
) -> Predictor:
    """Everything needed to predict a run that took place: rules of legality are not asked, for it did run.

    Its ranks fill the GPUs in order, as `build_predictor` places them; what is legal is predicted alike by both.
    """
    case = case.with_framework(framework)
    cluster, strategy = case.cluster, case.strategy
    if check_tp_room(cluster, strategy) is None:
        placement, _ = pack_ranks(cluster, strategy)
    else:  # tensor-parallel groups across the borders of nodes
        placement = Placement(blocks=(Block(zone=cluster.zones[0].name, group=0, first=0, count=strategy.ranks),))
    placed = PlacedStrategy(case=case, placement=placement, links={})
    return _build_predictor(name, placed, framework, profiles, ())


def build_prediction(p: Predictor, language: str = "en", *, with_notices: bool = True) -> Prediction:
    """All numbers of a placed strategy. Without notices for recorded numbers, which are compared with nothing."""
    s, work = p.strategy, p.batch.work
    gpus = named("gpus", work.tp * work.pp * work.cp * work.dp)
    named("micro_batches", max(s.replica_micro_batches or (0,)) or work.global_batch / (work.micro_batch * work.dp))
    step_time = p.step_time
    breakdown = build_breakdown(p)
    bottleneck, shares = find_bottleneck(breakdown)
    traffic, egress = build_traffic(p, breakdown)
    memory = p.memory
    run = predict_run(p.placed, p.framework.name, step_time, shares["compute"], egress)
    tokens = name_triple("tokens_per_s", step_time.over(count_tokens_per_step(p.case.job)))
    mfu, hfu = (step_time.over(flops / p.peak_flops) for flops in (p.model_flops, p.hardware_flops))
    notices = [*p.notices, *collect_notices(p, memory, egress)] if with_notices else []
    nearest_runs: tuple[NearestRun, ...] = ()
    best_utilisation = None
    if with_notices:
        features, index = describe_case(p), read_run_index()
        nearest_runs, best_utilisation = index.find_nearest(features), index.find_best(features)
        notices += list_utilisation_notices(features, best_utilisation, mfu)
    release_gpu = find_release_gpu(p.case.job.software, p.case.job.stack, p.case.cluster.gpu_kinds)
    profile_of = {p.placed.groups[g].gpu: profile for g, profile in p.profile.items()}
    return Prediction(
        name=p.name,
        framework=p.framework.name,
        strategy=s.model_dump(mode="json"),
        gpus=s.ranks,
        micro_batches=p.micro_batches,
        step_time_s=step_time,
        tokens_per_s=tokens,
        tokens_per_s_per_gpu=name_triple("tokens_per_s_per_gpu", tokens.times(1.0 / gpus)),
        tflops_per_gpu=name_triple("tflops_per_gpu", step_time.over(p.model_flops / gpus / 1e12)),
        mfu=name_triple("mfu", mfu),
        hfu=name_triple("hfu", hfu),
        breakdown_s=breakdown,
        memory_gib=memory,
        communication=traffic,
        bottleneck=bottleneck,
        shares=shares,
        run=run,
        basis=Basis(
            stack=p.stack,
            gpu_profiles={gpu.name: profile.family for gpu, profile in profile_of.items()},
            own_profile=p.profiles.own,
            release=p.software.release,
            release_month=format_release(p.software.release),
            release_gpu=release_gpu and release_gpu.name,
            operators=list_operator_errors(p.case, profile_of, p.software),
            measured=all(profile.gpu_measured for profile in p.profile.values()),
            low=p.factors[0],
            high=p.factors[1],
        ),
        nearest_runs=nearest_runs,
        best_utilisation=best_utilisation,
        records=_collect_records(p, breakdown, run) if with_notices else {},
        warnings=tuple(notice.as_dict(language) for notice in notices),
    )


def _check_legal(case: Case) -> tuple[Framework, Strategy]:
    """As `require_legal`; a delay-aware schedule, which no framework has, is checked as the 1F1B it grows out of."""
    s = case.strategy
    if s.pipeline_schedule != "delay-aware":
        return require_legal(case)
    as_1f1b = replace(case, strategy=s.replace(schedule="1f1b", extra_warmup=0))
    framework, settled = require_legal(as_1f1b)
    return framework, settled.replace(schedule="delay-aware", extra_warmup=s.extra_warmup)


def _place_ranks(case: Case) -> tuple[Placement, list[Notice]]:
    """The case's own placement, checked, or ranks packed node after node; with remarks on it."""
    placement, strategy = case.placement, case.strategy
    if placement is None:
        placement, idle = pack_ranks(case.cluster, strategy)
        if strategy.local_update:  # zones train on their own: whole replicas in each
            placement = placement.replace(order=("tp", "cp", "pp", "dp"))
        return placement, [unused.reason for unused in idle]
    refused = placement.check(case.cluster, strategy)
    if refused:
        raise IllegalError(*refused)
    return placement, list(placement.list_remarks(case.cluster, strategy))


def _build_predictor(
    name: str,
    placed: PlacedStrategy,
    framework: Framework,
    profiles: Profiles | None,
    notices: Iterable[Notice],
    stated_options: frozenset[str] = frozenset(),
) -> Predictor:
    """The predictor of a placed strategy with the coefficients of its job's stack."""
    coefficients = profiles or Profiles.load()
    stack, _ = parse_stack(placed.case.job.stack)
    return Predictor(
        name=name,
        placed=placed,
        framework=framework,
        profiles=coefficients,
        stack=coefficients.select_stack(framework.name, stack, placed.case.release),
        notices=tuple(notices),
        stated_options=stated_options,
    )


def _collect_records(p: Predictor, breakdown: dict[str, float], run: Run) -> dict[str, Record]:
    """For each number shown, its formula and inputs."""
    s, job, m = p.strategy, p.case.job, p.case.model
    step = p.step_time.expected
    return {
        "step_time_s": Record(formula="V3", inputs=dict(breakdown)),
        "tokens_per_s": Record(formula="J1", inputs={"tokens_per_step": job.tokens_per_step, "step_time_s": step}),
        "tflops_per_gpu": Record(
            formula="F1", inputs={"model_flops": p.model_flops, "step_time_s": step, "gpus": s.ranks}
        ),
        "mfu": Record(
            formula="V6",
            inputs={"model_flops": p.model_flops, "step_time_s": step, "peak_flops": p.peak_flops},
        ),
        "hfu": Record(
            formula="V6",
            inputs={"hardware_flops": p.hardware_flops, "step_time_s": step, "peak_flops": p.peak_flops},
        ),
        "memory_gib": Record(
            formula="M1",
            inputs={"layers": m.layers, "pp": s.pp, "tp": s.tp, "zero": s.zero, "micro_batch": s.micro_batch},
        ),
        "run.days": Record(
            formula="J2", inputs={"steps": job.steps, "step_time_s": step, "goodput": run.goodput.share}
        ),
        "run.goodput": Record(formula="E1", inputs=run.goodput.model_dump(exclude={"share"})),
        "run.usd": Record(
            formula="E2",
            inputs={
                "usd_per_hour": run.usd_per_hour,
                "days": run.days and run.days.expected,
                "egress": run.usd_egress,
            },
        ),
        "run.kwh": Record(formula="E3", inputs={"kw": run.kw, "days": run.days and run.days.expected}),
    }
