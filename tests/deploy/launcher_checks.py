"""Check launcher files with the schemas and parsers of those who read them; run by .venv-check's Python.

    python launcher_checks.py kubernetes trainjob.yaml
    python launcher_checks.py pytorchjob pytorchjob.yaml
    python launcher_checks.py skypilot sky-0.yaml [NAME=VALUE ...]
    python launcher_checks.py folder FOLDER          every such file of every bundle in it

Generated models drop fields they do not know, so what they read is written back and compared with what was given.
Prints one JSON document about what was understood; ends with a message and status 1 otherwise.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml


def same(path, given, back):
    """Everything that was given came back."""
    if isinstance(given, dict) and isinstance(back, dict):
        for key, value in given.items():
            if key not in back:
                sys.exit(f"{path}.{key} is unknown")
            same(f"{path}.{key}", value, back[key])
    elif isinstance(given, list) and isinstance(back, list) and len(given) == len(back):
        for number, (one, other) in enumerate(zip(given, back, strict=True)):
            same(f"{path}[{number}]", one, other)
    elif given != back and str(given) != str(back):
        sys.exit(f"{path}: {given!r} came back as {back!r}")


def pod_is_valid(name, spec):
    """The pod alone, against the schema of Kubernetes itself, where unknown fields are errors."""
    import kubernetes_validate

    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    kubernetes_validate.validate(pod, "1.30", strict=True)


def job_is_valid(name, spec):
    import kubernetes_validate

    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}
    kubernetes_validate.validate(job, "1.30", strict=True)


def kubernetes(documents):
    """A TrainingRuntime and a TrainJob that refers to it."""
    from kubeflow_trainer_api import models

    runtime, job = documents
    kinds = {"TrainingRuntime": models.TrainerV1alpha1TrainingRuntime, "TrainJob": models.TrainerV1alpha1TrainJob}
    for one in documents:
        read = kinds[one["kind"]].from_dict(json.loads(json.dumps(one)))
        same(one["kind"], one, json.loads(json.dumps(read.to_dict(), default=str)))
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    for one in jobs:
        job_is_valid(one["name"], one["template"]["spec"])
        pod_is_valid(one["name"], one["template"]["spec"]["template"]["spec"])
    return {"runtime": runtime["metadata"]["name"], "refers": job["spec"]["runtimeRef"]["name"], "jobs": len(jobs)}


def pytorchjob(documents):
    """A PyTorchJob."""
    from kubeflow.training import models
    from kubernetes.client import ApiClient

    (job,) = documents
    client = ApiClient()
    read = _typed(client, job, models.KubeflowOrgV1PyTorchJob, models)
    same("PyTorchJob", job, client.sanitize_for_serialization(read))
    replicas = job["spec"]["pytorchReplicaSpecs"]
    for name, one in replicas.items():
        pod_is_valid(name.lower(), one["template"]["spec"])
    return {name: one["replicas"] for name, one in replicas.items()}


def _typed(client, value, kind, models):
    """Objects of the generated models, which the Kubernetes client then reads as its own."""
    import kubernetes.client.models

    for name in dir(models):
        if name.startswith("KubeflowOrg"):
            setattr(kubernetes.client.models, name, getattr(models, name))
    return client._ApiClient__deserialize(value, kind)


def skypilot(documents, *given):
    """A SkyPilot task."""
    import sky

    (task,) = documents
    overrides = [tuple(one.split("=", 1)) for one in given]
    read = sky.Task.from_yaml_config(task, env_overrides=overrides)
    resources = next(iter(read.resources))
    return {"nodes": read.num_nodes, "accelerators": resources.accelerators, "envs": read.envs, "name": read.name}


def folder(path):
    """How many files of each kind there were, all of them good."""
    kinds = {"trainjob.yaml": kubernetes, "pytorchjob.yaml": pytorchjob}
    counted = {"kubernetes": 0, "pytorchjob": 0, "skypilot": 0}
    for file in sorted(path.rglob("*.yaml")):
        check = skypilot if file.name.startswith("sky-") else kinds.get(file.name)
        if check is not None:
            documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
            check(documents, *(["MASTER_ADDR=10.0.0.1"] if check is skypilot and file.name != "sky-0.yaml" else []))
            counted[check.__name__] += 1
    return counted


def main():
    kind, file, *rest = sys.argv[1:]
    if kind == "folder":
        print(json.dumps(folder(Path(file))))
        return
    documents = list(yaml.safe_load_all(Path(file).read_text(encoding="utf-8")))
    found = {"kubernetes": kubernetes, "pytorchjob": pytorchjob, "skypilot": skypilot}[kind](documents, *rest)
    print(json.dumps(found, default=str))


if __name__ == "__main__":
    main()
