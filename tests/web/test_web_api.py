"""The HTTP API: the numbers of the command line, and one shape for every refusal."""

import json

import pytest

from commands import call
from crosszone.inputs.frameworks import load_frameworks
from crosszone.inputs.scenario import parse_scenario
from crosszone.inputs.summary import describe
from crosszone.text import load_texts
from crosszone.web.scenarios import find_examples_folder

DESCRIBE = "/api/v1/scenarios/describe"
EXAMPLES = sorted(path.stem for path in find_examples_folder().glob("*.yaml"))


def refused(answer, status, code):
    """The answer is a refusal in the one shape there is; returns its first error."""
    body = answer.json()
    assert answer.status_code == status, body
    assert set(body) == {"code", "message", "field", "hint", "errors"}
    assert body["code"] == code
    assert {key: body["errors"][0][key] for key in ("code", "message", "field", "hint")} == {
        key: body[key] for key in ("code", "message", "field", "hint")
    }
    assert all(error["message"] and error["level"] == "error" for error in body["errors"])
    return body["errors"][0]


def unplaced(description):
    """The description without the document itself and the file and line of its notices: they differ by where it came from."""
    notices = [{**notice, "file": None, "line": None} for notice in description["notices"]]
    return {**{key: value for key, value in description.items() if key not in ("fields", "yaml")}, "notices": notices}


def command_line(*arguments):
    return json.loads(call(*arguments).stdout)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_describe_answers_what_the_library_says(client, name, language):
    text = client.get(f"/api/v1/examples/{name}").text
    answer = client.post(DESCRIBE, json={"text": text}, params={"lang": language})
    assert answer.status_code == 200
    found = answer.json()
    assert parse_scenario(found.pop("yaml")).scenario == parse_scenario(text).scenario
    assert parse_scenario(json.dumps(found.pop("fields"))).scenario == parse_scenario(text).scenario
    assert found == json.loads(json.dumps(describe(parse_scenario(text), language)))


def test_describe_answers_what_the_command_line_prints(client, three_cities):
    printed = command_line(
        "--lang", "en", "scenario", "show", str(find_examples_folder() / "three-cities.yaml"), "--json"
    )
    assert unplaced(client.post(DESCRIBE, json={"text": three_cities}).json()) == unplaced(printed)
    assert printed["cluster"]["gpus"] == 128
    assert printed["job"]["tokens_per_step"] == 4096 * 1024


def test_text_json_and_fields_give_the_same_answer(client, three_cities):
    by_text = client.post(DESCRIBE, json={"text": three_cities}).json()
    by_fields = client.post(DESCRIBE, json={"scenario": by_text["scenario"]}).json()
    by_json = client.post(DESCRIBE, json={"text": json.dumps(by_text["scenario"])}).json()
    assert unplaced(by_fields) == unplaced(by_json) == unplaced(by_text)


def test_lines_name_the_line_of_each_notices_field(client, three_cities):
    text = three_cities.replace("tp: 8", "tp: 3")
    answer = client.post(DESCRIBE, json={"text": text}).json()
    lines = {notice["field"]: notice["line"] for notice in answer["notices"]}
    assert not answer["legal"]
    assert text.splitlines()[lines["strategy.tp"] - 1].strip().startswith("tp: 3")
    assert text.splitlines()[lines["cluster.links"] - 1].strip().startswith("links:")


def test_an_error_in_the_text_names_its_line(client, three_cities):
    text = three_cities.replace("seq_len: 4096", "seq_len: long")
    error = refused(client.post(DESCRIBE, json={"text": text}), 422, "must_be_whole")
    assert error["field"] == "job.seq_len"
    assert error["file"] == "<text>"
    assert "seq_len: long" in text.splitlines()[error["line"] - 1]


def test_all_errors_come_at_once_in_the_language_asked_for(client, three_cities):
    text = three_cities.replace("seq_len: 4096", "seq_len: long").replace("llama-2-70b", "llama-2-7x")
    english = client.post(DESCRIBE, json={"text": text}, headers={"Accept-Language": "de, en;q=0.5, zh;q=0.1"}).json()
    chinese = client.post(DESCRIBE, json={"text": text}, headers={"Accept-Language": "zh-CN,zh;q=0.9,en;q=0.8"}).json()
    asked = client.post(f"{DESCRIBE}?lang=zh", json={"text": text}).json()
    assert {error["code"] for error in english["errors"]} == {"must_be_whole", "unknown_name"}
    assert [error["code"] for error in chinese["errors"]] == [error["code"] for error in english["errors"]]
    assert chinese == asked
    assert "must be a whole number" in english["errors"][-1]["message"] + english["errors"][0]["message"]
    assert any("\u4e00" <= letter <= "\u9fff" for letter in chinese["message"])


