"""Tasks in the terminal and as JSON: one as it runs, lists, one in full, what happened to it, and its logs.

TaskView(service, id, live=True).show_until_end()
watch_task(service, id)
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from crosszone.cli.options import localize_stored_notice
from crosszone.cli.output import (
    get_language,
    get_text,
    label,
    open_console,
    print_blocks,
    print_json,
    print_line,
    print_notices,
)
from crosszone.errors import CrossZoneError, Notice, UnknownNameError
from crosszone.text.figures import format_amount, format_digits
from crosszone.views.tasks import build_logs_table, build_run_comparison_table, build_state, count_steps, format_moment
from crosszone.views.terminal import draw_cell, draw_table

if TYPE_CHECKING:
    from crosszone.run.logs import LogFile
    from crosszone.run.monitor import RunComparison
    from crosszone.run.service import Service
    from crosszone.store.tasks import Event, Task, TaskRow

LOOK_S = 1.0  # Seconds between two looks at the store
COMPARISON_S = 2.0  # Seconds between two comparisons; more where one takes long
BAR_WIDTH = 20  # Characters of the bar
MOST_NAMED = 6  # Nodes that are named one by one


class TaskView:
    """One task in the terminal; `live`: redrawn in place, else line by line; `quiet`: nothing at all."""

    def __init__(self, service: Service, id: str, *, live: bool = False, quiet: bool = False) -> None:
        self._service, self._id = service, id
        self._live, self._quiet = live, quiet
        self._terminal = open_console()
        self._event, self._good = 0, 0
        self._step: int | None = None
        self._comparison: RunComparison | None = None
        self._next_comparison = 0.0

    def show_until_end(self) -> Task:
        """Show the task until it ends; what it came to."""
        if self._quiet:
            return self._poll_until_end(lambda _: None)
        if not self._live:
            task = self._poll_until_end(self._print_new_step)
        else:
            from rich.live import Live

            with Live(console=self._terminal, auto_refresh=False, transient=True) as picture:
                task = self._poll_until_end(lambda now: picture.update(self._render_picture(now), refresh=True))
        self._compare(at_once=True)
        self._terminal.print(self._render_picture(task))
        if task.notice:
            print_notices([localize_stored_notice(task.notice)])
        return task

    def _poll_until_end(self, show: Any) -> Task:
        from crosszone.store.tasks import LIVE

        while True:
            task = self._service.store.tasks.get(self._id)
            if not self._quiet:
                self._print_new_events()
                self._compare()
            show(task)
            if task.state not in LIVE:
                return task
            time.sleep(LOOK_S)

    def _print_new_events(self) -> None:
        """What happened since, above all else."""
        for event in self._service.store.tasks.list_events(self._id, after=self._event):
            self._event = event.number
            # dozens of good checks would push what matters off the screen
            if event.kind == "check" and not event.about.get("notice"):
                self._good += 1  # `task events` has each of them
                continue
            self._terminal.print(render_event(event), soft_wrap=True)
            if event.about.get("from") == "preflight" and self._good:
                self._terminal.print(label("task_checks_good", count=self._good), style="dim", soft_wrap=True)
                self._good = 0

    def _compare(self, *, at_once: bool = False) -> None:
        if not at_once and time.monotonic() < self._next_comparison:
            return
        begin = time.monotonic()
        self._comparison = read_comparison(self._service, self._id) or self._comparison
        # a comparison reads the logs of every node: at most a sixth of the time goes into it
        self._next_comparison = time.monotonic() + max(COMPARISON_S, 5 * (time.monotonic() - begin))

    # --- line by line -------------------------------------------------------------------------------------------------

    def _print_new_step(self, task: Task) -> None:
        """The newest step, where it is a new one."""
        step = task.progress.get("step")
        if step is not None and step != self._step:
            self._terminal.print(render_figures(task), soft_wrap=True)
        self._step = step

    # --- in place -----------------------------------------------------------------------------------------------------

    def _render_picture(self, task: Task) -> Any:
        from rich.console import Group
        from rich.text import Text

        head = Text(f"{task.name} ({task.id})  ", style="bold")
        head.append_text(render_state(task.state))
        if task.attempt > 1 or task.restarts:
            head.append("  " + label("task_attempt_line", attempt=task.attempt, restarts=task.restarts), style="dim")
        pieces: list[Any] = [head, render_figures(task), render_nodes(task)]
        if self._comparison is not None and self._comparison.step.measured_s is not None:
            pieces.append(draw_table(build_run_comparison_table(self._comparison, get_text())))
            pieces += [Text(line, style="yellow") for line in list_drift_messages(self._comparison)]
        return Group(*[piece for piece in pieces if piece])


def render_event(event: Event) -> Any:
    """One event: when, the state then, and what."""
    from rich.text import Text

    line = Text(f"{format_moment(event.at)}  ", style="dim")
    line.append_text(render_state(event.state))
    line.append("" if event.kind == "state" and not event.about.get("notice") else f"  {describe_event(event)}")
    return line


def render_figures(task: Task) -> Any:
    """Bar, step, loss and rates as last seen."""
    from rich.text import Text

    progress, steps = task.progress, count_steps(task)
    done = int(progress.get("step") or 0)
    filled = min(BAR_WIDTH, BAR_WIDTH * done // max(1, steps))
    line = Text()
    line.append("━" * filled, style="green")
    line.append("─" * (BAR_WIDTH - filled), style="dim")
    line.append(f" {label('task_step')} {format_amount(done)}/{format_amount(steps)}")
    if progress.get("loss") is not None:
        first = progress.get("first_loss")
        before = "" if first is None or first == progress["loss"] else f"{format_digits(first)} → "
        line.append(f"  {label('task_loss')} {before}{format_digits(progress['loss'])}")
    if progress.get("step_s") is not None:
        line.append(f"  {label('unit_s', value=format_digits(progress['step_s'], 3))}")
    if progress.get("tokens_per_s") is not None:
        line.append(f"  {label('unit_tokens_s', value=format_digits(progress['tokens_per_s'], 3))}")
    return line


def render_nodes(task: Task) -> Any:
    """What each node does; of many, how many do."""
    from rich.text import Text

    if task.plan is None or not task.progress.get("nodes"):
        return None
    names = {node["number"]: node["environment"] for node in task.plan["nodes"]}
    states = [(names.get(node_state["number"], "?"), node_state["state"]) for node_state in task.progress["nodes"]]
    if len(states) <= MOST_NAMED:
        words = [f"{name} {label(f'task_node_{state}')}" for name, state in states]
    else:
        counts = {state: sum(other == state for _, other in states) for _, state in states}
        words = [f"{count} {label(f'task_node_{state}')}" for state, count in counts.items()]
    return Text(label("comma").join(words), style="dim")


def list_drift_messages(comparison: RunComparison) -> list[str]:
    """What has drifted, whether to plan anew, and what to know of the comparison, in words."""
    drift_notices = [drift.notice for drift in comparison.drifts]
    drift_notices += [comparison.replan.notice] if comparison.replan is not None else []
    return [notice["message"] for notice in (*drift_notices, *comparison.notices)]


def read_comparison(service: Service, id: str) -> RunComparison | None:
    """The run compared with its prediction; None: nothing was measured yet, or a machine does not answer."""
    from crosszone.run.monitor import localize_comparison

    try:
        return localize_comparison(service.compare_run(id), get_language())
    except CrossZoneError:
        return None


# How long the end waits for a step of the driver; one that is cut off is done again by whoever comes next.
END_S = 5.0


@contextmanager
def run_driver(service: Service, id: str) -> Iterator[None]:
    """Drive one task meanwhile, unless another does; it goes on by itself afterwards."""
    stop = threading.Event()
    drive = service.get_engine().run_until
    # a daemon: Ctrl-C ends the watching, not the task; the next driver goes on from the store
    thread = threading.Thread(target=drive, args=(stop,), kwargs={"only": id}, name="driver", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(END_S)


def wait_for_end(service: Service, id: str) -> Task:
    """The task when it has come to an end; it is driven there."""
    from crosszone.store.tasks import LIVE

    with run_driver(service, id):
        while (task := service.store.tasks.get(id)).state in LIVE:
            time.sleep(LOOK_S / 4)
    return task


def watch_task(service: Service, id: str, *, drive: bool = True, as_json: bool = False) -> None:
    """Show a task until it ends; exit status 1 unless it succeeded."""
    from contextlib import nullcontext

    service.store.tasks.get(id)
    try:
        with run_driver(service, id) if drive else nullcontext():
            view = TaskView(service, id, quiet=as_json, live=sys.stdout.isatty() and not as_json)
            task = view.show_until_end()
    except KeyboardInterrupt:
        if not as_json:
            print_line("task_left", id=id, stderr=True)
        raise
    if as_json:
        comparison = read_comparison(service, id)
        print_json({**encode_task(task), "twin": None if comparison is None else comparison.model_dump(mode="json")})
    if task.state != "succeeded":
        raise typer.Exit(1)


# --- lists, and one task in full

_HIDDEN = ("plan", "token", "driver", "driven_until", "key")


def render_state(state: str) -> Any:
    """A state in the language of this run, in its colour."""
    return draw_cell(build_state(state, get_text()))


def print_state(task: Task) -> None:
    """Where a task is, in one line, and why."""
    from rich.text import Text

    line = Text(f"{task.name} ({task.id}): ")
    line.append_text(render_state(task.state))
    if task.state not in ("stopping", "stopped") and task.stop_asked:
        line.append(label("task_stop_asked"))
    open_console().print(line, soft_wrap=True)
    if task.notice:
        print_notices([localize_stored_notice(task.notice)])


def print_events(history: Sequence[Event]) -> None:
    """What happened, oldest first."""
    from rich.text import Text

    terminal = open_console()
    for event in history:
        line = Text(f"{event.number:>4}  {format_moment(event.at)}  ", style="dim")
        line.append_text(render_state(event.state))
        line.append(f"  {describe_event(event)}")
        terminal.print(line, soft_wrap=True)


def describe_event(event: Event) -> str:
    """An event in a few words: its kind and why."""
    kind = label(f"task_event_{event.kind}") if event.kind in EVENT_KINDS else event.kind
    notice = event.about.get("notice")
    if event.kind == "check" and "check" in event.about:
        where = get_text().join(event.about.get("environments", ()))
        kind = f"{label('task_check_' + event.about['check'])} ({where})"
        measured = _format_measurement(event.about.get("measured", {}))
        if not notice:
            return f"{kind}: {label('task_check_good')}" + (f" ({measured})" if measured else "")
    return kind if not notice else f"{kind}: {localize_stored_notice(notice)['message']}"


def _format_measurement(value: Any) -> str:
    if isinstance(value, dict):
        return get_text().join(
            f"{key} {_format_measurement(inner)}" for key, inner in value.items() if inner is not None
        )
    return format_digits(value) if isinstance(value, float) else str(value)


EVENT_KINDS = ("created", "state", "check", "node", "restart", "resume", "note")


def encode_row(row: TaskRow) -> dict[str, Any]:
    """A row of a list, its notice in the reader's language."""
    plain = row.model_dump(mode="json")
    return {**plain, "notice": localize_stored_notice(row.notice) if row.notice else None}


