"""A real sshd for keys only, here or inside an emulated node, and how to reach it."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from crosszone.run.machine import Ssh
from waiting import wait_until

PROGRAM = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
needs_sshd = [
    pytest.mark.cluster,
    pytest.mark.skipif(PROGRAM is None or shutil.which("ssh") is None, reason="sshd is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="sshd makes its own folder under /run, as root"),
]


class Keys(NamedTuple):
    """A user's key, a host's key, and the file of host keys that are known."""

    user: Path
    host: Path
    known: Path


def keys(folder: Path) -> Keys:
    """Fresh keys in a folder; no host is known yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("user", "host"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "known").touch()
    return Keys(folder / "user", folder / "host", folder / "known")


@contextlib.contextmanager
def serving(address: str, port: int, host_keys: Keys, folder: Path, prefix: Sequence[str] = ()) -> Iterator[Ssh]:
    """An sshd at an address while the block runs, its host key known; `prefix`: what goes before its command."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"ListenAddress {address}:{port}", f"HostKey {host_keys.host}", f"AuthorizedKeysFile {host_keys.user}.pub"]
    lines += [f"PidFile {folder}/sshd.pid", "StrictModes no", "PasswordAuthentication no", "UsePAM no"]
    lines += ["PermitRootLogin yes", "MaxStartups 50", "MaxSessions 50"]
    (folder / "sshd_config").write_text("\n".join(lines) + "\n")
    Path("/run/sshd").mkdir(exist_ok=True)
    with (folder / "sshd.log").open("wb") as log:
        words = [*prefix, str(PROGRAM), "-D", "-e", "-f", str(folder / "sshd_config")]
        daemon = subprocess.Popen(words, stdout=log, stderr=log)
    kind, key = host_keys.host.with_suffix(".pub").read_text().split()[:2]
    with host_keys.known.open("a") as file:
        file.write(f"[{address}]:{port} {kind} {key}\n" if port != 22 else f"{address} {kind} {key}\n")
    try:
        wait_until(lambda: _answers(address, port))
        yield Ssh(
            name=f"{address}:{port}",
            address=address,
            user=getpass.getuser(),
            port=port,
            identity=str(host_keys.user),
            known_hosts=str(host_keys.known),
        )
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(10)


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port)).close()
    except OSError:
        return False
    return True
