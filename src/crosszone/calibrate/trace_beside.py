"""A measured run beside the predicted step of a scenario: what of both is compared, and whether they are one run.

    beside(predicted, measured, pipeline=False)         # parts, each with the difference in %
    notices_of(found, predictor, measured, predicted)   # the trace has other micro-batches than the scenario

Time is counted once: a stage is idle where nothing of its own runs, and nothing that is told as another part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from crosszone.calibrate.kineto_spans import total_s
from crosszone.errors import Notice
from crosszone.schedule.timeline import IDLE, KINDS, NONE, Timeline, difference

if TYPE_CHECKING:
    from crosszone.calibrate.imported import Imported
    from crosszone.predict.predict import Predictor

SENDS = KINDS.index("send")
"""Sends between stages run beside the wait for them, which is the bubble."""
NEAR = 0.02
"""Share by which tokens of a step may differ: both are rounded."""
SAME = ("micro_batch", "tp", "pp", "dp", "cp", "ep")
"""Fields of a strategy that a trace may state."""
WITHOUT_MARKS = "benchmark.csv"
"""The format whose marks do not count all micro-batches."""


def beside(predicted: Timeline, measured: Timeline, *, pipeline: bool) -> dict[str, Any]:
    """The difference [S15] with idle time counted once, and without the phases of a pipeline that there is not."""
    found = difference(predicted, measured)
    kinds = [row for row in found["kinds"] if row["part"] != IDLE]
    ours, theirs = waiting_s(predicted), waiting_s(measured)
    above = ours - theirs
    percent = 100 * above / theirs if theirs else (0.0 if not ours else None)
    row = {"part": IDLE, "predicted_s": ours, "measured_s": theirs, "difference_s": above, "difference_pct": percent}
    return {**found, "kinds": [*kinds, row], "phases": found["phases"] if pipeline else []}


def waiting_s(timeline: Timeline) -> float:
    """Seconds in which the average stage waits and nothing beside the stages runs, but for sends between them."""
    on_stages = np.isin(timeline.lane, timeline.stages)
    others = ~on_stages & (timeline.kind != SENDS)
    left = []
    for stage in timeline.stages.tolist():
        here = others | (timeline.lane == stage)
        covered = total_s(
            np.clip(timeline.start_s[here], 0.0, timeline.step_s), np.clip(timeline.end_s[here], 0.0, timeline.step_s)
        )
        left.append(max(0.0, timeline.step_s - covered))
    return float(np.mean(left)) if left else 0.0


def notices_of(found: Imported, predictor: Predictor, measured: Timeline, predicted: Timeline) -> list[Notice]:
    """A warning for each thing that the trace has otherwise than the scenario."""
    job, meta = predictor.case.job, found.meta
    told: dict[str, tuple[Any, Any]] = {key: (meta.get(key), getattr(predictor.strategy, key, None)) for key in SAME}
    told["seq_len"] = (meta.get("seq_len"), job.seq_len)
    told["gpus"] = (found.figures.get("gpus"), predictor.strategy.ranks)
    if meta.get("format") != WITHOUT_MARKS:
        told["micro_batches"] = (_micro_batches(measured), _micro_batches(predicted))
    rate = found.figures.get("tokens_per_s")
    tokens = None if rate is None else rate * found.figures["step_time_s"]
    if tokens is not None and abs(tokens / job.tokens_per_step - 1.0) > NEAR:
        told["tokens_per_step"] = (round(tokens), job.tokens_per_step)
    return [
        Notice(
            code="trace_scenario_differs",
            level="warning",
            field=field,
            params={"measured": theirs, "predicted": ours},
        )
        for field, (theirs, ours) in told.items()
        if isinstance(theirs, int) and isinstance(ours, int) and theirs != ours
    ]


def _micro_batches(timeline: Timeline) -> int | None:
    most = int(timeline.micro_batch.max(initial=NONE))
    return None if most == NONE else most + 1
