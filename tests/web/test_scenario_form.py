"""What the form of the page rests on: schemas, fields of a text, texts with fields changed, and words for every field."""

import re

import pytest

from crosszone.inputs.schema import build_json_schema
from crosszone.text import LANGUAGES, load_texts
from crosszone.web.app import STATIC

GROUPS = {
    "Zone": ["nodes"], "NodeGroup": ["hosts"], "Link": ["between"], "Model": ["name", "moe", "mla", "window", "mamba"],
    "Mamba": [],
    "Strategy": ["communication", "local_update"], "Job": ["software"], "Software": [], "Mla": [], "Window": [], "Moe": [], "Communication": [], "LocalUpdate": [],
}  # fmt: skip
"""The classes whose fields the form shows, and the fields it shows as a part of their own or not at all."""


def test_the_schema_is_that_of_the_code(client):
    answer = client.get("/api/v1/schema/scenario")
    assert answer.status_code == 200
    assert answer.json() == build_json_schema("scenario")


def test_an_unknown_schema_names_those_there_are(client):
    answer = client.get("/api/v1/schema/galaxy")
    assert answer.status_code == 404
    assert "scenario" in answer.json()["hint"]


def test_a_text_with_mistakes_still_has_fields(client):
    answer = client.post("/api/v1/scenarios/fields", json={"text": "job: {seq_len: long}\nmodel: lama\n"})
    assert answer.json() == {"fields": {"job": {"seq_len": "long"}, "model": "lama"}}


@pytest.mark.parametrize("text", ["job: [", "- 1\n- 2\n", "just words", ""])
def test_a_text_that_is_no_mapping_has_none(client, text):
    answer = client.post("/api/v1/scenarios/fields", json={"text": text})
    assert answer.status_code == 422
    assert answer.json()["message"]


def test_a_field_changes_and_the_comments_stay(client, three_cities):
    fields = client.post("/api/v1/scenarios/fields", json={"text": three_cities}).json()["fields"]
    fields["job"]["global_batch"] = 512
    fields["cluster"]["links"].append({"between": ["beijing-a", "shenzhen-c"], "gbps": 40})
    text = client.post("/api/v1/scenarios/edit", json={"text": three_cities, "scenario": fields}).json()["text"]
    assert text.count("#") == three_cities.count("#")
    assert "  global_batch: 512              # samples per optimizer step\n" in text
    described = client.post("/api/v1/scenarios/describe", json={"text": text}).json()
    assert described["fields"] == fields
    assert [link["gbps"] for link in described["cluster"]["links"]] == [10, 40, 1]


def test_an_empty_text_is_written_anew(client):
    answer = client.post("/api/v1/scenarios/edit", json={"text": "", "scenario": {"name": "x", "job": {"seq_len": 1}}})
    assert answer.json() == {"text": "name: x\njob: {seq_len: 1}\n"}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_field_of_the_form_has_a_label_and_an_explanation(language):
    definitions = build_json_schema("scenario")["$defs"]
    page = load_texts(language)["page"]
    for owner, left_out in GROUPS.items():
        shown = [key for key in definitions[owner]["properties"] if key not in left_out]
        assert sorted(page["field"][owner]) == sorted(shown)
        assert sorted(page["field_help"][owner]) == sorted(shown)


def test_the_explanations_are_those_of_the_code():
    definitions = build_json_schema("scenario")["$defs"]
    for owner, explained in load_texts("en")["page"]["field_help"].items():
        for key, meaning in explained.items():
            assert meaning == definitions[owner]["properties"][key]["description"]


def test_the_form_names_only_keys_there_are():
    definitions = build_json_schema("scenario")["$defs"]
    known = {key for definition in definitions.values() for key in definition.get("properties", {})}
    for script in sorted((STATIC / "scenario").glob("*.js")):
        for keys in re.findall(
            r"^const (?:FIRST|MORE|FIGURES|KEYS|DEGREES) = \[(.*)\];$", script.read_text("utf-8"), re.M
        ):
            assert set(re.findall(r'"(\w+)"', keys)) <= known, script.name
