"""Kernels of one layer explained: products, attention, norms and elementwise work, routing."""

from __future__ import annotations

from crosszone.analyse.explain.explanation import Term
from crosszone.analyse.explain.facts import Facts
from crosszone.analyse.explain.form import Form, Given, Words, total
from crosszone.analyse.explain.products import expert_width, kv_heads, products_of, routed
from crosszone.analyse.explain.rates import constant, over_tp, peak_16, rate, split, tokens
from crosszone.analyse.explain.stages import layer_given
from crosszone.cost.layer import BACKWARD_SCORE_BYTES, FORWARD_SCORE_BYTES, RESIDUAL_PASSES, ROUTED_BYTES
from crosszone.cost.operators import flash_share
from crosszone.inputs.flops import tokens_seen

Made = tuple[Form, list[Term], str | None, tuple[Words, ...]]
"""A form, its terms, the formula it follows (None: the usual one), and notes."""


def alone(form: Form, formula: str | None = None, notes: tuple[Words, ...] = ()) -> Made:
    return form, [], formula, notes


def matmul(f: Facts, kind: str, way: str) -> Made:
    if way == "backward":
        form = Form("2 * {forward}", forward=layer_given(f, kind, "forward", "matmul"))
        return alone(form, "O7", (Words("note_backward_twice"),))
    terms = products_of(f, kind)
    return total([term.form for term in terms]), terms, None, ()


def attention(f: Facts, kind: str, way: str) -> Made:
    m, stack = f.batch.model, f.batch.stack
    unfused = f.at(stack.unfused) > 0 or f.at(m.sinks) > 0
    back = way == "backward"
    if unfused:
        return alone(_unfused(f, back), "O3")
    if back:
        forward = layer_given(f, kind, "forward", "attention")
        return alone(Form("{flash_backward} * {forward}", flash_backward=f.k("flash_backward"), forward=forward))
    return alone(_flash(f))


def _width(f: Facts) -> Form:
    names = ("heads", "qk_dim", "v_dim")
    return over_tp(f, "{heads} * ({qk_dim} + {v_dim})", **{name: f.model(name) for name in names})


def _flash(f: Facts) -> Form:
    m, w = f.batch.model, f.batch.work
    seq, window, full = f.at(w.seq), f.at(m.window), f.at(m.full_share)
    causal = f.at(m.causal)
    seen = full * tokens_seen(seq, None, causal=causal) + (1 - full) * tokens_seen(seq, window, causal=causal)
    reach = full * seq + (1 - full) * min(seq, window)
    width, ramp = f.k("flash_width").value, f.k("flash_ramp").value
    share = float(flash_share((f.at(m.qk_dim) + f.at(m.v_dim)) / 2.0, reach, width, ramp))
    names: dict[str, Form | Given] = {
        "tokens": tokens(f),
        "seen": f.counted("tokens_seen", seen, where="[F2]", unit="tokens"),
        "width": _width(f),
        "flash": f.k("flash"),
        "head_share": f.counted("head_share", share, where="[O11]", unit="share"),
        "peak": peak_16(f),
    }
    kernel = "{triton} * " if f.at(f.batch.stack.triton) > 0 else ""
    return Form(
        f"2 * {{tokens}} * {{seen}} * {{width}} / ({kernel}{{head_share}} * {{flash}} * {{peak}})",
        **names,
        triton=f.k("triton"),
    )


def _unfused(f: Facts, back: bool) -> Form:
    sinks, plain = f.at(f.batch.model.sinks) > 0, bool(f.at(f.t.layer.plain_softmax))
    passes = ["sink_traffic"] if sinks else ["score_traffic", *(["plain_scores"] if plain else [])]
    size = BACKWARD_SCORE_BYTES / 2.0 if back else FORWARD_SCORE_BYTES
    form = (
        "2 * {tokens} * {seq} * {width} / ({batched} * {peak}) + {tokens} * {seq} * {heads} * {score_bytes} * "
        + " * ".join(f"{{{name}}}" for name in passes)
        + " / {memory_rate}"
    )
    return Form(
        f"2 * ({form})" if back else form,
        tokens=tokens(f),
        seq=f.work("seq"),
        width=_width(f),
        batched=f.k("batched"),
        peak=peak_16(f),
        heads=over_tp(f, "{heads}", heads=f.model("heads")),
        score_bytes=constant("score_bytes", size, "[O3]", "bytes"),
        memory_rate=rate(f, "memory"),
        **{name: f.k(name) for name in passes},
    )


