"""Service: everything that page, API and command line ask of training: environments, tasks, their logs and metrics.

    service = Service(store)
    service.probe("env-1")
    task, asked, new = service.create(request, key="retry-safe")
    service.engine().run_until(stop)          in a thread: drives every task

Any thread may call it, and so may several processes on one store.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from crosszone.errors import InvalidError, MachineError, Notice
from crosszone.inputs.dataset import Dataset
from crosszone.inputs.environment import Environment, MeasuredLink, pair_id
from crosszone.inputs.value import parse
from crosszone.run.checks import NeededFile, Subject, Turn
from crosszone.run.chosen import Chosen, chosen_of, decided
from crosszone.run.dataset_check import checked_dataset
from crosszone.run.engine import Engine
from crosszone.run.history import keep
from crosszone.run.link_checks import chosen_port
from crosszone.run.logs import LogFile, LogPart, log_files, log_part
from crosszone.run.machine import Machine
from crosszone.run.metrics import rows_of
from crosszone.run.monitor import Twin, twin_of
from crosszone.run.preflight import check
from crosszone.run.probe import End, machine_of, measured, probed
from crosszone.run.request import Asked, Degrees, Known, TaskRequest, checked
from crosszone.run.runners.choice import make_runner
from crosszone.run.runners.runner import Runner
from crosszone.run.site import cluster_of
from crosszone.run.work import Work
from crosszone.store import Store
from crosszone.store.registered import Entry
from crosszone.store.tasks import LIVE, RESUMABLE, Task

LANGUAGE = "en"  # Of the comments in a task's bundle
WAYS = ("address", "ssh_user", "ssh_port", "ssh_key", "known_hosts")  # How a machine is reached
# What a bundle holds of an environment.
MADE_FOR = ("runner", "zone", "address", "interface", "python", "workdir", "gpu", "gpus")
NEWEST = 2000  # Steps that are compared with the prediction


class Service:
    """Training on registered environments."""

    def __init__(self, store: Store, *, name: str | None = None, home: Path | None = None) -> None:
        self.store = store
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        if home is None:
            home = Path(tempfile.mkdtemp(prefix="crosszone-"))
            weakref.finalize(self, shutil.rmtree, home, ignore_errors=True)
        self.home = home
        self._lock = threading.Lock()
        self._engine: Engine | None = None

    # --- environments -------------------------------------------------------------------------------------------------

    def probe(self, id: str) -> Entry[Environment]:
        """Ask an environment's machine what it is, and store it; one that does not answer is stored as unreachable."""
        entry = self.store.environments.get(id)
        try:
            return self.store.environments.change(id, probed(entry.value, self._machine(id, entry.value)))
        except MachineError:
            if entry.value.runner in ("local", "ssh"):
                self.store.environments.change(id, entry.value.replace(status="unreachable"))
            raise

    def measure(self, first: str, second: str) -> Entry[MeasuredLink]:
        """Measure the link between two environments and store it."""
        ends = []
        for id in (first, second):
            one = self.store.environments.get(id).value
            ends.append(End(id, one.address, self._machine(id, one)))
        return self.store.measured_links.put(pair_id(first, second), measured(*ends))

    def cluster(self, ids: Sequence[str]) -> dict[str, Any]:
        """The cluster that environments make up, as a scenario writes it."""
        return cluster_of({id: self.store.environments.get(id).value for id in ids}, self.links())

    def check_dataset(self, id: str, version: str, environment: str) -> Entry[Dataset]:
        """Look at a version of a dataset on an environment's machine, and store its size and checksum."""
        entry = self.store.datasets.get(id)
        machine = self._machine(environment, self.store.environments.get(environment).value)
        return self.store.datasets.change(id, checked_dataset(entry.value, version, machine))

    def links(self) -> tuple[MeasuredLink, ...]:
        """Every link that was measured."""
        return tuple(entry.value for entry in self.store.measured_links.all())

    # --- before a task ------------------------------------------------------------------------------------------------

    def known(self) -> Known:
        """What a request may name."""
        return Known(
            environments={entry.id: entry.value for entry in self.store.environments.all()},
            datasets={entry.id: entry.value for entry in self.store.datasets.all()},
            models={entry.id: entry.value for entry in self.store.training_models.all()},
        )

    def choose(self, request: TaskRequest, language: str) -> Chosen:
        """What is known of a request before it is complete: for the summary."""
        return chosen_of(request, self.known(), self.links(), language)

    # --- tasks --------------------------------------------------------------------------------------------------------

    def create(self, request: TaskRequest, *, key: str | None = None) -> tuple[Task, Asked, bool]:
        """Check a request and store its task, which an engine takes up; and whether it is new."""
        asked = checked(request, self.known())
        task, new = self.store.tasks.add(name=asked.name, request=request.model_dump(mode="json"), key=key)
        return task, asked, new

    def stop(self, id: str) -> Task:
        """Ask a task to stop; whoever drives it ends it. One that is at an end stays there."""
        task = self.store.tasks.get(id)
        if task.state not in LIVE or task.stop_asked:
            return task
        return self.store.tasks.note(id, stop_asked=True)

    def resume(self, id: str) -> Task:
        """Start a task again from its last checkpoint; what is left of the last attempt is ended first."""
        task = self.store.tasks.get(id)
        if task.state in RESUMABLE:
            fields = {"attempt": task.attempt + 1, "restarts": 0, "notice": None, "stop_asked": False}
            moved = self.store.tasks.move(id, task.state, "initializing", kind="resume", **fields)
            if moved is not None:
                return moved
            task = self.store.tasks.get(id)
        raise InvalidError(Notice(code="task_not_resumable", field="id", value=id, params={"state": task.state}))

    def remove(self, id: str, *, force: bool = False) -> None:
        """Delete a task that is at an end, and its folders on its machines; `force`: though some do not answer."""
        task = self.store.tasks.get(id)
        if task.state in LIVE:
            raise InvalidError(Notice(code="task_live", field="id", value=id, params={"state": task.state}))
        if task.plan is not None and (task.token is not None or task.attempt > 1):
            try:
                self._clean(task, _work(task))
            except MachineError:
                if not force:
                    raise
        self.store.tasks.remove(id)

    def _clean(self, task: Task, work: Work) -> None:
        """End what is left of a task and delete its folders."""
        runner = self._runner(task, work)
        if task.token is not None:
            away = [one for one in runner.stop(task.token) if one.state == "unreachable"]
            if away:
                params = {"node": away[0].number, "reason": away[0].reason or ""}
                raise MachineError(Notice(code="task_node_away", params=params))
        runner.clean()

    # --- what a task writes -------------------------------------------------------------------------------------------

    def logs(self, id: str) -> tuple[LogFile, ...]:
        """The logs of a task's nodes and ranks; of machines that do not answer there are none."""
        task = self.store.tasks.get(id)
        if task.plan is None or task.token is None:
            return ()
        work = _work(task)
        return log_files(work, self._runner(task, work).poll(task.token))

    def log(self, id: str, *, node: int, name: str, offset: int = 0, most: int = 65536) -> LogPart:
        """Some of a log from a byte on; a negative offset counts from its end."""
        task = self.store.tasks.get(id)
        if task.plan is None:
            return LogPart(text="", offset=0, next=0, size=0, live=task.state in LIVE)
        work = _work(task)
        runner = self._runner(task, work)
        return log_part(runner, work, node=node, name=name, offset=offset, most=most, live=task.state in LIVE)

    def metrics(self, id: str, *, after: int = -1, limit: int = 1000) -> tuple[dict[str, Any], ...]:
        """What the steps after a step measured, in their order (`metrics.rows_of`)."""
        task = self.store.tasks.get(id)
        if task.plan is None or task.token is None:
            return ()
        return rows_of(self._runner(task, _work(task)), after=after, limit=limit)

    def twin(self, id: str) -> Twin:
        """The run beside its prediction."""
        task = self.store.tasks.get(id)
        if task.plan is None:
            raise InvalidError(Notice(code="task_not_planned", field="id", value=id, params={"state": task.state}))
        work = _work(task)
        rows = rows_of(self._runner(task, work), limit=NEWEST, newest=True) if task.token is not None else ()
        return twin_of(work, rows)

    # --- who drives ---------------------------------------------------------------------------------------------------

    def engine(self) -> Engine:
        """What drives the tasks of this store."""
        with self._lock:
            if self._engine is None:
                self._engine = Engine(
                    self.store,
                    name=self.name,
                    make=self._make,
                    check=self._check,
                    runner=self._runner,
                    port=self._port,
                    keep=self._keep,
                )
            return self._engine

    def _make(self, task: Task) -> Work:
        """What a task does. One that has made steps goes on as it was, for its checkpoint fits nothing else."""
        asked = checked(parse(TaskRequest, task.request), self.known())
        if task.plan is None or not task.progress.get("step"):
            return decided(asked, self.links(), LANGUAGE)
        before = _work(task)
        if _alike(asked.environments, before.environments):
            return before.replace(port=None)
        return decided(_split_as(asked, before), self.links(), LANGUAGE)

    def _check(self, task: Task, work: Work, turn: Turn) -> list[Notice]:
        """The preflight of a task."""
        places = self._places(work)
        asked = parse(TaskRequest, task.request)
        fixed = asked.settings.get("port")
        return check(
            work,
            places,
            self._machines(places),
            self.links(),
            turn=turn,
            files=self._files(asked),
            fixed_port=fixed if isinstance(fixed, int) else None,
            trial=asked.policy.measureStep and not task.progress.get("step"),
        )

    def _port(self, task: Task, work: Work) -> int | None:
        """A port that is free where ranks meet: the one the task has if it is."""
        fixed = task.request.get("settings", {}).get("port")
        places = self._places(work)
        subject = Subject(work=work, environments=places, machines=self._machines(places), links=(), fixed_port=fixed)
        return chosen_port(subject, work.port)

    def _keep(self, task: Task, work: Work, runner: Runner) -> None:
        """Put what a run has measured beside its prediction into the history."""
        keep(self.store, task, work, rows_of(runner, limit=NEWEST, newest=True))

    def _files(self, request: TaskRequest) -> tuple[NeededFile, ...]:
        """What every machine of a task must hold."""
        known = self.known()
        dataset, model = known.datasets.get(request.datasetId), known.models.get(request.modelId)
        version = dataset.version(request.datasetVersionId) if dataset else None
        found: list[NeededFile] = []
        if version is not None and version.path is not None:
            found.append(NeededFile(field="data", path=version.path, bytes=version.bytes))
        if version is not None and version.tokenizer is not None:
            found.append(NeededFile(field="tokenizer", path=version.tokenizer))
        if model is not None and model.weights is not None:
            found.append(NeededFile(field="weights", path=model.weights, bytes=model.bytes))
        return tuple(found)

    def _runner(self, task: Task, work: Work) -> Runner:
        places = self._places(work)
        return make_runner(task, work, places, self._machines(places), work.port or work.bundle.port)

    def _places(self, work: Work) -> dict[str, Environment]:
        """The environments of a task's nodes, by id."""
        ids = dict.fromkeys(node.environment for node in work.nodes)
        registered = {entry.id: entry.value for entry in self.store.environments.all() if entry.id in ids}
        return {id: _reached(id, work.environments.get(id), registered.get(id)) for id in ids}

    def _machines(self, places: Mapping[str, Environment]) -> dict[str, Machine]:
        """The machines that can be asked directly."""
        return {id: self._machine(id, one) for id, one in places.items() if one.runner in ("local", "ssh")}

    def _machine(self, id: str, environment: Environment) -> Machine:
        return machine_of(id, environment, self.home)


def _reached(id: str, then: Environment | None, now: Environment | None) -> Environment:
    """An environment of a task: as it was when the task was made, reached as it is reached today."""
    if then is None or now is None or then.runner != now.runner:
        found = then or now
        if found is None:
            raise MachineError(Notice(code="task_environment_gone", value=id))
        return found
    return then.replace(**{way: getattr(now, way) for way in WAYS})


def _alike(one: Mapping[str, Environment], other: Mapping[str, Environment]) -> bool:
    """The same environments, as far as a bundle is made for them."""
    return list(one) == list(other) and all(
        getattr(one[id], field) == getattr(other[id], field) for id in one for field in MADE_FOR
    )


def _split_as(asked: Asked, before: Work) -> Asked:
    """The request with the split that was decided before."""
    strategy = before.prediction["strategy"]
    degrees = Degrees(dataParallel=strategy["dp"], pipelineParallel=strategy["pp"], tensorParallel=strategy["tp"])
    where = asked.request.distributedConfig.replace(strategy=degrees, framework=before.bundle.framework)
    return replace(asked, request=asked.request.replace(distributedConfig=where), framework=before.bundle.framework)


def _work(task: Task) -> Work:
    return Work.model_validate(task.plan)
