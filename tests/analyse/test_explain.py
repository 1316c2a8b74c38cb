"""Explanations: every shown number opens, and what opens gives the number when it is worked out."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given

from arithmetic import FUNCTIONS, worked_out
from builders import scenario
from conftest import ROOT
from crosszone.analyse.explain import explain, list_figures, load_formulas, read_value
from crosszone.analyse.explain.description import load_rules
from crosszone.errors import InvalidError
from crosszone.inputs.scenario import load_scenario
from crosszone.predict.predict import build_prediction, build_predictor
from crosszone.text import load_texts
from effort import examples
from predict.given import predictors

EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.yaml"))


def opened(p, first=None):
    """Every figure of a prediction and all that can be opened from there, each explained once."""
    prediction = build_prediction(p)
    waiting, found = list(first or list_figures(prediction)), {}
    while waiting:
        path = waiting.pop()
        if path not in found:
            found[path] = one = explain(p, prediction, path)
            waiting += [part.figure for part in (*one.inputs, *one.lines) if part.figure]
    return prediction, found


def close(found, value, one):
    """Equal to 1e-9, or where terms cancel to 1e-12 of the largest of them."""
    largest = max((abs(part.value) for part in one.inputs if part.unit == one.unit), default=0.0)
    return math.isclose(found, value, rel_tol=1e-9, abs_tol=1e-12 * largest)


def works_out(p):
    prediction, found = opened(p)
    for path, one in found.items():
        assert close(worked_out(one.worked), one.value, one), (path, one.worked)
        assert one.result == pytest.approx(worked_out(one.worked), rel=1e-12)
        assert one.formula in load_formulas()
        if one.lines:
            factor = 2.0**30 if re.fullmatch(r"memory_gib\.stages\[\d+\]\.(parts\.\w+|host)", path) else 1.0
            assert close(math.fsum(line.value for line in one.lines) / factor, one.value, one), path
        named = {part.name for part in one.inputs}
        assert set(re.findall(r"(?<![\w.])[a-z]\w*", one.symbols)) - set(FUNCTIONS) <= named, path
    for path in list_figures(prediction):
        assert found[path].value == pytest.approx(read_value(prediction, path), rel=1e-12)
    return prediction, found


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_figure_of_an_example_opens_and_works_out(name):
    """F83: [V3] [V6] [M7] [A1] [E1] [E2] [E3] by hand."""
    prediction, found = works_out(build_predictor(load_scenario(ROOT / "examples" / f"{name}.yaml")))
    assert {f"breakdown_s.{part}" for part in prediction.breakdown_s} <= set(found)
    assert len(found) > 100


@pytest.mark.slow
@examples(40)
@given(predictors())
def test_every_figure_of_any_scenario_works_out(p):
    works_out(p)


@pytest.mark.parametrize(
    ("model", "job", "strategy"),
    [
        (
            "deepseek-v2-lite",
            {"precision": "fp8"},
            {"tp": 2, "ep": 4, "micro_batch": 2, "zero": 1, "sequence_parallel": True},
        ),
        ("gpt-oss-20b", {}, {"tp": 2, "ep": 8, "recompute": "full", "zero": 1, "sequence_parallel": True}),
        ("llama-2-7b", {"precision": "bf16-amp", "framework": "fsdp"}, {"zero": 3, "offload": "optimizer+weights"}),
        ("llama-2-7b", {}, {"cp": 4, "tp": 2, "recompute": "full", "sequence_parallel": True}),
        ("mixtral-8x7b", {}, {"tp": 4, "pp": 2, "interleave": 2, "schedule": "interleaved", "zero": 1}),
        (
            "llama-2-7b",
            {},
            {"pp": 4, "tp": 2, "communication": {"overlap_gradients": False}, "schedule": "zero-bubble"},
        ),
        ("bert-large", {"seq_len": 512, "precision": "fp16", "framework": "deepspeed"}, {"zero": 2, "micro_batch": 4}),
        ("falcon-40b", {}, {"tp": 8, "pp": 2, "communication": {"overlap_tensor": True, "algorithm": "tree"}}),
        ("nemotron-h-8b", {}, {"tp": 4, "sequence_parallel": True}),
        (
            "llama-2-7b",
            {"software": {"launch": "full-graph", "recompute_modules": ["mlp", "layernorm"]}},
            {"tp": 2, "recompute": "selective", "sequence_parallel": True},
        ),
        ("llama-2-7b", {"software": {"attention": "triton", "context_exchange": "all-to-all"}}, {"tp": 2, "cp": 2}),
    ],
)
def test_other_models_precisions_and_splits_work_out_too(model, job, strategy):
    zones = [{"name": "a", "nodes": [{"count": 4, "gpus": 8, "gpu": "h100-sxm", "memory_gib": 2000.0}]}]
    job = {"seq_len": 4096, "global_batch": 256, "tokens": 1e11} | job
    works_out(build_predictor(scenario(model=model, job=job, strategy=strategy, cluster={"zones": zones})))


def test_mfu_by_hand():
    """[V6] A step of 4096 x 64 tokens of LLaMA-2-7B on 8 A100 of 312 TFLOP/s."""
    p = build_predictor(scenario(strategy={"zero": 3, "recompute": "full"}, job={"seq_len": 4096, "global_batch": 64}))
    prediction = build_prediction(p)
    one = explain(p, prediction, "mfu")
    inputs = {part.name: part for part in one.inputs}
    # 2 x (weights of all matrices + head) + attention of 2048 tokens seen: 32 x (4 x 4096^2 + 3 x 4096 x 11008) ...
    weights = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096
    attention = 32 * 2 * 4096 * 2 * 2048
    flops = 3 * (2 * weights + attention) * 4096 * 64
    assert inputs["model_flops"].value == pytest.approx(flops, rel=1e-12)
    assert inputs["peak_flops"].value == 8 * 312e12
    assert inputs["model_flops"].figure == "model_flops"
    assert one.value == pytest.approx(flops / (8 * 312e12 * prediction.step_time_s.expected), rel=1e-12)
    assert one.symbols == "model_flops / (peak_flops * step_time_s)"
    assert one.low == prediction.mfu.low < one.value < one.high


def test_inputs_say_where_they_come_from():
    p = build_predictor(load_scenario(ROOT / "examples" / "three-cities.yaml"))
    _, found = opened(p, ["breakdown_s.matmul", "run.usd", "memory_gib.peak"])
    every = {part.name: part for one in found.values() for part in one.inputs}
    assert (every["tp"].origin, every["tp"].where) == ("scenario", "strategy.tp")
    assert every["tile"].origin == "profile"
    assert 0 < every["tile"].error < 1
    assert every["flops_path"].origin == "catalogue"
    assert every["flops_path"].where.startswith("gpus/a100-80gb-sxm [")
    assert (every["usd_per_hour"].origin, every["usd_per_hour"].figure) == ("figure", "run.usd_per_hour")


def test_what_is_simulated_says_so():
    p = build_predictor(load_scenario(ROOT / "examples" / "three-cities.yaml"))
    one = explain(p, build_prediction(p), "breakdown_s.bubble")
    (span,) = (part for part in one.inputs if part.origin == "simulated")
    assert "[S3]" in span.where
    assert span.value == pytest.approx(float(p.step.pipelines.span_s[p.row]))
    assert any("[S3]" in note for note in one.notes)


def test_sums_of_rows_by_kind_tier_and_link():
    """[A1]"""
    p = build_predictor(load_scenario(ROOT / "examples" / "three-cities.yaml"))
    prediction = build_prediction(p)
    rows = [row for row in prediction.communication if " > " in row.link]
    one = explain(p, prediction, "traffic.tiers.between zones.busy_s")
    assert one.value == pytest.approx(sum(row.busy_s for row in rows))
    by_link = explain(p, prediction, f"traffic.links.{rows[0].link}.bytes_per_step")
    assert by_link.value == pytest.approx(sum(row.bytes_per_step for row in rows if row.link == rows[0].link))


def test_experts_whose_stages_lie_in_one_zone_or_two_send_their_own_copies():
    """[X7] Where only one stage crosses zones, the ring of experts is as long as there: bytes of the row work out."""
    job = {"seq_len": 4096, "global_batch": 1024}
    given_ = load_scenario(ROOT / "examples" / "three-cities.yaml").to_fields()
    fields = {**given_, "model": "gpt-oss-20b", "job": job, "strategy": {"tp": 4, "pp": 2, "zero": 1}}
    p = build_predictor(load_scenario(fields))
    rows = [f"communication[{at}].bytes_per_step" for at, _ in enumerate(build_prediction(p).communication)]
    _, found = opened(p, rows)
    assert all(close(one.result, one.value, one) for one in found.values())


@pytest.mark.parametrize(
    "figure",
    [
        "",
        "nothing",
        "mfu.mid",
        "breakdown_s.nothing",
        "memory_gib.stages[9].total",
        "communication[99].busy_s",
        "communication[0].x",
        "traffic.links.a > b.busy_s",
        "run.usd",
        "run.co2_kg.low",
        "stage[0].x",
        "stage[99999999999].head_s",
    ],
)
def test_an_unknown_figure_is_refused(figure):
    p = build_predictor(scenario(strategy={"zero": 3}))
    with pytest.raises(InvalidError) as refused:
        explain(p, build_prediction(p), figure)
    assert refused.value.notices[0].code == "figure_unknown"


def test_both_languages_have_every_label():
    p = build_predictor(load_scenario(ROOT / "examples" / "mixtral.yaml"))
    prediction = build_prediction(p)
    for path in list_figures(prediction):
        english, chinese = (explain(p, prediction, path, language) for language in ("en", "zh"))
        assert english.label
        assert english.worked == chinese.worked
        assert re.search(r"[\u4e00-\u9fff]", chinese.label) or chinese.label in ("MFU", "HFU", "logits")


def keys_of(text):
    """Keys of the texts that a label of a rule can become: a group of its name may be anything."""
    return re.compile(re.sub(r"\\\{\w+\\\}", r"[\\w ]*", re.escape(text)))


def test_every_text_of_the_figures_is_used_and_there():
    folder = ROOT / "src" / "crosszone" / "analyse"
    source = "\n".join(path.read_text("utf-8") for path in [*(folder / "explain").glob("*.py"), folder / "radar.py"])
    asked = [
        keys_of(text) for rule in load_rules() for text in (rule.label, *rule.params.values(), *rule.note, rule.zero)
    ]
    asked += [keys_of(text) for text in re.findall(r'Words\(\s*f?"([^"]+)"', source)]
    asked += [keys_of(text) for text in re.findall(r'f?"((?:kind|tier|sum|link|axis_why|axis|way)_[^"]*)"', source)]
    known = set(load_texts("en")["figure"])
    assert {key for key in known if not any(pattern.fullmatch(key) for pattern in asked)} == set()
    plain = {
        text for rule in load_rules() for text in (rule.label, *rule.params.values(), *rule.note, rule.zero) if text
    }
    missing = {text for text in plain if "{" not in text} - known - set(load_texts("en")["label"])
    assert missing <= {"note_egress", "note_launches", "note_links", "note_bytes"}  # each becomes one of several


def test_the_formulas_are_those_of_the_docs():
    text = (ROOT / "docs" / "formulas.md").read_text("utf-8")
    assert list(load_formulas()) == re.findall(r"^### \[(\w+)\]", text, re.MULTILINE)
    v6 = load_formulas()["V6"]
    assert (v6.title, v6.part) == ("MFU and HFU", "Step")
    assert v6.markdown.startswith("Model FLOPs of a step [F1] /")
    assert "###" not in "".join(one.markdown for one in load_formulas().values())
