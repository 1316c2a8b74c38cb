"""Writes docs/modules.md: one line for each module, from its docstring: `.venv/bin/python scripts/module_list.py`.

`tests/test_docs_site.py` fails while the page differs from what this would write.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "crosszone"
PAGE = ROOT / "docs" / "modules.md"
FOLDER = re.compile(r"^\| `(\w+)/` \|", re.MULTILINE)
"""A folder in the first table of architecture.md, whose order is that of the data."""
HEAD = """# Modules

Made from the first sentence of each file's docstring by `scripts/module_list.py`.
How they work together: [architecture](architecture.md).
"""


def render_page() -> str:
    """The page as it is to be."""
    order = FOLDER.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    missing = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()} - set(order)
    if missing:
        raise ValueError(f"packages that docs/architecture.md does not list: {', '.join(sorted(missing))}")
    parts = [HEAD, *(render_package(name) for name in order)]
    return "\n".join(parts)


def render_package(name: str) -> str:
    """A package's heading and table; its subpackages stand under their folder."""
    folder = SOURCE / name
    rows = [
        f"| `{path.relative_to(folder).as_posix()}` | {sentence} |"
        for path in sorted(folder.rglob("*.py"), key=lambda path: (len(path.relative_to(folder).parts) > 1, path))
        if "versions" not in path.parts and (sentence := read_first_sentence(path))
    ]
    return "\n".join([f"## {name}/", "", "| file | holds |", "|---|---|", *rows, ""])


def read_first_sentence(path: Path) -> str:
    """A module's docstring up to its first full stop, as one line; empty for an empty `__init__`."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    end = paragraph.find(". ")
    sentence = paragraph if end < 0 else paragraph[:end]
    return sentence.rstrip(".").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render_page(), encoding="utf-8")
    print(PAGE)
