"""Train with torchft: each zone trains on its own, and the zones average their weights every few steps (DiLoCo).

    bash nodes/NNN.sh                          on every node; the first one also runs the lighthouse
    bash nodes/NNN.sh --tiny --steps 5         the same kind of run in seconds

A zone is one torchrun job (a replica group of torchft): DDP or FSDP2 inside, a Manager to the others. Started again, a
zone goes on from its last checkpoint; one that has none, or an older one, gets the state of the others at the next
averaging. Zone 0 writes to --out, zone K to --out/zone-K.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import socket
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from attention import get_local_part
from checkpoint import Checkpoints
from data import iter_batches
from loop import FrameworkTrainer, build_replica, train, wrap_in_ddp
from model import Transformer
from optimiser import build_optimizer, clip_gradients, init_optimizer_states
from run import (
    AXES,
    Refusal,
    TrainerRun,
    install_stop_handler,
    join_process_group,
    make_folder,
    parse_arguments,
    read_settings,
    run_guarded,
    start_run,
)
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train from the last checkpoint, or the beginning, to the last step."""
    zone = int(os.environ.get("REPLICA_GROUP_ID", "0"))
    plan, run = start_zone(zone)
    trainer = TorchftTrainer(run, plan, zone)
    with trainer.zones.diloco:
        train(trainer)
    trainer.zones.end()
    run.end()


class TorchftTrainer(FrameworkTrainer):
    """One zone: DDP or FSDP2 inside, DiLoCo's hooks on the optimizer to the others."""

    def __init__(self, run: TrainerRun, plan: TrainerRun, zone: int) -> None:
        self.plan = plan
        model = build_replica(run, partial(shard_replica, run) if run.strategy["zero"] else None)
        wrapped = model if run.strategy["zero"] else replicate_model(run, model)
        optimizer = build_optimizer(run, model)
        self.zones = Averaging(run, model, optimizer, zone)
        self.checkpoints = Checkpoints(run, sharded=run.strategy["zero"] > 0)
        step = self.checkpoints.find_latest()
        if step is not None:
            self.zones.load(self.checkpoints.load(step, self.zones.get_state(make_states=True)))
            run.print_line(f"resumed after step {step} from {self.checkpoints.get_path(step)}")
        super().__init__(run, wrapped, optimizer, self.zones.step)
        # Ranks average their gradients; each micro-batch of the zone is to weigh the same.
        self.weight = run.world / sum(run.strategy["replica_micro_batches"])
        self.stepped: deque[Any] = deque(maxlen=1)
        # Runs before DiLoCo's own hook, so that the mark lies between step and averaging.
        self.zones.inner[-1].register_step_post_hook(lambda *_: self.stepped.append(self.metrics.mark()))

    @property
    def steps_done(self) -> int:
        """Another zone's count where this one was brought up to date by it."""
        return self.zones.step

    @steps_done.setter
    def steps_done(self, step: int) -> None:
        self.zones.step = step

    def iter_batches(self, step: int) -> Iterator[Any]:
        """The planned run knows the samples of this rank, not the zone as a run of its own."""
        return iter_batches(self.plan, step)

    def compute_gradients(self) -> torch.Tensor:
        """The mean is one over the zone."""
        return self.run_micro_batches() * (self.weight / self.run.world)

    def reduce_gradients(self, is_last: bool) -> contextlib.AbstractContextManager[Any]:
        """DDP must not reduce before the last micro-batch, FSDP2 is told whether to."""
        if isinstance(self.model, DistributedDataParallel) and not is_last:
            return self.model.no_sync()
        if hasattr(self.model, "set_requires_gradient_sync"):  # FSDP2
            self.model.set_requires_gradient_sync(is_last)
        return contextlib.nullcontext()

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Each micro-batch of the zone weighs the same."""
        return loss * self.weight

    def apply_gradients(self) -> torch.Tensor:
        """The optimizer's step and with it, when it is time, the averaging: see the hooks of DiLoCo."""
        start = self.metrics.mark()
        norm = clip_gradients(self.model.parameters(), self.run.training["clip"])
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        self.optimizer.step()
        self.metrics.add("optimizer", start, self.stepped[-1])
        if self.zones.has_exchanged:
            self.metrics.add("gradients", self.stepped[-1], self.metrics.mark(), name="averaging")
        self.optimizer.zero_grad()
        return norm

    def can_save(self) -> bool:
        """A fragment that was sent and not yet taken is in no state."""
        return not self.zones.is_exchanging

    def save(self, step: int) -> None:
        """Weights, optimizers and what was last averaged."""
        self.checkpoints.save(step, self.zones.get_state())


