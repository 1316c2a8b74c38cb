"""Results of any kind beside each other: differences to the first, parts that add up, one scale."""

import math

import pytest

from crosszone.analyse.compare import FIGURES, Compared, compare_outcomes
from crosszone.analyse.outcome import (
    Figures,
    build_headline,
    build_measured_outcome,
    build_outcome,
    compute_trace_figures,
    map_phase_seconds,
    measure_phases,
)
from crosszone.errors import InvalidError
from crosszone.inputs.document import parse_document
from crosszone.inputs.scenario import read_scenario
from crosszone.inputs.value import parse
from crosszone.plan.comparison import estimate_win_probability
from crosszone.predict.predict import build_prediction, build_predictor
from crosszone.schedule.measured import read_measured

TEXT = """
name: two zones
model: llama-2-7b
job: {{seq_len: 4096, global_batch: {batch}, tokens: 1.0e+9}}
cluster:
  zones:
    - {{name: a, region: cn-beijing, nodes: [{{count: 1, gpus: 8, gpu: a100-80gb-sxm, nic_gbps_per_gpu: 200}}]}}
    - {{name: b, region: cn-shanghai, nodes: [{{count: 1, gpus: 8, gpu: a100-80gb-sxm, nic_gbps_per_gpu: 200}}]}}
  links: [{{between: [a, b], gbps: {gbps}, rtt_ms: 25}}]
strategy: {{tp: 2, pp: {pp}, micro_batch: 1, zero: 1}}
"""


def predicted(name, *, gbps=10, pp=2, batch=64):
    text = TEXT.format(gbps=gbps, pp=pp, batch=batch)
    found = build_predictor(read_scenario(parse_document(text, "x.yaml")).scenario)
    prediction = build_prediction(found)
    return Compared(name, "predicted", build_outcome(prediction, measure_phases(found.timeline())), prediction)


def given(name, kind="measured", **figures):
    return Compared(name, kind, build_measured_outcome(parse(Figures, figures)))


@pytest.fixture(scope="module")
def both():
    return compare_outcomes([predicted("slow", gbps=1), predicted("fast", gbps=100), given("real", step_time_s=4.0)])


def row(rows, name):
    return next(one for one in rows if one.name == name)


def test_differences_are_to_the_first_in_absolute_and_percent():
    """[A31]: 4 s and 3 s: -1 s, -25 %, better; 100 and 200 tokens/s: twice as many are better; GPUs are neither."""
    found = compare_outcomes(
        [
            given("one", step_time_s=4.0, tokens_per_s=100.0, gpus=8),
            given("two", "sheet", step_time_s=3.0, tokens_per_s=200.0, gpus=16),
            given("three", step_time_s=5.0),
        ]
    )
    step, rate, gpus = (row(found.figures, name) for name in ("step_time_s", "tokens_per_s", "gpus"))
    assert [(c.value, c.difference, c.percent, c.verdict) for c in step.cells] == [
        (4.0, 0.0, 0.0, "same"), (3.0, -1.0, -25.0, "better"), (5.0, 1.0, 25.0, "worse")]  # fmt: skip
    assert (rate.cells[1].percent, rate.cells[1].verdict, rate.cells[2]) == (100.0, "better", None)
    assert (gpus.cells[1].difference, gpus.cells[1].verdict) == (8.0, None)
    assert row(found.figures, "tokens_per_s_per_gpu").cells[1].value == 12.5
    assert (found.scale_s, [side.kind for side in found.sides]) == (5.0, ["measured", "sheet", "measured"])


def test_what_the_parts_leave_of_a_step_is_called_other():
    """[A31]: parts of 1 and 0.5 s in a step of 2 s leave 0.5 s."""
    outcome = build_measured_outcome(Figures(step_time_s=2.0, breakdown_s={"matmul": 1.0, "pipeline": 0.5}))
    assert outcome.parts_s == {"matmul": 1.0, "pipeline": 0.5, "other": 0.5}
    assert outcome.classes_s == {"compute": 1.0, "communication": 0.5, "other": 0.5}


def test_parts_classes_and_phases_of_every_result_add_up_to_its_step(both):
    for rows in (both.parts, both.classes, both.phases):
        for index, side in enumerate(both.sides):
            assert math.fsum(one.cells[index].value for one in rows if one.cells[index]) == pytest.approx(side.step_s)
    unknown = row(both.phases, "other")  # nothing is known of the phases of a bare figure
    assert (unknown.cells[0], unknown.cells[1], unknown.cells[2].value) == (None, None, 4.0)


def test_what_a_result_does_not_tell_apart_is_not_called_nothing(both):
    assert row(both.parts, "matmul").cells[2] is None
    assert row(both.parts, "other").cells[0] is None
    assert (row(both.parts, "other").cells[2].value, row(both.parts, "other").cells[2].percent) == (4.0, None)


def test_classes_are_the_shares_of_the_prediction():
    one = predicted("one")
    for name, share in one.prediction.shares.items():
        assert one.outcome.classes_s.get(name, 0.0) == pytest.approx(share * one.outcome.step_s)


