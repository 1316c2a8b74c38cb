"""Calibrate in a real browser: a log becomes the default profile, a trace a result; mistakes stand beside the file."""

import json
import re
import urllib.request

import pytest

from crosszone.web.calibrate_examples import BENCHMARK, COLLECTIVES, SAMPLES
from crosszone.web.scenarios import find_examples_folder

pytestmark = pytest.mark.browser
expect = pytest.importorskip("playwright.sync_api").expect
EXAMPLE = "example=single-node"


def call(server, path, body=None, method=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{server}/api/v1/{path}", data, {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        read = answer.read()
        return json.loads(read) if read else None


@pytest.fixture
def clean(server):
    """No own profiles and no saved results, before and after."""

    def sweep():
        for row in call(server, "calibrate/profiles")["own"]:
            call(server, f"calibrate/profiles/{row['name']}", method="DELETE")
        for row in call(server, "results?limit=500")["rows"]:
            call(server, f"results/{row['id']}", method="DELETE")

    sweep()
    yield
    sweep()


def text(name, content):
    return {"name": name, "mimeType": "text/plain", "buffer": content.encode()}


def log_of(seconds, batch):
    return "".join(
        f" iteration {step:8d}/ 1000 | elapsed time per iteration (ms): {1e3 * seconds:.1f} | "
        f"global batch size: {batch} | lm loss: 5.0 |\n"
        for step in range(1, 13)
    )


def shown_step(page):
    """Seconds of the step that the panel says the plan has."""
    line = page.locator(".calibrate-scenario")
    expect(line).to_contain_text("predicted at")
    expect(line).to_have_attribute("aria-busy", "false")  # the best plan is found
    return float(re.search(r"at ([\d.,]+) s", line.inner_text())[1].replace(",", ""))


def test_a_log_becomes_the_profile_that_predictions_use(open_page, server, clean):
    page = open_page(f"/?place=calibrate&tab=learn&{EXAMPLE}")
    step = shown_step(page)
    batch = int(re.search(r"global_batch: (\d+)", (find_examples_folder() / "single-node.yaml").read_text("utf-8"))[1])
    page.locator("#drop-log").set_input_files(text("train.log", log_of(1.06 * step, batch)))
    found = page.locator("[data-step] .tile")
    expect(found).to_have_count(3)
    assert re.search(r"-5\.\d+ %", found.nth(1).inner_text())
    page.get_by_text("The next run that would help most").wait_for()
    page.get_by_label("Name of the profile").fill("my-cluster")
    page.get_by_role("button", name="Save as profile").click()
    page.get_by_text("“my-cluster” was saved.").wait_for()
    expect(page.locator("[data-default]")).to_have_attribute("data-default", "my-cluster")
    assert call(server, "calibrate/profiles")["default"] == "my-cluster"
    page.get_by_role("button", name="Profiles").click()
    row = page.locator("[data-profile=my-cluster]")
    expect(row).to_contain_text("default")
    page.goto(f"{server}/?{EXAMPLE}")
    expect(page.locator("[data-basis=my-cluster]")).to_contain_text("Profile: my-cluster")
    page.goto(f"{server}/?place=calibrate")
    page.get_by_role("button", name="Use the shipped values").click()
    expect(page.locator("[data-default]")).to_have_attribute("data-default", "")
    page.get_by_role("button", name="Delete “my-cluster”").click()
    page.get_by_role("group", name="Delete “my-cluster” for good?").get_by_role("button", name="Delete").click()
    page.get_by_text("There is none yet").wait_for()


@pytest.mark.long
def test_a_trace_is_looked_at_iteration_by_iteration_and_kept(open_page, server, clean):
    page = open_page(f"/?place=calibrate&tab=learn&kind=trace&{EXAMPLE}")
    shown_step(page)
    slower = BENCHMARK + BENCHMARK.split("\n", 9)[-1].replace("0.23", "0.33")
    page.locator("#drop-trace").set_input_files(text("benchmark.csv", slower))
    expect(page.locator("[data-phase=all_reduce] td")).to_have_text("230 ms")
    page.get_by_role("button", name="Last", exact=True).click()
    expect(page.locator("[data-phase=all_reduce] td")).to_have_text("330 ms")
    page.locator("#timeline-difference").wait_for()
    page.locator("[data-chart=imported] canvas").wait_for()
    page.get_by_label("Name of the result").fill("traced")
    page.get_by_role("button", name="Save as result").click()
    page.get_by_role("link", name="Compare it").click()
    page.locator("[data-place=compare] [data-result]").wait_for()
    (row,) = call(server, "results")["rows"]
    assert (row["name"], row["kind"]) == ("traced", "measured")
    page.goto(f"{server}/?place=calibrate&tab=accuracy")
    expect(page.locator(f"[data-run='{row['id']}']")).to_contain_text("traced")


@pytest.mark.long
def test_what_is_wrong_stands_beside_the_file_and_nothing_is_kept(open_page, server, clean):
    page = open_page(f"/?place=calibrate&tab=learn&kind=trace&{EXAMPLE}")
    page.locator("#drop-trace").set_input_files(text("benchmark.csv", "iteration start,1\nwarmup start,-5\n"))
    alert = page.locator("#drop-trace-wrong [role=alert]")
    expect(alert).to_contain_text("benchmark.csv")
    expect(page.locator("#drop-trace")).to_have_attribute("aria-invalid", "true")
    page.get_by_role("button", name="Kernel samples").click()
    page.locator("#drop-samples").set_input_files(text("mine.csv", SAMPLES.replace(",matmul,", ",mystery,")))
    expect(page.locator("#drop-samples-wrong [role=alert]")).to_contain_text("mystery")
    assert call(server, "results")["total"] == 0
    assert call(server, "calibrate/profiles")["own"] == []


@pytest.mark.long
def test_samples_and_collectives_are_told(open_page):
    page = open_page(f"/?place=calibrate&tab=learn&kind=samples&{EXAMPLE}")
    page.locator("#drop-samples").set_input_files(text("samples.csv", SAMPLES))
    expect(page.locator("[data-error='matmul bf16 fwd'] td").first).to_have_text("18")
    page.get_by_role("button", name="Collective samples").click()
    shown_step(page)
    page.locator("#drop-collectives").set_input_files(text("collectives.csv", COLLECTIVES))
    expect(page.locator("[data-op=all_reduce]")).to_contain_text("12 µs")
    page.get_by_role("button", name="Put these links into the scenario").click()
    page.locator("[data-place=plan]").wait_for()
    expect(page).to_have_url(re.compile("#"))


@pytest.mark.long
def test_the_example_sheet_is_downloaded(open_page):
    page = open_page(f"/?place=calibrate&tab=learn&kind=sheet&{EXAMPLE}")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download an example").click()
    assert download.value.suggested_filename.endswith(".xlsx")


@pytest.mark.long
def test_predicted_and_measured_timelines_share_one_axis(open_page, server, clean):
    scenario = "model: llama-2-7b\njob: {seq_len: 4096, global_batch: 64}\nstrategy: {tp: 2, pp: 2}\n"
    scenario += "cluster: {zones: [{name: here, nodes: [{count: 1, gpus: 8, gpu: a100-80gb-sxm}]}]}\n"
    made = [
        call(server, "results", {"name": "predicted", "text": scenario}),
        call(server, "calibrate/results", {"name": "traced", "content": BENCHMARK}),
        call(server, "results", {"name": "bare", "kind": "sheet", "figures": {"step_time_s": 5}}),
    ]
    page = open_page(f"/?place=compare&results={','.join(one['id'] for one in made)}")
    card = page.locator("[aria-labelledby=compare-timelines]")
    expect(card.get_by_role("img")).to_have_attribute("aria-label", re.compile("predicted, traced"))
    expect(card).to_contain_text("Without a timeline: bare.")
    card.locator("summary").click()
    expect(card.locator("tbody tr")).to_have_count(2)
    expect(page.locator("tbody[data-group=phases] [data-figure=tail] td").nth(1)).to_contain_text("%")


@pytest.mark.long
def test_percentages_have_one_digit_and_moments_are_written_as_elsewhere(open_page, server, clean):
    profile = {
        "source": "one log", "created": "2026-11-16T12:34:56Z",
        "stacks": {"megatron-core": {"matmul": {"value": 0.8, "error": 0.02, "origin": "measured"}}},
        "scores": {"error_before_pct": -4.7857, "step_measured_s": 18.6853, "steps_used": 7},
    }  # fmt: skip
    call(server, "calibrate/profiles", {"name": "mine", "profile": profile})
    page = open_page("/?place=calibrate")
    row = page.locator("[data-profile=mine]")
    expect(row.locator("time")).to_have_text(re.compile(r"^Nov 16, 2026, \d+:\d\d [AP]M$"))
    expect(row.get_by_role("button", name="Make default: “mine”")).to_have_text("Make default")
    row.get_by_role("button", name="What it found").click()
    told = page.locator(".calibrate-told .facts")
    expect(told).to_contain_text("Error before")
    expect(told).to_contain_text("-4.8 %")
    expect(told).to_contain_text("18.69 s")
    page.locator("#calibrate-shipped").wait_for()
    shown = page.locator("[data-place=calibrate]").inner_text()
    percents = re.findall(r"([\d.,]+) %", shown)
    assert len(percents) > 20
    assert [one for one in percents if not re.fullmatch(r"[\d,]+\.\d", one)] == []
    assert not re.search(r"\d{4}-\d\d-\d\dT", shown)
    assert "0 of 0" not in shown


@pytest.mark.long
def test_a_run_without_a_prediction_stands_among_your_runs(open_page, server, clean):
    made = call(server, "calibrate/results", {"name": "alone", "content": BENCHMARK})
    page = open_page("/?place=calibrate&tab=accuracy")
    expect(page.locator(f"[data-run='{made['id']}']")).to_contain_text("saved without a prediction")


@pytest.mark.long
def test_jobs_that_are_called_alike_are_told_apart(open_page):
    page = open_page("/?place=calibrate")
    jobs = [{"id": id, "cluster": "c", "name": name} for id, name in (("1", "a"), ("2", "a"), ("3", "b"))]
    names = "async ([jobs, narrow]) => (await import('/calibrate/words.js')).jobNames(jobs, narrow)"
    assert page.evaluate(names, [jobs, False]) == ["c · a #1", "c · a #2", "c · b"]
    assert page.evaluate(names, [jobs, True]) == ["c #1\na", "c #2\na", "c\nb"]


@pytest.mark.long
def test_lanes_of_imported_runs_are_named_in_the_language_of_the_page(open_page):
    page = open_page("/?place=calibrate&lang=zh")
    named = "async ([lane, narrow]) => (await import('/charts/lane-name.js')).laneName(lane, (key, more) => key + JSON.stringify(more ?? ''), narrow)"
    last, second = {"id": "stage-last", "name": "last stage"}, {"id": "stage-1", "name": "stage 1 (a)"}
    assert page.evaluate(named, [last, False]) == 'timeline.lane.last""'
    assert page.evaluate(named, [second, False]) == "stage 1 (a)"
    assert page.evaluate(named, [second, True]) == 'timeline.lane.stage_number{"number":"1"}'
    cut = "async ([name, most]) => (await import('/charts/lane-name.js')).cut(name, most)"
    assert page.evaluate(cut, ["benchmark alone", 11]) == "bench…alone"
    assert page.evaluate(cut, ["short", 11]) == "short"


@pytest.mark.long
def test_the_strategy_that_the_scenario_writes_can_be_taken_for_a_log(open_page):
    page = open_page(f"/?place=calibrate&tab=learn&{EXAMPLE}")
    shown_step(page)
    expect(page.locator("[data-way='1']")).to_be_visible()
    page.get_by_role("button", name="Take the strategy that the scenario writes").click()
    expect(page.locator("[data-way=given]")).to_have_text("The strategy is the one that the scenario writes.")
    assert "plan=given" in page.url


@pytest.mark.long
def test_a_fit_tells_how_far_it_is_and_can_be_stopped(open_page):
    page = open_page(f"/?place=calibrate&tab=learn&kind=samples&{EXAMPLE}")
    page.route("**/api/v1/calibrate/samples*", lambda route: None)  # never answered
    page.locator("#drop-samples").set_input_files(text("samples.csv", SAMPLES))
    panel = page.locator(".calibrate-drop")
    expect(panel.get_by_role("status")).to_contain_text("Reading")
    panel.get_by_role("button", name="Cancel").click()
    expect(panel).to_contain_text("Stopped.")
    page.unroute("**/api/v1/calibrate/samples*")
    panel.get_by_role("button", name="Read it again").click()
    expect(page.locator("[data-error='matmul bf16 fwd'] td").first).to_have_text("18")
