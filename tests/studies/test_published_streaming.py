"""Streaming DiLoCo's table of bandwidths, and INTELLECT-1's utilisation, beside their predictions."""

from __future__ import annotations

import csv

import pytest
from published.intellect import predict_intellect, predict_zone_utilisation
from published.streaming import find_needed_gbps, find_printed_gbps, predict_streaming, predict_utilisation

from crosszone.calibrate.published import compare_cells, count_grid_steps, list_grid_gbps


def row(**cells: str) -> dict[str, str]:
    keys = ("id", "setting", "model", "method", "metric", "value", "unit", "notes")
    return {key: cells.get(key, "") for key in keys}


@pytest.fixture
def rows(data):
    with (data / "cross_zone_runs.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_grid_is_the_sources():
    """[A21] 50 rates, 10^(4/49) apart."""
    grid = list_grid_gbps()
    assert (len(grid), grid[0], grid[-1]) == (50, pytest.approx(0.1), pytest.approx(1000))
    assert grid[1] / grid[0] == pytest.approx(1.2068, rel=1e-4)
    assert (
        count_grid_steps(86.8, 104.8) == 1 and count_grid_steps(104.8, 86.8) == -1 and count_grid_steps(1.4, 1.389) == 0
    )


def test_a_step_of_data_parallelism_at_one_gbit_is_its_bits():
    """[A20] 16 Gbit at 1 Gbit/s after a third of 0.1 s and a layer's backward pass: 16.036 s."""
    share = predict_utilisation("1B", "Data-Parallel", 1.0)[0]
    assert share == pytest.approx(0.1 / (16 + 0.1 / 3 + 0.2 / 3 / 24), rel=1e-9)


@pytest.mark.parametrize(("model", "gbps"), [("1B", 1.6), ("10B", 2.0), ("100B", 1600 / 490)])
def test_half_the_time_computing_takes_all_parameters_once_in_h_steps(model, gbps):
    """[A21] No figure below that can be reached, so what the source prints is the last point below."""
    assert find_printed_gbps(model, "DiLoCo", 50) < gbps < 1.02 * find_needed_gbps(model, "DiLoCo", 50)
    assert count_grid_steps(find_printed_gbps(model, "DiLoCo", 50), find_needed_gbps(model, "DiLoCo", 50)) == 1


def test_every_cell_of_the_table_is_within_a_step_of_the_grid():
    """[A20] [A21] All 75, without a file: the figures are in the data."""
    found = compare_cells(predict_streaming([]))
    assert found.cells == found.within_one_step == 75
    assert found.same >= 60
    assert found.reaching_within_one_step >= 74


def test_rows_of_the_file_and_cells_it_leaves_out_make_the_table(rows):
    """[A21]"""
    given = [one for one in rows if one["id"].startswith("streaming-diloco")]
    found = predict_streaming(given)
    cells = [one for one in found if one.unit == "Gbit/s"]
    assert len(cells) == len({one.case for one in cells}) == 75
    assert [one.id for one in found[: len(given)]] == [one["id"] for one in given]
    table = {one.case: one.published for one in predict_streaming([])}
    assert all(one.published == pytest.approx(table[one.case], abs=0.05) for one in cells)


def test_hours_at_one_gbit_are_within_four_percent(rows):
    """[A21] 0.67 h without limits take 109 h with data parallelism, 0.88 h with streaming."""
    hours = [one for one in predict_streaming([r for r in rows if "hours" in r["metric"]]) if one.unit == "h"]
    assert len(hours) == 4
    assert all(one.error_pct is not None and abs(one.error_pct) <= 4 for one in hours)


def test_what_is_not_described_has_a_reason():
    for metric, model, method, reason in (
        ("terabytes exchanged", "1B", "Data-Parallel", "published_uncounted"),
        ("bandwidth needed for 50% compute utilisation", "7B", "Data-Parallel", "published_unknown"),
        ("bandwidth needed for 50% compute utilisation", "1B", "Gossip", "published_unknown"),
    ):
        (found, *_) = predict_streaming([row(id="x-1", metric=metric, model=model, method=method, value="1", unit="y")])
        assert (found.predicted, found.reason) == (None, reason)


@pytest.mark.parametrize(("exchange_s", "published"), [(103, 95.7), (382, 85.6), (469, 83.0)])
def test_zones_that_stop_for_an_exchange_compute_the_rest(exchange_s, published):
    """[A22] 38 minutes of 100 steps, then the exchange: within half a point of what was measured."""
    share = 100 * predict_zone_utilisation(100, 22.8, exchange_s)
    assert share == pytest.approx(100 * 2280 / (2280 + exchange_s), rel=1e-9)
    assert share == pytest.approx(published, abs=0.5)


def test_every_stated_utilisation_and_mfu_is_predicted_and_inputs_are_not(rows):
    """[A22] The setting that the file leaves out comes from the report's table."""
    found = predict_intellect([one for one in rows if one["id"].startswith("intellect-1")])
    shares = {one.case: one for one in found if one.case.endswith("compute utilisation") and one.predicted is not None}
    assert {case.split(",")[0] for case in shares} == {"USA", "USA + Europe", "global"}
    assert all(one.predicted == pytest.approx(one.published, abs=0.5) for one in shares.values())
    mfu = [one for one in found if one.case.endswith("MFU") and one.predicted is not None]
    assert len(mfu) == 3 and all(one.predicted == pytest.approx(one.published, abs=0.5) for one in mfu)
    assert {one.reason for one in found if one.predicted is None} == {"published_given"}
