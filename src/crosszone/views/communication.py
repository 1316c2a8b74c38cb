"""The communication of a step as sections: bytes and time by kind and link, and what would help."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crosszone.text.figures import format_amount, format_digits, format_percent, format_signed
from crosszone.views.answer_text import AnswerText
from crosszone.views.document import Block, Facts, Paragraph, Remark, Remarks, Section, Table
from crosszone.views.prediction import build_traffic_table

if TYPE_CHECKING:
    from crosszone.analyse.communication import CommunicationReport
    from crosszone.analyse.suggest import Suggestions

MOST_ROWS = 40  # Rows of a table that a terminal shows; --json has all
LEAST_SAVED_S = 1e-6  # Seconds below which a difference is rounding


def list_communication_blocks(
    report: CommunicationReport, text: AnswerText, *, formulas: bool = False
) -> tuple[Block, ...]:
    """Ratio, class and efficiency first, then bytes by kind and link, and by direction between zones."""
    blocks: list[Block] = [
        Facts(
            facts=(
                text.build_fact("analyse_ratio", _describe_ratio(report, text), mark="strong"),
                text.build_fact("analyse_scaling", _describe_scaling(report, text)),
                text.build_fact("answer_bottleneck", text.label(f"class_{report.bottleneck}")),
            )
        ),
        build_traffic_table(
            report.lines,
            text,
            shares=[line.share for line in report.lines],
            title=text.label("traffic_title"),
            caption=text.label("analyse_caption"),
            terminal_rows=MOST_ROWS,
        ),
    ]
    blocks += [_build_tiers_table(report, text)] if len(report.kinds) > 1 else []
    blocks += [_build_links_table(report, text)] if report.links else []
    if formulas:
        blocks.append(text.build_line("analyse_formulas", mark="strong"))
        for line in report.lines:
            name = f"{text.label(f'kind_{line.kind}')}, {text.name_link(line.link)}  [{line.formula}]"
            blocks.append(Paragraph(text=name, mark="faint", indent=2))
            worked = f"{line.worked} = {format_digits(line.bytes_per_step, 6)} B"
            blocks.append(Paragraph(text=worked, indent=4))
    return tuple(blocks)


def build_suggestion_sections(suggestions: Suggestions, text: AnswerText, width: int | None) -> list[Section]:
    """Switches by what they gain, what to type for each, and the settings of the hosts."""
    title = text.label("suggest_title", boundness=text.label(f"bound_{suggestions.boundness}"))
    blocks: list[Block] = []
    if suggestions.ranked:
        blocks.append(_build_ranked_table(suggestions, text, width))
    else:
        blocks.append(text.build_line("suggest_none", indent=2))
    together = suggestions.together
    if together is not None and len(together.switches) > 1:
        switches, gain = text.join(together.switches), _format_gain(together.gain)
        blocks.append(text.build_line("suggest_together", switches=switches, gain=gain, indent=2))
    for plan in suggestions.plans:
        degrees = text.join(f"{axis} {degree}" for axis, degree in plan.degrees.items() if degree > 1)
        words = {"kind": text.label(f"plan_kind_{plan.kind}"), "framework": plan.framework, "degrees": degrees}
        blocks.append(Paragraph(text=text.label("suggest_plan", gain=_format_gain(plan.gain), **words), indent=2))
    if suggestions.idle:
        switches = text.join(suggestions.idle)
        blocks.append(text.build_line("suggest_idle", switches=switches, mark="faint", indent=2))
    if suggestions.refused:
        names = dict.fromkeys(f"{refused.switch}={format_setting(refused.value)}" for refused in suggestions.refused)
        refusals = text.label("suggest_refused", switches=text.join(names))
        blocks.append(Paragraph(text=refusals, mark="faint", indent=2))
    sections = [Section(title=title, blocks=tuple(blocks))]
    if suggestions.host:
        remarks = []
        for setting in suggestions.host:
            saved_s = format_digits(setting.saves_s, 2) if setting.saves_s else ""
            saves = f" ({text.label('host_saves', s=saved_s)})" if saved_s else ""
            remarks.append(Remark(text=setting.setting, hint=f"{setting.why}{saves}"))
        host = Remarks(remarks=tuple(remarks), bullet="")
        sections.append(Section(title=text.label("host_title"), blocks=(host,)))
    return sections


def format_setting(value: Any) -> str:
    """How a switch stands, as one would type it."""
    words = {True: "on", False: "off", None: "-"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _format_gain(share: float) -> str:
    return format_signed(100 * share, 3)


def _describe_ratio(report: CommunicationReport, text: AnswerText) -> str:
    ratio = "-" if report.compute_to_communication is None else format_digits(report.compute_to_communication, 3)
    return text.label(
        "analyse_ratio_line",
        ratio=ratio,
        compute=format_digits(report.compute_s),
        exposed=format_digits(report.exposed_s),
        bound=text.label(f"bound_{report.boundness}"),
        share=format_percent(report.communication_share),
    )


def _describe_scaling(report: CommunicationReport, text: AnswerText) -> str:
    scaling = report.scaling
    figures = (
        ("scaling_zone", scaling.one_zone, scaling.one_zone_tokens_per_s),
        ("scaling_gpu", scaling.one_gpu, scaling.one_gpu_tokens_per_s),
    )
    words = [
        text.label(key, share=format_percent(share), tokens=format_digits(tokens_per_s or 0.0))
        for key, share, tokens_per_s in figures
        if share is not None
    ]
    return text.label("semicolon").join(words) or "-"


def _build_tiers_table(report: CommunicationReport, text: AnswerText) -> Table:
    """By tier: fast link, PCIe, network, between zones, storage."""
    columns = "traffic_link >traffic_gb >share_pct >traffic_busy >traffic_exposed"
    rows = [
        (
            text.name_link(tier.name),
            format_digits(tier.bytes_per_step / 1e9),
            format_percent(tier.share),
            format_digits(tier.busy_s),
            format_digits(tier.exposed_s),
        )
        for tier in report.tiers
    ]
    return text.build_table(columns, rows, title=text.label("analyse_tiers"))


def _build_links_table(report: CommunicationReport, text: AnswerText) -> Table:
    """Every direction between zones: what it carries, how full it is, and who crosses it."""
    columns = "traffic_link >traffic_gb analyse_dominant >analyse_used >analyse_rate >analyse_rtt"
    columns += " >traffic_busy >traffic_exposed analyse_groups"
    rows = []
    for direction in report.links:
        groups = text.join(
            text.label("analyse_group", groups=format_amount(group.groups), axis=group.axis)
            for group in report.groups
            if group.link == direction.link
        )
        figures = (direction.used_gbps, direction.gbps, direction.rtt_ms, direction.busy_s, direction.exposed_s)
        cells = [direction.link, format_digits(direction.bytes_per_step / 1e9)]
        cells += [text.label(f"kind_{direction.dominant}"), *(format_digits(figure, 3) for figure in figures), groups]
        rows.append(cells)
    return text.build_table(columns, rows, title=text.label("analyse_links"), terminal_rows=MOST_ROWS)


def _build_ranked_table(suggestions: Suggestions, text: AnswerText, width: int | None) -> Table:
    columns = "suggest_switch >suggest_gain >suggest_saved suggest_exact suggest_option"
    rows = []
    for suggestion in suggestions.ranked:
        switch = f"{suggestion.switch}={format_setting(suggestion.value)}"
        saved_s = suggestion.exposed_s if abs(suggestion.exposed_s) > LEAST_SAVED_S else 0.0
        rows.append(
            (
                f"{suggestion.title} ({switch})" if width is None else switch,
                _format_gain(suggestion.gain),
                format_signed(saved_s, 3),
                text.label("suggest_same") if suggestion.exact else suggestion.risk,
                suggestion.option or text.label("suggest_no_option"),
            )
        )
    # the command of the terminal's caption is of no use on paper
    caption = text.label("report_suggest_caption" if width is None else "suggest_caption")
    return text.build_table(columns, rows, caption=caption)
