"""Nearest runs: measured runs beside a prediction, and the best utilisation that was measured.

    index = read_run_index()
    index.find_nearest(describe_case(p))      # three runs that resemble the case, with our own error on each
    index.find_best(describe_case(p))         # the run with the highest MFU on these GPUs at this precision

The index is a file beside the measured runs; `python benchmarks/ledger.py index` writes it. It is read once, and a
prediction that is shown costs one pass over its columns. Searches compare thousands of strategies and never ask.

Suffixes of arrays: R measured runs, F numbers of a case, A GPU kinds, W widths of precision.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from crosszone import measured
from crosszone.cost.record import plain
from crosszone.errors import Level, Notice
from crosszone.inputs.job import find_compute_path, load_numerics
from crosszone.inputs.parameters import parameters
from crosszone.inputs.rules import Case
from crosszone.inputs.shipped import read_shipped
from crosszone.predict.prediction import BestUtilisation, NearestRun, Triple
from crosszone.predict.run import select_used_groups

if TYPE_CHECKING:
    from crosszone.inputs.model import Model
    from crosszone.inputs.strategy import Strategy
    from crosszone.predict.predictor import Predictor

Vector = npt.NDArray[np.float64]
INDEX_FILE = "run_index.csv"  # beside the measured runs
# Columns of the index; `benchmarks/ledger.py` writes them in this order.
COLUMNS = (
    "id",
    "model",
    "params_b",
    "active_b",
    "experts",
    "gpu",
    "architecture",
    "vendor",
    "gpus",
    "framework",
    "precision",
    "seq_len",
    "global_batch",
    "tp",
    "pp",
    "cp",
    "ep",
    "dp",
    "interleave",
    "micro_batch",
    "zero",
    "recompute",
    "timed",
    "step_time_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "error_pct",
)
DEGREES = ("tp", "pp", "cp", "ep", "interleave", "micro_batch")
RECOMPUTE_SHARES = {"none": 0.0, "selective": 0.5, "full": 1.0}
# Rows looked at for each run that is named: variants of a set-up (releases, repeats) lie at the same distance.
LOOKED_AT = 8
LOG2 = "log2"  # scale of a number that counts by its doublings
# Notices of a prediction above the best that was measured.
ABOVE_MEASURED_CODES = ("mfu_above_measured", "mfu_range_above_measured", "mfu_above_gpu", "mfu_above_family")


@cache
def read_metric() -> dict[str, Any]:
    """Weights of a distance (`nearest_runs.yaml`)."""
    metric: dict[str, Any] = read_shipped("crosszone.predict", "nearest_runs.yaml").value
    return metric


class GpuKind(NamedTuple):
    """What a distance asks of a GPU."""

    name: str
    architecture: str
    vendor: str


class CaseFeatures(NamedTuple):
    """What a distance asks of a case."""

    numbers_F: Vector
    """In the order of the metric, weighted."""
    gpu_shares: tuple[tuple[GpuKind, float], ...]
    """GPU kinds in use and the part of the peak that each has; most first."""
    precision: str
    framework: str


def describe_case(p: Predictor) -> CaseFeatures:
    """The features of a placed strategy."""
    path = find_compute_path(p.case.job)
    peaks: dict[GpuKind, float] = {}
    for _, group, count in select_used_groups(p.placed):
        gpu = group.gpu
        kind = GpuKind(gpu.name, gpu.architecture, gpu.vendor)
        peaks[kind] = peaks.get(kind, 0.0) + count * (gpu.peak(path) or 0.0)
    total = sum(peaks.values()) or 1.0
    shares = sorted(((kind, peak / total) for kind, peak in peaks.items()), key=lambda pair: -pair[1])
    numbers_F = _weigh_numbers(_list_numbers(p.case, p.strategy))
    return CaseFeatures(numbers_F, tuple(shares), p.case.job.precision, p.framework.name)


def _list_numbers(case: Case, s: Strategy) -> dict[str, float]:
    """The numbers of a case by their name in the metric."""
    params, active = _count_params(case.model)
    return {
        "params": params,
        "active_params": active,
        "gpus": s.ranks,
        "tokens_per_gpu": case.job.tokens_per_step / s.ranks,
        "seq_len": case.job.seq_len,
        **{name: getattr(s, name) for name in DEGREES},
        "recompute": RECOMPUTE_SHARES[s.recompute],
        "fully_sharded": float(s.zero == 3),
        "experts": float(case.model.moe is not None),
    }


@lru_cache(maxsize=256)
def _count_params(model: Model) -> tuple[float, float]:
    """Parameters, and those that a token visits."""
    counted = parameters(model)
    return float(counted.total), float(counted.active)


def _weigh_numbers(numbers: Mapping[str, float]) -> Vector:
    """Numbers as they enter a distance. [Q9]"""
    return np.array(
        [
            entry["weight"] * (math.log2(numbers[name]) if entry["scale"] == LOG2 else numbers[name])
            for name, entry in read_metric()["numbers"].items()
        ]
    )


@cache
def count_bits(precision: str) -> int:
    """Width of the tensor path of a job's precision. [Q10]"""
    path = load_numerics()["precisions"][precision]["compute"]
    bits: int = read_metric()["bits"][path]
    return bits


