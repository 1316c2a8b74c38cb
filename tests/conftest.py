from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import effort
from crosszone import measured

ROOT = Path(__file__).resolve().parents[1]

os.environ.pop("CROSSZONE_LANG", None)
# A shell without job control starts what is put behind "&" with SIGINT ignored, and every program started by the tests
# would inherit that: Ctrl-C is tested too.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["timing"]

REAL = ("browser", "framework", "cluster")
TOGETHER = {
    "trainer_parts": "tests/deploy/test_trainer_parts.py",
    "trainer_model": "tests/deploy/test_trainer_model.py",
    "slurm": ("tests/deploy/test_slurm.py", "tests/run/test_slurm_task.py"),
    "ray": ("tests/deploy/test_ray.py", "tests/run/test_ray_runner.py"),
    "zones": ("tests/run/test_end_to_end.py", "tests/run/test_emulate.py", "tests/run/test_network.py"),
}
"""Files that share something dear to start: one worker takes all tests of such a group."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What starts frameworks, browsers or clusters may take longer than the limit of pyproject.toml."""
    limit_s = effort.amount(usual=600, long=1800)
    for item in items:
        if any(item.get_closest_marker(name) for name in REAL):
            item.add_marker(pytest.mark.timeout(limit_s))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal tests out one by one, and the groups whole; markers of groups do not reach the scheduler under pytest 9."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((group for group, files in TOGETHER.items() if nodeid.startswith(files)), nodeid)

    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's own, empty, and an English locale."""
    folder = tmp_path / "home"
    monkeypatch.setenv("CROSSZONE_HOME", str(folder))
    for key in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.setenv(key, "C.UTF-8")
    if "crosszone.cli.output" in sys.modules:
        sys.modules["crosszone.cli.output"].set_language(None)  # a command of an earlier test chose one
    return folder


@pytest.fixture
def data() -> Path:
    """The measured runs that come with the program."""
    return measured.FOLDER


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Call a command in this process; gives exit status, standard output and standard error."""
    from crosszone.cli import run

    def call(*arguments: object, language: str = "en") -> tuple[int, str, str]:
        words = [str(argument) for argument in arguments]
        status = run(words if "--lang" in words else ["--lang", language, *words])
        return (status, *capsys.readouterr())

    return call
