"""Sweeps: axes, cells that equal what plan and predict say alone, and where the choice flips."""

from __future__ import annotations

import csv
import io
import math
from itertools import pairwise

import pytest

from conftest import ROOT
from crosszone.analyse.fields import change_scenario
from crosszone.analyse.sweep import Sweep, find_flip_lines, find_flip_places, sweep
from crosszone.analyse.sweep_cells import (
    CellOutcome,
    CellRefusal,
    Choice,
    SweepAxis,
    SweepCell,
    choose_better,
    read_axis,
)
from crosszone.errors import InputError, InvalidError
from crosszone.inputs.scenario import Scenario, load_scenario
from crosszone.plan.candidates import simulate_over_links
from crosszone.plan.planner import build_problem, plan, search_plans
from crosszone.plan.problem import PlanCache
from crosszone.predict.predict import predict
from crosszone.predict.prediction import Triple

GBPS, RTT = "cluster.links[*].gbps", "cluster.links[*].rtt_ms"


@pytest.fixture
def cities() -> Scenario:
    return load_scenario(ROOT / "examples" / "three-cities.yaml")


def small(framework: str = "megatron", **strategy) -> Scenario:
    zone = {"nodes": [{"count": 1, "gpus": 8, "gpu": "a100-80gb-sxm", "nic_gbps_per_gpu": 200}]}
    return load_scenario(
        {
            "name": "small",
            "model": "llama-2-7b",
            "job": {"seq_len": 4096, "global_batch": 64, "tokens": 1e9, "framework": framework},
            "cluster": {"zones": [{"name": "a", **zone}, {"name": "b", **zone}], "default_link": {"rtt_ms": 20}},
            **({"strategy": strategy} if strategy else {}),
        }
    )


class TestAxis:
    def test_a_log_axis_has_equal_ratios_and_exact_ends(self):
        """[A10] 1 to 100 in five: 10^0.5 from one to the next."""
        axis = read_axis(f"{GBPS}=1:100:log5")
        assert axis.field == GBPS and axis.scale == "log"
        assert axis.values[0] == 1.0 and axis.values[-1] == 100.0
        assert axis.values[1:4] == pytest.approx([math.sqrt(10), 10.0, 10 * math.sqrt(10)])
        assert axis.interpolate(1.0, 100.0) == pytest.approx(10.0)

    @pytest.mark.parametrize("form", ["5:80:4", "5:80:lin4"])
    def test_a_linear_axis_has_equal_differences(self, form):
        """[A10]"""
        axis = read_axis(f"{RTT}={form}")
        assert axis.values == (5.0, 30.0, 55.0, 80.0) and axis.scale == "linear"
        assert axis.interpolate(5.0, 80.0, 0.2) == pytest.approx(20.0)

    def test_a_list_is_taken_as_it_is(self):
        assert read_axis("job.global_batch=256,512, 1024").values == (256, 512, 1024)
        assert read_axis("job.precision=bf16,fp16").values == ("bf16", "fp16")

    def test_whole_fields_get_whole_numbers_each_once(self, cities):
        axis = read_axis("job.global_batch=1:4:9").fit_to(cities)
        assert axis.values == (1, 2, 3, 4) and all(isinstance(value, int) for value in axis.values)
        assert read_axis(f"{GBPS}=1:2:3").fit_to(cities).values == (1.0, 1.5, 2.0)

    @pytest.mark.parametrize(
        "text",
        ["x", "x=", "=1,2", "job.global_batch=1:2", "job.global_batch=1:2:exp3", "job.global_batch=1,,2", "x=a:b:3"],
    )
    def test_what_is_no_axis_is_refused_with_the_forms(self, text):
        with pytest.raises(InvalidError) as refused:
            read_axis(text)
        (notice,) = refused.value.notices
        assert notice.code in ("axis_malformed", "path_malformed")
        assert "for example" in notice.hint()

    @pytest.mark.parametrize("form", ["5:5:3", "9:1:3", "1:2:1", "0:10:log3"])
    def test_a_range_without_a_way_is_refused(self, form):
        with pytest.raises(InvalidError) as refused:
            read_axis(f"{GBPS}={form}")
        assert refused.value.notices[0].code == "axis_range"

    def test_ten_thousand_cells_are_the_most(self, cities):
        with pytest.raises(InvalidError) as refused:
            sweep(cities, f"{GBPS}=1:100:101", f"{RTT}=1:100:100")
        assert refused.value.notices[0].code == "sweep_too_many" and refused.value.notices[0].value == 10_100

    def test_a_field_that_is_not_there_is_refused_before_anything_is_planned(self, cities):
        with pytest.raises(InputError) as refused:
            sweep(cities, "cluster.links[7].gbps=1,2")
        assert refused.value.notices[0].code == "path_no_entry"
        with pytest.raises(InvalidError) as same:
            sweep(cities, f"{GBPS}=1,2", f"{GBPS}=1,2")
        assert same.value.notices[0].code == "axis_same"