def test_a_file_wrong_in_many_places_gets_a_bounded_answer(client):
    text = "\n".join(f"key{number}: 1" for number in range(1000))
    answer = client.post(DESCRIBE, json={"text": text})
    assert answer.status_code == 422
    assert 40 < len(answer.json()["errors"]) <= 50


@pytest.mark.parametrize(
    "text",
    ["", "- 1", "a: [", "a: &x [*x]", "!!python/object:os.system x", "a: 1\na: 2", "\0", '"\\ud800"', '{"\\ud800": 1}'],
)
def test_text_that_is_no_scenario_is_a_422(client, text):
    answer = client.post(DESCRIBE, json={"text": text})
    refused(answer, 422, answer.json()["code"])


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "not_json"),
        (b"{", 400, "not_json"),
        (b"\xff\xfe", 400, "not_json"),
        (b"[" * 100_000, 400, "not_json"),
        (b'{"scenario": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001, 400, "not_json"),
        (b'{"text": "\\ud800"}', 400, "not_json"),
        (b"[1]", 422, "must_be_mapping"),
        (b"{}", 422, "one_of_body"),
        (b'{"text": "a: 1", "scenario": {}}', 422, "one_of_body"),
        (b'{"text": 1}', 422, "must_be_text"),
        (b'{"scenario": []}', 422, "must_be_mapping"),
        (b'{"file": "/etc/passwd"}', 422, "unknown_key"),
        (b'{"scenario": {"name": NaN}}', 422, "must_be_text"),
        (b'{"scenario": {}}', 422, "missing_key"),
    ],
)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_odd_bodies_are_refused(client, body, status, code, language):
    headers = {"Content-Type": "application/json"}
    refused(client.post(DESCRIBE, content=body, headers=headers, params={"lang": language}), status, code)


def test_deep_yaml_is_refused(client):
    refused(client.post(DESCRIBE, json={"text": "[" * 100_000}), 422, "yaml_too_deep")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/yaml"])
def test_a_body_of_another_type_is_a_415(client, kind):
    refused(client.post(DESCRIBE, content=b'{"text": "a: 1"}', headers={"Content-Type": kind}), 415, "not_json_type")


def test_a_charset_after_the_type_is_no_other_type(client, three_cities):
    body = json.dumps({"text": three_cities}).encode()
    answer = client.post(DESCRIBE, content=body, headers={"Content-Type": "application/json; charset=utf-8"})
    assert answer.status_code == 200


@pytest.mark.parametrize("reference", ["/etc/passwd", "../pyproject.toml", "../../../../etc/passwd", "a\\0b"])
@pytest.mark.parametrize("field", ["model.hf_config", "cluster.file"])
def test_a_scenario_cannot_name_files_elsewhere(client, three_cities, field, reference):
    outer, inner = field.split(".")
    answer = client.post(DESCRIBE, json={"text": f'{outer}: {{{inner}: "{reference}"}}'})
    assert refused(answer, 422, "file_outside")["field"] == field
    fields = client.post(DESCRIBE, json={"scenario": {outer: {inner: reference.replace("\\0", "\0")}}})
    refused(fields, 422, "file_outside")


def test_a_scenario_may_name_files_beside_the_opened_one(tmp_path, three_cities):
    from starlette.testclient import TestClient

    from crosszone.web.app import create_app

    scenario = parse_scenario(three_cities).scenario
    (tmp_path / "mine.yaml").write_text(three_cities, "utf-8")
    (tmp_path / "cluster.yaml").write_text(json.dumps(scenario.to_fields()["cluster"]), "utf-8")
    beside = json.dumps({**scenario.to_fields(), "cluster": {"file": "cluster.yaml"}})
    with TestClient(create_app(tmp_path / "mine.yaml"), base_url="http://localhost") as client:
        assert client.get("/api/v1/examples").json()["default"] == "mine.yaml"
        assert client.get("/api/v1/examples/mine.yaml").text == three_cities
        assert client.get("/api/v1/examples/three-cities").text == three_cities
        assert client.post(DESCRIBE, json={"text": beside}).json()["cluster"]["gpus"] == 128


@pytest.mark.parametrize("kind", ["gpus", "models", "regions"])
def test_the_catalogue_is_the_command_lines(client, kind):
    listed = client.get(f"/api/v1/catalogue/{kind}").json()
    assert listed == command_line("catalogue", kind, "--json")
    one = client.get(f"/api/v1/catalogue/{kind}/{listed[0]['name']}").json()
    figures = one.pop("figures")
    assert one == listed[0]
    assert any(figure["source"] for figure in figures)


