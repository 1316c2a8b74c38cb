"""Workbook: a scenario's prediction as a spreadsheet whose formulas are live: change an input, or a formula.

data = build_workbook(read_scenario("examples/single-node.yaml"))
Path("book.xlsx").write_bytes(data)

No formula is written by hand: the prediction is computed once with numbers that remember their arithmetic
(`predict/recorded.py`), and every named number becomes a cell (`formulas.py`). So the cells are the cost model,
whatever it is today. Inputs are cells to type in; what changes the structure (degrees, schedule, placement) is a cell
without colour, for its number is part of which formulas there are.

Example: the scenario that a workbook holds when none is given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from crosszone.analyse.explain.description import Described, Descriptions, described, said
from crosszone.calibrate.sheet import grid
from crosszone.calibrate.sheet.book import Book, Heading, Line, Text
from crosszone.calibrate.sheet.formulas import LONGEST, SHARE, FormulaCell, FormulaCells, Term, write_number
from crosszone.calibrate.sheet.output import (
    SHEET,
    Figure,
    checks,
    memory_figures,
    part_figures,
    run_figures,
    timeline_figures,
    traffic_figures,
)
from crosszone.cost.expression import Cell
from crosszone.cost.record import Recorded
from crosszone.inputs.scenario import Loaded, read_scenario
from crosszone.predict.answer import predictor_of
from crosszone.predict.predictor import Predictor
from crosszone.predict.recorded import RecordedScenario, record_scenario
from crosszone.schedule.orders import list_stages_in_order
from crosszone.text import DEFAULT_LANGUAGE

# Passes of a step (both ways as one) that are laid out in cells; beyond, the pipeline's times stand as simulated.
MOST_PASSES = 4096
INPUT, LAYER, STAGES, EXCHANGE, MEMORY, RUN, COEFFICIENTS = (
    "Input",
    "Layer",
    "Stages",
    "Exchange",
    "Memory",
    "Run",
    "Coefficients",
)
# Sheets as they lie in the workbook.
ORDER = (INPUT, SHEET, LAYER, STAGES, EXCHANGE, MEMORY, grid.SHEET, RUN, COEFFICIENTS)
# Sheets by the formula that a number is of; the others lie with the layer.
TOPICS = (
    (re.compile(r"X8|V\d|S\d+|O7|R\d"), STAGES),
    (re.compile(r"X[567]|T\d+|A1|C1\d|O10"), EXCHANGE),
    (re.compile(r"M\d+|Q6"), MEMORY),
    (re.compile(r"[EJ]\d+|F1"), RUN),
)
# Constants of a prediction that a user may change; other constants are part of the structure.
TYPED = re.compile(
    r"price_of|failures_of|board_power|pue|grid_carbon|job\.\w+|egress_price|power_\w+|local_update\.(?:delay|steps)"
)
WHAT = re.compile(r"input\.(?:hidden|ffn_hidden|vocab|head_dim|expert_\w+)|work\.\w+|job\.\w+|local_update\.\w+")
CONSTANT = re.compile(r"residual_passes|routed_bytes|score_bytes|weight_traffic|hop\..*|calls_of_layer|training_passes")
# Names of cells that are other than those of the numbers.
NAMES = {
    "work.seq": "seq_len",
    **{f"work.{name}": name for name in ("global_batch", "micro_batch", "tp", "pp", "dp", "cp", "ep", "zero")},
}
TEXTS = ("scenario_name", "model", "gpu", "framework", "stack", "precision", "optimizer", "schedule", "recompute")
FIXED = ("tp", "pp", "dp", "cp", "ep", "zero")


def build_workbook(loaded: Loaded, language: str = DEFAULT_LANGUAGE) -> bytes:
    """The workbook of a scenario."""
    return build_predictor_workbook(predictor_of(loaded), language)


def build_predictor_workbook(p: Predictor, language: str = DEFAULT_LANGUAGE) -> bytes:
    """The same of a placed strategy."""
    recorded = record_scenario(p, most_passes=MOST_PASSES)
    return _Writer(p, recorded, Book(language)).write()


def is_typed(node: Recorded) -> bool:
    """A number that goes in and may be changed."""
    return node.op == "leaf" or (node.op == "constant" and TYPED.fullmatch(node.name or "") is not None)


@dataclass
class _Writer:
    """Writes the sheets of one prediction."""

    p: Predictor
    recorded: RecordedScenario
    book: Book

    @cached_property
    def grid(self) -> grid.Grid:
        return grid.lay_out(self.recorded.passes)

    @cached_property
    def formulas(self) -> FormulaCells:
        return FormulaCells(is_typed, self.grid.places, NAMES)

    @cached_property
    def descriptions(self) -> Descriptions:
        return Descriptions(self.p, self.recorded.prediction)

    def write(self) -> bytes:
        """The file."""
        book, recorded = self.book, self.recorded
        for name in ORDER:
            book.sheet(name)
        sections: dict[str, list[Figure]] = {
            "timeline": timeline_figures(recorded),
            "breakdown": part_figures(recorded),
            "memory": memory_figures(recorded),
            "run": run_figures(recorded),
            "communication": traffic_figures(recorded),
        }
        for figure in (figure for part in sections.values() for figure in part):
            self.formulas.figures.setdefault(id(figure.value), figure.name)
            self.formulas.reserved.add(figure.name)
        self.formulas.reserved |= set(TEXTS)
        terms = {figure.name: self.formulas.term(figure.value) for part in sections.values() for figure in part}
        conditions = {name: self._condition(found) for name, found in checks(recorded)}
        used = self.formulas.used(
            [term.text for term in terms.values()] + [text for text in conditions.values() if text]
        )
        placed: set[str] = set()
        self._inputs(used, placed)
        output: list[Line | Heading] = []
        for key, figures in sections.items():
            output += [Heading(key=key)] if figures else []
            output += [self._figure_line(figure, terms[figure.name], used, placed) for figure in figures]
        output.append(Heading(key="checks"))
        output += [
            Line(name=name, value=f'=IF({text},"ok","wrong")', cached="ok") for name, text in conditions.items() if text
        ]
        self._topics(used, placed)
        grid.write(book, self.grid, used)
        book.lines(SHEET, output)
        return book.saved()

    def _condition(self, found: list[tuple[object, bool]]) -> str:
        """Conditions put together, those left out that no input changes; empty: none is left."""
        texts: dict[str, None] = {}
        for node, truth in found:
            term = self.formulas.term(node)
            if term.live:
                text = term.text if term.logical else f"({term.text})<>0"
                texts[text if truth else f"NOT({text})"] = None
        parts: list[list[str]] = [[]]
        for text in texts:
            if parts[-1] and len(",".join((*parts[-1], text))) > LONGEST:
                parts.append([])
            parts[-1].append(text)
        shared = [self.formulas.share_text(f"AND({','.join(part)})") for part in parts if part]
        return f"AND({','.join(shared)})" if len(shared) > 1 else shared[0] if shared else ""

    # Lines

    def _figure_line(self, figure: Figure, term: Term, used: dict[str, FormulaCell], placed: set[str]) -> Line:
        text = term.text
        if text == figure.name and text in used:
            placed.add(text)
            text = used[text].formula or write_number(term.value)
        label = figure.label and f"{figure.label}: {self.book.words('traffic', figure.name.split('_', 2)[2])}"
        if figure.name.startswith("memory_stage_"):
            label = self.book.words("memory_of_stage").format(stage=figure.name.rpartition("_")[2])
        return Line(
            name=figure.name, value=f"={text}", unit=figure.unit, id=figure.id, label=label, cached=float(term.value)
        )

    def _rule(self, cell: FormulaCell) -> Described | None:
        try:
            return described(cell.entry.node.name or "")
        except KeyError:
            return None

    def _line(self, cell: FormulaCell) -> Line:
        """A cell with its label, unit and formula."""
        found = self._rule(cell) if not cell.name.startswith(SHARE) else None
        label, unit, id_, note = "", "", "", ""
        if found is None:
            label = self.book.words("shared") if cell.name.startswith(SHARE) else ""
        else:
            unit, id_ = found.rule.unit, found.rule.formula
            label = self._label(cell)
            note = self._note(cell)
        value = float(cell.value) if cell.formula is None else f"={cell.formula}"
        cached = None if cell.formula is None else float(cell.value)
        if cell.entry.node.value.dtype == bool and cell.formula is not None:
            cached = bool(cell.value)
        return Line(
            name=cell.name, value=value, unit=unit, id=id_, label=label, note=note, typed=cell.typed, cached=cached
        )

    def _label(self, cell: FormulaCell) -> str:
        try:
            return said(self.descriptions.words(self._placed(cell.entry)), self.book.language)
        except KeyError:  # a switch that no explanation shows
            return ""

    def _placed(self, entry: Cell) -> Cell:
        """The entry, of the stage that holds it where stages hold several parts of the model."""
        s, shape = self.p.strategy, entry.node.shape
        if len(shape) != 2 or shape[1] <= s.pp:
            return entry
        return Cell(
            entry.node, (entry.at[0], int(list_stages_in_order(s.pipeline_schedule, s.pp, s.interleave)[entry.at[1]]))
        )

    def _note(self, cell: FormulaCell) -> str:
        """Where an input comes from; else the stages that a cell is of, where it is of some."""
        node = cell.entry.node
        if cell.formula is None:
            try:
                source = self.descriptions.source(self._placed(cell.entry))
            except (KeyError, StopIteration):
                return ""
            return source.where if source.error is None else f"{source.where}, +- {100 * source.error:.3g} %"
        if len(node.shape) == 2 and 1 < node.shape[1] <= self.p.strategy.pp:
            stages = sorted({at[1] for at in cell.entries})
            if len(stages) < node.shape[1]:
                return self.book.words("of_stages").format(stages=_ranges(stages))
        return ""

    def _inputs(self, used: dict[str, FormulaCell], placed: set[str]) -> None:
        """The sheet a user types into, and below it what is fixed."""
        book, p, s = self.book, self.p, self.p.strategy
        book.heading(INPUT, book.words("about"))
        job = p.case.job
        named = p.name, p.case.model.name, ", ".join(p.gpu_kinds), p.framework.name, p.stack
        texts = zip(TEXTS, (*named, job.precision, job.optimizer, s.pipeline_schedule, s.recompute), strict=True)
        inputs = [cell for cell in used.values() if cell.formula is None and cell.address is None]
        typed = [cell for cell in inputs if cell.typed]
        fixed = [cell for cell in inputs if not cell.typed]
        names = [cell.entry.node.name or "" for cell in typed]
        coefficient = re.compile(r"k\..*|km\..*")
        what = [cell for cell, name in zip(typed, names, strict=True) if WHAT.fullmatch(name)]
        rates = [cell for cell, name in zip(typed, names, strict=True) if coefficient.fullmatch(name)]
        where = [cell for cell in typed if cell not in what and cell not in rates]
        constants = [cell for cell in fixed if CONSTANT.fullmatch(cell.entry.node.name or "")]
        structure = [cell for cell in fixed if cell not in constants]
        followed = [used[name] for name in ("global_batch",) if name in used and used[name].formula is not None]
        missing = [name for name in FIXED if name not in used]
        degrees = [Line(name=name, value=int(getattr(s, name) or 0)) for name in missing]
        lines: list[Line | Heading] = [
            Heading(key="what"),
            *map(self._line, sorted(what, key=lambda cell: cell.name)),
            *map(self._line, followed),
            Heading(key="where"),
            *map(self._line, sorted(where, key=lambda cell: cell.name)),
            Heading(key="fixed"),
            *(Line(name=name, value=Text(text)) for name, text in texts),
            *degrees,
            *map(self._line, structure),
        ]
        book.lines(INPUT, lines)
        book.lines(COEFFICIENTS, [Heading(key="coefficients"), *map(self._line, rates)])
        if constants:
            book.lines(COEFFICIENTS, [Heading(key="constants"), *map(self._line, constants)])
        placed |= {cell.name for cell in (*inputs, *followed)}

    def _topics(self, used: dict[str, FormulaCell], placed: set[str]) -> None:
        """The other cells, each on the sheet of its topic; expressions without a name where they are read."""
        of_sheet: dict[str, list[FormulaCell]] = {}
        waiting: list[FormulaCell] = []
        for cell in used.values():
            if cell.address is not None or cell.name in placed:
                continue
            if cell.name.startswith(SHARE):
                waiting.append(cell)
                continue
            found = self._rule(cell)
            topic = next((sheet for form, sheet in TOPICS if found and form.fullmatch(found.rule.formula)), LAYER)
            if (cell.entry.node.name or "").startswith("memory."):
                topic = MEMORY
            of_sheet.setdefault(topic, []).extend([*waiting, cell])
            waiting = []
        of_sheet.setdefault(STAGES, []).extend(waiting)
        for sheet, cells in of_sheet.items():
            self.book.heading(sheet, self.book.words("sheets", sheet.lower()))
            self.book.lines(sheet, [self._line(cell) for cell in cells])


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers as ranges: 0, 2-5."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


def read_example() -> Loaded:
    """LLaMA-2 7B on two nodes of eight A100, tensor and pipeline parallel: every sheet of the workbook has work."""
    return read_scenario(
        {
            "name": "example",
            "model": "llama-2-7b",
            "job": {"seq_len": 4096, "global_batch": 64, "tokens": 2.0e10, "framework": "megatron"},
            "cluster": {
                "zones": [
                    {
                        "name": "lab",
                        "nodes": [{"count": 2, "gpus": 8, "gpu": "a100-80gb-sxm", "nic_gbps_per_gpu": 200}],
                    }
                ]
            },
            "strategy": {
                "tp": 4,
                "pp": 2,
                "dp": 2,
                "micro_batch": 2,
                "sequence_parallel": True,
                "recompute": "selective",
                "zero": 1,
            },
        }
    )
