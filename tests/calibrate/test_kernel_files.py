"""Files of kernel samples that are continued: what is done, what is tried again, and what is no such file."""

import csv

import pytest

from crosszone.calibrate.sampling.kernel_points import COLUMNS, KernelPoint
from crosszone.calibrate.sampling.kernels import read_done_keys


@pytest.mark.parametrize("text", ["notes of mine", "a,b\n1,2\nthe rest", "device\n", "\n\nx", "\xff\xfe"])
def test_a_file_that_holds_no_samples_is_refused_and_left_as_it_is(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(SystemExit, match="not a file of kernel samples"):
        read_done_keys(path)
    assert path.read_bytes() == text.encode("latin-1")


@pytest.mark.parametrize("there", [0, 20])
def test_a_run_that_was_killed_within_the_header_starts_again(tmp_path, there):
    path = tmp_path / "samples.csv"
    path.write_text(",".join(COLUMNS)[:there], encoding="utf-8")
    assert read_done_keys(path) == set()
    assert path.read_bytes() == b""


def test_failed_points_are_tried_again_until_they_are_measured(tmp_path):
    path, one = tmp_path / "samples.csv", KernelPoint("bf16", "gelu", "fwd", "eager", (("tokens", 8), ("width", 16)))
    row = {"device": "cpu", "dtype": "bf16", "op": "gelu", "pass": "fwd", "mode": "eager", "tokens": "8", "width": "16"}

    def write(*flags):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows({**row, "flag": flag} for flag in flags)

    write("failed")
    assert read_done_keys(path) == set()
    write("failed", "noisy")
    assert read_done_keys(path) == {("cpu", *one.key)}
