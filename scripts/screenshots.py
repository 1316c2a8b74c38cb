"""Takes the pictures of the page for README and docs: `.venv/bin/python scripts/screenshots.py` (needs Chromium)."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from playwright.sync_api import expect, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "images"
PICTURES = {
    "plan-en-light": "?example=three-cities&lang=en&theme=light",
    "plan-zh-dark": "?example=three-cities&lang=zh&theme=dark",
    "communication-en-light": "?place=communication&example=three-cities&lang=en&theme=light",
    "communication-zh-light": "?place=communication&example=three-cities&lang=zh&theme=light",
    "timeline-en-dark": "?place=timeline&example=mixed-gpus&lang=en&theme=dark",
    "timeline-zh-dark": "?place=timeline&example=mixed-gpus&lang=zh&theme=dark",
    "deploy-en-light": "?place=deploy&example=two-zones-7b&framework=fsdp&launcher=ssh&lang=en&theme=light",
    "deploy-zh-dark": "?place=deploy&example=two-zones-7b&framework=fsdp&launcher=slurm&lang=zh&theme=dark",
    "train-en-light": "?place=train&nodes=env-001,env-003,env-005&lang=en&theme=light",
    "train-zh-dark": "?place=train&nodes=env-001,env-003,env-005&lang=zh&theme=dark",
    "compare-en-light": "?place=compare&lang=en&theme=light&results={results}",
    "calibrate-en-light": "?place=calibrate&lang=en&theme=light",
    "calibrate-zh-dark": "?place=calibrate&tab=learn&example=single-node&lang=zh&theme=dark",
    "catalogue-en-light": "?place=catalogue&kind=gpus&entry=h100-80gb-sxm&lang=en&theme=light",
}
"""Name of each picture and its address; `{results}`: two saved results."""
ENVIRONMENTS = (
    ("env-001", "pytorch-dev-env", "jupyter", "beijing-a", "cn-beijing", "a100-80gb-sxm", 2, 16, 128, "pytorch"),
    ("env-002", "cv-experiment-env", "jupyter", "beijing-a", "cn-beijing", "v100-32gb-sxm", 2, 16, 128, "pytorch"),
    ("env-003", "llm-training-env", "custom", "shenzhen-c", "cn-shenzhen", "a100-80gb-sxm", 4, 32, 256, "transformers"),
    ("env-005", "nlp-research-lab", "custom", "shanghai-a", "cn-shanghai", "a100-80gb-sxm", 8, 64, 512, "nlp"),
)
"""Environments to choose from on the pictures of Train."""
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]


def main() -> None:
    """Start a server with a home of its own, photograph each page, end the server."""
    port = _find_free_port()
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "CROSSZONE_HOME": home}
        command = [sys.executable, "-m", "crosszone", "serve", "--port", str(port)]
        server = subprocess.Popen(command, cwd=ROOT, env=environment)
        try:
            _wait_for_port(port)
            _take_screenshots(f"http://127.0.0.1:{port}")
        finally:
            server.terminate()
            server.wait()


def _take_screenshots(address: str) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    results = ",".join(_save_result(address, name) for name in ("two-zones-7b", "single-node"))
    _register_environments(address)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        for name, query in PICTURES.items():
            page.goto(f"{address}/{query.format(results=results)}", wait_until="load")
            expect(page.locator("main")).to_contain_text(re.compile("(.|\\s){60}"), timeout=60_000)
            page.wait_for_timeout(1500)  # what comes later has begun
            expect(page.locator("[aria-busy=true]")).to_have_count(0, timeout=60_000)
            page.wait_for_timeout(1500)  # what lights up has gone dark, charts are drawn
            page.screenshot(path=FOLDER / f"{name}.png")
            print(FOLDER / f"{name}.png")
        browser.close()


def _register_environments(address: str) -> None:
    """Environments that run, each since another day, and a dataset."""
    names = ("id", "name", "type", "zone", "region", "gpu", "gpus", "cpus", "memory_gb", "image")
    for day, values in enumerate(ENVIRONMENTS, start=1):
        fields = {**dict(zip(names, values, strict=True)), "status": "running", "since": time.time() - day * 100_000}
        _post_json(f"{address}/api/v1/environments", {**fields, "address": f"192.0.2.{day}"})
    version = {"id": "v1", "path": "/data/tokens.bin"}
    _post_json(f"{address}/api/v1/datasets", {"id": "wiki", "name": "wiki", "versions": [version]})


def _save_result(address: str, example: str) -> str:
    """The id of the result saved for the best plan of an example."""
    text = (ROOT / "examples" / f"{example}.yaml").read_text("utf-8")
    best = _post_json(f"{address}/api/v1/plan", {"text": text})["plans"][0]
    way = {key: best[key] for key in ("framework", "strategy", "placement")}
    result = {"kind": "predicted", "name": example, "text": text, "way": way}
    saved: str = _post_json(f"{address}/api/v1/results", result)["id"]
    return saved


def _post_json(address: str, body: dict[str, Any]) -> Any:
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(address, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)


def _find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _wait_for_port(port: int) -> None:
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    main()
