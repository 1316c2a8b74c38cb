"""[R1] [R2] The hard rules of legality, each with the two numbers that clash and the nearest legal value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import case, scenario, zone
from crosszone.errors import IllegalError
from crosszone.inputs.frameworks import frameworks
from crosszone.inputs.rules import able_frameworks, broken_rules, largest_divisor, require_legal

SEED_ZONES = {
    "zones": [zone("beijing", 2), zone("shenzhen", 4), zone("shanghai", 8)],
    "default_link": {"gbps": 1, "rtt_ms": 40},
}


def codes(strategy, framework=None, **changes):
    return [n.code for n in broken_rules(case(strategy, **changes), framework and frameworks()[framework])]


@pytest.mark.parametrize(
    ("strategy", "changes", "code", "legal"),
    [
        ({"dp": 16}, {}, "ranks_over_gpus", 8),
        ({"tp": 4, "pp": 2, "dp": 2}, {}, "ranks_over_gpus", 1),
        ({"tp": 8, "pp": 2, "dp": 1}, {}, "model_over_gpus", 0),
        ({"tp": 5, "dp": 1}, {}, "tp_over_heads", 4),
        ({"tp": 6, "dp": 1}, {"model": "gpt-2-xl", "job": {"seq_len": 1024, "global_batch": 64}}, "tp_over_heads", 5),
        ({"dp": 8, "micro_batch": 3}, {}, "batch_not_divided", 16),
        ({"pp": 8, "interleave": 8, "dp": 1}, {}, "stages_over_layers", 4),
        ({"cp": 3, "dp": 2}, {"job": {"seq_len": 4096, "global_batch": 64}}, "cp_over_sequence", 2),
        ({"ep": 3, "dp": 8}, {"model": "mixtral-8x7b"}, "ep_over_experts", 2),
        ({"ep": 8, "dp": 4}, {"model": "mixtral-8x7b"}, "ep_over_ranks", 4),
    ],
)
def test_each_clash_is_named_with_the_nearest_legal_value(strategy, changes, code, legal):
    notices = {n.code: n for n in broken_rules(case(strategy, **changes))}
    assert code in notices
    assert notices[code].params["legal"] == legal
    assert str(legal) in notices[code].hint() or legal == 0
    assert notices[code].message("zh")


@pytest.mark.parametrize(
    ("strategy", "changes", "code"),
    [
        ({"tp": 4, "dp": 1}, {"model": {"like": "llama-2-7b", "kv_heads": 2, "heads": 32}}, None),
        (
            {"tp": 8, "dp": 1},
            {"model": {"like": "llama-2-7b", "heads": 24, "kv_heads": 6, "head_dim": 128}},
            "tp_over_kv_heads",
        ),
        ({"tp": 8, "dp": 1}, {"model": {"like": "llama-2-7b", "ffn_hidden": 11004}}, "tp_over_width"),
        ({"pp": 4, "dp": 2, "layers_per_stage": [8, 8, 8, 8]}, {}, None),
        ({"pp": 4, "dp": 2, "layers_per_stage": [9, 9, 9, 5]}, {}, None),
        ({"pp": 4, "dp": 2, "layers_per_stage": [8, 8, 16]}, {}, "split_length"),
        ({"pp": 4, "dp": 2, "layers_per_stage": [8, 8, 8, 9]}, {}, "split_sum"),
        ({"interleave": 2, "dp": 8}, {}, "interleave_without_stages"),
        ({"pp": 2, "schedule": "zbv", "dp": 4}, {}, "v_schedule_chunks"),
        ({"pp": 2, "schedule": "1f1b", "interleave": 2, "dp": 4}, {}, "schedule_not_interleaved"),
        ({"pp": 2, "schedule": "interleaved", "dp": 4}, {}, "interleaved_without_chunks"),
        ({"pp": 2, "extra_warmup": 2, "dp": 4}, {}, "warmup_schedule"),
        ({"sequence_parallel": True, "dp": 8}, {}, "sequence_parallel_alone"),
        (
            {"sequence_parallel": True, "tp": 8, "dp": 1},
            {"job": {"seq_len": 4092, "global_batch": 64}},
            "sequence_parallel_length",
        ),
        ({"dp": 8}, {"model": "gpt-3-175b", "job": {"seq_len": 4096, "global_batch": 64}}, "sequence_over_positions"),
        ({"ep": 2, "dp": 8}, {}, "ep_without_experts"),
        ({"dp": 8}, {"cluster": {"zones": [zone("a", gpu="v100")]}}, "gpu_lacks_precision"),
        ({"dp": 8, "local_update": {"steps": 10}}, {}, "local_update_zones"),
    ],
)
def test_each_rule_breaks_where_it_should_and_nowhere_else(strategy, changes, code):
    assert codes(strategy, **changes) == ([code] if code else [])


def test_sixty_four_ranks_do_not_fit_on_fourteen_gpus():
    """The example of the platform's own document: 2 x 4 x 8 on 2 + 4 + 8 GPUs."""
    found = case({"dp": 2, "pp": 4, "tp": 8}, cluster=SEED_ZONES, job={"seq_len": 2048, "global_batch": 56})
    notice = broken_rules(found)[0]
    assert notice.code == "model_over_gpus"
    assert "64 ranks" in notice.message()
    assert "14 GPUs" in notice.message()


