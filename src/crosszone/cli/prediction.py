"""A prediction in the terminal: the answer first, then what it rests on, then tables and notices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from crosszone.cli.output import Line, build_table, get_language, label, open_console, print_lines, print_notices
from crosszone.text.figures import format_amount, format_digits, format_percent
from crosszone.views.words import SMALL, AnswerText

if TYPE_CHECKING:
    from crosszone.predict.answer import PredictionAnswer
    from crosszone.predict.prediction import Memory, Prediction, StageMemory, Traffic

WIDE = 110  # Columns of a terminal that has room for every part of the memory
# Columns of the memory table in a narrow terminal; all else is `other`.
NARROW = {"states": ("weights", "gradients", "optimizer"), "activations": ("activations",), "logits": ("logits",)}
MOST_ROWS, MOST_STAGES = 60, 16  # Rows of traffic and of memory shown in the terminal; --json has all


def print_prediction(answer: PredictionAnswer) -> None:
    """All of it, in the language of this run."""
    prediction = answer.prediction
    terminal = open_console()
    terminal.print(prediction.name, style="bold")
    terminal.print(format_split(prediction), style="dim")
    print_lines(*list_answer_lines(prediction), (label("answer_basis"), _describe_basis(answer), ""))
    terminal.print(_build_breakdown_table(prediction))
    terminal.print(_build_memory_table(prediction.memory_gib, terminal.width >= WIDE))
    if prediction.communication:
        terminal.print(_build_traffic_table(prediction.communication))
        hidden = len(prediction.communication) - MOST_ROWS
        if hidden > 0:
            terminal.print(label("rows_more", count=format_amount(hidden)))
    print_notices(prediction.warnings)


def list_answer_lines(prediction: Prediction) -> list[Line]:
    """The figures that matter most: time, speed, memory, length, price, energy and what holds it up."""
    words = AnswerText(get_language())
    return [
        (label("answer_step"), words.format_range(prediction.step_time_s, "s"), "bold"),
        (label("answer_speed"), words.describe_speed(prediction), ""),
        (
            label("answer_memory"),
            words.describe_memory(prediction.memory_gib),
            "" if prediction.memory_gib.fits else "bold red",
        ),
        (label("answer_run"), words.describe_run(prediction.run), ""),
        (label("answer_cost"), words.describe_cost(prediction.run), ""),
        (label("answer_energy"), words.describe_energy(prediction.run), ""),
        (label("answer_bottleneck"), words.describe_bottleneck(prediction), ""),
    ]


def format_split(prediction: Prediction) -> str:
    """GPUs and degrees, without those that do nothing."""
    return AnswerText(get_language()).describe_split(prediction)


def _describe_basis(answer: PredictionAnswer) -> str:
    """Framework, stack, where each GPU's coefficients come from, and what the range says."""
    return "\n".join(AnswerText(get_language()).describe_basis(answer.prediction, answer.predictor))


def _build_breakdown_table(prediction: Prediction) -> Any:
    """Parts of the step, largest first; small ones in one row."""
    total = prediction.step_time_s.expected
    rows = build_table(label("breakdown_title"), [("step_part", "left"), ("time_s", "right"), ("share_pct", "right")])
    ordered = sorted(prediction.breakdown_s.items(), key=lambda item: -item[1])
    small = [(name, value) for name, value in ordered if abs(value) < SMALL * total]
    for name, value in ordered:
        if (name, value) not in small:
            rows.add_row(label(f"step_{name}"), format_digits(value), format_percent(value / total))
    small_values = [value for _, value in small if value]
    if small_values:
        small_s = sum(small_values)
        rows.add_row(
            label("small_parts", count=len(small_values)), format_digits(small_s, 2), format_percent(small_s / total)
        )
    rows.add_section()
    rows.add_row(label("total"), format_digits(total), "100.0")
    return rows


