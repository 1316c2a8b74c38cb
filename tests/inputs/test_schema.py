"""The committed schemas are those of the code, and judge files as the code does."""

from __future__ import annotations

import json

import jsonschema
import pytest
from hypothesis import Phase, given

from conftest import ROOT
from crosszone.inputs.document import read_document
from crosszone.inputs.scenario import load_scenario
from crosszone.inputs.schema import build_json_schema, format_file_name, format_key_tables
from crosszone.plan.planner import plan
from crosszone.plan.schema import ROOTS
from crosszone.predict.predict import build_prediction, build_predictor
from effort import examples
from inputs.scenarios import scenario_fields

DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", ROOTS)
def test_the_committed_schema_is_that_of_the_code(name):
    committed = json.loads((DOCS / "schema" / format_file_name(name)).read_text())
    assert committed == json.loads(json.dumps(build_json_schema(name, ROOTS))), (
        "run: python -m crosszone.plan.schema docs"
    )
    jsonschema.Draft202012Validator.check_schema(committed)


def test_the_key_tables_are_those_of_the_code():
    assert (DOCS / "scenario-keys.md").read_text() == format_key_tables(), "run: python -m crosszone.plan.schema docs"


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_example_meets_the_schema(path):
    jsonschema.validate(read_document(path).value, build_json_schema("scenario"))


def test_a_prediction_and_its_timeline_meet_their_schemas():
    found = build_predictor(load_scenario(ROOT / "examples" / "three-cities.yaml"))
    jsonschema.validate(json.loads(build_prediction(found).model_dump_json()), build_json_schema("prediction", ROOTS))
    jsonschema.validate(json.loads(found.timeline().to_trace("a step").to_json()), build_json_schema("trace", ROOTS))


def test_plans_meet_their_schema():
    found = plan(load_scenario(ROOT / "examples" / "three-cities.yaml"), front=True)
    answer = json.loads(found.model_dump_json())
    jsonschema.validate(answer, build_json_schema("plans", ROOTS))
    for wrong in (
        {"plans": [answer["plans"][0] | {"kind": "asynchronous"}]},
        {"objective": "speed"},
        {"seconds": "few"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(answer | wrong, build_json_schema("plans", ROOTS))


@pytest.mark.slow
@examples(50, phases=[Phase.explicit, Phase.generate])
@given(scenario_fields)
def test_any_valid_scenario_meets_the_schema(fields):
    jsonschema.validate(json.loads(json.dumps(fields)), build_json_schema("scenario"))


@pytest.mark.parametrize(
    "wrong", [{"job": {"seq_len": 0, "global_batch": 1}}, {"cluster": {"zones": []}}, {"strategy": {"tpp": 2}}]
)
def test_the_schema_refuses_what_the_code_refuses(wrong):
    good = read_document(ROOT / "examples" / "single-node.yaml").value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(good | wrong, build_json_schema("scenario"))


def test_every_key_has_a_meaning():
    for name in ROOTS:
        schema = build_json_schema(name, ROOTS)
        for title, definition in {"": schema, **schema.get("$defs", {})}.items():
            for key, field in definition.get("properties", {}).items():
                assert field.get("description"), f"{name} {title}.{key}"
