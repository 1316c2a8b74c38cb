"""Evidence: what a prediction rests on, and what its reader should know of that.

Errors of its formulas on kernels timed alone, operator sizes that were never sampled, groups that exchange over layouts
that the profile in use has not timed, and every other notice on a prediction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from crosszone.cost.coefficients import Coefficients
from crosszone.cost.columns import UNFUSED
from crosszone.cost.measured_links import RING_OPS, Group
from crosszone.cost.operator_checks import OperatorError, compute_formula_errors
from crosszone.cost.operator_profile import SIXTEEN_BIT, load_operator_profile
from crosszone.cost.profile import Profile
from crosszone.cost.record import plain
from crosszone.cost.tiers import FREE
from crosszone.errors import Notice
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.job import find_compute_path
from crosszone.inputs.rules import Case
from crosszone.inputs.software import SettledSoftware
from crosszone.predict.memory import list_host_notices
from crosszone.predict.prediction import Memory
from crosszone.predict.run import list_unpriced_egress

if TYPE_CHECKING:
    from crosszone.predict.predictor import Predictor


def collect_notices(p: Predictor, memory: Memory, egress: dict[tuple[int, int], float]) -> list[Notice]:
    """What a reader should know of a prediction, beside what was found when its scenario was read."""
    notices = []
    derived = {
        p.placed.groups[g].gpu.name: profile.family for g, profile in p.profile.items() if not profile.gpu_measured
    }
    for gpu, family in derived.items():
        notices.append(Notice(code="profile_derived", level="warning", params={"gpu": gpu, "family": family}))
    if not all(profile.stack_measured for profile in p.profile.values()):
        notices.append(Notice(code="stack_unmeasured", level="note", params={"stack": p.stack}))
    notices += list_unsampled_operators(p.case, p.gpu_kinds)
    notices += list_unmeasured_groups(p)
    notices += list_memory_notices(p, memory)
    local, compression = p.strategy.local_update, p.strategy.communication.compression
    if local is not None:
        field = "strategy.local_update"
        notices.append(Notice(code="local_update_changes", level="warning", field=field, value=local.steps))
    if compression != "none":
        field = "strategy.communication.compression"
        notices.append(Notice(code="compression_changes", level="warning", field=field, value=compression))
    if p.strategy.pipeline_schedule == "delay-aware":
        notices.append(Notice(code="schedule_simulated_only", level="warning", field="strategy.schedule"))
    unpriced = list_unpriced_egress(p.placed, egress) if p.case.job.steps else []
    if unpriced:  # the run's total leaves this traffic out
        params = {"pairs": unpriced}
        notices.append(Notice(code="egress_price_unknown", level="warning", field="cluster.links", params=params))
    return notices


def list_memory_notices(p: Predictor, memory: Memory) -> list[Notice]:
    """Whether it fits where that is not certain, and what offloading asks of the hosts."""
    notices = list(list_host_notices(p, memory))
    worst = memory.stages[memory.worst_stage]
    params = {
        "stage": worst.stage,
        "needed": round(float(worst.total), 1),
        "limit": round(float(worst.limit), 1),
        "gpu": worst.gpu,
        "probability": f"{100.0 * float(memory.fits_probability):.0f}",
    }
    if memory.verdict == "no" and not any(notice.code == "host_memory_exceeded" for notice in notices):
        notices.append(Notice(code="does_not_fit", level="warning", field="strategy", params=params))
    elif memory.verdict == "tight":
        notices.append(Notice(code="may_not_fit", level="warning", field="strategy", params=params))
    return notices


def list_unmeasured_groups(p: Predictor) -> list[Notice]:
    """A note of the groups whose layout no timed collective has: their links are the catalogue's. [C15]"""
    links = p.profiles.links
    if links is None:
        return []
    w, t, gpu = p.batch.work, p.step.times, p.batch.gpu
    ring = RING_OPS["all_reduce"]
    groups = [
        ("tensor", ring, Group(w.tp, 1.0, gpu)),
        ("context", RING_OPS["all_gather"], Group(w.cp, w.tp, gpu)),
        ("data", ring, Group(t.group.zone, w.dp_stride, gpu)),
        ("expert", ("all_to_all",), Group(w.ep, w.expert_tp, gpu)),
    ]
    if p.strategy.pp > 1 and not p.placed.crosses:
        stride = np.where(p.batch.links.boundary_fast > 0, 1.0, gpu.node_gpus)
        groups.append(("pipeline", ("send_recv",), Group(2.0, stride, gpu)))
    missing = []
    for name, ops, group in groups:
        # any size will do: a layout that was timed at all answers for every size [C15]
        is_measured, _ = links.find_tier(ops, group, 1.0, FREE)
        if not np.all(is_measured | (np.asarray(plain(group.ranks)) <= 1)):
            nodes, local = (np.max(x) for x in group.layout)
            missing.append(f"{name} ({nodes:g} x {local:g})")
    if not missing:
        return []
    params = {"profile": p.profiles.own, "groups": ", ".join(missing)}
    return [Notice(code="collectives_unmeasured", level="note", params=params)]


# Precision in which the kernels of a layer's matmuls were sampled, by that of the job; others: bf16.
MATMUL_DTYPES = {"fp16": "fp16", "fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp8", "fp32": "fp32"}


