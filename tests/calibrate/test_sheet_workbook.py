"""A workbook computes what `predict` does, and can be edited."""

from __future__ import annotations

import io
import re

import pytest
from openpyxl import load_workbook

from calibrate.sheets import CASES, H100, edited, loaded
from crosszone.calibrate.sheet import read_workbook, workbook_of
from crosszone.calibrate.sheet.coverage import MOST_CELLS
from crosszone.calibrate.sheet.example import example
from crosszone.errors import InvalidError
from crosszone.inputs.scenario import read_scenario
from crosszone.predict.answer import answer
from effort import mostly_long

pytestmark = pytest.mark.slow


def agree(found, prediction):
    assert found.figures["step_time_s"] == pytest.approx(prediction.step_time_s.expected, rel=1e-9)
    assert found.figures["memory_gib"] == pytest.approx(prediction.memory_gib.peak.expected, rel=1e-9)
    assert found.figures["mfu"] == pytest.approx(prediction.mfu.expected, rel=1e-9)
    assert found.figures["tokens_per_s"] == pytest.approx(prediction.tokens_per_s.expected, rel=1e-9)
    assert found.figures["gpus"] == prediction.gpus
    for part, seconds in prediction.breakdown_s.items():
        assert found.figures["breakdown_s"].get(part, 0.0) == pytest.approx(seconds, rel=1e-6, abs=1e-12), part


@pytest.mark.slow
@pytest.mark.parametrize("case", mostly_long(CASES, "tensor and pipeline parallel", "experts"))
def test_the_cells_come_to_what_predict_says(case):
    scenario = CASES[case]()
    found = read_workbook(workbook_of(scenario), "book.xlsx")
    prediction = answer(scenario).prediction
    agree(found, prediction)
    assert found.notices == ()
    if prediction.run.days is not None:
        assert found.figures["days"] == pytest.approx(prediction.run.days.expected, rel=1e-9)


@pytest.mark.slow
def test_changed_inputs_come_to_the_prediction_of_the_changed_scenario():
    job = {"tokens": 2.0e10, "global_batch": 48, "precision": "fp8"}
    strategy = {"tp": 2, "pp": 4, "dp": 2, "micro_batch": 2, "recompute": "full", "zero": 0}
    other = loaded("llama-3-8b", job, {"count": 2, "gpus": 8, "gpu": "h100-80gb-sxm", "nic_gbps": 3200.0}, strategy)
    changes = {"model": "llama-3-8b", "global_batch": 48, "precision": "fp8", "gpu": "h100-80gb-sxm"}
    changes |= {"nic_gbps_node": 3200, "tp": 2, "pp": 4, "dp": 2, "micro_batch": 2, "recompute": "full", "zero": 0}
    data = edited(workbook_of(example()), {**changes, "sequence_parallel": "no"})
    agree(read_workbook(data, "book.xlsx"), answer(other).prediction)


@pytest.mark.slow
def test_a_custom_formula_in_the_middle_moves_what_rests_on_it():
    plain = read_workbook(workbook_of(example()), "book.xlsx")
    data = edited(workbook_of(example()), {"tp_exposed_s": "=0", "out_other_s": "=2*fixed_s"})
    found = read_workbook(data, "book.xlsx")
    assert found.figures["breakdown_s"]["tensor"] == 0
    saved = plain.figures["breakdown_s"]["tensor"]
    assert saved > 0
    assert found.figures["step_time_s"] < plain.figures["step_time_s"] - saved / 2


@pytest.mark.slow
def test_checks_say_that_changed_inputs_do_not_go_together():
    found = read_workbook(edited(workbook_of(example()), {"dp": 4}), "book.xlsx")
    assert [notice.value for notice in found.notices] == ["check_gpus"]
    assert "there are enough GPUs" in found.notices[0].message()


def validations(book):
    found = {}
    for rule in book["Input"].data_validations.dataValidation:
        for cell in rule.sqref.ranges:
            found[cell.coord] = rule.formula1
    return found


def test_inputs_have_drop_downs_that_lead_to_the_tables():
    book = load_workbook(io.BytesIO(workbook_of(example())))
    rules = validations(book)

    def of(name):
        return rules[book.defined_names[name].attr_text.rpartition("!")[2].replace("$", "")]

    for name, table in (("gpu", "gpus"), ("model", "models"), ("framework", "frameworks"), ("stack", "stacks")):
        assert of(name) == f"{table}_name"
        sheet, _, cells = book.defined_names[f"{table}_name"].attr_text.rpartition("!")
        listed = [row[0].value for row in book[sheet.strip("'")][cells.replace("$", "")]]
        assert len(listed) > 4
        assert all(listed)
    assert of("recompute") == '"none,selective,full"'
    assert of("zero") == '"0,1,2,3"'
    assert of("schedule") == '"1f1b"'


