"""`crosszone task`: training on chosen environments: created, watched, stopped, resumed.

crosszone task run --name first --dataset wiki --version v1 --model gpt-2 --env here --steps 20
crosszone task watch ID
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from crosszone.cli.options import (
    JsonOption,
    StoreOption,
    open_database,
    open_service,
    parse_assignments,
    require_choice,
)
from crosszone.cli.output import (
    get_language,
    get_text,
    label,
    open_console,
    print_blocks,
    print_json,
    print_line,
    print_notices,
    print_outcome,
    print_sections,
)
from crosszone.errors import InvalidError, Notice

if TYPE_CHECKING:
    from crosszone.run.request import TaskRequest
    from crosszone.run.service import Service
    from crosszone.run.work import TaskPreview
    from crosszone.store.tasks import Task, TaskRow

app = typer.Typer(help="Training on chosen environments: create, watch, stop, resume.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The task's id.")]
ANY_ID = {"ignore_unknown_options": True}  # An id may begin with a dash


@app.command()
def create(
    argument: Annotated[
        str | None, typer.Argument(metavar="FILE", help="Request (YAML or JSON) with the fields of the API; flags win.")
    ] = None,
    file: Annotated[str | None, typer.Option("--file", metavar="FILE", help="The same; - for standard input.")] = None,
    name: Annotated[str | None, typer.Option(help="What to call the task.")] = None,
    dataset: Annotated[str | None, typer.Option(metavar="ID", help="Dataset.")] = None,
    version: Annotated[str | None, typer.Option(metavar="ID", help="Version of the dataset.")] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model: its id, or a name in the catalogue.")
    ] = None,
    env: Annotated[list[str] | None, typer.Option(metavar="ID", help="Environment; once for each of them.")] = None,
    new: Annotated[
        list[str] | None,
        typer.Option(
            metavar="K=V,...", help="Ask a scheduler for nodes: zone=bj,gpu=a100-80gb-sxm,nodes=2,gpus_per_node=8"
        ),
    ] = None,
    master: Annotated[
        str | None, typer.Option(metavar="ID", help="Where ranks meet; default: the first --env.")
    ] = None,
    framework: Annotated[
        str | None, typer.Option(help="pytorch-ddp, pytorch-fsdp, deepspeed, megatron-lm or horovod.")
    ] = None,
    dp: Annotated[
        int | None, typer.Option(min=1, help="Data parallel; without dp, pp and tp they are planned.")
    ] = None,
    pp: Annotated[int | None, typer.Option(min=1, help="Pipeline parallel.")] = None,
    tp: Annotated[int | None, typer.Option(min=1, help="Tensor parallel.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimizer steps; default 1000.")] = None,
    seq_len: Annotated[int | None, typer.Option(min=1, help="Tokens of a sample; default 1024.")] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples a step; default: eight for each rank.")] = None,
    precision: Annotated[str | None, typer.Option(help="bf16 (default), fp16, fp32, ...")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Launch setting: training.lr=1e-4, training.checkpoint_every=10."
        ),
    ] = None,
    max_restarts: Annotated[
        int | None, typer.Option("--max-restarts", min=0, max=100, help="Restarts after a rank has failed; default 3.")
    ] = None,
    ignore_preflight: Annotated[
        bool, typer.Option("--ignore-preflight", help="Start although a check has failed.")
    ] = False,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same key makes the same task once, however often it is sent.")
    ] = None,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a task and show what to expect of it; a server, or `crosszone task watch ID`, drives it.

    Example: crosszone task create --name first --dataset wiki --version v1 --model gpt-2 --env gpu-1 --env gpu-2
    --framework pytorch-ddp --steps 100
    """
    flags = dict(locals())
    with open_service(store) as service:
        task = _create(service, flags, as_json=as_json)
    if not as_json:
        print_line("task_drive_hint", id=task.id, style="dim")


# typer reads options from the signature, which `wraps` hands on: `run` takes what `create` takes
@wraps(create)
def _run(**flags: Any) -> None:
    from crosszone.cli.task_view import watch_task

    with open_service(flags["store"]) as service:
        task = _create(service, flags, quiet=flags["as_json"])
        watch_task(service, task.id, as_json=flags["as_json"])


_run.__doc__ = """Create a task and drive it here until it ends: `create` and `watch` in one.

    Ctrl-C stops only the watching: the task goes on, and `crosszone task watch ID` comes back to it.

    Example: crosszone task run request.yaml --steps 20
    """
app.command("run")(_run)


