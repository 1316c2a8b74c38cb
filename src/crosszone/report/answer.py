"""Answer: the report of a scenario file in one form, the same for every surface."""

from __future__ import annotations

from typing import Any, Literal, get_args

from crosszone.inputs.scenario import Loaded
from crosszone.report.html import html
from crosszone.report.markdown import markdown
from crosszone.report.sections import report
from crosszone.report.study import study
from crosszone.text import DEFAULT_LANGUAGE

Form = Literal["md", "html"]
FORMS: tuple[Form, ...] = get_args(Form)


def answer(loaded: Loaded, language: str = DEFAULT_LANGUAGE, *, form: Form = "md", **how: Any) -> str:
    """The report of a scenario that was read from a file, as Markdown or one HTML file; `how` goes to `study`."""
    made = report(study(loaded, language, **how), language)
    return html(made) if form == "html" else markdown(made)
