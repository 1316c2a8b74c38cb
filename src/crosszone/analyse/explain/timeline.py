"""Figures of the timeline: what lanes, phases and the average stage do, and the usage around a micro-batch.

What the simulation drew goes in as it is; what is computed of it is recorded, like everything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from crosszone.cost.expression import Cell
from crosszone.cost.record import named, recording
from crosszone.errors import InputError
from crosszone.predict.predict import Predictor
from crosszone.schedule.timeline import IDLE, PHASES, Timeline, lanes_of, micro_batch_view, totals_of, view_of


def timeline_cell(p: Predictor, figure: str) -> Cell | None:
    """The recorded number of a figure of the timeline; None: there is no such figure."""
    if not figure.startswith("timeline."):
        return None
    for pattern, build in PATTERNS:
        match = re.fullmatch(pattern, figure.removeprefix("timeline."))
        if match:
            try:
                with recording():
                    step = named("step_time_s", named("step_time_s", p.step_time.expected))
                    return Cell(build(p.timeline(), step, *match.groups()), ())
            except (KeyError, IndexError, InputError):
                return None
    return None


def _figure(path: str, name: str, value: Any, **about: str) -> Any:
    """A number of the timeline that opens at its own path."""
    found = named(name, value, **about)
    found.key = f"timeline.{path}"
    return found


def _lane(timeline: Timeline, step: Any, at: str, name: str) -> Any:
    """Work, waiting or the share of work of one lane. [S10]"""
    found = lanes_of(timeline)[int(at)]
    lane = {"lane": found["id"]}
    parts = [named("lane_part", seconds, kind=kind, **lane) for kind, seconds in found["parts"].items()]
    busy = _figure(f"lanes[{at}].busy_s", "lane_busy", sum(parts), **lane)
    if name == "busy_s":
        return busy
    if name == "idle_s":
        return named("lane_idle", step - busy, **lane)
    return named("lane_utilisation", busy / step, **lane)


def _phase(timeline: Timeline, step: Any, which: str, name: str) -> Any:
    """Length of a phase, work and waiting of the average stage in it, and communication exposed in it. [S13]"""
    found = view_of(timeline, most=0)["phases"][PHASES.index(which)]
    phase = {"phase": which}
    start, end = (named(f"at_{key}", found[f"{key}_s"], **phase) for key in ("start", "end"))
    seconds = _figure(f"phases.{which}.seconds", "of_seconds", end - start, **phase)
    if name == "seconds":
        return seconds
    if name == "share":
        return named("of_share", seconds / step, **phase)
    if name == "exposed_s":
        return named("of_exposed", found[name], **phase)
    stages = len(timeline.stages)
    work = named("of_busy_all", found["busy_s"] * stages, **phase)
    busy = _figure(f"phases.{which}.busy_s", "of_busy", work / _stages(timeline), **phase)
    return busy if name == "busy_s" else named("of_idle", seconds - busy, **phase)


def _stages(timeline: Timeline) -> Any:
    return named("stages_drawn", len(timeline.stages))


def _mean(timeline: Timeline, step: Any, kind: str) -> Any:
    """Seconds of one kind on the average stage; waiting is what is left. [S10]"""
    found = {one["kind"]: one["seconds"] for one in totals_of(timeline)}
    if kind != IDLE:
        every = named("all_of_kind", found[kind] * len(timeline.stages), kind=kind)
        return _figure(f"totals.{kind}.seconds", "mean_of_kind", every / _stages(timeline), kind=kind)
    others = [_mean(timeline, step, one) for one in found if one != IDLE]
    return _figure(f"totals.{kind}.seconds", "mean_of_kind", step - sum(others), kind=kind)


def _part(timeline: Timeline, step: Any, kind: str, name: str) -> Any:
    """Seconds of one kind on the average stage, or their share of the step."""
    seconds = _mean(timeline, step, kind)
    return seconds if name == "seconds" else named("mean_share", seconds / step, kind=kind)


def _summary(timeline: Timeline, step: Any, name: str) -> Any:
    """Share of the step in which the average stage works, or in which communication is exposed. [S10] [S13]"""
    if name == "utilisation":
        return named("stages_at_work", 1.0 - _mean(timeline, step, IDLE) / step)
    phases = view_of(timeline, most=0)["phases"]
    exposed = sum(named("of_exposed", one["exposed_s"], phase=one["phase"]) for one in phases)
    return named("exposed_share", exposed / step)


def _micro_batch(timeline: Timeline, _: Any, at: str, stage: str | None = None) -> Any:
    """How much of the time a micro-batch is on its way the GPUs compute: all stages, or one. [S14]"""
    found = micro_batch_view(timeline, int(at))
    about = {"number": at}
    if stage is not None:
        one, about = found["stages"][int(stage)], about | {"stage": stage}
        own, others = named("way_own", one["own_s"], **about), named("way_others", one["other_s"], **about)
        return named("way_usage_stage", (own + others) / named("way_stage", one["seconds"], **about), **about)
    computed = named("way_computed", found["usage"] * found["seconds"] * len(timeline.stages), **about)
    seconds = named("way_seconds", found["seconds"], **about)
    return named("way_usage", computed / (_stages(timeline) * seconds), **about)


PATTERNS: tuple[tuple[str, Callable[..., Any]], ...] = (
    (r"lanes\[(\d{1,6})\]\.(busy_s|idle_s|utilisation)", _lane),
    (rf"phases\.({'|'.join(PHASES)})\.(seconds|share|busy_s|idle_s|exposed_s)", _phase),
    (r"totals\.(\w+)\.(seconds|share)", _part),
    (r"summary\.(utilisation|exposed)", _summary),
    (r"micro_batch\[(\d{1,8})\]\.usage", _micro_batch),
    (r"micro_batch\[(\d{1,8})\]\.stages\[(\d{1,6})\]\.usage", _micro_batch),
)
