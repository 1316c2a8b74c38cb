"""Software: releases by year and month, and what holds where a scenario does not state a switch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import fields
from crosszone.errors import InputError
from crosszone.inputs.rules import Case
from crosszone.inputs.scenario import load_scenario
from crosszone.inputs.software import Software, find_release_gpu, format_release, load_software_rules, parse_release
from crosszone.predict.predict import build_predictor


@given(st.integers(10, 40), st.integers(1, 12))
def test_a_release_is_written_as_it_is_read(year, month):
    assert format_release(parse_release(f"{year}.{month:02d}")) == f"{year}.{month:02d}"


@pytest.mark.parametrize(("release", "month"), [(22.0, "21.12"), (23.5, "23.06"), (25.75, "25.09")])
def test_months_count_from_one(release, month):
    assert format_release(release) == month


def test_a_stated_release_is_set_by_no_gpu():
    gpus = load_scenario(fields()).cluster.gpu_kinds
    assert find_release_gpu(None, None, gpus) in gpus
    assert find_release_gpu(Software(release="24.05"), None, gpus) is None
    assert find_release_gpu(None, "megatron-core@25.09", gpus) is None


@pytest.mark.parametrize("release", ["25.1", "25.13", "2025.09", "new"])
def test_what_is_no_release_is_refused_with_the_form(release):
    job = {"seq_len": 4096, "global_batch": 64, "software": {"release": release}}
    with pytest.raises(InputError) as refused:
        load_scenario(fields(job=job))
    notice = refused.value.notices[0]
    assert (notice.code, notice.field, notice.value) == ("release_form", "job.software.release", release)
    assert "25.09" in notice.as_dict("en")["hint"]


def build_case(framework: str, **strategy: object) -> Case:
    job = {"seq_len": 4096, "global_batch": 64, "framework": framework}
    scenario = load_scenario(fields(job=job, strategy=strategy))
    return build_predictor(scenario).case


def test_a_default_yields_to_what_a_stated_option_needs():
    """Megatron gathers weights below the forward pass only where it reduces gradients below the backward pass."""
    usual = build_case("megatron", dp=2, zero=1).strategy.communication
    stated = build_case("megatron", dp=2, zero=1, communication={"overlap_parameters": True}).strategy.communication
    assert not usual.overlap_gradients
    assert stated.overlap_parameters and stated.overlap_gradients


def test_every_era_of_a_framework_is_later_than_the_one_before():
    for eras in load_software_rules()["defaults"].values():
        starts = [era["from"] for era in eras]
        assert starts == sorted(starts)
