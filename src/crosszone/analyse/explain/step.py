"""Parts of the step explained: what the pace-setting stage does for every micro-batch, the pipeline, and the tail."""

from __future__ import annotations

import numpy as np

from crosszone.analyse.explain.exchange import gathers
from crosszone.analyse.explain.explanation import Draft, Term
from crosszone.analyse.explain.facts import Facts
from crosszone.analyse.explain.form import Form, Given, Words, total
from crosszone.analyse.explain.layer import PARTS, PASSES, again_given, embedding, head, loss, tp_exposed
from crosszone.analyse.explain.rates import rate, split, tokens
from crosszone.analyse.explain.stages import KINDS, layer_given, pass_given
from crosszone.inputs.parameters import parameters
from crosszone.predict.breakdown import COMMUNICATION, COMPUTE
from crosszone.predict.cells import row_of
from crosszone.predict.local_update import DTYPE_BYTES

LAYER_PARTS = {
    "matmul": "matmul",
    "attention": "attention",
    "elementwise": "elementwise",
    "routing": "routing",
    "host": "host",
    "tensor": "tp",
    "expert": "ep",
    "context": "cp",
}
FORMULAS = {"matmul": "O7", "attention": "O7", "elementwise": "O7", "routing": "O6", "host": "O7"} | {
    "tensor": "X1",
    "expert": "X3",
    "context": "X4",
}


def part(f: Facts, name: str) -> Draft:
    """One part of the step. [V3]"""
    if name in LAYER_PARTS:
        return _of_layers(f, name)
    make = {
        "embedding": _embedding,
        "head": _head,
        "recompute": _recompute,
        "sharding": _sharding,
        "pipeline": _pipeline,
        "bubble": _bubble,
        "gradients": _gradients,
        "weights": _weights,
        "optimizer": _optimizer,
        "local_update": _local_update,
        "fixed": _fixed,
        "jitter": _jitter,
    }[name]
    return make(f)


def _draft(f: Facts, name: str, formula: str, form: Form, terms: list[Term] | None = None, *notes: Words) -> Draft:
    return Draft(
        words=Words(f"step_{name}"),
        formula=formula,
        value=f.prediction.breakdown_s[name],
        unit="s",
        form=form,
        terms=terms or [],
        notes=notes,
    )


def _pace(f: Facts) -> Words:
    return Words("note_pace", {"stage": f.stage})


def layers_of(f: Facts, kind: str) -> Given:
    """Layers of one kind on the stage."""
    count = f.at(f.t.layers.dense if kind == "dense" else f.t.layers.moe)
    told = Words(f"kind_of_layer_{kind}")
    return f.counted("layers_of_stage", count, where="[R3] [R4]", kind=told, stage=f.stage)


def kinds_of(f: Facts) -> list[str]:
    """Kinds of layers that the stage holds."""
    return [kind for kind in KINDS if layers_of(f, kind).value > 0]


def _of_layers(f: Facts, name: str) -> Draft:
    key, terms = LAYER_PARTS[name], []
    full = f.at(f.batch.work.recompute) == 2
    for kind in kinds_of(f):
        layers = layers_of(f, kind)
        for way in PASSES:
            one = layer_given(f, kind, way, key)
            terms.append(_each(f, one, {f"{kind}_layers": layers, f"{kind}_{way}": one}))
        if full and key in ("tp", "ep", "cp"):
            one = layer_given(f, kind, "forward", key)
            words = Words("repeated", {"of": one.words})
            terms.append(_each(f, one, {f"{kind}_layers": layers, f"{kind}_forward": one}, words))
    if key == "tp" and f.at(f.t.layer.tp_s) > 0:
        terms += [
            Term(words=Words(words), form=Form("{m} * {exposed}", m=f.micro_batches, exposed=tp_exposed(f)))
            for words, end in (("tp_of_embedding", f.t.layers.first), ("tp_of_head", f.t.layers.last))
            if f.at(end) > 0
        ]
    terms = [term for term in terms if term.form.value]
    return _draft(f, name, FORMULAS[name], total([term.form for term in terms]), terms, _pace(f))