def test_tensor_parallel_groups_must_fit_whole_into_nodes():
    """tp 4 on nodes of 2, 4 and 8 GPUs: 12 ranks at most, never 14."""
    job = {"seq_len": 2048, "global_batch": 12}
    assert codes({"tp": 4, "dp": 3}, cluster=SEED_ZONES, job=job) == []
    assert codes({"tp": 8, "dp": 1}, cluster=SEED_ZONES, job=job) == []
    assert codes({"tp": 2, "dp": 7}, cluster=SEED_ZONES, job={"seq_len": 2048, "global_batch": 14}) == []
    two_nodes = {"zones": [zone("a", 6, count=2)]}
    assert codes({"tp": 4, "dp": 3}, cluster=two_nodes, job=job) == ["tp_room"]


def test_a_group_larger_than_a_node_takes_whole_nodes():
    assert codes({"tp": 16, "dp": 1}, cluster={"zones": [zone("a", 8, count=2)]}) == []
    assert codes(
        {"tp": 16, "dp": 1}, cluster={"zones": [zone("a", 8), zone("b", 8)], "default_link": {"gbps": 1, "rtt_ms": 1}}
    ) == ["tp_room"]


@pytest.mark.parametrize(
    ("framework", "strategy", "job", "code"),
    [
        ("ddp", {"tp": 2, "dp": 4}, {}, "framework_lacks_axis"),
        ("horovod", {"pp": 2, "dp": 4}, {}, "framework_lacks_axis"),
        ("ddp", {"dp": 8, "zero": 1}, {}, "framework_lacks"),
        ("deepspeed", {"pp": 2, "dp": 4, "zero": 2}, {}, "framework_zero_with"),
        ("deepspeed", {"pp": 2, "dp": 4, "zero": 3}, {}, "framework_zero_with"),
        ("deepspeed", {"pp": 2, "dp": 4, "zero": 1}, {}, None),
        ("deepspeed", {"tp": 2, "pp": 2, "dp": 2}, {}, "framework_not_together"),
        ("deepspeed", {"pp": 2, "interleave": 2, "dp": 4}, {}, "framework_lacks"),
        (
            "deepspeed",
            {"dp": 8, "zero": 1, "communication": {"compression": "1-bit"}},
            {},
            "framework_compression_zero",
        ),
        ("deepspeed", {"dp": 8, "zero": 0, "communication": {"compression": "1-bit"}}, {}, None),
        ("deepspeed", {"dp": 8, "zero": 3, "communication": {"compression": "int4"}}, {}, None),
        ("deepspeed", {"dp": 8}, {"precision": "bf16-pure"}, "framework_lacks"),
        ("megatron", {"pp": 2, "dp": 4, "schedule": "zero-bubble"}, {}, "framework_lacks"),
        ("megatron", {"pp": 4, "interleave": 2, "dp": 2}, {"global_batch": 60}, "framework_interleaved_groups"),
        ("megatron", {"pp": 4, "interleave": 2, "dp": 2}, {"global_batch": 64}, None),
        ("megatron", {"tp": 2, "pp": 2, "cp": 2, "dp": 1, "zero": 1, "sequence_parallel": True}, {}, None),
        ("fsdp", {"dp": 8}, {}, None),
        ("fsdp", {"pp": 2, "dp": 4, "schedule": "dualpipev", "interleave": 2}, {}, None),
        ("fsdp", {"dp": 8, "communication": {"compression": "powersgd", "compression_rank": 4}}, {}, "framework_lacks"),
        ("ddp", {"dp": 8, "communication": {"compression": "powersgd", "compression_rank": 4}}, {}, None),
        ("megatron", {"dp": 8, "offload": "optimizer+weights"}, {}, "framework_lacks"),
        ("horovod", {"dp": 8, "communication": {"gradient_dtype": "bf16"}}, {}, "framework_lacks"),
        ("deepspeed", {"dp": 8, "communication": {"overlap_tensor": True}}, {}, "framework_lacks_option"),
    ],
)
def test_each_framework_refuses_what_it_cannot_do(framework, strategy, job, code):
    made = {"seq_len": 4096, "global_batch": 64, "framework": framework} | job
    assert codes(strategy, framework, job=made) == ([code] if code else [])


