"""Exchanges among replicas explained: gradients reduced, weights gathered, what hides, and the optimizer.

Figures of a stage: `exchange.reduce`, `.outer`, `.gather` (all of it), `reduce_s`, `gather_s` (what does not hide),
`update_s`, and `zones.reduce`, `zones.gather` (between zones).
"""

from __future__ import annotations

import numpy as np

from crosszone.analyse.explain.explanation import Draft, Term
from crosszone.analyse.explain.facts import Facts
from crosszone.analyse.explain.form import Form, Given, Words, total
from crosszone.analyse.explain.rates import constant, rate
from crosszone.analyse.explain.stages import parameters_given, pass_given
from crosszone.cost.replicas import FAST_HOP_S, NETWORK_HOP_S, WEIGHT_TRAFFIC


def sharded(f: Facts) -> bool:
    """Replicas share states."""
    w = f.batch.work
    return f.at(w.zero) > 0 and f.at(w.shard_ranks) > 1


def one_ring(f: Facts) -> bool:
    """All replicas of a zone are one ring."""
    return f.at(f.t.group.inner) >= f.at(f.t.group.zone) or not sharded(f)


def _flat(f: Facts) -> bool:
    """A ring through all zones takes the place of one inside each."""
    links = f.batch.links
    together = f.at(links.dp_zones) > 1 and f.at(links.synchronous) > 0
    chained = not sharded(f) and f.at(f.batch.work.tree) > 0
    return f.at(links.flat) > 0 and together and not f.at(f.t.sent.several) and not chained


def members(f: Facts) -> Given:
    """Replicas of a ring inside a zone."""
    group = f.t.group
    if one_ring(f):
        return f.counted("replicas_of_zone", f.at(group.zone), where="[X7]")
    return f.counted("replicas_of_set", f.at(group.inner), where="[M2]")


def bus(f: Facts) -> Given:
    """Bytes/s of that ring. [X5]"""
    name = "zone_bus" if one_ring(f) else "inner_bus"
    return f.follows(f.here(f"rate.{name}"), f.at(getattr(f.t.group, name)), Words("rate_replicas"), "bytes/s")


def bus_rate(f: Facts, name: str) -> Draft:
    """The fast link inside a domain, else the network of all local members. [X5]"""
    w, group, g = f.batch.work, f.t.group, f.batch.gpu
    count = {"zone_bus": group.zone, "inner_bus": group.inner, "expert_bus": group.experts}[name]
    stride = f.at(w.ep) * f.at(w.expert_tp) if name == "expert_bus" else f.at(w.dp_stride)
    n, domain = f.at(count), f.at(g.domain)
    if n * stride <= domain:
        form = Form("{link_rate}", link_rate=rate(f, "link"))
    else:
        local = f.counted("members_of_domain", min(max(np.floor(domain / stride), 1.0), n), where="placement")
        form = Form(
            "min({link_rate}, {members} * {network_rate})",
            link_rate=rate(f, "link"),
            members=local,
            network_rate=rate(f, "network"),
        )
    return Draft(
        words=Words("rate_replicas"), formula="X5", value=f.at(getattr(group, name)), unit="bytes/s", form=form
    )


def _hop(f: Facts) -> Given:
    near = f.at(f.t.group.zone) * f.at(f.batch.work.dp_stride) <= f.at(f.batch.gpu.domain)
    where = "cost/links.yaml, " + ("fast_link" if near else "rdma")
    return Given(
        value=FAST_HOP_S if near else NETWORK_HOP_S, words=Words("hop"), unit="s", origin="profile", where=where
    )


def _calls(f: Facts) -> Form:
    """Collectives of all buckets."""
    shared = parameters_given(f, "shared")
    rounds = " * {rounds}" if f.at(f.batch.work.rounds) != 1 else ""
    return Form(
        "max(1, {shared} * {gradient_bytes} / {bucket_bytes})" + rounds,
        shared=shared,
        gradient_bytes=f.work("gradient_bytes"),
        bucket_bytes=f.work("bucket_bytes"),
        rounds=f.work("rounds"),
    )


def reduction(f: Facts) -> Draft:
    """Gradients of the stage reduced among the replicas that share states, all of it. [X7]"""
    terms, notes = [], []
    if not _flat(f) and f.at(f.t.held.shared) > 0:
        ring, tree = _ring(f), _tree(f)
        chosen = tree if tree is not None and (f.at(f.batch.work.tree) > 0 or tree.value < ring.value) else ring
        notes.append(Words("note_tree" if chosen is tree else "note_ring"))
        terms.append(Term(words=Words("reduce_inside"), form=chosen))
        experts = _experts(f, 1.0 if sharded(f) else 2.0, f.work("wire_bytes"))
        terms += [Term(words=Words("reduce_experts"), form=experts)] if experts else []
    if not f.at(f.t.sent.several):
        terms += zones_term(f, "reduce")
    return Draft(
        words=Words("exchange_reduce", {"stage": f.stage}),
        formula="X7",
        value=f.at(f.t.sent.reduce),
        unit="s",
        form=total([term.form for term in terms]),
        terms=terms,
        notes=notes,
    )


