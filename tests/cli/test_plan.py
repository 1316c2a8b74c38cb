"""`crosszone plan` as a user meets it: the best plan first, those after it, why, and a file to go on with."""

from __future__ import annotations

import json
import re
import sys
from types import ModuleType
from typing import Any, get_args

import jsonschema
import pytest

from builders import fields
from conftest import ROOT
from crosszone import Scenario, load_scenario
from crosszone.cli import output as bars
from crosszone.errors import IllegalError, Notice
from crosszone.inputs.document import dump_yaml
from crosszone.inputs.placement import pack_ranks
from crosszone.plan.layouts import Crossing
from crosszone.plan.plan import OBJECTIVES, IdleGpus, Plan, Plans, Point, Rejected
from crosszone.predict.predict import build_prediction, build_predictor
from crosszone.text import LANGUAGES, load_texts
from crosszone.views import plan as report
from predict.given import FSDP, zones

SINGLE = str(ROOT / "examples" / "single-node.yaml")
CLUSTER = zones(node={"usd_per_gpu_hour": 2.0}, rtt_ms=1)
"""Two zones of eight GPUs at $2 an hour: $768 a day."""
SHARDED = {"dp": 16, "zero": 3, "shard_within": "zone", "communication": {"flows": 16}}
WAYS = ({}, {"recompute": "full"}, {"micro_batch": 2, "recompute": "full"})


def told(code: str, **params: Any) -> dict[str, Any]:
    return Notice(code=code, level="note", params=params).as_dict("en")


def made(scenario: Scenario, rank: int, kind: str = "synchronous", **more: Any) -> Plan:
    """A plan as the search gives it, of a scenario that has a strategy."""
    found = build_predictor(scenario)
    place = {"placement": pack_ranks(scenario.cluster, found.strategy)[0], "zones": ("a", "b"), "crossing": "dp"}
    rest = {"chance": None, "idle": (), "reasons": (), "value": 1.0} | place | more
    common = {"framework": found.framework.name, "strategy": found.strategy, "prediction": build_prediction(found)}
    return Plan(rank=rank, kind=kind, **common, **rest)


def strategies(count: int = 3, **job: Any) -> list[Scenario]:
    """The same work done in three ways, the quickest first, then with local updates."""
    ways = [*WAYS[:count], {"local_update": {"steps": 100}, "recompute": "full"}]
    return [load_scenario(fields(job=FSDP | job, cluster=CLUSTER, strategy=SHARDED | way)) for way in ways]


@pytest.fixture(scope="module")
def plans() -> Plans:
    *every, rarely = strategies(tokens=1e9)
    idle = IdleGpus(zone="b", group=0, count=4, reason=told("idle_spare", count=4, zone="b", ranks=16))
    ranked = [made(one, n + 1, chance=0.87 if n else None, idle=(idle,)) for n, one in enumerate(every)]
    first = ranked[0].model_copy(update={"reasons": (told("loss_assumed", low=0.1, high=0.2, source="a reason"),)})
    points = [
        Point(framework="fsdp", strategy=p.strategy, placement=p.placement, gpus=g, step_s=s, usd_per_step=usd)
        for p, g, s, usd in zip(ranked[:2], (16, 8), (4.5, 8.25), (0.5, 0.25), strict=True)
    ]
    return Plans(
        name="two zones",
        objective="time",
        evaluated=12_345,
        scored=2_345,
        feasible=345,
        simulated=45,
        seconds=1.234,
        complete=True,
        plans=(first, *ranked[1:]),
        local_updates=(made(rarely, 1, "local update"),),
        front=tuple(points),
        rejected=(Rejected(family="tp 16", count=7, reason=told("idle_tp", count=1, zone="z", gpus=8, tp=16)),),
        hints=(told("idle_not_placed", count=1, zone="hinted", group=0),),
        warnings=(told("nic_example", zone="warned", gpu="l40s"),),
    )


