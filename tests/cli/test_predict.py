"""`crosszone predict` as a user meets it: the answer first, the same numbers as JSON, and a timeline to open."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import get_args

import pytest

from builders import fields, zone
from conftest import ROOT
from crosszone.cli.output import write_file
from crosszone.cost.memory import MOMENTS, PARTS
from crosszone.inputs.document import dump_yaml
from crosszone.predict.breakdown import COMMUNICATION, COMPUTE, HOST
from crosszone.predict.prediction import Bottleneck, Kind, Prediction, StageMemory, Triple
from crosszone.schedule.trace import read_trace
from crosszone.text import LANGUAGES, load_texts
from crosszone.text.figures import format_digits
from crosszone.views import prediction as report
from crosszone.views.answer_text import AnswerText

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
THREE = str(ROOT / "examples" / "three-cities.yaml")


def written(tmp_path: Path, **changes) -> str:
    path = tmp_path / "scenario.yaml"
    path.write_text(dump_yaml(fields(**changes)), encoding="utf-8")
    return str(path)


def numbers(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in re.findall(r"[\d,]*\d(?:\.\d+)?", text)]


def line(out: str, heading: str) -> str:
    return next(one for one in out.splitlines() if one.startswith(heading)).removeprefix(heading)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_example_is_answered_in_both_languages(say, path, language):
    status, out, err = say("--lang", language, "predict", str(path))
    assert (status, err) == (0, "")
    assert load_texts(language)["label"]["answer_step"] in out
    assert bool(re.search(r"[\u4e00-\u9fff]{3}", out.replace("可用区", ""))) == (language == "zh")


def test_the_answer_comes_first_and_is_that_of_the_json(say):
    _, out, _ = say("predict", THREE)
    found = json.loads(say("predict", THREE, "--json")[1])
    step, low, high = numbers(line(out, "step time"))
    assert step == pytest.approx(found["step_time_s"]["expected"], rel=1e-3)
    assert (low, high) == pytest.approx((found["step_time_s"]["low"], found["step_time_s"]["high"]), rel=1e-2)
    assert out.splitlines()[2].startswith("step time")
    assert numbers(line(out, "speed"))[0] == pytest.approx(4096 * 1024 / found["step_time_s"]["expected"], rel=1e-3)
    assert f"MFU {100 * found['mfu']['expected']:.1f} %" in out
    assert line(out, "memory").strip().startswith("fits") == found["memory_gib"]["fits"]
    assert numbers(line(out, "whole run"))[0] == pytest.approx(found["run"]["days"]["expected"], rel=1e-3)
    assert line(out, "bottleneck").strip().startswith(found["bottleneck"])
    assert f"stack {found['basis']['stack']}" in line(out, "rests on")


def test_json_is_one_document_that_reads_back_as_the_same_prediction(say):
    status, out, err = say("predict", THREE, "--json")
    assert (status, err) == (0, "")
    plain = json.loads(out)
    assert Prediction(**plain).model_dump(mode="json") == plain
    assert sum(plain["breakdown_s"].values()) == pytest.approx(plain["step_time_s"]["expected"])


def test_assumed_bandwidths_are_told_with_their_line(say):
    """The numbers rest on them as much as on typed ones."""
    _, out, _ = say("predict", THREE)
    assert "three-cities.yaml:19: warning shanghai-a - shenzhen-c: no rate is given" in out
    warnings = json.loads(say("predict", THREE, "--json")[1])["warnings"]
    assert "gbps_example" in {one["code"] for one in warnings}
    levels = [one["level"] for one in warnings]
    assert levels == sorted(levels, key=["error", "warning", "note"].index)


def test_small_parts_are_folded_and_the_shares_add_up(say):
    _, out, _ = say("predict", THREE)
    body = out.split("What a step is made of")[1].split("Memory of one GPU")[0]
    rows = [one for one in body.splitlines() if re.search(r"\d$", one.rstrip())]
    assert re.search(r"\d parts under 0\.1 %", body)
    shares = [float(row.split()[-1]) for row in rows]
    assert shares[-1] == 100.0
    assert sum(shares[:-1]) == pytest.approx(100.0, abs=0.5)
    assert shares[:-2] == sorted(shares[:-2], reverse=True)


def test_equal_stages_share_a_row_of_the_memory_table(say, tmp_path):
    """GPipe-like: with one micro-batch every middle stage of 1F1B holds one, so stages 1 to 6 are alike."""
    job = {"seq_len": 1024, "global_batch": 1, "framework": "megatron"}
    strategy = {"tp": 1, "pp": 8, "dp": 1, "layers_per_stage": [4] * 8}
    path = written(tmp_path, job=job, strategy=strategy, cluster={"zones": [zone("a")]})
    _, out, _ = say("predict", path)
    table = out.split("Memory of one GPU")[1]
    assert re.search(r"^ +1 - 6 +4 ", table, re.MULTILINE)


def test_of_many_stages_the_first_the_last_and_the_fullest_are_shown(say, tmp_path):
    """32 stages of one layer each hold 32, 31, ... micro-batches; the last one has the head."""
    zones = [zone("a", count=4)]
    job = {"seq_len": 4096, "global_batch": 64, "framework": "megatron"}
    path = written(tmp_path, job=job, strategy={"tp": 1, "pp": 32, "dp": 1}, cluster={"zones": zones})
    _, out, _ = say("predict", path)
    table = out.split("Memory of one GPU")[1].split("Communication")[0]
    stages = [int(found) for found in re.findall(r"^ +(\d+) (?:\*| )", table, re.MULTILINE)]
    assert stages == [*range(8), *range(24, 32)]
    assert table.count("  ...") == 1
    assert "*" in table


def test_the_fullest_stage_is_shown_wherever_it_lies():
    groups = [[StageMemory.model_construct(stage=number)] for number in range(40)]
    shown = [group[0].stage if group else None for group in report.select_groups(groups, 20)]
    assert shown == [*range(8), None, 20, None, *range(32, 40)]
    assert report.select_groups(groups[:16], 3) == groups[:16]


def test_a_step_of_too_many_spans_has_no_trace(say, tmp_path):
    """8 stages x 32,000 micro-batches x 2 passes = 512,000 spans and their sends."""
    job = {"seq_len": 64, "global_batch": 32_000, "framework": "megatron"}
    path = written(tmp_path, job=job, strategy={"tp": 1, "pp": 8, "dp": 1})
    status, out, err = say("predict", path, "--trace", str(tmp_path / "t.json"))
    assert (status, out) == (2, "")
    assert "at most 400000" in err.replace(",", "")
    assert not (tmp_path / "t.json").exists()


def test_a_plan_that_does_not_fit_says_so_once_and_the_same_everywhere(say, tmp_path):
    """One A100 of 80 GiB and 6.7e9 parameters x 16 bytes = 100.4 GiB of states alone."""
    path = written(tmp_path, strategy={"tp": 1, "pp": 1, "dp": 1})
    status, out, _ = say("predict", path)
    assert status == 0
    assert "does not fit:" in line(out, "memory")
    assert "GiB too much" in line(out, "memory")
    assert out.count("it does not fit.") == 1
    assert "no communication" not in out
    assert "Communication of a step" not in out
    found = json.loads(say("predict", path, "--json")[1])["memory_gib"]
    assert not found["fits"]
    assert found["margin"] == pytest.approx(found["limit"] - found["peak"]["expected"])
    assert found["margin"] < 0


def test_without_a_length_an_hour_is_priced(say, tmp_path):
    nodes = [{"count": 1, "gpus": 8, "gpu": "a100-80gb-sxm", "usd_per_gpu_hour": 1.25}]
    path = written(tmp_path, cluster={"zones": [{"name": "a", "nodes": nodes}]}, strategy={"tp": 8})
    _, out, _ = say("predict", path)
    assert "set job.tokens" in line(out, "whole run")
    assert line(out, "cost").strip() == "$10 an hour"


def test_a_scenario_without_strategy_is_refused_with_the_way_to_give_one(say, tmp_path):
    path = written(tmp_path)
    status, out, err = say("predict", path)
    assert (status, out) == (2, "")
    assert "has no strategy" in err
    assert "strategy: {tp: 1, pp: 1, micro_batch: 1}" in err
    status, out, _ = say("predict", path, "--json")
    assert status == 2
    assert [one["code"] for one in json.loads(out)["errors"]] == ["strategy_missing"]


def test_broken_rules_are_told_with_line_and_numbers_and_no_traceback(say, tmp_path):
    path = written(tmp_path, strategy={"tp": 8, "pp": 4, "dp": 4})
    status, out, err = say("predict", path)
    assert (status, out) == (2, "")
    assert "= 128 ranks, but the cluster has 8 GPUs" in err
    assert re.search(r"scenario\.yaml:\d+: error", err)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("job", "said"), [({"stack": "megatron-cor"}, "megatron-core"), ({"stack": "megatron-core@x"}, "name@year.month")]
)
def test_a_stack_that_is_not_known_is_refused_with_the_nearest(say, tmp_path, job, said):
    path = written(tmp_path, job={"seq_len": 512, "global_batch": 8, **job}, strategy={"tp": 8})
    status, _, err = say("predict", path)
    assert status == 2
    assert said in err


def test_the_trace_opens_in_perfetto_and_ends_with_the_step(say, tmp_path):
    target = tmp_path / "step.json"
    status, out, _ = say("predict", THREE, "--trace", str(target))
    assert status == 0
    assert out.endswith("step.json was written.\n")
    events = json.loads(target.read_text(encoding="utf-8"))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    step = json.loads(say("predict", THREE, "--json")[1])["step_time_s"]["expected"]
    assert max(one["ts"] + one["dur"] for one in spans) == pytest.approx(1e6 * step)
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".json")] == ["step.json"]


def test_the_trace_may_be_kept_in_the_format_of_measured_ones(say, tmp_path):
    target = tmp_path / "step.json"
    status, out, err = say("predict", THREE, "--trace", str(target), "--trace-format", "crosszone", "--json")
    assert (status, err) == (0, "")
    trace = read_trace(target.read_bytes())
    assert trace.kind == "predicted"
    assert trace.name == "three cities"
    assert trace.steps[0].end_s == pytest.approx(json.loads(out)["step_time_s"]["expected"])


def test_a_trace_is_not_overwritten_unless_told_and_is_whole_or_not_there(say, tmp_path, monkeypatch):
    target = tmp_path / "kept.json"
    target.write_text("precious")
    status, out, err = say("predict", THREE, "--trace", str(target))
    assert (status, out) == (2, "")
    assert "exists already" in err
    assert target.read_text() == "precious"
    assert say("predict", THREE, "--trace", str(target), "--force")[0] == 0
    assert target.read_text().startswith("{")

    def full(self: Path, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    target.write_text("precious")
    monkeypatch.setattr(Path, "write_bytes", full)
    status, _, err = say("predict", THREE, "--trace", str(target), "--force")
    assert status == 2
    assert "No space left" in err
    assert target.read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["kept.json"]


def test_a_folder_that_is_not_there_is_told(say, tmp_path):
    status, _, err = say("predict", THREE, "--trace", str(tmp_path / "nowhere" / "step.json"))
    assert status == 2
    assert "No such file or directory" in err


def test_what_is_no_plain_file_is_written_and_stays_what_it_is(tmp_path):
    """--trace /dev/null --force as root must not replace the device by a file."""
    reader = os.open(_fifo(tmp_path), os.O_RDONLY | os.O_NONBLOCK)
    write_file(tmp_path / "pipe", "text", force=True)
    assert os.read(reader, 10) == b"text"
    assert (tmp_path / "pipe").is_fifo()
    os.close(reader)


def _fifo(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def test_an_unknown_trace_format_is_refused(say):
    status, _, err = say("predict", THREE, "--trace", "x.json", "--trace-format", "svg")
    assert status == 2
    assert "perfetto, crosszone" in err


def test_long_names_of_zones_are_no_obstacle(say, tmp_path):
    zones = [zone("a" * 100), zone("b" * 100)]
    cluster = {"zones": zones, "default_link": {"gbps": 10, "rtt_ms": 10}}
    path = written(
        tmp_path, cluster=cluster, strategy={"tp": 8, "pp": 2, "dp": 1}, job={"seq_len": 512, "global_batch": 8}
    )
    assert say("predict", path, "--trace", str(tmp_path / "t.json"))[0] == 0


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_part_kind_and_moment_has_its_label(language):
    labels = load_texts(language)["label"]
    wanted = {f"step_{part}" for part in (*COMPUTE, *COMMUNICATION, *HOST, "bubble")}
    wanted |= {f"class_{name}" for name in get_args(Bottleneck)} | {f"kind_{name}" for name in get_args(Kind)}
    wanted |= {f"mem_{part}" for part in (*PARTS, *report.NARROW, "other")} | {f"peak_{name}" for name in MOMENTS}
    wanted |= {"link_fast link", "link_network"}
    wanted |= {f"unit_{unit}" for unit in ("s", "gib", "tokens_s", "days", "hours", "usd", "kwh")}
    assert wanted <= labels.keys()


@pytest.mark.parametrize(
    ("value", "digits", "shown"),
    [
        (0.0, 4, "0"),
        (0.00001234, 4, "1.2e-05"),
        (0.123456, 4, "0.1235"),
        (662.04, 4, "662"),
        (19_423_456.0, 4, "19,420,000"),
        (-7.123, 2, "-7.1"),
    ],
)
def test_numbers_have_few_digits_and_no_exponent_when_large(value, digits, shown):
    assert format_digits(value, digits) == shown


@pytest.mark.parametrize("columns", [40, 80, 140])
@pytest.mark.parametrize("language", LANGUAGES)
def test_lines_of_the_answer_fit_the_terminal(say, monkeypatch, columns, language):
    from rich.cells import cell_len
    from rich.console import Console

    monkeypatch.setattr("rich.console.Console", lambda **given: Console(**given | {"width": columns}))
    _, out, _ = say("--lang", language, "predict", THREE)
    told = out.split("three-cities.yaml:")[0].splitlines()[:-1]
    assert max(cell_len(one.rstrip()) for one in told) <= columns


def test_software_and_assumptions_are_those_of_the_json(say):
    _, out, _ = say("predict", THREE)
    section = out.split("Software and assumptions\n")[1].split("\n\n")[0]
    found = json.loads(say("predict", THREE, "--json")[1])
    assert f"Software of {found['basis']['release_month']}, usual on {found['basis']['release_gpu']}" in section
    assert section.count("assumed)") + section.count("assumed;") + section.count("stated)") >= len(
        found["basis"]["assumptions"]
    )
    for assumption in found["assumptions"]:
        assert assumption["text"].split(";")[0][:40] in section


def test_a_run_of_hours_is_told_in_hours():
    run = Triple(low=0.25, expected=0.5, high=0.75)
    assert AnswerText("en").format_range(run, "hours", 24) == "12 hours (6 - 18)"
    assert AnswerText("zh").format_range(run, "hours", 24) == "12 小时（6 - 18）"
