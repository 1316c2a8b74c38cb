"""Predict: one scenario with one strategy and placement -> Prediction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.coefficients import Coefficients, band_factors
from crosszone.cost.columns import model_columns, taken
from crosszone.cost.memory import MemoryCoefficients, memory_coefficients
from crosszone.cost.profile import Profile, Profiles
from crosszone.cost.record import named
from crosszone.errors import IllegalError, InvalidError, Notice
from crosszone.inputs.flops import TRAINING_PASSES, forward_flops_per_token
from crosszone.inputs.frameworks import Framework
from crosszone.inputs.job import compute_precision
from crosszone.inputs.placement import Block, Placement, no_tp_room, packed
from crosszone.inputs.rules import Case, require_legal
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.strategy import Strategy
from crosszone.predict.batch import (
    Batch,
    chunk_layers,
    scalar,
    sparse_layers,
    stack_columns,
    stage_counts,
    stage_sums,
    work_columns,
)
from crosszone.predict.breakdown import bottleneck_of, breakdown_of
from crosszone.predict.evidence import find_unmeasured, operator_errors, unsampled
from crosszone.predict.lanes import timeline_of_step
from crosszone.predict.local_update import local_update_s
from crosszone.predict.memory import memory_of
from crosszone.predict.parts import kept, part
from crosszone.predict.prediction import Basis, Figure, Memory, Prediction, Record, Run, Triple, named_triple
from crosszone.predict.run import run_of, tokens_per_step, unpriced, used_groups
from crosszone.predict.site import BANDS, Site
from crosszone.predict.step import SimulatedStep, least_step_s, simulated_step, too_long
from crosszone.predict.traffic import traffic_of
from crosszone.schedule.timeline import Timeline

OF_STEP = ("step", "inner_step_s", "slowest")
"""Parts of a predictor that follow from links between zones where stages or gradients cross them."""
OF_LINKS = ("local_update_s", "step_s", "step_time", "recorded", "opened")
"""Those that follow from these links in any case: the step with averaging, and what explains it."""


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """One placed strategy and everything that is computed of it, each part once."""

    name: str
    site: Site
    framework: Framework
    profiles: Profiles
    stack: str
    release: float | None
    notices: tuple[Notice, ...]
    parts: dict[str, Any] = field(init=False, default_factory=dict, compare=False, repr=False)
    """What has been computed of it so far, by name; a changed copy begins anew."""

    @property
    def case(self) -> Case:
        """The case with its settled strategy."""
        return self.site.case

    @property
    def strategy(self) -> Strategy:
        """The settled strategy."""
        return self.case.strategy

    @part
    def profile(self) -> dict[int, Profile]:
        """Profile of each node group in use."""
        groups = {g: self.site.groups[g] for g in self.site.groups_in_use}
        return {g: self.profiles.select(group.gpu, self.stack, group.speed) for g, group in groups.items()}

    @property
    def gpu_kinds(self) -> list[str]:
        """GPU kinds in use, each once."""
        return list(dict.fromkeys(self.site.groups[g].gpu.name for g in self.profile))

    def on(self, name: str, site: Site, notices: tuple[Notice, ...]) -> Predictor:
        """The same strategy where only the links between the zones are others (`Site.on`)."""
        still = self.strategy.local_update is not None or not site.crosses  # no pass and no gradient crosses zones
        dropped = {*OF_LINKS, *(() if still else OF_STEP), *(("batch",) if site.crosses else ())}
        other = replace(self, name=name, site=site, notices=notices)
        other.parts.update(kept(self.parts, without=dropped))
        if not still and "batch" in self.parts:
            other.parts["batch"] = replace(self.batch, links=site.link_columns())
        return other

    @part
    def batch(self) -> Batch:
        """Columns of every kind of replica (rows as in `Site.link_columns`)."""
        s, case, site = self.strategy, self.case, self.site
        settings = next(iter(self.profile.values())).settings
        rows = len(site.kinds[0]) * (site.bands + site.bare)
        work = work_columns(case, self.framework.name, dp_stride=self.placement_stride, shard_ranks=site.shard_ranks)
        if s.uneven:
            work = replace(work, micro_batches=site.rows(site.kind_micro_batches[:, None]) * 1.0)
        return Batch(
            model=model_columns(case.model, vocab_multiple=self.framework.vocab_multiple, tp=s.tp),
            work=work,
            gpu=site.gpu_columns(),
            stack=stack_columns(settings, self.profiles.release_age(self.stack, self.release)),
            links=site.link_columns(),
            counts=np.broadcast_to(stage_counts(case), (rows, s.pp)),
            sparse=np.broadcast_to(stage_sums(s, sparse_layers(case.model, chunk_layers(case))), (rows, s.pp)),
            measured=self.profiles.links,
        )

    @property
    def placement_stride(self) -> int:
        """Ranks from one replica of a stage to the next."""
        s, stride = self.strategy, 1
        for axis in self.site.placement.order:
            if axis == "dp":
                break
            stride *= 1 if axis == "cp" else getattr(s, axis)
        return stride

    @part
    def coefficients(self) -> Coefficients:
        """Of the GPUs of every row and stage."""
        kinds = {id(p.coefficients): p.coefficients for p in self.profile.values()}
        if len(kinds) == 1:
            (k,) = kinds.values()
            return k
        group_KS = self.site.group[:, self.site.kinds[0], 0, 0].T
        return taken({g: p.coefficients for g, p in self.profile.items()}, self.site.rows(group_KS))

    @part
    def memory_coefficients(self) -> MemoryCoefficients:
        """Of the stack."""
        return memory_coefficients(self.stack)

    @part
    def step(self) -> SimulatedStep:
        """The simulated step of every row of the batch."""
        return simulated_step(self.batch, chunk_layers(self.case), self.strategy, self.coefficients)

    @property
    def least_s(self) -> float:
        """A bound of the step without periodic averaging: never above it, and close."""
        return float(least_step_s(self.batch, chunk_layers(self.case), self.strategy, self.coefficients).max())

    @part
    def inner_step_s(self) -> npt.NDArray[np.float64]:
        """Step without periodic averaging at low, expected and high RTT, the slowest replica's."""
        kinds, bands = len(self.site.kinds[0]), self.site.bands
        slowest_s = self.step.total_s[: bands * kinds].reshape(bands, kinds).max(axis=1)
        return np.broadcast_to(slowest_s, (BANDS,)) if bands == 1 else slowest_s

    @part
    def slowest(self) -> int:
        """The kind of replica that ends last at the expected RTT."""
        kinds = len(self.site.kinds[0])
        first = self.site.expected * kinds
        return int(np.argmax(self.step.total_s[first : first + kinds]))

    @property
    def row(self) -> int:
        """The row of that replica at the expected RTT."""
        return self.site.expected * len(self.site.kinds[0]) + self.slowest

    @property
    def row_micro_batches(self) -> int:
        """Micro-batches of that replica a step."""
        return int(self.site.kind_micro_batches[self.slowest])

    @property
    def bare_row(self) -> int | None:
        """The same with perfect links between stages; None where no zone is crossed."""
        return BANDS * len(self.site.kinds[0]) + self.slowest if self.site.bare else None

    @part
    def local_update_s(self) -> npt.NDArray[np.float64]:
        """Exposed time of periodic averaging across zones, a step: [low, expected, high]. [V5]"""
        return local_update_s(self)

    @part
    def step_s(self) -> npt.NDArray[np.float64]:
        """Step time at low, expected and high RTT, the slowest replica's."""
        return self.inner_step_s + self.local_update_s

    @part
    def factors(self) -> tuple[float, float]:
        """Low and high factor of the profile's own error; the widest of the profiles in use."""
        bands = [
            band_factors(
                moe=self.case.model.moe is not None, gpu_measured=p.gpu_measured, stack_measured=p.stack_measured
            )
            for p in self.profile.values()
        ]
        low, high = min(low for low, _ in bands), max(high for _, high in bands)
        return named("basis.low", low), named("basis.high", high)

    @part
    def step_time(self) -> Triple:
        """Step time with the profile's error and the links' band."""
        low, expected, high = (scalar(x) for x in self.step_s)
        triple = Triple(
            low=min(low, expected) * self.factors[0], expected=expected, high=max(high, expected) * self.factors[1]
        )
        return named_triple("step_time_s", triple)

    def timeline(self, language: str = "en") -> Timeline:
        """One step of the slowest replica: stages, links between them, reductions, updates. [S10]"""
        return timeline_of_step(self, language)

    def memory(self) -> Memory:
        """Peak memory of every stage, the fullest of its replicas' GPUs. [M1]"""
        return self._memory

    @part
    def _memory(self) -> Memory:
        return memory_of(self)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one replica a step, the most of any."""
        return self.strategy.micro_batches(self.case.job.global_batch)

    @part
    def model_flops(self) -> Figure:
        """Model FLOPs of one step. [F1]"""
        forward = forward_flops_per_token(self.case.model, self.case.job.seq_len)
        parts = [named("flops_part", value, part=name) for name, value in forward.parts.items()]
        flops: float = named("training_passes", TRAINING_PASSES) * sum(parts) * tokens_per_step(self.case.job)
        return named("model_flops", flops)  # type: ignore[no-any-return]

    @part
    def hardware_flops(self) -> Figure:
        """FLOPs of one step with those that recomputation repeats. [V6]"""
        forward = forward_flops_per_token(self.case.model, self.case.job.seq_len)
        layers = forward.total - forward.head
        recomputed = {"none": 0.0, "selective": forward.attention_core, "full": layers}[self.strategy.recompute]
        recompute_flops = named("flops_repeated", recomputed) * tokens_per_step(self.case.job)
        return named("hardware_flops", self.model_flops + recompute_flops)  # type: ignore[no-any-return]

    @part
    def peak_flops(self) -> Figure:
        """Dense peak of all GPUs in use, in the job's precision: what MFU and HFU are shares of. [V6]"""
        path, total = compute_precision(self.case.job), 0.0
        for _, group, count in used_groups(self.site):
            gpu = group.gpu
            peak = named("peak_of", gpu.peak(path) or 0.0, gpu=gpu.name, path=path)
            total = total + named("gpus_of", count, gpu=gpu.name) * peak * 1e12
        return named("peak_flops", total)  # type: ignore[no-any-return]

    def prediction(self, language: str = "en") -> Prediction:
        """All numbers."""
        s, time = self.strategy, self.step_time
        w = self.batch.work
        gpus = named("gpus", w.tp * w.pp * w.cp * w.dp)
        named("micro_batches", max(s.replica_micro_batches or (0,)) or w.global_batch / (w.micro_batch * w.dp))
        breakdown = breakdown_of(self)
        kind, shares = bottleneck_of(breakdown)
        traffic, egress = traffic_of(self, breakdown)
        memory = self.memory()
        busy = shares["compute"]
        run = run_of(self.site, self.framework.name, time, busy, egress)
        notices = [*self.notices, *self._collect_notices(memory), *self._list_unpriced(egress)]
        tokens = named_triple("tokens_per_s", time.over(tokens_per_step(self.case.job)))
        mfu, hfu = time.over(self.model_flops / self.peak_flops), time.over(self.hardware_flops / self.peak_flops)
        return Prediction(
            name=self.name,
            framework=self.framework.name,
            strategy=_dump_strategy(s),
            gpus=s.ranks,
            micro_batches=self.micro_batches,
            step_time_s=time,
            tokens_per_s=tokens,
            tokens_per_s_per_gpu=named_triple("tokens_per_s_per_gpu", tokens.times(1.0 / gpus)),
            tflops_per_gpu=named_triple("tflops_per_gpu", time.over(self.model_flops / gpus / 1e12)),
            mfu=named_triple("mfu", mfu),
            hfu=named_triple("hfu", hfu),
            breakdown_s=breakdown,
            memory_gib=memory,
            communication=traffic,
            bottleneck=kind,
            shares=shares,
            run=run,
            basis=Basis(
                stack=self.stack,
                gpu_profiles={self.site.groups[g].gpu.name: p.family for g, p in self.profile.items()},
                own_profile=self.profiles.own,
                operators=operator_errors(self.case, {self.site.groups[g].gpu: p for g, p in self.profile.items()}),
                measured=all(p.gpu_measured for p in self.profile.values()),
                low=self.factors[0],
                high=self.factors[1],
            ),
            records=self._collect_records(breakdown, run),
            warnings=tuple(notice.as_dict(language) for notice in notices),
        )

    def _collect_notices(self, memory: Memory) -> list[Notice]:
        """What a user should know of this prediction."""
        notices = []
        derived = {self.site.groups[g].gpu.name: p.family for g, p in self.profile.items() if not p.gpu_measured}
        for gpu, family in derived.items():
            notices.append(Notice(code="profile_derived", level="warning", params={"gpu": gpu, "family": family}))
        if not all(p.stack_measured for p in self.profile.values()):
            notices.append(Notice(code="stack_unmeasured", level="note", params={"stack": self.stack}))
        notices += unsampled(self.case, self.gpu_kinds)
        notices += find_unmeasured(self)
        if not memory.fits:
            worst = memory.stages[memory.worst_stage]
            params = {
                "stage": worst.stage,
                "needed": round(worst.total, 1),
                "limit": round(worst.limit, 1),
                "gpu": worst.gpu,
            }
            notices.append(Notice(code="does_not_fit", level="warning", field="strategy", params=params))
        elif memory.peak.high > memory.limit:
            params = {"high": round(memory.peak.high, 1), "limit": round(memory.limit, 1)}
            notices.append(Notice(code="may_not_fit", level="warning", field="strategy", params=params))
        local, compression = self.strategy.local_update, self.strategy.communication.compression
        if local is not None:
            field = "strategy.local_update"
            notices.append(Notice(code="local_update_changes", level="warning", field=field, value=local.steps))
        if compression != "none":
            field = "strategy.communication.compression"
            notices.append(Notice(code="compression_changes", level="warning", field=field, value=compression))
        if self.strategy.pipeline_schedule == "delay-aware":
            notices.append(Notice(code="schedule_simulated_only", level="warning", field="strategy.schedule"))
        return notices

    def _list_unpriced(self, egress: dict[tuple[int, int], float]) -> list[Notice]:
        """Traffic between zones that the total leaves out for want of a price."""
        unknown = unpriced(self.site, egress) if self.case.job.steps else []
        if not unknown:
            return []
        return [Notice(code="egress_price_unknown", level="warning", field="cluster.links", params={"pairs": unknown})]

    def _collect_records(self, breakdown: dict[str, float], run: Run) -> dict[str, Record]:
        """For each number shown, its formula and inputs."""
        s, job, m = self.strategy, self.case.job, self.case.model
        step = self.step_time.expected
        return {
            "step_time_s": Record(formula="V3", inputs=dict(breakdown)),
            "tokens_per_s": Record(formula="J1", inputs={"tokens_per_step": job.tokens_per_step, "step_time_s": step}),
            "tflops_per_gpu": Record(
                formula="F1", inputs={"model_flops": self.model_flops, "step_time_s": step, "gpus": s.ranks}
            ),
            "mfu": Record(
                formula="V6",
                inputs={"model_flops": self.model_flops, "step_time_s": step, "peak_flops": self.peak_flops},
            ),
            "hfu": Record(
                formula="V6",
                inputs={"hardware_flops": self.hardware_flops, "step_time_s": step, "peak_flops": self.peak_flops},
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


def predictor(scenario: Scenario, *, profiles: Profiles | None = None) -> Predictor:
    """Everything needed to predict a scenario; `IllegalError` when its strategy breaks a rule."""
    if scenario.strategy is None:
        raise InvalidError(Notice(code="strategy_missing", field="strategy"))
    case = scenario.case()
    framework, strategy = _check_legal(case)
    notices: list[Notice] = []
    if scenario.job.framework == "any":
        params = {"framework": framework.title}
        notices.append(Notice(code="framework_taken", level="note", field="job.framework", params=params))
    case = replace(case, strategy=strategy)
    placement: Placement
    if case.placement is None:
        placement, idle = packed(case.cluster, strategy)
        if strategy.local_update:  # zones train on their own: whole replicas in each
            placement = placement.replace(order=("tp", "cp", "pp", "dp"))
        notices += [unused.reason for unused in idle]
    else:
        placement = case.placement
        refused = placement.check(case.cluster, strategy)
        if refused:
            raise IllegalError(*refused)
        notices += placement.remarks(case.cluster, strategy)
    site = Site(case=case, placement=placement, links=scenario.links)
    site.check()
    refused_step = too_long(strategy, case.job.global_batch)
    if refused_step is not None:
        raise InvalidError(refused_step)
    return _build_predictor(scenario.name, site, framework, profiles, notices)


def measured_predictor(name: str, case: Case, framework: Framework, profiles: Profiles | None = None) -> Predictor:
    """Everything needed to predict a run that took place: rules of legality are not asked, for it did run.

    Its ranks fill the GPUs in order, as `predictor` places them; what is legal is predicted alike by both.
    """
    cluster, strategy = case.cluster, case.strategy
    if no_tp_room(cluster, strategy) is None:
        placement, _ = packed(cluster, strategy)
    else:  # tensor-parallel groups across the borders of nodes
        placement = Placement(blocks=(Block(zone=cluster.zones[0].name, group=0, first=0, count=strategy.ranks),))
    site = Site(case=case, placement=placement, links={})
    return _build_predictor(name, site, framework, profiles, ())


def _build_predictor(
    name: str, site: Site, framework: Framework, profiles: Profiles | None, notices: Iterable[Notice]
) -> Predictor:
    """The predictor of a placed strategy with the coefficients of its job's stack."""
    coefficients = profiles or Profiles.load()
    stack, release = stack_and_release(site.case.job.stack)
    return Predictor(
        name=name,
        site=site,
        framework=framework,
        profiles=coefficients,
        stack=coefficients.stack_of(framework.name, stack),
        release=release,
        notices=tuple(notices),
    )


def predict(scenario: Scenario, *, language: str = "en", profiles: Profiles | None = None) -> Prediction:
    """The numbers for a scenario's strategy on its placement (a default one is made when none is given)."""
    return predictor(scenario, profiles=profiles).prediction(language)


def stack_and_release(text: str | None) -> tuple[str | None, float | None]:
    """A stack may name its release: `megatron-core@25.09` (year.month)."""
    if text is None or "@" not in text:
        return text, None
    name, _, release = text.partition("@")
    year, _, month = release.partition(".")
    if not (year.isdigit() and month.isdigit() and 1 <= int(month) <= 12):
        raise IllegalError(Notice(code="stack_release", field="job.stack", value=text))
    return name, int(year) + int(month) / 12.0


def stack_of_release(stack: str, release: float | None) -> str:
    """A stack with its release, as `stack_and_release` reads it: 25.75 is September 2025."""
    if release is None:
        return stack
    months = round(12 * release) - 1
    return f"{stack}@{months // 12:02d}.{months % 12 + 1:02d}"


def _check_legal(case: Case) -> tuple[Framework, Strategy]:
    """As `require_legal`; a delay-aware schedule, which no framework has, is checked as the 1F1B it grows out of."""
    s = case.strategy
    if s.pipeline_schedule != "delay-aware":
        return require_legal(case)
    plain = replace(case, strategy=s.replace(schedule="1f1b", extra_warmup=0))
    framework, settled = require_legal(plain)
    return framework, settled.replace(schedule="delay-aware", extra_warmup=s.extra_warmup)


def _dump_strategy(strategy: Strategy) -> dict[str, Any]:
    fields: dict[str, Any] = strategy.model_dump(mode="json")
    return fields


__all__ = ["Predictor", "measured_predictor", "predict", "predictor"]
