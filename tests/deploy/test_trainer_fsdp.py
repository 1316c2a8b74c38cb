"""The FSDP trainer on CPU processes: however the model is split, it is the same model that trains."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT
from deploy.settings_example import write_settings

pytestmark = [pytest.mark.framework, pytest.mark.long]
TRAINER = ROOT / "src" / "crosszone" / "deploy" / "trainer"
PORTS = itertools.count(29600 + os.getpid() % 3000)
STEPS = 3

DENSE = {
    "hidden": 64,
    "head_dim": 8,
    "kv_heads": 1,
    "embedding_width": 64,
    "ffn_hidden": 128,
    "vocab": 250,
    "vocab_padded_to": 256,
    "tied_embeddings": True,
    "bias": ["qkv", "out", "mlp", "head"],
}
EXPERTS = {
    "hidden": 64,
    "embedding_width": 64,
    "ffn_hidden": 128,
    "vocab": 250,
    "bias": ["mlp", "router"],
    "moe": {
        "experts": 4,
        "top_k": 2,
        "ffn_hidden": 32,
        "shared_experts": 1,
        "shared_ffn_hidden": 32,
        "shared_gate": True,
        "first_dense": 1,
        "every": 1,
    },
    "mla": {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8},
}
WHOLE = {"zero": 3, "dp": 1, "shard_ranks": 1, "replica_micro_batches": [4], "micro_batches": 4}
PIPELINE = WHOLE | {"pp": 2, "chunk_layers": [3, 1]}
FOUR_CHUNKS = WHOLE | {"pp": 2, "interleave": 2, "chunk_layers": [1, 1, 1, 1]}
TENSOR = WHOLE | {"tp": 2, "sequence_parallel": True}


@pytest.fixture
def train(train_python, tmp_path):
    """Train with so many processes; what each step said."""

    def trained(strategy, *, model=DENSE, places=(0, 1), steps=STEPS, status=0, folder="run", **more):
        more.setdefault("job", {"seq_len": 32, "global_batch": 8})
        folder = tmp_path / folder
        folder.mkdir(exist_ok=True)
        training = {"warmup_steps": 0, "lr": 3e-3, "checkpoint_every": 0} | more.pop("training", {})
        where = {"zone_of_rank": list(places), "node_of_rank": list(places)}
        write_settings(folder, framework="fsdp", model=model, strategy=strategy, training=training, **where, **more)
        launch = [train_python, "-m", "torch.distributed.run", "--nproc-per-node", len(places)]
        launch += ["--master-port", next(PORTS), TRAINER / "train_fsdp.py", folder / "settings.json"]
        launch += ["--device", "cpu", "--steps", steps, "--out", folder / "out"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
        command = [str(word) for word in launch]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
        assert done.returncode == status, done.stdout + done.stderr
        return Trained(folder / "out", done)

    return trained


class Trained:
    """What a run left behind."""

    def __init__(self, out: Path, done: subprocess.CompletedProcess[str]) -> None:
        self.out, self.printed, self.error = out, done.stdout, done.stderr

    def rows(self, stage: int = 0) -> list[dict]:
        lines = (self.out / f"metrics-stage-{stage}.jsonl").read_text(encoding="utf-8").splitlines()
        return [row for row in map(json.loads, lines) if "step" in row]

    @property
    def losses(self) -> list[float]:
        return [row["loss"] for row in self.rows()]

    @property
    def norms(self) -> list[float]:
        return [row["grad_norm"] for row in self.rows()]


KNOWN: dict[str, tuple[list[float], list[float]]] = {}
"""Losses and gradient norms of the whole model in one process, by model."""


def same_as_whole(train, run: Trained, name: str, model) -> None:
    """The run's losses and gradient norms are those of one process with the same samples."""
    losses, norms = run.losses, run.norms
    if name not in KNOWN:
        alone = train(WHOLE, model=model, places=(0,), folder="alone")
        KNOWN[name] = alone.losses, alone.norms
    assert losses == pytest.approx(KNOWN[name][0], abs=1e-3)
    assert norms == pytest.approx(KNOWN[name][1], rel=1e-3)
    assert losses[-1] < losses[0] - 0.2


