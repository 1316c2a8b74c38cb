"""Rows of communication explained: bytes, messages, busy and exposed time of each kind on each link, and their sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crosszone.analyse.explain.explanation import Draft, Term
from crosszone.analyse.explain.facts import Facts
from crosszone.analyse.explain.form import Form, Given, Words, total
from crosszone.analyse.explain.rates import constant, rate, tokens
from crosszone.analyse.explain.stages import parameters_given
from crosszone.analyse.report import tier_of
from crosszone.analyse.worked import FORMULAS, worked_bytes
from crosszone.inputs.parameters import parameters
from crosszone.predict.cells import cell, row_of, top
from crosszone.predict.local_update import DTYPE_BYTES
from crosszone.predict.prediction import Traffic
from crosszone.predict.traffic import FAST, NETWORK

FIELDS = {"bytes_per_step": "bytes", "messages": "", "busy_s": "s", "exposed_s": "s"}


def row_figure(f: Facts, at: int, field: str) -> Draft:
    """One figure of a row of communication. [A1]"""
    row = f.prediction.communication[at]
    make = {"bytes_per_step": _bytes, "messages": _messages, "busy_s": _busy, "exposed_s": _exposed}[field]
    form, terms, notes = make(f, row)
    return Draft(
        words=_words(row, field),
        formula=FORMULAS[row.kind],
        value=getattr(row, field),
        unit=FIELDS[field],
        form=form,
        terms=terms if len(terms) > 1 else [],
        notes=notes,
        also=_of_bytes(f, row) if field == "bytes_per_step" else {},
    )


def _of_bytes(f: Facts, row: Traffic) -> dict[str, Given]:
    """What the bytes of a row are made of."""
    if row.kind in ("gradients", "weights"):
        each = "wire_bytes" if row.kind == "gradients" else "gathered"
        held = [parameters_given(f.on(stage), "shared") for stage in range(f.p.strategy.pp)]
        found = {name: f.work(name) for name in ("tp", "cp", "dp", each)}
        return found | {f"parameters_{stage}": given for stage, given in enumerate(held)}
    if row.kind == "local update":
        whole = f.counted("parameters", parameters(f.p.case.model).total, where="model [P1]")
        return {"parameters": whole, "zones": f.counted("zones", len(f.p.site.ring), where="placement"), **_averages(f)}
    names = ("tp", "cp", "micro_batch", "seq", "word")
    count = f.counted("all_micro_batches", int(f.p.site.micro_batches.sum()), where="[R2]")
    found = {"micro_batches": count} | {name: f.work(name) for name in names}
    models = {"context": ("layers", "kv_heads", "qk_dim", "v_dim"), "expert": ("moe_layers", "top_k", "hidden")}
    return found | {name: f.model(name) for name in models.get(row.kind, ("layers", "hidden"))}


Made = tuple[Form, list[Term], tuple[Words, ...]]


def _words(row: Traffic, field: str) -> Words:
    link = Words(f"link_{row.link}") if row.link in (FAST, NETWORK) else row.link
    return Words(f"traffic_{field}", {"kind": Words(f"kind_{row.kind}"), "link": link})


def sums(f: Facts, by: str, name: str, field: str) -> Draft:
    """Rows of a kind, a tier or a link added up. [A1]"""
    terms = []
    for at, row in enumerate(f.prediction.communication):
        if {"kinds": row.kind, "tiers": tier_of(row.link), "links": row.link}[by] == name:
            given = f.follows(f"communication[{at}].{field}", getattr(row, field), _words(row, field), FIELDS[field])
            terms.append(
                Term(words=given.words, form=Form(f"{{row_{at}}}", **{f"row_{at}": given}), figure=given.figure)
            )
    if not terms:
        raise KeyError(name)
    form = total([term.form for term in terms])
    known = {"kinds": f"kind_{name}", "tiers": f"tier_{name}"}
    of = Words(known[by]) if by in known else name
    words = Words("traffic_sum", {"of": of, "field": Words(f"sum_{field}")})
    return Draft(words=words, formula="A1", value=form.value, unit=FIELDS[field], form=form, terms=terms)


def _bytes(f: Facts, row: Traffic) -> Made:
    return Form(worked_bytes(f.p, row)), [], (Words(f"note_bytes_{row.kind}"),)


# busy time


def _busy(f: Facts, row: Traffic) -> Made:
    if row.kind == "tensor":
        one = f.follows(f.here("layer.tp_s"), f.at(f.t.layer.tp_s), Words("tp_collective"))
        return Form("{calls} * {collective}", calls=_tensor_calls(f), collective=one), [], _pace(f)
    if row.kind == "context":
        return _context_busy(f, row), [], ()
    if row.kind == "expert":
        return _expert_busy(f, row), [], ()
    if row.kind == "pipeline":
        terms = _Sends(f).busy(row.link)
        return total([term.form for term in terms]), terms, (Words("note_busiest_replica"),)
    if row.kind == "local update":
        return _averaging(f), [], ()
    return _Replicas(f, row.kind).busy(row), [], ()


def _pace(f: Facts) -> tuple[Words, ...]:
    return (Words("note_pace", {"stage": f.stage}),)


def _tensor_calls(f: Facts) -> Form:
    layers, model = f.t.layers, f.p.case.model
    count = (1 if model.parallel_residual else 2) * (2 if f.p.strategy.recompute == "full" else 1) + 2
    ends = " + {ends}" if f.at(layers.first) + f.at(layers.last) else ""
    return Form(
        f"{{m}} * ({{calls_of_layer}} * {{layers}}{ends})",
        m=f.micro_batches,
        calls_of_layer=constant("calls_of_layer", count, "[O7] [X1]"),
        layers=f.counted("layers_here", f.at(layers.layers), where="[R3]", stage=f.stage),
        ends=f.counted("ends_here", f.at(layers.first) + f.at(layers.last), where="[X1]"),
    )


def _calls(f: Facts, passes: float, layers: str) -> dict[str, Given]:
    return {
        "passes": constant("exchanges_of_layer", passes, "[X3] [X4]"),
        "m": f.micro_batches,
        "layers": f.model(layers),
        "pp": f.work("pp"),
    }


def _context_busy(f: Facts, row: Traffic) -> Form:
    model, s = f.p.case.model, f.p.strategy
    groups = model.heads / s.tp if model.mla else max(model.kv_heads / s.tp, 1.0)
    slow = _slowest(f, row.link)
    return Form(
        "{passes} * {m} * {layers} / {pp} * {word} * {tokens} * {kv_groups}"
        " * ({qk_dim} + {v_dim}) * ({cp} - 1) / {rate}",
        **_calls(f, 3.0, "layers"),
        word=f.work("word"),
        tokens=tokens(f),
        kv_groups=f.counted("kv_groups", groups, where="max(kv_heads / tp, 1)"),
        qk_dim=f.model("qk_dim"),
        v_dim=f.model("v_dim"),
        cp=f.work("cp"),
        rate=rate(slow, "link" if row.link == FAST else "network"),
    )


def _slowest(f: Facts, link: str) -> Facts:
    """The stage whose link of that kind is slowest."""
    layer = f.t.layer
    rates = layer.k.link * layer.gpu.link_bytes_per_s if link == FAST else layer.nic_rate
    return f.on(int(np.argmin(np.broadcast_to(row_of(rates, f.p.row), (f.p.strategy.pp,)))))


def _expert_busy(f: Facts, row: Traffic) -> Form:
    s, moe = f.p.strategy, f.p.case.model.moe
    assert moe is not None
    inside = min(max(min(f.p.site.groups[g].domain for g in f.p.site.groups_in_use), 1), s.ep)
    near = row.link == FAST
    part = "{top_k} * (1 - 1 / {ep})" if near else "({domains} - 1) * (1 - (1 - 1 / {domains}) ** {top_k})"
    return Form(
        f"{{passes}} * {{m}} * {{layers}} / {{pp}} * {{word}} * {{tokens}} * {{hidden}} / {{tp}} * {part} / {{rate}}",
        **_calls(f, 4.0, "moe_layers"),
        word=f.work("word"),
        tokens=tokens(f),
        hidden=f.model("hidden"),
        tp=f.work("tp"),
        top_k=f.model("top_k"),
        ep=f.work("ep"),
        domains=f.counted("expert_domains", s.ep / inside, where="[X3]"),
        rate=rate(_slowest(f, row.link), "link" if near else "network"),
    )


@dataclass(frozen=True)
class _Send:
    """Messages of one kind of replica over one boundary on one link."""

    stage: int
    kind: int
    micro_batches: int
    rounds: int
    seconds: float
    """One micro-batch, all chunks."""
    ways: int
    late_s: float


class _Sends:
    """What crosses every boundary between stages. [X8]"""

    def __init__(self, f: Facts):
        self.f = f
        s, site, t, p = f.p.strategy, f.p.site, f.t, f.p
        zones, names = site.zone[:, :, 0, 0].tolist(), [zone.name for zone in site.cluster.zones]
        self.sends: dict[str, list[_Send]] = {}
        for stage in range(s.pp if site.wraps else s.pp - 1):
            rounds = s.interleave - (stage == s.pp - 1)
            for kind, replica in enumerate(site.kinds[0].tolist()):
                row, part = p.row - p.slowest + kind, rounds / s.interleave
                times = part * cell(t.send, row, stage), part * cell(t.send_back, row, stage)
                a, b = zones[stage][replica], zones[(stage + 1) % s.pp][replica]
                inside = FAST if site.boundary_fast(stage, replica) else NETWORK
                links = (f"{names[a]} > {names[b]}", f"{names[b]} > {names[a]}") if a != b else (inside,)
                each = times if a != b else (sum(times),)
                for link, seconds in zip(links, each, strict=True):
                    self.sends.setdefault(link, []).append(
                        _Send(
                            stage=stage,
                            kind=kind,
                            micro_batches=int(site.kind_micro_batches[kind]),
                            rounds=rounds,
                            seconds=seconds,
                            ways=1 if a != b else 2,
                            late_s=rounds * cell(t.latency, row, stage),
                        )
                    )

    def _busiest(self, link: str) -> list[_Send]:
        found: dict[int, _Send] = {}
        for send in self.sends[link]:
            now = found.get(send.stage)
            key = (send.micro_batches * send.seconds, send.micro_batches * send.rounds * send.ways)
            if now is None or key > (now.micro_batches * now.seconds, now.micro_batches * now.rounds * now.ways):
                found[send.stage] = send
        return list(found.values())

    def busy(self, link: str) -> list[Term]:
        """Seconds of every boundary on the link."""
        terms = []
        for send in self._busiest(link):
            names = {
                f"m_{send.stage}": self.f.counted("micro_batches", send.micro_batches, where="[R2]"),
                f"send_{send.stage}": self.f.counted(
                    "send_of_boundary", send.seconds, unit="s", where="[X8] [C12]", stage=send.stage
                ),
            }
            form = Form(f"{{m_{send.stage}}} * {{send_{send.stage}}}", **names)
            terms.append(Term(words=Words("boundary", {"stage": send.stage}), form=form))
        return terms

    def messages(self, link: str) -> list[Term]:
        """Messages of every boundary on the link."""
        terms = []
        for send in self._busiest(link):
            names = {
                f"m_{send.stage}": self.f.counted("micro_batches", send.micro_batches, where="[R2]"),
                f"rounds_{send.stage}": self.f.counted("rounds", send.rounds * send.ways, where="[X8]"),
            }
            form = Form(f"{{m_{send.stage}}} * {{rounds_{send.stage}}}", **names)
            terms.append(Term(words=Words("boundary", {"stage": send.stage}), form=form))
        return terms

    def late(self, link: str) -> float:
        """Busy time and latency of the slowest replica on a link."""
        own = (send for send in self.sends[link] if send.kind == self.f.p.slowest)
        return sum(send.micro_batches * (send.seconds + send.ways * send.late_s) for send in own)

    def exposed(self, link: str) -> Form:
        """The pipeline's exposed time, shared out by busy time and latency."""
        whole = sum(self.late(one) for one in self.sends) or 1.0
        return Form(
            "{pipeline} * {late_here} / {late_all}",
            pipeline=self.f.part("pipeline"),
            late_here=self.f.counted("late_here", self.late(link), unit="s", where="[X8]"),
            late_all=self.f.counted("late_all", whole, unit="s", where="[X8]"),
        )


