"""Local updates: zones train on their own and average every H steps, in fragments, perhaps in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from crosszone.cost.collectives import CollectiveCost
from crosszone.cost.record import named
from crosszone.inputs.parameters import parameters
from crosszone.predict.batch import get_scalar
from crosszone.predict.placed_strategy import BANDS, EXPECTED
from crosszone.predict.prediction import Traffic

if TYPE_CHECKING:
    from crosszone.predict.predictor import Predictor

DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5, "fp4": 0.5}


def estimate_fragment_exchange(p: Predictor) -> CollectiveCost | None:
    """What exchanging one fragment takes, at low, expected and high RTT; None: there is one zone."""
    local = p.strategy.local_update
    assert local is not None
    if len(p.placed.ring) < 2:
        return None
    size = parameters(p.case.model).total * DTYPE_BYTES[local.dtype] / local.fragments
    return p.placed.estimate_zone_exchange(size)


def predict_local_update_s(p: Predictor) -> npt.NDArray[np.float64]:
    """Exposed seconds of periodic averaging, shared out over all steps: [low, expected, high]. [V5]

    Every H / F steps one of F fragments is exchanged; what is longer than `delay` steps of compute is waited for:
    F max(0, exchange - delay x step) / H a step.
    """
    local = p.strategy.local_update
    if local is None:
        return np.zeros(BANDS)
    inner = p.inner_step_s
    cost = estimate_fragment_exchange(p)
    seconds = np.zeros(BANDS) if cost is None else cost.seconds
    fragments, steps = named("local_update.fragments", local.fragments), named("local_update.steps", local.steps)
    beside = named("local_update.delay", local.delay) * named("inner_step_s", inner)
    waited = np.maximum(0.0, named("local_update.exchange_s", seconds) - beside)
    exposed: npt.NDArray[np.float64] = fragments * waited / steps
    return exposed


def build_local_update_traffic(p: Predictor, egress: dict[tuple[int, int], float]) -> list[Traffic]:
    """Bytes and time of the averaging per step, over every edge of the ring of zones."""
    local = p.strategy.local_update
    cost = estimate_fragment_exchange(p) if local else None
    if local is None or cost is None:
        return []
    names = [z.name for z in p.placed.cluster.zones]
    ring = p.placed.ring
    fragment_bytes = named("zones.averaged_bytes", get_scalar(cost.bytes.zones))
    often = named("local_update.fragments", local.fragments) / named("local_update.steps", local.steps)
    rows = []
    for a, b in zip(ring, (*ring[1:], ring[0]), strict=True):
        egress[a, b] += fragment_bytes * often
        rows.append(
            Traffic(
                kind="local update",
                link=f"{names[a]} > {names[b]}",
                bytes_per_step=fragment_bytes * often,
                messages=get_scalar(cost.messages) * often,
                busy_s=get_scalar(cost.seconds[EXPECTED]) * often,
                exposed_s=get_scalar(p.local_update_s[EXPECTED]) / named("zones", len(ring)),
            )
        )
    return rows
