from __future__ import annotations

import subprocess
import sys

import pytest

import crosszone
from conftest import ROOT


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
        "Plan",
        "Plans",
        "Prediction",
        "Region",
        "Scenario",
        "Strategy",
        "__version__",
        "catalogue",
        "load_scenario",
        "parameters",
        "plan",
        "predict",
        "sweep",
        "what_if",
    ]
    for name in crosszone.__all__:
        assert getattr(crosszone, name) is not None


@pytest.mark.slow
@pytest.mark.parametrize("before", ["", "import crosszone.predict", "import crosszone.predict.predict"])
def test_predict_is_a_function_whatever_was_imported_before(before):
    """A folder of the same name takes its place as soon as it is imported."""
    check = f"{before}\nimport crosszone\ns = crosszone.load_scenario('examples/single-node.yaml')\nfor _ in range(2): print(crosszone.predict(s).gpus, end=' ')"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stdout == "8 8 "


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(crosszone, "nothing")


WEB = ["fastapi", "uvicorn", "sqlalchemy", "torch", "starlette"]


@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (["--help"], ["pydantic", "numpy", "yaml"]),
        (["catalogue", "gpus", "--json"], WEB),
        (["scenario", "check", "examples/two-zones-7b.yaml"], ["numpy", *WEB]),
    ],
)
def test_a_verb_loads_no_more_than_it_needs(words, heavy):
    check = (
        f"import sys; import crosszone.cli; assert crosszone.cli.run({words}) == 0; "
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=ROOT)
    assert found.stderr.splitlines()[-1] == "[]"
