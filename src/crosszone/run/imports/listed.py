"""Environments as a YAML file lists them.

environments:
  - {id: env-001, name: pytorch-dev-env, zone: beijing-a, address: 10.0.1.7, gpu: a100-80gb-sxm, gpus: 2}
"""

from __future__ import annotations

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.document import Document
from crosszone.inputs.environment import Environment
from crosszone.inputs.value import parse

MOST = 10_000


def listed(document: Document) -> dict[str, Environment]:
    """The environments of a file by id (their name where they have none); an error names the line."""
    rows = document.value.get("environments") if isinstance(document.value, dict) else document.value
    if not isinstance(rows, list):
        raise InvalidError(document.placed(Notice(code="must_be_list", field="environments", value=rows)))
    found: dict[str, Environment] = {}
    for index, row in enumerate(rows[:MOST]):
        fields = dict(row) if isinstance(row, dict) else row
        id = str(fields.pop("id", None) or fields.get("name") or "") if isinstance(fields, dict) else ""
        environment = parse(Environment, fields, document, at=("environments", index))
        if id in found:
            notice = Notice(code="registered_twice", field=f"environments[{index}].id", value=id)
            raise InvalidError(document.placed(notice))
        found[id] = environment
    return found