@pytest.fixture
def search(plans, monkeypatch):
    """Stands for the search; keeps how it was asked, and gives `answer`."""

    class Search:
        answer: Plans | Exception = plans
        scenario: Scenario
        how: dict[str, Any]

        def plan(self, scenario: Scenario, **how: Any) -> Plans:
            self.scenario, self.how = scenario, how
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    found, module = Search(), ModuleType("crosszone.plan.planner")
    module.plan = found.plan  # type: ignore[attr-defined]
    monkeypatch.setattr("crosszone.plan.planner.plan", module.plan)
    return found


@pytest.fixture
def file(tmp_path) -> str:
    path = tmp_path / "two.yaml"
    path.write_text(
        dump_yaml(fields(job=FSDP | {"framework": "any", "tokens": 1e9}, cluster=CLUSTER)), encoding="utf-8"
    )
    return str(path)


@pytest.fixture
def columns(monkeypatch):
    """Make the terminal so many columns wide."""
    from rich.console import Console

    def set_width(width: int) -> None:
        monkeypatch.setattr("rich.console.Console", lambda **given: Console(**given | {"width": width}))

    return set_width


def line(out: str, heading: str) -> str:
    return next(one for one in out.splitlines() if one.startswith(heading)).removeprefix(heading)


def shown(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}g}"


def test_the_best_plan_comes_first_with_where_it_lies_and_its_numbers(say, search, file, plans):
    status, out, err = say("plan", file)
    best = plans.plans[0].prediction
    assert (status, err) == (0, "")
    assert out.splitlines()[0] == "two zones"
    first = line(out, "best plan")
    assert "PyTorch FSDP2" in first and "dp 16" in first and "zero 3" in first
    assert line(out, "GPUs").strip() == "16 of 20 in use, 4 idle"
    assert line(out, "where").strip() == "a 8, b 8; gradients of data parallelism cross zones"
    assert line(out, "options").strip() == "shard_within zone, communication.flows 16"
    assert line(out, "step time").strip().startswith(f"{shown(best.step_time_s.expected)} s (")
    assert f"MFU {100 * best.mfu.expected:.1f} %" in line(out, "speed")
    assert out.index("best plan") < out.index("Plans by step time") < out.index("Why plan 1")


def test_plans_are_ranked_with_the_chance_that_the_best_one_beats_them(say, search, file, plans):
    _, out, _ = say("plan", file)
    table = out.split("Plans by step time, best first")[1].split("Why plan 1")[0]
    rows = [one.split() for one in table.splitlines() if re.match(r" +\d ", one)]
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert [row[-1] for row in rows] == ["-", "87", "87"]
    steps = [shown(plan.prediction.step_time_s.expected) for plan in plans.plans]
    assert all(step in row for step, row in zip(steps, rows, strict=True))
    usd = [plan.prediction.run.usd.expected for plan in plans.plans]
    assert [float(row[-2].replace(",", "")) for row in rows] == pytest.approx(usd, rel=1e-3)
    assert all("tp 1 pp 1 dp 16" in " ".join(row) and "dp across a > b" in " ".join(row) for row in rows)
    assert "really is the shorter one" in table
    assert "schedule" not in table


def test_local_updates_stand_apart_and_say_that_they_change_the_algorithm(say, search, file, plans):
    _, out, _ = say("plan", file)
    before, table = out.split("these change the algorithm, so they are ranked apart")
    assert before.endswith("Plans with local updates: ") and "L1" not in before
    row = next(one.split() for one in table.splitlines() if re.match(r" +L1 ", one))
    assert "100" in row and "averages across a > b" in " ".join(row)
    assert shown(plans.local_updates[0].prediction.step_time_s.expected) in row


def test_reasons_idle_gpus_what_was_kept_out_hints_and_warnings_are_told(say, search, file):
    _, out, _ = say("plan", file)
    assert "-  The loss is assumed to end 0.1 to 0.2" in out
    assert "-  4 GPUs of zone b stay idle: the strategy has only 16 ranks." in out
    assert re.search(r"tp 16 +7 +1 GPUs of zone z stay idle", out)
    assert "-  1 GPUs of zone hinted" in out
    assert re.search(r"^note .*warned", out, re.MULTILINE)
    assert "12,345 strategies looked at (2,345 scored one by one), 345 fit, 45 simulated, 1.23 s." in out
    assert "ended early" not in out


