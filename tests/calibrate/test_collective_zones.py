"""Links between emulated zones: what the sampler times and the fit tells is what the links are."""

from __future__ import annotations

import os
import subprocess

import pytest

from conftest import ROOT
from crosszone.calibrate.collective_apply import apply_link_figures
from crosszone.calibrate.collective_fit import derive_link_figures, fit_links, read_collectives
from crosszone.inputs.document import parse_document
from crosszone.inputs.scenario import load_scenario, read_scenario
from crosszone.run.emulate.network import INTERFACE, Network
from run.zones import TRAIN_PYTHON, needs_torch, needs_zones

pytestmark = [*needs_zones, *needs_torch, pytest.mark.long]

SCRIPT = ROOT / "src/crosszone/calibrate/sampling/collectives.py"
TRUE = {"gbps": 0.1, "gbps_back": 0.05, "rtt_ms": 20}


def scenario(link):
    node = {"gpus": 1, "gpu": "a100-80gb-sxm", "nic_gbps": 10}
    zones = [{"name": name, "nodes": [node]} for name in ("east", "west")]
    cluster = {"zones": zones, "links": [{"between": ["east", "west"], **link}]}
    return load_scenario({"model": "llama-2-7b", "job": {"seq_len": 128, "global_batch": 8}, "cluster": cluster})


def test_rates_of_both_directions_and_the_round_trip_are_found(tmp_path):
    """100 Mbit/s there, 50 back, 20 ms; typed ten times as fast and late."""
    out = tmp_path / "collectives.csv"
    asked = ["-o", out, "--sizes", "4k,64k,2m", "--ops", "send_recv", "--budget", "40s"]
    with Network.from_cluster(scenario(TRUE).cluster) as network:
        torchrun = [TRAIN_PYTHON, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
        torchrun += ["--master-addr", network.nodes[0].address, "--master-port", "29500"]
        agents = [
            subprocess.Popen(
                [*node.machine.command_prefix, *torchrun, "--node-rank", str(rank), SCRIPT, *asked],
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "GLOO_SOCKET_IFNAME": INTERFACE,
                    "CROSSZONE_ZONE": node.zone,
                },
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, node in enumerate(network.nodes)
        ]
        ends = [agent.communicate(timeout=240) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], ends
    fits, _ = fit_links(read_collectives(out, keep_noisy=True).rows)
    text = scenario({"gbps": 1, "rtt_ms": 200}).to_yaml()
    told = apply_link_figures(text, "typed.yaml", derive_link_figures(fits))
    link = read_scenario(parse_document(told.text, "new.yaml")).scenario.links[0, 1]
    assert (link.gbps, link.gbps_back) == (pytest.approx(0.1, rel=0.2), pytest.approx(0.05, rel=0.2))
    assert 18 < link.rtt_ms.expected < 40  # hosts that do other work answer late
    assert {link.origins[key] for key in ("gbps", "gbps_back", "rtt_ms")} == {"measured"}
