"""Kineto JSON: a profiler's trace read piece by piece, so that its size does not matter.

    with open(path, "rb") as file:
        for name, value in iterate_members(iterate_chunks(file)):
            ...                    # ("traceEvents", [event, ...]) again and again, ("schemaVersion", 1), ...

The document is an object with one long array, or that array alone; only a few MiB of it are held at a time. It may be
compressed (gzip), with a limit on what it may expand to.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from crosszone.errors import FileError, Notice

MAX_VALUE_CHARS = 32 * 2**20  # Characters of one event, or of any other member
EVENTS = "traceEvents"
# Characters before the end of what was read within which a mistake may only be an event that goes on.
_MARGIN = 16
_scan: Callable[[str, int], tuple[Any, int]] = json.scanner.make_scanner(json.JSONDecoder(strict=False))  # type: ignore[attr-defined]
_space = re.compile(r"[ \t\r\n]*").match
_begun = re.compile(r"[-+.eE]*\Z").match
_comma = re.compile(r"[ \t\r\n]*,[ \t\r\n]*(?=[^ \t\r\n])").match


class CutOffError(FileError):
    """The file ends in the middle: what came before has been given."""


def iterate_members(chunks: Iterable[bytes], name: str = "<file>", *, key: str = EVENTS) -> Iterator[tuple[str, Any]]:
    """Members of a document: those of the long array as lists of elements, one list after the other.

    `FileError` says which event is wrong; `CutOffError` that the file ends in the middle of it.
    """
    reader = _Reader(chunks, name)
    opened = reader.peek()
    if opened == "[":
        yield from _array(reader, key)
        return
    if opened != "{":
        raise reader.wrong("no JSON object or array" if opened else "the file is empty")
    reader.at += 1
    if reader.peek() == "}":
        reader.at += 1
        reader.nothing_more()
        return
    while True:
        if reader.peek() != '"':
            raise reader.wrong("expected a name in quotation marks")
        member = reader.value()
        reader.expect(":")
        if member == key and reader.peek() == "[":
            yield from _array(reader, key)
        else:
            yield member, reader.value()
        if reader.one_of(",}") == "}":
            reader.nothing_more()
            return


def _array(reader: _Reader, key: str) -> Iterator[tuple[str, Any]]:
    """The elements from `[` to `]`, in lists of those that one chunk holds."""
    reader.at += 1
    reader.inside = True
    if reader.peek() == "]":
        reader.at += 1
        reader.inside = False
        return
    while True:
        batch: list[Any] = []
        reader.peek()
        text, at = reader.text, reader.at
        found: Any
        try:
            while True:
                found, end = _scan(text, at)
                after = _comma(text, end)
                if after is None:
                    break
                batch.append(found)
                at = after.end()
        except (StopIteration, ValueError, RecursionError):
            pass  # the last event goes on in the next chunk, or is wrong: looked at below
        reader.at = at
        reader.count += len(batch)
        if batch:
            yield key, batch
        found = reader.value()
        reader.count += 1
        yield key, [found]
        if reader.one_of(",]") == "]":
            reader.inside = False
            return


class _Reader:
    """The text that has been read and not yet used."""

    def __init__(self, chunks: Iterable[bytes], name: str) -> None:
        self.chunks, self.name = iter(chunks), name
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self.text, self.at = "", 0
        self.count = 0
        """Events used."""
        self.inside = False
        self.ended = False

    def more(self) -> bool:
        """Read on, as much as is there already, so that a long value costs few attempts; False at the end."""
        if self.ended:
            return False
        left = len(self.text) - self.at
        if left > MAX_VALUE_CHARS:
            params = {"limit_mib": MAX_VALUE_CHARS // 2**20, "event": self.count + 1}
            raise FileError(Notice(code="kineto_event_long", value=self.name, params=params, file=self.name))
        parts, size = [self.text[self.at :]], 0
        while size < max(1, left) and not self.ended:
            chunk = next(self.chunks, None)
            self.ended = chunk is None
            parts.append(self.decoder.decode(chunk or b"", final=chunk is None))
            size += len(parts[-1])
        self.text, self.at = "".join(parts), 0
        return size > 0 or not self.ended

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            match = _space(self.text, self.at)
            self.at = match.end() if match else self.at
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def one_of(self, allowed: str) -> str:
        """The next character, which must be one of these."""
        found = self.peek()
        if not found:
            raise self.cut()
        if found not in allowed:
            raise self.wrong(f"expected {' or '.join(allowed)} and found {found!r}")
        self.at += 1
        return found

    def expect(self, sign: str) -> None:
        self.one_of(sign)

    def nothing_more(self) -> None:
        found = self.peek()
        if found:
            raise self.wrong(f"{found!r} after the end of the document")

    def value(self) -> Any:
        """The next value, whole."""
        if not self.peek():
            raise self.cut()
        while True:
            try:
                found, end = _scan(self.text, self.at)
            except (StopIteration, ValueError, RecursionError) as error:
                reason, place = _reason(error)
                if place is not None and place + _MARGIN < len(self.text):
                    raise self.wrong(reason) from None
                if not self.more():
                    over = place is None or place >= len(self.text.rstrip())
                    raise (self.cut() if over else self.wrong(reason)) from None
            else:
                # A number that ends where the text ends ("12." of 12.5) may go on, or have been cut with the file.
                if self.text[end - 1] in '}]"' or _begun(self.text, end) is None:
                    self.at = end
                    return found
                if not self.more():
                    raise self.cut()

    def wrong(self, reason: str) -> FileError:
        """What to raise when the document is not JSON."""
        code = "kineto_event_bad" if self.inside else "kineto_not_json"
        params = {"reason": reason, "event": self.count + 1}
        return FileError(Notice(code=code, value=self.name, params=params, file=self.name))

    def cut(self) -> CutOffError:
        """What to raise when the document ends too early."""
        params = {"event": self.count + 1}
        return CutOffError(Notice(code="kineto_cut", value=self.name, params=params, file=self.name))


def _reason(error: BaseException) -> tuple[str, int | None]:
    """What is wrong and where in the text; None: a string that may only go on."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg, None if error.msg.startswith("Unterminated") else error.pos
    if isinstance(error, StopIteration):
        return "expected a value", int(error.value)
    if isinstance(error, RecursionError):
        return "nested too deeply", -_MARGIN
    return str(error), -_MARGIN  # an integer of too many digits
