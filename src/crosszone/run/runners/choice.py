"""Choice: the runner of a task, by what its environments say.

runner = runner_of(task, work, environments, machines, port)
runner.prepare(); runner.start(token)
"""

from __future__ import annotations

from collections.abc import Mapping

from crosszone.deploy.settings import LaunchSettings
from crosszone.inputs.environment import Environment
from crosszone.inputs.value import parse
from crosszone.run.machine import Machine
from crosszone.run.request import launch_settings, started_by
from crosszone.run.runners.kubernetes import KubernetesRunner
from crosszone.run.runners.ray import RayRunner
from crosszone.run.runners.runner import Runner
from crosszone.run.runners.slurm import SlurmRunner
from crosszone.run.runners.supervised import SupervisedRunner
from crosszone.run.work import Work
from crosszone.store.tasks import Task


def make_runner(
    task: Task, work: Work, environments: Mapping[str, Environment], machines: Mapping[str, Machine], port: int
) -> Runner:
    """Who starts the nodes of a task. `machines` are those of local and ssh environments; a scheduler needs none.

    `InvalidError` when the environments have different schedulers.
    """
    used = {node.environment: environments[node.environment] for node in work.nodes}
    kind = started_by(used.values())
    if kind == "slurm":
        fields = {**launch_settings(used), **task.request.get("settings", {})}
        settings = parse(LaunchSettings, fields)
        return SlurmRunner(task=task.id, work=work, environments=used, port=port, settings=settings)
    if kind == "kubernetes":
        return KubernetesRunner(task=task.id, work=work, environments=used, port=port)
    if kind == "ray":
        return RayRunner(task=task.id, work=work, environments=used, port=port)
    return SupervisedRunner(task=task.id, work=work, environments=environments, machines=machines, port=port)
