"""Scenario files: read, written, read again; every mistake with file, line, field, limit and remedy."""

from __future__ import annotations

import json

import pytest
from hypothesis import given

from builders import fields, scenario, zone
from conftest import ROOT
from crosszone import InputError, load_scenario
from crosszone.inputs.document import dump_yaml
from crosszone.inputs.scenario import list_scenario_notices, parse_scenario, read_scenario
from effort import examples
from inputs.scenarios import scenario_fields

GOOD = """\
name: good
model: llama-2-7b
job:
  seq_len: 4096
  global_batch: 64
cluster:
  zones:
    - name: a
      nodes:
        - {count: 1, gpus: 8, gpu: a100-80gb-sxm}
"""


@pytest.mark.parametrize(
    ("model", "code", "level"),
    [("llama-2-7b", "sequence_over_context", "note"), ("bert-large", "sequence_over_positions", "warning")],
)
def test_a_sequence_longer_than_the_model_was_made_for_is_told(model, code, level):
    notices = list_scenario_notices(scenario(model=model, job={"seq_len": 8192, "global_batch": 64}))
    (remark,) = [notice for notice in notices if notice.field == "job.seq_len"]
    assert (remark.code, remark.level, remark.value) == (code, level, 8192)


def test_a_number_of_very_many_digits_is_not_written_out():
    with pytest.raises(InputError, match="a number of 42 hexadecimal digits"):
        scenario(job={"seq_len": 16**41, "global_batch": 64})


@pytest.mark.slow
@examples(300)
@given(scenario_fields)
def test_any_valid_scenario_round_trips(given_fields):
    first = load_scenario(given_fields)
    text = first.to_yaml()
    second = parse_scenario(text).scenario
    assert second == first
    assert second.to_yaml() == text
    third = parse_scenario(second.to_json()).scenario
    assert third == first
    assert third.to_json() == first.to_json()


def test_a_file_without_the_third_decimal_of_a_float_keeps_it():
    text = scenario(job={"seq_len": 128, "global_batch": 8, "tokens": 1.2345678901234567e11}).to_yaml()
    assert "123456789012.34567" in text


def test_names_of_built_in_entries_stay_names():
    written = load_scenario(fields(cluster={"zones": [zone("a", gpu="A100", region="Virginia")]})).to_fields()
    assert written["model"] == "llama-2-7b"
    assert written["cluster"]["zones"][0]["nodes"][0]["gpu"] == "a100-80gb-sxm"
    assert written["cluster"]["zones"][0]["region"] == "us-east-1"


def test_only_what_was_given_is_written():
    assert set(scenario(strategy={"tp": 2}).to_fields()["strategy"]) == {"tp"}


@pytest.mark.parametrize(
    ("size", "name"),
    [
        (7, "llama-2-7b"),
        (13, "llama-2-13b"),
        (70, "llama-2-70b"),
        (175, "gpt-3-175b"),
        (1, "llama-3.2-1b"),
        (30, "llama-33b"),
    ],
)
def test_a_size_picks_a_real_architecture_and_says_which(size, name):
    loaded = read_scenario(fields(model={"size_b": size}))
    assert loaded.scenario.model.name == name
    notice = loaded.notices[0]
    assert (notice.code, notice.params["name"]) == ("model_by_size", name)
    assert name in notice.message("en")
    assert name in notice.message("zh")


def test_a_size_far_from_any_model_is_a_warning():
    assert read_scenario(fields(model={"size_b": 5000})).notices[0].level == "warning"
    assert read_scenario(fields(model={"size_b": 7})).notices[0].level == "note"


def test_a_hugging_face_config_is_found_beside_the_scenario(tmp_path):
    config = ROOT / "tests" / "fixtures" / "hf" / "llama-3-8b.json"
    (tmp_path / "config.json").write_text(config.read_text())
    path = tmp_path / "s.yaml"
    path.write_text(dump_yaml(fields(model={"hf_config": "config.json"})))
    loaded = read_scenario(path)
    assert (loaded.scenario.model.kv_heads, loaded.scenario.model.ffn_hidden) == (8, 14336)
    assert loaded.notices[0].code == "model_by_config"
    assert load_scenario(loaded.scenario.to_fields()) == loaded.scenario


def test_a_cluster_may_live_in_a_file_of_its_own_and_export_is_identical(tmp_path):
    expected = load_scenario(ROOT / "examples" / "three-cities.yaml")
    cluster = dump_yaml({"cluster": expected.to_fields()["cluster"]})
    (tmp_path / "cluster.yaml").write_text(cluster)
    (tmp_path / "s.yaml").write_text(dump_yaml(fields(cluster={"file": "cluster.yaml"})))
    again = load_scenario(tmp_path / "s.yaml")
    assert again.cluster == expected.cluster
    assert dump_yaml({"cluster": again.to_fields()["cluster"]}) == cluster