def equal(cell: SweepCell, scenario: Scenario) -> None:
    """A cell says what a plan of its scenario alone says."""
    alone = plan(scenario, top=1)
    best, found = alone.plans[0], cell.synchronous
    assert found is not None
    assert found.step_time_s == best.prediction.step_time_s
    assert found.tokens_per_s == best.prediction.tokens_per_s
    assert found.run_usd == best.prediction.run.usd and found.usd_per_hour == best.prediction.run.usd_per_hour
    assert found.value == best.value and found.fits == best.prediction.memory_gib.fits
    s, choice = best.strategy, found.choice
    assert (choice.tp, choice.pp, choice.dp, choice.framework) == (s.tp, s.pp, s.dp, best.framework)
    assert {"none": "one zone", "pp": "pp"}.get(best.crossing, choice.kind) == choice.kind
    assert set(choice.zones) == set(best.zones)
    averaged = alone.local_updates[0] if alone.local_updates else None
    assert (averaged is None) == (cell.local_update is None)
    if averaged is not None:
        assert cell.local_update.step_time_s == averaged.prediction.step_time_s
        assert cell.local_update.choice.tp == averaged.strategy.tp
    other = math.inf if averaged is None else averaged.prediction.step_time_s.expected
    assert cell.best == ("synchronous" if best.prediction.step_time_s.expected <= other else "local_update")


