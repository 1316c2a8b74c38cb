"""Every figure that can be opened: its path, and the function that explains it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from crosszone.analyse.explain import (
    exchange,
    headline,
    layer,
    memory,
    memory_layer,
    rates,
    run,
    stages,
    step,
    timeline,
    traffic,
)
from crosszone.analyse.explain.explanation import Draft, Explanation
from crosszone.analyse.explain.facts import Facts
from crosszone.cost.memory import PARTS as MEMORY_PARTS
from crosszone.errors import InvalidError, Notice
from crosszone.predict.prediction import Prediction, Triple
from crosszone.predict.predictor import Predictor
from crosszone.text import DEFAULT_LANGUAGE

Make = Callable[..., Draft]

RANGED: dict[str, Make] = {
    "step_time_s": headline.step_time,
    "tokens_per_s": headline.tokens_per_s,
    "tokens_per_s_per_gpu": headline.tokens_per_s_per_gpu,
    "tflops_per_gpu": headline.tflops_per_gpu,
    "mfu": headline.mfu,
    "hfu": headline.hfu,
    "memory_gib.peak": memory.peak,
    "run.days": run.days,
    "run.gpu_hours": run.gpu_hours,
    "run.usd": run.usd,
    "run.kwh": run.kwh,
    "run.co2_kg": run.co2_kg,
}
"""Figures with a range, whose ends are figures too (`mfu.low`)."""

PLAIN: dict[str, Make] = {
    "gpus": headline.gpus,
    "micro_batches": headline.micro_batches,
    "model_flops": headline.model_flops,
    "hardware_flops": headline.hardware_flops,
    "peak_flops": headline.peak_flops,
    "memory_gib.limit": memory.limit,
    "memory_gib.margin": memory.margin,
    "run.steps": run.steps,
    "run.usd_egress": run.usd_egress,
    "run.usd_per_hour": run.usd_per_hour,
    "run.kw": run.kw,
    "run.goodput.share": run.goodput_share,
    "run.goodput.mtbf_hours": run.mtbf_hours,
    "run.goodput.checkpoint_gb": run.checkpoint_gb,
    "run.goodput.checkpoint_s": run.checkpoint_s,
    "run.goodput.interval_s": run.interval_s,
    "run.goodput.lost_per_failure_s": run.lost_per_failure_s,
}

STAGE: dict[str, Make] = {
    "embedding_s": layer.embedding,
    "head_s": layer.head,
    "loss_s": layer.loss,
    "layer.tp_s": layer.tp_collective,
    "reduce_s": exchange.exposed_once,
    "gather_s": exchange.exposed_gather,
    "update_s": exchange.update,
    "exchange.reduce": exchange.reduction,
    "exchange.gather": exchange.gather,
    "exchange.outer": exchange.outer,
    "send_s": lambda f: step.sending(f, back=False),
    "send_back_s": lambda f: step.sending(f, back=True),
    **{f"rate.{name}": make for name, make in rates.RATES.items()},
}
"""Figures of a stage that others follow from (`stage[0].rate.linear`)."""

PATTERNS: tuple[tuple[re.Pattern[str], Make], ...] = tuple(
    (re.compile(pattern), make)
    for pattern, make in (
        (r"breakdown_s\.(\w+)", lambda f, name: step.part(f, _one_of(f.prediction.breakdown_s, name))),
        (r"shares\.(\w+)", lambda f, name: headline.share(f, _one_of(f.prediction.shares, name))),
        (r"basis\.(low|high)", headline.band_factor),
        (
            r"memory_gib\.stages\[(\d+)\]\.parts\.(\w+)",
            lambda f, s, n: memory.stage_part(_on(f, s), _one_of(MEMORY_PARTS, n)),
        ),
        (r"memory_gib\.stages\[(\d+)\]\.total", lambda f, s: memory.stage_total(_on(f, s))),
        (r"memory_gib\.stages\[(\d+)\]\.limit", lambda f, s: memory.stage_limit(_on(f, s))),
        (r"memory_gib\.stages\[(\d+)\]\.host", lambda f, s: memory.stage_host(_on(f, s))),
        (
            rf"communication\[(\d+)\]\.({'|'.join(traffic.FIELDS)})",
            lambda f, at, n: traffic.row_figure(f, _row(f, at), n),
        ),
        (rf"traffic\.(kinds|tiers|links)\.(.+)\.({'|'.join(traffic.FIELDS)})", traffic.sums),
        (
            r"stage\[(\d+)\]\.layer\.(dense|moe)\.(forward|backward)\.(\w+)",
            lambda f, s, kind, way, n: layer.layer_part(_on(f, s), kind, way, _one_of(layer.PARTS, n)),
        ),
        (
            r"stage\[(\d+)\]\.layer\.(dense|moe)\.(forward|backward)",
            lambda f, s, kind, way: step.whole_layer(_on(f, s), kind, way),
        ),
        (r"stage\[(\d+)\]\.layer\.(dense|moe)\.again", lambda f, s, kind: layer.again(_on(f, s), kind)),
        (r"stage\[(\d+)\]\.(forward|backward)_s", lambda f, s, way: step.whole_pass(_on(f, s), way)),
        (
            r"stage\[(\d+)\]\.memory\.(dense|moe)\.(kept|whole)",
            lambda f, s, kind, n: memory_layer.kept(_on(f, s), kind, n),
        ),
        (r"stage\[(\d+)\]\.parameters\.(shared|experts|embedding)", lambda f, s, n: stages.parameters_of(_on(f, s), n)),
        (r"stage\[(\d+)\]\.rate\.((?:zone|inner|expert)_bus)", lambda f, s, n: exchange.bus_rate(_on(f, s), n)),
        (r"stage\[(\d+)\]\.zones\.(reduce|gather)", lambda f, s, n: exchange.between_zones(_on(f, s), n)),
        (r"stage\[(\d+)\]\.(.+)", lambda f, s, n: STAGE[n](_on(f, s))),
        *timeline.PATTERNS,
    )
)


def explain(p: Predictor, prediction: Prediction, figure: str, language: str = DEFAULT_LANGUAGE) -> Explanation:
    """How a figure of a prediction comes about; `InvalidError` where there is no such figure.

    explain(p, p.prediction(), "mfu").worked
    """
    return _draft(Facts(p, prediction), figure).told(figure, language)


def _draft(f: Facts, figure: str) -> Draft:
    base, _, side = figure.rpartition(".")
    if side == "expected" and base in RANGED:
        return _draft(f, base)
    try:
        if figure in RANGED or figure in PLAIN:
            _shown(f.prediction, figure)
            return (RANGED.get(figure) or PLAIN[figure])(f)
        if side in ("low", "high") and base in RANGED:
            _shown(f.prediction, base)
            return RANGED[base](f, side)
        for pattern, make in PATTERNS:
            found = pattern.fullmatch(figure)
            if found:
                return make(f, *found.groups())
    except (KeyError, IndexError):
        pass
    raise InvalidError(Notice(code="figure_unknown", field="figure", value=figure))


def figures(prediction: Prediction) -> list[str]:
    """Paths of all figures of a prediction that have a value."""
    found = [name for name in (*RANGED, *PLAIN) if not name.endswith("_flops") and _known(prediction, name)]
    found += [f"{name}.{side}" for name in RANGED if name in found for side in ("low", "high")]
    found += [f"breakdown_s.{name}" for name in prediction.breakdown_s]
    found += [f"shares.{name}" for name in prediction.shares]
    found += ["basis.low", "basis.high"]
    for stage in prediction.memory_gib.stages:
        at = f"memory_gib.stages[{stage.stage}]"
        found += [f"{at}.{name}" for name in ("total", "limit", "host", *(f"parts.{part}" for part in stage.parts))]
    for row in range(len(prediction.communication)):
        found += [f"communication[{row}].{name}" for name in traffic.FIELDS]
    return found


def value_of(prediction: Prediction, figure: str) -> Any:
    """The number that stands at a path of a prediction."""
    found: Any = prediction
    for name, index in re.findall(r"(\w+)(?:\[(\d+)\])?", figure):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
        found = found[int(index)] if index else found
    return found.expected if isinstance(found, Triple) else found


def _known(prediction: Prediction, figure: str) -> bool:
    return value_of(prediction, figure) is not None


def _shown(prediction: Prediction, figure: str) -> None:
    """Refuse a figure that has no value, such as the money of a run whose prices are not known."""
    if not figure.endswith("_flops") and not _known(prediction, figure):
        raise KeyError(figure)


def _one_of(known: Any, name: str) -> str:
    if name not in known:
        raise KeyError(name)
    return name


def _on(f: Facts, stage: str) -> Facts:
    if len(stage) > 6 or int(stage) >= f.p.strategy.pp:
        raise IndexError(stage)
    return f.on(int(stage))


def _row(f: Facts, at: str) -> int:
    if len(at) > 6 or int(at) >= len(f.prediction.communication):
        raise IndexError(at)
    return int(at)