def encode_task(task: Task) -> dict[str, Any]:
    """A task without what only its driver needs, with what is expected of it."""
    plain = {key: value for key, value in task.model_dump(mode="json").items() if key not in _HIDDEN}
    plan = task.plan or {}
    expected = {key: plan.get(key) for key in ("prediction", "slowdown", "nodes", "scenario")}
    framework = plan["bundle"]["framework"] if plan else None
    return {
        **plain,
        "notice": localize_stored_notice(task.notice) if task.notice else None,
        "framework": framework,
        **expected,
    }


def encode_event(event: Event) -> dict[str, Any]:
    """An event, its notice in the reader's language."""
    plain = event.model_dump(mode="json")
    notice = event.about.get("notice")
    return plain if not notice else {**plain, "about": {**event.about, "notice": localize_stored_notice(notice)}}


# --- logs

LOG_TAIL_BYTES = 16 * 1024  # Bytes of a log's end that are shown; `--whole` shows all
LOG_PART_BYTES = 256 * 1024
PAUSE_S = 1.0
NODE_LOG = "logs/node.log"


@dataclass
class Reading:
    """One log, and how far it was read."""

    file: LogFile
    offset: int


def print_logs(
    service: Service,
    id: str,
    *,
    rank: int | None,
    node: int | None,
    files: bool,
    follow: bool,
    from_start: bool,
    as_json: bool,
) -> None:
    """Print logs, list them, or follow them until the task ends."""
    from crosszone.store.tasks import LIVE

    log_files = service.list_logs(id)
    if files:
        _print_files(log_files, as_json)
        return
    chosen = select_logs(log_files, rank, node)
    readings = [Reading(item, 0 if from_start else max(0, item.bytes - LOG_TAIL_BYTES)) for item in chosen]
    if as_json:
        print_json(
            {
                "logs": [
                    {**item.file.model_dump(mode="json"), "text": _read_rest(service, id, item)} for item in readings
                ]
            }
        )
        return
    if not log_files:
        print_line("task_no_logs")
    last: Reading | None = None
    while True:
        live = service.store.tasks.get(id).state in LIVE
        for item in readings:
            text = _read_rest(service, id, item)
            if text:
                last = _print_text(item, text, last, alone=len(readings) == 1)
        if not follow or not live:
            return
        time.sleep(PAUSE_S)
        seen_keys = {(item.file.node, item.file.name) for item in readings}
        # a restart writes new files; those must be followed too
        new_files = [
            item
            for item in select_logs(service.list_logs(id), rank, node, strict=False)
            if (item.node, item.name) not in seen_keys
        ]
        readings += [Reading(item, 0) for item in new_files]


