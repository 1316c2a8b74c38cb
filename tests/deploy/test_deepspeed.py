"""DeepSpeed bundles: every option of a plan lands in ds_config.json or is refused, and DeepSpeed's own parsers agree."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from crosszone.deploy.bundle import Bundle
from crosszone.deploy.deploy import build_bundle
from crosszone.deploy.frameworks import deepspeed
from crosszone.deploy.launch import Launch
from crosszone.deploy.settings import LaunchSettings
from crosszone.errors import IllegalError
from crosszone.inputs.scenario import read_scenario
from crosszone.schedule.measured import read_metrics
from deploy.conftest import scenario
from deploy.starting import train

CHECKS = Path(__file__).with_name("deepspeed_checks.py")
NEVER = (
    "NCCL_COMPRESSION", "DEEPSPEED_REGION_AWARE", "multi-dc", "NCCL_SCATTER_XDC", "NCCL_ALLNET_ENABLE", "hierarchical_allreduce",
    "NCCL_IB_FABRICID_MAXRAIL", '"distributed"', "delay-grad-reduce", "mics_hierarchical", "init_inference", "--num_gpus",
)  # fmt: skip
SEED_003 = {
    "train_batch_size": 64,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.0001}},
    "fp16": {"enabled": True},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    "distributed": {"world_size": 14, "nodes": 3},
}
"""The configuration of an early document: 14 GPUs, a block that DeepSpeed ignores, a batch that 14 does not divide."""


def made(fields: dict[str, Any], **settings: Any) -> Bundle:
    return build_bundle(read_scenario(fields), framework="deepspeed", **settings)


def launch_of(fields: dict[str, Any]) -> Launch:
    """The launch that a bundle is made from."""
    with mock.patch("crosszone.deploy.deploy.assemble_bundle", lambda launch, _: launch):
        return made(fields)  # type: ignore[return-value]


def changed(launch: Launch, **strategy: Any) -> Launch:
    """The launch with a strategy that the rules of planning might not let through."""
    p = launch.predictor
    predictor = SimpleNamespace(strategy=p.strategy.replace(**strategy), placed=p.placed, micro_batches=p.micro_batches)
    return dataclasses.replace(launch, predictor=predictor)


def text_of(bundle: Bundle, path: str) -> str:
    return next(one.text for one in bundle.files if one.path == path)


def config(fields: dict[str, Any]) -> dict[str, Any]:
    return json.loads(text_of(made(fields, launcher="slurm"), "ds_config.json"))


def asked(python: Path, *questions: list[Any]) -> list[Any]:
    """DeepSpeed's answers."""
    command = [str(python), "-W", "ignore", str(CHECKS)]
    done = subprocess.run(command, input=json.dumps(questions), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def two_zones(strategy: dict[str, Any], **more: Any) -> dict[str, Any]:
    return scenario(2, 2, strategy=strategy, **more)


# ---- what the configuration says ----


def test_the_batch_is_micro_batch_times_accumulation_times_replicas():
    found = config(scenario(1, 8, job={"global_batch": 96}, strategy={"dp": 8, "micro_batch": 3, "zero": 1}))
    assert found["train_batch_size"] == 96
    assert found["train_micro_batch_size_per_gpu"] == 3
    assert found["gradient_accumulation_steps"] == 4  # 96 / (3 x 8)


def test_stages_of_a_pipeline_do_not_count_as_replicas():
    found = config(two_zones({"pp": 2, "dp": 2, "zero": 1, "micro_batch": 1}, job={"global_batch": 16}))
    assert (found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"]) == (1, 8)


@pytest.mark.parametrize(
    ("strategy", "job", "path", "value"),
    [
        ({"zero": 0}, {}, "zero_optimization", {"stage": 0}),
        ({"zero": 1}, {}, "zero_optimization.overlap_comm", False),  # Megatron-DeepSpeed, as usual on an A100
        ({"zero": 1}, {"software": {"release": "24.01"}}, "zero_optimization.overlap_comm", True),
        ({"zero": 1, "communication": {"overlap_gradients": True}}, {}, "zero_optimization.overlap_comm", True),
        ({"zero": 1, "communication": {"overlap_gradients": False}}, {}, "zero_optimization.overlap_comm", False),
        ({"zero": 2, "communication": {"bucket_mb": 50.0}}, {}, "zero_optimization.reduce_bucket_size", 25_000_000),
        ({"zero": 2, "communication": {"bucket_mb": 50.0}}, {"precision": "fp32"}, "zero_optimization.reduce_bucket_size", 12_500_000),
        ({"zero": 3, "communication": {"overlap_parameters": True}}, {}, "zero_optimization.stage3_prefetch_bucket_size", 50_000_000),
        ({"zero": 3, "communication": {"overlap_parameters": False}}, {}, "zero_optimization.stage3_prefetch_bucket_size", 0),
        ({"zero": 2, "communication": {"gradient_dtype": "fp32"}}, {}, "communication_data_type", "fp32"),
        ({"zero": 2, "communication": {"compression": "fp16"}}, {"precision": "fp32"}, "communication_data_type", "fp16"),
        ({"zero": 3, "communication": {"compression": "int4"}}, {}, "zero_optimization.zero_quantized_gradients", True),
        ({"zero": 3, "communication": {"weight_compression": "int8"}}, {}, "zero_optimization.zero_quantized_weights", True),
        ({"zero": 2, "offload": "optimizer"}, {}, "zero_optimization.offload_optimizer.device", "cpu"),
        ({"zero": 3, "offload": "optimizer+weights"}, {}, "zero_optimization.offload_param.device", "cpu"),
        ({"zero": 1}, {"precision": "bf16"}, "bf16.enabled", True),
        ({"zero": 1}, {"precision": "fp16"}, "fp16.enabled", True),
        ({"zero": 1}, {"precision": "bf16-amp"}, "torch_autocast.dtype", "bfloat16"),
        ({"zero": 1}, {"optimizer": "adam"}, "optimizer.params.adam_w_mode", False),
        ({"zero": 1}, {"optimizer": "sgd-momentum"}, "optimizer.params.momentum", 0.9),
        ({"zero": 1}, {"optimizer": "lion"}, "zero_allow_untested_optimizer", True),
        ({"zero": 1}, {"optimizer": "muon"}, "optimizer.type", "Muon"),
        ({"zero": 3, "shard_within": "zone"}, {}, "zero_optimization.mics_shard_size", 2),
        ({"zero": 3, "shard_within": "node"}, {}, "zero_optimization.mics_shard_size", 2),
        ({"zero": 3, "shard_ranks": 2}, {}, "zero_optimization.mics_shard_size", 2),
        ({"zero": 3, "shard_within": "zone", "communication": {"reduce": "hierarchical"}}, {}, "zero_optimization.mics_shard_size", 2),
        ({"zero": 0, "communication": {"compression": "1-bit"}}, {}, "optimizer.type", "OneBitAdam"),
        ({"zero": 0, "communication": {"compression": "1-bit"}}, {}, "optimizer.params.comm_backend_name", "nccl"),
        ({"zero": 0, "communication": {"compression": "1-bit"}}, {"optimizer": "lamb"}, "optimizer.type", "OneBitLamb"),
    ],
)  # fmt: skip
def test_every_option_of_a_plan_lands(strategy, job, path, value):
    found: Any = config(two_zones({"dp": 4, **strategy}, job=job))
    for key in path.split("."):
        found = found[key]
    assert found == value


ONE_BIT = {"zero": 0, "communication": {"compression": "1-bit"}}


def test_one_bit_starts_after_fifteen_of_a_hundred_steps():
    bundle = made(two_zones({"dp": 4, **ONE_BIT}), settings=LaunchSettings(steps=2000))
    assert json.loads(text_of(bundle, "ds_config.json"))["optimizer"]["params"]["freeze_step"] == 300


def test_sets_of_all_replicas_are_plain_zero_3():
    found = config(scenario(1, 4, strategy={"dp": 4, "zero": 3, "shard_within": "zone"}))
    assert "mics_shard_size" not in found["zero_optimization"]


@pytest.mark.parametrize(
    ("strategy", "needed"),
    [
        ({"zero": 3}, {}),
        ({"zero": 0}, {}),
        ({"zero": 3, "shard_within": "zone"}, {"deepspeed": "<0.19.7"}),
        (ONE_BIT, {"deepspeed": "<0.19.7", "cupy": ""}),
    ],
)
def test_a_bundle_says_which_release_it_needs(strategy, needed):
    bundle = made(two_zones({"dp": 4, **strategy}))
    assert json.loads(text_of(bundle, "settings.json"))["requires"] == needed
    assert ("deepspeed<0.19.7" in text_of(bundle, "README.md")) == bool(needed)


def test_a_stage_3_key_is_named_at_stage_3_only():
    for zero in (0, 1, 2):
        text = text_of(made(two_zones({"dp": 4, "zero": zero})), "ds_config.json")
        assert "stage3" not in text


def test_a_pipeline_says_that_it_does_not_overlap():
    found = config(two_zones({"pp": 2, "dp": 2, "zero": 1}))
    assert found["zero_optimization"]["overlap_comm"] is False


def test_tensor_parallelism_names_the_projections_it_cuts():
    found = config(two_zones({"tp": 2, "dp": 2, "zero": 1}))["tensor_parallel"]
    assert found["autotp_size"] == 2
    assert [rule["partition_type"] for rule in found["partition_config"]["layer_specs"]] == ["column", "row", "skip"]


def test_an_optimizer_that_deepspeed_lacks_comes_from_the_trainer():
    bundle = made(two_zones({"dp": 4, "zero": 1}, job={"optimizer": "lion"}))
    assert "optimizer" not in json.loads(text_of(bundle, "ds_config.json"))
    assert any(one.name == "deepspeed.initialize(optimizer)" and one.value == "lion" for one in bundle.options)


def test_nothing_invented_is_ever_written():
    strategies = [{"dp": 4, "zero": z} for z in (0, 1, 2, 3)] + [{"pp": 2, "dp": 2}, {"tp": 2, "dp": 2}]
    for strategy in strategies:
        bundle = made(two_zones(strategy))
        for one in bundle.files:
            if not one.path.endswith(".py"):
                assert not [name for name in NEVER if name in one.text], one.path


# ---- what is refused ----


@pytest.mark.parametrize(
    ("strategy", "code"),
    [
        ({"pp": 2, **ONE_BIT}, "deepspeed_one_bit_pipeline"),
        ({"zero": 0, "communication": {"bucket_mb": 50.0}}, "deepspeed_bucket"),
        ({"replica_micro_batches": (1, 3, 2, 2)}, "deepspeed_uneven"),
    ],
)
def test_what_deepspeed_cannot_do_is_refused(strategy, code):
    launch = launch_of(two_zones({"dp": 4, "zero": 1}))
    base = launch.predictor.strategy
    if "communication" in strategy:
        strategy = strategy | {"communication": base.communication.replace(**strategy["communication"])}
    with pytest.raises(IllegalError) as caught:
        deepspeed.build_options(changed(launch, **strategy))
    assert caught.value.notices[0].code == code


INT4, INT8 = {"compression": "int4"}, {"weight_compression": "int8"}


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"offload": "optimizer"}, "framework_needs"),
        ({"communication": INT4}, "deepspeed_mics_plain"),
        ({"communication": INT8}, "deepspeed_mics_plain"),
    ],
)
def test_sets_are_refused_with_what_mics_lacks(more, code):
    with pytest.raises(IllegalError) as caught:
        made(two_zones({"dp": 4, "zero": 3, "shard_within": "zone", **more}))
    assert caught.value.notices[0].code == code


