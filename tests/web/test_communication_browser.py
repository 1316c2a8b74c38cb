"""The Communication place in a real browser: each test also asserts that nothing left the host (see `open_page`)."""

import base64
import json
import re
import urllib.request
import zlib

import pytest

pytestmark = pytest.mark.browser
PLACE = "/?place=communication"
GIVEN = f"{PLACE}&example=two-zones-7b&plan=given"
"""The strategy as the file writes it: gradients of 64 GPUs cross one line of 10 Gbit/s every step."""


def expecting(locator):
    from playwright.sync_api import expect

    return expect(locator)


def linked(fields):
    """What follows the # of a link that carries a scenario."""
    packer = zlib.compressobj(wbits=-15)
    data = packer.compress(json.dumps({"name": "file:here", "fields": fields}).encode()) + packer.flush()
    return "#s=" + base64.urlsafe_b64encode(data).decode().rstrip("=")


def asked(server, path, body):
    request = urllib.request.Request(
        f"{server}/api/v1/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def example(name):
    from crosszone.web.scenarios import find_examples_folder

    return {"text": (find_examples_folder() / f"{name}.yaml").read_text("utf-8")}


def opened(open_page, path=GIVEN, **how):
    page = open_page(path, **how)
    page.locator('[data-place="communication"][data-ready="yes"]').wait_for()
    return page


def value(locator):
    """The exact number behind a figure."""
    return float(locator.get_attribute("value"))


def ready(page):
    page.locator('[data-place="communication"][data-ready="yes"]').wait_for()


@pytest.mark.long
def test_the_verdict_and_the_figures_are_those_of_the_api(open_page, server):
    found = asked(server, "analyse", {**example("two-zones-7b"), "parts": ["traffic"]})
    traffic = found["traffic"]
    page = opened(open_page)
    verdict = page.locator("[data-verdict]")
    assert verdict.get_attribute("data-verdict") == traffic["boundness"] == "communication-bound"
    share = f"{round(100 * traffic['communication_share'], 1)}%"
    expecting(verdict).to_contain_text(share)
    expecting(verdict).to_contain_text(f"{traffic['links'][0]['link']} at 10 Gbit/s")
    expecting(page.locator('[data-figure="communication_share"]')).to_have_text(share)
    efficiency = f"{round(100 * traffic['scaling']['one_zone'], 1)}%"
    expecting(page.locator('[data-figure="one_zone"]')).to_have_text(efficiency)
    rows = page.locator("[data-line]")
    assert rows.count() == len(traffic["lines"])
    line = next(one for one in traffic["lines"] if one["link"] == "beijing > shanghai")
    row = page.locator('[data-line="gradients beijing > shanghai"]')
    expecting(row.locator("td").nth(1)).to_have_text(f"{line['bytes_per_step'] / 1e9:.2f}")
    row.get_by_role("button", name=line["formula"], exact=True).click()
    expecting(page.locator("tr.worked code").first).to_contain_text(line["worked"])
    expecting(page.locator(f'tr.worked [data-formula="{line["formula"]}"]')).to_be_visible()


def test_turning_a_switch_changes_the_numbers_and_reset_takes_it_back(open_page, server):
    page = opened(open_page)
    told = asked(server, "what-if", {**example("two-zones-7b"), "switches": {"compression": "bf16"}})
    page.locator("#switch-compression").select_option("bf16")
    step = page.locator('[data-figure="what-if-step_time_s"] data')
    expecting(page.locator('[data-what-if="new"]')).to_be_visible()
    assert value(step.nth(0)) == told["before"]["step_time_s"]["expected"]
    assert value(step.nth(1)) == told["after"]["step_time_s"]["expected"] < value(step.nth(0))
    expecting(page.locator('[data-switch="compression"].switch-row code')).to_contain_text("torch.bfloat16")
    assert page.locator('[data-chart="what-if-parts"]').is_visible()
    page.get_by_role("button", name="Reset", exact=True).click()
    expecting(page.locator("[data-what-if]")).to_have_count(0)


@pytest.mark.long
def test_switches_that_cannot_be_turned_say_why_and_open_when_what_they_need_is_turned(open_page):
    page = opened(open_page)
    row = page.locator('.switch-row[data-switch="fragments"]')
    expecting(row.locator("input")).to_be_disabled()
    expecting(row).to_contain_text("local updates are off")
    page.locator("#switch-local_steps").fill("100")
    expecting(page.locator("#switch-fragments")).to_be_enabled()
    page.locator("#switch-local_steps").fill("-3")
    expecting(page.locator('.switch-row[data-switch="local_steps"] .wrong')).to_contain_text("-3")


@pytest.mark.long
def test_applying_a_suggestion_changes_the_scenario_and_the_answer_and_undo_takes_it_back(open_page):
    page = opened(open_page)
    before = page.locator('[data-figure="step"]').inner_text()
    suggestion = page.locator('.suggestion[data-switch="flows"]').first
    suggestion.get_by_role("button", name=re.compile("^Apply")).click()
    expecting(page.locator('[data-applied="yes"]')).to_contain_text("strategy.communication.flows = 4")
    ready(page)
    expecting(page.locator('[data-figure="step"]')).not_to_have_text(before)
    expecting(page.locator('.switch-row[data-switch="flows"] .pin')).to_be_visible()
    expecting(page.locator("#switch-flows")).to_have_value("4")
    page.locator(".applied").get_by_role("button", name="Undo", exact=True).click()
    expecting(page.locator('[data-figure="step"]')).to_have_text(before)
    expecting(page.locator('.switch-row[data-switch="flows"] .pin')).to_have_count(0)


@pytest.mark.long
def test_a_switch_is_applied_as_it_was_shown(open_page):
    page = opened(open_page)
    page.locator("#switch-congestion").select_option("bbr")
    expecting(page.locator('[data-what-if="new"]')).to_be_visible()
    after = value(page.locator('[data-figure="what-if-step_time_s"] data').nth(1))
    page.locator(".what-if").get_by_role("button", name="Apply", exact=True).click()
    expecting(page.locator('[data-applied="yes"]')).to_be_visible()
    expecting(page.locator('[data-figure="step"]')).to_contain_text(f"{after:.4g}")
    expecting(page.locator("[data-what-if]")).to_have_count(0)
    page.locator('.switch-row[data-switch="congestion"]').get_by_role("button", name=re.compile("^let go")).click()
    expecting(page.locator('.switch-row[data-switch="congestion"] .pin')).to_have_count(0)


def test_the_heat_map_runs_and_shows_what_the_sweep_says(open_page, server):
    page = opened(open_page, f"{PLACE}&example=two-zones-7b")
    page.locator('[data-axis="x-field"]').select_option("job.global_batch")
    ranges = {"x-low": "64", "x-high": "8192", "x-count": "4", "y-high": "80", "y-count": "3"}
    for name, typed in ranges.items():
        page.locator(f'[data-axis="{name}"]').fill(typed)
    page.get_by_label("also local updates").uncheck()
    page.get_by_role("button", name="free", exact=True).click()
    page.get_by_role("button", name=re.compile("Draw the map: 12 cells")).click()
    result = page.locator(".heat-result")
    result.wait_for()
    x, y = "job.global_batch=64:8192:log4", "cluster.links[*].rtt_ms=2:80:log3"
    told = asked(server, "sweep", {**example("two-zones-7b"), "x": x, "y": y, "free": True, "local_updates": False})
    assert told["flips"], "a large batch is worth a second zone"
    assert result.get_attribute("data-flips") == str(len(told["flips"]))
    assert result.locator(".flip-line").is_visible()
    result.get_by_text("Figures as a table").click()
    steps = [cell[cell["best"]]["step_time_s"]["expected"] for cell in told["cells"]]
    cells = result.locator("tbody tr td:nth-child(3)").all_inner_texts()
    assert [float(text.replace(",", "")) for text in cells] == pytest.approx(steps, rel=1e-3)
    assert "x=job.global_batch" in page.url
    page.get_by_role("link", name="Catalogue").click()
    page.get_by_role("link", name="Communication").click()
    expecting(result).to_be_visible()  # the last map is kept


@pytest.mark.long
def test_a_click_on_a_cell_sets_its_values(open_page):
    page = opened(open_page, f"{GIVEN}&x=cluster.links[*].gbps%3D2:8:2&y=cluster.links[*].rtt_ms%3D10:40:2")
    page.locator(".heat-result").wait_for()  # a link with axes draws its map
    place = page.locator('[data-chart="heat-map"] .chart-place')
    place.locator("canvas").first.wait_for()  # the library of charts comes when it is needed
    box = place.bounding_box()
    place.click(position={"x": 0.75 * box["width"], "y": 0.35 * box["height"]})  # waits until it no longer moves
    expecting(page.locator('[data-applied="yes"]')).to_contain_text("cluster.links[*].gbps = 8")
    expecting(page.locator('[data-applied="yes"]')).to_contain_text("cluster.links[*].rtt_ms = 40")
    ready(page)
    expecting(page.locator("[data-verdict]")).to_contain_text("8 Gbit/s")


@pytest.mark.long
def test_a_sweep_can_be_cancelled_and_the_last_map_stays(open_page):
    page = opened(open_page, f"{GIVEN}&x=cluster.links[*].gbps%3D2:8:2&y=cluster.links[*].rtt_ms%3D10:40:2")
    page.locator(".heat-result").wait_for()
    for axis in ("x", "y"):
        page.locator(f'[data-axis="{axis}-count"]').fill("24")
    page.locator("#heat").locator("xpath=../..").get_by_role("button", name=re.compile("Draw the map")).click()
    page.get_by_role("button", name="Cancel", exact=True).click()
    expecting(page.get_by_text("Cancelled.")).to_be_visible()
    assert page.locator(".heat-result").get_attribute("data-cells") == "4"


@pytest.mark.long
def test_wrong_axes_are_refused_beside_the_field(open_page):
    page = opened(open_page)
    page.locator('[data-axis="x-low"]').fill("0")
    expecting(page.locator("#heat-x-wrong")).to_contain_text("above 0")
    expecting(page.get_by_role("button", name=re.compile("Draw the map"))).to_be_disabled()
    page.locator('[data-axis="x-low"]').fill("200")
    expecting(page.locator("#heat-x-wrong")).to_contain_text("the first below the second")


@pytest.mark.long
def test_the_bill_the_rating_and_the_drill_are_told(open_page, server):
    found = asked(server, "analyse", {**example("three-cities"), "parts": ["bill", "rating"]})
    page = opened(open_page, f"{PLACE}&example=three-cities&plan=given")
    bill = page.locator("section:has(> .card-head #bill)")
    bill.locator("data").first.wait_for()
    figures = [value(one) for one in bill.locator("data").all()]
    assert figures[:3] == [found["bill"][f"usd_per_{of}"] for of in ("hour", "step", "million_tokens")]
    rating = page.locator("section:has(> .card-head #rating)")
    assert value(rating.locator("data").nth(1)) == found["rating"]["step_s"]["p95"]
    page.get_by_role("button", name="Run the drill").click()
    drill = page.locator("section:has(> .card-head #drill)")
    expecting(drill.locator("tbody tr")).to_have_count(3)
    page.get_by_role("button", name="Try changes of the cluster").click()
    marginal = page.locator("section:has(> .card-head #marginal)")
    expecting(marginal.locator("[data-verdict]").first).to_be_visible()


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "words"), [("single-node", "inside one zone"), ("two-zones-7b", "Nothing crosses zones")]
)
def test_a_way_that_crosses_no_zone_says_so(open_page, name, words):
    page = opened(open_page, f"{PLACE}&example={name}&plan=1")
    expecting(page.locator("[data-verdict]")).to_contain_text(words)
    expecting(page.locator("section:has(> .card-head #zone-traffic)")).to_contain_text("No traffic crosses zones")


@pytest.mark.long
def test_one_gpu_exchanges_nothing(open_page):
    node = {"count": 1, "gpus": 1, "gpu": "a100-80gb-sxm"}
    fields = {
        "model": "gpt-2",
        "job": {"seq_len": 1024, "global_batch": 8},
        "cluster": {"zones": [{"name": "here", "nodes": [node]}]},
        "strategy": {"tp": 1, "pp": 1},
    }
    page = opened(open_page, f"{PLACE}{linked(fields)}")
    expecting(page.locator("[data-verdict]")).to_have_text("One GPU: nothing is exchanged.")
    expecting(page.locator("section:has(> .card-head #zone-traffic)")).to_contain_text("No traffic crosses zones")
    assert page.locator('[data-axis="x-field"]').input_value() == "job.global_batch"


@pytest.mark.long
@pytest.mark.parametrize(
    ("width", "language", "theme"), [(400, "zh", "dark"), (1440, "en", "light"), (400, "en", "light")]
)
def test_the_place_fits_its_width(open_page, width, language, theme):
    page = opened(open_page, f"{GIVEN}&lang={language}&theme={theme}", width=width)
    page.locator(".suggestion").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
