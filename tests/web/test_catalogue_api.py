"""Own entries through the API: kept as files, seen by every surface, refused with the field and the status."""

import json

import pytest

from commands import call

GPU = {"dense_tflops": {"bf16": 300}, "memory_gib": 64, "memory_gb_per_s": 2000, "usd_per_hour": 0}
SCENARIO = """
model: llama-2-7b
job: {seq_len: 2048, global_batch: 64, tokens: 1.0e+9}
cluster: {zones: [{name: here, nodes: [{count: 1, gpus: 8, gpu: my-gpu}]}]}
strategy: {tp: 2}
"""


def add(client, kind="gpus", name="my-gpu", fields=GPU):
    return client.post(f"/api/v1/catalogue/{kind}", json={"name": name, "fields": fields})


def crosszone(*words):
    return json.loads(call(*words, "--json").stdout)


@pytest.mark.slow
def test_an_added_gpu_is_in_the_api_the_command_line_and_a_server_started_later(client, tmp_path):
    from starlette.testclient import TestClient

    from crosszone.web.app import create_app

    made = add(client)
    assert made.status_code == 201
    assert made.json()["own"] is True
    assert made.json()["usd_per_hour"] == 0
    shown = {one["figure"]: one["value"] for one in made.json()["figures"]}
    assert shown["usd_per_hour"] == 0
    assert "notes" not in shown
    listed = client.get("/api/v1/catalogue/gpus").json()
    assert [gpu["name"] for gpu in listed if gpu["own"]] == ["my-gpu"]
    assert crosszone("catalogue", "gpus", "my-gpu")["memory_gib"] == 64
    later = TestClient(create_app(store=str(tmp_path / "later.db")), base_url="http://127.0.0.1:8000")
    assert later.get("/api/v1/catalogue/gpus/my-gpu").json()["usd_per_hour"] == 0


