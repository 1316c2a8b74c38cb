"""The batch script on a real Slurm: several slurmd on this machine are the nodes of two partitions."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from deploy.launching import STUB, bundle, fields, group, node_rank, stubbed
from waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol")
NODES = {"north": ("n1", "n2", "n3"), "south": ("s1", "s2")}
"""Slurm nodes of each partition; those of the north have two GPUs, those of the south one."""
GPUS = {"north": 2, "south": 1}

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.geteuid() != 0, reason="slurmd starts processes as other users, so it runs as root"),
    pytest.mark.skipif(
        any(shutil.which(one, path=f"{os.environ['PATH']}:/usr/sbin") is None for one in PROGRAMS),
        reason="Slurm and munge are not installed (Debian: slurmctld slurmd slurm-client munge)",
    ),
]


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def configuration(folder: Path, ports: list[int]) -> str:
    host = socket.gethostname().split(".")[0]
    lines = [
        "ClusterName=test",
        f"SlurmctldHost={host}(127.0.0.1)",
        f"SlurmctldPort={ports.pop()}",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        "CredType=cred/munge",
        f"AuthInfo=socket={folder}/munge/socket",
        f"StateSaveLocation={folder}/state",
        f"SlurmdSpoolDir={folder}/spool-%n",
        f"SlurmctldPidFile={folder}/slurmctld.pid",
        f"SlurmdPidFile={folder}/slurmd-%n.pid",
        f"SlurmctldLogFile={folder}/slurmctld.log",
        f"SlurmdLogFile={folder}/slurmd-%n.log",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "SchedulerParameters=bf_interval=1,sched_interval=1",
        "SwitchType=switch/none",
        "MpiDefault=none",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/none",
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "KillWait=2",
        "GresTypes=gpu",
    ]
    for partition, names in NODES.items():
        for name in names:
            place = f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports.pop()}"
            lines.append(f"{place} CPUs=2 RealMemory=100 Gres=gpu:{GPUS[partition]}")
        default = "YES" if partition == "north" else "NO"
        lines.append(f"PartitionName={partition} Nodes={','.join(names)} Default={default} State=UP")
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """A cluster of five nodes; its daemons end with the tests. Yields the environment of its commands."""
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    (folder / "munge").mkdir(mode=0o700)
    (folder / "state").mkdir()
    key = folder / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    for number in range(max(GPUS.values())):
        (folder / f"gpu{number}").touch()
    gpus = [
        f"NodeName={','.join(names)} Name=gpu File={folder}/gpu[0-{GPUS[partition] - 1}]"
        for partition, names in NODES.items()
    ]
    (folder / "gres.conf").write_text("\n".join(gpus) + "\n")
    (folder / "slurm.conf").write_text(configuration(folder, free_ports(1 + sum(map(len, NODES.values())))))
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin"}
    munge = [f"--{name}-file={folder}/munge/{name}" for name in ("key", "pid", "log", "seed")]
    munge += [f"--socket={folder}/munge/socket", "--foreground", "--force", "--num-threads=2"]
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> None:
        with (folder / "daemons.log").open("ab") as log:
            started.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))

    try:
        start("munged", *munge)
        wait_until((folder / "munge" / "socket").exists)
        start("slurmctld", "-D", "-i")
        wait_until(lambda: "is UP" in asked(env, "scontrol", "ping"))
        for names in NODES.values():
            for name in names:
                start("slurmd", "-D", "-N", name)
        wait_until(lambda: asked(env, "sinfo", "-h", "-N", "-t", "idle").count("\n") == 5)
        yield env
    finally:
        for daemon in reversed(started):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def asked(env, *command: str) -> str:
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout


def submitted(env, folder: Path, *arguments: str) -> tuple[int, str]:
    """Submit the bundle's job as its README says, wait for its end; status and output."""
    done = subprocess.run(
        ["sbatch", "--wait", "job.sbatch", *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Submitted" in done.stdout, done.stderr
    (output,) = folder.glob("slurm-*.out")
    return done.returncode, output.read_text()


def told(output: str) -> dict[int, list[str]]:
    """Task -> what its stub said (srun --label marks each line with the task's number)."""
    found: dict[int, list[str]] = {}
    for line in output.splitlines():
        task, colon, rest = line.partition(": ")
        if colon and task.strip().isdigit():
            found.setdefault(int(task), []).append(rest)
    return found


TWO_ZONES = {"a": [group(2, 2)], "b": [group(2, 1)]}
PARTITIONS = {"a": "north", "b": "south"}


def test_a_job_over_two_partitions_runs_every_nodes_own_script(slurm, tmp_path):
    bundle("slurm", fields(TWO_ZONES), partitions=PARTITIONS, time_limit="5:00").write(tmp_path / "bundle")
    env = slurm | {"PATH": stubbed(tmp_path / "stubs")["PATH"] + ":/usr/sbin"}
    only = subprocess.run(
        ["sbatch", "--test-only", "job.sbatch"],
        cwd=tmp_path / "bundle",
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert only.returncode == 0, only.stderr
    status, output = submitted(env, tmp_path / "bundle", "--steps", "5 6")
    assert status == 0, output
    tasks = told(output)
    assert sorted(tasks) == [0, 1, 2, 3]
    for task, lines in tasks.items():
        words = [line.removeprefix("word=") for line in lines if line.startswith("word=")]
        value = dict(pairwise(words))
        assert value["--nnodes"] == "4"
        assert value["--node-rank"] == str(task)
        assert value["--nproc-per-node"] == ("2" if task < 2 else "1")
        assert value["--master-addr"] == "n1"
        assert value["--master-port"] == "29500"
        assert words[-2:] == ["--steps", "5\\ 6"]


@pytest.mark.long
def test_named_hosts_are_the_nodes_that_run(slurm, tmp_path):
    """The plan's first node is n3, although Slurm puts n2 first."""
    hosts = [{"address": f"127.0.1.{n}", "name": f"n{n}"} for n in (3, 2)]
    zones = {"a": [group(2, 2, hosts=hosts)]}
    bundle("slurm", fields(zones), gres=False).write(tmp_path / "bundle")
    stub = STUB + 'echo "on=$SLURMD_NODENAME"\n'
    env = slurm | {"PATH": stubbed(tmp_path / "stubs", stub)["PATH"] + ":/usr/sbin"}
    status, output = submitted(env, tmp_path / "bundle")
    assert status == 0, output
    tasks = told(output)
    planned = {lines.split("on=")[1].split()[0]: node_rank(lines) for lines in map("\n".join, tasks.values())}
    assert planned == {"n3": 0, "n2": 1}
    assert all("master=127.0.1.3:29500" in lines for lines in tasks.values())


def test_one_failing_node_fails_the_job_and_ends_the_others(slurm, tmp_path):
    bundle("slurm", fields(TWO_ZONES), partitions=PARTITIONS).write(tmp_path / "bundle")
    stub = '#!/usr/bin/env bash\n[ "$SLURM_PROCID" = 3 ] && exit 7\nsleep 300\n'
    env = slurm | {"PATH": stubbed(tmp_path / "stubs", stub)["PATH"] + ":/usr/sbin"}
    status, output = submitted(env, tmp_path / "bundle")
    assert status != 0
    assert "exit code 7" in output.lower()


@pytest.mark.long
def test_a_job_that_no_partition_can_hold_is_refused_by_the_trial(slurm, tmp_path):
    bundle("slurm", fields({"a": [group(4, 2)]}), partitions={"a": "north"}).write(tmp_path / "bundle")
    only = subprocess.run(
        ["sbatch", "--test-only", "job.sbatch"],
        cwd=tmp_path / "bundle",
        env=slurm,
        capture_output=True,
        text=True,
        check=False,
    )
    assert only.returncode != 0
