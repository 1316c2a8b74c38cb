"""[V3] Better links never slow a step; more of anything that is paid for never speeds it up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from crosszone.errors import IllegalError
from effort import examples
from predict.given import DDP, FSDP, MEGATRON, one_zone, placed, predicted, step, strategies, zones

ROUNDING = 1 + 1e-9


def ranks(strategy: dict[str, Any]) -> int:
    return strategy["tp"] * strategy["pp"] * strategy["dp"] * strategy["cp"]


def in_two(strategy: dict[str, Any], node: dict[str, Any] | None = None, **link: Any) -> float:
    """The step in two zones of 16; strategies that cannot lie there are passed over."""
    try:
        return step(strategy, cluster=zones(2, 16, node=node, **link))
    except IllegalError:
        assume(False)
        raise


@examples(60)
@given(
    strategies(ranks=32),
    st.sampled_from(["gbps", "rtt_ms", "loss_pct", "flow_gbps"]),
    st.floats(1.1, 50),
    st.sampled_from([0.5, 8, 100]),
)
@pytest.mark.slow
def test_a_better_line_between_zones_never_slows_a_step(strategy, figure, factor, gbps):
    """[V3] More bandwidth, less latency, less loss, a higher ceiling of one connection."""
    line = {"gbps": gbps, "rtt_ms": 30.0, "loss_pct": 0.02, "flow_gbps": 1.0}
    better = line | {figure: line[figure] * factor if "gbps" in figure else line[figure] / factor}
    assert in_two(strategy, **better) <= in_two(strategy, **line) * ROUNDING


@examples(60)
@given(strategies(), st.sampled_from(["nic", "nvlink"]), st.floats(1.1, 20), st.booleans())
def test_a_better_network_or_fast_link_never_slows_a_step(strategy, which, factor, two):
    """[V3]"""
    link = {"like": "a100-80gb-sxm", "link": {"kind": "nvlink", "gb_per_s_both_ways": 300 * factor, "domain": 8}}
    slow = {"nic_gbps_per_gpu": 25, "gpu": link | {"link": link["link"] | {"gb_per_s_both_ways": 300}}}
    quick = slow | ({"nic_gbps_per_gpu": 25 * factor} if which == "nic" else {"gpu": link})
    if two and ranks(strategy) == 32:
        assert in_two(strategy, quick) <= in_two(strategy, slow) * ROUNDING
        return
    before, after = (step(strategy, cluster=one_zone(32, **node)) for node in (slow, quick))
    assert after <= before * ROUNDING


@examples(60)
@given(
    strategies(ranks=32, most_cp=1),
    st.sampled_from([1, 10, 50]),
    st.sampled_from([1, 30, 150]),
)
def test_one_zone_is_never_slower_than_the_same_split_in_two(strategy, gbps, rtt_ms):
    """[V3] 16 + 16 GPUs with a line that is worse than the network inside, against 32 in one place."""
    together = step(strategy, cluster=one_zone(32))
    assert together <= in_two(strategy, gbps=gbps, rtt_ms=rtt_ms) * ROUNDING


ONE_BUCKET = {"bucket_mb": 1e6}
"""No latency but that of one exchange."""


@pytest.mark.parametrize(
    ("job", "strategy", "fewer"),
    [
        (MEGATRON, {"tp": 8, "dp": 2}, {"gradient_dtype": "bf16"}),
        (MEGATRON, {"tp": 2, "dp": 8, "zero": 1}, {"gradient_dtype": "bf16"}),
        (FSDP, {"dp": 16, "zero": 3}, {"gradient_dtype": "bf16"}),
        (FSDP, {"dp": 16, "zero": 3, "shard_within": "zone"}, {"compression": "bf16"}),
        (DDP, {"dp": 16}, {"compression": "fp16"}),
        (
            DDP,
            {"dp": 16, "communication": ONE_BUCKET},
            ONE_BUCKET | {"compression": "powersgd", "compression_rank": 64},
        ),
    ],
)
def test_fewer_bytes_on_the_wire_speed_a_step_over_a_slow_line_up(job, strategy, fewer):
    """[V4] Half the bytes of fp32 gradients: the exchange takes half as long."""
    place = {"order": ["tp", "cp", "pp", "dp"], "blocks": [{"zone": "a", "count": 8}, {"zone": "b", "count": 8}]}
    both = [
        placed(s, job=job, cluster=zones(2, 8), placement=place).step_s[1]
        for s in (strategy, strategy | {"communication": fewer})
    ]
    assert both[1] < both[0]


@examples(40)
@given(strategies(), st.sampled_from(["overlap_gradients", "overlap_parameters", "overlap"]))
def test_overlap_never_slows_a_step(strategy, option):
    """[V1]"""
    off, on = (0.0, 1.0) if option == "overlap" else (False, True)
    if option == "overlap_parameters":
        strategy |= {"zero": max(1, strategy["zero"])}
    both = [step(strategy | {"communication": {option: value}}, cluster=one_zone(32)) for value in (off, on)]
    assert both[1] <= both[0] * ROUNDING


def test_small_messages_are_no_bargain_over_a_long_line():
    """[V4] PowerSGD sends 3 % of the bytes in three collectives a bucket: in DDP's buckets of 25 MiB their latency costs
    more than the bytes save, 1028 buckets x (3 - 1) x 2 x 15 steps x 2/16 between zones x 10 ms.
    """
    place = {"order": ["tp", "cp", "pp", "dp"], "blocks": [{"zone": "a", "count": 8}, {"zone": "b", "count": 8}]}
    few = {"compression": "powersgd", "compression_rank": 64}
    both = [
        placed({"dp": 16, "communication": how}, job=DDP, cluster=zones(2, 8), placement=place).step_s[1]
        for how in ({"overlap": 0.0, "flows": 16}, few | {"overlap": 0.0, "flows": 16})
    ]
    saved = 4 * 6_738_415_616 * 2 * 15 / 16 * (1 - 2 * 64 / 4096) / (1.25e9 * 0.9653)
    more = 4 * 6_738_415_616 / 25 / 2**20 * 2 * 30 * 2 / 16 * 0.01005
    assert both[1] - both[0] == pytest.approx(more - saved, rel=0.02)


def test_more_connections_fill_a_long_line():
    """[X7] One connection of 3 MB a round trip of 200 ms carries 16 MB/s; two ranks with two channels each 63 MB/s of the
    1.2 GB/s; eight flows a channel carry eight times as much.
    """
    place = {"order": ["tp", "cp", "pp", "dp"], "blocks": [{"zone": "a", "count": 2}, {"zone": "b", "count": 2}]}

    def gradients(flows: int) -> float:
        got = predicted(
            {"tp": 2, "dp": 2, "communication": {"flows": flows, "overlap": 0.0} | ONE_BUCKET},
            cluster=zones(2, 2, rtt_ms=200),
            placement=place,
        )
        return got.breakdown_s["gradients"]

    size = 4 * 6_738_415_616
    assert gradients(1) == pytest.approx(size / (2 * 2 * 0.75 * 4194304 / 0.2), rel=0.02)
    assert gradients(8) == pytest.approx(size / (8 * 2 * 2 * 0.75 * 4194304 / 0.2), rel=0.02)


def test_a_line_with_another_rate_back_is_as_slow_as_its_slower_way():
    """[X7] A ring of two zones uses both ways at once: 10 Gbit/s there, 1 back."""
    cluster = zones(2, 8) | {"links": [{"between": ["a", "b"], "gbps": 10, "gbps_back": 1, "rtt_ms": 20}]}
    place = {"order": ["tp", "cp", "pp", "dp"], "blocks": [{"zone": "a", "count": 8}, {"zone": "b", "count": 8}]}
    uneven = placed({"tp": 8, "dp": 2}, cluster=cluster, placement=place).step_s[1]
    slow = placed({"tp": 8, "dp": 2}, cluster=zones(2, 8, gbps=1), placement=place).step_s[1]
    assert uneven == pytest.approx(float(slow), rel=1e-6)


def test_all_traffic_of_a_zone_shares_its_uplink():
    """[X7] A line of 100 Gbit/s behind an uplink of 10 is one of 10."""
    place = {"order": ["tp", "cp", "pp", "dp"], "blocks": [{"zone": "a", "count": 8}, {"zone": "b", "count": 8}]}
    wide, narrow = zones(2, 8, gbps=100), zones(2, 8, gbps=10)
    for zone in wide["zones"]:
        zone["uplink_gbps"] = 10
    both = [placed({"tp": 8, "dp": 2}, cluster=c, placement=place).step_s[1] for c in (wide, narrow)]
    assert both[0] == pytest.approx(both[1], rel=1e-9)


def test_a_distance_with_a_band_widens_the_answer():
    """[V3] RTT from the distance has a low and a high end; a typed one has none beside the profile's own error."""
    cluster = {
        "zones": [z | {"region": r} for z, r in zip(zones(2, 8)["zones"], ("us-east1", "us-west1"), strict=True)]
    }
    typed, derived = (predicted({"tp": 8, "pp": 2}, cluster=c).step_time_s for c in (zones(2, 8), cluster))
    assert derived.high / derived.expected >= typed.high / typed.expected
