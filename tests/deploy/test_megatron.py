"""Megatron-LM: flags of its parser, its own conditions, and what its GPT model cannot be."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import zone
from conftest import ROOT
from crosszone import load_scenario
from crosszone.deploy.frameworks import megatron
from crosszone.deploy.frameworks.megatron import format_layout, format_moe_pattern
from crosszone.deploy.launch import Launch
from crosszone.deploy.shell import format_command
from crosszone.errors import IllegalError
from crosszone.inputs.catalogue import catalogue
from crosszone.schedule.orders import choose_group_size
from deploy.megatron_plans import (
    ONE,
    PLANS,
    TWO,
    checked,
    job,
    known,
    launched,
    of_plan,
    of_scenario,
    plan_of,
    read,
    runs,
    variables,
    words,
)

NEVER = (
    *("NCCL_COMPRESSION", "DEEPSPEED_REGION_AWARE", "multi-dc", "NCCL_SCATTER_XDC", "NCCL_ALLNET_ENABLE"),
    *("NCCL_IB_FABRICID_MAXRAIL", "hierarchical_allreduce", "--overlap-p2p-comm ", "--delay-grad-reduce"),
)
"""Names that exist nowhere, or only elsewhere."""


# The list


def test_the_list_of_flags_names_its_commit_and_what_each_flag_takes() -> None:
    listed = known()
    assert (listed["repository"], len(listed["commit"])) == ("NVIDIA/Megatron-LM", 40)
    assert len(listed["flags"]) > 800
    flags = listed["flags"]
    # one by hand of each kind: a field, a field that is on by itself, one renamed, one of add_argument, choices
    assert flags["--hidden-size"][0] == "one"
    assert flags["--no-align-grad-reduce"][0] == "none"
    assert "--norm-epsilon" in flags and "--layernorm-epsilon" not in flags
    assert flags["--use-distributed-optimizer"] == ["none", None, "megatron/training/arguments.py"]
    assert flags["--data-parallel-sharding-strategy"][1] == ["no_shard", "optim", "optim_grads", "optim_grads_params"]
    assert flags["--recompute-modules"][0] == "many"


@pytest.mark.parametrize("file", [megatron.ARGUMENTS, megatron.TINY_ARGUMENTS])
@pytest.mark.parametrize("name", PLANS)
def test_every_flag_exists_and_has_a_value_it_takes(name: str, file: str) -> None:
    for flag, values in of_plan(name, file).items():
        assert flag in known()["flags"], flag
        takes, choices, _ = known()["flags"][flag]
        assert {"none": 0, "one": 1}.get(takes, len(values) or 1) == len(values), flag
        if choices:
            assert set(values) <= set(map(str, choices)), flag


@pytest.mark.parametrize("name", PLANS)
def test_every_flag_has_a_reason_in_both_languages(name: str) -> None:
    for language in ("en", "zh"):
        launch = launched(language, **PLANS[name])
        assert all(one.why and "{" not in one.why for one in megatron.build_options(launch))
    text = "".join(megatron.build_files(plan_of(name)).values())
    assert not [one for one in NEVER if one in text]


# What Megatron checks when it starts


@pytest.mark.parametrize("file", [megatron.ARGUMENTS, megatron.TINY_ARGUMENTS])
@pytest.mark.parametrize("name", PLANS)
def test_the_conditions_of_validate_args_hold(name: str, file: str) -> None:
    """As Megatron-LM d98e8a64 states them in validate_args, TransformerConfig, parallel_state and schedules."""
    flags, launch = of_plan(name, file), plan_of(name)

    def number(flag: str, default: int = 1) -> int:
        return int(flags[flag][0]) if flag in flags else default

    tp, pp, cp = (
        number(f"--{axis}-size") for axis in ("tensor-model-parallel", "pipeline-model-parallel", "context-parallel")
    )
    world = launch.world_size
    assert world % (tp * pp * cp) == 0
    dp = world // (tp * pp * cp)
    assert dp == launch.predictor.strategy.dp
    batch, micro = number("--global-batch-size"), number("--micro-batch-size")
    assert batch % (micro * dp) == 0
    layers, chunks = number("--num-layers"), number("--num-virtual-stages-per-pipeline-rank")
    layout = flags.get("--pipeline-model-parallel-layout")
    assert layout is None or "--num-virtual-stages-per-pipeline-rank" not in flags
    if layout is None:
        assert layers % (pp * chunks) == 0
    else:
        stages = parse_layout(layout[0])
        assert len(stages) % pp == 0
        chunks = len(stages) // pp
        letters = "".join(stages)
        assert letters == f"E{'t' * layers}{'m' * number('--mtp-num-layers', 0)}L"
    if chunks > 1:
        m, size = batch // (micro * dp), number("--microbatch-group-size-per-virtual-pipeline-stage", pp)
        assert pp > 1 and pp <= size <= m and (m % size == 0 or m % size >= pp)
    heads, groups = number("--num-attention-heads"), number("--num-query-groups", 0) or number("--num-attention-heads")
    assert heads % tp == 0 and (groups % tp == 0 or tp % groups == 0)
    assert ("--num-query-groups" in flags) == ("--group-query-attention" in flags)
    length = number("--seq-length")
    assert number("--max-position-embeddings") >= length
    assert cp == 1 or length % (2 * cp) == 0
    if "--sequence-parallel" in flags:
        assert tp > 1 and length // cp % tp == 0
    if "--tp-comm-overlap" in flags:
        assert "--sequence-parallel" in flags
    sharded = "--use-distributed-optimizer" in flags or "--use-megatron-fsdp" in flags
    if "--overlap-param-gather" in flags:
        assert sharded and "--overlap-grad-reduce" in flags
    copies = number("--num-distributed-optimizer-instances")
    assert dp * cp % copies == 0 and (copies == 1 or sharded)
    fsdp = "--use-megatron-fsdp" in flags
    assert ("--data-parallel-sharding-strategy" in flags) == fsdp
    assert (flags.get("--ckpt-format") == ["fsdp_dtensor"]) == fsdp
    if fsdp:
        assert pp == 1 and flags["--optimizer"][0] in ("sgd", "adam")
    if "--optimizer-cpu-offload" in flags:
        assert "--use-precision-aware-optimizer" in flags and flags["--optimizer"] == ["adam"] and sharded
    assert len({"--bf16", "--fp16"} & set(flags)) < 2
    assert not {"--grad-reduce-in-bf16", "--accumulate-allreduce-grads-in-fp32"} <= set(flags)
    if "--grad-reduce-in-bf16" in flags:
        assert "--bf16" in flags
    if flags.get("--recompute-granularity") == ["selective"]:
        assert not {"--recompute-method", "--recompute-num-layers"} & set(flags)
    if flags.get("--recompute-granularity") == ["full"]:
        assert {"--recompute-method", "--recompute-num-layers"} <= set(flags)
    assert float(flags["--min-lr"][0]) <= float(flags["--lr"][0])
    assert number("--lr-warmup-iters", 0) < number("--lr-decay-iters")
    assert "--eval-interval" in flags  # training.py divides by it even where nothing is evaluated
    experts = number("--num-experts", 0)
    if experts:
        ep, cut = number("--expert-model-parallel-size"), number("--expert-tensor-parallel-size")
        assert experts % ep == 0 and world % (cut * ep * pp) == 0
        assert tp == 1 or "--sequence-parallel" in flags
        assert "--disable-bias-linear" in flags or cut == 1
        if "--moe-layer-freq" in flags:
            assert len(eval(flags["--moe-layer-freq"][0])) == layers
    assert ("--multi-latent-attention" in flags) <= ("--group-query-attention" not in flags)
    queues = variables(launch).get("CUDA_DEVICE_MAX_CONNECTIONS")
    if fsdp:
        assert queues != "1"
    elif (tp > 1 or cp > 1) and launch.scenario.cluster.zones[0].nodes[0].gpu.architecture != "blackwell":
        assert queues == "1"


def test_the_flags_of_three_cities_as_worked_out_by_hand() -> None:
    """LLaMA-2-70B: 80 layers on 4 stages of 8 GPUs, 4 replicas: 1024 samples / (1 x 4) = 256 micro-batches.

    1e12 tokens / (4096 x 1024) = 238,419 steps. Software of the A100's years overlaps no reduction. The vocabulary of 32,000 is padded to 128 x 8: 32,768 rows.
    """
    launch = of_scenario(load_scenario(ROOT / "examples" / "three-cities.yaml"))
    flags = read(words(megatron.build_files(launch)[megatron.ARGUMENTS]))
    expected = {
        "--num-layers": ["80"],
        "--hidden-size": ["8192"],
        "--ffn-hidden-size": ["28672"],
        "--num-attention-heads": ["64"],
        "--group-query-attention": [],
        "--num-query-groups": ["8"],
        "--kv-channels": ["128"],
        "--swiglu": [],
        "--normalization": ["RMSNorm"],
        "--disable-bias-linear": [],
        "--position-embedding-type": ["rope"],
        "--untie-embeddings-and-output-weights": [],
        "--vocab-size": ["32000"],
        "--make-vocab-size-divisible-by": ["128"],
        "--seq-length": ["4096"],
        "--global-batch-size": ["1024"],
        "--micro-batch-size": ["1"],
        "--bf16": [],
        "--optimizer": ["adam"],
        "--train-iters": ["238419"],
        "--tensor-model-parallel-size": ["8"],
        "--pipeline-model-parallel-size": ["4"],
        "--context-parallel-size": ["1"],
        "--use-distributed-optimizer": [],
        "--overlap-grad-reduce": None,
        "--overlap-param-gather": None,
        "--accumulate-allreduce-grads-in-fp32": [],
        "--recompute-granularity": ["selective"],
        "--mock-data": [],
    }
    assert {flag: flags.get(flag) for flag in expected} == expected
    rows = next(one.why for one in megatron.build_options(launch) if one.name == "--make-vocab-size-divisible-by")
    assert "32768 rows" in rows
    assert "--use-tp-pp-dp-mapping" not in flags  # ranks are numbered tp-cp-dp-pp: the pipeline crosses zones
    assert "--num-distributed-optimizer-instances" not in flags
    assert variables(launch) == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    assert int(flags["--distributed-timeout-minutes"][0]) == launch.timeout_minutes


def placed(order: str, **degrees: int) -> Launch:
    blocks = [{"zone": "a", "count": 16}, {"zone": "b", "count": 16}]
    placement = {"order": order.split("-"), "blocks": blocks}
    return launched(cluster=TWO, strategy={"zero": 1, **degrees}, placement=placement)


def test_the_mapping_flag_is_there_where_stages_lie_before_replicas() -> None:
    flag = "--use-tp-pp-dp-mapping"

    def said(launch: Launch) -> bool:
        return flag in [one.name for one in megatron.build_options(launch)]

    assert not said(placed("tp-cp-dp-pp", tp=4, pp=2, dp=4))
    assert said(placed("tp-cp-pp-dp", tp=4, pp=2, dp=4))
    assert not said(placed("tp-cp-pp-dp", tp=8, pp=1, dp=4))  # one stage: both orders are one
    assert not said(placed("pp-tp-cp-dp", tp=8, pp=1, dp=4))
    with pytest.raises(IllegalError) as refusal:
        megatron.build_options(placed("tp-dp-cp-pp", tp=2, cp=2, pp=2, dp=4))
    (notice,) = refusal.value.notices
    assert (notice.code, notice.field) == ("megatron_order", "placement.order")
    assert "tp-cp-dp-pp" in notice.message() and "tp-cp-pp-dp" in notice.message("zh")


def test_zones_become_optimizer_instances() -> None:
    flags = of_plan("zones")  # 32 GPUs, tp 2: 16 replicas, 8 in each of two zones
    assert flags["--num-distributed-optimizer-instances"] == ["2"]
    assert flags["--ddp-bucket-size"] == ["100000000"]  # 400 MB of fp32 gradients
    hybrid = of_plan("hybrid")
    assert hybrid["--outer-dp-sharding-strategy"] == ["no_shard"]
    assert hybrid["--data-parallel-sharding-strategy"] == ["optim_grads_params"]


def test_sets_of_states_slices_of_experts_and_fp8_scales_become_flags() -> None:
    assert of_plan("sets")["--num-distributed-optimizer-instances"] == ["4"]  # 64 replicas in sets of 16
    assert of_plan("sliced experts")["--expert-tensor-parallel-size"] == ["2"]  # of tp 4
    assert of_plan("blockwise")["--fp8-recipe"] == ["blockwise"]


def test_an_instance_that_would_lie_in_two_zones_is_refused() -> None:
    blocks = [{"zone": one, "first": first, "count": 8} for first in (0, 8) for one in ("a", "b")]
    launch = launched(
        cluster=TWO, strategy={"tp": 8, "dp": 4, "zero": 1, "shard_within": "zone"}, placement={"blocks": blocks}
    )
    with pytest.raises(IllegalError) as refusal:
        megatron.build_options(launch)
    assert refusal.value.notices[0].code == "megatron_instances_torn"


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"model": "bert-large", "job": job(seq_len=512)}, "megatron_encoder", "model.kind"),
        ({"model": "bloom-560m", "job": job(seq_len=2048)}, "megatron_lacks", "model.positions"),
        ({"model": "gemma-2b"}, "megatron_lacks", "model.activation"),
        (
            {"model": "falcon-40b", "job": job(seq_len=2048), "cluster": ONE},
            "megatron_lacks",
            "model.parallel_residual",
        ),
        ({"model": "olmo-2-7b"}, "megatron_lacks", "model.qk_norm"),
        ({"model": "internlm-7b"}, "megatron_bias", "model.bias"),
        ({"job": job(optimizer="lamb")}, "megatron_optimizer", "job.optimizer"),
        ({"job": job(optimizer="muon"), "strategy": {"zero": 3}}, "megatron_plain_optimizer", "job.optimizer"),
        (
            {"model": "mixtral-8x7b", "cluster": ONE, "strategy": {"tp": 2}},
            "megatron_moe_sequence",
            "strategy.sequence_parallel",
        ),
        (
            {"job": job(precision="fp16"), "strategy": {"communication": {"gradient_dtype": "bf16"}}},
            "megatron_gradients",
            "strategy.communication.gradient_dtype",
        ),
        ({"settings": {"init_from": "/weights"}}, "megatron_init_from", "init_from"),
    ],
)
def test_what_megatron_cannot_do_is_refused_with_the_field(changes: dict[str, Any], code: str, field: str) -> None:
    launch = launched(**{"strategy": {"zero": 1}, **changes})
    with pytest.raises(IllegalError) as refusal:
        megatron.build_options(launch)
    assert (code, field) in [(one.code, one.field) for one in refusal.value.notices]
    for language in ("en", "zh"):
        assert all(one.message(language) and one.hint(language) for one in refusal.value.notices)


def test_experts_in_the_other_order_need_to_stay_inside_a_replica() -> None:
    blocks = [{"zone": "a", "count": 16}, {"zone": "b", "count": 16}]
    fields = {
        "model": "mixtral-8x7b",
        "cluster": TWO,
        "placement": {"order": ["tp", "cp", "pp", "dp"], "blocks": blocks},
    }
    degrees = {"tp": 4, "pp": 2, "dp": 4, "zero": 1, "sequence_parallel": True}
    megatron.build_options(launched(**fields, strategy={**degrees, "ep": 4}))
    with pytest.raises(IllegalError) as refusal:
        megatron.build_options(launched(**fields, strategy={**degrees, "ep": 8}))
    assert refusal.value.notices[0].code == "megatron_expert_order"


@pytest.mark.slow
def test_every_catalogue_model_has_flags_or_a_refusal_that_names_its_fields() -> None:
    able = 0
    for name in catalogue().names("models"):
        launch = launched(
            model=name, cluster={"zones": [zone("a", count=64)]}, job=job(seq_len=512), strategy={"zero": 1}
        )
        try:
            flags = read(words(megatron.build_files(launch)[megatron.ARGUMENTS]))
        except IllegalError as error:
            assert all(notice.field.startswith("model.") for notice in error.notices)
            continue
        able += 1
        assert set(flags) <= set(known()["flags"])
        assert int(flags["--num-layers"][0]) == launch.scenario.model.layers
    assert able > 100


# Layouts and patterns


@pytest.mark.parametrize(
    ("layers", "layout"),
    [
        ([3, 2, 2, 1], "Et*3|(t*2|)*2,t" + "L"),
        ([9, 8, 8, 7], "Et*9|(t*8|)*2,t*7L"),
        ([1, 2], "Et|t*2L"),
        ([0, 4, 4, 0], "E|(t*4|)*2,L"),
        ([0, *[1] * 126, 0], "E|(t|)*126,L"),
        ([2, 1, 1, 1, 3], "Et*2|(t|)*3,t*3L"),
    ],
)
def test_a_layout_is_spelled_as_megatron_reads_it(layers: list[int], layout: str) -> None:
    assert format_layout(layers) == layout


def test_a_layout_says_where_further_tokens_are_predicted() -> None:
    """The layout of DeepSeek-V3 in NVIDIA's recipes, Et*4|(t*4|)*14tmL, with commas that mean nothing."""
    assert format_layout([*[4] * 15, 1], mtp_layers=1) == "Et*4|(t*4|)*14,tmL"


