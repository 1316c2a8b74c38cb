"""Plans as sections: the best one first, then those after it, then why, and what was kept out.

`width` is that of the terminal in columns; None: a file, which has room for everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from crosszone.inputs.frameworks import load_frameworks
from crosszone.predict.nearest_runs import ABOVE_MEASURED_CODES
from crosszone.text.figures import format_amount, format_digits, format_percent, format_signed
from crosszone.views.answer_text import SMALL, AnswerText
from crosszone.views.document import Align, Block, Fact, Facts, Paragraph, Remark, Remarks, Section, Table
from crosszone.views.prediction import list_answer_facts

if TYPE_CHECKING:
    from crosszone.inputs.strategy import Strategy
    from crosszone.plan.comparison import Difference
    from crosszone.plan.crossover import Crossover
    from crosszone.plan.plan import Comparison, NoticeDict, Plan, Plans
    from crosszone.predict.prediction import Run

WIDE = 150  # Columns of a terminal that may have room for a column for each option of a plan
LEAST_PLAN = 22  # Columns a plan needs where all its options are in one cell
# Numbers left out where there is little room, the first ones first: one that is cut would be another number.
SPARE = ("usd_run", "usd_day", "gib", "tokens_s")
GAP = 3  # Columns between two columns of a table
MOST_ROWS = 20  # Families kept out, idle groups, links that a terminal shows; --json has all
# What a plan's line of degrees already says.
SPLIT = frozenset({"tp", "pp", "dp", "cp", "ep", "micro_batch", "interleave", "zero", "recompute"})


class Column(NamedTuple):
    """A column of the ranking: key of its heading, alignment, and what it says of a plan."""

    key: str
    align: Align
    cell: Callable[[Plan], str]


def build_plan_sections(answer: Plans, text: AnswerText, width: int | None, *, front: bool = False) -> list[Section]:
    """All of it; `front` adds what fewer GPUs cost."""
    best = (*answer.plans, *answer.local_updates)[0]
    facts = (*_list_best_facts(best, text), *list_answer_facts(best.prediction, text))
    sections = [Section(title=answer.name, blocks=(Facts(facts=facts),))]
    if answer.plans:
        title = text.label("plans_title", objective=text.label(f"objective_{answer.objective}"))
        ranking = build_ranking(answer.plans, answer.objective, text, width)
        sections.append(Section(title=title, blocks=(ranking,)))
    else:
        sections.append(Section(blocks=(text.build_line("plans_none"),)))
    sections += _build_sentences(text.label("reasons_title", rank=format_rank(best)), best.reasons, text)
    if answer.local_updates:
        ranking = build_ranking(answer.local_updates, answer.objective, text, width)
        sections.append(Section(title=text.label("local_title"), blocks=(ranking,)))
        if answer.plans:
            first = answer.local_updates[0]
            sections += _build_sentences(text.label("reasons_title", rank=format_rank(first)), first.reasons, text)
    sections += _build_sentences(text.label("idle_title"), [group.reason for group in best.idle], text)
    if front:
        sections.append(_build_front_section(answer, best, text))
    if answer.rejected:
        sections.append(Section(blocks=(build_rejected_table(answer, text),)))
    sections += _build_sentences(text.label("hints_title"), answer.hints, text)
    sections += _build_utilisation_sections(answer, text)
    end: list[Block] = [text.list_remarks(answer.warnings), Paragraph(text=_format_counts(answer, text))]
    end += [] if answer.complete else [text.build_line("plans_incomplete", mark="strong")]
    return [*sections, Section(blocks=tuple(end))]


def build_comparison_section(comparison: Comparison, best: Plan, other: Plan, text: AnswerText) -> Section:
    """What the step of another plan spends and saves against the best one, part by part."""
    blocks: list[Block] = [_build_waterfall(best, other, comparison, text)]
    facts = tuple(_list_other_differences(comparison, text))
    blocks += [Facts(facts=facts)] if facts else []
    chance = format_percent(comparison.chance_best_is_faster)
    names = {"one": format_rank(best), "other": format_rank(other)}
    blocks.append(Paragraph(text=text.label("why_chance", chance=chance, **names)))
    return Section(title=text.label("why_title", **names), blocks=tuple(blocks))


def build_crossover_section(flip: Crossover | None, text: AnswerText) -> Section:
    """At which rates between zones local updates become slower or faster than synchronous training."""
    if flip is None:
        return Section(blocks=(text.build_line("crossover_missing"),))
    if flip.factor is None:
        winner = text.label("crossover_equal") if flip.below is None else text.label(f"crossover_{flip.below}")
        return Section(blocks=(text.build_line("crossover_never", winner=winner),))
    below, above = (text.label(f"crossover_{winner}") for winner in (flip.below, flip.above))
    factor = format_digits(flip.factor, 3)
    blocks: list[Block] = [text.build_line("crossover_at", factor=factor, below=below, above=above)]
    if flip.more:
        factors = text.join(format_digits(factor, 3) for factor in flip.more)
        blocks.append(text.build_line("crossover_more", factors=factors))
    columns = "traffic_link >crossover_now >crossover_then"
    rows = [(link, format_digits(gbps / flip.factor), format_digits(gbps)) for link, gbps in flip.gbps.items()]
    blocks.append(text.build_table(columns, rows, title=text.label("crossover_title"), terminal_rows=MOST_ROWS))
    return Section(blocks=tuple(blocks))


def _list_best_facts(best: Plan, text: AnswerText) -> Iterator[Fact]:
    """What to run, and where it lies."""
    idle, used = sum(group.count for group in best.idle), best.prediction.gpus
    split = _get_framework_title(best) + text.label("semicolon") + text.describe_split(best.prediction)
    heading = text.label("plan_best" if best.kind == "synchronous" else "plan_best_local")
    yield Fact(heading=heading, text=split, mark="strong")
    counts = {"used": format_amount(used), "total": format_amount(used + idle), "idle": format_amount(idle)}
    yield text.build_fact("gpus", text.label("plan_gpus", **counts))
    places = _describe_zones(best, text) + text.label("semicolon") + _describe_crossing(best, text)
    yield text.build_fact("plan_where", places)
    options = list(_list_options(best.strategy))
    if options:
        yield text.build_fact("plan_options", text.join(options))


def _get_framework_title(plan: Plan) -> str:
    return load_frameworks()[plan.framework].title


def format_rank(plan: Plan) -> str:
    """`3`, or `L1` of plans with local updates."""
    return str(plan.rank) if plan.kind == "synchronous" else f"L{plan.rank}"


def _describe_zones(plan: Plan, text: AnswerText) -> str:
    """GPUs of every zone in use, in the plan's own order."""
    counts = dict.fromkeys(plan.zones, 0)
    for block in plan.placement.blocks:
        counts[block.zone] = counts.get(block.zone, 0) + block.count
    return text.join(text.label("plan_zone", zone=zone, gpus=format_amount(count)) for zone, count in counts.items())