def elementwise(f: Facts, kind: str, way: str) -> Made:
    if way == "backward":
        form = Form("2 * {forward}", forward=layer_given(f, kind, "forward", "elementwise"))
        return alone(form, "O7", (Words("note_backward_twice"),))
    terms = [Term(words=Words("elementwise_attention"), form=_block_traffic(f))]
    if kind == "moe":
        terms.append(Term(words=Words("elementwise_experts"), form=_expert_traffic(f)))
    elif f.at(f.batch.model.ffn):
        terms.append(Term(words=Words("elementwise_mlp"), form=_mlp_traffic(f)))
    return total([term.form for term in terms]), terms, None, ()


def _traffic(f: Facts, size: str, cast: str, more: str = "", **inputs: Form | Given) -> Form:
    if f.at(f.batch.work.path) < 16:
        more += f" + {{cast}} * {{word}} * ({cast})"
    return Form(
        f"({{elementwise}} * {{word}} * {size}{more}) / {{memory_rate}}",
        elementwise=f.k("elementwise"),
        cast=f.k("cast"),
        word=f.work("word"),
        memory_rate=rate(f, "memory"),
        tokens=tokens(f),
        hidden=f.model("hidden"),
        **inputs,
    )


def _block_traffic(f: Facts) -> Form:
    heads, dim = {"heads": f.model("heads")}, {"qk_dim": f.model("qk_dim")}
    width = Form(
        "{query} + 2 * {kv}",
        query=over_tp(f, "{heads} * {qk_dim}", **heads, **dim),
        kv=Form("{kv_groups} * ({qk_dim} + {v_dim})", **kv_heads(f)),
    )
    value = over_tp(f, "{heads} * {v_dim}", **heads, v_dim=f.model("v_dim"))
    written = f.k("written_out").value and f.at(f.batch.model.written)
    return _traffic(
        f,
        "{tokens} * ({residual_passes} * {hidden} * {split} + 2 * {width})",
        "{tokens} * ({hidden} + {value})",
        " + {written_out} * {written} * {word} * {tokens} * {hidden} * {split}" if written else "",
        written_out=f.k("written_out"),
        written=f.model("written"),
        residual_passes=constant("residual_passes", RESIDUAL_PASSES, "[O4]"),
        split=split(f),
        width=width,
        value=value,
    )


def _mlp_traffic(f: Facts) -> Form:
    return _traffic(
        f,
        "{tokens} * {matrices} * {inner}",
        "{tokens} * ({hidden} + {inner})",
        matrices=f.model("matrices"),
        inner=over_tp(f, "{ffn}", ffn=f.model("ffn")),
    )


def _expert_traffic(f: Facts) -> Form:
    shared = f.at(f.batch.model.shared_ffn) > 0
    return _traffic(
        f,
        "{matrices} * ({routed} * {inner}" + (" + {tokens} * {shared})" if shared else ")"),
        "{routed} * ({hidden} + {inner})" + (" + {tokens} * {shared}" if shared else ""),
        matrices=f.model("matrices"),
        routed=routed(f),
        inner=expert_width(f),
        shared=over_tp(f, "{shared_ffn}", shared_ffn=f.model("shared_ffn")),
    )


def age_of(f: Facts) -> tuple[str, dict[str, Given]]:
    """Factors that newer releases put on the overhead of experts, as the start of a product."""
    names: dict[str, Given] = {}
    text = ""
    if f.at(f.batch.stack.release):
        names["release_decay"] = f.k("release_decay")
        names["years"] = f.counted("release_years", f.at(f.batch.stack.release), where="job.stack", unit="years")
        text += "exp(-{release_decay} * {years}) * "
    if f.at(f.batch.stack.graphed) > 0:
        names["graphed"] = f.k("graphed")
        text += "{graphed} * "
    return text, names


def routing(f: Facts, kind: str, way: str) -> Made:
    if kind == "dense":
        return alone(Form("0"), None, (Words("note_no_experts"),))
    age, names = age_of(f)
    form = Form(
        age + "{permute} * {routed_bytes} * {tokens} * {top_k} * {hidden} / {memory_rate}",
        permute=f.k("permute"),
        routed_bytes=constant("routed_bytes", ROUTED_BYTES, "[O6]", "bytes"),
        tokens=tokens(f),
        top_k=f.model("top_k"),
        hidden=over_tp(f, "{hidden}", hidden=f.model("hidden")),
        memory_rate=rate(f, "memory"),
        **names,
    )
    return alone(Form("2 * {form}", form=form) if way == "backward" else form)
