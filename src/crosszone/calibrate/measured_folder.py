"""Where measured runs lie when nobody says: for the command line and the server alike.

measurements()                     # the folder with measured runs; None: there is none
places()[0]                        # where they are looked for first
"""

from __future__ import annotations

import os
from pathlib import Path

import crosszone
from crosszone.calibrate.figures_data import FILES
from crosszone.inputs.catalogue.entries import home

VARIABLE = "CROSSZONE_MEASUREMENTS"
"""Names the folder with measured data."""
BESIDE = Path("shared") / "data"
"""The same beside a checkout."""


def measurements() -> Path | None:
    """The first place with any of the files that a report is made of."""
    return next((place.resolve() for place in places() if any((place / name).is_file() for name in FILES)), None)


def places() -> list[Path]:
    """The folder that is named; else the user's own, one beside where one stands, and one beside the checkout."""
    named = os.environ.get(VARIABLE)
    if named:
        return [Path(named).expanduser()]
    return [home() / "measurements", Path("..") / BESIDE, _checkout().parent / BESIDE]


def _checkout() -> Path:
    """The checkout that the program runs from."""
    return Path(crosszone.__file__).resolve().parents[2]
