"""Preflight: whether a task can run where it is to run, found out before anything is started there.

    notices = run_preflight(work, environments, machines, links, context=context, files=files)
    [notice for notice in notices if notice.level == "error"]         these stop the launch

Each check says what it looked at, where, and what it found, also when all is well: an event of the task. It looks at
every machine (does it answer; its clock, disk, software, GPUs and data), at the port where ranks meet, at the links,
and at the time of a short step. Machines that only a scheduler reaches are checked by it.

    check_dataset(dataset, "v1", machine).find_version("v1").sha256   size and checksum of a dataset on one machine
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from crosszone.cost.tiers import read_figure
from crosszone.errors import InvalidError, Level, MachineError, Notice, UnknownNameError
from crosszone.inputs.catalogue import get_catalogue
from crosszone.inputs.dataset import Dataset
from crosszone.inputs.environment import Environment, MeasuredLink, build_pair_id
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.links import build_zone_links
from crosszone.inputs.value import parse
from crosszone.run.engine import StepContext
from crosszone.run.environments import LinkEnd, find_gpu_name, measure_link
from crosszone.run.machine import WAIT_S, Answer, Machine, call_each
from crosszone.run.trial import run_trial
from crosszone.run.work import TaskWork, Trial
from crosszone.store.tasks import encode_notice

# What ends and deletes: it is done also when nobody waits any more.
_CLEANUP_CALLS = ("supervisor.stop", "files.delete_folder")


@dataclass(frozen=True, kw_only=True)
class CheckOutcome:
    """What one check found."""

    check: str
    """reach, clock, disk, software, versions, gpus, data, port, link, step."""
    environments: tuple[str, ...]
    """Where, by id."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """What was seen."""
    notice: Notice | None = None
    """What is wrong; None: nothing is."""

    @property
    def level(self) -> str:
        """`ok`, `note`, `warning` or `error`."""
        return "ok" if self.notice is None else self.notice.level

    def to_plain(self) -> dict[str, Any]:
        """As an event of the task holds it."""
        return {
            "check": self.check,
            "environments": list(self.environments),
            "level": self.level,
            "measured": dict(self.measured),
            "notice": None if self.notice is None else encode_notice(self.notice),
        }


@dataclass(frozen=True, kw_only=True)
class NeededFile:
    """A file or folder that must be on every machine."""

    field: str
    """What names it: data, tokenizer, weights."""
    path: str
    bytes: int | None = None
    """Size as recorded; None: not known."""


@dataclass(frozen=True, kw_only=True)
class PreflightSubject:
    """What a preflight is about."""

    work: TaskWork
    environments: Mapping[str, Environment]
    """Of its nodes, by id, in their order."""
    machines: Mapping[str, Machine]
    """Those that can be asked."""
    links: tuple[MeasuredLink, ...]
    """As they were measured last."""
    files: tuple[NeededFile, ...] = ()
    fixed_port: int | None = None
    """Port that the request names."""

    @property
    def master(self) -> str:
        """Environment of the first node."""
        return self.work.nodes[0].environment


@dataclass(frozen=True, kw_only=True)
class GuardedMachine:
    """A machine that is asked only as long as somebody waits for the answer."""

    machine: Machine
    context: StepContext

    @property
    def name(self) -> str:
        """As `Machine.name`."""
        return self.machine.name

    def call(self, function: str, *, payload: bytes = b"", wait_s: float = WAIT_S, **arguments: Any) -> Any:
        """As `Machine.call`."""
        if function not in _CLEANUP_CALLS:
            self.context.require_active()
        return self.machine.call(function, payload=payload, wait_s=wait_s, **arguments)


def ask_each(ask: Callable[[str], Answer], ids: Iterable[str]) -> dict[str, Answer | MachineError]:
    """The same asked of many environments at once: each one's answer, or why there is none."""
    distinct = list(dict.fromkeys(ids))

    def answer_or_error(id: str) -> Answer | MachineError:
        try:
            return ask(id)
        except MachineError as error:
            return error

    return dict(zip(distinct, call_each(answer_or_error, distinct), strict=True))


