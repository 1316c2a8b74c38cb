"""PyTorchJob of Kubeflow's training operator (v1): a master and equal workers in one zone.

The operator 1.9 (kubeflow/trainer release-1.9, 3a3a1da) gives each pod MASTER_ADDR, MASTER_PORT (of the port named
pytorchjob-port) and its number as RANK: 0 the master, 1 and on the workers.
"""

from __future__ import annotations

from typing import Any

from crosszone.deploy.launch import Launch, Node, refused
from crosszone.deploy.launchers.pods import metadata, pod_spec, put
from crosszone.deploy.launchers.request import gpus_asked, runs, yaml_text
from crosszone.text import label

NEEDS_ADDRESSES = False
FILE = "pytorchjob.yaml"
RESTARTS = 3


def files(launch: Launch) -> dict[str, str]:
    """The job."""
    run = _equal(launch)
    replicas = {"Master": _replica(launch, run, 1)}
    if len(run) > 1:
        replicas["Worker"] = _replica(launch, run, len(run) - 1)
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": metadata(launch),
        "spec": {
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": RESTARTS},
            "pytorchReplicaSpecs": replicas,
        },
    }
    return {FILE: yaml_text(label("bundle_pytorchjob", launch.language), job)}


def places_nodes(nodes: tuple[Node, ...]) -> bool:
    """What it starts has addresses and interfaces of its own, not those of the scenario's machines."""
    del nodes
    return True


def how(launch: Launch) -> tuple[str, ...]:
    """Store the bundle, start the job, follow its master."""
    named = metadata(launch)
    return (*put(launch, FILE), f"kubectl logs -n {named['namespace']} -f {named['name']}-master-0")


def _equal(launch: Launch) -> tuple[Node, ...]:
    """All nodes, where they are one run of equal ones."""
    found = list(runs(launch))
    if len(found) > 1:
        one, other = found[0][0], found[1][0]
        said = {
            "one": f"{one.name} ({one.zone}, {gpus_asked(one)} x {one.gpu})",
            "other": f"{other.name} ({other.zone}, {gpus_asked(other)} x {other.gpu})",
        }
        raise refused("launch_unequal_nodes", "--launcher", "pytorchjob", **said)
    return found[0]


def _replica(launch: Launch, run: tuple[Node, ...], count: int) -> dict[str, Any]:
    ports = [{"name": "pytorchjob-port", "containerPort": launch.settings.port}]
    pod = pod_spec(launch, run, "pytorch", _START, ports=ports)
    return {"replicas": count, "restartPolicy": "OnFailure", "template": {"spec": pod}}


_START = """\
printf -v script nodes/%03d.sh "$RANK"
exec bash "$script" "$@"
"""