def parse_layout(layout: str) -> list[str]:
    """The letters of each chunk of a layout, as Megatron-LM unrolls it: `["Ettt", "tt", "tt", "tL"]`."""
    text = layout.replace(",", "")
    # Groups first: Megatron-LM unrolls them before letters, and a group may hold a repeated letter.
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        text = re.sub(pattern, lambda match: match[1] * int(match[2]), text)
    return text.split("|")


@given(st.lists(st.integers(0, 12), min_size=2, max_size=20))
def test_a_layout_unrolls_to_the_layers_it_was_made_of(layers: list[int]) -> None:
    chunks = parse_layout(format_layout(layers))
    assert [chunk.count("t") for chunk in chunks] == layers
    assert chunks[0].startswith("E") and chunks[-1].endswith("L")
    assert "".join(chunks).count("E") == "".join(chunks).count("L") == 1


@given(st.integers(2, 16), st.integers(1, 200))
def test_groups_of_micro_batches_leave_no_rest_that_megatron_refuses(stages: int, more: int) -> None:
    m = stages + more
    size = choose_group_size(stages, m)
    assert stages <= size <= m
    assert m % size == 0 or m % size >= stages
    assert (size == stages) == (m % stages == 0)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("deepseek-v3", "([0]*3+[1]*58)"),
        ("llama-4-maverick", "(([0]*1+[1])*24)"),
        ("deepseek-moe-16b", "([0]*1+[1]*27)"),
    ],
)
def test_the_pattern_of_sparse_layers_has_them_all(name: str, pattern: str) -> None:
    model = catalogue().model(name)
    assert format_moe_pattern(model) == pattern
    assert (sum(eval(pattern)), len(eval(pattern))) == (model.moe_layers, model.layers)


