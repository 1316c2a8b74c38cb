"""What the README shows is what the program says."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest

from conftest import ROOT
from crosszone import catalogue, parameters


def script() -> ModuleType:
    """`scripts/readme.py`, which fills the console blocks."""
    spec = importlib.util.spec_from_file_location("readme", ROOT / "scripts" / "readme.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(("file", "language"), [("README.md", "en"), ("README_zh.md", "zh")])
def test_the_program_answers_as_shown(file, language):
    text = (ROOT / file).read_text(encoding="utf-8")
    assert text == script().fill_answers(text, language), "run: .venv/bin/python scripts/readme.py"
    checked, refused, predicted, planned, changed, deployed = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    assert "23.43 ms" in checked
    assert "128" in refused
    assert "64" in refused
    assert "GiB" in predicted
    assert "crosszone" in planned and "GiB" in planned
    assert "nodes/002.sh" in deployed and "--nproc-per-node 8" in deployed
    assert "cluster.links[0].gbps = 100" in changed and "NCCL_SOCKET_NTHREADS=8" in changed


@pytest.mark.parametrize(("file", "language"), [("README.md", "en"), ("README_zh.md", "zh")])
def test_the_accuracy_shown_is_that_of_the_last_benchmark(file, language):
    text = (ROOT / file).read_text(encoding="utf-8")
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    assert text == script().fill_results(text, results, language), "run: .venv/bin/python scripts/readme.py"
    shown = text.partition("<!-- results -->")[2].partition("<!-- end -->")[0]
    assert len(shown.strip().splitlines()) > 6


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
    "file",
    [*(path.name for path in ROOT.glob("*.md")), *(f"{path.relative_to(ROOT)}" for path in ROOT.glob("docs/**/*.md"))],
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
