"""One request for many parts about one scenario: each what its own route answers, all from one reading."""

import gzip
import hashlib
import json

import pytest

from crosszone.analyse import answer as analysis
from crosszone.web import scenarios
from crosszone.web.routes import answers as route
from crosszone.web.routes.answers import PARTS

ANSWERS = "/api/v1/answers"
WAY = {"framework": None, "strategy": {"tp": 8, "pp": 2, "dp": 4, "micro_batch": 1}}
FIELDS = {
    "name": "small",
    "model": "llama-2-7b",
    "job": {"seq_len": 4096, "global_batch": 256},
    "cluster": {
        "zones": [
            {"name": "east", "nodes": [{"count": 4, "gpus": 8, "gpu": "a100-80gb-sxm", "nic_gbps_per_gpu": 200}]},
            {"name": "west", "nodes": [{"count": 4, "gpus": 8, "gpu": "a100-80gb-sxm", "nic_gbps_per_gpu": 200}]},
        ],
        "links": [{"between": ["east", "west"], "gbps": 10, "rtt_ms": 20}],
    },
    "strategy": {"tp": 4, "pp": 2},
}
BODY = {"scenario": FIELDS, "way": WAY}
OPTIONS = {
    "edit": {"text": "job: {seq_len: 2048}  # tokens\n"},
    "timeline": {"from_s": 0.1},
    "micro_batch": {"micro_batch": 1},
    "explain": {"figure": "mfu"},
    "compare": {"items": [{"way": WAY}, {"name": "own"}]},
    "radar": {"ways": [{"name": "other", "way": {"strategy": {"tp": 8, "pp": 1}}}]},
    "what_if": {"changes": {"job.global_batch": 512}},
    "switches": {"switches": {}},
}
ROUTES = {
    "predict": ("predict", BODY),
    "describe": ("scenarios/describe", {"scenario": FIELDS}),
    "edit": ("scenarios/edit", {**OPTIONS["edit"], "scenario": FIELDS}),
    "written": ("predict", {"scenario": FIELDS}),
    "places": ("places", BODY),
    "ranks": ("ranks", BODY),
    "timeline": ("timeline", {**BODY, **OPTIONS["timeline"]}),
    "micro_batch": ("timeline", {**BODY, **OPTIONS["micro_batch"]}),
    "explain": ("explain", {**BODY, **OPTIONS["explain"]}),
    "compare": ("compare", {"items": [BODY, {"scenario": FIELDS, "name": "own"}]}),
    "radar": ("radar", {**BODY, **OPTIONS["radar"], "families": False}),
    "what_if": ("what-if", {**BODY, **OPTIONS["what_if"]}),
    "switches": ("what-if/switches", {**BODY, **OPTIONS["switches"]}),
    **{part: ("analyse", {**BODY, "parts": [part]}) for part in ("traffic", "bill", "suggestions", "rating")},
}
QUICK = [part for part in PARTS if part not in ("suggestions", "rating")]


@pytest.fixture
def ask(client):
    def post(body, status=200, **more):
        answer = client.post(ANSWERS, json=body, **more)
        assert answer.status_code == status, answer.text[:500]
        return answer.json()

    return post


def answer_of_route(client, part, **more):
    path, body = ROUTES[part]
    answer = client.post(f"/api/v1/{path}", json=body, **more)
    assert answer.status_code == 200, answer.text[:500]
    return answer.json()[part] if path == "analyse" else answer.json()


def test_each_part_is_what_its_own_route_answers(client, ask):
    answered = ask({**BODY, "parts": list(PARTS), "options": OPTIONS})
    assert list(answered) == list(PARTS)
    for part in PARTS:
        assert answered[part] == {"answer": answer_of_route(client, part)}, part


def test_the_language_is_that_of_the_request(client, ask):
    answered = ask({**BODY, "parts": ["traffic", "explain"], "options": OPTIONS}, params={"lang": "zh"})
    for part, answer in answered.items():
        assert answer["answer"] == answer_of_route(client, part, params={"lang": "zh"})


