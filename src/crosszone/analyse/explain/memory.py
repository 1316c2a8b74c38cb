"""Memory explained: the peak of every stage by part, and of the fullest."""

from __future__ import annotations

from crosszone.analyse.explain.explanation import Draft, Term
from crosszone.analyse.explain.facts import Facts
from crosszone.analyse.explain.form import Form, Given, Words, total
from crosszone.analyse.explain.headline import widths_of
from crosszone.analyse.explain.memory_parts import GIB, PARTS, Held

FORMULAS = {
    "weights": "M2",
    "gradients": "M2",
    "optimizer": "M2",
    "activations": "M3",
    "logits": "M5",
    "working": "M6",
    "buffers": "M9",
    "base": "M7",
}


def stage_part(f: Facts, name: str) -> Draft:
    """One part of a stage's memory at its peak. [M7]"""
    held = Held(f)
    there = f.at(f.t.layers.layers) > 0
    terms = [term for term in PARTS[name](held) if term.form.value] if there else []
    size = total([term.form for term in terms])
    return Draft(
        words=_words(f, f"mem_{name}"),
        formula=FORMULAS[name],
        value=held.stage.parts[name],
        unit="GiB",
        form=Form(f"{{size}} / {GIB}", size=size),
        terms=terms if len(terms) > 1 else [],
        notes=(Words("note_moment", {"moment": Words(f"peak_{held.stage.peak_at}")}),),
    )


def _words(f: Facts, key: str) -> Words:
    return Words("memory_of_stage", {"part": Words(key), "stage": f.stage})


def stage_total(f: Facts) -> Draft:
    """The parts of a stage added up. [M7]"""
    stage = f.prediction.memory_gib.stages[f.stage]
    terms = []
    for name in (name for name in PARTS if stage.parts[name]):
        given = f.follows(_path(f, f"parts.{name}"), stage.parts[name], Words(f"mem_{name}"), "GiB")
        terms.append(Term(words=given.words, form=Form(f"{{{name}}}", **{name: given}), figure=given.figure))
    return Draft(
        words=_words(f, "mem_total"),
        formula="M7",
        value=stage.total,
        unit="GiB",
        form=total([term.form for term in terms]),
        terms=terms,
        notes=(Words("note_moment", {"moment": Words(f"peak_{stage.peak_at}")}),),
    )


def _path(f: Facts, name: str) -> str:
    return f"memory_gib.stages[{f.stage}].{name}"


def stage_limit(f: Facts) -> Draft:
    """Memory of the GPU. [M7]"""
    stage = f.prediction.memory_gib.stages[f.stage]
    gpu = next(group.gpu for group in f.p.site.groups if group.gpu.name == stage.gpu)
    source = gpu.source_of("memory_gib")
    given = Given(
        value=stage.limit,
        words=Words("gpu_memory", {"gpu": gpu.name}),
        unit="GiB",
        origin="catalogue",
        where=f"gpus/{gpu.name}" + (f" [{source}]" if source else ""),
    )
    words = _words(f, "mem_limit")
    return Draft(words=words, formula="M7", value=stage.limit, unit="GiB", form=Form("{memory_gib}", memory_gib=given))


def stage_host(f: Facts) -> Draft:
    """What the stage keeps in host memory. [M8]"""
    held = Held(f)
    there = f.at(f.t.layers.layers) > 0
    parts: list[Form] = []
    if held.moved >= 1 and there:
        names = {"optimizer_bytes": f.work("optimizer_bytes"), "gradient_bytes": f.work("gradient_bytes")}
        parts.append(
            Form("({optimizer_bytes} + {gradient_bytes}) * {params}", params=held.params(held.zero >= 1), **names)
        )
    if held.moved >= 2 and held.zero >= 3 and there:
        parts.append(
            Form("{weight_bytes} * {params}", weight_bytes=f.work("weight_bytes"), params=held.params(local=True))
        )
    return Draft(
        words=_words(f, "mem_host"),
        formula="M8",
        value=held.stage.host,
        unit="GiB",
        form=Form(f"{{size}} / {GIB}", size=total(parts)),
        notes=() if parts else (Words("note_no_offload"),),
    )


def peak(f: Facts, side: str = "expected") -> Draft:
    """The stage that comes nearest to its limit; the ends of the range by the memory's own error. [M7] [Q6]"""
    memory = f.prediction.memory_gib
    stage = f.on(memory.worst_stage)
    given = f.follows(_path(stage, "total"), memory.peak.expected, _words(stage, "mem_total"), "GiB")
    if side == "expected":
        note = Words("note_worst", {"stage": memory.worst_stage})
        return Draft(
            words=Words("memory_peak"),
            formula="M7",
            value=memory.peak.expected,
            unit="GiB",
            form=Form("{total}", total=given),
            notes=(note,),
            low=memory.peak.low,
            high=memory.peak.high,
        )
    unseen = not all(one.stack_measured for one in f.p.profile.values())
    widths = widths_of("memory", side, ["stack"] if unseen else [])
    squares = " + ".join(f"{{{name}}} ** 2" for name in widths)
    sign = "-" if side == "low" else ""
    return Draft(
        words=Words(f"end_{side}", {"of": Words("memory_peak")}),
        formula="Q6",
        value=getattr(memory.peak, side),
        unit="GiB",
        form=Form(f"{{total}} * exp({sign}sqrt({squares}))", total=given, **widths),
    )


def limit(f: Facts) -> Draft:
    """Memory of the GPU of the fullest stage. [M7]"""
    memory = f.prediction.memory_gib
    stage = f.on(memory.worst_stage)
    given = f.follows(_path(stage, "limit"), memory.limit, _words(stage, "mem_limit"), "GiB")
    words = Words("memory_limit")
    return Draft(words=words, formula="M7", value=memory.limit, unit="GiB", form=Form("{limit}", limit=given))


def margin(f: Facts) -> Draft:
    """Limit less peak. [M7]"""
    memory = f.prediction.memory_gib
    form = Form(
        "{limit} - {peak}",
        limit=f.follows("memory_gib.limit", memory.limit, Words("memory_limit"), "GiB"),
        peak=f.follows("memory_gib.peak", memory.peak.expected, Words("memory_peak"), "GiB"),
    )
    return Draft(words=Words("memory_margin"), formula="M7", value=memory.margin, unit="GiB", form=form)
