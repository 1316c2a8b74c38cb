"""What an install holds, and what a verb says that needs more."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest

from conftest import ROOT
from crosszone import extras
from crosszone.cli import run
from crosszone.extras import MODULES, MissingExtraError, format_install_command, require_extra

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
DISTRIBUTIONS = {"sklearn": "scikit-learn"}


@pytest.fixture
def bare(monkeypatch):
    """As if only the core was installed."""
    there = extras.find_spec
    optional = {name for names in MODULES.values() for name in names}
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in optional else there(name))


def test_each_extra_holds_the_packages_that_are_looked_for():
    for extra, names in MODULES.items():
        assert {re.split(r"[>=\[]", line)[0] for line in EXTRAS[extra]} == {DISTRIBUTIONS.get(n, n) for n in names}
    assert EXTRAS["all"] == [f"crosszone[{','.join(MODULES)}]"]


def test_an_extra_that_is_there_is_not_asked_for():
    require_extra("excel")


def test_a_missing_extra_names_the_packages_and_the_command(bare):
    with pytest.raises(MissingExtraError) as caught:
        require_extra("calibrate")
    (notice,) = caught.value.notices
    assert "scipy, sklearn" in notice.message()
    assert "./crosszone install calibrate" in notice.hint()
    assert "./crosszone install calibrate" in notice.hint("zh")


def test_outside_a_checkout_pip_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "site-packages" / "crosszone" / "extras.py"))
    assert format_install_command("excel") == 'pip install "crosszone[excel]"'


@pytest.mark.parametrize(
    "command",
    [
        ["calibrate", "sheet", "-o", "{folder}/sheet.xlsx"],
        ["sweep", "examples/single-node.yaml", "--x", "job.global_batch=64,128", "--png", "{folder}/sweep.png"],
    ],
)
def test_a_verb_that_lacks_its_extra_says_which_command_installs_it(bare, command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert run([word.format(folder=tmp_path) for word in command]) == 2
    assert "./crosszone install" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_launcher_refuses_an_extra_that_there_is_not():
    done = subprocess.run([ROOT / "crosszone", "install", "exel"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "excel" in done.stderr
