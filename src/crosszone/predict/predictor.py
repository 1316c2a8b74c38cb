"""Predictor: one placed strategy and every quantity that is computed of it, each once.

`predict/predict.py` builds it and tells in which order the quantities make a prediction. Searches, sweeps and what-ifs
ask it for a few of them only, which is why each is computed when it is first read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.coefficients import Coefficients, Knowledge, compute_band_factors
from crosszone.cost.columns import Numbers, build_model_columns, select_columns
from crosszone.cost.memory import MemoryCoefficients, read_memory_coefficients
from crosszone.cost.profile import Profile, Profiles
from crosszone.cost.record import named
from crosszone.errors import InvalidError, Notice
from crosszone.inputs.flops import TRAINING_PASSES, forward_flops_per_token
from crosszone.inputs.frameworks import Framework
from crosszone.inputs.job import find_compute_path
from crosszone.inputs.rules import Case
from crosszone.inputs.software import SettledSoftware
from crosszone.inputs.strategy import Strategy
from crosszone.predict.assumptions import list_networks
from crosszone.predict.batch import (
    Batch,
    build_stack_columns,
    build_work_columns,
    count_moe_layers,
    count_stage_blocks,
    count_stage_layers,
    get_scalar,
    list_virtual_stage_layers,
    sum_virtual_stages,
)
from crosszone.predict.local_update import predict_local_update_s
from crosszone.predict.memory import predict_memory
from crosszone.predict.parts import cached_part, select_parts
from crosszone.predict.placed_strategy import BANDS, EXPECTED, PlacedStrategy
from crosszone.predict.prediction import Figure, Memory, Triple, name_triple
from crosszone.predict.run import count_tokens_per_step, select_used_groups
from crosszone.predict.step import SimulatedStep, bound_step_s, simulate_step
from crosszone.schedule.orders import SPLITS_WEIGHT_GRAD
from crosszone.schedule.timeline import Timeline, build_timeline
from crosszone.schedule.trace import MAX_SPANS, Lane
from crosszone.text import DEFAULT_LANGUAGE, label

# Suffixes of arrays: K replica classes, S stages.

# Parts of a predictor that follow from links between zones where stages or gradients cross them.
OF_STEP = ("step", "inner_step_s", "slowest")
# Those that follow from these links in any case: the step with averaging, and what explains it.
OF_LINKS = ("local_update_s", "step_s", "step_time", "recorded", "opened")


def has_unmeasured_option(s: Strategy) -> bool:
    """The strategy has an option that no measured run has: offload, compression, averaging now and then."""
    return s.offload != "none" or s.local_update is not None or s.communication.compression != "none"


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """One placed strategy and everything that is computed of it, each part once."""

    name: str
    placed: PlacedStrategy
    framework: Framework
    profiles: Profiles
    stack: str
    notices: tuple[Notice, ...]
    stated_options: frozenset[str] = frozenset()
    """Options that the scenario states and framework and release would else decide, by their paths."""
    parts: dict[str, Any] = field(init=False, default_factory=dict, compare=False, repr=False)
    """What has been computed of it so far, by name; a changed copy begins anew."""

    @property
    def case(self) -> Case:
        """The case with its settled strategy."""
        return self.placed.case

    @property
    def strategy(self) -> Strategy:
        """The settled strategy."""
        return self.case.strategy

    @cached_part
    def profile(self) -> dict[int, Profile]:
        """Profile of each node group in use."""
        groups = {g: self.placed.groups[g] for g in self.placed.groups_in_use}
        return {g: self.profiles.select(group.gpu, self.stack, group.speed) for g, group in groups.items()}

    @property
    def gpu_kinds(self) -> list[str]:
        """GPU kinds in use, each once."""
        return list(dict.fromkeys(self.placed.groups[g].gpu.name for g in self.profile))

    def with_links(self, name: str, placed: PlacedStrategy, notices: tuple[Notice, ...]) -> Predictor:
        """The same strategy where only the links between the zones are others (`PlacedStrategy.with_links`)."""
        still = self.strategy.local_update is not None or not placed.crosses  # no pass and no gradient crosses zones
        dropped = {*OF_LINKS, *(() if still else OF_STEP), *(("batch",) if placed.crosses else ())}
        other = replace(self, name=name, placed=placed, notices=notices)
        other.parts.update(select_parts(self.parts, without=dropped))
        if not still and "batch" in self.parts:
            other.parts["batch"] = replace(self.batch, links=placed.build_link_columns())
        return other

    def with_case(self, case: Case) -> Predictor:
        """The same ranks in the same places with another job, options or network."""
        placed = replace(self.placed, case=case)
        if case.cluster is self.case.cluster:  # nothing of where ranks lie changes
            placed.parts.update(self.placed.parts)
        return replace(self, placed=placed)

    @cached_part
    def software(self) -> SettledSoftware:
        """Every switch of the software, and where its value is from."""
        return self.profiles.settle_software(
            self.case.job, self.framework.name, self.stack, self.case.release, self.case.architecture
        )

    @cached_part
    def batch(self) -> Batch:
        """Columns of every class of replicas (rows as in `PlacedStrategy.build_link_columns`)."""
        s, case, placed = self.strategy, self.case, self.placed
        settings = next(iter(self.profile.values())).settings
        rows = len(placed.replica_classes[0]) * (placed.bands + placed.has_without_wan)
        work = build_work_columns(
            case, self.framework.name, dp_stride=self.placement_stride, shard_ranks=placed.shard_ranks
        )
        if s.uneven:
            work = replace(work, micro_batches=placed.repeat_rows(placed.class_micro_batches[:, None]) * 1.0)
        return Batch(
            model=build_model_columns(
                case.model, vocab_multiple=self.framework.find_vocab_multiple(s.tp, s.pp), tp=s.tp
            ),
            work=work,
            gpu=placed.build_gpu_columns(),
            stack=build_stack_columns(settings, self.software),
            links=placed.build_link_columns(),
            counts=np.broadcast_to(count_stage_layers(case), (rows, s.pp)),
            moe_counts=np.broadcast_to(
                sum_virtual_stages(s, count_moe_layers(case.model, list_virtual_stage_layers(case))), (rows, s.pp)
            ),
            block_counts=self._broadcast_blocks(rows),
            pattern=case.model.pattern,
            measured=self.profiles.links,
        )

    def _broadcast_blocks(self, rows: int) -> tuple[Numbers, Numbers] | None:
        """Blocks of a hybrid's stages, of every class of replicas."""
        blocks = count_stage_blocks(self.case)
        if blocks is None:
            return None
        attention, mamba = (np.broadcast_to(counts, (rows, self.strategy.pp)) for counts in blocks)
        return attention, mamba

    @property
    def placement_stride(self) -> int:
        """Ranks from one replica of a stage to the next."""
        s, stride = self.strategy, 1
        for axis in self.placed.placement.order:
            if axis == "dp":
                break
            stride *= 1 if axis == "cp" else getattr(s, axis)
        return stride

    @cached_part
    def coefficients(self) -> Coefficients:
        """Of the GPUs of every row and stage."""
        kinds = {id(p.coefficients): p.coefficients for p in self.profile.values()}
        if len(kinds) == 1:
            (k,) = kinds.values()
            return k
        group_KS = self.placed.group[:, self.placed.replica_classes[0], 0, 0].T
        return select_columns({g: p.coefficients for g, p in self.profile.items()}, self.placed.repeat_rows(group_KS))

    @cached_part
    def memory_coefficients(self) -> MemoryCoefficients:
        """Of the stack."""
        return read_memory_coefficients(self.stack)

    @cached_part
    def step(self) -> SimulatedStep:
        """The simulated step of every row of the batch."""
        return simulate_step(self.batch, list_virtual_stage_layers(self.case), self.strategy, self.coefficients)

    @property
    def least_s(self) -> float:
        """A bound of the step without periodic averaging: never above it, and close."""
        return float(
            bound_step_s(self.batch, list_virtual_stage_layers(self.case), self.strategy, self.coefficients).max()
        )

    @cached_part
    def inner_step_s(self) -> npt.NDArray[np.float64]:
        """Step without periodic averaging at low, expected and high RTT, the slowest replica's."""
        classes, bands = len(self.placed.replica_classes[0]), self.placed.bands
        slowest_s = self.step.total_s[: bands * classes].reshape(bands, classes).max(axis=1)
        return np.broadcast_to(slowest_s, (BANDS,)) if bands == 1 else slowest_s

    @cached_part
    def slowest(self) -> int:
        """The class of replicas that ends last at the expected RTT."""
        classes = len(self.placed.replica_classes[0])
        first = self.placed.expected * classes
        return int(np.argmax(self.step.total_s[first : first + classes]))

    @property
    def row(self) -> int:
        """The row of that replica at the expected RTT."""
        return self.placed.expected * len(self.placed.replica_classes[0]) + self.slowest

    @property
    def row_micro_batches(self) -> int:
        """Micro-batches of that replica a step."""
        return int(self.placed.class_micro_batches[self.slowest])

    @property
    def without_wan_row(self) -> int | None:
        """The same with perfect links between stages; None where no zone is crossed."""
        return BANDS * len(self.placed.replica_classes[0]) + self.slowest if self.placed.has_without_wan else None

    @cached_part
    def local_update_s(self) -> npt.NDArray[np.float64]:
        """Exposed time of periodic averaging across zones, a step: [low, expected, high]. [V5]"""
        return predict_local_update_s(self)

    @cached_part
    def step_s(self) -> npt.NDArray[np.float64]:
        """Step time at low, expected and high RTT, the slowest replica's."""
        return self.inner_step_s + self.local_update_s

    @cached_part
    def knowledge(self) -> Knowledge:
        """What is known of the case: of several GPU kinds the least."""
        profiles, s = self.profile.values(), self.strategy
        return Knowledge(
            software_stated=self.case.job.stack is not None,
            stack_measured=all(p.stack_measured for p in profiles),
            gpu_measured=all(p.gpu_measured for p in profiles),
            moe=self.case.model.moe is not None,
            option_measured=not has_unmeasured_option(s),
        )

    @cached_part
    def factors(self) -> tuple[float, float]:
        """Low and high factor of the model's own error, by what is known of the case."""
        low, high = compute_band_factors(self.knowledge)
        return named("basis.low", low), named("basis.high", high)

    @cached_part
    def input_spread(self) -> tuple[float, float]:
        """Log widths below and above for inputs that nobody gave: networks of nodes, varied as machines differ."""
        if not self.placed.banded:  # a search compares expected times
            return 0.0, 0.0
        expected = float(self.step_s[EXPECTED])
        logs = [
            [math.log(alternative.step_time_s / expected) for alternative in assumption.alternatives]
            for assumption in list_networks(self)
        ]
        low, high = (
            math.hypot(*(max(0.0, *(sign * x for x in of_input)) for of_input in logs if of_input))
            for sign in (-1.0, 1.0)
        )
        return low, high

    @cached_part
    def step_time(self) -> Triple:
        """Step time with the model's own error, the links' band, and inputs that were assumed."""
        # a delay-aware step may be shorter at a longer RTT [S4]; a range holds its middle all the same
        low, expected, high = (get_scalar(x) for x in self.step_s)
        spread_low, spread_high = self.input_spread
        below = np.exp(-np.hypot(np.log(self.factors[0]), named("basis.inputs.low", spread_low)))
        above = np.exp(np.hypot(np.log(self.factors[1]), named("basis.inputs.high", spread_high)))
        if not (spread_low or spread_high):
            below, above = self.factors
        triple = Triple(low=min(low, expected) * below, expected=expected, high=max(high, expected) * above)
        return name_triple("step_time_s", triple)

    def timeline(self, language: str = DEFAULT_LANGUAGE) -> Timeline:
        """One step of the slowest replica: stages, links, reductions, updates; the last span ends with it. [S10]"""
        step, s, row, micro_batches = self.step, self.strategy, self.row, self.row_micro_batches
        passes = 3 if s.pipeline_schedule in SPLITS_WEIGHT_GRAD else 2
        spans = (passes + 2) * s.pp * s.interleave * micro_batches  # a message after each pass but that for weights
        if spans > MAX_SPANS:
            params = {"limit": MAX_SPANS, "micro_batches": micro_batches}
            raise InvalidError(Notice(code="trace_too_long", value=spans, field="strategy", params=params))
        zone_of_stage = self.placed.zone[:, self.placed.replica_classes[0][self.slowest], 0, 0].tolist()
        zones = tuple(self.placed.cluster.zones[zone].name for zone in zone_of_stage)
        names = tuple(label("lane_stage", language, stage=stage, zone=zone) for stage, zone in enumerate(zones))
        run = step.pipelines.simulate_row(row)
        timeline = build_timeline(run, names)
        timeline = replace(timeline, lanes=tuple(_shorten_link_name(lane, zones, language) for lane in timeline.lanes))
        ready = run.gradients_ready_s.reshape(s.pp, -1).max(axis=-1)
        t = step.times
        reduce, gather, update = (np.broadcast_to(x, t.forward.shape)[row] for x in (t.reduce, t.gather, t.update))
        reduced = float(step.reduced_s[row])
        for stage, zone in enumerate(zones):
            name = label("lane_replicas", language, stage=stage, zone=zone)
            lane = Lane(id=f"replicas-{stage}", name=name, group="gradients")
            if reduce[stage] > 0:
                begun = float(ready[stage])
                timeline = timeline.with_spans(lane, "gradients", begun, float(ready[stage] + reduce[stage]))
            end = reduced + float(update[stage])
            timeline = timeline.with_spans(timeline.lanes[stage], "optimizer", reduced, end)
            if gather[stage] > 0:
                timeline = timeline.with_spans(lane, "parameters", end, end + float(gather[stage]))
        done = reduced + float(step.update_s[row])
        host_lane = Lane(id="host", name=label("lane_host", language), group="host")
        return timeline.with_spans(host_lane, "other", done, float(self.step_s[EXPECTED]))

    @cached_part
    def memory(self) -> Memory:
        """Peak memory of every stage, the fullest of its replicas' GPUs. [M1]"""
        return predict_memory(self)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one replica a step, the most of any."""
        return self.strategy.micro_batches(self.case.job.global_batch)

    @cached_part
    def model_flops(self) -> Figure:
        """Model FLOPs of one step. [F1]"""
        forward = forward_flops_per_token(self.case.model, self.case.job.seq_len)
        parts = [named("flops_part", value, part=name) for name, value in forward.parts.items()]
        flops: float = named("training_passes", TRAINING_PASSES) * sum(parts) * count_tokens_per_step(self.case.job)
        return named("model_flops", flops)  # type: ignore[no-any-return]

    @cached_part
    def hardware_flops(self) -> Figure:
        """FLOPs of one step with those that recomputation repeats. [V6]"""
        forward = forward_flops_per_token(self.case.model, self.case.job.seq_len)
        layers = forward.total - forward.head
        recomputed = {"none": 0.0, "selective": forward.attention_core, "full": layers}[self.strategy.recompute]
        recompute_flops = named("flops_repeated", recomputed) * count_tokens_per_step(self.case.job)
        return named("hardware_flops", self.model_flops + recompute_flops)  # type: ignore[no-any-return]

    @cached_part
    def peak_flops(self) -> Figure:
        """Dense peak of all GPUs in use, in the job's precision: what MFU and HFU are shares of. [V6]"""
        path, total = find_compute_path(self.case.job), 0.0
        for _, group, count in select_used_groups(self.placed):
            gpu = group.gpu
            peak = named("peak_of", gpu.peak(path) or 0.0, gpu=gpu.name, path=path)
            total = total + named("gpus_of", count, gpu=gpu.name) * peak * 1e12
        return named("peak_flops", total)  # type: ignore[no-any-return]


def _shorten_link_name(lane: Lane, zones: tuple[str, ...], language: str) -> Lane:
    """A link by the numbers and zones of its stages: their names in full would not fit beside a lane."""
    if lane.group != "links":
        return lane
    sender, receiver = (int(stage) for stage in lane.id.split("-")[1:])
    between = zones[sender] if zones[sender] == zones[receiver] else f"{zones[sender]} > {zones[receiver]}"
    return lane.replace(name=label("lane_link", language, sender=sender, taker=receiver, zones=between))
