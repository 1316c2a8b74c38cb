"""Logs that were made to hurt, or that grew beyond what was thought of: read or refused, in little memory and time."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest

from crosszone.calibrate import training_log
from crosszone.calibrate.log_formats import TEXT_FORMATS, read_log
from crosszone.calibrate.training_log import LogContext, iterate_lines
from crosszone.errors import FileError, InputError
from kineto_traces import steps as kineto_steps

TOLD = LogContext(file="train.log", gpus=64, global_batch=256, tokens_per_step=1_048_576)
MEGATRON = " iteration {}/ 100 | elapsed time per iteration (ms): {} | global batch size: 256 |"
DIGITS = "9" * 5000


def written(tmp_path: Path, text: str, name: str = "train.log") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("torchtitan", "step: {}  loss: 1.0  tps: 8,192"),
        ("torchtitan", "step: ,  loss: 1.0  tps: 8,192"),
        ("megatron", MEGATRON.format("{}", 2500.0)),
        ("megatron", MEGATRON.format(1, 2500.0).replace("size: 256", "size: {}")),
        ("megatron", MEGATRON.format(1, 2500.0) + " number of skipped iterations: {} |"),
        ("hf-trainer", " 1%| | {}/500 [00:09<15:00,  2.50s/it]"),
        ("hf-trainer", " 1%| | 1/{} [00:09<15:00,  2.50s/it]"),
        ("deepspeed", "steps: {} loss: 2.3 iter time (s): 2.500 samples/sec: 102.400"),
        ("deepspeed", "global_step={}, RunningAvgSamplesPerSec=90.0, CurrSamplesPerSec=102.4"),
    ],
)
@pytest.mark.parametrize("digits", ["9" * 400, "9" * 3500, DIGITS])
def test_numbers_of_thousands_of_digits_are_no_crash(tmp_path, form, line, digits):
    path = written(tmp_path, line.format(digits) + "\n")
    try:
        log = read_log(path, TOLD, form)
    except InputError:
        return
    assert all(one.step is None or one.step < 10**12 for one in log.steps)


def test_a_trainer_state_with_an_endless_number_of_steps_is_no_crash(tmp_path):
    entry = '{"train_runtime": 251.0, "train_samples_per_second": 102.4, "step": ' + "9" * 400 + "}"
    path = written(tmp_path, f'{{"log_history": [{entry}]}}', "trainer_state.json")
    assert read_log(path, TOLD).steps[0].seconds == pytest.approx(2.5)


def test_a_trainer_state_on_one_long_line_is_read_whole(tmp_path):
    entries = ", ".join(f'{{"loss": 2.0, "step": {at}}}' for at in range(2000))
    last = '{"train_runtime": 250.0, "step": 100}'
    path = written(tmp_path, f'{{"log_history": [{entries}, {last}]}}', "trainer_state.json")
    assert read_log(path, TOLD).steps[0].seconds == pytest.approx(2.5)


@pytest.mark.slow
def test_a_file_of_empty_lines_needs_little_memory(tmp_path):
    path = written(tmp_path, "\n" * 3_000_000)
    tracemalloc.start()
    with pytest.raises(FileError) as caught:
        read_log(path, TOLD)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.notices[0].code == "log_unknown"
    assert peak < 60e6


def test_more_steps_than_can_be_held_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(training_log, "MOST_STEPS", 50)
    lines = {
        "megatron": MEGATRON.format(1, 2500.0),
        "torchtitan": "step: 1  tps: 8,192",
        "deepspeed": "[Rank 0] time (ms) | fwd: 600.00 | bwd: 1700.00 | step: 150.00",
        "hf-trainer": " 1%| | 1/500 [00:09<15:00,  2.50s/it]",
    }
    assert set(lines) == set(TEXT_FORMATS)
    for form, line in lines.items():
        assert len(read_log(written(tmp_path, f"{line}\n" * 50), TOLD, form).steps) in (1, 50)
        with pytest.raises(FileError) as caught:
            read_log(written(tmp_path, f"{line}\n" * 51), TOLD, form)
        assert caught.value.notices[0].code == "log_too_many" and "50" in caught.value.notices[0].message("zh")


@pytest.mark.parametrize(
    "line",
    [
        "step: 1 loss: " * 1400 + "iter time (s): 1",
        "step: 1 loss: iter time (s): " * 700 + " samples/sec:",
        "steps: 1 " * 2200 + "tps",
        "step: 1 " * 2500,
        "9" * 20_000,
        "time (ms) |" * 1800 + "fwd:",
        "time (ms) | fwd: " + "a" * 19_000,
        "memory (MB) |" * 1500 + "max allocated: 1" * 10,
        "{'train_runtime'" * 1200,
    ],
)
def test_lines_that_look_like_many_steps_are_done_with_at_once(tmp_path, line):
    """Backtracking over such a line would take minutes; the test's limit is one."""
    path = written(tmp_path, f"{line}\n" * 5)
    for form in ("auto", *TEXT_FORMATS):
        with pytest.raises(InputError):
            read_log(path, TOLD, form)


