"""The files of the page, and nothing but them: joined into assets, or as they stand with `/?debug=1`.

An asset's name holds its hash, so a browser keeps it for good. `index.html`, and each source file at its own address,
is asked for anew each time (ETag) and mostly not sent again.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import threading
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers, QueryParams
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import Scope

from crosszone.web.assets import FOLDER, MIN_GZIP_BYTES, Asset, PageAssets, build_assets

STATIC = Path(__file__).parent / "static"
IMMUTABLE = "public, max-age=31536000, immutable"

_PACKED = ("text/", "application/json", "image/svg+xml")


class PageFiles(StaticFiles):
    """Files below one folder, and the assets made of them."""

    def __init__(self, folder: Path = STATIC) -> None:
        super().__init__(directory=folder, html=True)
        self._packed: dict[str, tuple[str, bytes]] = {}
        self._folder = folder
        self._lock = threading.Lock()
        self._stamp: tuple[tuple[str, int, int], ...] = ()
        self._assets = PageAssets(Asset(b"", "text/html"), {})
        self._previous: dict[str, Asset] = {}  # of the build before, which pages that are open may still ask for

    async def get_response(self, path: str, scope: Scope) -> Response:
        """What a path holds: the index, an asset, or a file."""
        if scope["method"] in ("GET", "HEAD"):
            path = path.replace(os.sep, "/")
            if path in (".", "index.html") and not QueryParams(scope["query_string"]).get("debug"):
                assets = await asyncio.to_thread(self.read_assets)
                return await asyncio.to_thread(_respond, assets.index, scope, "no-cache")
            if path.startswith(f"{FOLDER}/"):
                asset = self._find_asset(path)
                if asset is None:  # nothing has asked this process for the index yet, or the file is of long ago
                    await asyncio.to_thread(self.read_assets)
                    asset = self._find_asset(path)
                if asset is not None:
                    return await asyncio.to_thread(_respond, asset, scope, IMMUTABLE)
        return await super().get_response(path, scope)

    def read_assets(self) -> PageAssets:
        """The assets as the files on disk stand now, made anew when one of them changed."""
        with self._lock:
            stamp = _list_file_stamps(self._folder)
            if stamp != self._stamp:
                assets = build_assets(self._folder)
                self._previous, self._assets, self._stamp = self._assets.files, assets, stamp
            return self._assets

    def _find_asset(self, path: str) -> Asset | None:
        return self._assets.files.get(path) or self._previous.get(path)

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
        headers = Headers(scope=scope)
        packs = stat_result.st_size >= MIN_GZIP_BYTES and plain.headers["content-type"].startswith(_PACKED)
        if packs:
            plain.headers["Vary"] = "Accept-Encoding"
        packs = packs and "gzip" in headers.get("accept-encoding", "") and "range" not in headers
        if packs:
            plain.headers["ETag"] = f'{plain.headers["etag"][:-1]}-gzip"'
        if self.is_not_modified(plain.headers, headers):
            return NotModifiedResponse(plain.headers)
        return self._compress(str(full_path), plain) if packs else plain

    def _compress(self, path: str, plain: FileResponse) -> Response:
        tag = plain.headers["etag"]  # of the time of change and the size
        cached = self._packed.get(path)
        if cached is None or cached[0] != tag:
            cached = self._packed[path] = (tag, gzip.compress(Path(path).read_bytes(), compresslevel=6, mtime=0))
        headers: dict[str, Any] = {
            name: plain.headers[name] for name in ("etag", "last-modified", "vary", "content-type")
        }
        return Response(cached[1], headers={**headers, "Content-Encoding": "gzip"})


def _respond(asset: Asset, scope: Scope, cache_control: str) -> Response:
    request = Headers(scope=scope)
    packs = asset.is_compressible and "gzip" in request.get("accept-encoding", "")
    tag = hashlib.sha256(asset.content).hexdigest()[:24]
    headers = {"ETag": f'"{tag}-gzip"' if packs else f'"{tag}"', "Cache-Control": cache_control}
    if asset.is_compressible:
        headers["Vary"] = "Accept-Encoding"
    if headers["ETag"] in (
        tag_sent.strip().removeprefix("W/") for tag_sent in request.get("if-none-match", "").split(",")
    ):
        return Response(status_code=304, headers=headers)
    if packs:
        headers["Content-Encoding"] = "gzip"
    return Response(asset.gzipped if packs else asset.content, headers=headers, media_type=asset.media_type)


def _list_file_stamps(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Name, time of change and size of every file: other than before, and the assets are made anew."""
    stamps = []
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with suppress(FileNotFoundError):  # an editor's file that is gone already
                status = os.lstat(path)
                stamps.append((path, status.st_mtime_ns, status.st_size))
    return tuple(stamps)
