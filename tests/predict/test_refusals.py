"""What cannot be predicted is refused with the field, the numbers and the way out."""

from __future__ import annotations

from typing import Any

import pytest

from builders import scenario
from crosszone import InputError
from crosszone.errors import IllegalError, InvalidError
from crosszone.predict.predict import predict
from predict.given import DDP, FSDP, MEGATRON, one_zone, placed, predicted, zones


def refused(strategy: dict[str, Any], **changes: Any) -> tuple[str, set[str]]:
    """What the refusal says, and the fields it is about."""
    with pytest.raises(IllegalError) as error:
        predicted(strategy, **changes)
    return str(error.value), {notice.field for notice in error.value.notices}


@pytest.mark.parametrize(
    ("strategy", "numbers"),
    [
        ({"tp": 8, "dp": 4}, ("32", "16")),
        ({"tp": 3, "dp": 1}, ("3", "32")),
        ({"tp": 8, "pp": 2, "dp": 1, "micro_batch": 7}, ("64", "7")),
        ({"pp": 16, "interleave": 4, "dp": 1}, ("64", "32")),
        ({"tp": 2, "pp": 2, "dp": 1, "layers_per_stage": [16, 15]}, ("31", "32")),
        ({"tp": 8, "dp": 1, "ep": 4}, ("4",)),
        ({"tp": 1, "dp": 1, "sequence_parallel": True}, ("1",)),
        ({"tp": 2, "pp": 4, "dp": 2, "zero": 3}, ("3",)),
        ({"dp": 16, "offload": "optimizer+weights"}, ("optimizer+weights",)),
    ],
)
def test_a_broken_rule_is_named_with_the_numbers_that_clash(strategy, numbers):
    said, fields = refused(strategy)
    for number in numbers:
        assert number in said
    assert all(field.startswith("strategy.") for field in fields)


def test_a_framework_without_the_axis_is_named():
    said, fields = refused({"tp": 2, "dp": 8}, job=DDP)
    assert "PyTorch DDP" in said
    assert fields == {"strategy.tp"}


@pytest.mark.parametrize(
    ("placement", "word"),
    [
        ({"blocks": [{"zone": "a", "count": 8}]}, "16"),
        ({"blocks": [{"zone": "nowhere", "count": 16}]}, "nowhere"),
        ({"blocks": [{"zone": "a", "count": 12}, {"zone": "b", "count": 4}]}, "GPU 11"),
        ({"blocks": [{"zone": "a", "count": 8}, {"zone": "a", "count": 8}]}, "placement"),
        (
            {"order": ["dp", "tp", "cp", "pp"], "blocks": [{"zone": "a", "count": 8}, {"zone": "b", "count": 8}]},
            "zones",
        ),
        ({"blocks": [{"zone": "a", "group": 3, "count": 8}, {"zone": "b", "count": 8}]}, "group"),
    ],
)
def test_a_placement_that_cannot_be_is_refused(placement, word):
    with pytest.raises(InputError) as error:
        predicted(
            {"tp": 8, "pp": 2, "dp": 1} if "order" not in placement else {"tp": 8, "dp": 2},
            cluster=zones(2, 8),
            placement=placement,
        )
    assert word in str(error.value)


def test_tensor_groups_that_lie_in_two_zones_are_refused():
    place = {"blocks": [{"zone": "a", "count": 4}, {"zone": "b", "count": 4}]}
    with pytest.raises(InputError, match="tensor"):
        predicted({"tp": 8, "dp": 1}, cluster=zones(2, 8), placement=place)


def test_context_and_expert_groups_that_lie_in_two_zones_are_refused():
    said, fields = refused({"cp": 4, "dp": 1}, cluster=zones(2, 2))
    assert fields == {"strategy.cp"}
    assert "4" in said
    node = {"gpu": "h100-80gb-sxm"}
    said, fields = refused({"dp": 8, "ep": 8, "zero": 1}, model="mixtral-8x7b", cluster=zones(2, 4, node=node))
    assert fields == {"strategy.ep"}
    assert "8" in said


def test_a_scenario_without_a_strategy_says_what_is_missing():
    with pytest.raises(InputError) as error:
        predict(scenario())
    assert error.value.notices[0].field == "strategy"


