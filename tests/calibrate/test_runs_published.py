"""The published runs are read as their sources describe them: hand-chosen rows of each."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

from crosszone import measured
from crosszone.calibrate.predicted import predict_runs
from crosszone.calibrate.runs import MeasuredRun, read_doubtful, read_runs
from crosszone.cost.profile import Profiles
from crosszone.errors import IllegalError
from crosszone.inputs.flops import training_flops_per_token
from crosszone.inputs.parameters import parameters
from crosszone.inputs.scenario import Scenario
from crosszone.predict.batch import list_virtual_stage_layers
from crosszone.predict.predict import predict

FILES = ("measured_runs.csv", "measured_runs_2.csv", "measured_runs_h200.csv", "ultrascale_sweep.csv")


def cells_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def published() -> dict[str, MeasuredRun]:
    files = ("measured_runs.csv", "measured_runs_vtrain_single.csv", "measured_runs_h200.csv")
    return {run.id: run for name in files for run in read_runs(measured.FOLDER / name)[0]}


def test_a_published_rate_of_operations_gives_a_step_time_where_its_definition_is_known(published):
    """[Q2] nanotron-0001, by hand: MFU 44.32 % of 989 TFLOP/s on 8 GPUs, 256 samples of 4096 tokens.

    A layer has 4 x 2048^2 + 3 x 2048 x 8192 weights, 16 of them and a head of 2048 x 131072: 1,342,177,280 weights that
    multiply; attention over all 4096 tokens: 2 x 2 x 2048 x 4096 operations a layer and token. Three passes.
    """
    weights = 16 * (4 * 2048**2 + 3 * 2048 * 8192) + 2048 * 131072
    per_token = 3 * (2 * weights + 16 * 4 * 2048 * 4096)
    run = published["nanotron-0001"]
    assert run.step_time_s == pytest.approx(per_token * 256 * 4096 / (0.4432 * 989e12 * 8))
    assert run.time_from == "mfu_pct" and not run.complete


def test_tables_of_learned_positions_are_as_long_as_the_sequence(published):
    """LLM Foundry states 0.124132 and 0.125311 (1e9) for sequences of 512 and 2048: 1536 rows of 768 more."""
    short, long = (parameters(published[f"mosaicml-llm-foundry-000{n}"].case.model).total for n in (1, 2))
    assert long - short == 1536 * 768


@pytest.mark.parametrize(
    ("run_id", "stack"),
    [
        ("mosaicml-llm-foundry-0001", "composer-fsdp"),
        ("torchtitan-0013", "torchtitan-eager"),
        ("torchtitan-0007", "torchtitan-compile"),
        ("megatron-lm-h100-weak-0001", "megatron-core"),
        ("megatron-sc21-0001", "megatron-lm-2021"),
        ("megatron-sc21-0002", "deepspeed-zero3-2021"),
        ("megatron-2020-0001", "megatron-lm-2021"),
        ("korthikanti-2022-0001", "megatron-lm-2021"),
        ("mt-nlg-2022-0001", "megatron-deepspeed-blocking"),
        ("megascale-2024-0001", "megascale"),
        ("internevo-0004", "internevo"),
        ("nanotron-0001", "nanotron"),
        ("bigscience-bloom-0002", "megatron-deepspeed-blocking"),
        ("bigscience-v100-0001", "megatron-deepspeed-v100"),
        ("vtrain-multi-0001", "megatron-deepspeed"),
        ("sailor-0001", "sailor-megatron-deepspeed"),
        ("simumax-b200-0001", "megatron-core-no-overlap"),
        ("nemo-docs-0001", "megatron-core"),
        ("megatron-bridge-0007", "megatron-core"),
        ("dgx-cloud-benchmarking-0046", "maxtext"),
        ("h200-hf-0012", "hf-eager"),
        ("h200-hf-0004", "hf-compile"),
    ],
)
def test_the_stack_follows_from_the_stated_text(published, run_id, stack):
    assert published[run_id].stack == stack


def test_both_stacks_of_the_megascale_tables_are_told_apart(published):
    found = Counter(run.stack for run in published.values() if run.source == "megascale-2024")
    assert found == {"megascale": 6, "megatron-lm-2024-baseline": 5}


def test_the_stack_never_depends_on_the_id(published, data, tmp_path):
    text = (data / "measured_runs.csv").read_text(encoding="utf-8")
    renamed = tmp_path / "renamed.csv"
    renamed.write_text(re.sub(r"(?m)^[a-z0-9-]+-(\d{4}),", r"x-\1,", text), encoding="utf-8")
    runs, _ = read_runs(renamed)
    others = [run for run in published.values() if run.source not in ("x-vtrain-single", "h200-hf")]
    assert {run.source for run in runs} == {"x"}
    assert [run.stack for run in runs] == [run.stack for run in others]


def test_bloom_gives_embedding_and_head_slots_of_their_own(published):
    """70 layers, an embedding and a head over 12 stages: six slots each."""
    run = published["bigscience-bloom-0002"]
    assert run.case.strategy.layers_per_stage == (5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5)
    assert run.facts["fp32_gradients"] and run.facts["embedding_slots"] and run.facts["launch_blocking"]
    assert run.case.strategy.communication.gradient_dtype == "fp32"
    assert (run.memory_gib, run.memory_unit) == (59, "as printed")


def test_blooms_links_were_slower_before_25_february(published):
    seen = {run.facts["links_improved"] for run in published.values() if run.source == "bigscience-bloom"}
    assert seen == {True, False} and published["bigscience-bloom-0002"].facts["links_improved"] is True


def test_sailor_counts_embedding_and_head_as_layers(published):
    """7/9/9/9 holds 32 layers: 6 after the embedding, 8 before the head."""
    run = published["sailor-0002"]
    assert run.case.strategy.layers_per_stage == (6, 9, 9, 8)
    assert (run.memory_gib, run.memory_unit) == (14.73, "GiB")
    assert run.case.cluster.zones[0].nodes[0].gpu.name == "gh200-96gb"


def test_llama_405b_on_nemo_gives_embedding_and_head_slots_where_its_layers_do_not_divide(published):
    """126 layers do not divide by 8 stages x 8 chunks, 128 do; by 9 stages x 7 chunks they do."""
    split = {
        run.case.strategy.pp: run.case.strategy.layers_per_stage
        for run in published.values()
        if run.case.model.layers == 126 and run.source == "dgx-cloud-benchmarking" and run.case.strategy.interleave > 6
    }
    assert split[9] is None
    assert split[8] == (1, *[2] * 62, 1)


def test_simumax_405b_used_16_key_value_heads_whatever_the_column_says(published):
    rows = [run for run in published.values() if run.case.model.name == "Llama-3.1-405B-4L"]
    assert len(rows) == 10 and {run.case.model.kv_heads for run in rows} == {16}
    assert all(any("kv_heads: 16" in text for text in run.assumed) for run in rows)
    assert not rows[0].case.strategy.communication.overlap_gradients


def test_internevo_shards_within_nodes_and_its_memory_rows_are_kept(published):
    rows = [run for run in published.values() if run.source == "internevo"]
    grouped = [
        run for run in rows if run.facts.get("shard_group") == 8 and run.case.dp > 8 and run.case.strategy.tp == 1
    ]
    assert grouped and all(run.case.strategy.shard_within == "node" for run in grouped)
    memory_only = [run for run in rows if run.step_time_s is None]
    assert len(memory_only) == 11 and all(run.memory_gib for run in memory_only)
    assert {run.case.cluster.zones[0].nodes[0].gpu.name for run in memory_only} == {"a800-80gb-sxm"}


def test_torchtitan_rows_tell_their_recipe(published):
    row_wise = published["torchtitan-0012"]
    assert row_wise.facts["fp8_recipe"] == "rowwise" and row_wise.facts["async_tp"]
    assert row_wise.case.strategy.communication.overlap_tensor
    assert not published["torchtitan-0005"].facts.get("async_tp")  # "no async TP"
    interleaved = published["torchtitan-0002"]  # 32 samples a replica in as many micro-batches as stages
    assert (interleaved.case.strategy.micro_batch, interleaved.case.strategy.interleave) == (4, 2)
    assert interleaved.case.cluster.zones[0].nodes[0].gpu.name == "h100-96gb-sxm"


def test_bridge_rows_carry_release_rack_and_recipe(published):
    run = published["megatron-bridge-0007"]  # NeMo 25.09, GB200, tokendrop
    assert run.release == 25.75 and run.facts["token_drop"] and run.moe
    group = run.case.cluster.zones[0].nodes[0]
    assert (group.gpus, group.count, group.domain) == (4, 64, 72)
    assert run.case.strategy.ep == 64 and run.case.strategy.interleave == 4
    muon = [run for run in published.values() if run.facts.get("muon")]
    assert len(muon) == 4 and {run.case.job.optimizer for run in muon} == {"muon"}
    assert sum(run.facts.get("mtp") is False for run in published.values()) == 3


def test_llm_foundry_reduces_in_bf16_only_when_pure(published):
    pure, mixed = published["mosaicml-llm-foundry-0001"], published["mosaicml-llm-foundry-0008"]
    assert pure.case.job.precision == "bf16-pure" and pure.case.strategy.communication.gradient_dtype is None
    assert mixed.case.job.precision == "bf16" and mixed.case.strategy.communication.gradient_dtype == "fp32"
    assert pure.case.strategy.zero == 3 and pure.case.model.tied_embeddings
    assert published["mosaicml-llm-foundry-0001"].case.cluster.zones[0].nodes[0].gpu.name == "a100-40gb-sxm"


def test_maxtext_shards_over_part_of_the_replicas(published):
    groups = Counter(run.facts["shard_group"] for run in published.values() if run.stack == "maxtext")
    assert groups == {256: 2, 128: 4}


def test_parameter_counts_agree_with_the_stated_ones(published, data):
    """Within 5 % wherever params_b is no round family name; the 8-layer trial of BLOOM leaves its embedding out."""
    stated = {row["id"]: row["params_b"] for row in cells_of(data / "measured_runs.csv")}
    off = {
        run.id: parameters(run.case.model).total / 1e9 / float(stated[run.id]) - 1
        for run in published.values()
        if stated.get(run.id)
    }
    far = {run_id for run_id, share in off.items() if abs(share) > 0.06}
    assert len(off) > 600 and far == {"bigscience-bloom-0084", "bigscience-bloom-0085"}


def test_the_shared_files_are_read(published, data):
    runs, skipped = read_runs(data / "measured_runs.csv")
    assert len(runs) + len(skipped) == 912
    assert len(runs) >= 800
    assert sum(run.step_time_s is not None and run.time_from != "mfu_pct" for run in runs) >= 750
    assert sum(run.source == "x-vtrain-single" for run in published.values()) == 880
    assert sum(run.source == "h200-hf" for run in published.values()) == 8
    assert len(skipped) <= 21
    assert {row.code for row in skipped} == {"no_architecture", "no_batch", "not_measured"}


def test_hybrids_mixed_kinds_and_rates_are_read(published):
    """[R5] [F4] Nemotron-H, Sailor's clusters of three kinds, and runs of which only TFLOP/s are published."""
    hybrid = published["dgx-cloud-benchmarking-0094"].case.model
    assert (hybrid.mamba_layers, hybrid.mlp_layers, hybrid.attention_layers) == (54, 54, 10)
    mixed = published["sailor-0008"].case.cluster
    kinds = [(group.gpu.name, group.total_gpus) for group in mixed.zones[0].nodes]
    assert kinds == [("rtx-2080", 16), ("rtx-3090", 8), ("titan-rtx", 8)]
    assert published["nemo-docs-0015"].time_from == "tflops_per_gpu"
    llama = published["papers-misc-0003"]
    assert llama.step_time_s == pytest.approx(6 * 405.85e9 * 2048 * 8192 / (400e12 * 16384), rel=1e-3)
    assert list_virtual_stage_layers(llama.case) == [0, *[1] * 126, 0]
    assert published["papers-misc-0001"].case.strategy.dp == 128


