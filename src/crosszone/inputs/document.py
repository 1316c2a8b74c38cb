"""YAML (and so JSON) documents: read within bounds and with line numbers, written so that they read back the same.

Scalars follow the YAML 1.2 core schema: `no` is a word, `1e12` a number. Aliases count as what they expand to, so a
few lines cannot unfold into gigabytes. Tags are refused.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from crosszone.errors import FileError, InputError, Notice

# Bounds for files from anyone, as a server gets them; 100 zones with a link for every pair are some 30,000 values.
MAX_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 64
MAX_VALUES = 200_000
# Longer ones are text: int() takes quadratic time, and refuses more than 4300 digits with an error of its own.
MAX_DIGITS = 40

FieldPath: TypeAlias = tuple[str | int, ...]

# libyaml's where PyYAML was built with it: the parser in Python is many times slower.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

_INT = re.compile(r"[-+]?[0-9]+(_[0-9]+)*")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(_[0-9]+)*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", "+.inf", ".Inf", "+.Inf"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


@dataclass(frozen=True)
class Document:
    """A parsed file: plain values, and the line each field stands on."""

    value: Any
    file: str = ""
    lines: Mapping[FieldPath, int] = field(default_factory=dict)

    def find_line(self, path: FieldPath) -> int | None:
        """The line of a field, or of the closest enclosing field that has one."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return None

    def place_notice(self, notice: Notice) -> Notice:
        """The notice with this file and the line of its field, unless it already has a place."""
        if notice.file is not None or not self.file:
            return notice
        return notice.with_place(self.file, self.find_line(parse_field_path(notice.field)))

    @contextmanager
    def place_errors(self) -> Iterator[None]:
        """Give the notices of errors that are raised inside their line in this file."""
        try:
            yield
        except InputError as error:
            raise type(error)(*map(self.place_notice, error.notices)) from None


def read_document(path: str | Path) -> Document:
    """Parse a YAML or JSON file; `-` is standard input."""
    return parse_document(read_text(path), "<stdin>" if str(path) == "-" else str(path))


def read_text(path: str | Path) -> str:
    """The text of a file (`-`: standard input), within the bounds of a document."""
    name = "<stdin>" if str(path) == "-" else str(path)
    try:
        if name == "<stdin>":
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open(path, "rb") as stream:
                data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise FileError(Notice(code="file_missing", value=name, file=name)) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(Notice(code="file_unreadable", value=name, params={"reason": reason}, file=name)) from None
    if len(data) > MAX_BYTES:
        raise _build_too_large_error(name)
    try:
        # -sig: editors on Windows put a byte order mark first
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FileError(Notice(code="file_not_utf8", value=name, file=name, line=line)) from None


