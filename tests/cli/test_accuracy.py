"""`crosszone accuracy` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crosszone.cli import _run
from crosszone.text import LANGUAGES

HEAD = "id,source,model,gpu,gpus,gpus_per_node,framework,precision,seq_len,global_batch,micro_batch,dp,tp,pp,recompute"
HEAD += ",step_time_s,tokens_per_s_per_gpu,memory_gb"
ROWS = (
    "here-0001,me,llama-2-7b,A100-80GB,8,8,Megatron-LM 2024,bf16,4096,64,1,8,1,1,none,10,,60",
    "here-0002,me,llama-2-7b,A100-80GB,8,8,Megatron-LM 2024,bf16,4096,64,1,4,2,1,none,11,,",
    "there-0001,you,unheard-of,A100-80GB,8,8,DDP,bf16,4096,64,1,8,1,1,none,10,,",
)


@pytest.fixture
def say(capsys):
    """Run a command; gives exit status, standard output and standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        status = _run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


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
    from crosszone.calibrate import validation

    monkeypatch.setattr(validation, "ROUNDS", 1)
    monkeypatch.setattr(validation.os, "cpu_count", lambda: 1)
    status, out, _ = say("accuracy", written(tmp_path, *ROWS), "--cv", "--json")
    assert status == 0
    assert [one["kind"] for one in json.loads(out)["cross_validation"]] == ["row"]
    status, out, _ = say("accuracy", written(tmp_path, *ROWS), "--cv")
    assert status == 0
