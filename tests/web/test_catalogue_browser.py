"""Own entries on the page: added, used, changed, kept over a restart, removed; a browser on a server of its own."""

import os
import re
import socket
import subprocess
import sys

import pytest

from page_requests import answer_of, asks_for

pytestmark = pytest.mark.browser

CONFIG = """{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
"num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096}"""


class Serving:
    """`crosszone serve` with a home folder of its own, which can be stopped and started again."""

    def __init__(self, home):
        self.home = home
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        environment = {**os.environ, "CROSSZONE_HOME": str(self.home), "CROSSZONE_LANG": "en"}
        command = [sys.executable, "-m", "crosszone", "serve", "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
        assert self.address in self.process.stdout.readline().decode()  # it listens before it says so

    def stop(self):
        self.process.terminate()
        self.process.communicate()


@pytest.fixture
def serving(tmp_path):
    made = Serving(tmp_path / "own-home")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def page(browser, serving):
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(f"{serving.address}/?place=catalogue")
    page.locator(".catalogue tbody tr").first.wait_for()
    yield page
    context.close()
    # A restart of the server refuses connections and cuts off an answer that is being streamed.
    expected = r"status of 4\d\d|ERR_CONNECTION|ERR_INCOMPLETE_CHUNKED_ENCODING"
    assert [error for error in errors if not re.search(expected, error)] == []


def expects(locator):
    from playwright.sync_api import expect

    return expect(locator)


def fill(page, **fields):
    for path, value in fields.items():
        field = page.locator(f'[id="{"entry-name" if path == "name" else "field-" + path.replace("__", ".")}"]')
        field.select_option(value) if field.evaluate("field => field.tagName") == "SELECT" else field.fill(value)


def save(page):
    page.get_by_role("button", name="Save").click()


def lists_as_own(page, *names):
    expects(page.locator(".catalogue tbody tr:has(.own) th button")).to_have_text(list(names))


def test_a_gpu_is_added_used_changed_kept_and_removed(page, serving):
    page.get_by_role("button", name="Add a GPU").click()
    fill(page, name="my-gpu", memory_gib="64", memory_gb_per_s="2000", dense_tflops__bf16="300", usd_per_hour="0")
    save(page)
    expects(page.locator("#entry-heading")).to_contain_text("my-gpu")
    expects(page.locator(".catalogue tbody tr:has(.own)")).to_have_count(1)
    expects(page.locator(".entry tbody tr", has_text="Price, $/hour").locator("td.value")).to_have_text("0")

    page.get_by_label("Where to use it").select_option(index=1)
    with page.expect_response(asks_for("describe")) as described:
        page.get_by_role("button", name="Use in the scenario").click()
    zones = answer_of(described.value, "describe")["cluster"]["zones"]
    assert [zone["gpu_kinds"] for zone in zones] == [["a100-80gb-sxm"], ["my-gpu"], ["a100-80gb-sxm"]]

    page.goto(f"{serving.address}/?place=catalogue&entry=my-gpu")
    page.get_by_role("button", name="Edit").click()
    expects(page.locator("#entry-name")).to_have_attribute("readonly", "")
    fill(page, memory_gib="96")
    with page.expect_response(asks_for("describe")) as described:
        save(page)
    assert answer_of(described.value, "describe")["cluster"]["zones"][1]["memory_gib"] == 32 * 96

    serving.stop()
    serving.start()
    page.goto(f"{serving.address}/?place=catalogue&entry=my-gpu")
    expects(page.locator(".entry tbody tr", has_text="Memory, GiB").locator("td.value")).to_have_text("96")
    lists_as_own(page, "my-gpu")

    page.get_by_role("button", name="Delete", exact=True).click()
    asks = page.get_by_role("alertdialog")
    asks.get_by_role("button", name="Keep it").click()
    lists_as_own(page, "my-gpu")
    page.get_by_role("button", name="Delete", exact=True).click()
    asks.get_by_role("button", name="Delete it").click()
    expects(page.locator(".catalogue tbody tr:has(.own)")).to_have_count(0)
    page.get_by_label("Only my own").check()
    expects(page.locator(".empty")).to_contain_text("no entries of your own yet")


@pytest.mark.long
def test_what_is_wrong_stands_beside_its_field(page):
    page.get_by_role("button", name="Add a GPU").click()
    fill(page, name="Öl", memory_gib="much", memory_gb_per_s="1")
    save(page)
    memory = page.locator('[id="field-memory_gib"]')
    expects(memory).to_have_attribute("aria-invalid", "true")
    expects(page.locator(".form-field", has=memory).locator(".field-error")).to_contain_text("must be a number")
    expects(memory).to_be_focused()
    fill(page, memory_gib="64")
    save(page)
    expects(page.locator(".form-field", has=page.locator("#entry-name")).locator(".field-error")).to_contain_text("Öl")
    fill(page, name="h100-80gb-sxm")
    save(page)
    expects(page.locator(".field-error")).to_contain_text("is taken by h100-80gb-sxm")


@pytest.mark.long
def test_a_built_in_entry_is_copied_with_its_figures(page):
    page.get_by_role("button", name="h100-80gb-sxm").click()
    expects(page.get_by_role("button", name="Edit")).to_have_count(0)
    page.get_by_role("button", name="Copy as own").click()
    expects(page.locator("#entry-name")).to_have_value("my-h100-80gb-sxm")
    expects(page.locator('[id="field-link.domain"]')).to_have_value("8")
    fill(page, usd_per_hour="1.25")
    save(page)
    expects(page.locator("#entry-heading")).to_contain_text("my-h100-80gb-sxm")
    expects(page.locator(".entry tbody tr", has_text="Price, $/hour").locator("td.value")).to_have_text("1.25")


@pytest.mark.long
def test_a_pasted_config_fills_the_form(page, serving):
    page.goto(f"{serving.address}/?place=catalogue&kind=models")
    page.get_by_role("button", name="Add a model").click()
    page.locator("summary", has_text="Hugging Face").click()
    page.get_by_label("Text of config.json").fill('{"model_type": "unheard-of"}')
    page.get_by_role("button", name="Read it").click()
    expects(page.locator(".hf .field-error")).to_contain_text("unheard-of")
    page.get_by_label("Text of config.json").fill(CONFIG)
    page.get_by_role("button", name="Read it").click()
    expects(page.locator(".hf [role=status]")).to_have_text("llama: 6.738 B parameters")
    expects(page.locator('[id="field-architecture.layers"]')).to_have_value("32")
    fill(page, name="pasted")
    save(page)
    expects(page.locator("#entry-heading")).to_contain_text("pasted")
    expects(page.locator('.entry [data-figure="sum"]')).to_have_text("6,738,415,616")


@pytest.mark.long
def test_profiles_are_listed_and_open_with_their_coefficients(page, serving):
    page.goto(f"{serving.address}/?place=catalogue&kind=profiles")
    page.get_by_role("searchbox").fill("megatron-core")
    page.get_by_role("button", name="megatron-core", exact=True).click()
    row = page.locator(".entry tbody tr", has_text="p2p_exposed")
    expects(row).to_contain_text("fitted")
    expects(row).to_contain_text("±")
    page.get_by_role("button", name="Coefficients").click()
    expects(page.locator("th[aria-sort=ascending]")).to_have_count(1)


@pytest.mark.long
@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("kind", ["gpus", "models", "regions"])
def test_forms_fit_a_narrow_screen(browser, serving, language, kind):
    context = browser.new_context(viewport={"width": 400, "height": 800})
    page = context.new_page()
    errors = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto(f"{serving.address}/?place=catalogue&kind={kind}&lang={language}")
    page.locator("button.add").click()
    page.locator("#entry-name").wait_for()
    for folded in page.locator("details").all():
        folded.locator("summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    assert page.locator(".entry-form").evaluate("form => form.scrollWidth <= form.clientWidth")
    assert errors == []
    context.close()
