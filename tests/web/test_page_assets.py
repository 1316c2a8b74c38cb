"""The page's files joined into assets: few, kept by the browser for good, made anew when a file changes."""

import gzip
import re

import pytest
from starlette.testclient import TestClient

from crosszone.web.app import STATIC
from crosszone.web.assets import build_assets
from crosszone.web.page import PageFiles

INDEX = '<link rel="stylesheet" href="/a.css">\n<link rel="stylesheet" href="/b.css">\n<script type="module" src="/app.js"></script>'


def write_page(folder, **modules):
    (folder / "index.html").write_text(INDEX)
    (folder / "a.css").write_text(".a {}")
    (folder / "b.css").write_text(".b {}")
    for name, source in modules.items():
        path = folder / f"{name.replace('__', '/')}.js"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    return folder


def read_asset(assets, stem):
    (text,) = (asset.content.decode() for path, asset in assets.files.items() if path.startswith(f"assets/{stem}."))
    return text


@pytest.fixture(scope="module")
def assets():
    return build_assets(STATIC)


def test_every_module_of_the_page_is_in_exactly_one_bundle(assets):
    headings = re.findall(
        r"^// ([\w/-]+\.js)$",
        "\n".join(asset.content.decode() for path, asset in assets.files.items() if path.endswith(".js")),
        re.MULTILINE,
    )
    sources = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.js") if path.parent.name != "vendor"}
    assert sorted(headings) == sorted(sources - {"theme.js"})  # a script of its own, before the first paint


def test_the_first_view_is_few_files_and_all_of_them_exist(assets):
    named = re.findall(r'(?:href|src)="/([^"]+)"', assets.index.content.decode())
    assert len(named) < 10
    assert set(named) <= set(assets.files)
    for asset in assets.files.values():
        for path in re.findall(r'"/(assets/[^"]+)"', asset.content.decode("utf-8")):
            assert path in assets.files


def test_stylesheets_keep_their_order(assets):
    order = re.findall(r"^/\* (style/\w+\.css) \*/$", read_asset(assets, "style"), re.MULTILINE)
    assert order == re.findall(r'href="/(style/[^"]+)"', (STATIC / "index.html").read_text("utf-8"))


def test_vendored_modules_are_sent_as_published(assets):
    for name in ("echarts", "htm-preact-standalone"):
        assert read_asset(assets, name) == (STATIC / "vendor" / f"{name}.js").read_text("utf-8")


def test_each_file_of_the_page_that_the_index_names_is_kept_for_good(client):
    index = client.get("/")
    assert index.headers["Cache-Control"] == "no-cache"
    for path in re.findall(r'(?:href|src)="(/assets/[^"]+)"', index.text):
        answer = client.get(path, headers={"Accept-Encoding": "gzip"})
        assert answer.status_code == 200
        assert answer.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        assert "Content-Security-Policy" in answer.headers
        assert (answer.headers.get("Content-Encoding") == "gzip") == (len(answer.content) >= 1000)


def test_an_asset_nobody_has_is_not_kept(client):
    answer = client.get("/assets/app.000000000000.js")
    assert answer.status_code == 404
    assert answer.headers["Cache-Control"] == "no-cache"


def test_the_source_files_can_be_had_one_by_one(client):
    index = client.get("/?debug=1")
    assert 'src="/app.js"' in index.text
    assert "/assets/" not in index.text
    assert client.get("/app.js").headers["Cache-Control"] == "no-cache"


def test_a_module_keeps_its_scope_its_lines_and_its_exports(tmp_path):
    base = "const a = 1;\nexport const shown = a;\nexport function twice(x) { return 2 * x; }\nexport class Kind {}\n"
    app = 'import { shown as one, twice } from "./lib/base-part.js";\nimport {\n  Kind,\n} from "./lib/base-part.js";\nconst a = one;\ntwice(a);\n'
    assets = build_assets(write_page(tmp_path, app=app, **{"lib__base-part": base}))
    core = read_asset(assets, "core")
    assert "const lib$base_part = (() => {" in core
    assert "return { shown, twice, Kind };" in core
    text = read_asset(assets, "app")
    assert "const { shown: one, twice } = lib$base_part; const { Kind } = lib$base_part;" in text
    body = text.partition("const app = (() => {")[2].splitlines()[1:]
    assert body[: len(app.splitlines())][4:] == ["const a = one;", "twice(a);"]


