"""Machine checks: whether every machine of a task answers, has the right time, room, software, GPUs and data."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from crosszone.errors import Level, MachineError, Notice
from crosszone.inputs.catalogue import catalogue_of
from crosszone.inputs.environment import Environment
from crosszone.inputs.gpu import Gpu
from crosszone.run.checks import NeededFile, Outcome, Subject, beside
from crosszone.run.probe import find_gpu_name

# How far the clocks of two machines may be apart: beyond the first, times in logs mislead; beyond the second,
# certificates, leases and file times fail.
CLOCK_WARNING_S, CLOCK_ERROR_S = 2.0, 60.0
LEAST_FREE_GIB = 0.5  # Room for the bundle and the logs
CHECKPOINTS = 3  # Checkpoints that should fit
MEMORY_SHARE = 0.93  # Part of a GPU's memory that its driver must report at least: it keeps some for itself
# What a framework needs; others need torch alone.
PACKAGES = {
    "deepspeed": ("torch", "deepspeed"),
    "megatron": ("torch", "megatron-core"),
    "horovod": ("torch", "horovod"),
}
NCCL = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
DATA_WAIT_S = 300
State = dict[str, Any]


def reached(subject: Subject) -> tuple[list[Outcome], dict[str, State]]:
    """Which machines answer, and what they say of themselves."""
    places = subject.environments

    def state(id: str) -> State:
        begin = time.monotonic()
        told: State = subject.machines[id].call(
            "survey.read_machine_state", folder=places[id].workdir, python=places[id].python
        )
        return {**told, "seconds": round(time.monotonic() - begin, 3)}

    found = beside(state, subject.machines)
    outcomes, states = [], {}
    for id, told in found.items():
        if isinstance(told, MachineError):
            outcomes.append(Outcome(check="reach", environments=(id,), notice=told.notices[0]))
        else:
            states[id] = told
            seen = {"host": told["host"], "seconds": told["seconds"]}
            outcomes.append(Outcome(check="reach", environments=(id,), measured=seen))
    return outcomes, states


def clocks(subject: Subject) -> Iterator[Outcome]:
    """Each clock against that of the machine at which ranks meet, less what the way there and back may hide."""

    def offset(id: str) -> tuple[float, float]:
        begin = time.time()
        told = subject.machines[id].call("survey.read_clock")["clock"]
        end = time.time()
        return told - (begin + end) / 2, (end - begin) / 2

    found = {id: one for id, one in beside(offset, subject.machines).items() if not isinstance(one, MachineError)}
    if subject.master not in found:
        return
    base, base_doubt = found[subject.master]
    for id, (one, doubt) in found.items():
        apart = one - base
        sure = max(0.0, abs(apart) - doubt - base_doubt) if id != subject.master else 0.0
        notice = None
        if sure > CLOCK_WARNING_S:
            params = {"machine": id, "other": subject.master, "seconds": round(abs(apart), 1)}
            level: Level = "error" if sure > CLOCK_ERROR_S else "warning"
            notice = Notice(code="preflight_clock", params=params, level=level)
        yield Outcome(check="clock", environments=(id,), measured={"apart_s": round(apart, 3)}, notice=notice)


def disks(subject: Subject, states: Mapping[str, State]) -> Iterator[Outcome]:
    """Whether the work folder can be written, and holds what a run writes."""
    checkpoint = _checkpoint_gib(subject)
    least = LEAST_FREE_GIB + checkpoint / len(subject.work.nodes)
    wanted = LEAST_FREE_GIB + CHECKPOINTS * checkpoint
    for id, state in states.items():
        folder, free = subject.environments[id].workdir, state["disk_free_gib"]
        params: dict[str, Any] = {"machine": id, "folder": folder}
        notice = None
        if state["unwritable"]:
            notice = Notice(code="preflight_folder", params={**params, "reason": state["unwritable"]})
        elif free < wanted:
            level: Level = "error" if free < least else "warning"
            needs = round(least if free < least else wanted, 2)
            notice = Notice(code="preflight_disk", params={**params, "free": free, "needs": needs}, level=level)
        yield Outcome(check="disk", environments=(id,), measured={"free_gib": free}, notice=notice)


def software(subject: Subject, states: Mapping[str, State]) -> Iterator[Outcome]:
    """Whether the Python of each environment is there and has the framework."""
    needs = PACKAGES.get(subject.work.bundle.framework, ("torch",))
    for id, state in states.items():
        found, python = state["software"], subject.environments[id].python
        notice = None
        missing = next((package for package in needs if package not in found), None)
        if "missing" in found:
            params = {"machine": id, "python": python, "reason": found["missing"]}
            notice = Notice(code="preflight_python", params=params)
        elif missing:
            notice = Notice(code="preflight_package", params={"machine": id, "python": python, "package": missing})
        yield Outcome(check="software", environments=(id,), measured=_versions(found, state), notice=notice)


def versions(subject: Subject, states: Mapping[str, State]) -> Iterator[Outcome]:
    """Whether all have the same versions: libraries must agree, else ranks wait for each other or crash."""
    must = ("torch", "cuda", "nccl", *PACKAGES.get(subject.work.bundle.framework, ())[1:])
    told = {
        id: {**_versions(state["software"], state), "image": subject.environments[id].image}
        for id, state in states.items()
        if "missing" not in state["software"]
    }
    if len(told) < 2:
        return
    first, *others = told
    for what in (*must, "python", "driver", "image"):
        values = {id: _comparable(what, one.get(what)) for id, one in told.items()}
        if set(values.values()) == {None}:
            continue
        other = next((id for id in others if values[id] != values[first]), None)
        notice = None
        if other is not None:
            params = {"what": what, "machine": other, "version": values[other] or "-"}
            params |= {"other": first, "second": values[first] or "-"}
            notice = Notice(code="preflight_versions", params=params, level="error" if what in must else "warning")
        seen = {"what": what, "versions": values}
        yield Outcome(check="versions", environments=tuple(told), measured=seen, notice=notice)


def gpus(subject: Subject, states: Mapping[str, State]) -> Iterator[Outcome]:
    """Whether each machine has the GPUs that its entry promises."""
    for id, state in states.items():
        entry = subject.environments[id]
        if not entry.gpus:
            continue
        seen = {"gpus": len(state["gpus"]), "kinds": sorted({one["name"] for one in state["gpus"]})}
        yield Outcome(check="gpus", environments=(id,), measured=seen, notice=_gpu_notice(id, entry, state))


def data(subject: Subject) -> Iterator[Outcome]:
    """Whether every machine holds the files a run reads; what lies behind a URI is the trainer's to fetch."""
    for needed in subject.files:
        if "://" in needed.path:
            continue

        def look(id: str, needed: NeededFile = needed) -> State:
            found: State = subject.machines[id].call("files.describe_path", path=needed.path, wait_s=DATA_WAIT_S)
            return found

        for id, told in beside(look, subject.machines).items():
            if isinstance(told, MachineError):
                yield Outcome(check="data", environments=(id,), notice=told.notices[0])
                continue
            seen = {"field": needed.field, "path": needed.path, "bytes": told["bytes"]}
            notice = _data_notice(id, needed, told)
            yield Outcome(check="data", environments=(id,), measured=seen, notice=notice)


