"""Shell: words, comments and file names that no name of a user can break out of."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable

LONGEST_SLUG = 40
WIDTH = 90  # Columns a long command is folded at


class Raw(str):
    """Shell text that is meant as such, e.g. `"$MASTER_ADDR"`: written as it is."""


def quote_word(word: object) -> str:
    """One word of a command line, whatever it holds."""
    return str(word) if isinstance(word, Raw) else shlex.quote(str(word))


def format_command(words: Iterable[object], *, indent: str = "") -> str:
    """A command, folded at flags where it is long."""
    lines, line = [], ""
    for word in map(quote_word, words):
        starts_flag = word.startswith("-") and len(indent) + len(line) + len(word) > WIDTH
        if starts_flag:
            lines.append(line)
            line = "  " + word
        else:
            line = f"{line} {word}" if line else word
    return f" \\\n{indent}".join([*lines, line])


def format_comment(text: str, *, mark: str = "# ") -> str:
    """Text as comment lines; control characters become spaces, so that nothing gets out of them."""
    clean = "".join(" " if not char.isprintable() and char != "\n" else char for char in text)
    return "\n".join(f"{mark}{line}".rstrip() for line in clean.split("\n"))


def make_slug(name: str, *, longest: int = LONGEST_SLUG) -> str:
    """A name as a file, host or object may have it (RFC 1123); one that had to be changed gets a hash, so that
    different names stay different.
    """
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    if plain == name and len(plain) <= longest:
        return plain
    mark = hashlib.sha256(name.encode()).hexdigest()[:6]
    return f"{plain[: longest - 7].strip('-') or 'x'}-{mark}"
