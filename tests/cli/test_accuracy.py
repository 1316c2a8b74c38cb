"""`crosszone accuracy` as a user meets it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from component_rows import TIMED, iterations
from component_rows import written as jobs
from crosszone import measured
from crosszone.calibrate import accuracy_report
from crosszone.calibrate.accuracy_report import RUN_FILES
from crosszone.text import LANGUAGES, label

HEAD = "id,source,model,gpu,gpus,gpus_per_node,framework,precision,seq_len,global_batch,micro_batch,dp,tp,pp,recompute"
HEAD += ",step_time_s,tokens_per_s_per_gpu,memory_gb"
ROWS = (
    "here-0001,me,llama-2-7b,A100-80GB,8,8,Megatron-LM 2024,bf16,4096,64,1,8,1,1,none,10,,60",
    "here-0002,me,llama-2-7b,A100-80GB,8,8,Megatron-LM 2024,bf16,4096,64,1,4,2,1,none,11,,",
    "there-0001,you,unheard-of,A100-80GB,8,8,DDP,bf16,4096,64,1,8,1,1,none,10,,",
)


def written(folder: Path, *rows: str) -> Path:
    path = folder / "runs.csv"
    path.write_text("\n".join((HEAD, *rows)) + "\n", encoding="utf-8")
    return path


def test_json_is_one_document_with_a_summary_sources_and_rows(say, tmp_path):
    status, out, _ = say("accuracy", written(tmp_path, *ROWS), "--json")
    told = json.loads(out)
    assert status == 0
    assert (told["summary"]["rows"], told["summary"]["scored"], told["summary"]["skipped"]) == (3, 2, 1)
    assert [one["source"] for one in told["by_source"]] == ["here", "there"]
    assert [one["id"] for one in told["rows"]] == ["here-0001", "here-0002", "there-0001"]
    assert told["ranking"]["groups"] == 1
    assert "cross_validation" not in told


@pytest.mark.parametrize("language", LANGUAGES)
def test_tables_show_sources_skipped_rows_and_what_was_assumed(say, tmp_path, language):
    status, out, err = say("--lang", language, "accuracy", written(tmp_path, *ROWS))
    assert status == 0
    assert "here" in out and "there" in out and "zero: 1" in out and "missing" in out
    assert "Traceback" not in err


def test_doubtful_rows_are_told_apart(say, tmp_path):
    path = written(tmp_path, *ROWS)
    (tmp_path / "mine.csv").write_text("id,reason\nhere-0002,odd\n", encoding="utf-8")
    _, out, _ = say("accuracy", path, "--doubtful", tmp_path / "mine.csv", "--json")
    told = json.loads(out)
    assert told["summary"]["scored"] == 1 and told["doubtful"]["scored"] == 1
    assert told["rows"][1]["doubtful"] == "odd"


def test_a_missing_file_and_a_file_of_something_else_are_bad_input(say, tmp_path):
    status, _, err = say("accuracy", tmp_path / "none.csv")
    assert status == 2 and "none.csv" in err
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n", encoding="utf-8")
    status, _, err = say("accuracy", other)
    assert status == 2 and "id" in err


def test_an_empty_table_is_no_mistake(say, tmp_path):
    status, out, _ = say("accuracy", written(tmp_path), "--json")
    assert status == 0
    assert json.loads(out)["summary"]["mape_pct"] is None


def test_files_of_components_and_of_the_rig_are_known_by_their_columns(say, data):
    for path, key in ((data / "gpumodeling25" / "runs.csv", "by_part"), (data / "crosszone_rig.csv", "summaries")):
        status, out, _ = say("accuracy", path, "--json")
        assert status == 0 and json.loads(out)[key]
        status, out, _ = say("accuracy", path)
        assert status == 0 and len(out.splitlines()) > 5


def test_cross_validation_of_one_source_leaves_out_models_and_rows_only(say, tmp_path, monkeypatch):
    from crosszone.calibrate import fit

    monkeypatch.setattr(fit, "ROUNDS", 1)
    monkeypatch.setattr(fit.os, "cpu_count", lambda: 1)
    status, out, _ = say("accuracy", written(tmp_path, *ROWS), "--cv", "--json")
    assert status == 0
    assert [one["kind"] for one in json.loads(out)["cross_validation"]] == ["row"]
    status, out, _ = say("accuracy", written(tmp_path, *ROWS), "--cv")
    assert status == 0


# --- a folder, tables and pictures as files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    (made / "gpumodeling25").mkdir(parents=True)
    (made / "measured_runs.csv").write_text("\n".join((HEAD, *ROWS)) + "\n", encoding="utf-8")
    jobs(made / "gpumodeling25" / "runs.csv", TIMED, {**TIMED, "run_id": "two", "iter_best_s": "25"})
    iterations(made / "gpumodeling25", "one,1,2,2,steady", "one,2,3,3,steady")
    return made


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_folder_is_told_by_source_run_component_share_and_stability(say, folder, language):
    status, out, err = say("--lang", language, "accuracy", folder)
    assert status == 0 and "Traceback" not in err
    for key in ("accuracy_title", "component_error_title", "figure_share_title", "stability_title", "component_step"):
        assert label(key, language) in out
    assert "here-0002" in out and "GPT_20B" in out and "crosszone_rig.csv" in out


def test_a_folder_as_json_is_one_document(say, folder):
    status, out, _ = say("accuracy", folder, "--json")
    told = json.loads(out)
    assert status == 0
    assert {"sources", "runs", "components", "shares", "stability", "operators", "clusters"} <= set(told)
    assert told["clusters"][0]["scored"] == 2


@pytest.mark.slow
def test_pictures_and_tables_are_written_and_not_overwritten_unasked(say, folder, tmp_path):
    pictures, tables = tmp_path / "new" / "pictures", tmp_path / "tables"
    status, _, err = say("accuracy", folder, "--figures", pictures, "--csv", tables)
    assert status == 0 and "component_error.svg" in err
    assert len(list(pictures.glob("*.png"))) == len(list(pictures.glob("*.svg"))) == 4
    assert (tables / "component_error.csv").read_text(encoding="utf-8").startswith("component,")
    status, _, err = say("accuracy", folder, "--csv", tables)
    assert status == 2 and "--force" in err
    (tables / "runs.csv").write_text("old", encoding="utf-8")
    status, _, _ = say("accuracy", folder, "--csv", tables, "--force")
    assert status == 0 and (tables / "runs.csv").read_text(encoding="utf-8").startswith("id,source")


@pytest.mark.slow
def test_one_file_is_drawn_too(say, folder, tmp_path):
    status, _, _ = say("accuracy", folder / "measured_runs.csv", "--figures", tmp_path / "a")
    assert status == 0
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"predicted_measured.png", "predicted_measured.svg"}
    status, _, _ = say("accuracy", folder / "gpumodeling25" / "runs.csv", "--csv", tmp_path / "b")
    assert status == 0 and (tmp_path / "b" / "component_share.csv").exists()


def test_nothing_is_written_when_a_row_is_bad(say, folder, tmp_path):
    iterations(folder / "gpumodeling25", "one,1,2,2,steady", "one,2,-3,3,steady")
    status, out, err = say("accuracy", folder, "--figures", tmp_path / "p", "--csv", tmp_path / "t")
    assert status == 2 and out == ""
    assert "iterations.csv:3" in err and "iter_time_s" in err and "-3" in err
    assert not (tmp_path / "p").exists() and not (tmp_path / "t").exists()


def test_a_folder_that_is_a_file_cannot_be_written_into(say, folder, tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("", encoding="utf-8")
    status, _, err = say("accuracy", folder, "--csv", taken)
    assert status == 2 and "not a folder" in err


@pytest.mark.slow
def test_without_runs_those_that_come_with_the_program_are_scored(say, monkeypatch):
    monkeypatch.delenv(accuracy_report.FOLDER_VARIABLE, raising=False)
    status, out, _ = say("accuracy", "--json")
    report = json.loads(out)
    assert status == 0 and report["missing"] == []
    for name in RUN_FILES:
        with (measured.FOLDER / name).open(encoding="utf-8", newline="") as file:
            assert report["summary"][name]["rows"] == sum(1 for _ in csv.DictReader(file))


def test_without_runs_the_folder_that_is_named_or_the_users_own_goes_first(say, folder, tmp_path, home, monkeypatch):
    monkeypatch.delenv(accuracy_report.FOLDER_VARIABLE, raising=False)
    (home / "measurements").mkdir(parents=True)
    text = (folder / "measured_runs.csv").read_text(encoding="utf-8").splitlines()
    (home / "measurements" / "measured_runs.csv").write_text("\n".join(text[:2]) + "\n", encoding="utf-8")
    status, out, _ = say("accuracy", "--json")
    assert status == 0 and json.loads(out)["folder"] == str((home / "measurements").resolve())
    monkeypatch.setenv(accuracy_report.FOLDER_VARIABLE, str(folder))
    status, out, _ = say("accuracy", "--json")
    assert status == 0 and json.loads(out)["folder"] == str(folder.resolve())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(accuracy_report.FOLDER_VARIABLE, "not-there")
    status, _, err = say("accuracy")
    assert status == 2 and "not-there" in err


def test_a_rig_cannot_be_drawn(say, tmp_path):
    rig = tmp_path / "rig.csv"
    rig.write_text("experiment,zones,ranks_per_zone,rtt_ms,link_mbit,op,unit,median\n", encoding="utf-8")
    status, _, err = say("accuracy", rig, "--figures", tmp_path / "p")
    assert status == 2 and "can be drawn" in err and not (tmp_path / "p").exists()
