"""A task on CPUs: every environment takes part, and one process that was tried tells how fast they compute."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from crosszone.errors import IllegalError, InvalidError, MachineError
from crosszone.inputs.dataset import Dataset, DatasetVersion, TrainingModel
from crosszone.inputs.environment import Environment, MeasuredLink
from crosszone.inputs.scenario import parse_scenario
from crosszone.run.machine import Local
from crosszone.run.request import (
    CheckedRequest,
    DistributedConfig,
    RegisteredEntries,
    RequestedDegrees,
    RequestedJob,
    TaskRequest,
    check_request,
)
from crosszone.run.trial import STEPS, WARM_UP_STEPS, build_trial, run_trial, run_trials
from crosszone.run.work import TaskWork, Trial, build_work

TRAIN = Path(__file__).parents[2] / ".venv-train/bin/python"
TINY = {"layers": 4, "hidden": 128, "heads": 4, "vocab": 512, "ffn_hidden": 512}
FACTS = {"cpu": {"fp32_tflops": 0.1, "bf16_tflops": 0.01, "memory_gb_per_s": 16.0}}
LINK = {"rtt_ms": 20.0, "rtt_ms_least": 20.0, "rtt_ms_most": 21.0, "gbps": 0.0955, "gbps_back": 0.0955, "measured": 1e9}


def cpus(*zones: str, **more) -> dict[str, Environment]:
    fields = {"memory_gb": 16.0, "facts": FACTS, "python": str(TRAIN), "runner": "local", **more}
    return {
        f"env-{n}": Environment(name=f"e{n}", zone=zone, address=f"10.0.{n}.1", **fields)
        for n, zone in enumerate(zones)
    }


def asked(
    environments: dict[str, Environment], *, master: str = "env-0", framework="pytorch-ddp", **more
) -> CheckedRequest:
    degrees = more.pop("strategy", None)
    where = DistributedConfig(
        nodeIds=tuple(environments),
        masterNode=master,
        framework=framework,
        strategy=degrees and RequestedDegrees(**degrees),
    )
    job = RequestedJob(**{"seq_len": 64, "precision": "fp32", "steps": 20, **more.pop("job", {})})
    request = TaskRequest(
        taskName="t", datasetId="d", datasetVersionId="v", modelId="tiny", distributedConfig=where, job=job
    )
    return check_request(
        request,
        RegisteredEntries(
            environments=environments,
            datasets={"d": Dataset(name="d", versions=(DatasetVersion(id="v"),))},
            models={"tiny": TrainingModel(name="tiny", model=more.pop("model", TINY))},
        ),
    )


def links(environments: dict[str, Environment]) -> list[MeasuredLink]:
    return [
        MeasuredLink(first=a, second=b, **LINK)
        for a, b in product(environments, environments)
        if a < b and environments[a].zone != environments[b].zone
    ]


def work(*zones: str, **more) -> TaskWork:
    environments = cpus(*zones)
    return build_work(asked(environments, **more), links(environments), "en")


def test_every_chosen_environment_runs_one_node_and_ranks_meet_at_the_master():
    for zones, master in ((("a", "b"), "env-0"), (("a", "b"), "env-1"), (("a", "b", "a", "c"), "env-3")):
        planned = work(*zones, master=master)
        assert sorted(node.environment for node in planned.nodes) == [f"env-{n}" for n in range(len(zones))]
        assert planned.nodes[0].environment == master
        assert planned.prediction["gpus"] == len(zones)


def test_environments_take_part_although_a_plan_without_them_were_faster():
    fast, slow = cpus("a").popitem()[1], cpus("b", "b")["env-1"]
    slow = slow.replace(facts={"cpu": {**FACTS["cpu"], "fp32_tflops": 0.0001}})
    both = {"env-0": fast, "env-1": slow}
    planned = build_work(asked(both), links(both), "en")
    assert {node.environment for node in planned.nodes} == set(both)


def test_what_cannot_train_together_is_refused_with_the_reason():
    mixed = {**cpus("a"), "env-9": Environment(name="g", zone="b", gpus=1, gpu="h100-80gb-sxm", address="10.0.9.1")}
    for environments, more, code in (
        (mixed, {}, "environments_mixed"),
        (cpus("a", "b"), {"framework": "megatron-lm"}, "framework_needs_gpus"),
        (cpus("a", "b", "c"), {"job": {"global_batch": 4}}, "task_environments_idle"),
    ):
        with pytest.raises((InvalidError, IllegalError)) as refused:
            build_work(asked(environments, **more), links(environments), "en")
        assert refused.value.notices[0].code == code


def test_degrees_that_are_given_stay_and_the_rest_is_planned():
    planned = work("a", "b", strategy={"dataParallel": 2})
    assert {name: planned.prediction["strategy"][name] for name in ("dp", "pp", "tp")} == {"dp": 2, "pp": 1, "tp": 1}
    assert planned.prediction["strategy"]["micro_batch"] > 1


def test_gradients_of_cpus_cross_zones_over_gloo():
    planned = work("a", "b")
    # 1 316 608 gradients of 4 bytes in ceil(5.27 MB / 1 MiB) = 6 segments; each of 2 x 3 that a rank sends takes its
    # time at 95.5 Mbit/s and half of 20 ms: 2 x 3 x (5 266 432 / 6 / 11.94e6 + 0.01 + hosts).
    parameters = 512 * 128 * 2 + 4 * (4 * 128 * 128 + 3 * 128 * 512 + 2 * 128) + 128
    size, rate = 4 * parameters, 0.0955e9 / 8
    by_hand = 6 * (size / 6 / rate + 0.0101 / 1)
    assert planned.prediction["breakdown_s"]["gradients"] == pytest.approx(by_hand, rel=0.03)


def told(id: str, speed: float) -> Trial:
    band = {"low": 1.0, "expected": 1.0, "high": 1.0}
    return Trial(environment=id, step_s=1.0, predicted=band, speed=speed, steps=1, layers=1, micro_batches=1)


def test_a_trial_scales_what_its_environment_computes_and_nothing_else():
    plain = work("a", "b")
    slower = plain.apply_trials([told("env-0", 0.25), told("env-1", 0.5)])
    before, after = plain.prediction["breakdown_s"], slower.prediction["breakdown_s"]
    for part in ("matmul", "attention", "elementwise", "optimizer", "fixed"):
        assert after[part] == pytest.approx(4 * before[part])  # of the slowest
    assert after["gradients"] == pytest.approx(before["gradients"], rel=1e-12)
    assert slower.bundle == plain.bundle
    speeds = [group.speed for _, group in parse_scenario(slower.scenario, "x").scenario.cluster.zone_groups]
    assert speeds == [0.25, 0.5]
    again = slower.apply_trials([told("env-0", 1.0), told("env-1", 1.0)])
    assert again.predicted_step_s == pytest.approx(plain.predicted_step_s)


def test_what_is_tried_is_one_rank_with_the_plans_micro_batch():
    planned = work("a", "b", "c", "d", strategy={"pipelineParallel": 4}, framework="pytorch-fsdp")
    loaded, expected = build_trial(planned, "env-2")
    scenario = loaded.scenario
    assert (scenario.model.layers, scenario.cluster.gpus, scenario.strategy.dp) == (1, 1, 1)
    assert scenario.strategy.micro_batch == planned.prediction["strategy"]["micro_batch"]
    assert (expected.gpus, expected.communication) == (1, ())


class Fake:
    """A machine whose process writes steps of a given length, or ends with an error."""

    name = "fake"

    def __init__(self, step_s: float = 0.5, code: int = 0):
        self.step_s, self.code, self.called = step_s, code, []

    def call(self, what, **arguments):
        self.called.append(what)
        if what == "supervisor.poll":
            return {"state": "ended", "code": self.code}
        if what != "files.read_bytes":
            return {}
        if arguments["name"].endswith(".log"):
            return {}, b"Traceback\nModuleNotFoundError: no torch\n"
        rows = [
            {"step": n, "start_s": n, "end_s": n + self.step_s * (9 if n <= WARM_UP_STEPS else 1)}
            for n in range(1, STEPS + 1)
        ]
        return {}, b"\n".join(json.dumps(row).encode() for row in [{"version": 1}, *rows])


def test_a_trial_counts_the_steps_after_the_first_and_leaves_nothing_behind():
    planned, machine = work("a", "b"), Fake(0.5)
    environments = cpus("a", "b")
    trial = run_trial("env-1", environments["env-1"], machine, planned)
    assert trial.step_s == pytest.approx(0.5)
    assert trial.speed == pytest.approx(trial.predicted["expected"] / 0.5)
    assert trial.steps == STEPS - WARM_UP_STEPS
    assert not trial.within
    assert machine.called[-2:] == ["supervisor.stop", "files.delete_folder"]
    refined = planned.apply_trials([trial])
    assert build_trial(refined, "env-1")[1].step_time_s.expected == pytest.approx(0.5, rel=1e-3)


def test_a_trial_that_fails_says_why():
    machine = Fake(code=1)
    with pytest.raises(MachineError) as failed:
        run_trial("env-0", cpus("a")["env-0"], machine, work("a", "b"))
    assert failed.value.notices[0].code == "trial_failed"
    assert "no torch" in failed.value.notices[0].message()
    assert machine.called[-1] == "files.delete_folder"


@pytest.mark.framework
@pytest.mark.long
def test_a_real_trial_refines_the_prediction(tmp_path):
    environments = cpus("a", "b", workdir=str(tmp_path))
    planned = build_work(asked(environments), links(environments), "en")
    trials = run_trials(environments, {id: Local(name=id) for id in environments}, planned)
    assert [trial.environment for trial in trials] == ["env-0", "env-1"]
    slowest = max(trial.step_s for trial in trials)
    assert planned.apply_trials(trials).predicted_step_s == pytest.approx(
        slowest + planned.prediction["breakdown_s"]["gradients"], rel=0.1
    )
    assert list(tmp_path.glob("trials/*")) == []
