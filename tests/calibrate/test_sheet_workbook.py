"""A workbook computes what `predict` does, and can be edited."""

from __future__ import annotations

import copy
import io
import re
from dataclasses import replace

import pytest
from openpyxl import load_workbook

from calibrate.sheets import CASES, H100, edited, loaded
from conftest import ROOT
from crosszone.calibrate.sheet import build_workbook, read_workbook
from crosszone.calibrate.sheet.reading import WorkbookCells, open_workbook
from crosszone.calibrate.sheet.workbook import MOST_PASSES, read_example
from crosszone.errors import InvalidError
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.scenario import read_scenario
from crosszone.predict.answer import answer, build_predictor_from
from crosszone.predict.predict import build_prediction
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
    found = read_workbook(build_workbook(scenario), "book.xlsx")
    prediction = answer(scenario).prediction
    agree(found, prediction)
    assert found.notices == ()
    if prediction.run.days is not None:
        assert found.figures["days"] == pytest.approx(prediction.run.days.expected, rel=1e-9)


def three_cities():
    return copy.deepcopy(read_scenario(str(ROOT / "examples" / "three-cities.yaml")).document.value)


def single_node():
    return copy.deepcopy(read_scenario(str(ROOT / "examples" / "single-node.yaml")).document.value)


def three_continents():
    document = copy.deepcopy(read_scenario(str(ROOT / "examples" / "three-continents.yaml")).document.value)
    names = [zone["name"] for zone in document["cluster"]["zones"]]
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    document["cluster"]["links"] = [{"between": list(pair), "gbps": 10.0, "rtt_ms": 90.0} for pair in pairs]
    return document


def of_ocean(document):
    document["cluster"]["links"][0] |= {"gbps": 2.0, "rtt_ms": 150.0}


def of_link(document):
    for link in document["cluster"]["links"]:
        link |= {"gbps": 5.0, "rtt_ms": 50.0}


