"""Which node runs which ranks, in which launcher process."""

from __future__ import annotations

import pytest

from crosszone import load_scenario
from crosszone.deploy.launch import list_nodes
from crosszone.errors import InvalidError
from crosszone.predict.predict import build_predictor
from deploy.conftest import scenario


def found(**fields):
    return list_nodes(build_predictor(load_scenario(scenario(**fields))))


def test_each_node_runs_one_process_for_all_its_gpus():
    nodes = found(zones=2, gpus=4, strategy={"dp": 8}, job={"framework": "ddp"})
    assert [(node.zone, node.address, node.interface) for node in nodes] == [
        ("a", "127.0.0.1", "lo"),
        ("b", "127.0.0.2", "lo"),
    ]
    assert [agent.ranks for node in nodes for agent in node.agents] == [range(4), range(4, 8)]
    assert [agent.gpus for node in nodes for agent in node.agents] == [(0, 1, 2, 3)] * 2


def test_a_node_whose_ranks_are_not_consecutive_runs_several_processes():
    """Stage 0 on GPUs 0 and 1 of both nodes, stage 1 on their GPUs 2 and 3: ranks 0-1 and 4-5 on node 0."""
    blocks = [("a", 0), ("b", 0), ("a", 2), ("b", 2)]
    nodes = found(
        zones=2,
        gpus=4,
        strategy={"dp": 4, "pp": 2},
        job={"framework": "fsdp"},
        placement={
            "order": ["tp", "cp", "dp", "pp"],
            "blocks": [{"zone": zone, "first": first, "count": 2} for zone, first in blocks],
        },
    )
    assert [(agent.number, agent.first_rank, agent.gpus) for agent in nodes[0].agents] == [
        (0, 0, (0, 1)),
        (2, 4, (2, 3)),
    ]
    assert [(agent.number, agent.first_rank, agent.gpus) for agent in nodes[1].agents] == [
        (1, 2, (0, 1)),
        (3, 6, (2, 3)),
    ]


def test_nodes_that_no_rank_uses_are_left_out():
    assert len(found(zones=3, gpus=2, strategy={"dp": 4}, job={"framework": "ddp"})) == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [("address", "10.0.0.1; reboot"), ("address", "$(reboot)"), ("address", "-oProxyCommand=x"), ("address", "a b"),
     ("interface", "eth0 ; x"), ("interface", "$(x)"), ("interface", "a" * 16)],
)  # fmt: skip
def test_addresses_and_interfaces_are_nothing_else(field, value):
    fields = scenario(zones=2, strategy={"dp": 4}, job={"framework": "ddp"})
    fields["cluster"]["zones"][1]["nodes"][0]["hosts"][0][field] = value
    with pytest.raises(InvalidError) as caught:
        list_nodes(build_predictor(load_scenario(fields)))
    assert caught.value.notices[0].code == f"launch_bad_{field}"
    assert caught.value.notices[0].value == value


@pytest.mark.parametrize("address", ["10.0.0.1", "gpu-01.example.org", "fe80::1", "2001:db8::8a2e:370:7334", "node_1"])
def test_names_and_addresses_of_both_kinds_are_good(address):
    fields = scenario(strategy={"dp": 2}, job={"framework": "ddp"})
    fields["cluster"]["zones"][0]["nodes"][0]["hosts"][0]["address"] = address
    assert list_nodes(build_predictor(load_scenario(fields)))[0].address == address
