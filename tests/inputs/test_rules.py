"""[R1] [R2] The hard rules of legality, each with the two numbers that clash and the nearest legal value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import case, scenario, zone
from crosszone.errors import IllegalError
from crosszone.inputs.frameworks import load_frameworks
from crosszone.inputs.rules import (
    check_framework_schedule,
    find_able_frameworks,
    find_largest_divisor,
    list_broken_rules,
    list_refusals,
    require_legal,
)

SEED_ZONES = {
    "zones": [zone("beijing", 2), zone("shenzhen", 4), zone("shanghai", 8)],
    "default_link": {"gbps": 1, "rtt_ms": 40},
}


def codes(strategy, framework=None, **changes):
    return [n.code for n in list_notices(case(strategy, **changes), framework)]


def list_notices(checked, framework=None):
    return list_broken_rules(checked) + (list_refusals(checked, load_frameworks()[framework]) if framework else [])


@pytest.mark.parametrize(
    ("strategy", "changes", "code", "legal"),
    [
        ({"dp": 16}, {}, "ranks_over_gpus", 8),
        ({"tp": 4, "pp": 2, "dp": 2}, {}, "ranks_over_gpus", 1),
        ({"tp": 8, "pp": 2, "dp": 1}, {}, "model_over_gpus", 0),
        ({"tp": 5, "dp": 1}, {}, "tp_over_heads", 4),
        ({"tp": 6, "dp": 1}, {"model": "gpt-2-xl", "job": {"seq_len": 1024, "global_batch": 64}}, "tp_over_heads", 5),
        ({"dp": 8, "micro_batch": 3}, {}, "batch_not_divided", 16),
        ({"cp": 3, "dp": 2}, {"job": {"seq_len": 4096, "global_batch": 64}}, "cp_over_sequence", 2),
        ({"ep": 3, "dp": 8}, {"model": "mixtral-8x7b"}, "ep_over_experts", 2),
        ({"ep": 8, "dp": 4}, {"model": "mixtral-8x7b"}, "ep_over_ranks", 4),
        ({"ep": 2, "dp": 8, "expert_tp": 6}, {"model": "mixtral-8x7b"}, "expert_tp_over_ranks", 4),
        ({"dp": 8, "expert_tp": 5}, {"model": "mixtral-8x7b"}, "expert_tp_over_width", 4),
        ({"dp": 8, "shard_ranks": 3}, {}, "shard_ranks_over_dp", 2),
    ],
)
def test_each_clash_is_named_with_the_nearest_legal_value(strategy, changes, code, legal):
    notices = {n.code: n for n in list_broken_rules(case(strategy, **changes))}
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
        ({"dp": 8, "expert_tp": 2}, {}, "expert_tp_without_experts"),
        ({"dp": 8, "shard_ranks": 4, "shard_within": "node"}, {}, "shard_ranks_twice"),
        ({"dp": 8, "shard_ranks": 4}, {}, None),
        ({"pp": 4, "dp": 2, "layers_per_stage": [8, 8, 16]}, {}, "split_length"),
        ({"pp": 4, "dp": 2, "layers_per_stage": [8, 8, 8, 9]}, {}, "split_sum"),
        ({"pp": 8, "interleave": 8, "dp": 1}, {}, "stages_over_layers"),
        ({"pp": 2, "interleave": 17, "dp": 4}, {}, None),  # 34 slots: 32 layers, embedding and head
        ({"pp": 3, "interleave": 11, "dp": 2}, {}, "stages_over_layers"),  # 33: neither 32 nor 34
        ({"pp": 3, "dp": 2, "layers_per_stage": [16, 0, 16]}, {}, None),
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
        ({"ep": 2, "dp": 8}, {}, "ep_without_experts"),
        ({"dp": 8}, {"cluster": {"zones": [zone("a", gpu="v100")]}}, "gpu_lacks_precision"),
        ({"dp": 8, "local_update": {"steps": 10}}, {}, "local_update_zones"),
        ({"dp": 2, "replica_micro_batches": [48, 16]}, {}, None),
        ({"replica_micro_batches": [10, 6], "micro_batch": 4}, {}, None),
        ({"dp": 2, "replica_micro_batches": [48, 16, 1]}, {}, "replica_batches_length"),
        ({"dp": 2, "replica_micro_batches": [48, 17]}, {}, "replica_batches_sum"),
        ({"replica_micro_batches": [4] * 16, "tp": 2}, {}, "ranks_over_gpus"),
    ],
)
def test_each_rule_breaks_where_it_should_and_nowhere_else(strategy, changes, code):
    assert codes(strategy, **changes) == ([code] if code else [])


def test_sixty_four_ranks_do_not_fit_on_fourteen_gpus():
    """The example of the platform's own document: 2 x 4 x 8 on 2 + 4 + 8 GPUs."""
    found = case({"dp": 2, "pp": 4, "tp": 8}, cluster=SEED_ZONES, job={"seq_len": 2048, "global_batch": 56})
    notice = list_broken_rules(found)[0]
    assert notice.code == "model_over_gpus"
    assert "64 ranks" in notice.message()
    assert "14 GPUs" in notice.message()


