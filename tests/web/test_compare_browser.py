"""Compare in a real browser: choose, look, rename, delete, export, and find everything again after a restart."""

import csv
import io
import json
import os
import re
import subprocess
import sys
import urllib.request

import pytest

pytestmark = pytest.mark.browser
expect = pytest.importorskip("playwright.sync_api").expect

SMALL = """
name: two nodes
model: llama-2-7b
job: {seq_len: 4096, global_batch: 256, tokens: 1.0e+9}
cluster: {zones: [{name: here, region: cn-beijing, nodes: [{count: 2, gpus: 8, gpu: a100-80gb-sxm, nic_gbps_per_gpu: 200}]}]}
strategy: {tp: TP, pp: 1}
"""


def call(server, path, body=None, method=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server}/api/v1/{path}", data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        read = answer.read()
        return json.loads(read) if read else None


def empty(server):
    for row in call(server, "results?limit=500")["rows"]:
        call(server, f"results/{row['id']}", method="DELETE")


@pytest.fixture
def saved(server):
    """Two predictions and a measured run, oldest first."""
    empty(server)
    made = [
        call(server, "results", {"name": "narrow", "text": SMALL.replace("TP", "2")}),
        call(server, "results", {"name": "wide", "text": SMALL.replace("TP", "8")}),
        call(server, "results", {"name": "real", "kind": "measured", "figures": {"step_time_s": 9.5}}),
    ]
    yield made
    empty(server)


def ticks(page):
    return {
        row.locator("th").inner_text().split("\n")[0]: row.get_by_role("checkbox").is_checked()
        for row in page.locator("[data-result]").all()
    }


def test_results_are_chosen_and_compared_to_one_scale(open_page, server, saved):
    page = open_page("/?place=compare")
    page.get_by_text("Choose two or more results above").wait_for()
    page.get_by_label("Choose “narrow”").check()
    page.get_by_text("Choose one more to compare it with “narrow”").wait_for()
    page.get_by_label("Choose “wide”").check()
    page.locator("#compare-differences").wait_for()
    first, second = saved[0]["headline"], saved[1]["headline"]
    cells = page.locator("[data-figure=step_time_s] td")
    assert cells.nth(0).inner_text().startswith(f"{first['step_time_s']['value']:.4g}")
    change = second["step_time_s"]["value"] - first["step_time_s"]["value"]
    assert f"{change:+.4g}" in cells.nth(1).inner_text()
    chart = page.locator("[data-chart=results]")
    chart.locator("canvas").wait_for()
    assert "narrow, wide" in chart.get_by_role("img").get_attribute("aria-label")
    chart.locator("summary").click()
    assert chart.locator("tbody tr").count() == 2
    assert re.search(f"results={saved[0]['id']}%2C{saved[1]['id']}$", page.url)


@pytest.mark.long
def test_a_link_restores_what_was_chosen_and_how_it_was_divided(open_page, saved):
    ids = ",".join(row["id"] for row in saved)
    page = open_page(f"/?place=compare&results={ids}&tab=phases")
    page.locator("#compare-differences").wait_for()
    assert ticks(page) == {"real": True, "wide": True, "narrow": True}
    assert page.get_by_role("button", name="Phases").get_attribute("aria-pressed") == "true"
    assert (
        page.locator("#compare-bars ~ figure, [aria-labelledby=compare-bars] .compare-legend").inner_text().count("\n")
        >= 3
    )
    page.get_by_role("button", name="Parts", exact=True).click()
    page.wait_for_url(re.compile("tab=parts"))


@pytest.mark.long
def test_another_result_becomes_the_first(open_page, saved):
    page = open_page(f"/?place=compare&results={saved[0]['id']},{saved[1]['id']}")
    heads = page.locator(".compare-head")
    heads.nth(1).wait_for()
    assert heads.all_inner_texts() == ["narrow", "wide"]
    page.get_by_role("button", name="Make first").click()
    expect(heads).to_have_text(["wide", "narrow"])


@pytest.mark.long
def test_a_result_is_renamed_in_place_and_a_wrong_name_is_told_there(open_page, server, saved):
    page = open_page(f"/?place=compare&results={saved[0]['id']},{saved[1]['id']}")
    page.get_by_role("button", name="Rename “narrow”").click()
    field = page.get_by_label("New name of “narrow”")
    field.fill("   ")
    field.press("Enter")
    page.get_by_text("cannot be used as a name").wait_for()
    field.fill("两个节点")
    field.press("Enter")
    page.get_by_role("button", name="Rename “两个节点”").wait_for()
    expect(page.locator(".compare-head").first).to_have_text("两个节点")
    assert call(server, f"results/{saved[0]['id']}")["name"] == "两个节点"
    page.get_by_role("button", name="Rename “两个节点”").click()
    page.get_by_label("New name of “两个节点”").press("Escape")
    assert page.get_by_role("button", name="Rename “两个节点”").is_visible()


@pytest.mark.long
def test_nothing_is_deleted_without_a_second_thought(open_page, server, saved):
    page = open_page(f"/?place=compare&results={saved[0]['id']},{saved[1]['id']},{saved[2]['id']}")
    page.get_by_role("button", name="Delete “real”").click()
    page.get_by_role("button", name="Keep").click()
    assert len(call(server, "results")["rows"]) == 3
    page.get_by_role("button", name="Delete “real”").click()
    page.get_by_role("group", name="Delete “real” for good?").get_by_role("button", name="Delete").click()
    page.locator(f"[data-result='{saved[2]['id']}']").wait_for(state="detached")
    assert [row["name"] for row in call(server, "results")["rows"]] == ["wide", "narrow"]
    page.wait_for_url(lambda url: saved[2]["id"] not in url)
    page.get_by_role("button", name="Delete chosen").click()
    page.get_by_role("group", name="Delete 2 results for good?").get_by_role("button", name="Delete").click()
    page.get_by_text("Nothing is saved yet").wait_for()
    assert call(server, "results")["total"] == 0


