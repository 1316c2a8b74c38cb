"""Tasks in the terminal and as JSON: the summary before one is created, lists, one in full, what happened to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from crosszone.cli.environments import WIDE, describe_gpus, summarize_selection
from crosszone.cli.options import localize_stored_notice
from crosszone.cli.output import Line, build_table, join_words, label, open_console, print_lines, print_notices
from crosszone.text.figures import format_amount, format_digits

if TYPE_CHECKING:
    from crosszone.inputs.environment import Environment
    from crosszone.run.chosen import Chosen
    from crosszone.store.tasks import Event, Task, TaskRow

STYLES = {
    "running": "green",
    "succeeded": "bold green",
    "failed": "bold red",
    "interrupted": "red",
    "stopped": "yellow",
    "stopping": "yellow",
}
STEPS = 1000  # Steps of a task that does not say how many
_HIDDEN = ("plan", "token", "driver", "driven_until", "key")


def print_chosen(chosen: Chosen, environments: Mapping[str, Environment]) -> None:
    """What a task will use and what to expect of it, before it is created."""
    selection = chosen.selection
    terminal = open_console()
    terminal.print(label("task_mode_distributed" if selection.distributed else "task_mode_single"), style="bold")
    lines: list[Line] = [(label("task_resources"), summarize_selection(selection), "")]
    if len(selection.zones) > 1:
        lines.append((label("task_zones"), join_words(selection.zones), ""))
    if selection.distributed:
        lines.append((label("task_master"), str(chosen.master), ""))
    if chosen.framework is not None:
        split = label("comma").join(f"{key} {value}" for key, value in (chosen.strategy or {}).items())
        lines.append((label("framework"), f"{chosen.framework} ({split})" if split else chosen.framework, ""))
    if chosen.step_time_s is not None:
        lines.append((label("task_predicted"), _format_range(chosen.step_time_s), "bold"))
    if chosen.tokens_per_s is not None:
        lines.append((label("answer_speed"), label("unit_tokens_s", value=format_digits(chosen.tokens_per_s)), ""))
    print_lines(*lines)
    for id, item in environments.items():
        terminal.print(f"  {id}  [{describe_gpus(item)}]  {item.zone}", soft_wrap=True)
    print_notices(_drop_file_place(item) for item in chosen.notices if item["level"] != "note")


def _drop_file_place(notice: Mapping[str, Any]) -> dict[str, Any]:
    """A notice of the plan that is not in a file yet: its line and the remedy in that file would mislead."""
    return dict(notice) if not notice.get("file") else {**notice, "file": None, "line": None, "hint": ""}


def _format_range(band: Mapping[str, float]) -> str:
    low, expected, high = (format_digits(band[key]) for key in ("low", "expected", "high"))
    return label("value_range", value=label("unit_s", value=expected), low=low, high=high)


def count_steps(task: TaskRow) -> int:
    """Steps it is to do."""
    return int(task.request.get("job", {}).get("steps", STEPS))


def render_state(state: str) -> Any:
    """A state in the language of this run, in its colour."""
    from rich.text import Text

    return Text(label(f"task_state_{state}"), style=STYLES.get(state, ""))


def print_tasks(rows: Sequence[TaskRow]) -> None:
    """A table of tasks."""
    if not rows:
        open_console().print(label("task_none"), soft_wrap=True)
        return
    terminal = open_console()
    wide = terminal.width >= WIDE
    columns = [("env_id", "left"), ("name", "left"), ("task_state", "left"), ("task_step", "right")]
    columns += [("task_loss", "right"), ("tokens_s", "right")]
    columns += [("step_s", "right"), ("task_created_at", "left")] if wide else []
    table = build_table(label("task_title", count=len(rows)), columns)
    table.columns[0].no_wrap = True  # to be copied
    for row in rows:
        progress = row.progress
        step = f"{format_amount(progress.get('step'))}/{format_amount(count_steps(row))}"
        figures = [_format_figure(progress.get(key)) for key in ("loss", "tokens_per_s")]
        more = [_format_figure(progress.get("step_s")), format_moment(row.created)] if wide else []
        table.add_row(row.id, row.name, render_state(row.state), step, *figures, *more)
    terminal.print(table)


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


def print_task(task: Task) -> None:
    """One task in full."""
    print_state(task)
    progress, request, distributed = task.progress, task.request, task.request.get("distributedConfig", {})
    lines: list[Line] = [
        (label("task_created_at"), format_moment(task.created), ""),
        (label("task_changed_at"), format_moment(task.changed), ""),
        (label("task_attempt"), label("task_attempt_line", attempt=task.attempt, restarts=task.restarts), ""),
        (label("task_dataset"), f"{request.get('datasetId')} {request.get('datasetVersionId')}", ""),
        (label("report_model_name"), str(request.get("modelId") or "-"), ""),
    ]
    if task.plan is not None:
        prediction = task.plan["prediction"]
        split = label("comma").join(f"{key} {prediction['strategy'][key]}" for key in ("dp", "pp", "tp"))
        lines.append((label("framework"), f"{task.plan['bundle']['framework']} ({split})", ""))
        lines.append((label("task_predicted"), _format_range(prediction["step_time_s"]), ""))
        if task.plan["slowdown"] is not None:
            lines.append((label("task_slowdown"), f"{format_digits(task.plan['slowdown'], 3)}x", ""))
    elif distributed.get("framework"):
        lines.append((label("framework"), distributed["framework"], ""))
    lines.append((label("task_step"), f"{format_amount(progress.get('step'))}/{format_amount(count_steps(task))}", ""))
    for key, heading in (("step_s", "task_measured"), ("loss", "task_loss"), ("tokens_per_s", "tokens_s")):
        if progress.get(key) is not None:
            lines.append((label(heading), _format_figure(progress[key]), ""))
    print_lines(*lines)
    if task.plan is not None:
        _print_nodes(task)


def _print_nodes(task: Task) -> None:
    states = {node_state["number"]: node_state for node_state in task.progress.get("nodes", ())}
    columns = [
        ("task_node", "right"),
        ("task_environment", "left"),
        ("deploy_ranks", "left"),
        ("deploy_address", "left"),
    ]
    rows = build_table(label("task_nodes"), [*columns, ("task_state", "left"), ("task_folder", "left")])
    places = task.plan.get("environments", {}) if task.plan else {}
    for node in task.plan["nodes"] if task.plan else ():
        number, id = node["number"], node["environment"]
        node_state = states.get(number, {})
        state = label(f"task_node_{node_state['state']}") if node_state.get("state") else "-"
        code = f" ({node_state['code']})" if node_state.get("code") is not None else ""
        root = places.get(id, {}).get("workdir", "~/crosszone")
        folder = f"{root}/tasks/{task.id}/node-{number:03d}"
        rows.add_row(str(number), id, ", ".join(node["ranks"]), node["address"] or "-", state + code, folder)
    open_console().print(rows)


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
    kind = label(f"task_event_{event.kind}") if event.kind in KINDS else event.kind
    notice = event.about.get("notice")
    if event.kind == "check" and "check" in event.about:
        where = join_words(event.about.get("environments", ()))
        kind = f"{label('task_check_' + event.about['check'])} ({where})"
        measured = _format_measurement(event.about.get("measured", {}))
        if not notice:
            return f"{kind}: {label('task_check_good')}" + (f" ({measured})" if measured else "")
    return kind if not notice else f"{kind}: {localize_stored_notice(notice)['message']}"


def _format_measurement(value: Any) -> str:
    if isinstance(value, dict):
        return join_words(f"{key} {_format_measurement(inner)}" for key, inner in value.items() if inner is not None)
    return format_digits(value) if isinstance(value, float) else str(value)


KINDS = ("created", "state", "check", "node", "restart", "resume", "note")


def dump_row(row: TaskRow) -> dict[str, Any]:
    """A row of a list, its notice worded."""
    plain = row.model_dump(mode="json")
    return {**plain, "notice": localize_stored_notice(row.notice) if row.notice else None}


def dump_task(task: Task) -> dict[str, Any]:
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


def dump_event(event: Event) -> dict[str, Any]:
    """An event, its notice worded."""
    plain = event.model_dump(mode="json")
    notice = event.about.get("notice")
    return plain if not notice else {**plain, "about": {**event.about, "notice": localize_stored_notice(notice)}}


def format_moment(text: str) -> str:
    """A time of the store, in UTC, as local time."""
    from datetime import datetime

    return datetime.fromisoformat(text).astimezone().strftime("%m-%d %H:%M:%S")


def _format_figure(value: float | None) -> str:
    return "-" if value is None else format_digits(value)
