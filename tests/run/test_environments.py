"""Environments found elsewhere, asked what they are, and put together to a cluster."""

from __future__ import annotations

import json
import sys

import pytest

from crosszone.errors import FileError, InvalidError, MachineError
from crosszone.inputs.cluster import Cluster
from crosszone.inputs.document import parse_document
from crosszone.inputs.environment import Environment, MeasuredLink
from crosszone.inputs.value import parse
from crosszone.run import imports
from crosszone.run.environments import (
    LinkEnd,
    build_cluster,
    find_gpu_name,
    make_machine,
    measure_link,
    probe_environment,
)
from crosszone.run.machine import Local, Ssh

A100 = {"gpu": "a100-80gb-sxm", "gpus": 2}


def env(zone: str = "a", **more) -> Environment:
    return Environment(name="x", zone=zone, **more)


@pytest.mark.parametrize(
    ("printed", "kind"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb-sxm"),
        ("NVIDIA H200", "h200-141gb-sxm"),
        ("Tesla V100-SXM2-32GB", "v100-32gb-sxm"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Matrox Mystique", None),
    ],
)
def test_a_gpu_is_known_by_what_its_driver_prints(printed, kind):
    assert find_gpu_name(printed) == kind


def test_a_probe_fills_in_what_the_machine_says():
    environment = probe_environment(
        env(address="127.0.0.1", runner="local", python=sys.executable, workdir="/tmp"), Local()
    )
    assert environment.status == "running"
    assert environment.cpus >= 1
    assert environment.memory_gb > 0.1
    assert environment.since is not None
    assert environment.interface == "lo"
    assert environment.facts["software"]["python"].startswith("3.")


class Told:
    """A machine that says what a test lets it say."""

    name = "told"

    def __init__(self, **facts):
        self.facts = {
            "cpus": 8,
            "memory_gib": 64,
            "uptime_s": 60.0,
            "clock": 1e9,
            "interfaces": {},
            "gpus": [],
            **facts,
        }

    def call(self, what, **_):
        return self.facts


def test_gpus_that_are_found_take_the_place_of_those_that_were_typed():
    cards = [{"name": "NVIDIA H200", "memory_gib": 140.0}] * 8
    environment = probe_environment(env(**A100), Told(gpus=cards))
    assert (environment.gpu, environment.gpus, environment.since) == ("h200-141gb-sxm", 8, 1e9 - 60)
    unknown = probe_environment(env(**A100), Told(gpus=[{"name": "Matrox Mystique", "memory_gib": 1.0}]))
    assert (unknown.gpu, unknown.gpus) == ("a100-80gb-sxm", 1)
    assert probe_environment(env(**A100), Told()).gpus == 2  # no driver says nothing of what is planned


def test_whoever_can_be_asked_is_a_machine():
    assert isinstance(make_machine("e", env(runner="local")), Local)
    far = make_machine("e", env(address="10.0.0.7", ssh_user="ml", ssh_port=2222))
    assert isinstance(far, Ssh)
    assert (far.address, far.user, far.port) == ("10.0.0.7", "ml", 2222)
    for other, code in ((env(), "environment_no_address"), (env(runner="slurm"), "environment_scheduled")):
        with pytest.raises(MachineError) as refused:
            make_machine("e", other)
        assert refused.value.notices[0].code == code


def test_a_link_of_this_machine_to_itself():
    ends = [LinkEnd(name, "127.0.0.1", Local(name=name)) for name in ("a", "b")]
    link = measure_link(*ends, seconds=0.3, streams=2)
    assert (link.first, link.second, link.streams) == ("a", "b", 2)
    assert 0 < link.rtt_ms_least <= link.rtt_ms <= link.rtt_ms_most < 1000
    assert link.gbps > 0.1
    assert link.gbps_back > 0.1
    with pytest.raises(MachineError):
        measure_link(ends[0], LinkEnd("c", None, Local()))


def test_environments_make_a_cluster_with_their_measured_links():
    chosen = {
        "env-1": env("a", **A100, cpus=16, memory_gb=128.0, address="10.0.0.1", interface="eth0"),
        "env-2": env("b", gpu="h100-80gb-sxm", gpus=8, nic_gbps=400.0),
        "env-3": env("a", **A100),
    }
    common = {"rtt_ms_least": 1.0, "rtt_ms_most": 50.0, "measured": 1e9}
    links = [
        MeasuredLink(first="env-1", second="env-2", rtt_ms=20.0, gbps=0.0965, gbps_back=0.05, **common),
        MeasuredLink(first="env-2", second="env-3", rtt_ms=22.0, gbps=0.06, gbps_back=0.0900, **common),
        MeasuredLink(first="env-1", second="env-3", rtt_ms=0.1, **common),
        MeasuredLink(first="env-1", second="env-9", rtt_ms=0.1, **common),
    ]
    cluster = parse(Cluster, build_cluster(chosen, links))
    assert [zone.name for zone in cluster.zones] == ["a", "b"]
    assert [group.gpus for _, group in cluster.zone_groups] == [2, 2, 8]
    assert cluster.zones[0].nodes[0].hosts[0].name == "env-1"
    (link,) = cluster.links
    assert (link.between, link.rtt_ms, link.measured) == (("a", "b"), 21.0, True)
    assert link.gbps == pytest.approx(0.0965 / 0.9653, rel=1e-3)  # headers belong to a link's rate
    assert link.gbps_back == pytest.approx(0.06 / 0.9653, rel=1e-3)
    with pytest.raises(InvalidError) as refused:
        build_cluster({"e": env(gpus=2)})
    assert refused.value.notices[0].code == "environment_no_gpu_kind"
    with pytest.raises(InvalidError):
        build_cluster({"e": env(region="cn-beijing", **A100), "f": env(region="cn-shanghai", **A100)})


def test_a_rate_measured_inside_a_zone_is_taken_where_none_was_given():
    fields = {**A100, "nic_gbps": 10.0}
    chosen = {"e": env("a", **A100), "f": env("a", **fields), "g": env("b", **A100)}
    common = {"rtt_ms": 0.1, "rtt_ms_least": 0.1, "rtt_ms_most": 0.2, "measured": 1e9}
    links = [
        MeasuredLink(first="f", second="e", gbps=0.9, gbps_back=0.8, **common),
        MeasuredLink(first="e", second="g", gbps=5.0, **common),
    ]
    e, f, g = (group for _, group in parse(Cluster, build_cluster(chosen, links)).zone_groups)
    assert e.nic_gbps == pytest.approx(0.9 / 0.9653, rel=1e-3)
    assert (f.nic_gbps, g.nic_gbps) == (10.0, None)


CPU = {"threads": 8, "fp32_tflops": 0.4567, "bf16_tflops": 0.0123, "memory_gb_per_s": 25.49}


def test_a_machine_without_gpus_trains_on_its_cpu_at_the_rates_a_probe_measured():
    environment = probe_environment(env(), Told(cpu=CPU))
    assert (environment.gpus, environment.gpu, environment.processes) == (0, None, 1)
    ((_, group),) = parse(Cluster, build_cluster({"e": environment})).zone_groups
    assert (group.gpus, group.gpu.is_cpu, group.fabric) == (1, True, "tcp")
    assert group.gpu.dense_tflops.fp32 == 0.46  # what two measurements agree on: two digits
    assert group.gpu.memory_gb_per_s == 25.0
    assert group.gpu.memory_gib == pytest.approx(64, rel=1e-4)


def test_nothing_is_invented_for_a_cpu_that_nobody_measured():
    for unknown in (env(), probe_environment(env(), Told(cpu={"missing": "torch"}))):
        with pytest.raises(InvalidError) as refused:
            build_cluster({"e": unknown})
        assert refused.value.notices[0].code == "environment_cpu_unmeasured"


def test_a_yaml_list():
    text = "environments:\n  - {id: env-001, name: one, zone: a}\n  - {name: two, zone: b, gpus: 4, gpu: a100}\n"
    environments = imports.read_environment_list(parse_document(text, "envs.yaml"))
    assert list(environments) == ["env-001", "two"]
    assert environments["two"].gpus == 4
    for wrong, line in (("gpus: -1", 2), ("gpuss: 1", 2)):
        with pytest.raises(InvalidError) as refused:
            imports.read_environment_list(
                parse_document("environments:\n" + f"  - {{name: one, zone: a, {wrong}}}\n", "envs.yaml")
            )
        assert refused.value.notices[0].line == line
    with pytest.raises(InvalidError):
        imports.read_environment_list(parse_document("environments: 3\n", "envs.yaml"))
    with pytest.raises(InvalidError):
        imports.read_environment_list(
            parse_document("environments: [{name: a, zone: b}, {name: a, zone: b}]\n", "envs.yaml")
        )


def test_an_ssh_config(tmp_path):
    key = tmp_path / "key"
    key.touch()
    config = tmp_path / "config"
    config.write_text(
        "Host gpu-1 gpu-2\n  HostName %h.example.org\n  User ml\n"
        f"Host gpu-2\n  Port 2222\n  IdentityFile {key}\n  UserKnownHostsFile {tmp_path}/known\n"
        "Host *.internal !bad -oProxyCommand=x\nHost *\n  User fallback\n"
    )
    environments = imports.read_ssh_hosts(config, zone="z")
    assert list(environments) == ["gpu-1", "gpu-2"]
    assert (environments["gpu-1"].address, environments["gpu-1"].ssh_user, environments["gpu-1"].ssh_port) == (
        "gpu-1.example.org",
        "ml",
        22,
    )
    two = environments["gpu-2"]
    assert (two.ssh_port, two.ssh_key, two.known_hosts) == (2222, str(key), f"{tmp_path}/known")
    assert two.zone == "z"
    with pytest.raises(FileError):
        imports.read_ssh_hosts(tmp_path / "none", zone="z")
    config.write_text("Host a\n  Nonsense yes\n")
    with pytest.raises(FileError):
        imports.read_ssh_hosts(config, zone="z")


def test_lines_of_sinfo():
    text = (
        "node1|east|64|515000|gpu:a100:8(S:0-1)|idle\n"
        "node1|all|64|515000|gpu:a100:8(S:0-1)|idle\n"
        "node2|west|32|257000|(null)|down*\n"
        "node3|west|128+|1031000+|gpu:h100:4,gpu:h100:4,shard:2|mixed\n"
        "noise\n"
    )
    environments = imports.parse_slurm_nodes(text)
    assert list(environments) == ["node1", "node2", "node3"]
    first, second, third = environments.values()
    assert (first.zone, first.gpu, first.gpus, first.cpus, first.status) == ("east", "a100-80gb-sxm", 8, 64, "running")
    assert first.memory_gb == pytest.approx(515000 * 2**20 / 1e9, rel=1e-6)
    assert (second.gpus, second.gpu, second.status) == (0, None, "stopped")
    assert (third.gpus, third.gpu, third.runner) == (8, "h100-80gb-sxm", "slurm")


def test_a_list_of_kubernetes_nodes():
    node = {
        "metadata": {
            "name": "n1",
            "labels": {
                "topology.kubernetes.io/zone": "cn-beijing-a",
                "topology.kubernetes.io/region": "cn-beijing",
                "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
            },
        },
        "status": {
            "allocatable": {"cpu": "63500m", "memory": "527943696Ki", "nvidia.com/gpu": "8"},
            "addresses": [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "10.0.0.4"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    bare = {"metadata": {"name": "n2"}, "status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    environments = imports.parse_kubernetes_nodes(json.loads(json.dumps({"items": [node, bare]})))
    first, second = environments.values()
    assert (first.zone, first.region, first.gpu, first.gpus) == ("cn-beijing-a", "cn-beijing", "a100-80gb-sxm", 8)
    assert (first.cpus, first.address, first.status) == (63, "10.0.0.4", "running")
    assert first.memory_gb == pytest.approx(540.614, abs=0.01)
    assert (second.zone, second.gpus, second.status) == ("default", 0, "stopped")


@pytest.mark.parametrize(
    ("command", "words", "code"),
    [
        ("SINFO_COMMAND", ("no-such-sinfo",), "slurm_missing"),
        ("SINFO_COMMAND", ("sh", "-c", "echo why >&2; exit 3"), "slurm_failed"),
        ("KUBECTL_COMMAND", ("no-such-kubectl",), "kubernetes_missing"),
        ("KUBECTL_COMMAND", ("sh", "-c", "echo why >&2; exit 3"), "kubernetes_failed"),
    ],
)
def test_a_scheduler_that_is_not_there(monkeypatch, command, words, code):
    monkeypatch.setattr(imports, command, words)
    with pytest.raises(MachineError) as refused:
        imports.read_slurm_nodes() if command == "SINFO_COMMAND" else imports.read_kubernetes_nodes()
    assert refused.value.notices[0].code == code
    assert "why" in refused.value.notices[0].message() or "missing" in code
