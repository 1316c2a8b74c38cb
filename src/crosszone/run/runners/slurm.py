"""Slurm: the nodes of a task as one job: a component for each run of equal nodes, one process a node.

    runner = Slurm(task=task.id, work=work, environments=environments, port=29500)
    runner.start(token)                 sbatch, with the token as the job's name: found again, whoever submitted it

CrossZone runs on a machine that can submit jobs, and the environments' `workdir` is a folder that all nodes see; the
bundle is put there once. Each node keeps its state and its logs there; that it lives Slurm says, that it has ended is
also known when Slurm has forgotten the job. A job begins by making a folder named by its token, which can be made but
once: so a token starts once even where two submit it, and never after it was told to stop.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files as resources
from itertools import groupby
from pathlib import Path
from typing import Any

from crosszone.deploy.launchers import check_name
from crosszone.deploy.launchers.slurm import HOST_NAME_PATTERN, MAX_COMPONENTS, TIME_PATTERN, WORD_PATTERN
from crosszone.deploy.settings import LaunchSettings
from crosszone.errors import InvalidError, MachineError, Notice
from crosszone.inputs.environment import Environment
from crosszone.run.imports.scheduler import printed
from crosszone.run.machine import BOOT, Local, read_modules
from crosszone.run.remote.common import expand_path
from crosszone.run.remote.supervisor import list_files, read_state
from crosszone.run.runners.runner import Sight
from crosszone.run.runners.supervised import PYTHON_FIRST, RANK_LOGS, STOP_S
from crosszone.run.work import Work, WorkNode

# States of a job that has ended (squeue(1) of Slurm 22.05, JOB STATE CODES).
OVER = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "SPECIAL_EXIT", "TIMEOUT",
)  # fmt: skip
# How long the last words of a node may take to be seen on a shared file system after its job has ended.
SETTLE_S = 5.0
END_S = STOP_S + 6.0  # How long Slurm has to end a job
LOOK_S = 0.5
SCRIPT, REQUEST, MARK = "job.sh", "request", "started."
JOB = """\
#!/bin/bash
# Starts every node of a task: job.sh FOLDER TOKEN PYTHON COMPONENTS PROGRAM. The folder is seen by all nodes.
set -euo pipefail
folder=$1 token=$2 python=$3 components=$4 program=$5
if ! mkdir -- "$folder/started.$token"; then
  echo "job.sh: this start has begun before, or was stopped before it began" >&2
  exit 0
