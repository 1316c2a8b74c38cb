"""Local updates: zones train on their own and average every H steps, in fragments, perhaps in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from crosszone.cost.collectives import hierarchical_egress_bytes
from crosszone.cost.record import named
from crosszone.inputs.parameters import parameters
from crosszone.predict.cells import scalar
from crosszone.predict.prediction import Traffic
from crosszone.predict.site import BANDS, EXPECTED

if TYPE_CHECKING:
    from crosszone.predict.predictor import Predictor

DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5, "fp4": 0.5}


def _exchange_s(p: Predictor) -> tuple[npt.NDArray[np.float64], float]:
    """Seconds of exchanging one fragment at low, expected and high RTT, and the bytes a zone sends for it."""
    local = p.strategy.local_update
    assert local is not None
    zones = len(p.site.ring)
    if zones < 2:
        return np.zeros(BANDS), 0.0
    size = parameters(p.case.model).total * DTYPE_BYTES[local.dtype] / local.fragments
    return p.site.zone_exchange_s(size), float(hierarchical_egress_bytes(size, zones))


def local_update_s(p: Predictor) -> npt.NDArray[np.float64]:
    """Exposed seconds of periodic averaging, shared out over all steps: [low, expected, high]. [V5]

    Every H / F steps one of F fragments is exchanged; what is longer than `delay` steps of compute is waited for:
    F max(0, exchange - delay x step) / H a step.
    """
    local = p.strategy.local_update
    if local is None:
        return np.zeros(BANDS)
    inner = p.inner_step_s
    seconds, _ = _exchange_s(p)
    fragments, steps = named("local_update.fragments", local.fragments), named("local_update.steps", local.steps)
    beside = named("local_update.delay", local.delay) * named("inner_step_s", inner)
    waited = np.maximum(0.0, named("local_update.exchange_s", seconds) - beside)
    exposed: npt.NDArray[np.float64] = fragments * waited / steps
    return exposed


def local_update_traffic(p: Predictor, egress: dict[tuple[int, int], float]) -> list[Traffic]:
    """Bytes and time of the averaging per step, over every edge of the ring of zones."""
    local = p.strategy.local_update
    seconds, size = _exchange_s(p)
    if local is None or size == 0:
        return []
    names = [z.name for z in p.site.cluster.zones]
    ring = p.site.ring
    each = named("zones.averaged_bytes", size)
    often = named("local_update.fragments", local.fragments) / named("local_update.steps", local.steps)
    found = []
    for a, b in zip(ring, (*ring[1:], ring[0]), strict=True):
        egress[a, b] += each * often
        found.append(
            Traffic(
                kind="local update",
                link=f"{names[a]} > {names[b]}",
                bytes_per_step=each * often,
                messages=2.0 * (named("zones", len(ring)) - 1) * often,
                busy_s=float(seconds[1]) * often,
                exposed_s=scalar(p.local_update_s[EXPECTED]) / named("zones", len(ring)),
            )
        )
    return found
