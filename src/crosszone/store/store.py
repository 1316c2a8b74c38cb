"""Store: everything that is saved."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from sqlalchemy import Engine

from crosszone.store.address import shown
from crosszone.store.bundles import Bundles
from crosszone.store.registered import Datasets, Environments, MeasuredLinks, TrainingModels
from crosszone.store.results import Results
from crosszone.store.scenarios import Scenarios
from crosszone.store.table import Access
from crosszone.store.tasks import Tasks


class Store:
    """Everything of one database; any thread may use it."""

    def __init__(self, engine: Engine) -> None:
        access = Access(engine)
        self.scenarios = Scenarios(access)
        self.results = Results(access)
        self.bundles = Bundles(access)
        self.environments = Environments(access)
        self.datasets = Datasets(access)
        self.training_models = TrainingModels(access)
        self.measured_links = MeasuredLinks(access)
        self.tasks = Tasks(access)
        self._engine = engine

    @property
    def address(self) -> str:
        """Where the things are kept, without a password."""
        return shown(self._engine.url)

    def close(self) -> None:
        """Give the connections back; the store cannot be used afterwards."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
