"""Switches: ways to send less, later or faster between ranks, by name (`switches.yaml`).

    build_switch_changes("accumulation", 8, predictor)     # {"job.global_batch": 512}
    find_option("bucket", predictor)                        # "--ddp-bucket-size 187000000"

A switch is fields of the scenario under a name people know, with the option of each framework it comes to.

The bucket of gradients that makes a step shortest, found by predicting it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import numpy as np

from crosszone.cost.memory import GIB
from crosszone.errors import IllegalError, InvalidError, Notice, build_choice_error
from crosszone.inputs.document import parse_scalar
from crosszone.inputs.job import state_bytes
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import Name, Value, parse
from crosszone.predict.batch import get_bucket_bytes
from crosszone.predict.placed_strategy import PlacedStrategy
from crosszone.predict.predictor import Predictor
from crosszone.text import load_texts, render_sentence

LEAST_MB = 1.0
SPARE = 0.9  # Share of the free memory that buffers may take
# Sizes tried at first, evenly on a logarithmic scale; then as many between the best one's neighbours.
PLACES = 17


def find_best_bucket_mb(base: Predictor) -> float:
    """MB of gradients that should go together: the least predicted step over sizes from 1 MB to all of a rank's. [A4]

    Small buckets pay their latency often, large ones leave more behind the last backward pass; three digits are kept.
    """
    if not base.framework.has_buckets:
        params = {"framework": base.framework.title, "option": "bucket_mb"}
        field = "strategy.communication.bucket_mb"
        raise IllegalError(Notice(code="framework_lacks_option", field=field, params=params))
    params_per_rank = base.step.times.params_per_rank
    gradient_mb = float(np.max(params_per_rank.total)) * float(np.max(base.batch.work.gradient_bytes)) / 1e6
    low, high = LEAST_MB, max(gradient_mb, 2 * LEAST_MB)
    if base.framework.bucket_buffer:  # larger ones take memory of their own
        usual = get_bucket_bytes(base.case, base.framework.name) / 1e6
        high = min(high, max(usual, usual + SPARE * base.memory.margin * GIB / 1e6))
    for _ in range(2):
        sizes = np.geomspace(low, high, PLACES)
        best = int(np.argmin([with_bucket(base, float(size)).step_s[1] for size in sizes]))
        low, high = float(sizes[max(0, best - 1)]), float(sizes[min(len(sizes) - 1, best + 1)])
    return float(f"{sizes[best]:.3g}")


def with_bucket(base: Predictor, bucket_mb: float) -> Predictor:
    """The same strategy in the same place with another bucket."""
    communication = base.strategy.communication.replace(bucket_mb=bucket_mb)
    case = replace(base.case, strategy=base.strategy.replace(communication=communication))
    # links between zones are the same for every bucket: looked up once for 34 predictions
    placed = PlacedStrategy(
        case=case, placement=base.placed.placement, links=base.placed.links, shared_crossings=base.placed.crossings
    )
    return replace(base, placed=placed)


BEST, TIMES = "best", "x"  # A bucket that is looked for; a factor on what there is, such as x2
MOST_THREADS = 16  # Threads of a connection that NCCL allows
PARTS_OF_LOCAL = ("fragments", "delay", "update_type")  # Switches that only say how zones average
TALK = "strategy.communication"


class Switch(Value):
    """One switch: what it takes, what it sets, and the options it comes to."""

    name: Name
    """Its name."""
    takes: Literal["flag", "count", "number", "one"]
    """What its value is: on or off, a whole number, a number, or one of `values`."""
    values: tuple[str, ...] = ()
    """Of a choice."""
    low: float = 0
    """Least number."""
    high: float = 1_000_000
    """Largest number."""
    sets: str | None = None
    """Field of the scenario; null: several."""
    tries: tuple[Any, ...]
    """Values that suggestions try."""
    options: dict[str, str | dict[str, str]]
    """Option of each framework, or one for each value."""
    source: str = ""
    """What is said of convergence rests on this."""


class Listed(Value):
    """A switch as it can be shown: what it takes and how it stands."""

    name: str
    """Its name."""
    title: str
    """What it is."""
    takes: str | tuple[str, ...]
    """flag, count or number, or the values of a choice."""
    low: float | None
    """Least number; null: it takes none."""
    high: float | None
    """Largest number; null: it takes none."""
    now: Any
    """How it stands; null: it has no value here."""
    option: str | None
    """That in the framework's own words; null: it has no such option."""
    frameworks: tuple[str, ...]
    """Frameworks that have it."""


