"""The plan place in a real browser: its numbers are the API's and the command line's, and they follow every change."""

import base64
import json
import re
import urllib.request
import zlib

import pytest

from commands import call
from crosszone.inputs.document import parse_document
from crosszone.web.scenarios import find_examples_folder

pytestmark = pytest.mark.browser

ANSWERED = '[data-place="plan"]:not(.stale)[aria-busy="false"]'
TILES = {
    "step": ("step_time_s",), "tokens": ("tokens_per_s",), "mfu": ("mfu",), "days": ("run", "days"), "usd": ("run", "usd"),
    "energy": ("run", "kwh"), "memory": ("memory_gib", "peak"),
}  # fmt: skip
FREE = """
name: one node
model: llama-2-7b
job: {seq_len: 4096, global_batch: 64, tokens: 1.0e+9}
cluster: {zones: [{name: here, region: eu-central-1, nodes: [{count: 1, gpus: 8, gpu: a100-80gb-sxm, nic_gbps: 200}]}]}
"""


def example(name):
    return (find_examples_folder() / f"{name}.yaml").read_text("utf-8")


def asked(server, path, **body):
    """The answer of the server the page talks to."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server}/api/v1/{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def linked(fields):
    """What follows the # of an address that carries a scenario."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(json.dumps({"name": "file:given.yaml", "fields": fields}).encode()) + packer.flush()
    return "#s=" + base64.urlsafe_b64encode(packed).decode().rstrip("=")


def unlinked(address):
    packed = re.search(r"#s=([\w-]+)", address)[1]
    return json.loads(zlib.decompress(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), -15))["fields"]


def fields_of(text):
    return parse_document(text, "text").value


def answered(page):
    page.locator(f"{ANSWERED} [data-strip]").wait_for()
    page.wait_for_timeout(300)  # nothing more may follow
    page.locator(f"{ANSWERED} [data-strip]").wait_for()


def values(page, selector):
    return [
        float(value) for value in page.locator(f"{selector} data").evaluate_all("all => all.map((one) => one.value)")
    ]


def tile(page, key):
    return values(page, f'[data-figure="{key}"]')[0]


def expected(prediction, path):
    for step in path:
        prediction = prediction[step]
    return prediction["expected"]


def way_of(plan):
    return {key: plan[key] for key in ("framework", "strategy", "placement")}


def test_page_api_and_command_line_give_the_same_numbers(open_page, server, tmp_path):
    page = open_page("/")
    answered(page)
    best = asked(server, "plan", text=example("three-cities"), top=6)["plans"][0]
    for key, path in TILES.items():
        assert tile(page, key) == expected(best["prediction"], path), key
    file = tmp_path / "three-cities.yaml"
    file.write_text(example("three-cities"), "utf-8")
    said = json.loads(call("plan", file, "--json", CROSSZONE_HOME=str(tmp_path)).stdout)
    for key, path in TILES.items():
        assert tile(page, key) == expected(said["plans"][0]["prediction"], path), key
    page.locator(".minor button").click()  # the parts under 0.1 %
    parts = dict(zip(
        page.locator("tr[data-part]").evaluate_all("all => all.map((one) => one.dataset.part)"), values(page, "tr[data-part]"), strict=True
    ))  # fmt: skip
    told = best["prediction"]["breakdown_s"]
    assert parts == {name: value for name, value in told.items() if value > 1e-9 * sum(told.values())}
    assert open_page.errors == []


def test_the_nearest_measured_runs_are_those_of_the_shown_plan(open_page, server):
    page = open_page("/?example=single-node")
    answered(page)
    best = asked(server, "plan", text=example("single-node"), top=6)["plans"][0]["prediction"]
    rows = page.locator("section:has(> .card-head #nearest) tr[data-run]")
    assert rows.evaluate_all("all => all.map((row) => row.dataset.run)") == [run["id"] for run in best["nearest_runs"]]
    for row, run in zip(rows.all(), best["nearest_runs"], strict=True):
        assert run["model"] in row.inner_text()
        assert f"{run['error_pct']:+.1f}" in row.inner_text()
    assert page.locator(f'[data-best="{best["best_utilisation"]["id"]}"]').count() == 1
    assert open_page.errors == []


