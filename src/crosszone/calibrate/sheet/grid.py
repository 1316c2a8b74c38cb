"""Grid: when every pass and message of a pipeline ends, one cell each, in the order of its schedule. [S3]

A block is the pipeline of one kind of replica: rows are micro-batches, columns the passes of each stage and the
messages between stages. A pass starts when the one before it on its stage has ended and its input has arrived, messages
of one link follow each other: the formulas are those the simulation was recorded with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from crosszone.calibrate.sheet.book import Book, Text
from crosszone.calibrate.sheet.formulas import FormulaCell
from crosszone.cost.record import Recorded
from crosszone.predict.recorded import PassTimes
from crosszone.schedule.orders import FORWARD, KIND_NAMES, list_stages_in_order, map_virtual_stages

SHEET = "Pipeline"
WIDTH = 16


@dataclass(frozen=True)
class Grid:
    """Places of the passes and messages of some pipelines, by id of their recorded ends."""

    places: dict[int, str]
    blocks: list[tuple[int, int, list[str]]]
    """Row of the headings, number of micro-batches, headings."""


def lay_out(passes: Mapping[int, PassTimes], top: int = 3) -> Grid:
    """A place for every end, block below block."""
    from openpyxl.utils import get_column_letter  # type: ignore[import-untyped]

    places: dict[int, str] = {}
    blocks = []
    for one in passes.values():
        columns: dict[str, int] = {}
        cells: dict[int, tuple[str, int]] = {}
        shape, orders = one.shape, one.shape.orders
        place = map_virtual_stages(orders.schedule, orders.stages, orders.chunks)
        held_by = list_stages_in_order(orders.schedule, orders.stages, orders.chunks).tolist()
        for stage in range(orders.stages):
            for kind, chunk in sorted(set(zip(orders.kind[stage].tolist(), orders.chunk[stage].tolist(), strict=True))):
                columns[_pass_heading(stage, kind, chunk, orders.chunks)] = len(columns)
            for boundary in sorted({int(at) for at in shape.send_boundary}):
                for kind in (0, 1):
                    heading = _send_heading(held_by, boundary, kind)
                    if held_by[boundary + kind] == stage and place.size > 1:
                        columns.setdefault(heading, len(columns))
        for stage in range(orders.stages):
            row = zip(
                *(a[stage].tolist() for a in (shape.operations, orders.kind, orders.chunk, orders.micro_batch)),
                strict=True,
            )
            for node, kind, chunk, number in row:
                cells[node] = _pass_heading(stage, kind, chunk, orders.chunks), number
        sends = zip(
            *(a.tolist() for a in (shape.sends, shape.send_kind, shape.send_boundary, shape.send_micro_batch)),
            strict=True,
        )
        for node, kind, boundary, number in sends:
            cells[node] = _send_heading(held_by, boundary, kind), number
        for node, (heading, number) in cells.items():
            end = one.ends[node]
            if isinstance(end, Recorded):
                places[id(end)] = f"{SHEET}!{get_column_letter(2 + columns[heading])}{top + 1 + number}"
        blocks.append((top, orders.micro_batches, list(columns)))
        top += orders.micro_batches + 3
    return Grid(places, blocks)


def _pass_heading(stage: int, kind: int, chunk: int, chunks: int) -> str:
    part = f" chunk {chunk}" if chunks > 1 else ""
    return f"stage {stage}{part} {KIND_NAMES[kind]}"


def _send_heading(held_by: list[int], boundary: int, kind: int) -> str:
    ends = held_by[boundary], held_by[boundary + 1]
    a, b = ends if kind == FORWARD else ends[::-1]
    return f"send {a} > {b}" + (f" ({boundary})" if len(set(held_by)) != len(held_by) else "")


def write(book: Book, grid: Grid, cells: Mapping[str, FormulaCell]) -> None:
    """The sheet; blocks whose passes are all those of another one are left out."""
    from openpyxl.styles import Font, PatternFill  # type: ignore[import-untyped]
    from openpyxl.utils import get_column_letter

    to = book.sheet(SHEET)
    to.cell(1, 1, book.words("pipeline_note" if grid.places else "pipeline_simulated"))
    filled = {one.address.partition("!")[2]: one for one in cells.values() if one.address is not None}
    for top, micro_batches, headings in grid.blocks:
        columns = range(2, 2 + len(headings))
        names = [f"{get_column_letter(c)}{top + 1 + m}" for c in columns for m in range(micro_batches)]
        if not any(name in filled for name in names):
            continue
        for column, heading in enumerate(["micro-batch", *headings], 1):
            head = to.cell(top, column, Text(heading))
            head.font, head.fill = Font(bold=True), PatternFill("solid", fgColor="DDEBF7")
            to.column_dimensions[get_column_letter(column)].width = WIDTH
        for number in range(micro_batches):
            to.cell(top + 1 + number, 1, number)
    for address, one in filled.items():
        formula = write_value(one)
        to[address] = formula
        book.cache(SHEET, address, one.value if isinstance(formula, str) else None)
    book.freeze(SHEET, "B4")


def write_value(cell: FormulaCell) -> str | float:
    """What stands in a cell of the grid: its formula, in which places of the same sheet need no sheet."""
    return float(cell.value) if cell.formula is None else "=" + cell.formula.replace(f"{SHEET}!", "")
