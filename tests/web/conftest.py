"""A client of the application, a real server, and a browser."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from waiting import wait_until

CHROMIUM = "/usr/bin/chromium"
PATIENCE_MS = 120_000
"""How long a page may take, on a machine that has much else to do; what never comes ends with the test's limit."""
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@pytest.fixture(autouse=True)
def _no_own_entries(tmp_path, monkeypatch):
    monkeypatch.setenv("CROSSZONE_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="session")
def client(tmp_path_factory):
    from starlette.testclient import TestClient

    from crosszone.web.app import create_app

    app = create_app(store=str(tmp_path_factory.mktemp("store") / "crosszone.db"), drive=False)
    with TestClient(app, base_url="http://127.0.0.1:8000") as made:
        yield made


@pytest.fixture(scope="session")
def three_cities():
    from crosszone.web.scenarios import find_examples_folder

    return (find_examples_folder() / "three-cities.yaml").read_text("utf-8")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The address of `crosszone serve` on a free port."""
    port = free_port()
    environment = {**os.environ, "CROSSZONE_HOME": str(tmp_path_factory.mktemp("home")), "CROSSZONE_LANG": "en"}
    command = [sys.executable, "-m", "crosszone", "serve", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    address = f"http://127.0.0.1:{port}"
    try:
        assert process.stdout is not None
        said = process.stdout.readline().decode()
        assert address in said, said
        wait_until(lambda: _answers(f"{address}/api/v1/examples"))
        yield address
    finally:
        process.terminate()
        process.communicate()


def _answers(url):
    try:
        with urllib.request.urlopen(url) as answer:
            return json.load(answer)
    except OSError:
        return None


@pytest.fixture(scope="session")
def browser():
    if not (Path(CHROMIUM).exists() or shutil.which("chromium")):
        pytest.skip("Chromium is not installed: apt-get install chromium fonts-noto-cjk")
    sync_api = pytest.importorskip("playwright.sync_api")
    sync_api.expect.set_options(timeout=PATIENCE_MS)
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield started
        started.close()


@pytest.fixture
def open_page(browser, server):
    """Opens an address of the server; afterwards nothing may have left the host and no error may have been logged."""
    contexts, requests, errors = [], [], []

    def opened(path="/", *, width=1440, height=900, **context):
        contexts.append(browser.new_context(viewport={"width": width, "height": height}, locale="en-US", **context))
        contexts[-1].set_default_timeout(PATIENCE_MS)
        page = contexts[-1].new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(server + path)
        page.locator("h1").wait_for()
        return page

    opened.errors = errors
    yield opened
    for context in contexts:
        context.close()
    assert requests or not contexts  # a test that was skipped has opened no page
    assert [url for url in requests if not url.startswith((f"{server}/", "blob:", "data:"))] == []
    # the browser itself reports each refused request; those are the errors the page shows
    assert [error for error in errors if not re.search(r"status of 4\d\d", error)] == []


@pytest.fixture
def server_client(server):
    """An HTTP client of the real server: streams and hang-ups are those of the network."""
    import httpx2

    with httpx2.Client(base_url=server, timeout=60) as made:
        yield made