@pytest.mark.parametrize(("sizes", "found"), [((2, 4), 2), ((4, 2, 6), 2), ((3, 5), None), ((2, 3), None)])
def test_sets_are_runs_of_ranks_inside_a_node(sizes, found):
    fields = unequal(*sizes)
    fields["strategy"] |= {"zero": 3, "shard_within": "node"}
    if found is not None:
        assert config(fields)["zero_optimization"]["mics_shard_size"] == found
        return
    with pytest.raises(IllegalError) as caught:
        made(fields)
    assert caught.value.notices[0].code == "deepspeed_mics_ranks"


def test_an_optimizer_of_whole_matrices_is_refused_under_zero():
    assert "optimizer" not in config(two_zones({"dp": 4, "zero": 0}, job={"optimizer": "lamb"}))
    with pytest.raises(IllegalError) as caught:
        made(two_zones({"dp": 4, "zero": 1}, job={"optimizer": "lamb"}))
    assert caught.value.notices[0].code == "deepspeed_by_matrix"


def test_quantised_gradients_need_equal_nodes():
    fields = two_zones({"dp": 6, "zero": 3, "communication": {"compression": "int4"}}, job={"global_batch": 12})
    fields["cluster"]["zones"][1]["nodes"][0]["gpus"] = 4
    with pytest.raises(IllegalError) as caught:
        made(fields)
    assert caught.value.notices[0].code == "deepspeed_qgz_nodes"


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v2-lite"])
def test_tensor_parallelism_of_a_model_that_autotp_cannot_cut_is_refused(model):
    launch = launch_of(scenario(1, 8, model="llama-2-7b", strategy={"tp": 2, "dp": 4, "zero": 1}))
    other = read_scenario(scenario(1, 8, model=model)).scenario
    with pytest.raises(IllegalError) as caught:
        deepspeed.build_options(dataclasses.replace(launch, scenario=launch.scenario.replace(model=other.model)))
    assert caught.value.notices[0].code == "deepspeed_tp_model"