CHANGES = {
    "sequence length": (single_node, {"seq_len": 2048}, lambda d: d["job"].update(seq_len=2048)),
    "batch": (single_node, {"global_batch": 256}, lambda d: d["job"].update(global_batch=256)),
    "price": (
        single_node,
        {"price_of_a100_80gb_sxm_lab": 1.25},
        lambda d: d["cluster"]["zones"][0]["nodes"][0].update(usd_per_gpu_hour=1.25),
    ),
    "link between zones": (
        three_cities,
        {
            "zone_gbps_beijing_a_shanghai_a": 5.0,
            "zone_gbps_shanghai_a_beijing_a": 5.0,
            "rtt_ms_beijing_a_shanghai_a": 50.0,
        },
        of_link,
    ),
    "link of local updates": (
        three_continents,
        {"zone_gbps_virginia_frankfurt": 2.0, "rtt_ms_virginia_frankfurt": 150.0},
        of_ocean,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_changed_inputs_come_to_the_prediction_of_the_changed_scenario(change):
    given, cells, edit = CHANGES[change]
    before, after = given(), given()
    edit(after)
    data = build_workbook(read_scenario(before))
    named = load_workbook(io.BytesIO(data)).defined_names
    zone = before["cluster"]["zones"][0]["name"]
    cells = {name.replace("_lab", f"_{zone}".replace("-", "_")): value for name, value in cells.items()}
    assert set(cells) <= set(named)
    prediction = answer(read_scenario(after)).prediction
    found = read_workbook(edited(data, cells), "book.xlsx")
    agree(found, prediction)
    if prediction.run.usd is not None:
        assert found.figures["usd"] == pytest.approx(prediction.run.usd.expected, rel=1e-9)


def own_figures(**changes):
    """A model and a GPU of one's own: every figure of them can be changed in the scenario."""
    model = catalogue().model("llama-2-7b").model_dump(mode="json") | {"name": "own"}
    del model["embedding_width"]  # follows the hidden width
    gpu = catalogue().gpu("a100-80gb-sxm").model_dump(mode="json") | {"name": "own-gpu"}
    nodes = {"count": 2, "gpus": 8, "gpu": gpu, "nic_gbps": changes.pop("nic_gbps", 800.0)}
    gpu["memory_gb_per_s"] = changes.pop("memory_gb_per_s", gpu["memory_gb_per_s"])
    gpu["dense_tflops"]["bf16"] = changes.pop("bf16", gpu["dense_tflops"]["bf16"])
    strategy = {"tp": 2, "pp": 2, "dp": 4, "zero": 1} | {"micro_batch": changes.pop("micro_batch", 1)}
    job = {"global_batch": 32 * strategy["micro_batch"], "tokens": 2e10}
    return loaded(model | changes, job, nodes, strategy)


FIGURES = {
    "hidden": {"hidden": 5120},
    "ffn_hidden": {"ffn_hidden": 14336},
    "vocab": {"vocab": 64000},
    "micro_batch": {"micro_batch": 2},
    "dense_tflops_own_gpu_bf16": {"bf16": 400.0},
    "memory_gb_per_s_own_gpu": {"memory_gb_per_s": 1500.0},
    "nic_gbps_a_0": {"nic_gbps": 200.0},
}


@pytest.mark.slow
@pytest.mark.parametrize("cell", FIGURES)
def test_a_changed_width_or_rate_moves_everything_that_follows_from_it(cell):
    (value,) = FIGURES[cell].values()
    found = read_workbook(edited(build_workbook(own_figures()), {cell: value}), "book.xlsx")
    prediction = answer(own_figures(**FIGURES[cell])).prediction
    assert prediction.step_time_s.expected != answer(own_figures()).prediction.step_time_s.expected
    agree(found, prediction)


def test_a_changed_coefficient_comes_to_the_prediction_with_that_coefficient():
    scenario = read_example()
    p = build_predictor_from(scenario)
    k = p.coefficients.matmul
    found = read_workbook(edited(build_workbook(scenario), {"k_matmul": 0.9 * k}), "book.xlsx")
    p.parts["coefficients"] = replace(p.coefficients, matmul=0.9 * k)
    agree(found, build_prediction(p))


ZONES = {"links": [{"between": ["a", "b"], "gbps": 10.0, "rtt_ms": 20.0}]}


def two_zones(framework, strategy):
    zones = [{"name": name, "nodes": [H100]} for name in ("a", "b")]
    job = {"seq_len": 4096, "global_batch": 128, "framework": framework, "tokens": 1e10}
    cluster = ZONES | {"zones": zones}
    return read_scenario({"name": "z", "model": "llama-2-7b", "job": job, "cluster": cluster, "strategy": strategy})


PIPELINE = {"pp": 4, "dp": 8, "micro_batch": 1}
COVERED = {
    "two zones": lambda: two_zones("megatron", {"tp": 8, "pp": 2, "dp": 4, "micro_batch": 1}),
    "local updates": lambda: two_zones(
        "fsdp", {"micro_batch": 1, "dp": 64, "local_update": {"steps": 50, "fragments": 2, "delay": 1}}
    ),
    "uneven micro-batches": lambda: two_zones(
        "ddp", {"dp": 64, "micro_batch": 1, "replica_micro_batches": [3] * 32 + [1] * 32}
    ),
    "interleaved": lambda: loaded("llama-2-7b", {}, H100, PIPELINE | {"tp": 1, "interleave": 2}),
    **{
        schedule: lambda schedule=schedule, chunks=chunks: loaded(
            "llama-2-7b", {"framework": "fsdp"}, H100, PIPELINE | {"schedule": schedule, "interleave": chunks}
        )
        for schedule, chunks in (("gpipe", 1), ("zero-bubble", 1), ("zbv", 2), ("dualpipev", 2))
    },
    "delay-aware": lambda: loaded("llama-2-7b", {}, H100, PIPELINE | {"schedule": "delay-aware"}),
    "mixed GPUs": lambda: read_scenario(str(ROOT / "examples" / "mixed-gpus.yaml")),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", mostly_long(COVERED, "two zones", "interleaved", "zbv"))
def test_whatever_predict_takes_has_a_workbook(case):
    scenario = COVERED[case]()
    found = read_workbook(build_workbook(scenario), "book.xlsx")
    agree(found, answer(scenario).prediction)
    assert found.notices == ()


def test_a_pipeline_too_long_to_lay_out_stands_as_simulated_and_says_when_it_no_longer_holds():
    strategy = {"tp": 4, "pp": 8, "dp": 1, "micro_batch": 1}
    scenario = loaded("llama-2-7b", {"global_batch": MOST_PASSES // 4}, H100, strategy)
    data = build_workbook(scenario)
    agree(read_workbook(data, "book.xlsx"), answer(scenario).prediction)
    changed = read_workbook(edited(data, {"seq_len": 2048}), "book.xlsx")
    assert "check_simulated" in [notice.value for notice in changed.notices]


@pytest.mark.slow
def test_a_custom_formula_in_the_middle_moves_what_rests_on_it():
    plain = read_workbook(build_workbook(read_example()), "book.xlsx")
    found = read_workbook(edited(build_workbook(read_example()), {"tp_collective_s": "=0"}), "book.xlsx")
    assert found.figures["breakdown_s"]["tensor"] == 0
    saved = plain.figures["breakdown_s"]["tensor"]
    assert saved > 0
    assert found.figures["step_time_s"] < plain.figures["step_time_s"] - saved / 2


def test_a_check_says_that_a_batch_does_not_divide():
    scenario = CASES["sharded weights, no pipeline"]()
    data = edited(build_workbook(scenario), {"global_batch": 72, "micro_batch": 5})
    assert WorkbookCells(open_workbook(data, "b"), "b").read_named("check_batch") == "wrong"
    with pytest.raises(InvalidError) as refused:
        read_workbook(data, "book.xlsx")
    assert refused.value.notices[0].code == "sheet_no_count"


@pytest.mark.parametrize("case", mostly_long(CASES, "experts"))
def test_the_file_holds_what_every_formula_comes_to(case):
    data = build_workbook(CASES[case]())
    cells, kept = WorkbookCells(open_workbook(data, "b"), "b"), load_workbook(io.BytesIO(data), data_only=True)
    count = 0
    for sheet in load_workbook(io.BytesIO(data)):
        for row in sheet.iter_rows():
            for cell in row:
                if cell.data_type == "f":
                    value = kept[sheet.title][cell.coordinate].value
                    computed = cells.evaluate((sheet.title, cell.row, cell.column))
                    assert value == (computed if isinstance(computed, str) else pytest.approx(computed, rel=1e-9))
                    count += 1
    assert count > 150


def test_only_cells_that_may_be_changed_are_yellow():
    book = load_workbook(io.BytesIO(build_workbook(read_example())))
    colours = {row[3].value: row[1].fill.fgColor.rgb[-6:] for row in book["Input"].iter_rows() if row[3].value}
    assert all(colours[name] == "FFF4CE" for name in ("seq_len", "micro_batch", "hidden", "nic_gbps_lab_0"))
    assert all(colours[name] != "FFF4CE" for name in ("tp", "pp", "dp", "schedule", "stack", "global_batch"))


@pytest.mark.slow
def test_every_name_leads_to_a_cell_and_every_formula_is_live():
    book = load_workbook(io.BytesIO(build_workbook(read_example())))
    for name, defined in book.defined_names.items():
        sheet, _, cells = defined.attr_text.rpartition("!")
        assert book[sheet.strip("'")][cells.replace("$", "")], name
    output = [row[1].value for row in book["Output"].iter_rows() if row[2].value == "s"]
    assert len(output) > 20
    assert all(isinstance(value, str) and value.startswith("=") for value in output)


def test_names_are_such_as_spreadsheets_allow():
    book = load_workbook(io.BytesIO(build_workbook(read_example())))
    names = list(book.defined_names)
    assert len(names) > 200
    assert [name for name in names if not re.fullmatch(r"[a-z][a-z0-9_]*", name)] == []
    assert [name for name in names if re.fullmatch(r"[a-z]{1,3}[0-9]+|r|c|r[0-9]*c[0-9]*", name)] == []  # cells
    formulas = [cell.value for sheet in book for row in sheet.iter_rows() for cell in row if cell.data_type == "f"]
    assert max(map(len, formulas)) < 1000
    assert len(formulas) > 300


def test_chinese_workbooks_speak_chinese():
    book = load_workbook(io.BytesIO(build_workbook(read_example(), "zh")))
    labels = [row[0].value for row in book["Input"].iter_rows(max_col=1) if row[0].value]
    assert "隐藏层宽度" in labels
    assert "hidden width" not in labels


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
    book = load_workbook(io.BytesIO(build_workbook(scenario)))
    sheet, _, cell = book.defined_names["scenario_name"].attr_text.rpartition("!")
    assert book[sheet.strip("'")][cell.replace("$", "")].data_type == "s"
