"""Chosen: what is known of a task before it is created: the chosen environments together, and what to expect of them.

chosen = chosen_of(request, known, links, "zh")
chosen.selection.gpus, chosen.master, chosen.step_time_s, chosen.slowdown, chosen.notices
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from crosszone.errors import InputError, InvalidError, Notice
from crosszone.inputs.dataset import DatasetVersion, TrainingModel
from crosszone.inputs.environment import MeasuredLink, Selection, master_of, selection
from crosszone.inputs.frameworks import framework_of_alias
from crosszone.inputs.value import Value
from crosszone.run.request import Asked, Known, TaskRequest, allocated
from crosszone.run.work import Work, work_of

DEGREES = ("dp", "pp", "tp")


class Chosen(Value):
    """What a summary shows before a task is created."""

    selection: Selection
    """What the environments have together."""
    master: str | None
    """Environment at which ranks meet: the one that is wanted while it is chosen, else the first; null: none is."""
    framework: str | None
    """Framework that was given or planned; null: neither."""
    step_time_s: dict[str, float] | None
    """Seconds of a step: low, expected and high; null: there is no prediction, and a notice says why."""
    tokens_per_s: float | None
    """Expected tokens a second of all ranks."""
    slowdown: float | None
    """Step over the step of the same nodes in one zone; null: there is but one, or no prediction."""
    strategy: dict[str, int] | None
    """dp, pp and tp, given or planned."""
    notices: tuple[dict[str, Any], ...]
    """Warnings, or why there is no prediction: code, level, message, hint, field."""


def chosen_of(request: TaskRequest, known: Known, links: Iterable[MeasuredLink], language: str) -> Chosen:
    """What is known of a request as it stands; what is not there yet (a name, a dataset) is not asked for."""
    where = request.distributedConfig
    ids = list(dict.fromkeys(where.nodeIds))
    there = {id: known.environments[id] for id in ids if id in known.environments}
    refused: list[Notice] = []
    if request.launchMode == "new":
        try:
            there = allocated(request.allocation, known.environments)
        except InputError as error:
            refused = list(error.notices)
    master = master_of(there, where.masterNode)
    notices = refused + [
        Notice(
            code="task_unknown",
            field="distributedConfig.nodeIds",
            value=id,
            params={"known": list(known.environments)[:20]},
        )
        for id in ids
        if id not in there
    ]
    found: dict[str, Any] = {"framework": framework_of_alias(where.framework) if where.framework else None}
    if there and master is not None and request.modelId.strip() and not notices:
        try:
            found |= _predicted(_asked(request, known, there, master), links, language)
        except InputError as error:
            notices += error.notices
    told = [notice.as_dict(language) for notice in notices]
    if found.get("slowdown"):
        params = {"factor": f"{found['slowdown']:.2f}", "zones": len(selection(there.values()).zones)}
        told.append(Notice(code="task_cross_zone", params=params, level="warning").as_dict(language))
    nothing = dict.fromkeys(("step_time_s", "tokens_per_s", "slowdown", "strategy"))
    return Chosen(
        selection=selection(there.values()),
        master=master,
        notices=(*told, *found.pop("warnings", ())),
        **{**nothing, **found},
    )


def _asked(request: TaskRequest, known: Known, there: dict[str, Any], master: str) -> Asked:
    """The request with what a prediction needs; a dataset changes no time."""
    where = request.distributedConfig
    return Asked(
        request=request,
        name=request.taskName.strip() or "task",
        environments={master: there[master], **there},
        master=master,
        framework=framework_of_alias(where.framework) if where.framework else None,
        version=DatasetVersion(id="none"),
        model=known.models.get(request.modelId) or TrainingModel(name=request.modelId, model=request.modelId),
    )


def decided(asked: Asked, links: Iterable[MeasuredLink], language: str) -> Work:
    """What a task does (`work_of`); of a link that nobody knows, between which environments to measure it is told."""
    try:
        return work_of(asked, links, language)
    except InvalidError as error:
        notice = error.notices[0]
        if notice.code != "rtt_unknown":
            raise
        zones = [str(notice.params[end]) for end in ("first", "second")]
        ends = [next((id for id, one in asked.environments.items() if one.zone == zone), zone) for zone in zones]
        params = {"first": zones[0], "second": zones[1], "one": ends[0], "other": ends[1]}
        raise InvalidError(Notice(code="task_link_unknown", field="distributedConfig.nodeIds", params=params)) from None


def _predicted(asked: Asked, links: Iterable[MeasuredLink], language: str) -> dict[str, Any]:
    work = decided(asked, links, language)
    strategy = work.prediction["strategy"]
    return {
        "framework": work.bundle.framework,
        "step_time_s": work.prediction["step_time_s"],
        "tokens_per_s": work.prediction["tokens_per_s"]["expected"],
        "slowdown": work.slowdown,
        "strategy": {key: strategy[key] for key in DEGREES},
        "warnings": work.prediction["warnings"],
    }
