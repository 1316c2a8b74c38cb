"""Tables of operator samples: read, turned to shapes, and refused where they are wrong."""

from __future__ import annotations

import pytest

from crosszone.calibrate.operator_fit import convert_model_row, count_processors, find_catalogue_name, read_samples
from crosszone.errors import InputError
from operator_tables import HEAD, memory_bound, products, row, written

MODEL_HEAD = "gpu,op,pass,mp,micro_batch,heads,seq,hidden,layers,time_us,flag"


def test_samples_are_grouped_by_operator_precision_and_pass(tmp_path):
    rows = [*products(count=3), *memory_bound("gelu", "fwd", 0.5, count=4)]
    rows.append(row("gelu", "fwd", 3.0, tokens=64, width=64, flag="noisy"))
    read = read_samples([written(tmp_path, rows)])
    assert read.gpu == "h200-141gb-sxm"
    assert {one.key: len(one.time_us) for one in read.samples} == {
        "gelu bf16 fwd": 4,
        "matmul bf16 dgrad": 3,
        "matmul bf16 fwd": 3,
        "matmul bf16 wgrad": 3,
    }
    assert read.left_out == {"noisy": 1}


def test_rows_of_two_files_count_once(tmp_path):
    one, two = written(tmp_path, products(count=3)), written(tmp_path, products(count=3), "more.csv")
    read = read_samples([one, two])
    assert (read.used_rows, read.left_out) == (9, {"repeated": 9})


@pytest.mark.parametrize(
    ("cells", "code", "field"),
    [
        ({"m": 8, "n": 8, "k": 8, "time_us": -4.0}, "samples_range", "time_us"),
        ({"m": 8, "n": 8, "k": 8, "time_us": "fast"}, "must_be_number", "time_us"),
        ({"m": 8, "n": 8, "time_us": 4.0}, "must_be_number", "k"),
        ({"m": 8, "n": 8, "k": 8, "time_us": 4.0, "dtype": "fp5"}, "not_one_of", "dtype"),
        ({"m": 8, "n": 8, "k": 8, "time_us": "nan"}, "samples_range", "time_us"),
        ({"m": 0, "n": 8, "k": 8, "time_us": 4.0}, "samples_range", "m"),
    ],
)
def test_a_wrong_row_is_refused_with_its_line(tmp_path, cells, code, field):
    bad = row("matmul", "fwd", cells.pop("time_us"), **cells)
    with pytest.raises(InputError) as caught:
        read_samples([written(tmp_path, [*products(count=1), bad])])
    notice = caught.value.notices[0]
    assert (notice.code, notice.field, notice.line) == (code, field, 5)


def test_times_in_another_unit_are_refused(tmp_path):
    rows = []
    for line in products(count=5):
        cells = line.split(",")
        at = HEAD.index("time_us")
        cells[at] = f"{float(cells[at]) / 1000:.6g}"
        rows.append(",".join(cells))
    with pytest.raises(InputError) as caught:
        read_samples([written(tmp_path, rows)])
    assert caught.value.notices[0].code == "samples_unit"


def test_files_that_are_no_samples_are_refused(tmp_path):
    empty, other, two = tmp_path / "empty.csv", tmp_path / "other.csv", tmp_path / "two.csv"
    empty.write_text("")
    other.write_text("a,b\n1,2\n")
    two.write_text(
        ",".join(HEAD) + "\n" + row("matmul", "fwd", 4.0, m=8, n=8, k=8, device="NVIDIA A100-SXM4-80GB") + "\n"
    )
    for paths, code in (
        ([empty], "runs_columns"),
        ([other], "runs_columns"),
        ([tmp_path / "none.csv"], "file_unreadable"),
        ([written(tmp_path, [])], "samples_none"),
        ([two, written(tmp_path, products(count=1), "h200.csv")], "samples_several_gpus"),
    ):
        with pytest.raises(InputError) as caught:
            read_samples(paths)
        assert caught.value.notices[0].code == code