class _Replicas:
    """Gradients or weights among replicas: seconds inside the zones, and between them. [X7]"""

    def __init__(self, f: Facts, kind: str):
        self.f, self.kind = f, kind
        s, self.sent, self.row = f.p.strategy, f.t.sent, f.p.row
        zero = s.zero or 0
        each = f.p.row_micro_batches if s.pp == 1 else 1
        scatters = zero >= 2 and (f.p.site.shard_ranks > 1 or s.dp == 1)
        self.several = bool(np.all(self.sent.several))
        self.scattered, self.gathered = (each if scatters else 1), (2 * each if zero >= 3 else 1)
        self.often = self.scattered if kind == "gradients" else self.gathered
        self.zero = zero
        self.wan_often = 1 if kind == "gradients" and self.several else self.often

    def _what(self) -> str:
        return "reduce" if self.kind == "gradients" else "gather"

    def _times(self) -> Given:
        return self.f.counted("times_a_step", self.often, where="[X7]")

    def inside(self) -> Form:
        """Seconds inside the zones, all of a step."""
        what = self._what()
        wan = getattr(self.sent, f"wan_{what}")
        taken = 0.0 if self.kind == "gradients" and self.several else wan
        parts: dict[str, Form | Given] = {
            "times": self._times(),
            what: self._less(getattr(self.sent, what), taken, f"exchange.{what}", what),
        }
        text = f"{{times}} * {{{what}}}"
        if self.kind == "gradients" and top(self.sent.outer, self.row) > 0:
            parts["outer"] = self._less(self.sent.outer, wan if self.several else 0.0, "exchange.outer", "outer")
            text += " + {outer}"
        return Form(text, **parts)

    def _less(self, values: object, taken: object, path: str, what: str) -> Form:
        """The longest of the stages without what is between zones."""
        stages = self.f.p.strategy.pp
        own, away = (np.broadcast_to(row_of(x, self.row), (stages,)) for x in (values, taken))
        stage = self.f.on(int(np.argmax(own - away)))
        given = self.f.follows(stage.here(path), own[stage.stage], Words(f"exchange_{what}", {"stage": stage.stage}))
        if not away[stage.stage]:
            return Form(f"{{{what}_all}}", **{f"{what}_all": given})
        between = "gather" if what == "gather" else "reduce"
        far = self.f.follows(stage.here(f"zones.{between}"), away[stage.stage], Words(f"zones_{between}"))
        return Form(f"({{{what}_all}} - {{between_zones}})", **{f"{what}_all": given}, between_zones=far)

    def across(self) -> Form:
        """Seconds between zones, all of a step."""
        what = self._what()
        value = top(getattr(self.sent, f"wan_{what}"), self.row)
        stages = np.broadcast_to(row_of(getattr(self.sent, f"wan_{what}"), self.row), (self.f.p.strategy.pp,))
        stage = self.f.on(int(np.argmax(stages)))
        given = self.f.follows(stage.here(f"zones.{what}"), value, Words(f"zones_{what}"))
        times = self.f.counted("times_a_step_zones", self.wan_often, where="[X7]")
        return Form("{zone_times} * {between}", zone_times=times, between=given)

    def busy(self, row: Traffic) -> Form:
        """The row's busy time."""
        if " > " in row.link:
            return self.across()
        sizes = row_of(getattr(self.sent, f"{self._what()}_bytes"), self.row)
        buses = row_of(self.f.t.group.zone_bus, self.row)
        ratio = np.broadcast_to(sizes / buses, (self.f.p.strategy.pp,))
        stage = int(np.argmax(ratio))
        wide = Form(
            "{times} * {bytes} / {bus}",
            times=self._times(),
            bytes=self.f.counted(
                "bytes_of_gpu", np.broadcast_to(sizes, ratio.shape)[stage], unit="bytes", where="[X7]", stage=stage
            ),
            bus=self.f.follows(
                f"stage[{stage}].rate.zone_bus",
                np.broadcast_to(buses, ratio.shape)[stage],
                Words("rate_replicas"),
                "bytes/s",
            ),
        )
        return Form("max({inside}, {wide})", inside=self.inside(), wide=wide)

    def exposed(self, row: Traffic) -> Form:
        """The row's share of what the exchange adds to the step."""
        f = self.f
        every = {
            "gradients": self.scattered * top(self.sent.reduce, self.row),
            "weights": self.gathered * top(self.sent.gather, self.row),
        }
        part = every[self.kind] / (sum(every.values()) or 1.0) if self.zero >= 3 else float(self.kind == "gradients")
        own = {"exposed": f.part(self.kind)}
        text = "{exposed}"
        if f.prediction.breakdown_s["sharding"] and part:
            own["sharding"] = f.part("sharding")
            own["part"] = f.counted("part_of_sharding", part, unit="share", where="[X7]")
            text = "({exposed} + {sharding} * {part})"
        inside, across = self.inside(), self.across()
        if not across.value:
            return Form(text, **own)
        share = Form("{across} / ({inside} + {across})", inside=inside, across=across)
        if " > " not in row.link:
            return Form(f"{text} * (1 - {{share}})", share=share, **own)
        edges = sum(one.kind == self.kind and " > " in one.link for one in f.prediction.communication)
        count = f.counted("edges", edges, where="[T13]")
        return Form(f"{text} * {{share}} / {{edges}}", share=share, edges=count, **own)

    def messages(self, row: Traffic) -> Form:
        """The row's messages of one GPU."""
        if " > " not in row.link:
            return Form("{times}", times=self._times())
        each = top(getattr(self.sent, f"wan_{self._what()}_messages"), self.row)
        return Form(
            "{zone_times} * {messages}",
            zone_times=self.f.counted("times_a_step_zones", self.wan_often, where="[X7]"),
            messages=self.f.counted("zone_messages", each, where="[X7]"),
        )


