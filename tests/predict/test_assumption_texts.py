"""Assumptions: every switch with its origin, and in words what nobody stated that decides most."""

from __future__ import annotations

import pytest

from builders import fields
from conftest import ROOT
from crosszone.inputs.scenario import read_scenario
from crosszone.predict.answer import answer
from crosszone.text import LANGUAGES

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
WITHOUT_NIC = {
    "job": {"seq_len": 4096, "global_batch": 64, "framework": "fsdp"},
    "cluster": {"zones": [{"name": "frankfurt", "nodes": [{"count": 4, "gpus": 8, "gpu": "a100-80gb-sxm"}]}]},
    "strategy": {"dp": 32, "zero": 3},
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_told_is_assumed_and_the_largest_first(path, language):
    prediction = answer(read_scenario(path), language).prediction
    described, listed = prediction.assumptions, prediction.basis.assumptions
    assert all(assumption.origin == "assumed" and assumption.alternatives for assumption in described)
    worth = [assumption.worth_pct for assumption in listed]
    assert worth == sorted(worth, reverse=True)
    uncertain = [a.field for a in listed if a.origin == "assumed" and a.alternatives]
    assert [assumption.field for assumption in described] == uncertain[:3]
    assert len({assumption.text for assumption in described}) == len(described)


def test_a_nic_that_is_not_given_is_told_with_its_zone_and_other_rates():
    """The usual machine has 200 Gbit/s for each A100; half and twice of it are told."""
    prediction = answer(read_scenario(fields(**WITHOUT_NIC)), "en").prediction
    nic = next(assumption for assumption in prediction.assumptions if assumption.zone)
    assert (nic.value, {other.value for other in nic.alternatives}) == (200, {100, 400})
    assert nic.text.startswith("NIC of frankfurt not given: 200 Gbit/s a GPU assumed")
    slower = next(other for other in nic.alternatives if other.value == 100)
    assert f"{slower.step_time_s:.4g} s" in nic.text


def test_a_stated_switch_is_predicted_as_its_alternative_said_and_told_no_more():
    launch = {"job": WITHOUT_NIC["job"] | {"software": {"launch": "compiled", "release": "25.06"}}}
    release = {"job": WITHOUT_NIC["job"] | {"software": {"release": "25.06"}}}
    before = answer(read_scenario(fields(**WITHOUT_NIC | release)), "en").prediction
    after = answer(read_scenario(fields(**WITHOUT_NIC | launch)), "en").prediction
    assumed = next(a for a in before.basis.assumptions if a.field == "job.software.launch")
    compiled = next(other for other in assumed.alternatives if other.value == "compiled")
    assert after.step_time_s.expected == pytest.approx(compiled.step_time_s, rel=1e-9)
    assert "job.software.launch" not in {assumption.field for assumption in after.assumptions}
    assert (after.basis.release_month, after.basis.release_gpu) == ("25.06", None)
