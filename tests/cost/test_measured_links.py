"""[C15] Collectives timed on a cluster in place of the catalogue's rates: looked up, predicted, planned, recorded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import scenario
from crosszone.calibrate.components_read import STACK
from crosszone.cost.coefficients import Coefficient
from crosszone.cost.measured_links import CollectiveTimings, Group, MeasuredCollective, encode_gpu
from crosszone.cost.own_profiles import OwnProfile, join_profiles, list_clusters, load, parse_text
from crosszone.cost.profile import Profiles
from crosszone.cost.tiers import Tier
from crosszone.errors import InputError
from crosszone.inputs.document import dump_yaml
from crosszone.plan.planner import plan
from crosszone.plan.problem import PlanCache
from crosszone.predict.predict import build_prediction, build_predictor, predict
from crosszone.predict.recorded import record_prediction
from effort import examples
from plan.exhaustive import compared, small_problem
from predict.given import MEGATRON, one_zone

GPU = "a100-80gb-sxm"
OTHERWISE = Tier(7e9, 3e-6)


def timed(op: str = "all_reduce", nodes: int = 1, gpus: int = 8, **cells) -> MeasuredCollective:
    fields = {"gpu": GPU, "low_bytes": 1e6, "high_bytes": 1e9, "latency_us": 10.0, "gb_per_s": 100.0}
    return MeasuredCollective(op=op, nodes=nodes, gpus_per_node=gpus, error_pct=1.0, rows=9, **(fields | cells))


def profile(*collectives: MeasuredCollective, name: str = "lab") -> OwnProfile:
    return OwnProfile(name=name, source="timed", created="2026-11-18", collectives=collectives)


def laid(*collectives: MeasuredCollective) -> Profiles:
    return Profiles.load_shipped().with_own(profile(*collectives))


@pytest.fixture
def gpu():
    return build_predictor(scenario(strategy={"tp": 8, "dp": 2}, job=MEGATRON, cluster=one_zone())).batch.gpu


def found(links: CollectiveTimings, ranks, stride, gpu, size=1e7, ops=("all_reduce",)):
    known, tier = links.find_tier(ops, Group(ranks, stride, gpu), size, OTHERWISE)
    return np.asarray(known).tolist(), np.asarray(tier.bytes_per_s).tolist(), np.asarray(tier.latency_s).tolist()


def test_a_layout_is_looked_up_by_nodes_and_gpus_of_each(gpu):
    """Eight ranks in a row fill a node of eight; two that are eight apart lie on two nodes; one exchanges nothing."""
    links = CollectiveTimings([timed(), timed(nodes=2, gpus=1, gb_per_s=20.0)])
    known, rate, latency = found(links, np.array([8.0, 2.0, 4.0, 1.0]), np.array([1.0, 8.0, 1.0, 1.0]), gpu)
    assert known == [True, True, False, False]
    assert rate == [100e9, 20e9, 7e9, 7e9]
    assert latency == [pytest.approx(10e-6), pytest.approx(10e-6), 3e-6, 3e-6]


def test_the_nearest_nodes_count_before_the_nearest_size(gpu):
    """Sixteen ranks eight apart: four nodes are two octaves from sixteen, two are three, whatever their sizes."""
    near = timed(nodes=4, gpus=1, gb_per_s=4.0, low_bytes=1e3, high_bytes=1e4)
    links = CollectiveTimings([timed(nodes=2, gpus=1, gb_per_s=2.0), near])
    assert found(links, 16.0, 8.0, gpu)[:2] == (True, 4e9)
    assert found(links, 2.0, 8.0, gpu)[:2] == (True, 2e9)


def test_the_sweep_whose_sizes_are_nearest_counts(gpu):
    small, large = timed(gb_per_s=50.0, high_bytes=1e7), timed(gb_per_s=90.0, low_bytes=1e8)
    links = CollectiveTimings([large, small])
    sizes = np.array([1e5, 1e7, 2e7, 9e7, 1e9, 1e12])
    assert found(links, 8.0, 1.0, gpu, sizes)[1] == [50e9, 50e9, 50e9, 90e9, 90e9, 90e9]


def test_an_op_s_own_timings_come_before_those_of_another(gpu):
    links = CollectiveTimings([timed(), timed("all_gather", gb_per_s=70.0)])
    assert found(links, 8.0, 1.0, gpu, ops=("all_gather", "all_reduce"))[1] == 70e9
    assert found(links, 8.0, 1.0, gpu, ops=("reduce_scatter", "all_reduce"))[1] == 100e9


def test_another_gpu_kind_was_not_timed(gpu):
    other = replace(gpu, code=encode_gpu("h100-80gb-sxm"))
    assert found(CollectiveTimings([timed()]), 8.0, 1.0, other)[0] is False


def test_a_tensor_parallel_sum_takes_what_was_timed():
    """[C2] Eight ranks, 2 x 4096 x 4096 bytes: 14 steps of 10 us, and 7/4 of the bytes at 100 GB/s; no launch on top."""
    given_ = scenario(strategy={"tp": 8, "dp": 2, "micro_batch": 1}, job=MEGATRON, cluster=one_zone())
    cost = build_predictor(given_, profiles=laid(timed())).step.times.layer.tensor
    hidden = given_.model.hidden
    assert float(np.ravel(cost.seconds)[0]) == pytest.approx(14 * 10e-6 + 1.75 * 2 * 4096 * hidden / 100e9)


def test_a_send_between_stages_takes_what_was_timed():
    """[C6] One micro-batch of 4096 tokens over two nodes at 5 GB/s after 40 us."""
    given_ = scenario(
        strategy={"tp": 8, "pp": 2, "dp": 1, "micro_batch": 1, "sequence_parallel": False}, job=MEGATRON,
        cluster=one_zone(),
    )  # fmt: skip
    links = laid(timed("send_recv", nodes=2, gpus=1, gb_per_s=5.0, latency_us=40.0))
    times = build_predictor(given_, profiles=links).step.times
    (size,) = {float(x) for x in np.ravel(times.send_bytes)}
    assert float(np.ravel(times.send)[0]) == pytest.approx(40e-6 + size / 5e9)


def test_experts_exchange_at_the_timed_rate_of_an_all_to_all():
    """[C5] Twice 7/8 of two copies of each token, and two calls of one batch of messages."""
    given_ = scenario(
        model="mixtral-8x7b", strategy={"tp": 1, "ep": 8, "dp": 16, "micro_batch": 1}, job=MEGATRON, cluster=one_zone()
    )
    cost = build_predictor(given_, profiles=laid(timed("all_to_all"))).step.times.layer.all_to_all
    size = 2 * 4096 * given_.model.hidden * 2
    assert float(np.ravel(cost.seconds)[0]) == pytest.approx(2 * (10e-6 + size * 7 / 8 / 100e9))


@examples(40)
@given(st.floats(1.0, 400.0), st.floats(1.01, 4.0), st.sampled_from([(8, 1, 2), (4, 2, 2), (2, 1, 8), (1, 2, 8)]))
def test_a_faster_timed_link_never_hurts(rate, more, split):
    tp, pp, dp = split
    given_ = scenario(strategy={"tp": tp, "pp": pp, "dp": dp}, job=MEGATRON, cluster=one_zone())
    layouts = [(op, n, g) for op in ("all_reduce", "send_recv") for n, g in ((1, 2), (1, 4), (1, 8), (2, 1), (2, 4))]
    slow, fast = (
        predict(given_, profiles=laid(*(timed(op, n, g, gb_per_s=r) for op, n, g in layouts))).step_time_s.expected
        for r in (rate, rate * more)
    )
    assert fast <= slow * (1 + 1e-12)


@pytest.mark.parametrize("strategy", [{"tp": 8, "dp": 2}, {"tp": 4, "pp": 2, "dp": 2, "zero": 1}])
def test_a_recorded_prediction_with_timed_links_is_the_prediction(strategy):
    links = laid(timed(gpus=4), timed(), timed(nodes=2, gpus=1), timed("send_recv", nodes=2, gpus=1))
    p = build_predictor(scenario(strategy=strategy, job=MEGATRON, cluster=one_zone()), profiles=links)
    recorded = record_prediction(p).prediction
    assert float(recorded.step_time_s.expected) == pytest.approx(build_prediction(p).step_time_s.expected, rel=1e-12)


def test_groups_whose_layout_was_not_timed_are_named():
    given_ = scenario(strategy={"tp": 4, "pp": 2, "dp": 2}, job=MEGATRON, cluster=one_zone())
    codes = {one["code"]: one for one in predict(given_, profiles=laid(timed(gpus=4))).warnings}
    assert "data (1 x 2), pipeline (2 x 1)" in codes["collectives_unmeasured"]["message"]
    everything = laid(timed(gpus=4), timed(gpus=2), timed("send_recv", gpus=2), timed("send_recv", nodes=2, gpus=1))
    told = {one["code"] for one in predict(given_, profiles=everything).warnings}
    assert "collectives_unmeasured" not in told
    assert "collectives_unmeasured" not in {one["code"] for one in predict(given_).warnings}
    experts = scenario(model="mixtral-8x7b", strategy={"ep": 8, "dp": 16}, job=MEGATRON, cluster=one_zone())
    codes = {one["code"]: one for one in predict(experts, profiles=laid(timed(nodes=2), timed(gpus=2))).warnings}
    assert "expert (1 x 8)" in codes["collectives_unmeasured"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_search_with_timed_links_finds_the_best_there_is(seed):
    """The bounds hold with whatever was timed: rings and sends some ten times slower or faster than the catalogue's."""
    random = np.random.default_rng(seed)
    problem = small_problem(seed, 200)
    kinds = {group.gpu.name for _, group in problem.cluster.zone_groups}
    rows = [
        timed(
            op, n, g, gpu=kind, gb_per_s=float(np.exp(random.uniform(0, 6))), latency_us=float(random.uniform(0, 300))
        )
        for kind in kinds
        for op in ("all_reduce", "all_gather", "send_recv", "all_to_all")
        for n, g in ((1, 2), (1, 4), (2, 1), (2, 2), (4, 1))
    ]
    own = laid(*rows)
    result = compared(replace(problem, profiles=own, cache=PlanCache()))
    assert result.agrees, (result.searched, result.exhaustive)