def test_model_level_inputs_become_shapes_on_one_gpu():
    """Four GPUs share a model of 4096 with 32 heads: 8 heads of 128 each, 3 x 1024 columns of q, k, v."""
    given = {"mp": 4.0, "micro_batch": 2.0, "heads": 32.0, "seq": 1024.0, "hidden": 4096.0}
    assert convert_model_row("linear_qkv", given) == ("matmul", {"m": 2048.0, "n": 3072.0, "k": 4096.0})
    assert convert_model_row("linear_mlp_down", given) == ("matmul", {"m": 2048.0, "n": 4096.0, "k": 4096.0})
    assert convert_model_row("linear_vocab", given) == ("matmul", {"m": 2048.0, "n": 12672.0, "k": 4096.0})
    assert convert_model_row("attn_scores_bmm", given)[1] == {"batch": 16.0, "seq": 1024.0, "head_dim": 128.0}
    assert convert_model_row("layernorm", given) == ("layernorm", {"tokens": 2048.0, "width": 4096.0})
    assert convert_model_row("res_add", given) == ("residual_add", {"tokens": 2048.0, "width": 4096.0})
    assert convert_model_row("embedding", given) == ("embedding", {"tokens": 2048.0, "width": 4096.0, "vocab": 12672.0})
    assert convert_model_row("cross_entropy", given) == ("cross_entropy", {"tokens": 2048.0, "vocab": 12672.0})
    assert convert_model_row("rope", given) == ("rotary", {"tokens": 2048.0, "heads": 8.0, "head_dim": 128.0})
    stage = {"mp": 1.0, "hidden": 1000.0, "layers": 2.0}
    assert convert_model_row("adam_middle_stage", stage)[1]["params"] == 24e6
    assert convert_model_row("adam_last_stage", stage)[1]["params"] == 24e6 + 50304 * 1000


def test_flash_attention_without_a_mask_takes_twice_the_time(tmp_path):
    path = tmp_path / "operators.csv"
    path.write_text(
        MODEL_HEAD
        + "\nA100,flash_attention,fwd,1,4,16,1024,2048,,200.0,\nA100,rope,fwd,1,4,16,1024,2048,,9,bad_capture\n"
    )
    read = read_samples([path])
    assert (read.gpu, read.left_out) == ("a100-80gb-sxm", {"bad_capture": 1})
    assert (read.samples[0].key, read.samples[0].time_us.tolist()) == ("attention fp16 fwd", [100.0])


@pytest.mark.parametrize(
    ("line", "code", "field"),
    [
        ("A100,gelu,xxx,1,4,16,1024,2048,,200.0,", "not_one_of_these", "pass"),
        ("A100,gelu,step,1,4,16,1024,2048,,200.0,", "not_one_of_these", "pass"),
        ("A100,gelu,fwd,1,4,16,1024,,,200.0,", "must_be_number", "hidden"),
        ("A100,adam_first_stage,step,1,,,,,2,200.0,", "must_be_number", "hidden"),
        ("A100,softmax,fwd,1,4,,1024,,,200.0,", "must_be_number", "heads"),
    ],
)
def test_a_wrong_row_of_model_level_inputs_is_refused_with_its_line(tmp_path, line, code, field):
    path = tmp_path / "operators.csv"
    path.write_text(f"{MODEL_HEAD}\nA100,softmax,fwd,1,4,16,1024,,,200.0,\n{line}\n")
    with pytest.raises(InputError) as caught:
        read_samples([path])
    notice = caught.value.notices[0]
    assert (notice.code, notice.field, notice.line) == (code, field, 3)


def test_devices_are_found_in_the_catalogue():
    assert find_catalogue_name("NVIDIA H200") == "h200-141gb-sxm"
    assert find_catalogue_name("NVIDIA A100-SXM4-80GB") == "a100-80gb-sxm"
    assert find_catalogue_name("NVIDIA H100 80GB HBM3") == "h100-80gb-sxm"
    assert (count_processors("a100-80gb-sxm"), count_processors("h200-141gb-sxm")) == (108, 132)
