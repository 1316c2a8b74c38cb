"""Plans in the terminal: the best one first, then those after it, then why, and what was kept out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from crosszone.cli.output import build_table, join_words, label, open_console, print_lines, print_notices
from crosszone.cli.prediction import format_split, list_answer_lines
from crosszone.text.figures import format_amount, format_digits, format_percent, format_signed
from crosszone.views.words import SMALL

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
MOST_ROWS = 20  # Families kept out, idle groups, links shown in the terminal; --json has all
# What a plan's line of degrees already says.
SPLIT = frozenset({"tp", "pp", "dp", "cp", "ep", "micro_batch", "interleave", "zero", "recompute"})


class Column(NamedTuple):
    """A column of the ranking: key of its heading, alignment, and what it says of a plan."""

    key: str
    align: str
    cell: Callable[[Plan], str]


def print_plans(answer: Plans, *, front: bool = False) -> None:
    """All of it, in the language of this run."""
    terminal = open_console()
    terminal.print(answer.name, style="bold")
    best = (*answer.plans, *answer.local_updates)[0]
    print_lines(*_list_best_lines(best), *list_answer_lines(best.prediction))
    if not answer.plans:
        terminal.print(label("plans_none"), soft_wrap=True)
    else:
        title = label("plans_title", objective=label(f"objective_{answer.objective}"))
        terminal.print(_build_ranking(title, answer.plans, answer.objective, terminal.width))
    _print_sentences(label("reasons_title", rank=_format_rank(best)), best.reasons)
    if answer.local_updates:
        terminal.print(_build_ranking(label("local_title"), answer.local_updates, answer.objective, terminal.width))
        if answer.plans:
            _print_sentences(
                label("reasons_title", rank=_format_rank(answer.local_updates[0])), answer.local_updates[0].reasons
            )
    _print_sentences(label("idle_title"), [idle.reason for idle in best.idle])
    if front:
        _print_front(answer, best)
    _print_rejected(answer)
    _print_sentences(label("hints_title"), answer.hints)
    print_notices(answer.warnings)
    terminal.print(_format_counts(answer), soft_wrap=True)
    if not answer.complete:
        terminal.print(label("plans_incomplete"), style="bold", soft_wrap=True)


def print_why(comparison: Comparison, best: Plan, other: Plan) -> None:
    """What the step of another plan spends and saves beside the best one's, part by part."""
    terminal = open_console()
    terminal.print(_build_waterfall(best, other, comparison))
    lines = list(_list_other_differences(comparison))
    if lines:
        print_lines(*lines)
    chance = format_percent(comparison.chance_best_is_faster)
    terminal.print(
        label("why_chance", one=_format_rank(best), other=_format_rank(other), chance=chance), soft_wrap=True
    )


def print_crossover(flip: Crossover | None) -> None:
    """At which rates between zones local updates become the slower or the faster way."""
    terminal = open_console()
    if flip is None:
        terminal.print(label("crossover_missing"), soft_wrap=True)
        return
    if flip.factor is None:
        winner = label("crossover_equal") if flip.below is None else label(f"crossover_{flip.below}")
        terminal.print(label("crossover_never", winner=winner), soft_wrap=True)
        return
    below, above = (label(f"crossover_{winner}") for winner in (flip.below, flip.above))
    terminal.print(
        label("crossover_at", factor=format_digits(flip.factor, 3), below=below, above=above), soft_wrap=True
    )
    if flip.more:
        factors = join_words(format_digits(factor, 3) for factor in flip.more)
        terminal.print(label("crossover_more", factors=factors), soft_wrap=True)
    columns = [("traffic_link", "left"), ("crossover_now", "right"), ("crossover_then", "right")]
    rows = build_table(label("crossover_title"), columns)
    for link, gbps in list(flip.gbps.items())[:MOST_ROWS]:
        rows.add_row(link, format_digits(gbps / flip.factor), format_digits(gbps))
    terminal.print(rows)
    _print_rest(len(flip.gbps))


