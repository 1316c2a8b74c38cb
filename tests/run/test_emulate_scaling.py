"""A scenario shrunk to a few CPU processes: what stays, what goes, and that it is told."""

from __future__ import annotations

import pytest

from crosszone.errors import InvalidError, MachineError
from crosszone.inputs.environment import Environment
from crosszone.inputs.scenario import Scenario, parse_scenario
from crosszone.inputs.value import parse
from crosszone.run.emulate import emulation
from crosszone.run.emulate.emulation import MAX_GBPS, scale_cluster, scale_scenario
from crosszone.run.emulate.network import split_cores

CPU = {"fp32_tflops": 0.05, "bf16_tflops": 0.01, "memory_gb_per_s": 10.0}
SCENARIO = """
name: two cities
model: llama-2-7b
job: {{seq_len: 4096, global_batch: 512}}
cluster:
  zones:
  - {{name: a, uplink_gbps: 40, nodes: [{{count: 4, gpus: 8, gpu: a100-80gb-sxm, nic_gbps: 100}}]}}
  - {{name: b, nodes: [{{count: 4, gpus: 8, gpu: a100-80gb-sxm, nic_gbps: 100}}]}}
  links: [{{between: [a, b], gbps: {gbps}, gbps_back: 0.2, rtt_ms: 20, loss_pct: 0.1}}]
strategy: {strategy}
"""


def loaded(strategy: str = "{tp: 8, dp: 8, micro_batch: 1}", gbps: float = 0.1):
    return parse_scenario(SCENARIO.format(strategy=strategy, gbps=gbps))


def nodes(zones):
    """Environments as a probe finds them."""
    return {
        f"{zone.name}-{index}": Environment(
            name="e", zone=zone.name, runner="local", memory_gb=8, cpus=1, facts={"cpu": CPU}
        )
        for zone in zones.zones
        for index in range(zone.node_count)
    }


def small(strategy: str, *, per_zone: int = 1, framework: str | None = None, tiny: bool = True, steps: int = 20):
    source = loaded(strategy)
    zones, _ = scale_cluster(source.scenario.cluster, per_zone)
    return scale_scenario(source, zones, nodes(zones), tiny=tiny, framework=framework, steps=steps)


def test_zones_and_links_stay_and_nodes_become_few():
    zones, notices = scale_cluster(loaded().scenario.cluster, 1)
    (link,) = zones.links
    assert [zone.name for zone in zones.zones] == ["a", "b"]
    assert zones.node_count == 2
    assert (link.gbps, link.gbps_back, link.rtt_ms, link.loss_pct) == (0.1, 0.2, 20, 0.1)
    assert [notice.code for notice in notices] == ["emulate_cpu", "emulate_rate_capped"]
    assert notices[0].params == {"nodes": 2, "gpus": 64, "of": 8}


def test_rates_that_a_machine_cannot_carry_are_cut_and_told():
    zones, notices = scale_cluster(loaded(gbps=10).scenario.cluster, 1)
    assert zones.zones[0].uplink_gbps == MAX_GBPS
    assert (zones.links[0].gbps, zones.links[0].gbps_back) == (MAX_GBPS, 0.2)
    assert notices[1].value == 40
    assert notices[1].params["count"] == 2


def test_a_zone_has_no_more_nodes_than_the_scenario_gives_it():
    zones, _ = scale_cluster(loaded().scenario.cluster, 8)
    assert [zone.node_count for zone in zones.zones] == [4, 4]


def test_more_processes_than_a_machine_should_run_are_refused():
    with pytest.raises(InvalidError) as refused:
        scale_cluster(parse(Scenario, _many_zones()).cluster, 1)
    assert refused.value.notices[0].code == "emulate_too_many_ranks"


def _many_zones():
    node = {"count": 1, "gpus": 1, "gpu": "a100-80gb-sxm", "nic_gbps": 10}
    zones = [{"name": f"z{number}", "nodes": [node]} for number in range(9)]
    cluster = {"zones": zones, "default_link": {"gbps": 1, "rtt_ms": 10}}
    return {"model": "llama-2-7b", "job": {"seq_len": 128, "global_batch": 9}, "cluster": cluster}


def test_replicas_stay_replicas_and_what_lies_in_a_node_goes():
    scaled = small("{tp: 8, dp: 8, micro_batch: 1, communication: {bucket_mb: 50, flows: 8}}", framework="ddp")
    assert scaled.scenario["strategy"]["dp"] == 2
    assert "tp" not in scaled.scenario["strategy"]
    assert scaled.scenario["strategy"]["communication"] == {"bucket_mb": 50}
    split = next(notice for notice in scaled.notices if notice.code == "emulate_split")
    assert split.params == {"before": "dp 8 tp 8", "after": "dp 2"}


def test_stages_of_several_zones_stay_stages():
    scaled = small("{tp: 8, pp: 8, dp: 1, micro_batch: 1}")
    strategy = scaled.scenario["strategy"]
    assert (strategy["dp"], strategy["pp"]) == (1, 2)
    assert scaled.framework == "fsdp"
    assert scaled.scenario["job"]["global_batch"] == 4


def test_local_updates_are_seen_within_the_run():
    scaled = small("{tp: 8, dp: 8, micro_batch: 1, local_update: {steps: 500, fragments: 2}}", framework="ddp")
    assert scaled.scenario["strategy"]["local_update"]["steps"] == 10


def test_a_model_that_is_not_tiny_keeps_its_batch_for_each_replica():
    scaled = small("{tp: 8, dp: 4, micro_batch: 2}", framework="ddp", tiny=False)
    assert scaled.scenario["model"] == "llama-2-7b"
    assert scaled.scenario["job"]["global_batch"] == 512 // 4 * 2
    assert "emulate_tiny" not in {notice.code for notice in scaled.notices}


def test_a_framework_that_needs_gpus_is_refused_or_replaced_and_told():
    with pytest.raises(InvalidError) as refused:
        small("{tp: 8, dp: 8}", framework="megatron")
    assert refused.value.notices[0].code == "emulate_framework"
    source = parse_scenario(SCENARIO.replace("512", "512, framework: megatron").format(strategy="{dp: 64}", gbps=1))
    zones, _ = scale_cluster(source.scenario.cluster, 1)
    scaled = scale_scenario(source, zones, nodes(zones), tiny=True, framework=None, steps=20)
    assert scaled.framework == "ddp"
    assert "emulate_framework_other" in {notice.code for notice in scaled.notices}


def test_processors_are_shared_out(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3, 4})
    assert split_cores(2) == [(0, 1), (2, 3)]
    assert split_cores(7) == [(0,), (1,), (2,), (3,), (4,), (0,), (1,)]


def test_a_machine_that_cannot_says_so(monkeypatch):
    monkeypatch.setattr("crosszone.run.emulate.network.os.geteuid", lambda: 1000)
    with pytest.raises(MachineError) as refused:
        emulation.run_emulation(loaded())
    assert refused.value.notices[0].code == "emulate_root"


def test_what_cannot_be_measured_or_kept_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(emulation, "find_problem", lambda: None)
    (tmp_path / "there").write_text("")
    for options, code in (({"steps": 4}, "emulate_few_steps"), ({"keep": tmp_path}, "emulate_keep_exists")):
        with pytest.raises(InvalidError) as refused:
            emulation.run_emulation(loaded(), **options)
        assert refused.value.notices[0].code == code
