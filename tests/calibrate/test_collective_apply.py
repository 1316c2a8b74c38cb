"""Measured links in a scenario, in place of typed ones."""

from __future__ import annotations

import pytest

from conftest import ROOT
from crosszone.calibrate.collective_apply import apply_link_figures
from crosszone.calibrate.collective_fit import (
    CollectiveSample,
    FittedLinks,
    Topology,
    derive_link_figures,
    estimate_collective_s,
    fit_links,
)
from crosszone.cost.tiers import BYTES_PER_S_PER_GBPS, Tier, read_figure
from crosszone.cost.wan import WanTransport, build_wan_tier
from crosszone.errors import InputError
from crosszone.inputs.document import parse_document
from crosszone.inputs.scenario import read_scenario

SIZES = tuple(4096 * 4**power for power in range(8))
EXAMPLE = (ROOT / "examples" / "two-zones-7b.yaml").read_text(encoding="utf-8")


def measured(scope, link: Tier, *, op="send_recv", zone="", nodes=2, width=1, groups=1, backend="nccl", sizes=SIZES):
    where = Topology(
        op=op,
        scope=scope,
        zone=zone,
        nodes=nodes,
        gpus_per_node=width,
        ranks=nodes * width,
        groups=groups,
        backend=backend,
    )
    times = ((size, float(estimate_collective_s(op, size, where.ranks, link))) for size in sizes)
    return [CollectiveSample(where=where, size_bytes=size, time_s=time) for size, time in times]


def figures(*rows) -> FittedLinks:
    return derive_link_figures(fit_links([one for part in rows for one in part])[0])


def scenario_of(told):
    return read_scenario(parse_document(told.text, "new.yaml")).scenario


THERE = measured("beijing>shanghai", Tier(1.206625e9, 10.05e-3))
BACK = measured("shanghai>beijing", Tier(0.6033125e9, 10.05e-3))


def test_measured_figures_take_the_place_of_typed_ones_and_are_told_as_measured():
    """[K12] 1.206625 GB/s of payload over TCP are 10 Gbit/s; 10.05 ms each way with 0.05 ms of the hosts: RTT 20 ms."""
    told = apply_link_figures(EXAMPLE, "example.yaml", figures(THERE, BACK))
    link = scenario_of(told).links[0, 1]
    assert (link.gbps, link.gbps_back, link.rtt_ms.expected) == (10, 5, 20)
    assert link.origins["gbps"] == link.origins["gbps_back"] == link.origins["rtt_ms"] == "measured"
    changes = {change.field: (change.before, change.after, change.unit) for change in told.changes}
    assert changes["cluster.links[0].rtt_ms"] == (28.6, 20, "ms")
    assert changes["cluster.links[0].gbps_back"] == (None, 5, "Gbit/s")
    assert "cluster.links[0].gbps" not in changes  # it was typed as it is


@pytest.mark.parametrize(("backend", "library"), [("gloo", "eager"), ("nccl", "nccl")])
def test_the_model_gives_the_measured_latency_and_rate_back(backend, library):
    """[K12] One group over the new link is as fast as one group was."""
    link = Tier(0.05e9, 10.05e-3)
    rows = [measured(scope, link, backend=backend) for scope in ("beijing>shanghai", "shanghai>beijing")]
    text = EXAMPLE.replace("loss_pct: 0.01", "loss_pct: 0").replace("jitter_ms: 0.5", "jitter_ms: 0")
    told = apply_link_figures(text, "example.yaml", figures(*rows))
    tier = build_wan_tier(scenario_of(told).links[0, 1], WanTransport(library=library))
    assert tier.bytes_per_s[1] == pytest.approx(link.bytes_per_s, rel=1e-3)
    assert tier.latency_s[1] == pytest.approx(link.latency_s, rel=1e-3)


def test_comments_and_layout_are_kept():
    told = apply_link_figures(EXAMPLE, "example.yaml", figures(THERE, BACK))
    old, new = EXAMPLE.splitlines(), told.text.splitlines()
    assert [line for line in old if line not in new and "rtt_ms" not in line and "flow_gbps" not in line] == []
    assert "# any name; links refer to it" in told.text and "# round-trip time; left out" in told.text


def test_a_link_that_is_listed_the_other_way_round_keeps_its_directions():
    turned = EXAMPLE.replace("[beijing, shanghai]", "[shanghai, beijing]")
    link = scenario_of(apply_link_figures(turned, "example.yaml", figures(THERE, BACK))).links[0, 1]
    assert link.between == ("beijing", "shanghai") and (link.gbps, link.gbps_back) == (10, 5)