@app.command("list")
def list_tasks(
    state: Annotated[str | None, typer.Option(help="Only those in this state: running, failed, ...")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Tasks to show, the newest first.")] = 50,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List tasks, the newest first.

    Example: crosszone task list --state running
    """
    from crosszone.cli.task_view import encode_row
    from crosszone.store.tasks import STATES

    require_choice("--state", state, STATES)
    with open_database(store) as database:
        rows: list[TaskRow] = []
        before: str | None = None
        while len(rows) < limit:
            page = database.tasks.page(limit=limit, before=before)
            rows += [row for row in page.rows if state is None or row.state == state]
            before = page.before
            if before is None:
                break
    if as_json:
        print_json({"entries": [encode_row(row) for row in rows[:limit]]})
    elif rows:
        from crosszone.views.tasks import build_tasks_table

        print_blocks(build_tasks_table(rows[:limit], get_text(), open_console().width))
    else:
        print_line("task_none")


@app.command(context_settings=ANY_ID)
def show(id: IdArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Show one task: where it is and why, what runs where, and what to expect of it.

    Example: crosszone task show ID
    """
    from crosszone.cli.task_view import encode_task, print_state
    from crosszone.views.tasks import build_task_section

    with open_database(store) as database:
        task = database.tasks.get(id)
    if as_json:
        print_json(encode_task(task))
    else:
        print_state(task)
        print_sections([build_task_section(task, get_text())])


@app.command(context_settings=ANY_ID)
def watch(
    id: IdArgument,
    drive: Annotated[bool, typer.Option("--drive/--no-drive", help="Drive the task if nobody else does.")] = True,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Follow a task until it ends, measured beside predicted; drives it where no server does.

    Exit status 0: it succeeded. With --json nothing is shown until its end.

    Example: crosszone task watch ID
    """
    from crosszone.cli.task_view import watch_task

    with open_service(store) as service:
        watch_task(service, id, drive=drive, as_json=as_json)


@app.command("logs", context_settings=ANY_ID)
def show_logs(
    id: IdArgument,
    rank: Annotated[int | None, typer.Option(min=0, help="Only the output of this rank.")] = None,
    node: Annotated[int | None, typer.Option(min=0, help="Only of this node.")] = None,
    files: Annotated[bool, typer.Option("--list", help="Only list the files.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the task ends.")] = False,
    from_start: Annotated[bool, typer.Option("--whole", help="From the beginning; default: the end of each.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what the nodes of a task, or one of its ranks, have written.

    Example: crosszone task logs ID --rank 1 --follow
    """
    from crosszone.cli.task_view import print_logs

    with open_service(store) as service:
        print_logs(
            service, id, rank=rank, node=node, files=files, follow=follow, from_start=from_start, as_json=as_json
        )


@app.command("events", context_settings=ANY_ID)
def list_events(
    id: IdArgument,
    after: Annotated[int, typer.Option(min=0, help="Only those after this number.")] = 0,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what happened to a task: every change of state, check and restart, with the reason.

    Example: crosszone task events ID
    """
    from crosszone.cli.task_view import encode_event, print_events
    from crosszone.store.tasks import MAX_EVENTS

    with open_database(store) as database:
        history = database.tasks.list_events(id, after=after, limit=MAX_EVENTS + 1)
    if as_json:
        print_json({"events": [encode_event(event) for event in history]})
    else:
        print_events(history)


@app.command(context_settings=ANY_ID)
def stop(
    id: IdArgument,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until every rank has ended.")] = True,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop a task: every rank on every node ends, with a checkpoint where it writes one; `resume` goes on from it.

    Example: crosszone task stop ID
    """
    from crosszone.cli.task_view import wait_for_end

    with open_service(store) as service:
        task = service.stop(id)
        if wait:
            task = wait_for_end(service, id)
        _print_task(task, as_json)


@app.command(context_settings=ANY_ID)
def resume(
    id: IdArgument,
    watch: Annotated[bool, typer.Option("--watch", help="Then follow it, as `task watch` does.")] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a failed, stopped or interrupted task again, from its last checkpoint.

    Example: crosszone task resume ID --watch
    """
    from crosszone.cli.task_view import watch_task

    with open_service(store) as service:
        task = service.resume(id)
        if watch:
            watch_task(service, id, as_json=as_json)
            return
        _print_task(task, as_json)
        if not as_json:
            print_line("task_drive_hint", id=id, style="dim")


@app.command(context_settings=ANY_ID)
def remove(id: IdArgument, store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Delete a task that has ended, and its folders with logs and checkpoints on its machines.

    Example: crosszone task remove ID
    """
    with open_service(store) as service:
        service.remove(id)
    print_outcome(as_json, {"removed": [id]}, "task_removed", id=id)


def _create(service: Service, flags: dict[str, Any], *, as_json: bool = False, quiet: bool = False) -> Task:
    """Check, show what to expect, store; what cannot be planned is refused before anything is stored."""
    from crosszone.run.request import check_request, describe_created

    request = build_request(flags)
    check_request(request, service.list_registered())
    chosen = service.choose(request, get_language())
    # refused before the store: a task that cannot be planned would fail on its machines an hour later
    if any(notice["level"] == "error" for notice in chosen.notices):
        _exit_unplannable(chosen, flags["as_json"])
    task, request_stored, is_new = service.create(request, key=flags["key"])
    message = label("task_created") if is_new else label("task_known")
    if as_json:
        print_json(
            {
                **describe_created(request_stored, task.id, task.state, message),
                "summary": chosen.model_dump(mode="json"),
            }
        )
    elif not quiet:
        from crosszone.views.tasks import build_preview_section

        print_sections([build_preview_section(chosen, request_stored.environments, get_text())])
        print_line("task_created_as", message=message, id=task.id)
    return task


def _exit_unplannable(chosen: TaskPreview, as_json: bool) -> NoReturn:
    """Tell why nothing can be predicted, so nothing is started."""
    if as_json:
        print_json({"errors": [notice for notice in chosen.notices if notice["level"] == "error"]})
    else:
        print_notices(chosen.notices, stderr=True)
    raise typer.Exit(2)


def _print_task(task: Task, as_json: bool) -> None:
    from crosszone.cli.task_view import encode_task, print_state

    if as_json:
        print_json(encode_task(task))
    else:
        print_state(task)


# Where each flag stands in a request.
_PLACES = {
    "name": ("taskName",),
    "dataset": ("datasetId",),
    "version": ("datasetVersionId",),
    "model": ("modelId",),
    "env": ("distributedConfig", "nodeIds"),
    "master": ("distributedConfig", "masterNode"),
    "framework": ("distributedConfig", "framework"),
    "dp": ("distributedConfig", "strategy", "dataParallel"),
    "pp": ("distributedConfig", "strategy", "pipelineParallel"),
    "tp": ("distributedConfig", "strategy", "tensorParallel"),
    "steps": ("job", "steps"),
    "seq_len": ("job", "seq_len"),
    "batch": ("job", "global_batch"),
    "precision": ("job", "precision"),
    "max_restarts": ("policy", "maxRestarts"),
}


def build_request(flags: Mapping[str, Any]) -> TaskRequest:
    """The request that a file and flags make; the first environment is the master where none is named."""
    from crosszone.inputs.value import parse
    from crosszone.run.request import TaskRequest

    document, fields = _read_request_file(flags.get("argument"), flags.get("file"))
    for flag, path in _PLACES.items():
        if flags.get(flag) not in (None, []):
            _put_field(fields, path, flags[flag])
    if flags.get("new"):
        fields |= {
            "launchMode": "new",
            "allocation": [parse_assignments(fields_text.split(","), "--new") for fields_text in flags["new"]],
        }
    if flags.get("ignore_preflight"):
        _put_field(fields, ("policy", "ignorePreflight"), True)
    if flags.get("settings"):
        fields["settings"] = _merge_settings(fields.get("settings"), flags["settings"])
    where = fields.get("distributedConfig")
    if isinstance(where, dict) and isinstance(where.get("nodeIds"), list) and where["nodeIds"]:
        where.setdefault("masterNode", where["nodeIds"][0])
    return parse(TaskRequest, fields, document)


def _read_request_file(argument: str | None, option: str | None) -> tuple[Any, dict[str, Any]]:
    """The file, and its fields, which may be changed."""
    from copy import deepcopy

    from crosszone.inputs.document import read_document

    if argument is not None and option is not None:
        raise InvalidError(Notice(code="task_file_twice", field="--file", value=option, params={"other": argument}))
    file = argument or option
    if file is None:
        return None, {}
    document = read_document(file)
    if not isinstance(document.value, dict):
        raise InvalidError(document.place_notice(Notice(code="must_be_mapping", field="", value=document.value)))
    return document, deepcopy(document.value)


def _put_field(fields: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Put a value at a path; parents that are no mappings are replaced, for the request is checked afterwards."""
    *parents, last = path
    for key in parents:
        inner = fields.get(key)
        fields[key] = inner if isinstance(inner, dict) else {}
        fields = fields[key]
    fields[last] = value


def _merge_settings(file_settings: Any, lines: list[str]) -> dict[str, Any]:
    """Launch settings of a file with those of flags on top."""
    from crosszone.deploy.settings import LaunchSettings
    from crosszone.inputs.value import parse

    return parse(LaunchSettings, file_settings or {}).apply_assignments(lines).to_plain()
