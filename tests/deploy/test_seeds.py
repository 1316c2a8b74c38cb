"""Deployments of the documents this began with: what they asked for is refused with a reason, or done legally."""

from __future__ import annotations

import json

import pytest

from crosszone.deploy.deploy import build_bundle
from crosszone.deploy.settings import LaunchSettings
from crosszone.errors import IllegalError
from crosszone.inputs.scenario import read_scenario

GPUS = (4, 8, 2)


def zones(gpus=GPUS):
    hosts = [[{"address": f"10.0.{number}.10", "interface": "eth0"}] for number in range(len(gpus))]
    node = {"count": 1, "gpu": "a100-80gb-sxm", "nic_gbps": 100}
    return {
        "zones": [
            {"name": f"zone-{n}", "nodes": [{**node, "gpus": count, "hosts": hosts[n]}]} for n, count in enumerate(gpus)
        ],
        "default_link": {"gbps": 10, "rtt_ms": 20},
    }


def made(strategy, size_b, framework="deepspeed", batch=32, gpus=GPUS, **job):
    fields = {
        "name": "seed",
        "model": {"size_b": size_b},
        "job": {"seq_len": 2048, "global_batch": batch, "framework": framework, **job},
        "cluster": zones(gpus),
        **({"strategy": strategy} if strategy else {}),
    }
    return build_bundle(read_scenario(fields), settings=LaunchSettings(steps=10))


def test_64_ranks_on_14_gpus_are_refused():
    """Seed 003: dataParallel 2 x pipelineParallel 4 x tensorParallel 8 on nodes of 2, 4 and 8 GPUs."""
    with pytest.raises(IllegalError) as caught:
        made({"dp": 2, "pp": 4, "tp": 8}, 7, gpus=(2, 4, 8))
    assert "64" in caught.value.notices[0].message("en")
    assert "14" in caught.value.notices[0].message("en")


def test_a_batch_of_64_over_14_ranks_is_refused():
    with pytest.raises(IllegalError) as caught:
        made({"dp": 14, "zero": 2}, 7, batch=64, gpus=(2, 4, 8))
    assert caught.value.notices[0].code == "batch_not_divided"


def test_zero_2_with_a_pipeline_is_refused():
    with pytest.raises(IllegalError) as caught:
        made({"dp": 2, "pp": 7, "zero": 2}, 7, gpus=(2, 4, 8))
    assert "zero" in caught.value.notices[0].field


@pytest.mark.parametrize("tp", [4, 8])
def test_tensor_parallel_groups_over_nodes_of_4_8_and_2_are_refused(tp):
    """Seed 000: 14 GPUs in zones of 4, 8 and 2 cannot all be in groups of 4 or 8."""
    with pytest.raises(IllegalError):
        made({"tp": tp, "dp": 14 // tp + 1}, 1, framework="megatron")


def test_the_1b_deployment_of_seed_000_becomes_one_that_is_legal():
    bundle = made(None, 1, batch=56)
    told = json.loads(bundle.get_text("ds_config.json"))
    ranks = bundle.world_size // json.loads(bundle.get_text("settings.json"))["strategy"]["pp"]
    identity = told["train_micro_batch_size_per_gpu"] * told["gradient_accumulation_steps"] * ranks
    assert told["train_batch_size"] == identity == 56
    assert "distributed" not in told
    slots = [line.split("slots=")[1] for line in bundle.get_text("hostfile").splitlines() if "slots=" in line]
    assert sum(map(int, slots)) == bundle.world_size <= 14


def test_the_175b_deployment_of_seed_000_keeps_states_in_host_memory_or_is_refused():
    """175e9 parameters x 16 bytes are 2,600 GiB; 14 GPUs of 80 GiB have 1,120: without offload it cannot be."""
    bundle = made(None, 175)
    told = json.loads(bundle.get_text("ds_config.json"))
    assert told["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    with pytest.raises(IllegalError):
        made(None, 175, framework="ddp")
