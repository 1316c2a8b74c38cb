"""Calibrate over HTTP: files handed in, fits told, runs kept, profiles made the default; what is wrong is named and nothing kept."""

import asyncio
import gzip
import json
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
import yaml

from crosszone import measured
from crosszone.cost import own_profiles
from crosszone.cost.own_profiles import OwnProfile
from crosszone.cost.profile import Profiles
from crosszone.errors import RequestError
from crosszone.inputs.catalogue import catalogue
from crosszone.web.calibrate_examples import BENCHMARK, COLLECTIVES, SAMPLES
from crosszone.web.calibrate_found import list_values
from crosszone.web.uploads import UploadedFile, Uploads

SCENARIO = """
name: two nodes
model: llama-2-7b
job: {seq_len: 4096, global_batch: 256}
cluster: {zones: [{name: here, nodes: [{count: 2, gpus: 8, gpu: a100-80gb-sxm, nic_gbps_per_gpu: 200}]}]}
strategy: {tp: 2, pp: 1}
"""
RUN_COLUMNS = (
    "id,source,model,gpu,gpus,gpus_per_node,framework,precision,seq_len,global_batch,micro_batch,dp,tp,pp,recompute,"
    "step_time_s,tokens_per_s_per_gpu,memory_gb"
)
MEASURED_RUN = "here-1,me,llama-2-7b,A100-80GB,8,8,Megatron-LM 2024,bf16,4096,64,1,8,1,1,none,{step},,"
OWN = {
    "source": "one log",
    "created": "2026-11-16",
    "stacks": {"fsdp": {"matmul": {"value": 0.5, "error": 0.02, "origin": "fitted"}}},
}


def hand_in(client, name, data, **headers):
    sent = {"Content-Type": "application/octet-stream", **headers}
    return client.post("/api/v1/calibrate/files", params={"name": name}, content=data, headers=sent)


def log_of(seconds, steps=20, batch=256):
    """Lines as Megatron-LM writes them; the first step is slow."""
    return "".join(
        f" iteration {step:8d}/ 1000 | elapsed time per iteration (ms): {1e3 * seconds * (2 if step == 1 else 1):.1f} | "
        f"global batch size: {batch:5d} | lm loss: 5.0E+00 |\n"
        for step in range(1, steps + 1)
    )


def results(client):
    return client.get("/api/v1/results?limit=500").json()["total"]


