"""Logs of a task in the terminal: of its nodes or of one rank, once or as they grow."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crosszone.cli.output import build_table, label, open_console, print_json
from crosszone.errors import Notice, UnknownNameError
from crosszone.text.figures import format_amount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crosszone.run.logs import LogFile
    from crosszone.run.service import Service

END = 16 * 1024  # Bytes of a log's end that are shown; `--whole` shows all
PART = 256 * 1024
PAUSE_S = 1.0
NODE_LOG = "logs/node.log"


@dataclass
class Reading:
    """One log, and how far it was read."""

    file: LogFile
    offset: int


def print_logs(
    service: Service,
    id: str,
    *,
    rank: int | None,
    node: int | None,
    files: bool,
    follow: bool,
    whole: bool,
    as_json: bool,
) -> None:
    """Print logs, list them, or follow them until the task ends."""
    found = service.logs(id)
    if files:
        _print_files(found, as_json)
        return
    chosen = wanted(found, rank, node)
    readings = [Reading(one, 0 if whole else max(0, one.bytes - END)) for one in chosen]
    if as_json:
        print_json(
            {"logs": [{**one.file.model_dump(mode="json"), "text": _rest(service, id, one)} for one in readings]}
        )
        return
    if not found:
        open_console().print(label("task_no_logs"), soft_wrap=True)
    last: Reading | None = None
    while True:
        live = service.store.tasks.get(id).state in _live()
        for one in readings:
            text = _rest(service, id, one)
            if text:
                last = _print(one, text, last, alone=len(readings) == 1)
        if not follow or not live:
            return
        time.sleep(PAUSE_S)
        known = {(one.file.node, one.file.name) for one in readings}
        fresh = [one for one in wanted(service.logs(id), rank, node, strict=False) if (one.node, one.name) not in known]
        readings += [Reading(one, 0) for one in fresh]


def wanted(found: Sequence[LogFile], rank: int | None, node: int | None, *, strict: bool = True) -> list[LogFile]:
    """The logs of a rank (of its newest start), or of every node, or of one."""
    if rank is not None:
        of_rank = [one for one in found if one.rank == rank]
        if strict and found and not of_rank:
            known = sorted({str(one.rank) for one in found if one.rank is not None}) or ["-"]
            raise UnknownNameError(Notice(code="task_unknown", field="--rank", value=rank, params={"known": known}))
        return of_rank
    chosen = [one for one in found if one.name == NODE_LOG and node in (None, one.node)]
    if strict and found and not chosen:
        known = sorted({str(one.node) for one in found})
        raise UnknownNameError(Notice(code="task_unknown", field="--node", value=node, params={"known": known}))
    return chosen


def _rest(service: Service, id: str, one: Reading) -> str:
    """What was written since, and where reading goes on."""
    text = []
    while True:
        part = service.log(id, node=one.file.node, name=one.file.name, offset=one.offset, most=PART)
        text.append(part.text)
        if part.next <= one.offset or part.next >= part.size:
            one.offset = max(one.offset, part.next)
            return "".join(text)
        one.offset = part.next


def _print(one: Reading, text: str, last: Reading | None, *, alone: bool) -> Reading:
    """Text as it is, under a heading where it is another log's than before; control characters are left out."""
    if one is not last and not alone:
        open_console().print(f"==> {one.file.environment}, {one.file.name} <==", style="bold", soft_wrap=True)
    shown = "".join(c for c in text if c.isprintable() or c in "\n\t")
    sys.stdout.write(shown if shown.endswith("\n") or alone else shown + "\n")
    sys.stdout.flush()
    return one


def _print_files(found: Sequence[LogFile], as_json: bool) -> None:
    if as_json:
        print_json({"files": [one.model_dump(mode="json") for one in found]})
        return
    if not found:
        open_console().print(label("task_no_logs"), soft_wrap=True)
        return
    columns = [
        ("task_node", "right"),
        ("task_environment", "left"),
        ("deploy_ranks", "right"),
        ("dataset_bytes", "right"),
    ]
    rows = build_table(label("task_logs"), [*columns, ("bundle_file", "left")])
    for one in found:
        rows.add_row(
            str(one.node),
            one.environment,
            "-" if one.rank is None else str(one.rank),
            format_amount(one.bytes),
            one.name,
        )
    open_console().print(rows)


def _live() -> tuple[str, ...]:
    from crosszone.store.tasks import LIVE

    return LIVE
