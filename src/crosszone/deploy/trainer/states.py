"""States: what a run carries from step to step where every rank holds a part of it: optimizer, loss scale, checkpoints.

A checkpoint (torch.distributed.checkpoint) holds one entry for each set of states: where states have copies (HSDP) or
zones train on their own, every copy writes its own, so that no node needs the files of another zone. What is a rank's
own is stored under its number.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from checkpoint import ABOUT, Checkpoints, get_random_state, make_unreadable_error, restore_random_state
from model import load_huggingface
from outer import OuterOptimizer
from parallel import RankMesh
from run import Refusal, TrainerRun
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

# fp16: the first loss scale, halved when a gradient is not finite, and the good steps after which it is doubled.
FIRST_SCALE, SCALE_GROWTH_STEPS = 2.0**15, 1000


class ShardedStates:
    """Optimizer states, loss scale and their checkpoints."""

    def __init__(
        self,
        run: TrainerRun,
        grid: RankMesh,
        parameters: dict[str, nn.Parameter],
        optimizer: Any,
        average: ZoneAverage | None,
    ) -> None:
        self.run, self.parameters, self.average = run, parameters, average
        self.optimizers = getattr(optimizer, "optimizers", [optimizer])
        self.scale = FIRST_SCALE if run.job["precision"] == "fp16" else 1.0
        self.used = self.scale
        """Scale of the step at hand; `scale` is that of the next."""
        self.good_steps = self.updates = 0
        self.copy = f"copy-{grid.get_place('zone')}-{grid.get_place('replicate')}"
        self.checkpoints = Checkpoints(run, sharded=True)

    def is_accepted(self, norm: float) -> bool:
        """Whether the step may be taken: not when fp16 gradients overflowed. Sets the loss scale of the next one."""
        self.used, good = self.scale, norm < float("inf")
        if self.run.job["precision"] == "fp16":
            self.good_steps = self.good_steps + 1 if good else 0
            if not good or self.good_steps == SCALE_GROWTH_STEPS:
                self.scale, self.good_steps = self.scale * (2.0 if good else 0.5), 0
            if not good:
                return False
        self.updates += 1
        return True

    def resume(self) -> int:
        """Load the newest checkpoint; the step it was made after, 0 where there is none."""
        step = self.checkpoints.find_latest() or 0
        if step:
            self.init_optimizer_states()
            state = self.checkpoints.load(step, self.collect_state())
            rank_state = state[f"rank-{self.run.rank}"]
            self.scale, self.good_steps, self.updates = (
                float(rank_state["scale"]),
                int(rank_state["calm"]),
                int(rank_state["updates"]),
            )
            self.used = self.scale
            for counter in self.list_step_counters():
                counter.fill_(self.updates)
            if self.average is not None:
                self.average.load(rank_state["outer"])
            restore_random_state(self.run, rank_state["random"])
            self.run.print_line(f"resumed after step {step} from {self.checkpoints.get_path(step)}")
        return step

    def save(self, step: int) -> None:
        """Write a checkpoint."""
        self.checkpoints.save(step, self.collect_state())

    def collect_state(self) -> dict[str, Any]:
        """All tensors by name; those of parameters are DTensors that know their full shape."""
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        optimizer_states = {
            names[id(parameter)]: {
                key: tensor for key, tensor in state.items() if isinstance(tensor, Tensor) and key != "step"
            }
            for optimizer in self.optimizers
            for parameter, state in optimizer.state.items()
        }
        rank_state = {
            "scale": torch.tensor(self.scale),
            "calm": torch.tensor(self.good_steps),
            "updates": torch.tensor(self.updates),
        }
        rank_state["random"] = get_random_state(self.run)
        if self.average is not None:
            rank_state["outer"] = self.average.save()
        weights = {name: tensor.detach() for name, tensor in self.parameters.items()}
        return {self.copy: {"model": weights, "optimizer": optimizer_states}, f"rank-{self.run.rank}": rank_state}

    def init_optimizer_states(self) -> None:
        """Have the optimizer make its states, for a checkpoint to fill: a step with no gradient at rate 0."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = 0.0
                for parameter in group["params"]:
                    parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def list_step_counters(self) -> list[Tensor]:
        """The optimizers' own counts of steps; the same for all parameters, so not stored for each."""
        states = (state for optimizer in self.optimizers for state in optimizer.state.values())
        return [state["step"] for state in states if isinstance(state.get("step"), Tensor)]