def _gpu_notice(id: str, entry: Environment, state: State) -> Notice | None:
    cards, params = state["gpus"], {"machine": id, "gpu": entry.gpu or "-"}
    if state["gpu_problem"]:
        return Notice(code="preflight_gpu_driver", params={**params, "reason": state["gpu_problem"]})
    if len(cards) < entry.gpus:
        return Notice(code="preflight_gpu_missing", params={**params, "found": len(cards), "count": entry.gpus})
    for card in cards[: entry.gpus]:
        kind = find_gpu_name(card["name"])
        if kind is not None and entry.gpu is not None and kind != entry.gpu:
            return Notice(code="preflight_gpu_kind", params={**params, "found": card["name"]})
    known = catalogue_of(None).find("gpus", entry.gpu) if entry.gpu else None
    memory = known.memory_gib if isinstance(known, Gpu) else None
    least = min(card["memory_gib"] for card in cards[: entry.gpus])
    if memory is not None and least < memory * MEMORY_SHARE:
        return Notice(code="preflight_gpu_memory", params={**params, "found": least, "memory": memory})
    return None


def _data_notice(id: str, needed: NeededFile, told: State) -> Notice | None:
    params = {"machine": id, "path": needed.path}
    if not told["there"]:
        return Notice(code="preflight_data_missing", field=needed.field, params=params)
    if not told["readable"]:
        return Notice(code="preflight_data_unreadable", field=needed.field, params=params)
    if needed.bytes is not None and told["bytes"] != needed.bytes:
        sizes = {"found": told["bytes"], "bytes": needed.bytes}
        return Notice(code="preflight_data_size", field=needed.field, params={**params, **sizes})
    return None


def _versions(found: Mapping[str, Any], state: State) -> dict[str, Any]:
    nccl = next((found[name] for name in NCCL if name in found), None)
    told = {key: value for key, value in found.items() if key not in NCCL}
    return {**told, "nccl": nccl, "driver": state["driver"]}


def _comparable(what: str, version: str | None) -> str | None:
    """A version as far as it must agree: of Python, major and minor."""
    return ".".join(version.split(".")[:2]) if what == "python" and version else version


def _checkpoint_gib(subject: Subject) -> float:
    found = subject.work.prediction.get("run", {}).get("goodput", {}).get("checkpoint_gb")
    return float(found or 0.0) * 1e9 / 2**30
