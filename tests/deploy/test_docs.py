"""What the documents say of launch settings is what the code has."""

from __future__ import annotations

import json

from conftest import ROOT
from crosszone.deploy.schema import NAME, ROOTS, build_settings_table
from crosszone.inputs.schema import build_json_schema, format_file_name

AGAIN = "run: python -m crosszone.deploy.schema docs"


def test_the_table_of_settings_is_that_of_the_code():
    assert (ROOT / "docs" / f"{NAME}.md").read_text() == build_settings_table(), AGAIN


def test_the_schema_of_settings_is_that_of_the_code():
    committed = json.loads((ROOT / "docs" / "schema" / format_file_name(NAME)).read_text())
    assert committed == json.loads(json.dumps(build_json_schema(NAME, ROOTS))), AGAIN


def test_every_setting_says_what_it_is():
    for definition in (build_json_schema(NAME, ROOTS), *build_json_schema(NAME, ROOTS)["$defs"].values()):
        assert all(field.get("description") for field in definition["properties"].values())
