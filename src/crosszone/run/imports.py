"""Environments from elsewhere: a YAML list, an ssh config, a Slurm cluster, a Kubernetes cluster.

    environments = read_slurm_nodes()                              by name; nothing is stored yet
    added, changed = register_environments(store.environments, environments)

The YAML list:

    environments:
      - {id: env-001, name: pytorch-dev-env, zone: beijing-a, address: 10.0.1.7, gpu: a100-80gb-sxm, gpus: 2}

Nodes of Slurm lie in the zone that their partition is, those of Kubernetes in the zone that their label names.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crosszone.errors import FileError, InvalidError, MachineError, Notice
from crosszone.inputs.document import Document
from crosszone.inputs.environment import Environment, Status
from crosszone.inputs.value import parse
from crosszone.run.environments import find_gpu_name
from crosszone.store.registered import Environments

MAX_ENVIRONMENTS = 10_000
SSH_WAIT_S = 10
SCHEDULER_WAIT_S = 30
# Node, partition, CPUs, memory in MiB, generic resources, state; %R, for %P marks the default partition.
SINFO_COMMAND = ("sinfo", "--Node", "--noheader", "--format=%N|%R|%c|%m|%G|%T")
KUBECTL_COMMAND = ("kubectl", "get", "nodes", "--output=json")
ZONE_LABEL, REGION_LABEL = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
# Label and resource of NVIDIA's GPU feature discovery and device plugin.
GPU_PRODUCT_LABEL, GPU_RESOURCE = "nvidia.com/gpu.product", "nvidia.com/gpu"
_UNITS = {"m": 1e-3, "": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_GRES_GPUS = re.compile(r"(?:^|,)gpu(?::([^:,(]+))?:(\d+)")
_UP_STATES = ("idle", "allocated", "mixed", "completing", "reserved")
_SSH_ASSIGNMENT = re.compile(r"^\s*(\w+)\s*=\s*")  # `Host = name` is as good as `Host name`
_DEFAULT_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_NOT_OF_AN_ID = re.compile(r"[^A-Za-z0-9_-]+")


def register_environments(
    registry: Environments, environments: Mapping[str, Environment]
) -> tuple[list[str], list[str]]:
    """Register environments by name; ids that are new, and ids that were registered before.

    Of the latter the fields that were read change; the others, and what a probe measured, stay.
    """
    registered = {entry.id: entry.value for entry in registry.all()}
    added: list[str] = []
    changed: list[str] = []
    for name, environment in environments.items():
        id = make_id(name, used_ids=[*added, *changed])
        if id in registered:
            registry.change(id, registered[id].replace(**environment.to_plain()))
            changed.append(id)
        else:
            registry.add(environment, id=id)
            added.append(id)
    return added, changed


def make_id(name: str, *, used_ids: list[str]) -> str:
    """A name as an id, the same at every import: other programs allow characters that no id has."""
    plain = _NOT_OF_AN_ID.sub("-", name).strip("-_")[:64]
    # Two names may differ only in such characters, so the second gets a hash of its full name.
    return plain if plain and plain not in used_ids else f"env-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def read_environment_list(document: Document) -> dict[str, Environment]:
    """The environments of a YAML list by id (their name where they have none); an error names the line."""
    rows = document.value.get("environments") if isinstance(document.value, dict) else document.value
    if not isinstance(rows, list):
        raise InvalidError(document.place_notice(Notice(code="must_be_list", field="environments", value=rows)))
    environments: dict[str, Environment] = {}
    for index, row in enumerate(rows[:MAX_ENVIRONMENTS]):
        fields = dict(row) if isinstance(row, dict) else row
        id = str(fields.pop("id", None) or fields.get("name") or "") if isinstance(fields, dict) else ""
        environment = parse(Environment, fields, document, at=("environments", index))
        if id in environments:
            notice = Notice(code="registered_twice", field=f"environments[{index}].id", value=id)
            raise InvalidError(document.place_notice(notice))
        environments[id] = environment
    return environments


# --- ssh config -------------------------------------------------------------------------------------------------------


def read_ssh_hosts(file: Path, *, zone: str) -> dict[str, Environment]:
    """The hosts of an ssh config by name, all in one zone; patterns are not hosts."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _file_error(file, getattr(error, "strerror", None) or "not text") from None
    return {name: _read_ssh_host(file, name, zone) for name in _list_host_names(text)}


def _list_host_names(text: str) -> list[str]:
    names: list[str] = []
    for line in text.splitlines():
        try:
            parts = shlex.split(_SSH_ASSIGNMENT.sub(r"\1 ", line), comments=True)
        except ValueError:
            continue  # a quote that does not end; ssh will say so
        if parts and parts[0].lower() == "host":
            names += [name for name in parts[1:] if not set(name) & set("*?!") and not name.startswith("-")]
    return list(dict.fromkeys(names))