def test_a_pair_that_is_not_listed_gets_an_entry():
    text = EXAMPLE[: EXAMPLE.index("  links:")] + "  default_link: {gbps: 1, rtt_ms: 5, usd_per_gb: 0.5}\n"
    link = scenario_of(apply_link_figures(text, "example.yaml", figures(THERE, BACK))).links[0, 1]
    assert (link.gbps, link.rtt_ms.expected, link.usd_per_gb) == (10, 20, 0.5)
    assert link.origins["gbps"] == "measured" and link.origins["usd_per_gb"] == "default_link"


def test_groups_together_show_the_link_and_one_alone_its_connection():
    """[K12] One group reaches a quarter of what four reach together."""
    single = Tier(1.206625e9 / 4, 10.05e-3)
    rows = [
        measured(s, single, groups=g, backend="gloo") for s in ("beijing>shanghai", "shanghai>beijing") for g in (1, 4)
    ]
    text = EXAMPLE.replace("flow_gbps: 5 ", "km: 1200 ")
    link = scenario_of(apply_link_figures(text, "example.yaml", figures(*rows))).links[0, 1]
    assert (link.gbps, link.flow_gbps) == (10, 2.5)


def test_collectives_show_a_link_where_no_messages_were_timed():
    rows = measured("beijing>shanghai", Tier(1.206625e9, 10.05e-3), op="all_reduce")
    link = scenario_of(apply_link_figures(EXAMPLE, "example.yaml", figures(rows))).links[0, 1]
    assert (link.gbps, link.gbps_back, link.rtt_ms.expected) == (10, 10, 20)


def test_what_the_sizes_do_not_show_stays_and_is_told():
    rows = [measured(s, Tier(1.206625e9, 1e-6), sizes=SIZES[5:]) for s in ("beijing>shanghai", "shanghai>beijing")]
    told = apply_link_figures(EXAMPLE, "example.yaml", figures(*rows))
    assert scenario_of(told).links[0, 1].rtt_ms.expected == 28.6
    assert "links_rtt_unknown" in [notice.code for notice in told.notices]


def test_nics_and_fast_links_take_what_rings_show_and_the_model_gives_it_back():
    """[K12] Rings of a zone in the model run at the measured rates."""
    network = measured("network", Tier(80e9, 20e-6), op="all_reduce", zone="beijing", nodes=4, width=8, backend="nccl")
    inside = measured("node", Tier(120e9, 5e-6), op="all_reduce", zone="beijing", nodes=1, width=8, backend="nccl")
    told = apply_link_figures(EXAMPLE, "example.yaml", figures(network, inside))
    scenario = scenario_of(told)
    (group,), (other,) = (zone.nodes for zone in scenario.cluster.zones)
    nics = group.network_gbps_node * BYTES_PER_S_PER_GBPS * read_figure("rdma", "efficiency")
    assert nics == pytest.approx(80e9, rel=1e-3)
    fast_link = 1e9 * group.gpu.link.gb_per_s * read_figure("fast_link", "efficiency", group.gpu.link.kind)
    assert fast_link == pytest.approx(120e9, rel=1e-3)
    assert group.gpu == other.gpu and group.gpu.name == "h800-80gb-sxm"  # a kind has one fast link
    assert other.nic_gbps_per_gpu == 400  # a zone has its own network
    fields = [change.field for change in told.changes]
    assert fields[0] == "cluster.zones[0].nodes[0].nic_gbps_per_gpu"
    assert fields[1:] == [f"cluster.zones[{at}].nodes[0].gpu.link.gb_per_s_both_ways" for at in (0, 1)]
    codes = [notice.code for notice in told.notices]
    assert codes.count("links_latency_kept") == 3


def test_groups_side_by_side_add_up_to_the_nic_of_a_node():
    text = EXAMPLE.replace("nic_gbps_per_gpu: 400", "nic_gbps: 100, fabric: tcp")
    rows = [
        measured("network", Tier(1.206625e9 / groups, 20e-6), op="all_reduce", zone="beijing", nodes=4, groups=groups)
        for groups in (1, 8)
    ]
    told = apply_link_figures(text, "example.yaml", figures(*rows))
    assert scenario_of(told).cluster.zones[0].nodes[0].nic_gbps == 10


