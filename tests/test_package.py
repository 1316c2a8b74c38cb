"""The wheel and the source distribution: complete, usable outside the checkout, and free of words about other folders."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from conftest import ROOT

pytestmark = pytest.mark.slow
BUILD = "import sys; from hatchling import build; print(getattr(build, sys.argv[1])(sys.argv[2]))"


def build_in(checkout: Path, kind: str, target: Path) -> Path:
    """Build a wheel (`build_wheel`) or a source distribution (`build_sdist`) of a checkout."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, kind, str(target)], cwd=checkout, check=True, capture_output=True, text=True
    )
    return target / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel of this checkout."""
    return build_in(ROOT, "build_wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    """The folder of an unpacked source distribution of this checkout."""
    target = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build_in(ROOT, "build_sdist", target)) as archive:
        archive.extractall(target, filter="data")
    (folder,) = (path for path in target.iterdir() if path.is_dir())
    return folder


def test_the_wheel_predicts_and_serves_its_files_without_the_checkout(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "CROSSZONE_HOME": str(tmp_path / "home")}
    script = (
        "import crosszone, crosszone.web.app; from pathlib import Path; here = Path(crosszone.__file__).parent; "
        "print(here); print(crosszone.predict(crosszone.load_scenario(here / 'examples' / 'three-cities.yaml')).step_time_s.expected)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    folder, step_time_s = done.stdout.split()
    assert folder == str(tmp_path / "site" / "crosszone")
    assert float(step_time_s) > 0
    names = {path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file()}
    assert {"web/static/index.html", "text/zh.json", "formulas.md", "deploy/trainer/run.py"} <= names
    assert any(name.startswith("web/static/vendor/") for name in names)


def test_the_wheel_holds_the_program_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {"crosszone", f"{wheel.name.split('-py3')[0]}.dist-info"}
    assert not [name for name in names if re.search(r"(^|/)(tests?|benchmarks|studies|__pycache__)/", name)]


def test_a_wheel_made_of_the_source_distribution_is_the_same(wheel, sdist, tmp_path):
    other = build_in(sdist, "build_wheel", tmp_path)
    with zipfile.ZipFile(wheel) as mine, zipfile.ZipFile(other) as theirs:
        assert {i.filename: i.CRC for i in mine.infolist()} == {i.filename: i.CRC for i in theirs.infolist()}


def test_no_word_about_a_folder_that_users_do_not_have(sdist):
    """Absolute paths of a developer's machine, and folders beside the checkout."""
    foreign = re.compile(
        r"\.\./shared|(?<![\w.])shared/(?:data|reference|seeds|hooks)|(?<![\w}])/work/\w|(?<![\w}])/root/|/home/(?!USER|user|ml|you|me\b)\w+/"
    )
    found = []
    for path in sorted(sdist.rglob("*")):
        if path.is_file() and path.suffix in (
            ".py",
            ".md",
            ".yaml",
            ".yml",
            ".json",
            ".toml",
            ".js",
            ".css",
            ".html",
            ".sh",
            "",
        ):
            if "vendor" in path.parts or path.name == "test_package.py":
                continue
            text = path.read_text(encoding="utf-8", errors="replace")
            found += [f"{path.relative_to(sdist)}: {match[0]}" for match in foreign.finditer(text)]
    assert not found, found
