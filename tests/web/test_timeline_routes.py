"""The timeline and the ranks over HTTP: sums, one micro-batch, files, measured traces, and what is refused."""

import csv
import io
import json

import pytest

MEASURED = {
    "name": "run 7",
    "lanes": [{"id": "stage-0", "name": "stage 0"}, {"id": "stage-1", "name": "stage 1"}],
    "spans": [
        {"lane": "stage-0", "kind": "forward", "start_s": 0, "end_s": 1, "micro_batch": 0},
        {"lane": "stage-0", "kind": "backward", "start_s": 2, "end_s": 4, "micro_batch": 0},
        {"lane": "stage-0", "kind": "forward", "start_s": 5, "end_s": 6, "micro_batch": 0},
        {"lane": "stage-0", "kind": "lunch", "start_s": 5, "end_s": 6},
        "no span at all",
    ],
    "steps": [{"step": 3, "start_s": 0, "end_s": 5}, {"step": 4, "start_s": 5, "end_s": 10}],
}


def post(client, path, status=200, **body):
    answer = client.post(f"/api/v1/{path}", json=body)
    assert answer.status_code == status, answer.text
    return answer


def test_blocks_and_waiting_of_each_lane_add_up_to_the_step_the_prediction_names(client, three_cities):
    """F78"""
    found = post(client, "timeline", text=three_cities).json()
    step = post(client, "predict", text=three_cities).json()["step_time_s"]["expected"]
    assert found["step_s"] == pytest.approx(step)
    stages = [lane for lane in found["lanes"] if lane["group"] == "stages"]
    assert [lane["name"] for lane in stages][:2] == ["stage 0 (beijing-a)", "stage 1 (beijing-a)"]
    for lane in found["lanes"]:
        assert sum(lane["parts"].values()) + lane["idle_s"] == pytest.approx(step)
        assert 0 <= lane["utilisation"] <= 1
    assert sum(part["seconds"] for part in found["totals"]) == pytest.approx(step)
    assert sum(phase["seconds"] for phase in found["phases"]) == pytest.approx(step)
    assert found["micro_batches"] == 256
    assert found["window"]["left_out"] == 0
    assert {len(column) for column in found["spans"].values()} == {found["window"]["spans"]}
    assert found["micro_batch"] is None


def test_lanes_have_names_in_the_language_of_the_request(client, three_cities):
    answer = client.post("/api/v1/timeline?lang=zh", json={"text": three_cities}).json()
    assert answer["lanes"][0]["name"] == "流水段 0（beijing-a）"


def test_the_gpu_usage_of_a_micro_batch_is_computed(client, three_cities):
    """F79: no two of these are equal, and none is nought."""
    found = [
        post(client, "timeline", text=three_cities, micro_batch=number).json()["micro_batch"] for number in (0, 100)
    ]
    for one in found:
        assert [stage["lane"] for stage in one["stages"]] == [0, 1, 2, 3]
        assert all(0 < stage["own_share"] <= stage["usage"] <= 1 for stage in one["stages"])
        assert one["links"]
    assert found[0]["usage"] != found[1]["usage"]


def test_a_plan_may_say_how_it_is_done(client, three_cities):
    way = {"framework": "megatron", "strategy": {"tp": 8, "pp": 2, "dp": 8, "micro_batch": 1, "zero": 1}}
    found = post(client, "timeline", text=three_cities, way=way).json()
    assert len([lane for lane in found["lanes"] if lane["group"] == "stages"]) == 2


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"micro_batch": 256}, "micro_batch_unknown"),
        ({"micro_batch": -1}, "not_valid"),
        ({"micro_batch": 1.5}, "not_valid"),
        ({"from_s": -1}, "not_valid"),
        ({"from_s": 1e300}, "not_valid"),
        ({"zoom": 1}, "unknown_key"),
    ],
)
def test_what_cannot_be_drawn_is_refused(client, three_cities, given, code):
    assert post(client, "timeline", 422, text=three_cities, **given).json()["code"] == code


def test_a_scenario_without_a_strategy_says_what_is_missing(client, three_cities):
    text = three_cities.partition("strategy:")[0]
    for path in ("timeline", "timeline/trace", "ranks"):
        assert post(client, path, 422, text=text).json()["code"] == "strategy_missing"