def test_plans_are_made_with_the_profile_s_links():
    """All sixteen GPUs in one ring, timed at 2 GB/s: gradients over all of them are no longer the way."""
    job = scenario(job=MEGATRON, cluster=one_zone(), strategy=None)
    slow = laid(*(timed(op, 2, 8, gb_per_s=2.0) for op in ("all_reduce", "all_gather")))
    usual, other = (plan(job, profiles=one).plans[0] for one in (Profiles.load_shipped(), slow))
    assert usual.strategy.dp == 16 and other.strategy.dp < 16
    again = job.replace(strategy=other.strategy, placement=other.placement)
    told = predict(again, profiles=slow).step_time_s.expected
    assert told == pytest.approx(other.prediction.step_time_s.expected, rel=1e-9)


@pytest.mark.parametrize(
    ("cells", "code"),
    [
        ({"low_bytes": 2e9}, "must_be_at_least"),
        ({"gb_per_s": 0.0}, "must_be_more_than"),
        ({"gpus_per_node": 1}, "must_be_at_least"),
        ({"op": "broadcast"}, "not_one_of"),
    ],
)
def test_a_timing_that_cannot_be_is_refused(cells, code):
    fields = profile(timed()).to_plain()
    fields["collectives"] = [{**fields["collectives"][0], **cells}]
    with pytest.raises(InputError) as error:
        parse_text(dump_yaml(fields))
    assert {notice.code for notice in error.value.notices} == {code}


