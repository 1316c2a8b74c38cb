"""Ray: the nodes of a task as one job of a Ray cluster, over its Jobs API (Ray 2.60, dashboard/modules/job).

    PUT  /api/packages/gcs/NAME.zip      the bundle
    POST /api/jobs/                      submission_id is the token: a second job of it is refused, so it starts once
    GET  /api/jobs/ID, /api/jobs/ID/logs; POST /api/jobs/ID/stop; DELETE /api/jobs/ID

`partition` of the environments is the address of the job server (http://head:8265); null: RAY_API_SERVER_ADDRESS, or
this machine's. The token of RAY_AUTH_TOKEN is sent to those two only, for an environment may name any server.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from dataclasses import dataclass
from typing import Any

from crosszone.deploy.bundle import ARCHIVE_TIME
from crosszone.errors import InvalidError, MachineError, Notice
from crosszone.run.request import is_allocated
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
)
from crosszone.run.work import WorkNode

LOCAL_SERVER = "http://127.0.0.1:8265"  # Job server of this machine (DEFAULT_DASHBOARD_PORT)
SERVER_VARIABLE, TOKEN_VARIABLE = "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN"
WAIT_S = 30
END_STATES = ("SUCCEEDED", "FAILED", "STOPPED")
_log_cache = LogCache(32)  # By server and token


START_FILE = "ray_start.py"
START_PROGRAM = '''\
"""Let Ray choose a machine of its own for each node that has none, then run ray_job.py."""

import json
import subprocess
import sys
from pathlib import Path

import ray
import ray_job
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

FILE = Path(__file__).resolve().parent / "nodes.json"


def chosen(nodes):
    """Address of the machine of each node: Ray says which are free, all at once and no two the same."""
    group = placement_group([{"CPU": 1, "GPU": node["gpus"]} for node in nodes], strategy="STRICT_SPREAD")
    if not group.wait(ray_job.WAIT_S):
        sys.exit(f"ray_start.py: after {ray_job.WAIT_S:.0f} s no {len(nodes)} machines are free")
    address = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    where = placement_group_table(group)["bundles_to_node_id"]
    remove_placement_group(group)
    return [address[where[number]] for number in range(len(nodes))]


def main():
    """Fill in the addresses, and tell the nodes where they meet; a process of its own chooses."""
    nodes = json.loads(FILE.read_text(encoding="utf-8"))
    if sys.argv[1:] == ["choose"]:
        ray.init(address="auto", log_to_driver=False)
        nodes = [{**node, "address": address} for node, address in zip(nodes, chosen(nodes), strict=True)]
        FILE.write_text(json.dumps(nodes), encoding="utf-8")
        return
    if any(node["address"] is None for node in nodes):
        status = subprocess.run([sys.executable, __file__, "choose"], check=False).returncode
        if status:
            sys.exit(status)
        nodes = json.loads(FILE.read_text(encoding="utf-8"))
    sys.argv = [sys.argv[0], nodes[0]["address"]]
    ray_job.main()


main()
'''


@dataclass(frozen=True, kw_only=True)
class RayRunner(TaskNodes):
    """The nodes of one task, as one job of Ray."""

    @property
    def server(self) -> str:
        """Address of the job server, the same for all environments."""
        servers = {
            environment.partition or os.environ.get(SERVER_VARIABLE) or LOCAL_SERVER
            for environment in self.environments.values()
        }
        if len(servers) > 1:
            raise InvalidError(Notice(code="ray_servers", field="partition", params={"known": sorted(servers)}))
        zones = {environment.zone for id, environment in self.environments.items() if is_allocated(id)}
        if len(zones) > 1:
            raise InvalidError(Notice(code="ray_zones", field="allocation", params={"known": sorted(zones)}))
        address = servers.pop().rstrip("/")
        if urllib.parse.urlsplit(address).scheme not in ("http", "https"):
            raise InvalidError(Notice(code="ray_server_bad", field="partition", value=address))
        return address

    def prepare(self) -> None:
        """As `Runner.prepare`: the bundle goes with each start, for it holds the start's token."""
        self._call_api("GET", "/api/version")

    def start(self, token: str) -> None:
        """As `Runner.start`."""
        if self._get_job(token) is not None:
            return
        package = self._pack_bundle(token)
        name = f"_ray_pkg_{hashlib.sha1(package, usedforsecurity=False).hexdigest()}.zip"
        self._call_api("PUT", f"/api/packages/gcs/{name}", package)
        job = {
            "entrypoint": f"python {START_FILE}",
            "submission_id": token,
            "runtime_env": {"working_dir": f"gcs://{name}"},
            "metadata": {"crosszone_task": self.task},
        }
        try:
            self._call_api("POST", "/api/jobs/", json.dumps(job).encode())
        except MachineError:
            if self._get_job(token) is None:  # else it was submitted meanwhile
                raise

    def poll(self, token: str) -> tuple[NodeStatus, ...]:
        """As `Runner.poll`."""
        try:
            job = self._get_job(token)
            if job is None:
                return self.make_statuses("none")
            nodes = self._read_nodes(token, has_ended=job["status"] in END_STATES)
        except MachineError as error:
            return self.make_unreachable(error)
        return self._merge_statuses(job, nodes)

    def stop(self, token: str) -> tuple[NodeStatus, ...]:
        """As `Runner.stop`."""
        try:
            until = time.monotonic() + END_S
            while (job := self._get_job(token)) is not None and job["status"] not in END_STATES:
                self._call_api("POST", f"/api/jobs/{quote_token(token)}/stop", missing_ok=True)
                if time.monotonic() > until:
                    raise MachineError(Notice(code="ray_failed", params={"reason": f"job {token} does not end"}))
                time.sleep(0.5)
        except MachineError as error:
            return self.make_unreachable(error)
        return mark_stopped(self.poll(token))

    def read(self, number: int, name: str, offset: int, max_bytes: int) -> tuple[dict[str, Any], bytes]:
        """As `Runner.read`: from what the node has told since it was looked at."""
        token = self._find_latest_token()
        if token is None:
            return {"size": 0, "offset": 0}, b""
        return self._read_nodes(token, has_ended=False)[number].read(name, offset, max_bytes)

    def clean(self) -> None:
        """As `Runner.clean`; a job that still runs is not deleted, one whose nodes have ended is waited for."""
        until = time.monotonic() + END_S
        while any(job["status"] not in END_STATES for job in self._list_jobs()) and time.monotonic() < until:
            time.sleep(0.5)
        for job in self._list_jobs():
            if job["status"] not in END_STATES:
                params = {"machine": self.server, "folder": self.task, "token": job["submission_id"]}
                raise MachineError(Notice(code="agent_busy", params=params))
            self._call_api("DELETE", f"/api/jobs/{quote_token(job['submission_id'])}", missing_ok=True)
            _log_cache.pop((self.server, job["submission_id"]), None)

    def _merge_statuses(self, job: dict[str, Any], nodes: list[LogReportedNode]) -> tuple[NodeStatus, ...]:
        """Every node by its own report and by Ray's."""
        job_status, message = job["status"], job.get("message")
        is_live = job_status not in END_STATES
        why_waiting = message if job_status == "PENDING" else None
        statuses = [
            reported.status(node.number, is_live=is_live, reason=why_waiting)
            for node, reported in zip(self.work.nodes, nodes, strict=True)
        ]
        if is_live:
            return tuple(statuses)
        has_cause = any(status.has_failed for status in statuses)
        changes = {"state": "ended", "code": None, "stopped": True, "reason": message}
        if job_status == "SUCCEEDED":
            changes = {"state": "ended", "code": 0}
        elif job_status == "FAILED" and not has_cause:
            code = job.get("driver_exit_code")
            changes |= {"code": code if code else 1, "stopped": False}
        return tuple(status.replace(**changes) if status.state == "lost" else status for status in statuses)

    def _read_nodes(self, token: str, *, has_ended: bool) -> list[LogReportedNode]:
        """What every node has said so far; lines of the job itself belong to the first."""
        key = (self.server, token)
        cached = _log_cache.get(key)
        if cached is None or not cached.is_current(token, refresh=has_ended):
            answer = self._call_api("GET", f"/api/jobs/{quote_token(token)}/logs", missing_ok=True)
            lines = (json.loads(answer)["logs"] or "" if answer else "").split("\n")
            cached = _log_cache.store(key, token, lines, has_ended=has_ended)
        node_lines: dict[int, list[str]] = {node.number: [] for node in self.work.nodes}
        for line in cached.lines:
            number = int(line[1:4]) if line[:1] == "[" and line[4:6] == "] " and line[1:4].isdigit() else None
            if number in node_lines:
                node_lines[number].append(line[6:])
            elif line:
                node_lines[0].append(line)
        return drop_shared_metrics([LogReportedNode.from_lines(lines) for lines in node_lines.values()])

    def _pack_bundle(self, token: str) -> bytes:
        """The bundle as a zip, the same for the same start; each node's script is the one that speaks."""
        contents = {file.path: file.text.encode() for file in self.work.bundle.files}
        contents |= {**build_start_files(self.work, token, self.port, self.python), START_FILE: START_PROGRAM.encode()}
        rows = json.loads(contents["nodes.json"])
        nodes = [
            {**row, "script": f"{START_FOLDER}/{row['number']:03d}.sh", "address": self._choose_address(node)}
            for row, node in zip(rows, self.work.nodes, strict=True)
        ]
        contents["nodes.json"] = json.dumps(nodes).encode()
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, data in sorted(contents.items()):
                entry = zipfile.ZipInfo(path, ARCHIVE_TIME)
                entry.external_attr = 0o755 << 16
                archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
        return packed.getvalue()

    def _choose_address(self, node: WorkNode) -> str | None:
        """The machine of a node; None: Ray chooses one."""
        return None if is_allocated(node.environment) else self.environments[node.environment].address

    def _get_job(self, token: str) -> dict[str, Any] | None:
        answer = self._call_api("GET", f"/api/jobs/{quote_token(token)}", missing_ok=True)
        return None if answer is None else json.loads(answer)

    def _list_jobs(self) -> list[dict[str, Any]]:
        """Jobs of this task, the latest last."""
        rows = json.loads(self._call_api("GET", "/api/jobs/") or b"[]")
        submitted = [row for row in rows if row.get("submission_id")]
        own_jobs = [row for row in submitted if (row.get("metadata") or {}).get("crosszone_task") == self.task]
        return sorted(own_jobs, key=lambda row: row.get("start_time") or 0)

    def _find_latest_token(self) -> str | None:
        """Token of the latest start."""
        tokens = [token for server, token in _log_cache if server == self.server and token.startswith(f"{self.task}.")]
        if tokens:
            return tokens[-1]
        jobs = self._list_jobs()
        return jobs[-1]["submission_id"] if jobs else None

    def _call_api(self, method: str, path: str, data: bytes | None = None, *, missing_ok: bool = False) -> bytes | None:
        """What the job server answers; None: there is no such job."""
        headers = {"Content-Type": "application/json" if path.startswith("/api/jobs") else "application/octet-stream"}
        if TOKEN_VARIABLE in os.environ and self.server in (
            LOCAL_SERVER,
            os.environ.get(SERVER_VARIABLE, "").rstrip("/"),
        ):
            headers["Authorization"] = f"Bearer {os.environ[TOKEN_VARIABLE]}"
        request = urllib.request.Request(self.server + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                body: bytes = answer.read()
                return body
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404 and missing_ok:
                    return None
                message = error.read(4000).decode("utf-8", "replace").strip().splitlines()
            reason = f"{error.code} {message[-1] if message else error.reason}"
        except (OSError, ValueError) as error:
            reason = str(getattr(error, "reason", error))
        raise MachineError(Notice(code="ray_failed", value=self.server, params={"reason": reason}))


def quote_token(token: str) -> str:
    return urllib.parse.quote(token, safe="")