def test_a_key_that_is_not_on_the_list_is_caught():
    good = config(two_zones({"dp": 4, "zero": 3}))
    deepspeed.check_keys(good)
    for bad in (good | {"nonsense_top": 1}, good | {"zero_optimization": {"stage": 3, "hierarchical_allreduce": True}}):
        with pytest.raises(IllegalError) as caught:
            deepspeed.check_keys(bad)
        assert caught.value.notices[0].code == "deepspeed_key"


def test_the_configuration_of_the_early_document_is_refused_twice():
    with pytest.raises(IllegalError) as caught:
        deepspeed.check_keys(SEED_003)
    assert caught.value.notices[0].value == "distributed"
    with pytest.raises(IllegalError) as caught:
        deepspeed.check_batch(SEED_003, 14)
    assert caught.value.notices[0].code == "deepspeed_batch"
    assert caught.value.notices[0].params["product"] == 56  # 64 // 14 = 4 samples a GPU, 4 x 14


# ---- how it is started ----


def unequal(*sizes: int) -> dict[str, Any]:
    fields = scenario(len(sizes), 2, job={"global_batch": sum(sizes)}, strategy={"dp": sum(sizes), "zero": 1})
    for zone, gpus in zip(fields["cluster"]["zones"], sizes, strict=True):
        zone["nodes"][0]["gpus"] = gpus
    return fields


