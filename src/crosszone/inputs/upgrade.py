"""Older scenario files, brought up to the version of today.

Version 0 is the deployment request of the CrossZonedllm prototype (`regions`, `gpusPerRegion`, `modelSize`,
`batchSize`, `dp`, `pp`, `tp`): it knows no sequence length and no GPU kind, so these are assumed and remarked upon.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from crosszone.errors import InvalidError, Notice
from crosszone.inputs.document import Document
from crosszone.inputs.value import nearest

VERSION: Literal[1] = 1

Fields = dict[str, Any]


def upgraded(document: Document) -> tuple[Fields, list[Notice]]:
    """The document's fields in the form of today, and what had to be decided for it."""
    fields: Fields = dict(document.value)
    version = 0 if "gpusPerRegion" in fields else fields.get("version", VERSION)
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version <= VERSION:
        notice = Notice(code="version_unknown", field="version", value=version, params={"newest": VERSION})
        raise InvalidError(notice.at(document.file or None, document.line(("version",))))
    notices: list[Notice] = []
    for step in range(version, VERSION):
        fields = UPGRADES[step](fields, notices, document)
        params = {"old": step, "new": step + 1}
        notices.append(Notice(code="upgraded", field="version", value=step, level="note", params=params))
    return fields, notices


def _from_prototype(old: Fields, notices: list[Notice], document: Document) -> Fields:
    """The prototype's request as a scenario."""

    def refuse(code: str, key: str, /, **params: Any) -> InvalidError:
        value = key if code == "unknown_key" else old.get(key)
        notice = Notice(code=code, field=key, value=value, params=params)
        return InvalidError(notice.at(document.file or None, document.line((key,))))

    if "gpusPerRegion" not in old:
        raise refuse("missing_key", "gpusPerRegion", key="gpusPerRegion")
    for key in old:
        if key not in PROTOTYPE_KEYS:
            raise refuse("unknown_key", key, nearest=nearest(key, PROTOTYPE_KEYS)[:1] or list(PROTOTYPE_KEYS))
    gpus = old["gpusPerRegion"]
    if not isinstance(gpus, list):
        raise refuse("must_be_list", "gpusPerRegion")
    if old.get("regions", len(gpus)) != len(gpus):
        raise refuse("prototype_regions", "regions", given=len(gpus))
    said: Fields = {**PROTOTYPE_ASSUMES, **{key: old[key] for key in ("bandwidth", "latency") if key in old}}
    for key, value in said.items():
        if key not in old:
            notices.append(Notice(code="prototype_assumes", field=key, value=value, level="warning"))
    zones = [
        {"name": f"region-{n + 1}", "nodes": [{"count": 1, "gpus": g, "gpu": said["gpu"]}]} for n, g in enumerate(gpus)
    ]
    degrees = {key: old[key] for key in ("dp", "pp", "tp") if key in old}
    fields: Fields = {
        "version": 1,
        "name": "from a prototype's request",
        "model": {"size_b": old.get("modelSize")},
        "job": {"seq_len": said["seq_len"], "global_batch": old.get("batchSize")},
        "cluster": {"zones": zones, "default_link": {"gbps": said["bandwidth"], "rtt_ms": said["latency"]}},
    }
    return fields | ({"strategy": degrees} if degrees else {})


PROTOTYPE_KEYS = (
    "version",
    "regions",
    "gpusPerRegion",
    "modelSize",
    "batchSize",
    "dp",
    "pp",
    "tp",
    "latency",
    "bandwidth",
)

PROTOTYPE_ASSUMES: dict[str, Any] = {"seq_len": 2048, "gpu": "a100-80gb-sxm", "bandwidth": 10, "latency": 50}
"""What a request could not say (length, GPU kind) or need not (Gbit/s and ms: the defaults of its page)."""

UPGRADES: dict[int, Callable[[Fields, list[Notice], Document], Fields]] = {0: _from_prototype}
"""The function that brings a version to the next one."""
