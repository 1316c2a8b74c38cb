"""Samples of operators, and the fit of each operator: a physical form, and a correction where it helps on unseen sizes.

    read = read_samples([Path("samples.csv")])
    read.gpu, [(samples.key, len(samples.time_us)) for samples in read.samples], read.left_out

Two kinds of file are read: what `crosszone calibrate kernels` writes, and the operator tables of GPUModeling25 (arXiv
2509.22832), whose model-level inputs are converted to shapes on one GPU. Flagged rows are counted and left out. A wrong
cell, a negative time or times in another unit are refused with their line.

    fitted = fit_operator(samples, processors=132, correction=True)
    fitted.key, fitted.error_pct, fitted.unseen_pct

Errors are cross-validated twice: with random samples held out, and with whole sizes held out (hidden sizes of
GPUModeling25, shapes of weights, widths), which is what a model that was not sampled meets.

Corrections of an operator's form: small boosted trees of log(time / form), exported as text that numpy evaluates.

    features = build_sample_features(samples, processors)
    trees = fit_trees(features, np.log(samples.time_us / form_us), CorrectionSettings())
    trees.evaluate(features)

Trees never see a raw time: outside of the samples they would hold it constant, while a form grows with the work.

Search for the best settings of a correction, as GPUModeling25 does for its regressors: a grid, cross-validated.

    for line in search_settings(samples, processors=132).table[:3]: print(line.settings, line.error_pct)

A fifth of the samples is kept apart; each setting of the grid is scored on the rest with whole sizes held out, and the
best one is scored once on the fifth. The target is log(time / form), never a raw time. The grid holds what a profile
can carry: boosted trees and forests of few, small trees.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from crosszone.calibrate.user_files import build_columns_error, build_unreadable_error, open_table
from crosszone.cost.operator_forms import (
    DIMS,
    DTYPE_BYTES,
    MATMUL_OPS,
    OPTIONAL,
    Floats,
    build_basis_terms,
    build_features,
)
from crosszone.cost.operator_profile import (
    MOST_CORRECTION,
    USUAL_MODE,
    FitPart,
    OperatorFit,
    Trees,
    build_fit_key,
    list_passes,
)
from crosszone.errors import FileError, InputError, InvalidError, Notice, build_choice_error
from crosszone.extras import require_extra
from crosszone.inputs.catalogue import catalogue


@dataclass(frozen=True, kw_only=True)
class CorrectionSettings:
    """How a correction is fitted."""

    regressor: Literal["boosted", "forest"] = "boosted"
    trees: int = 60
    leaves: int = 8
    rate: float = 0.15
    """Share of its residual that a tree takes away."""
    least: int = 3
    """Samples that a leaf has at least; more where there are many samples."""


def build_sample_features(samples: Samples, processors: int) -> dict[str, Floats]:
    """What a correction looks at."""
    return build_features(samples.op, samples.which, samples.sizes, DTYPE_BYTES[samples.dtype], processors)


def fit_trees(features: Mapping[str, Floats], change: Floats, settings: CorrectionSettings) -> Trees:
    """Trees of `change` = log(time / form). [K25]"""
    matrix = np.stack(list(features.values()), axis=-1)
    least_in_leaf = max(settings.least, len(change) // 300)
    regressor = _make_regressor(settings, least_in_leaf).fit(matrix, change)
    if settings.regressor == "forest":
        return _export_trees(list(features), 0.0, [tree.tree_ for tree in regressor.estimators_], 1.0 / settings.trees)
    base = float(regressor.init_.constant_.item())
    return _export_trees(list(features), base, [tree.tree_ for tree in regressor.estimators_[:, 0]], settings.rate)


def _make_regressor(settings: CorrectionSettings, least_in_leaf: int) -> Any:
    require_extra("calibrate")
    from sklearn.ensemble import (  # type: ignore[import-untyped]
        GradientBoostingRegressor,
        RandomForestRegressor,
    )

    shape = {"max_leaf_nodes": settings.leaves, "min_samples_leaf": least_in_leaf, "random_state": 0}
    if settings.regressor == "forest":
        return RandomForestRegressor(n_estimators=settings.trees, **shape)
    return GradientBoostingRegressor(
        n_estimators=settings.trees, learning_rate=settings.rate, loss="huber", max_depth=None, **shape
    )


def _export_trees(names: list[str], base: float, trees: list[Any], scale: float) -> Trees:
    """The same trees as text; only features that they split by are named."""
    used_features = sorted({int(feature) for tree in trees for feature in tree.feature if feature >= 0})
    number = {feature: at for at, feature in enumerate(used_features)}
    texts = tuple(" ".join(_format_nodes(tree, 0, number, scale)) for tree in trees)
    return Trees(signs=tuple(names[feature] for feature in used_features), base=float(f"{base:.4g}"), trees=texts)


def _format_nodes(tree: Any, at: int, number: Mapping[int, int], scale: float) -> list[str]:
    if tree.children_left[at] < 0:
        return [f"{scale * tree.value[at].item():.4f}".replace("0.", ".")]
    lower = _format_nodes(tree, tree.children_left[at], number, scale)
    upper = _format_nodes(tree, tree.children_right[at], number, scale)
    return [f"{number[int(tree.feature[at])]}:{tree.threshold[at]:.5g}", *lower, *upper]


# Operators with fewer samples than the first are cut into the second many parts.
FOLDS = ((150, 8), (3000, 4), (10**9, 3))
LEAST_SAMPLES = 12  # Fewer say nothing of an operator
LEAST_FOR_TREES = 40
LEAST_GAIN = 0.005  # A correction that takes away less of the error on unseen sizes is not worth its numbers
HALVES = "half of the samples"  # What is held out where all samples are of one size
ROUNDS = 4
LINEAR_FROM = 0.02  # Relative errors below this count as squares, larger ones as absolute values
FLOOR_SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4)  # Shares of the samples that may lie on the floor of launches
ABOVE_FLOOR = 1.15


@dataclass(frozen=True, kw_only=True)
class Form:
    """Coefficients of the terms of one operator."""

    names: tuple[str, ...]
    values: Floats
    floor_us: float

    def time_us(self, matrix: Floats) -> Floats:
        """Times of rows of terms. [K21]"""
        return np.maximum(matrix @ self.values, self.floor_us)


def fit_operator(
    samples: Samples, processors: int, *, correction: bool = True, settings: CorrectionSettings | None = None
) -> OperatorFit:
    """The fit of one operator with its cross-validated errors."""
    correction_settings = settings or CorrectionSettings()
    matrix, names = build_matrix(samples, processors)
    try_correction = correction and len(samples.time_us) >= LEAST_FOR_TREES
    errors = {
        kind: compute_held_out_errors(samples, processors, kind, correction_settings if try_correction else None)
        for kind in ("random", "unseen")
    }
    form = fit_form(matrix, names, samples.time_us, samples.op)
    is_better = try_correction and errors["unseen"][1].mean() < errors["unseen"][0].mean() - LEAST_GAIN
    trees = None
    if is_better:
        trees = fit_trees(
            build_sample_features(samples, processors),
            np.log(samples.time_us / form.time_us(matrix)),
            correction_settings,
        )
    random, unseen = (errors[kind][1 if is_better else 0] for kind in ("random", "unseen"))
    return OperatorFit(
        op=samples.op,
        dtype=samples.dtype,
        which=samples.which,
        mode=samples.mode,
        coefficients={
            name: float(f"{value:.5g}") for name, value in zip(form.names, form.values, strict=True) if value > 0
        },
        floor_us=float(f"{form.floor_us:.4g}"),
        samples=len(samples.time_us),
        error_pct=_round_pct(random.mean()),
        median_pct=_round_pct(np.median(random)),
        unseen_pct=_round_pct(unseen.mean()),
        weighted_pct=_round_pct(np.average(unseen, weights=samples.time_us)),
        physical_pct=_round_pct(errors["random"][0].mean()),
        physical_unseen_pct=_round_pct(errors["unseen"][0].mean()),
        held_out=samples.held_out if len(np.unique(samples.group)) > 1 else HALVES,
        ranges={name: (float(value.min()), float(value.max())) for name, value in samples.sizes.items()},
        parts=_score_parts(samples, random, unseen),
        settings=asdict(correction_settings) if is_better else {},
        correction=trees,
    )


def _round_pct(share: float) -> float:
    return round(100.0 * float(share), 2)


def _score_parts(samples: Samples, random: Floats, unseen: Floats) -> dict[str, FitPart]:
    names = sorted(set(samples.part.tolist()))
    if names == [samples.op]:
        return {}
    return {
        name: FitPart(
            samples=int(np.sum(samples.part == name)),
            error_pct=_round_pct(random[samples.part == name].mean()),
            unseen_pct=_round_pct(unseen[samples.part == name].mean()),
        )
        for name in names
    }


def build_matrix(samples: Samples, processors: int) -> tuple[Floats, tuple[str, ...]]:
    """The terms of all samples, a column each."""
    basis = build_basis_terms(samples.op, samples.which, samples.sizes, DTYPE_BYTES[samples.dtype], processors)
    return np.stack(list(basis.values()), axis=-1), tuple(basis)


def fit_form(matrix: Floats, names: tuple[str, ...], time_us: Floats, op: str) -> Form:
    """Coefficients that are not negative, by relative error; operators that memory binds may have a floor. [K27]"""
    if op in MATMUL_OPS or op == "attention":
        return Form(names=names, values=solve_non_negative(matrix, time_us), floor_us=0.0)
    best: tuple[float, Floats, float] | None = None
    for share in FLOOR_SHARES:
        floor = float(np.quantile(time_us, share)) if share else 0.0
        above = time_us > ABOVE_FLOOR * floor
        if above.sum() < matrix.shape[1] + 3:
            continue
        values = solve_non_negative(matrix[above], time_us[above])
        error = float(np.abs(np.maximum(matrix @ values, floor) / time_us - 1).mean())
        if best is None or error < best[0] - 1e-4:
            best = error, values, floor
    if best is None:
        best = 0.0, solve_non_negative(matrix, time_us), 0.0
    return Form(names=names, values=best[1], floor_us=best[2])


def solve_non_negative(matrix: Floats, time_us: Floats, importance: Floats | float = 1.0) -> Floats:
    """Least relative errors, squares made absolute values by weights. [K27]"""
    require_extra("calibrate")
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    size = np.maximum(matrix.max(axis=0), 1e-12)
    shares = matrix / size / time_us[:, None]
    weight = np.ones(len(time_us)) * importance
    values = np.zeros(matrix.shape[1])
    for _ in range(ROUNDS):
        values, _norm = nnls(shares * weight[:, None], weight, maxiter=100 * matrix.shape[1])
        weight = importance / np.sqrt(np.maximum(np.abs(shares @ values - 1.0), LINEAR_FROM))
    return np.asarray(values / size)


def assign_folds(samples: Samples, kind: str) -> npt.NDArray[np.int64]:
    """Which part of the cross-validation holds a sample out; where there is but one size, each half in turn."""
    count = next(parts for below, parts in FOLDS if len(samples.time_us) < below)
    if kind == "random":
        return np.asarray(np.random.default_rng(0).permutation(len(samples.time_us)) % count)
    parts = np.asarray(samples.group % count)
    return parts if len(np.unique(parts)) > 1 else np.arange(len(parts)) % 2


def compute_held_out_errors(
    samples: Samples, processors: int, kind: str, settings: CorrectionSettings | None
) -> tuple[Floats, Floats]:
    """Relative errors of each sample when held out: of the form, and with its correction. [K28]"""
    matrix, names = build_matrix(samples, processors)
    features = build_sample_features(samples, processors)
    time_us, folds = samples.time_us, assign_folds(samples, kind)
    form_error, corrected_error = np.zeros(len(time_us)), np.zeros(len(time_us))
    for fold in np.unique(folds):
        held_out = folds == fold
        form = fit_form(matrix[~held_out], names, time_us[~held_out], samples.op)
        predicted = form.time_us(matrix[held_out])
        form_error[held_out] = predicted / time_us[held_out] - 1
        if settings is not None:
            change = np.log(time_us[~held_out] / form.time_us(matrix[~held_out]))
            trees = fit_trees({name: value[~held_out] for name, value in features.items()}, change, settings)
            corrected = correct_times(predicted, trees, {name: value[held_out] for name, value in features.items()})
            corrected_error[held_out] = corrected / time_us[held_out] - 1
    return np.abs(form_error), np.abs(corrected_error) if settings is not None else np.abs(form_error)


def correct_times(time_us: Floats, trees: Trees, features: Mapping[str, Floats]) -> Floats:
    """Times of the form with their correction."""
    change = np.clip(trees.evaluate(features), -MOST_CORRECTION, MOST_CORRECTION)
    return np.asarray(time_us * np.exp(change))


GRID: tuple[CorrectionSettings, ...] = (
    *(
        CorrectionSettings(trees=trees, leaves=leaves, rate=rate, least=least)
        for trees, leaves, rate, least in product((20, 40, 60), (4, 8), (0.1, 0.2), (3, 10))
    ),
    *(
        CorrectionSettings(regressor="forest", trees=trees, leaves=8, least=least)
        for trees, least in product((30, 60), (3, 10))
    ),
)
MOST_SEARCHED = 1500  # Samples a setting is scored on; more would take hours and change little


@dataclass(frozen=True, kw_only=True)
class ScoredSettings:
    """One setting and its mean error on sizes that it had not seen."""

    settings: CorrectionSettings
    error_pct: float


@dataclass(frozen=True, kw_only=True)
class SettingsSearch:
    """All settings of one operator, best first."""

    table: tuple[ScoredSettings, ...]
    test_pct: float
    """Mean error of the best one on the fifth that no setting saw."""
    physical_pct: float
    """That of the form alone on the same fifth."""

    @property
    def best(self) -> CorrectionSettings:
        """The setting with the least error."""
        return self.table[0].settings


def search_settings(
    samples: Samples,
    processors: int,
    grid: tuple[CorrectionSettings, ...] = GRID,
    progress: Callable[[], None] | None = None,
) -> SettingsSearch:
    """Score every setting of the grid; ties go to the smaller correction."""
    order = np.random.default_rng(1).permutation(len(samples.time_us))[: round(MOST_SEARCHED * 1.25)]
    test_rows = order[: len(order) // 5]
    training = samples.select(np.sort(order[len(order) // 5 :]))
    scored = []
    for settings in grid:
        error = compute_held_out_errors(training, processors, "unseen", settings)[1].mean()
        scored.append(ScoredSettings(settings=settings, error_pct=round(100.0 * float(error), 3)))
        if progress is not None:
            progress()
    scored.sort(key=lambda entry: (entry.error_pct, entry.settings.trees * entry.settings.leaves))
    form, trees = _compute_test_errors(training, samples.select(test_rows), processors, scored[0].settings)
    return SettingsSearch(table=tuple(scored), test_pct=trees, physical_pct=form)


def _compute_test_errors(
    training: Samples, test: Samples, processors: int, settings: CorrectionSettings
) -> tuple[float, float]:
    matrix, names = build_matrix(training, processors)
    form = fit_form(matrix, names, training.time_us, training.op)
    trees = fit_trees(
        build_sample_features(training, processors), np.log(training.time_us / form.time_us(matrix)), settings
    )
    predicted = form.time_us(build_matrix(test, processors)[0])
    corrected = correct_times(predicted, trees, build_sample_features(test, processors))
    form_error, corrected_error = (
        float(np.abs(time_us / test.time_us - 1).mean()) for time_us in (predicted, corrected)
    )
    return round(100 * form_error, 3), round(100 * corrected_error, 3)


# Columns by which a table of `crosszone calibrate kernels` is recognised.
KERNEL_COLUMNS = ("device", "dtype", "op", "pass", "mode", "time_us", "flag")
# Columns of an operator table of GPUModeling25.
MODEL_COLUMNS = ("gpu", "op", "pass", "mp", "micro_batch", "heads", "seq", "hidden", "layers", "time_us", "flag")
MODEL_GPUS = {"A100": "a100-80gb-sxm", "GH200": "gh200-96gb"}
# Streaming multiprocessors (compute units) by the beginning of a catalogue name (makers' data sheets).
PROCESSORS = {
    **{"a100": 108, "a800": 108, "h100": 132, "h200": 132, "h800": 132, "gh200": 132, "h20": 78, "b200": 148},
    **{"gb200": 148, "v100": 80, "l40s": 142, "l4": 58, "a40": 84, "a10": 72, "mi300x": 304, "h100-pcie": 114},
}
USUAL_PROCESSORS = 132
MAX_ROWS = 500_000
MAX_BYTES = 200 * 1024 * 1024
MOST_MISTAKES = 20
LEAST_US, MOST_US = 0.01, 1e9
LONG_US = 100.0  # Matmuls that take longer are what a training step is made of
SLOW, FAST = 300.0, 0.3  # Median of time over roof beyond which times are in another unit
VOCABULARY = 50257  # Of the models that GPUModeling25 sampled, padded to a multiple of 128 on each GPU
# Sizes that are held out whole, where they are not the width.
HELD_OUT = {
    "matmul": ("n", "k"),
    "grouped_matmul": ("n", "k"),
    "attention": ("heads", "head_dim"),
    "rotary": ("heads",),
    "cross_entropy": ("vocab",),
    "adamw": ("params",),
    "copy": ("bytes",),
    "layer": ("hidden",),
    "train_step": ("hidden",),
}


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Timings of one operator in one precision, pass and mode."""

    op: str
    dtype: str
    which: str
    mode: str
    sizes: dict[str, Floats]
    time_us: Floats
    host_us: Floats
    """Time the host took to launch it; nan: not measured."""
    memory_gib: Floats
    recompute: npt.NDArray[np.bool_]
    """Layers are computed again in the backward pass (whole steps)."""
    group: npt.NDArray[np.int64]
    """Samples of one size that is held out whole have one number."""
    held_out: str
    """What that size is."""
    part: npt.NDArray[np.str_]
    """Origin of each sample within the operator."""

    @property
    def key(self) -> str:
        """The name of its fit."""
        return build_fit_key(self.op, self.dtype, self.which, self.mode)

    def select(self, which: Any) -> Samples:
        """Some of them."""
        arrays = {
            name: getattr(self, name)[which] for name in ("time_us", "host_us", "memory_gib", "recompute", "group")
        }
        sizes = {name: value[which] for name, value in self.sizes.items()}
        return replace(self, sizes=sizes, part=self.part[which], **arrays)


