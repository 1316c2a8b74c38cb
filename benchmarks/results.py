"""RESULTS.md: each benchmark keeps one section of it."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"


def write_section(title: str, text: str) -> None:
    """Put a section (without its heading) in place of the last one of that title, or at the end; print it."""
    section = f"## {title}\n\n{text.strip()}\n"
    print(section)
    old = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else "# Results\n"
    parts = old.split("\n## ")
    sections = [part for part in parts[1:] if part.partition("\n")[0] != title]
    place = next((i for i, part in enumerate(parts[1:]) if part.partition("\n")[0] == title), len(sections))
    sections.insert(place, section.removeprefix("## "))
    RESULTS.write_text(
        "\n\n## ".join([parts[0].strip(), *(part.strip() for part in sections)]) + "\n", encoding="utf-8"
    )