def run_preflight(
    work: TaskWork,
    environments: Mapping[str, Environment],
    machines: Mapping[str, Machine],
    links: Iterable[MeasuredLink],
    *,
    context: StepContext,
    files: Iterable[NeededFile] = (),
    fixed_port: int | None = None,
    trial: bool = True,
) -> list[Notice]:
    """Everything that is wrong; each outcome is an event, and the context gets the work with what was measured.

    `trial`: also try a step on every machine.
    """
    subject = PreflightSubject(
        work=work,
        environments=environments,
        machines={id: GuardedMachine(machine=machine, context=context) for id, machine in machines.items()},
        links=tuple(links),
        files=tuple(files),
        fixed_port=fixed_port,
    )
    notices = []
    for outcome in _run_checks(subject, context, trial):
        context.add_event("check", **outcome.to_plain())
        if outcome.notice is not None:
            notices.append(outcome.notice)
    return notices


def _run_checks(subject: PreflightSubject, context: StepContext, trial: bool) -> Iterator[CheckOutcome]:
    """All checks, each begun when the events of those before it are stored; what rests on a failed one is left out."""
    for id, environment in subject.environments.items():
        if id not in subject.machines:
            notice = Notice(code="environment_scheduled", value=id, params={"runner": environment.runner}, level="note")
            yield CheckOutcome(check="reach", environments=(id,), notice=notice)
    if not subject.machines:
        return
    reach_outcomes, states = check_reachable(subject)
    yield from reach_outcomes
    if len(states) < len(subject.machines):
        return
    has_error = False
    for outcome in chain(
        check_clocks(subject),
        check_disks(subject, states),
        check_software(subject, states),
        check_versions(subject, states),
        check_gpus(subject, states),
        check_data(subject),
    ):
        # a step can be tried where only a clock, a disk, versions or data are wrong
        has_error = has_error or (outcome.check in ("software", "gpus") and outcome.level == "error")
        yield outcome
    try:
        port = choose_port(subject, subject.work.port)
    except MachineError as error:
        port, has_error = None, True
        yield CheckOutcome(check="port", environments=(subject.master,), notice=error.notices[0])
    else:
        context.refined_work = subject.work.replace(port=port)
    yield from check_ports(subject, port)
    yield from check_links(subject)
    if trial and not has_error:
        yield from check_steps(subject, context)


def check_steps(subject: PreflightSubject, context: StepContext) -> Iterator[CheckOutcome]:
    """A short step of one rank on each machine, all at once, against what is predicted for it.

    On a CPU the step also tells how fast it is, and the task's own prediction goes by it from then on.
    """
    answers = ask_each(
        lambda id: run_trial(id, subject.environments[id], subject.machines[id], subject.work), subject.machines
    )
    trials = []
    for id, trial in answers.items():
        if isinstance(trial, MachineError):
            yield CheckOutcome(check="step", environments=(id,), notice=trial.notices[0])
            continue
        trials.append(trial)
        measured = {"step_s": trial.step_s, "predicted": trial.predicted, "speed": round(trial.speed, 4)}
        notice = _warn_if_step_slow(subject.environments[id], trial)
        yield CheckOutcome(check="step", environments=(id,), measured=measured, notice=notice)
    if trials:
        context.refined_work = (context.refined_work or subject.work).apply_trials(trials)


def _warn_if_step_slow(environment: Environment, trial: Trial) -> Notice | None:
    """Slower than the band is wrong: a GPU that throttles, or is shared; the figures of a CPU are rough."""
    high = trial.predicted["high"]
    if trial.step_s <= high:
        return None
    level: Level = "error" if environment.gpus else "warning"
    params = {"machine": trial.environment, "seconds": round(trial.step_s, 4)}
    params |= {"low": round(trial.predicted["low"], 4), "high": round(high, 4)}
    return Notice(code="preflight_step_slow", params=params, level=level)


# How far the clocks of two machines may be apart: beyond the first, times in logs mislead; beyond the second,
# certificates, leases and file times fail.
CLOCK_WARNING_S, CLOCK_ERROR_S = 2.0, 60.0
MIN_FREE_GIB = 0.5  # Room for the bundle and the logs
CHECKPOINTS = 3  # Checkpoints that should fit
MEMORY_SHARE = 0.93  # Part of a GPU's memory that its driver must report at least: it keeps some for itself
# What a framework needs; others need torch alone.
PACKAGES = {
    "deepspeed": ("torch", "deepspeed"),
    "megatron": ("torch", "megatron-core"),
    "horovod": ("torch", "horovod"),
}
NCCL_PACKAGES = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
DATA_WAIT_S = 300
MachineState = dict[str, Any]


