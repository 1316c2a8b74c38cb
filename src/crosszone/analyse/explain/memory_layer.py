"""What one layer keeps for its backward pass explained."""

from __future__ import annotations

from crosszone.analyse.explain.explanation import Draft
from crosszone.analyse.explain.facts import Facts
from crosszone.analyse.explain.form import Form, Given, Words, total
from crosszone.analyse.explain.products import routed
from crosszone.analyse.explain.rates import constant, over_tp, split, tokens
from crosszone.analyse.explain.stages import KINDS
from crosszone.cost.memory_layer import SCORE_BYTES, layer_memory
from crosszone.cost.memory_profile import memory_coefficients


def kept(f: Facts, kind: str, what: str = "kept") -> Draft:
    """Bytes that a layer keeps of a micro-batch, or all that its backward pass reads (`whole`). [M3]"""
    w, mode = f.batch.work, int(f.at(f.batch.work.recompute))
    found = layer_memory(f.batch.model, w, f.batch.stack, memory_coefficients(f.p.stack))[KINDS[kind]]
    factor = f.memory_k("activations")
    if what == "kept" and mode == 2:
        form = Form("{activations} * {entry}", activations=factor, entry=entry(f))
    else:
        terms = _layer_terms(f, kind)
        if what == "kept" and mode == 1:
            share = f.memory_k("selective_kept")
            form = Form(
                "{selective_kept} * {activations} * ({most})",
                selective_kept=share,
                activations=factor,
                most=total(terms),
            )
        else:
            form = Form("{activations} * ({most})", activations=factor, most=total([*terms, *_scores(f)]))
    words = Words(f"layer_{what}", {"kind": Words(f"kind_of_layer_{kind}")})
    return Draft(words=words, formula="M3", value=f.at(getattr(found, what)), unit="bytes", form=form)


def kept_given(f: Facts, kind: str, what: str = "kept") -> Given:
    """The same as an input."""
    found = kept(f, kind, what)
    return f.follows(f.here(f"memory.{kind}.{what}"), found.value, found.words, "bytes")


def entry(f: Facts) -> Form:
    return Form(
        "{word} * {tokens} * {hidden} * {split}",
        word=f.work("word"),
        tokens=tokens(f),
        hidden=f.model("hidden"),
        split=split(f),
    )


def _scores(f: Facts) -> list[Form]:
    if f.at(f.batch.stack.unfused) <= 0:
        return []
    return [
        Form(
            "{score_bytes} * {tokens} * {seq} * {heads}",
            score_bytes=constant("score_bytes_kept", SCORE_BYTES, "[M3]", "bytes"),
            tokens=tokens(f),
            seq=f.work("seq"),
            heads=over_tp(f, "{heads}", heads=f.model("heads")),
        )
    ]


def _layer_terms(f: Facts, kind: str) -> list[Form]:
    """Norms and inputs, attention, MLP or experts: bytes of one layer."""
    copies = f.memory_k("gated_copies" if f.at(f.batch.model.matrices) > 2 else "plain_copies")
    block = [_outer(f), _attention(f)]
    if kind == "moe":
        return [*block, *_experts(f, copies)]
    mlp = Form(
        "{word} * {tokens} * {copies} * {ffn}",
        word=f.work("word"),
        tokens=tokens(f),
        copies=copies,
        ffn=over_tp(f, "{ffn}", ffn=f.model("ffn")),
    )
    return [*block, mlp]


def _outer(f: Facts) -> Form:
    gated = f.at(f.batch.model.matrices) > 2
    gathered = f.memory_k("gathered_inputs").value > 0
    dropout = f.memory_k("dropout")
    text = "{tokens} * {hidden} * ({blocks} * ({norms} * {split} + {word}" + ("" if gathered else " * {split}") + ")"
    text += " + 2 * {dropout} * {split})" if dropout.value else ")"
    return Form(
        text,
        tokens=tokens(f),
        hidden=f.model("hidden"),
        blocks=constant("blocks_of_layer", 2.0 - f.at(f.batch.model.parallel_residual), "[M3]"),
        norms=f.memory_k("norm_bytes") if gated else f.work("word"),
        word=f.work("word"),
        split=split(f),
        dropout=dropout,
    )


def _attention(f: Facts) -> Form:
    m, w = f.batch.model, f.batch.work
    latent = f.at(m.latent) > 0
    groups = f.at(m.heads) / f.at(w.tp) if latent else max(f.at(m.kv_heads) / f.at(w.tp), 1.0)
    inputs = {name: f.model(name) for name in ("qk_dim", "v_dim", "q_rank", "kv_rank", "rope_dim")}
    latents = " + 2 * {q_rank} + 2 * {kv_rank} + {rope_dim}" if latent else ""
    return Form(
        "{tokens} * {word} * ({heads} * {qk_dim} + {kv_groups} * ({qk_dim} + {v_dim}) + {heads} * {v_dim}"
        + latents
        + ")",
        tokens=tokens(f),
        word=f.work("word"),
        heads=over_tp(f, "{heads}", heads=f.model("heads")),
        kv_groups=f.counted("kv_groups", groups, where="max(kv_heads / tp, 1)"),
        **inputs,
    )


def _experts(f: Facts, copies: Given) -> list[Form]:
    shared = f.at(f.batch.model.shared_ffn) > 0
    width = "{routed} * {expert_ffn} / {expert_tp}" + (" + {tokens} * {shared}" if shared else "")
    names: dict[str, Form | Given] = {"word": f.work("word"), "routed": routed(f), "tokens": tokens(f)}
    return [
        Form(
            "{routed_copies} * {word} * {routed} * {hidden}",
            routed_copies=f.memory_k("routed_copies"),
            hidden=f.model("hidden"),
            **names,
        ),
        Form(
            f"{{word}} * {{copies}} * ({width})",
            copies=copies,
            expert_ffn=f.model("expert_ffn"),
            expert_tp=f.work("expert_tp"),
            shared=over_tp(f, "{shared_ffn}", shared_ffn=f.model("shared_ffn")),
            **names,
        ),
        Form("2 * {word} * {tokens} * {split} * {experts}", split=split(f), experts=f.model("experts"), **names),
    ]
