"""Expressions of explanations worked out by Python's own arithmetic, beside that of the program."""

from __future__ import annotations

import math
import re

FUNCTIONS = {name: getattr(math, name) for name in ("ceil", "floor", "log2", "sqrt", "exp")} | {"max": max, "min": min}
_NUMBERS = r"[\d\s.+\-*/(),e]*"
_ARITHMETIC = re.compile(rf"{_NUMBERS}((?:{'|'.join(FUNCTIONS)})\({_NUMBERS})*{_NUMBERS}")


def worked_out(text: str) -> float:
    """The value of an expression that holds only numbers, signs, brackets and the functions above."""
    assert _ARITHMETIC.fullmatch(text), text
    return eval(text, {"__builtins__": {}}, dict(FUNCTIONS))
