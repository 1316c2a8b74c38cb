"""One layer explained: its products, attention, memory-bound kernels, routing, exchanges and launches.

Figures `stage[0].layer.dense.forward.matmul` and the like are seconds of one micro-batch on a GPU of that stage.
"""

from __future__ import annotations

from crosszone.analyse.explain.explanation import Draft
from crosszone.analyse.explain.facts import Facts
from crosszone.analyse.explain.form import Form, Given, Words
from crosszone.analyse.explain.kernels import Made, age_of, alone, attention, elementwise, matmul, routing
from crosszone.analyse.explain.products import product
from crosszone.analyse.explain.rates import constant, over_tp, peak_16, rate, tokens
from crosszone.analyse.explain.stages import KINDS, layer_given, layer_words
from crosszone.cost.columns import MXFP8

PASSES = ("forward", "backward")
PARTS = ("matmul", "attention", "elementwise", "routing", "tp", "ep", "cp", "host")
FORMULAS = {
    "matmul": "O1",
    "attention": "O2",
    "elementwise": "O4",
    "routing": "O6",
    "tp": "X1",
    "ep": "X3",
    "cp": "X4",
    "host": "O7",
}


def layer_part(f: Facts, kind: str, way: str, part: str) -> Draft:
    """Seconds of one part of one pass through a layer."""
    layer = f.t.layer.whole[KINDS[kind]]
    value = f.at(getattr(getattr(layer, way), part))
    make = {
        "matmul": matmul,
        "attention": attention,
        "elementwise": elementwise,
        "routing": routing,
        "tp": _tensor,
        "ep": _expert,
        "cp": _context,
        "host": _host,
    }[part]
    form, terms, formula, notes = make(f, kind, way)
    return Draft(
        words=layer_words(kind, way, part),
        formula=formula or FORMULAS[part],
        value=value,
        unit="s",
        form=form,
        terms=terms,
        notes=notes,
    )


def _expert(f: Facts, kind: str, _: str) -> Made:
    if kind == "dense":
        return alone(Form("0"), None, (Words("note_no_experts"),))
    age, names = age_of(f)
    return alone(
        Form(age + "{a2a_exposed} * {all_to_all}", a2a_exposed=f.k("a2a_exposed"), all_to_all=_all_to_all(f), **names)
    )


def _all_to_all(f: Facts) -> Form:
    w, g = f.batch.work, f.batch.gpu
    inside = min(max(f.at(g.domain) / f.at(w.expert_tp), 1.0), f.at(w.ep))
    domains = f.at(w.ep) / inside
    names: dict[str, Form | Given] = {
        "word": f.work("word"),
        "tokens": tokens(f),
        "hidden": over_tp(f, "{hidden}", hidden=f.model("hidden")),
        "top_k": f.model("top_k"),
        "ep": f.work("ep"),
        "link_rate": rate(f, "link"),
        "network_rate": rate(f, "network"),
        "domains": f.counted("expert_domains", domains, where="[X3]"),
    }
    near = "{top_k} * (1 - 1 / {ep}) / {link_rate}"
    far = " + ({domains} - 1) * (1 - (1 - 1 / {domains}) ** {top_k}) / {network_rate}" if domains > 1 else ""
    return Form(f"2 * {{word}} * {{tokens}} * {{hidden}} * ({near}{far})", **names)


def tp_collective(f: Facts) -> Draft:
    """One tensor-parallel collective: all of it. [X1]"""
    w, g = f.batch.work, f.batch.gpu
    t = f.at(w.tp)
    if t <= 1:
        form = Form("0")
    else:
        bus = Form("{link_rate}", link_rate=rate(f, "link"))
        if t > f.at(g.domain):
            bus = Form(
                "min({link}, {node_gpus} * {network_rate})",
                link=bus,
                node_gpus=f.gpu("node_gpus"),
                network_rate=rate(f, "network"),
            )
        form = Form(
            "2 * ({tp} - 1) / {tp} * {word} * {tokens} * {hidden} / {bus} + {tp_message_s}",
            tp=f.work("tp"),
            word=f.work("word"),
            tokens=tokens(f),
            hidden=f.model("hidden"),
            bus=bus,
            tp_message_s=f.k("tp_message_s"),
        )
    return Draft(words=Words("tp_collective"), formula="X1", value=f.at(f.t.layer.tp_s), unit="s", form=form)


