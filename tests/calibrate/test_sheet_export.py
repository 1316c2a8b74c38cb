"""Saved results as workbooks: formulas where a prediction has them, else numbers; read back, the result is the same."""

from __future__ import annotations

import io
import json

import pytest
from openpyxl import load_workbook

from calibrate.sheets import CASES, H100, small
from crosszone.analyse.outcome import build_outcome
from crosszone.calibrate.sheet import export_result, read_workbook
from crosszone.calibrate.sheet.export import collect_prediction_figures
from crosszone.inputs.document import dump_yaml
from crosszone.inputs.scenario import read_scenario
from crosszone.predict.answer import answer


def predicted(loaded, **more):
    found = answer(loaded)
    text = dump_yaml(loaded.document.value)
    document = json.loads(found.prediction.model_dump_json())
    return {"kind": "predicted", "name": "kept", "scenario": text, "way": None, "document": document} | {
        "timeline": None,
        **more,
    }


def same(found, figures):
    for name, value in figures.items():
        if name == "breakdown_s":
            for part, seconds in value.items():
                assert found["breakdown_s"].get(part, 0.0) == pytest.approx(seconds, rel=1e-9, abs=1e-12), part
        elif value is None:
            assert name not in found
        elif isinstance(value, float):
            assert found[name] == pytest.approx(value, rel=1e-9), name
        else:
            assert found[name] == value


@pytest.mark.slow
def test_a_prediction_keeps_its_formulas_and_comes_back_the_same():
    loaded = CASES["sharded weights, no pipeline"]()
    data, formulas = export_result(predicted(loaded))
    assert formulas
    assert load_workbook(io.BytesIO(data))["Output"]["B3"].value.startswith("=")
    prediction = answer(loaded).prediction
    assert prediction.run.usd is not None
    same(read_workbook(data, "result.xlsx").figures, collect_prediction_figures(prediction))


def two_zones():
    zones = [{"name": name, "nodes": [H100]} for name in ("a", "b")]
    fields = {"name": "far", "model": "llama-2-7b"}
    job = {"seq_len": 4096, "global_batch": 64, "framework": "megatron"}
    cluster = {"zones": zones, "links": [{"between": ["a", "b"], "gbps": 10.0, "rtt_ms": 20.0}]}
    return read_scenario({**fields, "job": job, "cluster": cluster, "strategy": {"tp": 8, "pp": 2, "micro_batch": 1}})


def test_a_prediction_of_several_zones_keeps_its_formulas_and_comes_back_the_same():
    loaded = two_zones()
    data, formulas = export_result(predicted(loaded))
    assert formulas
    same(read_workbook(data, "result.xlsx").figures, collect_prediction_figures(answer(loaded).prediction))


def test_a_prediction_of_other_coefficients_is_not_given_formulas_of_today():
    result = predicted(CASES["sharded weights, no pipeline"]())
    step = result["document"]["step_time_s"]
    result["document"]["step_time_s"] = {key: value * 1.01 for key, value in step.items()}
    data, formulas = export_result(result)
    assert not formulas
    assert read_workbook(data, "r.xlsx").figures["step_time_s"] == pytest.approx(step["expected"] * 1.01, rel=1e-12)
    said = [row[0].value for row in load_workbook(io.BytesIO(data))["Output"].iter_rows(max_col=1)]
    assert any("Values only" in str(text) for text in said)


def test_a_result_done_another_way_is_predicted_that_way():
    result = predicted(CASES["sharded weights, no pipeline"](), way={"strategy": {"micro_batch": 4, "zero": 3}})
    assert not export_result(result)[1]  # the saved numbers are those of micro-batches of 2


def test_a_measured_result_comes_back_with_its_timeline():
    trace = {
        "kind": "measured",
        "name": "=1+1",
        "lanes": [{"id": "s", "name": "=cmd", "group": "stages"}],
        "spans": [
            {"lane": "s", "kind": "forward", "start_s": 0.0, "end_s": 1.25, "micro_batch": 0},
            {"lane": "s", "kind": "backward", "start_s": 1.25, "end_s": 3.0, "micro_batch": 0},
        ],
        "steps": [{"step": 7, "start_s": 0.0, "end_s": 3.5}],
    }
    figures = {"step_time_s": 3.5, "memory_gib": 40.25, "breakdown_s": {"compute": 3.0, "bubble": 0.5}}
    result = {"kind": "measured", "name": "run", "document": figures, "timeline": {"trace": json.dumps(trace)}}
    data, formulas = export_result(result)
    assert not formulas
    found = read_workbook(data, "r.xlsx")
    same(found.figures, figures)
    assert found.timeline["spans"] == trace["spans"]
    assert found.timeline["lanes"] == trace["lanes"]
    assert [one.step for one in found.steps] == [7]


def test_a_result_from_a_sheet_comes_back():
    kept = read_workbook(small(part_matmul=10.0, out_gpus=16), "book.xlsx").to_result()
    data, formulas = export_result(kept)
    assert not formulas
    found = read_workbook(data, "again.xlsx")
    same(found.figures, {"step_time_s": 16.0, "gpus": 16, "breakdown_s": {"matmul": 10.0}})
    assert found.phases_s == pytest.approx(kept["timeline"]["phases_s"])


def test_figures_of_a_prediction_are_those_of_its_outcome():
    prediction = answer(two_zones()).prediction
    outcome = build_outcome(prediction)
    for name, value in collect_prediction_figures(prediction).items():
        if name in outcome.figures and value is not None:
            assert value == outcome.figures[name].value
