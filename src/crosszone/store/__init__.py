"""Everything that survives a restart of the server, in SQLite or PostgreSQL.

with open_store() as store:
saved = store.scenarios.add(name="three cities", text=text)
store.scenarios.page(limit=50).rows
"""

from __future__ import annotations

from crosszone.store.opening import Store, open_store
from crosszone.store.saved import (
    BundleRow,
    Bundles,
    Result,
    ResultRow,
    Results,
    SavedBundle,
    SavedScenario,
    ScenarioRow,
    Scenarios,
)
from crosszone.store.table import MAX_PAGE, Page

__all__ = [
    "MAX_PAGE",
    "BundleRow",
    "Bundles",
    "Page",
    "Result",
    "ResultRow",
    "Results",
    "SavedBundle",
    "SavedScenario",
    "ScenarioRow",
    "Scenarios",
    "Store",
    "open_store",
]
