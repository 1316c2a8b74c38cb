"""Accuracy: measured runs beside their predictions, and the tables made of them.

    accuracy = score_runs(Path("measured_runs.csv"))
    accuracy.summary["mape_pct"], accuracy.by_source
    accuracy.as_dict()                    # what `crosszone accuracy --json` prints

Rows listed as doubtful are scored apart; a row that repeats another one's figures counts once. Besides errors of the
step time and of memory, `score_ranking` says whether strategies are ranked rightly: does the one predicted fastest turn
out fastest, and are pairs of strategies in the right order?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.calibrate.predicted import PredictedRuns, predict_runs
from crosszone.calibrate.runs import MeasuredRun, Skipped, iterate_runs
from crosszone.cost.profile import Profiles

MIN_PAIR_RATIO = 1.05  # Pairs whose measured times differ by less are not counted: repeated runs differ as much
MOST_STRATEGIES = 2000  # Strategies of one group that are compared in pairs
MIN_CORRELATED = 3  # Strategies of a group whose order is worth a correlation
MIN_LARGE_GROUP = 5  # Strategies of a group among which the best is not found by luck


@dataclass(frozen=True, slots=True)
class RankedRun:
    """One run as the ranking sees it: what it has in common with others, its strategy, and its times."""

    setup: Hashable
    strategy: Hashable
    measured_s: float
    predicted_s: float


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """How well strategies of equal set-ups are ranked; None: there is nothing to rank."""

    groups: int
    strategies: int
    mean_regret: float | None
    """Measured time of the strategy predicted best over that of the best."""
    max_regret: float | None
    pairs: int
    """Pairs more than 5 % apart."""
    pairs_right_pct: float | None
    spearman: float | None
    """Mean rank correlation of groups of three and more."""


def build_setup_key(run: MeasuredRun) -> tuple[Hashable, ...]:
    """What runs must have in common to differ only in their strategy."""
    # The release is part of the key: the same strategy can take another time in the next version of a framework.
    case, model = run.case, run.case.model
    group = case.cluster.zones[0].nodes[0]
    return (
        run.source,
        run.stack,
        run.release,
        model.name,
        model.layers,
        model.hidden,
        model.heads,
        group.gpu.name,
        case.cluster.gpus,
        case.job.global_batch,
        case.job.seq_len,
        case.job.precision,
        case.job.fp8_recipe,
    )


def build_strategy_key(run: MeasuredRun) -> tuple[Hashable, ...]:
    """The strategy as text, so that equal strategies compare equal."""
    return (str(run.case.strategy),)


def score_ranking(outcomes: Iterable[RankedRun], min_strategies: int = 2) -> Ranking:
    """Regret, ordered pairs and rank correlation over groups of `min_strategies` or more. [Q7]

    Regret is the measured time of the strategy predicted fastest over that of the fastest: 1 is the best choice. Runs
    of the same strategy count as their mean.
    """
    regrets, correlations, strategies, pairs, right = [], [], 0, 0, 0
    for means in average_times(outcomes, min_strategies):
        measured, predicted = means[:, 0], means[:, 1]
        strategies += len(measured)
        regrets.append(float(measured[np.argmin(predicted)] / measured.min()))
        compared = slice(MOST_STRATEGIES)  # pairs need memory by the square of their number
        pairs_apart, pairs_right = _count_pairs(measured[compared], predicted[compared])
        pairs, right = pairs + pairs_apart, right + pairs_right
        if len(measured) >= MIN_CORRELATED:
            correlations.append(compute_spearman(measured, predicted))
    return Ranking(
        groups=len(regrets),
        strategies=strategies,
        mean_regret=float(np.mean(regrets)) if regrets else None,
        max_regret=max(regrets, default=None),
        pairs=pairs,
        pairs_right_pct=100.0 * right / pairs if pairs else None,
        spearman=float(np.mean(correlations)) if correlations else None,
    )


def average_times(outcomes: Iterable[RankedRun], min_strategies: int = 2) -> Iterator[npt.NDArray[np.float64]]:
    """Measured and predicted mean time of each strategy ([strategies, 2]), of set-ups that have `min_strategies`."""
    groups: dict[Hashable, dict[Hashable, list[RankedRun]]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.setup, {}).setdefault(outcome.strategy, []).append(outcome)
    for group in groups.values():
        if len(group) >= min_strategies:
            times = [[(o.measured_s, o.predicted_s) for o in repeats] for repeats in group.values()]
            yield np.array([np.mean(repeats, axis=0) for repeats in times])


def compute_spearman(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    """Rank correlation, 1 to -1; equal values share their mean rank; 0 where one side is all equal."""
    a, b = (_rank_values(x) - (len(x) - 1) / 2 for x in (first, second))
    size = float(np.sqrt((a**2).sum() * (b**2).sum()))
    return float((a * b).sum()) / size if size else 0.0


def _rank_values(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    order = np.sort(values)
    below, up_to = np.searchsorted(order, values, "left"), np.searchsorted(order, values, "right")
    return (below + up_to - 1) / 2.0


def _count_pairs(measured: npt.NDArray[np.float64], predicted: npt.NDArray[np.float64]) -> tuple[int, int]:
    """Pairs that are apart, and those of them that are predicted in the right order."""
    # each pair appears once: only one of its two orders can be slower
    slower = measured[:, None] > MIN_PAIR_RATIO * measured[None, :]
    right = slower & (predicted[:, None] > predicted[None, :])
    return int(slower.sum()), int(right.sum())


CHUNK = 4096  # Rows read and predicted at once, so that a long file needs little memory
Scores = dict[str, float | int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRow:
    """One row of the file: what was measured, what is predicted, or why it is skipped."""

    id: str
    source: str
    measured_s: float | None = None
    predicted_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    memory_gib_measured: float | None = None
    memory_gib_predicted: float | None = None
    skipped: str | None = None
    code: str | None = None
    """Code of the reason why it is skipped."""
    doubtful: str | None = None
    duplicate_of: str | None = None
    stack: str | None = None
    complete: bool = False
    moe: bool = False
    assumed: tuple[str, ...] = ()
    setup: int = 0
    """Equal for rows that differ only in their strategy."""
    strategy: int = 0

    @property
    def error_pct(self) -> float | None:
        """(predicted - measured) / measured of the step time."""
        if self.measured_s is None or self.predicted_s is None:
            return None
        return 100.0 * (self.predicted_s / self.measured_s - 1.0)

    @property
    def counts(self) -> bool:
        """Whether the row goes into the averages."""
        return self.measured_s is not None and self.doubtful is None and self.duplicate_of is None

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        plain = {name: getattr(self, name) for name in ScoredRow.__dataclass_fields__ if name not in _NOT_IN_JSON}
        return {**plain, "error_pct": self.error_pct, "assumed": list(self.assumed)}


_NOT_IN_JSON = ("setup", "strategy")


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """All rows of a file, and the tables made of them."""

    rows: Sequence[ScoredRow]

    @cached_property
    def summary(self) -> Scores:
        """Errors over all rows."""
        return summarize_errors(self.rows)

    @cached_property
    def subsets(self) -> dict[str, Scores]:
        """The same over rows that state everything and the others, over dense models and those with experts."""
        tests: dict[str, Callable[[ScoredRow], bool]] = {
            "complete": lambda row: row.complete,
            "incomplete": lambda row: not row.complete,
            "dense": lambda row: not row.moe,
            "moe": lambda row: row.moe,
        }
        able = [row for row in self.rows if row.skipped is None]
        return {name: summarize_errors([row for row in able if test(row)]) for name, test in tests.items()}

    @cached_property
    def by_source(self) -> list[dict[str, Any]]:
        """The summary of each source, in the file's order."""
        return summarize_sources(self.rows)

    @cached_property
    def doubtful(self) -> Scores:
        """Errors over the rows that contradict their neighbours."""
        return summarize_errors([replace(row, doubtful=None) for row in self.rows if row.doubtful is not None])

    @cached_property
    def assumed(self) -> list[dict[str, Any]]:
        """What was assumed of how many rows of each source, most first."""
        counts = Counter((row.source, what) for row in self.rows for what in row.assumed)
        return [{"source": s, "assumed": what, "rows": n} for (s, what), n in counts.most_common()]

    @cached_property
    def skipped(self) -> list[dict[str, Any]]:
        """Reasons for skipping rows, by source, most first."""
        counts = Counter((row.source, row.code, row.skipped) for row in self.rows if row.skipped is not None)
        return [{"source": s, "code": c, "reason": why, "rows": n} for (s, c, why), n in counts.most_common()]

    @cached_property
    def ranking(self) -> Ranking:
        """How well strategies of equal set-ups are ranked."""
        return score_ranking(
            RankedRun(row.setup, row.strategy, row.measured_s, row.predicted_s)
            for row in self.rows
            if row.counts and row.measured_s and row.predicted_s
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "summary": self.summary,
            "subsets": self.subsets,
            "by_source": self.by_source,
            "doubtful": self.doubtful,
            "ranking": asdict(self.ranking),
            "assumed": self.assumed,
            "skipped": self.skipped,
            "rows": [row.as_dict() for row in self.rows],
        }


