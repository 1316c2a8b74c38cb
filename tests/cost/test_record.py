"""Numbers that remember their arithmetic, and the expressions that come of them."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arithmetic import worked_out
from crosszone.cost.expression import RecordedEntry, build_expression
from crosszone.cost.record import Recorded, as_array, named, plain, recording
from crosszone.predict.step import build_stage_times
from effort import examples
from predict.given import predictors


def worked(node: Recorded, at: tuple[int, ...] = ()) -> tuple[str, str]:
    found = build_expression(RecordedEntry(node, at))
    assert math.isclose(worked_out(found.worked), float(node.value[at]), rel_tol=1e-12, abs_tol=1e-300)
    return found.symbols, found.worked


def test_a_number_tells_its_arithmetic():
    """2 x 4096 x 32000 / 2e14 = 1.31072e-6."""
    with recording() as tape:
        tokens, rate = tape.leaf("tokens", 4096.0), tape.leaf("rate", 2e14)
        head = 2.0 * tokens * 32000.0 / rate
    assert float(head) == pytest.approx(1.31072e-6)
    assert worked(head) == ("2 * tokens * 32000 / rate", "2 * 4096 * 32000 / 200000000000000")


def test_expressions_end_at_names_which_have_their_own():
    with recording() as tape:
        tp, rate = tape.leaf("tp", 8.0), tape.leaf("rate", 100.0)
        one = named("collective_s", 2.0 * (tp - 1.0) / tp / rate)
        both = named("layer.tp", 2.0 * one)
    assert worked(both) == ("2 * collective_s", "2 * 0.0175")
    assert worked(tape.names["collective_s"])[0] == "2 * (tp - 1) / (tp * rate)"


def test_only_the_branch_that_was_taken_is_told():
    with recording() as tape:
        tp, fast, slow = tape.leaf("tp", 8.0), tape.leaf("fast", 300.0), tape.leaf("slow", 25.0)
        rate = np.where(tp <= 8.0, fast, slow)
        other = np.where((tp > 8.0) | ~(tp <= 8.0), fast, slow)
        picked = np.choose(np.argmax(np.stack([slow, fast]), axis=0), [slow + 1.0, fast + 1.0])
    assert worked(rate)[0] == "fast"
    assert worked(other)[0] == "slow"
    assert worked(picked)[0] == "fast + 1"


def test_terms_of_nothing_and_factors_of_one_are_left_out():
    with recording() as tape:
        a, nothing, one = tape.leaf("a", 3.0), tape.leaf("nothing", 0.0), tape.leaf("one", 1.0)
        total = a * one / 1.0 + nothing * a + 0.0 - nothing
        least = np.minimum(np.minimum(a, np.inf), np.inf)
    assert worked(total)[0] == "a"
    assert worked(least)[0] == "a"


def test_an_entry_of_an_array_is_followed_through_sums_shifts_and_the_largest():
    with recording() as tape:
        stages = tape.leaf("stage_s", np.array([[1.0, 2.0, 2.0]]))
        before = np.roll(stages, 1, axis=-1)
        total, longest = stages.sum(axis=-1, keepdims=True), np.max(stages, axis=-1, keepdims=True)
        reached = np.cumsum(stages, axis=-1)
    assert build_expression(RecordedEntry(before, (0, 0))).inputs["stage_s"].at == (0, 2)
    assert worked(total, (0, 0)) == ("stage_s + 2 * stage_s_2", "1 + 2 * 2")
    assert worked(longest, (0, 0))[1] == "2"
    assert worked(reached, (0, 1))[1] == "1 + 2"


def test_two_numbers_never_share_a_symbol():
    with recording() as tape:
        a = tape.leaf("a", np.array([2.0, 3.0]))
        found = build_expression(RecordedEntry(a[0] * a[1] + a[0], ()))
    assert (found.symbols, found.worked) == ("a * a_2 + a", "2 * 3 + 2")
    assert {symbol: cell.value for symbol, cell in found.inputs.items()} == {"a": 2.0, "a_2": 3.0}


def test_the_terms_of_a_sum_are_told_one_by_one():
    with recording() as tape:
        a, b = tape.leaf("a", 5.0), tape.leaf("b", 2.0)
        found = build_expression(RecordedEntry(3.0 * a - b, ()))
    assert [(term.worked, term.value, term.inputs) for term in found.terms] == [
        ("3 * 5", 15.0, ("a",)),
        ("-(2)", -2.0, ("b",)),
    ]


def test_without_a_tape_nothing_is_recorded():
    array = np.arange(3.0)
    assert named("a", array) is array
    assert isinstance(as_array(2.0), np.ndarray)


def test_what_cannot_be_recorded_is_refused_not_lost():
    with recording() as tape:
        a = tape.leaf("a", np.array([1.0, 2.0]))
    with pytest.raises(TypeError):
        np.linalg.norm(a)
    with pytest.raises(TypeError):
        np.sin(a)


def test_all_branches_are_recorded_where_inputs_may_change():
    with recording(all_branches=True) as tape:
        assert np.any(tape.leaf("a", 0.0) > 0)
    with recording() as tape:
        assert not np.any(tape.leaf("a", 0.0) > 0)


small = st.floats(0.125, 64.0).map(lambda x: round(x * 8) / 8)


@examples(200)
@given(st.lists(small, min_size=4, max_size=4), st.integers(0, 3), st.integers(0, 3))
def test_any_mixture_of_operations_works_out(values, i, j):
    with recording() as tape:
        array = tape.leaf("x", np.array(values))
        a, b = array[i], tape.leaf("y", values[j])
        found = [
            a + b * a - (a - b) / (a + 1.0),
            -(a - b) * (b - a) ** 2.0,
            np.maximum(a, np.maximum(b, 1.0)) / (a / b) - np.minimum(a * 2.0, b),
            np.log2(a + 1.0) + np.ceil(a / b) * np.exp(-b) - np.sqrt(a) / (b * (a + b)),
            np.where(a > b, a - b, b - a) + np.clip(a, 1.0, 2.0) + (a > 1.0) * b,
            array.sum() - array.max() + np.cumsum(array, axis=-1)[j],
        ]
    for node in found:
        value = float(node)
        text = build_expression(RecordedEntry(node, ())).worked
        assert math.isclose(worked_out(text), value, rel_tol=1e-9, abs_tol=1e-12), text


def as_leaves(tape, columns):
    return replace(columns, **{f.name: tape.leaf(f.name, getattr(columns, f.name)) for f in fields(columns)})


@pytest.mark.parametrize("all_branches", [False, True])
@examples(60)
@given(p=predictors())
def test_recorded_formulas_give_the_numbers_of_the_cost_model(p, all_branches):
    """The same functions of cost/ and predict/step.py, with recorded numbers; every name works out to its value."""
    batch, plainly = p.batch, p.step.times
    with recording(all_branches=all_branches) as tape:
        leaves = {name: as_leaves(tape, getattr(batch, name)) for name in ("model", "work", "gpu", "stack", "links")}
        recorded = build_stage_times(replace(batch, **leaves), as_leaves(tape, p.coefficients))
    for name in ("forward", "backward", "reduce", "gather", "update", "jitter", "send", "send_back", "gathers"):
        np.testing.assert_allclose(plain(getattr(recorded, name)), getattr(plainly, name), rtol=1e-12, err_msg=name)
    for node in tape.names.values():
        for at in np.ndindex(*node.shape):
            if np.isfinite(node.value[at]):
                worked(node, at)
