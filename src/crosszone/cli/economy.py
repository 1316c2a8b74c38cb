"""Bill, rating, drill and marginal value in the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from crosszone.cli.output import Line, build_table, join_words, label, open_console, print_lines, print_notices
from crosszone.text.figures import format_amount, format_digits, format_percent, format_signed

if TYPE_CHECKING:
    from crosszone.analyse.bill import Bill, Trade
    from crosszone.analyse.drill import Drill
    from crosszone.analyse.marginal import Marginal
    from crosszone.analyse.rating import Rating
    from crosszone.predict.prediction import Triple


def print_bill(bill: Bill) -> None:
    """Totals, then GPUs and energy by zone, and egress by link."""
    lines: list[Line] = []
    amounts = [("bill_hour", bill.usd_per_hour), ("bill_step", bill.usd_per_step)]
    amounts += [("bill_tokens", bill.usd_per_million_tokens), ("bill_run", _get_expected(bill.usd))]
    totals = [label(key, usd=format_digits(value)) for key, value in amounts if value is not None]
    lines.append((label("bill_total"), join_words(totals) or label("cost_unknown"), "bold"))
    energy = [label("unit_kwh", value=format_digits(bill.kwh.expected))] if bill.kwh else []
    energy += [label("energy_co2", co2=format_digits(bill.co2_kg.expected / 1000, 3))] if bill.co2_kg else []
    if energy:
        lines.append((label("answer_energy"), join_words(energy), ""))
    print_lines(*lines)
    columns = [
        ("zone", "left"),
        ("gpu", "left"),
        ("gpus", "right"),
        ("bill_price", "right"),
        ("bill_per_hour", "right"),
    ]
    rows = build_table("", [*columns, ("bill_usd", "right"), ("bill_kwh", "right"), ("bill_co2", "right")])
    energy_by_zone = {zone.zone: zone for zone in bill.energy}
    zones_with_energy: set[str] = set()
    for gpus in bill.gpus:
        power = energy_by_zone.get(gpus.zone) if gpus.zone not in zones_with_energy else None
        zones_with_energy.add(gpus.zone)
        cells = [_format_known(power.kwh if power else None), _format_known(power.co2_kg if power else None)]
        price = [_format_known(value) for value in (gpus.usd_per_gpu_hour, gpus.usd_per_hour, gpus.usd)]
        rows.add_row(gpus.zone, gpus.gpu, format_amount(gpus.gpus), *price, *cells)
    open_console().print(rows)
    if bill.egress:
        columns = [("traffic_link", "left"), ("traffic_gb", "right"), ("bill_per_gb", "right")]
        rows = build_table(label("bill_egress"), [*columns, ("bill_per_step", "right"), ("bill_usd", "right")])
        for egress in bill.egress:
            money = [_format_known(value) for value in (egress.usd_per_gb, egress.usd_per_step, egress.usd)]
            rows.add_row(egress.link, format_digits(egress.bytes_per_step / 1e9), *money)
        open_console().print(rows)
    print_notices(bill.warnings)


def print_front(trades: tuple[Trade, ...]) -> None:
    """What more money a day buys, from the cheapest plan on."""
    for trade in trades:
        open_console().print(f"  {trade.told['message']}", soft_wrap=True)
    if not trades:
        open_console().print("  " + label("front_alone"), soft_wrap=True)


def print_rating(rating: Rating) -> None:
    """Step, speed and days at p50 and p95, what makes them uncertain, and what limits each link."""
    rows = build_table("", [("figure", "left"), ("rating_p50", "right"), ("rating_p95", "right")])
    rows.add_row(label("what_if_step"), format_digits(rating.step_s.p50), format_digits(rating.step_s.p95))
    rows.add_row(label("what_if_speed"), format_digits(rating.tokens_per_s.p50), format_digits(rating.tokens_per_s.p95))
    if rating.days is not None:
        rows.add_row(label("what_if_days"), format_digits(rating.days.p50), format_digits(rating.days.p95))
    open_console().print(rows)
    doubts = [
        label("rating_doubt", name=label(f"doubt_{source.doubt}"), s=format_digits(source.widens_s, 3))
        for source in rating.doubts
    ]
    if rating.largest is not None:
        print_lines((label("rating_doubts"), join_words(doubts), ""))
    if rating.links:
        columns = [("traffic_link", "left"), ("rating_flows", "right"), ("rating_flow", "right")]
        columns += [("rating_all_flows", "right"), ("analyse_rate", "right"), ("rating_carries", "right")]
        rows = build_table(label("rating_links"), [*columns, ("rating_limit", "left")])
        for link in rating.links:
            rates = (link.flow_gbps, link.flows_gbps, link.link_gbps, link.carries_gbps)
            cells = [_format_known(rate) for rate in rates]
            rows.add_row(link.link, format_amount(link.flows), *cells, label(f"limit_{link.limited_by}"))
        open_console().print(rows)
    print_notices(rating.notes)


def print_drill(drill: Drill) -> None:
    """Goodput at the best interval, then every zone lost once."""
    goodput = drill.goodput
    print_lines(
        (
            label("drill_goodput"),
            label("drill_share", share=format_percent(drill.share), mtbf=format_digits(goodput.mtbf_hours, 3)),
            "bold",
        ),
        (
            label("drill_interval"),
            label("drill_every", s=format_digits(goodput.interval_s), write=format_digits(goodput.checkpoint_s, 3)),
            "",
        ),
    )
    columns = [("drill_lost", "left"), ("drill_left", "right"), ("what_if_step", "right"), ("drill_back", "right")]
    rows = build_table("", [*columns, ("drill_day", "right"), ("drill_plan", "left")])
    for loss in drill.losses:
        plan = loss.worth.plan if loss.worth is not None else _get_first_message(loss.refusal)
        step = _format_known(loss.worth.step_s if loss.worth else None)
        back = _format_known(None if loss.back_after_s is None else loss.back_after_s / 60)
        rows.add_row(
            loss.zone, format_percent(loss.tokens_left_pct / 100), step, back, _format_known(loss.usd_per_day), plan
        )
    open_console().print(rows)
    print_notices(drill.notes)


def print_marginal(marginal: Marginal) -> None:
    """Every change by its return."""
    columns = [("marginal_change", "left"), ("suggest_gain", "right"), ("marginal_day", "right")]
    columns += [("marginal_token", "right"), ("marginal_return", "right"), ("marginal_chance", "right")]
    rows = build_table("", [*columns, ("marginal_advice", "left")])
    for variant in marginal.variants:
        chance = "-" if variant.chance_faster is None else format_percent(variant.chance_faster)
        cells = [
            _format_change(value)
            for value in (variant.tokens_pct, variant.usd_per_day_more, variant.usd_per_million_tokens_pct)
        ]
        rows.add_row(
            variant.change["message"],
            *cells,
            _format_known(variant.tokens_per_s_per_usd_hour),
            chance,
            variant.advice["message"],
        )
    open_console().print(rows)
    print_notices(marginal.notes)


def _get_expected(triple: Triple | None) -> float | None:
    return None if triple is None else triple.expected


def _format_known(value: float | None) -> str:
    return "-" if value is None else format_digits(value, 4)


def _format_change(value: float | None) -> str:
    return "-" if value is None else format_signed(value, 3)


def _get_first_message(notices: Iterable[dict[str, Any]]) -> str:
    return next((str(notice["message"]) for notice in notices), "-")
