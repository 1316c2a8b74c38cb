"""Averaging between zones by torchft: fragments of the model, their outer optimizers, and the state of both.

    zones = Averaging(run, model, optimizer, zone)
    with zones.diloco: ...                        # optimizer.step() now averages a fragment when it is time
    zones.load(checkpoints.load(step, zones.get_state(room=True)))
    checkpoints.save(step, zones.get_state())

Read in torchft 0.2.0 (local_sgd.py, manager.py, quantization.py):
- One outer optimizer over all fragments would also step those whose turn it is not, with their inner gradients: each
  fragment has its own.
- `use_bucketization` leaves tensors out where a bucket is smaller than the fragment: there is one bucket of its size.
- `should_quantize` takes a bucket for rows of one number and sends a scale with each, 8 bytes in all: no bucket then.
- Its all-to-all fails on torchft's communicators, which do not block ("NCCL Error 7: NCCL operation in progress", seen
  with PyTorch 2.11 on an H200), and every averaging is thrown away: quantised updates get one that blocks.
"""

from __future__ import annotations

import datetime
import math
import os
import socket
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from model import Transformer
from run import TrainerRun
from torch import nn
from torch.distributed.tensor import DTensor

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

    def get_state(self, *, room: bool = False) -> dict[str, Any]:
        """Everything to go on with, by the names of parameters; `room`: with room for states that are to be loaded."""
        if room:
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


def get_local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


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


def init_optimizer_states(optimizers: list[torch.optim.Optimizer]) -> None:
    """Have optimizers make their states without changing a weight: a step at rate 0 with gradients of 0."""
    for optimizer in optimizers:
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = 0.0
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        for group, before in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = before


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