def test_an_unknown_stack_names_the_nearest():
    with pytest.raises(InputError) as error:
        predicted({"tp": 8, "dp": 2}, job=MEGATRON | {"stack": "megatron-cor"})
    assert "megatron-core" in str(error.value)
    assert "job.stack" in str(error.value)


def test_a_stack_may_name_its_release():
    """A later release dispatches tokens to experts quicker; the syntax is year.month."""
    kinds: dict[str, Any] = {"model": "mixtral-8x7b", "cluster": one_zone(8, gpu="h100-80gb-sxm")}
    old, new = (
        predicted({"dp": 8, "ep": 8, "zero": 1}, job=MEGATRON | {"stack": f"megatron-core@{release}"}, **kinds)
        for release in ("25.02", "26.02")
    )
    assert new.basis.stack == old.basis.stack == "megatron-core"
    assert new.breakdown_s["routing"] < old.breakdown_s["routing"]


@pytest.mark.parametrize("release", ["", "25", "25.13", "25.0", "2025-09", "25.9.1", "latest"])
def test_a_release_that_is_no_year_and_month_is_refused(release):
    with pytest.raises(InputError) as error:
        predicted({"tp": 8, "dp": 2}, job=MEGATRON | {"stack": f"megatron-core@{release}"})
    assert "job.stack" in str(error.value)


def test_refusals_speak_chinese_too():
    with pytest.raises(IllegalError) as error:
        predicted({"tp": 8, "dp": 4})
    assert any("\u4e00" <= c <= "\u9fff" for c in error.value.notices[0].message("zh"))


def test_warnings_of_a_prediction_are_in_the_language_asked_for():
    """A GPU that was not measured takes its family's profile, and the answer says so."""
    given = scenario(strategy={"tp": 8, "dp": 1}, job=MEGATRON, cluster=one_zone(8, gpu="h800-80gb-sxm"))
    codes = {w["code"]: w["message"] for w in predict(given, language="zh").warnings}
    assert any("\u4e00" <= c <= "\u9fff" for c in codes["profile_derived"])
    assert not predict(given).basis.measured
    assert predict(given).basis.gpu_profiles == {"h800-80gb-sxm": "h100"}


def test_any_framework_is_the_first_that_can():
    """ZeRO 1 with tensor parallelism over all replicas: DeepSpeed or Megatron can, DDP and FSDP cannot."""
    got = predicted({"tp": 8, "dp": 2, "zero": 1}, job=MEGATRON | {"framework": "any"})
    assert got.framework in ("deepspeed", "megatron")
    assert "framework_taken" in {w["code"] for w in got.warnings}


def test_a_prediction_survives_json():
    got = predicted({"tp": 4, "pp": 2, "dp": 2})
    again = type(got).model_validate_json(got.model_dump_json())
    assert again == got


@pytest.mark.parametrize(("schedule", "interleave"), [("gpipe", 1), ("zbv", 2), ("delay-aware", 1)])
def test_a_step_of_millions_of_passes_is_refused_before_it_is_simulated(schedule, interleave):
    """8 stages of a million micro-batches: eight million passes, where at most a million are simulated."""
    job = FSDP | {"global_batch": 1_000_000}
    strategy = {"pp": 8, "dp": 1, "schedule": schedule, "interleave": interleave}
    with pytest.raises(InputError) as error:
        predicted(strategy, job=job)
    assert {notice.code for notice in error.value.notices} == {"step_too_long"}
    assert str(8_000_000 * interleave) in str(error.value).replace(",", "").replace(" ", "")


def test_a_step_whose_rounds_repeat_may_be_long():
    """1F1B of a million micro-batches costs no more than some rounds."""
    assert predicted({"pp": 8, "dp": 1}, job=FSDP | {"global_batch": 1_000_000}).step_time_s.expected > 0


def test_a_timeline_that_no_trace_could_hold_is_refused_before_it_is_drawn():
    """Eight stages of 131,072 micro-batches: two passes and two messages each make 4,194,304 spans."""
    job = {"seq_len": 2048, "global_batch": 262_144, "framework": "megatron"}
    p = placed({"tp": 1, "pp": 8, "dp": 2}, job=job, cluster=one_zone(16))
    with pytest.raises(InvalidError) as refused:
        p.timeline()
    (notice,) = refused.value.notices
    assert (notice.code, notice.value, notice.params["limit"]) == ("trace_too_long", 4_194_304, 400_000)