def _exposed(f: Facts, row: Traffic) -> Made:
    if row.kind in ("tensor", "context"):
        return Form("{exposed}", exposed=f.part(row.kind)), [], ()
    if row.kind == "expert":
        rows = [one for one in f.prediction.communication if one.kind == "expert"]
        whole = f.counted("busy_of_kind", sum(one.busy_s for one in rows), unit="s", where="[X3]")
        at = f.prediction.communication.index(row)
        own = f.follows(f"communication[{at}].busy_s", row.busy_s, _words(row, "busy_s"))
        return Form("{expert} * {busy} / {busy_all}", expert=f.part("expert"), busy=own, busy_all=whole), [], ()
    if row.kind == "pipeline":
        return _Sends(f).exposed(row.link), [], ()
    if row.kind == "local update":
        zones = f.counted("zones", len(f.p.site.ring), where="placement")
        return Form("{local_update} / {zones}", local_update=f.part("local_update"), zones=zones), [], ()
    return _Replicas(f, row.kind).exposed(row), [], ()


def _averaging(f: Facts) -> Form:
    local = f.p.strategy.local_update
    assert local is not None
    size = parameters(f.p.case.model).total * DTYPE_BYTES[local.dtype] / local.fragments
    return Form(
        "{exchange} * {fragments} / {steps}",
        exchange=f.counted(
            "zone_exchange",
            float(f.p.site.zone_exchange_s(size)[1]),
            unit="s",
            where="[T14]",
            zones=len(f.p.site.ring),
        ),
        **_averages(f),
    )


