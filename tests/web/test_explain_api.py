"""Explanations, formulas and the radar over HTTP."""

import pytest

from crosszone.analyse.explain import explain, load_formulas
from crosszone.inputs.scenario import parse_scenario
from crosszone.predict.answer import answer
from web.test_web_api import refused

EXPLAIN, RADAR = "/api/v1/explain", "/api/v1/radar"


def test_explain_answers_what_the_library_says(client, three_cities):
    """F83"""
    for language in ("en", "zh"):
        got = client.post(EXPLAIN, json={"text": three_cities, "figure": "mfu"}, params={"lang": language})
        assert got.status_code == 200
        found = answer(parse_scenario(three_cities), language)
        assert got.json() == explain(found.predictor, found.prediction, "mfu", language).model_dump(mode="json")


def test_what_an_explanation_follows_from_opens_in_turn(client, three_cities):
    first = client.post(EXPLAIN, json={"text": three_cities, "figure": "step_time_s"}).json()
    assert {line["figure"] for line in first["lines"]} >= {"breakdown_s.matmul", "breakdown_s.bubble"}
    for line in first["lines"]:
        opened = client.post(EXPLAIN, json={"text": three_cities, "figure": line["figure"]}).json()
        assert opened["value"] == pytest.approx(line["value"], rel=1e-12)


def test_a_way_is_explained_in_place_of_the_scenarios_own(client, three_cities):
    way = {"framework": "megatron", "strategy": {"tp": 8, "pp": 8, "dp": 2, "micro_batch": 1, "zero": 1}}
    body = {"text": three_cities, "way": way, "figure": "gpus"}
    assert client.post(EXPLAIN, json=body).json()["worked"] == "8 * 8 * 2"


@pytest.mark.parametrize(
    ("figure", "code"),
    [("nothing", "figure_unknown"), ("", "not_valid"), ("x" * 301, "not_valid"), (7, "must_be_text")],
)
def test_a_figure_that_is_none_is_refused(client, three_cities, figure, code):
    refused(client.post(EXPLAIN, json={"text": three_cities, "figure": figure}), 422, code)


def test_formulas_are_listed_and_answered_one_by_one(client):
    listed = client.get("/api/v1/formulas").json()
    assert [one["id"] for one in listed] == list(load_formulas())
    assert client.get("/api/v1/formulas/V6").json() == load_formulas()["V6"].model_dump(mode="json")
    refused(client.get("/api/v1/formulas/none"), 404, "formula_unknown")


def test_the_radar_holds_the_ways_asked_for_and_the_families(client, three_cities):
    """F77"""
    strategy = {"tp": 8, "pp": 8, "dp": 2, "micro_batch": 1, "zero": 1, "recompute": "selective"}
    way = {"framework": "megatron", "strategy": strategy}
    got = client.post(RADAR, json={"text": three_cities, "ways": [{"name": "runner_up", "way": way}]})
    assert got.status_code == 200, got.json()
    body = got.json()
    assert [one["name"] for one in body["entries"]] == ["chosen", "runner_up", "dp_only", "pp_only"]
    assert body["entries"][0]["label"] == "chosen way"
    assert body["entries"][1]["way"]["strategy"]["pp"] == 8
    assert all(axis["formula"] in load_formulas() for axis in body["axes"])


@pytest.mark.parametrize("name", ["chosen", "dp_only", ""])
def test_ways_need_names_of_their_own(client, three_cities, name):
    ways = [{"name": name, "way": {"strategy": {"tp": 8}}}]
    assert client.post(RADAR, json={"text": three_cities, "ways": ways}).status_code == 422


@pytest.mark.parametrize("name", ["three-cities", "two-zones-7b", "mixtral"])
def test_families_found_once_can_be_drawn_again_without_a_search(client, name):
    text = client.get(f"/api/v1/examples/{name}").text
    first = client.post(RADAR, json={"text": text}).json()
    ways = [{"name": one["name"], "way": one["way"]} for one in first["entries"][1:]]
    again = client.post(RADAR, json={"text": text, "ways": ways, "families": False}).json()
    assert [one["name"] for one in again["entries"]] == ["chosen", "dp_only", "pp_only"]
    for one, other in zip(first["entries"], again["entries"], strict=True):
        assert other["label"] == one["label"]
        known = {axis: value for axis, value in one["values"].items() if value is not None}
        assert {axis: value for axis, value in other["values"].items() if value is not None} == pytest.approx(known)


def test_a_way_that_breaks_a_rule_is_refused(client, three_cities):
    ways = [{"name": "other", "way": {"strategy": {"tp": 7}}}]
    got = client.post(RADAR, json={"text": three_cities, "ways": ways})
    assert got.status_code in (409, 422)
    assert got.json()["errors"][0]["field"].startswith("strategy")
