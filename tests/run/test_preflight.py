"""Preflight: each thing that is wrong with a machine is told as itself, with the machine and the remedy."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time

import pytest

from crosszone.errors import MachineError, Notice
from crosszone.inputs.dataset import Dataset, DatasetVersion, TrainingModel
from crosszone.inputs.environment import Environment, MeasuredLink
from crosszone.run import link_checks, preflight
from crosszone.run.checks import Left, NeededFile, Turn
from crosszone.run.machine import Local
from crosszone.run.preflight import check
from crosszone.run.probe import measured
from crosszone.run.remote.supervisor import find_processes
from crosszone.run.request import Known, TaskRequest, checked
from crosszone.run.trial import Trial
from crosszone.run.work import work_of
from crosszone.store import open_store
from crosszone.store.tasks import notice_of
from deploy.test_slurm import free_ports
from run.sshd import keys, needs_sshd, serving

GPU = {"name": "NVIDIA A100-SXM4-80GB", "memory_gib": 79.6}
SOFTWARE = {"python": "3.11.7", "torch": "2.9.1+cu128", "cuda": "12.8", "nvidia-nccl-cu12": "2.27.5"}
STATE = {
    "host": "h",
    "disk_free_gib": 900.0,
    "unwritable": None,
    "software": SOFTWARE,
    "gpus": [GPU, GPU],
    "driver": "570.1",
    "gpu_problem": None,
}


class Fake(Local):
    """This machine with another state."""

    state: dict
    ahead_s: float = 0.0

    def __init__(self, name, ahead_s=0.0, fails=None, **state):
        super().__init__(name=name)
        object.__setattr__(self, "state", {**STATE, **state})
        object.__setattr__(self, "ahead_s", ahead_s)
        object.__setattr__(self, "fails", fails or {})

    def call(self, what, **more):
        if what in self.fails:
            raise MachineError(Notice(code=self.fails[what], params={"machine": self.name, "reason": "gone"}))
        if what == "survey.read_machine_state":
            return self.state
        if what == "survey.read_clock":
            return {"clock": time.time() + self.ahead_s}
        return super().call(what, **more)


def environment(number: int, **more) -> Environment:
    fields = {"gpu": "a100-80gb-sxm", "gpus": 2, "cpus": 16, "memory_gb": 128.0, "nic_gbps": 10.0}
    where = {"zone": f"zone-{number}", "address": f"127.0.0.{number + 1}", "runner": "local", "image": "one"}
    return Environment(name=f"e{number}", **{**fields, **where, **more})


LINK = MeasuredLink(
    first="env-0", second="env-1", rtt_ms=20.0, rtt_ms_least=19.0, rtt_ms_most=21.0, gbps=0.001, gbps_back=0.001,
    streams=4, measured=0.0,
)  # fmt: skip


def known(places) -> Known:
    datasets = {"d": Dataset(name="d", versions=(DatasetVersion(id="v"),))}
    tiny = {"name": "tiny", "layers": 2, "hidden": 64, "heads": 4, "ffn_hidden": 128, "vocab": 256}
    return Known(environments=places, datasets=datasets, models={"m": TrainingModel(name="m", model=tiny)})


def work_for(places, **job):
    where = {"nodeIds": list(places), "masterNode": next(iter(places)), "framework": "pytorch-ddp"}
    request = TaskRequest(
        taskName="t", datasetId="d", datasetVersionId="v", modelId="m", distributedConfig=where,
        job={"seq_len": 64, "steps": 5, **job},
    )  # fmt: skip
    return work_of(checked(request, known(places)), [LINK], "en")


@pytest.fixture(scope="module")
def places():
    return {f"env-{number}": environment(number) for number in range(2)}


@pytest.fixture(scope="module")
def work(places):
    return work_for(places)


@pytest.fixture
def store(tmp_path):
    with open_store(f"sqlite:///{tmp_path}/saved.db") as opened:
        yield opened


@pytest.fixture
def turn(store):
    return Turn(store, store.tasks.add(name="t", request={})[0])


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A link and trials of a step that are as predicted, and short waits."""
    monkeypatch.setattr(link_checks, "measured", lambda *_, **__: LINK)
    monkeypatch.setattr(link_checks, "TRY_S", 0.5)
    monkeypatch.setattr(link_checks, "LEAST_S", 0.1)
    monkeypatch.setattr(preflight, "measured_step", lambda id, *_: trial(id))


