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
from crosszone.inputs.catalogue.entries import find_home
from crosszone.web.refusals import refuse

TOKEN_VARIABLE = "CROSSZONE_TOKEN"
SHORTEST_TOKEN, LONGEST_TOKEN = 16, 200
SESSION_S = 7 * 24 * 3600
MOST_SESSIONS = 10_000
MOST_TRIES, TRIES_S = 10, 60
MOST_ADDRESSES = 10_000

_TOKEN = re.compile(rf"[!-~]{{{SHORTEST_TOKEN},{LONGEST_TOKEN}}}")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class ServerToken:
    """What the server compares with, and the token itself where it was made just now, so that it can be printed."""

    digest: bytes
    fresh: str | None = None


def get_token_file() -> Path:
    """Where the hash is kept."""
    return find_home() / "token.sha256"


def read_environment_token() -> ServerToken | None:
    """The token of the environment, if there is one; it is never stored."""
    token = os.environ.get(TOKEN_VARIABLE)
    if not token:
        return None
    if not _TOKEN.fullmatch(token):
        params = {"shortest": SHORTEST_TOKEN, "longest": LONGEST_TOKEN}
        raise InputError(Notice(code="token_weak", field=TOKEN_VARIABLE, params=params))
    return ServerToken(digest=_hash_token(token))


def load_token(*, replace: bool = False) -> ServerToken:
    """The token of earlier starts; a new one the first time, and to `replace` it."""
    path = get_token_file()
    if replace or not path.exists():
        fresh = secrets.token_urlsafe(32)
        _write_private(path, hashlib.sha256(fresh.encode()).hexdigest())
        return ServerToken(digest=_hash_token(fresh), fresh=fresh)
    try:
        text = path.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise InputError(Notice(code="token_unreadable", value=str(path), params={"reason": str(error)})) from None
    if not _HASH.fullmatch(text):
        raise InputError(Notice(code="token_unreadable", value=str(path), params={"reason": "not a SHA-256 hash"}))
    return ServerToken(digest=bytes.fromhex(text))


def _hash_token(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _write_private(path: Path, text: str) -> None:
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
class TokenAuth:
    """Lets in who knows the token; wrong tries of an address are counted, and too many of them end in a pause."""

    digest: bytes
    now: Callable[[], float] = time.monotonic
    _sessions: dict[bytes, float] = field(default_factory=dict)
    _tries: dict[str, deque[float]] = field(default_factory=dict)

    def check(self, *, authorization: str | None, session: str | None, address: str) -> None:
        """Let a request pass or raise the refusal: 401, or 429 after too many wrong tries."""
        if session is not None and self._sessions.get(_hash_token(session), 0.0) > self.now():
            return
        if authorization is None:
            raise refuse(401, "token_needed", field="Authorization")
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise refuse(401, "token_needed", field="Authorization")
        self._compare(token.strip(), address)

    def open_session(self, token: str, address: str) -> str:
        """A session for a token."""
        self._compare(token, address)
        while len(self._sessions) >= MOST_SESSIONS:
            self._sessions.pop(next(iter(self._sessions)))
        session = secrets.token_urlsafe(32)
        self._sessions[_hash_token(session)] = self.now() + SESSION_S
        return session

    def end(self, session: str) -> None:
        """Forget a session."""
        self._sessions.pop(_hash_token(session), None)

    def _compare(self, token: str, address: str) -> None:
        network, now = _group_address(address), self.now()
        tries = self._tries.get(network, deque())
        while tries and tries[0] <= now - TRIES_S:
            tries.popleft()
        if len(tries) >= MOST_TRIES:
            raise refuse(429, "tries_too_many", most=MOST_TRIES, seconds=TRIES_S)
        if hmac.compare_digest(_hash_token(token), self.digest):
            return
        tries.append(now)
        self._tries.pop(network, None)
        while len(self._tries) >= MOST_ADDRESSES:
            self._tries.pop(next(iter(self._tries)))
        self._tries[network] = tries
        raise refuse(401, "token_wrong", field="token")


def _group_address(address: str) -> str:
    """Whom wrong tries count against: an address, of IPv6 the network of one customer."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.version == 6 else address
