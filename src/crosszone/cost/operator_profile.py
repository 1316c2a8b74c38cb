"""Operator profiles: times of single operators on one GPU, fitted to samples (`profiles/operators/*.yaml`).

    profile = load_operator_profile("h200-141gb-sxm")
    timed = profile.predict("matmul", {"m": 8192, "n": 4096, "k": 4096}, dtype="bf16", which="fwd")
    timed.time_us, timed.error_pct, timed.outside
    profile.summarize()["matmul"]["unseen_pct"]
    profile.coefficients["matmul"].value                      # what the cost formulas take from it

A time is a physical form (`operator_forms`) times a small correction: boosted trees of log(time / form) that are plain
text here and need numpy only. Outside the sampled sizes the correction fades within one octave; the form stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationInfo, field_validator, model_validator

from crosszone.cost.coefficients import Coefficient, check_field_names
from crosszone.cost.operator_checks import CheckTable
from crosszone.cost.operator_forms import (
    DIMS,
    DTYPE_BYTES,
    FAMILIES,
    OPTIONAL,
    Floats,
    build_basis_terms,
    build_features,
)
from crosszone.errors import InvalidError, Notice, UnknownNameError
from crosszone.inputs.document import Document, read_document
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import Count, Name, NotNegative, Value, find_nearest_names, parse, refuse

MOST_CORRECTION = 0.7  # A correction changes the logarithm of a time by no more than this (a factor of 2)
USUAL_MODE = "eager"
SIXTEEN_BIT = ("bf16", "fp16")  # Precisions whose kernels are as fast
_PASSES = {
    "matmul": ("fwd", "dgrad", "wgrad", "bwd"),
    "grouped_matmul": ("fwd", "dgrad", "wgrad"),
    "adamw": ("step",),
    "copy": ("step",),
    "train_step": ("step",),
}


def list_passes(op: str) -> tuple[str, ...]:
    """The passes that an operator has."""
    return _PASSES.get(op, ("fwd", "bwd"))


class Trees(Value):
    """Boosted trees of log(time / form), each a text: `2:11.5` splits by feature 2 (to 11.5: the next), `.02` ends."""

    signs: tuple[Name, ...]
    """What the trees look at (`operator_forms.build_features`), by number."""
    base: float
    """What all trees add to."""
    trees: tuple[str, ...]
    """Nodes in order: a split is followed by all of its lower side, then its upper side."""

    @field_validator("trees")
    @classmethod
    def _check_trees(cls, texts: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        for text in texts:
            try:
                last = int(_parse_tree(text).sign.max())
            except (ValueError, OverflowError):
                raise refuse("operator_tree", text[:60]) from None
            if "signs" in info.data and last >= len(info.data["signs"]):
                raise refuse("operator_tree", text[:60])
        return texts

    def evaluate(self, features: Mapping[str, Floats]) -> Floats:
        """The sum of all trees. [K25]"""
        size = np.broadcast(*features.values()).shape
        matrix = np.empty((*size, len(self.signs)))
        for at, name in enumerate(self.signs):
            matrix[..., at] = features[name]
        total = np.full(matrix.shape[:-1], self.base)
        for text in self.trees:
            total = total + _parse_leaf(_parse_tree(text), matrix)
        return total


@dataclass(frozen=True)
class _Tree:
    sign: npt.NDArray[np.int64]
    """-1: a leaf."""
    number: Floats
    """Threshold of a split, value of a leaf."""
    upper: npt.NDArray[np.int64]
    """Node of the upper side; the lower one is the next."""


@lru_cache(maxsize=10_000)
def _parse_tree(text: str) -> _Tree:
    nodes = text.split()
    upper = np.zeros(len(nodes), dtype=np.int64)
    waiting: list[int] = []  # splits whose upper side has not begun, the innermost last
    for at, node in enumerate(nodes):
        if ":" in node:
            waiting.append(at)
        elif waiting:
            upper[waiting.pop()] = at + 1
        elif at != len(nodes) - 1:
            raise ValueError(text)
    feature = np.array([int(node.split(":")[0]) if ":" in node else -1 for node in nodes], dtype=np.int64)
    numbers = np.array([float(node.split(":")[-1]) for node in nodes])
    is_complete = bool(nodes) and not waiting and upper.max() < len(nodes)
    if not is_complete or not np.isfinite(numbers).all() or np.any((feature < 0) != (upper == 0)):
        raise ValueError(text)
    return _Tree(feature, numbers, upper)


def _parse_leaf(tree: _Tree, matrix: Floats) -> Floats:
    at = np.zeros(matrix.shape[:-1], dtype=np.int64)
    while True:
        sign = tree.sign[at]
        if np.all(sign < 0):
            return np.asarray(tree.number[at])
        value = np.take_along_axis(matrix, np.maximum(sign, 0)[..., None], axis=-1)[..., 0]
        step = np.where(value <= tree.number[at], at + 1, tree.upper[at])
        at = np.where(sign < 0, at, step)


class FitPart(Value):
    """Samples of one origin within a fit, e.g. the linear layers of one kind."""

    samples: Count
    """How many."""
    error_pct: NotNegative
    """Mean error with random samples held out."""
    unseen_pct: NotNegative
    """Mean error with whole sizes held out."""


class OperatorFit(Value):
    """The fit of one operator in one precision, pass and mode."""

    op: Name
    """Operator (`operator_forms.DIMS`)."""
    dtype: Name
    """bf16, fp16, fp8 or fp32."""
    which: Name
    """fwd, dgrad, wgrad, bwd (all of the backward pass) or step."""
    mode: Name = USUAL_MODE
    """eager, compiled, or what else the sampler calls it."""
    coefficients: dict[Name, NotNegative]
    """Microseconds of one unit of each term; terms that are not named add nothing."""
    floor_us: NotNegative = 0.0
    """The form is never below this: launches."""
    samples: Count
    """Samples it rests on."""
    error_pct: NotNegative
    """Mean error with random samples held out, correction included."""
    median_pct: NotNegative
    """The median of these errors."""
    unseen_pct: NotNegative
    """Mean error with whole sizes held out, correction included."""
    weighted_pct: NotNegative | None = None
    """The same weighted by time: large operators, which a step is made of, count for more."""
    physical_pct: NotNegative
    """Mean error of the form alone, random samples held out."""
    physical_unseen_pct: NotNegative
    """Mean error of the form alone, whole sizes held out."""
    held_out: Name
    """What `unseen_pct` holds out whole."""
    ranges: dict[Name, tuple[float, float]]
    """Smallest and largest sampled size."""
    parts: dict[Name, FitPart] = Field(default_factory=dict)
    """Errors by origin of the samples, where there are several."""
    settings: dict[Name, Any] = Field(default_factory=dict)
    """How the correction was fitted."""
    correction: Trees | None = None
    """None: the form alone is as good."""

    @field_validator("op")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name not in FAMILIES:
            raise refuse(
                "operator_unknown", name, known=sorted(FAMILIES), nearest=find_nearest_names(name, FAMILIES)[:1]
            )
        return name

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        """Every name is one that the operator's form knows."""
        for name, value, allowed in (
            ("dtype", self.dtype, tuple(DTYPE_BYTES)),
            ("which", self.which, list_passes(self.op)),
        ):
            if value not in allowed:
                raise refuse(
                    "not_one_of", value, at=(name,), allowed=allowed, nearest=find_nearest_names(value, allowed)[0]
                )
        ones = {name: np.ones(1) for name in DIMS[self.op]}
        form = self.op, self.which, ones, DTYPE_BYTES[self.dtype], 1
        _check_among("coefficients", self.coefficients, build_basis_terms(*form))
        _check_among("ranges", self.ranges, ones)
        if self.correction is not None:
            _check_among("correction.signs", self.correction.signs, build_features(*form))
        for name in ones:
            if name not in self.ranges:
                raise refuse("missing_key", at=("ranges", name), key=name)
            low, high = self.ranges[name]
            if not 0 < low <= high < np.inf:
                code, limit = ("must_be_more_than", 0) if not low > 0 else ("must_be_at_least", low)
                raise refuse(code, high if low > 0 else low, at=("ranges", name), limit=limit)
        return self

    @property
    def key(self) -> str:
        """Operator, precision and pass, and the mode where it is not eager."""
        return build_fit_key(self.op, self.dtype, self.which, self.mode)

    def physical_us(self, sizes: Mapping[str, Any], processors: int) -> Floats:
        """The form alone. [K21]"""
        basis = build_basis_terms(
            self.op, self.which, build_size_arrays(self.op, sizes), DTYPE_BYTES[self.dtype], processors
        )
        total = sum((value * basis[name] for name, value in self.coefficients.items()), np.zeros_like(basis["launch"]))
        return np.maximum(total, self.floor_us)

    def time_us(self, sizes: Mapping[str, Any], processors: int) -> Floats:
        """The form times its correction; far outside of the samples the form alone. [K26]"""
        physical = self.physical_us(sizes, processors)
        if self.correction is None:
            return physical
        dims = build_size_arrays(self.op, sizes)
        # trees stay constant beyond the samples [K25], so they are asked for the nearest sampled sizes [K26]
        inside = {name: np.clip(value, *self.ranges[name]) for name, value in dims.items() if name in self.ranges}
        features = build_features(self.op, self.which, inside, DTYPE_BYTES[self.dtype], processors)
        change = np.clip(self.correction.evaluate(features), -MOST_CORRECTION, MOST_CORRECTION)
        return physical * np.exp(change * self._estimate_trust(dims))

    def _estimate_trust(self, dims: Mapping[str, Floats]) -> Floats:
        """1 within the sampled sizes, 0 from one octave outside. [K26]"""
        away: Any = 0.0
        for name, (low, high) in self.ranges.items():
            value = np.maximum(dims[name], 1e-9)
            away = away + np.maximum(0.0, np.log2(value / high)) + np.maximum(0.0, np.log2(low / value))
        return np.clip(1.0 - np.asarray(away), 0.0, 1.0)

    def list_outside(self, dims: Mapping[str, float]) -> list[str]:
        """Names of sizes that lie outside of the samples'."""
        return [
            name
            for name, (low, high) in self.ranges.items()
            if name in dims and not low * (1 - 1e-9) <= float(dims[name]) <= high * (1 + 1e-9)
        ]