@pytest.mark.parametrize(("length", "cp", "legal"), [(15, 6, 1), (36, 8, 6), (4096, 3, 2)])
def test_the_context_degree_offered_really_divides_the_sequence(length, cp, legal):
    """A causal sequence is cut into 2c parts: 36 into 12, 15 into none."""
    found = case({"cp": cp, "dp": 1}, job={"seq_len": length, "global_batch": 8})
    notice = next(n for n in list_broken_rules(found) if n.code == "cp_over_sequence")
    assert notice.params["legal"] == legal
    assert "cp_over_sequence" not in codes({"cp": legal, "dp": 1}, job={"seq_len": length, "global_batch": 8})


def test_the_tensor_degree_offered_really_fits():
    two_nodes, job = {"zones": [zone("a", 6, count=2)]}, {"seq_len": 2048, "global_batch": 12}
    notice = list_broken_rules(case({"tp": 4, "dp": 3}, cluster=two_nodes, job=job))[0]
    assert (notice.code, notice.params["legal"]) == ("tp_room", 2)
    assert codes({"tp": 2, "dp": 3}, cluster=two_nodes, job=job) == []


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
        ("deepspeed", {"pp": 2, "dp": 4, "zero": 2}, {}, "framework_needs"),
        ("deepspeed", {"pp": 2, "dp": 4, "zero": 3}, {}, "framework_needs"),
        ("deepspeed", {"pp": 2, "dp": 4, "zero": 1}, {}, None),
        ("deepspeed", {"tp": 2, "pp": 2, "dp": 2}, {}, "framework_needs"),
        ("deepspeed", {"pp": 2, "interleave": 2, "dp": 4}, {}, "framework_lacks"),
        (
            "deepspeed",
            {"dp": 8, "zero": 1, "communication": {"compression": "1-bit"}},
            {},
            "framework_needs",
        ),
        ("deepspeed", {"dp": 8, "zero": 0, "communication": {"compression": "1-bit"}}, {}, None),
        ("deepspeed", {"dp": 8, "zero": 3, "communication": {"compression": "int4"}}, {}, None),
        ("deepspeed", {"dp": 8}, {"precision": "bf16-pure"}, "framework_lacks"),
        ("megatron", {"pp": 2, "dp": 4, "schedule": "zero-bubble"}, {}, "framework_lacks"),
        ("megatron", {"pp": 4, "interleave": 2, "dp": 2}, {"global_batch": 6}, "framework_interleaved_groups"),
        ("megatron", {"pp": 4, "interleave": 2, "dp": 2}, {"global_batch": 12}, None),  # 6 micro-batches in one group
        ("fsdp", {"pp": 2, "dp": 4, "layers_per_stage": [0, 32]}, {}, "framework_empty_stage"),
        ("fsdp", {"pp": 2, "interleave": 17, "dp": 4}, {}, "framework_stages_over_layers"),
        ("megatron", {"pp": 2, "dp": 4, "layers_per_stage": [0, 32]}, {}, None),
        ("megatron", {"pp": 2, "interleave": 17, "dp": 4}, {}, None),
        ("megatron", {"tp": 2, "dp": 4, "communication": {"overlap_tensor": True}}, {}, "framework_needs"),
        (
            "megatron",
            {"tp": 2, "dp": 4, "sequence_parallel": True, "communication": {"overlap_tensor": True}},
            {},
            None,
        ),
        ("megatron", {"dp": 8, "communication": {"overlap_parameters": True}}, {}, "framework_needs"),
        ("megatron", {"dp": 8, "zero": 1, "communication": {"overlap_parameters": True}}, {}, None),
        ("megatron", {"dp": 8, "zero": 2}, {}, None),
        ("megatron", {"pp": 2, "dp": 4, "zero": 2}, {}, "framework_needs"),
        ("deepspeed", {"dp": 8, "zero": 0, "offload": "optimizer"}, {}, "framework_needs"),
        ("deepspeed", {"dp": 8, "zero": 2, "offload": "optimizer+weights"}, {}, "framework_needs"),
        ("deepspeed", {"dp": 8, "zero": 3, "offload": "optimizer+weights"}, {}, None),
        ("deepspeed", {"dp": 8, "zero": 1, "shard_within": "node"}, {}, "framework_needs"),
        ("deepspeed", {"dp": 8, "zero": 3, "communication": {"reduce": "hierarchical"}}, {}, "framework_needs"),
        ("fsdp", {"dp": 8, "communication": {"reduce": "hierarchical"}}, {}, "framework_needs"),
        ("fsdp", {"dp": 8, "shard_within": "zone", "communication": {"reduce": "hierarchical"}}, {}, None),
        ("megatron", {"dp": 8, "zero": 1, "communication": {"reduce": "hierarchical"}}, {}, "framework_needs"),
        ("fsdp", {"dp": 8, "communication": {"bucket_mb": 100.0}}, {}, "framework_lacks_option"),
        ("deepspeed", {"dp": 8, "zero": 2, "communication": {"weight_compression": "int8"}}, {}, "framework_needs"),
        ("megatron", {"dp": 8, "communication": {"weight_compression": "int8"}}, {}, "framework_lacks"),
        ("deepspeed", {"dp": 8, "communication": {"compression": "int8"}}, {}, "framework_lacks"),
        (
            "deepspeed",
            {"dp": 8, "zero": 0, "communication": {"compression": "1-bit"}},
            {"optimizer": "sgd"},
            "framework_needs",
        ),
        ("fsdp", {"dp": 8, "offload": "optimizer"}, {}, "framework_lacks"),
        ("fsdp", {"dp": 8, "offload": "optimizer+weights"}, {}, None),
        ("megatron", {"pp": 4, "interleave": 2, "dp": 2}, {"global_batch": 64}, None),
        ("megatron", {"tp": 2, "pp": 2, "cp": 2, "dp": 1, "zero": 1, "sequence_parallel": True}, {}, None),
        ("fsdp", {"dp": 8}, {}, None),
        ("fsdp", {"pp": 2, "dp": 4, "schedule": "dualpipev", "interleave": 2}, {}, None),
        ("fsdp", {"dp": 8, "communication": {"compression": "powersgd", "compression_rank": 4}}, {}, "framework_lacks"),
        ("ddp", {"dp": 8, "communication": {"compression": "powersgd", "compression_rank": 4}}, {}, None),
        ("megatron", {"dp": 8, "offload": "optimizer+weights"}, {}, "framework_lacks"),
        ("horovod", {"dp": 8, "communication": {"gradient_dtype": "bf16"}}, {}, "framework_lacks"),
        ("deepspeed", {"dp": 8, "communication": {"overlap_tensor": True}}, {}, "framework_lacks_option"),
        ("ddp", {"replica_micro_batches": [40, 24]}, {}, None),
        ("ddp", {"replica_micro_batches": [40, 24], "local_update": {"steps": 9}}, {}, "local_update_zones"),
        ("fsdp", {"replica_micro_batches": [40, 24]}, {}, "uneven_shards"),
        ("fsdp", {"replica_micro_batches": [40, 24], "zero": 2}, {}, "uneven_shards"),
        ("fsdp", {"replica_micro_batches": [40, 24], "shard_within": "zone"}, {}, None),
        ("fsdp", {"replica_micro_batches": [32, 32]}, {}, None),
        ("megatron", {"replica_micro_batches": [40, 24]}, {}, "framework_lacks_option"),
        ("deepspeed", {"replica_micro_batches": [40, 24]}, {}, "framework_lacks_option"),
        ("horovod", {"replica_micro_batches": [40, 24]}, {}, "framework_lacks_option"),
        ("megatron", {"replica_micro_batches": [32, 32]}, {}, None),
    ],
)
def test_each_framework_refuses_what_it_cannot_do(framework, strategy, job, code):
    job_fields = {"seq_len": 4096, "global_batch": 64, "framework": framework} | job
    assert codes(strategy, framework, job=job_fields) == ([code] if code else [])


