"""The frame of the page and the catalogue in a real browser; each test also asserts that nothing left the host."""

import re

import pytest

pytestmark = pytest.mark.browser


def expect_text(locator, words):
    from playwright.sync_api import expect

    expect(locator).to_have_text(re.compile(re.escape(words)) if isinstance(words, str) else words)


@pytest.mark.long
def test_the_language_switch_changes_page_and_messages(open_page):
    page = open_page("/?tab=text")
    page.locator(".line.warning").wait_for()
    page.get_by_role("button", name="中文").click()
    expect_text(page.get_by_role("tab").first, "表单")
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    assert "lang=zh" in page.url
    area = page.locator(".editor textarea")
    area.fill(area.input_value().replace("seq_len: 4096", "seq_len: long"))
    expect_text(page.locator("#text-errors"), "必须是整数")
    page.reload()
    expect_text(page.get_by_role("tab").first, "表单")


def test_the_theme_switch_is_kept_in_the_address_and_the_browser(open_page, server):
    page = open_page("/", color_scheme="light")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.get_by_role("switch").click()
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != ground
    assert "theme=dark" in page.url
    page.goto(server)
    page.locator("h1").wait_for()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.long
def test_the_system_theme_is_followed(open_page):
    page = open_page("/", color_scheme="dark")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.long
def test_a_deep_link_restores_example_step_language_and_theme(open_page):
    page = open_page("/?example=mixtral&step=model&lang=zh&theme=dark")
    expect_text(page.locator('[data-figure="form-parameters"]'), "46.703 B")
    assert page.locator(".scenario-bar select").input_value() == "mixtral"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    expect_text(page.get_by_role("link", name="硬件与模型库"), "硬件与模型库")


@pytest.mark.long
def test_the_catalogue_filters_sorts_and_opens_with_sources(open_page):
    page = open_page("/?place=catalogue")
    rows = page.locator(".catalogue tbody tr")
    rows.first.wait_for()
    every = rows.count()
    page.get_by_role("searchbox").fill("h100")
    expect_text(page.locator(".count"), f"of {every}")
    assert 0 < rows.count() < every
    assert "filter=h100" in page.url
    page.get_by_role("button", name="Memory GiB").click()
    sizes = [float(text) for text in page.locator(".catalogue tbody td:nth-child(6)").all_inner_texts()]
    assert sizes == sorted(sizes)
    page.get_by_role("button", name="Memory GiB").click()
    assert page.locator("th[aria-sort=descending]").count() == 1
    page.get_by_role("button", name="h100-80gb-sxm").click()
    panel = page.locator(".entry")
    expect_text(panel.get_by_role("heading", level=2), "h100-80gb-sxm")
    expect_text(panel.locator(".citations li").first, "NVIDIA")
    assert "entry=h100-80gb-sxm" in page.url
    page.keyboard.press("Escape")
    panel.wait_for(state="detached")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["models", "regions", "links"])
def test_each_kind_of_the_catalogue_opens(open_page, kind):
    page = open_page(f"/?place=catalogue&kind={kind}&lang=zh")
    first = page.locator(".catalogue tbody th button").first
    first.click()
    page.locator(".entry tbody tr").first.wait_for()
    assert page.locator(".entry .citations li").count() >= 1
    assert open_page.errors == []