def test_a_switch_of_the_software_is_set_where_its_effect_is_shown(open_page, server):
    page = open_page("/?example=single-node&plan=given")
    answered(page)
    told = asked(server, "predict", text=example("single-node"))["basis"]["assumptions"]
    rows = page.locator("section:has(> .card-head #software) [data-assumption]")
    assert rows.evaluate_all("all => all.map((row) => row.dataset.assumption)") == [one["field"] for one in told]
    launch = next(one for one in told if one["field"] == "job.software.launch")
    other = launch["alternatives"][0]
    row = page.locator(f'[data-assumption="{launch["field"]}"]')
    assert row.get_attribute("data-origin") == "assumed"
    row.locator("select").select_option(other["value"])
    page.locator(f'[data-assumption="{launch["field"]}"][data-origin="stated"]').wait_for()
    answered(page)
    assert tile(page, "step") == pytest.approx(other["step_time_s"], rel=1e-3)
    row.locator("select").select_option("")
    page.locator(f'[data-assumption="{launch["field"]}"][data-origin="assumed"]').wait_for()
    assert open_page.errors == []


@pytest.mark.long
def test_the_bytes_of_each_link_are_the_predictors(open_page, server):
    page = open_page("/")
    answered(page)
    best = asked(server, "plan", text=example("three-cities"), top=1)["plans"][0]
    sums = {}
    for row in best["prediction"]["communication"]:
        if " > " in row["link"]:
            sums[row["link"]] = sums.get(row["link"], 0) + row["bytes_per_step"]
    assert sums
    for link, size in sums.items():
        assert values(page, f'tr[data-link="{link}"]')[0] == size
    unused = page.locator('tr[data-link="beijing-a – shenzhen-c"]')
    assert "not used" in unused.inner_text()


@pytest.mark.long
def test_both_languages_show_identical_numbers(open_page):
    found = {}
    for language in ("en", "zh"):
        page = open_page(f"/?lang={language}")
        answered(page)
        found[language] = (
            values(page, "[data-strip]"),
            values(page, "tr[data-part]"),
            values(page, "tr[data-plan]"),
            values(page, "tr[data-link]"),
        )
    assert found["en"] == found["zh"]
    assert len(found["en"][0]) == len(TILES)


def test_a_slider_changes_the_numbers_and_lights_them_up(open_page, server):
    page = open_page("/")
    answered(page)
    before = tile(page, "step")
    raw = page.locator('[data-figure="step"] data').get_attribute("value")
    page.locator(".matrix button.cell").nth(1).click()  # Beijing to Shenzhen, then over to the slowest link
    page.locator(".matrix button.cell").nth(3).click()
    page.locator('[data-slider="gbps"]').press("ArrowRight")
    page.locator(f'[data-figure="step"] data:not([value="{raw}"])').wait_for()
    assert page.locator('[data-figure="step"] data.changed').count() == 1
    page.wait_for_url(re.compile("#s="))
    answered(page)
    best = asked(server, "plan", scenario=unlinked(page.url), top=6)["plans"][0]
    assert tile(page, "step") == expected(best["prediction"], TILES["step"]) != before


@pytest.mark.long
def test_choosing_a_plan_shows_it_and_the_address_keeps_it(open_page, server):
    plans = asked(server, "plan", text=example("three-cities"), top=6)["plans"]
    page = open_page("/")
    answered(page)
    page.locator('tr[data-plan="2"] button').click()
    page.locator('.plan-heading[data-shown="2"]').wait_for()
    answered(page)
    assert tile(page, "step") == expected(plans[1]["prediction"], TILES["step"])
    assert "plan=2" in page.url
    page.reload()
    page.locator('.plan-heading[data-shown="2"]').wait_for()
    answered(page)
    assert tile(page, "step") == expected(plans[1]["prediction"], TILES["step"])
    page.locator('tr[data-plan="given"] button').click()
    page.locator('.plan-heading[data-shown="given"]').wait_for()
    answered(page)
    given = asked(server, "predict", text=example("three-cities"))
    assert tile(page, "step") == expected(given, TILES["step"])


@pytest.mark.long
def test_a_layer_moved_by_hand_is_predicted_at_once(open_page, server):
    plan = asked(server, "plan", text=example("three-cities"), top=1)["plans"][0]
    layers = plan["strategy"]["layers_per_stage"]
    moved = [layers[0] - 1, layers[1] + 1, *layers[2:]]
    own = {**way_of(plan), "strategy": {**plan["strategy"], "layers_per_stage": moved}}
    page = open_page("/")
    answered(page)
    page.locator(".plan details.settings > summary").first.click()
    page.get_by_role("button", name="Give a layer of stage 0 to the next stage").click()
    page.locator('.plan-heading[data-shown="own"]').wait_for()
    answered(page)
    predicted = asked(server, "predict", text=example("three-cities"), way=own)
    assert tile(page, "step") == expected(predicted, TILES["step"])
    difference = float(page.locator("[data-difference]").get_attribute("data-difference"))
    assert difference == pytest.approx(expected(predicted, TILES["step"]) - expected(plan["prediction"], TILES["step"]))
    page.reload()  # the address keeps it
    page.locator('.plan-heading[data-shown="own"]').wait_for()
    answered(page)
    assert tile(page, "step") == expected(predicted, TILES["step"])


