"""What the README shows is what the program says."""

from __future__ import annotations

import re

import pytest

from conftest import ROOT
from crosszone import catalogue, parameters
from crosszone.cli import _run


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize(("file", "language"), [("README.md", "en"), ("README_zh.md", "zh")])
def test_the_first_scenario_answers_as_shown(file, language, tmp_path, monkeypatch, capsys):
    text = (ROOT / file).read_text(encoding="utf-8")
    (scenario,) = blocks(text, "yaml")
    good, refused = blocks(text, "console")
    strategy = re.search(r"`(strategy: \{[^`]*\})`", text)[1]
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my.yaml"
    path.write_text(scenario)
    assert _run(["--lang", language, "scenario", "check", "my.yaml"]) == 0
    assert capsys.readouterr().out == good.split("\n", 1)[1]
    path.write_text(scenario + strategy)
    assert _run(["--lang", language, "scenario", "check", "my.yaml"]) == 2
    assert refused in capsys.readouterr().err


@pytest.mark.parametrize("file", ["README.md", "README_zh.md"])
def test_the_counts_shown_are_those_computed(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    for name, active in (
        ("llama-2-7b", False),
        ("llama-2-13b", False),
        ("llama-2-70b", False),
        ("mixtral-8x7b", True),
        ("deepseek-v3", True),
    ):
        counted = parameters(catalogue().model(name))
        assert f"{counted.total / 1e9:.3f} B" in text
        if active:
            assert f"{counted.active / 1e9:.3f} B" in text


@pytest.mark.parametrize(
    "file", ["README.md", "README_zh.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_between_documents_lead_somewhere(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!http|#)([^)#]+)\)", text):
        assert ((ROOT / file).parent / target).exists(), target


def test_both_readmes_name_both_commands():
    for file in ("README.md", "README_zh.md"):
        text = (ROOT / file).read_text(encoding="utf-8")
        assert "./crosszone" in text
        assert "./test" in text
