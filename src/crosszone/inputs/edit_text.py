"""Changes a YAML text so that it reads as other values, and leaves everything else as it was written: comments, layout.

A form changes single fields of a text that a person wrote. Only what differs is written anew, at the place where it
stands; the result is read back, and where it would not give the wanted values, all is written anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import yaml

from crosszone.errors import InputError
from crosszone.inputs.document import dump_yaml, parse_document, text_nodes


class _Edit(NamedTuple):
    """Characters `start` to `end` give way to `text`."""

    start: int
    end: int
    text: str


class _RewriteError(Exception):
    """The text cannot be changed in place."""


def edited_text(text: str, value: Any) -> str:
    """The text with its values changed to `value`; reading it gives `value`."""
    old = parse_document(text).value
    if _is_same(old, value):
        return text
    if old is None:
        return dump_yaml(value)
    try:
        joined, node = text_nodes(text)
        changed = _applied(joined, list(_Changes(joined).of(node, old, value)))
        if _is_same(parse_document(changed).value, value):
            return changed
    except (_RewriteError, InputError, yaml.YAMLError):
        pass
    return dump_yaml(value)


def _applied(text: str, edits: list[_Edit]) -> str:
    # from the end backwards, so that the places of earlier edits still hold
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _is_same(before: Any, after: Any) -> bool:
    """Equal, where true is not 1 but 1.0 is."""
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(_is_same(before[key], after[key]) for key in before)
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(_is_same, before, after))
    return isinstance(before, bool) == isinstance(after, bool) and before == after


class _Changes:
    """The edits that turn what a node says into something else."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.seen: set[int] = set()

    def of(self, node: Any, old: Any, new: Any) -> Iterator[_Edit]:
        if id(node) in self.seen or getattr(node, "style", None) in ("|", ">"):
            raise _RewriteError  # an alias would change in both places; a block scalar has no end of its own
        self.seen.add(id(node))
        if _is_same(old, new):
            return
        if isinstance(node, yaml.MappingNode) and isinstance(new, dict) and old and new:
            yield from self._mapping(node, old, new)
        elif isinstance(node, yaml.SequenceNode) and isinstance(new, list) and old and new:
            yield from self._sequence(node, old, new)
        else:
            yield self._replaced(node, new)

    def _mapping(self, node: Any, old: dict[str, Any], new: dict[str, Any]) -> Iterator[_Edit]:
        pairs = list(node.value)
        for at, (key, value) in enumerate(pairs):
            if key.value in new:
                yield from self.of(value, old[key.value], new[key.value])
            elif not any(other.value in new for other, _ in pairs):
                raise _RewriteError
            else:
                yield self._without_key(node, pairs, at)
        added = {key: value for key, value in new.items() if key not in old}
        if not added:
            return
        end = self._end(pairs[-1][1])
        if node.flow_style:
            yield _Edit(end, end, ", " + _flow(added)[1:-1])
        else:
            yield self._new_lines(end, node.start_mark.column, "".join(_pair(*pair) for pair in added.items()))

    def _without_key(self, node: Any, pairs: list[Any], at: int) -> _Edit:
        key, value = pairs[at]
        if not node.flow_style:
            return self._without_lines(key.start_mark.index, self._end(value), "")
        if at + 1 < len(pairs):
            return _Edit(key.start_mark.index, pairs[at + 1][0].start_mark.index, "")
        return _Edit(self._end(pairs[at - 1][1]), self._end(value), "")

    def _sequence(self, node: Any, old: list[Any], new: list[Any]) -> Iterator[_Edit]:
        items = list(node.value)
        if len(new) < len(old):
            yield from self._fewer(node, old, new)
            return
        for item, before, after in zip(items, old, new, strict=False):
            yield from self.of(item, before, after)
        added = new[len(old) :]
        if not added:
            return
        end = self._end(items[-1])
        if node.flow_style:
            yield _Edit(end, end, ", " + ", ".join(map(_flow, added)))
        else:
            yield self._new_lines(end, node.start_mark.column, "".join(map(_item, added)))

    def _fewer(self, node: Any, old: list[Any], new: list[Any]) -> Iterator[_Edit]:
        """Items that are gone; what is left must be as it was."""
        before, after = ([json.dumps(item, sort_keys=True) for item in side] for side in (old, new))
        # autojunk would take entries that come often in a long list for noise
        blocks = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
        kept_indices = {at for block in blocks for at in range(block.a, block.a + block.size)}
        if len(kept_indices) != len(new):
            yield self._replaced(node, new)
            return
        for at, item in enumerate(node.value):
            if at in kept_indices:
                continue
            if not node.flow_style:
                yield self._without_lines(item.start_mark.index, self._end(item), "- ")
            elif at + 1 < len(old):
                yield _Edit(item.start_mark.index, node.value[at + 1].start_mark.index, "")
            else:
                yield _Edit(self._end(node.value[at - 1]), self._end(item), "")

    def _replaced(self, node: Any, new: Any) -> _Edit:
        start, end = node.start_mark.index, self._end(node)
        block = not isinstance(node, yaml.ScalarNode) and not node.flow_style
        if block and isinstance(new, dict | list) and new:
            indented = dump_yaml(new).rstrip("\n").replace("\n", "\n" + " " * node.start_mark.column)
            return _Edit(start, end, indented)
        space = " " if start == end and start and self.text[start - 1] not in " \n" else ""
        return _Edit(start, end, space + _flow(new))

    def _new_lines(self, after: int, column: int, block: str) -> _Edit:
        """A block beneath the line that `after` stands on."""
        end = self._line_end(after)
        lines = (" " * column + line for line in block.rstrip("\n").split("\n"))
        return _Edit(end, end, "\n" + "\n".join(lines))

    def _without_lines(self, start: int, end: int, dash: str) -> _Edit:
        first = self.text.rfind("\n", 0, start) + 1
        if self.text[first:start].strip() != dash.strip():
            raise _RewriteError  # something else begins on the same line
        return _Edit(first, min(self._line_end(end) + 1, len(self.text)), "")

    def _line_end(self, at: int) -> int:
        newline = self.text.find("\n", at)
        return len(self.text) if newline < 0 else newline

    def _end(self, node: Any) -> int:
        """Where a node ends; a block collection ends with its last value, not with the comments after it."""
        if isinstance(node, yaml.ScalarNode):
            if node.style in ("|", ">"):
                raise _RewriteError
            return int(node.end_mark.index)
        if node.flow_style or not node.value:
            return int(node.end_mark.index)
        last = node.value[-1]
        return self._end(last[1] if isinstance(node, yaml.MappingNode) else last)


def _flow(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    # on one line these end or begin something else; JSON's quotes are YAML's too
    if isinstance(value, str) and re.search(r"[\[\]{},#:\n]", value):
        return json.dumps(value, ensure_ascii=False)
    # PyYAML ends a bare scalar with the marker of a document's end
    return dump_yaml(value).removesuffix("...\n").strip()


def _pair(key: str, value: Any) -> str:
    return dump_yaml({key: value}) if isinstance(value, dict | list) else f"{_flow(key)}: {_flow(value)}\n"


def _item(value: Any) -> str:
    return "- " + dump_yaml(value).removesuffix("...\n").rstrip("\n").replace("\n", "\n  ") + "\n"
