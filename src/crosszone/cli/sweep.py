"""`crosszone sweep`: the best plan at every value of one field, or of two, and where the choice flips."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crosszone.cli.options import JsonOption, PinnedArgument
from crosszone.cli.output import (
    check_not_existing,
    get_language,
    get_text,
    open_progress_bar,
    print_json,
    print_line,
    print_sections,
    write_bytes,
    write_file,
)
from crosszone.extras import require_extra


def sweep(
    file: PinnedArgument,
    x: Annotated[str, typer.Option(metavar="FIELD=RANGE", help="Field and values: 1:100:log20, 5:80:16 or 1,2,5.")],
    y: Annotated[str | None, typer.Option(metavar="FIELD=RANGE", help="A second field: a heat map.")] = None,
    objective: Annotated[str, typer.Option(help="What plans are ranked by: time, cost, memory or energy.")] = "time",
    free: Annotated[bool, typer.Option("--free", help="Plan freely: leave the file's strategy out.")] = False,
    predict: Annotated[
        bool, typer.Option("--predict", help="Do not plan: predict the file's own strategy at every value.")
    ] = False,
    local_updates: Annotated[
        bool, typer.Option("--local-updates/--synchronous", help="Also plans in which zones average now and then.")
    ] = True,
    margin: Annotated[
        float, typer.Option(metavar="SHARE", help="What those, another algorithm, must gain to be taken.")
    ] = 0.05,
    on: Annotated[str, typer.Option(help="Where it runs: cores, ray, or ray://HOST:PORT.")] = "cores",
    workers: Annotated[int | None, typer.Option(metavar="N", help="Processes; default: one a core.")] = None,
    csv: Annotated[str | None, typer.Option(metavar="FILE", help="Write a table with a row for each cell.")] = None,
    png: Annotated[str | None, typer.Option(metavar="FILE", help="Write a picture.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the files.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Plan the scenario anew at every value of a field, or of two: a heat map of the step and of what crosses zones.

    Example: crosszone sweep examples/two-zones-7b.yaml --x "cluster.links[0].gbps=1:400:log20" --png flip.png
    """
    for output in (csv, png):
        if output is not None:
            check_not_existing(Path(output), force)
    if png is not None:
        require_extra("figures")  # before the sweep, which may take minutes

    from crosszone.analyse.sweep import sweep as run
    from crosszone.inputs.scenario import read_scenario

    loaded = read_scenario(file)
    # the search knows fields; the line of the file each stands in is known here
    with loaded.document.place_errors(), open_progress_bar() as progress:
        outcome = run(
            loaded.scenario,
            x,
            y,
            objective=objective,  # type: ignore[arg-type]
            mode="predict" if predict else "plan",
            free=free,
            local_updates=local_updates,
            margin=margin,
            on=on,
            workers=workers,
            progress=progress,
            language=get_language(),
        )
    if csv is not None:
        write_file(Path(csv), outcome.to_csv(), force)
    if png is not None:
        from crosszone.views.sweep_picture import draw_sweep

        write_bytes(Path(png), draw_sweep(outcome, get_language()), force)
    if as_json:
        print_json(outcome.model_dump(mode="json"))
        return

    from crosszone.views.sweep import build_sweep_section

    print_sections([build_sweep_section(outcome, get_text())])
    for output in (csv, png):
        if output is not None:
            print_line("written", output=output)
