"""docs/accuracy.md and docs/evidence.md show what the last benchmarks found."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from conftest import ROOT

RESULTS = """# Results

## One

`how`

| first | rows |
|---|---|
| a | 1 |

| second | rows |
|---|---|
| b | 2 |

Ranking: good.

## Two

text
"""


def script() -> ModuleType:
    """`scripts/accuracy_doc.py`, which fills the places."""
    spec = importlib.util.spec_from_file_location("accuracy_doc", ROOT / "scripts" / "accuracy_doc.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("name", "places"), [("accuracy.md", 8), ("evidence.md", 3)])
def test_the_document_is_what_the_results_say(name, places):
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    assert text == script().fill_tables(text, results), "run: .venv/bin/python scripts/accuracy_doc.py"
    assert text.count("<!-- table: ") >= places


def test_places_take_tables_lines_and_sections():
    given = "x\n<!-- table: One | second -->\nold\n<!-- end -->\n<!-- line: One | Ranking: -->\n<!-- end -->\n"
    given += "<!-- section: Two -->\n<!-- end -->\ny"
    found = script().fill_tables(given, RESULTS)
    assert "| second | rows |\n|---|---|\n| b | 2 |\n<!-- end -->" in found
    assert "old" not in found and "| first" not in found
    assert "<!-- line: One | Ranking: -->\nRanking: good.\n<!-- end -->" in found
    assert "<!-- section: Two -->\ntext\n<!-- end -->\ny" in found
    assert script().fill_tables(found, RESULTS) == found


def test_a_place_without_results_says_so():
    found = script().fill_tables("<!-- table: None | x -->\n<!-- end -->", RESULTS)
    assert "Not measured yet" in found
    assert "Not measured yet" in script().fill_tables("<!-- table: One | third -->\n<!-- end -->", RESULTS)