def trial(id: str, step_s: float = 0.1) -> Trial:
    band = {"low": 0.09, "expected": 0.1, "high": 0.12}
    return Trial(environment=id, step_s=step_s, predicted=band, speed=1.0, steps=5, layers=2, micro_batches=1)


def found(turn, store, places, work, machines, **more) -> list[Notice]:
    """What a preflight finds; each is also an event, and says what is wrong in both languages."""
    notices = check(work, places, machines, [LINK], turn=turn, **more)
    told = [one.about["notice"] for one in store.tasks.events(turn.task.id) if one.kind == "check"]
    assert [notice_of(one) for one in told if one] == notices
    for notice in notices:
        for language in ("en", "zh"):
            assert notice.message(language) and notice.hint(language)
    return notices


def codes(notices, level="error") -> list[str]:
    return [notice.code for notice in notices if notice.level == level]


def fakes(places, **second):
    return {"env-0": Fake("env-0"), "env-1": Fake("env-1", **second)}


@pytest.mark.slow
def test_all_is_well_and_each_check_says_what_it_saw(turn, store, places, work, monkeypatch):
    monkeypatch.setattr(link_checks, "measured", measured)
    assert found(turn, store, places, work, fakes(places)) == []
    events = [one.about for one in store.tasks.events(turn.task.id) if one.kind == "check"]
    assert {one["level"] for one in events} == {"ok"}
    names = ["reach", "clock", "disk", "software", "versions", "gpus", "port", "link", "step"]
    assert list(dict.fromkeys(one["check"] for one in events)) == names
    assert turn.refined.port == next(one["measured"]["port"] for one in events if one["check"] == "port")
    link = next(one["measured"] for one in events if one["check"] == "link")
    assert link["gbps"] > link["assumed"]["gbps"]


@pytest.mark.parametrize(
    ("second", "code", "level"),
    [
        ({"fails": {"survey.read_machine_state": "machine_unreachable"}}, "machine_unreachable", "error"),
        ({"gpus": [GPU]}, "preflight_gpu_missing", "error"),
        ({"gpus": []}, "preflight_gpu_missing", "error"),
        ({"gpus": [], "gpu_problem": "Driver/library version mismatch"}, "preflight_gpu_driver", "error"),
        ({"gpus": [GPU | {"name": "NVIDIA H100 80GB HBM3"}] * 2}, "preflight_gpu_kind", "error"),
        ({"gpus": [GPU | {"memory_gib": 39.4}] * 2}, "preflight_gpu_memory", "error"),
        ({"software": SOFTWARE | {"torch": "2.8.0+cu128"}}, "preflight_versions", "error"),
        ({"software": SOFTWARE | {"cuda": "12.6"}}, "preflight_versions", "error"),
        ({"software": SOFTWARE | {"nvidia-nccl-cu12": "2.21.5"}}, "preflight_versions", "error"),
        ({"software": SOFTWARE | {"python": "3.12.1"}}, "preflight_versions", "warning"),
        ({"driver": "550.2"}, "preflight_versions", "warning"),
        ({"software": {"missing": "python3: No such file"}}, "preflight_python", "error"),
        ({"software": {"python": "3.11.7"}}, "preflight_package", "error"),
        ({"disk_free_gib": 0.1}, "preflight_disk", "error"),
        ({"unwritable": "Read-only file system"}, "preflight_folder", "error"),
        ({"ahead_s": 5.0}, "preflight_clock", "warning"),
        ({"ahead_s": -90.0}, "preflight_clock", "error"),
        ({"fails": {"link.listen_for_probes": "machine_silent"}}, None, None),
    ],
)
def test_each_failure_is_its_own_and_names_its_machine(turn, store, places, work, second, code, level):
    notices = found(turn, store, places, work, fakes(places, **second))
    if code is None:
        assert notices == []
        return
    assert code in codes(notices, level)
    notice = next(one for one in notices if one.code == code)
    assert notice.params["machine"] == "env-1"
    assert "env-1" in notice.message()