def select_logs(
    log_files: Sequence[LogFile], rank: int | None, node: int | None, *, strict: bool = True
) -> list[LogFile]:
    """The logs of a rank (of its newest start), or of every node, or of one."""
    if rank is not None:
        of_rank = [file for file in log_files if file.rank == rank]
        if strict and log_files and not of_rank:
            numbers = sorted({str(file.rank) for file in log_files if file.rank is not None}) or ["-"]
            raise UnknownNameError(Notice(code="task_unknown", field="--rank", value=rank, params={"known": numbers}))
        return of_rank
    chosen = [file for file in log_files if file.name == NODE_LOG and node in (None, file.node)]
    if strict and log_files and not chosen:
        numbers = sorted({str(file.node) for file in log_files})
        raise UnknownNameError(Notice(code="task_unknown", field="--node", value=node, params={"known": numbers}))
    return chosen


def _read_rest(service: Service, id: str, reading: Reading) -> str:
    """What was written since, and where reading goes on."""
    text = []
    while True:
        part = service.read_log(
            id, node=reading.file.node, name=reading.file.name, offset=reading.offset, max_bytes=LOG_PART_BYTES
        )
        text.append(part.text)
        if part.next <= reading.offset or part.next >= part.size:
            reading.offset = max(reading.offset, part.next)
            return "".join(text)
        reading.offset = part.next


def _print_text(reading: Reading, text: str, last: Reading | None, *, alone: bool) -> Reading:
    """Text as it is, under a heading where it is another log's than before; control characters are left out."""
    if reading is not last and not alone:
        open_console().print(f"==> {reading.file.environment}, {reading.file.name} <==", style="bold", soft_wrap=True)
    # a log may hold escape sequences that would rewrite the terminal of whoever reads it
    printable = "".join(c for c in text if c.isprintable() or c in "\n\t")
    sys.stdout.write(printable if printable.endswith("\n") or alone else printable + "\n")
    sys.stdout.flush()
    return reading


def _print_files(log_files: Sequence[LogFile], as_json: bool) -> None:
    if as_json:
        print_json({"files": [file.model_dump(mode="json") for file in log_files]})
        return
    if not log_files:
        print_line("task_no_logs")
        return
    print_blocks(build_logs_table(log_files, get_text()))