# ---- the zone as a run of its own ----


def start_zone(zone: int) -> tuple[TrainerRun, TrainerRun]:
    """The run as planned, which knows the samples of this rank, and the same as if its zone were all there is."""
    if "RANK" not in os.environ or "TORCHFT_LIGHTHOUSE" not in os.environ:
        raise Refusal("start it by nodes/NNN.sh, which sets RANK, REPLICA_GROUP_ID (the zone) and TORCHFT_LIGHTHOUSE")
    rank, world, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    zone_of_rank = read_settings(parse_arguments(sys.argv[1:]).settings)["zone_of_rank"]
    ranks = [number for number, where in enumerate(zone_of_rank) if where == zone]
    if len(ranks) != world:
        raise Refusal(
            f"zone {zone} is planned with {len(ranks)} ranks, {world} were started; start all its nodes/NNN.sh"
        )
    plan = start_run(sys.argv[1:], distributed=False, rank=ranks[rank], world=len(zone_of_rank), local_rank=local_rank)
    check_supported(plan)
    counts = [
        plan.strategy["replica_micro_batches"][plan.get_coordinates(rank_in_plan)["dp"]] for rank_in_plan in ranks
    ]
    settings = plan.settings | {
        "strategy": plan.strategy | {"dp": world, "replica_micro_batches": counts, "micro_batches": max(counts)},
        "zone_of_rank": [zone] * world,
        "node_of_rank": [plan.settings["node_of_rank"][rank_in_plan] for rank_in_plan in ranks],
    }
    out = plan.out / f"zone-{zone}" if zone else plan.out
    make_folder(out)
    backend = join_process_group(settings, plan.device, rank, world, True)
    run = replace(plan, settings=settings, rank=rank, world=world, backend=backend, out=out, _groups={})
    install_stop_handler(run)
    return plan, run


def check_supported(run: TrainerRun) -> None:
    """Refuse what torchft, or this program on it, does not do."""
    local = run.strategy["local_update"]
    if local is None:
        raise Refusal("strategy.local_update is not set; generate the bundle for ddp or fsdp")
    for axis in AXES:
        if axis != "dp" and run.strategy[axis] > 1:
            raise Refusal(f"strategy.{axis} {run.strategy[axis]}: this trainer does not cut the model; use fsdp")
    if run.job["precision"] not in ("bf16", "bf16-amp", "bf16-pure", "fp32"):
        raise Refusal(f"job.precision {run.job['precision']} is not in this trainer; use bf16, or fsdp")
    try:
        import torchft.manager
    except ImportError as error:
        raise Refusal(f"torchft is not installed for this Python ({error}); pip install torchft==0.2.0") from None
    if local["dtype"] not in QUANTIZED:
        return
    if run.device.type == "cpu":
        run.print_note(f"torchft quantises on GPUs only: updates travel as {run.weight_dtype}, not {local['dtype']}")
    elif not torchft.manager.IS_TRITON_AVAILABLE:
        raise Refusal(
            f"updates of type {local['dtype']} need triton; without it torchft sends them whole", this_machine=True
        )


# ---- inside a zone ----


def shard_replica(run: TrainerRun, model: Transformer) -> None:
    """FSDP2 over the ranks of the zone, or of each of its nodes, block by block."""
    strategy, communication = run.strategy, run.strategy["communication"]
    ranks = torch.arange(run.world, dtype=torch.int)
    if strategy["shard_within"] == "node" and strategy["shard_ranks"] < run.world:
        ranks = ranks.view(-1, strategy["shard_ranks"])
    mesh = DeviceMesh(run.device.type, ranks, mesh_dim_names=("replicate", "shard")[-ranks.dim() :])
    reduces_in_bf16 = "bf16" in (communication["compression"], communication["gradient_dtype"])
    policy = MixedPrecisionPolicy(
        param_dtype=None if run.compute_dtype == run.weight_dtype else run.compute_dtype,
        reduce_dtype=torch.bfloat16 if reduces_in_bf16 else torch.float32,
    )
    blocks = list(model.layers.values())
    for module in (*blocks, model):
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=strategy["zero"] == 3)
    if communication["overlap_parameters"]:
        for block, following in pairwise(blocks):
            block.set_modules_to_forward_prefetch([following])


