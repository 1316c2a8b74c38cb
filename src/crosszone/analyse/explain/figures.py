"""Figures: every number of a prediction that can be opened, by its path, and all that goes into it.

    explain(p, build_prediction(p), "mfu").worked

The expressions are those that computed the number (`predict/recorded.py`). Paths are those of a prediction (`run.days`,
`memory_gib.stages[0].total`), of a result of a stage (`stage[2].exchange.reduce`, in row 4 `stage[2]@4.`), of sums of
communication (`traffic.kinds.tensor.busy_s`) and of the timeline (`timeline.phases.steady.idle_s`).

Figures of the timeline: what lanes, phases and the average stage do, and the usage around a micro-batch.

What the simulation drew goes in as it is; what is computed of it is recorded, like everything else.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from functools import reduce
from typing import Any

from crosszone.analyse.explain.description import (
    Descriptions,
    Explanation,
    Input,
    LabelWords,
    SummandLine,
    find_rule,
    render_words,
)
from crosszone.analyse.explain.formulas import TRAFFIC, find_formula
from crosszone.cost.expression import Expression, RecordedEntry, Term, build_expression
from crosszone.cost.record import Recorded, named, recording
from crosszone.errors import InputError, InvalidError, Notice
from crosszone.predict.prediction import Prediction, Triple
from crosszone.predict.predictor import Predictor
from crosszone.predict.recorded import RecordedPrediction, record_prediction
from crosszone.predict.traffic import FIELDS, get_tier
from crosszone.schedule.timeline import (
    IDLE,
    PHASES,
    Timeline,
    build_micro_batch_view,
    build_view,
    list_lane_totals,
    list_lanes,
)
from crosszone.text import DEFAULT_LANGUAGE


def build_timeline_entry(p: Predictor, figure: str) -> RecordedEntry | None:
    """The recorded number of a figure of the timeline; None: there is no such figure."""
    if not figure.startswith("timeline."):
        return None
    for pattern, build in PATTERNS:
        match = re.fullmatch(pattern, figure.removeprefix("timeline."))
        if match:
            try:
                with recording():
                    # twice: a constant cannot be opened, the same number under its name can (`_find_path`)
                    step = named("step_time_s", named("step_time_s", p.step_time.expected))
                    return RecordedEntry(build(p.timeline(), step, *match.groups()), ())
            except (KeyError, IndexError, InputError):
                return None
    return None


def _name_figure(path: str, name: str, value: Any, **about: str) -> Any:
    """A number of the timeline that opens at its own path."""
    recorded = named(name, value, **about)
    recorded.key = f"timeline.{path}"
    return recorded


def _build_lane(timeline: Timeline, step: Any, at: str, name: str) -> Any:
    """Work, waiting or the share of work of one lane. [S10]"""
    drawn = list_lanes(timeline)[int(at)]
    lane = {"lane": drawn["id"]}
    parts = [named("lane_part", seconds, kind=kind, **lane) for kind, seconds in drawn["parts"].items()]
    busy = _name_figure(f"lanes[{at}].busy_s", "lane_busy", sum(parts), **lane)
    if name == "busy_s":
        return busy
    if name == "idle_s":
        return named("lane_idle", step - busy, **lane)
    return named("lane_utilisation", busy / step, **lane)


def _build_phase(timeline: Timeline, step: Any, which: str, name: str) -> Any:
    """Length of a phase, work and waiting of the average stage in it, and communication exposed in it. [S13]"""
    drawn = build_view(timeline, max_spans=0)["phases"][PHASES.index(which)]
    phase = {"phase": which}
    start, end = (named(f"at_{key}", drawn[f"{key}_s"], **phase) for key in ("start", "end"))
    seconds = _name_figure(f"phases.{which}.seconds", "of_seconds", end - start, **phase)
    if name == "seconds":
        return seconds
    if name == "share":
        return named("of_share", seconds / step, **phase)
    if name == "exposed_s":
        return named("of_exposed", drawn[name], **phase)
    stages = len(timeline.stages)
    work = named("of_busy_all", drawn["busy_s"] * stages, **phase)
    busy = _name_figure(f"phases.{which}.busy_s", "of_busy", work / _count_stages(timeline), **phase)
    return busy if name == "busy_s" else named("of_idle", seconds - busy, **phase)


def _count_stages(timeline: Timeline) -> Any:
    return named("stages_drawn", len(timeline.stages))


def _average_kind(timeline: Timeline, step: Any, kind: str) -> Any:
    """Seconds of one kind on the average stage; waiting is what is left. [S10]"""
    seconds_by_kind = {kind_total["kind"]: kind_total["seconds"] for kind_total in list_lane_totals(timeline)}
    if kind != IDLE:
        every = named("all_of_kind", seconds_by_kind[kind] * len(timeline.stages), kind=kind)
        return _name_figure(f"totals.{kind}.seconds", "mean_of_kind", every / _count_stages(timeline), kind=kind)
    kinds = [_average_kind(timeline, step, kind_total) for kind_total in seconds_by_kind if kind_total != IDLE]
    return _name_figure(f"totals.{kind}.seconds", "mean_of_kind", step - sum(kinds), kind=kind)


def _read_part(timeline: Timeline, step: Any, kind: str, name: str) -> Any:
    """Seconds of one kind on the average stage, or their share of the step."""
    seconds = _average_kind(timeline, step, kind)
    return seconds if name == "seconds" else named("mean_share", seconds / step, kind=kind)


def _build_summary(timeline: Timeline, step: Any, name: str) -> Any:
    """Share of the step in which the average stage works, or in which communication is exposed. [S10] [S13]"""
    if name == "utilisation":
        return named("stages_at_work", 1.0 - _average_kind(timeline, step, IDLE) / step)
    phases = build_view(timeline, max_spans=0)["phases"]
    exposed = sum(named("of_exposed", phase["exposed_s"], phase=phase["phase"]) for phase in phases)
    return named("exposed_share", exposed / step)


def _build_micro_batch(timeline: Timeline, _: Any, at: str, stage: str | None = None) -> Any:
    """How much of the time a micro-batch is on its way the GPUs compute: all stages, or one. [S14]"""
    view = build_micro_batch_view(timeline, int(at))
    about = {"number": at}
    if stage is not None:
        stage_view, about = view["stages"][int(stage)], about | {"stage": stage}
        own_s, others_s = (
            named("way_own", stage_view["own_s"], **about),
            named("way_others", stage_view["other_s"], **about),
        )
        return named(
            "way_usage_stage", (own_s + others_s) / named("way_stage", stage_view["seconds"], **about), **about
        )
    computed = named("way_computed", view["usage"] * view["seconds"] * len(timeline.stages), **about)
    seconds = named("way_seconds", view["seconds"], **about)
    return named("way_usage", computed / (_count_stages(timeline) * seconds), **about)


PATTERNS: tuple[tuple[str, Callable[..., Any]], ...] = (
    (r"lanes\[(\d{1,6})\]\.(busy_s|idle_s|utilisation)", _build_lane),
    (rf"phases\.({'|'.join(PHASES)})\.(seconds|share|busy_s|idle_s|exposed_s)", _build_phase),
    (r"totals\.(\w+)\.(seconds|share)", _read_part),
    (r"summary\.(utilisation|exposed)", _build_summary),
    (r"micro_batch\[(\d{1,8})\]\.usage", _build_micro_batch),
    (r"micro_batch\[(\d{1,8})\]\.stages\[(\d{1,6})\]\.usage", _build_micro_batch),
)


# Figures with a range, whose ends are figures too (`mfu.low`).
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
PLAIN = (
    "gpus",
    "micro_batches",
    "memory_gib.limit",
    "memory_gib.margin",
    "memory_gib.fits_probability",
    "run.steps",
    "run.usd_egress",
    "run.usd_per_hour",
    "run.kw",
    *(f"run.goodput.{name}" for name in ("share", "mtbf_hours", "checkpoint_gb", "checkpoint_s", "interval_s")),
    "run.goodput.lost_per_failure_s",
)
# Few digits: paths come from requests too, and int() of thousands of digits is slow.
_STAGE = re.compile(r"stage\[(\d{1,6})\](?:@(\d{1,6}))?\.(.+)")
_MEMORY = re.compile(r"memory_gib\.stages\[(\d{1,6})\]\.(parts\.\w+|total|limit|host)")
_ENTRY = re.compile(r"(.+)\[(\d{1,6})\]")
_SUM = re.compile(rf"traffic\.(kinds|tiers|links)\.(.+)\.({'|'.join(FIELDS)})")


def explain(p: Predictor, prediction: Prediction, figure: str, language: str = DEFAULT_LANGUAGE) -> Explanation:
    """How a figure of a prediction comes about; `InvalidError` where there is no such figure."""
    opened: _Opened | None = p.parts.get("opened")
    # by identity: `==` would compare two predictions field by field
    if opened is None or opened.prediction is not prediction:
        opened = p.parts["opened"] = _Opened(p, prediction)
    return opened.build_explanation(figure, language)


def render_worked(p: Predictor, name: str) -> str:
    """The expression of a named number with the numbers put in."""
    return build_expression(RecordedEntry(_get_recorded(p).tape.names[name], ())).worked


def _get_recorded(p: Predictor) -> RecordedPrediction:
    if "recorded" not in p.parts:
        p.parts["recorded"] = record_prediction(p)
    recorded: RecordedPrediction = p.parts["recorded"]
    return recorded


class _Opened:
    """A prediction whose figures are opened."""

    def __init__(self, p: Predictor, prediction: Prediction) -> None:
        self.p, self.prediction = p, prediction
        self.recorded = _get_recorded(p)
        self.descriptions = Descriptions(p, prediction)

    def build_explanation(self, figure: str, language: str) -> Explanation:
        """The figure with its formula, its inputs and the numbers put in."""
        opened = self._sum_rows(figure) or self._open_cell(figure)
        if opened is None:
            raise InvalidError(Notice(code="figure_unknown", field="figure", value=figure))
        cell, words = opened
        rule = find_rule(cell.node.name or "").rule
        written = build_expression(cell, self.descriptions.make_symbol)
        low, high = self._build_ends(figure)
        text = find_formula(self._find_formula(cell))
        return Explanation(
            figure=figure,
            label=render_words(words or self.descriptions.build_label(cell), language),
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
            inputs=tuple(self._build_input(symbol, cell_in, language) for symbol, cell_in in written.inputs.items()),
            lines=self._build_lines(written, rule.term_unit or rule.unit, language),
            notes=tuple(render_words(note, language) for note in self.descriptions.list_notes(cell)),
        )

    def _find_formula(self, cell: RecordedEntry) -> str:
        row = re.match(r"communication\[(\d+)\]", cell.node.key or "")
        if row:
            return TRAFFIC[self.prediction.communication[int(row[1])].kind]
        return find_rule(cell.node.name or "").rule.formula

    def _build_input(self, symbol: str, cell: RecordedEntry, language: str) -> Input:
        described_by, source = find_rule(cell.node.name or "").rule, self.descriptions.find_source(cell)
        return Input(
            name=symbol,
            label=render_words(self.descriptions.build_label(cell), language),
            value=cell.value,
            unit=described_by.unit,
            origin=source.origin,
            where=source.where,
            error=source.error,
            figure=self._find_path(cell),
        )

    def _build_lines(self, written: Expression, unit: str, language: str) -> tuple[SummandLine, ...]:
        """The terms of a sum; empty where there is only one, or one without inputs to take a label from."""
        if len(written.terms) < 2 or not all(term.inputs for term in written.terms):
            return ()
        return tuple(self._build_line(term, written.inputs, unit, language) for term in written.terms)

    def _build_line(self, term: Term, inputs: dict[str, RecordedEntry], unit: str, language: str) -> SummandLine:
        """One term, with the label of its last input that can be opened (else of its last input)."""
        cells = [inputs[symbol] for symbol in term.inputs]
        main = next((cell for cell in reversed(cells) if self._find_path(cell)), cells[-1])
        words = render_words(self.descriptions.build_label(main), language)
        return SummandLine(label=words, worked=term.worked, value=term.value, unit=unit, figure=self._find_path(main))

    def _build_ends(self, figure: str) -> tuple[float | None, float | None]:
        base = figure.removesuffix(".expected")
        if base not in RANGED:
            return None, None
        triple: Triple = _read_path(self.prediction, base)
        return triple.low, triple.high

    # Paths

    def _find_path(self, cell: RecordedEntry) -> str | None:
        """The path of a cell that has an expression of its own."""
        node, at = cell
        if node.key is None or node.op in ("leaf", "constant"):
            return None
        if node.key.startswith("memory_gib.") and node.ndim == 1:
            return f"memory_gib.stages[{at[0]}].{node.key.removeprefix('memory_gib.')}"
        if node.ndim == 2:
            row, stage = self.descriptions.locate(cell)
            return f"stage[{stage}]{'' if row == self.p.row else f'@{row}'}.{node.key}"
        return f"{node.key}[{at[0]}]" if node.ndim else node.key

    def _open_cell(self, figure: str) -> tuple[RecordedEntry, LabelWords | None] | None:
        names = self.recorded.tape.names
        drawn = build_timeline_entry(self.p, figure)
        if drawn is not None:
            return drawn, None
        memory = _MEMORY.fullmatch(figure)
        if memory:
            key = memory[2] if memory[2] != "limit" else "stage_limit"
            return _pick_entry(names.get(f"memory_gib.{key}"), int(memory[1]))
        stage = _STAGE.fullmatch(figure)
        if stage:
            return self._select_stage(names.get(stage[3]), int(stage[1]), self.p.row if not stage[2] else int(stage[2]))
        path = figure.removesuffix(".expected") if figure.removesuffix(".expected") in RANGED else figure
        node = names.get(path)
        if node is not None and node.ndim == 0 and _has_formula(node):
            return RecordedEntry(node, ()), None
        entry = _ENTRY.fullmatch(figure)
        return _pick_entry(names.get(entry[1]), int(entry[2])) if entry else None

    def _select_stage(
        self, node: Recorded | None, stage: int, row: int
    ) -> tuple[RecordedEntry, LabelWords | None] | None:
        if node is None or stage >= self.p.strategy.pp or not _has_formula(node):
            return None
        if node.ndim == 0:
            return RecordedEntry(node, ()), None
        if node.ndim != 2 or (row >= node.shape[0] > 1):
            return None
        return RecordedEntry(node, (row if node.shape[0] > 1 else 0, stage if node.shape[1] > 1 else 0)), None

    def _sum_rows(self, figure: str) -> tuple[RecordedEntry, LabelWords | None] | None:
        """Rows of a kind, a tier or a link added up. [A1]"""
        match = _SUM.fullmatch(figure)
        if not match:
            return None
        by, name, column = match.groups()
        names = self.recorded.tape.names
        rows = [
            names[f"communication[{at}].{column}"]
            for at, row in enumerate(self.prediction.communication)
            if {"kinds": row.kind, "tiers": get_tier(row.link), "links": row.link}[by] == name
        ]
        if not rows:
            return None
        total: Any = reduce(operator.add, rows)
        if len(rows) == 1:
            # a node of its own: with the sum's name the row itself would lose its own
            total = Recorded(rows[0].value, "same", (rows[0],), rows[0].tape)
        # named as a row is, so that the rules of rows describe it (unit, formula)
        total.name, total.key = f"communication[0].{column}", figure
        groupings = {"kinds": f"kind_{name}", "tiers": f"tier_{name}"}
        of: object = LabelWords(groupings[by]) if by in groupings else name
        return RecordedEntry(total, ()), LabelWords("traffic_sum", {"of": of, "field": LabelWords(f"sum_{column}")})


def _has_formula(node: Recorded) -> bool:
    """It has a formula of its own."""
    return node.op != "leaf" and bool(find_rule(node.name or "").rule.formula)


def _pick_entry(node: Recorded | None, at: int) -> tuple[RecordedEntry, LabelWords | None] | None:
    """One entry of an array [entries]."""
    return (RecordedEntry(node, (at,)), None) if node is not None and node.ndim == 1 and at < len(node) else None


def list_figures(prediction: Prediction) -> list[str]:
    """Paths of all figures of a prediction that have a value."""
    paths = [name for name in (*RANGED, *PLAIN) if _read_path(prediction, name) is not None]
    paths += [f"{name}.{side}" for name in RANGED if name in paths for side in ("low", "high")]
    paths += [f"breakdown_s.{name}" for name in prediction.breakdown_s]
    paths += [f"shares.{name}" for name in prediction.shares]
    paths += ["basis.low", "basis.high"]
    for stage in prediction.memory_gib.stages:
        at = f"memory_gib.stages[{stage.stage}]"
        paths += [f"{at}.{name}" for name in ("total", "limit", "host", *(f"parts.{part}" for part in stage.parts))]
    for row in range(len(prediction.communication)):
        paths += [f"communication[{row}].{name}" for name in FIELDS]
    return paths


def read_value(prediction: Prediction, figure: str) -> Any:
    """The number that stands at a path of a prediction."""
    value = _read_path(prediction, figure)
    return value.expected if isinstance(value, Triple) else value


def _read_path(prediction: Prediction, figure: str) -> Any:
    node: Any = prediction
    for name, index in re.findall(r"(\w+)(?:\[(\d+)\])?", figure):
        node = node[name] if isinstance(node, dict) else getattr(node, name)
        node = node[int(index)] if index else node
    return node
