"""[J1] [J2] [J3] Tokens, steps and bytes of state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone import Job
from crosszone.errors import InvalidError
from crosszone.inputs.job import find_compute_path, load_numerics, state_bytes
from crosszone.inputs.value import parse


def job(**changes) -> Job:
    return parse(Job, {"seq_len": 4096, "global_batch": 64} | changes)


def test_a_hundred_million_tokens_twice_are_763_steps():
    """200e6 / (4096 x 64) = 762.94, rounded up."""
    assert job(corpus_tokens=1e8, epochs=2).steps == 763


def test_tokens_per_step_are_length_times_batch():
    assert job().tokens_per_step == 262_144
    assert job().steps is None


@given(st.integers(1, 10**5), st.integers(1, 10**5), st.integers(1, 10**12))
def test_steps_hold_all_tokens_and_not_one_step_more(length, batch, tokens):
    built = job(seq_len=length, global_batch=batch, tokens=tokens)
    assert (built.steps - 1) * built.tokens_per_step < tokens <= built.steps * built.tokens_per_step


@pytest.mark.parametrize(
    ("framework", "zero", "d", "expected"),
    [
        # ZeRO paper (arXiv 1910.02054), table 1: 16, 4 + 12/d, 2 + 14/d, 16/d with Adam in mixed precision
        ("deepspeed", 0, 8, 16),
        ("deepspeed", 1, 8, 4 + 12 / 8),
        ("deepspeed", 2, 8, 2 + 14 / 8),
        ("deepspeed", 3, 8, 16 / 8),
        # Megatron-LM docs, distributed optimizer: 18, or 6 + 12/d with fp32 gradients
        ("megatron", 0, 8, 18),
        ("megatron", 1, 8, 6 + 12 / 8),
        # autocast: fp32 weights, gradients and two moments
        ("ddp", 0, 1, 16),
        ("fsdp", 3, 8, 16 / 8),
    ],
)
def test_state_bytes_follow_the_zero_table(framework, zero, d, expected):
    assert state_bytes(job(), framework=framework, zero=zero, shards=d).total == pytest.approx(expected)


@pytest.mark.parametrize(
    ("precision", "optimizer", "expected"),
    [
        ("bf16", "adamw", 2 + 2 + 4 + 8),
        ("fp32", "adamw", 4 + 4 + 8),
        ("fp32", "sgd", 4 + 4),
        ("fp32", "sgd-momentum", 4 + 4 + 4),
        ("bf16", "sgd", 2 + 2 + 4),
        ("bf16", "lion", 2 + 2 + 4 + 4),
        ("bf16-pure", "adamw", 2 + 2 + 2 * 2),
        ("bf16-amp", "adamw", 4 + 4 + 8),
        ("fp8", "adamw", 16),
    ],
)
def test_precision_and_optimizer_set_the_bytes(precision, optimizer, expected):
    assert state_bytes(job(precision=precision, optimizer=optimizer)).total == expected


def test_pure_bf16_keeps_no_fp32_gradients_in_megatron_either():
    assert state_bytes(job(precision="bf16-pure"), framework="megatron").gradients == 2


@given(st.sampled_from(sorted(load_numerics()["precisions"])), st.integers(1, 1024))
def test_sharding_more_never_takes_more(precision, shards):
    built = job(precision=precision)
    totals = [state_bytes(built, framework="deepspeed", zero=stage, shards=shards).total for stage in range(4)]
    assert totals == sorted(totals, reverse=True)


@pytest.mark.parametrize(
    ("precision", "path"), [("bf16-amp", "bf16"), ("mxfp8", "fp8"), ("nvfp4", "fp4"), ("fp16", "fp16")]
)
def test_a_precision_names_the_tensor_path_it_needs(precision, path):
    assert find_compute_path(job(precision=precision)) == path


@pytest.mark.parametrize("alias", ["pytorch-ddp", "DDP", "PyTorch_DDP"])
def test_framework_aliases_are_understood(alias):
    assert job(framework=alias).framework == "ddp"


@pytest.mark.parametrize(
    ("changes", "field", "code"),
    [
        ({"seq_len": 0}, "seq_len", "must_be_at_least"),
        ({"global_batch": -1}, "global_batch", "must_be_at_least"),
        ({"global_batch": 1.5}, "global_batch", "must_be_whole"),
        ({"global_batch": "64"}, "global_batch", "must_be_whole"),
        ({"tokens": float("nan")}, "tokens", "not_finite"),
        ({"tokens": float("inf")}, "tokens", "not_finite"),
        ({"tokens": 0}, "tokens", "must_be_more_than"),
        ({"tokens": 1e9, "epochs": 2}, "", "tokens_twice"),
        ({"epochs": 2}, "", "epochs_without_corpus"),
        ({"fp8_recipe": "rowwise"}, "", "fp8_recipe_precision"),
        ({"precision": "bf15"}, "precision", "not_one_of"),
        ({"framework": "jax"}, "framework", "not_one_of"),
        ({"batch": 3}, "batch", "unknown_key"),
    ],
)
def test_impossible_jobs_are_refused_with_the_field_named(changes, field, code):
    with pytest.raises(InvalidError) as caught:
        job(**changes)
    assert (caught.value.notices[0].field, caught.value.notices[0].code) == (field, code)


def test_a_wrong_word_is_answered_with_the_nearest():
    with pytest.raises(InvalidError) as caught:
        job(precision="bf-16")
    assert caught.value.notices[0].hint() == "Did you mean bf16?"