def summarize_errors(rows: Sequence[ScoredRow]) -> Scores:
    """Mean and median absolute error, shares within 10 and 20 %, coverage of the band, error of memory. [Q5]

    An error is predicted / measured - 1, in %. The band is to hold 80 % of rows that were not fitted to.
    """
    timed = [(row.predicted_s, row.measured_s, row.low_s, row.high_s) for row in rows if row.counts]
    p, m, low, high = np.array(timed, dtype=float).reshape(-1, 4).T
    error = 100.0 * (p / m - 1.0)
    size = np.abs(error)
    memory = np.array(
        [
            (row.memory_gib_predicted, row.memory_gib_measured)
            for row in rows
            if row.memory_gib_measured and row.doubtful is None and row.duplicate_of is None
        ],
        dtype=float,
    ).reshape(-1, 2)
    memory_error = 100.0 * (memory[:, 0] / memory[:, 1] - 1.0)
    return {
        "rows": len(rows),
        "scored": len(timed),
        "skipped": sum(row.skipped is not None for row in rows),
        "doubtful": sum(row.doubtful is not None for row in rows),
        "duplicates": sum(row.duplicate_of is not None and row.doubtful is None for row in rows),
        "mape_pct": _apply_if_any(np.mean, size),
        "median_ape_pct": _apply_if_any(np.median, size),
        "bias_pct": _apply_if_any(np.mean, error),
        "within_10_pct": _apply_if_any(np.mean, 100.0 * (size <= 10.0)),
        "within_20_pct": _apply_if_any(np.mean, 100.0 * (size <= 20.0)),
        "band_coverage_pct": _apply_if_any(np.mean, 100.0 * ((low <= m) & (m <= high))),
        "band_width_pct": _apply_if_any(np.median, 100.0 * (high - low) / p),
        "memory_rows": len(memory),
        "memory_mape_pct": _apply_if_any(np.mean, np.abs(memory_error)),
        "memory_median_ape_pct": _apply_if_any(np.median, np.abs(memory_error)),
        "memory_lowest_pct": _apply_if_any(np.min, memory_error),
    }


