"""A what-if as sections: what was changed, the figures before and after, and the difference by part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from crosszone.text.figures import format_digits, format_percent, format_signed
from crosszone.views.answer_text import AnswerText
from crosszone.views.communication import format_setting
from crosszone.views.document import Block, Paragraph, Section, Table

if TYPE_CHECKING:
    from crosszone.analyse.what_if import WhatIf
    from crosszone.predict.prediction import Prediction

SMALL = 1e-4  # Share of the step below which the change of a part is not shown


def build_what_if_sections(comparison: WhatIf, text: AnswerText) -> list[Section]:
    """Changes, figures, parts of the step, switches with their risks, and notices."""
    changes = tuple(
        Paragraph(text=f"{path} = {_format_scalar(value)}", mark="faint", indent=2)
        for path, value in comparison.changes.items()
    )
    remarks: list[Block] = []
    for switch in comparison.switches:
        option = switch.option or text.label("suggest_no_option")
        before, after = format_setting(switch.before), format_setting(switch.after)
        remarks.append(Paragraph(text=f"{switch.name}: {before} -> {after}   {option}"))
        remarks.append(Paragraph(text=switch.convergence, mark="faint", indent=4))
        if switch.source:
            source = text.label("what_if_source", source=switch.source)
            remarks.append(Paragraph(text=source, mark="faint", indent=4))
    warnings = [notice for notice in comparison.after.warnings if notice["level"] == "warning"]
    remarks.append(text.list_remarks((*comparison.notices, *warnings)))
    return [
        Section(title=comparison.before.name, blocks=changes),
        Section(title=text.label("what_if_title"), blocks=(_build_figures_table(comparison, text),)),
        Section(title=text.label("what_if_parts"), blocks=(_build_parts_table(comparison, text),)),
        Section(blocks=tuple(remarks)),
    ]


def build_switches_section(switches: Sequence[Mapping[str, Any]], text: AnswerText) -> Section:
    """Every switch: what it takes, how it stands, and what that is in the framework's words."""
    columns = "suggest_switch switch_takes switch_now suggest_option"
    rows = []
    for switch in switches:
        takes = switch["takes"]
        choices = " | ".join(takes) if isinstance(takes, list) else text.label(f"takes_{takes}")
        option = switch["option"] or text.label("suggest_no_option")
        rows.append((f"{switch['name']}\n{switch['title']}", choices, format_setting(switch["now"]), option))
    return Section(title=text.label("switches_title"), blocks=(text.build_table(columns, rows),))


def _format_scalar(value: Any) -> str:
    """A value as it stands in a file."""
    words = {True: "true", False: "false", None: "null"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _build_figures_table(comparison: WhatIf, text: AnswerText) -> Table:
    """What matters most, before and after."""
    from crosszone.analyse.what_if import sum_bytes_between_zones, sum_exposed_s

    before, after = comparison.before, comparison.after
    rows: list[tuple[str, ...]] = []

    def add_row(key: str, read_figure: Callable[[Prediction], float | None], factor: float = 1.0) -> None:
        first, second = read_figure(before), read_figure(after)
        # a scenario without a length or a price has no such figure, before or after
        if first is None or second is None:
            return
        change = f"{format_signed(100 * (second / first - 1), 3)} %" if first else format_signed(factor * second)
        rows.append((text.label(key), format_digits(factor * first), format_digits(factor * second), change))

    add_row("what_if_step", lambda p: p.step_time_s.expected)
    add_row("what_if_speed", lambda p: p.tokens_per_s.expected)
    add_row("what_if_mfu", lambda p: p.mfu.expected, 100)
    add_row("what_if_memory", lambda p: p.memory_gib.peak.expected)
    fits = [text.label("yes" if prediction.memory_gib.fits else "no") for prediction in (before, after)]
    bad_rows = [] if after.memory_gib.fits else [len(rows)]
    rows.append((text.label("what_if_fits"), *fits, ""))
    add_row("what_if_exposed", sum_exposed_s)
    add_row("what_if_zones", sum_bytes_between_zones, 1e-9)
    add_row("what_if_days", lambda p: None if p.run.days is None else p.run.days.expected)
    add_row("what_if_usd", lambda p: None if p.run.usd is None else p.run.usd.expected)
    columns = "figure >what_if_before >what_if_after >what_if_change"
    return text.build_table(columns, rows, bad_rows=bad_rows)


def _build_parts_table(comparison: WhatIf, text: AnswerText) -> Table:
    """The waterfall: every part of the step that differs, the largest first."""
    columns = "step_part >time_s >share_pct"
    difference, step_s = comparison.difference, comparison.before.step_time_s.expected
    rows = [
        (text.label(f"step_{part.name}"), format_signed(part.seconds), format_percent(part.seconds / step_s))
        for part in difference.parts
        if abs(part.seconds) >= SMALL * step_s
    ]
    total = (text.label("total"), format_signed(difference.step_s), format_percent(difference.step_s / step_s))
    return text.build_table(columns, rows, total=[total])
