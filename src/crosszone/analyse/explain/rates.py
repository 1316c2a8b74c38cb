"""Rates of one GPU explained: products, memory, fast link and network; and sizes that many formulas share."""

from __future__ import annotations

from crosszone.analyse.explain.explanation import Draft
from crosszone.analyse.explain.facts import Facts
from crosszone.analyse.explain.form import Form, Given, Words
from crosszone.cost.columns import MXFP8, PATH_BITS, ROWWISE


def constant(key: str, value: float, where: str, unit: str = "") -> Given:
    """A number that stands in the formula itself."""
    return Given(value=value, words=Words(key), unit=unit, origin="constant", where=where)


def tokens(f: Facts) -> Form:
    """Tokens of a micro-batch on this GPU."""
    parts = {name: f.work(name) for name in ("micro_batch", "seq", "cp")}
    return Form("{micro_batch} * {seq} / {cp}" if parts["cp"].value > 1 else "{micro_batch} * {seq}", **parts)


def over_tp(f: Facts, of: str, **inputs: Given) -> Form:
    """Something that tensor parallelism cuts."""
    t = f.work("tp")
    return Form(f"{of} / {{tp}}" if t.value > 1 else of, tp=t, **inputs)


def split(f: Facts) -> Form:
    """Share of what tensor parallelism leaves whole that a GPU holds."""
    divided = f.at(f.batch.work.sequence_parallel) > 0 and f.at(f.batch.work.tp) > 1
    return Form("1 / {tp}", tp=f.work("tp")) if divided else Form("1")


def linear_rate(f: Facts) -> Draft:
    """FLOP/s of the linear layers in the precision of the job. [O1]"""
    path = f.at(f.batch.work.path)
    names = ["matmul"]
    if path < 16:
        names = ["matmul_fp8", *{4: ["nvfp4"], MXFP8: ["mxfp8"], ROWWISE: ["rowwise"]}.get(int(path), [])]
    shares = {name: f.k(name) for name in names}
    form = Form(" * ".join(f"{{{name}}}" for name in (*names, "peak")), **shares, peak=f.gpu("flops_path"))
    return Draft(words=Words("rate_linear"), formula="O1", value=f.at(f.t.layer.linear_rate), unit="FLOP/s", form=form)


def memory_rate(f: Facts) -> Draft:
    """Bytes/s that kernels bound by memory reach. [O4]"""
    form = Form("{memory} * {memory_bytes_per_s}", memory=f.k("memory"), memory_bytes_per_s=f.gpu("memory_bytes_per_s"))
    return Draft(words=Words("rate_memory"), formula="O4", value=f.at(f.t.layer.memory_rate), unit="bytes/s", form=form)


def network_rate(f: Facts) -> Draft:
    """Bytes/s of a GPU's share of the network. [X2]"""
    nodes = f.gpu("nodes")
    form = Form(
        "{nic} * {nic_bytes_per_s} / (1 + {nic_spread} * log2({nodes}))",
        nic=f.k("nic"),
        nic_bytes_per_s=f.gpu("nic_bytes_per_s"),
        nic_spread=f.k("nic_spread"),
        nodes=nodes,
    )
    return Draft(words=Words("rate_network"), formula="X2", value=f.at(f.t.layer.nic_rate), unit="bytes/s", form=form)


def link_rate(f: Facts) -> Draft:
    """Bytes/s of collectives over the fast link, or PCIe where there is none. [X1]"""
    form = Form("{link} * {link_bytes_per_s}", link=f.k("link"), link_bytes_per_s=f.gpu("link_bytes_per_s"))
    return Draft(words=Words("rate_link"), formula="X1", value=form.value, unit="bytes/s", form=form)


RATES = {"linear": linear_rate, "memory": memory_rate, "network": network_rate, "link": link_rate}


def rate(f: Facts, name: str) -> Given:
    """One of the rates as an input."""
    found = RATES[name](f)
    return f.follows(f.here(f"rate.{name}"), found.value, found.words, found.unit)


def peak_16(f: Facts) -> Given:
    """Peak of attention and head."""
    fp32 = f.at(f.batch.work.path) == PATH_BITS["fp32"]
    return f.gpu("flops_path" if fp32 else "flops_16")
