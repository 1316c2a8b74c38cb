"""How quickly the page answers; `python benchmarks/page.py` measures in Chromium and updates RESULTS.md.

First paint is that of a browser with an empty cache. A step of the slider is one stop of the rate of a link: timed
inside the page from the move to the new step time (the shown plan, predicted anew) and to the end of the new search.
What it asks the server for is counted by place, for one step by itself and for a slider that is dragged.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from results import write_section

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = "/usr/bin/chromium"
LOADS, STEPS = 5, 20
MOST_FILES, MOST_AT_A_TIME = 40, 2  # Goals: files of the first load, requests on their way
PLACES = ("plan", "timeline", "communication", "deploy")
WATCH_REQUESTS = (ROOT / "benchmarks" / "page_requests.js").read_text("utf-8")
EXAMPLE = "three-cities"
CASES = {"strategy given": False, "strategy free": True}
FREE = """
async (name) => {
  const { packed } = await import("/lib/link.js");
  const text = await (await fetch(`/api/v1/examples/${name}`)).text();
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch("/api/v1/scenarios/describe", { method: "POST", headers, body: JSON.stringify({ text }) });
  const { strategy, ...fields } = (await answer.json()).fields;
  location.hash = await packed({ name: "file:free.yaml", fields });
}
"""
STEP = """
(number) => new Promise((done) => {
  const slider = document.querySelector('[data-slider="gbps"]');
  const place = document.querySelector('[data-place="plan"]');
  const shown = () => document.querySelector('[data-figure="step"] data')?.value;
  const before = shown();
  const start = performance.now();
  let answered = null;
  let asked = false;
  const look = () => {
    const waiting = place.classList.contains("stale") || place.ariaBusy === "true";
    asked ||= waiting;
    if (answered === null && shown() !== before) answered = performance.now() - start;
    if (!asked || waiting) return;
    watcher.disconnect();
    const ended = performance.now() - start;
    done([answered ?? ended, ended]);
  };
  const watcher = new MutationObserver(look);
  watcher.observe(place, { subtree: true, childList: true, characterData: true, attributes: true });
  slider.value = String(number);
  slider.dispatchEvent(new Event("input", { bubbles: true }));
})
"""
DRAG = """
async (steps) => {
  const slider = document.querySelector('[data-slider="gbps"]');
  flights.length = 0;
  for (let step = 0; step < steps; step += 1) {
    slider.value = String(Number(slider.value) + 1);
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise((done) => setTimeout(done, 16));
  }
  return settledRequests();
}
"""
LOADED = """
() => {
  const entries = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  const isScript = ({ name }) => new URL(name).pathname.endsWith(".js");
  const files = entries.filter(({ name }) => !name.includes("/api/"));
  const bytes = entries.reduce((sum, { transferSize }) => sum + transferSize, 0);
  return [files.length, entries.filter(isScript).length, entries.length, bytes];
}
"""
PAINT = """
() => Object.fromEntries(performance.getEntriesByType("paint").map(({ name, startTime }) => [name, startTime]))
"""


@contextmanager
def serve() -> Iterator[str]:
    """The address of a server of its own."""
    with socket.socket() as probe, tempfile.TemporaryDirectory() as home:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        command = [sys.executable, "-m", "crosszone", "serve", "--port", str(port)]
        environment = {**os.environ, "CROSSZONE_HOME": home, "CROSSZONE_LANG": "en"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=ROOT)
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.communicate(timeout=10)


def measure_load(browser: Any, address: str) -> tuple[float, float]:
    """Milliseconds to the first content and to the first step time."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    page = context.new_page()
    start = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.locator('[data-figure="step"] data').wait_for()
    answered = 1000 * (time.perf_counter() - start)
    paint: float = page.evaluate(PAINT)["first-contentful-paint"]
    context.close()
    return paint, answered