def check_reachable(subject: PreflightSubject) -> tuple[list[CheckOutcome], dict[str, MachineState]]:
    """Which machines answer, and what they say of themselves."""
    environments = subject.environments

    def read_state(id: str) -> MachineState:
        begin = time.monotonic()
        state: MachineState = subject.machines[id].call(
            "survey.read_machine_state", folder=environments[id].workdir, python=environments[id].python
        )
        return {**state, "seconds": round(time.monotonic() - begin, 3)}

    answers = ask_each(read_state, subject.machines)
    outcomes, states = [], {}
    for id, answer in answers.items():
        if isinstance(answer, MachineError):
            outcomes.append(CheckOutcome(check="reach", environments=(id,), notice=answer.notices[0]))
        else:
            states[id] = answer
            measured = {"host": answer["host"], "seconds": answer["seconds"]}
            outcomes.append(CheckOutcome(check="reach", environments=(id,), measured=measured))
    return outcomes, states


def check_clocks(subject: PreflightSubject) -> Iterator[CheckOutcome]:
    """Each clock against that of the machine at which ranks meet, less what the way there and back may hide."""

    def measure_offset(id: str) -> tuple[float, float]:
        begin = time.time()
        clock = subject.machines[id].call("survey.read_clock")["clock"]
        end = time.time()
        return clock - (begin + end) / 2, (end - begin) / 2

    offsets = {
        id: answer
        for id, answer in ask_each(measure_offset, subject.machines).items()
        if not isinstance(answer, MachineError)
    }
    if subject.master not in offsets:
        return
    master_offset, master_doubt = offsets[subject.master]
    for id, (offset, doubt) in offsets.items():
        apart_s = offset - master_offset
        certain_s = max(0.0, abs(apart_s) - doubt - master_doubt) if id != subject.master else 0.0
        notice = None
        if certain_s > CLOCK_WARNING_S:
            params = {"machine": id, "other": subject.master, "seconds": round(abs(apart_s), 1)}
            level: Level = "error" if certain_s > CLOCK_ERROR_S else "warning"
            notice = Notice(code="preflight_clock", params=params, level=level)
        yield CheckOutcome(check="clock", environments=(id,), measured={"apart_s": round(apart_s, 3)}, notice=notice)


def check_disks(subject: PreflightSubject, states: Mapping[str, MachineState]) -> Iterator[CheckOutcome]:
    """Whether the work folder can be written, and holds what a run writes."""
    checkpoint_gib = _read_checkpoint_gib(subject)
    least_gib = MIN_FREE_GIB + checkpoint_gib / len(subject.work.nodes)
    enough_gib = MIN_FREE_GIB + CHECKPOINTS * checkpoint_gib
    for id, state in states.items():
        folder, free = subject.environments[id].workdir, state["disk_free_gib"]
        params: dict[str, Any] = {"machine": id, "folder": folder}
        notice = None
        if state["unwritable"]:
            notice = Notice(code="preflight_folder", params={**params, "reason": state["unwritable"]})
        elif free < enough_gib:
            level: Level = "error" if free < least_gib else "warning"
            needs = round(least_gib if free < least_gib else enough_gib, 2)
            notice = Notice(code="preflight_disk", params={**params, "free": free, "needs": needs}, level=level)
        yield CheckOutcome(check="disk", environments=(id,), measured={"free_gib": free}, notice=notice)


def check_software(subject: PreflightSubject, states: Mapping[str, MachineState]) -> Iterator[CheckOutcome]:
    """Whether the Python of each environment is there and has the framework."""
    required = PACKAGES.get(subject.work.bundle.framework, ("torch",))
    for id, state in states.items():
        installed, python = state["software"], subject.environments[id].python
        notice = None
        missing = next((package for package in required if package not in installed), None)
        if "missing" in installed:
            params = {"machine": id, "python": python, "reason": installed["missing"]}
            notice = Notice(code="preflight_python", params=params)
        elif missing:
            notice = Notice(code="preflight_package", params={"machine": id, "python": python, "package": missing})
        yield CheckOutcome(
            check="software", environments=(id,), measured=_list_versions(installed, state), notice=notice
        )


