"""Puts the tables of the last benchmarks into docs/accuracy.md and docs/evidence.md: `scripts/accuracy_doc.py`.

A place in the document names what stands there, and everything up to its end is replaced:

    <!-- table: Accuracy | source -->        the table of section "Accuracy" whose first heading starts with "source"
    <!-- line: Accuracy | Ranking: -->       the line of that section that starts with "Ranking:"
    <!-- section: H200 profile -->           a whole section
    <!-- end -->

`tests/test_accuracy_doc.py` fails while the document differs from what this would write.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = (ROOT / "docs" / "accuracy.md", ROOT / "docs" / "evidence.md")
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
_PLACE = re.compile(r"<!-- (table|line|section): ([^|>]+?)(?: \| ([^>]+?))? -->\n.*?<!-- end -->", re.DOTALL)
MISSING = "*Not measured yet: benchmarks/RESULTS.md has no such section.*"


def fill_tables(document: str, results: str) -> str:
    """The document with what the results say in each of its places."""
    sections = {part.partition("\n")[0].strip(): part.partition("\n")[2] for part in results.split("\n## ")[1:]}

    def place(found: re.Match[str]) -> str:
        kind, title, start = found[1], found[2], found[3] or ""
        section = sections.get(title)
        text = MISSING if section is None else _extract_table(kind, section, start)
        head = f"<!-- {kind}: {title}{' | ' + start if start else ''} -->"
        return f"{head}\n{text}\n<!-- end -->"

    return _PLACE.sub(place, document)


def _extract_table(kind: str, section: str, start: str) -> str:
    if kind == "section":
        return section.strip()
    lines = section.splitlines()
    first = f"| {start}" if kind == "table" else start
    at = next((number for number, line in enumerate(lines) if line.startswith(first)), None)
    if at is None:
        return MISSING
    end = at + 1
    while kind == "table" and end < len(lines) and lines[end].startswith("|"):
        end += 1
    return "\n".join(lines[at:end])


def main() -> None:
    """Write the documents anew."""
    results = RESULTS.read_text(encoding="utf-8")
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        new = fill_tables(text, results)
        document.write_text(new, encoding="utf-8")
        sys.stdout.write(f"{document.name}: {'changed' if new != text else 'as it was'}\n")


if __name__ == "__main__":
    main()