def _averages(f: Facts) -> dict[str, Given]:
    local = f.p.strategy.local_update
    assert local is not None
    where = "strategy.local_update"
    return {
        name: Given(
            value=float(getattr(local, name)), words=Words(f"local_{name}"), origin="scenario", where=f"{where}.{name}"
        )
        for name in ("fragments", "steps")
    }


def _messages(f: Facts, row: Traffic) -> Made:
    if row.kind == "tensor":
        return _tensor_calls(f), [], _pace(f)
    if row.kind == "context":
        form = Form("{passes} * {m} * {layers} / {pp} * ({cp} - 1)", **_calls(f, 3.0, "layers"), cp=f.work("cp"))
        return form, [], ()
    if row.kind == "expert":
        return Form("{passes} * {m} * {layers} / {pp}", **_calls(f, 4.0, "moe_layers")), [], ()
    if row.kind == "pipeline":
        terms = _Sends(f).messages(row.link)
        return total([term.form for term in terms]), terms, (Words("note_busiest_replica"),)
    if row.kind == "local update":
        zones = f.counted("zones", len(f.p.site.ring), where="placement")
        return Form("2 * ({zones} - 1) * {fragments} / {steps}", zones=zones, **_averages(f)), [], ()
    return _Replicas(f, row.kind).messages(row), [], ()
