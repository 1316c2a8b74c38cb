"""Recorded: a prediction computed once more with numbers that remember their arithmetic.

    recorded = record_prediction(p)
    recorded.prediction.run.days.expected  # a Recorded number: its value, and how it came about
    recorded.tape.names["exchange.reduce"]  # every result that has a name, [rows, stages]

The functions are those of every prediction; only what goes in is recorded: model, job and strategy, GPUs, links, stack,
coefficients. What the event simulation found goes in as it was found.

Recorded inputs: a prediction recorded from the numbers that a user types, every formula after them included.

    recorded = record_scenario(p)
    recorded.tape.names["model.hidden"]  # a leaf; `model.attention_params` is an expression of it

`record_prediction` begins at the columns of a batch, which is what an explanation wants. A workbook whose inputs can be
changed has to begin earlier: one width sets several columns, one datasheet the columns of many stages. The functions
that make columns (`build_model_columns`, `build_group_columns`, `PlacedStrategy.build_link_columns`) are the same; only
what they read is recorded.
The pipeline is worked through pass by pass where it is short enough; else its times go in as simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from crosszone.cost.collectives import CollectiveCost
from crosszone.cost.columns import GpuColumns, build_model_columns, select_columns
from crosszone.cost.record import Recorded, Tape, named, recording
from crosszone.cost.tiers import BYTES_PER_S_PER_GBPS
from crosszone.cost.wan import estimate_zone_exchange
from crosszone.inputs.cluster import NodeGroup
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.job import find_compute_path, state_bytes
from crosszone.inputs.links import ZoneLink
from crosszone.inputs.model import Model
from crosszone.predict.batch import (
    build_group_columns,
    build_work_columns,
    compute_bucket_bytes,
    count_grad_comm_bytes,
    list_virtual_stage_layers,
)
from crosszone.predict.parts import select_parts
from crosszone.predict.placed_strategy import EXPECTED, Crossings, PlacedStrategy
from crosszone.predict.predict import build_prediction
from crosszone.predict.prediction import Prediction
from crosszone.predict.predictor import Predictor
from crosszone.predict.step import Pipelines, build_pipeline_columns, build_stage_times, simulate_step
from crosszone.schedule.orders import SPLITS_WEIGHT_GRAD, map_virtual_stages
from crosszone.schedule.shape import DependencyGraph, build_dependency_graph
from crosszone.schedule.step_times import simulate_step_times

Columns = TypeVar("Columns")
# Columns of a batch; their fields are recorded as `work.tp` and the like.
GROUPS = ("model", "work", "gpu", "stack", "links")
# Parts that are as they were: no number comes of them but through the coefficients and the row that is looked at.
KNOWN = ("profile", "slowest", "software", "knowledge", "input_spread")


@dataclass(frozen=True, kw_only=True)
class RecordedPrediction:
    """A prediction of recorded numbers, with everything that got a name on the way."""

    tape: Tape
    predictor: Predictor
    prediction: Prediction


def record_prediction(p: Predictor, *, all_branches: bool = False) -> RecordedPrediction:
    """The prediction of a placed strategy with recorded numbers; its values are those of `build_prediction(p)`."""
    pipelines = p.step.pipelines
    with recording(all_branches=all_branches) as tape:
        other = replace(p)
        other.parts.update({name: getattr(p, name) for name in KNOWN})
        batch = replace(p.batch, **{group: _record_leaves(tape, group, getattr(p.batch, group)) for group in GROUPS})
        k = _record_leaves(tape, "k", p.coefficients)
        outcome: dict[str, Any] = {
            name: tape.leaf(f"pipeline.{name}", getattr(pipelines, name)) for name in ("span_s", "ready_s")
        }
        other.parts["batch"], other.parts["coefficients"] = batch, k
        other.parts["memory_coefficients"] = _record_leaves(tape, "km", p.memory_coefficients)
        other.parts["step"] = simulate_step(
            batch, list_virtual_stage_layers(p.case), p.strategy, k, replace(pipelines, **outcome)
        )
        return RecordedPrediction(tape=tape, predictor=other, prediction=build_prediction(other))


# Widths of a model that can be changed without changing how it is cut; layers, heads and experts cut it.
WIDTHS = ("hidden", "ffn_hidden", "vocab")
EXPERT_WIDTHS = ("ffn_hidden", "shared_ffn_hidden")


@dataclass(frozen=True, kw_only=True)
class PassTimes:
    """The passes of one row's pipeline: recorded ends, node by node as in `shape` (node 0 is the beginning)."""

    shape: DependencyGraph
    ends: list[Any]
    first_start_s: Any
    """When the last stage starts."""
    last_end_s: Any
    """When it is done."""


