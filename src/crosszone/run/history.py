"""History: after a run its measured figures are saved beside what was predicted of it, without anybody asking.

    save_history(store, task, work, rows)    # saves two results of the task's name, or renews them: predicted, measured

The measured one also says what was predicted, so that a list shows both; Compare sets the two side by side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median, quantiles
from typing import Any

from crosszone.analyse.outcome import Figures, build_headline, build_measured_outcome, build_outcome
from crosszone.predict.prediction import Prediction
from crosszone.run.measurements import (
    Row,
    average_periods,
    compute_typical,
    find_period,
    group_predicted_parts,
    split_warm_up,
)
from crosszone.run.work import TaskWork
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
RUN_KEY = "run"  # Key of what a saved result knows beyond its figures


def save_history(store: Store, task: TaskRow, work: TaskWork, rows: Sequence[Row]) -> Result | None:
    """Save what a run has measured and what was predicted of it; None: it made no step, or had no prediction.

    One pair of results for each attempt of a task: called again, their numbers are renewed.
    """
    if "step_time_s" not in work.prediction or not rows:
        return None
    prediction = Prediction.model_validate(work.prediction)
    steady, _ = split_warm_up(rows)
    counted = average_periods(steady, find_period(prediction)) or average_periods(rows, 1)
    figures = compute_figures(work, prediction, rows, counted)
    id_suffix = f"{task.id}-{task.attempt}"
    predicted_headline = build_headline(build_outcome(prediction))
    store.results.put(
        f"predicted-{id_suffix}",
        kind="predicted",
        name=task.name,
        document=prediction.model_dump(mode="json"),
        headline=predicted_headline | {"task": task.id},
        scenario=work.scenario,
    )
    listed_keys = ("step_time_s", "tokens_per_s", "memory_gib")
    against = {key: predicted_headline[key] for key in listed_keys}
    return store.results.put(
        f"measured-{id_suffix}",
        kind="measured",
        name=task.name,
        document=figures.model_dump(mode="json") | {RUN_KEY: describe_run(task, work, prediction, rows, counted)},
        headline=build_headline(build_measured_outcome(figures)) | {"task": task.id, "predicted": against},
        scenario=work.scenario,
    )


def compute_figures(work: TaskWork, prediction: Prediction, rows: Sequence[Row], counted: Sequence[Row]) -> Figures:
    """The figures of a run: medians over the steps that count; parts of a typical step, scaled to the median."""
    step_s = median(row["step_s"] for row in counted)
    usual = compute_typical(counted)
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


def describe_run(
    task: TaskRow, work: TaskWork, prediction: Prediction, rows: Sequence[Row], counted: Sequence[Row]
) -> dict[str, Any]:
    """What else is known of a run: where it ran, its spread, losses, checkpoints, the prediction in the same parts."""
    seconds = [row["step_s"] for row in counted]
    tenths = quantiles(seconds, n=10, method="inclusive") if len(seconds) > 1 else [seconds[0]] * 9
    losses = [row["loss"] for row in rows if row.get("loss") is not None and math.isfinite(row["loss"])]
    written = [row["checkpoint_s"] for row in rows if row.get("checkpoint_s")]
    expected = group_predicted_parts(prediction, work.bundle.framework)
    environments = {node.environment: work.environments.get(node.environment) for node in work.nodes}
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
            id: environment and {key: getattr(environment, key) for key in ("zone", "gpu", "gpus", "cpus")}
            for id, environment in environments.items()
        },
        "links": _list_zone_traffic(work.prediction),
        "predicted": {
            "step_time_s": prediction.step_time_s.model_dump(),
            "tokens_per_s": prediction.tokens_per_s.model_dump(),
            "memory_gib": prediction.memory_gib.peak.model_dump(),
            "parts_s": {PART_OF[name]: part.seconds for name, part in expected.items()},
            "covers": {PART_OF[name]: list(part.covers) for name, part in expected.items()},
            "checkpoint_s": prediction.run.goodput.checkpoint_s,
        },
    }


def _list_zone_traffic(prediction: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What crosses zones in a step, as predicted."""
    keys = ("kind", "link", "bytes_per_step", "busy_s", "exposed_s")
    return [{key: row[key] for key in keys} for row in prediction["communication"] if " > " in row["link"]]
