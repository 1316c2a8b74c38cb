"""Formulas: recorded numbers as the cells of a spreadsheet, one cell a named number, its expression an Excel formula.

    cells = FormulaCells(is_typed=lambda node: node.op == "leaf", places={})
    cells.write_term(prediction.step_time_s.expected).text  # "step_time_s": the name of the cell that holds it
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

from crosszone.cost.expression import (
    Index,
    RecordedEntry,
    find_gathered_entry,
    find_operand_entry,
    iterate_reduced_entries,
)
from crosszone.cost.record import GATHER, Recorded, Tape, plain

UNLIMITED = 1e300
# Characters of a formula beyond which parts of it get cells of their own; Excel takes 8192, a reader fewer.
LONGEST_FORMULA = 700
SHARED_LENGTH = 24  # Characters from which an expression that several others read gets a cell of its own
COMPARISON, SUM, PRODUCT, POWER, ATOM = range(5)  # How strongly the parts of a text hold together
SHARED_PREFIX = "shared_"  # Beginning of the names of cells that hold an expression without a name of its own

MOST_CHOICES = 254  # Values that CHOOSE takes

Key = tuple[int, int]  # A recorded array, and one of its entries counted flat


class FormulaTerm(NamedTuple):
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
    entry: RecordedEntry
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


def build_literal(value: Any) -> FormulaTerm:
    """A plain number, or a truth value."""
    if isinstance(value, bool | np.bool_):
        return FormulaTerm("TRUE" if value else "FALSE", ATOM, float(value), literal=True, logical=True)
    number = float(value)
    return FormulaTerm(write_number(number), ATOM if number >= 0 else SUM, number, literal=True)


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
        self._terms: dict[Key, FormulaTerm] = {}
        self._by_text: dict[tuple[str, str], str] = {}
        self._live: dict[int, bool] = {}
        self._parents: Counter[int] = Counter()
        self._counted: set[int] = set()
        self._kept_alive: list[Any] = []

    def write_term(self, node: Any, at: Index = ()) -> FormulaTerm:
        """What a formula writes to read a recorded number: the name of its cell, or a plain number; and its range."""
        if not isinstance(node, Recorded):
            return build_literal(np.asarray(node)[at] if np.ndim(node) else node)
        self._kept_alive.append(node)  # terms are remembered by id
        self._count_readers(node)
        waiting = [(node, at)]
        while waiting:
            current, index = waiting[-1]
            key = _make_key(current, index)
            if key in self._terms:
                waiting.pop()
                continue
            missing = [entry for entry in self._list_needs(current, index) if _make_key(*entry) not in self._terms]
            if missing:
                waiting += missing
                continue
            self._terms[key] = self._finish(current, index, self._write(current, index))
            waiting.pop()
        return self._terms[_make_key(node, at)]

    # What an entry is made of

    def _count_readers(self, node: Recorded) -> None:
        """Count by how many others each number is read, and note which an input can change."""
        waiting = [node]
        while waiting:
            current = waiting[-1]
            if id(current) in self._counted:
                waiting.pop()
                continue
            operands = [operand for operand in current.args if isinstance(operand, Recorded)]
            unseen = [operand for operand in operands if id(operand) not in self._counted]
            if unseen:
                waiting += unseen
                continue
            self._counted.add(id(current))
            self._kept_alive.append(current)
            self._parents.update({id(operand) for operand in operands})
            is_leaf = current.op in ("leaf", "constant")
            self._live[id(current)] = (
                self.is_typed(current) if is_leaf else any(self._live[id(operand)] for operand in operands)
            )
            waiting.pop()

    def _is_live(self, node: Any) -> bool:
        return isinstance(node, Recorded) and self._live[id(node)]

    def _list_needs(self, x: Recorded, at: Index) -> list[tuple[Recorded, Index]]:
        """Entries that are written before this one; of a branch that is settled only the one taken."""
        entries: Sequence[tuple[Any, Index]]
        match x.op:
            case "leaf" | "constant":
                return []
            case "where" | "choose":
                test = find_operand_entry(x.args[0], at)
                if self._is_live(test[0]) and _make_key(*test) not in self._terms:
                    return [test]
                branch = self._select_branch(x, at)
                entries = (
                    [branch] if branch is not None else [test, *(find_operand_entry(arg, at) for arg in x.args[1:])]
                )
            case "multiply" | "and":
                entries = [find_operand_entry(arg, at) for arg in x.args]
                if self._has_settled_zero(entries):
                    return []
            case op if op in ("sum", "largest", "argmax", "cumsum"):
                entries = list(_iterate_reduced(x, at))
            case op if op == GATHER:
                entries = [find_gathered_entry(x, at)]
            case "same":
                entries = [(x.args[0], at)]
            case _:
                entries = [find_operand_entry(arg, at) for arg in x.args]
        return [entry for entry in entries if isinstance(entry[0], Recorded)]

    def _has_settled_zero(self, entries: Sequence[tuple[Any, Index]]) -> bool:
        """Whether one of the entries is 0 (or false) whatever the inputs are; their product then is too."""
        return any(not self._is_live(node) and not np.asarray(plain(node))[at] for node, at in entries)

    def _select_branch(self, x: Recorded, at: Index) -> tuple[Any, Index] | None:
        """The branch that is taken whatever the inputs are; None: they decide."""
        test, index = find_operand_entry(x.args[0], at)
        if self._is_live(test) and self._terms[_make_key(test, index)].live:
            return None
        value = np.asarray(plain(test))[index]
        if x.op == "choose":
            return find_operand_entry(x.args[1 + int(value)], at)
        return find_operand_entry(x.args[1 if value else 2], at)

    def _get_term(self, entry: tuple[Any, Index]) -> FormulaTerm:
        node, at = entry
        return self._terms[_make_key(node, at)] if isinstance(node, Recorded) else build_literal(np.asarray(node)[at])

    # Text

    def _write(self, x: Recorded, at: Index) -> FormulaTerm:
        value = x.value[at] if at else x.value
        match x.op:
            case "leaf" | "constant":
                return build_literal(value)
            case "where" | "choose":
                return self._write_conditional(x, at)
            case op if op == GATHER:
                return self._get_term(find_gathered_entry(x, at))
            case "same":
                return self._get_term((x.args[0], at))
            case "multiply" | "and":
                entries = [find_operand_entry(arg, at) for arg in x.args]
                if self._has_settled_zero(entries):
                    return build_literal(value * 0 if x.op == "multiply" else False)
                operands = [self._get_term(entry) for entry in entries]
            case op if op in ("sum", "largest", "argmax", "cumsum"):
                operands = [self._get_term(entry) for entry in _iterate_reduced(x, at)]
            case _:
                operands = [self._get_term(find_operand_entry(arg, at)) for arg in x.args]
        live = any(operand.live for operand in operands)
        settled = not live and (not value or isinstance(value, bool | np.bool_))
        if settled or all(operand.literal for operand in operands):
            return build_literal(value)
        term = self._write_operation(x, operands, float(value))
        return term._replace(value=float(value), live=live)

    def _write_conditional(self, x: Recorded, at: Index) -> FormulaTerm:
        branch = self._select_branch(x, at)
        if branch is not None:
            return self._get_term(branch)
        test = self._get_term(find_operand_entry(x.args[0], at))
        branches = [self._get_term(find_operand_entry(arg, at)) for arg in x.args[1:]]
        if len({term.text for term in branches}) == 1:
            return branches[0]
        if x.op == "choose" and len(branches) > MOST_CHOICES:
            raise TypeError(f"a choice of {len(branches)}: spreadsheets take {MOST_CHOICES}")
        texts = [self._shorten(term).text for term in branches]
        value = float(x.value[at] if at else x.value)
        logical = all(term.logical for term in branches)
        if x.op == "where":
            text = f"IF({_write_condition(test)},{texts[0]},{texts[1]})"
        else:
            text = f"CHOOSE({test.text}+1,{','.join(texts)})"
        return FormulaTerm(text, ATOM, value, live=True, logical=logical)

    def _write_operation(self, x: Recorded, operands: list[FormulaTerm], value: float) -> FormulaTerm:
        short = [self._shorten(operand) for operand in operands]
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
                return self._write_total(operands)
            case "maximum" | "minimum" | "largest":
                return self._write_extreme("MIN" if x.op == "minimum" else "MAX", operands)
            case "argmax":
                return _find_largest(short)
            case "and" | "or":
                return _join(x.op, operands)
            case "not":
                return FormulaTerm(f"NOT({_write_condition(short[0])})", ATOM, value, logical=True)
            case op if op in _COMPARISONS:
                return _compare(op, *short)
            case op if op in _WRITERS:
                return FormulaTerm(_WRITERS[op](*map(_convert_to_number, short)), _STRENGTHS.get(op, ATOM), value)
            case "isnan":
                return build_literal(False)
            case "isfinite":
                return FormulaTerm(
                    f"{_wrap_text(short[0], SUM)}<{write_number(UNLIMITED / 10)}", COMPARISON, value, logical=True
                )
        raise TypeError(f"no formula for {x.op}")

    def _write_total(self, operands: list[FormulaTerm]) -> FormulaTerm:
        """A sum, equal terms once with their number; a long one in parts."""
        counts = Counter(operand.text for operand in operands if not (operand.literal and operand.value == 0))
        first = {operand.text: operand for operand in operands}
        terms = [
            first[text]
            if count == 1
            else _multiply(build_literal(count), first[text])._replace(
                value=count * first[text].value, live=first[text].live
            )
            for text, count in counts.items()
        ]
        return (
            _add([self._shorten(operand) for operand in self._split_into_parts(terms, _add, sum)])
            if terms
            else build_literal(0.0)
        )

    def _write_extreme(self, function: str, operands: list[FormulaTerm]) -> FormulaTerm:
        """The largest or least of several; what sets no limit is left out."""
        unlimited = -math.inf if function == "MAX" else math.inf
        texts = {term.text: term for term in operands if not (term.literal and term.value == unlimited)}
        inner: dict[str, FormulaTerm] = {}
        for text, term in texts.items():
            if term.literal and math.isinf(term.value):
                return term
            is_nested = term.strength == ATOM and text.startswith(f"{function}(") and len(text) < LONGEST_FORMULA
            for part in _split_arguments(text) if is_nested else [text]:
                inner.setdefault(part, term._replace(text=part) if is_nested else term)
        if len(inner) == 1:
            return next(iter(inner.values()))

        def write_call(terms: list[FormulaTerm]) -> FormulaTerm:
            return FormulaTerm(
                f"{function}({','.join(_convert_to_number(term).text for term in terms)})", ATOM, 0.0, live=True
            )

        combine = max if function == "MAX" else min
        return write_call(self._split_into_parts(list(inner.values()), write_call, combine))

    def _split_into_parts(
        self, terms: list[FormulaTerm], write: Callable[[list[FormulaTerm]], FormulaTerm], combine: Callable[..., float]
    ) -> list[FormulaTerm]:
        """Terms of a long list, some of them put together in cells of their own."""
        while len(terms) > 1 and sum(len(term.text) + 1 for term in terms) > LONGEST_FORMULA:
            parts: list[list[FormulaTerm]] = [[]]
            for term in terms:
                if (
                    parts[-1]
                    and sum(len(earlier.text) + 1 for earlier in parts[-1]) + len(term.text) > LONGEST_FORMULA / 2
                ):
                    parts.append([])
                parts[-1].append(term)
            if len(parts) in (1, len(terms)):
                return [self._place_in_cell(term) for term in terms] if len(parts) == len(terms) else terms
            values = [float(combine(term.value for term in part)) for part in parts]
            live = [any(term.live for term in part) for part in parts]
            written = [write(part)._replace(live=is_live) for part, is_live in zip(parts, live, strict=True)]
            terms = [self._place_in_cell(term._replace(value=v)) for term, v in zip(written, values, strict=True)]
        return terms

    # Cells

    def _shorten(self, term: FormulaTerm) -> FormulaTerm:
        """The term, in a cell of its own where it is long."""
        return self._place_in_cell(term) if len(term.text) > LONGEST_FORMULA // 3 else term

    def place_text(self, text: str) -> str:
        """A condition in a cell of its own: the name of that cell."""
        condition = FormulaTerm(text, ATOM, 1.0, live=True, logical=True)
        return self._place_in_cell(condition, RecordedEntry(Recorded(True, "leaf", (), Tape()), ())).text

    def _place_in_cell(self, term: FormulaTerm, entry: RecordedEntry | None = None) -> FormulaTerm:
        """The term in a cell of its own; the same text has one cell."""
        if _is_reference(term.text) or term.literal:
            return term
        name = self._by_text.get(("", term.text))
        if name is None:
            name = f"{SHARED_PREFIX}{len(self.cells)}"
            self._by_text["", term.text] = name
            entry = entry or RecordedEntry(Recorded(term.value, "leaf", (), Tape()), ())
            self.cells[name] = FormulaCell(name, term.text, term.value, False, entry)
        return term._replace(text=name, strength=ATOM)

    def _finish(self, x: Recorded, at: Index, term: FormulaTerm) -> FormulaTerm:
        """The term of an entry: a reference where the entry has a cell."""
        entry = RecordedEntry(x, at)
        if x.name is None:
            shared = self._parents[id(x)] > 1 and len(term.text) > SHARED_LENGTH and x.op != GATHER
            return self._place_in_cell(term, entry) if shared else term
        if x.op in ("leaf", "constant"):
            typed = self.is_typed(x)
            if not math.isfinite(term.value) or (not typed and (term.value == 0 or term.logical)):
                return term
            return self._place_named(entry, None, term, typed=typed)._replace(live=typed)
        if term.literal or (_is_reference(term.text) and id(x) not in self.places):
            self._record_entry(term.text, entry)
            return term
        return self._place_named(entry, term.text, term, typed=False)

    def _place_named(self, entry: RecordedEntry, formula: str | None, term: FormulaTerm, *, typed: bool) -> FormulaTerm:
        node = entry.node
        address = self.places.get(id(node))
        key = (node.key or "").split("#")[0] if address is None else "grid"
        text = write_number(term.value) if formula is None else formula
        name = self._by_text.get((key, text))
        if name is None:
            figure_name = None if formula is None else self.figures.get(id(node))
            name = address or figure_name or self._make_unique_name(self.names.get(node.name or "", key), entry)
            self._by_text[key, text] = name
            self.cells[name] = FormulaCell(name, formula, term.value, typed, entry, [entry.at], address)
        else:
            self.cells[name].entries.append(entry.at)
        return FormulaTerm(name, ATOM, term.value, live=term.live, logical=term.logical)

    def _record_entry(self, name: str, entry: RecordedEntry) -> None:
        cell = self.cells.get(name)
        if cell is not None and cell.entry.node.name == entry.node.name:
            cell.entries.append(entry.at)

    def _make_unique_name(self, key: str, entry: RecordedEntry) -> str:
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

    def select_used(self, formulas: Sequence[str]) -> dict[str, FormulaCell]:
        """The cells that some formulas rest on, each after those it reads; shared ones that are read once put in."""
        uses: Counter[str] = Counter()
        order: dict[str, None] = {}
        for text in formulas:
            self._trace_reads(text, uses, order)
        cells = {name: self.cells[name] for name in order}
        for name in list(cells):
            cell = cells[name]
            if cell.formula is None:
                continue
            text = cell.formula
            for other in set(list_references(text)):
                source = cells.get(other)
                is_read_once = other.startswith(SHARED_PREFIX) and uses[other] == 1 and source is not None
                if is_read_once and source is not None and len(text) + len(source.formula or "") < LONGEST_FORMULA:
                    text = re.sub(rf"\b{other}\b", f"({source.formula})".replace("\\", ""), text)
                    del cells[other]
            cells[name] = replace(cell, formula=text)
        return cells

    def _trace_reads(self, text: str, uses: Counter[str], order: dict[str, None]) -> None:
        waiting = [name for name in list_references(text) if name in self.cells]
        uses.update(waiting)
        while waiting:
            name = waiting[-1]
            if name in order:
                waiting.pop()
                continue
            reads = [name for name in list_references(self.cells[name].formula or "") if name in self.cells]
            missing = [name for name in reads if name not in order]
            if missing:
                waiting += missing
                continue
            order[name] = None
            uses.update(reads)
            waiting.pop()


_REFERENCE = re.compile(r"(?:Pipeline!)?\$?[A-Za-z_][A-Za-z0-9_$]*")
_NAME = re.compile(r"(?<![A-Za-z0-9_.!$])(?:Pipeline!)?[A-Za-z_$][A-Za-z0-9_$]*(?![A-Za-z0-9_(.!])")


def list_references(text: str) -> list[str]:
    """Names and addresses that a formula reads."""
    return [name for name in _NAME.findall(text) if name not in ("TRUE", "FALSE")]


def _is_reference(text: str) -> bool:
    return _REFERENCE.fullmatch(text) is not None


def _make_key(node: Any, at: Index) -> Key:
    shape = node.value.shape
    return id(node), int(np.ravel_multi_index(at, shape)) if shape else 0


def _iterate_reduced(x: Recorded, at: Index) -> Iterator[tuple[Any, Index]]:
    """Entries that a sum or a largest over an axis puts together."""
    if x.op == "cumsum":
        of, axis = x.args
        axis %= len(at)
        yield from ((of, (*at[:axis], i, *at[axis + 1 :])) for i in range(at[axis] + 1))
        return
    yield from iterate_reduced_entries(x, at)


def _wrap_text(term: FormulaTerm, strength: int) -> str:
    number = _convert_to_number(term)
    return number.text if number.strength >= strength else f"({number.text})"


def _convert_to_number(term: FormulaTerm) -> FormulaTerm:
    """The term where a number is due: a truth value counts 1 or 0."""
    if not term.logical:
        return term
    if term.literal:
        return build_literal(term.value)
    return term._replace(text=f"IF({term.text},1,0)", strength=ATOM, logical=False)


def _write_condition(term: FormulaTerm) -> str:
    return term.text if term.logical else f"{_wrap_text(term, SUM)}<>0"


def _add(terms: list[FormulaTerm]) -> FormulaTerm:
    terms = [term for term in terms if not (term.literal and term.value == 0)]
    if len(terms) == 1:
        return _convert_to_number(terms[0])
    text = _wrap_text(terms[0], SUM)
    for term in terms[1:]:
        part = _wrap_text(term, SUM)
        text += part if part.startswith("-") else f"+{part}"
    return FormulaTerm(text, SUM, 0.0)


def _subtract(a: FormulaTerm, b: FormulaTerm) -> FormulaTerm:
    if b.literal and b.value == 0:
        return _convert_to_number(a)
    if a.literal and a.value == 0:
        return FormulaTerm(f"-{_wrap_text(b, POWER)}", SUM, 0.0)
    return FormulaTerm(f"{_wrap_text(a, SUM)}-{_wrap_text(b, PRODUCT)}", SUM, 0.0)


def _multiply(a: FormulaTerm, b: FormulaTerm) -> FormulaTerm:
    for factor, remaining in ((a, b), (b, a)):
        if factor.literal and factor.value == 1:
            return remaining
        if factor.literal and factor.value == 0:
            return build_literal(0.0)
    for factor, remaining in ((a, b), (b, a)):
        if factor.logical and not factor.literal:
            return FormulaTerm(f"IF({factor.text},{_convert_to_number(remaining).text},0)", ATOM, 0.0)
    return FormulaTerm(f"{_wrap_text(a, PRODUCT)}*{_wrap_text(b, POWER)}", PRODUCT, 0.0)


def _divide(a: FormulaTerm, b: FormulaTerm) -> FormulaTerm:
    if b.literal and b.value == 1:
        return _convert_to_number(a)
    if b.literal and math.isinf(b.value):
        return build_literal(0.0)
    return FormulaTerm(f"{_wrap_text(a, PRODUCT)}/{_wrap_text(b, POWER)}", PRODUCT, 0.0)


def _join(op: str, terms: list[FormulaTerm]) -> FormulaTerm:
    """Conditions put together; those that are settled are left out."""
    settled = [term for term in terms if not term.live]
    for term in settled:
        if bool(term.value) != (op == "and"):
            return build_literal(op == "or")
    undecided = [term for term in terms if term.live]
    if len(undecided) == 1:
        return undecided[0]._replace(logical=True, text=_write_condition(undecided[0]))
    parts: dict[str, None] = {}
    for term in undecided:
        nested = term.strength == ATOM and term.text.startswith(f"{op.upper()}(")
        parts |= dict.fromkeys(_split_arguments(term.text) if nested else [_write_condition(term)])
    return FormulaTerm(f"{op.upper()}({','.join(parts)})", ATOM, 0.0, logical=True)


_COMPARISONS = {
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "equal": "=",
    "not_equal": "<>",
}


def _compare(op: str, a: FormulaTerm, b: FormulaTerm) -> FormulaTerm:
    if a.logical and op == "greater" and b.literal and b.value == 0:
        return a
    return FormulaTerm(f"{_wrap_text(a, SUM)}{_COMPARISONS[op]}{_wrap_text(b, SUM)}", COMPARISON, 0.0, logical=True)


def _find_largest(terms: list[FormulaTerm]) -> FormulaTerm:
    """Where the first of the largest is, counted from 0; equal texts are equal numbers."""
    first = {term.text: at for at, term in reversed(list(enumerate(terms)))}
    places = sorted(first.values())
    text = str(places[-1])
    for number, at in reversed(list(enumerate(places[:-1]))):
        later = ",".join(terms[other].text for other in places[number + 1 :])
        text = f"IF({_wrap_text(terms[at], SUM)}>=MAX({later}),{at},{text})"
    return FormulaTerm(text, ATOM, 0.0)


def _round_text(term: FormulaTerm) -> str:
    """The text of what is rounded; a logarithm may miss a whole number by its last digit."""
    return f"ROUND({term.text},9)" if term.text.startswith("LOG(") else term.text


_WRITERS: dict[str, Callable[..., str]] = {
    "power": lambda a, b: f"{_wrap_text(a, ATOM)}^{_wrap_text(b, ATOM)}",
    "negative": lambda a: f"-{_wrap_text(a, POWER)}",
    "remainder": lambda a, b: f"MOD({a.text},{b.text})",
    "floor_divide": lambda a, b: f"INT({_wrap_text(a, PRODUCT)}/{_wrap_text(b, POWER)})",
    "floor": lambda a: f"INT({_round_text(a)})",
    "ceil": lambda a: f"-INT(-{_wrap_text(a._replace(text=_round_text(a)), ATOM)})",
    "log2": lambda a: f"LOG({a.text},2)",
    "exp": lambda a: f"EXP({a.text})",
    "sqrt": lambda a: f"SQRT({a.text})",
    "absolute": lambda a: f"ABS({a.text})",
}
_STRENGTHS = {"power": POWER, "negative": SUM, "ceil": SUM}


def _split_arguments(text: str) -> list[str]:
    """Arguments of a call that is all of the text."""
    inner, depth, start, parts = text[text.index("(") + 1 : -1], 0, 0, []
    for at, letter in enumerate(inner):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(inner[start:at])
            start = at + 1
    return [*parts, inner[start:]]
