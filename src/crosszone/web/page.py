"""The files of the page, and nothing but them; compressed once, not at each request."""

from __future__ import annotations

import gzip
import mimetypes
import os
import re
from collections.abc import Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

STATIC = Path(__file__).parent / "static"
SMALLEST = 1000  # Bytes below which compressing gains nothing

# Modules that the frame of the page needs, and those of the first view.
_FRAME, _VIEW = ("app.js",), ("scenario/pane.js", "plan/place.js")
_MODULES = "<!-- modules -->"
_IMPORT = re.compile(r"""^(?:import|export)\b[^"']*?from "(\.[^"]+)";""", re.MULTILINE)
_PACKED = ("text/", "application/json", "image/svg+xml")


class Page(StaticFiles):
    """Files below one folder; a browser asks each time whether one changed (ETag) and mostly hears that it did not."""

    def __init__(self, folder: Path = STATIC) -> None:
        super().__init__(directory=folder, html=True)
        self._packed: dict[str, tuple[str, bytes]] = {}
        self._folder = folder

    @cached_property
    def _modules(self) -> bytes:
        """Links by which a browser fetches all modules of the first view at once, not one import after the other."""
        frame = modules(self._folder, _FRAME)
        view = [path for path in modules(self._folder, _VIEW) if path not in frame]
        links = [f'<link rel="modulepreload" href="/{path}">' for path in frame]
        links += [f'<link rel="modulepreload" href="/{path}" fetchpriority="low">' for path in view]
        return "\n".join(links).encode()

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """Find a file; a path the file system refuses is a file that is not there."""
        try:
            return super().lookup_path(path)
        except (OSError, ValueError):
            return "", None

    def file_response(
        self, full_path: str | PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """The file as the request wants it: not at all if it knows it, compressed if it may be."""
        plain = FileResponse(full_path, status_code=status_code, stat_result=stat_result)
        asked = Headers(scope=scope)
        packs = stat_result.st_size >= SMALLEST and plain.headers["content-type"].startswith(_PACKED)
        if packs:
            plain.headers["Vary"] = "Accept-Encoding"
        packs = packs and "gzip" in asked.get("accept-encoding", "") and "range" not in asked
        if packs:
            plain.headers["ETag"] = f'{plain.headers["etag"][:-1]}-gzip"'
        if self.is_not_modified(plain.headers, asked):
            return NotModifiedResponse(plain.headers)
        return self._compressed(str(full_path), plain) if packs else plain

    def _compressed(self, path: str, plain: FileResponse) -> Response:
        tag = plain.headers["etag"]  # of the time of change and the size
        known = self._packed.get(path)
        if known is None or known[0] != tag:
            content = Path(path).read_bytes()
            if path.endswith("index.html"):
                content = content.replace(_MODULES.encode(), self._modules)
            known = self._packed[path] = (tag, gzip.compress(content, compresslevel=6, mtime=0))
        kept: dict[str, Any] = {name: plain.headers[name] for name in ("etag", "last-modified", "vary", "content-type")}
        return Response(known[1], headers={**kept, "Content-Encoding": "gzip"})


def modules(folder: Path, first: Sequence[str]) -> list[str]:
    """The modules of a page that the first ones import, they included, in the order in which they are met."""
    found: dict[str, None] = {}
    waiting = list(first)
    while waiting:
        path = waiting.pop(0)
        if path in found or not (folder / path).is_file():
            continue
        found[path] = None
        source = (folder / path).read_text("utf-8")
        waiting += [os.path.normpath(Path(path).parent / name) for name in _IMPORT.findall(source)]
    return list(found)


mimetypes.add_type("text/javascript", ".js")
