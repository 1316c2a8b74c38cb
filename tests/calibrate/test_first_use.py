"""What a newcomer gives `crosszone calibrate` at first: wrong, empty, too little, or twice; and what is said then."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from conftest import ROOT
from crosszone.calibrate.user_files import HEAD_BYTES, check_head, merge_notices
from crosszone.cost import own_profiles
from crosszone.errors import FileError, Notice
from crosszone.predict.predict import build_predictor
from crosszone.text import LANGUAGES

SCENARIO = ROOT / "examples" / "single-node.yaml"
SIZES = [(m, n, k) for m in (2048, 4096, 8192) for n in (2048, 4096, 8192) for k in (2048, 4096)]
COLUMNS = "device,dtype,op,pass,mode,m,n,k,time_us,flag"
COLLECTIVES = "op,scope,nodes,gpus_per_node,ranks,groups,bytes,time_us,bus_gb_per_s,flag"


@pytest.fixture
def say(say):
    return partial(say, "calibrate")


def samples(folder: Path, *, device: str = "NVIDIA A100-SXM4-80GB", op: str = "matmul", rows: int = 18) -> Path:
    """Products at three quarters of the peak of an A100."""
    lines = [f"{device},bf16,{op},fwd,eager,{m},{n},{k},{2 * m * n * k / 234e6 + 4:.2f}," for m, n, k in SIZES]
    path = folder / "samples.csv"
    path.write_text("\n".join([COLUMNS, *lines[:rows]]) + "\n", encoding="utf-8")
    return path


def errors(out: str) -> list[dict]:
    return json.loads(out)["errors"]


def test_samples_of_a_device_that_is_no_gpu_are_refused_and_gpu_is_said_to_be_unused(say, tmp_path):
    path = samples(tmp_path, device="Some CPU @ 2 GHz")
    status, out, _ = say("fit", path, "--json")
    assert status == 2 and errors(out)[0]["code"] == "samples_device_unknown"
    status, out, _ = say("fit", path, "--gpu", "a100", "--json")
    first, more = errors(out)
    assert (status, first["code"], first["line"]) == (2, "samples_gpu_unused", 2)
    assert "--gpu a100 is not used" in first["message"] and "Some CPU" in first["message"]
    assert (more["code"], more["value"]) == ("rows_alike", 17)


def test_samples_that_name_another_gpu_than_the_option_are_warned_of(say, tmp_path):
    path = samples(tmp_path)
    status, out, _ = say("fit", path, "--gpu", "h200", "--no-correction", "--json")
    told = json.loads(out)
    assert status == 0 and told["gpu"].startswith("h200")
    assert [one["code"] for one in told["notices"]] == ["samples_gpu_other"]
    assert json.loads(say("fit", path, "--no-correction", "--json")[1])["notices"] == []


def test_a_mistake_of_all_rows_is_said_once(say, tmp_path):
    status, _, err = say("fit", samples(tmp_path, op="matmull"))
    assert status == 2 and err.count("matmull") == 1 and "17 more rows" in err
    path = tmp_path / "collectives.csv"
    rows = [f"allreduce,network,2,8,16,1,{2**power},500,," for power in range(10, 40)]
    path.write_text("\n".join([COLLECTIVES, *rows]), encoding="utf-8")
    status, _, err = say("links", path)
    assert status == 2 and err.count("allreduce") == 1 and "29 more rows" in err


def test_different_mistakes_stay_apart_and_unread_rows_are_not_counted():
    one, two = (Notice(code="must_be_number", field=field, value="x", params={"row": 1}) for field in "ab")
    told = merge_notices([one, two, one, one], 10)
    assert [(notice.code, notice.value) for notice in told] == [
        ("must_be_number", "x"),
        ("rows_alike", 2),
        ("must_be_number", "x"),
    ]
    assert merge_notices([one, one], 10, at_least=True)[1].code == "rows_alike_at_least"


def test_progress_of_a_fit_is_told_by_operator_and_before_the_first():
    from crosszone.cli.calibrate_fit import count_pieces

    told: list[tuple[str, int, int]] = []
    one_more = count_pieces(lambda *what: told.append(what), "operators", 2)
    assert told == [("operators", 0, 2)]
    one_more()
    one_more()
    assert told[1:] == [("operators", 1, 2), ("operators", 2, 2)]


def test_too_few_samples_are_refused_with_how_many_are_needed(say, tmp_path):
    made = tmp_path / "made.yaml"
    status, out, _ = say("fit", samples(tmp_path, rows=1), "--save", "one", "-o", made, "--json")
    (error,) = errors(out)
    assert (status, error["code"]) == (2, "samples_few") and "12" in error["message"]
    assert own_profiles.list_saved() == [] and not made.exists()


def test_an_own_profile_without_a_value_is_not_saved(say, tmp_path):
    """Products of one pass alone tell no coefficient that predictions use."""
    status, out, _ = say("fit", samples(tmp_path), "--no-correction", "--save", "nothing", "--json")
    assert (status, errors(out)[0]["code"]) == (2, "samples_tell_nothing")
    assert own_profiles.list_saved() == []


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("verb", ["fit", "links", "trace", "log"])
@pytest.mark.parametrize(("content", "code"), [(b"", "file_empty"), (bytes(range(256)) * 20, "file_binary")])
def test_empty_and_binary_files_are_called_so(say, tmp_path, verb, content, code, language):
    path = tmp_path / "given.csv"
    path.write_bytes(content)
    more = ("--scenario", SCENARIO) if verb == "log" else ()
    status, out, _ = say(verb, path, *more, "--json", language=language)
    (error,) = errors(out)
    assert (status, error["code"]) == (2, code) and "codec" not in error["message"]


def test_text_with_colours_and_some_odd_bytes_is_text():
    check_head(b"\x1b[32mstep 1\x1b[0m caf\xe9\r\n" * 40, "a.log")
    check_head(b"\n" * HEAD_BYTES, "blank.log")  # more may follow
    with pytest.raises(FileError) as caught:
        check_head("op,time".encode("utf-16"), "a.csv")
    assert caught.value.notices[0].code == "file_not_utf8"


def test_a_line_that_is_no_utf8_is_named(say, tmp_path):
    path = samples(tmp_path)
    path.write_bytes(path.read_bytes() + b"caf\xe9,bf16,matmul\n")
    status, out, _ = say("fit", path, "--json")
    (error,) = errors(out)
    assert (status, error["code"], error["line"]) == (2, "file_not_utf8", 20)


def test_several_gpus_are_listed_in_words(say, tmp_path):
    first = samples(tmp_path)
    text = first.read_text("utf-8")
    first.write_text(text + text.split("\n", 1)[1].replace("A100-SXM4-80GB", "H100"), encoding="utf-8")
    status, out, _ = say("fit", first, "--json")
    (error,) = errors(out)
    assert (status, error["code"]) == (2, "samples_several_gpus")
    assert "[" not in error["message"] and "NVIDIA A100-SXM4-80GB, NVIDIA H100" in error["message"]


@pytest.mark.parametrize(
    ("size", "code"),
    [("-3", "operator_size"), ("0", "operator_size"), ("1e30", "operator_size"), ("nan", "operator_size"),
     ("4.5", "operator_size_whole")],
)  # fmt: skip
def test_sizes_that_no_operator_has_are_refused(say, size, code):
    status, out, _ = say("operator", "h200", "matmul", "--m", size, "--n", 4096, "--k", 4096, "--json")
    (error,) = errors(out)
    assert (status, error["code"], error["field"]) == (2, code, "--m")


def test_times_have_few_digits(say):
    asked = ("operator", "h200", "matmul", "--pass", "fwd", "--dtype", "bf16", "--m", "1e9", "--n", "1e9", "--k", "1e9")
    status, out, _ = say(*asked)
    assert status == 0 and "e+" in out and "000,000" not in out
    (told,) = json.loads(say(*asked, "--json")[1])["times"]
    assert told["time_us"] == float(f"{told['time_us']:.6g}")


def test_what_may_be_meant_is_only_said_where_it_is_near(say, tmp_path):
    own_profiles.save(own_profiles.OwnProfile(name="cluster", source="s", created="d"))
    assert "Did you mean cluster" in say("use", "clustre")[2]
    assert "cluster" not in say("use", "qqq")[2]
    assert "kineto" in say("trace", tmp_path / "x", "--format", "kinetto")[2].split("Did you mean")[1]
    assert "Did you mean" not in say("trace", tmp_path / "x", "--format", "foo")[2]
    assert "Nearest" not in say("operator", "h200", "zzz")[2]
    assert "Nearest: matmul" in say("operator", "h200", "matmu")[2]


@pytest.mark.parametrize("verb", ["fit", "log"])
def test_a_profile_that_is_kept_is_written_over_only_with_force(say, tmp_path, verb):
    own_profiles.save(own_profiles.OwnProfile(name="taken", source="s", created="d"))
    given = (samples(tmp_path),) if verb == "fit" else (tmp_path / "none.log", "--scenario", SCENARIO)
    status, _, err = say(verb, *given, "--save", "taken")
    assert status == 2 and "taken exists already" in err and "--force" in err
    assert "taken exists" not in say(verb, *given, "--save", "taken", "--force")[2]


def logged(folder: Path, *seconds: float, first: int = 1) -> Path:
    """A log of Megatron, a line a step."""
    line = " iteration {:8d}/     100 | elapsed time per iteration (ms): {:.1f} | global batch size:   128 |"
    path = folder / "train.log"
    text = "\n".join(line.format(first + at, 1e3 * one) for at, one in enumerate(seconds))
    path.write_text(text, encoding="utf-8")
    return path


def test_a_log_of_warm_up_steps_alone_is_called_so(say, tmp_path):
    status, out, _ = say("log", logged(tmp_path, 60.0, 20.0), "--scenario", SCENARIO, "--json")
    (error,) = errors(out)
    assert (status, error["code"], error["value"]) == (2, "log_only_warm_up", 2) and "at least 3" in error["hint"]
    status, out, _ = say("log", logged(tmp_path, 60.0, 50.0, first=40), "--scenario", SCENARIO, "--json")
    assert [error["code"] for error in errors(out)][1:] == ["log_few_steps"]


def test_what_moved_is_not_said_to_stay_and_the_tables_are_not_repeated(say, tmp_path):
    from crosszone.inputs.scenario import load_scenario

    step_s = 0.95 * build_predictor(load_scenario(SCENARIO)).step_time.expected
    path = logged(tmp_path, *[step_s] * 8)
    status, out, _ = say("log", path, "--scenario", SCENARIO, "--json")
    told = json.loads(out)
    moved, untold = ({one["field"] for one in told[key]} for key in ("moved", "untold"))
    assert status == 0 and moved and untold and not moved & untold
    notices = {one["code"]: one["message"] for one in told["notices"]}
    assert not any(name in notices["log_untold"].split(":")[1].strip(" .").split(", ") for name in moved)
    shown = say("log", path, "--scenario", SCENARIO)[1]
    assert "moved from" not in shown and "most informative" not in shown


def test_a_value_that_ends_at_its_limit_is_said_to():
    from crosszone.calibrate.coefficient_estimate import CoefficientPrior
    from crosszone.calibrate.single_run import _is_at_limit

    one = CoefficientPrior(field="nic", value=0.8, sd=0.1, lower=0.05, upper=1.0, of_gpu=False)
    assert _is_at_limit(one, 1.0) and _is_at_limit(one, 0.05) and not _is_at_limit(one, 0.9)


def trace(folder: Path, stages: int = 1, **meta: object) -> Path:
    """Our own trace of one step: forward, backward, and something on a lane beside them."""
    lanes = [{"id": f"stage-{at}", "name": f"stage {at}", "group": "stages"} for at in range(stages)]
    spans = [
        {"lane": lane["id"], "kind": kind, "start_s": start, "end_s": end}
        for lane in lanes
        for kind, start, end in (("forward", 0.0, 1.0), ("backward", 1.0, 3.0))
    ]
    spans.append({"lane": "rest", "kind": "other", "start_s": 3.0, "end_s": 3.4})
    lanes.append({"id": "rest", "name": "rest", "group": "rest"})
    document = {"version": 1, "kind": "measured", "name": "run", "unit": "s", "lanes": lanes, "spans": spans}
    path = folder / "run.json"
    steps = [{"step": 1, "start_s": 0.0, "end_s": 3.5}]
    path.write_text(json.dumps({**document, "steps": steps, "meta": meta}), encoding="utf-8")
    return path


def test_time_beside_a_prediction_is_counted_once(say, tmp_path):
    status, out, _ = say("trace", trace(tmp_path), "--scenario", SCENARIO, "--json")
    kinds = {row["part"]: row for row in json.loads(out)["difference"]["kinds"]}
    assert status == 0 and kinds["other"]["measured_s"] == pytest.approx(0.4)
    assert kinds["idle"]["measured_s"] == pytest.approx(0.1)
    step = json.loads(out)["difference"]["step"]
    assert sum(row["predicted_s"] for row in kinds.values()) == pytest.approx(step["predicted_s"], rel=1e-6)


def test_a_run_without_a_pipeline_has_no_phases_of_one(say, tmp_path):
    out = say("trace", trace(tmp_path), "--scenario", SCENARIO)[1]
    assert "warm-up" not in out and "tail" not in out and "forward" in out
    assert json.loads(say("trace", trace(tmp_path), "--scenario", SCENARIO, "--json")[1])["difference"]["phases"] == []
    assert "warm-up" in say("trace", trace(tmp_path, stages=2, pp=2))[1]


def test_a_trace_of_another_micro_batch_or_sequence_than_the_scenario_is_warned_of(say, tmp_path):
    path = trace(tmp_path, micro_batch=4, seq_len=2048, tp=1)
    told = json.loads(say("trace", path, "--scenario", SCENARIO, "--json")[1])["notices"]
    differs = {one["field"]: one["message"] for one in told if one["code"] == "trace_scenario_differs"}
    assert set(differs) == {"micro_batch", "seq_len"} and "2048" in differs["seq_len"] and "4096" in differs["seq_len"]
    path = trace(tmp_path, micro_batch=2, seq_len=4096, tp=1, dp=8)
    told = json.loads(say("trace", path, "--scenario", SCENARIO, "--json")[1])["notices"]
    assert not [one for one in told if one["code"] == "trace_scenario_differs"]


def test_a_folder_is_read_as_the_run_it_holds(say, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "notes.txt").write_text("nothing", encoding="utf-8")
    assert errors(say("trace", empty, "--json")[1])[0]["code"] == "trace_folder_empty"
    assert errors(say("log", empty, "--scenario", SCENARIO, "--json")[1])[0]["code"] == "log_folder_empty"
    run = tmp_path / "run"
    run.mkdir()
    trace(run)
    (run / "notes.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    status, out, _ = say("trace", run, "--json")
    assert status == 0 and json.loads(out)["statistics"]["count"] == 1
    (run / "again.json").write_bytes((run / "run.json").read_bytes())
    status, out, _ = say("trace", run, "--json")
    assert (status, errors(out)[0]["code"]) == (2, "trace_folder_several") and "again.json" in errors(out)[0]["message"]