def test_what_there_is_nothing_of_has_no_title(say, search, file, plans):
    bare = plans.plans[0].model_copy(update={"reasons": (), "idle": (), "chance": None})
    nothing = {"local_updates": (), "rejected": (), "hints": (), "warnings": (), "front": ()}
    search.answer = plans.model_copy(update=nothing | {"plans": (bare,), "complete": False})
    _, out, _ = say("plan", file)
    for title in ("Why plan", "Idle GPUs", "change the algorithm", "not among", "Rules of thumb", "Beaten"):
        assert title not in out
    assert line(out, "GPUs").strip() == "16 of 16 in use, 0 idle"
    assert "a better plan may exist" in out


def test_without_a_length_a_day_is_priced_and_without_a_price_nothing_is(say, search, file, plans):
    """Sixteen GPUs at $2 an hour cost $768 a day."""
    *every, _ = strategies(1)
    search.answer = plans.model_copy(update={"plans": (made(every[0], 1),), "local_updates": ()})
    _, out, _ = say("plan", file)
    assert "$ a day" in out and re.search(r"^ +1 .* 768 *$", out, re.MULTILINE) and "$ a run" not in out
    free = every[0].replace(cluster=every[0].cluster.replace(zones=tuple(map(_unpriced, every[0].cluster.zones))))
    search.answer = plans.model_copy(update={"plans": (made(free, 1),), "local_updates": ()})
    _, out, _ = say("plan", file)
    assert "$ a" not in out.split("Plans by")[1]


def _unpriced(zone: Any) -> Any:
    gpu = zone.nodes[0].gpu.replace(name="mine", usd_per_hour=None)
    return zone.replace(nodes=(zone.nodes[0].replace(gpu=gpu, usd_per_gpu_hour=None),))


@pytest.mark.parametrize(
    ("objective", "heading", "cell"), [("cost", "$ a step", "0.125"), ("memory", "GiB free", "-0.125")]
)
def test_another_objective_has_a_column_of_its_own(say, search, file, plans, objective, heading, cell):
    """GiB used beyond the free ones are told as free ones: 0.125 too many are -0.125 free."""
    ranked = tuple(plan.model_copy(update={"value": 0.125}) for plan in plans.plans)
    search.answer = plans.model_copy(update={"objective": objective, "plans": ranked})
    _, out, _ = say("plan", file, "--objective", objective)
    table = out.split("Plans by")[1].split("Why plan")[0]
    assert heading in table and f" {cell} " in table
    assert search.how["objective"] == objective


def test_all_options_reach_the_search(say, search, file):
    say("plan", file, "--top", 7, "--budget", 2.5, "--front", "--objective", "energy")
    asked = {key: search.how[key] for key in ("top", "budget_s", "front", "objective", "language", "progress")}
    assert asked == {
        "top": 7,
        "budget_s": 2.5,
        "front": True,
        "objective": "energy",
        "language": "en",
        "progress": None,
    }
    say("plan", file, "--lang", "zh")
    assert search.how["language"] == "zh"


def test_what_was_assumed_reaches_the_search_with_its_place(say, search, tmp_path):
    path = tmp_path / "assumed.yaml"
    path.write_text(dump_yaml(fields(model={"size_b": 7})), encoding="utf-8")
    say("plan", path)
    (notice,) = [one for one in search.how["notices"] if one.code == "model_by_size"]
    assert notice.file == str(path) and notice.line


@pytest.mark.parametrize("width", [80, 120, 200])
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_report_fits_narrow_and_wide_terminals_in_both_languages(
    say, search, file, columns, width, language, plans
):
    from rich.cells import cell_len

    columns(width)
    quiet = {"warnings": (), "rejected": ()}
    search.answer = plans.model_copy(update=quiet)
    status, out, err = say("--lang", language, "plan", file, "--front", "--why", 2)
    assert (status, err) == (0, "")
    labels = load_texts(language)["label"]
    for key in ("plan_best", "local_title", "front_title", "idle_title"):
        assert labels[key][:20] in out
    table = out.split(labels["plans_title"].split("{")[0])[1]
    assert (labels["plan_micro_batch"].format(value=2) in table) == (width < report.WIDE)
    lines = [one.rstrip() for one in out.splitlines() if not one.endswith((".", "。"))]  # sentences wrap by themselves
    assert max(map(cell_len, lines)) <= width
    for plan in plans.plans:
        assert shown(plan.prediction.step_time_s.expected) in out
        assert f"{float(shown(plan.prediction.tokens_per_s.expected)):,.0f}" in out


