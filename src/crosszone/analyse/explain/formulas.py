"""The formulas of docs/formulas.md, by id: the one place where they are written down."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path

from crosszone.inputs.value import Value

# Formula of each kind of communication.
TRAFFIC = {
    "tensor": "X1",
    "context": "X4",
    "expert": "X3",
    "pipeline": "X8",
    "gradients": "X7",
    "weights": "X7",
    "local update": "V5",
}
_HEADING = re.compile(r"^(#{2,3}) (?:\[([A-Z]\d+)\] )?(.*)$", re.MULTILINE)


class Formula(Value):
    """One formula: what it says, with symbols, source and limits."""

    id: str
    """As in the code beside the function, e.g. V3."""
    title: str
    """Its heading."""
    part: str
    """Heading of the part of the file it stands in."""
    markdown: str
    """Its text."""


@cache
def load_formulas() -> dict[str, Formula]:
    """All formulas in the order of the file."""
    text = _find_document().read_text("utf-8")
    headings = list(_HEADING.finditer(text))
    formulas_by_id, part = {}, ""
    for heading, after in zip(headings, [*headings[1:], None], strict=True):
        level, number, title = heading.groups()
        if level == "##":
            part = title
        elif number:
            body = text[heading.end() : after.start() if after else None].strip()
            formulas_by_id[number] = Formula(id=number, title=title, part=part, markdown=body)
    return formulas_by_id


def find_formula(number: str) -> Formula:
    """The formula of an id."""
    return load_formulas()[number]


def _find_document() -> Path:
    """The checkout's docs when run from one, else the copy inside the package."""
    package = Path(str(files("crosszone")))
    checkout = package.parents[1] / "docs" / "formulas.md"
    return checkout if checkout.is_file() else package / "formulas.md"
