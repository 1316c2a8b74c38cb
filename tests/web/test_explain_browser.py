"""A number on the page opens to its formula, goes on to what it follows from, and the radar's axes open too."""

import pytest

from arithmetic import worked_out
from page_requests import answer_of, asks_for

pytestmark = pytest.mark.browser


def opened(page, path):
    """The panel of a figure, when it is worked out."""
    page.locator(f"button.figure[data-path='{path}']").first.click()
    panel = page.get_by_role("dialog")
    panel.locator(".explained-value").wait_for()
    return panel


def worked(panel):
    return worked_out(panel.locator("[data-worked]").text_content())


def test_a_number_opens_goes_on_and_closes(open_page):
    """F83: what is shown as worked out gives the number; Enter opens, Escape closes and gives the focus back."""
    page = open_page("/?example=three-cities&lang=en&plan=given")
    button = page.locator("button.figure[data-path='mfu']")
    button.wait_for()
    button.focus()
    page.keyboard.press("Enter")
    panel = page.get_by_role("dialog", name="MFU")
    panel.locator(".explained-value").wait_for()
    value = float(panel.locator(".explained-value data").get_attribute("value"))
    assert worked(panel) == pytest.approx(value, rel=1e-9)
    assert panel.locator("[data-formula='V6']").count() == 1
    assert page.evaluate("document.activeElement.id") == "figure-heading"

    panel.get_by_role("button", name="peak of all GPUs in use").click()
    page.get_by_role("dialog", name="peak of all GPUs in use").wait_for()
    assert worked(page.get_by_role("dialog")) == pytest.approx(128 * 312e12)
    page.get_by_role("button", name="Back", exact=True).last.click()
    page.get_by_role("dialog", name="MFU").wait_for()

    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    assert page.evaluate("document.activeElement.dataset.path") == "mfu"


@pytest.mark.long
def test_ids_in_a_formulas_text_open_that_formula(open_page):
    page = open_page("/?example=three-cities&lang=en")
    page.locator("button.figure[data-path='mfu']").wait_for()
    panel = opened(page, "mfu")
    panel.get_by_role("button", name="[F1]").click()
    panel.locator("[data-formula='F1']").wait_for()
    panel.get_by_role("button", name="back to [V6]").click()
    panel.locator("[data-formula='V6']").wait_for()


@pytest.mark.long
def test_every_figure_on_the_plan_place_can_be_opened(open_page):
    """Each path that the page shows is one that /explain knows."""
    page = open_page("/?example=three-cities&lang=zh")
    page.locator("button.figure").first.wait_for()
    page.wait_for_load_state("networkidle")
    paths = page.eval_on_selector_all("button.figure", "all => [...new Set(all.map(one => one.dataset.path))]")
    assert len(paths) > 8
    for path in paths:
        with page.expect_response(asks_for("explain")) as answered:
            panel = opened(page, path)
        assert answered.value.status == 200, path
        found = answer_of(answered.value, "explain")
        shown = float(panel.locator(".explained-value data").get_attribute("value"))
        assert shown == pytest.approx(found["value"], rel=1e-12)
        page.keyboard.press("Escape")
        panel.wait_for(state="detached")


@pytest.mark.long
def test_the_radar_draws_the_ways_and_each_axis_states_its_formula(open_page):
    """F77"""
    page = open_page("/?example=three-cities&lang=en", height=2600)
    card = page.locator("section[aria-labelledby=radar]")
    card.locator("[data-chart=radar]").wait_for()
    assert card.locator(".radar-legend li").all_text_contents() == [
        "chosen way",
        "data parallelism only",
        "pipeline parallelism only",
        "runner-up",
    ]
    axes = card.locator(".radar-axes > li")
    assert axes.count() == 7
    axis = card.locator("[data-axis=thrift]")
    axis.locator("summary").click()
    assert axis.locator("[data-formula='Y4']").is_visible()
    assert "between zones a step" in axis.locator("dd").first.text_content()
