"""Two sites against one, and the table over all published results."""

from __future__ import annotations

import json

import pytest

from crosszone.analyse.published.result import Result
from crosszone.analyse.published.sites import _data, headline_results, pipeline_against_data, site_scenario, two_sites
from crosszone.analyse.published.table import NEEDED, published_results, summaries
from crosszone.cli import run as _run
from crosszone.errors import FileError, InputError
from crosszone.inputs.parameters import parameters
from crosszone.predict.predict import build_prediction, predictor
from crosszone.text import LANGUAGES, label

ROW = "streaming-diloco-1,,10B,DiLoCo,bandwidth needed for 80% compute utilisation,7.5,Gbit/s,"


def written(folder, *rows):
    path = folder / "published.csv"
    path.write_text("\n".join((",".join(NEEDED), *rows)) + "\n", encoding="utf-8")
    return path


def test_the_two_site_run_is_the_published_one():
    """[A23] 3,072 GPUs, half in each site, replicas across; as many optimizer instances as sites."""
    found = site_scenario(_data()["two_sites"], 2, 800.0)
    assert [sum(n.count * n.gpus for n in zone.nodes) for zone in found.cluster.zones] == [1536, 1536]
    assert found.strategy.ranks == 3072 and found.strategy.shard_within == "zone"
    placed = predictor(found)
    assert len(placed.site.ring) == 2 and build_prediction(placed).memory_gib.fits


def test_a_wider_link_brings_two_sites_nearer_to_one():
    """[A23]"""
    found = two_sites()
    shares = list(found.efficiency_pct.values())
    assert shares == sorted(shares) and 0 < shares[0] < shares[-1] < 100


def test_the_rate_that_a_target_needs_reaches_it_and_is_no_less_than_its_bytes_allow():
    """[A23] A site sends 2 bytes of every parameter once; more than 4 % of a step and the last backward pass it cannot take."""
    found, told = two_sites(), _data()["two_sites"]
    assert found.target_pct == 96 and found.least_gbps is not None
    there = predictor(site_scenario(told, 2, found.least_gbps))
    assert found.one_site_step_s / there.step_time.expected == pytest.approx(0.96, rel=1e-3)
    gigabits = 16 * parameters(there.case.model).total / 1e9
    last_backward = found.one_site_step_s / there.row_micro_batches
    assert found.least_gbps > gigabits / (found.one_site_step_s * 0.0417 + last_backward)


def test_a_narrow_link_favours_stages_across_sites_over_replicas():
    """The published direction: at 4 GB/s stages are faster; at 64 GB/s they are slower than one site."""
    narrow, wide = pipeline_against_data()
    assert narrow.predicted is not None and narrow.predicted > 1
    assert wide.predicted is not None and 1 < wide.predicted < 1.3 * 1.05


def test_headlines_without_their_links_are_not_guessed():
    keys = dict.fromkeys(NEEDED, "")
    one = {**keys, "id": "headline-1", "metric": "speed-up", "value": "17", "unit": "x"}
    sites = {**one, "model": "Nemotron-4-340B", "metric": "scaling efficiency versus one site", "value": "96"}
    assert [r.reason for r in headline_results([one, sites])[:2]] == ["published_unstated", "published_rate"]


@pytest.mark.slow
def test_every_row_of_the_file_has_a_prediction_or_a_reason(data):
    found = published_results(data / "cross_zone_runs.csv")
    assert {one.family for one in found} == {"dtfm", "tc-micro", "intellect-1", "streaming-diloco", "headline"}
    assert all((one.predicted is None) == bool(one.reason) for one in found)
    by_family = {one.family: one for one in summaries(found)}
    assert by_family["intellect-1"].within_10_pct == 100
    assert (by_family["streaming-diloco"].median_ape_pct or 99) <= 5


def test_errors_are_counted_by_publication():
    def result(published: float, predicted: float | None) -> Result:
        return Result(id="x", family="f", case="c", unit="s", published=published, predicted=predicted)

    (found,) = summaries([result(100, 105), result(100, 85), result(100, 140), result(1, None)])
    assert (found.rows, found.predicted, found.median_ape_pct) == (4, 3, pytest.approx(15))
    assert (found.within_10_pct, found.within_20_pct) == (pytest.approx(100 / 3), pytest.approx(200 / 3))


def test_another_family_is_kept_with_a_reason(tmp_path):
    (found,) = published_results(written(tmp_path, "mine-1,two sites,,ring,step,12,s,"))
    assert (found.family, found.reason) == ("mine", "published_unmodelled")


@pytest.mark.parametrize("value", ["", "fast", "0", "-1", "nan", "inf"])
def test_a_value_that_is_no_figure_is_refused_with_its_line(tmp_path, value):
    with pytest.raises(InputError) as error:
        published_results(written(tmp_path, ROW, f"mine-2,,,,,{value},s,"))
    (notice,) = error.value.notices
    assert (notice.code, notice.line) == ("published_value", 3)


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(InputError):
        published_results(path)
    with pytest.raises(FileError):
        published_results(tmp_path / "nowhere.csv")


@pytest.mark.parametrize("language", LANGUAGES)
def test_accuracy_knows_the_file_by_its_columns(tmp_path, capsys, language):
    path = written(tmp_path, ROW, "mine-1,two sites,,ring,step,12,s,")
    assert _run(["--lang", language, "accuracy", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["rows"][0]["published"] == 7.5 and told["grid"]["cells"] == 75
    assert told["rows"][-1]["reason"] == label("published_unmodelled", language)
    assert _run(["--lang", language, "accuracy", str(path)]) == 0
    shown = capsys.readouterr().out
    assert label("published_summary_title", language) in shown and "75" in shown
