"""Single-run calibration: the few coefficients that explain it move, the total is never scaled."""

from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from conftest import ROOT
from crosszone.calibrate.coefficient_estimate import (
    SITE_SPREADS,
    SPREAD_SHARE_FITTED,
    SPREAD_SHARE_UNFITTED,
    CoefficientPrior,
    build_priors,
    condition_covariance,
    estimate_coefficients,
    measure_sensitivities,
    select_coefficients,
    solve_update,
)
from crosszone.calibrate.single_run import (
    Alternative,
    calibrate_single_run,
    iterate_variations,
    predict_observed_s,
    rank_next_runs,
    scale_coefficients,
)
from crosszone.cli import run as _run
from crosszone.cost import own_profiles
from crosszone.cost.profile import Profiles
from crosszone.errors import InvalidError
from crosszone.inputs.scenario import load_scenario
from crosszone.inputs.strategy import Strategy
from crosszone.predict.predict import build_predictor

SCENARIO = ROOT / "examples" / "single-node.yaml"
TOKENS, GPUS = 128 * 4096, 8


def build_prior(
    field: str, sd: float, value: float = 1.0, lower: float = 0.01, upper: float = 100.0
) -> CoefficientPrior:
    return CoefficientPrior(field=field, value=value, sd=sd, lower=lower, upper=upper, of_gpu=False)


def parts(**seconds: float):
    """A step that is a sum of parts, each in proportion to a coefficient."""

    def predict(factors):
        return [sum(s * factors.get(name, 1.0) for name, s in seconds.items())]

    return predict


def titan(folder: Path, step_s: float, name: str = "titan.log", lines: int = 8) -> Path:
    path = folder / name
    rate = TOKENS / GPUS / step_s
    text = [f"step: {n * 10}  loss:  7.7  memory: 58.35GiB(73.42%)  tps: {rate:,.3f}" for n in range(1, lines + 1)]
    path.write_text("\n".join(text), encoding="utf-8")
    return path


def test_priors_are_the_profiles_error_and_how_sites_differ():
    """[K32] The stack has its own host_s (error 0.066): hypot(0.066, 0.2 x 0.6); score_traffic is common."""
    profiles = Profiles.load_shipped()
    result = {one.field: one for one in build_priors(profiles, ["h100"], "megatron-core")}
    own, common = profiles.place["stack megatron-core", "host_s"], profiles.place["common", "score_traffic"]
    assert result["host_s"].sd == pytest.approx(
        math.hypot(profiles.errors[own], SPREAD_SHARE_FITTED * SITE_SPREADS["host_s"])
    )
    expected = math.hypot(profiles.errors[common], SPREAD_SHARE_UNFITTED * SITE_SPREADS["score_traffic"])
    assert result["score_traffic"].sd == pytest.approx(expected)
    assert result["matmul"].of_gpu and not result["host_s"].of_gpu


def test_sensitivities_are_shares_of_the_step_and_choose_the_coefficients():
    """[K33] Parts of 6, 3 and 1 s: sensitivities 0.6, 0.3, 0.1; with sd 0.01, 0.2, 0.2 the second holds 0.0036 of 0.0040."""
    priors = [build_prior("a", 0.01), build_prior("b", 0.2), build_prior("c", 0.2)]
    result = measure_sensitivities(parts(a=6.0, b=3.0, c=1.0), priors, {})
    assert result[0] == pytest.approx([0.6, 0.3, 0.1], rel=1e-3)
    assert select_coefficients(result[0], np.array([0.01, 0.2, 0.2]), 3) == [1]
    assert select_coefficients(result[0], np.array([0.01, 0.2, 0.2]), 3, share=0.95) == [1, 2]


def test_a_share_at_its_limit_is_varied_downwards():
    """[K33]"""
    seen = []
    measure_sensitivities(lambda f: [seen.append(f.get("a", 1.0)) or 1.0], [build_prior("a", 0.1, upper=1.0)], {})
    assert max(seen) <= 1.0


def test_one_measurement_moves_each_coefficient_by_sd_squared_times_sensitivity():
    """[K34] r = 0.1, J = (0.6, 0.3), sd = (0.1, 0.2), noise 0: J V J' = 0.0072; changes 0.006 r / 0.0072 and 0.012 r / 0.0072."""
    jacobian, sd = np.array([[0.6, 0.3]]), np.array([0.1, 0.2])
    change = solve_update(jacobian, sd, np.array([1e-9]), np.array([0.1]))
    assert change == pytest.approx([0.0006 / 0.0072, 0.0012 / 0.0072])
    assert jacobian @ change == pytest.approx([0.1])


def test_what_remains_unknown_after_a_measurement():
    """[K35] One coefficient: 1 / (1 / 0.2^2 + 0.5^2 / 0.05^2); one that is not seen keeps its error."""
    left = condition_covariance(np.diag([0.04, 0.09]), np.array([[0.5, 0.0]]), np.array([0.05]))
    assert left[0, 0] == pytest.approx(1.0 / (1.0 / 0.04 + 0.25 / 0.0025))
    assert left[1, 1] == pytest.approx(0.09)