def tp_exposed(f: Facts) -> Form:
    """Seconds of one tensor-parallel collective that do not hide."""
    one = f.follows(f.here("layer.tp_s"), f.at(f.t.layer.tp_s), Words("tp_collective"))
    if f.at(f.batch.work.overlap_tensor) > 0:
        return Form("{tp_exposed} * {collective}", tp_exposed=f.k("tp_exposed"), collective=one)
    return Form("{collective}", collective=one)


def _collectives(f: Facts) -> Given:
    count = 2.0 - f.at(f.batch.model.parallel_residual)
    return constant("collectives_of_layer", count, "[O7]")


def _tensor(f: Facts, _: str, way: str) -> Made:
    count = _collectives(f) if way == "forward" else constant("collectives_of_layer", 2.0, "[O7]")
    return alone(Form("{collectives} * {exposed}", collectives=count, exposed=tp_exposed(f)))


def _context(f: Facts, kind: str, way: str) -> Made:
    m, w, g = f.batch.model, f.batch.work, f.batch.gpu
    if f.at(w.cp) <= 1:
        return alone(Form("0"), None, (Words("note_no_cp"),))
    passes = 2.0 if way == "backward" else 1.0
    groups = f.at(m.heads) / f.at(w.tp) if f.at(m.latent) > 0 else max(f.at(m.kv_heads) / f.at(w.tp), 1.0)
    near = f.at(w.tp) * f.at(w.cp) <= f.at(g.domain)
    exchange = Form(
        "{passes} * {word} * {tokens} * {kv_groups} * ({qk_dim} + {v_dim}) * ({cp} - 1) / {rate}",
        passes=constant("passes_of_keys", passes, "[X4]"),
        word=f.work("word"),
        tokens=tokens(f),
        kv_groups=f.counted("kv_groups", groups, where="max(kv_heads / tp, 1)"),
        qk_dim=f.model("qk_dim"),
        v_dim=f.model("v_dim"),
        cp=f.work("cp"),
        rate=rate(f, "link" if near else "network"),
    )
    return alone(
        Form(
            "max(0, {exchange} - {attention}) + {cp_exposed} * {exchange}",
            exchange=exchange,
            attention=layer_given(f, kind, way, "attention"),
            cp_exposed=f.k("cp_exposed"),
        )
    )


def _launch(f: Facts, kind: str) -> Form:
    plain, written = bool(f.at(f.t.layer.plain_softmax)), f.at(f.batch.model.written)
    first = "{host_s}" + (" * {plain_launch}" if plain else "")
    names: dict[str, Form | Given] = {"host_s": f.k("host_s"), "plain_launch": f.k("plain_launch")}
    if written and f.k("written_out_launch").value != 1.0:
        first += " * (1 + {written} * ({written_out_launch} - 1))"
        names |= {"written": f.model("written"), "written_out_launch": f.k("written_out_launch")}
    parts = [first]
    if kind == "moe":
        age, more = age_of(f)
        blocks = int(f.at(f.batch.work.path)) == MXFP8
        parts.append(age + "{moe_s}" + (" * {mxfp8_moe}" if blocks else ""))
        names |= {"moe_s": f.k("moe_s"), "mxfp8_moe": f.k("mxfp8_moe"), **more}
    if f.at(f.batch.work.tp) > 1:
        parts.append("{collectives} * {collective_host_s} * ({tp} - 1)")
        names |= {"collectives": _collectives(f), "collective_host_s": f.k("collective_host_s"), "tp": f.work("tp")}
    return Form(" + ".join(parts), **names)


