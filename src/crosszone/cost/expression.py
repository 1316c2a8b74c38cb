"""Expression: how one entry of a recorded array came about, as text that anyone can work out again.

    head = build_expression(RecordedEntry(tape.names["head_s"], ()))
    head.symbols  # 2 * tokens * 32000 / rate
    head.worked  # 2 * 4096 * 32000 / 200000000000000
    head.inputs  # {"tokens": RecordedEntry, "rate": RecordedEntry}

Expressions end at named numbers, which have expressions of their own. Only the branch that was taken is shown; terms of
exactly 0 and factors of exactly 1 are left out.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from crosszone.cost.record import GATHER, Recorded, plain

Index = tuple[int, ...]


class RecordedEntry(NamedTuple):
    """One entry of a recorded array."""

    node: Recorded
    at: Index

    @property
    def value(self) -> float:
        """The number."""
        return float(self.node.value[self.at])


class Term(NamedTuple):
    """One of the terms that add up to an expression."""

    worked: str
    value: float
    inputs: tuple[str, ...]
    """Symbols of the numbers that go in."""


@dataclass(frozen=True)
class Expression:
    """An expression with symbols and with numbers; what goes in, by symbol; its terms, where it is a sum."""

    symbols: str
    worked: str
    value: float
    """What the expression comes to, worked out from the numbers that go in."""
    inputs: dict[str, RecordedEntry]
    terms: tuple[Term, ...]


def build_expression(cell: RecordedEntry, symbol: Callable[[RecordedEntry], str] | None = None) -> Expression:
    """The expression of one entry; `symbol` names what goes in (default: its name, dots as underscores)."""
    writer = _ExpressionWriter(symbol or get_default_symbol)
    tree = _build(cell.node, cell.at, top=True)
    symbols, worked = writer.write(tree)
    total = _unwrap_sum(tree)
    terms: tuple[Term, ...] = ()
    if total is not None:
        parts = [(sign, part, writer.write(part)[1]) for sign, part in total.parts]
        terms = tuple(
            Term(f"-({text})" if sign < 0 else text, sign * _evaluate(part), tuple(writer.iterate_symbols(part)))
            for sign, part, text in parts
        )
    return Expression(symbols, worked, _evaluate(tree), writer.inputs, terms)


def _unwrap_sum(tree: _Tree) -> _Sum | None:
    """The sum that an expression is, but for a plain number it is divided by."""
    if isinstance(tree, _Product):
        sums = [part for exponent, part in tree.parts if exponent > 0]
        divides_by_numbers = all(isinstance(part, _Number) for exponent, part in tree.parts if exponent < 0)
        tree = sums[0] if len(sums) == 1 and divides_by_numbers else tree
    return tree if isinstance(tree, _Sum) else None


def get_default_symbol(cell: RecordedEntry) -> str:
    """The name of what a cell is an entry of."""
    return (cell.node.name or "").replace(".", "_")


def format_number(value: float) -> str:
    """A number as it stands in an expression."""
    return repr(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


# Trees: what is left of the recorded operations for one entry


@dataclass(frozen=True)
class _Number:
    value: float


@dataclass(frozen=True)
class _Input:
    cell: RecordedEntry
    value: float


@dataclass(frozen=True)
class _Sum:
    value: float
    parts: list[tuple[int, Any]]
    """Sign and part."""


@dataclass(frozen=True)
class _Product:
    value: float
    parts: list[tuple[int, Any]]
    """Exponent, 1 or -1, and part."""


@dataclass(frozen=True)
class _Call:
    value: float
    name: str
    parts: list[Any]


_Tree = _Number | _Input | _Sum | _Product | _Call
_CALLS = {
    "maximum": "max",
    "minimum": "min",
    "log2": "log2",
    "ceil": "ceil",
    "floor": "floor",
    "exp": "exp",
    "sqrt": "sqrt",
    "absolute": "abs",
    "power": "**",
}


def find_operand_entry(x: Any, at: Index) -> tuple[Any, Index]:
    """An operand and the index of its entry that goes into entry `at` of a result it is broadcast to."""
    shape = x.value.shape if isinstance(x, Recorded) else np.shape(x)
    if not shape:
        return x, ()
    return x, tuple(0 if size == 1 else i for i, size in zip(at[len(at) - len(shape) :], shape, strict=True))


def _build(x: Any, at: Index, *, top: bool = False) -> _Tree:
    if not isinstance(x, Recorded):
        return _Number(float(np.asarray(x)[at] if at else x))
    value = float(x.value[at] if at else x.value)
    if x.op == "leaf" or (x.name is not None and not top) or (x.op == "constant" and x.name is not None):
        return _Input(RecordedEntry(x, at), value)
    match x.op:
        case "add" | "subtract" | "negative" | "sum" | "cumsum":
            return _build_sum(value, _collect_terms(x, at))
        case "multiply" | "divide":
            return _build_product(value, _collect_factors(x, at))
        case "maximum" | "minimum":
            return _build_extreme(value, x.op, [_build(*find_operand_entry(arg, at)) for arg in _flatten_same(x, at)])
        case "power":
            base, exponent = (_build(*find_operand_entry(arg, at)) for arg in x.args)
            return base if exponent.value == 1.0 else _Call(value, "**", [base, exponent])
        case op if op in _CALLS:
            return _Call(value, _CALLS[op], [_build(*find_operand_entry(x.args[0], at))])
    followed = _follow_copy(x, at)
    return _Number(value) if followed is None else _build(*followed)


def _build_extreme(value: float, op: str, parts: list[_Tree]) -> _Tree:
    """The least or largest of several; what sets no limit, such as a link of infinite rate, is left out."""
    limits = [part for part in parts if not np.isinf(part.value)] if np.isfinite(value) else parts
    return limits[0] if len(limits) == 1 else _Call(value, _CALLS[op], limits)


def _flatten_same(x: Recorded, at: Index) -> list[Any]:
    """Operands of nested operations of one kind, taken together: max(a, max(b, c))."""
    flattened: list[Any] = []
    for arg in x.args:
        alike = isinstance(arg, Recorded) and arg.op == x.op and arg.name is None and np.shape(arg.value) == x.shape
        flattened += _flatten_same(arg, at) if alike else [arg]
    return flattened


def _follow_copy(x: Recorded, at: Index) -> tuple[Any, Index] | None:
    """The entry that this one is a copy of: the branch taken, the largest of many, an entry elsewhere; None: none."""
    match x.op:
        case "same":
            return x.args[0], at
        case "where":
            condition, yes, no = x.args
            test, index_of = find_operand_entry(condition, at)
            return find_operand_entry(yes if np.asarray(plain(test))[index_of] else no, at)
        case "choose":
            choice, index_of = find_operand_entry(x.args[0], at)
            return find_operand_entry(x.args[1 + int(plain(choice)[index_of])], at)
        case "largest":
            entries = list(iterate_reduced_entries(x, at))
            return max(entries, key=lambda entry: plain(entry[0])[entry[1]])
        case op if op == GATHER:
            return find_gathered_entry(x, at)
    return None


def find_gathered_entry(x: Recorded, at: Index) -> tuple[Any, Index]:
    """The operand, and the index of its entry, that an entry moved from elsewhere was taken of."""
    place = int(x.args[0][at])
    for operand in x.args[1:]:
        size = np.size(plain(operand))
        if place < size:
            return operand, tuple(int(i) for i in np.unravel_index(place, np.shape(plain(operand))))
        place -= size
    raise IndexError(at)


def iterate_reduced_entries(x: Recorded, at: Index) -> Iterator[tuple[Any, Index]]:
    """Entries that a reduction over an axis puts together."""
    of, axis, keepdims = x.args
    shape = np.shape(plain(of))
    if axis is None:
        yield from ((of, index) for index in np.ndindex(*shape))
        return
    axis %= len(shape)
    others_index = at[:axis] + at[axis + 1 :] if keepdims else at
    for i in range(shape[axis]):
        yield of, (*others_index[:axis], i, *others_index[axis:])


def _collect_terms(x: Any, at: Index, sign: int = 1, *, top: bool = True) -> Iterator[tuple[int, _Tree]]:
    """Terms of a sum, through sums in it and branches taken; those of 0 are left out."""
    if isinstance(x, Recorded) and (top or x.name is None):
        match x.op:
            case "add" | "subtract":
                for arg, flip in zip(x.args, (1, -1 if x.op == "subtract" else 1), strict=True):
                    yield from _collect_terms(*find_operand_entry(arg, at), sign * flip, top=False)
                return
            case "negative":
                yield from _collect_terms(*find_operand_entry(x.args[0], at), -sign, top=False)
                return
            case "sum":
                yield from _count_equal_entries(iterate_reduced_entries(x, at), sign)
                return
            case "cumsum":
                of, axis = x.args
                last = at[axis]
                yield from _count_equal_entries(((of, (*at[:axis], i, *at[axis:][1:])) for i in range(last + 1)), sign)
                return
        followed = None if top else _follow_copy(x, at)
        if followed is not None:
            yield from _collect_terms(*followed, sign, top=False)
            return
    tree = _build(x, at)
    if tree.value != 0.0:
        yield sign, tree


def _count_equal_entries(entries: Iterator[tuple[Any, Index]], sign: int) -> Iterator[tuple[int, _Tree]]:
    """Entries of a sum over an axis, equal ones once with their number."""
    # a sum over a hundred equal stages reads as `100 * x`; whether entries are equal is asked of their values alone
    alike: dict[float, list[_Tree]] = {}
    for of, at in entries:
        tree = _build(of, at)
        if tree.value != 0.0:
            alike.setdefault(tree.value, []).append(tree)
    for value, trees in alike.items():
        count = len(trees)
        yield (
            sign,
            trees[0] if count == 1 else _build_product(count * value, iter([(1, _Number(count)), (1, trees[0])])),
        )


def _build_sum(value: float, terms: Iterator[tuple[int, _Tree]]) -> _Tree:
    parts = list(terms)
    if not parts:
        return _Number(0.0)
    if len(parts) == 1 and parts[0][0] > 0:
        return parts[0][1]
    return _Sum(value, parts)


def _collect_factors(x: Any, at: Index, exponent: int = 1, *, top: bool = True) -> Iterator[tuple[int, _Tree]]:
    """Factors of a product, through products in it and branches taken; those of 1 are left out."""
    if isinstance(x, Recorded) and (top or x.name is None):
        if x.op in ("multiply", "divide"):
            for arg, flip in zip(x.args, (1, -1 if x.op == "divide" else 1), strict=True):
                yield from _collect_factors(*find_operand_entry(arg, at), exponent * flip, top=False)
            return
        followed = None if top else _follow_copy(x, at)
        if followed is not None:
            yield from _collect_factors(*followed, exponent, top=False)
            return
    tree = _build(x, at)
    if isinstance(tree, _Product):
        yield from ((exponent * power, part) for power, part in tree.parts)
    elif tree.value != 1.0:
        yield exponent, tree


def _build_product(value: float, factors: Iterator[tuple[int, _Tree]]) -> _Tree:
    parts = list(factors)
    if value == 0.0:
        return _Number(0.0)
    if not parts:
        return _Number(1.0)
    if len(parts) == 1 and parts[0][0] > 0:
        return parts[0][1]
    return _Product(value, parts)


_FUNCTIONS: dict[str, Callable[..., float]] = {
    "max": max,
    "min": min,
    "log2": math.log2,
    "ceil": math.ceil,
    "floor": math.floor,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "abs": abs,
    "**": operator.pow,
}


def _evaluate(tree: _Tree) -> float:
    """What a tree comes to."""
    match tree:
        case _Sum(_, parts):
            return sum(sign * _evaluate(part) for sign, part in parts)
        case _Product(_, parts):
            value = 1.0
            for exponent, part in parts:
                value = value * _evaluate(part) if exponent > 0 else value / _evaluate(part)
            return value
        case _Call(_, name, arguments):
            return float(_FUNCTIONS[name](*map(_evaluate, arguments)))
    return tree.value


# Text

_SUM, _PRODUCT, _TIGHT, _ATOM = range(4)  # How strongly the parts of a text hold together


@dataclass
class _ExpressionWriter:
    """Writes trees twice, with symbols and with numbers, and keeps what goes in."""

    symbol: Callable[[RecordedEntry], str]
    inputs: dict[str, RecordedEntry] = field(default_factory=dict)

    def write(self, tree: _Tree) -> tuple[str, str]:
        """The text with symbols, and with numbers."""
        symbols, worked, _ = self._write(tree)
        return symbols, worked

    def name(self, cell: RecordedEntry) -> str:
        """The symbol of what goes in: another one where another number has it already."""
        symbol = self.symbol(cell)
        # entries of one name may differ (two stages): with one symbol the expression would not come to its value
        unique, count = symbol, 1
        while unique in self.inputs and self.inputs[unique].value != cell.value:
            count += 1
            unique = f"{symbol}_{count}"
        self.inputs.setdefault(unique, cell)
        return unique

    def iterate_symbols(self, tree: _Tree) -> Iterator[str]:
        """Symbols of the inputs of a tree."""
        if isinstance(tree, _Input):
            yield self.name(tree.cell)
        elif isinstance(tree, _Sum | _Product):
            for _, part in tree.parts:
                yield from self.iterate_symbols(part)
        elif isinstance(tree, _Call):
            for part in tree.parts:
                yield from self.iterate_symbols(part)

    def _write(self, tree: _Tree) -> tuple[str, str, int]:
        match tree:
            case _Number(value):
                text = format_number(value)
                return text, text, _ATOM if value >= 0 else _SUM
            case _Input(cell, value):
                return self.name(cell), format_number(value) if value >= 0 else f"({format_number(value)})", _ATOM
            case _Sum(_, parts):
                return self._write_sum(parts)
            case _Product(_, parts):
                return self._write_product(parts)
            case _Call(_, "**", [base, exponent]):
                below, above = self._write_operands(base, _ATOM), self._write_operands(exponent, _ATOM)
                return f"{below[0]} ** {above[0]}", f"{below[1]} ** {above[1]}", _TIGHT
            case _Call(_, name, arguments):
                texts = [self._write(argument) for argument in arguments]
                symbols, worked = ", ".join(text[0] for text in texts), ", ".join(text[1] for text in texts)
                return f"{name}({symbols})", f"{name}({worked})", _ATOM
        raise TypeError(tree)

    def _write_operands(self, tree: _Tree, strength: int) -> tuple[str, str]:
        """The texts, in brackets where they would fall apart."""
        symbols, worked, precedence = self._write(tree)
        return (symbols, worked) if precedence >= strength else (f"({symbols})", f"({worked})")

    def _write_sum(self, parts: list[tuple[int, Any]]) -> tuple[str, str, int]:
        first = next((at for at, (sign, _) in enumerate(parts) if sign > 0), 0)
        ordered = [parts[first], *parts[:first], *parts[first + 1 :]]
        texts = ["", ""]
        for at, (sign, part) in enumerate(ordered):
            both = (
                self._write_operands(part, _SUM if sign > 0 and at else _PRODUCT)
                if at or sign < 0
                else self._write_operands(part, _SUM)
            )
            mark = (" - " if sign < 0 else " + ") if at else ("-" if sign < 0 else "")
            texts = [text + mark + own_sign for text, own_sign in zip(texts, both, strict=True)]
        return texts[0], texts[1], _SUM

    def _write_product(self, parts: list[tuple[int, Any]]) -> tuple[str, str, int]:
        above = [
            self._write_operands(part, _PRODUCT if at == 0 else _TIGHT) for at, (e, part) in enumerate(parts) if e > 0
        ]
        below = [self._write_operands(part, _TIGHT) for e, part in parts if e < 0]
        texts = []
        for i in range(2):
            text = " * ".join(pair[i] for pair in above) or "1"
            bottom = " * ".join(pair[i] for pair in below)
            texts.append(text + (f" / {bottom}" if len(below) == 1 else f" / ({bottom})" if below else ""))
        return texts[0], texts[1], _PRODUCT
