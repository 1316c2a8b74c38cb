"""The communication report and suggestions in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crosszone.cli.output import build_table, join_words, label, open_console, print_lines
from crosszone.cli.what_if import shown
from crosszone.text.figures import format_amount, format_digits, format_percent, format_signed

if TYPE_CHECKING:
    from crosszone.analyse.communication import CommunicationReport
    from crosszone.analyse.suggest import Suggestions

MOST_ROWS = 40  # Rows of a table in the terminal; --json has all


def print_report(found: CommunicationReport, *, formulas: bool = False) -> None:
    """Ratio, class and efficiency first, then bytes by kind and link, and by direction between zones."""
    print_lines(
        (label("analyse_ratio"), _ratio(found), "bold"),
        (label("analyse_scaling"), _scaling(found), ""),
        (label("answer_bottleneck"), label(f"class_{found.bottleneck}"), ""),
    )
    terminal = open_console()
    terminal.print(_lines(found))
    if len(found.lines) > MOST_ROWS:
        terminal.print(label("rows_more", count=format_amount(len(found.lines) - MOST_ROWS)))
    if len(found.kinds) > 1:
        terminal.print(_totals(found))
    if found.links:
        terminal.print(_links(found))
    if formulas:
        terminal.print(label("analyse_formulas"), style="bold")
        for line in found.lines:
            where = f"{label(f'kind_{line.kind}')}, {link_name(line.link)}  [{line.formula}]"
            terminal.print(f"  {where}", style="dim", soft_wrap=True)
            terminal.print(f"    {line.worked} = {format_digits(line.bytes_per_step, 6)} B", soft_wrap=True)


def print_suggestions(found: Suggestions) -> None:
    """Switches by what they gain, what to type for each, and the settings of the hosts."""
    terminal = open_console()
    terminal.print(label("suggest_title", boundness=label(f"bound_{found.boundness}")), style="bold")
    if found.ranked:
        terminal.print(_ranked(found))
    else:
        terminal.print("  " + label("suggest_none"), soft_wrap=True)
    if found.together is not None and len(found.together.switches) > 1:
        told = label("suggest_together", switches=join_words(found.together.switches), gain=_gain(found.together.gain))
        terminal.print("  " + told, soft_wrap=True)
    for one in found.plans:
        degrees = join_words(f"{axis} {degree}" for axis, degree in one.degrees.items() if degree > 1)
        words = {"kind": label(f"plan_kind_{one.kind}"), "framework": one.framework, "degrees": degrees}
        terminal.print("  " + label("suggest_plan", gain=_gain(one.gain), **words), soft_wrap=True)
    if found.idle:
        terminal.print("  " + label("suggest_idle", switches=join_words(found.idle)), style="dim", soft_wrap=True)
    if found.refused:
        names = dict.fromkeys(f"{one.switch}={shown(one.value)}" for one in found.refused)
        terminal.print("  " + label("suggest_refused", switches=join_words(names)), style="dim", soft_wrap=True)
    if found.host:
        terminal.print(label("host_title"), style="bold")
        for setting in found.host:
            saves = f" ({label('host_saves', s=format_digits(setting.saves_s, 2))})" if setting.saves_s else ""
            terminal.print(f"  {setting.setting}", soft_wrap=True)
            terminal.print(f"    {setting.why}{saves}", style="dim", soft_wrap=True)


def link_name(link: str) -> str:
    """A link in the language of this run."""
    from crosszone.analyse.communication import KNOWN_LINKS

    return label(f"link_{link}") if link in KNOWN_LINKS else link


def _gain(share: float) -> str:
    return format_signed(100 * share, 3)


def _ratio(found: CommunicationReport) -> str:
    ratio = "-" if found.compute_to_communication is None else format_digits(found.compute_to_communication, 3)
    return label(
        "analyse_ratio_line",
        ratio=ratio,
        compute=format_digits(found.compute_s),
        exposed=format_digits(found.exposed_s),
        bound=label(f"bound_{found.boundness}"),
        share=format_percent(found.communication_share),
    )


def _scaling(found: CommunicationReport) -> str:
    one = found.scaling
    words = []
    if one.one_zone is not None:
        words.append(
            label(
                "scaling_zone",
                share=format_percent(one.one_zone),
                tokens=format_digits(one.one_zone_tokens_per_s or 0.0),
            )
        )
    if one.one_gpu is not None:
        words.append(
            label(
                "scaling_gpu", share=format_percent(one.one_gpu), tokens=format_digits(one.one_gpu_tokens_per_s or 0.0)
            )
        )
    return label("semicolon").join(words) or "-"


def _lines(found: CommunicationReport) -> Any:
    columns = [
        ("traffic_kind", "left"),
        ("traffic_link", "left"),
        ("traffic_gb", "right"),
        ("share_pct", "right"),
        ("traffic_messages", "right"),
        ("traffic_busy", "right"),
        ("traffic_exposed", "right"),
    ]
    rows = build_table(label("traffic_title"), columns, caption=label("analyse_caption"))
    for line in found.lines[:MOST_ROWS]:
        rows.add_row(
            label(f"kind_{line.kind}"),
            link_name(line.link),
            format_digits(line.bytes_per_step / 1e9),
            format_percent(line.share),
            format_digits(line.messages),
            format_digits(line.busy_s),
            format_digits(line.exposed_s),
        )
    return rows


def _totals(found: CommunicationReport) -> Any:
    """By tier: fast link, PCIe, network, between zones, storage."""
    columns = [
        ("traffic_link", "left"),
        ("traffic_gb", "right"),
        ("share_pct", "right"),
        ("traffic_busy", "right"),
        ("traffic_exposed", "right"),
    ]
    rows = build_table(label("analyse_tiers"), columns)
    for one in found.tiers:
        size, busy, late = (format_digits(x) for x in (one.bytes_per_step / 1e9, one.busy_s, one.exposed_s))
        rows.add_row(link_name(one.name), size, format_percent(one.share), busy, late)
    return rows


def _links(found: CommunicationReport) -> Any:
    """Every direction between zones: what it carries, how full it is, and who crosses it."""
    columns = [
        ("traffic_link", "left"),
        ("traffic_gb", "right"),
        ("analyse_dominant", "left"),
        ("analyse_used", "right"),
        ("analyse_rate", "right"),
        ("analyse_rtt", "right"),
        ("traffic_busy", "right"),
        ("traffic_exposed", "right"),
        ("analyse_groups", "left"),
    ]
    rows = build_table(label("analyse_links"), columns)
    for one in found.links[:MOST_ROWS]:
        groups = join_words(
            label("analyse_group", groups=format_amount(group.groups), axis=group.axis)
            for group in found.groups
            if group.link == one.link
        )
        figures = (one.used_gbps, one.gbps, one.rtt_ms, one.busy_s, one.exposed_s)
        rows.add_row(
            one.link,
            format_digits(one.bytes_per_step / 1e9),
            label(f"kind_{one.dominant}"),
            *(format_digits(value, 3) for value in figures),
            groups,
        )
    return rows


def _ranked(found: Suggestions) -> Any:
    columns = [
        ("suggest_switch", "left"),
        ("suggest_gain", "right"),
        ("suggest_saved", "right"),
        ("suggest_exact", "left"),
        ("suggest_option", "left"),
    ]
    rows = build_table("", columns, caption=label("suggest_caption"))
    for one in found.ranked:
        exact = label("suggest_same") if one.exact else one.risk
        option = one.option or label("suggest_no_option")
        saved = one.exposed_s if abs(one.exposed_s) > 1e-6 else 0.0
        rows.add_row(f"{one.switch}={shown(one.value)}", _gain(one.gain), format_signed(saved, 3), exact, option)
    return rows