def test_any_framework_means_the_first_that_can():
    assert require_legal(case({"dp": 8})).name == "ddp"
    assert require_legal(case({"tp": 2, "pp": 2, "dp": 2, "zero": 1})).name == "megatron"
    able, refusals = able_frameworks(case({"cp": 2, "pp": 2, "dp": 2, "zero": 1}))
    assert [framework.name for framework in able] == ["megatron"]
    assert len(refusals) == 4


def test_when_no_framework_can_each_says_why():
    with pytest.raises(IllegalError) as caught:
        require_legal(case({"pp": 2, "dp": 4, "schedule": "delay-aware", "extra_warmup": 3}))
    assert len(caught.value.notices) == len(frameworks())


def test_dp_follows_from_the_gpus():
    assert case({"tp": 2, "pp": 2}).strategy.dp == 2
    assert case({}).strategy.dp == 8


def test_the_zero_stage_follows_from_the_framework():
    assert case({}, job={"seq_len": 4096, "global_batch": 64, "framework": "fsdp"}).strategy.zero == 3
    assert case({}).strategy.zero == 0


def test_gradient_accumulation_is_the_number_of_micro_batches():
    assert scenario(strategy={"tp": 8, "dp": 1, "micro_batch": 2}).case().strategy.micro_batches(64) == 32


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_the_largest_divisor_divides_and_is_the_largest(number, most):
    found = largest_divisor(number, most)
    assert number % found == 0
    assert found <= most
    assert not any(number % d == 0 for d in range(found + 1, min(number, most) + 1))


degree = st.sampled_from([1, 2, 3, 4, 8, 16])


@given(
    tp=degree,
    pp=degree,
    dp=degree,
    cp=degree,
    ep=degree,
    b=degree,
    v=degree,
    zero=st.integers(0, 3),
    sp=st.booleans(),
    framework=st.sampled_from(sorted(frameworks())),
)
def test_any_strategy_is_judged_without_stumbling(tp, pp, dp, cp, ep, b, v, zero, sp, framework):
    strategy = {
        "tp": tp,
        "pp": pp,
        "dp": dp,
        "cp": cp,
        "ep": ep,
        "micro_batch": b,
        "interleave": v,
        "zero": zero,
        "sequence_parallel": sp,
    }
    for notice in broken_rules(case(strategy, model="mixtral-8x7b"), frameworks()[framework]):
        assert notice.message("en") and notice.hint("en") and notice.message("zh") and notice.hint("zh")