def test_a_timer_of_blanks_is_done_with_at_once(tmp_path):
    timers = "\nmax time across ranks (ms):\n  optimizer ..: (" + " " * 3900 + "x"
    text = MEGATRON.format(1, 2500.0) + 200 * timers + "\n"
    assert len(read_log(written(tmp_path, text), TOLD).steps) == 1


def test_breakdowns_are_put_to_their_steps(tmp_path):
    step = "global_step={}, RunningAvgSamplesPerSec=90.0, CurrSamplesPerSec=102.4\n"
    parts = "[Rank 0] time (ms) | fwd: {}.00 | bwd: 1700.00 | step: 150.00\n"
    text = "".join(step.format(at) + parts.format(at) for at in range(1, 8001))
    log = read_log(written(tmp_path, text), TOLD, "deepspeed")
    assert [one.parts_s["forward"] for one in log.steps[1:]] == pytest.approx([at / 1e3 for at in range(1, 8000)])


def test_states_of_a_progress_bar_on_one_line_are_all_read(tmp_path):
    bars = "\r".join(f" 1%| | {at}/2000 [00:09<15:00,  2.50s/it]" for at in range(1, 2001))
    assert len(read_log(written(tmp_path, bars), TOLD).steps) == 2000


def test_a_packed_text_log_is_read_by_its_lines(tmp_path):
    text = "\n".join(MEGATRON.format(at, 2500.0) for at in range(1, 6))
    path = tmp_path / "train.log.gz"
    path.write_bytes(gzip.compress(text.encode()))
    log = read_log(path, TOLD)
    assert log.format == "megatron" and [one.seconds for one in log.steps] == [2.5] * 5


def test_a_packed_profilers_trace_is_still_one(tmp_path):
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(kineto_steps(3).write(tmp_path / "rank0.json").read_bytes()))
    assert read_log(path, TOLD).format == "kineto"


def test_a_packed_file_that_is_broken_is_refused(tmp_path):
    path = tmp_path / "train.log.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00 broken")
    with pytest.raises(FileError) as caught:
        read_log(path, TOLD)
    assert caught.value.notices[0].code == "kineto_not_gzip"


@pytest.mark.parametrize("form", ["kineto", "megatron"])
def test_reading_a_log_tells_how_far_it_is(tmp_path, form):
    told: list[tuple[str, int, int]] = []
    path = written(tmp_path, MEGATRON.format(1, 2500.0) + "\n") if form == "megatron" else None
    path = path or kineto_steps(3).write(tmp_path / "rank0.json")
    read_log(path, TOLD, form, progress=lambda *one: told.append(one))
    assert told[-1] == ("trace", path.stat().st_size, path.stat().st_size)


def test_lines_keep_their_numbers_across_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("crosszone.calibrate.user_files.CHUNK_BYTES", 7)
    path = written(tmp_path, "\ufeffone\ntwo two two\r2\r\n\n\nfünf\n" + "x" * 9000 + "\nlast")
    found = list(iterate_lines(path))
    assert found[:4] == [(1, "one"), (2, "two two two"), (2, "2"), (5, "fünf")]
    assert found[4] == (6, "x" * training_log.LONGEST_LINE) and found[5] == (7, "last")
