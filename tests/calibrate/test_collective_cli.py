"""`crosszone calibrate collectives` and `calibrate links` as a user meets them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from crosszone.calibrate.collective_fit import estimate_collective_s
from crosszone.cost.tiers import Tier
from crosszone.text import LANGUAGES

EXAMPLE = ROOT / "examples" / "two-zones-7b.yaml"
HEAD = "backend,op,scope,zone,nodes,gpus_per_node,ranks,groups,bytes,time_us,flag"


def written(folder: Path, *more: str) -> Path:
    """Messages between the zones of the example at 10 Gbit/s and an RTT of 20 ms, alone and two at once."""
    rows = []
    for scope in ("beijing>shanghai", "shanghai>beijing"):
        for groups in (1, 2):
            for size in (4096, 2**20, 2**26):
                time_us = 1e6 * float(estimate_collective_s("send_recv", size, 2, Tier(1.206625e9 / groups, 10.05e-3)))
                rows.append(f"gloo,send_recv,{scope},,2,1,2,{groups},{size},{time_us},")
    path = folder / "collectives.csv"
    path.write_text("\n".join((HEAD, *rows, *more)) + "\n", encoding="utf-8")
    return path


def test_fits_changes_and_the_new_scenario_in_one_document(say, tmp_path):
    new = tmp_path / "new.yaml"
    status, out, _ = say("calibrate", "links", written(tmp_path), "--scenario", EXAMPLE, "-o", new, "--json")
    told = json.loads(out)
    assert status == 0 and told["rows"] == 12 and told["written"] == str(new)
    assert [fit["latency_s"] for fit in told["fits"]] == pytest.approx([10.05e-3] * 4)
    factors = [one["factor"] for one in told["concurrency"]]
    assert factors == pytest.approx([1.08, 1.08], abs=0.01)  # at 1 MiB, the middle of three sizes
    changes = {one["field"]: (one["before"], one["after"]) for one in told["scenario"]["changes"]}
    assert changes["cluster.links[0].rtt_ms"] == (28.6, 20)
    status, out, _ = say("scenario", "show", new)
    assert status == 0 and "measured" in out


@pytest.mark.parametrize("language", LANGUAGES)
def test_tables_are_shown_in_both_languages_and_nothing_is_written_unasked(say, tmp_path, language):
    path = written(
        tmp_path, "gloo,all_reduce,node,beijing,1,2,2,1,4096,50,", "gloo,all_to_all,node,beijing,1,2,2,1,4096,,failed"
    )
    status, out, err = say("--lang", language, "calibrate", "links", path, "--scenario", EXAMPLE)
    assert status == 0 and err == ""
    assert "cluster.links[0].rtt_ms" in out and "28.6" in out and "failed" in out
    assert [one.name for one in tmp_path.iterdir()] == ["collectives.csv"]


@pytest.mark.parametrize("time_us", ["-5", "0.000001", "x"])
def test_a_wrong_row_is_named_and_nothing_is_written(say, tmp_path, time_us):
    path = written(tmp_path, f"gloo,send_recv,beijing>shanghai,,2,1,2,1,4096,{time_us},")
    new = tmp_path / "new.yaml"
    status, out, err = say("calibrate", "links", path, "--scenario", EXAMPLE, "-o", new)
    assert status == 2 and "14" in err and not new.exists() and out == ""
    status, out, _ = say("calibrate", "links", path, "--scenario", EXAMPLE, "-o", new, "--json")
    assert status == 2 and json.loads(out)["errors"][0]["line"] == 14


def test_an_output_that_exists_or_lacks_a_scenario_is_refused(say, tmp_path):
    path = written(tmp_path)
    assert say("calibrate", "links", path, "-o", tmp_path / "new.yaml")[0] == 2
    assert say("calibrate", "links", path, "--scenario", EXAMPLE, "-o", path)[0] == 2
    assert path.read_text(encoding="utf-8").startswith(HEAD)


def test_rows_of_several_clusters_need_a_choice(say, tmp_path):
    path = tmp_path / "two.csv"
    rows = [f"{name},send_recv,2,1,2,{size},{size / 1e3 + 100}" for name in "xy" for size in (4096, 2**24)]
    path.write_text("\n".join(("cluster,op,nodes,gpus_per_node,ranks,bytes,time_us", *rows)), encoding="utf-8")
    assert say("calibrate", "links", path)[0] == 0
    status, _, err = say("calibrate", "links", path, "--scenario", EXAMPLE)
    assert status == 2 and "x, y" in err
    status, out, _ = say(
        "calibrate", "links", path, "--cluster", "x", "--scenario", EXAMPLE, "--zone", "beijing", "--json"
    )
    assert status == 0 and len(json.loads(out)["fits"]) == 1


def test_the_sampler_is_written_out_as_one_file(say, tmp_path):
    script = tmp_path / "sampler.py"
    status, out, _ = say("calibrate", "collectives", "--script", script)
    assert status == 0 and "sampler.py" in out
    text = script.read_text(encoding="utf-8")
    assert "crosszone." not in text.replace("crosszone.calibrate", "crosszone.") and "torchrun" in text
    assert say("calibrate", "collectives", "--script", script)[0] == 2


def test_several_nodes_get_their_lines_and_nothing_starts(say, tmp_path):
    options = ("--nodes", 2, "--nproc", 8, "--master", "10.0.0.1:4000", "--zones", "a,b")
    status, out, _ = say("calibrate", "collectives", *options, "-o", "out.csv", "--json")
    first, second = json.loads(out)["lines"]
    assert status == 0 and "--node-rank 0" in first and "--node-rank 1" in second
    assert first.startswith("torchrun --nnodes 2 --nproc-per-node 8 --master-addr 10.0.0.1 --master-port 4000")
    assert "collectives.py -o out.csv" in first and "--zones a,b" in first
    assert say("calibrate", "collectives", "--nodes", 2)[0] == 2


@pytest.mark.parametrize(
    "options",
    [
        ("--backend", "mpi"),
        ("--sizes", "4t"),
        ("--sizes", ""),
        ("--budget", "soon"),
        ("--ops", "broadcast"),
        ("--nproc", "0"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(say, tmp_path, options):
    status, _, err = say("calibrate", "collectives", "-o", tmp_path / "out.csv", *options)
    assert status == 2 and err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_python_without_torch_is_told(say, tmp_path):
    for python in (sys.executable, "/nowhere/python"):
        status, _, err = say("calibrate", "collectives", "-o", tmp_path / "out.csv", "--python", python, "--nproc", 2)
        assert status == 1 and "torch" in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_is_told_with_its_reason(say, tmp_path):
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\n[ "$1" = -c ] && { echo "2.0 0"; exit 0; }\necho "collectives: rank 1 is gone" >&2\nexit 3\n',
        encoding="utf-8",
    )
    python.chmod(0o755)
    for zones in ("a,b,c", "a,", "a>b"):
        status, _, err = say(
            "calibrate", "collectives", "-o", tmp_path / "out.csv", "--python", python, "--zones", zones
        )
        assert status == 2 and "--zones" in err
    status, out, _ = say("calibrate", "collectives", "-o", tmp_path / "out.csv", "--python", python, "--json")
    assert status == 1 and "rank 1 is gone" in json.loads(out)["errors"][0]["message"]
