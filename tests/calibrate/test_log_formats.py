"""Training logs of each format: steps, parts, memory, and what is refused with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from crosszone.calibrate.log_formats import FORMATS, read_log
from crosszone.calibrate.training_log import LogContext
from crosszone.errors import FileError, InputError, InvalidError
from kineto_traces import steps as kineto_steps

MEGATRON = (
    " [2026-01-05 10:00:0{n}] iteration {n:8d}/     100 | consumed samples: {n:12d} | elapsed time per iteration (ms): {ms}"
    " | throughput per GPU (TFLOP/s/GPU): 401.2 | learning rate: 1.0E-06 | global batch size:   {batch} | lm loss: 1.0E+01"
    " | number of skipped iterations: {skipped:3d} | number of nan iterations:   0 |"
)


def told(**given: int) -> LogContext:
    return LogContext(**{"file": "train.log", "gpus": 64, "global_batch": 256, "tokens_per_step": 1_048_576, **given})


def read(tmp_path: Path, text: str, form: str = "auto", name: str = "train.log", **given: int):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
    return read_log(path, told(**given), form)


def iteration(n: int, ms: object, batch: int = 256, skipped: int = 0) -> str:
    return MEGATRON.format(n=n, ms=ms, batch=batch, skipped=skipped)


def test_megatron_iterations_with_their_timers_and_memory(tmp_path):
    text = "\n".join(
        [
            "some line of NCCL",
            iteration(1, 9000.0),
            "[Rank 0] (after 1 iterations) memory (MB) | allocated: 20480.0 | max allocated: 61440.0 | max reserved: 65536.0",
            "[Rank 8] (after 1 iterations) memory (MB) | allocated: 20480.0 | max allocated: 30720.0 | max reserved: 65536.0",
            iteration(2, 2500.0),
            "(min, max) time across ranks (ms):",
            "    forward-backward ...............................: (2301.10, 2400.20)",
            "    optimizer ......................................: (80.10, 90.00)",
            iteration(3, 2510.0),
        ]
    )
    log = read(tmp_path, text)
    assert log.format == "megatron"
    assert [(one.step, one.seconds, one.line) for one in log.steps] == [(1, 9.0, 2), (2, 2.5, 5), (3, 2.51, 9)]
    assert log.steps[1].parts_s == {"forward_backward": 2.4002, "optimizer": 0.09}
    assert log.memory_gib == 60.0 and log.memory_kind == "allocated"


def test_megatron_forks_in_seconds_and_with_equals_signs(tmp_path):
    text = (
        " iteration       42/     100 | elapsed time per iteration (s): 104.70 | global batch size:   256 |\n"
        "[INFO] -  iteration=      43/  317892 | elapsed_time_per_iteration_ms=16030.6 | global_batch_size=  256 |\n"
        " iteration       44/     100 | elapsed time per iteration (ms): 2500.0/2600.0 | global batch size:   256 |\n"
    )
    assert [one.seconds for one in read(tmp_path, text).steps] == [104.7, 16.0306, 2.5]


def test_iterations_of_another_batch_or_without_update_are_left_out(tmp_path):
    text = "\n".join([iteration(1, 500.0, 32), iteration(2, 2400.0, 256, skipped=1), iteration(3, 2500.0)])
    assert [one.step for one in read(tmp_path, text).steps] == [3]


def test_a_log_of_another_batch_is_refused_with_both_numbers(tmp_path):
    with pytest.raises(FileError) as caught:
        read(tmp_path, iteration(1, 500.0, 32))
    notice = caught.value.notices[0]
    assert notice.code == "log_batch" and notice.value == 32 and notice.params["batch"] == 256 and notice.line == 1


@pytest.mark.parametrize("time", ["-5.0", "nan", "inf", "0.0", "1e12", "oops"])
def test_a_time_that_cannot_be_is_refused_with_its_line(tmp_path, time):
    with pytest.raises(FileError) as caught:
        read(tmp_path, "\n".join([iteration(1, 2500.0), "noise", iteration(2, time)]))
    notice = caught.value.notices[0]
    assert (notice.code, notice.line, notice.value) == ("log_time", 3, time)
    assert "3" in notice.message("zh") and time in notice.message()


def test_a_timer_longer_than_its_step_is_refused(tmp_path):
    text = "\n".join([iteration(1, 2500.0), "max time across ranks (ms):", "    optimizer .....: 9000.00"])
    with pytest.raises(FileError) as caught:
        read(tmp_path, text)
    assert caught.value.notices[0].line == 3


def test_deepspeed_throughput_breakdown_and_memory(tmp_path):
    head = "[2026-01-05 10:00:00,000] [INFO] "
    text = "\n".join(
        [
            head + "[logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[0.0001], mom=[(0.9, 0.95)]",
            head + "[timer.py:260:stop] epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=90.0,"
            " CurrSamplesPerSec=102.4, MemAllocated=4.32GB, MaxMemAllocated=38.49GB",
            "[Rank 0] time (ms) | fwd_microstep: 150.00 | bwd_microstep: 400.00 | step_microstep: 0.05",
            "[Rank 0] time (ms) | fwd: 600.00 | bwd: 1700.00 | bwd_inner: 1500.00 | bwd_allreduce: 200.00 | step: 150.00",
        ]
    )
    log = read(tmp_path, text)
    assert log.format == "deepspeed" and log.memory_gib == 38.49
    assert log.steps[0].seconds == pytest.approx(256 / 102.4) and log.steps[0].step == 10
    assert log.steps[0].parts_s == {"forward": 0.6, "backward": 1.7, "optimizer": 0.15}


def test_deepspeed_breakdown_alone_is_a_step(tmp_path):
    log = read(tmp_path, "[Rank 0] time (ms) | fwd: 600.00 | bwd: 1700.00 | step: 200.00\n")
    assert log.steps[0].seconds == pytest.approx(2.5)


def test_deepspeed_pipeline_lines_check_their_own_batch(tmp_path):
    line = "steps: {} loss: 2.3456 iter time (s): {} samples/sec: {}\n"
    assert read(tmp_path, line.format(10, "2.500", "102.400")).steps[0].seconds == 2.5
    with pytest.raises(FileError) as caught:
        read(tmp_path, line.format(10, "2.500", "51.200"))
    assert caught.value.notices[0].code == "log_batch" and caught.value.notices[0].value == 128.0


def test_torchtitan_tokens_a_second_of_one_gpu_without_colours_and_validations(tmp_path):
    """[K31] 1,048,576 tokens over 64 GPUs at 8,192 tokens a second each: 2 s."""
    line = "[titan] 2026 - root - INFO - \x1b[31mstep: {:2}  \x1b[32mloss:  7.7  \x1b[36mmemory: 58.35GiB(73.42%)  \x1b[34mtps: {}  "
    text = "\n".join([line.format(1, "512"), line.format(10, "8,192"), "validate step: 10  loss: 7.1  tps: 99,999"])
    log = read(tmp_path, text)
    assert log.format == "torchtitan" and log.memory_kind == "reserved" and log.memory_gib == 58.35
    assert [(one.step, one.seconds) for one in log.steps] == [(1, 32.0), (10, 2.0)]


def test_hugging_face_progress_bars_of_the_training_and_not_of_others(tmp_path):
    text = (
        "Loading checkpoint shards: 100%|####| 2/2 [00:05<00:00,  2.70s/it]\n"
        "  1%|  | 1/100 [00:09<15:00,  9.00s/it]\r  2%|  | 2/100 [00:11<10:00,  4.00s/it]\r"
        "  3%|  | 3/100 [00:14<08:00,  2.50s/it]\r  4%|  | 4/100 [00:14<08:00,  2.00it/s]\n"
    )
    log = read(tmp_path, text)
    assert log.format == "hf-trainer"
    assert [(one.step, one.seconds) for one in log.steps] == [(1, 9.0), (2, 4.0), (3, 2.5), (4, 0.5)]


@pytest.mark.parametrize("quote", ["", "'"])
def test_hugging_face_summary_counts_the_whole_run_and_says_so(tmp_path, quote):
    """[K31] 256 samples of a step at 102.4 samples a second: 2.5 s."""
    rates = f"'train_samples_per_second': {quote}102.4{quote}, 'train_steps_per_second': {quote}0.4{quote}"
    log = read(tmp_path, f"{{'train_runtime': {quote}250.0{quote}, {rates}, 'epoch': 1.0}}\n")
    assert log.steps[0].seconds == 2.5 and [one.code for one in log.notices] == ["log_whole_run"]


def test_trainer_state_gives_run_time_over_steps(tmp_path):
    state = {
        "global_step": 100,
        "log_history": [
            {"loss": 2.0, "step": 50},
            {"train_runtime": 251.0, "train_samples_per_second": 101.992, "train_steps_per_second": 0.398, "step": 100},
        ],
    }
    log = read(tmp_path, json.dumps(state, indent=2), name="trainer_state.json")
    assert log.steps[0].seconds == 2.51
    with pytest.raises(FileError) as caught:
        read(tmp_path, json.dumps(state), name="trainer_state.json", global_batch=64)
    assert caught.value.notices[0].code == "log_batch"


def test_our_metrics_are_read_with_their_memory(tmp_path):
    header = {"version": 1, "kind": "measured", "name": "run", "unit": "s", "lanes": [{"id": "s0", "name": "stage 0"}]}
    rows = [{"step": n, "start_s": 2.0 * n, "end_s": 2.0 * n + 1.9, "memory_gib": 10.0 + n} for n in (1, 2)]
    text = "\n".join(json.dumps(one) for one in (header, *rows)) + "\n"
    log = read(tmp_path, text, name="metrics-stage-0.jsonl")
    assert log.format == "crosszone" and log.memory_gib == 12.0
    assert [one.seconds for one in log.steps] == pytest.approx([1.9, 1.9])
    assert len(read_log(tmp_path, told()).steps) == 2  # the folder


def test_a_profilers_trace_gives_its_iterations_and_the_optimizer(tmp_path):
    path = kineto_steps(3).write(tmp_path / "rank0.json")
    log = read_log(path, told())
    assert log.format == "kineto" and [one.seconds for one in log.steps] == pytest.approx([1e-3] * 3)
    assert log.steps[0].parts_s["optimizer"] == pytest.approx(1.2e-4)


def test_what_is_no_log_is_refused(tmp_path):
    with pytest.raises(FileError) as caught:
        read(tmp_path, "nothing of the kind\n" * 3)
    assert caught.value.notices[0].code == "log_unknown"
    with pytest.raises(FileError) as caught:
        read(tmp_path, "nothing of the kind\n", "megatron")
    assert caught.value.notices[0].code == "log_no_steps"
    with pytest.raises(InvalidError) as refused:
        read(tmp_path, "", "megatrom")
    assert refused.value.notices[0].code == "not_one_of"
    with pytest.raises(FileError) as caught:
        read_log(tmp_path / "none.log", told())
    assert caught.value.notices[0].code == "file_missing"


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "text", ["", "\x00\x01\xff", "{", "[1,2", "iteration 1/ | elapsed time per iteration (ms):", "step: tps:"]
)
def test_rubbish_is_never_a_crash(tmp_path, form, text):
    with pytest.raises(InputError):
        read(tmp_path, text, form)
