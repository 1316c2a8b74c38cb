"""torchft: zones train on their own and average every few steps (DiLoCo); each zone is one torchrun job, a lighthouse
on the first node brings them together.

Names and limits were read in torchft 0.2.0: torchft/local_sgd.py, manager.py, quantization.py, torchx.py and
`torchft_lighthouse --help`.
"""

from __future__ import annotations

from collections.abc import Iterator

from crosszone.deploy.bundle import Option, build_option
from crosszone.deploy.environment import check_variable_name
from crosszone.deploy.frameworks import build_argument, get_wire_compression, list_pytorch_options, list_wire_options
from crosszone.deploy.launch import PASSED_ARGUMENTS, Agent, Launch, Node, build_refusal, list_program_words
from crosszone.deploy.shell import Raw, format_command, format_comment
from crosszone.text import label

LIGHTHOUSE = "lighthouse.sh"
# Updates that should_quantize sends: row-wise fp8 on GPUs of compute capability 9.0 and above, int8 below.
QUANTIZED_DTYPES = ("fp8", "int8")


def build_options(launch: Launch) -> tuple[Option, ...]:
    """What the lighthouse, the Manager, DiLoCo and the trainer are told."""
    launch.require_addresses("torchft", "framework_no_address")
    _require_supported(launch)
    return (
        *_list_lighthouse_options(launch),
        *_list_averaging_options(launch),
        *list_pytorch_options(launch),
        *_list_zone_options(launch),
    )


def build_files(launch: Launch) -> dict[str, str]:
    """The script that runs the lighthouse beside the first zone's first process."""
    flags = [
        word for option in build_options(launch) if option.where == "flag" for word in (option.name, str(option.value))
    ]
    folder, slash, _ = (launch.settings.python or "").rpartition("/")
    start = format_command((f"{folder}{slash}torchft_lighthouse", *flags))
    text = _SCRIPT.format(says=format_comment(label("bundle_lighthouse", launch.language)), start=start)
    return {LIGHTHOUSE: text}


def build_command(launch: Launch, agent: Agent) -> tuple[str | Raw, ...] | None:
    """One torchrun for each agent; the agents of a zone form one job of their own.

    The address of the zone's first node is always given: other zones reach the job's store and Manager by it.
    """
    number = launch.zones.index(launch.nodes[agent.node].zone)
    first_node, zone_agents = _get_first_node(launch, number), _list_zone_agents(launch, number)
    return (
        *(("bash", LIGHTHOUSE) if agent.number == 0 else ()),
        *("env", f"{check_variable_name('REPLICA_GROUP_ID')}={number}"),
        *list_program_words(launch, "torchrun", "torch.distributed.run"),
        *("--nnodes", str(len(zone_agents)), "--node-rank", str(zone_agents.index(agent))),
        *("--nproc-per-node", str(len(agent.gpus))),
        *("--master-addr", str(first_node.address), "--master-port", str(launch.settings.port + number)),
        *("train.py", "settings.json", PASSED_ARGUMENTS),
    )


def choose_lighthouse_port(launch: Launch) -> int:
    """Port of the lighthouse: past those at which zones meet, torchft's own 29510 by default."""
    return launch.settings.port + max(10, len(launch.zones))


def _list_zone_agents(launch: Launch, zone: int) -> list[Agent]:
    return [agent for agent in launch.agents if launch.nodes[agent.node].zone == launch.zones[zone]]


def _get_first_node(launch: Launch, zone: int) -> Node:
    return launch.nodes[_list_zone_agents(launch, zone)[0].node]


def _list_lighthouse_options(launch: Launch) -> Iterator[Option]:
    zones, port, language = len(launch.zones), choose_lighthouse_port(launch), launch.language
    address = f"http://{_format_url_host(launch.nodes[0])}:{port}"
    yield build_option("flag", "--bind", f"[::]:{port}", language, key="lighthouse_bind", port=port)
    yield build_option("flag", "--min_replicas", zones, language, key="lighthouse_min_replicas", zones=zones)
    yield build_option("variable", "TORCHFT_LIGHTHOUSE", address, language, node=launch.nodes[0].name)
    yield build_argument(launch, "Manager(use_async_quorum)", False, "torchft_quorum")
    yield build_argument(launch, "Manager(init_sync)", False, "torchft_init_sync")


def _list_averaging_options(launch: Launch) -> Iterator[Option]:
    local_update, training = launch.predictor.strategy.local_update, launch.settings.training
    assert local_update is not None  # refused before
    fragment_steps = local_update.steps // local_update.fragments
    params = {
        "steps": local_update.steps,
        "fragments": local_update.fragments,
        "delay": local_update.delay,
        "each": fragment_steps,
    }
    yield build_argument(
        launch, "DiLoCo(sync_every)", local_update.steps, "torchft_sync_every", zones=len(launch.zones), **params
    )
    yield build_argument(launch, "DiLoCo(model_fragments)", local_update.fragments, "torchft_fragments", **params)
    yield build_argument(launch, "DiLoCo(fragment_sync_delay)", local_update.delay, "torchft_delay", **params)
    quantized = local_update.dtype in QUANTIZED_DTYPES
    key = "torchft_quantize" if quantized else "torchft_plain"
    yield build_argument(launch, "DiLoCo(should_quantize)", quantized, key, dtype=local_update.dtype)
    yield build_argument(launch, "DiLoCo(use_bucketization)", not quantized, f"{key}_buckets")
    outer = {"lr": training.outer_lr, "momentum": training.outer_momentum}
    yield build_argument(launch, "outer SGD(lr, momentum, nesterov)", list(outer.values()), "torchft_outer", **outer)


