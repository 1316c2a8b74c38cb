"""The kernel sampler: its points and counts by hand, the one file it becomes, and a whole run on the CPU."""

import argparse
import ast
import csv
import itertools
import json
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from crosszone.calibrate.sampling.kernel_points import (
    COLUMNS,
    KernelPoint,
    compute_roof_us,
    count_work,
    flag_point,
    list_linear_shapes,
    list_operators,
    parse_duration,
    plan,
    summarize_times,
)
from crosszone.calibrate.sampling.kernel_script import build_kernel_script

ROOT = Path(__file__).parents[2]
TORCH = ROOT / ".venv-train" / "bin" / "python"
needs_torch = pytest.mark.skipif(not TORCH.exists(), reason=".venv-train is not installed; ./test installs it")


def point(op, what, dtype="bf16", mode="eager", **dims):
    return KernelPoint(dtype, op, what, mode, tuple(dims.items()))


def all_points(**options):
    return [one for points in plan(**options).values() for one in points]


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(build_kernel_script(), encoding="utf-8")
    return path


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# ---- what is measured


def test_the_columns_are_the_agreed_ones():
    agreed = (
        "device,torch,dtype,op,pass,mode,m,n,k,groups,batch,heads,kv_heads,head_dim,seq,tokens,width,vocab,params,layers,"
        "hidden,ffn,recompute,time_us,spread_pct,host_us,memory_gib,flops,bytes,roof_us,reps,sm_mhz,power_w,flag"
    )
    assert ",".join(COLUMNS) == agreed


def test_a_short_budget_samples_every_kernel_operator():
    kernels = set(list_operators()) - {"layer", "train_step"}
    assert {one.op for one in plan()["kernels"][:300]} == kernels
    assert {one.op for one in all_points()} == set(list_operators())


def test_a_plan_is_the_same_each_time_and_has_no_point_twice():
    points = all_points()
    assert points == all_points()
    assert max(Counter(one.key for one in points).values()) == 1
    assert len(points) > 5000


def test_shards_hold_every_point_once_and_all_passes_of_a_shape_together():
    points = all_points()
    shards = [[one for one in points if one.assign_shard(5) == part] for part in range(1, 6)]
    assert sum(map(len, shards)) == len(points)
    assert min(map(len, shards)) > 0.15 * len(points)
    forward = {
        one.dims: one.assign_shard(5)
        for one in points
        if one.op == "matmul" and one.what == "fwd" and one.dtype == "bf16"
    }
    assert all(
        forward[one.dims] == one.assign_shard(5)
        for one in points
        if one.op == "matmul" and one.dtype == "bf16" and one.what == "wgrad"
    )


def test_linear_layers_of_llama_3_8b():
    # q 4096 + k, v 1024 each; fused gate and up 2 x 14336
    assert list_linear_shapes(4096, 14336, 32, 8, 128, 128256, 1) == [
        (6144, 4096, 0), (4096, 4096, 1), (14336, 4096, 0), (28672, 4096, 0), (4096, 14336, 1), (128256, 4096, 0),
    ]  # fmt: skip


def test_matmuls_hold_published_layers_odd_vocabularies_and_random_shapes():
    shapes = {tuple(dict(one.dims).values()) for one in plan()["kernels"] if one.op == "matmul"}
    assert any(n == 50257 for _, n, _ in shapes)
    assert {512, 1024, 2048, 4096, 8192, 16384, 32768} <= {m for m, _, _ in shapes}
    assert len({m for m, _, _ in shapes}) > 100
    assert all(size % 16 == 0 for one in plan()["kernels"] if one.dtype == "fp8" for _, size in one.dims)


def test_attention_covers_the_head_sizes_and_shared_keys():
    dims = [dict(one.dims) for one in plan()["kernels"] if one.op == "attention"]
    assert {one["head_dim"] for one in dims} == {64, 80, 96, 128, 192, 256}
    assert any(one["heads"] > one["kv_heads"] for one in dims) and any(one["heads"] == one["kv_heads"] for one in dims)


