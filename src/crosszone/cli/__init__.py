"""The command line: `crosszone VERB ...`, or no verb to open the page.

Each verb lives in a file of its own and imports what it needs when it runs, so that `--help` answers at once.
Exit status: 0 good, 2 bad input, 1 anything else.
"""

from __future__ import annotations

import io
import os
import sys
from copy import copy
from functools import cache
from typing import Annotated, Any, TextIO

import typer
from typer.exceptions import TyperException
from typer.main import get_command

from crosszone import __version__
from crosszone.cli import (
    accuracy,
    analyse,
    calibrate,
    catalogue,
    dataset,
    deploy,
    emulate,
    env,
    plan,
    predict,
    report,
    scenario,
    serve,
    sweep,
    task,
    what_if,
)
from crosszone.cli.output import is_json_asked, print_failure, set_language
from crosszone.errors import CrossZoneError, Notice

app = typer.Typer(
    name="crosszone",
    help="Describe, check, predict, plan and run LLM training on GPUs that do not all sit in one place.",
    no_args_is_help=False,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(scenario.app, name="scenario")
app.add_typer(catalogue.app, name="catalogue")
app.add_typer(calibrate.app, name="calibrate")
app.add_typer(env.app, name="env")
app.add_typer(dataset.app, name="dataset")
app.add_typer(dataset.model_app, name="model")
app.add_typer(task.app, name="task")
app.command("predict")(predict.predict)
app.command("plan")(plan.plan)
app.command("analyse")(analyse.analyse)
app.command("what-if")(what_if.show_what_if)
app.command("sweep")(sweep.sweep)
app.command("report")(report.write_report)
app.command("deploy")(deploy.deploy)
app.command("emulate")(emulate.emulate)
app.command("accuracy")(accuracy.show_accuracy)
app.command("serve")(serve.serve)


def print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"crosszone {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    lang: Annotated[str | None, typer.Option(help="Language of messages: en or zh; default: your locale.")] = None,
    profile: Annotated[
        str | None,
        typer.Option(help="Own profile to predict with, by name or file; default: the one `calibrate use` names."),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Describe, check, predict, plan and run LLM training on GPUs that do not all sit in one place.

    Without a verb the page is served on http://127.0.0.1:8000 with an example loaded.

    Example: crosszone predict examples/three-cities.yaml
    """
    del version
    set_language(lang)
    if profile is not None:
        calibrate.predict_with_profile(profile)
    if context.invoked_subcommand is None:
        serve.serve()


def main() -> None:
    """Run the command line; no traceback reaches the user (set CROSSZONE_DEBUG=1 to see one)."""
    sys.stdout, sys.stderr = _make_writable(sys.stdout), _make_writable(sys.stderr)
    try:
        status = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has had enough
        status = 0
    except OSError as error:  # a full disk, say
        sys.stderr.write(f"crosszone: {error.strerror or error}\n")
        status = 1
    # Python flushes once more when it ends, and would print an error of its own
    _drop_unwritten()
    sys.exit(status)


def _make_writable(stream: TextIO | None) -> TextIO:
    """The stream with question marks for characters it lacks; a closed one is replaced by the null device."""
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return stream


def _drop_unwritten() -> None:
    """Keep Python from complaining at its end about output that can no longer be delivered."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _move_language_first(arguments: list[str]) -> list[str]:
    """The arguments with `--lang` before the verb, wherever the user put it."""
    for index, word in enumerate(arguments):
        if word.startswith("--lang="):
            return [word, *arguments[:index], *arguments[index + 1 :]]
        if word == "--lang" and index + 1 < len(arguments):
            return [*arguments[index : index + 2], *arguments[:index], *arguments[index + 2 :]]
    return arguments


@cache
def _build_command(verb: str) -> Any:
    """Build the command of one verb, or of all when there is no such verb: all sixty take as long as a prediction."""
    # typer builds every option of every command it is given, whichever of them then runs
    single = copy(app)
    single.registered_commands = [command for command in app.registered_commands if command.name == verb]
    single.registered_groups = [group for group in app.registered_groups if group.name == verb]
    return get_command(single if single.registered_commands or single.registered_groups else app)


def run(arguments: list[str]) -> int:
    """Run one command line in this process; its exit status."""
    ordered_arguments = _move_language_first(arguments)
    as_json = is_json_asked(ordered_arguments)
    try:
        outcome = _build_command(ordered_arguments[0] if ordered_arguments else "")(
            args=ordered_arguments, prog_name="crosszone", standalone_mode=False
        )
        return outcome if isinstance(outcome, int) else 0
    except CrossZoneError as error:
        print_failure(error.notices, as_json)
        return error.exit_status
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except TyperException as error:  # the command line itself is wrong
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        if message.startswith("Usage:") and not as_json:
            typer.echo(message, err=True)
        else:
            print_failure([Notice(code="usage", params={"reason": message})], as_json)
        return 2
    # `main` tells a closed pipe from a full disk
    except OSError:
        raise
    except Exception as error:
        if os.environ.get("CROSSZONE_DEBUG"):
            raise
        reason = f"{type(error).__name__}: {error}"
        print_failure([Notice(code="internal", params={"reason": reason})], as_json)
        return 1


__all__ = ["app", "main", "run"]
