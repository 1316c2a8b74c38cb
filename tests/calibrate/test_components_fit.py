"""[K63] What a cluster's jobs show of its software, and each set-up predicted without itself."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest

from component_rows import written
from crosszone.calibrate.components import add_cluster_profile, predict_components
from crosszone.calibrate.components_fit import (
    FITTED_COEFFICIENTS,
    fit_cluster,
    fit_stack,
    predict_left_out_setups,
    select_fastest,
)
from crosszone.calibrate.components_read import STACK, STAGES, ComponentRun, read_components
from crosszone.cost.coefficients import Coefficient
from crosszone.cost.own_profiles import OwnProfile, load
from crosszone.cost.profile import Profiles

SETUPS = ({}, {"run_id": "two", "micro_batch": "2", "n_micro": "32"}, {"run_id": "three", "norm": "rmsnorm"})
PLANTED = {"host_s": 0.0008, "host_backward": 2.0, "elementwise": 1.2, "optimizer_traffic": 300.0, "jitter": 0.004}


@cache
def profiles() -> Profiles:
    return add_cluster_profile("perlmutter", Profiles.load_shipped())


def with_stack(values: dict[str, float]) -> Profiles:
    given = {name: Coefficient(value=value, error=0.0, origin="fitted") for name, value in values.items()}
    return profiles().with_own(OwnProfile(name="planted", source="", created="", stacks={STACK: given}))


def made(folder: Path) -> list[ComponentRun]:
    """Jobs whose parts take what other coefficients than the shipped ones say."""
    runs, skipped = read_components(written(folder / "jobs.csv", *SETUPS))
    assert not skipped
    planted = with_stack(PLANTED)
    found = []
    for run in runs:
        predicted = predict_components(run, planted)
        parts = {
            (part, stage): predicted.get_part_s(part, stage) for part in ("stage_fwd", "stage_bwd") for stage in STAGES
        }
        parts["update", "first"] = predicted.get_part_s("update", "first")
        parts["dp_allreduce", "first"] = predicted.get_part_s("dp_allreduce", "first") + predicted.replica_wait
        found.append(replace(run, parts_s=parts, step_s=predicted.step))
    return found


def test_the_parts_of_jobs_are_met_by_what_is_fitted_to_them(tmp_path):
    """[K63] Stages and steps within a fraction of what the shipped values miss them by; planted values come near."""
    jobs = made(tmp_path)
    found = fit_stack(jobs, profiles())
    for job in jobs:
        before, after = (predict_components(job, one) for one in (profiles(), found.profiles))
        assert abs(after.step / job.step_s - 1) < 0.005 < abs(before.step / job.step_s - 1)
        for part in ("stage_fwd", "stage_bwd"):
            assert after.get_part_s(part, "middle") == pytest.approx(job.parts_s[part, "middle"], rel=0.01)
    # the one coefficient that a part of its own shows: the wait before the sum of the gradients
    assert found.coefficients["jitter"].value == pytest.approx(PLANTED["jitter"], rel=0.15)


def test_a_coefficient_that_no_job_shows_stays_at_the_shipped_value(tmp_path):
    """One replica waits for nobody."""
    shipped = Profiles.load_shipped().coefficients(["generic"], [STACK]).jitter
    single = {"dp": "1", "pp": "1", "mp": "1", "gpus": "1", "gpus_per_node": "1", "layers_first": "44"}
    single |= {"global_batch": "64"}
    alone, _ = read_components(written(tmp_path / "alone.csv", single))
    assert fit_stack(alone, profiles()).coefficients["jitter"].value == pytest.approx(float(shipped[0, 0]), rel=1e-3)


def test_a_set_up_left_out_is_predicted_by_the_others(tmp_path):
    """[K63] Jobs that follow one law are met without themselves; the shipped values miss them."""
    jobs = made(tmp_path)
    found = predict_left_out_setups(jobs, profiles())
    assert [one.run.id for one in found] == ["one", "two", "three"]
    shipped = [100 * abs(predict_components(run, profiles()).step / run.step_s - 1) for run in jobs]
    assert fmean(abs(one.error_pct) for one in found) < fmean(shipped) / 2


def test_one_set_up_alone_cannot_be_left_out(tmp_path):
    jobs = made(tmp_path)
    assert predict_left_out_setups(jobs[:1], profiles()) == []
    assert predict_left_out_setups([jobs[0], replace(jobs[1], cluster="elsewhere")], profiles()) == []


def test_of_equal_set_ups_the_fastest_counts(tmp_path):
    one = made(tmp_path)[0]
    slow = replace(one, id="slow", step_s=2 * one.step_s)
    assert [run.id for run in select_fastest([slow, one])] == ["one"]


@pytest.mark.slow
def test_the_shipped_profile_is_what_the_measured_jobs_say(data):
    """[K63] To the digits it is written with: fitted anew beside the kernels and links of the file."""
    runs, _ = read_components(data / "gpumodeling25" / "runs.csv")
    known = load("vista")
    links_and_kernels = Profiles.load_shipped().with_own(
        known.model_copy(update={"stacks": {}})
    )  # sends as in the jobs
    jobs = [run for run in select_fastest(runs) if run.cluster == "vista"]
    found = fit_stack(jobs, links_and_kernels)
    assert set(known.stacks[STACK]) == set(FITTED_COEFFICIENTS)
    for name, one in found.coefficients.items():
        assert known.stacks[STACK][name].value == pytest.approx(one.value, rel=0.02), name


def test_a_profile_of_jobs_says_how_good_it_is(tmp_path):
    own = fit_cluster(made(tmp_path)[:2], profiles(), name="lab").profile
    assert own.scores["jobs"][STACK]["setups"] == 2
    assert own.scores["jobs"][STACK]["fitted_pct"] < 0.5
    assert own.scores["jobs"][STACK]["left_out_pct"] < 5
    assert set(own.stacks) == {STACK} and not own.gpus and not own.collectives


def test_sends_reach_less_while_all_stages_send(tmp_path):
    """[K62] The least send of a job takes twice what it takes alone: half of the rate between nodes, no other changes."""
    (run,), _ = read_components(written(tmp_path / "jobs.csv", {}))
    told = predict_components(run, profiles())
    crowded = replace(run, parts_s={("p2p_send", "first"): 3 * told.p2p_send, ("p2p_send", "last"): 2 * told.p2p_send})
    before, after = (
        {(x.op, x.nodes, x.gpus_per_node, x.low_bytes): x for x in links.collectives}
        for links in (profiles().links, fit_stack([crowded], profiles()).profiles.links)
    )
    changed = {key for key in before if before[key] != after[key]}
    assert {key[:3] for key in changed} == {("send_recv", 2, 1)}
    (key,) = changed
    assert after[key].gb_per_s == pytest.approx(before[key].gb_per_s / 2, rel=1e-3)
    assert after[key].origin == "fitted"
