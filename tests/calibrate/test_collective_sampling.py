"""The sampler of collectives: what it measures, and real runs between CPU processes."""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import ROOT
from crosszone.calibrate.collective_fit import read_collectives
from crosszone.calibrate.sampling import collectives as sampler
from crosszone.cli import run as _run

TORCH = ROOT / ".venv-train" / "bin" / "python"
SCRIPT = ROOT / "src/crosszone/calibrate/sampling/collectives.py"
needs_torch = pytest.mark.skipif(not TORCH.exists(), reason="PyTorch is not installed in .venv-train")


def lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_groups_of_every_kind_are_planned_alone_and_together():
    nodes = [[0, 1], [2, 3], [4, 5]]
    found = sampler.plan_cases(nodes, ["a", "a", "b"])
    told = {(case.scope, case.zone, case.nodes, case.gpus_per_node, len(case.groups)): case.groups for case in found}
    assert told[("node", "a", 1, 2, 1)] == ((0, 1),)
    assert told[("node", "a", 1, 2, 2)] == ((0, 1), (2, 3))
    assert told[("network", "a", 2, 1, 2)] == ((0, 2), (1, 3))
    assert told[("network", "a", 2, 2, 1)] == ((0, 1, 2, 3),)
    assert told[("a>b", "", 2, 1, 2)] == ((0, 4), (1, 5))
    assert told[("b>a", "", 2, 1, 1)] == ((4, 0),)
    assert not [case for case in found if case.scope == "network" and case.zone == "b"]
    for case in found:
        members = [rank for group in case.groups for rank in group]
        assert len(members) == len(set(members))
        assert case.ranks == case.nodes * case.gpus_per_node


def test_messages_go_between_two_and_collectives_only_once_for_both_directions():
    found = {case.scope: case for case in sampler.plan_cases([[0], [1]], ["a", "b"])}
    assert found["a>b"].select_ops(sampler.OPS) == list(sampler.OPS)
    assert found["b>a"].select_ops(sampler.OPS) == ["send_recv"]
    (four,) = sampler.plan_cases([[0, 1, 2, 3]], [""])[-1:]
    assert four.ranks == 4 and "send_recv" not in four.select_ops(sampler.OPS)


def test_the_median_leaves_outliers_out():
    middle, spread, kept = sampler.summarize_times([1.0, 1.1, 0.9, 1.0, 1.0, 30.0])
    assert (middle, kept) == (1.0, 5)
    assert spread < 25


def test_the_time_of_a_message_is_without_the_way_back():
    """[K13] 12 ms for a message and one element back, 4 ms for one element there and back: 10 ms."""
    own: Any = sampler.Sampler(world=None, ends=0.0)
    case = sampler.CollectiveCase("a>b", "", 2, 1, ((0, 1),))
    row = own._format_row({}, case, "send_recv", 10**6, [12e-3] * 5, 4e-3 / 2)
    assert float(row["time_us"]) == pytest.approx(10_000)
    assert float(row["bus_gb_per_s"]) == pytest.approx(0.1)
    assert own._format_row({}, case, "send_recv", 10**6, [1e-3] * 5, 2e-3) == {"flag": "failed"}
    assert "faster than the way back" in next(iter(own.left_out))


def test_noise_is_flagged_by_what_it_leaves_open_of_the_median():
    own: Any = sampler.Sampler(world=None, ends=0.0)
    case = sampler.CollectiveCase("node", "", 1, 2, ((0, 1),))
    few = own._format_row({}, case, "all_reduce", 4096, [1.0, 1.3, 1.7, 2.1, 2.6], 0.0)
    many = own._format_row({}, case, "all_reduce", 4096, [1.0, 1.3, 1.7, 2.1, 2.6] * 10, 0.0)
    assert (few["flag"], many["flag"]) == ("noisy", "")


