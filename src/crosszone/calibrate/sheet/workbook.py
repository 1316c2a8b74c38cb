"""Workbook: a scenario's prediction as a spreadsheet whose formulas are live: change an input, or a formula.

data = workbook_of(read_scenario("examples/single-node.yaml"))
Path("book.xlsx").write_bytes(data)

Its figures are those of `predict`: the cells hold the same formulas. What they do not cover is refused by its field.
"""

from __future__ import annotations

from crosszone.calibrate.sheet import pipeline, stages
from crosszone.calibrate.sheet.book import Book, Heading, line
from crosszone.calibrate.sheet.communication import communication
from crosszone.calibrate.sheet.computation import computation
from crosszone.calibrate.sheet.coverage import require_covered, room
from crosszone.calibrate.sheet.inputs import inputs
from crosszone.calibrate.sheet.output import SHEET, checks, output
from crosszone.calibrate.sheet.tables import (
    coefficient_tables,
    gpu_table,
    home_lines,
    list_tables,
    memory_table,
    model_table,
)
from crosszone.inputs.scenario import Loaded
from crosszone.predict.answer import predictor_of
from crosszone.predict.predictor import Predictor
from crosszone.text import DEFAULT_LANGUAGE

ORDER = (
    "Input",
    SHEET,
    "Computation",
    "Communication",
    stages.SHEET,
    pipeline.SHEET,
    "Coefficients",
    "Memory",
    "GPUs",
    "Models",
    "Lists",
)
"""Sheets as they lie in the workbook."""


def workbook_of(loaded: Loaded, language: str = DEFAULT_LANGUAGE) -> bytes:
    """The workbook of a scenario; an `InputError` names what its formulas cannot express."""
    return workbook_of_predictor(predictor_of(loaded), language)


def workbook_of_predictor(
    p: Predictor, language: str = DEFAULT_LANGUAGE, *, usd: float | None = None, kwh: float | None = None
) -> bytes:
    """The same of a placed strategy; `usd` and `kwh` of the whole run are given where they are known."""
    require_covered(p)
    many_stages, many = room(p)
    book = Book(language)
    for name in ORDER:
        book.sheet(name)
    book.heading("Input", book.words("about"))
    book.lines("Input", inputs(p))
    book.lines("Computation", computation())
    book.lines("Communication", communication())
    memory = [line(name, formula, unit, id_) for name, formula, unit, id_ in stages.memory_lines()]
    book.lines("Computation", [Heading(key="memory"), *memory, Heading(key="homes"), *home_lines(p)])
    stages.write(book, many_stages, p.strategy.layers_per_stage)
    pipeline.write(book, many_stages, many)
    gpu_table(book, p.profiles, p.case.cluster.zones[0].nodes[0].gpu)
    model_table(book, p.case.model)
    list_tables(book, p.profiles)
    coefficient_tables(book, p)
    memory_table(book, p)
    book.lines(SHEET, [*output(usd, kwh), *checks(many_stages, many)])
    return book.saved()
