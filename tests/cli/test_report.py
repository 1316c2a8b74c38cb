"""`crosszone report` writes what the API sends."""

import json

import pytest
from typer.testing import CliRunner

from conftest import ROOT
from crosszone.cli import app

FILE = str(ROOT / "examples" / "single-node.yaml")


def run(*words):
    return CliRunner().invoke(app, ["--lang", "en", "report", FILE, *words])


@pytest.mark.parametrize(("name", "starts"), [("out.md", "# single node"), ("out.html", "<!doctype html>")])
def test_the_ending_of_the_file_chooses_the_form(tmp_path, name, starts):
    done = run("-o", str(tmp_path / name))
    assert done.exit_code == 0
    assert (tmp_path / name).read_text("utf-8").startswith(starts)


def test_json_has_form_and_text():
    told = json.loads(run("--json", "--format", "html").stdout)
    assert told["format"] == "html"
    assert "What the numbers rest on" in told["text"]


def test_an_existing_file_is_not_overwritten(tmp_path):
    file = tmp_path / "out.md"
    file.write_text("mine", "utf-8")
    assert run("-o", str(file)).exception is not None
    assert file.read_text("utf-8") == "mine"
    assert run("-o", str(file), "--force").exit_code == 0


def test_an_unknown_form_is_refused():
    assert "pdf" in str(run("--format", "pdf").exception)
