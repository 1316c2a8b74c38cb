"""Bundles over HTTP: looked at, saved, listed, handed out file by file or whole, deleted; and every way to be refused."""

import io
import json
import re
import zipfile

import pytest
import yaml

from crosszone.deploy.bundle import Bundle
from crosszone.deploy.frameworks import FRAMEWORKS
from crosszone.deploy.launchers import LAUNCHERS
from crosszone.deploy.settings import LaunchSettings, TrainingSettings
from crosszone.inputs.schema import build_json_schema
from crosszone.web.routes.bundles import build_choices
from crosszone.web.scenarios import find_examples_folder

HERE = """
name: {name}
model: llama-2-7b
job: {{seq_len: 4096, global_batch: 256}}
cluster:
  zones:
    - name: here
      nodes:
        - {{count: 2, gpus: 8, gpu: a100-80gb-sxm, nic_gbps_per_gpu: 200{hosts}}}
strategy: {{dp: 16, zero: 3}}
"""
HOSTS = ", hosts: [{address: 10.0.0.1, interface: eth0}, {address: 10.0.0.2}]"


def body(name="two nodes", hosts=HOSTS, **more):
    return {"text": HERE.format(name=name, hosts=hosts), "framework": "fsdp", **more}


@pytest.fixture
def saved(client):
    """The row of a new saved bundle."""
    answer = client.post("/api/v1/bundles", json=body(name="两地 two/nodes"))
    assert answer.status_code == 201, answer.text
    yield answer.json()
    client.delete(f"/api/v1/bundles/{answer.json()['id']}")


def test_a_preview_is_the_bundle_of_the_command_line_and_saves_nothing(client, tmp_path):
    from typer.testing import CliRunner

    from crosszone.cli import app

    before = client.get("/api/v1/bundles").json()["total"]
    answer = client.post("/api/v1/bundles/preview", json=body(settings={"port": 29501, "training": {"lr": 0.001}}))
    assert answer.status_code == 200, answer.text
    file = tmp_path / "scenario.yaml"
    file.write_text(body()["text"], encoding="utf-8")
    asked = ["deploy", str(file), "--framework", "fsdp", "--set", "port=29501", "--set", "training.lr=0.001", "--json"]
    made = json.loads(CliRunner().invoke(app, asked).stdout)
    assert {one["path"]: one["text"] for one in answer.json()["files"]} == {
        one["path"]: one["text"] for one in made["files"]
    }
    assert answer.json()["nodes"] == made["nodes"]
    assert made["nodes"][1]["address"] == "10.0.0.2"
    assert "29501" in Bundle(**made).get_text("nodes/000.sh")
    assert client.get("/api/v1/bundles").json()["total"] == before


def test_a_preview_tells_how_far_it_is(client):
    text = body()["text"].partition("strategy")[0]
    headers = {"Accept": "text/event-stream"}
    answer = client.post("/api/v1/bundles/preview", json={"text": text, "template": True}, headers=headers)
    events = re.findall(r"^event: (\w+)$", answer.text, re.MULTILINE)
    assert events[0] == "started"
    assert "progress" in events
    assert events[-1] == "result"
    assert json.loads(re.findall(r"^data: (.*)$", answer.text, re.MULTILINE)[-1])["world_size"] == 16


@pytest.mark.slow
def test_a_preview_can_be_cancelled_by_its_id(server_client):
    text = (find_examples_folder() / "four-zones-405b.yaml").read_text("utf-8")
    text = re.sub(r"^strategy:.*?(?=^\w|\Z)", "", text, flags=re.DOTALL | re.MULTILINE)  # so that one is looked for
    headers = {"Accept": "text/event-stream"}
    sent = {"text": text, "template": True, "budget_s": 60}
    with server_client.stream("POST", "/api/v1/bundles/preview", json=sent, headers=headers) as answer:
        lines = answer.iter_lines()
        id = json.loads(next(line for line in lines if line.startswith("data: ")).removeprefix("data: "))["id"]
        assert server_client.delete(f"/api/v1/work/{id}").status_code == 204
        rest = [line for line in lines if line.startswith(("event: ", "data: "))]
    assert rest[-2] == "event: error"
    assert json.loads(rest[-1].removeprefix("data: "))["code"] == "work_cancelled"