@dataclass(frozen=True, kw_only=True)
class OperatorTime:
    """One operator's predicted time, and how far to trust it."""

    key: str
    time_us: float
    physical_us: float
    """Without the correction."""
    error_pct: float
    """Mean error that such predictions had on held-out samples; outside of the sampled sizes that of unseen ones."""
    outside: tuple[str, ...]
    """Sizes outside of the samples': the error may be larger."""
    ranges: Mapping[str, tuple[float, float]]


class OperatorProfile(Value):
    """All fits of one GPU, and what the cost formulas take from them."""

    gpu: Name
    """Catalogue name."""
    device: str = ""
    """What the device called itself."""
    source: str
    """What the samples are."""
    processors: Count
    """Streaming multiprocessors (compute units) of the GPU."""
    samples: int = Field(ge=0)
    """Samples used."""
    left_out: dict[Name, int] = Field(default_factory=dict)
    """Samples that were not used, by reason."""
    operators: dict[Name, OperatorFit]
    """Fits, by operator, precision and pass."""
    coefficients: dict[Name, Coefficient] = Field(default_factory=dict)
    """Coefficients of the cost formulas that the samples determine."""
    stack_coefficients: dict[Name, dict[Name, Coefficient]] = Field(default_factory=dict)
    """What whole layers and steps add, by mode: of a software stack."""
    notes: tuple[str, ...] = ()
    """What to know of it."""
    checks: dict[Name, CheckTable] = Field(default_factory=dict)
    """Measured shapes of the operators that a step has formulas for: what these formulas are scored on."""

    @field_validator("coefficients")
    @classmethod
    def _check_fields(cls, coefficients: dict[str, Coefficient]) -> dict[str, Coefficient]:
        return check_field_names(coefficients)

    def summarize(self) -> dict[str, dict[str, float]]:
        """Mean errors and samples by family of operators, of the usual mode where it was sampled."""
        families: dict[str, list[OperatorFit]] = {}
        for fit in self.operators.values():
            if fit.mode != USUAL_MODE and any(
                other.op == fit.op and other.mode == USUAL_MODE for other in self.operators.values()
            ):
                continue
            families.setdefault(FAMILIES.get(fit.op, fit.op), []).append(fit)
        return {
            family: {
                "error_pct": round(float(np.mean([fit.error_pct for fit in fits])), 2),
                "unseen_pct": round(float(np.mean([fit.unseen_pct for fit in fits])), 2),
                "samples": float(sum(fit.samples for fit in fits)),
            }
            for family, fits in families.items()
        }

    def fit(self, op: str, dtype: str, which: str, mode: str = USUAL_MODE) -> OperatorFit:
        """The fit of an operator; `UnknownNameError` names those there are."""
        name = build_fit_key(op, dtype, which, mode)
        if name not in self.operators:
            params = {
                "gpu": self.gpu,
                "known": sorted(self.operators),
                "nearest": find_nearest_names(name, self.operators)[:3],
            }
            raise UnknownNameError(Notice(code="operator_not_fitted", field="op", value=name, params=params))
        return self.operators[name]

    def predict(
        self, op: str, dims: Mapping[str, float], *, dtype: str = "bf16", which: str = "fwd", mode: str = USUAL_MODE
    ) -> OperatorTime:
        """One operator's time with its error; sizes outside of the samples' are named."""
        fit = self.fit(op, dtype, which, mode)
        sizes = complete_sizes(op, dims)
        outside = fit.list_outside(sizes)
        return OperatorTime(
            key=fit.key,
            time_us=float(fit.time_us(sizes, self.processors).item()),
            physical_us=float(fit.physical_us(sizes, self.processors).item()),
            # outside the samples the correction fades, and the form alone answers: its own error counts
            error_pct=max(fit.error_pct, fit.physical_unseen_pct) if outside else fit.error_pct,
            outside=tuple(outside),
            ranges=fit.ranges,
        )

    def list_outside(self, dims: Mapping[str, float], op: str = "matmul", dtype: str = "bf16") -> list[str]:
        """Names of sizes that lie outside of what was sampled of an operator's usual kernel, in any of its passes.

        A precision in which it was not sampled at all is taken as 16 bit, whose two kinds run alike.
        """
        for precision in (dtype, *SIXTEEN_BIT):
            fits = [
                fit for fit in self.operators.values() if (fit.op, fit.dtype, fit.mode) == (op, precision, USUAL_MODE)
            ]
            if fits:
                return sorted({name for fit in fits for name in fit.list_outside(dims)})
        return []