@pytest.mark.parametrize("factor", [0.8, 0.97, 1.02, 1.3, 1.9])
def test_the_step_is_met_within_three_percent_by_the_widest_prior(factor):
    """[K34] The well-known part hardly moves."""
    priors = [build_prior("known", 0.01), build_prior("loose", 0.4), build_prior("idle", 0.5)]
    result = estimate_coefficients(parts(known=6.0, loose=4.0), priors, [10.0 * factor], [0.05])
    assert result.explained and abs(result.after[0] / (10.0 * factor) - 1.0) <= 0.03
    assert abs(math.log(result.factors.get("known", 1.0))) < 0.05
    assert "idle" not in result.factors and result.errors["idle"] == pytest.approx(0.5)
    assert result.errors["loose"] < 0.4


def test_what_no_believable_value_explains_is_said():
    """[K34] Even at their limits the parts give 12 s."""
    priors = [build_prior("a", 0.1, upper=1.2), build_prior("b", 0.1, upper=1.2)]
    result = estimate_coefficients(parts(a=6.0, b=4.0), priors, [20.0], [0.05])
    assert not result.explained and result.after[0] == pytest.approx(12.0, rel=1e-3)


def test_the_run_that_tells_plans_apart_comes_first():
    """[K36] The best plans differ in b alone; only the run that depends on b narrows their difference."""

    def other(name, step_s, *sensitivity):
        return Alternative(name=name, step_s=step_s, sensitivity=np.array(sensitivity))

    present, others = (
        other("", 1.0, 1.0, 0.0),
        [other("a", 9.0, 1.0, 0.0), other("b", 1.1, 0.5, 0.5), other("c", 1.2, 0.9, 0.1)],
    )
    runs = rank_next_runs(present, others, np.diag([0.0001, 0.04]))
    assert runs[0].name == "b" and runs[0].sd_after_pct < 0.6 * runs[0].sd_before_pct
    gaps = [(0.5, 0.5), (0.1, 0.1), (0.4, 0.4)]
    now = sum(0.0001 * a * a + 0.04 * b * b for a, b in gaps) / 3
    assert runs[0].sd_before_pct == pytest.approx(100.0 * math.sqrt(now))


def test_variations_keep_the_number_of_gpus():
    """[K36]"""
    s = Strategy(tp=2, pp=4, dp=4, micro_batch=2, recompute="full")
    result = dict(iterate_variations(s))
    for change in result.values():
        assert s.replace(**change).ranks == s.ranks
    assert result["tp x2"] == {"tp": 4, "dp": 2} and "recompute none" in result and "micro_batch / 2" in result


def test_parts_of_a_predicted_step():
    """[K37] Forward, backward and optimizer leave little of the step: its fixed time and jitter."""
    case = build_predictor(load_scenario(SCENARIO).replace(strategy=Strategy(micro_batch=2, zero=2)))
    result = predict_observed_s(case, ["forward", "backward", "optimizer", "forward_backward"])
    assert result["forward"] + result["backward"] == pytest.approx(result["forward_backward"])
    assert 0.97 * result["step"] < result["forward_backward"] + result["optimizer"] <= result["step"]
    assert 1.5 < result["backward"] / result["forward"] < 3.5
    assert "forward" not in predict_observed_s(
        build_predictor(load_scenario(SCENARIO)), ["forward"]
    )  # weights are sharded there


def test_factors_on_coefficients_change_the_case_and_nothing_else():
    case = build_predictor(load_scenario(SCENARIO))
    slower = scale_coefficients(case, {"matmul": 0.5})
    assert slower.step_time.expected > 1.2 * case.step_time.expected
    assert scale_coefficients(slower, {"matmul": 2.0}).step_time.expected == pytest.approx(case.step_time.expected)


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.25])
def test_a_log_is_met_within_three_percent_through_its_own_profile(tmp_path, factor):
    scenario = load_scenario(SCENARIO)
    before = build_predictor(scenario, profiles=Profiles.load_shipped()).step_time.expected
    result = calibrate_single_run(
        titan(tmp_path, factor * before), scenario, name="mine", profiles=Profiles.load_shipped()
    )
    own = result.profile
    after = build_predictor(scenario, profiles=Profiles.load_shipped().with_own(own)).step_time.expected
    assert after == pytest.approx(factor * before, rel=0.03)
    assert after == pytest.approx(result.after_s["step"], rel=1e-3)
    assert own.scores["error_after_pct"] == pytest.approx(100.0 * (after / (factor * before) - 1.0), abs=0.1)
    assert (factor == 1.0) == (not result.moved)
    assert len(result.moved) <= 3
    assert (
        result.next_runs
        and {one.name for one in result.next_runs} <= dict(iterate_variations(default_strategy(scenario))).keys()
    )
    assert result.memory_gib and result.memory_gib[0] == 58.35


