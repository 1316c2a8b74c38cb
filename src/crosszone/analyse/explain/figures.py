"""Figures: every number of a prediction that can be opened, by its path, and all that goes into it.

    explain(p, p.prediction(), "mfu").worked

The expressions are those that computed the number (`predict/recorded.py`). Paths are those of a prediction (`run.days`,
`memory_gib.stages[0].total`), of a result of a stage (`stage[2].exchange.reduce`, in row 4 `stage[2]@4.`), of sums of
communication (`traffic.kinds.tensor.busy_s`) and of the timeline (`timeline.phases.steady.idle_s`).
"""

from __future__ import annotations

import operator
import re
from functools import reduce
from typing import Any

from crosszone.analyse.explain.description import Descriptions, described
from crosszone.analyse.explain.explanation import Explanation, Input, Line, Words, said
from crosszone.analyse.explain.formulas import TRAFFIC, formula
from crosszone.analyse.explain.timeline import timeline_cell
from crosszone.cost.expression import Cell, Expression, Term, expression
from crosszone.cost.record import Recorded
from crosszone.errors import InvalidError, Notice
from crosszone.predict.predict import Predictor
from crosszone.predict.prediction import Prediction, Triple
from crosszone.predict.recorded import RecordedPrediction, record_prediction
from crosszone.predict.traffic import FIELDS, tier_of
from crosszone.text import DEFAULT_LANGUAGE

RANGED = (
    "step_time_s",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "hfu",
    "memory_gib.peak",
    "run.days",
    "run.gpu_hours",
    "run.usd",
    "run.kwh",
    "run.co2_kg",
)
"""Figures with a range, whose ends are figures too (`mfu.low`)."""
PLAIN = (
    "gpus",
    "micro_batches",
    "memory_gib.limit",
    "memory_gib.margin",
    "run.steps",
    "run.usd_egress",
    "run.usd_per_hour",
    "run.kw",
    *(f"run.goodput.{name}" for name in ("share", "mtbf_hours", "checkpoint_gb", "checkpoint_s", "interval_s")),
    "run.goodput.lost_per_failure_s",
)
_STAGE = re.compile(r"stage\[(\d{1,6})\](?:@(\d{1,6}))?\.(.+)")
_MEMORY = re.compile(r"memory_gib\.stages\[(\d{1,6})\]\.(parts\.\w+|total|limit|host)")
_ENTRY = re.compile(r"(.+)\[(\d{1,6})\]")
_SUM = re.compile(rf"traffic\.(kinds|tiers|links)\.(.+)\.({'|'.join(FIELDS)})")


def explain(p: Predictor, prediction: Prediction, figure: str, language: str = DEFAULT_LANGUAGE) -> Explanation:
    """How a figure of a prediction comes about; `InvalidError` where there is no such figure."""
    opened: _Opened | None = p.parts.get("opened")
    if opened is None or opened.prediction is not prediction:
        opened = p.parts["opened"] = _Opened(p, prediction)
    return opened.explanation(figure, language)


def worked_out(p: Predictor, name: str) -> str:
    """The expression of a named number with the numbers put in."""
    return expression(Cell(_recorded(p).tape.names[name], ())).worked


def _recorded(p: Predictor) -> RecordedPrediction:
    if "recorded" not in p.parts:
        p.parts["recorded"] = record_prediction(p)
    found: RecordedPrediction = p.parts["recorded"]
    return found


