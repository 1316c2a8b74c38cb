from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from crosszone import measured

ROOT = Path(__file__).resolve().parents[1]

settings.register_profile("crosszone", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("crosszone")
os.environ.pop("CROSSZONE_LANG", None)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's own, empty, and an English locale."""
    folder = tmp_path / "home"
    monkeypatch.setenv("CROSSZONE_HOME", str(folder))
    for key in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.setenv(key, "C.UTF-8")
    return folder


@pytest.fixture
def data() -> Path:
    """The measured runs that come with the program."""
    return measured.FOLDER