class TestCells:
    @pytest.mark.parametrize("free", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["pinned", "free"])
    def test_every_cell_is_what_plan_finds_for_it_alone(self, cities, free):
        found = sweep(cities, f"{GBPS}=1:100:log4", f"{RTT}=5,60", free=free, workers=1)
        assert len(found.cells) == 8 and found.cell(3, 1).x == 100.0 and found.cell(3, 1).y == 60
        base = load_scenario({k: v for k, v in cities.to_fields().items() if k != "strategy"}) if free else cities
        for cell in found.cells:
            equal(cell, change_scenario(base, {GBPS: cell.x, RTT: cell.y}))

    def test_cells_that_differ_in_more_than_links_are_what_plan_finds_too(self, cities):
        found = sweep(cities, "job.global_batch=512,1024", "cluster.links[beijing-a,shanghai-a].gbps=2,20", workers=1)
        for cell in found.cells:
            changes = {"job.global_batch": cell.x, "cluster.links[beijing-a,shanghai-a].gbps": cell.y}
            equal(cell, change_scenario(cities, changes))

    @pytest.mark.long
    def test_links_that_change_the_order_of_zones_are_planned_as_alone(self, cities):
        base = load_scenario({k: v for k, v in cities.to_fields().items() if k != "strategy"})
        field = "cluster.links[beijing-a,shenzhen-c].gbps"
        found = sweep(base, f"{field}=1,50", workers=1)
        for cell in found.cells:
            equal(cell, change_scenario(base, {field: cell.x}))

    def test_in_mode_predict_a_cell_is_the_prediction_of_the_scenarios_own_strategy(self, cities):
        found = sweep(cities, f"{GBPS}=2,20", mode="predict", workers=1)
        for cell in found.cells:
            alone = predict(change_scenario(cities, {GBPS: cell.x}))
            assert cell.step_time_s == alone.step_time_s and cell.local_update is None
            assert cell.outcome.tokens_per_s == alone.tokens_per_s
        with pytest.raises(InvalidError) as refused:
            sweep(cities, f"{GBPS}=2,20", mode="predict", free=True)
        assert refused.value.notices[0].code == "strategy_missing"

    def test_a_pinned_local_update_is_told_as_such(self):
        scenario = small("fsdp", tp=8, dp=2, local_update={"steps": 50})
        found = sweep(scenario, "strategy.local_update.steps=10,100", mode="predict", workers=1)
        assert [cell.kind for cell in found.cells] == ["diloco", "diloco"]
        assert found.cells[0].step_time_s.expected > found.cells[1].step_time_s.expected

    def test_a_cell_without_a_plan_says_why_and_the_others_are_there(self):
        found = sweep(small(tp=8), "job.global_batch=0,16", workers=1)
        nothing, one = found.cells
        assert nothing.best is None and nothing.kind == "refused"
        assert nothing.refusal.code == "must_be_at_least" and "global_batch" in nothing.refusal.message
        assert one.refusal is None and one.step_time_s.expected > 0

    def test_a_model_too_large_is_a_refusal_and_no_error(self):
        scenario = small().replace(model="megatron-1t")
        (cell, _) = sweep(scenario, f"{GBPS}=1,2", workers=1).cells
        assert cell.refusal.code == "nothing_fits" and cell.outcome is None

    def test_more_bandwidth_never_makes_the_best_slower(self, cities):
        found = sweep(cities, f"{GBPS}=1:100:log5", workers=1)
        times = [cell.step_time_s.expected for cell in found.cells]
        assert all(later <= earlier * (1 + 1e-6) for earlier, later in pairwise(times))

    def test_cost_and_no_local_updates(self, cities):
        found = sweep(cities, f"{GBPS}=5,50", objective="cost", local_updates=False, workers=1)
        for cell in found.cells:
            alone = plan(change_scenario(cities, {GBPS: cell.x}), top=1, objective="cost", local_updates=False)
            assert cell.local_update is None and cell.synchronous.value == alone.plans[0].value
        with pytest.raises(InvalidError):
            sweep(cities, f"{GBPS}=5,50", objective="speed")


class TestTogether:
    def test_a_step_over_many_links_is_that_over_each_alone(self, cities):
        """One placed strategy, its pipeline across zones: all cells in one batch, and a predictor for each."""
        cities = change_scenario(cities, {"strategy.communication.flows": 2})
        given = [change_scenario(cities, {GBPS: gbps, RTT: rtt}) for gbps, rtt in ((1, 5), (7.5, 40), (100, 80))]
        problems = [build_problem(one) for one in given]
        _, one = search_plans(problems[0])[1][0]
        assert one.crossing == "pp"
        placed = one.predictor.placed
        sites = [
            placed.with_links(problem.cluster, problem.wan_links.links, problem.wan_links.crossings)
            for problem in problems
        ]
        found = simulate_over_links(one.predictor, sites).tolist()
        plans = [cities.replace(cluster=p.cluster, strategy=one.strategy, placement=one.placement) for p in problems]
        assert found == [predict(scenario).step_time_s.expected for scenario in plans]
        assert found[0] > found[1] > found[2]

    def test_what_is_known_of_one_ground_is_not_taken_for_another(self, cities):
        """Other zones, another job or another pin: nothing in common."""
        common = PlanCache(lasting=True)
        others = ({"job.global_batch": 512}, {"strategy.micro_batch": 2}, {"cluster.zones[beijing-a].uplink_gbps": 5})
        kept = [build_problem(change_scenario(cities, change), cache=common).shared for change in ({}, *others)]
        assert len({id(one) for one in kept}) == 4
        again = build_problem(change_scenario(cities, {GBPS: 3.0}), cache=common).shared
        assert again is kept[0]


