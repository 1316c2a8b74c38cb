"""What the prototypes got wrong: clusters and models for which they gave impossible plans."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builders import fields, scenario, zone
from crosszone import InputError, Plan, plan
from crosszone.cli import run as _run
from crosszone.errors import Notice
from crosszone.inputs.document import dump_yaml
from crosszone.inputs.frameworks import load_frameworks
from crosszone.inputs.rules import Case, list_broken_rules, list_refusals
from crosszone.text import LANGUAGES

LINK = {"gbps": 10, "rtt_ms": 50}
"""What the prototypes took for every pair of regions."""
JOB = {"seq_len": 2048, "global_batch": 32}


def regions(*gpus: int, gpu: str = "a100-80gb-sxm") -> dict[str, Any]:
    """A zone of one node for each number of GPUs, with 64 GiB of host memory a GPU."""
    zones = [zone(f"region-{i + 1}", count, gpu=gpu) for i, count in enumerate(gpus)]
    for one, count in zip(zones, gpus, strict=True):
        one["nodes"][0]["memory_gib"] = 64 * count
    return {"zones": zones, "default_link": LINK}


def asked(**changes: Any) -> dict[str, Any]:
    return fields(**{"job": JOB} | changes)


def is_good(one: Plan, given: dict[str, Any]) -> None:
    """Legal by every rule and the framework's own, in memory, and every GPU in use or idle for a reason."""
    of, framework = scenario(**given), load_frameworks()[one.framework]
    case = Case(model=of.model, job=of.job, cluster=of.cluster, strategy=one.strategy, placement=one.placement)
    assert not list_broken_rules(case) and not list_refusals(case, framework)
    assert not one.placement.check(of.cluster, one.strategy)
    assert one.prediction.memory_gib.fits
    assert one.strategy.ranks + sum(idle.count for idle in one.idle) == of.cluster.gpus
    assert all(idle.reason["message"] for idle in one.idle)


def refusal(given: dict[str, Any]) -> Notice:
    with pytest.raises(InputError) as caught:
        plan(scenario(**given))
    notice = caught.value.notices[0]
    assert all(notice.message(language) and notice.hint(language) for language in LANGUAGES)
    return notice