@dataclass(frozen=True, kw_only=True)
class RecordedScenario(RecordedPrediction):
    """A prediction of recorded numbers that begins at what was typed."""

    passes: dict[int, PassTimes]
    """By row of the batch; empty where there is no pipeline, or it is too long to be laid out."""
    simulated: dict[int, tuple[Any, Any]]
    """Of rows whose pipeline was simulated: when the last stage starts and ends."""
    durations: list[tuple[Any, Any]]
    """Times that simulated rows rest on, recorded, and what they were."""


class _RecordedPlacement(PlacedStrategy):
    """A placed strategy whose GPUs and links are recorded."""

    def build_gpu_columns(self) -> GpuColumns:
        """GPUs of each stage of each row, also where all are alike: each node group has inputs of its own."""
        columns: dict[int, GpuColumns] = self.parts["recorded_gpus"]
        if len(columns) == 1:
            return next(iter(columns.values()))
        return select_columns(columns, self.repeat_rows(self.group[:, self.replica_classes[0], 0, 0].T))


class _Predictor(Predictor):
    """A predictor of recorded numbers whose layout is plain."""

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one replica a step: a number of the layout."""
        return int(self.parts["plain"].micro_batches)


@dataclass(frozen=True)
class _Crossings(Crossings):
    """Links between zones of recorded numbers: nothing is remembered, for recorded numbers have no hash."""

    nic_bytes_per_s: Any = np.inf
    """Network rate of the slowest GPU."""

    @property
    def _nic(self) -> Any:
        return self.nic_bytes_per_s

    def estimate_exchange(self, size_bytes: Any, ring: tuple[int, ...], ranks: int) -> CollectiveCost:
        """What it takes until all zones of the ring hold the sum of so many bytes."""
        return estimate_zone_exchange(
            size_bytes, self._select_paths(ring), self.transport, **self._list_ring_options(ring, ranks)
        )


@dataclass
class _Inputs:
    """Leaves for what a scenario's user types."""

    tape: Tape
    p: Predictor
    peaks: dict[tuple[str, str], Any] = field(default_factory=dict)
    datasheets: dict[str, Any] = field(default_factory=dict)

    def record_model(self, model: Model) -> Model:
        """The model with recorded widths."""
        leaf = self.tape.leaf
        update: dict[str, Any] = {name: leaf(f"input.{name}", getattr(model, name)) for name in WIDTHS}
        if model.mla is None:
            update["head_dim"] = leaf("input.head_dim", model.head_dim)
        # equal to hidden unless the model says otherwise: one input then
        same = model.embedding_width == model.hidden
        update["embedding_width"] = update["hidden"] if same else model.embedding_width
        if model.moe is not None:
            widths = {name: leaf(f"input.expert_{name}", getattr(model.moe, name)) for name in EXPERT_WIDTHS}
            update["moe"] = model.moe.model_copy(update=widths)
        return model.model_copy(update=update)

    def record_group(self, number: int, group: NodeGroup) -> Any:
        """A node group, as `build_group_columns` reads it, with a recorded datasheet and NIC."""
        gpu, zone = group.gpu, self.p.placed.cluster.zones[self._find_zone(number)].name
        # not NodeGroup and Gpu themselves: these check their fields, and a recorded number is no float
        return SimpleNamespace(
            gpu=self.datasheets.setdefault(gpu.name, self._record_datasheet(gpu)),
            fast_link=group.fast_link,
            network_gbps_node=self.tape.leaf("input.nic_gbps", group.network_gbps_node, zone=zone, group=str(number)),
            gpus=group.gpus,
            local_gpus=group.local_gpus,
            domain=group.domain,
        )

    def _find_zone(self, number: int) -> int:
        counts = np.cumsum([len(zone.nodes) for zone in self.p.placed.cluster.zones])
        return int(np.searchsorted(counts, number, side="right"))

    def _record_datasheet(self, gpu: Gpu) -> Any:
        def leaf(name: str, value: float, **about: str) -> Recorded:
            return self.tape.leaf(f"input.{name}", value, gpu=gpu.name, **about)

        def peak(path: str) -> Any:
            value = gpu.peak(path)
            if value is not None and (gpu.name, path) not in self.peaks:
                self.peaks[gpu.name, path] = leaf("dense_tflops", value, path=path)
            return None if value is None else self.peaks[gpu.name, path]

        link = None if gpu.link is None else SimpleNamespace(gb_per_s=leaf("link_gb_per_s", gpu.link.gb_per_s))
        return SimpleNamespace(
            name=gpu.name,
            peak=peak,
            memory_gb_per_s=leaf("memory_gb_per_s", gpu.memory_gb_per_s),
            link=link,
            pcie=SimpleNamespace(gb_per_s=leaf("pcie_gb_per_s", gpu.pcie.gb_per_s)),
        )

    def record_link(self, link: ZoneLink) -> ZoneLink:
        """A link between zones with recorded rates and expected round trip; its band is only looked at there."""
        forward, back = (f"{a} > {b}" for a, b in (link.between, link.between[::-1]))
        leaf = self.tape.leaf
        rtt: Any = SimpleNamespace(
            low=link.rtt_ms.low,
            expected=leaf("input.rtt_ms", link.rtt_ms.expected, link=forward),
            high=link.rtt_ms.high,
        )
        cap: Any = None if link.flow_gbps is None else leaf("input.flow_gbps", link.flow_gbps, link=forward)
        rates: dict[str, Any] = {
            "gbps": leaf("input.zone_gbps", link.gbps, link=forward),
            "gbps_back": leaf("input.zone_gbps", link.gbps_back, link=back),
        }
        return replace(link, rtt_ms=rtt, flow_gbps=cap, **rates)

    def record_coefficients(self) -> Any:
        """Coefficients of each GPU profile in use, for every row and stage."""
        p = self.p
        distinct: dict[int, Any] = {}
        of_group = {}
        several = len({id(profile.coefficients) for profile in p.profile.values()}) > 1
        for number, profile in p.profile.items():
            about = {"gpu": p.placed.groups[number].gpu.name} if several else {}
            key = id(profile.coefficients)
            if key not in distinct:
                distinct[key] = _record_leaves(self.tape, "k", profile.coefficients, **about)
            of_group[number] = distinct[key]
        if len(distinct) == 1:
            return next(iter(distinct.values()))
        return select_columns(of_group, p.placed.repeat_rows(p.placed.group[:, p.placed.replica_classes[0], 0, 0].T))