def test_counts_of_multi_token_prediction_are_those_of_the_sources(published, data):
    """[F4] DeepSeek-V3: published TFLOP/s over tokens/s are our operations of a token, with or without it as the row says."""
    cells = {row["id"]: row for row in cells_of(data / "measured_runs.csv")}
    rows = [run for run in published.values() if run.case.model.name == "DeepSeek-V3" and run.id in cells]
    stated = [run for run in rows if cells[run.id]["tflops_per_gpu"] and run.source == "megatron-bridge"]
    assert len(stated) >= 25
    assert sum(run.case.model.mtp_layers == 0 for run in stated) == 3
    for run in stated:
        per_token = float(cells[run.id]["tflops_per_gpu"]) * 1e12 / run.tokens_per_s_per_gpu
        assert training_flops_per_token(run.case.model, run.case.job.seq_len) == pytest.approx(per_token, rel=0.006)


def test_counts_of_hybrids_are_those_of_the_sources(published, data):
    """[F3] Nemotron-H and Nemotron 3: within 4 %, though the source counts the scan by another rule."""
    cells = {row["id"]: row for row in cells_of(data / "measured_runs.csv")}
    rows = [run for run in published.values() if run.case.model.pattern and run.id in cells]
    stated = [run for run in rows if cells[run.id]["tflops_per_gpu"]]
    assert len(stated) >= 30
    for run in stated:
        per_token = float(cells[run.id]["tflops_per_gpu"]) * 1e12 / run.tokens_per_s_per_gpu
        counted = training_flops_per_token(run.case.model, run.case.job.seq_len, count_masked=True)
        assert counted == pytest.approx(per_token, rel=0.04)