def replicate_model(run: TrainerRun, model: Transformer) -> nn.Module:
    """The model in DDP over the ranks of the zone; a zone of one rank needs none."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    if run.world == 1:
        return model
    communication = run.strategy["communication"]
    ddp = wrap_in_ddp(run, model)
    kind = communication["gradient_dtype"] if communication["compression"] == "none" else communication["compression"]
    if kind == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif kind == "bf16" and run.backend == "nccl":  # torch's hook refuses Gloo
        ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    return ddp


# ---- averaging between zones ----

#     zones = Averaging(run, model, optimizer, zone)
#     with zones.diloco: ...                        # optimizer.step() now averages a fragment when it is time
#     zones.load(checkpoints.load(step, zones.get_state(make_states=True)))
#     checkpoints.save(step, zones.get_state())
#
# Read in torchft 0.2.0 (local_sgd.py, manager.py, quantization.py):
# - One outer optimizer over all fragments would also step those whose turn it is not, with their inner gradients: each
#   fragment has its own.
# - `use_bucketization` leaves tensors out where a bucket is smaller than the fragment: there is one bucket of its size.
# - `should_quantize` takes a bucket for rows of one number and sends a scale with each, 8 bytes in all: no bucket then.
# - Its all-to-all fails on torchft's communicators, which do not block ("NCCL Error 7: NCCL operation in progress",
#   seen with PyTorch 2.11 on an H200), and every averaging is thrown away: quantised updates get one that blocks.


QUANTIZED = ("fp8", "int8")
# Parts of a Transformer that come after its layers.
HEAD = ("norm", "pooler", "mlm", "mlm_norm", "project_out", "head")
# How long a zone waits for the others to come to an averaging, at least: one of them may have to start again.
PATIENCE = datetime.timedelta(hours=1)
# Averagings in a row that may fail. Each throws away the steps before it, so a lasting fault must end the run.
FAILURES = 3


class Averaging:
    """A zone's part in the averaging."""

    def __init__(self, run: TrainerRun, model: Transformer, optimizer: Any, zone: int) -> None:
        from torchft.local_sgd import DiLoCo

        local_update, training = run.strategy["local_update"], run.training
        self.model = model
        self.step = 0
        """Steps done; another zone's where this one was brought up to date by it."""
        self.inner = list(getattr(optimizer, "optimizers", [optimizer]))
        self.parts = split_into_fragments(model, local_update["fragments"])
        self.every, self.delay = local_update["steps"] // local_update["fragments"], local_update["delay"]
        momentum = training["outer_momentum"]
        kind = {"lr": training["outer_lr"], "momentum": momentum, "nesterov": momentum > 0}
        self.outer = [torch.optim.SGD(part.parameters(), **kind) for part in self.parts]
        quantized = local_update["dtype"] in QUANTIZED and run.device.type == "cuda"
        self.manager = create_manager(run, zone, self, create_zone_group(run, quantized))
        largest = max(sum(get_local_part(parameter).nbytes for parameter in part.parameters()) for part in self.parts)
        self.diloco = DiLoCo(
            self.manager,
            self.parts,
            self.inner[-1],  # DiLoCo only hooks on its step; of several optimizers the last one steps last
            self.outer,
            # A tiny model may have fewer layers than the plan has fragments; each is averaged as often as planned.
            sync_every=self.every * len(self.parts),
            fragment_sync_delay=self.delay,
            should_quantize=quantized,
            use_bucketization=not quantized,
            bucket_cap_mb=math.ceil(largest / 2**20) + 1,
        )

    @property
    def has_exchanged(self) -> bool:
        """Something was sent to or taken from the other zones in the last step."""
        return self.diloco._local_step in (0, self.every - self.delay)

    @property
    def is_exchanging(self) -> bool:
        """A fragment has been sent and not yet been used: then a checkpoint cannot hold everything."""
        return any(fragment._allreduce_work for fragment in self.diloco._fragments)

    def get_state(self, *, make_states: bool = False) -> dict[str, Any]:
        """Everything to go on with, by the names of parameters; `make_states`: of optimizers that have none yet too."""
        if make_states:
            init_optimizer_states([*self.inner, *self.outer])
        counts = {"step": self.step, "since": self.diloco._local_step, "manager": self.manager.state_dict()}
        before = {
            name: distribute_like(parameter, averaged) for name, parameter, averaged in self.iter_averaged_weights()
        }
        outer = collect_states_by_name(self.outer, self.name_parameters())
        return self.get_training_state() | {"outer": outer, "before": before, "counts": counts}

    def get_training_state(self) -> dict[str, Any]:
        """What a zone that recovers needs beside what torchft itself sends (weights before, outer optimizers)."""
        weights = {name: parameter.detach() for name, parameter in self.model.named_parameters()}
        return {
            "model": weights,
            "inner": collect_states_by_name(self.inner, self.name_parameters()),
            "counts": {"step": self.step},
        }

    def name_parameters(self) -> dict[int, str]:
        """Name of each parameter, by its id."""
        return {id(parameter): name for name, parameter in self.model.named_parameters()}

    def iter_averaged_weights(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """Name, parameter, and its weights when they were last averaged, from which the next update is counted."""
        names = self.name_parameters()
        for part, fragment in zip(self.parts, self.diloco._fragments, strict=True):
            for name, parameter in part.named_parameters():
                yield names[id(parameter)], parameter, fragment.original_parameters[name]

    @torch.no_grad()
    def load(self, state: dict[str, Any]) -> None:
        """Set what `get_state` gave."""
        self.load_training(state)
        restore_states(self.outer, dict(self.model.named_parameters()), state["outer"])
        for name, _, averaged in self.iter_averaged_weights():
            averaged.copy_(get_local_part(state["before"][name]))
        counts = state["counts"]
        # What was under way when it was saved is lost: it is sent anew, up to `delay` steps later.
        self.diloco._local_step = min(counts["since"], self.every - self.delay - 1)
        self.manager.load_state_dict(counts["manager"])

    @torch.no_grad()
    def load_training(self, state: dict[str, Any]) -> None:
        """Set what `get_training_state` gave, here or in another zone."""
        parameters = dict(self.model.named_parameters())
        for name, parameter in parameters.items():
            get_local_part(parameter).copy_(get_local_part(state["model"][name]))
        restore_states(self.inner, parameters, state["inner"])
        self.step = state["counts"]["step"]

    def end(self) -> None:
        """Leave the other zones."""
        self.manager.shutdown(wait=False)


def split_into_fragments(model: Transformer, count: int) -> list[nn.ModuleList]:
    """The model in blocks of layers; what comes before the layers goes with the first, the rest with the last."""
    blocks = list(model.layers.values())
    count = min(count, len(blocks))
    cuts = [round(number * len(blocks) / count) for number in range(count + 1)]
    parts = [blocks[start:stop] for start, stop in pairwise(cuts)]
    other_modules = {name: module for name, module in model.named_children() if name != "layers"}
    parts[0] = [module for name, module in other_modules.items() if name not in HEAD] + parts[0]
    parts[-1] = parts[-1] + [module for name, module in other_modules.items() if name in HEAD]
    return [nn.ModuleList(part) for part in parts]


def create_zone_group(run: TrainerRun, quantized: bool) -> Any:
    """The process group between this rank and its like in the other zones."""
    from torchft import ProcessGroupGloo, ProcessGroupNCCL

    class Blocking(ProcessGroupNCCL):
        """The same, on a communicator whose calls return when they have been queued."""

        def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
            device = torch.device("cuda", torch.cuda.current_device())
            backend = dist.ProcessGroupNCCL(store, rank, world_size, dist.ProcessGroupNCCL.Options())
            backend._set_sequence_number_for_group()
            backend.eager_connect_single_device(device)
            group = dist.ProcessGroup(store, rank, world_size)
            group._set_default_backend(dist.ProcessGroup.BackendType.NCCL)
            group._register_backend(device, dist.ProcessGroup.BackendType.NCCL, backend)
            self._errored = None
            return group

    timeout = get_timeout(run)
    if run.device.type == "cpu":
        return ProcessGroupGloo(timeout=timeout)
    os.environ.setdefault(
        "TORCH_NCCL_NONBLOCKING_TIMEOUT", str(timeout.total_seconds())
    )  # or torchft warns, and sets it
    return (Blocking if quantized else ProcessGroupNCCL)(timeout=timeout)


def get_timeout(run: TrainerRun) -> datetime.timedelta:
    """How long an exchange may take."""
    return datetime.timedelta(minutes=run.settings.get("timeout_minutes") or 10)


def create_manager(run: TrainerRun, zone: int, zones: Averaging, group: Any) -> Any:
    """The Manager of this rank; that of the zone's first rank speaks with the lighthouse."""
    from torchft import Manager
    from torchft.checkpointing.http_transport import HTTPTransport

    class Transport(HTTPTransport):
        """State for a zone that recovers, offered under the address that leads to the lighthouse."""

        def address(self) -> str:
            """As torchft makes it, with this machine's address in place of its host name, which others may not know."""
            url = urlsplit(super().address())
            return f"http://{find_own_address()}:{url.port}{url.path}"

    timeout = get_timeout(run)
    between = run.strategy["local_update"]["steps"] * run.settings["predicted"]["step_s"]["high"]
    return Manager(
        pg=group,
        load_state_dict=zones.load_training,
        state_dict=lambda: get_local_state(zones.get_training_state()),
        min_replica_size=1,  # the lighthouse's --min_replicas says how many zones are waited for
        use_async_quorum=False,
        timeout=timeout,
        quorum_timeout=max(PATIENCE, datetime.timedelta(seconds=3 * between)),
        connect_timeout=timeout,
        replica_id=f"zone-{zone}",
        hostname=format_url_host(os.environ["MASTER_ADDR"]),
        checkpoint_transport=Transport(timeout=timeout, num_chunks=0),
        init_sync=False,  # weights follow from the seed alone
        max_retries=FAILURES,
    )


def find_own_address() -> str:
    """The address of this machine on the way to the lighthouse, as a URL has it."""
    target = urlsplit(os.environ["TORCHFT_LIGHTHOUSE"])
    family, kind, _, _, address = socket.getaddrinfo(target.hostname, target.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # sends nothing: it only asks for the route
        return format_url_host(probe.getsockname()[0])


def format_url_host(address: str) -> str:
    """An address as a URL has it."""
    return f"[{address}]" if ":" in address else address


# ---- tensors that may be sharded, and states by name ----


def distribute_like(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A rank's part of something as large as a parameter, cut as the parameter is."""
    if not isinstance(parameter, DTensor):
        return part
    form = {"shape": parameter.shape, "stride": parameter.stride()}
    return DTensor.from_local(part, parameter.device_mesh, parameter.placements, run_check=False, **form)


def get_local_state(state: Any) -> Any:
    """A state without sharding: what travels to the same rank of another zone."""
    if isinstance(state, dict):
        return {key: get_local_state(value) for key, value in state.items()}
    return get_local_part(state).clone() if isinstance(state, torch.Tensor) else state


def collect_states_by_name(optimizers: list[torch.optim.Optimizer], names: dict[int, str]) -> dict[str, dict[str, Any]]:
    """What optimizers keep of each parameter."""
    states = {names[id(parameter)]: state for optimizer in optimizers for parameter, state in optimizer.state.items()}
    return {name: {key: value for key, value in state.items() if value is not None} for name, state in states.items()}


def restore_states(
    optimizers: list[torch.optim.Optimizer], parameters: dict[str, torch.Tensor], state: dict[str, Any]
) -> None:
    """Set what `collect_states_by_name` gave."""
    optimizer_of = {
        id(parameter): optimizer
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for name, saved in state.items():
        current = optimizer_of[id(parameters[name])].state[parameters[name]]
        for key, value in saved.items():
            if isinstance(value, torch.Tensor) and isinstance(current.get(key), torch.Tensor):
                get_local_part(current[key]).copy_(get_local_part(value))
            elif isinstance(value, torch.Tensor) and value.shape:
                current[key] = distribute_like(
                    parameters[name], get_local_part(value).clone().to(get_local_part(parameters[name]).device)
                )
            else:
                current[key] = value


if __name__ == "__main__":
    run_guarded(main)
