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


def print_bill(found: Bill) -> None:
    """Totals, then GPUs and energy by zone, and egress by link."""
    lines: list[Line] = []
    per = [("bill_hour", found.usd_per_hour), ("bill_step", found.usd_per_step)]
    per += [("bill_tokens", found.usd_per_million_tokens), ("bill_run", _middle(found.usd))]
    told = [label(key, usd=format_digits(value)) for key, value in per if value is not None]
    lines.append((label("bill_total"), join_words(told) or label("cost_unknown"), "bold"))
    energy = [label("unit_kwh", value=format_digits(found.kwh.expected))] if found.kwh else []
    energy += [label("energy_co2", co2=format_digits(found.co2_kg.expected / 1000, 3))] if found.co2_kg else []
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
    energies = {one.zone: one for one in found.energy}
    seen: set[str] = set()
    for one in found.gpus:
        power = energies.get(one.zone) if one.zone not in seen else None
        seen.add(one.zone)
        cells = [_known(power.kwh if power else None), _known(power.co2_kg if power else None)]
        price = [_known(value) for value in (one.usd_per_gpu_hour, one.usd_per_hour, one.usd)]
        rows.add_row(one.zone, one.gpu, format_amount(one.gpus), *price, *cells)
    open_console().print(rows)
    if found.egress:
        columns = [("traffic_link", "left"), ("traffic_gb", "right"), ("bill_per_gb", "right")]
        rows = build_table(label("bill_egress"), [*columns, ("bill_per_step", "right"), ("bill_usd", "right")])
        for way in found.egress:
            money = [_known(value) for value in (way.usd_per_gb, way.usd_per_step, way.usd)]
            rows.add_row(way.link, format_digits(way.bytes_per_step / 1e9), *money)
        open_console().print(rows)
    print_notices(found.warnings)


def print_front(found: tuple[Trade, ...]) -> None:
    """What more money a day buys, from the cheapest plan on."""
    for one in found:
        open_console().print(f"  {one.told['message']}", soft_wrap=True)
    if not found:
        open_console().print("  " + label("front_alone"), soft_wrap=True)


def print_rating(found: Rating) -> None:
    """Step, speed and days at p50 and p95, what makes them uncertain, and what limits each link."""
    rows = build_table("", [("figure", "left"), ("rating_p50", "right"), ("rating_p95", "right")])
    rows.add_row(label("what_if_step"), format_digits(found.step_s.p50), format_digits(found.step_s.p95))
    rows.add_row(label("what_if_speed"), format_digits(found.tokens_per_s.p50), format_digits(found.tokens_per_s.p95))
    if found.days is not None:
        rows.add_row(label("what_if_days"), format_digits(found.days.p50), format_digits(found.days.p95))
    open_console().print(rows)
    doubts = [
        label("rating_doubt", name=label(f"doubt_{one.doubt}"), s=format_digits(one.widens_s, 3))
        for one in found.doubts
    ]
    if found.largest is not None:
        print_lines((label("rating_doubts"), join_words(doubts), ""))
    if found.links:
        columns = [("traffic_link", "left"), ("rating_flows", "right"), ("rating_flow", "right")]
        columns += [("rating_all_flows", "right"), ("analyse_rate", "right"), ("rating_carries", "right")]
        rows = build_table(label("rating_links"), [*columns, ("rating_limit", "left")])
        for link in found.links:
            rates = (link.flow_gbps, link.flows_gbps, link.link_gbps, link.carries_gbps)
            cells = [_known(rate) for rate in rates]
            rows.add_row(link.link, format_amount(link.flows), *cells, label(f"limit_{link.limited_by}"))
        open_console().print(rows)
    print_notices(found.notes)


def print_drill(found: Drill) -> None:
    """Goodput at the best interval, then every zone lost once."""
    good = found.goodput
    print_lines(
        (
            label("drill_goodput"),
            label("drill_share", share=format_percent(found.share), mtbf=format_digits(good.mtbf_hours, 3)),
            "bold",
        ),
        (
            label("drill_interval"),
            label("drill_every", s=format_digits(good.interval_s), write=format_digits(good.checkpoint_s, 3)),
            "",
        ),
    )
    columns = [("drill_lost", "left"), ("drill_left", "right"), ("what_if_step", "right"), ("drill_back", "right")]
    rows = build_table("", [*columns, ("drill_day", "right"), ("drill_plan", "left")])
    for one in found.losses:
        plan = one.worth.plan if one.worth is not None else _first(one.refusal)
        step = _known(one.worth.step_s if one.worth else None)
        back = _known(None if one.back_after_s is None else one.back_after_s / 60)
        rows.add_row(one.zone, format_percent(one.tokens_left_pct / 100), step, back, _known(one.usd_per_day), plan)
    open_console().print(rows)
    print_notices(found.notes)


def print_marginal(found: Marginal) -> None:
    """Every change by its return."""
    columns = [("marginal_change", "left"), ("suggest_gain", "right"), ("marginal_day", "right")]
    columns += [("marginal_token", "right"), ("marginal_return", "right"), ("marginal_chance", "right")]
    rows = build_table("", [*columns, ("marginal_advice", "left")])
    for one in found.variants:
        chance = "-" if one.chance_faster is None else format_percent(one.chance_faster)
        cells = [_signed(value) for value in (one.tokens_pct, one.usd_per_day_more, one.usd_per_million_tokens_pct)]
        rows.add_row(
            one.change["message"], *cells, _known(one.tokens_per_s_per_usd_hour), chance, one.advice["message"]
        )
    open_console().print(rows)
    print_notices(found.notes)


def _middle(triple: Triple | None) -> float | None:
    return None if triple is None else triple.expected


def _known(value: float | None) -> str:
    return "-" if value is None else format_digits(value, 4)


def _signed(value: float | None) -> str:
    return "-" if value is None else format_signed(value, 3)


def _first(notices: Iterable[dict[str, Any]]) -> str:
    return next((str(one["message"]) for one in notices), "-")
