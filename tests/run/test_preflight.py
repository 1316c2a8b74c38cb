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
from crosszone.run import preflight
from crosszone.run.engine import StepAbandoned, StepContext
from crosszone.run.environments import measure_link
from crosszone.run.machine import Local
from crosszone.run.preflight import NeededFile, run_preflight
from crosszone.run.remote.supervisor import find_processes
from crosszone.run.request import RegisteredEntries, TaskRequest, check_request
from crosszone.run.work import Trial, build_work
from crosszone.store import open_store
from crosszone.store.tasks import decode_notice
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


def known(places) -> RegisteredEntries:
    datasets = {"d": Dataset(name="d", versions=(DatasetVersion(id="v"),))}
    tiny = {"name": "tiny", "layers": 2, "hidden": 64, "heads": 4, "ffn_hidden": 128, "vocab": 256}
    return RegisteredEntries(environments=places, datasets=datasets, models={"m": TrainingModel(name="m", model=tiny)})


def work_for(places, **job):
    where = {"nodeIds": list(places), "masterNode": next(iter(places)), "framework": "pytorch-ddp"}
    request = TaskRequest(
        taskName="t", datasetId="d", datasetVersionId="v", modelId="m", distributedConfig=where,
        job={"seq_len": 64, "steps": 5, **job},
    )  # fmt: skip
    return build_work(check_request(request, known(places)), [LINK], "en")


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
def context(store):
    return StepContext(store, store.tasks.add(name="t", request={})[0])


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A link and trials of a step that are as predicted, and short waits."""
    monkeypatch.setattr(preflight, "measure_link", lambda *_, **__: LINK)
    monkeypatch.setattr(preflight, "PROBE_PORT_S", 0.5)
    monkeypatch.setattr(preflight, "MIN_TEST_S", 0.1)
    monkeypatch.setattr(preflight, "run_trial", lambda id, *_: trial(id))


def trial(id: str, step_s: float = 0.1) -> Trial:
    band = {"low": 0.09, "expected": 0.1, "high": 0.12}
    return Trial(environment=id, step_s=step_s, predicted=band, speed=1.0, steps=5, layers=2, micro_batches=1)


def found(context, store, places, work, machines, **more) -> list[Notice]:
    """What a preflight finds; each is also an event, and says what is wrong in both languages."""
    notices = run_preflight(work, places, machines, [LINK], context=context, **more)
    stored = [event.about["notice"] for event in store.tasks.list_events(context.task.id) if event.kind == "check"]
    assert [decode_notice(notice) for notice in stored if notice] == notices
    for notice in notices:
        for language in ("en", "zh"):
            assert notice.message(language) and notice.hint(language)
    return notices


def codes(notices, level="error") -> list[str]:
    return [notice.code for notice in notices if notice.level == level]


def fakes(places, **second):
    return {"env-0": Fake("env-0"), "env-1": Fake("env-1", **second)}


@pytest.mark.slow
def test_all_is_well_and_each_check_says_what_it_saw(context, store, places, work, monkeypatch):
    monkeypatch.setattr(preflight, "measure_link", measure_link)
    assert found(context, store, places, work, fakes(places)) == []
    events = [event.about for event in store.tasks.list_events(context.task.id) if event.kind == "check"]
    assert {event["level"] for event in events} == {"ok"}
    names = ["reach", "clock", "disk", "software", "versions", "gpus", "port", "link", "step"]
    assert list(dict.fromkeys(event["check"] for event in events)) == names
    assert context.refined_work.port == next(event["measured"]["port"] for event in events if event["check"] == "port")
    link = next(event["measured"] for event in events if event["check"] == "link")
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
def test_each_failure_is_its_own_and_names_its_machine(context, store, places, work, second, code, level):
    notices = found(context, store, places, work, fakes(places, **second))
    if code is None:
        assert notices == []
        return
    assert code in codes(notices, level)
    notice = next(one for one in notices if one.code == code)
    assert notice.params["machine"] == "env-1"
    assert "env-1" in notice.message()


def test_an_image_that_differs_is_told(context, store, work, places):
    other = {**places, "env-1": places["env-1"].replace(image="two")}
    notices = found(context, store, other, work, fakes(places))
    assert [(notice.code, notice.params["what"]) for notice in notices] == [("preflight_versions", "image")]


def test_a_port_that_is_closed_is_told_by_whoever_cannot_reach_it(context, store, places, work):
    """The address leads nowhere: nothing of this machine listens there."""
    away = {**places, "env-0": places["env-0"].replace(address="127.255.255.254")}

    class Deaf(Fake):
        def call(self, what, **more):
            return {"heard": 0} if what == "link.listen_for_probes" else super().call(what, **more)

    machines = {"env-0": Deaf("env-0"), "env-1": Fake("env-1")}
    notices = found(context, store, away, work, machines)
    closed = next(notice for notice in notices if notice.code == "preflight_port_closed")
    assert (closed.params["machine"], closed.params["other"]) == ("env-1", "env-0")
    assert closed.params["reason"] == "Connection refused"


def test_a_port_that_is_named_and_taken_is_not_changed(context, store, places, work):
    import socket

    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        notices = found(context, store, places, work, fakes(places), fixed_port=port)
        assert "machine_port_taken" in codes(notices)
        assert context.refined_work is None
        again = run_preflight(work.replace(port=port), places, fakes(places), [LINK], context=context)
        assert again == []
        assert context.refined_work.port not in (None, port)


def test_data_that_is_missing_or_of_another_size_is_told(context, store, places, work, tmp_path):
    path = tmp_path / "tokens.bin"
    needed = NeededFile(field="data", path=str(path), bytes=8)
    assert codes(found(context, store, places, work, fakes(places), files=[needed])) == ["preflight_data_missing"] * 2
    path.write_bytes(bytes(4))
    assert (
        codes(run_preflight(work, places, fakes(places), [LINK], context=context, files=[needed]))
        == ["preflight_data_size"] * 2
    )
    path.write_bytes(bytes(8))
    assert run_preflight(work, places, fakes(places), [LINK], context=context, files=[needed]) == []
    far = NeededFile(field="data", path="s3://bucket/tokens.bin", bytes=8)
    assert run_preflight(work, places, fakes(places), [LINK], context=context, files=[far]) == []


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
    context, store, places, work, monkeypatch, rtt_ms, gbps, expected
):
    now = LINK.replace(rtt_ms=rtt_ms, gbps_back=gbps)
    monkeypatch.setattr(preflight, "measure_link", lambda *_, **__: now)
    notices = found(context, store, places, work, fakes(places))
    assert [(notice.code, notice.level) for notice in notices] == expected
    if gbps < 0.0009:
        assert (notices[0].params["machine"], notices[0].params["other"]) == ("env-1", "env-0")


def test_a_step_beyond_the_band_stops_a_gpu_and_refines_what_is_predicted(context, store, places, work, monkeypatch):
    monkeypatch.setattr(preflight, "run_trial", lambda id, *_: trial(id, 0.2 if id == "env-1" else 0.1))
    notices = found(context, store, places, work, fakes(places))
    assert [(notice.code, notice.level, notice.params["machine"]) for notice in notices] == [
        ("preflight_step_slow", "error", "env-1")
    ]
    assert context.refined_work.prediction is not None


def test_a_trial_that_fails_is_told_with_its_reason(context, store, places, work, monkeypatch):
    def fails(id, *_):
        raise MachineError(Notice(code="trial_failed", params={"machine": id, "reason": "ImportError: no torch"}))

    monkeypatch.setattr(preflight, "run_trial", fails)
    assert codes(found(context, store, places, work, fakes(places))) == ["trial_failed"] * 2


def test_a_single_node_needs_no_port_and_no_link(context, store):
    places = {"env-0": environment(0, address=None)}
    doing = work_for(places)
    assert found(context, store, places, doing, {"env-0": Fake("env-0")}) == []
    names = {event.about["check"] for event in store.tasks.list_events(context.task.id) if event.kind == "check"}
    assert not names & {"port", "link"}
    assert context.refined_work.port is None


def test_what_only_a_scheduler_reaches_is_left_to_it(context, store, places, work):
    scheduled = {id: environment.replace(runner="slurm") for id, environment in places.items()}
    notices = found(context, store, scheduled, work, {})
    assert [(notice.code, notice.level) for notice in notices] == [("environment_scheduled", "note")] * 2


def test_a_preflight_that_nobody_waits_for_asks_no_more(context, store, places, work):
    class Slow(Fake):
        def call(self, what, **more):
            if what == "survey.read_clock":
                context.abandon()
            return super().call(what, **more)

    with pytest.raises(StepAbandoned):
        run_preflight(work, places, {id: Slow(id) for id in places}, [LINK], context=context)
    assert {event.about["check"] for event in store.tasks.list_events(context.task.id) if event.kind == "check"} == {
        "reach"
    }


@pytest.mark.parametrize("try_s", [pytest.param(15.0, marks=[*needs_sshd, pytest.mark.slow])])
def test_machines_over_ssh(context, store, places, work, tmp_path, monkeypatch, try_s):
    """Both answer, though they have nothing; then sshd of one is killed."""
    monkeypatch.setattr(preflight, "PROBE_PORT_S", try_s)
    host_keys = keys(tmp_path / "keys")
    first, second = free_ports(2)
    near = {
        id: environment.replace(python=sys.executable, workdir=str(tmp_path / id), gpus=2)
        for id, environment in places.items()
    }
    with serving("127.0.0.1", first, host_keys, tmp_path / "a") as machine:
        with serving("127.0.0.1", second, host_keys, tmp_path / "b") as two:
            machines = {
                "env-0": dataclasses.replace(machine, name="env-0", python=sys.executable),
                "env-1": dataclasses.replace(two, name="env-1", python=sys.executable),
            }
            notices = found(context, store, near, work, machines)
            assert set(codes(notices)) == {"preflight_package", "preflight_gpu_missing"}
            pid = int((tmp_path / "b" / "sshd.pid").read_text())
            os.kill(pid, signal.SIGKILL)
        notices = run_preflight(work, near, machines, [LINK], context=context)
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
