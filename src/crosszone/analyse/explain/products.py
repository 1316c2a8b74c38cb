"""Matrix products of one layer explained, operator by operator."""

from __future__ import annotations

from crosszone.analyse.explain.explanation import Term
from crosszone.analyse.explain.facts import Facts
from crosszone.analyse.explain.form import Form, Given, Words
from crosszone.analyse.explain.rates import over_tp, rate, tokens


def product(f: Facts, rows: Form, inner: Form, columns: Form, speed: Form | Given, copies: Form | None = None) -> Form:
    """Seconds of one matrix product. [O1]"""
    byte = Form(
        "{tile} * {word} / 2 / {memory_bytes_per_s}",
        tile=f.k("tile"),
        word=f.work("word"),
        memory_bytes_per_s=f.gpu("memory_bytes_per_s"),
    )
    weights = "{copies} * {inner} * {columns}" if copies else "{inner} * {columns}"
    return Form(
        f"2 * {{rows}} * {{inner}} * {{columns}} / {{speed}}"
        f" + 2 * ({{rows}} * {{inner}} + {weights} + {{rows}} * {{columns}}) * {{byte}}",
        rows=rows,
        inner=inner,
        columns=columns,
        speed=Form("{linear_rate}", linear_rate=speed) if isinstance(speed, Given) else speed,
        byte=byte,
        **({"copies": copies} if copies else {}),
    )


def products_of(f: Facts, kind: str) -> list[Term]:
    m, speed, rows = f.batch.model, rate(f, "linear"), tokens(f)
    hidden = Form("{hidden}", hidden=f.model("hidden"))
    heads = {"heads": f.model("heads"), "qk_dim": f.model("qk_dim")}
    values = over_tp(f, "{heads} * {v_dim}", heads=f.model("heads"), v_dim=f.model("v_dim"))
    query = over_tp(f, "{heads} * {qk_dim}", **heads)
    found: list[tuple[str, Form, Form]] = []
    if f.at(m.latent) > 0:
        found += _latent_products(f, hidden, query)
    else:
        key_value = Form("{kv_groups} * ({qk_dim} + {v_dim})", **kv_heads(f))
        found.append(("product_qkv", hidden, Form("{query} + {kv}", query=query, kv=key_value)))
    found.append(("product_out", values, hidden))
    terms = [Term(words=Words(key), form=product(f, rows, inner, columns, speed)) for key, inner, columns in found]
    return terms + (_mlp_products(f, rows, hidden, speed) if kind == "dense" else _expert_products(f, rows, hidden))


def kv_heads(f: Facts) -> dict[str, Given]:
    groups = max(f.at(f.batch.model.kv_heads) / f.at(f.batch.work.tp), 1.0)
    return {
        "kv_groups": f.counted("kv_groups", groups, where="max(kv_heads / tp, 1)"),
        "qk_dim": f.model("qk_dim"),
        "v_dim": f.model("v_dim"),
    }


def _latent_products(f: Facts, hidden: Form, query: Form) -> list[tuple[str, Form, Form]]:
    found: list[tuple[str, Form, Form]] = []
    if f.at(f.batch.model.q_rank) > 0:
        rank = Form("{q_rank}", q_rank=f.model("q_rank"))
        found += [("product_query_down", hidden, rank), ("product_query_up", rank, query)]
    else:
        found.append(("product_query", hidden, query))
    kv = {"kv_rank": f.model("kv_rank"), "rope_dim": f.model("rope_dim")}
    up = over_tp(
        f,
        "{heads} * ({qk_dim} - {rope_dim} + {v_dim})",
        **{name: f.model(name) for name in ("heads", "qk_dim", "rope_dim", "v_dim")},
    )
    found.append(("product_kv_down", hidden, Form("{kv_rank} + {rope_dim}", **kv)))
    found.append(("product_kv_up", Form("{kv_rank}", kv_rank=kv["kv_rank"]), up))
    return found


def _up(f: Facts, width: Form) -> Form:
    return Form("({matrices} - 1) * {width}", matrices=f.model("matrices"), width=width)


def _mlp_products(f: Facts, rows: Form, hidden: Form, speed: Given) -> list[Term]:
    if not f.at(f.batch.model.ffn):
        return []
    inner = over_tp(f, "{ffn}", ffn=f.model("ffn"))
    return [
        Term(words=Words("product_up"), form=product(f, rows, hidden, _up(f, inner), speed)),
        Term(words=Words("product_down"), form=product(f, rows, inner, hidden, speed)),
    ]


def routed(f: Facts) -> Form:
    """Routed tokens of a GPU."""
    w = f.batch.work
    names = {"top_k": f.model("top_k"), "tp": f.work("tp"), "expert_tp": f.work("expert_tp")}
    form = "{tokens} * {top_k}" if f.at(w.tp) == f.at(w.expert_tp) else "{tokens} * {top_k} / {tp} * {expert_tp}"
    return Form(form, tokens=tokens(f), **names)


def expert_width(f: Facts) -> Form:
    names = {"expert_ffn": f.model("expert_ffn"), "expert_tp": f.work("expert_tp")}
    return Form("{expert_ffn} / {expert_tp}" if names["expert_tp"].value > 1 else "{expert_ffn}", **names)


def _expert_products(f: Facts, rows: Form, hidden: Form) -> list[Term]:
    speed = rate(f, "linear")
    grouped = Form("{linear_rate} * {grouped}", linear_rate=speed, grouped=f.k("grouped"))
    inner, copies = expert_width(f), Form("{experts} / {ep}", experts=f.model("experts"), ep=f.work("ep"))
    found = [
        Term(words=Words("product_expert_up"), form=product(f, routed(f), hidden, _up(f, inner), grouped, copies)),
        Term(words=Words("product_expert_down"), form=product(f, routed(f), inner, hidden, grouped, copies)),
    ]
    if f.at(f.batch.model.shared_ffn) > 0:
        shared = over_tp(f, "{shared_ffn}", shared_ffn=f.model("shared_ffn"))
        found += [
            Term(words=Words("product_shared_up"), form=product(f, rows, hidden, _up(f, shared), speed)),
            Term(words=Words("product_shared_down"), form=product(f, rows, shared, hidden, speed)),
        ]
    return found
