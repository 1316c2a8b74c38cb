"""Checks of the trainer's parts, run by the training environment's python: check -> error or null, as JSON.

python parts_checks.py TRAINER_FOLDER
"""

from __future__ import annotations

import builtins
import json
import math
import os
import signal
import sys
import tempfile
import time
import warnings
from argparse import Namespace
from itertools import pairwise, product
from pathlib import Path

warnings.simplefilter("error")
sys.path[:0] = [sys.argv[1], str(Path(__file__).parents[1])]

import checkpoint  # noqa: E402
import data  # noqa: E402
import numpy as np  # noqa: E402
import optimiser  # noqa: E402
import torch  # noqa: E402
from checks import run_checks  # noqa: E402
from loop import FrameworkTrainer, train  # noqa: E402
from metrics import StepMetrics  # noqa: E402
from metrics_file import is_cut_off  # noqa: E402
from model import build, compute_loss, init_weights  # noqa: E402
from outer import split_evenly  # noqa: E402
from settings_example import settings, write_settings  # noqa: E402
from tiny import fold_replicas, reduce_micro_batches, scale_to_tiny  # noqa: E402
from torch import nn  # noqa: E402

from run import Refusal, TrainerRun, start_run  # noqa: E402

FOLDER = Path(tempfile.mkdtemp())
MOE = {"experts": 64, "top_k": 6, "ffn_hidden": 1408, "shared_experts": 2, "shared_ffn_hidden": 1408}
MOE |= {"shared_gate": False, "first_dense": 3, "every": 1}
MLA = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
LARGE = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn_hidden": 14336}
LARGE |= {"vocab": 128256, "embedding_width": 4096, "max_seq_len": 8192}


def run_of(rank=0, world=1, out="out", no_resume=False, **changes):
    """A Run without torch.distributed."""
    args = Namespace(tiny=False, log_every=1, no_resume=no_resume)
    plan = settings(**changes)
    device = torch.device("cpu")
    return TrainerRun(
        settings=plan, args=args, rank=rank, world=world, local_rank=0, device=device, backend="none",
        out=FOLDER / out, steps=5,
    )  # fmt: skip


def refusal(action, *words):
    """The text of the refusal that the action ends with; it has all the words."""
    try:
        action()
    except Refusal as found:
        assert all(word in str(found) for word in words), f"{found} lacks one of {words}"
        return str(found)
    raise AssertionError("it was not refused")


def check_coordinates_follow_the_planned_order():
    degrees = {"tp": 2, "pp": 2, "dp": 2, "cp": 1}
    run = run_of(rank=5, world=8, strategy=degrees, order=["dp", "tp", "cp", "pp"])
    assert run.coordinates == {"dp": 1, "tp": 0, "cp": 0, "pp": 1}  # 5 = 1 + 2 x (0 + 2 x (0 + 1 x 1))
    assert run.list_ranks(pp=1) == [4, 5, 6, 7]
    assert run.list_ranks(tp=1, dp=0) == [2, 6]