@pytest.mark.parametrize("width", [40, 72])
@pytest.mark.parametrize("objective", ["time", "cost"])
def test_no_number_is_cut_where_there_is_little_room(say, search, file, columns, width, objective, plans):
    columns(width)
    ranked = tuple(plan.model_copy(update={"value": 1234.5}) for plan in plans.plans)
    search.answer = plans.model_copy(update={"objective": objective, "plans": ranked})
    _, out, _ = say("plan", file, "--objective", objective)
    table = out.split("Plans by")[1].split("Why plan")[0]
    for plan in plans.plans:
        assert f" {shown(plan.prediction.step_time_s.expected)} " in table
        tokens = f" {float(shown(plan.prediction.tokens_per_s.expected)):,.0f} "
        assert (tokens in table) == (width == 72 and objective == "time")
    assert ("1,234 " in table) == (objective == "cost")


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_plan_has_room_for_its_words_on_80_columns(say, search, file, columns, objective, plans):
    columns(80)
    search.answer = plans.model_copy(update={"objective": objective})
    _, out, _ = say("plan", file, "--objective", objective)
    table = out.split("Plans by")[1].split("Why plan")[0]
    assert table.count("PyTorch FSDP2") == len(plans.plans) and table.count("tp 1 pp 1 dp 16") == len(plans.plans)
    assert max(map(len, table.splitlines())) <= 80


def test_ways_to_average_are_told_apart(say, search, file, columns, plans):
    columns(200)
    once, parts = plans.local_updates[0], strategies(tokens=1e9)[-1]
    streamed = parts.replace(strategy=parts.strategy.replace(local_update={"steps": 100, "fragments": 4, "delay": 5}))
    search.answer = plans.model_copy(update={"local_updates": (made(streamed, 1, "local update"), once)})
    _, out, _ = say("plan", file)
    assert "100 / 4" in out and "100 / 1" in out


def test_what_is_not_among_the_plans_is_told_in_words(say, search, file, plans):
    reason = told("idle_tp", count=1, zone="z", gpus=8, tp=16)
    families = [Rejected(family=family, count=1, reason=reason) for family in ("ddp: memory", "bound", "tp 16")]
    search.answer = plans.model_copy(update={"rejected": tuple(families)})
    _, out, _ = say("plan", file)
    assert "PyTorch DDP: memory" in out and "all others" in out and "tp 16" in out and "bound " not in out


