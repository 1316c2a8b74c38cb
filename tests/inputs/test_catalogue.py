"""Models and regions: names, aliases, sources."""

from __future__ import annotations

import csv
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from crosszone import Region, catalogue
from crosszone.errors import UnknownNameError
from crosszone.inputs.catalogue import Catalogue, ModelEntry
from crosszone.inputs.catalogue.entries import normalize_name

SHAPED = re.compile(r"[a-z0-9][a-z0-9.+-]*")


@pytest.mark.parametrize(("kind", "least"), [("gpus", 30), ("models", 60), ("regions", 60)])
def test_names_are_lower_case_with_hyphens_and_many(kind, least):
    names = catalogue().names(kind)
    assert len(names) >= least
    assert [name for name in names if not SHAPED.fullmatch(name)] == []


@pytest.mark.parametrize(
    ("kind", "spelling", "name"),
    [
        ("models", "LLaMA2 70B", "llama-2-70b"),
        ("models", "Gpt3", "gpt-3-175b"),
        ("models", "GPT-3 XL", "gpt-3-xl"),
        ("gpus", "A100", "a100-80gb-sxm"),
        ("gpus", "H100-80GB", "h100-80gb-sxm"),
        ("gpus", "V100", "v100-32gb-sxm"),
        ("regions", "Oregon", "us-west-2"),
        ("regions", "北京", "beijing"),
        ("regions", "北京可用区A", "cn-beijing"),
    ],
)
def test_people_may_spell_names_their_way(kind, spelling, name):
    assert catalogue().entry(kind, spelling).name == name


def test_the_calculator_models_are_all_there():
    """The list of the IIIS-Turing calculator; GPT-3 medium and large have 24 layers in the GPT-3 paper, table 2.1."""
    layers = {
        "llama-7b": 32, "llama-13b": 40, "llama-33b": 60, "llama-65b": 80, "llama-2-70b": 80, "gpt-3-175b": 96,
        "gpt-3-small": 12, "gpt-3-medium": 24, "gpt-3-large": 24, "gpt-3-xl": 24, "gpt-3-2.7b": 32, "gpt-3-6.7b": 32,
        "gpt-3-13b": 40,
    }  # fmt: skip
    assert {name: catalogue().model(name).layers for name in layers} == layers


def test_the_named_families_are_there():
    names = catalogue().names("models")
    for family in (
        "gpt-2",
        "gpt-3-",
        "megatron-1.7b",
        "megatron-1t",
        "llama-7b",
        "llama-2-",
        "llama-3-",
        "llama-3.1-",
        "llama-3.2-",
        "mistral-",
        "mixtral-",
        "qwen-2-",
        "qwen-2.5-",
        "qwen-3-",
        "deepseek-v2",
        "deepseek-v3",
        "gemma-",
        "phi-",
        "falcon-",
        "bloom-",
        "opt-",
        "mpt-",
        "nemotron-",
        "grok-1",
        "gpt-neox-20b",
        "bert-large",
    ):
        assert any(name.startswith(family) for name in names), family


def test_every_model_and_region_has_a_source():
    citations = catalogue().sources
    for entry in catalogue().entries("models"):
        assert isinstance(entry, ModelEntry)
        assert entry.source in citations, entry.name
    for region in catalogue().entries("regions"):
        assert isinstance(region, Region)
        assert region.source in citations, region.name
        assert (region.carbon_g_per_kwh is None) or region.carbon_source in citations, region.name
        assert (region.egress_usd_per_gb is None) or region.egress_source in citations, region.name
        assert region.place, region.name
        assert region.place_zh, region.name
    for pair in catalogue().list_measured_pairs():
        assert set(pair.source) <= set(citations), pair


def test_every_source_says_what_it_is():
    for name, source in catalogue().sources.items():
        assert source.get("title"), name
        assert set(source) <= {"title", "publisher", "year", "url", "note"}, name


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError) as caught:
        catalogue().model("lama-2-7b")
    assert "llama-2-7b" in caught.value.notices[0].params["nearest"]


@pytest.mark.parametrize(
    ("name", "layers"), [("Llama-3.1-405B-4L", 4), ("llama-2-7b[8 layers]", 8), ("Grok-1-314B-16L", 16)]
)
def test_a_model_may_be_asked_for_with_fewer_layers(name, layers):
    entry = catalogue().entry("models", name)
    assert isinstance(entry, ModelEntry)
    assert entry.model.layers == layers


def test_more_layers_than_the_model_has_is_not_the_model():
    assert catalogue().find("models", "llama-2-7b-33L") is None


@pytest.mark.parametrize("file", ["measured_runs.csv", "measured_runs_vtrain_single.csv", "measured_runs_h200.csv"])
def test_names_of_measured_runs_resolve_or_say_why_not(data, file):
    with (data / file).open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    citations = catalogue()
    lost = {row["model"] for row in rows if citations.find("models", row["model"]) is None}
    assert {name for name in lost if normalize_name(name) not in citations.unsupported} == set()
    mixed = re.compile(r"\d+x")
    kinds = {row["gpu"] for row in rows if not mixed.match(row["gpu"])}
    parts = {mixed.sub("", part) for row in rows if mixed.match(row["gpu"]) for part in row["gpu"].split("+")}
    assert {name for name in kinds | parts if citations.find("gpus", name) is None} == set()


def test_architectures_of_measured_runs_agree_where_the_rows_state_them(data):
    with (data / "measured_runs.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    differs = set()
    for row in rows:
        entry = catalogue().find("models", row["model"])
        if not isinstance(entry, ModelEntry) or not row["layers"] or not row["hidden"]:
            continue
        if (entry.model.layers, entry.model.hidden) != (int(row["layers"]), int(row["hidden"])):
            differs.add(row["model"])
    assert differs <= {"GPT-1.7B", "GPT-182B"}  # one name for two architectures in the sources


def test_threads_that_ask_at_once_all_see_the_whole_catalogue(tmp_path):
    for _ in range(3):
        fresh = Catalogue(tmp_path)
        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(lambda _, fresh=fresh: fresh.find("regions", "cn-shenzhen"), range(6)))
        assert [one.name if one else None for one in found] == ["cn-shenzhen"] * 6