def list_switches(predictor: Predictor, language: str) -> tuple[Listed, ...]:
    """All switches as they stand in a prediction."""
    return tuple(
        Listed(
            name=name,
            title=render_sentence("switch", name, "title", language, {}),
            takes=switch.values or switch.takes,
            low=switch.low if switch.takes in ("count", "number") else None,
            high=switch.high if switch.takes in ("count", "number") else None,
            now=get_switch_value(name, predictor),
            option=find_option(name, predictor),
            frameworks=tuple(switch.options),
        )
        for name, switch in load_switches().items()
    )


@cache
def load_switches() -> dict[str, Switch]:
    """All switches by name."""
    document = read_shipped("crosszone.analyse", "switches.yaml")
    return {
        name: parse(Switch, {"name": name, **entry}, document, at=(name,)) for name, entry in document.value.items()
    }


def find_switch(name: str) -> Switch:
    """The switch of this name; `InvalidError` names all there are."""
    switch = load_switches().get(name)
    if switch is None:
        raise InvalidError(
            Notice(code="switch_unknown", field="--switch", value=name, params={"known": [*load_switches()]})
        )
    return switch


def read_switch(text: str) -> tuple[str, Any]:
    """Name and value of `NAME=VALUE`, such as `compression=powersgd:4` or `bucket=best`."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not value:
        raise InvalidError(Notice(code="switch_malformed", field="--switch", value=text))
    switch = find_switch(name)
    return name, value if switch.takes == "one" else parse_scalar(value)


def build_switch_changes(name: str, value: Any, base: Predictor) -> dict[str, Any]:
    """Fields that turning a switch sets; `base`: what there is now. `InvalidError` for a value it cannot take."""
    switch = find_switch(name)
    match name:
        case "accumulation":
            return _set_accumulation(switch, value, base)
        case "compression":
            return _set_compression(switch, value, base)
        case "primitive":
            choice = _find_choice(switch, value)
            if choice != "hierarchical":
                return {f"{TALK}.algorithm": choice, f"{TALK}.reduce": "flat"}
            return {f"{TALK}.algorithm": "auto", f"{TALK}.reduce": choice} | _set_state_sharding(base)
        case "bucket" if value == BEST:
            return {f"{TALK}.bucket_mb": find_best_bucket_mb(base)}
        case "local_steps":
            steps = _check_number(switch, value)
            return {"strategy.local_update.steps": steps} if steps else {"strategy.local_update": None}
    if name in PARTS_OF_LOCAL and base.strategy.local_update is None:
        raise InvalidError(Notice(code="switch_needs_local_steps", field=name, value=value))
    assert switch.sets is not None
    return {switch.sets: check_value(switch, value)}


def check_value(switch: Switch, value: Any) -> Any:
    """The value as the switch takes it."""
    if switch.takes == "one":
        return _find_choice(switch, value)
    if switch.takes == "flag":
        flags = {"on": True, "off": False, "true": True, "false": False}
        flag = flags.get(str(value).lower())
        if flag is None:
            raise build_choice_error(switch.name, value, ["on", "off"])
        return flag
    return _check_number(switch, value)


def find_option(name: str, after: Predictor) -> str | None:
    """What a switch comes to in the framework's own words, as `after` has it; None: it has no such option."""
    switch = find_switch(name)
    value = get_switch_value(name, after)
    off = value is None or (name, value) == ("local_steps", 0)
    if (name, after.framework.name) == ("prefetch", "deepspeed"):
        off = after.strategy.zero != 3  # its key is one of stage 3
    option = None if off else switch.options.get(after.framework.name)
    if isinstance(option, Mapping):
        key = {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
        option = option.get(key)
    return None if option is None else option.format_map(_Parameters(after, value))


def split_connections(flows: int) -> tuple[int, int]:
    """Threads, and sockets of each, that give a channel of NCCL so many connections."""
    # NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD: as many threads as go, since a thread serves its sockets alone
    threads = max(n for n in range(1, MOST_THREADS + 1) if flows % n == 0)
    return threads, flows // threads


def describe_convergence(name: str, value: Any, language: str) -> str:
    """What a switch does to convergence, said of its value where values differ."""
    parts = load_texts(language)["switch"][name]
    text: str = parts.get(f"convergence_{value}", parts["convergence"])
    return text


def list_frameworks_with(name: str, value: Any) -> list[str]:
    """Frameworks that have an option for this value of a switch."""
    key = {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value).partition(":")[0]
    return [
        framework
        for framework, options in find_switch(name).options.items()
        if not isinstance(options, Mapping) or key in options
    ]


def get_switch_value(name: str, predictor: Predictor) -> Any:
    """How a switch stands."""
    s = predictor.strategy
    c, local = s.communication, s.local_update
    standing: dict[str, Any] = {
        "accumulation": predictor.micro_batches,
        "compression": c.compression,
        "weight_compression": c.weight_compression,
        "prefetch": c.overlap_parameters,
        "overlap": c.overlap_gradients,
        "tensor_overlap": c.overlap_tensor,
        "primitive": "hierarchical" if c.reduce == "hierarchical" else "tree" if c.algorithm == "tree" else "ring",
        "bucket": get_bucket_bytes(predictor.case, predictor.framework.name) / 1e6,
        "overlap_coefficient": c.overlap,
        "sharding": s.shard_within,
        "local_steps": local.steps if local else 0,
        "fragments": local.fragments if local else None,
        "delay": local.delay if local else None,
        "update_type": local.dtype if local else None,
        "flows": c.flows,
        "congestion": c.congestion,
        "socket_buffer": c.socket_buffer_mb,
    }
    return standing[name]


class _Parameters(dict[str, Any]):
    """What may stand in the text of an option, looked up when it does."""

    def __init__(self, now: Predictor, value: Any):
        super().__init__(value=value)
        self._now = now

    def __missing__(self, key: str) -> Any:
        predictor = self._now
        s, placed = predictor.strategy, predictor.placed
        zones = max(1, len(placed.replica_zones))
        threads, sockets = split_connections(s.communication.flows)
        gradient_bytes = state_bytes(predictor.case.job, framework=predictor.framework.name).gradients
        size = get_bucket_bytes(predictor.case, predictor.framework.name)
        replicas = s.dp or 1
        in_node = placed.shard_ranks if s.shard_within == "node" else 1
        parameters_by_name: dict[str, Any] = {
            "micro_batches": predictor.micro_batches,
            "skipped": predictor.micro_batches - 1,
            "micro_batch": s.micro_batch,
            "global_batch": predictor.case.job.global_batch,
            "rank": s.communication.compression_rank,
            "bucket_mib": f"{size / 2**20:.4g}",
            "whole_mib": math.ceil(size / 2**20),
            "elements": round(size / gradient_bytes),
            "zones": zones,
            "replicas": replicas,
            "zone_replicas": replicas // zones,
            "node_replicas": in_node,
            "node_sets": replicas // in_node,
            "threads": threads,
            "sockets": sockets,
            "buffer_bytes": round((s.communication.socket_buffer_mb or 0.0) * 1e6),
            "onebit": "OneBitLamb" if predictor.case.job.optimizer == "lamb" else "OneBitAdam",
        }
        return parameters_by_name[key]


def _set_accumulation(switch: Switch, value: Any, base: Predictor) -> dict[str, Any]:
    """At a fixed micro-batch more of them make a larger global batch; replicas with shares of their own keep them."""
    s, counts = base.strategy, base.strategy.replica_micro_batches
    if isinstance(value, str) and value.startswith(TIMES):
        factor = int(_check_number(switch, parse_scalar(value[1:])))
        shares = {"strategy.replica_micro_batches": [factor * count for count in counts]} if counts else {}
        return {"job.global_batch": factor * base.case.job.global_batch, **shares}
    equal = {"strategy.replica_micro_batches": None} if counts else {}
    return {"job.global_batch": int(_check_number(switch, value)) * s.micro_batch * (s.dp or 1), **equal}


def _set_state_sharding(base: Predictor) -> dict[str, Any]:
    """What a hierarchy goes with: states shared inside a zone, where the framework reduces by them."""
    within = base.framework.shard_within
    return {"strategy.shard_within": "zone"} if "zone" in within and base.strategy.shard_within == "all" else {}


def _set_compression(switch: Switch, value: Any, base: Predictor) -> dict[str, Any]:
    kind, _, rank = str(value).partition(":")
    _find_choice(switch, kind)
    read = parse_scalar(rank) if rank else None
    if (kind == "powersgd") != isinstance(read, int) or isinstance(read, bool):
        raise InvalidError(Notice(code="switch_powersgd", field=switch.name, value=value))
    fields_set = {f"{TALK}.compression": kind}
    ranked = read is not None or base.strategy.communication.compression_rank is not None
    return fields_set | ({f"{TALK}.compression_rank": read} if ranked else {})


def _find_choice(switch: Switch, value: Any) -> str:
    if value not in switch.values:
        raise build_choice_error(switch.name, value, switch.values)
    return str(value)


def _check_number(switch: Switch, value: Any) -> Any:
    """A number within its bounds; a count where it is one."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not (is_whole or (isinstance(value, float) and switch.takes == "number")):
        code = "must_be_whole" if switch.takes == "count" else "must_be_number"
        raise InvalidError(Notice(code=code, field=switch.name, value=value))
    if not switch.low <= value <= switch.high:
        params = {"low": switch.low, "high": switch.high}
        raise InvalidError(Notice(code="switch_out_of_range", field=switch.name, value=value, params=params))
    return value if switch.takes == "count" else float(value)
