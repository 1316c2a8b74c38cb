"""Each formula has an id in the docs, in the code and in a unit test."""

from __future__ import annotations

import importlib.util
import re

from conftest import ROOT
from crosszone.inputs.region import load_routes

ID = re.compile(r"\[([A-Z]\d{1,2})\]")


def ids(folder: str, pattern: str) -> set[str]:
    return {found for path in (ROOT / folder).rglob(pattern) for found in ID.findall(path.read_text(encoding="utf-8"))}


def documented() -> set[str]:
    return set(
        re.findall(r"^### \[([A-Z]\d+)\]", (ROOT / "docs" / "formulas.md").read_text(encoding="utf-8"), re.MULTILINE)
    )


def test_docs_code_and_tests_name_the_same_formulas():
    assert documented() == ids("src", "*.py") | ids("benchmarks/studies", "*.py") == ids("tests", "test_*.py")
    assert len(documented()) >= 12


def test_the_route_factors_in_the_docs_are_those_of_the_program():
    text = (ROOT / "docs" / "formulas.md").read_text(encoding="utf-8")
    for bucket in load_routes()["buckets"]:
        row = f"| {bucket['from_km']} - {bucket['to_km']} | {bucket['pairs']} | {bucket['p10']:.2f} | {bucket['median']:.2f} | {bucket['p90']:.2f} |"
        assert row in text


def test_worked_examples_are_what_the_cost_model_computes():
    spec = importlib.util.spec_from_file_location("formulas_doc", ROOT / "scripts" / "formulas_doc.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = script.DOCUMENT.read_text(encoding="utf-8")
    assert script.fill_examples(text) == text, "run: .venv/bin/python scripts/formulas_doc.py"
    assert text.count("\n| [") >= 40
