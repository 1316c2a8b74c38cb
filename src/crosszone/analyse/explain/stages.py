"""Figures of a stage as inputs of others, and the parameters one GPU of it holds before sharding."""

from __future__ import annotations

from crosszone.analyse.explain.explanation import Draft
from crosszone.analyse.explain.facts import Facts
from crosszone.analyse.explain.form import Form, Given, Words

KINDS = {"dense": 0, "moe": 1}
"""Kinds of layers, by their place in `LayerCost.whole`."""
STEP_PART = {"tp": "tensor", "ep": "expert", "cp": "context"}
"""Parts of a layer's passes that go by another name in the step."""


def layer_words(kind: str, way: str, part: str) -> Words:
    """What a figure of a layer is called."""
    of = Words(f"step_{STEP_PART.get(part, part)}")
    return Words("layer_part", {"part": of, "way": Words(way), "kind": Words(f"kind_of_layer_{kind}")})


def layer_given(f: Facts, kind: str, way: str, part: str) -> Given:
    """Such a figure as an input of another."""
    layer = f.t.layer.whole[KINDS[kind]]
    value = f.at(getattr(getattr(layer, way), part))
    return f.follows(f.here(f"layer.{kind}.{way}.{part}"), value, layer_words(kind, way, part))


def parameters_given(f: Facts, what: str) -> Given:
    """Parameters of the stage as an input: `shared`, `experts`, or `embedding` (of the shared ones)."""
    words = Words(f"parameters_{what}", {"stage": f.stage})
    return f.follows(f.here(f"parameters.{what}"), f.at(getattr(f.t.held, what)), words, "")


def parameters_of(f: Facts, what: str) -> Draft:
    """Layers of the stage, and embedding and head where it has them, cut by tensor or expert parallelism. [M1]"""
    layers, words = f.t.layers, Words(f"parameters_{what}", {"stage": f.stage})
    value = f.at(getattr(f.t.held, what))
    sparse = f.counted("moe_layers", f.at(layers.moe), where="[R4]")
    if what == "experts":
        parts = {name: f.model(name) for name in ("experts", "expert_params")}
        degrees = {"ep": f.work("ep"), "expert_tp": f.work("expert_tp")}
        text = "{moe_layers} * {experts} * {expert_params} / ({ep} * {expert_tp})" if sparse.value else "0"
        return Draft(words=words, formula="M1", value=value, form=Form(text, moe_layers=sparse, **parts, **degrees))
    inputs = {name: f.model(name) for name in ("attention_params", "mlp_params", "shared_params")}
    inputs |= {
        "dense_layers": f.counted("dense_layers", f.at(layers.dense), where="[R3]"),
        "moe_layers": sparse,
        "embedding": f.model("embedding_params"),
        "head": f.model("head_params"),
        "tp": f.work("tp"),
    }
    terms = []
    if what == "shared" and f.at(layers.dense):
        terms.append("{dense_layers} * ({attention_params} + {mlp_params})")
    if what == "shared" and sparse.value:
        terms.append("{moe_layers} * ({attention_params} + {shared_params})")
    if f.at(layers.first):
        terms.append("{embedding}")
    if f.at(layers.last):
        terms.append("{head}")
    if f.at(layers.last) and not f.at(layers.first) and f.at(f.batch.model.tied) > 0:
        terms.append("{embedding}")
    text = f"({' + '.join(terms)}) / {{tp}}" if terms else "0"
    return Draft(words=words, formula="M1", value=value, form=Form(text, **inputs))


def pass_given(f: Facts, way: str) -> Given:
    """A whole pass of the stage as an input."""
    words = Words("pass_of_stage", {"way": Words(way), "stage": f.stage})
    return f.follows(f.here(f"{way}_s"), f.at(getattr(f.t.cost, f"{way}_s")), words)