def default_strategy(scenario):
    return build_predictor(scenario).strategy


def test_a_step_faster_than_the_peak_and_one_that_nothing_explains_are_refused(tmp_path):
    scenario = load_scenario(SCENARIO)
    for step_s, code in ((0.5, "log_too_fast"), (2000.0, "log_not_explained")):
        with pytest.raises(InvalidError) as caught:
            calibrate_single_run(titan(tmp_path, step_s), scenario)
        assert caught.value.notices[0].code == code


def test_the_command_saves_uses_and_says_what_it_did(tmp_path, capsys):
    path = titan(tmp_path, 18.0)
    assert _run(["calibrate", "log", str(path), "--scenario", str(SCENARIO), "--save", "mine", "--use", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["saved"] == "mine" and document["format"] == "torchtitan"
    assert own_profiles.get_default() == "mine"
    assert build_predictor(load_scenario(SCENARIO)).step_time.expected == pytest.approx(18.0, rel=0.03)
    assert _run(["calibrate", "log", str(path), "--scenario", str(SCENARIO)]) == 0
    shown = capsys.readouterr().out
    assert "torchtitan" in shown and "median of" in shown


def test_nothing_is_kept_of_a_log_that_is_wrong(tmp_path, capsys):
    path = titan(tmp_path, 18.0)
    path.write_text(path.read_text().replace("tps: ", "tps: -", 1))
    assert _run(["calibrate", "log", str(path), "--scenario", str(SCENARIO), "--save", "bad", "--json"]) == 2
    errors = json.loads(capsys.readouterr().out)["errors"]
    assert errors[0]["code"] == "log_time" and errors[0]["line"] == 1
    assert own_profiles.list_saved() == []
    assert _run(["calibrate", "log", str(path), "--scenario", str(SCENARIO), "--use"]) == 2


def test_a_log_that_is_called_as_no_profile_may_be_gives_one_all_the_same(tmp_path):
    result = calibrate_single_run(titan(tmp_path, 18.0, name="default.log"), load_scenario(SCENARIO))
    assert result.profile.name == "default-measured"
    assert datetime.strptime(result.profile.created, "%Y-%m-%dT%H:%M:%S%z").tzinfo
    assert result.stack == result.as_dict()["stack"] == build_predictor(load_scenario(SCENARIO)).stack


@pytest.mark.parametrize("name", ["default", "Not A Name", "taken"])
def test_a_name_that_cannot_be_kept_is_refused_before_the_work(tmp_path, capsys, name):
    own_profiles.save(own_profiles.OwnProfile(name="taken", source="s", created="d"))
    missing = str(tmp_path / "nothing-is-read.log")
    assert _run(["calibrate", "log", missing, "--scenario", str(SCENARIO), "--save", name, "--json"]) == 2
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert error["code"] == ("own_profile_exists" if name == "taken" else "own_profile_name")
    if name != "taken":
        with pytest.raises(InvalidError) as caught:
            calibrate_single_run(Path(missing), load_scenario(SCENARIO), name=name)
        assert caught.value.notices[0].code == "own_profile_name"


def test_a_run_that_links_between_zones_decide_is_not_blamed_on_the_gpu(tmp_path):
    """660 s of which nearly all are spent on links: no coefficient of a GPU or a stack explains half as much again."""
    scenario = load_scenario(ROOT / "examples" / "three-cities.yaml")
    step_s = 1.5 * build_predictor(scenario).step_time.expected
    line = " iteration {:8d}/     100 | elapsed time per iteration (ms): {:.1f} | global batch size: {:5d} |"
    path = tmp_path / "three.log"
    path.write_text("\n".join(line.format(n, 1e3 * step_s, scenario.job.global_batch) for n in range(1, 9)))
    with pytest.raises(InvalidError) as caught:
        calibrate_single_run(path, scenario)
    assert caught.value.notices[0].code in ("log_other_cause", "log_not_explained")


def test_a_timer_of_another_thing_is_left_out_and_told(tmp_path):
    scenario = load_scenario(SCENARIO).replace(strategy=Strategy(micro_batch=2, zero=2))
    case = build_predictor(scenario)
    step, forward = case.step_time.expected, predict_observed_s(case, ["forward"])["forward"]
    path = tmp_path / "ds.log"
    rate = scenario.job.global_batch / step
    parts_ms = f"[Rank 0] time (ms) | fwd: {1e3 * forward:.2f} | bwd: {2e3 * forward:.2f} | step: {0.4e3 * step:.2f}"
    lines = [f"0/{n}, RunningAvgSamplesPerSec={rate}, CurrSamplesPerSec={rate}\n{parts_ms}" for n in range(3, 9)]
    path.write_text("\n".join(lines))
    result = calibrate_single_run(path, scenario)
    assert result.format == "deepspeed" and set(result.measured_s) == {"step", "forward", "backward"}
    assert "log_parts_apart" in [notice.code for notice in result.notices]