@pytest.mark.slow
def test_every_name_leads_to_a_cell_and_every_formula_is_live():
    book = load_workbook(io.BytesIO(workbook_of(example())))
    for name, defined in book.defined_names.items():
        sheet, _, cells = defined.attr_text.rpartition("!")
        assert book[sheet.strip("'")][cells.replace("$", "")], name
    output = [row[1].value for row in book["Output"].iter_rows() if row[2].value == "s"]
    assert len(output) > 20
    assert all(isinstance(value, str) and value.startswith("=") for value in output)


def test_names_are_such_as_spreadsheets_allow():
    book = load_workbook(io.BytesIO(workbook_of(example())))
    names = list(book.defined_names)
    assert len(names) > 400
    assert [name for name in names if not re.fullmatch(r"[a-z][a-z0-9_]*", name)] == []
    assert [name for name in names if re.fullmatch(r"[a-z]{1,3}[0-9]+|r|c|r[0-9]*c[0-9]*", name)] == []  # cells
    formulas = [cell.value for sheet in book for row in sheet.iter_rows() for cell in row if cell.data_type == "f"]
    assert max(map(len, formulas)) < 1000
    assert len(formulas) > 800


def test_chinese_workbooks_speak_chinese():
    book = load_workbook(io.BytesIO(workbook_of(example(), "zh")))
    labels = [row[0].value for row in book["Input"].iter_rows(max_col=1) if row[0].value]
    assert "序列长度" in labels
    assert "Sequence length" not in labels


def test_a_name_that_looks_like_a_formula_stays_a_text():
    scenario = read_scenario(
        {
            "name": '=HYPERLINK("http://x","y")',
            "model": "llama-2-7b",
            "job": {"seq_len": 1024, "global_batch": 8, "framework": "ddp"},
            "cluster": {"zones": [{"name": "a", "nodes": [{"gpus": 8, "gpu": "h200-141gb-sxm"}]}]},
            "strategy": {"micro_batch": 1},
        }
    )
    book = load_workbook(io.BytesIO(workbook_of(scenario)))
    sheet, _, cell = book.defined_names["scenario_name"].attr_text.rpartition("!")
    assert book[sheet.strip("'")][cell.replace("$", "")].data_type == "s"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"interleave": 2}, "strategy.interleave"),
        ({"schedule": "delay-aware"}, "strategy.schedule"),
    ],
)
def test_schedules_beyond_1f1b_are_refused_by_their_field(changes, field):
    strategy = {"tp": 2, "pp": 4, "dp": 4, "micro_batch": 1} | changes
    with pytest.raises(InvalidError) as refused:
        workbook_of(loaded("llama-2-7b", {"framework": "megatron"}, H100, strategy))
    assert [(notice.code, notice.field) for notice in refused.value.notices] == [("sheet_not_covered", field)]


def test_several_zones_are_refused():
    zones = [{"name": name, "nodes": [H100]} for name in ("a", "b")]
    fields = {"model": "llama-2-7b", "job": {"seq_len": 4096, "global_batch": 64, "framework": "megatron"}}
    cluster = {"zones": zones, "links": [{"between": ["a", "b"], "gbps": 10.0, "rtt_ms": 20.0}]}
    scenario = read_scenario({**fields, "cluster": cluster, "strategy": {"tp": 8, "dp": 8, "micro_batch": 1}})
    with pytest.raises(InvalidError) as refused:
        workbook_of(scenario)
    assert refused.value.notices[0].field == "cluster.zones"
    assert "2" in refused.value.notices[0].message()


def test_a_pipeline_longer_than_the_grid_is_refused_with_the_limit():
    strategy = {"tp": 4, "pp": 8, "dp": 1, "micro_batch": 1}
    with pytest.raises(InvalidError) as refused:
        workbook_of(loaded("llama-2-7b", {"global_batch": 256}, H100, strategy))
    notice = refused.value.notices[0]
    assert notice.code == "sheet_too_long"
    assert notice.params["limit"] == MOST_CELLS < 8 * 256
