"""The token of a server that others can reach: made once, kept as a hash, asked of every request to the API.

Who knows the token sends it with each request (`Authorization: Bearer ...`) or trades it once for a session, a cookie
that scripts cannot read. Neither the token nor a session is kept in the clear, here or in a log.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from crosszone.errors import InputError, Notice
from crosszone.inputs.catalogue.entries import home
from crosszone.web.refusals import refused

VARIABLE = "CROSSZONE_TOKEN"
SHORTEST, LONGEST = 16, 200
SESSION_S = 7 * 24 * 3600
MOST_SESSIONS = 10_000
MOST_TRIES, TRIES_S = 10, 60
MOST_ADDRESSES = 10_000

_TOKEN = re.compile(rf"[!-~]{{{SHORTEST},{LONGEST}}}")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Token:
    """What the server compares with, and the token itself where it was made just now and must be told."""

    digest: bytes
    fresh: str | None = None


def token_file() -> Path:
    """Where the hash is kept."""
    return home() / "token.sha256"


def given_token() -> Token | None:
    """The token of the environment, if there is one; it is never stored."""
    given = os.environ.get(VARIABLE)
    if not given:
        return None
    if not _TOKEN.fullmatch(given):
        params = {"shortest": SHORTEST, "longest": LONGEST}
        raise InputError(Notice(code="token_weak", field=VARIABLE, params=params))
    return Token(digest=_digest(given))


def kept_token(*, anew: bool = False) -> Token:
    """The token of earlier starts; the first time, and whenever `anew`, a new one."""
    path = token_file()
    if anew or not path.exists():
        fresh = secrets.token_urlsafe(32)
        _write(path, hashlib.sha256(fresh.encode()).hexdigest())
        return Token(digest=_digest(fresh), fresh=fresh)
    try:
        text = path.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise InputError(Notice(code="token_unreadable", value=str(path), params={"reason": str(error)})) from None
    if not _HASH.fullmatch(text):
        raise InputError(Notice(code="token_unreadable", value=str(path), params={"reason": "not a SHA-256 hash"}))
    return Token(digest=bytes.fromhex(text))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _write(path: Path, text: str) -> None:
    """Write a file only its owner can read, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=path.parent)  # made with mode 600
        with os.fdopen(handle, "w") as file:
            file.write(text + "\n")
        os.replace(part, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(Notice(code="home_unwritable", value=str(path), params={"reason": reason})) from None


@dataclass(kw_only=True)
class Gate:
    """Lets in who knows the token; wrong tries of an address are counted, and too many of them end in a pause."""

    digest: bytes
    now: Callable[[], float] = time.monotonic
    _sessions: dict[bytes, float] = field(default_factory=dict)
    _tries: dict[str, deque[float]] = field(default_factory=dict)

    def check(self, *, authorization: str | None, session: str | None, address: str) -> None:
        """Let a request pass or raise the refusal: 401, or 429 after too many wrong tries."""
        if session is not None and self._sessions.get(_digest(session), 0.0) > self.now():
            return
        if authorization is None:
            raise refused(401, "token_needed", field="Authorization")
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise refused(401, "token_needed", field="Authorization")
        self._compare(token.strip(), address)

    def opened(self, token: str, address: str) -> str:
        """A session for a token."""
        self._compare(token, address)
        while len(self._sessions) >= MOST_SESSIONS:
            self._sessions.pop(next(iter(self._sessions)))
        session = secrets.token_urlsafe(32)
        self._sessions[_digest(session)] = self.now() + SESSION_S
        return session

    def end(self, session: str) -> None:
        """Forget a session."""
        self._sessions.pop(_digest(session), None)

    def _compare(self, token: str, address: str) -> None:
        who, now = _network(address), self.now()
        tries = self._tries.get(who, deque())
        while tries and tries[0] <= now - TRIES_S:
            tries.popleft()
        if len(tries) >= MOST_TRIES:
            raise refused(429, "tries_too_many", most=MOST_TRIES, seconds=TRIES_S)
        if hmac.compare_digest(_digest(token), self.digest):
            return
        tries.append(now)
        self._tries.pop(who, None)
        while len(self._tries) >= MOST_ADDRESSES:
            self._tries.pop(next(iter(self._tries)))
        self._tries[who] = tries
        raise refused(401, "token_wrong", field="token")


def _network(address: str) -> str:
    """Whom wrong tries count against: an address, of IPv6 the network of one customer."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((known, 64), strict=False)) if known.version == 6 else address
