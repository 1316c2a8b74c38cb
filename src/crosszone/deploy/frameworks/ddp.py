"""PyTorch DDP: every rank a whole replica; torchrun starts `train.py`."""

from __future__ import annotations

from crosszone.deploy.bundle import Option
from crosszone.deploy.launch import Agent, Launch, torchrun
from crosszone.deploy.pytorch import averaging_options, pytorch_options, wire_options
from crosszone.deploy.shell import Raw


def options(launch: Launch) -> tuple[Option, ...]:
    """What DDP and the trainer are told."""
    return (*pytorch_options(launch), *wire_options(launch), *averaging_options(launch))


def files(launch: Launch) -> dict[str, str]:
    """Nothing beside the trainer: all of it stands in settings.json."""
    del launch
    return {}


def command(launch: Launch, agent: Agent) -> tuple[str | Raw, ...] | None:
    """One torchrun."""
    return torchrun(launch, agent, "train.py", "settings.json")
