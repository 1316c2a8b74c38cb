"""DT-FM: training over five networks, from one data centre to eight regions, by method and placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crosszone.analyse.published.dtfm_micro import tc_micro_results
from crosszone.analyse.published.dtfm_rig import (
    BY_PIPELINE,
    BY_STAGE,
    Fleet,
    RankOrder,
    fleet,
    layouts,
    placed,
    random_placement,
    read_rates,
    told,
)
from crosszone.analyse.published.result import Result
from crosszone.cost.profile import Profiles
from crosszone.errors import InputError
from crosszone.inputs.frameworks import frameworks
from crosszone.inputs.job import Job
from crosszone.inputs.model import Model
from crosszone.inputs.placement import Placement
from crosszone.inputs.rules import Case
from crosszone.inputs.strategy import Strategy
from crosszone.predict.predictor import Predictor

FAMILY = "dtfm"
FRAMEWORK = "megatron"  # Whose states are counted: 16-bit weights with fp32 copies
WHOLE_MB = 1e6  # Gradients go in one piece after the last backward pass
Row = Mapping[str, str]


def dtfm_results(rows: Sequence[Row], links_path: Path) -> list[Result]:
    """Every row of the family beside its prediction: a step on the network and the placement it names."""
    rates, known = read_rates(links_path), Profiles.load()
    fleets: dict[tuple[str, ...], Fleet] = {}
    found = []
    for row in rows:
        try:
            network = (row["setting"], row["zones"], row["intra_zone_gbps"], row["gpus"])
            machines = fleets.get(network) or fleets.setdefault(network, fleet(row, rates))
            predicted = iteration_s(row, machines, known)
        except (KeyError, ValueError, InputError):  # a network, method or degree that no such run had
            predicted = None
        found.append(_result(row, predicted))
    return found


def iteration_s(row: Row, machines: Fleet, profiles: Profiles) -> float:
    """Seconds of an iteration: as placed by default, the mean of random placements, or the best layout. [A27]"""
    method = row["method"]
    scheduled = method.startswith("DT-FM")
    order = BY_PIPELINE if scheduled else BY_STAGE
    if "random" in method:
        drawn = (random_placement(machines.gpus, order, seed) for seed in told()["seeds"])
        return float(np.mean([step_s(row, machines, placement, profiles) for placement in drawn]))
    if scheduled:
        return min(step_s(row, machines, placement, profiles) for placement in layouts(machines, int(row["pp"])))
    return step_s(row, machines, placed(machines.gpus, order), profiles)


def step_s(row: Row, machines: Fleet, placement: Placement, profiles: Profiles) -> float:
    """Seconds of an iteration on a placement; GPipe holds so many micro-batches, more run in further rounds. [A28]"""
    batch, rounds = int(row["global_batch"]), 1
    if _how(row)["strategy"]["schedule"] == "gpipe":
        rounds = max(1, batch // (told()["round_micro_batches"] * int(row["dp"]) * int(row["micro_batch"])))
    step = placed_run(row, machines, placement, profiles, batch // rounds).step
    return float((step.total_s + (rounds - 1) * step.pipelines.span_s).max())


def placed_run(row: Row, machines: Fleet, placement: Placement, profiles: Profiles, batch: int) -> Predictor:
    """The predictor of a row with a batch of its own; published runs are what they are: no rule is asked."""
    how = _how(row)
    job = Job(
        seq_len=int(row["seq_len"]),
        global_batch=batch,
        precision="fp16",
        optimizer=how["optimizer"],
        framework=FRAMEWORK,
        stack=how["stack"],
    )
    links = machines.crossings
    case = Case(model=_model(row, how["model"]), job=job, cluster=machines.cluster, strategy=_strategy(row))
    return Predictor(
        name=row["id"],
        site=RankOrder(case=case, placement=placement, links=dict(links.links), banded=False, shared_crossings=links),
        framework=frameworks()[FRAMEWORK],
        profiles=profiles,
        stack=profiles.stack_of(FRAMEWORK, how["stack"]),
        release=None,
        notices=(),
    )


def _strategy(row: Row) -> Strategy:
    """Gradients in 16 bits, reduced in one piece by a ring over all replicas, after everything else."""
    exchange = {
        "overlap_gradients": False,
        "overlap_parameters": False,
        "gradient_dtype": "fp16",
        "reduce": "flat",
        "algorithm": "ring",
        "bucket_mb": WHOLE_MB,
        "flows": told()["sockets"],
    }
    degrees = {axis: int(row[axis]) for axis in ("tp", "pp", "dp", "micro_batch")}
    given = dict(_how(row)["strategy"])
    if degrees["pp"] == 1:
        del given["schedule"]
    return Strategy.model_validate({**given, **degrees, "zero": 0, "communication": exchange})


def _model(row: Row, head: dict[str, Any]) -> Model:
    hidden = int(row["hidden"])
    shape = {"layers": int(row["layers"]), "hidden": hidden, "ffn_hidden": 4 * hidden, "heads": told()["heads"]}
    learned = {"positions": "learned", "max_seq_len": int(row["seq_len"])}
    return Model.model_validate(shape | learned | {"norm": "layernorm", "bias": ["qkv", "out", "mlp"]} | head)


def _how(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = told()["methods"][row["method"].partition(" ")[0]]
    return found


def _result(row: Row, predicted: float | None) -> Result:
    return Result(
        id=row["id"],
        family=FAMILY,
        case=f"{row['setting']}, {row['layers']} layers, batch {row['global_batch']}, {row['method']}",
        unit=row["unit"],
        published=float(row["value"]),
        predicted=predicted,
        reason="" if predicted is not None else "published_unmodelled",
    )


__all__ = ["dtfm_results", "iteration_s", "tc_micro_results"]
