"""Saved scenarios and results over HTTP, and results beside each other."""

import csv
import io
import json

import pytest

from crosszone.errors import Notice, StoreError

API = "/api/v1"
SMALL = """
name: two nodes
model: llama-2-7b
job: {seq_len: 4096, global_batch: 256, tokens: 1.0e+9}
cluster: {zones: [{name: here, region: cn-beijing, nodes: [{count: 2, gpus: 8, gpu: a100-80gb-sxm, nic_gbps_per_gpu: 200}]}]}
strategy: {tp: 2, pp: 1}
"""
TRACE = "lane,group,kind,start_s,end_s,micro_batch\nstage-0,stages,forward,0,1,0\nstage-0,stages,backward,1,3,0\n"


@pytest.fixture(autouse=True)
def _empty(client):
    """Each test begins with nothing saved."""
    for noun in ("results", "scenarios"):
        for row in client.get(f"{API}/{noun}?limit=500").json()["rows"]:
            client.delete(f"{API}/{noun}/{row['id']}")


def save(client, name="first", status=201, **body):
    answer = client.post(f"{API}/results", json={"name": name, "text": SMALL, **body})
    assert answer.status_code == status, answer.text
    return answer.json()


def test_a_saved_result_holds_exactly_what_predict_answers(client):
    way = {"framework": "megatron", "strategy": {"tp": 4, "pp": 2}, "placement": None}
    kept = save(client, way=way, note="of June")
    predicted = client.post(f"{API}/predict", json={"text": SMALL, "way": way}).json()
    whole = client.get(f"{API}/results/{kept['id']}").json()
    assert whole["document"] == predicted
    assert (whole["scenario"], whole["way"], whole["note"], whole["kind"]) == (SMALL, way, "of June", "predicted")
    assert sum(whole["timeline"]["phases_s"].values()) == pytest.approx(predicted["step_time_s"]["expected"])
    assert kept["headline"]["step_time_s"]["value"] == predicted["step_time_s"]["expected"]


def test_the_scenario_of_a_result_is_given_as_it_was_done(client):
    way = {"framework": "megatron", "strategy": {"tp": 4, "pp": 2}}
    for kept in (save(client, way=way), save(client)):
        text = client.get(f"{API}/results/{kept['id']}/scenario").text
        again = client.post(f"{API}/predict", json={"text": text}).json()
        assert again["step_time_s"]["expected"] == kept["headline"]["step_time_s"]["value"]
    bare = save(client, kind="measured", text=None, figures={"step_time_s": 1.0})
    answer = client.get(f"{API}/results/{bare['id']}/scenario")
    assert (answer.status_code, answer.json()["code"]) == (404, "result_bare")


def test_the_list_shows_the_main_figures_without_the_documents(client):
    save(client)
    page = client.get(f"{API}/results").json()
    assert (page["total"], page["before"]) == (1, None)
    headline = page["rows"][0]["headline"]
    assert {"step_time_s", "tokens_per_s", "usd", "memory_gib", "fits", "framework", "degrees"} <= headline.keys()
    assert "document" not in page["rows"][0]


def test_numbers_of_the_page_are_not_taken(client):
    answer = client.post(f"{API}/results", json={"name": "x", "text": SMALL, "prediction": {"step_time_s": 1}})
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_key")


def test_a_result_without_a_name_is_called_as_its_scenario(client):
    assert save(client, name=None)["name"] == "two nodes"


def test_pages_follow_each_other(client):
    for i in range(3):
        save(client, f"m{i}", kind="measured", text=None, figures={"step_time_s": 1.0 + i})
    first = client.get(f"{API}/results", params={"limit": 2}).json()
    second = client.get(f"{API}/results", params={"limit": 2, "before": first["before"]}).json()
    assert [row["name"] for row in first["rows"] + second["rows"]] == ["m2", "m1", "m0"]
    assert second["before"] is None


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=501", "limit=9223372036854775808", "limit=x", "before=nowhere", "before=" + "x" * 300]
)
def test_a_page_that_cannot_be_is_refused(client, query):
    answer = client.get(f"{API}/results?{query}")
    assert (answer.status_code, bool(answer.json()["message"])) == (422, True)


def test_a_result_is_renamed_and_deleted(client):
    kept = save(client)
    renamed = client.patch(f"{API}/results/{kept['id']}", json={"name": " 第一次 "})
    assert (renamed.status_code, renamed.json()["name"]) == (200, "第一次")
    assert client.patch(f"{API}/results/{kept['id']}", json={"note": "n"}).json()["name"] == "第一次"
    assert client.delete(f"{API}/results/{kept['id']}").status_code == 204
    for method in ("get", "delete"):
        assert getattr(client, method)(f"{API}/results/{kept['id']}").status_code == 404


