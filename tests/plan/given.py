"""Any small problem to plan, drawn by hypothesis or by a seeded generator, and every strategy of its spaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import Phase
from hypothesis import strategies as st

from crosszone.cost.profile import Profiles
from crosszone.inputs.scenario import load_scenario
from crosszone.inputs.strategy import Strategy
from crosszone.plan.bounds import BoundTable
from crosszone.plan.candidates import Candidate
from crosszone.plan.problem import Problem
from crosszone.plan.search import PlanSearch

Pick = Callable[[Sequence[Any]], Any]
"""One of several: `Random.choice`, or hypothesis' way to draw."""
Ints = npt.NDArray[np.int64]

SHOWN_AS_FOUND = (Phase.explicit, Phase.reuse, Phase.generate)
"""A failure is shown as it was drawn: to make it smaller would take minutes."""
GPUS = ("a100-40gb-sxm", "h100-80gb-sxm", "v100-16gb-sxm", "t4", "l4", "gb200")
FRAMEWORKS = ("any", "ddp", "fsdp", "deepspeed", "megatron", "horovod")


@cache
def profiles() -> Profiles:
    """The profiles that ship."""
    return Profiles.load()


def problem_of(fields: dict[str, Any], **pinned: Any) -> Problem:
    """A problem from the fields of a scenario; what is pinned as a strategy takes it."""
    return Problem(scenario=load_scenario(fields), pinned=Strategy(**pinned), profiles=profiles())


SMALL = ((512, 8), (1024, 8), (2048, 16), (4096, 32), (768, 6))
LARGE = ((2048, 16), (4096, 32), (8192, 64))
"""Width and heads of a model."""


