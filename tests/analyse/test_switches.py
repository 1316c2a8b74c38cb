"""Switches: none is dead, and each is what its framework calls it."""

from __future__ import annotations

import re

import pytest

from builders import scenario
from conftest import ROOT
from crosszone.analyse.switches import (
    build_switch_changes,
    find_best_bucket_mb,
    find_option,
    get_switch_value,
    load_switches,
    read_switch,
    with_bucket,
)
from crosszone.analyse.what_if import what_if
from crosszone.errors import InputError
from crosszone.inputs.frameworks import load_frameworks
from crosszone.predict.predict import build_predictor
from crosszone.text import load_texts
from predict.given import zones

APART = {
    "order": ["tp", "cp", "pp", "dp"],
    "blocks": [{"zone": "a", "count": 16}, {"zone": "b", "count": 16}],
}
FAR = zones(2, 16, rtt_ms=60)
LOSSY = zones(2, 16, rtt_ms=60, loss_pct=0.1)
DILOCO = {"local_update": {"steps": 100, "delay": 0, "fragments": 2}}
STRATEGIES = {
    "ddp": {"dp": 32},
    "fsdp": {"dp": 32, "zero": 3, "shard_within": "zone"},
    "deepspeed": {"dp": 32, "zero": 3, "shard_within": "zone"},
    "megatron": {"tp": 4, "dp": 8, "zero": 1, "sequence_parallel": True},
    "horovod": {"dp": 32},
}
FLIPS = {
    "accumulation": ["x2"],
    "compression": ["bf16", "fp16", "int8", "int4", "powersgd:4", "1-bit"],
    "weight_compression": ["int8"],
    "prefetch": [False],
    "overlap": [False],
    "tensor_overlap": [True],
    "primitive": ["ring", "tree", "hierarchical"],
    "bucket": [1.0, 1000.0],
    "overlap_coefficient": [0.0, 1.0],
    "sharding": ["all", "zone", "node"],
    "local_steps": [20, 200],
    "fragments": [4],
    "delay": [3],
    "update_type": ["int8"],
    "flows": [8],
    "congestion": ["bbr"],
    "socket_buffer": [64.0],
}
WHAT_IF_ONLY = {"overlap_coefficient"}
"""No framework has a dial for it."""
LONG = zones(2, 16, gbps=400, rtt_ms=200)
"""So wide and long that windows limit what connections carry."""
CLUSTERS = {"congestion": LOSSY, "flows": LONG, "socket_buffer": LONG}


def far(framework: str, cluster=None, **more):
    job = {"seq_len": 4096, "global_batch": 256, "framework": framework}
    strategy = STRATEGIES[framework] | more
    return scenario(strategy=strategy, job=job, cluster=cluster or FAR, placement=APART)


def test_every_switch_stands_in_the_documents_table():
    text = (ROOT / "docs" / "communication.md").read_text(encoding="utf-8")
    documented = set(
        re.findall(r"`([a-z_]+)[=`]", "\n".join(line for line in text.splitlines() if line.startswith("| `")))
    )
    assert set(load_switches()) <= documented


def test_every_switch_is_flipped_here():
    assert FLIPS.keys() == load_switches().keys(), "a switch has its values in FLIPS"
    assert load_switches().keys() == load_texts("en")["switch"].keys(), "a switch has its sentences in group `switch`"


@pytest.mark.parametrize("framework", STRATEGIES)
@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in FLIPS.items() for value in values])
def test_no_switch_is_dead(name, value, framework):
    """F65 to F71: a switch changes the prediction and the framework's option, or is refused with a reason."""
    averages = name in ("fragments", "delay", "update_type")
    if averages and not load_frameworks()[framework].local_update:
        with pytest.raises(InputError):
            build_switch_changes(name, value, build_predictor(far(framework)))
        return
    more = DILOCO if averages else {}
    base = far(framework, CLUSTERS.get(name), **more)
    now = build_predictor(base)
    try:
        answer = what_if(base, turn=[(name, value)])
    except InputError as error:
        assert error.notices[0].message() and error.notices[0].hint()
        return
    (turned,) = answer.switches
    if turned.before == turned.after:
        assert answer.gain == 0
        return
    codes = {notice["code"] for notice in answer.notices}
    assert acts(answer) != ("switch_idle" in codes)
    if turned.option is None:
        assert codes & {"switch_no_option", "switch_other_framework"}
        assert name in WHAT_IF_ONLY or "switch_other_framework" in codes
    else:
        assert turned.option != find_option(name, now)


