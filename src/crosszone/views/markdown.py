"""A report as Markdown (CommonMark with tables)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import assert_never

from crosszone.views.document import Block, Code, Facts, Paragraph, Picture, Remarks, Report, Section, Table

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
    for block in section.blocks:
        yield from _render_block(block)


def _render_block(block: Block) -> Iterator[str]:
    match block:
        case Paragraph():
            yield from (escape_markdown(block.text), "")
        case Facts():
            for fact in block.facts:
                yield f"- **{escape_markdown(fact.heading)}**: {escape_markdown(fact.text)}"
            yield ""
        case Remarks():
            for remark in block.remarks:
                level = f"**{escape_markdown(remark.level_word)}** " if remark.level else ""
                yield f"- {level}{escape_markdown(remark.text)}"
                if remark.hint:
                    yield f"  {escape_markdown(remark.hint)}"
            if block.remarks:
                yield ""
        case Table():
            yield from _render_table(block)
        case Picture():
            yield from _render_code("".join("".join(span.text for span in line) + "\n" for line in block.lines), "")
        case Code():
            yield from _render_code(block.text, "yaml")
        case _:
            assert_never(block)


def _render_code(text: str, language: str) -> Iterator[str]:
    # a fence must be longer than any in the text
    longest = max((len(run) for run in _FENCE.findall(text)), default=2)
    fence = "`" * (longest + 1)
    yield from (f"{fence}{language}", text.rstrip("\n"), fence, "")


def _render_table(table: Table) -> Iterator[str]:
    if table.title:
        yield from (f"### {escape_markdown(table.title)}", "")
    yield "| " + " | ".join(escape_markdown(heading) for heading, _ in table.headings) + " |"
    yield "|" + "|".join("---:" if align == "right" else "---" for _, align in table.headings) + "|"
    for row in (*table.rows, *table.total):
        yield "| " + " | ".join(escape_markdown(str(cell)) or " " for cell in row) + " |"
    yield ""
    if table.caption:
        yield from (f"*{escape_markdown(table.caption)}*", "")
