"""Tiny: the same kind of run, shrunk until any machine does it in seconds.

Degrees, schedule, experts, latent attention and options stay; widths, layers, vocabulary, sequence and accumulation
shrink, and whatever divides what in the plan still does.
"""

from __future__ import annotations

import math
from typing import Any

LEARNING_RATE = {"adamw": 1e-2, "adam": 1e-2, "lamb": 2e-2, "lion": 1e-3, "muon": 1e-2, "sgd": 0.5}
LEARNING_RATE |= {"sgd-momentum": 0.1, "adafactor": 2e-2}
"""Rates at which five steps of a tiny model visibly learn."""


def scale_to_tiny(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of the tiny run."""
    strategy, job = dict(settings["strategy"]), dict(settings["job"])
    t, c = strategy["tp"], strategy["cp"]
    job["seq_len"] = round_to_unit(64, job["seq_len"], 2 * c * t)
    strategy["micro_batch"] = min(2, strategy["micro_batch"])
    strategy["replica_micro_batches"] = reduce_micro_batches(strategy["replica_micro_batches"], strategy["pp"])
    strategy["micro_batches"] = max(strategy["replica_micro_batches"])
    job["global_batch"] = strategy["micro_batch"] * sum(strategy["replica_micro_batches"])
    chunks = strategy["chunk_layers"]
    strategy["chunk_layers"] = [min(2 if len(chunks) == 1 else 1, layers) for layers in chunks]
    model = build_tiny_model(
        settings["model"], strategy, job["seq_len"], keep_vocab=settings["data"]["path"] is not None
    )
    if len(chunks) == 1:
        strategy["chunk_layers"] = [model["layers"]]
    if strategy["local_update"]:
        strategy["local_update"] = shorten_local_update(strategy["local_update"])
    rate = LEARNING_RATE[job["optimizer"]]
    training = settings["training"] | {"lr": rate, "min_lr": rate / 10, "warmup_steps": 0}
    data = settings["data"] | {"init_from": None}  # Published weights have the sizes of the real model.
    return settings | {"model": model, "job": job, "strategy": strategy, "training": training, "data": data}


def build_tiny_model(
    model: dict[str, Any], strategy: dict[str, Any], seq_len: int, *, keep_vocab: bool
) -> dict[str, Any]:
    """A small architecture of the same kind. The vocabulary stays where real data need it."""
    t, c, ep = strategy["tp"], strategy["cp"], strategy["ep"]
    small = dict(model)
    unit = t * c if model["heads"] % (t * c) == 0 else t
    if model["kv_heads"] == model["heads"]:
        small["heads"] = small["kv_heads"] = max(2, unit) if unit != 1 else 2
    else:
        # As many key/value heads as ranks share them, or fewer where the plan replicates them.
        kv = model["kv_heads"]
        small["kv_heads"] = unit if kv % unit == 0 and unit > 1 else min(kv, 2) if unit == 1 else math.gcd(kv, unit)
        small["heads"] = 2 * math.lcm(unit, small["kv_heads"])
    small["head_dim"] = max(8, -(-64 // small["heads"] // 8) * 8)
    small["hidden"] = small["heads"] * small["head_dim"]
    small["embedding_width"] = small["hidden"] // (1 if model["embedding_width"] == model["hidden"] else 2)
    small["ffn_hidden"] = 2 * small["hidden"]
    if not keep_vocab:
        small["vocab"] = round_to_unit(256, model["vocab"], 8 * t)
        padded = model["vocab_padded_to"]
        small["vocab_padded_to"] = (
            None if padded is None else small["vocab"] + (8 * t if padded > model["vocab"] else 0)
        )
    if model["max_seq_len"] is not None:
        small["max_seq_len"] = max(seq_len, min(model["max_seq_len"], 64))
    layers = sum(strategy["chunk_layers"])
    moe = model["moe"]
    if moe:
        dense, every = min(1, moe["first_dense"]), moe["every"]
        if len(strategy["chunk_layers"]) == 1:
            layers = min(model["layers"], max(layers, dense + every))
        dense = dense if dense + every <= layers else 0
        experts = min(moe["experts"], max(ep, -(-4 // ep) * ep))
        small["moe"] = moe | {
            "experts": experts,
            "top_k": min(2, moe["top_k"], experts),
            "ffn_hidden": small["hidden"],
            "shared_ffn_hidden": small["hidden"],
            "shared_experts": min(1, moe["shared_experts"]),
            "first_dense": dense,
            "every": min(every, layers),
        }
    small["layers"] = layers
    if model["window"]:
        full = model["window"]["full_every"]
        tokens = min(model["window"]["tokens"], max(1, seq_len // 2))
        small["window"] = {"tokens": tokens, "full_every": None if full is None else min(full, layers)}
    if model["mla"]:
        ranks = {"kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
        small["mla"] = ranks | {"q_lora_rank": None if model["mla"]["q_lora_rank"] is None else 32}
    return small


def round_to_unit(target: int, upper: int, unit: int) -> int:
    """A multiple of `unit` near `target`, no more than `upper`; `upper` itself where it is small."""
    return upper if upper <= target else min(upper, -(-target // unit) * unit)


def reduce_micro_batches(micro_batches: list[int], stages: int) -> list[int]:
    """Micro-batches of each replica in about the same proportions, enough to fill a pipeline, whole rounds of it."""
    largest = max(micro_batches)
    limit = 2 * stages if stages > 1 else (2 if len(set(micro_batches)) == 1 else 4)
    if largest <= limit:
        return list(micro_batches)
    unit = stages if all(count % stages == 0 for count in micro_batches) else 1
    return [max(unit, round(count * limit / largest / unit) * unit) for count in micro_batches]


def shorten_local_update(local: dict[str, Any]) -> dict[str, Any]:
    """Synchronisations often enough for a few steps to show them."""
    fragment_steps = min(local["steps"] // local["fragments"], 2)
    return local | {"steps": fragment_steps * local["fragments"], "delay": min(local["delay"], fragment_steps - 1)}


def fold_replicas(
    settings: dict[str, Any], refusal: type[Exception], max_micro_batches: int | None = None
) -> dict[str, Any]:
    """A data-parallel plan on one process: its replicas' micro-batches one after the other, the same samples.

    With `max_micro_batches`, no more micro-batches than that, and a smaller batch.
    """
    strategy = settings["strategy"]
    split = [axis for axis in ("tp", "pp", "cp", "ep") if strategy[axis] > 1]
    if split:
        ranks = math.prod(strategy[axis] for axis in ("tp", "cp", "dp", "pp"))
        raise refusal(
            f"the plan cuts the model ({', '.join(f'{axis} {strategy[axis]}' for axis in split)}): one process cannot "
            f"run it; start {ranks} with torchrun --nproc-per-node {ranks} train.py settings.json"
        )
    total = sum(strategy["replica_micro_batches"])
    total = total if max_micro_batches is None else min(total, max_micro_batches)
    changes = {"dp": 1, "replica_micro_batches": [total], "micro_batches": total, "shard_ranks": 1}
    changes["local_update"] = None
    job = settings["job"] | {"global_batch": total * strategy["micro_batch"]}
    return settings | {"strategy": strategy | changes, "job": job, "zone_of_rank": [0], "node_of_rank": [0]}
