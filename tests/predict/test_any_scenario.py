"""Any scenario that can be described is predicted, or refused with a reason."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone import InputError, load_scenario
from crosszone.predict.predict import build_prediction, build_predictor
from effort import examples
from inputs.scenarios import scenario_fields
from predict.given import MEGATRON, predicted, zones

degrees = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 1, 2, 4]),
        "pp": st.sampled_from([1, 1, 2, 4]),
        "dp": st.sampled_from([1, 2, 4, 8]),
        "cp": st.sampled_from([1, 1, 1, 2]),
        "micro_batch": st.sampled_from([1, 2]),
    }
)


def likely(fields: dict[str, Any], chosen: dict[str, int]) -> dict[str, Any]:
    """The scenario with degrees and a batch that often fit it, and no figures too small to be a number of anything."""
    strategy = {
        key: value for key, value in fields.get("strategy", {}).items() if key in ("zero", "recompute", "shard_within")
    }
    job = fields["job"] | {"global_batch": 3 * chosen["dp"] * chosen["micro_batch"], "framework": "any"}
    job |= {"seq_len": max(64, job["seq_len"] // 64 * 64)}
    job.pop("stack", None)
    cluster = dict(fields["cluster"])
    cluster["links"] = [_rounded(link) for link in cluster.get("links", [])]
    if "default_link" in cluster:
        cluster["default_link"] = _rounded(cluster["default_link"])
    return fields | {"job": job, "cluster": cluster, "strategy": strategy | chosen}


def _rounded(link: dict[str, Any]) -> dict[str, Any]:
    return {key: round(value, 6) if isinstance(value, float) else value for key, value in link.items()}


@pytest.mark.slow
@examples(80)
@given(scenario_fields, degrees)
def test_every_scenario_gives_finite_numbers_that_add_up_or_a_reason(fields, chosen):
    """[V3] [S10]"""
    try:
        found = build_predictor(load_scenario(likely(fields, chosen)))
    except InputError as error:
        assert error.notices
        assert all(notice.message("en") and notice.message("zh") for notice in error.notices)
        return
    got = build_prediction(found, "zh")
    step = got.step_time_s.expected
    assert math.isfinite(step)
    assert sum(got.breakdown_s.values()) == pytest.approx(step)
    assert min(got.breakdown_s.values()) >= -1e-9 * step
    assert found.timeline().step_s == pytest.approx(step)
    assert 0 < got.mfu.expected < 1
    assert all(math.isfinite(row.busy_s) and row.busy_s >= 0 and row.exposed_s >= 0 for row in got.communication)
    assert type(got).model_validate_json(got.model_dump_json()) == got


@pytest.mark.parametrize("figure", ["gbps", "flow_gbps"])
def test_a_rate_next_to_nothing_is_refused_and_the_least_one_is_predicted(figure):
    """Bytes over 1e-320 Gbit/s are more seconds than a number can say; over 1e-18 Gbit/s they are not."""
    strategy, job = {"tp": 2, "pp": 2, "dp": 4}, MEGATRON
    with pytest.raises(InputError) as error:
        predicted(strategy, job=job, cluster=zones(2, 8, **{figure: 1e-320}))
    assert [notice.code for notice in error.value.notices] == ["must_be_at_least"]
    assert math.isfinite(predicted(strategy, job=job, cluster=zones(2, 8, **{figure: 1e-18})).step_time_s.high)


def test_a_round_trip_next_to_nothing_is_as_none():
    """[T1] 1e-300 ms."""
    steps = [
        predicted({"dp": 16}, job=MEGATRON, cluster=zones(2, 8, rtt_ms=rtt)).step_time_s.expected
        for rtt in (1e-300, 0.0)
    ]
    assert steps[0] == pytest.approx(steps[1])