def test_links_are_the_command_lines(client):
    assert client.get("/api/v1/catalogue/links").json() == command_line("catalogue", "links", "--json")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("gpus/H100", "h100-80gb-sxm"),
        ("models/meta-llama/llama-2-7b-hf", "llama-2-7b"),
        ("regions/华北2", "cn-beijing"),
    ],
)
def test_entries_go_by_their_aliases(client, path, name):
    assert client.get(f"/api/v1/catalogue/{path}").json()["name"] == name


def test_every_source_a_figure_names_is_listed(client):
    sources = client.get("/api/v1/catalogue/sources").json()
    for kind in ("gpus", "models", "regions"):
        for entry in client.get(f"/api/v1/catalogue/{kind}").json()[:12]:
            figures = client.get(f"/api/v1/catalogue/{kind}/{entry['name']}").json()["figures"]
            assert {figure["source"] for figure in figures if figure["source"]} <= set(sources)


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/v1/catalogue/gpus/h1000", "unknown_name"),
        ("/api/v1/catalogue/models/%00", "unknown_name"),
        ("/api/v1/catalogue/nope", "kind_unknown"),
        ("/api/v1/catalogue/links/us-east-1", "kind_unknown"),
        ("/api/v1/examples/nope", "example_unknown"),
        ("/api/v1/text/fr", "language_unknown"),
        ("/api/v1/nope", "not_found"),
        ("/nope", "not_found"),
    ],
)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_unknown_names_are_404s(client, path, code, language):
    error = refused(client.get(path, params={"lang": language}), 404, code)
    if code in ("unknown_name", "example_unknown"):
        assert error["hint"]


def test_an_unknown_gpu_names_the_nearest(client):
    assert "h100" in refused(client.get("/api/v1/catalogue/gpus/h1000"), 404, "unknown_name")["hint"]


def test_wrong_methods_are_405s(client):
    refused(client.get("/api/v1/predict"), 405, "method_not_allowed")
    refused(client.delete("/api/v1/examples"), 405, "method_not_allowed")
    refused(client.post("/index.html"), 405, "method_not_allowed")


def test_a_name_that_is_too_long_is_a_422(client):
    refused(client.get("/api/v1/catalogue/gpus/" + "a" * 1000), 422, "not_valid")


def test_a_mistake_of_ours_answers_json_and_is_logged(client, monkeypatch, caplog, three_cities):
    def broken(*_):
        raise RuntimeError("a secret of the inside")

    monkeypatch.setattr("crosszone.web.scenarios.describe", broken)
    answer = client.post(DESCRIBE, json={"text": three_cities})
    refused(answer, 500, "internal")
    assert "secret" not in answer.text
    assert "a secret of the inside" in caplog.text
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_examples_are_listed_with_their_titles(client):
    body = client.get("/api/v1/examples").json()
    assert body["default"] == "three-cities"
    assert [example["name"] for example in body["examples"]] == EXAMPLES
    assert {"name": "three-cities", "title": "three cities", "opened": False} in body["examples"]
    assert client.get("/api/v1/examples/three-cities").headers["content-type"].startswith("application/yaml")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_text_gives_the_pages_strings(client, language):
    titles = {name: framework.title for name, framework in load_frameworks().items()}
    body = client.get(f"/api/v1/text/{language}").json()
    assert body == {
        "language": language,
        "page": load_texts(language)["page"],
        "label": load_texts(language)["label"],
        "framework": titles,
    }


def test_the_contract_of_the_api_is_there(client):
    """The nouns that others call; test_web_openapi.py looks at how each route is described."""
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    nouns = {path.removeprefix("/api/v1/").partition("/")[0] for path in paths}
    assert {"scenarios", "predict", "plan", "analyse", "what-if", "sweep", "timeline", "catalogue", "profiles"} <= nouns
    assert {"results", "compare", "explain", "formulas", "radar", "ranks", "report", "work", "examples"} <= nouns


def test_an_entry_of_ones_own_appears_at_once(client):
    from crosszone.inputs.catalogue.own import add_entries
    from crosszone.inputs.document import parse_document

    assert client.get("/api/v1/catalogue/gpus/my-gpu").status_code == 404
    add_entries("gpus", parse_document("my-gpu: {like: a100-80gb-sxm, usd_per_hour: 0}"))
    shown = client.get("/api/v1/catalogue/gpus/my-gpu").json()
    assert (shown["own"], shown["usd_per_hour"]) == (True, 0)
    assert "my-gpu" in [gpu["name"] for gpu in client.get("/api/v1/catalogue/gpus").json()]
