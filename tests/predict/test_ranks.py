"""[R1] [R3] Every rank once: coordinates, GPU and layers."""

from __future__ import annotations

import pytest

from conftest import ROOT
from crosszone.inputs.scenario import read_scenario
from crosszone.predict.predict import build_predictor
from crosszone.predict.ranks import build_ranks


def ranks(name, **more):
    return build_ranks(build_predictor(read_scenario(ROOT / "examples" / f"{name}.yaml").scenario), **more)


@pytest.mark.parametrize("name", ["three-cities", "fourteen-gpus", "mixed-gpus", "mixtral", "four-zones-405b"])
def test_every_rank_appears_once_and_counts_equal_the_gpus_used(name):
    """[R1] F76: as many ranks as t p d c, no two at one place of the grid, no two on one GPU."""
    found = ranks(name)
    degrees, columns = found["degrees"], found["columns"]
    assert columns["rank"] == list(range(found["ranks"]))
    assert found["ranks"] == degrees["tp"] * degrees["pp"] * degrees["dp"] * degrees["cp"]
    assert len(set(zip(*(columns[axis] for axis in degrees), strict=True))) == found["ranks"]
    assert len(set(zip(*(columns[place] for place in ("group", "node", "gpu")), strict=True))) == found["ranks"]
    assert sum(zone["used"] for zone in found["zones"]) == found["ranks"]
    assert found["gpus"] - found["ranks"] == sum(one["count"] for one in found["idle"])
    for axis, degree in degrees.items():
        assert set(columns[axis]) == set(range(degree))


def test_the_coordinates_of_a_rank_by_hand():
    """Rank 37 of tp 8, dp 4, pp 4 in Megatron's order: tp 5, dp (37 // 8) % 4 = 0, pp 1; the fifth node of Beijing."""
    columns = ranks("three-cities")["columns"]
    assert [columns[axis][37] for axis in ("tp", "cp", "dp", "pp")] == [5, 0, 0, 1]
    assert [columns[place][37] for place in ("zone", "group", "node", "gpu")] == [0, 0, 4, 5]


def test_each_layer_lies_in_one_stage():
    """[R3] 80 layers in 4 stages: 20 each, from 0 to 79."""
    stages = ranks("three-cities")["stages"]
    assert [one["layers"] for one in stages] == [20] * 4
    assert [one["runs"] for one in stages] == [[[0, 19]], [[20, 39]], [[40, 59]], [[60, 79]]]


def test_an_interleaved_stage_holds_several_runs_of_layers():
    """[R3] 2 stages of 2 chunks over 80 layers: the first holds 0-19 and 40-59."""
    loaded = read_scenario(ROOT / "examples" / "three-cities.yaml").scenario
    strategy = loaded.strategy.replace(pp=2, dp=8, interleave=2, schedule="interleaved")
    found = build_ranks(build_predictor(loaded.replace(strategy=strategy)))
    assert [one["runs"] for one in found["stages"]] == [[[0, 19], [40, 59]], [[20, 39], [60, 79]]]


def test_of_very_many_ranks_some_are_listed_and_the_number_is_told():
    found = ranks("three-cities", limit=10)
    assert (found["ranks"], found["shown"], len(found["columns"]["rank"])) == (128, 10, 10)
