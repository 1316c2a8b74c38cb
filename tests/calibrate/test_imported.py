"""What is left of a file that was brought in, whatever its format."""

from __future__ import annotations

import json

import pytest

from crosszone.analyse.outcome import Figures
from crosszone.calibrate.imported import ImportedRun
from crosszone.errors import InvalidError
from crosszone.inputs.value import parse
from crosszone.schedule.measured import read_measured
from crosszone.schedule.trace import read_trace
from crosszone.store import open_store
from crosszone.store.table import encode_json

TRACE = {
    "version": 1,
    "kind": "measured",
    "name": "run 7",
    "unit": "s",
    "lanes": [{"id": "stage-0", "name": "stage 0", "group": "stages"}],
    "spans": [
        {"lane": "stage-0", "kind": "forward", "start_s": 0.0, "end_s": 1.0},
        {"lane": "stage-0", "kind": "backward", "start_s": 1.0, "end_s": 3.0},
        {"lane": "stage-0", "kind": "optimizer", "start_s": 3.0, "end_s": 3.5},
        {"lane": "stage-0", "kind": "forward", "start_s": 4.0, "end_s": 4.8},
        {"lane": "stage-0", "kind": "backward", "start_s": 4.8, "end_s": 6.0},
    ],
    "steps": [{"step": 1, "start_s": 0.0, "end_s": 3.5}, {"step": 2, "start_s": 4.0, "end_s": 6.0}],
    "meta": {"model": "x", "device": "H200"},
}


def brought(**options) -> ImportedRun:
    return ImportedRun.from_trace(read_trace(json.dumps(TRACE)), **options)


def test_a_trace_gives_steps_with_phases_that_add_up():
    found = brought()
    assert [(one.step, one.seconds) for one in found.steps] == [(1, 3.5), (2, 2.0)]
    assert found.steps[0].phases_s == {"warm_up": 1.0, "steady": 0.0, "cool_down": 2.0, "tail": 0.5}
    assert (found.statistics.best_step, found.meta) == (2, TRACE["meta"])


@pytest.mark.parametrize(("word", "seconds"), [("first", 3.5), ("last", 2.0), ("best", 2.0), ("1", 3.5)])
def test_figures_are_of_the_iteration_that_is_asked_for(word, seconds):
    found = brought(chosen_step=word)
    assert found.figures["step_time_s"] == seconds
    assert sum(found.figures["breakdown_s"].values()) == pytest.approx(seconds)
    assert parse(Figures, found.figures).step_time_s == seconds


def test_what_a_run_needs_to_warm_up_can_be_left_out():
    later = brought().drop_first(1)
    assert ([one.step for one in later.steps], later.statistics.mean_s) == ([2], 2.0)
    assert [step.step for step in later.read_timelines().steps] == [2]
    with pytest.raises(InvalidError):
        later.drop_first(1)


def test_it_is_kept_as_a_result_that_survives_a_restart(tmp_path):
    with open_store(str(tmp_path / "store.db")) as store:
        id = store.results.add(**brought(chosen_step="best").to_result(name="mine", note="why")).id
    with open_store(str(tmp_path / "store.db")) as store:
        kept = store.results.get(id)
    assert (kept.kind, kept.name, kept.note) == ("measured", "mine", "why")
    assert kept.headline["step_time_s"]["value"] == kept.document["step_time_s"] == 2.0
    assert kept.timeline["phases_s"]["warm_up"] == pytest.approx(0.8)
    assert read_measured(kept.timeline["trace"]).last == 2


def test_a_sheet_without_a_timeline_can_be_kept_too():
    one = {"count": 1, "min_s": 2.0, "max_s": 2.0, "mean_s": 2.0, "std_s": 0.0, "mean_to_min_pct": 0.0, "best_step": 0}
    steps = ({"step": 0, "seconds": 2.0, "phases_s": {}},)
    found = ImportedRun(name="a", kind="sheet", figures={"step_time_s": 2.0}, steps=steps, statistics=one)
    assert found.to_result()["timeline"] is None
    assert found.to_result()["headline"]["step_time_s"]["value"] == 2.0


def large(steps: int, spans: int) -> ImportedRun:
    """A run with so many iterations of a second, and spans in each."""
    rows = [
        {"lane": "stage-0", "kind": "forward", "start_s": at + of / spans, "end_s": at + (of + 1) / spans}
        for at in range(steps)
        for of in range(spans)
    ]
    marks = [{"step": at, "start_s": float(at), "end_s": at + 1.0} for at in range(steps)]
    return ImportedRun.from_trace(read_trace(json.dumps({**TRACE, "spans": rows, "steps": marks})))


def stored(found: ImportedRun) -> int:
    return len(encode_json(found.to_result()["timeline"], "timeline"))


def test_a_timeline_that_just_fits_as_it_is_stored_is_kept_whole():
    found = large(10, 50)
    assert found.trim_timeline(3, stored(found)) is found


def test_of_a_timeline_that_does_not_fit_the_iteration_is_kept_and_told():
    found = large(10, 50)
    most = stored(found) - 1
    assert len(json.dumps(found.timeline)) < 0.95 * most  # before its quotation marks are escaped it would fit
    short = found.trim_timeline(3, most)
    assert [step.step for step in short.read_timelines().steps] == [3] and len(short.timeline["spans"]) == 50
    assert stored(short) <= most and short.figures == found.figures
    (told,) = [notice for notice in short.notices if notice not in found.notices]
    assert (told.code, told.params["step"], told.params["count"]) == ("trace_kept_part", 3, 10)
    assert "3" in told.message("zh") and "10" in told.message()


def test_where_not_even_one_iteration_fits_the_timeline_is_left_out_and_that_is_told():
    found = large(10, 50)
    short = found.trim_timeline(3, 2000)
    assert short.timeline is None and short.notices[-1].code == "trace_kept_without"
    assert short.trim_timeline(3, 2000) is short
    assert short.to_result()["document"] == found.to_result()["document"]