def summarize_sources(rows: Sequence[ScoredRow]) -> list[dict[str, Any]]:
    """The same of each source, in the order of the rows."""
    groups: dict[str, list[ScoredRow]] = {}
    for row in rows:
        groups.setdefault(row.source, []).append(row)
    return [{"source": source, **summarize_errors(members)} for source, members in groups.items()]


def score_runs(
    path: Path,
    profiles: Profiles | None = None,
    doubtful: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
    *,
    as_user: bool = False,
) -> Accuracy:
    """Predict every row of a file; `progress` hears of the rows done after each chunk.

    `as_user`: each row as a user would write it, its source unknown.
    """
    scorer = _RunScorer(profiles or Profiles.load(), doubtful or {})
    rows: list[ScoredRow] = []
    entries = iterate_runs(path, as_user=as_user)
    while chunk := list(islice(entries, CHUNK)):
        rows += scorer.score(chunk)
        if progress:
            progress(len(chunk))
    return Accuracy(rows=rows)


def build_scored_row(run: MeasuredRun, step_s: float, low_s: float, high_s: float, **fields: Any) -> ScoredRow:
    """A run with its predicted step and range; `fields`: what else is known of the row."""
    return ScoredRow(
        id=run.id,
        source=run.source,
        measured_s=run.step_time_s,
        predicted_s=step_s,
        low_s=low_s,
        high_s=high_s,
        complete=run.complete,
        moe=run.moe,
        **fields,
    )


@dataclass
class _RunScorer:
    """Scores chunk by chunk; equal set-ups, strategies and sentences are kept once."""

    profiles: Profiles
    doubtful: Mapping[str, str]
    key_numbers: dict[Hashable, int] = field(default_factory=dict)
    assumptions: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)

    def score(self, chunk: Iterable[MeasuredRun | Skipped]) -> list[ScoredRow]:
        """The rows in their order."""
        entries = list(chunk)
        runs = [entry for entry in entries if isinstance(entry, MeasuredRun)]
        scored = iter(self._score_runs(runs, predict_runs(runs, self.profiles)) if runs else ())
        return [
            next(scored)
            if isinstance(entry, MeasuredRun)
            else ScoredRow(
                id=entry.id,
                source=entry.source,
                skipped=entry.reason,
                code=entry.code,
                doubtful=self.doubtful.get(entry.id),
            )
            for entry in entries
        ]

    def _score_runs(self, runs: Sequence[MeasuredRun], predictions: PredictedRuns) -> Iterable[ScoredRow]:
        for index, run in enumerate(runs):
            yield build_scored_row(
                run,
                float(predictions.step_s[index]),
                float(predictions.low_s[index]),
                float(predictions.high_s[index]),
                memory_gib_measured=run.memory_gib,
                memory_gib_predicted=float(predictions.memory_gib[index]),
                doubtful=self.doubtful.get(run.id),
                duplicate_of=run.duplicate_of,
                stack=predictions.stacks[index],
                assumed=self.assumptions.setdefault(run.assumed, run.assumed),
                setup=self.key_numbers.setdefault(build_setup_key(run), len(self.key_numbers)),
                strategy=self.key_numbers.setdefault(build_strategy_key(run), len(self.key_numbers)),
            )


def _apply_if_any(function: Callable[[Any], Any], values: Any) -> float | None:
    return float(function(values)) if len(values) else None
