"""A report as one HTML file: no script, nothing loaded from elsewhere, good on paper."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from crosszone.views.document import Report


def render_html(report: Report) -> str:
    """The text of a `.html` file."""
    return _load_template().render(report=report)


@cache
def _load_template() -> Template:
    # names come from the user's file: everything is escaped, and a missing field is an error
    loader = PackageLoader("crosszone.views", ".")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("document.html")