def test_a_gpu_added_on_the_command_line_is_in_the_api(client, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("typed-gpu: {dense_tflops: {bf16: 100}, memory_gib: 32, memory_gb_per_s: 900}\n", "utf-8")
    crosszone("catalogue", "add", "gpus", str(file))
    assert client.get("/api/v1/catalogue/gpus/typed-gpu").json()["own"] is True


def test_a_free_gpu_can_be_predicted_and_costs_nothing(client):
    add(client)
    predicted = client.post("/api/v1/predict", json={"text": SCENARIO}).json()
    assert predicted["run"]["usd"]["expected"] == 0
    assert predicted["gpus"] == 8


def test_an_entry_is_changed_and_removed(client):
    add(client)
    changed = client.put("/api/v1/catalogue/gpus/my-gpu", json={"fields": {**GPU, "memory_gib": 96}})
    assert changed.status_code == 200
    assert client.get("/api/v1/catalogue/gpus/my-gpu").json()["memory_gib"] == 96
    assert client.delete("/api/v1/catalogue/gpus/my-gpu").json() == {"removed": "my-gpu"}
    gone = client.get("/api/v1/catalogue/gpus/my-gpu")
    assert (gone.status_code, gone.json()["field"]) == (404, "name")


def test_changing_one_entry_of_a_file_with_two_keeps_the_other(client, tmp_path):
    folder = tmp_path / "home" / "catalogue" / "gpus"
    folder.mkdir(parents=True)
    one = "{dense_tflops: {bf16: 100}, memory_gib: 32, memory_gb_per_s: 900}"
    (folder / "both.yaml").write_text(f"first-gpu: {one}\nsecond-gpu: {one}\n", "utf-8")
    changed = client.put("/api/v1/catalogue/gpus/second-gpu", json={"fields": GPU})
    assert changed.status_code == 200
    own = {gpu["name"]: gpu["memory_gib"] for gpu in client.get("/api/v1/catalogue/gpus").json() if gpu["own"]}
    assert own == {"first-gpu": 32, "second-gpu": 64}
    assert [path.name for path in folder.iterdir()] == ["both.yaml"]


@pytest.mark.parametrize(("name", "code"), [("my-gpu", "own_exists"), ("a100-80gb-sxm", "name_taken")])
def test_a_taken_name_is_a_conflict_at_the_name(client, name, code):
    add(client)
    refused = add(client, name=name)
    assert (refused.status_code, refused.json()["code"], refused.json()["field"]) == (409, code, "name")


def test_an_alias_that_is_taken_is_a_conflict(client):
    refused = add(client, fields={**GPU, "aliases": ["h100-80gb-sxm"]})
    assert (refused.status_code, refused.json()["code"]) == (409, "name_taken")


def test_built_in_entries_cannot_be_changed_or_removed(client):
    path = "/api/v1/catalogue/gpus/a100-80gb-sxm"
    for answer in (client.put(path, json={"fields": GPU}), client.delete(path)):
        assert (answer.status_code, answer.json()["code"]) == (403, "not_own")
    assert client.get(path).json()["own"] is False


@pytest.mark.parametrize(
    ("fields", "field", "code"),
    [
        ({**GPU, "memory_gib": -1}, "memory_gib", "must_be_more_than"),
        ({**GPU, "memory_gib": "much"}, "memory_gib", "must_be_number"),
        ({**GPU, "dense_tflops": {"bf16": 0}}, "dense_tflops.bf16", "must_be_more_than"),
        ({**GPU, "memroy_gib": 1}, "memroy_gib", "unknown_key"),
        ({"dense_tflops": {}, "memory_gib": 64}, "memory_gb_per_s", "missing_key"),
        ({**GPU, "usd_per_hour": 1e30}, "usd_per_hour", "must_be_at_most"),
        ({**GPU, "form": "cube"}, "form", "not_one_of"),
        ({**GPU, "notes": "x" * 10_001}, "notes", "text_too_long"),
        ({"like": "no-such-gpu"}, "like", "unknown_name"),
    ],
)
def test_a_wrong_field_is_named_as_the_form_has_it(client, fields, field, code):
    refused = add(client, fields=fields)
    assert refused.status_code == 422
    assert (field, code) in [(one["field"], one["code"]) for one in refused.json()["errors"]]
    assert client.get("/api/v1/catalogue/gpus/my-gpu").status_code == 404


@pytest.mark.parametrize("name", ["../up", "a/b", "Öl", "x" * 101, "", "a\nb", ".hidden"])
def test_a_name_that_cannot_be_a_file_is_refused_at_the_name(client, name):
    refused = add(client, name=name)
    assert refused.status_code == 422
    assert refused.json()["field"] == "name"


def test_models_and_regions_are_kept_too(client):
    llama = client.get("/api/v1/catalogue/models/llama-2-7b/fields").json()
    assert llama["own"] is False
    assert "source" not in llama["fields"]
    assert add(client, "models", "my-model", {**llama["fields"], "name": "other"}).status_code == 201
    mine = client.get("/api/v1/catalogue/models/my-model").json()
    assert mine["parameters"]["total"] == 6_738_415_616  # Touvron et al. 2023: 7B as counted from the released weights
    assert add(client, "regions", "my-hall", {"lat": 31.2, "lon": 121.5}).status_code == 201
    assert client.get("/api/v1/catalogue/regions/my-hall/fields").json()["fields"]["lat"] == 31.2


def test_every_field_of_a_form_is_one_of_the_entry_and_every_entry_fills_the_form(client):
    for kind, name in (("gpus", "h100-80gb-sxm"), ("models", "mixtral-8x7b"), ("regions", "cn-beijing")):
        form = {field["path"]: field for field in client.get(f"/api/v1/catalogue/forms/{kind}").json()}
        fields = client.get(f"/api/v1/catalogue/{kind}/{name}/fields").json()["fields"]
        given = {path for path, _ in flat(fields)}
        assert given <= form.keys()
        assert {path for path, field in form.items() if field["required"] and not field["optional_group"]} <= given


def flat(fields, before=""):
    for key, value in fields.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{key}.")
        else:
            yield before + key, value


def test_a_pasted_config_is_read_as_fields_that_can_be_kept(client):
    config = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
              "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096}  # fmt: skip
    read = client.post("/api/v1/catalogue/models/hf", json={"text": json.dumps(config), "name": "pasted"}).json()
    assert read["parameters"]["total"] == 6_738_415_616
    assert add(client, "models", read["name"], read["fields"]).status_code == 201


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("{}", "model_type"),
        ('{"model_type": "nothing-known"}', "model_type"),
        ('{"model_type": "llama"}', ""),
        ("[1]", ""),
        ("{", ""),
    ],
)
def test_a_config_that_cannot_be_read_says_why(client, text, field):
    refused = client.post("/api/v1/catalogue/models/hf", json={"text": text})
    assert refused.status_code == 422
    assert field in refused.json()["field"]


def test_an_unknown_kind_is_not_found(client):
    for answer in (add(client, "links"), client.get("/api/v1/catalogue/forms/links")):
        assert (answer.status_code, answer.json()["code"]) == (404, "kind_unknown")


def test_profiles_say_unit_origin_and_error_of_each_coefficient(client):
    profiles = {one["name"]: one for one in client.get("/api/v1/profiles").json()}
    assert {"common", "a100", "megatron-core"} <= profiles.keys()
    assert profiles["generic"]["measured"] is False
    assert profiles["generic"]["low"] < profiles["megatron-core"]["low"] < 1
    shown = client.get("/api/v1/profiles/common").json()
    figures = {one["name"]: one for one in shown["figures"]}
    assert figures["host_s"]["unit"] == "s"
    assert figures["base_gib"]["unit"] == "GiB"
    assert figures["matmul"]["origin"] == "fitted"
    assert 0 < figures["matmul"]["value"] < 1
    assert 0 < figures["matmul"]["error_pct"] < 100
    assert len(figures) == shown["coefficients"]
    missing = client.get("/api/v1/profiles/megatron-cor")
    assert missing.status_code == 404
    assert "megatron-core" in missing.json()["hint"]


def test_names_of_profiles_are_their_own():
    from crosszone.cost.description import list_profile_descriptions

    names = [one.name for one in list_profile_descriptions()]
    assert len(names) == len(set(names))