GOOD = {
    "1B on 4, 8 and 2 GPUs: TP over regions, or GPUs left without a word": asked(
        model={"size_b": 1}, cluster=regions(4, 8, 2)
    ),
    "7B on 2 x 8": asked(cluster=regions(8, 8)),
    "7B on 256 GPUs got tp 16": asked(
        job=JOB | {"global_batch": 256}, cluster={"zones": [zone("a", 8, 32)]}, strategy={"micro_batch": 1}
    ),
    "70B on 6 and 6 GPUs: 8 of 12 in use": asked(model="llama-2-70b", cluster=regions(6, 6, gpu="h200-141gb-sxm")),
    "13B on 4 GPUs: dp 0, pp Infinity, tp 8": asked(model="gpt-3-13b", cluster=regions(4)),
    "7B on 2, 4 and 8 GPUs of two kinds in bf16": asked(
        job=JOB | {"precision": "fp16"},
        cluster={"zones": [zone("a", 2), zone("b", 4), zone("c", 8, gpu="v100-32gb-sxm")], "default_link": LINK},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("given", GOOD.values(), ids=[name.split(":")[0] for name in GOOD])
def test_where_the_prototypes_failed_there_is_a_legal_plan_that_fits(given):
    found = plan(scenario(**given), local_updates=False)
    for one in found.plans:
        is_good(one, given)
    assert found.plans[0].strategy.tp <= 8


def test_13_billion_on_four_gpus_use_all_four():
    """The Chinese prototype gave dp 0, pp Infinity, tp 8."""
    best = plan(scenario(**asked(model="gpt-3-13b", cluster=regions(4)))).plans[0]
    assert best.strategy.ranks == 4 and best.idle == ()


def test_a_175_billion_model_on_fourteen_gpus_is_refused_with_the_byte_budget():
    """The committed sample of the prototype has tp 14 over three regions: weights alone are 327 GiB of bf16."""
    notice = refusal(asked(model="gpt-3-175b", cluster=regions(4, 8, 2)))
    assert notice.code == "nothing_fits"
    assert notice.params["needed"] > notice.params["limit"] == 80
    assert notice.params["states_gib"] > 0 and str(notice.params["lacks"]) in notice.hint()
    assert notice.params["lacks"] == pytest.approx(notice.params["needed"] - 80, abs=0.11)


def test_70_billion_on_twelve_gpus_of_80_gib_fit_only_with_states_elsewhere():
    """16 bytes each of 69e9 parameters are 1028 GiB; twelve GPUs have 960, so states must lie on the hosts, or nothing fits."""
    given = asked(model="llama-2-70b", cluster=regions(6, 6))
    try:
        found = plan(scenario(**given), local_updates=False)
    except InputError as error:
        assert error.notices[0].code == "nothing_fits"
        return
    for one in found.plans:
        is_good(one, given)
        assert one.strategy.offload != "none"


def test_64_ranks_on_14_gpus_are_refused_with_both_numbers():
    """The request of the platform: 2 x 4 x 8 ranks on environments of 2, 4 and 8 GPUs."""
    notice = refusal(asked(cluster=regions(2, 4, 8), strategy={"dp": 2, "pp": 4, "tp": 8}))
    assert notice.code in ("ranks_over_gpus", "model_over_gpus")
    for language in LANGUAGES:
        assert "64" in notice.message(language) and "14" in notice.message(language)


def test_tp_14_over_regions_is_refused_for_its_heads():
    """96 heads do not divide by 14."""
    notice = refusal(asked(model="gpt-3-175b", cluster=regions(4, 8, 2), strategy={"tp": 14}))
    assert notice.code == "tp_over_heads" and "14" in notice.message() and "96" in notice.message()


def test_tp_8_finds_no_room_in_nodes_of_2_and_4():
    """A group of eight cannot sit in two nodes of two and four GPUs."""
    notice = refusal(asked(cluster=regions(4, 4, 2), strategy={"tp": 8}))
    assert notice.code == "tp_room" and "8" in notice.message()


def test_zero_3_with_a_pipeline_is_refused_for_deepspeed():
    """The prototypes always wrote ZeRO 3 beside a pipeline."""
    notice = refusal(asked(job=JOB | {"framework": "deepspeed"}, cluster=regions(8), strategy={"pp": 2, "zero": 3}))
    assert (notice.code, notice.value) == ("framework_needs", 3)


def test_a_batch_of_32_is_never_shared_out_among_14_replicas():
    """32 samples, micro-batch 2, 14 GPUs gave 28 samples a step; 32 = micro_batch x micro-batches x dp always holds."""
    given = asked(cluster=regions(4, 8, 2))
    for one in plan(scenario(**given)).plans:
        counts = one.strategy.replica_micro_batches or (one.prediction.micro_batches,) * one.strategy.dp
        assert one.strategy.micro_batch * sum(counts) == 32
    notice = refusal(given | {"strategy": {"dp": 14, "micro_batch": 2}})
    assert notice.code == "batch_not_divided" and "32" in notice.message() and "28" in notice.message()


def test_bf16_on_v100_is_refused_by_name():
    """A100 and V100 mixed: V100 has no bf16."""
    cluster = {"zones": [zone("a", 2), zone("b", 8, gpu="v100-32gb-sxm")], "default_link": LINK}
    notice = refusal(asked(cluster=cluster))
    assert notice.code == "gpu_lacks_precision" and "v100-32gb-sxm" in notice.message() + notice.hint()


REFUSED = {
    "64 ranks on 14 GPUs": asked(cluster=regions(2, 4, 8), strategy={"dp": 2, "pp": 4, "tp": 8}),
    "175B on 14 GPUs": asked(model="gpt-3-175b", cluster=regions(4, 8, 2)),
    "7B replicated on 24 GB": asked(job=JOB | {"framework": "ddp"}, cluster=regions(8, gpu="rtx-4090")),
    "tp 14": asked(model="gpt-3-175b", cluster=regions(4, 8, 2), strategy={"tp": 14}),
}


@pytest.mark.slow
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("given", REFUSED.values(), ids=REFUSED)
def test_the_command_line_refuses_with_status_2_and_a_sentence(given, language, tmp_path, capsys):
    path = tmp_path / "seed.yaml"
    path.write_text(dump_yaml(given), encoding="utf-8")
    assert _run(["--lang", language, "plan", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.strip() and "Traceback" not in err
    assert _run(["--lang", language, "plan", str(path), "--json"]) == 2
    out, err = capsys.readouterr()
    errors = json.loads(out)["errors"]
    assert err == "" and errors and all(one["message"] and one["hint"] for one in errors)
