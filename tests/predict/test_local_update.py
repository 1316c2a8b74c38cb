"""[V5] Zones that train on their own and average now and then."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from predict.given import DDP, FSDP, one_zone, predicted, traffic, zones

PARAMETERS = 6_738_415_616
RATE = 10e9 / 8 * 0.9653


def local(
    gpus: int = 8, job: dict[str, Any] = FSDP, count: int = 2, link: dict[str, Any] | None = None, **update: Any
) -> Any:
    strategy: dict[str, Any] = {"zero": 3, "shard_within": "zone"} if job is FSDP else {}
    if update:
        strategy["local_update"] = {"steps": 100} | update
    return predicted(strategy | {"dp": count * gpus}, job=job, cluster=zones(count, gpus, **link or {}))


def test_an_average_every_hundred_steps_costs_a_hundredth_of_an_exchange():
    """[V5] Two zones: 2 x 1/2 x 4 bytes of every parameter over 10 Gbit/s, 2 steps of 10 ms, shared out over 100 steps."""
    got = local()
    exchange = 4 * PARAMETERS / RATE + 2 * 0.01
    update = local(steps=100)
    assert update.breakdown_s["local_update"] == pytest.approx(exchange / 100, rel=0.01)
    assert update.step_time_s.expected < got.step_time_s.expected / 5
    assert update.breakdown_s["gradients"] < got.breakdown_s["gradients"] + got.breakdown_s["sharding"]


def test_smaller_types_and_fragments_send_what_they_say():
    """[V5] int8: a quarter of the bytes of fp32; fragments send as much in all, in smaller pieces."""
    whole, small, pieces = local(steps=100), local(steps=100, dtype="int8"), local(steps=100, fragments=10)
    rows = [traffic(one, "local update")["a > b"].bytes_per_step for one in (whole, small, pieces)]
    assert rows == pytest.approx([4 * PARAMETERS / 100, PARAMETERS / 100, 4 * PARAMETERS / 100])


def test_a_delay_hides_an_exchange_behind_so_many_steps():
    """[V5] An exchange of 22.3 s hides behind ten steps of more than 3 s, not behind one of them."""
    now, one, ten = (local(steps=100, delay=delay) for delay in (0, 1, 10))
    inner = now.step_time_s.expected - now.breakdown_s["local_update"]
    assert inner > 2.3
    assert one.breakdown_s["local_update"] == pytest.approx(now.breakdown_s["local_update"] - inner / 100, rel=1e-6)
    assert ten.breakdown_s["local_update"] == 0


def test_three_zones_send_two_thirds_twice():
    """[V5] 2 x 2/3 of the parameters over each edge of the ring."""
    rows = traffic(local(count=3, steps=100, job=FSDP | {"global_batch": 48}), "local update")
    assert set(rows) == {"a > b", "b > c", "c > a"}
    assert rows["a > b"].bytes_per_step == pytest.approx(4 / 3 * 4 * PARAMETERS / 100)


def test_nothing_else_crosses_zones():
    """[V5] Gradients stay inside a zone."""
    crossing = {row.kind for row in local(steps=100, job=DDP).communication if ">" in row.link}
    assert crossing == {"local update"}


@examples(25)
@given(st.sampled_from([1, 2, 10, 50]), st.sampled_from([2, 5]), st.sampled_from([0, 1, 3]), st.sampled_from([0.5, 10]))
def test_rarer_averages_are_cheaper_and_later_ones_too(steps, factor, delay, gbps):
    """[V5]"""
    link = {"gbps": gbps}
    often, rarely = (local(steps=h, delay=delay, link=link) for h in (steps, steps * factor))
    later = local(steps=steps, delay=delay + 1, link=link)
    assert rarely.step_time_s.expected <= often.step_time_s.expected * (1 + 1e-9)
    assert later.step_time_s.expected <= often.step_time_s.expected * (1 + 1e-9)
    if not delay:
        assert rarely.breakdown_s["local_update"] == pytest.approx(often.breakdown_s["local_update"] / factor, rel=1e-9)


@pytest.mark.parametrize("reduce", ["flat", "hierarchical"])
def test_zones_that_average_still_gather_and_scatter_inside_themselves(reduce):
    """[V5] Two zones of 8 with 8 replicas each shard as one zone of 8 does; how gradients would cross does not matter."""
    strategy = {"dp": 16, "micro_batch": 1, "zero": 3, "shard_within": "zone", "local_update": {"steps": 100}}
    two = predicted(
        strategy | {"communication": {"reduce": reduce}}, job=FSDP | {"global_batch": 16}, cluster=zones(2, 8)
    )
    one = predicted({"dp": 8, "micro_batch": 1, "zero": 3}, job=FSDP | {"global_batch": 8}, cluster=one_zone(8))
    assert two.breakdown_s["sharding"] == pytest.approx(one.breakdown_s["sharding"], rel=0.05)