@dataclass(frozen=True, kw_only=True)
class SampledOperators:
    """All samples of some files, which are of one GPU."""

    gpu: str
    device: str
    source: str
    samples: tuple[Samples, ...]
    left_out: dict[str, int]
    """Rows by flag that were not used."""

    @property
    def processors(self) -> int:
        """Of the GPU."""
        return count_processors(self.gpu)

    @property
    def used_rows(self) -> int:
        """Rows that were used."""
        return sum(len(samples.time_us) for samples in self.samples)

    def select_samples(
        self, op: str, dtype: str | None = None, which: str | None = None, mode: str = USUAL_MODE
    ) -> list[Samples]:
        """Samples of an operator, perhaps of one precision and pass."""
        return [
            samples
            for samples in self.samples
            if samples.op == op
            and samples.mode == mode
            and (dtype is None or samples.dtype == dtype)
            and (which is None or samples.which == which)
        ]


@dataclass
class _SampleRows:
    """What has been read so far."""

    gpus: dict[str, str] = field(default_factory=dict)
    rows: dict[tuple[str, str, str, str], list[dict[str, Any]]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    roofs: list[float] = field(default_factory=list)
    seen_keys: set[tuple[Any, ...]] = field(default_factory=set)


def count_processors(gpu: str) -> int:
    """Streaming multiprocessors of a GPU kind; an unknown one is taken as a large one."""
    matching = [name for name in PROCESSORS if gpu.startswith(name)]
    return PROCESSORS[max(matching, key=len)] if matching else USUAL_PROCESSORS


def read_samples(paths: Sequence[Path], gpu: str | None = None) -> SampledOperators:
    """The samples of some tables of one GPU; an `InputError` names each wrong row, and nothing is returned."""
    sample_rows = _SampleRows()
    for path in paths:
        _read_table(path, sample_rows)
    if not sample_rows.rows:
        files = ", ".join(map(str, paths))
        raise InvalidError(
            Notice(code="samples_none", value=files, params={"left_out": sum(sample_rows.left_out.values())})
        )
    devices = sorted(sample_rows.gpus)
    names = {gpu} if gpu else {sample_rows.gpus[device] for device in devices}
    if len(names) > 1 or (len(devices) > 1 and not gpu):
        raise InvalidError(Notice(code="samples_several_gpus", value=devices))
    _check_unit(sample_rows.roofs, paths)
    return SampledOperators(
        gpu=catalogue().gpu(names.pop()).name,
        device=", ".join(devices),
        source=", ".join(path.name for path in paths),
        samples=tuple(_group_samples(at, rows) for at, rows in sorted(sample_rows.rows.items())),
        left_out=dict(sorted(sample_rows.left_out.items())),
    )


def find_catalogue_name(device: str) -> str:
    """The catalogue name of a GPU that calls itself `device`, e.g. NVIDIA H200."""
    model = device.lower().replace("nvidia", "").replace("graphics", "").strip(" -_").replace(" ", "-")
    for name in (model, model.replace("-hbm3", "").replace("-hbm2e", ""), model.split("-")[0]):
        entry = catalogue().find("gpus", name) if name else None
        if entry is not None:
            return entry.name
    return catalogue().gpu(model or device).name


def _read_table(path: Path, sample_rows: _SampleRows) -> None:
    name, mistakes = str(path), list[Notice]()
    with open_table(io.StringIO(_read_text(path)), name, needed=()) as reader:
        columns = set(reader.fieldnames or ())
        has_model_columns = set(MODEL_COLUMNS) <= columns
        missing = [column for column in KERNEL_COLUMNS if column not in columns]
        if missing and not has_model_columns:
            raise build_columns_error(name, missing)
        for at, cells in enumerate(reader):
            if at == MAX_ROWS:
                raise InputError(Notice(code="samples_rows", value=name, params={"limit": MAX_ROWS}, file=name))
            try:
                (_read_model_row if has_model_columns else _read_kernel_row)(cells, sample_rows)
            except InputError as error:
                mistakes += [notice.with_place(name, reader.line_num) for notice in error.notices]
            if len(mistakes) >= MOST_MISTAKES:
                break
    if mistakes:
        raise InvalidError(*mistakes)


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise FileError(Notice(code="samples_bytes", value=str(path), params={"limit": MAX_BYTES // 2**20}))
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise build_unreadable_error(path, error) from None


def _read_kernel_row(cells: Mapping[str, str], sample_rows: _SampleRows) -> None:
    """A row of `crosszone calibrate kernels`."""
    op, dtype, which, mode = (_read_cell(cells, name) for name in ("op", "dtype", "pass", "mode"))
    for name, value, allowed in (
        ("op", op, DIMS),
        ("dtype", dtype, DTYPE_BYTES),
        ("pass", which, list_passes(op)),
    ):
        if value not in allowed:
            raise build_choice_error(name, value, allowed)
    device = _read_cell(cells, "device")
    if device not in sample_rows.gpus:
        sample_rows.gpus[device] = find_catalogue_name(device)
    if flag := _read_cell(cells, "flag"):
        sample_rows.left_out[flag] += 1
        return
    needed = [name for name in DIMS[op] if cells.get(name) or (op, name) not in OPTIONAL]
    row: dict[str, Any] = {name: _read_number(cells, name) for name in needed}
    for (optional_op, name), default in OPTIONAL.items():
        if optional_op == op and name not in row:
            row[name] = row[default] if isinstance(default, str) else default
    recompute = _read_cell(cells, "recompute") == "full"
    sample_key = (op, dtype, which, mode, device, recompute, tuple(row.items()))
    if sample_key in sample_rows.seen_keys:
        sample_rows.left_out["repeated"] += 1
        return
    sample_rows.seen_keys.add(sample_key)
    row["time_us"] = _read_number(cells, "time_us", LEAST_US, MOST_US)
    for name in ("host_us", "memory_gib"):
        row[name] = _read_number(cells, name, 0.0) if cells.get(name) else math.nan
    if op in ("matmul", "attention") and cells.get("roof_us"):
        sample_rows.roofs.append(row["time_us"] / _read_number(cells, "roof_us"))
    row["recompute"], row["part"], row["group"] = (
        recompute,
        _classify_part(op, row),
        tuple(row[name] for name in _list_held_out_sizes(op)),
    )
    sample_rows.rows.setdefault((op, dtype, which, mode or USUAL_MODE), []).append(row)


def _list_held_out_sizes(op: str) -> tuple[str, ...]:
    return HELD_OUT.get(op, ("width",))


def _classify_part(op: str, row: Mapping[str, float]) -> str:
    """Matmuls by what a user may want to know apart: long ones, short ones, rows that are no multiple of 8."""
    if op not in ("matmul", "grouped_matmul"):
        return op
    if row["n"] % 8 or row["k"] % 8:
        return "unaligned"
    return "long" if row["time_us"] >= LONG_US else "short"


def _read_cell(cells: Mapping[str, str], name: str) -> str:
    return (cells.get(name) or "").strip()


def _read_number(cells: Mapping[str, str], name: str, low: float = 1e-9, high: float = 1e18) -> float:
    try:
        value = float(cells.get(name) or "")
    except ValueError:
        raise InvalidError(Notice(code="must_be_number", field=name, value=cells.get(name) or "-")) from None
    if not low <= value <= high:
        raise InvalidError(Notice(code="samples_range", field=name, value=value, params={"low": low, "high": high}))
    return value


def _check_unit(roofs: Sequence[float], paths: Sequence[Path]) -> None:
    """Refuse times that are not in microseconds: most matmuls would beat the device or be far slower."""
    if len(roofs) < 5:
        return
    ratio = float(np.median(roofs))
    if not FAST <= ratio <= SLOW:
        raise InvalidError(Notice(code="samples_unit", field="time_us", value=str(paths[0]), params={"ratio": ratio}))


def _read_model_row(cells: Mapping[str, str], sample_rows: _SampleRows) -> None:
    """A row of a GPUModeling25 table; time of not causal flash attention is halved, as half the scores are masked."""
    gpu = _read_cell(cells, "gpu")
    if gpu not in MODEL_GPUS:
        raise build_choice_error("gpu", gpu, MODEL_GPUS)
    sample_rows.gpus[gpu] = MODEL_GPUS[gpu]
    if flag := _read_cell(cells, "flag"):
        sample_rows.left_out[flag] += 1
        return
    name, which = _read_cell(cells, "op"), _read_cell(cells, "pass")
    row_sizes = {
        c: _read_number(cells, c) for c in ("mp", "micro_batch", "heads", "seq", "hidden", "layers") if cells.get(c)
    }
    try:
        op, sizes = convert_model_row(name, row_sizes)
    except KeyError as missing:
        if name not in MODEL_OPS:
            raise build_choice_error("op", name, MODEL_OPS) from None
        raise InvalidError(Notice(code="must_be_number", field=str(missing.args[0]), value="-")) from None
    if which not in list_passes(op):
        raise build_choice_error("pass", which, list_passes(op))
    row: dict[str, Any] = dict(sizes)
    time_us = _read_number(cells, "time_us", LEAST_US, MOST_US)
    row["time_us"] = time_us / 2.0 if op == "attention" else time_us
    row["host_us"] = row["memory_gib"] = math.nan
    row["recompute"], row["part"], row["group"] = False, name, (row_sizes.get("hidden") or row_sizes["seq"],)
    row["held_out"] = "hidden" if "hidden" in row_sizes else "seq"
    sample_rows.rows.setdefault((op, "fp16", which, USUAL_MODE), []).append(row)


MODEL_OPS = (
    *("linear_qkv", "linear_attn_out", "linear_mlp_up", "linear_mlp_down", "linear_vocab", "attn_scores_bmm"),
    *("attn_values_bmm", "flash_attention", "causal_softmax", "softmax", "mask_fill", "layernorm", "rmsnorm"),
    *("res_add", "gelu", "rope", "embedding", "cross_entropy", "adam_first_stage", "adam_middle_stage"),
    "adam_last_stage",
)
# Operators whose sizes do not depend on the hidden size.
WITHOUT_HIDDEN = ("causal_softmax", "softmax", "mask_fill", "cross_entropy")


def convert_model_row(name: str, row_sizes: Mapping[str, float]) -> tuple[str, dict[str, float]]:
    """Operator and sizes on one GPU of a GPUModeling25 row: `mp` GPUs share a model of `hidden` and `heads`."""
    if name not in MODEL_OPS:
        raise KeyError(name)
    h = row_sizes.get("hidden", 0.0) if name in WITHOUT_HIDDEN else row_sizes["hidden"]
    mp = row_sizes.get("mp", 1.0)
    vocab = 128.0 * math.ceil(VOCABULARY / (128.0 * mp))
    if name.startswith("adam_"):
        ends = 0.0 if name == "adam_middle_stage" else vocab * h
        return "adamw", {
            "params": row_sizes["layers"] * 12.0 * row_sizes["hidden"] ** 2 / mp + ends,
            "layers": row_sizes["layers"],
        }
    tokens = row_sizes["micro_batch"] * row_sizes["seq"]
    matmuls = {
        "linear_qkv": (3.0 * h / mp, h),
        "linear_attn_out": (h, h / mp),
        "linear_mlp_up": (4.0 * h / mp, h),
        "linear_mlp_down": (h, 4.0 * h / mp),
        "linear_vocab": (vocab, h),
    }
    if name in matmuls:
        n, k = matmuls[name]
        return "matmul", {"m": tokens, "n": n, "k": k}
    if name in ("layernorm", "rmsnorm", "res_add"):
        return {"res_add": "residual_add"}.get(name, name), {"tokens": tokens, "width": h}
    if name == "gelu":
        return "gelu", {"tokens": tokens, "width": 4.0 * h / mp}
    if name == "embedding":
        return "embedding", {"tokens": tokens, "width": h, "vocab": vocab}
    if name == "cross_entropy":
        return "cross_entropy", {"tokens": tokens, "vocab": vocab}
    return _convert_head_row(name, row_sizes, row_sizes["heads"] / mp, h)


def _convert_head_row(
    name: str, row_sizes: Mapping[str, float], heads: float, hidden: float
) -> tuple[str, dict[str, float]]:
    batch, seq = row_sizes["micro_batch"], row_sizes["seq"]
    if name in ("causal_softmax", "softmax", "mask_fill"):
        return name, {"tokens": batch * heads * seq, "width": seq}
    head_dim = hidden / row_sizes["heads"]
    if name == "rope":
        return "rotary", {"tokens": batch * seq, "heads": heads, "head_dim": head_dim}
    if name == "flash_attention":
        return "attention", {"batch": batch, "heads": heads, "kv_heads": heads, "head_dim": head_dim, "seq": seq}
    op = {"attn_scores_bmm": "scores_matmul", "attn_values_bmm": "values_matmul"}[name]
    return op, {"batch": batch * heads, "seq": seq, "head_dim": head_dim}


def _group_samples(fit_key: tuple[str, str, str, str], rows: Sequence[Mapping[str, Any]]) -> Samples:
    op, dtype, which, mode = fit_key
    numbers = {group: number for number, group in enumerate(sorted({row["group"] for row in rows}))}

    def build_column(name: str) -> Floats:
        return np.array([row[name] for row in rows], dtype=float)

    return Samples(
        op=op,
        dtype=dtype,
        which=which,
        mode=mode,
        sizes={name: build_column(name) for name in DIMS[op]},
        time_us=build_column("time_us"),
        host_us=build_column("host_us"),
        memory_gib=build_column("memory_gib"),
        recompute=np.array([row["recompute"] for row in rows]),
        group=np.array([numbers[row["group"]] for row in rows]),
        held_out=rows[0].get("held_out") or " x ".join(_list_held_out_sizes(op)),
        part=np.array([row["part"] for row in rows]),
    )