def _list_zone_options(launch: Launch) -> Iterator[Option]:
    """DDP or FSDP2 among the ranks of a zone."""
    s = launch.predictor.strategy
    if not s.zero:
        yield from list_wire_options(launch)
        return
    yield build_argument(launch, "fully_shard(reshard_after_forward)", s.zero == 3, f"zero_{s.zero}")
    if s.shard_within == "node":
        shard_ranks, ranks = launch.predictor.placed.shard_ranks, launch.world_size // len(launch.zones)
        params = {"sets": ranks // shard_ranks, "shared": shard_ranks, "zones": len(launch.zones), "dp": s.dp}
        yield build_argument(
            launch, "fully_shard(mesh)", f"{ranks // shard_ranks} x {shard_ranks}", "hsdp_node", **params
        )
    reduce_dtype = "bfloat16" if get_wire_compression(launch) == "bf16" else "float32"
    yield build_argument(launch, "MixedPrecisionPolicy(reduce_dtype)", reduce_dtype, f"reduce_dtype_{reduce_dtype}")
    if s.communication.overlap_parameters:
        yield build_argument(launch, "set_modules_to_forward_prefetch", 1, "fsdp_prefetch")


def _require_supported(launch: Launch) -> None:
    """Refuse what torchft, or this trainer on it, cannot do."""
    s, job, local_update = launch.predictor.strategy, launch.scenario.job, launch.predictor.strategy.local_update
    if local_update is None:
        raise build_refusal("torchft_without_local_update", "strategy.local_update")
    for axis in ("tp", "pp", "cp", "ep"):
        if getattr(s, axis) > 1:
            raise build_refusal("torchft_axis", f"strategy.{axis}", getattr(s, axis), axis=axis)
    if job.precision not in ("bf16", "bf16-amp", "bf16-pure", "fp32"):
        raise build_refusal("torchft_precision", "job.precision", job.precision)
    fragment_steps = local_update.steps // local_update.fragments
    if local_update.delay >= fragment_steps:
        params = {
            "steps": local_update.steps,
            "fragments": local_update.fragments,
            "each": fragment_steps,
            "most": fragment_steps - 1,
        }
        raise build_refusal("torchft_delay", "strategy.local_update.delay", local_update.delay, **params)
    if local_update.fragments > launch.scenario.model.layers:
        layers = launch.scenario.model.layers
        raise build_refusal(
            "torchft_fragments", "strategy.local_update.fragments", local_update.fragments, layers=layers
        )
    weight_dtype = "bf16" if job.precision == "bf16-pure" else "fp32"
    if local_update.dtype not in (weight_dtype, *QUANTIZED_DTYPES):
        allowed = [weight_dtype, *QUANTIZED_DTYPES]
        field = "strategy.local_update.dtype"
        raise build_refusal(
            "torchft_dtype", field, local_update.dtype, kept=weight_dtype, precision=job.precision, allowed=allowed
        )
    if local_update.dtype in QUANTIZED_DTYPES and launch.scenario.model.moe is not None:
        raise build_refusal("torchft_experts", "strategy.local_update.dtype", local_update.dtype, kept=weight_dtype)
    if s.offload != "none":
        raise build_refusal("torchft_offload", "strategy.offload", s.offload)
    if not s.zero and get_wire_compression(launch) == "powersgd":
        raise build_refusal("torchft_powersgd", "strategy.communication.compression", "powersgd")
    _require_equal_shares(launch)


def _require_equal_shares(launch: Launch) -> None:
    """The Manager divides by the number of zones, so each must have done the same work."""
    shares = launch.predictor.strategy.replica_micro_batches
    if shares is None:
        return
    totals = dict.fromkeys(launch.zones, 0)
    for agent in launch.agents:
        totals[launch.nodes[agent.node].zone] += sum(shares[rank] for rank in agent.ranks)
    if len(set(totals.values())) > 1:
        totals_by_zone = [f"{zone} {count}" for zone, count in totals.items()]
        raise build_refusal("torchft_shares", "strategy.replica_micro_batches", list(shares), shares=totals_by_zone)


def _format_url_host(node: Node) -> str:
    """The address as a URL has it."""
    address = str(node.address)
    return f"[{address}]" if ":" in address else address


_SCRIPT = """\
#!/usr/bin/env bash
{says}
set -uo pipefail
{start} &
lighthouse=$!
trap 'kill "$lighthouse" 2>/dev/null' EXIT
"$@" &
trainer=$!
trap 'kill -TERM "$trainer" 2>/dev/null' INT TERM
wait "$trainer"
status=$?
while kill -0 "$trainer" 2>/dev/null; do
  wait "$trainer"
  status=$?
done
exit "$status"
"""
