"""Figures of the timeline explained: what lanes, phases and the average stage do, and the usage around a micro-batch.

explain(p, p.prediction(), "timeline.phases.steady.idle_s").worked
"""

from __future__ import annotations

from typing import Any

from crosszone.analyse.explain.explanation import Draft, Term
from crosszone.analyse.explain.facts import Facts
from crosszone.analyse.explain.form import Form, Given, Words, total
from crosszone.analyse.explain.headline import STEP
from crosszone.errors import InvalidError
from crosszone.schedule.micro_batch import micro_batch_view
from crosszone.schedule.phases import PHASES
from crosszone.schedule.view import IDLE, lanes_of, totals_of, view_of

SIMULATED = (Words("note_timeline"),)


def lane(f: Facts, at: str, name: str) -> Draft:
    """Work, waiting or the share of work of one lane. [S10]"""
    found = lanes_of(f.p.timeline())[_number(at)]
    path, about = f"timeline.lanes[{at}]", {"lane": found["id"]}
    if name == "busy_s":
        parts = {
            kind: f.simulated("lane_part", s, kind=Words(f"span_{kind}"), **about) for kind, s in found["parts"].items()
        }
        return _drawn("lane_busy", about, "S10", found[name], _sum(parts), terms=_terms(parts))
    busy = f.follows(f"{path}.busy_s", found["busy_s"], Words("lane_busy", about))
    if name == "idle_s":
        return _drawn("lane_idle", about, "S10", found[name], Form("{step} - {busy}", step=_step(f), busy=busy))
    form = Form("{busy} / {step}", step=_step(f), busy=busy)
    return _drawn("lane_utilisation", about, "S10", found[name], form, unit="")


def phase(f: Facts, which: str, name: str) -> Draft:
    """Length of a phase, work and waiting of the average stage in it, and communication exposed in it. [S13]"""
    timeline = f.p.timeline()
    found = view_of(timeline, most=0)["phases"][PHASES.index(which)]
    about = {"phase": Words(f"phase_{which}")}
    if name == "seconds":
        ends = {key: f.simulated(f"at_{key}", found[f"{key}_s"], **about) for key in ("start", "end")}
        return _drawn("of_seconds", about, "S13", found[name], Form("{end} - {start}", **ends))
    seconds = f.follows(f"timeline.phases.{which}.seconds", found["seconds"], Words("of_seconds", about))
    if name == "share":
        form = Form("{seconds} / {step}", seconds=seconds, step=_step(f))
        return _drawn("of_share", about, "S13", found[name], form, unit="")
    stages = f.counted("stages_drawn", len(timeline.stages), where="strategy.pp")
    if name == "busy_s":
        every = f.simulated("of_busy_all", found["busy_s"] * len(timeline.stages), **about)
        return _drawn("of_busy", about, "S13", found[name], Form("{work} / {stages}", work=every, stages=stages))
    if name == "idle_s":
        busy = f.follows(f"timeline.phases.{which}.busy_s", found["busy_s"], Words("of_busy", about))
        return _drawn("of_idle", about, "S13", found[name], Form("{seconds} - {busy}", seconds=seconds, busy=busy))
    exposed = f.simulated("of_exposed", found[name], **about)
    return _drawn("of_exposed", about, "S13", found[name], Form("{exposed}", exposed=exposed))


def part(f: Facts, kind: str, name: str) -> Draft:
    """Seconds of one kind on the average stage, or their share of the step; waiting is what is left. [S10]"""
    timeline = f.p.timeline()
    found = {one["kind"]: one for one in totals_of(timeline)}
    about = {"kind": Words(f"span_{kind}")}
    if name == "share":
        seconds = _mean(f, kind, found[kind]["seconds"])
        form = Form("{seconds} / {step}", seconds=seconds, step=_step(f))
        return _drawn("mean_share", about, "S10", found[kind]["share"], form, unit="")
    if kind != IDLE:
        every = f.simulated("all_of_kind", found[kind]["seconds"] * len(timeline.stages), **about)
        stages = f.counted("stages_drawn", len(timeline.stages), where="strategy.pp")
        form = Form("{all} / {stages}", all=every, stages=stages)
        return _drawn("mean_of_kind", about, "S10", found[kind]["seconds"], form)
    others = [(one, at["seconds"]) for one, at in found.items() if one != IDLE]
    parts = {one: _mean(f, one, seconds) for one, seconds in others}
    form = Form("{step} - {parts}", step=_step(f), parts=_sum(parts))
    return _drawn("mean_of_kind", about, "S10", found[kind]["seconds"], form)


