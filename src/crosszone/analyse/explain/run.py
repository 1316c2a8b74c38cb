"""Figures of the whole run explained: length, money, energy, and what failures and checkpoints leave."""

from __future__ import annotations

from crosszone.analyse.explain.explanation import Draft, Term
from crosszone.analyse.explain.facts import Facts
from crosszone.analyse.explain.form import Form, Given, Words, total
from crosszone.analyse.explain.headline import STEP
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.parameters import parameters
from crosszone.inputs.states import state_bytes
from crosszone.predict.run import (
    grams_per_kwh,
    power_entries,
    usd_per_gb,
    usd_per_gpu_hour,
    used_groups,
)
from crosszone.predict.traffic import traffic_of


def _figure(f: Facts, name: str, unit: str = "") -> Given:
    return f.follows(f"run.{name}", getattr(f.prediction.run, name), Words(f"run_{name}"), unit)


def _good(f: Facts, name: str, unit: str = "") -> Given:
    path, value = f"run.goodput.{name}", getattr(f.prediction.run.goodput, name)
    return f.follows(path, value, Words(f"goodput_{name}"), unit)


def _triple(f: Facts, name: str, side: str, unit: str) -> Given:
    return f.triple(f"run.{name}", getattr(f.prediction.run, name), Words(f"run_{name}"), unit, side)


def _power(name: str, unit: str = "") -> Given:
    """A figure of `cost/power.yaml`."""
    entry = power_entries()[name]
    where = f"cost/power.yaml ({entry['origin']}: {entry['source']})"
    return Given(value=float(entry["value"]), words=Words(f"power_{name}"), unit=unit, origin="profile", where=where)


def _draft(f: Facts, name: str, formula: str, unit: str, form: Form, side: str = "expected", **more: object) -> Draft:
    which = getattr(f.prediction.run, name)
    words = Words(f"run_{name}") if side == "expected" else Words(f"end_{side}", {"of": Words(f"run_{name}")})
    ends = {"low": which.low, "high": which.high} if hasattr(which, "low") and side == "expected" else {}
    value = getattr(which, side) if hasattr(which, "low") else which
    return Draft(words=words, formula=formula, value=value, unit=unit, form=form, **ends, **more)  # type: ignore[arg-type]


def steps(f: Facts) -> Draft:
    """Optimizer steps of the run, rounded up. [J2]"""
    job = f.p.case.job
    if job.tokens is None:
        epochs = Given(value=job.epochs or 1.0, words=Words("job_epochs"), origin="scenario", where="job.epochs")
        corpus = Given(
            value=job.corpus_tokens or 0.0,
            words=Words("job_corpus"),
            unit="tokens",
            origin="scenario",
            where="job.corpus_tokens",
        )
        tokens = Form("{corpus} * {epochs}", corpus=corpus, epochs=epochs)
    else:
        given = Given(value=job.tokens, words=Words("job_tokens"), unit="tokens", origin="scenario", where="job.tokens")
        tokens = Form("{tokens}", tokens=given)
    form = Form(
        "ceil({tokens} / ({seq_len} * {global_batch}))",
        tokens=tokens,
        seq_len=f.work("seq"),
        global_batch=f.work("global_batch"),
    )
    return _draft(f, "steps", "J2", "", form)


def days(f: Facts, side: str = "expected") -> Draft:
    """Steps times their length, over what failures and checkpoints leave. [E2]"""
    form = Form(
        "{steps} * {step_time_s} / 86400 / {goodput}",
        steps=_figure(f, "steps"),
        step_time_s=f.triple("step_time_s", f.prediction.step_time_s, STEP, "s", side),
        goodput=_good(f, "share", "share"),
    )
    return _draft(f, "days", "E2", "days", form, side)


def gpu_hours(f: Facts, side: str = "expected") -> Draft:
    """GPUs in use times hours. [E2]"""
    gpus = f.follows("gpus", f.prediction.gpus, Words("gpus"), "")
    form = Form("{days} * 24 * {gpus}", days=_triple(f, "days", side, "days"), gpus=gpus)
    return _draft(f, "gpu_hours", "E2", "GPU-hours", form, side)


def usd(f: Facts, side: str = "expected") -> Draft:
    """GPUs by the hour, and what leaves the zones. [E2]"""
    run = f.prediction.run
    known = run.usd_egress is not None
    form = Form(
        "{days} * 24 * {usd_per_hour}" + (" + {egress}" if known else ""),
        days=_triple(f, "days", side, "days"),
        usd_per_hour=_figure(f, "usd_per_hour", "USD/hour"),
        **({"egress": _figure(f, "usd_egress", "USD")} if known else {}),
    )
    notes = () if known else (Words("note_egress_unknown"),)
    return _draft(f, "usd", "E2", "USD", form, side, notes=notes)


