"""Parcel: a bundle as a machine takes it: a tar, the same for the same bundle, and its checksum.

parcel(bundle).data, parcel(bundle).checksum
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from typing import NamedTuple

from crosszone.deploy.bundle import Bundle


class Parcel(NamedTuple):
    """What `files.put` is given."""

    data: bytes
    checksum: str


def parcel(bundle: Bundle) -> Parcel:
    """The files of a bundle in one tar."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for file in bundle.files:
            member = tarfile.TarInfo(file.path)
            data = file.text.encode()
            member.size, member.mode = len(data), 0o755 if file.executable else 0o644
            archive.addfile(member, io.BytesIO(data))
    return Parcel(held.getvalue(), hashlib.sha256(held.getvalue()).hexdigest())
