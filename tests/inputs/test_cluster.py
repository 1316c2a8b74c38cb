"""Zones, node groups and what they refuse."""

from __future__ import annotations

import pytest

from builders import A100, fields, scenario, zone
from crosszone import Cluster, InputError
from crosszone.inputs.cluster import NodeGroup
from crosszone.inputs.value import parse


def group(**changes) -> NodeGroup:
    return parse(NodeGroup, {"gpus": 8, "gpu": A100} | changes)


def cluster(*zones, **more) -> Cluster:
    return parse(Cluster, {"zones": list(zones), **more})


def test_zones_may_be_unequal():
    built = cluster(zone("a", 4), zone("b", 8), zone("c", 2), default_link={"gbps": 1, "rtt_ms": 10})
    assert [z.gpus for z in built.zones] == [4, 8, 2]
    assert built.gpus == 14


def test_a_zone_may_hold_several_node_groups_and_gpu_kinds():
    mixed = {"name": "a", "nodes": [{"count": 2, "gpus": 8, "gpu": A100}, {"count": 3, "gpus": 4, "gpu": "v100"}]}
    built = cluster(mixed)
    assert (built.gpus, built.node_count) == (28, 5)
    assert [gpu.name for gpu in built.gpu_kinds] == [A100, "v100-32gb-sxm"]


def test_a_nic_per_gpu_adds_up_and_a_shared_one_does_not():
    assert group(nic_gbps_per_gpu=200).nic_gbps_node == 1600
    assert group(nic_gbps=200).nic_gbps_node == 200
    assert group(gpus=4, nic_gbps=200).nic_gbps_node == 200


def test_the_fast_link_joins_a_node_or_a_rack():
    assert group().domain == 8
    assert group(gpus=4).domain == 4
    assert group(intra_link="pcie").domain == 1
    assert group(nvlink_domain=2).domain == 2
    assert group(gpu="l40s").domain == 1
    assert group(count=18, gpus=4, gpu="gb200").domain == 72
    assert group(count=2, gpus=4, gpu="gb200").domain == 8
    assert group(gpus=1, gpu="gh200-96gb").domain == 1


def test_renaming_a_zone_keeps_all_other_values():
    zones = [zone("a", 8, region="cn-beijing", uplink_gbps=5), zone("b", 4, region="cn-shanghai")]
    before = scenario(cluster={"zones": zones, "links": [{"between": ["a", "b"], "gbps": 3, "rtt_ms": 30}]})
    zones[0]["name"] = "north"
    after = scenario(cluster={"zones": zones, "links": [{"between": ["north", "b"], "gbps": 3, "rtt_ms": 30}]})
    assert after.cluster.zones[0].replace(name="a") == before.cluster.zones[0]
    assert after.links[0, 1].gbps == before.links[0, 1].gbps


def test_adding_and_removing_a_zone_keeps_the_others():
    zones = [zone(name, region=name) for name in ("cn-beijing", "cn-shanghai", "cn-shenzhen")]
    three, two = scenario(cluster={"zones": zones}), scenario(cluster={"zones": zones[:2]})
    assert three.cluster.zones[:2] == two.cluster.zones
    assert three.links[0, 1] == two.links[0, 1]


def test_a_gpu_may_be_given_by_its_figures():
    figures = {"name": "mine", "dense_tflops": {"bf16": 50}, "memory_gib": 24, "memory_gb_per_s": 500}
    assert group(gpu=figures).gpu.memory_gib == 24
    assert group(gpu={"like": A100, "memory_gib": 160}).gpu.memory_gib == 160


