"""Plans in the terminal: the best one first, then those after it, then why, and what was kept out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from crosszone.cli.figures import digits, listed, percent, print_lines, signed
from crosszone.cli.output import amount, console, print_notices, said, table
from crosszone.cli.prediction import answer_lines, split
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


def print_plans(found: Plans, *, front: bool = False) -> None:
    """All of it, in the language of this run."""
    terminal = console()
    terminal.print(found.name, style="bold")
    best = (*found.plans, *found.local_updates)[0]
    print_lines(*_best(best), *answer_lines(best.prediction))
    if not found.plans:
        terminal.print(said("plans_none"), soft_wrap=True)
    else:
        title = said("plans_title", objective=said(f"objective_{found.objective}"))
        terminal.print(_ranking(title, found.plans, found.objective, terminal.width))
    _print_told(said("reasons_title", rank=_rank(best)), best.reasons)
    if found.local_updates:
        terminal.print(_ranking(said("local_title"), found.local_updates, found.objective, terminal.width))
        if found.plans:
            _print_told(said("reasons_title", rank=_rank(found.local_updates[0])), found.local_updates[0].reasons)
    _print_told(said("idle_title"), [one.reason for one in best.idle])
    if front:
        _print_front(found, best)
    _print_rejected(found)
    _print_told(said("hints_title"), found.hints)
    print_notices(found.warnings)
    terminal.print(_counts(found), soft_wrap=True)
    if not found.complete:
        terminal.print(said("plans_incomplete"), style="bold", soft_wrap=True)


def print_why(found: Comparison, best: Plan, other: Plan) -> None:
    """What the step of another plan spends and saves beside the best one's, part by part."""
    terminal = console()
    terminal.print(_waterfall(best, other, found))
    lines = list(_also_differs(found))
    if lines:
        print_lines(*lines)
    chance = percent(found.chance_best_is_faster)
    terminal.print(said("why_chance", one=_rank(best), other=_rank(other), chance=chance), soft_wrap=True)


def print_crossover(flip: Crossover | None) -> None:
    """At which rates between zones local updates become the slower or the faster way."""
    terminal = console()
    if flip is None:
        terminal.print(said("crossover_missing"), soft_wrap=True)
        return
    if flip.factor is None:
        winner = said("crossover_equal") if flip.below is None else said(f"crossover_{flip.below}")
        terminal.print(said("crossover_never", winner=winner), soft_wrap=True)
        return
    below, above = (said(f"crossover_{winner}") for winner in (flip.below, flip.above))
    terminal.print(said("crossover_at", factor=digits(flip.factor, 3), below=below, above=above), soft_wrap=True)
    if flip.more:
        factors = listed(digits(factor, 3) for factor in flip.more)
        terminal.print(said("crossover_more", factors=factors), soft_wrap=True)
    columns = [("traffic_link", "left"), ("crossover_now", "right"), ("crossover_then", "right")]
    rows = table(said("crossover_title"), columns)
    for link, gbps in list(flip.gbps.items())[:MOST_ROWS]:
        rows.add_row(link, digits(gbps / flip.factor), digits(gbps))
    terminal.print(rows)
    _print_rest(len(flip.gbps))


def _best(best: Plan) -> Iterator[tuple[str, str, str]]:
    """What to run, and where it lies."""
    idle = sum(one.count for one in best.idle)
    used = best.prediction.gpus
    key = "plan_best" if best.kind == "synchronous" else "plan_best_local"
    yield said(key), _title(best) + said("semicolon") + split(best.prediction), "bold"
    yield said("gpus"), said("plan_gpus", used=amount(used), total=amount(used + idle), idle=amount(idle)), ""
    yield said("plan_where"), _places(best) + said("semicolon") + _crosses(best), ""
    options = list(_options(best.strategy))
    if options:
        yield said("plan_options"), listed(options), ""


def _title(plan: Plan) -> str:
    from crosszone.inputs.frameworks import frameworks

    return frameworks()[plan.framework].title


