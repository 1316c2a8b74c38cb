"""Pipeline: when every pass of a 1F1B step ends, one cell a pass, so that stages of any length come out exactly. [S3]

Columns count stages from the last one (0), which makes the order of passes the same whatever `pp` is: stage q runs q
forward passes ahead, then one forward and one backward in turn. A pass starts when the one before it on its stage has
ended and its input has arrived; messages of one link follow each other.
"""

from __future__ import annotations

from crosszone.calibrate.sheet.book import Book

SHEET = "Pipeline"
KINDS = ("forward ends", "arrives", "backward ends", "arrives back")
FORWARD, THERE, BACKWARD, BACK = range(4)
TOP = 6
"""Rows of the headings; micro-batch 0 is below."""


def write(book: Book, stages: int, micro_batches: int) -> None:
    """The grid with room for so many stages and micro-batches."""
    from openpyxl.styles import Font  # type: ignore[import-untyped]
    from openpyxl.utils import get_column_letter  # type: ignore[import-untyped]

    to = book.sheet(SHEET)
    to.cell(1, 1, book.words("pipeline_note"))
    for row, text in enumerate(("after", "forward", "backward", "send"), 2):
        to.cell(row, 1, text).font = Font(bold=True)
    to.cell(TOP, 1, "micro_batch")

    def column(after: int, kind: int) -> str:
        return str(get_column_letter(2 + 4 * after + kind))

    def cell(after: int, kind: int, number: int) -> str:
        return f"{column(after, kind)}{TOP + 1 + number}"

    def head(after: int, row: int) -> str:
        return f"{column(after, FORWARD)}${row}"

    for number in range(micro_batches):
        to.cell(TOP + 1 + number, 1, number)
    for q in range(stages):
        to[f"{column(q, FORWARD)}2"] = q
        for row, name in ((3, "forward"), (4, "backward"), (5, "beside")):
            to[head(q, row).replace("$", "")] = f"=IF({head(q, 2)}<pp,INDEX(stage_{name},pp-{head(q, 2)}),0)"
        for kind, text in enumerate(KINDS):
            to[f"{column(q, kind)}{TOP}"] = text
            to.column_dimensions[column(q, kind)].width = 14
        for i in range(micro_batches):
            here, row = f"AND({head(q, 2)}<pp,$A{TOP + 1 + i}<micro_batches)", TOP + 1 + i
            before = cell(q, FORWARD, i - 1) if i else "0"
            if i > q:
                before = cell(q, BACKWARD, i - q - 1)
            given = cell(q + 1, THERE, i) if q + 1 < stages else "0"
            to[cell(q, FORWARD, i)] = f"=IF({here},MAX({before},{given})+{head(q, 3)},0)"
            up = cell(q, THERE, i - 1) if i else "0"
            sends = f"MAX({cell(q, FORWARD, i)},{up})+{head(q, 5)}"
            to[cell(q, THERE, i)] = f"=IF(AND({here},{head(q, 2)}>0),{sends},0)"
            if not i:  # all forward passes that run ahead; fewer than q + 1 where there are fewer micro-batches
                last = f"{cell(q, FORWARD, 0)}:{cell(q, FORWARD, min(q, micro_batches - 1))}"
            elif i + q < micro_batches:
                ahead, previous = cell(q, FORWARD, i + q), cell(q, BACKWARD, i - 1)
                last = f"IF($A{row}+{head(q, 2)}<micro_batches,{ahead},{previous})"
            else:
                last = cell(q, BACKWARD, i - 1)
            came = cell(q - 1, BACK, i) if q else "0"
            to[cell(q, BACKWARD, i)] = f"=IF({here},MAX({last},{came})+{head(q, 4)},0)"
            down = cell(q, BACK, i - 1) if i else "0"
            link = f"{head(q + 1, 5)}" if q + 1 < stages else "0"
            to[cell(q, BACK, i)] = f"=IF({here},MAX({cell(q, BACKWARD, i)},{down})+{link},0)"
    row = TOP + micro_batches + 2
    to.cell(row, 1, "ready").font = Font(bold=True)
    ready = row
    for q in range(stages):
        letter = column(q, BACKWARD)
        to.cell(ready, 2 + q, f"=MAX({letter}{TOP + 1}:{letter}{TOP + micro_batches})")
    book.name("pipeline_ready", SHEET, f"$B${ready}:${get_column_letter(1 + stages)}${ready}")
    first, last = cell(0, FORWARD, 0), f"{column(0, BACKWARD)}{TOP + 1}:{column(0, BACKWARD)}{TOP + micro_batches}"
    to.cell(ready + 1, 1, "last_stage_starts")
    to.cell(ready + 1, 2, f"={first}-{head(0, 3)}")
    book.name("last_stage_starts", SHEET, f"$B${ready + 1}")
    to.cell(ready + 2, 1, "last_stage_ends")
    to.cell(ready + 2, 2, f"=MAX({last})")
    book.name("last_stage_ends", SHEET, f"$B${ready + 2}")
    book.freeze(SHEET, f"B{TOP + 1}")