def check_versions(subject: PreflightSubject, states: Mapping[str, MachineState]) -> Iterator[CheckOutcome]:
    """Whether all have the same versions: libraries must agree, else ranks wait for each other or crash."""
    must_agree = ("torch", "cuda", "nccl", *PACKAGES.get(subject.work.bundle.framework, ())[1:])
    versions_of = {
        id: {**_list_versions(state["software"], state), "image": subject.environments[id].image}
        for id, state in states.items()
        if "missing" not in state["software"]
    }
    if len(versions_of) < 2:
        return
    first, *later = versions_of
    for component in (*must_agree, "python", "driver", "image"):
        values = {id: _normalize_version(component, versions.get(component)) for id, versions in versions_of.items()}
        if set(values.values()) == {None}:
            continue
        other = next((id for id in later if values[id] != values[first]), None)
        notice = None
        if other is not None:
            params = {"what": component, "machine": other, "version": values[other] or "-"}
            params |= {"other": first, "second": values[first] or "-"}
            notice = Notice(
                code="preflight_versions", params=params, level="error" if component in must_agree else "warning"
            )
        measured = {"what": component, "versions": values}
        yield CheckOutcome(check="versions", environments=tuple(versions_of), measured=measured, notice=notice)


def check_gpus(subject: PreflightSubject, states: Mapping[str, MachineState]) -> Iterator[CheckOutcome]:
    """Whether each machine has the GPUs that its entry promises."""
    for id, state in states.items():
        entry = subject.environments[id]
        if not entry.gpus:
            continue
        measured = {"gpus": len(state["gpus"]), "kinds": sorted({card["name"] for card in state["gpus"]})}
        yield CheckOutcome(
            check="gpus", environments=(id,), measured=measured, notice=_find_gpu_problem(id, entry, state)
        )


def check_data(subject: PreflightSubject) -> Iterator[CheckOutcome]:
    """Whether every machine holds the files a run reads; what lies behind a URI is the trainer's to fetch."""
    for needed in subject.files:
        if "://" in needed.path:
            continue

        def describe_file(id: str, needed: NeededFile = needed) -> MachineState:
            description: MachineState = subject.machines[id].call(
                "files.describe_path", path=needed.path, wait_s=DATA_WAIT_S
            )
            return description

        for id, answer in ask_each(describe_file, subject.machines).items():
            if isinstance(answer, MachineError):
                yield CheckOutcome(check="data", environments=(id,), notice=answer.notices[0])
                continue
            measured = {"field": needed.field, "path": needed.path, "bytes": answer["bytes"]}
            notice = _find_data_problem(id, needed, answer)
            yield CheckOutcome(check="data", environments=(id,), measured=measured, notice=notice)


def _find_gpu_problem(id: str, entry: Environment, state: MachineState) -> Notice | None:
    cards, params = state["gpus"], {"machine": id, "gpu": entry.gpu or "-"}
    if state["gpu_problem"]:
        return Notice(code="preflight_gpu_driver", params={**params, "reason": state["gpu_problem"]})
    if len(cards) < entry.gpus:
        return Notice(code="preflight_gpu_missing", params={**params, "found": len(cards), "count": entry.gpus})
    for card in cards[: entry.gpus]:
        kind = find_gpu_name(card["name"])
        if kind is not None and entry.gpu is not None and kind != entry.gpu:
            return Notice(code="preflight_gpu_kind", params={**params, "found": card["name"]})
    catalogue_entry = get_catalogue(None).find("gpus", entry.gpu) if entry.gpu else None
    memory = catalogue_entry.memory_gib if isinstance(catalogue_entry, Gpu) else None
    least = min(card["memory_gib"] for card in cards[: entry.gpus])
    if memory is not None and least < memory * MEMORY_SHARE:
        return Notice(code="preflight_gpu_memory", params={**params, "found": least, "memory": memory})
    return None


def _find_data_problem(id: str, needed: NeededFile, description: MachineState) -> Notice | None:
    params = {"machine": id, "path": needed.path}
    if not description["there"]:
        return Notice(code="preflight_data_missing", field=needed.field, params=params)
    if not description["readable"]:
        return Notice(code="preflight_data_unreadable", field=needed.field, params=params)
    if needed.bytes is not None and description["bytes"] != needed.bytes:
        sizes = {"found": description["bytes"], "bytes": needed.bytes}
        return Notice(code="preflight_data_size", field=needed.field, params={**params, **sizes})
    return None


def _list_versions(installed: Mapping[str, Any], state: MachineState) -> dict[str, Any]:
    nccl = next((installed[name] for name in NCCL_PACKAGES if name in installed), None)
    versions = {key: value for key, value in installed.items() if key not in NCCL_PACKAGES}
    return {**versions, "nccl": nccl, "driver": state["driver"]}


def _normalize_version(component: str, version: str | None) -> str | None:
    """A version as far as it must agree: of Python, major and minor."""
    return ".".join(version.split(".")[:2]) if component == "python" and version else version


