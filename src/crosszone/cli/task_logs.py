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
    from_start: bool,
    as_json: bool,
) -> None:
    """Print logs, list them, or follow them until the task ends."""
    log_files = service.logs(id)
    if files:
        _print_files(log_files, as_json)
        return
    chosen = select_logs(log_files, rank, node)
    readings = [Reading(item, 0 if from_start else max(0, item.bytes - END)) for item in chosen]
    if as_json:
        print_json(
            {
                "logs": [
                    {**item.file.model_dump(mode="json"), "text": _read_rest(service, id, item)} for item in readings
                ]
            }
        )
        return
    if not log_files:
        open_console().print(label("task_no_logs"), soft_wrap=True)
    last: Reading | None = None
    while True:
        live = service.store.tasks.get(id).state in _get_live_states()
        for item in readings:
            text = _read_rest(service, id, item)
            if text:
                last = _print(item, text, last, alone=len(readings) == 1)
        if not follow or not live:
            return
        time.sleep(PAUSE_S)
        seen_keys = {(item.file.node, item.file.name) for item in readings}
        new_files = [
            item
            for item in select_logs(service.logs(id), rank, node, strict=False)
            if (item.node, item.name) not in seen_keys
        ]
        readings += [Reading(item, 0) for item in new_files]


def select_logs(
    log_files: Sequence[LogFile], rank: int | None, node: int | None, *, strict: bool = True
) -> list[LogFile]:
    """The logs of a rank (of its newest start), or of every node, or of one."""
    if rank is not None:
        of_rank = [file for file in log_files if file.rank == rank]
        if strict and log_files and not of_rank:
            numbers = sorted({str(file.rank) for file in log_files if file.rank is not None}) or ["-"]
            raise UnknownNameError(Notice(code="task_unknown", field="--rank", value=rank, params={"known": numbers}))
        return of_rank
    chosen = [file for file in log_files if file.name == NODE_LOG and node in (None, file.node)]
    if strict and log_files and not chosen:
        numbers = sorted({str(file.node) for file in log_files})
        raise UnknownNameError(Notice(code="task_unknown", field="--node", value=node, params={"known": numbers}))
    return chosen


def _read_rest(service: Service, id: str, reading: Reading) -> str:
    """What was written since, and where reading goes on."""
    text = []
    while True:
        part = service.log(id, node=reading.file.node, name=reading.file.name, offset=reading.offset, most=PART)
        text.append(part.text)
        if part.next <= reading.offset or part.next >= part.size:
            reading.offset = max(reading.offset, part.next)
            return "".join(text)
        reading.offset = part.next


def _print(reading: Reading, text: str, last: Reading | None, *, alone: bool) -> Reading:
    """Text as it is, under a heading where it is another log's than before; control characters are left out."""
    if reading is not last and not alone:
        open_console().print(f"==> {reading.file.environment}, {reading.file.name} <==", style="bold", soft_wrap=True)
    printable = "".join(c for c in text if c.isprintable() or c in "\n\t")
    sys.stdout.write(printable if printable.endswith("\n") or alone else printable + "\n")
    sys.stdout.flush()
    return reading


def _print_files(log_files: Sequence[LogFile], as_json: bool) -> None:
    if as_json:
        print_json({"files": [file.model_dump(mode="json") for file in log_files]})
        return
    if not log_files:
        open_console().print(label("task_no_logs"), soft_wrap=True)
        return
    columns = [
        ("task_node", "right"),
        ("task_environment", "left"),
        ("deploy_ranks", "right"),
        ("dataset_bytes", "right"),
    ]
    rows = build_table(label("task_logs"), [*columns, ("bundle_file", "left")])
    for file in log_files:
        rows.add_row(
            str(file.node),
            file.environment,
            "-" if file.rank is None else str(file.rank),
            format_amount(file.bytes),
            file.name,
        )
    open_console().print(rows)


def _get_live_states() -> tuple[str, ...]:
    from crosszone.store.tasks import LIVE

    return LIVE
