"""Real starts: a bundle made by the command line is started as its README says, on processes of this machine.

Each start in ./test is looked at closely: the loss falls, metrics read as a trace, a checkpoint is written; a rank that
is killed ends the run, and the next start goes on after the last checkpoint with the losses it would have had.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.conftest import scenario
from deploy.starting import measured_losses, start, train

pytestmark = [pytest.mark.framework, pytest.mark.slow]

LOCAL_UPDATES = {"dp": 2, "local_update": {"steps": 2}}
KILLED = {
    "ddp": ("ddp", 1, 2, {"dp": 2}),
    "fsdp, tensor and pipeline parallel": ("fsdp", 1, 4, {"tp": 2, "pp": 2, "dp": 1, "sequence_parallel": True}),
    "deepspeed, ZeRO-3": ("deepspeed", 1, 2, {"dp": 2, "zero": 3}),
    "local updates of two zones": ("ddp", 2, 1, LOCAL_UPDATES),
}
"""Framework, zones, GPUs of each, strategy."""
STARTED = {
    "ddp, fp16 hook": ("ddp", 1, 2, {"dp": 2, "communication": {"compression": "fp16"}}),
    "ddp over zones": ("ddp", 2, 1, {"dp": 2}),
    "fsdp": ("fsdp", 1, 2, {"dp": 2}),
    "fsdp, tensor parallel": ("fsdp", 1, 2, {"tp": 2, "dp": 1, "sequence_parallel": True}),
    "fsdp, pipeline": ("fsdp", 1, 2, {"pp": 2, "dp": 1}),
    "fsdp, states shared inside zones": ("fsdp", 2, 1, {"dp": 2, "shard_within": "zone"}),
    "deepspeed, ZeRO-1": ("deepspeed", 1, 2, {"dp": 2, "zero": 1}),
    "deepspeed, ZeRO-2": ("deepspeed", 1, 2, {"dp": 2, "zero": 2}),
    "deepspeed, pipeline": ("deepspeed", 1, 2, {"pp": 2, "dp": 1, "zero": 0}),
    "torchft": ("torchft", 2, 1, LOCAL_UPDATES),
}


@pytest.fixture
def made(deploy):
    """The bundle of a case, by the command line."""

    def bundle(framework: str, zones: int, gpus: int, strategy: dict) -> Path:
        job = {"precision": "fp32"} | ({} if framework == "torchft" else {"framework": framework})
        fields = scenario(zones=zones, gpus=gpus, strategy={"micro_batch": 2, **strategy}, job=job)
        sets = ("--set", "training.lr=0.003", "--set", "training.warmup_steps=0")
        return deploy(fields, "--framework", framework, *sets)

    return bundle


@pytest.mark.parametrize("name", KILLED)
def test_a_bundle_learns_survives_a_killed_rank_and_goes_on_at_the_same_loss(name, made, train_python):
    folder = made(*KILLED[name])
    with start(folder, train_python, "--steps", "100000", "--checkpoint-every", "4") as first:
        first.wait_for("step 7 ")
        first.kill_a_rank()
        assert 0 not in first.end(), first.output
    assert first.losses[7] < first.losses[1]
    saved = max(int(path.name[5:]) for path in (folder / "out").rglob("step-*") if path.is_dir())
    assert saved >= 4
    last = max(saved, *first.losses) + 1  # a checkpoint may be written before the line of its step
    again = train(folder, train_python, "--steps", str(last))
    assert f"resumed after step {saved}" in again.output
    assert list(again.losses) == list(range(saved + 1, last + 1))
    twice = set(first.losses) & set(again.losses)
    assert {step: again.losses[step] for step in twice} == pytest.approx({step: first.losses[step] for step in twice})
    assert set(measured_losses(folder)) == {*first.losses, *again.losses}


@pytest.mark.long
@pytest.mark.parametrize("name", STARTED)
def test_a_bundle_starts_trains_and_goes_on(name, made, train_python):
    folder = made(*STARTED[name])
    train(folder, train_python, "--steps", "5")
    losses = measured_losses(folder)
    assert list(losses) == [1, 2, 3, 4, 5] and losses[5] < losses[1]
    again = train(folder, train_python, "--steps", "7")
    assert list(again.losses) == [6, 7]
    assert list(measured_losses(folder)) == [1, 2, 3, 4, 5, 6, 7]
