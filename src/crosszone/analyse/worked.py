"""Formulas with numbers put in: how each row of traffic comes about, so that anyone can work it out again.

An expression holds only numbers, + - * / ** and brackets; its value is the bytes of the row. It is put together from
the scenario's own figures (layers, widths, degrees, parameters held), not from the bytes it should give.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from crosszone.cost.replicas import ring_members
from crosszone.inputs.parameters import parameters
from crosszone.predict.cells import cell, row_of, top
from crosszone.predict.local_update import DTYPE_BYTES
from crosszone.predict.prediction import Kind, Traffic
from crosszone.predict.predictor import Predictor
from crosszone.predict.traffic import FAST, NETWORK

FORMULAS: dict[Kind, str] = {
    "tensor": "X1",
    "context": "X4",
    "expert": "X3",
    "pipeline": "X8",
    "gradients": "X7",
    "weights": "X7",
    "local update": "V5",
}
"""The formula of each kind in docs/formulas.md."""


def worked_bytes(p: Predictor, row: Traffic) -> str:
    """The bytes of a row as an expression of the numbers that go in. [A1]"""
    match row.kind:
        case "tensor":
            return _tensor(p)
        case "context":
            return _context(p)
        case "expert":
            return _expert(p, row.link)
        case "pipeline":
            return _pipeline(p, row.link)
        case "local update":
            return _local_update(p)
    return _replicas(p, row)


def product(*factors: float | str) -> str:
    """The factors multiplied; those of 1 are left out."""
    kept = [factor for factor in factors if factor != 1]
    if len(kept) == 1 and isinstance(kept[0], str):
        return kept[0]
    return " * ".join(map(number, kept)) or "1"


def number(value: float | str) -> str:
    """A number as it stands in an expression, a sum in brackets."""
    if isinstance(value, str):
        return f"({value})" if is_sum(value) else value
    return repr(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def is_sum(text: str) -> bool:
    """There is a sum or difference outside all brackets."""
    depth = 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if depth == 0 and sign in "+-":
            return True
    return False


def _tokens(p: Predictor) -> str:
    """Tokens of a micro-batch on one context-parallel rank."""
    s = p.strategy
    size = product(s.micro_batch, p.case.job.seq_len)
    return size if s.cp == 1 else f"{size} / {s.cp}"


def _all_micro_batches(p: Predictor) -> int:
    return int(p.site.micro_batches.sum())


def _word(p: Predictor) -> float:
    return float(p.batch.work.word)


def _tensor(p: Predictor) -> str:
    s, model = p.strategy, p.case.model
    count = (1 if model.parallel_residual else 2) * (2 if s.recompute == "full" else 1) + 2
    calls = f"{model.layers} * {count} + 2"
    ring = f"2 * ({s.tp} - 1) / {s.tp}"
    return product(s.tp, s.cp, _all_micro_batches(p), calls, ring, _word(p), _tokens(p), model.hidden)


def _context(p: Predictor) -> str:
    s, model = p.strategy, p.case.model
    heads = model.heads / s.tp if model.mla else max(model.kv_heads / s.tp, 1.0)
    widths = f"{model.qk_head_dim} + {model.v_head_dim}"
    ranks = product(s.tp, s.cp, _all_micro_batches(p))
    return product(3, model.layers, ranks, _word(p), _tokens(p), heads, widths, f"{s.cp} - 1")


def _expert(p: Predictor, link: str) -> str:
    s, model = p.strategy, p.case.model
    assert model.moe is not None
    size = product(_word(p), _tokens(p), f"{model.hidden} / {s.tp}")
    inside = min(max(min(p.site.groups[g].domain for g in p.site.groups_in_use), 1), s.ep)
    domains = s.ep / inside
    if link == FAST:
        part = product(model.moe.top_k, f"1 - 1 / {s.ep}")
    else:
        part = product(domains - 1, f"1 - (1 - 1 / {number(domains)}) ** {model.moe.top_k}")
    return product(4, model.moe_layers, s.tp, s.cp, _all_micro_batches(p), size, part)


def _pipeline(p: Predictor, link: str) -> str:
    """Messages of all replicas over the link, times those of a tensor- and context-parallel group."""
    s, site, t = p.strategy, p.site, p.step.times
    zones, names = site.zone[:, :, 0, 0].tolist(), [zone.name for zone in site.cluster.zones]
    counts: dict[str, int] = defaultdict(int)
    for stage in range(s.pp if site.wraps else s.pp - 1):
        rounds = s.interleave - (stage == s.pp - 1)
        for kind, (replica, alike) in enumerate(zip(*site.kinds, strict=True)):
            sent = int(site.kind_micro_batches[kind]) * rounds * int(alike)
            a, b = zones[stage][replica], zones[(stage + 1) % s.pp][replica]
            inside = FAST if site.boundary_fast(stage, replica) else NETWORK
            ways = (f"{names[a]} > {names[b]}", f"{names[b]} > {names[a]}") if a != b else (inside, inside)
            for way in ways:
                counts[way] += sent
    cut = cell(t.send_bytes, p.row, 0) / s.interleave / (_word(p) * _token_count(p) * p.case.model.hidden)
    part = "1" if abs(cut - 1) < 1e-9 else f"1 / {round(1 / cut)}"
    activation = product(_word(p), _tokens(p), p.case.model.hidden)
    return product(counts[link], activation if cut == 1 else product(activation, part), s.tp, s.cp)


def _token_count(p: Predictor) -> float:
    return p.strategy.micro_batch * p.case.job.seq_len / p.strategy.cp


def _replicas(p: Predictor, row: Traffic) -> str:
    """What one GPU of each stage sends inside its zone, all GPUs together; or what crosses an edge between zones."""
    s = p.strategy
    each, mean = (p.row_micro_batches, _all_micro_batches(p) / (s.dp or 1)) if s.pp == 1 else (1, 1.0)
    sums = _Sums(p, reduced=row.kind == "gradients")
    if " > " in row.link:
        return product(sums.often(each, between=True), sums.between())
    often = sums.often(mean, between=False)
    inner, outer = product(often, sums.inside()), sums.outer()
    return product(s.tp, s.cp, s.dp or 1, f"{inner} + {outer}" if outer else inner)


class _Sums:
    """Sums of gradients, or gathers of weights: how often, over how many, and how much. [X7]"""

    def __init__(self, p: Predictor, *, reduced: bool):
        self.p, self.reduced = p, reduced
        self.group, self.held, self.work = p.step.times.group, p.step.times.held, p.batch.work
        self.zero, ranks = p.strategy.zero or 0, p.site.shard_ranks
        self.sharded = self.zero > 0 and ranks > 1
        self.shared = int(top(self.group.shared, p.row))
        self.several = self.sharded and ranks * p.strategy.cp < self.shared
        self.each = top(self.work.wire_bytes if reduced else self.work.gathered, p.row)

    def often(self, micro_batches: float, *, between: bool) -> float:
        """Times a step."""
        p = self.p
        if not self.reduced:
            return 2.0 * micro_batches if self.zero >= 3 else 1.0
        scatters = self.zero >= 2 and (p.site.shard_ranks > 1 or p.strategy.dp == 1)
        return 1.0 if not scatters or (between and self.several) else micro_batches

    def inside(self) -> str:
        """Bytes of one GPU of each stage inside its zone: a ring twice where nothing is sharded, else once."""
        zone = row_of(self.group.zone, self.p.row)
        inner = np.minimum(row_of(self.group.inner, self.p.row), zone)
        members = np.where(inner < zone, inner, zone) if self.sharded else zone
        passes = 2 if self.reduced and not self.sharded else 1
        shared = self._terms(self.held.shared, members, passes)
        experts = self._terms(self.held.experts, row_of(self.group.experts, self.p.row), passes)
        return " + ".join(filter(None, (shared, experts))) or "0"

    def outer(self) -> str:
        """Bytes of one GPU of each stage among the sets of states of its zone."""
        if not (self.sharded and self.reduced):
            return ""
        row = self.p.row
        zone, inner = (row_of(x, row) for x in (self.group.zone, self.group.inner))
        held = row_of(self.held.shared, row)
        terms = [
            product(2, f"({number(z / i)} - 1) / {number(z / i)}", float(size), self.each) + f" / {number(i)}"
            for z, i, size in zip(*np.broadcast_arrays(zone, inner, held), strict=True)
            if i < z and size > 0
        ]
        return " + ".join(terms)

    def between(self) -> str:
        """Bytes over one edge between zones, of all stages whose replicas lie in several."""
        p, work, links = self.p, self.work, self.p.batch.links
        zones = np.broadcast_to(row_of(links.dp_zones, p.row), (p.strategy.pp,))
        crosses = zones > 1
        shared = row_of(self.held.shared, p.row) * top(work.tp, p.row)
        experts = row_of(self.held.experts, p.row) * top(work.ep, p.row) * top(work.expert_tp, p.row)
        total, more = (float(np.where(crosses, part, 0.0).sum()) for part in (shared, experts))
        if p.strategy.communication.algorithm == "tree" and not self.sharded:
            return product(total + more, self.each)
        stage, count = int(np.argmax(zones)), int(zones.max())
        members = float(top(ring_members(work, self.group, links, self.sharded), p.row))
        copies = max(cell(self.group.experts, p.row, stage) * count, count) if members > count else count
        passes = 1 if self.sharded and not self.several else 2
        rings = [(members, total), (copies, more)]
        terms = [product(passes, f"({number(n)} - 1) / {number(n)}", size, self.each) for n, size in rings if size]
        return " + ".join(terms)

    def _terms(self, held: Any, members: Any, passes: int) -> str:
        """Stages with rings of the same length together."""
        sizes, counts = np.broadcast_arrays(row_of(held, self.p.row), members)
        rings: dict[float, float] = defaultdict(float)
        for n, size in zip(counts.tolist(), sizes.tolist(), strict=True):
            if n > 1 and size > 0:
                rings[n] += size
        terms = [product(passes, f"({number(n)} - 1) / {number(n)}", size, self.each) for n, size in rings.items()]
        return " + ".join(terms)


def _local_update(p: Predictor) -> str:
    local = p.strategy.local_update
    assert local is not None
    zones = len(p.site.ring)
    ring = f"2 * ({zones} - 1) / {zones}"
    return product(ring, parameters(p.case.model).total, DTYPE_BYTES[local.dtype], f"1 / {local.steps}")
