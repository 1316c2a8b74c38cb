"""Puts worked examples into docs/formulas.md: `.venv/bin/python scripts/formulas_doc.py`.

Each formula that a figure of the examples comes from is shown once with the numbers put in, as the running cost model
recorded them; nothing is worked out by hand. `tests/test_formulas.py` fails while the document differs from what this
would write.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from crosszone import load_scenario
from crosszone.analyse.explain import Explanation, explain, list_figures
from crosszone.predict.predict import build_prediction, build_predictor

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "formulas.md"
SCENARIOS = ("three-cities", "mixtral", "three-continents", "four-zones-405b", "single-node")
"""Examples with a strategy of their own, in the order they are looked at."""
BEGIN, END = "<!-- worked examples -->", "<!-- end of worked examples -->"
LONGEST = 220
"""Characters of an expression that still reads at a glance."""
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")
_OPERATION = re.compile(r"[-+*/(]")


def fill_examples(document: str) -> str:
    """The document with the worked examples of today's cost model."""
    head, _, rest = document.partition(BEGIN)
    tail = rest.partition(END)[2]
    rows = []
    for scenario, e in sorted(_iterate_examples(), key=lambda example: _get_sort_key(example[1].formula)):
        unit = "" if e.unit in ("", "share") else f" {e.unit}"
        value = f"{_format_figure(e.value)}{unit}"
        rows.append(f"| [{e.formula}] | {scenario} | {e.label} | `{_round_numbers(e.worked)}` | {value} |")
    table = "\n".join(["| formula | example | figure | numbers put in | value |", "|---|---|---|---|---|", *rows])
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


def _iterate_examples() -> Iterator[tuple[str, Explanation]]:
    """Of each formula the first figure that is not 0 and takes some arithmetic."""
    shown: set[str] = set()
    for scenario in SCENARIOS:
        for explanation in _open_figures(scenario):
            telling = explanation.value and _OPERATION.search(explanation.worked)
            if explanation.formula not in shown and telling and len(_round_numbers(explanation.worked)) <= LONGEST:
                shown.add(explanation.formula)
                yield scenario, explanation


def _open_figures(scenario: str) -> Iterator[Explanation]:
    """All figures of a prediction, and what they come from, as a reader would open them one by one."""
    p = build_predictor(load_scenario(str(ROOT / "examples" / f"{scenario}.yaml")))
    prediction = build_prediction(p)
    waiting, seen = deque(list_figures(prediction)), set[str]()
    while waiting:
        figure = waiting.popleft()
        if figure in seen:
            continue
        seen.add(figure)
        explanation = explain(p, prediction, figure)
        yield explanation
        waiting += [part.figure for part in (*explanation.inputs, *explanation.lines) if part.figure]


def _get_sort_key(formula: str) -> tuple[str, int]:
    return formula[0], int(formula[1:])


def _round_numbers(expression: str) -> str:
    """The expression with six digits of each number, as a reader would write them."""
    return _NUMBER.sub(lambda number: _format_figure(float(number[0])).replace(",", ""), expression)


def _format_figure(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.6g}"


if __name__ == "__main__":
    DOCUMENT.write_text(fill_examples(DOCUMENT.read_text("utf-8")), "utf-8")
    sys.stdout.write(f"{DOCUMENT.relative_to(ROOT)} is filled.\n")
