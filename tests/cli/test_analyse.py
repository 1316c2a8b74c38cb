"""`crosszone analyse`, `what-if` and `sweep` as a user meets them."""

from __future__ import annotations

import csv
import json
import struct

import pytest

from builders import fields
from conftest import ROOT
from crosszone.cli import run as _run
from crosszone.inputs.document import dump_yaml
from predict.given import FSDP, zones

CITIES = str(ROOT / "examples" / "three-cities.yaml")
SEVEN = str(ROOT / "examples" / "two-zones-7b.yaml")


@pytest.fixture
def small(tmp_path):
    """Two zones of eight GPUs, sharded inside each."""
    path = tmp_path / "small.yaml"
    strategy = {"dp": 16, "zero": 3, "shard_within": "zone"}
    path.write_text(dump_yaml(fields(job=FSDP | {"tokens": 1e9}, cluster=zones(rtt_ms=30), strategy=strategy)))
    return str(path)


def output(capsys, *arguments: str) -> str:
    assert _run(list(arguments)) == 0
    return capsys.readouterr().out


def refusal(capsys, *arguments: str) -> str:
    assert _run(list(arguments)) == 2
    shown = capsys.readouterr()
    return shown.err or shown.out


def test_a_report_has_ratio_links_suggestions_bill_and_rating(capsys, small):
    shown = output(capsys, "analyse", small)
    for words in ("communication-bound", "Scaling efficiency", "a > b", "local_steps=100", "rmem_max", "p95", "$ / GB"):
        assert words in shown


@pytest.mark.slow
def test_every_part_speaks_chinese_and_json(capsys, small):
    shown = output(capsys, "--lang", "zh", "analyse", small, "--all", "--formulas")
    for words in ("通信受限", "扩展效率", "账单", "失去的区", "建议"):
        assert words in shown
    found = json.loads(output(capsys, "analyse", small, "--all", "--json"))
    assert set(found) == {"prediction", "traffic", "suggestions", "bill", "rating", "front", "drill", "marginal"}
    rows = {(row["kind"], row["link"]): row["bytes_per_step"] for row in found["prediction"]["communication"]}
    told = {(line["kind"], line["link"]): line["bytes_per_step"] for line in found["traffic"]["lines"]}
    assert rows.items() <= told.items()


def test_one_part_alone(capsys, small):
    shown = output(capsys, "analyse", small, "--part", "rating")
    assert "p95" in shown and "Suggestions" not in shown
    assert "--part" in refusal(capsys, "analyse", small, "--part", "ratings")


@pytest.mark.slow
def test_more_money_a_day_buys_speed(capsys, tmp_path):
    """B07: the sentence says what JSON holds."""
    path = tmp_path / "free.yaml"
    path.write_text(dump_yaml(fields(job=FSDP, cluster=zones(rtt_ms=30))))
    found = json.loads(output(capsys, "analyse", str(path), "--part", "front", "--json"))["front"]
    shown = output(capsys, "analyse", str(path), "--part", "front")
    assert found and all(one["told"]["message"] in shown for one in found)
    assert all(one["usd_per_day_more"] > 0 and one["faster_pct"] > 0 for one in found)


def test_without_a_strategy_the_best_plan_is_looked_at(capsys, tmp_path):
    path = tmp_path / "free.yaml"
    path.write_text(dump_yaml(fields(job=FSDP, cluster=zones(rtt_ms=30))))
    found = json.loads(output(capsys, "analyse", str(path), "--part", "traffic", "--json"))
    assert found["prediction"]["strategy"]["dp"] >= 1


def test_a_what_if_shows_both_and_the_parts(capsys):
    shown = output(capsys, "what-if", SEVEN, "--set", "cluster.links[0].gbps=40", "--switch", "local_steps=100")
    for words in ("cluster.links[0].gbps = 40", "tokens/s", "averaging between zones", "sync_every=100", "2501.18512"):
        assert words in shown
    found = json.loads(output(capsys, "what-if", SEVEN, "--set", "job.global_batch=1024", "--json"))
    assert found["changes"] == {"job.global_batch": 1024}
    assert [notice["code"] for notice in found["notices"]] == ["global_batch_changed"]


def test_the_switches_are_listed_with_how_they_stand(capsys):
    shown = output(capsys, "what-if", SEVEN, "--switches")
    assert "overlap_coefficient" in shown and "powersgd" in shown
    found = json.loads(output(capsys, "what-if", SEVEN, "--switches", "--json"))
    assert {one["name"]: one["now"] for one in found}["flows"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--set PATH=VALUE"),
        (["--set", "job.globl_batch=3"], "global_batch"),
        (["--set", "job.global_batch"], "PATH=VALUE"),
        (["--set", "cluster.links[4].gbps=3"], "cluster.links"),
        (["--switch", "predictive=on"], "prefetch"),
        (["--switch", "compression=int4"], "int4"),
        (["--set", "strategy.dp=7"], "7"),
    ],
)
def test_a_wrong_change_is_refused_with_the_remedy(capsys, arguments, words):
    assert words in refusal(capsys, "what-if", SEVEN, *arguments)


@pytest.mark.slow
def test_a_sweep_is_a_heat_map_a_table_and_a_picture(capsys, small, tmp_path):
    table, picture = tmp_path / "s.csv", tmp_path / "s.png"
    axes = ["--x", "cluster.links[*].gbps=1:1000:log4", "--y", "cluster.links[*].rtt_ms=1,100"]
    shown = output(capsys, "sweep", small, *axes, "--csv", str(table), "--png", str(picture), "--workers", "1")
    assert "cluster.links[*].rtt_ms" in shown and "Crosses zones" in shown
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert len(rows) == 8 and {row["framework"] for row in rows} == {"fsdp"}
    content = picture.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", content[16:24]) == (1350, 900)
    assert "--force" in refusal(capsys, "sweep", small, *axes, "--csv", str(table))


def test_one_axis_is_a_table_with_the_values(capsys, small, tmp_path):
    picture = tmp_path / "one.png"
    axis = "strategy.local_update.steps=10,100"
    shown = output(
        capsys, "--lang", "zh", "sweep", small, "--x", axis, "--predict", "--workers", "1", "--png", str(picture)
    )
    assert "strategy.local_update.steps" in shown and "D" in shown
    assert picture.stat().st_size > 5000
    found = json.loads(output(capsys, "sweep", small, "--x", axis, "--predict", "--workers", "1", "--json"))
    steps = [cell["local_update"]["step_time_s"]["expected"] for cell in found["cells"]]
    assert steps[0] > steps[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--x", "job.global_batch=1:100:exp20"], "log20"),
        (["--x", "job.globl_batch=1:100:20"], "global_batch"),
        (["--x", "job.global_batch=64,128", "--on", "cloud"], "ray"),
        (["--x", "job.global_batch=64,128", "--objective", "speed"], "time"),
    ],
)
def test_a_wrong_sweep_is_refused_with_the_remedy(capsys, small, arguments, words):
    assert words in refusal(capsys, "sweep", small, *arguments)
