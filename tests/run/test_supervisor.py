"""The supervisor of a node, with real processes: it starts once, ends everything, and never loses the truth."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from crosszone.errors import MachineError
from crosszone.run.machine import Local
from crosszone.run.remote.supervisor import NODE_LOG, STATE_FILE, find_processes, is_supervised, poll
from waiting import wait_until

pytestmark = pytest.mark.slow
HERE = Local()
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print("up", child.pid, flush=True)
time.sleep(600)
"""
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)


def start(folder, token: str, program: str, **more):
    return HERE.call(
        "supervisor.start", folder=str(folder), token=token, command=[sys.executable, "-c", program], **more
    )


def stop(folder, token: str, **more):
    return HERE.call("supervisor.stop", folder=str(folder), token=token, **more)


def ended(folder):
    return wait_until(lambda: (now := poll(folder))["state"] == "ended" and now)


def is_up(folder):
    path = folder / NODE_LOG
    return wait_until(lambda: path.exists() and "up" in path.read_text())


@pytest.fixture
def folder(tmp_path):
    """A node's folder; whatever a test leaves running is ended."""
    where = tmp_path / "node-000"
    yield where
    state = poll(where)
    if state["state"] != "none":
        stop(where, state["token"], grace_s=0)


def test_a_program_runs_and_its_exit_status_is_kept(folder):
    started = start(folder, "t.1", "import os; print(os.environ['GREETING']); raise SystemExit(3)", environment={"GREETING": "hello"})  # fmt: skip
    assert started["state"] in ("running", "ended")
    assert ended(folder)["code"] == 3
    assert (folder / NODE_LOG).read_text() == "hello\n"
    wait_until(lambda: not is_supervised(folder))


def test_a_token_starts_once(folder):
    program = f"open({str(folder / 'starts')!r}, 'a').write('x')"
    for _ in range(3):
        start(folder, "t.1", program)
        ended(folder)
    assert (folder / "starts").read_text() == "x"
    start(folder, "t.2", program)
    ended(folder)
    assert (folder / "starts").read_text() == "xx"


def test_of_many_starts_at_once_one_runs(folder):
    program = f"open({str(folder / 'starts')!r}, 'a').write('x'); import time; time.sleep(600)"
    threads = [threading.Thread(target=start, args=(folder, "t.1", program)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until((folder / "starts").exists)
    time.sleep(0.3)
    assert (folder / "starts").read_text() == "x"
    with pytest.raises(MachineError) as refused:
        start(folder, "t.2", "pass")
    assert refused.value.notices[0].code == "agent_busy"


def test_what_a_program_starts_and_leaves_behind_ends_with_it(folder):
    start(folder, "t.1", FAMILY.rsplit("time.sleep", 1)[0])
    assert ended(folder)["code"] == 0
    assert find_processes("t.1", folder) == []


def test_stop_ends_the_whole_family_in_time(folder):
    start(folder, "t.1", FAMILY)
    is_up(folder)
    assert len(find_processes("t.1", folder)) == 2
    state = stop(folder, "t.1")
    assert (state["state"], state["stopped"]) == ("ended", True)
    assert find_processes("t.1", folder) == []


def test_a_program_that_will_not_end_is_ended(folder):
    start(folder, "t.1", STUBBORN, grace_s=0.5)
    is_up(folder)
    state = stop(folder, "t.1", grace_s=0.5)
    assert (state["state"], state["code"], state["stopped"]) == ("ended", -signal.SIGKILL, True)
    assert find_processes("t.1", folder) == []


def test_stopping_twice_and_stopping_what_never_began_is_the_same(folder):
    first = stop(folder, "t.1")
    assert (first["state"], first["stopped"]) == ("ended", True)
    assert stop(folder, "t.1")["state"] == "ended"
    assert start(folder, "t.1", "print('never')")["state"] == "ended"
    assert not (folder / NODE_LOG).exists()


def test_a_killed_supervisor_is_seen_and_what_it_left_is_ended(folder):
    start(folder, "t.1", FAMILY)
    is_up(folder)
    os.kill(poll(folder)["supervisor"], signal.SIGKILL)
    now = wait_until(lambda: (now := poll(folder))["state"] == "lost" and now)
    assert now["token"] == "t.1"
    stop(folder, "t.1")
    assert poll(folder)["state"] == "ended"
    assert find_processes("t.1", folder) == []
    start(folder, "t.2", "print('again')")
    assert ended(folder)["code"] == 0


def test_what_nobody_looks_at_any_more_ends(folder):
    start(folder, "t.1", FAMILY, unseen_s=4)
    for _ in range(15):
        time.sleep(0.3)
        assert poll(folder)["state"] == "running"
    wait_until(lambda: find_processes("t.1", folder) == [])
    assert ended(folder)["stopped"]


def test_a_program_that_is_not_there_says_so(folder):
    HERE.call("supervisor.start", folder=str(folder), token="t.1", command=["/no/such/program"])
    now = ended(folder)
    assert now["code"] == 127
    assert "No such file" in now["said"]


def test_logs_are_bounded_and_can_be_read_to_the_end(folder):
    program = "import sys\nfor i in range(200_000): print(f'{i:09d} ' + 'x' * 50)\nprint('the end')"
    start(folder, "t.1", program, log_mib=1)
    ended(folder)
    path = folder / NODE_LOG
    log_bytes = 200_000 * 61 + 8
    assert path.stat().st_size == log_bytes
    assert path.stat().st_blocks * 512 <= 2**20
    state, data = HERE.call("files.read_bytes", folder=str(folder), name=NODE_LOG, offset=-100)
    assert data.endswith(b"the end\n")
    state, data = HERE.call("files.read_bytes", folder=str(folder), name=NODE_LOG, offset=0, max_bytes=100)
    assert state["offset"] > 0  # what was there has been given back
    assert data.strip(b"\0")


def test_state_is_never_seen_half_written(folder):
    start(folder, "t.1", "pass")
    assert ended(folder)
    assert not (folder / STATE_FILE).with_suffix(".new").exists()
