"""One answer, three forms: the terminal, Markdown and HTML print the same sections."""

import io

import pytest
from rich.console import Console

from conftest import ROOT
from crosszone.inputs.scenario import read_scenario
from crosszone.predict.answer import answer
from crosszone.views.accuracy import build_jobs_sections
from crosszone.views.answer_text import AnswerText
from crosszone.views.document import (
    ColoredText,
    Fact,
    Facts,
    Paragraph,
    Picture,
    Remark,
    Remarks,
    Report,
    Section,
    Table,
)
from crosszone.views.html import render_html
from crosszone.views.markdown import render_markdown
from crosszone.views.prediction import build_prediction_sections
from crosszone.views.terminal import print_sections


def print_text(sections, width=120):
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    print_sections(sections, console)
    return console.file.getvalue()


def report(*sections):
    return Report(language="en", title="a run", about=(), sections=sections)


BLOCKS = {
    "a paragraph": (Paragraph(text="as it is"), ["as it is"]),
    "facts": (Facts(facts=(Fact(heading="speed", text="12 tokens/s"),)), ["speed", "12 tokens/s"]),
    "remarks": (
        Remarks(remarks=(Remark(text="slow", hint="use more", level="warning", level_word="warning"),), bullet=""),
        ["warning", "slow", "use more"],
    ),
    "a table": (
        Table(
            headings=(("part", "left"), ("s", "right")), rows=(("host", "1"),), total=(("total", "2"),), title="Parts"
        ),
        ["Parts", "part", "host", "total", "2"],
    ),
    "a picture": (
        Picture(
            lines=(
                (ColoredText(text="p ", color="#000000", background="#ffffff"), ColoredText(text="f")),
                (ColoredText(text="rtt"),),
            )
        ),
        ["p ", "f", "rtt"],
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_every_block_is_printed_in_every_form(name):
    block, words = BLOCKS[name]
    section = Section(title="Numbers", blocks=(block,))
    for text in (print_text([section]), render_markdown(report(section)), render_html(report(section))):
        assert [word for word in ("Numbers", *words) if word not in text] == []


def test_a_picture_keeps_its_lines_in_every_form():
    section = Section(title="", blocks=(BLOCKS["a picture"][0],))
    assert "p f\nrtt\n" in print_text([section])
    assert "```\np f\nrtt\n```" in render_markdown(report(section))
    assert "f\nrtt\n</pre>" in render_html(report(section))


def test_a_terminal_says_how_many_rows_it_leaves_out_and_a_file_has_them_all():
    rows = [(f"row {number}",) for number in range(5)]
    table = AnswerText("en").build_table("zone", rows, terminal_rows=3)
    section = Section(title="", blocks=(table,))
    shown = print_text([section])
    assert "row 2" in shown and "row 3" not in shown and "2 more" in shown
    assert "row 4" in render_markdown(report(section))


def test_a_title_stays_on_one_line_above_a_narrow_table():
    table = Table(headings=(("s", "right"),), rows=(("1",),))
    assert print_text([Section(title="What a step is made of", blocks=(table,))]).startswith("What a step is made of\n")


def test_a_prediction_has_the_same_rows_in_a_terminal_and_in_a_file():
    predicted = answer(read_scenario(ROOT / "examples" / "three-cities.yaml"))
    text = AnswerText("en")
    sections = build_prediction_sections(predicted, text, None)
    markdown, shown = render_markdown(report(*sections)), print_text(sections, width=250)
    for section in sections:
        for table in section.tables:
            for row in table.rows:
                assert "| " + " | ".join(row).replace(">", r"\>").replace(" *", r" \*") + " |" in markdown
                assert all(cell in shown for cell in row)


def test_a_narrow_terminal_has_fewer_columns_of_memory():
    predicted = answer(read_scenario(ROOT / "examples" / "three-cities.yaml"))
    text = AnswerText("en")
    wide, narrow = (build_prediction_sections(predicted, text, width)[2].tables[0] for width in (None, 80))
    assert len(narrow.headings) < len(wide.headings)
    assert narrow.headings[0] == wide.headings[0]


@pytest.mark.parametrize("width", [60, 100, 200])
def test_a_narrow_terminal_leaves_jobs_out_before_it_cuts_an_error(width):
    jobs = [{"cluster": "perlmutter", "name": "GPT_20B 4-4-8", "id": str(n), "fastest": True} for n in range(12)]
    means = {"perlmutter": {"all_pct": 1.0, "fastest_pct": 2.0}}
    rows = [{"name": "layer, forward", "errors_pct": [-13.6] * len(jobs), "means": means}]
    components = {"jobs": jobs, "clusters": ["perlmutter"], "rows": rows}
    scored = {"components": components, "clusters": [], "shares": []}
    (section,) = build_jobs_sections(scored, AnswerText("en"), width)
    shown = len(section.tables[0].headings) - 3
    assert 1 <= shown <= 10
    text = print_text([section], width)
    assert text.count("-13.6") == shown
    assert f"the first {shown} of 12 jobs" in " ".join(text.split())
    assert "…" not in text
