"""`crosszone calibrate trace` as a user meets it, and the formats it tells apart."""

from __future__ import annotations

import gzip
import json
from functools import partial
from pathlib import Path

import pytest

from conftest import ROOT
from crosszone.calibrate.trace_files import detect_format, read_run
from crosszone.errors import FileError, InputError
from crosszone.store import open_store
from kineto_traces import EXPECTED_US, steps

NINE = """iteration start,0
warmup start,0.002
forward start,0.120
backward start,0.051
forward start,0.098
backward start,0.052
cooldown start,0.099
allreduce start,0.140
iteration end,0.230
"""
"""An iteration of 0.792 s."""
TRACE = {
    "version": 1,
    "kind": "measured",
    "name": "run 7",
    "unit": "s",
    "lanes": [{"id": "stage-0", "name": "stage 0", "group": "stages"}],
    "spans": [
        {"lane": "stage-0", "kind": "forward", "start_s": 0.0, "end_s": 1.0},
        {"lane": "stage-0", "kind": "backward", "start_s": 1.0, "end_s": 3.0},
    ],
    "steps": [{"step": 1, "start_s": 0.0, "end_s": 3.5}],
}
SCENARIO = ROOT / "examples" / "two-zones-7b.yaml"
HEADER = {key: TRACE[key] for key in ("version", "kind", "name", "unit", "lanes")} | {
    "meta": {"ranks": 8, "device": "H200"}
}
LINES = [
    {"step": n, "start_s": 2.0 * n, "end_s": 2.0 * n + 1.0 + 0.1 * n, "tokens": 1000, "memory_gib": 3.5,
     "spans": [{"lane": "stage-0", "kind": "forward", "start_s": 2.0 * n, "end_s": 2.0 * n + 0.5}]}
    for n in (1, 2, 3)
]  # fmt: skip
TABLE = "lane,kind,start_s,end_s,step\nstage-0,forward,0,0.5,1\nstage-0,backward,0.5,1.5,1\n"


@pytest.fixture
def say(say):
    return partial(say, "calibrate", "trace")


def written(folder: Path, form: str) -> Path:
    """A file of each format."""
    path = (
        folder
        / {"benchmark": "b.csv", "trace": "t.json", "table": "t.csv", "metrics": "m.jsonl", "kineto": "k.json"}[form]
    )
    texts = {
        "benchmark": NINE,
        "trace": json.dumps(TRACE),
        "table": TABLE,
        "metrics": "\n".join(map(json.dumps, [HEADER, *LINES])) + "\n",
        "kineto": json.dumps(steps(3).document()),
    }
    path.write_text(texts[form])
    return path


@pytest.mark.parametrize("form", ["benchmark", "trace", "table", "metrics", "kineto"])
@pytest.mark.parametrize("packed", [False, True])
def test_each_format_is_known_from_its_first_lines(tmp_path, form, packed):
    path = written(tmp_path, form)
    if packed:
        path.with_suffix(".gz").write_bytes(gzip.compress(path.read_bytes()))
        path = path.with_suffix(".gz")
    assert detect_format(path) == {"table": "trace"}.get(form, form)
    found = read_run([path])
    assert found.kind == "measured"
    assert all(sum(one.phases_s.values()) == pytest.approx(one.seconds) for one in found.steps)


