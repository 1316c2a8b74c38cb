"""Hooks of mkdocs: pages that lie outside docs/, and links from pages to files of the source.

The Markdown in docs/ is written to read well in any viewer, so its links lead to README.md, CONTRIBUTING.md or a source
file by relative paths. On the site those either become pages or are shown as plain paths; a link to a file that does
not exist stays, so that `--strict` reports it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "SECURITY.md": "SECURITY.md",
    "benchmarks/RESULTS.md": "RESULTS.md",
}
"""Files of the checkout that are pages of the site, and their place there."""
LINK = re.compile(r"(?P<text>!?\[(?:[^\[\]]|\[[^\[\]]*\])*\])\((?P<target>[^)\s]+)\)")
CODE_OR_LINK = re.compile(rf"(?P<code>```.*?```|`[^`\n]*`)|{LINK.pattern}", re.DOTALL)
"""What comes first in the text wins: a link inside code is left alone, code inside a link belongs to the link."""


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that lie outside docs/."""
    for source, place in PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page to what the site has."""
    place = page.file.src_uri
    source = next((path for path, to in PAGES.items() if to == place), f"docs/{place}")
    return CODE_OR_LINK.sub(
        lambda match: match[0] if match["code"] else rewrite_link(match, source, place),
        markdown,
    )


def rewrite_link(link: re.Match[str], source: str, place: str) -> str:
    """One link of a page: to another page, as a plain path where it leads to a source file, or unchanged."""
    target, _, anchor = link["target"].partition("#")
    if not target or "://" in target or target.startswith("mailto:"):
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    page = PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
    if page is None and path in ("README.md", "README_zh.md"):
        page = "index.md"
    if page is not None and (path in PAGES or path.startswith("README") or (ROOT / path).is_file()):
        relative = posixpath.relpath(page, posixpath.dirname(place) or ".")
        return f"{link['text']}({relative}{'#' + anchor if anchor else ''})"
    if (ROOT / path).exists():
        return f"{link['text'].strip('![]')} (`{path}`)"
    return link[0]
