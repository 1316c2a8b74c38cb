"""History: after a run its measured figures are saved beside what was predicted of it, without anybody asking.

    keep(store, task, work, rows)         # two results of the task's name: predicted and measured; again: the same two

The measured one also says what was predicted, so that a list shows both; Compare sets the two side by side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median, quantiles
from typing import Any

from crosszone.analyse.outcome import Figures, headline_of, outcome_of, outcome_of_figures
from crosszone.predict.prediction import Prediction
from crosszone.run.measurements import Row, averaged, period_of, predicted_parts, split, typical
from crosszone.run.work import Work
from crosszone.store import Store
from crosszone.store.saved import Result
from crosszone.store.tasks import TaskRow

# Measured parts as saved results call them.
PART_OF = {
    "compute": "compute",
    "communication": "communication",
    "waiting": "bubble",
    "input": "host",
    "other": "other",
}
RUN = "run"  # Key of what a saved result knows beyond its figures


def keep(store: Store, task: TaskRow, work: Work, rows: Sequence[Row]) -> Result | None:
    """Save what a run has measured and what was predicted of it; None: it made no step, or had no prediction.

    One pair of results for each attempt of a task: called again, their numbers are renewed.
    """
    if "step_time_s" not in work.prediction or not rows:
        return None
    prediction = Prediction.model_validate(work.prediction)
    steady, _ = split(rows)
    counted = averaged(steady, period_of(prediction)) or averaged(rows, 1)
    figures = figures_of(work, prediction, rows, counted)
    mark = f"{task.id}-{task.attempt}"
    predicted = headline_of(outcome_of(prediction))
    store.results.put(
        f"predicted-{mark}",
        kind="predicted",
        name=task.name,
        document=prediction.model_dump(mode="json"),
        headline=predicted | {"task": task.id},
        scenario=work.scenario,
    )
    shown = ("step_time_s", "tokens_per_s", "memory_gib")
    against = {key: predicted[key] for key in shown}
    return store.results.put(
        f"measured-{mark}",
        kind="measured",
        name=task.name,
        document=figures.model_dump(mode="json") | {RUN: run_of(task, work, prediction, rows, counted)},
        headline=headline_of(outcome_of_figures(figures)) | {"task": task.id, "predicted": against},
        scenario=work.scenario,
    )


def figures_of(work: Work, prediction: Prediction, rows: Sequence[Row], counted: Sequence[Row]) -> Figures:
    """The figures of a run: medians over the steps that count; parts of a typical step, scaled to the median."""
    step_s = median(row["step_s"] for row in counted)
    usual = typical(counted)
    scale = step_s / usual["step"] if usual["step"] > 0 else 0.0
    rates = [row["tokens_per_s"] for row in counted if row.get("tokens_per_s")]
    memory = [row["memory_gib"] for row in rows if row.get("memory_gib")]
    mfu = prediction.mfu.expected * prediction.step_time_s.expected / step_s  # the same work in another time
    return Figures(
        step_time_s=step_s,
        tokens_per_s=median(rates) if rates else None,
        mfu=mfu if 0 < mfu <= 1 else None,
        memory_gib=max(memory, default=None),
        gpus=prediction.gpus,
        framework=work.bundle.framework,
        breakdown_s={PART_OF[name]: seconds * scale for name, seconds in usual.items() if name != "step"},
    )


def run_of(
    task: TaskRow, work: Work, prediction: Prediction, rows: Sequence[Row], counted: Sequence[Row]
) -> dict[str, Any]:
    """What else is known of a run: where it ran, its spread, losses, checkpoints, the prediction in the same parts."""
    seconds = [row["step_s"] for row in counted]
    tenths = quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 9
    losses = [row["loss"] for row in rows if row.get("loss") is not None and math.isfinite(row["loss"])]
    written = [row["checkpoint_s"] for row in rows if row.get("checkpoint_s")]
    expected = predicted_parts(prediction, work.bundle.framework)
    places = {node.environment: work.environments.get(node.environment) for node in work.nodes}
    return {
        "task": task.id,
        "attempt": task.attempt,
        "restarts": task.restarts,
        "state": task.state,
        "steps": len(rows),
        "steps_counted": len(counted),
        "first_step": rows[0]["step"],
        "last_step": rows[-1]["step"],
        "step_s": {"low": tenths[0], "median": median(seconds), "high": tenths[-1]},
        "loss": {"first": losses[0], "last": losses[-1]} if losses else None,
        "checkpoint_s": median(written) if written else None,
        "device": rows[-1].get("device"),
        "environments": {
            id: None if one is None else {"zone": one.zone, "gpu": one.gpu, "gpus": one.gpus, "cpus": one.cpus}
            for id, one in places.items()
        },
        "links": _links(work.prediction),
        "predicted": {
            "step_time_s": prediction.step_time_s.model_dump(),
            "tokens_per_s": prediction.tokens_per_s.model_dump(),
            "memory_gib": prediction.memory_gib.peak.model_dump(),
            "parts_s": {PART_OF[name]: one.seconds for name, one in expected.items()},
            "covers": {PART_OF[name]: list(one.covers) for name, one in expected.items()},
            "checkpoint_s": prediction.run.goodput.checkpoint_s,
        },
    }


def _links(prediction: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What crosses zones in a step, as predicted."""
    keys = ("kind", "link", "bytes_per_step", "busy_s", "exposed_s")
    return [{key: one[key] for key in keys} for one in prediction["communication"] if " > " in one["link"]]