class TestSweep:
    def test_a_sweep_comes_back_from_json_and_has_a_table(self, cities):
        found = sweep(cities, f"{GBPS}=2,20", f"{RTT}=5,50", workers=1)
        assert Sweep.model_validate_json(found.model_dump_json()) == found
        rows = list(csv.DictReader(io.StringIO(found.to_csv())))
        assert len(rows) == 4
        assert [row[GBPS] for row in rows] == ["2", "20", "2", "20"] and [row[RTT] for row in rows][2:] == ["50", "50"]
        assert float(rows[3]["step_time_s"]) == found.cell(1, 1).step_time_s.expected
        assert rows[0]["kind"] == found.cell(0, 0).kind and rows[0]["tp"] == "8"

    def test_a_label_says_what_crosses_the_degrees_and_the_framework(self, cities):
        choice = sweep(cities, f"{GBPS}=20", workers=1).cells[0].choice
        assert choice.label() == "pp across zones, tp 8 pp 4 dp 4, megatron"
        assert choice.label("zh").startswith("pp 跨区域")


def cell(x: float, y: float | None, together: float, apart: float | None = None) -> SweepCell:
    """A cell of two made-up plans, the synchronous one through the pipeline."""

    def outcome(kind, step):
        choice = Choice(kind=kind, framework="megatron", tp=8, pp=4, dp=4, zones=("a", "b"))
        time = Triple(low=step, expected=step, high=step)
        return CellOutcome(
            choice=choice, step_time_s=time, tokens_per_s=time, usd_per_hour=None, run_usd=None, fits=True, value=step
        )

    other = None if apart is None else outcome("diloco", apart)
    best = "local_update" if apart is not None and apart < together else "synchronous"
    return SweepCell(x=x, y=y, best=best, synchronous=outcome("pp", together), local_update=other)


