"""Measured runs beside a prediction: the nearest ones, and the best utilisation that was measured."""

from __future__ import annotations

import csv
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone import measured
from crosszone.calibrate.runs import read_runs
from crosszone.cost.profile import Profiles
from crosszone.errors import Notice
from crosszone.inputs.frameworks import load_frameworks
from crosszone.predict.nearest_runs import (
    ABOVE_MEASURED_CODES,
    COLUMNS,
    INDEX_FILE,
    CaseFeatures,
    GpuKind,
    RunIndex,
    describe_case,
    list_utilisation_notices,
    read_index_file,
    read_metric,
    read_run_index,
)
from crosszone.predict.predict import build_measured_predictor, build_prediction
from crosszone.predict.prediction import Triple
from crosszone.text import LANGUAGES, label
from predict.given import FSDP, MEGATRON, one_zone, placed, predicted

A100, H100 = "a100-80gb-sxm", "h100-80gb-sxm"


def cells(number: int, **changes) -> dict[str, str]:
    """A row of an index: a 7e9 model with FSDP on 8 A100, 40 % of the peak."""
    row = dict.fromkeys(COLUMNS, "1") | {
        "id": f"site-{number:04}",
        "model": "model",
        "params_b": "7",
        "active_b": "7",
        "experts": "0",
        "gpu": A100,
        "architecture": "ampere",
        "vendor": "nvidia",
        "gpus": "8",
        "framework": "fsdp",
        "precision": "bf16",
        "seq_len": "4096",
        "global_batch": "64",
        "dp": "8",
        "zero": "3",
        "recompute": "none",
        "step_time_s": "2.5",
        "mfu": "0.4",
        "error_pct": "5",
    }
    return row | {name: str(value) for name, value in changes.items()}


def index(*changes: dict) -> RunIndex:
    return RunIndex([cells(number, **change) for number, change in enumerate(changes, start=1)])


def features_of(runs: RunIndex, row: int = 0) -> CaseFeatures:
    return runs.describe_run(row)


def utilisation(mfu: float, low: float | None = None) -> Triple:
    return Triple(low=mfu if low is None else low, expected=mfu, high=mfu)


def test_a_distance_is_the_sum_of_weighted_differences():
    """[Q9] Twice the GPUs 0.3, half of the tokens a GPU 0.2, tp 2 in place of 1 0.5."""
    runs = index({}, {"gpus": 16, "tp": 2})
    assert runs.measure_distances(features_of(runs)) == pytest.approx([0.0, 1.0])


@pytest.mark.parametrize(
    ("change", "distance"),
    [
        ({"gpu": "a100-40gb-sxm"}, 0.6),
        ({"gpu": H100, "architecture": "hopper"}, 2.0),
        ({"gpu": "mi300x", "architecture": "cdna3", "vendor": "amd"}, 4.0),
        ({"precision": "fp16"}, 0.2),
        ({"precision": "fp8"}, 1.2),
        ({"framework": "megatron"}, 1.0),
        ({"recompute": "selective"}, 0.25),
        ({"zero": 2}, 0.3),
        ({"experts": 1}, 1.5),
        ({"params_b": 28, "active_b": 28}, 1.2),
    ],
)
def test_each_difference_has_its_weight(change, distance):
    """[Q9] The weights of nearest_runs.yaml, from a run to one that differs in one thing."""
    runs = index({}, change)
    assert runs.measure_distances(features_of(runs))[1] == pytest.approx(distance)


def test_a_mixed_cluster_is_as_far_as_the_mean_of_its_gpus():
    """[Q9] Three quarters of the peak are the run's own GPUs, the others of the next generation: 0.25 x 2."""
    runs = index({})
    kinds = ((GpuKind(A100, "ampere", "nvidia"), 0.75), (GpuKind(H100, "hopper", "nvidia"), 0.25))
    mixed = features_of(runs)._replace(gpu_shares=kinds)
    assert runs.measure_distances(mixed) == pytest.approx([0.5])


@given(st.data())
def test_distances_are_those_of_a_metric(data):
    """[Q9] Zero to itself, equal both ways, and no detour is shorter."""
    runs = read_run_index()
    a, b, c = (data.draw(st.integers(0, len(runs) - 1)) for _ in range(3))
    from_a, from_b = runs.measure_distances(features_of(runs, a)), runs.measure_distances(features_of(runs, b))
    assert from_a[a] == 0
    assert from_a[b] == pytest.approx(from_b[a])
    assert from_a[c] <= from_a[b] + from_b[c] + 1e-9
    assert (from_a >= 0).all()