def record_scenario(p: Predictor, *, most_passes: int) -> RecordedScenario:
    """The prediction recorded from what was typed; pipelines of up to `most_passes` passes are worked through."""
    # what is fixed by the numbers as they are (slowest replica, order of zones) is known from here on
    build_prediction(p)
    with recording(all_branches=True) as tape:
        inputs = _Inputs(tape, p)
        placed = _record_placed(inputs)
        other = _Predictor(**{f.name: getattr(p, f.name) for f in fields(Predictor) if f.init} | {"placed": placed})
        other.parts.update({name: getattr(p, name) for name in KNOWN} | {"plain": p})
        k = inputs.record_coefficients()
        batch = replace(
            p.batch,
            model=_name_columns(
                "model",
                build_model_columns(
                    placed.case.model,
                    vocab_multiple=p.framework.find_vocab_multiple(p.strategy.tp, p.strategy.pp),
                    tp=p.strategy.tp,
                ),
            ),
            work=_name_columns("work", _record_work_columns(placed, p)),
            gpu=_name_columns("gpu", placed.build_gpu_columns()),
            stack=_name_columns("stack", p.batch.stack),
            links=_name_columns("links", placed.build_link_columns()),
        )
        for (gpu, path), peak in inputs.peaks.items():
            tape.substitutes[f"peak_of({gpu}, {path})"] = peak
        if p.strategy.pp == 1 and not p.strategy.uneven:
            tape.substitutes["micro_batches_of_replica"] = batch.work.micro_batches
            tape.substitutes["all_micro_batches"] = named("all_micro_batches", batch.work.micro_batches * batch.work.dp)
        other.parts["batch"], other.parts["coefficients"] = batch, k
        other.parts["memory_coefficients"] = _record_leaves(tape, "km", p.memory_coefficients)
        pipelines, passes, simulated, durations = _record_pipelines(p, batch, k, most_passes)
        other.parts["step"] = simulate_step(batch, list_virtual_stage_layers(p.case), p.strategy, k, pipelines)
        before = len(tape.decisions)
        # which end of its range is lower is no figure of a workbook: what that branched on is forgotten
        other.step_time  # noqa: B018
        del tape.decisions[before:]
        return RecordedScenario(
            tape=tape,
            predictor=other,
            prediction=build_prediction(other, with_notices=False),
            passes=passes,
            simulated=simulated,
            durations=durations,
        )