def test_deepspeed_gathers_ahead_at_stage_3_only():
    gathers_ahead = {"communication": {"overlap_parameters": True}}
    told = {
        zero: find_option("prefetch", build_predictor(far("deepspeed", zero=zero, shard_within="all", **gathers_ahead)))
        for zero in range(4)
    }
    assert told == dict.fromkeys(range(3)) | {3: "zero_optimization.stage3_prefetch_bucket_size: 50000000"}
    (note,) = what_if(far("deepspeed", zero=1, shard_within="all"), turn=[("prefetch", False)]).notices
    assert note["code"] == "switch_other_framework"
    assert "DeepSpeed" not in note["hint"]


def acts(answer) -> bool:
    """Something in the prediction is different."""
    before, after = answer.before, answer.after
    return before.step_time_s != after.step_time_s or before.communication != after.communication


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in FLIPS.items() for value in values])
def test_every_value_does_something_on_some_framework(name, value):
    """F65 to F71: gradients in int8 are the only thing that no framework has."""
    works = []
    for framework in STRATEGIES:
        more = DILOCO if name in ("fragments", "delay", "update_type") else {}
        more = more | ({"zero": 0, "shard_within": "all"} if value == "1-bit" else {})
        more = more | ({"communication": {"algorithm": "tree"}} if value == "ring" else {})
        try:
            works.append(acts(what_if(far(framework, CLUSTERS.get(name), **more), turn=[(name, value)])))
        except InputError:
            works.append(False)
    assert any(works) == ((name, value) != ("compression", "int8"))


def test_each_framework_can_turn_what_its_data_says():
    """The options named for a framework go with what `frameworks.yaml` says it can do."""
    known = load_frameworks()
    for framework in known:
        able = known[framework]
        assert set(load_switches()["compression"].options[framework]) == set(able.compression)
        assert (framework in load_switches()["bucket"].options) == able.has_buckets
        assert (framework in load_switches()["local_steps"].options) == able.local_update
        ways = {"flat": {"ring", "tree"}, "hierarchical": {"hierarchical"}}
        assert set(load_switches()["primitive"].options[framework]) == set().union(*(ways[one] for one in able.reduce))
        told = load_switches()["sharding"].options.get(framework)
        assert set(told or {"all"}) == set(able.shard_within)


def test_no_option_is_an_invented_one():
    """Names that no source tree holds, and broadcast, which gradients do not use."""
    text = (ROOT / "src/crosszone/analyse/switches.yaml").read_text("utf-8")
    invented = "NCCL_COMPRESSION|DEEPSPEED_REGION_AWARE|multi-dc|NCCL_SCATTER_XDC|NCCL_ALLNET|hierarchical_allreduce:"
    assert not re.search(f"{invented}|overlap-p2p-comm|delay-grad-reduce|broadcast", text)


def test_accumulation_at_a_fixed_micro_batch_changes_the_global_batch_and_says_so():
    """F65: 8 replicas of micro-batch 1 and 32 micro-batches make 256 samples; 64 make 512, in Megatron's words too."""
    answer = what_if(far("megatron"), turn=[("accumulation", 64)])
    assert answer.changes == {"job.global_batch": 512}
    assert (answer.before.micro_batches, answer.after.micro_batches) == (32, 64)
    assert answer.switches[0].option == "--global-batch-size 512 --micro-batch-size 1"
    assert [notice["code"] for notice in answer.notices] == ["global_batch_changed"]
    assert what_if(far("deepspeed"), turn=[("accumulation", "x2")]).switches[0].option == (
        "gradient_accumulation_steps: 16"
    )


