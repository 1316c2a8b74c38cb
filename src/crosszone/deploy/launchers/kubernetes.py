"""Kubernetes: a TrainJob of Kubeflow Trainer, with a runtime of its own that has a replicated job for each run of equal
nodes, so that unequal zones are one job.

How Kubeflow Trainer 2.3.0 (kubeflow/trainer 658725b) makes a JobSet of it: without an mlPolicy each replicated job
keeps its own number of pods, and arguments of the TrainJob reach every one that carries the trainer's label. A pod is
reached at <job>-<replicated job>-0-<index>.<job> (kubernetes-sigs/jobset 08dfbdf); Kubernetes gives the index as
JOB_COMPLETION_INDEX.
"""

from __future__ import annotations

from typing import Any

from crosszone.deploy.launch import Launch, Node
from crosszone.deploy.launchers.pods import metadata, pod_spec, put
from crosszone.deploy.launchers.request import job_name, runs, yaml_text
from crosszone.text import label

NEEDS_ADDRESSES = False
FILE = "trainjob.yaml"
GROUP = "trainer.kubeflow.org"
STEP = {f"{GROUP}/trainjob-ancestor-step": "trainer"}
# Times that all nodes start again together after a failure; the trainer resumes from its last checkpoint.
RESTARTS = 3


def files(launch: Launch) -> dict[str, str]:
    """The runtime and the job that refers to it."""
    return {FILE: yaml_text(label("bundle_kubernetes", launch.language), _runtime(launch), _job(launch))}


def places_nodes(nodes: tuple[Node, ...]) -> bool:
    """What it starts has addresses and interfaces of its own, not those of the scenario's machines."""
    del nodes
    return True


def how(launch: Launch) -> tuple[str, ...]:
    """Store the bundle, start the job, follow its first node."""
    named = metadata(launch)
    follow = f"kubectl logs -n {named['namespace']} -f job/{named['name']}-{_name(0)}-0"
    return (*put(launch, FILE), follow)


def _runtime(launch: Launch) -> dict[str, Any]:
    jobs = [_replicated(launch, number, run) for number, run in enumerate(runs(launch))]
    template = {"spec": {"failurePolicy": {"maxRestarts": RESTARTS}, "replicatedJobs": jobs}}
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": metadata(launch),
        "spec": {"template": template},
    }


def _job(launch: Launch) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(launch),
        "spec": {
            "runtimeRef": {"apiGroup": GROUP, "kind": "TrainingRuntime", "name": job_name(launch)},
            "trainer": {"args": []},
        },
    }


def _replicated(launch: Launch, number: int, run: tuple[Node, ...]) -> dict[str, Any]:
    """The pods of one run; any that fails fails the whole job, which then starts again."""
    job = job_name(launch)
    environment = [
        {"name": "MASTER_ADDR", "value": f"{job}-{_name(0)}-0-0.{job}"},
        {"name": "FIRST_NODE", "value": str(run[0].number)},
    ]
    pods = {"restartPolicy": "Never", **pod_spec(launch, run, "node", _START, env=environment)}
    return {
        "name": _name(number),
        "replicas": 1,
        "template": {
            "metadata": {"labels": STEP},
            "spec": {
                "completionMode": "Indexed",
                "completions": len(run),
                "parallelism": len(run),
                "backoffLimit": 0,
                "template": {"spec": pods},
            },
        },
    }


def _name(number: int) -> str:
    return f"run-{number}"


# No $(...): Kubernetes would take it for a variable of its own.
_START = """\
declare -i node=FIRST_NODE+JOB_COMPLETION_INDEX
printf -v script nodes/%03d.sh "$node"
exec bash "$script" "$@"
"""
