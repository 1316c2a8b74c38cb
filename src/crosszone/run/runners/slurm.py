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
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from crosszone.deploy.launchers import check_name
from crosszone.deploy.launchers.slurm import HOST_NAME_PATTERN, MAX_COMPONENTS, TIME_PATTERN, WORD_PATTERN
from crosszone.deploy.settings import LaunchSettings
from crosszone.errors import InvalidError, MachineError, Notice
from crosszone.run.imports import run_scheduler_command
from crosszone.run.machine import BOOT, Local, pack_request
from crosszone.run.remote.common import expand_path
from crosszone.run.remote.supervisor import list_files, read_state
from crosszone.run.runners.runner import (
    END_S,
    RANK_LOGS,
    STOP_S,
    NodeStatus,
    TaskNodes,
    build_node_command,
    build_rank_environment,
    mark_stopped,
    stop_lost_nodes,
)
from crosszone.run.work import WorkNode

# States of a job that has ended (squeue(1) of Slurm 22.05, JOB STATE CODES).
END_STATES = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
    "SPECIAL_EXIT", "TIMEOUT",
)  # fmt: skip
# How long the last state of a node may take to be seen on a shared file system (NFS caches attributes) after its job.
SETTLE_S = 5.0
POLL_S = 0.5
SCRIPT, REQUEST, STARTED_PREFIX = "job.sh", "request", "started."
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
class SlurmRunner(TaskNodes):
    """The nodes of one task, as one job of Slurm; the folder of the first holds the bundle of all."""

    settings: LaunchSettings = field(default_factory=LaunchSettings)
    log_mib: float = 64

    @property
    def root(self) -> Path:
        """The folder of the first node, here."""
        return expand_path(self.get_folder(self.work.nodes[0]))

    def prepare(self) -> None:
        """As `Runner.prepare`."""
        folder, checksum = str(self.root), self.work.checksum
        Local().call("files.put_bundle", payload=self.work.archive, folder=folder, checksum=checksum)

    def start(self, token: str) -> None:
        """As `Runner.start`."""
        if (self.root / f"{STARTED_PREFIX}{token}").exists() or self.list_jobs(token):
            return
        components = list(self.build_components())
        write_file(self.root / SCRIPT, JOB.encode())
        write_file(self.root / REQUEST, self.build_request(token))
        arguments = [str(self.root / SCRIPT), str(self.root), token, self.python, str(len(components)), BOOT]
        options: list[str] = []
        for number, component in enumerate(components):
            options += [*([":"] if number else []), *self._build_job_options(token), *component]
        # What no partition can ever hold would wait for ever: the trial says so at once.
        run_scheduler_command(
            ["sbatch", "--test-only", *options, *arguments], missing="slurm_missing", failed="slurm_refused"
        )
        try:
            run_scheduler_command(
                ["sbatch", "--parsable", *options, *arguments], missing="slurm_missing", failed="slurm_refused"
            )
        except MachineError:
            if not self._is_submitted(token):
                self._mark_started(token)  # should the job come after all, it ends at once
                raise

    def poll(self, token: str) -> tuple[NodeStatus, ...]:
        """As `Runner.poll`."""
        try:
            jobs = self.list_jobs(token)
        except MachineError as error:
            return self.make_unreachable(error)
        is_job_live = is_live(jobs)
        statuses = self._poll_nodes(token, jobs)
        until = time.monotonic() + SETTLE_S
        while (
            not is_job_live
            and time.monotonic() < until
            and any(status.state in ("starting", "lost") for status in statuses)
        ):
            time.sleep(POLL_S)
            statuses = self._poll_nodes(token, jobs)
        return statuses

    def stop(self, token: str) -> tuple[NodeStatus, ...]:
        """As `Runner.stop`."""
        self._mark_started(token)
        until = time.monotonic() + END_S
        try:
            while is_live(jobs := self.list_jobs(token)):
                if time.monotonic() > until:
                    return self.make_statuses("unreachable", f"Slurm still ends job {jobs[0][0]} ({jobs[0][1]})")
                run_scheduler_command(["scancel", f"--name={token}"], missing="slurm_missing", failed="slurm_failed")
                time.sleep(POLL_S)
        except MachineError as error:
            return self.make_unreachable(error)
        return mark_stopped(self._poll_nodes(token, []))

    def read(self, number: int, name: str, offset: int, max_bytes: int) -> tuple[dict[str, Any], bytes]:
        """As `Runner.read`."""
        folder = self.get_folder(self.work.nodes[number])
        about, data = Local().call("files.read_bytes", folder=folder, name=name, offset=offset, max_bytes=max_bytes)
        return about, data

    def clean(self) -> None:
        """As `Runner.clean`; a job that still runs is not deleted, one whose nodes have ended is waited for."""
        until = time.monotonic() + END_S
        for mark in self.root.glob(f"{STARTED_PREFIX}*") if self.root.is_dir() else ():
            token = mark.name.removeprefix(STARTED_PREFIX)
            while is_live(jobs := self.list_jobs(token)):
                # Between the end of the last node and the end of the job lie some moments of Slurm's.
                if time.monotonic() < until and all(
                    status.state == "ended" for status in self._poll_nodes(token, jobs)
                ):
                    time.sleep(0.5)
                    continue
                params = {"machine": "Slurm", "folder": str(self.root), "token": token}
                raise MachineError(Notice(code="agent_busy", params=params))
        for node in reversed(self.work.nodes):
            Local().call("files.delete_folder", folder=self.get_folder(node), expected_name=f"node-{node.number:03d}")

    def list_jobs(self, token: str) -> list[tuple[str, str, str]]:
        """Jobs of a token that Slurm knows: id, state, why it waits. An ended one is forgotten after MinJobAge."""
        command = ["squeue", "--noheader", f"--name={token}", "--states=all", "--format=%i|%T|%r"]
        lines = run_scheduler_command(command, missing="slurm_missing", failed="slurm_failed").splitlines()
        rows = [line.strip().split("|", 2) for line in lines if line.count("|") >= 2]
        return [(id, state, why) for id, state, why in rows]

    def build_components(self) -> Iterator[list[str]]:
        """What each run of equal nodes is asked for by; a node with an address is that node of Slurm's."""
        components = []
        for key, equal_nodes in groupby(self.work.nodes, key=self._group_key):
            partition, gpus, host = key
            options = [f"--nodes={len(list(equal_nodes))}", "--ntasks-per-node=1", "--exclusive", "--mem=0"]
            if gpus and self.settings.gres:
                options.append(f"--gres=gpu:{gpus}")
            if partition:
                options.append(f"--partition={check_name(partition, WORD_PATTERN, 'partition', 'Slurm', 'gpu')}")
            if host:
                options.append(f"--nodelist={check_name(host, HOST_NAME_PATTERN, 'address', 'Slurm', 'node-1')}")
            components.append(options)
        if len(components) > MAX_COMPONENTS:
            params = {"count": len(components), "limit": MAX_COMPONENTS}
            raise InvalidError(Notice(code="launch_many_components", field="placement", params=params))
        yield from components

    def build_request(self, token: str) -> bytes:
        """What every process of the job reads: all nodes; which one it is it knows by itself."""
        nodes = [self._build_node(node) for node in self.work.nodes]
        arguments = {"nodes": nodes, "token": token, "log_mib": self.log_mib, "grace_s": STOP_S}
        return pack_request("scheduled.run_shared_node", arguments, b"", "scheduled")

    def _build_node(self, node: WorkNode) -> dict[str, Any]:
        folder = expand_path(self.get_folder(node))
        python, script = self.environments[node.environment].python, str(self.root / "bundle" / node.script)
        environment = build_rank_environment(self.port, str(folder / RANK_LOGS))
        return {"folder": str(folder), "command": build_node_command(python, script), "environment": environment}

    def _group_key(self, node: WorkNode) -> tuple[str | None, int, str | None]:
        environment = self.environments[node.environment]
        partition = (
            self.settings.partitions.get(environment.zone) if environment.partition is None else environment.partition
        )
        return partition, environment.gpus, environment.address

    def _build_job_options(self, token: str) -> list[str]:
        """Options of every component."""
        options = [f"--job-name={token}", "--no-requeue", f"--output={self.root}/job.log", "--open-mode=append"]
        if self.settings.account is not None:
            options.append(
                f"--account={check_name(self.settings.account, WORD_PATTERN, 'account', 'Slurm', 'research')}"
            )
        if self.settings.time_limit is not None:
            options.append(
                f"--time={check_name(self.settings.time_limit, TIME_PATTERN, 'time_limit', 'Slurm', '2-00:00:00')}"
            )
        return options

    def _is_submitted(self, token: str) -> bool:
        """The job is there although sbatch did not say so."""
        try:
            return bool(self.list_jobs(token))
        except MachineError:
            return False

    def _mark_started(self, token: str) -> None:
        """A job of this token that begins later ends at once."""
        with contextlib.suppress(FileExistsError):
            (self.root / f"{STARTED_PREFIX}{token}").mkdir(parents=True)

    def _poll_nodes(self, token: str, jobs: Sequence[tuple[str, str, str]]) -> tuple[NodeStatus, ...]:
        """Every node by its own report and by Slurm's."""
        statuses = [self._node_status(node, token, jobs) for node in self.work.nodes]
        return tuple(statuses) if is_live(jobs) else stop_lost_nodes(statuses)

    def _node_status(self, node: WorkNode, token: str, jobs: Sequence[tuple[str, str, str]]) -> NodeStatus:
        folder = expand_path(self.get_folder(node))
        try:
            state = read_state(folder)
            files = list_files(folder) if state.get("token") == token else {}
        except (OSError, ValueError) as error:
            return NodeStatus(number=node.number, state="unreachable", reason=str(error))
        own_state = state.get("state") if state.get("token") == token else None
        common = {"number": node.number, "files": files}
        if own_state == "ended":
            stopped = bool(state.get("stopped"))
            return NodeStatus(
                **common, state="ended", code=state.get("code"), stopped=stopped, reason=state.get("said")
            )
        if is_live(jobs):
            why_waiting = None if own_state else f"{jobs[0][1]} ({jobs[0][2]})"
            return NodeStatus(**common, state="running" if own_state == "running" else "starting", reason=why_waiting)
        if own_state or jobs:
            return NodeStatus(**common, state="lost", reason=jobs[0][1] if jobs else None)
        return NodeStatus(**common, state="none")


def is_live(jobs: Sequence[tuple[str, str, str]]) -> bool:
    """One of the jobs has not ended."""
    return any(state not in END_STATES for _, state, _ in jobs)


def write_file(path: Path, data: bytes) -> None:
    """A file that is whole whenever it is there."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_bytes(data)
    os.replace(fresh, path)