# Files and command


def test_a_path_with_shell_characters_stays_a_path(tmp_path: Path) -> None:
    nasty = "/data/it's $(touch pwned) `x`\n#.txt"
    launch = launched(strategy={"tp": 2}, settings={"data": nasty, "tokenizer": "t.json"})
    added = megatron.build_files(launch)
    assert read(words(added[megatron.ARGUMENTS]))["--data-path"] == ["megatron-data/tokens"]
    assert "megatron_data.py" in added
    (tmp_path / "lines.sh").write_text("flags=(\n" + added[megatron.ARGUMENTS] + "\n)\n")
    subprocess.run(["bash", "-n", "lines.sh"], cwd=tmp_path, check=True)
    subprocess.run(["bash", "lines.sh"], cwd=tmp_path, check=True)
    assert not (tmp_path / "pwned").exists()


def test_without_megatron_path_the_command_says_what_to_set(tmp_path: Path) -> None:
    launch = launched(strategy={"tp": 8})
    made = megatron.build_command(launch, launch.agents[0])
    assert made is not None
    (tmp_path / "torchrun").write_text('#!/bin/sh\necho "started $*"\n')
    (tmp_path / "torchrun").chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if key != "MEGATRON_PATH"}
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    line = ["bash", "-c", format_command(made), "node"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode and "set MEGATRON_PATH to a checkout of NVIDIA/Megatron-LM" in done.stderr
    environment["MEGATRON_PATH"] = "/opt/my checkout"
    done = subprocess.run([*line, "--steps", "5"], env=environment, capture_output=True, text=True, check=True)
    assert "megatron_hook.py /opt/my checkout/pretrain_gpt.py --steps 5" in done.stdout


# Against Megatron itself


@pytest.mark.framework
def test_transformer_config_takes_the_shapes(train_python: Path, tmp_path: Path) -> None:
    assert checked(train_python, tmp_path, "core", given=runs(PLANS)) == {}
    wrong = runs(["tensor"])[:1]
    argv = wrong[0]["argv"]
    argv[argv.index("--tensor-model-parallel-size") + 1] = "5"
    assert "num_attention_heads" in checked(train_python, tmp_path, "core", given=wrong)[wrong[0]["name"]]


@pytest.mark.framework
def test_megatron_core_reads_our_layouts(train_python: Path, tmp_path: Path) -> None:
    cases = [([3, 2, 2, 1], 4), ([5, 4, 4, 4, 4, 4, 4, 3], 4), ([0, 4, 4, 0], 2), ([4] * 13 + [3] * 3, 16)]
    given = [
        {"name": str(layers), "layout": format_layout(layers), "layers": layers, "stages": stages}
        for layers, stages in cases
    ]
    assert checked(train_python, tmp_path, "layout", given=given) == {}


@pytest.fixture(scope="session")
def checkout() -> Path:
    """A checkout of Megatron-LM, where MEGATRON_PATH names one."""
    path = os.environ.get("MEGATRON_PATH")
    if not path or not (Path(path) / "pretrain_gpt.py").is_file():
        pytest.skip("MEGATRON_PATH names no checkout of NVIDIA/Megatron-LM")
    return Path(path)


@pytest.mark.framework
def test_megatrons_own_parser_and_validation_take_the_flags(train_python: Path, checkout: Path, tmp_path: Path) -> None:
    assert checked(train_python, tmp_path, "upstream", str(checkout), given=runs(PLANS)) == {}
    wrong = runs(["pipeline"])[:1]
    wrong[0]["argv"].append("--overlap-p2p-comm")
    assert "unrecognized arguments" in next(
        iter(checked(train_python, tmp_path, "upstream", str(checkout), given=wrong).values())
    )


def test_the_list_is_that_of_its_commit() -> None:
    """With MEGATRON_GIT naming a checkout or bare git directory at the list's commit."""
    folder = os.environ.get("MEGATRON_GIT")
    if not folder:
        pytest.skip("MEGATRON_GIT names no git directory of NVIDIA/Megatron-LM")
    spec = importlib.util.spec_from_file_location("megatron_flags", ROOT / "scripts/megatron_flags.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    source = module.Source(Path(folder))
    if source.commit != known()["commit"]:
        pytest.skip(f"{folder} is at another commit")
    assert module.render_file(source) == (ROOT / "src/crosszone/deploy/megatron_flags.yaml").read_text("utf-8")
