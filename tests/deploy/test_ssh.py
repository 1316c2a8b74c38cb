"""start-ssh.sh against a real sshd: four addresses of this machine are the nodes."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.launching import bundle, fields, group, node_rank, stubbed
from deploy.test_slurm import free_ports
from effort import mostly_long
from waiting import wait_until

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(SSHD is None or shutil.which("ssh") is None, reason="sshd is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="sshd makes its own folder under /run, as root"),
]
HANGS = """#!/usr/bin/env bash
echo "$$" >"$PIDS/$MASTER_ADDR-$$"
if [ -e "$PIDS/fail" ]; then
  case "$*" in *'--node-rank 2 '*)  # once all four are there
    until [ "$(find "$PIDS" -name '1*' | wc -l)" = 4 ]; do sleep 0.05; done
    exit 7 ;;
  esac
fi
sleep 300 & wait
"""
ZONES = {
    "a": [group(2, 2, hosts=[{"address": f"127.0.0.{n}", "interface": "lo"} for n in (1, 2)])],
    "b": [group(2, 1, hosts=[{"address": f"127.0.0.{n}", "interface": "lo"} for n in (3, 4)])],
}


@pytest.fixture
def node(tmp_path):
    """An sshd for keys only; yields its port and the environment that start-ssh.sh needs to reach it."""
    key, host, pids = tmp_path / "key", tmp_path / "host", tmp_path / "pids"
    pids.mkdir()
    for one in (key, host):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", one], check=True)
    (port,) = free_ports(1)
    path = stubbed(tmp_path / "stubs")["PATH"]
    lines = [f"ListenAddress 127.0.0.{n}:{port}" for n in (1, 2, 3, 4)]
    lines += [f"HostKey {host}", f"AuthorizedKeysFile {key}.pub", f"PidFile {tmp_path}/sshd.pid", "StrictModes no"]
    lines += ["PasswordAuthentication no", "UsePAM no", "PermitRootLogin yes", "MaxStartups 50"]
    lines += [f"SetEnv PATH={path} PIDS={pids}"]
    (tmp_path / "sshd_config").write_text("\n".join(lines) + "\n")
    Path("/run/sshd").mkdir(exist_ok=True)
    with (tmp_path / "sshd.log").open("wb") as log:
        daemon = subprocess.Popen([str(SSHD), "-D", "-e", "-f", tmp_path / "sshd_config"], stdout=log, stderr=log)
    extra = f"-i {key} -o IdentitiesOnly=yes -o UserKnownHostsFile={tmp_path}/known"
    try:
        wait_until((tmp_path / "sshd.pid").exists)
        yield port, {**os.environ, "CROSSZONE_SSH": extra}
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(10)


def made(tmp_path: Path, port: int, **more) -> Path:
    folder = tmp_path / "bundle"
    user = getpass.getuser()
    settings = {"workdir": str(tmp_path / "it's a $(touch pwned) folder"), "user": user, "ssh_port": port} | more
    bundle("ssh", fields(ZONES), **settings).write(folder)
    return folder


def started(folder: Path, env, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(folder / "start-ssh.sh"), *arguments]
    return subprocess.run(command, env=env, cwd=folder.parent, capture_output=True, text=True, check=False)


def alive(tmp_path: Path) -> list[str]:
    """Stubs that still run."""
    return [
        one.read_text() for one in (tmp_path / "pids").glob("1*") if Path(f"/proc/{one.read_text().strip()}").exists()
    ]


def test_every_node_runs_its_script_with_the_arguments_as_they_are(tmp_path, node):
    port, env = node
    done = started(made(tmp_path, port), env, "--no-verify", "--out", 'it\'s $(touch pwned) "x"\n2', "")
    assert done.returncode == 0, done.stdout + done.stderr
    for number in range(4):
        mine = "\n".join(line[6:] for line in done.stdout.splitlines() if line.startswith(f"[{number:03d}] "))
        assert node_rank(mine) == number
        assert "master=127.0.0.1:29500" in mine
        words = [line.removeprefix("word=") for line in mine.splitlines() if line.startswith("word=")]
        assert words[-3:] == ["--out", "$'it\\'s $(touch pwned) \"x\"\\n2'", "''"]
    assert "all 4 nodes finished" in done.stdout
    assert not list(tmp_path.rglob("pwned"))
    remote = tmp_path / "it's a $(touch pwned) folder"
    assert (remote / "train.py").read_text() == (tmp_path / "bundle" / "train.py").read_text()
    assert not list(remote.glob(".crosszone*"))


@pytest.mark.long
def test_a_bundle_may_run_in_its_own_folder(tmp_path, node):
    port, env = node
    folder = made(tmp_path, port, workdir=str(tmp_path / "bundle"))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = started(folder, env, "--no-verify")
    assert done.returncode == 0, done.stdout + done.stderr
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long
def test_nodes_that_fail_the_check_are_not_started(tmp_path, node):
    port, env = node
    done = started(made(tmp_path, port, python=sys.executable), env)
    assert done.returncode == 1
    assert "torch: not installed" in done.stdout
    assert "verify failed" in done.stderr
    assert "word=" not in done.stdout


def test_one_failing_node_ends_the_others(tmp_path, node):
    port, env = node
    stubbed(tmp_path / "stubs", HANGS)
    (tmp_path / "pids" / "fail").touch()
    done = started(made(tmp_path, port), env, "--no-verify")
    assert done.returncode == 7, done.stdout + done.stderr
    assert "node 002 failed (7)" in done.stderr
    assert len(list((tmp_path / "pids").glob("1*"))) == 4
    assert not alive(tmp_path)


@pytest.mark.parametrize("by", mostly_long(["stop-ssh.sh", "TERM"], "stop-ssh.sh"))
def test_stopping_ends_all_nodes(tmp_path, node, by):
    port, env = node
    stubbed(tmp_path / "stubs", HANGS)
    folder = made(tmp_path, port)
    with subprocess.Popen(
        ["bash", str(folder / "start-ssh.sh"), "--no-verify"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        wait_until(lambda: len(alive(tmp_path)) == 4)
        again = started(folder, env, "--no-verify", "--no-copy")
        assert again.returncode == 3
        assert "runs already" in again.stdout
        assert len(alive(tmp_path)) == 4, "a second start must not end the first"
        if by == "TERM":
            run.terminate()
        else:
            subprocess.run(["bash", str(folder / by)], env=env, capture_output=True, check=True)
        assert run.wait() != 0
    assert not alive(tmp_path)
    assert not list((tmp_path / "it's a $(touch pwned) folder").glob(".crosszone*"))


@pytest.mark.long
def test_a_stale_pid_file_ends_nobody(tmp_path, node):
    port, env = node
    folder = made(tmp_path, port)
    remote = tmp_path / "it's a $(touch pwned) folder"
    remote.mkdir()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        (remote / ".crosszone-000.pid").write_text(f"{other.pid}\n")
        subprocess.run(["bash", str(folder / "stop-ssh.sh")], env=env, capture_output=True, check=True)
        assert other.poll() is None
        other.kill()
