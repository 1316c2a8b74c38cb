"""Accuracy in a real browser: first contact first, one manner after the other, the nearest runs of the scenario."""

import re

import pytest

pytestmark = pytest.mark.browser
expect = pytest.importorskip("playwright.sync_api").expect


def test_first_contact_comes_first_and_any_manner_can_be_chosen(open_page):
    page = open_page("/?place=accuracy&example=single-node&lang=en")
    place = page.locator('[data-place="accuracy"]')
    expect(place.locator("dl[data-reading=first_contact] [data-figure=mean_pct]")).to_contain_text("%")
    expect(place.locator("tr[data-reading]").first).to_contain_text("First contact")
    expect(place.locator("tr[data-reading]")).to_have_count(5)
    expect(place.locator("tr[data-run]")).to_have_count(3)
    expect(place.locator("[data-groups=by_knowledge]")).to_contain_text("software not stated")
    place.get_by_role("button", name="Software stated, fitted").press("Enter")
    expect(page).to_have_url(re.compile("kind=fitted"))
    expect(place.locator("[data-groups=by_knowledge]")).to_contain_text("software stated")


def test_accuracy_stands_beside_plan_in_both_languages(open_page):
    page = open_page("/?lang=zh")
    links = page.locator("nav a")
    expect(links.nth(1)).to_have_text("准确度")
    links.nth(1).click()
    expect(page.get_by_role("heading", name="范围是否可信？")).to_be_visible()