def group_by_mesh(optimizer: Any) -> Any:
    """The same optimizer with a group for each mesh: one operation on many tensors takes those of one mesh only."""
    for member in getattr(optimizer, "optimizers", [optimizer]):
        split = []
        for group in member.param_groups:
            meshes: dict[object, list[Tensor]] = {}
            for parameter in group["params"]:
                meshes.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
            split += [group | {"params": parameters} for parameters in meshes.values()]
        member.param_groups[:] = split
    return optimizer


def load_weights(run: TrainerRun, model: nn.Module) -> None:
    """Begin with published weights, or those of another run's checkpoint."""
    folder = Path(run.data["init_from"])
    if not folder.is_dir():
        raise Refusal(f"the weights {folder} are not on this machine; give --init-from a folder", this_machine=True)
    if not (folder / ABOUT).exists():
        load_huggingface(model, folder)
        return
    import torch.distributed.checkpoint as dcp

    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    try:
        dcp.load({"copy-0-0": {"model": weights}}, storage_reader=dcp.FileSystemReader(folder))
    except Exception as error:  # One of many kinds, wrapped by the library with the trace of every rank.
        raise make_unreadable_error(folder, error) from None


class ZoneAverage(OuterOptimizer):
    """Local updates where every rank holds shards: each averages its own with those of its peers in other zones."""

    def __init__(self, run: TrainerRun, grid: RankMesh, parameters: dict[str, nn.Parameter]) -> None:
        self.grid = grid
        parts = [
            parameter.detach().to_local() if isinstance(parameter, DTensor) else parameter.detach()
            for parameter in parameters.values()
        ]
        super().__init__(run, _ShardList(parts))

    def create_groups(self) -> None:
        """The peers are those along the mesh's zone dimension; zones weigh by their samples."""
        self.across = self.grid.mesh["zone"].get_group()
        self.weight = self.grid.samples / self.run.job["global_batch"]

    def start_exchange(self, moved: Tensor) -> tuple[Tensor, Any]:
        """What is on the wire, and the exchange."""
        wire = (moved * self.weight).to(self.run.device, self.wire)
        return wire, dist.all_reduce(wire, group=self.across, async_op=True)

    def finish_exchange(self, wire: Tensor) -> Tensor:
        """The mean over zones."""
        return wire.to(self.common_weights[0][0].device, torch.float32)

    def save(self) -> dict[str, Tensor]:
        """Common weights and momentum of this rank's parts."""
        parts = [part for fragment in self.common_weights for part in fragment]
        buffers = [self.optimizer.state[part].get("momentum_buffer") for part in parts]
        saved = {f"common-{number}": part for number, part in enumerate(parts)}
        # Momentum that is not there yet acts like zero.
        return saved | {
            f"momentum-{number}": torch.zeros_like(part) if buffer is None else buffer
            for number, (part, buffer) in enumerate(zip(parts, buffers, strict=True))
        }

    def load(self, saved: dict[str, Tensor]) -> None:
        """Set them."""
        for number, part in enumerate(part for fragment in self.common_weights for part in fragment):
            part.copy_(saved[f"common-{number}"])
            self.optimizer.state[part]["momentum_buffer"] = saved[f"momentum-{number}"]


class _ShardList:
    """Tensors where a module is asked for its parameters."""

    def __init__(self, parts: list[Tensor]) -> None:
        self.parts = parts

    def parameters(self) -> list[Tensor]:
        """The tensors."""
        return self.parts
