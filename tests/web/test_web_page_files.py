"""The files of the page: vendored code as published, strings complete in both languages."""

import hashlib
import json
import re

import pytest

from crosszone.text import LANGUAGES, load_texts
from crosszone.web.app import STATIC

VENDOR = STATIC / "vendor"
SCRIPTS = [path for path in sorted(STATIC.rglob("*.js")) if path.parent != VENDOR]


def strings(language):
    def flat(group, before=""):
        for key, value in group.items():
            if isinstance(value, dict):
                yield from flat(value, f"{before}{key}.")
            else:
                yield before + key, value

    return dict(flat(load_texts(language)["page"]))


def test_vendored_files_are_as_published():
    manifest = json.loads((VENDOR / "manifest.json").read_text("utf-8"))
    for entry in manifest:
        assert hashlib.sha256((VENDOR / entry["file"]).read_bytes()).hexdigest() == entry["sha256"]
        for part in (entry, *entry["holds"]):
            assert part["name"]
            assert part["version"]
            assert part["licence"]
            assert (VENDOR / part["licence_file"]).read_text("utf-8").strip()


def test_every_vendored_file_stands_in_the_manifest():
    manifest = json.loads((VENDOR / "manifest.json").read_text("utf-8"))
    listed = {"manifest.json"} | {entry["file"] for entry in manifest}
    listed |= {part["licence_file"] for entry in manifest for part in (entry, *entry["holds"])}
    assert {path.name for path in VENDOR.iterdir() if not path.name.endswith(".d.ts")} == listed


def test_the_pages_strings_have_equal_keys_and_parameters_in_all_languages():
    first, *others = (strings(language) for language in LANGUAGES)
    for other in others:
        assert set(other) == set(first)
        for key, value in first.items():
            assert sorted(re.findall(r"(?<!{){(\w+)}", value)) == sorted(re.findall(r"(?<!{){(\w+)}", other[key])), key
            assert other[key].strip()


def test_each_string_the_scripts_ask_for_is_there():
    known = set(strings("en"))
    asked = set()
    for script in SCRIPTS:
        source = script.read_text("utf-8")
        asked |= set(re.findall(r'\bt\("([\w.]+)"', source))
        for prefix in re.findall(r"\bt\(`([\w.]+)\.\$\{", source):
            assert any(key.startswith(f"{prefix}.") for key in known), f"{script.name}: {prefix}"
    assert len(asked) > 50
    assert asked - known == set()


def test_no_string_is_left_that_nothing_asks_for():
    source = "\n".join(path.read_text("utf-8") for path in [*SCRIPTS, *STATIC.parent.glob("*.py")])
    groups = set(re.findall(r"\bt\(`([\w.]+)\.\$\{", source)) | {"notice"}
    for key in strings("en"):
        word = key.removesuffix("_one").rpartition(".")[2]
        grouped = {key.partition(".")[0], key.rpartition(".")[0]} & groups
        assert key.removesuffix("_one") in source or word in source or grouped, key


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_each_figure_of_the_catalogue_has_a_name(client, language):
    known = set(strings(language))
    for kind in ("gpus", "models", "regions"):
        for entry in client.get(f"/api/v1/catalogue/{kind}").json():
            figures = client.get(f"/api/v1/catalogue/{kind}/{entry['name']}").json()["figures"]
            missing = {figure["figure"] for figure in figures if f"figure.{figure['figure']}" not in known}
            assert not missing, f"add page.figure.* to text/{language}.json"


def test_scripts_hold_no_sentences_and_no_colours():
    for script in SCRIPTS:
        source = re.sub(r"//.*|/\*.*?\*/", "", script.read_text("utf-8"))
        assert not re.search(r"#[0-9a-fA-F]{6}\b", source), script.name
        assert script.name == "text.js" or not re.search(r"[\u4e00-\u9fff]", source), script.name


def test_colours_stand_in_the_tokens_only():
    for sheet in (STATIC / "style").glob("*.css"):
        if sheet.name != "tokens.css":
            assert not re.search(
                r"#[0-9a-fA-F]{3,8}\b(?!-)|rgba?\(|hsla?\(", sheet.read_text("utf-8").replace("#text-errors", "")
            ), sheet.name


def test_both_themes_set_the_same_tokens():
    tokens = (STATIC / "style" / "tokens.css").read_text("utf-8")
    light, dark = tokens.split(':root[data-theme="dark"]')
    shared = {"--sans", "--mono", "--radius", "--on-block"}
    assert set(re.findall(r"(--[\w-]+):", light)) - shared == set(re.findall(r"(--[\w-]+):", dark))