def test_profiles_join_and_the_second_counts_where_both_speak():
    def coefficient(value: float) -> Coefficient:
        return Coefficient(value=value, error=0.1, origin="measured")

    first = profile(timed()).model_copy(update={"gpus": {GPU: {"matmul": coefficient(0.5)}}, "for_stacks": ("fsdp",)})
    second = OwnProfile(
        name="other", source="jobs", created="2026-11-19",
        gpus={GPU: {"matmul": coefficient(0.6), "tile": coefficient(0.4)}}, stacks={"fsdp": {"host_s": coefficient(1e-3)}},
        for_stacks=("ddp",),
    )  # fmt: skip
    joined = join_profiles(first, second)
    assert (joined.name, joined.source) == ("lab", "timed; jobs")
    assert {name: one.value for name, one in joined.gpus[GPU].items()} == {"matmul": 0.6, "tile": 0.4}
    assert joined.collectives == first.collectives and joined.stacks == second.stacks
    assert joined.for_stacks == ("fsdp", "ddp")


def test_clusters_that_were_measured_come_with_the_program():
    assert list_clusters() == ["perlmutter", "vista"]
    for name in list_clusters():
        known = load(name)
        assert known.collectives and known.gpus and known.stacks
        assert known.scores["jobs"][STACK]["left_out_pct"] < 8
