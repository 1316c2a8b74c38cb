from __future__ import annotations

import subprocess
import sys

import crosszone


def test_the_public_names_are_these():
    assert crosszone.__all__ == [
        "Catalogue",
        "Cluster",
        "CrossZoneError",
        "Gpu",
        "InputError",
        "Job",
        "Model",
        "Notice",
        "Placement",
        "Region",
        "Scenario",
        "Strategy",
        "__version__",
        "catalogue",
        "load_scenario",
        "parameters",
    ]
    for name in crosszone.__all__:
        assert getattr(crosszone, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(crosszone, "nothing")


def test_heavy_imports_stay_out_of_plain_verbs():
    check = "import sys; import crosszone.cli; crosszone.cli._run(['catalogue', 'gpus', '--json']); print([m for m in ('fastapi', 'uvicorn', 'sqlalchemy', 'torch', 'starlette') if m in sys.modules], file=sys.stderr)"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stderr.strip() == "[]"


def test_help_needs_neither_pydantic_nor_numpy():
    check = "import sys; import crosszone.cli; crosszone.cli._run(['--help']); print([m for m in ('pydantic', 'numpy', 'yaml') if m in sys.modules], file=sys.stderr)"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert found.stderr.strip() == "[]"