@pytest.mark.parametrize("noun", ["results", "scenarios"])
@pytest.mark.parametrize("id", ["none", "9223372036854775808", "%00", "%ED%A0%80", "..%2f..", "x" * 300])
def test_an_id_nobody_has_is_a_404_or_422_with_a_notice(client, noun, id):
    for answer in (
        client.get(f"{API}/{noun}/{id}"),
        client.delete(f"{API}/{noun}/{id}"),
        client.patch(f"{API}/{noun}/{id}", json={"name": "x"}),
    ):
        assert answer.status_code in (404, 405, 422), answer.text
        assert answer.json()["message"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "result_needs"),
        ({"kind": "predicted", "figures": {"step_time_s": 1.0}}, "result_needs"),
        ({"kind": "predicted", "text": SMALL, "trace": TRACE}, "result_needs"),
        ({"kind": "sheet", "text": SMALL}, "result_needs"),
        ({"kind": "sheet", "trace": TRACE}, "result_needs"),
        ({"kind": "measured", "trace": TRACE, "figures": {"step_time_s": 1.0}}, "result_needs"),
        ({"kind": "measured", "trace": TRACE, "way": {"strategy": {}}}, "result_needs"),
        ({"kind": "measured", "trace": "nothing"}, None),
        ({"kind": "measured", "figures": {"step_time_s": -1.0}}, "must_be_more_than"),
        ({"kind": "measured", "figures": {"step_time_s": 1.0}, "name": "a\u0000b"}, "saved_name"),
        ({"kind": "measured", "figures": {"step_time_s": 1.0}, "name": "x" * 201}, "saved_name"),
        ({"kind": "measured", "figures": {"step_time_s": 1.0}, "note": "a\u0000b"}, "text_unstorable"),
        ({"kind": "guessed", "text": SMALL}, None),
        ({"text": SMALL.replace("tp: 2", "tp: 3")}, None),
        ({"text": SMALL, "scenario": {}}, "one_of_body"),
        ({"text": SMALL, "name": "  "}, "saved_name"),
    ],
)  # fmt: skip
def test_what_cannot_be_saved_is_refused_and_nothing_is(client, body, code):
    answer = client.post(f"{API}/results", json=body)
    assert answer.status_code == 422, answer.text
    assert code is None or answer.json()["code"] == code
    assert answer.json()["hint"]
    assert client.get(f"{API}/results").json()["total"] == 0


def test_half_a_surrogate_pair_in_a_name_is_refused(client):
    body = json.dumps({"kind": "measured", "figures": {"step_time_s": 1.0}, "name": "\ud800"})
    answer = client.post(f"{API}/results", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)


def test_a_measured_trace_a_sheet_and_a_prediction_stand_beside_each_other(client):
    ids = [
        save(client, "guide")["id"],
        save(client, "sheet", kind="sheet", text=None, figures={"step_time_s": 20.0, "breakdown_s": {"matmul": 5.0}})[
            "id"
        ],
        save(client, "trace", kind="measured", text=None, trace=TRACE)["id"],
    ]
    found = client.post(f"{API}/compare", json={"items": [{"result": id} for id in ids]}).json()
    assert [(side["name"], side["kind"], side["id"]) for side in found["sides"]] == [
        ("guide", "predicted", ids[0]), ("sheet", "sheet", ids[1]), ("trace", "measured", ids[2])]  # fmt: skip
    assert found["scale_s"] == max(side["step_s"] for side in found["sides"])
    assert found["sides"][2]["step_s"] == 3.0
    step = found["figures"][0]
    assert step["name"] == "step_time_s"
    assert step["cells"][1]["difference"] == pytest.approx(20.0 - step["cells"][0]["value"])


def test_scenarios_are_compared_without_being_saved(client):
    other = {"framework": "megatron", "strategy": {"tp": 8, "pp": 2}}
    found = client.post(
        f"{API}/compare", json={"items": [{"text": SMALL}, {"text": SMALL, "way": other, "name": "tp 8"}]}
    ).json()
    assert [side["name"] for side in found["sides"]] == ["two nodes", "tp 8"]
    assert 0 <= found["sides"][1]["chance_faster"] <= 1
    assert client.get(f"{API}/results").json()["total"] == 0


@pytest.mark.parametrize(
    ("items", "status"),
    [
        ([], 422),
        ([{"text": SMALL}], 422),
        ([{"text": SMALL}] * 51, 422),
        ([{"text": SMALL}, {}], 422),
        ([{"text": SMALL}, {"result": "x", "text": SMALL}], 422),
        ([{"text": SMALL}, {"result": "nobody"}], 404),
        ([{"text": SMALL}, {"result": "\u0000"}], 404),
        ("x", 422),
    ],
)
def test_what_cannot_be_compared_is_refused(client, items, status):
    answer = client.post(f"{API}/compare", json={"items": items})
    assert (answer.status_code, bool(answer.json()["hint"])) == (status, True), answer.text


