"""Zones on one machine: what is measured between emulated nodes is what the scenario says of their links."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from crosszone.errors import MachineError
from crosszone.inputs.cluster import Cluster
from crosszone.inputs.value import parse
from crosszone.run.emulate import network as emulation
from crosszone.run.emulate.network import Network, find_problem, split_cores
from waiting import wait_until

pytestmark = pytest.mark.cluster
can = find_problem()
needs_namespaces = pytest.mark.skipif(can is not None, reason=can.message() if can else "")
NODE = {"count": 1, "gpus": 1, "gpu": "a100-80gb-sxm", "nic_gbps": 10}


def cluster(*links, zones: int = 2, nodes: int = 1, **zone) -> Cluster:
    zone_list = [{"name": "abc"[at], "nodes": [{**NODE, "count": nodes}], **zone} for at in range(zones)]
    return parse(Cluster, {"zones": zone_list, "links": list(links)})


def between(first, second, *, seconds: float = 2.0, streams: int = 4) -> dict[str, float]:
    """Round-trip time and rate from the first node to the second."""
    port = second.machine.call("link.find_free_port", address=second.address)["port"]
    arguments = {"address": second.address, "port": port, "secret": "s" * 16, "streams": streams}
    measured: dict[str, float] = {}
    server = threading.Thread(
        target=lambda: measured.update(second.machine.call("link.receive_link_test", **arguments))
    )
    server.start()
    sender_report = first.machine.call("link.send_link_test", seconds=seconds, **arguments)
    server.join()
    return {**measured, **sender_report}


def settled(measure, *expected):
    """What is measured, once it is as expected: the machine may be busy, so a stall has a few more tries."""
    for _ in range(6):
        measured = measure()
        if all(measured[key] == pytest.approx(value, rel=rel) for key, value, rel in expected):
            break
    for key, value, rel in expected:
        assert measured[key] == pytest.approx(value, rel=rel), key
    return measured


ONE_WAY_FASTER = {"between": ["a", "b"], "gbps": 0.1, "gbps_back": 0.05, "rtt_ms": 20}


@needs_namespaces
def test_no_byte_is_earlier_and_no_direction_faster_than_set():
    """How much later and slower depends on what else the machine does; the next test wants it for itself."""
    with Network.from_cluster(cluster(ONE_WAY_FASTER, uplink_gbps=0.08)) as network:
        a, b = network.nodes
        for first, second, limit in ((a, b, 0.965 * 80e6), (b, a, 0.965 * 50e6)):  # headers take 3.5 %
            before = network.read_counters()[first.zone, second.zone]
            measured = between(first, second)
            sent = network.read_counters()[first.zone, second.zone]
            assert measured["rtt_ms_least"] > 19.9
            assert limit / 10 < measured["bit_s"] < limit * 1.08
            assert sent.bytes - before.bytes >= measured["bytes"]
            assert sent.lost == 0


@pytest.mark.long
@needs_namespaces
def test_delay_and_rate_are_as_set_in_each_direction():
    with Network.from_cluster(cluster(ONE_WAY_FASTER)) as network:
        a, b = network.nodes
        # Headers take 3.5 % of the rate.
        settled(lambda: between(a, b), ("rtt_ms_least", 20, 0.1), ("bit_s", 96.5e6, 0.08))
        settled(lambda: between(b, a), ("rtt_ms_least", 20, 0.1), ("bit_s", 48.3e6, 0.08))


@pytest.mark.long
@needs_namespaces
def test_what_is_sent_is_counted_as_the_wire_carries_it():
    with Network.from_cluster(cluster({"between": ["a", "b"], "gbps": 0.1, "rtt_ms": 5})) as network:
        arrived = between(*network.nodes)["bytes"]
        sent = network.read_counters()
    assert sent["a", "b"].bytes >= arrived * 1500 / 1448 * 0.999
    assert sent["a", "b"].bytes == pytest.approx(arrived * 1500 / 1448, rel=0.15)  # some packets are sent again
    assert sent["a", "a"].bytes == 0
    assert 0 < sent["b", "a"].bytes < sent["a", "b"].bytes / 20


@pytest.mark.long
@needs_namespaces
def test_zones_share_an_uplink():
    links = [{"between": [x, y], "gbps": 0.1, "rtt_ms": 5} for x, y in ("ab", "ac", "bc")]
    with Network.from_cluster(cluster(*links, zones=3, uplink_gbps=0.1)) as network:
        a, b, c = network.nodes

        def both():
            rates: list[float] = []
            threads = [
                threading.Thread(target=lambda to=to: rates.append(between(a, to, seconds=3)["bit_s"])) for to in (b, c)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return {"bit_s": sum(rates)}

        settled(lambda: between(a, b), ("bit_s", 96.5e6, 0.1))
        settled(both, ("bit_s", 96.5e6, 0.2))


@pytest.mark.long
@needs_namespaces
def test_losses_are_as_many_as_set():
    link = {"between": ["a", "b"], "gbps": 0.1, "rtt_ms": 5, "loss_pct": 1.0}
    with Network.from_cluster(cluster(link), seed=7) as network:
        between(*network.nodes, seconds=3)
        sent = network.read_counters()["a", "b"]
    assert sent.packets > 2000
    assert sent.lost / (sent.lost + sent.packets) == pytest.approx(0.01, rel=0.4)


@pytest.mark.long
@needs_namespaces
def test_nodes_are_machines_of_their_own_and_near_each_other_in_a_zone():
    link = {"between": ["a", "b"], "gbps": 0.1, "rtt_ms": 20}
    with Network.from_cluster(cluster(link, nodes=2)) as network:
        names = {node.machine.call("survey.collect_facts", folder="/tmp")["host"] for node in network.nodes}
        tries = [between(network.nodes[0], network.nodes[1], seconds=0.5) for _ in range(3)]
        assert between(network.control, network.nodes[3], seconds=0.2)["rtt_ms_least"] < 10
    assert len(names) == 4
    assert min(attempt["rtt_ms_least"] for attempt in tries) < 5
    assert max(attempt["bit_s"] for attempt in tries) > 200e6


@needs_namespaces
def test_nodes_find_each_other_by_name_and_have_processors_of_their_own():
    with Network.from_cluster(cluster({"between": ["a", "b"], "gbps": 0.1, "rtt_ms": 20})) as network:
        program = "import os, socket; print(socket.gethostbyname('zone1-node0'), sorted(os.sched_getaffinity(0)))"
        words = [*network.nodes[0].machine.command_prefix, sys.executable, "-c", program]
        sender_report = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split(maxsplit=1)
    assert sender_report == ["10.77.1.1", f"{sorted(split_cores(2)[0])}\n"]


KEEPER = """
import subprocess, sys
from crosszone.inputs.cluster import Cluster
from crosszone.inputs.value import parse
from crosszone.run.emulate.network import Network
node = {"count": 1, "gpus": 1, "gpu": "a100-80gb-sxm", "nic_gbps": 10}
zones = [{"name": name, "nodes": [node]} for name in "ab"]
cluster = parse(Cluster, {"zones": zones, "default_link": {"gbps": 1, "rtt_ms": 10}})
with Network.from_cluster(cluster) as network:
    words = [*network.nodes[0].machine.command_prefix, "setsid", "sleep", sys.argv[1]]
    subprocess.Popen(words)
    print(*(node.machine.pid for node in network.nodes), flush=True)
    sys.stdin.read()
