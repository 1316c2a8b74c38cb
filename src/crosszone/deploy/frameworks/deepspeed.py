"""DeepSpeed: ZeRO, pipelines and tensor parallelism by `ds_config.json`; its launcher or torchrun starts `train.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from crosszone.deploy.bundle import Option, Where, option
from crosszone.deploy.launch import ARGUMENTS, Agent, Launch, refused, torchrun
from crosszone.deploy.program import dumped
from crosszone.deploy.shell import Raw
from crosszone.inputs.shipped import read_shipped

CONFIG, HOSTFILE = "ds_config.json", "hostfile"
# First release without MiCS and without the 1-bit optimizers (deepspeedai/DeepSpeed issue 8489).
WITHOUT = "0.19.7"
# Optimizers that send one bit of each element of their momentum.
ONE_BIT = {"adamw": "OneBitAdam", "adam": "OneBitAdam", "lamb": "OneBitLamb"}
# Share of the steps before they do so: 23,000 of BERT-Large's 152,000 (1-bit Adam, arXiv 2102.02888).
WARM_UP = 0.15
PREFETCH = 50_000_000  # Elements that stage 3 gathers ahead: DeepSpeed's own value
# Optimizers that DeepSpeed makes without a compiler on the nodes; the others come from the trainer.
TYPES = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "sgd-momentum": "SGD", "muon": "Muon"}
# Those that it runs in the host's memory (offload).
ON_THE_HOST = {"adamw": "AdamW", "adam": "Adam", "lion": "Lion"}
BY_MATRIX = ("lamb", "adafactor")  # Those that look at whole matrices, which ZeRO cuts into flat pieces
TESTED = ("adamw", "adam", "muon")  # Those whose states DeepSpeed shards without being told that it may
COLUMNS = (r".*\.attention\.[qkv]\.weight$", r".*\.mlp\.(gate|up)\.weight$")
# Projections of the trainer's model that AutoTP cuts; all else is whole on every rank.
ROWS = (r".*\.attention\.out\.weight$", r".*\.mlp\.down\.weight$")


def options(launch: Launch) -> tuple[Option, ...]:
    """What DeepSpeed and the trainer are told."""
    _refuse(launch)
    parts = (_batch, _optimizer, _precision, _zero, _wire, _axes, _rest)
    return tuple(one for part in parts for one in part(launch))


def files(launch: Launch) -> dict[str, str]:
    """The configuration, and the host list where every node's address is known."""
    config = config_of(options(launch))
    check_keys(config)
    check_batch(config, launch.predictor.strategy.dp or 1)
    found = {CONFIG: dumped(config)}
    if launch.has_addresses:
        lines = [f"{node.address} slots={node.used_gpus}" for node in launch.nodes]
        found[HOSTFILE] = "\n".join(lines) + "\n"
    return found


def command(launch: Launch, agent: Agent) -> tuple[str | Raw, ...] | None:
    """DeepSpeed's launcher where it can say what runs where, else torchrun."""
    if not _by_launcher(launch):
        return torchrun(launch, agent, "train.py", "settings.json")
    python = launch.settings.python
    start = ("deepspeed",) if python is None else (python, "-m", "deepspeed.launcher.runner")
    # Without ssh a node's launcher reads from the host list how many processes each node has, and starts its own.
    return (
        *start,
        *("--hostfile", HOSTFILE, "--no_ssh", "--node_rank", str(agent.node)),
        *("--master_addr", Raw('"$MASTER_ADDR"'), "--master_port", Raw('"$MASTER_PORT"')),
        *("--no_local_rank", "train.py", "settings.json", ARGUMENTS),
    )


def requires(launch: Launch) -> dict[str, str]:
    """Packages that this plan needs beside DeepSpeed itself, or a version of it."""
    s = launch.predictor.strategy
    one_bit = s.communication.compression == "1-bit"
    found = {"deepspeed": f"<{WITHOUT}"} if one_bit or _sets(launch) else {}
    return found | ({"cupy": ""} if one_bit else {})


def config_of(told: tuple[Option, ...]) -> dict[str, Any]:
    """ds_config.json as data: options that are keys, dots opened."""
    config: dict[str, Any] = {}
    for one in told:
        if one.where == "key":
            *path, last = one.name.split(".")
            inner = config
            for step in path:
                inner = inner.setdefault(step, {})
            inner[last] = one.value
    return config


@cache
def keys() -> Mapping[str, Any]:
    """The allow-list (`deepspeed_keys.yaml`)."""
    found: Mapping[str, Any] = read_shipped("crosszone.deploy", "deepspeed_keys.yaml").value
    return found