def _ring(f: Facts) -> Form:
    passes = constant("ring_passes", 1.0 if sharded(f) else 2.0, "[X7]")
    n = members(f)
    if n.value <= 1:
        return Form("0")
    return Form(
        "{shared} * {dp_traffic} * {passes} * {wire_bytes} * ({n} - 1) / {n} / {bus}"
        " + {calls} * {passes} * ({n} - 1) * {hop}",
        shared=parameters_given(f, "shared"),
        dp_traffic=f.k("dp_traffic"),
        passes=passes,
        wire_bytes=f.work("wire_bytes"),
        n=n,
        bus=bus(f),
        calls=_calls(f),
        hop=_hop(f),
    )


def _tree(f: Facts) -> Form | None:
    zone = f.at(f.t.group.zone)
    if sharded(f) or zone <= 1 or f.at(f.batch.work.tree) < 0:
        return None
    return Form(
        "{shared} * {dp_traffic} * 2 * {wire_bytes} / {bus} + {calls} * 2 * ceil(log2({n})) * {hop}",
        shared=parameters_given(f, "shared"),
        dp_traffic=f.k("dp_traffic"),
        wire_bytes=f.work("wire_bytes"),
        bus=bus(f),
        calls=_calls(f),
        n=members(f),
        hop=_hop(f),
    )


def _experts(f: Facts, passes: float, each: Given) -> Form | None:
    if not f.at(f.t.held.experts) or f.at(f.t.group.experts) <= 1:
        return None
    speed = f.at(f.t.group.expert_bus)
    return Form(
        "{experts} * {dp_traffic} * {passes} * {bytes} * ({copies} - 1) / {copies} / {expert_bus}",
        experts=parameters_given(f, "experts"),
        dp_traffic=f.k("dp_traffic"),
        passes=constant("ring_passes", passes, "[X7]"),
        bytes=each,
        copies=f.counted("expert_copies", f.at(f.t.group.experts), where="[X7]"),
        expert_bus=f.follows(f.here("rate.expert_bus"), speed, Words("rate_replicas"), "bytes/s"),
    )


def gather(f: Facts) -> Draft:
    """Sharded weights of the stage gathered, all of it. [X7]"""
    terms = []
    n = members(f)
    if sharded(f):
        if not _flat(f) and n.value > 1:
            form = Form(
                "{shared} * {dp_traffic} * {gathered} * ({n} - 1) / {n} / {bus}",
                shared=parameters_given(f, "shared"),
                dp_traffic=f.k("dp_traffic"),
                gathered=f.work("gathered"),
                n=n,
                bus=bus(f),
            )
            terms.append(Term(words=Words("gather_inside"), form=form))
            experts = _experts(f, 1.0, f.work("gathered"))
            terms += [Term(words=Words("gather_experts"), form=experts)] if experts else []
        inner = f.counted("replicas_of_set", f.at(f.t.group.inner), where="[M2]")
        if inner.value > 1 and f.at(f.t.held.shared) > 0:
            form = Form("{shard_message_s} * ({set} - 1)", shard_message_s=f.k("shard_message_s"), set=inner)
            terms.append(Term(words=Words("gather_messages"), form=form))
    if f.at(f.batch.work.offload) > 1:
        form = Form(
            "{word} / {set} / {pcie_rate} * {shared}",
            word=f.work("word"),
            set=f.counted("replicas_of_set", f.at(f.t.group.inner), where="[M2]"),
            pcie_rate=f.counted("rate_pcie", f.at(f.t.layer.pcie_rate), unit="bytes/s", where="[O10]"),
            shared=parameters_given(f, "shared"),
        )
        terms.append(Term(words=Words("gather_host"), form=form))
    terms += zones_term(f, "gather")
    return Draft(
        words=Words("exchange_gather", {"stage": f.stage}),
        formula="X7",
        value=f.at(f.t.sent.gather),
        unit="s",
        form=total([term.form for term in terms]),
        terms=terms,
    )


