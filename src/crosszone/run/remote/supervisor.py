"""Supervisor: one for each node of a task; it outlives whoever started it, and nothing it started outlives it.

    start(folder, token, ["bash", "nodes/000.sh"])    once for a token: asked again, it says what became of it
    poll(folder)                                      starting, running, ended, lost (killed without a word), or none
    stop(folder, token)                               ends every process of that start

It holds a lock as long as it lives, so whether it lives is never guessed; it keeps `state.json`, adopts what its
processes leave behind, trims the logs, and writes the exit status before it ends. The command is an argument list: no
shell reads what a user typed.

Every process of a start carries its token and its node's folder in its environment. So all are found, whoever their
parent is now, and nodes of one task that share a machine leave each other alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from crosszone.run.remote.common import RemoteError, expand_path

# Files of a node's folder. Other versions of CrossZone read them too: names and keys stay.
STATE_FILE, STOP_FILE, SEEN_FILE = "state.json", "stop", "seen"
LOCK_FILE, STARTING_FILE = "supervisor.lock", "starting.lock"
NODE_LOG = "logs/node.log"
GRACE_S = 6  # How long processes have to end by themselves
PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG = 36, 1
PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
TOKEN_VARIABLE, FOLDER_VARIABLE = "CROSSZONE_TOKEN", "CROSSZONE_FOLDER"
TICK_S = 0.1


def read_state(folder: str | Path) -> dict[str, Any]:
    """What the supervisor has written last; empty: nothing yet."""
    try:
        state: dict[str, Any] = json.loads((expand_path(folder) / STATE_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return state


def write_state(folder: str | Path, **state: Any) -> None:
    """Write the state so that a reader sees the old or the new one, also after a power cut."""
    path = expand_path(folder) / STATE_FILE
    fresh = path.with_suffix(".new")
    with open(fresh, "w", encoding="utf-8") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Hold a lock; it ends with the process, however that ends."""
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_supervised(folder: str | Path) -> bool:
    """The supervisor is alive: it alone holds the exclusive lock, which the kernel releases however it ends.

    A shared lock is tried, so that two callers at once do not take each other for the supervisor.
    """
    try:
        with open(expand_path(folder) / LOCK_FILE) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def poll(folder: str | Path) -> dict[str, Any]:
    """What is there: state starting, running, ended, or lost (the supervisor went without a word); none: nothing."""
    with contextlib.suppress(OSError):
        os.utime(expand_path(folder) / SEEN_FILE)
    state = read_state(folder)
    alive = is_supervised(folder)
    if not alive:
        state = read_state(folder) or state  # it may have ended in between
    if not state:
        return {"state": "none"}
    if not alive and state["state"] != "ended":
        state["state"] = "lost"
        state["left"] = len(find_processes(state["token"], expand_path(folder)))
    return {**state, "now": time.time(), "files": list_files(folder)}


def list_files(folder: str | Path) -> dict[str, int]:
    """Logs and metrics with their sizes."""
    root = expand_path(folder)
    paths = [*root.glob("logs/**/*"), *root.glob("bundle/out/*.jsonl")]
    return {str(path.relative_to(root)): path.stat().st_size for path in sorted(paths) if path.is_file()}