def test_the_nearest_come_first_and_each_set_up_once():
    runs = index({"tp": 8}, {"tp": 2}, {"tp": 2, "mfu": 0.5}, {"tp": 4}, {"tp": 4, "pp": 2, "seq_len": 8192})
    nearest = runs.find_nearest(features_of(index({})))
    assert [(run.id, run.distance) for run in nearest] == [
        ("site-0002", pytest.approx(0.5)),
        ("site-0004", pytest.approx(1.0)),
        ("site-0001", pytest.approx(1.5)),
    ]
    assert nearest[0].source == "site"
    assert nearest[0].strategy == "tp 2 pp 1 dp 8, micro_batch 1, zero 3"
    assert (nearest[0].mfu, nearest[0].error_pct, nearest[0].step_time_s) == (0.4, 5, 2.5)


def test_differences_are_named_the_largest_first_and_small_ones_left_out():
    """A micro-batch of 1.5 in place of 1 is 0.06: below the least difference that is named."""
    runs = index({"experts": 1, "tp": 2, "gpu": H100, "architecture": "hopper"})
    asked = features_of(index({"micro_batch": 1.5}))
    (run,) = runs.find_nearest(asked)
    assert run.differs == ("gpu", "experts", "tp")


def test_an_empty_index_has_no_nearest_runs():
    runs = RunIndex(())
    assert runs.bests == {}
    assert runs.find_nearest(features_of(index({}))) == ()


def test_the_best_is_the_highest_measured_on_the_same_gpu_and_width():
    """[Q10] fp16 counts for bf16, fp8 does not, nor a run of which only TFLOP/s were published."""
    runs = index(
        {"mfu": 0.5},
        {"mfu": 0.6, "precision": "fp16"},
        {"mfu": 0.7, "precision": "fp8"},
        {"mfu": 0.8, "timed": 0},
        {"mfu": 0.65, "gpu": "a100-40gb-sxm"},
    )
    best = runs.find_best(features_of(runs))
    assert (best.mfu, best.id, best.measured_on, best.bits) == (0.6, "site-0002", "gpu", 16)
    assert (best.architecture_mfu, best.architecture_gpu) == (0.65, "a100-40gb-sxm")


def test_without_a_run_of_the_gpu_its_architecture_counts_and_else_nothing():
    """[Q10]"""
    runs = index({"mfu": 0.5, "gpu": "a100-40gb-sxm"})
    best = runs.find_best(features_of(index({})))
    assert (best.mfu, best.measured_on) == (0.5, "architecture")
    assert runs.find_best(features_of(index({"precision": "fp8"}))) is None
    assert runs.find_best(features_of(index({"gpu": H100, "architecture": "hopper"}))) is None


def test_the_best_of_a_mixed_cluster_is_the_mean_by_peak():
    """[Q10] 0.75 x 0.6 + 0.25 x 0.4 = 0.55."""
    runs = index({"mfu": 0.6}, {"mfu": 0.4, "gpu": H100, "architecture": "hopper"})
    kinds = ((GpuKind(A100, "ampere", "nvidia"), 0.75), (GpuKind(H100, "hopper", "nvidia"), 0.25))
    best = runs.find_best(features_of(runs)._replace(gpu_shares=kinds))
    assert (best.mfu, best.id) == (pytest.approx(0.55), "site-0001")


def notices(runs: RunIndex, features: CaseFeatures, mfu: Triple) -> list[Notice]:
    return list_utilisation_notices(features, runs.find_best(features), mfu)


@pytest.mark.parametrize(
    ("mfu", "code", "level"),
    [
        (utilisation(0.6), None, None),
        (utilisation(0.63, low=0.59), "mfu_above_gpu", "note"),
        (utilisation(0.66, low=0.59), "mfu_above_measured", "warning"),
        (utilisation(0.66, low=0.61), "mfu_range_above_measured", "warning"),
    ],
)
def test_more_than_was_ever_measured_is_said_and_more_strongly_where_the_range_is_above_too(mfu, code, level):
    """[Q10] Best of the kind 0.6, of another kind of its architecture 0.64."""
    runs = index({"mfu": 0.6}, {"mfu": 0.64, "gpu": "a100-40gb-sxm"})
    listed = notices(runs, features_of(runs), mfu)
    assert [(notice.code, notice.level) for notice in listed] == ([(code, level)] if code else [])


def test_the_notice_has_the_run_and_by_how_much():
    """[Q10] 0.66 over 0.6: 10 % more."""
    runs = index({"mfu": 0.6})
    (notice,) = notices(runs, features_of(runs), utilisation(0.66, low=0.5))
    assert notice.message() == (
        "The predicted MFU, 66.0 %, is 10.0 % above the best measured on a100-80gb-sxm at 16 bit: "
        "60.0 % (model, site-0001)."
    )