def test_every_run_can_be_divided_into_micro_batches(published):
    stacks = Profiles.load_shipped().stacks
    for run in published.values():
        strategy = run.case.strategy
        assert strategy.micro_batches(run.case.job.global_batch) >= 1
        assert strategy.ranks <= run.case.cluster.gpus
        assert run.stack in stacks
        assert run.step_time_s or run.memory_gib


def test_figures_published_twice_are_told(published):
    twice = {run.id: run.duplicate_of for run in published.values() if run.duplicate_of}
    assert twice == {
        **{f"internevo-00{n}": f"internevo-00{m}" for n, m in (("10", "09"), (14, 13), (18, 17), (22, 21), (26, 25))},
        "megatron-bridge-0152": "megatron-bridge-0151",
        "megatron-bridge-0176": "megatron-bridge-0175",
    }


def test_a_run_measured_again_is_told_as_a_repeat(published):
    again = published["bigscience-bloom-0016"]
    assert again.repeat_of == "bigscience-bloom-0015" and again.duplicate_of is None


def test_doubtful_rows_are_read_with_their_reason(data, published):
    doubtful = read_doubtful(data / "doubtful_rows.csv")
    assert len(doubtful) == 25 and doubtful["sailor-0001"] == "one micro-batch, one sequence: warm-up effects"
    assert set(doubtful) <= set(published)