def check_tiny_keeps_every_divisibility():
    plain, grouped, single = {}, LARGE, LARGE | {"kv_heads": 1}
    kinds = [plain, grouped, single, LARGE | {"kv_heads": 32, "moe": MOE}, LARGE | {"mla": MLA, "moe": MOE}]
    kinds += [LARGE | {"moe": MOE | {"every": 2, "first_dense": 0}}, {"positions": "learned", "tied_embeddings": True}]
    kinds += [LARGE | {"window": {"tokens": 1024, "full_every": 6}}, LARGE | {"embedding_width": 1024}]
    for kind, tp, pp, cp, ep in product(kinds, (1, 2, 8), (1, 2, 4), (1, 2), (1, 4)):
        layers = kind.get("layers", 4)
        plan = settings(
            model=kind,
            job={"seq_len": 8192, "global_batch": 512},
            strategy={
                "tp": tp, "pp": pp, "cp": cp, "ep": ep, "micro_batches": 128, "replica_micro_batches": [128, 128],
                "chunk_layers": [layers // pp] * pp,
            },
        )  # fmt: skip
        small = scale_to_tiny(plan)
        model, strategy, job = small["model"], small["strategy"], small["job"]
        for degree in ("tp", "pp", "cp", "ep", "dp"):
            assert strategy[degree] == plan["strategy"][degree]
        assert model["heads"] % tp == 0 and model["hidden"] % tp == 0 and model["ffn_hidden"] % tp == 0
        assert model["heads"] % model["kv_heads"] == 0
        assert model["kv_heads"] % tp == 0 or tp % model["kv_heads"] == 0, (model["kv_heads"], tp)
        assert job["seq_len"] % (2 * cp * tp) == 0 and job["seq_len"] <= 64
        assert model["vocab"] % tp == 0
        assert sum(strategy["chunk_layers"]) == model["layers"] and min(strategy["chunk_layers"]) >= 1
        assert strategy["micro_batches"] % pp == 0
        assert job["global_batch"] == strategy["micro_batch"] * sum(strategy["replica_micro_batches"])
        for part in ("mla", "window", "moe"):
            assert (model[part] is None) == (plan["model"][part] is None)
        if model["moe"]:
            assert model["moe"]["experts"] % ep == 0 and model["moe"]["top_k"] <= model["moe"]["experts"]
            assert (model["layers"] - model["moe"]["first_dense"]) // model["moe"]["every"] >= 1
        assert sum(one.numel() for one in build(model).parameters()) < 8_000_000
    tokens = torch.randint(0, model["vocab"], (2, job["seq_len"]))
    assert compute_loss(init_weights(build(model), 1, device="cpu")(tokens), tokens).isfinite()


def check_tiny_keeps_the_vocabulary_of_real_data():
    assert scale_to_tiny(settings(model=LARGE, data={"path": "x.bin"}))["model"]["vocab"] == 128256
    assert scale_to_tiny(settings(model=LARGE))["model"]["vocab"] == 256


def check_fewer_micro_batches_keep_their_proportions():
    assert reduce_micro_batches([256, 256], 1) == [2, 2]
    assert reduce_micro_batches([30, 10], 1) == [4, 1]  # 4 x 10 / 30 = 1.33
    assert reduce_micro_batches([256, 256], 4) == [8, 8]
    assert reduce_micro_batches([3, 1], 1) == [3, 1]


def check_one_process_takes_the_micro_batches_of_all_replicas():
    plan = fold_replicas(settings(), Refusal)
    assert plan["strategy"]["replica_micro_batches"] == [4] and plan["job"]["global_batch"] == 8
    refusal(lambda: fold_replicas(settings(strategy={"tp": 2}), Refusal), "tp 2", "--nproc-per-node 4")


def check_settings_that_cannot_be_used_are_refused_in_one_line():
    path = write_settings(FOLDER)
    refusal(lambda: start_run([str(FOLDER / "none.json")]), "none.json")
    (FOLDER / "bad.json").write_text("{")
    refusal(lambda: start_run([str(FOLDER / "bad.json")]), "not JSON")
    (FOLDER / "part.json").write_text('{"version": 1, "model": {}}')
    refusal(lambda: start_run([str(FOLDER / "part.json")]), "job, training, data")
    (FOLDER / "file").write_text("")
    where = ["--device", "cpu", "--out", str(FOLDER / "file" / "out")]
    refusal(lambda: start_run([str(path), "--tiny", *where], distributed=False), "--out")
    os.environ |= {"RANK": "0", "WORLD_SIZE": "3"}
    try:
        refusal(lambda: start_run([str(path)], distributed=False), "2 ranks", "3 were started")
    finally:
        del os.environ["RANK"], os.environ["WORLD_SIZE"]
    if not torch.cuda.is_available():
        refusal(lambda: start_run([str(path), "--device", "cuda"], distributed=False), "--device cpu")


def check_a_shuffle_puts_everything_somewhere_once():
    for size in (1, 2, 3, 17, 1000):
        places = [data.shuffle_index(index, size, 42) for index in range(size)]
        assert sorted(places) == list(range(size))
    assert places != [data.shuffle_index(index, 1000, 43) for index in range(1000)]
    assert sum(abs(a - b) == 1 for a, b in pairwise(places)) < 20


def step_of(step, replicas, encoder=False, **changes):
    """All samples of a step in the order of replicas and micro-batches."""
    shares = {"dp": len(replicas), "replica_micro_batches": replicas}
    found = []
    for rank in range(len(replicas)):
        run = run_of(rank=rank, world=len(replicas), strategy=shares, **changes)
        source = data.open_source(run)
        found += [data.read_micro_batch(run, source, step, number) for number in range(replicas[rank])]
    return torch.cat([inputs for inputs, _ in found]), torch.cat([targets for _, targets in found])


def check_a_step_has_the_same_samples_whatever_the_layout():
    tokens = np.arange(20000, dtype=np.uint16) % 1000
    tokens.tofile(FOLDER / "layout.bin")
    for changes in ({}, {"data": {"path": str(FOLDER / "layout.bin")}}, {"model": {"kind": "encoder"}}):
        even = step_of(3, [2, 2], **changes)
        for other in ([4], [3, 1], [1, 1, 1, 1]):
            again = step_of(3, other, **changes)
            assert torch.equal(even[0], again[0]) and torch.equal(even[1], again[1])
        assert not torch.equal(even[0], step_of(4, [2, 2], **changes)[0])
    run = run_of(strategy={"dp": 1, "replica_micro_batches": [4]})
    late = data.iter_batches(run, first_step=3)
    assert torch.equal(torch.cat([next(late)[0] for _ in range(4)]), step_of(3, [4])[0])


def check_a_decoder_predicts_the_next_token_and_an_epoch_reads_every_sample_once():
    np.arange(1281, dtype=np.uint32).tofile(FOLDER / "epoch.bin")
    (FOLDER / "epoch.json").write_text('{"dtype": "uint32"}')
    changes = {"data": {"path": str(FOLDER / "epoch.bin")}, "model": {"vocab": 2000}, "job": {"seq_len": 16}}
    steps = [step_of(step, [2, 2], **changes) for step in range(1, 11)]  # 80 samples of 16 tokens in 10 steps of 8
    inputs, targets = torch.cat([one[0] for one in steps]), torch.cat([one[1] for one in steps])
    assert torch.equal(inputs + 1, targets)
    assert sorted(inputs[:, 0].tolist()) == list(range(0, 1280, 16))
    again = step_of(11, [2, 2], **changes)[0]
    assert not torch.equal(again, steps[0][0])


def check_masking_hides_the_planned_share_and_nothing_else_is_a_target():
    run = run_of(model={"kind": "encoder"}, strategy={"dp": 1, "replica_micro_batches": [4]})
    plain = data.SyntheticSource(run).sample(5)[:-1]
    inputs, targets = data.mask_tokens(run, 999, 5, plain)
    guessed = targets != -100
    assert guessed.sum() == 19  # 15 % of 128, rounded
    assert (inputs[~guessed] == plain[~guessed]).all() and (targets[guessed] == plain[guessed]).all()
    many = [data.mask_tokens(run, 999, index, plain) for index in range(400)]
    hidden = np.mean([(inputs == 999).sum() / 19 for inputs, _ in many])
    assert 0.78 < hidden < 0.82, hidden


def check_data_that_cannot_be_used_are_refused():
    def opened(path, **changes):
        return lambda: data.open_source(run_of(data={"path": str(path)}, **changes))

    refusal(opened(FOLDER / "none.bin"), "none.bin", "--data")
    np.zeros(1000, dtype=np.uint16).tofile(FOLDER / "small.bin")
    refusal(opened(FOLDER / "small.bin"), "1,000 tokens", "1,025", "global_batch")  # 8 x 128 + 1
    np.full(2000, 1000, dtype=np.uint16).tofile(FOLDER / "wide.bin")
    refusal(opened(FOLDER / "wide.bin"), "token id 1000", "ends at 999")
    (FOLDER / "odd.bin").write_bytes(b"123")
    refusal(opened(FOLDER / "odd.bin"), "3 bytes", "dtype")
    np.zeros(2000, dtype=np.uint16).tofile(FOLDER / "typed.bin")
    (FOLDER / "typed.json").write_text('{"dtype": "float32"}')
    refusal(opened(FOLDER / "typed.bin"), "float32")
    (FOLDER / "text.txt").write_text("some text")
    refusal(opened(FOLDER / "text.txt"), "--tokenizer")
    (FOLDER / "strange.xyz").write_text("some text")
    refusal(opened(FOLDER / "strange.xyz"), ".txt", ".bin")
    missing = {"path": str(FOLDER / "text.txt"), "tokenizer": str(FOLDER / "no.json")}
    refusal(lambda: data.open_source(run_of(data=missing)), "no.json")
    bad = missing | {"tokenizer": str(FOLDER / "text.txt")}
    refusal(lambda: data.open_source(run_of(data=bad)), "no tokenizer.json")
    plain_import = builtins.__import__

    def without(name, *more):
        if name == "tokenizers":
            raise ImportError(name)
        return plain_import(name, *more)

    builtins.__import__ = without
    try:
        refusal(lambda: data.open_source(run_of(data=bad)), "pip install tokenizers")
    finally:
        builtins.__import__ = plain_import


STATE = {"model": {"weight": torch.arange(6.0).reshape(2, 3)}, "step": 3, "list": [torch.ones(2), 4.5]}


def check_a_checkpoint_comes_back_and_only_the_last_ones_are_kept():
    run = run_of(out="kept")
    checkpoints = checkpoint.Checkpoints(run)
    assert checkpoints.find_latest() is None
    for step in (1, 2, 3):
        checkpoints.save(step, STATE | {"step": step})
    assert checkpoint.list_steps(checkpoints.folder) == [2, 3]  # training.keep is 2
    again = checkpoint.Checkpoints(run)
    found = again.load(again.find_latest())
    assert found["step"] == 3 and torch.equal(found["model"]["weight"], STATE["model"]["weight"])
    assert {one.name for one in checkpoints.folder.iterdir()} == {"step-00000002", "step-00000003"}
    checkpoint.Checkpoints(run_of(out="kept", no_resume=True))
    assert again.find_latest() is None
    assert len(list(run.out.glob("checkpoints-before-*/step-*"))) == 2


def check_a_kill_while_writing_leaves_the_former_checkpoint():
    run = run_of(out="killed")
    checkpoint.Checkpoints(run).save(1, STATE)
    for where in ("save", "fsync", "rename"):
        child = os.fork()
        if child == 0:
            killed_at(where, run)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, where
        left = list((run.out / "checkpoints").glob(".step-00000002.partial/*"))
        assert left, f"{where}: nothing was being written"
        again = checkpoint.Checkpoints(run)
        assert again.find_latest() == 1 and again.load(1)["step"] == 3
        assert not list(again.folder.glob(".step-*"))


def killed_at(where, run):
    """Write a checkpoint and be killed on the way: in the middle of the file, before it is on disk, before the name."""

    def kill(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    def half(state, file):
        file.write(b"half of a file")
        file.flush()
        kill()

    if where == "save":
        torch.save = half
    elif where == "fsync":
        os.fsync = kill
    else:
        rename = Path.rename
        Path.rename = lambda path, to: kill() if path.name.endswith(".partial") else rename(path, to)
    checkpoint.Checkpoints(run).save(2, STATE)
    os._exit(0)


def check_a_checkpoint_of_another_run_or_a_broken_one_is_refused():
    checkpoints = checkpoint.Checkpoints(run_of(out="other"))
    checkpoints.save(7, STATE)
    for changes, words in [
        ({"model": {"layers": 5}}, ("model.layers was 4, now 5", "--no-resume")),
        ({"job": {"optimizer": "lion"}}, ("job.optimizer was adamw",)),
        ({"job": {"global_batch": 16}}, ("job.global_batch",)),
    ]:
        refusal(lambda changes=changes: checkpoint.Checkpoints(run_of(out="other", **changes)).load(7), *words)
    (checkpoints.get_path(7) / "copy-0.pt").write_bytes(b"not a state")
    refusal(lambda: checkpoints.load(7), "step-00000007", "delete it")


def check_metrics_are_lines_of_json_and_a_torn_last_line_is_ended():
    run = run_of(out="lines")
    run.out.mkdir()
    file = run.out / "metrics-stage-0.jsonl"
    assert not is_cut_off(file)
    file.write_text('{"torn')
    assert is_cut_off(file)
    metrics = StepMetrics(run)
    metrics.begin(1)
    with metrics.record_span("forward", micro_batch=0):
        pass
    metrics.write(metrics.close(), loss=torch.tensor(2.5), lr=0.1, grad_norm=float("nan"))
    torn, header, row = file.read_text().splitlines()
    assert torn == '{"torn' and json.loads(header)["lanes"][0]["name"] == "beijing-a, stage 0"
    row = json.loads(row)
    assert row["loss"] == 2.5 and row["grad_norm"] is None and row["tokens"] == 8 * 128
    assert row["spans"][0]["kind"] == "forward" and 0.05 < row["memory_gib"] < 8


def check_metrics_tell_a_checkpoints_time_and_stay_within_their_bound():
    run = run_of(out="bounded", training={"metrics_mib": 0.01, "checkpoint_every": 2})
    run.out.mkdir()
    metrics = StepMetrics(run)
    for step in range(1, 101):
        metrics.begin(step)
        with metrics.record_span("forward", micro_batch=0):
            pass
        metrics.write(metrics.close(), loss=torch.tensor(2.5), lr=0.1, grad_norm=1.0)
        if checkpoint.is_checkpoint_due(run, step, False):
            time.sleep(0.001)
    file = run.out / "metrics-stage-0.jsonl"
    assert file.stat().st_size <= 0.01 * 2**20
    rows = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    assert [row["step"] for row in rows][:3] == [1, 2, 3] and rows[-1]["step"] == 100
    assert {row["step"] for row in rows[-4:] if row.get("checkpoint_s", 0) >= 0.001} == {97, 99}
    assert "kinds_s" in rows[0] and "spans" in rows[-1]


class CountingTrainer(FrameworkTrainer):
    """Notes what the loop asks for; `at_step`: what happens in the optimizer's step, by step."""

    def __init__(self, run, outer=None, at_step=None, saves_from=0):
        self.outer, self.at_step, self.saves_from = outer, at_step or {}, saves_from
        self.events = []
        run.out.mkdir(exist_ok=True)
        super().__init__(run, None, Namespace(param_groups=[{"lr": 0.0}]), 0)

    def iter_batches(self, step):
        self.events.append(f"data {step}")

    def compute_gradients(self):
        return float(self.steps_done + 1)

    def apply_gradients(self):
        self.at_step.get(self.steps_done, lambda: None)()
        return 1.0

    def start_sum(self, values):
        step = self.steps_done

        def wait():
            self.events.append(f"sum {step}")
            return values

        return wait

    def can_save(self):
        return self.steps_done >= self.saves_from

    def save(self, step):
        self.events.append(f"save {step}")


class CountingOuter:
    """An averaging between zones that notes its ends."""

    def __init__(self):
        self.finished = []

    def list_exchanges(self, _step):
        return []

    def finish(self, step):
        self.finished.append(step)


def check_the_loop_reads_each_sum_in_its_step_and_saves_when_due():
    trainer = CountingTrainer(run_of(out="loop", training={"checkpoint_every": 2}))
    train(trainer)
    assert trainer.events == ["data 1", "sum 1", "sum 2", "save 2", "sum 3", "sum 4", "save 4", "sum 5", "save 5"]
    rows = [json.loads(line) for line in (FOLDER / "loop" / "metrics-stage-0.jsonl").read_text().splitlines()[1:]]
    assert [row["loss"] for row in rows] == [1.0, 2.0, 3.0, 4.0, 5.0]


def check_zones_on_their_own_read_sums_a_step_later_and_all_of_them_at_the_end():
    outer = CountingOuter()
    trainer = CountingTrainer(run_of(out="zones", training={"checkpoint_every": 2}), outer=outer)
    train(trainer)
    assert trainer.events == ["data 1", "sum 1", "save 2", "sum 2", "sum 3", "save 4", "sum 4", "sum 5", "save 5"]
    assert outer.finished == [2, 4, 5]  # what is under way arrives before each checkpoint


def check_a_request_to_stop_ends_the_run_after_a_checkpoint():
    run = run_of(out="stopped", training={"checkpoint_every": 100})
    trainer = CountingTrainer(run, at_step={2: lambda: setattr(run, "stop_asked", True)})
    train(trainer)
    assert trainer.events == ["data 1", "sum 1", "sum 2", "save 2"]


def check_a_checkpoint_that_cannot_be_written_yet_is_written_later():
    trainer = CountingTrainer(run_of(out="late", training={"checkpoint_every": 2}), saves_from=3)
    train(trainer)
    assert [event for event in trainer.events if event.startswith("save")] == ["save 3", "save 4", "save 5"]


def check_a_run_that_another_zone_brings_up_to_date_goes_on_with_that_steps_data():
    trainer = CountingTrainer(run_of(out="caught-up", training={"checkpoint_every": 100}))
    trainer.at_step[2] = lambda: setattr(trainer, "steps_done", 4)
    train(trainer)
    assert trainer.events == ["data 1", "sum 1", "sum 4", "data 5", "sum 5", "save 5"]


def check_the_learning_rate_warms_up_and_falls_along_a_cosine():
    run = run_of(job={"steps": 1100}, training={"lr": 1.0, "min_lr": 0.1, "warmup_steps": 100})
    rates = [optimiser.compute_rate(run, step) for step in (1, 50, 100, 600, 1100, 2000)]
    expected = [0.01, 0.5, 1.0, 0.55, 0.1, 0.1]  # half way down the cosine lies the mean of 1 and 0.1
    assert all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(rates, expected, strict=True)), rates


def check_every_optimizer_learns_and_its_state_comes_back():
    for kind in ("adamw", "adam", "lamb", "lion", "muon", "sgd", "sgd-momentum", "adafactor"):
        run = run_of(job={"optimizer": kind}, training={"lr": 0.05, "weight_decay": 0.0})
        models = []
        for _ in range(2):
            torch.manual_seed(3)
            models.append(nn.ModuleDict({"layers": nn.Linear(8, 8), "head": nn.Linear(8, 1)}))
        inputs = torch.randn(64, 8)
        wanted = inputs.sum(1, keepdim=True)
        model, optimizer = models[0], optimiser.build_optimizer(run, models[0])

        def step(model, optimizer, inputs=inputs, wanted=wanted):
            optimizer.zero_grad()
            loss = (model["head"](model["layers"](inputs)) - wanted).square().mean()
            loss.backward()
            norm = optimiser.clip_gradients(model.parameters(), 1.0)
            optimizer.step()
            assert norm > 0
            return loss.item()

        losses = [step(model, optimizer) for _ in range(20)]
        assert losses[-1] < 0.5 * losses[0], (kind, losses)
        other = optimiser.build_optimizer(run, models[1])
        models[1].load_state_dict(model.state_dict())
        torch.save(optimizer.state_dict(), FOLDER / "optimizer.pt")
        other.load_state_dict(torch.load(FOLDER / "optimizer.pt", weights_only=True))
        assert step(model, optimizer) == step(models[1], other), kind
        assert step(model, optimizer) == step(models[1], other), kind
    refusal(lambda: optimiser.build_optimizer(run_of(job={"optimizer": "sofia"}), model), "sofia", "adamw")


def check_lion_and_lamb_take_the_steps_of_their_papers():
    one = nn.Parameter(torch.tensor([[2.0, -1.0]]))
    lion = optimiser.Lion([one], lr=0.1, betas=(0.9, 0.99), weight_decay=0.5)
    one.grad = torch.tensor([[0.3, -4.0]])
    lion.step()
    # 2 x (1 - 0.1 x 0.5) - 0.1, -1 x 0.95 + 0.1
    assert torch.allclose(one.data, torch.tensor([[1.8, -0.85]]))
    one.grad = torch.tensor([[-0.02, 0.0]])
    lion.step()
    # momentum 0.003, -0.04; interpolated 0.9 x 0.003 - 0.1 x 0.02 = 0.0007 > 0 and -0.036 < 0: the same signs again
    assert torch.allclose(one.data, torch.tensor([[1.61, -0.7075]]))
    one = nn.Parameter(torch.tensor([[3.0, 4.0]]))
    lamb = optimiser.Lamb([one], lr=0.1, betas=(0.9, 0.999), eps=0.0)
    one.grad = torch.tensor([[0.5, -2.0]])
    lamb.step()
    # Adam's first step is the sign, of norm sqrt 2; the weights' norm is 5: 0.1 x 5 / sqrt 2 = 0.35355
    assert torch.allclose(one.data, torch.tensor([[3 - 0.353553, 4 + 0.353553]]), atol=1e-5)


def check_fragments_are_consecutive_of_about_one_size_and_none_is_empty():
    sizes = [100, 5, 5, 40, 5, 5, 40, 5, 5, 100]
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
    for count in range(1, len(sizes) + 1):
        parts = split_evenly(parameters, count)
        assert len(parts) == count and all(parts)
        assert [id(one) for part in parts for one in part] == [id(one) for one in parameters]
    halves = [sum(one.numel() for one in part) for part in split_evenly(parameters, 2)]
    assert max(halves) <= 195, halves
    refusal(lambda: split_evenly(parameters, 11), "11", "10")


if __name__ == "__main__":
    run_checks(dict(globals()))