def start(
    folder: str,
    token: str,
    command: Sequence[str],
    environment: dict[str, str] | None = None,
    log_mib: float = 64,
    grace_s: float = GRACE_S,
    unseen_s: float | None = None,
) -> dict[str, Any]:
    """Start a command once for a token, under a supervisor that outlives us; then as `poll`.

    `unseen_s`: it also ends when nobody has polled for so long: for what is of use only to whoever waits for it.
    """
    root = expand_path(folder)
    (root / "logs").mkdir(parents=True, exist_ok=True)
    with lock_file(root / STARTING_FILE):
        state = read_state(root)
        if state.get("token") == token:
            return poll(root)
        if is_supervised(root):
            raise RemoteError("agent_busy", folder=str(root), token=state.get("token"))
        if state.get("token"):
            terminate_all(state["token"], root, grace_s=0)
        with contextlib.suppress(FileNotFoundError):
            (root / STOP_FILE).unlink()
        if unseen_s is not None:
            (root / SEEN_FILE).touch()
        write_state(root, token=token, state="starting", started=time.time())
        read_end, write_end = os.pipe()
        if os.fork() == 0:
            detach(
                root,
                write_end,
                lambda: supervise(root, token, command, environment or {}, log_mib, grace_s, unseen_s, write_end),
            )
        os.close(write_end)  # our copy: with it open, the read below would never end
        os.wait()  # for the first fork, which ends at once
        with os.fdopen(read_end, "rb") as pipe:
            pipe.read()  # it ends when the supervisor holds its lock and has started
    return poll(root)


def detach(root: Path, ready: int, work: Callable[[], int]) -> None:
    """Become a process that belongs to nobody, hold the supervisor's lock and do the work. Never returns.

    `ready`: the only file that stays open.
    """
    status = 1
    try:
        # setsid and a second fork: no terminal, and no session leader that could get one.
        os.setsid()
        if os.fork() > 0:
            os._exit(0)
        os.chdir(str(root))
        os.umask(0o077)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        # ssh waits until every copy of its pipes is closed, so none may stay open in a process that outlives it.
        for descriptor in os.listdir("/proc/self/fd"):
            if int(descriptor) > 2 and int(descriptor) != ready:
                with contextlib.suppress(OSError):
                    os.close(int(descriptor))
        with lock_file(root / LOCK_FILE):
            status = work()
    finally:
        os._exit(status)