@pytest.mark.long
def test_chosen_results_are_exported(open_page, saved, tmp_path):
    page = open_page(f"/?place=compare&results={saved[1]['id']},{saved[2]['id']}")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export CSV").click()
    download.value.save_as(tmp_path / "results.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "results.csv").read_text("utf-8"))))
    assert [(row["name"], row["kind"]) for row in rows] == [("wide", "predicted"), ("real", "measured")]
    with page.expect_download() as download:
        page.get_by_role("link", name="Export JSON").click()
    download.value.save_as(tmp_path / "results.json")
    assert [one["id"] for one in json.loads((tmp_path / "results.json").read_text("utf-8"))] == [
        saved[1]["id"],
        saved[2]["id"],
    ]


@pytest.mark.long
def test_an_empty_place_says_what_to_do_first(open_page, server):
    empty(server)
    page = open_page("/?place=compare")
    page.get_by_text("Save a result on the Plan page").wait_for()
    page.get_by_role("link", name="Go to the Plan page").click()
    page.locator("[data-place=plan]").wait_for()


def test_what_the_plan_page_shows_is_saved_with_the_same_numbers(open_page, server):
    empty(server)
    page = open_page("/?place=compare")
    button = page.get_by_role("button", name="Save what Plan shows now")
    expect(button).to_be_enabled()
    button.click()
    page.locator("[data-result]").wait_for()
    kept = call(server, f"results/{call(server, 'results')['rows'][0]['id']}")
    way = kept["way"]
    again = call(server, "predict", {"text": kept["scenario"], **({"way": way} if way else {})})
    assert kept["document"]["step_time_s"] == again["step_time_s"]
    empty(server)


@pytest.mark.long
def test_a_measured_run_is_added_by_hand_and_a_mistake_is_told(open_page, server, saved, tmp_path):
    trace = tmp_path / "run.csv"
    trace.write_text(
        "lane,group,kind,start_s,end_s,micro_batch\nstage-0,stages,forward,0,1,0\nstage-0,stages,backward,1,3,0\n"
    )
    page = open_page("/?place=compare")
    page.get_by_text("Add a measured run").click()
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_text("Give a step time or a trace file.").wait_for()
    form = page.locator(".compare-add form")
    form.get_by_label("Name").fill("by hand")
    form.get_by_label("Step time, s").fill("7.25")
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_text("“by hand” was saved.").wait_for()
    form.get_by_label("Name").fill("traced")
    form.get_by_label("Choose a trace file").set_input_files(trace)
    page.get_by_role("button", name="Save", exact=True).click()
    page.get_by_text("“traced” was saved.").wait_for()
    steps = {row["name"]: row["headline"]["step_time_s"]["value"] for row in call(server, "results")["rows"]}
    assert (steps["by hand"], steps["traced"]) == (7.25, 3.0)


@pytest.mark.long
def test_the_scenario_of_a_result_opens_on_the_plan_page(open_page, saved):
    page = open_page("/?place=compare")
    page.get_by_role("button", name="Open the scenario of “wide”").click()
    page.locator("[data-place=plan]").wait_for()
    expect(page).to_have_url(re.compile("plan=given"))
    assert "place=compare" not in page.url


@pytest.mark.long
def test_two_readers_in_two_languages_see_the_same_numbers(open_page, saved):
    ids = ",".join(row["id"] for row in saved)
    english = open_page(f"/?place=compare&results={ids}&lang=en")
    chinese = open_page(f"/?place=compare&results={ids}&lang=zh", width=400)
    for page in (english, chinese):
        page.locator("[data-figure=step_time_s] td").nth(2).wait_for()
    first = english.locator("[data-figure=step_time_s] td").all_inner_texts()
    assert first == chinese.locator("[data-figure=step_time_s] td").all_inner_texts()
    assert chinese.get_by_text("已保存的结果").first.is_visible()


class Served:
    """A server of its own, which can be ended and started again on the same home."""

    def __init__(self, home, port):
        self.home, self.port, self.address = home, port, f"http://127.0.0.1:{port}"

    def __enter__(self):
        environment = {**os.environ, "CROSSZONE_HOME": str(self.home), "CROSSZONE_LANG": "en"}
        command = [sys.executable, "-m", "crosszone", "serve", "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
        said = self.process.stdout.readline().decode()
        assert self.address in said, said
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate(timeout=15)


@pytest.mark.long
def test_everything_is_there_after_a_restart_of_the_server(browser, tmp_path):
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    page = context.new_page()
    try:
        with Served(tmp_path / "home", port) as server:
            for name, tp in (("before", "2"), ("after", "4")):
                call(server.address, "results", {"name": name, "text": SMALL.replace("TP", tp)})
            page.goto(f"{server.address}/?place=compare")
            page.get_by_label("Choose “before”").check()
            page.get_by_label("Choose “after”").check()
            page.locator("[data-figure=step_time_s] td").nth(1).wait_for()
            numbers = page.locator("[data-group=figures]").inner_text()
        with Served(tmp_path / "home", port):
            page.reload()
            page.locator("[data-figure=step_time_s] td").nth(1).wait_for()
            assert page.locator("[data-group=figures]").inner_text() == numbers
            assert ticks(page) == {"after": True, "before": True}
    finally:
        context.close()
