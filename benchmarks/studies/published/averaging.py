"""Local SGD between zones, layer by layer: when updates have arrived, when they are needed, and what waits for them.

One worker's steps stand for all: they are alike. Compute and link each do one thing at a time; a layer's exchange
begins when the backward pass has left it and the link is free, and must be over before a later forward pass enters it.
That is data parallelism (every step, every layer), local updates (every H steps) and streaming (a fragment at a time).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from crosszone.cost.tiers import Floats, Numbers

FORWARD_SHARE = 1 / 3  # Of a step: a backward pass is two matmuls for each one of the forward pass. [F1]
MAX_PERIODS = 50
PERIOD_TOLERANCE = 1e-9  # Share of a period by which two periods in a row may differ when the steps repeat


@dataclass(frozen=True, kw_only=True)
class LocalSgdPlan:
    """Which layers are exchanged in which step, and when they must have come back."""

    layers: int
    """Equal layers of the model."""
    steps: int = 1
    """Steps after which the same is done again (H)."""
    fragments: Mapping[int, tuple[int, ...]]
    """Layers that are exchanged after a step of the period."""
    delay: int = 0
    """Steps that an exchange may take in the background; 0: the next step needs it."""
    between_steps: bool = False
    """Nothing of an exchange runs beside the passes of its own step or of the one that needs it."""


def sync_all_layers(layers: int, steps: int = 1) -> LocalSgdPlan:
    """All layers after the last step of every period: data parallelism, or plain local updates."""
    return LocalSgdPlan(layers=layers, steps=steps, fragments={steps - 1: tuple(range(layers))})


def stream_fragments(layers: int, steps: int, fragment_layers: int, delay: int = 0) -> LocalSgdPlan:
    """Fragments in turn, evenly over the period; each holds layers far apart (strided).

    Fragment k of F holds the layers k, k + F, k + 2 F, ... and is exchanged after step floor(k H / F).
    """
    count = layers // fragment_layers
    if not 0 < count <= steps or count * fragment_layers != layers:
        raise ValueError(f"{layers} layers in fragments of {fragment_layers} do not make 1 to {steps} fragments")
    turns = {k * steps // count: tuple(range(k, layers, count)) for k in range(count)}
    return LocalSgdPlan(layers=layers, steps=steps, fragments=turns, delay=delay)


def simulate_period_s(plan: LocalSgdPlan, step_s: float, layer_exchange_s: Numbers) -> Floats:
    """Seconds of a period of steps, once periods repeat; an array of exchange times gives as many answers. [A20]

    Forward F = 1/3 and backward B = 2/3 of a step lie evenly over the layers. Exchanges queue on the link in the order
    in which the backward pass makes them ready. A forward pass waits at a layer whose exchange is due and not over.
    """
    exchange_s = np.atleast_1d(np.asarray(layer_exchange_s, dtype=float))
    now_s, link_free_s = np.zeros_like(exchange_s), np.zeros_like(exchange_s)
    due: dict[int, dict[int, Floats]] = {}
    period_start_s, last_period_s = now_s, np.full_like(exchange_s, np.inf)
    for step in range(MAX_PERIODS * plan.steps):
        if step and step % plan.steps == 0:
            period, period_start_s = now_s - period_start_s, now_s
            if np.allclose(period, last_period_s, rtol=PERIOD_TOLERANCE, atol=0.0):
                break
            last_period_s = period
        now_s = _run_forward(plan, step_s, now_s, due.pop(step, {}))
        now_s, link_free_s, done = _run_backward(plan, step_s, now_s, link_free_s, exchange_s, step % plan.steps)
        if done:
            due[step + 1 + plan.delay] = done
    return last_period_s


def compute_utilisation(plan: LocalSgdPlan, step_s: float, layer_exchange_s: Numbers) -> Floats:
    """Share of the time spent computing. [A20]"""
    return np.asarray(plan.steps * step_s / simulate_period_s(plan, step_s, layer_exchange_s))


def _run_forward(plan: LocalSgdPlan, step_s: float, now: Floats, due: Mapping[int, Floats]) -> Floats:
    """When the forward pass is over that waits for these layers."""
    forward_s = step_s * FORWARD_SHARE
    if plan.between_steps:
        return np.asarray(np.max([now, *due.values()], axis=0) + forward_s)
    passed = 0
    for layer in sorted(due):
        now = np.maximum(now + (layer - passed) / plan.layers * forward_s, due[layer])
        passed = layer
    return now + (plan.layers - passed) / plan.layers * forward_s


def _run_backward(
    plan: LocalSgdPlan, step_s: float, now: Floats, link: Floats, exchange_s: Floats, step_of_period: int
) -> tuple[Floats, Floats, dict[int, Floats]]:
    """When the backward pass is over and the link free, and when the exchange of each layer of this turn is."""
    backward_s = step_s * (1 - FORWARD_SHARE)
    end, done = now + backward_s, {}
    for layer in sorted(plan.fragments.get(step_of_period, ()), reverse=True):
        ready = end if plan.between_steps else now + (plan.layers - layer) / plan.layers * backward_s
        link = done[layer] = np.maximum(link, ready) + exchange_s
    return end, link, done
