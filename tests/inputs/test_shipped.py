"""Shipped YAML is parsed once and read from the cache until its content changes."""

from __future__ import annotations

import json

import pytest

from crosszone.inputs import shipped
from crosszone.inputs.shipped import read_shipped

PACKAGE, PATH = "crosszone.inputs", "numerics.yaml"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "crosszone" / f"{PACKAGE}.{PATH}.json"


@pytest.fixture
def parsed(monkeypatch):
    """Names of the files that were parsed, in order."""
    names = []
    parse = shipped.parse_document
    monkeypatch.setattr(shipped, "parse_document", lambda text, name: (names.append(name), parse(text, name))[1])
    return names


def test_a_file_is_parsed_once(cache, parsed):
    first, second = read_shipped(PACKAGE, PATH), read_shipped(PACKAGE, PATH)
    assert parsed == [PATH]
    assert first.value == second.value and second.file == PATH
    assert json.loads(cache.read_text(encoding="utf-8"))["value"] == first.value


@pytest.mark.parametrize("content", ['{"digest": "another", "value": {}}', "{cut of", "[]", "{}"])
def test_a_cache_of_another_content_or_cut_off_is_written_anew(cache, parsed, content):
    cache.parent.mkdir(parents=True)
    cache.write_text(content, encoding="utf-8")
    value = read_shipped(PACKAGE, PATH).value
    assert value and read_shipped(PACKAGE, PATH).value == value
    assert parsed == [PATH]
    assert [file.name for file in cache.parent.iterdir()] == [cache.name]


def test_a_folder_that_cannot_be_written_costs_time_and_nothing_else(tmp_path, monkeypatch, parsed):
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert read_shipped(PACKAGE, PATH).value == read_shipped(PACKAGE, PATH).value
    assert parsed == [PATH, PATH]