def test_a_bundle_is_saved_listed_opened_and_deleted(client, saved):
    assert set(saved) == {
        "id", "name", "framework", "launcher", "template", "world_size", "nodes", "created", "bytes",
    }  # fmt: skip
    assert (saved["name"], saved["framework"], saved["launcher"]) == ("两地 two/nodes", "fsdp", "nodes")
    assert (saved["world_size"], saved["nodes"], saved["template"]) == (16, 2, False)
    assert client.get("/api/v1/bundles").json()["rows"][0] == saved
    whole = client.get(f"/api/v1/bundles/{saved['id']}").json()
    assert {key: whole[key] for key in saved} == saved
    files = whole["bundle"]["files"]
    assert saved["bytes"] == sum(len(one["text"].encode()) for one in files)
    assert client.delete(f"/api/v1/bundles/{saved['id']}").status_code == 204
    assert client.get(f"/api/v1/bundles/{saved['id']}").status_code == 404
    assert client.delete(f"/api/v1/bundles/{saved['id']}").status_code == 404


def test_a_name_of_ones_own_is_kept(client):
    row = client.post("/api/v1/bundles", json=body(name="x") | {"name": " night run "}).json()
    assert row["name"] == "night run"
    client.delete(f"/api/v1/bundles/{row['id']}")


def test_the_language_is_that_of_the_request(client):
    said = [
        client.post("/api/v1/bundles/preview", json=body(), headers={"Accept-Language": language}).json()
        for language in ("en", "zh")
    ]
    whys = [[one["why"] for one in made["options"]] for made in said]
    assert not re.search(r"[\u4e00-\u9fff]", "".join(whys[0]))
    assert all(re.search(r"[\u4e00-\u9fff]", why) for why in whys[1])


def test_one_file_is_given_as_text(client, saved):
    whole = client.get(f"/api/v1/bundles/{saved['id']}").json()["bundle"]
    for one in whole["files"]:
        answer = client.get(f"/api/v1/bundles/{saved['id']}/files/{one['path']}")
        assert answer.status_code == 200, one["path"]
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.text == one["text"]


@pytest.mark.parametrize(
    "path",
    [
        "nope", "nodes", "nodes/", "nodes/9.sh", "NODES/000.sh", "nodes%2F%2E%2E%2Fplan.yaml", "..%2f..%2fetc%2fpasswd",
        "%2e%2e/%2e%2e/etc/passwd", "/etc/passwd", "nodes%2f..%2fplan.yaml", "plan.yaml%00", "plan.yaml/", "%2E%2Fplan.yaml",
        "..\\..\\windows", "%252e%252e%252fplan.yaml", "nodes//000.sh",
    ],
)  # fmt: skip
def test_only_a_members_own_path_is_answered(client, saved, path):
    answer = client.get(f"/api/v1/bundles/{saved['id']}/files/{path}")
    assert answer.status_code in (404, 422), path
    assert answer.json()["code"]


def test_the_archive_holds_every_file_in_one_folder_under_a_plain_name(client, saved):
    answer = client.get(f"/api/v1/bundles/{saved['id']}/zip")
    assert answer.headers["content-type"] == "application/zip"
    told = answer.headers["content-disposition"]
    assert re.match(r'attachment; filename="two-nodes-fsdp\.zip"; filename\*=UTF-8\'\'[A-Za-z0-9%._-]+\.zip$', told)
    whole = client.get(f"/api/v1/bundles/{saved['id']}").json()["bundle"]
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == {
            f"two-nodes-fsdp/{one['path']}": one["text"] for one in whole["files"]
        }
        script = archive.getinfo("two-nodes-fsdp/nodes/000.sh")
        assert script.external_attr >> 16 == 0o755


