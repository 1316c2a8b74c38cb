"""Where measured runs lie when nobody says: for the command line and the server alike.

measurements()                     # the folder with measured runs; None: the one that is named has none
places()[0]                        # where they are looked for first
"""

from __future__ import annotations

import os
from pathlib import Path

from crosszone import measured
from crosszone.calibrate.figures_data import FILES
from crosszone.inputs.catalogue.entries import home

VARIABLE = "CROSSZONE_MEASUREMENTS"
"""Names the folder with measured data."""


def measurements() -> Path | None:
    """The first place with any of the files that a report is made of."""
    return next((place.resolve() for place in places() if any((place / name).is_file() for name in FILES)), None)


def places() -> list[Path]:
    """The folder that is named; else the user's own, then the runs that come with the program."""
    named = os.environ.get(VARIABLE)
    if named:
        return [Path(named).expanduser()]
    return [home() / "measurements", measured.FOLDER]
