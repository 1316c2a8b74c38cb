"""Read the JSON of a Kineto trace piece by piece, so that its size does not matter.

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
# A mistake this near to the end of what was read may only be an event that goes on in the next chunk.
_MARGIN = 16
_scan: Callable[[str, int], tuple[Any, int]] = json.scanner.make_scanner(json.JSONDecoder(strict=False))  # type: ignore[attr-defined]
_space = re.compile(r"[ \t\r\n]*").match
_match_open_number = re.compile(r"[-+.eE]*\Z").match
_comma = re.compile(r"[ \t\r\n]*,[ \t\r\n]*(?=[^ \t\r\n])").match


class CutOffError(FileError):
    """The file ends in the middle: what came before has been given."""


def iterate_members(chunks: Iterable[bytes], name: str = "<file>", *, key: str = EVENTS) -> Iterator[tuple[str, Any]]:
    """Members of a document: those of the long array as lists of elements, one list after the other.

    `FileError` says which event is wrong; `CutOffError` that the file ends in the middle of it.
    """
    reader = _JsonReader(chunks, name)
    opened = reader.peek()
    if opened == "[":
        yield from _iterate_array(reader, key)
        return
    if opened != "{":
        raise reader.build_error("no JSON object or array" if opened else "the file is empty")
    reader.position += 1
    if reader.peek() == "}":
        reader.position += 1
        reader.check_end()
        return
    while True:
        if reader.peek() != '"':
            raise reader.build_error("expected a name in quotation marks")
        member = reader.read_value()
        reader.expect(":")
        if member == key and reader.peek() == "[":
            yield from _iterate_array(reader, key)
        else:
            yield member, reader.read_value()
        if reader.read_one_of(",}") == "}":
            reader.check_end()
            return


def _iterate_array(reader: _JsonReader, key: str) -> Iterator[tuple[str, Any]]:
    """The elements from `[` to `]`, in lists of those that one chunk holds."""
    reader.position += 1
    reader.inside = True
    if reader.peek() == "]":
        reader.position += 1
        reader.inside = False
        return
    while True:
        batch: list[Any] = []
        reader.peek()
        text, at = reader.text, reader.position
        element: Any
        try:
            while True:
                element, end = _scan(text, at)
                after = _comma(text, end)
                if after is None:
                    break
                batch.append(element)
                at = after.end()
        except (StopIteration, ValueError, RecursionError):
            pass  # the last event goes on in the next chunk, or is wrong: looked at below
        reader.position = at
        reader.count += len(batch)
        if batch:
            yield key, batch
        element = reader.read_value()
        reader.count += 1
        yield key, [element]
        if reader.read_one_of(",]") == "]":
            reader.inside = False
            return


class _JsonReader:
    """The text that has been read and not yet used."""

    def __init__(self, chunks: Iterable[bytes], name: str) -> None:
        self.chunks, self.name = iter(chunks), name
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self.text, self.position = "", 0
        self.count = 0
        """Events used."""
        self.inside = False
        self.ended = False

    def read_more(self) -> bool:
        """Read on, as much as is there already, so that a long value costs few attempts; False at the end."""
        if self.ended:
            return False
        unused_chars = len(self.text) - self.position
        if unused_chars > MAX_VALUE_CHARS:
            params = {"limit_mib": MAX_VALUE_CHARS // 2**20, "event": self.count + 1}
            raise FileError(Notice(code="kineto_event_long", value=self.name, params=params, file=self.name))
        parts, size = [self.text[self.position :]], 0
        while size < max(1, unused_chars) and not self.ended:
            chunk = next(self.chunks, None)
            self.ended = chunk is None
            parts.append(self.decoder.decode(chunk or b"", final=chunk is None))
            size += len(parts[-1])
        self.text, self.position = "".join(parts), 0
        return size > 0 or not self.ended

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            match = _space(self.text, self.position)
            self.position = match.end() if match else self.position
            if self.position < len(self.text):
                return self.text[self.position]
            if not self.read_more():
                return ""

    def read_one_of(self, allowed: str) -> str:
        """The next character, which must be one of these."""
        character = self.peek()
        if not character:
            raise self.build_cut_off_error()
        if character not in allowed:
            raise self.build_error(f"expected {' or '.join(allowed)} and found {character!r}")
        self.position += 1
        return character

    def expect(self, sign: str) -> None:
        self.read_one_of(sign)

    def check_end(self) -> None:
        character = self.peek()
        if character:
            raise self.build_error(f"{character!r} after the end of the document")

    def read_value(self) -> Any:
        """The next value, whole."""
        if not self.peek():
            raise self.build_cut_off_error()
        while True:
            try:
                value, end = _scan(self.text, self.position)
            except (StopIteration, ValueError, RecursionError) as error:
                reason, place = _describe_error(error)
                if place is not None and place + _MARGIN < len(self.text):
                    raise self.build_error(reason) from None
                if not self.read_more():
                    at_end = place is None or place >= len(self.text.rstrip())
                    raise (self.build_cut_off_error() if at_end else self.build_error(reason)) from None
            else:
                # A number that ends where the text ends ("12." of 12.5) may go on, or have been cut with the file.
                if self.text[end - 1] in '}]"' or _match_open_number(self.text, end) is None:
                    self.position = end
                    return value
                if not self.read_more():
                    raise self.build_cut_off_error()

    def build_error(self, reason: str) -> FileError:
        """What to raise when the document is not JSON."""
        code = "kineto_event_bad" if self.inside else "kineto_not_json"
        params = {"reason": reason, "event": self.count + 1}
        return FileError(Notice(code=code, value=self.name, params=params, file=self.name))

    def build_cut_off_error(self) -> CutOffError:
        """What to raise when the document ends too early."""
        params = {"event": self.count + 1}
        return CutOffError(Notice(code="kineto_cut", value=self.name, params=params, file=self.name))


def _describe_error(error: BaseException) -> tuple[str, int | None]:
    """What is wrong and where in the text; None: a string that may only go on."""
    if isinstance(error, json.JSONDecodeError):
        return error.msg, None if error.msg.startswith("Unterminated") else error.pos
    if isinstance(error, StopIteration):
        return "expected a value", int(error.value)
    if isinstance(error, RecursionError):
        return "nested too deeply", -_MARGIN
    return str(error), -_MARGIN  # an integer of too many digits