def supervise(
    root: Path,
    token: str,
    command: Sequence[str],
    environment: dict[str, str],
    log_mib: float,
    grace_s: float,
    unseen_s: float | None,
    ready: int,
) -> int:
    """Run a command to its end, or until told to stop, and leave no process behind."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans of the command become our children, not init's
    signal.signal(signal.SIGTERM, lambda *_: (root / STOP_FILE).write_text(token, encoding="utf-8"))
    identity = {"token": token, "started": time.time(), "supervisor": os.getpid()}
    log = os.open(str(root / NODE_LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        child = subprocess.Popen(
            command,
            cwd=str(root / "bundle") if (root / "bundle").is_dir() else str(root),
            env={**os.environ, **environment, TOKEN_VARIABLE: token, FOLDER_VARIABLE: str(root)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # A scheduler signals our whole process group; the command must get SIGTERM from us alone, for a second one
            # makes torchrun quit without ending its ranks.
            start_new_session=True,
            # PDEATHSIG: the kernel kills the command when we are killed. Safe here: the supervisor has one thread.
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),  # noqa: PLW1509
        )
    except OSError as error:
        write_state(root, **identity, state="ended", code=127, ended=time.time(), said=str(error))
        os.close(ready)
        return 1
    write_state(root, **identity, state="running", pid=child.pid)
    os.close(ready)
    code: int | None = None
    stopped = False
    while code is None:
        code = reap_children().get(child.pid)
        if code is None and (is_stop_requested(root, token) or is_unwatched(root, unseen_s)):
            stopped = True
            send_signal([child.pid], signal.SIGTERM)  # torchrun hands it on; a second one would kill at once
            code = wait_for_exit(child.pid, grace_s)
            break
        trim_logs(root, log_mib, libc)
        time.sleep(TICK_S)
    survivors = terminate_all(token, root, grace_s=0, first=signal.SIGKILL)
    if code is None:
        code = -signal.SIGKILL
    trim_logs(root, log_mib, libc)
    write_state(root, **identity, state="ended", code=code, stopped=stopped, ended=time.time(), killed=survivors)
    return 0


def is_stop_requested(root: Path, token: str) -> bool:
    """The stop file names this start: one left by an earlier start does not count."""
    try:
        return (root / STOP_FILE).read_text(encoding="utf-8") == token
    except OSError:
        return False


def is_unwatched(root: Path, limit_s: float | None) -> bool:
    """Nobody has polled for longer than that."""
    try:
        return limit_s is not None and time.time() - (root / SEEN_FILE).stat().st_mtime > limit_s
    except OSError:
        return True


def wait_for_exit(pid: int, grace_s: float) -> int | None:
    """The exit status of a child that ends within the grace; None: it did not."""
    until = time.monotonic() + grace_s
    while time.monotonic() < until:
        code = reap_children().get(pid)
        if code is not None:
            return code
        time.sleep(TICK_S)
    return None


def trim_logs(root: Path, log_mib: float, libc: Any) -> None:
    """Free the blocks of the older half of logs that are too long; offsets of what is kept do not change."""
    max_bytes = int(log_mib * 2**20)
    for path in root.glob("logs/**/*"):
        try:
            stat = path.stat()
            if not path.is_file() or stat.st_blocks * 512 <= max_bytes:
                continue
            with open(path, "r+b") as file:
                drop = (stat.st_size - max_bytes // 2) // 4096 * 4096
                if libc.fallocate(file.fileno(), PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(drop)) != 0:
                    file.truncate(0)  # writers go on where they were: what is before takes no room
        except OSError:
            continue


def stop(folder: str, token: str, grace_s: float = GRACE_S) -> dict[str, Any]:
    """End the start of a token, wherever it is; then as `poll`. A later start with this token does nothing."""
    root = expand_path(folder)
    root.mkdir(parents=True, exist_ok=True)
    with lock_file(root / STARTING_FILE):
        state = read_state(root)
        if state.get("token") != token:
            if is_supervised(root):
                raise RemoteError("agent_busy", folder=str(root), token=state.get("token"))
            terminate_all(token, root, grace_s=0)
            write_state(root, token=token, state="ended", code=None, stopped=True, ended=time.time())
            return poll(root)
        (root / STOP_FILE).write_text(token, encoding="utf-8")
    until = time.monotonic() + grace_s + 3
    while is_supervised(root) and time.monotonic() < until:
        time.sleep(TICK_S / 2)
    if poll(root)["state"] != "ended":
        supervisor = read_state(root).get("supervisor")
        if supervisor and is_supervised(root):
            send_signal([supervisor], signal.SIGKILL)
        survivors = terminate_all(token, root, grace_s=0)
        write_state(root, **{**read_state(root), "state": "ended", "code": None, "stopped": True, "killed": survivors})
    return poll(root)


def find_processes(token: str, folder: Path | None = None) -> list[int]:
    """Every process on this machine that carries a token, but for this one; with a folder, those of that node only."""
    variables = {f"{TOKEN_VARIABLE}={token}".encode()} | ({f"{FOLDER_VARIABLE}={folder}".encode()} if folder else set())
    pids = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if variables <= set(file.read().split(b"\0")):
                    pids.append(int(entry))
        except OSError:
            continue  # it has ended, or is not ours
    return pids


def send_signal(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def terminate_all(token: str, folder: Path, grace_s: float, first: int = signal.SIGTERM) -> int:
    """Signal all processes of a node's start, and kill them after the grace period; how many were left then."""
    until = time.monotonic() + grace_s
    send_signal(find_processes(token, folder), first)
    while time.monotonic() < until:
        reap_children()
        if not find_processes(token, folder):
            return 0
        time.sleep(TICK_S)
    survivors = find_processes(token, folder)
    for _ in range(50):  # what is killed may have forked meanwhile
        send_signal(find_processes(token, folder), signal.SIGKILL)
        reap_children()
        if not find_processes(token, folder):
            break
        time.sleep(TICK_S)
    return len(survivors)


def reap_children() -> dict[int, int]:
    """waitpid() every exited child, including orphans we adopted; exit status by pid."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