def _group_equal_stages(stages: Sequence[StageMemory]) -> list[list[StageMemory]]:
    """Stages that follow each other and need the same."""

    def list_cells(stage: StageMemory) -> tuple[Any, ...]:
        return (
            stage.gpu,
            stage.layers,
            stage.peak_at,
            *(f"{value:.2f}" for value in (*stage.parts.values(), stage.host)),
        )

    return [list(group) for _, group in groupby(stages, key=list_cells)]


def _build_memory_table(memory: Memory, wide: bool) -> Any:
    """A row for each run of equal stages. Parts that no stage has are left out; a narrow terminal sums some up."""
    stages = memory.stages
    parts = [part for part in stages[0].parts if any(stage.parts[part] for stage in stages)]
    columns = {part: [part] for part in parts}
    if not wide:
        columns = {name: [part for part in parts if part in NARROW[name]] for name in NARROW}
        columns["other"] = [part for part in parts if not any(part in inner for inner in NARROW.values())]
        columns = {name: inner for name, inner in columns.items() if inner}
    kinds, hosted = len({stage.gpu for stage in stages}) > 1, any(stage.host for stage in stages)
    headings = [("stage", "left"), *([("gpu", "left")] if kinds else [])]
    headings += [("layers", "right")] if wide or not kinds else []
    headings += [(f"mem_{name}", "right") for name in columns]
    headings += [("total", "right"), ("mem_limit", "right"), *([("mem_host", "right")] if hosted else [])]
    headings += [("peak_at", "left")] if wide else []
    rows = build_table(label("memory_title"), headings, caption=label("memory_caption"))
    for group in _select_groups(_group_equal_stages(stages), memory.worst_stage):
        if not group:
            rows.add_row("...")
            continue
        stage = group[0]
        name = str(stage.stage) if len(group) == 1 else f"{stage.stage} - {group[-1].stage}"
        worst = any(member.stage == memory.worst_stage for member in group)
        cells = [name + (" *" if worst else ""), *([stage.gpu] if kinds else [])]
        cells += [format_amount(stage.layers)] if wide or not kinds else []
        cells += [_format_gib(sum(stage.parts[part] for part in inner)) for inner in columns.values()]
        cells += [_format_gib(stage.total), _format_gib(stage.limit), *([_format_gib(stage.host)] if hosted else [])]
        cells += [label(f"peak_{stage.peak_at}")] if wide else []
        rows.add_row(*cells, style="" if stage.total <= stage.limit else "red")
    return rows


def _select_groups(groups: list[list[StageMemory]], worst: int) -> list[list[StageMemory]]:
    """The first, the last and the fullest stages where there are many; an empty list stands for those between."""
    if len(groups) <= MOST_STAGES:
        return groups
    half = MOST_STAGES // 2
    near = {number for number, group in enumerate(groups) if any(stage.stage == worst for stage in group)}
    numbers = sorted({*range(half), *near, *range(len(groups) - half, len(groups))})
    visible: list[list[StageMemory]] = []
    for number, before in zip(numbers, [-1, *numbers], strict=False):
        visible += [[]] if number > before + 1 else []
        visible.append(groups[number])
    return visible


def _format_gib(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _build_traffic_table(traffic: Sequence[Traffic]) -> Any:
    columns = [
        ("traffic_kind", "left"),
        ("traffic_link", "left"),
        ("traffic_gb", "right"),
        ("traffic_messages", "right"),
        ("traffic_busy", "right"),
        ("traffic_exposed", "right"),
    ]
    rows = build_table(label("traffic_title"), columns, caption=label("traffic_caption"))
    for line in traffic[:MOST_ROWS]:
        link = line.link if " > " in line.link else label(f"link_{line.link}")
        size, messages = format_digits(line.bytes_per_step / 1e9), format_digits(line.messages)
        rows.add_row(
            label(f"kind_{line.kind}"), link, size, messages, format_digits(line.busy_s), format_digits(line.exposed_s)
        )
    return rows
