"""Reports over HTTP: a file to save, the same text as the command line's."""

import re

import pytest

pytestmark = pytest.mark.slow  # starts servers, or plans in worker processes


def undated(text):
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "", text)


@pytest.mark.parametrize(("form", "kind"), [("md", "text/markdown"), ("html", "text/html")])
def test_a_report_is_a_file_to_save(client, three_cities, form, kind):
    from crosszone.inputs.scenario import parse_scenario
    from crosszone.views.report import render_report

    sent = client.post("/api/v1/report", json={"text": three_cities, "format": form})
    assert sent.status_code == 200
    assert sent.headers["content-type"] == f"{kind}; charset=utf-8"
    assert sent.headers["content-disposition"] == (
        f"attachment; filename=\"three-cities.{form}\"; filename*=UTF-8''three%20cities.{form}".replace("%20", "-")
    )
    assert undated(sent.text) == undated(render_report(parse_scenario(three_cities), form=form))


def test_a_report_tells_the_way_of_a_plan_in_the_language_asked_for(client, three_cities):
    found = client.post("/api/v1/plan", json={"text": three_cities}).json()["plans"][0]
    way = {key: found[key] for key in ("framework", "strategy", "placement")}
    body = {"text": three_cities, "way": way}
    sent = client.post("/api/v1/report", json=body, headers={"Accept-Language": "zh"}).text
    assert "## 数字" in sent
    assert f"| {found['prediction']['step_time_s']['expected']:.4g} |" in sent


def test_a_name_that_is_no_file_name_is_still_saved(client, three_cities):
    text = three_cities.replace("name: three cities", 'name: "../上海 \\"x\\""')
    named = client.post("/api/v1/report", json={"text": text}).headers["content-disposition"]
    assert 'filename="x.md"' in named
    assert "..-%E4%B8%8A%E6%B5%B7" in named
    assert "\n" not in named


@pytest.mark.parametrize(
    "body", [{"text": "model: x"}, {"text": "", "format": "md"}, {"text": "a: 1", "format": "pdf"}]
)
def test_what_cannot_be_reported_is_refused(client, body):
    refused = client.post("/api/v1/report", json=body)
    assert refused.status_code == 422
    assert refused.json()["errors"]
