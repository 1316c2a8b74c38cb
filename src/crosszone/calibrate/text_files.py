"""Text files that a user gives: an empty one, a binary one and one in another encoding are refused by name.

check_head(data[:65536], "train.log")     # what was read already
check_text(Path("samples.csv"))           # the whole file; `FileError` names the line that is no UTF-8
"""

from __future__ import annotations

from pathlib import Path

from crosszone.errors import FileError, Notice

LOOK = 2**16
"""Bytes that tell whether a file is text."""
ODD = 0.05
"""Share of characters that are no text beyond which a file is binary."""
USUAL = frozenset("\t\r\n\f\b\x1b")
"""Control characters that logs have."""


def check_head(head: bytes, name: str) -> None:
    """Refuse a file that is empty or binary, by how it begins."""
    if not head.strip() and len(head) < LOOK:
        raise FileError(Notice(code="file_empty", value=name, file=name))
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise FileError(Notice(code="file_not_utf8", value=name, file=name))
    text = head[:LOOK].decode("utf-8", "replace")
    odd = sum(one == "\ufffd" or (one < " " and one not in USUAL) for one in text)
    if odd > ODD * len(text) + 1:
        raise FileError(Notice(code="file_binary", value=name, file=name))


def check_text(path: Path) -> None:
    """Refuse a file that is not UTF-8 text; one that cannot be read is left to its reader."""
    try:
        with path.open("rb") as file:
            check_head(file.read(LOOK), str(path))
            file.seek(0)
            for line, text in enumerate(file, 1):
                try:
                    text.decode("utf-8")
                except UnicodeDecodeError:
                    name = str(path)
                    raise FileError(Notice(code="file_not_utf8", value=name, file=name, line=line)) from None
    except OSError:
        return
