"""Measured runs are read as cases, with what was measured, what was stated and what was assumed."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.calibrate.runs import MEASURED, NEEDED, MeasuredRun, Skipped, parse_source, read_runs
from crosszone.calibrate.runs_inference import parse_pipeline_layout
from crosszone.deploy.frameworks.megatron import format_layout
from crosszone.errors import FileError, InputError
from crosszone.inputs.parameters import parameters
from effort import examples

PLAIN = {
    "id": "mine-0001",
    "source": "our cluster 2026-03",
    "model": "my own",
    "layers": "32",
    "hidden": "4096",
    "ffn_hidden": "11008",
    "heads": "32",
    "kv_heads": "32",
    "vocab": "32000",
    "params_b": "6.74",
    "seq_len": "4096",
    "n_experts": "",
    "top_k": "",
    "gpu": "H100-80GB",
    "gpus": "16",
    "gpus_per_node": "8",
    "intra_node_link": "NVLink",
    "inter_node_link_gbps_per_gpu": "400",
    "precision": "bf16",
    "framework": "Megatron-Core",
    "dp": "4",
    "tp": "2",
    "pp": "2",
    "cp": "1",
    "ep": "",
    "interleave": "1",
    "sequence_parallel": "1",
    "recompute": "none",
    "zero_stage_or_fsdp": "zero1",
    "micro_batch": "1",
    "global_batch": "128",
    "step_time_s": "2.5",
    "tokens_per_s_per_gpu": "",
    "tflops_per_gpu": "",
    "mfu_pct": "",
    "hfu_pct": "",
    "memory_gb": "",
    "notes": "",
}


def written(folder: Path, *rows: dict[str, str], columns: list[str] | None = None) -> Path:
    path = folder / "runs.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns or list(PLAIN), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def one(folder: Path, **changes: str) -> MeasuredRun:
    runs, skipped = read_runs(written(folder, PLAIN | changes))
    assert not skipped, skipped
    return runs[0]


def refused(folder: Path, **changes: str) -> Skipped:
    runs, skipped = read_runs(written(folder, PLAIN | changes))
    assert not runs
    return skipped[0]


def test_a_complete_row_is_read_as_it_stands(tmp_path):
    run = one(tmp_path)
    model, strategy, group = run.case.model, run.case.strategy, run.case.cluster.zones[0].nodes[0]
    assert (model.layers, model.hidden, model.ffn_hidden, model.heads, model.vocab) == (32, 4096, 11008, 32, 32000)
    assert (strategy.tp, strategy.pp, strategy.dp, strategy.cp, strategy.micro_batch) == (2, 2, 4, 1, 1)
    assert strategy.sequence_parallel and strategy.zero == 1 and strategy.recompute == "none"
    assert (group.count, group.gpus, group.gpu.name, group.nic_gbps_per_gpu) == (2, 8, "h100-80gb-sxm", 400)
    assert (run.source, run.stack, run.framework, run.step_time_s) == ("mine", "megatron-core", "megatron", 2.5)
    assert run.complete and not run.moe and run.case.job.stack == "megatron-core@26.03"
    assert run.release == 26.25  # March 2026


def test_a_row_with_only_tokens_per_second_gets_its_step_time_from_them(tmp_path):
    """[Q1] 128 samples of 4096 tokens at 1000 tokens/s on each of 16 GPUs take 32.768 s."""
    run = one(tmp_path, step_time_s="", tokens_per_s_per_gpu="1000")
    assert run.step_time_s == pytest.approx(32.768)
    assert run.time_from == "tokens_per_s_per_gpu" and run.complete


def test_a_missing_dp_follows_from_the_gpus_and_is_told(tmp_path):
    run = one(tmp_path, dp="", cp="")
    assert run.case.dp == 4 and run.case.strategy.cp == 1
    assert "dp: 4 (from the number of GPUs)" in run.assumed and "cp: 1 (not stated)" in run.assumed
    assert not run.complete


def test_unstated_options_take_the_default_of_the_stack_and_are_told(tmp_path):
    run = one(
        tmp_path, recompute="", interleave="", zero_stage_or_fsdp="", precision="", framework="Megatron-DeepSpeed"
    )
    assert run.case.strategy.recompute == "full" and run.case.strategy.zero == 0 and run.case.job.precision == "fp16"
    assert {"recompute: full (stack default)", "interleave: 1 (stack default)"} <= set(run.assumed)
    assert not run.complete


def test_the_network_of_one_node_is_not_assumed_but_that_of_several_is(tmp_path):
    assert one(tmp_path, inter_node_link_gbps_per_gpu="", gpus="8", dp="2").assumed == one(tmp_path).assumed
    run = one(tmp_path, inter_node_link_gbps_per_gpu="")
    assert run.case.cluster.zones[0].nodes[0].nic_gbps_per_gpu == 400
    assert any(text.startswith("network: 400 Gbit/s per GPU") for text in run.assumed)


@pytest.mark.parametrize(
    ("params_b", "activation", "tied"),
    [
        # 32 layers of 4 x 4096^2 + n x 4096 x 11008 weights and 1 or 2 tables of 32000 x 4096, by hand, in 1e9:
        ("6.74", "swiglu", False),  # n = 3, 2 tables: 2.147 + 4.329 + 0.262
        ("6.61", "swiglu", True),  # n = 3, 1 table: 2.147 + 4.329 + 0.131
        ("5.30", "gelu", False),  # n = 2, 2 tables: 2.147 + 2.886 + 0.262, and positions
        ("5.18", "gelu", True),  # n = 2, 1 table: 2.147 + 2.886 + 0.131, and positions
    ],
)
def test_what_is_no_column_is_inferred_from_the_parameter_count(tmp_path, params_b, activation, tied):
    model = one(tmp_path, params_b=params_b).case.model
    assert (model.activation, model.tied_embeddings) == (activation, tied)
    assert parameters(model).total / 1e9 == pytest.approx(float(params_b), rel=0.01)


def test_the_catalogue_gives_what_is_no_column_and_a_reduced_model_keeps_it(tmp_path):
    columns = {"layers": "4", "hidden": "5120", "ffn_hidden": "1536", "heads": "128", "kv_heads": "128"}
    columns |= {"n_experts": "160", "top_k": "6", "params_b": "", "vocab": "102400"}
    run = one(tmp_path, model="DeepSeek-V2-4L", notes="MLA attention; 1 dense layer", **columns)
    model = run.case.model
    assert run.moe and model.moe and model.mla and model.layers == 4
    assert (model.moe.experts, model.moe.top_k, model.moe.ffn_hidden, model.moe.first_dense) == (160, 6, 1536, 1)
    assert model.ffn_hidden == 12288  # the dense layer, from the catalogue: the column is one expert's width


def test_empty_architecture_columns_take_the_catalogue(tmp_path):
    empty = dict.fromkeys(("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab", "params_b"), "")
    run = one(tmp_path, model="llama-2-70b", **empty)
    assert (run.case.model.layers, run.case.model.hidden, run.case.model.kv_heads) == (80, 8192, 8)
    assert not run.complete and any("llama-2-70b of the catalogue" in text for text in run.assumed)


def test_a_half_stated_model_that_is_not_the_catalogues_is_not_completed_from_it(tmp_path):
    skipped = refused(tmp_path, model="llama-2-70b", layers="", heads="", hidden="4096")
    assert skipped.code == "no_architecture" and "4096" in skipped.reason and "8192" in skipped.reason


def test_megatron_pads_the_vocabulary_to_128_times_tp(tmp_path):
    assert one(tmp_path, vocab="50257").case.model.embedding_rows == 197 * 256
    assert one(tmp_path, vocab="51200").case.model.vocab_padded_to is None
    assert one(tmp_path, vocab="50257", framework="torchtitan").case.model.embedding_rows == 50257


def test_the_source_is_the_id_without_its_number():
    assert parse_source("megatron-2020-0001") == "megatron-2020"
    assert parse_source("mine") == "mine"
    assert parse_source("run-a") == "run-a"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"gpu": ""}, "no_gpu"),
        ({"gpu": "Quantum-9000"}, "unknown_gpu"),
        ({"gpu": "2xRTX-3090+2xTitan-RTX"}, "mixed_gpus"),
        ({"gpus": ""}, "no_gpus"),
        ({"gpus": "many"}, "not_a_number"),
        ({"gpus": "-8"}, "not_a_number"),
        ({"layers": "32 or 33"}, "not_a_number"),
        ({"step_time_s": "nan"}, "not_a_number"),
        ({"step_time_s": "0"}, "not_a_number"),
        ({"step_time_s": "1_0"}, "not_a_number"),
        ({"step_time_s": ""}, "not_measured"),
        ({"step_time_s": "", "tflops_per_gpu": "400"}, "not_measured"),
        ({"global_batch": ""}, "no_batch"),
        ({"seq_len": ""}, "no_batch"),
        ({"tp": "", "pp": "", "dp": ""}, "no_degrees"),
        ({"tp": "3"}, "degrees_clash"),
        ({"dp": "2"}, "degrees_clash"),
        ({"global_batch": "2"}, "batch_clash"),
        ({"hidden": "", "model": "my own"}, "no_architecture"),
        ({"n_experts": "8", "model": "my own"}, "no_architecture"),
        ({"model": "Nemotron-H-56B", "notes": "hybrid: 54 Mamba2"}, "no_architecture"),  # 32 layers, not 118
        ({"model": "DeepSeekV4 Flash"}, "no_architecture"),
        ({"kv_heads": "5"}, "out_of_range"),
        ({"vocab": "999999999999"}, "out_of_range"),
        ({"gpus": "999999999999", "dp": "", "tp": "1", "pp": "1"}, "out_of_range"),
    ],
)
def test_a_row_that_cannot_be_scored_is_skipped_with_its_reason(tmp_path, changes, code):
    skipped = refused(tmp_path, **changes)
    assert skipped.code == code and skipped.id == "mine-0001" and skipped.source == "mine"
    assert skipped.reason.endswith(".") and "{" not in skipped.reason


def test_only_the_columns_that_are_needed_are_needed(tmp_path):
    columns = [*NEEDED, *MEASURED]
    runs, skipped = read_runs(written(tmp_path, PLAIN, columns=columns))
    assert not runs and skipped[0].code == "no_batch"
    runs, skipped = read_runs(written(tmp_path, PLAIN | {"model": "llama-2-7b"}, columns=[*columns, "seq_len", "model", "global_batch", "dp"]))  # fmt: skip
    assert skipped[0].code == "no_degrees"


def test_missing_columns_are_named(tmp_path):
    path = written(tmp_path, PLAIN, columns=["id", "gpus", "framework", "step_time_s", "memory_gb"])
    with pytest.raises(InputError) as caught:
        read_runs(path)
    notice = caught.value.notices[0]
    assert notice.code == "runs_columns" and notice.params["missing"] == ["gpu", "tokens_per_s_per_gpu"]


def test_an_empty_file_and_no_file_are_told(tmp_path):
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(InputError):
        read_runs(tmp_path / "empty.csv")
    with pytest.raises(FileError):
        read_runs(tmp_path / "none.csv")
    with pytest.raises(FileError):
        read_runs(tmp_path)


def test_rubbish_between_good_rows_does_not_stop_the_reading(tmp_path):
    path = written(tmp_path, PLAIN)
    good = path.read_text(encoding="utf-8").splitlines()[1]
    with path.open("ab") as file:
        file.write(b"\xff\xfe\x00,,,\n\n;;;\n")
        file.write(b"x-1," + b"y" * 200_000 + b"\n")
        file.write(good.replace("mine-0001", "mine-0002").encode() + b",more,cells\n")
    runs, skipped = read_runs(path)
    assert [run.id for run in runs] == ["mine-0001", "mine-0002"]
    assert Counter(row.code for row in skipped)["not_csv"] == 1
    assert len(skipped) == 3 and all(row.id for row in skipped)


@examples(150)
@given(
    changes=st.dictionaries(
        st.sampled_from(sorted(set(PLAIN) - {"id"})),
        st.one_of(
            st.text(st.characters(exclude_categories=("Cs",)), max_size=12),
            st.integers(-5, 10**13).map(str),
            st.floats().map(str),
        ),
        max_size=6,
    )
)
def test_no_cell_makes_the_reader_raise(changes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rubbish")
    runs, skipped = read_runs(written(folder, PLAIN | changes))
    assert len(runs) + len(skipped) == 1
    assert all(run.step_time_s is None or 0 < run.step_time_s < float("inf") for run in runs)


@pytest.mark.slow
def test_twenty_thousand_rows_are_read_in_seconds(tmp_path):
    """Times and notes differ in each row, a few hundred set-ups repeat: 100,000 rows must not take minutes."""
    rows = (
        PLAIN
        | {
            "id": f"mine-{n:06}",
            "step_time_s": f"{1 + n / 1000}",
            "notes": f"job {n}",
            "global_batch": str(64 * (1 + n % 200)),
        }
        for n in range(20_000)
    )
    path = written(tmp_path, *rows)
    runs, skipped = read_runs(path)
    assert len(runs) == 20_000 and not skipped


@pytest.mark.parametrize(("stages", "layers"), [(2, (11, 5)), (4, (6, 5, 5, 0)), (1, None)])
def test_nanotron_deals_layers_out_by_their_cost_with_the_heads(tmp_path, stages, layers):
    """16 layers of 4 h^2 + 3 h f and a head of V h = 4 of them: shares of 10 (then of 5), ended by the layer that passes them."""
    shape = {"layers": "16", "hidden": "2048", "ffn_hidden": "8192", "vocab": "131072", "params_b": "1.34"}
    degrees = {"framework": "nanotron", "gpus": "8", "dp": str(8 // stages), "tp": "1", "pp": str(stages)}
    runs, _ = read_runs(written(tmp_path, PLAIN | shape | degrees | {"notes": "tied embeddings"}))
    assert runs[0].case.strategy.layers_per_stage == layers
    assert runs[0].facts["memory_of_first_stage"] is True


# ---- layouts of pipelines


@pytest.mark.parametrize(
    ("text", "layers", "mtp"),
    [
        ("Et*4|(t*4|)*14tmL", (4, *[4] * 14, 1), 1),
        ("Et|(tt|)*2mL", (1, 2, 2, 0), 1),
        ("E|(t|)*3,L", (0, 1, 1, 1, 0), 0),
        ("Et*2, | t*3 | m | L", (2, 3, 0, 0), 1),
        ("EtL", (1,), 0),
    ],
)
def test_megatrons_layouts_are_read(text, layers, mtp):
    """[R3] E embedding, t layer, m multi-token prediction, L loss, | between virtual stages."""
    layout = parse_pipeline_layout(text)
    assert layout is not None and (layout.layers, layout.mtp_layers) == (layers, mtp)


@pytest.mark.parametrize(
    "text", ["", "t|t", "EtLE", "tEL", "Et*9999|(t*9999|)*9999L", "Et*|L", "Et x L", "E(((t|)*2)*2L*", "E" * 300 + "L"]
)
def test_what_is_no_layout_is_none(text):
    assert parse_pipeline_layout(text) is None


@given(st.lists(st.integers(0, 5), min_size=2, max_size=12), st.integers(0, 1))
def test_a_layout_of_a_bundle_is_read_back(layers, mtp):
    """[R3] What `format_layout` writes for Megatron."""
    layout = parse_pipeline_layout(format_layout(layers, mtp))
    assert layout is not None and (list(layout.layers), layout.mtp_layers) == (layers, mtp)


@given(st.text(max_size=60))
def test_any_text_is_a_layout_or_none(text):
    layout = parse_pipeline_layout(text)
    assert layout is None or len(layout.layers) <= 10_000


def test_kinds_that_do_not_add_up_are_refused(tmp_path):
    assert refused(tmp_path, gpu="4xA100+2xH100").code == "mixed_gpus"