def test_any_framework_means_the_first_that_can():
    assert require_legal(case({"dp": 8}))[0].name == "ddp"
    assert require_legal(case({"tp": 2, "pp": 2, "dp": 2, "zero": 1}))[0].name == "megatron"
    able, refused = find_able_frameworks(case({"cp": 2, "pp": 2, "dp": 2, "zero": 1}))
    assert [framework.name for framework in able] == ["megatron"]
    assert len(refused) == 4


def test_a_framework_is_asked_with_its_own_zero_stage():
    framework, strategy = require_legal(case({"pp": 2, "dp": 4, "interleave": 2, "schedule": "zbv"}))
    assert (framework.name, strategy.zero) == ("fsdp", 3)
    assert require_legal(case({"dp": 8}))[1].zero == 0


def test_when_no_framework_can_each_says_why():
    with pytest.raises(IllegalError) as caught:
        require_legal(case({"pp": 2, "dp": 4, "schedule": "delay-aware", "extra_warmup": 3}))
    assert len(caught.value.notices) == len(load_frameworks())


def test_dp_follows_from_the_gpus_and_divides_the_batch():
    assert case({"tp": 2, "pp": 2}).strategy.dp == 2
    assert case({}).strategy.dp == 8
    uneven = {"zones": [zone("a", 6, count=2)]}
    assert case({"tp": 4}, cluster=uneven).strategy.dp == 2
    fourteen = case({}, cluster=SEED_ZONES, job={"seq_len": 2048, "global_batch": 512}).strategy
    assert fourteen.dp == 8