def check_keys(config: Mapping[str, Any]) -> None:
    """Refuse a configuration with a key that is not on the list: DeepSpeed would ignore or refuse it."""
    for key in config:
        if key not in keys()["top"]:
            raise refused("deepspeed_key", CONFIG, key, allowed=sorted(keys()["top"]))
    for key in config.get("zero_optimization", {}):
        if key not in keys()["zero"]:
            raise refused("deepspeed_key", f"{CONFIG} zero_optimization", key, allowed=sorted(keys()["zero"]))


def check_batch(config: Mapping[str, Any], replicas: int) -> None:
    """Refuse a batch that is not micro-batch x accumulation x replicas; a micro-batch that is left out follows."""
    batch, steps = config["train_batch_size"], config.get("gradient_accumulation_steps", 1)
    micro = config.get("train_micro_batch_size_per_gpu", batch // (steps * replicas))
    if batch != micro * steps * replicas:
        told = {"micro": micro, "steps": steps, "replicas": replicas, "product": micro * steps * replicas}
        raise refused("deepspeed_batch", "train_batch_size", batch, **told)


def _by_launcher(launch: Launch) -> bool:
    """DeepSpeed's launcher gives a node's ranks its first GPUs, and rank r the GPU r modulo their number."""
    addresses = [node.address for node in launch.nodes]
    aligned = all(agent.first_rank % len(agent.gpus) == 0 for agent in launch.agents)
    return launch.has_addresses and launch.whole_nodes and aligned and len(set(addresses)) == len(addresses)


def _told(launch: Launch, where: Where, name: str, value: Any, key: str, **params: Any) -> Option:
    return option(where, name, value, launch.language, key=f"ds_{key}", **params)


def _stage(launch: Launch) -> int:
    return launch.predictor.strategy.zero or 0


def _sets(launch: Launch) -> bool:
    """States are sharded among some of the replicas only (MiCS): those of a zone or node, or a number of them."""
    p = launch.predictor
    return _stage(launch) == 3 and p.site.shard_ranks < (p.strategy.dp or 1)


# ---- what DeepSpeed does not do ----


def _refuse(launch: Launch) -> None:
    s = launch.predictor.strategy
    talk, optimizer = s.communication, launch.scenario.job.optimizer
    if s.uneven:
        raise refused("deepspeed_uneven", "strategy.replica_micro_batches", list(s.replica_micro_batches or ()))
    if talk.bucket_mb is not None and _stage(launch) == 0:
        raise refused("deepspeed_bucket", "strategy.communication.bucket_mb", talk.bucket_mb)
    if _stage(launch) and optimizer in BY_MATRIX:
        raise refused("deepspeed_by_matrix", "job.optimizer", optimizer, zero=_stage(launch))
    if s.offload != "none" and optimizer not in ON_THE_HOST:
        raise refused("deepspeed_offload", "job.optimizer", optimizer, allowed=list(ON_THE_HOST))
    sizes = {node.used_gpus for node in launch.nodes}
    if talk.compression == "int4" and (len(sizes) > 1 or any(len(node.agents) > 1 for node in launch.nodes)):
        raise refused("deepspeed_qgz_nodes", "strategy.communication.compression", "int4", sizes=sorted(sizes))
    if talk.compression == "1-bit" and s.pp > 1 and launch.scenario.job.precision == "bf16":
        raise refused("deepspeed_one_bit_pipeline", "strategy.communication.compression", "1-bit", pp=s.pp)
    if _sets(launch):
        _refuse_mics(launch)
    if s.tp > 1:
        _refuse_tp(launch)


def _refuse_mics(launch: Launch) -> None:
    """MiCS makes its sets of consecutive ranks, and gathers and reduces as they are."""
    p = launch.predictor
    s, size = p.strategy, p.site.shard_ranks
    for key, quantised in (("compression", "int4"), ("weight_compression", "int8")):
        if getattr(s.communication, key) == quantised:
            field = f"strategy.communication.{key}"
            raise refused("deepspeed_mics_plain", field, quantised, within=s.shard_within)
    if s.shard_within == "all":  # a number of replicas, wherever they lie
        return
    homes = p.site.node if s.shard_within == "node" else p.site.zone
    ranks = homes[0, :, 0, 0].tolist()
    sets = [ranks[first : first + size] for first in range(0, len(ranks), size)]
    if any(len(one) < size or len(set(one)) > 1 for one in sets):
        raise refused("deepspeed_mics_ranks", "strategy.shard_within", s.shard_within, size=size, ranks=len(ranks))


def _refuse_tp(launch: Launch) -> None:
    """AutoTP cuts plain projections by heads and makes groups of consecutive ranks; it knows no pipeline."""
    s, model, order = launch.predictor.strategy, launch.scenario.model, launch.predictor.site.placement.order
    if s.pp > 1:  # legal for stacks with tensor-parallel layers of their own, which a bundle does not bring
        raise refused("deepspeed_tp_pipeline", "strategy.pp", s.pp, tp=s.tp, stack=launch.scenario.job.stack)
    heads = model.kv_heads % s.tp or model.heads % s.tp
    whole = {
        "mixture of experts": model.moe is not None,
        "latent attention (MLA)": model.mla is not None,
        "attention sinks": model.attention_sinks,
        "norm over all query heads": model.qk_norm == "full",
        f"{model.kv_heads} key/value heads over {s.tp} ranks": bool(heads),
    }
    found = [name for name, there in whole.items() if there]
    if found:
        raise refused("deepspeed_tp_model", "strategy.tp", s.tp, what=found[0], model=model.name)
    if (s.dp or 1) > 1 and order.index("dp") < order.index("tp"):
        raise refused("deepspeed_tp_order", "placement.order", "-".join(order))


# ---- what it is told ----


def _batch(launch: Launch) -> Iterator[Option]:
    s, job = launch.predictor.strategy, launch.scenario.job
    steps = launch.predictor.micro_batches
    told = {"global_batch": job.global_batch, "micro_batch": s.micro_batch, "steps": steps, "dp": s.dp or 1}
    yield _told(launch, "key", "train_batch_size", job.global_batch, "train_batch_size", **told)
    yield _told(launch, "key", "train_micro_batch_size_per_gpu", s.micro_batch, "micro_batch", **told)
    yield _told(launch, "key", "gradient_accumulation_steps", steps, "accumulation", **told)


def _optimizer(launch: Launch) -> Iterator[Option]:
    s, training, kind = launch.predictor.strategy, launch.settings.training, launch.scenario.job.optimizer
    hosted = s.offload != "none"
    name = (ON_THE_HOST if hosted else TYPES).get(kind)
    if s.communication.compression == "1-bit":
        yield from _one_bit(launch)
    elif name is None:
        yield _told(launch, "argument", "deepspeed.initialize(optimizer)", kind, "client_optimizer", optimizer=kind)
    else:
        yield _told(launch, "key", "optimizer.type", name, "host_optimizer" if hosted else "optimizer", optimizer=kind)
        params: dict[str, Any] = {"lr": training.lr, "weight_decay": training.weight_decay}
        if kind in ("adamw", "adam", "lion"):
            params["betas"] = [training.beta1, training.beta2]
        if kind in ("adamw", "adam"):
            params |= {"eps": training.eps, "adam_w_mode": kind == "adamw"}
        if kind == "sgd-momentum":
            params["momentum"] = training.beta1
        if kind in ("adamw", "adam", "muon") and not hosted:
            params["torch_adam"] = True
        yield _told(launch, "key", "optimizer.params", params, "optimizer_params")
    if _stage(launch) and kind not in TESTED and not hosted:
        yield _told(launch, "key", "zero_allow_untested_optimizer", True, "untested", optimizer=kind)
    yield _told(launch, "key", "gradient_clipping", training.clip, "clip")


def _one_bit(launch: Launch) -> Iterator[Option]:
    """Its reduction is the optimizer's own, over NCCL; the first steps go uncompressed."""
    training, kind = launch.settings.training, launch.scenario.job.optimizer
    first = max(1, round(WARM_UP * launch.steps), min(training.warmup_steps, launch.steps // 10))
    params = {"lr": training.lr, "weight_decay": training.weight_decay, "betas": [training.beta1, training.beta2]}
    params |= {"eps": training.eps, "freeze_step": first, "comm_backend_name": "nccl"}
    yield _told(launch, "key", "optimizer.type", ONE_BIT[kind], "one_bit", optimizer=kind, version=WITHOUT)
    yield _told(launch, "key", "optimizer.params", params, "one_bit_params", steps=first)


def _precision(launch: Launch) -> Iterator[Option]:
    precision = launch.scenario.job.precision
    if precision == "bf16":
        yield _told(launch, "key", "bf16", {"enabled": True}, "bf16")
    elif precision == "fp16":
        yield _told(launch, "key", "fp16", {"enabled": True, "loss_scale": 0}, "fp16")
    elif precision == "bf16-amp":
        yield _told(launch, "key", "torch_autocast", {"enabled": True, "dtype": "bfloat16"}, "autocast")


def _zero(launch: Launch) -> Iterator[Option]:
    p = launch.predictor
    s, talk, stage = p.strategy, p.strategy.communication, _stage(launch)
    sharing = p.site.shard_ranks if _sets(launch) else s.dp or 1
    yield _told(launch, "key", "zero_optimization.stage", stage, f"zero_{stage}", dp=sharing)
    if stage == 0:
        return
    if _sets(launch):
        told = {"size": sharing, "sets": (s.dp or 1) // sharing, "version": WITHOUT}
        yield _told(launch, "key", "zero_optimization.mics_shard_size", sharing, f"mics_{s.shard_within}", **told)
    overlap = talk.overlap_gradients and s.pp == 1
    why = "overlap_pipeline" if s.pp > 1 else f"overlap_{str(overlap).lower()}"
    yield _told(launch, "key", "zero_optimization.overlap_comm", overlap, why)
    yield _told(launch, "key", "zero_optimization.reduce_scatter", True, "reduce_scatter")
    if talk.bucket_mb is not None:
        elements = round(talk.bucket_mb * 1e6 / _gradient_bytes(launch))
        told = {"mb": talk.bucket_mb, "bytes": _gradient_bytes(launch)}
        yield _told(launch, "key", "zero_optimization.reduce_bucket_size", elements, "bucket", **told)
    if stage == 3:
        ahead = PREFETCH if talk.overlap_parameters else 0
        why = f"prefetch_{str(talk.overlap_parameters).lower()}"
        yield _told(launch, "key", "zero_optimization.stage3_prefetch_bucket_size", ahead, why, elements=ahead)
    if s.offload != "none":
        host = {"device": "cpu", "pin_memory": True}
        yield _told(launch, "key", "zero_optimization.offload_optimizer", host, "offload_optimizer")
        if s.offload == "optimizer+weights":
            yield _told(launch, "key", "zero_optimization.offload_param", host, "offload_param")


def _wire(launch: Launch) -> Iterator[Option]:
    """Types and compression of what goes over the links."""
    talk = launch.predictor.strategy.communication
    kind = talk.compression if talk.compression in ("fp16", "bf16") else talk.gradient_dtype
    if kind is not None:
        yield _told(launch, "key", "communication_data_type", kind, "wire", dtype=kind)
    if talk.compression == "int4":
        yield _told(launch, "key", "zero_optimization.zero_quantized_gradients", True, "qgz")
    if talk.weight_compression == "int8":
        yield _told(launch, "key", "zero_optimization.zero_quantized_weights", True, "qwz")


def _axes(launch: Launch) -> Iterator[Option]:
    p = launch.predictor
    s, order = p.strategy, p.site.placement.order
    if s.tp > 1:
        rules = [
            {"patterns": list(COLUMNS), "partition_type": "column"},
            {"patterns": list(ROWS), "partition_type": "row"},
            {"patterns": [".*"], "partition_type": "skip"},
        ]
        cut = {"autotp_size": s.tp, "partition_config": {"use_default_specs": False, "layer_specs": rules}}
        yield _told(launch, "key", "tensor_parallel", cut, "tp", tp=s.tp)
    if s.pp > 1:
        names = {"pp": "pipe", "dp": "data"}
        axes = [names[axis] for axis in reversed(order) if axis in names]
        counts = list(s.layers_per_stage or ())
        yield _told(launch, "argument", "ProcessTopology(axes)", axes, "topology", first=axes[0], pp=s.pp, dp=s.dp or 1)
        yield _told(launch, "argument", "PipelineModule(layers)", counts or "even", "stages", pp=s.pp)


def _rest(launch: Launch) -> Iterator[Option]:
    s, training = launch.predictor.strategy, launch.settings.training
    if s.recompute != "none":
        yield _told(launch, "argument", "torch.utils.checkpoint", s.recompute, "recompute")
    if s.tp == 1 and s.pp == 1:
        yield _told(launch, "key", "checkpoint", {"use_node_local_storage": True}, "local_checkpoints")
    else:
        yield _told(launch, "argument", "--out", "shared by all nodes", "shared_checkpoints")
    yield _told(launch, "key", "steps_per_print", training.checkpoint_every, "steps_per_print")
    yield _told(launch, "key", "wall_clock_breakdown", False, "wall_clock_breakdown")
    minutes = f"{launch.timeout_minutes} min"
    yield _told(launch, "argument", "init_process_group(timeout)", minutes, "timeout", minutes=launch.timeout_minutes)


def _gradient_bytes(launch: Launch) -> int:
    """Bytes of a gradient as DeepSpeed keeps it: it accumulates in the weights' own type."""
    return 2 if launch.scenario.job.precision in ("bf16", "fp16") else 4