def _list_best_lines(best: Plan) -> Iterator[tuple[str, str, str]]:
    """What to run, and where it lies."""
    idle = sum(group.count for group in best.idle)
    used = best.prediction.gpus
    key = "plan_best" if best.kind == "synchronous" else "plan_best_local"
    yield label(key), _get_framework_title(best) + label("semicolon") + format_split(best.prediction), "bold"
    yield (
        label("gpus"),
        label("plan_gpus", used=format_amount(used), total=format_amount(used + idle), idle=format_amount(idle)),
        "",
    )
    yield label("plan_where"), _describe_zones(best) + label("semicolon") + _describe_crossing(best), ""
    options = list(_list_options(best.strategy))
    if options:
        yield label("plan_options"), join_words(options), ""


def _get_framework_title(plan: Plan) -> str:
    from crosszone.inputs.frameworks import frameworks

    return frameworks()[plan.framework].title


def _format_rank(plan: Plan) -> str:
    return str(plan.rank) if plan.kind == "synchronous" else f"L{plan.rank}"


def _describe_zones(plan: Plan) -> str:
    """GPUs of every zone in use, in the plan's own order."""
    counts = dict.fromkeys(plan.zones, 0)
    for block in plan.placement.blocks:
        counts[block.zone] = counts.get(block.zone, 0) + block.count
    return join_words(label("plan_zone", zone=zone, gpus=format_amount(count)) for zone, count in counts.items())


def _describe_crossing(plan: Plan) -> str:
    """What goes from zone to zone, in words."""
    local = plan.strategy.local_update
    if local is not None and plan.crossing != "none":
        return label("crosses_local", steps=format_amount(local.steps))
    return label(f"crosses_{plan.crossing}")


def _list_options(strategy: Strategy) -> Iterator[str]:
    """What else is not as it would be by itself, by its key in a file."""
    for key, field in type(strategy).model_fields.items():
        value = getattr(strategy, key)
        if key in SPLIT or value in (None, field.default) or (key, value) == ("schedule", "1f1b"):
            continue
        if key in ("communication", "local_update"):
            for inner, kind in type(value).model_fields.items():
                if getattr(value, inner) != kind.default:
                    yield f"{key}.{inner} {_format_value(getattr(value, inner))}"
        else:
            yield f"{key} {_format_value(value)}"