def test_a_factor_on_the_micro_batches_keeps_the_shares_of_replicas():
    """[A3] Replicas with 4, 4, 12 and 12 micro-batches twice over: 8, 8, 24, 24, and 64 samples in place of 32."""
    strategy = {"dp": 4, "replica_micro_batches": [4, 4, 12, 12]}
    job = {"seq_len": 4096, "global_batch": 32, "framework": "ddp"}
    base = build_predictor(scenario(strategy=strategy, job=job, cluster=zones(2, 2)))
    assert build_switch_changes("accumulation", "x2", base) == {
        "job.global_batch": 64,
        "strategy.replica_micro_batches": [8, 8, 24, 24],
    }
    assert build_switch_changes("accumulation", 8, base) == {
        "job.global_batch": 32,
        "strategy.replica_micro_batches": None,
    }


def test_compression_changes_gradients_and_nothing_else():
    """F66: bf16 halves what Megatron reduces in fp32; int4 of ZeRO++ is a quarter of DeepSpeed's 16-bit gradients."""
    for framework, value, part in (("megatron", "bf16", 0.5), ("deepspeed", "int4", 0.25)):
        answer = what_if(far(framework), turn=[("compression", value)])
        sizes = []
        for prediction in (answer.before, answer.after):
            rows = {(row.kind, row.link): row.bytes_per_step for row in prediction.communication}
            sizes.append(rows)
        for key, size in sizes[0].items():
            expected = size * (part if key[0] == "gradients" else 1)
            assert sizes[1][key] == pytest.approx(expected, rel=1e-9)
        assert answer.switches[0].convergence and answer.switches[0].source


def test_options_carry_the_value():
    """Megatron keeps gradients in fp32, so 100 MB are 25e6 parameters; DeepSpeed in 16 bits, 50e6 elements; 95.4 MiB."""
    options = {
        framework: what_if(far(framework), turn=[("bucket", 100.0)]).switches[0].option
        for framework in ("ddp", "megatron", "deepspeed", "horovod")
    }
    assert options == {
        "ddp": "bucket_cap_mb=95.37",
        "megatron": "--ddp-bucket-size 25000000",
        "deepspeed": "zero_optimization.reduce_bucket_size: 50000000",
        "horovod": "horovodrun --fusion-threshold-mb 96",
    }
    flows = what_if(far("ddp"), turn=[("flows", 24)]).switches[0].option
    assert flows == "NCCL_SOCKET_NTHREADS=12 NCCL_NSOCKS_PERTHREAD=2"


def test_the_best_bucket_is_between_many_messages_and_one_late_one():
    """[A4] F70: tiny buckets pay the latency between zones often, one bucket hides nothing: both are slower."""
    base = build_predictor(far("megatron", communication={"overlap_gradients": True}))
    best = find_best_bucket_mb(base)
    sizes = [with_bucket(base, size).step_s[1] for size in (0.5, best, best * 1.5, best / 1.5, 25.0)]
    assert min(sizes) == sizes[1]
    assert sizes[0] > 1.2 * sizes[1]


@pytest.mark.parametrize(
    "text", ["compression", "compression=zip", "compression=powersgd", "compression=bf16:4", "flows=0.5", "flows=65",
             "overlap=maybe", "overlap_coefficient=1.5", "primitive=broadcast", "nothing=1", "accumulation=-1"],
)  # fmt: skip
def test_a_switch_that_cannot_be_turned_so_is_refused(text):
    base = build_predictor(far("megatron"))

    def turned():
        name, value = read_switch(text)
        return build_switch_changes(name, value, base)

    with pytest.raises(InputError) as error:
        turned()
    assert error.value.notices[0].message("zh") and error.value.notices[0].hint("en")


def test_how_switches_stand_is_what_they_would_be_turned_to():
    """Turning a switch to where it stands changes nothing."""
    base = far("megatron")
    now = build_predictor(base)
    for name in ("compression", "overlap", "sharding", "flows", "congestion", "accumulation", "tensor_overlap"):
        answer = what_if(base, turn=[(name, get_switch_value(name, now))])
        assert answer.gain == pytest.approx(0, abs=1e-12)