def _rank(plan: Plan) -> str:
    return str(plan.rank) if plan.kind == "synchronous" else f"L{plan.rank}"


def _places(plan: Plan) -> str:
    """GPUs of every zone in use, in the plan's own order."""
    counts = dict.fromkeys(plan.zones, 0)
    for block in plan.placement.blocks:
        counts[block.zone] = counts.get(block.zone, 0) + block.count
    return listed(said("plan_zone", zone=zone, gpus=amount(count)) for zone, count in counts.items())


def _crosses(plan: Plan) -> str:
    """What goes from zone to zone, in words."""
    local = plan.strategy.local_update
    if local is not None and plan.crossing != "none":
        return said("crosses_local", steps=amount(local.steps))
    return said(f"crosses_{plan.crossing}")


def _options(strategy: Strategy) -> Iterator[str]:
    """What else is not as it would be by itself, by its key in a file."""
    for key, field in type(strategy).model_fields.items():
        value = getattr(strategy, key)
        if key in SPLIT or value in (None, field.default) or (key, value) == ("schedule", "1f1b"):
            continue
        if key in ("communication", "local_update"):
            for inner, kind in type(value).model_fields.items():
                if getattr(value, inner) != kind.default:
                    yield f"{key}.{inner} {_written(getattr(value, inner))}"
        else:
            yield f"{key} {_written(value)}"


