"""Environments of an ssh config: every host it names. ssh itself says what each name stands for (`ssh -G`)."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from crosszone.errors import FileError, Notice
from crosszone.inputs.environment import Environment

WAIT_S = 10
_ASSIGNED = re.compile(r"^\s*(\w+)\s*=\s*")  # `Host = name` is as good as `Host name`
_DEFAULT_KNOWN = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")


def ssh_hosts(file: Path, *, zone: str) -> dict[str, Environment]:
    """The hosts of an ssh config by name, all in one zone; patterns are not hosts."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise FileError(Notice(code="file_unreadable", value=str(file), params={"reason": reason})) from None
    return {name: _environment(file, name, zone) for name in _names(text)}


def _names(text: str) -> list[str]:
    names: list[str] = []
    for line in text.splitlines():
        try:
            words = shlex.split(_ASSIGNED.sub(r"\1 ", line), comments=True)
        except ValueError:
            continue  # a quote that does not end; ssh will say so
        if words and words[0].lower() == "host":
            names += [word for word in words[1:] if not set(word) & set("*?!") and not word.startswith("-")]
    return list(dict.fromkeys(names))


def _environment(file: Path, name: str, zone: str) -> Environment:
    words = ["ssh", "-F", str(file), "-G", "--", name]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or "ssh does not answer"
        raise FileError(Notice(code="file_unreadable", value=str(file), params={"reason": reason})) from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["ssh -G failed"])[-1]
        raise FileError(Notice(code="file_unreadable", value=str(file), params={"reason": reason}))
    told: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        told.setdefault(key, []).append(value)
    keys = [key for key in told.get("identityfile", []) if Path(key).expanduser().is_file()]
    known = told.get("userknownhostsfile", [""])[0].split()
    return Environment(
        name=name,
        zone=zone,
        runner="ssh",
        address=told["hostname"][0],
        ssh_user=told["user"][0],
        ssh_port=int(told["port"][0]),
        **({"ssh_key": keys[0]} if keys else {}),
        **({"known_hosts": known[0]} if known and known[0] not in _DEFAULT_KNOWN else {}),
    )