def test_unequal_nodes_have_their_slots_in_the_host_list():
    bundle = made(unequal(4, 2))
    assert text_of(bundle, "hostfile") == "127.0.0.1 slots=4\n127.0.0.2 slots=2\n"
    assert all("deepspeed --hostfile hostfile --no_ssh" in node.commands[0] for node in bundle.nodes)
    assert ["--node_rank 1" in node.commands[0] for node in bundle.nodes] == [False, True]


def test_torchrun_starts_what_the_launcher_would_put_on_other_gpus():
    # Rank 3 is the first of two on its node: DeepSpeed's launcher would give it local rank 3 % 2 = 1.
    bundle = made(unequal(3, 2))
    assert all("torchrun" in node.commands[0] for node in bundle.nodes)


def test_torchrun_starts_nodes_without_an_address():
    bundle = made(two_zones({"dp": 4, "zero": 1}, hosts=False), launcher="slurm")
    assert "hostfile" not in [one.path for one in bundle.files]
    assert all("torchrun" in node.commands[0] for node in bundle.nodes)


# ---- what DeepSpeed itself says ----


@pytest.mark.framework
def test_deepspeed_accepts_every_configuration_for_its_world_size(train_python):
    big = {
        "zones": [{"name": "a", "nodes": [{"count": 64, "gpus": 8, "gpu": "a100-80gb-sxm", "nic_gbps_per_gpu": 200}]}]
    }
    planned = [
        (two_zones({"dp": 4, "zero": 0}), 4, 4, [8, 1, 2]),
        (two_zones({"dp": 4, "zero": 2, "offload": "optimizer", "communication": {"bucket_mb": 50.0}}), 4, 4, [8, 1, 2]),
        (two_zones({"dp": 4, "zero": 3, "communication": {"compression": "int4", "weight_compression": "int8"}}), 4, 4, [8, 1, 2]),
        (two_zones({"dp": 4, "zero": 1}, job={"precision": "fp16"}), 4, 4, [8, 1, 2]),
        (two_zones({"dp": 4, "zero": 1}, job={"precision": "bf16-amp", "optimizer": "sgd"}), 4, 4, [8, 1, 2]),
        (two_zones({"dp": 4, "zero": 3, "shard_within": "zone"}), 4, 4, [8, 1, 2]),
        (two_zones({"dp": 4, **ONE_BIT}, job={"precision": "fp16"}), 4, 4, [8, 1, 2]),
        (two_zones({"dp": 4, **ONE_BIT}, job={"optimizer": "lamb"}), 4, 4, [8, 1, 2]),
        (two_zones({"pp": 2, "dp": 2, "zero": 1}), 4, 2, [8, 1, 4]),
        (two_zones({"tp": 2, "dp": 2, "zero": 1}), 4, 2, [8, 1, 4]),
        (
            {
                "name": "big", "model": "llama-2-70b", "job": {"seq_len": 4096, "global_batch": 1024}, "cluster": big,
                "strategy": {"dp": 512, "zero": 3, "recompute": "full"},
            },
            512, 512, [1024, 1, 2],
        ),
        (
            {
                "name": "big", "model": "llama-2-70b", "job": {"seq_len": 4096, "global_batch": 1024}, "cluster": big,
                "strategy": {"pp": 8, "dp": 64, "zero": 1, "recompute": "full"},
            },
            512, 64, [1024, 1, 16],
        ),
    ]  # fmt: skip
    answers = asked(
        train_python, *(["config", config(fields), world, replicas] for fields, world, replicas, _ in planned)
    )
    for (fields, world, replicas, batch), found in zip(planned, answers, strict=True):
        assert found == {"batch": batch, "world": replicas, "stage": fields["strategy"]["zero"]}, (world, found)


