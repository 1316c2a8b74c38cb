"""The accuracy report as values, CSV files and pictures."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pytest

from component_rows import TIMED, iterations, written
from crosszone.calibrate import accuracy_report as report_module
from crosszone.calibrate.accuracy_report import (
    COMPONENTS_FILE,
    ITERATIONS_FILE,
    MAIN_FILE,
    build_csv_files,
    get_accuracy_report,
    score_folder,
)
from crosszone.calibrate.figures import FIGURES, draw_figures, make_figure
from crosszone.cost import own_profiles
from crosszone.cost.own_profiles import OwnProfile
from crosszone.errors import FileError, InputError
from crosszone.text import LANGUAGES

HEAD = "id,source,model,gpu,gpus,gpus_per_node,framework,precision,seq_len,global_batch,micro_batch,dp,tp,pp,recompute"
HEAD += ",step_time_s,tokens_per_s_per_gpu,memory_gb"
ROWS = (
    "here-0001,me,llama-2-7b,A100-80GB,8,8,Megatron-LM 2024,bf16,4096,64,1,8,1,1,none,10,,60",
    "here-0002,me,llama-2-7b,A100-80GB,8,8,Megatron-LM 2024,bf16,4096,64,1,4,2,1,none,11,,",
    "else-0001,she,llama-2-7b,A100-80GB,8,8,Megatron-LM 2024,bf16,4096,128,1,4,2,1,none,20,,",
    "there-0001,you,unheard-of,A100-80GB,8,8,DDP,bf16,4096,64,1,8,1,1,none,10,,",
)

pytestmark = pytest.mark.slow
STEPS = ("one,1,2,2,steady", "one,2,3,3,steady", "one,3,4,4,steady", "other,1,5,5,steady")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three runs that can be scored, one that cannot; two jobs timed part by part; iterations of two jobs."""
    made = tmp_path / "data"
    (made / "gpumodeling25").mkdir(parents=True)
    (made / MAIN_FILE).write_text("\n".join((HEAD, *ROWS)) + "\n", encoding="utf-8")
    short = {"run_id": "two", "iter_best_s": "25", "p2p_send_first_us": "", "p2p_send_middle_us": ""}
    written(made / COMPONENTS_FILE, TIMED, {**TIMED, **short})
    iterations(made / "gpumodeling25", *STEPS)
    return made


@pytest.fixture
def report(folder: Path) -> dict:
    return get_accuracy_report(folder, "en")


def test_the_report_tells_runs_sources_components_shares_and_stability(report):
    assert [run["id"] for run in report["runs"]] == ["here-0001", "here-0002", "else-0001", "one", "two"]
    for run in report["runs"]:
        assert run["error_pct"] == pytest.approx(100 * (run["predicted_s"] / run["measured_s"] - 1))
    assert [run["counts"] for run in report["runs"]] == [True, True, True, True, False]
    assert all(run["low_s"] < run["predicted_s"] < run["high_s"] for run in report["runs"][:3])
    assert [one["source"] for one in report["sources"]] == ["here", "else", "there", "gpumodeling25 perlmutter"]
    assert report["sources"][0]["scored"] == 2
    assert [job["id"] for job in report["components"]["jobs"]] == ["one", "two"]
    assert [one["job"]["id"] for one in report["shares"]] == ["one", "two"]
    assert [(one["id"], one["count"], one["cluster"]) for one in report["stability"]] == [
        ("one", 3, "perlmutter"),
        ("other", 1, ""),
    ]
    assert [(one["file"], one["id"]) for one in report["skipped"]] == [(MAIN_FILE, "there-0001")]
    assert "crosszone_rig.csv" in report["missing"]
    json.dumps(report, allow_nan=False)


def test_a_report_is_made_once_until_a_file_changes(folder, monkeypatch):
    made = []
    monkeypatch.setattr(report_module, "score_folder", lambda *a, **k: made.append(1) or score_folder(*a, **k))
    first = get_accuracy_report(folder, "en")
    assert get_accuracy_report(folder, "en") is first and len(made) == 1
    path = folder / MAIN_FILE
    path.write_text("\n".join((HEAD, *ROWS[:1])) + "\n", encoding="utf-8")
    os.utime(path, (1, 1))
    assert len(get_accuracy_report(folder, "en")["runs"]) == 3 and len(made) == 2
    assert get_accuracy_report(folder, "zh")["components"]["rows"][-1]["name"] == "整个迭代"


