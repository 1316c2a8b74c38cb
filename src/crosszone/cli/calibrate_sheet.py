"""`crosszone calibrate sheet`: a scenario as a workbook with live formulas; what an edited workbook says; results out.

crosszone calibrate sheet --scenario FILE -o book.xlsx
crosszone calibrate sheet read book.xlsx --save "my formulas"
crosszone calibrate sheet export ID -o result.xlsx
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crosszone.cli.options import JsonOption, StoreOption, open_database
from crosszone.cli.output import (
    build_table,
    check_not_existing,
    get_language,
    label,
    open_console,
    print_json,
    print_notices,
    write_bytes,
)
from crosszone.errors import FileError, Notice

if TYPE_CHECKING:
    from crosszone.calibrate.imported import ImportedRun

OutputOption = Annotated[str, typer.Option("-o", "--output", metavar="BOOK.xlsx", help="Where to write it.")]
BOOK, RESULT = "crosszone-sheet.xlsx", "crosszone-result.xlsx"
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite it.")]

app = typer.Typer(invoke_without_command=True)


@app.callback()
def write_sheet(
    context: typer.Context,
    scenario: Annotated[
        str | None, typer.Option(metavar="FILE", help="Scenario with a strategy; default: an example.")
    ] = None,
    output: OutputOption = BOOK,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a workbook whose formulas compute a step as `predict` does: named cells, every formula editable.

    Example: crosszone calibrate sheet --scenario examples/single-node.yaml -o book.xlsx
    """
    if context.invoked_subcommand is not None:
        return
    check_not_existing(Path(output), force)

    from crosszone.calibrate.sheet import build_workbook
    from crosszone.calibrate.sheet.workbook import read_example
    from crosszone.inputs.scenario import read_scenario

    loaded = read_example() if scenario is None else read_scenario(scenario)
    data = build_workbook(loaded, get_language())
    write_bytes(Path(output), data, force)
    if as_json:
        print_json({"output": output, "bytes": len(data), "scenario": loaded.scenario.name})
    else:
        open_console().print(label("sheet_written", output=output), soft_wrap=True)


@app.command("read")
def read(
    file: Annotated[str, typer.Argument(metavar="BOOK.xlsx", help="An edited workbook.")],
    save: Annotated[str | None, typer.Option(metavar="NAME", help="Keep it as a result from a sheet.")] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate the formulas of a workbook, and tell or keep what they come to.

    Example: crosszone calibrate sheet read book.xlsx --save "my formulas"
    """
    from crosszone.calibrate.sheet import read_workbook

    run = read_workbook(_read_book(Path(file)), Path(file).name)
    saved = None
    if save is not None:
        with open_database(store) as database:
            saved = database.results.add(**run.to_result(name=save)).id
    if as_json:
        print_json(_build_book_answer(run, saved))
        return
    _print_book(run)
    if saved is not None:
        open_console().print(label("sheet_saved", name=save, id=saved), soft_wrap=True)


@app.command("export")
def export(
    result: Annotated[str, typer.Argument(metavar="ID", help="Id of a saved result.")],
    output: OutputOption = RESULT,
    force: ForceOption = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a saved result as a workbook: with formulas where it is a prediction they cover, else as values.

    Example: crosszone calibrate sheet export 7f3a -o result.xlsx
    """
    check_not_existing(Path(output), force)

    from crosszone.calibrate.sheet import export_result

    with open_database(store) as database:
        data, formulas = export_result(database.results.get(result), language=get_language())
    write_bytes(Path(output), data, force)
    if as_json:
        print_json({"output": output, "bytes": len(data), "formulas": formulas})
        return
    open_console().print(label("sheet_written", output=output), soft_wrap=True)
    open_console().print(label("sheet_keeps" if formulas else "sheet_values"), soft_wrap=True)


LEAST_S = 1e-12  # Shorter phases are rounding


def _read_book(path: Path) -> bytes:
    """The bytes of a file, no more than are read of a workbook."""
    from crosszone.calibrate.sheet.reading import MOST_BYTES

    try:
        with path.open("rb") as file:
            # one byte more than is allowed, by which the reader tells a workbook that is too large
            return file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise FileError(Notice(code="file_missing", value=str(path), file=str(path))) from None
    except OSError as error:
        params = {"reason": error.strerror or str(error)}
        raise FileError(Notice(code="file_unreadable", value=str(path), params=params, file=str(path))) from None


def _build_book_answer(run: ImportedRun, saved: str | None) -> dict[str, Any]:
    plain = run.model_dump(mode="json", exclude={"notices"})
    return {**plain, "saved": saved, "notices": [notice.as_dict(get_language()) for notice in run.notices]}


def _print_book(run: ImportedRun) -> None:
    open_console().print(label("sheet_read", name=run.name, step=f"{run.figures['step_time_s']:.6g}"), soft_wrap=True)
    rows = build_table(label("sheet_phases"), [("sheet_phase", "left"), ("sheet_seconds", "right")])
    for phase, seconds in (run.steps[0].phases_s or run.phases_s).items():
        if seconds > LEAST_S:
            rows.add_row(label(f"trace_phase_{phase}"), f"{seconds:.6g}")
    open_console().print(rows)
    print_notices([notice.as_dict(get_language()) for notice in run.notices])