def usd_per_hour(f: Facts) -> Draft:
    """Price of all GPUs in use. [E2]"""
    terms = []
    for at, (zone, group, count) in enumerate(used_groups(f.p.site)):
        typed = group.usd_per_gpu_hour is not None
        source = group.gpu.source_of("usd_per_hour")
        price = Given(
            value=usd_per_gpu_hour(group) or 0.0,
            words=Words("price_of", {"gpu": group.gpu.name, "zone": zone.name}),
            unit="USD/hour",
            origin="scenario" if typed else "catalogue",
            where="usd_per_gpu_hour" if typed else f"gpus/{group.gpu.name}" + (f" [{source}]" if source else ""),
        )
        number = f.counted("gpus_in", count, where="placement", gpu=group.gpu.name, zone=zone.name)
        form = Form(f"{{gpus_{at}}} * {{price_{at}}}", **{f"gpus_{at}": number, f"price_{at}": price})
        terms.append(Term(words=number.words, form=form))
    return _draft(f, "usd_per_hour", "E2", "USD/hour", total([term.form for term in terms]), terms=terms)


def usd_egress(f: Facts) -> Draft:
    """Bytes that leave each zone over the run, each direction at its price. [E2]"""
    _, egress = traffic_of(f.p, f.prediction.breakdown_s)
    names = [zone.name for zone in f.p.site.cluster.zones]
    terms = []
    for at, ((a, b), size) in enumerate(egress.items()):
        pair = {"link": f"{names[a]} > {names[b]}"}
        link = f.p.site.links[min(a, b), max(a, b)]
        key = "usd_per_gb" if a < b else "usd_per_gb_back"
        parts = {
            f"bytes_{at}": f.counted("egress_bytes", size, unit="bytes", where="[A1]", **pair),
            "steps": _figure(f, "steps"),
            f"price_{at}": Given(
                value=usd_per_gb(f.p.site, a, b) or 0.0,
                words=Words("egress_price", pair),
                unit="USD/GB",
                origin="scenario" if link.origins[key] == "typed" else "catalogue",
                where=link.origins[key],
            ),
        }
        form = Form(f"{{bytes_{at}}} / 1e9 * {{steps}} * {{price_{at}}}", **parts)
        terms.append(Term(words=Words("egress_of", pair), form=form))
    return _draft(f, "usd_egress", "E2", "USD", total([term.form for term in terms]), terms=terms)


def kwh(f: Facts, side: str = "expected") -> Draft:
    """Power times hours. [E3]"""
    form = Form("{days} * 24 * {kw}", days=_triple(f, "days", side, "days"), kw=_figure(f, "kw", "kW"))
    return _draft(f, "kwh", "E3", "kWh", form, side)


def kw(f: Facts) -> Draft:
    """Power of the GPUs in use with their hosts and sites. [E3]"""
    terms = _power_terms(f)
    return _draft(f, "kw", "E3", "kW", total([term.form for term in terms]), terms=terms)


def _power_terms(f: Facts) -> list[Term]:
    busy = f.follows("shares.compute", f.prediction.shares["compute"], _class("compute"), "share")
    shares = {name: _power(name, "share") for name in ("idle_share", "busy_share", "host_share")}
    draw = Form("{idle_share} + ({busy_share} - {idle_share}) * {compute} + {host_share}", **shares, compute=busy)
    terms = []
    for at, (zone, group, count) in enumerate(used_groups(f.p.site)):
        number = f.counted("gpus_in", count, where="placement", gpu=group.gpu.name, zone=zone.name)
        source = group.gpu.source_of("tdp_w")
        power = Given(
            value=group.gpu.tdp_w or 0.0,
            words=Words("board_power", {"gpu": group.gpu.name}),
            unit="W",
            origin="catalogue",
            where=f"gpus/{group.gpu.name}" + (f" [{source}]" if source else ""),
        )
        pue = Given(
            value=zone.pue or 1.0,
            words=Words("pue", {"zone": zone.name}),
            origin="scenario" if zone.pue else "rule",
            where="cluster.zones[].pue",
        )
        named_parts = {f"gpus_{at}": number, f"tdp_{at}": power, f"pue_{at}": pue}
        form = Form(f"{{gpus_{at}}} * {{tdp_{at}}} * {{draw}} * {{pue_{at}}} / 1000", draw=draw, **named_parts)
        terms.append(Term(words=number.words, form=form))
    return terms


def _class(name: str) -> Words:
    return Words("share_of", {"of": Words(f"class_{name}")})


