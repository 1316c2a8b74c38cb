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
from checkpoint import ABOUT, Checkpoints, random_state, restore_random, unreadable
from model import load_huggingface
from outer import Outer
from parallel import Grid
from run import Refusal, Run
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

# fp16: the first loss scale, halved when a gradient is not finite, and the good steps after which it is doubled.
SCALE, CALM = 2.0**15, 1000


class States:
    """Optimizer states, loss scale and their checkpoints."""

    def __init__(
        self, run: Run, grid: Grid, named: dict[str, nn.Parameter], optimizer: Any, average: ZoneAverage | None
    ) -> None:
        self.run, self.named, self.average = run, named, average
        self.optimizers = getattr(optimizer, "optimizers", [optimizer])
        self.scale = SCALE if run.job["precision"] == "fp16" else 1.0
        self.used = self.scale
        """Scale of the step at hand; `scale` is that of the next."""
        self.calm = self.updates = 0
        self.copy = f"copy-{grid.place('zone')}-{grid.place('replicate')}"
        self.checkpoints = Checkpoints(run, sharded=True)

    def accepts(self, norm: float) -> bool:
        """Whether the step may be taken: not when fp16 gradients overflowed. Sets the loss scale of the next one."""
        self.used, good = self.scale, norm < float("inf")
        if self.run.job["precision"] == "fp16":
            self.calm = self.calm + 1 if good else 0
            if not good or self.calm == CALM:
                self.scale, self.calm = self.scale * (2.0 if good else 0.5), 0
            if not good:
                return False
        self.updates += 1
        return True

    def resume(self) -> int:
        """Load the newest checkpoint; the step it was made after, 0 where there is none."""
        step = self.checkpoints.latest() or 0
        if step:
            self.make_optimizer_states()
            state = self.checkpoints.load(step, self.state())
            own = state[f"rank-{self.run.rank}"]
            self.scale, self.calm, self.updates = float(own["scale"]), int(own["calm"]), int(own["updates"])
            self.used = self.scale
            for one in self.counters():
                one.fill_(self.updates)
            if self.average is not None:
                self.average.load(own["outer"])
            restore_random(self.run, own["random"])
            self.run.say(f"resumed after step {step} from {self.checkpoints.path(step)}")
        return step

    def save(self, step: int) -> None:
        """Write a checkpoint; what zones have under way arrives first."""
        if self.average is not None:
            self.average.finish(step)
        self.checkpoints.save(step, self.state())

    def state(self) -> dict[str, Any]:
        """All tensors by name; those of parameters are DTensors that know their full shape."""
        names = {id(parameter): name for name, parameter in self.named.items()}
        kept = {
            names[id(parameter)]: {key: one for key, one in state.items() if isinstance(one, Tensor) and key != "step"}
            for optimizer in self.optimizers
            for parameter, state in optimizer.state.items()
        }
        own = {
            "scale": torch.tensor(self.scale),
            "calm": torch.tensor(self.calm),
            "updates": torch.tensor(self.updates),
        }
        own["random"] = random_state(self.run)
        if self.average is not None:
            own["outer"] = self.average.save()
        weights = {name: one.detach() for name, one in self.named.items()}
        return {self.copy: {"model": weights, "optimizer": kept}, f"rank-{self.run.rank}": own}

    def make_optimizer_states(self) -> None:
        """Have the optimizer make its states, for a checkpoint to fill: a step with no gradient at rate 0."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = 0.0
                for parameter in group["params"]:
                    parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def counters(self) -> list[Tensor]:
        """The optimizers' own counts of steps; the same for all parameters, so not stored for each."""
        states = (state for optimizer in self.optimizers for state in optimizer.state.values())
        return [state["step"] for state in states if isinstance(state.get("step"), Tensor)]


def by_mesh(optimizer: Any) -> Any:
    """The same optimizer with a group for each mesh: one operation on many tensors takes those of one mesh only."""
    for one in getattr(optimizer, "optimizers", [optimizer]):
        split = []
        for group in one.param_groups:
            meshes: dict[object, list[Tensor]] = {}
            for parameter in group["params"]:
                meshes.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
            split += [group | {"params": parameters} for parameters in meshes.values()]
        one.param_groups[:] = split
    return optimizer


def load_weights(run: Run, model: nn.Module) -> None:
    """Begin with published weights, or those of another run's checkpoint."""
    folder = Path(run.data["init_from"])
    if not folder.is_dir():
        raise Refusal(f"the weights {folder} are not on this machine; give --init-from a folder", here=True)
    if not (folder / ABOUT).exists():
        load_huggingface(model, folder)
        return
    import torch.distributed.checkpoint as dcp

    weights = {name: one.detach() for name, one in model.named_parameters()}
    try:
        dcp.load({"copy-0-0": {"model": weights}}, storage_reader=dcp.FileSystemReader(folder))
    except Exception as error:  # One of many kinds, wrapped by the library with the trace of every rank.
        raise unreadable(folder, error) from None


class ZoneAverage(Outer):
    """Local updates where every rank holds shards: each averages its own with those of its peers in other zones."""

    def __init__(self, run: Run, grid: Grid, named: dict[str, nn.Parameter]) -> None:
        self.grid = grid
        parts = [one.detach().to_local() if isinstance(one, DTensor) else one.detach() for one in named.values()]
        super().__init__(run, _Parts(parts))

    def join(self) -> None:
        """The peers are those along the mesh's zone dimension; zones weigh by their samples."""
        self.across = self.grid.mesh["zone"].get_group()
        self.weight = self.grid.samples / self.run.job["global_batch"]

    def started(self, moved: Tensor) -> tuple[Tensor, Any]:
        """What is on the wire, and the exchange."""
        wire = (moved * self.weight).to(self.run.device, self.wire)
        return wire, dist.all_reduce(wire, group=self.across, async_op=True)

    def mean_of(self, wire: Tensor) -> Tensor:
        """The mean over zones."""
        return wire.to(self.common[0][0].device, torch.float32)

    def save(self) -> dict[str, Tensor]:
        """Common weights and momentum of this rank's parts."""
        parts = [one for fragment in self.common for one in fragment]
        buffers = [self.optimizer.state[one].get("momentum_buffer") for one in parts]
        found = {f"common-{number}": one for number, one in enumerate(parts)}
        # Momentum that is not there yet acts like zero.
        return found | {
            f"momentum-{number}": torch.zeros_like(one) if buffer is None else buffer
            for number, (one, buffer) in enumerate(zip(parts, buffers, strict=True))
        }

    def load(self, saved: dict[str, Tensor]) -> None:
        """Set them."""
        for number, one in enumerate(one for fragment in self.common for one in fragment):
            one.copy_(saved[f"common-{number}"])
            self.optimizer.state[one]["momentum_buffer"] = saved[f"momentum-{number}"]


class _Parts:
    """Tensors where a module is asked for its parameters."""

    def __init__(self, parts: list[Tensor]) -> None:
        self.parts = parts

    def parameters(self) -> list[Tensor]:
        """The tensors."""
        return self.parts