def summary(f: Facts, name: str) -> Draft:
    """Share of the step in which the average stage works, or in which communication is exposed. [S10] [S13]"""
    view = view_of(f.p.timeline(), most=0)
    if name == "utilisation":
        idle = view["summary"]["idle"]["seconds"]
        form = Form("1 - {idle} / {step}", idle=_mean(f, IDLE, idle), step=_step(f))
        return _drawn("stages_at_work", {}, "S10", view["summary"][name], form, unit="")
    phases = {
        one["phase"]: f.follows(
            f"timeline.phases.{one['phase']}.exposed_s",
            one["exposed_s"],
            Words("of_exposed", {"phase": Words(f"phase_{one['phase']}")}),
        )
        for one in view["phases"]
    }
    form = Form("{exposed} / {step}", exposed=_sum(phases), step=_step(f))
    return _drawn("exposed_share", {}, "S13", view["summary"]["exposed"]["share"], form, unit="")


def micro_batch(f: Facts, at: str, stage: str | None = None) -> Draft:
    """How much of the time a micro-batch is on its way the GPUs compute: all stages, or one. [S14]"""
    timeline = f.p.timeline()
    try:
        found = micro_batch_view(timeline, _number(at))
    except InvalidError:
        raise IndexError(at) from None
    about: dict[str, Any] = {"number": at}
    if stage is not None:
        one, about = found["stages"][_number(stage)], about | {"stage": stage}
        inputs = {
            "own": f.simulated("way_own", one["own_s"], **about),
            "others": f.simulated("way_others", one["other_s"], **about),
            "seconds": f.simulated("way_stage", one["seconds"], **about),
        }
        form = Form("({own} + {others}) / {seconds}", **inputs)
        return _drawn("way_usage_stage", about, "S14", one["usage"], form, unit="")
    stages = len(timeline.stages)
    inputs = {
        "computed": f.simulated("way_computed", found["usage"] * found["seconds"] * stages, **about),
        "stages": f.counted("stages_drawn", stages, where="strategy.pp"),
        "seconds": f.simulated("way_seconds", found["seconds"], **about),
    }
    form = Form("{computed} / ({stages} * {seconds})", **inputs)
    return _drawn("way_usage", about, "S14", found["usage"], form, unit="")


PATTERNS = (
    (r"timeline\.lanes\[(\d+)\]\.(busy_s|idle_s|utilisation)", lane),
    (rf"timeline\.phases\.({'|'.join(PHASES)})\.(seconds|share|busy_s|idle_s|exposed_s)", phase),
    (r"timeline\.totals\.(\w+)\.(seconds|share)", part),
    (r"timeline\.summary\.(utilisation|exposed)", summary),
    (r"timeline\.micro_batch\[(\d+)\]\.usage", micro_batch),
    (r"timeline\.micro_batch\[(\d+)\]\.stages\[(\d+)\]\.usage", micro_batch),
)


def _drawn(
    key: str, about: dict[str, Any], formula: str, value: float, form: Form, unit: str = "s", terms: Any = ()
) -> Draft:
    return Draft(
        words=Words(key, about), formula=formula, value=value, unit=unit, form=form, terms=terms, notes=SIMULATED
    )


def _mean(f: Facts, kind: str, seconds: float) -> Given:
    words = Words("mean_of_kind", {"kind": Words(f"span_{kind}")})
    return f.follows(f"timeline.totals.{kind}.seconds", seconds, words)


def _step(f: Facts) -> Given:
    return f.triple("step_time_s", f.prediction.step_time_s, STEP, "s")


def _sum(parts: dict[str, Given]) -> Form:
    return total([Form(f"{{{name}}}", **{name: given}) for name, given in parts.items()])


def _terms(parts: dict[str, Given]) -> list[Term]:
    return [
        Term(words=given.words, form=Form(f"{{{name}}}", **{name: given}), figure=given.figure)
        for name, given in parts.items()
    ]


def _number(text: str) -> int:
    if len(text) > 8:
        raise IndexError(text)
    return int(text)
