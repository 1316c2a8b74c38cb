"""[R2] [M2] Replicas with micro-batches of their own, and states shared by those that lie together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.worked import gpu, links, model, neutral, stack, work
from crosszone.errors import IllegalError
from crosszone.inputs.strategy import Strategy
from crosszone.predict.batch import Batch
from crosszone.predict.predict import build_prediction
from crosszone.predict.predictor import Predictor
from crosszone.predict.step import MAX_OPERATIONS, check_step_length, simulate_step, step_s
from effort import examples
from predict.given import DDP, FSDP, one_zone, placed, predicted, traffic, zones

PARAMETERS = 6_738_415_616
"""Of the model."""
FAST, SLOW = "h100-80gb-sxm", "a100-80gb-sxm"
APART = ["tp", "cp", "pp", "dp"]
"""Order of ranks in which a replica's stages lie together."""


def fast_and_slow(gpus: int = 1, slow: str = SLOW, **link: Any) -> dict[str, Any]:
    """A zone of H100s and a zone of older GPUs."""
    cluster = zones(2, gpus, **link)
    for zone, kind in zip(cluster["zones"], (FAST, slow), strict=True):
        zone["nodes"][0]["gpu"] = kind
    return cluster


def ddp(counts: list[int], batch: int | None = None, **more: Any) -> Predictor:
    """One replica a GPU, with so many micro-batches of one sample each."""
    strategy = {"replica_micro_batches": counts} | more.pop("strategy", {})
    return placed(strategy, **{"job": DDP | {"global_batch": batch or sum(counts)}, "cluster": fast_and_slow()} | more)


def piped(counts: list[int], stages: int = 2, cluster: dict[str, Any] | None = None) -> Predictor:
    """A replica in each of two zones, in so many stages."""
    strategy = {"pp": stages, "replica_micro_batches": counts, "zero": 2, "shard_within": "zone"}
    blocks = [{"zone": name, "count": stages} for name in "ab"]
    job = FSDP | {"global_batch": sum(counts)}
    placement = {"order": APART, "blocks": blocks}
    return placed(strategy, job=job, cluster=cluster or fast_and_slow(stages), placement=placement)


def test_rows_of_one_batch_each_have_their_own_micro_batches():
    """[R2] The worked model: 294.912 s a micro-batch and 184.32 s of update on one stage, (m + 1) x 184.32 s and 92.16 s
    of update on two equal ones without a head.
    """
    counts = np.array([[10.0], [5.0]])
    columns = {"work": work(micro_batches=counts), "gpu": gpu(), "stack": stack(), "links": links()}
    alone = Batch(model=model(), counts=np.full((2, 1), 4.0), **columns)
    expected = [10 * 294.912 + 184.32, 5 * 294.912 + 184.32]
    assert simulate_step(alone, [4], Strategy(dp=1), neutral()).total_s == pytest.approx(expected)
    assert step_s(alone, neutral()) == pytest.approx(expected)
    columns |= {"work": work(micro_batches=counts, pp=2), "links": links(boundary_perfect=1.0)}
    two = Batch(model=model(vocab=0), counts=np.full((2, 2), 2.0), **columns)
    found = simulate_step(two, [2, 2], Strategy(pp=2, dp=1), neutral())
    expected = [11 * 122.88 + 92.16, 6 * 122.88 + 92.16]
    assert found.total_s == pytest.approx(expected)
    assert step_s(two, neutral()) == pytest.approx(expected)
    assert found.pipelines.simulate_row(1).makespan_s == pytest.approx(6 * 122.88)


def test_a_step_is_that_of_the_replica_which_ends_last_with_its_own_micro_batches():
    """[R2] Zones that average seldom: each replica's step is what it takes alone in its zone, but for the jitter."""
    both = ddp([10, 5], strategy={"local_update": {"steps": 100}})
    first = both.row - both.slowest
    alone = []
    for count, kind in ((10, FAST), (5, SLOW)):
        one = placed({"dp": 1}, job=DDP | {"global_batch": count}, cluster=one_zone(1, gpu=kind))
        alone.append(one.inner_step_s[1])
    found = both.step.total_s - both.step.jitter_s
    assert found[first : first + 2] == pytest.approx(alone, rel=1e-12)
    assert both.inner_step_s[1] == both.step.total_s[first : first + 2].max()
    assert both.micro_batches == build_prediction(both).micro_batches == 10


