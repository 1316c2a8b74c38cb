"""DeepSpeed: ZeRO, pipelines and tensor parallelism by `ds_config.json`; its launcher or torchrun starts `train.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from crosszone.deploy.bundle import Option, build_option
from crosszone.deploy.launch import PASSED_ARGUMENTS, Agent, Launch, build_refusal, build_torchrun, list_program_words
from crosszone.deploy.shell import Raw
from crosszone.deploy.trainer_files import format_json
from crosszone.inputs.shipped import read_shipped

CONFIG, HOSTFILE = "ds_config.json", "hostfile"
# First release without MiCS and without the 1-bit optimizers (deepspeedai/DeepSpeed issue 8489).
FIRST_WITHOUT_MICS = "0.19.7"
# Optimizers that send one bit of each element of their momentum.
ONE_BIT_OPTIMIZERS = {"adamw": "OneBitAdam", "adam": "OneBitAdam", "lamb": "OneBitLamb"}
# Share of the steps before they do so: 23,000 of BERT-Large's 152,000 (1-bit Adam, arXiv 2102.02888).
ONE_BIT_WARMUP_SHARE = 0.15
PREFETCH_ELEMENTS = 50_000_000  # Elements that stage 3 gathers ahead: DeepSpeed's own value
# Optimizers that DeepSpeed makes without a compiler on the nodes; the others come from the trainer.
OPTIMIZER_TYPES = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "sgd-momentum": "SGD", "muon": "Muon"}
# Those that it runs in the host's memory (offload).
HOST_OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "lion": "Lion"}
MATRIX_OPTIMIZERS = ("lamb", "adafactor")  # Those that look at whole matrices, which ZeRO cuts into flat pieces
ZERO_TESTED_OPTIMIZERS = ("adamw", "adam", "muon")  # Those whose states DeepSpeed shards without being told that it may
COLUMN_PARALLEL = (r".*\.attention\.[qkv]\.weight$", r".*\.mlp\.(gate|up)\.weight$")
# Projections of the trainer's model that AutoTP cuts; all else is whole on every rank.
ROW_PARALLEL = (r".*\.attention\.out\.weight$", r".*\.mlp\.down\.weight$")


def build_options(launch: Launch) -> tuple[Option, ...]:
    """What DeepSpeed and the trainer are told."""
    _require_supported(launch)
    parts = (
        _list_batch_options,
        _list_optimizer_options,
        _list_precision_options,
        _list_zero_options,
        _list_wire_options,
        _list_axis_options,
        _list_run_options,
    )
    return tuple(option for part in parts for option in part(launch))


def build_files(launch: Launch) -> dict[str, str]:
    """The configuration, and the host list where every node's address is known."""
    config = build_config(build_options(launch))
    check_keys(config)
    check_batch(config, launch.predictor.strategy.dp or 1)
    files_by_path = {CONFIG: format_json(config)}
    if launch.has_addresses:
        lines = [f"{node.address} slots={node.used_gpus}" for node in launch.nodes]
        files_by_path[HOSTFILE] = "\n".join(lines) + "\n"
    return files_by_path


def build_command(launch: Launch, agent: Agent) -> tuple[str | Raw, ...] | None:
    """DeepSpeed's launcher where it can say what runs where, else torchrun."""
    if not _can_use_launcher(launch):
        return build_torchrun(launch, agent, "train.py", "settings.json")
    # Without ssh a node's launcher reads from the host list how many processes each node has, and starts its own.
    return (
        *list_program_words(launch, "deepspeed", "deepspeed.launcher.runner"),
        *("--hostfile", HOSTFILE, "--no_ssh", "--node_rank", str(agent.node)),
        *("--master_addr", Raw('"$MASTER_ADDR"'), "--master_port", Raw('"$MASTER_PORT"')),
        *("--no_local_rank", "train.py", "settings.json", PASSED_ARGUMENTS),
    )


