"""The communication report and suggestions in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crosszone.cli.output import build_table, join_words, label, open_console, print_lines
from crosszone.cli.what_if import format_setting
from crosszone.text.figures import format_amount, format_digits, format_percent, format_signed

if TYPE_CHECKING:
    from crosszone.analyse.communication import CommunicationReport
    from crosszone.analyse.suggest import Suggestions

MOST_ROWS = 40  # Rows of a table in the terminal; --json has all


def print_report(report: CommunicationReport, *, formulas: bool = False) -> None:
    """Ratio, class and efficiency first, then bytes by kind and link, and by direction between zones."""
    print_lines(
        (label("analyse_ratio"), _format_ratio(report), "bold"),
        (label("analyse_scaling"), _format_scaling(report), ""),
        (label("answer_bottleneck"), label(f"class_{report.bottleneck}"), ""),
    )
    terminal = open_console()
    terminal.print(_build_lines_table(report))
    if len(report.lines) > MOST_ROWS:
        terminal.print(label("rows_more", count=format_amount(len(report.lines) - MOST_ROWS)))
    if len(report.kinds) > 1:
        terminal.print(_build_tiers_table(report))
    if report.links:
        terminal.print(_build_links_table(report))
    if formulas:
        terminal.print(label("analyse_formulas"), style="bold")
        for line in report.lines:
            line_name = f"{label(f'kind_{line.kind}')}, {name_link(line.link)}  [{line.formula}]"
            terminal.print(f"  {line_name}", style="dim", soft_wrap=True)
            terminal.print(f"    {line.worked} = {format_digits(line.bytes_per_step, 6)} B", soft_wrap=True)


def print_suggestions(suggestions: Suggestions) -> None:
    """Switches by what they gain, what to type for each, and the settings of the hosts."""
    terminal = open_console()
    terminal.print(label("suggest_title", boundness=label(f"bound_{suggestions.boundness}")), style="bold")
    if suggestions.ranked:
        terminal.print(_build_ranked_table(suggestions))
    else:
        terminal.print("  " + label("suggest_none"), soft_wrap=True)
    if suggestions.together is not None and len(suggestions.together.switches) > 1:
        together_line = label(
            "suggest_together",
            switches=join_words(suggestions.together.switches),
            gain=_format_gain(suggestions.together.gain),
        )
        terminal.print("  " + together_line, soft_wrap=True)
    for item in suggestions.plans:
        degrees = join_words(f"{axis} {degree}" for axis, degree in item.degrees.items() if degree > 1)
        words = {"kind": label(f"plan_kind_{item.kind}"), "framework": item.framework, "degrees": degrees}
        terminal.print("  " + label("suggest_plan", gain=_format_gain(item.gain), **words), soft_wrap=True)
    if suggestions.idle:
        terminal.print("  " + label("suggest_idle", switches=join_words(suggestions.idle)), style="dim", soft_wrap=True)
    if suggestions.refused:
        names = dict.fromkeys(f"{item.switch}={format_setting(item.value)}" for item in suggestions.refused)
        terminal.print("  " + label("suggest_refused", switches=join_words(names)), style="dim", soft_wrap=True)
    if suggestions.host:
        terminal.print(label("host_title"), style="bold")
        for setting in suggestions.host:
            saves = f" ({label('host_saves', s=format_digits(setting.saves_s, 2))})" if setting.saves_s else ""
            terminal.print(f"  {setting.setting}", soft_wrap=True)
            terminal.print(f"    {setting.why}{saves}", style="dim", soft_wrap=True)


def name_link(link: str) -> str:
    """A link in the language of this run."""
    from crosszone.analyse.communication import KNOWN_LINKS

    return label(f"link_{link}") if link in KNOWN_LINKS else link


def _format_gain(share: float) -> str:
    return format_signed(100 * share, 3)


def _format_ratio(report: CommunicationReport) -> str:
    ratio = "-" if report.compute_to_communication is None else format_digits(report.compute_to_communication, 3)
    return label(
        "analyse_ratio_line",
        ratio=ratio,
        compute=format_digits(report.compute_s),
        exposed=format_digits(report.exposed_s),
        bound=label(f"bound_{report.boundness}"),
        share=format_percent(report.communication_share),
    )


def _format_scaling(report: CommunicationReport) -> str:
    scaling = report.scaling
    words = []
    if scaling.one_zone is not None:
        words.append(
            label(
                "scaling_zone",
                share=format_percent(scaling.one_zone),
                tokens=format_digits(scaling.one_zone_tokens_per_s or 0.0),
            )
        )
    if scaling.one_gpu is not None:
        words.append(
            label(
                "scaling_gpu",
                share=format_percent(scaling.one_gpu),
                tokens=format_digits(scaling.one_gpu_tokens_per_s or 0.0),
            )
        )
    return label("semicolon").join(words) or "-"


def _build_lines_table(report: CommunicationReport) -> Any:
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
    for line in report.lines[:MOST_ROWS]:
        rows.add_row(
            label(f"kind_{line.kind}"),
            name_link(line.link),
            format_digits(line.bytes_per_step / 1e9),
            format_percent(line.share),
            format_digits(line.messages),
            format_digits(line.busy_s),
            format_digits(line.exposed_s),
        )
    return rows


def _build_tiers_table(report: CommunicationReport) -> Any:
    """By tier: fast link, PCIe, network, between zones, storage."""
    columns = [
        ("traffic_link", "left"),
        ("traffic_gb", "right"),
        ("share_pct", "right"),
        ("traffic_busy", "right"),
        ("traffic_exposed", "right"),
    ]
    rows = build_table(label("analyse_tiers"), columns)
    for tier in report.tiers:
        size, busy, exposed = (format_digits(x) for x in (tier.bytes_per_step / 1e9, tier.busy_s, tier.exposed_s))
        rows.add_row(name_link(tier.name), size, format_percent(tier.share), busy, exposed)
    return rows


def _build_links_table(report: CommunicationReport) -> Any:
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
    for direction in report.links[:MOST_ROWS]:
        groups = join_words(
            label("analyse_group", groups=format_amount(group.groups), axis=group.axis)
            for group in report.groups
            if group.link == direction.link
        )
        figures = (direction.used_gbps, direction.gbps, direction.rtt_ms, direction.busy_s, direction.exposed_s)
        rows.add_row(
            direction.link,
            format_digits(direction.bytes_per_step / 1e9),
            label(f"kind_{direction.dominant}"),
            *(format_digits(value, 3) for value in figures),
            groups,
        )
    return rows


def _build_ranked_table(suggestions: Suggestions) -> Any:
    columns = [
        ("suggest_switch", "left"),
        ("suggest_gain", "right"),
        ("suggest_saved", "right"),
        ("suggest_exact", "left"),
        ("suggest_option", "left"),
    ]
    rows = build_table("", columns, caption=label("suggest_caption"))
    for suggestion in suggestions.ranked:
        exact = label("suggest_same") if suggestion.exact else suggestion.risk
        option = suggestion.option or label("suggest_no_option")
        saved = suggestion.exposed_s if abs(suggestion.exposed_s) > 1e-6 else 0.0
        rows.add_row(
            f"{suggestion.switch}={format_setting(suggestion.value)}",
            _format_gain(suggestion.gain),
            format_signed(saved, 3),
            exact,
            option,
        )
    return rows