def test_a_place_is_fetched_when_one_goes_there(tmp_path):
    app = 'const load = () => import("./far/place.js").then((file) => file.Far);\n'
    assets = build_assets(write_page(tmp_path, app=app, far__place="export const Far = 1;\n"))
    far = next(path for path in assets.files if path.startswith("assets/far."))
    assert f'import("/{far}").then((bundle) => bundle.far$place).then' in read_asset(assets, "app")
    assert far not in assets.index.content.decode()


@pytest.mark.parametrize(
    ("source", "said"),
    [("export default 1;\n", "export default"), ('import "./x.js";\n', "import"), ("export let a = 1;\n", "export let"),
     ('import { a } from "./lib/app-user.js";\n', "import each other")],
)  # fmt: skip
def test_a_form_that_cannot_be_joined_is_named(tmp_path, source, said):
    write_page(tmp_path, app=source, **{"lib__app-user": 'import { b } from "../app.js";\nexport const a = 1;\n'})
    with pytest.raises(ValueError, match=said):
        build_assets(tmp_path)


def test_a_changed_file_is_served_at_once_and_the_page_that_is_open_lives_on(tmp_path):
    client = TestClient(PageFiles(write_page(tmp_path, app="const first = 1;\n")))
    before = re.search(r'src="(/assets/app\.\w+\.js)"', client.get("/").text)[1]
    (tmp_path / "app.js").write_text("const second = 2;\n")
    after = re.search(r'src="(/assets/app\.\w+\.js)"', client.get("/").text)[1]
    assert after != before
    assert "second" in client.get(after).text
    assert "first" in client.get(before).text


def test_assets_are_compressed_once(tmp_path):
    page = PageFiles(write_page(tmp_path, app="const first = 1;\n" * 1000))
    client = TestClient(page)
    path = re.search(r'src="/(assets/app\.\w+\.js)"', client.get("/").text)[1]
    packed = client.get(path, headers={"Accept-Encoding": "gzip"})
    assert page.read_assets().files[path].gzipped is page.read_assets().files[path].gzipped
    assert gzip.decompress(page.read_assets().files[path].gzipped).decode() == packed.text
    again = client.get(path, headers={"Accept-Encoding": "gzip", "If-None-Match": packed.headers["ETag"]})
    assert again.status_code == 304


@pytest.mark.browser
def test_opening_the_page_asks_for_less_than_forty_files(open_page):
    page = open_page("/")
    page.locator('[data-place="plan"]:not(.stale)[aria-busy="false"] [data-figure="step"] data').wait_for()
    names = page.evaluate('performance.getEntriesByType("resource").map(({ name }) => name)')
    assert 0 < len(names) < 40
    assert [name for name in names if re.search(r"\.(js|css)$", name) and "/assets/" not in name] == []


@pytest.mark.browser
@pytest.mark.parametrize(
    "place", ["accuracy", "communication", "timeline", "deploy", "train", "compare", "calibrate", "catalogue"]
)
def test_each_place_opens_from_its_bundle(open_page, place):
    page = open_page("/")
    page.locator(f'nav a[href*="place={place}"]').first.click()
    page.locator(f'[data-place="{place}"], .place > *').first.wait_for()
    assert page.locator(".place[aria-busy]").count() == 0


@pytest.mark.browser
def test_the_page_runs_from_its_source_files(open_page):
    page = open_page("/?debug=1")
    page.locator('[data-place="plan"] [data-figure="step"] data').wait_for()
    assert page.evaluate('performance.getEntriesByType("resource").some(({ name }) => name.endsWith("/plan/place.js"))')
    assert "debug=1" in page.url