def test_json_is_the_plans_and_nothing_else(say, search, file, plans):
    status, out, err = say("plan", file, "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == plans.model_dump(mode="json")
    assert Plans(**json.loads(out)) == plans


def test_why_goes_from_the_best_plan_to_the_other_part_by_part(say, search, file, plans):
    best, other = (plan.prediction for plan in plans.plans[:2])
    _, out, _ = say("plan", file, "--why", 2)
    table = out.split("From plan 1 to plan 2")[1]
    first, second = (shown(one.step_time_s.expected) for one in (best, other))
    assert re.search(rf"^ +plan 1 +{re.escape(first)} *$", table, re.MULTILINE)
    assert re.search(rf"^ +plan 2 +\+\S+ +{re.escape(second)} *$", table, re.MULTILINE)
    assert re.search(r"^ +recomputation +\+", table, re.MULTILINE)
    memory = other.memory_gib.peak.expected - best.memory_gib.peak.expected
    assert memory < 0 and f"{memory:.4g} GiB at the peak" in table
    assert re.search(r"Plan 1 really is faster than plan 2 with a chance of \d+\.\d %", table)


def test_why_as_json_adds_up_to_the_difference_of_the_steps(say, search, file, plans):
    found = json.loads(say("plan", file, "--why", "l1", "--json")[1])
    best, other = plans.plans[0].prediction, plans.local_updates[0].prediction
    jsonschema.validate(found, json.loads((ROOT / "docs" / "schema" / "plans.v1.json").read_text("utf-8")))
    why, found["why"] = found["why"], None
    assert (why["rank"], why["kind"]) == (1, "local update")
    assert sum(part["seconds"] for part in why["parts"]) == pytest.approx(
        other.step_time_s.expected - best.step_time_s.expected
    )
    assert why["chance_best_is_faster"] < 0.5 < other.step_time_s.expected < best.step_time_s.expected
    assert found == plans.model_dump(mode="json")
    _, out, _ = say("plan", file, "--why", "L1")
    assert "From plan 1 to plan L1" in out and re.search(r"between zones +-\S+ GB a step", out)


def test_why_makes_the_search_keep_as_many_plans(say, search, file):
    status, _, err = say("plan", file, "--why", 9)
    assert search.how["top"] == 9
    assert status == 2 and "3 synchronous plans and 1 with local updates" in err


@pytest.mark.parametrize("rank", ["1", "0", "x", "L0", "L", "-2", "2.5", "²"])
def test_what_is_no_rank_after_the_best_is_refused_before_the_search(say, search, file, rank):
    status, out, err = say("plan", file, f"--why={rank}")
    assert (status, out) == (2, "")
    assert "not the rank" in err
    assert not hasattr(search, "how")


def test_the_front_shows_time_against_price(say, search, file):
    """1e9 tokens of 64 x 4096 a step are 3,815 steps: $0.5 a step makes $1,907.5, to four digits 1,908."""
    _, out, _ = say("plan", file, "--front")
    table = out.split("Time against price")[1].split("What is not among")[0]
    assert [one.split()[-3:] for one in table.splitlines() if "FSDP2" in one] == [
        ["4.5", "0.5", "1,908"],
        ["8.25", "0.25", "953.8"],
    ]
    assert "without what failures and checkpoints cost" in table
    assert "Time against price" not in say("plan", file)[1]


def test_a_front_without_prices_says_what_is_missing(say, search, file, plans):
    search.answer = plans.model_copy(update={"front": ()})
    assert "Set usd_per_gpu_hour" in say("plan", file, "--front")[1]


def test_the_crossover_names_who_wins_below_and_above_and_the_rates(say, search, file):
    _, out, _ = say("plan", file, "--crossover")
    told = next(one for one in out.splitlines() if one.startswith("Crossover"))
    flip = json.loads(say("plan", file, "--crossover", "--json")[1])["crossover"]
    assert flip["factor"] and f"at {flip['factor']:.3g} times" in told
    named = {"one": "the best synchronous plan", "other": "the best plan with local updates"}
    assert f"below: {named[flip['below']]}; above: {named[flip['above']]}." in told
    row = next(one for one in out.splitlines() if one.strip().startswith("a > b"))
    assert row.split()[-2:] == ["10", f"{flip['gbps']['a > b']:.4g}"]


def test_a_crossover_needs_two_zones_and_both_kinds_of_plan(say, search, file, plans):
    status, _, err = say("plan", SINGLE, "--crossover")
    assert status == 2 and "1 zone" in err and not hasattr(search, "how")
    search.answer = plans.model_copy(update={"local_updates": ()})
    assert "No crossover" in say("plan", file, "--crossover")[1]
    assert json.loads(say("plan", file, "--crossover", "--json")[1])["crossover"] is None


def test_where_only_local_updates_fit_they_are_the_answer_and_said_to_be(say, search, file, plans):
    search.answer = plans.model_copy(update={"plans": (), "front": ()})
    status, out, _ = say("plan", file)
    assert status == 0
    assert "No synchronous plan fits." in out
    assert "local_update.steps 100" in line(out, "options")
    assert "zones average every 100 steps" in line(out, "where")


def test_pins_reach_the_search_as_part_of_the_strategy(say, search, file):
    assert say("plan", file, "--pin", "tp=8", "--pin", "communication.overlap_tensor=true")[0] == 0
    assert search.scenario.strategy.pinned == {"tp", "communication"}
    assert search.scenario.strategy.tp == 8 and search.scenario.strategy.communication.overlap_tensor
    assert say("plan", SINGLE, "--pin", "micro_batch=4")[0] == 0
    assert (search.scenario.strategy.micro_batch, search.scenario.strategy.zero) == (4, 3)


@pytest.mark.parametrize(
    ("pin", "said"),
    [
        ("tp", 'pin "tp" is not of the form KEY=VALUE'),
        ("micro_bath=2", "--pin micro_bath=2: error"),
        ("tp=0", "--pin tp=0: error strategy.tp = 0 must be at least 1"),
        ("recompute=ful", "full"),
    ],
)
def test_a_wrong_pin_is_refused_as_of_that_pin(say, search, file, pin, said):
    status, out, err = say("plan", file, "--pin", pin)
    assert (status, out) == (2, "")
    assert said in err
    found = json.loads(say("plan", file, "--pin", pin, "--json")[1])["errors"]
    assert len(found) == 1 and found[0]["hint"] and found[0]["field"]


def test_a_wrong_line_beside_a_good_pin_keeps_its_line(say, search, tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text(dump_yaml(fields(strategy={"tp": 8, "zero": 7})), encoding="utf-8")
    _, _, err = say("plan", path, "--pin", "tp=4")
    assert re.search(r"wrong\.yaml:\d+: error strategy\.zero = 7", err)


def test_a_prototypes_request_can_be_pinned_too(say, search, tmp_path):
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"regions": 1, "gpusPerRegion": [8], "modelSize": 7, "batchSize": 64, "tp": 2}))
    assert say("plan", path, "--pin", "tp=4")[0] == 0
    assert search.scenario.strategy.tp == 4
    assert "upgraded" in {notice.code for notice in search.how["notices"]}