def test_a_mistake_in_a_cluster_file_names_that_file(tmp_path):
    (tmp_path / "cluster.yaml").write_text("zones:\n  - name: a\n    nodes:\n      - {gpus: 0, gpu: a100}\n")
    (tmp_path / "s.yaml").write_text(dump_yaml(fields(cluster={"file": "cluster.yaml"})))
    with pytest.raises(InputError) as caught:
        load_scenario(tmp_path / "s.yaml")
    notice = caught.value.notices[0]
    assert notice.file.endswith("cluster.yaml")
    assert (notice.line, notice.field) == (4, "zones[0].nodes[0].gpus")


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "code"),
    [
        ("seq_len: 4096", "seq_len: four", 4, "job.seq_len", "must_be_whole"),
        ("seq_len: 4096", "seq_len: 0", 4, "job.seq_len", "must_be_at_least"),
        ("seq_len: 4096", "seq_len: -4096", 4, "job.seq_len", "must_be_at_least"),
        ("seq_len: 4096", "seq_len: .nan", 4, "job.seq_len", "must_be_whole"),
        ("seq_len: 4096", "seqlen: 4096", 4, "job.seqlen", "unknown_key"),
        ("  global_batch: 64\n", "", 3, "job.global_batch", "missing_key"),
        ("model: llama-2-7b", "model: llama-2-8b", 2, "model", "unknown_name"),
        ("model: llama-2-7b", "model: 7", 2, "model", "must_be_entry"),
        ("model: llama-2-7b", "model: null", 2, "model", "must_be_entry"),
        ("model: llama-2-7b", "model: {size_b: 0}", 2, "model", "size_out_of_range"),
        ("model: llama-2-7b", "model: {size_b: many}", 2, "model", "size_out_of_range"),
        ("model: llama-2-7b", "model: {size_b: 7, layers: 3}", 2, "model", "model_key_alone"),
        ("model: llama-2-7b", "model: {hf_config: nowhere.json}", 2, "model", "file_missing"),
        ("model: llama-2-7b", "model: DeepSeekV4 Flash", 2, "model", "unsupported_model"),
        ("gpus: 8", "gpus: .inf", 10, "cluster.zones[0].nodes[0].gpus", "must_be_whole"),
        ("gpu: a100-80gb-sxm", "gpu: [a100]", 10, "cluster.zones[0].nodes[0].gpu", "must_be_entry"),
        ("name: good", "name: good\nversion: 99", 2, "version", "version_unknown"),
        ("name: good", "name: good\nversion: one", 2, "version", "version_unknown"),
        ("name: good", "name: good\nversion: 0", 1, "gpusPerRegion", "missing_key"),
        ("name: good", 'name: "a\\u202eb"', 1, "name", "bad_name"),
        ("name: good", "name: good\nname: better", 2, "name", "duplicate_key"),
    ],
)
def test_a_mistake_names_file_line_field_and_remedy(tmp_path, old, new, line, field, code):
    assert old in GOOD
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_scenario(path)
    notice = caught.value.notices[0]
    assert (notice.code, notice.field, notice.line) == (code, field, line)
    assert notice.file == str(path)
    for language in ("en", "zh"):
        assert notice.hint(language)


def test_all_mistakes_are_told_at_once(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD.replace("4096", "zero").replace("64", "-1").replace("gpus: 8", "gpus: 0"))
    with pytest.raises(InputError) as caught:
        load_scenario(path)
    assert [n.line for n in caught.value.notices] == [4, 5, 10]


@pytest.mark.parametrize("text", ["", "[]", "3", "just words", "null", "{}"])
def test_what_is_no_scenario_at_all_says_so(text):
    with pytest.raises(InputError) as caught:
        parse_scenario(text)
    assert caught.value.notices[0].code in ("scenario_not_mapping", "missing_key")


def test_a_scenario_is_a_value():
    first, second = scenario(), scenario()
    assert first == second
    assert hash(first.job) == hash(second.job)
    assert len(repr(first.job)) < 60
    with pytest.raises(Exception, match="frozen"):
        first.name = "other"


def test_making_a_value_raises_our_own_errors():
    from crosszone import Strategy

    with pytest.raises(InputError) as caught:
        Strategy(tp=0)
    assert str(caught.value) == "tp = 0 must be at least 1. Give 1 or more."


def test_a_value_of_the_wrong_type_shows_its_type():
    for value, printed in (("4096", '"4096"'), (4096.0, "4096.0")):
        with pytest.raises(InputError) as caught:
            scenario(job={"seq_len": value, "global_batch": 64})
        assert f"job.seq_len = {printed} must be a whole number." in str(caught.value)


def test_mistakes_inside_a_hugging_face_config_name_that_file(tmp_path):
    (tmp_path / "config.json").write_text('{\n"model_type": "llama",\n"hidden_size": "wide"}')
    (tmp_path / "s.yaml").write_text(dump_yaml(fields(model={"hf_config": "config.json"})))
    with pytest.raises(InputError) as caught:
        load_scenario(tmp_path / "s.yaml")
    assert caught.value.notices[0].file.endswith("config.json")


