"""Predictions by fits that had not seen a row are kept, and read back for the runs there are."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest

from conftest import ROOT
from crosszone import measured


@pytest.fixture(scope="module")
def left_out():
    """`benchmarks/left_out.py`."""
    spec = importlib.util.spec_from_file_location("left_out", ROOT / "benchmarks" / "left_out.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["left_out"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def files(left_out):
    return left_out.MeasuredFiles(measured.FOLDER)


def test_what_is_kept_is_of_the_measured_runs(left_out, files):
    validations = left_out.read_left_out(files).validations
    assert {("source", "stated"), ("source", "user"), ("new", "stated")} <= set(validations)
    for validation in validations.values():
        assert np.isfinite(validation.predicted_s).all()
        assert (validation.predicted_s > 0).all()
    entered = validations["source", "user"]
    assert all(run.stack is None for run in entered.runs)
    new = {run.id for run in validations["new", "stated"].runs}
    assert new < {run.id for run in files.stated}


def test_predictions_are_written_and_read_back(left_out, files, tmp_path):
    path = tmp_path / "left_out.csv"
    before = left_out.read_left_out(files)
    left_out.write_left_out(before, path)
    assert path.read_bytes() == left_out.FILE.read_bytes()


def test_predictions_of_other_rows_are_refused(left_out, files, tmp_path):
    path = tmp_path / "left_out.csv"
    lines = left_out.FILE.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join([lines[0], *lines[2:]]), "utf-8")
    with pytest.raises(ValueError, match=r"source stated: other rows than measured; run benchmarks/left_out\.py"):
        left_out.read_left_out(files, path)


def test_an_unknown_kind_is_refused(left_out):
    assert left_out.parse_kinds([]) == left_out.KINDS
    with pytest.raises(ValueError, match="kind sources: must be one of source, model, gpu, row, new"):
        left_out.parse_kinds(["sources"])
