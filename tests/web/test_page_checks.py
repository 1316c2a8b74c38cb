"""The page as a whole: types of its code, accessibility, width, languages, and nothing from elsewhere."""

import re
import subprocess

import pytest

from conftest import ROOT

pytestmark = pytest.mark.browser
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
TSC = ROOT / "node_modules" / ".bin" / "tsc"
PLACES = ["plan", "communication", "timeline", "deploy", "train", "compare", "catalogue", "calibrate",
          "calibrate&tab=accuracy", "calibrate&tab=learn"]  # fmt: skip
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


def settled(page):
    """The page when it has drawn all it asks for."""
    from playwright.sync_api import expect

    page.wait_for_load_state("networkidle")
    expect(page.locator("[aria-busy=true]")).to_have_count(0, timeout=60_000)
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


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("theme", "language"), [("light", "en"), ("dark", "zh"), ("dark", "en"), ("light", "zh")])
def test_axe_finds_nothing(open_page, saved, place, theme, language):
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm install (a developer's check)")
    page = settled(open_page(f"/?place={place}&theme={theme}&lang={language}&results={saved}"))
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("rules => axe.run(document, {runOnly: {type: 'tag', values: rules}})", RULES)
    broken = [
        f"{rule['id']}: {node['target']} {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]
    assert broken == []


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_at_400_pixels_only_tables_scroll_sideways(open_page, saved, place, language):
    page = settled(open_page(f"/?place={place}&lang={language}&results={saved}", width=400, height=800))
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


@pytest.mark.parametrize("place", PLACES)
def test_the_chinese_page_speaks_chinese(open_page, saved, place):
    """Headings, buttons and labels hold no English sentence: names of products, keys and units may stay."""
    page = settled(open_page(f"/?place={place}&lang=zh&results={saved}"))
    spoken = page.locator("h2, h3, button, legend, label > span, th[scope=col], summary, dt").all_inner_texts()
    english = [
        text
        for text in spoken
        if re.search(r"[a-z]{3,} [a-z]{2,} [a-z]{2,}", text) and not re.search(r"[\u4e00-\u9fff]", text)
    ]
    assert english == []


@pytest.mark.parametrize("place", PLACES)
def test_no_chart_is_empty(open_page, saved, place):
    page = settled(open_page(f"/?place={place}&results={saved}"))
    page.wait_for_timeout(500)
    empty = page.evaluate(
        """() => [...document.querySelectorAll('[data-chart]')].filter((chart) => {
             if (!chart.checkVisibility()) return false;
             const canvas = chart.querySelector('canvas');
             if (!canvas) return true;
             const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
             return !data.some((value) => value !== 0);
           }).map((chart) => chart.dataset.chart)"""
    )
    assert empty == []
