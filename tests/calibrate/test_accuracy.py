"""Scores of measured runs: how they are counted, and how good they are."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from refit import FOLDER, replace_widths, rewrite_profile, round_value, write_profiles

from crosszone.calibrate import accuracy
from crosszone.calibrate.accuracy import Accuracy, ScoredRow, score_runs, summarize_errors
from crosszone.calibrate.fit import build_training_rows, read_doubtful_reasons, select_usable_runs
from crosszone.calibrate.predicted import predict_runs
from crosszone.calibrate.runs import RECIPE_COLUMNS, RECIPES_FILE, read_recipes, read_runs
from crosszone.cost.profile import Profiles

CONTRACT = {
    "summary": (
        "rows",
        "scored",
        "skipped",
        "mape_pct",
        "median_ape_pct",
        "within_10_pct",
        "within_20_pct",
        "memory_mape_pct",
    ),
    "rows": (
        "id",
        "measured_s",
        "predicted_s",
        "error_pct",
        "memory_gib_measured",
        "memory_gib_predicted",
        "skipped",
    ),
}
HEAD = "id,source,model,gpu,gpus,gpus_per_node,framework,precision,seq_len,global_batch,micro_batch,dp,tp,pp,recompute"
HEAD += ",step_time_s,tokens_per_s_per_gpu,memory_gb"
GOOD = "here-0001,me,llama-2-7b,A100-80GB,8,8,Megatron-LM 2024,bf16,4096,64,1,8,1,1,none,10,,60"


def row(name: str, measured: float | None, said: float | None, **more) -> ScoredRow:
    band = {"low_s": 0.9 * said, "high_s": 1.1 * said} if said else {}
    return ScoredRow(id=name, source=name.rpartition("-")[0], measured_s=measured, predicted_s=said, **band, **more)


def written(folder: Path, *rows: str) -> Path:
    path = folder / "runs.csv"
    path.write_text("\n".join((HEAD, *rows)) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def published(data: Path) -> Accuracy:
    path = data / "measured_runs.csv"
    return score_runs(path, doubtful=read_doubtful_reasons(path, None))


def test_errors_are_counted_against_the_measured_value():
    """[Q5] Errors of +5, -10, +20 and -30 %: mean 16.25, median 15, two within 10 %, three within 20 %."""
    found = summarize_errors([row(f"a-{n}", 100.0, said) for n, said in enumerate((105.0, 90.0, 120.0, 70.0))])
    assert found["mape_pct"] == pytest.approx(16.25)
    assert found["median_ape_pct"] == pytest.approx(15.0)
    assert found["bias_pct"] == pytest.approx(-3.75)
    assert (found["within_10_pct"], found["within_20_pct"]) == (50.0, 75.0)


def test_the_band_holds_a_measured_value_between_its_ends():
    """[Q5] Bands of 10 %: 94.5 to 115.5 holds 100; 81 to 99 and 63 to 77 do not."""
    assert summarize_errors([row(f"a-{n}", 100.0, said) for n, said in enumerate((105.0, 90.0, 70.0))])[
        "band_coverage_pct"
    ] == pytest.approx(100 / 3)


def test_doubtful_rows_duplicates_and_skipped_rows_stay_out_of_the_averages():
    rows = [
        row("a-1", 100.0, 110.0),
        row("a-2", 100.0, 300.0, doubtful="contradicts a-1"),
        row("a-3", 100.0, 300.0, duplicate_of="a-1"),
        row("a-4", None, None, skipped="The architecture is not known.", code="no_architecture"),
        row("a-5", None, 7.0, memory_gib_measured=10.0, memory_gib_predicted=9.0),
    ]
    found = Accuracy(rows=rows)
    assert found.summary["mape_pct"] == pytest.approx(10.0)
    assert [found.summary[k] for k in ("rows", "scored", "skipped", "doubtful", "duplicates")] == [5, 1, 1, 1, 1]
    assert found.summary["memory_mape_pct"] == pytest.approx(10.0)
    assert found.doubtful["mape_pct"] == pytest.approx(200.0)
    assert found.skipped == [
        {"source": "a", "code": "no_architecture", "reason": "The architecture is not known.", "rows": 1}
    ]


def test_nothing_scored_is_nothing_not_zero():
    found = summarize_errors([])
    assert found["mape_pct"] is None and found["scored"] == 0


def test_the_json_holds_what_the_contract_names(tmp_path):
    path = written(tmp_path, GOOD, "here-0002,me,,A100-80GB,8,8,DDP,bf16,4096,64,1,8,1,1,none,10,,")
    told = json.loads(json.dumps(score_runs(path).as_dict(), allow_nan=False))
    assert set(CONTRACT["summary"]) <= set(told["summary"])
    assert all(set(CONTRACT["rows"]) <= set(one) for one in told["rows"])
    assert {"source", "mape_pct"} <= set(told["by_source"][0])
    first, second = told["rows"]
    assert first["error_pct"] == pytest.approx(100 * (first["predicted_s"] / 10 - 1))
    assert first["low_s"] < first["predicted_s"] < first["high_s"]
    assert first["skipped"] is None and second["skipped"]
    assert "recompute" not in " ".join(first["assumed"])


def test_a_row_with_tokens_per_second_only_is_scored_on_them(tmp_path):
    """64 samples of 4096 tokens in 10 s on 8 GPUs are 3276.8 tokens/s a GPU."""
    tokens = GOOD.replace("here-0001", "here-0002").replace(",10,,60", ",,3276.8,")
    by_time, by_tokens = score_runs(written(tmp_path, GOOD, tokens)).rows
    assert by_tokens.measured_s == pytest.approx(10.0)
    assert by_tokens.predicted_s == by_time.predicted_s


@pytest.mark.slow
def test_rows_are_predicted_alike_whatever_they_stand_beside(data, monkeypatch):
    """Buckets by depth of the pipeline and chunks of a long file do not show."""
    runs, _ = read_runs(data / "measured_runs.csv")
    some = runs[::40]
    together = predict_runs(some, Profiles.load())
    for at, run in enumerate(some):
        assert predict_runs([run], Profiles.load()).step_s[0] == pytest.approx(together.step_s[at], rel=1e-12)
    monkeypatch.setattr(accuracy, "CHUNK", 100)
    path = data / "measured_runs.csv"
    chunked, steps = {}, []
    for one in score_runs(path, progress=steps.append).rows:
        chunked[one.id] = one.predicted_s
    assert all(chunked[run.id] == pytest.approx(together.step_s[at], rel=1e-12) for at, run in enumerate(some))
    assert sum(steps) == len(chunked) and max(steps) == 100


def test_four_thousand_rows_take_seconds(tmp_path):
    shapes = [(dp, pp) for dp, pp in ((8, 1), (4, 2), (2, 4), (1, 8))]
    rows = [
        f"here-{n:06},me,llama-2-7b,A100-80GB,8,8,Megatron-LM 2024,bf16,4096,{64 + n % 7 * 8},1,{dp},1,{pp},none,{n},,"
        for n, (dp, pp) in enumerate(shapes * 1000, start=1)
    ]
    found = score_runs(written(tmp_path, *rows))
    assert found.summary["scored"] == 4_000


def test_published_runs_are_met(published, data):
    """Targets: 750 rows, 5.5 % mean and 3.5 % median; complete rows 4 and 3 with 92 % within 10 %; MoE 10 %.

    Of hybrids, several GPU kinds and rates of operations nothing was fitted: they are scored apart.
    """
    runs, _ = read_runs(data / "measured_runs.csv")
    unfitted = {
        run.id
        for run in runs
        if run.case.model.pattern or len(run.case.cluster.zones[0].nodes) > 1 or run.time_from == "tflops_per_gpu"
    }
    fitted = Accuracy(rows=[row for row in published.rows if row.id not in unfitted])
    assert len(unfitted) >= 55
    assert summarize_errors([row for row in published.rows if row.id in unfitted])["mape_pct"] <= 17
    subsets = fitted.subsets
    assert fitted.summary["scored"] >= 750
    assert fitted.summary["mape_pct"] <= 5.5 and fitted.summary["median_ape_pct"] <= 3.5
    assert subsets["complete"]["mape_pct"] <= 4 and subsets["complete"]["median_ape_pct"] <= 3
    assert subsets["complete"]["within_10_pct"] >= 92
    assert subsets["moe"]["mape_pct"] <= 10
    summary = published.summary
    assert summary["rows"] == summary["scored"] + summary["skipped"] + summary["doubtful"] + summary[
        "duplicates"
    ] + sum(
        r.measured_s is None and r.skipped is None and r.doubtful is None and r.duplicate_of is None
        for r in published.rows
    )


def test_strategies_of_published_runs_are_ranked(published):
    """Targets: mean regret 1.01, 88 % of the pairs more than 5 % apart."""
    assert published.ranking.groups >= 50
    assert published.ranking.mean_regret <= 1.01
    assert published.ranking.pairs_right_pct >= 88


def test_other_files_of_runs_are_met(data):
    """Targets: 7.5 % on the single nodes of vTrain, 3 % on steps of one H200."""
    assert score_runs(data / "measured_runs_vtrain_single.csv").summary["mape_pct"] <= 7.5
    assert score_runs(data / "measured_runs_h200.csv").summary["mape_pct"] <= 3


@pytest.mark.slow
def test_no_prediction_depends_on_a_rows_id_or_on_what_was_measured(data, tmp_path):
    """Ids, figures and order changed: the same predictions."""
    with (data / "measured_runs.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))[::9]
    other = tmp_path / "other.csv"
    with other.open("w", encoding="utf-8", newline="") as file:
        out = csv.DictWriter(file, rows[0].keys())
        out.writeheader()
        recipes = read_recipes(data / RECIPES_FILE)  # columns of a row too, in a file beside
        lines = [",".join(("id", *RECIPE_COLUMNS))]
        for number, one in enumerate(reversed(rows)):
            changed = {"id": f"x-{number}"}
            cells = recipes.get(one["id"], {})
            lines.append(",".join((changed["id"], *(f'"{cells.get(column, "")}"' for column in RECIPE_COLUMNS))))
            changed |= {k: str(2 * float(one[k])) for k in ("step_time_s", "tokens_per_s_per_gpu") if one[k]}
            out.writerow(one | changed)
    (tmp_path / RECIPES_FILE).write_text("\n".join(lines) + "\n", "utf-8")
    kept = {r.id: r.predicted_s for r in score_runs(data / "measured_runs.csv").rows}
    again = [r.predicted_s for r in score_runs(other).rows]
    for one, said in zip(reversed(rows), again, strict=True):
        assert said == (kept[one["id"]] and pytest.approx(kept[one["id"]], rel=1e-12))


def test_doubtful_rows_stand_beside_the_runs_or_where_the_user_says(tmp_path):
    path = written(tmp_path, GOOD)
    assert read_doubtful_reasons(path, None) == {}
    (tmp_path / "doubtful_rows.csv").write_text("id,reason\nhere-0001,odd\n", encoding="utf-8")
    assert read_doubtful_reasons(path, None) == {"here-0001": "odd"}
    (tmp_path / "mine.csv").write_text("id,reason\nhere-0009,odd\n", encoding="utf-8")
    assert read_doubtful_reasons(path, tmp_path / "mine.csv") == {"here-0009": "odd"}


def test_a_fit_is_given_rows_once_and_without_doubtful_ones(tmp_path):
    runs, _ = read_runs(written(tmp_path, GOOD, GOOD.replace("0001", "0002"), GOOD.replace(",10,", ",11,")))
    assert [run.step_time_s for run in select_usable_runs(runs, {})] == [10, 11]
    assert len(select_usable_runs(runs, {"here-0001"})) == 0
    rows = build_training_rows(runs[:1], runs[2:])
    assert rows.weights.tolist() == [1.0, 0.03]
    assert len(rows.drop([True, False]).runs) == 1


def test_fitted_values_are_written_back_and_nothing_else_changes():
    text = "a:\n  coefficients:  # why\n    tile: {value: 1.0, error: 0.1, origin: fitted}  # as is\n"
    text += "    memory: {value: 0.85, error: 0.05, origin: assumed}\nb:\n    tile: {value: 3, error: 0.1, origin: fitted}\n"
    values = {("gpu a", "tile"): (1.234, 0.02), ("gpu a", "memory"): (9.0, 9.0)}
    found = rewrite_profile(text, {"a": "gpu a", "b": "gpu b"}, values)
    assert found == text.replace("value: 1.0, error: 0.1", "value: 1.234, error: 0.02")
    assert round_value(0.00123456) == 0.001235


def test_widths_are_written_back_and_nothing_else_changes():
    text = "# why\nstep:\n  base: {low: 0.1, high: 0.2}  # x\nmemory:\n  base: {low: 0.1, high: 0.2}\n"
    found = replace_widths(text, "step", {"base": {"low": 0.3, "high": 0.4}})
    assert found == text.replace("{low: 0.1, high: 0.2}  # x", "{low: 0.3, high: 0.4}  # x")


def test_writing_the_shipped_values_changes_no_file(tmp_path):
    names = [f"{name}.yaml" for name in ("common", "gpus", "stacks")]
    for name in names:
        (tmp_path / name).write_text((FOLDER / name).read_text("utf-8"), encoding="utf-8")
    profiles = Profiles.load()
    write_profiles(profiles, profiles.values, profiles.errors, tmp_path)
    assert [(tmp_path / name).read_text("utf-8") for name in names] == [(FOLDER / n).read_text("utf-8") for n in names]
