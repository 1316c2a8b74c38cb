"""PyTorch DDP: every rank a whole replica; torchrun starts `train.py`."""

from __future__ import annotations

from crosszone.deploy.bundle import Option
from crosszone.deploy.frameworks import list_local_update_options, list_pytorch_options, list_wire_options
from crosszone.deploy.launch import Agent, Launch, build_torchrun
from crosszone.deploy.shell import Raw


def build_options(launch: Launch) -> tuple[Option, ...]:
    """What DDP and the trainer are told."""
    return (*list_pytorch_options(launch), *list_wire_options(launch), *list_local_update_options(launch))


def build_files(launch: Launch) -> dict[str, str]:
    """Nothing beside the trainer: all of it stands in settings.json."""
    del launch
    return {}


def build_command(launch: Launch, agent: Agent) -> tuple[str | Raw, ...] | None:
    """One torchrun."""
    return build_torchrun(launch, agent, "train.py", "settings.json")