def _written(value: Any) -> str:
    """A value as a file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, tuple) else str(value)


def _degrees(s: Strategy) -> str:
    """Degrees on one line; context, experts and chunks only where there are any."""
    more = [f"{name} {value}" for name, value in (("cp", s.cp), ("ep", s.ep), ("v", s.interleave)) if value > 1]
    return " ".join([f"tp {s.tp} pp {s.pp} dp {s.dp}", *more])


def _schedule(s: Strategy) -> str:
    return "-" if s.pp == 1 or s.pipeline_schedule == "1f1b" else s.pipeline_schedule


def _where(plan: Plan) -> str:
    """What crosses, and the zones in order."""
    averages = plan.strategy.local_update is not None and plan.crossing != "none"
    return said(f"crossing_{'local' if averages else plan.crossing}", zones=" > ".join(plan.zones))


def _compact(plan: Plan) -> str:
    """A whole plan in one cell, for a terminal without room for columns."""
    s = plan.strategy
    words = [said("plan_micro_batch", value=s.micro_batch)]
    words += [] if _schedule(s) == "-" else [_schedule(s)]
    words += [f"zero {s.zero}"] if s.zero else []
    words += [] if s.recompute == "none" else [f"recompute {s.recompute}"]
    if s.local_update:
        words.append(said("plan_every", steps=amount(s.local_update.steps), parts=amount(s.local_update.fragments)))
    return "\n".join([_title(plan), _degrees(s), listed(words), _where(plan)])


def _ranking(title: str, plans: Sequence[Plan], objective: str, width: int) -> Any:
    """A row for each plan; a terminal that is too narrow has all options in one cell, and fewer numbers."""
    rank, compact = Column("rank", "left", _rank), Column("plan", "left", _compact)
    columns = [rank, *_split_columns(plans), *_number_columns(plans, objective, _gib_of)]
    if width < WIDE or _taken(columns, plans) > width:
        numbers = _number_columns(plans, objective, _gib)
        columns = [rank, compact, *_roomy(numbers, plans, width - _taken([rank], plans) - LEAST_PLAN - GAP)]
    rows = table(title, [(column.key, column.align) for column in columns], caption=_caption(columns))
    for column in rows.columns:
        column.no_wrap = column.justify == "right"
    for plan in plans:
        rows.add_row(*(column.cell(plan) for column in columns))
    return rows


def _number_columns(plans: Sequence[Plan], objective: str, gib: Callable[[Plan], str]) -> list[Column]:
    """What to expect of a plan, and the chance that the best one beats it."""
    columns = [
        Column("step_s", "right", lambda plan: digits(plan.prediction.step_time_s.expected)),
        Column("tokens_s", "right", lambda plan: digits(plan.prediction.tokens_per_s.expected)),
        Column("gib", "right", gib),
        *_price_columns(plans),
        *_objective_columns(objective),
    ]
    chances = any(plan.chance is not None for plan in plans)
    return [*columns, Column("chance_pct", "right", _chance)] if chances else columns


def _taken(columns: Sequence[Column], plans: Sequence[Plan]) -> int:
    """Columns of the terminal that a table takes when nothing wraps."""
    from rich.cells import cell_len

    cells = ([said(column.key), *map(column.cell, plans)] for column in columns)
    return sum(GAP + max(map(cell_len, texts)) for texts in cells)


def _roomy(columns: Sequence[Column], plans: Sequence[Plan], room: int) -> list[Column]:
    """Without as many spare numbers as it takes to fit."""
    kept = list(columns)
    for key in SPARE:
        if _taken(kept, plans) > room:
            kept = [column for column in kept if column.key != key]
    return kept


def _split_columns(plans: Sequence[Plan]) -> list[Column]:
    """A column for each option of a plan; those that no plan uses are left out."""
    columns = [
        Column("framework", "left", _title),
        Column("degrees", "left", lambda plan: _degrees(plan.strategy)),
        Column("micro_batch", "right", lambda plan: amount(plan.strategy.micro_batch)),
    ]
    if any(_schedule(plan.strategy) != "-" for plan in plans):
        columns.append(Column("schedule", "left", lambda plan: _schedule(plan.strategy)))
    columns.append(Column("zero", "right", lambda plan: amount(plan.strategy.zero)))
    columns.append(Column("recompute", "left", lambda plan: plan.strategy.recompute))
    if any(plan.strategy.local_update for plan in plans):
        columns.append(Column("every_steps", "right", _every))
    columns.append(Column("where", "left", _where))
    return columns


def _every(plan: Plan) -> str:
    """Steps between two averages, and parts of the weights that are averaged one after the other."""
    local = plan.strategy.local_update
    if local is None:
        return "-"
    return f"{amount(local.steps)} / {amount(local.fragments)}"


def _gib(plan: Plan) -> str:
    return f"{plan.prediction.memory_gib.peak.expected:.1f}"


def _gib_of(plan: Plan) -> str:
    return f"{_gib(plan)} / {amount(plan.prediction.memory_gib.limit, 3)}"


def _price_columns(plans: Sequence[Plan]) -> list[Column]:
    """Price of the run where it is known, else of a day; nothing where no GPU has a price."""
    runs = [plan.prediction.run for plan in plans]
    if any(run.usd is not None for run in runs):
        return [Column("usd_run", "right", lambda plan: _usd_run(plan.prediction.run))]
    if any(run.usd_per_hour is not None for run in runs):
        return [Column("usd_day", "right", lambda plan: _usd_day(plan.prediction.run))]
    return []


def _usd_run(run: Run) -> str:
    return "-" if run.usd is None else digits(run.usd.expected)


def _usd_day(run: Run) -> str:
    return "-" if run.usd_per_hour is None else digits(24 * run.usd_per_hour)


def _objective_columns(objective: str) -> list[Column]:
    """What plans are ranked by, where no other column has it."""
    if objective == "time":
        return []
    sign = -1 if objective == "memory" else 1  # ranked by what is missing, told as what is free
    return [Column(f"value_{objective}", "right", lambda plan: digits(sign * plan.value))]


def _chance(plan: Plan) -> str:
    return "-" if plan.chance is None else f"{100 * plan.chance:.0f}"


def _caption(columns: Sequence[Column]) -> str | None:
    """What a heading is too short to say."""
    keys = {column.key for column in columns}
    notes = [said(f"caption_{key}") for key in ("chance_pct", "usd_day") if key in keys]
    return " ".join(notes) or None


def _print_told(title: str, told: Sequence[NoticeDict]) -> None:
    """Sentences under a title, each with what to do about it; no title where there are none."""
    if not told:
        return
    console().print(title, style="bold")
    for one in told[:MOST_ROWS]:
        print_lines(("-", one["message"], ""), *([("", one["hint"], "dim")] if one["hint"] else []))
    _print_rest(len(told))
    console().print()


def _print_rest(count: int) -> None:
    if count > MOST_ROWS:
        console().print(said("rows_more", count=amount(count - MOST_ROWS)))


def _print_front(found: Plans, best: Plan) -> None:
    """Plans that no other beats in both time and price."""
    if not found.front:
        console().print(said("front_none"), soft_wrap=True)
        return
    from crosszone.inputs.frameworks import frameworks

    steps = best.prediction.run.steps
    columns = [("gpus", "right"), ("framework", "left"), ("degrees", "left"), ("step_s", "right")]
    columns += [("usd_step", "right"), *([("usd_steps", "right")] if steps else [])]
    rows = table(said("front_title"), columns, caption=said("front_caption") if steps else None)
    for one in found.front:
        cells = [amount(one.gpus), frameworks()[one.framework].title, _degrees(one.strategy), digits(one.step_s)]
        cells += [digits(one.usd_per_step), *([digits(one.usd_per_step * steps)] if steps else [])]
        rows.add_row(*cells)
    console().print(rows)


def _print_rejected(found: Plans) -> None:
    if not found.rejected:
        return
    rows = table(said("rejected_title"), [("family", "left"), ("count", "right"), ("reason", "left")])
    for one in found.rejected[:MOST_ROWS]:
        rows.add_row(_family(one.family), amount(one.count), one.reason["message"])
    console().print(rows)
    _print_rest(len(found.rejected))


def _family(family: str) -> str:
    """What strategies have in common, in words where it is not a degree."""
    from crosszone.inputs.frameworks import frameworks

    name, _, rest = family.partition(": ")
    if rest == "memory":
        return said("family_memory", framework=frameworks()[name].title)
    return said("family_bound") if family == "bound" else family


def _counts(found: Plans) -> str:
    """How much was looked at, and how long it took."""
    return said(
        "plans_counts",
        evaluated=amount(found.evaluated),
        scored=amount(found.scored),
        feasible=amount(found.feasible),
        simulated=amount(found.simulated),
        seconds=digits(found.seconds, 3),
    )


def _waterfall(best: Plan, other: Plan, found: Difference) -> Any:
    """From one step to the other: what each part adds, and the step so far; small parts in one row."""
    columns = [("step_part", "left"), ("why_s", "right"), ("why_so_far", "right")]
    rows = table(said("why_title", one=_rank(best), other=_rank(other)), columns)
    so_far = best.prediction.step_time_s.expected
    large = [part for part in found.parts if abs(part.seconds) >= SMALL * so_far]
    small = [part for part in found.parts if part not in large]
    rows.add_row(said("why_plan", rank=_rank(best)), "", digits(so_far))
    for part in large:
        so_far += part.seconds
        rows.add_row(said(f"step_{part.name}"), signed(part.seconds), digits(so_far))
    if small:
        rest = sum(part.seconds for part in small)
        rows.add_row(said("small_parts", count=len(small)), signed(rest, 2), digits(so_far + rest))
    rows.add_section()
    step = other.prediction.step_time_s.expected
    rows.add_row(said("why_plan", rank=_rank(other)), signed(found.step_s), digits(step))
    return rows


def _also_differs(found: Difference) -> Iterator[tuple[str, str, str]]:
    """Memory, price, energy and bytes, each only where it differs and is known."""
    if found.memory_gib:
        yield said("answer_memory"), said("why_gib", value=signed(found.memory_gib)), ""
    if found.usd:
        yield said("answer_cost"), said("why_usd", value=signed(found.usd)), ""
    if found.kwh:
        yield said("answer_energy"), said("why_kwh", value=signed(found.kwh)), ""
    for kind, size in found.bytes_per_step.items():
        yield said(f"link_{kind}"), said("why_gb", value=signed(size / 1e9)), ""
