"""[K14] Timed collectives as part of an own profile, on the command line and in the profiles of measured clusters."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from builders import scenario
from commands import call
from component_rows import TIMED
from component_rows import written as jobs_written
from crosszone.calibrate.collective_apply import measure_collectives
from crosszone.calibrate.collective_fit import (
    CollectiveSample,
    Topology,
    estimate_collective_s,
    keep_quiet,
    read_collectives,
)
from crosszone.calibrate.components import predict_components
from crosszone.calibrate.components_read import read_components
from crosszone.cost.own_profiles import load
from crosszone.cost.profile import Profiles
from crosszone.cost.tiers import Tier
from crosszone.errors import InvalidError
from crosszone.predict.predict import predict
from predict.given import MEGATRON, one_zone

GPU = "a100-80gb-sxm"
SIZES = tuple(2**power for power in range(20, 30))
LINK = Tier(50e9, 20e-6)


def topology(**cells) -> Topology:
    fields = {"op": "all_reduce", "scope": "node", "nodes": 1, "gpus_per_node": 4, "ranks": 4, "groups": 1}
    return Topology(**(fields | cells))


def timings(where: Topology, slower: tuple[float, ...] = (1.0,), sizes=SIZES) -> list[CollectiveSample]:
    """Times of a link, each size as often as there are factors."""
    return [
        CollectiveSample(
            where=where,
            size_bytes=size,
            time_s=factor * float(estimate_collective_s(where.op, size, where.ranks, LINK)),
        )
        for size in sizes
        for factor in slower
    ]


def test_the_fastest_quarter_of_each_size_counts():
    """[K14] Each size timed undisturbed once, and three times beside others: the link itself is found."""
    rows = timings(topology(), (1.5, 1.0, 2.0, 3.0))
    kept = keep_quiet(rows)
    assert [(one.size_bytes, one.time_s) for one in kept] == [
        (one.size_bytes, one.time_s) for one in timings(topology())
    ]
    (found,) = measure_collectives(rows, gpu=GPU).collectives
    assert (found.gb_per_s, found.latency_us) == (pytest.approx(50, rel=1e-3), pytest.approx(20, rel=1e-2))
    assert (found.low_bytes, found.high_bytes, found.rows) == (2**20, 2**29, 10)


def test_few_timings_all_stay():
    rows = timings(topology(), (1.0, 1.1, 1.2))
    assert len(keep_quiet(rows)) == len(rows)


def test_a_gather_is_kept_by_the_size_of_the_whole_tensor():
    """It is timed by one rank's share."""
    (found,) = measure_collectives(timings(topology(op="all_gather")), gpu=GPU).collectives
    assert (found.low_bytes, found.high_bytes) == (4 * 2**20, 4 * 2**29)


@pytest.mark.parametrize(
    ("where", "sizes", "factors", "code"),
    [
        (topology(backend="gloo"), SIZES, (1.0,), "collective_on_cpus"),
        (topology(), SIZES[:1], (1.0,), "collective_few_sizes"),
        (topology(), (8, 16, 32, 64), (1.0,), "collective_rate_unknown"),
    ],
)
def test_what_tells_no_rate_is_left_out_with_the_reason(where, sizes, factors, code):
    good = timings(topology(gpus_per_node=2, ranks=2))
    found = measure_collectives([*good, *timings(where, factors, sizes)], gpu=GPU)
    assert [one.gpus_per_node for one in found.collectives] == [2]
    assert [notice.code for notice in found.left_out] == [code]
    with pytest.raises(InvalidError) as error:
        measure_collectives(timings(where, factors, sizes), gpu=GPU)
    assert [notice.code for notice in error.value.notices] == ["collectives_unusable", code]


def test_of_zones_timed_alike_the_slowest_counts():
    slow = [replace(one, time_s=2 * one.time_s) for one in timings(topology(zone="b"))]
    (found,) = measure_collectives([*timings(topology(zone="a")), *slow], gpu=GPU).collectives
    assert found.gb_per_s == pytest.approx(25, rel=1e-2)


def test_links_between_zones_and_groups_at_once_are_no_part_of_a_profile():
    rows = [*timings(topology()), *timings(topology(groups=2)), *timings(topology(scope="a>b"))]
    assert len(measure_collectives(rows, gpu=GPU).collectives) == 1