def _record_placed(inputs: _Inputs) -> _RecordedPlacement:
    p, tape = inputs.p, inputs.tape
    job, s, unrecorded = p.case.job, p.strategy, p.placed
    seq = tape.leaf("work.seq", float(job.seq_len))
    micro_batch = tape.leaf("work.micro_batch", float(s.micro_batch))
    if s.pp == 1 and not s.uneven:
        batch = tape.leaf("work.global_batch", float(job.global_batch))
    else:  # the passes laid out are so many: the batch follows the micro-batch
        batch = named("work.global_batch", float(unrecorded.micro_batches.sum()) * micro_batch)
    changed: dict[str, Any] = {"seq_len": seq, "global_batch": batch}
    case = replace(p.case, model=inputs.record_model(p.case.model), job=job.model_copy(update=changed))
    links = {pair: inputs.record_link(link) for pair, link in unrecorded.links.items()} if unrecorded.crosses else {}
    path = find_compute_path(job)
    groups = {g: inputs.record_group(g, unrecorded.groups[g]) for g in unrecorded.groups_in_use}
    columns = {g: build_group_columns(group, path, unrecorded.nodes) for g, group in groups.items()}
    crossings = None
    if unrecorded.crosses:
        nics = [
            columns[g].nic_bytes_per_s if g in columns else group.network_gbps_node * BYTES_PER_S_PER_GBPS / group.gpus
            for g, group in enumerate(unrecorded.groups)
        ]
        slowest = nics[0]
        for nic in nics[1:]:
            slowest = np.minimum(slowest, nic)
        crossings = _Crossings(unrecorded.cluster, links, unrecorded.transport, nic_bytes_per_s=slowest)
    placed = _RecordedPlacement(
        case=case, placement=unrecorded.placement, links=links or unrecorded.links, shared_crossings=crossings
    )
    placed.parts.update(select_parts(unrecorded.parts, without=("crossings",)))
    placed.parts["recorded_gpus"] = columns
    placed.parts["recorded_micro_batch"] = micro_batch
    return placed


def _record_work_columns(placed: _RecordedPlacement, p: Predictor) -> Any:
    case, s = placed.case, p.strategy
    plain_work = p.batch.work
    work = build_work_columns(p.case, p.framework.name, dp_stride=p.placement_stride, shard_ranks=placed.shard_ranks)
    micro_batch, global_batch = placed.parts["recorded_micro_batch"], case.job.global_batch
    count: Any = plain_work.micro_batches
    if s.pp == 1 and not s.uneven:
        count = np.maximum(1.0, global_batch / (micro_batch * work.dp))
    kept_bytes = state_bytes(p.case.job, framework=p.framework.name).gradients
    bucket_mb = s.communication.bucket_mb
    bucket = compute_bucket_bytes(case.model, bucket_mb, p.framework.name, kept_bytes, s.tp, s.dp or 1)
    return replace(
        work,
        seq=case.job.seq_len,
        global_batch=global_batch,
        micro_batch=micro_batch,
        micro_batches=count,
        bucket_bytes=bucket,
        grad_comm_bytes=count_grad_comm_bytes(case.model, s.communication, kept_bytes),
    )


def _record_leaves(tape: Tape, group: str, columns: Columns, **about: str) -> Columns:
    """The columns with every field as an input of the record: `group.field`."""
    return _name_columns(group, columns, partial(tape.leaf, **about))


def _name_columns(group: str, columns: Columns, name: Callable[..., Any] = named) -> Columns:
    """The columns with every field under its name: `group.field`."""
    recorded: dict[str, Any] = {
        f.name: name(f"{group}.{f.name}", getattr(columns, f.name))
        for f in fields(columns)  # type: ignore[arg-type]
    }
    return replace(columns, **recorded)  # type: ignore[type-var]


# The pipeline, pass by pass


