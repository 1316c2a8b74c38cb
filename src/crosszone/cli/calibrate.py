"""`crosszone calibrate`: measure, fit, import, compare."""

from __future__ import annotations

import typer

from crosszone.cli import (
    calibrate_collectives,
    calibrate_fit,
    calibrate_jobs,
    calibrate_kernels,
    calibrate_log,
    calibrate_profiles,
    calibrate_sheet,
    calibrate_trace,
)
from crosszone.cli.calibrate_profiles import lay

__all__ = ["app", "lay"]

app = typer.Typer(
    help="Measure kernels and links, fit profiles to them, learn from logs, import traces and sheets.",
    no_args_is_help=True,
)
app.command("profiles")(calibrate_profiles.profiles)
app.command("use")(calibrate_profiles.use)
app.command("forget")(calibrate_profiles.forget)
app.command("collectives")(calibrate_collectives.collectives)
app.command("links")(calibrate_collectives.links)
app.command("kernels")(calibrate_kernels.kernels)
app.command("fit")(calibrate_fit.fit)
app.command("operator")(calibrate_fit.operator)
app.command("trace")(calibrate_trace.trace)
app.command("log")(calibrate_log.log)
app.command("jobs")(calibrate_jobs.jobs)
app.add_typer(calibrate_sheet.app, name="sheet")
