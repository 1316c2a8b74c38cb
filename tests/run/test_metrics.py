"""Metrics are read as they were written: all stages together, each start in the place of what it did again, bounded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.deploy.bundle import Bundle, BundleFile
from crosszone.deploy.trainer.metrics_file import MetricsFile, reduce_lines, sum_seconds_by_kind
from crosszone.run import metrics as module
from crosszone.run import metrics as progress_module
from crosszone.run.metrics import METRICS_PREFIX, PARTS, RunProgress, map_stage_nodes, read_rows
from crosszone.run.runners.runner import NodeStatus
from crosszone.run.work import TaskWork, WorkNode
from crosszone.schedule.measured import read_metrics
from effort import examples


def header(stage: int = 0, unix_s: float = 1000.0) -> dict:
    lanes = [{"id": f"stage-{stage}", "name": f"stage {stage}", "group": "stages"}]
    return {"version": 1, "kind": "measured", "name": "r", "unit": "s", "lanes": lanes} | {
        "meta": {"stage": stage, "device": "cpu", "started_unix_s": unix_s}
    }


def line(step: int, *, stage: int = 0, at: float | None = None, **more) -> dict:
    """Ten seconds: one of data, five of passes, two of gradients (one beside a pass), one of the update, two of nothing."""
    at = 12.0 * step if at is None else at
    places = {"data": (0, 1), "forward": (1, 3), "backward": (3, 6), "gradients": (5, 7), "optimizer": (7, 8)}
    spans = [
        {"lane": f"stage-{stage}", "kind": kind, "start_s": at + begin, "end_s": at + end}
        for kind, (begin, end) in places.items()
    ]
    return {"step": step, "start_s": at, "end_s": at + 10.0, "spans": spans, "loss": 9.0 / step, "tokens": 100} | more


class Folder:
    """A runner whose nodes are folders."""

    def __init__(self, root: Path, pp: int = 1, dp: int = 1) -> None:
        self.root, self.reads = root, 0
        settings = {"order": ["tp", "cp", "dp", "pp"], "strategy": {"tp": 1, "cp": 1, "dp": dp, "pp": pp}}
        settings["node_of_rank"] = list(range(dp * pp))
        text = json.dumps(settings)
        bundle = Bundle(
            name="b", framework="ddp", launcher="nodes", template=False, world_size=1, port=1, nodes=(), how=(),
            options=(), files=(BundleFile(path="settings.json", text=text),), warnings=(),
        )  # fmt: skip
        nodes = tuple(WorkNode(number=n, environment="e", script="", ranks=(), address=None) for n in range(dp * pp))
        self.work = TaskWork(scenario="", bundle=bundle, prediction={}, slowdown=None, nodes=nodes)

    def file(self, node: int, stage: int) -> Path:
        path = self.root / str(node) / "bundle/out" / f"metrics-stage-{stage}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, node: int, stage: int, *documents: dict) -> None:
        with self.file(node, stage).open("a") as file:
            file.writelines(json.dumps(document) + "\n" for document in documents)

    def read(self, number: int, name: str, offset: int, max_bytes: int):
        self.reads += 1
        path = self.root / str(number) / name
        data = path.read_bytes() if path.exists() else b""
        offset = max(0, len(data) + offset) if offset < 0 else min(offset, len(data))
        return {"size": len(data), "offset": offset}, data[offset : offset + max_bytes]


def test_a_step_is_divided_without_counting_a_moment_twice(tmp_path):
    runner = Folder(tmp_path)
    runner.write(0, 0, header(), line(1), line(2, checkpoint_s=1.5, memory_gib=3.0))
    first, second = read_rows(runner)
    parts = {"compute_s": 6.0, "communication_s": 1.0, "input_s": 1.0, "waiting_s": 0.0, "other_s": 2.0}
    assert first["parts"] == parts and list(parts) == list(PARTS)
    assert (first["step_s"], first["tokens_per_s"], first["loss"], first["device"]) == (10.0, 10.0, 9.0, "cpu")
    assert (first["between_s"], second["between_s"], second["checkpoint_s"]) == (None, 0.5, 1.5)
    assert second["ended_unix_s"] == 1034.0 and second["memory_gib"] == 3.0
    assert read_rows(runner, after=1) == (second,) and read_rows(runner, limit=1) == (first,)
    assert read_rows(runner, limit=1, newest=True)[0]["step"] == 2


def test_stages_are_read_where_their_first_rank_runs_and_wait_for_each_other(tmp_path):
    runner = Folder(tmp_path, pp=2, dp=2)
    assert map_stage_nodes(runner.work) == {0: 0, 1: 2}
    assert read_rows(runner) == ()
    runner.write(0, 0, header(), line(1), line(2))
    runner.write(2, 1, header(1), line(1, stage=1, at=13.0))
    (row,) = read_rows(runner)  # the second step is not whole yet
    assert (row["step"], row["step_s"]) == (1, 11.0)
    assert row["parts"]["waiting_s"] == 3.0 and sum(row["parts"].values()) == pytest.approx(11.0)


def test_a_start_takes_the_place_of_what_it_did_again_and_torn_lines_are_left_out(tmp_path):
    runner = Folder(tmp_path)
    runner.write(0, 0, header(), line(1), line(2), line(3))
    with runner.file(0, 0).open("a") as file:
        file.write('{"step": 4, "sta\n')
    runner.write(0, 0, header(unix_s=2000.0), line(2, loss=1.0))
    with runner.file(0, 0).open("a") as file:
        file.write('{"step": 3')
    assert [(row["step"], row["start"], row["loss"]) for row in read_rows(runner)] == [(1, 0, 9.0), (2, 1, 1.0)]


def test_only_as_much_is_read_as_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 4096)
    runner = Folder(tmp_path)
    runner.write(0, 0, header(), *(line(step) for step in range(1, 201)))
    all_rows = read_rows(runner)
    assert [row["step"] for row in all_rows] == list(range(1, 201))
    reads, runner.reads = runner.reads, 0
    assert [row["step"] for row in read_rows(runner, after=195)] == [196, 197, 198, 199, 200]
    assert runner.reads <= 2 < reads
    for after in (0, 1, 57, 120, 199, 200, 500):
        assert [row["step"] for row in read_rows(runner, after=after)] == list(range(after + 1, 201))
    assert [row["step"] for row in read_rows(runner, limit=7, newest=True)] == list(range(194, 201))


@pytest.mark.slow
@examples(60)
@given(
    max_bytes=st.integers(3_000, 60_000),
    starts=st.lists(st.integers(1, 120), min_size=1, max_size=6),
)
def test_a_file_stays_within_its_bound_and_keeps_first_and_newest(tmp_path_factory, max_bytes, starts):
    path = tmp_path_factory.mktemp("m") / "metrics-stage-0.jsonl"
    written, step = 0, 0
    for count in starts:
        lines = MetricsFile(path, max_bytes)
        lines.write(header())
        for _ in range(count):
            step += 1
            lines.write(line(step))
            written += 1
            assert path.stat().st_size <= max_bytes
    trace, steps = read_metrics([path.read_text()])
    numbers = [document.step for document in steps]
    assert numbers[-1] == step and numbers == sorted(set(numbers))
    if max_bytes > 20_000 and len(starts) == 1:
        assert numbers[: min(10, step)] == list(range(1, min(10, step) + 1))
    assert trace.spans  # the newest steps are whole


def test_stages_whose_lines_differ_in_length_keep_steps_in_common(tmp_path):
    runner = Folder(tmp_path, pp=2)
    for stage, more in ((0, {}), (1, {"spans": []})):
        lines = MetricsFile(runner.file(stage, stage), 40_000)
        lines.write(header(stage))
        for step in range(1, 3001):
            lines.write(line(step, stage=stage, **more))
    steps = [row["step"] for row in read_rows(runner, limit=10**6)]
    assert steps[:10] == list(range(1, 11)) and steps[-1] == 3000 and len(steps) > 60


def test_steps_that_lost_their_spans_still_tell_their_parts():
    short = [
        json.loads(document)
        for document in reduce_lines(
            [json.dumps(document) for document in (header(), *map(line, range(1, 40)))], 12_000
        )
    ]
    without = [document for document in short if "kinds_s" in document]
    assert without and all("spans" not in document for document in without)
    assert without[0]["kinds_s"] == sum_seconds_by_kind(line(1)["spans"])
    assert without[0]["kinds_s"] == {"data": 1.0, "forward": 2.0, "backward": 3.0, "gradients": 1.0, "optimizer": 1.0}


def test_progress_goes_on_when_a_file_is_thinned_out(tmp_path):
    runner, progress = Folder(tmp_path), RunProgress()
    lines = MetricsFile(runner.file(0, 0), 30_000)
    lines.write(header())
    for step in range(1, 400):
        lines.write(line(step, tokens_per_s=10.0))
        size = runner.file(0, 0).stat().st_size
        statuses = (NodeStatus(number=0, state="running", files={f"{METRICS_PREFIX}0.jsonl": size}),)
        settings = progress.read(runner, statuses)
        assert settings["step"] == step and settings["step_s"] == pytest.approx(10.0)
    assert settings["first_loss"] == 9.0 and settings["loss"] == 9.0 / 399


def test_who_comes_late_still_knows_the_first_loss(tmp_path, monkeypatch):
    monkeypatch.setattr(progress_module, "MAX_BYTES", 5000)
    runner = Folder(tmp_path)
    runner.write(0, 0, header(), *(line(step, tokens_per_s=10.0) for step in range(1, 100)))
    size = runner.file(0, 0).stat().st_size
    settings = RunProgress().read(
        runner, (NodeStatus(number=0, state="running", files={f"{METRICS_PREFIX}0.jsonl": size}),)
    )
    assert (settings["first_loss"], settings["step"]) == (9.0, 99)