def test_a_result_of_a_version_whose_numbers_are_gone_is_named(tmp_path):
    from starlette.testclient import TestClient

    from crosszone.store import open_store
    from crosszone.web.app import create_app

    path = str(tmp_path / "old.db")
    with open_store(path) as store:
        old = store.results.add(kind="predicted", name="of old", document={"step": 1}, headline={})
    with TestClient(create_app(store=path, workers=1), base_url="http://127.0.0.1:8000") as client:
        answer = client.post(f"{API}/compare", json={"items": [{"text": SMALL}, {"result": old.id}]})
    assert (answer.status_code, answer.json()["code"]) == (409, "saved_older")
    assert "of old" in answer.json()["message"]


def test_chosen_results_are_exported_as_a_table_and_whole(client):
    ids = ",".join(
        [
            save(client, "=cmd|' /C calc'!A0")["id"],
            save(client, "real", kind="measured", text=None, figures={"step_time_s": 2.5})["id"],
        ]
    )
    answer = client.get(f"{API}/results/export", params={"ids": ids})
    assert answer.headers["content-disposition"] == 'attachment; filename="crosszone-results.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["name"] for row in rows] == ["'=cmd|' /C calc'!A0", "real"]  # no spreadsheet runs it
    assert (rows[1]["step_time_s"], rows[1]["step_time_s_low"], rows[1]["classes_other_s"]) == ("2.5", "", "2.5")
    assert float(rows[0]["step_time_s_low"]) < float(rows[0]["step_time_s"])
    whole = client.get(f"{API}/results/export", params={"ids": ids, "format": "json"}).json()
    assert [one["document"]["step_time_s"] for one in whole][1] == 2.5


@pytest.mark.parametrize(
    ("ids", "status"), [("", 422), (",", 422), ("nobody", 404), ("a," * 60, 422), ("x" * 5000, 422)]
)
def test_an_export_of_nothing_is_refused(client, ids, status):
    assert client.get(f"{API}/results/export", params={"ids": ids}).status_code == status


def test_scenarios_are_saved_as_they_are_even_with_mistakes(client):
    made = client.post(f"{API}/scenarios", json={"name": "草稿", "text": "model: no such\n# later"})
    assert made.status_code == 201
    kept = client.get(f"{API}/scenarios/{made.json()['id']}").json()
    assert (kept["name"], kept["text"]) == ("草稿", "model: no such\n# later")
    changed = client.patch(f"{API}/scenarios/{kept['id']}", json={"text": SMALL}).json()
    assert (changed["text"], changed["created"]) == (SMALL, kept["created"])
    assert [row["name"] for row in client.get(f"{API}/scenarios").json()["rows"]] == ["草稿"]
    assert client.delete(f"{API}/scenarios/{kept['id']}").status_code == 204


def test_a_scenario_saved_with_a_way_is_done_that_way(client):
    way = {"framework": "megatron", "strategy": {"tp": 4, "pp": 2}}
    kept = client.post(f"{API}/scenarios", json={"name": "x", "text": SMALL, "way": way}).json()
    again = client.post(f"{API}/predict", json={"text": kept["text"]}).json()
    assert again["step_time_s"] == client.post(f"{API}/predict", json={"text": SMALL, "way": way}).json()["step_time_s"]


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x"},
        {"text": "x"},
        {"name": "", "text": "x"},
        {"name": "x", "text": "a\u0000"},
        {"name": 1, "text": "x"},
    ],
)
def test_scenarios_that_cannot_be_saved_are_refused(client, body):
    assert client.post(f"{API}/scenarios", json=body).status_code == 422


def test_deeply_nested_objects_are_refused_or_saved_but_break_nothing(client):
    deep = {"a": 1}
    for _ in range(150):
        deep = {"a": deep}
    assert client.post(f"{API}/scenarios", json={"name": "x", "scenario": deep}).status_code in (201, 400, 422)


def test_an_empty_change_is_refused(client):
    kept = save(client)
    assert client.patch(f"{API}/results/{kept['id']}", json={}).status_code == 422


def test_a_store_that_is_out_of_reach_is_a_503_with_the_remedy(client, monkeypatch):
    from crosszone.store.table import Access

    def gone(self):
        raise StoreError(Notice(code="store_failed", value="postgresql://db/plans", params={"reason": "gone"}))

    monkeypatch.setattr(Access, "begin_read", gone)
    answer = client.get(f"{API}/results")
    assert (answer.status_code, answer.json()["code"]) == (503, "store_failed")
    assert answer.json()["hint"]