def test_the_best_plan_is_written_as_a_scenario_that_predict_answers_the_same(say, search, file, plans, tmp_path):
    target = tmp_path / "best.yaml"
    status, out, _ = say("plan", file, "-o", target)
    assert status == 0 and out.endswith("best.yaml was written.\n")
    written = load_scenario(target)
    assert (written.strategy, written.placement) == (plans.plans[0].strategy, plans.plans[0].placement)
    assert written.job.framework == "fsdp" and written.cluster == load_scenario(file).cluster
    found = json.loads(say("predict", target, "--json")[1])
    assert found["step_time_s"] == plans.plans[0].prediction.step_time_s.model_dump()


def test_a_file_is_not_overwritten_unless_told(say, search, file, tmp_path):
    target = tmp_path / "kept.yaml"
    target.write_text("precious")
    status, out, err = say("plan", file, "-o", target)
    assert (status, out, target.read_text()) == (2, "", "precious")
    assert "exists already" in err and not hasattr(search, "how")
    status, out, _ = say("plan", file, "-o", target, "--force", "--json")
    assert status == 0 and json.loads(out)["name"] == "two zones"
    assert target.read_text().startswith("version: 1")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--objective", "tim"), "time"),
        (("--top", 0), "--top = 0 must be at least 1"),
        (("--budget", 0), "--budget = 0 must be more than 0"),
        (("--budget", "nan"), "--budget = nan"),
    ],
)
def test_options_that_cannot_be_are_refused_before_the_search(say, search, file, arguments, said):
    status, out, err = say("plan", file, *arguments)
    assert (status, out) == (2, "")
    assert said in err and "Traceback" not in err and not hasattr(search, "how")


def test_when_nothing_fits_the_reasons_are_told_with_their_lines(say, search, tmp_path):
    path = tmp_path / "pinned.yaml"
    path.write_text(dump_yaml(fields(strategy={"tp": 8})), encoding="utf-8")
    params = {"ranks": 64, "room": 8, "tp": 8, "gpus": 8, "legal": 1}
    search.answer = IllegalError(Notice(code="tp_room", field="strategy.tp", value=8, params=params))
    status, out, err = say("plan", path)
    assert (status, out) == (2, "")
    assert re.search(r"pinned\.yaml:\d+: error", err)
    assert say("plan", path, "--pin", "tp=8")[2].startswith("--pin tp=8: error")
    assert json.loads(say("plan", path, "--json")[1])["errors"][0]["code"] == "tp_room"


