"""The timeline and the rank grid in a real browser: lanes drawn, zoomed, opened, compared and kept."""

import json
import re
from urllib.parse import parse_qs, urlparse

import pytest

pytestmark = pytest.mark.browser

HOME = "/?place=timeline&example=three-cities&plan=given"
LEFT, RIGHT, TOP, ROW = 242, 56, 54, 22
"""Pixels of the chart beside, above and of its rows, as charts/gantt.js sets them."""


def drawn(open_page, path=HOME, **more):
    page = open_page(path, **more)
    page.locator('[data-chart="timeline"] canvas').first.wait_for()
    return page


def asked(page, path, **body):
    answer = page.request.post(f"{page.url.split('/?')[0]}/api/v1/{path}", data=body)
    assert answer.ok
    return answer.json()


def expect(locator):
    from playwright.sync_api import expect as wait

    return wait(locator)


def in_address(page, key):
    return parse_qs(urlparse(page.url).query).get(key, [None])[0]


def wait_for_address(page, key, wanted):
    page.wait_for_function(
        "([key, wanted]) => new URLSearchParams(location.search).get(key) === wanted", arg=[key, wanted]
    )


def scroll_to(page, locator):
    """Scroll until something is there that is drawn only when it is seen."""
    page.locator("#main h2").first.wait_for()
    page.mouse.move(900, 500)
    for _ in range(100):
        if locator.count():
            break
        page.mouse.wheel(0, 400)
        page.wait_for_timeout(100)
    locator.first.wait_for()


def ink(page, chart="timeline"):
    """How many different colours the chart shows: an empty canvas has one."""
    return page.evaluate(
        """(chart) => {
          const canvas = document.querySelector(`[data-chart="${chart}"] canvas`);
          const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
          const seen = new Set();
          for (let at = 0; at < data.length; at += 4 * 7) seen.add((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]);
          return seen.size;
        }""",
        chart,
    )


@pytest.mark.long
def test_a_step_is_drawn_with_its_sums(open_page, three_cities):
    page = drawn(open_page)
    found = asked(page, "timeline", text=three_cities)
    assert f"{found['step_s']:.1f} s" in page.locator('[data-tile="step"]').inner_text()
    assert page.locator("#timeline-totals").is_visible()
    foot = page.locator("section", has=page.locator("#timeline-totals")).locator("tfoot").inner_text()
    assert f"{found['step_s']:.1f} s" in foot
    assert "100.00%" in foot
    assert page.locator("tr[data-phase]").count() == 4
    page.locator('[data-chart="timeline"] summary').click()
    rows = page.locator('[data-chart="timeline"] tbody tr')
    assert rows.count() == len(found["lanes"])
    assert ink(page) > 10


@pytest.mark.long
def test_buttons_zoom_and_the_address_keeps_it(open_page, three_cities):
    page = drawn(open_page)
    step = asked(page, "timeline", text=three_cities)["step_s"]
    page.get_by_role("button", name="Zoom in").first.click()
    page.wait_for_function("() => new URLSearchParams(location.search).get('zoom')")
    start, end = (float(part) for part in in_address(page, "zoom").split("-"))
    assert (start, end) == pytest.approx((step / 4, 3 * step / 4), rel=0.01)
    page.get_by_role("button", name="Fit").first.click()
    wait_for_address(page, "zoom", None)
    page.locator('tr[data-phase="warm_up"] th button').click()
    page.wait_for_function("() => (new URLSearchParams(location.search).get('zoom') ?? '').startsWith('0')")


@pytest.mark.long
def test_a_click_on_a_bar_opens_its_micro_batch(open_page, three_cities):
    page = drawn(open_page, f"{HOME}&zoom=0-12")
    found = asked(page, "timeline", text=three_cities)
    lane = next(i for i, lane in enumerate(found["lanes"]) if lane["id"] == "link-2-3")
    spans = found["spans"]
    at = next(i for i, one in enumerate(spans["lane"]) if one == lane and spans["micro_batch"][i] == 1)
    middle = (spans["start_s"][at] + spans["end_s"][at]) / 2
    box = page.locator('[data-chart="timeline"] canvas').first.bounding_box()
    page.wait_for_timeout(300)
    x = LEFT + middle / 12 * (box["width"] - LEFT - RIGHT)
    page.mouse.click(box["x"] + x, box["y"] + TOP + ROW * (lane + 1.5))
    wait_for_address(page, "micro", "1")
    one = asked(page, "timeline", text=three_cities, micro_batch=1)["micro_batch"]
    expect(page.locator('[data-figure="usage"]')).to_have_text(f"{100 * one['usage']:.2f}%")
    usages = page.locator('[data-figure="stage-usage"]').all_inner_texts()
    assert usages == [f"{100 * stage['usage']:.2f}%" for stage in one["stages"]]
    page.get_by_role("button", name="Next micro-batch").click()
    expect(page.locator("#timeline-micro-batch")).to_have_text("Micro-batch 2")
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#timeline-micro-batch")).to_have_count(0)


