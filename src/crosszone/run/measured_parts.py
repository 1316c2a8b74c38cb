"""Measured parts: which parts of a prediction a trainer can tell apart, so that like is set beside like.

    predicted_parts(prediction, framework)["communication"].seconds, .covers

A trainer sees the time between two moments, not why it passed. Where an exchange runs inside a forward or backward pass
(sharded weights, tensor parallelism) it is part of the pass; only what a trainer waits for outside of them is told as
communication. So the parts of a prediction are added up in the same way before the two are compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from crosszone.predict.breakdown import COMPUTE, ORDER
from crosszone.predict.prediction import Prediction

NAMES = ("compute", "communication", "input", "waiting", "other")
"""Parts of a step that can be measured; those of `run/metrics.py` without their unit."""
APART = {
    "ddp": ("gradients", "local_update"),
    "horovod": ("gradients", "local_update"),
    "megatron": ("gradients",),
    "fsdp": ("local_update",),
    "torchft": ("local_update",),
    "deepspeed": (),
}
"""Exchanges of each trainer that are waited for outside the passes."""
SENT = ("pipeline", "bubble", "gradients")
"""The same of DeepSpeed's pipeline: its sends wait for their neighbours, so bubbles are in them."""


@dataclass(frozen=True, kw_only=True)
class PredictedPart:
    """What is expected of a part that can be measured."""

    seconds: float
    covers: tuple[str, ...]
    """The prediction's own parts in it."""


def covered(framework: str, *, pipelined: bool) -> dict[str, tuple[str, ...]]:
    """The prediction's parts in each part that can be measured; every one is in one of them."""
    sent = framework == "deepspeed" and pipelined
    apart = SENT if sent else APART.get(framework, ())
    communication = (*apart, "jitter") if "gradients" in apart else apart  # replicas wait for the slowest to exchange
    waiting = ("bubble", "pipeline") if pipelined and not sent else ()
    other = tuple(one for one in ("fixed", "jitter") if one not in communication)
    taken = {*communication, *waiting, *other}
    found = {"communication": communication, "input": (), "waiting": waiting, "other": other}
    return {"compute": tuple(one for one in ORDER if one not in taken), **found}


def predicted_parts(prediction: Prediction, framework: str) -> dict[str, PredictedPart]:
    """What is expected of each part that can be measured; they add up to the step."""
    seconds = prediction.breakdown_s
    return {
        name: PredictedPart(
            seconds=sum(seconds.get(one, 0.0) for one in parts),
            covers=tuple(one for one in parts if seconds.get(one, 0.0) > 0),
        )
        for name, parts in covered(framework, pipelined=prediction.strategy.get("pp", 1) > 1).items()
    }


def is_pure(covers: tuple[str, ...]) -> bool:
    """A part of compute alone: no exchange runs in it."""
    return all(one in (*COMPUTE, "host") for one in covers)
