"""A prediction as sections: the answer first, then what it rests on, then tables and notices.

`width` is that of the terminal in columns; None: a file, which has room for everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from crosszone.predict.assumptions import format_switch, name_assumption
from crosszone.text.figures import format_amount, format_digits, format_percent, format_signed
from crosszone.views.answer_text import SMALL, AnswerText
from crosszone.views.document import Block, Fact, Facts, Mark, Paragraph, Remark, Remarks, Section, Table

if TYPE_CHECKING:
    from crosszone.analyse.communication import TrafficLine
    from crosszone.predict.answer import PredictionAnswer
    from crosszone.predict.assumptions import Assumption
    from crosszone.predict.prediction import Memory, NearestRun, Prediction, StageMemory, Traffic

VERDICT_MARKS: dict[str, Mark] = {"yes": "", "tight": "strong", "no": "bad"}
WIDE = 110  # Columns of a terminal that has room for every part of the memory
# Columns of the memory table in a narrow terminal; all else is `other`.
NARROW = {"states": ("weights", "gradients", "optimizer"), "activations": ("activations",), "logits": ("logits",)}
NEAREST_WIDE = 150  # Columns of a terminal that has room for what nearest runs differ in
MOST_DIFFERENCES = 4  # Differences of a nearest run that are named
MOST_ROWS, MOST_STAGES = 60, 16  # Rows of traffic and of memory that a terminal shows; --json has all
LARGE_GIB = 100  # From here on decimals only take room


def build_prediction_sections(answer: PredictionAnswer, text: AnswerText, width: int | None) -> list[Section]:
    """All that is known of a prediction."""
    prediction = answer.prediction
    basis = "\n".join(text.describe_basis(prediction, answer.predictor))
    facts = (*list_answer_facts(prediction, text), text.build_fact("answer_basis", basis))
    sections = [
        build_head_section(prediction, text, facts),
        build_breakdown_section(prediction, text),
        build_memory_section(prediction.memory_gib, text, width),
    ]
    if prediction.communication:
        sections.append(_build_traffic_section(prediction.communication, text))
    sections += build_assumption_sections(prediction, text)
    sections += build_nearest_sections(prediction, text, width)
    return [*sections, Section(blocks=(text.list_remarks(prediction.warnings),))]


def build_head_section(prediction: Prediction, text: AnswerText, facts: Sequence[Fact]) -> Section:
    """What is predicted, how it is split, and the figures that matter most."""
    split = Paragraph(text=text.describe_split(prediction), mark="faint", wraps=True)
    return Section(title=prediction.name, blocks=(split, Facts(facts=tuple(facts))))


def list_answer_facts(prediction: Prediction, text: AnswerText) -> list[Fact]:
    """The figures that matter most: time, speed, memory, length, price, energy and what holds it up."""
    step, memory, run = prediction.step_time_s, prediction.memory_gib, prediction.run
    return [
        text.build_fact("answer_step", text.format_range(step, "s"), mark="strong"),
        text.build_fact("answer_speed", text.describe_speed(prediction)),
        text.build_fact("answer_memory", text.describe_memory(memory), mark=VERDICT_MARKS[memory.verdict]),
        text.build_fact("answer_run", text.describe_run(run)),
        text.build_fact("answer_cost", text.describe_cost(run)),
        text.build_fact("answer_energy", text.describe_energy(run)),
        text.build_fact("answer_bottleneck", text.describe_bottleneck(prediction)),
    ]


def build_breakdown_section(prediction: Prediction, text: AnswerText) -> Section:
    """Parts of the step, largest first; small ones in one row; they add up to the step."""
    step_s = prediction.step_time_s.expected
    ordered = sorted(prediction.breakdown_s.items(), key=lambda item: -item[1])
    large = [(name, part_s) for name, part_s in ordered if abs(part_s) >= SMALL * step_s]
    small = [part_s for name, part_s in ordered if part_s and (name, part_s) not in large]
    rows = [
        (text.label(f"step_{name}"), format_digits(part_s), format_percent(part_s / step_s)) for name, part_s in large
    ]
    if small:
        small_s = sum(small)
        name = text.label("small_parts", count=len(small))
        rows.append((name, format_digits(small_s, 2), format_percent(small_s / step_s)))
    total = (text.label("total"), format_digits(step_s), format_percent(1.0))
    columns = "step_part >time_s >share_pct"
    return Section(title=text.label("breakdown_title"), blocks=(text.build_table(columns, rows, total=[total]),))


def build_memory_section(memory: Memory, text: AnswerText, width: int | None) -> Section:
    """A row for each run of equal stages. Parts that no stage has are left out; a narrow terminal sums some up."""
    stages, wide = memory.stages, width is None or width >= WIDE
    parts = [part for part in stages[0].parts if any(stage.parts[part] for stage in stages)]
    parts_of = {part: [part] for part in parts}
    if not wide:
        parts_of = {name: [part for part in parts if part in NARROW[name]] for name in NARROW}
        parts_of["other"] = [part for part in parts if not any(part in inner for inner in NARROW.values())]
        parts_of = {name: inner for name, inner in parts_of.items() if inner}
    is_mixed, has_host = len({stage.gpu for stage in stages}) > 1, any(stage.host for stage in stages)
    has_layers = wide or not is_mixed
    columns = "stage"
    columns += " gpu" if is_mixed else ""
    columns += " >layers" if has_layers else ""
    columns += "".join(f" >mem_{name}" for name in parts_of) + " >total >mem_limit"
    columns += " >mem_host" if has_host else ""
    columns += " peak_at" if wide else ""
    rows: list[tuple[str, ...]] = []
    over = []
    # a pipeline of 64 stages has three or four kinds of them
    groups = _group_equal_stages(stages)
    for group in groups if width is None else select_groups(groups, memory.worst_stage):
        if not group:
            rows.append(("...", *[""] * (len(columns.split()) - 1)))
            continue
        stage = group[0]
        name = str(stage.stage) if len(group) == 1 else f"{stage.stage} - {group[-1].stage}"
        worst = any(member.stage == memory.worst_stage for member in group)
        cells = [name + (" *" if worst else ""), *([stage.gpu] if is_mixed else [])]
        cells += [format_amount(stage.layers)] if has_layers else []
        cells += [_format_gib(sum(stage.parts[part] for part in inner)) for inner in parts_of.values()]
        cells += [_format_gib(stage.total), _format_gib(stage.limit), *([_format_gib(stage.host)] if has_host else [])]
        cells += [text.label(f"peak_{stage.peak_at}")] if wide else []
        if stage.total > stage.limit:
            over.append(len(rows))
        rows.append(tuple(cells))
    table = text.build_table(columns, rows, caption=text.label("memory_caption"), bad_rows=over)
    return Section(title=text.label("memory_title"), blocks=(table,))


def _group_equal_stages(stages: Sequence[StageMemory]) -> list[list[StageMemory]]:
    """Stages that follow each other and show the same cells."""

    def list_cells(stage: StageMemory) -> tuple[object, ...]:
        return (
            stage.gpu,
            stage.layers,
            stage.peak_at,
            # as the cells are rounded: stages that differ in the third digit are one row
            *(f"{value:.2f}" for value in (*stage.parts.values(), stage.host)),
        )

    return [list(group) for _, group in groupby(stages, key=list_cells)]


def select_groups(groups: list[list[StageMemory]], worst: int) -> list[list[StageMemory]]:
    """The first, the last and the fullest stages where there are many; an empty list stands for those between."""
    if len(groups) <= MOST_STAGES:
        return groups
    half = MOST_STAGES // 2
    near = {number for number, group in enumerate(groups) if any(stage.stage == worst for stage in group)}
    numbers = sorted({*range(half), *near, *range(len(groups) - half, len(groups))})
    selected: list[list[StageMemory]] = []
    for number, before in zip(numbers, [-1, *numbers], strict=False):
        selected += [[]] if number > before + 1 else []
        selected.append(groups[number])
    return selected


def _format_gib(gib: float) -> str:
    return f"{gib:.2f}" if gib < LARGE_GIB else f"{gib:,.0f}"


def build_traffic_table(
    traffic: Sequence[Traffic | TrafficLine], text: AnswerText, *, shares: Sequence[float] = (), **about: Any
) -> Table:
    """Bytes and time by kind and link, a line each; with `shares`, the part that each has of all bytes."""
    columns = "traffic_kind traffic_link >traffic_gb"
    columns += " >share_pct" if shares else ""
    columns += " >traffic_messages >traffic_busy >traffic_exposed"
    rows = [
        (
            text.label(f"kind_{line.kind}"),
            text.name_link(line.link),
            format_digits(line.bytes_per_step / 1e9),
            *([format_percent(shares[number])] if shares else []),
            *(format_digits(value) for value in (line.messages, line.busy_s, line.exposed_s)),
        )
        for number, line in enumerate(traffic)
    ]
    return text.build_table(columns, rows, **about)


def build_nearest_sections(prediction: Prediction, text: AnswerText, width: int | None) -> list[Section]:
    """Measured runs that resemble the prediction, with our error on each, and the best measured utilisation."""
    if not prediction.nearest_runs:
        return []
    wide = width is None or width >= NEAREST_WIDE
    columns = "nearest_run nearest_model nearest_gpus nearest_strategy nearest_differs" if wide else "nearest_run"
    columns += " >step_s >nearest_mfu >nearest_error >nearest_distance"
    rows = []
    for run in prediction.nearest_runs:
        gpus = f"{format_amount(run.gpus)} {run.gpu}"
        about = [run.id, run.model, gpus, run.strategy, _join_differences(run, text)]
        if not wide:
            differs = text.label("nearest_differs_line", names=about.pop())
            about = ["\n".join([run.id, text.join([run.model, gpus]), run.strategy, differs])]
        numbers = [format_digits(run.step_time_s), format_percent(run.mfu), format_signed(run.error_pct, 3)]
        rows.append((*about, *numbers, f"{run.distance:.1f}"))
    uncut = range(len(rows[0]) - 4, len(rows[0]))
    table = text.build_table(columns, rows, caption=text.label("nearest_caption"), uncut=uncut)
    best = Paragraph(text=describe_best_utilisation(prediction, text), wraps=True)
    return [Section(title=text.label("nearest_title"), blocks=(table, best))]


def _join_differences(run: NearestRun, text: AnswerText) -> str:
    """The largest differences; the JSON of the same answer has all."""
    return text.join(text.label(f"differs_{name}") for name in run.differs[:MOST_DIFFERENCES]) or text.label(
        "nearest_same"
    )


def describe_best_utilisation(prediction: Prediction, text: AnswerText) -> str:
    """The highest MFU that was measured on such GPUs, beside the predicted one."""
    best = prediction.best_utilisation
    if best is None:
        return text.label("nearest_best_none")
    return text.label(
        "nearest_best",
        gpu=best.gpu,
        bits=best.bits,
        best=format_percent(best.mfu),
        model=best.model,
        run=best.id,
        mfu=format_percent(prediction.mfu.expected),
    )


def build_assumption_sections(prediction: Prediction, text: AnswerText) -> list[Section]:
    """The software's release, every switch with what other values would change, and what widens the range most."""
    basis = prediction.basis
    if not basis.assumptions:
        return []
    key = "assumptions_release_stated" if basis.release_gpu is None else "assumptions_release_assumed"
    release = text.build_line(key, release=basis.release_month, gpu=basis.release_gpu, wraps=True)
    facts = tuple(
        Fact(heading=name_assumption(assumption, text.language), text=_describe_taken(assumption, text))
        for assumption in basis.assumptions
    )
    sentences = tuple(Remark(text=assumption.text) for assumption in prediction.assumptions)
    blocks: tuple[Block, ...] = (release, Facts(facts=facts), *((Remarks(remarks=sentences),) if sentences else ()))
    return [Section(title=text.label("assumptions_title"), blocks=blocks)]


def _describe_taken(assumption: Assumption, text: AnswerText) -> str:
    """The value with its origin, and the change of the step by each other one."""
    value = format_switch(assumption.value, text.language)
    origin = text.label(f"assumption_{assumption.origin}")
    others = text.join(
        text.label(
            "assumption_change",
            value=format_switch(alternative.value, text.language),
            change=format_signed(alternative.change_pct, 2),
        )
        for alternative in assumption.alternatives
    )
    key = "assumption_line_others" if others else "assumption_line"
    return text.label(key, value=value, origin=origin, others=others)


def _build_traffic_section(traffic: Sequence[Traffic], text: AnswerText) -> Section:
    table = build_traffic_table(traffic, text, caption=text.label("traffic_caption"), terminal_rows=MOST_ROWS)
    return Section(title=text.label("traffic_title"), blocks=(table,))
