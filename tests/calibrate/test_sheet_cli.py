"""`crosszone calibrate sheet`: out, edited, and in again."""

from __future__ import annotations

import json
from functools import partial

import pytest

from calibrate.sheets import small
from conftest import ROOT
from crosszone.store import open_store


@pytest.fixture
def say(say):
    return partial(say, "calibrate", "sheet")


def test_without_a_scenario_the_example_is_written(say, tmp_path):
    book = tmp_path / "book.xlsx"
    status, out, _ = say("-o", str(book), "--json")
    assert status == 0
    assert json.loads(out) == {"output": str(book), "bytes": book.stat().st_size, "scenario": "example"}
    status, _, err = say("-o", str(book))
    assert status == 2
    assert "exists" in err


def test_a_scenario_of_several_zones_is_written(say, tmp_path):
    book = tmp_path / "book.xlsx"
    status, _, _ = say("--scenario", str(ROOT / "examples" / "two-zones-7b.yaml"), "-o", str(book))
    assert status == 0
    assert book.exists()


def test_a_workbook_is_read_and_kept(say, tmp_path):
    (tmp_path / "book.xlsx").write_bytes(small(out_gpus=8))
    store = str(tmp_path / "store.db")
    status, out, _ = say("read", str(tmp_path / "book.xlsx"), "--save", "mine", "--store", store, "--json")
    assert status == 0
    found = json.loads(out)
    assert found["figures"]["step_time_s"] == 16.0
    with open_store(store) as kept:
        result = kept.results.get(found["saved"])
    assert (result.kind, result.name, result.headline["gpus"]["value"]) == ("sheet", "mine", 8.0)
    status, out, _ = say("export", found["saved"], "-o", str(tmp_path / "out.xlsx"), "--store", store, "--json")
    assert status == 0
    assert json.loads(out)["formulas"] is False
    status, out, _ = say("read", str(tmp_path / "out.xlsx"))
    assert status == 0
    assert "16" in out


def test_a_bad_workbook_leaves_nothing_behind(say, tmp_path):
    (tmp_path / "book.xlsx").write_bytes(small(out_forward_s="=1/0"))
    store = str(tmp_path / "store.db")
    status, out, err = say("read", str(tmp_path / "book.xlsx"), "--save", "mine", "--store", store)
    assert status == 2
    assert out == ""
    assert "Output!B2" in err
    with open_store(store) as kept:
        assert kept.results.page(limit=5).rows == ()


def test_a_missing_file_is_told_as_json(say):
    status, out, _ = say("read", "no-such.xlsx", "--json")
    assert status == 2
    assert json.loads(out)["errors"][0]["code"] == "file_missing"