@pytest.mark.framework
def test_deepspeed_refuses_a_wrong_batch_but_not_an_unknown_key(train_python):
    good = config(two_zones({"dp": 4, "zero": 1}))
    wrong = good | {"train_batch_size": 9}
    seed = {key: value for key, value in SEED_003.items() if key != "train_batch_size"} | {"train_batch_size": 56}
    unknown, batch, early, ignored = asked(
        train_python,
        ["config", good | {"nonsense_top": 1}, 4, 4],
        ["config", wrong, 4, 4],
        ["config", SEED_003, 14, 14],
        ["config", seed, 14, 14],
    )
    assert "refused" not in unknown  # why we need a list of our own
    assert "9 != 1 * 2 * 4" in batch["refused"]
    assert "64 != 4 * 1 * 14" in early["refused"]
    assert "refused" not in ignored


@pytest.mark.framework
def test_deepspeed_reads_every_key_of_the_list(train_python):
    listed = deepspeed.read_allowed_keys()
    assert asked(train_python, ["unread", dict(listed["top"]), dict(listed["zero"])]) == [[]]
    extra = {"nonsense_top": "deepspeed/runtime/constants.py"}
    assert asked(train_python, ["unread", extra, {"nonsense": ""}]) == [["nonsense_top", "nonsense"]]


@pytest.mark.long
@pytest.mark.framework
@pytest.mark.parametrize(("optimizer", "name"), [("adamw", "OnebitAdam"), ("lamb", "OnebitLamb")])
def test_deepspeed_makes_the_one_bit_optimizer_and_starts_to_compress(train_python, optimizer, name):
    told = config(two_zones({"dp": 4, **ONE_BIT}, job={"optimizer": optimizer}))
    told["optimizer"]["params"]["freeze_step"] = 3
    (found,) = asked(train_python, ["one_bit", told])
    # Making the buffers counts as a step: after two more gradients are no longer reduced.
    assert found == {"optimizer": name, "reduces": [True, True, False], "moved": True}


@pytest.mark.long
@pytest.mark.framework
def test_deepspeeds_launcher_reads_the_command(train_python):
    bundle = made(unequal(4, 2))
    for node in bundle.nodes:
        words = shlex.split(node.commands[0].replace("\\\n", " "))
        assert words[0] == "deepspeed"
        given = [
            {"$MASTER_ADDR": "127.0.0.1", "$MASTER_PORT": "29500", "$@": "--tiny"}.get(word, word) for word in words[1:]
        ]
        (found,) = asked(train_python, ["launched", given, text_of(bundle, "hostfile")])
        assert found["slots"] == {"127.0.0.1": 4, "127.0.0.2": 2}
        assert (found["no_ssh"], found["no_local_rank"], found["node_rank"]) == (True, True, node.number)
        assert (found["script"], found["arguments"]) == ("train.py", ["settings.json", "--tiny"])


@pytest.mark.long
@pytest.mark.framework
@pytest.mark.parametrize("order", [["tp", "cp", "dp", "pp"], ["tp", "cp", "pp", "dp"]])
def test_the_topology_has_the_ranks_where_the_plan_has_them(train_python, order):
    fields = two_zones({"pp": 2, "dp": 2, "zero": 1})
    blocks = [{"zone": "a", "count": 2}, {"zone": "b", "count": 2}]
    launch = launch_of(fields | {"placement": {"order": order, "blocks": blocks}})
    told = {one.name: one.value for one in deepspeed.build_options(launch)}
    axes = told["ProcessTopology(axes)"]
    (found,) = asked(train_python, ["topology", axes, [2, 2]])
    planned = launch.predictor.placed.placement.compute_coordinates(launch.predictor.strategy)
    assert [one["pipe"] for one in found] == planned["pp"].tolist()
    assert [one["data"] for one in found] == planned["dp"].tolist()