def test_experts_with_tensor_parallelism_need_sequence_parallelism_in_megatron():
    job = {"seq_len": 4096, "global_batch": 64, "framework": "megatron"}
    strategy = {"tp": 2, "ep": 4, "dp": 4}
    assert codes(strategy, "megatron", model="mixtral-8x7b", job=job) == ["framework_needs"]
    assert codes(strategy | {"sequence_parallel": True}, "megatron", model="mixtral-8x7b", job=job) == []


@pytest.mark.parametrize(
    ("gpu", "precision", "code"),
    [
        ("h100", "mxfp8", "gpu_lacks_precision"),
        ("b200", "mxfp8", None),
        ("h100", "fp8", None),
        ("a100", "fp8", "gpu_lacks_precision"),
        ("b200", "nvfp4", None),
        ("mi355x", "nvfp4", "gpu_lacks_precision"),
    ],
)
def test_number_formats_need_their_generation_of_gpus(gpu, precision, code):
    job = {"seq_len": 4096, "global_batch": 64, "precision": precision}
    assert codes({"dp": 8}, cluster={"zones": [zone("a", gpu=gpu)]}, job=job) == ([code] if code else [])


def test_a_typed_placement_is_judged_itself():
    """Two groups of 4-GPU nodes of one kind in a zone hold tp 8 where the user puts it."""
    nodes = [{"count": 1, "gpus": 4, "gpu": "a100"}, {"count": 1, "gpus": 4, "gpu": "a100"}]
    placement = {"blocks": [{"zone": "a", "group": 0, "count": 4}, {"zone": "a", "group": 1, "count": 4}]}
    cluster = {"zones": [{"name": "a", "nodes": nodes}]}
    assert codes({"tp": 8, "dp": 1}, cluster=cluster) == ["tp_room"]
    assert codes({"tp": 8, "dp": 1}, cluster=cluster, placement=placement) == []