def _read_ssh_host(file: Path, name: str, zone: str) -> Environment:
    """One host: `ssh -G` prints its options as ssh itself resolves them, so no rule of the format is repeated."""
    command = ["ssh", "-F", str(file), "-G", "--", name]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=SSH_WAIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _file_error(file, getattr(error, "strerror", None) or "ssh does not answer") from None
    if process.returncode != 0:
        raise _file_error(file, (process.stderr.strip().splitlines() or ["ssh -G failed"])[-1])
    options: dict[str, list[str]] = {}
    for line in process.stdout.splitlines():
        key, _, value = line.partition(" ")
        options.setdefault(key, []).append(value)
    # ssh also prints its default keys; those that do not exist are left to it.
    keys = [key for key in options.get("identityfile", []) if Path(key).expanduser().is_file()]
    known_hosts = options.get("userknownhostsfile", [""])[0].split()
    return Environment(
        name=name,
        zone=zone,
        runner="ssh",
        address=options["hostname"][0],
        ssh_user=options["user"][0],
        ssh_port=int(options["port"][0]),
        **({"ssh_key": keys[0]} if keys else {}),
        **({"known_hosts": known_hosts[0]} if known_hosts and known_hosts[0] not in _DEFAULT_KNOWN_HOSTS else {}),
    )


def _file_error(file: Path, reason: str) -> FileError:
    return FileError(Notice(code="file_unreadable", value=str(file), params={"reason": reason}))


# --- schedulers -------------------------------------------------------------------------------------------------------


def run_scheduler_command(command: Sequence[str], *, missing: str, failed: str) -> str:
    """The command's output; `MachineError` when it is not installed (`missing`), or hangs or fails (`failed`)."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=SCHEDULER_WAIT_S, check=False)
    except FileNotFoundError:
        raise MachineError(Notice(code=missing, value=command[0])) from None
    except subprocess.TimeoutExpired:
        params = {"reason": f"no answer within {SCHEDULER_WAIT_S} s"}
        raise MachineError(Notice(code=failed, params=params)) from None
    if process.returncode != 0:
        reason = (process.stderr.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
        raise MachineError(Notice(code=failed, params={"reason": reason}))
    return process.stdout


def read_slurm_nodes() -> dict[str, Environment]:
    """The nodes that `sinfo` lists, by name."""
    return parse_slurm_nodes(run_scheduler_command(SINFO_COMMAND, missing="slurm_missing", failed="slurm_failed"))


def parse_slurm_nodes(text: str) -> dict[str, Environment]:
    """The nodes of sinfo's lines; a node of several partitions belongs to the first."""
    environments: dict[str, Environment] = {}
    for line in text.splitlines():
        parts = line.strip().split("|")
        if len(parts) != 6 or parts[0] in environments:
            continue
        name, partition, cpus, memory_mib, gres, state = parts
        gpus = _GRES_GPUS.findall(gres)
        # sinfo appends flags to a state, such as `idle*` for a node that does not respond.
        status: Status = "running" if re.sub(r"[^a-z]", "", state.lower()) in _UP_STATES else "stopped"
        gpu = next((find_gpu_name(type) for type, _ in gpus if type), None)
        environments[name] = Environment(
            name=name,
            type="slurm",
            status=status,
            zone=partition,
            runner="slurm",
            partition=partition,
            cpus=int(cpus.rstrip("+") or 1),
            memory_gb=round(float(memory_mib.rstrip("+")) * 2**20 / 1e9, 3),
            gpus=sum(int(count) for _, count in gpus),
            **({"gpu": gpu} if gpu else {}),
        )
    return environments


def read_kubernetes_nodes() -> dict[str, Environment]:
    """The nodes that `kubectl get nodes` lists, by name."""
    output = run_scheduler_command(KUBECTL_COMMAND, missing="kubernetes_missing", failed="kubernetes_failed")
    return parse_kubernetes_nodes(json.loads(output))


def parse_kubernetes_nodes(node_list: dict[str, Any]) -> dict[str, Environment]:
    """The nodes of a NodeList."""
    return {node["metadata"]["name"]: _parse_kubernetes_node(node) for node in node_list.get("items", [])}


def _parse_kubernetes_node(node: dict[str, Any]) -> Environment:
    metadata, status = node["metadata"], node.get("status", {})
    labels, capacity = metadata.get("labels", {}), status.get("allocatable") or status.get("capacity", {})
    addresses = {address["type"]: address["address"] for address in status.get("addresses", [])}
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions", [])}
    is_ready = conditions.get("Ready") == "True" and not node.get("spec", {}).get("unschedulable")
    fields: dict[str, Any] = {"address": addresses.get("InternalIP"), "region": labels.get(REGION_LABEL)}
    if GPU_PRODUCT_LABEL in labels:
        # A label has no blanks: NVIDIA's discovery writes a dash for each, but some names have dashes of their own.
        product = labels[GPU_PRODUCT_LABEL]
        fields["gpu"] = find_gpu_name(product.replace("-", " ")) or find_gpu_name(product)
    if "cpu" in capacity:
        fields["cpus"] = max(1, int(_parse_quantity(capacity["cpu"])))
    if "memory" in capacity:
        fields["memory_gb"] = round(_parse_quantity(capacity["memory"]) / 1e9, 3)
    return Environment(
        name=metadata["name"],
        type="kubernetes",
        status="running" if is_ready else "stopped",
        zone=labels.get(ZONE_LABEL) or "default",
        runner="kubernetes",
        gpus=int(capacity.get(GPU_RESOURCE, 0)),
        **{key: value for key, value in fields.items() if value is not None},
    )


def _parse_quantity(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z]*)", text)
    return float(match[1]) * _UNITS.get(match[2], 1) if match else 0.0