def test_figures_are_those_of_the_prediction_with_their_ranges(both):
    first = predicted("slow", gbps=1).prediction
    step = row(both.figures, "step_time_s").cells[0]
    assert (step.low, step.value, step.high) == (
        first.step_time_s.low,
        first.step_time_s.expected,
        first.step_time_s.high,
    )
    assert row(both.figures, "usd").cells[0].value == first.run.usd.expected
    assert row(both.figures, "memory_gib").cells[0].value == first.memory_gib.peak.expected
    assert (row(both.figures, "step_time_s").cells[2].low, row(both.figures, "step_time_s").cells[2].high) == (
        None,
        None,
    )


def test_the_chance_is_that_of_the_two_predictions_and_of_nothing_else(both):
    slow, fast = predicted("slow", gbps=1), predicted("fast", gbps=100)
    assert both.sides[0].chance_faster is None
    assert both.sides[1].chance_faster == estimate_win_probability(fast.prediction, slow.prediction) > 0.5
    assert both.sides[2].chance_faster is None


def test_steps_of_other_batches_have_no_chance_but_a_warning():
    found = compare_outcomes([predicted("small"), predicted("large", batch=128)])
    assert found.sides[1].chance_faster is None
    assert [notice["code"] for notice in found.notices] == ["compare_other_work"]


def test_what_does_not_fit_is_told():
    outcome = predicted("one").outcome.replace(fits=False)
    found = compare_outcomes([Compared("too large", "predicted", outcome), given("real", step_time_s=1.0)], "zh")
    assert "too large" in found.notices[0]["message"]


def test_figures_nobody_has_are_left_out(both):
    shown = [one.name for one in both.figures]
    assert shown == [name for name in FIGURES if name in shown]
    assert "days" in shown
    assert "days" not in [
        one.name for one in compare_outcomes([given("a", step_time_s=1.0), given("b", step_time_s=2.0)]).figures
    ]


TRACE = """lane,group,kind,start_s,end_s,micro_batch
stage-0,stages,forward,0,1,0
stage-0,stages,backward,1,3,0
net,links,gradients,3,4,
stage-0,stages,optimizer,4,4.5,
host,host,other,4.5,5,
"""


def test_a_measured_step_is_compute_communication_and_waiting():
    """[A30]: forward 1, backward 2, gradients 1, optimizer 0.5, and half a second of nothing."""
    figures, phases = compute_trace_figures(read_measured(TRACE))
    assert figures.step_time_s == 5.0
    assert figures.breakdown_s == pytest.approx({"compute": 3.5, "communication": 1.0, "bubble": 0.5})
    assert map_phase_seconds(phases) == pytest.approx({"warm_up": 1.0, "steady": 0.0, "cool_down": 2.0, "tail": 2.0})
    assert build_measured_outcome(figures).classes_s == pytest.approx(
        {"compute": 3.5, "communication": 1.0, "pipeline": 0.5}
    )


def test_of_several_measured_steps_the_middle_one_counts():
    """[A30]: steps of 9, 2 and 3 s: the one of 3 s."""
    spans = [
        {"lane": "s", "kind": "forward", "start_s": a, "end_s": b} for a, b in ((0.0, 1.0), (9.0, 10.0), (11.0, 13.5))
    ]
    steps = [{"step": i, "start_s": a, "end_s": b} for i, (a, b) in enumerate(((0.0, 9.0), (9.0, 11.0), (11.0, 14.0)))]
    import json

    figures, _ = compute_trace_figures(
        read_measured(json.dumps({"lanes": [{"id": "s", "name": "s"}], "spans": spans, "steps": steps}))
    )
    assert (figures.step_time_s, figures.breakdown_s["compute"]) == (3.0, 2.5)


@pytest.mark.parametrize(
    ("figures", "code", "field"),
    [
        ({}, "missing_key", "step_time_s"),
        ({"step_time_s": 0.0}, "must_be_more_than", "step_time_s"),
        ({"step_time_s": 1e300}, "must_be_at_most", "step_time_s"),
        ({"step_time_s": "4"}, "must_be_number", "step_time_s"),
        ({"step_time_s": 1.0, "mfu": 1.5}, "must_be_at_most", "mfu"),
        ({"step_time_s": 1.0, "breakdown_s": {"gradient": 0.1}}, "not_one_of", "breakdown_s"),
        ({"step_time_s": 1.0, "breakdown_s": {"matmul": 1.2}}, "parts_over_step", "breakdown_s"),
        ({"step_time_s": 1.0, "color": 1}, "unknown_key", "color"),
    ],
)
def test_figures_that_cannot_be_are_refused_by_name(figures, code, field):
    with pytest.raises(InvalidError) as caught:
        parse(Figures, figures)
    assert (caught.value.notices[0].code, caught.value.notices[0].field) == (code, field)
    assert caught.value.notices[0].message("zh")


def test_a_headline_has_every_main_figure_or_says_that_it_is_not_known():
    one = build_headline(predicted("one").outcome)
    assert one["step_time_s"]["low"] < one["step_time_s"]["value"] < one["step_time_s"]["high"]
    assert (one["fits"], one["degrees"]) == (True, {"tp": 2, "pp": 2, "dp": 4})
    bare = build_headline(given("x", step_time_s=1.0).outcome)
    assert bare.keys() == one.keys()
    assert (bare["usd"], bare["fits"]) == (None, None)
