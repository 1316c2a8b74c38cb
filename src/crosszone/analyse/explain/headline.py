"""Headline figures explained: step time, speed, use of the GPUs, shares of the step, and their ranges."""

from __future__ import annotations

from crosszone.analyse.explain.explanation import Draft, Term
from crosszone.analyse.explain.facts import Facts
from crosszone.analyse.explain.form import Form, Given, Words, total
from crosszone.cost.bands import band_parts
from crosszone.inputs.cluster import NodeGroup
from crosszone.inputs.flops import TRAINING_PASSES, forward_flops_per_token
from crosszone.inputs.states import compute_precision
from crosszone.predict.breakdown import COMMUNICATION, COMPUTE, HOST
from crosszone.predict.run import used_groups

STEP = Words("step_time_s")
FLIPPED = {"low": "high", "expected": "expected", "high": "low"}
"""The end of the step's range that makes an end of a rate."""
CLASSES = {"compute": COMPUTE, "communication": COMMUNICATION, "pipeline": ("bubble",), "host": HOST}


def step_time(f: Facts, side: str = "expected") -> Draft:
    """The parts of the step added up; the ends of its range: the links' band times the profile's error. [V3]"""
    step = f.prediction.step_time_s
    if side == "expected":
        terms = [_part(f, name) for name, seconds in f.prediction.breakdown_s.items() if seconds]
        form = total([term.form for term in terms])
        return Draft(
            words=STEP,
            formula="V3",
            value=step.expected,
            unit="s",
            form=form,
            terms=terms,
            notes=(Words("note_parts"),),
            low=step.low,
            high=step.high,
        )
    at = f.p.step_s[0 if side == "low" else -1]
    form = Form(
        ("min" if side == "low" else "max") + "({at_rtt}, {expected}) * {factor}",
        at_rtt=f.simulated("step_at_rtt", at, end=Words(side)),
        expected=f.triple("step_time_s", step, STEP, "s"),
        factor=f.follows(f"basis.{side}", getattr(f.prediction.basis, side), Words(f"basis_{side}"), ""),
    )
    words = Words(f"end_{side}", {"of": STEP})
    return Draft(
        words=words, formula="V3", value=getattr(step, side), unit="s", form=form, notes=(Words("note_range"),)
    )


def _part(f: Facts, name: str) -> Term:
    given = f.part(name)
    return Term(words=given.words, form=Form(f"{{{name}}}", **{name: given}), figure=given.figure)


def band_factor(f: Facts, side: str) -> Draft:
    """The profile's own error, the widest of those in use. [Q6]"""
    widths = [_widths(f, one.gpu_measured, one.stack_measured, side) for one in f.p.profile.values()]
    used = max(widths, key=lambda parts: sum(part.value**2 for part in parts.values()))
    squares = " + ".join(f"{{{name}}} ** 2" for name in used)
    sign = "-" if side == "low" else ""
    return Draft(
        words=Words(f"basis_{side}"),
        formula="Q6",
        value=getattr(f.prediction.basis, side),
        form=Form(f"exp({sign}sqrt({squares}))", **used),
    )


def _widths(f: Facts, gpu_measured: bool, stack_measured: bool, side: str) -> dict[str, Given]:
    applies = {"moe": f.p.case.model.moe is not None, "stack": not stack_measured, "gpu": not gpu_measured}
    return widths_of("step", side, [name for name, on in applies.items() if on])


def widths_of(of: str, side: str, applies: list[str]) -> dict[str, Given]:
    """The log widths of a band that apply, by name. [Q6]"""
    parts = band_parts()[of]
    return {
        name: Given(
            value=float(parts[name][side]),
            words=Words(f"width_{name}"),
            origin="profile",
            where="cost/profiles/bands.yaml",
        )
        for name in ("base", *applies)
    }


def tokens_per_s(f: Facts, side: str = "expected") -> Draft:
    """Tokens of a step over its time. [J1]"""
    form = Form("{seq_len} * {global_batch} / {step_time_s}", **_tokens(f), step_time_s=_step(f, side))
    return _rate(f, "tokens_per_s", "J1", "tokens/s", form, side)


def _tokens(f: Facts) -> dict[str, Given]:
    return {"seq_len": f.work("seq"), "global_batch": f.work("global_batch")}


def _step(f: Facts, side: str) -> Given:
    return f.triple("step_time_s", f.prediction.step_time_s, STEP, "s", FLIPPED[side])


def _rate(f: Facts, name: str, formula: str, unit: str, form: Form, side: str) -> Draft:
    which = getattr(f.prediction, name)
    words = Words(name) if side == "expected" else Words(f"end_{side}", {"of": Words(name)})
    ends = {"low": which.low, "high": which.high} if side == "expected" else {}
    return Draft(words=words, formula=formula, value=getattr(which, side), unit=unit, form=form, **ends)


def tokens_per_s_per_gpu(f: Facts, side: str = "expected") -> Draft:
    """The same for one GPU in use. [J1]"""
    all_gpus = f.triple("tokens_per_s", f.prediction.tokens_per_s, Words("tokens_per_s"), "tokens/s", side)
    form = Form("{tokens_per_s} / {gpus}", tokens_per_s=all_gpus, gpus=_gpus(f))
    return _rate(f, "tokens_per_s_per_gpu", "J1", "tokens/s", form, side)


def _gpus(f: Facts) -> Given:
    return f.follows("gpus", f.prediction.gpus, Words("gpus"), "")


def tflops_per_gpu(f: Facts, side: str = "expected") -> Draft:
    """Model FLOPs of a GPU over the time of a step. [F1]"""
    form = Form(
        "{model_flops} / {gpus} / {step_time_s} / 1e12",
        model_flops=_flops(f, "model_flops"),
        gpus=_gpus(f),
        step_time_s=_step(f, side),
    )
    return _rate(f, "tflops_per_gpu", "F1", "TFLOP/s", form, side)


