"""torchft: zones train on their own and average every few steps (DiLoCo); each zone is one torchrun job, a lighthouse
on the first node brings them together.

Names and limits were read in torchft 0.2.0: torchft/local_sgd.py, manager.py, quantization.py, torchx.py and
`torchft_lighthouse --help`.
"""

from __future__ import annotations

from collections.abc import Iterator

from crosszone.deploy.bundle import Option, option
from crosszone.deploy.environment import checked
from crosszone.deploy.launch import ARGUMENTS, Agent, Launch, Node, refused
from crosszone.deploy.pytorch import argument, pytorch_options, wire_compression, wire_options
from crosszone.deploy.shell import Raw, command_line, comment
from crosszone.text import label

LIGHTHOUSE = "lighthouse.sh"
# Updates that should_quantize sends: row-wise fp8 on GPUs of compute capability 9.0 and above, int8 below.
QUANTIZED = ("fp8", "int8")


def options(launch: Launch) -> tuple[Option, ...]:
    """What the lighthouse, the Manager, DiLoCo and the trainer are told."""
    launch.require_addresses("torchft", "framework_no_address")
    _check(launch)
    return (*_lighthouse(launch), *_averaging(launch), *pytorch_options(launch), *_inside_a_zone(launch))


def files(launch: Launch) -> dict[str, str]:
    """The script that runs the lighthouse beside the first zone's first process."""
    flags = [word for one in options(launch) if one.where == "flag" for word in (one.name, str(one.value))]
    folder, slash, _ = (launch.settings.python or "").rpartition("/")
    start = command_line((f"{folder}{slash}torchft_lighthouse", *flags))
    text = _SCRIPT.format(says=comment(label("bundle_lighthouse", launch.language)), start=start)
    return {LIGHTHOUSE: text}


def command(launch: Launch, agent: Agent) -> tuple[str | Raw, ...] | None:
    """One torchrun for each agent; the agents of a zone form one job of their own.

    The address of the zone's first node is always given: other zones reach the job's store and Manager by it.
    """
    number = launch.zones.index(launch.nodes[agent.node].zone)
    first, mine = _first(launch, number), _agents(launch, number)
    python = launch.settings.python
    start = ("torchrun",) if python is None else (python, "-m", "torch.distributed.run")
    return (
        *(("bash", LIGHTHOUSE) if agent.number == 0 else ()),
        *("env", f"{checked('REPLICA_GROUP_ID')}={number}"),
        *start,
        *("--nnodes", str(len(mine)), "--node-rank", str(mine.index(agent))),
        *("--nproc-per-node", str(len(agent.gpus))),
        *("--master-addr", str(first.address), "--master-port", str(launch.settings.port + number)),
        *("train.py", "settings.json", ARGUMENTS),
    )


def lighthouse_port(launch: Launch) -> int:
    """Port of the lighthouse: past those at which zones meet, torchft's own 29510 by default."""
    return launch.settings.port + max(10, len(launch.zones))


def _agents(launch: Launch, zone: int) -> list[Agent]:
    return [agent for agent in launch.agents if launch.nodes[agent.node].zone == launch.zones[zone]]


def _first(launch: Launch, zone: int) -> Node:
    return launch.nodes[_agents(launch, zone)[0].node]


def _lighthouse(launch: Launch) -> Iterator[Option]:
    zones, port, words = len(launch.zones), lighthouse_port(launch), launch.language
    address = f"http://{_host(launch.nodes[0])}:{port}"
    yield option("flag", "--bind", f"[::]:{port}", words, key="lighthouse_bind", port=port)
    yield option("flag", "--min_replicas", zones, words, key="lighthouse_min_replicas", zones=zones)
    yield option("variable", "TORCHFT_LIGHTHOUSE", address, words, node=launch.nodes[0].name)
    yield argument(launch, "Manager(use_async_quorum)", False, "torchft_quorum")
    yield argument(launch, "Manager(init_sync)", False, "torchft_init_sync")