def list_requirements(launch: Launch) -> dict[str, str]:
    """Packages that this plan needs beside DeepSpeed itself, or a version of it."""
    s = launch.predictor.strategy
    one_bit = s.communication.compression == "1-bit"
    requirements = {"deepspeed": f"<{FIRST_WITHOUT_MICS}"} if one_bit or _is_mics(launch) else {}
    return requirements | ({"cupy": ""} if one_bit else {})


def build_config(options: tuple[Option, ...]) -> dict[str, Any]:
    """ds_config.json as data: options that are keys, dots opened."""
    config: dict[str, Any] = {}
    for option in options:
        if option.where == "key":
            *path, last = option.name.split(".")
            inner = config
            for step in path:
                inner = inner.setdefault(step, {})
            inner[last] = option.value
    return config


@cache
def read_allowed_keys() -> Mapping[str, Any]:
    """The allow-list (`deepspeed_keys.yaml`)."""
    allowed: Mapping[str, Any] = read_shipped("crosszone.deploy", "deepspeed_keys.yaml").value
    return allowed


def check_keys(config: Mapping[str, Any]) -> None:
    """Refuse a configuration with a key that is not on the list: DeepSpeed would ignore or refuse it."""
    allowed = read_allowed_keys()
    zero = config.get("zero_optimization", {})
    for where, keys, names in (
        (CONFIG, config, allowed["top"]),
        (f"{CONFIG} zero_optimization", zero, allowed["zero"]),
    ):
        for key in keys:
            if key not in names:
                raise build_refusal("deepspeed_key", where, key, allowed=sorted(names))


