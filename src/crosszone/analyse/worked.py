"""Formulas with numbers put in: how each row of traffic comes about, so that anyone can work it out again.

An expression holds only numbers, + - * / and brackets; its value is the bytes of the row.
"""

from __future__ import annotations

from collections import defaultdict

from crosszone.cost.collectives import ring_all_reduce_bytes
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
    return " * ".join(map(_number, kept)) or "1"


def _number(value: float | str) -> str:
    if isinstance(value, str):
        return f"({value})" if any(sign in value for sign in "+-") and not value.startswith("(") else value
    return repr(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


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
        part = product(domains - 1, f"1 - (1 - 1 / {_number(domains)}) ** {model.moe.top_k}")
    return product(4, model.moe_layers, s.tp, s.cp, _all_micro_batches(p), size, part)


def _pipeline(p: Predictor, link: str) -> str:
    """Messages of all replicas over the link, times those of a tensor- and context-parallel group."""
    s, site, t = p.strategy, p.site, p.step.times
    zones, names = site.zone[:, :, 0, 0].tolist(), [zone.name for zone in site.cluster.zones]
    counts: dict[str, int] = defaultdict(int)
    for stage in range(s.pp if site.wraps else s.pp - 1):
        rounds = s.interleave - (stage == s.pp - 1)
        for kind, (replica, number) in enumerate(zip(*site.kinds, strict=True)):
            sent = int(site.kind_micro_batches[kind]) * rounds * int(number)
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
    """What one GPU of each stage sends, or what a zone sends to the next."""
    s, sent, at = p.strategy, p.step.times.sent, p.row
    reduced = row.kind == "gradients"
    zero = s.zero or 0
    alone = s.pp == 1
    each, mean = (p.row_micro_batches, _all_micro_batches(p) / (s.dp or 1)) if alone else (1, 1.0)
    scatters = zero >= 2 and (p.site.shard_ranks > 1 or s.dp == 1)
    if " > " in row.link:
        often = (1 if bool(sent.several.all()) else each if scatters else 1) if reduced else 2 * each * (zero >= 3) or 1
        size = top(sent.zone_reduce_bytes if reduced else sent.zone_gather_bytes, at)
        return product(often, _between(p, size, reduced))
    ranks = (s.tp, s.cp, s.dp or 1)
    if reduced:
        inner = product(mean if scatters else 1, float(row_of(sent.reduce_bytes, at).sum()))
        outer = float(row_of(sent.outer_bytes, at).sum())
        return product(*ranks, f"{inner} + {_number(outer)}" if outer else inner)
    return product(*ranks, 2.0 * mean if zero >= 3 else 1, float(row_of(sent.gather_bytes, at).sum()))


def _between(p: Predictor, size: float, reduced: bool) -> str:
    """Bytes a zone sends once: passes x (n - 1) / n of the whole model's gradients or weights."""
    work = p.batch.work
    each = top(work.wire_bytes if reduced else work.gathered, p.row)
    zones = max(2, len(p.site.ring))
    whole = p.step.times.held.shared * work.tp + p.step.times.held.experts * work.ep * work.expert_tp
    total = float(row_of(whole, p.row).sum())
    flat = p.strategy.communication.reduce == "flat"
    members = (p.strategy.dp or 1) * p.strategy.cp if flat else zones
    for count in (members, zones):
        once = float(ring_all_reduce_bytes(total * each, count)) / 2.0
        for passes in (1, 2):
            if once and abs(size / (passes * once) - 1) < 1e-9:
                return product(passes, f"({count} - 1) / {count}", total, each)
    return product(float(size / (total * each)), total, each)


def _local_update(p: Predictor) -> str:
    local = p.strategy.local_update
    assert local is not None
    zones = len(p.site.ring)
    ring = f"2 * ({zones} - 1) / {zones}"
    return product(ring, parameters(p.case.model).total, DTYPE_BYTES[local.dtype], f"1 / {local.steps}")
