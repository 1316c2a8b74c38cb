"""An analysis as sections: communication, suggestions, the bill, how sure it is, money against speed, failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crosszone.text.figures import format_amount, format_digits, format_percent, format_signed
from crosszone.views.answer_text import AnswerText
from crosszone.views.communication import build_suggestion_sections, list_communication_blocks
from crosszone.views.document import Block, Facts, Remark, Remarks, Section
from crosszone.views.prediction import build_head_section, list_answer_facts

if TYPE_CHECKING:
    from crosszone.analyse.answer import Analysis
    from crosszone.analyse.bill import Bill, Trade
    from crosszone.analyse.drill import Drill
    from crosszone.analyse.marginal import Marginal
    from crosszone.analyse.rating import Rating
    from crosszone.predict.prediction import Prediction

HEAD_FACTS = 3  # Step, speed and memory; the rest of the answer is what `predict` is for


def build_analysis_sections(
    prediction: Prediction, analysis: Analysis, text: AnswerText, width: int | None, *, formulas: bool = False
) -> list[Section]:
    """The parts that were asked for; `formulas` adds the arithmetic of every row of communication."""
    sections = [build_head_section(prediction, text, list_answer_facts(prediction, text)[:HEAD_FACTS])]
    if analysis.traffic is not None:
        blocks = list_communication_blocks(analysis.traffic, text, formulas=formulas)
        sections.append(Section(blocks=blocks))
    if analysis.suggestions is not None:
        sections += build_suggestion_sections(analysis.suggestions, text, width)
    sections += [build_bill_section(analysis.bill, text)] if analysis.bill is not None else []
    sections += [build_rating_section(analysis.rating, text)] if analysis.rating is not None else []
    sections += [build_front_section(analysis.front, text)] if analysis.front is not None else []
    sections += [build_drill_section(analysis.drill, text)] if analysis.drill is not None else []
    sections += [build_marginal_section(analysis.marginal, text)] if analysis.marginal is not None else []
    # the bill repeats what the prediction warns of; a sentence is shown once
    shown_messages = {notice["message"] for notice in analysis.bill.warnings} if analysis.bill is not None else set()
    warnings = [
        notice
        for notice in prediction.warnings
        if notice["level"] != "note" and notice["message"] not in shown_messages
    ]
    return [*sections, Section(blocks=(text.list_remarks(warnings),))]


def build_bill_section(bill: Bill, text: AnswerText) -> Section:
    """Totals, then GPUs and energy by zone, and egress by link."""
    run_usd = None if bill.usd is None else bill.usd.expected
    amounts = [("bill_hour", bill.usd_per_hour), ("bill_step", bill.usd_per_step)]
    amounts += [("bill_tokens", bill.usd_per_million_tokens), ("bill_run", run_usd)]
    totals = [text.label(key, usd=format_digits(usd)) for key, usd in amounts if usd is not None]
    total = text.join(totals) or text.label("cost_unknown")
    facts = [text.build_fact("bill_total", total, mark="strong")]
    energy = [text.label("unit_kwh", value=format_digits(bill.kwh.expected))] if bill.kwh else []
    energy += [text.label("energy_co2", co2=format_digits(bill.co2_kg.expected / 1000, 3))] if bill.co2_kg else []
    if energy:
        facts.append(text.build_fact("answer_energy", text.join(energy)))
    columns = "zone gpu >gpus >bill_price >bill_per_hour >bill_usd >bill_kwh >bill_co2"
    energy_by_zone = {zone.zone: zone for zone in bill.energy}
    rows = []
    for gpus in bill.gpus:
        power = energy_by_zone.pop(gpus.zone, None)  # in the first row of its zone only
        price = [_format_known(usd) for usd in (gpus.usd_per_gpu_hour, gpus.usd_per_hour, gpus.usd)]
        zone_energy = [_format_known(power.kwh if power else None), _format_known(power.co2_kg if power else None)]
        rows.append([gpus.zone, gpus.gpu, format_amount(gpus.gpus), *price, *zone_energy])
    blocks: list[Block] = [Facts(facts=tuple(facts)), text.build_table(columns, rows)]
    if bill.egress:
        columns = "traffic_link >traffic_gb >bill_per_gb >bill_per_step >bill_usd"
        rows = [
            [
                egress.link,
                format_digits(egress.bytes_per_step / 1e9),
                *(_format_known(usd) for usd in (egress.usd_per_gb, egress.usd_per_step, egress.usd)),
            ]
            for egress in bill.egress
        ]
        blocks.append(text.build_table(columns, rows, title=text.label("bill_egress")))
    blocks.append(text.list_remarks(bill.warnings))
    return Section(title=text.label("bill_title"), blocks=tuple(blocks))


def build_front_section(trades: tuple[Trade, ...], text: AnswerText) -> Section:
    """What more money a day buys, from the cheapest plan on."""
    sentences = [trade.told["message"] for trade in trades] or [text.label("front_alone")]
    remarks = Remarks(remarks=tuple(Remark(text=sentence) for sentence in sentences), bullet="")
    return Section(title=text.label("front_title"), blocks=(remarks,))


def build_rating_section(rating: Rating, text: AnswerText) -> Section:
    """Step, speed and days at p50 and p95, what makes them uncertain, and what limits each link."""
    figures = [("what_if_step", rating.step_s), ("what_if_speed", rating.tokens_per_s)]
    figures += [("what_if_days", rating.days)] if rating.days is not None else []
    columns = "figure >rating_p50 >rating_p95"
    rows = [[text.label(key), format_digits(figure.p50), format_digits(figure.p95)] for key, figure in figures]
    blocks: list[Block] = [text.build_table(columns, rows)]
    doubts = [
        text.label("rating_doubt", name=text.label(f"doubt_{doubt.doubt}"), s=format_digits(doubt.widens_s, 3))
        for doubt in rating.doubts
    ]
    if rating.largest is not None:
        blocks.append(Facts(facts=(text.build_fact("rating_doubts", text.join(doubts)),)))
    if rating.links:
        columns = "traffic_link >rating_flows >rating_flow >rating_all_flows >analyse_rate >rating_carries rating_limit"
        rows = []
        for link in rating.links:
            rates = (link.flow_gbps, link.flows_gbps, link.link_gbps, link.carries_gbps)
            limit = text.label(f"limit_{link.limited_by}")
            rows.append([link.link, format_amount(link.flows), *map(_format_known, rates), limit])
        blocks.append(text.build_table(columns, rows, title=text.label("rating_links")))
    blocks.append(text.list_remarks(rating.notes))
    return Section(title=text.label("rating_title"), blocks=tuple(blocks))


def build_drill_section(drill: Drill, text: AnswerText) -> Section:
    """Goodput at the best interval, then every zone lost once."""
    goodput = drill.goodput
    share = text.label("drill_share", share=format_percent(drill.share), mtbf=format_digits(goodput.mtbf_hours, 3))
    interval_s, write_s = format_digits(goodput.interval_s), format_digits(goodput.checkpoint_s, 3)
    facts = (
        text.build_fact("drill_goodput", share, mark="strong"),
        text.build_fact("drill_interval", text.label("drill_every", s=interval_s, write=write_s)),
    )
    columns = "drill_lost >drill_left >what_if_step >drill_back >drill_day drill_plan"
    rows = []
    for loss in drill.losses:
        refusal = next((str(notice["message"]) for notice in loss.refusal), "-")
        rows.append(
            (
                loss.zone,
                format_percent(loss.tokens_left_pct / 100),
                _format_known(loss.worth.step_s if loss.worth else None),
                _format_known(None if loss.back_after_s is None else loss.back_after_s / 60),
                _format_known(loss.usd_per_day),
                loss.worth.plan if loss.worth is not None else refusal,
            )
        )
    blocks = (Facts(facts=facts), text.build_table(columns, rows), text.list_remarks(drill.notes))
    return Section(title=text.label("drill_title"), blocks=blocks)


def build_marginal_section(marginal: Marginal, text: AnswerText) -> Section:
    """Every change by its return."""
    columns = (
        "marginal_change >suggest_gain >marginal_day >marginal_token >marginal_return >marginal_chance marginal_advice"
    )
    rows = [
        (
            variant.change["message"],
            _format_change(variant.tokens_pct),
            _format_change(variant.usd_per_day_more),
            _format_change(variant.usd_per_million_tokens_pct),
            _format_known(variant.tokens_per_s_per_usd_hour),
            "-" if variant.chance_faster is None else format_percent(variant.chance_faster),
            variant.advice["message"],
        )
        for variant in marginal.variants
    ]
    blocks = (text.build_table(columns, rows), text.list_remarks(marginal.notes))
    return Section(title=text.label("marginal_title"), blocks=blocks)


def _format_known(figure: float | None) -> str:
    return "-" if figure is None else format_digits(figure, 4)


def _format_change(change: float | None) -> str:
    return "-" if change is None else format_signed(change, 3)
