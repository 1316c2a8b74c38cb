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
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crosszone.deploy.bundle import ARCHIVE_TIME
from crosszone.errors import InvalidError, MachineError, Notice
from crosszone.inputs.environment import Environment
from crosszone.run.request import is_allocated
from crosszone.run.runners.runner import Sight
from crosszone.run.runners.spoken import FOLDER, Spoken, counted_once, files_of
from crosszone.run.runners.supervised import STOP_S
from crosszone.run.work import Work, WorkNode

OWN = "http://127.0.0.1:8265"  # Job server of this machine (DEFAULT_DASHBOARD_PORT)
VARIABLE, TOKEN = "RAY_API_SERVER_ADDRESS", "RAY_AUTH_TOKEN"
WAIT_S = 30
END_S = STOP_S + 6.0
FRESH_S = 2.0  # How long what a job said is not asked for again
OVER = ("SUCCEEDED", "FAILED", "STOPPED")
MOST_HEARD = 32
# What jobs said when they were last asked: when, whether they had ended, their lines.
_heard: OrderedDict[tuple[str, str], tuple[float, bool, list[str]]] = OrderedDict()


START = "ray_start.py"
_PLACES = '''\
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
class Ray:
    """The nodes of one task."""

    task: str
    work: Work
    environments: Mapping[str, Environment]
    port: int
    """At which ranks meet on the first node."""

    @property
    def server(self) -> str:
        """Address of the job server, the same for all environments."""
        found = {one.partition or os.environ.get(VARIABLE) or OWN for one in self.environments.values()}
        if len(found) > 1:
            raise InvalidError(Notice(code="ray_servers", field="partition", params={"known": sorted(found)}))
        zones = {one.zone for id, one in self.environments.items() if is_allocated(id)}
        if len(zones) > 1:
            raise InvalidError(Notice(code="ray_zones", field="allocation", params={"known": sorted(zones)}))
        address = found.pop().rstrip("/")
        if urllib.parse.urlsplit(address).scheme not in ("http", "https"):
            raise InvalidError(Notice(code="ray_server_bad", field="partition", value=address))
        return address

    def prepare(self) -> None:
        """As `Runner.prepare`: the bundle goes with each start, for it holds the start's token."""
        self._ask("GET", "/api/version")

    def start(self, token: str) -> None:
        """As `Runner.start`."""
        if self._job(token) is not None:
            return
        package = self._package(token)
        name = f"_ray_pkg_{hashlib.sha1(package, usedforsecurity=False).hexdigest()}.zip"
        self._ask("PUT", f"/api/packages/gcs/{name}", package)
        job = {
            "entrypoint": f"python {START}",
            "submission_id": token,
            "runtime_env": {"working_dir": f"gcs://{name}"},
            "metadata": {"crosszone_task": self.task},
        }
        try:
            self._ask("POST", "/api/jobs/", json.dumps(job).encode())
        except MachineError:
            if self._job(token) is None:  # else it was submitted meanwhile
                raise

    def look(self, token: str) -> tuple[Sight, ...]:
        """As `Runner.look`."""
        try:
            job = self._job(token)
            if job is None:
                return tuple(Sight(number=node.number, state="none") for node in self.work.nodes)
            nodes = self._nodes(token, over=job["status"] in OVER)
        except MachineError as error:
            reason = error.notices[0].message()
            return tuple(Sight(number=node.number, state="unreachable", reason=reason) for node in self.work.nodes)
        return self._seen(job, nodes)

    def stop(self, token: str) -> tuple[Sight, ...]:
        """As `Runner.stop`."""
        try:
            until = time.monotonic() + END_S
            while (job := self._job(token)) is not None and job["status"] not in OVER:
                self._ask("POST", f"/api/jobs/{_quoted(token)}/stop", missing_ok=True)
                if time.monotonic() > until:
                    raise MachineError(Notice(code="ray_failed", params={"reason": f"job {token} does not end"}))
                time.sleep(0.5)
        except MachineError as error:
            reason = error.notices[0].message()
            return tuple(Sight(number=node.number, state="unreachable", reason=reason) for node in self.work.nodes)
        return tuple(
            one if one.state == "ended" else one.replace(state="ended", code=None, stopped=True)
            for one in self.look(token)
        )

    def read(self, number: int, name: str, offset: int, most: int) -> tuple[dict[str, Any], bytes]:
        """As `Runner.read`: from what the node has told since it was looked at."""
        token = self._last()
        if token is None:
            return {"size": 0, "offset": 0}, b""
        return self._nodes(token, over=False)[number].read(name, offset, most)

    def clean(self) -> None:
        """As `Runner.clean`; a job that still runs is not deleted, one whose nodes have ended is waited for."""
        until = time.monotonic() + END_S
        while any(job["status"] not in OVER for job in self._mine()) and time.monotonic() < until:
            time.sleep(0.5)
        for job in self._mine():
            if job["status"] not in OVER:
                params = {"machine": self.server, "folder": self.task, "token": job["submission_id"]}
                raise MachineError(Notice(code="agent_busy", params=params))
            self._ask("DELETE", f"/api/jobs/{_quoted(job['submission_id'])}", missing_ok=True)
            _heard.pop((self.server, job["submission_id"]), None)

    def _seen(self, job: dict[str, Any], nodes: list[Spoken]) -> tuple[Sight, ...]:
        """Every node by its own words and by Ray's."""
        status, message = job["status"], job.get("message")
        lives = status not in OVER
        waits = message if status == "PENDING" else None
        seen = [
            one.sight(node.number, lives=lives, reason=waits) for node, one in zip(self.work.nodes, nodes, strict=True)
        ]
        if lives:
            return tuple(seen)
        cause = next((one for one in seen if one.state == "ended" and one.code != 0 and not one.stopped), None)
        told = {"state": "ended", "code": None, "stopped": True, "reason": message}
        if status == "SUCCEEDED":
            told = {"state": "ended", "code": 0}
        elif status == "FAILED" and cause is None:
            code = job.get("driver_exit_code")
            told |= {"code": code if code else 1, "stopped": False}
        return tuple(one.replace(**told) if one.state == "lost" else one for one in seen)

    def _nodes(self, token: str, *, over: bool) -> list[Spoken]:
        """What every node has said so far; lines of the job itself belong to the first."""
        key = (self.server, token)
        known = _heard.get(key)
        if known is None or not (known[1] or (not over and time.monotonic() - known[0] < FRESH_S)):
            said = self._ask("GET", f"/api/jobs/{_quoted(token)}/logs", missing_ok=True)
            lines = (json.loads(said)["logs"] or "" if said else "").split("\n")
            known = _heard[key] = (time.monotonic(), over, lines)
            _heard.move_to_end(key)
            while len(_heard) > MOST_HEARD:
                _heard.popitem(last=False)
        mine: dict[int, list[str]] = {node.number: [] for node in self.work.nodes}
        for line in known[2]:
            number = int(line[1:4]) if line[:1] == "[" and line[4:6] == "] " and line[1:4].isdigit() else None
            if number in mine:
                mine[number].append(line[6:])
            elif line:
                mine[0].append(line)
        return counted_once([Spoken.heard(lines) for lines in mine.values()])

    def _package(self, token: str) -> bytes:
        """The bundle as a zip, the same for the same start; each node's script is the one that speaks."""
        python = self.environments[self.work.nodes[0].environment].python
        held = {file.path: file.text.encode() for file in self.work.bundle.files}
        held |= {**files_of(self.work, token, self.port, python), START: _PLACES.encode()}
        rows = json.loads(held["nodes.json"])
        nodes = [
            {**row, "script": f"{FOLDER}/{row['number']:03d}.sh", "address": self._address(node)}
            for row, node in zip(rows, self.work.nodes, strict=True)
        ]
        held["nodes.json"] = json.dumps(nodes).encode()
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, data in sorted(held.items()):
                entry = zipfile.ZipInfo(path, ARCHIVE_TIME)
                entry.external_attr = 0o755 << 16
                archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
        return packed.getvalue()

    def _address(self, node: WorkNode) -> str | None:
        """The machine of a node; None: Ray chooses one."""
        return None if is_allocated(node.environment) else self.environments[node.environment].address

    def _job(self, token: str) -> dict[str, Any] | None:
        said = self._ask("GET", f"/api/jobs/{_quoted(token)}", missing_ok=True)
        return None if said is None else json.loads(said)

    def _mine(self) -> list[dict[str, Any]]:
        """Jobs of this task, the latest last."""
        rows = json.loads(self._ask("GET", "/api/jobs/") or b"[]")
        submitted = [row for row in rows if row.get("submission_id")]
        mine = [row for row in submitted if (row.get("metadata") or {}).get("crosszone_task") == self.task]
        return sorted(mine, key=lambda row: row.get("start_time") or 0)

    def _last(self) -> str | None:
        """Token of the latest start."""
        asked = [token for server, token in _heard if server == self.server and token.startswith(f"{self.task}.")]
        if asked:
            return asked[-1]
        mine = self._mine()
        return mine[-1]["submission_id"] if mine else None

    def _ask(self, method: str, path: str, data: bytes | None = None, *, missing_ok: bool = False) -> bytes | None:
        """What the job server answers; None: there is no such job."""
        headers = {"Content-Type": "application/json" if path.startswith("/api/jobs") else "application/octet-stream"}
        if TOKEN in os.environ and self.server in (OWN, os.environ.get(VARIABLE, "").rstrip("/")):
            headers["Authorization"] = f"Bearer {os.environ[TOKEN]}"
        request = urllib.request.Request(self.server + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                found: bytes = answer.read()
                return found
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404 and missing_ok:
                    return None
                said = error.read(4000).decode("utf-8", "replace").strip().splitlines()
            reason = f"{error.code} {said[-1] if said else error.reason}"
        except (OSError, ValueError) as error:
            reason = str(getattr(error, "reason", error))
        raise MachineError(Notice(code="ray_failed", value=self.server, params={"reason": reason}))


def _quoted(token: str) -> str:
    return urllib.parse.quote(token, safe="")
