"""A task on Kubernetes: the official client talks to a small API server that runs the pods of a TrainJob as processes.

The server answers the paths of Kubernetes and Kubeflow Trainer in their shapes; manifests are checked against the schemas
of Kubernetes and of Kubeflow themselves.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from conftest import ROOT
from crosszone.errors import MachineError
from crosszone.inputs.dataset import Dataset
from crosszone.inputs.environment import Environment, MeasuredLink
from crosszone.inputs.value import parse
from crosszone.run.engine import Engine
from crosszone.run.request import RegisteredEntries, TaskRequest, check_request
from crosszone.run.runners import kubernetes as running
from crosszone.run.service import make_runner
from crosszone.run.work import build_work
from crosszone.store import open_store
from run.test_engine import advanced, states
from run.test_slurm_task import STUB, started
from waiting import wait_until

CHECK = ROOT / ".venv-check"
PACKAGES = CHECK / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (PACKAGES / "kubernetes").exists(), reason=".venv-check is not installed; ./test installs it"
    ),
]
WAY = {"rtt_ms": 20, "rtt_ms_least": 20, "rtt_ms_most": 20, "gbps": 10, "gbps_back": 10, "measured": 0}
LINKS = (MeasuredLink(first="a", second="b", **WAY),)


class Cluster:
    """Objects by path; a TrainJob's pods are processes of this machine."""

    def __init__(self, folder, env):
        self.folder, self.env = folder, env
        self.objects: dict[str, dict] = {}
        self.processes: dict[str, subprocess.Popen] = {}
        self.asked: list[tuple[str, str]] = []
        self.lock = threading.RLock()

    def run(self, job):
        """What Trainer, JobSet and the kubelet do with a TrainJob."""
        name, space = job["metadata"]["name"], job["metadata"]["namespace"]
        runtime = self.objects[f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{space}/trainingruntimes/{name}"]
        for run in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
            for index in range(run["template"]["spec"]["completions"]):
                self.pod(space, name, run, index)

    def pod(self, space, job, run, index):
        spec = run["template"]["spec"]["template"]["spec"]
        name = f"{job}-{run['name']}-0-{index}-abcde"
        (container,) = spec["containers"]
        place = self.folder / name
        (place / "bundle").mkdir(parents=True)
        (place / "work").mkdir()
        volume = next(entry["configMap"]["name"] for entry in spec["volumes"] if "configMap" in entry)
        packed = self.objects[f"/api/v1/namespaces/{space}/configmaps/{volume}"]["binaryData"]
        for key, text in packed.items():
            (place / "bundle" / key).write_bytes(base64.b64decode(text))
        command = [word.replace("/bundle/", f"{place}/bundle/") for word in container["command"]]
        env = (
            self.env
            | {variable["name"]: variable["value"] for variable in container["env"]}
            | {"JOB_COMPLETION_INDEX": str(index)}
        )
        with (place / "log").open("wb") as log:
            self.processes[name] = subprocess.Popen(command, cwd=place / "work", env=env, stdout=log, stderr=log)
        labels = {"jobset.sigs.k8s.io/jobset-name": job, "jobset.sigs.k8s.io/replicatedjob-name": run["name"]}
        labels |= {"batch.kubernetes.io/job-completion-index": str(index)}
        document = {"kind": "Pod", "metadata": {"name": name, "namespace": space, "labels": labels}, "spec": spec}
        self.objects[f"/api/v1/namespaces/{space}/pods/{name}"] = document

    def settle(self):
        """States of pods, and of jobs all of whose pods have ended."""
        for pod in self.objects.values():
            if pod["kind"] != "Pod":
                continue
            code = self.processes[pod["metadata"]["name"]].poll()
            state = (
                {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
                if code is None
                else {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
            )
            phase = "Running" if code is None else "Failed" if code else "Succeeded"
            pod["status"] = {"phase": phase, "containerStatuses": [{"name": "node", "state": state}]}
        for job in [document for document in self.objects.values() if document["kind"] == "TrainJob"]:
            mine = self.pods(job["metadata"]["name"])
            phases = [pod["status"]["phase"] for pod in mine]
            end = "Failed" if "Failed" in phases else "Complete" if set(phases) == {"Succeeded"} else None
            conditions = (
                [{"type": end, "status": "True", "reason": "JobsSettled", "message": f"jobset {end}"}] if end else []
            )
            job["status"] = {"conditions": conditions}
            if end == "Failed":  # JobSet ends what is left
                for pod in mine:
                    self.end(pod)

    def pods(self, job):
        return [
            one
            for one in self.objects.values()
            if one["kind"] == "Pod" and one["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-name"] == job
        ]

    def end(self, pod):
        process = self.processes[pod["metadata"]["name"]]
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)

    def delete(self, path):
        gone = self.objects[path]
        if gone["kind"] == "TrainJob":
            for pod in self.pods(gone["metadata"]["name"]):
                self.end(pod)
                self.processes[pod["metadata"]["name"]].wait(20)
                del self.objects[f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"]
        del self.objects[path]


class Answers(BaseHTTPRequestHandler):
    cluster: Cluster

    def log_message(self, *_):
        pass

    def told(self, status, body, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def refused(self, status, reason):
        status_document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": reason, "code": status}
        self.told(status, status_document)

    def handle_one(self):
        cluster, (path, _, query) = self.cluster, self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with cluster.lock:
            cluster.asked.append((self.command, path))
            assert self.headers["Authorization"] == "Bearer test-token"
            if self.command == "POST":
                document = json.loads(body)
                document["metadata"]["creationTimestamp"] = str(time.time())
                if not re.search(r"/(v1|v1alpha1)/namespaces/training/", path):
                    return self.refused(404, "the server could not find the requested resource")
                where = f"{path}/{document['metadata']['name']}"
                if where in cluster.objects:
                    return self.refused(409, f"{where} already exists")
                cluster.objects[where] = document
                if document["kind"] == "TrainJob":
                    cluster.run(document)
                return self.told(201, document)
            cluster.settle()
            if path.endswith("/log"):
                return self.told(200, (cluster.folder / path.split("/")[-2] / "log").read_bytes(), "text/plain")
            if path in cluster.objects:
                document = cluster.objects[path]
                if self.command == "DELETE":
                    cluster.delete(path)
                return self.told(200, document)
            if re.search(r"/(v1|v1alpha1)/namespaces/training/(pods|trainjobs|trainingruntimes|configmaps)$", path):
                selector = urllib.parse.parse_qs(query).get("labelSelector", [""])[0]
                key, _, value = selector.partition("=")
                items = [document for where, document in cluster.objects.items() if where.rpartition("/")[0] == path]
                return self.told(
                    200,
                    {
                        "items": [
                            document
                            for document in items
                            if not key or document["metadata"].get("labels", {}).get(key) == value
                        ]
                    },
                )
            return self.refused(404, f"{path} not found")

    do_GET = do_POST = do_DELETE = handle_one


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """An API server, a kubeconfig that leads to it, and a torchrun that is a stub."""
    for name in ("stubs", "starts", "pods"):
        (tmp_path / name).mkdir()
    (tmp_path / "stubs" / "torchrun").write_text(STUB)
    (tmp_path / "stubs" / "torchrun").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}/stubs:{os.environ['PATH']}", "STARTS": str(tmp_path / "starts")}
    Answers.cluster = Cluster(tmp_path / "pods", env)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    user = {"name": "u", "user": {"token": "test-token"}}
    place = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [place],
        "users": [user],
        "contexts": [context],
        "current-context": "x",
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(PACKAGES)])
    import kubernetes.config.kube_config as reader

    monkeypatch.setattr(reader, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig"))
    monkeypatch.setattr("crosszone.run.runners.runner.FRESH_S", 0.1)
    yield Answers.cluster
    for process in Answers.cluster.processes.values():
        if process.poll() is None:
            process.terminate()
            process.wait(20)
    server.shutdown()
    server.server_close()
    serving.join()


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/saved.db") as opened:
        yield opened


def engine_of(store, **changes) -> Engine:
    fields = {"runner": "kubernetes", "gpu": "a100-80gb-sxm", "nic_gbps": 100, "image": "pytorch/pytorch:2.9.1"}
    places = {
        "a": Environment(name="a", zone="a", gpus=2, partition="training", **fields),
        "b": Environment(name="b", zone="b", gpus=1, partition=changes.get("second", "training"), **fields),
    }
    registered = RegisteredEntries(
        environments=places, datasets={"d": Dataset(name="d", versions=({"id": "v"},))}, models={}
    )

    def make(task):
        return build_work(check_request(parse(TaskRequest, task.request), registered), LINKS, "en")

    def runner(task, work):
        return make_runner(task, work, work.environments, {}, 29_504)

    return Engine(store, name="engine", make=make, check=lambda *_: [], runner=runner)


def task_of(store, **changes) -> str:
    where = {"nodeIds": ["a", "b"], "masterNode": "a", "framework": "pytorch-ddp"}
    fields = {"taskName": "t", "datasetId": "d", "datasetVersionId": "v", "modelId": "gpt2-small"}
    request = {**fields, "distributedConfig": where, "job": {"seq_len": 128, "steps": 3}, **changes}
    return store.tasks.add(name="t", request=request)[0].id


def test_a_task_runs_to_its_end_and_a_token_starts_once(store, cluster, tmp_path):
    id = task_of(store)
    engine = engine_of(store)
    advanced(engine, id, to="queued")
    move, store.tasks.move = store.tasks.move, lambda *_, **__: None  # killed before it was stored
    engine.advance(id)
    store.tasks.move = move
    task = advanced(engine_of(store), id)
    assert task.state == "succeeded", str(task.notice)
    assert states(store, id) == ["preflight", "queued", "running", "succeeded"]
    assert started(tmp_path / "starts") == {"0": 1, "1": 1}
    assert [node["code"] for node in task.progress["nodes"]] == [0, 0]
    assert task.progress["step"] == 3
    runner = engine._make_runner(task, engine._load_work(task))
    job = running.name_objects(task.token)
    for number in range(2):
        _, data = runner.read(number, "logs/ranks/0/stdout.log", 0, 1000)
        assert f"rank of node {number} meets at {job}-run-0-0-0.{job}:29504" in data.decode()
    runner.clean()
    assert [path for path in cluster.objects if "/pods/" not in path] == []
    assert {status.state for status in runner.poll(task.token)} == {"none"}


def test_nodes_asked_for_by_zone_are_the_pods_of_its_runs(store, cluster, tmp_path):
    selector = [{"zone": "a", "nodes": 2}, {"zone": "b", "gpu": "a100-80gb-sxm", "nodes": 1}]
    id = task_of(store, launchMode="new", allocation=selector, distributedConfig={"framework": "pytorch-ddp"})
    task = advanced(engine_of(store), id)
    assert task.state == "succeeded", str(task.notice)
    assert started(tmp_path / "starts") == {"0": 1, "1": 1, "2": 1}


def test_a_stop_deletes_the_job_and_its_logs_are_still_read(store, cluster, tmp_path):
    (tmp_path / "starts" / "hold").touch()
    id = task_of(store)
    engine = engine_of(store)
    advanced(engine, id, to="running")
    wait_until(lambda: len(started(tmp_path / "starts")) == 2)
    wait_until(lambda: engine.advance(id) and store.tasks.get(id).progress["nodes"][1]["state"] == "running")
    wait_until(lambda: any("rank of node 1" in log.read_text() for log in (tmp_path / "pods").glob("*/log")))
    store.tasks.update_fields(id, stop_asked=True)
    task = advanced(engine, id)
    assert task.state == "stopped"
    assert not [path for path in cluster.objects if "/pods/" in path or "/trainjobs/" in path]
    assert all(process.poll() is not None for process in cluster.processes.values())
    _, data = engine._make_runner(task, engine._load_work(task)).read(1, "logs/node.log", 0, 1000)
    assert b"rank of node 1" in data


def test_the_node_that_failed_is_named(store, cluster, tmp_path):
    (tmp_path / "starts" / "hold").touch()
    (tmp_path / "starts" / "fail").touch()
    id = task_of(store, policy={"maxRestarts": 0})
    task = advanced(engine_of(store), id)
    assert (task.state, task.notice["code"]) == ("failed", "task_node_failed")
    assert (task.notice["params"]["node"], task.notice["params"]["code"]) == (1, 7)
    assert task.notice["params"]["said"] == "error: a bad node"


def test_the_manifest_of_a_start_is_one_that_kubeflow_takes(store, cluster, tmp_path):
    id = task_of(store)
    engine = engine_of(store)
    advanced(engine, id, to="queued")
    task = store.tasks.get(id)
    documents = engine._make_runner(task, engine._load_work(task)).build_manifest(task.token)
    (tmp_path / "trainjob.yaml").write_text(yaml.safe_dump_all(documents))
    words = [
        CHECK / "bin" / "python",
        ROOT / "tests" / "deploy" / "launcher_checks.py",
        "kubernetes",
        tmp_path / "trainjob.yaml",
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    name = running.name_objects(task.token)
    assert json.loads(done.stdout) == {"runtime": name, "refers": name, "jobs": 2}


def test_what_is_missing_is_said(store, cluster, tmp_path, monkeypatch):
    id = task_of(store)
    task = advanced(engine_of(store, second="other"), id)
    assert (task.state, task.notice["code"]) == ("failed", "kubernetes_namespaces")
    engine = engine_of(store)
    id = task_of(store)
    advanced(engine, id, to="queued")
    task = store.tasks.get(id)
    runner = engine._make_runner(task, engine._load_work(task))
    monkeypatch.setattr(running, "VERSION", "v9")
    with pytest.raises(MachineError) as refused:
        runner.prepare()
    assert refused.value.notices[0].code == "kubernetes_no_trainer"
    with pytest.raises(MachineError) as refused:
        runner._call_api("POST", "/apis/nothing", {"metadata": {}})
    assert refused.value.notices[0].code == "kubernetes_failed"
    (tmp_path / "kubeconfig").write_text("{}")
    runner = engine._make_runner(task, engine._load_work(task))
    with pytest.raises(MachineError) as refused:
        runner.prepare()
    assert refused.value.notices[0].code == "kubernetes_failed"
    monkeypatch.setitem(sys.modules, "kubernetes.client", None)
    with pytest.raises(MachineError) as refused:
        engine._make_runner(task, engine._load_work(task)).prepare()
    assert refused.value.notices[0].code == "kubernetes_client"
    assert "crosszone install kubernetes" in refused.value.notices[0].hint("zh")
