"""The page in a real browser: each test also asserts that nothing left the host (see `open_page`)."""

import re

import pytest

pytestmark = pytest.mark.browser


def figure(page, key):
    return page.locator(f'[data-figure="{key}"]').first


def edit(page, old, new):
    field = page.locator("textarea")
    text = field.input_value()
    assert old in text
    field.fill(text.replace(old, new))


def expect_text(locator, words):
    from playwright.sync_api import expect

    expect(locator).to_have_text(re.compile(re.escape(words)) if isinstance(words, str) else words)


def test_the_page_opens_with_the_example_and_no_error(open_page):
    page = open_page("/")
    expect_text(figure(page, "gpus"), "128")
    expect_text(figure(page, "zones"), "3")
    expect_text(figure(page, "parameters"), "68.977 B")
    expect_text(figure(page, "tokens_per_step"), "4,194,304")
    expect_text(figure(page, "steps"), "238,419")
    expect_text(figure(page, "verdict"), "Legal")
    expect_text(figure(page, "sum"), "68,976,648,192")
    assert page.locator("h1").inner_text() == "CrossZone"
    assert page.locator("#links").is_visible()
    assert page.get_by_role("region", name="Links between zones").get_by_text("example", exact=True).count() == 2
    assert open_page.errors == []


def test_editing_the_batch_changes_tokens_per_step(open_page):
    page = open_page("/")
    expect_text(figure(page, "tokens_per_step"), "4,194,304")
    edit(page, "global_batch: 1024", "global_batch: 512")
    expect_text(figure(page, "tokens_per_step"), "2,097,152")
    page.get_by_role("button", name="Undo edits").click()
    expect_text(figure(page, "tokens_per_step"), "4,194,304")


def test_late_answers_never_replace_newer_ones(open_page):
    page = open_page("/")
    expect_text(figure(page, "tokens_per_step"), "4,194,304")
    held = []

    def slow(route):
        if "global_batch: 512" in route.request.post_data_json["text"]:
            held.append(route)
        else:
            route.continue_()

    page.route("**/scenarios/describe*", slow)
    edit(page, "global_batch: 1024", "global_batch: 512")
    page.wait_for_timeout(400)
    edit(page, "global_batch: 512", "global_batch: 2048")
    expect_text(figure(page, "tokens_per_step"), "8,388,608")
    assert held
    held[0].continue_()
    page.wait_for_timeout(400)
    expect_text(figure(page, "tokens_per_step"), "8,388,608")


def test_a_bad_edit_shows_the_error_with_its_line_and_keeps_the_answer(open_page):
    page = open_page("/")
    expect_text(figure(page, "gpus"), "128")
    edit(page, "seq_len: 4096", "seq_len: long")
    errors = page.locator("#text-errors")
    expect_text(errors, 'job.seq_len = "long" must be a whole number.')
    line = next(n for n, text in enumerate(page.locator("textarea").input_value().splitlines(), 1) if "seq_len" in text)
    expect_text(errors.get_by_role("button"), f"line {line}")
    assert page.locator(".line.error").inner_text().strip().startswith("seq_len: long")
    assert page.locator(".answers.stale").is_visible()
    expect_text(figure(page, "gpus"), "128")
    errors.get_by_role("button").click()
    chosen = page.evaluate(
        "(() => { const a = document.activeElement; return a.value.slice(a.selectionStart, a.selectionEnd); })()"
    )
    assert "seq_len: long" in chosen
    edit(page, "seq_len: long", "seq_len: 4096")
    page.locator(".answers:not(.stale)").wait_for()
    assert errors.inner_text().strip() == ""


def test_an_illegal_strategy_is_explained_and_leads_to_its_line(open_page):
    page = open_page("/")
    expect_text(figure(page, "verdict"), "Legal")
    edit(page, "tp: 8", "tp: 3")
    expect_text(figure(page, "verdict"), "Not legal")
    notice = page.locator(".notices.error li").first
    expect_text(notice, "strategy.tp=3 does not divide the 64 heads.")
    notice.get_by_role("button").click()
    chosen = page.evaluate(
        "(() => { const a = document.activeElement; return a.value.slice(a.selectionStart, a.selectionEnd); })()"
    )
    assert "tp: 3" in chosen


def test_the_language_switch_changes_page_and_messages(open_page):
    page = open_page("/")
    expect_text(figure(page, "verdict"), "Legal")
    page.get_by_role("button", name="中文").click()
    expect_text(figure(page, "verdict"), "可行")
    expect_text(page.locator(".notices.warning li").first, "未给出")
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    assert "lang=zh" in page.url
    page.reload()
    expect_text(figure(page, "verdict"), "可行")


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