fi
nodes=${SLURM_JOB_NODELIST_HET_GROUP_0:-$SLURM_JOB_NODELIST}
first=$(scontrol show hostnames "$nodes" | head -n 1)
MASTER_ADDR=$(scontrol --oneliner show node "$first" | tr ' ' '\\n' | sed -n 's/^NodeAddr=//p')
export MASTER_ADDR="${MASTER_ADDR:-$first}"
step=(srun --kill-on-bad-exit=1 --cpu-bind=none)
if [ "$components" -gt 1 ]; then step+=("--het-group=0-$((components - 1))"); fi
exec "${step[@]}" bash -c 'exec "$0" -c "$1" <"$2"' "$python" "$program" "$folder/request"
"""


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """The nodes of one task."""

    task: str
    """Id of the task, the name of its folder."""
    work: Work
    environments: Mapping[str, Environment]
    port: int
    """At which ranks meet on the first node."""
    settings: LaunchSettings = field(default_factory=LaunchSettings)
    log_mib: float = 64

    def folder(self, node: WorkNode) -> str:
        """Where a node of the task lives; that of the first holds the bundle of all."""
        return f"{self.environments[node.environment].workdir}/tasks/{self.task}/node-{node.number:03d}"

    @property
    def root(self) -> Path:
        """The folder of the first node, here."""
        return expand_path(self.folder(self.work.nodes[0]))

    def prepare(self) -> None:
        """As `Runner.prepare`."""
        folder, checksum = str(self.root), self.work.checksum
        Local().call("files.put_bundle", payload=self.work.archive, folder=folder, checksum=checksum)

    def start(self, token: str) -> None:
        """As `Runner.start`."""
        if (self.root / f"{MARK}{token}").exists() or self.jobs(token):
            return
        components = list(self.components())
        _written(self.root / SCRIPT, JOB.encode())
        _written(self.root / REQUEST, self.request(token))
        python = self.environments[self.work.nodes[0].environment].python
        arguments = [str(self.root / SCRIPT), str(self.root), token, python, str(len(components)), BOOT]
        asked: list[str] = []
        for number, component in enumerate(components):
            asked += [*([":"] if number else []), *self._job(token), *component]
        # What no partition can ever hold would wait for ever: the trial says so at once.
        printed(["sbatch", "--test-only", *asked, *arguments], missing="slurm_missing", failed="slurm_refused")
        try:
            printed(["sbatch", "--parsable", *asked, *arguments], missing="slurm_missing", failed="slurm_refused")
        except MachineError:
            if not self._submitted(token):
                self._mark(token)  # should the job come after all, it ends at once
                raise

    def look(self, token: str) -> tuple[Sight, ...]:
        """As `Runner.look`."""
        try:
            jobs = self.jobs(token)
        except MachineError as error:
            return self._unreachable(error.notices[0].message())
        lives = is_live(jobs)
        seen = self._seen(token, jobs)
        until = time.monotonic() + SETTLE_S
        while not lives and time.monotonic() < until and any(one.state in ("starting", "lost") for one in seen):
            time.sleep(LOOK_S)
            seen = self._seen(token, jobs)
        return seen

    def stop(self, token: str) -> tuple[Sight, ...]:
        """As `Runner.stop`."""
        self._mark(token)
        until = time.monotonic() + END_S
        try:
            while is_live(jobs := self.jobs(token)):
                if time.monotonic() > until:
                    return self._unreachable(f"Slurm still ends job {jobs[0][0]} ({jobs[0][1]})")
                printed(["scancel", f"--name={token}"], missing="slurm_missing", failed="slurm_failed")
                time.sleep(LOOK_S)
        except MachineError as error:
            return self._unreachable(error.notices[0].message())
        return tuple(
            one if one.state == "ended" else one.replace(state="ended", code=None, stopped=True)
            for one in self._seen(token, [])
        )

    def read(self, number: int, name: str, offset: int, most: int) -> tuple[dict[str, Any], bytes]:
        """As `Runner.read`."""
        folder = self.folder(self.work.nodes[number])
        told, data = Local().call("files.read_bytes", folder=folder, name=name, offset=offset, max_bytes=most)
        return told, data

    def clean(self) -> None:
        """As `Runner.clean`; a job that still runs is not deleted, one whose nodes have ended is waited for."""
        until = time.monotonic() + END_S
        for mark in self.root.glob(f"{MARK}*") if self.root.is_dir() else ():
            token = mark.name.removeprefix(MARK)
            while is_live(jobs := self.jobs(token)):
                # Between the end of the last node and the end of the job lie some moments of Slurm's.
                if time.monotonic() < until and all(one.state == "ended" for one in self._seen(token, jobs)):
                    time.sleep(0.5)
                    continue
                params = {"machine": "Slurm", "folder": str(self.root), "token": token}
                raise MachineError(Notice(code="agent_busy", params=params))
        for node in reversed(self.work.nodes):
            Local().call("files.delete_folder", folder=self.folder(node), expected_name=f"node-{node.number:03d}")

    def jobs(self, token: str) -> list[tuple[str, str, str]]:
        """Jobs of a token that Slurm knows: id, state, why it waits. An ended one is forgotten after MinJobAge."""
        words = ["squeue", "--noheader", f"--name={token}", "--states=all", "--format=%i|%T|%r"]
        lines = printed(words, missing="slurm_missing", failed="slurm_failed").splitlines()
        rows = [line.strip().split("|", 2) for line in lines if line.count("|") >= 2]
        return [(id, state, why) for id, state, why in rows]

    def components(self) -> Iterator[list[str]]:
        """What each run of equal nodes is asked for by; a node with an address is that node of Slurm's."""
        found = []
        for key, alike in groupby(self.work.nodes, key=self._kind):
            partition, gpus, host = key
            made = [f"--nodes={len(list(alike))}", "--ntasks-per-node=1", "--exclusive", "--mem=0"]
            if gpus and self.settings.gres:
                made.append(f"--gres=gpu:{gpus}")
            if partition:
                made.append(f"--partition={check_name(partition, WORD_PATTERN, 'partition', 'Slurm', 'gpu')}")
            if host:
                made.append(f"--nodelist={check_name(host, HOST_NAME_PATTERN, 'address', 'Slurm', 'node-1')}")
            found.append(made)
        if len(found) > MAX_COMPONENTS:
            params = {"count": len(found), "limit": MAX_COMPONENTS}
            raise InvalidError(Notice(code="launch_many_components", field="placement", params=params))
        yield from found

    def request(self, token: str) -> bytes:
        """What every process of the job reads: all nodes; which one it is it knows by itself."""
        nodes = [self._node(node) for node in self.work.nodes]
        arguments = {"nodes": nodes, "token": token, "log_mib": self.log_mib, "grace_s": STOP_S}
        header = {
            "modules": {**read_modules(), "scheduled": _text("scheduled")},
            "call": "scheduled.run_shared_node",
            "arguments": arguments,
        }
        boot = _text("boot").encode()
        return b"%d\n%s%s\n" % (len(boot), boot, json.dumps(header).encode())

    def _node(self, node: WorkNode) -> dict[str, Any]:
        folder = expand_path(self.folder(node))
        environment = {"MASTER_PORT": str(self.port), "PET_LOG_DIR": str(folder / RANK_LOGS), "PET_TEE": "3"}
        python, script = self.environments[node.environment].python, str(self.root / "bundle" / node.script)
        first = ["bash", "-c", PYTHON_FIRST, "-", str(Path(python).parent), script]
        command = first if "/" in python else ["bash", script]
        return {"folder": str(folder), "command": command, "environment": environment}

    def _kind(self, node: WorkNode) -> tuple[str | None, int, str | None]:
        one = self.environments[node.environment]
        partition = self.settings.partitions.get(one.zone) if one.partition is None else one.partition
        return partition, one.gpus, one.address

    def _job(self, token: str) -> list[str]:
        """Options of every component."""
        made = [f"--job-name={token}", "--no-requeue", f"--output={self.root}/job.log", "--open-mode=append"]
        if self.settings.account is not None:
            made.append(f"--account={check_name(self.settings.account, WORD_PATTERN, 'account', 'Slurm', 'research')}")
        if self.settings.time_limit is not None:
            made.append(
                f"--time={check_name(self.settings.time_limit, TIME_PATTERN, 'time_limit', 'Slurm', '2-00:00:00')}"
            )
        return made

    def _submitted(self, token: str) -> bool:
        """The job is there although sbatch did not say so."""
        try:
            return bool(self.jobs(token))
        except MachineError:
            return False

    def _mark(self, token: str) -> None:
        """A job of this token that begins later ends at once."""
        with contextlib.suppress(FileExistsError):
            (self.root / f"{MARK}{token}").mkdir(parents=True)

    def _seen(self, token: str, jobs: Sequence[tuple[str, str, str]]) -> tuple[Sight, ...]:
        """Every node by its own words and by Slurm's."""
        seen = [self._sight(node, token, jobs) for node in self.work.nodes]
        cause = next((one for one in seen if one.state == "ended" and one.code != 0 and not one.stopped), None)
        if cause is None or is_live(jobs):
            return tuple(seen)
        ended = {"state": "ended", "code": None, "stopped": True, "reason": f"ended with node {cause.number}"}
        return tuple(one.replace(**ended) if one.state == "lost" else one for one in seen)

    def _sight(self, node: WorkNode, token: str, jobs: Sequence[tuple[str, str, str]]) -> Sight:
        folder = expand_path(self.folder(node))
        try:
            state = read_state(folder)
            files = list_files(folder) if state.get("token") == token else {}
        except (OSError, ValueError) as error:
            return Sight(number=node.number, state="unreachable", reason=str(error))
        own = state.get("state") if state.get("token") == token else None
        told = {"number": node.number, "files": files}
        if own == "ended":
            stopped = bool(state.get("stopped"))
            return Sight(**told, state="ended", code=state.get("code"), stopped=stopped, reason=state.get("said"))
        if is_live(jobs):
            why = None if own else f"{jobs[0][1]} ({jobs[0][2]})"
            return Sight(**told, state="running" if own == "running" else "starting", reason=why)
        if own or jobs:
            return Sight(**told, state="lost", reason=jobs[0][1] if jobs else None)
        return Sight(**told, state="none")

    def _unreachable(self, reason: str) -> tuple[Sight, ...]:
        return tuple(Sight(number=node.number, state="unreachable", reason=reason) for node in self.work.nodes)


def is_live(jobs: Sequence[tuple[str, str, str]]) -> bool:
    """One of the jobs has not ended."""
    return any(state not in OVER for _, state, _ in jobs)


def _text(module: str) -> str:
    """A module of `run.remote` as it is sent."""
    return (resources("crosszone.run.remote") / f"{module}.py").read_text(encoding="utf-8")


def _written(path: Path, data: bytes) -> None:
    """A file that is whole whenever it is there."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_bytes(data)
    os.replace(fresh, path)