def _read_checkpoint_gib(subject: PreflightSubject) -> float:
    checkpoint_gb = subject.work.prediction.get("run", {}).get("goodput", {}).get("checkpoint_gb")
    return float(checkpoint_gb or 0.0) * 1e9 / 2**30


PROBE_PORT_S = 8.0  # How long a machine tries to reach the port at which ranks meet
# How many times slower than assumed a link must be for a warning, and to stop the launch.
SLOWER_WARNING, SLOWER_ERROR = 1.25, 2.0
RTT_SLACK_MS = 2.0  # Round-trip time that is always forgiven: a busy machine takes as long
# How long a direction is measured: connections need some round trips to find their speed.
MIN_TEST_S, MAX_TEST_S, TEST_ROUND_TRIPS = 1.0, 3.0, 40


def choose_port(subject: PreflightSubject, preferred: int | None) -> int | None:
    """A port that is free on the first machine: the preferred one if it is; None: a single launcher meets nobody."""
    machine = subject.machines.get(subject.master)
    if machine is None or sum(len(node.ranks) for node in subject.work.nodes) < 2:
        return None
    fixed = subject.fixed_port
    port = fixed if fixed is not None else preferred
    return int(machine.call("link.choose_port", preferred=port, fixed=fixed is not None)["port"])


def check_ports(subject: PreflightSubject, port: int | None) -> Iterator[CheckOutcome]:
    """Whether the port is free on the first machine, and open to every other."""
    master = subject.master
    if port is None:
        return
    address = subject.environments[master].address
    callers = [id for id in subject.machines if id != master]
    if not callers:
        yield CheckOutcome(check="port", environments=(master,), measured={"port": port})
        return
    if address is None:
        yield _make_address_outcome("port", master)
        return
    arguments: dict[str, Any] = {"port": port, "secret": secrets.token_hex(16)}
    with ThreadPoolExecutor(max_workers=1) as pool:
        listening = pool.submit(
            subject.machines[master].call,
            "link.listen_for_probes",
            callers=len(callers),
            open_s=2 * PROBE_PORT_S,
            **arguments,
        )
        answers = ask_each(
            lambda id: subject.machines[id].call("link.probe_port", address=address, try_s=PROBE_PORT_S, **arguments),
            callers,
        )
        try:
            listening.result()
        except MachineError as error:
            yield CheckOutcome(check="port", environments=(master,), measured={"port": port}, notice=error.notices[0])
            return
    yield CheckOutcome(check="port", environments=(master,), measured={"port": port})
    for id, answer in answers.items():
        notice, measured = None, {"port": port, "address": address}
        if isinstance(answer, MachineError):
            notice = answer.notices[0]
        elif not answer["reached"]:
            params = {"machine": id, "other": master, "reason": answer["reason"], **measured}
            notice = Notice(code="preflight_port_closed", params=params)
        else:
            measured["ms"] = answer["ms"]
        yield CheckOutcome(check="port", environments=(id, master), measured=measured, notice=notice)


@dataclass(frozen=True, kw_only=True)
class AssumedLink:
    """What a prediction takes for granted between two environments."""

    first: str
    second: str
    rtt_ms: float | None
    gbps: float | None
    """Payload, from the first to the second."""
    gbps_back: float | None


def check_links(subject: PreflightSubject) -> Iterator[CheckOutcome]:
    """One pair of environments of each two zones, and pairs within zones that were measured before: one at a time."""
    for assumed in _list_pairs(subject):
        pair = (assumed.first, assumed.second)
        ends = [LinkEnd(id, subject.environments[id].address, subject.machines[id]) for id in pair]
        missing = next((end.id for end in ends if end.address is None), None)
        if missing is not None:
            yield _make_address_outcome("link", missing)
            continue
        if ends[0].address == ends[1].address:
            continue  # one machine: nothing lies between
        seconds = min(MAX_TEST_S, max(MIN_TEST_S, TEST_ROUND_TRIPS * (assumed.rtt_ms or 0.0) / 1e3))
        try:
            measured = measure_link(ends[0], ends[1], seconds=seconds)
        except MachineError as error:
            yield CheckOutcome(check="link", environments=pair, notice=error.notices[0])
            continue
        yield _compare_link(assumed, measured)


