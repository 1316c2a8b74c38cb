"""The DDP trainer as its bundle has it, started for real: two processes, a tiny model, a few steps."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from crosszone.deploy.trainer_files import collect_trainer_files
from crosszone.schedule.measured import read_metrics
from deploy.settings_example import write_settings

pytestmark = [pytest.mark.framework, pytest.mark.long]

WORDS = "the zones of a cluster train one model over slow links and average what they have learned"
INSPECT = """
import json, sys, torch
from pathlib import Path
found = {}
for folder in sorted(Path(sys.argv[1]).glob("step-*")):
    zones = [torch.load(folder / f"copy-{zone}.pt", weights_only=True)["model"] for zone in (0, 1)]
    found[int(folder.name[5:])] = {name: torch.equal(one, zones[1][name]) for name, one in zones[0].items()}
print(json.dumps(found))
"""
TOKENIZER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
words = sys.argv[2].split()
vocabulary = {word: number for number, word in enumerate(["[UNK]", "</s>", *sorted(set(words))])}
tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.save(sys.argv[1])
"""


class Bundle:
    """The trainer's files in a folder of their own, and its starts."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder, self.python = folder, python
        for name, text in collect_trainer_files("ddp").items():
            (folder / name).write_text(text, encoding="utf-8")

    def command(self, ranks: int, *arguments: str) -> list[str]:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        return [str(self.python), *launcher, "train.py", "settings.json", "--tiny", "--device", "cpu", *arguments]

    def start(self, ranks: int, *arguments: str, status: int = 0, **changes) -> subprocess.CompletedProcess[str]:
        write_settings(self.folder, **changes)
        done = subprocess.run(
            self.command(ranks, *arguments),
            cwd=self.folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr[-3000:]
        return done

    def losses(self, out: str) -> dict[int, float]:
        _, steps = read_metrics([(self.folder / out / "metrics-stage-0.jsonl").read_text("utf-8")])
        return {step.step: step.loss for step in steps}

    def run_python(self, code: str, *arguments: str) -> str:
        done = subprocess.run([str(self.python), "-c", code, *arguments], capture_output=True, text=True, check=True)
        return done.stdout


ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory, train_python):
    return Bundle(tmp_path_factory.mktemp("bundle"), train_python)


@pytest.fixture(scope="module")
def plain(bundle):
    """Five steps on two processes: what other runs are compared with."""
    return bundle.start(2, "--out", "plain", "--steps", "5")


def test_five_steps_on_two_processes_learn_and_are_measured(bundle, plain):
    printed = [line for line in plain.stdout.splitlines() if line.startswith("step ")]
    assert len(printed) == 5
    assert "tokens/s" in printed[0] and printed[0].endswith("GiB")
    losses = bundle.losses("plain")
    assert list(losses) == [1, 2, 3, 4, 5]
    assert all(losses[step + 1] < losses[step] for step in range(1, 5))
    trace, steps = read_metrics([(bundle.folder / "plain" / "metrics-stage-0.jsonl").read_text("utf-8")])
    kinds = [(span.kind, span.micro_batch) for span in trace.spans if steps[0].start_s <= span.start_s < steps[0].end_s]
    passes = [("data", 0), ("forward", 0), ("backward", 0), ("data", 1), ("forward", 1), ("backward", 1)]
    assert kinds == [*passes, ("gradients", None), ("optimizer", None)]
    assert trace.meta["framework"] == "ddp" and trace.lanes[0].name == "beijing-a, stage 0"
    assert trace.meta["memory"] == "peak resident size of the process"
    assert 0.05 < steps[0].memory_gib < 8
    assert steps[0].tokens == 8 * 64


def test_a_resumed_run_and_an_unbroken_one_on_one_process_have_the_same_losses(bundle, plain):
    shutil.copytree(bundle.folder / "plain", bundle.folder / "resumed")  # others read the five steps too
    resumed = bundle.start(2, "--out", "resumed", "--steps", "8")
    assert "resumed after step 5" in resumed.stdout
    alone = bundle.start(1, "--out", "alone", "--steps", "8")
    assert "one process" in alone.stderr
    two, one = bundle.losses("resumed"), bundle.losses("alone")
    assert list(two) == list(one) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert two == pytest.approx(one, abs=1e-4)


def test_uneven_replicas_and_one_large_bucket_change_nothing(bundle, plain):
    strategy = {"replica_micro_batches": [3, 1], "micro_batches": 3, "recompute": "full"}
    strategy["communication"] = {"overlap_gradients": False}
    bundle.start(2, "--out", "uneven", "--steps", "5", strategy=strategy)
    expected = {step: loss for step, loss in bundle.losses("plain").items() if step <= 5}
    assert bundle.losses("uneven") == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("communication", "precision"),
    [
        ({"compression": "fp16"}, "fp16"),
        ({"gradient_dtype": "bf16", "bucket_mb": 0.1}, "bf16"),
        ({"compression": "powersgd", "compression_rank": 2}, "bf16-pure"),
    ],
)
def test_compressed_gradients_learn_as_well(bundle, plain, communication, precision):
    job, strategy = {"precision": precision}, {"communication": communication}
    bundle.start(2, "--out", precision, "--steps", "5", job=job, strategy=strategy)
    losses, expected = bundle.losses(precision), bundle.losses("plain")
    assert losses[1] == pytest.approx(expected[1], rel=0.01)
    assert losses[5] < 0.8 * losses[1]


def test_zones_differ_between_synchronisations_and_agree_after_them(bundle):
    local = {"steps": 100, "fragments": 2, "delay": 0, "dtype": "bf16"}
    arguments = ("--out", "local", "--checkpoint-every", "1")
    changes = {"strategy": {"local_update": local}, "training": {"keep": 20}}
    bundle.start(2, *arguments, "--steps", "7", **changes)
    equal = json.loads(bundle.run_python(INSPECT, str(bundle.folder / "local" / "checkpoints")))
    # Tiny: a turn every 2 steps, so the first half of the model at steps 2 and 6, the second at 4; all at the last, 7.
    first = {name for name, same in equal["2"].items() if same}
    second = {name for name, same in equal["4"].items() if same}
    assert "embed.weight" in first and "head.weight" in second
    assert first | second == set(equal["1"]) and not first & second
    assert {name for name, same in equal["6"].items() if same} == first
    assert not any(any(equal[step].values()) for step in ("1", "3", "5"))
    assert all(equal["7"].values())
    losses = bundle.losses("local")
    assert list(losses) == [1, 2, 3, 4, 5, 6, 7]
    assert losses[7] < losses[1] - 0.5
    resumed = bundle.start(2, *arguments, "--steps", "9", **changes)
    assert "resumed after step 7" in resumed.stdout
    assert bundle.losses("local")[9] < losses[1] - 0.5


def test_a_delayed_exchange_arrives_while_training_goes_on(bundle):
    """Tiny: a turn every 2 steps, one step on the way; at the last step everything is exchanged."""
    local = {"steps": 100, "fragments": 1, "delay": 40, "dtype": "fp32"}
    bundle.start(2, "--out", "late", "--steps", "5", strategy={"local_update": local})
    rows = [
        json.loads(line) for line in (bundle.folder / "late" / "metrics-stage-0.jsonl").read_text().splitlines()[1:]
    ]
    told = {row["step"]: [span["name"] for span in row["spans"] if span.get("name")] for row in rows}
    out, back = "fragment 0 sets out", "fragment 0 arrives"
    assert told == {1: [], 2: [out], 3: [back], 4: [out], 5: [back, out, back]}
    equal = json.loads(bundle.run_python(INSPECT, str(bundle.folder / "late" / "checkpoints")))
    assert all(equal["5"].values())
    losses = bundle.losses("late")
    assert losses[5] < losses[1] - 0.3


def test_text_through_a_tokenizer_and_masked_tokens_are_learned(bundle):
    random.seed(1)
    text, tokenizer = bundle.folder / "text", bundle.folder / "tokenizer.json"
    text.mkdir()
    documents = [" ".join(random.choices(WORDS.split(), k=400)) for _ in range(4)]
    (text / "a.txt").write_text(documents[0], encoding="utf-8")
    (text / "b.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in documents[1:]), encoding="utf-8")
    bundle.run_python(TOKENIZER, str(tokenizer), WORDS)
    arguments = ("--data", "text", "--tokenizer", "tokenizer.json")
    bundle.start(2, "--out", "text-out", *arguments, model={"vocab": 40})
    losses = bundle.losses("text-out")
    assert losses[5] < losses[1] < 4.2  # ln 40 = 3.69
    (tokens,) = (bundle.folder / "text-out").glob("tokens-*.bin")
    assert tokens.stat().st_size == 2 * 4 * (400 + 1)  # an end after each document
    encoder = {"kind": "encoder", "positions": "learned", "norm": "layernorm", "final_norm": False}
    encoder |= {"embedding_norm": True, "activation": "gelu", "tied_embeddings": True, "token_types": 2}
    encoder |= {"pooler": True, "mlm_head": True, "kv_heads": 8, "vocab": 40}
    bundle.start(1, "--out", "masked", "--steps", "8", "--data", str(tokens), model=encoder)
    losses = bundle.losses("masked")
    assert losses[8] < losses[1] < 4.2


def test_sigterm_finishes_the_step_and_writes_a_checkpoint(bundle):
    write_settings(bundle.folder)
    command = bundle.command(1, "--out", "stopped", "--steps", "100000")
    process = subprocess.Popen(command, cwd=bundle.folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    try:
        for line in process.stdout:
            if line.startswith("step 3 "):
                process.send_signal(signal.SIGTERM)
                break
        rest = process.stdout.read()
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.stdout.close()
    (checkpoint,) = (bundle.folder / "stopped" / "checkpoints").iterdir()
    last = max(bundle.losses("stopped"))
    assert checkpoint.name == f"step-{last:08d}"
    assert f"done: step {last} of 100000" in rest


def test_what_cannot_be_done_ends_with_one_line_and_status_2(bundle):
    alone = bundle.start(1, "--out", "refused", "--data", "nowhere.bin", status=2)
    assert alone.stderr.splitlines()[-1].startswith("error: the data nowhere.bin is not on this machine; give --data")
    assert "Traceback" not in alone.stderr
    tight = {"steps": 4, "fragments": 1, "delay": 0, "dtype": "int4"}
    both = bundle.start(2, "--out", "refused", status=1, strategy={"local_update": tight})
    said = [line for line in both.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == 1 and "fp32, bf16, fp16" in said[0]
    assert 'Traceback (most recent call last):\n  File "train.py"' not in both.stderr