def _averaging(launch: Launch) -> Iterator[Option]:
    local, training = launch.predictor.strategy.local_update, launch.settings.training
    assert local is not None  # refused before
    each = local.steps // local.fragments
    told = {"steps": local.steps, "fragments": local.fragments, "delay": local.delay, "each": each}
    yield argument(launch, "DiLoCo(sync_every)", local.steps, "torchft_sync_every", zones=len(launch.zones), **told)
    yield argument(launch, "DiLoCo(model_fragments)", local.fragments, "torchft_fragments", **told)
    yield argument(launch, "DiLoCo(fragment_sync_delay)", local.delay, "torchft_delay", **told)
    quantized = local.dtype in QUANTIZED
    key = "torchft_quantize" if quantized else "torchft_plain"
    yield argument(launch, "DiLoCo(should_quantize)", quantized, key, dtype=local.dtype)
    yield argument(launch, "DiLoCo(use_bucketization)", not quantized, f"{key}_buckets")
    outer = {"lr": training.outer_lr, "momentum": training.outer_momentum}
    yield argument(launch, "outer SGD(lr, momentum, nesterov)", list(outer.values()), "torchft_outer", **outer)


def _inside_a_zone(launch: Launch) -> Iterator[Option]:
    """DDP or FSDP2 among the ranks of a zone."""
    s = launch.predictor.strategy
    if not s.zero:
        yield from wire_options(launch)
        return
    yield argument(launch, "fully_shard(reshard_after_forward)", s.zero == 3, f"zero_{s.zero}")
    if s.shard_within == "node":
        shared, ranks = launch.predictor.site.shard_ranks, launch.world_size // len(launch.zones)
        told = {"sets": ranks // shared, "shared": shared, "zones": len(launch.zones), "dp": s.dp}
        yield argument(launch, "fully_shard(mesh)", f"{ranks // shared} x {shared}", "hsdp_node", **told)
    reduced = "bfloat16" if wire_compression(launch) == "bf16" else "float32"
    yield argument(launch, "MixedPrecisionPolicy(reduce_dtype)", reduced, f"reduce_dtype_{reduced}")
    if s.communication.overlap_parameters:
        yield argument(launch, "set_modules_to_forward_prefetch", 1, "fsdp_prefetch")


def _check(launch: Launch) -> None:
    """Refuse what torchft, or this trainer on it, cannot do."""
    s, job, local = launch.predictor.strategy, launch.scenario.job, launch.predictor.strategy.local_update
    if local is None:
        raise refused("torchft_without_local_update", "strategy.local_update")
    for axis in ("tp", "pp", "cp", "ep"):
        if getattr(s, axis) > 1:
            raise refused("torchft_axis", f"strategy.{axis}", getattr(s, axis), axis=axis)
    if job.precision not in ("bf16", "bf16-amp", "bf16-pure", "fp32"):
        raise refused("torchft_precision", "job.precision", job.precision)
    each = local.steps // local.fragments
    if local.delay >= each:
        told = {"steps": local.steps, "fragments": local.fragments, "each": each, "most": each - 1}
        raise refused("torchft_delay", "strategy.local_update.delay", local.delay, **told)
    if local.fragments > launch.scenario.model.layers:
        layers = launch.scenario.model.layers
        raise refused("torchft_fragments", "strategy.local_update.fragments", local.fragments, layers=layers)
    kept = "bf16" if job.precision == "bf16-pure" else "fp32"
    if local.dtype not in (kept, *QUANTIZED):
        allowed = [kept, *QUANTIZED]
        field = "strategy.local_update.dtype"
        raise refused("torchft_dtype", field, local.dtype, kept=kept, precision=job.precision, allowed=allowed)
    if local.dtype in QUANTIZED and launch.scenario.model.moe is not None:
        raise refused("torchft_experts", "strategy.local_update.dtype", local.dtype, kept=kept)
    if s.offload != "none":
        raise refused("torchft_offload", "strategy.offload", s.offload)
    if not s.zero and wire_compression(launch) == "powersgd":
        raise refused("torchft_powersgd", "strategy.communication.compression", "powersgd")
    _check_shares(launch)


def _check_shares(launch: Launch) -> None:
    """The Manager divides by the number of zones, so each must have done the same work."""
    shares = launch.predictor.strategy.replica_micro_batches
    if shares is None:
        return
    totals = dict.fromkeys(launch.zones, 0)
    for agent in launch.agents:
        totals[launch.nodes[agent.node].zone] += sum(shares[rank] for rank in agent.ranks)
    if len(set(totals.values())) > 1:
        said = [f"{zone} {count}" for zone, count in totals.items()]
        raise refused("torchft_shares", "strategy.replica_micro_batches", list(shares), shares=said)


def _host(node: Node) -> str:
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
