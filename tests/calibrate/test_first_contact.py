"""Runs entered as a user would write them: nothing of their source, notes or recipe reaches the prediction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.test_runs import PLAIN, written
from crosszone.calibrate import fit
from crosszone.calibrate.fit import build_training_rows, cross_validate, select_usable_runs
from crosszone.calibrate.predicted import predict_runs_s
from crosszone.calibrate.runs import RECIPE_COLUMNS, MeasuredRun, RunReader, read_runs
from crosszone.calibrate.runs_inference import select_own_framework
from crosszone.cost.profile import Profiles
from crosszone.inputs.frameworks import load_frameworks
from effort import examples

UNREAD = ("id", "source", "notes", *RECIPE_COLUMNS)
# Cells that mean something to the plain reader.
TELLING = (
    "no TP/PP/DP overlap", "torch.compile", "MLA attention; 1 dense layer", "selective recompute; fp8 blockwise",
    "pipeline layout Et*16|t*16mL", "Et*8|(t*8|)*2t*8mL", "NeMo 26.02, DeepEP", "BigScience 2022", "MegaScale",
    "SC21", "full", "partial", "none", "hybridep", "1", "0", "core_attn moe_act", "fp8", "mla_up_proj mlp",
)  # fmt: skip


def read_row(*, as_user: bool = True, **changes: str) -> MeasuredRun:
    run = RunReader(as_user=as_user).read(PLAIN | dict.fromkeys(RECIPE_COLUMNS, "") | changes)
    assert isinstance(run, MeasuredRun), run
    return run


@examples(150)
@given(
    st.sampled_from([{}, {"model": "DeepSeek-V3", "n_experts": "256", "top_k": "8"}, {"precision": "fp8"}]),
    st.dictionaries(st.sampled_from(UNREAD), st.sampled_from(TELLING) | st.text(max_size=40)),
)
def test_what_a_user_does_not_know_changes_no_case(row, changes):
    """[Q12]"""
    shape = {"layers": "61", "hidden": "7168", "ffn_hidden": "2048", "heads": "128", "kv_heads": "128"}
    shape |= {"vocab": "129280", "params_b": "671", "ep": "2", "pp": "1", "dp": "8"}
    row = row | (shape if "model" in row else {})
    assert read_row(**row, **changes).case == read_row(**row).case


def test_what_a_user_does_not_know_changes_no_prediction():
    plain, told = read_row(), read_row(**dict.fromkeys(UNREAD, "no TP/PP/DP overlap; torch.compile; full"))
    first, second = predict_runs_s([plain, told], Profiles.load_shipped())
    assert first == second and (told.stack, told.release, dict(told.facts)) == (None, None, {})


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        ("Megatron-LM", "megatron"),
        ("NeMo 25.09", "megatron"),
        ("Megatron-Bridge", "megatron"),
        ("NeMo AutoModel (FSDP2)", "fsdp"),
        ("Megatron-DeepSpeed", "deepspeed"),
        ("PyTorch FSDP", "fsdp"),
        ("DDP", "ddp"),
        ("Hugging Face Trainer", "ddp"),
        ("Horovod", "horovod"),
    ],
)
def test_a_published_framework_is_entered_as_one_of_ours(published, expected):
    """[Q12]"""
    assert expected in load_frameworks()
    for has_model_parallelism in (False, True):
        assert select_own_framework(published, has_model_parallelism) == expected


def test_a_framework_that_we_have_not_is_entered_by_how_it_splits_the_model():
    """nanotron with tp 2 is most like Megatron; torchtitan without tp and pp like FSDP."""
    assert select_own_framework("nanotron", True) == "megatron"
    assert select_own_framework("torchtitan", False) == "fsdp"
    assert read_row(framework="nanotron").framework == "megatron"
    assert read_row(framework="torchtitan", tp="1", pp="1", dp="16").framework == "fsdp"


def test_options_that_a_row_states_are_entered_and_others_left_open():
    run = read_row(recompute="", sequence_parallel="", zero_stage_or_fsdp="")
    assert not {"recompute", "sequence_parallel", "zero"} & run.case.strategy.model_fields_set
    assert {"recompute", "sequence_parallel", "zero"} <= read_row().case.strategy.model_fields_set
    assert run.case.job.stack is None and run.case.job.software is None


def test_recipe_columns_are_read_where_the_source_is_told():
    """Graphs, dispatcher, overlap of experts, precision of attention and modules recomputed are switches."""
    cells = {"cuda_graph": "partial (attn, router)", "moe_dispatcher": "DeepEP", "moe_overlap": "1"}
    cells |= {"attention_precision": "fp8 (MXFP8)", "recompute_modules": "mla_up_proj moe_act other", "recompute": ""}
    software = read_row(as_user=False, **cells).case.job.software
    assert software is not None
    assert (software.launch, software.dispatcher, software.expert_overlap) == ("partial-graph", "deepep", True)
    assert (software.attention_precision, software.recompute_modules) == ("fp8", ("mla_up_proj", "moe_act"))
    assert read_row(as_user=False, **cells).case.strategy.recompute == "selective"
    assert read_row(as_user=False).case.job.software is None
    layout = read_row(as_user=False, pipeline_layout="Et*15|t*17L").case.strategy.layers_per_stage
    assert layout == (15, 17)


def test_recipes_beside_a_file_add_to_its_rows(tmp_path):
    """Cells of the row itself come first."""
    (tmp_path / "run_recipes.csv").write_text("id,cuda_graph,moe_overlap\nmine-0001,full,1\n", "utf-8")
    path = written(tmp_path, PLAIN | {"moe_overlap": "0"}, columns=[*PLAIN, "moe_overlap"])
    (run,), _ = read_runs(path)
    assert (run.case.job.software.launch, run.case.job.software.expert_overlap) == ("full-graph", False)
    (entered,), _ = read_runs(path, as_user=True)
    assert entered.case.job.software is None


@pytest.mark.slow
def test_runs_entered_by_a_user_are_predicted_by_fits_that_left_their_source_out(data: Path, monkeypatch):
    """[Q8] Figures of a source ten times as high move what is predicted for others as a user, never for its own rows."""
    monkeypatch.setattr(fit, "ROUNDS", 1)
    few = ("megatron-2020", "korthikanti-2022")
    profiles, path = Profiles.load_shipped(), data / "measured_runs.csv"
    rows = [run for run in select_usable_runs(read_runs(path)[0], {}) if run.source in few]
    wanted = {run.id for run in rows}
    entered = [run for run in read_runs(path, as_user=True)[0] if run.id in wanted]
    higher = [run for run in rows if run.source != few[0]]
    higher += [replace(run, step_time_s=10 * run.step_time_s) for run in rows if run.source == few[0]]
    plain, moved = (
        cross_validate(build_training_rows(training), profiles, "source", targets=entered, workers=1)
        for training in (rows, higher)
    )
    assert plain is not None and moved is not None and [run.id for run in plain.runs] == [run.id for run in entered]
    own = np.array([run.source == few[0] for run in entered])
    assert plain.predicted_s[own] == pytest.approx(moved.predicted_s[own], rel=1e-9)
    assert not np.any(np.isclose(plain.predicted_s[~own], moved.predicted_s[~own]))
    known = plain.describe_knowledge(0)
    assert (known.software_stated, known.stack_measured, known.stated) == (False, True, True)
