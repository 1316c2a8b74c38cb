"""Training tasks as sections: what to expect of one, lists, one in full, its logs, and a run beside its prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from crosszone.text.figures import format_amount, format_digits, format_signed
from crosszone.views.answer_text import AnswerText
from crosszone.views.document import Block, Cell, ColoredText, Fact, Facts, Mark, Paragraph, Section, Table
from crosszone.views.environments import WIDE, describe_gpus, summarize_selection

if TYPE_CHECKING:
    from crosszone.inputs.environment import Environment
    from crosszone.run.logs import LogFile
    from crosszone.run.monitor import ComparedPart, RunComparison
    from crosszone.run.work import TaskPreview
    from crosszone.store.tasks import Task, TaskRow

MOST_PERCENT_RATIO = 5  # From this ratio on a difference is shown as "7x", not as 600 %
DEFAULT_STEPS = 1000  # Steps of a task that does not say how many
_COLORS = {"running": "green", "succeeded": "green", "interrupted": "red", "stopped": "yellow", "stopping": "yellow"}
_MARKS: dict[str, Mark] = {"succeeded": "strong", "failed": "bad"}


def build_preview_section(chosen: TaskPreview, environments: Mapping[str, Environment], text: AnswerText) -> Section:
    """What a task will use and what to expect of it, before it is created."""
    selection = chosen.selection
    facts = [text.build_fact("task_resources", summarize_selection(selection, text))]
    if len(selection.zones) > 1:
        facts.append(text.build_fact("task_zones", text.join(selection.zones)))
    if selection.distributed:
        facts.append(text.build_fact("task_master", str(chosen.master)))
    if chosen.framework is not None:
        split = text.join(f"{key} {value}" for key, value in (chosen.strategy or {}).items())
        framework = f"{chosen.framework} ({split})" if split else chosen.framework
        facts.append(text.build_fact("framework", framework))
    if chosen.step_time_s is not None:
        step = _format_range(chosen.step_time_s, text)
        facts.append(text.build_fact("task_predicted", step, mark="strong"))
    if chosen.tokens_per_s is not None:
        speed = text.label("unit_tokens_s", value=format_digits(chosen.tokens_per_s))
        facts.append(text.build_fact("answer_speed", speed))
    blocks: list[Block] = [Facts(facts=tuple(facts))]
    for id, environment in environments.items():
        line = f"{id}  [{describe_gpus(environment)}]  {environment.zone}"
        blocks.append(Paragraph(text=line, indent=2))
    warnings = [_drop_file_place(notice) for notice in chosen.notices if notice["level"] != "note"]
    blocks.append(text.list_remarks(warnings))
    title = text.label("task_mode_distributed" if selection.distributed else "task_mode_single")
    return Section(title=title, blocks=tuple(blocks))


def _drop_file_place(notice: Mapping[str, Any]) -> dict[str, Any]:
    """A notice of the plan that is not in a file yet: its line and the remedy in that file would mislead."""
    return dict(notice) if not notice.get("file") else {**notice, "file": None, "line": None, "hint": ""}


def _format_range(band: Mapping[str, float], text: AnswerText) -> str:
    low, expected, high = (format_digits(band[key]) for key in ("low", "expected", "high"))
    return text.label("value_range", value=text.label("unit_s", value=expected), low=low, high=high)


def build_state(state: str, text: AnswerText) -> ColoredText:
    """A state in words, in its colour."""
    label = text.label(f"task_state_{state}")
    return ColoredText(text=label, color=_COLORS.get(state, ""), mark=_MARKS.get(state, ""))


def format_moment(moment: str) -> str:
    """A time of the store, in UTC, as local time."""
    return datetime.fromisoformat(moment).astimezone().strftime("%m-%d %H:%M:%S")


def count_steps(task: TaskRow) -> int:
    """Steps it is to do."""
    return int(task.request.get("job", {}).get("steps", DEFAULT_STEPS))


def _format_step(task: TaskRow) -> str:
    """How many of its steps a task has done."""
    return f"{format_amount(task.progress.get('step'))}/{format_amount(count_steps(task))}"


def _format_figure(value: float | None) -> str:
    return "-" if value is None else format_digits(value)


def build_tasks_table(rows: Sequence[TaskRow], text: AnswerText, width: int) -> Table:
    """Tasks, a row each."""
    wide = width >= WIDE
    columns = "env_id name task_state >task_step >task_loss >tokens_s" + (" >step_s task_created_at" if wide else "")
    cells: list[tuple[Cell, ...]] = [
        (
            row.id,
            row.name,
            build_state(row.state, text),
            _format_step(row),
            *(_format_figure(row.progress.get(key)) for key in ("loss", "tokens_per_s")),
            *([_format_figure(row.progress.get("step_s")), format_moment(row.created)] if wide else []),
        )
        for row in rows
    ]
    # ids stay on one line, to be copied
    return text.build_titled_table(columns, cells, text.label("task_title", count=len(rows)), uncut=[0])


def build_task_section(task: Task, text: AnswerText) -> Section:
    """One task in full, below the line with its state."""
    progress, request, plan = task.progress, task.request, task.plan
    lines = {
        "task_created_at": format_moment(task.created),
        "task_changed_at": format_moment(task.changed),
        "task_attempt": text.label("task_attempt_line", attempt=task.attempt, restarts=task.restarts),
        "task_dataset": f"{request.get('datasetId')} {request.get('datasetVersionId')}",
        "report_model_name": str(request.get("modelId") or "-"),
    }
    framework = request.get("distributedConfig", {}).get("framework")
    if plan is not None:
        prediction = plan["prediction"]
        split = text.join(f"{key} {prediction['strategy'][key]}" for key in ("dp", "pp", "tp"))
        lines["framework"] = f"{plan['bundle']['framework']} ({split})"
        lines["task_predicted"] = _format_range(prediction["step_time_s"], text)
        if plan["slowdown"] is not None:
            lines["task_slowdown"] = f"{format_digits(plan['slowdown'], 3)}x"
    elif framework:
        lines["framework"] = framework
    lines["task_step"] = _format_step(task)
    for key, heading in (("step_s", "task_measured"), ("loss", "task_loss"), ("tokens_per_s", "tokens_s")):
        if progress.get(key) is not None:
            lines[heading] = _format_figure(progress[key])
    facts = Facts(facts=tuple(Fact(heading=text.label(key), text=line) for key, line in lines.items()))
    return Section(blocks=(facts,) if plan is None else (facts, _build_nodes_table(task, plan, text)))


def _build_nodes_table(task: Task, plan: Mapping[str, Any], text: AnswerText) -> Table:
    """Nodes of a task: where they run, their ranks, how they are, and their folders."""
    states = {state["number"]: state for state in task.progress.get("nodes", ())}
    places = plan.get("environments", {})
    rows = []
    for node in plan["nodes"]:
        number, id = node["number"], node["environment"]
        node_state = states.get(number, {})
        state = text.label(f"task_node_{node_state['state']}") if node_state.get("state") else "-"
        code = f" ({node_state['code']})" if node_state.get("code") is not None else ""
        root = places.get(id, {}).get("workdir", "~/crosszone")
        folder = f"{root}/tasks/{task.id}/node-{number:03d}"
        rows.append((str(number), id, ", ".join(node["ranks"]), node["address"] or "-", state + code, folder))
    columns = ">task_node task_environment deploy_ranks deploy_address task_state task_folder"
    return text.build_titled_table(columns, rows, text.label("task_nodes"))


def build_logs_table(log_files: Sequence[LogFile], text: AnswerText) -> Table:
    """Files that nodes write, a row each."""
    rows = [
        (
            str(file.node),
            file.environment,
            "-" if file.rank is None else str(file.rank),
            format_amount(file.bytes),
            file.name,
        )
        for file in log_files
    ]
    columns = ">task_node task_environment >deploy_ranks >dataset_bytes bundle_file"
    return text.build_titled_table(columns, rows, text.label("task_logs"))


def build_run_comparison_table(comparison: RunComparison, text: AnswerText) -> Table:
    """The step of a run and its parts, predicted and measured."""
    parts = [part for part in (comparison.step, *comparison.parts) if part.predicted_s or part.measured_s]
    expected = comparison.tokens_per_s_predicted
    speed = (text.label("tokens_s"), format_digits(expected), *_format_measured(comparison.tokens_per_s, expected))
    columns = "step_part >watch_predicted >watch_measured >watch_difference >watch_range watch_verdict"
    return text.build_titled_table(
        columns,
        [*(_list_part_cells(part, text) for part in parts), (*speed, "", "")],
        text.label("watch_title", window=comparison.window),
        strong_rows=[place for place, part in enumerate(parts) if part is comparison.step],
    )


def _list_part_cells(part: ComparedPart, text: AnswerText) -> tuple[str, ...]:
    verdict = "" if part.inside is None else text.label("watch_inside" if part.inside else "watch_outside")
    span = f"{format_digits(part.low_s, 3)} - {format_digits(part.high_s, 3)}"
    measured = _format_measured(part.measured_s, part.predicted_s)
    return (text.label(f"watch_{part.name}"), format_digits(part.predicted_s, 3), *measured, span, verdict)


def _format_measured(measured: float | None, predicted: float) -> tuple[str, str]:
    """What was measured, and how far off: in percent, or how many times as much."""
    if measured is None:
        return "-", "-"
    if not predicted:
        return format_digits(measured, 3), "-"
    ratio = measured / predicted
    near = ratio < MOST_PERCENT_RATIO
    difference = f"{format_signed(100 * (ratio - 1), 3)} %" if near else f"{format_digits(ratio, 3)}x"
    return format_digits(measured, 3), difference
