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
from run import Refusal, TrainerRun

# Share of the common weights where a fragment went on while it was exchanged (Streaming DiLoCo's alpha).
COMMON_SHARE = 0.5
WIRE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class OuterOptimizer:
    """The common weights and their optimizer; every rank of every zone holds the same."""

    def __init__(self, run: TrainerRun, parameters: list[torch.Tensor]) -> None:
        local = run.strategy["local_update"]
        if local["delay"] >= local["steps"]:
            raise Refusal(
                f"strategy.local_update.delay {local['delay']}: a part must have arrived before its next turn, "
                f"{local['steps']} steps later; use less"
            )
        if local["dtype"] not in WIRE:
            allowed = ", ".join(WIRE)
            raise Refusal(
                f"strategy.local_update.dtype {local['dtype']}: this trainer exchanges in {allowed}; choose one"
            )
        self.run, self.every, self.wire = run, local["steps"], WIRE[local["dtype"]]
        self.delay: int = local["delay"]
        self.exchanges: dict[int, tuple[int, torch.Tensor, Any]] = {}
        """Fragment -> the step it arrives after, what is on the wire, and the exchange to wait for."""
        self.fragments = split_evenly(parameters, local["fragments"])
        self.common_weights = [
            [parameter.detach().float().clone() for parameter in fragment] for fragment in self.fragments
        ]
        training = run.training
        rate, momentum = training["outer_lr"], training["outer_momentum"]
        common = [parameter for fragment in self.common_weights for parameter in fragment]
        self.optimizer = torch.optim.SGD(common, lr=rate, momentum=momentum, nesterov=momentum > 0)
        self.create_groups()

    def create_groups(self) -> None:
        """Groups: the ranks of a zone, and across zones the ranks that carry the same share of the exchange."""
        run = self.run
        zones: dict[int, list[int]] = {}
        for rank, zone in enumerate(run.zone_of_rank):
            zones.setdefault(zone, []).append(rank)
        self.zone_ranks = zones[run.zone_of_rank[run.rank]]
        self.shares = min(len(ranks) for ranks in zones.values())
        place = {rank: number for ranks in zones.values() for number, rank in enumerate(ranks)}
        self.place = place[run.rank]
        self.inside = run.split_ranks(run.zone_of_rank)
        carriers = [place[rank] if place[rank] < self.shares else -1 - rank for rank in range(run.world)]
        self.across = run.split_ranks(carriers)
        micro_batches = run.strategy["replica_micro_batches"]
        samples = {
            zone: sum(micro_batches[run.get_coordinates(rank)["dp"]] for rank in ranks) for zone, ranks in zones.items()
        }
        self.weight = samples[run.zone_of_rank[run.rank]] / sum(samples.values())

    def list_exchanges(self, step: int) -> list[tuple[str, Callable[[], None]]]:
        """What to do after a step, by name: fragments that arrive, then those that set out; all of them at the end."""
        count = len(self.fragments)
        ends = step == self.run.steps
        due = [n for n in range(count) if ends or (step - (n + 1) * self.every // count) % self.every == 0]
        actions = [
            ("arrives", self.receive_fragment, n) for n, (then, _, _) in self.exchanges.items() if ends or then <= step
        ]
        for number in due:
            actions.append(("sets out", self.send_fragment, number))
            if ends or not self.delay:
                actions.append(("arrives", self.receive_fragment, number))
        return [(f"fragment {number} {what}", partial(act, number, step)) for what, act, number in actions]

    def finish(self, step: int) -> None:
        """Take what is under way, so that a checkpoint holds all there is."""
        for number in list(self.exchanges):
            self.receive_fragment(number, step)

    @torch.no_grad()
    def send_fragment(self, number: int, step: int) -> None:
        """Start the exchange of one fragment: how far it has moved since the last time."""
        local, common = self.fragments[number], self.common_weights[number]
        moved = torch.cat([(old - new.float()).flatten() for old, new in zip(common, local, strict=True)])
        self.exchanges[number] = (step + self.delay, *self.start_exchange(moved))

    @torch.no_grad()
    def receive_fragment(self, number: int, step: int) -> None:
        """Wait for the mean of one fragment, move the common weights by it, and go on from them."""
        then, wire, exchange = self.exchanges.pop(number)
        if exchange is not None:
            exchange.wait()
        local, common = self.fragments[number], self.common_weights[number]
        mean, offset = self.finish_exchange(wire), 0
        for old in common:
            old.grad = mean[offset : offset + old.numel()].view_as(old)
            offset += old.numel()
        self.optimizer.step()
        went_on = step > then - self.delay
        for old, new in zip(common, local, strict=True):
            new.copy_(torch.lerp(new.float(), old, COMMON_SHARE) if went_on else old)
            old.grad = None

    def start_exchange(self, moved: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """What is on the wire, and the exchange: each rank of a zone carries a share across."""
        size = -(-moved.numel() // self.shares)
        wire = torch.zeros(size * self.shares, dtype=self.wire, device=moved.device)
        wire[: moved.numel()] = (moved * self.weight).to(self.wire)
        if self.place >= self.shares:
            return wire, None
        share = wire.view(self.shares, size)[self.place]
        return wire, dist.all_reduce(share, group=self.across, async_op=True)

    def finish_exchange(self, wire: torch.Tensor) -> torch.Tensor:
        """The mean over zones: each rank of a zone hands the share it carried to its neighbours."""
        if len(self.zone_ranks) > 1:
            for number, rank in enumerate(self.zone_ranks[: self.shares]):
                dist.broadcast(wire.view(self.shares, -1)[number], src=rank, group=self.inside)
        return wire.float()

    def state_dict(self) -> dict[str, Any]:
        """Common weights and momentum, for a checkpoint."""
        return {"common": self.common_weights, "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set them."""
        for mine, saved in zip(self.common_weights, state["common"], strict=True):
            for parameter, value in zip(mine, saved, strict=True):
                parameter.copy_(value)
        self.optimizer.load_state_dict(state["optimizer"])


def split_evenly(parameters: list[torch.Tensor], count: int) -> list[list[torch.Tensor]]:
    """Consecutive parameters in `count` parts of about the same size, none empty."""
    if count > len(parameters):
        raise Refusal(f"strategy.local_update.fragments {count}: the model has {len(parameters)} tensors; use fewer")
    total, parts, done_elements = sum(parameter.numel() for parameter in parameters), [[] for _ in range(count)], 0
    for number, parameter in enumerate(parameters):
        remaining = len(parameters) - number
        target_part = min(count - 1, (done_elements + parameter.numel() // 2) * count // total)
        filled = sum(1 for part in parts if part)
        # As many tensors must be left as there are empty parts.
        part_number = max(target_part, filled - 1, 0) if remaining > count - filled else filled
        parts[min(part_number, filled)].append(parameter)
        done_elements += parameter.numel()
    return parts
