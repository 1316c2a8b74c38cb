"""[S10] [S13] [S14] Figures of the timeline open to their formula, and the numbers put in give them."""

from __future__ import annotations

import pytest

from conftest import ROOT
from crosszone.analyse.explain import explain, load_formulas
from crosszone.errors import InvalidError
from crosszone.inputs.scenario import read_scenario
from crosszone.predict.predict import build_prediction, build_predictor
from crosszone.schedule.timeline import build_micro_batch_view, build_view


def case(name):
    p = build_predictor(read_scenario(ROOT / "examples" / f"{name}.yaml").scenario)
    return p, build_prediction(p), build_view(p.timeline())


def shown(p, view):
    """Every figure the page shows, with its value."""
    found = {}
    for at, lane in enumerate(view["lanes"]):
        found |= {f"timeline.lanes[{at}].{name}": lane[name] for name in ("busy_s", "idle_s", "utilisation")}
    for one in view["phases"]:
        names = ("seconds", "share", "busy_s", "idle_s", "exposed_s")
        found |= {f"timeline.phases.{one['phase']}.{name}": one[name] for name in names}
    for one in view["totals"]:
        found |= {f"timeline.totals.{one['kind']}.{name}": one[name] for name in ("seconds", "share")}
    found["timeline.summary.utilisation"] = view["summary"]["utilisation"]
    found["timeline.summary.exposed"] = view["summary"]["exposed"]["share"]
    one = build_micro_batch_view(p.timeline(), 0)
    found["timeline.micro_batch[0].usage"] = one["usage"]
    for at, stage in enumerate(one["stages"]):
        found[f"timeline.micro_batch[0].stages[{at}].usage"] = stage["usage"]
    return found


@pytest.mark.parametrize("name", ["three-cities", "single-node", "mixtral"])
def test_every_figure_of_a_timeline_works_out(name):
    """F83"""
    p, prediction, view = case(name)
    for path, value in shown(p, view).items():
        one = explain(p, prediction, path)
        assert one.value == pytest.approx(value, rel=1e-12, abs=1e-12 * view["step_s"])
        assert one.result == pytest.approx(value, rel=1e-9, abs=1e-9 * view["step_s"]), path
        assert one.formula in load_formulas()
        for part in one.inputs:
            if part.figure:
                assert explain(p, prediction, part.figure).value == pytest.approx(part.value)


def test_labels_are_said_in_both_languages():
    p, prediction, view = case("single-node")
    for path in shown(p, view):
        assert explain(p, prediction, path, "en").label != explain(p, prediction, path, "zh").label


@pytest.mark.parametrize(
    "path",
    [
        "timeline.lanes[999].busy_s",
        "timeline.lanes[99999999999999].busy_s",
        "timeline.phases.lunch.seconds",
        "timeline.totals.lunch.seconds",
        "timeline.micro_batch[9999999].usage",
        "timeline.micro_batch[0].stages[99].usage",
        "timeline.step",
    ],
)
def test_a_figure_that_is_not_there_is_refused(path):
    p, prediction, _ = case("single-node")
    with pytest.raises(InvalidError) as refused:
        explain(p, prediction, path)
    assert refused.value.notices[0].code == "figure_unknown"