def _each(f: Facts, one: Given, inputs: dict[str, Given], words: Words | None = None) -> Term:
    names = " * ".join(f"{{{name}}}" for name in ("m", *inputs))
    return Term(words=words or one.words, form=Form(names, m=f.micro_batches, **inputs), figure=one.figure)


def _end(f: Facts, of: str) -> Given:
    found = {"embedding_s": embedding, "head_s": head, "loss_s": loss}[of](f)
    return f.follows(f.here(of), found.value, found.words)


def _embedding(f: Facts) -> Draft:
    if not f.at(f.t.layers.first):
        return _draft(f, "embedding", "O8", Form("0"), None, _pace(f), Words("note_not_here"))
    form = Form("{m} * (1 + 2) * {embedding_s}", m=f.micro_batches, embedding_s=_end(f, "embedding_s"))
    return _draft(f, "embedding", "O8", form, None, _pace(f))


def _head(f: Facts) -> Draft:
    if not f.at(f.t.layers.last):
        return _draft(f, "head", "O9", Form("0"), None, _pace(f), Words("note_not_here"))
    form = Form(
        "{m} * (3 * {head_s} + {loss_s})", m=f.micro_batches, head_s=_end(f, "head_s"), loss_s=_end(f, "loss_s")
    )
    return _draft(f, "head", "O9", form, None, _pace(f))


def _recompute(f: Facts) -> Draft:
    terms = []
    for kind in kinds_of(f):
        one = again_given(f, kind)
        terms.append(_each(f, one, {f"{kind}_layers": layers_of(f, kind), f"{kind}_again": one}))
    terms = [term for term in terms if term.form.value]
    return _draft(f, "recompute", "O7", total([term.form for term in terms]), terms, _pace(f))


def _sharding(f: Facts) -> Draft:
    found = gathers(f)
    if found is None:
        return _draft(f, "sharding", "X7", Form("0"), None, Words("note_no_sharding"))
    form = Form("{m} * ({gathers})", m=f.micro_batches, gathers=found)
    return _draft(f, "sharding", "X7", form, None, _pace(f))


def _span(f: Facts, *, bare: bool = False) -> Given:
    row = f.p.bare_row if bare else f.p.row
    key = "pipeline_bare" if bare else "pipeline_span"
    return f.simulated(key, float(f.p.step.pipelines.span_s[row]), schedule=f.p.strategy.pipeline_schedule)


def sending(f: Facts, *, back: bool) -> Draft:
    """What one message inside a zone adds to its sender's time: to the next stage, or back from there. [X8]"""
    chunks = f.at(f.batch.work.interleave) > 1
    one = "{word} * {tokens} * {hidden} * {cut} / {rate} + {p2p_message_s}"
    form = Form(
        "{p2p_exposed} * " + (f"{{interleave}} * ({one})" if chunks else f"({one})"),
        p2p_exposed=f.k("p2p_exposed"),
        interleave=f.work("interleave"),
        word=f.work("word"),
        tokens=tokens(f),
        hidden=f.model("hidden"),
        cut=_cut(f),
        rate=rate(f, "link" if f.at(f.batch.links.boundary_fast) > 0 else "network"),
        p2p_message_s=f.k("p2p_message_s"),
    )
    value = f.at(f.t.passed_back if back else f.t.passed)
    words = Words("send_back_adds" if back else "send_adds", {"stage": f.stage})
    return Draft(words=words, formula="X8", value=value, unit="s", form=form)


def _sending_given(f: Facts, *, back: bool) -> Given:
    found = sending(f, back=back)
    return f.follows(f.here("send_back_s" if back else "send_s"), found.value, found.words)


def _cut(f: Facts) -> Form:
    scattered = f.at(f.batch.stack.p2p_scatter) > 0 and f.at(f.batch.work.tp) > 1
    return Form("1 / {tp}", tp=f.work("tp")) if scattered else split(f)