def _check_among(field: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    for name in names:
        if name not in allowed:
            at = (*field.split("."), name) if isinstance(names, Mapping) else tuple(field.split("."))
            raise refuse(
                "unknown_key", name, at=at, known=sorted(allowed), nearest=find_nearest_names(name, allowed)[:1]
            )


def build_fit_key(op: str, dtype: str, which: str, mode: str = USUAL_MODE) -> str:
    """The name of a fit: `matmul bf16 fwd`."""
    return f"{op} {dtype} {which}" + ("" if mode == USUAL_MODE else f" {mode}")


def build_size_arrays(op: str, sizes: Mapping[str, Any]) -> dict[str, Floats]:
    """The sizes of an operator as arrays of one shape."""
    dims = complete_sizes(op, sizes)
    arrays = np.broadcast_arrays(*(np.atleast_1d(np.asarray(dims[name], dtype=float)) for name in DIMS[op]))
    return dict(zip(DIMS[op], arrays, strict=True))


def complete_sizes(op: str, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of an operator, those that may be left out too; `InvalidError` names what is missing or not above 0."""
    dims = dict(sizes)
    for (of, name), default in OPTIONAL.items():
        if of == op and name not in dims and (not isinstance(default, str) or default in dims):
            dims[name] = dims[default] if isinstance(default, str) else default
    missing = [name for name in DIMS[op] if name not in dims]
    if missing:
        raise InvalidError(
            Notice(code="operator_sizes", field="sizes", value=op, params={"missing": missing, "needed": DIMS[op]})
        )
    for name in DIMS[op]:
        if not np.all(np.isfinite(dims[name])) or np.any(np.asarray(dims[name]) <= 0):
            raise InvalidError(Notice(code="must_be_more_than", field=name, value=dims[name], params={"limit": 0}))
    return dims


@cache
def load_operator_profile(gpu: str) -> OperatorProfile | None:
    """The shipped profile of a GPU, by catalogue name; None: its operators were not sampled."""
    place = files("crosszone.cost").joinpath("profiles", "operators", f"{gpu}.yaml")
    if not gpu.replace("-", "").isalnum() or not place.is_file():
        return None
    return parse_operator_profile(read_shipped("crosszone.cost", f"profiles/operators/{gpu}.yaml"))


def list_sampled_gpus() -> list[str]:
    """GPUs whose operators were sampled."""
    paths = files("crosszone.cost").joinpath("profiles", "operators").iterdir()
    return sorted(path.name.removesuffix(".yaml") for path in paths if path.name.endswith(".yaml"))


def read_operator_profile(path: Path) -> OperatorProfile:
    """The profile of a file; an `InputError` names what is wrong with it."""
    return parse_operator_profile(read_document(path))


def parse_operator_profile(document: Document) -> OperatorProfile:
    """The profile of a document."""
    return parse(OperatorProfile, document.value, document)
