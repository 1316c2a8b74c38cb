"""Form: an expression of named numbers that can be read, filled in and worked out.

    seconds = Form("{bytes} / {rate}", bytes=size, rate=rate)
    seconds.symbols  # bytes / rate
    seconds.worked  # 8388608 / 240000000000.0
    seconds.value

An expression holds numbers, + - * / **, brackets and max, min, ceil, log2, sqrt, exp: what anyone can work out again.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from crosszone.analyse.worked import is_sum, number
from crosszone.inputs.python_source import parsed

Origin = Literal["scenario", "catalogue", "profile", "figure", "rule", "constant", "simulated"]
"""Where a number comes from: typed, a datasheet, a coefficient, another figure, a rule over what was typed, ..."""

_NAME = re.compile(r"\{(\w+)\}")
_EXPONENT = re.compile(r"(?<=\d)e[-+]\d+")
_SIGNS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {
    "max": max,
    "min": min,
    "ceil": math.ceil,
    "log2": math.log2,
    "sqrt": math.sqrt,
    "exp": math.exp,
}


@dataclass(frozen=True)
class Words:
    """A label with its parameters, said when the language is known; parameters may be words themselves."""

    key: str
    params: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Given:
    """A number that goes into a form, and where it comes from."""

    value: float
    words: Words
    unit: str = ""
    origin: Origin
    where: str = ""
    """Field of the scenario, home of a coefficient, entry and source of a datasheet's figure."""
    error: float | None = None
    """Standard error of a coefficient, as a share of it."""
    figure: str | None = None
    """Path of the figure it is, so that it can be opened in turn."""

    @property
    def symbols(self) -> str:
        return ""

    @property
    def worked(self) -> str:
        """The number itself."""
        return number(self.value) if self.value >= 0 else f"({number(self.value)})"

    @property
    def inputs(self) -> dict[str, Given]:
        """It has none of its own."""
        return {}


class Form:
    """An expression whose names are numbers or other forms."""

    def __init__(self, expression: str, **inputs: Given | Form):
        self.expression, self._named = expression, inputs

    @cached_property
    def symbols(self) -> str:
        """The expression with names."""
        return self._filled(lambda name, part: name if isinstance(part, Given) else part.symbols)

    @cached_property
    def worked(self) -> str:
        """The expression with numbers."""
        return self._filled(lambda _, part: part.worked)

    @cached_property
    def value(self) -> float:
        """What it comes to."""
        return evaluated(self.worked)

    @cached_property
    def inputs(self) -> dict[str, Given]:
        """Every number that goes in, by name."""
        found: dict[str, Given] = {}
        for name, part in self._named.items():
            if f"{{{name}}}" not in self.expression:
                continue
            for key, given in ({name: part} if isinstance(part, Given) else part.inputs).items():
                if found.get(key, given).value != given.value:
                    raise ValueError(f"{key} stands for two numbers")
                found[key] = given
        return found

    def _filled(self, told: Callable[[str, Given | Form], str]) -> str:
        def put(match: re.Match[str]) -> str:
            name = match.group(1)
            part = self._named[name]
            text = told(name, part)
            alone = match.start() == 0 and match.end() == len(self.expression)
            before = self.expression[: match.start()].rstrip()[-2:]
            after = self.expression[match.end() :].lstrip()[:2]
            added = before[-1:] in ("", "(", ",", "+") and after[:1] in ("", ")", ",", "+", "-")
            if isinstance(part, Given) or alone or added:
                return text
            tight = before[-1:] == "/" or "**" in (before, after)
            return f"({text})" if is_sum(_EXPONENT.sub("", text)) or (tight and _compound(text)) else text

        return _NAME.sub(put, self.expression)


def _compound(text: str) -> bool:
    return any(sign in text for sign in "*/")


def total(forms: list[Form]) -> Form:
    """Forms added up."""
    names = {f"part_{at}": form for at, form in enumerate(forms)}
    return Form(" + ".join(f"{{{name}}}" for name in names) or "0", **names)


def named(given: Given, **changes: object) -> Given:
    """The same number with other words, unit or origin."""
    return replace(given, **changes)  # type: ignore[arg-type]


def evaluated(text: str) -> float:
    """The value of an expression that holds only numbers, signs, brackets and the six functions."""
    return float(_value(parsed(text, mode="eval").body))


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as found):
            return found
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -_value(inner)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
            return _SIGNS[type(sign)](_value(left), _value(right))
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*map(_value, given))
    raise ValueError(f"{ast.unparse(node)!r} is no part of a worked expression")
