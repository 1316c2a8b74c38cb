"""The documentation: its site builds with every link leading somewhere, and its guides say what the program says."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from conftest import ROOT

MKDOCS = ROOT / ".venv-docs" / "bin" / "mkdocs"
TRAIN_PYTHON = ROOT / ".venv-train" / "bin" / "python"
needs_torch = pytest.mark.skipif(not TRAIN_PYTHON.exists(), reason="needs .venv-train (./test makes it)")


def load_script(name: str) -> ModuleType:
    """A file of `scripts/`."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read_shell_commands(page: str) -> list[str]:
    """The commands of a page's bash blocks, in order, without comments; continued lines joined."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.strip()]


@pytest.mark.slow
@pytest.mark.skipif(not MKDOCS.exists(), reason="needs .venv-docs (./test makes it)")
def test_the_site_builds_without_a_broken_link(tmp_path):
    done = subprocess.run(
        [MKDOCS, "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    pages = {path.relative_to(tmp_path / "site").as_posix() for path in (tmp_path / "site").rglob("*.html")}
    assert {"index.html", "first-plan.html", "CONTRIBUTING.html", "decisions/index.html", "RESULTS.html"} <= pages
    # The site loads nothing from other hosts.
    start = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert not re.findall(r'<(?:script|link)[^>]+(?:src|href)="https?://[^"]+\.(?:js|css)"', start)


def test_every_page_has_a_place_in_the_reading_order():
    listed = set(re.findall(r"[\w/.-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= listed, sorted(pages - listed)


def test_every_decision_is_dated_and_listed():
    index = (ROOT / "docs" / "decisions" / "index.md").read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        title, date = re.match(r"# \d{4} (.+)\n\n(\d{4}-\d\d-\d\d),", path.read_text(encoding="utf-8")).groups()
        assert f"[{path.name[:4]}]({path.name}) | {title} | {date} |" in index


def test_the_list_of_modules_is_that_of_the_tree():
    page = (ROOT / "docs" / "modules.md").read_text(encoding="utf-8")
    assert page == load_script("module_list").render_page(), "run: .venv/bin/python scripts/module_list.py"


@pytest.mark.slow
@pytest.mark.parametrize("page", ["first-plan.md", "first-bundle.md"])
def test_the_program_answers_as_a_guide_shows(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert text == load_script("readme").fill_guide(text), "run: .venv/bin/python scripts/readme.py"


@needs_torch
@pytest.mark.framework
def test_the_commands_of_the_first_bundle_work(tmp_path):
    text = (ROOT / "docs" / "first-bundle.md").read_text(encoding="utf-8")
    (scenario,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "here.yaml").write_text(scenario, encoding="utf-8")
    commands = read_shell_commands("first-bundle.md")
    assert [shlex.split(command)[0] for command in commands] == ["./crosszone", "cd", "python3", "bash"]
    done = run_as_typed(commands, tmp_path)
    assert done.returncode == 0, done.stdout[-2000:]
    assert re.findall(r"^step (\d)  loss", done.stdout, re.MULTILINE) == list("12345")
    assert (tmp_path / "bundle" / "out" / "checkpoints").is_dir()


@needs_torch
@pytest.mark.framework
def test_the_commands_of_the_first_task_work(tmp_path):
    commands = read_shell_commands("first-task.md")
    assert [shlex.split(command)[1] for command in commands] == ["env", "env", "dataset", "model", "task", "task"]
    text = (ROOT / "docs" / "first-task.md").read_text(encoding="utf-8")
    (model,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "tiny.yaml").write_text(model, encoding="utf-8")
    done = run_as_typed(commands, tmp_path)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "succeeded" in done.stdout


def run_as_typed(commands: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a guide's commands in one shell, in a folder of its own, where `python3` is one that has torch."""
    python = ROOT / ".venv" / "bin" / "python"
    start = f"""#!/usr/bin/env bash\nexec {shlex.quote(str(python))} -m crosszone "$@"\n"""
    (folder / "crosszone").write_text(start, encoding="utf-8")
    (folder / "crosszone").chmod(0o755)
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(commands)],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{TRAIN_PYTHON.parent}:{os.environ['PATH']}",
            "CROSSZONE_HOME": str(folder / "home"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