def test_an_op_that_the_backend_refuses_is_told_and_not_tried_again(monkeypatch):
    def refuse(*_: object) -> None:
        raise NotImplementedError("gloo has no all_to_all\nsecond line")

    class Alone:
        name, backend, rank, dtype = "cpu", "gloo", 0, SimpleNamespace(itemsize=4)

        def reduce_max(self, values):
            return list(values)

        def group(self, members):
            return members

    monkeypatch.setattr(sampler, "build_call", refuse)
    monkeypatch.setattr(sampler, "torch", SimpleNamespace(__version__="2.0"))
    own: Any = sampler.Sampler(world=Alone(), ends=time.monotonic() + 60)
    case = sampler.CollectiveCase("node", "", 1, 2, ((0, 1),))
    row = own.measure(case, "all_to_all", 4096, 0.5)
    assert (row["flag"], row["bytes"], row.get("time_us")) == ("failed", 4096, None)
    assert own.left_out == {"NotImplementedError: gloo has no all_to_all": [(4096, "all_to_all")]}
    assert own.measure(case, "all_to_all", 65536, 0.5) is None
    own.most_bytes = 1000
    assert own.measure(case, "all_reduce", 4096, 0.5) is None and "memory" in list(own.left_out)[-1]
    own.most_bytes, own.ends = 1e9, 0.0
    assert own.measure(case, "all_reduce", 4096, 0.5) is None and "budget" in list(own.left_out)[-1]


def test_what_is_left_out_is_one_line_a_reason_in_mib():
    cells = [(2**26, "all_gather"), (2**26, "send_recv"), (2**30, "all_gather"), (2**30, "all_gather"), (4096, "x")]
    line = sampler.describe_left_out("no time", cells)
    assert line == (
        "collectives: left out (5): no time: 0.003906 MiB x; 64 MiB all_gather, send_recv; 1024 MiB all_gather"
    )


@pytest.mark.parametrize(("left_s", "begun"), [(1.0, False), (4.0, False), (12.0, True)])
def test_a_size_that_would_not_fit_into_the_budget_is_not_begun(left_s, begun):
    """16 MiB took 0.1 s, so 64 MiB take 0.4 s; 5 repetitions of 3 calls and 4 tries need 7.6 s."""

    class Alone:
        rank, dtype = 0, SimpleNamespace(itemsize=4)

        def reduce_max(self, values):
            return list(values)

    case = sampler.CollectiveCase("node", "", 1, 2, ((0, 1),))
    own: Any = sampler.Sampler(world=Alone(), ends=time.monotonic() + left_s)
    own.last_s[case, "all_reduce"] = (2**24, 0.1, 0.1 / 2**24)
    assert (own._allocate_s(case, "all_reduce", 2**26, 0.5) > 0) == begun
    if not begun:
        assert own.measure(case, "all_reduce", 2**26, 0.5) is None
        assert own.left_out == {"no time left in the budget (--budget)": [(2**26, "all_reduce")]}


def test_starting_counts_as_part_of_the_budget(monkeypatch):
    monkeypatch.setenv("CROSSZONE_BEGAN", str(time.time() - 30.0))
    spec = importlib.util.spec_from_file_location("again", SCRIPT)
    assert spec and spec.loader
    again = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "again", again)
    spec.loader.exec_module(again)
    assert 30.0 <= time.monotonic() - again.BEGAN < 90.0  # this test may take no longer than the difference


@pytest.mark.parametrize(("text", "size"), [("4k", 4096), ("64MiB", 64 * 2**20), ("1g", 2**30), ("123", 123)])
def test_sizes_are_read(text, size):
    assert sampler.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-4k", "4t", "k", "1.5m"])
def test_other_sizes_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError):
        sampler.parse_size(text)


def test_times_are_read():
    assert [sampler.parse_duration(text) for text in ("90", "90s", "5m", "1h")] == [90, 90, 300, 3600]
    with pytest.raises(argparse.ArgumentTypeError):
        sampler.parse_duration("soon")


def test_zones_are_given_by_node_or_by_rank():
    agents = ["0", "0", "1", "1"]
    assert sampler._resolve_zones("a,b", agents, [""] * 4) == ["a", "a", "b", "b"]
    assert sampler._resolve_zones("a,b,c,d", agents, [""] * 4) == ["a", "b", "c", "d"]
    assert sampler._resolve_zones(None, agents, ["x", "x", "y", "y"]) == ["x", "x", "y", "y"]
    for given, told in (("a,b,c", [""] * 4), ("a>b,c", [""] * 4), (None, ["x", "", "y", "y"])):
        with pytest.raises(SystemExit):
            sampler._resolve_zones(given, agents, told)