def check_batch(config: Mapping[str, Any], replicas: int) -> None:
    """Refuse a batch that is not micro-batch x accumulation x replicas; a micro-batch that is left out follows."""
    batch, steps = config["train_batch_size"], config.get("gradient_accumulation_steps", 1)
    micro = config.get("train_micro_batch_size_per_gpu", batch // (steps * replicas))
    if batch != micro * steps * replicas:
        params = {"micro": micro, "steps": steps, "replicas": replicas, "product": micro * steps * replicas}
        raise build_refusal("deepspeed_batch", "train_batch_size", batch, **params)


def _can_use_launcher(launch: Launch) -> bool:
    """DeepSpeed's launcher gives a node's ranks its first GPUs, and rank r the GPU r modulo their number."""
    addresses = [node.address for node in launch.nodes]
    aligned = all(agent.first_rank % len(agent.gpus) == 0 for agent in launch.agents)
    return launch.has_addresses and launch.whole_nodes and aligned and len(set(addresses)) == len(addresses)


def _build_key(launch: Launch, name: str, value: Any, key: str, **params: Any) -> Option:
    """A key of ds_config.json."""
    return build_option("key", name, value, launch.language, key=f"ds_{key}", **params)


def _build_argument(launch: Launch, name: str, value: Any, key: str, **params: Any) -> Option:
    """An argument in the trainer."""
    return build_option("argument", name, value, launch.language, key=f"ds_{key}", **params)


def _get_zero_stage(launch: Launch) -> int:
    return launch.predictor.strategy.zero or 0


def _is_mics(launch: Launch) -> bool:
    """States are sharded among some of the replicas only (MiCS): those of a zone or node, or a number of them."""
    predictor = launch.predictor
    return _get_zero_stage(launch) == 3 and predictor.placed.shard_ranks < (predictor.strategy.dp or 1)


# ---- what DeepSpeed does not do ----


def _require_supported(launch: Launch) -> None:
    s = launch.predictor.strategy
    communication, optimizer = s.communication, launch.scenario.job.optimizer
    if s.uneven:
        raise build_refusal("deepspeed_uneven", "strategy.replica_micro_batches", list(s.replica_micro_batches or ()))
    if communication.bucket_mb is not None and _get_zero_stage(launch) == 0:
        raise build_refusal("deepspeed_bucket", "strategy.communication.bucket_mb", communication.bucket_mb)
    if _get_zero_stage(launch) and optimizer in MATRIX_OPTIMIZERS:
        raise build_refusal("deepspeed_by_matrix", "job.optimizer", optimizer, zero=_get_zero_stage(launch))
    if s.offload != "none" and optimizer not in HOST_OPTIMIZERS:
        raise build_refusal("deepspeed_offload", "job.optimizer", optimizer, allowed=list(HOST_OPTIMIZERS))
    sizes = {node.used_gpus for node in launch.nodes}
    if communication.compression == "int4" and (len(sizes) > 1 or any(len(node.agents) > 1 for node in launch.nodes)):
        raise build_refusal("deepspeed_qgz_nodes", "strategy.communication.compression", "int4", sizes=sorted(sizes))
    if communication.compression == "1-bit" and s.pp > 1 and launch.scenario.job.precision == "bf16":
        raise build_refusal("deepspeed_one_bit_pipeline", "strategy.communication.compression", "1-bit", pp=s.pp)
    if _is_mics(launch):
        _require_mics(launch)
    if s.tp > 1:
        _require_autotp(launch)


def _require_mics(launch: Launch) -> None:
    """MiCS makes its sets of consecutive ranks, and gathers and reduces as they are."""
    predictor = launch.predictor
    s, size = predictor.strategy, predictor.placed.shard_ranks
    for key, quantised in (("compression", "int4"), ("weight_compression", "int8")):
        if getattr(s.communication, key) == quantised:
            field = f"strategy.communication.{key}"
            raise build_refusal("deepspeed_mics_plain", field, quantised, within=s.shard_within)
    if s.shard_within == "all":  # a number of replicas, wherever they lie
        return
    homes_of_ranks = predictor.placed.node if s.shard_within == "node" else predictor.placed.zone
    ranks = homes_of_ranks[0, :, 0, 0].tolist()
    sets = [ranks[first : first + size] for first in range(0, len(ranks), size)]
    if any(len(ranks_in_set) < size or len(set(ranks_in_set)) > 1 for ranks_in_set in sets):
        raise build_refusal(
            "deepspeed_mics_ranks", "strategy.shard_within", s.shard_within, size=size, ranks=len(ranks)
        )


def _require_autotp(launch: Launch) -> None:
    """AutoTP cuts plain projections by heads and makes groups of consecutive ranks; it knows no pipeline."""
    s, model, order = launch.predictor.strategy, launch.scenario.model, launch.predictor.placed.placement.order
    if s.pp > 1:  # legal for stacks with tensor-parallel layers of their own, which a bundle does not bring
        raise build_refusal("deepspeed_tp_pipeline", "strategy.pp", s.pp, tp=s.tp, stack=launch.scenario.job.stack)
    heads = model.kv_heads % s.tp or model.heads % s.tp
    obstacles = {
        "mixture of experts": model.moe is not None,
        "latent attention (MLA)": model.mla is not None,
        "attention sinks": model.attention_sinks,
        "norm over all query heads": model.qk_norm == "full",
        f"{model.kv_heads} key/value heads over {s.tp} ranks": bool(heads),
    }
    reasons = [name for name, applies in obstacles.items() if applies]
    if reasons:
        raise build_refusal("deepspeed_tp_model", "strategy.tp", s.tp, what=reasons[0], model=model.name)
    if (s.dp or 1) > 1 and order.index("dp") < order.index("tp"):
        raise build_refusal("deepspeed_tp_order", "placement.order", "-".join(order))


# ---- what it is told ----


def _list_batch_options(launch: Launch) -> Iterator[Option]:
    s, job = launch.predictor.strategy, launch.scenario.job
    steps = launch.predictor.micro_batches
    params = {"global_batch": job.global_batch, "micro_batch": s.micro_batch, "steps": steps, "dp": s.dp or 1}
    yield _build_key(launch, "train_batch_size", job.global_batch, "train_batch_size", **params)
    yield _build_key(launch, "train_micro_batch_size_per_gpu", s.micro_batch, "micro_batch", **params)
    yield _build_key(launch, "gradient_accumulation_steps", steps, "accumulation", **params)


def _list_optimizer_options(launch: Launch) -> Iterator[Option]:
    s, training, kind = launch.predictor.strategy, launch.settings.training, launch.scenario.job.optimizer
    is_offloaded = s.offload != "none"
    name = (HOST_OPTIMIZERS if is_offloaded else OPTIMIZER_TYPES).get(kind)
    if s.communication.compression == "1-bit":
        yield from _list_one_bit_options(launch)
    elif name is None:
        yield _build_argument(launch, "deepspeed.initialize(optimizer)", kind, "client_optimizer", optimizer=kind)
    else:
        yield _build_key(
            launch, "optimizer.type", name, "host_optimizer" if is_offloaded else "optimizer", optimizer=kind
        )
        params: dict[str, Any] = {"lr": training.lr, "weight_decay": training.weight_decay}
        if kind in ("adamw", "adam", "lion"):
            params["betas"] = [training.beta1, training.beta2]
        if kind in ("adamw", "adam"):
            params |= {"eps": training.eps, "adam_w_mode": kind == "adamw"}
        if kind == "sgd-momentum":
            params["momentum"] = training.beta1
        if kind in ("adamw", "adam", "muon") and not is_offloaded:
            params["torch_adam"] = True
        yield _build_key(launch, "optimizer.params", params, "optimizer_params")
    if _get_zero_stage(launch) and kind not in ZERO_TESTED_OPTIMIZERS and not is_offloaded:
        yield _build_key(launch, "zero_allow_untested_optimizer", True, "untested", optimizer=kind)
    yield _build_key(launch, "gradient_clipping", training.clip, "clip")


def _list_one_bit_options(launch: Launch) -> Iterator[Option]:
    """Its reduction is the optimizer's own, over NCCL; the first steps go uncompressed."""
    training, kind = launch.settings.training, launch.scenario.job.optimizer
    freeze_step = max(1, round(ONE_BIT_WARMUP_SHARE * launch.steps), min(training.warmup_steps, launch.steps // 10))
    params = {"lr": training.lr, "weight_decay": training.weight_decay, "betas": [training.beta1, training.beta2]}
    params |= {"eps": training.eps, "freeze_step": freeze_step, "comm_backend_name": "nccl"}
    yield _build_key(
        launch, "optimizer.type", ONE_BIT_OPTIMIZERS[kind], "one_bit", optimizer=kind, version=FIRST_WITHOUT_MICS
    )
    yield _build_key(launch, "optimizer.params", params, "one_bit_params", steps=freeze_step)


def _list_precision_options(launch: Launch) -> Iterator[Option]:
    precision = launch.scenario.job.precision
    if precision == "bf16":
        yield _build_key(launch, "bf16", {"enabled": True}, "bf16")
    elif precision == "fp16":
        yield _build_key(launch, "fp16", {"enabled": True, "loss_scale": 0}, "fp16")
    elif precision == "bf16-amp":
        yield _build_key(launch, "torch_autocast", {"enabled": True, "dtype": "bfloat16"}, "autocast")


def _list_zero_options(launch: Launch) -> Iterator[Option]:
    predictor = launch.predictor
    s, communication, stage = predictor.strategy, predictor.strategy.communication, _get_zero_stage(launch)
    shard_ranks = predictor.placed.shard_ranks if _is_mics(launch) else s.dp or 1
    yield _build_key(launch, "zero_optimization.stage", stage, f"zero_{stage}", dp=shard_ranks)
    if stage == 0:
        return
    if _is_mics(launch):
        params = {"size": shard_ranks, "sets": (s.dp or 1) // shard_ranks, "version": FIRST_WITHOUT_MICS}
        yield _build_key(launch, "zero_optimization.mics_shard_size", shard_ranks, f"mics_{s.shard_within}", **params)
    overlap = communication.overlap_gradients and s.pp == 1
    key = "overlap_pipeline" if s.pp > 1 else f"overlap_{str(overlap).lower()}"
    yield _build_key(launch, "zero_optimization.overlap_comm", overlap, key)
    yield _build_key(launch, "zero_optimization.reduce_scatter", True, "reduce_scatter")
    if communication.bucket_mb is not None:
        elements = round(communication.bucket_mb * 1e6 / _get_gradient_bytes(launch))
        params = {"mb": communication.bucket_mb, "bytes": _get_gradient_bytes(launch)}
        yield _build_key(launch, "zero_optimization.reduce_bucket_size", elements, "bucket", **params)
    if stage == 3:
        prefetch = PREFETCH_ELEMENTS if communication.overlap_parameters else 0
        key = f"prefetch_{str(communication.overlap_parameters).lower()}"
        yield _build_key(launch, "zero_optimization.stage3_prefetch_bucket_size", prefetch, key, elements=prefetch)
    if s.offload != "none":
        offload = {"device": "cpu", "pin_memory": True}
        yield _build_key(launch, "zero_optimization.offload_optimizer", offload, "offload_optimizer")
        if s.offload == "optimizer+weights":
            yield _build_key(launch, "zero_optimization.offload_param", offload, "offload_param")


def _list_wire_options(launch: Launch) -> Iterator[Option]:
    """Types and compression of what goes over the links."""
    communication = launch.predictor.strategy.communication
    wire_dtype = (
        communication.compression if communication.compression in ("fp16", "bf16") else communication.gradient_dtype
    )
    if wire_dtype is not None:
        yield _build_key(launch, "communication_data_type", wire_dtype, "wire", dtype=wire_dtype)
    if communication.compression == "int4":
        yield _build_key(launch, "zero_optimization.zero_quantized_gradients", True, "qgz")
    if communication.weight_compression == "int8":
        yield _build_key(launch, "zero_optimization.zero_quantized_weights", True, "qwz")


def _list_axis_options(launch: Launch) -> Iterator[Option]:
    predictor = launch.predictor
    s, order = predictor.strategy, predictor.placed.placement.order
    if s.tp > 1:
        rules = [
            {"patterns": list(COLUMN_PARALLEL), "partition_type": "column"},
            {"patterns": list(ROW_PARALLEL), "partition_type": "row"},
            {"patterns": [".*"], "partition_type": "skip"},
        ]
        tensor_parallel = {"autotp_size": s.tp, "partition_config": {"use_default_specs": False, "layer_specs": rules}}
        yield _build_key(launch, "tensor_parallel", tensor_parallel, "tp", tp=s.tp)
    if s.pp > 1:
        deepspeed_axes = {"pp": "pipe", "dp": "data"}
        axes = [deepspeed_axes[axis] for axis in reversed(order) if axis in deepspeed_axes]
        counts = list(s.layers_per_stage or ())
        yield _build_argument(launch, "ProcessTopology(axes)", axes, "topology", first=axes[0], pp=s.pp, dp=s.dp or 1)
        yield _build_argument(launch, "PipelineModule(layers)", counts or "even", "stages", pp=s.pp)


def _list_run_options(launch: Launch) -> Iterator[Option]:
    s, training = launch.predictor.strategy, launch.settings.training
    if s.recompute != "none":
        yield _build_argument(launch, "torch.utils.checkpoint", s.recompute, "recompute")
    if s.tp == 1 and s.pp == 1:
        yield _build_key(launch, "checkpoint", {"use_node_local_storage": True}, "local_checkpoints")
    else:
        yield _build_argument(launch, "--out", "shared by all nodes", "shared_checkpoints")
    yield _build_key(launch, "steps_per_print", training.checkpoint_every, "steps_per_print")
    yield _build_key(launch, "wall_clock_breakdown", False, "wall_clock_breakdown")
    minutes = f"{launch.timeout_minutes} min"
    yield _build_argument(launch, "init_process_group(timeout)", minutes, "timeout", minutes=launch.timeout_minutes)


def _get_gradient_bytes(launch: Launch) -> int:
    """Bytes of a gradient as DeepSpeed keeps it: it accumulates in the weights' own type."""
    return 2 if launch.scenario.job.precision in ("bf16", "fp16") else 4