def test_attention_is_sampled_by_flash_attention_alone_too_at_half_of_the_same_shapes():
    modes = {
        mode: {
            (one.dtype, one.what, one.dims) for one in plan()["kernels"] if one.op == "attention" and one.mode == mode
        }
        for mode in ("eager", "flash")
    }
    assert modes["flash"] < modes["eager"]
    assert len(modes["flash"]) == pytest.approx(len(modes["eager"]) / 2, rel=0.05)
    without = [one.key for one in all_points(flash=False)]
    assert set(without) == {one.key for one in all_points() if one.mode != "flash"}
    assert not any(one.mode == "flash" for one in all_points(tiny=True))


def test_without_a_grouped_kernel_experts_are_looped_over():
    assert {one.mode for one in plan(grouped=False)["kernels"] if one.op == "grouped_matmul"} == {"loop"}


def test_both_backward_products_do_the_work_of_the_forward():
    # 2 * 4 * 3 * 5; bf16: (4*5 + 3*5 + 4*3) * 2
    for what in ("fwd", "dgrad", "wgrad"):
        assert count_work(point("matmul", what, m=4, n=3, k=5)) == (120, 94)
    # fp8 operands of one byte, a bf16 result: 4*5 + 3*5 + 2*4*3
    assert count_work(point("matmul", "fwd", "fp8", m=4, n=3, k=5)) == (120, 59)


def test_experts_have_weights_of_their_own():
    # rows 8 x 5, two weights of 3 x 5, result 8 x 3
    assert count_work(point("grouped_matmul", "fwd", groups=2, m=8, n=3, k=5)) == (240, 2 * (40 + 30 + 24))
    assert count_work(point("grouped_matmul", "wgrad", groups=2, m=8, n=3, k=5)) == (240, 2 * (24 + 40 + 30))


def test_causal_attention_does_half_the_square():
    # two products of 2*seq*seq*head_dim per head, halved; backward five products instead of two
    dims = {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "seq": 16}
    assert count_work(point("attention", "fwd", **dims)) == (2 * 4 * 16 * 16 * 8 * 2, 2 * 32 * 8 * 2 * 6)
    assert count_work(point("attention", "bwd", **dims))[0] == 2.5 * count_work(point("attention", "fwd", **dims))[0]


@pytest.mark.parametrize(
    ("op", "what", "dims", "traffic"),
    [
        ("rmsnorm", "fwd", {"tokens": 10, "width": 3}, 2 * 30 * 2),
        ("rmsnorm", "bwd", {"tokens": 10, "width": 3}, 3 * 30 * 2),
        ("silu_mul", "bwd", {"tokens": 10, "width": 3}, 5 * 30 * 2),
        ("rotary", "fwd", {"tokens": 10, "heads": 2, "head_dim": 4}, 2 * 80 * 2),
        ("cross_entropy", "bwd", {"tokens": 10, "vocab": 7}, 2 * 70 * 2),
        ("embedding", "bwd", {"tokens": 10, "width": 3, "vocab": 7}, (30 + 21) * 2),
        ("adamw", "step", {"params": 100}, 7 * 100 * 2),
        ("copy", "step", {"bytes": 4096}, 4096),
    ],
)
def test_least_traffic_of_an_operator(op, what, dims, traffic):
    assert count_work(point(op, what, **dims))[1] == traffic


def test_recomputing_adds_one_forward_of_the_layers():
    dims = {
        "batch": 1,
        "seq": 8,
        "hidden": 4,
        "ffn": 8,
        "heads": 2,
        "kv_heads": 1,
        "head_dim": 2,
        "layers": 3,
        "vocab": 10,
    }
    once, twice = (count_work(point("train_step", "step", **dims, recompute=how))[0] for how in ("none", "full"))
    assert twice - once == 3 * count_work(point("layer", "fwd", **dims))[0]


def test_the_roof_is_the_slower_of_arithmetic_and_memory():
    big = point("matmul", "fwd", m=8192, n=8192, k=8192)
    assert compute_roof_us(big, "NVIDIA H200") == pytest.approx(2 * 8192**3 / 989.5e6)
    assert compute_roof_us(point("copy", "step", bytes=4_800_000), "NVIDIA H200") == pytest.approx(1.0)
    assert compute_roof_us(big, "NVIDIA H20") == pytest.approx(2 * 8192**3 / 148e6)
    assert compute_roof_us(big, "NVIDIA A100-SXM4-80GB") == pytest.approx(2 * 8192**3 / 312e6)
    assert compute_roof_us(big, "Some other device") is None