def outer(f: Facts) -> Draft:
    """Shards reduced among the sets of states, once a step. [X7]"""
    terms = []
    if not one_ring(f):
        form = Form(
            "{shared} * {dp_traffic} * {wire_bytes} * 2 * ({zone} / {set} - 1)"
            " / ({zone} / {set}) / {set} / {network_rate}",
            shared=parameters_given(f, "shared"),
            dp_traffic=f.k("dp_traffic"),
            wire_bytes=f.work("wire_bytes"),
            zone=f.counted("replicas_of_zone", f.at(f.t.group.zone), where="[X7]"),
            set=f.counted("replicas_of_set", f.at(f.t.group.inner), where="[M2]"),
            network_rate=rate(f, "network"),
        )
        terms.append(Term(words=Words("outer_inside"), form=form))
    if f.at(f.t.sent.several):
        terms += zones_term(f, "reduce")
    return Draft(
        words=Words("exchange_outer", {"stage": f.stage}),
        formula="X7",
        value=f.at(f.t.sent.outer),
        unit="s",
        form=total([term.form for term in terms]),
        terms=terms,
    )


def zones_term(f: Facts, what: str) -> list[Term]:
    """The exchange between zones as a term, where there is one."""
    value = f.at(getattr(f.t.sent, f"wan_{what}"))
    if not value:
        return []
    given = f.follows(f.here(f"zones.{what}"), value, Words(f"zones_{what}"))
    return [Term(words=given.words, form=Form("{between_zones}", between_zones=given), figure=given.figure)]


def between_zones(f: Facts, what: str) -> Draft:
    """Reduction or gather between zones: latencies of the messages, and bytes over the rate of the ring. [X7] [T14]"""
    sent, links = f.t.sent, f.batch.links
    size = f.at(sent.zone_reduce_bytes if what == "reduce" else sent.zone_gather_bytes)
    chained = what == "reduce" and not sharded(f) and f.at(f.batch.work.tree) > 0
    inputs = {
        "messages": f.counted("zone_messages", f.at(getattr(sent, f"wan_{what}_messages")), where="[X7]"),
        "latency": f.counted("zone_latency", f.at(links.wan_latency_s), unit="s", where="[C11] [T11]"),
        "bytes": f.counted("zone_bytes", size, unit="bytes", where="[X7] [A1]"),
        "rate": f.counted("zone_rate", f.at(links.wan_bytes_per_s), unit="bytes/s", where="[T12] [T13]"),
        "zones": f.counted("zones", f.at(links.dp_zones), where="placement"),
    }
    form = "{messages} * {latency} + {bytes}" + (" * min({zones} - 1, 2)" if chained else "") + " / {rate}"
    return Draft(
        words=Words(f"zones_{what}"),
        formula="T14",
        value=f.at(getattr(sent, f"wan_{what}")),
        unit="s",
        form=Form(form, **inputs),
    )


# what does not hide


def _hides(f: Facts, on: float, contention: str) -> tuple[str, dict[str, Given]]:
    """Share of what could hide that does, as text with its inputs; empty: nothing hides."""
    if on <= 0:
        return "", {}
    overlap = f.at(f.batch.work.overlap)
    if not np.isnan(overlap):
        where = "strategy.communication.overlap"
        return "{overlap}", {"overlap": Given(value=overlap, words=Words("overlap"), origin="scenario", where=where)}
    return f"(1 - {{{contention}}})", {contention: f.k(contention)}


def _all(f: Facts, what: str) -> Given:
    value = f.at(getattr(f.t.sent, what))
    return f.follows(f.here(f"exchange.{what}"), value, Words(f"exchange_{what}", {"stage": f.stage}))


def _each_micro_batch(f: Facts) -> tuple[bool, bool]:
    """Weights are gathered, and gradients reduced, with every micro-batch."""
    w = f.batch.work
    alone = f.at(w.pp) == 1
    met = f.at(w.shard_ranks) > 1 or f.at(w.dp) == 1
    return alone and f.at(w.zero) >= 3, alone and f.at(w.zero) >= 2 and met


def exposed_gather(f: Facts) -> Draft:
    """What the gather of the weights adds to the step. [V1]"""
    if _each_micro_batch(f)[0]:
        form = Form("0")
        notes: tuple[Words, ...] = (Words("note_every_micro_batch"),)
    else:
        hidden, names = _hides(f, f.at(f.batch.work.overlap_parameters), "dp_contention")
        text = "{gather}" + (f" - {hidden} * min({{gather}}, {{forward_s}})" if hidden else "")
        form, notes = Form(text, gather=_all(f, "gather"), forward_s=pass_given(f, "forward"), **names), ()
    return Draft(
        words=Words("exposed_gather", {"stage": f.stage}),
        formula="V1",
        value=f.at(f.t.gather),
        unit="s",
        form=form,
        notes=notes,
    )


