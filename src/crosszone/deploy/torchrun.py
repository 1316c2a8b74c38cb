"""torchrun: one launcher process of PyTorch, with the node rank and the number of its processes."""

from __future__ import annotations

from crosszone.deploy.launch import Agent, Launch
from crosszone.deploy.shell import Raw

ARGUMENTS = Raw('"$@"')
"""What is typed after the node's script goes on to the trainer."""


def torchrun(launch: Launch, agent: Agent, *program: str | Raw) -> tuple[str | Raw, ...]:
    """The command of one agent; agents count as nodes, so that unequal and split nodes keep their planned ranks."""
    python = launch.settings.python
    start: tuple[str | Raw, ...] = ("torchrun",) if python is None else (python, "-m", "torch.distributed.run")
    if len(launch.agents) == 1:
        meet: tuple[str | Raw, ...] = ("--standalone", "--nproc-per-node", str(len(agent.gpus)))
    else:
        meet = (
            *("--nnodes", str(len(launch.agents))),
            *("--node-rank", str(agent.number)),
            *("--nproc-per-node", str(len(agent.gpus))),
            *("--master-addr", Raw('"$MASTER_ADDR"')),
            *("--master-port", Raw('"$MASTER_PORT"')),
        )
    return (*start, *meet, *program, ARGUMENTS)