# ---- one assembly


@pytest.mark.slow
def test_accuracy_of_a_row_is_the_prediction_of_its_case():
    """Every row whose strategy is legal, through `accuracy` and through `predict` of its scenario: one number."""
    profiles, equal = Profiles.load_shipped(), 0
    for name in FILES:
        runs = read_runs(measured.FOLDER / name)[0]
        for run, scored in zip(runs, predict_runs(runs, profiles).step_s, strict=True):
            case = run.case
            scenario = Scenario(
                name=run.id, model=case.model, job=case.job, cluster=case.cluster, strategy=case.strategy
            )
            try:
                step = predict(scenario, profiles=profiles).step_time_s.expected
            except IllegalError:  # runs of forks that do more than the framework they come from
                continue
            assert step == pytest.approx(scored, rel=1e-9), run.id
            equal += 1
    assert equal > 1600


def test_what_a_row_states_is_part_of_its_scenario(published):
    """Scales of fp8, sets of states, slices of experts, slower links: no fact that `predict` cannot be told."""
    assert published["torchtitan-0011"].case.job.fp8_recipe == "rowwise"
    wide = [run for run in published.values() if run.facts.get("shard_group") == 128]
    assert wide and all(run.case.strategy.shard_ranks == 128 for run in wide if run.case.dp > 128)
    cut = [run for run in published.values() if run.facts.get("expert_tp")]
    assert cut and all(run.case.strategy.expert_tp == 4 for run in cut)
    before, after = (
        next(run for run in published.values() if run.facts.get("links_improved") is improved)
        for improved in (False, True)
    )
    rate = [run.case.cluster.zones[0].nodes[0].gpu.link.gb_per_s for run in (before, after)]
    assert rate[0] == pytest.approx(0.74 * rate[1])
    assert published["megatron-bridge-0153"].case.job.stack.startswith("megatron-core@")
