"""Two sites against one, and the table over all published results."""

from __future__ import annotations

import csv
import json

import pytest
from published.sites import (
    _read_data,
    build_scenario,
    predict_headlines,
    predict_pipeline_against_data,
    predict_two_sites,
)
from published.table import build_document, format_document

from crosszone.calibrate.published import NEEDED, STORED, PublishedResult, read_published, summarize_families
from crosszone.cli import run as _run
from crosszone.errors import FileError, InputError
from crosszone.inputs.parameters import parameters
from crosszone.predict.predict import build_prediction, build_predictor
from crosszone.text import LANGUAGES, label

ROW = "streaming-diloco-0030,,10B,DiLoCo,bandwidth needed for 80% compute utilisation,7.5,Gbit/s,"


def written(folder, *rows):
    path = folder / "published.csv"
    path.write_text("\n".join((",".join(NEEDED), *rows)) + "\n", encoding="utf-8")
    return path


def test_the_two_site_run_is_the_published_one():
    """[A23] 3,072 GPUs, half in each site, replicas across; as many optimizer instances as sites."""
    found = build_scenario(_read_data()["two_sites"], 2, 800.0)
    assert [sum(n.count * n.gpus for n in zone.nodes) for zone in found.cluster.zones] == [1536, 1536]
    assert found.strategy.ranks == 3072 and found.strategy.shard_within == "zone"
    placed = build_predictor(found)
    assert len(placed.placed.ring) == 2 and build_prediction(placed).memory_gib.fits


def test_a_wider_link_brings_two_sites_nearer_to_one():
    """[A23]"""
    found = predict_two_sites()
    shares = list(found.efficiency_pct.values())
    assert shares == sorted(shares) and 0 < shares[0] < shares[-1] < 100


def test_the_rate_that_a_target_needs_reaches_it_and_is_no_less_than_its_bytes_allow(monkeypatch):
    """[A23] A site sends 2 bytes of every parameter once; more than 6.4 % of a step and the last backward pass it cannot
    take where 94 % are wanted.
    """
    told = _read_data()["two_sites"]
    monkeypatch.setitem(told, "target_pct", 94)
    found = predict_two_sites()
    assert found.target_pct == 94 and found.least_gbps is not None
    there = build_predictor(build_scenario(told, 2, found.least_gbps))
    assert found.one_site_step_s / there.step_time.expected == pytest.approx(0.94, rel=1e-3)
    gigabits = 16 * parameters(there.case.model).total / 1e9
    last_backward = found.one_site_step_s / there.row_micro_batches
    assert found.least_gbps > gigabits / (found.one_site_step_s * 0.0638 + last_backward)


def test_a_target_that_latency_alone_puts_out_of_reach_has_no_rate(monkeypatch):
    """[A23] Each of seven chunks pays the round trip of 20 ms, and no rate shortens that: 99 % of one site stay out of reach."""
    monkeypatch.setitem(_read_data()["two_sites"], "target_pct", 99)
    assert predict_two_sites().least_gbps is None


def test_a_narrow_link_favours_stages_across_sites_over_replicas():
    """The published direction: at 4 GB/s stages are faster; at 64 GB/s they are slower than one site."""
    narrow, wide = predict_pipeline_against_data()
    assert narrow.predicted is not None and narrow.predicted > 1
    assert wide.predicted is not None and 1 < wide.predicted < 1.3 * 1.05


def test_headlines_without_their_links_are_not_guessed():
    keys = dict.fromkeys(NEEDED, "")
    one = {**keys, "id": "headline-1", "metric": "speed-up", "value": "17", "unit": "x"}
    sites = {**one, "model": "Nemotron-4-340B", "metric": "scaling efficiency versus one site", "value": "96"}
    assert [r.reason for r in predict_headlines([one, sites])[:2]] == ["published_unstated", "published_rate"]


