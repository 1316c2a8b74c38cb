"""The page as a whole: types of its code, accessibility, width, languages, and nothing from elsewhere."""

import re
import subprocess

import pytest

from conftest import ROOT

pytestmark = pytest.mark.browser
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
TSC = ROOT / "node_modules" / ".bin" / "tsc"
PLACES = ["plan", "accuracy", "communication", "timeline", "deploy", "train", "compare", "catalogue", "calibrate",
          "calibrate&tab=accuracy", "calibrate&tab=learn"]  # fmt: skip
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


def settled(page):
    """The page when it has drawn all it asks for."""
    from playwright.sync_api import expect

    page.wait_for_load_state("networkidle")
    expect(page.locator("[aria-busy=true]")).to_have_count(0)
    return page


@pytest.fixture(scope="session")
def saved(server):
    """Two saved results, so that there is something to compare."""
    import httpx2

    text = (ROOT / "examples" / "two-zones-7b.yaml").read_text("utf-8")
    with httpx2.Client(base_url=server, timeout=60) as client:
        way = client.post("/api/v1/plan", json={"text": text}).json()["plans"][0]
        way = {key: way[key] for key in ("framework", "strategy", "placement")}
        made = [
            client.post("/api/v1/results", json={"kind": "predicted", "name": name, "text": text, "way": way}).json()
            for name in ("first", "second")
        ]
    return ",".join(one["id"] for one in made)


def test_the_types_of_the_pages_code_hold():
    if not TSC.exists():
        pytest.skip("TypeScript is not installed: npm install (a developer's check)")
    done = subprocess.run([TSC, "--project", ROOT / "tsconfig.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def show_in(page, place: str, theme: str, language: str, results: str):
    """The place in a theme and a language, drawn."""
    page.goto(f"{page.origin}/?place={place}&theme={theme}&lang={language}&results={results}")
    return settled(page)


def has_no_accessibility_violation(page) -> None:
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("rules => axe.run(document, {runOnly: {type: 'tag', values: rules}})", RULES)
    broken = [
        f"{rule['id']}: {node['target']} {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]
    assert broken == []


def has_no_empty_chart(page) -> None:
    empty = page.wait_for_function(
        """() => {
             const empty = [...document.querySelectorAll('[data-chart]')].filter((chart) => {
               if (!chart.checkVisibility()) return false;
               const canvas = chart.querySelector('canvas');
               if (!canvas) return true;
               const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
               return !data.some((value) => value !== 0);
             });
             return empty.length === 0;
           }"""
    )
    assert empty


def speaks_chinese(page) -> None:
    """Headings, buttons and labels hold no English sentence: names of products, keys and units may stay."""
    spoken = page.locator("h2, h3, button, legend, label > span, th[scope=col], summary, dt").all_inner_texts()
    english = [
        text
        for text in spoken
        if re.search(r"[a-z]{3,} [a-z]{2,} [a-z]{2,}", text) and not re.search(r"[\u4e00-\u9fff]", text)
    ]
    assert english == []


def scrolls_only_tables_sideways(page) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    page.set_viewport_size({"width": 1440, "height": 900})


@pytest.mark.parametrize("place", PLACES)
def test_a_place_in_both_languages_and_themes(open_page, server, saved, place):
    """Drawn, accessible, as narrow as a phone, and Chinese where that was asked for."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm install (a developer's check)")
    page = open_page(f"/?place={place}&theme=light&lang=en&results={saved}")
    page.origin = server
    settled(page)
    has_no_empty_chart(page)
    has_no_accessibility_violation(page)
    scrolls_only_tables_sideways(page)
    show_in(page, place, "dark", "zh", saved)
    has_no_accessibility_violation(page)
    speaks_chinese(page)
    scrolls_only_tables_sideways(page)


@pytest.mark.long
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("theme", "language"), [("dark", "en"), ("light", "zh")])
def test_a_place_in_the_other_combinations(open_page, saved, place, theme, language):
    page = settled(open_page(f"/?place={place}&theme={theme}&lang={language}&results={saved}"))
    has_no_accessibility_violation(page)