"""


@needs_namespaces
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_whatever_ends_it(how):
    mine = str(900_000 + os.getpid())  # of this test alone, beside others that look for theirs
    before = set(os.listdir("/sys/class/net"))
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEPER, mine], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert keeper.stdout is not None
        pids = keeper.stdout.readline().split()
        assert len(pids) == 2
        wait_until(lambda: _running(mine))
        assert set(os.listdir("/sys/class/net")) == before  # a change would cut off browsers on this machine
    finally:
        keeper.send_signal(how)
        keeper.wait()
        keeper.stdin.close()
        keeper.stdout.close()
    wait_until(lambda: not _running(mine))
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def _running(word: str) -> list[str]:
    measured = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes().split(b"\0"):
                measured.append(path.parent.name)
        except OSError:
            continue
    return measured


def test_too_many_nodes_are_refused():
    with pytest.raises(MachineError) as refused:
        Network.from_cluster(cluster(zones=1, nodes=300))
    assert refused.value.notices[0].code == "emulate_too_many"


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [("geteuid", lambda: 1000, "emulate_root"), ("access", lambda *_: False, "emulate_tun")],
)
def test_a_machine_that_cannot_says_what_it_lacks(monkeypatch, name, value, code):
    monkeypatch.setattr(emulation.os, "geteuid", lambda: 0)
    monkeypatch.setattr(emulation.os, name, value)
    measured = find_problem()
    assert measured is not None
    assert measured.code == code
    assert measured.hint("zh")


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setattr(emulation.os, "geteuid", lambda: 0)
    monkeypatch.setattr(emulation.os, "access", lambda *_: True)
    monkeypatch.setattr(emulation.shutil, "which", lambda tool: None if tool == "cc" else "/bin/x")
    assert find_problem().value == "cc"