def test_a_measured_trace_stands_beside_the_prediction(open_page, three_cities, tmp_path):
    page = drawn(open_page)
    found = asked(page, "timeline/trace", text=three_cities, format="crosszone")
    length = found["steps"][0]["end_s"]
    slower = [
        {**span, "start_s": start + factor * span["start_s"], "end_s": start + factor * span["end_s"]}
        for start, factor in ((0, 1.25), (1.25 * length, 2.0))
        for span in found["spans"]
        if span["lane"].startswith("stage")
    ]
    steps = [{"step": 7, "start_s": 0, "end_s": 1.25 * length}, {"step": 8, "start_s": 1.25 * length, "end_s": 3.25 * length}]  # fmt: skip
    bad = [{"lane": "nowhere", "kind": "forward", "start_s": 0, "end_s": 1}, {"lane": "stage-0"}]
    file = tmp_path / "run.json"
    file.write_text(json.dumps({**found, "spans": [*bad, *slower], "steps": steps}), "utf-8")
    page.locator(".timeline-drop input[type=file]").set_input_files(file)
    step_row = page.locator("section", has=page.locator("#timeline-difference")).locator('tr[data-part="step"]')
    expect(step_row.locator('[data-figure="difference"]')).to_have_text("-50.0 %")
    expect(page.get_by_text("2 rows left out")).to_be_visible()
    expect(page.get_by_text("no lane has the id nowhere")).to_be_visible()
    page.get_by_role("button", name="First", exact=True).click()
    expect(step_row.locator('[data-figure="difference"]')).to_have_text("-20.0 %")
    page.get_by_role("button", name="Last", exact=True).click()
    expect(step_row.locator('[data-figure="difference"]')).to_have_text("-50.0 %")
    file.write_text("{", "utf-8")
    page.locator(".timeline-drop input[type=file]").set_input_files(file)
    expect(page.locator(".timeline-notices")).to_contain_text("not valid")
    page.get_by_role("button", name="Remove", exact=True).click()
    expect(page.locator("#timeline-difference")).to_have_count(0)


@pytest.mark.long
def test_the_step_can_be_kept_as_files(open_page):
    page = drawn(open_page)
    for name, ends in (("Perfetto", ".json"), ("Trace", ".json"), ("Spans as CSV", ".csv"), ("PNG", ".png")):
        with page.expect_download() as kept:
            page.get_by_role("button", name=name, exact=True).first.click()
        assert kept.value.suggested_filename.endswith(ends)
        text = kept.value.path().read_bytes()
        starts = {"Perfetto": b'{"traceEvents"', "Trace": b'{"version"', "Spans as CSV": b"lane,", "PNG": b"\x89PNG"}
        assert text.startswith(starts[name])


def test_kinds_and_lanes_can_be_hidden(open_page):
    page = drawn(open_page)
    swatches = page.locator(".timeline-legend .swatch").evaluate_all(
        "(swatches) => swatches.map((swatch) => getComputedStyle(swatch).backgroundColor)"
    )
    assert len(set(swatches)) == len(swatches) > 4
    tall = page.locator('[data-chart="timeline"] canvas').first.bounding_box()["height"]
    before = ink(page)
    page.get_by_role("button", name="Links", exact=True).click()
    page.wait_for_timeout(300)
    assert page.locator('[data-chart="timeline"] canvas').first.bounding_box()["height"] < tall
    for kind in ("send", "backward", "forward"):
        page.locator(".timeline-legend").get_by_role("button", name=re.compile(kind)).click()
    page.wait_for_timeout(300)
    assert ink(page) < before


@pytest.mark.long
def test_the_timeline_fits_a_narrow_page_in_chinese_and_the_dark(open_page):
    page = drawn(open_page, f"{HOME}&lang=zh&theme=dark&micro=3", width=400)
    page.locator('[data-figure="usage"]').wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("#timeline-phases").inner_text() == "阶段"


@pytest.mark.long
def test_every_rank_is_in_the_grid_and_tells_its_place(open_page, three_cities):
    page = open_page("/?place=plan&example=three-cities&plan=given")
    scroll_to(page, page.locator('[data-chart="ranks"] canvas'))
    page.get_by_label("Show rank").fill("37")
    facts = page.locator(".rank-facts")
    expect(facts).to_contain_text("t 5, p 1, d 0, c 0")
    expect(facts).to_contain_text("beijing-a")
    expect(facts).to_contain_text("20-39")
    page.locator('[data-chart="ranks"] summary').click()
    assert page.locator('[data-chart="ranks"] tbody tr').count() == 128
    assert ink(page, "ranks") > 3
