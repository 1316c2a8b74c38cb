"""Words of which some are allowed: another one is refused, with what may have been meant only where that is near.

raise not_one_of("--format", "kinto", ("auto", "kineto"))      # Did you mean kineto?
raise not_one_of("--format", "xyz", ("auto", "kineto"))        # Choose one of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.value import near


def not_one_of(field: str, value: str, allowed: Iterable[str]) -> InvalidError:
    """What to raise for a word that is none of the allowed."""
    known = list(allowed)
    likely = near(value, known)[:1]
    params = {"allowed": known, "nearest": likely}
    code = "not_one_of" if likely else "not_one_of_these"
    return InvalidError(Notice(code=code, field=field, value=value, params=params))
