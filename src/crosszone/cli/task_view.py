"""The view of a task as it goes: events as they happen, the newest step, and measured beside predicted.

View(service, id, live=True).follow()
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from crosszone.cli.options import localize_stored_notice
from crosszone.cli.output import build_table, get_language, label, open_console, print_notices
from crosszone.cli.tasks import count_steps, describe_event, format_moment, render_state
from crosszone.errors import CrossZoneError
from crosszone.text.figures import format_amount, format_digits, format_signed

if TYPE_CHECKING:
    from crosszone.run.monitor import Twin, TwinPart
    from crosszone.run.service import Service
    from crosszone.store.tasks import Event, Task

LOOK_S = 1.0
TWIN_S = 2.0  # Seconds between two comparisons; more where one takes long
BAR = 20  # Characters of the bar
MANY = 5  # From this ratio on it is told as one


class TaskView:
    """One task in the terminal; `live`: redrawn in place, else line by line; `quiet`: nothing at all."""

    def __init__(self, service: Service, id: str, *, live: bool = False, quiet: bool = False) -> None:
        self._service, self._id = service, id
        self._live, self._quiet = live, quiet
        self._terminal = open_console()
        self._event, self._good = 0, 0
        self._step: int | None = None
        self._twin: Twin | None = None
        self._twin_at = 0.0

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
        for event in self._service.store.tasks.events(self._id, after=self._event):
            self._event = event.number
            if event.kind == "check" and not event.about.get("notice"):
                self._good += 1  # `task events` has each of them
                continue
            self._terminal.print(render_event(event), soft_wrap=True)
            if event.about.get("from") == "preflight" and self._good:
                self._terminal.print(label("task_checks_good", count=self._good), style="dim", soft_wrap=True)
                self._good = 0

    def _compare(self, *, at_once: bool = False) -> None:
        if not at_once and time.monotonic() < self._twin_at:
            return
        begin = time.monotonic()
        self._twin = read_comparison(self._service, self._id) or self._twin
        self._twin_at = time.monotonic() + max(TWIN_S, 5 * (time.monotonic() - begin))

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
        if self._twin is not None and self._twin.step.measured_s is not None:
            pieces.append(build_comparison_table(self._twin))
            pieces += [Text(line, style="yellow") for line in list_drift_messages(self._twin)]
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
    filled = min(BAR, BAR * done // max(1, steps))
    line = Text()
    line.append("━" * filled, style="green")
    line.append("─" * (BAR - filled), style="dim")
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


MOST_NAMED = 6  # Nodes that are named one by one


def build_comparison_table(twin: Twin) -> Any:
    """A table: the step and its parts, predicted and measured."""
    columns = [("step_part", "left"), ("watch_predicted", "right"), ("watch_measured", "right")]
    columns += [("watch_difference", "right"), ("watch_range", "right"), ("watch_verdict", "left")]
    rows = build_table(label("watch_title", window=twin.window), columns)
    for part in (twin.step, *twin.parts):
        if part.predicted_s or part.measured_s:
            rows.add_row(*_list_part_cells(part), style="bold" if part is twin.step else "")
    expected = twin.tokens_per_s_predicted
    rows.add_row(label("tokens_s"), format_digits(expected), *_format_measured(twin.tokens_per_s, expected))
    return rows


def _list_part_cells(part: TwinPart) -> list[str]:
    verdict = "" if part.inside is None else label("watch_inside" if part.inside else "watch_outside")
    span = f"{format_digits(part.low_s, 3)} - {format_digits(part.high_s, 3)}"
    measured = _format_measured(part.measured_s, part.predicted_s)
    return [label(f"watch_{part.name}"), format_digits(part.predicted_s, 3), *measured, span, verdict]


def _format_measured(measured: float | None, predicted: float) -> list[str]:
    """What was measured, and how far off: in percent, or how many times as much."""
    if measured is None:
        return ["-", "-"]
    if not predicted:
        return [format_digits(measured, 3), "-"]
    ratio = measured / predicted
    return [
        format_digits(measured, 3),
        f"{format_signed(100 * (ratio - 1), 3)} %" if ratio < MANY else f"{format_digits(ratio, 3)}x",
    ]


def list_drift_messages(twin: Twin) -> list[str]:
    """What has drifted, whether to plan anew, and what to know of the comparison, in words."""
    drift_notices = [drift.notice for drift in twin.drifts]
    drift_notices += [twin.replan.notice] if twin.replan is not None else []
    return [notice["message"] for notice in (*drift_notices, *twin.notices)]


def read_comparison(service: Service, id: str) -> Twin | None:
    """The run beside its prediction, in words; None: there is nothing yet, or a machine does not answer."""
    from crosszone.run.monitor import worded

    try:
        return worded(service.twin(id), get_language())
    except CrossZoneError:
        return None
