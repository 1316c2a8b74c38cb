"""Service: everything that page, API and command line ask of training: environments, tasks, their logs and metrics.

    service = Service(store)
    service.probe("env-1")
    task, asked, new = service.create(request, key="retry-safe")
    service.get_engine().run_until(stop)          in a thread: drives every task

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

from crosszone.deploy.settings import LaunchSettings
from crosszone.errors import InvalidError, MachineError, Notice
from crosszone.inputs.dataset import Dataset
from crosszone.inputs.environment import Environment, MeasuredLink, build_pair_id
from crosszone.inputs.value import parse
from crosszone.run.engine import Engine, StepContext, find_unreachable, make_away_notice
from crosszone.run.environments import LinkEnd, build_cluster, make_machine, measure_link, probe_environment
from crosszone.run.history import save_history
from crosszone.run.logs import LogFile, LogPart, list_log_files, read_log_part
from crosszone.run.machine import Machine
from crosszone.run.metrics import read_rows
from crosszone.run.monitor import RunComparison, compare_run
from crosszone.run.preflight import NeededFile, PreflightSubject, check_dataset, choose_port, run_preflight
from crosszone.run.request import (
    CheckedRequest,
    RegisteredEntries,
    RequestedDegrees,
    TaskRequest,
    check_request,
    derive_launch_settings,
    find_runner_kind,
)
from crosszone.run.runners.kubernetes import KubernetesRunner
from crosszone.run.runners.ray import RayRunner
from crosszone.run.runners.runner import Runner
from crosszone.run.runners.slurm import SlurmRunner
from crosszone.run.runners.supervised import SupervisedRunner
from crosszone.run.work import TaskPreview, TaskWork, plan_work, preview_task
from crosszone.store import Store
from crosszone.store.registered import Entry
from crosszone.store.tasks import LIVE, RESUMABLE, Task

LANGUAGE = "en"  # Of the comments in a task's bundle
ACCESS_FIELDS = ("address", "ssh_user", "ssh_port", "ssh_key", "known_hosts")  # How a machine is reached
# What a bundle holds of an environment.
BUNDLE_FIELDS = ("runner", "zone", "address", "interface", "python", "workdir", "gpu", "gpus")
COMPARED_STEPS = 2000  # Steps that are compared with the prediction


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
            return self.store.environments.change(
                id, probe_environment(entry.value, self._make_machine(id, entry.value))
            )
        except MachineError:
            if entry.value.runner in ("local", "ssh"):
                self.store.environments.change(id, entry.value.replace(status="unreachable"))
            raise

    def measure(self, first: str, second: str) -> Entry[MeasuredLink]:
        """Measure the link between two environments and store it."""
        ends = []
        for id in (first, second):
            environment = self.store.environments.get(id).value
            ends.append(LinkEnd(id, environment.address, self._make_machine(id, environment)))
        return self.store.measured_links.put(build_pair_id(first, second), measure_link(*ends))

    def build_cluster(self, ids: Sequence[str]) -> dict[str, Any]:
        """The cluster that environments make up, as a scenario writes it."""
        return build_cluster({id: self.store.environments.get(id).value for id in ids}, self.list_links())

    def check_dataset(self, id: str, version: str, environment: str) -> Entry[Dataset]:
        """Look at a version of a dataset on an environment's machine, and store its size and checksum."""
        entry = self.store.datasets.get(id)
        machine = self._make_machine(environment, self.store.environments.get(environment).value)
        return self.store.datasets.change(id, check_dataset(entry.value, version, machine))

    def list_links(self) -> tuple[MeasuredLink, ...]:
        """Every link that was measured."""
        return tuple(entry.value for entry in self.store.measured_links.all())

    # --- before a task ------------------------------------------------------------------------------------------------

    def list_registered(self) -> RegisteredEntries:
        """What a request may name."""
        return RegisteredEntries(
            environments={entry.id: entry.value for entry in self.store.environments.all()},
            datasets={entry.id: entry.value for entry in self.store.datasets.all()},
            models={entry.id: entry.value for entry in self.store.training_models.all()},
        )

    def choose(self, request: TaskRequest, language: str) -> TaskPreview:
        """What is known of a request before it is complete: for the summary."""
        return preview_task(request, self.list_registered(), self.list_links(), language)

    # --- tasks --------------------------------------------------------------------------------------------------------

    def create(self, request: TaskRequest, *, key: str | None = None) -> tuple[Task, CheckedRequest, bool]:
        """Check a request and store its task, which an engine takes up; and whether it is new."""
        checked = check_request(request, self.list_registered())
        task, is_new = self.store.tasks.add(name=checked.name, request=request.model_dump(mode="json"), key=key)
        return task, checked, is_new

    def stop(self, id: str) -> Task:
        """Ask a task to stop; whoever drives it ends it. One that is at an end stays there."""
        task = self.store.tasks.get(id)
        if task.state not in LIVE or task.stop_asked:
            return task
        return self.store.tasks.update_fields(id, stop_asked=True)

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
                self._clean(task)
            except MachineError:
                if not force:
                    raise
        self.store.tasks.remove(id)

    def _clean(self, task: Task) -> None:
        """End what is left of a task and delete its folders."""
        runner = self._open_runner(task)
        if task.token is not None:
            unreachable = find_unreachable(runner.stop(task.token))
            if unreachable is not None:
                raise MachineError(make_away_notice(unreachable))
        runner.clean()

    # --- what a task writes -------------------------------------------------------------------------------------------

    def list_logs(self, id: str) -> tuple[LogFile, ...]:
        """The logs of a task's nodes and ranks; of machines that do not answer there are none."""
        task = self.store.tasks.get(id)
        if task.plan is None or task.token is None:
            return ()
        runner = self._open_runner(task)
        return list_log_files(runner.work, runner.poll(task.token))

    def read_log(self, id: str, *, node: int, name: str, offset: int = 0, max_bytes: int = 65536) -> LogPart:
        """Some of a log from a byte on; a negative offset counts from its end."""
        task = self.store.tasks.get(id)
        if task.plan is None:
            return LogPart(text="", offset=0, next=0, size=0, live=task.state in LIVE)
        runner = self._open_runner(task)
        return read_log_part(runner, node=node, name=name, offset=offset, max_bytes=max_bytes, live=task.state in LIVE)

    def read_metrics(self, id: str, *, after: int = -1, limit: int = 1000) -> tuple[dict[str, Any], ...]:
        """What the steps after a step measured, in their order (`metrics.read_rows`)."""
        task = self.store.tasks.get(id)
        if task.plan is None or task.token is None:
            return ()
        return read_rows(self._open_runner(task), after=after, limit=limit)

    def compare_run(self, id: str) -> RunComparison:
        """The run beside its prediction."""
        task = self.store.tasks.get(id)
        if task.plan is None:
            raise InvalidError(Notice(code="task_not_planned", field="id", value=id, params={"state": task.state}))
        work = _load_work(task)
        rows: tuple[dict[str, Any], ...] = ()
        if task.token is not None:  # else it was not started, and has no machines to ask
            rows = read_rows(self._make_runner(task, work), limit=COMPARED_STEPS, newest=True)
        return compare_run(work, rows)

    # --- who drives ---------------------------------------------------------------------------------------------------

    def get_engine(self) -> Engine:
        """What drives the tasks of this store."""
        with self._lock:
            if self._engine is None:
                self._engine = Engine(
                    self.store,
                    name=self.name,
                    make=self._make_work,
                    check=self._check,
                    runner=self._make_runner,
                    port=self._choose_port,
                    keep=self._save_history,
                )
            return self._engine

    def _make_work(self, task: Task) -> TaskWork:
        """What a task does. One that has made steps goes on as it was, for its checkpoint fits nothing else."""
        checked = check_request(parse(TaskRequest, task.request), self.list_registered())
        if task.plan is None or not task.progress.get("step"):
            return plan_work(checked, self.list_links(), LANGUAGE)
        before = _load_work(task)
        if _is_same_site(checked.environments, before.environments):
            return before.replace(port=None)
        return plan_work(_split_as(checked, before), self.list_links(), LANGUAGE)

    def _check(self, task: Task, work: TaskWork, context: StepContext) -> list[Notice]:
        """The preflight of a task."""
        environments = self._find_environments(work)
        request = parse(TaskRequest, task.request)
        fixed = request.settings.get("port")
        return run_preflight(
            work,
            environments,
            self._make_machines(environments),
            self.list_links(),
            context=context,
            files=self._list_needed_files(request),
            fixed_port=fixed if isinstance(fixed, int) else None,
            trial=request.policy.measureStep and not task.progress.get("step"),
        )

    def _choose_port(self, task: Task, work: TaskWork) -> int | None:
        """A port that is free where ranks meet: the one the task has if it is."""
        fixed = task.request.get("settings", {}).get("port")
        environments = self._find_environments(work)
        subject = PreflightSubject(
            work=work, environments=environments, machines=self._make_machines(environments), links=(), fixed_port=fixed
        )
        return choose_port(subject, work.port)

    def _save_history(self, task: Task, work: TaskWork, runner: Runner) -> None:
        """Put what a run has measured beside its prediction into the history."""
        save_history(self.store, task, work, read_rows(runner, limit=COMPARED_STEPS, newest=True))

    def _list_needed_files(self, request: TaskRequest) -> tuple[NeededFile, ...]:
        """What every machine of a task must hold."""
        registered = self.list_registered()
        dataset, model = registered.datasets.get(request.datasetId), registered.models.get(request.modelId)
        version = dataset.find_version(request.datasetVersionId) if dataset else None
        files: list[NeededFile] = []
        if version is not None and version.path is not None:
            files.append(NeededFile(field="data", path=version.path, bytes=version.bytes))
        if version is not None and version.tokenizer is not None:
            files.append(NeededFile(field="tokenizer", path=version.tokenizer))
        if model is not None and model.weights is not None:
            files.append(NeededFile(field="weights", path=model.weights, bytes=model.bytes))
        return tuple(files)

    def _open_runner(self, task: Task) -> Runner:
        """Who runs the nodes of a task that was planned."""
        return self._make_runner(task, _load_work(task))

    def _make_runner(self, task: Task, work: TaskWork) -> Runner:
        environments = self._find_environments(work)
        return make_runner(task, work, environments, self._make_machines(environments), work.port or work.bundle.port)

    def _find_environments(self, work: TaskWork) -> dict[str, Environment]:
        """The environments of a task's nodes, by id."""
        ids = dict.fromkeys(node.environment for node in work.nodes)
        registered = {entry.id: entry.value for entry in self.store.environments.all() if entry.id in ids}
        return {id: _update_access(id, work.environments.get(id), registered.get(id)) for id in ids}

    def _make_machines(self, environments: Mapping[str, Environment]) -> dict[str, Machine]:
        """The machines that can be asked directly."""
        return {
            id: self._make_machine(id, environment)
            for id, environment in environments.items()
            if environment.runner in ("local", "ssh")
        }

    def _make_machine(self, id: str, environment: Environment) -> Machine:
        return make_machine(id, environment, self.home)