class _Opened:
    """A prediction whose figures are opened."""

    def __init__(self, p: Predictor, prediction: Prediction) -> None:
        self.p, self.prediction = p, prediction
        self.recorded = _recorded(p)
        self.descriptions = Descriptions(p, prediction)

    def explanation(self, figure: str, language: str) -> Explanation:
        """The figure with its formula, its inputs and the numbers put in."""
        found = self._sum(figure) or self._cell(figure)
        if found is None:
            raise InvalidError(Notice(code="figure_unknown", field="figure", value=figure))
        cell, words = found
        rule = described(cell.node.name or "").rule
        written = expression(cell, self.descriptions.symbol)
        low, high = self._ends(figure)
        text = formula(self._formula(cell))
        return Explanation(
            figure=figure,
            label=said(words or self.descriptions.words(cell), language),
            value=cell.value,
            unit=rule.unit,
            low=low,
            high=high,
            formula=text.id,
            title=text.title,
            text=text.markdown,
            symbols=written.symbols,
            worked=written.worked,
            result=written.value,
            inputs=tuple(self._input(symbol, one, language) for symbol, one in written.inputs.items()),
            lines=self._lines(written, rule.term_unit or rule.unit, language),
            notes=tuple(said(note, language) for note in self.descriptions.notes(cell)),
        )

    def _formula(self, cell: Cell) -> str:
        row = re.match(r"communication\[(\d+)\]", cell.node.key or "")
        if row:
            return TRAFFIC[self.prediction.communication[int(row[1])].kind]
        return described(cell.node.name or "").rule.formula

    def _input(self, symbol: str, cell: Cell, language: str) -> Input:
        described_by, source = described(cell.node.name or "").rule, self.descriptions.source(cell)
        return Input(
            name=symbol,
            label=said(self.descriptions.words(cell), language),
            value=cell.value,
            unit=described_by.unit,
            origin=source.origin,
            where=source.where,
            error=source.error,
            figure=self._path(cell),
        )

    def _lines(self, written: Expression, unit: str, language: str) -> tuple[Line, ...]:
        """The terms of a sum, where there are several and each can be called something."""
        if len(written.terms) < 2 or not all(term.inputs for term in written.terms):
            return ()
        return tuple(self._line(term, written.inputs, unit, language) for term in written.terms)

    def _line(self, term: Term, inputs: dict[str, Cell], unit: str, language: str) -> Line:
        """A term, called after what it is most of all: the last of its inputs that can be opened, else the last."""
        cells = [inputs[symbol] for symbol in term.inputs]
        main = next((cell for cell in reversed(cells) if self._path(cell)), cells[-1])
        words = said(self.descriptions.words(main), language)
        return Line(label=words, worked=term.worked, value=term.value, unit=unit, figure=self._path(main))

    def _ends(self, figure: str) -> tuple[float | None, float | None]:
        base = figure.removesuffix(".expected")
        if base not in RANGED:
            return None, None
        triple: Triple = _at(self.prediction, base)
        return triple.low, triple.high

    # Paths

    def _path(self, cell: Cell) -> str | None:
        """The path of a cell that has an expression of its own."""
        node, at = cell
        if node.key is None or node.op in ("leaf", "constant"):
            return None
        if node.key.startswith("memory_gib.") and node.ndim == 1:
            return f"memory_gib.stages[{at[0]}].{node.key.removeprefix('memory_gib.')}"
        if node.ndim == 2:
            row, stage = self.descriptions.place(cell)
            return f"stage[{stage}]{'' if row == self.p.row else f'@{row}'}.{node.key}"
        return f"{node.key}[{at[0]}]" if node.ndim else node.key

    def _cell(self, figure: str) -> tuple[Cell, Words | None] | None:
        names = self.recorded.tape.names
        drawn = timeline_cell(self.p, figure)
        if drawn is not None:
            return drawn, None
        memory = _MEMORY.fullmatch(figure)
        if memory:
            key = memory[2] if memory[2] != "limit" else "stage_limit"
            return _entry(names.get(f"memory_gib.{key}"), int(memory[1]))
        stage = _STAGE.fullmatch(figure)
        if stage:
            return self._of_stage(names.get(stage[3]), int(stage[1]), self.p.row if not stage[2] else int(stage[2]))
        path = figure.removesuffix(".expected") if figure.removesuffix(".expected") in RANGED else figure
        node = names.get(path)
        if node is not None and node.ndim == 0 and _opens(node):
            return Cell(node, ()), None
        entry = _ENTRY.fullmatch(figure)
        return _entry(names.get(entry[1]), int(entry[2])) if entry else None

    def _of_stage(self, node: Recorded | None, stage: int, row: int) -> tuple[Cell, Words | None] | None:
        if node is None or stage >= self.p.strategy.pp or not _opens(node):
            return None
        if node.ndim == 0:
            return Cell(node, ()), None
        if node.ndim != 2 or (row >= node.shape[0] > 1):
            return None
        return Cell(node, (row if node.shape[0] > 1 else 0, stage if node.shape[1] > 1 else 0)), None

    def _sum(self, figure: str) -> tuple[Cell, Words | None] | None:
        """Rows of a kind, a tier or a link added up. [A1]"""
        match = _SUM.fullmatch(figure)
        if not match:
            return None
        by, name, column = match.groups()
        names = self.recorded.tape.names
        rows = [
            names[f"communication[{at}].{column}"]
            for at, row in enumerate(self.prediction.communication)
            if {"kinds": row.kind, "tiers": tier_of(row.link), "links": row.link}[by] == name
        ]
        if not rows:
            return None
        total: Any = reduce(operator.add, rows)
        if len(rows) == 1:
            total = Recorded(rows[0].value, "same", (rows[0],), rows[0].tape)
        total.name, total.key = f"communication[0].{column}", figure
        known = {"kinds": f"kind_{name}", "tiers": f"tier_{name}"}
        of: object = Words(known[by]) if by in known else name
        return Cell(total, ()), Words("traffic_sum", {"of": of, "field": Words(f"sum_{column}")})


def _opens(node: Recorded) -> bool:
    """It has a formula of its own."""
    return node.op != "leaf" and bool(described(node.name or "").rule.formula)


def _entry(node: Recorded | None, at: int) -> tuple[Cell, Words | None] | None:
    """One entry of an array [entries]."""
    return (Cell(node, (at,)), None) if node is not None and node.ndim == 1 and at < len(node) else None


def figures(prediction: Prediction) -> list[str]:
    """Paths of all figures of a prediction that have a value."""
    found = [name for name in (*RANGED, *PLAIN) if _at(prediction, name) is not None]
    found += [f"{name}.{side}" for name in RANGED if name in found for side in ("low", "high")]
    found += [f"breakdown_s.{name}" for name in prediction.breakdown_s]
    found += [f"shares.{name}" for name in prediction.shares]
    found += ["basis.low", "basis.high"]
    for stage in prediction.memory_gib.stages:
        at = f"memory_gib.stages[{stage.stage}]"
        found += [f"{at}.{name}" for name in ("total", "limit", "host", *(f"parts.{part}" for part in stage.parts))]
    for row in range(len(prediction.communication)):
        found += [f"communication[{row}].{name}" for name in FIELDS]
    return found


def value_of(prediction: Prediction, figure: str) -> Any:
    """The number that stands at a path of a prediction."""
    found = _at(prediction, figure)
    return found.expected if isinstance(found, Triple) else found


def _at(prediction: Prediction, figure: str) -> Any:
    found: Any = prediction
    for name, index in re.findall(r"(\w+)(?:\[(\d+)\])?", figure):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
        found = found[int(index)] if index else found
    return found
