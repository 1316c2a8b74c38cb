"""Assumption: what a plan with local updates is taken to cost in loss (`local_update.yaml`), and how far that holds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Literal

from crosszone.errors import Notice
from crosszone.inputs.model import Model
from crosszone.inputs.parameters import parameters
from crosszone.inputs.scenario import SIZE_TOLERANCE
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import Value

What = Literal["params_b", "steps", "replicas"]


class Range(Value):
    """From low to high, both included."""

    low: float
    """Least."""
    high: float
    """Most."""


class Measured(Value):
    """One published comparison with synchronous training."""

    method: str
    """Name of the algorithm."""
    params_b: Range
    """Sizes of the models, 1e9 parameters."""
    steps: int
    """Steps between two averages."""
    replicas: int
    """Zones that average."""
    extra_loss: Range
    """Loss above that of synchronous training."""
    source: str
    """Where it was published."""


class Outside(Value):
    """What of a plan lies outside the measurements its penalty rests on."""

    what: What
    """Size of the model in 1e9 parameters, steps between two averages, or zones that average."""
    value: float
    """Of the plan."""
    low: float
    """Least that was measured."""
    high: float
    """Most that was measured."""


class Penalty(Value):
    """Loss that a plan with local updates is assumed to end above synchronous training, and what says so."""

    low: float
    """Least of the measurements."""
    high: float
    """Most of the measurements."""
    measured: tuple[Measured, ...]
    """What it rests on; nothing where a single zone averages with nobody."""
    outside: tuple[Outside, ...]
    """What was never measured so: the range may not hold."""

    @property
    def source(self) -> str:
        """The publications, each once."""
        return "; ".join(dict.fromkeys(one.source for one in self.measured))

    def notices(self) -> Iterator[Notice]:
        """The assumption, and each thing that lies outside of it."""
        if not self.measured:
            return
        params = {"low": self.low, "high": self.high, "source": self.source}
        yield Notice(code="loss_assumed", level="note", field="strategy.local_update", params=params)
        for one in self.outside:
            yield Notice(
                code=_CODES[one.what],
                level="warning",
                field="model" if one.what == "params_b" else "strategy.local_update",
                value=round(one.value, 2),
                params={"low": one.low, "high": one.high},
            )


_CODES: dict[What, str] = {
    "params_b": "loss_size_unmeasured",
    "steps": "loss_steps_unmeasured",
    "replicas": "loss_replicas_unmeasured",
}


def loss_penalty(model: Model, zones: int, steps: int) -> Penalty:
    """Extra loss of averaging `zones` zones every `steps` steps: a look-up, never a formula.

    Taken are the measurements with as many replicas, or those next to it on either side; what else differs from
    them is flagged. A model within a quarter of a measured size counts as of that size.
    """
    if zones == 1:
        return Penalty(low=0.0, high=0.0, measured=(), outside=())
    taken = _nearest(zones)
    size, near = parameters(model).total / 1e9, 1.0 + SIZE_TOLERANCE
    sizes = max(one.params_b.low for one in taken), min(one.params_b.high for one in taken)
    cadence = max(one.steps for one in taken), min(one.steps for one in taken)
    counts = min(one.replicas for one in taken), max(one.replicas for one in taken)
    checks: tuple[tuple[What, float, tuple[float, float], float], ...] = (
        ("params_b", size, sizes, near),
        ("steps", steps, cadence, 1.0),
        ("replicas", zones, counts, 1.0),
    )
    outside = [
        Outside(what=what, value=value, low=low, high=high)
        for what, value, (low, high), slack in checks
        if not low / slack <= value <= high * slack
    ]
    return Penalty(
        low=min(one.extra_loss.low for one in taken),
        high=max(one.extra_loss.high for one in taken),
        measured=tuple(taken),
        outside=tuple(outside),
    )


def _nearest(zones: int) -> list[Measured]:
    """Measurements with as many replicas; else those with the next fewer and the next more."""
    known = measurements()
    fewer = max((one.replicas for one in known if one.replicas <= zones), default=None)
    more = min((one.replicas for one in known if one.replicas >= zones), default=None)
    return [one for one in known if one.replicas in (fewer, more)]


@cache
def measurements() -> tuple[Measured, ...]:
    """Everything that `local_update.yaml` holds."""
    return tuple(Measured(**one) for one in read_shipped("crosszone.plan", "local_update.yaml").value["measured"])
