"""The command line as a user meets it: output and exit status; pipes, encodings and closed streams in real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from commands import call, start
from conftest import ROOT
from crosszone import __version__

EXAMPLE = "examples/three-cities.yaml"


def good(*arguments: str, **more: str) -> str:
    done = call(*arguments, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_of_every_verb_has_an_example():
    for verb in (
        ["scenario", "check"],
        ["scenario", "show"],
        ["scenario", "convert"],
        ["catalogue", "gpus"],
        ["catalogue", "models"],
        ["catalogue", "regions"],
        ["catalogue", "links"],
        ["catalogue", "add"],
        ["catalogue", "remove"],
        ["predict"],
        ["accuracy"],
        ["serve"],
    ):
        assert "Example: crosszone" in good(*verb, "--help")
    assert "scenario" in good("--help")


def test_version():
    done = start("--version")
    assert (done.returncode, done.stdout) == (0, f"crosszone {__version__}\n")


def test_lists_are_tables_for_people_and_json_for_programs():
    assert "a100-80gb-sxm" in good("catalogue", "gpus")
    gpus = json.loads(good("catalogue", "gpus", "--json"))
    assert len(gpus) >= 30
    a100 = next(gpu for gpu in gpus if gpu["name"] == "a100-80gb-sxm")
    assert a100["dense_tflops"]["fp16"] == 312
    assert a100["link"]["gb_per_s_both_ways"] == 600
    assert len(json.loads(good("catalogue", "models", "--json"))) >= 60
    assert len(json.loads(good("catalogue", "regions", "--json"))) >= 60
    assert len(json.loads(good("catalogue", "links", "--json"))) >= 60


def test_one_entry_is_shown_with_parts_that_add_up_and_its_sources():
    shown = good("catalogue", "models", "llama-2-70b")
    assert "68,976,648,192" in shown
    model = json.loads(good("catalogue", "models", "LLaMA2 70B", "--json"))
    assert sum(model["parameters"]["parts"].values()) == model["parameters"]["total"] == 68_976_648_192
    gpu = good("catalogue", "gpus", "a100")
    assert "312" in gpu
    assert "[nvidia-a100" in gpu
    assert "us-east-1" in good("catalogue", "regions", "virginia")


def test_a_table_can_be_filtered():
    names = [model["name"] for model in json.loads(good("catalogue", "models", "--filter", "qwen-3", "--json"))]
    assert names
    assert all("qwen-3" in name for name in names)


def test_check_show_and_convert_an_example(tmp_path):
    assert "three cities: good." in good("scenario", "check", EXAMPLE)
    shown = good("scenario", "show", EXAMPLE)
    for piece in (
        "68.977 B",
        "4,194,304 tokens a step",
        "238,419 steps",
        "128 GPUs in 16 nodes",
        "256 micro-batches",
        "distance",
    ):
        assert piece in shown
    described = json.loads(good("scenario", "show", EXAMPLE, "--json"))
    assert described["job"]["tokens_per_step"] == 4096 * 1024
    first, second = tmp_path / "first.yaml", tmp_path / "second.json"
    good("scenario", "convert", EXAMPLE, "-o", str(first))
    good("scenario", "convert", str(first), "-o", str(second))
    assert good("scenario", "convert", str(second)) == first.read_text()


def test_only_the_cluster_can_be_written():
    text = good("scenario", "convert", EXAMPLE, "--part", "cluster")
    assert text.startswith("cluster:\n  zones:")


def test_convert_does_not_overwrite_unless_told(tmp_path):
    target = tmp_path / "kept.yaml"
    target.write_text("precious")
    assert call("scenario", "convert", EXAMPLE, "-o", str(target)).returncode == 2
    assert target.read_text() == "precious"
    good("scenario", "convert", EXAMPLE, "-o", str(target), "--force")
    assert target.read_text().startswith("version: 1")


def test_a_scenario_may_come_from_a_pipe():
    assert "good" in good("scenario", "check", "-", stdin=(ROOT / EXAMPLE).read_text())


def test_chinese_is_spoken_when_asked_for():
    assert "可行" in good("scenario", "check", EXAMPLE, "--lang", "zh")
    assert "可行" in good("--lang", "zh", "scenario", "check", EXAMPLE)
    assert "可行" in good("scenario", "check", EXAMPLE, CROSSZONE_LANG="zh")
    failed = call("scenario", "check", "missing.yaml", LC_ALL="zh_CN.UTF-8")
    assert "没有文件" in failed.stderr


def test_own_entries_by_command(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("my-gpu: {like: a100-80gb-sxm, memory_gib: 160, usd_per_hour: 0}\n")
    assert "my-gpu was added" in good("catalogue", "add", "gpus", str(mine))
    shown = json.loads(good("catalogue", "gpus", "my-gpu", "--json"))
    assert (shown["own"], shown["memory_gib"], shown["usd_per_hour"]) == (True, 160, 0)
    assert call("catalogue", "add", "gpus", str(mine)).returncode == 2
    good("catalogue", "remove", "gpus", "my-gpu")
    assert call("catalogue", "gpus", "my-gpu").returncode == 2


def test_an_entry_can_be_written_as_a_start_for_ones_own(tmp_path):
    start = tmp_path / "start.yaml"
    start.write_text(good("catalogue", "gpus", "h100-80gb-sxm", "--yaml").replace("h100-80gb-sxm:", "our-h100:"))
    assert "our-h100 was added" in good("catalogue", "add", "gpus", str(start))
    shown = json.loads(good("catalogue", "gpus", "our-h100", "--json"))
    assert (shown["dense_tflops"]["bf16"], shown["sources"]) == (989, {"default": "own"})


BAD = {
    "wrong-type": "model: llama-2-7b\njob: {seq_len: many, global_batch: 8}\ncluster: {zones: [{name: a, nodes: [{gpus: 8, gpu: a100}]}]}",
    "unknown-key": "model: llama-2-7b\njob: {seq_len: 8, global_batch: 8, bacth: 1}\ncluster: {zones: [{name: a, nodes: [{gpus: 8, gpu: a100}]}]}",
    "negative": "model: llama-2-7b\njob: {seq_len: -8, global_batch: 8}\ncluster: {zones: [{name: a, nodes: [{gpus: 8, gpu: a100}]}]}",
    "zero": "model: llama-2-7b\njob: {seq_len: 8, global_batch: 0}\ncluster: {zones: [{name: a, nodes: [{gpus: 8, gpu: a100}]}]}",
    "nan": "model: llama-2-7b\njob: {seq_len: 8, global_batch: 8, tokens: .nan}\ncluster: {zones: [{name: a, nodes: [{gpus: 8, gpu: a100}]}]}",
    "infinity": "model: llama-2-7b\njob: {seq_len: 8, global_batch: 8, tokens: .inf}\ncluster: {zones: [{name: a, nodes: [{gpus: 8, gpu: a100}]}]}",
    "billion-zones": "model: llama-2-7b\njob: {seq_len: 8, global_batch: 8}\ncluster: {zones: 1000000000}",
    "many-zones": "model: llama-2-7b\njob: {seq_len: 8, global_batch: 8}\ncluster:\n  zones:\n"
    + "    - {name: a, nodes: [{gpus: 8, gpu: a100}]}\n" * 2000,
    "bomb": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)),
    "nowhere": "model: llama-2-7b\njob: {seq_len: 8, global_batch: 8}\ncluster:\n  zones: [{name: a, nodes: [{gpus: 8, gpu: a100}]}, {name: b, nodes: [{gpus: 8, gpu: a100}]}]\n  links: [{between: [a, c], gbps: 1, rtt_ms: 1}]",
    "twice": "model: llama-2-7b\njob: {seq_len: 8, global_batch: 8}\ncluster: {zones: [{name: a, nodes: [{gpus: 8, gpu: a100}]}, {name: a, nodes: [{gpus: 8, gpu: a100}]}]}",
    "deep": "[" * 5000,
    "binary": "\x00\x01\x02",
    "illegal": "model: llama-2-7b\njob: {seq_len: 8, global_batch: 8}\ncluster: {zones: [{name: a, nodes: [{gpus: 8, gpu: a100}]}]}\nstrategy: {tp: 8, pp: 4, dp: 2}",
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("verb", ["check", "show"])
def test_bad_input_exits_2_with_file_field_and_remedy_and_no_traceback(tmp_path, name, verb):
    path = tmp_path / f"{name}.yaml"
    path.write_text(BAD[name])
    before = sorted(tmp_path.rglob("*"))
    done = call("scenario", verb, str(path))
    assert done.returncode == 2
    said = done.stderr + done.stdout
    assert "Traceback" not in said
    assert "error" in said
    if name != "illegal":
        assert f"{path.name}:" in said
    assert sorted(p for p in tmp_path.rglob("*") if "home" not in p.parts) == [
        p for p in before if "home" not in p.parts
    ]


def test_a_hundred_megabyte_file_is_refused_at_once(tmp_path):
    path = tmp_path / "huge.yaml"
    with path.open("wb") as stream:
        stream.truncate(100_000_000)
    done = call("scenario", "check", str(path))
    assert (done.returncode, "larger than 4 MiB" in done.stderr) == (2, True)


def test_errors_are_json_when_json_was_asked_for():
    done = call("scenario", "show", "missing.yaml", "--json")
    assert done.returncode == 2
    error = json.loads(done.stdout)["errors"][0]
    assert {"code", "message", "field", "hint"} <= set(error)
    assert error["code"] == "file_missing"
    wrong = call("catalogue", "gpus", "--nonsense", "--json")
    assert json.loads(wrong.stdout)["errors"][0]["code"] == "usage"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["scenario"],
        ["scenario", "check"],
        ["catalogue", "gpus", "--nope"],
        ["catalogue", "add", "planets", "x"],
        ["--lang", "fr", "catalogue", "gpus"],
        ["catalogue", "gpus", "a101"],
        ["scenario", "convert", EXAMPLE, "--to", "xml"],
    ],
)
def test_wrong_command_lines_exit_2_without_a_traceback(arguments):
    done = call(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_an_unwritable_home_is_said_plainly(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("my-gpu: {like: a100-80gb-sxm}\n")
    (tmp_path / "file").write_text("")
    done = call("catalogue", "add", "gpus", str(mine), CROSSZONE_HOME=str(tmp_path / "file"))
    assert done.returncode == 2
    assert "CROSSZONE_HOME" in done.stderr


@pytest.mark.parametrize("name", ["[/x]", "[bold]x[/bold]", ":smile:", "[red", "北京 [zone]"])
def test_names_are_printed_as_they_are(tmp_path, name):
    path = tmp_path / "s.yaml"
    path.write_text(
        json.dumps(
            {
                "name": name,
                "model": "llama-2-7b",
                "job": {"seq_len": 8, "global_batch": 8},
                "cluster": {"zones": [{"name": name, "nodes": [{"gpus": 8, "gpu": "a100"}]}]},
            }
        )
    )
    assert f"{name}: good." in good("scenario", "check", str(path))
    assert good("scenario", "show", str(path)).count(name) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("tail", [">&-", "> /dev/full", "| true"])
@pytest.mark.parametrize("arguments", ["catalogue gpus --json", "catalogue gpus", "scenario check nope.yaml --json"])
def test_an_output_that_cannot_be_written_gives_no_traceback(arguments, tail):
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m crosszone {arguments} {tail}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_a_terminal_without_unicode_still_gets_an_answer():
    done = start("scenario", "show", "examples/fourteen-gpus.yaml", PYTHONIOENCODING="latin-1")
    assert done.returncode == 0


@pytest.mark.parametrize("home", ["~nosuchuser/x", "/dev/null/x", "x" * 5000])
def test_an_impossible_home_is_told_plainly(home, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("my-gpu: {like: a100-80gb-sxm}\n")
    done = call("catalogue", "add", "gpus", str(mine), CROSSZONE_HOME=home)
    assert done.returncode == 2, done.stderr
    assert "CROSSZONE_HOME" in done.stderr


def test_an_impossible_output_is_told_plainly():
    for output in ("x" * 5000, "/nowhere/at/all.yaml", "/dev"):
        done = call("scenario", "convert", EXAMPLE, "-o", output, "--force")
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr


def test_control_characters_of_a_file_never_reach_the_terminal(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text('"a\\u001b[31mb": 1\nmodel: "x\\u001b[2Jy"\n')
    done = call("scenario", "check", str(path))
    assert done.returncode == 2
    assert "\x1b" not in done.stderr + done.stdout


def test_convert_answers_programs_too(tmp_path):
    assert json.loads(good("scenario", "convert", EXAMPLE, "--json"))["model"] == "llama-2-70b"
    target = tmp_path / "x.yaml"
    assert json.loads(good("scenario", "convert", EXAMPLE, "-o", str(target), "--json"))["written"] == str(target)


def test_a_whole_kind_can_be_written_as_a_catalogue_file():
    assert good("catalogue", "gpus", "--yaml", "--filter", "h100").count("\n  dense_tflops:") == 4


def test_a_reader_that_goes_away_is_no_error():
    script = f"{sys.executable} -m crosszone catalogue models --json | head -1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {script}"], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.stderr == ""
    assert Path(ROOT).exists()