def count_calls(monkeypatch, module, name):
    calls = []
    original = getattr(module, name)

    def counted(*arguments, **more):
        calls.append(arguments)
        return original(*arguments, **more)

    monkeypatch.setattr(module, name, counted)
    return calls


def test_the_scenario_is_parsed_read_and_predicted_once_for_all_parts(ask, monkeypatch):
    from crosszone.inputs.document import dump_yaml

    parsed = count_calls(monkeypatch, scenarios, "parse_document")
    read = count_calls(monkeypatch, scenarios, "read_scenario")
    computed = count_calls(monkeypatch, scenarios, "build_predictor_from")
    predicted = count_calls(monkeypatch, scenarios, "answer")
    again = count_calls(monkeypatch, analysis, "predicted")
    body = {"text": dump_yaml(FIELDS), "options": {**OPTIONS, "compare": {"items": [{}, {"name": "own"}]}, "radar": {}}}
    answered = ask({**body, "parts": QUICK})
    assert not [part for part in QUICK if "error" in answered[part]]
    assert [len(calls) for calls in (parsed, read, computed, predicted, again)] == [1, 1, 1, 1, 0]

    ask({**body, "way": WAY, "parts": QUICK})  # the same as the scenario says and as it is asked for: one each
    assert [len(calls) for calls in (parsed, read, computed, predicted, again)] == [2, 3, 3, 3, 0]


def test_a_refused_part_leaves_the_others_alone(client, ask):
    wrong = {**OPTIONS, "explain": {"figure": "mfoo"}, "what_if": {"changes": {"job.nothing": 1}}}
    answered = ask({**BODY, "parts": ["predict", "explain", "what_if"], "options": wrong})
    assert answered["predict"] == {"answer": answer_of_route(client, "predict")}
    refusal = client.post("/api/v1/explain", json={**BODY, "figure": "mfoo"})
    assert refusal.status_code == 422
    assert answered["explain"] == {"error": refusal.json()}
    assert answered["what_if"]["error"]["errors"]


def test_a_part_without_what_it_needs_says_so(ask):
    answered = ask({**BODY, "parts": ["explain", "compare", "edit", "places"]})
    fields = {part: answer["error"]["field"] for part, answer in answered.items() if "error" in answer}
    assert fields == {
        "explain": "options.explain.figure",
        "compare": "options.compare.items",
        "edit": "options.edit.text",
    }
    assert "answer" in answered["places"]


def test_a_mistake_of_ours_is_that_parts_alone(ask, monkeypatch):
    monkeypatch.setattr(route, "build_ranks", lambda *asked: 1 / 0)
    answered = ask({**BODY, "parts": ["ranks", "places"]})
    assert answered["ranks"]["error"]["code"] == "internal"
    assert "answer" in answered["places"]


def test_a_scenario_nothing_can_be_answered_of_is_refused_as_a_whole(client, ask):
    for body in ({"text": "a: ["}, {"scenario": {**FIELDS, "model": "no-such-model"}}):
        refusal = ask({**body, "parts": ["predict", "describe", "timeline"]}, status=422)
        assert refusal == client.post("/api/v1/predict", json=body).json()


def test_an_analysis_of_a_large_cluster_is_done_by_a_worker(client, ask, monkeypatch):
    expected = answer_of_route(client, "bill")
    monkeypatch.setattr(route, "is_quick", lambda part, loaded: False)
    assert ask({**BODY, "parts": ["bill"]}) == {"bill": {"answer": expected}}


def test_a_text_can_be_changed_into_a_scenario_that_is_not_good(ask):
    bad = {**FIELDS, "job": {"seq_len": -1}}
    answered = ask({"scenario": bad, "parts": ["describe", "predict", "edit"], "options": OPTIONS})
    assert "seq_len: -1" in answered["edit"]["answer"]["text"]
    assert answered["describe"]["error"]["errors"][0]["field"] == "job.seq_len"
    assert answered["describe"] == answered["predict"]


