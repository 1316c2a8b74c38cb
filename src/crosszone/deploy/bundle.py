"""Bundle: the files that start a plan on a framework, with what each option does and what each node runs.

Option: one thing a framework, a launcher or the system is told, and why.

Upload: a bundle as a machine takes it: a tar, the same for the same bundle, and its checksum.

    pack_upload(bundle).data, pack_upload(bundle).checksum
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Literal, NamedTuple

from crosszone.errors import InputError, InvalidError, Notice
from crosszone.inputs.value import Value
from crosszone.text import render_sentence

OptionPlace = Literal["flag", "key", "argument", "variable"]


class Option(Value):
    """What is told, where and why."""

    where: OptionPlace
    """A flag of a command line, a key of a configuration file, an argument in the trainer, an environment variable."""
    name: str
    """As it is spelled there."""
    value: Any
    """What it is set to; True for a flag without a value."""
    why: str
    """What it does, with the figures of this plan."""


def build_option(where: OptionPlace, name: str, value: Any, language: str, *, key: str = "", **params: Any) -> Option:
    """An option with its sentence `option.KEY.why`; the key is the option's own name unless another one is given."""
    code = key or make_sentence_key(name)
    return Option(where=where, name=name, value=value, why=render_sentence("option", code, "why", language, params))


def make_sentence_key(name: str) -> str:
    """The key of an option's sentence: its name in small letters, all else underscores."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


MANIFEST = "bundle.json"
ARCHIVE_TIME = (1980, 1, 1, 0, 0, 0)  # Time of every file in an archive, so that equal bundles are equal archives


class BundleFile(Value):
    """One file."""

    path: str
    """Relative, with forward slashes."""
    text: str
    """What is in it."""

    @property
    def executable(self) -> bool:
        """It is a script to be started."""
        return self.text.startswith("#!")


class NodeCommand(Value):
    """What one node runs."""

    number: int
    """Number of the node, in rank order."""
    name: str
    """Its name."""
    zone: str
    """Its zone."""
    address: str | None
    """Its address; null: a launcher finds it."""
    interface: str | None
    """Its network interface; null: found at the start."""
    ranks: tuple[str, ...]
    """Ranks of each launcher process, first-last."""
    script: str
    """The script that starts it."""
    commands: tuple[str, ...]
    """The launcher processes that script starts."""


class Bundle(Value):
    """Everything that starts a plan, not yet written anywhere."""

    name: str
    """Name of the scenario."""
    framework: str
    """Framework it is made for."""
    launcher: str
    """What starts the nodes."""
    template: bool
    """Addresses are still to be filled in."""
    world_size: int
    """Ranks."""
    port: int
    """Port of the first node at which ranks meet."""
    nodes: tuple[NodeCommand, ...]
    """What each node runs."""
    how: tuple[str, ...]
    """Commands to type."""
    options: tuple[Option, ...]
    """Everything that is told to the framework and the system, each with its reason."""
    files: tuple[BundleFile, ...]
    """The files."""
    warnings: tuple[dict[str, Any], ...]
    """Notices on the scenario and the plan."""

    def get_text(self, path: str) -> str:
        """The text of one file."""
        return next(file.text for file in self.files if file.path == path)

    def write(self, folder: Path, *, force: bool = False) -> None:
        """Write all files into a new folder: whole or not at all. `force` replaces an earlier bundle, nothing else."""
        try:
            if folder.exists() and not _is_replaceable(folder, force):
                raise InvalidError(Notice(code="output_exists", value=str(folder)))
            # Written beside its place and renamed, so that a crash leaves no half of a bundle under the name asked for.
            half = folder.resolve().with_name(f".{folder.resolve().name}.{os.getpid()}")
            try:
                for file in self.files:
                    path = half / file.path
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(file.text, encoding="utf-8", newline="\n")
                    path.chmod(0o755 if file.executable else 0o644)
                if folder.exists():
                    shutil.rmtree(folder)
                half.rename(folder.resolve())
            finally:
                shutil.rmtree(half, ignore_errors=True)
        except OSError as error:
            params = {"reason": error.strerror or str(error)}
            raise InputError(Notice(code="output_unwritable", value=str(folder), params=params)) from None

    def pack_zip(self, folder: str) -> bytes:
        """The files as a zip archive with one folder."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in self.files:
                entry = zipfile.ZipInfo(f"{folder}/{file.path}", ARCHIVE_TIME)
                entry.external_attr = (0o755 if file.executable else 0o644) << 16
                archive.writestr(entry, file.text, zipfile.ZIP_DEFLATED)
        return buffer.getvalue()


def build_manifest(bundle: Bundle) -> str:
    """`bundle.json`: what the bundle is, and the checksum of each file, so that a change is seen."""
    sums = {file.path: hashlib.sha256(file.text.encode()).hexdigest() for file in bundle.files}
    facts = {key: getattr(bundle, key) for key in ("name", "framework", "launcher", "template", "world_size", "port")}
    return json.dumps({"version": 1, **facts, "sha256": sums}, ensure_ascii=False, indent=2) + "\n"


def _is_replaceable(folder: Path, force: bool) -> bool:
    """An empty folder may be filled; one that holds a bundle may be replaced when told; nothing else may."""
    if not folder.is_dir():
        return False
    return not any(folder.iterdir()) or (force and (folder / MANIFEST).is_file())


class BundleUpload(NamedTuple):
    """What `files.put` is given."""

    data: bytes
    checksum: str


def pack_upload(bundle: Bundle) -> BundleUpload:
    """The files of a bundle in one tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for file in bundle.files:
            # TarInfo has time and owner 0, so that equal bundles have equal checksums.
            member = tarfile.TarInfo(file.path)
            data = file.text.encode()
            member.size, member.mode = len(data), 0o755 if file.executable else 0o644
            archive.addfile(member, io.BytesIO(data))
    return BundleUpload(buffer.getvalue(), hashlib.sha256(buffer.getvalue()).hexdigest())