def _pipeline(f: Facts) -> Draft:
    if f.p.bare_row is not None:
        form = Form("{span} - {bare}", span=_span(f), bare=_span(f, bare=True))
        return _draft(f, "pipeline", "V3", form, None, Words("note_simulated_links"))
    if f.p.strategy.pp == 1:
        return _draft(f, "pipeline", "X8", Form("0"), None, Words("note_one_stage"))
    before = f.on((f.stage - 1) % f.p.strategy.pp)
    form = Form(
        "{m} * ({out} * {send_s} + {into} * {send_back_s})",
        m=f.micro_batches,
        out=f.counted("sends_out", f.at(f.t.out), where="[X8]"),
        into=f.counted("sends_back", f.at(f.t.into), where="[X8]"),
        send_s=_sending_given(f, back=False),
        send_back_s=_sending_given(before, back=True),
    )
    return _draft(f, "pipeline", "X8", form, None, _pace(f))


OWN = (*COMPUTE[:-1], "host", *COMMUNICATION[:5])
"""Parts of the pace-setting stage's own time."""


def _bubble(f: Facts) -> Draft:
    own = {name: f.part(name) for name in OWN if f.prediction.breakdown_s[name]}
    names = " - ".join(f"{{{name}}}" for name in own)
    form = Form(f"max(0, {{span}} - {names})", span=_span(f), **own)
    return _draft(f, "bubble", "V3", form, None, Words("note_bubble"), _pace(f))


def _gradients(f: Facts) -> Draft:
    row, t = f.p.row, f.t
    ready, reduce = row_of(f.p.step.pipelines.ready_s, row), row_of(t.reduce, row)
    present = row_of(t.layers.layers, row) > 0
    ends = np.where(present, ready + reduce, 0.0)
    last = int(np.argmax(ends))
    here = f.on(last)
    whole = f.simulated("gradients_ready", float(np.broadcast_to(ready, ends.shape)[last]), stage=last)
    exposed = f.follows(here.here("reduce_s"), here.at(t.reduce), Words("exposed_reduce", {"stage": last}))
    form = Form("{ready} + {reduce_s} - {span}", ready=whole, reduce_s=exposed, span=_span(f))
    return _draft(f, "gradients", "V2", form, None, Words("note_last_stage", {"stage": last}))


def _last(f: Facts) -> Facts:
    """The stage whose update and gather end last."""
    return f.on(int(np.argmax(row_of(f.t.update + f.t.gather, f.p.row))))


def _weights(f: Facts) -> Draft:
    here = _last(f)
    words = Words("exposed_gather", {"stage": here.stage})
    form = Form("{gather_s}", gather_s=f.follows(here.here("gather_s"), here.at(f.t.gather), words))
    return _draft(f, "weights", "V2", form, None, Words("note_last_stage", {"stage": here.stage}))


def _optimizer(f: Facts) -> Draft:
    here = _last(f)
    words = Words("update_of_stage", {"stage": here.stage})
    form = Form("{update_s}", update_s=f.follows(here.here("update_s"), here.at(f.t.update), words))
    return _draft(f, "optimizer", "V2", form, None, Words("note_last_stage", {"stage": here.stage}))


def _local_update(f: Facts) -> Draft:
    local = f.p.strategy.local_update
    if local is None:
        return _draft(f, "local_update", "V5", Form("0"), None, Words("note_no_local_update"))
    size = parameters(f.p.case.model).total * DTYPE_BYTES[local.dtype] / local.fragments
    zones = len(f.p.site.ring)
    seconds = float(f.p.site.zone_exchange_s(size)[1]) if zones > 1 else 0.0

    def typed(name: str) -> Given:
        where = f"strategy.local_update.{name}"
        return Given(value=float(getattr(local, name)), words=Words(f"local_{name}"), origin="scenario", where=where)

    form = Form(
        "{fragments} * max(0, {exchange} - {delay} * {inner}) / {steps}",
        fragments=typed("fragments"),
        exchange=f.counted("zone_exchange", seconds, unit="s", where="[T14]", zones=zones),
        delay=typed("delay"),
        inner=f.counted("inner_step", float(f.p.inner_step_s[1]), unit="s", where="[V3]"),
        steps=typed("steps"),
    )
    return _draft(f, "local_update", "V5", form)