def test_the_scenario_may_be_good_where_the_way_is_not(ask):
    way = {"strategy": {"tp": 4096}}
    answered = ask({"scenario": FIELDS, "way": way, "parts": ["describe", "written", "predict"]})
    assert {part: list(answer) for part, answer in answered.items()} == {
        "predict": ["error"], "describe": ["answer"], "written": ["answer"]
    }  # fmt: skip


def test_an_unknown_part_is_named_with_those_there_are(ask):
    refusal = ask({**BODY, "parts": ["predict", "timelime"]}, status=422)
    assert refusal["code"] == "not_one_of"
    assert refusal["field"] == "parts.1"
    assert "timelime" in refusal["message"]
    assert all(part in refusal["message"] for part in PARTS)
    assert "timeline" in refusal["hint"]


@pytest.mark.parametrize(
    "wrong",
    [{"parts": []}, {"parts": ["predict"], "options": {"nothing": {}}}, {"parts": ["predict"], "more": 1},
     {"parts": ["timeline"], "options": {"timeline": {"from_s": "now"}}}, {}],
)  # fmt: skip
def test_a_body_that_is_wrong_is_refused(ask, wrong):
    assert ask({**BODY, **wrong}, status=422)["errors"]


def read_lines(answer):
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.mark.parametrize("packed", ["gzip", "identity"])
def test_parts_come_line_by_line_the_quick_ones_first(client, packed):
    headers = {"Accept": "application/x-ndjson", "Accept-Encoding": packed}
    body = {**BODY, "parts": ["suggestions", "explain", "predict"], "options": {"explain": {"figure": "mfoo"}}}
    with client.stream("POST", ANSWERS, json=body, headers=headers) as answer:
        answer.read()
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        assert (answer.headers.get("content-encoding") == "gzip") == (packed == "gzip")
        lines = read_lines(answer)
    assert [(line["part"], set(line) - {"part"}) for line in lines] == [
        ("predict", {"answer"}), ("explain", {"error"}), ("suggestions", {"answer"})
    ]  # fmt: skip
    assert lines[0]["answer"] == answer_of_route(client, "predict")


def test_packed_lines_end_where_the_gzip_ends(client):
    headers = {"Accept": "application/x-ndjson", "Accept-Encoding": "gzip"}
    with client.stream("POST", ANSWERS, json={**BODY, "parts": ["places"]}, headers=headers) as answer:
        (line,) = gzip.decompress(b"".join(answer.iter_raw())).splitlines()
    assert json.loads(line)["part"] == "places"


def test_a_scenario_that_cannot_be_read_is_no_stream(client):
    headers = {"Accept": "application/x-ndjson"}
    answer = client.post(ANSWERS, json={"text": "a: [", "parts": ["predict"]}, headers=headers)
    assert answer.status_code == 422
    assert answer.json()["errors"]


def test_the_description_names_each_part(client):
    document = client.get("/api/v1/openapi.json").json()
    schemas = document["components"]["schemas"]
    operation = document["paths"]["/api/v1/answers"]["post"]
    assert list(schemas["AnswersDocument"]["properties"]) == list(PARTS)
    assert schemas["AnswersBody"]["properties"]["parts"]["items"]["enum"] == list(PARTS)
    assert set(operation["responses"]["200"]["content"]) == {"application/json", "application/x-ndjson"}


def test_the_token_is_asked_for(tmp_path):
    from starlette.testclient import TestClient

    from crosszone.web.app import create_app
    from crosszone.web.tokens import TokenAuth

    auth = TokenAuth(digest=hashlib.sha256(b"a" * 32).digest())
    app = create_app(store=str(tmp_path / "crosszone.db"), auth=auth, drive=False)
    client = TestClient(app, base_url="http://127.0.0.1:8000")
    body = {**BODY, "parts": ["places"]}
    assert client.post(ANSWERS, json=body).status_code == 401
    assert client.post(ANSWERS, json=body, headers={"Authorization": f"Bearer {'a' * 32}"}).status_code == 200
