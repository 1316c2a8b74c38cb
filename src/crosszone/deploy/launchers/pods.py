"""Pods: a node on Kubernetes: a container that unpacks the bundle from a ConfigMap and runs the node's script."""

from __future__ import annotations

import re
from typing import Any

from crosszone.deploy.launch import Launch, Node
from crosszone.deploy.launchers.request import check_name, count_requested_gpus, make_job_name
from crosszone.errors import InvalidError, Notice

POD_FOLDER = "/crosszone"  # Where a pod runs the bundle; checkpoints and metrics land here
ARCHIVE = "bundle.tgz"
# Extended resource of each vendor's device plugin, where it is not NVIDIA's.
GPU_RESOURCES = {"amd": "amd.com/gpu", "intel": "habana.ai/gaudi", "huawei": "huawei.com/Ascend910"}
NVIDIA_RESOURCE = "nvidia.com/gpu"
NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # A namespace or an account (RFC 1123 label)
LABEL_VALUE_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def build_pod_spec(
    launch: Launch, run: tuple[Node, ...], container: str, script: str, **container_fields: Any
) -> dict[str, Any]:
    """The pod of every node of a run; `script` ends by starting the node's script, with the pod's arguments."""
    first_node, settings = run[0], launch.settings
    mounts, volumes = _build_output_volume(launch)
    spec: dict[str, Any] = {}
    if first_node.zone in settings.zone_labels:
        value = settings.zone_labels[first_node.zone]
        check_name(value, LABEL_VALUE_PATTERN, f"zone_labels.{first_node.zone}", "Kubernetes", "us-east-1a")
        spec["nodeSelector"] = {"topology.kubernetes.io/zone": value}
    if settings.service_account is not None:
        spec["serviceAccountName"] = check_name(
            settings.service_account, NAME_PATTERN, "service_account", "Kubernetes", "training"
        )
    spec["containers"] = [
        {
            "name": container,
            "image": _get_image(launch),
            "command": ["bash", "-c", f"{_UNPACK}\n{script}", "node"],
            "workingDir": POD_FOLDER,
            **container_fields,
            "resources": {"limits": {_get_gpu_resource(launch, first_node): count_requested_gpus(first_node)}},
            "volumeMounts": [
                {"name": "bundle", "mountPath": "/bundle", "readOnly": True},
                {"name": "work", "mountPath": POD_FOLDER},
                {"name": "shm", "mountPath": "/dev/shm"},
                *mounts,
            ],
        }
    ]
    spec["volumes"] = [
        {"name": "bundle", "configMap": {"name": name_config_map(launch)}},
        {"name": "work", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        *volumes,
    ]
    return spec


def build_metadata(launch: Launch) -> dict[str, Any]:
    """Name and namespace of an object."""
    namespace = check_name(launch.settings.namespace, NAME_PATTERN, "namespace", "Kubernetes", "training")
    return {"name": make_job_name(launch), "namespace": namespace}


def name_config_map(launch: Launch) -> str:
    """Name of the ConfigMap that holds the bundle."""
    return f"{make_job_name(launch)}-bundle"


def list_upload_commands(launch: Launch, manifest: str) -> tuple[str, ...]:
    """Commands that store the bundle as one small archive (a ConfigMap holds 1 MiB), then start the job."""
    within = f"-n {launch.settings.namespace}"
    return (
        f"tar -czf - . | kubectl create configmap {name_config_map(launch)} {within} --from-file={ARCHIVE}=/dev/stdin"
        f" --dry-run=client -o yaml | kubectl apply --server-side {within} -f -",
        f"kubectl apply -f {manifest}",
    )


_UNPACK = f"set -euo pipefail\ntar -xzf /bundle/{ARCHIVE}"


def _build_output_volume(launch: Launch) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Mounts and volumes of what outlives the pods: the trainer's output, where a claim was named for it."""
    if launch.settings.claim is None:
        return [], []
    claim = check_name(launch.settings.claim, NAME_PATTERN, "claim", "Kubernetes", "checkpoints")
    return (
        [{"name": "out", "mountPath": f"{POD_FOLDER}/out"}],
        [{"name": "out", "persistentVolumeClaim": {"claimName": claim}}],
    )


def _get_image(launch: Launch) -> str:
    if launch.settings.image is None:
        raise InvalidError(Notice(code="launch_no_image", field="image"))
    return launch.settings.image


def _get_gpu_resource(launch: Launch, node: Node) -> str:
    zone = next(zone for zone in launch.scenario.cluster.zones if zone.name == node.zone)
    return GPU_RESOURCES.get(zone.nodes[node.group].gpu.vendor, NVIDIA_RESOURCE)