def test_what_the_search_refuses_of_an_option_is_told_at_that_option(say, search, file):
    price = Notice(code="objective_cost_unknown", field="objective", params={"gpu": "t4", "zone": "a"})
    search.answer = IllegalError(price)
    status, out, err = say("plan", file, "--objective", "cost")
    assert (status, out) == (2, "") and err.startswith("--objective: error The price of a t4 in zone a")


def test_a_missing_file_is_bad_input(say, search):
    status, _, err = say("plan", "nowhere.yaml")
    assert status == 2 and "nowhere.yaml" in err


@pytest.mark.parametrize(
    ("terminal", "patience_s", "drawn"), [(True, 0.0, True), (True, 1e6, False), (False, 0.0, False)]
)
def test_a_bar_is_drawn_only_on_a_terminal_and_only_after_a_while(monkeypatch, capsys, terminal, patience_s, drawn):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(bars, "PATIENCE_S", patience_s)
    with bars.open_progress_bar() as progress:
        assert (progress is not None) == terminal
        if progress:
            progress("scoring", 2, 10)
            progress("simulating", 1, 3)
    out, err = capsys.readouterr()
    assert out == ""
    assert ("Scoring strategies" in err and "Simulating the best" in err) == drawn
    assert drawn or err == ""


@pytest.mark.parametrize("language", LANGUAGES)
def test_everything_a_plan_can_say_has_its_label(language):
    labels = load_texts(language)["label"]
    wanted = {f"{key}_{one}" for one in (*get_args(Crossing), "local") for key in ("crosses", "crossing")}
    wanted |= {f"objective_{one}" for one in OBJECTIVES} | {f"value_{one}" for one in OBJECTIVES if one != "time"}
    wanted |= {f"progress_{what}" for what in ("scoring", "simulating", "refining")}
    wanted |= {f"crossover_{winner}" for winner in ("one", "other")}
    wanted |= {f"link_{kind}" for kind in ("fast link", "network", "between zones")}
    assert wanted <= labels.keys()


def test_help_has_an_example(say):
    status, out, _ = say("plan", "--help")
    assert status == 0 and "Example: crosszone plan" in out


def test_long_lists_are_cut_and_say_so(say, search, file, plans):
    many = tuple(plans.rejected[0].model_copy(update={"family": f"family {n}"}) for n in range(25))
    search.answer = plans.model_copy(update={"rejected": many})
    _, out, _ = say("plan", file)
    assert "family 19 " in out and "family 20 " not in out and "and 5 more" in out
    assert len(json.loads(say("plan", file, "--json")[1])["rejected"]) == 25


def test_the_smallest_example_is_planned_for_real(say, tmp_path):
    """What the file pins stays, every plan fits its eight GPUs, and the written one is predicted the same."""
    pytest.importorskip("crosszone.plan.planner")
    best = tmp_path / "best.yaml"
    status, out, err = say("plan", SINGLE, "--json", "-o", best)
    found = Plans(**json.loads(out))
    assert (status, err) == (0, "") and found.plans and not found.local_updates
    for rank, plan in enumerate(found.plans, 1):
        assert plan.rank == rank and plan.framework == "fsdp" and plan.crossing == "none"
        assert (plan.strategy.micro_batch, plan.strategy.zero, plan.strategy.recompute) == (2, 3, "none")
        assert plan.prediction.gpus + sum(one.count for one in plan.idle) == 8 and plan.prediction.memory_gib.fits
    again = json.loads(say("predict", best, "--json")[1])
    assert again["step_time_s"] == pytest.approx(found.plans[0].prediction.step_time_s.model_dump())


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_smallest_example_is_reported_for_real(say, language):
    pytest.importorskip("crosszone.plan.planner")
    status, out, err = say("--lang", language, "plan", SINGLE, "--pin", "micro_batch=1", "--front")
    assert (status, err) == (0, "")
    assert "micro_batch 1" in out and "lab 8" in out
    assert bool(re.search(r"[\u4e00-\u9fff]{3}", out)) == (language == "zh")