def model_fields(pick: Pick, widths: Sequence[tuple[int, int]] = SMALL) -> dict[str, Any]:
    """A small architecture, dense or with experts."""
    hidden, heads = pick(widths)
    fields: dict[str, Any] = {
        "layers": pick([1, 2, 3, 4, 6, 8]),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": pick([heads, heads // 2, 1]),
        "ffn_hidden": pick([4 * hidden, 3 * hidden]),
        "vocab": pick([32000, 50257, 128256]),
        "tied_embeddings": pick([False, True]),
        "activation": pick(["swiglu", "gelu"]),
        "kind": pick(["decoder", "decoder", "encoder"]),
    }
    if pick([False, False, True]):
        fields["layers"] = max(3, fields["layers"])
        moe = {"experts": pick([4, 6]), "top_k": 2, "ffn_hidden": hidden, "shared_experts": pick([0, 1])}
        fields["moe"] = moe | {"first_dense": pick([0, 1]), "every": pick([1, 2])}
    elif pick([False, False, False, True]):
        fields["pattern"] = pick(["M-M-", "M*-M", "MM*-M-", "*-M-*-M-"])
        fields["layers"] = len(fields["pattern"])
        fields["mamba"] = {"heads": 16, "head_dim": hidden // 8, "state": 64, "groups": pick([1, 8])}
    if pick([False, False, False, True]):
        fields["mtp_layers"] = pick([1, 2])
    return fields


def zone_fields(pick: Pick, name: str, kinds: Sequence[str], most: int) -> dict[str, Any]:
    """A zone of one or two node groups with at most so many GPUs."""
    nodes, left = [], most
    for _ in range(pick([1, 1, 2])):
        if not left:
            break
        gpus = pick([n for n in (1, 2, 3, 4, 6, 8) if n <= left])
        count = pick([n for n in (1, 2, 3) if n * gpus <= left])
        left -= gpus * count
        node: dict[str, Any] = {"count": count, "gpus": gpus, "gpu": pick(kinds)}
        node |= pick([{}, {"nic_gbps_per_gpu": 200}, {"nic_gbps": 25}])
        nodes.append(node | pick([{}, {}, {"intra_link": "pcie"}]))
    return {"name": name, "nodes": nodes} | pick([{}, {}, {"uplink_gbps": 5}])


def link_fields(pick: Pick) -> dict[str, Any]:
    """A link of any rate and round-trip time."""
    figures = {"gbps": pick([0.1, 1, 10, 100, 400]), "rtt_ms": pick([0, 0.5, 10, 80, 300])}
    return figures | pick([{}, {"loss_pct": 0.01}, {"flow_gbps": 2}])


def cluster_fields(pick: Pick, *, zones: Sequence[int] = (1, 2, 2, 3), gpus: int = 12) -> dict[str, Any]:
    """One to three zones, GPU kinds mixed or not; now and then two of them equal."""
    kinds = pick([GPUS[:1], GPUS[:2], GPUS[1:2], GPUS[2:4], GPUS[4:5], GPUS[5:], GPUS])
    count = pick(zones)
    found = [zone_fields(pick, "abc"[i], kinds, gpus // count) for i in range(count)]
    if count > 1 and pick([False, False, True]):
        found[1] = found[0] | {"name": "b"}
    cluster: dict[str, Any] = {"zones": found, "default_link": link_fields(pick)}
    if count > 1 and pick([False, True]):
        cluster["links"] = [{"between": ["b", "a"], **link_fields(pick), "gbps_back": pick([1, 50])}]
    return cluster


def fields_of(
    pick: Pick,
    *,
    framework: Sequence[str] = FRAMEWORKS,
    batches: Sequence[int] = (2, 4, 6, 8, 12, 16, 24),
    widths: Sequence[tuple[int, int]] = SMALL,
    **cluster: Any,
) -> dict[str, Any]:
    """A whole scenario that every framework may train."""
    where = cluster_fields(pick, **cluster)
    kinds = {node["gpu"] for zone in where["zones"] for node in zone["nodes"]}
    precisions = ["fp16", "fp32"]
    if not kinds & {"v100-16gb-sxm", "t4"}:
        precisions += ["bf16", "bf16", "bf16", "bf16-amp"]
    job = {
        "seq_len": pick([256, 1024, 4096, 8192]),
        "global_batch": pick(batches),
        "precision": pick(precisions),
        "optimizer": pick(["adamw", "sgd"]),
        "framework": pick(framework),
    }
    return {"name": "any", "model": model_fields(pick, widths), "job": job, "cluster": where}


def pins_of(pick: Pick, batch: int) -> dict[str, Any]:
    """Nothing pinned, or a field or two."""
    pinned: dict[str, Any] = dict(pick([{}, {}, {"micro_batch": 1}, {"pp": 2}, {"recompute": "full"}, {"zero": 0}]))
    if pick([False, False, True]):
        communication = [
            {"flows": 8}, {"bucket_mb": 5.0}, {"overlap": 0.5}, {"overlap": 0.0}, {"algorithm": "ring"},
            {"congestion": "bbr"}, {"overlap_gradients": False}, {"reduce": "flat"},
        ]  # fmt: skip
        pinned["communication"] = pick(communication)
    if pick([False] * 5 + [True]):
        pinned["dp"] = pick([d for d in (1, 2, 3, 4) if batch % d == 0])
    return pinned


@st.composite
def problems(draw: st.DrawFn, pins: bool = True, **limits: Any) -> Problem:
    """Any small problem, with some fields pinned."""

    def pick(some: Sequence[Any]) -> Any:
        return draw(st.sampled_from(list(some)))

    fields = fields_of(pick, **limits)
    return problem_of(fields, **(pins_of(pick, fields["job"]["global_batch"]) if pins else {}))


def seeded(seed: int, pins: bool = True, **limits: Any) -> Problem:
    """The same from a number."""
    pick = Random(seed).choice
    fields = fields_of(pick, **limits)
    return problem_of(fields, **(pins_of(pick, fields["job"]["global_batch"]) if pins else {}))


def grids(search: PlanSearch) -> Iterator[tuple[int, BoundTable]]:
    """Every strategy of each framework that has any, with the number of its space."""
    for number, space in enumerate(search.spaces):
        shapes = len(space.layout_table.layouts)
        grid = space.build_bound_table(np.arange(shapes), include_dominated=True) if shapes else None
        if grid is not None:
            yield number, grid


def rows_of(grid: BoundTable) -> tuple[Ints, Ints, Ints]:
    """Core, option and place of its sort, of every strategy of a grid."""
    core, leader = grid.pair_with_groups()
    counts = [len(grid.expand_groups(core[at : at + 1], leader[at : at + 1])[0]) for at in range(len(core))]
    owner, option = grid.expand_groups(core, leader)
    return owner, option, np.repeat(leader, counts)


def strategies_of(grid: BoundTable, pick: Pick | None = None, most: int | None = None) -> tuple[Ints, Ints, Ints]:
    """All of `rows_of`, or some of them."""
    core, option, leader = rows_of(grid)
    if pick is None or most is None or len(core) <= most:
        return core, option, leader
    at = np.array(sorted({pick(range(len(core))) for _ in range(most)}))
    return core[at], option[at], leader[at]


def candidates(search: PlanSearch, grid: BoundTable, core: Ints, option: Ints) -> list[Candidate]:
    """The strategies of these numbers."""
    return [search.build_candidate(grid, c, o) for c, o in zip(core.tolist(), option.tolist(), strict=True)]
