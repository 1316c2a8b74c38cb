"""Workbook: a scenario's prediction as a spreadsheet whose formulas are live: change an input, or a formula.

    data = build_workbook(read_scenario("examples/single-node.yaml"))
    Path("book.xlsx").write_bytes(data)

No formula is written by hand: the prediction is computed once with numbers that remember their arithmetic
(`predict/recorded.py`), and every named number becomes a cell (`formulas.py`). So the cells are the cost model,
whatever it is today. Inputs are cells to type in; what changes the structure (degrees, schedule, placement) is a cell
without colour, for its number is part of which formulas there are.

The sheet Output is what an import reads: the step as a timeline, its parts, memory, the run and its communication. The
timeline is that of the last pipeline stage: it waits while the pipeline fills (warm-up), runs one forward and one
backward pass for every micro-batch, and waits while the pipeline empties (cool-down).

The sheet Pipeline holds when every pass and message ends, one cell each, in the order of the schedule. [S3] A block is
the pipeline of one replica class: rows are micro-batches, columns the passes of each stage and the messages between
stages. A pass starts when the pass before it on its stage has ended and its input has arrived; messages of one link
follow each other. The formulas are those that the simulation was recorded with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from crosszone.analyse.explain.description import Descriptions, MatchedRule, find_rule, render_words
from crosszone.calibrate.sheet.book import Book, Heading, SheetLine, UserText
from crosszone.calibrate.sheet.formulas import (
    LONGEST_FORMULA,
    SHARED_PREFIX,
    FormulaCell,
    FormulaCells,
    FormulaTerm,
    write_number,
)
from crosszone.cost.expression import RecordedEntry
from crosszone.cost.memory import GIB
from crosszone.cost.record import Recorded, plain
from crosszone.inputs.scenario import Loaded, read_scenario
from crosszone.predict.answer import build_predictor_from
from crosszone.predict.batch import get_cell as read_cell
from crosszone.predict.breakdown import ORDER as BREAKDOWN
from crosszone.predict.memory import find_fullest
from crosszone.predict.predictor import Predictor
from crosszone.predict.recorded import PassTimes, RecordedScenario, record_scenario
from crosszone.predict.traffic import FIELDS
from crosszone.schedule.orders import FORWARD, KIND_NAMES, list_stages_in_order, map_virtual_stages
from crosszone.text import DEFAULT_LANGUAGE

# Passes of a step (both ways as one) that are laid out in cells; beyond, the pipeline's times stand as simulated.
MOST_PASSES = 4096
INPUT, OUTPUT, LAYER, STAGES = "Input", "Output", "Layer", "Stages"
EXCHANGE, MEMORY, PIPELINE, RUN, COEFFICIENTS = "Exchange", "Memory", "Pipeline", "Run", "Coefficients"
# Sheets as they lie in the workbook.
SHEET_ORDER = (INPUT, OUTPUT, LAYER, STAGES, EXCHANGE, MEMORY, PIPELINE, RUN, COEFFICIENTS)
# Sheets by the formula that a number is of; the others lie with the layer.
TOPICS = (
    (re.compile(r"X8|V\d|S\d+|O7|R\d"), STAGES),
    (re.compile(r"X[567]|T\d+|A1|C1\d|O10"), EXCHANGE),
    (re.compile(r"M\d+|Q6"), MEMORY),
    (re.compile(r"[EJ]\d+|F1"), RUN),
)
# Constants of a prediction that a user may change; other constants are part of the structure.
TYPED_CONSTANTS = re.compile(
    r"price_of|failures_of|board_power|pue|grid_carbon|job\.\w+|egress_price|power_\w+|local_update\.(?:delay|steps)"
)
WORKLOAD_INPUTS = re.compile(
    r"input\.(?:hidden|ffn_hidden|vocab|head_dim|expert_\w+)|work\.\w+|job\.\w+|local_update\.\w+"
)
MODEL_CONSTANTS = re.compile(
    r"residual_passes|routed_bytes|score_bytes|weight_traffic|hop\..*|calls_of_layer|training_passes"
)
# Names of cells that are other than those of the numbers.
CELL_NAMES = {
    "work.seq": "seq_len",
    **{f"work.{name}": name for name in ("global_batch", "micro_batch", "tp", "pp", "dp", "cp", "ep", "zero")},
}
TEXT_CELLS = ("scenario_name", "model", "gpu", "framework", "stack", "precision", "optimizer", "schedule", "recompute")
DEGREES = ("tp", "pp", "dp", "cp", "ep", "zero")
# Cells that every workbook has, in seconds.
PHASES = (
    *("warm_up_s", "forward_s", "backward_s", "steady_s", "cool_down_s"),
    *("all_reduce_s", "optimizer_s", "weights_s", "other_s", "iteration_s"),
)
# Of these, those that add up to the iteration.
STEP_PARTS = ("warm_up_s", "steady_s", "cool_down_s", "all_reduce_s", "optimizer_s", "weights_s", "other_s")
# Figures of a result, and the cells that hold them where they are known.
FIGURES = {
    "tokens_per_s": "out_tokens_per_s",
    "mfu": "out_mfu",
    "memory_gib": "out_memory_gib",
    "gpus": "out_gpus",
    "days": "out_days",
    "usd": "out_usd",
    "kwh": "out_kwh",
}
# What must hold for the formulas to be right, after the inputs were changed; a workbook has those that may fail.
CHECKS = (
    *("check_replica", "check_memory", "check_batch"),
    *("check_branches", "check_simulated", "check_zone_order"),
)
SUM_TOLERANCE = 1e-9  # Share by which sums in another order may differ
TRAFFIC_UNITS = {"bytes_per_step": "bytes", "messages": "", "busy_s": "s", "exposed_s": "s"}
PIPELINE_COLUMN_WIDTH = 16


def build_workbook(loaded: Loaded, language: str = DEFAULT_LANGUAGE) -> bytes:
    """The workbook of a scenario."""
    return build_predictor_workbook(build_predictor_from(loaded), language)


def build_predictor_workbook(p: Predictor, language: str = DEFAULT_LANGUAGE) -> bytes:
    """The same of a placed strategy."""
    recorded = record_scenario(p, most_passes=MOST_PASSES)
    return WorkbookWriter(p, recorded, Book(language)).write()


def is_typed(node: Recorded) -> bool:
    """A number that goes in and may be changed."""
    return node.op == "leaf" or (node.op == "constant" and TYPED_CONSTANTS.fullmatch(node.name or "") is not None)


@dataclass
class WorkbookWriter:
    """Writes the sheets of one prediction."""

    p: Predictor
    recorded: RecordedScenario
    book: Book

    @cached_property
    def grid(self) -> PipelineGrid:
        return place_passes(self.recorded.passes)

    @cached_property
    def formulas(self) -> FormulaCells:
        return FormulaCells(is_typed, self.grid.places, CELL_NAMES)

    @cached_property
    def descriptions(self) -> Descriptions:
        return Descriptions(self.p, self.recorded.prediction)

    def write(self) -> bytes:
        """The file."""
        book, recorded = self.book, self.recorded
        for name in SHEET_ORDER:
            book.get_sheet(name)
        sections: dict[str, list[SheetFigure]] = {
            "timeline": list_timeline_figures(recorded),
            "breakdown": list_part_figures(recorded),
            "memory": list_memory_figures(recorded),
            "run": list_run_figures(recorded),
            "communication": list_traffic_figures(recorded),
        }
        for figure in (figure for part in sections.values() for figure in part):
            self.formulas.figures.setdefault(id(figure.value), figure.name)
            self.formulas.reserved.add(figure.name)
        self.formulas.reserved |= set(TEXT_CELLS)
        terms = {figure.name: self.formulas.write_term(figure.value) for part in sections.values() for figure in part}
        conditions = {name: self._join_conditions(pairs) for name, pairs in iterate_checks(recorded)}
        used = self.formulas.select_used(
            [term.text for term in terms.values()] + [text for text in conditions.values() if text]
        )
        placed: set[str] = set()
        self._write_inputs(used, placed)
        output: list[SheetLine | Heading] = []
        for key, figures in sections.items():
            output += [Heading(key=key)] if figures else []
            output += [self._build_figure_line(figure, terms[figure.name], used, placed) for figure in figures]
        output.append(Heading(key="checks"))
        output += [
            SheetLine(name=name, value=f'=IF({text},"ok","wrong")', cached="ok")
            for name, text in conditions.items()
            if text
        ]
        self._write_topics(used, placed)
        write_grid(book, self.grid, used)
        book.write_lines(OUTPUT, output)
        return book.save()

    def _join_conditions(self, pairs: list[tuple[object, bool]]) -> str:
        """Conditions put together, those left out that no input changes; empty: none is left."""
        texts: dict[str, None] = {}
        for node, truth in pairs:
            term = self.formulas.write_term(node)
            if term.live:
                text = term.text if term.logical else f"({term.text})<>0"
                texts[text if truth else f"NOT({text})"] = None
        parts: list[list[str]] = [[]]
        for text in texts:
            if parts[-1] and len(",".join((*parts[-1], text))) > LONGEST_FORMULA:
                parts.append([])
            parts[-1].append(text)
        shared = [self.formulas.place_text(f"AND({','.join(part)})") for part in parts if part]
        return f"AND({','.join(shared)})" if len(shared) > 1 else shared[0] if shared else ""

    # Lines

    def _build_figure_line(
        self, figure: SheetFigure, term: FormulaTerm, used: dict[str, FormulaCell], placed: set[str]
    ) -> SheetLine:
        text = term.text
        if text == figure.name and text in used:
            placed.add(text)
            text = used[text].formula or write_number(term.value)
        label = figure.label and f"{figure.label}: {self.book.find_text('traffic', figure.name.split('_', 2)[2])}"
        if figure.name.startswith("memory_stage_"):
            label = self.book.find_text("memory_of_stage").format(stage=figure.name.rpartition("_")[2])
        return SheetLine(
            name=figure.name, value=f"={text}", unit=figure.unit, id=figure.id, label=label, cached=float(term.value)
        )

    def _find_description(self, cell: FormulaCell) -> MatchedRule | None:
        try:
            return find_rule(cell.entry.node.name or "")
        except KeyError:
            return None

    def _build_line(self, cell: FormulaCell) -> SheetLine:
        """A cell with its label, unit and formula."""
        description = self._find_description(cell) if not cell.name.startswith(SHARED_PREFIX) else None
        label, unit, id_, note = "", "", "", ""
        if description is None:
            label = self.book.find_text("shared") if cell.name.startswith(SHARED_PREFIX) else ""
        else:
            unit, id_ = description.rule.unit, description.rule.formula
            label = self._find_label(cell)
            note = self._build_note(cell)
        value = float(cell.value) if cell.formula is None else f"={cell.formula}"
        cached = None if cell.formula is None else float(cell.value)
        if cell.entry.node.value.dtype == bool and cell.formula is not None:
            cached = bool(cell.value)
        return SheetLine(
            name=cell.name, value=value, unit=unit, id=id_, label=label, note=note, typed=cell.typed, cached=cached
        )

    def _find_label(self, cell: FormulaCell) -> str:
        try:
            return render_words(self.descriptions.build_label(self._map_to_stage(cell.entry)), self.book.language)
        except KeyError:  # a switch that no explanation shows
            return ""

    def _map_to_stage(self, entry: RecordedEntry) -> RecordedEntry:
        """The entry, of the stage that holds it where stages hold several parts of the model."""
        s, shape = self.p.strategy, entry.node.shape
        if len(shape) != 2 or shape[1] <= s.pp:
            return entry
        return RecordedEntry(
            entry.node, (entry.at[0], int(list_stages_in_order(s.pipeline_schedule, s.pp, s.interleave)[entry.at[1]]))
        )

    def _build_note(self, cell: FormulaCell) -> str:
        """Where an input comes from; else the stages that a cell is of, where it is of some."""
        node = cell.entry.node
        if cell.formula is None:
            try:
                source = self.descriptions.find_source(self._map_to_stage(cell.entry))
            except (KeyError, StopIteration):
                return ""
            return source.where if source.error is None else f"{source.where}, +- {100 * source.error:.3g} %"
        if len(node.shape) == 2 and 1 < node.shape[1] <= self.p.strategy.pp:
            stages = sorted({at[1] for at in cell.entries})
            if len(stages) < node.shape[1]:
                return self.book.find_text("of_stages").format(stages=_format_ranges(stages))
        return ""

    def _write_inputs(self, used: dict[str, FormulaCell], placed: set[str]) -> None:
        """The sheet a user types into, and below it what is fixed."""
        book, p, s = self.book, self.p, self.p.strategy
        book.write_heading(INPUT, book.find_text("about"))
        job = p.case.job
        job_texts = p.name, p.case.model.name, ", ".join(p.gpu_kinds), p.framework.name, p.stack
        texts = zip(
            TEXT_CELLS, (*job_texts, job.precision, job.optimizer, s.pipeline_schedule, s.recompute), strict=True
        )
        inputs = [cell for cell in used.values() if cell.formula is None and cell.address is None]
        typed = [cell for cell in inputs if cell.typed]
        fixed = [cell for cell in inputs if not cell.typed]
        names = [cell.entry.node.name or "" for cell in typed]
        coefficient = re.compile(r"k\..*|km\..*")
        workload = [cell for cell, name in zip(typed, names, strict=True) if WORKLOAD_INPUTS.fullmatch(name)]
        rates = [cell for cell, name in zip(typed, names, strict=True) if coefficient.fullmatch(name)]
        machines = [cell for cell in typed if cell not in workload and cell not in rates]
        constants = [cell for cell in fixed if MODEL_CONSTANTS.fullmatch(cell.entry.node.name or "")]
        structure = [cell for cell in fixed if cell not in constants]
        followed = [used[name] for name in ("global_batch",) if name in used and used[name].formula is not None]
        missing = [name for name in DEGREES if name not in used]
        degrees = [SheetLine(name=name, value=int(getattr(s, name) or 0)) for name in missing]
        lines: list[SheetLine | Heading] = [
            Heading(key="what"),
            *map(self._build_line, sorted(workload, key=lambda cell: cell.name)),
            *map(self._build_line, followed),
            Heading(key="where"),
            *map(self._build_line, sorted(machines, key=lambda cell: cell.name)),
            Heading(key="fixed"),
            *(SheetLine(name=name, value=UserText(text)) for name, text in texts),
            *degrees,
            *map(self._build_line, structure),
        ]
        book.write_lines(INPUT, lines)
        book.write_lines(COEFFICIENTS, [Heading(key="coefficients"), *map(self._build_line, rates)])
        if constants:
            book.write_lines(COEFFICIENTS, [Heading(key="constants"), *map(self._build_line, constants)])
        placed |= {cell.name for cell in (*inputs, *followed)}

    def _write_topics(self, used: dict[str, FormulaCell], placed: set[str]) -> None:
        """The other cells, each on the sheet of its topic; expressions without a name where they are read."""
        of_sheet: dict[str, list[FormulaCell]] = {}
        waiting: list[FormulaCell] = []
        for cell in used.values():
            if cell.address is not None or cell.name in placed:
                continue
            if cell.name.startswith(SHARED_PREFIX):
                waiting.append(cell)
                continue
            description = self._find_description(cell)
            topic = next(
                (sheet for form, sheet in TOPICS if description and form.fullmatch(description.rule.formula)), LAYER
            )
            if (cell.entry.node.name or "").startswith("memory."):
                topic = MEMORY
            of_sheet.setdefault(topic, []).extend([*waiting, cell])
            waiting = []
        of_sheet.setdefault(STAGES, []).extend(waiting)
        for sheet, cells in of_sheet.items():
            self.book.write_heading(sheet, self.book.find_text("sheets", sheet.lower()))
            self.book.write_lines(sheet, [self._build_line(cell) for cell in cells])


def _format_ranges(numbers: Sequence[int]) -> str:
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


@dataclass(frozen=True)
class SheetFigure:
    """One line of the sheet: a recorded number, or a condition that must hold."""

    name: str
    value: Any
    unit: str = ""
    id: str = ""
    label: str = ""


def list_timeline_figures(recorded: RecordedScenario) -> list[SheetFigure]:
    """The phases of an iteration; they add up to it."""
    p, figures = recorded.predictor, recorded.prediction
    row, parts, step = p.row, recorded.prediction.breakdown_s, p.step
    span = step.pipelines.span_s[row]
    starts, ends = _get_last_stage_times(recorded, span)
    last = p.strategy.pp - 1
    other = parts["fixed"] + parts["jitter"] + parts["local_update"]
    count = "micro_batches_of_replica"
    return [
        SheetFigure("out_layers", p.case.model.layers),
        SheetFigure("out_micro_batches", {**recorded.tape.names, **recorded.tape.substitutes}[count], "", "R2"),
        SheetFigure("span_s", span, "s", "S3"),
        SheetFigure("out_warm_up_s", starts, "s", "S13"),
        SheetFigure("out_forward_s", read_cell(step.times.forward, row, last), "s", "V2"),
        SheetFigure("out_backward_s", read_cell(step.times.backward, row, last), "s", "V2"),
        SheetFigure("out_steady_s", ends - starts, "s", "S13"),
        SheetFigure("out_cool_down_s", span - ends, "s", "S13"),
        SheetFigure("out_all_reduce_s", parts["gradients"], "s", "V2"),
        SheetFigure("out_optimizer_s", parts["optimizer"], "s", "O10"),
        SheetFigure("out_weights_s", parts["weights"], "s", "V1"),
        SheetFigure("out_other_s", other, "s", "V3"),
        SheetFigure("out_iteration_s", figures.step_time_s.expected, "s", "V3"),
    ]


def _get_last_stage_times(recorded: RecordedScenario, span: Any) -> tuple[Any, Any]:
    """When the last stage of the pipeline starts and is done."""
    row = recorded.predictor.row
    if row in recorded.passes:
        return recorded.passes[row].first_start_s, recorded.passes[row].last_end_s
    return recorded.simulated.get(row, (0.0, span))


def list_part_figures(recorded: RecordedScenario) -> list[SheetFigure]:
    """What the step is made of, the stage that works longest setting the pace. [V3]"""
    return [SheetFigure(f"part_{part}", recorded.prediction.breakdown_s[part], "s", "V3") for part in BREAKDOWN]


def list_memory_figures(recorded: RecordedScenario) -> list[SheetFigure]:
    """Memory of the fullest stage by part, and of every stage."""
    memory = recorded.prediction.memory_gib
    worst = memory.stages[memory.worst_stage]
    return [
        *(SheetFigure(f"memory_{part}", value, "GiB", "M7") for part, value in worst.parts.items()),
        SheetFigure("out_memory_gib", memory.peak.expected, "GiB", "M7"),
        SheetFigure("memory_limit", memory.limit, "GiB", "M7"),
        *(
            SheetFigure(f"memory_stage_{stage.stage}", stage.total, "GiB", "M7")
            for stage in memory.stages
            if len(memory.stages) > 1
        ),
    ]


def list_run_figures(recorded: RecordedScenario) -> list[SheetFigure]:
    """Rates, and the whole run where its length is known."""
    prediction, names = recorded.prediction, recorded.tape.names
    run = prediction.run
    figures = [
        SheetFigure("out_gpus", names["gpus"], "GPUs", "R1"),
        SheetFigure("out_tokens_per_s", prediction.tokens_per_s.expected, "tokens/s", "J1"),
        SheetFigure("out_tokens_per_s_per_gpu", prediction.tokens_per_s_per_gpu.expected, "tokens/s", "J1"),
        SheetFigure("out_tflops_per_gpu", prediction.tflops_per_gpu.expected, "TFLOP/s", "F1"),
        SheetFigure("out_mfu", prediction.mfu.expected, "", "V6"),
        SheetFigure("out_hfu", prediction.hfu.expected, "", "V6"),
        SheetFigure("out_goodput", run.goodput.share, "", "E1"),
    ]
    if run.days is not None:
        figures += [
            SheetFigure("out_iterations", names["run.steps"], "", "J2"),
            SheetFigure("out_days", run.days.expected, "days", "J2"),
        ]
    triples = {
        "gpu_hours": (run.gpu_hours, "GPU-hours", "E2"),
        "usd": (run.usd, "$", "E2"),
        "kwh": (run.kwh, "kWh", "E3"),
        "co2_kg": (run.co2_kg, "kg", "E3"),
    }
    for name, (triple, unit, id_) in triples.items():
        if triple is not None:
            figures.append(SheetFigure(f"out_{name}", triple.expected, unit, id_))
    if run.usd_egress is not None:
        figures.append(SheetFigure("out_usd_egress", run.usd_egress, "$", "E2"))
    return figures


def list_traffic_figures(recorded: RecordedScenario) -> list[SheetFigure]:
    """Bytes, messages, busy and exposed time of every kind of communication on every link. [A1]"""
    return [
        SheetFigure(f"traffic_{at}_{name}", getattr(row, name), TRAFFIC_UNITS[name], "A1", f"{row.kind}, {row.link}")
        for at, row in enumerate(recorded.prediction.communication)
        for name in FIELDS
    ]


def iterate_checks(recorded: RecordedScenario) -> Iterator[tuple[str, list[tuple[Any, bool]]]]:
    """Conditions that the expressions rest on: recorded, and what they must be.

    A prediction decides some things from its numbers: which replica is slowest, which stage is fullest. The cells
    compute for what was decided; where changed inputs would decide otherwise, the check says so.
    """
    p = recorded.predictor
    placed = p.placed
    kinds, first = len(placed.replica_classes[0]), p.row - p.slowest
    totals = p.step.total_s[first : first + kinds]
    is_slowest = totals[p.slowest] >= np.max(totals) * (1.0 - SUM_TOLERANCE)
    yield "check_replica", [(is_slowest, True)] if kinds > 1 else []
    yield "check_memory", _list_memory_conditions(recorded)
    count = p.batch.work.micro_batches
    is_whole = np.absolute(count - np.floor(count + 0.5)) < SUM_TOLERANCE
    yield "check_batch", [] if np.ndim(plain(count)) else [(is_whole, True)]
    yield "check_branches", list(recorded.tape.decisions)
    yield (
        "check_simulated",
        [
            (np.absolute(now[at] - was[at]) <= SUM_TOLERANCE * was[at], True)
            for now, was in recorded.durations
            for at in np.ndindex(*now.shape)
            if isinstance(now, Recorded)
        ],
    )
    leaves = [node for key, node in recorded.tape.names.items() if key.startswith(("input.zone_gbps", "input.rtt_ms"))]
    several = leaves if len(placed.ring) > 3 else []  # up to three zones there is one ring
    same = [(np.absolute(leaf - plain(leaf)) <= SUM_TOLERANCE * plain(leaf), True) for leaf in several]
    yield "check_zone_order", same


def _list_memory_conditions(recorded: RecordedScenario) -> list[tuple[Any, bool]]:
    """The replicas and the stage that were fullest still are."""
    p, memory = recorded.predictor, recorded.prediction.memory_gib
    stage_memory, fullest = find_fullest(p)
    kinds = len(p.placed.replica_classes[0])
    conditions = []
    group_KS = p.placed.group[:, p.placed.replica_classes[0], 0, 0].T
    room = np.array([group.gpu.memory_gib for group in p.placed.groups])[group_KS]
    if kinds > 1:
        totals = np.broadcast_to(stage_memory.total / GIB, p.batch.counts.shape)
        for stage in range(p.strategy.pp):
            over_limit = np.stack([totals[kind, stage] - float(room[kind, stage]) for kind in range(kinds)])
            conditions.append((over_limit[int(fullest[stage])] >= np.max(over_limit) - SUM_TOLERANCE, True))
    if len(memory.stages) > 1:
        over = np.stack([stage.total - float(plain(stage.limit)) for stage in memory.stages])
        conditions.append((over[memory.worst_stage] >= np.max(over) - SUM_TOLERANCE, True))
    return conditions


@dataclass(frozen=True)
class PipelineGrid:
    """Places of the passes and messages of some pipelines, by id of their recorded ends."""

    places: dict[int, str]
    blocks: list[tuple[int, int, list[str]]]
    """Row of the headings, number of micro-batches, headings."""


def place_passes(passes: Mapping[int, PassTimes], top: int = 3) -> PipelineGrid:
    """A place for every end, block below block."""
    from openpyxl.utils import get_column_letter  # type: ignore[import-untyped]

    places: dict[int, str] = {}
    blocks = []
    for pass_times in passes.values():
        columns: dict[str, int] = {}
        cells: dict[int, tuple[str, int]] = {}
        shape, orders = pass_times.shape, pass_times.shape.orders
        place = map_virtual_stages(orders.schedule, orders.stages, orders.chunks)
        held_by = list_stages_in_order(orders.schedule, orders.stages, orders.chunks).tolist()
        for stage in range(orders.stages):
            for kind, chunk in sorted(set(zip(orders.kind[stage].tolist(), orders.chunk[stage].tolist(), strict=True))):
                columns[_format_pass_heading(stage, kind, chunk, orders.chunks)] = len(columns)
            for boundary in sorted({int(at) for at in shape.send_boundary}):
                for kind in (0, 1):
                    heading = _format_send_heading(held_by, boundary, kind)
                    if held_by[boundary + kind] == stage and place.size > 1:
                        columns.setdefault(heading, len(columns))
        for stage in range(orders.stages):
            row = zip(
                *(a[stage].tolist() for a in (shape.operations, orders.kind, orders.chunk, orders.micro_batch)),
                strict=True,
            )
            for node, kind, chunk, number in row:
                cells[node] = _format_pass_heading(stage, kind, chunk, orders.chunks), number
        sends = zip(
            *(a.tolist() for a in (shape.sends, shape.send_kind, shape.send_boundary, shape.send_micro_batch)),
            strict=True,
        )
        for node, kind, boundary, number in sends:
            cells[node] = _format_send_heading(held_by, boundary, kind), number
        for node, (heading, number) in cells.items():
            end = pass_times.ends[node]
            if isinstance(end, Recorded):
                places[id(end)] = f"{PIPELINE}!{get_column_letter(2 + columns[heading])}{top + 1 + number}"
        blocks.append((top, orders.micro_batches, list(columns)))
        top += orders.micro_batches + 3
    return PipelineGrid(places, blocks)


def _format_pass_heading(stage: int, kind: int, chunk: int, chunks: int) -> str:
    part = f" chunk {chunk}" if chunks > 1 else ""
    return f"stage {stage}{part} {KIND_NAMES[kind]}"


def _format_send_heading(held_by: list[int], boundary: int, kind: int) -> str:
    ends = held_by[boundary], held_by[boundary + 1]
    a, b = ends if kind == FORWARD else ends[::-1]
    return f"send {a} > {b}" + (f" ({boundary})" if len(set(held_by)) != len(held_by) else "")


def write_grid(book: Book, grid: PipelineGrid, cells: Mapping[str, FormulaCell]) -> None:
    """The sheet; blocks whose passes are all those of another one are left out."""
    from openpyxl.styles import Font, PatternFill  # type: ignore[import-untyped]
    from openpyxl.utils import get_column_letter

    worksheet = book.get_sheet(PIPELINE)
    worksheet.cell(1, 1, book.find_text("pipeline_note" if grid.places else "pipeline_simulated"))
    filled = {cell.address.partition("!")[2]: cell for cell in cells.values() if cell.address is not None}
    for top, micro_batches, headings in grid.blocks:
        columns = range(2, 2 + len(headings))
        names = [f"{get_column_letter(c)}{top + 1 + m}" for c in columns for m in range(micro_batches)]
        if not any(name in filled for name in names):
            continue
        for column, heading in enumerate(["micro-batch", *headings], 1):
            heading_cell = worksheet.cell(top, column, UserText(heading))
            heading_cell.font, heading_cell.fill = Font(bold=True), PatternFill("solid", fgColor="DDEBF7")
            worksheet.column_dimensions[get_column_letter(column)].width = PIPELINE_COLUMN_WIDTH
        for number in range(micro_batches):
            worksheet.cell(top + 1 + number, 1, number)
    for address, cell in filled.items():
        if cell.formula is None:
            worksheet[address] = float(cell.value)
        else:
            worksheet[address] = "=" + cell.formula.replace(f"{PIPELINE}!", "")  # places of the same sheet
            book.keep_value(PIPELINE, address, cell.value)
    worksheet.freeze_panes = "B4"
