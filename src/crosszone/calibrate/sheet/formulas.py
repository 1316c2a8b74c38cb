"""Formulas: recorded numbers as the cells of a spreadsheet, one cell a named number, its expression an Excel formula.

    cells = FormulaCells(is_typed=lambda node: node.op == "leaf", places={})
    cells.reference(prediction.step_time_s.expected)  # "step_time_s": the name of the cell that holds it
    cells.cells["step_time_s"].formula                # "inner_step_s+local_update_s"

Entries of arrays that come to the same formula share one cell, so that sixteen equal stages are computed once. What no
input can change is decided as in the prediction (a branch not taken, a mask of 0); what an input can change stays an
IF. Excel has no infinity: `UNLIMITED` stands for a limit that there is not.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from crosszone.cost.expression import Cell, Index, entries_along, gathered_entry, operand_entry
from crosszone.cost.record import GATHER, Recorded, Tape, plain

UNLIMITED = 1e300
# Characters of a formula beyond which parts of it get cells of their own; Excel takes 8192, a reader fewer.
LONGEST = 700
SHARED = 24  # Characters from which an expression that several others read gets a cell of its own
COMPARISON, SUM, PRODUCT, POWER, ATOM = range(5)  # How strongly the parts of a text hold together
SHARE = "shared_"  # Beginning of the names of cells that hold an expression without a name of its own

MOST_CHOICES = 254  # Values that CHOOSE takes

Key = tuple[int, int]  # A recorded array, and one of its entries counted flat


class Term(NamedTuple):
    """The text of one entry, as a formula uses it."""

    text: str
    strength: int
    value: float
    live: bool = False
    """An input of the workbook can change it."""
    literal: bool = False
    """It is a plain number."""
    logical: bool = False
    """TRUE or FALSE."""


@dataclass(frozen=True)
class FormulaCell:
    """One cell: a number that goes in, or a formula, with its value."""

    name: str
    formula: str | None
    """Without the equals sign; None: the value is the content."""
    value: float
    typed: bool
    entry: Cell
    entries: list[Index] = field(default_factory=list)
    """All entries of the array that it stands for."""
    address: str | None = None
    """Of a cell in a grid: its place in place of a name."""


def write_number(value: float) -> str:
    """A number as formulas have it."""
    if math.isinf(value):
        value = math.copysign(UNLIMITED, value)
    if float(value).is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(float(value)).replace("e", "E")


def literal(value: Any) -> Term:
    """A plain number, or a truth value."""
    if isinstance(value, bool | np.bool_):
        return Term("TRUE" if value else "FALSE", ATOM, float(value), literal=True, logical=True)
    number = float(value)
    return Term(write_number(number), ATOM if number >= 0 else SUM, number, literal=True)


class FormulaCells:
    """The cells that figures rest on, made as they are asked for."""

    def __init__(
        self, is_typed: Callable[[Recorded], bool], places: Mapping[int, str], names: Mapping[str, str]
    ) -> None:
        self.is_typed = is_typed
        self.places = places
        """Addresses of recorded numbers that lie in a grid, by id."""
        self.names = names
        """Names of cells where they are other than that of the number."""
        self.figures: dict[int, str] = {}
        """Names of cells of some recorded numbers, by id: those that others look for; no other cell has them."""
        self.reserved: set[str] = set()
        """Further names that are taken."""
        self.cells: dict[str, FormulaCell] = {}
        self._terms: dict[Key, Term] = {}
        self._by_text: dict[tuple[str, str], str] = {}
        self._live: dict[int, bool] = {}
        self._parents: Counter[int] = Counter()
        self._counted: set[int] = set()
        self._kept: list[Any] = []

    def reference(self, node: Any, at: Index = ()) -> str:
        """What a formula writes to read a recorded number: the name of its cell, or a plain number."""
        return self.term(node, at).text

    def term(self, node: Any, at: Index = ()) -> Term:
        """The same with what is known of it."""
        if not isinstance(node, Recorded):
            return literal(np.asarray(node)[at] if np.ndim(node) else node)
        self._kept.append(node)  # terms are remembered by id
        self._count(node)
        waiting = [(node, at)]
        while waiting:
            here, index = waiting[-1]
            key = _key(here, index)
            if key in self._terms:
                waiting.pop()
                continue
            missing = [one for one in self._needs(here, index) if _key(*one) not in self._terms]
            if missing:
                waiting += missing
                continue
            self._terms[key] = self._finish(here, index, self._write(here, index))
            waiting.pop()
        return self._terms[_key(node, at)]

    # What an entry is made of

    def _count(self, node: Recorded) -> None:
        """Count by how many others each number is read, and note which an input can change."""
        waiting = [node]
        while waiting:
            here = waiting[-1]
            if id(here) in self._counted:
                waiting.pop()
                continue
            operands = [one for one in _operands(here) if isinstance(one, Recorded)]
            unseen = [one for one in operands if id(one) not in self._counted]
            if unseen:
                waiting += unseen
                continue
            self._counted.add(id(here))
            self._kept.append(here)
            self._parents.update({id(one) for one in operands})
            ends = here.op in ("leaf", "constant")
            self._live[id(here)] = self.is_typed(here) if ends else any(self._live[id(one)] for one in operands)
            waiting.pop()

    def _is_live(self, node: Any) -> bool:
        return isinstance(node, Recorded) and self._live[id(node)]

    def _needs(self, x: Recorded, at: Index) -> list[tuple[Recorded, Index]]:
        """Entries that are written before this one; of a branch that is settled only the one taken."""
        entries: Sequence[tuple[Any, Index]]
        match x.op:
            case "leaf" | "constant":
                return []
            case "where" | "choose":
                test = operand_entry(x.args[0], at)
                if self._is_live(test[0]) and _key(*test) not in self._terms:
                    return [test]
                taken = self._branch(x, at)
                entries = [taken] if taken is not None else [test, *(operand_entry(arg, at) for arg in x.args[1:])]
            case "multiply" | "and":
                entries = [operand_entry(arg, at) for arg in x.args]
                if any(not self._is_live(arg) and not plain(arg)[there] for arg, there in map(_plainly, entries)):
                    return []
            case op if op in ("sum", "largest", "argmax", "cumsum"):
                entries = list(_reduced(x, at))
            case op if op == GATHER:
                entries = [gathered_entry(x, at)]
            case "same":
                entries = [(x.args[0], at)]
            case _:
                entries = [operand_entry(arg, at) for arg in x.args]
        return [one for one in entries if isinstance(one[0], Recorded)]

    def _branch(self, x: Recorded, at: Index) -> tuple[Any, Index] | None:
        """The branch that is taken whatever the inputs are; None: they decide."""
        test, there = operand_entry(x.args[0], at)
        if self._is_live(test) and self._terms[_key(test, there)].live:
            return None
        value = np.asarray(plain(test))[there]
        if x.op == "choose":
            return operand_entry(x.args[1 + int(value)], at)
        return operand_entry(x.args[1 if value else 2], at)

    def _term(self, entry: tuple[Any, Index]) -> Term:
        node, at = entry
        return self._terms[_key(node, at)] if isinstance(node, Recorded) else literal(np.asarray(node)[at])

    # Text

    def _write(self, x: Recorded, at: Index) -> Term:
        value = x.value[at] if at else x.value
        match x.op:
            case "leaf" | "constant":
                return literal(value)
            case "where" | "choose":
                return self._conditional(x, at)
            case op if op == GATHER:
                return self._term(gathered_entry(x, at))
            case "same":
                return self._term((x.args[0], at))
            case "multiply" | "and":
                entries = [operand_entry(arg, at) for arg in x.args]
                if any(not self._is_live(arg) and not plain(arg)[there] for arg, there in map(_plainly, entries)):
                    return literal(value * 0 if x.op == "multiply" else False)
                operands = [self._term(entry) for entry in entries]
            case op if op in ("sum", "largest", "argmax", "cumsum"):
                operands = [self._term(entry) for entry in _reduced(x, at)]
            case _:
                operands = [self._term(operand_entry(arg, at)) for arg in x.args]
        live = any(one.live for one in operands)
        settled = not live and (not value or isinstance(value, bool | np.bool_))
        if settled or all(one.literal for one in operands):
            return literal(value)
        written = self._operation(x, operands, float(value))
        return written._replace(value=float(value), live=live)

    def _conditional(self, x: Recorded, at: Index) -> Term:
        taken = self._branch(x, at)
        if taken is not None:
            return self._term(taken)
        test = self._term(operand_entry(x.args[0], at))
        branches = [self._term(operand_entry(arg, at)) for arg in x.args[1:]]
        if len({one.text for one in branches}) == 1:
            return branches[0]
        if x.op == "choose" and len(branches) > MOST_CHOICES:
            raise TypeError(f"a choice of {len(branches)}: spreadsheets take {MOST_CHOICES}")
        texts = [self._short(one).text for one in branches]
        value = float(x.value[at] if at else x.value)
        logical = all(one.logical for one in branches)
        if x.op == "where":
            text = f"IF({_condition(test)},{texts[0]},{texts[1]})"
        else:
            text = f"CHOOSE({test.text}+1,{','.join(texts)})"
        return Term(text, ATOM, value, live=True, logical=logical)

    def _operation(self, x: Recorded, operands: list[Term], value: float) -> Term:
        short = [self._short(one) for one in operands]
        match x.op:
            case "add":
                return _add(short)
            case "subtract":
                return _subtract(*short)
            case "multiply":
                return _multiply(*short)
            case "divide":
                return _divide(*short)
            case "sum" | "cumsum":
                return self._total(operands)
            case "maximum" | "minimum" | "largest":
                return self._extreme("MIN" if x.op == "minimum" else "MAX", operands)
            case "argmax":
                return _place_of_largest(short)
            case "and" | "or":
                return _join(x.op, operands)
            case "not":
                return Term(f"NOT({_condition(short[0])})", ATOM, value, logical=True)
            case op if op in _COMPARISONS:
                return _compare(op, *short)
            case op if op in _WRITERS:
                return Term(_WRITERS[op](*map(_number, short)), _STRENGTHS.get(op, ATOM), value)
            case "isnan":
                return literal(False)
            case "isfinite":
                return Term(f"{_held(short[0], SUM)}<{write_number(UNLIMITED / 10)}", COMPARISON, value, logical=True)
        raise TypeError(f"no formula for {x.op}")

    def _total(self, operands: list[Term]) -> Term:
        """A sum, equal terms once with their number; a long one in parts."""
        counts = Counter(one.text for one in operands if not (one.literal and one.value == 0))
        first = {one.text: one for one in operands}
        terms = [
            first[text]
            if count == 1
            else _multiply(literal(count), first[text])._replace(value=count * first[text].value, live=first[text].live)
            for text, count in counts.items()
        ]
        return _add([self._short(one) for one in self._in_parts(terms, _add, sum)]) if terms else literal(0.0)

    def _extreme(self, function: str, operands: list[Term]) -> Term:
        """The largest or least of several; what sets no limit is left out."""
        free = -math.inf if function == "MAX" else math.inf
        texts = {one.text: one for one in operands if not (one.literal and one.value == free)}
        inner: dict[str, Term] = {}
        for text, one in texts.items():
            if one.literal and math.isinf(one.value):
                return one
            opened = one.strength == ATOM and text.startswith(f"{function}(") and len(text) < LONGEST
            for part in _arguments(text) if opened else [text]:
                inner.setdefault(part, one._replace(text=part) if opened else one)
        if len(inner) == 1:
            return next(iter(inner.values()))

        def write(terms: list[Term]) -> Term:
            return Term(f"{function}({','.join(_number(one).text for one in terms)})", ATOM, 0.0, live=True)

        combine = max if function == "MAX" else min
        return write(self._in_parts(list(inner.values()), write, combine))

    def _in_parts(
        self, terms: list[Term], write: Callable[[list[Term]], Term], combine: Callable[..., float]
    ) -> list[Term]:
        """Terms of a long list, some of them put together in cells of their own."""
        while len(terms) > 1 and sum(len(one.text) + 1 for one in terms) > LONGEST:
            parts: list[list[Term]] = [[]]
            for one in terms:
                if parts[-1] and sum(len(other.text) + 1 for other in parts[-1]) + len(one.text) > LONGEST / 2:
                    parts.append([])
                parts[-1].append(one)
            if len(parts) in (1, len(terms)):
                return [self._share(one) for one in terms] if len(parts) == len(terms) else terms
            values = [float(combine(one.value for one in part)) for part in parts]
            live = [any(one.live for one in part) for part in parts]
            written = [write(part)._replace(live=alive) for part, alive in zip(parts, live, strict=True)]
            terms = [self._share(one._replace(value=v)) for one, v in zip(written, values, strict=True)]
        return terms

    # Cells

    def _short(self, term: Term) -> Term:
        """The term, in a cell of its own where it is long."""
        return self._share(term) if len(term.text) > LONGEST // 3 else term

    def share_text(self, text: str) -> str:
        """A condition in a cell of its own: the name of that cell."""
        condition = Term(text, ATOM, 1.0, live=True, logical=True)
        return self._share(condition, Cell(Recorded(True, "leaf", (), Tape()), ())).text

    def _share(self, term: Term, entry: Cell | None = None) -> Term:
        """The term in a cell of its own; the same text has one cell."""
        if _is_reference(term.text) or term.literal:
            return term
        name = self._by_text.get(("", term.text))
        if name is None:
            name = f"{SHARE}{len(self.cells)}"
            self._by_text["", term.text] = name
            entry = entry or Cell(Recorded(term.value, "leaf", (), Tape()), ())
            self.cells[name] = FormulaCell(name, term.text, term.value, False, entry)
        return term._replace(text=name, strength=ATOM)

    def _finish(self, x: Recorded, at: Index, term: Term) -> Term:
        """The term of an entry: a reference where the entry has a cell."""
        entry = Cell(x, at)
        if x.name is None:
            shared = self._parents[id(x)] > 1 and len(term.text) > SHARED and x.op != GATHER
            return self._share(term, entry) if shared else term
        if x.op in ("leaf", "constant"):
            typed = self.is_typed(x)
            if not math.isfinite(term.value) or (not typed and (term.value == 0 or term.logical)):
                return term
            return self._cell(entry, None, term, typed=typed)._replace(live=typed)
        if term.literal or (_is_reference(term.text) and id(x) not in self.places):
            self._note_entry(term.text, entry)
            return term
        return self._cell(entry, term.text, term, typed=False)

    def _cell(self, entry: Cell, formula: str | None, term: Term, *, typed: bool) -> Term:
        node = entry.node
        address = self.places.get(id(node))
        key = (node.key or "").split("#")[0] if address is None else "grid"
        text = write_number(term.value) if formula is None else formula
        name = self._by_text.get((key, text))
        if name is None:
            wanted = None if formula is None else self.figures.get(id(node))
            name = address or wanted or self._unique(self.names.get(node.name or "", key), entry)
            self._by_text[key, text] = name
            self.cells[name] = FormulaCell(name, formula, term.value, typed, entry, [entry.at], address)
        else:
            self.cells[name].entries.append(entry.at)
        return Term(name, ATOM, term.value, live=term.live, logical=term.logical)

    def _note_entry(self, name: str, entry: Cell) -> None:
        cell = self.cells.get(name)
        if cell is not None and cell.entry.node.name == entry.node.name:
            cell.entries.append(entry.at)

    def _unique(self, key: str, entry: Cell) -> str:
        """A name that spreadsheets allow and no other cell has: with the stage, where stages differ."""
        base = re.sub(r"[^a-z0-9]+", "_", key.removeprefix("input.").lower()).strip("_")[:200]
        if not base or not base[0].isalpha():
            base = f"n_{base}"
        if re.fullmatch(r"[a-z]{1,3}[0-9]+|r|c|r[0-9]*c[0-9]*", base):  # spreadsheets would take it for a cell
            base = f"{base}_value"
        if base in self.cells and len(entry.node.shape) == 2 and entry.node.shape[1] > 1:
            base = f"{base}_stage{entry.at[1]}"
        name, count = base, 1
        while name in self.cells or name in self.reserved:
            count += 1
            name = f"{base}_{count}"
        return name

    def used(self, formulas: Sequence[str]) -> dict[str, FormulaCell]:
        """The cells that some formulas rest on, each after those it reads; shared ones that are read once put in."""
        uses: Counter[str] = Counter()
        order: dict[str, None] = {}
        for text in formulas:
            self._follow(text, uses, order)
        cells = {name: self.cells[name] for name in order}
        for name in list(cells):
            cell = cells[name]
            if cell.formula is None:
                continue
            text = cell.formula
            for other in set(references(text)):
                source = cells.get(other)
                once = other.startswith(SHARE) and uses[other] == 1 and source is not None
                if once and source is not None and len(text) + len(source.formula or "") < LONGEST:
                    text = re.sub(rf"\b{other}\b", f"({source.formula})".replace("\\", ""), text)
                    del cells[other]
            cells[name] = replace(cell, formula=text)
        return cells

    def _follow(self, text: str, uses: Counter[str], order: dict[str, None]) -> None:
        waiting = [name for name in references(text) if name in self.cells]
        uses.update(waiting)
        while waiting:
            here = waiting[-1]
            if here in order:
                waiting.pop()
                continue
            reads = [name for name in references(self.cells[here].formula or "") if name in self.cells]
            missing = [name for name in reads if name not in order]
            if missing:
                waiting += missing
                continue
            order[here] = None
            uses.update(reads)
            waiting.pop()


_REFERENCE = re.compile(r"(?:Pipeline!)?\$?[A-Za-z_][A-Za-z0-9_$]*")
_NAME = re.compile(r"(?<![A-Za-z0-9_.!$])(?:Pipeline!)?[A-Za-z_$][A-Za-z0-9_$]*(?![A-Za-z0-9_(.!])")


def references(text: str) -> list[str]:
    """Names and addresses that a formula reads."""
    return [name for name in _NAME.findall(text) if name not in ("TRUE", "FALSE")]


def _is_reference(text: str) -> bool:
    return _REFERENCE.fullmatch(text) is not None


def _key(node: Any, at: Index) -> Key:
    shape = node.value.shape
    return id(node), int(np.ravel_multi_index(at, shape)) if shape else 0


def _operands(x: Recorded) -> Iterator[Any]:
    yield from x.args


def _plainly(entry: tuple[Any, Index]) -> tuple[Any, Index]:
    node, at = entry
    return (node, at) if isinstance(node, Recorded) else (np.asarray(node), at)


def _reduced(x: Recorded, at: Index) -> Iterator[tuple[Any, Index]]:
    """Entries that a sum or a largest over an axis puts together."""
    if x.op == "cumsum":
        of, axis = x.args
        axis %= len(at)
        yield from ((of, (*at[:axis], i, *at[axis + 1 :])) for i in range(at[axis] + 1))
        return
    yield from entries_along(x, at)


def _held(term: Term, strength: int) -> str:
    number = _number(term)
    return number.text if number.strength >= strength else f"({number.text})"


def _number(term: Term) -> Term:
    """The term where a number is due: a truth value counts 1 or 0."""
    if not term.logical:
        return term
    if term.literal:
        return literal(term.value)
    return term._replace(text=f"IF({term.text},1,0)", strength=ATOM, logical=False)


def _condition(term: Term) -> str:
    return term.text if term.logical else f"{_held(term, SUM)}<>0"


def _add(terms: list[Term]) -> Term:
    terms = [one for one in terms if not (one.literal and one.value == 0)]
    if len(terms) == 1:
        return _number(terms[0])
    text = _held(terms[0], SUM)
    for one in terms[1:]:
        part = _held(one, SUM)
        text += part if part.startswith("-") else f"+{part}"
    return Term(text, SUM, 0.0)


def _subtract(a: Term, b: Term) -> Term:
    if b.literal and b.value == 0:
        return _number(a)
    if a.literal and a.value == 0:
        return Term(f"-{_held(b, POWER)}", SUM, 0.0)
    return Term(f"{_held(a, SUM)}-{_held(b, PRODUCT)}", SUM, 0.0)


def _multiply(a: Term, b: Term) -> Term:
    for one, other in ((a, b), (b, a)):
        if one.literal and one.value == 1:
            return other
        if one.literal and one.value == 0:
            return literal(0.0)
    for one, other in ((a, b), (b, a)):
        if one.logical and not one.literal:
            return Term(f"IF({one.text},{_number(other).text},0)", ATOM, 0.0)
    return Term(f"{_held(a, PRODUCT)}*{_held(b, POWER)}", PRODUCT, 0.0)


def _divide(a: Term, b: Term) -> Term:
    if b.literal and b.value == 1:
        return _number(a)
    if b.literal and math.isinf(b.value):
        return literal(0.0)
    return Term(f"{_held(a, PRODUCT)}/{_held(b, POWER)}", PRODUCT, 0.0)


def _join(op: str, terms: list[Term]) -> Term:
    """Conditions put together; those that are settled are left out."""
    settled = [one for one in terms if not one.live]
    for one in settled:
        if bool(one.value) != (op == "and"):
            return literal(op == "or")
    left = [one for one in terms if one.live]
    if len(left) == 1:
        return left[0]._replace(logical=True, text=_condition(left[0]))
    parts: dict[str, None] = {}
    for one in left:
        nested = one.strength == ATOM and one.text.startswith(f"{op.upper()}(")
        parts |= dict.fromkeys(_arguments(one.text) if nested else [_condition(one)])
    return Term(f"{op.upper()}({','.join(parts)})", ATOM, 0.0, logical=True)


_COMPARISONS = {
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "equal": "=",
    "not_equal": "<>",
}


def _compare(op: str, a: Term, b: Term) -> Term:
    if a.logical and op == "greater" and b.literal and b.value == 0:
        return a
    return Term(f"{_held(a, SUM)}{_COMPARISONS[op]}{_held(b, SUM)}", COMPARISON, 0.0, logical=True)


def _place_of_largest(terms: list[Term]) -> Term:
    """Where the first of the largest is, counted from 0; equal texts are equal numbers."""
    first = {one.text: at for at, one in reversed(list(enumerate(terms)))}
    places = sorted(first.values())
    text = str(places[-1])
    for number, at in reversed(list(enumerate(places[:-1]))):
        later = ",".join(terms[other].text for other in places[number + 1 :])
        text = f"IF({_held(terms[at], SUM)}>=MAX({later}),{at},{text})"
    return Term(text, ATOM, 0.0)


def _whole(term: Term) -> str:
    """The text of what is rounded; a logarithm may miss a whole number by its last digit."""
    return f"ROUND({term.text},9)" if term.text.startswith("LOG(") else term.text


_WRITERS: dict[str, Callable[..., str]] = {
    "power": lambda a, b: f"{_held(a, ATOM)}^{_held(b, ATOM)}",
    "negative": lambda a: f"-{_held(a, POWER)}",
    "remainder": lambda a, b: f"MOD({a.text},{b.text})",
    "floor_divide": lambda a, b: f"INT({_held(a, PRODUCT)}/{_held(b, POWER)})",
    "floor": lambda a: f"INT({_whole(a)})",
    "ceil": lambda a: f"-INT(-{_held(a._replace(text=_whole(a)), ATOM)})",
    "log2": lambda a: f"LOG({a.text},2)",
    "exp": lambda a: f"EXP({a.text})",
    "sqrt": lambda a: f"SQRT({a.text})",
    "absolute": lambda a: f"ABS({a.text})",
}
_STRENGTHS = {"power": POWER, "negative": SUM, "ceil": SUM}


def _arguments(text: str) -> list[str]:
    """Arguments of a call that is all of the text."""
    inner, depth, start, parts = text[text.index("(") + 1 : -1], 0, 0, []
    for at, letter in enumerate(inner):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(inner[start:at])
            start = at + 1
    return [*parts, inner[start:]]
