"""The API's description is complete: every route says what it does, takes, answers and refuses."""

import re

import jsonschema
import pytest

METHODS = ("get", "post", "put", "patch", "delete")
UNSAFE = METHODS[1:]
NOT_HERE = ("post_sweep", "post_environments_measure", "post_calibrate_sheet")
"""Their examples take long, or need machines or a file that was handed in."""
FILES = ("post /api/v1/calibrate/files",)
"""Their bodies are files as they are."""


@pytest.fixture(scope="module")
def document(client):
    return client.get("/api/v1/openapi.json").json()


@pytest.fixture(scope="module")
def operations(document):
    return {
        f"{method} {path}": operation for path, item in document["paths"].items() for method, operation in item.items()
    }


def resolved(document, schema):
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].removeprefix("#/components/schemas/")]
    return schema


def references(value):
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_it_is_openapi(document, operations):
    assert re.fullmatch(r"3\.1\.\d", document["openapi"])
    assert document["info"]["title"]
    assert document["info"]["version"]
    assert len(operations) > 15
    assert all(method.split()[0] in METHODS for method in operations)
    assert all(path.startswith("/api/v1/") for path in document["paths"])


def test_every_reference_leads_somewhere(document):
    for reference in set(references(document)):
        assert reference.startswith("#/components/schemas/"), reference
        assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"], reference


def test_every_schema_is_one(document):
    for name, schema in document["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert "$defs" not in schema, name


def test_every_route_says_what_it_does_under_a_name_of_its_own(operations):
    ids = [operation["operationId"] for operation in operations.values()]
    assert len(set(ids)) == len(ids)
    for route, operation in operations.items():
        method, path = route.split()
        words = re.findall(r"\w+", path.removeprefix("/api/v1"))
        assert operation["operationId"] == "_".join([method, *words])  # follows from the contract, so it stays
        assert len(operation["summary"]) > 10, route
        assert operation["tags"], route


def test_every_parameter_and_field_is_explained_and_bounded(document, operations):
    for route, operation in operations.items():
        for parameter in operation.get("parameters", []):
            assert parameter.get("description") or parameter["schema"].get("description"), (route, parameter["name"])
        body = operation.get("requestBody")
        if body:
            assert body["required"]
            assert set(body["content"]) == {"application/octet-stream" if route in FILES else "application/json"}
        if body and route not in FILES:
            fields = resolved(document, body["content"]["application/json"]["schema"])["properties"]
            for name, schema in fields.items():
                assert resolved(document, schema).get("description") or schema.get("description"), (route, name)


def test_every_body_has_an_example_that_it_takes(document, operations):
    known = {"components": document["components"]}
    for route, operation in operations.items():
        if "requestBody" in operation and route not in FILES:
            content = operation["requestBody"]["content"]["application/json"]
            assert "example" in content, route
            jsonschema.validate(content["example"], {**content["schema"], **known})


@pytest.mark.slow
def test_every_example_is_answered(client, operations):
    answered = 0
    for route, operation in operations.items():
        method, path = route.split()
        if (
            "requestBody" in operation
            and "{" not in path
            and route not in FILES
            and operation["operationId"] not in NOT_HERE
        ):
            example = operation["requestBody"]["content"]["application/json"]["example"]
            answer = client.request(method, path, json=example)
            assert answer.status_code in (200, 201, 204), (route, answer.text[:300])
            answered += 1
    assert answered > 8


def test_every_answer_has_a_schema(document, operations):
    for route, operation in operations.items():
        good = {status: told for status, told in operation["responses"].items() if status.startswith("2")}
        assert good, route
        for status, told in good.items():
            assert told["description"], (route, status)
            for kind, content in told.get("content", {}).items():
                assert "schema" in content, (route, status, kind)
            assert ("content" in told) == (status != "204"), (route, status)


def test_every_refusal_is_documented_in_one_shape(document, operations):
    shape = set(document["components"]["schemas"]["ErrorBody"]["properties"])
    assert shape == {"code", "message", "field", "hint", "errors"}
    for route, operation in operations.items():
        method, path = route.split()
        statuses = set(operation["responses"])
        assert {"401", "408", "413", "421", "422", "429", "431"} <= statuses, route
        assert method not in UNSAFE or "403" in statuses, route
        assert "requestBody" not in operation or {"400", "415"} <= statuses, route
        assert "{" not in path or "404" in statuses, route
        assert not {status for status in statuses if status.startswith("5")} - {"503"}, route  # the database is away
        for status in statuses:
            if status.startswith("4"):
                content = operation["responses"][status]["content"]
                assert content == {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}, route


def test_how_to_get_in_is_described(document):
    schemes = document["components"]["securitySchemes"]
    assert (schemes["token"]["type"], schemes["token"]["scheme"]) == ("http", "bearer")
    assert schemes["session"]["in"] == "cookie"
    assert {} in document["security"]  # a server for its own machine asks for nothing
