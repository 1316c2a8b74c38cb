"""Trial: one process of a task's own trainer on one environment, without any network: how fast it really computes.

    trial = run_trial("env-1", environment, machine, work)      a few steps with the real micro-batch
    trial.step_s, trial.predicted["expected"], trial.speed
    work.apply_trials([trial]).predicted_step_s

What is tried is a scenario like any other, of one rank, so it is predicted by the same cost model; predicted over
measured is the `speed` of that node group, and everything its devices compute scales with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from statistics import median
from typing import Any

from crosszone.deploy.bundle import Bundle, pack_upload
from crosszone.deploy.deploy import build_bundle
from crosszone.deploy.settings import LaunchSettings
from crosszone.errors import MachineError, Notice
from crosszone.inputs.document import dump_yaml
from crosszone.inputs.environment import Environment
from crosszone.inputs.scenario import Loaded, parse_scenario
from crosszone.inputs.strategy import Strategy
from crosszone.predict.answer import answer as predicted
from crosszone.predict.prediction import Prediction
from crosszone.run.machine import Machine, call_each
from crosszone.run.work import TaskWork, Trial

# Steps of a trial, and of one whose steps are short; the first, in which memory is taken, do not count.
STEPS, MAX_STEPS, WARM_UP_STEPS = 8, 40, 3
COUNTED_S = 4.0  # How long the steps that count should take together: shorter ones say less
MAX_MICRO_BATCHES = 8  # Micro-batches of a step that are tried; more of the same would only take longer
# How long the steps of a trial may take as predicted; how long it may really take, the start included.
MAX_PREDICTED_S, LIMIT_S = 40.0, 300.0
POLL_S, UNSEEN_S = 0.5, 10.0  # How often it is looked at; how long it goes on when nobody looks any more
METRICS, LOG = "bundle/out/metrics-stage-0.jsonl", "logs/node.log"
LOG_BYTES = 4000
# Where torchrun and its one process meet: a machine may have a name that nobody knows.
LOOPBACK = {"PET_LOCAL_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}


def run_trial(environment_id: str, environment: Environment, machine: Machine, work: TaskWork) -> Trial:
    """Run a few steps of one rank there; `MachineError` where it cannot be run, ends with an error or takes too long.

    Nothing of it is left on the machine.
    """
    loaded, prediction = build_trial(work, environment_id)
    steps = min(MAX_STEPS, max(STEPS, WARM_UP_STEPS + round(COUNTED_S / prediction.step_time_s.expected)))
    settings = LaunchSettings(python=environment.python, steps=steps)
    bundle = build_bundle(loaded, framework=loaded.scenario.job.framework, settings=settings)
    step_times = _run_bundle(machine, bundle, f"{environment.workdir}/trials/{token_hex(6)}")
    ((_, group),) = loaded.scenario.cluster.zone_groups
    step_s = median(step_times)
    return Trial(
        environment=environment_id,
        step_s=step_s,
        predicted=prediction.step_time_s.model_dump(mode="json"),
        speed=(group.speed or 1.0) * prediction.step_time_s.expected / step_s,
        steps=len(step_times),
        layers=loaded.scenario.model.layers,
        micro_batches=prediction.micro_batches,
    )


def run_trials(
    environments: Mapping[str, Environment], machines: Mapping[str, Machine], work: TaskWork
) -> tuple[Trial, ...]:
    """The trials of all environments at the same time, as they will compute: some may share a machine."""
    ids = [node.environment for node in work.nodes]
    return tuple(call_each(lambda id: run_trial(id, environments[id], machines[id], work), ids))


def build_trial(work: TaskWork, environment_id: str) -> tuple[Loaded, Prediction]:
    """What is tried there, and what is expected of it: one rank with a stage's layers and the plan's micro-batch.

    Fewer layers where one device cannot hold a stage alone, fewer micro-batches where they would take too long.
    """
    plan = work.plan
    strategy = plan.strategy or Strategy()
    layers = -(-plan.model.layers // strategy.pp)
    micro_batches = min(MAX_MICRO_BATCHES, strategy.micro_batches(plan.job.global_batch))
    while True:
        loaded = _build_one_rank_scenario(work, environment_id, layers, micro_batches)
        prediction = predicted(loaded).prediction
        if not prediction.memory_gib.fits and layers > 1:
            layers = layers // 2
        elif micro_batches > 1 and prediction.step_time_s.expected * STEPS > MAX_PREDICTED_S:
            affordable = int(micro_batches * MAX_PREDICTED_S / (prediction.step_time_s.expected * STEPS))
            micro_batches = max(1, min(micro_batches - 1, affordable))
        else:
            return loaded, prediction


def _build_one_rank_scenario(work: TaskWork, environment_id: str, layers: int, micro_batches: int) -> Loaded:
    """One rank of the environment with so many layers of the model and micro-batches of the plan."""
    plan = work.plan
    strategy = plan.strategy or Strategy()
    zone, number = work.find_node_group(environment_id)
    group = plan.cluster.zones[plan.cluster.find_zone_index(zone)].nodes[number]
    single_node = group.replace(count=1, gpus=1, hosts=(), nvlink_domain=None)
    scenario = plan.to_plain() | {
        "model": plan.model.replace(layers=layers).to_plain(),
        "job": plan.job.replace(global_batch=strategy.micro_batch * micro_batches).to_plain(),
        "cluster": {"zones": [{"name": zone, "nodes": [single_node.to_plain()]}]},
        "strategy": {"dp": 1, "micro_batch": strategy.micro_batch, "recompute": strategy.recompute},
    }
    scenario.pop("placement", None)
    return parse_scenario(dump_yaml(scenario), "trial.yaml")


def _run_bundle(machine: Machine, bundle: Bundle, folder: str) -> list[float]:
    """Put the bundle there, run it to its end, and take it away again: seconds of each step that counts."""
    token, upload = folder.rpartition("/")[2], pack_upload(bundle)
    try:
        machine.call("files.put_bundle", folder=folder, payload=upload.data, checksum=upload.checksum)
        command = ["bash", bundle.nodes[0].script]
        options: dict[str, Any] = {"command": command, "environment": LOOPBACK, "unseen_s": UNSEEN_S}
        machine.call("supervisor.start", folder=folder, token=token, **options)
        _wait_for_end(machine, folder)
        _, data = machine.call("files.read_bytes", folder=folder, name=METRICS)
    finally:
        with suppress(MachineError):
            machine.call("supervisor.stop", folder=folder, token=token, grace_s=1)
            machine.call("files.delete_folder", folder=folder, expected_name=token)
    return _read_step_times(data.splitlines())


def _wait_for_end(machine: Machine, folder: str) -> None:
    """Until it has ended well."""
    end = time.monotonic() + LIMIT_S
    while (status := machine.call("supervisor.poll", folder=folder))["state"] not in ("ended", "lost"):
        if time.monotonic() > end:
            params = {"machine": machine.name, "limit_s": round(LIMIT_S)}
            raise MachineError(Notice(code="trial_too_long", params=params))
        time.sleep(POLL_S)
    if status["state"] != "ended" or status.get("code") != 0:
        _, data = machine.call("files.read_bytes", folder=folder, name=LOG, offset=-LOG_BYTES)
        lines = [line for line in data.decode(errors="replace").splitlines() if line.strip()]
        error_lines = (
            [line for line in lines if "rror" in line] or lines or [str(status.get("said") or status.get("code"))]
        )
        raise MachineError(
            Notice(code="trial_failed", params={"machine": machine.name, "reason": error_lines[-1].strip()})
        )


def _read_step_times(lines: Sequence[bytes]) -> list[float]:
    """Seconds of the steps that count; a line that is no step is a header."""
    rows = [row for line in lines if isinstance(row := json.loads(line), dict) and "step" in row]
    return [row["end_s"] - row["start_s"] for row in rows if row["step"] > WARM_UP_STEPS]