def test_an_image_that_differs_is_told(turn, store, work, places):
    other = {**places, "env-1": places["env-1"].replace(image="two")}
    notices = found(turn, store, other, work, fakes(places))
    assert [(one.code, one.params["what"]) for one in notices] == [("preflight_versions", "image")]


def test_a_port_that_is_closed_is_told_by_whoever_cannot_reach_it(turn, store, places, work):
    """The address leads nowhere: nothing of this machine listens there."""
    away = {**places, "env-0": places["env-0"].replace(address="127.255.255.254")}

    class Deaf(Fake):
        def call(self, what, **more):
            return {"heard": 0} if what == "link.listen_for_probes" else super().call(what, **more)

    machines = {"env-0": Deaf("env-0"), "env-1": Fake("env-1")}
    notices = found(turn, store, away, work, machines)
    closed = next(one for one in notices if one.code == "preflight_port_closed")
    assert (closed.params["machine"], closed.params["other"]) == ("env-1", "env-0")
    assert closed.params["reason"] == "Connection refused"


def test_a_port_that_is_named_and_taken_is_not_changed(turn, store, places, work):
    import socket

    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        notices = found(turn, store, places, work, fakes(places), fixed_port=port)
        assert "machine_port_taken" in codes(notices)
        assert turn.refined is None
        again = check(work.replace(port=port), places, fakes(places), [LINK], turn=turn)
        assert again == []
        assert turn.refined.port not in (None, port)


def test_data_that_is_missing_or_of_another_size_is_told(turn, store, places, work, tmp_path):
    path = tmp_path / "tokens.bin"
    needed = NeededFile(field="data", path=str(path), bytes=8)
    assert codes(found(turn, store, places, work, fakes(places), files=[needed])) == ["preflight_data_missing"] * 2
    path.write_bytes(bytes(4))
    assert codes(check(work, places, fakes(places), [LINK], turn=turn, files=[needed])) == ["preflight_data_size"] * 2
    path.write_bytes(bytes(8))
    assert check(work, places, fakes(places), [LINK], turn=turn, files=[needed]) == []
    far = NeededFile(field="data", path="s3://bucket/tokens.bin", bytes=8)
    assert check(work, places, fakes(places), [LINK], turn=turn, files=[far]) == []


@pytest.mark.parametrize(
    ("rtt_ms", "gbps", "expected"),
    [
        (20.0, 0.001, []),
        (24.0, 0.0009, []),
        (30.0, 0.001, [("preflight_link_late", "warning")]),
        (60.0, 0.001, [("preflight_link_late", "error")]),
        (20.0, 0.0007, [("preflight_link_slow", "warning")]),
        (20.0, 0.0004, [("preflight_link_slow", "error")]),
    ],
)
def test_a_link_slower_than_the_prediction_assumes_is_told(
    turn, store, places, work, monkeypatch, rtt_ms, gbps, expected
):
    now = LINK.replace(rtt_ms=rtt_ms, gbps_back=gbps)
    monkeypatch.setattr(link_checks, "measured", lambda *_, **__: now)
    notices = found(turn, store, places, work, fakes(places))
    assert [(one.code, one.level) for one in notices] == expected
    if gbps < 0.0009:
        assert (notices[0].params["machine"], notices[0].params["other"]) == ("env-1", "env-0")