def test_the_system_theme_is_followed(open_page):
    page = open_page("/", color_scheme="dark")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_deep_link_restores_example_language_and_theme(open_page):
    page = open_page("/?example=mixtral&lang=zh&theme=dark")
    expect_text(figure(page, "parameters"), "46.703 B")
    assert "mixtral" in page.locator("textarea").input_value()
    assert page.locator("select").input_value() == "mixtral"
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    expect_text(page.get_by_role("link", name="条目库"), "条目库")


def test_choosing_an_example_changes_the_address_and_back_returns(open_page):
    page = open_page("/")
    expect_text(figure(page, "gpus"), "128")
    page.locator("select").select_option("fourteen-gpus")
    expect_text(figure(page, "gpus"), "14")
    assert "example=fourteen-gpus" in page.url
    page.go_back()
    expect_text(figure(page, "gpus"), "128")
    page.locator("select").select_option("fourteen-gpus")
    expect_text(figure(page, "gpus"), "14")


def test_an_unknown_example_is_said_and_another_can_be_chosen(open_page):
    page = open_page("/?example=nowhere")
    expect_text(page.locator("#text-errors"), "There is no example 'nowhere'.")
    page.locator("select").select_option("three-cities")
    expect_text(figure(page, "gpus"), "128")


def test_edits_survive_a_reload(open_page):
    page = open_page("/")
    expect_text(figure(page, "gpus"), "128")
    edit(page, "global_batch: 1024", "global_batch: 512")
    expect_text(figure(page, "tokens_per_step"), "2,097,152")
    page.reload()
    expect_text(figure(page, "tokens_per_step"), "2,097,152")


def test_what_is_exported_can_be_imported(open_page, tmp_path):
    page = open_page("/")
    edit(page, "global_batch: 1024", "global_batch: 512")
    expect_text(figure(page, "tokens_per_step"), "2,097,152")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    assert download.value.suggested_filename == "three-cities.yaml"
    download.value.save_as(tmp_path / "mine.yaml")
    page.locator("select").select_option("mixtral")
    expect_text(figure(page, "parameters"), "46.703 B")
    page.locator("input[type=file]").set_input_files(tmp_path / "mine.yaml")
    expect_text(figure(page, "tokens_per_step"), "2,097,152")
    expect_text(page.locator("select option:checked"), "mine.yaml")
    page.locator("select").select_option("three-cities")
    expect_text(figure(page, "tokens_per_step"), "4,194,304")


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


@pytest.mark.parametrize("kind", ["models", "regions", "links"])
def test_each_kind_of_the_catalogue_opens(open_page, kind):
    page = open_page(f"/?place=catalogue&kind={kind}&lang=zh")
    first = page.locator(".catalogue tbody th button").first
    first.click()
    page.locator(".entry tbody tr").first.wait_for()
    assert page.locator(".entry .citations li").count() >= 1
    assert open_page.errors == []


@pytest.mark.parametrize(
    "path",
    ["/", "/?lang=zh&example=mixed-gpus", "/?place=catalogue&kind=models", "/?place=catalogue&entry=h100-80gb-sxm"],
)
def test_at_400_pixels_only_tables_scroll_sideways(open_page, path):
    page = open_page(path, width=400, height=800)
    page.locator("tbody tr:visible").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_the_keyboard_reaches_everything(open_page):
    page = open_page("/")
    expect_text(figure(page, "gpus"), "128")
    reached = []
    for _ in range(9):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "document.activeElement.tagName + ' ' + (document.activeElement.textContent || '').trim().slice(0, 12)"
            )
        )
    tags = " | ".join(reached)
    for wanted in (
        "A Skip",
        "A Scenario",
        "A Catalogue",
        "BUTTON English",
        "BUTTON Dark",
        "SELECT",
        "BUTTON Import",
        "BUTTON Export",
    ):
        assert wanted in tags, tags


def test_a_server_that_is_gone_is_said_and_the_text_stays(open_page):
    page = open_page("/")
    expect_text(figure(page, "gpus"), "128")
    page.route("**/scenarios/describe*", lambda route: route.abort())
    edit(page, "global_batch: 1024", "global_batch: 512")
    expect_text(page.locator("#text-errors"), "The server does not answer.")
    assert "global_batch: 512" in page.locator("textarea").input_value()
    open_page.errors.clear()