def co2_kg(f: Facts, side: str = "expected") -> Draft:
    """Energy on the grids of the zones, weighted by their power. [E3]"""
    parts, used = [], used_groups(f.p.site)
    kilowatts = _power_terms(f)
    for at, ((zone, _, _), power) in enumerate(zip(used, kilowatts, strict=True)):
        typed = zone.carbon_g_per_kwh is not None
        source = None if typed or zone.region is None else zone.region.carbon_source
        grid = Given(
            value=grams_per_kwh(zone) or 0.0,
            words=Words("grid_carbon", {"zone": zone.name}),
            unit="g/kWh",
            origin="scenario" if typed else "catalogue",
            where="cluster.zones[].carbon_g_per_kwh"
            if typed
            else f"regions/{zone.region.name if zone.region else ''}" + (f" [{source}]" if source else ""),
        )
        own = f.counted("group_power", power.form.value, unit="kW", where="[E3]", zone=zone.name)
        parts.append((f"grams_{at}", grid, f"kw_{at}", own))
    weighted = " + ".join(f"{{{grams}}} * {{{own}}}" for grams, _, own, _ in parts)
    inputs = {name: given for grams, grid, own, power in parts for name, given in ((grams, grid), (own, power))}
    form = Form(
        f"{{kwh}} * ({weighted}) / {{kw}} / 1000",
        kwh=_triple(f, "kwh", side, "kWh"),
        kw=_figure(f, "kw", "kW"),
        **inputs,
    )
    return _draft(f, "co2_kg", "E3", "kg", form, side)


def _goodput(f: Facts, name: str, unit: str, form: Form, **more: object) -> Draft:
    value = getattr(f.prediction.run.goodput, name)
    return Draft(words=Words(f"goodput_{name}"), formula="E1", value=value, unit=unit, form=form, **more)  # type: ignore[arg-type]


def goodput_share(f: Facts) -> Draft:
    """Share of the time that makes progress. [E1]"""
    form = Form(
        "1 / (1 + {checkpoint_s} / {interval_s} + {lost_s} / ({mtbf_hours} * 3600))",
        checkpoint_s=_good(f, "checkpoint_s", "s"),
        interval_s=_good(f, "interval_s", "s"),
        lost_s=_good(f, "lost_per_failure_s", "s"),
        mtbf_hours=_good(f, "mtbf_hours", "hours"),
    )
    return _goodput(f, "share", "share", form)


def mtbf_hours(f: Facts) -> Draft:
    """One over the failures of all GPUs in use. [E1]"""
    parts, names = {}, []
    for at, (_, group, count) in enumerate(used_groups(f.p.site)):
        rate = catalogue().failure_rate(group.gpu)
        parts[f"gpus_{at}"] = f.counted("gpus_of", count, where="placement", gpu=group.gpu.name)
        parts[f"failures_{at}"] = Given(
            value=rate.failures_per_1000_gpu_days,
            words=Words("failures_of", {"gpu": group.gpu.name}),
            origin="catalogue",
            where=f"{rate.origin} [{rate.source}]",
        )
        names.append(f"{{gpus_{at}}} * {{failures_{at}}} / 1000")
    return _goodput(f, "mtbf_hours", "hours", Form(f"24 / ({' + '.join(names)})", **parts))


def checkpoint_gb(f: Facts) -> Draft:
    """Weights, master weights and moments of the whole model. [E1]"""
    states = state_bytes(f.p.case.job, framework=f.p.framework.name)
    where = "inputs/numerics.yaml [J3]"
    form = Form(
        "{parameters} * ({weights} + {master} + {moments}) / 1e9",
        parameters=f.counted("parameters", parameters(f.p.case.model).total, where="model [P1]"),
        weights=f.counted("bytes_weights", states.weights, unit="bytes", where=where),
        master=f.counted("bytes_master", states.master, unit="bytes", where=where),
        moments=f.counted("bytes_moments", states.moments, unit="bytes", where=where),
    )
    return _goodput(f, "checkpoint_gb", "GB", form)


def checkpoint_s(f: Facts) -> Draft:
    """Its size over the storage rate of all nodes in use. [E1]"""
    form = Form(
        "{checkpoint_gb} / ({rate} * {nodes})",
        checkpoint_gb=_good(f, "checkpoint_gb", "GB"),
        rate=_power("checkpoint_gb_per_s_per_node", "GB/s"),
        nodes=f.counted("nodes_in_use", max(1, min(f.p.site.nodes, f.prediction.gpus)), where="placement"),
    )
    return _goodput(f, "checkpoint_s", "s", form)


def interval_s(f: Facts) -> Draft:
    """Young's interval. [E1]"""
    form = Form(
        "sqrt(2 * {checkpoint_s} * {mtbf_hours} * 3600)",
        checkpoint_s=_good(f, "checkpoint_s", "s"),
        mtbf_hours=_good(f, "mtbf_hours", "hours"),
    )
    return _goodput(f, "interval_s", "s", form)


def lost_per_failure_s(f: Facts) -> Draft:
    """Half an interval and a restart. [E1]"""
    form = Form(
        "{interval_s} / 2 + {restart_s}", interval_s=_good(f, "interval_s", "s"), restart_s=_power("restart_s", "s")
    )
    return _goodput(f, "lost_per_failure_s", "s", form)