def exposed_once(f: Facts) -> Draft:
    """What the reduction of the gradients adds after the last backward pass. [V1]"""
    gathered, reduced = _each_micro_batch(f)
    once = (
        Form("{outer}", outer=_all(f, "outer"))
        if reduced
        else Form("{reduce} + {outer}", reduce=_all(f, "reduce"), outer=_all(f, "outer"))
    )
    if not reduced and not f.at(f.t.sent.outer):
        once = Form("{reduce}", reduce=_all(f, "reduce"))
    again = [name for name, on in (("gather", gathered), ("reduce", reduced)) if on]
    hidden, names = _hides(f, f.at(f.batch.work.overlap_gradients), "dp_contention")
    text = "{once}"
    if hidden:
        room = "max(0, {backward_s}" + "".join(f" - {{{name}}}" for name in again) + ")" if again else "{backward_s}"
        text += f" - {hidden} * min({{once}}, {room}, {{once}} * (1 - {{last_bucket}}))"
    form = Form(
        text,
        once=once,
        backward_s=pass_given(f, "backward"),
        last_bucket=f.counted("last_bucket", f.at(f.t.sent.last_bucket), where="[V1]", unit="share"),
        **{name: _all(f, name) for name in again},
        **names,
    )
    return Draft(
        words=Words("exposed_reduce", {"stage": f.stage}), formula="V1", value=f.at(f.t.reduce), unit="s", form=form
    )


def gathers(f: Facts) -> Form | None:
    """What exchanges of every micro-batch add to both passes; None: there are none. [V1]"""
    gathered, reduced = _each_micro_batch(f)
    if not (gathered or reduced):
        return None
    w, parts = f.batch.work, []
    names: dict[str, Given] = {}
    if gathered:
        hidden, more = _hides(f, f.at(w.overlap_parameters), "fsdp_contention")
        parts.append("{gather}" + (f" - {hidden} * min({{gather}}, {{forward_s}})" if hidden else ""))
        names |= more | {"gather": _all(f, "gather"), "forward_s": pass_given(f, "forward")}
    again = " + ".join(f"{{{name}}}" for name, on in (("gather", gathered), ("reduce", reduced)) if on)
    hidden, more = _hides(f, f.at(w.overlap_gradients), "fsdp_contention")
    parts.append(again + (f" - {hidden} * min({again}, {{backward_s}})" if hidden else ""))
    names |= more | {"reduce": _all(f, "reduce"), "gather": _all(f, "gather"), "backward_s": pass_given(f, "backward")}
    return Form(" + ".join(parts), **names)


def update(f: Facts) -> Draft:
    """The optimizer's step on one GPU of the stage. [O10]"""
    w, t = f.batch.work, f.t
    on = f.at(w.zero) > 0
    shards = min(f.at(w.shard_ranks) * f.at(w.cp), f.at(t.group.shared)) if on else 1.0
    expert_shards = min(f.at(t.group.experts), shards) if on else 1.0
    whole = f.at(w.zero) >= 3
    kinds = [("shared", shards)] + ([("experts", expert_shards)] if f.at(t.held.experts) else [])
    names: dict[str, Form | Given] = {name: parameters_given(f, name) for name, _ in kinds}
    for name, count in kinds:
        names[f"{name}_shards"] = f.counted("state_shards", count, where="[M2]", of=Words(f"states_{name}"))
    if f.at(w.offload) > 0:
        local = " + ".join(f"{{{name}}} / {{{name}_shards}}" for name, _ in kinds)
        form = Form(
            f"({local}) * {{node_gpus}} / {{host_update_per_s}}"
            f" + ({local}) * ({{gradient_bytes}} + {{word}}) / {{pcie_rate}}",
            **names,
            node_gpus=f.gpu("node_gpus"),
            host_update_per_s=f.k("host_update_per_s"),
            gradient_bytes=f.work("gradient_bytes"),
            word=f.work("word"),
            pcie_rate=f.counted("rate_pcie", f.at(t.layer.pcie_rate), unit="bytes/s", where="[O10]"),
        )
    else:
        states = "{optimizer_traffic} * ({optimizer_bytes} + {gradient_bytes}) / 16"
        per = f"({states} + {{weight_traffic}})" if whole else f"{states}"
        after = "" if whole else " + {weight_traffic}"
        terms = [f"{{{name}}} * ({per} / {{{name}_shards}}{after})" for name, _ in kinds]
        form = Form(
            f"({' + '.join(terms)}) / {{memory_rate}}",
            **names,
            optimizer_traffic=f.k("optimizer_traffic"),
            optimizer_bytes=f.work("optimizer_bytes"),
            gradient_bytes=f.work("gradient_bytes"),
            weight_traffic=constant("weight_traffic", WEIGHT_TRAFFIC, "[O10]", "bytes"),
            memory_rate=rate(f, "memory"),
        )
    words = Words("update_of_stage", {"stage": f.stage})
    return Draft(words=words, formula="O10", value=f.at(t.update), unit="s", form=form)
