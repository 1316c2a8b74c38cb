"""[K25] [K27] [K28] [K29] Fits of operators: laws that are known are found again."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from conftest import ROOT
from crosszone.calibrate.operator_fit import (
    CorrectionSettings,
    compute_held_out_errors,
    fit_form,
    fit_operator,
    fit_trees,
    read_samples,
    search_settings,
)
from crosszone.calibrate.operator_profiles import (
    build_own_profile,
    estimate_with_errors,
    find_coefficients,
    fit_operator_profile,
    format_profile,
    list_undetermined,
    make_checks,
    predict_layer_parts,
)
from crosszone.cost import own_profiles
from crosszone.cost.operator_profile import load_operator_profile, parse_operator_profile, read_operator_profile
from crosszone.cost.profile import Profiles
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.document import parse_document
from crosszone.measured import FOLDER
from operator_tables import MEMORY, PEAK, attentions, memory_bound, products, row, written

H200 = "h200-141gb-sxm"


def test_a_linear_law_is_found_again():
    """[K27] 3 + 2 x: the third column adds nothing, and one wild time in forty moves nothing."""
    x = np.linspace(1, 40, 40)
    matrix = np.stack([np.ones(40), x, x[::-1]], axis=-1)
    time_us = 3 + 2 * x
    time_us[7] *= 3
    form = fit_form(matrix, ("launch", "mb", "krow"), time_us, "matmul")
    assert form.values == pytest.approx([3, 2, 0], abs=0.05)


def test_launches_are_a_floor(tmp_path):
    """[K27] Times of max(20, 0.5 us a MB of values): both are found."""
    read = read_samples([written(tmp_path, memory_bound("gelu", "fwd", 0.5, 0.0, count=60))])
    one = read.samples[0]
    one = replace(one, time_us=np.maximum(20.0, one.time_us))
    found = fit_operator(one, 132, correction=False)
    assert found.floor_us == pytest.approx(20.0)
    large = found.physical_us({"tokens": 32768, "width": 8192}, 132).item()
    assert large == pytest.approx(0.5 * 2e-6 * 32768 * 8192, rel=0.01)
    assert found.error_pct < 1


def test_trees_say_the_same_as_text_and_as_scikit_learn():
    """[K25] A step at 2 and a step at 5 of one sign."""
    a = np.linspace(0, 8, 200)
    change = np.where(a > 2, 0.3, 0.0) + np.where(a > 5, -0.2, 0.0)
    for settings in (CorrectionSettings(), CorrectionSettings(regressor="forest", trees=30)):
        trees = fit_trees({"a": a, "b": np.ones(200)}, change, settings)
        assert trees.signs == ("a",)
        assert np.abs(trees.evaluate({"a": a}) - change).mean() < 0.02


@pytest.mark.slow
def test_held_out_samples_are_not_seen(tmp_path):
    """[K28] Times that no size explains are not predicted, though a correction could learn them by heart."""
    read = read_samples([written(tmp_path, memory_bound("gelu", "fwd", 0.5, count=80))])
    noise = np.random.default_rng(0).uniform(0.5, 1.5, 80)
    one = replace(read.samples[0], time_us=read.samples[0].time_us * noise)
    form, corrected = compute_held_out_errors(one, 132, "random", CorrectionSettings())
    assert form.mean() > 0.2
    assert corrected.mean() > 0.2


def test_whole_sizes_are_held_out(tmp_path):
    """[K28] One number stands for all samples of a width, and each width is in one part only."""
    from crosszone.calibrate.operator_fit import assign_folds

    one = read_samples([written(tmp_path, memory_bound("gelu", "fwd", 0.5, count=60))]).samples[0]
    parts = assign_folds(one, "unseen")
    for width in np.unique(one.sizes["width"]):
        assert len(np.unique(parts[one.sizes["width"] == width])) == 1


def test_the_coefficients_of_the_cost_formulas_are_found_again(tmp_path):
    """[K29] Products at 0.8 of the peak with a tile of 1.5, attention at 0.6, backward 2.5 times."""
    path = written(tmp_path, [*products(), *attentions()])
    found = find_coefficients(read_samples([path]), catalogue().gpu(H200)).values
    assert found["matmul"].value == pytest.approx(0.8, rel=0.01)
    assert found["tile"].value == pytest.approx(1.5, rel=0.02)
    assert found["flash"].value == pytest.approx(0.6, rel=0.02)
    assert found["flash_width"].value == pytest.approx(60, rel=0.1)
    assert found["flash_ramp"].value == pytest.approx(500, rel=0.1)
    assert found["flash_backward"].value == pytest.approx(2.5, rel=0.001)
    assert {one.origin for one in found.values()} == {"measured"}
    assert "head_traffic" not in found


def test_grouped_matmuls_are_rated_at_their_tokens_for_each_expert(tmp_path):
    """[K29] [O6] 0.9 of the dense rate with many tokens, half of that at the shipped ramp: 0.9 is found at any of them."""
    gpu, rows = catalogue().gpu(H200), products()
    ramp = float(Profiles.load_shipped().select(gpu, "generic").coefficients.grouped_ramp)
    for tokens in (64, 128, 256, 1024):
        for n, k in ((2048, 4096), (4096, 4096), (4096, 7168), (8192, 2048)):
            m = 16 * tokens
            rate = 0.8 * PEAK * 0.9 * tokens / (tokens + ramp)
            seconds = 2.0 * m * n * k / rate + 1.5 * 2.0 * (m * k + 16 * k * n + m * n) / MEMORY
            sizes = {"m": m, "n": n, "k": k, "groups": 16, "roof_us": f"{2e6 * m * n * k / PEAK:.5g}"}
            rows += [
                row("grouped_matmul", which, f"{1e6 * seconds:.8g}", **sizes) for which in ("fwd", "dgrad", "wgrad")
            ]
    found = find_coefficients(read_samples([written(tmp_path, rows)]), gpu).values
    assert found["grouped"].value == pytest.approx(0.9, rel=0.01)


def test_the_error_of_a_mean_is_its_standard_error():
    """[K29] The jackknife of a mean of logarithms of 400 values with spread 0.2 is 0.2 / 20 = 0.01."""
    logs = np.random.default_rng(2).normal(0, 0.2, 400)
    ((value, error),) = estimate_with_errors(lambda m: np.array([np.exp(logs[m].mean())]), np.arange(400))
    assert value == pytest.approx(np.exp(logs.mean()))
    assert error == pytest.approx(0.01, rel=0.5)


@pytest.mark.parametrize("group", [[3] * 8, [0, 10] * 4, [4096, 8192] * 4])
def test_an_error_is_found_for_samples_of_one_or_of_any_two_sizes(group):
    """[K29] One size: samples are left out in turn. Numbers of sizes need not follow each other."""
    values = np.linspace(1, 2, 8)
    ((value, error),) = estimate_with_errors(lambda m: np.array([values[m].mean()]), np.array(group))
    assert value == pytest.approx(1.5)
    assert 0.02 < error < 0.2


def test_both_halves_of_samples_of_one_size_are_held_out(tmp_path):
    """[K28] Odd and even samples follow two laws: neither half tells the other."""
    one = read_samples([written(tmp_path, memory_bound("gelu", "fwd", 0.5, 0.0, count=60))]).samples[0]
    one = replace(one, group=np.zeros(60, dtype=np.int64), time_us=one.time_us * np.where(np.arange(60) % 2, 1.0, 2.0))
    form, corrected = compute_held_out_errors(one, 132, "unseen", CorrectionSettings())
    assert form.mean() == pytest.approx(0.75, rel=0.05)
    assert min(form.min(), corrected.min()) > 0.1
    assert fit_operator(one, 132, correction=False).held_out == "half of the samples"


def layers(dtype, **cells):
    sizes = {"batch": 4, "seq": 4096, "ffn": 8192, "heads": 32, "kv_heads": 8, "head_dim": 128, **cells}
    return [
        row("layer", which, time, dtype=dtype, host_us=900, hidden=hidden, **sizes)
        for hidden, time in ((2048, 60_000), (4096, 100_000), (3072, 80_000), (5120, 120_000))
        for which in ("fwd", "bwd")
    ]


def test_layers_of_a_gpu_without_bf16_are_fitted_in_their_own_precision(tmp_path):
    rows = layers("fp16", device="Tesla V100-SXM2-32GB")
    made = fit_operator_profile(read_samples([written(tmp_path, rows)], "v100-32gb-sxm"), correction=False)
    assert made.stack_coefficients["eager"]["elementwise"].value > 0
    rows = layers("bf16", device="Tesla V100-SXM2-32GB")
    made = fit_operator_profile(read_samples([written(tmp_path, rows)], "v100-32gb-sxm"), correction=False)
    assert "elementwise" not in made.stack_coefficients["eager"]
    assert "layer bf16 bwd: not used, no peak rate of bf16 is known" in made.notes


def test_steps_whose_optimizer_states_are_not_known_are_noted(tmp_path):
    sizes = {"batch": 4, "seq": 4096, "hidden": 4096, "ffn": 8192, "heads": 32, "kv_heads": 8, "head_dim": 128}
    step = row("train_step", "step", 900_000, dtype="fp8", layers=8, vocab=32000, recompute="none", **sizes)
    made = fit_operator_profile(read_samples([written(tmp_path, [*layers("fp8"), step])]), correction=False)
    assert made.stack_coefficients["eager"]["elementwise"].value > 0
    assert made.notes[-2:][0] == "train_step fp8 step: not used, no size of optimizer states of fp8 is known"


def test_a_fit_does_not_depend_on_the_own_profile_in_use(tmp_path):
    """Grouped products are rated by the tile: the shipped one where no product was sampled."""
    gpu, path = catalogue().gpu(H200), written(tmp_path, attentions())
    before = find_coefficients(read_samples([path]), gpu).get_value("tile")
    mine = {"tile": {"value": 10 * before, "error": 0.1, "origin": "measured"}}
    own_profiles.save(own_profiles.OwnProfile(name="mine", source="-", created="-", gpus={H200: mine}))
    own_profiles.use("mine")
    assert find_coefficients(read_samples([path]), gpu).get_value("tile") == before


def test_what_a_stack_adds_is_found_from_layers(tmp_path):
    """[O7] Layers whose small kernels move 3 times the least traffic."""
    rows, gpu = [*products(), *attentions()], catalogue().gpu(H200)
    found = find_coefficients(read_samples([written(tmp_path, rows)]), gpu)
    for hidden, batch in ((4096, 4), (5120, 4), (6144, 2), (8192, 2), (2048, 16)):
        sizes = {
            "batch": batch,
            "seq": 4096,
            "hidden": hidden,
            "ffn": 4 * hidden,
            "heads": hidden // 128,
            "kv_heads": 8,
        }
        sizes["head_dim"] = 128
        parts = predict_layer_parts(found, {name: np.array([float(value)]) for name, value in sizes.items()}, "bf16")
        product, attention, traffic = (float(part.item()) for part in parts)
        forward = product + attention + 3.0 * traffic
        backward = 2 * product + 2.5 * attention + 6.0 * traffic
        rows.append(row("layer", "fwd", f"{1e6 * forward:.6g}", host_us=900, **sizes))
        rows.append(row("layer", "bwd", f"{1e6 * backward:.6g}", host_us=1800, **sizes))
    made = fit_operator_profile(read_samples([written(tmp_path, rows)]), correction=False).stack_coefficients["eager"]
    assert made["elementwise"].value == pytest.approx(3.0, rel=0.02)
    assert made["host_s"].value == pytest.approx(900e-6)
    assert made["host_backward"].value == pytest.approx(2.0)


def test_a_profile_of_partial_samples_says_what_is_kept(tmp_path):
    made = fit_operator_profile(read_samples([written(tmp_path, products())]), correction=False)
    assert set(made.coefficients) == {"matmul", "tile"}
    assert "flash" in list_undetermined(made)
    assert parse_operator_profile(parse_document(format_profile(made), "made.yaml")) == made
    own = build_own_profile(made, "mine")
    assert set(own.gpus[H200]) == {"matmul", "tile"}
    assert any("kept" in note and "flash" in note for note in own.notes)


def test_a_search_ranks_settings_and_scores_the_best_apart(tmp_path):
    one = read_samples([written(tmp_path, memory_bound("gelu", "fwd", 0.5, count=60))]).samples[0]
    slow = replace(one, time_us=one.time_us * np.where(one.sizes["width"] > 4000, 1.5, 1.0))
    grid = (CorrectionSettings(trees=1, leaves=2, rate=0.1), CorrectionSettings(trees=40, leaves=4, rate=0.2))
    found = search_settings(slow, 132, grid)
    assert found.best.trees == 40
    assert found.table[0].error_pct < found.table[1].error_pct
    assert found.test_pct < found.physical_pct


@pytest.mark.slow
def test_the_command_fits_writes_and_saves(say, tmp_path):
    path, output = written(tmp_path, products()), tmp_path / "made.yaml"
    status, out, _ = say("calibrate", "fit", path, "-o", output, "--save", "mine", "--json")
    told = json.loads(out)
    assert status == 0
    assert told["operators"]["matmul bf16 fwd"]["samples"] == 40
    assert "correction" not in told["operators"]["matmul bf16 fwd"]
    assert "flash" in told["kept"]
    assert own_profiles.load("mine").gpus[H200]["matmul"].value == pytest.approx(0.8, rel=0.01)
    assert read_operator_profile(output).gpu == H200
    status, out, _ = say("calibrate", "operator", output, "matmul", "--m", 4096, "--n", 4096, "--k", 4096, "--json")
    told = json.loads(out)
    assert status == 0
    law = 2e6 * 4096**3 / (0.8 * 989e12) + 1e6 * 1.5 * 2 * 3 * 4096**2 / 4.8e12
    assert [one["operator"] for one in told["times"]] == ["matmul bf16 dgrad", "matmul bf16 fwd", "matmul bf16 wgrad"]
    for one in told["times"]:
        assert one["time_us"] == pytest.approx(law, rel=0.05)
    assert told["notices"] == []
    shipped = Profiles.load().select(catalogue().gpu(H200), "generic").coefficients
    formula = 2e6 * 4096**3 / (shipped.matmul * 989e12) + 1e6 * shipped.tile * 2 * 3 * 4096**2 / 4.8e12
    assert [one["formula_us"] for one in told["times"]] == pytest.approx([formula] * 3, rel=1e-5)
    assert told["stack"] == "generic" and 0 < told["times"][0]["formula_error_pct"] < 5  # 0.8 is near what is shipped


def test_the_formula_of_a_step_stands_beside_a_sampled_kernel(say):
    """[K64] Each with its own error; a softmax alone has no formula in a step."""
    asked = ("calibrate", "operator", "h200-141gb-sxm", "attention", "--pass", "fwd", "--dtype", "bf16")
    sizes = ("--batch", 1, "--heads", 32, "--head-dim", 128, "--seq", 4096)
    status, out, _ = say(*asked, *sizes, "--stack", "hf-eager", "--json")
    (one,) = json.loads(out)["times"]
    assert status == 0
    assert one["formula_us"] == pytest.approx(one["time_us"], rel=0.2)
    assert one["formula_error_pct"] > one["error_pct"]
    _, out, _ = say(*asked, *sizes)
    assert "stack generic" in " ".join(out.split())
    _, out, _ = say("calibrate", "operator", "a100-80gb-sxm", "softmax", "--tokens", 8192, "--width", 4096, "--json")
    assert {(one["formula_us"], one["formula_error_pct"]) for one in json.loads(out)["times"]} == {(None, None)}
    status, out, _ = say(*asked, *sizes, "--stack", "abacus", "--json")
    assert (status, json.loads(out)["errors"][0]["code"]) == (2, "not_one_of_these")


def test_a_size_outside_of_the_samples_is_flagged(say, tmp_path):
    output = tmp_path / "made.yaml"
    assert say("calibrate", "fit", written(tmp_path, products()), "-o", output, "--no-correction")[0] == 0
    status, out, _ = say(
        "calibrate", "operator", output, "matmul", "--pass", "fwd", "--m", 1e6, "--n", 4096, "--k", 4096
    )
    assert status == 0
    assert "outside of the sizes sampled" in " ".join(out.split())
    status, out, _ = say("calibrate", "operator", output, "rmsnorm", "--tokens", 1, "--json")
    assert (status, json.loads(out)["errors"][0]["code"]) == (2, "operator_not_fitted")
    status, out, _ = say("calibrate", "operator", "v100-32gb-sxm", "matmul", "--json")
    assert (status, json.loads(out)["errors"][0]["code"]) == (2, "operator_profile_none")


def test_a_wrong_table_is_refused_and_nothing_is_written(say, tmp_path):
    path = written(tmp_path, [*products(count=2), row("matmul", "fwd", -1.0, m=8, n=8, k=8)])
    status, out, _ = say("calibrate", "fit", path, "-o", tmp_path / "made.yaml", "--save", "mine", "--json")
    error = json.loads(out)["errors"][0]
    assert (status, error["code"], error["line"]) == (2, "samples_range", 8)
    assert not (tmp_path / "made.yaml").exists()
    assert own_profiles.list_saved() == []


@pytest.mark.parametrize(
    ("name", "samples"),
    [
        ("h200-141gb-sxm", ROOT / "benchmarks" / "measured" / "kernels_h200.csv"),
        pytest.param("a100-80gb-sxm", FOLDER / "gpumodeling25" / "operators_A100.csv", marks=pytest.mark.slow),
        pytest.param("gh200-96gb", FOLDER / "gpumodeling25" / "operators_GH200.csv", marks=pytest.mark.slow),
    ],
)
def test_the_shapes_that_shipped_profiles_keep_are_those_of_their_samples(name, samples):
    """[K64] Another set of samples, or another choice among them, writes the files anew."""
    assert load_operator_profile(name).checks == make_checks(read_samples([samples]))


@pytest.mark.long
@pytest.mark.parametrize(("gpu", "name"), [("A100", "a100-80gb-sxm"), ("GH200", "gh200-96gb")])
def test_operators_of_gpumodeling25_are_within_5_percent_on_unseen_hidden_sizes(data, gpu, name):
    """The shipped errors hold: some operators are fitted again, and the mean over all of them is at most 5 %."""
    shipped = load_operator_profile(name)
    assert shipped is not None
    unseen = [part.unseen_pct for fit in shipped.operators.values() for part in (fit.parts.values() or [fit])]
    assert np.mean(unseen) <= 5.0
    read = read_samples([data / "gpumodeling25" / f"operators_{gpu}.csv"])
    for op in ("residual_add", "rmsnorm"):
        one = read.select_samples(op, "fp16", "fwd")[0]
        again = fit_operator(one, read.processors)
        assert again.unseen_pct == pytest.approx(shipped.operators[one.key].unseen_pct, abs=0.5)
