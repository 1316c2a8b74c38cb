"""How answers leave a verb: tables, lines and notices for people, one JSON document for programs, and files.

The language of the run is kept here too; `label` says a key of the texts in it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crosszone.errors import InputError, InvalidError, Notice, build_choice_error
from crosszone.text import LANGUAGES, detect_language
from crosszone.text import label as render_label

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from crosszone.views.answer_text import AnswerText
    from crosszone.views.document import Block, Section


_chosen_language: list[str] = []  # the language of this run, set once by `--lang`; empty: the user's locale


def set_language(code: str | None) -> None:
    """Use a language for this run; None: the user's locale."""
    if code is not None and code not in LANGUAGES:
        raise build_choice_error("--lang", code, LANGUAGES)
    _chosen_language[:] = [code or detect_language()]


def get_language() -> str:
    """The language of this run."""
    return _chosen_language[0] if _chosen_language else detect_language()


def label(key: str, **params: Any) -> str:
    """A label in the language of this run."""
    return render_label(key, get_language(), **params)


def is_json_asked(arguments: Sequence[str]) -> bool:
    """The user asked for JSON, also when the command line is otherwise wrong."""
    return "--json" in arguments


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    # NaN is no JSON: `allow_nan` would write a document that browsers refuse
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def open_console(*, stderr: bool = False) -> Console:
    """The terminal; text is printed as it is, and lines are wide enough not to be cut when nobody looks."""
    from rich.console import Console

    # rich takes 80 columns for a pipe, and would fold lines that a script reads
    width = None if (sys.stderr if stderr else sys.stdout).isatty() else 200
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def get_text() -> AnswerText:
    """What answers say, in the language of this run."""
    from crosszone.views.answer_text import AnswerText

    return AnswerText(get_language())


def print_sections(sections: Iterable[Section]) -> None:
    """An answer as `views` makes sections of it."""
    from crosszone.views.terminal import print_sections

    print_sections(sections, open_console())


def print_blocks(*blocks: Block) -> None:
    """Blocks of an answer, one below the other."""
    from crosszone.views.document import Section

    print_sections([Section(blocks=blocks)])


def print_line(key: str, /, *, stderr: bool = False, style: str = "", wraps: bool = False, **params: Any) -> None:
    """A sentence; where it `wraps`, a narrow terminal breaks it between words."""
    open_console(stderr=stderr).print(label(key, **params), style=style, soft_wrap=not wraps)


def print_outcome(as_json: bool, document: Any, key: str, /, **params: Any) -> None:
    """What a command did: a document for programs, a sentence for people."""
    if as_json:
        print_json(document)
    else:
        print_line(key, **params)


def localize(notices: Iterable[Notice]) -> list[dict[str, Any]]:
    """Notices in the language of this run, as documents have them."""
    return [notice.as_dict(get_language()) for notice in notices]


def print_notices(notices: Iterable[dict[str, Any]], *, stderr: bool = False) -> None:
    """Each notice (as `Notice.as_dict` gives it) with its place, level and remedy."""
    from crosszone.views.terminal import print_remarks

    print_remarks(get_text().list_remarks(notices), open_console(stderr=stderr))


def print_failure(notices: Sequence[Notice], as_json: bool) -> None:
    """Say what went wrong: on standard error, or as JSON on standard output."""
    if as_json:
        print_json({"errors": localize(notices)})
    else:
        print_notices(localize(notices), stderr=True)


# --- progress

PATIENCE_S = 0.5  # Seconds before a bar is drawn: a quick answer needs none

Progress = Callable[[str, int, int], None]  # What is being done, how much of it is, and of how much


@contextmanager
def open_progress_bar() -> Iterator[Progress | None]:
    """A function that takes progress; None where standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress as Bar

    bar = Bar(console=open_console(stderr=True), transient=True)
    tasks: dict[str, TaskID] = {}
    began = time.monotonic()

    def advance(what: str, done: int, of: int) -> None:
        if time.monotonic() - began < PATIENCE_S:
            return
        # only with the first task: an empty bar would flash for answers that are just not instant
        if not tasks:
            bar.start()
        if what not in tasks:
            tasks[what] = bar.add_task(label(f"progress_{what}"))
        bar.update(tasks[what], completed=done, total=of)

    try:
        yield advance
    finally:
        if tasks:
            bar.stop()


# --- files


def check_not_existing(path: Path, force: bool) -> None:
    """Refuse a file that exists already, unless it may be overwritten; called before long work."""
    if path.exists() and not force:
        raise InvalidError(Notice(code="output_exists", value=str(path)))


def write_file(path: Path, text: str, force: bool) -> None:
    """Write a text as `write_bytes` does."""
    write_bytes(path, text.encode(), force)


def write_bytes(path: Path, content: bytes, force: bool) -> None:
    """Write a file whole or not at all; what is no plain file (a pipe, a device) is written as it is."""
    try:
        check_not_existing(path, force)
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        # beside the target, for only within one file system is a rename atomic; a link keeps pointing to its file
        target = path.resolve()
        unfinished = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            unfinished.write_bytes(content)
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        params = {"reason": error.strerror or str(error)}
        raise InputError(Notice(code="output_unwritable", value=str(path), params=params)) from None
