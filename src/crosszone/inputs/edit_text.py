"""Changes values in a YAML text and leaves everything else as it was written: comments, layout.

A form changes single fields of a text that a person wrote. Only what differs is written anew, at its place in the
text. The result is read back; where it does not give the wanted values, the whole text is written anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any, NamedTuple

import yaml

from crosszone.errors import InputError
from crosszone.inputs.document import compose_nodes, dump_yaml, parse_document


class _Edit(NamedTuple):
    """Replace the characters from `start` to `end` by `text`."""

    start: int
    end: int
    text: str


class _RewriteError(Exception):
    """The text cannot be changed in place."""


def edit_yaml(text: str, value: Any) -> str:
    """The text with its values changed to `value`: reading the result gives `value`."""
    old = parse_document(text).value
    if _is_same(old, value):
        return text
    if old is None:
        return dump_yaml(value)
    try:
        joined, node = compose_nodes(text)
        changed = _apply_edits(joined, list(_Changes(joined).list_edits(node, old, value)))
        if _is_same(parse_document(changed).value, value):
            return changed
    except (_RewriteError, InputError, yaml.YAMLError):
        pass
    return dump_yaml(value)


def _apply_edits(text: str, edits: list[_Edit]) -> str:
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
    """The edits that turn the values of a node into others."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.seen: set[int] = set()

    def list_edits(self, node: Any, old: Any, new: Any) -> Iterator[_Edit]:
        """The edits after which `node`, which reads as `old`, reads as `new`."""
        if id(node) in self.seen or getattr(node, "style", None) in ("|", ">"):
            raise _RewriteError  # an alias would change in both places; a block scalar has no end of its own
        self.seen.add(id(node))
        if _is_same(old, new):
            return
        if isinstance(node, yaml.MappingNode) and isinstance(new, dict) and old and new:
            yield from self._edit_mapping(node, old, new)
        elif isinstance(node, yaml.SequenceNode) and isinstance(new, list) and old and new:
            yield from self._edit_sequence(node, old, new)
        else:
            yield self._replace_node(node, new)

    def _edit_mapping(self, node: Any, old: dict[str, Any], new: dict[str, Any]) -> Iterator[_Edit]:
        pairs = list(node.value)
        for index, (key, value) in enumerate(pairs):
            if key.value in new:
                yield from self.list_edits(value, old[key.value], new[key.value])
            elif not any(other.value in new for other, _ in pairs):
                raise _RewriteError
            else:
                yield self._remove_entry(node, pairs, index, "")
        added = {key: value for key, value in new.items() if key not in old}
        if added:
            lines = "".join(_format_pair(*pair) for pair in added.items())
            yield self._append(node, pairs[-1][1], _format_flow(added)[1:-1], lines)

    def _edit_sequence(self, node: Any, old: list[Any], new: list[Any]) -> Iterator[_Edit]:
        if len(new) < len(old):
            yield from self._remove_items(node, old, new)
            return
        items = list(node.value)
        for item, before, after in zip(items, old, new, strict=False):
            yield from self.list_edits(item, before, after)
        added = new[len(old) :]
        if added:
            yield self._append(node, items[-1], _format_flow(added)[1:-1], "".join(map(_format_item, added)))

    def _remove_items(self, node: Any, old: list[Any], new: list[Any]) -> Iterator[_Edit]:
        """Remove the items that are gone; where others changed too, the whole list is written anew."""
        before, after = ([json.dumps(item, sort_keys=True) for item in side] for side in (old, new))
        # autojunk would take entries that come often in a long list for noise
        blocks = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
        remaining = {index for block in blocks for index in range(block.a, block.a + block.size)}
        if len(remaining) != len(new):
            yield self._replace_node(node, new)
            return
        items = [(item, item) for item in node.value]
        for index in range(len(items)):
            if index not in remaining:
                yield self._remove_entry(node, items, index, "-")

    def _remove_entry(self, node: Any, entries: list[tuple[Any, Any]], index: int, dash: str) -> _Edit:
        """Remove one entry, given as its first and its last node: its lines, or the entry and its comma."""
        start, end = entries[index][0].start_mark.index, self._find_end(entries[index][1])
        if not node.flow_style:
            line_start = self.text.rfind("\n", 0, start) + 1
            if self.text[line_start:start].strip() != dash:
                raise _RewriteError  # something else begins on the same line
            return _Edit(line_start, min(self._find_line_end(end) + 1, len(self.text)), "")
        if index + 1 < len(entries):
            return _Edit(start, entries[index + 1][0].start_mark.index, "")
        return _Edit(self._find_end(entries[index - 1][1]), end, "")

    def _append(self, node: Any, last: Any, flow: str, block: str) -> _Edit:
        """Add entries after the last one: `flow` on its line, or `block` on lines of their own."""
        end = self._find_end(last)
        if node.flow_style:
            return _Edit(end, end, ", " + flow)
        end = self._find_line_end(end)
        lines = (" " * node.start_mark.column + line for line in block.rstrip("\n").split("\n"))
        return _Edit(end, end, "\n" + "\n".join(lines))

    def _replace_node(self, node: Any, new: Any) -> _Edit:
        start, end = node.start_mark.index, self._find_end(node)
        is_block = not isinstance(node, yaml.ScalarNode) and not node.flow_style
        if is_block and isinstance(new, dict | list) and new:
            indented = dump_yaml(new).rstrip("\n").replace("\n", "\n" + " " * node.start_mark.column)
            return _Edit(start, end, indented)
        space = " " if start == end and start and self.text[start - 1] not in " \n" else ""
        return _Edit(start, end, space + _format_flow(new))

    def _find_line_end(self, start: int) -> int:
        newline = self.text.find("\n", start)
        return len(self.text) if newline < 0 else newline

    def _find_end(self, node: Any) -> int:
        """Where a node ends; a block collection ends with its last value, not with the comments after it."""
        if isinstance(node, yaml.ScalarNode):
            if node.style in ("|", ">"):
                raise _RewriteError
            return int(node.end_mark.index)
        if node.flow_style or not node.value:
            return int(node.end_mark.index)
        last = node.value[-1]
        return self._find_end(last[1] if isinstance(node, yaml.MappingNode) else last)


def _format_flow(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_format_flow(key)}: {_format_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_format_flow, value)) + "]"
    # on one line these end or begin something else; JSON's quotes are YAML's too
    if isinstance(value, str) and re.search(r"[\[\]{},#:\n]", value):
        return json.dumps(value, ensure_ascii=False)
    # PyYAML ends a bare scalar with the marker of a document's end
    return dump_yaml(value).removesuffix("...\n").strip()


def _format_pair(key: str, value: Any) -> str:
    return (
        dump_yaml({key: value}) if isinstance(value, dict | list) else f"{_format_flow(key)}: {_format_flow(value)}\n"
    )


def _format_item(value: Any) -> str:
    return "- " + dump_yaml(value).removesuffix("...\n").rstrip("\n").replace("\n", "\n  ") + "\n"
