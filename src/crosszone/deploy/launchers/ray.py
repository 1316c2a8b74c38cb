"""Ray: a job that runs each node's script on its own machine of a Ray cluster; `ray_job.py` is the same for all."""

from __future__ import annotations

from crosszone.deploy.launch import Launch
from crosszone.deploy.trainer_files import read_trainer_file

NEEDS_ADDRESSES = True
JOB_FILE = "ray_job.py"


def build_files(launch: Launch) -> dict[str, str]:
    """The job's program; which nodes there are it reads from nodes.json."""
    del launch
    return {JOB_FILE: read_trainer_file(JOB_FILE)}


def list_start_commands(launch: Launch) -> tuple[str, ...]:
    """Submit it; Ray hands the bundle to its nodes."""
    submit = f"ray job submit --working-dir . -- python {JOB_FILE}"
    tiny = () if launch.framework == "megatron" else (f"{submit} --tiny --steps 5",)
    return (*tiny, submit)
