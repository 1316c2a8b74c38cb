"""Averaging between zones by torchft: fragments of the model, their outer optimizers, and the state of both.

    zones = Averaging(run, model, optimizer, zone)
    with zones.diloco: ...                        # optimizer.step() now averages a fragment when it is time
    zones.load(checkpoints.load(step, zones.state(room=True)))
    checkpoints.save(step, zones.state())

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
from run import Run
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

    def __init__(self, run: Run, model: Transformer, optimizer: Any, zone: int) -> None:
        from torchft.local_sgd import DiLoCo

        said, training = run.strategy["local_update"], run.training
        self.model = model
        self.step = 0
        """Steps done; another zone's where this one was brought up to date by it."""
        self.inner = list(getattr(optimizer, "optimizers", [optimizer]))
        self.parts = fragments(model, said["fragments"])
        self.every, self.delay = said["steps"] // said["fragments"], said["delay"]
        momentum = training["outer_momentum"]
        kind = {"lr": training["outer_lr"], "momentum": momentum, "nesterov": momentum > 0}
        self.outer = [torch.optim.SGD(part.parameters(), **kind) for part in self.parts]
        quantized = said["dtype"] in QUANTIZED and run.device.type == "cuda"
        self.manager = manager_of(run, zone, self, group_of(run, quantized))
        largest = max(sum(own(one).nbytes for one in part.parameters()) for part in self.parts)
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
    def exchanged(self) -> bool:
        """Something was sent to or taken from the other zones in the last step."""
        return self.diloco._local_step in (0, self.every - self.delay)

    @property
    def under_way(self) -> bool:
        """A fragment has been sent and not yet been used: then a checkpoint cannot hold everything."""
        return any(one._allreduce_work for one in self.diloco._fragments)

    def state(self, *, room: bool = False) -> dict[str, Any]:
        """Everything to go on with, by the names of parameters; `room`: with room for states that are to be loaded."""
        if room:
            make_states([*self.inner, *self.outer])
        counts = {"step": self.step, "since": self.diloco._local_step, "manager": self.manager.state_dict()}
        before = {name: like(one, kept) for name, one, kept in self.last_averaged()}
        outer = by_name(self.outer, self.names())
        return self.training_state() | {"outer": outer, "before": before, "counts": counts}

    def training_state(self) -> dict[str, Any]:
        """What a zone that recovers needs beside what torchft itself sends (weights before, outer optimizers)."""
        weights = {name: one.detach() for name, one in self.model.named_parameters()}
        return {"model": weights, "inner": by_name(self.inner, self.names()), "counts": {"step": self.step}}

    def names(self) -> dict[int, str]:
        """Name of each parameter, by its id."""
        return {id(one): name for name, one in self.model.named_parameters()}

    def last_averaged(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """Name, parameter, and its weights when they were last averaged, from which the next update is counted."""
        names = self.names()
        for part, fragment in zip(self.parts, self.diloco._fragments, strict=True):
            for name, one in part.named_parameters():
                yield names[id(one)], one, fragment.original_parameters[name]

    @torch.no_grad()
    def load(self, state: dict[str, Any]) -> None:
        """Set what `state` gave."""
        self.load_training(state)
        restore(self.outer, dict(self.model.named_parameters()), state["outer"])
        for name, _, kept in self.last_averaged():
            kept.copy_(own(state["before"][name]))
        counts = state["counts"]
        # What was under way when it was saved is lost: it is sent anew, up to `delay` steps later.
        self.diloco._local_step = min(counts["since"], self.every - self.delay - 1)
        self.manager.load_state_dict(counts["manager"])

    @torch.no_grad()
    def load_training(self, state: dict[str, Any]) -> None:
        """Set what `training_state` gave, here or in another zone."""
        held = dict(self.model.named_parameters())
        for name, one in held.items():
            own(one).copy_(own(state["model"][name]))
        restore(self.inner, held, state["inner"])
        self.step = state["counts"]["step"]

    def end(self) -> None:
        """Leave the other zones."""
        self.manager.shutdown(wait=False)


def fragments(model: Transformer, count: int) -> list[nn.ModuleList]:
    """The model in blocks of layers; what comes before the layers goes with the first, the rest with the last."""
    blocks = list(model.layers.values())
    count = min(count, len(blocks))
    cuts = [round(number * len(blocks) / count) for number in range(count + 1)]
    parts = [blocks[start:stop] for start, stop in pairwise(cuts)]
    others = {name: one for name, one in model.named_children() if name != "layers"}
    parts[0] = [one for name, one in others.items() if name not in HEAD] + parts[0]
    parts[-1] = parts[-1] + [one for name, one in others.items() if name in HEAD]
    return [nn.ModuleList(part) for part in parts]


def group_of(run: Run, quantized: bool) -> Any:
    """The process group between this rank and its like in the other zones."""
    from torchft import ProcessGroupGloo, ProcessGroupNCCL

    class Blocking(ProcessGroupNCCL):
        """The same, on a communicator whose calls return when they have been queued."""

        def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
            device = torch.device("cuda", torch.cuda.current_device())
            backend = dist.ProcessGroupNCCL(store, rank, world_size, dist.ProcessGroupNCCL.Options())
            backend._set_sequence_number_for_group()
            backend.eager_connect_single_device(device)
            made = dist.ProcessGroup(store, rank, world_size)
            made._set_default_backend(dist.ProcessGroup.BackendType.NCCL)
            made._register_backend(device, dist.ProcessGroup.BackendType.NCCL, backend)
            self._errored = None
            return made

    timeout = timeout_of(run)
    if run.device.type == "cpu":
        return ProcessGroupGloo(timeout=timeout)
    os.environ.setdefault(
        "TORCH_NCCL_NONBLOCKING_TIMEOUT", str(timeout.total_seconds())
    )  # or torchft warns, and sets it
    return (Blocking if quantized else ProcessGroupNCCL)(timeout=timeout)


def timeout_of(run: Run) -> datetime.timedelta:
    """How long an exchange may take."""
    return datetime.timedelta(minutes=run.settings.get("timeout_minutes") or 10)


def manager_of(run: Run, zone: int, zones: Averaging, group: Any) -> Any:
    """The Manager of this rank; that of the zone's first rank speaks with the lighthouse."""
    from torchft import Manager
    from torchft.checkpointing.http_transport import HTTPTransport

    class Transport(HTTPTransport):
        """State for a zone that recovers, offered under the address that leads to the lighthouse."""

        def address(self) -> str:
            """As torchft makes it, with this machine's address in place of its host name, which others may not know."""
            said = urlsplit(super().address())
            return f"http://{address_towards_lighthouse()}:{said.port}{said.path}"

    timeout = timeout_of(run)
    between = run.strategy["local_update"]["steps"] * run.settings["predicted"]["step_s"]["high"]
    return Manager(
        pg=group,
        load_state_dict=zones.load_training,
        state_dict=lambda: parts_of_this_rank(zones.training_state()),
        min_replica_size=1,  # the lighthouse's --min_replicas says how many zones are waited for
        use_async_quorum=False,
        timeout=timeout,
        quorum_timeout=max(PATIENCE, datetime.timedelta(seconds=3 * between)),
        connect_timeout=timeout,
        replica_id=f"zone-{zone}",
        hostname=url_host(os.environ["MASTER_ADDR"]),
        checkpoint_transport=Transport(timeout=timeout, num_chunks=0),
        init_sync=False,  # weights follow from the seed alone
        max_retries=FAILURES,
    )


def address_towards_lighthouse() -> str:
    """The address of this machine on the way to the lighthouse, as a URL has it."""
    target = urlsplit(os.environ["TORCHFT_LIGHTHOUSE"])
    family, kind, _, _, address = socket.getaddrinfo(target.hostname, target.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # sends nothing: it only asks for the route
        return url_host(probe.getsockname()[0])


def url_host(address: str) -> str:
    """An address as a URL has it."""
    return f"[{address}]" if ":" in address else address


# ---- tensors that may be sharded, and states by name ----


def own(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def like(parameter: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """A rank's part of something as large as a parameter, cut as the parameter is."""
    if not isinstance(parameter, DTensor):
        return part
    form = {"shape": parameter.shape, "stride": parameter.stride()}
    return DTensor.from_local(part, parameter.device_mesh, parameter.placements, run_check=False, **form)


def parts_of_this_rank(state: Any) -> Any:
    """A state without sharding: what travels to the same rank of another zone."""
    if isinstance(state, dict):
        return {key: parts_of_this_rank(value) for key, value in state.items()}
    return own(state).clone() if isinstance(state, torch.Tensor) else state


def make_states(optimizers: list[torch.optim.Optimizer]) -> None:
    """Have optimizers make their states without changing a weight: a step at rate 0 with gradients of 0."""
    for one in optimizers:
        rates = [group["lr"] for group in one.param_groups]
        for group in one.param_groups:
            group["lr"] = 0.0
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        one.step()
        one.zero_grad()
        for group, before in zip(one.param_groups, rates, strict=True):
            group["lr"] = before


def by_name(optimizers: list[torch.optim.Optimizer], names: dict[int, str]) -> dict[str, dict[str, Any]]:
    """What optimizers keep of each parameter."""
    kept = {names[id(one)]: state for optimizer in optimizers for one, state in optimizer.state.items()}
    return {name: {key: value for key, value in state.items() if value is not None} for name, state in kept.items()}


def restore(optimizers: list[torch.optim.Optimizer], held: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
    """Set what `by_name` gave."""
    of = {id(one): optimizer for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]}
    for name, kept in state.items():
        now = of[id(held[name])].state[held[name]]
        for key, value in kept.items():
            if isinstance(value, torch.Tensor) and isinstance(now.get(key), torch.Tensor):
                own(now[key]).copy_(own(value))
            elif isinstance(value, torch.Tensor) and value.shape:
                now[key] = like(held[name], own(value).clone().to(own(held[name]).device))
            else:
                now[key] = value
