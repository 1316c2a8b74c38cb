"""How quickly the page answers; `python benchmarks/page.py` measures in Chromium and updates RESULTS.md.

First paint is that of a browser with an empty cache. A step of the slider is one stop of the rate of a link: timed
inside the page from the move to the new step time (the shown plan, predicted anew) and to the end of the new search.
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
        browser.close()
    busy = " (above 1, other work slowed this down)" if load > 1 else ""
    head = (
        f"`python benchmarks/page.py`, {os.cpu_count()} cores, Chromium, {LOADS} loads and {STEPS} steps of a slider.\n"
    )
    head += f"Load average at the start: {load:.1f}{busy}."
    lines = ["| what | median ms | longest ms |", "|---|---|---|"]
    lines += [f"| {what} | {median:.0f} | {longest:.0f} |" for what, median, longest in rows]
    write_section("Page", head + "\n\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