def test_samples_without_a_zone_need_one_where_there_are_several():
    rows = measured("network", Tier(40e9, 20e-6), op="all_reduce", nodes=4, width=8)
    with pytest.raises(InputError) as caught:
        apply_link_figures(EXAMPLE, "example.yaml", figures(rows))
    assert [notice.code for notice in caught.value.notices] == ["links_nothing", "links_zone_needed"]
    told = apply_link_figures(EXAMPLE, "example.yaml", figures(rows), zone="shanghai")
    assert [change.field for change in told.changes] == ["cluster.zones[1].nodes[0].nic_gbps_per_gpu"]
    with pytest.raises(InputError):
        apply_link_figures(EXAMPLE, "example.yaml", figures(rows), zone="nowhere")


def test_zones_that_the_scenario_does_not_have_are_told():
    rows = measured("beijing>tokyo", Tier(1e9, 1e-3))
    told = apply_link_figures(EXAMPLE, "example.yaml", figures(THERE, BACK, rows))
    assert [n.value for n in told.notices if n.code == "links_zone_unknown"] == ["tokyo"]
    with pytest.raises(InputError):
        apply_link_figures(EXAMPLE, "example.yaml", figures(rows))


def test_an_rtt_that_light_cannot_reach_is_warned_of():
    rows = [measured(s, Tier(1e9, 0.2e-3)) for s in ("beijing>shanghai", "shanghai>beijing")]
    told = apply_link_figures(EXAMPLE, "example.yaml", figures(*rows))
    assert "rtt_below_floor" in [notice.code for notice in told.notices]


def test_the_cluster_of_another_file_is_copied(tmp_path):
    start, end = EXAMPLE.index("cluster:\n"), EXAMPLE.index("strategy:")
    (tmp_path / "cluster.yaml").write_text(EXAMPLE[start:end], encoding="utf-8")
    text = EXAMPLE[:start] + "cluster: {file: cluster.yaml}\n" + EXAMPLE[end:]
    told = apply_link_figures(text, str(tmp_path / "scenario.yaml"), figures(THERE, BACK))
    assert scenario_of(told).links[0, 1].rtt_ms.expected == 20
    assert "links_cluster_copied" in [notice.code for notice in told.notices]


def test_a_direction_that_was_not_measured_keeps_what_was_typed_for_both():
    rows = measured("beijing>shanghai", Tier(0.6033125e9, 10.05e-3))
    link = scenario_of(apply_link_figures(EXAMPLE, "example.yaml", figures(rows))).links[0, 1]
    assert (link.gbps, link.gbps_back, link.rtt_ms.expected) == (5, 10, 20)


@pytest.mark.parametrize("asked", [False, True])
def test_links_of_gpus_take_what_was_measured_on_cpus_only_when_asked(asked):
    inside = measured("node", Tier(2e9, 30e-6), op="all_reduce", zone="beijing", nodes=1, width=4, backend="gloo")
    wire = measured("network", Tier(1e9, 60e-6), op="all_reduce", zone="beijing", nodes=2, width=1, backend="gloo")
    told = apply_link_figures(EXAMPLE, "example.yaml", figures(THERE, BACK, inside, wire), cpu_for_gpus=asked)
    fields = {change.field for change in told.changes}
    set_on_gpus = {field for field in fields if "nic_gbps" in field or "gb_per_s_both_ways" in field}
    assert bool(set_on_gpus) == asked
    (warning,) = [one for one in told.notices if one.level == "warning" and one.code.startswith("links_cpu")]
    assert warning.code == ("links_cpu_taken" if asked else "links_cpu_left_out")
    assert any("gb_per_s_both_ways" in field for field in warning.params["fields"])
    assert any("nic_gbps" in field for field in warning.params["fields"])
    assert all(field in warning.message() for field in set_on_gpus)


def test_only_cpu_figures_for_gpus_are_refused_by_name():
    inside = measured("node", Tier(2e9, 30e-6), op="all_reduce", zone="beijing", nodes=1, width=4, backend="gloo")
    with pytest.raises(InputError) as caught:
        apply_link_figures(EXAMPLE, "example.yaml", figures(inside))
    notice = caught.value.notices[0]
    assert (notice.code, notice.level) == ("links_cpu_left_out", "error") and "--cpu-for-gpus" in notice.hint()


def test_figures_between_zones_that_were_measured_on_cpus_are_used_and_named():
    ways = [measured(s, Tier(1e9, 9e-3), backend="gloo") for s in ("beijing>shanghai", "shanghai>beijing")]
    told = apply_link_figures(EXAMPLE, "example.yaml", figures(*ways))
    (note,) = [one for one in told.notices if one.code == "links_cpu_between"]
    assert "cluster.links[0].rtt_ms" in note.params["fields"] and note.level == "note"
