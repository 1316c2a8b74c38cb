"""Takes the pictures of the page for README and docs: `.venv/bin/python scripts/screenshots.py` (needs Chromium)."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "images"
PICTURES = {
    "page-en-light": "?example=three-cities&lang=en&theme=light",
    "page-zh-dark": "?example=three-cities&lang=zh&theme=dark",
    "catalogue-en-light": "?place=catalogue&kind=gpus&entry=h100-80gb-sxm&lang=en&theme=light",
}
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]


def main() -> None:
    """Start a server, photograph each page, end the server."""
    port = _free_port()
    server = subprocess.Popen([sys.executable, "-m", "crosszone", "serve", "--port", str(port)], cwd=ROOT)
    try:
        _wait(port)
        FOLDER.mkdir(parents=True, exist_ok=True)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            for name, query in PICTURES.items():
                page.goto(f"http://127.0.0.1:{port}/{query}", wait_until="networkidle")
                page.screenshot(path=FOLDER / f"{name}.png")
                print(FOLDER / f"{name}.png")
            browser.close()
    finally:
        server.terminate()
        server.wait()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _wait(port: int) -> None:
    for _ in range(100):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    main()
