"""Supervisor: one for each node of a task; it outlives whoever started it, and nothing it started outlives it.

    start(folder, token, ["bash", "nodes/000.sh"])    once for a token: asked again, it says what became of it
    look(folder)                                      starting, running, ended, lost (killed without a word), or none
    stop(folder, token)                               ends every process of that start

It holds a lock as long as it lives, so whether it lives is never guessed; it keeps `state.json`, adopts what its
processes leave behind, bounds the logs, and writes the exit status before it ends. Words are an argument list: no shell
reads what a user typed.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from crosszone.run.remote.place import place
from crosszone.run.remote.processes import FOLDER, TICK_S, TOKEN, end_all, processes_of, reap, send_signal
from crosszone.run.remote.refusal import Refusal

STATE, LOCK, STARTING, STOP, SEEN = "state.json", "supervisor.lock", "starting.lock", "stop", "seen"
LOG = "logs/node.log"
GRACE_S = 6  # How long processes have to end by themselves
PR_SET_CHILD_SUBREAPER, PR_SET_PDEATHSIG = 36, 1
PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


def read_state(folder: str | Path) -> dict[str, Any]:
    """What the supervisor has written last; empty: nothing yet."""
    try:
        found: dict[str, Any] = json.loads((place(folder) / STATE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def write_state(folder: str | Path, **state: Any) -> None:
    """Write the state so that a reader sees the old or the new one, also after a power cut."""
    path = place(folder) / STATE
    fresh = path.with_suffix(".new")
    with open(fresh, "w", encoding="utf-8") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock; it ends with the process, however that ends."""
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_supervised(folder: str | Path) -> bool:
    """The supervisor lives: it alone holds its lock for itself."""
    try:
        with open(place(folder) / LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def look(folder: str | Path) -> dict[str, Any]:
    """What is there: state starting, running, ended, or lost (the supervisor went without a word); none: nothing."""
    with contextlib.suppress(OSError):
        os.utime(place(folder) / SEEN)
    state = read_state(folder)
    alive = is_supervised(folder)
    if not alive:
        state = read_state(folder) or state  # it may have ended in between
    if not state:
        return {"state": "none"}
    if not alive and state["state"] != "ended":
        state["state"] = "lost"
        state["left"] = len(processes_of(state["token"], place(folder)))
    return {**state, "now": time.time(), "files": sizes(folder)}


def sizes(folder: str | Path) -> dict[str, int]:
    """Logs and metrics with their sizes."""
    root = place(folder)
    found = [*root.glob("logs/**/*"), *root.glob("bundle/out/*.jsonl")]
    return {str(one.relative_to(root)): one.stat().st_size for one in sorted(found) if one.is_file()}


def start(
    folder: str,
    token: str,
    words: Sequence[str],
    environment: dict[str, str] | None = None,
    log_mib: float = 64,
    grace_s: float = GRACE_S,
    unseen_s: float | None = None,
) -> dict[str, Any]:
    """Start words once for a token, under a supervisor that outlives us; then as `look`.

    `unseen_s`: it also ends when nobody has looked for so long, for what is of use only to whoever waits for it.
    """
    root = place(folder)
    (root / "logs").mkdir(parents=True, exist_ok=True)
    with locked(root / STARTING):
        state = read_state(root)
        if state.get("token") == token:
            return look(root)
        if is_supervised(root):
            raise Refusal("agent_busy", folder=str(root), token=state.get("token"))
        if state.get("token"):
            end_all(state["token"], root, grace_s=0)
        with contextlib.suppress(FileNotFoundError):
            (root / STOP).unlink()
        if unseen_s is not None:
            (root / SEEN).touch()
        write_state(root, token=token, state="starting", started=time.time())
        read_end, write_end = os.pipe()
        if os.fork() == 0:
            detach_and_supervise(root, token, words, environment or {}, log_mib, grace_s, unseen_s, write_end)
        os.close(write_end)
        os.wait()
        with os.fdopen(read_end, "rb") as pipe:
            pipe.read()  # it ends when the supervisor holds its lock and has started
    return look(root)


def detach_and_supervise(
    root: Path,
    token: str,
    words: Sequence[str],
    environment: dict[str, str],
    log_mib: float,
    grace_s: float,
    unseen_s: float | None,
    ready: int,
) -> None:
    """Become a supervisor that belongs to nobody. Never returns."""
    status = 1
    try:
        os.setsid()
        if os.fork() > 0:
            os._exit(0)
        os.chdir(str(root))
        os.umask(0o077)
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        for other in os.listdir("/proc/self/fd"):
            if int(other) > 2 and int(other) != ready:
                with contextlib.suppress(OSError):
                    os.close(int(other))
        with locked(root / LOCK):
            status = supervise(root, token, words, environment, log_mib, grace_s, unseen_s, ready)
    finally:
        os._exit(status)


def supervise(
    root: Path,
    token: str,
    words: Sequence[str],
    environment: dict[str, str],
    log_mib: float,
    grace_s: float,
    unseen_s: float | None,
    ready: int,
) -> int:
    """Run words to their end, or until told to stop, and leave nothing behind."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: (root / STOP).write_text(token, encoding="utf-8"))
    begun = {"token": token, "started": time.time(), "supervisor": os.getpid()}
    log = os.open(str(root / LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        child = subprocess.Popen(
            words,
            cwd=str(root / "bundle") if (root / "bundle").is_dir() else str(root),
            env={**os.environ, **environment, TOKEN: token, FOLDER: str(root)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            # the supervisor has one thread
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),  # noqa: PLW1509
        )
    except OSError as error:
        write_state(root, **begun, state="ended", code=127, ended=time.time(), said=str(error))
        os.close(ready)
        return 1
    write_state(root, **begun, state="running", pid=child.pid)
    os.close(ready)
    code: int | None = None
    stopped = False
    while code is None:
        code = reap().get(child.pid)
        if code is None and (stop_is_asked(root, token) or is_unseen(root, unseen_s)):
            stopped = True
            send_signal([child.pid], signal.SIGTERM)  # torchrun hands it on; twice would kill at once
            code = wait_for(child.pid, grace_s)
            break
        bound_logs(root, log_mib, libc)
        time.sleep(TICK_S)
    left = end_all(token, root, grace_s=0, first=signal.SIGKILL)
    if code is None:
        code = -signal.SIGKILL
    bound_logs(root, log_mib, libc)
    write_state(root, **begun, state="ended", code=code, stopped=stopped, ended=time.time(), killed=left)
    return 0


def stop_is_asked(root: Path, token: str) -> bool:
    """Somebody asked this very start to stop."""
    try:
        return (root / STOP).read_text(encoding="utf-8") == token
    except OSError:
        return False


def is_unseen(root: Path, limit_s: float | None) -> bool:
    """Nobody has looked for longer than that."""
    try:
        return limit_s is not None and time.time() - (root / SEEN).stat().st_mtime > limit_s
    except OSError:
        return True


def wait_for(pid: int, grace_s: float) -> int | None:
    """The exit status of a child that ends within the grace; None: it did not."""
    until = time.monotonic() + grace_s
    while time.monotonic() < until:
        code = reap().get(pid)
        if code is not None:
            return code
        time.sleep(TICK_S)
    return None


def bound_logs(root: Path, log_mib: float, libc: Any) -> None:
    """Give back the room of the older part of logs that have grown too long; what is kept stays where it was."""
    most = int(log_mib * 2**20)
    for path in root.glob("logs/**/*"):
        try:
            about = path.stat()
            if not path.is_file() or about.st_blocks * 512 <= most:
                continue
            with open(path, "r+b") as file:
                drop = (about.st_size - most // 2) // 4096 * 4096
                if libc.fallocate(file.fileno(), PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(drop)) != 0:
                    file.truncate(0)  # writers go on where they were: what is before takes no room
        except OSError:
            continue


def stop(folder: str, token: str, grace_s: float = GRACE_S) -> dict[str, Any]:
    """End the start of a token, wherever it is; then as `look`. A later start with this token does nothing."""
    root = place(folder)
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / STARTING):
        state = read_state(root)
        if state.get("token") != token:
            if is_supervised(root):
                raise Refusal("agent_busy", folder=str(root), token=state.get("token"))
            end_all(token, root, grace_s=0)
            write_state(root, token=token, state="ended", code=None, stopped=True, ended=time.time())
            return look(root)
        (root / STOP).write_text(token, encoding="utf-8")
    until = time.monotonic() + grace_s + 3
    while is_supervised(root) and time.monotonic() < until:
        time.sleep(TICK_S / 2)
    if look(root)["state"] != "ended":
        send_signal(
            [pid for pid in [read_state(root).get("supervisor")] if pid and is_supervised(root)], signal.SIGKILL
        )
        left = end_all(token, root, grace_s=0)
        write_state(root, **{**read_state(root), "state": "ended", "code": None, "stopped": True, "killed": left})
    return look(root)
