"""Steady steps of a log."""

from __future__ import annotations

import pytest

from crosszone.calibrate.training_log import Log, LogStep, measure_steady_step


def log(*seconds: float, parts: dict[str, float] | None = None) -> Log:
    steps = (LogStep(line=n, step=n, seconds=s, parts_s=parts or {}) for n, s in enumerate(seconds, 1))
    return Log(format="megatron", steps=tuple(steps))


def test_warm_up_and_outliers_are_left_out():
    """[K30] 9 s and 3 s at the beginning, then 7.5 s once: the median of the other seven counts."""
    found = measure_steady_step(log(9.0, 3.0, 2.5, 2.51, 2.49, 7.5, 2.5, 2.52, 2.48, 2.5, parts={"optimizer": 0.1}))
    assert found.step_s == 2.5
    assert (found.used, found.of, found.warm_up, found.outliers) == (7, 10, 2, 1)
    assert found.parts_s == {"optimizer": 0.1}
    assert 0 < found.spread < 0.01


def test_steps_within_three_percent_are_no_outliers():
    """[K30] Nearly equal steps have no deviation; 2 % more is noise all the same."""
    assert measure_steady_step(log(5.0, 2.0, 2.0, 2.0, 2.0, 2.04)).outliers == 0


@pytest.mark.parametrize("seconds", [(2.0,), (4.0, 2.0)])
def test_few_steps_all_count(seconds):
    """[K30]"""
    found = measure_steady_step(log(*seconds))
    assert found.used == len(seconds) and found.step_s == sum(seconds) / len(seconds)
