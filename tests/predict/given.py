"""Scenarios with a strategy in one line, and hypothesis for any of them."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from builders import fields, scenario, zone
from crosszone.errors import IllegalError
from crosszone.predict.predict import build_predictor, predict
from crosszone.predict.prediction import Prediction
from crosszone.predict.predictor import Predictor

MEGATRON = {"seq_len": 4096, "global_batch": 64, "framework": "megatron"}
FSDP = MEGATRON | {"framework": "fsdp"}
DDP = MEGATRON | {"framework": "ddp"}


def one_zone(gpus: int = 16, **node: Any) -> dict[str, Any]:
    """Nodes of eight (or less) in one zone, 200 Gbit/s a GPU."""
    return {"zones": [_zone("a", gpus, node)]}


def zones(count: int = 2, gpus: int = 8, node: dict[str, Any] | None = None, **link: Any) -> dict[str, Any]:
    """Equal zones of so many GPUs, 10 Gbit/s and 20 ms apart where nothing else is said."""
    figures = {"gbps": 10, "rtt_ms": 20, "usd_per_gb": 0.02} | link
    return {"zones": [_zone("abcd"[i], gpus, node or {}) for i in range(count)], "default_link": figures}


def _zone(name: str, gpus: int, node: dict[str, Any]) -> dict[str, Any]:
    each = min(gpus, 8)
    found = zone(name, gpus=each, count=-(-gpus // each))
    found["nodes"][0] |= {"nic_gbps_per_gpu": 200} | node
    return found


def predicted(strategy: dict[str, Any], **changes: Any) -> Prediction:
    return predict(scenario(strategy=strategy, **{"job": MEGATRON, "cluster": one_zone()} | changes))


def placed(strategy: dict[str, Any], **changes: Any) -> Predictor:
    return build_predictor(scenario(strategy=strategy, **{"job": MEGATRON, "cluster": one_zone()} | changes))


def step(strategy: dict[str, Any], **changes: Any) -> float:
    return predicted(strategy, **changes).step_time_s.expected


def traffic(prediction: Prediction, kind: str) -> dict[str, Any]:
    """The rows of one kind of communication, by link."""
    return {row.link: row for row in prediction.communication if row.kind == kind}


SPLITS = [(tp, pp, dp, cp) for tp in (1, 2, 8) for pp in (1, 2, 4) for dp in (1, 2, 4, 8) for cp in (1, 2)]


@st.composite
def strategies(
    draw: st.DrawFn, framework: str = "megatron", ranks: int | None = None, most_cp: int = 2
) -> dict[str, Any]:
    """Any legal strategy for llama-2-7b of at most 32 ranks, or of so many."""
    fits = [split for split in SPLITS if split[3] <= most_cp and math.prod(split) in ([ranks] if ranks else range(33))]
    tp, pp, dp, cp = draw(st.sampled_from(fits))
    zero = draw(st.sampled_from([2, 3] if framework == "fsdp" else [0, 1] if pp > 1 else [0, 1, 2, 3]))
    interleave = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    overlap = draw(st.sampled_from([None, 0.0, 0.5, 1.0]))
    return {
        "tp": tp, "pp": pp, "dp": dp, "cp": cp, "zero": zero, "interleave": interleave,
        "micro_batch": draw(st.sampled_from([1, 2])), "sequence_parallel": tp > 1 and draw(st.booleans()),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])), "communication": {"overlap": overlap},
    }  # fmt: skip


@st.composite
def predictors(draw: st.DrawFn) -> Predictor:
    """Any legal strategy on one to three zones: dense or with experts, averaging now and then, sharded inside zones."""
    framework = draw(st.sampled_from(["megatron", "fsdp"]))
    strategy = draw(strategies(framework))
    ranks = strategy["tp"] * strategy["pp"] * strategy["dp"] * strategy["cp"]
    count = draw(st.sampled_from([1, 2, 3])) if ranks >= 4 else 1
    each = max(-(-ranks // count), strategy["tp"])
    more: dict[str, Any] = {}
    node: dict[str, Any] = {}
    if framework == "megatron" and draw(st.integers(0, 3)) == 0:
        more, node = {"model": "mixtral-8x7b"}, {"gpu": "h100-80gb-sxm"}
        ep = draw(st.sampled_from([1, 2, 8]))
        if ranks // strategy["pp"] % ep == 0:
            strategy |= {"ep": ep, "sequence_parallel": strategy["tp"] > 1}
    if count > 1 and strategy["zero"] and draw(st.booleans()):
        strategy |= {"shard_within": "zone"}
    if count > 1 and framework == "fsdp" and strategy["dp"] % count == 0 and draw(st.booleans()):
        strategy |= {"local_update": {"steps": 10, "delay": draw(st.sampled_from([0, 1]))}}
    link = {"gbps": draw(st.sampled_from([1, 10, 400])), "rtt_ms": draw(st.sampled_from([0.5, 30, 200]))}
    cluster = zones(count, -(-each // 8) * 8 if each > 4 else each, node, **link)
    try:
        return placed(strategy, job=MEGATRON | {"framework": framework, "tokens": 1e10}, cluster=cluster, **more)
    except IllegalError as error:
        assume(
            not {n.code for n in error.notices} <= {"cp_across_zones", "ep_across_zones", "tp_room", "zones_unequal"}
        )
        raise


__all__ = [
    "DDP",
    "FSDP",
    "MEGATRON",
    "fields",
    "one_zone",
    "placed",
    "predicted",
    "predictors",
    "step",
    "strategies",
    "traffic",
    "zones",
]