@pytest.mark.parametrize("value", ['"64k"', '"64000"', "2560.5", "null", "[1]"])
def test_a_wrong_number_in_a_hugging_face_config_is_told_with_its_line(tmp_path, value):
    config = json.loads((ROOT / "tests" / "fixtures" / "hf" / "llama-3-8b.json").read_text())
    text = json.dumps(config, indent=1).replace(f'"vocab_size": {config["vocab_size"]}', f'"vocab_size": {value}')
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "s.yaml").write_text(dump_yaml(fields(model={"hf_config": "config.json"})))
    with pytest.raises(InputError) as caught:
        load_scenario(tmp_path / "s.yaml")
    notice = caught.value.notices[0]
    assert notice.file.endswith("config.json")
    assert "vocab_size" in text.splitlines()[notice.line - 1]
    assert "vocab_size" in notice.message()


def test_what_needs_no_strategy_is_judged_without_one():
    from crosszone.inputs.summary import describe

    wrong = fields(job={"seq_len": 4096, "global_batch": 64, "precision": "nvfp4"})
    assert not describe(read_scenario(wrong))["legal"]
    lost = fields(placement={"blocks": [{"zone": "nowhere", "count": 8}]})
    assert [n["code"] for n in describe(read_scenario(lost))["notices"]] == ["placement_zone"]


def test_fewer_replicas_than_fit_are_explained_and_the_idle_gpus_told():
    """100 samples do not divide by 16 replicas of 4 ranks on 64 GPUs: 10 is the most."""
    from crosszone.inputs.summary import describe

    wide = fields(
        job={"seq_len": 4096, "global_batch": 100},
        cluster={"zones": [zone("a", 8, count=8, region="beijing")]},
        strategy={"tp": 2, "pp": 2},
    )
    description = describe(read_scenario(wide))
    notices = {n["code"]: n for n in description["notices"]}
    assert description["strategy"]["settled"]["dp"] == 10
    assert notices["dp_chosen"]["level"] == "warning"
    assert "global_batch=96" in notices["dp_chosen"]["hint"]
    assert "24 GPUs of zone a stay idle" in notices["idle_spare"]["message"]


def test_bytes_of_state_are_those_of_the_framework_that_would_run_it():
    from crosszone.inputs.summary import describe

    by_megatron = describe(read_scenario(fields(strategy={"tp": 2, "pp": 2, "zero": 1})))["job"]
    assert (by_megatron["state_framework"], by_megatron["state_bytes_per_parameter"]["total"]) == ("megatron", 18)


def test_many_notices_of_one_kind_are_counted():
    from crosszone.inputs.summary import describe

    zones = [zone(f"z{n}", region={"lat": n * 1.0, "lon": 0.0}) for n in range(12)]
    notices = describe(read_scenario(fields(cluster={"zones": zones})))["notices"]
    assert len(notices) < 30
    assert any(n["code"] == "and_more" and n["value"] == 66 - 5 for n in notices)


def test_replacing_a_field_checks_it_again():
    assert scenario().job.replace(global_batch=128).global_batch == 128
    with pytest.raises(InputError):
        scenario().job.replace(global_batch=0)


def test_the_error_of_the_design_is_said_with_both_numbers():
    with pytest.raises(InputError) as caught:
        scenario(cluster={"zones": [zone("a", gpus=2000)]})
    assert str(caught.value) == "cluster.zones[0].nodes[0].gpus = 2000 must be at most 1024. Give 1024 or less."


def test_json_of_a_description_is_plain():
    from crosszone.inputs.summary import describe

    for path in sorted((ROOT / "examples").glob("*.yaml")):
        loaded = read_scenario(path)
        json.dumps(describe(loaded), allow_nan=False)


@pytest.mark.parametrize(
    ("gpu", "code", "gbps", "words"),
    [
        # DGX H100: eight NICs of 400 Gbit/s; no server is usual for L40S
        ("h100-80gb-sxm", "nic_usual_machine", 8 * 400, ("3200", "400", "nvidia-dgx-basepod")),
        ("l40s", "nic_example", 100, ("100", "l40s")),
    ],
)
def test_an_assumed_nic_is_told_with_its_rate_and_where_it_comes_from(gpu, code, gbps, words):
    nodes = [{"count": 2, "gpus": 8, "gpu": gpu}]
    notices = list_scenario_notices(scenario(cluster={"zones": [{"name": "a", "nodes": nodes}]}))
    assumed = [notice for notice in notices if notice.code.startswith("nic_")]
    assert [(notice.code, notice.value) for notice in assumed] == [(code, gbps)]
    for language in ("en", "zh"):
        sentence = assumed[0].as_dict(language)["message"]
        assert all(word in sentence for word in words), sentence