def test_what_is_no_trace_is_refused_with_how_it_begins(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("dear reader\n")
    with pytest.raises(FileError) as error:
        detect_format(path)
    assert "dear reader" in error.value.notices[0].message()


def test_metrics_bring_tokens_memory_and_ranks_and_say_what_is_missing(tmp_path):
    found = read_run([written(tmp_path, "metrics")], iteration="last")
    assert found.figures["tokens_per_s"] == pytest.approx(1000 / 1.3)
    assert (found.figures["memory_gib"], found.figures["gpus"]) == (3.5, 8)
    (told,) = [notice for notice in found.notices if notice.code == "trace_meta_missing"]
    assert told.params["missing"] == ["model", "framework", "torch", "tp/pp/dp"]


def test_iterations_statistics_and_phases_are_printed(tmp_path, say):
    status, out, err = say(written(tmp_path, "kineto"), "--iteration", "2")
    assert status == 0
    assert "3 iterations" in out and "mean to min" in out and "Phases of iteration 2" in out
    assert "recompute" in out and "0.100 ms" in out and "data-parallel messages" in out
    assert err == ""


def test_one_json_document_has_everything(tmp_path, say):
    status, out, _ = say(written(tmp_path, "kineto"), "--json")
    found = json.loads(out)
    assert status == 0
    assert found["statistics"]["count"] == len(found["steps"]) == 3
    assert {k: v * 1e6 for k, v in found["iteration"]["phases_s"].items()} == pytest.approx(EXPECTED_US)
    assert found["difference"] is None and found["saved"] is None


@pytest.mark.slow
def test_the_predicted_step_stands_beside_it_with_its_difference(tmp_path, say):
    status, out, _ = say(written(tmp_path, "kineto"), "--scenario", SCENARIO, "--json")
    beside = json.loads(out)["difference"]
    assert status == 0
    assert beside["step"]["measured_s"] == pytest.approx(1e-3)
    for row in beside["phases"]:
        if row["measured_s"]:
            off = 100 * (row["predicted_s"] - row["measured_s"]) / row["measured_s"]
            assert row["difference_pct"] == pytest.approx(off)
    status, out, _ = say(written(tmp_path, "benchmark"), "--scenario", SCENARIO)
    assert status == 0 and "Predicted beside measured" in out


def test_it_is_saved_and_written_as_our_own_trace_which_reads_the_same(tmp_path, say):
    where, out = tmp_path / "store.db", tmp_path / "own.json"
    status, text, _ = say(written(tmp_path, "benchmark"), "--save", "mine", "--store", where, "-o", out, "--json")
    assert status == 0
    with open_store(str(where)) as store:
        kept = store.results.get(json.loads(text)["saved"])
    assert (kept.name, kept.kind, kept.document["step_time_s"]) == ("mine", "measured", pytest.approx(0.792))
    assert read_run([out]).get_step("best").seconds == pytest.approx(0.792)
    assert say(out, "-o", out)[0] == 2  # never over another file unless told
    assert say(out, "-o", out, "--force")[0] == 0


def test_a_file_with_bad_rows_is_shown_but_not_saved_unless_told(tmp_path, say):
    where = tmp_path / "store.db"
    path = tmp_path / "b.csv"
    path.write_text(NINE + NINE.replace("warmup start,0.002", "warmup start,-1"))
    status, _, err = say(path, "--save", "mine", "--store", where)
    assert status == 2
    assert "b.csv:11" in err and "negative" in err
    with open_store(str(where)) as store:
        assert store.results.page(limit=10, before=None).total == 0
    assert say(path, "--save", "mine", "--store", where, "--skip-bad")[0] == 0
    assert say(path)[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--format", "excel"),
        ("--iteration", "fastest"),
        ("--iteration", "99"),
        ("--group", "3=zp"),
        ("--skip", "1"),
        ("--skip", "-1"),
        ("--scenario", "no-such-file.yaml"),
    ],
)
def test_wrong_words_are_refused_with_status_2(tmp_path, say, words):
    status, out, err = say(written(tmp_path, "benchmark"), *words)
    assert (status, out) == (2, "")
    assert err and "Traceback" not in err


def test_files_that_are_not_there_or_too_many_are_refused(tmp_path, say):
    path = written(tmp_path, "benchmark")
    assert say(tmp_path / "nothing.csv")[0] == 2
    assert say(path, path)[0] == 2
    assert say(tmp_path / "none")[0] == 2
    with pytest.raises(InputError):
        read_run([])


def test_iterations_that_warm_up_can_be_left_out(tmp_path, say):
    path = tmp_path / "b.csv"
    path.write_text(NINE.replace("0.230", "9.230") + NINE + NINE)
    _, out, _ = say(path, "--skip", "1", "--iteration", "first", "--json")
    found = json.loads(out)
    assert [one["step"] for one in found["steps"]] == [2, 3]
    assert found["statistics"]["mean_to_min_pct"] == pytest.approx(0.0, abs=1e-9)
    assert found["iteration"]["step"] == 2
    assert found["figures"]["step_time_s"] == pytest.approx(0.792)


def test_without_an_iteration_figures_are_of_the_median_of_what_is_left(tmp_path):
    path = tmp_path / "b.csv"
    path.write_text("".join(NINE.replace("0.230", last) for last in ("0.100", "0.200", "0.900", "0.300", "0.400")))
    assert read_run([path]).figures["step_time_s"] == pytest.approx(0.562 + 0.3)
    assert read_run([path], skip=2).figures["step_time_s"] == pytest.approx(0.562 + 0.4)


def test_a_trace_too_large_to_be_stored_is_saved_without_its_other_iterations_and_says_so(tmp_path, say, monkeypatch):
    path = tmp_path / "b.csv"
    path.write_text(NINE * 40)
    whole = read_run([path], iteration="best")
    most = len(json.dumps(whole.timeline)) + 200  # would fit but for its quotation marks
    monkeypatch.setattr("crosszone.store.table.MAX_DOCUMENT", most)
    where = tmp_path / "store.db"
    status, out, err = say(path, "--iteration", "7", "--save", "mine", "--store", where, "--json")
    assert status == 0, err
    found = json.loads(out)
    assert "trace_kept_part" in [notice["code"] for notice in found["notices"]]
    assert len(found["steps"]) == 40
    with open_store(str(where)) as store:
        kept = store.results.get(found["saved"])
    assert [step["step"] for step in json.loads(kept.timeline["trace"])["steps"]] == [7]
