"""Every rank on one GPU, every GPU at most once, every idle one with a reason."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from builders import scenario, settled, zone
from crosszone import Placement
from crosszone.errors import IllegalError
from crosszone.inputs.placement import count_group_tp_room, pack_ranks
from crosszone.inputs.value import parse

LINK = {"gbps": 1, "rtt_ms": 40}


def cluster(*sizes: int, **more):
    zones = [zone(f"z{n}", size, **more) for n, size in enumerate(sizes)]
    return scenario(cluster={"zones": zones, "default_link": LINK}).cluster


def test_fourteen_gpus_are_used_or_idle_with_a_reason():
    """2 + 4 + 8 GPUs and tp 4: the two-GPU node never gets a group of four."""
    placement, idle = pack_ranks(cluster(2, 4, 8), settled(tp=4, dp=3))
    assert placement.ranks + sum(i.count for i in idle) == 14
    assert [(i.zone, i.count, i.reason.code) for i in idle] == [("z0", 2, "idle_tp")]
    assert "2 GPUs of zone z0" in idle[0].reason.message()
    assert [block.zone for block in placement.blocks] == ["z1", "z2"]


def test_spare_gpus_are_idle_with_another_reason():
    placement, idle = pack_ranks(cluster(4, 8, 2), settled(tp=2, dp=5))
    assert placement.ranks == 10
    assert [(i.zone, i.count, i.reason.code) for i in idle] == [("z1", 2, "idle_spare"), ("z2", 2, "idle_spare")]


def test_groups_of_four_leave_two_of_six_gpus_in_each_node():
    machines = cluster(6, 6)
    placement, idle = pack_ranks(machines, settled(tp=4, dp=2))
    assert [(b.zone, b.first, b.count) for b in placement.blocks] == [("z0", 0, 4), ("z1", 0, 4)]
    assert sum(i.count for i in idle) == 4


def test_what_does_not_fit_is_refused():
    with pytest.raises(IllegalError) as caught:
        pack_ranks(cluster(2, 4, 8), settled(tp=4, pp=1, dp=4))
    assert caught.value.notices[0].code == "tp_room"


def test_megatron_order_puts_pipeline_stages_apart_and_replicas_together():
    """Order tp-cp-dp-pp: contiguous ranks are a range of pipeline stages, so pp crosses the zones."""
    machines, strategy = cluster(8, 8), settled(tp=4, pp=2, dp=2)
    placement, _ = pack_ranks(machines, strategy)
    axes, located = placement.compute_coordinates(strategy), placement.locate_ranks(machines)
    assert (axes["pp"] == located["zone"]).all()
    reordered = placement.replace(order=("tp", "cp", "pp", "dp"))
    assert (reordered.compute_coordinates(strategy)["dp"] == located["zone"]).all()


def test_ranks_count_from_the_first_gpu_of_the_first_node():
    machines = cluster(4)
    placement, _ = pack_ranks(machines, settled(tp=2, dp=2))
    assert placement.locate_ranks(machines)["gpu"].tolist() == [0, 1, 2, 3]
    assert placement.compute_coordinates(settled(tp=2, dp=2))["tp"].tolist() == [0, 1, 0, 1]


def checked(blocks, strategy, found, **more) -> list[str]:
    placement = parse(Placement, {"blocks": blocks, **more})
    return [notice.code for notice in placement.check(found, strategy)]


@pytest.mark.parametrize(
    ("blocks", "code"),
    [
        ([{"zone": "z0", "count": 8}, {"zone": "z1", "count": 8}], None),
        ([{"zone": "z0", "count": 8}], "placement_ranks"),
        ([{"zone": "z9", "count": 16}], "placement_zone"),
        ([{"zone": "z0", "group": 1, "count": 16}], "placement_group"),
        ([{"zone": "z0", "first": 1, "count": 8}, {"zone": "z1", "count": 8}], "placement_gpu"),
        ([{"zone": "z0", "count": 8}, {"zone": "z0", "count": 8}], "placement_twice"),
        (
            [{"zone": "z0", "count": 2}, {"zone": "z1", "count": 8}, {"zone": "z0", "first": 2, "count": 6}],
            "tp_across_zones",
        ),
    ],
)
def test_placements_that_cannot_be_are_refused(blocks, code):
    assert checked(blocks, settled(tp=4, dp=4), cluster(8, 8)) == ([code] if code else [])


def test_a_group_may_not_mix_gpu_kinds():
    mixed = {"name": "a", "nodes": [{"gpus": 4, "gpu": "a100"}, {"gpus": 4, "gpu": "v100"}]}
    machines = scenario(cluster={"zones": [mixed]}).cluster
    blocks = [
        {"zone": "a", "group": 0, "count": 2},
        {"zone": "a", "group": 1, "count": 4},
        {"zone": "a", "group": 0, "first": 2, "count": 2},
    ]
    assert checked(blocks, settled(tp=4, dp=2), machines) == ["tp_mixes_gpus"]
    placement, _ = pack_ranks(machines, settled(tp=4, dp=2))
    assert placement.check(machines, settled(tp=4, dp=2)) == []


def test_gpus_with_one_name_but_other_figures_are_other_kinds():
    nodes = [{"gpus": 4, "gpu": {"like": "a100", "memory_gib": 40}}, {"gpus": 4, "gpu": {"like": "a100", "tdp_w": 250}}]
    machines = scenario(cluster={"zones": [{"name": "a", "nodes": nodes}]}).cluster
    assert len(machines.gpu_kinds) == 2
    blocks = [
        {"zone": "a", "group": 0, "count": 2},
        {"zone": "a", "group": 1, "count": 4},
        {"zone": "a", "group": 0, "first": 2, "count": 2},
    ]
    assert checked(blocks, settled(tp=4, dp=2), machines) == ["tp_mixes_gpus"]


def test_groups_torn_over_nodes_are_allowed_and_remarked_upon():
    machines = scenario(cluster={"zones": [zone("a", 8, count=3)]}).cluster
    split = parse(Placement, {"blocks": [{"zone": "a", "first": 6, "count": 16}]})
    aligned = parse(Placement, {"blocks": [{"zone": "a", "first": 0, "count": 16}]})
    strategy = settled(tp=4, dp=4)
    assert split.check(machines, strategy) == []
    assert [n.params["torn"] for n in split.list_remarks(machines, strategy)] == [2]
    assert aligned.list_remarks(machines, strategy) == []


def test_idle_gpus_of_a_typed_placement_say_where_and_how_many():
    machines = cluster(4, 8)
    placement = parse(Placement, {"blocks": [{"zone": "z1", "count": 6}]})
    assert [(i.zone, i.count) for i in placement.list_idle(machines)] == [("z0", 4), ("z1", 2)]
    assert (
        placement.list_idle(machines)[1].reason.message()
        == "2 GPUs of zone z1, node group 0, stay idle: the placement does not use them."
    )


def test_an_axis_named_twice_is_refused():
    from crosszone.errors import InvalidError

    with pytest.raises(InvalidError) as caught:
        parse(Placement, {"order": ["tp", "tp", "dp", "pp"], "blocks": [{"zone": "a", "count": 1}]})
    assert caught.value.notices[0].code == "order_axes"


@given(
    sizes=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 4)), min_size=1, max_size=5),
    tp=st.sampled_from([1, 2, 3, 4, 8]),
    pp=st.integers(1, 3),
    dp=st.integers(1, 6),
    cp=st.integers(1, 2),
)
def test_packing_uses_each_gpu_once_keeps_groups_whole_and_accounts_for_all(sizes, tp, pp, dp, cp):
    zones = [zone(f"z{n}", gpus, count=count) for n, (gpus, count) in enumerate(sizes)]
    machines = scenario(cluster={"zones": zones, "default_link": LINK}).cluster
    strategy = settled(tp=tp, pp=pp, dp=dp, cp=cp)
    room = sum(count_group_tp_room(group, tp) for _, group in machines.zone_groups)
    assume(strategy.ranks <= room)
    placement, idle = pack_ranks(machines, strategy)
    assert placement.check(machines, strategy) == []
    assert placement.ranks == strategy.ranks
    assert placement.ranks + sum(i.count for i in idle) == machines.gpus
    located, axes = placement.locate_ranks(machines), placement.compute_coordinates(strategy)
    team = (axes["cp"] * dp + axes["dp"]) * pp + axes["pp"]
    for number in range(team.max() + 1):
        members = team == number
        nodes = np.unique(located["group"][members] * 10_000 + located["node"][members])
        gpus = [group.gpus for _, group in machines.zone_groups][located["group"][members][0]]
        assert len(nodes) == max(1, tp // gpus)
