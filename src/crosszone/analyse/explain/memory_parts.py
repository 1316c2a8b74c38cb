"""Parts of a stage's memory explained: states, activations, logits, what exists for a while, buffers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from crosszone.analyse.explain.explanation import Term
from crosszone.analyse.explain.facts import Facts
from crosszone.analyse.explain.form import Form, Given, Words
from crosszone.analyse.explain.memory_layer import entry, kept_given
from crosszone.analyse.explain.rates import constant, over_tp, split, tokens
from crosszone.analyse.explain.stages import parameters_given
from crosszone.cost.memory import MOMENTS, casts, shards
from crosszone.predict.memory import fullest_of
from crosszone.predict.prediction import StageMemory
from crosszone.schedule.orders import in_flight

GIB = "2 ** 30"


@dataclass(frozen=True)
class Held:
    """What the formulas of memory read of one stage: degrees, moment of the peak, micro-batches in flight."""

    f: Facts

    @cached_property
    def stage(self) -> StageMemory:
        """The stage as predicted."""
        return self.f.prediction.memory_gib.stages[self.f.stage]

    @property
    def moment(self) -> int:
        """When the peak falls, as a place in `MOMENTS`."""
        return MOMENTS.index(self.stage.peak_at)

    @cached_property
    def kind(self) -> int:
        """The kind of replica whose GPU of this stage is fullest."""
        return int(fullest_of(self.f.p)[1][self.f.stage])

    @cached_property
    def count(self) -> int:
        """Micro-batches of that replica."""
        return int(self.f.p.site.kind_micro_batches[self.kind])

    @cached_property
    def alive(self) -> Given:
        """Micro-batches whose activations the stage holds at a time. [M4] [S1]"""
        s = self.f.p.strategy
        held = in_flight(s.pipeline_schedule, s.pp, self.count, s.interleave, s.extra_warmup) / s.interleave
        count = float(np.broadcast_to(held, (s.pp,))[self.f.stage])
        where, stage = "[M4] [S1]", self.f.stage
        return self.f.counted("in_flight", count, where=where, stage=stage, schedule=s.pipeline_schedule)

    @property
    def zero(self) -> int:
        """ZeRO stage."""
        return int(self.f.at(self.f.batch.work.zero))

    @property
    def moved(self) -> int:
        """What is offloaded: 1 the optimizer, 2 weights too."""
        return int(self.f.at(self.f.batch.work.offload))

    def params(self, local: bool) -> Form:
        """Parameters of the stage on one GPU: all, or its shard of them."""
        f = self.f
        names: dict[str, Given] = {"shared": parameters_given(f, "shared")}
        text = "{shared}"
        if local:
            ranks, experts = (f.at(x) for x in shards(f.batch.work))
            names["ranks"] = f.counted("shard_ranks", ranks, where="[M2]")
            names["expert_ranks"] = f.counted("expert_shard_ranks", experts, where="[M2]")
            text += " / {ranks}" if ranks > 1 else ""
        if f.at(f.t.held.experts):
            names["experts"] = parameters_given(f, "experts")
            text += " + {experts}"
            text += " / {expert_ranks}" if local and names["expert_ranks"].value > 1 else ""
        return Form(text, **names)


def _one(key: str, form: Form) -> Term:
    return Term(words=Words(key), form=form, unit="bytes")


def _weights(held: Held) -> list[Term]:
    if held.moved >= 2 and held.zero >= 3:
        return []
    f = held.f
    local = held.zero >= 3 or (held.zero == 2 and bool(f.at(casts(f.batch.work))))
    form = Form("{weight_bytes} * {params}", weight_bytes=f.work("weight_bytes"), params=held.params(local))
    return [_one("mem_weights", form)]


def _gradient_terms(held: Held) -> list[Term]:
    f, w = held.f, held.f.batch.work
    terms = [
        _one(
            "mem_gradients",
            Form(
                "{gradient_bytes} * {params}",
                gradient_bytes=f.work("gradient_bytes"),
                params=held.params(held.zero >= 2),
            ),
        )
    ]
    if held.zero < 3:
        copy = Form("{copy} * {params}", copy=f.memory_k("gradient_copy_bytes"), params=held.params(local=False))
        terms.append(_one("gradient_copies", copy))
        if held.zero < 2 and f.at(w.wire_bytes) > f.at(w.gradient_bytes):
            wider = Form("{wire_bytes} * {params}", wire_bytes=f.work("wire_bytes"), params=held.params(local=False))
            terms.append(_one("gradients_wider", wider))
    return terms


def _gradients(held: Held) -> list[Term]:
    f = held.f
    freed = f.memory_k("gradients_freed").value > 0 and held.count <= 1
    return [] if held.moment in (0, 1) and freed else _gradient_terms(held)


def _optimizer(held: Held) -> list[Term]:
    if held.moved >= 1:
        return []
    f = held.f
    form = Form(
        "{optimizer_bytes} * {params}", optimizer_bytes=f.work("optimizer_bytes"), params=held.params(held.zero >= 1)
    )
    return [_one("mem_optimizer", form)]


def _micro_batch(held: Held) -> Form:
    """What the stage keeps of one micro-batch."""
    f, parts, names = held.f, [], {}
    for kind, count in (("dense", f.at(f.t.layers.dense)), ("moe", f.at(f.t.layers.moe))):
        if count:
            names[f"{kind}_layers"] = f.counted(f"{kind}_layers", count, where="[R3] [R4]")
            names[f"{kind}_kept"] = kept_given(f, kind)
            parts.append(f"{{{kind}_layers}} * {{{kind}_kept}}")
    return Form(" + ".join(parts) or "0", **names)


def _shown_kind(f: Facts) -> str:
    """The kind of layer whose temporaries count."""
    return "moe" if f.at(f.t.layers.moe) > 0 else "dense"


def _activations(held: Held) -> list[Term]:
    f = held.f
    if held.moment == 3:
        return []
    if held.moment == 2:
        others = Form("max({in_flight} - 1, 0) * ({micro_batch})", in_flight=held.alive, micro_batch=_micro_batch(held))
        last = kept_given(f, _shown_kind(f))
        return [
            _one("activations_others", others),
            Term(words=last.words, form=Form("{kept}", kept=last), figure=last.figure, unit="bytes"),
        ]
    alive = Form("{in_flight} * ({micro_batch})", in_flight=held.alive, micro_batch=_micro_batch(held))
    terms = [_one("activations_alive", alive)]
    if f.at(f.t.layers.last):
        terms.append(_one("activations_head", Form("2 * {entry}", entry=entry(f))))
    return terms


def _logits(held: Held) -> list[Term]:
    f = held.f
    if held.moment != 0 or not f.at(f.t.layers.last):
        return []
    split_too = f.at(f.batch.work.tp) > 1
    form = Form(
        ("({logit_bytes} + {split_logit_bytes})" if split_too else "{logit_bytes}") + " * {tokens} * {vocab}",
        logit_bytes=f.memory_k("logit_bytes"),
        split_logit_bytes=f.memory_k("split_logit_bytes"),
        tokens=tokens(f),
        vocab=over_tp(f, "{vocab}", vocab=f.model("vocab")),
    )
    return [_one("mem_logits", form)]


def _working(held: Held) -> list[Term]:
    f = held.f
    if held.moment == 3:
        return _step_bytes(held)
    terms = _gathered(held)
    if held.moment in (1, 2):
        kind = _shown_kind(f)
        whole, rest = kept_given(f, kind, "whole"), kept_given(f, kind)
        terms += [
            _one("working_layer_gradients", _layer_gradients(held)),
            _one("working_temporaries", Form("{working} * {whole}", working=f.memory_k("working"), whole=whole)),
            _one("working_recomputed", Form("{whole} - {kept}", whole=whole, kept=rest)),
        ]
    end = "embedding" if held.moment == 2 else "head"
    terms.append(_one(f"working_{end}", _end_gradients(held, end)))
    if f.memory_k("step_kept").value:
        terms += [
            Term(
                unit="bytes",
                words=Words("working_cached"),
                form=Form("{step_kept} * {step}", step_kept=f.memory_k("step_kept"), step=one.form),
            )
            for one in _step_bytes(held)
        ]
    return terms


def _step_bytes(held: Held) -> list[Term]:
    if held.moved >= 1:
        return []
    params = held.params(held.zero >= 1)
    return [
        _one("working_step", Form("{step_bytes} * {params}", step_bytes=held.f.memory_k("step_bytes"), params=params))
    ]


def _zero_in_use(held: Held) -> int:
    w = held.f.batch.work
    return held.zero if held.f.at(w.shard_ranks) * held.f.at(w.cp) > 1 else 0


def _one_layer(held: Held, *, experts: bool) -> Form:
    """Parameters of one layer on this GPU before sharding."""
    f = held.f
    second = "mlp_params" if f.at(f.t.layers.dense) > 0 else "shared_params"
    text = "({attention_params} + {rest}) / {tp}"
    names = {"attention_params": f.model("attention_params"), "rest": f.model(second), "tp": f.work("tp")}
    if experts and f.at(f.t.layers.moe) > 0:
        text += " + {experts_each} * {expert_params} / ({ep} * {expert_tp})"
        names |= {
            "experts_each": f.model("experts"),
            "expert_params": f.model("expert_params"),
            "ep": f.work("ep"),
            "expert_tp": f.work("expert_tp"),
        }
    return Form(text, **names)


def _gathered(held: Held) -> list[Term]:
    f, w = held.f, held.f.batch.work
    pipelined = f.at(w.pp) > 1
    if _zero_in_use(held) < 3:
        if not f.at(casts(w)):
            return []
        half = constant("half_bytes", 2.0, "[M6]", "bytes")
        return [_one("working_copy", Form("{half} * ({params})", half=half, params=held.params(local=False)))]
    word = f.work("word")
    if not pipelined:
        layers = f.counted(
            "gathered_layers", min(f.memory_k("gathered_layers").value, f.at(f.t.layers.layers)), where="[M6]"
        )
        form = Form(
            "{word} * ({gathered_layers} * ({layer}) + {embedding})",
            word=word,
            gathered_layers=layers,
            layer=_one_layer(held, experts=True),
            embedding=parameters_given(f, "embedding"),
        )
        return [_one("working_gathered", form)]
    terms = [_one("working_gathered", Form("{word} * ({params})", word=word, params=held.params(local=False)))]
    if held.count > 1:
        whole = Form("{wire_bytes} * ({params})", wire_bytes=f.work("wire_bytes"), params=held.params(local=False))
        terms.append(_one("working_whole_gradients", whole))
    return terms


def _each(held: Held) -> Form | None:
    """Bytes of a gradient that is whole for a while."""
    f, w = held.f, held.f.batch.work
    if _zero_in_use(held) >= 2:
        return Form("{word} + {wire_bytes}", word=f.work("word"), wire_bytes=f.work("wire_bytes"))
    wider = max(f.at(w.gradient_bytes), f.at(w.wire_bytes)) > f.at(w.word)
    return Form("{word}", word=f.work("word")) if wider else None


def _layer_gradients(held: Held) -> Form:
    each = _each(held)
    if each is None:
        return Form("0")
    return Form("({each}) * ({layer})", each=each, layer=_one_layer(held, experts=_zero_in_use(held) >= 2))


def _end_gradients(held: Held, end: str) -> Form:
    f, each = held.f, _each(held)
    here = f.t.layers.first if end == "embedding" else f.t.layers.last
    if each is None or not f.at(here):
        return Form("0")
    tied = f.at(f.batch.model.tied) > 0
    key = "embedding_params" if end == "embedding" or tied else "head_params"
    return Form("({each}) * {end} / {tp}", each=each, end=f.model(key), tp=f.work("tp"))


def _buffers(held: Held) -> list[Term]:
    f, w = held.f, held.f.batch.work
    terms = []
    if f.at(w.dp) > 1:
        copy = f.memory_k("bucket_copy")
        if copy.value:
            form = Form(
                "{bucket_copy} * {gradient_bytes} * ({params})",
                bucket_copy=copy,
                gradient_bytes=f.work("gradient_bytes"),
                params=held.params(held.zero >= 2),
            )
            terms.append(_one("buffers_buckets", form))
        if f.at(w.bucket_room):
            form = Form(
                "min({bucket_room}, {gradient_bytes} * ({params}))",
                bucket_room=f.work("bucket_room"),
                gradient_bytes=f.work("gradient_bytes"),
                params=held.params(local=False),
            )
            terms.append(_one("buffers_larger", form))
    size: dict[str, Form | Given] = {"word": f.work("word"), "tokens": tokens(f), "hidden": f.model("hidden")}
    if f.at(w.pp) > 1:
        terms.append(
            _one("buffers_messages", Form("2 * {word} * {tokens} * {hidden} * {split}", split=split(f), **size))
        )
    if f.at(w.sequence_parallel) > 0 and f.at(w.tp) > 1:
        form = Form("{word} * {tokens} * {hidden} * (1 - 1 / {tp})", tp=f.work("tp"), **size)
        terms.append(_one("buffers_gathered", form))
    return terms


def _base(held: Held) -> list[Term]:
    return [_one("mem_base", Form(f"{{base_gib}} * {GIB}", base_gib=held.f.memory_k("base_gib")))]


PARTS = {
    "weights": _weights,
    "gradients": _gradients,
    "optimizer": _optimizer,
    "activations": _activations,
    "logits": _logits,
    "working": _working,
    "buffers": _buffers,
    "base": _base,
}
"""Terms of each part, in bytes."""
