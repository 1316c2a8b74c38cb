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
from crosszone.deploy.launchers.pods import build_metadata, build_pod_spec, list_upload_commands
from crosszone.deploy.launchers.request import group_equal_nodes, make_job_name, render_yaml
from crosszone.text import label

NEEDS_ADDRESSES = False
JOB_FILE = "trainjob.yaml"
TRAINER_API_GROUP = "trainer.kubeflow.org"
STEP_LABELS = {f"{TRAINER_API_GROUP}/trainjob-ancestor-step": "trainer"}
# Times that all nodes start again together after a failure; the trainer resumes from its last checkpoint.
MAX_RESTARTS = 3


def build_files(launch: Launch) -> dict[str, str]:
    """The runtime and the job that refers to it."""
    return {
        JOB_FILE: render_yaml(label("bundle_kubernetes", launch.language), _build_runtime(launch), _build_job(launch))
    }


def places_nodes(nodes: tuple[Node, ...]) -> bool:
    """What it starts has addresses and interfaces of its own, not those of the scenario's machines."""
    del nodes
    return True


def list_start_commands(launch: Launch) -> tuple[str, ...]:
    """Store the bundle, start the job, follow its first node."""
    job_metadata = build_metadata(launch)
    follow = f"kubectl logs -n {job_metadata['namespace']} -f job/{job_metadata['name']}-{_name_replicated_job(0)}-0"
    return (*list_upload_commands(launch, JOB_FILE), follow)


def _build_runtime(launch: Launch) -> dict[str, Any]:
    jobs = [_build_replicated_job(launch, number, run) for number, run in enumerate(group_equal_nodes(launch))]
    template = {"spec": {"failurePolicy": {"maxRestarts": MAX_RESTARTS}, "replicatedJobs": jobs}}
    return {
        "apiVersion": f"{TRAINER_API_GROUP}/v1alpha1",
        "kind": "TrainingRuntime",
        "metadata": build_metadata(launch),
        "spec": {"template": template},
    }


def _build_job(launch: Launch) -> dict[str, Any]:
    return {
        "apiVersion": f"{TRAINER_API_GROUP}/v1alpha1",
        "kind": "TrainJob",
        "metadata": build_metadata(launch),
        "spec": {
            "runtimeRef": {"apiGroup": TRAINER_API_GROUP, "kind": "TrainingRuntime", "name": make_job_name(launch)},
            "trainer": {"args": []},
        },
    }


def _build_replicated_job(launch: Launch, number: int, run: tuple[Node, ...]) -> dict[str, Any]:
    """The pods of one run; any that fails fails the whole job, which then starts again."""
    job = make_job_name(launch)
    environment = [
        {"name": "MASTER_ADDR", "value": f"{job}-{_name_replicated_job(0)}-0-0.{job}"},
        {"name": "FIRST_NODE", "value": str(run[0].number)},
    ]
    pods = {"restartPolicy": "Never", **build_pod_spec(launch, run, "node", _START, env=environment)}
    return {
        "name": _name_replicated_job(number),
        "replicas": 1,
        "template": {
            "metadata": {"labels": STEP_LABELS},
            "spec": {
                "completionMode": "Indexed",
                "completions": len(run),
                "parallelism": len(run),
                "backoffLimit": 0,
                "template": {"spec": pods},
            },
        },
    }


def _name_replicated_job(number: int) -> str:
    return f"run-{number}"


# No $(...): Kubernetes would take it for a variable of its own.
_START = """\
declare -i node=FIRST_NODE+JOB_COMPLETION_INDEX
printf -v script nodes/%03d.sh "$node"
exec bash "$script" "$@"
"""