# ---- real starts; test_start.py has those of single stages and resuming ----

KINDS = {
    "zero 0": {"dp": 2, "zero": 0},
    "zero 1": {"dp": 2, "zero": 1},
    "zero 2": {"dp": 2, "zero": 2},
    "zero 3": {"dp": 2, "zero": 3, "recompute": "full"},
    "pipeline": {"pp": 2, "dp": 1, "zero": 1, "layers_per_stage": [1, 3]},
    "tensor": {"tp": 2, "dp": 1, "zero": 1, "micro_batch": 2},
}
"""Two ranks each; `--tiny` makes four samples a step of all of them, so that they see the same ones."""


IN_SETS = {"dp": 4, "zero": 3, "shard_within": "zone"}  # two zones of two ranks: MiCS


def losses(out: Path) -> dict[int, float | None]:
    """Loss of each step; the metrics of all stages read as one trace with what a step consists of."""
    trace, rows = read_metrics([path.read_text("utf-8") for path in sorted(out.glob("metrics-stage-*.jsonl"))])
    assert {span.kind for span in trace.spans} >= {"data", "forward", "backward", "optimizer"}
    return {row.step: row.loss for row in rows}


@pytest.mark.framework
@pytest.mark.long
def test_every_way_to_split_trains_the_same(deploy, train_python):
    found = {}
    for name, strategy in KINDS.items():
        folder = deploy(scenario(1, 2, job={"precision": "fp32"}, strategy=strategy), "--framework", "deepspeed")
        out = f"out-{name.replace(' ', '-')}"
        train(folder, train_python, "--steps", "4", "--out", out)
        found[name] = losses(folder / out)
    first = found["zero 0"]
    assert sorted(first) == [1, 2, 3, 4]
    assert first[4] < first[1] - 0.5
    for name, one in found.items():
        assert one == pytest.approx(first, abs=2e-3), name
        assert one[1] == pytest.approx(first[1], abs=1e-5), name


@pytest.mark.framework
@pytest.mark.long
def test_replicas_in_two_zones_of_a_pipeline_train_and_go_on(deploy, train_python):
    blocks = [{"zone": "a", "count": 2}, {"zone": "b", "count": 2}]
    placement = {"order": ["tp", "cp", "pp", "dp"], "blocks": blocks}
    fields = two_zones({"pp": 2, "dp": 2, "zero": 1}, placement=placement)
    folder = deploy(fields, "--framework", "deepspeed")
    train(folder, train_python, "--steps", "3")
    train(folder, train_python, "--steps", "5")
    found = losses(folder / "out")
    assert sorted(found) == [1, 2, 3, 4, 5]
    assert found[5] < found[1]


@pytest.mark.framework
@pytest.mark.long
def test_states_shared_inside_a_zone_train_as_those_shared_by_all_and_go_on(deploy, train_python):
    found = {}
    for within in ("all", "zone"):
        fields = two_zones(IN_SETS | {"shard_within": within}, job={"precision": "fp32"})
        folder = deploy(fields, "--framework", "deepspeed")
        out = f"out-{within}"
        train(folder, train_python, "--steps", "3", "--out", out)
        if within == "zone":
            # Each zone has all states, so that either of them could go on alone.
            for first in (0, 2):
                kept = folder / out / "checkpoints" / f"from-rank-{first:05d}" / "step-00000003"
                assert len(list(kept.glob("*_optim_states.pt"))) == 2
        train(folder, train_python, "--steps", "5", "--out", out)
        found[within] = losses(folder / out)
    assert sorted(found["all"]) == [1, 2, 3, 4, 5]
    assert found["zone"] == pytest.approx(found["all"], abs=1e-4)


@pytest.mark.long
@pytest.mark.framework
def test_a_release_without_mics_is_refused_in_one_line(deploy, train_python, tmp_path):
    later = tmp_path / "deepspeed-0.19.8.dist-info"  # the same DeepSpeed, under a later number
    later.mkdir()
    (later / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.19.8\n")
    folder = deploy(two_zones(IN_SETS), "--framework", "deepspeed")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [str(train_python), "train.py", "settings.json", "--tiny", "--device", "cpu"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: deepspeed: 0.19.8 lacks what this plan uses; pip install 'deepspeed<0.19.7'")
