"""Refusal: what a machine cannot do, as a code of a message and what it is about."""

from __future__ import annotations


class Refusal(Exception):
    """Raised on the machine, told to the user by whoever asked."""

    def __init__(self, code: str, **about: object) -> None:
        super().__init__(code)
        self.code, self.about = code, about
