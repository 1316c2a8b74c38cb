"""Data flows down the list of folders and never back up: a folder imports only from folders above it."""

from __future__ import annotations

import ast
from pathlib import Path

from conftest import ROOT

PACKAGE = ROOT / "src" / "crosszone"
ORDER = [
    "text",
    "measured",
    "errors",
    "extras",
    "inputs",
    "cost",
    "schedule",
    "predict",
    "plan",
    "analyse",
    "calibrate",
    "deploy",
    "store",
    "run",
    "views",
    "web",
    "cli",
]


def folder(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
        found |= {name.split(".")[1] for name in names if name.startswith("crosszone.")}
    return found


SOURCES = [path for path in sorted(PACKAGE.rglob("*.py")) if folder(path) not in ("__init__", "__main__")]


def test_every_folder_has_its_place_in_the_order():
    assert {folder(path) for path in SOURCES} <= set(ORDER)


def test_a_folder_imports_only_from_folders_above_it():
    upwards = {
        str(path.relative_to(PACKAGE)): above
        for path in SOURCES
        if (above := [name for name in imported(path) if ORDER.index(name) > ORDER.index(folder(path))])
    }
    assert upwards == {}


def test_files_stay_short_enough_to_hold_one_noun():
    long = {
        str(p.relative_to(PACKAGE)): n for p in SOURCES if (n := len(p.read_text(encoding="utf-8").splitlines())) > 800
    }
    assert long == {}