def measured_case(row):
    """The case of a measured run, from its own columns."""
    from crosszone.inputs.catalogue import catalogue

    entry = catalogue().find("models", row["model"])
    number = {
        key: int(float(row[key]))
        for key in ("dp", "tp", "pp", "micro_batch", "global_batch", "seq_len", "gpus", "gpus_per_node")
    }
    shape = {key: int(row[key]) for key in ("layers", "hidden", "heads", "kv_heads") if row[key]}
    degrees = {"cp": int(row["cp"] or 1), "ep": int(row["ep"] or 1), "interleave": int(row["interleave"] or 1)}
    model = {"like": entry.name, **shape}
    if shape.get("heads") and "head_dim" in entry.model.model_fields_set:
        model["head_dim"] = entry.model.head_dim
    nodes = {
        "count": max(1, number["gpus"] // number["gpus_per_node"]),
        "gpus": min(number["gpus"], number["gpus_per_node"]),
        "gpu": row["gpu"],
    }
    return case(
        {"tp": number["tp"], "pp": number["pp"], "dp": number["dp"], "micro_batch": number["micro_batch"], **degrees},
        model=model,
        job={"seq_len": number["seq_len"], "global_batch": number["global_batch"], "precision": "fp16"},
        cluster={"zones": [{"name": "a", "nodes": [nodes]}]},
    )


def test_published_runs_are_legal(data):
    """Rules that refuse what somebody ran and measured would be wrong."""
    import csv

    from crosszone import InputError, catalogue

    tried, refused = 0, {}
    for file in ("measured_runs.csv", "measured_runs_vtrain_single.csv"):
        with (data / file).open(encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                needed = ("dp", "tp", "pp", "micro_batch", "global_batch", "seq_len", "layers", "heads", "gpu")
                if (
                    not all(row[key] for key in needed)
                    or catalogue().find("gpus", row["gpu"]) is None
                    or catalogue().find("models", row["model"]) is None
                ):
                    continue
                tried += 1
                try:
                    broken = [notice.code for notice in list_broken_rules(measured_case(row))]
                except InputError as error:
                    broken = [notice.code for notice in error.notices]
                if broken:
                    refused[row["id"]] = broken
    assert tried > 1500
    assert set(refused) <= {"megatron-bridge-0016"}, refused  # ep 64 x pp 8 on 256 GPUs, which Megatron refuses too


def test_gradient_accumulation_is_the_number_of_micro_batches():
    assert scenario(strategy={"tp": 8, "dp": 1, "micro_batch": 2}).build_case().strategy.micro_batches(64) == 32


def test_micro_batches_of_each_replica_add_up_to_the_batch():
    """[R2] 4 x (10 + 5) = 60 samples of 64: 16 micro-batches of 4 would do, or a batch of 60. 3 does not divide 64: 32 of 2."""
    (notice,) = list_broken_rules(case({"replica_micro_batches": [10, 5], "micro_batch": 4}))
    assert notice.params == {"batch": 64, "micro_batch": 4, "samples": 60, "legal": 4, "needed": 16}
    assert "add up to 16" in notice.hint()
    assert "global_batch=60" in notice.hint()
    (notice,) = list_broken_rules(case({"replica_micro_batches": [10, 5], "micro_batch": 3}))
    assert (notice.params["legal"], notice.params["needed"]) == (2, 32)
    settled_strategy = case({"replica_micro_batches": [40, 24]}).strategy
    assert (settled_strategy.dp, settled_strategy.micro_batches(64), settled_strategy.uneven) == (2, 40, True)


@pytest.mark.parametrize(("held", "code"), [("ab", None), ("abc", "local_update_zones"), ("a", "local_update_zones")])
def test_zones_that_average_are_those_of_the_placement(held, code):
    """Four replicas in two of three zones are two each; over three they cannot be equal; one zone has no other."""
    cluster = {"zones": [zone(name, 4) for name in "abc"], "default_link": {"gbps": 1, "rtt_ms": 40}}
    counts = {"ab": (2, 2), "abc": (2, 1, 1), "a": (4,)}[held]
    blocks = [{"zone": name, "count": count} for name, count in zip(held, counts, strict=True)]
    found = codes({"dp": 4, "local_update": {"steps": 10}}, cluster=cluster, placement={"blocks": blocks})
    assert found == ([code] if code else [])


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_the_largest_divisor_divides_and_is_the_largest(number, most):
    found = find_largest_divisor(number, most)
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
    framework=st.sampled_from(sorted(load_frameworks())),
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
    for notice in list_notices(case(strategy, model="mixtral-8x7b"), framework):
        assert notice.message("en") and notice.hint("en") and notice.message("zh") and notice.hint("zh")


@pytest.mark.parametrize(
    ("schedule", "chunks", "batch", "code"),
    [
        ("interleaved", 2, 8, None),  # 8 micro-batches on 4 stages: 2 rounds of 4
        ("interleaved", 2, 10, None),  # 2 rounds of 5
        ("interleaved", 2, 11, "framework_rounds"),  # 2 rounds, and 11 is odd
        ("zero-bubble", 1, 13, "framework_rounds"),  # 3 rounds
        ("1f1b", 1, 11, None),
        ("dualpipev", 2, 7, "framework_few_micro_batches"),  # less than 2 x 4
        ("dualpipev", 2, 8, None),
    ],
)
def test_torchs_schedules_run_only_some_numbers_of_micro_batches(schedule, chunks, batch, code):
    """torch/distributed/pipelining/schedules.py, PyTorch 2.13.0: m % max(1, m // p) must be 0; DualPipeV wants m >= 2 p."""
    small = {"layers": 16, "hidden": 64, "heads": 4, "ffn_hidden": 64, "vocab": 100}
    strategy = {"pp": 4, "dp": 1, "schedule": schedule, "interleave": chunks, "zero": 2}
    asked = scenario(model=small, job={"seq_len": 16, "global_batch": batch}, strategy=strategy).build_case()
    found = [notice.code for notice in check_framework_schedule(asked, load_frameworks()["fsdp"])]
    assert found == ([code] if code else [])