def _host(f: Facts, kind: str, way: str) -> Made:
    layer = f.t.layer.whole[KINDS[kind]]
    launch = _launch(f, kind)
    if way == "backward":
        full = f.at(f.batch.work.recompute) == 2
        launch = Form(
            "({host_backward} + 1) * {launch}" if full else "{host_backward} * {launch}",
            host_backward=f.k("host_backward"),
            launch=launch,
        )
    if f.at(f.batch.stack.launch_added) > 0:
        return alone(launch, None, (Words("note_launch_added"),))
    gpu_s = f.at(layer.forward.gpu) if way == "forward" else f.at(layer.backward.gpu + layer.again)
    kernels = f.counted("kernels_of_pass", gpu_s, unit="s", where="[O7]", way=Words(way))
    longer, shorter = (kernels, launch) if gpu_s >= launch.value else (launch, kernels)
    form = Form(
        "{longer} * (1 + ({shorter} / {longer}) ** 6) ** (1 / 6) - {kernels}",
        longer=Form("{kernels}", kernels=kernels) if longer is kernels else launch,
        shorter=Form("{kernels}", kernels=kernels) if shorter is kernels else launch,
        kernels=kernels,
    )
    return alone(form, "O5", (Words("note_longer"),))


def again(f: Facts, kind: str) -> Draft:
    """What recomputation adds to a layer's backward pass, exchanges apart. [O7]"""
    layer, mode = f.t.layer.whole[KINDS[kind]], int(f.at(f.batch.work.recompute))
    value = f.at(layer.again) - sum(f.at(part) for part in layer.repeated.values())
    names = {part: layer_given(f, kind, "forward", part) for part in ("matmul", "attention", "elementwise", "routing")}
    if mode == 2:
        form = Form(" + ".join(f"{{{name}}}" for name, one in names.items() if one.value), **names)
    elif mode == 1:
        parts = ["{selective_share} * {matmul}"]
        if f.k("selective_share").value > 0:
            parts.append("{elementwise}")
        if f.at(f.batch.stack.unfused) > 0:
            parts.append("{attention}")
        form = Form(" + ".join(parts), selective_share=f.k("selective_share"), **names)
    else:
        form = Form("0")
    words = Words("layer_again", {"kind": Words(f"kind_of_layer_{kind}")})
    return Draft(words=words, formula="O7", value=value, unit="s", form=form)


def again_given(f: Facts, kind: str) -> Given:
    """The same as an input of another figure."""
    found = again(f, kind)
    return f.follows(f.here(f"layer.{kind}.again"), found.value, found.words)


def embedding(f: Facts) -> Draft:
    """Look-up of the tokens of a micro-batch. [O8]"""
    form = Form(
        "{elementwise} * 2 * {word} * {tokens} * {hidden} / {memory_rate}",
        elementwise=f.k("elementwise"),
        word=f.work("word"),
        tokens=tokens(f),
        hidden=f.model("hidden"),
        memory_rate=rate(f, "memory"),
    )
    return Draft(words=Words("embedding_s"), formula="O8", value=f.at(f.t.layer.embedding_s), unit="s", form=form)


def head(f: Facts) -> Draft:
    """The head's forward product. [O9]"""
    rows = over_tp(f, "{vocab}", vocab=f.model("vocab"))
    hidden = Form("{hidden}", hidden=f.model("hidden"))
    speed = Form("{matmul} * {peak}", matmul=f.k("matmul"), peak=peak_16(f))
    form = product(f, tokens(f), hidden, rows, speed)
    if f.at(f.batch.model.vocab) % 8:
        form = Form("{unaligned} * {product}", unaligned=f.k("unaligned"), product=form)
    return Draft(words=Words("head_s"), formula="O9", value=f.at(f.t.layer.head_s), unit="s", form=form)


def loss(f: Facts) -> Draft:
    """Traffic of logits and loss, both passes. [O9]"""
    form = Form(
        "{head_traffic} * {tokens} * {rows} / {memory_rate}",
        head_traffic=f.k("head_traffic"),
        tokens=tokens(f),
        rows=over_tp(f, "{vocab}", vocab=f.model("vocab")),
        memory_rate=rate(f, "memory"),
    )
    return Draft(words=Words("loss_s"), formula="O9", value=f.at(f.t.layer.loss_s), unit="s", form=form)