def _format_value(value: Any) -> str:
    """A value as a file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, tuple) else str(value)


def _format_degrees(s: Strategy) -> str:
    """Degrees on one line; context, experts and chunks only where there are any."""
    more = [f"{name} {value}" for name, value in (("cp", s.cp), ("ep", s.ep), ("v", s.interleave)) if value > 1]
    return " ".join([f"tp {s.tp} pp {s.pp} dp {s.dp}", *more])


def _format_schedule(s: Strategy) -> str:
    return "-" if s.pp == 1 or s.pipeline_schedule == "1f1b" else s.pipeline_schedule


def _format_crossing(plan: Plan) -> str:
    """What crosses, and the zones in order."""
    averages = plan.strategy.local_update is not None and plan.crossing != "none"
    return label(f"crossing_{'local' if averages else plan.crossing}", zones=" > ".join(plan.zones))


def _format_compact(plan: Plan) -> str:
    """A whole plan in one cell, for a terminal without room for columns."""
    s = plan.strategy
    words = [label("plan_micro_batch", value=s.micro_batch)]
    words += [] if _format_schedule(s) == "-" else [_format_schedule(s)]
    words += [f"zero {s.zero}"] if s.zero else []
    words += [] if s.recompute == "none" else [f"recompute {s.recompute}"]
    if s.local_update:
        words.append(
            label(
                "plan_every", steps=format_amount(s.local_update.steps), parts=format_amount(s.local_update.fragments)
            )
        )
    return "\n".join([_get_framework_title(plan), _format_degrees(s), join_words(words), _format_crossing(plan)])


def _build_ranking(title: str, plans: Sequence[Plan], objective: str, width: int) -> Any:
    """A row for each plan; a terminal that is too narrow has all options in one cell, and fewer numbers."""
    rank, compact = Column("rank", "left", _format_rank), Column("plan", "left", _format_compact)
    columns = [rank, *_list_split_columns(plans), *_list_number_columns(plans, objective, _format_gib_of_limit)]
    if width < WIDE or _measure_width(columns, plans) > width:
        numbers = _list_number_columns(plans, objective, _format_gib)
        columns = [
            rank,
            compact,
            *_drop_spare_columns(numbers, plans, width - _measure_width([rank], plans) - LEAST_PLAN - GAP),
        ]
    rows = build_table(title, [(column.key, column.align) for column in columns], caption=_build_caption(columns))
    for column in rows.columns:
        column.no_wrap = column.justify == "right"
    for plan in plans:
        rows.add_row(*(column.cell(plan) for column in columns))
    return rows


def _list_number_columns(plans: Sequence[Plan], objective: str, gib: Callable[[Plan], str]) -> list[Column]:
    """What to expect of a plan, and the chance that the best one beats it."""
    columns = [
        Column("step_s", "right", lambda plan: format_digits(plan.prediction.step_time_s.expected)),
        Column("tokens_s", "right", lambda plan: format_digits(plan.prediction.tokens_per_s.expected)),
        Column("gib", "right", gib),
        *_list_price_columns(plans),
        *_list_objective_columns(objective),
    ]
    chances = any(plan.chance is not None for plan in plans)
    return [*columns, Column("chance_pct", "right", _format_chance)] if chances else columns


def _measure_width(columns: Sequence[Column], plans: Sequence[Plan]) -> int:
    """Columns of the terminal that a table takes when nothing wraps."""
    from rich.cells import cell_len

    cells = ([label(column.key), *map(column.cell, plans)] for column in columns)
    return sum(GAP + max(map(cell_len, texts)) for texts in cells)


def _drop_spare_columns(columns: Sequence[Column], plans: Sequence[Plan], width: int) -> list[Column]:
    """Without as many spare numbers as it takes to fit."""
    fitting = list(columns)
    for key in SPARE:
        if _measure_width(fitting, plans) > width:
            fitting = [column for column in fitting if column.key != key]
    return fitting


def _list_split_columns(plans: Sequence[Plan]) -> list[Column]:
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
    columns.append(Column("where", "left", _format_crossing))
    return columns


def _format_sync_interval(plan: Plan) -> str:
    """Steps between two averages, and parts of the weights that are averaged one after the other."""
    local = plan.strategy.local_update
    if local is None:
        return "-"
    return f"{format_amount(local.steps)} / {format_amount(local.fragments)}"


def _format_gib(plan: Plan) -> str:
    return f"{plan.prediction.memory_gib.peak.expected:.1f}"


def _format_gib_of_limit(plan: Plan) -> str:
    return f"{_format_gib(plan)} / {format_amount(plan.prediction.memory_gib.limit, 3)}"


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
    sign = -1 if objective == "memory" else 1  # ranked by what is missing, told as what is free
    return [Column(f"value_{objective}", "right", lambda plan: format_digits(sign * plan.value))]


def _format_chance(plan: Plan) -> str:
    return "-" if plan.chance is None else f"{100 * plan.chance:.0f}"


def _build_caption(columns: Sequence[Column]) -> str | None:
    """What a heading is too short to say."""
    keys = {column.key for column in columns}
    notes = [label(f"caption_{key}") for key in ("chance_pct", "usd_day") if key in keys]
    return " ".join(notes) or None


def _print_sentences(title: str, sentences: Sequence[NoticeDict]) -> None:
    """Sentences under a title, each with what to do about it; no title where there are none."""
    if not sentences:
        return
    open_console().print(title, style="bold")
    for notice in sentences[:MOST_ROWS]:
        print_lines(("-", notice["message"], ""), *([("", notice["hint"], "dim")] if notice["hint"] else []))
    _print_rest(len(sentences))
    open_console().print()


def _print_rest(count: int) -> None:
    if count > MOST_ROWS:
        open_console().print(label("rows_more", count=format_amount(count - MOST_ROWS)))


def _print_front(answer: Plans, best: Plan) -> None:
    """Plans that no other beats in both time and price."""
    if not answer.front:
        open_console().print(label("front_none"), soft_wrap=True)
        return
    from crosszone.inputs.frameworks import frameworks

    steps = best.prediction.run.steps
    columns = [("gpus", "right"), ("framework", "left"), ("degrees", "left"), ("step_s", "right")]
    columns += [("usd_step", "right"), *([("usd_steps", "right")] if steps else [])]
    rows = build_table(label("front_title"), columns, caption=label("front_caption") if steps else None)
    for point in answer.front:
        cells = [
            format_amount(point.gpus),
            frameworks()[point.framework].title,
            _format_degrees(point.strategy),
            format_digits(point.step_s),
        ]
        cells += [format_digits(point.usd_per_step), *([format_digits(point.usd_per_step * steps)] if steps else [])]
        rows.add_row(*cells)
    open_console().print(rows)


def _print_rejected(answer: Plans) -> None:
    if not answer.rejected:
        return
    rows = build_table(label("rejected_title"), [("family", "left"), ("count", "right"), ("reason", "left")])
    for rejection in answer.rejected[:MOST_ROWS]:
        rows.add_row(_name_family(rejection.family), format_amount(rejection.count), rejection.reason["message"])
    open_console().print(rows)
    _print_rest(len(answer.rejected))


def _name_family(family: str) -> str:
    """What strategies have in common, in words where it is not a degree."""
    from crosszone.inputs.frameworks import frameworks

    name, _, limit = family.partition(": ")
    if limit == "memory":
        return label("family_memory", framework=frameworks()[name].title)
    return label("family_bound") if family == "bound" else family


def _format_counts(answer: Plans) -> str:
    """How much was looked at, and how long it took."""
    return label(
        "plans_counts",
        evaluated=format_amount(answer.evaluated),
        scored=format_amount(answer.scored),
        feasible=format_amount(answer.feasible),
        simulated=format_amount(answer.simulated),
        seconds=format_digits(answer.seconds, 3),
    )


def _build_waterfall(best: Plan, other: Plan, difference: Difference) -> Any:
    """From one step to the other: what each part adds, and the step so far; small parts in one row."""
    columns = [("step_part", "left"), ("why_s", "right"), ("why_so_far", "right")]
    rows = build_table(label("why_title", one=_format_rank(best), other=_format_rank(other)), columns)
    so_far = best.prediction.step_time_s.expected
    large = [part for part in difference.parts if abs(part.seconds) >= SMALL * so_far]
    small = [part for part in difference.parts if part not in large]
    rows.add_row(label("why_plan", rank=_format_rank(best)), "", format_digits(so_far))
    for part in large:
        so_far += part.seconds
        rows.add_row(label(f"step_{part.name}"), format_signed(part.seconds), format_digits(so_far))
    if small:
        small_s = sum(part.seconds for part in small)
        rows.add_row(label("small_parts", count=len(small)), format_signed(small_s, 2), format_digits(so_far + small_s))
    rows.add_section()
    step = other.prediction.step_time_s.expected
    rows.add_row(label("why_plan", rank=_format_rank(other)), format_signed(difference.step_s), format_digits(step))
    return rows


def _list_other_differences(difference: Difference) -> Iterator[tuple[str, str, str]]:
    """Memory, price, energy and bytes, each only where it differs and is known."""
    if difference.memory_gib:
        yield label("answer_memory"), label("why_gib", value=format_signed(difference.memory_gib)), ""
    if difference.usd:
        yield label("answer_cost"), label("why_usd", value=format_signed(difference.usd)), ""
    if difference.kwh:
        yield label("answer_energy"), label("why_kwh", value=format_signed(difference.kwh)), ""
    for kind, size in difference.bytes_per_step.items():
        yield label(f"link_{kind}"), label("why_gb", value=format_signed(size / 1e9)), ""