def _compare_link(assumed: AssumedLink, link: MeasuredLink) -> CheckOutcome:
    pair = (assumed.first, assumed.second)
    measured: dict[str, Any] = {"rtt_ms": round(link.rtt_ms, 3), "gbps": link.gbps, "gbps_back": link.gbps_back}
    measured["assumed"] = {"rtt_ms": assumed.rtt_ms, "gbps": assumed.gbps, "gbps_back": assumed.gbps_back}
    worst: Notice | None = None
    if assumed.rtt_ms is not None and link.rtt_ms > assumed.rtt_ms + RTT_SLACK_MS:
        worst = _warn_if_slower(
            "preflight_link_late", pair, link.rtt_ms, assumed.rtt_ms, link.rtt_ms / (assumed.rtt_ms or 1)
        )
    for ends, rate, expected in (
        (pair, link.gbps, assumed.gbps),
        (pair[::-1], link.gbps_back, assumed.gbps_back),
    ):
        if expected is not None and rate is not None:
            notice = _warn_if_slower("preflight_link_slow", ends, rate, expected, expected / rate)
            worst = notice if notice is not None and (worst is None or worst.level != "error") else worst
    return CheckOutcome(check="link", environments=pair, measured=measured, notice=worst)


def _warn_if_slower(code: str, pair: tuple[str, ...], measured: float, assumed: float, factor: float) -> Notice | None:
    if factor <= SLOWER_WARNING:
        return None
    level: Level = "error" if factor > SLOWER_ERROR else "warning"
    params = {"machine": pair[0], "other": pair[1], "found": round(measured, 4), "assumed": round(assumed, 4)}
    return Notice(code=code, params={**params, "factor": round(factor, 1)}, level=level)


def _list_pairs(subject: PreflightSubject) -> Iterator[AssumedLink]:
    """Pairs to measure, with what is assumed of them."""
    reachable = [id for id in subject.environments if id in subject.machines]
    measured_links = {link.id: link for link in subject.links}
    by_zone: dict[str, list[str]] = {}
    for id in reachable:
        by_zone.setdefault(subject.environments[id].zone, []).append(id)
    cluster = subject.work.plan.cluster if len(by_zone) > 1 else None
    efficiency = read_figure("tcp", "efficiency")
    for (first, second), link in (build_zone_links(cluster) if cluster else {}).items():
        names = [cluster.zones[index].name for index in (first, second)] if cluster else []
        ends = [by_zone.get(name, []) for name in names]
        if not all(ends):
            continue
        pairs = [(first_id, other) for first_id in ends[0] for other in ends[1]]
        pair = next((pair for pair in pairs if build_pair_id(*pair) in measured_links), pairs[0])
        is_rate_stated = link.origins["gbps"] != "example"
        yield AssumedLink(
            first=pair[0],
            second=pair[1],
            rtt_ms=link.rtt_ms.high,
            gbps=link.gbps * efficiency if is_rate_stated else None,
            gbps_back=link.gbps_back * efficiency if is_rate_stated else None,
        )
    for ids in by_zone.values():
        for other in ids[1:]:
            before = measured_links.get(build_pair_id(ids[0], other))
            if before is not None:
                rates = (before.gbps, before.gbps_back) if before.first == ids[0] else (before.gbps_back, before.gbps)
                yield AssumedLink(first=ids[0], second=other, rtt_ms=before.rtt_ms, gbps=rates[0], gbps_back=rates[1])


def _make_address_outcome(check: str, id: str) -> CheckOutcome:
    notice = Notice(code="environment_no_address", field="address", value=id)
    return CheckOutcome(check=check, environments=(id,), notice=notice)


DIGEST_WAIT_S = 3600.0  # How long a machine may read: terabytes take their time


def check_dataset(dataset: Dataset, version_id: str, machine: Machine) -> Dataset:
    """The dataset with size and checksum of one version, as the machine finds them."""
    version = dataset.find_version(version_id)
    if version is None:
        known = [entry.id for entry in dataset.versions][:20]
        raise UnknownNameError(Notice(code="task_unknown", field="version", value=version_id, params={"known": known}))
    if version.path is None:
        raise InvalidError(Notice(code="dataset_no_path", field="version", value=version_id))
    digest = machine.call("files.compute_digest", wait_s=DIGEST_WAIT_S, path=version.path)
    if not digest["there"]:
        params = {"machine": machine.name, "path": version.path}
        raise MachineError(Notice(code="data_missing", value=version.path, params=params))
    filled = version.replace(bytes=digest["bytes"], sha256=digest["sha256"])
    versions = [filled if entry.id == version_id else entry for entry in dataset.versions]
    return parse(Dataset, {**dataset.to_plain(), "versions": [entry.to_plain() for entry in versions]})
