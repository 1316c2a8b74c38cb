"""A report holds inputs, plan, numbers and warnings, and shows hostile names as they are."""

import re
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt

from conftest import ROOT
from crosszone import __version__
from crosszone.inputs.scenario import load_scenario, parse_scenario, read_scenario
from crosszone.plan.plan import apply_plan
from crosszone.plan.planner import plan, select_best
from crosszone.predict.answer import answer
from crosszone.text.figures import format_digits
from crosszone.views.html import render_html
from crosszone.views.markdown import escape_markdown, render_markdown
from crosszone.views.report import build_report, render_report
from crosszone.views.study import build_study

THREE = ROOT / "examples" / "three-cities.yaml"
HOSTILE = ("a|b", "<script>alert(1)</script>", "```x``` *y* _z_ [l](javascript:1) &amp; $1$")
SCENARIO = """
name: '{name}'
model: llama-2-7b
job: {{seq_len: 2048, global_batch: 64}}
cluster:
  zones:
    - {{name: '{one}', nodes: [{{count: 1, gpus: 8, gpu: a100-80gb-sxm, nic_gbps_per_gpu: 100}}]}}
    - {{name: '{two}', nodes: [{{count: 1, gpus: 8, gpu: a100-80gb-sxm, nic_gbps_per_gpu: 100}}]}}
  default_link: {{gbps: 10, rtt_ms: 20}}
strategy: {{tp: 1, pp: 2}}
"""

pytestmark = pytest.mark.slow  # plans


@pytest.fixture(scope="module")
def three():
    found = build_study(read_scenario(THREE))
    return found, build_report(found, "en", datetime(2026, 1, 2, 3, 4, tzinfo=UTC))


@pytest.fixture(scope="module")
def hostile():
    one, two, name = HOSTILE
    return build_report(build_study(parse_scenario(SCENARIO.format(one=one, two=two, name=name))), "en")


def section(made, title):
    return next(one for one in made.sections if one.title == title)


