"""The keys of `--set` as a JSON Schema and a table: `python -m crosszone.deploy.schema docs`."""

from __future__ import annotations

import sys
from pathlib import Path

from crosszone.deploy.settings import LaunchSettings
from crosszone.inputs.document import dump_json
from crosszone.inputs.schema import file_name, json_schema, tables_of
from crosszone.inputs.value import Value

NAME = "launch-settings"
ROOTS: dict[str, type[Value]] = {NAME: LaunchSettings}


def settings_table() -> str:
    """Every key of `--set` with type, default and meaning, as Markdown."""
    head = ["# Every key of `--set`", "", "Made by `python -m crosszone.deploy.schema docs`; do not edit.", ""]
    return "\n".join([*head, *tables_of(json_schema(NAME, ROOTS), "LaunchSettings")])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / f"{NAME}.md").write_text(settings_table(), encoding="utf-8")
    (folder / "schema" / file_name(NAME)).write_text(dump_json(json_schema(NAME, ROOTS)), encoding="utf-8")