def _update_access(id: str, planned: Environment | None, present: Environment | None) -> Environment:
    """An environment of a task: as it was when the task was made, reached as it is reached today."""
    if planned is None or present is None or planned.runner != present.runner:
        environment = planned or present
        if environment is None:
            raise MachineError(Notice(code="task_environment_gone", value=id))
        return environment
    return planned.replace(**{field: getattr(present, field) for field in ACCESS_FIELDS})


def _is_same_site(first: Mapping[str, Environment], second: Mapping[str, Environment]) -> bool:
    """The same environments, as far as a bundle is made for them."""
    return list(first) == list(second) and all(
        getattr(first[id], field) == getattr(second[id], field) for id in first for field in BUNDLE_FIELDS
    )


def _split_as(checked: CheckedRequest, before: TaskWork) -> CheckedRequest:
    """The request with the split of the work it had before."""
    strategy = before.prediction["strategy"]
    degrees = RequestedDegrees(
        dataParallel=strategy["dp"], pipelineParallel=strategy["pp"], tensorParallel=strategy["tp"]
    )
    placement = checked.request.distributedConfig.replace(strategy=degrees, framework=before.bundle.framework)
    return replace(
        checked, request=checked.request.replace(distributedConfig=placement), framework=before.bundle.framework
    )


def _load_work(task: Task) -> TaskWork:
    return TaskWork.model_validate(task.plan)


def make_runner(
    task: Task, work: TaskWork, environments: Mapping[str, Environment], machines: Mapping[str, Machine], port: int
) -> Runner:
    """Who starts the nodes of a task. `machines` are those of local and ssh environments; a scheduler needs none.

    `InvalidError` when the environments have different schedulers.
    """
    used = {node.environment: environments[node.environment] for node in work.nodes}
    kind = find_runner_kind(used.values())
    if kind == "slurm":
        fields = {**derive_launch_settings(used), **task.request.get("settings", {})}
        settings = parse(LaunchSettings, fields)
        return SlurmRunner(task=task.id, work=work, environments=used, port=port, settings=settings)
    if kind == "kubernetes":
        return KubernetesRunner(task=task.id, work=work, environments=used, port=port)
    if kind == "ray":
        return RayRunner(task=task.id, work=work, environments=used, port=port)
    return SupervisedRunner(task=task.id, work=work, environments=environments, machines=machines, port=port)
