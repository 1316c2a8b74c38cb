"""The keys of `--set` as a JSON Schema and a table: `python -m crosszone.deploy.schema docs`."""

from __future__ import annotations

import sys
from pathlib import Path

from crosszone.deploy.settings import LaunchSettings
from crosszone.inputs.document import dump_json
from crosszone.inputs.schema import build_json_schema, format_file_name, format_tables
from crosszone.inputs.value import Value

NAME = "launch-settings"
ROOTS: dict[str, type[Value]] = {NAME: LaunchSettings}


def build_settings_table() -> str:
    """Every key of `--set` with type, default and meaning, as Markdown."""
    head = ["# Every key of `--set`", "", "Made by `python -m crosszone.deploy.schema docs`; do not edit.", ""]
    return "\n".join([*head, *format_tables(build_json_schema(NAME, ROOTS), "LaunchSettings")])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / f"{NAME}.md").write_text(build_settings_table(), encoding="utf-8")
    (folder / "schema" / format_file_name(NAME)).write_text(dump_json(build_json_schema(NAME, ROOTS)), encoding="utf-8")
