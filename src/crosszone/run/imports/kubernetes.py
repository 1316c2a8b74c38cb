"""Environments of a Kubernetes cluster: its nodes, each in the zone its label names."""

from __future__ import annotations

import json
import re
from typing import Any

from crosszone.inputs.environment import Environment
from crosszone.run.imports.scheduler import printed
from crosszone.run.probe import gpu_kind

WORDS = ("kubectl", "get", "nodes", "--output=json")
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
# Label and resource of NVIDIA's GPU feature discovery and device plugin.
PRODUCT, GPUS = "nvidia.com/gpu.product", "nvidia.com/gpu"
_UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def kubernetes_nodes() -> dict[str, Environment]:
    """What `kubectl get nodes` tells, by node."""
    told = printed(WORDS, missing="kubernetes_missing", failed="kubernetes_failed")
    return nodes_in(json.loads(told))


def nodes_in(listed: dict[str, Any]) -> dict[str, Environment]:
    """The nodes of a NodeList."""
    return {node["metadata"]["name"]: _environment(node) for node in listed.get("items", [])}


def _environment(node: dict[str, Any]) -> Environment:
    about, status = node["metadata"], node.get("status", {})
    labels, capacity = about.get("labels", {}), status.get("allocatable") or status.get("capacity", {})
    addresses = {one["type"]: one["address"] for one in status.get("addresses", [])}
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", []))
    gpu = gpu_kind(labels[PRODUCT].replace("-", " ")) or gpu_kind(labels[PRODUCT]) if PRODUCT in labels else None
    fields: dict[str, Any] = {"address": addresses.get("InternalIP"), "region": labels.get(REGION), "gpu": gpu}
    if "cpu" in capacity:
        fields["cpus"] = max(1, int(_cores(capacity["cpu"])))
    if "memory" in capacity:
        fields["memory_gb"] = round(_quantity(capacity["memory"]) / 1e9, 3)
    return Environment(
        name=about["name"],
        type="kubernetes",
        status="running" if ready and not node.get("spec", {}).get("unschedulable") else "stopped",
        zone=labels.get(ZONE) or "default",
        runner="kubernetes",
        gpus=int(capacity.get(GPUS, 0)),
        **{key: value for key, value in fields.items() if value is not None},
    )


def _cores(text: str) -> float:
    return float(text[:-1]) / 1000 if text.endswith("m") else float(text)


def _quantity(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", text)
    return float(found[1]) * _UNITS.get(found[2], 1) if found else 0.0