def _flops(f: Facts, name: str) -> Given:
    return f.follows(name, getattr(f.p, name), Words(name), "FLOP" if name != "peak_flops" else "FLOP/s")


def mfu(f: Facts, side: str = "expected") -> Draft:
    """Model FLOPs over the peak of all GPUs in use. [V6]"""
    return _use(f, "mfu", "model_flops", side)


def hfu(f: Facts, side: str = "expected") -> Draft:
    """The same with what recomputation repeats. [V6]"""
    return _use(f, "hfu", "hardware_flops", side)


def _use(f: Facts, name: str, flops: str, side: str) -> Draft:
    form = Form(
        f"{{{flops}}} / ({{peak_flops}} * {{step_time_s}})",
        **{flops: _flops(f, flops)},
        peak_flops=_flops(f, "peak_flops"),
        step_time_s=_step(f, side),
    )
    return _rate(f, name, "V6", "share", form, side)


def model_flops(f: Facts) -> Draft:
    """Operations of a step: three times the forward pass of all its tokens. [F1]"""
    forward = forward_flops_per_token(f.p.case.model, f.p.case.job.seq_len)
    parts = {
        name: f.counted("flops_part", value, unit="FLOP", where="model, job.seq_len", part=Words(f"flops_{name}"))
        for name, value in forward.parts.items()
        if value
    }
    passes = Given(value=TRAINING_PASSES, words=Words("training_passes"), origin="constant", where="[F1]")
    names = " + ".join(f"{{{name}}}" for name in parts)
    form = Form(f"{{passes}} * ({names}) * {{seq_len}} * {{global_batch}}", passes=passes, **parts, **_tokens(f))
    return Draft(words=Words("model_flops"), formula="F1", value=f.p.model_flops, unit="FLOP", form=form)


def hardware_flops(f: Facts) -> Draft:
    """Model FLOPs and what recomputation repeats. [V6]"""
    forward = forward_flops_per_token(f.p.case.model, f.p.case.job.seq_len)
    again = {"none": 0.0, "selective": forward.attention_core, "full": forward.total - forward.head}
    repeated = f.counted("flops_repeated", again[f.p.strategy.recompute], unit="FLOP", where="strategy.recompute")
    form = Form(
        "{model_flops} + {repeated} * {seq_len} * {global_batch}",
        model_flops=_flops(f, "model_flops"),
        repeated=repeated,
        **_tokens(f),
    )
    return Draft(words=Words("hardware_flops"), formula="V6", value=f.p.hardware_flops, unit="FLOP", form=form)


def peak_flops(f: Facts) -> Draft:
    """Dense peak of all GPUs in use, in the precision of the job. [V6]"""
    path, terms = compute_precision(f.p.case.job), []
    for at, (group, count) in enumerate(groups_in_use(f)):
        gpu = group.gpu
        source = gpu.source_of("dense_tflops")
        peak = Given(
            value=gpu.peak(path) or 0.0,
            words=Words("peak_of", {"gpu": gpu.name, "path": path}),
            unit="TFLOP/s",
            origin="catalogue",
            where=f"gpus/{gpu.name}" + (f" [{source}]" if source else ""),
        )
        number = f.counted("gpus_of", count, where="placement", gpu=gpu.name)
        form = Form(f"{{gpus_{at}}} * {{peak_{at}}} * 1e12", **{f"gpus_{at}": number, f"peak_{at}": peak})
        terms.append(Term(words=Words("gpus_of", {"gpu": gpu.name}), form=form))
    form = total([term.form for term in terms])
    return Draft(
        words=Words("peak_flops"), formula="V6", value=f.p.peak_flops, unit="FLOP/s", form=form, terms=_several(terms)
    )


def _several(terms: list[Term]) -> list[Term]:
    """Terms are told where there are more than one."""
    return terms if len(terms) > 1 else []


def groups_in_use(f: Facts) -> list[tuple[NodeGroup, int]]:
    """Node groups that hold ranks, with how many."""
    return [(group, count) for _, group, count in used_groups(f.p.site)]


def gpus(f: Facts) -> Draft:
    """Ranks of the strategy. [R1]"""
    form = Form("{tp} * {pp} * {cp} * {dp}", **{name: f.work(name) for name in ("tp", "pp", "cp", "dp")})
    return Draft(words=Words("gpus"), formula="R1", value=f.prediction.gpus, form=form)


def micro_batches(f: Facts) -> Draft:
    """Micro-batches of a replica a step. [R2]"""
    given = f.p.strategy.replica_micro_batches
    if given is not None:
        most = f.counted("micro_batches_given", max(given), where="strategy.replica_micro_batches")
        form = Form("{micro_batches}", micro_batches=most)
    else:
        parts = {name: f.work(name) for name in ("global_batch", "micro_batch", "dp")}
        form = Form("{global_batch} / ({micro_batch} * {dp})", **parts)
    return Draft(words=Words("micro_batches_most"), formula="R2", value=f.prediction.micro_batches, form=form)


def share(f: Facts, name: str) -> Draft:
    """Share of the step in one class of work. [V7]"""
    parts = {one: f.part(one) for one in CLASSES[name]}
    used = {one: given for one, given in parts.items() if given.value} or dict(list(parts.items())[:1])
    top = " + ".join(f"{{{one}}}" for one in used)
    step = f.triple("step_time_s", f.prediction.step_time_s, STEP, "s")
    form = Form(f"({top}) / {{step_time_s}}", **used, step_time_s=step)
    words = Words("share_of", {"of": Words(f"class_{name}")})
    return Draft(words=words, formula="V7", value=f.prediction.shares[name], unit="share", form=form)