def list_operator_errors(
    case: Case, profiles: Mapping[Gpu, Profile], software: SettledSoftware
) -> dict[str, dict[str, OperatorError]]:
    """How far off this prediction's own formulas are on kernels timed alone: by GPU kind and family of operators.

    Only families that the case uses, with the coefficients and the attention kernel that it is predicted with; kinds
    that were not sampled are left out.
    """
    kernel = software["attention"]
    operators = tuple(_list_checked_operators(case, kernel))
    by_gpu = {
        gpu.name: _compute_errors(gpu, profile.coefficients, operators, kernel) for gpu, profile in profiles.items()
    }
    return {gpu: dict(errors) for gpu, errors in by_gpu.items() if errors}


@lru_cache(maxsize=512)
def _compute_errors(
    gpu: Gpu, k: Coefficients, operators: tuple[tuple[str, tuple[str, ...]], ...], kernel: str
) -> dict[str, OperatorError]:
    """Remembered: a search and a slider ask again and again with the same coefficients."""
    profile = load_operator_profile(gpu.name)
    if profile is None:
        return {}
    keys = [f"{op} {dtype}" for op, dtypes in operators for dtype in dtypes]
    tables = [profile.checks[key] for key in keys if key in profile.checks]
    return compute_formula_errors(tables, gpu, k, kernel=kernel)


def _list_checked_operators(case: Case, kernel: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Operators whose formulas this case's step uses, with the precisions of the kernels that tell of them.

    fp8 with block or row scales and fp32 have rates of their own, which samples with a scale a tensor say nothing of.
    """
    model, job = case.model, case.job
    path = find_compute_path(job)
    scaled = job.precision == "mxfp8" or job.fp8_recipe in ("blockwise", "rowwise")
    if path in SIXTEEN_BIT:
        yield "matmul", SIXTEEN_BIT
    elif path == "fp8" and not scaled:
        yield "matmul", ("fp8",)
    if path == "fp32":
        return
    if model.moe is not None and path in SIXTEEN_BIT:
        yield "grouped_matmul", SIXTEEN_BIT
    if not model.attention_sinks:  # these have a rate of their own
        yield "unfused_attention" if kernel in UNFUSED else "attention", SIXTEEN_BIT
    yield "cross_entropy", SIXTEEN_BIT


def list_unsampled_operators(case: Case, gpus: Iterable[str]) -> list[Notice]:
    """A note for each GPU kind of which sizes of this case's operators lie outside of what was sampled."""
    notices = []
    for gpu in gpus:
        profile = load_operator_profile(gpu)
        if profile is None:
            continue
        outside: dict[str, float] = {}
        for op, dtype, sizes in _list_operators(case):
            outside |= {f"{op} {name}": sizes[name] for name in profile.list_outside(sizes, op, dtype)}
        if outside:
            listed = ", ".join(f"{name} {value:g}" for name, value in outside.items())
            notices.append(Notice(code="operator_sizes_unsampled", level="note", params={"gpu": gpu, "sizes": listed}))
    return notices


def _list_operators(case: Case) -> Iterator[tuple[str, str, dict[str, float]]]:
    """The matmuls and the attention of a layer, and the head's matmul, on one GPU, each with its precision.

    How many heads and samples there are only repeats a kernel, so that these are left out. Attention and head are in
    16 bit where the layers' matmuls are in fewer.
    """
    model, s = case.model, case.strategy
    dtype = MATMUL_DTYPES.get(case.job.precision, "bf16")
    wide = "bf16" if dtype == "fp8" else dtype
    tokens = s.micro_batch * case.job.seq_len / s.cp
    query, value = model.heads * model.qk_head_dim / s.tp, model.heads * model.v_head_dim / s.tp
    kv = max(model.kv_heads / s.tp, 1.0) * (model.qk_head_dim + model.v_head_dim)
    has_attention = model.attention_layers > 0
    if model.mla is None and has_attention:
        yield "matmul", dtype, {"m": tokens, "n": query + kv, "k": model.hidden}
    if has_attention:
        yield "matmul", dtype, {"m": tokens, "n": model.hidden, "k": value}
    if model.mlp_layers:
        inner = model.ffn_hidden / s.tp
        yield "matmul", dtype, {"m": tokens, "n": inner, "k": model.hidden}
        yield "matmul", dtype, {"m": tokens, "n": model.hidden, "k": inner}
    if model.moe is not None:
        slices = s.tp if s.ep == 1 else 1  # of an expert; with expert parallelism, experts are whole
        inner, routed = model.moe.ffn_hidden / slices, tokens * model.moe.top_k / s.tp * slices
        up = (2.0 if model.gated else 1.0) * inner
        experts = {"groups": model.moe.experts / s.ep, "m": routed}
        yield "grouped_matmul", dtype, {**experts, "n": up, "k": model.hidden}
        yield "grouped_matmul", dtype, {**experts, "n": model.hidden, "k": inner}
    yield "matmul", wide, {"m": tokens, "n": model.vocab / s.tp, "k": model.hidden}
    if model.mla is None and has_attention:
        yield "attention", wide, {"seq": case.job.seq_len, "head_dim": model.qk_head_dim}