@pytest.mark.long
def test_the_exported_plan_is_a_scenario_with_the_plans_step(open_page, server):
    page = open_page("/" + linked(fields_of(FREE)))
    answered(page)
    page.locator(".plan details.settings > summary").first.click()
    with page.expect_download() as started:
        page.get_by_role("button", name="Export as scenario").click()
    text = started.value.path().read_text("utf-8")
    assert expected(asked(server, "predict", text=text), TILES["step"]) == tile(page, "step")


def test_where_nothing_fits_the_page_says_why_and_what_to_do(open_page, server):
    fields = fields_of(FREE.replace("llama-2-7b", "llama-3.1-405b"))
    page = open_page("/" + linked(fields))
    refusal = page.locator('[data-refusal="nothing"]')
    refusal.wait_for()
    with pytest.raises(urllib.error.HTTPError) as refused:
        asked(server, "plan", scenario=fields)
    told = json.load(refused.value)
    assert told["message"] in refusal.inner_text()
    assert told["hint"] in refusal.inner_text()
    assert page.locator("[data-strip]").count() == 0


@pytest.mark.long
def test_a_wrong_scenario_keeps_the_last_answer_and_marks_it_old(open_page):
    page = open_page("/" + linked(fields_of(FREE)))
    answered(page)
    before = tile(page, "step")
    wrong = fields_of(FREE.replace("seq_len: 4096", "seq_len: long"))
    page.evaluate("(hash) => { location.hash = hash; }", linked(wrong))
    page.locator('[data-refusal="unreadable"]').wait_for()
    assert "job.seq_len" in page.locator("[data-refusal]").inner_text()
    assert page.locator('[data-place="plan"].stale').count() == 1
    assert tile(page, "step") == before


@pytest.mark.long
def test_a_search_can_be_stopped_and_taken_up_again(open_page):
    page = open_page("/?place=catalogue")
    held, released = [], []
    page.route("**/api/v1/plan?*", lambda route: route.continue_() if released else held.append(route))
    page.goto(page.url.replace("place=catalogue", ""))
    page.get_by_role("button", name="Cancel").first.click()
    released.append(True)
    page.get_by_role("button", name="Search now").click()
    page.locator('tr[data-plan="1"]').wait_for()


@pytest.mark.long
def test_zones_and_labels_of_the_map_do_not_lie_on_each_other(open_page):
    """Ten zones, all in one city, all over the world or without a place; and one."""
    page = open_page("/")
    overlaps = """async ([places, width, height]) => {
      const { mapLayout, meets } = await import("/charts/map-layout.js");
      const dots = places.map(([lat, lon], at) => ({ name: `zone-${at}`, lat, lon, radius: 11, label: { width: 84, height: 34 } }));
      const { points, labels } = mapLayout(dots, width, height);
      const circles = points.map(({ x, y }) => ({ x, y, width: 20, height: 20 }));
      const boxes = [...circles, ...labels].map(({ x, y, width: w, height: h }) => ({ x, y, width: w - 4, height: h - 4 }));
      const inside = boxes.every(({ x, y }) => x >= 0 && x <= width && y >= 0 && y <= height);
      let found = inside ? 0 : 1000;
      boxes.forEach((box, at) => boxes.slice(at + 1).forEach((other) => (found += meets(box, other) ? 1 : 0)));
      return found;
    }"""
    city = [[39.9, 116.4]] * 10
    world = [[39, -77], [39, -77], [46, -120], [50, 8], [53, -6], [36, 140], [1, 104], [19, 73], [-34, 151], [-23, -46]]
    nowhere = [[None, None]] * 10
    for places in (city, world, nowhere, city[:1], city[:3], nowhere[:3]):
        assert page.evaluate(overlaps, [places, 930, 360]) == 0, places


@pytest.mark.long
@pytest.mark.parametrize("path", ["/", "/?lang=zh&theme=dark"])
def test_nothing_is_wider_than_a_phone(open_page, path):
    page = open_page(path, width=400)
    answered(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
