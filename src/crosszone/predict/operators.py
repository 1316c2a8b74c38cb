"""Operators of a prediction: how well the kernels of its GPUs are known, and which of its sizes were never sampled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from crosszone.cost.operator_profile import operator_profile
from crosszone.errors import Notice
from crosszone.inputs.rules import Case
from crosszone.inputs.value import Value

PRODUCTS_IN = {"fp16": "fp16", "fp8": "fp8", "mxfp8": "fp8", "nvfp4": "fp8", "fp32": "fp32"}
"""Precision in which the kernels of a layer's products were sampled, by that of the job; others: bf16."""


class OperatorError(Value):
    """How far off single operators of a family were on samples that their fit had not seen."""

    error_pct: float
    """Mean error with random samples held out."""
    unseen_pct: float
    """Mean error with whole sizes held out."""
    samples: int
    """Samples behind it."""


def operator_errors(gpus: Iterable[str]) -> dict[str, dict[str, OperatorError]]:
    """By GPU kind and family of operators; kinds whose operators were not sampled are left out."""
    found = {gpu: operator_profile(gpu) for gpu in gpus}
    return {
        gpu: {family: OperatorError.model_validate(errors) for family, errors in profile.summary().items()}
        for gpu, profile in found.items()
        if profile is not None
    }


def unsampled(case: Case, gpus: Iterable[str]) -> list[Notice]:
    """A note for each GPU kind of which sizes of this case's operators lie outside of what was sampled."""
    notices = []
    for gpu in gpus:
        profile = operator_profile(gpu)
        if profile is None:
            continue
        outside: dict[str, float] = {}
        for op, dtype, sizes in _operators(case):
            outside |= {f"{op} {name}": sizes[name] for name in profile.outside(sizes, op, dtype)}
        if outside:
            told = ", ".join(f"{name} {value:g}" for name, value in outside.items())
            notices.append(Notice(code="operator_sizes_unsampled", level="note", params={"gpu": gpu, "sizes": told}))
    return notices


def _operators(case: Case) -> Iterator[tuple[str, str, dict[str, float]]]:
    """The products and the attention of a layer, and the head's product, on one GPU, each with its precision.

    How many heads and samples there are only repeats a kernel, so that these are left out. Attention and head are in
    16 bit where the layers' products are in fewer.
    """
    model, s = case.model, case.strategy
    dtype = PRODUCTS_IN.get(case.job.precision, "bf16")
    wide = "bf16" if dtype == "fp8" else dtype
    tokens = s.micro_batch * case.job.seq_len / s.cp
    query, value = model.heads * model.qk_head_dim / s.tp, model.heads * model.v_head_dim / s.tp
    kv = max(model.kv_heads / s.tp, 1.0) * (model.qk_head_dim + model.v_head_dim)
    if model.mla is None:
        yield "matmul", dtype, {"m": tokens, "n": query + kv, "k": model.hidden}
    yield "matmul", dtype, {"m": tokens, "n": model.hidden, "k": value}
    if model.moe_layers < model.layers:
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
    if model.mla is None:
        yield "attention", wide, {"seq": case.job.seq_len, "head_dim": model.qk_head_dim}
