"""A prediction in the terminal: the answer first, then what it rests on, then tables and notices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from crosszone.cli.output import Line, build_table, get_language, label, open_console, print_lines, print_notices
from crosszone.text.figures import format_amount, format_digits, format_percent
from crosszone.views.words import SMALL, Words

if TYPE_CHECKING:
    from crosszone.predict.answer import PredictionAnswer
    from crosszone.predict.prediction import Memory, Prediction, StageMemory, Traffic

WIDE = 110  # Columns of a terminal that has room for every part of the memory
# Columns of the memory table in a narrow terminal; all else is `other`.
NARROW = {"states": ("weights", "gradients", "optimizer"), "activations": ("activations",), "logits": ("logits",)}
MOST_ROWS, MOST_STAGES = 60, 16  # Rows of traffic and of memory shown in the terminal; --json has all


def print_prediction(answer: PredictionAnswer) -> None:
    """All of it, in the language of this run."""
    found = answer.prediction
    terminal = open_console()
    terminal.print(found.name, style="bold")
    terminal.print(split(found), style="dim")
    print_lines(*answer_lines(found), (label("answer_basis"), _basis(answer), ""))
    terminal.print(_breakdown_table(found))
    terminal.print(_memory_table(found.memory_gib, terminal.width >= WIDE))
    if found.communication:
        terminal.print(_traffic_table(found.communication))
        more = len(found.communication) - MOST_ROWS
        if more > 0:
            terminal.print(label("rows_more", count=format_amount(more)))
    print_notices(found.warnings)


def answer_lines(found: Prediction) -> list[Line]:
    """The figures that matter most: time, speed, memory, length, price, energy and what holds it up."""
    words = Words(get_language())
    return [
        (label("answer_step"), words.with_range(found.step_time_s, "s"), "bold"),
        (label("answer_speed"), words.speed(found), ""),
        (label("answer_memory"), words.memory(found.memory_gib), "" if found.memory_gib.fits else "bold red"),
        (label("answer_run"), words.run(found.run), ""),
        (label("answer_cost"), words.cost(found.run), ""),
        (label("answer_energy"), words.energy(found.run), ""),
        (label("answer_bottleneck"), words.bottleneck(found), ""),
    ]


def split(found: Prediction) -> str:
    """GPUs and degrees, without those that do nothing."""
    return Words(get_language()).split(found)


def _basis(answer: PredictionAnswer) -> str:
    """Framework, stack, where each GPU's coefficients come from, and what the range says."""
    return "\n".join(Words(get_language()).basis(answer.prediction, answer.predictor))


def _breakdown_table(found: Prediction) -> Any:
    """Parts of the step, largest first; small ones in one row."""
    total = found.step_time_s.expected
    rows = build_table(label("breakdown_title"), [("step_part", "left"), ("time_s", "right"), ("share_pct", "right")])
    ordered = sorted(found.breakdown_s.items(), key=lambda item: -item[1])
    small = [(name, value) for name, value in ordered if abs(value) < SMALL * total]
    for name, value in ordered:
        if (name, value) not in small:
            rows.add_row(label(f"step_{name}"), format_digits(value), format_percent(value / total))
    there = [value for _, value in small if value]
    if there:
        rest = sum(there)
        rows.add_row(label("small_parts", count=len(there)), format_digits(rest, 2), format_percent(rest / total))
    rows.add_section()
    rows.add_row(label("total"), format_digits(total), "100.0")
    return rows


def _alike(stages: Sequence[StageMemory]) -> list[list[StageMemory]]:
    """Stages that follow each other and need the same."""

    def seen(one: StageMemory) -> tuple[Any, ...]:
        return (one.gpu, one.layers, one.peak_at, *(f"{value:.2f}" for value in (*one.parts.values(), one.host)))

    return [list(group) for _, group in groupby(stages, key=seen)]


def _memory_table(memory: Memory, wide: bool) -> Any:
    """A row for each run of equal stages. Parts that no stage has are left out; a narrow terminal sums some up."""
    stages = memory.stages
    parts = [part for part in stages[0].parts if any(one.parts[part] for one in stages)]
    columns = {part: [part] for part in parts}
    if not wide:
        columns = {name: [part for part in parts if part in NARROW[name]] for name in NARROW}
        columns["other"] = [part for part in parts if not any(part in inner for inner in NARROW.values())]
        columns = {name: inner for name, inner in columns.items() if inner}
    kinds, hosted = len({one.gpu for one in stages}) > 1, any(one.host for one in stages)
    headings = [("stage", "left"), *([("gpu", "left")] if kinds else [])]
    headings += [("layers", "right")] if wide or not kinds else []
    headings += [(f"mem_{name}", "right") for name in columns]
    headings += [("total", "right"), ("mem_limit", "right"), *([("mem_host", "right")] if hosted else [])]
    headings += [("peak_at", "left")] if wide else []
    rows = build_table(label("memory_title"), headings, caption=label("memory_caption"))
    for group in _shown(_alike(stages), memory.worst_stage):
        if not group:
            rows.add_row("...")
            continue
        one = group[0]
        name = str(one.stage) if len(group) == 1 else f"{one.stage} - {group[-1].stage}"
        worst = any(stage.stage == memory.worst_stage for stage in group)
        cells = [name + (" *" if worst else ""), *([one.gpu] if kinds else [])]
        cells += [format_amount(one.layers)] if wide or not kinds else []
        cells += [_gib(sum(one.parts[part] for part in inner)) for inner in columns.values()]
        cells += [_gib(one.total), _gib(one.limit), *([_gib(one.host)] if hosted else [])]
        cells += [label(f"peak_{one.peak_at}")] if wide else []
        rows.add_row(*cells, style="" if one.total <= one.limit else "red")
    return rows


def _shown(groups: list[list[StageMemory]], worst: int) -> list[list[StageMemory]]:
    """The first, the last and the fullest stages where there are many; an empty list stands for those between."""
    if len(groups) <= MOST_STAGES:
        return groups
    half = MOST_STAGES // 2
    near = {number for number, group in enumerate(groups) if any(one.stage == worst for one in group)}
    kept = sorted({*range(half), *near, *range(len(groups) - half, len(groups))})
    shown: list[list[StageMemory]] = []
    for number, before in zip(kept, [-1, *kept], strict=False):
        shown += [[]] if number > before + 1 else []
        shown.append(groups[number])
    return shown


def _gib(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _traffic_table(traffic: Sequence[Traffic]) -> Any:
    columns = [
        ("traffic_kind", "left"),
        ("traffic_link", "left"),
        ("traffic_gb", "right"),
        ("traffic_messages", "right"),
        ("traffic_busy", "right"),
        ("traffic_exposed", "right"),
    ]
    rows = build_table(label("traffic_title"), columns, caption=label("traffic_caption"))
    for one in traffic[:MOST_ROWS]:
        link = one.link if " > " in one.link else label(f"link_{one.link}")
        size, messages = format_digits(one.bytes_per_step / 1e9), format_digits(one.messages)
        rows.add_row(
            label(f"kind_{one.kind}"), link, size, messages, format_digits(one.busy_s), format_digits(one.exposed_s)
        )
    return rows
