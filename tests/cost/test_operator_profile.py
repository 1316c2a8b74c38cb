"""[K20] to [K26] Forms of operators and profiles of them: by hand, as properties, and the shipped ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.cost.operator_forms import DIMS, build_basis_terms, build_features, count_factors_of_two, count_work
from crosszone.cost.operator_profile import (
    OperatorFit,
    OperatorProfile,
    Trees,
    list_sampled_gpus,
    load_operator_profile,
    parse_operator_profile,
)
from crosszone.errors import InputError
from crosszone.inputs.document import parse_document
from effort import examples

TEXT = """
gpu: h200-141gb-sxm
source: made up
processors: 100
samples: 20
operators:
  matmul bf16 fwd:
    op: matmul
    dtype: bf16
    which: fwd
    coefficients: {launch: 5.0, gflop: 1.5, mb: 0.25}
    samples: 20
    error_pct: 2.0
    median_pct: 1.5
    unseen_pct: 3.0
    physical_pct: 4.0
    physical_unseen_pct: 5.0
    held_out: n x k
    ranges: {m: [1024.0, 8192.0], n: [1024.0, 8192.0], k: [1024.0, 8192.0]}
    correction:
      signs: [log_m, log_k]
      base: 0.1
      trees: ["0:11.5 -.2 1:12 .05 .3"]
  gelu bf16 fwd:
    op: gelu
    dtype: bf16
    which: fwd
    coefficients: {mb: 0.5}
    floor_us: 4.0
    samples: 12
    error_pct: 4.0
    median_pct: 1.5
    unseen_pct: 5.0
    physical_pct: 4.0
    physical_unseen_pct: 5.0
    held_out: width
    ranges: {tokens: [1024.0, 8192.0], width: [1024.0, 8192.0]}
coefficients:
  matmul: {value: 0.8, error: 0.01, origin: measured}
