"""A PostgreSQL server for the tests: its own folder, a port of its own, no password, gone afterwards."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

USER = "postgres"


def binaries():
    """The newest folder of PostgreSQL's programs, or None."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if programs:
        return programs[-1].parent
    initdb = shutil.which("initdb")
    return Path(initdb).resolve().parent if initdb else None


def account():
    """Who runs it: root may not."""
    if os.geteuid() != 0:
        return {}
    try:
        user = pwd.getpwnam(USER)
    except KeyError:
        pytest.skip(f"PostgreSQL does not run as root, and there is no user {USER}")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@contextlib.contextmanager
def postgres():
    """The URL of a server, without the database's name."""
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    pytest.importorskip("psycopg")
    who = account()
    with tempfile.TemporaryDirectory(prefix="crosszone-postgres-", dir="/tmp") as temporary:
        folder = Path(temporary)
        if who:
            os.chown(folder, who["user"], who["group"])
        data = folder / "data"
        setup = [programs / "initdb", "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-sync"]
        _run(setup, folder, who)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=100"
        start = [programs / "pg_ctl", "-D", data, "-w", "-t", "60", "-l", folder / "log", "-o", options, "start"]
        _run(start, folder, who)
        try:
            yield f"postgresql://tester:secret-word@127.0.0.1:{port}"
        finally:
            _run([programs / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop"], folder, who)


def _run(command, folder, who):
    with (folder / "output").open("ab") as output:
        done = subprocess.run(
            list(map(str, command)), cwd=folder, stdout=output, stderr=output, check=False, timeout=120, **who
        )
    assert done.returncode == 0, (folder / "output").read_text("utf-8", "replace")