def test_a_step_beyond_the_band_stops_a_gpu_and_refines_what_is_predicted(turn, store, places, work, monkeypatch):
    monkeypatch.setattr(preflight, "measured_step", lambda id, *_: trial(id, 0.2 if id == "env-1" else 0.1))
    notices = found(turn, store, places, work, fakes(places))
    assert [(one.code, one.level, one.params["machine"]) for one in notices] == [
        ("preflight_step_slow", "error", "env-1")
    ]
    assert turn.refined.prediction is not None


def test_a_trial_that_fails_is_told_with_its_reason(turn, store, places, work, monkeypatch):
    def fails(id, *_):
        raise MachineError(Notice(code="trial_failed", params={"machine": id, "reason": "ImportError: no torch"}))

    monkeypatch.setattr(preflight, "measured_step", fails)
    assert codes(found(turn, store, places, work, fakes(places))) == ["trial_failed"] * 2


def test_a_single_node_needs_no_port_and_no_link(turn, store):
    places = {"env-0": environment(0, address=None)}
    doing = work_for(places)
    assert found(turn, store, places, doing, {"env-0": Fake("env-0")}) == []
    names = {one.about["check"] for one in store.tasks.events(turn.task.id) if one.kind == "check"}
    assert not names & {"port", "link"}
    assert turn.refined.port is None


def test_what_only_a_scheduler_reaches_is_left_to_it(turn, store, places, work):
    scheduled = {id: one.replace(runner="slurm") for id, one in places.items()}
    notices = found(turn, store, scheduled, work, {})
    assert [(one.code, one.level) for one in notices] == [("environment_scheduled", "note")] * 2


def test_a_preflight_that_nobody_waits_for_asks_no_more(turn, store, places, work):
    class Slow(Fake):
        def call(self, what, **more):
            if what == "survey.read_clock":
                turn.leave()
            return super().call(what, **more)

    with pytest.raises(Left):
        check(work, places, {id: Slow(id) for id in places}, [LINK], turn=turn)
    assert {one.about["check"] for one in store.tasks.events(turn.task.id) if one.kind == "check"} == {"reach"}


@pytest.mark.parametrize("try_s", [pytest.param(15.0, marks=[*needs_sshd, pytest.mark.slow])])
def test_machines_over_ssh(turn, store, places, work, tmp_path, monkeypatch, try_s):
    """Both answer, though they have nothing; then sshd of one is killed."""
    monkeypatch.setattr(link_checks, "TRY_S", try_s)
    held = keys(tmp_path / "keys")
    first, second = free_ports(2)
    near = {id: one.replace(python=sys.executable, workdir=str(tmp_path / id), gpus=2) for id, one in places.items()}
    with serving("127.0.0.1", first, held, tmp_path / "a") as one:
        with serving("127.0.0.1", second, held, tmp_path / "b") as two:
            machines = {
                "env-0": dataclasses.replace(one, name="env-0", python=sys.executable),
                "env-1": dataclasses.replace(two, name="env-1", python=sys.executable),
            }
            notices = found(turn, store, near, work, machines)
            assert set(codes(notices)) == {"preflight_package", "preflight_gpu_missing"}
            pid = int((tmp_path / "b" / "sshd.pid").read_text())
            os.kill(pid, signal.SIGKILL)
        notices = check(work, near, machines, [LINK], turn=turn)
        assert codes(notices) == ["machine_unreachable"]
        assert notices[0].params["machine"] == "env-1"


@pytest.mark.slow
def test_a_trial_that_a_killed_driver_left_is_taken_away(tmp_path):
    machine = Local()
    old, new = tmp_path / "trials" / "old", tmp_path / "trials" / "new"
    for folder in (old, new):
        machine.call("supervisor.start", folder=str(folder), token=folder.name, command=["sleep", "600"])
    os.utime(old, (0, 0))
    machine.call("survey.read_machine_state", folder=str(tmp_path), python=sys.executable)
    assert not old.exists()
    assert find_processes("old") == []
    assert len(find_processes("new")) > 0
    machine.call("supervisor.stop", folder=str(new), token="new", grace_s=0)
