"""Kubernetes: the nodes of a task as a TrainJob of Kubeflow Trainer, by the manifest of its bundle.

    runner = Kubernetes(task=task.id, work=work, environments=environments, port=29500)
    runner.start(token)                 objects are named by the token: they can be made but once, so it starts once

The official client is needed (pip install kubernetes); it reads the kubeconfig, or the account of the pod that
CrossZone runs in. `partition` of the environments is the namespace. What a node writes is known by its pod's log
(`runner.py`), and ends with the job: the trainer's output outlives it where the launch settings name a claim.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import time
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl

import yaml

from crosszone.deploy.launchers.kubernetes import BUNDLE_ARCHIVE, JOB_FILE, TRAINER_API_GROUP
from crosszone.errors import InvalidError, MachineError, Notice
from crosszone.extras import format_install_command
from crosszone.run.runners.runner import (
    END_S,
    START_FOLDER,
    LogCache,
    LogReportedNode,
    NodeStatus,
    TaskNodes,
    build_start_files,
    drop_shared_metrics,
    mark_stopped,
    stop_lost_nodes,
)

VERSION = "v1alpha1"
TASK, TOKEN = "crosszone/task", "crosszone/token"
# Labels that JobSet and Kubernetes put on a pod: its job, its run of equal nodes, its number in that.
JOBSET, RUN, INDEX = (
    "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/replicatedjob-name",
    "batch.kubernetes.io/job-completion-index",
)  # fmt: skip
MAX_ARCHIVE_BYTES = 1_000_000  # Bytes of the bundle in a ConfigMap, which holds 1 MiB
MAX_LOG_BYTES = 16 * 2**20
WAIT_S = 30
# By namespace, task and number of the node; the source is the pod, which takes its log with it.
_log_cache = LogCache(64)


@dataclass(frozen=True, kw_only=True)
class KubernetesRunner(TaskNodes):
    """The nodes of one task, as a TrainJob."""

    @cached_property
    def api(self) -> Any:
        """The client, with the kubeconfig or the pod's own account; `MachineError` tells what is missing."""
        try:
            client, config = import_module("kubernetes.client"), import_module("kubernetes.config")
        except ImportError:
            command = format_install_command("kubernetes")
            raise MachineError(Notice(code="kubernetes_client", params={"command": command})) from None
        try:
            config.load_config()
        except (config.ConfigException, OSError) as error:
            raise MachineError(Notice(code="kubernetes_failed", params={"reason": str(error)})) from None
        return client.ApiClient()

    @cached_property
    def documents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Runtime and job of the bundle's manifest."""
        runtime, job = yaml.safe_load_all(self.work.bundle.get_text(JOB_FILE))
        return runtime, job

    @property
    def namespace(self) -> str:
        """The namespace, the same for all nodes."""
        namespaces = {environment.partition for environment in self.environments.values() if environment.partition}
        if len(namespaces) > 1:
            raise InvalidError(
                Notice(code="kubernetes_namespaces", field="partition", params={"known": sorted(namespaces)})
            )
        return str(self.documents[0]["metadata"]["namespace"])

    def prepare(self) -> None:
        """As `Runner.prepare`: the bundle goes with each start, for it holds the start's token."""
        size = len(self._pack_bundle(""))
        if size > MAX_ARCHIVE_BYTES:
            params = {"limit": MAX_ARCHIVE_BYTES, "count": size}
            raise InvalidError(Notice(code="kubernetes_bundle_large", params=params))
        if self._call_api("GET", self._jobs_path) is None:
            raise MachineError(Notice(code="kubernetes_no_trainer", value=f"{TRAINER_API_GROUP}/{VERSION}"))

    def start(self, token: str) -> None:
        """As `Runner.start`: bundle, runtime, and last the job; each is made once."""
        runtime, job = self.build_manifest(token)
        metadata = {
            "name": f"{name_objects(token)}-bundle",
            "namespace": self.namespace,
            "labels": self._build_labels(token),
        }
        bundle = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        bundle["binaryData"] = {BUNDLE_ARCHIVE: base64.b64encode(self._pack_bundle(token)).decode()}
        self._call_api("POST", self._maps_path, bundle)
        self._call_api("POST", self._runtimes_path, runtime)
        self._call_api("POST", self._jobs_path, job)

    def build_manifest(self, token: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The bundle's manifest under the names of a start; whether a group starts again is for its task to say."""
        old, new = str(self.documents[0]["metadata"]["name"]), name_objects(token)
        runtime, job = json.loads(json.dumps(self.documents))
        for document in (runtime, job):
            document["metadata"] |= {"name": new, "labels": self._build_labels(token)}
        job["spec"]["runtimeRef"]["name"] = new
        template = runtime["spec"]["template"]["spec"]
        template["failurePolicy"] = {"maxRestarts": 0}  # else JobSet and the task would both restart a group
        for run in template["replicatedJobs"]:
            pod = run["template"]["spec"]["template"]["spec"]
            pod["terminationGracePeriodSeconds"] = int(END_S)
            for volume in pod["volumes"]:
                if "configMap" in volume:
                    volume["configMap"]["name"] = f"{new}-bundle"
            (container,) = pod["containers"]
            bash, flag, script, *arguments = container["command"]
            container["command"] = [bash, flag, script.replace("nodes/%03d.sh", f"{START_FOLDER}/%03d.sh"), *arguments]
            for variable in container["env"]:
                if variable["name"] == "MASTER_ADDR":
                    variable["value"] = variable["value"].replace(old, new)
        return runtime, job

    def poll(self, token: str) -> tuple[NodeStatus, ...]:
        """As `Runner.poll`."""
        try:
            job = self._call_api("GET", f"{self._jobs_path}/{name_objects(token)}")
            if job is None:
                return self.make_statuses("none")
            pods = self._list_pods(token)
            nodes = drop_shared_metrics(
                [self._read_node(node.number, pods.get(node.number)) for node in self.work.nodes]
            )
        except MachineError as error:
            return self.make_unreachable(error)
        end = find_end_condition(job)
        statuses = [
            self._node_status(node.number, pods.get(node.number), reported, end)
            for node, reported in zip(self.work.nodes, nodes, strict=True)
        ]
        return stop_lost_nodes(statuses)

    def stop(self, token: str) -> tuple[NodeStatus, ...]:
        """As `Runner.stop`: the job is deleted and with it its pods; a bundle without a job starts nothing."""
        statuses = self.poll(token)
        try:
            until = time.monotonic() + END_S
            self._read_all_logs(token)
            self._call_api("DELETE", f"{self._jobs_path}/{name_objects(token)}", {"propagationPolicy": "Foreground"})
            while (
                self._read_all_logs(token)
                or self._call_api("GET", f"{self._jobs_path}/{name_objects(token)}") is not None
            ):
                if time.monotonic() > until:
                    raise MachineError(Notice(code="kubernetes_failed", params={"reason": "the job does not end"}))
                time.sleep(0.5)
        except MachineError as error:
            return self.make_unreachable(error)
        return mark_stopped(statuses)

    def read(self, number: int, name: str, offset: int, max_bytes: int) -> tuple[dict[str, Any], bytes]:
        """As `Runner.read`: from what the pod of the latest start has said, or had when it was last there."""
        pods = self._list_pods(None)
        nodes = []
        for node in self.work.nodes:
            cached = _log_cache.get((self.namespace, self.task, str(node.number))) if node.number not in pods else None
            nodes.append(
                LogReportedNode.from_lines(cached.lines)
                if cached
                else self._read_node(node.number, pods.get(node.number))
            )
        return drop_shared_metrics(nodes)[number].read(name, offset, max_bytes)

    def clean(self) -> None:
        """As `Runner.clean`; a job that still runs is not deleted, one whose nodes have ended is waited for."""
        until = time.monotonic() + END_S
        while running := [job for job in self._list_jobs() if find_end_condition(job) is None]:
            if time.monotonic() > until:
                params = {"machine": "Kubernetes", "folder": self.namespace, "token": running[0]["metadata"]["name"]}
                raise MachineError(Notice(code="agent_busy", params=params))
            time.sleep(0.5)
        for kind in (self._jobs_path, self._runtimes_path, self._maps_path):
            for document in self._list_items(f"{kind}?{self._task_selector}"):
                self._call_api("DELETE", f"{kind}/{document['metadata']['name']}", {"propagationPolicy": "Foreground"})

    # --- what there is ------------------------------------------------------------------------------------------------

    @property
    def _jobs_path(self) -> str:
        return f"/apis/{TRAINER_API_GROUP}/{VERSION}/namespaces/{self.namespace}/trainjobs"

    @property
    def _runtimes_path(self) -> str:
        return f"/apis/{TRAINER_API_GROUP}/{VERSION}/namespaces/{self.namespace}/trainingruntimes"

    @property
    def _maps_path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/configmaps"

    @property
    def _task_selector(self) -> str:
        """Selects what belongs to this task, whatever its start."""
        return f"labelSelector={TASK}%3D{self._build_labels('')[TASK]}"

    def _list_items(self, path: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = (self._call_api("GET", path) or {}).get("items", [])
        return items

    def _list_jobs(self) -> list[dict[str, Any]]:
        """Jobs of this task."""
        return self._list_items(f"{self._jobs_path}?{self._task_selector}")

    def _build_labels(self, token: str) -> dict[str, str]:
        return {TASK: hashlib.sha256(self.task.encode()).hexdigest()[:32], TOKEN: name_objects(token)}

    def _list_pods(self, token: str | None) -> dict[int, dict[str, Any]]:
        """Pods by the number of their node; without a token, those of the latest start."""
        if token is None:
            jobs = self._list_jobs()
            if not jobs:
                return {}
            name = max(jobs, key=lambda job: job["metadata"].get("creationTimestamp") or "")["metadata"]["name"]
        else:
            name = name_objects(token)
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={JOBSET}%3D{name}"
        pods: dict[int, dict[str, Any]] = {}
        for pod in self._list_items(path):
            labels = pod["metadata"].get("labels", {})
            if labels.get(RUN) in self._first_nodes and labels.get(INDEX, "").isdigit():
                pods[self._first_nodes[labels[RUN]] + int(labels[INDEX])] = pod
        return pods

    @cached_property
    def _first_nodes(self) -> dict[str, int]:
        """Number of the first node of each run, by the run's name."""
        runs = self.documents[0]["spec"]["template"]["spec"]["replicatedJobs"]
        firsts = {}
        for run in runs:
            (container,) = run["template"]["spec"]["template"]["spec"]["containers"]
            firsts[run["name"]] = next(
                int(variable["value"]) for variable in container["env"] if variable["name"] == "FIRST_NODE"
            )
        return firsts

    def _read_all_logs(self, token: str) -> bool:
        """Read the logs of all pods that are left, for a pod takes its log with it; whether any is left."""
        pods = self._list_pods(token)
        for number, pod in pods.items():
            self._read_node(number, pod, refresh=True)
        return bool(pods)

    def _read_node(self, number: int, pod: dict[str, Any] | None, *, refresh: bool = False) -> LogReportedNode:
        """What a node has reported, by the log of its pod: as read a moment ago, or read again (`refresh`)."""
        if pod is None or pod.get("status", {}).get("phase", "Pending") == "Pending":
            return LogReportedNode()
        name, has_ended = pod["metadata"]["name"], pod["status"]["phase"] in ("Succeeded", "Failed")
        key = (self.namespace, self.task, str(number))
        cached = _log_cache.get(key)
        if cached is None or not cached.is_current(name, refresh=refresh or has_ended):
            path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/log?container=node&limitBytes={MAX_LOG_BYTES}"
            text = self._call_api("GET", path, plain=True)
            if text is None and cached is not None and cached.source == name:
                return LogReportedNode.from_lines(cached.lines)  # the pod has gone since
            lines = [line for line in (text or "").split("\n") if line]
            cached = _log_cache.store(key, name, lines, has_ended=has_ended)
        return LogReportedNode.from_lines(cached.lines)

    def _node_status(
        self, number: int, pod: dict[str, Any] | None, reported: LogReportedNode, end: dict[str, Any] | None
    ) -> NodeStatus:
        """One node by its own report, its pod's and its job's."""
        status = {} if pod is None else pod.get("status", {})
        phase = status.get("phase")
        reason = status.get("message") or status.get("reason") or (end or {}).get("message")
        for container in status.get("containerStatuses", []):
            ended, waiting = container.get("state", {}).get("terminated"), container.get("state", {}).get("waiting")
            if ended and reported.state.get("state") != "ended":
                files = {name: len(data) for name, data in reported.files.items()}
                why_ended = reason or ended.get("reason")
                return NodeStatus(number=number, state="ended", code=ended["exitCode"], files=files, reason=why_ended)
            reason = reason or (waiting or {}).get("message") or (waiting or {}).get("reason")
        if pod is None and end is not None and end["type"] == "Complete":
            return NodeStatus(number=number, state="ended", code=0)
        return reported.status(number, is_live=end is None and phase not in ("Succeeded", "Failed"), reason=reason)

    def _pack_bundle(self, token: str) -> bytes:
        """The bundle as an archive, the same for the same start."""
        contents = {file.path: file.text.encode() for file in self.work.bundle.files}
        contents |= build_start_files(self.work, token, self.port, self.python)
        packed = io.BytesIO()
        # mtime=0: the same bytes for the same start, whoever packs them.
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
            for path, data in sorted(contents.items()):
                member = tarfile.TarInfo(path)
                member.size, member.mode = len(data), 0o755
                tar.addfile(member, io.BytesIO(data))
        return packed.getvalue()

    def _call_api(self, method: str, path: str, body: dict[str, Any] | None = None, *, plain: bool = False) -> Any:
        """What the API answers; None: there is no such object, or (to POST) it was made before."""
        api, api_exception = self.api, import_module("kubernetes.client").ApiException
        headers = {"Accept": "text/plain" if plain else "application/json", "Content-Type": "application/json"}
        resource, _, query = path.partition("?")
        options: dict[str, Any] = {"header_params": headers, "body": body, "query_params": parse_qsl(query)}
        options |= {"auth_settings": ["BearerToken"], "_preload_content": False, "_request_timeout": WAIT_S}
        try:
            answer = api.call_api(resource, method, _return_http_data_only=True, **options)
            text = answer.data.decode("utf-8", "replace")
        except api_exception as error:
            if error.status == (409 if method == "POST" else 404):
                return None
            raise MachineError(Notice(code="kubernetes_failed", params={"reason": read_reason(error)})) from None
        except Exception as error:  # of urllib3, which comes with the client
            if type(error).__module__.split(".")[0] != "urllib3":
                raise
            raise MachineError(Notice(code="kubernetes_failed", params={"reason": str(error)})) from None
        return text if plain else json.loads(text)


def name_objects(token: str) -> str:
    """What the objects of a start are called: a label of RFC 1035."""
    return f"cz-{hashlib.sha256(token.encode()).hexdigest()[:20]}"


def find_end_condition(job: dict[str, Any]) -> dict[str, Any] | None:
    """The condition by which a TrainJob has ended; None: it has not."""
    conditions = {
        condition["type"]: condition
        for condition in job.get("status", {}).get("conditions", [])
        if condition["status"] == "True"
    }
    return conditions.get("Complete") or conditions.get("Failed")


def read_reason(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"