@pytest.mark.parametrize(
    ("changes", "field", "code"),
    [
        ({"zones": []}, "cluster.zones", "too_short"),
        ({"zones": [zone("a")] * 101}, "cluster.zones", "too_long"),
        ({"zones": 1_000_000_000}, "cluster.zones", "must_be_list"),
        ({"zones": [zone("a"), zone("a")]}, "cluster.zones[1].name", "zone_twice"),
        ({"zones": [zone("a", gpus=0)]}, "cluster.zones[0].nodes[0].gpus", "must_be_at_least"),
        ({"zones": [zone("a", count=1_000_000_000)]}, "cluster.zones[0].nodes[0].count", "must_be_at_most"),
        ({"zones": [zone("a", count=1_000_000)]}, "cluster", "too_many_gpus"),
        ({"zones": [zone("a", gpu="a101")]}, "cluster.zones[0].nodes[0].gpu", "unknown_name"),
        ({"zones": [zone("a", region="atlantis")]}, "cluster.zones[0].region", "unknown_name"),
        ({"zones": [zone("a", region={"lat": 91, "lon": 0})]}, "cluster.zones[0].region.lat", "must_be_at_most"),
        ({"zones": [zone("")]}, "cluster.zones[0].name", "bad_name"),
        ({"zones": [zone("a\nb")]}, "cluster.zones[0].name", "bad_name"),
        (
            {"zones": [zone("a", nodes=[{"gpu": A100, "gpus": 8, "nic_gbps": 1, "nic_gbps_per_gpu": 1}])]},
            "cluster.zones[0].nodes[0]",
            "nic_twice",
        ),
        (
            {"zones": [zone("a", nodes=[{"gpu": "l4", "gpus": 8, "intra_link": "nvlink"}])]},
            "cluster.zones[0].nodes[0]",
            "no_fast_link",
        ),
        (
            {"zones": [zone("a", nodes=[{"gpu": A100, "gpus": 8, "count": 2, "hosts": [{"address": "10.0.0.1"}]}])]},
            "cluster.zones[0].nodes[0].hosts",
            "hosts_and_count",
        ),
        (
            {"zones": [zone("a"), zone("b")], "links": [{"between": ["a", "c"], "gbps": 1}]},
            "cluster.links[0].between",
            "link_to_nowhere",
        ),
        (
            {"zones": [zone("a"), zone("b")], "links": [{"between": ["a", "a"], "gbps": 1}]},
            "cluster.links[0]",
            "link_to_itself",
        ),
        (
            {"zones": [zone("a"), zone("b")], "links": [{"between": ["a", "b"]}, {"between": ["b", "a"]}]},
            "cluster.links[1]",
            "link_twice",
        ),
        (
            {"zones": [zone("a"), zone("b")], "links": [{"between": ["a", "b"], "gbps": 0}]},
            "cluster.links[0].gbps",
            "must_be_more_than",
        ),
        (
            {"zones": [zone("a"), zone("b")], "links": [{"between": ["a", "b"], "gbps": float("inf")}]},
            "cluster.links[0].gbps",
            "not_finite",
        ),
        (
            {"zones": [zone("a"), zone("b")], "links": [{"between": ["a", "b"], "rtt_ms": -1}]},
            "cluster.links[0].rtt_ms",
            "must_be_at_least",
        ),
        (
            {"zones": [zone("a"), zone("b")], "links": [{"between": ["a", "b"], "loss_pct": 100}]},
            "cluster.links[0].loss_pct",
            "must_be_less_than",
        ),
        (
            {"zones": [zone("a"), zone("b")], "links": [{"between": ["a"]}]},
            "cluster.links[0].between",
            "must_be_two",
        ),
        ({"zones": [zone("a")], "zonse": 1}, "cluster.zonse", "unknown_key"),
    ],
)
def test_impossible_clusters_are_refused_with_field_and_remedy(changes, field, code):
    with pytest.raises(InputError) as caught:
        scenario(**fields(cluster=changes))
    notice = caught.value.notices[0]
    assert (notice.field, notice.code) == (field, code)
    for language in ("en", "zh"):
        assert notice.message(language)
        assert notice.hint(language)


@pytest.mark.parametrize(
    ("node", "field", "code"),
    [
        ({"gpus": 8, "gpu": A100, "nvlink_domain": 9}, "nvlink_domain", "domain_over_gpus"),
        ({"gpus": 8, "gpu": "l4", "nvlink_domain": 2}, "nvlink_domain", "domain_over_gpus"),
        ({"gpus": 8, "gpu": None}, "gpu", "must_be_entry"),
        ({"gpus": 8, "gpu": 100}, "gpu", "must_be_entry"),
        (
            {"gpus": 8, "gpu": A100, "count": 2, "hosts": [{"address": "10.0.0.1"}, {"address": "10.0.0.1"}]},
            "hosts[1].address",
            "address_twice",
        ),
    ],
)
def test_impossible_nodes_are_refused(node, field, code):
    with pytest.raises(InputError) as caught:
        scenario(cluster={"zones": [zone("a", nodes=[node])]})
    notice = caught.value.notices[0]
    assert (notice.field, notice.code) == (f"cluster.zones[0].nodes[0].{field}", code)


def test_two_gpu_kinds_of_one_name_are_refused():
    figures = {"name": "mine", "dense_tflops": {"bf16": 50}, "memory_gib": 24, "memory_gb_per_s": 500}
    nodes = [{"gpus": 8, "gpu": figures}, {"gpus": 8, "gpu": figures | {"memory_gib": 48}}]
    with pytest.raises(InputError) as caught:
        scenario(cluster={"zones": [zone("a", nodes=nodes)]})
    assert caught.value.notices[0].code == "gpu_name_twice"


def test_an_unknown_key_names_the_nearest_valid_one():
    with pytest.raises(InputError) as caught:
        scenario(cluster={"zones": [zone("a", nodes=[{"gpus": 8, "gpu": A100, "nic_gbps_per_gpus": 200}])]})
    assert caught.value.notices[0].params["nearest"] == ["nic_gbps_per_gpu"]
