"""A report as Markdown (CommonMark with tables)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from crosszone.views.document import Report, Section, Table

# Characters that may be markup anywhere; an underscore only at the edge of a word.
_SPECIAL = re.compile(r"([\\`*\[\]<>|~&$]|(?<!\w)_|_(?!\w))")
# What makes a list, a heading or a rule of a line.
_LEADING = re.compile(r"^([-+=#]+|\d+[.)])(?=\s|$)")
_FENCE = re.compile(r"`{3,}")


def render_markdown(report: Report) -> str:
    """The text of a `.md` file."""
    lines = [f"# {escape_markdown(report.title)}", ""]
    for line in report.about:
        lines += [escape_markdown(line), ""]
    for section in report.sections:
        lines += _render_section(section)
    return "\n".join(lines).rstrip() + "\n"


def escape_markdown(text: str) -> str:
    """Text that shows as it is: one line, nothing in it is markup."""
    escaped = _SPECIAL.sub(r"\\\1", " ".join(text.split()))
    return _LEADING.sub(lambda lead: lead[0][:-1] + "\\" + lead[0][-1], escaped)


def _render_section(section: Section) -> Iterator[str]:
    yield from (f"## {escape_markdown(section.title)}", "")
    for line in section.lines:
        yield from (escape_markdown(line), "")
    for heading, text in section.facts:
        yield f"- **{escape_markdown(heading)}**: {escape_markdown(text)}"
    if section.facts:
        yield ""
    for item in section.items:
        level = f"**{escape_markdown(item.level)}** " if item.level else ""
        yield f"- {level}{escape_markdown(item.text)}"
        if item.hint:
            yield f"  {escape_markdown(item.hint)}"
    if section.items:
        yield ""
    for table in section.tables:
        yield from _render_table(table)
    if section.code:
        longest = max((len(run) for run in _FENCE.findall(section.code)), default=2)
        fence = "`" * (longest + 1)
        yield from (f"{fence}yaml", section.code.rstrip("\n"), fence, "")


def _render_table(table: Table) -> Iterator[str]:
    if table.title:
        yield from (f"### {escape_markdown(table.title)}", "")
    yield "| " + " | ".join(escape_markdown(heading) for heading, _ in table.headings) + " |"
    yield "|" + "|".join("---:" if align == "right" else "---" for _, align in table.headings) + "|"
    for row in table.rows:
        yield "| " + " | ".join(escape_markdown(cell) or " " for cell in row) + " |"
    yield ""
    if table.caption:
        yield from (f"*{escape_markdown(table.caption)}*", "")