@needs_torch
@pytest.mark.framework
@pytest.mark.slow
def test_two_processes_in_two_zones_time_every_operation(tmp_path, say):
    out = tmp_path / "collectives.csv"
    options = ["--nproc", 2, "--zones", "a,b", "--sizes", "4k", "--budget", "200s", "--backend", "gloo"]
    status, told, _ = say("calibrate", "collectives", "-o", out, "--python", TORCH, *options, "--json")
    rows = lines(out)
    assert status == 0 and json.loads(told)["rows"] == len(rows)
    assert {row["op"] for row in rows} == set(sampler.OPS) and {row["scope"] for row in rows} == {"a>b", "b>a"}
    assert all(float(row["time_us"]) > 0 for row in rows if row["flag"] != "failed")


@needs_torch
@pytest.mark.framework
@pytest.mark.long
def test_four_processes_in_two_zones_time_everything(tmp_path, capsys):
    """Started by the command line, fitted by it, and put into a scenario that then shows its links as measured."""
    out = tmp_path / "collectives.csv"
    options = ["--nproc", "4", "--zones", "a,a,b,b", "--sizes", "4k,1m", "--budget", "40s", "--backend", "gloo"]
    status = _run(["calibrate", "collectives", "-o", str(out), "--python", str(TORCH), *options, "--json"])
    told = json.loads(capsys.readouterr().out)
    assert status == 0 and told["rows"] == len(lines(out)) and told["backend"] == "gloo"
    rows = lines(out)
    assert tuple(rows[0]) == sampler.COLUMNS
    assert {row["op"] for row in rows} == set(sampler.OPS)
    assert {row["scope"] for row in rows} == {"node", "a>b", "b>a"}
    assert {(row["groups"], row["zone"]) for row in rows} == {("1", "a"), ("1", "b"), ("1", ""), ("2", "")}
    assert all(row["nodes"] and row["ranks"] and row["bytes"] for row in rows)
    assert all(float(row["time_us"]) > 0 for row in rows if row["flag"] != "failed")
    read = read_collectives(out, keep_noisy=True)  # also checks each stated rate against bytes and time
    assert len(read.rows) >= 0.9 * len(rows)
    scenario = tmp_path / "scenario.yaml"
    node = "nodes: [{gpus: 2, gpu: a100-80gb-sxm, nic_gbps: 100}]"
    scenario.write_text(
        "model: llama-2-7b\njob: {seq_len: 128, global_batch: 8}\ncluster:\n"
        f"  zones: [{{name: a, {node}}}, {{name: b, {node}}}]\n"
        "  links: [{between: [a, b], gbps: 0.001, rtt_ms: 900}]  # typed\n",
        encoding="utf-8",
    )
    new = tmp_path / "measured.yaml"
    status = _run(
        ["calibrate", "links", str(out), "--keep-noisy", "--scenario", str(scenario), "-o", str(new), "--json"]
    )
    told = json.loads(capsys.readouterr().out)
    assert status == 0 and told["fits"] and told["concurrency"]
    assert _run(["scenario", "show", str(new), "--json"]) == 0
    (link,) = json.loads(capsys.readouterr().out)["cluster"]["links"]
    assert link["origins"]["rtt_ms"] == "measured" and link["rtt_ms"]["expected"] < 900
    assert "# typed" in new.read_text(encoding="utf-8")


@needs_torch
@pytest.mark.framework
@pytest.mark.long
def test_two_nodes_of_two_processes_time_the_network_between_them(tmp_path):
    out = tmp_path / "collectives.csv"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meet = ["--nnodes", "2", "--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    options = ["-o", str(out), "--sizes", "4k,64k", "--ops", "all_reduce,send_recv", "--budget", "30s"]
    agents = [
        subprocess.Popen(
            [TORCH, "-m", "torch.distributed.run", *meet, "--node-rank", str(rank), SCRIPT, *options],
            env={**os.environ, "OMP_NUM_THREADS": "1", "CROSSZONE_ZONE": "here"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    ends = [agent.communicate(timeout=240) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], ends
    found = {(row["scope"], row["nodes"], row["gpus_per_node"], row["groups"], row["op"]) for row in lines(out)}
    assert ("network", "2", "1", "2", "send_recv") in found
    assert ("network", "2", "2", "1", "all_reduce") in found
    assert ("node", "1", "2", "2", "all_reduce") in found
    assert {row["zone"] for row in lines(out)} == {"here"}
    assert "rows in" in ends[0][1]