def test_an_own_profile_is_saved_used_handed_out_and_forgotten(client):
    step = client.post("/api/v1/predict", json={"text": SCENARIO}).json()
    assert step["basis"]["own_profile"] is None
    saved = client.post("/api/v1/calibrate/profiles", json={"name": "slow-one", "profile": OWN, "use": True})
    assert saved.status_code == 201
    found = client.get("/api/v1/calibrate/profiles").json()
    assert found["default"] == "slow-one"
    (row,) = [one for one in found["own"] if one["name"] == "slow-one"]
    assert (row["default"], row["stacks"], row["coefficients"], row["origins"]) == (True, ["fsdp"], 1, {"fitted": 1})
    assert row["error_pct"] == pytest.approx(2.0)
    slower = client.post("/api/v1/predict", json={"text": SCENARIO}).json()
    assert slower["basis"]["own_profile"] == "slow-one"
    assert slower["step_time_s"]["expected"] > 1.1 * step["step_time_s"]["expected"]
    file = client.get("/api/v1/calibrate/profiles/slow-one/yaml")
    assert yaml.safe_load(file.text)["stacks"]["fsdp"]["matmul"]["value"] == 0.5
    assert 'filename="slow-one.yaml"' in file.headers["content-disposition"]
    again = client.post("/api/v1/calibrate/profiles", json={"text": file.text})
    assert (again.status_code, again.json()["code"]) == (409, "own_profile_exists")
    assert client.post("/api/v1/calibrate/profiles", json={"text": file.text, "replace": True}).status_code == 201
    assert client.put("/api/v1/calibrate/default", json={"name": None}).json() == {"name": None}
    assert client.post("/api/v1/predict", json={"text": SCENARIO}).json()["step_time_s"] == step["step_time_s"]
    assert client.delete("/api/v1/calibrate/profiles/slow-one").status_code == 204
    assert client.get("/api/v1/calibrate/profiles/slow-one").status_code == 404


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"name": "Not A Name", "profile": OWN}, "own_profile_name"),
        ({"name": "x", "profile": {**OWN, "stacks": {"no-such-stack": {}}}}, "not_one_of_these"),
        ({"name": "x", "profile": {**OWN, "gpus": {"no-such-gpu": {}}}}, "unknown_name"),
        ({"name": "x", "profile": {**OWN, "stacks": {"fsdp": {"nonsense": {"value": 1, "error": 0, "origin": "fitted"}}}}}, "unknown_key"),
        ({"name": "x", "text": "a: [1"}, "file_not_yaml"),
        ({"name": "x"}, "one_of_body"),
    ],
)  # fmt: skip
def test_a_profile_that_predictions_could_not_use_is_not_kept(client, body, code):
    answer = client.post("/api/v1/calibrate/profiles", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert "x" not in [row["name"] for row in client.get("/api/v1/calibrate/profiles").json()["own"]]


@pytest.mark.parametrize("name", ["..%2F..%2Fetc%2Fpasswd", "no-such", "default"])
def test_only_own_profiles_are_handed_out(client, name):
    assert client.get(f"/api/v1/calibrate/profiles/{name}/yaml").status_code == 404
    assert client.delete(f"/api/v1/calibrate/profiles/{name}").status_code in (404, 405)  # a slash is another address


def test_a_profile_that_cannot_be_read_is_deleted(client, tmp_path):
    client.post("/api/v1/calibrate/profiles", json={"name": "broken", "profile": OWN, "use": True})
    own_profiles.get_folder().joinpath("broken.yaml").write_text("a: [1", "utf-8")
    assert client.post("/api/v1/predict", json={"text": SCENARIO}).status_code == 422
    assert client.delete("/api/v1/calibrate/profiles/broken").status_code == 204
    assert client.post("/api/v1/predict", json={"text": SCENARIO}).status_code == 200
    assert client.delete("/api/v1/calibrate/profiles/broken").json()["code"] == "own_profile_unknown"


def test_a_file_on_the_server_is_no_default(client, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(own_profiles.format_text(OwnProfile(name="x", **OWN)), "utf-8")
    answer = client.put("/api/v1/calibrate/default", json={"name": str(path)})
    assert (answer.status_code, answer.json()["code"]) == (404, "own_profile_unknown")


@pytest.mark.parametrize("given", [{"for_stacks": ("fsdp", "ddp")}, {"stacks": OWN["stacks"]}, {}])
def test_values_before_are_those_of_the_stack_that_they_are_for(given):
    """Attention on an H200: stacks fitted beside kernels timed alone read another value than the generic one."""
    half = {"value": 0.5, "error": 0.02, "origin": "measured"}
    profile = OwnProfile(name="x", source="s", created="d", gpus={"h200-141gb-sxm": {"flash": half}}, **given)
    shipped, gpu = Profiles.load_shipped(), catalogue().gpu("h200-141gb-sxm")
    fsdp, generic, core = (
        shipped.select(gpu, name).coefficients.flash for name in ("fsdp", "generic", "megatron-core")
    )
    assert fsdp != generic
    assert list_values(profile)[0].before == (fsdp if given else generic)
    assert list_values(profile, "megatron-core")[0].before == core


def test_a_file_is_handed_in_and_dropped(client):
    made = hand_in(client, "a b/../c.csv", b"x" * 5_000_000)  # more than other bodies may have
    assert made.status_code == 201
    assert (made.json()["bytes"], "/" in made.json()["name"]) == (5_000_000, False)
    assert client.delete(f"/api/v1/calibrate/files/{made.json()['id']}").status_code == 204
    gone = client.post("/api/v1/calibrate/traces", json={"file": made.json()["id"]})
    assert (gone.status_code, gone.json()["code"]) == (404, "upload_unknown")


def test_files_are_bounded(client, monkeypatch):
    assert hand_in(client, "empty", b"").json()["code"] == "upload_empty"
    wrong = client.post("/api/v1/calibrate/files", content=b"{}", headers={"Content-Type": "application/json"})
    assert (wrong.status_code, wrong.json()["code"]) == (415, "not_binary_type")
    foreign = hand_in(client, "x", b"x", Origin="http://elsewhere.example")
    assert foreign.status_code == 403


async def parts(*chunks):
    for chunk in chunks:
        yield chunk


def kept(uploads, name, *chunks):
    """A file handed in chunk by chunk, in a thread of its own: a browser may drive this one's loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(uploads.keep(parts(*chunks), name))).result()


def test_a_file_that_is_too_large_leaves_nothing_and_old_ones_go(monkeypatch):
    uploads = Uploads(most_bytes=10, most_kept=15)
    with pytest.raises(Exception, match="larger than"):
        kept(uploads, "large", b"123456", b"789012")
    assert list(uploads._make_folder().iterdir()) == []
    first = kept(uploads, "first.gz", b"12345678")
    assert uploads.find_path(first.id).suffix == ".gz"
    second = kept(uploads, "second", b"12345678")
    assert [one.name for one in uploads._make_folder().iterdir()] == [uploads.find_path(second.id).name]
    monkeypatch.setattr("crosszone.web.uploads.KEPT_S", -1.0)
    with pytest.raises(Exception, match="kept for an hour"):
        uploads.get(second.id)
    uploads.close()


def test_files_on_their_way_count_too():
    """Three of 8 bytes at once where 20 are kept: the third is refused, and nothing of it is left."""
    uploads = Uploads(most_bytes=10, most_kept=20)

    async def slowly(gate):
        yield b"1234567"
        await gate.wait()
        yield b"8"

    async def together():
        gate = asyncio.Event()
        coming = [asyncio.create_task(uploads.keep(slowly(gate), name)) for name in "abc"]
        await asyncio.sleep(0.01)
        assert sum(path.stat().st_size for path in uploads._make_folder().iterdir()) <= 20
        assert sum(uploads._arriving.values()) == 14
        gate.set()
        return await asyncio.gather(*coming, return_exceptions=True)

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(lambda: asyncio.run(together())).result()
    (wrong,) = [one for one in found if isinstance(one, RequestError)]
    assert (wrong.status, wrong.notices[0].code) == (429, "uploads_too_much")
    kept_files = [one for one in found if isinstance(one, UploadedFile)]
    assert sorted(path.stat().st_size for path in uploads._make_folder().iterdir()) == [8, 8]
    assert [uploads.get(one.id).bytes for one in kept_files] == [8, 8]
    assert uploads._arriving == {}
    assert kept(uploads, "later", b"12345678").bytes == 8
    uploads.close()


def test_a_log_moves_the_prediction_towards_its_step(client):
    before = client.post("/api/v1/predict", json={"text": SCENARIO}).json()["step_time_s"]["expected"]
    sent = {"text": SCENARIO, "content": log_of(1.08 * before), "name": "train run.log"}
    found = client.post("/api/v1/calibrate/logs", json=sent).json()
    assert found["step"]["before_pct"] == pytest.approx(100 * (1 / 1.08 - 1), abs=0.1)
    assert abs(found["step"]["after_pct"]) < 3
    assert found["facts"]["format"] == "megatron"
    assert (found["iterations"]["statistics"]["count"], found["facts"]["steps_used"]) == (20, 19)
    assert found["profile"]["name"] == "train-run"
    assert {row["field"] for row in found["values"]} == {
        field for home in (*found["profile"]["gpus"].values(), *found["profile"]["stacks"].values()) for field in home
    }
    assert all(row["before"] != row["after"] for row in found["values"])
    assert found["next_runs"]
    kept = client.post("/api/v1/calibrate/profiles", json={"profile": found["profile"], "use": True})
    assert kept.status_code == 201
    after = client.post("/api/v1/predict", json={"text": SCENARIO}).json()["step_time_s"]["expected"]
    assert after == pytest.approx(found["step"]["after_s"], rel=1e-3)
    client.delete("/api/v1/calibrate/profiles/train-run")


@pytest.mark.parametrize(
    ("content", "code"),
    [("hello\n", "log_unknown"), (log_of(0.001), "log_too_fast"), (log_of(-5.0), "log_time")],
)
def test_a_log_that_cannot_be_of_the_run_is_refused(client, content, code):
    answer = client.post("/api/v1/calibrate/logs", json={"text": SCENARIO, "content": content, "name": "bad.log"})
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] == code
    assert "/" not in (answer.json()["errors"][0]["file"] or "")  # as the user calls it, not where it lies


def test_a_log_needs_its_scenario(client):
    answer = client.post("/api/v1/calibrate/logs", json={"content": log_of(1.0)})
    assert (answer.status_code, answer.json()["code"]) == (422, "one_of_body")


def test_kernel_samples_are_fitted_and_told(client):
    found = client.post("/api/v1/calibrate/samples", json={"content": SAMPLES, "name": "samples.csv"}).json()
    assert found["facts"]["gpu"] == "a100-80gb-sxm"
    (row,) = found["errors"]
    assert (row["name"], row["samples"]) == ("matmul bf16 fwd", 18)
    assert row["after_pct"] < 1
    assert row["unseen_pct"] < 1
    assert found["unknown"]


def test_a_wrong_row_of_samples_is_named(client):
    lines = SAMPLES.splitlines()
    lines[3] = lines[3].replace(",matmul,", ",mystery,")
    answer = client.post("/api/v1/calibrate/samples", json={"content": "\n".join(lines), "name": "mine.csv"})
    assert answer.status_code == 422
    (wrong,) = answer.json()["errors"]
    assert (wrong["file"], wrong["line"], wrong["value"]) == ("mine.csv", 4, "mystery")


def test_collectives_are_fitted_and_put_into_the_scenario(client):
    sent = {"content": COLLECTIVES, "text": SCENARIO}
    found = client.post("/api/v1/calibrate/collectives", json=sent).json()
    (fit,) = found["fits"]
    assert fit["latency_s"] == pytest.approx(12e-6, rel=0.01)
    assert fit["bytes_per_s"] == pytest.approx(20e9, rel=0.01)
    assert [change["field"] for change in found["changes"]] == ["cluster.zones[0].nodes[0].nic_gbps_per_gpu"]
    assert client.post("/api/v1/predict", json={"text": found["text"]}).status_code == 200
    alone = client.post("/api/v1/calibrate/collectives", json={"content": COLLECTIVES}).json()
    assert (alone["text"], alone["changes"]) == (None, [])


def test_benchmark_csv_is_looked_at_beside_the_prediction_and_kept(client):
    sent = {"content": BENCHMARK, "name": "benchmark.csv", "iteration": "last", "text": SCENARIO}
    found = client.post("/api/v1/calibrate/traces", json=sent).json()
    assert (found["format"], found["step"], found["steps"]["step"]) == ("benchmark", 3, [1, 2, 3])
    assert found["phases_s"] == pytest.approx(
        {"start": 0.002, "warm_up": 0.12, "forward": 0.1, "backward": 0.2, "cool_down": 0.14, "all_reduce": 0.23}
    )
    assert found["statistics"]["mean_s"] == pytest.approx(0.792)
    assert found["difference"]["step"]["measured_s"] == pytest.approx(0.792)
    assert found["view"]["step_s"] == pytest.approx(0.792)
    row = client.post("/api/v1/calibrate/results", json={**sent, "name": "bench"})
    assert row.status_code == 201
    made = row.json()
    assert (made["kind"], made["name"]) == ("measured", "bench")
    runs = client.get("/api/v1/calibrate/accuracy/runs").json()
    (mine,) = [one for one in runs["rows"] if one["id"] == made["id"]]
    assert mine["error_pct"] == pytest.approx(100 * (mine["predicted_s"] / 0.792 - 1))
    assert mine["inside"] is False
    drawn = client.get(f"/api/v1/results/{made['id']}/timeline?iteration=first").json()
    assert (drawn["kind"], drawn["step"], drawn["step_s"]) == ("measured", 1, pytest.approx(0.792))
    client.delete(f"/api/v1/results/{made['id']}")


def test_a_run_that_was_kept_without_a_prediction_is_listed_and_counts_to_no_error(client):
    made = client.post("/api/v1/calibrate/results", json={"content": BENCHMARK, "name": "alone"}).json()
    runs = client.get("/api/v1/calibrate/accuracy/runs").json()
    (mine,) = [one for one in runs["rows"] if one["id"] == made["id"]]
    assert mine["measured_s"] == pytest.approx(0.792)
    assert (mine["predicted_s"], mine["error_pct"], mine["inside"], mine["predicted_id"]) == (None, None, None, None)
    assert all(one["error_pct"] is None for one in runs["rows"]) == (runs["mean_pct"] is None)
    client.delete(f"/api/v1/results/{made['id']}")


def test_a_packed_trace_is_read_from_its_file(client):
    id = hand_in(client, "benchmark.csv.gz", gzip.compress(BENCHMARK.encode())).json()["id"]
    found = client.post("/api/v1/calibrate/traces", json={"file": id}).json()
    assert (found["name"], found["statistics"]["count"]) == ("benchmark.csv.gz", 3)


@pytest.mark.parametrize(
    "content",
    ["", "\x00\x01", "a,b\n1,2\n", "[]", '{"traceEvents": ', '{"lanes": 3}', BENCHMARK.replace("0.14", "-0.14")],
)
def test_what_is_wrong_with_a_trace_is_told_and_nothing_is_kept(client, content):
    before = results(client)
    answer = client.post("/api/v1/calibrate/results", json={"content": content or " ", "name": "bad"})
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["message"]
    assert results(client) == before


def test_a_bomb_is_refused(client):
    id = hand_in(client, "bomb.json.gz", gzip.compress(b" " * 300_000_000)).json()["id"]
    answer = client.post("/api/v1/calibrate/traces", json={"file": id})
    assert answer.status_code in (413, 422)


@pytest.mark.slow
def test_the_sheet_goes_out_and_comes_back_with_the_same_step(client):
    book = client.post("/api/v1/calibrate/sheet/download", json={"text": SCENARIO})
    assert book.status_code == 200
    assert book.content[:2] == b"PK"
    id = hand_in(client, "book.xlsx", book.content).json()["id"]
    found = client.post("/api/v1/calibrate/sheet", json={"file": id, "text": SCENARIO}).json()
    predicted = client.post("/api/v1/predict", json={"text": SCENARIO}).json()["step_time_s"]["expected"]
    assert found["figures"]["step_time_s"] == pytest.approx(predicted, rel=1e-6)
    saved = client.post("/api/v1/calibrate/results", json={"what": "sheet", "file": id, "name": "my sheet"}).json()
    assert saved["kind"] == "sheet"
    other = client.post("/api/v1/results", json={"text": SCENARIO, "name": "as predicted"}).json()
    items = {"items": [{"result": other["id"]}, {"result": saved["id"]}]}
    beside = client.post("/api/v1/compare", json=items).json()
    steady = next(row for row in beside["phases"] if row["name"] == "steady")
    assert steady["cells"][1]["percent"] == pytest.approx(0, abs=0.1)
    for one in (other, saved):
        assert client.get(f"/api/v1/results/{one['id']}/timeline").json()["step_s"] == pytest.approx(predicted)
        assert client.get(f"/api/v1/calibrate/sheet/results/{one['id']}").content[:2] == b"PK"
        client.delete(f"/api/v1/results/{one['id']}")


def test_what_is_no_sheet_is_refused(client):
    for data in (b"not a workbook", b"PK\x03\x04 broken"):
        id = hand_in(client, "book.xlsx", data).json()["id"]
        answer = client.post("/api/v1/calibrate/sheet", json={"file": id})
        assert answer.status_code == 422, answer.text


def test_a_scenario_of_several_zones_is_a_sheet(client, three_cities):
    answer = client.post("/api/v1/calibrate/sheet/download", json={"text": three_cities})
    assert answer.status_code == 200
    assert answer.content[:2] == b"PK"


def test_the_template_is_a_workbook(client):
    book = client.get("/api/v1/calibrate/sheet")
    assert book.content[:2] == b"PK"
    assert book.headers["content-type"].startswith("application/vnd.openxmlformats")


def test_the_accuracy_of_the_release_is_what_comes_with_the_program(client):
    answer = client.get("/api/v1/calibrate/accuracy/summary").json()
    assert answer == json.loads((measured.FOLDER / "accuracy_summary.json").read_text("utf-8"))
    assert answer["readings"][0]["kind"] == "first_contact"
    described = client.get("/api/v1/openapi.json").json()
    (schema,) = [
        content["schema"]
        for content in described["paths"]["/api/v1/calibrate/accuracy/summary"]["get"]["responses"]["200"][
            "content"
        ].values()
    ]
    assert schema["$ref"].endswith("/AccuracySummary")


def test_without_measured_data_the_report_says_where_to_put_it(client, monkeypatch, tmp_path):
    monkeypatch.setenv("CROSSZONE_MEASUREMENTS", str(tmp_path))
    found = client.get("/api/v1/calibrate/accuracy").json()
    assert (found["present"], found["report"], found["variable"]) == (False, None, "CROSSZONE_MEASUREMENTS")
    assert "measured_runs.csv" in found["files"]


def test_a_report_is_told_while_it_is_made_and_kept_until_a_file_changes(client, monkeypatch, tmp_path):
    monkeypatch.setenv("CROSSZONE_MEASUREMENTS", str(tmp_path))
    file = tmp_path / "measured_runs.csv"
    file.write_text(f"{RUN_COLUMNS}\n{MEASURED_RUN.format(step=20.0)}\n", "utf-8")
    ask = {"Accept": "text/event-stream"}
    first = client.get("/api/v1/calibrate/accuracy", headers=ask)
    assert first.headers["content-type"].startswith("text/event-stream")
    assert '{"what":"scoring","done":1,"of":1}' in first.text
    again = client.get("/api/v1/calibrate/accuracy", headers=ask)  # kept, so there is nothing to wait for
    assert again.headers["content-type"].startswith("application/json")
    (run,) = again.json()["report"]["runs"]
    assert (run["measured_s"], again.json()["report"]["summary"]["measured_runs.csv"]["scored"]) == (20.0, 1)
    file.write_text(f"{RUN_COLUMNS}\n{MEASURED_RUN.format(step=40.25)}\n", "utf-8")
    (changed,) = client.get("/api/v1/calibrate/accuracy").json()["report"]["runs"]
    assert (changed["measured_s"], changed["predicted_s"]) == (40.25, pytest.approx(run["predicted_s"]))


def test_jobs_that_were_timed_by_part_are_told_without_whole_runs(client, monkeypatch, tmp_path):
    monkeypatch.setenv("CROSSZONE_MEASUREMENTS", str(tmp_path))
    (tmp_path / "measured_runs.csv").write_text(f"{RUN_COLUMNS}\n{MEASURED_RUN.format(step=20.0)}\n", "utf-8")
    found = client.get("/api/v1/calibrate/accuracy/parts").json()
    assert found["present"]
    assert {key: found["report"][key] for key in ("runs", "components", "shares", "stability")} == {
        "runs": [], "components": None, "shares": [], "stability": [],
    }  # fmt: skip
    assert found["report"]["operators"]
    (tmp_path / "measured_runs.csv").unlink()
    assert client.get("/api/v1/calibrate/accuracy/parts").json()["present"] is False


@pytest.mark.slow
def test_long_work_is_told_while_it_is_done_and_stops(server_client):
    sent = {"content": SAMPLES, "name": "samples.csv"}
    headers = {"Accept": "text/event-stream"}
    with server_client.stream("POST", "/api/v1/calibrate/samples", json=sent, headers=headers) as answer:
        told = "".join(answer.iter_text())
    assert "event: started" in told
    assert '"what":"fitting"' in told
    result = json.loads(told.split("event: result\ndata: ")[1].split("\n")[0])
    assert result["facts"]["gpu"] == "a100-80gb-sxm"
    assert isinstance(server_client, httpx2.Client)


def long_trace(steps, spans):
    """Our own trace of so many iterations of a second, as a file."""
    rows = [
        {"lane": "s0", "kind": "forward", "name": "f", "start_s": at + of / spans, "end_s": at + (of + 1) / spans}
        for at in range(steps)
        for of in range(spans)
    ]
    marks = [{"step": at, "start_s": float(at), "end_s": at + 1.0} for at in range(steps)]
    head = {"version": 1, "kind": "measured", "name": "long", "unit": "s", "lanes": [{"id": "s0", "name": "s0"}]}
    return json.dumps({**head, "spans": rows, "steps": marks}).encode()


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "spans", "code"), [(20, 3000, "trace_kept_part"), (1, 45_000, "trace_kept_without")])
def test_a_trace_too_large_to_be_kept_whole_is_kept_in_part_and_that_is_told(client, steps, spans, code):
    id = hand_in(client, "long.json", long_trace(steps, spans)).json()["id"]
    found = client.post("/api/v1/calibrate/traces", json={"file": id}).json()
    (lost,) = [notice for notice in found["notices"] if notice["code"] == code]
    row = client.post("/api/v1/calibrate/results", json={"file": id, "name": "long", "note": "mine"})
    assert row.status_code == 201, row.text
    made = row.json()
    assert made["note"].startswith("mine\n") and lost["message"] in made["note"]
    client.delete(f"/api/v1/results/{made['id']}")


def test_steps_of_a_run_that_was_started_again_are_all_told(client):
    before = client.post("/api/v1/predict", json={"text": SCENARIO}).json()["step_time_s"]["expected"]
    sent = {"text": SCENARIO, "content": log_of(before, 12) + log_of(0.999 * before, 12), "name": "twice.log"}
    found = client.post("/api/v1/calibrate/logs", json=sent).json()["iterations"]
    assert found["steps"]["step"] == [*range(1, 13), *range(1, 13)]
    assert (found["statistics"]["count"], found["statistics"]["best_step"]) == (24, 2)
    assert found["statistics"]["min_s"] == pytest.approx(0.999 * before, rel=1e-3)
