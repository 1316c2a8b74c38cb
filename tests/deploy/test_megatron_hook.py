"""Megatron-LM's hook, which starts and measures it, and the step that makes data ready for it."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT
from crosszone.deploy.frameworks import megatron
from crosszone.deploy.trainer_files import render_trainer_settings
from deploy.megatron_plans import checked, of_plan, plan_of, read, words

HOOK = ROOT / "src/crosszone/deploy/trainer/megatron_hook.py"
DATA = ROOT / "src/crosszone/deploy/trainer/megatron_data.py"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The hook, with a torch that has no GPU."""
    cuda = types.SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda, __version__="0"))
    monkeypatch.syspath_prepend(str(HOOK.parent))
    spec = importlib.util.spec_from_file_location("megatron_hook", HOOK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FakeMegatron:
    """Functions of the shape that Megatron-LM's have, and a schedule that calls them by their module's names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, without: tuple[str, ...] = ()) -> None:
        self.schedules, self.training = types.ModuleType("schedules"), types.ModuleType("training")

        def forward_step(forward_step_func, data_iterator, model, current_microbatch=None, vp_stage=None):
            return [object()], 1

        def backward_step(input_tensor, output_tensor, output_tensor_grad, config):
            return None

        def train_step(forward_step_func, data_iterator, model, optimizer, iteration=None):
            for step in data_iterator:
                step(self)
            self.training.finalize_model_grads(model)
            optimizer.step()
            return {"lm loss": 2.5}, 0, False, False, 0, 0.75, None, 0

        self.schedules.forward_step, self.schedules.backward_step = forward_step, backward_step
        self.training.finalize_model_grads, self.training.train_step = (lambda model: None), train_step
        for name in without:
            delattr(self.schedules if "ward" in name else self.training, name)
        for name in ("megatron", "megatron.core", "megatron.core.pipeline_parallel", "megatron.training"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, "megatron.core.pipeline_parallel.schedules", self.schedules)
        monkeypatch.setitem(sys.modules, "megatron.training.training", self.training)
        self.outputs: dict[tuple[int, int | None], Any] = {}

    def ahead(self, number: int, chunk: int | None = None):
        def run(_: Any) -> None:
            self.outputs[number, chunk] = self.schedules.forward_step(
                None, None, None, current_microbatch=number, vp_stage=chunk
            )[0]

        return run

    def back(self, number: int, chunk: int | None = None):
        return lambda _: self.schedules.backward_step(None, self.outputs[number, chunk], None, None)


def watched(hook: Any, out: Path, *, stages: int = 1, rank: int = 0) -> Any:
    settings = {
        "name": "test",
        "order": ["tp", "cp", "dp", "pp"],
        "strategy": {"tp": 1, "cp": 1, "dp": 2, "pp": stages},
        "zones": ["a", "b"],
        "zone_of_rank": [0] * stages + [1] * stages,
    }
    return hook.StageWatch(settings, out, rank=rank, tiny=False, tokens=100)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def optimizer() -> Any:
    return types.SimpleNamespace(step=lambda: (True, 0.75, None), param_groups=[{"lr": 0.1}])


def test_the_hook_writes_what_the_other_trainers_write(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeMegatron(monkeypatch)
    watch = watched(hook, tmp_path)
    assert hook.install(watch) == []
    passes = [fake.ahead(0), fake.back(0), fake.ahead(1), fake.back(1)]
    fake.schedules.forward_step(None, None, None)  # an evaluation: no step is running
    result = fake.training.train_step(None, passes, None, optimizer(), iteration=4)
    assert result[0] == {"lm loss": 2.5}
    first, row = lines(tmp_path / "metrics-stage-0.jsonl")
    assert first["lanes"] == [{"id": "stage-0", "name": "a, stage 0", "group": "stages"}]
    assert (first["version"], first["kind"], first["unit"]) == (1, "measured", "s")
    kinds = [(one["kind"], one.get("micro_batch")) for one in row["spans"]]
    pairs = [("forward", 0), ("backward", 0), ("forward", 1), ("backward", 1)]
    assert kinds == [*pairs, ("gradients", None), ("optimizer", None)]
    assert {key: row[key] for key in ("step", "loss", "grad_norm", "lr", "tokens")} == {
        **{"step": 5, "loss": 2.5, "grad_norm": 0.75, "lr": 0.1, "tokens": 100}
    }
    times = [second for one in row["spans"] for second in (one["start_s"], one["end_s"])]
    assert times == sorted(times) and row["start_s"] <= times[0] and times[-1] <= row["end_s"]


def test_interleaved_passes_carry_their_chunk(hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeMegatron(monkeypatch)
    watch = watched(hook, tmp_path, stages=2, rank=2)  # the second stage of the first replica
    assert (watch.stage, watch.writes) == (1, True)
    hook.install(watch)
    order = [fake.ahead(0, 0), fake.ahead(1, 0), fake.ahead(0, 1), fake.back(0, 1), fake.ahead(1, 1), fake.back(1, 1)]
    fake.training.train_step(None, [*order, fake.back(0, 0), fake.back(1, 0)], None, optimizer())
    row = lines(tmp_path / "metrics-stage-1.jsonl")[1]
    found = [(one["kind"][0], one["micro_batch"], one["chunk"]) for one in row["spans"] if "chunk" in one]
    assert found == [
        *[("f", 0, 0), ("f", 1, 0), ("f", 0, 1), ("b", 0, 1)],
        *[("f", 1, 1), ("b", 1, 1), ("b", 0, 0), ("b", 1, 0)],
    ]


def test_only_the_first_rank_of_a_stage_writes(hook: Any, tmp_path: Path) -> None:
    writers = [watched(hook, tmp_path, stages=2, rank=rank).writes for rank in range(4)]
    assert writers == [True, False, True, False]  # ranks 0 and 1 are the replicas of stage 0


def test_a_missing_function_is_said_and_training_goes_on(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeMegatron(monkeypatch, without=("backward_step",))
    watch = watched(hook, tmp_path)
    assert hook.install(watch) == ["megatron.core.pipeline_parallel.schedules.backward_step"]
    assert capsys.readouterr().err.count("backward_step") == 2  # one line: its name, and the reason
    fake.training.train_step(None, [fake.ahead(0)], None, optimizer(), iteration=0)
    assert lines(tmp_path / "metrics-stage-0.jsonl")[1]["spans"][0]["kind"] == "forward"


def test_a_fault_of_the_hook_ends_the_measuring_only(
    hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeMegatron(monkeypatch)
    (tmp_path / "out").write_text("a file where the folder should be")
    hook.install(watched(hook, tmp_path / "out"))
    for number in range(3):
        steps = [fake.ahead(0), fake.back(0)]
        assert fake.training.train_step(None, steps, None, optimizer(), iteration=number)[0] == {"lm loss": 2.5}
    assert capsys.readouterr().err.count("no more timings") == 1


def test_the_marks_of_a_step_are_seconds_since_the_mark_before(hook: Any) -> None:
    """Worked by hand: warm-up 1.0 to 2.0, pairs until 5.0, cool-down until 5.5, the rest until 7.0."""
    at = [("forward", 1.0, 1.9), ("forward", 2.0, 2.5), ("backward", 2.5, 3.5), ("forward", 3.5, 4.0)]
    at += [("backward", 4.0, 5.0), ("backward", 5.0, 5.5), ("gradients", 5.5, 6.0), ("optimizer", 6.0, 6.5)]
    spans = [{"kind": kind, "start_s": start, "end_s": end} for kind, start, end in at]
    marks = hook.list_benchmark_marks({"start_s": 0.5, "end_s": 7.0, "spans": spans}, previous_s=0.4)
    expected = [
        ("iteration start", 0.1),
        ("warmup start", 0.5),
        ("forward start", 1.0),
        ("backward start", 0.5),
        ("forward start", 1.0),
        ("backward start", 0.5),
        ("cooldown start", 1.0),
        ("allreduce start", 0.5),
        ("iteration end", 1.5),
    ]
    assert [label for label, _ in marks] == [label for label, _ in expected]
    assert all(math.isclose(a, b, abs_tol=1e-9) for (_, a), (_, b) in zip(marks, expected, strict=True))


def test_without_a_pipeline_warm_up_and_cool_down_are_empty(hook: Any) -> None:
    spans = [{"kind": "forward", "start_s": 1.0, "end_s": 2.0}, {"kind": "backward", "start_s": 2.0, "end_s": 4.0}]
    marks = dict(hook.list_benchmark_marks({"start_s": 1.0, "end_s": 5.0, "spans": spans}, previous_s=1.0))
    assert (marks["forward start"], marks["backward start"], marks["cooldown start"]) == (0.0, 1.0, 2.0)
    assert (marks["allreduce start"], marks["iteration end"]) == (0.0, 1.0)


def test_the_hooks_own_arguments_change_flags_and_the_rest_goes_on(hook: Any) -> None:
    own, others = hook.parse_arguments(["p/pretrain_gpt.py", "--steps", "7", "--lr", "1e-4", "--no-resume", "--tiny"])
    assert (own.steps, own.tiny, others) == (7, True, ["--lr", "1e-4"])
    flags = hook.parse_flags(megatron.build_files(plan_of("pipeline"))[megatron.ARGUMENTS])
    assert read(flags) == of_plan("pipeline")
    made = hook.apply_overrides(flags, steps=7, out="o", resume=False)
    assert "--load" not in made and made[-4:] == ["--train-iters", "7", "--save", "o/checkpoints"]
    assert hook.count_step_tokens(flags) == 4096 * 64


def test_the_hook_becomes_pretrain_gpt_with_all_flags(tmp_path: Path) -> None:
    launch = plan_of("replicas")
    for path, text in megatron.build_files(launch).items():
        (tmp_path / path).write_text(text)
    (tmp_path / "settings.json").write_text(render_trainer_settings(launch))
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "beside.py").write_text("here = True\n")
    (tmp_path / "checkout" / "pretrain_gpt.py").write_text(
        "import sys, json, beside\nif __name__ == '__main__':\n    print(json.dumps(sys.argv))\n"
    )
    line = [sys.executable, "megatron_hook.py", "checkout/pretrain_gpt.py", "--steps", "3", "--lr", "0.5"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
    argv = json.loads(done.stdout)
    assert argv[-4:] == ["--train-iters", "3", "--lr", "0.5"]
    assert argv[1:-4] == words((tmp_path / megatron.ARGUMENTS).read_text())
    assert done.stderr.count("is not there") == 4  # no Megatron here: said, and nothing more
    gone = subprocess.run([*line[:2], "nowhere.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert gone.returncode and "set MEGATRON_PATH" in gone.stderr


@pytest.mark.framework
def test_the_hook_times_a_real_schedule(train_python: Path, tmp_path: Path) -> None:
    given = [{"name": "step", "hook": str(HOOK), "out": str(tmp_path / "out"), "port": "29733"}]
    assert checked(train_python, tmp_path, "hook", given=given) == {}
    row = lines(tmp_path / "out" / "metrics-stage-0.jsonl")[1]
    passes = [(one["kind"], one.get("micro_batch")) for one in row["spans"]]
    assert passes == [
        *[(kind, number) for number in range(3) for kind in ("forward", "backward")],
        ("optimizer", None),
    ]
    assert row["step"] == 7
    labels = [line.split(",")[0] for line in (tmp_path / "out" / "benchmark.csv").read_text().splitlines()]
    assert labels == [
        *["iteration start", "warmup start"],
        *["forward start", "backward start"] * 3,
        *["cooldown start", "allreduce start", "iteration end"],
    ]


@pytest.mark.long
@pytest.mark.framework
@pytest.mark.parametrize("kind", ["tokens", "text"])
def test_data_are_made_ready_as_megatron_reads_them(train_python: Path, tmp_path: Path, kind: str) -> None:
    make = "import numpy as np; (np.arange(2_000_000) % 1000).astype(np.uint16).tofile('d.bin')"
    documents, tokens = 2, 2_000_000
    name, tokenizer = "d.bin", None
    if kind == "text":
        make = (
            "from tokenizers import Tokenizer, models, pre_tokenizers as p\n"
            "t = Tokenizer(models.WordLevel({'a': 0, 'b': 1, '</s>': 2}, unk_token='a')); t.pre_tokenizer = p.Whitespace()\n"
            "t.save('t.json'); import json\n"
            "open('d.jsonl', 'w').write('\\n'.join(json.dumps({'text': x}) for x in ('a b', 'b', 'a a a')))"
        )
        name, tokenizer, documents, tokens = "d.jsonl", "t.json", 3, 6 + 3
    subprocess.run([train_python, "-c", make], cwd=tmp_path, check=True)
    settings = {"model": {"vocab": 1000}, "data": {"path": name, "tokenizer": tokenizer}}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    environment = {key: value for key, value in os.environ.items() if key != "MEGATRON_PATH"}
    for more in ((), ("--data", "made/tokens")):  # the second time what is ready is taken as it is
        if more:
            (tmp_path / "megatron-data").rename(tmp_path / "made")
        subprocess.run(
            [train_python, "-W", "ignore", DATA, *more], cwd=tmp_path, check=True, capture_output=True, env=environment
        )
        look = (
            "from megatron.core.datasets.indexed_dataset import IndexedDataset as I; d = I('megatron-data/tokens');"
            "print(len(d), int(d.sequence_lengths.sum()), d[0][:3].tolist())"
        )
        line = [train_python, "-W", "ignore", "-c", look]
        found = subprocess.run(line, cwd=tmp_path, check=True, capture_output=True, text=True, env=environment).stdout
        assert found.splitlines()[-1] == f"{documents} {tokens} {[0, 1, 2]}"


def test_what_the_hook_wraps_is_there() -> None:
    path = os.environ.get("MEGATRON_PATH")
    if not path:
        pytest.skip("MEGATRON_PATH names no checkout of NVIDIA/Megatron-LM")
    checkout = Path(path)
    source = (checkout / "megatron/core/pipeline_parallel/schedules.py").read_text()
    for text in ("\ndef forward_step(", "\ndef backward_step(", "current_microbatch=None", "vp_stage=None"):
        assert text in source
    training = (checkout / "megatron/training/training.py").read_text()
    assert "\ndef train_step(forward_step_func, data_iterator, model, optimizer," in training
    assert "config.finalize_model_grads_func = finalize_model_grads" in training