def _fixed(f: Facts) -> Draft:
    longest = f.on(int(np.argmax(np.broadcast_to(row_of(f.t.fixed, f.p.row), (f.p.strategy.pp,)))))
    return _draft(f, "fixed", "V3", Form("{step_s}", step_s=longest.k("step_s")))


def _jitter(f: Facts) -> Draft:
    shares = np.broadcast_to(row_of(f.t.jitter, f.p.row), (f.p.strategy.pp,))
    widest = f.on(int(np.argmax(shares)))
    work = row_of(f.t.cost.forward_s + f.t.cost.backward_s, f.p.row)
    longest = f.on(int(np.argmax(work)))
    form = Form(
        "{m} * ({forward_s} + {backward_s}) * {jitter} * log2({nodes})",
        m=f.micro_batches,
        forward_s=pass_given(longest, "forward"),
        backward_s=pass_given(longest, "backward"),
        jitter=widest.k("jitter"),
        nodes=widest.gpu("nodes"),
    )
    return _draft(f, "jitter", "V3", form)


def whole_pass(f: Facts, way: str) -> Draft:
    """A micro-batch's pass through the stage: its layers and the ends of the model. [O7]"""
    terms = []
    for kind in kinds_of(f):
        layer = f.t.layer.whole[KINDS[kind]]
        words = Words("whole_layer", {"way": Words(way), "kind": Words(f"kind_of_layer_{kind}")})
        one = f.follows(f.here(f"layer.{kind}.{way}"), f.at(getattr(layer, f"{way}_s")), words)
        names = {f"{kind}_layers": layers_of(f, kind), f"{kind}_layer": one}
        form = Form(f"{{{kind}_layers}} * {{{kind}_layer}}", **names)
        terms.append(Term(words=words, form=form, figure=one.figure))
    if f.at(f.t.layers.first):
        times = "2 * {embedding_s}" if way == "backward" else "{embedding_s}"
        terms.append(Term(words=Words("embedding_s"), form=Form(times, embedding_s=_end(f, "embedding_s"))))
    if f.at(f.t.layers.last):
        times = "2 * {head_s} + {loss_s} * 2 / 3" if way == "backward" else "{head_s} + {loss_s} / 3"
        ends = {name: _end(f, name) for name in ("head_s", "loss_s")}
        terms.append(Term(words=Words("step_head"), form=Form(times, **ends)))
    end = f.t.layers.first if way == "forward" else f.t.layers.last
    if f.at(end) and f.at(f.t.layer.tp_s) > 0:
        words = Words("tp_of_embedding" if way == "forward" else "tp_of_head")
        terms.append(Term(words=words, form=tp_exposed(f)))
    return Draft(
        words=Words("pass_of_stage", {"way": Words(way), "stage": f.stage}),
        formula="O7",
        value=f.at(getattr(f.t.cost, f"{way}_s")),
        unit="s",
        form=total([term.form for term in terms]),
        terms=terms,
    )


def whole_layer(f: Facts, kind: str, way: str) -> Draft:
    """A micro-batch's pass through one layer. [O7]"""
    layer = f.t.layer.whole[KINDS[kind]]
    found = [layer_given(f, kind, way, name) for name in PARTS]
    terms = [
        Term(words=one.words, form=Form(f"{{{name}}}", **{name: one}), figure=one.figure)
        for name, one in zip(PARTS, found, strict=True)
        if one.value
    ]
    if way == "backward" and f.at(layer.again):
        one = again_given(f, kind)
        terms.append(Term(words=one.words, form=Form("{again}", again=one), figure=one.figure))
        for name in ("tp", "ep", "cp"):
            repeated = layer_given(f, kind, "forward", name)
            if f.at(layer.repeated[name]):
                words = Words("repeated", {"of": repeated.words})
                form = Form(f"{{{name}_forward}}", **{f"{name}_forward": repeated})
                terms.append(Term(words=words, form=form, figure=repeated.figure))
    return Draft(
        words=Words("whole_layer", {"way": Words(way), "kind": Words(f"kind_of_layer_{kind}")}),
        formula="O7",
        value=f.at(getattr(layer, f"{way}_s")),
        unit="s",
        form=total([term.form for term in terms]),
        terms=terms,
    )