def measure_slider(browser: Any, address: str, free: bool) -> tuple[list[float], list[float]]:
    """Milliseconds from each move of the slider to the new step time and to the end of the new search."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    page = context.new_page()
    answered = page.locator('[data-place="plan"]:not(.stale)[aria-busy="false"] [data-figure="step"] data')
    page.goto(f"{address}/?example={EXAMPLE}")
    answered.wait_for()
    if free:
        page.evaluate(FREE, EXAMPLE)
        page.locator('tr[data-plan="given"]').wait_for(state="detached")
        answered.wait_for()
    page.locator(".matrix button.cell").first.click()
    slider = page.locator('[data-slider="gbps"]')
    slider.wait_for()
    at = int(slider.evaluate("(element) => element.value"))
    for number in (at - 2, at - 1):  # the first moves warm up the search
        page.evaluate(STEP, number)
    timings = [page.evaluate(STEP, at + 1 + number) for number in range(STEPS)]
    context.close()
    return [answer_ms for answer_ms, _ in timings], [search_ms for _, search_ms in timings]


def measure_first_load(browser: Any, address: str) -> tuple[int, int, int, int]:
    """Files of the page, scripts among them, all requests, and bytes on the wire, until plans are shown."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    page = context.new_page()
    page.goto(address)
    page.locator('[data-place="plan"]:not(.stale)[aria-busy="false"] [data-figure="step"] data').wait_for()
    page.wait_for_load_state("networkidle")
    files, scripts, requests, size = page.evaluate(LOADED)
    context.close()
    return files, scripts, requests, size


def count_requests(browser: Any, address: str, place: str) -> tuple[list[str], int, int]:
    """What one step of the slider asks for, and the most requests at a time: of one step, and of a drag."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    page = context.new_page()
    page.goto(f"{address}/?example={EXAMPLE}&place={place}")
    page.locator(".matrix button.cell").first.click()
    page.wait_for_load_state("networkidle")
    page.evaluate(WATCH_REQUESTS)
    page.evaluate(DRAG, 1)  # the first move turns a text into fields
    paths, at_a_time = page.evaluate(DRAG, 1)
    _, dragged = page.evaluate(DRAG, STEPS)
    context.close()
    return paths, at_a_time, dragged


def write_load_table(browser: Any, address: str) -> list[str]:
    """The first load as it is served, and from the source files one by one."""
    lines = ["| first load | files | scripts among them | all requests | KB on the wire |", "|---|---|---|---|---|"]
    for name, query in (("as served", ""), ("from the source files, `?debug=1`", "/?debug=1")):
        files, scripts, requests, size = measure_first_load(browser, address + query)
        lines.append(f"| {name} | {files} | {scripts} | {requests} | {size / 1000:.0f} |")
        if not query and files >= MOST_FILES:
            raise SystemExit(f"the first load takes {files} files; {MOST_FILES} is the goal")
    return lines


def write_requests_table(browser: Any, address: str) -> list[str]:
    """What a step of the slider asks for, by place."""
    lines = ["| place | requests of one step | at a time | at a time, dragged | which |", "|---|---|---|---|---|"]
    for place in PLACES:
        paths, at_a_time, dragged = count_requests(browser, address, place)
        which = ", ".join(f"`/{path}`" for path in paths)
        lines.append(f"| {place} | {len(paths)} | {at_a_time} | {dragged} | {which} |")
        if max(at_a_time, dragged) > MOST_AT_A_TIME:
            raise SystemExit(f"{place}: {max(at_a_time, dragged)} requests at a time; {MOST_AT_A_TIME} is the goal")
    return lines


def main() -> None:
    """Measure all of it and put the table into RESULTS.md."""
    from playwright.sync_api import sync_playwright

    load = os.getloadavg()[0]
    rows = []
    with serve() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        paints, answers = zip(*(measure_load(browser, address) for _ in range(LOADS)), strict=True)
        rows.append(("page opened: first content", statistics.median(paints), max(paints)))
        rows.append(("page opened: step time shown", statistics.median(answers), max(answers)))
        for name, free in CASES.items():
            predicted, planned = measure_slider(browser, address, free)
            rows.append((f"slider to new step time, {name}", statistics.median(predicted), max(predicted)))
            rows.append((f"slider to new plans, {name}", statistics.median(planned), max(planned)))
        tables = [write_load_table(browser, address), write_requests_table(browser, address)]
        browser.close()
    busy = " (above 1, other work slowed this down)" if load > 1 else ""
    head = (
        f"`python benchmarks/page.py`, {os.cpu_count()} cores, Chromium, {LOADS} loads and {STEPS} steps of a slider.\n"
    )
    head += f"Load average at the start: {load:.1f}{busy}."
    lines = ["| what | median ms | longest ms |", "|---|---|---|"]
    lines += [f"| {what} | {median:.0f} | {longest:.0f} |" for what, median, longest in rows]
    write_section("Page", "\n\n".join([head, *("\n".join(table) for table in (lines, *tables))]))


if __name__ == "__main__":
    main()