def test_each_kind_of_replica_takes_what_it_would_if_all_had_its_micro_batches():
    """[R2] In pipelines too, whose sends, waits and reductions do not depend on the other replica's number."""
    mixed, many, few = piped([12, 5]), piped([12, 12]), piped([5, 5])
    rows = np.arange(len(mixed.step.total_s))
    for other, kind in ((many, 0), (few, 1)):
        same = rows[rows % 2 == kind]
        assert mixed.step.total_s[same] == pytest.approx(other.step.total_s[same], rel=1e-12)


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        ({"dp": 2}, {"job": DDP, "cluster": fast_and_slow()}),
        ({"dp": 4, "pp": 2, "zero": 3}, {"job": FSDP, "cluster": one_zone(8)}),
        ({"dp": 4, "tp": 2, "pp": 2, "zero": 1}, {}),
    ],
)
def test_equal_entries_are_the_same_as_none(strategy, changes):
    """[R2] 64 samples over d replicas, whichever way that is said, and by any framework."""
    given = strategy | {"replica_micro_batches": [64 // strategy["dp"]] * strategy["dp"]}
    said, left_out = (predicted(one, **changes).model_dump(exclude={"strategy"}) for one in (given, strategy))
    assert said == left_out


def test_more_work_for_the_quick_zone_shortens_the_step():
    """[R2] An H100 does more than twice what an A100 does: 11 and 5 beat 8 and 8, 5 and 11 do not."""
    equal, good, bad = (ddp(counts).step_time.expected for counts in ([8, 8], [11, 5], [5, 11]))
    assert good < equal < bad


def test_replicas_follow_from_their_micro_batches():
    """[R2] Two entries are two replicas, although there is room for sixteen."""
    found = placed({"replica_micro_batches": [7, 9]}, job=DDP | {"global_batch": 16})
    assert (found.strategy.dp, build_prediction(found).gpus, found.micro_batches) == (2, 2, 9)


def test_sends_of_each_replica_follow_its_own_micro_batches():
    """[X8] Replica 0 from a to b, replica 1 from b to c: a sample is 4096 x 4096 x 2 bytes each way."""
    blocks = [{"zone": "a", "count": 1}, {"zone": "b", "count": 2}, {"zone": "c", "count": 1}]
    strategy = {"pp": 2, "replica_micro_batches": [10, 6], "zero": 2, "shard_within": "zone"}
    found = predicted(
        strategy,
        job=FSDP | {"global_batch": 16},
        cluster=zones(3, 2),
        placement={"order": APART, "blocks": blocks},
    )
    rows = traffic(found, "pipeline")
    for link, count in {"a > b": 10, "b > a": 10, "b > c": 6, "c > b": 6}.items():
        assert rows[link].bytes_per_step == pytest.approx(count * 4096 * 4096 * 2)
        assert rows[link].messages == count


@pytest.mark.parametrize(
    ("strategy", "uneven"), [({"tp": 2}, [12, 4]), ({"cp": 2}, [12, 4]), ({"pp": 2}, [12, 4]), ({}, [6, 6, 2, 2])]
)
def test_bytes_in_all_are_those_of_the_same_samples(strategy, uneven):
    """[X1] [X4] [X7] [X8] Whoever computes a sample, its activations take as many bytes, and what a zone's replicas gather
    and scatter for it; between zones the gradients of 4 bytes go once a step, half of them there and half of the sums.
    """
    both: dict[str, Any] = {"zero": 3, "shard_within": "zone"} | strategy
    rows = []
    for counts in (uneven, [16 // len(uneven)] * len(uneven)):
        found = predicted(
            both | {"replica_micro_batches": counts},
            job=FSDP | {"global_batch": 16},
            cluster=fast_and_slow(2),
            placement={"order": APART, "blocks": [{"zone": "a", "count": 2}, {"zone": "b", "count": 2}]},
        )
        rows.append({(row.kind, row.link): row.bytes_per_step for row in found.communication})
    assert rows[0] == pytest.approx(rows[1])
    assert rows[0]["gradients", "a > b"] == pytest.approx(4 * PARAMETERS)
    assert len(rows[0]) > 2


@examples(25)
@given(st.tuples(*[st.integers(1, 30)] * 2), st.sampled_from([1, 2, 4]), st.sampled_from([1, 100]))
def test_parts_and_timeline_of_uneven_replicas_add_up(counts, stages, rate):
    """[R2] [V3] [S10] The step is the longest row; parts and the timeline are of the replica that takes it."""
    p = piped(list(counts), stages, cluster=fast_and_slow(stages, gbps=rate))
    found = build_prediction(p)
    assert p.step_s[1] == max(p.step.total_s[p.row - p.slowest :][: len(p.placed.replica_classes[0])])
    assert sum(found.breakdown_s.values()) == pytest.approx(found.step_time_s.expected, rel=1e-9)
    assert min(found.breakdown_s.values()) >= 0
    trace = p.timeline()
    assert trace.step_s == pytest.approx(found.step_time_s.expected, rel=1e-9)
    assert trace.micro_batch.max() + 1 == counts[p.slowest] == p.row_micro_batches


def test_a_replica_with_few_micro_batches_holds_no_more_than_it_has():
    """[M4] Four stages: the first holds min(m, 4). On equal GPUs the replica with 8 counts; 40 GiB with 2 micro-batches are
    tighter than 80 GiB with 8, which are two micro-batches of 8 layers more in flight.
    """

    def first(counts: list[int], small: bool) -> Any:
        cluster = fast_and_slow(4, slow="a100-40gb-sxm" if small else FAST)
        return piped(counts, 4, cluster=cluster).memory.stages[0]

    assert first([8, 2], small=False) == first([8, 8], small=False)
    assert first([2, 8], small=False) == first([8, 8], small=False)
    held, few, many = (first(counts, small=True) for counts in ([8, 2], [2, 2], [8, 8]))
    assert held == few
    assert held.gpu == "a100-40gb-sxm"
    assert many.parts["activations"] == pytest.approx(2 * held.parts["activations"])


def test_replicas_that_share_states_need_equally_many_micro_batches():
    """[R2] FSDP: sets of a zone's replicas may differ from each other, not inside."""

    def sharded(counts: list[int], within: str) -> Predictor:
        strategy = {"zero": 3, "shard_within": within, "replica_micro_batches": counts}
        return placed(strategy, job=FSDP | {"global_batch": 16}, cluster=fast_and_slow(2))

    assert sharded([6, 6, 2, 2], "zone").placed.class_micro_batches.tolist() == [6, 2]
    for counts, within, least, most in (([6, 6, 2, 2], "all", 2, 6), ([5, 6, 3, 2], "zone", 5, 6)):
        with pytest.raises(IllegalError) as refused:
            sharded(counts, within)
        (notice,) = refused.value.notices
        assert (notice.code, notice.params["least"], notice.params["most"]) == ("uneven_shards", least, most)
    with pytest.raises(IllegalError, match="5 and 6"):
        sharded([6, 5, 3, 2], "node")


def test_a_step_of_many_lengths_is_as_long_as_all_of_them():
    """[R2] gpipe on 1000 stages: 400 micro-batches can be simulated, and 600, but not both."""
    long = Strategy(pp=1000, dp=2, schedule="gpipe")
    assert check_step_length(long.replace(replica_micro_batches=(400, 400)), 800) is None
    assert check_step_length(long.replace(replica_micro_batches=(600, 600)), 1200) is None
    notice = check_step_length(long.replace(replica_micro_batches=(401, 600)), 1001)
    assert notice is not None
    assert notice.value == 1_001_000 > MAX_OPERATIONS


BY_STAGE = ["tp", "cp", "dp", "pp"]


@pytest.mark.parametrize(
    ("strategy", "cluster", "blocks", "order", "shared"),
    [
        ({"dp": 8, "shard_within": "zone"}, zones(2, 4), {"a": 4, "b": 4}, BY_STAGE, 4),
        ({"dp": 8, "shard_within": "zone"}, zones(4, 4), {"b": 4, "d": 4}, BY_STAGE, 4),
        ({"dp": 4, "pp": 2, "shard_within": "zone"}, zones(2, 4), {"a": 4, "b": 4}, BY_STAGE, 4),
        ({"dp": 4, "pp": 2, "shard_within": "zone"}, zones(2, 4), {"a": 4, "b": 4}, APART, 2),
        ({"dp": 4, "tp": 2, "pp": 2, "shard_within": "node"}, one_zone(16), {"a": 16}, BY_STAGE, 4),
        ({"dp": 4, "tp": 2, "pp": 2, "shard_within": "node"}, one_zone(16), {"a": 16}, APART, 2),
        ({"dp": 4, "cp": 4, "shard_within": "node"}, one_zone(16), {"a": 16}, BY_STAGE, 2),
        ({"dp": 1, "tp": 16, "shard_within": "node"}, one_zone(16), {"a": 16}, BY_STAGE, 1),
        ({"dp": 4, "pp": 2, "shard_within": "all"}, zones(2, 4), {"a": 4, "b": 4}, APART, 4),
    ],
)
def test_states_are_shared_by_the_replicas_of_a_stage_that_lie_together(strategy, cluster, blocks, order, shared):
    """[M2] Zones that hold no rank do not count, nor those that hold other stages."""
    rows = [{"zone": name, "count": count} for name, count in blocks.items()]
    job = FSDP | {"global_batch": 24}
    found = placed(strategy | {"zero": 3}, job=job, cluster=cluster, placement={"order": order, "blocks": rows})
    assert found.placed.shard_ranks == found.batch.work.shard_ranks == shared


def test_states_cannot_be_shared_inside_zones_that_hold_different_numbers_of_replicas():
    """[M2] A mesh of zones and replicas is a rectangle, and so are instances of an optimizer: 4 and 2 make none."""
    rows = [{"zone": "a", "count": 4}, {"zone": "b", "count": 2}]
    place = {"order": BY_STAGE, "blocks": rows}
    strategy = {"dp": 6, "zero": 3, "shard_within": "zone"}
    with pytest.raises(IllegalError, match="4, 2 replicas"):
        placed(strategy, job=FSDP | {"global_batch": 24}, cluster=zones(2, 4), placement=place)


def test_a_pipeline_across_zones_keeps_its_states_among_all_replicas_of_a_stage():
    """[M2] 16 bytes of a parameter over 4 replicas: the same memory as with sharding over all."""
    states = [
        predicted(
            {"dp": 4, "pp": 2, "zero": 3, "shard_within": within}, job=FSDP, cluster=zones(2, 4)
        ).memory_gib.stages
        for within in ("zone", "all")
    ]
    assert states[0] == states[1]


def test_a_replica_torn_over_nodes_shares_states_with_none():
    """[M2] Two replicas of four context-parallel ranks on two nodes of 8: side by side in one node they share; with half of
    the ranks of each in either node they do not.
    """
    for held, shared in (([(0, 8)], 2), ([(0, 4), (8, 4)], 1)):
        blocks = [{"zone": "a", "first": first, "count": count} for first, count in held]
        placement = {"order": ["tp", "dp", "cp", "pp"], "blocks": blocks}
        found = placed({"cp": 4, "dp": 2, "zero": 3, "shard_within": "node"}, job=FSDP, placement=placement)
        assert found.placed.shard_ranks == shared