class Tags(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.cells, self.title = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags[-1:] and self.tags[-1][0] == "td":
            self.cells.append(data)
        if self.tags[-1:] and self.tags[-1][0] == "h1" and data.strip():
            self.title = self.title or data


def test_the_numbers_are_those_of_the_prediction_with_their_range(three):
    _, made = three
    predicted = answer(read_scenario(THREE)).prediction
    rows = {row[0]: row[1:] for row in section(made, "Numbers").tables[0].rows}
    for name, triple in (
        ("step time, s", predicted.step_time_s),
        ("tokens/s", predicted.tokens_per_s),
        ("whole run, days", predicted.run.days),
        ("cost, $", predicted.run.usd),
        ("energy, kWh", predicted.run.kwh),
        ("carbon, kg CO2", predicted.run.co2_kg),
        ("peak memory of the fullest GPU, GiB", predicted.memory_gib.peak),
    ):
        assert rows[name] == tuple(format_digits(value) for value in (triple.expected, triple.low, triple.high))
    assert rows["MFU, %"][0] == format_digits(100 * predicted.mfu.expected)


def test_inputs_plan_and_warnings_are_there(three):
    found, made = three
    text = render_markdown(made)
    best = found.free.plans[0].prediction.step_time_s.expected
    slower = format_digits(found.answer.prediction.step_time_s.expected - best)
    assert f"CrossZone {__version__}, 2026-01-02 03:04 UTC" in text
    for said in (
        "llama-2-70b",
        "beijing-a",
        "cn-shenzhen",
        "10 (typed)",
        "1 (example)",
        "34.8 (28.6 - 47.8) (distance)",
    ):
        assert said in text
    for said in ("Megatron-LM", "tp 8, pp 4, dp 4", "0 - 63 | beijing-a", f"{slower} s slower", "PyTorch DDP: memory"):
        assert said in text
    for said in ("1 Gbit/s is assumed as an example", "Set gbps of this link", "measured profile a100"):
        assert said in text


def test_parts_of_the_step_add_up_to_it(three):
    found, made = three
    (table,) = section(made, "What a step is made of").tables
    *parts, total = [float(row[1].replace(",", "")) for row in (*table.rows, *table.total)]
    assert total == pytest.approx(found.answer.prediction.step_time_s.expected, rel=1e-3)
    assert sum(parts) == pytest.approx(total, rel=2e-3)


def test_memory_of_every_stage_is_told(three):
    found, made = three
    rows = section(made, "Memory of one GPU, GiB at the peak").tables[0].rows
    assert [row[0] for row in rows] == ["0 *", "1", "2", "3"]
    assert [float(row[-3]) for row in rows] == pytest.approx(
        [stage.total for stage in found.answer.prediction.memory_gib.stages], abs=0.006
    )


def test_the_file_at_the_end_is_the_scenario(three):
    _, made = three
    assert load_scenario(THREE) == parse_scenario(made.sections[-1].blocks[0].text).scenario


def test_a_scenario_without_a_strategy_is_reported_as_its_best_plan():
    scenario = load_scenario(THREE).replace(strategy=None)
    best = select_best(plan(scenario))
    found = build_study(read_scenario(scenario.to_fields()))
    assert found.chosen
    assert found.answer.prediction.step_time_s == best.prediction.step_time_s
    made = build_report(found, "en")
    assert parse_scenario(made.sections[-1].blocks[0].text).scenario.strategy == best.strategy
    assert [one.text for one in section(made, "Why, and what else there is").blocks[0].remarks][
        : len(best.reasons)
    ] == [reason["message"] for reason in best.reasons]


def test_a_plan_that_is_given_has_the_reasons_of_that_plan():
    scenario = load_scenario(ROOT / "examples" / "two-zones-7b.yaml").replace(strategy=None)
    second = plan(scenario).plans[1]
    given = apply_plan(scenario, second)
    free = scenario.replace(job=given.job)
    reasons = next(
        p.reasons for p in plan(free).plans if (p.strategy, p.placement) == (given.strategy, given.placement)
    )
    assert build_study(read_scenario(given.to_fields())).reasons == reasons


def test_tensor_parallelism_across_nodes_is_not_praised():
    fields = load_scenario(THREE).to_fields()
    fields["strategy"] = {"tp": 16, "pp": 4, "micro_batch": 1}
    told = [reason["code"] for reason in build_study(read_scenario(fields)).reasons]
    assert "reason_tp" not in told
    assert "reason_bottleneck" in told


def test_a_report_is_written_where_no_plan_fits():
    fields = load_scenario(ROOT / "examples" / "single-node.yaml").to_fields()
    fields |= {"model": "llama-3.1-405b", "strategy": {"tp": 8}}
    made = build_report(build_study(read_scenario(fields)), "en")
    text = render_markdown(made)
    assert "does not fit" in text
    assert "## Warnings and notes" in text


def test_hostile_names_stay_text_in_markdown(hostile):
    text = render_markdown(hostile)
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    inline = [child for token in tokens for child in token.children or []]
    assert {token.type for token in [*tokens, *inline]}.isdisjoint(
        {"html_block", "html_inline", "link_open", "code_inline"}
    )
    assert [token.type for token in tokens].count("fence") == 1
    widths, here = set(), 0
    for token in tokens:
        here = 0 if token.type == "tr_open" else here + (token.type in ("td_open", "th_open"))
        if token.type == "tr_close":
            widths.add(here)
    tables = [table for one in hostile.sections for table in one.tables]
    assert widths == {len(table.headings) for table in tables}
    shown = "".join(child.content for token in tokens if token.type == "inline" for child in token.children)
    for name in HOSTILE:
        assert name in shown


def test_hostile_names_stay_text_in_html(hostile):
    text = render_html(hostile)
    page = Tags(text)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "img", "iframe", "object", "base", "form", "a"})
    assert not any(
        name.startswith("on") or "javascript" in str(value) for _, a in page.tags for name, value in a.items()
    )
    assert page.title == HOSTILE[2]
    assert HOSTILE[0] in page.cells
    assert HOSTILE[1] in page.cells
    assert not re.search(r"https?://|url\(|@import", text)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a\nb", "a b"),
        ("- a", r"\- a"),
        ("1. a", r"1\. a"),
        ("660.6", "660.6"),
        ("# a", r"\# a"),
        ("a_b _c_", r"a_b \_c\_"),
    ],
)
def test_text_is_escaped_only_where_it_would_be_markup(given, shown):
    assert escape_markdown(given) == shown


@pytest.mark.parametrize("form", ["md", "html"])
def test_a_chinese_report_is_chinese(form):
    text = render_report(read_scenario(ROOT / "examples" / "single-node.yaml"), "zh", form=form)
    assert "数字的依据" in text
    assert "What the numbers rest on" not in text
    assert ('lang="zh-CN"' in text) == (form == "html")