SPLITS = {
    "zero 3": {"zero": 3, "shard_ranks": 2},
    "zero 2, uneven replicas in two zones": {
        "zero": 2,
        "shard_within": "zone",
        "shard_ranks": 1,
        "replica_micro_batches": [3, 1],
        "micro_batches": 3,
    },
    "tensor and sequence": TENSOR | {"recompute": "selective"},
    "context": WHOLE | {"cp": 2, "recompute": "full"},
    "1f1b": PIPELINE,
    "interleaved": FOUR_CHUNKS | {"schedule": "interleaved"},
    "zero-bubble": PIPELINE | {"schedule": "zero-bubble"},
    "dualpipev": FOUR_CHUNKS | {"schedule": "dualpipev"},
}


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_model_trains_like_the_whole_one(train, split):
    same_as_whole(train, train(SPLITS[split]), "dense", DENSE)


@pytest.mark.parametrize("strategy", [WHOLE | {"tp": 2}, PIPELINE | {"schedule": "zero-bubble", "recompute": "full"}])
def test_experts_and_latent_attention_split_too(train, strategy):
    same_as_whole(train, train(strategy, model=EXPERTS), "experts", EXPERTS)


def test_copies_of_the_states_in_two_zones_whatever_the_order_of_ranks(train):
    """Replicas 0 and 2 lie in one zone and share states, 1 and 3 in the other."""
    strategy = {"zero": 3, "dp": 4, "shard_within": "zone", "shard_ranks": 2, "micro_batches": 1}
    strategy["replica_micro_batches"] = [1, 1, 1, 1]
    run = train(strategy, places=(0, 1, 0, 1), order=["dp", "cp", "pp", "tp"])
    same_as_whole(train, run, "dense", DENSE)


def test_a_run_goes_on_where_it_stopped(train):
    """Two steps, then one more from the checkpoint, are three steps: weights, optimizer and samples are restored."""
    train(PIPELINE, steps=2)
    run = train(PIPELINE)
    assert "resumed after step 2" in run.printed
    assert re.findall(r"^step (\d+)", run.printed, re.M) == ["3"]
    same_as_whole(train, run, "dense", DENSE)


def test_zones_that_average_after_every_step_train_like_one(train):
    """With plain SGD inside and outer rate 1 that is the same mathematics, also for zones of 3 and 1 micro-batches.

    The second start goes on with the common weights of the first.
    """
    same = {"job": {"seq_len": 32, "global_batch": 8, "optimizer": "sgd"}}
    same["training"] = {"outer_lr": 1.0, "outer_momentum": 0.0, "clip": None, "lr": 0.1}
    local = {"steps": 1, "fragments": 1, "delay": 0, "dtype": "fp32"}
    strategy = {"zero": 3, "shard_ranks": 2, "replica_micro_batches": [3, 1], "micro_batches": 3, "local_update": local}
    train(strategy, steps=2, **same)
    run = train(strategy, **same)
    whole = train(WHOLE, places=(0,), folder="alone", **same)
    assert [row["step"] for row in run.rows()] == [1, 2, 3]
    assert run.losses == pytest.approx(whole.losses, abs=1e-4)
    assert run.losses[-1] < run.losses[0] - 0.1


def test_each_stage_writes_the_times_of_its_passes(train):
    run = train(PIPELINE, steps=1)
    for stage in (0, 1):
        (row,) = run.rows(stage)
        passes = [(span["kind"], span["micro_batch"]) for span in row["spans"] if "micro_batch" in span]
        assert sorted(passes) == [(kind, number) for kind in ("backward", "forward") for number in range(4)]
        assert all(row["start_s"] <= span["start_s"] <= span["end_s"] <= row["end_s"] for span in row["spans"])


TIGHT = {"steps": 2, "fragments": 1, "delay": 0, "dtype": "int4"}


@pytest.mark.parametrize(
    ("strategy", "more", "said"),
    [
        (WHOLE | {"zero": 1}, {}, "strategy.zero=1"),
        (WHOLE | {"ep": 2}, {}, "strategy.ep=2"),
        (WHOLE, {"job": {"seq_len": 32, "global_batch": 8, "precision": "fp8"}}, "torchao"),
        (WHOLE | {"local_update": TIGHT}, {}, "int4"),
        (WHOLE | {"tp": 2}, {"model": DENSE | {"qk_norm": "full"}}, "qk_norm"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(train, strategy, more, said):
    run = train(strategy, places=(0,) * strategy.get("tp", 1), status=1, **more)
    lines = [line for line in run.error.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert said in lines[0]
