"""The twin names what drifted and since when, is silent about noise, and proposes a plan only where it pays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.inputs.scenario import parse_scenario
from crosszone.predict.prediction import Prediction
from crosszone.run.history import save_history
from crosszone.run.measurements import (
    MIN_STEPS,
    NAMES,
    WARM_UP,
    WINDOW,
    average_periods,
    compute_typical,
    find_level,
    group_predicted_parts,
    map_covered_parts,
    split_warm_up,
)
from crosszone.run.monitor import compare_run, localize_comparison
from crosszone.store import open_store
from effort import examples
from run.measured_runs import rows, work


def test_a_run_as_predicted_has_no_drift_and_its_parts_add_up():
    twin = compare_run(work(), rows(work(), 60))
    assert twin.drifts == () and twin.replan is None
    assert twin.step.inside and all(part.inside for part in twin.parts)
    assert [part.name for part in twin.parts] == list(NAMES)
    assert sum(part.measured_s for part in twin.parts) == pytest.approx(twin.step.measured_s, rel=1e-9)
    assert sum(part.predicted_s for part in twin.parts) == pytest.approx(twin.step.predicted_s, rel=1e-9)
    for step in twin.recent:
        assert sum(step.parts_s.values()) == pytest.approx(step.step_s, rel=1e-9)


def test_a_link_that_gives_half_is_named_with_its_rate_and_step():
    """What a link of half the rate would take is what was measured: so half the rate is found."""
    halved = Prediction.model_validate(work(gbps=0.25).prediction)
    prediction = Prediction.model_validate(work().prediction)
    parts = [group_predicted_parts(variant, "ddp")["communication"].seconds for variant in (prediction, halved)]
    twin = compare_run(work(), rows(work(), 160, slow={"communication": parts[1] / parts[0]}, since=121, noise=0.02))
    (drift,) = twin.drifts
    assert (drift.part, drift.kind, drift.since_step) == ("communication", "outside", 121)
    assert drift.link.link == "beijing–shanghai" and drift.link.planned_gbps == 0.5
    assert drift.link.gbps == pytest.approx(0.25, rel=0.05)
    english, chinese = (localize_comparison(twin, language).drifts[0].notice["message"] for language in ("en", "zh"))
    assert "since step 121" in english and "of 0.5 Gbit/s" in english
    assert "第 121 步" in chinese and "beijing–shanghai" in chinese


@pytest.mark.parametrize("part", ["compute", "input", "other"])
def test_other_parts_are_named_without_blaming_a_link(part):
    steps = rows(work(), 80)
    for row in steps[50:]:
        more = row["step_s"] * 0.5
        row["parts"][f"{part}_s"] += more
        row["step_s"] += more
    twin = compare_run(work(), steps)
    (drift,) = twin.drifts
    assert (drift.part, drift.since_step, drift.link) == (part, 51, None)
    assert drift.notice["code"] == f"twin_{part}_slow" and twin.replan is None


def test_in_one_zone_slow_communication_is_not_laid_on_a_link_between_zones():
    of = work(zones=1)
    steps = rows(of, 80)
    for row in steps[50:]:
        more = row["step_s"] * 0.5
        row["parts"]["communication_s"] += more
        row["step_s"] += more
    (drift,) = compare_run(of, steps).drifts
    assert drift.notice["code"] == "twin_communication_slow" and drift.link is None


@examples(25)
@given(seed=st.integers(0, 10**6), noise=st.floats(0.0, 0.08), count=st.integers(WARM_UP + 1, 120))
def test_noise_about_the_prediction_is_no_drift(seed, noise, count):
    assert compare_run(work(), rows(work(), count, seed=seed, noise=noise)).drifts == ()


@examples(25)
@given(
    seed=st.integers(0, 10**6),
    noise=st.floats(0.0, 0.08),
    since=st.integers(30, 80),
    more=st.floats(1.5, 4.0),
)
def test_half_as_much_again_is_found_within_the_window(seed, noise, since, more):
    steps = rows(work(), since + WINDOW - 1, seed=seed, noise=noise, slow={"communication": more}, since=since)
    (drift,) = compare_run(work(), steps).drifts
    assert drift.part == "communication" and abs(drift.since_step - since) <= 1
    assert drift.ratio == pytest.approx(more, rel=0.1)


@examples(50)
@given(values=st.lists(st.floats(0.9, 1.1), min_size=1, max_size=300), outlier=st.integers(0, 10**6))
def test_single_slow_steps_change_no_level(values, outlier):
    slow = list(values)
    if len(slow) > 4 * MIN_STEPS:
        slow[outlier % len(slow)] = 50.0
    level = find_level(slow, material=0.05)
    assert level.before is None and 0.9 <= level.now <= (50.0 if len(values) < 3 else 1.1)


def test_a_run_that_recovers_has_no_drift():
    steps = rows(work(), 120, slow={"communication": 2.0}, since=40)
    steps[80:] = rows(work(), 120)[80:]
    assert compare_run(work(), steps).drifts == ()


def test_a_run_that_never_was_as_predicted_says_so_from_its_first_step():
    (drift,) = compare_run(work(), rows(work(), 60, slow={"communication": 2.0}, since=1)).drifts
    assert (drift.since_step, drift.before_s, drift.kind) == (WARM_UP + 1, None, "outside")
    fast = compare_run(work(), rows(work(), 60, slow={"communication": 0.2}, since=1))
    assert fast.drifts[0].notice["code"] == "twin_faster" and fast.replan is None


def test_the_first_steps_of_every_start_are_left_out_and_it_says_so():
    steps = rows(work(), 30) + [row | {"step": row["step"] + 30} for row in rows(work(), 30, start=1)]
    for at in (0, 1, 2, 30, 31, 32):
        steps[at]["parts"]["compute_s"] += 100.0
        steps[at]["step_s"] += 100.0
    twin = compare_run(work(), steps)
    assert twin.drifts == () and (twin.warm_up_steps, twin.first_step) == (6, 4)
    assert twin.notices[0]["code"] == "twin_warm_up"
    steady, warm = split_warm_up(steps[10:])  # what is read may begin in the middle of a start
    assert warm == {31, 32, 33} and steady[0]["step"] == 11


def test_too_few_steps_say_nothing_but_that():
    for count in (0, 1, WARM_UP + MIN_STEPS - 1):
        twin = compare_run(work(), rows(work(), count, slow={"communication": 9.0}, since=1))
        assert twin.drifts == () and "twin_few_steps" in {notice["code"] for notice in twin.notices}


@pytest.mark.slow
def test_a_plan_is_proposed_only_where_it_repays_its_cost():
    slow = {"slow": {"communication": 3.0}, "since": 60}
    far = compare_run(work(100_000), rows(work(100_000), 100, **slow)).replan
    assert far.proposed and far.notice["code"] == "twin_replan" and far.new_step_s < far.step_s
    # by hand: what is left, times what a step saves, less a checkpoint of 2 s and the restart that was predicted
    good = work().prediction["run"]["goodput"]
    restart = good["lost_per_failure_s"] - good["interval_s"] / 2
    assert far.cost_s == pytest.approx(2.0 + restart)
    assert far.gain_s == pytest.approx(99_900 * (far.step_s - far.new_step_s) - far.cost_s)
    assert parse_scenario(far.scenario, "x").scenario.strategy is not None
    near = compare_run(work(101), rows(work(101), 100, **slow)).replan
    assert not near.proposed and near.scenario is None and near.notice["code"] == "twin_replan_not_worth"
    for language in ("en", "zh"):
        assert localize_comparison(compare_run(work(101), rows(work(101), 100, **slow)), language).replan.notice[
            "message"
        ]


def test_a_restart_that_was_measured_is_what_a_restart_costs():
    slow = {"slow": {"communication": 3.0}, "since": 1}
    first, second = rows(work(), 40, **slow), [row | {"step": row["step"] + 40} for row in rows(work(), 40, **slow)]
    first = [row | {"ended_unix_s": 1000.0 + row["step"]} for row in first]
    second = [row | {"ended_unix_s": 1052.0 + row["step_s"] + row["step"] - 41, "start": 1} for row in second]
    write = work().prediction["run"]["goodput"]["checkpoint_s"]  # none was written yet
    assert compare_run(work(), first + second).replan.cost_s == pytest.approx(12.0 + write)


@pytest.mark.parametrize("framework", ["ddp", "fsdp", "deepspeed", "horovod", "megatron", "torchft"])
@pytest.mark.parametrize("pipelined", [False, True])
def test_every_part_of_a_prediction_is_in_one_measured_part(framework, pipelined):
    covered = [part for parts in map_covered_parts(framework, pipelined=pipelined).values() for part in parts]
    assert sorted(covered) == sorted(work().prediction["breakdown_s"])


def test_steps_between_two_exchanges_are_averaged():
    steps = rows(work(), 12)
    for row in steps:
        row["parts"] = dict.fromkeys(row["parts"], 0.0) | {"communication_s": 4.0 if row["step"] % 4 == 0 else 0.0}
        row["step_s"] = sum(row["parts"].values())
    means = average_periods(steps[1:], 4)  # the first block is not whole
    assert [row["step_s"] for row in means] == [1.0, 1.0]
    assert compute_typical(means) == {"step": 1.0, **dict.fromkeys(NAMES, 0.0), "communication": 1.0}


def test_after_a_run_the_history_holds_predicted_and_measured_once(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/saved.db") as store:
        task = store.tasks.add(name="two cities", request={})[0]
        assert save_history(store, task, work(), []) is None and store.results.page().total == 0
        steps = rows(work(), 63, noise=0.0)
        first = save_history(store, task, work(), steps[:33])
        again = save_history(store, task, work(), steps)
        assert first.id == again.id and store.results.page().total == 2
        measured, prediction = store.results.page().rows
        assert (measured.kind, prediction.kind, measured.name) == ("measured", "predicted", "two cities")
        step = work().prediction["step_time_s"]["expected"]
        assert measured.headline["step_time_s"]["value"] == pytest.approx(step)
        assert measured.headline["predicted"]["step_time_s"]["value"] == pytest.approx(step)
        run = again.document["run"]
        assert (run["steps"], run["steps_counted"], run["last_step"]) == (63, 60, 63)
        assert run["loss"] == {"first": 9.0, "last": 9.0 / 63} and run["checkpoint_s"] == 2.0
        assert sum(again.document["breakdown_s"].values()) == pytest.approx(step)
        assert sum(run["predicted"]["parts_s"].values()) == pytest.approx(step)
        store.results.change(again.id, name="mine")
        assert save_history(store, task, work(), steps).name == "mine"
