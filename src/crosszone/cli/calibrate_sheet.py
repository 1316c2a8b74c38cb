"""`crosszone calibrate sheet`: a scenario as a workbook with live formulas; what an edited workbook says; results out.

crosszone calibrate sheet --scenario FILE -o book.xlsx
crosszone calibrate sheet read book.xlsx --save "my formulas"
crosszone calibrate sheet export ID -o result.xlsx
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crosszone.cli.options import JsonOption, StoreOption, open_database
from crosszone.cli.output import (
    check_not_existing,
    get_language,
    get_text,
    localize,
    print_json,
    print_line,
    print_notices,
    print_outcome,
    print_sections,
    write_bytes,
)
from crosszone.errors import FileError, Notice

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
    document = {"output": output, "bytes": len(data), "scenario": loaded.scenario.name}
    print_outcome(as_json, document, "sheet_written", output=output)


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
        plain = run.model_dump(mode="json", exclude={"notices"})
        print_json({**plain, "saved": saved, "notices": localize(run.notices)})
        return

    from crosszone.views.calibration import build_book_section

    print_sections([build_book_section(run, get_text())])
    print_notices(localize(run.notices))
    if saved is not None:
        print_line("sheet_saved", name=save, id=saved)


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
    print_line("sheet_written", output=output)
    print_line("sheet_keeps" if formulas else "sheet_values")


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
