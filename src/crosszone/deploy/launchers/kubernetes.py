"""Kubernetes: a TrainJob of Kubeflow Trainer, with a runtime of its own that has a replicated job for each run of equal
nodes, so that unequal zones are one job.

How Kubeflow Trainer 2.3.0 (kubeflow/trainer 658725b) makes a JobSet of it: without an mlPolicy each replicated job
keeps its own number of pods, and arguments of the TrainJob reach every one that carries the trainer's label. A pod is
reached at <job>-<replicated job>-0-<index>.<job> (kubernetes-sigs/jobset 08dfbdf); Kubernetes gives the index as
JOB_COMPLETION_INDEX.
"""

from __future__ import annotations

import re
from typing import Any

from crosszone.deploy.launch import Launch, Node
from crosszone.deploy.launchers import check_name, count_requested_gpus, group_equal_nodes, make_job_name, render_yaml
from crosszone.errors import InvalidError, Notice
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
    pods = {"restartPolicy": "Never", **build_pod_spec(launch, run, "node", _START_NODE, env=environment)}
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
_START_NODE = """\
declare -i node=FIRST_NODE+JOB_COMPLETION_INDEX
printf -v script nodes/%03d.sh "$node"
exec bash "$script" "$@"
"""


# ---- pods, which PyTorchJob uses too: a container unpacks the bundle from a ConfigMap and runs the node's script ----

POD_FOLDER = "/crosszone"  # Where a pod runs the bundle; checkpoints and metrics land here
BUNDLE_ARCHIVE = "bundle.tgz"
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
    namespace, name = f"-n {launch.settings.namespace}", name_config_map(launch)
    return (
        f"tar -czf - . | kubectl create configmap {name} {namespace} --from-file={BUNDLE_ARCHIVE}=/dev/stdin"
        f" --dry-run=client -o yaml | kubectl apply --server-side {namespace} -f -",
        f"kubectl apply -f {manifest}",
    )


_UNPACK = f"set -euo pipefail\ntar -xzf /bundle/{BUNDLE_ARCHIVE}"


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
