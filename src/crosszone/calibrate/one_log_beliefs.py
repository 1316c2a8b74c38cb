"""Beliefs before one log: how far each coefficient of a case may lie from the profile's value at a new site.

    believed = beliefs_of(Profiles.load(), ["a100"], "megatron-core")
    believed[0].field, believed[0].sd

A profile's own error says how well its runs determine a value; another site adds to it. `SITES` says how much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from crosszone.calibrate.fit import Vector
from crosszone.calibrate.priors import priors
from crosszone.cost.profile import Profiles

SITES: dict[str, float] = {
    "matmul": 0.03,
    "matmul_fp8": 0.05,
    "flash": 0.1,
    "flash_backward": 0.05,
    "tile": 0.05,
    "batched": 0.1,
    "memory": 0.05,
    "score_traffic": 0.2,
    "elementwise": 0.6,
    "head_traffic": 0.05,
    "optimizer_traffic": 0.05,
    "host_s": 0.6,
    "tp_exposed": 0.6,
    "tp_message_s": 0.3,
    "link": 0.1,
    "nic": 0.15,
    "p2p_exposed": 0.3,
    "p2p_message_s": 0.3,
    "dp_traffic": 0.5,
    "shard_message_s": 1.0,
    "dp_contention": 0.3,
    "fsdp_contention": 0.4,
    "permute": 0.05,
    "moe_s": 0.3,
    "a2a_exposed": 0.05,
    "step_s": 0.05,
    "selective_share": 0.3,
}
"""Standard deviation of the logarithm among sites and software, by coefficient: what the fitted stacks differ by (see
priors.yaml), little for what the GPU alone decides. Coefficients that are not here stay as they are."""
UNSEEN, SEEN = 0.5, 0.2
"""Share of it that adds to the profile's error: where the stack has no value of its own, and where it has."""
DERIVED = 0.25
"""The same of a GPU's rates where its profile is that of a relative."""
SHARES = (0.05, 1.0)
"""Limits of what priors.yaml does not have: shares of a rate."""
GPU = ("matmul", "matmul_fp8", "flash", "flash_backward", "tile", "batched", "memory")
"""Kept with the GPU; the others with the stack."""


@dataclass(frozen=True, kw_only=True)
class Belief:
    """What is believed of one coefficient of the case."""

    field: str
    value: float
    sd: float
    """Standard deviation of its logarithm."""
    lower: float
    upper: float
    of_gpu: bool
    """Kept with the GPU kind."""


def beliefs_of(
    profiles: Profiles,
    families: Sequence[str],
    stack: str,
    *,
    gpu_measured: bool = True,
    errors: Sequence[float] | Vector = (),
) -> list[Belief]:
    """What is believed of each coefficient that a log may move. [K32]

    sd^2 = (error of the profile)^2 + (share x spread among sites)^2, the share 0.5 where the stack has no value of its
    own and 0.2 where it has. `errors` take the place of the profile's (a fit's own). Values are the first family's.
    """
    known = priors()
    index = profiles.index(list(families)[:1], [stack])
    found = []
    for field, spread in SITES.items():
        at = int(index[field][0, 0])
        home, value = profiles.names[at][0], float(profiles.values[at])
        if value <= 0:
            continue
        error = float(errors[at]) if len(errors) else float(profiles.errors[at])
        own = home.startswith("stack ")
        site = (SEEN if own else UNSEEN) * spread
        of_gpu = not own and (home.startswith("gpu ") or field in GPU)
        if of_gpu and not gpu_measured:
            site = max(site, DERIVED)
        limits = known.get(field)
        lower, upper = (limits.lower, limits.upper) if limits else SHARES
        found.append(
            Belief(
                field=field,
                value=value,
                sd=math.hypot(error, site),
                lower=min(lower, value),
                upper=max(upper, value),
                of_gpu=of_gpu,
            )
        )
    return found
