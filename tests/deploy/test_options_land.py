"""Every option a plan can have changes what a framework is told, or is refused; none is lost on the way."""

from __future__ import annotations

import pytest

from crosszone.deploy.deploy import build_bundle
from crosszone.deploy.settings import LaunchSettings
from crosszone.errors import IllegalError
from crosszone.inputs.frameworks import load_frameworks
from crosszone.inputs.scenario import read_scenario
from deploy.conftest import scenario

pytestmark = pytest.mark.slow
BASE = {"ddp": {"dp": 8}, "fsdp": {"dp": 8, "zero": 3}, "deepspeed": {"dp": 8, "zero": 1}, "horovod": {"dp": 8}}
BASE["megatron"] = {"dp": 4, "tp": 2, "zero": 1, "communication": {"overlap_parameters": False}}
MODEL = {"layers": 8, "hidden": 512, "heads": 8, "ffn_hidden": 1376, "vocab": 1000}


def variations():
    """One field at a time away from the base, with what the framework needs beside it."""
    for name, framework in load_frameworks().items():
        for kind in framework.compression:
            talk = {"compression": kind} | ({"compression_rank": 4} if kind == "powersgd" else {})
            needs = {"int4": {"zero": 3}, "1-bit": {"zero": 0}}.get(kind, {})
            if kind != "none":
                yield name, {**needs, "communication": talk}, {"precision": "fp16"} if kind == "1-bit" else {}
        for kind in framework.gradient_dtypes:
            yield name, {"communication": {"gradient_dtype": kind}}, {}
        for kind in framework.recompute:
            yield name, {"recompute": kind}, {}
        for kind in framework.offload:
            yield name, {"offload": kind, **({"zero": 3} if "weights" in kind and name == "deepspeed" else {})}, {}
        for kind in framework.precisions:
            yield name, {}, {"precision": kind}
        for within in framework.shard_within:
            yield name, {"shard_within": within, **({"zero": 3} if name == "deepspeed" else {})}, {}
        for zero in framework.zero if len(framework.zero) > 1 else ():
            yield name, {"zero": zero, **({"dp": 8, "tp": 1} if name == "megatron" and zero > 1 else {})}, {}
        if framework.has_buckets:
            yield name, {"communication": {"bucket_mb": 77.0}}, {}
        if "pp" in framework.axes:
            yield name, {"pp": 2, "dp": 4, "tp": 1}, {}
            yield name, {"pp": 2, "dp": 4, "tp": 1, "layers_per_stage": [5, 3]}, {}
            for schedule in framework.schedules:
                chunks = {"interleaved": 2, "zbv": 2, "dualpipev": 2}.get(schedule, 1)
                split = {"pp": 2, "dp": 4, "tp": 1, "interleave": chunks}
                yield name, {**split, "schedule": schedule, "zero": 2 if name == "fsdp" else 0}, {}
        if "tp" in framework.axes:
            yield name, {"tp": 4, "dp": 2}, {}
            if framework.sequence_parallel:
                yield name, {"tp": 4, "dp": 2, "sequence_parallel": True}, {}
        if "cp" in framework.axes:
            yield name, {"cp": 2, "dp": 2 if name == "megatron" else 4}, {}
        for what in ("gradients", "parameters", "tensor"):
            if what in framework.overlap:
                more = {"tp": 2, "dp": 4, "sequence_parallel": True} if what == "tensor" else {}
                # off is usual for these two on the A100 of the scenario, so that on is the change
                is_usually_off = name in ("megatron", "deepspeed") and what == "gradients"
                is_on = what == "tensor" or (name == "megatron" and what == "parameters") or is_usually_off
                talk = {f"overlap_{what}": is_on}
                yield name, {**more, "zero": 3 if name in ("fsdp", "deepspeed") and what == "parameters" else BASE[name].get("zero", 0),
                             "communication": talk}, {}  # fmt: skip
        if framework.uneven_micro_batches and name == "ddp":
            yield name, {"replica_micro_batches": [1, 1, 1, 1, 1, 1, 1, 9]}, {}
        yield name, {"micro_batch": 2}, {}
        yield name, {"communication": {"flows": 8}}, {}
        yield name, {"communication": {"algorithm": "tree"}}, {}
        yield name, {"communication": {"congestion": "reno"}}, {}
        yield name, {"communication": {"socket_buffer_mb": 33.0}}, {}


def told(name, strategy, job):
    """Everything the framework and the hosts are told: options, and files other than those that only repeat the plan."""
    talk = {**BASE[name].get("communication", {}), **strategy.get("communication", {})}
    whole = {**BASE[name], **strategy, **({"communication": talk} if talk else {})}
    fields = scenario(
        zones=2, gpus=4, model=MODEL, strategy=whole, job={"seq_len": 256, "global_batch": 16, "framework": name, **job}
    )
    made = build_bundle(read_scenario(fields), framework=name, settings=LaunchSettings(steps=10))
    plain = {"plan.yaml", "README.md", "settings.json", "bundle.json", "tune-host.sh"}
    tuned = [line for line in made.get_text("tune-host.sh").splitlines() if line.startswith("set_")]
    files = {one.path: one.text for one in made.files if one.path not in plain and not one.path.startswith("nodes")}
    return {(one.name, str(one.value)) for one in made.options}, files, tuned, made.nodes


@pytest.mark.parametrize(("name", "strategy", "job"), list(variations()), ids=str)
def test_an_option_changes_what_is_told_or_is_refused(name, strategy, job):
    base = told(name, {}, {})
    try:
        other = told(name, strategy, job)
    except IllegalError as error:
        assert error.notices[0].hint("en")
        return
    same = all(strategy.get(key, BASE[name].get(key)) == BASE[name].get(key) for key in strategy) and not job
    usual = _usual(name, strategy, job)
    assert (other != base) or same or usual, f"{strategy} {job} changes nothing"


def _usual(name, strategy, job):
    """What is asked for is what the framework does without being asked."""
    talk = strategy.get("communication", {})
    wire = {"ddp": "fp32", "fsdp": "fp32", "horovod": "fp32", "megatron": "fp32", "deepspeed": "bf16"}[name]
    return (
        job.get("precision") == "bf16"
        or talk.get("gradient_dtype") == wire
        or strategy.get("recompute") == "none"
        or strategy.get("offload") == "none"
        or strategy.get("shard_within") == "all"
        or (name == "fsdp" and talk == {"overlap_gradients": False})
    )
