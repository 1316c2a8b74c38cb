"""[K63] Constants of a cluster's jobs, and each set-up predicted without itself."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest

from component_rows import written
from crosszone.calibrate.components_fit import fastest, fitted_constants, left_out
from crosszone.calibrate.components_links import cluster_profile
from crosszone.calibrate.components_predict import predict_components
from crosszone.calibrate.components_read import STAGES, ComponentRun, read_components
from crosszone.cost.profile import Profiles

SETUPS = ({}, {"run_id": "two", "micro_batch": "2", "n_micro": "32"}, {"run_id": "three", "seq": "1024"})
PLANTED = {
    "host_forward_us_per_kernel": 40.0,
    "host_backward_us_per_kernel": 12.0,
    "replica_skew": 0.01,
    "send_share": 0.5,
}


@cache
def profiles() -> Profiles:
    return Profiles.load()


def made(folder: Path) -> list[ComponentRun]:
    """Jobs whose parts take what other constants than the shipped ones say."""
    runs, skipped = read_components(written(folder / "jobs.csv", *SETUPS))
    assert not skipped
    known = cluster_profile("perlmutter")
    other = replace(known, constants={**known.constants, **PLANTED})
    found = []
    for run in runs:
        told = predict_components(run, profiles(), other)
        parts = {(part, stage): told.part(part, stage) for part in ("stage_fwd", "stage_bwd") for stage in STAGES}
        parts["p2p_send", "middle"] = told.p2p_send
        parts["p2p_send", "first"] = 3 * told.p2p_send
        parts["dp_allreduce", "first"] = told.part("dp_allreduce", "first") + told.replica_wait
        found.append(replace(run, parts_s=parts, step_s=told.step))
    return found


def test_constants_are_found_again_from_what_they_make(tmp_path):
    """[K63] Planted in three set-ups, and met from the shipped ones."""
    found = fitted_constants(cluster_profile("perlmutter"), made(tmp_path), profiles())
    assert found == pytest.approx(PLANTED, rel=1e-6)


def test_a_set_up_left_out_is_predicted_by_the_others(tmp_path):
    """[K63] Jobs that follow one law are met without themselves; the shipped constants miss them."""
    jobs = made(tmp_path)
    found = left_out(jobs, profiles())
    assert [one.run.id for one in found] == ["one", "two", "three"]
    shipped = [abs(predict_components(run, profiles()).step / run.step_s - 1) for run in jobs]
    assert min(shipped) > 0.02
    assert max(abs(one.error_pct) for one in found) < 0.01


def test_one_set_up_alone_cannot_be_left_out(tmp_path):
    assert left_out(made(tmp_path)[:1], profiles()) == []
    stranger = [replace(run, cluster="elsewhere") for run in made(tmp_path)]
    assert left_out(stranger, profiles()) == []


def test_of_equal_set_ups_the_fastest_counts(tmp_path):
    one = made(tmp_path)[0]
    slow = replace(one, id="slow", step_s=2 * one.step_s)
    assert [run.id for run in fastest([slow, one])] == ["one"]


def test_constants_that_nothing_shows_are_kept(tmp_path):
    bare = [replace(run, parts_s={}) for run in made(tmp_path)]
    assert fitted_constants(cluster_profile("perlmutter"), bare, profiles()) == {}


def test_shipped_constants_are_those_of_the_measured_jobs(data):
    """[K63] To the digits they are written with; and without each set-up the targets hold too."""
    runs, _ = read_components(data / "gpumodeling25" / "runs.csv")
    for cluster, limit in (("perlmutter", 3), ("vista", 4)):
        known = cluster_profile(cluster)
        jobs = [run for run in fastest(runs) if run.cluster == cluster]
        for name, value in fitted_constants(known, jobs, profiles()).items():
            assert known.constants[name] == pytest.approx(value, rel=0.02), name
        assert fmean(abs(one.error_pct) for one in left_out(jobs, profiles())) <= limit