def collectives_file(path: Path, rate: float) -> Path:
    """A table of all-reduces over four GPUs of a node at so many GB/s, and of sends between nodes."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["op", "nodes", "gpus_per_node", "ranks", "bytes", "time_us"])
        for size in SIZES:
            writer.writerow(["all_reduce", 1, 4, 4, size, 1e6 * (6 * 20e-6 + 1.5 * size / (rate * 1e9))])
            writer.writerow(["send_recv", 2, 1, 2, size, 1e6 * (30e-6 + size / 5e9)])
    return path


def test_collectives_become_a_profile_that_predictions_use(home, tmp_path):
    table = collectives_file(tmp_path / "collectives.csv", 40.0)
    done = call("calibrate", "links", table, "--save", "lab", "--gpu", GPU, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["saved"] == "lab" and {one["op"] for one in told["collectives"]} == {"all_reduce", "send_recv"}
    given_ = scenario(strategy={"tp": 4, "dp": 4}, job=MEGATRON, cluster=one_zone())
    slow = predict(given_, profiles=Profiles.load_shipped().with_own(load("lab")))
    assert slow.basis.own_profile == "lab"
    assert slow.step_time_s.expected > predict(given_, profiles=Profiles.load_shipped()).step_time_s.expected
    shown = call("calibrate", "links", table, "--save", "other", "--gpu", GPU)
    assert shown.returncode == 0 and "other" in shown.stdout


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--save", "lab"), "collectives_gpu_needed"),
        (("--save", "lab", "--gpu", "abacus"), "unknown"),
        (("--save", "Lab!", "--gpu", GPU), "own_profile_name"),
        (("--add",), "own_profile_add_unsaved"),
        (("--gpu", GPU), "own_profile_add_unsaved"),
    ],
)
def test_a_profile_of_links_needs_a_name_and_a_gpu(home, tmp_path, options, code):
    done = call("calibrate", "links", collectives_file(tmp_path / "collectives.csv", 40.0), *options, "--json")
    assert done.returncode == 2 and code in done.stderr + done.stdout
    assert not (home / "profiles" / "lab.yaml").exists()


def test_jobs_add_what_their_software_shows_to_a_profile_of_links(home, tmp_path):
    table = collectives_file(tmp_path / "collectives.csv", 40.0)
    assert call("calibrate", "links", table, "--save", "lab", "--gpu", GPU).returncode == 0
    jobs = jobs_written(tmp_path / "jobs.csv", {**TIMED, "cluster": "lab"})
    taken = call("calibrate", "jobs", jobs, "--save", "lab")
    assert taken.returncode == 2 and "lab" in taken.stderr
    done = call("calibrate", "jobs", jobs, "--save", "lab", "--add", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told["coefficients"]) >= {"host_s", "jitter"} and told["rows"][0]["left_out_error_pct"] is None
    known = load("lab")
    assert known.collectives and known.stacks["gpt-neox"]
    (row,), (run,) = told["rows"], read_components(jobs)[0]
    after = predict_components(run, Profiles.load_shipped().with_own(known)).step
    assert row["after_s"] == pytest.approx(after, rel=1e-3)  # values are kept to four digits
    shown = call("calibrate", "jobs", jobs)
    assert shown.returncode == 0 and "host_s" in shown.stdout


def test_a_file_without_jobs_or_of_several_clusters_is_refused(home, tmp_path):
    two = jobs_written(tmp_path / "two.csv", {}, {"run_id": "two", "cluster": "elsewhere"})
    assert "--cluster" in call("calibrate", "jobs", two).stderr
    none = jobs_written(tmp_path / "none.csv", {"iter_best_s": ""})
    assert call("calibrate", "jobs", none).returncode == 2
    assert call("calibrate", "jobs", two, "--cluster", "nowhere").returncode == 2
    assert "--save" in call("calibrate", "jobs", two, "--cluster", "elsewhere", "--add").stderr


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["perlmutter", "vista"])
def test_the_shipped_links_of_a_cluster_are_those_of_its_table(data, cluster):
    """[K14] To the digits they are written with, but for sends, which jobs show at less than their lone rate [K62]."""
    shipped = load(cluster)
    rows = read_collectives(data / "gpumodeling25" / "collectives.csv", cluster=cluster).rows
    made = measure_collectives(rows, gpu=next(iter(shipped.gpus))).collectives
    assert len(made) == len(shipped.collectives)
    for ours, theirs in zip(made, shipped.collectives, strict=True):
        if theirs.origin == "measured":
            assert ours == theirs
        else:
            assert (ours.op, ours.nodes) == ("send_recv", 2) and theirs.gb_per_s < ours.gb_per_s
