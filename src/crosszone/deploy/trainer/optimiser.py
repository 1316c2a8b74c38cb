"""Optimizer: the one the job names, its learning rate, and clipping.

    optimizer = build_optimizer(run, model)                     # adamw adam lamb lion muon sgd sgd-momentum adafactor
    set_learning_rate(optimizer, compute_rate(run, step))       # linear warm-up, then a cosine down to min_lr
    norm = clip_gradients(model.parameters(), run.training["clip"])

Matrices decay, norms and biases do not. What torch has comes from torch; LAMB and Lion are written out below.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from run import Refusal, TrainerRun
from torch import nn


def build_optimizer(run: TrainerRun, model: nn.Module) -> Any:
    """The optimizer of the job over the model's parameters."""
    kind, training = run.job["optimizer"], run.training
    lr, decay, eps = training["lr"], training["weight_decay"], training["eps"]
    betas = (training["beta1"], training["beta2"])
    named_parameters = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = group_by_decay([parameter for _, parameter in named_parameters], decay)
    if kind == "muon":
        inner = [parameter for name, parameter in named_parameters if parameter.ndim == 2 and ".layers." in f".{name}"]
        inner_ids = {id(parameter) for parameter in inner}
        other_groups = group_by_decay(
            [parameter for _, parameter in named_parameters if id(parameter) not in inner_ids], decay
        )
        # Matrices of the layers; everything else (tables, norms, stacked experts) by AdamW at the same rate.
        muon = torch.optim.Muon(inner, lr=lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
        return OptimizerGroup(muon, torch.optim.AdamW(other_groups, lr=lr, betas=betas, eps=eps))
    return create_optimizer(run, groups)


def create_optimizer(run: TrainerRun, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The optimizer of the job over groups of parameters; not Muon, which wants to know their names."""
    kind, training = run.job["optimizer"], run.training
    lr, eps, betas = training["lr"], training["eps"], (training["beta1"], training["beta2"])
    makers = {
        "adamw": lambda: torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps),
        "adam": lambda: torch.optim.Adam(groups, lr=lr, betas=betas, eps=eps),
        "lamb": lambda: Lamb(groups, lr=lr, betas=betas, eps=max(eps, 1e-6)),
        "lion": lambda: Lion(groups, lr=lr, betas=betas),
        "sgd": lambda: torch.optim.SGD(groups, lr=lr),
        "sgd-momentum": lambda: torch.optim.SGD(groups, lr=lr, momentum=training["beta1"]),
        "adafactor": lambda: torch.optim.Adafactor(groups, lr=lr),
    }
    if kind not in makers:
        raise Refusal(f"job.optimizer {kind} is not in this trainer; choose one of {', '.join([*makers, 'muon'])}")
    return makers[kind]()


def group_by_decay(parameters: list[nn.Parameter], decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices, which decay, and the rest, which does not."""
    matrices, vectors = [], []
    for parameter in parameters:
        shape = getattr(parameter, "ds_shape", parameter.shape)  # of one that DeepSpeed's ZeRO-3 has cut
        (matrices if len(shape) >= 2 else vectors).append(parameter)
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def compute_rate(run: TrainerRun, step: int) -> float:
    """Learning rate of a step: up to lr over the warm-up, then a cosine to min_lr at the planned last step."""
    training, total = run.training, run.job["steps"] or run.steps
    high, low, warm = training["lr"], training["min_lr"], training["warmup_steps"]
    if step <= warm:
        return high * step / warm
    done = min(1.0, (step - warm) / max(1, total - warm))
    return low + (high - low) * (1 + math.cos(math.pi * done)) / 2


def set_learning_rate(optimizer: Any, value: float) -> None:
    """Set the learning rate of all groups."""
    for group in optimizer.param_groups:
        group["lr"] = value


def clip_gradients(parameters: Iterable[torch.Tensor], limit: float | None) -> torch.Tensor:
    """Norm of the gradient before it is scaled down to `limit`; 0 or null: only measured."""
    return nn.utils.clip_grad_norm_(parameters, limit or math.inf)


def init_optimizer_states(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Have optimizers make their states without changing a weight: a step at rate 0 with gradients of 0."""
    for optimizer in optimizers:
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = 0.0
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


class OptimizerGroup:
    """Optimizers for different parameters that step together."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all of them."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self) -> None:
        """One step of each."""
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The states by number."""
        return {str(number): optimizer.state_dict() for number, optimizer in enumerate(self.optimizers)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the states."""
        for number, optimizer in enumerate(self.optimizers):
            optimizer.load_state_dict(state[str(number)])


class Lamb(torch.optim.Optimizer):
    """Adam whose step is scaled by each matrix's own norm (You et al., arXiv 1904.00962)."""

    def __init__(
        self, params: Any, lr: float, betas: tuple[float, float], eps: float, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        """One step of every parameter that has a gradient."""
        for group in self.param_groups:
            (beta1, beta2), decay = group["betas"], group["weight_decay"]
            for parameter in (parameter for parameter in group["params"] if parameter.grad is not None):
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.zeros(())
                    state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                state["step"] += 1
                mean = state["mean"].lerp_(parameter.grad, 1 - beta1)
                square = state["square"].mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
                count = float(state["step"])
                update = (mean / (1 - beta1**count)) / ((square / (1 - beta2**count)).sqrt() + group["eps"])
                update = update + decay * parameter
                weight, change = parameter.norm(), update.norm()
                # Norms and biases (no decay) take Adam's step; a matrix of zeros cannot scale anything.
                scaled = (
                    (weight > 0) & (change > 0)
                    if decay or parameter.ndim > 1
                    else torch.zeros_like(weight, dtype=torch.bool)
                )
                trust = torch.where(scaled, weight / change.clamp(min=1e-12), torch.ones_like(weight))
                parameter.sub_(group["lr"] * trust * update)


class Lion(torch.optim.Optimizer):
    """The sign of an interpolated momentum (Chen et al., arXiv 2302.06675): one state, a third of AdamW's rate."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float], weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        """One step of every parameter that has a gradient."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in (parameter for parameter in group["params"] if parameter.grad is not None):
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                update = torch.lerp(parameter.grad, state["momentum"], beta1).sign()
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * update)
                state["momentum"].lerp_(parameter.grad, 1 - beta2)