def test_the_step_is_written_in_three_formats(client, three_cities):
    spans = post(client, "timeline", text=three_cities).json()["window"]["spans"]
    answers = {form: post(client, "timeline/trace", text=three_cities, format=form) for form in ("perfetto", "crosszone", "csv")}  # fmt: skip
    assert sum(event["ph"] == "X" for event in answers["perfetto"].json()["traceEvents"]) == spans + 1
    assert len(answers["crosszone"].json()["spans"]) == spans
    rows = list(csv.DictReader(io.StringIO(answers["csv"].text)))
    assert len(rows) == spans
    assert answers["csv"].headers["content-type"].startswith("text/csv")
    for form, answer in answers.items():
        assert f"timeline-{form}." in answer.headers["content-disposition"]
    assert post(client, "timeline/trace", 422, text=three_cities, format="pdf").json()["field"] == "format"


def test_what_was_written_is_read_back_without_a_difference(client, three_cities):
    """F82"""
    trace = post(client, "timeline/trace", text=three_cities, format="crosszone").text
    found = post(client, "timeline/measured", text=three_cities, trace=trace).json()
    assert found["notices"] == []
    rows = [found["difference"]["step"], *found["difference"]["phases"], *found["difference"]["kinds"]]
    assert [row["difference_pct"] for row in rows] == pytest.approx([0] * len(rows), abs=1e-6)


def test_first_and_last_step_of_a_measured_trace_and_its_bad_rows(client):
    """F80"""
    trace = json.dumps(MEASURED)
    last = post(client, "timeline/measured", trace=trace).json()
    first = post(client, "timeline/measured", trace=trace, step=3, micro_batch=0).json()
    assert (last["step"], first["step"], last["steps"]) == (4, 3, {"step": [3, 4], "seconds": [5, 5]})
    assert first["lanes"][0]["parts"] == {"forward": 1, "backward": 2}
    assert last["lanes"][0]["parts"] == {"forward": 1}
    assert first["bad_rows"] == 2
    assert [notice["code"] for notice in first["notices"]] == ["trace_rows_bad", "not_one_of", "must_be_mapping"]
    assert first["micro_batch"]["usage"] == pytest.approx(3 / 8)
    assert first["difference"] is None


def test_a_measured_step_is_compared_phase_by_phase(client, three_cities):
    """F82: step 3 has 1 s of forward and 5 s in all."""
    found = post(client, "timeline/measured", text=three_cities, trace=json.dumps(MEASURED), step=3).json()
    row = found["difference"]["step"]
    assert row["measured_s"] == 5
    assert row["difference_pct"] == pytest.approx(100 * (row["predicted_s"] / 5 - 1))
    assert [one["part"] for one in found["difference"]["phases"]] == ["warm_up", "steady", "cool_down", "tail"]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"trace": ""}, "trace_columns"),
        ({"trace": "{"}, "file_not_yaml"),
        ({"trace": "{}"}, "trace_empty"),
        ({"trace": json.dumps(MEASURED), "step": 9}, "trace_step_unknown"),
        ({"trace": json.dumps(MEASURED), "micro_batch": 9}, "micro_batch_unknown"),
        ({"trace": 3}, "must_be_text"),
        ({"trace": "x", "way": {"strategy": {}}}, "one_of_body"),
        ({"trace": json.dumps(MEASURED), "text": "a: 1", "scenario": {}}, "one_of_body"),
    ],
)
def test_a_trace_that_cannot_be_used_is_refused(client, given, code):
    assert post(client, "timeline/measured", 422, **given).json()["code"] == code


@pytest.mark.parametrize("name", ["three-cities", "fourteen-gpus", "mixed-gpus"])
def test_ranks_are_columns_with_every_rank_once(client, name):
    """F76"""
    text = client.get(f"/api/v1/examples/{name}").text
    found = post(client, "ranks", text=text).json()
    columns = found["columns"]
    assert found["ranks"] == post(client, "predict", text=text).json()["gpus"]
    assert columns["rank"] == list(range(found["ranks"]))
    assert len(set(zip(*(columns[axis] for axis in ("tp", "pp", "dp", "cp")), strict=True))) == found["ranks"]
    assert len(set(zip(*(columns[place] for place in ("group", "node", "gpu")), strict=True))) == found["ranks"]


def test_many_ranks_are_no_trouble(client):
    """16,384 GPUs."""
    text = """
    model: llama-3.1-405b
    job: {seq_len: 8192, global_batch: 2048, framework: megatron}
    cluster: {zones: [{name: here, nodes: [{count: 2048, gpus: 8, gpu: h100-80gb-sxm, nic_gbps_per_gpu: 400}]}]}
    strategy: {tp: 8, pp: 16, dp: 128, micro_batch: 1, zero: 1}
    """
    found = post(client, "ranks", text=text).json()
    assert found["ranks"] == found["shown"] == len(found["columns"]["gpu"]) == 16_384
    assert sum(stage["layers"] for stage in found["stages"]) == 126
