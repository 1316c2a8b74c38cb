"""Outer: zones train on their own and average now and then (DiLoCo, Douillard et al., arXiv 2311.08105).

Every `steps` steps the zones exchange how far their weights have moved since the last time, and an outer SGD with
Nesterov momentum moves the common weights by the mean. With fragments, each part of the model has its own turn, turns
spread evenly over the `steps`, and with a delay a part is exchanged while the next `delay` steps compute, then mixed
half and half with the weights that went on (Streaming DiLoCo, arXiv 2501.18512). Zones weigh by their samples.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from run import Refusal, Run
from torch import nn

# Share of the common weights where a fragment went on while it was exchanged (Streaming DiLoCo's alpha).
KEPT = 0.5
WIRE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Outer:
    """The common weights and their optimizer; every rank of every zone holds the same."""

    def __init__(self, run: Run, model: nn.Module) -> None:
        local = run.strategy["local_update"]
        if local["delay"] >= local["steps"]:
            raise Refusal(
                f"strategy.local_update.delay {local['delay']}: a part must have arrived before its next turn, "
                f"{local['steps']} steps later; use less"
            )
        if local["dtype"] not in WIRE:
            known = ", ".join(WIRE)
            raise Refusal(
                f"strategy.local_update.dtype {local['dtype']}: this trainer exchanges in {known}; choose one"
            )
        self.run, self.every, self.wire = run, local["steps"], WIRE[local["dtype"]]
        self.delay: int = local["delay"]
        self.under_way: dict[int, tuple[int, torch.Tensor, Any]] = {}
        """Fragment -> the step it arrives after, what is on the wire, and the exchange to wait for."""
        self.fragments = split_evenly(list(model.parameters()), local["fragments"])
        self.common = [[one.detach().float().clone() for one in fragment] for fragment in self.fragments]
        training = run.training
        rate, momentum = training["outer_lr"], training["outer_momentum"]
        parameters = [one for fragment in self.common for one in fragment]
        self.optimizer = torch.optim.SGD(parameters, lr=rate, momentum=momentum, nesterov=momentum > 0)
        self.join()

    def join(self) -> None:
        """Groups: the ranks of a zone, and across zones the ranks that carry the same share of the exchange."""
        run = self.run
        zones: dict[int, list[int]] = {}
        for rank, zone in enumerate(run.zone_of_rank):
            zones.setdefault(zone, []).append(rank)
        self.mine = zones[run.zone_of_rank[run.rank]]
        self.shares = min(len(ranks) for ranks in zones.values())
        place = {rank: number for ranks in zones.values() for number, rank in enumerate(ranks)}
        self.place = place[run.rank]
        self.inside = run.split(run.zone_of_rank)
        carriers = [place[rank] if place[rank] < self.shares else -1 - rank for rank in range(run.world)]
        self.across = run.split(carriers)
        each = run.strategy["replica_micro_batches"]
        samples = {zone: sum(each[run.coordinates_of(rank)["dp"]] for rank in ranks) for zone, ranks in zones.items()}
        self.weight = samples[run.zone_of_rank[run.rank]] / sum(samples.values())

    def turns(self, step: int) -> list[tuple[str, Callable[[], None]]]:
        """What to do after a step, by name: fragments that arrive, then those that set out; all of them at the end."""
        count = len(self.fragments)
        ends = step == self.run.steps
        mine = [n for n in range(count) if ends or (step - (n + 1) * self.every // count) % self.every == 0]
        found = [("arrives", self.take, n) for n, (then, _, _) in self.under_way.items() if ends or then <= step]
        for number in mine:
            found.append(("sets out", self.send, number))
            if ends or not self.delay:
                found.append(("arrives", self.take, number))
        return [(f"fragment {number} {what}", partial(act, number, step)) for what, act, number in found]

    def finish(self, step: int) -> None:
        """Take what is under way, so that a checkpoint holds all there is."""
        for number in list(self.under_way):
            self.take(number, step)

    @torch.no_grad()
    def send(self, number: int, step: int) -> None:
        """Start the exchange of one fragment: how far it has moved since the last time."""
        local, common = self.fragments[number], self.common[number]
        moved = torch.cat([(old - new.float()).flatten() for old, new in zip(common, local, strict=True)])
        self.under_way[number] = (step + self.delay, *self.started(moved))

    @torch.no_grad()
    def take(self, number: int, step: int) -> None:
        """Wait for the mean of one fragment, move the common weights by it, and go on from them."""
        then, wire, exchange = self.under_way.pop(number)
        if exchange is not None:
            exchange.wait()
        local, common = self.fragments[number], self.common[number]
        mean, at = self.mean_of(wire), 0
        for old in common:
            old.grad = mean[at : at + old.numel()].view_as(old)
            at += old.numel()
        self.optimizer.step()
        went_on = step > then - self.delay
        for old, new in zip(common, local, strict=True):
            new.copy_(torch.lerp(new.float(), old, KEPT) if went_on else old)
            old.grad = None

    def started(self, moved: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """What is on the wire, and the exchange: each rank of a zone carries a share across."""
        size = -(-moved.numel() // self.shares)
        wire = torch.zeros(size * self.shares, dtype=self.wire, device=moved.device)
        wire[: moved.numel()] = (moved * self.weight).to(self.wire)
        if self.place >= self.shares:
            return wire, None
        mine = wire.view(self.shares, size)[self.place]
        return wire, dist.all_reduce(mine, group=self.across, async_op=True)

    def mean_of(self, wire: torch.Tensor) -> torch.Tensor:
        """The mean over zones: each rank of a zone hands the share it carried to its neighbours."""
        if len(self.mine) > 1:
            for number, rank in enumerate(self.mine[: self.shares]):
                dist.broadcast(wire.view(self.shares, -1)[number], src=rank, group=self.inside)
        return wire.float()

    def state_dict(self) -> dict[str, Any]:
        """Common weights and momentum, for a checkpoint."""
        return {"common": self.common, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set them."""
        for mine, saved in zip(self.common, state["common"], strict=True):
            for one, value in zip(mine, saved, strict=True):
                one.copy_(value)
        self.optimizer.load_state_dict(state["optimizer"])


def split_evenly(parameters: list[nn.Parameter], count: int) -> list[list[nn.Parameter]]:
    """Consecutive parameters in `count` parts of about the same size, none empty."""
    if count > len(parameters):
        raise Refusal(f"strategy.local_update.fragments {count}: the model has {len(parameters)} tensors; use fewer")
    total, parts, seen = sum(one.numel() for one in parameters), [[] for _ in range(count)], 0
    for number, one in enumerate(parameters):
        left = len(parameters) - number
        wanted = min(count - 1, (seen + one.numel() // 2) * count // total)
        filled = sum(1 for part in parts if part)
        # As many tensors must be left as there are empty parts.
        at = max(wanted, filled - 1, 0) if left > count - filled else filled
        parts[min(at, filled)].append(one)
        seen += one.numel()
    return parts
