"""What the page asks as its scenario changes: parts share a request, two are on their way at most, the newest wins."""

import pytest

from page_requests import SETTLED_REQUESTS, WATCH_REQUESTS

pytestmark = pytest.mark.browser

# A stand-in for the network: each request lists its parts, and says a line or ends when the test wants it to.
NETWORK = """
  const requests = [];
  const flying = () => requests.filter((one) => !one.over).length;
  let most = 0;
  window.fetch = async (address, { body, signal }) => {
    const { readable, writable } = new TransformStream();
    const writer = writable.getWriter();
    const bytes = new TextEncoder();
    const request = {
      ...JSON.parse(body), over: false,
      say: (part, answer) => writer.write(bytes.encode(JSON.stringify({ part, answer }) + "\\n")).then(pause),
      end: () => { request.over = true; return writer.close().then(pause); },
    };
    signal?.addEventListener("abort", () => { request.over = request.ended = true; writer.abort(signal.reason); });
    requests.push(request);
    most = Math.max(most, flying());
    return new Response(readable);
  };
  const pause = () => new Promise((done) => setTimeout(done, 30));
"""
SHARED = """async () => {
  const { askPart } = await import("/lib/requests.js");
  const said = [];
  const scenario = { name: "one" }, way = { strategy: { tp: 2 } };
  const ask = (part, question) => askPart(part, question, "en").then((answer) => said.push([part, answer]), (error) => said.push([part, error.notices]));
  ask("predict", { scenario, way });
  ask("describe", { scenario });
  ask("predict", { scenario, way: { ...way } });
  ask("explain", { scenario, way, options: { figure: "mfu" } });
  ask("explain", { scenario, way, options: { figure: "run.usd" } });
  await pause();
  const sent = requests.map(({ parts, options, way }) => ({ parts, options, way }));
  await requests[0].say("predict", 1);
  await requests[0].say("describe", 2);
  await requests[0].end();
  await requests[1].say("explain", 3);
  await requests[1].end();
  return { sent, said };
}"""
NEWEST = """async () => {
  const { askPart, runAlone } = await import("/lib/requests.js");
  const said = [];
  let stop = new AbortController();
  const change = async (name, alone = false) => {
    stop.abort();
    stop = new AbortController();
    const { signal } = stop;
    const note = (answer) => said.push([name, answer]);
    const question = { scenario: { name } };
    const asking = ["predict", "rating"].map((part) => askPart(part, question, "en", signal).then(note));
    if (alone) asking.push(runAlone(() => fetch("", { body: JSON.stringify({ scenario: { name }, parts: ["search"] }), signal }), signal).then(() => note("searched")));
    for (const one of asking) one.catch(() => {});
    await pause();
  };
  await change("first");
  await change("second");
  await change("third");   // waits: two are on their way
  await change("fourth", true);   // takes its place
  const before = requests.map(({ scenario }) => scenario.name);
  await requests[0].say("predict", "late");   // one answer while the slider moves; then nobody waits for the rest of it
  const { ended } = requests[0];
  await requests[1].say("predict", "later");
  await requests.find(({ scenario, parts }) => scenario.name === "fourth" && parts[0] === "predict").say("predict", "newest");
  await pause();
  return { before, after: requests.map(({ scenario, parts }) => `${scenario.name} ${parts}`), ended, said, most };
}"""
SHOWN = """async () => {
  const { html, render } = await import("/lib/dom.js");
  const { useAsked } = await import("/lib/asked.js");
  const place = document.body.appendChild(document.createElement("p"));
  const answers = {};
  const Shown = ({ question }) => {
    const { answer, busy } = useAsked(question, (asked) => new Promise((resolve) => { answers[asked] = resolve; }));
    return html`${answer} ${busy ? "busy" : "ready"}`;
  };
  const seen = [];
  const pause = () => new Promise((done) => setTimeout(done, 50));
  const show = async (question) => { render(html`<${Shown} question=${question} />`, place); await pause(); };
  const arrive = async (question) => { answers[question](question); await pause(); seen.push(place.textContent.trim()); };
  for (const question of ["a", "b", "c"]) await show(question);
  for (const question of ["b", "a", "c", "b"]) await arrive(question);
  return seen;
}"""
TICKS = """async (count) => {
  const slider = document.querySelector('[data-slider="gbps"]');
  flights.length = 0;
  for (let tick = 0; tick < count; tick += 1) {
    slider.value = String(Number(slider.value) + 1);
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise((done) => setTimeout(done, 16));
  }
}"""


def with_network(script):
    return f"() => {{ {NETWORK} return ({script})(); }}"


def test_parts_asked_for_in_one_tick_share_a_request(open_page):
    page = open_page("/?place=catalogue")
    page.wait_for_load_state("networkidle")
    told = page.evaluate(with_network(SHARED))
    way = {"strategy": {"tp": 2}}
    assert told["sent"] == [
        {"parts": ["predict", "describe", "explain"], "options": {"explain": {"figure": "mfu"}}, "way": way},
        {"parts": ["explain"], "options": {"explain": {"figure": "run.usd"}}, "way": way},
    ]
    # A part the server leaves out is a server that is gone; the other figure is answered by the second request.
    assert told["said"] == [["predict", 1], ["predict", 1], ["describe", 2], ["explain", []], ["explain", 3]]


def test_two_requests_are_on_their_way_and_the_newest_comes_next(open_page):
    page = open_page("/?place=catalogue")
    page.wait_for_load_state("networkidle")
    told = page.evaluate(with_network(NEWEST))
    assert told["most"] == 2
    assert told["before"] == ["first", "second"]
    assert told["after"][2] == "fourth predict,rating"
    assert "third" not in str(told["after"])
    assert told["ended"]
    assert told["said"] == [["first", "late"], ["second", "later"], ["fourth", "searched"], ["fourth", "newest"]]
    assert told["after"][3:] == ["fourth search"]


def test_a_stale_answer_never_replaces_a_newer_one(open_page):
    page = open_page("/?place=catalogue")
    page.wait_for_load_state("networkidle")
    assert page.evaluate(SHOWN) == ["b busy", "b busy", "c ready", "c ready"]


@pytest.mark.parametrize("place", ["plan", "timeline", "communication"])
def test_a_slider_tick_is_one_request_and_one_search(open_page, place):
    page = open_page(f"/?example=three-cities&place={place}")
    page.locator(".matrix button.cell").first.click()
    page.wait_for_load_state("networkidle")
    page.evaluate(WATCH_REQUESTS)
    tick(page, 1)  # the first change of a text may find fields that were not there before
    names, most = tick(page, 1)
    assert sorted(names) == ["answers", "plan"]
    assert most <= 2
    assert tick(page, 12)[1] <= 2


def tick(page, count):
    """Move the slider, and wait until nothing is asked any more: what was, and how much at a time."""
    page.evaluate(TICKS, count)
    return page.evaluate(SETTLED_REQUESTS)