def _record_pipelines(
    p: Predictor, batch: Any, k: Any, most_passes: int
) -> tuple[Pipelines, dict[int, PassTimes], Any, Any]:
    """Ends of the pipelines of the rows that figures are taken of, recorded; of the other rows as simulated."""
    simulated_pipelines, placed, s = p.step.pipelines, p.placed, p.strategy
    classes = len(placed.replica_classes[0])
    expected = [EXPECTED * classes + number if placed.bands > 1 else number for number in range(classes)]
    recorded_rows = [*expected, *([] if p.without_wan_row is None else [p.without_wan_row])]
    times = build_stage_times(batch, k)
    size, columns = build_pipeline_columns(batch, times, list_virtual_stage_layers(p.case), s, k)
    spans: list[Any] = list(simulated_pipelines.span_s)
    readies: list[Any] = list(simulated_pipelines.ready_s)
    passes: dict[int, PassTimes] = {}
    simulated: dict[int, tuple[Any, Any]] = {}
    durations: list[tuple[Any, Any]] = []
    for row in recorded_rows:
        row_times = {name: values[row] for name, values in columns.items()}
        if s.pp == 1 and s.interleave == 1:
            count = batch.work.micro_batches
            if np.ndim(count):
                count = count[row if len(count) > 1 else 0, 0]
            spans[row] = count * sum(row_times[name][0, 0] for name in ("forward_s", "backward_s", "weight_s"))
            readies[row] = np.stack([spans[row]])
            continue
        m = int(simulated_pipelines.micro_batches[row])
        operations = s.pp * s.interleave * m * len(recorded_rows)
        if s.pipeline_schedule == "delay-aware" or operations > most_passes:
            plain_times = {name: values[row] for name, values in simulated_pipelines.columns.items()}
            result = simulate_step_times(s.pipeline_schedule, micro_batches=m, **size, **plain_times)
            simulated[row] = result.first_start_s[..., -1], result.last_end_s[..., -1]
            durations += [(row_times[name], plain_times[name]) for name in row_times]
            continue
        passes[row] = pass_times = _record_passes(s.pipeline_schedule, size, m, row_times)
        gradients = pass_times.shape.gradients
        readies[row] = np.stack([np.max(np.stack([pass_times.ends[n] for n in stage])) for stage in gradients])
        spans[row] = np.max(np.stack([pass_times.ends[n] for n in pass_times.shape.operations[:, -1]]))
    outcome = {"span_s": np.stack(spans), "ready_s": np.stack(readies)}
    named_outcome: dict[str, Any] = {name: named(f"pipeline.{name}", value) for name, value in outcome.items()}
    return replace(simulated_pipelines, **named_outcome), passes, simulated, durations


def _record_passes(schedule: str, size: dict[str, Any], micro_batches: int, times: dict[str, Any]) -> PassTimes:
    """Ends of all passes and messages of one step, as `simulate` walks through them, recorded. [S3]"""
    stages, chunks = size["stages"], size["chunks"]
    shape = build_dependency_graph(schedule, stages, micro_batches, chunks, size["extra_warmup"])
    place = map_virtual_stages(schedule, stages, chunks)
    parts, boundaries = stages * chunks, stages * chunks - 1
    table: list[Any] = [0.0] * (3 * parts + 4 * boundaries + 1)
    for kind, name in enumerate(("forward_s", "backward_s", "weight_s")):
        array = times[name]
        for stage, chunk in np.ndindex(*place.shape):
            at = stage if array.shape[0] > 1 else 0, chunk if array.shape[1] > 1 else 0
            table[kind * parts + int(place[stage, chunk])] = array[at]
    if schedule not in SPLITS_WEIGHT_GRAD:
        for part in range(parts):
            table[parts + part] = table[parts + part] + table[2 * parts + part]
    links = ("send_forward_s", "send_backward_s", "latency_forward_s", "latency_backward_s")
    for which, name in enumerate(links):
        for boundary in range(boundaries):
            table[3 * parts + which * boundaries + boundary] = times[name][boundary]
    ends: list[Any] = [0.0]
    for first, second, took, delay in zip(
        *shape.waits, shape.duration_row.tolist(), shape.delay_row.tolist(), strict=True
    ):
        arrived = ends[second] + table[delay] if second else 0.0
        starts = np.maximum(ends[first], arrived) if first and second else ends[first] if first else arrived
        ends.append(named("pipeline.end_s", starts + table[took], node=str(len(ends))))
    last = shape.operations[-1]
    return PassTimes(
        shape=shape,
        ends=ends,
        first_start_s=ends[last[0]] - table[int(shape.duration_row[last[0] - 1])],
        last_end_s=ends[last[-1]],
    )