def _build_too_large_error(name: str) -> FileError:
    return FileError(Notice(code="file_too_large", value=name, params={"limit_mib": MAX_BYTES // 2**20}, file=name))


def parse_document(text: str, file: str = "<text>") -> Document:
    """Parse YAML text."""
    # "replace": a lone surrogate has no UTF-8; the parser says so below, with its place
    if len(text.encode("utf-8", "replace")) > MAX_BYTES:
        raise _build_too_large_error(file)
    builder = _Builder(file)
    try:
        for event in yaml.parse(_join_surrogates(text), Loader=_Loader):
            builder.add_event(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        params = {"reason": error.problem or error.context or "syntax"}
        # an error at the end of the text may be marked below its last line
        line = min(mark.line, text.count("\n")) + 1 if mark else None
        if line and re.match(r" *\t", text.split("\n")[line - 1]):
            raise FileError(Notice(code="yaml_tab", file=file, line=line)) from None
        raise FileError(Notice(code="file_not_yaml", params=params, file=file, line=line)) from None
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise FileError(Notice(code="file_not_yaml", params={"reason": reason}, file=file)) from None
    return Document(builder.root, file, builder.lines)


def compose_nodes(text: str) -> tuple[str, Any]:
    """A text equal to the given one except for escaped characters, and its nodes with their places in it."""
    joined = _join_surrogates(text)
    return joined, yaml.compose(joined, Loader=_Loader)


def dump_yaml(value: Any) -> str:
    """YAML text of plain values; reading it back gives an equal value."""
    text: str = yaml.dump(
        value, Dumper=_YamlWriter, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None
    )
    return text


def dump_json(value: Any) -> str:
    """Indented JSON text of plain values."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def replace_file(path: Path, text: str) -> None:
    """Write a file so that programs that read it meanwhile see the old or the new text, never half."""
    # in the same folder: `os.replace` is atomic only within a file system
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(temporary, path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def _join_surrogates(text: str) -> str:
    """JSON text with escaped surrogate pairs, which YAML does not know, as the characters they stand for."""

    def decode_pair(match: re.Match[str]) -> str:
        high, low = int(match[1], 16), int(match[2], 16)
        return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))

    return re.sub(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", decode_pair, text, flags=re.IGNORECASE)


def parse_scalar(text: str) -> Any:
    """The value of an unquoted scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text) if len(text) <= MAX_DIGITS else text
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def format_field_path(path: FieldPath) -> str:
    """`("zones", 0, "name")` as `zones[0].name`."""
    parts: list[str] = []
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        else:
            parts.append(f".{step}" if parts else step)
    return "".join(parts)


def parse_field_path(text: str) -> FieldPath:
    """`zones[0].name` as `("zones", 0, "name")`."""
    steps = re.findall(r"\[(\d+)\]|([^.\[\]]+)", text)
    return tuple(int(index) if index else key for index, key in steps)


@dataclass
class _Open:
    """A list or mapping whose end has not been read yet."""

    container: Any
    path: FieldPath
    anchor: str | None
    size: int = 1
    key: str | None = None


class _Builder:
    """Builds plain values from YAML events without recursion, counting what aliases expand to."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.lines: dict[FieldPath, int] = {}
        self._stack: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self.root: Any = None  # of an empty text
        self._documents = 0

    def add_event(self, event: Any) -> None:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            anchor = str(event.anchor)
            if anchor not in self._anchors:
                self._raise_error("yaml_alias", line, anchor=anchor)
            self._add(*self._anchors[anchor], line)
        elif isinstance(event, yaml.ScalarEvent):
            self._add_scalar(event, line)
        elif isinstance(event, yaml.CollectionStartEvent):
            self._open_collection(event, line)
        elif isinstance(event, yaml.CollectionEndEvent):
            closed = self._stack.pop()
            if closed.anchor:
                self._anchors[closed.anchor] = (closed.container, closed.size)
            if self._stack:
                self._add_size(self._stack[-1], closed.size - 1, line)
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                self._raise_error("yaml_two_documents", line)

    def _add_scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        if event.tag not in (None, "!", "tag:yaml.org,2002:str"):
            self._raise_error("yaml_tag", line, tag=event.tag)
        # implicit[0]: neither quoted nor tagged; what stands in quotes stays text
        value = parse_scalar(event.value) if event.implicit[0] and event.tag is None else event.value
        if self._stack and isinstance(self._stack[-1].container, dict) and self._stack[-1].key is None:
            self._set_key(event.value, line)
            return
        if event.anchor:
            self._anchors[event.anchor] = (value, 1)
        self._add(value, 1, line)

    def _set_key(self, key: str, line: int) -> None:
        top = self._stack[-1]
        if key in top.container:
            first = self.lines.get((*top.path, key))
            path = format_field_path((*top.path, key))
            raise FileError(
                Notice(code="duplicate_key", field=path, value=key, params={"first": first}, file=self.file, line=line)
            )
        top.key = key
        self.lines[(*top.path, key)] = line

    def _open_collection(self, event: Any, line: int) -> None:
        if event.tag not in (None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            self._raise_error("yaml_tag", line, tag=event.tag)
        if len(self._stack) >= MAX_DEPTH:
            self._raise_error("yaml_too_deep", line, limit=MAX_DEPTH)
        if self._stack and isinstance(self._stack[-1].container, dict) and self._stack[-1].key is None:
            self._raise_error("yaml_key", line)
        container: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
        path = self._build_next_path()
        self._add(container, 1, line)
        self._stack.append(_Open(container, path, event.anchor))

    def _build_next_path(self) -> FieldPath:
        if not self._stack:
            return ()
        top = self._stack[-1]
        return (*top.path, top.key if isinstance(top.container, dict) and top.key is not None else len(top.container))

    def _add(self, value: Any, size: int, line: int) -> None:
        if not self._stack:
            self.root = value
            self.lines[()] = line
            return
        top = self._stack[-1]
        if isinstance(top.container, dict):
            if top.key is None:
                self._raise_error("yaml_key", line)
            top.container[top.key] = value
            top.key = None
        else:
            self.lines[(*top.path, len(top.container))] = line
            top.container.append(value)
        self._add_size(top, size, line)

    def _add_size(self, top: _Open, size: int, line: int) -> None:
        top.size += size
        # all open frames: a container's size reaches the one around it only when it is closed
        if sum(frame.size for frame in self._stack) > MAX_VALUES:
            self._raise_error("yaml_too_many", line, limit=MAX_VALUES)

    def _raise_error(self, code: str, line: int, **params: Any) -> None:
        raise FileError(Notice(code=code, params=params, file=self.file, line=line))


class _YamlWriter(_Dumper):  # type: ignore[misc]
    """Writes strings quoted whenever they would read back as something else."""

    # A value used twice is written twice: people read these files, and anchors are hard to edit.
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _write_str(writer: Any, value: str) -> Any:
    style = None if isinstance(parse_scalar(value), str) else "'"
    return writer.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_YamlWriter.add_representer(str, _write_str)