class TestFlips:
    def test_a_line_lies_where_both_kinds_are_equally_good(self):
        """[A11] Local updates at 100 s: 20 % ahead at 1 Gbit/s (125 s), 25 % behind at 100 (80 s).

        Leads -0.2 and 0.25: the line is 0.2 / 0.45 of the way, on a log scale 100^(4/9).
        """
        x, y = SweepAxis(field="x", values=(1.0, 100.0), scale="log"), SweepAxis(field="y", values=(10.0, 30.0))
        cells = [cell(1.0, 10.0, 125, 100), cell(100.0, 10.0, 80, 100), cell(1.0, 30.0, 125, 100)]
        found = list(find_flip_lines(x, y, [*cells, cell(100.0, 30.0, 80, 100)]))
        assert [flip.start[0] for flip in found] == pytest.approx([100 ** (4 / 9)] * 2)
        assert [(flip.start[1], flip.end[1]) for flip in found] == [(10.0, 20.0), (20.0, 30.0)]
        assert {(flip.one, flip.other) for flip in found} == {("diloco", "pp")}

    def test_a_line_to_cells_without_a_plan_lies_half_way(self):
        """[A11]"""
        x, y = SweepAxis(field="x", values=(1.0, 100.0), scale="log"), SweepAxis(field="y", values=(10.0,))
        nothing = SweepCell(x=1.0, y=10.0, best=None, refusal=CellRefusal(code="nothing_fits", message="no"))
        (flip,) = find_flip_lines(x, y, [nothing, cell(100.0, 10.0, 80)])
        assert flip.start[0] == pytest.approx(10.0) and (flip.one, flip.other) == ("refused", "pp")

    def test_a_flip_along_the_second_axis_reaches_half_way_to_both_sides(self):
        """[A11]"""
        x, y = SweepAxis(field="x", values=(0.0, 10.0, 30.0)), SweepAxis(field="y", values=(1.0, 3.0))
        rows = [[cell(a, b, 10, 20 if b < 2 else 5) for a in (0.0, 10.0, 30.0)] for b in (1.0, 3.0)]
        found = list(find_flip_lines(x, y, [*rows[0], *rows[1]]))
        assert [(flip.start[0], flip.end[0]) for flip in found] == [(0.0, 5.0), (5.0, 20.0), (20.0, 30.0)]
        assert all(1.0 < flip.start[1] < 3.0 for flip in found)

    def test_places_are_found_by_halving_and_a_third_kind_between_is_seen(self):
        """[A12] diloco up to 7, pp beyond; with another kind from 6.9 to 7 both ends of it are found."""

        def at(value: float) -> SweepCell:
            return cell(value, None, 10, 5 if value < 7 else 20)

        axis = SweepAxis(field="x", values=(1.0, 5.0, 9.0))
        (flip,) = find_flip_places(axis, [at(1.0), at(5.0), at(9.0)], at)
        assert flip.start[0] < 7 <= flip.end[0] and flip.end[0] - flip.start[0] <= 4e-3 + 1e-9
        assert (flip.one, flip.other) == ("diloco", "pp")

        def three(value: float) -> SweepCell:
            return (
                at(value)
                if not 6 <= value < 7.5
                else SweepCell(x=value, best=None, refusal=CellRefusal(code="nothing_fits", message="no"))
            )

        first, second = find_flip_places(axis, [three(1.0), three(5.0), three(9.0)], three)
        assert (first.one, first.other, second.one, second.other) == ("diloco", "refused", "refused", "pp")
        assert first.end[0] == pytest.approx(6.0, abs=5e-3) and second.end[0] == pytest.approx(7.5, abs=5e-3)

    def test_whole_numbers_are_halved_until_two_follow_each_other(self):
        """[A12]"""

        def at(value: float) -> SweepCell:
            assert float(value).is_integer()
            return cell(value, None, 10, 5 if value < 70 else 20)

        (flip,) = find_flip_places(
            SweepAxis(field="x", values=(1, 1000), scale="log", whole=True), [at(1), at(1000)], at
        )
        assert (flip.start[0], flip.end[0]) == (69.0, 70.0)

    @pytest.mark.long
    def test_the_place_of_a_flip_is_planned_anew_on_both_sides(self, cities):
        """[A12] Synchronous plans win at high rates only; on each side of the place plan says so itself."""
        base = load_scenario({k: v for k, v in cities.to_fields().items() if k != "strategy"})
        base = change_scenario(base, {"cluster.zones[0].nodes[0].count": 4})  # zones of equal size
        found = sweep(base, f"{GBPS}=5,40", workers=1, margin=0.0)
        assert [c.best for c in found.cells] == ["local_update", "synchronous"]
        flip = found.flips[-1]
        assert flip.end[0] / flip.start[0] < 1.01
        for value, side in ((flip.start[0], "local_update"), (flip.end[0], "synchronous")):
            alone = plan(change_scenario(base, {GBPS: value}), top=1)
            steps = [one[0].prediction.step_time_s.expected for one in (alone.plans, alone.local_updates)]
            assert (steps[0] <= steps[1]) == (side == "synchronous")

    def test_another_algorithm_must_gain_its_margin(self):
        """[A11] 96 s against 100 s: taken without a margin, not with one of 5 %; 94 s is."""
        steps = {value: cell(1.0, None, 100, value) for value in (96, 94)}
        outcomes = {v: {"synchronous": c.synchronous, "local_update": c.local_update} for v, c in steps.items()}
        assert choose_better(outcomes[96], 0.0) == "local_update"
        assert choose_better(outcomes[96], 0.05) == "synchronous"
        assert choose_better(outcomes[94], 0.05) == "local_update"