def test_an_archive_can_be_had_without_saving(client):
    before = client.get("/api/v1/bundles").json()["total"]
    answer = client.post("/api/v1/bundles/zip", json=body(name='x"; rm -rf ~ ../../x'))
    assert answer.status_code == 200
    assert 'filename="x-rm-rf-x-fsdp.zip"' in answer.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert {name.partition("/")[0] for name in archive.namelist()} == {"x-rm-rf-x-fsdp"}
        assert archive.testzip() is None
    assert client.get("/api/v1/bundles").json()["total"] == before


def test_missing_addresses_are_told_by_field_and_a_template_does_without(client):
    answer = client.post("/api/v1/bundles/preview", json=body(hosts="", launcher="ssh"))
    assert answer.status_code == 422
    assert (answer.json()["code"], answer.json()["field"]) == ("launch_no_address", "cluster.zones[0].nodes[0].hosts")
    templated = client.post("/api/v1/bundles/preview", json=body(hosts="", launcher="ssh", template=True))
    assert templated.status_code == 200
    assert templated.json()["template"] is True
    assert "hosts.txt" in [one["path"] for one in templated.json()["files"]]


@pytest.mark.parametrize(
    ("more", "code", "field"),
    [
        ({"framework": "tensorflow"}, "not_one_of_these", "framework"),
        ({"launcher": "../nodes"}, "not_one_of", "launcher"),
        ({"launcher": "pods"}, "not_one_of", "launcher"),  # a file beside the launchers is none
        ({"settings": {"port": 0}}, "must_be_at_least", "settings.port"),
        ({"settings": {"port": "x"}}, "must_be_whole", "settings.port"),
        ({"settings": {"training": {"lr": -1}}}, "must_be_more_than", "settings.training.lr"),
        ({"settings": {"prot": 1}}, "unknown_key", "settings.prot"),
        ({"settings": []}, "must_be_mapping", "settings"),
        ({"template": "yes"}, "not_valid", "template"),
        ({"frmework": "ddp"}, "unknown_key", "frmework"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_by_field(client, more, code, field):
    for route in ("bundles/preview", "bundles", "bundles/zip"):
        answer = client.post(f"/api/v1/{route}", json=body(**more) if "framework" not in more else body() | more)
        assert answer.status_code == 422, answer.text
        assert (answer.json()["code"], answer.json()["field"]) == (code, field)
        assert answer.json()["hint"]


def test_what_the_framework_cannot_do_is_refused(client):
    text = body()["text"].replace("strategy: {dp: 16, zero: 3}", "strategy: {tp: 2, dp: 8}")
    answer = client.post("/api/v1/bundles/preview", json={"text": text, "framework": "ddp"})
    assert answer.status_code == 422
    assert answer.json()["hint"]


def test_an_unknown_bundle_is_not_there(client):
    for path in ("nope", "nope/zip", "nope/files/plan.yaml", "..%2f1", "1"):
        answer = client.get(f"/api/v1/bundles/{path}")
        assert answer.status_code == 404, path
    assert client.get("/api/v1/bundles/nope").json()["code"] == "saved_missing"
    assert client.delete("/api/v1/bundles/nope").status_code == 404


def test_a_cluster_of_too_many_nodes_is_refused_before_any_work(client):
    text = body(hosts="")["text"].replace("count: 2", "count: 10001").replace("dp: 16", "dp: 80008")
    answer = client.post("/api/v1/bundles/preview", json={"text": text.replace("256", "80008"), "template": True})
    assert (answer.status_code, answer.json()["code"]) == (422, "bundle_too_many_nodes")


@pytest.mark.slow
def test_a_bundle_of_two_thousand_nodes_is_saved_and_handed_out(client):
    text = body(hosts="")["text"].replace("count: 2", "count: 2048").replace("dp: 16", "dp: 16384")
    sent = {"text": text.replace("256", "16384"), "template": True, "launcher": "ssh"}
    row = client.post("/api/v1/bundles", json=sent).json()
    assert (row["nodes"], row["world_size"]) == (2048, 16384)
    archive = client.get(f"/api/v1/bundles/{row['id']}/zip")
    with zipfile.ZipFile(io.BytesIO(archive.content)) as opened:
        assert sum("/nodes/" in name for name in opened.namelist()) == 2048
    last = client.get(f"/api/v1/bundles/{row['id']}/files/nodes/2047.sh")
    assert "--node-rank 2047" in last.text
    client.delete(f"/api/v1/bundles/{row['id']}")


@pytest.mark.parametrize("escaped", [r"\ud800", r"\u0000", r"\u202e", r"\u2028"])
def test_characters_that_no_file_can_hold_are_no_failure(client, escaped):
    region = f'- name: here\n      region: {{lat: 1, lon: 2, place: "x{escaped}"}}'
    text = body()["text"].replace("- name: here", region)
    answer = client.post("/api/v1/bundles/preview", json={"text": text, "framework": "fsdp"})
    assert answer.status_code in (200, 422), answer.text
    sent = json.dumps(body(settings={"data": "HERE"})).replace("HERE", f"a{escaped}")
    answer = client.post("/api/v1/bundles/preview", content=sent, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 400, 422), answer.text


def test_the_choices_name_everything_that_can_be_asked_for(client):
    for language in ("en", "zh"):
        told = client.get("/api/v1/bundles/choices", headers={"Accept-Language": language}).json()
        assert [one["name"] for one in told["frameworks"]] == list(FRAMEWORKS)
        assert [one["name"] for one in told["launchers"]] == list(LAUNCHERS)
        assert {one["name"]: one["needs_addresses"] for one in told["launchers"]}["ssh"] is True
        flat = {name for name in LaunchSettings.model_fields if name != "training"}
        flat |= {f"training.{name}" for name in TrainingSettings.model_fields}
        assert {one["name"] for one in told["settings"]} == flat
        known = {one["name"]: one for one in told["settings"]}
        assert (known["port"]["kind"], known["port"]["default"], known["port"]["most"]) == ("count", 29500, 65535)
        assert (known["gres"]["kind"], known["partitions"]["kind"], known["data"]["kind"]) == ("flag", "zones", "text")
        assert (known["training.lr"]["kind"], known["training.lr"]["default"]) == ("number", 3e-4)
        assert {one["group"] for one in told["settings"]} == {"network", "folders", "launcher", "training"}
        assert {launcher for one in told["settings"] for launcher in one["launchers"]} <= set(LAUNCHERS)


def test_a_setting_means_what_its_docstring_says():
    schema = build_json_schema("launch", {"launch": LaunchSettings})
    said = {key: one["description"] for key, one in schema["properties"].items()}
    said |= {
        f"training.{key}": one["description"] for key, one in schema["$defs"]["TrainingSettings"]["properties"].items()
    }
    for one in build_choices("en").settings:
        assert one.meaning == said[one.name], one.name


def test_settings_left_at_their_default_change_nothing(client):
    """So that a form may send everything it shows."""
    told = client.get("/api/v1/bundles/choices").json()["settings"]
    everything = {one["name"]: one["default"] for one in told if one["default"] is not None and "." not in one["name"]}
    everything["training"] = {one["name"][9:]: one["default"] for one in told if one["name"].startswith("training.")}
    plain = client.post("/api/v1/bundles/preview", json=body()).json()
    assert client.post("/api/v1/bundles/preview", json=body(settings=everything)).json() == plain


def test_the_plan_in_a_bundle_is_a_scenario_again(client):
    made = Bundle(**client.post("/api/v1/bundles/preview", json=body()).json())
    again = client.post("/api/v1/bundles/preview", json={"text": made.get_text("plan.yaml")})
    assert again.status_code == 200, again.text
    assert again.json()["framework"] == "fsdp"
    assert yaml.safe_load(made.get_text("plan.yaml"))["strategy"]["dp"] == 16
