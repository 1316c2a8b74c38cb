"""PyTorchJob of Kubeflow's training operator (v1): a master and equal workers in one zone.

The operator 1.9 (kubeflow/trainer release-1.9, 3a3a1da) gives each pod MASTER_ADDR, MASTER_PORT (of the port named
pytorchjob-port) and its number as RANK: 0 the master, 1 and on the workers.
"""

from __future__ import annotations

from typing import Any

from crosszone.deploy.launch import Launch, Node, build_refusal
from crosszone.deploy.launchers import count_requested_gpus, group_equal_nodes, render_yaml
from crosszone.deploy.launchers.kubernetes import build_metadata, build_pod_spec, list_upload_commands
from crosszone.text import label

NEEDS_ADDRESSES = False
JOB_FILE = "pytorchjob.yaml"
MAX_RESTARTS = 3


def build_files(launch: Launch) -> dict[str, str]:
    """The job."""
    run = _require_equal_nodes(launch)
    replicas = {"Master": _build_replica(launch, run, 1)}
    if len(run) > 1:
        replicas["Worker"] = _build_replica(launch, run, len(run) - 1)
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": build_metadata(launch),
        "spec": {
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": MAX_RESTARTS},
            "pytorchReplicaSpecs": replicas,
        },
    }
    return {JOB_FILE: render_yaml(label("bundle_pytorchjob", launch.language), job)}


def list_start_commands(launch: Launch) -> tuple[str, ...]:
    """Store the bundle, start the job, follow its master."""
    job_metadata = build_metadata(launch)
    return (
        *list_upload_commands(launch, JOB_FILE),
        f"kubectl logs -n {job_metadata['namespace']} -f {job_metadata['name']}-master-0",
    )


def _require_equal_nodes(launch: Launch) -> tuple[Node, ...]:
    """All nodes, where they are one run of equal ones."""
    node_runs = list(group_equal_nodes(launch))
    if len(node_runs) > 1:
        first, other = node_runs[0][0], node_runs[1][0]
        params = {
            "one": f"{first.name} ({first.zone}, {count_requested_gpus(first)} x {first.gpu})",
            "other": f"{other.name} ({other.zone}, {count_requested_gpus(other)} x {other.gpu})",
        }
        raise build_refusal("launch_unequal_nodes", "--launcher", "pytorchjob", **params)
    return node_runs[0]


def _build_replica(launch: Launch, run: tuple[Node, ...], count: int) -> dict[str, Any]:
    ports = [{"name": "pytorchjob-port", "containerPort": launch.settings.port}]
    pod = build_pod_spec(launch, run, "pytorch", _START, ports=ports)
    return {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": pod}}


_START = """\
printf -v script nodes/%03d.sh "$RANK"
exec bash "$script" "$@"
"""