def test_without_own_runs_the_notice_says_where_the_best_is_from():
    runs = index({"mfu": 0.5, "gpu": "a100-40gb-sxm"})
    features = features_of(index({}))
    (notice,) = notices(runs, features, utilisation(0.6))
    assert notice.code == "mfu_above_family"
    assert "No run of a100-80gb-sxm at 16 bit" in notice.message() and "a100-40gb-sxm" in notice.message()
    (nothing,) = notices(runs, features._replace(precision="nvfp4"), utilisation(0.1))
    assert (nothing.code, nothing.level) == ("mfu_unmeasured", "note")


def test_a_prediction_names_three_runs_and_the_best():
    got = predicted({"dp": 8, "micro_batch": 2}, job=FSDP, cluster=one_zone(8))
    assert len(got.nearest_runs) == read_metric()["count"] == 3
    distances = [run.distance for run in got.nearest_runs]
    assert distances == sorted(distances)
    assert {run.gpu for run in got.nearest_runs} == {A100}
    assert got.best_utilisation.gpu == A100
    codes = {notice["code"] for notice in got.warnings}
    assert (got.mfu.expected > got.best_utilisation.mfu) == bool(codes & set(ABOVE_MEASURED_CODES))


def test_without_notices_nothing_is_looked_up():
    """The search, and numbers that tell how they came about, leave it out."""
    got = build_prediction(placed({"dp": 16}), with_notices=False)
    assert got.nearest_runs == () and got.best_utilisation is None


def test_a_gpu_that_nobody_measured_has_a_note():
    got = predicted({"dp": 16}, cluster=one_zone(16, gpu="tpu-v5p"), job=MEGATRON)
    assert got.best_utilisation is None
    assert [w["level"] for w in got.warnings if w["code"] == "mfu_unmeasured"] == ["note"]


def test_a_measured_run_is_the_nearest_to_itself():
    """Its utilisation is counted as that of a prediction: model FLOPs over the peak and the measured seconds."""
    runs, _ = read_runs(measured.FOLDER / "measured_runs.csv")
    run = next(run for run in runs if run.id == "mosaicml-llm-foundry-0087")
    p = build_measured_predictor(run.id, run.case, load_frameworks()[run.framework], Profiles.load_shipped())
    got = build_prediction(p)
    nearest = got.nearest_runs[0]
    assert (nearest.id, nearest.differs) == (run.id, ())
    assert nearest.distance < 0.01
    assert nearest.mfu == pytest.approx(got.mfu.expected * got.step_time_s.expected / run.step_time_s, rel=1e-3)
    assert nearest.step_time_s == pytest.approx(run.step_time_s, rel=1e-3)


def test_the_best_a100_of_the_index_is_204_tflops():
    """MegaScale (NSDI 2024): GPT-175B on 256 A100, the highest of all A100 rows."""
    best = max(
        (row for row in read_run_index().rows if row["gpu"] == A100 and row["timed"] == "1"),
        key=lambda row: float(row["mfu"]),
    )
    assert (best["id"], float(best["tflops_per_gpu"])) == ("megascale-2024-0001", pytest.approx(203.9, abs=0.3))


def test_the_index_has_one_row_a_run_and_no_doubtful_one():
    runs = read_run_index()
    ids = [row["id"] for row in runs.rows]
    assert len(ids) == len(set(ids)) > 1000
    assert tuple(runs.rows[0]) == COLUMNS
    with (measured.FOLDER / "doubtful_rows.csv").open(encoding="utf-8") as file:
        assert not {row["id"] for row in csv.DictReader(file)} & set(ids)
    assert 0 < runs.read_column("mfu").min() < runs.read_column("mfu").max() < 0.7
    assert (measured.FOLDER / INDEX_FILE).stat().st_size < 300_000
    assert len(read_index_file(measured.FOLDER / INDEX_FILE)) == len(runs)


def test_every_difference_has_its_words():
    for language in LANGUAGES:
        for name in (*read_metric()["numbers"], "gpu", "precision", "framework"):
            assert label(f"differs_{name}", language)


def test_a_lookup_takes_a_fraction_of_a_prediction():
    """A tenth of a millisecond on the machine it was written on; ten times that fails."""
    p, runs = placed({"tp": 8, "pp": 2, "dp": 8}, cluster=one_zone(128)), read_run_index()
    runs.find_nearest(describe_case(p))
    times = []
    for _ in range(20):
        start = time.process_time()
        features = describe_case(p)
        runs.find_nearest(features)
        runs.find_best(features)
        times.append(time.process_time() - start)
    assert min(times) < 1e-3
