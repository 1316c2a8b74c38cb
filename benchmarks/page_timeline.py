"""How quickly the timeline answers and zooms; `python benchmarks/page_timeline.py` updates RESULTS.md.

The three-cities example with a batch of 1,536: 4 stages and 384 micro-batches. The time of POST /timeline, and in
Chromium the time from a zoom step to the end of the next frame, over the whole step (all bars drawn) and closer.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from results import write_section

ROOT = Path(__file__).resolve().parents[1]
PORT = 8791
CHROMIUM = "/usr/bin/chromium"
STEPS = 30
ZOOM = """async (steps) => {
  const fetched = performance.getEntriesByType("resource").map(({ name }) => name);
  const { getInstanceByDom } = await import(fetched.find((name) => name.includes("/assets/echarts.")));
  const chart = getInstanceByDom(document.querySelector('[data-chart="timeline"] .chart-place'));
  const frame = () => new Promise((done) => requestAnimationFrame(() => setTimeout(done, 0)));
  const taken = [];
  for (let at = 0; at < steps; at += 1) {
    await frame();
    const before = performance.now();
    chart.dispatchAction({ type: "dataZoom", start: at, end: 100 - at });
    await frame();
    taken.push(performance.now() - before);
  }
  return taken;
}"""


def measure_answers_ms(address: str, text: str) -> tuple[list[float], int]:
    """Milliseconds of some answers of POST /timeline, after one to warm up; and how many bars they hold."""
    times_ms, bars = [], 0
    for _ in range(STEPS + 1):
        body = json.dumps({"text": text}).encode()
        request = urllib.request.Request(f"{address}/api/v1/timeline", body, {"Content-Type": "application/json"})
        before = time.perf_counter()
        with urllib.request.urlopen(request) as answer:
            read = answer.read()
        times_ms.append(1000 * (time.perf_counter() - before))
        bars = len(json.loads(read)["spans"]["start_s"])
    return times_ms[1:], bars


def measure_zooms_ms(page: Any) -> list[float]:
    """Milliseconds of some zoom steps on an opened timeline: from the action to the end of the next frame."""
    page.locator('[data-chart="timeline"] canvas').first.wait_for()
    page.wait_for_timeout(1000)
    times_ms: list[float] = page.evaluate(ZOOM, STEPS)
    return times_ms


def main() -> None:
    """Measure both and put them into RESULTS.md."""
    from playwright.sync_api import sync_playwright

    address = f"http://127.0.0.1:{PORT}"
    text = (ROOT / "examples" / "three-cities.yaml").read_text("utf-8").replace("batch: 1024", "batch: 1536")
    folder = tempfile.TemporaryDirectory()
    file = Path(folder.name) / "cities.yaml"
    file.write_text(text, "utf-8")
    command = [sys.executable, "-m", "crosszone", "serve", "--port", str(PORT), str(file)]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "CROSSZONE_HOME": folder.name}
    )
    try:
        assert server.stdout is not None
        server.stdout.readline()
        answers, bars = measure_answers_ms(address, text)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(f"{address}/?place=timeline&plan=given")
            zooms = measure_zooms_ms(page)
            browser.close()
    finally:
        server.terminate()
        server.wait(10)
        folder.cleanup()
    lines = ["| what | median ms | longest ms |", "|---|---|---|"]
    for name, times_ms in (("POST /timeline", answers), ("zoom step", zooms)):
        lines.append(f"| {name} | {statistics.median(times_ms):.0f} | {max(times_ms):.0f} |")
    cores = f"{os.cpu_count()} cores, {STEPS} of each"
    head = f"`python benchmarks/page_timeline.py`, {cores}, {bars:,} bars; a frame takes 17 ms."
    write_section("Timeline", head + "\n\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