# By category: the distance to each of its values, and the value of each run.
CategoryDistances = dict[str, tuple[Vector, npt.NDArray[np.int64]]]


class Best(NamedTuple):
    """The best measured utilisation of a GPU kind or of an architecture."""

    mfu: float
    row: int


@dataclass(frozen=True)
class RunIndex:
    """Measured runs as columns."""

    rows: Sequence[Mapping[str, str]]
    """The file's rows, every cell a string."""

    def __len__(self) -> int:
        return len(self.rows)

    def read_column(self, name: str) -> Vector:
        """A column of numbers."""
        return np.array([row[name] for row in self.rows], dtype=float)

    @cached_property
    def numbers_FR(self) -> Vector:
        """The numbers of every run, weighted as in `_weigh_numbers`. [Q9]"""
        gpus = self.read_column("gpus")
        numbers = {
            "params": self.read_column("params_b") * 1e9,
            "active_params": self.read_column("active_b") * 1e9,
            "gpus": gpus,
            "tokens_per_gpu": self.read_column("seq_len") * self.read_column("global_batch") / gpus,
            "seq_len": self.read_column("seq_len"),
            **{name: self.read_column(name) for name in DEGREES},
            "recompute": np.array([RECOMPUTE_SHARES[row["recompute"]] for row in self.rows]),
            "fully_sharded": self.read_column("zero") == 3,
            "experts": self.read_column("experts"),
        }
        weighted = [
            entry["weight"] * (np.log2(numbers[name]) if entry["scale"] == LOG2 else numbers[name])
            for name, entry in read_metric()["numbers"].items()
        ]
        return np.stack(weighted)

    @cached_property
    def gpu_kinds(self) -> tuple[list[GpuKind], npt.NDArray[np.int64]]:
        """GPU kinds, and the kind of each run."""
        return _encode(GpuKind(row["gpu"], row["architecture"], row["vendor"]) for row in self.rows)

    @cached_property
    def precisions(self) -> tuple[list[str], npt.NDArray[np.int64]]:
        """Precisions, and that of each run."""
        return _encode(row["precision"] for row in self.rows)

    @cached_property
    def frameworks(self) -> tuple[list[str], npt.NDArray[np.int64]]:
        """Frameworks, and that of each run."""
        return _encode(row["framework"] for row in self.rows)

    def describe_run(self, row: int) -> CaseFeatures:
        """The features of one of the runs."""
        kinds, kind_R = self.gpu_kinds
        kind = kinds[int(kind_R[row])]
        cells = self.rows[row]
        return CaseFeatures(self.numbers_FR[:, row], ((kind, 1.0),), cells["precision"], cells["framework"])

    def measure_distances(self, features: CaseFeatures) -> Vector:
        """How far each run is from a case. [Q9]"""
        return self._measure(features, self._list_category_distances(features))

    def _measure(self, features: CaseFeatures, categories: CategoryDistances) -> Vector:
        # rows of equal numbers are added up several times as fast as columns
        distance_R: Vector = np.abs(self.numbers_FR - features.numbers_F[:, None]).sum(axis=0)
        for distance_A, code_R in categories.values():
            distance_R += distance_A[code_R]
        return distance_R

    def _list_category_distances(self, features: CaseFeatures) -> CategoryDistances:
        """By category: the distance to each of its values, and the value of each run."""
        metric = read_metric()
        kinds, kind_R = self.gpu_kinds
        gpu_A = np.zeros(len(kinds))
        for kind, share in features.gpu_shares:
            gpu_A += share * np.array([_compare_gpus(kind, other, metric["gpu"]) for other in kinds])
        precisions, precision_R = self.precisions
        halvings, other_name = metric["precision"]["per_halving"], metric["precision"]["other_name"]
        bits = count_bits(features.precision)
        precision_A = np.array(
            [
                halvings * abs(np.log2(bits / count_bits(name))) + other_name * (name != features.precision)
                for name in precisions
            ]
        )
        frameworks, framework_R = self.frameworks
        framework_A = np.array([metric["framework"]["other"] * (name != features.framework) for name in frameworks])
        return {
            "gpu": (gpu_A, kind_R),
            "precision": (precision_A, precision_R),
            "framework": (framework_A, framework_R),
        }

    def find_nearest(self, features: CaseFeatures, count: int | None = None) -> tuple[NearestRun, ...]:
        """The nearest runs, each set-up once, nearest first."""
        wanted = count or read_metric()["count"]
        categories = self._list_category_distances(features)
        distance_R = self._measure(features, categories)
        looked_at = min(LOOKED_AT * wanted, len(self) - 1)
        if looked_at < 0:
            return ()
        candidates = np.sort(np.argpartition(distance_R, looked_at)[: looked_at + 1])
        nearest: dict[tuple[str, ...], int] = {}
        for row in candidates[np.argsort(distance_R[candidates], kind="stable")].tolist():
            nearest.setdefault(self._get_setup(row), row)
            if len(nearest) == wanted:
                break
        return tuple(self._build_run(row, float(distance_R[row]), features, categories) for row in nearest.values())

    def _build_run(
        self, row: int, distance: float, features: CaseFeatures, categories: CategoryDistances
    ) -> NearestRun:
        """A run as a prediction names it."""
        cells, least = self.rows[row], read_metric()["least_difference"]
        differences_F = np.abs(self.numbers_FR[:, row] - features.numbers_F).tolist()
        parts = dict(zip(read_metric()["numbers"], differences_F, strict=True))
        parts |= {name: float(distance_A[code_R[row]]) for name, (distance_A, code_R) in categories.items()}
        return NearestRun(
            id=cells["id"],
            source=cells["id"].rpartition("-")[0] or cells["id"],
            model=cells["model"],
            gpu=cells["gpu"],
            gpus=int(cells["gpus"]),
            strategy=self._get_setup(row)[-1],
            step_time_s=float(cells["step_time_s"]),
            mfu=float(cells["mfu"]),
            error_pct=float(cells["error_pct"]),
            distance=distance,
            differs=tuple(sorted((name for name in parts if parts[name] >= least), key=lambda name: -parts[name])),
        )

    @cached_property
    def setups(self) -> dict[int, tuple[str, ...]]:
        """Model, GPU, GPUs and strategy of the runs that were looked at so far."""
        return {}

    def _get_setup(self, row: int) -> tuple[str, ...]:
        setup = self.setups.get(row)
        if setup is None:
            cells = self.rows[row]
            setup = self.setups[row] = (cells["model"], cells["gpu"], cells["gpus"], describe_strategy(cells))
        return setup

    @cached_property
    def bests(self) -> dict[tuple[str, str, int], Best]:
        """The best run by GPU kind and by architecture, each with the bits; only of runs whose time was published."""
        bests: dict[tuple[str, str, int], Best] = {}
        for row, cells in enumerate(self.rows):
            if cells["timed"] != "1":
                continue
            bits, best = count_bits(cells["precision"]), Best(float(cells["mfu"]), row)
            for scope in ("gpu", "architecture"):
                key = (scope, cells[scope], bits)
                bests[key] = max(bests.get(key, best), best)
        return bests

    def find_best(self, features: CaseFeatures) -> BestUtilisation | None:
        """The best measured MFU of the case's GPUs at its precision; None: no run even of their architecture. [Q10]

        GPUs of several kinds: the mean of their bests by their part of the peak; the run is that of the largest part.
        """
        bits, mfu, family_mfu = count_bits(features.precision), 0.0, 0.0
        first: tuple[Best, Best] | None = None
        is_measured = True
        for kind, share in features.gpu_shares:
            kind_best, family = (
                self.bests.get(("gpu", kind.name, bits)),
                self.bests.get(("architecture", kind.architecture, bits)),
            )
            best = kind_best or family
            if best is None or family is None:
                return None
            mfu, family_mfu = mfu + share * best.mfu, family_mfu + share * family.mfu
            is_measured = is_measured and kind_best is not None
            first = first or (best, family)
        if first is None:
            return None
        best, family = first
        cells, family_cells = self.rows[best.row], self.rows[family.row]
        return BestUtilisation(
            mfu=mfu,
            bits=bits,
            measured_on="gpu" if is_measured else "architecture",
            id=cells["id"],
            model=cells["model"],
            gpu=cells["gpu"],
            gpus=int(cells["gpus"]),
            architecture_mfu=family_mfu,
            architecture_id=family_cells["id"],
            architecture_gpu=family_cells["gpu"],
        )