@pytest.mark.slow
def test_every_row_of_the_file_has_a_prediction_or_a_reason(data):
    found = read_published(data / "cross_zone_runs.csv")
    assert {one.family for one in found} == {"dtfm", "tc-micro", "intellect-1", "streaming-diloco", "headline"}
    assert all((one.predicted is None) == bool(one.reason) for one in found)
    by_family = {one.family: one for one in summarize_families(found)}
    assert by_family["intellect-1"].within_10_pct == 100
    assert (by_family["streaming-diloco"].median_ape_pct or 99) <= 5


def test_errors_are_counted_by_publication():
    def result(published: float, predicted: float | None) -> PublishedResult:
        return PublishedResult(id="x", family="f", case="c", unit="s", published=published, predicted=predicted)

    (found,) = summarize_families([result(100, 105), result(100, 85), result(100, 140), result(1, None)])
    assert (found.rows, found.predicted, found.median_ape_pct) == (4, 3, pytest.approx(15))
    assert (found.within_10_pct, found.within_20_pct) == (pytest.approx(100 / 3), pytest.approx(200 / 3))


def test_another_family_is_kept_with_a_reason(tmp_path):
    (found,) = read_published(written(tmp_path, "mine-1,two sites,,ring,step,12,s,"))
    assert (found.family, found.reason) == ("mine", "published_unmodelled")


@pytest.mark.slow
def test_the_stored_predictions_are_what_the_study_says_today(data):
    """After a change of the models: python benchmarks/studies/published/table.py --write."""
    stored, now = json.loads((data / STORED).read_text("utf-8")), build_document(data / "cross_zone_runs.csv")
    assert json.loads(format_document(now)).keys() == stored.keys()
    for key in ("rows", "further"):
        assert [{**one, "predicted": None} for one in now[key]] == [{**one, "predicted": None} for one in stored[key]]
        changed = [
            new["id"]
            for new, old in zip(now[key], stored[key], strict=True)
            if new["predicted"] != old["predicted"]
            and new["predicted"] != pytest.approx(old["predicted"] or 0.0, rel=1e-9)
        ]
        assert changed == []
    assert now["two_sites"]["efficiency_pct"] == pytest.approx(stored["two_sites"]["efficiency_pct"], rel=1e-9)


def test_a_figure_that_was_changed_has_no_prediction(tmp_path):
    found = read_published(written(tmp_path, ROW, ROW.replace("7.5", "7.6")))
    assert [one.reason for one in found[:2]] == ["", "published_unmodelled"]


@pytest.mark.parametrize("value", ["", "fast", "0", "-1", "nan", "inf"])
def test_a_value_that_is_no_figure_is_refused_with_its_line(tmp_path, value):
    with pytest.raises(InputError) as error:
        read_published(written(tmp_path, ROW, f"mine-2,,,,,{value},s,"))
    (notice,) = error.value.notices
    assert (notice.code, notice.line) == ("published_value", 3)


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(InputError):
        read_published(path)
    with pytest.raises(FileError):
        read_published(tmp_path / "nowhere.csv")


@pytest.mark.parametrize("language", LANGUAGES)
def test_accuracy_knows_the_file_by_its_columns(tmp_path, capsys, data, language):
    """Of Streaming DiLoCo all 75 cells of its table 4 are shown, those that are rows of the file and the others."""
    with (data / "cross_zone_runs.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["id"].startswith("streaming-diloco")]
    path = tmp_path / "published.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, NEEDED, extrasaction="ignore")
        writer.writeheader()
        mine = {"id": "mine-1", "setting": "two sites", "method": "ring", "metric": "step", "value": "12", "unit": "s"}
        writer.writerows([*rows, mine])
    assert _run(["--lang", language, "accuracy", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"][0]["published"] == float(rows[0]["value"]) and told["grid"]["cells"] == 75
    assert told["rows"][-1]["reason"] == label("published_unmodelled", language)
    assert _run(["--lang", language, "accuracy", str(path)]) == 0
    shown = capsys.readouterr().out
    assert label("published_summary_title", language) in shown and "75" in shown
