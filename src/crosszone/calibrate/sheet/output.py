"""Output: the step as a timeline, what it is made of, memory, the run and its communication: what an import reads.

The last stage of the pipeline is what a timeline shows: it waits while the pipeline fills (warm-up), runs one forward
and one backward pass for every micro-batch, and waits while the pipeline empties (cool-down). Every line is a recorded
number of the prediction; only sums and differences of the timeline are put together here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from crosszone.cost.memory import GIB
from crosszone.cost.record import Recorded, plain
from crosszone.predict.batch import cell
from crosszone.predict.breakdown import ORDER
from crosszone.predict.memory import fullest_of
from crosszone.predict.recorded import RecordedScenario
from crosszone.predict.traffic import FIELDS

SHEET = "Output"
# Cells that every workbook has, in seconds.
PHASES = (
    "warm_up_s",
    "forward_s",
    "backward_s",
    "steady_s",
    "cool_down_s",
    "all_reduce_s",
    "optimizer_s",
    "weights_s",
    "other_s",
    "iteration_s",
)
# Of these, those that add up to the iteration.
STEP_PARTS = ("warm_up_s", "steady_s", "cool_down_s", "all_reduce_s", "optimizer_s", "weights_s", "other_s")
BREAKDOWN = ORDER
# Figures of a result, and the cells that hold them where they are known.
FIGURES = {
    "tokens_per_s": "out_tokens_per_s",
    "mfu": "out_mfu",
    "memory_gib": "out_memory_gib",
    "gpus": "out_gpus",
    "days": "out_days",
    "usd": "out_usd",
    "kwh": "out_kwh",
}
# What must hold for the formulas to be right, after the inputs were changed; a workbook has those that may fail.
CHECKS = (
    "check_replica",
    "check_memory",
    "check_batch",
    "check_branches",
    "check_simulated",
    "check_zone_order",
)
CLOSE = 1e-9  # Share by which sums in another order may differ


@dataclass(frozen=True)
class Figure:
    """One line of the sheet: a recorded number, or a condition that must hold."""

    name: str
    value: Any
    unit: str = ""
    id: str = ""
    label: str = ""


def timeline_figures(recorded: RecordedScenario) -> list[Figure]:
    """The phases of an iteration; they add up to it."""
    p, figures = recorded.predictor, recorded.prediction
    row, parts, step = p.row, recorded.prediction.breakdown_s, p.step
    span = step.pipelines.span_s[row]
    starts, ends = _last_stage(recorded, span)
    last = p.strategy.pp - 1
    other = parts["fixed"] + parts["jitter"] + parts["local_update"]
    count = "micro_batches_of_replica"
    return [
        Figure("out_layers", p.case.model.layers),
        Figure("out_micro_batches", {**recorded.tape.names, **recorded.tape.given}[count], "", "R2"),
        Figure("span_s", span, "s", "S3"),
        Figure("out_warm_up_s", starts, "s", "S13"),
        Figure("out_forward_s", cell(step.times.forward, row, last), "s", "V2"),
        Figure("out_backward_s", cell(step.times.backward, row, last), "s", "V2"),
        Figure("out_steady_s", ends - starts, "s", "S13"),
        Figure("out_cool_down_s", span - ends, "s", "S13"),
        Figure("out_all_reduce_s", parts["gradients"], "s", "V2"),
        Figure("out_optimizer_s", parts["optimizer"], "s", "O10"),
        Figure("out_weights_s", parts["weights"], "s", "V1"),
        Figure("out_other_s", other, "s", "V3"),
        Figure("out_iteration_s", figures.step_time_s.expected, "s", "V3"),
    ]


def _last_stage(recorded: RecordedScenario, span: Any) -> tuple[Any, Any]:
    """When the last stage of the pipeline starts and is done."""
    row = recorded.predictor.row
    if row in recorded.passes:
        return recorded.passes[row].first_start_s, recorded.passes[row].last_end_s
    return recorded.simulated.get(row, (0.0, span))


def part_figures(recorded: RecordedScenario) -> list[Figure]:
    """What the step is made of, the stage that works longest setting the pace. [V3]"""
    return [Figure(f"part_{part}", recorded.prediction.breakdown_s[part], "s", "V3") for part in BREAKDOWN]


def memory_figures(recorded: RecordedScenario) -> list[Figure]:
    """Memory of the fullest stage by part, and of every stage."""
    memory = recorded.prediction.memory_gib
    worst = memory.stages[memory.worst_stage]
    return [
        *(Figure(f"memory_{part}", value, "GiB", "M7") for part, value in worst.parts.items()),
        Figure("out_memory_gib", memory.peak.expected, "GiB", "M7"),
        Figure("memory_limit", memory.limit, "GiB", "M7"),
        *(
            Figure(f"memory_stage_{one.stage}", one.total, "GiB", "M7")
            for one in memory.stages
            if len(memory.stages) > 1
        ),
    ]


def run_figures(recorded: RecordedScenario) -> list[Figure]:
    """Rates, and the whole run where its length is known."""
    found, names = recorded.prediction, recorded.tape.names
    run = found.run
    figures = [
        Figure("out_gpus", names["gpus"], "GPUs", "R1"),
        Figure("out_tokens_per_s", found.tokens_per_s.expected, "tokens/s", "J1"),
        Figure("out_tokens_per_s_per_gpu", found.tokens_per_s_per_gpu.expected, "tokens/s", "J1"),
        Figure("out_tflops_per_gpu", found.tflops_per_gpu.expected, "TFLOP/s", "F1"),
        Figure("out_mfu", found.mfu.expected, "", "V6"),
        Figure("out_hfu", found.hfu.expected, "", "V6"),
        Figure("out_goodput", run.goodput.share, "", "E1"),
    ]
    if run.days is not None:
        figures += [
            Figure("out_iterations", names["run.steps"], "", "J2"),
            Figure("out_days", run.days.expected, "days", "J2"),
        ]
    triples = {
        "gpu_hours": (run.gpu_hours, "GPU-hours", "E2"),
        "usd": (run.usd, "$", "E2"),
        "kwh": (run.kwh, "kWh", "E3"),
    }
    triples["co2_kg"] = (run.co2_kg, "kg", "E3")
    for name, (triple, unit, id_) in triples.items():
        if triple is not None:
            figures.append(Figure(f"out_{name}", triple.expected, unit, id_))
    if run.usd_egress is not None:
        figures.append(Figure("out_usd_egress", run.usd_egress, "$", "E2"))
    return figures


UNITS = {"bytes_per_step": "bytes", "messages": "", "busy_s": "s", "exposed_s": "s"}


def traffic_figures(recorded: RecordedScenario) -> list[Figure]:
    """Bytes, messages, busy and exposed time of every kind of communication on every link. [A1]"""
    return [
        Figure(f"traffic_{at}_{name}", getattr(row, name), UNITS[name], "A1", f"{row.kind}, {row.link}")
        for at, row in enumerate(recorded.prediction.communication)
        for name in FIELDS
    ]


def checks(recorded: RecordedScenario) -> Iterator[tuple[str, list[tuple[Any, bool]]]]:
    """Conditions that the expressions rest on: recorded, and what they must be.

    A prediction decides some things from its numbers: which replica is slowest, which stage is fullest. The cells
    compute for what was decided; where changed inputs would decide otherwise, the check says so.
    """
    p = recorded.predictor
    site = p.site
    kinds, first = len(site.kinds[0]), p.row - p.slowest
    totals = p.step.total_s[first : first + kinds]
    yield "check_replica", [_is_largest(totals, p.slowest)] if kinds > 1 else []
    yield "check_memory", _memory_conditions(recorded)
    count = p.batch.work.micro_batches
    whole = [(np.absolute(count - np.floor(count + 0.5)) < CLOSE, True)] if not np.ndim(plain(count)) else []
    yield "check_batch", whole
    yield "check_branches", [(node, truth) for node, truth in recorded.tape.decisions]
    yield (
        "check_simulated",
        [
            (np.absolute(now[at] - was[at]) <= CLOSE * was[at], True)
            for now, was in recorded.durations
            for at in np.ndindex(*now.shape)
            if isinstance(now, Recorded)
        ],
    )
    leaves = [node for key, node in recorded.tape.names.items() if key.startswith(("input.zone_gbps", "input.rtt_ms"))]
    several = leaves if len(site.ring) > 3 else []  # up to three zones there is one ring
    yield "check_zone_order", [(np.absolute(leaf - plain(leaf)) <= CLOSE * plain(leaf), True) for leaf in several]


def _is_largest(values: Any, at: int) -> tuple[Any, bool]:
    return values[at] >= np.max(values) * (1.0 - CLOSE), True


def _memory_conditions(recorded: RecordedScenario) -> list[tuple[Any, bool]]:
    """The replicas and the stage that were fullest still are."""
    p, memory = recorded.predictor, recorded.prediction.memory_gib
    found, fullest = fullest_of(p)
    kinds = len(p.site.kinds[0])
    conditions = []
    room = np.array([group.gpu.memory_gib for group in p.site.groups])[p.site.group[:, p.site.kinds[0], 0, 0].T]
    if kinds > 1:
        totals = np.broadcast_to(found.total / GIB, p.batch.counts.shape)
        for stage in range(p.strategy.pp):
            own = np.stack([totals[kind, stage] - float(room[kind, stage]) for kind in range(kinds)])
            conditions.append((own[int(fullest[stage])] >= np.max(own) - CLOSE, True))
    if len(memory.stages) > 1:
        over = np.stack([one.total - float(plain(one.limit)) for one in memory.stages])
        conditions.append((over[memory.worst_stage] >= np.max(over) - CLOSE, True))
    return conditions