def describe_strategy(cells: Mapping[str, str]) -> str:
    """Degrees and options of a run on one line; context, experts and virtual stages only where there are any."""
    words = [f"{name} {cells[name]}" for name in ("tp", "pp", "dp")]
    words += [f"{name} {cells[name]}" for name in ("cp", "ep") if cells[name] != "1"]
    words += [f"v {cells['interleave']}"] if cells["interleave"] != "1" else []
    options = [f"micro_batch {cells['micro_batch']}"]
    options += [f"zero {cells['zero']}"] if cells["zero"] != "0" else []
    options += [f"recompute {cells['recompute']}"] if cells["recompute"] != "none" else []
    return ", ".join([" ".join(words), *options])


def _compare_gpus(kind: GpuKind, other: GpuKind, weights: Mapping[str, float]) -> float:
    """How far two GPU kinds are from each other. [Q9]"""
    if kind.name == other.name:
        return weights["same"]
    if kind.architecture == other.architecture:
        return weights["same_architecture"]
    return weights["same_vendor" if kind.vendor == other.vendor else "other"]


def _encode(values: Iterable[Any]) -> tuple[list[Any], npt.NDArray[np.int64]]:
    """Distinct values in the order of their first row, and the number of each row's value."""
    numbers: dict[Any, int] = {}
    codes = np.array([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)
    return list(numbers), codes


def read_index_file(path: Path) -> RunIndex:
    """The index in a file."""
    with path.open(encoding="utf-8", newline="") as file:
        return RunIndex(tuple(csv.DictReader(file)))


@cache
def read_run_index() -> RunIndex:
    """The index that comes with the program."""
    return read_index_file(measured.FOLDER / INDEX_FILE)


def list_utilisation_notices(features: CaseFeatures, best: BestUtilisation | None, mfu: Triple) -> list[Notice]:
    """A notice where more is predicted than was ever measured, or where nothing was measured to compare with. [Q10]"""
    kind, _ = features.gpu_shares[0]
    bits = count_bits(features.precision)
    if best is None:
        return [Notice(code="mfu_unmeasured", level="note", params={"gpu": kind.name, "bits": bits})]
    low, expected = float(plain(mfu.low)), float(plain(mfu.expected))
    if expected <= best.mfu:
        return []
    level: Level = "warning"
    if best.measured_on == "architecture":
        code = "mfu_above_family"
    elif low > best.mfu:
        code = "mfu_range_above_measured"
    elif expected <= best.architecture_mfu:
        code, level = "mfu_above_gpu", "note"
    else:
        code = "mfu_above_measured"
    params = {
        "mfu": f"{100 * expected:.1f}",
        "low": f"{100 * low:.1f}",
        "best": f"{100 * best.mfu:.1f}",
        "excess": f"{100 * (expected / best.mfu - 1):.1f}",
        "bits": bits,
        "gpu": kind.name,
        "run_gpu": best.gpu,
        "run": best.id,
        "model": best.model,
        "family_best": f"{100 * best.architecture_mfu:.1f}",
        "family_run": best.architecture_id,
        "family_gpu": best.architecture_gpu,
    }
    return [Notice(code=code, level=level, params=params)]
