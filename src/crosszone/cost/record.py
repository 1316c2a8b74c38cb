"""Record: numbers that remember their arithmetic, so that any figure can tell how it came about.

    with recording() as tape:
        tokens = tape.leaf("tokens", 4096.0)
        rate = tape.leaf("rate", 2.0e14)
        seconds = named("head_s", 2.0 * tokens * 32000.0 / rate)
    tape.names["head_s"].value  # 1.31072e-06, and its operation and operands beside it

A `Recorded` stands in for a number or an array wherever the cost formulas read one: arithmetic, comparisons and the
NumPy functions of `_FUNCTIONS` give Recorded again, everything else about it (shape, truth) is that of its value. The
formulas stay as they are; they only use `as_array` in place of `np.asarray`, and `named` for results worth a name.
Nothing is recorded, and `named` gives back what it was given, unless a tape is open.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import numpy.typing as npt

# Operation of indexing, rolling, broadcasting, joining: each entry is one entry of an operand.
GATHER = "gather"


def _arithmetic(function: Callable[[Any, Any], Any], op: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """An operator of recorded numbers, and the same with the operands the other way round."""

    def forward(self: Recorded, other: Any) -> Any:
        value = function(self.value, other.value if isinstance(other, Recorded) else other)
        return Recorded(value, op, (self, other), self.tape)

    def backward(self: Recorded, other: Any) -> Any:
        return Recorded(function(other, self.value), op, (other, self), self.tape)

    return forward, backward


class Tape:
    """One recording: every named number of it."""

    def __init__(self, *, all_branches: bool = False) -> None:
        self.names: dict[str, Recorded] = {}
        self.all_branches = all_branches
        """Formulas that hold for other inputs only are recorded too: for a workbook whose inputs can be changed."""
        self.substitutes: dict[str, Recorded] = {}
        """Recorded numbers that stand for plain ones of the same key, so that all formulas read one input."""
        self.decisions: list[tuple[Recorded, bool]] = []
        """With all branches: what the program itself branched on; only while these hold do the expressions."""

    def leaf(self, name: str, value: Any, **about: str) -> Recorded:
        """A number that goes in; `about` tells it apart from others of its name."""
        recorded = Recorded(value, "leaf", (), self).called(name, about)
        assert recorded.key is not None
        self.names[recorded.key] = recorded
        return recorded


NOTHING: Mapping[str, str] = {}


class Recorded:
    """A number or an array with the operation and the operands it comes from; `name` makes it a result of its own."""

    __slots__ = ("about", "args", "key", "name", "op", "tape", "value")
    __hash__ = None  # type: ignore[assignment]
    value: Any
    name: str | None
    about: Mapping[str, str]
    """What tells it apart from others of its name."""
    key: str | None
    """Under which the tape keeps it."""

    def __init__(self, value: Any, op: str, args: tuple[Any, ...], tape: Tape) -> None:
        # NumPy's own scalars: their arithmetic takes a tenth of the time of arrays without axes
        self.value = value if isinstance(value, np.ndarray | np.generic) else np.asarray(value)[()]
        self.op, self.args, self.tape = op, args, tape
        self.name, self.about, self.key = None, NOTHING, None

    def called(self, name: str, about: Mapping[str, str] = NOTHING) -> Recorded:
        """The same number, now with a name."""
        self.name, self.about = name, about
        self.key = f"{name}({', '.join(about.values())})" if about else name
        return self

    def __repr__(self) -> str:
        return f"Recorded({self.name or self.op}, {self.value!r})"

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method == "reduce" and ufunc in _REDUCED:
            return _reduce(_REDUCED[ufunc], inputs[0], **options)
        # out= and where= would write past the record
        if method != "__call__" or options or ufunc not in _UFUNCS:
            return NotImplemented
        return Recorded(ufunc(*map(plain, inputs)), _UFUNCS[ufunc], inputs, self.tape)

    def __array_function__(self, function: Any, _: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if function in _FUNCTIONS:
            return _FUNCTIONS[function](*args, **options)
        return NotImplemented

    __add__, __radd__ = _arithmetic(operator.add, "add")
    __sub__, __rsub__ = _arithmetic(operator.sub, "subtract")
    __mul__, __rmul__ = _arithmetic(operator.mul, "multiply")
    __truediv__, __rtruediv__ = _arithmetic(operator.truediv, "divide")
    __pow__, __rpow__ = _arithmetic(operator.pow, "power")
    __floordiv__, __rfloordiv__ = _arithmetic(operator.floordiv, "floor_divide")
    __mod__, __rmod__ = _arithmetic(operator.mod, "remainder")
    __and__, __rand__ = _arithmetic(operator.and_, "and")
    __or__, __ror__ = _arithmetic(operator.or_, "or")
    __lt__ = _arithmetic(operator.lt, "less")[0]
    __le__ = _arithmetic(operator.le, "less_equal")[0]
    __gt__ = _arithmetic(operator.gt, "greater")[0]
    __ge__ = _arithmetic(operator.ge, "greater_equal")[0]
    __eq__ = _arithmetic(operator.eq, "equal")[0]
    __ne__ = _arithmetic(operator.ne, "not_equal")[0]

    def __neg__(self) -> Recorded:
        return Recorded(-self.value, "negative", (self,), self.tape)

    def __invert__(self) -> Recorded:
        return Recorded(~self.value, "not", (self,), self.tape)

    # The value's own shape and truth: what formulas branch on is decided as without a record.

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return tuple(self.value.shape)

    @property
    def ndim(self) -> int:
        """Number of axes of the value."""
        return int(self.value.ndim)

    def __len__(self) -> int:
        return len(self.value)

    def __bool__(self) -> bool:
        truth = bool(self.value)
        if self.tape.all_branches:
            self.tape.decisions.append((self, truth))
        return truth

    def __float__(self) -> float:
        return float(self.value)

    def __round__(self, digits: int | None = None) -> float:
        return round(float(self), digits)

    def __getitem__(self, key: Any) -> Recorded:
        return _move_entries(self, lambda positions: positions[key])

    def sum(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Sum along an axis."""
        return _reduce("sum", self, axis=axis, keepdims=keepdims)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Largest along an axis."""
        return _reduce("largest", self, axis=axis, keepdims=keepdims)

    def reshape(self, *shape: Any) -> Recorded:
        """The same entries in another shape."""
        return _move_entries(self, lambda positions: positions.reshape(*shape))


def plain(x: Any) -> Any:
    """The number or array itself."""
    return x.value if isinstance(x, Recorded) else x


def as_array(x: Any) -> Any:
    """`np.asarray` that leaves a recorded number recorded."""
    return x if isinstance(x, Recorded) else np.asarray(x)


def as_floats(x: Any) -> npt.NDArray[np.float64]:
    """The same for formulas that count in floats whatever they are given; a recorded number passes for an array."""
    return x if isinstance(x, Recorded) else np.asarray(x, dtype=float)  # type: ignore[return-value]


_tape: ContextVar[Tape | None] = ContextVar("tape", default=None)


@contextmanager
def recording(*, all_branches: bool = False) -> Iterator[Tape]:
    """Open a tape: what is named meanwhile is kept on it."""
    tape = Tape(all_branches=all_branches)
    token = _tape.set(tape)
    try:
        yield tape
    finally:
        _tape.reset(token)


def is_recording() -> bool:
    """A tape is open: names are kept."""
    return _tape.get() is not None


def named(name: str, value: Any, **about: str) -> Any:
    """The same number under a name: where expressions end, and what can be opened in turn.

    `about`: what tells it apart from others of that name, such as the zone of a price. None stays None.
    """
    tape = _tape.get()
    if tape is None or value is None:
        return value
    if not isinstance(value, Recorded):
        recorded = Recorded(value, "constant", (), tape)
        if tape.substitutes:
            recorded.called(name, about)
            assert recorded.key is not None
            if recorded.key in tape.substitutes:
                return tape.substitutes[recorded.key]
    elif value.name is None:
        recorded = Recorded(value.value, value.op, value.args, tape)
    else:
        recorded = Recorded(value.value, "same", (value,), tape)
    recorded.called(name, about)
    assert recorded.key is not None
    same_name = tape.names.get(recorded.key)
    if about and same_name is not None and not np.array_equal(same_name.value, recorded.value):
        recorded.key = f"{recorded.key}#{len(tape.names)}"  # two node groups of one zone, say
    tape.names[recorded.key] = recorded
    return recorded


# Operations


_UFUNCS: dict[Any, str] = {
    np.add: "add",
    np.subtract: "subtract",
    np.multiply: "multiply",
    np.true_divide: "divide",
    np.floor_divide: "floor_divide",
    np.remainder: "remainder",
    np.power: "power",
    np.negative: "negative",
    np.absolute: "absolute",
    np.maximum: "maximum",
    np.minimum: "minimum",
    np.log2: "log2",
    np.ceil: "ceil",
    np.floor: "floor",
    np.exp: "exp",
    np.sqrt: "sqrt",
    np.less: "less",
    np.less_equal: "less_equal",
    np.greater: "greater",
    np.greater_equal: "greater_equal",
    np.equal: "equal",
    np.not_equal: "not_equal",
    np.bitwise_and: "and",
    np.bitwise_or: "or",
    np.invert: "not",
    np.isnan: "isnan",
    np.isfinite: "isfinite",
}
_REDUCED: dict[Any, str] = {np.add: "sum", np.maximum: "largest"}
_REDUCERS: dict[str, Callable[..., Any]] = {"sum": np.sum, "largest": np.max, "argmax": np.argmax}


def _find_tape(*values: Any) -> Tape:
    return next(value.tape for value in values if isinstance(value, Recorded))


def _reduce(op: str, of: Any, axis: Any = None, *, keepdims: bool = False, **_: Any) -> Any:
    value = _REDUCERS[op](plain(of), axis=axis, keepdims=keepdims)
    return Recorded(value, op, (of, axis, keepdims), _find_tape(of))


def _move_entries(of: Any, move: Callable[[Any], Any]) -> Recorded:
    """Entries of one operand in other places: `move` is done to their numbers."""
    array = plain(of)
    positions = move(np.arange(np.size(array)).reshape(np.shape(array)))
    return Recorded(np.ravel(array)[positions], GATHER, (positions, of), _find_tape(of))


def _join_operands(operands: Any, join: Callable[[Any], Any]) -> Recorded:
    """Entries of several operands in one array: numbers go on from one operand to the next."""
    arrays = [np.asarray(plain(operand)) for operand in operands]
    starts = np.cumsum([0, *(array.size for array in arrays)])
    numbers = [
        start + np.arange(operand.size).reshape(operand.shape) for start, operand in zip(starts, arrays, strict=False)
    ]
    positions = join(numbers)
    flat = np.concatenate([operand.ravel() for operand in arrays])
    return Recorded(flat[positions], GATHER, (positions, *operands), _find_tape(*operands))


def with_entries(array: Any, entries: list[tuple[Any, Any]]) -> Any:
    """The array with other values in some places: pairs of an index and what stands there."""
    values = [value for _, value in entries]

    def fill(numbers: Any) -> Any:
        filled = np.array(numbers[0])
        for (at, _), number in zip(entries, numbers[1:], strict=True):
            filled[at] = number
        return filled

    if any(isinstance(value, Recorded) for value in values):
        return _join_operands([array, *values], fill)
    return fill([array, *values])


def _where(condition: Any, yes: Any, no: Any) -> Recorded:
    value = np.where(plain(condition), plain(yes), plain(no))
    return Recorded(value, "where", (condition, yes, no), _find_tape(condition, yes, no))


def _clip(x: Any, low: Any, high: Any) -> Any:
    return np.minimum(np.maximum(x, low), high)


def _choose(at: Any, options: Any) -> Recorded:
    value = np.choose(plain(at), [plain(option) for option in options])
    return Recorded(value, "choose", (at, *options), _find_tape(at, *options))


def pick(at: Recorded, options: list[Any]) -> Recorded:
    """One of several numbers, by its place; of any number of them, which `np.choose` does not take."""
    return Recorded(plain(options[int(at.value)]), "choose", (at, *options), at.tape)


def _any(x: Any) -> bool:
    """A formula asks whether it is needed at all; for all branches it is."""
    return _find_tape(x).all_branches or bool(np.any(plain(x)))


def _cumsum(x: Any, axis: int) -> Recorded:
    return Recorded(np.cumsum(plain(x), axis=axis), "cumsum", (x, axis), _find_tape(x))


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.where: _where,
    np.clip: _clip,
    np.choose: _choose,
    np.any: _any,
    np.all: lambda x: bool(np.all(plain(x))),
    np.sum: lambda x, axis=None, keepdims=False: _reduce("sum", x, axis=axis, keepdims=keepdims),
    np.max: lambda x, axis=None, keepdims=False: _reduce("largest", x, axis=axis, keepdims=keepdims),
    np.argmax: lambda x, axis=None: _reduce("argmax", x, axis=axis),
    np.cumsum: _cumsum,
    np.roll: lambda x, shift, axis=None: _move_entries(x, lambda at: np.roll(at, shift, axis)),
    np.broadcast_to: lambda x, shape: _move_entries(x, lambda at: np.broadcast_to(at, shape)),
    np.ravel: lambda x: _move_entries(x, np.ravel),
    np.reshape: lambda x, shape: _move_entries(x, lambda at: at.reshape(shape)),
    np.atleast_1d: lambda x: _move_entries(x, np.atleast_1d),
    np.atleast_2d: lambda x: _move_entries(x, np.atleast_2d),
    np.stack: lambda xs, axis=0: _join_operands(xs, lambda numbers: np.stack(numbers, axis)),
    np.concatenate: lambda xs, axis=0: _join_operands(xs, lambda numbers: np.concatenate(numbers, axis)),
    np.zeros_like: lambda x: np.zeros_like(plain(x)),
    np.empty_like: lambda x: np.empty_like(plain(x)),
    np.ndim: lambda x: plain(x).ndim,
    np.shape: lambda x: plain(x).shape,
    np.size: lambda x: plain(x).size,
}