def test_outliers_do_not_count():
    middle, spread, kept = summarize_times([10.0, 10.1, 9.9, 10.0, 10.05, 9.95, 90.0])
    assert (middle, kept) == (10.0, 6)
    assert spread < 3


def test_suspicious_points_are_flagged():
    assert flag_point(9.4, 1, 10) == "above_roof"
    assert flag_point(9.6, 1, 10) == ""
    assert flag_point(20, 11, 10) == "noisy"
    assert flag_point(20, 1, None) == ""


def test_budgets():
    assert [parse_duration(text) for text in ("90", "90s", "10m", "1h")] == [90, 90, 600, 3600]
    for wrong in ("", "m", "-1", "0", "nan", "inf", "10x"):
        with pytest.raises(argparse.ArgumentTypeError):
            parse_duration(wrong)


# ---- the one file


def test_the_one_file_needs_only_the_standard_library_until_it_measures(script):
    tree = ast.parse(script.read_text(encoding="utf-8"), feature_version=(3, 9))
    names = {
        (one.names[0].name if isinstance(one, ast.Import) else one.module or "").split(".")[0]
        for one in ast.walk(tree)
        if isinstance(one, ast.Import | ast.ImportFrom)
    }
    assert names <= sys.stdlib_module_names
    told = subprocess.run(
        [sys.executable, "-I", script, "--plan", "--ops", "adamw"], capture_output=True, text=True, check=True
    )
    assert told.stdout.splitlines()[0].startswith("bf16 adamw step eager params=")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--part", "3", "--parts", "2", "-o", "x"], "--part 3 must be 1 to --parts 2"),
        (["--ops", "matmul,tan", "-o", "x"], "'tan' is not one of matmul"),
        (["--dtypes", "int4", "-o", "x"], "'int4' is not one of bf16"),
        (["--budget", "soon", "-o", "x"], "'soon' is not a time"),
        ([], "-o FILE is needed"),
    ],
)
def test_the_one_file_refuses_wrong_options(script, options, said):
    done = subprocess.run([sys.executable, script, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr


def joined(folder, code):
    """What code that follows the one file prints, in the Python that has torch."""
    made = folder / "check.py"
    made.write_text(build_kernel_script().partition('if __name__ == "__main__":')[0] + code, encoding="utf-8")
    done = subprocess.run([TORCH, made], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def sampled(script, path, *options):
    done = subprocess.run(
        [TORCH, script, "--device", "cpu", "-o", path, *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return rows_of(path), done.stderr


@needs_torch
@pytest.mark.framework
@pytest.mark.slow
def test_every_operator_runs_and_a_second_run_adds_nothing(script, tmp_path):
    eager = ",".join(one for one in list_operators() if one not in ("layer", "train_step"))
    path = tmp_path / "samples.csv"
    rows, told = sampled(script, path, "--budget", "5m", "--ops", eager)
    wanted = [one for one in plan(tiny=True, grouped=False)["kernels"] if one.dtype != "fp8"]
    assert len(rows) == len(wanted)
    assert "points" in told and "failed" not in told
    for row in rows:
        assert float(row["time_us"]) > 0 and float(row["host_us"]) > 0 and row["flag"] in ("", "noisy")
        assert row["device"] == "cpu" and row["roof_us"] == "" and float(row["bytes"]) > 0
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:-3]) + lines[-3][:20], encoding="utf-8")  # killed within a row
    again, _ = sampled(script, path, "--budget", "5m", "--ops", eager)
    key = ("op", "pass", "mode", "dtype", *COLUMNS[6:23], "bytes")
    assert sorted(tuple(row[name] for name in key) for row in again) == sorted(
        tuple(row[name] for name in key) for row in rows
    )
    assert [row["time_us"] for row in again[: len(rows) - 3]] == [row["time_us"] for row in rows[: len(rows) - 3]]


@needs_torch
@pytest.mark.framework
@pytest.mark.long
def test_shards_together_hold_what_one_run_holds(script, tmp_path):
    parts = [
        sampled(script, tmp_path / f"{n}.csv", "--parts", "2", "--part", n, "--ops", "adamw,copy")[0] for n in "12"
    ]
    whole, _ = sampled(script, tmp_path / "whole.csv", "--ops", "adamw,copy")
    key = lambda row: (row["op"], row["dtype"], row["params"], row["bytes"])  # noqa: E731
    assert sorted(map(key, itertools.chain(*parts))) == sorted(map(key, whole))
    assert all(parts)


@needs_torch
@pytest.mark.framework
@pytest.mark.long
def test_whole_layers_and_steps_run_eagerly(tmp_path):
    told = joined(
        tmp_path,
        """
b = Bench("cpu")
for point in plan(tiny=True)["blocks"]:
    row = sample(b, point)
    print(row["op"], row["pass"], row.get("recompute", "-"), row["flag"], row.get("error"), float(row["time_us"]) > 0)
""",
    )
    lines = [line.replace(" noisy ", "  ") for line in told.splitlines()]
    assert lines == [
        "train_step step none  None True",
        "layer fwd -  None True",
        "layer bwd -  None True",
        "train_step step full  None True",
    ]


@needs_torch
@pytest.mark.framework
@pytest.mark.slow
def test_products_compute_the_gradients_of_a_linear_layer(tmp_path):
    told = joined(
        tmp_path,
        """
b = Bench("cpu")
torch = b.torch
point = lambda what, op="matmul", mode="eager": KernelPoint("fp32", op, what, mode, (("m", 12), ("n", 8), ("k", 4), ("groups", 3)))
for op, mode in (("matmul", "eager"), ("grouped_matmul", "loop")):
    for what, want in (("fwd", (12, 8)), ("dgrad", (12, 4)), ("wgrad", (8, 4))):
        got = build_matmul_call(b, point(what, op, mode), dict(point(what).dims))()
        shapes = {tuple(one.shape) for one in (got if isinstance(got, list) else [got])}
        assert shapes == ({want} if op == "matmul" or what == "wgrad" else {(4, want[1])}), (op, what, shapes)
seen = []
original = b.take
b.take = lambda *a, **k: seen.append(original(*a, **k)) or seen[-1]
results = {}
for what in ("fwd", "dgrad", "wgrad"):
    seen.clear()
    got = build_matmul_call(b, point(what), {"m": 12, "n": 8, "k": 4})()
    left, right = seen[0], seen[1].reshape(-1, 4)
    x = left if what == "fwd" else (right if what == "wgrad" else torch.randn(12, 4))
    w = right if what != "wgrad" else torch.randn(8, 4)
    x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = torch.nn.functional.linear(x, w)
    want = y if what == "fwd" else torch.autograd.grad(y, x if what == "dgrad" else w, left)[0]
    assert torch.allclose(got, want, atol=1e-5), what
    assert what == "fwd" or got.stride() == want.stride(), what
print("same")
""",
    )
    assert told == "same\n"


@needs_torch
@pytest.mark.framework
@pytest.mark.long
def test_a_point_that_fails_leaves_the_others(script, tmp_path):
    broken = script.read_text(encoding="utf-8").replace("AdamW(tensors, lr=1e-8", "AdamW(tensors, lr=-1")
    script.write_text(broken, encoding="utf-8")
    rows, told = sampled(script, tmp_path / "s.csv", "--ops", "adamw,copy")
    assert {(row["op"], row["flag"] == "failed", row["time_us"] == "") for row in rows} == {
        ("adamw", True, True),
        ("copy", False, False),
    }
    assert "failed: bf16 adamw step eager" in told


@needs_torch
@pytest.mark.framework
@pytest.mark.long
def test_a_file_that_is_no_sample_is_left_alone(script, tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    done = subprocess.run([TORCH, script, "--device", "cpu", "-o", path], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "not a file of kernel samples" in done.stderr
    assert path.read_text(encoding="utf-8") == "a,b\n1,2\n"


# ---- the command


@pytest.fixture
def say(say):
    return partial(say, "calibrate", "kernels")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--budget", "soon", "-o", "x.csv"], "--budget"),
        (["--parts", "2", "--part", "3", "-o", "x.csv"], "--part = 3 is beyond --parts 2"),
        (["--ops", "matmull", "-o", "x.csv"], "Did you mean matmul?"),
        (["--dtypes", "int4", "-o", "x.csv"], "--dtypes"),
        (["--gpu", "H200", "-o", "x.csv"], "--gpu"),
        ([], "--output is missing"),
    ],
)
def test_the_command_refuses_wrong_options(say, options, said):
    status, out, err = say(*options)
    assert (status, out) == (2, "")
    assert said.replace(" = ", "=") in err.replace(" = ", "=")


def test_the_command_writes_the_one_file(say, tmp_path):
    status, _, err = say("--script", tmp_path / "k.py")
    assert status == 0 and "--budget 10m" in err
    assert (tmp_path / "k.py").read_text(encoding="utf-8") == build_kernel_script()
    assert say("--script", tmp_path / "no" / "k.py")[0] == 2


def test_the_command_does_not_write_over_a_file_unless_told(say, tmp_path):
    path = tmp_path / "k.py"
    path.write_text("mine", encoding="utf-8")
    status, _, err = say("--script", path)
    assert (status, path.read_text(encoding="utf-8")) == (2, "mine")
    assert "--force" in err
    assert say("--script", path, "--force")[0] == 0
    assert path.read_text(encoding="utf-8") == build_kernel_script()


def test_a_python_without_torch_is_refused_with_the_way_out(say, tmp_path):
    status, _, err = say("--python", tmp_path / "python", "-o", tmp_path / "s.csv")
    assert status == 1
    assert "--script kernels.py" in err and not (tmp_path / "s.csv").exists()


def test_the_slurm_job_runs_all_parts_and_says_how_to_join_them(say, tmp_path):
    status, out, _ = say("--slurm", "--parts", 3, "--budget", "30m", "-o", "my samples.csv")
    assert status == 0
    assert "#SBATCH --array=1-3\n" in out and "#SBATCH --time=40\n" in out
    assert "calibrate fit my samples.*.csv" in out or "calibrate fit 'my samples'.*.csv" in out
    (tmp_path / "job").write_text(out, encoding="utf-8")
    (tmp_path / "python3").write_text('#!/bin/bash\necho "$@"; cat "$1" > copied.py\n', encoding="utf-8")
    (tmp_path / "python3").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "2"}
    told = subprocess.run(["bash", "job"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout
    assert told.split(" ", 1)[1] == "--device auto --budget 30m --parts 3 --part 2 -o my samples.2.csv\n"
    assert (tmp_path / "copied.py").read_text(encoding="utf-8") == build_kernel_script()


@needs_torch
@pytest.mark.framework
@pytest.mark.long
def test_flash_attention_alone_computes_the_same(tmp_path):
    """torch has a flash kernel for the CPU too; with it alone, and none of the others left on afterwards."""
    told = joined(
        tmp_path,
        """
b = Bench("cpu")
dims = {"batch": 2, "heads": 4, "kv_heads": 4, "head_dim": 16, "seq": 32}
makes = [select_layer_function(b, KernelPoint("fp32", "attention", "fwd", mode, ()), dims) for mode in ("eager", "flash")]
assert makes[0][0] == makes[1][0]
inputs = [b.take("fp32", *shape, grad=True) for shape in makes[0][0]]
before = b.torch.nn.attention._cur_sdpa_kernel_backends()
one, two = (make[1](*inputs) for make in makes)
assert b.torch.allclose(one, two, atol=1e-5)
for left, right in zip(*(b.torch.autograd.grad(out.sum(), inputs) for out in (one, two))):
    assert b.torch.allclose(left, right, atol=1e-5)
assert "Flash" in type(two.grad_fn.next_functions[0][0]).__name__, two.grad_fn.next_functions
assert b.torch.nn.attention._cur_sdpa_kernel_backends() == before
assert not b.flash
print("same")
""",
    )
    assert told == "same\n"


@needs_torch
@pytest.mark.framework
@pytest.mark.slow
def test_the_command_samples_on_the_cpu(say, tmp_path):
    path = tmp_path / "s.csv"
    status, out, _ = say("--gpu", "cpu", "--ops", "copy,gelu", "--python", TORCH, "-o", path, "--json")
    assert status == 0
    told = json.loads(out)
    assert told["rows"] == len(rows_of(path)) == sum(told["ops"].values()) > 0
    assert set(told["ops"]) == {"copy", "gelu"}