def test_profiles_with_equal_values_at_other_places_have_reports_of_their_own(folder):
    """One more value of 0.5 in the vector each: only the place of it differs."""
    half = {"value": 0.5, "error": 0.01, "origin": "measured"}
    homes = {"first": ("a100-80gb-sxm", "matmul"), "second": ("h100-80gb-sxm", "flash")}
    found = {}
    for name, (gpu, field) in homes.items():
        own = OwnProfile(name=name, source="s", created="d", gpus={gpu: {field: half}})
        own_profiles.save(own)
        own_profiles.use(name)
        found[name] = get_accuracy_report(folder, "en")
        assert get_accuracy_report(folder, "en") is found[name]
    assert [one["own"] for one in found.values()] == ["first", "second"]
    assert found["first"]["runs"][0]["predicted_s"] > 1.1 * found["second"]["runs"][0]["predicted_s"]


def test_a_folder_without_any_of_the_files_is_refused(tmp_path):
    with pytest.raises(FileError) as caught:
        get_accuracy_report(tmp_path / "none", "en")
    assert caught.value.notices[0].code == "accuracy_no_folder"
    with pytest.raises(InputError) as caught:
        get_accuracy_report(tmp_path, "en")
    assert caught.value.notices[0].code == "accuracy_empty_folder"
    assert MAIN_FILE in caught.value.notices[0].hint("zh")


def test_a_malformed_table_is_refused_by_its_row(folder):
    iterations(folder / "gpumodeling25", *STEPS, "one,9,-1,1,steady")
    with pytest.raises(InputError) as caught:
        get_accuracy_report(folder, "en")
    assert caught.value.notices[0].line == 6
    assert caught.value.notices[0].file.endswith(ITERATIONS_FILE)


# --- files


def read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def test_tables_as_csv(report):
    files = build_csv_files(report)
    assert set(files) >= {
        "runs.csv",
        "sources.csv",
        "component_error.csv",
        "component_share.csv",
        "iteration_stability.csv",
    }
    assert not {"transfers.csv", "published.csv"} & set(files)
    assert len(read(files["runs.csv"])) == 1 + 5
    errors = read(files["component_error.csv"])
    assert errors[0][1:3] == ["perlmutter GPT_20B 4-4-8 (one)", "perlmutter GPT_20B 4-4-8 (two)"]
    assert [line[0] for line in errors[1:]] == [row["part"] for row in report["components"]["rows"]]
    assert float(errors[-1][1]) == pytest.approx(report["runs"][3]["error_pct"], rel=1e-4)
    (send,) = [line for line in errors if line[0] == "p2p_send"]
    assert send[2] == ""
    shares = read(files["component_share.csv"])
    assert [line[3] for line in shares[1:]] == ["measured", "predicted", "predicted"]
    for line in shares[1:]:
        assert sum(map(float, line[4:])) == pytest.approx(100, abs=0.01)
    stable = read(files["iteration_stability.csv"])
    assert stable[1] == ["one", "perlmutter", "GPT_20B 4-4-8", "3", "2", "4", "3", "1", "50"]


