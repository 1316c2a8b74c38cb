"""Kubernetes: the nodes of a task as a TrainJob of Kubeflow Trainer, by the manifest of its bundle.

    runner = Kubernetes(task=task.id, work=work, environments=environments, port=29500)
    runner.start(token)                 objects are named by the token: they can be made but once, so it starts once

The official client is needed (pip install kubernetes); it reads the kubeconfig, or the account of the pod that
CrossZone runs in. `partition` of the environments is the namespace. What a node writes is known by its pod's log
(`spoken.py`), and ends with the job: the trainer's output outlives it where the launch settings name a claim.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl

import yaml

from crosszone.deploy.launchers.kubernetes import BUNDLE_ARCHIVE, JOB_FILE, TRAINER_API_GROUP
from crosszone.errors import InvalidError, MachineError, Notice
from crosszone.extras import install_command
from crosszone.inputs.environment import Environment
from crosszone.run.runners.runner import Sight
from crosszone.run.runners.spoken import FOLDER, Spoken, counted_once, files_of
from crosszone.run.runners.supervised import STOP_S
from crosszone.run.work import Work

VERSION = "v1alpha1"
TASK, TOKEN = "crosszone/task", "crosszone/token"
# Labels that JobSet and Kubernetes put on a pod: its job, its run of equal nodes, its number in that.
JOBSET, RUN, INDEX = (
    "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/replicatedjob-name",
    "batch.kubernetes.io/job-completion-index",
)  # fmt: skip
MOST_ARCHIVE = 1_000_000  # Bytes of the bundle in a ConfigMap, which holds 1 MiB
MOST_LOG = 16 * 2**20
WAIT_S = 30
END_S = STOP_S + 6.0
FRESH_S = 2.0  # How long what a pod said is not asked for again
MOST_HEARD = 64
# What nodes said when they were last asked: pod, when, whether it had ended, lines. A pod takes its log with it.
_heard: OrderedDict[tuple[str, str, int], tuple[str, float, bool, list[str]]] = OrderedDict()


@dataclass(frozen=True, kw_only=True)
class Kubernetes:
    """The nodes of one task."""

    task: str
    work: Work
    environments: Mapping[str, Environment]
    port: int
    """At which ranks meet on the first node."""

    @cached_property
    def api(self) -> Any:
        """The client, with the kubeconfig or the pod's own account; `MachineError` tells what is missing."""
        try:
            client, config = import_module("kubernetes.client"), import_module("kubernetes.config")
        except ImportError:
            command = install_command("kubernetes")
            raise MachineError(Notice(code="kubernetes_client", params={"command": command})) from None
        try:
            config.load_config()
        except (config.ConfigException, OSError) as error:
            raise MachineError(Notice(code="kubernetes_failed", params={"reason": str(error)})) from None
        return client.ApiClient()

    @cached_property
    def documents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Runtime and job of the bundle's manifest."""
        runtime, job = yaml.safe_load_all(self.work.bundle.file(JOB_FILE))
        return runtime, job

    @property
    def namespace(self) -> str:
        """The namespace, the same for all nodes."""
        found = {one.partition for one in self.environments.values() if one.partition}
        if len(found) > 1:
            raise InvalidError(Notice(code="kubernetes_namespaces", field="partition", params={"known": sorted(found)}))
        return str(self.documents[0]["metadata"]["namespace"])

    def prepare(self) -> None:
        """As `Runner.prepare`: the bundle goes with each start, for it holds the start's token."""
        if len(self._archive("")) > MOST_ARCHIVE:
            params = {"limit": MOST_ARCHIVE, "count": len(self._archive(""))}
            raise InvalidError(Notice(code="kubernetes_bundle_large", params=params))
        if self._ask("GET", self._jobs) is None:
            raise MachineError(Notice(code="kubernetes_no_trainer", value=f"{TRAINER_API_GROUP}/{VERSION}"))

    def start(self, token: str) -> None:
        """As `Runner.start`: bundle, runtime, and last the job; each is made once."""
        runtime, job = self.manifest(token)
        named = {"name": f"{name_of(token)}-bundle", "namespace": self.namespace, "labels": self._labels(token)}
        bundle = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named}
        bundle["binaryData"] = {BUNDLE_ARCHIVE: base64.b64encode(self._archive(token)).decode()}
        self._ask("POST", self._maps, bundle)
        self._ask("POST", self._runtimes, runtime)
        self._ask("POST", self._jobs, job)

    def manifest(self, token: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The bundle's manifest under the names of a start; whether a group starts again is for its task to say."""
        old, new = str(self.documents[0]["metadata"]["name"]), name_of(token)
        runtime, job = json.loads(json.dumps(self.documents))
        for one in (runtime, job):
            one["metadata"] |= {"name": new, "labels": self._labels(token)}
        job["spec"]["runtimeRef"]["name"] = new
        template = runtime["spec"]["template"]["spec"]
        template["failurePolicy"] = {"maxRestarts": 0}
        for run in template["replicatedJobs"]:
            pod = run["template"]["spec"]["template"]["spec"]
            pod["terminationGracePeriodSeconds"] = int(END_S)
            for volume in pod["volumes"]:
                if "configMap" in volume:
                    volume["configMap"]["name"] = f"{new}-bundle"
            (container,) = pod["containers"]
            bash, flag, script, *rest = container["command"]
            container["command"] = [bash, flag, script.replace("nodes/%03d.sh", f"{FOLDER}/%03d.sh"), *rest]
            for variable in container["env"]:
                if variable["name"] == "MASTER_ADDR":
                    variable["value"] = variable["value"].replace(old, new)
        return runtime, job

    def look(self, token: str) -> tuple[Sight, ...]:
        """As `Runner.look`."""
        try:
            job = self._ask("GET", f"{self._jobs}/{name_of(token)}")
            if job is None:
                return tuple(Sight(number=node.number, state="none") for node in self.work.nodes)
            pods = self._pods(token)
            nodes = counted_once([self._spoken(node.number, pods.get(node.number)) for node in self.work.nodes])
        except MachineError as error:
            return self._unreachable(error)
        over = _over(job)
        seen = [
            self._sight(node.number, pods.get(node.number), spoken, over)
            for node, spoken in zip(self.work.nodes, nodes, strict=True)
        ]
        cause = next((one for one in seen if one.state == "ended" and one.code != 0 and not one.stopped), None)
        if cause is None:
            return tuple(seen)
        ended = {"state": "ended", "code": None, "stopped": True, "reason": f"ended with node {cause.number}"}
        return tuple(one.replace(**ended) if one.state == "lost" else one for one in seen)

    def stop(self, token: str) -> tuple[Sight, ...]:
        """As `Runner.stop`: the job is deleted and with it its pods; a bundle without a job starts nothing."""
        last = self.look(token)
        try:
            until = time.monotonic() + END_S
            self._listen(token)
            self._ask("DELETE", f"{self._jobs}/{name_of(token)}", {"propagationPolicy": "Foreground"})
            while self._listen(token) or self._ask("GET", f"{self._jobs}/{name_of(token)}") is not None:
                if time.monotonic() > until:
                    raise MachineError(Notice(code="kubernetes_failed", params={"reason": "the job does not end"}))
                time.sleep(0.5)
        except MachineError as error:
            return self._unreachable(error)
        ended = {"state": "ended", "code": None, "stopped": True}
        return tuple(one if one.state == "ended" else one.replace(**ended) for one in last)

    def read(self, number: int, name: str, offset: int, most: int) -> tuple[dict[str, Any], bytes]:
        """As `Runner.read`: from what the pod of the latest start has said, or had when it was last there."""
        pods = self._pods(None)
        nodes = []
        for node in self.work.nodes:
            gone = _heard.get((self.namespace, self.task, node.number)) if node.number not in pods else None
            nodes.append(Spoken.heard(gone[3]) if gone else self._spoken(node.number, pods.get(node.number)))
        return counted_once(nodes)[number].read(name, offset, most)

    def clean(self) -> None:
        """As `Runner.clean`; a job that still runs is not deleted, one whose nodes have ended is waited for."""
        selected = f"?labelSelector={TASK}%3D{self._labels('')[TASK]}"
        until = time.monotonic() + END_S
        while running := self._unfinished(selected):
            if time.monotonic() > until:
                params = {"machine": "Kubernetes", "folder": self.namespace, "token": running[0]}
                raise MachineError(Notice(code="agent_busy", params=params))
            time.sleep(0.5)
        for kind in (self._jobs, self._runtimes, self._maps):
            for one in (self._ask("GET", f"{kind}{selected}") or {}).get("items", []):
                self._ask("DELETE", f"{kind}/{one['metadata']['name']}", {"propagationPolicy": "Foreground"})

    def _unfinished(self, selected: str) -> list[str]:
        """Jobs of this task that are neither complete nor failed."""
        jobs = (self._ask("GET", f"{self._jobs}{selected}") or {}).get("items", [])
        return [job["metadata"]["name"] for job in jobs if _over(job) is None]

    # --- what there is ------------------------------------------------------------------------------------------------

    @property
    def _jobs(self) -> str:
        return f"/apis/{TRAINER_API_GROUP}/{VERSION}/namespaces/{self.namespace}/trainjobs"

    @property
    def _runtimes(self) -> str:
        return f"/apis/{TRAINER_API_GROUP}/{VERSION}/namespaces/{self.namespace}/trainingruntimes"

    @property
    def _maps(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/configmaps"

    def _labels(self, token: str) -> dict[str, str]:
        return {TASK: hashlib.sha256(self.task.encode()).hexdigest()[:32], TOKEN: name_of(token)}

    def _pods(self, token: str | None) -> dict[int, dict[str, Any]]:
        """Pods by the number of their node; without a token, those of the latest start."""
        if token is None:
            selected = f"?labelSelector={TASK}%3D{self._labels('')[TASK]}"
            jobs = (self._ask("GET", f"{self._jobs}{selected}") or {}).get("items", [])
            if not jobs:
                return {}
            name = max(jobs, key=lambda one: one["metadata"].get("creationTimestamp") or "")["metadata"]["name"]
        else:
            name = name_of(token)
        path = f"/api/v1/namespaces/{self.namespace}/pods?labelSelector={JOBSET}%3D{name}"
        found: dict[int, dict[str, Any]] = {}
        for pod in (self._ask("GET", path) or {}).get("items", []):
            labels = pod["metadata"].get("labels", {})
            if labels.get(RUN) in self._firsts and labels.get(INDEX, "").isdigit():
                found[self._firsts[labels[RUN]] + int(labels[INDEX])] = pod
        return found

    @cached_property
    def _firsts(self) -> dict[str, int]:
        """Number of the first node of each run, by the run's name."""
        runs = self.documents[0]["spec"]["template"]["spec"]["replicatedJobs"]
        firsts = {}
        for run in runs:
            (container,) = run["template"]["spec"]["template"]["spec"]["containers"]
            firsts[run["name"]] = next(int(one["value"]) for one in container["env"] if one["name"] == "FIRST_NODE")
        return firsts

    def _listen(self, token: str) -> bool:
        """Hears what the pods that are still there say, for their logs go with them; whether any is."""
        pods = self._pods(token)
        for number, pod in pods.items():
            self._spoken(number, pod, anew=True)
        return bool(pods)

    def _spoken(self, number: int, pod: dict[str, Any] | None, *, anew: bool = False) -> Spoken:
        """What a node has said, by the log of its pod: of a moment ago, or read `anew`."""
        if pod is None or pod.get("status", {}).get("phase", "Pending") == "Pending":
            return Spoken()
        name, over = pod["metadata"]["name"], pod["status"]["phase"] in ("Succeeded", "Failed")
        key = (self.namespace, self.task, number)
        known = _heard.get(key)
        fresh = known is not None and (known[2] or (not over and not anew and time.monotonic() - known[1] < FRESH_S))
        if known is None or known[0] != name or not fresh:
            path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/log?container=node&limitBytes={MOST_LOG}"
            text = self._ask("GET", path, plain=True)
            if text is None and known is not None and known[0] == name:
                return Spoken.heard(known[3])  # the pod has gone since
            text = text or ""
            known = _heard[key] = (name, time.monotonic(), over, [line for line in text.split("\n") if line])
            _heard.move_to_end(key)
            while len(_heard) > MOST_HEARD:
                _heard.popitem(last=False)
        return Spoken.heard(known[3])

    def _sight(self, number: int, pod: dict[str, Any] | None, spoken: Spoken, over: dict[str, Any] | None) -> Sight:
        """One node by its own words, its pod's and its job's."""
        status = {} if pod is None else pod.get("status", {})
        phase = status.get("phase")
        reason = status.get("message") or status.get("reason") or (over or {}).get("message")
        for one in status.get("containerStatuses", []):
            ended, waits = one.get("state", {}).get("terminated"), one.get("state", {}).get("waiting")
            if ended and spoken.state.get("state") != "ended":
                files = {name: len(data) for name, data in spoken.files.items()}
                why = reason or ended.get("reason")
                return Sight(number=number, state="ended", code=ended["exitCode"], files=files, reason=why)
            reason = reason or (waits or {}).get("message") or (waits or {}).get("reason")
        if pod is None and over is not None and over["type"] == "Complete":
            return Sight(number=number, state="ended", code=0)
        return spoken.sight(number, lives=over is None and phase not in ("Succeeded", "Failed"), reason=reason)

    def _archive(self, token: str) -> bytes:
        """The bundle as an archive, the same for the same start."""
        python = self.environments[self.work.nodes[0].environment].python
        held = {file.path: file.text.encode() for file in self.work.bundle.files}
        held |= files_of(self.work, token, self.port, python)
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
            for path, data in sorted(held.items()):
                member = tarfile.TarInfo(path)
                member.size, member.mode = len(data), 0o755
                tar.addfile(member, io.BytesIO(data))
        return packed.getvalue()

    def _unreachable(self, error: MachineError) -> tuple[Sight, ...]:
        reason = error.notices[0].message()
        return tuple(Sight(number=node.number, state="unreachable", reason=reason) for node in self.work.nodes)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None, *, plain: bool = False) -> Any:
        """What the API answers; None: there is no such object, or (to POST) it was made before."""
        api, refused = self.api, import_module("kubernetes.client").ApiException
        headers = {"Accept": "text/plain" if plain else "application/json", "Content-Type": "application/json"}
        where, _, query = path.partition("?")
        asked: dict[str, Any] = {"header_params": headers, "body": body, "query_params": parse_qsl(query)}
        asked |= {"auth_settings": ["BearerToken"], "_preload_content": False, "_request_timeout": WAIT_S}
        try:
            answer = api.call_api(where, method, _return_http_data_only=True, **asked)
            text = answer.data.decode("utf-8", "replace")
        except refused as error:
            if error.status == (409 if method == "POST" else 404):
                return None
            raise MachineError(Notice(code="kubernetes_failed", params={"reason": _reason(error)})) from None
        except Exception as error:  # of urllib3, which comes with the client
            if type(error).__module__.split(".")[0] != "urllib3":
                raise
            raise MachineError(Notice(code="kubernetes_failed", params={"reason": str(error)})) from None
        return text if plain else json.loads(text)


def name_of(token: str) -> str:
    """What the objects of a start are called: a label of RFC 1035."""
    return f"cz-{hashlib.sha256(token.encode()).hexdigest()[:20]}"


def _over(job: dict[str, Any]) -> dict[str, Any] | None:
    """The condition by which a TrainJob has ended; None: it has not."""
    told = {one["type"]: one for one in job.get("status", {}).get("conditions", []) if one["status"] == "True"}
    return told.get("Complete") or told.get("Failed")


def _reason(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"