"""


def profile(text: str = TEXT) -> OperatorProfile:
    return parse_operator_profile(parse_document(text, "made.yaml"))


def at(**sizes: float) -> dict[str, np.ndarray]:
    return {name: np.array([float(value)]) for name, value in sizes.items()}


def test_the_work_of_operators_is_counted_as_by_hand():
    """[K20] 1000 x 2000 times 2000 x 4000: 16 GFLOP; (2 + 8 + 4) million values of 2 bytes: 28 MB."""
    found = count_work("matmul", "fwd", at(m=1000, n=4000, k=2000), 2.0)
    assert (found.gflop.item(), found.mb.item()) == (pytest.approx(16.0), pytest.approx(28.0))
    both = count_work("matmul", "bwd", at(m=1000, n=4000, k=2000), 2.0)
    assert both.gflop.item() == pytest.approx(32.0)
    causal = count_work("attention", "fwd", at(batch=1, heads=10, kv_heads=2, head_dim=100, seq=1000), 2.0)
    assert causal.gflop.item() == pytest.approx(4e-9 * 10 * 100 * 1000 * 1001 / 2)
    assert causal.mb.item() == pytest.approx(2e-6 * 1000 * 100 * (20 + 4))
    assert count_work("residual_add", "fwd", at(tokens=1000, width=1000), 2.0).mb.item() == pytest.approx(6.0)


def test_waves_fill_all_processors():
    """[K22] 384 x 256 has 3 tiles of 128 x 256; on 2 processors that is 2 waves of 2: a third more than the work."""
    found = build_basis_terms("matmul", "fwd", at(m=384, n=256, k=1000), 2.0, 2)
    assert found["gflop_128x256"].item() == pytest.approx(found["gflop"].item() * 4 / 3)
    assert found["gflop_odd"].item() == 0
    assert build_basis_terms("matmul", "fwd", at(m=384, n=257, k=1000), 2.0, 2)["gflop_odd"].item() > 0


def test_groups_fill_waves_together_or_each_alone():
    """[K22] 4 groups of 128 x 256 on 4 processors: together one full wave, in a loop 4 waves of which a quarter works."""
    found = build_basis_terms("grouped_matmul", "fwd", at(groups=4, m=512, n=256, k=1000), 2.0, 4)
    assert found["gflop_128x256"].item() == pytest.approx(found["gflop"].item())
    assert found["gflop_each"].item() == pytest.approx(4 * found["gflop"].item())
    assert found["groups"].item() == 4


def test_heads_have_a_term_for_each_block_of_32():
    """[K23] A head of 96 has three blocks, one of 80 too and it is ragged."""
    sizes = {"batch": 1, "heads": 8, "kv_heads": 8, "seq": 1024}
    wide, ragged = (build_basis_terms("attention", "fwd", at(head_dim=d, **sizes), 2.0, 132) for d in (96, 80))
    for one in (wide, ragged):
        assert [one[f"gflop_{block}"].item() > 0 for block in (1, 2, 3, 4)] == [True, True, True, False]
        assert one["gflop_1"].item() == pytest.approx(4e-9 * 8 * 1024 * 1025 / 2 * 32)
    assert wide["gflop_ragged"].item() == 0 < ragged["gflop_ragged"].item()


def test_long_rows_of_a_softmax_and_tables_have_their_own_terms():
    """[K24] Rows above 1024 are another kernel; a table of 1000 x 1000 values of 2 bytes is 2 MB."""
    short, long = (
        build_basis_terms("softmax", "fwd", at(tokens=2000, width=w), 2.0, 132)["mb_long"].item() for w in (1024, 2048)
    )
    assert (short, long) == (0, pytest.approx(2e-6 * 2 * 2000 * 2048))
    found = build_basis_terms("embedding", "fwd", at(tokens=10, width=1000, vocab=1000), 2.0, 132)
    assert (found["mb_table"].item(), found["kvocab"].item()) == (pytest.approx(2.0), pytest.approx(1.0))
    assert "sorted" not in found
    few, many = (
        build_basis_terms("embedding", "bwd", at(tokens=t, width=1000, vocab=1000), 2.0, 132) for t in (3072, 3073)
    )
    assert (few["sorted"].item(), few["mb_sorted"].item()) == (0, 0)
    assert (many["sorted"].item(), many["mb_sorted"].item()) == (1, pytest.approx(2e-3 * 3073))


def test_twos_count_how_often_two_divides():
    assert count_factors_of_two(np.array([1.0, 6.0, 64.0, 4096.0])).tolist() == [0, 1, 6, 8]


OF_ONE_CLASS = {"head_dim": (32, 64, 96, 128, 160, 192, 224, 256)}
COEFFICIENTS = st.floats(0.0, 10.0)


@pytest.mark.parametrize("op", [op for op in DIMS if op not in ("layer", "train_step", "copy")])
@examples(40)
@given(data=st.data())
def test_a_larger_operator_of_one_class_never_takes_less(op, data):
    """[K21] Whatever the coefficients: sizes are multiples of 64 (heads: of 32; rows of 64 for each of the 64 groups), so
    that all are aligned alike."""
    which = data.draw(st.sampled_from(["fwd", "bwd"] if op not in ("adamw",) else ["step"]), label="pass")
    if op == "grouped_matmul":
        which = "fwd"
    sizes, larger = {}, {}
    for name in DIMS[op]:
        steps = (
            tuple(64 * i for i in range(1, 65)) if op != "attention" else OF_ONE_CLASS.get(name, range(64, 4097, 64))
        )
        if name in ("batch", "groups", "layers"):
            steps = (64,) if op == "grouped_matmul" else tuple(range(1, 65))
        if op == "grouped_matmul" and name == "m":
            steps = tuple(64 * step for step in steps)
        low, high = sorted((data.draw(st.sampled_from(steps)), data.draw(st.sampled_from(steps))))
        sizes[name], larger[name] = low, high
    if op == "attention":
        larger["kv_heads"] = max(larger["kv_heads"], sizes["kv_heads"])
    small, big = (build_basis_terms(op, which, at(**one), 2.0, 132) for one in (sizes, larger))
    weights = {name: data.draw(COEFFICIENTS, label=name) for name in small}
    times = [sum(weights[name] * one[name].item() for name in weights) for one in (small, big)]
    assert times[0] <= times[1] * (1 + 1e-9) + 1e-12


def test_a_time_is_the_form_times_its_correction():
    """[K21] [K25] [K26] 4096^3: 5 + 1.5 x 137.4 + 0.25 x 100.7 us; log_m is 12 > 11.5, log_k is 12 <= 12: 0.1 + 0.05."""
    found = profile().predict("matmul", {"m": 4096, "n": 4096, "k": 4096})
    assert found.physical_us == pytest.approx(5 + 1.5 * 137.438953 + 0.25 * 100.663296)
    assert found.time_us == pytest.approx(found.physical_us * np.exp(0.15))
    assert (found.error_pct, found.outside) == (2.0, ())


def test_the_correction_fades_within_an_octave_outside():
    """[K26] m = 8192 x sqrt 2 is half an octave outside: half the correction of the nearest sampled size; m = 16384: none."""
    one = profile()
    half = one.predict("matmul", {"m": 8192 * 2**0.5, "n": 4096, "k": 4096})
    assert half.time_us == pytest.approx(half.physical_us * np.exp(0.15 / 2))
    assert (half.outside, half.error_pct) == (("m",), 5.0)
    far = one.predict("matmul", {"m": 16384, "n": 4096, "k": 4096})
    assert far.time_us == pytest.approx(far.physical_us)


def test_a_floor_is_what_a_launch_takes():
    """[K21] 1024 x 1024 of 2 bytes, read and written: 4.19 MB at 0.5 us is 2.1 us, below the 4 us of a launch."""
    assert profile().predict("gelu", {"tokens": 1024, "width": 1024}).time_us == 4.0


def test_trees_of_text_say_what_their_splits_say():
    """[K25] The lower side of a split comes first, and is taken up to its threshold."""
    trees = Trees(signs=("a", "b"), base=1.0, trees=("0:2 1:5 .1 .2 .3", "-.5"))
    found = trees.evaluate({"a": np.array([1.0, 2.0, 3.0]), "b": np.array([5.0, 6.0, 0.0])})
    assert found.tolist() == pytest.approx([0.6, 0.7, 0.8])
    assert Trees(signs=(), base=1.0, trees=(".5",)).evaluate({"a": np.zeros(2)}).tolist() == [1.5, 1.5]


@pytest.mark.parametrize(
    "text", ["0:2 .1", "0:2 .1 .2 .3", "a:2 .1 .2", "", "1:2 .1 .2", "-1:2 .1 .2", "9" * 30 + ":2 .1 .2", "nan"]
)
def test_a_tree_that_is_none_is_refused(text):
    with pytest.raises(InputError) as caught:
        Trees(signs=("a",), base=0.0, trees=(text,))
    assert caught.value.notices[0].code == "operator_tree"


def test_a_deep_tree_is_read():
    """[K25] 5000 splits below each other, each with its upper side at once."""
    deep = Trees(signs=("a",), base=0.0, trees=(" ".join(["0:1"] * 5000 + [".1"] * 5001),))
    assert deep.evaluate({"a": np.array([0.5])}).tolist() == [0.1]


def test_sizes_are_held_against_the_samples_of_their_own_precision_and_of_the_usual_kernel():
    fit = TEXT[TEXT.index("  matmul bf16 fwd:") : TEXT.index("    correction:")]
    wide = fit.replace("[1024.0, 8192.0]", "[1.0, 1000000.0]")
    others = wide.replace("bf16 fwd:", "fp8 fwd:").replace("dtype: bf16", "dtype: fp8")
    others += wide.replace("bf16 fwd:", "bf16 fwd loop:") + "    mode: loop\n"
    others += wide.replace("bf16 fwd:", "bf16 wgrad:").replace("which: fwd", "which: wgrad")
    one = profile(TEXT.replace("  gelu bf16 fwd:", others + "  gelu bf16 fwd:"))
    assert one.list_outside({"m": 100, "n": 2048}) == ["m"]
    assert one.list_outside({"m": 100, "n": 2048}, dtype="fp8") == []
    assert one.list_outside({"m": 100, "n": 2048}, dtype="fp16") == ["m"]
    assert one.list_outside({"m": 100}, "attention") == []


def test_families_are_summed_up_and_what_is_missing_is_named():
    one = profile()
    assert one.summarize()["matmul"] == {"error_pct": 2.0, "unseen_pct": 3.0, "samples": 20.0}
    assert one.list_outside({"m": 100, "n": 2048}) == ["m"]
    for ask, code in (
        (lambda: one.predict("attention", {"seq": 1}), "operator_not_fitted"),
        (lambda: one.predict("matmul", {"m": 1024}), "operator_sizes"),
        (lambda: one.predict("matmul", {"m": -1, "n": 1, "k": 1}), "must_be_more_than"),
    ):
        with pytest.raises(InputError) as caught:
            ask()
        assert caught.value.notices[0].code == code


def test_a_profile_with_an_unknown_operator_or_field_is_refused():
    for old, new, code in (
        ("op: gelu", "op: gelo", "operator_unknown"),
        ("  matmul: {value", "  matmull: {value", "unknown_key"),
        ("gflop: 1.5", "gflop: -1.5", "must_be_at_least"),
        ("gflop: 1.5", "gflops: 1.5", "unknown_key"),
        ("op: gelu", "op: layer", "operator_unknown"),
        (
            "dtype: bf16\n    which: fwd\n    coefficients: {mb",
            "dtype: int4\n    which: fwd\n    coefficients: {mb",
            "not_one_of",
        ),
        ("which: fwd\n    coefficients: {mb", "which: wgrad\n    coefficients: {mb", "not_one_of"),
        ("signs: [log_m, log_k]", "signs: [log_m, log_z]", "unknown_key"),
        ("0:11.5", "2:11.5", "operator_tree"),
        ("ranges: {m: [1024.0, 8192.0], n", "ranges: {n", "missing_key"),
        ("ranges: {tokens", "ranges: {token", "unknown_key"),
        ("ranges: {tokens: [1024.0", "ranges: {tokens: [0.0", "must_be_more_than"),
        ("ranges: {tokens: [1024.0", "ranges: {tokens: [9000.0", "must_be_at_least"),
    ):
        with pytest.raises(InputError) as caught:
            profile(TEXT.replace(old, new))
        assert caught.value.notices[0].code == code


def test_an_unknown_gpu_has_no_profile():
    assert load_operator_profile("abacus") is None
    assert load_operator_profile("../common") is None


@pytest.mark.parametrize("gpu", list_sampled_gpus())
def test_shipped_profiles_predict_below_the_roof_and_above_nothing(gpu):
    """Every fit of a shipped profile, at its smallest and largest sampled sizes, takes no less than 0.9 of the peak rates."""
    from crosszone.inputs.catalogue import catalogue

    one, device = load_operator_profile(gpu), catalogue().gpu(gpu)
    assert one is not None
    for fit in one.operators.values():
        assert isinstance(fit, OperatorFit)
        for end in (0, 1):
            sizes = {name: limits[end] for name, limits in fit.ranges.items()}
            time_us = fit.time_us(sizes, one.processors).item()
            done = count_work(fit.op, fit.which, at(**sizes), 2.0 if fit.dtype != "fp8" else 1.0)
            peak = getattr(device.dense_tflops, fit.dtype) or device.dense_tflops.fp16
            assert time_us > 0.85 * 1e3 * done.gflop.item() / peak, fit.key
            assert np.isfinite(time_us)
            assert set(build_features(fit.op, fit.which, at(**sizes), 2.0, 132)) >= set(
                fit.correction.signs if fit.correction else ()
            )
    assert 0.3 < one.coefficients["matmul"].value <= 1.0
    assert 0.5 < one.coefficients["memory"].value <= 1.0
