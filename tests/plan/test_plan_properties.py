"""What must hold of any answer: the same twice, never worse for better links or GPUs, every GPU used or listed."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone import load_scenario
from crosszone.errors import IllegalError
from crosszone.plan.planner import plan
from crosszone.plan.search import PlanSearch
from effort import examples
from plan.given import SHOWN_AS_FOUND, fields_of, problem_of, profiles, seeded

NEAR = 1.0 + 1e-9
SPEC = {"like": "a100-80gb-sxm", "name": "given"}


@st.composite
def scenarios(draw: st.DrawFn, **limits: Any) -> dict[str, Any]:
    """Fields of a small scenario."""
    return fields_of(lambda some: draw(st.sampled_from(list(some))), **{"gpus": 8, "zones": (2,)} | limits)


def best_s(fields: dict[str, Any]) -> float:
    """Step of the best strategy; inf: none fits."""
    search = PlanSearch(problem_of(fields), top=1)
    search.run()
    return search.best.rank_families()[0][0] if search.best.rank_families() else np.inf


def answer(search: PlanSearch) -> list[Any]:
    search.run()
    return [(value, one.strategy, one.layout) for value, one in search.best.rank_families()]


@pytest.mark.parametrize("seed", [3, 8, 17, 23])
def test_two_searches_find_the_same(seed):
    """To the last bit, in the same order."""
    assert answer(PlanSearch(seeded(seed, gpus=8), top=4)) == answer(PlanSearch(seeded(seed, gpus=8), top=4))


@examples(8, phases=SHOWN_AS_FOUND)
@given(scenarios(), st.sampled_from([2.0, 10.0]))
def test_more_bandwidth_never_makes_the_best_slower(fields, factor):
    """Every link between the zones so many times as fast."""
    faster = deepcopy(fields)
    cluster = faster["cluster"]
    for link in [cluster["default_link"], *cluster.get("links", [])]:
        link |= {key: factor * link[key] for key in ("gbps", "gbps_back", "flow_gbps") if key in link}
    for zone in cluster["zones"]:
        if "uplink_gbps" in zone:
            zone["uplink_gbps"] *= factor
    assert best_s(faster) <= best_s(fields) * NEAR


@examples(8, phases=SHOWN_AS_FOUND)
@given(scenarios(), st.sampled_from([0.0, 0.5]))
def test_a_shorter_round_trip_never_makes_the_best_slower(fields, factor):
    """Every round-trip time so many times as long."""
    nearer = deepcopy(fields)
    for link in [nearer["cluster"]["default_link"], *nearer["cluster"].get("links", [])]:
        link["rtt_ms"] *= factor
    assert best_s(nearer) <= best_s(fields) * NEAR


@examples(8, phases=SHOWN_AS_FOUND)
@given(scenarios(), st.sampled_from([1.5, 3.0]))
def test_a_faster_gpu_never_makes_the_best_slower(fields, factor):
    """All GPUs of one kind; then the same kind with a higher peak and bandwidth of memory."""
    steps = []
    for times in (1.0, factor):
        one = deepcopy(fields)
        kind = SPEC | {
            "dense_tflops": dict.fromkeys(("fp16", "bf16"), 312.0 * times) | {"fp32": 19.5 * times},
            "memory_gb_per_s": 2039.0 * times,
        }
        for zone in one["cluster"]["zones"]:
            zone["nodes"] = [node | {"gpu": kind} for node in zone["nodes"]]
        steps.append(best_s(one))
    assert steps[1] <= steps[0] * NEAR


@examples(8, phases=SHOWN_AS_FOUND)
@given(scenarios(zones=(1,)), st.sampled_from([1, 10]), st.sampled_from([5, 50]))
def test_one_zone_is_never_slower_than_two(fields, gbps, rtt_ms):
    """Twice the nodes in one zone, or half of them behind a slow link between zones."""
    (zone,) = fields["cluster"]["zones"]
    whole, apart = deepcopy(fields), deepcopy(fields)
    whole["cluster"]["zones"] = [zone | {"nodes": [n | {"count": 2 * n["count"]} for n in zone["nodes"]]}]
    apart["cluster"] = {"zones": [zone, zone | {"name": "b"}], "default_link": {"gbps": gbps, "rtt_ms": rtt_ms}}
    assert best_s(whole) <= best_s(apart) * NEAR


@pytest.mark.slow
@examples(6, phases=SHOWN_AS_FOUND)
@given(scenarios(gpus=12, zones=(2, 3)))
def test_tensor_parallel_groups_never_cross_zones(fields):
    """Links of 1 Gbit/s: whatever crosses them, it is not tensor or context parallelism."""
    fields["cluster"]["default_link"] = {"gbps": 1, "rtt_ms": 30}
    search = PlanSearch(problem_of(fields), top=8)
    search.run()
    for _, one in search.best.rank_families():
        zones = one.predictor.placed.zone
        assert (zones == zones[:, :, :1, :1]).all()


@examples(8, phases=SHOWN_AS_FOUND)
@given(scenarios(gpus=10))
def test_every_gpu_is_used_or_listed_as_idle_and_every_plan_fits(fields):
    """Ranks and idle GPUs add up to the cluster; plans are in order; what is recommended fits."""
    scenario = load_scenario(fields)
    try:
        found = plan(scenario, top=3, local_updates=False, profiles=profiles())
    except IllegalError as error:
        assert error.notices
        return
    assert [one.rank for one in found.plans] == list(range(1, len(found.plans) + 1))
    assert [one.value for one in found.plans] == sorted(one.value for one in found.plans)
    assert found.complete
    for one in found.plans:
        assert one.placement.ranks + sum(idle.count for idle in one.idle) == scenario.cluster.gpus
        assert one.placement.ranks == one.strategy.ranks == one.prediction.gpus
        assert one.prediction.memory_gib.fits
        assert one.value == pytest.approx(one.prediction.step_time_s.expected, rel=1e-9)


def test_two_plans_of_one_scenario_are_equal():
    """But for the time it took."""
    scenario = load_scenario(fields_of(Random(5).choice, gpus=8, zones=(2,)))
    first, second = (plan(scenario, top=3, profiles=profiles()) for _ in range(2))
    assert first.replace(seconds=0.0) == second.replace(seconds=0.0)
