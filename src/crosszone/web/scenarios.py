"""A scenario that came over HTTP: read like a file, but it may only name files beside the opened one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crosszone.errors import InputError, InvalidError, Notice
from crosszone.inputs.document import Document, field_text, parse_document
from crosszone.inputs.scenario import Loaded, read_scenario
from crosszone.inputs.summary import describe

TEXT = "<text>"
"""The `file` of notices about the text of a request."""

_FILE_FIELDS = (("model", "hf_config"), ("cluster", "file"))


@dataclass(frozen=True)
class Reader:
    """Describes scenarios of requests; `base` is the folder that files they name must lie in."""

    base: Path

    def described_text(self, text: str, language: str) -> dict[str, Any]:
        """What follows from YAML or JSON text."""
        return self._described(lambda: parse_document(text, self._file), language)

    def described_fields(self, fields: Mapping[str, Any], language: str) -> dict[str, Any]:
        """What follows from a scenario given as plain values."""
        return self._described(lambda: Document(dict(fields), self._file), language)

    @property
    def _file(self) -> str:
        return str(self.base / TEXT)

    def _described(self, made: Callable[[], Document], language: str) -> dict[str, Any]:
        try:
            document = made()
            for path in _FILE_FIELDS:
                self._check_reference(document, path)
            scenario, read, _ = read_scenario(document)
        except InputError as error:
            raise self._renamed(error) from None
        named = Document(document.value, TEXT, document.lines)
        return describe(Loaded(scenario, [self._own(notice) for notice in read], named), language)

    def _check_reference(self, document: Document, path: tuple[str, str]) -> None:
        outer = document.value.get(path[0]) if isinstance(document.value, Mapping) else None
        named = outer.get(path[1]) if isinstance(outer, Mapping) else None
        if not isinstance(named, str):
            return
        base = self.base.resolve()
        try:
            inside = (base / named).resolve().is_relative_to(base)
        except (OSError, ValueError, RuntimeError):
            inside = False
        if not inside:
            notice = Notice(code="file_outside", field=field_text(path), value=named)
            raise InvalidError(notice.at(document.file, document.line(path)))

    def _renamed(self, error: InputError) -> InputError:
        return type(error)(*(self._own(notice) for notice in error.notices))

    def _own(self, notice: Notice) -> Notice:
        """The same notice with the text called `<text>`."""
        return notice.at(TEXT, notice.line) if notice.file == self._file else notice