def test_no_cell_of_a_table_is_a_formula(folder):
    evil = ROWS[0].replace("here-0001", "=1+1")
    (folder / MAIN_FILE).write_text("\n".join((HEAD, evil)) + "\n", encoding="utf-8")
    assert read(build_csv_files(get_accuracy_report(folder, "en"))["runs.csv"])[1][0] == "'=1+1"


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
def test_pictures_are_png_and_svg_files(report, language):
    files = draw_figures(report, language)
    assert set(files) == {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")}
    for name, content in files.items():
        assert len(content) > 5_000, name
        assert content.startswith(b"\x89PNG" if name.endswith("png") else b"<?xml"), name


def test_a_picture_is_the_same_each_time(report):
    """So that a committed one changes only when the numbers do."""
    report = {**report, "components": None, "shares": [], "stability": []}
    assert draw_figures(report, "en", ("svg",)) == draw_figures(report, "en", ("svg",))


def test_every_run_that_counts_is_a_point_of_the_scatter(report):
    (axes,) = make_figure("predicted_measured", report, "en").axes
    points = {line.get_label(): line.get_xydata().tolist() for line in axes.lines if "(" in str(line.get_label())}
    assert {name: len(xy) for name, xy in points.items()} == {
        "here (2)": 2,
        "else (1)": 1,
        "gpumodeling25 perlmutter (1)": 1,
    }
    first = report["runs"][0]
    assert points["here (2)"][0] == pytest.approx([first["measured_s"], first["predicted_s"]])
    lines = [line for line in axes.lines if "(" not in str(line.get_label())]
    assert len(lines) == 1 + 2 * 2
    slopes = sorted(float(line.get_ydata()[0] / line.get_xdata()[0]) for line in lines)
    assert slopes == pytest.approx([0.8, 0.9, 1.0, 1.1, 1.2])
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_every_component_of_every_job_is_a_bar(report):
    (axes,) = make_figure("component_error", report, "en").axes
    stated = [
        sum(row["errors_pct"][at] is not None for row in report["components"]["rows"])
        for at in range(len(report["components"]["jobs"]))
    ]
    assert [len(bars) for bars in axes.containers] == stated
    assert stated[1] == stated[0] - 1
    step = axes.containers[0][-1].get_height()
    assert step == pytest.approx(max(-100, min(100, report["components"]["rows"][-1]["errors_pct"][0])))


def test_every_share_is_a_piece_of_a_bar(report):
    """Two bars for the job that states all parts, one for the other; seven pieces each, which end at 100 %."""
    (axes,) = make_figure("component_share", report, "en").axes
    assert [len(pieces) for pieces in axes.containers] == [3] * 7
    assert [piece.get_x() + piece.get_width() for piece in axes.containers[-1]] == pytest.approx([100] * 3)


def test_every_steady_iteration_is_a_point(report):
    """2, 3 and 4 s over 2 s: 0, 50 and 100 %; the mean at 50 %."""
    (axes,) = make_figure("iteration_stability", report, "en").axes
    assert [
        line.get_xdata().tolist() if hasattr(line.get_xdata(), "tolist") else list(line.get_xdata())
        for line in axes.lines[:2]
    ] == [
        pytest.approx([0, 50, 100]),
        pytest.approx([50]),
    ]
    assert len(axes.lines) == 4


def test_names_from_a_file_are_drawn_as_they_are(report):
    """Dollars are no formulas, line feeds no lines, and a hundred sources are no legend of a hundred lines."""
    odd = [{**report["runs"][0], "source": f"$\\frac{{ 来源 \n{n} \U0001f600" + "x" * 99} for n in range(100)]
    jobs = [{**row, "id": "$^", "name": "$_{", "cluster": "\n"} for row in report["stability"] * 20]
    changed = {**report, "runs": odd, "stability": jobs}
    (axes,) = make_figure("predicted_measured", changed, "en").axes
    names = [str(line.get_label()) for line in axes.lines if "(" in str(line.get_label())]
    assert len(names) == 37 and names[-1].endswith("(64)") and max(map(len, names)) < 60
    (axes,) = make_figure("iteration_stability", changed, "en").axes
    assert len(axes.lines) == 2 * 24 and "24" in axes.get_title(loc="left") and "40" in axes.get_title(loc="left")
    assert draw_figures({**changed, "components": None, "shares": []}, "en", ("svg",))


def test_what_there_is_nothing_of_is_not_drawn(report):
    empty = {**report, "runs": [], "components": None, "shares": [], "stability": []}
    assert draw_figures(empty, "en") == {}
    assert "runs.csv" not in build_csv_files(empty)


@pytest.mark.slow
def test_all_published_runs_are_drawn(data):
    report = get_accuracy_report(data, "en")
    assert report["missing"] == []
    assert len([run for run in report["runs"] if run["counts"]]) >= 1600
    (axes,) = make_figure("predicted_measured", report, "en").axes
    points = sum(len(line.get_xdata()) for line in axes.lines if "(" in str(line.get_label()))
    assert points == len([run for run in report["runs"] if run["counts"]])
    assert len(report["components"]["jobs"]) == 9 and len(report["stability"]) == 8