def _describe_crossing(plan: Plan, text: AnswerText) -> str:
    """What goes from zone to zone, in words."""
    local = plan.strategy.local_update
    if local is not None and plan.crossing != "none":
        return text.label("crosses_local", steps=format_amount(local.steps))
    return text.label(f"crosses_{plan.crossing}")


def _list_options(strategy: Strategy) -> Iterator[str]:
    """What else is not as it would be by itself, by its key in a file."""
    # 1F1B is the default schedule of a pipeline
    for key, field in type(strategy).model_fields.items():
        value = getattr(strategy, key)
        if key in SPLIT or value in (None, field.default) or (key, value) == ("schedule", "1f1b"):
            continue
        if key in ("communication", "local_update"):
            for inner, inner_field in type(value).model_fields.items():
                if getattr(value, inner) != inner_field.default:
                    yield f"{key}.{inner} {format_value(getattr(value, inner))}"
        else:
            yield f"{key} {format_value(value)}"


def format_value(value: Any) -> str:
    """A value as a file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, list | tuple) else str(value)


def _format_degrees(s: Strategy) -> str:
    """Degrees on one line; context, experts and virtual stages only where there are any."""
    more = [f"{name} {degree}" for name, degree in (("cp", s.cp), ("ep", s.ep), ("v", s.interleave)) if degree > 1]
    return " ".join([f"tp {s.tp} pp {s.pp} dp {s.dp}", *more])


def _format_schedule(s: Strategy) -> str:
    return "-" if s.pp == 1 or s.pipeline_schedule == "1f1b" else s.pipeline_schedule


def _format_crossing(plan: Plan, text: AnswerText) -> str:
    """What crosses, and the zones in order."""
    averages = plan.strategy.local_update is not None and plan.crossing != "none"
    return text.label(f"crossing_{'local' if averages else plan.crossing}", zones=" > ".join(plan.zones))


def _format_compact(plan: Plan, text: AnswerText) -> str:
    """A whole plan in one cell, for a terminal without room for columns."""
    s = plan.strategy
    words = [text.label("plan_micro_batch", value=s.micro_batch)]
    words += [] if _format_schedule(s) == "-" else [_format_schedule(s)]
    words += [f"zero {s.zero}"] if s.zero else []
    words += [] if s.recompute == "none" else [f"recompute {s.recompute}"]
    if s.local_update:
        counts = {"steps": format_amount(s.local_update.steps), "parts": format_amount(s.local_update.fragments)}
        words.append(text.label("plan_every", **counts))
    return "\n".join([_get_framework_title(plan), _format_degrees(s), text.join(words), _format_crossing(plan, text)])


def build_ranking(plans: Sequence[Plan], objective: str, text: AnswerText, width: int | None) -> Table:
    """A row for each plan; a terminal that is too narrow has all options in one cell, and fewer numbers."""
    rank = Column("rank", "left", format_rank)
    columns = [
        rank,
        *_list_split_columns(plans, text),
        *_list_number_columns(plans, objective, lambda plan: _format_gib_of_limit(plan, text)),
    ]
    # a folded number cannot be compared with the one below it, so the options give way first
    if width is not None and (width < WIDE or _measure_width(columns, plans, text) > width):
        compact = Column("plan", "left", lambda plan: _format_compact(plan, text))
        numbers = _list_number_columns(plans, objective, lambda plan: _format_gib(plan, text))
        room = width - _measure_width([rank], plans, text) - LEAST_PLAN - GAP
        columns = [rank, compact, *_drop_spare_columns(numbers, plans, text, room)]
    return text.build_table(
        " ".join(f">{column.key}" if column.align == "right" else column.key for column in columns),
        ([column.cell(plan) for column in columns] for plan in plans),
        caption=_build_caption(columns, text),
        uncut=(place for place, column in enumerate(columns) if column.align == "right"),
    )


def _list_number_columns(plans: Sequence[Plan], objective: str, format_gib: Callable[[Plan], str]) -> list[Column]:
    """What to expect of a plan, and the chance that the best one beats it."""
    columns = [
        Column("step_s", "right", lambda plan: format_digits(plan.prediction.step_time_s.expected)),
        Column("tokens_s", "right", lambda plan: format_digits(plan.prediction.tokens_per_s.expected)),
        Column("gib", "right", format_gib),
        *_list_price_columns(plans),
        *_list_objective_columns(objective),
    ]
    has_chances = any(plan.chance is not None for plan in plans)
    return [*columns, Column("chance_pct", "right", _format_chance)] if has_chances else columns


def _measure_width(columns: Sequence[Column], plans: Sequence[Plan], text: AnswerText) -> int:
    """Columns of the terminal that a table takes when nothing wraps."""
    from rich.cells import cell_len

    cells = ([text.label(column.key), *map(column.cell, plans)] for column in columns)
    return sum(GAP + max(map(cell_len, column_cells)) for column_cells in cells)


def _drop_spare_columns(columns: Sequence[Column], plans: Sequence[Plan], text: AnswerText, width: int) -> list[Column]:
    """Without as many spare numbers as it takes to fit."""
    fitting = list(columns)
    for key in SPARE:
        if _measure_width(fitting, plans, text) > width:
            fitting = [column for column in fitting if column.key != key]
    return fitting


def _list_split_columns(plans: Sequence[Plan], text: AnswerText) -> list[Column]:
    """A column for each option of a plan; those that no plan uses are left out."""
    columns = [
        Column("framework", "left", _get_framework_title),
        Column("degrees", "left", lambda plan: _format_degrees(plan.strategy)),
        Column("micro_batch", "right", lambda plan: format_amount(plan.strategy.micro_batch)),
    ]
    if any(_format_schedule(plan.strategy) != "-" for plan in plans):
        columns.append(Column("schedule", "left", lambda plan: _format_schedule(plan.strategy)))
    columns.append(Column("zero", "right", lambda plan: format_amount(plan.strategy.zero)))
    columns.append(Column("recompute", "left", lambda plan: plan.strategy.recompute))
    if any(plan.strategy.local_update for plan in plans):
        columns.append(Column("every_steps", "right", _format_sync_interval))
    columns.append(Column("where", "left", lambda plan: _format_crossing(plan, text)))
    return columns


def _format_sync_interval(plan: Plan) -> str:
    """Steps between two averages, and parts of the weights that are averaged one after the other."""
    local = plan.strategy.local_update
    if local is None:
        return "-"
    return f"{format_amount(local.steps)} / {format_amount(local.fragments)}"


def _format_gib(plan: Plan, text: AnswerText) -> str:
    """The peak; a plan that may not fit says so."""
    memory = plan.prediction.memory_gib
    tight = f" {text.label('fits_tight')}" if memory.verdict == "tight" else ""
    return f"{memory.peak.expected:.1f}{tight}"


def _format_gib_of_limit(plan: Plan, text: AnswerText) -> str:
    memory = plan.prediction.memory_gib
    tight = f" {text.label('fits_tight')}" if memory.verdict == "tight" else ""
    return f"{memory.peak.expected:.1f} / {format_amount(memory.limit, 3)}{tight}"


def _list_price_columns(plans: Sequence[Plan]) -> list[Column]:
    """Price of the run where it is known, else of a day; nothing where no GPU has a price."""
    runs = [plan.prediction.run for plan in plans]
    if any(run.usd is not None for run in runs):
        return [Column("usd_run", "right", lambda plan: _format_usd_run(plan.prediction.run))]
    if any(run.usd_per_hour is not None for run in runs):
        return [Column("usd_day", "right", lambda plan: _format_usd_day(plan.prediction.run))]
    return []


def _format_usd_run(run: Run) -> str:
    return "-" if run.usd is None else format_digits(run.usd.expected)


def _format_usd_day(run: Run) -> str:
    return "-" if run.usd_per_hour is None else format_digits(24 * run.usd_per_hour)


def _list_objective_columns(objective: str) -> list[Column]:
    """What plans are ranked by, where no other column has it."""
    if objective == "time":
        return []
    sign = -1 if objective == "memory" else 1  # ranked by what is missing, shown as what is free
    return [Column(f"value_{objective}", "right", lambda plan: format_digits(sign * plan.value))]


def _format_chance(plan: Plan) -> str:
    return "-" if plan.chance is None else f"{100 * plan.chance:.0f}"


def _build_caption(columns: Sequence[Column], text: AnswerText) -> str:
    """What a heading is too short to say."""
    keys = {column.key for column in columns}
    return " ".join(text.label(f"caption_{key}") for key in ("chance_pct", "usd_day") if key in keys)


def _build_sentences(title: str, notices: Sequence[NoticeDict], text: AnswerText) -> list[Section]:
    """Sentences under a title, each with what to do about it; nothing where there are none."""
    if not notices:
        return []
    remarks = tuple(Remark(text=notice["message"], hint=notice["hint"]) for notice in notices)
    more = text.count_more(len(remarks), MOST_ROWS)
    return [Section(title=title, blocks=(Remarks(remarks=remarks, terminal_rows=MOST_ROWS, more=more),))]


def _build_utilisation_sections(answer: Plans, text: AnswerText) -> list[Section]:
    """Plans whose utilisation is above the best measured one, each with that run."""
    remarks = [
        {**notice, "message": text.label("utilisation_line", rank=format_rank(plan), message=notice["message"])}
        for plan in (*answer.plans, *answer.local_updates)
        for notice in plan.prediction.warnings
        if notice["code"] in ABOVE_MEASURED_CODES
    ]
    hint_counts = {remark["hint"]: number for number, remark in enumerate(remarks)}
    # plans mostly share what to do about it: said once, after the last of them
    sentences = [
        {**remark, "hint": remark["hint"] if hint_counts[remark["hint"]] == number else ""}
        for number, remark in enumerate(remarks)
    ]
    return _build_sentences(text.label("utilisation_title"), sentences, text)


def _build_front_section(answer: Plans, best: Plan, text: AnswerText) -> Section:
    """Plans that no other beats in both time and price."""
    if not answer.front:
        return Section(blocks=(text.build_line("front_none"),))
    steps = best.prediction.run.steps
    columns = ">gpus framework degrees >step_s >usd_step"
    columns += " >usd_steps" if steps else ""
    rows = []
    for point in answer.front:
        cells = [format_amount(point.gpus), load_frameworks()[point.framework].title, _format_degrees(point.strategy)]
        cells += [format_digits(point.step_s), format_digits(point.usd_per_step)]
        cells += [format_digits(point.usd_per_step * steps)] if steps else []
        rows.append(cells)
    table = text.build_table(columns, rows, caption=text.label("front_caption") if steps else "")
    return Section(title=text.label("front_title"), blocks=(table,))


def build_rejected_table(answer: Plans, text: AnswerText) -> Table:
    """Families of strategies that were kept out, and why."""
    columns = "family >count reason"
    rows = [
        (_name_family(rejection.family, text), format_amount(rejection.count), rejection.reason["message"])
        for rejection in answer.rejected
    ]
    return text.build_table(columns, rows, title=text.label("rejected_title"), terminal_rows=MOST_ROWS)


def _name_family(family: str, text: AnswerText) -> str:
    """What strategies have in common, in words where it is not a degree."""
    name, _, limit = family.partition(": ")
    if limit == "memory":
        return text.label("family_memory", framework=load_frameworks()[name].title)
    return text.label("family_bound") if family == "bound" else family


def _format_counts(answer: Plans, text: AnswerText) -> str:
    """How much was looked at, and how long it took."""
    return text.label(
        "plans_counts",
        evaluated=format_amount(answer.evaluated),
        scored=format_amount(answer.scored),
        feasible=format_amount(answer.feasible),
        simulated=format_amount(answer.simulated),
        seconds=format_digits(answer.seconds, 3),
    )


def _build_waterfall(best: Plan, other: Plan, difference: Difference, text: AnswerText) -> Table:
    """From one step to the other: what each part adds, and the step so far; small parts in one row."""
    columns = "step_part >why_s >why_so_far"
    so_far = best.prediction.step_time_s.expected
    large = [part for part in difference.parts if abs(part.seconds) >= SMALL * so_far]
    small = [part for part in difference.parts if part not in large]
    rows = [(text.label("why_plan", rank=format_rank(best)), "", format_digits(so_far))]
    for part in large:
        so_far += part.seconds
        rows.append((text.label(f"step_{part.name}"), format_signed(part.seconds), format_digits(so_far)))
    if small:
        small_s = sum(part.seconds for part in small)
        name = text.label("small_parts", count=len(small))
        rows.append((name, format_signed(small_s, 2), format_digits(so_far + small_s)))
    step_s = other.prediction.step_time_s.expected
    total = (text.label("why_plan", rank=format_rank(other)), format_signed(difference.step_s), format_digits(step_s))
    return text.build_table(columns, rows, total=[total])


def _list_other_differences(difference: Difference, text: AnswerText) -> Iterator[Fact]:
    """Memory, price, energy and bytes, each only where it differs and is known."""
    if difference.memory_gib:
        gib = text.label("why_gib", value=format_signed(difference.memory_gib))
        yield text.build_fact("answer_memory", gib)
    if difference.usd:
        yield text.build_fact("answer_cost", text.label("why_usd", value=format_signed(difference.usd)))
    if difference.kwh:
        yield text.build_fact("answer_energy", text.label("why_kwh", value=format_signed(difference.kwh)))
    for kind, size in difference.bytes_per_step.items():
        gb = text.label("why_gb", value=format_signed(size / 1e9))
        yield text.build_fact(f"link_{kind}", gb)
